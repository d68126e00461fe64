/* SPDX-License-Identifier: Apache-2.0
 *
 * repair_mend.c: writing what a look has made for damaged pages and heads.
 *
 * It writes, in this order: pages that could be made again byte for byte; heads that are none, of old
 * epochs first; and if a page had to be made anew, that and all pages after it, which name each other, and
 * a head in a new epoch that names the newest. That epoch fences whoever published before, as any other
 * publisher's does. A head is only written over what the look saw there.
 */
#include "repair.h"

#include "../../base/context.h"
#include "../format/history.h"
#include "../format/leap.h"
#include "../publish/claim.h"

#include <stdio.h>
#include <string.h>

/* Of a head that takes the place of a lost one: above all that its epoch can have had, so that who has seen
 * those goes on even if the new epoch is never begun. */
static const uint64_t MENDED_SEQUENCE = (uint64_t)1 << 40;

static bool is_mendable(const weft_repair *repair, weft_repair_kind kind) {
    for (size_t i = 0; i < repair->note_count; i++) {
        if (repair->notes[i].kind == kind && repair->notes[i].mendable) {
            return true;
        }
    }
    return false;
}

/* True if a page must be made that is not, byte for byte, the one that is damaged. */
static bool needs_links(const weft_repair *repair) {
    bool needed = false;
    for (size_t i = 0; i < repair->link_count; i++) {
        needed =
            needed || repair->links[i].cut || (repair->links[i].made != NULL && !repair->links[i].exact);
    }
    return needed && (repair->listed || repair->options.unlisted);
}

static weft_status check_rights(const weft_repair *repair) {
    bool heads = is_mendable(repair, WEFT_REPAIR_HEAD) || needs_links(repair);
    if (!heads || !repair->is_signed) {
        return WEFT_OK;
    }
    const char *url = weft_store_url(repair->store);
    if (repair->options.key == NULL) {
        return weft_fail(
            repair->context, WEFT_INVALID_ARGUMENT,
            "%s: the run is signed, and so must be the head that mends it; give the secret key "
            "(--sign)",
            url);
    }
    if (repair->unproven && !repair->options.adopt) {
        return weft_fail(
            repair->context, WEFT_SIGNATURE_MISMATCH,
            "%s: what was found to mend it with fits, but nothing that is signed vouches for it; "
            "who can rule out that a stranger put it there signs for it with --adopt",
            url);
    }
    return WEFT_OK;
}

static weft_status fail_changed(const weft_repair *repair) {
    return weft_fail(repair->context, WEFT_CONFLICT,
                     "%s: a head has changed since it was looked at: somebody writes there; end all "
                     "publishers, and look again",
                     weft_store_url(repair->store));
}

/* Without conditional puts: what was seen must still be there. */
static weft_status check_same(const weft_repair *repair, uint64_t epoch, const weft_repair_head *seen) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_hash hash;
    weft_status status =
        weft_sync_head_read(repair->context, repair->store, epoch, NULL, data, &size, NULL);
    if (status == WEFT_NOT_FOUND) {
        return seen->state == WEFT_REPAIR_HEAD_MISSING ? WEFT_OK : fail_changed(repair);
    }
    if (status == WEFT_OK) {
        status = weft_hash_compute(repair->context, data, size, &hash);
    }
    if (status != WEFT_OK) {
        return status;
    }
    bool same = seen->state == WEFT_REPAIR_HEAD_JUNK && weft_hash_equal(&hash, &seen->hash);
    return same ? WEFT_OK : fail_changed(repair);
}

