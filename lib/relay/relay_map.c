/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_map.c: a table of nodes by key, in slots with chains.
 */
#include "relay_map.h"

#include "../base/context.h"

#include <openssl/rand.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_SLOTS = 256 };

static size_t slot_of(const weft_relay_map *map, const char *key) {
    return (size_t)XXH3_64bits_withSeed(key, strlen(key), map->seed) & (map->slot_count - 1);
}

weft_status weft_relay_map_open(weft_relay_map *map, weft_context *context) {
    *map = (weft_relay_map){.context = context, .slot_count = FIRST_SLOTS};
    if (RAND_bytes((unsigned char *)&map->seed, (int)sizeof map->seed) != 1) {
        return weft_fail(context, WEFT_IO_FAILED, "the system gave no random bytes");
    }
    map->slots = weft_allocate_zeroed(context, FIRST_SLOTS, sizeof *map->slots);
    return map->slots != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

void weft_relay_map_close(weft_relay_map *map) {
    weft_release(map->context, map->slots);
    map->slots = NULL;
}

weft_relay_node *weft_relay_map_find(const weft_relay_map *map, const char *key) {
    weft_relay_node *node = map->slots[slot_of(map, key)];
    while (node != NULL && strcmp(node->key, key) != 0) {
        node = node->next;
    }
    return node;
}

static void put_node(weft_relay_map *map, weft_relay_node *node) {
    weft_relay_node **slot = &map->slots[slot_of(map, node->key)];
    node->next = *slot;
    *slot = node;
}

/* Without memory for more slots the chains grow, which is slower and nothing worse. */
static void grow_map(weft_relay_map *map) {
    weft_relay_node **old = map->slots;
    size_t count = map->slot_count;
    weft_relay_node **slots = weft_allocate_zeroed(map->context, 2 * count, sizeof *slots);
    if (slots == NULL) {
        return;
    }
    map->slots = slots;
    map->slot_count = 2 * count;
    for (size_t i = 0; i < count; i++) {
        while (old[i] != NULL) {
            weft_relay_node *node = old[i];
            old[i] = node->next;
            put_node(map, node);
        }
    }
    weft_release(map->context, old);
}

void weft_relay_map_add(weft_relay_map *map, weft_relay_node *node) {
    if (map->count >= map->slot_count) {
        grow_map(map);
    }
    put_node(map, node);
    map->count++;
}

void weft_relay_map_remove(weft_relay_map *map, weft_relay_node *node) {
    weft_relay_node **link = &map->slots[slot_of(map, node->key)];
    while (*link != node) {
        link = &(*link)->next;
    }
    *link = node->next;
    map->count--;
}

void weft_relay_map_filter(weft_relay_map *map, bool (*drop)(void *opaque, weft_relay_node *node),
                           void *opaque) {
    for (size_t i = 0; i < map->slot_count; i++) {
        for (weft_relay_node **link = &map->slots[i]; *link != NULL;) {
            weft_relay_node *node = *link;
            weft_relay_node *next = node->next;
            if (drop(opaque, node)) {
                *link = next;
                map->count--;
            } else {
                link = &node->next;
            }
        }
    }
}
