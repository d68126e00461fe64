/* SPDX-License-Identifier: Apache-2.0
 *
 * Diffs of whole models: the same bytes whatever the threads, the processor, and the way in which tensors
 * are held; the inverse; plans; tensors that come and go; and every allocation failing in turn.
 */
#include "../../lib/base/cpu.h"
#include "../../lib/patch/format/patch.h"
#include "../support/described.h"
#include "faults.h"
#include "models.h"
#include "stride.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

enum { SMALL_BUCKET = 32 * 1024 };

static weft_context *make_context(unsigned threads) {
    weft_context_options options = {.size = sizeof options, .threads = threads};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static weft_status diff_views(weft_context *context, const weft_view *base, const weft_view *next,
                              const weft_diff_options *options, bytes *patch, weft_diff_stats *stats) {
    patch->size = 0;
    weft_sink sink = bytes_sink(patch);
    return weft_diff(context, base, next, options, &sink, stats);
}

static void expect_diff(weft_context *context, const model *base, const model *next,
                        const weft_diff_options *options, bytes *patch, weft_diff_stats *stats) {
    assert_int_equal(diff_views(context, base->view, next->view, options, patch, stats), WEFT_OK);
    assert_int_equal(stats->patch_bytes, patch->size);
}

static void expect_same_bytes(const bytes *a, const bytes *b) {
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->data, b->data, a->size);
}

/* ---- models ---- */

typedef struct shape {
    const char *name;
    weft_dtype dtype;
    uint64_t rows, columns;
} shape;

/* Names in an order that is not theirs; sizes that fill several buckets, a part of one, or a few bytes. */
static const shape shapes[] = {
    {"model.embed", WEFT_DTYPE_BF16, 1000, 96},
    {"lm_head", WEFT_DTYPE_BF16, 1000, 96},
    {"layer.0.up", WEFT_DTYPE_BF16, 96, 384},
    {"layer.0.down", WEFT_DTYPE_BF16, 384, 96},
    {"layer.0.norm", WEFT_DTYPE_F32, 96, 0},
    {"layer.1.up", WEFT_DTYPE_F16, 96, 384},
    {"layer.1.norm", WEFT_DTYPE_F32, 97, 0},
    {"layer.1.scale", WEFT_DTYPE_F8_E4M3, 501, 99},
    {"step", WEFT_DTYPE_I64, 0, 0},
    {"layer.2.wide", WEFT_DTYPE_F64, 33, 777},
    {"layer.2.bias", WEFT_DTYPE_BF16, 7, 0},
    {"layer.2.flag", WEFT_DTYPE_BOOL, 1, 0},
    {"layer.2.packed", WEFT_DTYPE_F4, 32, 1024},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static size_t shape_units(const shape *shape) {
    uint64_t elements = (shape->rows == 0 ? 1 : shape->rows) * (shape->columns == 0 ? 1 : shape->columns);
    return (size_t)(elements * weft_dtype_bits(shape->dtype) / 8 / weft_dtype_width(shape->dtype));
}

/* Two states of the model of `shapes`; returns how many units differ. */
static uint64_t fill_pair(model *base, model *next, uint64_t seed, unsigned per_million) {
    dice dice = {seed};
    uint64_t changed = 0;
    for (size_t i = 0; i < SHAPES; i++) {
        const shape *s = &shapes[i];
        size_t units = shape_units(s);
        unsigned width = weft_dtype_width(s->dtype);
        uint8_t *before = model_add(base, s->name, s->dtype, s->rows, s->columns);
        uint8_t *after = model_add(next, s->name, s->dtype, s->rows, s->columns);
        weights_fill(&dice, WEIGHTS_TRAINED, s->dtype, before, units);
        memcpy(after, before, units * width);
        weights_change(&dice, CHANGE_MIXED, width, after, units, i == 9 ? 600000 : per_million);
        for (size_t u = 0; u < units; u++) {
            changed += memcmp(before + u * width, after + u * width, width) != 0;
        }
    }
    model_show(base);
    model_show(next);
    return changed;
}

/* ---- taking a patch apart ---- */

/* The bytes of a span's run in a tensor of a model held in plain memory, as it is. */
static uint8_t *run_memory(const model *model, const char *name, const weft_span *span, uint64_t run,
                           unsigned width) {
    int64_t index = weft_table_find(model->table, name);
    assert_true(index >= 0);
    uint8_t *data = weft_table_at(model->table, (size_t)index)->data;
    return data + (span->start + run * span->stride) * width;
}

typedef enum copy_direction { COPY_OUT, COPY_IN } copy_direction;

static void copy_bucket(const weft_patch *patch, const weft_bucket *bucket, const model *model,
                        uint8_t *linear, copy_direction direction) {
    for (size_t i = 0; i < bucket->span_count; i++) {
        const weft_span *span = &bucket->spans[i].span;
        const char *name = weft_patch_tensor(patch, bucket->spans[i].tensor, NULL)->name;
        for (uint64_t j = 0; j < span->count; j++) {
            uint8_t *memory = run_memory(model, name, span, j, bucket->width);
            size_t bytes = (size_t)span->run * bucket->width;
            memcpy(direction == COPY_OUT ? linear : memory, direction == COPY_OUT ? memory : linear, bytes);
            linear += bytes;
        }
    }
}

/* Decodes a frame over the base and puts the new units into `result`. */
static void apply_frame(const weft_patch *patch, const weft_frame *frame, weft_bucket_coder *coder,
                        const model *base, const model *result) {
    weft_fate fate;
    weft_patch_tensor(patch, frame->bucket.spans[0].tensor, &fate);
    unsigned width = frame->bucket.width;
    size_t bytes = (size_t)frame->bucket.units * width;
    uint8_t *linear = malloc(bytes);
    uint8_t *output = malloc(bytes);
    assert_non_null(linear);
    assert_non_null(output);
    if (fate == WEFT_FATE_KEPT) {
        copy_bucket(patch, &frame->bucket, base, linear, COPY_OUT);
    }
    if (weft_frame_dense(frame)) {
        assert_int_equal(weft_frame_decode_dense(coder, frame, linear, output), WEFT_OK);
    } else {
        weft_sum delta;
        memcpy(output, linear, bytes);
        assert_int_equal(weft_window_set_memory(&coder->from, &frame->bucket, linear), WEFT_OK);
        assert_int_equal(weft_frame_decode(coder, frame, &coder->changes, NULL, &delta), WEFT_OK);
        assert_true(weft_sum_equal(delta, frame->delta));
        for (size_t i = 0; i < coder->changes.count; i++) {
            weft_unit_store(output, coder->changes.positions[i], width,
                            weft_unit_load(coder->changes.news, i, width));
        }
    }
    copy_bucket(patch, &frame->bucket, result, output, COPY_IN);
    free(linear);
    free(output);
}

/* `result` starts as a copy of what `base` has of the same kind; every frame is applied; it must then be
 * `next`, byte for byte. */
static void expect_rebuild(weft_context *context, const bytes *data, const model *base, const model *next) {
    weft_source source = bytes_source(data);
    weft_patch *patch;
    assert_int_equal(weft_patch_open(context, &source, &patch), WEFT_OK);
    model result;
    model_open(&result, context);
    for (size_t i = 0; i < weft_table_count(next->table); i++) {
        const weft_tensor *t = weft_table_at(next->table, i);
        uint8_t *memory = model_add(&result, t->name, t->dtype, t->rank > 0 ? t->shape[0] : 0,
                                    t->rank > 1 ? t->shape[1] : 0);
        int64_t old = weft_table_find(base->table, t->name);
        const weft_tensor *before = old >= 0 ? weft_table_at(base->table, (size_t)old) : NULL;
        if (before != NULL && before->dtype == t->dtype && before->bytes == t->bytes) {
            memcpy(memory, before->data, (size_t)t->bytes);
        }
    }
    weft_bucket_coder *coder = malloc(sizeof *coder);
    assert_non_null(coder);
    weft_bucket_coder_open(coder, context);
    for (size_t i = 0; i < patch_info(patch).buckets; i++) {
        weft_frame frame;
        weft_writer buffer;
        weft_writer_open(&buffer, context);
        assert_int_equal(weft_patch_frame(context, patch, i, &buffer, &frame), WEFT_OK);
        apply_frame(patch, &frame, coder, base, &result);
        weft_bucket_close(&frame.bucket, context);
        weft_writer_close(&buffer);
    }
    for (size_t i = 0; i < weft_table_count(next->table); i++) {
        const weft_tensor *wanted = weft_table_at(next->table, i);
        assert_memory_equal(weft_table_at(result.table, i)->data, wanted->data, (size_t)wanted->bytes);
    }
    weft_bucket_coder_close(coder);
    free(coder);
    model_close(&result);
    weft_patch_close(patch);
}

/* ---- the whole way ---- */

static weft_digest digest_of(weft_context *context, const weft_view *view) {
    weft_sums *sums;
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest digest = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    return digest;
}

static void test_round_trip(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    const unsigned chances[] = {0, 100, 10000, 200000, 1000000};
    for (size_t c = 0; c < 5; c++) {
        model base, next;
        model_open(&base, context);
        model_open(&next, context);
        uint64_t changed = fill_pair(&base, &next, c, chances[c]);
        weft_digest before = digest_of(context, base.view);
        weft_digest after = digest_of(context, next.view);
        for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
            bytes patch = {0};
            weft_diff_stats stats = {.size = sizeof stats};
            weft_diff_options options = {
                .size = sizeof options, .profile = (weft_profile)profile, .bucket_bytes = SMALL_BUCKET};
            expect_diff(context, &base, &next, &options, &patch, &stats);
            assert_int_equal(stats.changed, changed);
            assert_int_equal(stats.dense_bytes, weft_table_bytes(next.table));
            assert_int_equal(stats.inverse_bytes, 0);
            assert_true(weft_digest_equal(&stats.base, &before));
            assert_true(weft_digest_equal(&stats.result, &after));
            expect_rebuild(context, &patch, &base, &next);
            bytes_clear(&patch);
        }
        model_close(&base);
        model_close(&next);
    }
    weft_context_destroy(context);
}

