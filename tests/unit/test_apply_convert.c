/* SPDX-License-Identifier: Apache-2.0
 *
 * Converters: an engine that holds int8 with a scale for each row, and BF16 weights in a private copy that
 * follow patches. After every commit and rollback the engine's memory is what quantising the whole copy
 * gives.
 */
#include "../../lib/sync/group/fill.h"
#include "patches.h"
#include "stride.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BUCKET = 32 * 1024 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

static const tensor_shape shapes[] = {
    {"a", WEFT_DTYPE_BF16, 300, 96}, {"b", WEFT_DTYPE_BF16, 77, 40}, {"c", WEFT_DTYPE_BF16, 9, 1000},
    {"d", WEFT_DTYPE_BF16, 300, 96}, {"n", WEFT_DTYPE_F32, 50, 3}, /* "n" is held as it is */
};
enum { SHAPES = sizeof shapes / sizeof *shapes, QUANTISED = 4 };

/* ---- the engine ---- */

typedef struct engine engine;

typedef struct quantised {
    engine *engine;
    uint64_t rows, columns;
    int8_t *weights;
    float *scales;
} quantised;

struct engine {
    pthread_t thread;
    size_t calls, fail_at;
    bool fail_on;
    bool misused;
    uint64_t units;
};

static float widen(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static void quantise_row(const uint16_t *row, uint64_t columns, int8_t *weights, float *scale) {
    float most = 0;
    for (uint64_t i = 0; i < columns; i++) {
        float size = fabsf(widen(row[i]));
        most = size > most && isfinite(size) ? size : most;
    }
    *scale = most / 127;
    for (uint64_t i = 0; i < columns; i++) {
        float value = most > 0 ? widen(row[i]) / *scale : 0;
        weights[i] = isfinite(value) ? (int8_t)lrintf(value) : 0;
    }
}

/* A change may move its row's scale, and with it every weight of the row. */
static weft_status convert(void *opaque, const weft_tensor *tensor, const uint64_t *units, size_t count,
                           const void *values) {
    engine *engine = opaque;
    quantised *here = tensor->opaque;
    size_t call = ++engine->calls;
    if (!pthread_equal(engine->thread, pthread_self()) || here->engine != engine) {
        engine->misused = true;
    }
    if (engine->fail_at != 0 && (call == engine->fail_at || (engine->fail_on && call > engine->fail_at))) {
        return WEFT_IO_FAILED;
    }
    const uint16_t *copy = tensor->data;
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        uint16_t value;
        memcpy(&value, (const uint8_t *)values + 2 * i, sizeof value);
        if (units[i] >= here->rows * here->columns || copy[units[i]] != value) {
            engine->misused = true;
            return WEFT_OK;
        }
        uint64_t row = units[i] / here->columns;
        if (row != last) {
            quantise_row(copy + row * here->columns, here->columns, here->weights + row * here->columns,
                         &here->scales[row]);
            last = row;
        }
    }
    engine->units += count;
    return WEFT_OK;
}

static void quantised_open(quantised *q, engine *engine, uint64_t rows, uint64_t columns,
                           const uint16_t *copy) {
    *q = (quantised){engine, rows, columns, malloc((size_t)(rows * columns)),
                     malloc((size_t)rows * sizeof(float))};
    assert_non_null(q->weights);
    assert_non_null(q->scales);
    for (uint64_t row = 0; row < rows; row++) {
        quantise_row(copy + row * columns, columns, q->weights + row * columns, &q->scales[row]);
    }
}

static void quantised_close(quantised *q) {
    free(q->weights);
    free(q->scales);
}

static bool quantised_from(const quantised *q, const uint8_t *copy) {
    quantised fresh;
    quantised_open(&fresh, NULL, q->rows, q->columns, (const uint16_t *)(const void *)copy);
    bool same = memcmp(fresh.weights, q->weights, (size_t)(q->rows * q->columns)) == 0 &&
                memcmp(fresh.scales, q->scales, (size_t)q->rows * sizeof(float)) == 0;
    quantised_close(&fresh);
    return same;
}

/* ---- a worker ---- */

typedef struct worker {
    weft_context *context;
    const pair *pair;
    engine engine;
    weft_converter converter;
    quantised tensors[QUANTISED];
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    weft_apply *apply;
} worker;

static void worker_restart(worker *worker) {
    weft_apply_destroy(worker->apply);
    worker->apply = NULL;
    assert_int_equal(
        weft_apply_create(worker->context, worker->pair->patch, worker->view, worker->sums, &worker->apply),
        WEFT_OK);
    worker->engine.calls = 0;
    worker->engine.units = 0;
}

