/* SPDX-License-Identifier: Apache-2.0
 *
 * repair.c: looking at a run whose store was damaged, and mending what can be mended.
 *
 * A look goes from the heads of all epochs to the pages of the history and to what the kept versions need.
 * Where a head or a page is damaged, what can take its place is established at once, so that the look goes
 * on behind it and can tell what would be lost.
 *
 * Mending writes, in this order: pages that could be made again byte for byte; heads that are none, of old
 * epochs first; and if a page had to be made anew, that and all pages after it, which name each other, and
 * a head in a new epoch that names the newest. Who published before is fenced by that epoch, as by any
 * other publisher's. A head is only written over what was seen there, time and again, at the look.
 */
#include "repair.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../format/history.h"
#include "../format/leap.h"
#include "../publish/claim.h"

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

/* Of a head that takes the place of a lost one: above all that its epoch can have had, so that who has seen
 * those goes on even if the new epoch is never begun. */
static const uint64_t MENDED_SEQUENCE = (uint64_t)1 << 40;

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

/* ---- listing and reading ---- */

typedef struct listing {
    weft_repair *repair;
    weft_repair_room *room;
    weft_status status;
} listing;

/* The epoch and version of a key, if weft_sync_key can have made it: neither signs nor numbers that do not
 * fit. */
static bool parse_key(const char *key, uint64_t *epoch_out, uint64_t *version_out) {
    unsigned long long epoch;
    unsigned long long version;
    char again[WEFT_KEY_SIZE];
    const char *name = strchr(key, '/');
    if (name == NULL || sscanf(name, "/%llu-%llu-", &epoch, &version) != 2) {
        return false;
    }
    snprintf(again, sizeof again, "/%08llu-%010llu-", epoch, version);
    *epoch_out = epoch;
    *version_out = version;
    return strncmp(name, again, strlen(again)) == 0;
}

static bool add_entry(void *opaque, const char *key, uint64_t size, double age_seconds) {
    listing *list = opaque;
    weft_repair_room *room = list->room;
    uint64_t epoch;
    uint64_t version;
    if (!parse_key(key, &epoch, &version)) {
        return true;
    }
    weft_repair_entry *entries =
        weft_reallocate_array(list->repair->context, room->entries, room->count + 1, sizeof *entries);
    if (entries == NULL) {
        list->status = WEFT_NO_MEMORY;
        return false;
    }
    room->entries = entries;
    entries[room->count] =
        (weft_repair_entry){.epoch = epoch, .version = version, .size = size, .age = age_seconds};
    snprintf(entries[room->count++].key, sizeof entries->key, "%s", key);
    return true;
}

static int compare_entries(const void *a, const void *b) {
    const weft_repair_entry *first = a;
    const weft_repair_entry *second = b;
    if (first->version != second->version) {
        return first->version < second->version ? 1 : -1;
    }
    return (first->age > second->age) - (first->age < second->age);
}

weft_status weft_repair_list(weft_repair *repair, const char *room_name,
                             const weft_repair_room **room_out) {
    weft_repair_room *room = repair->rooms;
    while (room->read && strcmp(room->name, room_name) != 0) {
        room++;
    }
    *room_out = room;
    if (room->read) {
        return WEFT_OK;
    }
    room->name = room_name;
    room->read = true;
    if (!repair->listed) {
        return WEFT_OK;
    }
    listing list = {.repair = repair, .room = room};
    weft_status status = weft_store_list(repair->context, repair->store, room_name, add_entry, &list);
    if (status == WEFT_OK && room->count > 0) {
        qsort(room->entries, room->count, sizeof *room->entries, compare_entries);
    }
    return list.status != WEFT_OK ? list.status : status;
}

