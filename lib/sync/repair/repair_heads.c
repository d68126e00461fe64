/* SPDX-License-Identifier: Apache-2.0
 *
 * repair_heads.c: the heads of all epochs, and the newest state that they and the pages vouch for.
 *
 * The state of a lost head is established from the claim of the epoch after it or from the newest page
 * whose objects are there; epochs are bounded by what the store holds, so that a stray name costs nothing.
 */
#include "repair.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../format/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_ATTEMPTS = 4,
    EPOCHS_MISSING = 4,      /* in a row, where they must be probed */
    EPOCHS_SPARED = 1024,    /* heads that may be missing in any run, */
    EPOCHS_SPREAD = 64,      /* and how many for each head and page that is there */
    EPOCHS_PROBED = 1 << 20, /* at most, where nothing tells how many there are */
};

/* ---- heads ---- */

/* The epochs of which there is a head or a page. */
typedef struct epoch_listing {
    weft_context *context;
    uint64_t *epochs;
    size_t count;
    weft_status status;
} epoch_listing;

static weft_status add_epoch(epoch_listing *list, uint64_t epoch) {
    uint64_t *epochs = weft_reallocate_array(list->context, list->epochs, list->count + 1, sizeof *epochs);
    if (epochs == NULL) {
        return WEFT_NO_MEMORY;
    }
    list->epochs = epochs;
    epochs[list->count++] = epoch;
    return WEFT_OK;
}

static bool add_head(void *opaque, const char *key, uint64_t size, double age_seconds) {
    epoch_listing *list = opaque;
    unsigned long long epoch;
    char again[WEFT_HEAD_KEY];
    (void)size;
    (void)age_seconds;
    if (sscanf(key, "heads/%llu", &epoch) == 1) {
        weft_head_key(epoch, again);
        if (strcmp(again, key) == 0) {
            list->status = add_epoch(list, epoch);
        }
    }
    return list->status == WEFT_OK;
}

/* Epochs have no gaps but what was lost: a number beyond all proportion to what there is belongs to no
 * epoch, and no look of anybody's gets there (last_epoch at most doubles). */
static uint64_t highest_epoch(const epoch_listing *list) {
    uint64_t most = (uint64_t)EPOCHS_SPREAD * list->count + EPOCHS_SPARED;
    uint64_t last = 0;
    for (size_t i = 0; i < list->count; i++) {
        last = list->epochs[i] > last && list->epochs[i] <= most ? list->epochs[i] : last;
    }
    return last;
}

/* Readers count on epochs without gaps; one that is there all the same hides what is behind it. A server
 * that has something under every name has no epochs that could be counted. */
static weft_status probe_epochs(weft_repair *repair, epoch_listing *list) {
    bool exists;
    uint64_t last = 0;
    weft_status status = weft_head_exists(repair->context, repair->store, INT64_MAX, &exists);
    bool endless = exists;
    for (uint64_t epoch = 1; status == WEFT_OK && !endless && epoch <= last + EPOCHS_MISSING; epoch++) {
        status = weft_head_exists(repair->context, repair->store, epoch, &exists);
        if (status == WEFT_OK && exists) {
            status = add_epoch(list, epoch);
            last = epoch;
        }
        endless = epoch == EPOCHS_PROBED;
    }
    return status == WEFT_OK && endless
               ? weft_fail(repair->context, WEFT_LIMIT_EXCEEDED,
                           "%s has something under every name: it is not to be told what is a head there; "
                           "repair the store behind this server",
                           weft_store_url(repair->store))
               : status;
}

/* The last epoch that has a head, or whose writer has left pages. */
static weft_status repair_count_epochs(weft_repair *repair) {
    epoch_listing list = {.context = repair->context};
    weft_status status = weft_store_list(repair->context, repair->store, "heads", add_head, &list);
    repair->listed = status == WEFT_OK;
    status = status == WEFT_OK ? list.status : status;
    if (status == WEFT_UNSUPPORTED) {
        status = probe_epochs(repair, &list);
    }
    const weft_repair_room *pages;
    if (status == WEFT_OK) {
        status = weft_repair_list(repair, "pages", &pages);
    }
    for (size_t i = 0; status == WEFT_OK && i < pages->count; i++) {
        status = add_epoch(&list, pages->entries[i].epoch);
    }
    uint64_t last = highest_epoch(&list);
    weft_release(repair->context, list.epochs);
    if (status == WEFT_OK && last == 0) {
        status = weft_fail(repair->context, WEFT_NOT_FOUND, "%s: nothing was published here yet",
                           weft_store_url(repair->store));
    }
    repair->head_count = (size_t)last;
    return status;
}

