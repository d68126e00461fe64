/* SPDX-License-Identifier: Apache-2.0
 *
 * baseline.c: what was published last.
 *
 * Memory is brought forward by the diff itself, and back by its trail if the version is not published. A
 * checkpoint follows afterwards, by the patch, like any replica.
 */
#include "baseline.h"

#include "../base/context.h"
#include "../tensor/digest.h"
#include "subscriber.h"
#include "watermark.h"

weft_status weft_baseline_open(weft_baseline *baseline, weft_context *context, weft_store *store,
                               const weft_view *like, const char *path) {
    *baseline = (weft_baseline){.context = context, .store = store, .path = path};
    pthread_mutex_init(&baseline->lock, NULL);
    return path == NULL && like != NULL ? weft_mirror_open(&baseline->mirror, context, like) : WEFT_OK;
}

weft_status weft_baseline_share(weft_baseline *baseline, const weft_view *like, const weft_part_plan *plan,
                                const bool *owned) {
    baseline->holds = false;
    weft_sums_destroy(baseline->sums);
    weft_trail_destroy(baseline->trail);
    baseline->sums = NULL;
    baseline->trail = NULL;
    weft_mirror_close(&baseline->mirror);
    return weft_mirror_open_part(&baseline->mirror, baseline->context, like, plan, owned);
}

void weft_baseline_close(weft_baseline *baseline) {
    if (baseline->context == NULL) {
        return;
    }
    weft_sums_destroy(baseline->sums);
    weft_trail_destroy(baseline->trail);
    weft_mirror_close(&baseline->mirror);
    weft_in_place_close(baseline->place);
    pthread_mutex_destroy(&baseline->lock);
}

const weft_view *weft_baseline_view(const weft_baseline *baseline) {
    return baseline->place != NULL ? weft_in_place_view(baseline->place) : baseline->mirror.view;
}

const weft_sums *weft_baseline_sums(const weft_baseline *baseline) {
    return baseline->place != NULL ? weft_in_place_sums(baseline->place) : baseline->sums;
}

const weft_container *weft_baseline_container(const weft_baseline *baseline) {
    return baseline->place != NULL ? weft_checkpoint_container(weft_in_place_checkpoint(baseline->place))
                                   : NULL;
}

/* ---- from the store ---- */

static weft_status pull(weft_subscriber *subscriber, uint64_t version) {
    weft_status status = weft_subscriber_pull(subscriber, version);
    weft_subscriber_close(subscriber);
    return status;
}

static weft_status rebuild_memory(weft_baseline *baseline, uint64_t version) {
    weft_subscriber *subscriber;
    const weft_subscriber_options options = {.trusted = baseline->trusted, .empty = true};
    weft_status status = weft_subscriber_open(baseline->context, baseline->store, baseline->mirror.view,
                                              &options, &subscriber);
    if (status == WEFT_OK) {
        status = pull(subscriber, version);
    }
    if (status == WEFT_OK) {
        weft_sums_destroy(baseline->sums);
        baseline->sums = NULL;
        status = weft_sums_compute(baseline->context, baseline->mirror.view, &baseline->sums);
    }
    return status;
}

static weft_status open_place(weft_baseline *baseline) {
    weft_status status = weft_in_place_open(baseline->context, baseline->path, false, &baseline->place);
    if (status == WEFT_OK) {
        status = weft_in_place_load(baseline->place);
    }
    if (status != WEFT_OK) {
        weft_in_place_close(baseline->place);
        baseline->place = NULL;
    }
    return status;
}

/* The checkpoint is ours, whatever run it was of before. */
static weft_status drop_other_run(weft_baseline *baseline, const char *run) {
    char *mark;
    weft_status status = weft_watermark_path(baseline->context, baseline->path, &mark);
    if (status == WEFT_OK) {
        weft_watermark_drop(baseline->context, mark, run);
        weft_release(baseline->context, mark);
    }
    return status;
}