static void worker_open(worker *worker, weft_context *context, const pair *pair) {
    memset(worker, 0, sizeof *worker);
    worker->context = context;
    worker->pair = pair;
    worker->engine.thread = pthread_self();
    worker->converter =
        (weft_converter){.size = sizeof(weft_converter), .commit = convert, .opaque = &worker->engine};
    assert_int_equal(weft_table_create(context, &worker->table), WEFT_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        weft_tensor tensor = *weft_table_at(pair->live.table, i);
        if (i < QUANTISED) {
            quantised_open(&worker->tensors[i], &worker->engine, shapes[i].rows, shapes[i].columns,
                           tensor.data);
            tensor.converter = &worker->converter;
            tensor.opaque = &worker->tensors[i];
        }
        assert_int_equal(weft_table_add(worker->table, &tensor), WEFT_OK);
    }
    assert_int_equal(weft_view_create(context, worker->table, &worker->view), WEFT_OK);
    worker->sums = patches_sums(context, worker->view);
    worker_restart(worker);
}

static void worker_close(worker *worker) {
    assert_false(worker->engine.misused);
    weft_apply_destroy(worker->apply);
    weft_sums_destroy(worker->sums);
    weft_view_destroy(worker->view);
    weft_table_destroy(worker->table);
    for (size_t i = 0; i < QUANTISED; i++) {
        quantised_close(&worker->tensors[i]);
    }
}

static bool engine_holds(const worker *worker, uint8_t *const *values) {
    for (size_t i = 0; i < QUANTISED; i++) {
        if (!quantised_from(&worker->tensors[i], values[i])) {
            return false;
        }
    }
    return true;
}

static bool at_old(const worker *worker) {
    return pair_at_old(worker->pair) && engine_holds(worker, worker->pair->olds);
}

static bool at_new(const worker *worker) {
    return pair_at_new(worker->pair) && engine_holds(worker, worker->pair->news);
}

static void open_pair(pair *pair, weft_context *context, weft_profile profile, unsigned per_million,
                      uint64_t seed) {
    pair_open(pair, context, shapes, SHAPES, WEIGHTS_TRAINED, seed);
    pair_change(pair, CHANGE_MIXED, per_million, seed + 1);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    pair_diff(pair, &options);
}

