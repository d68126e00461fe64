/* SPDX-License-Identifier: Apache-2.0
 *
 * inside.h: what a recall consists of, for the files of this folder.
 */
#ifndef WEFT_PATCH_RECALL_INSIDE_H
#define WEFT_PATCH_RECALL_INSIDE_H

#include "recall.h"

#include <pthread.h>

/* Inside, an item is a position, and below it twice the number of its step, plus 1 if it went down. */
typedef struct weft_recall_list {
    uint64_t *items;
    size_t count;
} weft_recall_list;

typedef struct weft_recall_bucket {
    uint64_t bucket;
    weft_recall_list present;
    weft_recall_list other; /* what is noted of the step under way; after a commit, what was there before */
    bool touched;           /* `other` is used */
} weft_recall_bucket;

struct weft_recall {
    weft_context *context;
    pthread_mutex_t lock;       /* workers note and look up side by side */
    weft_recall_bucket **slots; /* by bucket, each at the first free place from where its number leads */
    size_t room;                /* a power of two, or 0 */
    size_t count;
    uint64_t steps; /* committed, since it was created */
    uint64_t known; /* of them in a row, up to now */
    bool committed; /* the last step can be taken back */
};

/* Steps are counted from 1: the one under way has number steps + 1. */
static inline uint64_t weft_recall_step(uint64_t item) {
    return (uint32_t)item >> 1;
}

/* That of a bucket, which is made if there is none. */
weft_status weft_recall_slot(weft_recall *recall, uint64_t bucket, weft_recall_bucket **slot_out);

#endif
