/* SPDX-License-Identifier: Apache-2.0
 *
 * gc.c: removing what no kept version needs.
 *
 * The history tells everything: a record names the objects that nothing needs from its version on, and the
 * floor below which versions are no longer kept. An object goes when it has been unneeded for the grace
 * period, so that whoever is still fetching it can finish. A mark in the store remembers up to which
 * version all is gone, so that a long history is not gone through again; it is only a help, and losing it
 * costs nothing but time.
 *
 * How long is by the store's clock alone. What a record says holds since its head was put, and what was
 * made for the version after it was put later than that: the age of such an object is the least that it can
 * be. Ages rise from version to version going back, so that the newest record that is old enough, the
 * *horizon*, is found by looking at few of them.
 *
 * Where the store can be listed, objects that no history names go too: what failed publishes and fenced
 * writers have left, and what followers told of themselves long ago. A publisher may have been stopped at
 * any time and for any time, so age does not tell those from what is still to be named: epochs and versions
 * do (may_come). All of this stays true when the history goes on: whoever has come to these decisions may
 * be stopped before it acts on them.
 */
#include "../../base/context.h"
#include "../../base/sized.h"
#include "../../tensor/json.h"
#include "../follow/follow.h"
#include "../format/history.h"
#include "../format/leap.h"
#include "../objects/pieces.h"
#include "fleet.h"
#include "meetings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MARK_KEY[] = "gc/mark";
static const double GRACE_SECONDS = 3600;
/* what fenced writers have left may still be fetched by those who followed them */
static const double LEFTOVER_SECONDS = 600;

enum { MARK_BYTES = 512, JSON_DEPTH = 2, JSON_CONTAINERS = 4, LOOKS = 5 };

/* An object, and the version since which it is not needed; 0: it is. */
typedef struct gc_object {
    char key[WEFT_KEY_SIZE];
    uint64_t bytes; /* 0: not known */
    uint64_t version;
    uint64_t since;
    bool retired;  /* by the record of `version`; else it is the patch that leads there */
    bool unproven; /* named by a list that nothing vouches for any more, or is that list */
} gc_object;

/* What is needed of a record later: what it sets, and objects that tell how old the record before it is. */
typedef struct gc_step {
    uint64_t version;
    uint64_t floor;
    size_t made; /* one made for this version, as its place among the objects; SIZE_MAX: none is known */
    size_t page; /* the page that the record is on, which is this version's or a later one's */
} gc_step;

typedef struct gc_run {
    weft_context *context;
    weft_store *store;
    weft_gc_options options;
    weft_gc_result result;
    char run[WEFT_RUN_TEXT];
    uint64_t collected; /* the patches of this version and below are gone */
    uint64_t floor;
    uint64_t needed_from; /* patches of later versions stay: the floor, or lower, where a follower is */
    bool whole;           /* the walk must reach the first page */
    gc_object *objects;
    size_t count;
    size_t capacity;
    weft_pieces needed; /* objects in pieces that are needed, and whose lists were not fetched */
    bool proven;        /* `objects` has all that is needed and could stand in an unproven list */
    gc_step *steps;     /* the records seen, newest first: floors fall */
    size_t step_count;
    size_t step_capacity;
    size_t page;              /* the one that is visited, as its place among the objects */
    size_t page_before;       /* the one of the version before that a record has retired; SIZE_MAX: none */
    uint64_t horizon;         /* what records up to this one set is old enough */
    uint64_t waiting_version; /* the lowest whose patch must be looked at again; 0: none */
    uint64_t waiting_retired; /* the same for what records retire */
    uint64_t retired;         /* what records up to this one retire is gone */
    uint64_t newest;
    uint64_t epoch;
    bool full; /* the anchors that are kept are known */
    uint64_t newest_anchor;
    uint64_t leaps_end; /* the highest version that a leap of the history leads to; 0: there are none */
} gc_run;

