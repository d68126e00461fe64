/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.h: the history as its writer holds it: the records that the next pages will repeat, the links
 * between pages, the anchors that are kept, and what is no longer needed.
 *
 * A version is drafted, which changes nothing, and entered once its head has moved.
 */
#ifndef WEFT_SYNC_PUBLISH_LEDGER_H
#define WEFT_SYNC_PUBLISH_LEDGER_H

#include "../format/head.h"

typedef struct weft_ledger {
    weft_context *context;
    weft_store *store;
    char run[WEFT_RUN_TEXT];
    unsigned format; /* of the pages that it writes */
    uint64_t version;
    weft_record records[WEFT_PAGE_LONG]; /* since the last long page, ascending */
    size_t record_count;
    weft_blob page;                                     /* of `version` */
    weft_blob former;                                   /* the last long page */
    weft_blob shorts[WEFT_PAGE_LONG / WEFT_PAGE_SHORT]; /* ends of the short pages since then */
    weft_blob ends[WEFT_PAGE_SHORT];       /* of the pages since the last of those, by version */
    weft_anchor anchors[WEFT_ANCHORS_MAX]; /* newest first */
    size_t anchor_count;
    uint64_t full_version; /* whose page tells these anchors; 0: none does */
    bool drafted_full;     /* the page that was drafted last does */
    uint64_t floor;
    uint64_t patch_bytes; /* of patches since the newest anchor */
    weft_texts retired;   /* not needed any more, and not yet told in a record */
    weft_leaps ladder;    /* the widest leaps that follow each other */
    weft_leaps made;      /* leaps that are not yet told in a record */
} weft_ledger;

void weft_ledger_open(weft_ledger *ledger, weft_context *context, weft_store *store, const char *run,
                      unsigned format);
void weft_ledger_close(weft_ledger *ledger);
/* Reads back what the page of the newest version and those before it say. */
weft_status weft_ledger_resume(weft_ledger *ledger, const weft_sync_head *head);

/* What an anchor changes, to take it back if its version is not published after all. */
typedef struct weft_ledger_mark {
    weft_anchor anchors[WEFT_ANCHORS_MAX];
    size_t anchor_count;
    uint64_t floor;
    uint64_t patch_bytes;
    size_t retired_count;
} weft_ledger_mark;

void weft_ledger_save(const weft_ledger *ledger, weft_ledger_mark *mark);
void weft_ledger_restore(weft_ledger *ledger, const weft_ledger_mark *mark);

/* Takes an anchor into the list, and drops those beyond `keep`. */
weft_status weft_ledger_add_anchor(weft_ledger *ledger, const weft_anchor *anchor, size_t keep);

/* How many leaps the next page has room for: what does not fit waits for a later one. */
size_t weft_ledger_leap_room(const weft_ledger *ledger);
/* Takes in a leap up to a version that is entered. */
weft_status weft_ledger_add_leap(weft_ledger *ledger, const weft_leap *leap);

/* Fills in what the ledger knows of the next version's record (floor, retired objects, leaps), and writes
 * the page that ends with it to the store. */
weft_status weft_ledger_draft(weft_ledger *ledger, weft_record *record, const char *page_key,
                              weft_blob *page);
/* The same for the present version once more, because anchors or leaps have come, and with them what is
 * kept.
 */
weft_status weft_ledger_redraft(weft_ledger *ledger, const char *page_key, weft_blob *page);
/* The head names that page now. Takes over `record`, or NULL after a redraft. */
weft_status weft_ledger_enter(weft_ledger *ledger, weft_record *record, const weft_blob *page);

#endif
