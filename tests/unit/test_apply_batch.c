/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that are reached in batches (weft_batch_access): random models, some tensors in plain memory and
 * some behind a device that does nothing before the end of a batch; how many batches there are and what
 * they move; failures of each function and of each allocation; and who else reads and writes such weights.
 */
#include "../../lib/patch/format/patch.h"
#include "../../lib/sync/group/fill.h"
#include "deferred.h"
#include "faults.h"
#include "patches.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 9, BUCKET = 32 * 1024 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

/* The memory of a pair's model, behind a device except where `plain` has a bit. */
typedef struct worker {
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    weft_apply *apply;
    weft_patch *patch;
    deferred device;
    deferred_tensor tensors[TENSORS];
} worker;

static weft_status worker_open(worker *worker, weft_context *context, const pair *pair, unsigned plain) {
    memset(worker, 0, sizeof *worker);
    deferred_open(&worker->device);
    weft_batch_access batch = deferred_batch(&worker->device);
    weft_status status = weft_table_create(context, &worker->table);
    for (size_t i = 0; i < pair->count && status == WEFT_OK; i++) {
        weft_tensor tensor = *weft_table_at(pair->live.table, i);
        if ((plain >> i & 1) == 0) {
            worker->tensors[i] = (deferred_tensor){&worker->device, tensor.data, (size_t)tensor.bytes,
                                                   weft_dtype_width(tensor.dtype)};
            tensor.access = &deferred_access;
            tensor.opaque = &worker->tensors[i];
        }
        status = weft_table_add(worker->table, &tensor);
    }
    if (status == WEFT_OK) {
        status = weft_table_set_batch_access(worker->table, &batch);
    }
    if (status == WEFT_OK) {
        status = weft_view_create(context, worker->table, &worker->view);
    }
    if (status == WEFT_OK) {
        status = weft_sums_compute(context, worker->view, &worker->sums);
    }
    weft_source source = bytes_source(&pair->file);
    if (status == WEFT_OK) {
        status = weft_patch_open(context, &source, &worker->patch);
    }
    if (status == WEFT_OK) {
        status = weft_apply_create(context, worker->patch, worker->view, worker->sums, &worker->apply);
    }
    return status;
}

static void worker_close(worker *worker) {
    weft_apply_destroy(worker->apply);
    weft_patch_close(worker->patch);
    weft_sums_destroy(worker->sums);
    weft_view_destroy(worker->view);
    weft_table_destroy(worker->table);
    deferred_close(&worker->device);
    assert_false(worker->device.misused);
}

static void worker_restart(worker *worker, weft_context *context) {
    weft_apply_destroy(worker->apply);
    worker->apply = NULL;
    assert_int_equal(weft_apply_create(context, worker->patch, worker->view, worker->sums, &worker->apply),
                     WEFT_OK);
    deferred_reset(&worker->device);
}

static weft_context *limited_context(unsigned threads, uint64_t stage_bytes) {
    weft_context_options options = {
        .size = sizeof options,
        .threads = threads,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = stage_bytes}};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

/* ---- random models ---- */

static const weft_dtype dtypes[] = {
    WEFT_DTYPE_BF16, WEFT_DTYPE_F16, WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_F64, WEFT_DTYPE_F4,
};

static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};

/* Tensors from nothing to some buckets, most of which do not end on a word. */
static void random_shapes(dice *dice, tensor_shape *shapes) {
    for (size_t i = 0; i < TENSORS; i++) {
        uint64_t rows = 1 + dice_below(dice, dice_below(dice, 2) == 0 ? 20 : 500);
        shapes[i] =
            (tensor_shape){names[i], dtypes[dice_below(dice, 6)], rows, 2 + 2 * dice_below(dice, 80)};
    }
}

static void random_pair(pair *pair, weft_context *context, tensor_shape *shapes, uint64_t seed) {
    static const unsigned densities[] = {100, 3000, 50000, 700000};
    dice dice = {seed};
    random_shapes(&dice, shapes);
    pair_open(pair, context, shapes, TENSORS, dice_below(&dice, 2) == 0 ? WEIGHTS_TRAINED : WEIGHTS_RANDOM,
              seed);
    for (size_t i = 0; i < TENSORS; i++) {
        weights_change(&dice, CHANGE_MIXED, weft_dtype_width(shapes[i].dtype), pair->news[i],
                       shape_units(&shapes[i]), densities[dice_below(&dice, 4)]);
        weights_change_one(&dice, CHANGE_ULP, weft_dtype_width(shapes[i].dtype), pair->news[i],
                           shape_units(&shapes[i]) - 1);
    }
    weft_diff_options options = {.size = sizeof options,
                                 .profile = profiles[dice_below(&dice, 2)],
                                 .bucket_bytes = dice_below(&dice, 2) == 0 ? BUCKET : 0};
    pair_diff(pair, &options);
}

