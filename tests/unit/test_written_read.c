/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever a writer accepts its reader accepts, and gets what was given: patches, checkpoints, heads,
 * pages, leaps, lists of pieces, keys, reports, states of ranks, and whole versions in a
 * store. What a writer refuses leaves nothing behind. Texts, names and numbers come from hostile
 * generators; WEFT_SOAK has more of them.
 */
#include "../../lib/base/context.h"
#include "../../lib/patch/format/format.h"
#include "../../lib/sync/format/head.h"
#include "../../lib/sync/format/leap.h"
#include "../../lib/sync/format/report.h"
#include "../../lib/sync/objects/pieces.h"
#include "hostile.h"
#include "loco_ranks.h"
#include "scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CASES = 400, SLOW_CASES = 60 };

static const char HEX[] = "0123456789abcdef";

static unsigned cases(unsigned count) {
    return getenv("WEFT_SOAK") != NULL ? 50 * count : count;
}

static weft_context *make_context(void) {
    weft_context *context = NULL;
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

/* A refusal says why, and is none of memory. */
static void assert_refused(const weft_context *context, weft_status status) {
    assert_true(status == WEFT_INVALID_ARGUMENT || status == WEFT_LIMIT_EXCEEDED ||
                status == WEFT_MALFORMED);
    assert_true(strlen(weft_context_error(context)) > 0);
}

/* ---- patches ---- */

static weft_patch *open_patch(weft_context *context, const bytes *file) {
    weft_source source = bytes_source(file);
    weft_patch *patch = NULL;
    assert_int_equal(weft_patch_open(context, &source, &patch), WEFT_OK);
    return patch;
}

static void assert_same_labels(const weft_patch *patch, char **labels) {
    size_t count = 0;
    for (; labels[2 * count] != NULL; count++) {
        const char *key = weft_patch_label_key(patch, count);
        assert_string_equal(key, labels[2 * count]);
        size_t first = 0;
        while (strcmp(labels[2 * first], key) != 0) {
            first++;
        }
        assert_string_equal(weft_patch_label(patch, key), labels[2 * first + 1]);
    }
    assert_int_equal(weft_patch_label_count(patch), count);
}

static void test_patch_labels(void **state) {
    (void)state;
    dice dice = {11};
    unsigned refused = 0;
    weft_context *context = make_context();
    model model;
    model_open(&model, context);
    model_add(&model, "w", WEFT_DTYPE_BF16, 4, 8);
    const weft_view *view = model_show(&model);
    for (unsigned i = 0; i < cases(CASES); i++) {
        char **labels = hostile_labels(&dice, 1030, 40);
        bytes file = {0};
        weft_sink sink = bytes_sink(&file);
        const weft_diff_options options = {.size = sizeof options, .labels = (const char *const *)labels};
        weft_diff_stats stats = {.size = sizeof stats};
        weft_status status = weft_diff(context, view, view, &options, &sink, &stats);
        if (status == WEFT_OK) {
            weft_patch *patch = open_patch(context, &file);
            assert_same_labels(patch, labels);
            weft_patch_close(patch);
        } else {
            assert_refused(context, status);
            assert_int_equal(file.size, 0);
            refused++;
        }
        bytes_clear(&file);
        hostile_labels_free(labels);
    }
    assert_true(refused > 0);
    model_close(&model);
    weft_context_destroy(context);
}

/* Tensors of both states together are on the roster: a limit that each of them keeps they may break
 * together. */
static void test_roster_limit(void **state) {
    (void)state;
    weft_context *context = NULL;
    const weft_context_options limited = {.size = sizeof limited,
                                          .threads = 1,
                                          .limits =
                                              &(weft_limits){.size = sizeof(weft_limits), .tensors = 4}};
    assert_int_equal(weft_context_create(&limited, &context), WEFT_OK);
    const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    model old, next;
    model_open(&old, context);
    model_open(&next, context);
    for (size_t i = 0; i < 3; i++) {
        model_add(&old, names[i], WEFT_DTYPE_BF16, 4, 8);
        model_add(&next, names[3 + i], WEFT_DTYPE_BF16, 4, 8);
    }
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    const weft_diff_options options = {.size = sizeof options};
    weft_diff_stats stats = {.size = sizeof stats};
    weft_status status = weft_diff(context, model_show(&old), model_show(&next), &options, &sink, &stats);
    assert_int_equal(status, WEFT_LIMIT_EXCEEDED);
    assert_int_equal(file.size, 0);
    bytes_clear(&file);
    model_close(&old);
    model_close(&next);
    weft_context_destroy(context);
}

/* Headers of every size around the limit, which count with all that stands around them; and a profile that
 * nobody knows. */
static void test_header_limit(void **state) {
    (void)state;
    enum { LIMIT = 512 };
    weft_context *context = NULL;
    const weft_context_options limited = {
        .size = sizeof limited,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .header_bytes = LIMIT}};
    assert_int_equal(weft_context_create(&limited, &context), WEFT_OK);
    dice dice = {13};
    model model;
    model_open(&model, context);
    model_add(&model, "w", WEFT_DTYPE_BF16, 4, 8);
    const weft_view *view = model_show(&model);
    unsigned refused = 0;
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    for (size_t length = LIMIT - 100; length < LIMIT; length++) {
        char value[LIMIT];
        for (size_t i = 0; i < length; i++) {
            value[i] = (char)(1 + dice_below(&dice, 127)); /* nothing that could be packed */
        }
        value[length] = '\0';
        const char *const labels[] = {"key", value, NULL};
        const weft_diff_options options = {.size = sizeof options, .labels = labels};
        weft_status status = weft_diff(context, view, view, &options, &sink, NULL);
        if (status == WEFT_OK) {
            weft_patch_close(open_patch(context, &file));
        } else {
            assert_int_equal(status, WEFT_LIMIT_EXCEEDED);
            assert_int_equal(file.size, 0);
            refused++;
        }
        bytes_clear(&file);
    }
    assert_true(refused > 0 && refused < 100);
    for (int profile = -1; profile < 4; profile++) {
        const weft_diff_options options = {.size = sizeof options, .profile = (weft_profile)profile};
        weft_status status = weft_diff(context, view, view, &options, &sink, NULL);
        if (profile == WEFT_PROFILE_FAST || profile == WEFT_PROFILE_SMALL) {
            assert_int_equal(status, WEFT_OK);
            weft_patch_close(open_patch(context, &file));
        } else {
            assert_int_equal(status, WEFT_INVALID_ARGUMENT);
            assert_int_equal(file.size, 0);
        }
        bytes_clear(&file);
    }
    model_close(&model);
    weft_context_destroy(context);
}

