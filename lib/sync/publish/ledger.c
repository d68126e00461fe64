/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.c: writing the history.
 */
#include "ledger.h"

#include "../../base/context.h"
#include "../format/history.h"
#include "../format/leap.h"

#include <string.h>

void weft_ledger_open(weft_ledger *ledger, weft_context *context, weft_store *store, const char *run,
                      unsigned format) {
    memset(ledger, 0, sizeof *ledger);
    ledger->context = context;
    ledger->store = store;
    memcpy(ledger->run, run, sizeof ledger->run);
    ledger->format = format;
    ledger->floor = 1;
}

static void clear_records(weft_ledger *ledger) {
    for (size_t i = 0; i < ledger->record_count; i++) {
        weft_record_close(&ledger->records[i], ledger->context);
    }
    ledger->record_count = 0;
}

void weft_ledger_close(weft_ledger *ledger) {
    clear_records(ledger);
    weft_texts_close(&ledger->retired, ledger->context);
    weft_leaps_close(&ledger->ladder, ledger->context);
    weft_leaps_close(&ledger->made, ledger->context);
}

/* ---- reading back ---- */

static size_t short_slot(uint64_t version) {
    return (size_t)(version % WEFT_PAGE_LONG / WEFT_PAGE_SHORT);
}

/* The version that begins the long page which `version` is or will be on. */
static uint64_t group_of(uint64_t version) {
    return (version - 1) / WEFT_PAGE_LONG * WEFT_PAGE_LONG + 1;
}

/* Where the page that ends with a version is remembered, for those that will link to it. NULL: nobody
 * will, or it is the last long one. */
static weft_blob *place_of(weft_ledger *ledger, uint64_t version) {
    if (version % WEFT_PAGE_SHORT != 0) {
        return version > ledger->version / WEFT_PAGE_SHORT * WEFT_PAGE_SHORT
                   ? &ledger->ends[version % WEFT_PAGE_SHORT]
                   : NULL;
    }
    return version % WEFT_PAGE_LONG != 0 ? &ledger->shorts[short_slot(version)] : NULL;
}

static void note_page(weft_ledger *ledger, uint64_t version, const weft_blob *blob) {
    weft_blob *place = place_of(ledger, version);
    if (place != NULL) {
        *place = *blob;
    }
}

/* Pages come newest first: their records go before those that are there. */
static weft_status prepend_records(weft_ledger *ledger, weft_page *page) {
    size_t count = page->record_count;
    if (ledger->record_count + count > WEFT_PAGE_LONG) {
        return weft_fail(ledger->context, WEFT_MALFORMED, "the history's pages overlap");
    }
    memmove(ledger->records + count, ledger->records, ledger->record_count * sizeof *ledger->records);
    memcpy(ledger->records, page->records, count * sizeof *ledger->records);
    ledger->record_count += count;
    page->record_count = 0;
    return WEFT_OK;
}

static weft_status take_newest(weft_ledger *ledger, const weft_blob *blob, const weft_page *page) {
    const weft_record *newest = &page->records[page->record_count - 1];
    ledger->version = newest->version;
    ledger->floor = newest->floor;
    ledger->page = *blob;
    return page->replaces[0] != '\0' ? weft_texts_add(&ledger->retired, ledger->context, page->replaces)
                                     : WEFT_OK;
}

/* Anchors and leaps, which the first pages tell together. */
static weft_status take_front(weft_ledger *ledger, const weft_sync_head *head) {
    weft_page *front;
    weft_status status = weft_history_front(ledger->context, ledger->store, head, &front);
    if (status == WEFT_OK) {
        memcpy(ledger->anchors, front->anchors, sizeof ledger->anchors);
        ledger->anchor_count = front->anchor_count;
        status = weft_leaps_copy(&ledger->ladder, ledger->context, &front->leaps);
        weft_history_release(ledger->context, front);
    }
    return status;
}

static uint64_t anchor_version(const weft_ledger *ledger) {
    return ledger->anchor_count > 0 ? ledger->anchors[0].version : 0;
}

/* WEFT_MORE: the page before is wanted too, for the records of the long page under way, or to count the
 * patches since the newest anchor. */
static weft_status take_page(weft_ledger *ledger, const weft_blob *blob, weft_page *page) {
    uint64_t first = page->records[0].version;
    uint64_t last = page->records[page->record_count - 1].version;
    weft_status status = ledger->version == 0 ? take_newest(ledger, blob, page) : WEFT_OK;
    uint64_t group = group_of(ledger->version);
    for (size_t i = 0; i < page->record_count; i++) {
        const weft_record *record = &page->records[i];
        if (record->patched && record->version > anchor_version(ledger)) {
            ledger->patch_bytes += record->patch.bytes;
        }
    }
    note_page(ledger, last, blob);
    ledger->full_version = page->full && last > ledger->full_version ? last : ledger->full_version;
    if (status == WEFT_OK && last >= group) {
        status = prepend_records(ledger, page);
    }
    if (first == group && page->linked) {
        ledger->former = page->previous;
    }
    bool more = page->linked && (first > group || first > anchor_version(ledger) + 1);
    return status == WEFT_OK && more ? WEFT_MORE : status;
}

