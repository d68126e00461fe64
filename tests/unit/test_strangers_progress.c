/* SPDX-License-Identifier: Apache-2.0
 *
 * Strangers' callbacks: the progress function. It cancels at every call of everything that asks it: what
 * ends with WEFT_CANCELLED has changed nothing, and what can no longer go back does not ask. And it uses
 * the context that waits for it, and the very objects that are at work, which is refused: nothing hangs,
 * and nothing that was prepared is lost.
 */
#include "../../lib/base/context.h"
#include "../../lib/base/state.h"
#include "../support/described.h"

#include "patches.h"
#include "runs.h"
#include "scratch.h"
#include "strangers.h"
#include "stride.h"

#include <weft/loco.h>
#include <weft/sync.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BUCKET = 32 * 1024, STAGE = 20000, SHAPES = 3 };

static const tensor_shape shapes[SHAPES] = {
    {"embed", WEFT_DTYPE_BF16, 400, 64},
    {"layer.up", WEFT_DTYPE_BF16, 40, 64},
    {"norm", WEFT_DTYPE_F32, 64, 0},
};

/* A context that is asked whenever there is an occasion, and not only some times a second. */
typedef struct asked {
    weft_context *context;
    stranger stranger;
} asked;

static bool ask(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    asked *asked = opaque;
    atomic_store(&asked->context->progress_next, 0);
    return stranger_progress(&asked->stranger, phase, done, total);
}

static void asked_open(asked *asked, unsigned threads, uint64_t stage_bytes) {
    memset(asked, 0, sizeof *asked);
    const weft_context_options options = {
        .size = sizeof options,
        .threads = threads,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = stage_bytes},
        .progress = ask,
        .progress_opaque = asked,
    };
    assert_int_equal(weft_context_create(&options, &asked->context), WEFT_OK);
}

/* The n-th question from now on, and all later ones, are answered with no. 0: none. */
static void cancel_at(asked *asked, size_t n) {
    stranger_reset(&asked->stranger, n, 0);
}

static bool was_cancelled(const asked *asked) {
    return stranger_fired(&asked->stranger);
}

/* ---- patches ---- */

static weft_status apply_all(weft_apply *apply, bool *committed) {
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        status = weft_apply_prepare(apply);
        if (status >= 0) {
            assert_int_equal(weft_apply_commit(apply), WEFT_OK);
            *committed = true;
        }
    }
    return status;
}

static bool cancel_apply(pair *pair, unsigned threads, uint64_t stage_bytes, size_t n) {
    asked asked;
    weft_apply *apply;
    bool committed = false;
    asked_open(&asked, threads, stage_bytes);
    weft_sums *sums = patches_sums(asked.context, pair->live.view);
    assert_int_equal(weft_apply_create(asked.context, pair->patch, pair->live.view, sums, &apply), WEFT_OK);
    cancel_at(&asked, n);
    weft_status status = apply_all(apply, &committed);
    bool fired = was_cancelled(&asked);
    cancel_at(&asked, 0);
    assert_int_equal(status, fired ? WEFT_CANCELLED : WEFT_OK);
    assert_true(committed || pair_at_old(pair));
    if (fired) {
        assert_int_equal(apply_all(apply, &committed), WEFT_OK);
    }
    assert_true(pair_at_new(pair));
    assert_int_equal(weft_sums_audit(asked.context, sums, UINT64_MAX), WEFT_OK);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    weft_context_destroy(asked.context);
    pair_reset(pair);
    return fired;
}

static bool cancel_diff(pair *pair, unsigned threads, size_t n) {
    asked asked;
    bytes file = {0};
    weft_trail *trail = NULL;
    weft_sink sink = bytes_sink(&file);
    const weft_diff_options options = {.size = sizeof options, .bucket_bytes = BUCKET, .trail = &trail};
    asked_open(&asked, threads, 0);
    cancel_at(&asked, n);
    weft_status status = weft_diff(asked.context, pair->live.view, pair->next.view, &options, &sink, NULL);
    bool fired = was_cancelled(&asked);
    assert_int_equal(status, fired ? WEFT_CANCELLED : WEFT_OK);
    assert_true(fired ? pair_at_old(pair) : pair_at_new(pair));
    weft_trail_destroy(trail);
    weft_context_destroy(asked.context);
    bytes_clear(&file);
    pair_reset(pair);
    return fired;
}