static weft_status write_head(weft_repair *repair, uint64_t epoch) {
    weft_context *context = repair->context;
    const weft_repair_head *seen = &repair->heads[epoch - 1];
    weft_sync_head head = repair->head;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    char key[WEFT_HEAD_KEY];
    weft_head_key(epoch, key);
    head.epoch = epoch;
    head.sequence = MENDED_SEQUENCE;
    memcpy(head.run, repair->run, sizeof head.run);
    weft_status status = weft_hex_random(context, (WEFT_WRITER_TEXT - 1) / 2, head.writer);
    if (status == WEFT_OK) {
        status = weft_sync_head_format(context, &head, repair->options.key, data, &size);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_store_condition condition =
        seen->state == WEFT_REPAIR_HEAD_MISSING ? WEFT_STORE_IF_ABSENT : WEFT_STORE_IF_SAME;
    bool tagged = condition == WEFT_STORE_IF_ABSENT || seen->tag.text[0] != '\0';
    status =
        tagged ? weft_store_put_bytes(context, repair->store, key, data, size, condition, &seen->tag, NULL)
               : WEFT_UNSUPPORTED;
    if (status == WEFT_UNSUPPORTED) {
        status = check_same(repair, epoch, seen);
        if (status == WEFT_OK) {
            status = weft_store_put_bytes(context, repair->store, key, data, size, WEFT_STORE_ALWAYS, NULL,
                                          NULL);
        }
    }
    return status == WEFT_CONFLICT ? fail_changed(repair) : status;
}

/* Writes the page of a link once more. `before`: the page that it is to link to, or NULL. */
static weft_status write_link(weft_repair *repair, const weft_claim *claim, size_t index,
                              const weft_blob *before, bool relink, weft_blob *blob) {
    weft_page *page;
    char key[WEFT_KEY_SIZE];
    weft_status status = weft_repair_open_link(repair, index, &page);
    if (status != WEFT_OK) {
        return status;
    }
    if (relink) {
        page->linked = before != NULL;
        page->previous = before != NULL ? *before : (weft_blob){.bytes = 0};
        page->full = page->full || !page->linked;
    }
    page->replaces[0] = '\0';
    if (index == 0 && strncmp(repair->head.page.key, "pages/", 6) == 0) {
        memcpy(page->replaces, repair->head.page.key, sizeof page->replaces);
    }
    status = weft_sync_key(repair->context, "pages", claim->head.epoch,
                           page->records[page->record_count - 1].version, key);
    if (status == WEFT_OK) {
        status = weft_page_write(page, repair->store, key, blob);
    }
    weft_repair_close_link(repair, index, page);
    return status;
}

/* The claim of an epoch counts only when another head has followed it. */
static weft_status move_head(weft_repair *repair, weft_claim *claim, const weft_blob *page) {
    weft_claim_move move;
    bool unknown = false;
    weft_status status = weft_claim_prepare(claim, page, &repair->head.newest, &move);
    if (status == WEFT_OK) {
        status = weft_claim_commit(claim, &move, &unknown);
        weft_claim_drop(claim, &move);
    }
    return status;
}

/* From the oldest page that is made anew to the newest, each with a link to the one before. */
static weft_status mend_links(weft_repair *repair, weft_claim *claim) {
    size_t oldest = 0;
    for (size_t i = 0; i < repair->link_count; i++) {
        const weft_repair_link *link = &repair->links[i];
        oldest = link->cut || (link->made != NULL && !link->exact) ? i : oldest;
    }
    bool cut = repair->links[oldest].cut;
    weft_blob blobs[2];
    weft_status status = WEFT_OK;
    size_t start = cut ? oldest - 1 : oldest;
    for (size_t i = start + 1; i > 0 && status == WEFT_OK; i--) {
        bool relink = i - 1 < start || cut;
        const weft_blob *before = i - 1 < start ? &blobs[0] : NULL;
        status = write_link(repair, claim, i - 1, before, relink, &blobs[1]);
        blobs[0] = blobs[1];
    }
    return status == WEFT_OK ? move_head(repair, claim, &blobs[0]) : status;
}

/* The epoch that a new publisher would begin is begun here. */
static weft_status mend_in_new_epoch(weft_repair *repair) {
    weft_claim claim;
    const weft_identity nobody = {.context = repair->context, .file = -1};
    weft_status status = weft_claim_take(&claim, repair->context, repair->store, repair->options.key,
                                         repair->options.adopt, 0, &nobody);
    if (status == WEFT_OK && strcmp(claim.head.page.key, repair->head.page.key) != 0) {
        status = fail_changed(repair);
    }
    if (status == WEFT_OK && claim.head.started) {
        status =
            needs_links(repair) ? mend_links(repair, &claim) : move_head(repair, &claim, &claim.head.page);
    }
    weft_claim_close(&claim);
    return status;
}

weft_status weft_repair_mend(weft_repair *repair) {
    weft_status status = check_rights(repair);
    if (status == WEFT_OK) {
        /* the very bytes go back to where they were */
        for (size_t i = 0; i < repair->link_count && status == WEFT_OK; i++) {
            const weft_repair_link *link = &repair->links[i];
            weft_blob blob;
            if (link->exact) {
                status = weft_page_write(link->made, repair->store, link->blob.key, &blob);
            }
        }
    }
    if (status == WEFT_OK && repair->head.run[0] != '\0') {
        /* which objects retire is for the history alone */
        weft_texts_close(&repair->head.newest.retired, repair->context);
        weft_leaps_close(&repair->head.newest.leaps, repair->context);
        for (size_t i = 0; i < repair->head_count && status == WEFT_OK; i++) {
            if (weft_repair_head_broken(&repair->heads[i])) {
                status = write_head(repair, i + 1);
            }
        }
        if (status == WEFT_OK && (repair->lost_head || needs_links(repair))) {
            status = mend_in_new_epoch(repair);
        }
    }
    for (size_t i = 0; i < repair->note_count; i++) {
        repair->notes[i].mended = status == WEFT_OK && repair->notes[i].mendable;
    }
    return status;
}