/* Random bytes that became other random bytes: the patch is hardly larger than the model. */
static void test_never_much_larger(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    model base, next;
    dice dice = {1};
    model_open(&base, context);
    model_open(&next, context);
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_U64};
    for (unsigned i = 0; i < 4; i++) {
        char name[2] = {(char)('a' + i), 0};
        dice_fill(&dice, model_add(&base, name, dtypes[i], 1000, 100),
                  100000 * weft_dtype_width(dtypes[i]));
        dice_fill(&dice, model_add(&next, name, dtypes[i], 1000, 100),
                  100000 * weft_dtype_width(dtypes[i]));
    }
    model_show(&base);
    model_show(&next);
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        bytes patch = {0};
        weft_diff_stats stats = {.size = sizeof stats};
        weft_diff_options options = {.size = sizeof options, .profile = (weft_profile)profile};
        expect_diff(context, &base, &next, &options, &patch, &stats);
        assert_true(patch.size < stats.dense_bytes + stats.dense_bytes / 1000 + 1000);
        expect_rebuild(context, &patch, &base, &next);
        bytes_clear(&patch);
    }
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

static void test_identical_states(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_pair(&base, &next, 1, 1000);
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        bytes patch = {0};
        weft_diff_stats stats = {.size = sizeof stats};
        weft_diff_options options = {.size = sizeof options, .profile = (weft_profile)profile};
        expect_diff(context, &base, &base, &options, &patch, &stats);
        assert_int_equal(stats.changed, 0);
        assert_int_equal(stats.buckets, 0);
        assert_true(weft_digest_equal(&stats.base, &stats.result));
        weft_source source = bytes_source(&patch);
        weft_patch *opened;
        assert_int_equal(weft_patch_open(context, &source, &opened), WEFT_OK);
        assert_int_equal(patch_info(opened).buckets, 0);
        weft_patch_close(opened);
        bytes_clear(&patch);
    }
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

/* No tensors; empty ones; scalars; tied names. */
static void test_odd_models(void **state) {
    (void)state;
    weft_context *context = make_context(1);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    weft_table *nothing;
    weft_view *nothing_view;
    assert_int_equal(weft_table_create(context, &nothing), WEFT_OK);
    assert_int_equal(weft_view_create(context, nothing, &nothing_view), WEFT_OK);
    const weft_tensor empty = {
        .size = sizeof empty, .name = "empty", .dtype = WEFT_DTYPE_BF16, .rank = 2, .shape = {0, 5}};
    assert_int_equal(weft_table_add(base.table, &empty), WEFT_OK);
    assert_int_equal(weft_table_add(next.table, &empty), WEFT_OK);
    uint8_t *before = model_add(&base, "scalar", WEFT_DTYPE_BF16, 0, 0);
    uint8_t *after = model_add(&next, "scalar", WEFT_DTYPE_BF16, 0, 0);
    assert_int_equal(weft_table_tie(base.table, "tied", "scalar"), WEFT_OK);
    assert_int_equal(weft_table_tie(next.table, "tied", "scalar"), WEFT_OK);
    before[0] = 1;
    after[0] = 2;
    model_show(&base);
    model_show(&next);
    bytes patch = {0};
    weft_diff_stats stats = {.size = sizeof stats};
    expect_diff(context, &base, &next, NULL, &patch, &stats);
    assert_int_equal(stats.changed, 1);
    assert_int_equal(stats.total, 1);
    assert_int_equal(stats.buckets, 1);
    weft_source source = bytes_source(&patch);
    weft_patch *opened;
    assert_int_equal(weft_patch_open(context, &source, &opened), WEFT_OK);
    assert_int_equal(weft_patch_tensor_count(opened), 2);
    weft_patch_close(opened);
    assert_int_equal(diff_views(context, nothing_view, nothing_view, NULL, &patch, &stats), WEFT_OK);
    assert_int_equal(stats.buckets, 0);
    assert_int_equal(diff_views(context, nothing_view, next.view, NULL, &patch, &stats), WEFT_OK);
    assert_int_equal(stats.buckets, 1);
    assert_int_equal(diff_views(context, next.view, nothing_view, NULL, &patch, NULL), WEFT_OK);
    bytes_clear(&patch);
    weft_view_destroy(nothing_view);
    weft_table_destroy(nothing);
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

/* ---- same input, same bytes ---- */

/* The patches of one pair of models in both profiles, with their inverses, as one hash. */
static uint64_t hash_of_diffs(unsigned threads) {
    weft_context *context = make_context(threads);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_pair(&base, &next, 42, 8000);
    uint64_t hash = 0;
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        bytes patch = {0};
        bytes inverse = {0};
        weft_sink inverse_sink = bytes_sink(&inverse);
        weft_diff_stats stats = {.size = sizeof stats};
        const weft_cut cuts[] = {{"layer.0.up", 1, 2}, {"layer.0.down", 0, 4}};
        weft_diff_options options = {.size = sizeof options,
                                     .profile = (weft_profile)profile,
                                     .bucket_bytes = SMALL_BUCKET,
                                     .cuts = cuts,
                                     .cut_count = 2,
                                     .inverse = &inverse_sink};
        expect_diff(context, &base, &next, &options, &patch, &stats);
        hash = XXH3_64bits_withSeed(patch.data, patch.size, hash);
        hash = XXH3_64bits_withSeed(inverse.data, inverse.size, hash);
        bytes_clear(&patch);
        bytes_clear(&inverse);
    }
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
    return hash;
}