static bool cancel_file(pair *pair, scratch *scratch, uint64_t stage_bytes, bool rebuild, size_t n) {
    asked asked;
    weft_checkpoint *base;
    const weft_patch *patches[1] = {pair->patch};
    char output[600];
    weft_digest digest;
    snprintf(output, sizeof output, "%s", scratch_path(scratch, rebuild ? "output" : "base"));
    assert_int_equal(weft_table_write(pair->context, pair->live.table, scratch_path(scratch, "base"), NULL),
                     WEFT_OK);
    asked_open(&asked, 1, stage_bytes);
    assert_int_equal(
        weft_checkpoint_open(pair->context, scratch_path(scratch, "base"), WEFT_OPEN_READ, &base), WEFT_OK);
    cancel_at(&asked, n);
    weft_status status = rebuild
                             ? weft_apply_rebuild(asked.context, base, patches, 1, output, false, &digest)
                             : weft_apply_in_place(asked.context, output, patches, 1, false, &digest);
    bool fired = was_cancelled(&asked);
    weft_checkpoint_close(base);
    assert_int_equal(status, fired ? WEFT_CANCELLED : WEFT_OK);
    assert_int_equal(scratch_count(scratch, ""), rebuild && !fired ? 2 : 1);
    weft_digest expected = fired ? pair->stats.base : pair->stats.result;
    if (!fired || !rebuild) {
        weft_view *view;
        weft_checkpoint *made;
        assert_int_equal(weft_checkpoint_open(pair->context, output, WEFT_OPEN_READ, &made), WEFT_OK);
        assert_int_equal(weft_view_create(pair->context, weft_checkpoint_table(made), &view), WEFT_OK);
        digest = worker_digest(pair->context, view);
        assert_memory_equal(&digest, &expected, sizeof digest);
        weft_view_destroy(view);
        weft_checkpoint_close(made);
    }
    weft_context_destroy(asked.context);
    return fired;
}

static bool cancel_merge(const pair *pair, size_t n) {
    asked asked;
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    const weft_patch *patches[1] = {pair->patch};
    const weft_merge_options options = {.size = sizeof options, .base = pair->live.view};
    asked_open(&asked, 1, 0);
    cancel_at(&asked, n);
    weft_status status = weft_merge(asked.context, patches, 1, &options, &sink, NULL);
    bool fired = was_cancelled(&asked);
    assert_int_equal(status, fired ? WEFT_CANCELLED : WEFT_OK);
    weft_context_destroy(asked.context);
    bytes_clear(&file);
    return fired;
}

static void test_patches(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    scratch scratch;
    pair pair;
    pair_open(&pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 80);
    pair_change(&pair, CHANGE_MIXED, 20000, 81);
    const weft_diff_options options = {.size = sizeof options, .bucket_bytes = BUCKET};
    pair_diff(&pair, &options);
    scratch_open_volatile(&scratch);
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        for (size_t n = 1; cancel_apply(&pair, threads, 0, n); n++) {
        }
        for (size_t n = 1; cancel_apply(&pair, threads, STAGE, n); n++) {
        }
        for (size_t n = 1; cancel_diff(&pair, threads, n); n++) {
        }
    }
    for (size_t n = 1; cancel_merge(&pair, n); n++) {
    }
    for (size_t n = 1; cancel_file(&pair, &scratch, 0, false, n); n++) {
    }
    for (size_t n = 1; cancel_file(&pair, &scratch, STAGE, false, n); n++) {
    }
    for (size_t n = 1; cancel_file(&pair, &scratch, 0, true, n); n++) {
    }
    scratch_close(&scratch);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- a store that asks ----
 *
 * As one over a network does, before an operation and while it waits for the answer to what has long been
 * done. */

static weft_status ask_before(weft_context *context) {
    return weft_progress_ask(context);
}

static weft_status ask_after(weft_context *context, weft_status status) {
    return status == WEFT_OK ? weft_progress_ask(context) : status;
}

static weft_status asking_get(void *self, weft_context *context, const weft_store_get_request *request,
                              weft_store_get_result *result_out) {
    weft_status status = ask_before(context);
    return status == WEFT_OK ? ask_after(context, weft_store_get(context, self, request, result_out))
                             : status;
}