static void commit_steps(worker *worker, const pair *pair) {
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        status = weft_apply_prepare(worker->apply);
        assert_true(status >= 0);
        size_t begins = worker->device.calls[DEFERRED_BEGIN];
        assert_int_equal(weft_apply_commit(worker->apply), WEFT_OK);
        assert_true(worker->device.calls[DEFERRED_BEGIN] <= begins + 1);
    }
    assert_true(pair_at_new(pair));
}

static void walk(worker *worker, const pair *pair, weft_context *context) {
    weft_status status = weft_apply_prepare(worker->apply);
    assert_true(pair_at_old(pair));
    assert_true(status == WEFT_OK || status == WEFT_MORE);
    assert_int_equal(weft_apply_rollback(worker->apply), WEFT_OK);
    commit_steps(worker, pair);
    assert_int_equal(weft_sums_audit(context, worker->sums, UINT64_MAX), WEFT_OK);
    if (status == WEFT_OK) {
        assert_int_equal(weft_apply_rollback(worker->apply), WEFT_OK);
        assert_true(pair_at_old(pair));
        assert_int_equal(weft_sums_audit(context, worker->sums, UINT64_MAX), WEFT_OK);
        worker_restart(worker, context);
        assert_int_equal(weft_apply_run(worker->apply), WEFT_OK);
        assert_true(pair_at_new(pair));
        assert_int_equal(weft_sums_audit(context, worker->sums, UINT64_MAX), WEFT_OK);
    }
}