static weft_status add_object(gc_run *gc, const char *key, uint64_t bytes, uint64_t version,
                              uint64_t since) {
    if (gc->count == gc->capacity) {
        size_t capacity = gc->capacity > 0 ? 2 * gc->capacity : 256;
        gc_object *objects = weft_reallocate_array(gc->context, gc->objects, capacity, sizeof *objects);
        if (objects == NULL) {
            return WEFT_NO_MEMORY;
        }
        gc->objects = objects;
        gc->capacity = capacity;
    }
    gc_object *object = &gc->objects[gc->count++];
    *object = (gc_object){.bytes = bytes, .version = version, .since = since};
    snprintf(object->key, sizeof object->key, "%s", key);
    return WEFT_OK;
}

static weft_status add_plain(gc_run *gc, const weft_object *object, uint64_t version, uint64_t since) {
    weft_status status = add_object(gc, object->key, object->bytes, version, since);
    return status == WEFT_OK && object->listed
               ? add_object(gc, object->list.key, object->list.bytes, version, since)
               : status;
}

/* A list that is gone, or is no list, leads to nothing that could be removed. */
static bool is_useless(weft_status status) {
    return status == WEFT_NOT_FOUND || status == WEFT_MALFORMED || status == WEFT_CHECKSUM_MISMATCH;
}

static weft_status add_listed(gc_run *gc, const weft_object *object, uint64_t version, uint64_t since) {
    weft_pieces pieces;
    weft_pieces_open(&pieces, gc->context);
    weft_status status = weft_pieces_fetch(&pieces, gc->store, object);
    if (status == WEFT_OK) {
        for (size_t i = 0; i < pieces.count && status == WEFT_OK; i++) {
            status = add_plain(gc, &pieces.items[i], version, since);
        }
    } else if (since != 0 && is_useless(status)) {
        status = WEFT_OK;
    }
    weft_pieces_close(&pieces);
    return status;
}

/* What is needed must be known in full only where the store can be listed, to be told from leftovers, or
 * where something unproven could name it. */
static weft_status add_large(gc_run *gc, const weft_object *object, uint64_t version, uint64_t since) {
    if (!object->pieced) {
        return add_plain(gc, object, version, since);
    }
    weft_status status = add_object(gc, object->key, object->list.bytes, version, since);
    if (status != WEFT_OK) {
        return status;
    }
    return since == 0 && !gc->whole ? weft_pieces_add(&gc->needed, object)
                                    : add_listed(gc, object, version, since);
}

/* ---- what was retired ---- */

static bool is_list(const char *key) {
    return strncmp(key, "pieces/", 7) == 0;
}

/* True if both keys have the same epoch and version. */
static bool same_making(const char *key, const char *other) {
    const char *first = strchr(key, '/');
    const char *second = strchr(other, '/');
    const char *end = first != NULL ? strrchr(first, '-') : NULL;
    return end != NULL && second != NULL && strncmp(first, second, (size_t)(end + 1 - first)) == 0;
}

static bool in_room_of_pieces(const char *key) {
    return strncmp(key, "patches/", 8) == 0 || strncmp(key, "anchors/", 8) == 0 ||
           strncmp(key, "chunks/", 7) == 0;
}

/* The hash of a list that was retired stands in no page that must still be there: whoever can write to the
 * store may have replaced it. So it is believed only of what can have been made together with it; and
 * keep_needed sees to what of that is needed. */
static bool is_piece_of(const char *list, const char *key) {
    return in_room_of_pieces(key) && same_making(list, key);
}

static weft_status add_pieces_of(gc_run *gc, const char *list, const weft_pieces *pieces, uint64_t version,
                                 uint64_t since) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < pieces->count && status == WEFT_OK; i++) {
        const weft_object *piece = &pieces->items[i];
        if (is_piece_of(list, piece->key)) {
            status = add_object(gc, piece->key, piece->bytes, version, since);
        }
        if (status == WEFT_OK && piece->listed && is_piece_of(list, piece->list.key)) {
            status = add_object(gc, piece->list.key, piece->list.bytes, version, since);
        }
    }
    return status;
}

