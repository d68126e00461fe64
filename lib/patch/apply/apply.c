/* SPDX-License-Identifier: Apache-2.0
 *
 * apply.c: the transaction that brings live weights from a patch's base to its result.
 *
 *   prepare   fetch, check and decode every bucket, read the old words, prove the bucket's delta, and at
 *             the end prove that old digest and deltas give the promised one. Nothing is written.
 *   commit    scatter. Nothing can be found wrong any more.
 *   rollback  drop what is prepared, or scatter the old values back.
 *
 * Staged changes are bounded by the context's limit. Beyond it, prepare says WEFT_MORE: the caller
 * commits what is staged and goes on; the buckets of a patch are disjoint, so order does not matter.
 */
#include "../../base/sized.h"
#include "transaction.h"

#include "../../base/pool.h"
#include "../../tensor/table.h"

#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- creating ---- */

static weft_status apply_check_tensor(weft_context *context, const weft_roster_entry *entry,
                                      const weft_view *view, int64_t index) {
    if (index < 0) {
        return weft_view_complete(view)
                   ? weft_fail(context, WEFT_BASE_MISMATCH,
                               "base mismatch: the patch changes tensor %s, which is not here",
                               entry->tensor.name)
                   : WEFT_OK;
    }
    const weft_tensor *here = weft_view_at(view, (size_t)index);
    if (!weft_tensor_alike(here, &entry->tensor)) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "base mismatch: tensor %s has another dtype or shape here than in the patch",
                         entry->tensor.name);
    }
    return WEFT_OK;
}

static weft_status apply_check_roster(weft_apply *apply) {
    const weft_roster *roster = &apply->patch->header.roster;
    if (apply->kind == WEFT_APPLY_LIVE && !weft_roster_plain(roster)) {
        return weft_fail(
            apply->context, WEFT_UNSUPPORTED,
            "the patch adds, removes or replaces tensors and cannot be applied to live weights; "
            "rebuild the checkpoint (weft apply BASE PATCH -o OUT)");
    }
    size_t known = 0;
    for (size_t i = 0; i < roster->count; i++) {
        if (roster->entries[i].fate == WEFT_FATE_REMOVED) {
            continue;
        }
        weft_status status =
            apply_check_tensor(apply->context, &roster->entries[i], apply->view, apply->map[i]);
        if (status != WEFT_OK) {
            return status;
        }
        known += apply->map[i] >= 0;
    }
    if (known != weft_view_count(apply->view)) {
        return weft_fail(apply->context, WEFT_BASE_MISMATCH,
                         "base mismatch: there are %zu tensors here that the patch does not know",
                         weft_view_count(apply->view) - known);
    }
    return WEFT_OK;
}

weft_status weft_apply_create_as(weft_context *context, weft_apply_kind kind, const weft_patch *patch,
                                 const weft_view *view, weft_sums *sums, weft_apply **apply_out) {
    weft_context_clear(context);
    weft_apply *apply = weft_allocate_zeroed(context, 1, sizeof *apply);
    if (apply == NULL) {
        return WEFT_NO_MEMORY;
    }
    apply->context = context;
    apply->patch = patch;
    apply->view = view;
    apply->sums = sums;
    apply->kind = kind;
    unsigned threads = weft_context_threads(context);
    weft_roster roster = weft_roster_with(&patch->header.roster, context);
    weft_status status = weft_sums_check(context, sums, view);
    if (status == WEFT_OK) {
        status = weft_roster_map(&roster, view, &apply->map);
    }
    if (status == WEFT_OK) {
        status = apply_check_roster(apply);
    }
    if (status == WEFT_OK && kind == WEFT_APPLY_LIVE && weft_view_complete(view)) {
        status = weft_patch_check_base(context, patch, sums);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, view, &apply->moves);
    }
    if (status == WEFT_OK) {
        apply->staged = weft_allocate_zeroed(context, patch->index.count, sizeof *apply->staged);
        apply->coders = weft_allocate_array(context, threads, sizeof *apply->coders);
        apply->buffers = weft_allocate_array(context, threads, sizeof *apply->buffers);
        status = apply->staged == NULL || apply->coders == NULL || apply->buffers == NULL ? WEFT_NO_MEMORY
                                                                                          : WEFT_OK;
    }
    if (status == WEFT_OK && weft_view_batch(view) != NULL) {
        apply->waiting = weft_allocate_zeroed(context, patch->index.count, sizeof *apply->waiting);
        status = apply->waiting == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    }
    if (status != WEFT_OK) {
        weft_apply_destroy(apply);
        return status;
    }
    for (; apply->workers < threads; apply->workers++) {
        weft_bucket_coder_open(&apply->coders[apply->workers], context);
        weft_writer_open(&apply->buffers[apply->workers], context);
    }
    *apply_out = apply;
    return WEFT_OK;
}

