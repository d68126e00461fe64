/* SPDX-License-Identifier: Apache-2.0
 *
 * Strangers' callbacks: weights behind functions, and patches that are read and written by functions. Each
 * call fails in turn, with every kind of number, and leaves garbage behind. What was called says so; live
 * weights are at the old state, or can be brought back to it, or an audit finds that they are not; files
 * and outputs are as they were.
 */
#include "../support/described.h"
#include "patches.h"
#include "scratch.h"
#include "strangers.h"
#include "stride.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BUCKET = 32 * 1024, SHAPES = 5, DENSE = 3 };

/* Halves of all tensors are whole words. */
static const tensor_shape shapes[SHAPES] = {
    {"embed", WEFT_DTYPE_BF16, 400, 64}, {"layer.up", WEFT_DTYPE_BF16, 40, 64},
    {"norm", WEFT_DTYPE_F32, 64, 0},     {"scale", WEFT_DTYPE_U8, 320, 0},
    {"wide", WEFT_DTYPE_F64, 30, 8},
};

static const weft_cut halves = {"*", 0, 2};
static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

static size_t bytes_of(size_t index) {
    return shape_units(&shapes[index]) * weft_dtype_width(shapes[index].dtype);
}

/* Changes of several kinds: sparse in most tensors, everything in one, so that it is coded dense. */
static void open_pair(pair *pair, weft_context *context, weft_profile profile) {
    pair_open(pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 80);
    pair_change(pair, CHANGE_MIXED, 20000, 81);
    dice dice = {82};
    weights_change(&dice, CHANGE_RANDOM, 1, pair->news[DENSE], shape_units(&shapes[DENSE]), 1000000);
    const weft_diff_options options = {.size = sizeof options,
                                       .profile = profile,
                                       .bucket_bytes = BUCKET,
                                       .cuts = &halves,
                                       .cut_count = 1};
    pair_diff(pair, &options);
    bool dense = false;
    for (size_t i = 0; i < patch_info(pair->patch).buckets; i++) {
        weft_bucket_info info = {.size = sizeof info};
        assert_int_equal(weft_patch_bucket(context, pair->patch, i, &info), WEFT_OK);
        dense = dense || info.coding == WEFT_CODING_DIFFERENCE || info.coding == WEFT_CODING_VALUES;
    }
    assert_true(dense);
}

/* ---- live weights ---- */

typedef enum live_way { WAY_COMMIT, WAY_RUN, WAY_WAYS } live_way;

typedef struct live_case {
    weft_profile profile;
    bool rank; /* holds the second half of each tensor, as one of two that are tensor-parallel */
    live_way way;
    unsigned threads;
    uint64_t stage_bytes;
} live_case;

/* A worker whose weights lie behind functions. */
typedef struct worker {
    const pair *pair;
    bool rank;
    weft_context *context;
    weft_table *table;
    weft_layout *layout;
    weft_view *view;
    weft_sums *sums;
    weft_patch *patch;
    weft_apply *apply;
    uint8_t *memory[SHAPES];
    far_tensor far[SHAPES];
    far_patch source;
    stranger stranger;
} worker;

static size_t held_bytes(const worker *worker, size_t index) {
    return worker->rank ? bytes_of(index) / 2 : bytes_of(index);
}

/* What the worker should hold of a state of the pair. */
static const uint8_t *held_of(const worker *worker, uint8_t *const *state, size_t index) {
    return state[index] + (worker->rank ? bytes_of(index) / 2 : 0);
}

static bool holds(const worker *worker, uint8_t *const *state) {
    bool same = true;
    for (size_t i = 0; i < SHAPES; i++) {
        same = same && memcmp(worker->memory[i], held_of(worker, state, i), held_bytes(worker, i)) == 0;
    }
    return same;
}

static bool at_old(const worker *worker) {
    return holds(worker, worker->pair->olds);
}

