/* SPDX-License-Identifier: Apache-2.0
 *
 * leap.c: leaps and their nodes to JSON and back.
 */
#include "leap.h"

#include "../../base/context.h"
#include "../../tensor/json.h"

#include <string.h>

static const weft_json_bounds NODE_BOUNDS = {.bytes = WEFT_LEAP_NODE_MAX, .depth = 8, .containers = 512};

uint64_t weft_leap_length(unsigned level) {
    return (uint64_t)1 << (2 * level);
}

/* A leap ends at a multiple of its level's length, and is so long, or shorter where the history begins. */
static bool length_valid(uint64_t first, uint64_t last) {
    for (unsigned level = 1; last > first && level <= WEFT_LEAP_LEVELS; level++) {
        if (last - first <= weft_leap_length(level)) {
            return last % weft_leap_length(level) == 0;
        }
    }
    return false;
}

static bool lowest_level(uint64_t first, uint64_t last) {
    return last - first <= WEFT_LEAP_WAYS;
}

/* ---- lists ---- */

void weft_leaps_close(weft_leaps *leaps, weft_context *context) {
    weft_release(context, leaps->items);
    *leaps = (weft_leaps){0};
}

weft_status weft_leaps_add(weft_leaps *leaps, weft_context *context, const weft_leap *leap) {
    weft_leap *items = weft_reallocate_array(context, leaps->items, leaps->count + 1, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    leaps->items = items;
    items[leaps->count++] = *leap;
    return WEFT_OK;
}

weft_status weft_leaps_copy(weft_leaps *leaps, weft_context *context, const weft_leaps *from) {
    *leaps = (weft_leaps){0};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < from->count && status == WEFT_OK; i++) {
        status = weft_leaps_add(leaps, context, &from->items[i]);
    }
    if (status != WEFT_OK) {
        weft_leaps_close(leaps, context);
    }
    return status;
}

weft_status weft_ladder_add(weft_leaps *ladder, weft_context *context, const weft_leap *leap) {
    while (ladder->count > 0 && ladder->items[ladder->count - 1].first >= leap->first) {
        ladder->count--;
    }
    if (ladder->count == WEFT_LEAPS_MAX ||
        (ladder->count > 0 && ladder->items[ladder->count - 1].last != leap->first)) {
        ladder->count = 0;
    }
    return weft_leaps_add(ladder, context, leap);
}

static json_t *format_leap(const weft_leap *leap) {
    json_t *json = weft_json_with(json_object(), "first", weft_count_json(leap->first));
    json = weft_json_with(json, "last", weft_count_json(leap->last));
    json = weft_json_with(json, "base", weft_digest_json(&leap->base));
    json = weft_json_with(json, "digest", weft_digest_json(&leap->digest));
    json = weft_json_with(json, "node", weft_blob_format(&leap->node));
    if (leap->bytes > 0) {
        json = weft_json_with(json, "bytes", weft_count_json(leap->bytes));
        json = weft_json_with(json, "key", json_string(leap->key));
    }
    return leap->list_key[0] != '\0' ? weft_json_with(json, "list", json_string(leap->list_key)) : json;
}

json_t *weft_leaps_format(const weft_leaps *leaps) {
    json_t *json = json_array();
    for (size_t i = 0; i < leaps->count; i++) {
        json = weft_json_append(json, format_leap(&leaps->items[i]));
    }
    return json;
}

static bool parse_patch_keys(const json_t *json, weft_leap *leap) {
    if (json_object_get(json, "bytes") == NULL) {
        return true;
    }
    bool listed = json_object_get(json, "list") != NULL;
    return weft_json_count(json, "bytes", &leap->bytes) && leap->bytes > 0 &&
           weft_json_key(json, "key", leap->key) &&
           (!listed || weft_json_key(json, "list", leap->list_key));
}

/* What readers would refuse about a leap, or NULL. */
static const char *leap_fault(const weft_leap *leap) {
    bool listed = leap->list_key[0] != '\0';
    if (leap->last > INT64_MAX || !length_valid(leap->first, leap->last) || leap->bytes > INT64_MAX ||
        (leap->bytes > 0 && !weft_key_collectable(leap->key)) ||
        (leap->bytes > 0 && listed && !weft_key_collectable(leap->list_key))) {
        return "a leap";
    }
    return weft_blob_fault(&leap->node) == NULL && weft_key_collectable(leap->node.key)
               ? NULL
               : "the key of a leap";
}

const char *weft_leaps_fault(const weft_leaps *leaps) {
    const char *fault = leaps->count <= WEFT_LEAPS_MAX ? NULL : "the list of leaps";
    for (size_t i = 0; i < leaps->count && fault == NULL; i++) {
        fault = leap_fault(&leaps->items[i]);
    }
    return fault;
}