static weft_status asking_put(void *self, weft_context *context, const weft_store_put_request *request,
                              weft_store_tag *tag_out) {
    weft_status status = ask_before(context);
    return status == WEFT_OK ? ask_after(context, weft_store_put(context, self, request, tag_out)) : status;
}

static weft_status asking_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                               weft_store_tag *tag_out) {
    weft_status status = ask_before(context);
    return status == WEFT_OK ? ask_after(context, weft_store_head(context, self, key, size_out, tag_out))
                             : status;
}

static weft_status asking_remove(void *self, weft_context *context, const char *key) {
    weft_status status = ask_before(context);
    return status == WEFT_OK ? ask_after(context, weft_store_remove(context, self, key)) : status;
}

static void asking_traits(void *self, weft_store_traits *traits) {
    weft_store_traits_of(self, traits);
}

static void asking_close(void *self) {
    (void)self;
}

static const weft_store_operations asking_operations = {
    .size = sizeof asking_operations,
    .name = "asking",
    .traits = asking_traits,
    .get = asking_get,
    .put = asking_put,
    .head = asking_head,
    .remove = asking_remove,
    .close = asking_close,
};

/* ---- a run ---- */

typedef struct run {
    scratch scratch;
    weft_context *outside;
    weft_store *plain;
    weft_store *asking;
    asked asked; /* the trainer's */
    trainer trainer;
    weft_publisher *publisher;
} run;

static void run_open(run *run, const weft_publisher_options *options) {
    const weft_store_options fast = {.size = sizeof fast, .volatile_writes = true};
    scratch_open_volatile(&run->scratch);
    run->outside = patches_context(1);
    asked_open(&run->asked, 1, 0);
    assert_int_equal(
        weft_store_open(run->outside, scratch_path(&run->scratch, "store"), &fast, &run->plain), WEFT_OK);
    assert_int_equal(
        weft_store_create(run->outside, "asking://", &asking_operations, run->plain, &run->asking),
        WEFT_OK);
    trainer_open(&run->trainer, run->asked.context, 7);
    weft_publisher_options chosen = *options;
    char mirror[600];
    snprintf(mirror, sizeof mirror, "%s", scratch_path(&run->scratch, "mirror"));
    chosen.mirror_path = options->mirror_path != NULL ? mirror : NULL;
    chosen.no_leaps = true;
    assert_int_equal(weft_publisher_open(run->asked.context, run->asking, run->trainer.model.view, &chosen,
                                         &run->publisher),
                     WEFT_OK);
    assert_int_equal(weft_publisher_publish(run->publisher, NULL, NULL), WEFT_OK);
}

static void run_close(run *run) {
    weft_publisher_close(run->publisher);
    trainer_close(&run->trainer);
    weft_store_close(run->asking);
    weft_store_close(run->plain);
    weft_context_destroy(run->asked.context);
    weft_context_destroy(run->outside);
    scratch_close(&run->scratch);
}

typedef struct search {
    weft_digest digest;
    bool found;
} search;

static bool compare(void *opaque, const weft_log_entry *entry) {
    search *search = opaque;
    search->found = search->found || weft_digest_equal(&search->digest, &entry->digest);
    return true;
}

static bool is_published(run *run, const weft_digest *digest) {
    search search = {*digest, false};
    assert_int_equal(weft_log_walk(run->outside, run->plain, NULL, compare, &search), WEFT_OK);
    return search.found;
}

static void sweep_publish(const weft_publisher_options *options) {
    run run;
    bool fired = true;
    run_open(&run, options);
    size_t cancelled = 0;
    for (size_t n = test_stride_first(); fired; n += test_stride()) {
        trainer_step(&run.trainer, 10000);
        weft_digest digest = trainer_digest(&run.trainer);
        cancel_at(&run.asked, n);
        weft_status status = weft_publisher_publish(run.publisher, NULL, NULL);
        fired = was_cancelled(&run.asked);
        cancel_at(&run.asked, 0);
        assert_true(status == WEFT_OK || (fired && status == WEFT_CANCELLED));
        assert_int_equal(is_published(&run, &digest), status == WEFT_OK);
        cancelled += status == WEFT_CANCELLED;
        /* and what was cancelled does not come back with the next one */
        trainer_step(&run.trainer, 10000);
        weft_digest next = trainer_digest(&run.trainer);
        assert_int_equal(weft_publisher_publish(run.publisher, NULL, NULL), WEFT_OK);
        assert_true(is_published(&run, &next));
        assert_int_equal(is_published(&run, &digest), status == WEFT_OK);
    }
    assert_true(cancelled > 3 || test_stride() > 1);
    run_close(&run);
}

