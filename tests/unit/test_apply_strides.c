/* SPDX-License-Identifier: Apache-2.0
 *
 * Live tensors with strides, against the slow way: whatever is done to a strided tensor is done to a copy
 * of it that lies end to end, too, and copied back element by element. Random shapes, orders of dimensions,
 * paddings and dtypes; layouts and ties; and what is refused.
 */
#include "../../lib/tensor/strides.h"
#include "../../lib/tensor/view.h"
#include "described.h"
#include "patches.h"
#include "scratch.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 6, RANK = 4, BUCKET = 32 * 1024 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};
static const weft_dtype dtypes[] = {
    WEFT_DTYPE_BF16, WEFT_DTYPE_F16, WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_F64, WEFT_DTYPE_C64,
};
static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};

/* ---- the slow way ---- */

typedef struct strided {
    weft_tensor tensor;
    int64_t strides[RANK];
    uint8_t *buffer; /* with padding everywhere */
    size_t bytes;
    uint64_t units;
    unsigned width; /* of the storage */
} strided;

static uint64_t slow_offset(const weft_tensor *tensor, const int64_t *strides, uint64_t unit) {
    uint64_t offset = 0;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        offset += unit % tensor->shape[i] * (uint64_t)strides[i];
        unit /= tensor->shape[i];
    }
    return offset;
}

static uint8_t *slow_place(const strided *s, uint64_t unit) {
    return (uint8_t *)s->tensor.data + slow_offset(&s->tensor, s->strides, unit) * s->width;
}

/* Puts contiguous values into the strided tensor. */
static void slow_put(const strided *s, const uint8_t *values) {
    for (uint64_t unit = 0; unit < s->units; unit++) {
        memcpy(slow_place(s, unit), values + unit * s->width, s->width);
    }
}

/* True if the tensor holds the values, and what lies around it is untouched. */
static bool slow_holds(const strided *s, const uint8_t *values) {
    uint8_t *expected = malloc(s->bytes);
    assert_non_null(expected);
    memset(expected, 0xa5, s->bytes);
    for (uint64_t unit = 0; unit < s->units; unit++) {
        memcpy(expected + (slow_place(s, unit) - s->buffer), values + unit * s->width, s->width);
    }
    bool same = memcmp(expected, s->buffer, s->bytes) == 0;
    free(expected);
    return same;
}

