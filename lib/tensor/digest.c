/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.c: the grain sums of a state, and what is hashed from them.
 *
 * All grains of all tensors stand in one array, tensor after tensor in canonical order, so that work
 * is cut into tasks by grain number alone and many small tensors cost no more than one large one. The
 * partition into grains never reaches a digest: a tensor's value is the sum of all of its grains.
 */
#define XXH_STATIC_LINKING_ONLY /* for the complete type of the hash's state: it lives on the stack */
#include "digest.h"

#include "../base/context.h"
#include "../base/pool.h"
#include "pieces.h"
#include "table.h"

#include <stdatomic.h>
#include <string.h>
#include <xxhash.h>

enum {
    TASK_GRAINS = 16,
    BLOCK_BYTES = 32 * 1024, /* what is cast or gathered at a time: stays in the first-level cache */
};

typedef struct grain_sum {
    _Atomic uint64_t lanes[2];
} grain_sum;

struct weft_sums {
    weft_context *context;
    const weft_view *view;
    grain_sum *grains;
    size_t *first; /* of each tensor, and one more for the end */
    size_t cursor; /* the grain at which the next audit starts */
};

static size_t grain_total(const weft_sums *sums) {
    return sums->first[weft_view_count(sums->view)];
}

static weft_sum grain_load(const grain_sum *grain) {
    return (weft_sum){{
        atomic_load_explicit(&grain->lanes[0], memory_order_relaxed),
        atomic_load_explicit(&grain->lanes[1], memory_order_relaxed),
    }};
}

static void grain_store(grain_sum *grain, weft_sum sum) {
    atomic_store_explicit(&grain->lanes[0], sum.lanes[0], memory_order_relaxed);
    atomic_store_explicit(&grain->lanes[1], sum.lanes[1], memory_order_relaxed);
}

/* ---- making and moving ---- */

static weft_status place_grains(weft_context *context, weft_sums *sums) {
    const weft_view *view = sums->view;
    uint64_t total = 0;
    for (size_t i = 0; i < weft_view_count(view); i++) {
        sums->first[i] = (size_t)total;
        uint64_t bytes = weft_view_at(view, i)->bytes;
        total += bytes / WEFT_GRAIN_BYTES + (bytes % WEFT_GRAIN_BYTES != 0);
        if (total > SIZE_MAX / sizeof(grain_sum)) {
            return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                             "the model is too large to be summed: tensor \"%.*s\"", WEFT_NAME_SHOWN,
                             weft_view_at(view, i)->name);
        }
    }
    sums->first[weft_view_count(view)] = (size_t)total;
    return WEFT_OK;
}

weft_status weft_sums_zero(weft_context *context, const weft_view *view, weft_sums **sums_out) {
    weft_sums *sums = weft_allocate_zeroed(context, 1, sizeof *sums);
    if (sums == NULL) {
        return WEFT_NO_MEMORY;
    }
    sums->context = context;
    sums->view = view;
    sums->first = weft_allocate_array(context, weft_view_count(view) + 1, sizeof *sums->first);
    weft_status status = sums->first == NULL ? WEFT_NO_MEMORY : place_grains(context, sums);
    if (status == WEFT_OK) {
        sums->grains = weft_allocate_zeroed(context, grain_total(sums), sizeof *sums->grains);
        status = sums->grains == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    }
    if (status != WEFT_OK) {
        weft_sums_destroy(sums);
        return status;
    }
    *sums_out = sums;
    return WEFT_OK;
}

void weft_sums_destroy(weft_sums *sums) {
    if (sums == NULL) {
        return;
    }
    weft_context *context = sums->context;
    weft_release(context, sums->grains);
    weft_release(context, sums->first);
    weft_release(context, sums);
}

static bool same_tensor(const weft_tensor *a, const weft_tensor *b) {
    return strcmp(a->name, b->name) == 0 && weft_tensor_alike(a, b);
}

/* A range of each row that is held, by one piece or several; goes on to the next. */
static weft_span next_range(const weft_mapping *mapping, size_t *next) {
    const weft_piece *piece = &mapping->pieces[(*next)++];
    weft_span range = {.start = piece->start, .run = piece->length, .count = 1};
    while (*next < mapping->piece_count && mapping->pieces[*next].start == range.start + range.run) {
        range.run += mapping->pieces[(*next)++].length;
    }
    return range;
}

