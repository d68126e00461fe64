/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_sync.c: bytes as a head, as a page and as a list of pieces of a run's history, and as a follower's
 * report. The hash line of a head is made to fit first, so that what lies behind it is reached. What is
 * accepted must hold what the rest of lib/sync relies on, and must survive being written and read again.
 */
#include "../../lib/base/context.h"
#include "../../lib/sync/format/head.h"
#include "../../lib/sync/format/leap.h"
#include "../../lib/sync/format/report.h"
#include "../../lib/sync/objects/pieces.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void check_object(const weft_object *object) {
    require(weft_store_key_valid(object->key) && object->bytes > 0);
    if (object->pieced) {
        require(strcmp(object->key, object->list.key) == 0 && object->list.bytes > 0);
        return;
    }
    require(object->chunk_bytes > 0 && weft_object_chunks(object) > 0);
    require(object->listed ? object->list.bytes == weft_object_chunks(object) * WEFT_HASH_BYTES
                           : weft_object_chunks(object) <= WEFT_CHUNKS_INLINE);
}

static void check_leaps(const weft_leaps *leaps) {
    require(leaps->count <= WEFT_LEAPS_MAX);
    for (size_t i = 0; i < leaps->count; i++) {
        const weft_leap *leap = &leaps->items[i];
        require(leap->first < leap->last && weft_key_collectable(leap->node.key));
        require((leap->bytes > 0) == weft_key_collectable(leap->key));
    }
}

static void check_record(const weft_record *record) {
    require(record->version > 0 && record->epoch > 0 && record->floor <= record->version);
    require(record->labels.count % 2 == 0);
    if (record->patched) {
        check_object(&record->patch);
    }
    for (size_t i = 0; i < record->retired.count; i++) {
        require(weft_store_key_valid(record->retired.items[i]));
    }
    check_leaps(&record->leaps);
}

/* ---- heads ---- */

static void check_head(weft_context *context, const weft_sync_head *head) {
    require(head->epoch > 0 && strlen(head->run) > 0);
    if (head->started) {
        check_record(&head->newest);
        require(weft_store_key_valid(head->page.key) && head->page.bytes > 0);
    }
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_sync_head again;
    if (weft_sync_head_format(context, head, NULL, data, &size) != WEFT_OK) {
        return; /* escapes can make it too long */
    }
    require(weft_sync_head_parse(context, "again", data, size, NULL, &again) == WEFT_OK);
    require(again.epoch == head->epoch && again.sequence == head->sequence);
    require(again.started == head->started && again.newest.version == head->newest.version);
    weft_sync_head_close(&again, context);
}

/* The JSON as it came, with a hash line of our own. */
static void try_head(weft_context *context, const uint8_t *data, size_t size) {
    uint8_t bytes[WEFT_HEAD_MAX + 128];
    const uint8_t *line = memchr(data, '\n', size);
    size_t json = line != NULL ? (size_t)(line - data) : size;
    if (json > WEFT_HEAD_MAX) {
        return;
    }
    weft_hash hash;
    require(weft_hash_compute(context, data, json, &hash) == WEFT_OK);
    memcpy(bytes, data, json);
    memcpy(bytes + json, "\nsha256 ", 8);
    weft_hex_format(hash.bytes, sizeof hash.bytes, (char *)bytes + json + 8);
    bytes[json + 8 + 64] = '\n';
    weft_sync_head head;
    if (weft_sync_head_parse(context, "input", bytes, json + 8 + 65, NULL, &head) == WEFT_OK) {
        check_head(context, &head);
        weft_sync_head_close(&head, context);
    } else {
        require(weft_context_error(context)[0] != '\0');
    }
}

/* ---- pages ---- */

static void check_page(weft_context *context, const weft_page *page) {
    require(page->record_count > 0 && page->record_count <= WEFT_PAGE_LONG);
    require(page->anchor_count <= WEFT_ANCHORS_MAX);
    for (size_t i = 0; i < page->record_count; i++) {
        check_record(&page->records[i]);
        require(page->records[i].version == page->records[0].version + i);
    }
    for (size_t i = 0; i < page->anchor_count; i++) {
        check_object(&page->anchors[i].object);
    }
    check_leaps(&page->leaps);
    require(page->full || (page->anchor_count == 0 && page->leaps.count == 0));
    weft_writer writer;
    weft_writer_open(&writer, context);
    require(weft_page_format(page, &writer) == WEFT_OK);
    weft_page *again = malloc(sizeof *again);
    require(again != NULL);
    weft_page_open(again, context);
    require(weft_page_parse(again, "again", writer.data, writer.size) == WEFT_OK);
    require(again->record_count == page->record_count && again->anchor_count == page->anchor_count);
    require(again->linked == page->linked && again->full == page->full && again->format == page->format);
    weft_page_close(again);
    free(again);
    weft_writer_close(&writer);
}