/* Gives the described tensor memory: its dimensions in any order, with padding behind any of them. */
static void strided_open(strided *s, dice *dice, weft_tensor tensor) {
    uint32_t order[RANK];
    s->tensor = tensor;
    s->width = weft_dtype_width(tensor.storage == 0 ? tensor.dtype : tensor.storage);
    s->units = 1;
    for (uint32_t i = 0; i < tensor.rank; i++) {
        order[i] = i;
        s->units *= tensor.shape[i];
    }
    for (uint32_t i = tensor.rank; i > 1 && dice_below(dice, 3) != 0; i--) {
        uint32_t other = (uint32_t)dice_below(dice, i);
        uint32_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
    uint64_t step = 1 + (dice_below(dice, 4) == 0 ? dice_below(dice, 3) : 0);
    for (uint32_t i = tensor.rank; i-- > 0;) {
        s->strides[order[i]] = (int64_t)step;
        step = step * tensor.shape[order[i]] + (dice_below(dice, 2) == 0 ? dice_below(dice, 20) : 0);
    }
    uint64_t start = dice_below(dice, 5);
    s->bytes = (size_t)(start + step + 3) * s->width;
    s->buffer = malloc(s->bytes);
    assert_non_null(s->buffer);
    memset(s->buffer, 0xa5, s->bytes);
    s->tensor.data = s->buffer + start * s->width;
    s->tensor.strides = s->strides;
    s->tensor.writable = true;
}

/* ---- random models ---- */

/* A checkpoint in two states, end to end, and the same with strides. */
typedef struct world {
    weft_context *context;
    model plain, plain_next;
    uint8_t *olds[TENSORS], *news[TENSORS];
    strided live[TENSORS], next[TENSORS];
    weft_table *table, *next_table;
    weft_view *view, *next_view;
    weft_sums *sums;
    bytes file;
    weft_patch *patch;
} world;

static weft_tensor random_tensor(dice *dice, size_t index) {
    static const uint64_t most[RANK + 1] = {0, 3000, 70, 18, 9};
    weft_tensor tensor = {
        .size = sizeof tensor, .name = names[index], .dtype = dtypes[dice_below(dice, 6)]};
    tensor.rank = 1 + (uint32_t)dice_below(dice, RANK);
    for (uint32_t i = 0; i < tensor.rank; i++) {
        tensor.shape[i] = 1 + dice_below(dice, most[tensor.rank]);
    }
    if (dice_below(dice, 3) == 0) {
        tensor.shape[0] *= 8; /* some words whole, some buckets many */
        tensor.shape[tensor.rank - 1] *= 8;
    }
    return tensor;
}

static void *plain_add(model *model, const weft_tensor *like, const uint8_t *values, size_t size) {
    uint64_t units = 1;
    for (uint32_t i = 0; i < like->rank; i++) {
        units *= like->shape[i];
    }
    assert_int_equal(size, units * weft_dtype_width(like->dtype));
    weft_tensor tensor = *like;
    tensor.data = malloc(size);
    assert_non_null(tensor.data);
    tensor.writable = true;
    memcpy(tensor.data, values, size);
    model->blocks[model->block_count++] = tensor.data;
    assert_int_equal(weft_table_add(model->table, &tensor), WEFT_OK);
    return tensor.data;
}

static void world_add(world *world, dice *dice, size_t i) {
    static const unsigned densities[] = {300, 20000, 700000};
    weft_tensor tensor = random_tensor(dice, i);
    strided_open(&world->live[i], dice, tensor);
    strided_open(&world->next[i], dice, tensor);
    size_t units = (size_t)world->live[i].units;
    unsigned width = weft_dtype_width(tensor.dtype);
    uint8_t *values = malloc(units * width);
    assert_non_null(values);
    weights_fill(dice, dice_below(dice, 2) == 0 ? WEIGHTS_TRAINED : WEIGHTS_RANDOM, tensor.dtype, values,
                 units);
    world->olds[i] = plain_add(&world->plain, &tensor, values, units * width);
    slow_put(&world->live[i], values);
    weights_change(dice, CHANGE_MIXED, width, values, units, densities[dice_below(dice, 3)]);
    weights_change_one(dice, CHANGE_ULP, width, values, units - 1);
    world->news[i] = plain_add(&world->plain_next, &tensor, values, units * width);
    slow_put(&world->next[i], values);
    free(values);
    assert_int_equal(weft_table_add(world->table, &world->live[i].tensor), WEFT_OK);
    assert_int_equal(weft_table_add(world->next_table, &world->next[i].tensor), WEFT_OK);
}

static void world_open(world *world, weft_context *context, dice *dice, weft_profile profile) {
    memset(world, 0, sizeof *world);
    world->context = context;
    model_open(&world->plain, context);
    model_open(&world->plain_next, context);
    assert_int_equal(weft_table_create(context, &world->table), WEFT_OK);
    assert_int_equal(weft_table_create(context, &world->next_table), WEFT_OK);
    for (size_t i = 0; i < TENSORS; i++) {
        world_add(world, dice, i);
    }
    assert_int_equal(weft_view_create(context, world->table, &world->view), WEFT_OK);
    assert_int_equal(weft_view_create(context, world->next_table, &world->next_view), WEFT_OK);
    weft_sink sink = bytes_sink(&world->file);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    assert_int_equal(weft_diff(context, model_show(&world->plain), model_show(&world->plain_next), &options,
                               &sink, NULL),
                     WEFT_OK);
    world->patch = patches_open(context, &world->file);
    world->sums = patches_sums(context, world->view);
}

static void world_close(world *world) {
    weft_sums_destroy(world->sums);
    weft_patch_close(world->patch);
    weft_view_destroy(world->view);
    weft_view_destroy(world->next_view);
    weft_table_destroy(world->table);
    weft_table_destroy(world->next_table);
    model_close(&world->plain);
    model_close(&world->plain_next);
    bytes_clear(&world->file);
    for (size_t i = 0; i < TENSORS; i++) {
        free(world->live[i].buffer);
        free(world->next[i].buffer);
    }
}

static bool world_holds(const world *world, uint8_t *const *values) {
    for (size_t i = 0; i < TENSORS; i++) {
        if (!slow_holds(&world->live[i], values[i])) {
            return false;
        }
    }
    return true;
}

static void walk(weft_context *context, const weft_view *view, weft_sums *sums, const weft_patch *patch,
                 const world *world) {
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, patch, view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_true(world_holds(world, world->olds));
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(world_holds(world, world->news));
    assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(world_holds(world, world->olds));
    assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
    weft_apply_destroy(apply);
    apply = NULL;
    assert_int_equal(weft_apply_create(context, patch, view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_run(apply), WEFT_OK);
    assert_true(world_holds(world, world->news));
    assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
    weft_apply_destroy(apply);
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        if (!test_stride_takes()) {
            continue;
        }
        weft_context *context = patches_context(seed % 2 == 0 ? 1 : 4);
        dice dice = {seed};
        world world;
        world_open(&world, context, &dice, profiles[seed / 2 % 2]);
        weft_sums *plain = patches_sums(context, world.plain.view);
        weft_digest expected = weft_sums_digest(plain);
        weft_digest digest = weft_sums_digest(world.sums);
        assert_true(weft_digest_equal(&digest, &expected));
        bytes made = {0};
        weft_sink sink = bytes_sink(&made);
        weft_diff_options options = {
            .size = sizeof options, .profile = profiles[seed / 2 % 2], .bucket_bytes = BUCKET};
        assert_int_equal(weft_diff(context, world.view, world.next_view, &options, &sink, NULL), WEFT_OK);
        assert_int_equal(made.size, world.file.size);
        assert_memory_equal(made.data, world.file.data, made.size);
        walk(context, world.view, world.sums, world.patch, &world);
        bytes_clear(&made);
        weft_sums_destroy(plain);
        world_close(&world);
        weft_context_destroy(context);
    }
}

/* One segment for a tensor, whatever its strides: staging holds no more than of one that lies end to end.
 */
static void test_staging(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    uint64_t staged[2];
    static const int64_t transposed[2] = {1, 600};
    for (int way = 0; way < 2; way++) {
        static const tensor_shape shape = {"a", WEFT_DTYPE_BF16, 600, 400};
        pair pair;
        pair_open(&pair, context, &shape, 1, WEIGHTS_TRAINED, 3);
        pair_change(&pair, CHANGE_ULP, 5000, 4);
        weft_diff_options options = {.size = sizeof options, .profile = WEFT_PROFILE_FAST};
        pair_diff(&pair, &options);
        strided s = {.tensor = *weft_table_at(pair.live.table, 0), .units = 240000, .width = 2};
        weft_table *table = NULL;
        weft_view *view = NULL;
        weft_apply *apply = NULL;
        if (way == 1) {
            memcpy(s.strides, transposed, sizeof transposed);
            s.tensor.strides = s.strides;
            slow_put(&s, pair.olds[0]);
        }
        assert_int_equal(weft_table_create(context, &table), WEFT_OK);
        assert_int_equal(weft_table_add(table, &s.tensor), WEFT_OK);
        assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
        weft_sums *sums = patches_sums(context, view);
        assert_int_equal(weft_apply_create(context, pair.patch, view, sums, &apply), WEFT_OK);
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        staged[way] = apply_stats(apply).stage_bytes;
        weft_apply_destroy(apply);
        weft_sums_destroy(sums);
        weft_view_destroy(view);
        weft_table_destroy(table);
        pair_close(&pair);
    }
    assert_int_equal(staged[0], staged[1]);
    weft_context_destroy(context);
}

/* F32 masters with strides, as the next state of a diff. */
static void test_masters(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (uint64_t seed = 1; seed <= 10; seed++) {
        dice dice = {seed};
        strided masters;
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = "w",
                              .dtype = WEFT_DTYPE_BF16,
                              .storage = WEFT_DTYPE_F32,
                              .rank = 3,
                              .shape = {1 + dice_below(&dice, 9), 1 + dice_below(&dice, 40), 24}};
        strided_open(&masters, &dice, tensor);
        float *values = malloc((size_t)masters.units * sizeof *values);
        assert_non_null(values);
        for (uint64_t i = 0; i < masters.units; i++) {
            values[i] = (float)((double)dice_below(&dice, 1000000) * 1e-6 - 0.5);
        }
        slow_put(&masters, (const uint8_t *)values);
        weft_view *views[2] = {NULL, NULL};
        weft_table *tables[2] = {NULL, NULL};
        weft_digest digests[2];
        for (int i = 0; i < 2; i++) {
            weft_tensor here = masters.tensor;
            here.data = i == 0 ? here.data : values;
            here.strides = i == 0 ? here.strides : NULL;
            assert_int_equal(weft_table_create(context, &tables[i]), WEFT_OK);
            assert_int_equal(weft_table_add(tables[i], &here), WEFT_OK);
            assert_int_equal(weft_view_create(context, tables[i], &views[i]), WEFT_OK);
            weft_sums *sums = patches_sums(context, views[i]);
            digests[i] = weft_sums_digest(sums);
            weft_sums_destroy(sums);
        }
        assert_true(weft_digest_equal(&digests[0], &digests[1]));
        weft_diff_stats stats = {.size = sizeof stats};
        bytes made = {0};
        weft_sink sink = bytes_sink(&made);
        assert_int_equal(weft_diff(context, views[1], views[0],
                                   &(weft_diff_options){.size = sizeof(weft_diff_options)}, &sink, &stats),
                         WEFT_OK);
        assert_int_equal(stats.changed, 0);
        bytes_clear(&made);
        for (int i = 0; i < 2; i++) {
            weft_view_destroy(views[i]);
            weft_table_destroy(tables[i]);
        }
        free(values);
        free(masters.buffer);
    }
    weft_context_destroy(context);
}