/* Pages before the long one that is under way only tell how many bytes the patches since the newest anchor
 * have. Where one cannot be read, an anchor is due. */
static bool is_dispensable(const weft_ledger *ledger, uint64_t next, weft_status status) {
    return next != 0 && next <= group_of(ledger->version) &&
           (weft_status_is_integrity(status) || status == WEFT_NOT_FOUND);
}

weft_status weft_ledger_resume(weft_ledger *ledger, const weft_sync_head *head) {
    weft_blob blob = head->page;
    uint64_t next = 0; /* the first version of the page after */
    weft_status status = take_front(ledger, head);
    status = status == WEFT_OK ? WEFT_MORE : status;
    while (status == WEFT_MORE) {
        weft_page *read;
        status = weft_history_page(ledger->context, ledger->store, &blob, ledger->run, &read);
        if (status == WEFT_OK) {
            uint64_t first = read->records[0].version;
            bool adjoins = next == 0 || read->records[read->record_count - 1].version + 1 == next;
            next = first;
            status =
                adjoins ? take_page(ledger, &blob, read)
                        : weft_fail(ledger->context, WEFT_MALFORMED, "%s: the history has a gap", blob.key);
            blob = read->previous;
            weft_history_release(ledger->context, read);
        } else if (is_dispensable(ledger, next, status)) {
            ledger->patch_bytes = UINT64_MAX / 2;
            weft_context_clear(ledger->context);
            status = WEFT_OK;
        }
    }
    return status;
}

/* ---- anchors ---- */

void weft_ledger_save(const weft_ledger *ledger, weft_ledger_mark *mark) {
    memcpy(mark->anchors, ledger->anchors, sizeof mark->anchors);
    mark->anchor_count = ledger->anchor_count;
    mark->floor = ledger->floor;
    mark->patch_bytes = ledger->patch_bytes;
    mark->retired_count = ledger->retired.count;
}

void weft_ledger_restore(weft_ledger *ledger, const weft_ledger_mark *mark) {
    memcpy(ledger->anchors, mark->anchors, sizeof ledger->anchors);
    ledger->anchor_count = mark->anchor_count;
    ledger->floor = mark->floor;
    ledger->patch_bytes = mark->patch_bytes;
    while (ledger->retired.count > mark->retired_count) {
        weft_release(ledger->context, ledger->retired.items[--ledger->retired.count]);
        ledger->retired.items[ledger->retired.count] = NULL;
    }
}

static weft_status retire_object(weft_ledger *ledger, const weft_object *object) {
    weft_status status = weft_texts_add(&ledger->retired, ledger->context, object->key);
    return status == WEFT_OK && object->listed
               ? weft_texts_add(&ledger->retired, ledger->context, object->list.key)
               : status;
}

weft_status weft_ledger_add_anchor(weft_ledger *ledger, const weft_anchor *anchor, size_t keep) {
    keep = keep < WEFT_ANCHORS_MAX ? keep : WEFT_ANCHORS_MAX - 1;
    /* one that was made in the background may come after a version that was published whole */
    if (anchor->version <= anchor_version(ledger)) {
        return retire_object(ledger, &anchor->object);
    }
    ledger->full_version = 0;
    weft_status status = WEFT_OK;
    while (ledger->anchor_count >= keep && ledger->anchor_count > 0 && status == WEFT_OK) {
        status = retire_object(ledger, &ledger->anchors[ledger->anchor_count - 1].object);
        ledger->anchor_count -= status == WEFT_OK;
    }
    if (status != WEFT_OK) {
        return status;
    }
    memmove(ledger->anchors + 1, ledger->anchors, ledger->anchor_count * sizeof *ledger->anchors);
    ledger->anchors[0] = *anchor;
    ledger->anchor_count++;
    if (ledger->anchor_count == keep) {
        uint64_t oldest = ledger->anchors[ledger->anchor_count - 1].version;
        ledger->floor = oldest > ledger->floor ? oldest : ledger->floor;
    }
    ledger->patch_bytes = 0;
    for (size_t i = 0; i < ledger->record_count; i++) {
        const weft_record *record = &ledger->records[i];
        if (record->patched && record->version > anchor->version) {
            ledger->patch_bytes += record->patch.bytes;
        }
    }
    return WEFT_OK;
}