/* True if the same units are held, wherever they lie. */
static bool held_alike(const weft_mapping *a, const weft_mapping *b) {
    if (a->held != b->held || a->held == 0 || a->held == a->units) {
        return a->held == b->held;
    }
    size_t i = 0;
    size_t j = 0;
    bool alike = a->row == b->row;
    while (alike && i < a->piece_count && j < b->piece_count) {
        weft_span first = next_range(a, &i);
        weft_span second = next_range(b, &j);
        alike = first.start == second.start && first.run == second.run;
    }
    return alike && i == a->piece_count && j == b->piece_count;
}

weft_status weft_sums_check(weft_context *context, const weft_sums *sums, const weft_view *view) {
    const weft_view *a = sums->view;
    const weft_view *b = view;
    if (a->count != b->count) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "sums of %zu tensors cannot stand for a view of %zu tensors", a->count, b->count);
    }
    for (size_t i = 0; i < a->count; i++) {
        if (!same_tensor(&a->tensors[i], &b->tensors[i]) || !held_alike(&a->mappings[i], &b->mappings[i])) {
            return weft_fail(
                context, WEFT_INVALID_ARGUMENT,
                "sums over tensor \"%.*s\" cannot stand for a view that has or holds it otherwise "
                "(there: \"%.*s\"); sum that view itself",
                WEFT_NAME_SHOWN, a->tensors[i].name, WEFT_NAME_SHOWN, b->tensors[i].name);
        }
    }
    return WEFT_OK;
}

void weft_sums_attach(weft_sums *sums, const weft_view *view) {
    sums->view = view;
}

void weft_sums_add_common(weft_sums *sums, const weft_sums *source) {
    for (size_t i = 0; i < weft_view_count(source->view); i++) {
        const weft_tensor *tensor = weft_view_at(source->view, i);
        int64_t found = weft_view_find(sums->view, tensor->name);
        if (found < 0 || !same_tensor(tensor, weft_view_at(sums->view, (size_t)found))) {
            continue;
        }
        grain_sum *to = &sums->grains[sums->first[found]];
        for (size_t g = source->first[i]; g < source->first[i + 1]; g++, to++) {
            weft_sum sum = grain_load(to);
            weft_sum_add(&sum, grain_load(&source->grains[g]));
            grain_store(to, sum);
        }
    }
}

void weft_sums_move(weft_sums *sums, size_t tensor, uint64_t byte, weft_sum delta) {
    grain_sum *target = &sums->grains[sums->first[tensor] + (size_t)(byte / WEFT_GRAIN_BYTES)];
    atomic_fetch_add_explicit(&target->lanes[0], delta.lanes[0], memory_order_relaxed);
    atomic_fetch_add_explicit(&target->lanes[1], delta.lanes[1], memory_order_relaxed);
}

void weft_sums_merge(weft_sums *sums, const weft_sums *moves, bool negate) {
    for (size_t i = 0; i < grain_total(sums); i++) {
        weft_sum sum = grain_load(&sums->grains[i]);
        weft_sum move = grain_load(&moves->grains[i]);
        if (negate) {
            weft_sum_subtract(&sum, move);
        } else {
            weft_sum_add(&sum, move);
        }
        grain_store(&sums->grains[i], sum);
    }
}

weft_sum weft_sums_total(const weft_sums *sums, size_t tensor) {
    weft_sum total = {{0, 0}};
    for (size_t i = sums->first[tensor]; i < sums->first[tensor + 1]; i++) {
        weft_sum_add(&total, grain_load(&sums->grains[i]));
    }
    return total;
}

/* ---- summing memory ---- */

/* What one worker needs: the segments of the grain at hand, and a block to gather in. */
typedef struct worker_scratch {
    weft_segments segments;
    uint8_t *block;
} worker_scratch;

/* A place in the segments of a grain. What is held without a gap in the checkpoint tensor begins and ends
 * on words (or at the tensor's end): a view never holds part of a word. */
typedef struct held_place {
    const weft_segment *segment;
    const weft_segment *end;
    uint64_t used; /* units of `segment` that are summed already */
} held_place;

static bool is_plain(const weft_segment *segment) {
    return segment->live->storage == segment->live->dtype && segment->live->data != NULL &&
           segment->live->strides == NULL;
}

static void advance(held_place *place, uint64_t units) {
    place->used += units;
    if (place->used == place->segment->units) {
        place->segment++;
        place->used = 0;
    }
}