static void test_same_bytes_whatever_the_threads(void **state) {
    (void)state;
    uint64_t one = hash_of_diffs(1);
    assert_true(hash_of_diffs(2) == one);
    assert_true(hash_of_diffs(3) == one);
    assert_true(hash_of_diffs(8) == one);
}

/* The level is chosen once per process, so this program is run again with each. */
static void expect_level(const char *program, const char *level, bool runs, uint64_t hash) {
    char command[2400];
    const char *emulator = getenv("WEFT_EMULATOR"); /* runs programs of another machine */
    snprintf(command, sizeof command, "WEFT_CPU=%s %s '%s' --hash", level, emulator != NULL ? emulator : "",
             program);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char name[32];
    uint64_t other = 0;
    assert_int_equal(fscanf(pipe, "%31s %" SCNx64, name, &other), 2);
    assert_int_equal(pclose(pipe), 0);
    if (runs) {
        assert_string_equal(name, level);
    }
    assert_true(other == hash);
}

static void test_same_bytes_whatever_the_processor(void **state) {
    (void)state;
    char program[1024];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(length > 0);
    program[length] = 0;
    uint64_t hash = hash_of_diffs(1);
    expect_level(program, "portable", true, hash);
#ifdef WEFT_ARM
    expect_level(program, "neon", weft_cpu_best() >= WEFT_CPU_NEON, hash);
#else
    expect_level(program, "avx2", weft_cpu_best() >= WEFT_CPU_AVX2, hash);
    expect_level(program, "avx512", weft_cpu_best() >= WEFT_CPU_AVX512, hash);
#endif
}

/* ---- how tensors are held ---- */

/* FP32 masters on the new side, and on both, give the patch of their casts. */
static void test_masters(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    enum { ROWS = 300, COLUMNS = 200, UNITS = ROWS * COLUMNS };
    dice dice = {7};
    model base, base_masters, next, next_masters;
    model_open(&base, context);
    model_open(&base_masters, context);
    model_open(&next, context);
    model_open(&next_masters, context);
    for (unsigned t = 0; t < 3; t++) {
        char name[2] = {(char)('a' + t), 0};
        uint16_t *weights = model_add(&base, name, WEFT_DTYPE_BF16, ROWS, COLUMNS);
        float *old_masters = model_add_masters(&base_masters, name, ROWS, COLUMNS);
        uint16_t *cast = model_add(&next, name, WEFT_DTYPE_BF16, ROWS, COLUMNS);
        float *new_masters = model_add_masters(&next_masters, name, ROWS, COLUMNS);
        weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, weights, UNITS);
        for (size_t i = 0; i < UNITS; i++) {
            uint64_t bits = dice_next(&dice);
            uint32_t low = (uint32_t)weights[i] << 16 | (uint32_t)(bits & 0x7fff);
            uint32_t moved = low + (uint32_t)(bits >> 20 & 0x3ff);
            moved = bits >> 40 & 0xff ? moved
                    : bits & 1        ? (uint32_t)bits
                                      : 0x7fffffff - (uint32_t)(bits & 3);
            memcpy(old_masters + i, &low, sizeof low);
            memcpy(new_masters + i, &moved, sizeof moved);
        }
        if (t == 2) {
            memcpy(new_masters, old_masters, UNITS * sizeof *new_masters);
        }
        weft_bf16_from_f32(old_masters, weights, UNITS);
        weft_bf16_from_f32(new_masters, cast, UNITS);
    }
    model_show(&base);
    model_show(&base_masters);
    model_show(&next);
    model_show(&next_masters);
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        bytes patches[4] = {{0}};
        bytes inverses[4] = {{0}};
        const model *froms[] = {&base, &base, &base_masters, &base_masters};
        const model *tos[] = {&next, &next_masters, &next, &next_masters};
        for (unsigned i = 0; i < 4; i++) {
            weft_sink inverse = bytes_sink(&inverses[i]);
            weft_diff_stats stats = {.size = sizeof stats};
            weft_diff_options options = {.size = sizeof options,
                                         .profile = (weft_profile)profile,
                                         .bucket_bytes = SMALL_BUCKET,
                                         .inverse = &inverse};
            expect_diff(context, froms[i], tos[i], &options, &patches[i], &stats);
            assert_true(stats.changed > 100);
            expect_same_bytes(&patches[i], &patches[0]);
            expect_same_bytes(&inverses[i], &inverses[0]);
        }
        expect_rebuild(context, &patches[0], &base, &next);
        expect_rebuild(context, &inverses[0], &next, &base);
        for (unsigned i = 0; i < 4; i++) {
            bytes_clear(&patches[i]);
            bytes_clear(&inverses[i]);
        }
    }
    model_close(&base);
    model_close(&base_masters);
    model_close(&next);
    model_close(&next_masters);
    weft_context_destroy(context);
}

typedef struct far_tensor {
    const uint8_t *data;
    size_t bytes;
    weft_status answer;
} far_tensor;

static weft_status read_far(void *opaque, uint64_t offset, void *output, size_t size) {
    const far_tensor *far = opaque;
    if (far->answer != WEFT_OK) {
        return far->answer;
    }
    if (offset > far->bytes || size > far->bytes - offset) {
        return WEFT_INVALID_ARGUMENT;
    }
    memcpy(output, far->data + offset, size);
    return WEFT_OK;
}