static void test_random(void **state) {
    (void)state;
    static const uint64_t limits[] = {0, 0, 400000, 100000};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        if (!test_stride_takes()) {
            continue;
        }
        weft_context *context = limited_context(seed % 2 == 0 ? 1 : 4, limits[seed / 2 % 4]);
        tensor_shape shapes[TENSORS];
        pair pair;
        worker worker;
        random_pair(&pair, context, shapes, seed);
        assert_int_equal(worker_open(&worker, context, &pair, seed % 3 == 0 ? (unsigned)seed * 37 : 0),
                         WEFT_OK);
        walk(&worker, &pair, context);
        worker_close(&worker);
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* ---- what moves ---- */

static const tensor_shape shapes[] = {
    {"a", WEFT_DTYPE_BF16, 600, 200}, {"b", WEFT_DTYPE_BF16, 200, 200}, {"c", WEFT_DTYPE_F32, 333, 0},
    {"d", WEFT_DTYPE_U8, 1001, 0},    {"e", WEFT_DTYPE_F64, 100, 31},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void open_pair(pair *pair, weft_context *context, weft_profile profile, unsigned per_million) {
    pair_open(pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 5);
    pair_change(pair, CHANGE_MIXED, per_million, 6);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    pair_diff(pair, &options);
}

/* `fast` moves the words that change and nothing else, in one batch; a commit is one batch, and so is a
 * rollback. */
static void test_counts(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        weft_context *context = patches_context(threads);
        pair pair;
        worker worker;
        open_pair(&pair, context, WEFT_PROFILE_FAST, 3000);
        assert_true(pair.stats.buckets > 5);
        assert_int_equal(worker_open(&worker, context, &pair, 0), WEFT_OK);
        deferred *device = &worker.device;
        deferred_reset(device);
        assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
        assert_int_equal(device->calls[DEFERRED_BEGIN], 1);
        assert_int_equal(device->calls[DEFERRED_END], 1);
        assert_int_equal(device->read_bytes, 0);
        assert_int_equal(device->calls[DEFERRED_SCATTER], 0);
        assert_true(device->gathered_bytes > 0 && device->gathered_bytes <= 16 * pair.stats.changed);
        deferred_reset(device);
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
        assert_int_equal(device->calls[DEFERRED_BEGIN], 1);
        assert_int_equal(device->calls[DEFERRED_GATHER], 0);
        assert_int_equal(device->index_bytes, 8 * pair.stats.changed);
        deferred_reset(device);
        assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
        assert_int_equal(device->calls[DEFERRED_BEGIN], 1);
        assert_int_equal(device->index_bytes, 8 * pair.stats.changed);
        assert_true(pair_at_old(&pair));
        worker_close(&worker);
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* `small` reads the buckets whole whose changes go with the exponent, as in "a" here, and of others the
 * words that change. */
static void test_small_reads(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    worker worker;
    pair_open(&pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 5);
    dice dice = {7};
    for (size_t unit = 0; unit < shape_units(&shapes[0]); unit++) {
        uint16_t weight;
        memcpy(&weight, pair.olds[0] + 2 * unit, sizeof weight);
        if ((weight >> 7 & 0xff) < 119 && dice_below(&dice, 8) == 0) {
            weights_change_one(&dice, CHANGE_ULP, 2, pair.news[0], unit);
        }
    }
    weights_change(&dice, CHANGE_RANDOM, 4, pair.news[2], shape_units(&shapes[2]), 50000);
    weights_change(&dice, CHANGE_RANDOM, 8, pair.news[4], shape_units(&shapes[4]), 50000);
    weft_diff_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_SMALL, .bucket_bytes = 2 * BUCKET};
    pair_diff(&pair, &options);
    assert_int_equal(worker_open(&worker, context, &pair, 0), WEFT_OK);
    deferred_reset(&worker.device);
    assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
    assert_int_equal(worker.device.calls[DEFERRED_BEGIN], 1);
    assert_int_equal(worker.device.read_bytes, weft_table_at(worker.table, 0)->bytes);
    assert_true(worker.device.gathered_bytes > 0 && worker.device.gathered_bytes < 16000);
    deferred_reset(&worker.device);
    assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
    assert_int_equal(worker.device.calls[DEFERRED_BEGIN], 1);
    assert_true(pair_at_new(&pair));
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* Words that wait, and staged changes, stay below the limit together: what does not fit beside them is
 * gathered in a batch of its own. */
static void test_limit(void **state) {
    (void)state;
    enum { LIMIT = 3000000 };
    faults faults = {0};
    weft_context_options options = {.size = sizeof options,
                                    .allocator = faults_allocator(&faults),
                                    .threads = 1,
                                    .limits =
                                        &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = LIMIT}};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    weft_context *plain = patches_context(1);
    pair pair;
    worker worker;
    static const tensor_shape large[] = {{"a", WEFT_DTYPE_BF16, 2000, 1000}};
    pair_open(&pair, plain, large, 1, WEIGHTS_TRAINED, 5);
    pair_change(&pair, CHANGE_MIXED, 40000, 6);
    weft_diff_options diff = {.size = sizeof diff, .profile = WEFT_PROFILE_FAST, .bucket_bytes = BUCKET};
    pair_diff(&pair, &diff);
    assert_int_equal(worker_open(&worker, context, &pair, 0), WEFT_OK);
    deferred_reset(&worker.device);
    faults_reset(&faults, 0);
    size_t before = faults_live_bytes(&faults);
    assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
    assert_true(worker.device.calls[DEFERRED_BEGIN] > 1 && worker.device.calls[DEFERRED_BEGIN] < 20);
    assert_true(faults_peak_bytes(&faults) - before < LIMIT + LIMIT / 4);
    deferred_reset(&worker.device);
    assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
    assert_int_equal(worker.device.calls[DEFERRED_BEGIN], 1);
    assert_true(pair_at_new(&pair));
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(plain);
    weft_context_destroy(context);
}

/* A bucket that reaches into a device's tensor and changes nothing there: no word is missing, and it is
 * proven all the same before a step ends. */
static void test_no_words(void **state) {
    (void)state;
    static const tensor_shape few[] = {
        {"a", WEFT_DTYPE_BF16, 8, 8}, {"b", WEFT_DTYPE_BF16, 60, 200}, {"c", WEFT_DTYPE_BF16, 60, 200}};
    weft_context *context = limited_context(1, 20000);
    pair pair;
    worker worker;
    dice dice = {8};
    pair_open(&pair, context, few, 3, WEIGHTS_TRAINED, 5);
    for (size_t i = 1; i < 3; i++) {
        weights_change(&dice, CHANGE_MIXED, 2, pair.news[i], shape_units(&few[i]), 30000);
    }
    weft_diff_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_FAST, .bucket_bytes = BUCKET};
    pair_diff(&pair, &options);
    weft_bucket_info info = {.size = sizeof info};
    assert_int_equal(weft_patch_bucket(context, pair.patch, 0, &info), WEFT_OK);
    assert_true(info.first_tensor == 0 && info.last_tensor == 1 && info.coding == WEFT_CODING_FAST);
    assert_int_equal(worker_open(&worker, context, &pair, 6), WEFT_OK);
    size_t steps = 0;
    weft_status status = WEFT_MORE;
    for (; status == WEFT_MORE; steps++) {
        status = weft_apply_prepare(worker.apply);
        assert_true(status >= 0);
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
        assert_int_equal(weft_sums_audit(context, worker.sums, UINT64_MAX), WEFT_OK);
    }
    assert_true(steps > 1 && pair_at_new(&pair));
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- failures ---- */

static void fail_prepare(worker *worker, const pair *pair, weft_context *context, deferred_call call) {
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        worker_restart(worker, context);
        worker->device.fail_at[call] = n;
        weft_status status = weft_apply_prepare(worker->apply);
        worker->device.fail_at[call] = 0;
        assert_true(pair_at_old(pair));
        assert_int_equal(worker->device.open, false);
        if (status == WEFT_OK) {
            break;
        }
        failures++;
        assert_int_equal(status, WEFT_IO_FAILED);
        assert_non_null(strstr(weft_context_error(context), "of a batch"));
        assert_int_equal(weft_apply_prepare(worker->apply), WEFT_OK);
    }
    assert_true(failures > 0);
}

static void fail_commit(worker *worker, const pair *pair, weft_context *context, deferred_call call,
                        bool rollback) {
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        worker_restart(worker, context);
        assert_int_equal(weft_apply_prepare(worker->apply), WEFT_OK);
        if (rollback) {
            assert_int_equal(weft_apply_commit(worker->apply), WEFT_OK);
        }
        deferred_reset(&worker->device);
        worker->device.fail_at[call] = n;
        weft_status status =
            rollback ? weft_apply_rollback(worker->apply) : weft_apply_commit(worker->apply);
        worker->device.fail_at[call] = 0;
        assert_int_equal(worker->device.open, false);
        if (status == WEFT_OK) {
            assert_true(rollback ? pair_at_old(pair) : pair_at_new(pair));
            assert_int_equal(weft_apply_rollback(worker->apply), WEFT_OK);
            break;
        }
        failures++;
        assert_int_equal(status, WEFT_IO_FAILED);
        assert_non_null(strstr(weft_context_error(context), "of a batch"));
        if (!rollback) {
            /* the old values are back, and what is prepared still is */
            assert_true(pair_at_old(pair));
            assert_int_equal(weft_sums_audit(context, worker->sums, UINT64_MAX), WEFT_OK);
            assert_int_equal(weft_apply_commit(worker->apply), WEFT_OK);
            assert_true(pair_at_new(pair));
        }
        assert_int_equal(weft_apply_rollback(worker->apply), WEFT_OK);
        assert_true(pair_at_old(pair));
        assert_int_equal(weft_sums_audit(context, worker->sums, UINT64_MAX), WEFT_OK);
    }
    assert_true(failures > 0);
}

