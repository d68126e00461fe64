/* SPDX-License-Identifier: Apache-2.0
 *
 * recall.c: the lists of recent changes, by bucket. A list is replaced, never edited: the one before stays
 * until the next step begins, so that a step can be taken back by exchanging pointers.
 */
#include "recall.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#include "inside.h"

weft_status weft_recall_create(weft_context *context, weft_recall **recall_out) {
    weft_recall *recall = weft_allocate_zeroed(context, 1, sizeof *recall);
    if (recall == NULL) {
        return WEFT_NO_MEMORY;
    }
    recall->context = context;
    pthread_mutex_init(&recall->lock, NULL);
    *recall_out = recall;
    return WEFT_OK;
}

static void drop_list(const weft_recall *recall, weft_recall_list *list) {
    weft_release(recall->context, list->items);
    list->items = NULL;
    list->count = 0;
}

void weft_recall_reset(weft_recall *recall) {
    for (size_t i = 0; i < recall->room; i++) {
        if (recall->slots[i] != NULL) {
            drop_list(recall, &recall->slots[i]->present);
            drop_list(recall, &recall->slots[i]->other);
            weft_release(recall->context, recall->slots[i]);
        }
    }
    weft_release(recall->context, recall->slots);
    recall->slots = NULL;
    recall->room = 0;
    recall->count = 0;
    recall->known = 0;
    recall->committed = false;
}

void weft_recall_destroy(weft_recall *recall) {
    if (recall == NULL) {
        return;
    }
    weft_recall_reset(recall);
    pthread_mutex_destroy(&recall->lock);
    weft_release(recall->context, recall);
}

unsigned weft_recall_depth(const weft_recall *recall) {
    return recall->known < WEFT_RECALL_STEPS ? (unsigned)recall->known : WEFT_RECALL_STEPS;
}

/* ---- slots ---- */

/* Numbers of buckets are hashes, which a stranger may have chosen: where they lead differs from one to the
 * next. */
static weft_recall_bucket **place_of(const weft_recall *recall, uint64_t bucket) {
    uint64_t salted = (bucket ^ (uintptr_t)recall) * 0x9e3779b97f4a7c15u;
    size_t mask = recall->room - 1;
    size_t place = (size_t)(salted >> 32) & mask;
    while (recall->slots[place] != NULL && recall->slots[place]->bucket != bucket) {
        place = (place + 1) & mask;
    }
    return &recall->slots[place];
}

/* True if a change of the bucket is not too old for the step to come. */
static bool is_remembered(const weft_recall *recall, const weft_recall_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        if (recall->steps + 1 - weft_recall_step(list->items[i]) <= WEFT_RECALL_STEPS) {
            return true;
        }
    }
    return false;
}

static bool is_used(const weft_recall_bucket *slot) {
    return slot->touched || slot->present.count > 0;
}

/* Makes room for one bucket more. Those of which nothing is recalled go: where tensors are cut otherwise
 * from version to version, each brings others. */
