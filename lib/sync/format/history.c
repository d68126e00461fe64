/* SPDX-License-Identifier: Apache-2.0
 *
 * history.c: pages, from the newest back.
 */
#include "history.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <string.h>

weft_status weft_history_parse(weft_context *context, const char *key, const uint8_t *data, size_t size,
                               weft_page **page_out) {
    weft_page *page = weft_allocate(context, sizeof *page);
    if (page == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_page_open(page, context);
    weft_status status = weft_page_parse(page, key, data, size);
    if (status != WEFT_OK) {
        weft_history_release(context, page);
        return status;
    }
    *page_out = page;
    return WEFT_OK;
}

static weft_status read_page(weft_context *context, weft_store *store, const weft_blob *blob,
                             const char *run, weft_page **page_out) {
    uint8_t *data;
    weft_page *page;
    double end = weft_clock_now() + WEFT_VISIBLE_SECONDS;
    unsigned failures = 0;
    weft_status status = weft_blob_fetch(context, store, blob, WEFT_PAGE_MAX, &data);
    while (status == WEFT_NOT_FOUND && weft_clock_now() < end) {
        status = weft_clock_sleep(context, weft_clock_backoff(0.05, WEFT_VISIBLE_SECONDS, ++failures));
        if (status == WEFT_OK) {
            status = weft_blob_fetch(context, store, blob, WEFT_PAGE_MAX, &data);
        }
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_history_parse(context, blob->key, data, (size_t)blob->bytes, &page);
    weft_release(context, data);
    if (status == WEFT_OK && strcmp(page->run, run) != 0) {
        status = weft_fail(context, WEFT_MALFORMED, "%s belongs to run %s, not to run %s", blob->key,
                           page->run, run);
        weft_history_release(context, page);
    }
    if (status == WEFT_OK) {
        *page_out = page;
    }
    return status;
}

/* Of a page that is damaged where it lies, there is something to be done. */
weft_status weft_history_page(weft_context *context, weft_store *store, const weft_blob *blob,
                              const char *run, weft_page **page_out) {
    weft_status status = read_page(context, store, blob, run, page_out);
    if (status != WEFT_NOT_FOUND && status != WEFT_CHECKSUM_MISMATCH) {
        return status;
    }
    return weft_fail(context, status, "%.511s; weft repair %s tells what that costs, and mends it",
                     weft_context_error(context), weft_store_url(store));
}

void weft_history_release(weft_context *context, weft_page *page) {
    if (page != NULL) {
        weft_page_close(page);
        weft_release(context, page);
    }
}

/* ---- the front ---- */

void weft_front_close(weft_front *front, weft_context *context) {
    weft_leaps_close(&front->leaps, context);
    weft_leaps_close(&front->made, context);
}

weft_status weft_front_take(weft_front *front, weft_context *context, const weft_page *page) {
    weft_status status = WEFT_OK;
    if (front->full) {
        return WEFT_OK;
    }
    for (size_t i = page->full ? 0 : page->record_count; i > 0; i--) {
        const weft_leaps *leaps = &page->records[i - 1].leaps;
        for (size_t j = leaps->count; j > 0 && status == WEFT_OK; j--) {
            status = weft_leaps_add(&front->made, context, &leaps->items[j - 1]);
        }
    }
    if (!page->full) {
        return status;
    }
    front->full = true;
    memcpy(front->anchors, page->anchors, sizeof front->anchors);
    front->anchor_count = page->anchor_count;
    status = weft_leaps_copy(&front->leaps, context, &page->leaps);
    for (size_t i = front->made.count; i > 0 && status == WEFT_OK; i--) {
        status = weft_ladder_add(&front->leaps, context, &front->made.items[i - 1]);
    }
    return status;
}

/* Puts the records of an earlier page before those of the front, and goes on from there. */
static weft_status join_page(weft_context *context, weft_page *front, weft_page *page) {
    size_t count = page->record_count;
    const weft_record *last = &page->records[count - 1];
    const weft_record *next = &front->records[0];
    if (last->version + 1 != next->version ||
        (next->patched && !weft_digest_equal(&next->base, &last->digest)) ||
        front->record_count + count > sizeof front->records / sizeof *front->records) {
        return weft_fail(context, WEFT_MALFORMED, "%s: the history has a gap", front->previous.key);
    }
    memmove(front->records + count, front->records, front->record_count * sizeof *front->records);
    memcpy(front->records, page->records, count * sizeof *front->records);
    front->record_count += count;
    front->linked = page->linked;
    front->previous = page->previous;
    page->record_count = 0;
    return WEFT_OK;
}

static weft_status complete_front(weft_context *context, weft_store *store, const char *run,
                                  weft_page *page) {
    weft_front front = {.full = false};
    weft_status status = weft_front_take(&front, context, page);
    /* a page that links to none is full */
    while (status == WEFT_OK && !front.full) {
        weft_page *before;
        status = weft_history_page(context, store, &page->previous, run, &before);
        if (status == WEFT_OK) {
            status = weft_front_take(&front, context, before);
            status = status == WEFT_OK ? join_page(context, page, before) : status;
            weft_history_release(context, before);
        }
    }
    if (status == WEFT_OK && !page->full) {
        page->full = true;
        memcpy(page->anchors, front.anchors, sizeof page->anchors);
        page->anchor_count = front.anchor_count;
        page->leaps = front.leaps;
        front.leaps = (weft_leaps){0};
    }
    weft_front_close(&front, context);
    return status;
}

weft_status weft_history_front(weft_context *context, weft_store *store, const weft_sync_head *head,
                               weft_page **page_out) {
    weft_page *page;
    weft_status status = weft_history_page(context, store, &head->page, head->run, &page);
    if (status != WEFT_OK) {
        return status;
    }
    status = complete_front(context, store, head->run, page);
    if (status != WEFT_OK) {
        weft_history_release(context, page);
        return status;
    }
    *page_out = page;
    return WEFT_OK;
}

/* ---- walking ---- */

/* Where a walk has come to. */
typedef struct walk_place {
    uint64_t next; /* the first version of the page after */
    bool patched;  /* that version came as a patch from `base` */
    weft_digest base;
    weft_blob blob; /* of the page to come */
} walk_place;

/* Each page must end where the one after it begins, so versions fall and a walk ends. */
static weft_status visit_page(weft_context *context, const weft_page *page, walk_place *place,
                              weft_history_visit visit, void *opaque) {
    const weft_record *last = &page->records[page->record_count - 1];
    if (last->version != place->next - 1 ||
        (place->patched && !weft_digest_equal(&place->base, &last->digest))) {
        return weft_fail(context, WEFT_MALFORMED, "%s: the history has a gap", place->blob.key);
    }
    weft_status status = visit(opaque, &place->blob, page);
    place->next = page->records[0].version;
    place->patched = page->records[0].patched;
    place->base = page->records[0].base;
    place->blob = page->previous;
    return status == WEFT_MORE && !page->linked ? WEFT_OK : status;
}

weft_status weft_history_walk(weft_context *context, weft_store *store, const weft_sync_head *head,
                              const weft_page *newest, weft_history_visit visit, void *opaque) {
    walk_place place = {.next = head->newest.version + 1, .blob = head->page};
    weft_status status = newest != NULL ? visit_page(context, newest, &place, visit, opaque) : WEFT_MORE;
    while (status == WEFT_MORE) {
        weft_page *page;
        status = weft_history_page(context, store, &place.blob, head->run, &page);
        if (status == WEFT_OK) {
            status = visit_page(context, page, &place, visit, opaque);
            weft_history_release(context, page);
        }
    }
    return status;
}