/* Of what was retired nothing but its key is known. */
static weft_status add_retired(gc_run *gc, const char *key, uint64_t version, uint64_t since) {
    size_t first = gc->count;
    weft_status status = add_object(gc, key, 0, version, since);
    if (status == WEFT_OK && is_list(key)) {
        weft_pieces pieces;
        weft_pieces_open(&pieces, gc->context);
        status = weft_pieces_look(&pieces, gc->store, key);
        status = status == WEFT_OK ? add_pieces_of(gc, key, &pieces, version, since) : status;
        weft_pieces_close(&pieces);
        status = is_useless(status) ? WEFT_OK : status;
    }
    for (size_t i = first; i < gc->count; i++) {
        gc->objects[i].retired = true;
        gc->objects[i].unproven = is_list(key);
    }
    return status;
}

static bool may_be_named(const gc_run *gc, const weft_object *object) {
    bool found = false;
    for (size_t i = 0; i < gc->count && !found; i++) {
        const gc_object *other = &gc->objects[i];
        found = other->unproven && is_list(other->key) && same_making(other->key, object->key);
    }
    return found;
}

/* After the walk: the pieces of what is needed, as far as a list that was retired could name them. */
static weft_status keep_needed(gc_run *gc) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < gc->needed.count && status == WEFT_OK; i++) {
        const weft_object *object = &gc->needed.items[i];
        status = may_be_named(gc, object) ? add_listed(gc, object, 0, 0) : WEFT_OK;
    }
    return status;
}

/* ---- the mark ---- */

static void parse_mark(gc_run *gc, const char *text, size_t size) {
    json_t *json;
    char run[WEFT_RUN_TEXT];
    uint64_t collected;
    uint64_t retired;
    if (weft_json_parse(gc->context, MARK_KEY, text, size, JSON_DEPTH, JSON_CONTAINERS, &json) != WEFT_OK) {
        return;
    }
    if (weft_json_text(json, "run", run, sizeof run) && strcmp(run, gc->run) == 0 &&
        weft_json_count(json, "collected", &collected) && collected <= gc->floor &&
        weft_json_count(json, "retired", &retired) && retired <= gc->newest) {
        gc->collected = collected;
        gc->retired = retired;
    }
    json_decref(json);
}

static weft_status write_mark(gc_run *gc) {
    uint64_t collected = gc->waiting_version > 0 ? gc->waiting_version - 1 : gc->needed_from;
    /* the newest record is amended when an anchor comes */
    uint64_t retired = gc->waiting_retired > 0 ? gc->waiting_retired - 1 : gc->newest - 1;
    if ((collected <= gc->collected && retired <= gc->retired) || gc->options.dry_run) {
        return WEFT_OK;
    }
    char text[MARK_BYTES];
    int length =
        snprintf(text, sizeof text,
                 "{\"weft\":%d,\"kind\":\"mark\",\"run\":\"%s\",\"collected\":%llu,\"retired\":%llu}\n",
                 WEFT_SYNC_FORMAT, gc->run, (unsigned long long)collected, (unsigned long long)retired);
    return weft_store_put_bytes(gc->context, gc->store, MARK_KEY, text, (size_t)length, WEFT_STORE_ALWAYS,
                                NULL, NULL);
}

/* ---- the history ---- */

/* The version at which the floor reached another: that of the oldest record seen with such a floor. */
static uint64_t version_of_floor(const gc_run *gc, uint64_t version) {
    size_t low = 0;
    size_t high = gc->step_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (gc->steps[middle].floor >= version) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? gc->steps[low - 1].version : 0;
}

static weft_status add_step(gc_run *gc, const weft_record *record) {
    if (gc->step_count == gc->step_capacity) {
        size_t capacity = gc->step_capacity > 0 ? 2 * gc->step_capacity : 64;
        gc_step *steps = weft_reallocate_array(gc->context, gc->steps, capacity, sizeof *steps);
        if (steps == NULL) {
            return WEFT_NO_MEMORY;
        }
        gc->steps = steps;
        gc->step_capacity = capacity;
    }
    gc->steps[gc->step_count++] =
        (gc_step){.version = record->version, .floor = record->floor, .made = SIZE_MAX, .page = gc->page};
    return WEFT_OK;
}