static weft_status judge_head(weft_repair *repair, uint64_t epoch, const uint8_t *data, size_t size,
                              weft_sync_head *head) {
    weft_context *context = repair->context;
    char key[WEFT_HEAD_KEY];
    weft_head_key(epoch, key);
    weft_status status = weft_sync_head_parse(context, key, data, size, repair->options.trusted, head);
    if (status == WEFT_OK && head->epoch != epoch) {
        weft_sync_head_close(head, context);
        status = weft_fail(context, WEFT_CHECKSUM_MISMATCH, "%s holds the head of epoch %llu", key,
                           (unsigned long long)head->epoch);
    }
    if (status == WEFT_OK && repair->run[0] != '\0' && strcmp(head->run, repair->run) != 0) {
        weft_sync_head_close(head, context);
        status = weft_fail(context, WEFT_CHECKSUM_MISMATCH, "%s holds a head of another run, %s", key,
                           head->run);
    }
    return status;
}

/* A head that is damaged on its way to us is another one each time, or is good in the end. */
static weft_status read_head(weft_repair *repair, uint64_t epoch, weft_repair_head *found) {
    weft_context *context = repair->context;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    for (unsigned i = 0; i < HEAD_ATTEMPTS; i++) {
        weft_hash hash;
        weft_status status =
            weft_sync_head_read(context, repair->store, epoch, NULL, data, &size, &found->tag);
        if (status == WEFT_NOT_FOUND) {
            found->state = WEFT_REPAIR_HEAD_MISSING;
            return WEFT_OK;
        }
        if (status == WEFT_OK) {
            status = weft_hash_compute(context, data, size, &hash);
        }
        if (status != WEFT_OK) {
            return status;
        }
        status = judge_head(repair, epoch, data, size, &found->head);
        if (status == WEFT_SIGNATURE_MISMATCH && epoch < repair->head_count) {
            found->state = WEFT_REPAIR_HEAD_FOREIGN;
            return WEFT_OK;
        }
        found->state = status == WEFT_OK ? WEFT_REPAIR_HEAD_GOOD : WEFT_REPAIR_HEAD_JUNK;
        if (!weft_repair_damage(status)) {
            return status;
        }
        found->head = (weft_sync_head){0};
        if (i > 0 && !weft_hash_equal(&hash, &found->hash)) {
            return weft_fail(
                context, WEFT_CHECKSUM_MISMATCH,
                "%s: the head of epoch %llu comes damaged, and otherwise each time: it is not the "
                "store that is damaged, but what lies between",
                weft_store_url(repair->store), (unsigned long long)epoch);
        }
        found->hash = hash;
        bool last = i + 1 == HEAD_ATTEMPTS;
        status = last ? WEFT_OK : weft_clock_sleep(context, weft_clock_backoff(0.02, 1, i + 1));
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status repair_read_heads(weft_repair *repair) {
    weft_context *context = repair->context;
    repair->heads = weft_allocate_zeroed(context, repair->head_count, sizeof *repair->heads);
    if (repair->heads == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < repair->head_count && status == WEFT_OK; i++) {
        weft_repair_head *head = &repair->heads[i];
        status = read_head(repair, i + 1, head);
        if (status == WEFT_OK && head->state == WEFT_REPAIR_HEAD_GOOD) {
            memcpy(repair->run, head->head.run, sizeof repair->run);
            repair->is_signed = head->head.is_signed;
        }
    }
    return status;
}

bool weft_repair_head_broken(const weft_repair_head *head) {
    return head->state == WEFT_REPAIR_HEAD_MISSING || head->state == WEFT_REPAIR_HEAD_JUNK;
}

/* The newest good head at or below an epoch, or NULL. */
static const weft_sync_head *good_head(const weft_repair *repair, size_t epoch) {
    for (size_t i = epoch; i > 0; i--) {
        if (repair->heads[i - 1].state == WEFT_REPAIR_HEAD_GOOD) {
            return &repair->heads[i - 1].head;
        }
    }
    return NULL;
}

/* ---- the newest state ---- */

static weft_status copy_head(weft_repair *repair, const weft_sync_head *from) {
    weft_sync_head_close(&repair->head, repair->context);
    repair->head = *from;
    repair->head.newest = (weft_record){0};
    return from->started ? weft_record_copy(repair->context, &from->newest, &repair->head.newest) : WEFT_OK;
}

/* False if the history that a page ends has another state as the version of a head, or ends before it.
 * Where a page on the way is damaged, nothing speaks against it: that page is another thing to be mended.
 */
static weft_status leads_from(weft_repair *repair, const weft_page *page, const weft_sync_head *head,
                              bool *leads) {
    weft_context *context = repair->context;
    weft_page *read = NULL;
    weft_status status = WEFT_OK;
    uint64_t version = head->newest.version;
    *leads = false;
    if (page->records[page->record_count - 1].version < version) {
        return WEFT_OK;
    }
    while (status == WEFT_OK && page->records[0].version > version && page->linked) {
        weft_page *before = NULL;
        status = weft_history_page(context, repair->store, &page->previous, repair->run, &before);
        weft_history_release(context, read);
        read = before;
        page = before;
    }
    if (weft_repair_damage(status)) {
        *leads = true;
        status = WEFT_OK;
    } else if (status == WEFT_OK && page->records[0].version <= version &&
               page->records[page->record_count - 1].version >= version) {
        const weft_record *record = &page->records[version - page->records[0].version];
        *leads = weft_digest_equal(&record->digest, &head->newest.digest);
    }
    weft_history_release(context, read);
    return status;
}

static weft_status adopt_page(weft_repair *repair, uint64_t epoch, const weft_blob *blob,
                              const weft_page *page) {
    weft_context *context = repair->context;
    weft_sync_head_close(&repair->head, context);
    repair->head = (weft_sync_head){
        .format = page->format, .epoch = epoch, .sequence = 1, .started = true, .page = *blob};
    memcpy(repair->head.run, page->run, sizeof repair->head.run);
    memcpy(repair->run, page->run, sizeof repair->run);
    return weft_record_copy(context, &page->records[page->record_count - 1], &repair->head.newest);
}

/* WEFT_MORE: it is not one that the head of the epoch can have named. */
static weft_status try_page(weft_repair *repair, const weft_repair_entry *entry,
                            const weft_sync_head *below) {
    weft_blob blob;
    weft_page *page;
    bool fits = true;
    weft_status status = weft_repair_read_page(repair, entry, &blob, &page);
    if (status != WEFT_OK) {
        return weft_repair_damage(status) ? WEFT_MORE : status;
    }
    /* a page is put before its patch, or its anchor, is there whole */
    const weft_record *newest = &page->records[page->record_count - 1];
    const weft_anchor *anchor = weft_anchor_find(page->anchors, page->anchor_count, newest->version);
    const weft_object *object = newest->patched ? &newest->patch : anchor != NULL ? &anchor->object : NULL;
    fits = false;
    status = object != NULL ? weft_repair_is_there(repair, object, &fits) : WEFT_OK;
    if (status == WEFT_OK && fits && below != NULL && below->started) {
        status = leads_from(repair, page, below, &fits);
    }
    if (status == WEFT_OK) {
        status = fits ? adopt_page(repair, entry->epoch, &blob, page) : WEFT_MORE;
    }
    weft_history_release(repair->context, page);
    return status;
}

/* The newest page that the lost head of an epoch can have named. WEFT_MORE: there is none. */
static weft_status find_epoch_page(weft_repair *repair, uint64_t epoch, const weft_sync_head *below) {
    const weft_repair_room *pages;
    weft_status status = weft_repair_list(repair, "pages", &pages);
    if (status != WEFT_OK) {
        return status;
    }
    status = WEFT_MORE;
    for (size_t i = 0; i < pages->count && status == WEFT_MORE; i++) {
        if (pages->entries[i].epoch == epoch) {
            status = try_page(repair, &pages->entries[i], below);
        }
    }
    return status;
}

static const char *describe_junk(const weft_repair_head *head) {
    return head->state == WEFT_REPAIR_HEAD_MISSING
               ? "is missing"
               : "is no head of this epoch and run, however often it is read";
}

/* Out of what the newest state was established when its head was lost. */
typedef enum state_source { STATE_OF_PAGE, STATE_OF_CLAIM, STATE_OF_EPOCH, STATE_OF_NOTHING } state_source;

static void describe_source(const weft_repair *repair, state_source source, char text[WEFT_REPAIR_TEXT]) {
    unsigned long long version = weft_sync_head_version(&repair->head);
    switch (source) {
    case STATE_OF_PAGE:
        snprintf(text, WEFT_REPAIR_TEXT,
                 "a head of version %llu, by the newest page that fits, takes its place; then a new epoch "
                 "begins",
                 version);
        break;
    case STATE_OF_CLAIM:
        snprintf(
            text, WEFT_REPAIR_TEXT,
            "a head of version %llu, as who began the next epoch has found it, takes its place; then a "
            "new epoch begins",
            version);
        break;
    case STATE_OF_EPOCH:
        snprintf(text, WEFT_REPAIR_TEXT,
                 "a head of version %llu, as the epoch before it ended, takes its place; then a new epoch "
                 "begins%s",
                 version,
                 repair->listed ? ""
                                : ". What this epoch has published is lost, if anything: it could only be "
                                  "found where the store can be listed, such as in the directory itself");
        break;
    default:
        snprintf(text, WEFT_REPAIR_TEXT,
                 "none: no other head is there, nor a page by which one could be made%s",
                 repair->listed ? "; the run is lost, and another one can begin in another place"
                                : ", as far as can be seen without a listing");
    }
}

static weft_status note_newest_head(weft_repair *repair, uint64_t epoch, state_source source) {
    char key[WEFT_HEAD_KEY];
    weft_head_key(epoch, key);
    weft_repair_note *note = weft_repair_add_note(repair, WEFT_REPAIR_HEAD, key);
    if (note == NULL) {
        return WEFT_NO_MEMORY;
    }
    const weft_repair_head *head = &repair->heads[epoch - 1];
    snprintf(note->wrong, sizeof note->wrong, "the newest head %s", describe_junk(head));
    snprintf(
        note->effect, sizeof note->effect, "%s",
        head->state == WEFT_REPAIR_HEAD_MISSING
            ? "the versions of this epoch are seen by nobody, and the next publisher would not go on from "
              "them"
            : "publish, pull, follow, log and gc fail: this is where the newest version should be");
    describe_source(repair, source, note->remedy);
    note->mendable = source != STATE_OF_NOTHING;
    return WEFT_OK;
}

/* All but the one that `newest` is, of which more was said. */
static weft_status note_old_heads(weft_repair *repair, uint64_t newest) {
    for (size_t i = 0; i + 1 < repair->head_count; i++) {
        char key[WEFT_HEAD_KEY];
        weft_head_key(i + 1, key);
        if (!weft_repair_head_broken(&repair->heads[i]) || i + 1 == newest) {
            continue;
        }
        weft_repair_note *note = weft_repair_add_note(repair, WEFT_REPAIR_HEAD, key);
        if (note == NULL) {
            return WEFT_NO_MEMORY;
        }
        snprintf(note->wrong, sizeof note->wrong, "the head of an old epoch %s",
                 describe_junk(&repair->heads[i]));
        snprintf(
            note->effect, sizeof note->effect, "%s",
            repair->heads[i].state == WEFT_REPAIR_HEAD_MISSING
                ? "epochs are counted without gaps: who does not know of later ones may take an older head "
                  "for the newest, and a publisher go on from there"
                : "who has seen no later epoch yet fails on its way to the newest one");
        snprintf(note->remedy, sizeof note->remedy, "a head that names the newest version takes its place");
        note->mendable = repair->head.run[0] != '\0';
    }
    return WEFT_OK;
}

/* The highest epoch whose head is not only a claim, and the newest of the claims behind it, or NULL. */
static size_t settled_epoch(const weft_repair *repair, const weft_sync_head **claim_out) {
    size_t epoch = repair->head_count;
    *claim_out = NULL;
    while (repair->heads[epoch - 1].state == WEFT_REPAIR_HEAD_GOOD &&
           weft_sync_head_unsettled(&repair->heads[epoch - 1].head)) {
        *claim_out = *claim_out == NULL ? &repair->heads[epoch - 1].head : *claim_out;
        epoch--;
    }
    return epoch;
}

/* The state of an epoch whose head is lost, and behind which there are only claims. A claim says how its
 * writer has found that epoch: nothing older can be right, though where puts have no conditions, something
 * newer may. Without one, the epochs before may be lost as well. */
static weft_status restore_state(weft_repair *repair, size_t epoch, const weft_sync_head *claim,
                                 state_source *source) {
    const weft_sync_head *below = claim != NULL ? claim : good_head(repair, epoch);
    size_t least = claim != NULL ? epoch : below != NULL ? (size_t)below->epoch + 1 : 1;
    weft_status status = WEFT_MORE;
    for (size_t i = epoch; i >= least && status == WEFT_MORE; i--) {
        status = find_epoch_page(repair, i, below);
    }
    *source = status == WEFT_OK ? STATE_OF_PAGE
              : claim != NULL   ? STATE_OF_CLAIM
              : below != NULL   ? STATE_OF_EPOCH
                                : STATE_OF_NOTHING;
    if (status == WEFT_OK && claim != NULL && strcmp(repair->head.page.key, claim->page.key) == 0) {
        *source = STATE_OF_CLAIM;
    }
    if ((status == WEFT_OK || status == WEFT_MORE) && *source != STATE_OF_PAGE) {
        status = below != NULL ? copy_head(repair, below) : WEFT_OK;
    }
    repair->unproven = *source == STATE_OF_PAGE;
    return status;
}

static weft_status find_lost_state(weft_repair *repair, size_t epoch, const weft_sync_head *claim,
                                   uint64_t *noted) {
    state_source source;
    weft_status status = restore_state(repair, epoch, claim, &source);
    repair->lost_head = true;
    if (status == WEFT_OK && claim == NULL && source != STATE_OF_NOTHING) {
        /* pages of a later epoch than all heads that belong to nothing are leftovers of something else */
        size_t last = repair->head_count;
        repair->head_count = (size_t)repair->head.epoch;
        for (size_t i = repair->head_count; i < last; i++) {
            repair->head_count =
                repair->heads[i].state == WEFT_REPAIR_HEAD_JUNK ? i + 1 : repair->head_count;
        }
        repair->lost_head = source == STATE_OF_PAGE || repair->head_count > repair->head.epoch;
    }
    if (status == WEFT_OK && repair->lost_head) {
        *noted = claim != NULL ? epoch : repair->head_count;
        status = note_newest_head(repair, *noted, source);
    }
    return status;
}

weft_status weft_repair_find_state(weft_repair *repair) {
    const weft_sync_head *claim;
    uint64_t noted = 0;
    weft_status status = repair_count_epochs(repair);
    if (status == WEFT_OK) {
        status = repair_read_heads(repair);
    }
    if (status != WEFT_OK) {
        return status;
    }
    size_t epoch = settled_epoch(repair, &claim);
    switch (repair->heads[epoch - 1].state) {
    case WEFT_REPAIR_HEAD_GOOD:
        status = copy_head(repair, &repair->heads[epoch - 1].head);
        break;
    case WEFT_REPAIR_HEAD_FOREIGN:
        /* the newest head is not: whoever signed the claim vouches for what it repeats */
        status = claim != NULL ? copy_head(repair, claim) : WEFT_OK;
        break;
    default:
        status = find_lost_state(repair, epoch, claim, &noted);
    }
    repair->result.epoch = repair->head_count;
    return status == WEFT_OK ? note_old_heads(repair, noted) : status;
}
