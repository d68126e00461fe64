/* SPDX-License-Identifier: Apache-2.0
 *
 * repair_objects.c: what a store holds of a run, and patches, anchors and leaps: whether they are there,
 * which versions they lead to, and what one is whose description was lost.
 */
#include "repair.h"

#include "../../base/context.h"
#include "../../store/rendezvous.h"
#include "../format/history.h"
#include "../format/leap.h"
#include "../objects/fetch.h"
#include "../objects/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t HOLD_BYTES = (uint64_t)64 << 20;

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
    weft_received received;
    weft_status status =
        weft_message_get(repair->context, repair->store, key, most, repair->context, &received);
    if (status != WEFT_OK) {
        return status;
    }
    status = received.size < size
                 ? weft_fail(repair->context, WEFT_TRUNCATED, "%s ends early", key)
                 : weft_hash_compute(repair->context, received.data, (size_t)size, hash_out);
    if (status != WEFT_OK) {
        weft_received_close(&received);
        return status;
    }
    *data_out = received.data;
    return WEFT_OK;
}

weft_status weft_repair_read_page(weft_repair *repair, const weft_repair_entry *entry, weft_blob *blob,
                                  weft_page **page_out) {
    weft_context *context = repair->context;
    uint8_t *data = NULL;
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

/* ---- describing ---- */

static weft_status hash_chunks(weft_repair *repair, weft_object *object, weft_hash *hashes) {
    weft_context *context = repair->context;
    uint8_t *data = weft_allocate(context, (size_t)object->chunk_bytes);
    weft_status status = data != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    for (uint64_t i = 0; i < weft_object_chunks(object) && status == WEFT_OK; i++) {
        uint64_t offset = i * object->chunk_bytes;
        uint64_t rest = object->bytes - offset;
        weft_store_get_request request = {
            .size = sizeof request,
            .key = object->key,
            .offset = offset,
            .length = rest < object->chunk_bytes ? rest : object->chunk_bytes,
            .buffer = data,
        };
        weft_store_get_result result = {.size = sizeof result};
        status = weft_store_get(context, repair->store, &request, &result);
        if (status == WEFT_OK && result.received != request.length) {
            status = weft_fail(context, WEFT_TRUNCATED, "%s ends early", object->key);
        }
        if (status == WEFT_OK) {
            status = weft_hash_compute(context, data, (size_t)request.length, &hashes[i]);
        }
    }
    weft_release(context, data);
    return status;
}

/* The list of hashes that its writer has put, or else a new one. */
static weft_status find_list(weft_repair *repair, const weft_repair_entry *entry, weft_object *object,
                             const weft_hash *hashes) {
    weft_context *context = repair->context;
    const weft_repair_room *room;
    uint64_t size = weft_object_chunks(object) * sizeof *hashes;
    weft_status status = weft_repair_list(repair, "chunks", &room);
    object->listed = true;
    object->list = (weft_blob){.bytes = size};
    if (status == WEFT_OK) {
        status = weft_hash_compute(context, hashes, (size_t)size, &object->list.hash);
    }
    for (size_t i = 0; status == WEFT_OK && i < room->count; i++) {
        const weft_repair_entry *other = &room->entries[i];
        uint8_t *data;
        if (other->version != entry->version || other->epoch != entry->epoch || other->size != size) {
            continue;
        }
        memcpy(object->list.key, other->key, sizeof object->list.key);
        if (weft_blob_fetch(context, repair->store, &object->list, size, &data) == WEFT_OK) {
            weft_release(context, data);
            return WEFT_OK;
        }
    }
    if (status == WEFT_OK) {
        status = weft_sync_key(context, "chunks", entry->epoch, entry->version, object->list.key);
    }
    return status == WEFT_OK && repair->options.apply
               ? weft_store_put_bytes(context, repair->store, object->list.key, hashes, (size_t)size,
                                      WEFT_STORE_ALWAYS, NULL, NULL)
               : status;
}

static weft_status describe_plain(weft_repair *repair, const weft_repair_entry *entry,
                                  weft_object *object) {
    weft_context *context = repair->context;
    *object = (weft_object){.bytes = entry->size, .chunk_bytes = WEFT_CHUNK_BYTES};
    memcpy(object->key, entry->key, sizeof object->key);
    if (object->bytes == 0) {
        return weft_fail(context, WEFT_TRUNCATED, "%s is empty", entry->key);
    }
    size_t count = (size_t)weft_object_chunks(object);
    weft_hash *hashes = weft_allocate_array(context, count, sizeof *hashes);
    weft_status status = hashes != NULL ? hash_chunks(repair, object, hashes) : WEFT_NO_MEMORY;
    if (status == WEFT_OK && count <= WEFT_CHUNKS_INLINE) {
        memcpy(object->chunks, hashes, count * sizeof *hashes);
    } else if (status == WEFT_OK) {
        status = find_list(repair, entry, object, hashes);
    }
    weft_release(context, hashes);
    return status;
}

static weft_status describe_pieced(weft_repair *repair, const weft_repair_entry *entry,
                                   weft_object *object) {
    uint8_t *data = NULL;
    weft_pieces pieces;
    *object = (weft_object){.pieced = true, .list = {.bytes = entry->size}};
    memcpy(object->key, entry->key, sizeof object->key);
    memcpy(object->list.key, entry->key, sizeof object->list.key);
    weft_status status =
        weft_repair_read(repair, entry->key, entry->size, WEFT_PIECES_BYTES, &data, &object->list.hash);
    if (status != WEFT_OK) {
        return status;
    }
    weft_pieces_open(&pieces, repair->context);
    status = weft_pieces_parse(&pieces, entry->key, data, (size_t)entry->size);
    for (size_t i = 0; i < pieces.count; i++) {
        object->bytes += pieces.items[i].bytes;
    }
    weft_pieces_close(&pieces);
    weft_release(repair->context, data);
    return status;
}

static weft_status open_object(weft_repair *repair, const weft_object *object, weft_fetch **fetch,
                               weft_patch **patch) {
    weft_status status = weft_fetch_open(repair->context, repair->store, object, HOLD_BYTES, false, fetch);
    if (status != WEFT_OK) {
        return status;
    }
    weft_source source = weft_fetch_source(*fetch);
    status = weft_patch_open(repair->context, &source, patch);
    if (status != WEFT_OK) {
        status = weft_fetch_explain(repair->context, *fetch, status);
        weft_fetch_close(*fetch);
    }
    return status;
}

weft_status weft_repair_describe(weft_repair *repair, const weft_repair_entry *entry, weft_object *object,
                                 weft_digest *base, weft_digest *digest, weft_record *record) {
    weft_fetch *fetch;
    weft_patch *patch;
    weft_status status = strncmp(entry->key, "pieces/", 7) == 0 ? describe_pieced(repair, entry, object)
                                                                : describe_plain(repair, entry, object);
    if (status == WEFT_OK) {
        status = open_object(repair, object, &fetch, &patch);
    }
    if (status != WEFT_OK) {
        return weft_repair_damage(status) || status == WEFT_WRONG_VERSION ? WEFT_MORE : status;
    }
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    *base = info.base;
    *digest = info.result;
    if (record != NULL) {
        *record = (weft_record){
            .version = entry->version,
            .epoch = entry->epoch,
            .digest = info.result,
            .changed = info.changed,
            .total = info.total,
            .dense_bytes = info.dense_bytes,
            .recalls = info.recalls,
        };
        for (size_t i = 0; i < weft_patch_label_count(patch) && status == WEFT_OK; i++) {
            const char *key = weft_patch_label_key(patch, i);
            status = weft_texts_add(&record->labels, repair->context, key);
            if (status == WEFT_OK) {
                status = weft_texts_add(&record->labels, repair->context, weft_patch_label(patch, key));
            }
        }
        if (status != WEFT_OK) {
            weft_record_close(record, repair->context);
        }
    }
    weft_patch_close(patch);
    weft_fetch_close(fetch);
    return status;
}

/* ---- looking ---- */

static weft_status look_at_plain(weft_repair *repair, const weft_object *object, char *wrong) {
    uint64_t size;
    weft_status status = weft_store_head(repair->context, repair->store, object->key, &size, NULL);
    if (status == WEFT_NOT_FOUND) {
        snprintf(wrong, WEFT_REPAIR_TEXT, "%s is missing", object->key);
        return WEFT_OK;
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (size < object->bytes) {
        snprintf(wrong, WEFT_REPAIR_TEXT, "%s has %llu bytes and should have %llu", object->key,
                 (unsigned long long)size, (unsigned long long)object->bytes);
        return WEFT_OK;
    }
    if (object->listed) {
        uint8_t *data;
        status = weft_blob_fetch(repair->context, repair->store, &object->list, object->list.bytes, &data);
        if (status == WEFT_OK) {
            weft_release(repair->context, data);
        } else if (weft_repair_damage(status)) {
            snprintf(wrong, WEFT_REPAIR_TEXT, "the list of its hashes, %s, is %s", object->list.key,
                     status == WEFT_NOT_FOUND ? "missing" : "damaged");
            status = WEFT_OK;
        }
    }
    return status;
}

static weft_status read_all(weft_repair *repair, const weft_object *object) {
    weft_context *context = repair->context;
    weft_fetch *fetch;
    weft_status status = weft_fetch_open(context, repair->store, object, HOLD_BYTES, true, &fetch);
    if (status != WEFT_OK) {
        return status;
    }
    weft_source source = weft_fetch_source(fetch);
    uint8_t *data = weft_allocate(context, WEFT_CHUNK_BYTES);
    status = data != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    for (uint64_t offset = 0; offset < object->bytes && status == WEFT_OK; offset += WEFT_CHUNK_BYTES) {
        uint64_t rest = object->bytes - offset;
        status = source.read(source.opaque, offset, data,
                             rest < WEFT_CHUNK_BYTES ? (size_t)rest : WEFT_CHUNK_BYTES);
    }
    status = weft_fetch_explain(context, fetch, status);
    weft_release(context, data);
    weft_fetch_close(fetch);
    return status;
}

/* `wrong` stays empty if all is well. */
static weft_status look_at_object(weft_repair *repair, const weft_object *object, char *wrong) {
    weft_pieces pieces;
    wrong[0] = '\0';
    weft_pieces_open(&pieces, repair->context);
    weft_status status = weft_pieces_fetch(&pieces, repair->store, object);
    if (weft_repair_damage(status)) {
        snprintf(wrong, WEFT_REPAIR_TEXT, "the list of its pieces, %s, is %s", object->key,
                 status == WEFT_NOT_FOUND ? "missing" : "damaged");
        status = WEFT_OK;
    }
    for (size_t i = 0; i < pieces.count && status == WEFT_OK && wrong[0] == '\0'; i++) {
        status = look_at_plain(repair, &pieces.items[i], wrong);
    }
    weft_pieces_close(&pieces);
    if (status == WEFT_OK && wrong[0] == '\0' && repair->options.deep) {
        status = read_all(repair, object);
        if (weft_repair_damage(status)) {
            snprintf(wrong, WEFT_REPAIR_TEXT, "%s is damaged", object->key);
            status = WEFT_OK;
        }
    }
    weft_context_clear(repair->context);
    return status;
}

weft_status weft_repair_is_there(weft_repair *repair, const weft_object *object, bool *there) {
    char wrong[WEFT_REPAIR_TEXT];
    weft_status status = look_at_object(repair, object, wrong);
    *there = status == WEFT_OK && wrong[0] == '\0';
    return status;
}

/* ---- which versions can be reached ---- */

typedef struct kept_version {
    bool known;  /* the history tells of it */
    bool patch;  /* its patch is sound */
    bool anchor; /* so is its anchor */
    bool reached;
    size_t leap_count;
    uint64_t leaps[WEFT_LEAP_LEVELS]; /* where the sound leaps begin that end here */
} kept_version;

typedef struct kept_check {
    weft_repair *repair;
    uint64_t kept;  /* the oldest version that is kept, */
    uint64_t floor; /* and of those the oldest that the history tells of */
    uint64_t newest;
    kept_version *versions; /* from `floor` on */
} kept_check;

static weft_status note_object(kept_check *check, weft_repair_kind kind, const char *key, const char *wrong,
                               uint64_t first, uint64_t last) {
    weft_repair_note *note = weft_repair_add_note(check->repair, kind, key);
    if (note == NULL) {
        return WEFT_NO_MEMORY;
    }
    unsigned long long from = first;
    unsigned long long to = last;
    snprintf(note->wrong, sizeof note->wrong, "%s", wrong);
    if (kind == WEFT_REPAIR_PATCH) {
        snprintf(
            note->effect, sizeof note->effect,
            "the patch from version %llu to %llu cannot be had: who is at %llu or before goes round it, "
            "over a leap or a later anchor, if there is one",
            from, to, from);
        snprintf(note->remedy, sizeof note->remedy,
                 "nothing is needed if an anchor follows; weft publish --anchor now makes one");
    } else if (kind == WEFT_REPAIR_ANCHOR) {
        snprintf(note->effect, sizeof note->effect,
                 "version %llu cannot be had whole: newcomers start from another anchor, if there is one",
                 to);
        snprintf(note->remedy, sizeof note->remedy,
                 "the next anchor heals it; weft publish --anchor now makes one");
    } else {
        snprintf(note->effect, sizeof note->effect,
                 "who comes from version %llu or thereabouts takes single patches to %llu instead", from,
                 to);
        snprintf(note->remedy, sizeof note->remedy, "nothing is needed: no version depends on leaps");
    }
    return WEFT_OK;
}

static weft_status check_record(kept_check *check, const weft_record *record) {
    if (record->version < check->floor || record->version > check->newest) {
        return WEFT_OK;
    }
    kept_version *kept = &check->versions[record->version - check->floor];
    kept->known = true;
    if (!record->patched || record->version == check->floor) {
        return WEFT_OK;
    }
    char wrong[WEFT_REPAIR_TEXT];
    weft_status status = look_at_object(check->repair, &record->patch, wrong);
    kept->patch = wrong[0] == '\0';
    return status == WEFT_OK && !kept->patch ? note_object(check, WEFT_REPAIR_PATCH, record->patch.key,
                                                           wrong, record->version - 1, record->version)
                                             : status;
}

static weft_status check_anchor(kept_check *check, const weft_anchor *anchor) {
    if (anchor->version < check->floor || anchor->version > check->newest) {
        return WEFT_OK;
    }
    char wrong[WEFT_REPAIR_TEXT];
    kept_version *kept = &check->versions[anchor->version - check->floor];
    weft_status status = look_at_object(check->repair, &anchor->object, wrong);
    kept->anchor = wrong[0] == '\0';
    return status == WEFT_OK && !kept->anchor ? note_object(check, WEFT_REPAIR_ANCHOR, anchor->object.key,
                                                            wrong, anchor->version, anchor->version)
                                              : status;
}

static weft_status check_leaps(kept_check *check, const weft_leaps *leaps);

/* What leads from versions that are not kept may be gone. */
static weft_status check_node(kept_check *check, const weft_leap *leap, const weft_leap_node *node) {
    weft_status status = WEFT_OK;
    if (node->patched && leap->first >= check->floor) {
        char wrong[WEFT_REPAIR_TEXT];
        status = look_at_object(check->repair, &node->patch, wrong);
        kept_version *kept = &check->versions[leap->last - check->floor];
        if (wrong[0] == '\0' && kept->leap_count < WEFT_LEAP_LEVELS) {
            kept->leaps[kept->leap_count++] = leap->first;
        } else if (status == WEFT_OK && wrong[0] != '\0') {
            status = note_object(check, WEFT_REPAIR_LEAP, node->patch.key, wrong, leap->first, leap->last);
        }
    }
    return status == WEFT_OK ? check_leaps(check, &node->parts) : status;
}

static weft_status check_leap(kept_check *check, const weft_leap *leap) {
    weft_repair *repair = check->repair;
    weft_leap_node *node;
    if (leap->last <= check->floor || leap->last > check->newest) {
        return WEFT_OK;
    }
    weft_status status = weft_leap_node_fetch(repair->context, repair->store, repair->run, leap, &node);
    if (weft_repair_damage(status)) {
        char wrong[WEFT_REPAIR_TEXT];
        snprintf(wrong, sizeof wrong, "%s is %s", leap->node.key,
                 status == WEFT_NOT_FOUND ? "missing" : "damaged");
        return note_object(check, WEFT_REPAIR_LEAP, leap->node.key, wrong, leap->first, leap->last);
    }
    if (status == WEFT_OK) {
        status = check_node(check, leap, node);
        weft_leap_node_release(repair->context, node);
    }
    return status;
}

/* The depth is bounded: a leap's parts are shorter than it is. */
static weft_status check_leaps(kept_check *check, const weft_leaps *leaps) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < leaps->count && status == WEFT_OK; i++) {
        status = check_leap(check, &leaps->items[i]);
    }
    return status;
}