/* A leap's patch is of use as long as somebody may be at the version that it starts from; its node, which
 * leads to smaller ones too, as long as somebody may be on the way. */
static weft_status visit_leap(gc_run *gc, const weft_leap *leap, uint64_t version) {
    uint64_t patch_since = leap->first < gc->needed_from ? version_of_floor(gc, leap->first + 1) : 0;
    uint64_t node_since = leap->last <= gc->needed_from ? version_of_floor(gc, leap->last) : 0;
    weft_status status = add_object(gc, leap->node.key, leap->node.bytes, version, node_since);
    if (status == WEFT_OK && leap->key[0] != '\0') {
        status = add_object(gc, leap->key, leap->bytes, version, patch_since);
    }
    return status == WEFT_OK && leap->list_key[0] != '\0'
               ? add_object(gc, leap->list_key, 0, version, patch_since)
               : status;
}

/* The room, epoch and version of a key as weft_sync_key makes them. */
static bool parse_key(const char *key, const char *room, uint64_t *epoch, uint64_t *version) {
    unsigned long long numbers[2];
    size_t length = strlen(room);
    bool parsed = strncmp(key, room, length) == 0 && key[length] == '/' &&
                  sscanf(key + length + 1, "%llu-%llu-", &numbers[0], &numbers[1]) == 2;
    *epoch = parsed ? numbers[0] : 0;
    *version = parsed ? numbers[1] : 0;
    return parsed;
}

static weft_status visit_retired(gc_run *gc, const weft_record *record) {
    weft_status status = WEFT_OK;
    gc->page_before = SIZE_MAX;
    for (size_t i = 0; i < record->retired.count && status == WEFT_OK; i++) {
        const char *key = record->retired.items[i];
        uint64_t epoch;
        uint64_t version;
        if (parse_key(key, "pages", &epoch, &version) && version + 1 == record->version) {
            gc->page_before = gc->count;
        }
        status = add_retired(gc, key, record->version, record->version);
    }
    return status;
}

static weft_status visit_record(gc_run *gc, const weft_record *record) {
    weft_status status = add_step(gc, record);
    if (status != WEFT_OK) {
        return status;
    }
    gc_step *step = &gc->steps[gc->step_count - 1];
    step->made = gc->page_before;
    gc->page_before = SIZE_MAX;
    if (record->version > gc->retired) {
        status = visit_retired(gc, record);
    }
    for (size_t i = 0; i < record->leaps.count && status == WEFT_OK; i++) {
        status = visit_leap(gc, &record->leaps.items[i], record->version);
    }
    if (status == WEFT_OK && record->patched) {
        uint64_t since = record->version <= gc->needed_from ? version_of_floor(gc, record->version) : 0;
        step->made = gc->count;
        status = add_large(gc, &record->patch, record->version, since);
    }
    return status;
}

static void note_leaps(gc_run *gc, const weft_leaps *leaps) {
    for (size_t i = 0; i < leaps->count; i++) {
        gc->leaps_end = leaps->items[i].last > gc->leaps_end ? leaps->items[i].last : gc->leaps_end;
    }
}

static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    gc_run *gc = opaque;
    weft_status status = WEFT_OK;
    if (!gc->full && page->full) {
        gc->full = true;
        gc->newest_anchor = page->anchor_count > 0 ? page->anchors[0].version : 0;
        note_leaps(gc, &page->leaps);
        for (size_t i = 0; i < page->anchor_count && status == WEFT_OK; i++) {
            status = add_large(gc, &page->anchors[i].object, page->anchors[i].version, 0);
        }
    }
    gc->page = gc->count;
    if (status == WEFT_OK) {
        status = add_object(gc, blob->key, blob->bytes, page->records[0].version, 0);
    }
    for (size_t i = page->record_count; i > 0 && status == WEFT_OK; i--) {
        note_leaps(gc, &page->records[i - 1].leaps);
        if (page->records[i - 1].version > gc->collected) {
            status = visit_record(gc, &page->records[i - 1]);
        }
    }
    bool more = gc->whole || !gc->full || page->records[0].version > gc->collected + 1;
    return status == WEFT_OK && more ? WEFT_MORE : status;
}