static weft_status rebuild_file(weft_baseline *baseline, const weft_sync_head *head) {
    weft_subscriber *subscriber;
    const weft_subscriber_options options = {.trusted = baseline->trusted, .replace = true};
    weft_in_place_close(baseline->place);
    baseline->place = NULL;
    weft_status status = drop_other_run(baseline, head->run);
    if (status == WEFT_OK) {
        status = weft_subscriber_open_file(baseline->context, baseline->store, baseline->path, &options,
                                           &subscriber);
    }
    if (status == WEFT_OK) {
        status = pull(subscriber, head->newest.version);
    }
    return status == WEFT_OK ? open_place(baseline) : status;
}

weft_status weft_baseline_rebuild(weft_baseline *baseline, const weft_sync_head *head) {
    baseline->holds = false;
    if (!head->started) {
        return WEFT_OK;
    }
    weft_status status = baseline->path != NULL ? rebuild_file(baseline, head)
                                                : rebuild_memory(baseline, head->newest.version);
    baseline->holds = status == WEFT_OK;
    baseline->version = head->newest.version;
    baseline->digest = head->newest.digest;
    return weft_subscriber_unusable(status) ? WEFT_OK : status;
}

/* ---- forward and back ---- */

static weft_status follow_patch(weft_baseline *baseline, const weft_patch *patch) {
    weft_status status = weft_in_place_prepare(baseline->place, patch);
    if (status == WEFT_OK) {
        status = weft_in_place_commit(baseline->place);
    }
    return status == WEFT_OK ? weft_in_place_load(baseline->place) : status;
}

static weft_status follow_anchor(weft_baseline *baseline, const weft_patch *patch) {
    weft_checkpoint *draft;
    weft_in_place_close(baseline->place);
    baseline->place = NULL;
    weft_status status =
        weft_apply_rebuild_draft(baseline->context, NULL, &patch, 1, baseline->path, &draft);
    if (status == WEFT_OK) {
        status = weft_checkpoint_finish(draft, false);
    }
    return status == WEFT_OK ? open_place(baseline) : status;
}

static weft_status follow_spool(weft_baseline *baseline, weft_spool *spool, bool anchor) {
    weft_source source = weft_spool_source(spool);
    weft_patch *patch;
    weft_status status = weft_patch_open(baseline->context, &source, &patch);
    if (status == WEFT_OK) {
        status = anchor ? follow_anchor(baseline, patch) : follow_patch(baseline, patch);
        weft_patch_close(patch);
    }
    return status;
}

void weft_baseline_advance(weft_baseline *baseline, weft_spool *spool, bool anchor, weft_sums **sums,
                           uint64_t version, const weft_digest *digest) {
    baseline->holds = true;
    baseline->version = version;
    baseline->digest = *digest;
    if (baseline->path == NULL) {
        weft_sums_destroy(baseline->sums);
        baseline->sums = *sums;
        weft_sums_attach(baseline->sums, baseline->mirror.view);
        *sums = NULL;
    } else if (follow_spool(baseline, spool, anchor) != WEFT_OK) {
        baseline->holds = false;
    }
}

/* Plain memory: that cannot fail but for want of a thread's memory, and then nothing is believed. */
void weft_baseline_undo(weft_baseline *baseline) {
    if (weft_trail_undo(baseline->context, baseline->trail) != WEFT_OK) {
        baseline->holds = false;
    }
}

weft_status weft_baseline_audit(weft_baseline *baseline, uint64_t bytes) {
    if (!baseline->holds) {
        return WEFT_OK;
    }
    weft_sums *sums = baseline->place != NULL ? weft_in_place_sums(baseline->place) : baseline->sums;
    weft_status status = weft_sums_audit(baseline->context, sums, bytes);
    if (status != WEFT_DIGEST_MISMATCH) {
        return status;
    }
    baseline->holds = false;
    weft_context_clear(baseline->context);
    return WEFT_OK;
}