static bool at_new(const worker *worker) {
    return holds(worker, worker->pair->news);
}

static void add_tensor(worker *worker, size_t index) {
    weft_tensor tensor = *weft_table_at(worker->pair->live.table, index);
    worker->memory[index] = malloc(held_bytes(worker, index));
    assert_non_null(worker->memory[index]);
    memcpy(worker->memory[index], held_of(worker, worker->pair->olds, index), held_bytes(worker, index));
    tensor.data = worker->memory[index];
    if (worker->rank) {
        const weft_slice slice = {tensor.name, 0, tensor.shape[0] / 2, tensor.shape[0] / 2};
        tensor.bytes /= 2;
        tensor.shape[0] /= 2;
        assert_int_equal(weft_layout_concat(worker->layout, tensor.name, 0, &slice, 1), WEFT_OK);
    }
    far_tensor_take(&worker->far[index], &tensor, &worker->stranger);
    assert_int_equal(weft_table_add(worker->table, &tensor), WEFT_OK);
}

static void worker_open(worker *worker, const pair *pair, const live_case *c) {
    memset(worker, 0, sizeof *worker);
    worker->pair = pair;
    worker->rank = c->rank;
    const weft_context_options options = {
        .size = sizeof options,
        .threads = c->threads,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = c->stage_bytes}};
    assert_int_equal(weft_context_create(&options, &worker->context), WEFT_OK);
    assert_int_equal(weft_table_create(worker->context, &worker->table), WEFT_OK);
    assert_int_equal(weft_layout_create(worker->context, &worker->layout), WEFT_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        add_tensor(worker, i);
    }
    assert_int_equal(worker->rank ? weft_view_create_layout(worker->context, worker->table, worker->layout,
                                                            pair->live.table, &worker->view)
                                  : weft_view_create(worker->context, worker->table, &worker->view),
                     WEFT_OK);
    worker->source = (far_patch){&pair->file, &worker->stranger};
}

static void worker_close(worker *worker) {
    weft_apply_destroy(worker->apply);
    weft_patch_close(worker->patch);
    weft_sums_destroy(worker->sums);
    weft_view_destroy(worker->view);
    weft_layout_destroy(worker->layout);
    weft_table_destroy(worker->table);
    weft_context_destroy(worker->context);
    for (size_t i = 0; i < SHAPES; i++) {
        free(worker->memory[i]);
    }
}

static weft_status begin(worker *worker) {
    weft_status status = weft_sums_compute(worker->context, worker->view, &worker->sums);
    weft_source source = far_patch_source(&worker->source);
    if (status == WEFT_OK) {
        status = weft_patch_open(worker->context, &source, &worker->patch);
    }
    if (status == WEFT_OK) {
        status =
            weft_apply_create(worker->context, worker->patch, worker->view, worker->sums, &worker->apply);
    }
    return status;
}

/* How far it has come. */
typedef struct progress {
    bool committing;
    bool committed; /* a portion, at least */
} progress;

static weft_status commit_all(worker *worker, progress *progress) {
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        progress->committing = false;
        status = weft_apply_prepare(worker->apply);
        if (status == WEFT_OK || status == WEFT_MORE) {
            progress->committing = true;
            weft_status done = weft_apply_commit(worker->apply);
            progress->committed = progress->committed || done == WEFT_OK;
            status = done != WEFT_OK ? done : status;
        }
    }
    return status;
}

/* The text names the number, where it is not one of ours. */
static void check_text(const worker *worker, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    assert_true(weft_context_error(worker->context)[0] != '\0');
    if (stranger_meaning(number) != number && !worker->stranger.fail_on) {
        assert_non_null(strstr(weft_context_error(worker->context), text));
    }
}

/* The sums that a failure leaves behind are those of the old state, or tell that the weights are not. */
static void check_sums(worker *worker) {
    if (worker->sums != NULL) {
        weft_status audit = weft_sums_audit(worker->context, worker->sums, UINT64_MAX);
        assert_int_equal(audit, at_old(worker) ? WEFT_OK : WEFT_DIGEST_MISMATCH);
    }
}

