/* SPDX-License-Identifier: Apache-2.0
 *
 * merger.h: patches over several versions, made beside publishing.
 *
 * After each version a thread notes what has changed; at the end of each leap it makes the patch over the
 * whole of it from the publisher's copy, which the next version therefore waits for. A second thread puts
 * the patches and their nodes into the store, which nobody waits for. What fails is left out: leaps are a
 * shorter way, never the only one.
 *
 * A publisher whose copy is a checkpoint may be a process per version. Then what has changed is kept in
 * files beside the checkpoint, and everything is done at once.
 */
#ifndef WEFT_SYNC_PUBLISH_MERGER_H
#define WEFT_SYNC_PUBLISH_MERGER_H

#include "../format/leap.h"
#include "baseline.h"
#include "ledger.h"

typedef struct weft_merger_task {
    weft_store *store;
    const weft_baseline *baseline; /* its copy, sums and trail are read */
    const weft_view *view;         /* what is published */
    const weft_publisher_options *options;
    const weft_container *container;
    const char *directory; /* for patches on their way */
    const char *run;       /* copied */
    uint64_t epoch;
} weft_merger_task;

typedef struct weft_merger weft_merger;

/* Goes on with the leaps of the ledger. What the task points to must outlive the merger. */
weft_status weft_merger_open(weft_context *context, const weft_merger_task *task, const weft_ledger *ledger,
                             weft_merger **merger_out);
/* Gives up what is under way. */
void weft_merger_close(weft_merger *merger);

/* A version is published, and the baseline holds it; its trail tells what was before. The record is copied.
 * Without memory for that the version is missed, and the leaps over it with it. */
void weft_merger_note(weft_merger *merger, const weft_record *record);
/* Waits until the baseline is not read any more: before it moves. */
void weft_merger_yield(weft_merger *merger);
/* Enters what is finished into the ledger; with `wait`, after waiting for all of it. `any_out` tells
 * whether there was something. */
weft_status weft_merger_collect(weft_merger *merger, bool wait, weft_ledger *ledger, bool *any_out);

#endif
