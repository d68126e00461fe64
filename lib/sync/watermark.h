/* SPDX-License-Identifier: Apache-2.0
 *
 * watermark.h: the newest head that a replica has seen, kept beside it, so that nobody can lead it back to
 * an older one, not even with a head that was once signed.
 */
#ifndef WEFT_SYNC_WATERMARK_H
#define WEFT_SYNC_WATERMARK_H

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

#endif