static weft_status check_page(kept_check *check, const weft_page *page, weft_front *front) {
    weft_status status = WEFT_OK;
    for (size_t i = page->record_count; i > 0 && status == WEFT_OK; i--) {
        status = check_record(check, &page->records[i - 1]);
    }
    if (front->full || status != WEFT_OK) {
        return status;
    }
    status = weft_front_take(front, check->repair->context, page);
    for (size_t i = 0; i < front->anchor_count && status == WEFT_OK; i++) {
        status = check_anchor(check, &front->anchors[i]);
    }
    return front->full && status == WEFT_OK ? check_leaps(check, &front->leaps) : status;
}

static weft_status note_unreachable(kept_check *check, uint64_t first, uint64_t last) {
    weft_repair_note *note = weft_repair_add_note(check->repair, WEFT_REPAIR_VERSIONS, "");
    if (note == NULL) {
        return WEFT_NO_MEMORY;
    }
    char versions[64];
    bool newest = last == check->newest;
    if (first == last) {
        snprintf(versions, sizeof versions, "version %llu", (unsigned long long)last);
    } else {
        snprintf(versions, sizeof versions, "versions %llu to %llu", (unsigned long long)first,
                 (unsigned long long)last);
    }
    note->first = first;
    note->last = last;
    snprintf(note->wrong, sizeof note->wrong, "%s cannot be reached from any anchor", versions);
    snprintf(
        note->effect, sizeof note->effect, "%s",
        newest ? "newcomers get nothing until there is a new anchor; who is at a version from which sound "
                 "patches lead on goes on"
               : "weft pull --version fails for them; newer versions are not concerned");
    snprintf(note->remedy, sizeof note->remedy, "%s",
             newest
                 ? "the next version that is published comes whole, or weft publish --anchor now makes the "
                   "newest one an anchor"
                 : "there is none in the store: publish again what they held, if anybody still has it");
    return WEFT_OK;
}