/* Tensors behind callbacks give the same bytes, and their failures end the diff. */
static void test_callbacks(void **state) {
    (void)state;
    weft_context *context = make_context(3);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_pair(&base, &next, 11, 5000);
    const weft_access access = {.read = read_far};
    far_tensor fars[2][SHAPES];
    weft_table *tables[2];
    weft_view *views[2];
    for (unsigned side = 0; side < 2; side++) {
        const weft_table *table = side == 0 ? base.table : next.table;
        assert_int_equal(weft_table_create(context, &tables[side]), WEFT_OK);
        for (size_t i = 0; i < SHAPES; i++) {
            weft_tensor tensor = *weft_table_at(table, i);
            fars[side][i] = (far_tensor){tensor.data, (size_t)tensor.bytes, WEFT_OK};
            tensor.data = NULL;
            tensor.access = &access;
            tensor.opaque = &fars[side][i];
            assert_int_equal(weft_table_add(tables[side], &tensor), WEFT_OK);
        }
        assert_int_equal(weft_view_create(context, tables[side], &views[side]), WEFT_OK);
    }
    bytes near = {0};
    bytes far = {0};
    weft_diff_stats stats = {.size = sizeof stats};
    weft_diff_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_SMALL, .bucket_bytes = SMALL_BUCKET};
    expect_diff(context, &base, &next, &options, &near, &stats);
    assert_int_equal(diff_views(context, views[0], views[1], &options, &far, &stats), WEFT_OK);
    expect_same_bytes(&near, &far);
    assert_int_equal(diff_views(context, base.view, views[1], &options, &far, &stats), WEFT_OK);
    expect_same_bytes(&near, &far);
    fars[1][3].answer = WEFT_IO_FAILED;
    assert_int_equal(diff_views(context, base.view, views[1], &options, &far, &stats), WEFT_IO_FAILED);
    assert_non_null(strstr(weft_context_error(context), shapes[3].name));
    bytes_clear(&near);
    bytes_clear(&far);
    for (unsigned side = 0; side < 2; side++) {
        weft_view_destroy(views[side]);
        weft_table_destroy(tables[side]);
    }
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

enum { Q_ROWS = 64, K_ROWS = 16, QKV_COLUMNS = 37 };

/* q, k and v of a checkpoint, with rows that end inside of words. */
static void add_qkv(model *model, const uint16_t *values) {
    const char *const names[] = {"k", "q", "v"};
    const size_t rows[] = {K_ROWS, Q_ROWS, K_ROWS};
    const size_t firsts[] = {Q_ROWS, 0, Q_ROWS + K_ROWS};
    for (unsigned i = 0; i < 3; i++) {
        memcpy(model_add(model, names[i], WEFT_DTYPE_BF16, rows[i], QKV_COLUMNS),
               values + firsts[i] * QKV_COLUMNS, rows[i] * QKV_COLUMNS * 2);
    }
    model_show(model);
}

/* A fused tensor seen through a layout gives the same bytes as the checkpoint's own tensors. */
static void test_layouts(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    enum { ROWS = Q_ROWS + 2 * K_ROWS, UNITS = ROWS * QKV_COLUMNS };
    dice dice = {12};
    static uint16_t old_values[UNITS];
    static uint16_t new_values[UNITS];
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, old_values, UNITS);
    memcpy(new_values, old_values, sizeof new_values);
    weights_change(&dice, CHANGE_MIXED, 2, new_values, UNITS, 30000);
    model base, next, fused;
    model_open(&base, context);
    model_open(&next, context);
    model_open(&fused, context);
    add_qkv(&base, old_values);
    add_qkv(&next, new_values);
    memcpy(model_add(&fused, "qkv", WEFT_DTYPE_BF16, ROWS, QKV_COLUMNS), new_values, sizeof new_values);
    weft_layout *layout;
    assert_int_equal(weft_layout_create(context, &layout), WEFT_OK);
    const weft_slice slices[] = {{"q", -1, 0, 0}, {"k", -1, 0, 0}, {"v", -1, 0, 0}};
    assert_int_equal(weft_layout_concat(layout, "qkv", 0, slices, 3), WEFT_OK);
    assert_int_equal(weft_view_create_layout(context, fused.table, layout, base.table, &fused.view),
                     WEFT_OK);
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        bytes patches[2] = {{0}};
        bytes inverses[2] = {{0}};
        for (unsigned i = 0; i < 2; i++) {
            weft_sink inverse = bytes_sink(&inverses[i]);
            weft_diff_options options = {
                .size = sizeof options, .profile = (weft_profile)profile, .inverse = &inverse};
            weft_diff_stats stats = {.size = sizeof stats};
            expect_diff(context, &base, i == 0 ? &next : &fused, &options, &patches[i], &stats);
        }
        expect_same_bytes(&patches[0], &patches[1]);
        expect_same_bytes(&inverses[0], &inverses[1]);
        expect_rebuild(context, &patches[1], &base, &next);
        for (unsigned i = 0; i < 2; i++) {
            bytes_clear(&patches[i]);
            bytes_clear(&inverses[i]);
        }
    }
    weft_layout_destroy(layout);
    model_close(&base);
    model_close(&next);
    model_close(&fused);
    weft_context_destroy(context);
}

/* The view of a rank that holds columns `start` to `start + length` of "w" and ignores the rest. */
static void open_rank(model *rank, const model *whole, uint64_t start, uint64_t length) {
    const weft_tensor *w = weft_table_at(whole->table, (size_t)weft_table_find(whole->table, "w"));
    uint64_t rows = w->shape[0];
    uint64_t columns = w->shape[1];
    uint16_t *part = model_add(rank, "w", WEFT_DTYPE_BF16, rows, length);
    for (uint64_t r = 0; r < rows; r++) {
        memcpy(part + r * length, (const uint16_t *)w->data + r * columns + start, (size_t)length * 2);
    }
    weft_layout *layout;
    assert_int_equal(weft_layout_create(rank->context, &layout), WEFT_OK);
    const weft_slice slice = {"w", 1, start, length};
    assert_int_equal(weft_layout_concat(layout, "w", 1, &slice, 1), WEFT_OK);
    assert_int_equal(weft_layout_ignore(layout, "x"), WEFT_OK);
    assert_int_equal(weft_view_create_layout(rank->context, rank->table, layout, whole->table, &rank->view),
                     WEFT_OK);
    weft_layout_destroy(layout);
}

/* The frames of a patch, one behind the other. */
static const uint8_t *frames_of(weft_context *context, const bytes *patch, size_t index, size_t *size_out,
                                size_t *count_out) {
    weft_source source = bytes_source(patch);
    weft_patch *opened;
    assert_int_equal(weft_patch_open(context, &source, &opened), WEFT_OK);
    *count_out = (size_t)patch_info(opened).buckets;
    weft_bucket_info info = {.size = sizeof info};
    if (index < *count_out) {
        assert_int_equal(weft_patch_bucket(context, opened, index, &info), WEFT_OK);
    }
    weft_patch_close(opened);
    *size_out = (size_t)info.bytes;
    return patch->data + info.offset;
}

