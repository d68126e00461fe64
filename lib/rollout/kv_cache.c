/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_cache.c: the memory of a cache: it grows by panels up to budget + interval rows, and shrinks when rows
 * are evicted. Rows only ever move towards the front, so that no second copy is needed.
 */
#include "../base/context.h"
#include "../base/sized.h"
#include "kv_kernels.h"
#include "kv_policy.h"

#include <string.h>

enum {
    HEAD_MAX = 1 << 16,
    GROUP_MAX = 1 << 16,
    GROWTH = 8, /* by this part of what there is, at least a panel */
};

/* ---- sizes ---- */

static size_t key_floats(const weft_kv_shape *shape, size_t capacity) {
    return weft_kv_whole_panels(capacity) * shape->head;
}

static size_t value_floats(const weft_kv_shape *shape, size_t capacity) {
    return weft_kv_whole_panels(shape->head) * capacity;
}

/* Queries only choose what is kept, so half of their bits are enough. */
static size_t ring_halves(const weft_kv_options *options, const weft_kv_shape *shape) {
    return weft_kv_policies[options->policy].queries ? options->window * shape->group * shape->head : 0;
}

static size_t sum_floats(const weft_kv_options *options, size_t capacity) {
    return weft_kv_policies[options->policy].sums ? capacity : 0;
}

/* The most rows that there may be while `tokens` tokens come. */
static size_t most_rows(const weft_kv_options *options, size_t tokens) {
    size_t most = weft_kv_budget(options, tokens) + options->interval;
    return options->policy == WEFT_KV_NONE || tokens < most ? tokens : most;
}

/* Rows that memory is taken for when there are `rows`. */
static size_t capacity_for(const weft_kv_cache *cache, size_t rows) {
    size_t capacity = weft_kv_whole_panels(rows);
    return capacity < cache->most ? capacity : cache->most;
}

static size_t bytes_at(const weft_kv_options *options, const weft_kv_shape *shape, size_t capacity) {
    size_t floats =
        key_floats(shape, capacity) + value_floats(shape, capacity) + sum_floats(options, capacity);
    size_t numbers = weft_kv_policies[options->policy].alike ? 2 * capacity : capacity;
    return floats * sizeof(float) + ring_halves(options, shape) * sizeof(uint16_t) +
           numbers * sizeof(uint32_t) + sizeof(weft_kv_cache);
}

/* The most of one cache. Together one may have what others leave. */
static size_t own_most(const weft_kv_options *options, size_t tokens) {
    return weft_kv_together(options) ? tokens : most_rows(options, tokens);
}

size_t weft_kv_bytes(const weft_kv_options *given, const weft_kv_shape *shape, size_t tokens) {
    weft_kv_options options;
    if (weft_sized_read(NULL, given, &options, sizeof options, "weft_kv_options") != WEFT_OK) {
        return 0;
    }
    size_t rows = most_rows(&options, tokens);
    return bytes_at(&options, shape, weft_kv_together(&options) ? weft_kv_whole_panels(rows) : rows);
}

/* ---- usage ---- */

static size_t token_bytes(const weft_kv_cache *cache) {
    return 2 * cache->shape.head * sizeof(float);
}

static void count_bytes(weft_kv_usage *usage, size_t before, size_t after) {
    usage->bytes = usage->bytes - before + after;
    usage->peak_bytes = usage->bytes > usage->peak_bytes ? usage->bytes : usage->peak_bytes;
}

static void count_full_bytes(weft_kv_usage *usage, size_t more) {
    usage->full_bytes += more;
    if (usage->full_bytes > usage->peak_full_bytes) {
        usage->peak_full_bytes = usage->full_bytes;
    }
}

void weft_kv_usage_add(weft_kv_usage *total, const weft_kv_usage *usage) {
    total->held += usage->held;
    total->full += usage->full;
    total->evictions += usage->evictions;
    total->bytes += usage->bytes;
    total->peak_bytes += usage->peak_bytes;
    total->full_bytes += usage->full_bytes;
    total->peak_full_bytes += usage->peak_full_bytes;
}