/* ---- checkpoints ---- */

/* Names and metadata; and a patch that brings the tensors into being, with their file. */
static void test_checkpoints(void **state) {
    (void)state;
    dice dice = {12};
    scratch scratch;
    scratch_open_volatile(&scratch);
    weft_context *context = make_context();
    model nothing;
    model_open(&nothing, context);
    const weft_view *empty = model_show(&nothing);
    unsigned refused = 0;
    for (unsigned i = 0; i < cases(SLOW_CASES); i++) {
        const char *path = scratch_path(&scratch, "model.safetensors");
        char name[4200];
        weft_table *table = NULL;
        hostile_text(&dice, name, dice_below(&dice, 8) == 0 ? sizeof name : 40);
        assert_int_equal(weft_table_create(context, &table), WEFT_OK);
        uint8_t data[16] = {1, 2, 3};
        const weft_tensor tensor = {.size = sizeof tensor,
                                    .name = name,
                                    .dtype = WEFT_DTYPE_U8,
                                    .rank = 1,
                                    .shape = {16},
                                    .data = data};
        weft_status status = weft_table_add(table, &tensor);
        char **metadata = hostile_labels(&dice, 20, 3000);
        if (status == WEFT_OK) {
            const weft_write_options options = {.size = sizeof options,
                                                .metadata = (const char *const *)metadata};
            status = weft_table_write(context, table, path, &options);
        }
        if (status != WEFT_OK) {
            assert_refused(context, status);
            assert_false(scratch_exists(&scratch, "model.safetensors"));
            refused++;
        } else {
            weft_checkpoint *again = NULL;
            weft_view *view = NULL;
            assert_int_equal(weft_checkpoint_open(context, path, WEFT_OPEN_READ, &again), WEFT_OK);
            assert_int_equal(weft_table_find(weft_checkpoint_table(again), name), 0);
            for (size_t m = 0; metadata[m] != NULL; m += 2) {
                assert_string_equal(weft_checkpoint_metadata(again, metadata[m]), metadata[m + 1]);
            }
            assert_int_equal(weft_view_create(context, weft_checkpoint_table(again), &view), WEFT_OK);
            bytes file = {0};
            weft_sink sink = bytes_sink(&file);
            const weft_diff_options options = {.size = sizeof options,
                                               .new_container = weft_checkpoint_container(again)};
            weft_diff_stats stats = {.size = sizeof stats};
            assert_int_equal(weft_diff(context, empty, view, &options, &sink, &stats), WEFT_OK);
            weft_patch *patch = open_patch(context, &file);
            assert_int_equal(weft_table_find(weft_patch_table(patch), name), 0);
            weft_patch_close(patch);
            bytes_clear(&file);
            weft_view_destroy(view);
            weft_checkpoint_close(again);
            remove(path);
        }
        hostile_labels_free(metadata);
        weft_table_destroy(table);
    }
    assert_true(refused > 0);
    model_close(&nothing);
    weft_context_destroy(context);
    scratch_close(&scratch);
}