weft_status weft_apply_create(weft_context *context, const weft_patch *patch, const weft_view *view,
                              weft_sums *sums, weft_apply **apply_out) {
    return weft_apply_create_as(context, WEFT_APPLY_LIVE, patch, view, sums, apply_out);
}

static void apply_drop_waiting(weft_apply *apply) {
    for (size_t i = apply->waiting_from; apply->waiting != NULL && i < apply->staged_count; i++) {
        weft_apply_drop_waiting(apply, i);
    }
    apply->waiting_from = apply->staged_count;
    apply->waiting_count = 0;
    apply->waiting_bytes = 0;
}

static void apply_drop_staged(weft_apply *apply) {
    apply_drop_waiting(apply);
    for (size_t i = 0; i < apply->staged_count; i++) {
        if (apply->staged[i].used) {
            weft_staged_release(apply->context, &apply->staged[i]);
        }
    }
    apply->staged_count = 0;
    apply->stats.stage_bytes = 0;
}

void weft_apply_destroy(weft_apply *apply) {
    if (apply == NULL) {
        return;
    }
    apply_drop_staged(apply);
    for (unsigned i = 0; i < apply->workers; i++) {
        weft_bucket_coder_close(&apply->coders[i]);
        weft_writer_close(&apply->buffers[i]);
    }
    weft_context *context = apply->context;
    weft_release(context, apply->staged);
    weft_release(context, apply->waiting);
    weft_release(context, apply->segments);
    weft_release(context, apply->order);
    weft_release(context, apply->coders);
    weft_release(context, apply->buffers);
    weft_release(context, apply->map);
    weft_sums_destroy(apply->moves);
    weft_release(context, apply);
}

/* ---- preparing ---- */

static weft_status apply_stage_bucket(void *argument, size_t offset, unsigned worker) {
    weft_apply *apply = argument;
    return weft_apply_stage(apply, apply->next + offset, worker, false);
}

static uint64_t apply_staged_bytes(const weft_staged *staged) {
    uint64_t dense = staged->units * staged->width;
    return (staged->dense_news != NULL ? dense : 0) + (staged->dense_olds != NULL ? dense : 0) +
           (staged->changes.positions != NULL ? weft_changes_bytes(staged->changes.capacity, staged->width)
                                              : 0) +
           staged->window.segments.capacity * sizeof(weft_segment) +
           staged->target_count * sizeof *staged->targets;
}

static weft_sum apply_total_after(void *opaque, size_t tensor) {
    const weft_apply *apply = opaque;
    weft_sum total = weft_sums_total(apply->sums, tensor);
    weft_sum_add(&total, weft_sums_total(apply->moves, tensor));
    return total;
}

/* Tensors that share their memory were the same, and must become the same. */
static weft_status apply_check_ties(weft_apply *apply) {
    for (size_t i = 0; weft_view_tied(apply->view) && i < weft_view_count(apply->view); i++) {
        size_t tie = weft_view_tie(apply->view, i);
        if (tie != WEFT_NO_TIE &&
            !weft_sum_equal(apply_total_after(apply, i), apply_total_after(apply, tie))) {
            return weft_fail(apply->context, WEFT_UNSUPPORTED,
                             "tensors %s and %s share their memory here, but the patch makes them differ; "
                             "%s; give each memory of its own",
                             weft_view_at(apply->view, tie)->name, weft_view_at(apply->view, i)->name,
                             weft_apply_consequence(apply));
        }
    }
    return WEFT_OK;
}

/* What is staged together may be more than the limit, which nobody could know before. Ties are the same
 * again when all of it is staged. */
static weft_status apply_check_together(weft_apply *apply) {
    uint64_t limit = weft_context_limits(apply->context)->stage_bytes;
    if (apply->stats.stage_bytes <= limit) {
        bool all = apply->next >= apply->together;
        return all && apply->kind == WEFT_APPLY_LIVE ? apply_check_ties(apply) : WEFT_OK;
    }
    return weft_fail(apply->context, WEFT_LIMIT_EXCEEDED,
                     "changes to tensors that share their memory are staged together and take %llu bytes; "
                     "%s; raise limits.stage_bytes",
                     (unsigned long long)apply->stats.stage_bytes, weft_apply_consequence(apply));
}