static weft_status widen(weft_recall *recall) {
    size_t used = 0;
    for (size_t i = 0; i < recall->room; i++) {
        used += recall->slots[i] != NULL && is_used(recall->slots[i]);
    }
    size_t room = 64;
    while (room < 4 * used) {
        room *= 2;
    }
    weft_recall_bucket **slots = weft_allocate_zeroed(recall->context, room, sizeof(weft_recall_bucket *));
    if (slots == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_recall_bucket **before = recall->slots;
    size_t count = recall->room;
    recall->slots = slots;
    recall->room = room;
    recall->count = used;
    for (size_t i = 0; i < count; i++) {
        if (before[i] != NULL && is_used(before[i])) {
            *place_of(recall, before[i]->bucket) = before[i];
        } else if (before[i] != NULL) {
            drop_list(recall, &before[i]->present);
            weft_release(recall->context, before[i]);
        }
    }
    weft_release(recall->context, before);
    return WEFT_OK;
}

weft_status weft_recall_slot(weft_recall *recall, uint64_t bucket, weft_recall_bucket **slot_out) {
    if (2 * recall->count >= recall->room) {
        weft_status status = widen(recall);
        if (status != WEFT_OK) {
            return status;
        }
    }
    weft_recall_bucket **place = place_of(recall, bucket);
    if (*place == NULL) {
        weft_recall_bucket *made = weft_allocate_zeroed(recall->context, 1, sizeof *made);
        if (made == NULL) {
            return WEFT_NO_MEMORY;
        }
        made->bucket = bucket;
        recall->count++;
        *place = made;
    }
    *slot_out = *place;
    return WEFT_OK;
}

/* ---- steps ---- */

static void exchange(weft_recall_bucket *slot) {
    weft_recall_list present = slot->present;
    slot->present = slot->other;
    slot->other = present;
}

/* What is too old for the step to come is dropped, also of buckets that nobody names any more. */
void weft_recall_begin(weft_recall *recall) {
    for (size_t i = 0; i < recall->room; i++) {
        weft_recall_bucket *slot = recall->slots[i];
        if (slot == NULL) {
            continue;
        }
        drop_list(recall, &slot->other);
        slot->touched = false;
        if (!is_remembered(recall, &slot->present)) {
            drop_list(recall, &slot->present);
        }
    }
    recall->committed = false;
}

static void exchange_touched(weft_recall *recall) {
    for (size_t i = 0; i < recall->room; i++) {
        if (recall->slots[i] != NULL && recall->slots[i]->touched) {
            exchange(recall->slots[i]);
        }
    }
}

void weft_recall_commit(weft_recall *recall) {
    exchange_touched(recall);
    recall->steps++;
    recall->known++;
    recall->committed = true;
}

void weft_recall_rollback(weft_recall *recall) {
    if (recall->committed) {
        exchange_touched(recall);
        recall->steps--;
        recall->known--;
    }
    weft_recall_begin(recall);
}

/* What is still remembered after the step under way, and what it changes. */
static void join(const weft_recall *recall, const weft_recall_list *before, const uint32_t *positions,
                 const uint16_t *olds, const uint16_t *news, size_t count, weft_recall_list *joined) {
    uint32_t step = (uint32_t)(recall->steps + 1);
    size_t next = 0;
    for (size_t i = 0; i <= count; i++) {
        uint64_t limit = i < count ? (uint64_t)positions[i] << 32 : UINT64_MAX;
        for (; next < before->count && before->items[next] < limit; next++) {
            if (weft_recall_step(before->items[next]) + WEFT_RECALL_STEPS > step) {
                joined->items[joined->count++] = before->items[next];
            }
        }
        if (i < count) {
            uint16_t moved = (uint16_t)(news[i] - olds[i]);
            joined->items[joined->count++] = limit | step << 1 | moved >> 15;
            next += next < before->count && before->items[next] >> 32 == positions[i];
        }
    }
}

weft_status weft_recall_note(weft_recall *recall, uint64_t bucket, const uint32_t *positions,
                             const uint16_t *olds, const uint16_t *news, size_t count, bool forget) {
    weft_recall_bucket *slot;
    pthread_mutex_lock(&recall->lock);
    weft_status status = weft_recall_slot(recall, bucket, &slot);
    if (status == WEFT_OK) {
        drop_list(recall, &slot->other);
        slot->touched = true;
    }
    if (status == WEFT_OK && !forget) {
        slot->other.items =
            weft_allocate_array(recall->context, slot->present.count + count, sizeof(uint64_t));
        status = slot->other.items != NULL ? WEFT_OK : WEFT_NO_MEMORY;
        if (status == WEFT_OK) {
            join(recall, &slot->present, positions, olds, news, count, &slot->other);
        }
    }
    pthread_mutex_unlock(&recall->lock);
    return status;
}

/* ---- what a coder is told ---- */

void weft_recent_open(weft_recent *recent, weft_context *context) {
    *recent = (weft_recent){.context = context};
}

void weft_recent_close(weft_recent *recent) {
    weft_release(recent->context, recent->items);
    weft_recent_open(recent, recent->context);
}

static weft_status reserve(weft_recent *recent, size_t count) {
    if (count <= recent->capacity) {
        return WEFT_OK;
    }
    uint64_t *items = weft_reallocate_array(recent->context, recent->items, count, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    recent->items = items;
    recent->capacity = count;
    return WEFT_OK;
}

static weft_status copy_recent(weft_recent *recent, const weft_recall *recall, const weft_recall_list *list,
                               uint64_t units, unsigned depth) {
    weft_status status = reserve(recent, list->count);
    for (size_t i = 0; i < list->count && status == WEFT_OK; i++) {
        uint64_t item = list->items[i];
        uint64_t age = recall->steps + 1 - weft_recall_step(item);
        if (age <= depth && item >> 32 < units) {
            recent->items[recent->count++] = (item >> 32) << 32 | age << 1 | (item & 1);
        }
    }
    return status;
}

weft_status weft_recent_list(weft_recent *recent, weft_recall *recall, uint64_t bucket, uint64_t units,
                             unsigned depth) {
    weft_status status = WEFT_OK;
    recent->count = 0;
    pthread_mutex_lock(&recall->lock);
    const weft_recall_bucket *slot = recall->room > 0 ? *place_of(recall, bucket) : NULL;
    if (slot != NULL) {
        status = copy_recent(recent, recall, &slot->present, units, depth);
    }
    pthread_mutex_unlock(&recall->lock);
    recent->check = (uint32_t)XXH3_64bits(recent->items, recent->count * sizeof *recent->items);
    return status;
}