/* ---- heads, pages, leaps, pieces ---- */

static uint64_t any_count(dice *dice) {
    static const uint64_t edges[] = {0,         1, 2, (1ull << 53) + 1, INT64_MAX, (uint64_t)INT64_MAX + 1,
                                     UINT64_MAX};
    uint64_t kind = dice_below(dice, 300);
    return kind < sizeof edges / sizeof *edges ? edges[kind] : dice_below(dice, 1000) + 1;
}

static void any_key(dice *dice, const char *room, char key[WEFT_KEY_SIZE]) {
    char name[WEFT_KEY_SIZE];
    hostile_name(dice, "abcdef0123456789-", name, dice_below(dice, 16) == 0 ? sizeof name : 40);
    snprintf(key, WEFT_KEY_SIZE, "%s/%.190s", dice_below(dice, 64) == 0 ? "heads" : room, name);
}

static void any_blob(dice *dice, const char *room, weft_blob *blob) {
    any_key(dice, room, blob->key);
    blob->bytes = any_count(dice);
    dice_fill(dice, blob->hash.bytes, sizeof blob->hash.bytes);
}

static void any_object(dice *dice, const char *room, weft_object *object) {
    *object = (weft_object){.bytes = 1 + dice_below(dice, 60000), .chunk_bytes = 4096};
    any_key(dice, room, object->key);
    object->bytes = dice_below(dice, 64) == 0 ? 0 : object->bytes;
    object->chunk_bytes = dice_below(dice, 64) == 0 ? 100 : object->chunk_bytes;
    object->listed = dice_below(dice, 4) == 0 || weft_object_chunks(object) > WEFT_CHUNKS_INLINE;
    any_blob(dice, "chunks", &object->list);
    object->list.bytes = weft_object_chunks(object) * 32;
}

static void add_texts(weft_context *context, weft_texts *texts, char **items) {
    for (size_t i = 0; items[i] != NULL; i++) {
        assert_int_equal(weft_texts_add(texts, context, items[i]), WEFT_OK);
    }
}

static void any_record(dice *dice, weft_context *context, uint64_t version, const weft_digest *base,
                       weft_record *record) {
    *record = (weft_record){.version = version, .epoch = any_count(dice), .milliseconds = any_count(dice)};
    record->floor = dice_below(dice, 64) == 0 ? any_count(dice) : version;
    record->changed = any_count(dice);
    record->total = any_count(dice);
    record->dense_bytes = any_count(dice);
    record->patched = base != NULL;
    record->base = base != NULL ? *base : (weft_digest){{0}};
    dice_fill(dice, record->digest.bytes, sizeof record->digest.bytes);
    any_object(dice, "patches", &record->patch);
    char **labels = hostile_labels(dice, 300, 60);
    add_texts(context, &record->labels, labels);
    hostile_labels_free(labels);
    for (uint64_t i = dice_below(dice, 64) == 0 ? 260 : dice_below(dice, 3); i > 0; i--) {
        char key[WEFT_KEY_SIZE];
        any_key(dice, "pages", key);
        assert_int_equal(weft_texts_add(&record->retired, context, key), WEFT_OK);
    }
}