/* All functions work again: what has failed can be taken back, or gone on with. */
static void recover(worker *worker, const progress *progress) {
    if (worker->apply == NULL) {
        return;
    }
    weft_status status = weft_apply_rollback(worker->apply);
    if (!progress->committed) {
        assert_int_equal(status, WEFT_OK);
        assert_true(at_old(worker));
        check_sums(worker);
    } else {
        assert_int_equal(status, WEFT_UNSUPPORTED); /* what earlier portions have written stays */
    }
    struct progress again = {false, false};
    assert_int_equal(commit_all(worker, &again), WEFT_OK);
    assert_true(at_new(worker));
    assert_int_equal(weft_sums_audit(worker->context, worker->sums, UINT64_MAX), WEFT_OK);
}

/* True if there was such a call. */
static bool fail_live_at(const pair *pair, const live_case *c, int number, bool fail_on, size_t n) {
    worker worker;
    progress progress = {false, false};
    worker_open(&worker, pair, c);
    worker.stranger.fail_on = fail_on;
    stranger_reset(&worker.stranger, n, number);
    weft_status status = begin(&worker);
    if (status == WEFT_OK) {
        status = c->way == WAY_RUN ? weft_apply_run(worker.apply) : commit_all(&worker, &progress);
    }
    bool fired = stranger_fired(&worker.stranger);
    stranger_reset(&worker.stranger, 0, WEFT_OK);
    if (!fired) {
        assert_int_equal(status, WEFT_OK);
        assert_true(at_new(&worker));
    } else {
        assert_int_equal(status, stranger_meaning(number));
        check_text(&worker, number);
        if (c->way == WAY_RUN) {
            check_sums(&worker);
        } else {
            /* only a scatter that cannot be undone leaves the weights anywhere else */
            assert_true(at_old(&worker) || progress.committed || (fail_on && progress.committing));
            recover(&worker, &progress);
        }
    }
    worker_close(&worker);
    return fired;
}

static void fail_live(const live_case *c) {
    weft_context *context = patches_context(1);
    pair pair;
    open_pair(&pair, context, c->profile);
    size_t failures = 0;
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        for (int fail_on = 0; fail_on < 2; fail_on++) {
            for (size_t n = test_stride_first();
                 fail_live_at(&pair, c, stranger_numbers[i], fail_on != 0, n); n += test_stride()) {
                failures++;
            }
        }
    }
    assert_true(test_stride() > 1 || failures > 100);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_live_weights(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        for (int rank = 0; rank < 2; rank++) {
            for (int way = 0; way < WAY_WAYS; way++) {
                fail_live(&(live_case){profiles[p], rank != 0, (live_way)way, 1, 0});
                fail_live(&(live_case){profiles[p], rank != 0, (live_way)way, 3, 0});
            }
            fail_live(&(live_case){profiles[p], rank != 0, WAY_COMMIT, 1, 100000});
        }
    }
}

/* A rollback after a commit whose scatter fails says so, and can be tried again. */
static bool fail_rollback_at(const pair *pair, const live_case *c, int number, size_t n) {
    worker worker;
    progress progress = {false, false};
    worker_open(&worker, pair, c);
    assert_int_equal(begin(&worker), WEFT_OK);
    assert_int_equal(commit_all(&worker, &progress), WEFT_OK);
    stranger_reset(&worker.stranger, n, number);
    weft_status status = weft_apply_rollback(worker.apply);
    bool fired = stranger_fired(&worker.stranger);
    stranger_reset(&worker.stranger, 0, WEFT_OK);
    assert_int_equal(status, fired ? stranger_meaning(number) : WEFT_OK);
    if (fired) {
        check_text(&worker, number);
        assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
    }
    assert_true(at_old(&worker));
    check_sums(&worker);
    worker_close(&worker);
    return fired;
}

