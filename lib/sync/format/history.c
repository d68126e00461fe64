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