/* A device that is gone for a while. */
static void lose_device(worker *worker, const pair *pair, weft_context *context, deferred_call call) {
    worker_restart(worker, context);
    assert_int_equal(weft_apply_prepare(worker->apply), WEFT_OK);
    deferred_reset(&worker->device);
    worker->device.fail_at[call] = 1;
    worker->device.fail_on = true;
    assert_int_equal(weft_apply_commit(worker->apply), WEFT_IO_FAILED);
    assert_non_null(strstr(weft_context_error(context), "between two states"));
    assert_int_equal(weft_apply_commit(worker->apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_rollback(worker->apply), WEFT_IO_FAILED);
    worker->device.fail_at[call] = 0;
    worker->device.fail_on = false;
    assert_int_equal(weft_apply_rollback(worker->apply), WEFT_OK);
    assert_true(pair_at_old(pair));
    assert_int_equal(weft_sums_audit(context, worker->sums, UINT64_MAX), WEFT_OK);
}

static void test_failures(void **state) {
    (void)state;
    static const deferred_call reading[] = {DEFERRED_BEGIN, DEFERRED_GATHER, DEFERRED_END};
    static const deferred_call writing[] = {DEFERRED_BEGIN, DEFERRED_SCATTER, DEFERRED_END};
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        for (size_t p = 0; p < 2; p++) {
            weft_context *context = patches_context(threads);
            pair pair;
            worker worker;
            open_pair(&pair, context, profiles[p],
                      p == 0 ? 5000 : 800000); /* the second is coded densely */
            assert_int_equal(worker_open(&worker, context, &pair, 2), WEFT_OK);
            for (size_t i = 0; i < 3; i++) {
                if (p == 0) {
                    fail_prepare(&worker, &pair, context, reading[i]);
                }
                fail_commit(&worker, &pair, context, writing[i], false);
                fail_commit(&worker, &pair, context, writing[i], true);
                lose_device(&worker, &pair, context, writing[i]);
            }
            worker_close(&worker);
            pair_close(&pair);
            weft_context_destroy(context);
        }
    }
}

