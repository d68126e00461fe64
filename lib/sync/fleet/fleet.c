/* SPDX-License-Identifier: Apache-2.0
 *
 * fleet.c: reading what followers have told of themselves.
 *
 * Reports are found by a listing, which also tells their age by the store's own clock: that of a follower
 * is not believed. What cannot be read, or is no report, is left out and counted.
 */
#include "fleet.h"
#include "../../base/sized.h"

#include "../../base/context.h"
#include "../../base/pool.h"
#include "../follow/follow.h"
#include "../format/report.h"

#include <stdlib.h>
#include <string.h>

/* Reports that a listing gives are looked at up to so many; of these the youngest WEFT_FLEET_MAX are read.
 */
enum { LISTED_MAX = 65536 };

static const double OLD_SECONDS = 86400;
static const double LIVE_INTERVALS = 3;
/* that a relay may be silent, before those that it has told of count as gone */
static const double RELAY_SECONDS = 300;

typedef struct listed {
    char name[WEFT_FOLLOWER_NAME];
    double age;
} listed;

typedef struct listing {
    weft_context *context;
    bool old;  /* those that are too old are wanted, not the others */
    bool live; /* those that cannot be live are not wanted */
    listed *items;
    size_t count;
    size_t capacity;
    size_t left_out;
    weft_status status;
} listing;

/* ---- listing ---- */

static weft_status add_listed(listing *list, const char *name, double age) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        listed *items = weft_reallocate_array(list->context, list->items, capacity, sizeof *items);
        if (items == NULL) {
            return WEFT_NO_MEMORY;
        }
        list->items = items;
        list->capacity = capacity;
    }
    listed *item = &list->items[list->count++];
    *item = (listed){.age = age};
    memcpy(item->name, name, strlen(name) + 1);
    return WEFT_OK;
}

static bool visit_listed(void *opaque, const char *key, uint64_t size, double age_seconds) {
    listing *list = opaque;
    const char *name = weft_report_name(key);
    bool old = age_seconds > OLD_SECONDS;
    bool silent = list->live && age_seconds >= LIVE_INTERVALS * WEFT_REPORT_LONGEST;
    bool wanted = name != NULL && old == list->old && !silent && (old || size <= WEFT_REPORT_MAX);
    if (wanted) {
        list->status = add_listed(list, name, age_seconds);
    } else {
        list->left_out++;
    }
    return list->status == WEFT_OK && list->count < LISTED_MAX;
}

static weft_status list_reports(listing *list, weft_store *store) {
    weft_status status = weft_store_list(list->context, store, WEFT_REPORT_ROOM, visit_listed, list);
    if (status == WEFT_UNSUPPORTED) {
        return weft_fail(
            list->context, WEFT_UNSUPPORTED,
            "%s cannot tell who follows: it has no listing, as a directory, S3 and `weft serve` "
            "have; ask one of these",
            weft_store_url(store));
    }
    return status == WEFT_OK ? list->status : status;
}

static int compare_ages(const void *a, const void *b) {
    double first = ((const listed *)a)->age;
    double second = ((const listed *)b)->age;
    return (first > second) - (first < second);
}

weft_status weft_fleet_sweep(weft_context *context, weft_store *store) {
    listing list = {.context = context, .old = true};
    weft_status status = list_reports(&list, store);
    for (size_t i = 0; i < list.count && status == WEFT_OK; i++) {
        char key[WEFT_KEY_SIZE];
        weft_report_key(list.items[i].name, key);
        status = weft_store_remove(context, store, key);
    }
    weft_release(context, list.items);
    return status;
}

/* ---- reading ---- */

typedef struct reading {
    weft_context *context;
    weft_store *store;
    const listing *list;
    const weft_head_info *head;
    const weft_follower **order;
    weft_follower *followers; /* one for each that is listed; no name: it is left out */
} reading;

/* A relay tells how long ago it has heard of a follower, and tells it once more when that is too long. So
 * while nothing comes from the relay, the follower is as it was: what is late is not dead. */
static bool is_live(const weft_follower *follower, double age) {
    double silence = LIVE_INTERVALS * follower->interval_seconds;
    bool heard = follower->relayed ? follower->relay_seconds < silence && age < RELAY_SECONDS + silence
                                   : age < silence;
    return heard && strcmp(follower->state, "ended") != 0;
}

/* What the reader knows besides; `age` is that of the report. */
static void measure_follower(weft_follower *follower, const weft_head_info *head, double age) {
    bool behind = follower->version < head->version;
    bool dated = follower->version > 0 && follower->published <= head->milliseconds;
    follower->age_seconds = age + follower->relay_seconds;
    follower->lag = behind ? head->version - follower->version : 0;
    follower->lag_seconds = !behind ? 0 : -1;
    if (behind && dated) {
        follower->lag_seconds = 1e-3 * (double)(head->milliseconds - follower->published);
    }
    follower->live = is_live(follower, age);
}