static bool is_reached(const kept_check *check, uint64_t version) {
    const kept_version *kept = &check->versions[version - check->floor];
    bool reached = kept->anchor || (kept->patch && version > check->floor && kept[-1].reached);
    for (size_t i = 0; i < kept->leap_count && !reached; i++) {
        reached = check->versions[kept->leaps[i] - check->floor].reached;
    }
    return kept->known && reached;
}

static weft_status tell_reachable(kept_check *check) {
    weft_status status = WEFT_OK;
    /* of versions that cannot be reached; 0: none */
    uint64_t start = check->kept < check->floor ? check->kept : 0;
    for (uint64_t version = check->floor; version <= check->newest; version++) {
        kept_version *kept = &check->versions[version - check->floor];
        kept->reached = is_reached(check, version);
        check->repair->result.reachable += kept->reached;
        if (!kept->reached && start == 0) {
            start = version;
        }
        if (start != 0 && kept->reached) {
            status = note_unreachable(check, start, version - 1);
            start = 0;
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
    return start != 0 ? note_unreachable(check, start, check->newest) : WEFT_OK;
}

static weft_status check_links(kept_check *check) {
    weft_repair *repair = check->repair;
    weft_status status = WEFT_OK;
    bool more = true;
    weft_front front = {.full = false};
    for (size_t i = 0; i < repair->link_count && status == WEFT_OK && more; i++) {
        weft_page *page;
        if (repair->links[i].cut) {
            break;
        }
        status = weft_repair_open_link(repair, i, &page);
        if (status == WEFT_OK) {
            status = check_page(check, page, &front);
            more = page->records[0].version > check->floor || !front.full;
            weft_repair_close_link(repair, i, page);
        }
    }
    weft_front_close(&front, repair->context);
    return status == WEFT_OK ? tell_reachable(check) : status;
}

weft_status weft_repair_check_kept(weft_repair *repair) {
    const weft_record *newest = &repair->head.newest;
    uint64_t kept = newest->floor > 0 ? newest->floor : 1;
    /* versions of which no page tells cost nothing, however many a head speaks of */
    uint64_t floor = kept > repair->result.oldest ? kept : repair->result.oldest;
    kept_check check = {.repair = repair, .kept = kept, .floor = floor, .newest = newest->version};
    size_t count = (size_t)(newest->version - floor + 1);
    check.versions = weft_allocate_zeroed(repair->context, count, sizeof *check.versions);
    if (check.versions == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = check_links(&check);
    weft_release(repair->context, check.versions);
    return status;
}
