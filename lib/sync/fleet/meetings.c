/* SPDX-License-Identifier: Apache-2.0
 *
 * meetings.c: removing what trainers that met in a store have left there (doc/FORMAT.md, section 35).
 *
 * Nothing in a meeting says that it is over: its last rounds, their `closed` and its snapshots stay, so
 * that ranks which were stopped can go on. Whoever collects says after how long a silence they will not. A
 * meeting in which anything was put since, by the store's clock, stays whole; of another all goes, and last
 * what says which rounds are closed.
 */
#include "meetings.h"

#include "../../base/context.h"

#include <stdlib.h>
#include <string.h>

static const char ROOM[] = "loco/";

typedef struct left_object {
    char *key;
    uint64_t bytes;
    double age;
} left_object;

typedef struct meetings {
    weft_context *context;
    left_object *items;
    size_t count;
    size_t capacity;
    weft_status status;
} meetings;

static bool visit_object(void *opaque, const char *key, uint64_t size, double age_seconds) {
    meetings *all = opaque;
    weft_context *context = all->context;
    if (strncmp(key, ROOM, sizeof ROOM - 1) != 0) {
        return true;
    }
    if (all->count == all->capacity) {
        size_t capacity = all->capacity > 0 ? 2 * all->capacity : 256;
        left_object *items = weft_reallocate_array(context, all->items, capacity, sizeof *items);
        if (items == NULL) {
            all->status = WEFT_NO_MEMORY;
            return false;
        }
        all->items = items;
        all->capacity = capacity;
    }
    left_object *item = &all->items[all->count];
    *item = (left_object){weft_copy_text(context, key, strlen(key)), size, age_seconds};
    all->status = item->key != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    all->count += item->key != NULL;
    return all->status == WEFT_OK;
}

/* The name of the run, which all its keys begin with. */
static size_t run_length(const char *key) {
    return sizeof ROOM - 1 + strcspn(key + sizeof ROOM - 1, "/");
}

static bool is_closing(const char *key) {
    const char *last = strrchr(key, '/');
    return strcmp(last, "/closed") == 0;
}

/* By run, and of a run what closes rounds at the end. */
static int compare_objects(const void *a, const void *b) {
    const char *first = ((const left_object *)a)->key;
    const char *second = ((const left_object *)b)->key;
    size_t length = run_length(first), other = run_length(second);
    int order = strncmp(first, second, length < other ? length : other);
    order = order == 0 ? (length > other) - (length < other) : order;
    order = order == 0 ? is_closing(first) - is_closing(second) : order;
    return order == 0 ? strcmp(first, second) : order;
}

static weft_status remove_run(meetings *all, weft_store *store, const weft_gc_options *options,
                              size_t first, size_t end, weft_gc_result *result) {
    weft_status status = WEFT_OK;
    for (size_t i = first; i < end && status == WEFT_OK; i++) {
        const left_object *item = &all->items[i];
        status = options->dry_run ? WEFT_OK : weft_store_remove(all->context, store, item->key);
        if (status == WEFT_OK) {
            result->objects++;
            result->bytes += item->bytes;
            if (options->removed != NULL) {
                options->removed(options->opaque, item->key, item->bytes);
            }
        }
    }
    return status;
}

weft_status weft_meetings_collect(weft_context *context, weft_store *store, const weft_gc_options *options,
                                  weft_gc_result *result) {
    meetings all = {.context = context};
    weft_status status = weft_store_list(context, store, "loco", visit_object, &all);
    status = status == WEFT_OK ? all.status : status;
    if (status == WEFT_OK && all.count > 0) {
        qsort(all.items, all.count, sizeof *all.items, compare_objects);
    }
    for (size_t first = 0, end = 0; first < all.count && status == WEFT_OK; first = end) {
        size_t length = run_length(all.items[first].key);
        double silence = all.items[first].age;
        for (end = first; end < all.count && run_length(all.items[end].key) == length &&
                          strncmp(all.items[end].key, all.items[first].key, length) == 0;
             end++) {
            silence = all.items[end].age < silence ? all.items[end].age : silence;
        }
        if (silence >= options->meeting_seconds) {
            status = remove_run(&all, store, options, first, end, result);
        } else {
            result->waiting += end - first;
        }
    }
    for (size_t i = 0; i < all.count; i++) {
        weft_release(context, all.items[i].key);
    }
    weft_release(context, all.items);
    return status;
}
