/* SPDX-License-Identifier: Apache-2.0
 *
 * baseline.h: a publisher's copy of what was published last: in memory, or in a checkpoint of its own. It
 * is what the next version is a difference from, and it moves only with the head.
 *
 * What lies in memory is a mirror: a private copy of all of a model, or of the part that is published.
 */
#ifndef WEFT_SYNC_PUBLISH_BASELINE_H
#define WEFT_SYNC_PUBLISH_BASELINE_H

#include "../../patch/apply/in_place.h"
#include "../../patch/diff/part.h"
#include "../format/head.h"
#include "../objects/spool.h"

#include <pthread.h>

typedef struct weft_mirror {
    weft_context *context;
    weft_table *table;
    weft_view *view;
    uint8_t *memory;
    uint64_t bytes;
    bool mapped; /* fresh pages of the system; else the context's memory */
} weft_mirror;

/* Room for the tensors of `like`, in their dtypes; what it holds is undefined. */
weft_status weft_mirror_open(weft_mirror *mirror, weft_context *context, const weft_view *like);
/* Room for the owned buckets of a plan; it holds zeros. A box that is owned in some of its rows takes the
 * room of all of them. */
weft_status weft_mirror_open_part(weft_mirror *mirror, weft_context *context, const weft_view *like,
                                  const weft_part_plan *plan, const bool *owned);
void weft_mirror_close(weft_mirror *mirror);
/* Copies what a view of the same tensors holds; FP32 masters are cast. Of a mirror of the whole model. */
weft_status weft_mirror_fill(weft_context *context, weft_mirror *mirror, const weft_view *view);
/* Copies a mirror of the same tensors. */
void weft_mirror_copy(weft_mirror *mirror, const weft_mirror *from);

typedef struct weft_baseline {
    weft_context *context;
    weft_store *store;
    const weft_key *trusted; /* what is fetched must be signed by it; NULL: any will do */
    const char *path;        /* NULL: in memory */
    bool holds;              /* what was published last: */
    uint64_t version;
    weft_digest digest;

    pthread_mutex_t lock; /* held while the memory is read by an anchor, or changed */
    weft_mirror mirror;
    weft_sums *sums;
    weft_trail *trail; /* what the memory held before it went ahead, or the checkpoint before it followed */

    weft_in_place *place;
} weft_baseline;

/* Room for the tensors of `like`, holding nothing yet; NULL: no room, until weft_baseline_share. */
weft_status weft_baseline_open(weft_baseline *baseline, weft_context *context, weft_store *store,
                               const weft_view *like, const char *path);
/* From now on it is of the owned buckets of a plan only, in memory, and holds nothing yet. */
weft_status weft_baseline_share(weft_baseline *baseline, const weft_view *like, const weft_part_plan *plan,
                                const bool *owned);
void weft_baseline_close(weft_baseline *baseline);
/* Fetches the version of the head from the store, unless the checkpoint holds it. If what the store has
 * cannot be used, the baseline holds nothing: the next version then comes as an anchor, which heals it. */
weft_status weft_baseline_rebuild(weft_baseline *baseline, const weft_sync_head *head);

const weft_view *weft_baseline_view(const weft_baseline *baseline);
const weft_sums *weft_baseline_sums(const weft_baseline *baseline);
/* The files of a checkpoint, or NULL. */
const weft_container *weft_baseline_container(const weft_baseline *baseline);

/* The version whose object is in the spool is published. `sums` are those of its state, over a view of the
 * same tensors, and are taken over; `recall` is what its patch was coded with, or NULL. A checkpoint that
 * cannot follow holds nothing from then on. */
void weft_baseline_advance(weft_baseline *baseline, weft_spool *spool, bool anchor, weft_sums **sums,
                           uint64_t version, const weft_digest *digest, weft_recall *recall);
/* Re-sums a part of what it holds. If that has drifted, nothing is believed of it. */
weft_status weft_baseline_audit(weft_baseline *baseline, uint64_t bytes);
/* Memory that a diff has brought ahead goes back. */
void weft_baseline_undo(weft_baseline *baseline);

#endif