/* A rank's diff holds the frames of its boxes, the same as in the diff of everything. */
static void test_ranks(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    enum { ROWS = 40, COLUMNS = 64, UNITS = ROWS * COLUMNS };
    dice dice = {13};
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    uint16_t *before = model_add(&base, "w", WEFT_DTYPE_BF16, ROWS, COLUMNS);
    uint16_t *after = model_add(&next, "w", WEFT_DTYPE_BF16, ROWS, COLUMNS);
    model_add(&base, "x", WEFT_DTYPE_BF16, 5, 0);
    model_add(&next, "x", WEFT_DTYPE_BF16, 5, 0);
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, before, UNITS);
    memcpy(after, before, 2 * (size_t)UNITS);
    weights_change(&dice, CHANGE_ULP, 2, after, UNITS, 50000);
    model_show(&base);
    model_show(&next);
    const weft_cut cut = {"w", 1, 2};
    weft_diff_options options = {.size = sizeof options, .cuts = &cut, .cut_count = 1};
    weft_diff_stats stats = {.size = sizeof stats};
    bytes all = {0};
    expect_diff(context, &base, &next, &options, &all, &stats);
    assert_int_equal(stats.buckets, 2);
    for (unsigned r = 0; r < 2; r++) {
        model old_rank, new_rank;
        model_open(&old_rank, context);
        model_open(&new_rank, context);
        open_rank(&old_rank, &base, r * 32, 32);
        open_rank(&new_rank, &next, r * 32, 32);
        bytes part = {0};
        expect_diff(context, &old_rank, &new_rank, &options, &part, &stats);
        size_t size, count, whole_size, whole_count;
        const uint8_t *frame = frames_of(context, &part, 0, &size, &count);
        const uint8_t *whole = frames_of(context, &all, r, &whole_size, &whole_count);
        assert_int_equal(count, 1);
        assert_int_equal(size, whole_size);
        assert_memory_equal(frame, whole, size);
        /* without the cut a bucket would cover more than the rank has */
        assert_int_equal(diff_views(context, old_rank.view, new_rank.view, NULL, &part, &stats),
                         WEFT_INVALID_ARGUMENT);
        assert_int_equal(diff_views(context, old_rank.view, next.view, &options, &part, &stats),
                         WEFT_INVALID_ARGUMENT);
        assert_true(weft_context_error(context)[0] != 0);
        bytes_clear(&part);
        model_close(&old_rank);
        model_close(&new_rank);
    }
    bytes_clear(&all);
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

/* ---- sums ---- */

static void test_sums(void **state) {
    (void)state;
    weft_context *context = make_context(2);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_pair(&base, &next, 14, 5000);
    bytes own = {0};
    bytes given = {0};
    weft_diff_stats stats = {.size = sizeof stats};
    weft_sums *base_sums;
    weft_sums *new_sums = NULL;
    assert_int_equal(weft_sums_compute(context, base.view, &base_sums), WEFT_OK);
    weft_diff_options options = {.size = sizeof options, .bucket_bytes = SMALL_BUCKET};
    expect_diff(context, &base, &next, &options, &own, &stats);
    options.base_sums = base_sums;
    options.new_sums_out = &new_sums;
    expect_diff(context, &base, &next, &options, &given, &stats);
    expect_same_bytes(&own, &given);
    assert_non_null(new_sums);
    weft_digest digest = weft_sums_digest(new_sums);
    assert_true(weft_digest_equal(&digest, &stats.result));
    assert_int_equal(weft_sums_audit(context, new_sums, UINT64_MAX), WEFT_OK);
    weft_sums_destroy(new_sums);
    weft_sums_destroy(base_sums);
    bytes_clear(&own);
    bytes_clear(&given);
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

/* ---- tensors that come and go, and the inverse ---- */

/* Tensors kept, added, removed and replaced by turns, in several dtypes and over several buckets. */
static void fill_changing(model *base, model *next, uint64_t seed) {
    dice dice = {seed};
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_U8};
    for (unsigned i = 0; i < 40; i++) {
        char name[8];
        snprintf(name, sizeof name, "t%02u", i);
        weft_dtype dtype = dtypes[dice_below(&dice, 3)];
        unsigned width = weft_dtype_width(dtype);
        uint64_t units = 1 + dice_below(&dice, i % 5 == 0 ? 30000 : 3000);
        unsigned fate = (unsigned)dice_below(&dice, 6);
        if (fate == 3) {
            weights_fill(&dice, WEIGHTS_TRAINED, dtype, model_add(next, name, dtype, units, 0), units);
            continue;
        }
        uint8_t *before = model_add(base, name, dtype, units, 0);
        weights_fill(&dice, WEIGHTS_TRAINED, dtype, before, units);
        if (fate == 4) {
            continue;
        }
        if (fate == 5) {
            dtype = dtypes[(i + 1) % 3];
            units += 1 + dice_below(&dice, 10);
            weights_fill(&dice, WEIGHTS_TRAINED, dtype, model_add(next, name, dtype, units, 0), units);
            continue;
        }
        uint8_t *after = model_add(next, name, dtype, units, 0);
        memcpy(after, before, units * width);
        weights_change(&dice, CHANGE_MIXED, width, after, units, fate == 0 ? 0 : 10000);
    }
    model_show(base);
    model_show(next);
}

static void test_changing_tensors(void **state) {
    (void)state;
    weft_context *context = make_context(3);
    for (uint64_t seed = 0; seed < 12; seed++) {
        model base, next;
        model_open(&base, context);
        model_open(&next, context);
        fill_changing(&base, &next, seed);
        weft_digest before = digest_of(context, base.view);
        weft_digest after = digest_of(context, next.view);
        const weft_container_file old_file = {"", "old", 3};
        const weft_container_file new_file = {"", "newer", 5};
        const weft_container old_files = {false, 1, &old_file, NULL, 0};
        const weft_container new_files = {false, 1, &new_file, NULL, 0};
        const char *const labels[] = {"step", "7", NULL};
        bytes forward = {0}, inverse = {0}, backward = {0};
        weft_sink inverse_sink = bytes_sink(&inverse);
        weft_diff_stats stats = {.size = sizeof stats}, back_stats = {.size = sizeof back_stats};
        weft_diff_options options = {.size = sizeof options,
                                     .profile = (weft_profile)(seed % 2),
                                     .bucket_bytes = SMALL_BUCKET,
                                     .base_container = &old_files,
                                     .new_container = &new_files,
                                     .labels = labels,
                                     .inverse = &inverse_sink};
        expect_diff(context, &base, &next, &options, &forward, &stats);
        assert_int_equal(stats.inverse_bytes, inverse.size);
        assert_true(weft_digest_equal(&stats.base, &before));
        assert_true(weft_digest_equal(&stats.result, &after));
        options.base_container = &new_files;
        options.new_container = &old_files;
        options.inverse = NULL;
        expect_diff(context, &next, &base, &options, &backward, &back_stats);
        expect_same_bytes(&inverse, &backward);
        expect_rebuild(context, &forward, &base, &next);
        expect_rebuild(context, &inverse, &next, &base);
        /* asking for the inverse does not change the patch */
        options.base_container = &old_files;
        options.new_container = &new_files;
        expect_diff(context, &base, &next, &options, &backward, &back_stats);
        expect_same_bytes(&forward, &backward);
        bytes_clear(&forward);
        bytes_clear(&inverse);
        bytes_clear(&backward);
        model_close(&base);
        model_close(&next);
    }
    weft_context_destroy(context);
}

/* ---- plans ---- */

typedef struct plan_fixture {
    weft_context *context;
    weft_table *table;
    weft_view *view;
    weft_roster roster;
    weft_plan plan;
} plan_fixture;

static void open_plan(plan_fixture *self, uint64_t bucket_limit) {
    memset(self, 0, sizeof *self);
    weft_context_options options = {
        .size = sizeof options,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .bucket_bytes = bucket_limit}};
    assert_int_equal(weft_context_create(&options, &self->context), WEFT_OK);
    assert_int_equal(weft_table_create(self->context, &self->table), WEFT_OK);
    weft_roster_open(&self->roster, self->context);
    weft_plan_open(&self->plan, self->context);
}

