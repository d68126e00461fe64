/* SPDX-License-Identifier: Apache-2.0
 *
 * repair.c: a look at a run whose store was damaged, and what is told of it.
 *
 * A look goes from the heads of all epochs (repair_heads.c) to the pages of the history (here and in
 * repair_pages.c) and to what the kept versions need (repair_objects.c). Where a head or a page is damaged,
 * what can take its place is established at once, so that the look goes on behind it and can tell what
 * would be lost. Mending (repair_mend.c) only writes what the look has made.
 */
#include "repair.h"
#include "../../base/sized.h"

#include "../../base/context.h"
#include "../format/history.h"

#include <stdio.h>
#include <string.h>

bool weft_repair_damage(weft_status status) {
    return status == WEFT_NOT_FOUND || status == WEFT_CHECKSUM_MISMATCH || status == WEFT_MALFORMED ||
           status == WEFT_TRUNCATED;
}

const char *weft_repair_kind_name(weft_repair_kind kind) {
    static const char *const names[] = {"head", "page", "patch", "anchor", "leap", "versions"};
    return kind <= WEFT_REPAIR_VERSIONS ? names[kind] : "";
}

weft_repair_note *weft_repair_add_note(weft_repair *repair, weft_repair_kind kind, const char *key) {
    weft_repair_note *notes =
        weft_reallocate_array(repair->context, repair->notes, repair->note_count + 1, sizeof *notes);
    if (notes == NULL) {
        return NULL;
    }
    repair->notes = notes;
    weft_repair_note *note = &notes[repair->note_count++];
    *note = (weft_repair_note){.kind = kind};
    snprintf(note->key, sizeof note->key, "%s", key);
    return note;
}

/* ---- the history ---- */

static void add_words(char text[WEFT_REPAIR_TEXT], const char *words) {
    size_t used = strlen(text);
    snprintf(text + used, WEFT_REPAIR_TEXT - used, "%s", words);
}

/* True if a publisher reads the page that ends with a version before it goes on: the front, and what the
 * next long page will repeat. */
static bool is_resumed_from(const weft_repair *repair, uint64_t last) {
    return !repair->full || last > (repair->head.newest.version - 1) / WEFT_PAGE_LONG * WEFT_PAGE_LONG;
}

static weft_status note_page(weft_repair *repair, const weft_repair_link *link, uint64_t first,
                             uint64_t last, const uint64_t lost[2], const char *why) {
    weft_repair_note *note = weft_repair_add_note(repair, WEFT_REPAIR_PAGE, link->blob.key);
    if (note == NULL) {
        return WEFT_NO_MEMORY;
    }
    unsigned long long from = first;
    unsigned long long to = last;
    snprintf(note->wrong, sizeof note->wrong, "the page of versions %llu to %llu is %s", from, to, why);
    snprintf(note->effect, sizeof note->effect, "%s%s; log and gc fail",
             is_resumed_from(repair, last) ? "a publisher cannot go on with the run, and " : "",
             repair->link_count == 0
                 ? "nobody but who is one version behind can come to the newest version"
                 : "versions on this page and before it can be reached only by ways that do not need it");
    note->mendable = true;
    if (link->exact) {
        snprintf(note->remedy, sizeof note->remedy,
                 "it can be made again byte for byte, and is put back: nothing is lost");
        return WEFT_OK;
    }
    note->first = link->cut ? 1 : lost[0];
    note->last = link->cut ? last : lost[1];
    note->mendable = repair->listed || repair->options.unlisted;
    if (link->cut) {
        snprintf(
            note->remedy, sizeof note->remedy,
            "the history begins after it: nothing was found of versions 1 to %llu, and readers of later "
            "ones go on",
            to);
    } else if (lost[0] == 0) {
        snprintf(
            note->remedy, sizeof note->remedy,
            "a page that tells of the same versions takes its place, and those after it are linked anew, "
            "in a new epoch");
    } else {
        snprintf(
            note->remedy, sizeof note->remedy,
            "a page with what could be found takes its place, in a new epoch; of versions %llu to %llu "
            "some records are lost",
            (unsigned long long)lost[0], (unsigned long long)lost[1]);
    }
    if (!repair->listed) {
        add_words(note->remedy,
                  ". This store cannot be listed: where it can, such as in the directory that a "
                  "server serves, more may be found; --unlisted does without");
    }
    return WEFT_OK;
}