static void test_rollback(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        const live_case c = {profiles[p], p == 1, WAY_COMMIT, 1, 0};
        weft_context *context = patches_context(1);
        pair pair;
        open_pair(&pair, context, profiles[p]);
        for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
            for (size_t n = 1; fail_rollback_at(&pair, &c, stranger_numbers[i], n); n++) {
            }
        }
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* A read that gives garbage and says that all is well: prepare finds out, or what it has taken to go back
 * to is what lay there. */
static bool lie_at(const pair *pair, const live_case *c, size_t n) {
    worker worker;
    worker_open(&worker, pair, c);
    assert_int_equal(begin(&worker), WEFT_OK);
    stranger_reset(&worker.stranger, n, WEFT_OK);
    weft_status status = weft_apply_prepare(worker.apply);
    bool fired = stranger_fired(&worker.stranger);
    stranger_reset(&worker.stranger, 0, WEFT_OK);
    assert_true(at_old(&worker));
    if (status == WEFT_OK) {
        assert_int_equal(weft_apply_commit(worker.apply), WEFT_OK);
        assert_true(at_new(&worker));
        assert_int_equal(weft_apply_rollback(worker.apply), WEFT_OK);
        assert_true(at_old(&worker));
    }
    check_sums(&worker);
    worker_close(&worker);
    return fired;
}

static void test_lies(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        for (int rank = 0; rank < 2; rank++) {
            const live_case c = {profiles[p], rank != 0, WAY_COMMIT, 1, 0};
            weft_context *context = patches_context(1);
            pair pair;
            open_pair(&pair, context, profiles[p]);
            size_t lies = 1;
            while (lie_at(&pair, &c, lies)) {
                lies++;
            }
            assert_true(lies > 3);
            pair_close(&pair);
            weft_context_destroy(context);
        }
    }
}

/* ---- diffs and merges ---- */

/* A view of a model whose tensors lie behind functions. */
typedef struct far_model {
    weft_table *table;
    weft_view *view;
    far_tensor far[SHAPES];
} far_model;

static void far_model_open(far_model *far, weft_context *context, const model *model, stranger *stranger) {
    assert_int_equal(weft_table_create(context, &far->table), WEFT_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        weft_tensor tensor = *weft_table_at(model->table, i);
        far_tensor_take(&far->far[i], &tensor, stranger);
        assert_int_equal(weft_table_add(far->table, &tensor), WEFT_OK);
    }
    assert_int_equal(weft_view_create(context, far->table, &far->view), WEFT_OK);
}

static void far_model_close(far_model *far) {
    weft_view_destroy(far->view);
    weft_table_destroy(far->table);
}

typedef struct diff_case {
    weft_profile profile;
    bool follows; /* with a trail: the base is plain memory then */
    bool inverse;
    unsigned threads;
} diff_case;