/* A table with strides is written like one without. */
static void test_write(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    dice dice = {77};
    world world;
    scratch scratch;
    scratch_open(&scratch);
    world_open(&world, context, &dice, WEFT_PROFILE_FAST);
    assert_int_equal(weft_table_write(context, world.table, scratch_path(&scratch, "strided"), NULL),
                     WEFT_OK);
    assert_int_equal(weft_table_write(context, world.plain.table, scratch_path(&scratch, "plain"), NULL),
                     WEFT_OK);
    size_t sizes[2];
    void *strided = scratch_read(&scratch, "strided", &sizes[0]);
    void *plain = scratch_read(&scratch, "plain", &sizes[1]);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(strided, plain, sizes[0]);
    free(strided);
    free(plain);
    world_close(&world);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- layouts ---- */

/* q, k and v joined into one live tensor, which itself has strides: by rows or by columns. */
static void try_layout(uint64_t seed, uint32_t dim, bool stack) {
    dice dice = {seed};
    weft_context *context = patches_context(seed % 2 == 0 ? 1 : 3);
    uint64_t other = 8 * (1 + dice_below(&dice, 12));
    tensor_shape shapes[3];
    weft_slice slices[3];
    uint64_t total = 0;
    for (size_t i = 0; i < 3; i++) {
        uint64_t length = stack ? 16 : 1 + dice_below(&dice, 60);
        shapes[i] =
            (tensor_shape){names[i], WEFT_DTYPE_BF16, dim == 0 ? length : other, dim == 0 ? other : length};
        slices[i] = (weft_slice){names[i], -1, 0, 0};
        total += length;
    }
    pair pair;
    pair_open(&pair, context, shapes, 3, WEIGHTS_TRAINED, seed);
    pair_change(&pair, CHANGE_MIXED, 30000, seed + 1);
    weft_diff_options options = {
        .size = sizeof options, .profile = profiles[seed / 2 % 2], .bucket_bytes = BUCKET};
    pair_diff(&pair, &options);
    weft_tensor tensor = {.size = sizeof tensor, .name = "qkv", .dtype = WEFT_DTYPE_BF16, .rank = 2};
    tensor.shape[0] = dim == 0 ? total : other;
    tensor.shape[1] = dim == 0 ? other : total;
    if (stack) {
        tensor.rank = 3;
        memcpy(tensor.shape, (uint64_t[]){3, shapes[0].rows, shapes[0].columns}, 3 * sizeof(uint64_t));
    }
    strided live;
    strided_open(&live, &dice, tensor);
    uint8_t *states[2]; /* what the live tensor holds before and after */
    for (int s = 0; s < 2; s++) {
        uint8_t *output = malloc((size_t)live.units * 2);
        assert_non_null(output);
        uint64_t before = 0;
        for (size_t i = 0; i < 3; i++) {
            const uint8_t *source = s == 0 ? pair.olds[i] : pair.news[i];
            uint64_t columns = shapes[i].columns;
            for (uint64_t row = 0; row < shapes[i].rows; row++) {
                uint64_t at = dim == 0 || stack ? (before + row) * columns : row * total + before;
                memcpy(output + 2 * at, source + 2 * row * columns, (size_t)(2 * columns));
            }
            before += dim == 0 || stack ? shapes[i].rows : columns;
        }
        states[s] = output;
    }
    slow_put(&live, states[0]);
    weft_table *table = NULL;
    weft_layout *layout = NULL;
    weft_view *view = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    assert_int_equal(weft_table_add(table, &live.tensor), WEFT_OK);
    assert_int_equal(weft_layout_create(context, &layout), WEFT_OK);
    assert_int_equal(stack ? weft_layout_stack(layout, "qkv", slices, 3)
                           : weft_layout_concat(layout, "qkv", dim, slices, 3),
                     WEFT_OK);
    assert_int_equal(weft_view_create_layout(context, table, layout, pair.live.table, &view), WEFT_OK);
    weft_sums *sums = patches_sums(context, view);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, pair.patch, view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_true(slow_holds(&live, states[0]));
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(slow_holds(&live, states[1]));
    assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(slow_holds(&live, states[0]));
    bytes made = {0};
    weft_sink sink = bytes_sink(&made);
    assert_int_equal(weft_diff(context, view, pair.next.view, &options, &sink, NULL), WEFT_OK);
    assert_int_equal(made.size, pair.file.size);
    assert_memory_equal(made.data, pair.file.data, made.size);
    bytes_clear(&made);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_layout_destroy(layout);
    weft_table_destroy(table);
    free(states[0]);
    free(states[1]);
    free(live.buffer);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_layouts(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 16; seed++) {
        try_layout(seed, 0, false);
        try_layout(seed, 1, false);
        try_layout(seed, 0, true);
    }
}

/* ---- shared memory ---- */

static weft_status try_pair(weft_context *context, const weft_tensor *a, const weft_tensor *b,
                            size_t *ties_out) {
    weft_table *table = NULL;
    weft_view *view = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    assert_int_equal(weft_table_add(table, a), WEFT_OK);
    assert_int_equal(weft_table_add(table, b), WEFT_OK);
    weft_status status = weft_view_create(context, table, &view);
    if (status == WEFT_OK && ties_out != NULL) {
        *ties_out = weft_view_tied(view) ? 1 : 0;
    }
    weft_view_destroy(view);
    weft_table_destroy(table);
    return status;
}

static void test_interleaved(void **state) {
    (void)state;
    static _Alignas(16) uint16_t buffer[64 * 96];
    const int64_t rows[2] = {96, 1};
    const int64_t columns[2] = {1, 96};
    weft_context *context = patches_context(1);
    size_t ties;
    weft_tensor q = {.size = sizeof q,
                     .name = "q",
                     .dtype = WEFT_DTYPE_BF16,
                     .rank = 2,
                     .shape = {64, 32},
                     .data = buffer,
                     .strides = rows};
    weft_tensor k = q;
    k.name = "k";
    k.data = buffer + 32;
    assert_int_equal(try_pair(context, &q, &k, &ties), WEFT_OK);
    assert_int_equal(ties, 0);
    k.data = buffer + 31;
    assert_int_equal(try_pair(context, &q, &k, NULL), WEFT_INVALID_ARGUMENT);
    k.data = buffer;
    assert_int_equal(try_pair(context, &q, &k, &ties), WEFT_OK);
    assert_int_equal(ties, 1);
    k.strides = columns; /* the same memory, transposed */
    k.shape[0] = 32;
    k.shape[1] = 64;
    assert_int_equal(try_pair(context, &q, &k, NULL), WEFT_INVALID_ARGUMENT);
    k.data = buffer + 64; /* the last columns, transposed */
    assert_int_equal(try_pair(context, &q, &k, NULL), WEFT_OK);
    weft_tensor all = {.size = sizeof all,
                       .name = "all",
                       .dtype = WEFT_DTYPE_BF16,
                       .rank = 1,
                       .shape = {64 * 96},
                       .data = buffer};
    assert_int_equal(try_pair(context, &q, &all, NULL), WEFT_INVALID_ARGUMENT);
    weft_tensor one = {.size = sizeof one, .name = "one", .dtype = WEFT_DTYPE_U8, .rank = 1, .shape = {1}};
    one.data = buffer + 31;
    assert_int_equal(try_pair(context, &q, &one, NULL), WEFT_INVALID_ARGUMENT);
    one.data = buffer + 32;
    assert_int_equal(try_pair(context, &q, &one, NULL), WEFT_OK);
    weft_context_destroy(context);
}

/* Random boxes of one buffer, in any order of dimensions: told apart exactly. */
static void test_boxes_apart(void **state) {
    (void)state;
    static uint8_t buffer[7 * 6 * 5 * 2];
    static const uint64_t whole[3] = {7, 6, 5};
    size_t apart = 0;
    dice dice = {99};
    for (int n = 0; n < 20000; n++) {
        weft_tensor tensors[2];
        int64_t strides[2][3];
        uint8_t marks[sizeof buffer] = {0};
        bool meet = false;
        for (int t = 0; t < 2; t++) {
            uint64_t at = 0;
            int64_t step = 1;
            tensors[t] = (weft_tensor){.size = sizeof(weft_tensor),
                                       .name = "t",
                                       .dtype = WEFT_DTYPE_U16,
                                       .storage = WEFT_DTYPE_U16,
                                       .rank = 3,
                                       .strides = strides[t]};
            uint32_t turn = (uint32_t)dice_below(&dice, 3);
            for (uint32_t i = 3; i-- > 0;) {
                uint64_t start = dice_below(&dice, whole[i]);
                uint64_t skip = 1 + (i == 0 ? dice_below(&dice, 2) * (uint64_t)(n % 2) : 0);
                uint64_t room = (whole[i] - start + skip - 1) / skip;
                at += start * (uint64_t)step;
                tensors[t].shape[(i + turn) % 3] = 1 + dice_below(&dice, room);
                strides[t][(i + turn) % 3] = step * (int64_t)skip;
                step *= (int64_t)whole[i];
            }
            tensors[t].data = buffer + 2 * at;
            uint64_t units = tensors[t].shape[0] * tensors[t].shape[1] * tensors[t].shape[2];
            for (uint64_t unit = 0; unit < units; unit++) {
                size_t place = (size_t)(2 * (at + slow_offset(&tensors[t], strides[t], unit)));
                meet = meet || (t == 1 && marks[place] != 0);
                marks[place] = 1;
            }
        }
        bool told = weft_tensor_apart(&tensors[0], &tensors[1]);
        assert_int_equal(told, weft_tensor_apart(&tensors[1], &tensors[0]));
        assert_false(told && meet);
        if (n % 2 == 0) {
            assert_int_equal(told, !meet);
        }
        apart += told;
    }
    assert_true(apart > 1000 && apart < 19000);
}

/* ---- what is refused ---- */

static void test_refused(void **state) {
    (void)state;
    static uint16_t memory[64];
    static const weft_access access = {0};
    weft_context *context = patches_context(1);
    weft_table *table = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    const struct {
        int64_t strides[2];
        const char *text;
    } cases[] = {
        {{0, 1}, "overlap"}, {{1, 1}, "overlap"},   {{3, 1}, "overlap"},
        {{1, 3}, "overlap"}, {{-4, 1}, "negative"}, {{INT64_MAX, 1}, "overflow"},
    };
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "a",
                          .dtype = WEFT_DTYPE_U16,
                          .rank = 2,
                          .shape = {4, 4},
                          .data = memory};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor.strides = cases[i].strides;
        assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), cases[i].text));
    }
    const int64_t padded[2] = {8, 1};
    tensor.strides = padded;
    tensor.access = &access;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    tensor.access = NULL;
    tensor.dtype = WEFT_DTYPE_F4;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    tensor.dtype = WEFT_DTYPE_U16;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_table_at(table, 0)->strides[0], 8);
    assert_ptr_not_equal(weft_table_at(table, 0)->strides, padded);
    assert_int_equal(weft_table_tie(table, "b", "a"), WEFT_OK);
    const int64_t joined[2] = {4, 1};
    tensor.name = "c";
    tensor.strides = joined;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_null(weft_table_at(table, 2)->strides);
    const int64_t free_one[2] = {-7, 1}; /* of a dimension of one index, no stride counts */
    tensor.name = "d";
    tensor.shape[0] = 1;
    tensor.strides = free_one;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    weft_table_destroy(table);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),      cmocka_unit_test(test_staging),
        cmocka_unit_test(test_masters),     cmocka_unit_test(test_write),
        cmocka_unit_test(test_layouts),     cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_boxes_apart), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
