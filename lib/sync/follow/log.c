/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c: the history as people read it: one entry per version, from the newest back. `weft log`
 * prints it, and `weft serve` shows it.
 */
#include "../../base/context.h"
#include "../format/history.h"
#include "follow.h"

#include <string.h>

typedef struct log_walk {
    weft_log_visit visit;
    void *opaque;
    uint64_t floor;
    bool listed; /* `floor` and `anchors` are known: the front was read */
    size_t anchor_count;
    weft_anchor anchors[WEFT_ANCHORS_MAX];
} log_walk;

static bool visit_record(const log_walk *walk, const weft_record *record) {
    static const char *const none[] = {NULL};
    const weft_anchor *anchor = weft_anchor_find(walk->anchors, walk->anchor_count, record->version);
    const weft_log_entry entry = {
        .version = record->version,
        .epoch = record->epoch,
        .digest = record->digest,
        .milliseconds = record->milliseconds,
        .patch_bytes = record->patched ? record->patch.bytes : 0,
        .anchor_bytes = anchor != NULL ? anchor->object.bytes : 0,
        .changed = record->changed,
        .total = record->total,
        .dense_bytes = record->dense_bytes,
        .kept = record->version >= walk->floor,
        .labels = record->labels.items != NULL ? (const char *const *)record->labels.items : none,
    };
    return walk->visit(walk->opaque, &entry);
}

static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    log_walk *walk = opaque;
    if (!walk->listed) {
        walk->listed = true;
        walk->anchor_count = page->anchor_count;
        memcpy(walk->anchors, page->anchors, sizeof walk->anchors);
        walk->floor = page->records[page->record_count - 1].floor;
    }
    for (size_t i = page->record_count; i > 0; i--) {
        if (!visit_record(walk, &page->records[i - 1])) {
            return WEFT_OK;
        }
    }
    return WEFT_MORE;
}

weft_status weft_log_walk(weft_context *context, weft_store *store, const weft_key *trusted,
                          weft_log_visit visit, void *opaque) {
    weft_context_clear(context);
    weft_follow follow;
    weft_status status = weft_follow_open(&follow, context, store, trusted, NULL, false);
    if (status == WEFT_OK) {
        status = weft_follow_look(&follow);
    }
    if (status == WEFT_OK && follow.head.started) {
        weft_page *front;
        log_walk walk = {.visit = visit, .opaque = opaque};
        status = weft_history_front(context, store, &follow.head, &front);
        if (status == WEFT_OK) {
            status = weft_history_walk(context, store, &follow.head, front, visit_page, &walk);
            weft_history_release(context, front);
        }
    }
    weft_follow_close(&follow);
    return status;
}