static bool fail_diff_at(pair *pair, const diff_case *c, int number, size_t n) {
    weft_context *context = patches_context(c->threads);
    stranger stranger = {0};
    far_model base;
    far_model next;
    far_model_open(&base, context, &pair->live, &stranger);
    far_model_open(&next, context, &pair->next, &stranger);
    far_sink forward = {.stranger = &stranger};
    far_sink inverse = {.stranger = &stranger};
    weft_sink sink = far_sink_over(&forward);
    weft_sink back = far_sink_over(&inverse);
    weft_trail *trail = NULL;
    weft_sums *sums = NULL;
    const weft_diff_options options = {
        .size = sizeof options,
        .profile = c->profile,
        .bucket_bytes = BUCKET,
        .cuts = &halves,
        .cut_count = 1,
        .new_sums_out = &sums,
        .inverse = c->inverse ? &back : NULL,
        .trail = c->follows ? &trail : NULL,
    };
    weft_diff_stats stats = {.size = sizeof stats, .changed = 12345};
    stranger_reset(&stranger, n, number);
    weft_status status =
        weft_diff(context, c->follows ? pair->live.view : base.view, next.view, &options, &sink, &stats);
    bool fired = stranger_fired(&stranger);
    if (fired) {
        assert_int_equal(status, stranger_meaning(number));
        assert_true(weft_context_error(context)[0] != '\0');
        assert_null(sums);
        assert_int_equal(stats.changed, 12345);
        assert_true(pair_at_old(pair));
    } else {
        assert_int_equal(status, WEFT_OK);
        assert_int_equal(forward.file.size, pair->file.size);
        assert_memory_equal(forward.file.data, pair->file.data, pair->file.size);
        assert_true(c->follows ? pair_at_new(pair) : pair_at_old(pair));
    }
    pair_reset(pair);
    weft_sums_destroy(sums);
    weft_trail_destroy(trail);
    bytes_clear(&forward.file);
    bytes_clear(&inverse.file);
    far_model_close(&base);
    far_model_close(&next);
    weft_context_destroy(context);
    return fired;
}

static void test_diff(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        weft_context *context = patches_context(1);
        pair pair;
        open_pair(&pair, context, profiles[p]);
        const diff_case cases[] = {{profiles[p], false, true, 1},
                                   {profiles[p], true, false, 1},
                                   {profiles[p], false, false, 3},
                                   {profiles[p], true, false, 3}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            for (size_t k = 0; k < STRANGER_NUMBERS; k++) {
                for (size_t n = test_stride_first(); fail_diff_at(&pair, &cases[i], stranger_numbers[k], n);
                     n += test_stride()) {
                }
            }
        }
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* Patches from the pair's first state to its second, and from there to a third. */
typedef struct chain {
    weft_context *context;
    pair pair;
    pair after;
    bytes merged;
} chain;

static weft_merge_options merge_options(weft_profile profile, const weft_view *base) {
    return (weft_merge_options){.size = sizeof(weft_merge_options), .profile = profile, .base = base};
}

static void chain_open(chain *chain, weft_profile profile) {
    chain->context = patches_context(1);
    chain->merged = (bytes){0};
    open_pair(&chain->pair, chain->context, profile);
    pair_open(&chain->after, chain->context, shapes, SHAPES, WEIGHTS_TRAINED, 80);
    for (size_t i = 0; i < SHAPES; i++) {
        memcpy(chain->after.memory[i], chain->pair.news[i], bytes_of(i));
        memcpy(chain->after.olds[i], chain->pair.news[i], bytes_of(i));
        memcpy(chain->after.news[i], chain->pair.news[i], bytes_of(i));
    }
    pair_change(&chain->after, CHANGE_MIXED, 20000, 83);
    const weft_diff_options options = {.size = sizeof options,
                                       .profile = profile,
                                       .bucket_bytes = BUCKET,
                                       .cuts = &halves,
                                       .cut_count = 1};
    pair_diff(&chain->after, &options);
    const weft_patch *patches[2] = {chain->pair.patch, chain->after.patch};
    const weft_merge_options merging = merge_options(profile, chain->pair.live.view);
    weft_sink sink = bytes_sink(&chain->merged);
    assert_int_equal(weft_merge(chain->context, patches, 2, &merging, &sink, NULL), WEFT_OK);
}

static void chain_close(chain *chain) {
    bytes_clear(&chain->merged);
    pair_close(&chain->after);
    pair_close(&chain->pair);
    weft_context_destroy(chain->context);
}

/* The chain's patches, read by functions. They are opened while these work. */
typedef struct far_chain {
    far_patch sources[2];
    weft_patch *patches[2];
} far_chain;

static void far_chain_open(far_chain *far, weft_context *context, const chain *chain, stranger *stranger) {
    const bytes *files[2] = {&chain->pair.file, &chain->after.file};
    stranger_reset(stranger, 0, WEFT_OK);
    for (size_t i = 0; i < 2; i++) {
        far->sources[i] = (far_patch){files[i], stranger};
        weft_source source = far_patch_source(&far->sources[i]);
        assert_int_equal(weft_patch_open(context, &source, &far->patches[i]), WEFT_OK);
    }
}

static void far_chain_close(far_chain *far) {
    weft_patch_close(far->patches[0]);
    weft_patch_close(far->patches[1]);
}

static bool fail_merge_at(const chain *chain, weft_profile profile, unsigned threads, int number,
                          size_t n) {
    weft_context *context = patches_context(threads);
    stranger stranger = {0};
    far_model base;
    far_chain far;
    far_model_open(&base, context, &chain->pair.live, &stranger);
    far_chain_open(&far, context, chain, &stranger);
    far_sink output = {.stranger = &stranger};
    weft_sink sink = far_sink_over(&output);
    const weft_merge_options options = merge_options(profile, base.view);
    weft_diff_stats stats = {.size = sizeof stats, .changed = 12345};
    stranger_reset(&stranger, n, number);
    weft_status status =
        weft_merge(context, (const weft_patch *const *)far.patches, 2, &options, &sink, &stats);
    bool fired = stranger_fired(&stranger);
    if (fired) {
        assert_int_equal(status, stranger_meaning(number));
        assert_true(weft_context_error(context)[0] != '\0');
        assert_int_equal(stats.changed, 12345);
    } else {
        assert_int_equal(status, WEFT_OK);
        assert_int_equal(output.file.size, chain->merged.size);
        assert_memory_equal(output.file.data, chain->merged.data, chain->merged.size);
    }
    bytes_clear(&output.file);
    far_chain_close(&far);
    far_model_close(&base);
    weft_context_destroy(context);
    return fired;
}

static void test_merge(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        chain chain;
        chain_open(&chain, profiles[p]);
        for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
            for (unsigned threads = 1; threads <= 3; threads += 2) {
                for (size_t n = test_stride_first();
                     fail_merge_at(&chain, profiles[p], threads, stranger_numbers[i], n);
                     n += test_stride()) {
                }
            }
        }
        chain_close(&chain);
    }
}