static void assert_same_texts(const weft_texts *texts, const weft_texts *again) {
    assert_int_equal(texts->count, again->count);
    for (size_t i = 0; i < texts->count; i++) {
        assert_string_equal(texts->items[i], again->items[i]);
    }
}

static void assert_same_record(const weft_record *record, const weft_record *again) {
    assert_int_equal(record->version, again->version);
    assert_int_equal(record->epoch, again->epoch);
    assert_int_equal(record->milliseconds, again->milliseconds);
    assert_int_equal(record->floor, again->floor);
    assert_int_equal(record->changed, again->changed);
    assert_int_equal(record->total, again->total);
    assert_int_equal(record->dense_bytes, again->dense_bytes);
    assert_true(weft_digest_equal(&record->digest, &again->digest));
    assert_int_equal(record->patched, again->patched);
    if (record->patched) {
        assert_true(weft_digest_equal(&record->base, &again->base));
        assert_string_equal(record->patch.key, again->patch.key);
        assert_int_equal(record->patch.bytes, again->patch.bytes);
    }
    assert_same_texts(&record->labels, &again->labels);
    assert_same_texts(&record->retired, &again->retired);
}

static void test_heads(void **state) {
    (void)state;
    dice dice = {13};
    weft_context *context = make_context();
    unsigned written = 0;
    unsigned count = cases(4 * CASES);
    for (unsigned i = 0; i < count; i++) {
        weft_sync_head head = {.epoch = any_count(&dice), .sequence = any_count(&dice)};
        weft_sync_head again;
        hostile_name(&dice, HEX, head.run, sizeof head.run);
        hostile_name(&dice, HEX, head.writer, sizeof head.writer);
        head.started = dice_below(&dice, 4) > 0;
        weft_digest base = {{7}};
        if (head.started) {
            any_blob(&dice, "pages", &head.page);
            any_record(&dice, context, any_count(&dice), dice_below(&dice, 2) == 0 ? &base : NULL,
                       &head.newest);
        }
        uint8_t data[WEFT_HEAD_MAX];
        size_t size = 0;
        weft_status status = weft_sync_head_format(context, &head, NULL, data, &size);
        if (status == WEFT_OK) {
            written++;
            assert_int_equal(weft_sync_head_parse(context, "again", data, size, NULL, &again), WEFT_OK);
            assert_string_equal(head.run, again.run);
            assert_string_equal(head.writer, again.writer);
            assert_int_equal(head.epoch, again.epoch);
            assert_int_equal(head.sequence, again.sequence);
            assert_int_equal(head.started, again.started);
            if (head.started) {
                assert_same_record(&head.newest, &again.newest);
            }
            weft_sync_head_close(&again, context);
        } else {
            assert_refused(context, status);
        }
        weft_sync_head_close(&head, context);
    }
    assert_true(written > 0 && written < count);
    weft_context_destroy(context);
}

static void test_pages(void **state) {
    (void)state;
    dice dice = {14};
    weft_context *context = make_context();
    weft_page *page = malloc(sizeof *page);
    weft_page *again = malloc(sizeof *again);
    unsigned written = 0;
    unsigned count = cases(CASES);
    for (unsigned i = 0; i < count; i++) {
        weft_page_open(page, context);
        hostile_name(&dice, HEX, page->run, sizeof page->run);
        page->linked = dice_below(&dice, 2) == 0;
        any_blob(&dice, "pages", &page->previous);
        page->record_count = 1 + (size_t)dice_below(&dice, dice_below(&dice, 32) == 0 ? WEFT_PAGE_LONG : 4);
        for (size_t r = 0; r < page->record_count; r++) {
            const weft_digest *base =
                r > 0 && dice_below(&dice, 4) > 0 ? &page->records[r - 1].digest : NULL;
            any_record(&dice, context, r + 1, base, &page->records[r]);
        }
        page->anchor_count = dice_below(&dice, 2);
        any_object(&dice, "anchors", &page->anchors[0].object);
        page->anchors[0].version = any_count(&dice);
        weft_writer writer;
        weft_writer_open(&writer, context);
        weft_status status = weft_page_format(page, &writer);
        if (status == WEFT_OK) {
            written++;
            assert_true(writer.size <= WEFT_PAGE_MAX);
            weft_page_open(again, context);
            assert_int_equal(weft_page_parse(again, "again", writer.data, writer.size), WEFT_OK);
            assert_string_equal(page->run, again->run);
            assert_int_equal(page->record_count, again->record_count);
            for (size_t r = 0; r < page->record_count; r++) {
                assert_same_record(&page->records[r], &again->records[r]);
            }
            weft_page_close(again);
        } else {
            assert_refused(context, status);
        }
        weft_writer_close(&writer);
        weft_page_close(page);
    }
    assert_true(written > 0 && written < count);
    free(page);
    free(again);
    weft_context_destroy(context);
}