/* ---- leaps ---- */

/* What leads to versions that are no longer kept leads nowhere; and leaps that ended long ago, because no
 * more were made, would only have readers go through all versions since. */
static void drop_old_leaps(weft_ledger *ledger) {
    size_t count = ledger->ladder.count;
    if (count > 0 && ledger->ladder.items[count - 1].last + WEFT_LEAP_TAIL < ledger->version) {
        ledger->ladder.count = 0;
    }
    size_t gone = 0;
    while (gone < ledger->ladder.count && ledger->ladder.items[gone].last <= ledger->floor) {
        gone++;
    }
    ledger->ladder.count -= gone;
    if (gone > 0) {
        memmove(ledger->ladder.items, ledger->ladder.items + gone,
                ledger->ladder.count * sizeof *ledger->ladder.items);
    }
}

/* A new anchor's page repeats the newest record, with what it says already. */
size_t weft_ledger_leap_room(const weft_ledger *ledger) {
    size_t told = ledger->record_count > 0 ? ledger->records[ledger->record_count - 1].leaps.count : 0;
    size_t used = told + ledger->made.count;
    return used < WEFT_LEAPS_MAX ? WEFT_LEAPS_MAX - used : 0;
}

weft_status weft_ledger_add_leap(weft_ledger *ledger, const weft_leap *leap) {
    weft_status status = weft_ladder_add(&ledger->ladder, ledger->context, leap);
    return status == WEFT_OK ? weft_leaps_add(&ledger->made, ledger->context, leap) : status;
}

/* ---- drafting ---- */

/* The page before the one that starts with `first`. */
static const weft_blob *page_before(const weft_ledger *ledger, uint64_t first) {
    if (first == ledger->version + 1) {
        return &ledger->page;
    }
    if ((first - 1) % WEFT_PAGE_LONG == 0) {
        return &ledger->former;
    }
    return (first - 1) % WEFT_PAGE_SHORT == 0 ? &ledger->shorts[short_slot(first - 1)]
                                              : &ledger->ends[(first - 1) % WEFT_PAGE_SHORT];
}

/* The version that the page of `version` begins with. A writer that goes on from pages of format 1, which
 * begin elsewhere, may find none that ends before all that the page could hold. */
static uint64_t first_of(const weft_ledger *ledger, uint64_t version) {
    uint64_t span = weft_page_span(ledger->format, version);
    while (span > 1 && version % WEFT_PAGE_SHORT != 0 && (version - span) % WEFT_PAGE_SHORT != 0 &&
           ledger->ends[(version - span) % WEFT_PAGE_SHORT].key[0] == '\0') {
        span /= 2;
    }
    return version - span + 1;
}

/* What a new anchor has made superfluous stands in the newest record from now on: the writer may end before
 * there is another. */
static weft_status amend_record(const weft_ledger *ledger, weft_record *newest) {
    newest->floor = ledger->floor;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < ledger->retired.count && status == WEFT_OK; i++) {
        status = weft_texts_add(&newest->retired, ledger->context, ledger->retired.items[i]);
    }
    for (size_t i = 0; i < ledger->made.count && status == WEFT_OK; i++) {
        status = weft_leaps_add(&newest->leaps, ledger->context, &ledger->made.items[i]);
    }
    return status;
}

static weft_status fill_front(const weft_ledger *ledger, weft_page *page) {
    page->full = true;
    memcpy(page->anchors, ledger->anchors, sizeof page->anchors);
    page->anchor_count = ledger->anchor_count;
    return weft_leaps_copy(&page->leaps, ledger->context, &ledger->ladder);
}

static weft_status fill_page(const weft_ledger *ledger, const weft_record *record, weft_page *page) {
    uint64_t version = record != NULL ? record->version : ledger->version;
    uint64_t first = first_of(ledger, version);
    weft_status status = WEFT_OK;
    memcpy(page->run, ledger->run, sizeof page->run);
    for (size_t i = 0; i < ledger->record_count && status == WEFT_OK; i++) {
        if (ledger->records[i].version >= first) {
            status =
                weft_record_copy(ledger->context, &ledger->records[i], &page->records[page->record_count]);
            page->record_count += status == WEFT_OK;
        }
    }
    if (status == WEFT_OK && record != NULL) {
        status = weft_record_copy(ledger->context, record, &page->records[page->record_count]);
        page->record_count += status == WEFT_OK;
    }
    if (status == WEFT_OK && record == NULL) {
        status = amend_record(ledger, &page->records[page->record_count - 1]);
        memcpy(page->replaces, ledger->page.key, sizeof page->replaces);
    }
    /* a history that does not begin with version 1 has no page before its first */
    const weft_blob *before = page_before(ledger, first);
    page->linked = first > 1 && before->key[0] != '\0';
    if (page->linked) {
        page->previous = *before;
    }
    /* who takes the place of the last full page is full as well */
    bool full = ledger->format == WEFT_SYNC_FORMAT || ledger->full_version == 0 ||
                first <= ledger->full_version || record == NULL || version % WEFT_PAGE_FULL == 0 ||
                !page->linked;
    return status == WEFT_OK && full ? fill_front(ledger, page) : status;
}

