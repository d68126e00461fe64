/* SPDX-License-Identifier: Apache-2.0
 *
 * gc.c: removing what no kept version needs.
 *
 * The history tells everything: a record names the objects that nothing needs from its version on, and the
 * floor below which versions are no longer kept. An object goes when it has been unneeded for the grace
 * period, by the dates in the records, so that whoever is still fetching it can finish. A mark in the store
 * remembers up to which version all is gone, so that a long history is not gone through again; it is only a
 * help, and losing it costs nothing but time.
 *
 * Where the store can be listed, objects that no history names go too: what failed publishes and fenced
 * writers have left, and what followers told of themselves long ago.
 */
#include "../base/clock.h"
#include "../base/context.h"
#include "../tensor/json.h"
#include "fleet.h"
#include "follow.h"
#include "history.h"
#include "leap.h"
#include "pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MARK_KEY[] = "gc/mark";
static const double GRACE_SECONDS = 3600;
/* an object of a publish that is under way is named by nothing yet */
static const double LEFTOVER_SECONDS = 600;

enum { MARK_BYTES = 512, JSON_DEPTH = 2, JSON_CONTAINERS = 4 };

/* An object, and since when it is not needed; 0: it is. */
typedef struct gc_object {
    char key[WEFT_KEY_SIZE];
    uint64_t bytes; /* 0: not known */
    uint64_t version;
    uint64_t since;
    bool retired;  /* by the record of `version`; else it is the patch that leads there */
    bool unproven; /* named by a list that nothing vouches for any more, or is that list */
} gc_object;

/* What is needed of a record later. */
typedef struct gc_date {
    uint64_t floor;
    uint64_t milliseconds;
} gc_date;

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
    gc_date *dates;     /* of the records seen, newest first: floors fall */
    size_t date_count;
    uint64_t waiting_version; /* the lowest whose patch must be looked at again; 0: none */
    uint64_t waiting_retired; /* the same for what records retire */
    uint64_t retired;         /* what records up to this one retire is gone */
    uint64_t newest;
    uint64_t epoch;
    uint64_t newest_anchor;
    uint64_t leaps_end; /* the version that the leaps of the newest page lead to; 0: there are none */
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

static weft_status add_pieces(gc_run *gc, const weft_pieces *pieces, uint64_t version, uint64_t since) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < pieces->count && status == WEFT_OK; i++) {
        status = add_plain(gc, &pieces->items[i], version, since);
    }
    return status;
}

/* A list that is gone, or is no list, leads to nothing that could be removed. */
static bool useless(weft_status status) {
    return status == WEFT_NOT_FOUND || status == WEFT_MALFORMED || status == WEFT_CHECKSUM_MISMATCH;
}