/* ---- the horizon ---- */

/* At least how long a record holds. The objects must be in the order in which they came. */
static weft_status find_age(const gc_run *gc, size_t index, double *age_out) {
    if (index == 0) {
        char key[WEFT_HEAD_KEY];
        weft_head_key(gc->epoch, key);
        return weft_store_age(gc->context, gc->store, key, age_out);
    }
    const gc_step *next = &gc->steps[index - 1];
    weft_status status = WEFT_NOT_FOUND;
    if (next->made != SIZE_MAX) {
        status = weft_store_age(gc->context, gc->store, gc->objects[next->made].key, age_out);
    }
    return status == WEFT_NOT_FOUND
               ? weft_store_age(gc->context, gc->store, gc->objects[next->page].key, age_out)
               : status;
}

static bool any_unneeded(const gc_run *gc) {
    for (size_t i = 0; i < gc->count; i++) {
        if (gc->objects[i].since != 0) {
            return true;
        }
    }
    return false;
}

static weft_status find_horizon(gc_run *gc) {
    if (gc->options.grace_seconds == 0) {
        gc->horizon = gc->newest;
        return WEFT_OK;
    }
    size_t low = 0;
    size_t high = any_unneeded(gc) ? gc->step_count : 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        double age = 0;
        weft_status status = find_age(gc, middle, &age);
        if (status == WEFT_UNSUPPORTED) {
            gc->result.ageless = true;
            return WEFT_OK;
        }
        if (status != WEFT_OK && status != WEFT_NOT_FOUND) {
            return status;
        }
        if (status == WEFT_OK && age >= gc->options.grace_seconds) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    gc->horizon = low < gc->step_count ? gc->steps[low].version : 0;
    return WEFT_OK;
}

/* ---- removing ---- */

static weft_status remove_object(gc_run *gc, const char *key, uint64_t bytes) {
    weft_status status = gc->options.dry_run ? WEFT_OK : weft_store_remove(gc->context, gc->store, key);
    if (status == WEFT_OK) {
        gc->result.objects++;
        gc->result.bytes += bytes;
        if (gc->options.removed != NULL) {
            gc->options.removed(gc->options.opaque, key, bytes);
        }
    }
    return status;
}

/* By key, and of one key what is needed first. */
static int compare_objects(const void *a, const void *b) {
    const gc_object *first = a;
    const gc_object *second = b;
    int order = strcmp(first->key, second->key);
    return order != 0 ? order : (first->since > second->since) - (first->since < second->since);
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(((const gc_object *)a)->key, ((const gc_object *)b)->key);
}

static weft_status remove_unneeded(gc_run *gc) {
    weft_status status = WEFT_OK;
    const char *key = ""; /* of the last object */
    for (size_t i = 0; i < gc->count && status == WEFT_OK; i++) {
        const gc_object *object = &gc->objects[i];
        bool decided = strcmp(object->key, key) == 0;
        key = object->key;
        /* what one record retires and another needs is needed */
        if (decided || object->since == 0) {
            continue;
        }
        if (object->since > gc->horizon || (object->unproven && !gc->proven)) {
            gc->result.waiting++;
            uint64_t *lowest = object->retired ? &gc->waiting_retired : &gc->waiting_version;
            *lowest = *lowest == 0 || object->version < *lowest ? object->version : *lowest;
        } else {
            status = remove_object(gc, object->key, object->bytes);
        }
    }
    return status;
}

/* ---- leftovers ---- */

typedef struct leftover_list {
    gc_run *gc;
    double least_age;
    size_t named; /* objects of the history, sorted; leftovers are collected behind them */
    weft_status status;
} leftover_list;

/* True if a page or head may yet name it. Writers of earlier epochs name nothing any more, and what those
 * of later ones have named is not known here. The writer of this one may be about to name: all kinds of
 * objects of the newest version or a later one; anchors above the newest that is named: they are made in
 * the background, and named with a later version; leaps from the last one that is named on, which is not
 * the only one that ends there; they end at multiples, and their patches and lists lie among those of
 * versions. What the parts of a version tell each other is of use while their epoch lasts. */
