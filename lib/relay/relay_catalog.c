/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_catalog.c: objects by key, and how pages and lists tell of more of them.
 */
#include "relay_catalog.h"

#include "../base/context.h"
#include "../sync/format/history.h"
#include "../sync/format/leap.h"
#include "../sync/objects/pieces.h"

#include <stdio.h>
#include <string.h>

/* Objects that are known at most, with one page's more, and how many are left when some must go. */
enum { ITEMS_MOST = 1 << 17, ITEMS_LEFT = ITEMS_MOST / 8 * 7 };

weft_status weft_relay_catalog_open(weft_relay_catalog *catalog, weft_context *context,
                                    pthread_mutex_t *mutex) {
    *catalog = (weft_relay_catalog){.context = context, .mutex = mutex};
    return weft_relay_map_open(&catalog->items, context);
}

/* ---- items ---- */

static void release_item(weft_context *context, weft_relay_item *item) {
    weft_release(context, item->hashes);
    weft_release(context, item->previous);
    weft_release(context, item);
}

static void link_newest(weft_relay_catalog *catalog, weft_relay_item *item) {
    item->newer = NULL;
    item->older = catalog->newest;
    if (catalog->newest != NULL) {
        catalog->newest->newer = item;
    } else {
        catalog->oldest = item;
    }
    catalog->newest = item;
}

static void unlink_item(weft_relay_catalog *catalog, weft_relay_item *item) {
    if (item->older != NULL) {
        item->older->newer = item->newer;
    } else {
        catalog->oldest = item->newer;
    }
    if (item->newer != NULL) {
        item->newer->older = item->older;
    } else {
        catalog->newest = item->older;
    }
}

static void touch_item(weft_relay_catalog *catalog, weft_relay_item *item) {
    if (item != catalog->newest) {
        unlink_item(catalog, item);
        link_newest(catalog, item);
    }
}

static void forget_item(weft_relay_catalog *catalog, weft_relay_item *item) {
    unlink_item(catalog, item);
    weft_relay_map_remove(&catalog->items, &item->node);
    release_item(catalog->context, item);
}

static void forget_oldest(weft_relay_catalog *catalog, bool proven) {
    for (weft_relay_item *item = catalog->oldest, *newer; item != NULL && catalog->items.count > ITEMS_LEFT;
         item = newer) {
        newer = item->newer;
        if (item->flight == NULL && item->proven == proven) {
            forget_item(catalog, item);
        }
    }
}

void weft_relay_catalog_prune(weft_relay_catalog *catalog) {
    if (catalog->items.count <= ITEMS_MOST) {
        return;
    }
    catalog->prunes++;
    forget_oldest(catalog, false);
    forget_oldest(catalog, true);
}

/* Under the lock, before an item tells of others: they are there afterwards, and it knows how long. */
static void begin_lesson(weft_relay_catalog *catalog, weft_relay_item *item) {
    weft_relay_catalog_prune(catalog);
    item->prunes = catalog->prunes;
}

static weft_relay_item *find_item(const weft_relay_catalog *catalog, const char *key) {
    return (weft_relay_item *)weft_relay_map_find(&catalog->items, key);
}

/* An object whose hashes are in a list that was forgotten is to be learned of again, with its list. */
static bool is_whole(const weft_relay_catalog *catalog, const weft_relay_item *item) {
    return item->count > 0 && (item->hashes != NULL || find_item(catalog, item->list) != NULL);
}

weft_relay_item *weft_relay_catalog_find(weft_relay_catalog *catalog, const char *key) {
    weft_relay_item *item = find_item(catalog, key);
    if (item == NULL || !is_whole(catalog, item)) {
        return NULL;
    }
    touch_item(catalog, item);
    return item;
}

bool weft_relay_catalog_taught(const weft_relay_catalog *catalog, const weft_relay_item *item) {
    return item->taught && item->prunes == catalog->prunes;
}

/* The item of a key, which is now what `tag` and `bytes` say: the one that is there, or a new one, which is
 * told by its having no chunks yet. What an item has once been given stays: flights read it. Where a
 * later page says otherwise than an earlier one, the later is right, unless the other is under way. */
static weft_relay_item *enter_item(weft_relay_catalog *catalog, const char *key, uint64_t bytes,
                                   const weft_hash *tag) {
    char text[2 * WEFT_HASH_BYTES + 1];
    if (!weft_key_collectable(key)) {
        return NULL;
    }
    weft_hex_format(tag->bytes, sizeof tag->bytes, text);
    weft_relay_item *item = find_item(catalog, key);
    if (item != NULL && (item->flight != NULL || (item->bytes == bytes && strcmp(item->tag, text) == 0))) {
        touch_item(catalog, item);
        return item;
    }
    if (item != NULL) {
        forget_item(catalog, item);
    }
    item = weft_allocate_zeroed(catalog->context, 1, sizeof *item);
    if (item == NULL) {
        return NULL;
    }
    snprintf(item->node.key, sizeof item->node.key, "%s", key);
    memcpy(item->tag, text, sizeof text);
    item->bytes = bytes;
    weft_relay_map_add(&catalog->items, &item->node);
    link_newest(catalog, item);
    return item;
}