static void test_publish(void **state) {
    (void)state;
    sweep_publish(&(weft_publisher_options){
        .size = sizeof(weft_publisher_options), .anchor_ratio = -1, .bucket_bytes = BUCKET});
    sweep_publish(&(weft_publisher_options){
        .size = sizeof(weft_publisher_options), .anchor_ratio = 0.001, .bucket_bytes = BUCKET});
    sweep_publish(&(weft_publisher_options){.size = sizeof(weft_publisher_options),
                                            .anchor_ratio = -1,
                                            .bucket_bytes = BUCKET,
                                            .mirror_path = ""});
}

typedef struct follower {
    asked asked;
    model model;
    char path[600]; /* "": live memory */
    weft_subscriber *subscriber;
} follower;

/* The digest of the real bytes. */
static weft_digest follower_digest(const follower *follower, run *run) {
    if (follower->path[0] == '\0') {
        return worker_digest(run->outside, follower->model.view);
    }
    weft_checkpoint *checkpoint;
    weft_view *view;
    assert_int_equal(weft_checkpoint_open(run->outside, follower->path, WEFT_OPEN_READ, &checkpoint),
                     WEFT_OK);
    assert_int_equal(weft_view_create(run->outside, weft_checkpoint_table(checkpoint), &view), WEFT_OK);
    weft_digest digest = worker_digest(run->outside, view);
    weft_view_destroy(view);
    weft_checkpoint_close(checkpoint);
    return digest;
}

static void follower_open(follower *follower, run *run, bool file, uint64_t stage_bytes) {
    asked_open(&follower->asked, 1, stage_bytes);
    worker_open(&follower->model, follower->asked.context);
    snprintf(follower->path, sizeof follower->path, "%s",
             file ? scratch_path(&run->scratch, "replica") : "");
    const weft_subscriber_options options = {.size = sizeof options, .empty = !file};
    assert_int_equal(file ? weft_subscriber_open_file(follower->asked.context, run->asking, follower->path,
                                                      &options, &follower->subscriber)
                          : weft_subscriber_open(follower->asked.context, run->asking, follower->model.view,
                                                 &options, &follower->subscriber),
                     WEFT_OK);
    assert_int_equal(weft_subscriber_pull(follower->subscriber, 0), WEFT_OK);
}

static void follower_close(follower *follower) {
    weft_subscriber_close(follower->subscriber);
    model_close(&follower->model);
    weft_context_destroy(follower->asked.context);
}

static void publish_some(run *run, unsigned count, unsigned per_million) {
    for (unsigned i = 0; i < count; i++) {
        trainer_step(&run->trainer, per_million);
        assert_int_equal(weft_publisher_publish(run->publisher, NULL, NULL), WEFT_OK);
    }
}

/* By patches, or from a new anchor over what is there. */
static void sweep_pull(bool file, uint64_t stage_bytes, bool anchor) {
    const weft_publisher_options options = {.size = sizeof options,
                                            .anchor_ratio = anchor ? 0.001 : -1,
                                            .bucket_bytes = BUCKET,
                                            .keep_anchors = 1,
                                            .gc_seconds = 0};
    run run;
    follower follower;
    bool fired = true;
    size_t cancelled = 0;
    run_open(&run, &options);
    follower_open(&follower, &run, file, stage_bytes);
    for (size_t n = test_stride_first(); fired; n += test_stride()) {
        publish_some(&run, 2, anchor ? 400000 : 10000);
        cancel_at(&follower.asked, n);
        weft_status status = weft_subscriber_pull(follower.subscriber, 0);
        fired = was_cancelled(&follower.asked);
        cancel_at(&follower.asked, 0);
        assert_int_equal(status, fired ? WEFT_CANCELLED : WEFT_OK);
        cancelled += fired;
        weft_digest digest = follower_digest(&follower, &run);
        assert_true(is_published(&run, &digest));
        assert_int_equal(weft_subscriber_pull(follower.subscriber, 0), WEFT_OK);
        digest = follower_digest(&follower, &run);
        weft_digest newest = trainer_digest(&run.trainer);
        assert_memory_equal(&digest, &newest, sizeof digest);
    }
    assert_true(cancelled > 3 || test_stride() > 1);
    follower_close(&follower);
    run_close(&run);
}