static weft_status parse_leap(weft_context *context, const char *where, const json_t *json,
                              weft_leap *leap) {
    *leap = (weft_leap){0};
    if (!json_is_object(json) || !weft_json_count(json, "first", &leap->first) ||
        !weft_json_count(json, "last", &leap->last) || !weft_json_digest(json, "base", &leap->base) ||
        !weft_json_digest(json, "digest", &leap->digest) || !parse_patch_keys(json, leap)) {
        return weft_sync_malformed(context, where, "a leap");
    }
    weft_status status = weft_blob_parse(context, where, json_object_get(json, "node"), &leap->node);
    const char *fault = status == WEFT_OK ? leap_fault(leap) : NULL;
    return fault != NULL ? weft_sync_malformed(context, where, fault) : status;
}

weft_status weft_leaps_parse(weft_context *context, const char *where, const json_t *json,
                             weft_leaps *leaps) {
    if (json != NULL && (!json_is_array(json) || json_array_size(json) > WEFT_LEAPS_MAX)) {
        return weft_sync_malformed(context, where, "the list of leaps");
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < json_array_size(json) && status == WEFT_OK; i++) {
        weft_leap leap;
        status = parse_leap(context, where, json_array_get(json, i), &leap);
        if (status == WEFT_OK) {
            status = weft_leaps_add(leaps, context, &leap);
        }
    }
    return status;
}

bool weft_leaps_adjoin(const weft_leaps *leaps, uint64_t version) {
    for (size_t i = 1; i < leaps->count; i++) {
        if (leaps->items[i].first != leaps->items[i - 1].last) {
            return false;
        }
    }
    return leaps->count == 0 || leaps->items[leaps->count - 1].last <= version;
}

/* ---- nodes ---- */

void weft_leap_node_open(weft_leap_node *node, weft_context *context) {
    memset(node, 0, sizeof *node);
    node->context = context;
    node->format = WEFT_HISTORY_FORMAT;
}

void weft_leap_node_close(weft_leap_node *node) {
    for (size_t i = 0; i < node->record_count; i++) {
        weft_record_close(&node->records[i], node->context);
    }
    weft_leaps_close(&node->parts, node->context);
    weft_leap_node_open(node, node->context);
}

const weft_record *weft_leap_node_end(const weft_leap_node *node) {
    return &node->records[node->record_count - 1];
}

/* The versions of a leap of level 1 follow each other, each by its patch. */
static bool records_follow(const weft_leap_node *node) {
    const weft_digest *before = &node->base;
    for (size_t i = 0; i < node->record_count; i++) {
        const weft_record *record = &node->records[i];
        if (record->version != node->first + 1 + i || !record->patched ||
            !weft_digest_equal(&record->base, before)) {
            return false;
        }
        before = &record->digest;
    }
    return true;
}

static bool parts_follow(const weft_leap_node *node) {
    uint64_t version = node->first;
    const weft_digest *before = &node->base;
    for (size_t i = 0; i < node->parts.count; i++) {
        const weft_leap *part = &node->parts.items[i];
        if (part->first != version || !weft_digest_equal(&part->base, before)) {
            return false;
        }
        version = part->last;
        before = &part->digest;
    }
    return node->parts.count >= 2 && node->parts.count <= WEFT_LEAP_WAYS && version == node->last &&
           node->records[0].version == node->last && weft_digest_equal(&node->records[0].digest, before);
}

/* What readers would refuse about a node, or NULL. */
static const char *node_fault(const weft_leap_node *node) {
    if (!weft_sync_name_valid(node->run) || node->last > INT64_MAX ||
        !length_valid(node->first, node->last)) {
        return "what a leap leads over";
    }
    bool lowest = lowest_level(node->first, node->last);
    const char *fault = node->patched ? weft_object_fault(&node->patch) : NULL;
    if (fault == NULL && node->record_count != (lowest ? (size_t)(node->last - node->first) : 1)) {
        fault = "the list of versions";
    }
    for (size_t i = 0; i < node->record_count && fault == NULL; i++) {
        fault = weft_record_fault(&node->records[i]);
    }
    fault = fault != NULL ? fault : weft_leaps_fault(&node->parts);
    if (fault == NULL && !(lowest ? records_follow(node) : parts_follow(node))) {
        fault = "the order of versions";
    }
    return fault;
}

static json_t *format_node(const weft_leap_node *node) {
    json_t *json = weft_json_with(json_object(), "weft", weft_count_json(node->format));
    json = weft_json_with(json, "kind", json_string("leap"));
    json = weft_json_with(json, "run", json_string(node->run));
    json = weft_json_with(json, "first", weft_count_json(node->first));
    json = weft_json_with(json, "last", weft_count_json(node->last));
    json = weft_json_with(json, "base", weft_digest_json(&node->base));
    json = weft_json_with(json, "records", weft_records_format(node->records, node->record_count));
    if (node->patched) {
        json = weft_json_with(json, "patch", weft_object_format(&node->patch));
    }
    return node->parts.count > 0 ? weft_json_with(json, "leaps", weft_leaps_format(&node->parts)) : json;
}