static weft_status add_listed(gc_run *gc, const weft_object *object, uint64_t version, uint64_t since) {
    weft_pieces pieces;
    weft_pieces_open(&pieces, gc->context);
    weft_status status = weft_pieces_fetch(&pieces, gc->store, object);
    if (status == WEFT_OK) {
        status = add_pieces(gc, &pieces, version, since);
    } else if (since != 0 && useless(status)) {
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
        status = useless(status) ? WEFT_OK : status;
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

/* A mark that cannot be read is as good as none. */
static void read_mark(gc_run *gc) {
    char text[MARK_BYTES];
    weft_store_get_request request = {.key = MARK_KEY, .length = sizeof text, .buffer = text};
    weft_store_get_result result;
    if (weft_store_get(gc->context, gc->store, &request, &result) == WEFT_OK) {
        parse_mark(gc, text, (size_t)result.received);
    }
    weft_context_clear(gc->context);
}

static weft_status write_mark(gc_run *gc) {
    uint64_t collected = gc->waiting_version > 0 ? gc->waiting_version - 1 : gc->needed_from;
    uint64_t retired = gc->waiting_retired > 0 ? gc->waiting_retired - 1 : gc->newest;
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

/* The date at which the floor reached a version: that of the oldest record seen with such a floor. */
static uint64_t date_of_floor(const gc_run *gc, uint64_t version) {
    size_t low = 0;
    size_t high = gc->date_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (gc->dates[middle].floor >= version) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? gc->dates[low - 1].milliseconds : 0;
}

static weft_status keep_date(gc_run *gc, const weft_record *record) {
    gc_date *dates = weft_reallocate_array(gc->context, gc->dates, gc->date_count + 1, sizeof *dates);
    if (dates == NULL) {
        return WEFT_NO_MEMORY;
    }
    gc->dates = dates;
    dates[gc->date_count++] = (gc_date){record->floor, record->milliseconds};
    return WEFT_OK;
}

/* A leap's patch is of use as long as somebody may be at the version that it starts from; its node, which
 * leads to smaller ones too, as long as somebody may be on the way. */
static weft_status visit_leap(gc_run *gc, const weft_leap *leap, uint64_t version) {
    uint64_t patch_since = leap->first < gc->needed_from ? date_of_floor(gc, leap->first + 1) : 0;
    uint64_t node_since = leap->last <= gc->needed_from ? date_of_floor(gc, leap->last) : 0;
    weft_status status = add_object(gc, leap->node.key, leap->node.bytes, version, node_since);
    if (status == WEFT_OK && leap->key[0] != '\0') {
        status = add_object(gc, leap->key, leap->bytes, version, patch_since);
    }
    return status == WEFT_OK && leap->list_key[0] != '\0'
               ? add_object(gc, leap->list_key, 0, version, patch_since)
               : status;
}

static weft_status visit_record(gc_run *gc, const weft_record *record) {
    weft_status status = keep_date(gc, record);
    bool done = record->version <= gc->retired;
    for (size_t i = 0; !done && i < record->retired.count && status == WEFT_OK; i++) {
        status = add_retired(gc, record->retired.items[i], record->version, record->milliseconds);
    }
    for (size_t i = 0; i < record->leaps.count && status == WEFT_OK; i++) {
        status = visit_leap(gc, &record->leaps.items[i], record->version);
    }
    if (status == WEFT_OK && record->patched) {
        uint64_t since = record->version <= gc->needed_from ? date_of_floor(gc, record->version) : 0;
        status = add_large(gc, &record->patch, record->version, since);
    }
    return status;
}

static weft_status visit_newest(gc_run *gc, const weft_page *page) {
    weft_status status = WEFT_OK;
    gc->newest_anchor = page->anchor_count > 0 ? page->anchors[0].version : 0;
    gc->leaps_end = page->leaps.count > 0 ? page->leaps.items[page->leaps.count - 1].last : 0;
    for (size_t i = 0; i < page->anchor_count && status == WEFT_OK; i++) {
        status = add_large(gc, &page->anchors[i].object, page->anchors[i].version, 0);
    }
    return status;
}

static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    gc_run *gc = opaque;
    weft_status status = gc->date_count == 0 ? visit_newest(gc, page) : WEFT_OK;
    if (status == WEFT_OK) {
        status = add_object(gc, blob->key, blob->bytes, page->records[0].version, 0);
    }
    for (size_t i = page->record_count; i > 0 && status == WEFT_OK; i--) {
        if (page->records[i - 1].version > gc->collected) {
            status = visit_record(gc, &page->records[i - 1]);
        }
    }
    bool more = gc->whole || page->records[0].version > gc->collected + 1;
    return status == WEFT_OK && more ? WEFT_MORE : status;
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

static void lower(uint64_t *version, uint64_t other) {
    *version = *version == 0 || other < *version ? other : *version;
}

static void note_waiting(gc_run *gc, const gc_object *object) {
    gc->result.waiting++;
    lower(object->retired ? &gc->waiting_retired : &gc->waiting_version, object->version);
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
    uint64_t now = weft_clock_date();
    uint64_t grace = (uint64_t)(gc->options.grace_seconds * 1000);
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
        if (object->since + grace > now || (object->unproven && !gc->proven)) {
            note_waiting(gc, object);
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

/* An anchor is named by a page only when its writer publishes again, which may be long after; and so are
 * the newest leaps. What the parts of a version tell each other is of use while their epoch lasts. */
static bool may_come(const gc_run *gc, const char *key) {
    unsigned long long epoch;
    unsigned long long version;
    if (sscanf(key, "parts/%llu/", &epoch) == 1) {
        return epoch >= gc->epoch;
    }
    bool list = sscanf(key, "chunks/%llu-%llu-", &epoch, &version) == 2;
    bool anchor = sscanf(key, "anchors/%llu-%llu-", &epoch, &version) == 2 ||
                  sscanf(key, "pieces/%llu-%llu-", &epoch, &version) == 2 || list;
    bool leap = sscanf(key, "leaps/%llu-%llu-", &epoch, &version) == 2 ||
                sscanf(key, "patches/%llu-%llu-", &epoch, &version) == 2 || list;
    if ((!anchor && !leap) || epoch < gc->epoch) {
        return false;
    }
    uint64_t newest_leap = gc->newest / WEFT_LEAP_WAYS * WEFT_LEAP_WAYS;
    return (anchor && version > gc->newest_anchor) || (leap && version == newest_leap) ||
           (leap && gc->leaps_end > 0 && version > gc->leaps_end && version < newest_leap &&
            version % WEFT_LEAP_WAYS == 0);
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
    weft_fleet fleet;
    weft_head_info info = weft_fleet_head(head);
    const weft_fleet_options options = {.head = &info};
    weft_status status = weft_fleet_read(gc->context, gc->store, &options, &fleet);
    if (status == WEFT_OK) {
        if (fleet.slowest > 0 && fleet.slowest < gc->floor) {
            gc->needed_from = fleet.slowest;
            gc->result.follower = fleet.slowest;
        }
        weft_fleet_close(gc->context, &fleet);
    }
    return status;
}

static bool never(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)opaque;
    (void)key;
    (void)size;
    (void)age_seconds;
    return false;
}

static weft_status collect(gc_run *gc, const weft_sync_head *head) {
    memcpy(gc->run, head->run, sizeof gc->run);
    gc->floor = head->newest.floor;
    gc->newest = head->newest.version;
    gc->epoch = head->epoch;
    gc->result.oldest = gc->floor;
    weft_status heeded = heed_followers(gc, head);
    if (heeded != WEFT_OK) {
        return heeded;
    }
    read_mark(gc);
    weft_status listed = weft_store_list(gc->context, gc->store, "pages", never, NULL);
    gc->whole = listed == WEFT_OK;
    weft_status status = listed == WEFT_UNSUPPORTED ? WEFT_OK : listed;
    weft_status walked = WEFT_OK;
    char text[MARK_BYTES];
    if (status == WEFT_OK) {
        walked = weft_history_walk(gc->context, gc->store, head, NULL, visit_page, gc);
        walked = walked == WEFT_OK ? keep_needed(gc) : walked;
        gc->proven = walked == WEFT_OK;
        snprintf(text, sizeof text, "%s", weft_context_error(gc->context));
        if (gc->count > 0) {
            qsort(gc->objects, gc->count, sizeof *gc->objects, compare_objects);
        }
        status = remove_unneeded(gc);
    }
    /* a page that cannot be read keeps what it may name, and leftovers cannot be told from that */
    if (status == WEFT_OK && walked != WEFT_OK) {
        return weft_fail(gc->context, walked, "%s", text);
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

weft_status weft_gc_run(weft_context *context, weft_store *store, const weft_gc_options *options,
                        weft_gc_result *result_out) {
    weft_context_clear(context);
    gc_run gc = {.context = context, .store = store, .options = {.grace_seconds = -1}};
    weft_pieces_open(&gc.needed, context);
    if (options != NULL) {
        gc.options = *options;
    }
    if (gc.options.grace_seconds < 0) {
        gc.options.grace_seconds = GRACE_SECONDS;
    }
    weft_follow follow;
    weft_status status = weft_follow_open(&follow, context, store, gc.options.trusted, NULL, false);
    if (status == WEFT_OK) {
        status = weft_follow_look(&follow);
    }
    if (status == WEFT_OK && follow.head.started) {
        status = collect(&gc, &follow.head);
    }
    weft_follow_close(&follow);
    weft_pieces_close(&gc.needed);
    weft_release(context, gc.objects);
    weft_release(context, gc.dates);
    if (status == WEFT_OK && result_out != NULL) {
        *result_out = gc.result;
    }
    return status;
}