static void close_plan(plan_fixture *self) {
    weft_plan_close(&self->plan);
    weft_roster_close(&self->roster);
    weft_view_destroy(self->view);
    weft_table_destroy(self->table);
    weft_context_destroy(self->context);
}

static void plan_tensor(plan_fixture *self, const char *name, weft_dtype dtype, uint64_t a, uint64_t b,
                        uint64_t c) {
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = name,
                          .dtype = dtype,
                          .rank = c > 0   ? 3
                                  : b > 0 ? 2
                                          : 1,
                          .shape = {a, b, c}};
    assert_int_equal(weft_table_add(self->table, &tensor), WEFT_OK);
}

static weft_status build_plan(plan_fixture *self, uint64_t bucket_bytes, const weft_cut *cuts,
                              size_t cut_count) {
    if (self->view == NULL) {
        assert_int_equal(weft_view_create(self->context, self->table, &self->view), WEFT_OK);
        assert_int_equal(weft_roster_build(&self->roster, self->view, self->view), WEFT_OK);
    }
    weft_plan_close(&self->plan);
    return weft_plan_build(&self->plan, &self->roster, bucket_bytes, cuts, cut_count);
}

/* Marks a span in its tensor's map; nothing may be marked twice. */
static void mark(uint8_t *map, const weft_span *span) {
    for (uint64_t j = 0; j < span->count; j++) {
        for (uint64_t u = 0; u < span->run; u++) {
            uint8_t *place = map + span->start + j * span->stride + u;
            assert_int_equal(*place, 0);
            *place = 1;
        }
    }
}

/* Every unit once, buckets of one dtype and within the limit, and a form that readers accept. */
static void expect_plan(const plan_fixture *self, uint64_t bucket_bytes) {
    uint8_t **maps = calloc(self->roster.count, sizeof *maps);
    assert_non_null(maps);
    for (size_t i = 0; i < self->roster.count; i++) {
        maps[i] = calloc((size_t)weft_tensor_units(&self->roster.entries[i].tensor) + 1, 1);
        assert_non_null(maps[i]);
    }
    for (size_t i = 0; i < self->plan.count; i++) {
        const weft_bucket *bucket = &self->plan.items[i].bucket;
        uint64_t units = 0;
        for (size_t j = 0; j < bucket->span_count; j++) {
            const weft_bucket_span *item = &bucket->spans[j];
            const weft_roster_entry *entry = &self->roster.entries[item->tensor];
            assert_int_equal(entry->tensor.dtype, bucket->dtype);
            assert_int_equal(entry->fate != WEFT_FATE_KEPT, self->plan.items[i].whole);
            assert_int_not_equal(entry->fate, WEFT_FATE_REMOVED);
            mark(maps[item->tensor], &item->span);
            units += item->span.run * item->span.count;
        }
        assert_int_equal(units, bucket->units);
        assert_int_equal(bucket->width, weft_dtype_width(bucket->dtype));
        assert_true(bucket->span_count == 1 || units * bucket->width <= bucket_bytes);
        weft_writer writer;
        weft_writer_open(&writer, self->context);
        weft_bucket_write_spans(bucket, &self->roster, &writer);
        weft_reader reader = weft_reader_over(writer.data, writer.size);
        weft_bucket again = {0};
        assert_int_equal(weft_bucket_read_spans(&again, &self->roster, &reader), WEFT_OK);
        assert_int_equal(weft_reader_left(&reader), 0);
        assert_true(weft_bucket_same_spans(bucket, &again));
        weft_bucket_close(&again, self->context);
        weft_writer_close(&writer);
    }
    for (size_t i = 0; i < self->roster.count; i++) {
        const weft_roster_entry *entry = &self->roster.entries[i];
        uint64_t units = weft_tensor_units(&entry->tensor);
        for (uint64_t u = 0; u < units; u++) {
            assert_int_equal(maps[i][u], entry->fate != WEFT_FATE_REMOVED);
        }
        free(maps[i]);
    }
    free(maps);
}

static void test_plans_cover_everything_once(void **state) {
    (void)state;
    dice dice = {15};
    const uint64_t sizes[] = {32768, 40000, 65536, 100000, 1000000, 0};
    for (unsigned round = 0; round < 30; round++) {
        plan_fixture self;
        open_plan(&self, 0);
        for (unsigned i = 0; i < 30; i++) {
            char name[8];
            snprintf(name, sizeof name, "t%02u", i);
            uint64_t a = 1 + dice_below(&dice, i % 7 == 0 ? 200000 : 3000);
            plan_tensor(&self, name, (weft_dtype)(WEFT_DTYPE_U16 + dice_below(&dice, 10)), a, 0, 0);
        }
        uint64_t bucket_bytes = sizes[round % 6];
        assert_int_equal(build_plan(&self, bucket_bytes, NULL, 0), WEFT_OK);
        expect_plan(&self, bucket_bytes == 0 ? 8 << 20 : bucket_bytes);
        for (size_t i = 0; i < self.roster.count; i++) {
            self.roster.entries[i].fate = (weft_fate)dice_below(&dice, 4);
        }
        assert_int_equal(build_plan(&self, bucket_bytes, NULL, 0), WEFT_OK);
        expect_plan(&self, bucket_bytes == 0 ? 8 << 20 : bucket_bytes);
        close_plan(&self);
    }
}

/* A cut into one part: the tensors that match share their buckets with nobody, the others still do. */
static void test_plan_of_tensors_alone(void **state) {
    (void)state;
    plan_fixture self;
    open_plan(&self, 0);
    plan_tensor(&self, "experts.0", WEFT_DTYPE_BF16, 64, 64, 0);
    plan_tensor(&self, "experts.1", WEFT_DTYPE_BF16, 64, 64, 0);
    plan_tensor(&self, "norm.0", WEFT_DTYPE_BF16, 64, 0, 0);
    plan_tensor(&self, "norm.1", WEFT_DTYPE_BF16, 64, 0, 0);
    const weft_cut cut = {"experts.*", 0, 1};
    assert_int_equal(build_plan(&self, 0, &cut, 1), WEFT_OK);
    expect_plan(&self, 8 << 20);
    assert_int_equal(self.plan.count, 3);
    for (size_t i = 0; i < self.plan.count; i++) {
        const weft_bucket *bucket = &self.plan.items[i].bucket;
        bool expert = strncmp(self.roster.entries[bucket->spans[0].tensor].tensor.name, "experts", 7) == 0;
        assert_int_equal(bucket->span_count, expert ? 1 : 2);
    }
    close_plan(&self);
}

