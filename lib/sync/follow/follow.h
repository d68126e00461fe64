/* SPDX-License-Identifier: Apache-2.0
 *
 * follow.h: the newest head of a run, as one reader sees it: never older than what it saw before.
 *
 * Its *watermark*, the newest head that it has seen, is kept beside a replica, so that nobody can lead it
 * back to an older one, not even with a head that was once signed.
 */
#ifndef WEFT_SYNC_FOLLOW_FOLLOW_H
#define WEFT_SYNC_FOLLOW_FOLLOW_H

#include "../format/head.h"

#include <weft/sync.h>

typedef struct weft_watermark {
    char run[WEFT_RUN_TEXT]; /* "" : nothing was seen yet */
    uint64_t epoch;
    uint64_t sequence;
    uint64_t version; /* that it named as the newest; 0: not known */
    weft_digest digest;
} weft_watermark;

/* Where the watermark of the checkpoint at `path` lies: a hidden file beside it. Release the result. */
weft_status weft_watermark_path(weft_context *context, const char *path, char **path_out);
/* Removes a watermark that is not of the run, or cannot be read. */
void weft_watermark_drop(weft_context *context, const char *path, const char *run);
/* A file that is not there leaves the watermark empty. */
weft_status weft_watermark_read(weft_context *context, const char *path, weft_watermark *mark);
weft_status weft_watermark_write(weft_context *context, const char *path, const weft_watermark *mark,
                                 bool durable);

typedef struct weft_follow {
    weft_context *context;
    weft_store *store;
    const weft_key *trusted;
    char *mark_path; /* NULL: the watermark is not kept */
    bool durable;
    bool keeping; /* the watermark is written; before that the replica is not ours */
    bool lenient; /* a relay: a watermark that cannot be written is kept in memory, and heads are taken all
                   * the same
                   */
    weft_status unwritten; /* why the watermark in the file is an older one; WEFT_OK: it is not */
    weft_watermark mark;
    bool seen; /* `head` holds */
    weft_sync_head head;
    uint8_t data[WEFT_HEAD_MAX]; /* that head as it was read */
    size_t size;
    weft_store_tag tag; /* of that head's object */
    bool polls;         /* the store cannot wait */
    double
        watch_again; /* when that is tried again: what stood before a server for a moment may not know it */
} weft_follow;

/* Reads the watermark. `mark_path` may be NULL. */
weft_status weft_follow_open(weft_follow *follow, weft_context *context, weft_store *store,
                             const weft_key *trusted, const char *mark_path, bool durable);
void weft_follow_close(weft_follow *follow);
/* From now on the watermark is written; at once, if something was seen; and again if that has failed
 * before. */
weft_status weft_follow_keep(weft_follow *follow);

/* Looks for a newer head. WEFT_MORE: there is none. WEFT_NOT_FOUND: there is no head at all. */
weft_status weft_follow_look(weft_follow *follow);
/* The same, waiting on the store for one with a version above `after` for at most `seconds`.
 * WEFT_UNSUPPORTED: the store cannot wait. */
weft_status weft_follow_watch(weft_follow *follow, uint64_t after, double seconds);

#endif