static bool set_hashes(weft_relay_catalog *catalog, weft_relay_item *item, size_t count,
                       const void *hashes) {
    weft_release(catalog->context, item->hashes);
    item->hashes = weft_allocate_array(catalog->context, count, sizeof *item->hashes);
    if (item->hashes != NULL) {
        memcpy(item->hashes, hashes, count * sizeof *item->hashes);
    }
    return item->hashes != NULL;
}

weft_relay_item *weft_relay_catalog_blob(weft_relay_catalog *catalog, const weft_blob *blob,
                                         weft_relay_teach teach) {
    if (blob->bytes > weft_context_limits(catalog->context)->header_bytes) {
        return NULL;
    }
    weft_relay_item *item = enter_item(catalog, blob->key, blob->bytes, &blob->hash);
    if (item == NULL || item->count > 0) {
        return item;
    }
    if (!set_hashes(catalog, item, 1, &blob->hash)) {
        return NULL;
    }
    item->teach = teach;
    item->chunk_bytes = item->bytes;
    item->count = 1;
    return item;
}

/* ---- large objects ---- */

static weft_status teach_hashes(weft_relay_catalog *catalog, weft_context *context, weft_relay_item *item,
                                const uint8_t *data, size_t size) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(catalog->mutex);
    begin_lesson(catalog, item);
    weft_relay_item *owner = weft_relay_catalog_find(catalog, item->owner);
    if (owner != NULL && owner->hashes == NULL && owner->count * sizeof *owner->hashes == size &&
        !set_hashes(catalog, owner, owner->count, data)) {
        status = weft_fail(context, WEFT_NO_MEMORY, "out of memory for the hashes of %s", item->owner);
    }
    pthread_mutex_unlock(catalog->mutex);
    return status;
}

/* One chunk's hash, the list's, or that of all hashes: each says what all of the bytes are. */
static weft_status tag_of(weft_context *context, const weft_object *object, size_t count, weft_hash *tag) {
    if (object->listed) {
        *tag = object->list.hash;
        return WEFT_OK;
    }
    return weft_hash_compute(context, object->chunks, count * sizeof *object->chunks, tag);
}

static weft_status teach_pieces(weft_relay_catalog *catalog, weft_context *context, weft_relay_item *item,
                                const uint8_t *data, size_t size) {
    weft_pieces pieces;
    weft_pieces_open(&pieces, context);
    weft_status status = weft_pieces_parse(&pieces, item->node.key, data, size);
    pthread_mutex_lock(catalog->mutex);
    begin_lesson(catalog, item);
    for (size_t i = 0; i < pieces.count && status == WEFT_OK; i++) {
        (void)weft_relay_catalog_object(catalog, &pieces.items[i]);
    }
    pthread_mutex_unlock(catalog->mutex);
    weft_pieces_close(&pieces);
    return status;
}

/* A list holds the hashes of one object: a second one would wait for them for ever. Nor is it that object
 * itself, which would take its place. */
static bool is_list_of(const weft_relay_item *list, const char *key) {
    return list->teach == teach_hashes && strcmp(list->node.key, key) != 0 &&
           (list->owner[0] == '\0' || strcmp(list->owner, key) == 0);
}

weft_relay_item *weft_relay_catalog_object(weft_relay_catalog *catalog, const weft_object *object) {
    if (object->pieced) {
        return weft_relay_catalog_blob(catalog, &object->list, teach_pieces);
    }
    uint64_t count = weft_object_chunks(object);
    weft_hash tag;
    weft_relay_item *list = NULL;
    if (object->listed) {
        list = weft_relay_catalog_blob(catalog, &object->list, teach_hashes);
        list = list != NULL && is_list_of(list, object->key) ? list : NULL;
    }
    if ((object->listed && list == NULL) ||
        tag_of(catalog->context, object, (size_t)count, &tag) != WEFT_OK) {
        return NULL;
    }
    weft_relay_item *item = enter_item(catalog, object->key, object->bytes, &tag);
    if (item != NULL && list != NULL && item->hashes == NULL &&
        (item->count == 0 || strcmp(item->list, object->list.key) == 0)) {
        list->taught = false;
        snprintf(list->owner, sizeof list->owner, "%s", object->key);
        snprintf(item->list, sizeof item->list, "%s", object->list.key);
    }
    if (item == NULL || item->count > 0) {
        return item;
    }
    if (list == NULL && !set_hashes(catalog, item, (size_t)count, object->chunks)) {
        return NULL;
    }
    item->chunk_bytes = object->chunk_bytes;
    item->count = (size_t)count;
    return item;
}