static void test_pull(void **state) {
    (void)state;
    for (int anchor = 0; anchor < 2; anchor++) {
        sweep_pull(false, 0, anchor != 0);
        sweep_pull(false, STAGE, anchor != 0);
        sweep_pull(true, 0, anchor != 0);
        sweep_pull(true, STAGE, anchor != 0);
    }
}

/* ---- from inside ---- */

/* A progress function that uses its own context. */
typedef struct inward {
    weft_context *context;
    const weft_view *view;
    weft_subscriber *subscriber; /* another than the one that waits; may be NULL */
    const char *phase;           /* of the call under way */
    size_t calls;
} inward;

static bool look_inward(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    inward *inward = opaque;
    weft_sums *sums = NULL;
    uint64_t version;
    (void)done;
    (void)total;
    atomic_store(&inward->context->progress_next, 0);
    if (inward->phase == NULL) {
        return true;
    }
    inward->calls++;
    assert_string_equal(phase, inward->phase);
    assert_int_equal(weft_sums_compute(inward->context, inward->view, &sums), WEFT_BUSY);
    assert_true(weft_context_error(inward->context)[0] != '\0');
    assert_null(sums);
    if (inward->subscriber != NULL) {
        assert_int_equal(weft_subscriber_wait(inward->subscriber, 600, &version), WEFT_BUSY);
        assert_non_null(strstr(weft_context_error(inward->context), "progress"));
    }
    return true;
}

static void test_the_same_context(void **state) {
    (void)state;
    const weft_publisher_options publishing = {
        .size = sizeof publishing, .anchor_ratio = -1, .bucket_bytes = BUCKET};
    run run;
    run_open(&run, &publishing);
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        inward inward = {0};
        const weft_context_options options = {.size = sizeof options,
                                              .threads = threads,
                                              .progress = look_inward,
                                              .progress_opaque = &inward};
        const weft_subscriber_options following = {
            .size = sizeof following, .empty = true, .poll_seconds = 0.01};
        model models[2];
        weft_subscriber *subscribers[2];
        weft_sums *sums;
        uint64_t version;
        assert_int_equal(weft_context_create(&options, &inward.context), WEFT_OK);
        for (size_t i = 0; i < 2; i++) {
            worker_open(&models[i], inward.context);
            assert_int_equal(weft_subscriber_open(inward.context, run.plain, models[i].view, &following,
                                                  &subscribers[i]),
                             WEFT_OK);
            assert_int_equal(weft_subscriber_pull(subscribers[i], 0), WEFT_OK);
        }
        /* in a loop, by whichever thread */
        inward.view = models[0].view;
        inward.phase = "digest";
        assert_int_equal(weft_sums_compute(inward.context, models[1].view, &sums), WEFT_OK);
        weft_digest digest = weft_sums_digest(sums);
        weft_digest expected = trainer_digest(&run.trainer);
        assert_memory_equal(&digest, &expected, sizeof digest);
        assert_true(inward.calls > 0);
        weft_sums_destroy(sums);
        /* outside of any, while a call waits */
        inward.calls = 0;
        inward.phase = "wait";
        inward.subscriber = subscribers[1];
        assert_int_equal(weft_subscriber_wait(subscribers[0], 0.1, &version), WEFT_MORE);
        assert_true(inward.calls > 0);
        inward.phase = NULL;
        for (size_t i = 0; i < 2; i++) {
            weft_subscriber_close(subscribers[i]);
            model_close(&models[i]);
        }
        weft_context_destroy(inward.context);
    }
    run_close(&run);
}

/* A progress function that goes on with the very object that waits for it, or with one that waits for
 * something else. */
typedef struct meddler {
    weft_context *context;
    weft_apply *apply;
    weft_subscriber *subscriber;
    weft_publisher *publisher;
    weft_loco *loco;
    size_t calls;
    size_t phases;
} meddler;