/* ---- memory ---- */

static weft_status resize(weft_context *context, float **array, size_t count) {
    float *moved = weft_reallocate_array(context, *array, count, sizeof **array);
    if (moved == NULL) {
        return WEFT_NO_MEMORY;
    }
    *array = moved;
    return WEFT_OK;
}

static weft_status resize_numbers(weft_context *context, uint32_t **array, size_t count) {
    uint32_t *moved = weft_reallocate_array(context, *array, count, sizeof **array);
    if (moved == NULL) {
        return WEFT_NO_MEMORY;
    }
    *array = moved;
    return WEFT_OK;
}

/* All arrays for another number of rows. If one cannot be had, the others may have become larger than is
 * known, which does no harm. */
static weft_status resize_arrays(weft_kv_cache *cache, size_t capacity) {
    weft_context *context = cache->context;
    const weft_kv_rule *rule = &weft_kv_policies[cache->options.policy];
    weft_status status = resize_numbers(context, &cache->positions, capacity);
    if (status == WEFT_OK && rule->alike) {
        status = resize_numbers(context, &cache->alike, capacity);
    }
    if (status == WEFT_OK && rule->sums) {
        status = resize(context, &cache->sums, capacity);
    }
    if (status == WEFT_OK) {
        status = resize(context, &cache->keys, key_floats(&cache->shape, capacity));
    }
    if (status == WEFT_OK) {
        status = resize(context, &cache->values, value_floats(&cache->shape, capacity));
    }
    return status;
}

static void set_capacity(weft_kv_cache *cache, size_t capacity) {
    count_bytes(cache->usage, bytes_at(&cache->options, &cache->shape, cache->capacity),
                bytes_at(&cache->options, &cache->shape, capacity));
    cache->capacity = capacity;
}

static weft_status grow(weft_kv_cache *cache) {
    size_t before = key_floats(&cache->shape, cache->capacity);
    size_t more = weft_kv_together(&cache->options) ? 1 : cache->rows / GROWTH;
    size_t capacity = capacity_for(cache, cache->rows + (more > 0 ? more : 1));
    weft_status status = resize_arrays(cache, capacity);
    if (status != WEFT_OK) {
        return status;
    }
    size_t after = key_floats(&cache->shape, capacity);
    memset(cache->keys + before, 0, (after - before) * sizeof *cache->keys);
    set_capacity(cache, capacity);
    return WEFT_OK;
}

/* Should memory not become smaller, the rows are still right. */
static weft_status release_rows(weft_kv_cache *cache) {
    size_t capacity = capacity_for(cache, cache->rows);
    if (capacity == cache->capacity) {
        return WEFT_OK;
    }
    set_capacity(cache, capacity);
    return resize_arrays(cache, capacity);
}

/* ---- eviction ---- */

static void move_key(weft_kv_cache *cache, size_t from, size_t to) {
    const float *source = weft_kv_key(cache->keys, cache->shape.head, from);
    float *target = weft_kv_key(cache->keys, cache->shape.head, to);
    for (size_t c = 0; c < cache->shape.head * WEFT_KV_PANEL; c += WEFT_KV_PANEL) {
        target[c] = source[c];
    }
}

static void move_value(weft_kv_cache *cache, size_t from, size_t to) {
    size_t width = weft_kv_whole_panels(cache->shape.head);
    memcpy(cache->values + to * width, cache->values + from * width, width * sizeof *cache->values);
}