static weft_status apply_check_result(weft_apply *apply) {
    weft_status status = apply_check_ties(apply);
    if (status != WEFT_OK || !weft_view_complete(apply->view)) {
        return status;
    }
    weft_digest result = weft_state_digest(apply->view, apply_total_after, apply);
    if (weft_digest_equal(&result, &apply->patch->footer.result)) {
        return WEFT_OK;
    }
    char made[WEFT_DIGEST_TEXT];
    char promised[WEFT_DIGEST_TEXT];
    weft_digest_format(&result, made);
    weft_digest_format(&apply->patch->footer.result, promised);
    return weft_fail(apply->context, WEFT_DIGEST_MISMATCH,
                     "the patch would make %s but promises %s; %s; fetch it again", made, promised,
                     weft_apply_consequence(apply));
}

static void apply_count_staged(weft_apply *apply, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        const weft_staged *staged = &apply->staged[i];
        if (staged->used) {
            apply->stats.stage_bytes += apply_staged_bytes(staged);
            apply->stats.changed += staged->changed;
            apply->stats.buckets++;
            apply->stats.bytes_read += apply->patch->index.entries[weft_apply_bucket(apply, i)].length;
        }
        if (apply->waiting != NULL && apply->waiting[i].used) {
            apply->waiting_count++;
            apply->waiting_bytes += weft_batch_words_bytes(&apply->waiting[i].words);
        }
    }
}

static weft_status apply_prove_bucket(void *argument, size_t offset, unsigned worker) {
    weft_apply *apply = argument;
    return weft_apply_prove_waiting(apply, apply->waiting_from + offset, worker);
}

/* The words that staged buckets wait for, all in one batch. A task, for a loop of one. */
static weft_status apply_gather_waiting(void *argument, size_t index, unsigned worker) {
    (void)index;
    (void)worker;
    weft_apply *apply = argument;
    weft_batch batch;
    weft_batch_begin(&batch, apply->context, weft_view_batch(apply->view));
    for (size_t i = apply->waiting_from; i < apply->staged_count; i++) {
        if (apply->waiting[i].used) {
            weft_batch_gather(&batch, &apply->staged[i].window, &apply->waiting[i].words);
        }
    }
    return weft_batch_end(&batch);
}

/* Proves the buckets that wait. */
static weft_status apply_end_waiting(weft_apply *apply) {
    weft_status status =
        apply->waiting_bytes > 0 ? weft_parallel(apply->context, 1, apply_gather_waiting, apply) : WEFT_OK;
    if (status == WEFT_OK && apply->waiting_count > 0) {
        status = weft_parallel(apply->context, apply->staged_count - apply->waiting_from,
                               apply_prove_bucket, apply);
    }
    apply_drop_waiting(apply);
    return status;
}

/* Drops what is staged, and forgets that it was counted. */
static void apply_undo_prepare(weft_apply *apply) {
    apply_drop_staged(apply);
    apply->stats.changed = apply->before.changed;
    apply->stats.buckets = apply->before.buckets;
    apply->stats.bytes_read = apply->before.bytes_read;
    weft_sums_merge(apply->moves, apply->moves, true);
    apply->next = apply->previous;
}

/* Stages the next `count` buckets. */
static weft_status apply_stage_some(weft_apply *apply, size_t count) {
    apply->staged_count = apply->next + count;
    weft_status status = weft_parallel(apply->context, count, apply_stage_bucket, apply);
    apply_count_staged(apply, apply->next, apply->staged_count);
    apply->next = apply->staged_count;
    return status;
}

/* `more_out`: the limit was reached before the last bucket. Words that are waited for count against it, and
 * are gathered as late as it allows: in one batch, if they fit. */