static void refuse_all(weft_subscriber *subscriber) {
    uint64_t version;
    assert_int_equal(weft_subscriber_prepare(subscriber, 0), WEFT_BUSY);
    assert_int_equal(weft_subscriber_commit(subscriber), WEFT_BUSY);
    assert_int_equal(weft_subscriber_rollback(subscriber), WEFT_BUSY);
    assert_int_equal(weft_subscriber_pull(subscriber, 0), WEFT_BUSY);
    assert_int_equal(weft_subscriber_verify(subscriber), WEFT_BUSY);
    assert_int_equal(weft_subscriber_wait(subscriber, 0, &version), WEFT_BUSY);
}

static bool meddle(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    meddler *meddler = opaque;
    weft_loco_payload payload;
    (void)phase;
    (void)done;
    (void)total;
    atomic_store(&meddler->context->progress_next, 0);
    if (meddler->apply != NULL) {
        meddler->calls++;
        assert_int_equal(weft_apply_prepare(meddler->apply), WEFT_BUSY);
        assert_int_equal(weft_apply_commit(meddler->apply), WEFT_BUSY);
        assert_int_equal(weft_apply_rollback(meddler->apply), WEFT_BUSY);
        assert_int_equal(weft_apply_run(meddler->apply), WEFT_BUSY);
        assert_non_null(strstr(weft_context_error(meddler->context), "progress"));
    }
    if (meddler->subscriber != NULL) {
        meddler->calls++;
        refuse_all(meddler->subscriber);
    }
    if (meddler->publisher != NULL) {
        meddler->calls++;
        assert_int_equal(weft_publisher_publish(meddler->publisher, NULL, NULL), WEFT_BUSY);
        assert_int_equal(weft_publisher_anchor(meddler->publisher, NULL), WEFT_BUSY);
        assert_int_equal(weft_publisher_settle(meddler->publisher), WEFT_BUSY);
    }
    if (meddler->loco != NULL) {
        meddler->calls++;
        assert_int_equal(weft_loco_encode(meddler->loco, &payload), WEFT_BUSY);
        assert_int_equal(weft_loco_aggregate(meddler->loco, &payload, 1, NULL), WEFT_BUSY);
    }
    return true;
}

/* The same from the function that is told of phases. */
static void meddle_in_phase(void *opaque, weft_sync_phase phase, uint64_t version, double seconds,
                            uint64_t bytes) {
    meddler *meddler = opaque;
    (void)phase;
    (void)version;
    (void)seconds;
    (void)bytes;
    if (meddler->subscriber != NULL) {
        meddler->phases++;
        refuse_all(meddler->subscriber);
    }
}

static void meddle_with_apply(pair *pair, unsigned threads) {
    meddler meddler = {0};
    const weft_context_options options = {
        .size = sizeof options, .threads = threads, .progress = meddle, .progress_opaque = &meddler};
    weft_apply *apply;
    weft_sums *again;
    assert_int_equal(weft_context_create(&options, &meddler.context), WEFT_OK);
    weft_sums *sums = patches_sums(meddler.context, pair->live.view);
    assert_int_equal(weft_apply_create(meddler.context, pair->patch, pair->live.view, sums, &apply),
                     WEFT_OK);
    meddler.apply = apply;
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_true(meddler.calls > 0);
    assert_true(pair_at_old(pair));
    /* what is prepared stays so while another call waits */
    meddler.calls = 0;
    assert_int_equal(weft_sums_compute(meddler.context, pair->next.view, &again), WEFT_OK);
    assert_true(meddler.calls > 0);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(pair_at_new(pair));
    assert_int_equal(weft_sums_audit(meddler.context, sums, UINT64_MAX), WEFT_OK);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(pair_at_old(pair));
    assert_int_equal(weft_apply_run(apply), WEFT_OK);
    assert_true(pair_at_new(pair));
    weft_apply_destroy(apply);
    weft_sums_destroy(again);
    weft_sums_destroy(sums);
    weft_context_destroy(meddler.context);
    pair_reset(pair);
}