/* WEFT_MORE: nothing named the page, and nothing was found of it. */
static weft_status mend_link(weft_repair *repair, const weft_blob *blob, const weft_repair_gap *gap,
                             weft_status wrong, weft_repair_link *link) {
    uint64_t lost[2];
    *link = (weft_repair_link){.blob = *blob};
    weft_status status = weft_repair_make_page(repair, blob, gap, &link->made, &link->exact, lost);
    if (status != WEFT_OK) {
        return status;
    }
    link->cut = link->made == NULL;
    repair->unproven = repair->unproven || !link->exact;
    if (link->cut && blob->key[0] == '\0') {
        return WEFT_MORE;
    }
    uint64_t first = link->made != NULL ? link->made->records[0].version
                                        : weft_repair_first(WEFT_HISTORY_FORMAT, gap->last);
    return note_page(repair, link, first, gap->last, lost, wrong == WEFT_NOT_FOUND ? "missing" : "damaged");
}

/* The page of a blob, if it ends with what the page after it begins from. */
static weft_status read_link(weft_repair *repair, const weft_blob *blob, const weft_repair_gap *gap,
                             weft_page **page_out) {
    weft_page *page;
    weft_status status = weft_history_page(repair->context, repair->store, blob, repair->run, &page);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_record *last = &page->records[page->record_count - 1];
    if (last->version != gap->last || (gap->proven && !weft_digest_equal(&last->digest, &gap->digest))) {
        weft_history_release(repair->context, page);
        return weft_fail(repair->context, WEFT_MALFORMED, "%s: the history has a gap", blob->key);
    }
    *page_out = page;
    return WEFT_OK;
}

/* The page before one, as seen from its first record. */
static weft_repair_gap gap_before(const weft_record *first) {
    return (weft_repair_gap){
        .last = first->version - 1,
        .proven = first->patched,
        .digest = first->base,
        .milliseconds = first->milliseconds,
        .epoch = first->epoch,
        .floor = first->floor,
    };
}

/* The next page back, sound or made. Behind one that was made, and links to none, there may be more. */
static weft_status walk_link(weft_repair *repair, weft_blob *blob, weft_repair_gap *gap, bool *more) {
    weft_page *page = NULL;
    weft_repair_link link = {.blob = *blob};
    weft_status status = WEFT_NOT_FOUND;
    if (blob->key[0] != '\0') {
        status = read_link(repair, blob, gap, &page);
    }
    if (weft_repair_damage(status)) {
        status = mend_link(repair, blob, gap, status, &link);
        page = link.made;
    }
    if (status != WEFT_OK) {
        return status;
    }
    *more = page != NULL && (page->linked || (page == link.made && page->records[0].version > 1));
    if (page != NULL) {
        repair->full = repair->full || page->full;
        repair->result.oldest = page->records[0].version;
        *blob = page->linked ? page->previous : (weft_blob){.bytes = 0};
        *gap = gap_before(&page->records[0]);
    }
    if (page != link.made) {
        weft_history_release(repair->context, page);
    }
    weft_repair_link *links =
        weft_reallocate_array(repair->context, repair->links, repair->link_count + 1, sizeof *links);
    if (links == NULL) {
        weft_history_release(repair->context, link.made);
        return WEFT_NO_MEMORY;
    }
    repair->links = links;
    links[repair->link_count++] = link;
    return WEFT_OK;
}

static weft_status walk_history(weft_repair *repair) {
    const weft_record *newest = &repair->head.newest;
    weft_blob blob = repair->head.page;
    weft_repair_gap gap = {
        .last = newest->version, .proven = true, .digest = newest->digest, .newest = newest};
    bool more = true;
    weft_status status = WEFT_OK;
    while (more && status == WEFT_OK) {
        status = walk_link(repair, &blob, &gap, &more);
    }
    if (status == WEFT_MORE) {
        /* the page that was made last links to none, and none was found that could be the one before it */
        weft_repair_note *note = &repair->notes[repair->note_count - 1];
        add_words(note->remedy, "; nothing was found of what lies before it");
        note->first = 1;
        note->last = note->last > 0 ? note->last : gap.last;
        status = WEFT_OK;
    }
    if (status == WEFT_OK) {
        weft_context_clear(repair->context);
    }
    return status;
}

