/* SPDX-License-Identifier: Apache-2.0
 *
 * recall.h: which weights changed lately, and in which direction: what the profile `smallest` knows beyond
 * the base. Both sides build it from the patches that they make or apply, bucket by bucket, as sorted
 * lists; doc/FORMAT.md, section 9, has the rules.
 *
 * A step is a transaction: `begin`, a note for each bucket that changes (by any worker), `commit`. Until
 * the next `begin` a commit can be taken back.
 */
#ifndef WEFT_PATCH_RECALL_RECALL_H
#define WEFT_PATCH_RECALL_RECALL_H

#include "../../base/bytes.h"
#include "../../base/context.h"

enum {
    WEFT_RECALL_STEPS = 8,  /* a change is remembered for so many versions */
    WEFT_RECALL_SHARE = 64, /* a bucket of which more than one unit in so many changes forgets all */
};

typedef struct weft_recall weft_recall;

weft_status weft_recall_create(weft_context *context, weft_recall **recall_out);
void weft_recall_destroy(weft_recall *recall);
/* How many steps in a row it knows, at most WEFT_RECALL_STEPS. */
unsigned weft_recall_depth(const weft_recall *recall);
/* Forgets everything. */
void weft_recall_reset(weft_recall *recall);

void weft_recall_begin(weft_recall *recall);
void weft_recall_commit(weft_recall *recall);
/* Takes back what was begun, or the last commit. */
void weft_recall_rollback(weft_recall *recall);
/* What changes in a bucket. Positions ascend; steps are new minus old. `forget`, if they are too many. */
weft_status weft_recall_note(weft_recall *recall, uint64_t bucket, const uint32_t *positions,
                             const uint16_t *olds, const uint16_t *news, size_t count, bool forget);

/* What is known of a bucket. An item is a position, and below it twice its age, which is 1 if it changed in
 * the version before, plus 1 if it went down. */
typedef struct weft_recent {
    weft_context *context;
    uint64_t *items;
    size_t count;
    size_t capacity;
    uint32_t check; /* of the items; both sides must have the same */
} weft_recent;

static inline uint32_t weft_recent_position(uint64_t item) {
    return (uint32_t)(item >> 32);
}
static inline unsigned weft_recent_age(uint64_t item) {
    return (unsigned)(uint32_t)item >> 1;
}
static inline unsigned weft_recent_down(uint64_t item) {
    return (unsigned)item & 1;
}

void weft_recent_open(weft_recent *recent, weft_context *context);
void weft_recent_close(weft_recent *recent);
/* Lists what changed in the bucket, which has `units` units, within the last `depth` steps. */
weft_status weft_recent_list(weft_recent *recent, weft_recall *recall, uint64_t bucket, uint64_t units,
                             unsigned depth);

/* ---- recall_file.c: between processes, in a file beside a checkpoint ---- */

/* What state of the weights it belongs to. */
typedef struct weft_recall_mark {
    uint64_t version;
    uint8_t digest[16];
} weft_recall_mark;

/* Everything as bytes, and back: WEFT_MALFORMED if they are not that. The recall to be filled is empty. */
weft_status weft_recall_write(const weft_recall *recall, const weft_recall_mark *mark, weft_writer *writer);
weft_status weft_recall_read(weft_recall *recall, const uint8_t *data, size_t size, weft_recall_mark *mark);
/* Puts it into the file at the path; NULL, or nothing recalled: removes that. What cannot be written is not
 * there: nothing but a shorter way depends on it. */
void weft_recall_save(const weft_recall *recall, weft_context *context, const char *path,
                      const weft_recall_mark *mark);
/* The file's, or NULL in *recall_out if there is none, it is damaged or of another state than `digest`. */
weft_status weft_recall_load(weft_context *context, const char *path, const uint8_t digest[16],
                             weft_recall **recall_out, uint64_t *version_out);
/* Where that file lies for the checkpoint at a path: a hidden file beside it. Release the result. */
weft_status weft_recall_path(weft_context *context, const char *path, char **path_out);

#endif
