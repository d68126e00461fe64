/* SPDX-License-Identifier: Apache-2.0
 *
 * watermark.h: the newest head that a replica has seen, in a hidden file beside it. A restarted replica
 * reads it, so nobody can lead it back to an older head, not even with one that was once signed.
 */
#ifndef WEFT_SYNC_FOLLOW_WATERMARK_H
#define WEFT_SYNC_FOLLOW_WATERMARK_H

#include <weft/sync.h>

typedef struct weft_watermark {
    char run[WEFT_RUN_TEXT]; /* "" : nothing was seen yet */
    uint64_t epoch;
    uint64_t sequence;
    uint64_t version;   /* the newest one, as that head named it; 0: not known */
    weft_digest digest; /* of that version */
} weft_watermark;

/* Where the watermark of the checkpoint at `path` lies: a hidden file beside it. Release the result.
 * Everywhere else `path` is that of the watermark itself. */
weft_status weft_watermark_path(weft_context *context, const char *path, char **path_out);
/* Removes a watermark that is not of the run, or cannot be read. */
void weft_watermark_drop(weft_context *context, const char *path, const char *run);
/* A file that is not there leaves the watermark empty. */
weft_status weft_watermark_read(weft_context *context, const char *path, weft_watermark *mark);
weft_status weft_watermark_write(weft_context *context, const char *path, const weft_watermark *mark,
                                 bool durable);

#endif