/* A store in a directory of its own. */
typedef struct bench {
    scratch scratch;
    weft_context *context;
    weft_store *store;
} bench;

static void open_bench(bench *b) {
    scratch_open_volatile(&b->scratch);
    b->context = make_context();
    assert_int_equal(weft_store_open(b->context, scratch_path(&b->scratch, "store"), NULL, &b->store),
                     WEFT_OK);
}

static void close_bench(bench *b) {
    weft_store_close(b->store);
    weft_context_destroy(b->context);
    scratch_close(&b->scratch);
}

static void any_node(dice *dice, weft_context *context, weft_leap_node *node) {
    weft_leap_node_open(node, context);
    hostile_name(dice, HEX, node->run, sizeof node->run);
    node->first = 4 * dice_below(dice, 3);
    node->last = node->first + 4;
    node->record_count = 4;
    const weft_digest *base = &node->base;
    for (size_t i = 0; i < node->record_count; i++) {
        any_record(dice, context, node->first + i + 1, base, &node->records[i]);
        base = &node->records[i].digest;
    }
    node->patched = dice_below(dice, 2) == 0;
    any_object(dice, "patches", &node->patch);
}

static void test_nodes(void **state) {
    (void)state;
    dice dice = {15};
    bench b;
    open_bench(&b);
    weft_leap_node *node = malloc(sizeof *node);
    unsigned written = 0;
    unsigned count = cases(CASES);
    for (unsigned i = 0; i < count; i++) {
        weft_leap leap;
        any_node(&dice, b.context, node);
        weft_status status = weft_leap_node_write(node, b.store, "leaps/x", &leap);
        if (status == WEFT_OK) {
            weft_leap_node *again = NULL;
            written++;
            assert_int_equal(weft_leap_node_fetch(b.context, b.store, node->run, &leap, &again), WEFT_OK);
            for (size_t r = 0; r < node->record_count; r++) {
                assert_same_record(&node->records[r], &again->records[r]);
            }
            weft_leap_node_release(b.context, again);
            assert_int_equal(weft_store_remove(b.context, b.store, "leaps/x"), WEFT_OK);
        } else {
            assert_refused(b.context, status);
            assert_false(scratch_exists(&b.scratch, "store/leaps/x"));
        }
        weft_leap_node_close(node);
    }
    assert_true(written > 0 && written < count);
    free(node);
    close_bench(&b);
}

static void test_pieces(void **state) {
    (void)state;
    dice dice = {20};
    bench b;
    open_bench(&b);
    unsigned written = 0;
    unsigned count = cases(CASES);
    for (unsigned i = 0; i < count; i++) {
        weft_pieces pieces, found;
        weft_object object;
        weft_parcel parcel = {0};
        weft_pieces_open(&pieces, b.context);
        weft_pieces_open(&found, b.context);
        for (uint64_t p = dice_below(&dice, 4); p > 0; p--) {
            weft_object piece;
            any_object(&dice, "patches", &piece);
            assert_int_equal(weft_pieces_add(&pieces, &piece), WEFT_OK);
        }
        weft_status status = weft_pieces_send(&pieces, b.store, "pieces/x", &parcel, &object);
        if (status == WEFT_OK) {
            written++;
            assert_int_equal(weft_parcel_join(b.context, &parcel, WEFT_OK), WEFT_OK);
            assert_int_equal(weft_pieces_fetch(&found, b.store, &object), WEFT_OK);
            assert_int_equal(found.count, pieces.count);
            assert_int_equal(weft_store_remove(b.context, b.store, "pieces/x"), WEFT_OK);
        } else {
            assert_refused(b.context, status);
            assert_false(scratch_exists(&b.scratch, "store/pieces/x"));
        }
        weft_pieces_close(&pieces);
        weft_pieces_close(&found);
    }
    assert_true(written > 0 && written < count);
    close_bench(&b);
}