/* One that is no report, or is gone, must not hide the others. A store that fails must: who is not seen for
 * that is still there. */
static weft_status read_one(void *argument, size_t index, unsigned worker) {
    reading *reading = argument;
    const listed *item = &reading->list->items[index];
    weft_follower *follower = &reading->followers[index];
    (void)worker;
    char key[WEFT_KEY_SIZE];
    uint8_t data[WEFT_REPORT_MAX + 1];
    weft_report_key(item->name, key);
    weft_store_get_request request = {
        .size = sizeof request, .key = key, .length = sizeof data, .buffer = data};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(reading->context, reading->store, &request, &result);
    if (status != WEFT_OK && status != WEFT_NOT_FOUND) {
        return status;
    }
    if (status == WEFT_OK) {
        status = weft_report_parse(reading->context, item->name, data, (size_t)result.received, follower);
    }
    if (status == WEFT_NO_MEMORY) {
        return status;
    }
    if (status == WEFT_OK && strcmp(follower->run, reading->head->run) == 0) {
        measure_follower(follower, reading->head, item->age);
    } else {
        follower->name[0] = '\0';
    }
    return WEFT_OK;
}

static int compare_followers(const void *a, const void *b) {
    const weft_follower *first = *(const weft_follower *const *)a;
    const weft_follower *second = *(const weft_follower *const *)b;
    if (first->live != second->live) {
        return first->live ? -1 : 1;
    }
    if (first->lag != second->lag) {
        return first->lag > second->lag ? -1 : 1;
    }
    return strcmp(first->name, second->name);
}

static void count_fleet(weft_fleet *fleet) {
    for (size_t i = 0; i < fleet->count; i++) {
        const weft_follower *follower = fleet->followers[i];
        bool counts = follower->live && follower->version > 0;
        fleet->live += follower->live;
        if (follower->live && (fleet->reads == 0 || follower->reads < fleet->reads)) {
            fleet->reads = follower->reads;
        }
        if (counts && (fleet->slowest == 0 || follower->version < fleet->slowest)) {
            fleet->slowest = follower->version;
        }
    }
}

static void gather(const reading *reading, size_t count, size_t left_out, weft_fleet *fleet) {
    const weft_follower **followers = reading->order;
    for (size_t i = 0; i < count; i++) {
        if (reading->followers[i].name[0] != '\0') {
            followers[fleet->count++] = &reading->followers[i];
        }
    }
    fleet->followers = followers;
    fleet->left_out = left_out + count - fleet->count;
    if (fleet->count > 0) {
        qsort(followers, fleet->count, sizeof *followers, compare_followers);
    }
    count_fleet(fleet);
}

/* One block: the order, and behind it the followers themselves. */
static weft_status make_places(reading *reading, size_t count) {
    reading->order = weft_allocate_zeroed(reading->context, count + 1,
                                          sizeof *reading->order + sizeof *reading->followers);
    reading->followers = (weft_follower *)(reading->order + count + 1);
    return reading->order != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

static weft_status finish_reading(reading *reading, weft_status status, size_t count, size_t left_out,
                                  weft_fleet *fleet_out) {
    if (status == WEFT_OK) {
        weft_fleet fleet = {.size = sizeof fleet, .newest = reading->head->version};
        gather(reading, count, left_out, &fleet);
        weft_sized_write(&fleet, fleet_out, sizeof fleet);
        weft_context_clear(reading->context);
    } else {
        weft_release(reading->context, reading->order);
    }
    return status;
}

weft_status weft_fleet_make(weft_context *context, const weft_head_info *head,
                            const weft_follower *followers, const double *ages, size_t count,
                            weft_fleet *fleet_out) {
    reading reading = {.context = context, .head = head};
    weft_status status = make_places(&reading, count);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        if (strcmp(followers[i].run, head->run) == 0) {
            reading.followers[i] = followers[i];
            measure_follower(&reading.followers[i], head, ages[i]);
        }
    }
    return finish_reading(&reading, status, count, 0, fleet_out);
}

/* ---- all at once, from `weft serve` ---- */

static size_t count_lines(const char *text, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        count += text[i] == '\n';
    }
    return count < WEFT_FLEET_MAX ? count : WEFT_FLEET_MAX;
}