static bool may_come(const gc_run *gc, const char *key) {
    static const char *const rooms[] = {"patches", "anchors", "pages", "chunks", "pieces", "leaps"};
    uint64_t epoch = 0;
    uint64_t version = 0;
    unsigned long long parts;
    if (sscanf(key, "parts/%llu/", &parts) == 1) {
        return parts >= gc->epoch;
    }
    const char *room = NULL;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms && room == NULL; i++) {
        room = parse_key(key, rooms[i], &epoch, &version) ? rooms[i] : NULL;
    }
    if (room == NULL || epoch != gc->epoch) {
        return room != NULL && epoch > gc->epoch;
    }
    bool list = strcmp(room, "chunks") == 0;
    bool anchor = list || strcmp(room, "anchors") == 0 || strcmp(room, "pieces") == 0;
    bool leap = list || strcmp(room, "leaps") == 0 || strcmp(room, "patches") == 0;
    return version >= gc->newest || (anchor && version > gc->newest_anchor) ||
           (leap && version >= gc->leaps_end && version % WEFT_LEAP_WAYS == 0);
}

static bool visit_listed(void *opaque, const char *key, uint64_t size, double age_seconds) {
    leftover_list *list = opaque;
    gc_object wanted = {.bytes = 0};
    snprintf(wanted.key, sizeof wanted.key, "%s", key);
    bool named = bsearch(&wanted, list->gc->objects, list->named, sizeof wanted, compare_keys) != NULL;
    if (!named && age_seconds >= list->least_age && !may_come(list->gc, key)) {
        list->status = add_object(list->gc, key, size, 0, 1);
    }
    return list->status == WEFT_OK;
}

static weft_status remove_leftovers(gc_run *gc) {
    static const char *const rooms[] = {"patches", "anchors", "pages", "chunks",
                                        "pieces",  "leaps",   "parts"};
    double grace = gc->options.grace_seconds;
    leftover_list list = {
        .gc = gc, .least_age = grace > LEFTOVER_SECONDS ? grace : LEFTOVER_SECONDS, .named = gc->count};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms && status == WEFT_OK; i++) {
        status = weft_store_list(gc->context, gc->store, rooms[i], visit_listed, &list);
        status = status == WEFT_OK ? list.status : status;
    }
    for (size_t i = list.named; i < gc->count && status == WEFT_OK; i++) {
        status = remove_object(gc, gc->objects[i].key, gc->objects[i].bytes);
    }
    return status;
}

/* A follower that is behind goes on patch by patch, from the version after its own. */
static weft_status heed_followers(gc_run *gc, const weft_sync_head *head) {
    gc->needed_from = gc->floor;
    if (!gc->options.keep_followers) {
        return WEFT_OK;
    }
    weft_fleet fleet = {.size = sizeof fleet};
    weft_status status = weft_fleet_read_live(gc->context, gc->store, head, &fleet);
    if (status == WEFT_OK) {
        if (fleet.slowest > 0 && fleet.slowest < gc->floor) {
            gc->needed_from = fleet.slowest;
            gc->result.follower = fleet.slowest;
        }
        weft_fleet_close(gc->context, &fleet);
    }
    return status;
}

static bool visit_nothing(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)opaque;
    (void)key;
    (void)size;
    (void)age_seconds;
    return false;
}

