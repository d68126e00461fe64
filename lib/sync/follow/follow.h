/* SPDX-License-Identifier: Apache-2.0
 *
 * follow.h: the newest head of a run, as one reader sees it: never older than one that it saw before.
 *
 * A weft_follow is about heads only. What is done about a new head is its owner's: a subscriber fetches
 * patches, a relay prefetches them, gc and the fleet read the history once.
 */
#ifndef WEFT_SYNC_FOLLOW_FOLLOW_H
#define WEFT_SYNC_FOLLOW_FOLLOW_H

#include "../format/head.h"
#include "watermark.h"

#include <weft/sync.h>

typedef struct weft_follow {
    weft_context *context;
    weft_store *store;
    const weft_key *trusted;
    char *mark_path; /* NULL: the watermark is not kept */
    bool durable;
    bool keeping; /* weft_follow_keep was called: the replica is ours, and its watermark is written */
    /* Set by a relay after the opening: a watermark that cannot be written is kept in memory, and heads are
     * accepted all the same. */
    bool lenient;
    weft_status unwritten; /* why the last write of the watermark failed; WEFT_OK: it did not */
    weft_watermark mark;
    bool seen; /* a head was accepted: `head`, `data` and `size` are set */
    weft_sync_head head;
    uint8_t data[WEFT_HEAD_MAX]; /* that head as it was read */
    size_t size;
    weft_store_tag tag; /* of the head that was read last, accepted or not */
    bool polls;         /* the store could not wait, the last time that it was asked to */
    /* When it is asked again: the answer may have been that of a proxy which was there for a moment. */
    double watch_again;
    /* For who polls; times of weft_clock_now. */
    double news;     /* of the last head with another version */
    double interval; /* between the last two versions, as their publisher dated them; 0: unknown */
    double looked;   /* at the store */
    double searched; /* for epochs after the one that was seen */
    unsigned hops;   /* versions in a row that each came with a new epoch */
} weft_follow;

/* Reads the watermark. `mark_path` may be NULL. */
weft_status weft_follow_open(weft_follow *follow, weft_context *context, weft_store *store,
                             const weft_key *trusted, const char *mark_path, bool durable);
void weft_follow_close(weft_follow *follow);
/* From now on every accepted head is written to the watermark before anything is done about it. A head that
 * was seen before this call, or whose write has failed, is written at once. */
weft_status weft_follow_keep(weft_follow *follow);

/* Looks for a newer head. WEFT_OK: there is one, in `head`. WEFT_MORE: there is none. WEFT_NOT_FOUND: there
 * is no head at all. */
weft_status weft_follow_look(weft_follow *follow);
/* The same with one request: at the epoch that was seen last. Later epochs are looked for if the head of
 * that one is not simply its next version, as it is after a takeover, and now and then, by the `pause`
 * between two of these calls. Where each version lately came with a new epoch, the one request is for that.
 */
weft_status weft_follow_glance(weft_follow *follow, double pause);
/* How long to wait from one look to the next where nobody can wait on the store: a share of the interval
 * between the last two versions, or of the time since the last one if that is longer, so that a version is
 * seen within a tenth of the time that it took; from `least` to `most`. */
double weft_follow_pause(const weft_follow *follow, double least, double most);
/* The same by a long poll: the store answers when it has a head with a version above `after`, or after
 * `seconds`. WEFT_UNSUPPORTED: it has no long poll. */
weft_status weft_follow_watch(weft_follow *follow, uint64_t after, double seconds);

#endif