/* The largest bucket of a plan, in bytes. */
static uint64_t largest_bucket(const plan_fixture *self) {
    uint64_t largest = 0;
    for (size_t i = 0; i < self->plan.count; i++) {
        uint64_t size = self->plan.items[i].bucket.units * self->plan.items[i].bucket.width;
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Pieces are rounded up to whole cuts, but never past what was asked for. */
static void test_buckets_stay_within_their_size(void **state) {
    (void)state;
    const weft_dtype dtypes[] = {WEFT_DTYPE_U8, WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_F64};
    for (uint64_t size = 32768; size < 200000; size += 1777) {
        plan_fixture self;
        open_plan(&self, size);
        for (unsigned t = 0; t < 4; t++) {
            char name[2] = {(char)('a' + t), 0};
            plan_tensor(&self, name, dtypes[t], 3 * size + 17 * t, 0, 0);
        }
        assert_int_equal(build_plan(&self, size, NULL, 0), WEFT_OK);
        assert_true(largest_bucket(&self) <= size);
        close_plan(&self);
    }
}

/* Which part of a cut along `dim` a unit belongs to. */
static uint64_t part_of(const weft_tensor *tensor, uint64_t unit, const weft_cut *cut) {
    uint64_t inner = 1;
    for (uint32_t d = cut->dim + 1; d < tensor->rank; d++) {
        inner *= tensor->shape[d];
    }
    uint64_t index = unit / inner % tensor->shape[cut->dim];
    return index / (tensor->shape[cut->dim] / cut->parts);
}

static void expect_parts(const plan_fixture *self, const weft_cut *cut) {
    for (size_t i = 0; i < self->plan.count; i++) {
        const weft_bucket *bucket = &self->plan.items[i].bucket;
        const weft_tensor *first = &self->roster.entries[bucket->spans[0].tensor].tensor;
        uint64_t part = part_of(first, bucket->spans[0].span.start, cut);
        for (size_t j = 0; j < bucket->span_count; j++) {
            const weft_tensor *tensor = &self->roster.entries[bucket->spans[j].tensor].tensor;
            const weft_span *span = &bucket->spans[j].span;
            for (uint64_t k = 0; k < span->count; k++) {
                uint64_t start = span->start + k * span->stride;
                assert_int_equal(part_of(tensor, start, cut), part);
                assert_int_equal(part_of(tensor, start + span->run - 1, cut), part);
            }
        }
    }
}

static void test_cuts(void **state) {
    (void)state;
    const weft_cut cuts[] = {{"*", 0, 1}, {"*", 0, 4}, {"*", 1, 1}, {"*", 1, 4}, {"*", 2, 2}, {"*", 1, 16}};
    for (size_t c = 0; c < 6; c++) {
        for (uint64_t bucket = 32768; bucket <= 524288; bucket *= 4) {
            plan_fixture self;
            open_plan(&self, 0);
            plan_tensor(&self, "a", WEFT_DTYPE_BF16, 16, 64, 128);
            plan_tensor(&self, "b", WEFT_DTYPE_BF16, 32, 256, 64);
            plan_tensor(&self, "c", WEFT_DTYPE_F32, 4, 16, 32);
            plan_tensor(&self, "d", WEFT_DTYPE_BF16, 4, 16, 32);
            plan_tensor(&self, "e", WEFT_DTYPE_U8, 4, 160, 64);
            assert_int_equal(build_plan(&self, bucket, &cuts[c], 1), WEFT_OK);
            expect_plan(&self, bucket);
            expect_parts(&self, &cuts[c]);
            close_plan(&self);
        }
    }
}

/* The first pattern that matches counts; others are left whole. */
static void test_cut_patterns(void **state) {
    (void)state;
    plan_fixture self;
    open_plan(&self, 0);
    plan_tensor(&self, "layer.0.down", WEFT_DTYPE_BF16, 64, 64, 0);
    plan_tensor(&self, "layer.0.up", WEFT_DTYPE_BF16, 64, 64, 0);
    plan_tensor(&self, "norm", WEFT_DTYPE_BF16, 64, 0, 0);
    const weft_cut cuts[] = {{"*.down", 1, 4}, {"layer.*", 0, 2}};
    assert_int_equal(build_plan(&self, 0, cuts, 2), WEFT_OK);
    expect_plan(&self, 8 << 20);
    size_t spans[3] = {0};
    for (size_t i = 0; i < self.plan.count; i++) {
        const weft_bucket *bucket = &self.plan.items[i].bucket;
        for (size_t j = 0; j < bucket->span_count; j++) {
            spans[bucket->spans[j].tensor]++;
            assert_int_equal(bucket->spans[j].span.stride, bucket->spans[j].tensor == 0 ? 64 : 0);
        }
    }
    assert_int_equal(spans[0], 4);
    assert_int_equal(spans[1], 2);
    assert_int_equal(spans[2], 1);
    close_plan(&self);
}

static void test_wrong_plans(void **state) {
    (void)state;
    plan_fixture self;
    open_plan(&self, 1 << 20);
    plan_tensor(&self, "even", WEFT_DTYPE_BF16, 64, 64, 0);
    plan_tensor(&self, "odd", WEFT_DTYPE_BF16, 63, 36, 0);
    plan_tensor(&self, "packed", WEFT_DTYPE_F4, 2, 33, 0);
    plan_tensor(&self, "rows", WEFT_DTYPE_BF16, 1024, 4096, 0);
    plan_tensor(&self, "wide", WEFT_DTYPE_F64, 2, 1 << 19, 0);
    const weft_cut wrong[] = {
        {"even", 2, 2}, {"even", 0, 0}, {"even", 0, 3},   {"even", 1, 16}, {"odd", 0, 2},
        {"odd", 1, 4},  {"odd", 1, 9},  {"packed", 1, 3}, {"wide", 1, 2},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(build_plan(&self, 65536, &wrong[i], 1), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(self.context), wrong[i].pattern));
    }
    const uint64_t sizes[] = {1, 32767, (1 << 20) + 1, UINT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(build_plan(&self, sizes[i], NULL, 0), WEFT_INVALID_ARGUMENT);
    }
    /* rows of a part may be more than a bucket: they are contiguous, and cut again */
    const weft_cut rows = {"rows", 0, 2};
    assert_int_equal(build_plan(&self, 1 << 20, &rows, 1), WEFT_OK);
    expect_plan(&self, 1 << 20);
    assert_true(largest_bucket(&self) <= 1 << 20);
    close_plan(&self);
}

/* Parts that take several buckets each, by rows and by columns: the patch opens and gives the new state. */
static void test_patches_of_cut_models(void **state) {
    (void)state;
    weft_context_options limited = {.size = sizeof limited,
                                    .threads = 2,
                                    .limits =
                                        &(weft_limits){.size = sizeof(weft_limits), .bucket_bytes = 50000}};
    weft_context *context;
    assert_int_equal(weft_context_create(&limited, &context), WEFT_OK);
    dice dice = {16};
    for (uint32_t dim = 0; dim < 2; dim++) {
        model base, next;
        model_open(&base, context);
        model_open(&next, context);
        for (unsigned t = 0; t < 3; t++) {
            char name[2] = {(char)('a' + t), 0};
            uint8_t *before = model_add(&base, name, WEFT_DTYPE_BF16, 256 + 64 * t, 512);
            uint8_t *after = model_add(&next, name, WEFT_DTYPE_BF16, 256 + 64 * t, 512);
            size_t units = (256 + 64 * t) * 512;
            weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, before, units);
            memcpy(after, before, 2 * units);
            weights_change(&dice, CHANGE_ULP, 2, after, units, 5000);
        }
        model_show(&base);
        model_show(&next);
        const weft_cut cut = {"*", dim, 4};
        bytes patch = {0};
        bytes inverse = {0};
        weft_sink inverse_sink = bytes_sink(&inverse);
        weft_diff_stats stats = {.size = sizeof stats};
        weft_diff_options options = {.size = sizeof options,
                                     .bucket_bytes = 50000,
                                     .cuts = &cut,
                                     .cut_count = 1,
                                     .inverse = &inverse_sink};
        expect_diff(context, &base, &next, &options, &patch, &stats);
        assert_true(stats.buckets > 12);
        expect_rebuild(context, &patch, &base, &next);
        expect_rebuild(context, &inverse, &next, &base);
        bytes_clear(&patch);
        bytes_clear(&inverse);
        model_close(&base);
        model_close(&next);
    }
    weft_context_destroy(context);
}

