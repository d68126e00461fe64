/* SPDX-License-Identifier: Apache-2.0
 *
 * anchor.h: a whole state as an object: the patch that leads there from nothing. Its buckets are cut like
 * those of the patches, and its byte planes are compressed.
 */
#ifndef WEFT_SYNC_PUBLISH_ANCHOR_H
#define WEFT_SYNC_PUBLISH_ANCHOR_H

#include "../objects/spool.h"
#include "baseline.h"

#include <pthread.h>

/* Writes the anchor of what the view holds; the caller finishes the spool. `sums_out` may be NULL. */
weft_status weft_anchor_encode(weft_context *context, const weft_view *view,
                               const weft_publisher_options *options, const weft_container *container,
                               const char *const *labels, weft_spool *spool, weft_sums **sums_out,
                               weft_diff_stats *stats);

/* Whoever keeps writing anchors must not fill the store for ever: weft_gc_run, if the options ask for it. A
 * failure only postpones it. */
void weft_anchor_collect(weft_context *context, weft_store *store, const weft_publisher_options *options);

/* Where an anchor is made from, and where it goes. */
typedef struct weft_anchor_task {
    weft_store *store;
    const weft_mirror *mirror;
    const weft_publisher_options *options;
    const weft_container *container;
    uint64_t epoch;
    /* what the mirror holds; all three change only under the lock */
    pthread_mutex_t *lock;
    const uint64_t *version;
    const weft_digest *digest;
} weft_anchor_task;

/* Puts the anchor of what the view holds, which must be the version and digest that `anchor` says, and
 * describes it there. */
weft_status weft_anchor_write(weft_context *context, const weft_anchor_task *task, const weft_view *view,
                              weft_anchor *anchor);

/* An anchor that is written by a thread of its own, from a copy of the mirror, while publishing goes on. */
typedef struct weft_anchor_job weft_anchor_job;

weft_status weft_anchor_start(weft_context *context, const weft_anchor_task *task,
                              weft_anchor_job **job_out);
bool weft_anchor_done(weft_anchor_job *job);
/* The version that it is of, for who holds the task's lock; 0 if it has no copy yet. */
uint64_t weft_anchor_version(const weft_anchor_job *job);
/* Waits for the end, releases, and tells how it went. */
weft_status weft_anchor_join(weft_context *context, weft_anchor_job *job, weft_anchor *anchor);

#endif