static void try_page(weft_context *context, const uint8_t *data, size_t size) {
    weft_page *page = malloc(sizeof *page);
    require(page != NULL);
    weft_page_open(page, context);
    if (weft_page_parse(page, "input", data, size) == WEFT_OK) {
        check_page(context, page);
        weft_page_close(page);
    } else {
        require(weft_context_error(context)[0] != '\0');
    }
    free(page);
}

/* ---- leaps ---- */

static void try_leap(weft_context *context, const uint8_t *data, size_t size) {
    weft_leap_node *node = malloc(sizeof *node);
    require(node != NULL);
    weft_leap_node_open(node, context);
    if (weft_leap_node_parse(node, "input", data, size) == WEFT_OK) {
        require(node->first < node->last && node->record_count > 0);
        require(weft_leap_node_end(node)->version == node->last);
        check_leaps(&node->parts);
        for (size_t i = 0; i < node->record_count; i++) {
            check_record(&node->records[i]);
        }
        if (node->patched) {
            check_object(&node->patch);
        }
        weft_leap_node_close(node);
    } else {
        require(weft_context_error(context)[0] != '\0');
    }
    free(node);
}

/* ---- pieces ---- */

static void try_pieces(weft_context *context, const uint8_t *data, size_t size) {
    weft_pieces pieces;
    weft_pieces again;
    weft_writer writer;
    weft_pieces_open(&pieces, context);
    weft_pieces_open(&again, context);
    weft_writer_open(&writer, context);
    if (weft_pieces_parse(&pieces, "input", data, size) == WEFT_OK) {
        require(pieces.count > 0 && pieces.count <= WEFT_PIECES_MAX);
        for (size_t i = 0; i < pieces.count; i++) {
            check_object(&pieces.items[i]);
            require(!pieces.items[i].pieced && weft_key_collectable(pieces.items[i].key));
        }
        require(weft_pieces_format(&pieces, &writer) == WEFT_OK);
        require(weft_pieces_parse(&again, "again", writer.data, writer.size) == WEFT_OK);
        require(again.count == pieces.count);
    } else {
        require(weft_context_error(context)[0] != '\0');
    }
    weft_writer_close(&writer);
    weft_pieces_close(&again);
    weft_pieces_close(&pieces);
}

/* ---- reports ---- */

/* What was read can be written, and is read again. */
static void check_report(weft_context *context, const weft_follower *follower) {
    uint8_t data[WEFT_REPORT_MAX];
    size_t size;
    weft_follower again;
    require(weft_follower_name_valid(follower->name) && strlen(follower->run) > 0);
    require(follower->interval_seconds >= WEFT_REPORT_SHORTEST);
    require(follower->interval_seconds <= WEFT_REPORT_LONGEST);
    require(weft_report_format(context, follower, data, &size) == WEFT_OK);
    require(weft_report_parse(context, follower->name, data, size, &again) == WEFT_OK);
    require(again.version == follower->version && strcmp(again.state, follower->state) == 0);
}

static void try_report(weft_context *context, const uint8_t *data, size_t size) {
    weft_follower follower;
    if (weft_report_parse(context, "worker-7", data, size, &follower) == WEFT_OK) {
        check_report(context, &follower);
    } else {
        require(weft_context_error(context)[0] != '\0');
    }
}

/* Every line takes something off, or is the last. */
static void try_batch(weft_context *context, const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    size_t left = size;
    size_t before = size + 1;
    while (left > 0 && left < before) {
        weft_follower follower;
        double age = -1;
        before = left;
        if (weft_report_line_parse(context, &text, &left, &follower, &age) == WEFT_OK) {
            char line[WEFT_REPORT_LINE_MAX];
            size_t length = 0;
            require(age >= 0);
            check_report(context, &follower);
            require(weft_report_line_format(context, &follower, age, line, &length) == WEFT_OK);
            require(length <= sizeof line && line[length - 1] == '\n');
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context *context = NULL;
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    require(weft_context_create(&options, &context) == WEFT_OK);
    weft_head_info info = {.size = sizeof info};
    weft_status ignored = weft_head_inspect(context, data, size, NULL, &info);
    (void)ignored;
    try_head(context, data, size);
    try_page(context, data, size);
    try_leap(context, data, size);
    try_pieces(context, data, size);
    try_report(context, data, size);
    try_batch(context, data, size);
    weft_context_destroy(context);
    return 0;
}
