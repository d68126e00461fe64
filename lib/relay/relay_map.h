/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_map.h: things of a relay by the key of the object that they are about.
 *
 * A thing begins with a node. Keys come from outside, hence the hash has a secret seed: nobody can choose
 * keys that all fall into one slot.
 */
#ifndef WEFT_RELAY_RELAY_MAP_H
#define WEFT_RELAY_RELAY_MAP_H

#include "../sync/format/record.h"

typedef struct weft_relay_node {
    struct weft_relay_node *next;
    char key[WEFT_KEY_SIZE];
} weft_relay_node;

typedef struct weft_relay_map {
    weft_context *context;
    weft_relay_node **slots;
    size_t slot_count; /* a power of two */
    size_t count;
    uint64_t seed;
} weft_relay_map;

weft_status weft_relay_map_open(weft_relay_map *map, weft_context *context);
/* The nodes are the caller's and must be gone already, or be released by it after this. */
void weft_relay_map_close(weft_relay_map *map);
/* NULL if there is none. */
weft_relay_node *weft_relay_map_find(const weft_relay_map *map, const char *key);
/* The key must not be there yet. */
void weft_relay_map_add(weft_relay_map *map, weft_relay_node *node);
void weft_relay_map_remove(weft_relay_map *map, weft_relay_node *node);
/* Removes every node for which `drop` is true, which may release it. */
void weft_relay_map_filter(weft_relay_map *map, bool (*drop)(void *opaque, weft_relay_node *node),
                           void *opaque);

#endif