/* True if there is more, and it is the checkpoint tensor's `unit`. */
static bool goes_on_at(const held_place *place, uint64_t unit) {
    return place->segment < place->end && weft_segment_unit(place->segment, place->used) == unit;
}

/* The units at hand that can be summed where they lie: whole words, or all of them if a gap follows. */
static uint64_t units_in_place(const held_place *place, unsigned width) {
    if (!is_plain(place->segment)) {
        return 0;
    }
    uint64_t left = weft_segment_left(place->segment, place->used);
    held_place next = *place;
    advance(&next, left);
    bool whole = !goes_on_at(&next, weft_segment_unit(place->segment, place->used) + left);
    return whole ? left : left - left % (WEFT_WORD / width);
}

/* Copies the next units, as far as they follow each other in the checkpoint tensor and there is room, into
 * the block. */
static weft_status fill_block(weft_context *context, held_place *place, unsigned width, uint8_t *block,
                              size_t *size_out) {
    uint64_t room = BLOCK_BYTES / width;
    uint64_t first = weft_segment_unit(place->segment, place->used);
    uint64_t filled = 0;
    while (filled < room && goes_on_at(place, first + filled)) {
        uint64_t units = weft_segment_left(place->segment, place->used);
        if (units > room - filled) {
            units = room - filled;
        }
        weft_status status =
            weft_segment_read(context, place->segment, place->used, units, block + filled * width);
        if (status != WEFT_OK) {
            return status;
        }
        advance(place, units);
        filled += units;
    }
    *size_out = (size_t)(filled * width);
    return WEFT_OK;
}

static weft_status sum_segments(weft_context *context, const weft_segments *segments, uint8_t *block,
                                weft_sum *sum) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    held_place place = {segments->items, segments->items + segments->count, 0};
    while (place.segment < place.end) {
        unsigned width = weft_dtype_width(place.segment->live->dtype);
        uint64_t word = weft_segment_unit(place.segment, place.used) * width / WEFT_WORD;
        uint64_t units = units_in_place(&place, width);
        if (units > 0) {
            const uint8_t *memory = place.segment->live->data;
            memory += weft_segment_live(place.segment, place.used) * width;
            weft_sum_add(sum, kernels->sum(memory, (size_t)(units * width), word));
            advance(&place, units);
            continue;
        }
        size_t size;
        weft_status status = fill_block(context, &place, width, block, &size);
        if (status != WEFT_OK) {
            return status;
        }
        weft_sum_add(sum, kernels->sum(block, size, word));
    }
    return WEFT_OK;
}