weft_status weft_repair_read(weft_repair *repair, const char *key, uint64_t size, uint64_t most,
                             uint8_t **data_out, weft_hash *hash_out) {
    if (size > most || size == 0) {
        return weft_fail(repair->context, WEFT_MALFORMED, "%s has %llu bytes, which is no size for it", key,
                         (unsigned long long)size);
    }
    uint8_t *data = weft_allocate(repair->context, (size_t)size);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_store_get_request request = {.key = key, .length = size, .buffer = data};
    weft_store_get_result result;
    weft_status status = weft_store_get(repair->context, repair->store, &request, &result);
    if (status == WEFT_OK && result.received != size) {
        status = weft_fail(repair->context, WEFT_TRUNCATED, "%s ends early", key);
    }
    if (status == WEFT_OK) {
        status = weft_hash_compute(repair->context, data, (size_t)size, hash_out);
    }
    if (status != WEFT_OK) {
        weft_release(repair->context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}

weft_status weft_repair_read_page(weft_repair *repair, const weft_repair_entry *entry, weft_blob *blob,
                                  weft_page **page_out) {
    weft_context *context = repair->context;
    uint8_t *data;
    *blob = (weft_blob){.bytes = entry->size};
    memcpy(blob->key, entry->key, sizeof blob->key);
    weft_status status =
        weft_repair_read(repair, entry->key, entry->size, WEFT_PAGE_MAX, &data, &blob->hash);
    if (status != WEFT_OK) {
        return status;
    }
    weft_page *page = NULL;
    status = weft_history_parse(context, entry->key, data, (size_t)entry->size, &page);
    weft_release(context, data);
    if (status == WEFT_OK && repair->run[0] != '\0' && strcmp(page->run, repair->run) != 0) {
        status = weft_fail(context, WEFT_MALFORMED, "%s is of another run", entry->key);
    }
    if (status == WEFT_OK && page->records[page->record_count - 1].version != entry->version) {
        status = weft_fail(context, WEFT_MALFORMED, "%s is of another version", entry->key);
    }
    if (status != WEFT_OK) {
        weft_history_release(context, page);
        return status;
    }
    *page_out = page;
    return WEFT_OK;
}

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

static weft_status head_exists(weft_repair *repair, uint64_t epoch, bool *exists) {
    char key[WEFT_HEAD_KEY];
    uint64_t size;
    weft_store_tag tag;
    weft_head_key(epoch, key);
    weft_status status = weft_store_head(repair->context, repair->store, key, &size, &tag);
    *exists = status == WEFT_OK;
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

/* Readers count on epochs without gaps; one that is there all the same hides what is behind it. A server
 * that has something under every name has no epochs that could be counted. */
static weft_status probe_epochs(weft_repair *repair, epoch_listing *list) {
    bool exists;
    uint64_t last = 0;
    weft_status status = head_exists(repair, INT64_MAX, &exists);
    bool endless = exists;
    for (uint64_t epoch = 1; status == WEFT_OK && !endless && epoch <= last + EPOCHS_MISSING; epoch++) {
        status = head_exists(repair, epoch, &exists);
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
static weft_status count_epochs(weft_repair *repair) {
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
    double pause = 0.02;
    for (int i = 0; i < HEAD_ATTEMPTS; i++) {
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
        status = i + 1 < HEAD_ATTEMPTS ? weft_clock_sleep(context, pause) : WEFT_OK;
        pause *= 2;
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status read_heads(weft_repair *repair) {
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

static bool is_broken(const weft_repair_head *head) {
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

/* A page is put before its patch, or its anchor, is there whole. */
static weft_status has_objects(weft_repair *repair, const weft_page *page, bool *has) {
    const weft_record *newest = &page->records[page->record_count - 1];
    const weft_object *object = newest->patched ? &newest->patch : NULL;
    for (size_t i = 0; i < page->anchor_count && object == NULL; i++) {
        object = page->anchors[i].version == newest->version ? &page->anchors[i].object : NULL;
    }
    *has = false;
    return object != NULL ? weft_repair_is_there(repair, object, has) : WEFT_OK;
}

static weft_status adopt_page(weft_repair *repair, uint64_t epoch, const weft_blob *blob,
                              const weft_page *page) {
    weft_context *context = repair->context;
    weft_sync_head_close(&repair->head, context);
    repair->head = (weft_sync_head){.epoch = epoch, .sequence = 1, .started = true, .page = *blob};
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
    status = has_objects(repair, page, &fits);
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
        if (!is_broken(&repair->heads[i]) || i + 1 == newest) {
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

/* Pages of a later epoch than all heads that belong to nothing are leftovers of something else. */
static void forget_epochs(weft_repair *repair, uint64_t last_known) {
    size_t last = repair->head_count;
    repair->head_count = (size_t)last_known;
    for (size_t i = repair->head_count; i < last; i++) {
        repair->head_count = repair->heads[i].state == WEFT_REPAIR_HEAD_JUNK ? i + 1 : repair->head_count;
    }
}

static weft_status find_lost_state(weft_repair *repair, size_t epoch, const weft_sync_head *claim,
                                   uint64_t *noted) {
    state_source source;
    weft_status status = restore_state(repair, epoch, claim, &source);
    repair->lost_head = true;
    if (status == WEFT_OK && claim == NULL && source != STATE_OF_NOTHING) {
        forget_epochs(repair, repair->head.epoch);
        repair->lost_head = source == STATE_OF_PAGE || repair->head_count > repair->head.epoch;
    }
    if (status == WEFT_OK && repair->lost_head) {
        *noted = claim != NULL ? epoch : repair->head_count;
        status = note_newest_head(repair, *noted, source);
    }
    return status;
}

static weft_status find_state(weft_repair *repair) {
    const weft_sync_head *claim;
    uint64_t noted = 0;
    weft_status status;
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

/* ---- the history ---- */

static weft_status add_link(weft_repair *repair, const weft_repair_link *link) {
    weft_repair_link *links =
        weft_reallocate_array(repair->context, repair->links, repair->link_count + 1, sizeof *links);
    if (links == NULL) {
        weft_history_release(repair->context, link->made);
        return WEFT_NO_MEMORY;
    }
    repair->links = links;
    links[repair->link_count++] = *link;
    return WEFT_OK;
}

static void add_words(char text[WEFT_REPAIR_TEXT], const char *words) {
    size_t used = strlen(text);
    snprintf(text + used, WEFT_REPAIR_TEXT - used, "%s", words);
}

static weft_status note_page(weft_repair *repair, const weft_repair_link *link, uint64_t first,
                             uint64_t last, const uint64_t lost[2], const char *why) {
    weft_repair_note *note = weft_repair_add_note(repair, WEFT_REPAIR_PAGE, link->blob.key);
    if (note == NULL) {
        return WEFT_NO_MEMORY;
    }
    bool newest = repair->link_count == 0;
    unsigned long long from = first;
    unsigned long long to = last;
    snprintf(note->wrong, sizeof note->wrong, "the page of versions %llu to %llu is %s", from, to, why);
    snprintf(
        note->effect, sizeof note->effect, "%s",
        newest ? "a publisher cannot go on with the run, and nobody but who is one version behind can come "
                 "to the newest version; log and gc fail"
               : "versions on this page and before it can be reached only by ways that do not need it; "
                 "log and gc fail");
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
    return note_page(repair, link, weft_page_first(gap->last), gap->last, lost,
                     wrong == WEFT_NOT_FOUND ? "missing" : "damaged");
}

/* The page that was made last links to none, and none was found that could be the one before it. */
static void note_beginning(weft_repair *repair, uint64_t first) {
    weft_repair_note *note = &repair->notes[repair->note_count - 1];
    add_words(note->remedy, "; nothing was found of what lies before it");
    note->first = 1;
    note->last = note->last > 0 ? note->last : first - 1;
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
        repair->result.oldest = page->records[0].version;
        *blob = page->linked ? page->previous : (weft_blob){.bytes = 0};
        *gap = gap_before(&page->records[0]);
    }
    if (page != link.made) {
        weft_history_release(repair->context, page);
    }
    return add_link(repair, &link);
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
        note_beginning(repair, gap.last + 1);
        status = WEFT_OK;
    }
    if (status == WEFT_OK) {
        weft_context_clear(repair->context);
    }
    return status;
}

/* ---- looking ---- */

static weft_status look(weft_repair *repair, bool objects) {
    weft_status status = count_epochs(repair);
    if (status == WEFT_OK) {
        status = read_heads(repair);
    }
    if (status == WEFT_OK) {
        status = find_state(repair);
    }
    if (status == WEFT_OK && repair->head.started) {
        status = walk_history(repair);
        const weft_repair_link *newest = repair->links;
        if (status == WEFT_OK && newest->made != NULL && !newest->exact) {
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
    if (options != NULL) {
        repair->options = *options;
    }
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

/* ---- mending ---- */

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

static weft_status changed(const weft_repair *repair) {
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
        return seen->state == WEFT_REPAIR_HEAD_MISSING ? WEFT_OK : changed(repair);
    }
    if (status == WEFT_OK) {
        status = weft_hash_compute(repair->context, data, size, &hash);
    }
    if (status != WEFT_OK) {
        return status;
    }
    bool same = seen->state == WEFT_REPAIR_HEAD_JUNK && weft_hash_equal(&hash, &seen->hash);
    return same ? WEFT_OK : changed(repair);
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
    return status == WEFT_CONFLICT ? changed(repair) : status;
}

static weft_status mend_heads(weft_repair *repair) {
    weft_status status = WEFT_OK;
    /* which objects retire is for the history alone */
    weft_texts_close(&repair->head.newest.retired, repair->context);
    weft_leaps_close(&repair->head.newest.leaps, repair->context);
    for (size_t i = 0; i < repair->head_count && status == WEFT_OK; i++) {
        if (is_broken(&repair->heads[i])) {
            status = write_head(repair, i + 1);
        }
    }
    return status;
}

/* The very bytes go back to where they were. */
static weft_status mend_exact(weft_repair *repair) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < repair->link_count && status == WEFT_OK; i++) {
        const weft_repair_link *link = &repair->links[i];
        weft_blob blob;
        if (link->exact) {
            status = weft_page_write(link->made, repair->store, link->blob.key, &blob);
        }
    }
    return status;
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
                                         repair->options.adopt, &nobody);
    if (status == WEFT_OK && strcmp(claim.head.page.key, repair->head.page.key) != 0) {
        status = changed(repair);
    }
    if (status == WEFT_OK && claim.head.started) {
        status =
            needs_links(repair) ? mend_links(repair, &claim) : move_head(repair, &claim, &claim.head.page);
    }
    weft_claim_close(&claim);
    return status;
}

static weft_status mend(weft_repair *repair) {
    weft_status status = check_rights(repair);
    if (status == WEFT_OK) {
        status = mend_exact(repair);
    }
    if (status == WEFT_OK && repair->head.run[0] != '\0') {
        status = mend_heads(repair);
        if (status == WEFT_OK && (repair->lost_head || needs_links(repair))) {
            status = mend_in_new_epoch(repair);
        }
    }
    for (size_t i = 0; i < repair->note_count; i++) {
        repair->notes[i].mended = status == WEFT_OK && repair->notes[i].mendable;
    }
    return status;
}

/* ---- telling ---- */

static void tell(const weft_repair *repair, bool mended_only) {
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
static weft_status look_again(weft_repair *repair, weft_repair_result *result) {
    weft_repair again;
    uint64_t mended = 0;
    for (size_t i = 0; i < repair->note_count; i++) {
        mended += repair->notes[i].mended;
    }
    tell(repair, true);
    open_repair(&again, repair->context, repair->store, &repair->options);
    again.options.apply = false;
    weft_status status = look(&again, true);
    if (status == WEFT_OK) {
        tell(&again, false);
        *result = again.result;
        result->mended = mended;
    }
    close_repair(&again);
    return status;
}

weft_status weft_repair_run(weft_context *context, weft_store *store, const weft_repair_options *options,
                            weft_repair_result *result_out) {
    weft_context_clear(context);
    weft_repair repair;
    weft_repair_result result;
    open_repair(&repair, context, store, options);
    weft_status status = look(&repair, !repair.options.apply);
    result = repair.result;
    if (status == WEFT_OK && repair.options.apply) {
        status = mend(&repair);
        status = status == WEFT_OK ? look_again(&repair, &result) : status;
    } else if (status == WEFT_OK) {
        tell(&repair, false);
    }
    close_repair(&repair);
    if (status == WEFT_OK && result_out != NULL) {
        *result_out = result;
    }
    return status;
}