/* `kept` ascends, so a row moves to where nothing is needed any more. */
static void compact(weft_kv_cache *cache, const uint32_t *kept, size_t count) {
    for (size_t to = 0; to < count; to++) {
        size_t from = kept[to];
        if (from != to) {
            move_key(cache, from, to);
            move_value(cache, from, to);
            cache->positions[to] = cache->positions[from];
        }
    }
    for (size_t to = 0; cache->sums != NULL && to < count; to++) {
        cache->sums[to] = cache->sums[kept[to]];
    }
    for (size_t to = 0; cache->alike != NULL && to < count; to++) {
        cache->alike[to] = cache->alike[kept[to]];
    }
    cache->rows = count;
    cache->compared = count;
    cache->chosen = cache->seen;
    cache->usage->evictions++;
}

weft_status weft_kv_keep_best(weft_kv_cache *cache, const float *scores, size_t budget) {
    uint32_t *kept = weft_allocate_array(cache->context, budget, sizeof *kept);
    weft_status status = kept != NULL ? weft_kv_choose(cache, scores, budget, kept) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        compact(cache, kept, budget);
    }
    weft_release(cache->context, kept);
    return status == WEFT_OK ? release_rows(cache) : status;
}

static weft_status evict(weft_kv_cache *cache, size_t budget) {
    if (weft_kv_policies[cache->options.policy].score == NULL) {
        return weft_kv_keep_best(cache, NULL, budget);
    }
    float *scores = weft_allocate_array(cache->context, cache->rows, sizeof *scores);
    weft_status status = scores != NULL
                             ? weft_kv_score(cache, cache->rows - weft_kv_recent(&cache->options), scores)
                             : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        status = weft_kv_keep_best(cache, scores, budget);
    }
    weft_release(cache->context, scores);
    return status;
}

/* ---- tokens ---- */

static weft_status check_append(const weft_kv_cache *cache, uint32_t position) {
    if (!cache->told) {
        return weft_fail(cache->context, WEFT_INVALID_ARGUMENT,
                         "a KV cache was not told what the queries of its last token saw; call "
                         "weft_kv_cache_observe after each weft_kv_cache_append");
    }
    if (cache->rows > 0 && position <= cache->positions[cache->rows - 1]) {
        return weft_fail(cache->context, WEFT_INVALID_ARGUMENT,
                         "a KV cache was given position %u after %u; positions ascend", position,
                         cache->positions[cache->rows - 1]);
    }
    if (cache->seen == cache->tokens) {
        return weft_fail(cache->context, WEFT_LIMIT_EXCEEDED,
                         "a KV cache was made for %zu tokens and is given more", cache->tokens);
    }
    if (cache->rows == cache->most) {
        return weft_fail(cache->context, WEFT_LIMIT_EXCEEDED,
                         "a KV cache is full with %zu tokens, because an eviction has failed", cache->rows);
    }
    return WEFT_OK;
}

weft_status weft_kv_cache_append(weft_kv_cache *cache, uint32_t position, const float *key,
                                 const float *value) {
    weft_status status = check_append(cache, position);
    if (status == WEFT_OK && cache->rows == cache->capacity) {
        status = grow(cache);
    }
    if (status != WEFT_OK) {
        return status;
    }
    size_t head = cache->shape.head, row = cache->rows++;
    size_t width = weft_kv_whole_panels(head);
    float *keys = weft_kv_key(cache->keys, head, row), *values = cache->values + row * width;
    for (size_t c = 0; c < head; c++) {
        keys[c * WEFT_KV_PANEL] = key[c];
    }
    memcpy(values, value, head * sizeof *values);
    memset(values + head, 0, (width - head) * sizeof *values);
    cache->positions[row] = position;
    if (cache->sums != NULL) {
        cache->sums[row] = 0;
    }
    cache->told = false;
    cache->seen++;
    count_full_bytes(cache->usage, token_bytes(cache));
    return WEFT_OK;
}