static weft_status apply_stage_more(weft_apply *apply, bool *more_out) {
    weft_status status = weft_apply_survey(apply);
    apply->previous = apply->next;
    apply->staged_count = apply->next;
    apply->waiting_from = apply->next;
    while (status == WEFT_OK && apply->next < apply->patch->index.count) {
        size_t count = weft_apply_fitting(apply);
        if (count == 0 && apply->waiting_count > 0) {
            status = apply_end_waiting(apply);
            continue;
        }
        *more_out = count == 0;
        if (*more_out) {
            return WEFT_OK;
        }
        status = apply_stage_some(apply, count);
        if (status == WEFT_OK && apply->previous < apply->together) {
            status = apply_end_waiting(apply);
            status = status == WEFT_OK ? apply_check_together(apply) : status;
        }
    }
    if (status == WEFT_OK) {
        status = apply_end_waiting(apply);
    }
    return status == WEFT_OK ? apply_check_result(apply) : status;
}

weft_status weft_apply_prepare(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != WEFT_APPLY_IDLE && apply->phase != WEFT_APPLY_COMMITTED) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "prepared changes must be committed or rolled back before preparing again");
    }
    double start = now();
    apply_drop_staged(apply);
    if (apply->phase == WEFT_APPLY_COMMITTED) {
        weft_sums_merge(apply->moves, apply->moves, true);
        apply->settled = apply->next;
        apply->moved = false;
        apply->phase = WEFT_APPLY_IDLE;
    }
    apply->before = apply->stats;
    weft_progress_begin(apply->context, "prepare", apply->patch->footer.dense_bytes);
    bool more = false;
    weft_status status = apply_stage_more(apply, &more);
    if (status != WEFT_OK) {
        apply_undo_prepare(apply);
        return status;
    }
    apply->phase = WEFT_APPLY_PREPARED;
    apply->stats.decode_seconds += now() - start;
    return more ? WEFT_MORE : WEFT_OK;
}

/* ---- writing ---- */

typedef struct apply_write_pass {
    weft_apply *apply;
    bool restore;
} apply_write_pass;

static weft_status apply_write_bucket(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const apply_write_pass *pass = argument;
    return weft_staged_write(&pass->apply->staged[index], pass->restore);
}

static bool apply_writes_batch(const weft_apply *apply) {
    for (size_t i = 0; apply->waiting != NULL && i < apply->staged_count; i++) {
        if (weft_window_batched(&apply->staged[i].window)) {
            return true;
        }
    }
    return false;
}

/* Everything that is staged, in one batch. */
static weft_status apply_write_batch(const weft_apply *apply, bool restore) {
    weft_batch batch;
    weft_batch_begin(&batch, apply->context, weft_view_batch(apply->view));
    for (size_t i = 0; i < apply->staged_count; i++) {
        weft_staged_write_batch(&batch, &apply->staged[i], restore);
    }
    return weft_batch_end(&batch);
}

/* What is not the workers' to do: a task, for a loop of one. */
static weft_status apply_write_rest(void *argument, size_t index, unsigned worker) {
    (void)index;
    (void)worker;
    const apply_write_pass *pass = argument;
    const weft_apply *apply = pass->apply;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < apply->staged_count && status == WEFT_OK; i++) {
        status = weft_staged_convert(&apply->staged[i], pass->restore);
    }
    return status == WEFT_OK && apply_writes_batch(apply) ? apply_write_batch(apply, pass->restore)
                                                          : status;
}

static weft_status apply_write_all(weft_apply *apply, bool restore) {
    apply_write_pass pass = {apply, restore};
    weft_status status = weft_parallel(apply->context, apply->staged_count, apply_write_bucket, &pass);
    bool rest = apply->waiting != NULL || weft_view_converts(apply->view);
    return status == WEFT_OK && rest ? weft_parallel(apply->context, 1, apply_write_rest, &pass) : status;
}

/* ---- in one go ---- */

static weft_status apply_run_bucket(void *argument, size_t offset, unsigned worker) {
    weft_apply *apply = argument;
    return weft_apply_stage(apply, apply->together + offset, worker, true);
}

/* Buckets of tensors that share their memory cannot be written as they are proven. */
static weft_status apply_run_together(weft_apply *apply) {
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && apply->next < apply->together) {
        size_t count = weft_apply_fitting(apply);
        size_t left = apply->together - apply->next;
        status = apply_stage_some(apply, count < left ? count : left);
        if (status == WEFT_OK) {
            status = apply_check_together(apply);
        }
    }
    for (size_t i = 0; i < apply->together && status == WEFT_OK; i++) {
        status = weft_staged_write(&apply->staged[i], false);
    }
    return status;
}