static weft_status draft_page(weft_ledger *ledger, const weft_record *record, const char *key,
                              weft_blob *blob) {
    weft_page *page = weft_allocate(ledger->context, sizeof *page);
    if (page == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_page_open(page, ledger->context);
    page->format = ledger->format;
    weft_status status = fill_page(ledger, record, page);
    if (status == WEFT_OK) {
        status = weft_page_write(page, ledger->store, key, blob);
    }
    ledger->drafted_full = page->full;
    weft_history_release(ledger->context, page);
    return status;
}

/* A page replaces those whose records it repeats. */
static weft_status retire_pages(const weft_ledger *ledger, weft_record *record) {
    weft_context *context = ledger->context;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < ledger->retired.count && status == WEFT_OK; i++) {
        status = weft_texts_add(&record->retired, context, ledger->retired.items[i]);
    }
    for (uint64_t i = first_of(ledger, record->version); i < record->version && status == WEFT_OK; i++) {
        const weft_blob *end = &ledger->ends[i % WEFT_PAGE_SHORT];
        if (i > ledger->version / WEFT_PAGE_SHORT * WEFT_PAGE_SHORT && end->key[0] != '\0') {
            status = weft_texts_add(&record->retired, context, end->key);
        }
    }
    bool replaces = record->version % WEFT_PAGE_LONG == 0;
    for (size_t i = 1; replaces && i < WEFT_PAGE_LONG / WEFT_PAGE_SHORT && status == WEFT_OK; i++) {
        if (ledger->shorts[i].key[0] != '\0') {
            status = weft_texts_add(&record->retired, context, ledger->shorts[i].key);
        }
    }
    return status;
}

weft_status weft_ledger_draft(weft_ledger *ledger, weft_record *record, const char *page_key,
                              weft_blob *page) {
    record->floor = ledger->floor;
    drop_old_leaps(ledger);
    weft_status status = ledger->version > 0 ? retire_pages(ledger, record) : WEFT_OK;
    if (status == WEFT_OK) {
        status = weft_leaps_copy(&record->leaps, ledger->context, &ledger->made);
    }
    return status == WEFT_OK ? draft_page(ledger, record, page_key, page) : status;
}

weft_status weft_ledger_redraft(weft_ledger *ledger, const char *page_key, weft_blob *page) {
    drop_old_leaps(ledger);
    return draft_page(ledger, NULL, page_key, page);
}

/* ---- entering ---- */

weft_status weft_ledger_enter(weft_ledger *ledger, weft_record *record, const weft_blob *page) {
    if (record == NULL) {
        weft_status status = amend_record(ledger, &ledger->records[ledger->record_count - 1]);
        if (status == WEFT_OK) {
            weft_texts_close(&ledger->retired, ledger->context);
            weft_leaps_close(&ledger->made, ledger->context);
            status = weft_texts_add(&ledger->retired, ledger->context, ledger->page.key);
        }
        ledger->full_version = ledger->version;
        ledger->page = *page;
        note_page(ledger, ledger->version, page);
        return status;
    }
    if (ledger->version > 0 && ledger->version % WEFT_PAGE_LONG == 0) {
        /* what a finished long page holds need not be repeated; the next pages link to it */
        ledger->former = ledger->page;
        clear_records(ledger);
        memset(ledger->shorts, 0, sizeof ledger->shorts);
    }
    if (record->patched) {
        ledger->patch_bytes += record->patch.bytes;
    }
    weft_texts_close(&ledger->retired, ledger->context);
    weft_leaps_close(&ledger->made, ledger->context);
    for (uint64_t i = first_of(ledger, record->version); i < record->version; i++) {
        if (i % WEFT_PAGE_SHORT != 0) {
            ledger->ends[i % WEFT_PAGE_SHORT] = (weft_blob){.bytes = 0};
        }
    }
    ledger->version = record->version;
    ledger->full_version = ledger->drafted_full ? ledger->version : ledger->full_version;
    ledger->page = *page;
    ledger->records[ledger->record_count++] = *record;
    *record = (weft_record){0};
    note_page(ledger, ledger->version, page);
    return WEFT_OK;
}