/* What can be put can be got, listed and removed. */
static void test_keys(void **state) {
    (void)state;
    dice dice = {21};
    bench b;
    open_bench(&b);
    unsigned written = 0;
    unsigned count = cases(CASES);
    for (unsigned i = 0; i < count; i++) {
        char name[WEFT_KEY_SIZE], key[WEFT_KEY_SIZE + 20], got[1];
        hostile_name(&dice, "aZ09._~-/", name, dice_below(&dice, 4) == 0 ? sizeof name : 12);
        snprintf(key, sizeof key, "%u/%s", i, name);
        weft_status status =
            weft_store_put_bytes(b.context, b.store, key, "x", 1, WEFT_STORE_ALWAYS, NULL, NULL);
        if (status == WEFT_OK) {
            weft_store_get_request request = {
                .size = sizeof request, .key = key, .length = 1, .buffer = got};
            weft_store_get_result result = {.size = sizeof result};
            written++;
            assert_int_equal(weft_store_get(b.context, b.store, &request, &result), WEFT_OK);
            assert_int_equal(result.received, 1);
            assert_int_equal(weft_store_remove(b.context, b.store, key), WEFT_OK);
        } else {
            assert_refused(b.context, status);
        }
    }
    assert_true(written > 0 && written < count);
    close_bench(&b);
}

/* ---- reports ---- */

static void test_reports(void **state) {
    (void)state;
    dice dice = {16};
    weft_context *context = make_context();
    unsigned written = 0;
    unsigned count = cases(4 * CASES);
    for (unsigned i = 0; i < count; i++) {
        weft_follower follower = {.version = any_count(&dice), .newest = any_count(&dice)};
        weft_follower again;
        hostile_name(&dice, "aZ0._-", follower.name, sizeof follower.name);
        hostile_name(&dice, HEX, follower.run, sizeof follower.run);
        hostile_name(&dice, "abcz", follower.state, sizeof follower.state);
        hostile_text(&dice, follower.error, sizeof follower.error);
        follower.error_milliseconds = any_count(&dice);
        follower.pause_seconds = dice_below(&dice, 4) == 0 ? -1.0 / 0.0 : 0.5;
        follower.interval_seconds = (double)dice_below(&dice, 1300);
        uint8_t data[WEFT_REPORT_MAX];
        size_t size = 0;
        weft_status status = weft_report_format(context, &follower, data, &size);
        if (status == WEFT_OK) {
            written++;
            assert_int_equal(weft_report_parse(context, follower.name, data, size, &again), WEFT_OK);
            assert_string_equal(follower.run, again.run);
            assert_string_equal(follower.state, again.state);
            assert_true(again.interval_seconds == follower.interval_seconds);
        } else {
            assert_refused(context, status);
        }
    }
    assert_true(written > 0 && written < count);
    weft_context_destroy(context);
}

/* ---- states of ranks ---- */

static void note_label(void *opaque, const char *key, const char *value) {
    char ***next = opaque;
    assert_string_equal((*next)[0], key);
    assert_string_equal((*next)[1], value);
    *next += 2;
}