/* ---- failures ---- */

typedef struct failing_sink {
    size_t writes;
    size_t fail_at;
} failing_sink;

static weft_status write_until(void *opaque, const void *data, size_t size) {
    (void)data;
    (void)size;
    failing_sink *self = opaque;
    return ++self->writes == self->fail_at ? WEFT_NO_SPACE : WEFT_OK;
}

static weft_status ignore_bytes(void *opaque, const void *data, size_t size) {
    (void)opaque;
    (void)data;
    (void)size;
    return WEFT_OK;
}

static void test_failing_sinks(void **state) {
    (void)state;
    faults faults = {0};
    weft_context_options context_options = {
        .size = sizeof context_options, .allocator = faults_allocator(&faults), .threads = 2};
    weft_context *context;
    assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_changing(&base, &next, 3);
    const weft_sink quiet = {ignore_bytes, NULL};
    for (unsigned side = 0; side < 2; side++) {
        size_t live = 0;
        for (size_t n = 1;; n += test_stride()) {
            failing_sink failing = {0, n};
            const weft_sink sink = {write_until, &failing};
            weft_diff_options options = {.size = sizeof options,
                                         .bucket_bytes = SMALL_BUCKET,
                                         .inverse = side == 0 ? &quiet : &sink};
            weft_diff_stats stats = {.size = sizeof stats, .changed = 12345};
            weft_status status =
                weft_diff(context, base.view, next.view, &options, side == 0 ? &sink : &quiet, &stats);
            assert_true(n == 1 || faults_live_blocks(&faults) == live);
            live = faults_live_blocks(&faults);
            if (status == WEFT_OK) {
                assert_true(n > 4);
                break;
            }
            assert_int_equal(status, WEFT_NO_SPACE);
            assert_int_equal(stats.changed, 12345);
            assert_true(weft_context_error(context)[0] != 0);
        }
    }
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

static bool stop(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    (void)done;
    (void)total;
    ++*(unsigned *)opaque;
    return false;
}

static void test_cancelling(void **state) {
    (void)state;
    unsigned calls = 0;
    weft_context_options options = {
        .size = sizeof options, .threads = 2, .progress = stop, .progress_opaque = &calls};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_pair(&base, &next, 5, 1000);
    bytes patch = {0};
    assert_int_equal(diff_views(context, base.view, next.view, NULL, &patch, NULL), WEFT_CANCELLED);
    assert_true(calls >= 1);
    bytes_clear(&patch);
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
}

/* One diff with everything asked for, and with each way of coding. */
static weft_status try_diff(weft_context *context, const model *base, const model *next,
                            weft_profile profile, bytes *patch) {
    const weft_sink quiet = {ignore_bytes, NULL};
    const weft_container_file file = {"", "{}", 2};
    const weft_container container = {false, 1, &file, NULL, 0};
    const char *const labels[] = {"step", "7", NULL};
    weft_sums *sums = NULL;
    weft_diff_options options = {.size = sizeof options,
                                 .profile = profile,
                                 .bucket_bytes = SMALL_BUCKET,
                                 .new_container = &container,
                                 .labels = labels,
                                 .new_sums_out = &sums,
                                 .inverse = &quiet};
    weft_status status = diff_views(context, base->view, next->view, &options, patch, NULL);
    assert_int_equal(sums != NULL, status == WEFT_OK);
    weft_sums_destroy(sums);
    return status;
}

static weft_status try_open(weft_context *context, const bytes *data) {
    weft_source source = bytes_source(data);
    weft_patch *patch = NULL;
    weft_status status = weft_patch_open(context, &source, &patch);
    assert_int_equal(patch != NULL, status == WEFT_OK);
    for (size_t i = 0; status == WEFT_OK && i < patch_info(patch).buckets; i++) {
        weft_bucket_info info = {.size = sizeof info};
        status = weft_patch_bucket(context, patch, i, &info);
    }
    weft_patch_close(patch);
    return status;
}

static void expect_out_of_memory(weft_context *context, weft_status status, const faults *faults,
                                 size_t live) {
    assert_int_equal(faults_live_blocks(faults), live);
    assert_int_equal(status, WEFT_NO_MEMORY);
    assert_true(weft_context_error(context)[0] != 0);
}

/* Each allocation of a diff, and of opening its patch, fails in turn. */
static void fail_each_allocation(unsigned threads, weft_profile profile, size_t step) {
    faults faults = {0};
    weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&faults), .threads = threads};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    model base, next;
    model_open(&base, context);
    model_open(&next, context);
    fill_changing(&base, &next, 1);
    bytes patch = {0};
    /* the pool's threads start with the first loop and stay */
    assert_int_equal(try_diff(context, &base, &next, profile, &patch), WEFT_OK);
    size_t live = faults_live_blocks(&faults);
    size_t failures = 0;
    for (size_t n = 1;; n += step * test_stride()) {
        faults_reset(&faults, n);
        weft_status status = try_diff(context, &base, &next, profile, &patch);
        if (!faults_fired(&faults)) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        expect_out_of_memory(context, status, &faults, live);
        failures++;
    }
    assert_true(failures * step * test_stride() > 100);
    failures = 0;
    for (size_t n = 1;; n += test_stride()) {
        faults_reset(&faults, n);
        weft_status status = try_open(context, &patch);
        if (!faults_fired(&faults)) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        expect_out_of_memory(context, status, &faults, live);
        failures++;
    }
    assert_true(failures * test_stride() > 50);
    faults_reset(&faults, 0);
    bytes_clear(&patch);
    model_close(&base);
    model_close(&next);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

static void test_failing_allocations(void **state) {
    (void)state;
    fail_each_allocation(1, WEFT_PROFILE_FAST, 1);
    fail_each_allocation(1, WEFT_PROFILE_SMALL, 1);
}

static void test_failing_allocations_of_workers(void **state) {
    (void)state;
    fail_each_allocation(3, WEFT_PROFILE_SMALL, 7);
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "--hash") == 0) {
        printf("%s %016" PRIx64 "\n", weft_cpu_name(), hash_of_diffs(2));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_never_much_larger),
        cmocka_unit_test(test_identical_states),
        cmocka_unit_test(test_odd_models),
        cmocka_unit_test(test_same_bytes_whatever_the_threads),
        cmocka_unit_test(test_same_bytes_whatever_the_processor),
        cmocka_unit_test(test_masters),
        cmocka_unit_test(test_callbacks),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_changing_tensors),
        cmocka_unit_test(test_plans_cover_everything_once),
        cmocka_unit_test(test_plan_of_tensors_alone),
        cmocka_unit_test(test_buckets_stay_within_their_size),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_cut_patterns),
        cmocka_unit_test(test_wrong_plans),
        cmocka_unit_test(test_patches_of_cut_models),
        cmocka_unit_test(test_failing_sinks),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_failing_allocations_of_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