/* ---- looking ---- */

static weft_status repair_look(weft_repair *repair, bool objects) {
    weft_status status = weft_repair_find_state(repair);
    if (status == WEFT_OK && repair->head.started) {
        status = walk_history(repair);
        if (status == WEFT_OK) {
            status = weft_repair_find_anchors(repair);
        }
        if (status == WEFT_OK && objects) {
            status = weft_repair_check_kept(repair);
        }
    }
    const weft_repair_options *options = &repair->options;
    repair->is_signed = repair->is_signed || options->key != NULL || options->trusted != NULL;
    repair->result.version = repair->head.started ? repair->head.newest.version : 0;
    repair->result.floor = repair->head.started ? repair->head.newest.floor : 0;
    repair->result.listed = repair->listed;
    repair->result.is_signed = repair->is_signed;
    repair->result.findings = repair->note_count;
    for (size_t i = 0; i < repair->note_count; i++) {
        repair->result.mendable += repair->notes[i].mendable;
    }
    return status;
}

static void open_repair(weft_repair *repair, weft_context *context, weft_store *store,
                        const weft_repair_options *options) {
    memset(repair, 0, sizeof *repair);
    repair->context = context;
    repair->store = store;
    repair->options = *options;
    if (repair->options.key != NULL && !repair->options.adopt) {
        repair->options.trusted = repair->options.key;
    }
}

static void close_repair(weft_repair *repair) {
    weft_context *context = repair->context;
    for (size_t i = 0; i < sizeof repair->rooms / sizeof *repair->rooms; i++) {
        weft_release(context, repair->rooms[i].entries);
    }
    for (size_t i = 0; repair->heads != NULL && i < repair->head_count; i++) {
        weft_sync_head_close(&repair->heads[i].head, context);
    }
    for (size_t i = 0; i < repair->link_count; i++) {
        weft_history_release(context, repair->links[i].made);
    }
    weft_sync_head_close(&repair->head, context);
    weft_release(context, repair->heads);
    weft_release(context, repair->links);
    weft_release(context, repair->notes);
}

/* ---- telling ---- */

static void repair_tell(const weft_repair *repair, bool mended_only) {
    for (size_t i = 0; i < repair->note_count && repair->options.found != NULL; i++) {
        const weft_repair_note *note = &repair->notes[i];
        const weft_repair_finding finding = {
            .kind = note->kind,
            .key = note->key,
            .wrong = note->wrong,
            .effect = note->effect,
            .remedy = note->remedy,
            .first = note->first,
            .last = note->last,
            .mendable = note->mendable,
            .mended = note->mended,
        };
        if (!mended_only || note->mended) {
            repair->options.found(repair->options.opaque, &finding);
        }
    }
}

/* What was mended is told as it was found; and what is left, as it is now. */
static weft_status repair_look_again(weft_repair *repair, weft_repair_result *result) {
    weft_repair again;
    uint64_t mended = 0;
    for (size_t i = 0; i < repair->note_count; i++) {
        mended += repair->notes[i].mended;
    }
    repair_tell(repair, true);
    open_repair(&again, repair->context, repair->store, &repair->options);
    again.options.apply = false;
    weft_status status = repair_look(&again, true);
    if (status == WEFT_OK) {
        repair_tell(&again, false);
        *result = again.result;
        result->mended = mended;
    }
    close_repair(&again);
    return status;
}

weft_status weft_repair_run(weft_context *context, weft_store *store, const weft_repair_options *given,
                            weft_repair_result *result_out) {
    weft_context_clear(context);
    weft_repair repair;
    weft_repair_result result = {.size = sizeof result};
    weft_repair_options options;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_repair_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, result_out, "weft_repair_result");
    }
    if (status != WEFT_OK) {
        return status;
    }
    open_repair(&repair, context, store, &options);
    status = repair_look(&repair, !repair.options.apply);
    result = repair.result;
    if (status == WEFT_OK && repair.options.apply) {
        status = weft_repair_mend(&repair);
        status = status == WEFT_OK ? repair_look_again(&repair, &result) : status;
    } else if (status == WEFT_OK) {
        repair_tell(&repair, false);
    }
    close_repair(&repair);
    if (status == WEFT_OK) {
        weft_sized_write(&result, result_out, sizeof result);
    }
    return status;
}