static weft_status apply_run_buckets(weft_apply *apply, size_t count) {
    weft_status status = weft_apply_survey(apply);
    if (status == WEFT_OK && apply->together > 0) {
        status = apply_run_together(apply);
    }
    apply->staged_count = count;
    if (status == WEFT_OK) {
        status = weft_parallel(apply->context, count - apply->together, apply_run_bucket, apply);
    }
    if (status == WEFT_OK) {
        status = apply_check_result(apply);
    }
    apply_count_staged(apply, apply->next, count);
    apply_drop_staged(apply);
    return status;
}

/* What is reached in batches, or converted, is better staged, as much as fits, than written bucket by
 * bucket. */
static weft_status apply_run_portions(weft_apply *apply) {
    weft_status status = WEFT_OK;
    bool more = true;
    while (status == WEFT_OK && more) {
        more = false;
        status = apply_stage_more(apply, &more);
        if (status == WEFT_OK) {
            status = apply_write_all(apply, false);
        }
        apply_drop_staged(apply);
    }
    return status;
}

weft_status weft_apply_run(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != WEFT_APPLY_IDLE || apply->next != 0) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT, "a run starts from a fresh apply");
    }
    double start = now();
    size_t count = apply->patch->index.count;
    weft_progress_begin(apply->context, "apply", apply->patch->footer.dense_bytes);
    apply->phase = WEFT_APPLY_RUN;
    bool staged = apply->waiting != NULL || weft_view_converts(apply->view);
    weft_status status = staged ? apply_run_portions(apply) : apply_run_buckets(apply, count);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sums_merge(apply->sums, apply->moves, false);
    apply->next = count;
    apply->stats.decode_seconds = now() - start;
    return WEFT_OK;
}

const weft_staged *weft_apply_staged(const weft_apply *apply, size_t *count_out) {
    *count_out = apply->staged_count;
    return apply->staged;
}

void weft_apply_drain(weft_apply *apply) {
    apply_drop_staged(apply);
    apply->phase = WEFT_APPLY_IDLE;
}

/* ---- committing and rolling back ---- */

weft_status weft_apply_commit(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != WEFT_APPLY_PREPARED) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "nothing is prepared that could be committed");
    }
    double start = now();
    weft_status status = apply_write_all(apply, false);
    if (status != WEFT_OK) {
        /* only callbacks can fail; if the old values can be put back, the text of that failure is kept */
        if (apply_write_all(apply, true) == WEFT_OK) {
            apply->phase = WEFT_APPLY_PREPARED;
            return status;
        }
        apply->phase = WEFT_APPLY_BROKEN;
        /* these say that nothing was changed, and are not for a scatter function to promise */
        bool promises = status == WEFT_CANCELLED || status == WEFT_ABORTED;
        return weft_fail(
            apply->context, promises ? WEFT_CALLBACK_FAILED : status,
            "a callback failed while committing, and again while the old values were put back: "
            "the weights are between two states; roll back once it works, or load them anew");
    }
    weft_sums_merge(apply->sums, apply->moves, false);
    apply->moved = true;
    apply->phase = WEFT_APPLY_COMMITTED;
    apply->stats.commit_seconds += now() - start;
    return WEFT_OK;
}

weft_status weft_apply_rollback(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase == WEFT_APPLY_RUN) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT, "a run cannot be rolled back");
    }
    if (apply->phase == WEFT_APPLY_COMMITTED || apply->phase == WEFT_APPLY_BROKEN) {
        weft_status status = apply_write_all(apply, true);
        if (status != WEFT_OK) {
            apply->phase = WEFT_APPLY_BROKEN;
            return status;
        }
        if (apply->moved) {
            weft_sums_merge(apply->sums, apply->moves, true);
            apply->moved = false;
        }
    }
    apply_undo_prepare(apply);
    apply->phase = WEFT_APPLY_IDLE;
    if (apply->settled > 0) {
        return weft_fail(
            apply->context, WEFT_UNSUPPORTED,
            "the first %zu of %zu buckets were committed in earlier steps and stay, so that the "
            "weights are between two states; prepare and commit the rest, or raise "
            "limits.stage_bytes to make it one step next time",
            apply->settled, apply->patch->index.count);
    }
    return WEFT_OK;
}

void weft_apply_describe(const weft_apply *apply, weft_apply_stats *stats_out) {
    weft_sized_write(&apply->stats, stats_out, sizeof apply->stats);
}