static size_t tensor_of_grain(const weft_sums *sums, size_t index) {
    size_t low = 0;
    size_t high = weft_view_count(sums->view);
    while (high - low > 1) { /* first[low] <= index < first[high] */
        size_t middle = low + (high - low) / 2;
        if (sums->first[middle] <= index) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Bytes [begin, end) of its tensor that a grain covers. */
static void grain_extent(const weft_sums *sums, size_t tensor, size_t index, uint64_t *begin,
                         uint64_t *end) {
    uint64_t bytes = weft_view_at(sums->view, tensor)->bytes;
    *begin = (uint64_t)(index - sums->first[tensor]) * WEFT_GRAIN_BYTES;
    *end = bytes - *begin > WEFT_GRAIN_BYTES ? *begin + WEFT_GRAIN_BYTES : bytes;
}

/* The sum of what memory holds of one grain. */
static weft_status sum_grain(const weft_sums *sums, weft_context *context, size_t tensor, size_t index,
                             worker_scratch *scratch, weft_sum *sum_out) {
    uint64_t begin;
    uint64_t end;
    grain_extent(sums, tensor, index, &begin, &end);
    unsigned width = weft_dtype_width(weft_view_at(sums->view, tensor)->dtype);
    weft_span span = {.start = begin / width, .run = (end - begin) / width, .count = 1};
    weft_holding holding;
    scratch->segments.count = 0;
    weft_status status = weft_view_map(sums->view, tensor, &span, 0, &scratch->segments, &holding);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sum sum = {{0, 0}};
    status = sum_segments(context, &scratch->segments, scratch->block, &sum);
    if (status == WEFT_OK) {
        *sum_out = sum;
    }
    return status;
}

/* ---- all threads ---- */

/* A pass over `count` grains from `start`, wrapping at the end: to compute them or to audit them. */
typedef struct digest_pass {
    weft_context *context;
    weft_sums *sums;
    worker_scratch *scratches; /* one per worker */
    size_t start;
    size_t count;
    bool audit;
} digest_pass;

static weft_status settle_grain(digest_pass *pass, size_t tensor, size_t index, weft_sum sum) {
    weft_sums *sums = pass->sums;
    if (!pass->audit) {
        grain_store(&sums->grains[index], sum);
        return WEFT_OK;
    }
    if (weft_sum_equal(sum, grain_load(&sums->grains[index]))) {
        return WEFT_OK;
    }
    uint64_t begin;
    uint64_t end;
    grain_extent(sums, tensor, index, &begin, &end);
    return weft_fail(
        pass->context, WEFT_DIGEST_MISMATCH,
        "the audit found that this replica drifted: tensor \"%.*s\", somewhere in bytes %llu to %llu, "
        "is not what was committed; pull again",
        WEFT_NAME_SHOWN, weft_view_at(sums->view, tensor)->name, (unsigned long long)begin,
        (unsigned long long)end);
}

static weft_status pass_task(void *argument, size_t index, unsigned worker) {
    digest_pass *pass = argument;
    size_t end = (index + 1) * TASK_GRAINS < pass->count ? (index + 1) * TASK_GRAINS : pass->count;
    uint64_t bytes = 0;
    for (size_t i = index * TASK_GRAINS; i < end; i++) {
        size_t number = (pass->start + i) % grain_total(pass->sums);
        size_t tensor = tensor_of_grain(pass->sums, number);
        weft_sum sum;
        weft_status status =
            sum_grain(pass->sums, pass->context, tensor, number, &pass->scratches[worker], &sum);
        if (status == WEFT_OK) {
            status = settle_grain(pass, tensor, number, sum);
        }
        if (status != WEFT_OK) {
            return status;
        }
        uint64_t first;
        uint64_t last;
        grain_extent(pass->sums, tensor, number, &first, &last);
        bytes += last - first;
    }
    return weft_progress_add(pass->context, bytes);
}

static void close_scratches(weft_context *context, worker_scratch *scratches, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        weft_segments_close(&scratches[i].segments);
        weft_release(context, scratches[i].block);
    }
    weft_release(context, scratches);
}

static weft_status open_scratches(weft_context *context, unsigned count, worker_scratch **scratches_out) {
    worker_scratch *scratches = weft_allocate_zeroed(context, count, sizeof *scratches);
    if (scratches == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (unsigned i = 0; i < count; i++) {
        scratches[i].segments.context = context;
        scratches[i].block = weft_allocate(context, BLOCK_BYTES);
        if (scratches[i].block == NULL) {
            close_scratches(context, scratches, i + 1);
            return WEFT_NO_MEMORY;
        }
    }
    *scratches_out = scratches;
    return WEFT_OK;
}

static weft_status run_pass(weft_context *context, weft_sums *sums, size_t start, size_t count,
                            uint64_t bytes, bool audit) {
    digest_pass pass = {.context = context, .sums = sums, .start = start, .count = count, .audit = audit};
    unsigned workers = weft_context_threads(context);
    weft_status status = open_scratches(context, workers, &pass.scratches);
    if (status != WEFT_OK) {
        return status;
    }
    weft_progress_begin(context, audit ? "audit" : "digest", bytes);
    status = weft_parallel(context, (count + TASK_GRAINS - 1) / TASK_GRAINS, pass_task, &pass);
    close_scratches(context, pass.scratches, workers);
    return status;
}

static uint64_t view_bytes(const weft_view *view) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < weft_view_count(view); i++) {
        bytes += weft_view_at(view, i)->bytes;
    }
    return bytes;
}

weft_status weft_sums_compute(weft_context *context, const weft_view *view, weft_sums **sums_out) {
    weft_context_clear(context);
    weft_sums *sums;
    weft_status status = weft_sums_zero(context, view, &sums);
    if (status != WEFT_OK) {
        return status;
    }
    status = run_pass(context, sums, 0, grain_total(sums), view_bytes(view), false);
    if (status != WEFT_OK) {
        weft_sums_destroy(sums);
        return status;
    }
    *sums_out = sums;
    return WEFT_OK;
}