static void test_random(void **state) {
    (void)state;
    static const unsigned densities[] = {200, 5000, 100000, 900000};
    for (uint64_t seed = 0; seed < 32; seed++) {
        if (!test_stride_takes()) {
            continue;
        }
        weft_context *context = patches_context(seed % 2 == 0 ? 1 : 4);
        pair pair;
        worker worker;
        open_pair(&pair, context, profiles[seed / 2 % 2], densities[seed / 4 % 4], seed);
        worker_open(&worker, context, &pair);
        assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
        assert_int_equal(worker.engine.calls, 0);
        assert_true(at_old(&worker));
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
        assert_true(worker.engine.calls > 0 && at_new(&worker));
        assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
        assert_true(at_old(&worker));
        worker_restart(&worker);
        assert_int_equal(weft_apply_run(worker.apply), WEFT_OK);
        assert_true(at_new(&worker));
        assert_int_equal(weft_sums_audit(context, worker.sums, UINT64_MAX), WEFT_OK);
        worker_close(&worker);
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* In steps, since the staging limit is low: the targets that converters are told of count against it. */
static void test_steps(void **state) {
    (void)state;
    weft_context_options options = {.size = sizeof options,
                                    .threads = 2,
                                    .limits =
                                        &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = 60000}};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    pair pair;
    worker worker;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 100000, 5);
    worker_open(&worker, context, &pair);
    size_t steps = 0;
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        status = weft_apply_prepare(worker.apply);
        assert_true(status >= 0);
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
        assert_true(engine_holds(&worker, pair.memory));
        steps++;
    }
    assert_true(steps > 2 && at_new(&worker));
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_failures(void **state) {
    (void)state;
    for (size_t way = 0; way < 4; way++) {
        weft_context *context = patches_context(way < 2 ? 1 : 4);
        pair pair;
        worker worker;
        open_pair(&pair, context, WEFT_PROFILE_FAST, way % 2 == 0 ? 5000 : 900000, 7);
        worker_open(&worker, context, &pair);
        size_t failures = 0;
        for (size_t n = 1;; n++) {
            worker_restart(&worker);
            assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
            worker.engine.fail_at = n;
            weft_status status = weft_apply_commit(worker.apply);
            worker.engine.fail_at = 0;
            if (status == WEFT_OK) {
                assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
                break;
            }
            failures++;
            assert_int_equal(status, WEFT_IO_FAILED);
            assert_non_null(strstr(weft_context_error(context), "converter of tensor"));
            assert_true(at_old(&worker));
            assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
            assert_true(at_new(&worker));
            assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
            assert_true(at_old(&worker));
        }
        assert_true(failures > 3);
        worker_restart(&worker);
        assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
        worker.engine.fail_at = 2;
        worker.engine.fail_on = true;
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_IO_FAILED);
        assert_non_null(strstr(weft_context_error(context), "between two states"));
        worker.engine.fail_at = 0;
        assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
        assert_true(at_old(&worker));
        worker_close(&worker);
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* A fused live tensor, quantised as a whole. */
static void test_layout(void **state) {
    (void)state;
    weft_context *context = patches_context(4);
    for (size_t p = 0; p < 2; p++) {
        pair pair;
        static const tensor_shape parts[] = {{"q", WEFT_DTYPE_BF16, 200, 64},
                                             {"k", WEFT_DTYPE_BF16, 100, 64}};
        pair_open(&pair, context, parts, 2, WEIGHTS_TRAINED, 11);
        pair_change(&pair, CHANGE_MIXED, 20000, 12);
        weft_diff_options options = {
            .size = sizeof options, .profile = profiles[p], .bucket_bytes = BUCKET};
        pair_diff(&pair, &options);
        uint16_t *copy = malloc(300 * 64 * 2);
        uint8_t *expected = malloc(300 * 64 * 2);
        assert_non_null(copy);
        assert_non_null(expected);
        memcpy(copy, pair.olds[0], 200 * 64 * 2);
        memcpy(copy + 200 * 64, pair.olds[1], 100 * 64 * 2);
        memcpy(expected, pair.news[0], 200 * 64 * 2);
        memcpy(expected + 200 * 64 * 2, pair.news[1], 100 * 64 * 2);
        engine engine = {.thread = pthread_self()};
        quantised fused;
        quantised_open(&fused, &engine, 300, 64, copy);
        weft_converter converter = {sizeof converter, convert, &engine};
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = "qk",
                              .dtype = WEFT_DTYPE_BF16,
                              .rank = 2,
                              .shape = {300, 64},
                              .data = copy,
                              .writable = true,
                              .opaque = &fused,
                              .converter = &converter};
        const weft_slice slices[] = {{"q", -1, 0, 0}, {"k", -1, 0, 0}};
        weft_table *table = NULL;
        weft_layout *layout = NULL;
        weft_view *view = NULL;
        weft_apply *apply = NULL;
        assert_int_equal(weft_table_create(context, &table), WEFT_OK);
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
        assert_int_equal(weft_layout_create(context, &layout), WEFT_OK);
        assert_int_equal(weft_layout_concat(layout, "qk", 0, slices, 2), WEFT_OK);
        assert_int_equal(weft_view_create_layout(context, table, layout, pair.live.table, &view), WEFT_OK);
        weft_sums *sums = patches_sums(context, view);
        assert_int_equal(weft_apply_create(context, pair.patch, view, sums, &apply), WEFT_OK);
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
        assert_memory_equal(copy, expected, 300 * 64 * 2);
        assert_true(quantised_from(&fused, expected) && !engine.misused);
        weft_apply_destroy(apply);
        weft_sums_destroy(sums);
        weft_view_destroy(view);
        weft_layout_destroy(layout);
        weft_table_destroy(table);
        quantised_close(&fused);
        free(copy);
        free(expected);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* Filled as a group's rank is. */
static void test_fill(void **state) {
    (void)state;
    weft_context *context = patches_context(4);
    pair pair;
    worker worker;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 5000, 13);
    worker_open(&worker, context, &pair);
    assert_int_equal(weft_fill(context, worker.view, pair.next.table), WEFT_OK);
    assert_true(at_new(&worker));
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_refused(void **state) {
    (void)state;
    static uint16_t memory[64];
    static const weft_access access = {0};
    static const int64_t padded[2] = {8, 1};
    weft_converter converter = {sizeof converter, convert, NULL};
    weft_converter another = converter;
    weft_converter shorter = {0, convert, NULL};
    weft_converter silent = {sizeof converter, NULL, NULL};
    weft_context *context = patches_context(1);
    weft_table *table = NULL;
    weft_view *view = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    const weft_tensor good = {.size = sizeof good,
                              .name = "a",
                              .dtype = WEFT_DTYPE_BF16,
                              .rank = 2,
                              .shape = {4, 4},
                              .data = memory,
                              .converter = &converter};
    weft_tensor tensor = good;
    tensor.converter = &shorter;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    tensor.converter = &silent;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    tensor = good;
    tensor.access = &access;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    tensor = good;
    tensor.strides = padded;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    tensor = good;
    tensor.storage = WEFT_DTYPE_F32;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_table_add(table, &good), WEFT_OK);
    tensor = good;
    tensor.name = "b"; /* the same memory, and another converter that nobody would call */
    tensor.converter = &another;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(context, table, &view), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "converters"));
    weft_table_destroy(table);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_steps), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_layout), cmocka_unit_test(test_fill),  cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