typedef struct caller {
    weft_apply *apply;
    size_t calls;
    bool wrong;
} caller;

static void call_back_in(void *opaque) {
    caller *caller = opaque;
    caller->calls++;
    caller->wrong = caller->wrong || weft_apply_rollback(caller->apply) != WEFT_BUSY ||
                    weft_apply_prepare(caller->apply) != WEFT_BUSY;
}

/* A device that calls the apply which waits for it, and one that returns numbers that mean nothing. */
static void test_strangers(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        weft_context *context = patches_context(threads);
        pair pair;
        worker worker;
        open_pair(&pair, context, WEFT_PROFILE_FAST, 5000);
        assert_int_equal(worker_open(&worker, context, &pair, 0), WEFT_OK);
        caller caller = {.apply = worker.apply};
        worker.device.inside = call_back_in;
        worker.device.inside_opaque = &caller;
        assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
        assert_true(caller.calls > 4 && !caller.wrong && pair_at_new(&pair));
        assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
        assert_true(!caller.wrong && pair_at_old(&pair));
        worker.device.inside = NULL;
        for (int call = 0; call < DEFERRED_CALLS; call++) {
            worker_restart(&worker, context);
            worker.device.failure = call % 2 == 0 ? WEFT_MORE : (weft_status)-7777;
            worker.device.fail_at[call] = 1;
            weft_status status = weft_apply_prepare(worker.apply);
            status = status == WEFT_OK ? weft_apply_commit(worker.apply) : status;
            worker.device.fail_at[call] = 0;
            assert_int_equal(status, WEFT_CALLBACK_FAILED);
            assert_true(pair_at_old(&pair));
        }
        worker_close(&worker);
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* Weights that are not those that the patch was made for are found out, and nothing is written. */
static void test_drift(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    worker worker;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 5000);
    assert_int_equal(worker_open(&worker, context, &pair, 0), WEFT_OK);
    size_t unit = 0;
    while (memcmp(pair.olds[1] + 2 * unit, pair.news[1] + 2 * unit, 2) == 0) {
        unit++;
    }
    pair.memory[1][2 * unit] ^= 1;
    assert_int_equal(weft_apply_prepare(worker.apply), WEFT_DIGEST_MISMATCH);
    pair.memory[1][2 * unit] ^= 1;
    assert_true(pair_at_old(&pair));
    assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
    assert_true(pair_at_new(&pair));
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_allocations(void **state) {
    (void)state;
    for (size_t way = 0; way < 4; way++) {
        weft_context *plain = patches_context(1);
        pair pair;
        open_pair(&pair, plain, profiles[way % 2], 20000);
        faults faults = {0};
        for (size_t n = 1;; n++) {
            worker worker = {0};
            weft_context *context = NULL;
            faults_reset(&faults, n);
            weft_context_options options = {
                .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
            weft_status status = weft_context_create(&options, &context);
            if (status == WEFT_OK) {
                status = worker_open(&worker, context, &pair, 0);
                if (status == WEFT_OK) {
                    status = way < 2 ? weft_apply_prepare(worker.apply) : weft_apply_run(worker.apply);
                }
                if (status == WEFT_OK && way < 2) {
                    size_t calls = faults_calls(&faults);
                    assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
                    assert_int_equal(faults_calls(&faults), calls); /* a commit takes no memory */
                }
                worker_close(&worker);
            }
            weft_context_destroy(context);
            assert_int_equal(faults_live_blocks(&faults), 0);
            assert_true(status == WEFT_OK || status == WEFT_NO_MEMORY);
            assert_true(status == WEFT_OK ? pair_at_new(&pair) : way >= 2 || pair_at_old(&pair));
            pair_reset(&pair);
            if (!faults_fired(&faults)) {
                break;
            }
        }
        pair_close(&pair);
        weft_context_destroy(plain);
    }
}

/* ---- who else ---- */

typedef struct heard {
    weft_context *context;
    const weft_patch *patch;
    atomic_size_t changed;
    atomic_bool wrong;
} heard;

static weft_status hear(void *opaque, const weft_frame *frame, const weft_changes *changes) {
    heard *heard = opaque;
    weft_frame again;
    weft_status status =
        weft_frame_read(heard->context, &heard->patch->header.roster, frame->data, frame->size, &again);
    if (status != WEFT_OK || again.changed != frame->changed || again.payload != frame->payload) {
        heard->wrong = true;
    }
    for (size_t i = 0; i < changes->count; i++) {
        if ((i > 0 && changes->positions[i] <= changes->positions[i - 1]) ||
            weft_unit_load(changes->olds, i, changes->width) ==
                weft_unit_load(changes->news, i, changes->width)) {
            heard->wrong = true;
        }
    }
    heard->changed += changes->count;
    weft_bucket_close(&again.bucket, heard->context);
    return status;
}

/* Who listens to an apply hears of whole frames and proven changes, also of buckets that waited. */
static void test_listener(void **state) {
    (void)state;
    weft_context *context = patches_context(4);
    pair pair;
    worker worker;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 5000);
    assert_int_equal(worker_open(&worker, context, &pair, 0), WEFT_OK);
    heard heard = {.context = context, .patch = worker.patch};
    worker.patch->listener = (weft_patch_listener){hear, &heard};
    assert_int_equal(weft_apply_prepare(worker.apply), WEFT_OK);
    assert_false(heard.wrong);
    assert_int_equal(heard.changed, pair.stats.changed);
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* The worker's weights as the base and as the next state of a diff, and filled as a group's rank is. */
static void test_diff_and_fill(void **state) {
    (void)state;
    weft_context *context = patches_context(4);
    pair pair;
    worker worker;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 5000);
    assert_int_equal(worker_open(&worker, context, &pair, 4), WEFT_OK);
    bytes patch = {0};
    weft_sink sink = bytes_sink(&patch);
    weft_diff_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_FAST, .bucket_bytes = BUCKET};
    assert_int_equal(weft_diff(context, worker.view, pair.next.view, &options, &sink, NULL), WEFT_OK);
    assert_int_equal(patch.size, pair.file.size);
    assert_memory_equal(patch.data, pair.file.data, patch.size);
    assert_int_equal(weft_fill(context, worker.view, pair.next.table), WEFT_OK);
    assert_true(pair_at_new(&pair));
    worker.device.fail_at[DEFERRED_END] = worker.device.calls[DEFERRED_END] + 1;
    assert_int_equal(weft_fill(context, worker.view, pair.next.table), WEFT_IO_FAILED);
    bytes_clear(&patch);
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_arguments(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    weft_table *table = NULL;
    deferred device;
    deferred_open(&device);
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    weft_batch_access batch = deferred_batch(&device);
    assert_int_equal(weft_table_set_batch_access(table, &batch), WEFT_OK);
    batch.size = 0;
    assert_int_equal(weft_table_set_batch_access(table, &batch), WEFT_INVALID_ARGUMENT);
    for (int missing = 0; missing < 4; missing++) {
        batch = deferred_batch(&device);
        batch.begin = missing == 0 ? NULL : batch.begin;
        batch.gather = missing == 1 ? NULL : batch.gather;
        batch.scatter = missing == 2 ? NULL : batch.scatter;
        batch.end = missing == 3 ? NULL : batch.end;
        assert_int_equal(weft_table_set_batch_access(table, &batch), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "all four"));
    }
    assert_int_equal(weft_table_set_batch_access(table, NULL), WEFT_OK);
    weft_table_destroy(table);
    deferred_close(&device);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_small_reads),   cmocka_unit_test(test_no_words),
        cmocka_unit_test(test_limit),         cmocka_unit_test(test_failures),
        cmocka_unit_test(test_drift),         cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_allocations),   cmocka_unit_test(test_listener),
        cmocka_unit_test(test_diff_and_fill), cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