static void describe_leap(const weft_leap_node *node, weft_leap *leap) {
    leap->first = node->first;
    leap->last = node->last;
    leap->base = node->base;
    leap->digest = weft_leap_node_end(node)->digest;
    if (node->patched) {
        leap->bytes = node->patch.bytes;
        memcpy(leap->key, node->patch.key, sizeof leap->key);
        if (node->patch.listed) {
            memcpy(leap->list_key, node->patch.list.key, sizeof leap->list_key);
        }
    }
}

weft_status weft_leap_node_write(const weft_leap_node *node, weft_store *store, const char *key,
                                 weft_leap *leap) {
    weft_context *context = node->context;
    const char *fault = node_fault(node);
    if (fault != NULL) {
        return weft_sync_unwritable(context, "a leap", fault);
    }
    weft_writer writer;
    weft_writer_open(&writer, context);
    *leap = (weft_leap){0};
    describe_leap(node, leap);
    weft_status status =
        node->format == WEFT_SYNC_FORMAT
            ? weft_sync_write_line(context, "a leap", format_node(node), &NODE_BOUNDS, &writer)
            : weft_sync_write_packed(context, "a leap", format_node(node), &NODE_BOUNDS, &writer);
    if (status == WEFT_OK) {
        memcpy(leap->node.key, key, strlen(key) + 1);
        leap->node.bytes = writer.size;
        fault = leap_fault(leap);
        status = fault != NULL ? weft_sync_unwritable(context, "a leap", fault)
                               : weft_blob_put(context, store, key, &writer, &leap->node);
    }
    weft_writer_close(&writer);
    return status;
}

/* ---- reading ---- */

static weft_status parse_node(weft_leap_node *node, const char *where, const json_t *json) {
    weft_context *context = node->context;
    if (!weft_json_text(json, "run", node->run, sizeof node->run) ||
        !weft_json_count(json, "first", &node->first) || !weft_json_count(json, "last", &node->last) ||
        !length_valid(node->first, node->last) || !weft_json_digest(json, "base", &node->base)) {
        return weft_sync_malformed(context, where, "what a leap leads over");
    }
    const json_t *patch = json_object_get(json, "patch");
    node->patched = patch != NULL;
    weft_status status = node->patched ? weft_object_parse(context, where, patch, &node->patch) : WEFT_OK;
    if (status == WEFT_OK) {
        size_t wanted = lowest_level(node->first, node->last) ? (size_t)(node->last - node->first) : 1;
        status = weft_records_parse(context, where, json_object_get(json, "records"), wanted, wanted,
                                    node->records, &node->record_count);
    }
    if (status == WEFT_OK) {
        status = weft_leaps_parse(context, where, json_object_get(json, "leaps"), &node->parts);
    }
    const char *fault = status == WEFT_OK ? node_fault(node) : NULL;
    return fault != NULL ? weft_sync_malformed(context, where, fault) : status;
}

weft_status weft_leap_node_parse(weft_leap_node *node, const char *where, const void *data, size_t size) {
    json_t *json;
    weft_status status =
        weft_sync_parse_packed(node->context, where, "leap", data, size, &NODE_BOUNDS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    status = parse_node(node, where, json);
    json_decref(json);
    if (status != WEFT_OK) {
        weft_leap_node_close(node);
    }
    return status;
}

static weft_status check_node(const weft_leap_node *node, const char *run, const weft_leap *leap) {
    weft_leap found = {0};
    describe_leap(node, &found);
    if (strcmp(node->run, run) == 0 && found.first == leap->first && found.last == leap->last &&
        found.bytes == leap->bytes && weft_digest_equal(&found.base, &leap->base) &&
        weft_digest_equal(&found.digest, &leap->digest)) {
        return WEFT_OK;
    }
    return weft_fail(node->context, WEFT_MALFORMED, "%s is not the leap that the history says it is",
                     leap->node.key);
}

weft_status weft_leap_node_fetch(weft_context *context, weft_store *store, const char *run,
                                 const weft_leap *leap, weft_leap_node **node_out) {
    uint8_t *data;
    weft_status status = weft_blob_fetch(context, store, &leap->node, WEFT_LEAP_NODE_MAX, &data);
    if (status != WEFT_OK) {
        return status;
    }
    weft_leap_node *node = weft_allocate(context, sizeof *node);
    if (node == NULL) {
        weft_release(context, data);
        return WEFT_NO_MEMORY;
    }
    weft_leap_node_open(node, context);
    status = weft_leap_node_parse(node, leap->node.key, data, (size_t)leap->node.bytes);
    weft_release(context, data);
    if (status == WEFT_OK) {
        status = check_node(node, run, leap);
    }
    if (status != WEFT_OK) {
        weft_leap_node_release(context, node);
        return status;
    }
    *node_out = node;
    return WEFT_OK;
}

void weft_leap_node_release(weft_context *context, weft_leap_node *node) {
    if (node != NULL) {
        weft_leap_node_close(node);
        weft_release(context, node);
    }
}