weft_status weft_sums_audit(weft_context *context, weft_sums *sums, uint64_t bytes) {
    weft_context_clear(context);
    size_t total = grain_total(sums);
    size_t count = 0;
    uint64_t covered = 0;
    while (count < total && covered < bytes) {
        size_t number = (sums->cursor + count) % total;
        uint64_t begin;
        uint64_t end;
        grain_extent(sums, tensor_of_grain(sums, number), number, &begin, &end);
        covered += end - begin;
        count++;
    }
    weft_status status = run_pass(context, sums, sums->cursor, count, covered, true);
    if (status == WEFT_OK && total > 0) {
        sums->cursor = (sums->cursor + count) % total;
    }
    return status; /* after a mismatch the cursor stays, so that the next audit meets it again */
}

/* ---- hashing ---- */

static size_t put_u64(uint8_t *output, uint64_t value) {
    for (unsigned i = 0; i < 8; i++) {
        output[i] = (uint8_t)(value >> (8 * i));
    }
    return 8;
}

/* dtype, rank, dimensions and sum of a tensor, as both digests hash them. */
static void hash_tensor(XXH3_state_t *state, const weft_tensor *tensor, weft_sum sum) {
    uint8_t bytes[2 + 8 * WEFT_RANK_MAX + 16];
    size_t size = 0;
    bytes[size++] = (uint8_t)tensor->dtype;
    bytes[size++] = (uint8_t)tensor->rank;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        size += put_u64(bytes + size, tensor->shape[i]);
    }
    size += put_u64(bytes + size, sum.lanes[0]);
    size += put_u64(bytes + size, sum.lanes[1]);
    XXH3_128bits_update(state, bytes, size);
}

static void hash_name(XXH3_state_t *state, const char *name) {
    size_t length = strlen(name);
    uint8_t prefix[8];
    put_u64(prefix, length);
    XXH3_128bits_update(state, prefix, 4);
    XXH3_128bits_update(state, name, length);
}

static weft_digest hash_finish(const XXH3_state_t *state) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    weft_digest digest;
    memcpy(digest.bytes, canonical.digest, sizeof digest.bytes);
    return digest;
}

static void begin_state(XXH3_state_t *state, uint64_t tensors) {
    static const char tag[] = "weft-state-1";
    uint8_t count[8];
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, tag, sizeof tag - 1);
    put_u64(count, tensors);
    XXH3_128bits_update(state, count, sizeof count);
}

weft_digest weft_state_nothing(void) {
    XXH3_state_t state;
    begin_state(&state, 0);
    return hash_finish(&state);
}

weft_digest weft_state_digest(const weft_view *view, weft_sum_lookup lookup, void *opaque) {
    XXH3_state_t state;
    begin_state(&state, weft_view_count(view));
    for (size_t i = 0; i < weft_view_count(view); i++) {
        hash_name(&state, weft_view_at(view, i)->name);
        hash_tensor(&state, weft_view_at(view, i), lookup(opaque, i));
    }
    return hash_finish(&state);
}

/* `opaque` is a const weft_sums, passed by address because a lookup takes a plain pointer. */
static weft_sum lookup_total(void *opaque, size_t tensor) {
    return weft_sums_total(*(const weft_sums **)opaque, tensor);
}

weft_digest weft_sums_digest(const weft_sums *sums) {
    return weft_state_digest(sums->view, lookup_total, &sums);
}

weft_digest weft_sums_tensor(const weft_sums *sums, size_t index) {
    static const char tag[] = "weft-tensor-1";
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, tag, sizeof tag - 1);
    hash_tensor(&state, weft_view_at(sums->view, index), weft_sums_total(sums, index));
    return hash_finish(&state);
}

void weft_digest_format(const weft_digest *digest, char text[WEFT_DIGEST_TEXT]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof digest->bytes; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    text[WEFT_DIGEST_TEXT - 1] = '\0';
}

bool weft_digest_equal(const weft_digest *a, const weft_digest *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

weft_status weft_table_digest(weft_context *context, const weft_table *table, weft_digest *digest_out) {
    weft_view *view = NULL;
    weft_sums *sums = NULL;
    weft_status status = weft_view_create(context, table, &view);
    if (status == WEFT_OK) {
        status = weft_sums_compute(context, view, &sums);
    }
    if (status == WEFT_OK) {
        *digest_out = weft_sums_digest(sums);
    }
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    return status;
}

weft_status weft_table_digest_text(weft_context *context, const weft_table *table,
                                   char text[WEFT_DIGEST_TEXT]) {
    weft_digest digest;
    weft_status status = weft_table_digest(context, table, &digest);
    if (status == WEFT_OK) {
        weft_digest_format(&digest, text);
    }
    return status;
}