/* ---- the history ---- */

static void add_leaps(weft_relay_catalog *catalog, const weft_leaps *leaps);

static weft_status check_run(const weft_relay_catalog *catalog, weft_context *context,
                             const weft_relay_item *item, const char *run) {
    return strcmp(run, catalog->run) == 0
               ? WEFT_OK
               : weft_fail(context, WEFT_MALFORMED, "%s belongs to run %s, not to run %s", item->node.key,
                           run, catalog->run);
}

static weft_status teach_leap(weft_relay_catalog *catalog, weft_context *context, weft_relay_item *item,
                              const uint8_t *data, size_t size) {
    weft_leap_node *node = weft_allocate(context, sizeof *node);
    if (node == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_leap_node_open(node, context);
    weft_status status = weft_leap_node_parse(node, item->node.key, data, size);
    if (status == WEFT_OK) {
        pthread_mutex_lock(catalog->mutex);
        status = check_run(catalog, context, item, node->run);
        if (status == WEFT_OK) {
            begin_lesson(catalog, item);
            if (node->patched) {
                (void)weft_relay_catalog_object(catalog, &node->patch);
            }
            for (size_t i = 0; i < node->record_count; i++) {
                (void)weft_relay_catalog_record(catalog, &node->records[i]);
            }
            add_leaps(catalog, &node->parts);
        }
        pthread_mutex_unlock(catalog->mutex);
    }
    weft_leap_node_release(context, node);
    return status;
}

static void add_leaps(weft_relay_catalog *catalog, const weft_leaps *leaps) {
    for (size_t i = 0; i < leaps->count; i++) {
        if (leaps->items[i].node.bytes <= WEFT_LEAP_NODE_MAX) {
            (void)weft_relay_catalog_blob(catalog, &leaps->items[i].node, teach_leap);
        }
    }
}

weft_relay_item *weft_relay_catalog_record(weft_relay_catalog *catalog, const weft_record *record) {
    add_leaps(catalog, &record->leaps);
    return record->patched ? weft_relay_catalog_object(catalog, &record->patch) : NULL;
}

static weft_status take_page(weft_relay_catalog *catalog, weft_context *context, weft_relay_item *item,
                             const weft_page *page) {
    weft_status status = check_run(catalog, context, item, page->run);
    if (status != WEFT_OK) {
        return status;
    }
    begin_lesson(catalog, item);
    add_leaps(catalog, &page->leaps);
    for (size_t i = 0; i < page->record_count; i++) {
        (void)weft_relay_catalog_record(catalog, &page->records[i]);
    }
    for (size_t i = 0; i < page->anchor_count; i++) {
        (void)weft_relay_catalog_object(catalog, &page->anchors[i].object);
    }
    item->first = page->records[0].version;
    item->last = page->records[page->record_count - 1].version;
    if (!page->linked) {
        return WEFT_OK;
    }
    weft_blob *previous = weft_allocate(catalog->context, sizeof *previous);
    if (previous == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for a page");
    }
    *previous = page->previous;
    weft_release(catalog->context, item->previous);
    item->previous = previous;
    (void)weft_relay_catalog_page(catalog, &page->previous);
    return WEFT_OK;
}

static weft_status teach_page(weft_relay_catalog *catalog, weft_context *context, weft_relay_item *item,
                              const uint8_t *data, size_t size) {
    weft_page *page = weft_allocate(context, sizeof *page);
    if (page == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_page_open(page, context);
    weft_status status = weft_page_parse(page, item->node.key, data, size);
    if (status == WEFT_OK) {
        pthread_mutex_lock(catalog->mutex);
        status = take_page(catalog, context, item, page);
        pthread_mutex_unlock(catalog->mutex);
    }
    weft_history_release(context, page);
    return status;
}

weft_relay_item *weft_relay_catalog_page(weft_relay_catalog *catalog, const weft_blob *blob) {
    return blob->bytes <= WEFT_PAGE_MAX ? weft_relay_catalog_blob(catalog, blob, teach_page) : NULL;
}

/* ---- the end ---- */

static bool drop_item(void *opaque, weft_relay_node *node) {
    release_item(opaque, (weft_relay_item *)node);
    return true;
}

void weft_relay_catalog_close(weft_relay_catalog *catalog) {
    if (catalog->items.slots != NULL) {
        weft_relay_map_filter(&catalog->items, drop_item, catalog->context);
        weft_relay_map_close(&catalog->items);
    }
}