/* What is no report, or of another run, is left out; where lines cannot be told apart, all that follows. */
static weft_status read_lines(reading *reading, const char *text, size_t size, weft_fleet *fleet_out) {
    size_t count = count_lines(text, size);
    weft_status status = make_places(reading, count);
    size_t left = size;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        weft_follower *follower = &reading->followers[i];
        double age = 0;
        weft_status found = weft_report_line_parse(reading->context, &text, &left, follower, &age);
        status = found == WEFT_NO_MEMORY ? found : WEFT_OK;
        if (found == WEFT_OK && strcmp(follower->run, reading->head->run) == 0) {
            measure_follower(follower, reading->head, age);
        } else {
            follower->name[0] = '\0';
        }
    }
    return finish_reading(reading, status, count, 0, fleet_out);
}

/* WEFT_NOT_FOUND: this is no `weft serve`, or an old one. */
static weft_status read_batch(reading *reading, weft_fleet *fleet_out) {
    const size_t capacity = (size_t)WEFT_FLEET_MAX * WEFT_REPORT_LINE_MAX;
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(reading->store, &traits);
    if (!traits.conditional || strncmp(weft_store_url(reading->store), "http", 4) != 0) {
        return WEFT_NOT_FOUND;
    }
    char *text = weft_allocate(reading->context, capacity);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_store_get_request request = {
        .size = sizeof request, .key = WEFT_REPORT_BATCH_KEY, .length = capacity, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(reading->context, reading->store, &request, &result);
    if (status == WEFT_OK) {
        status = read_lines(reading, text, (size_t)result.received, fleet_out);
    }
    weft_release(reading->context, text);
    return status;
}

/* ---- one by one ---- */

static weft_status read_listed(reading *reading, bool live, weft_fleet *fleet_out) {
    listing list = {.context = reading->context, .live = live};
    weft_status status = list_reports(&list, reading->store);
    if (status == WEFT_OK && list.count > WEFT_FLEET_MAX) {
        qsort(list.items, list.count, sizeof *list.items, compare_ages);
        list.left_out += list.count - WEFT_FLEET_MAX;
        list.count = WEFT_FLEET_MAX;
    }
    reading->list = &list;
    if (status == WEFT_OK) {
        status = make_places(reading, list.count);
    }
    if (status == WEFT_OK) {
        status = weft_parallel(reading->context, list.count, read_one, reading);
    }
    status = finish_reading(reading, status, list.count, list.left_out, fleet_out);
    weft_release(reading->context, list.items);
    return status;
}

static weft_status read_fleet(weft_context *context, weft_store *store, const weft_head_info *head,
                              bool live, weft_fleet *fleet_out) {
    reading reading = {.context = context, .store = store, .head = head};
    weft_status status = read_batch(&reading, fleet_out);
    return status == WEFT_NOT_FOUND ? read_listed(&reading, live, fleet_out) : status;
}

weft_status weft_fleet_read_live(weft_context *context, weft_store *store, const weft_sync_head *head,
                                 weft_fleet *fleet_out) {
    weft_head_info info = weft_fleet_head(head);
    return read_fleet(context, store, &info, true, fleet_out);
}

weft_head_info weft_fleet_head(const weft_sync_head *head) {
    weft_head_info info = {.size = sizeof info, .epoch = head->epoch, .sequence = head->sequence};
    memcpy(info.run, head->run, sizeof info.run);
    if (head->started) {
        info.version = head->newest.version;
        info.digest = head->newest.digest;
        info.milliseconds = head->newest.milliseconds;
    }
    return info;
}

weft_status weft_fleet_read(weft_context *context, weft_store *store, const weft_fleet_options *given,
                            weft_fleet *fleet_out) {
    weft_context_clear(context);
    weft_fleet_options options;
    weft_head_info head;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_fleet_options");
    if (status == WEFT_OK) {
        status = weft_sized_read(context, options.head, &head, sizeof head, "weft_head_info");
    }
    if (status == WEFT_OK) {
        status = weft_sized_check(context, fleet_out, "weft_fleet");
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (options.head != NULL) {
        return read_fleet(context, store, &head, false, fleet_out);
    }
    weft_follow follow;
    status = weft_follow_open(&follow, context, store, options.trusted, NULL, false);
    if (status == WEFT_OK) {
        status = weft_follow_look(&follow);
    }
    if (status == WEFT_OK) {
        head = weft_fleet_head(&follow.head);
        status = read_fleet(context, store, &head, false, fleet_out);
    }
    weft_follow_close(&follow);
    return status;
}

void weft_fleet_close(weft_context *context, weft_fleet *fleet) {
    weft_fleet nothing;
    if (weft_sized_read(context, fleet, &nothing, sizeof nothing, "weft_fleet") == WEFT_OK) {
        weft_release(context, (void *)nothing.followers);
        nothing = (weft_fleet){.size = sizeof nothing};
        weft_sized_write(&nothing, fleet, sizeof nothing);
    }
}