weft_status weft_kv_cache_observe(weft_kv_cache *cache, const float *queries, const float *probabilities,
                                  size_t stride) {
    if (cache->told) {
        return weft_fail(cache->context, WEFT_INVALID_ARGUMENT,
                         "a KV cache was told twice what the queries of a token saw");
    }
    for (size_t h = 0; cache->sums != NULL && h < cache->shape.group; h++) {
        weft_kv_kernels_at(weft_cpu_level())->add(cache->sums, probabilities + h * stride, 1, cache->rows);
    }
    if (cache->ring != NULL) {
        size_t floats = cache->shape.group * cache->shape.head;
        weft_bf16_from_f32(queries, cache->ring + (cache->seen - 1) % cache->options.window * floats,
                           floats);
    }
    cache->told = true;
    cache->usage->held += cache->rows;
    cache->usage->full += cache->seen;
    if (cache->options.policy == WEFT_KV_NONE || weft_kv_together(&cache->options)) {
        return WEFT_OK;
    }
    size_t budget = weft_kv_budget(&cache->options, cache->seen);
    return cache->rows >= budget + cache->options.interval ? evict(cache, budget) : WEFT_OK;
}

weft_kv_view weft_kv_cache_view(const weft_kv_cache *cache) {
    return (weft_kv_view){
        .rows = cache->rows,
        .capacity = cache->capacity,
        .keys = cache->keys,
        .values = cache->values,
        .positions = cache->positions,
    };
}

/* ---- life ---- */

static weft_status check_sizes(weft_context *context, const weft_kv_options *options,
                               const weft_kv_shape *shape, size_t tokens) {
    weft_status status = weft_kv_check(context, options);
    if (status == WEFT_OK &&
        (shape->head < 1 || shape->head > HEAD_MAX || shape->group < 1 || shape->group > GROUP_MAX)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "a KV cache cannot have heads of %zu floats in groups of %zu; choose 1 to %d "
                           "and 1 to %d",
                           shape->head, shape->group, HEAD_MAX, GROUP_MAX);
    }
    if (status == WEFT_OK && (tokens < 1 || tokens > WEFT_KV_TOKENS_MAX)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "a KV cache cannot be made for %zu tokens; choose 1 to %d", tokens,
                           WEFT_KV_TOKENS_MAX);
    }
    return status;
}

weft_status weft_kv_cache_create(weft_context *context, const weft_kv_options *given,
                                 const weft_kv_shape *shape, size_t tokens, weft_kv_usage *usage,
                                 weft_kv_cache **cache_out) {
    weft_kv_options options;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_kv_options");
    if (status == WEFT_OK) {
        status = check_sizes(context, &options, shape, tokens);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_kv_cache *cache = weft_allocate_zeroed(context, 1, sizeof *cache);
    if (cache == NULL) {
        return WEFT_NO_MEMORY;
    }
    *cache = (weft_kv_cache){
        .context = context,
        .options = options,
        .shape = *shape,
        .usage = usage,
        .tokens = tokens,
        .most = own_most(&options, tokens),
        .told = true,
    };
    size_t ring = ring_halves(&options, shape);
    if (ring > 0) {
        cache->ring = weft_allocate_array(context, ring, sizeof *cache->ring);
    }
    if (ring > 0 && cache->ring == NULL) {
        weft_release(context, cache);
        return WEFT_NO_MEMORY;
    }
    count_bytes(usage, 0, bytes_at(&options, shape, 0));
    *cache_out = cache;
    return WEFT_OK;
}

void weft_kv_cache_destroy(weft_kv_cache *cache) {
    if (cache == NULL) {
        return;
    }
    weft_context *context = cache->context;
    count_bytes(cache->usage, bytes_at(&cache->options, &cache->shape, cache->capacity), 0);
    cache->usage->full_bytes -= cache->seen * token_bytes(cache);
    weft_release(context, cache->ring);
    weft_release(context, cache->sums);
    weft_release(context, cache->alike);
    weft_release(context, cache->values);
    weft_release(context, cache->keys);
    weft_release(context, cache->positions);
    weft_release(context, cache);
}