/* ---- files ---- */

static bool file_holds(scratch *scratch, const char *name, uint8_t *const *state) {
    weft_context *context = patches_context(1);
    weft_checkpoint *checkpoint;
    assert_int_equal(
        weft_checkpoint_open(context, scratch_path(scratch, name), WEFT_OPEN_READ, &checkpoint), WEFT_OK);
    const weft_table *table = weft_checkpoint_table(checkpoint);
    bool same = true;
    for (size_t i = 0; i < SHAPES; i++) {
        const weft_tensor *tensor = weft_table_at(table, (size_t)weft_table_find(table, shapes[i].name));
        same = same && memcmp(tensor->data, state[i], bytes_of(i)) == 0;
    }
    weft_checkpoint_close(checkpoint);
    weft_context_destroy(context);
    return same;
}

static void write_base(const chain *chain, scratch *scratch) {
    assert_int_equal(
        weft_table_write(chain->context, chain->pair.live.table, scratch_path(scratch, "base"), NULL),
        WEFT_OK);
}

/* Nothing but the base is there, unless the output was to be. */
static bool fail_rebuild_at(const chain *chain, scratch *scratch, int number, size_t n) {
    weft_context *context = patches_context(1);
    stranger stranger = {0};
    far_chain far;
    weft_checkpoint *base;
    far_chain_open(&far, context, chain, &stranger);
    assert_int_equal(weft_checkpoint_open(context, scratch_path(scratch, "base"), WEFT_OPEN_READ, &base),
                     WEFT_OK);
    stranger_reset(&stranger, n, number);
    weft_status status = weft_apply_rebuild(context, base, (const weft_patch *const *)far.patches, 2,
                                            scratch_path(scratch, "output"), false, NULL);
    bool fired = stranger_fired(&stranger);
    assert_int_equal(status, fired ? stranger_meaning(number) : WEFT_OK);
    assert_int_equal(scratch_count(scratch, ""), fired ? 1 : 2);
    assert_true(fired || file_holds(scratch, "output", chain->after.news));
    weft_checkpoint_close(base);
    far_chain_close(&far);
    weft_context_destroy(context);
    return fired;
}