static weft_status collect_objects(gc_run *gc, const weft_sync_head *head) {
    memcpy(gc->run, head->run, sizeof gc->run);
    gc->floor = head->newest.floor;
    gc->newest = head->newest.version;
    gc->epoch = head->epoch;
    weft_status heeded = heed_followers(gc, head);
    if (heeded != WEFT_OK) {
        return heeded;
    }
    /* a mark that cannot be read is as good as none */
    char text[MARK_BYTES];
    weft_store_get_request request = {
        .size = sizeof request, .key = MARK_KEY, .length = sizeof text, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    if (weft_store_get(gc->context, gc->store, &request, &result) == WEFT_OK) {
        parse_mark(gc, text, (size_t)result.received);
    }
    weft_context_clear(gc->context);
    weft_status listed = weft_store_list(gc->context, gc->store, "pages", visit_nothing, NULL);
    gc->whole = listed == WEFT_OK;
    weft_status status = listed == WEFT_UNSUPPORTED ? WEFT_OK : listed;
    weft_status walked = WEFT_OK;
    weft_failure failure = {.status = WEFT_OK};
    if (status == WEFT_OK) {
        walked = weft_history_walk(gc->context, gc->store, head, NULL, visit_page, gc);
        walked = walked == WEFT_OK ? keep_needed(gc) : walked;
        gc->proven = walked == WEFT_OK;
        failure = weft_failure_keep(gc->context, walked);
        status = find_horizon(gc);
        if (gc->count > 0) {
            qsort(gc->objects, gc->count, sizeof *gc->objects, compare_objects);
        }
        status = status == WEFT_OK ? remove_unneeded(gc) : status;
    }
    /* a page that cannot be read keeps what it may name, and leftovers cannot be told from that */
    if (status == WEFT_OK && walked != WEFT_OK) {
        return weft_failure_tell(gc->context, &failure);
    }
    if (status == WEFT_OK) {
        status = write_mark(gc);
    }
    if (status == WEFT_OK && gc->whole) {
        status = remove_leftovers(gc);
    }
    return status == WEFT_OK && gc->whole && !gc->options.dry_run ? weft_fleet_sweep(gc->context, gc->store)
                                                                  : status;
}

/* The newest head. `settled_out`: all histories go through it from now on. Nobody had begun a later epoch
 * when it was what it is; and it is not only a claim, which may still be replaced by what the writer before
 * has put last. */
static weft_status look_surely(weft_follow *follow, bool *settled_out) {
    weft_status status = WEFT_OK;
    for (int i = 0; i < LOOKS && status == WEFT_OK; i++) {
        char key[WEFT_HEAD_KEY];
        status = weft_follow_look(follow);
        if (status < 0) {
            return status;
        }
        weft_head_key(follow->head.epoch + 1, key);
        status = weft_store_head(follow->context, follow->store, key, NULL, NULL);
    }
    *settled_out = status == WEFT_NOT_FOUND && !weft_sync_head_unsettled(&follow->head);
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

weft_status weft_gc_run(weft_context *context, weft_store *store, const weft_gc_options *options,
                        weft_gc_result *result_out) {
    weft_context_clear(context);
    gc_run gc = {.context = context, .store = store, .page_before = SIZE_MAX};
    weft_status status =
        weft_sized_read(context, options, &gc.options, sizeof gc.options, "weft_gc_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, result_out, "weft_gc_result");
    }
    if (status != WEFT_OK) {
        return status;
    }
    bool meetings = gc.options.meeting_seconds > 0;
    status = meetings ? weft_meetings_collect(context, store, &gc.options, &gc.result) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    weft_pieces_open(&gc.needed, context);
    if (options == NULL || gc.options.grace_seconds < 0) {
        gc.options.grace_seconds = GRACE_SECONDS;
    }
    weft_follow follow;
    bool settled = true;
    status = weft_follow_open(&follow, context, store, gc.options.trusted, NULL, false);
    if (status == WEFT_OK) {
        status = look_surely(&follow, &settled);
        /* trainers may meet where nobody publishes */
        status = meetings && status == WEFT_NOT_FOUND ? WEFT_OK : status;
    }
    if (status == WEFT_OK && follow.head.started) {
        gc.result.oldest = follow.head.newest.floor;
        gc.result.unsettled = !settled;
        status = settled ? collect_objects(&gc, &follow.head) : WEFT_OK;
    }
    weft_follow_close(&follow);
    weft_pieces_close(&gc.needed);
    weft_release(context, gc.objects);
    weft_release(context, gc.steps);
    if (status == WEFT_OK) {
        weft_sized_write(&gc.result, result_out, sizeof gc.result);
    }
    return status;
}