static void meddle_with_subscriber(run *run, unsigned threads) {
    meddler meddler = {0};
    const weft_context_options options = {
        .size = sizeof options, .threads = threads, .progress = meddle, .progress_opaque = &meddler};
    const weft_subscriber_options following = {
        .size = sizeof following, .empty = true, .phase = meddle_in_phase, .phase_opaque = &meddler};
    model model;
    assert_int_equal(weft_context_create(&options, &meddler.context), WEFT_OK);
    worker_open(&model, meddler.context);
    assert_int_equal(
        weft_subscriber_open(meddler.context, run->plain, model.view, &following, &meddler.subscriber),
        WEFT_OK);
    assert_int_equal(weft_subscriber_pull(meddler.subscriber, 0), WEFT_OK);
    assert_true(meddler.calls > 0 && meddler.phases > 0);
    weft_digest expected = trainer_digest(&run->trainer);
    weft_digest digest = subscriber_info(meddler.subscriber).digest;
    assert_memory_equal(&digest, &expected, sizeof digest);
    assert_int_equal(weft_subscriber_verify(meddler.subscriber), WEFT_OK);
    weft_subscriber_close(meddler.subscriber);
    meddler.subscriber = NULL;
    model_close(&model);
    weft_context_destroy(meddler.context);
}

static void meddle_with_publisher(run *run, unsigned threads) {
    meddler meddler = {0};
    const weft_context_options options = {
        .size = sizeof options, .threads = threads, .progress = meddle, .progress_opaque = &meddler};
    const weft_publisher_options publishing = {
        .size = sizeof publishing, .anchor_ratio = -1, .bucket_bytes = BUCKET};
    weft_publisher *publisher;
    assert_int_equal(weft_context_create(&options, &meddler.context), WEFT_OK);
    assert_int_equal(
        weft_publisher_open(meddler.context, run->plain, run->trainer.model.view, &publishing, &publisher),
        WEFT_OK);
    trainer_step(&run->trainer, 10000);
    meddler.publisher = publisher;
    assert_int_equal(weft_publisher_publish(publisher, NULL, NULL), WEFT_OK);
    meddler.publisher = NULL;
    assert_true(meddler.calls > 0);
    weft_digest digest = trainer_digest(&run->trainer);
    assert_true(is_published(run, &digest));
    weft_publisher_close(publisher);
    weft_context_destroy(meddler.context);
}

static void meddle_with_loco(unsigned threads) {
    meddler meddler = {0};
    const weft_context_options options = {
        .size = sizeof options, .threads = threads, .progress = meddle, .progress_opaque = &meddler};
    weft_loco_options of_rank = {.size = sizeof of_rank};
    weft_loco_defaults(&of_rank);
    weft_loco *loco;
    weft_loco_payload payload;
    float weights[64];
    for (size_t i = 0; i < 64; i++) {
        weights[i] = (float)i;
    }
    const weft_loco_tensor tensor = {"weights", weights, 64};
    of_rank.run = "meddled";
    assert_int_equal(weft_context_create(&options, &meddler.context), WEFT_OK);
    assert_int_equal(weft_loco_create(meddler.context, &of_rank, &tensor, 1, &loco), WEFT_OK);
    for (unsigned i = 0; i < 2; i++) {
        weights[3] += 1;
        meddler.loco = loco;
        assert_int_equal(weft_loco_encode(loco, &payload), WEFT_OK);
        meddler.loco = NULL;
        assert_int_equal(weft_loco_aggregate(loco, &payload, 1, NULL), WEFT_OK);
    }
    assert_true(meddler.calls > 0);
    weft_loco_destroy(loco);
    weft_context_destroy(meddler.context);
}

static void test_the_same_object(void **state) {
    (void)state;
    const weft_publisher_options publishing = {
        .size = sizeof publishing, .anchor_ratio = -1, .bucket_bytes = BUCKET};
    const weft_diff_options diffing = {.size = sizeof diffing, .bucket_bytes = BUCKET};
    weft_context *context = patches_context(1);
    pair pair;
    run run;
    pair_open(&pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 83);
    pair_change(&pair, CHANGE_MIXED, 20000, 84);
    pair_diff(&pair, &diffing);
    run_open(&run, &publishing);
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        meddle_with_apply(&pair, threads);
        meddle_with_subscriber(&run, threads);
        meddle_with_publisher(&run, threads);
        meddle_with_loco(threads);
    }
    run_close(&run);
    pair_close(&pair);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patches),
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_pull),
        cmocka_unit_test(test_the_same_context),
        cmocka_unit_test(test_the_same_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