/* The file is at the state before a patch or after it, and the way from there is open. */
static bool fail_in_place_at(const chain *chain, scratch *scratch, uint64_t stage_bytes, int number,
                             size_t n) {
    const weft_context_options options = {
        .size = sizeof options,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = stage_bytes}};
    weft_context *context;
    stranger stranger = {0};
    far_chain far;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    write_base(chain, scratch);
    far_chain_open(&far, context, chain, &stranger);
    stranger_reset(&stranger, n, number);
    const weft_patch *const *patches = (const weft_patch *const *)far.patches;
    weft_status status =
        weft_apply_in_place(context, scratch_path(scratch, "base"), patches, 2, false, NULL);
    bool fired = stranger_fired(&stranger);
    stranger_reset(&stranger, 0, WEFT_OK);
    assert_int_equal(status, fired ? stranger_meaning(number) : WEFT_OK);
    assert_int_equal(scratch_count(scratch, ""), 1);
    bool first = file_holds(scratch, "base", chain->pair.olds);
    bool second = file_holds(scratch, "base", chain->pair.news);
    assert_true(fired ? first || second : file_holds(scratch, "base", chain->after.news));
    if (fired) {
        assert_int_equal(weft_apply_in_place(context, scratch_path(scratch, "base"),
                                             first ? patches : patches + 1, first ? 2 : 1, false, NULL),
                         WEFT_OK);
        assert_true(file_holds(scratch, "base", chain->after.news));
    }
    far_chain_close(&far);
    weft_context_destroy(context);
    return fired;
}

static bool fail_write_at(const chain *chain, scratch *scratch, unsigned threads, int number, size_t n) {
    weft_context *context = patches_context(threads);
    stranger stranger = {0};
    far_model far;
    far_model_open(&far, context, &chain->pair.live, &stranger);
    stranger_reset(&stranger, n, number);
    weft_status status = weft_table_write(context, far.table, scratch_path(scratch, "output"), NULL);
    bool fired = stranger_fired(&stranger);
    assert_int_equal(status, fired ? stranger_meaning(number) : WEFT_OK);
    assert_int_equal(scratch_count(scratch, ""), fired ? 1 : 2);
    far_model_close(&far);
    weft_context_destroy(context);
    return fired;
}

static void test_files(void **state) {
    (void)state;
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        chain chain;
        scratch scratch;
        chain_open(&chain, profiles[i % 2]);
        scratch_open_volatile(&scratch);
        write_base(&chain, &scratch);
        for (size_t n = 1; fail_rebuild_at(&chain, &scratch, stranger_numbers[i], n); n++) {
        }
        assert_int_equal(remove(scratch_path(&scratch, "output")), 0);
        for (size_t n = 1; fail_write_at(&chain, &scratch, 1 + 2 * (i % 2), stranger_numbers[i], n); n++) {
        }
        assert_int_equal(remove(scratch_path(&scratch, "output")), 0);
        for (size_t n = 1; fail_in_place_at(&chain, &scratch, 0, stranger_numbers[i], n); n++) {
        }
        for (size_t n = 1; fail_in_place_at(&chain, &scratch, 100000, stranger_numbers[i], n); n++) {
        }
        scratch_close(&scratch);
        chain_close(&chain);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live_weights), cmocka_unit_test(test_rollback), cmocka_unit_test(test_diff),
        cmocka_unit_test(test_lies),         cmocka_unit_test(test_merge),    cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