/* Payloads and states, with any name of the run and any labels. */
static void test_ranks(void **state) {
    (void)state;
    dice dice = {17};
    scratch scratch;
    scratch_open_volatile(&scratch);
    unsigned written = 0;
    weft_context *context = make_context();
    for (unsigned i = 0; i < cases(SLOW_CASES); i++) {
        float weights[3] = {1, 2, 3};
        char run[WEFT_LOCO_RUN_MAX + 3];
        char name[24];
        hostile_text(&dice, run, sizeof run);
        hostile_text(&dice, name, sizeof name);
        weft_loco_options options = {.size = sizeof options};
        weft_loco_defaults(&options);
        options.run = run;
        const weft_loco_tensor tensor = {name, weights, 3};
        weft_loco *loco = NULL;
        weft_status status = weft_loco_create(context, &options, &tensor, 1, &loco);
        if (status != WEFT_OK) {
            assert_refused(context, status);
            continue;
        }
        char **labels = hostile_labels(&dice, 40, 100);
        const char *path = scratch_path(&scratch, "state.safetensors");
        status = weft_loco_save(loco, path, NULL, (const char *const *)labels, false);
        if (status == WEFT_OK) {
            written++;
            const char **keys = calloc(64, sizeof *keys);
            for (size_t k = 0; labels[2 * k] != NULL; k++) {
                keys[k] = labels[2 * k];
            }
            char **next = labels;
            assert_int_equal(weft_loco_load(loco, path, NULL, keys, note_label, &next), WEFT_OK);
            assert_null(*next);
            free(keys);
        } else {
            assert_refused(context, status);
        }
        weft_loco_payload payload;
        weft_loco_info info = {.size = sizeof info};
        weights[1] = 2.5f;
        assert_int_equal(weft_loco_encode(loco, &payload), WEFT_OK);
        assert_int_equal(weft_loco_inspect(context, &payload, &info), WEFT_OK);
        assert_string_equal(info.run, run);
        hostile_labels_free(labels);
        weft_loco_destroy(loco);
    }
    assert_true(written > 0);
    weft_context_destroy(context);
    scratch_close(&scratch);
}

/* ---- whole versions ---- */

typedef struct newest_labels {
    char **given;
    bool seen;
} newest_labels;

static bool check_newest(void *opaque, const weft_log_entry *entry) {
    newest_labels *labels = opaque;
    size_t i = 0;
    for (; labels->given[i] != NULL; i++) {
        assert_string_equal(labels->given[i], entry->labels[i]);
    }
    assert_null(entry->labels[i]);
    labels->seen = true;
    return false;
}

/* A publish is refused before anything is put, or who pulls has its labels, all of them. */
static void test_published_labels(void **state) {
    (void)state;
    dice dice = {18};
    scene scene;
    scene_open(&scene, NULL, 18);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "opening");
    scene_publish(&scene, 100);
    unsigned published = 0;
    unsigned count = cases(SLOW_CASES);
    for (unsigned i = 0; i < count; i++) {
        char **labels = hostile_labels(&dice, 66, i % 4 == 0 ? 1100 : 20);
        weft_publish_result result = {.size = sizeof result};
        size_t patches = scene_count(&scene, "patches");
        size_t pages = scene_count(&scene, "pages");
        trainer_step(&scene.trainer, 100);
        weft_status status = weft_publisher_publish(scene.publisher, (const char *const *)labels, &result);
        if (status == WEFT_OK) {
            newest_labels newest = {.given = labels};
            published++;
            assert_int_equal(weft_log_walk(scene.outside, scene.store, NULL, check_newest, &newest),
                             WEFT_OK);
            assert_true(newest.seen);
        } else {
            assert_refused(scene.context, status);
            assert_int_equal(scene_count(&scene, "patches"), patches);
            assert_int_equal(scene_count(&scene, "pages"), pages);
        }
        hostile_labels_free(labels);
    }
    assert_true(published > 0 && published < count);
    scene_publish(&scene, 100);
    scene_newcomer(&scene, "the newest");
    scene_close(&scene);
}

/* The most that labels may take fits into a head, with everything else as long as it can be. */
static void test_labels_that_are_escaped(void **state) {
    (void)state;
    scene scene;
    scene_open(&scene, NULL, 19);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "opening");
    scene_publish(&scene, 100);
    char text[WEFT_LABEL_BYTES + 1];
    memset(text, '\x01', sizeof text);
    for (size_t length = 1; length < WEFT_LABEL_BYTES; length += 97) {
        weft_publish_result result = {.size = sizeof result};
        size_t pages = scene_count(&scene, "pages");
        text[length] = 0;
        const char *const labels[] = {"k", text, NULL};
        trainer_step(&scene.trainer, 100);
        weft_status status = weft_publisher_publish(scene.publisher, labels, &result);
        if (status != WEFT_OK) {
            assert_refused(scene.context, status);
            assert_int_equal(scene_count(&scene, "pages"), pages);
        }
        text[length] = '\x01';
    }
    scene_publish(&scene, 100);
    scene_newcomer(&scene, "the newest");
    scene_close(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patch_labels),
        cmocka_unit_test(test_roster_limit),
        cmocka_unit_test(test_header_limit),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_published_labels),
        cmocka_unit_test(test_labels_that_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
