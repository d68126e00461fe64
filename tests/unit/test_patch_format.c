/* SPDX-License-Identifier: Apache-2.0
 *
 * The patch file around its buckets: header, index and footer written and read back; every truncation and
 * every flipped bit refused; files that lie behind correct checksums; and how little memory a lie can take.
 */
#include "../../lib/patch/format/fold.h"
#include "../../lib/patch/format/patch.h"
#include "../../lib/patch/format/stream.h"
#include "../support/described.h"
#include "faults.h"
#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

typedef struct fixture {
    faults faults;
    weft_context *context;
    model base;
    model next;
    bytes patch;
} fixture;

static void open_limited(fixture *self, weft_limits limits) {
    memset(self, 0, sizeof *self);
    weft_context_options options = {.size = sizeof options,
                                    .allocator = faults_allocator(&self->faults),
                                    .limits = &limits,
                                    .threads = 1};
    assert_int_equal(weft_context_create(&options, &self->context), WEFT_OK);
    model_open(&self->base, self->context);
    model_open(&self->next, self->context);
}

static void open_fixture(fixture *self) {
    open_limited(self, (weft_limits){.size = sizeof(weft_limits)});
}

static void close_fixture(fixture *self) {
    bytes_clear(&self->patch);
    model_close(&self->base);
    model_close(&self->next);
    weft_context_destroy(self->context);
    assert_int_equal(faults_live_blocks(&self->faults), 0);
}

/* Tensors of several kinds, some changed, one added, one removed, one replaced. */
static void fill_models(fixture *self, dice *dice) {
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_BF16};
    for (unsigned i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer.%u", i);
        uint8_t *before = model_add(&self->base, name, dtypes[i], 8, 16);
        uint8_t *after = model_add(&self->next, name, dtypes[i], 8, 16);
        weights_fill(dice, WEIGHTS_TRAINED, dtypes[i], before, 128);
        memcpy(after, before, 128 * weft_dtype_width(dtypes[i]));
        weights_change(dice, CHANGE_MIXED, weft_dtype_width(dtypes[i]), after, 128,
                       i == 1 ? 900000 : 60000);
        weights_change_one(dice, CHANGE_ULP, weft_dtype_width(dtypes[i]), after, 3);
    }
    dice_fill(dice, model_add(&self->next, "added", WEFT_DTYPE_I8, 11, 0), 11);
    dice_fill(dice, model_add(&self->base, "removed", WEFT_DTYPE_I8, 12, 0), 12);
    dice_fill(dice, model_add(&self->base, "replaced", WEFT_DTYPE_I16, 12, 0), 24);
    dice_fill(dice, model_add(&self->next, "replaced", WEFT_DTYPE_I16, 3, 5), 30);
    model_show(&self->base);
    model_show(&self->next);
}

static void make_patch(fixture *self, const weft_diff_options *options, weft_diff_stats *stats) {
    weft_sink sink = bytes_sink(&self->patch);
    assert_int_equal(weft_diff(self->context, self->base.view, self->next.view, options, &sink, stats),
                     WEFT_OK);
    assert_int_equal(stats->patch_bytes, self->patch.size);
}

/* Opens a patch and reads and decodes every bucket, from memory that ends with it. The first failure. */
static weft_status decode_bucket(weft_context *context, const weft_patch *patch, size_t index,
                                 weft_bucket_coder *coder) {
    weft_frame frame;
    weft_writer buffer;
    weft_writer_open(&buffer, context);
    weft_status status = weft_patch_frame(context, patch, index, &buffer, &frame);
    if (status == WEFT_OK) {
        size_t size = (size_t)frame.bucket.units * frame.bucket.width;
        uint8_t *base = calloc(2, size);
        assert_non_null(base);
        if (weft_frame_dense(&frame)) {
            status = weft_frame_decode_dense(coder, &frame, base, base + size);
        } else {
            assert_int_equal(weft_window_set_memory(&coder->from, &frame.bucket, base), WEFT_OK);
            weft_sum delta;
            status = weft_frame_decode(coder, &frame, &coder->changes, NULL, &delta);
        }
        free(base);
        weft_bucket_close(&frame.bucket, context);
    }
    weft_writer_close(&buffer);
    return status;
}

static weft_status read_everything(weft_context *context, const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    assert_non_null(exact);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    weft_source source = {.memory = exact, .size = size};
    weft_patch *patch = NULL;
    weft_status status = weft_patch_open(context, &source, &patch);
    if (status == WEFT_OK) {
        weft_bucket_coder *coder = malloc(sizeof *coder);
        assert_non_null(coder);
        weft_bucket_coder_open(coder, context);
        for (size_t i = 0; i < patch_info(patch).buckets && status == WEFT_OK; i++) {
            status = decode_bucket(context, patch, i, coder);
        }
        weft_bucket_coder_close(coder);
        free(coder);
        weft_patch_close(patch);
    } else {
        assert_null(patch);
    }
    if (status != WEFT_OK) {
        assert_true(weft_context_error(context)[0] != 0);
    }
    free(exact);
    return status;
}

/* ---- round trips ---- */

static void test_questions(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    dice dice = {1};
    fill_models(&self, &dice);
    const weft_container_file files[] = {{"a.safetensors", "{\"x\": 1}", 8}, {"b.safetensors", "", 0}};
    const weft_container container = {true, 2, files, "index\0json", 10};
    const char *const labels[] = {"step", "42", "empty", "", "step", "43", NULL};
    weft_diff_options options = {.size = sizeof options,
                                 .profile = WEFT_PROFILE_SMALL,
                                 .new_container = &container,
                                 .labels = labels};
    weft_diff_stats stats = {.size = sizeof stats};
    make_patch(&self, &options, &stats);
    weft_source source = bytes_source(&self.patch);
    weft_patch *patch;
    assert_int_equal(weft_patch_open(self.context, &source, &patch), WEFT_OK);

    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    assert_int_equal(info.version, WEFT_FORMAT_NEWEST);
    assert_int_equal(info.profile, WEFT_PROFILE_SMALL);
    assert_int_equal(info.bytes, self.patch.size);
    assert_int_equal(info.changed, stats.changed);
    assert_int_equal(info.total, 4 * 128 + 11 + 15);
    assert_int_equal(info.total, stats.total);
    assert_int_equal(info.dense_bytes, 128 * 2 + 128 * 4 + 128 + 128 * 2 + 11 + 30);
    assert_int_equal(info.dense_bytes, stats.dense_bytes);
    assert_int_equal(info.buckets, stats.buckets);
    assert_int_equal(info.added, 1);
    assert_int_equal(info.removed, 1);
    assert_int_equal(info.replaced, 1);
    assert_true(weft_digest_equal(&info.base, &stats.base));
    assert_true(weft_digest_equal(&info.result, &stats.result));

    const weft_container *again = weft_patch_container(patch);
    assert_non_null(again);
    assert_true(again->sharded);
    assert_int_equal(again->file_count, 2);
    assert_string_equal(again->files[0].name, "a.safetensors");
    assert_int_equal(again->files[0].header_bytes, 8);
    assert_memory_equal(again->files[0].header, "{\"x\": 1}", 8);
    assert_string_equal(again->files[1].name, "b.safetensors");
    assert_int_equal(again->files[1].header_bytes, 0);
    assert_int_equal(again->index_bytes, 10);
    assert_memory_equal(again->index, "index\0json", 10);

    assert_string_equal(weft_patch_label(patch, "step"), "42");
    assert_string_equal(weft_patch_label(patch, "empty"), "");
    assert_null(weft_patch_label(patch, "42"));

    const char *const names[] = {"added",   "layer.0", "layer.1", "layer.2",
                                 "layer.3", "removed", "replaced"};
    const weft_fate fates[] = {WEFT_FATE_ADDED, WEFT_FATE_KEPT,    WEFT_FATE_KEPT,    WEFT_FATE_KEPT,
                               WEFT_FATE_KEPT,  WEFT_FATE_REMOVED, WEFT_FATE_REPLACED};
    assert_int_equal(weft_patch_tensor_count(patch), 7);
    for (size_t i = 0; i < 7; i++) {
        weft_fate fate;
        assert_string_equal(weft_patch_tensor(patch, i, &fate)->name, names[i]);
        assert_int_equal(fate, fates[i]);
    }
    assert_int_equal(weft_patch_tensor(patch, 6, NULL)->rank, 2);
    assert_int_equal(weft_patch_tensor(patch, 6, NULL)->shape[1], 5);
    const weft_table *table = weft_patch_table(patch);
    assert_int_equal(weft_table_count(table), 6);
    assert_int_equal(weft_table_find(table, "removed"), -1);
    assert_int_equal(weft_table_bytes(table), info.dense_bytes);

    uint64_t changed = 0;
    uint64_t offset = 0;
    for (size_t i = 0; i < info.buckets; i++) {
        weft_bucket_info bucket = {.size = sizeof bucket};
        assert_int_equal(weft_patch_bucket(self.context, patch, i, &bucket), WEFT_OK);
        assert_true(i == 0 || bucket.offset == offset);
        assert_true(bucket.first_tensor <= bucket.last_tensor);
        assert_true(bucket.changed > 0 && bucket.changed <= bucket.units);
        offset = bucket.offset + bucket.bytes;
        changed += bucket.changed;
    }
    assert_int_equal(changed, info.changed);
    weft_bucket_info bucket = {.size = sizeof bucket};
    assert_int_equal(weft_patch_bucket(self.context, patch, (size_t)info.buckets, &bucket),
                     WEFT_INVALID_ARGUMENT);
    weft_patch_close(patch);
    weft_patch_close(NULL);
    close_fixture(&self);
}

/* Files: none, the same, one file. */
static void test_containers(void **state) {
    (void)state;
    const weft_container_file file = {"", "{}", 2};
    const weft_container_file other = {"", "{ }", 3};
    const weft_container one = {false, 1, &file, NULL, 0};
    const weft_container two = {false, 1, &other, NULL, 0};
    const weft_container *const pairs[][2] = {
        {NULL, NULL}, {&one, NULL}, {NULL, &one}, {&one, &one}, {&one, &two}};
    for (size_t i = 0; i < 5; i++) {
        fixture self;
        open_fixture(&self);
        dice dice = {2};
        fill_models(&self, &dice);
        weft_diff_options options = {
            .size = sizeof options, .base_container = pairs[i][0], .new_container = pairs[i][1]};
        weft_diff_stats stats = {.size = sizeof stats};
        make_patch(&self, &options, &stats);
        weft_source source = bytes_source(&self.patch);
        weft_patch *patch;
        assert_int_equal(weft_patch_open(self.context, &source, &patch), WEFT_OK);
        const weft_container *container = weft_patch_container(patch);
        assert_int_equal(patch->header.same_files, i == 3);
        assert_int_equal(container != NULL, i == 2 || i == 4);
        if (container != NULL) {
            assert_false(container->sharded);
            assert_null(container->index);
            assert_int_equal(container->files[0].header_bytes, pairs[i][1]->files[0].header_bytes);
        }
        weft_patch_close(patch);
        close_fixture(&self);
    }
}

/* A header large enough to be compressed, and read back in full. */
static void test_large_roster(void **state) {
    (void)state;
    enum { TENSORS = 5000 };
    fixture self;
    open_fixture(&self);
    weft_table *table;
    assert_int_equal(weft_table_create(self.context, &table), WEFT_OK);
    for (unsigned i = 0; i < TENSORS; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%05u.self_attn.q_proj.weight", i);
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = name,
                              .dtype = (weft_dtype)(1 + i % 22),
                              .rank = 1 + i % WEFT_RANK_MAX,
                              .shape = {8, 1 + i, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    }
    weft_view *view;
    assert_int_equal(weft_view_create(self.context, table, &view), WEFT_OK);
    weft_roster roster;
    weft_roster_open(&roster, self.context);
    assert_int_equal(weft_roster_build(&roster, view, view), WEFT_OK);
    for (unsigned i = 0; i < TENSORS; i++) {
        roster.entries[i].fate = (weft_fate)(i % 4);
    }
    weft_writer writer;
    weft_writer_open(&writer, self.context);
    assert_int_equal(
        weft_header_write(self.context, 0, WEFT_PROFILE_FAST, 0, &roster, true, NULL, NULL, &writer), WEFT_OK);
    assert_true(writer.size < TENSORS * 20);
    uint64_t size;
    assert_int_equal(weft_header_measure(self.context, writer.data, &size), WEFT_OK);
    assert_int_equal(size, writer.size);
    weft_header header;
    weft_header_open(&header, self.context);
    assert_int_equal(weft_header_read(&header, writer.data, writer.size), WEFT_OK);
    assert_int_equal(header.profile, WEFT_PROFILE_FAST);
    assert_true(header.same_files);
    assert_int_equal(header.label_count, 0);
    assert_int_equal(header.roster.count, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) {
        const weft_roster_entry *a = &roster.entries[i];
        const weft_roster_entry *b = &header.roster.entries[i];
        assert_string_equal(a->tensor.name, b->tensor.name);
        assert_int_equal(a->fate, b->fate);
        assert_int_equal(a->tensor.dtype, b->tensor.dtype);
        assert_int_equal(a->tensor.rank, b->tensor.rank);
        assert_int_equal(a->tensor.bytes, b->tensor.bytes);
        assert_memory_equal(a->tensor.shape, b->tensor.shape, a->tensor.rank * sizeof a->tensor.shape[0]);
    }
    weft_header_close(&header);
    weft_writer_close(&writer);
    weft_roster_close(&roster);
    weft_view_destroy(view);
    weft_table_destroy(table);
    close_fixture(&self);
}

/* ---- damage ---- */

static void make_small_patch(fixture *self, weft_profile profile) {
    dice dice = {3};
    fill_models(self, &dice);
    const char *const labels[] = {"step", "42", NULL};
    weft_diff_options options = {.size = sizeof options, .profile = profile, .labels = labels};
    weft_diff_stats stats = {.size = sizeof stats};
    make_patch(self, &options, &stats);
    assert_int_equal(read_everything(self->context, self->patch.data, self->patch.size), WEFT_OK);
}

static void test_truncation(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    make_small_patch(&self, WEFT_PROFILE_SMALL);
    for (size_t size = 0; size < self.patch.size; size++) {
        weft_status status = read_everything(self.context, self.patch.data, size);
        assert_true(status == WEFT_TRUNCATED || status == WEFT_MALFORMED);
    }
    /* the front cut off */
    for (size_t cut = 1; cut < self.patch.size; cut++) {
        assert_true(read_everything(self.context, self.patch.data + cut, self.patch.size - cut) < 0);
    }
    close_fixture(&self);
}

static void test_trailing_bytes(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    make_small_patch(&self, WEFT_PROFILE_FAST);
    size_t size = self.patch.size;
    uint8_t *longer = calloc(2, size + 200);
    assert_non_null(longer);
    memcpy(longer, self.patch.data, size);
    for (size_t more = 1; more < 200; more++) {
        assert_true(read_everything(self.context, longer, size + more) < 0);
        /* with the footer again at the end */
        memset(longer + size, 0, 200 + WEFT_FOOTER_BYTES);
        memcpy(longer + size + more - 1, longer + size - WEFT_FOOTER_BYTES, WEFT_FOOTER_BYTES);
        assert_true(read_everything(self.context, longer, size + more - 1 + WEFT_FOOTER_BYTES) < 0);
        memset(longer + size, 0, 400);
    }
    /* the whole patch twice */
    memcpy(longer + size, longer, size);
    assert_true(read_everything(self.context, longer, 2 * size) < 0);
    free(longer);
    close_fixture(&self);
}

static void test_every_flipped_bit(void **state) {
    (void)state;
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        fixture self;
        open_fixture(&self);
        make_small_patch(&self, (weft_profile)profile);
        for (size_t bit = 0; bit < 8 * self.patch.size; bit++) {
            self.patch.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_true(read_everything(self.context, self.patch.data, self.patch.size) < 0);
            self.patch.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        close_fixture(&self);
    }
}

/* ---- sources ---- */

typedef struct slow_source {
    const bytes *patch;
    size_t reads;
    size_t fail_at; /* the read that fails, from 1; 0: none */
} slow_source;

static weft_status read_slowly(void *opaque, uint64_t offset, void *data, size_t size) {
    slow_source *self = opaque;
    if (++self->reads == self->fail_at) {
        return WEFT_IO_FAILED;
    }
    assert_true(offset <= self->patch->size && size <= self->patch->size - offset);
    memcpy(data, self->patch->data + offset, size);
    return WEFT_OK;
}

static weft_status read_through(fixture *self, slow_source *slow) {
    weft_source source = {.size = self->patch.size, .read = read_slowly, .opaque = slow};
    weft_patch *patch = NULL;
    weft_status status = weft_patch_open(self->context, &source, &patch);
    for (size_t i = 0; status == WEFT_OK && i < patch_info(patch).buckets; i++) {
        weft_bucket_info info = {.size = sizeof info};
        status = weft_patch_bucket(self->context, patch, i, &info);
    }
    weft_patch_close(patch);
    return status;
}

static void test_source_callbacks(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    make_small_patch(&self, WEFT_PROFILE_SMALL);
    slow_source slow = {&self.patch, 0, 0};
    assert_int_equal(read_through(&self, &slow), WEFT_OK);
    size_t reads = slow.reads;
    assert_true(reads >= 5);
    for (size_t n = 1; n <= reads; n++) {
        slow = (slow_source){&self.patch, 0, n};
        assert_int_equal(read_through(&self, &slow), WEFT_IO_FAILED);
        assert_non_null(strstr(weft_context_error(self.context), "reading the patch at byte"));
    }
    close_fixture(&self);
}

/* ---- lies behind correct checksums ---- */

/* A patch made by hand: a header body, frames and an index, sealed. */
typedef struct forgery {
    fixture *fixture;
    weft_writer body;
    weft_writer frames;
    weft_writer index;
    weft_writer file;
    uint16_t version;
    uint32_t raw; /* 0: the true length */
} forgery;

static void forge_open(forgery *self, fixture *fixture) {
    memset(self, 0, sizeof *self);
    self->fixture = fixture;
    self->version = WEFT_FORMAT_NEWEST;
    weft_writer_open(&self->body, fixture->context);
    weft_writer_open(&self->frames, fixture->context);
    weft_writer_open(&self->index, fixture->context);
    weft_writer_open(&self->file, fixture->context);
}

static void forge_close(forgery *self) {
    weft_writer_close(&self->body);
    weft_writer_close(&self->frames);
    weft_writer_close(&self->index);
    weft_writer_close(&self->file);
}

static void forge_text(weft_writer *writer, const char *text) {
    weft_writer_varint(writer, strlen(text));
    weft_writer_bytes(writer, text, strlen(text));
}

static void forge_tensor(forgery *self, const char *name, weft_fate fate, weft_dtype dtype, uint64_t rows,
                         uint64_t columns) {
    forge_text(&self->body, name);
    weft_writer_u8(&self->body, (uint8_t)fate);
    weft_writer_u8(&self->body, (uint8_t)dtype);
    weft_writer_u8(&self->body, 2);
    weft_writer_varint(&self->body, rows);
    weft_writer_varint(&self->body, columns);
}

/* Counts what the header lists, if it lists anything. */
static void forge_totals(forgery *self, weft_footer *footer) {
    weft_roster roster;
    weft_reader reader = weft_reader_over(self->body.data, self->body.size);
    weft_roster_open(&roster, self->fixture->context);
    weft_reader_u8(&reader);
    if (weft_roster_read(&roster, &reader) == WEFT_OK) {
        weft_roster_measure(&roster, &footer->total, &footer->dense_bytes);
    }
    weft_roster_close(&roster);
}

/* Seals everything and opens it. */
static weft_status forge_try(forgery *self) {
    static const uint8_t magic[8] = {0x89, 'W', 'E', 'F', 'T', '\r', '\n', 0x1a};
    weft_writer *file = &self->file;
    file->size = 0;
    weft_writer_bytes(file, magic, sizeof magic);
    weft_writer_u16(file, self->version);
    weft_writer_u16(file, 0);
    weft_writer_u32(file, (uint32_t)self->body.size);
    weft_writer_u32(file, self->raw != 0 ? self->raw : (uint32_t)self->body.size);
    weft_writer_bytes(file, self->body.data, self->body.size);
    weft_writer_u64(file, XXH3_64bits(file->data, file->size));
    weft_writer_bytes(file, self->frames.data, self->frames.size);
    weft_footer footer = {.index_offset = file->size, .index_bytes = self->index.size};
    forge_totals(self, &footer);
    size_t before = self->index.size;
    weft_footer_write(&footer, &self->index);
    weft_writer_bytes(file, self->index.data, self->index.size);
    self->index.size = before;
    assert_false(weft_writer_failed(file));
    faults_reset(&self->fixture->faults, 0);
    return read_everything(self->fixture->context, file->data, file->size);
}

/* The most memory that the last try took beyond what there was. */
static size_t forge_cost(const forgery *self) {
    size_t live = faults_live_bytes(&self->fixture->faults);
    size_t peak = faults_peak_bytes(&self->fixture->faults);
    return peak > live ? peak - live : 0;
}

/* A header with two BF16 tensors of 64 x 64 and 16 x 64, without files and labels. */
static void forge_plain_header(forgery *self) {
    weft_writer_u8(&self->body, WEFT_PROFILE_FAST);
    weft_writer_varint(&self->body, 2);
    forge_tensor(self, "a", WEFT_FATE_KEPT, WEFT_DTYPE_BF16, 64, 64);
    forge_tensor(self, "b", WEFT_FATE_KEPT, WEFT_DTYPE_BF16, 16, 64);
    weft_writer_u8(&self->body, 0);
    weft_writer_varint(&self->body, 0);
}

/* A frame with one change of one, and its record. `spans` are the numbers of the list of spans, their
 * kinds included, each below 128 or written as a varint. */
static void forge_frame(forgery *self, const uint64_t *spans, size_t count) {
    weft_writer list;
    weft_writer_open(&list, self->fixture->context);
    for (size_t i = 0; i < count; i++) {
        weft_writer_varint(&list, spans[i]);
    }
    weft_writer frame;
    weft_writer_open(&frame, self->fixture->context);
    uint32_t length = (uint32_t)(4 + 1 + list.size + 1 + 16 + 2 + 8);
    weft_writer_u32(&frame, length);
    weft_writer_u8(&frame, WEFT_CODING_FAST);
    weft_writer_bytes(&frame, list.data, list.size);
    weft_writer_varint(&frame, 1);
    weft_writer_u64(&frame, 0);
    weft_writer_u64(&frame, 0);
    weft_writer_u16(&frame, 0); /* k = 0; gap 0, step +1 */
    uint64_t checksum = XXH3_64bits(frame.data, frame.size);
    weft_writer_u64(&frame, checksum);
    assert_int_equal(frame.size, length);
    weft_writer_bytes(&self->frames, frame.data, frame.size);
    weft_writer_varint(&self->index, length);
    weft_writer_u64(&self->index, checksum);
    weft_writer_bytes(&self->index, list.data, list.size);
    weft_writer_close(&frame);
    weft_writer_close(&list);
}

#define FRAME(...)                                                                                         \
    forge_frame(&forged, (const uint64_t[]){__VA_ARGS__},                                                  \
                sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Two frames over these spans. */
static weft_status try_two(fixture *self, const uint64_t *first, size_t first_count, const uint64_t *second,
                           size_t second_count) {
    forgery forged;
    forge_open(&forged, self);
    forge_plain_header(&forged);
    weft_writer_varint(&forged.index, 2);
    forge_frame(&forged, first, first_count);
    forge_frame(&forged, second, second_count);
    weft_status status = forge_try(&forged);
    forge_close(&forged);
    return status;
}

#define TWO(first, second)                                                                                 \
    try_two(&self, (const uint64_t[])first, sizeof((const uint64_t[])first) / sizeof(uint64_t),            \
            (const uint64_t[])second, sizeof((const uint64_t[])second) / sizeof(uint64_t))
#define LIST(...)                                                                                          \
    { __VA_ARGS__ }

static void test_overlaps(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    /* kind 0 tensor n | kind 1 tensor start run | kind 2 tensor start run stride count */
    assert_int_equal(TWO(LIST(1, 0, 0, 1), LIST(1, 0, 1, 1)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 0, 1, 1), LIST(1, 0, 0, 1)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 0, 0, 1), LIST(1, 0, 0, 1)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 0, 0, 2), LIST(1, 0, 1, 1)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(2, 0, 0, 1, 0, 1, 1), LIST(1, 0, 0, 2)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(2, 1, 0, 0, 64, 1, 0, 64, 64), LIST(1, 0, 1, 1)), WEFT_OK);
    assert_int_equal(TWO(LIST(2, 1, 0, 0, 64, 1, 0, 56, 64), LIST(1, 0, 1, 1)), WEFT_MALFORMED);
    /* flat pieces, in any order */
    assert_int_equal(TWO(LIST(1, 1, 0, 0, 64), LIST(1, 1, 0, 64, 4032)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 1, 0, 64, 4032), LIST(1, 1, 0, 0, 64)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 1, 0, 64, 4032), LIST(1, 1, 0, 0, 72)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 1, 0, 64, 128), LIST(1, 1, 0, 80, 8)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 0, 0, 1), LIST(1, 1, 0, 80, 8)), WEFT_MALFORMED);
    /* bands of columns */
    assert_int_equal(TWO(LIST(1, 2, 0, 0, 32, 64, 64), LIST(1, 2, 0, 32, 32, 64, 64)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 2, 0, 32, 32, 64, 64), LIST(1, 2, 0, 0, 32, 64, 64)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 2, 0, 0, 40, 64, 64), LIST(1, 2, 0, 32, 32, 64, 64)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 2, 0, 0, 32, 64, 64), LIST(1, 2, 0, 0, 32, 64, 64)), WEFT_MALFORMED);
    /* one band, rows after rows */
    assert_int_equal(TWO(LIST(1, 2, 0, 8, 16, 64, 8), LIST(1, 2, 0, 520, 16, 64, 56)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 2, 0, 520, 16, 64, 56), LIST(1, 2, 0, 8, 16, 64, 8)), WEFT_OK);
    assert_int_equal(TWO(LIST(1, 2, 0, 8, 16, 64, 9), LIST(1, 2, 0, 520, 16, 64, 56)), WEFT_MALFORMED);
    /* bands of different widths that meet only in rows, strides that differ, boxes beside flat ranges */
    assert_int_equal(TWO(LIST(1, 2, 0, 0, 32, 64, 64), LIST(1, 2, 0, 0, 16, 64, 1)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 2, 0, 0, 32, 64, 64), LIST(1, 2, 0, 32, 32, 128, 32)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 2, 0, 0, 32, 64, 64), LIST(1, 1, 0, 32, 32)), WEFT_MALFORMED);
    assert_int_equal(TWO(LIST(1, 1, 0, 32, 32), LIST(1, 2, 0, 0, 32, 64, 64)), WEFT_MALFORMED);
    /* a run across the end of its row */
    assert_int_equal(TWO(LIST(1, 2, 0, 48, 32, 64, 8), LIST(1, 0, 1, 1)), WEFT_MALFORMED);
    close_fixture(&self);
}

/* The frame that lies where the index points is another one, sound in itself. */
static void test_exchanged_frames(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    forgery forged;
    forge_open(&forged, &self);
    forge_plain_header(&forged);
    weft_writer_varint(&forged.index, 2);
    FRAME(1, 0, 0, 1);
    size_t length = forged.frames.size;
    FRAME(1, 0, 1, 1);
    assert_int_equal(forged.frames.size, 2 * length);
    assert_int_equal(forge_try(&forged), WEFT_OK);
    uint8_t *first = malloc(length);
    assert_non_null(first);
    memcpy(first, forged.frames.data, length);
    memcpy(forged.frames.data, forged.frames.data + length, length);
    memcpy(forged.frames.data + length, first, length);
    assert_int_equal(forge_try(&forged), WEFT_CHECKSUM_MISMATCH);
    free(first);
    /* the index names the spans of another frame */
    forged.frames.size = 0;
    forged.index.size = 0;
    weft_writer_varint(&forged.index, 1);
    FRAME(1, 0, 0, 1);
    assert_int_equal(forged.index.data[forged.index.size - 2], 0);
    forged.index.data[forged.index.size - 2] = 1;
    assert_int_equal(forge_try(&forged), WEFT_CHECKSUM_MISMATCH);
    forge_close(&forged);
    close_fixture(&self);
}

static void test_index_lies(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    forgery forged;
    forge_open(&forged, &self);
    forge_plain_header(&forged);
    weft_writer_varint(&forged.index, 0);
    assert_int_equal(forge_try(&forged), WEFT_OK);
    /* bytes between header and index that no frame owns */
    weft_writer_u8(&forged.frames, 0);
    assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
    forged.frames.size = 0;
    /* bytes behind the last record */
    weft_writer_u8(&forged.index, 0);
    assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
    /* counts that the index cannot hold */
    const uint64_t counts[] = {1, 100, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        forged.index.size = 0;
        weft_writer_varint(&forged.index, counts[i]);
        assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
        assert_true(forge_cost(&forged) < 65536);
    }
    /* a record that points past the frames */
    const uint64_t lengths[] = {0, 1, 1000, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        forged.index.size = 0;
        weft_writer_varint(&forged.index, 1);
        weft_writer_varint(&forged.index, lengths[i]);
        weft_writer_u64(&forged.index, 0);
        weft_writer_u32(&forged.index, 0x01000001);
        weft_status status = forge_try(&forged);
        /* a frame of no bytes is found out when it is read */
        assert_int_equal(status, i == 0 ? WEFT_TRUNCATED : WEFT_MALFORMED);
    }
    forge_close(&forged);
    close_fixture(&self);
}

/* Records that list all tensors again and again: few bytes, and spans without end. */
static void test_repeated_tensors(void **state) {
    (void)state;
    enum { TENSORS = 4000, RECORDS = 500 };
    fixture self;
    open_fixture(&self);
    forgery forged;
    forge_open(&forged, &self);
    weft_writer_u8(&forged.body, WEFT_PROFILE_FAST);
    weft_writer_varint(&forged.body, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%04u", i);
        forge_tensor(&forged, name, WEFT_FATE_KEPT, WEFT_DTYPE_U8, 1, 1);
    }
    weft_writer_u8(&forged.body, 0);
    weft_writer_varint(&forged.body, 0);
    size_t floor = 0;
    for (unsigned many = 0; many < 3; many++) {
        /* 0: one bucket, once; 1: one bucket, many records; 2: many buckets */
        forged.index.size = 0;
        unsigned buckets = many == 2 ? RECORDS : 1;
        weft_writer_varint(&forged.index, buckets);
        for (unsigned b = 0; b < buckets; b++) {
            unsigned records = many == 1 ? RECORDS : 1;
            weft_writer_varint(&forged.index, 0);
            weft_writer_u64(&forged.index, 0);
            weft_writer_varint(&forged.index, records);
            for (unsigned i = 0; i < records; i++) {
                weft_writer_u8(&forged.index, 0);
                weft_writer_varint(&forged.index, 0);
                weft_writer_varint(&forged.index, TENSORS);
            }
        }
        weft_status status = forge_try(&forged);
        assert_int_equal(status, many == 0 ? WEFT_TRUNCATED : WEFT_MALFORMED);
        if (many == 0) {
            floor = forge_cost(&forged);
        } else {
            assert_true(forge_cost(&forged) < 3 * floor);
        }
    }
    forge_close(&forged);
    close_fixture(&self);
}

static void test_versions(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    forgery forged;
    forge_open(&forged, &self);
    forge_plain_header(&forged);
    weft_writer_varint(&forged.index, 0);
    const uint16_t versions[] = {0, 3, 256, 0xffff};
    for (size_t i = 0; i < 4; i++) {
        forged.version = versions[i];
        assert_int_equal(forge_try(&forged), WEFT_WRONG_VERSION);
    }
    for (forged.version = WEFT_FORMAT_OLDEST; forged.version <= WEFT_FORMAT_NEWEST; forged.version++) {
        assert_int_equal(forge_try(&forged), WEFT_OK);
    }
    forge_close(&forged);
    close_fixture(&self);
}

/* Header bodies that end early, run over, or name what does not exist. */
static void test_header_lies(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    forgery forged;
    forge_open(&forged, &self);
    weft_writer_varint(&forged.index, 0);
    forge_plain_header(&forged);
    size_t size = forged.body.size;
    for (size_t cut = 0; cut < size; cut++) {
        forged.body.size = cut;
        assert_true(forge_try(&forged) < 0);
    }
    forged.body.size = size;
    weft_writer_u8(&forged.body, 0);
    assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
    forged.body.size = size;
    assert_int_equal(forge_try(&forged), WEFT_OK);
    /* profile, then the first tensor's name, fate, dtype, rank: at 0, 3, 4, 5, 6; files and labels last */
    const struct {
        size_t place;
        uint8_t value;
    } lies[] = {{0, 2}, {3, 0},  {3, 'b'}, {3, 'c'}, {3, 0xff}, {4, 4},
                {5, 0}, {5, 23}, {5, 255}, {6, 17},  {6, 255},  {7, 0x80}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        uint8_t truth = forged.body.data[lies[i].place];
        forged.body.data[lies[i].place] = lies[i].value;
        assert_true(forge_try(&forged) < 0);
        forged.body.data[lies[i].place] = truth;
    }
    forged.body.data[size - 2] = 3;
    assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
    /* stored lengths that are no zstd, and beyond what is there */
    forged.body.data[size - 2] = 0;
    const uint32_t raws[] = {(uint32_t)size + 1, 1 << 20, 1};
    for (size_t i = 0; i < 3; i++) {
        forged.raw = raws[i];
        assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
    }
    forged.raw = UINT32_MAX;
    assert_int_equal(forge_try(&forged), WEFT_LIMIT_EXCEEDED);
    assert_true(forge_cost(&forged) < 65536);
    forge_close(&forged);
    close_fixture(&self);
}

/* Shapes whose size no machine holds. */
static void test_impossible_shapes(void **state) {
    (void)state;
    const struct {
        uint64_t rows, columns;
        weft_dtype dtype;
    } shapes[] = {
        {UINT64_MAX, 2, WEFT_DTYPE_U8},          {(uint64_t)1 << 32, (uint64_t)1 << 32, WEFT_DTYPE_U8},
        {(uint64_t)1 << 60, 2, WEFT_DTYPE_F64},  {3, 1, WEFT_DTYPE_F4},
        {UINT64_MAX, UINT64_MAX, WEFT_DTYPE_F4},
    };
    for (size_t i = 0; i < 5; i++) {
        for (int fate = WEFT_FATE_KEPT; fate <= WEFT_FATE_REPLACED; fate++) {
            fixture self;
            open_fixture(&self);
            forgery forged;
            forge_open(&forged, &self);
            weft_writer_u8(&forged.body, WEFT_PROFILE_FAST);
            weft_writer_varint(&forged.body, 1);
            forge_tensor(&forged, "w", (weft_fate)fate, shapes[i].dtype, shapes[i].rows, shapes[i].columns);
            weft_writer_u8(&forged.body, 0);
            weft_writer_varint(&forged.body, 0);
            weft_writer_varint(&forged.index, 0);
            assert_int_equal(forge_try(&forged), WEFT_MALFORMED);
            forge_close(&forged);
            close_fixture(&self);
        }
    }
}

/* Numbers of tensors, files and labels that the rest of the header cannot hold take no memory. */
static void test_absurd_counts(void **state) {
    (void)state;
    const uint64_t counts[] = {3, 1000, (uint64_t)1 << 20, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        for (unsigned where = 0; where < 3; where++) {
            fixture self;
            open_fixture(&self);
            forgery forged;
            forge_open(&forged, &self);
            weft_writer_varint(&forged.index, 0);
            weft_writer_u8(&forged.body, WEFT_PROFILE_FAST);
            weft_writer_varint(&forged.body, where == 0 ? counts[i] : 0);
            if (where == 1) {
                weft_writer_u8(&forged.body, 2);
                weft_writer_u8(&forged.body, 0);
                weft_writer_varint(&forged.body, counts[i]);
            } else if (where == 2) {
                weft_writer_u8(&forged.body, 0);
                weft_writer_varint(&forged.body, counts[i]);
            }
            weft_status status = forge_try(&forged);
            assert_true(status == WEFT_MALFORMED || status == WEFT_LIMIT_EXCEEDED);
            assert_true(forge_cost(&forged) < 65536);
            forge_close(&forged);
            close_fixture(&self);
        }
    }
}

/* The caller's limits hold before memory is taken. */
static void test_limits(void **state) {
    (void)state;
    const weft_limits tight[] = {{.size = sizeof *tight, .header_bytes = 10},
                                 {.size = sizeof *tight, .tensors = 1},
                                 {.size = sizeof *tight, .bucket_bytes = 64}};
    for (size_t i = 0; i < 3; i++) {
        fixture self;
        open_limited(&self, tight[i]);
        forgery forged;
        forge_open(&forged, &self);
        forge_plain_header(&forged);
        weft_writer_varint(&forged.index, 1);
        FRAME(1, 0, 0, 2);
        assert_int_equal(forge_try(&forged), WEFT_LIMIT_EXCEEDED);
        forge_close(&forged);
        close_fixture(&self);
    }
    /* an index above the limit of a header */
    fixture self;
    open_limited(&self, (weft_limits){.size = sizeof(weft_limits), .header_bytes = 100});
    forgery forged;
    forge_open(&forged, &self);
    forge_plain_header(&forged);
    weft_writer_varint(&forged.index, 0);
    while (forged.index.size < 101) {
        weft_writer_u8(&forged.index, 0);
    }
    assert_int_equal(forge_try(&forged), WEFT_LIMIT_EXCEEDED);
    forge_close(&forged);
    close_fixture(&self);
}

/* A bucket has fewer than 2^32 units, whatever the limit: positions are 32 bits wide. */
static void test_huge_buckets(void **state) {
    (void)state;
    fixture self;
    open_limited(&self, (weft_limits){.size = sizeof(weft_limits), .bucket_bytes = UINT64_MAX});
    forgery forged;
    forge_open(&forged, &self);
    weft_writer_u8(&forged.body, WEFT_PROFILE_FAST);
    weft_writer_varint(&forged.body, 1);
    forge_tensor(&forged, "w", WEFT_FATE_KEPT, WEFT_DTYPE_BF16, 1 << 16, 1 << 17);
    weft_writer_u8(&forged.body, 0);
    weft_writer_varint(&forged.body, 0);
    weft_writer_varint(&forged.index, 1);
    FRAME(1, 0, 0, 1);
    assert_int_equal(forge_try(&forged), WEFT_LIMIT_EXCEEDED);
    forge_close(&forged);
    close_fixture(&self);
}

/* ---- folded headers ---- */

static void expect_fold(weft_context *context, const char *text, const char *folded) {
    weft_writer writer;
    weft_writer original;
    weft_writer_open(&writer, context);
    weft_writer_open(&original, context);
    assert_true(weft_fold_offsets(text, strlen(text), &writer));
    assert_int_equal(writer.size, strlen(folded));
    assert_memory_equal(writer.data, folded, writer.size);
    assert_int_equal(weft_unfold_offsets(context, (const char *)writer.data, writer.size, &original),
                     WEFT_OK);
    assert_int_equal(original.size, strlen(text));
    assert_memory_equal(original.data, text, original.size);
    weft_writer_close(&writer);
    weft_writer_close(&original);
}

static void test_folding(void **state) {
    (void)state;
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    expect_fold(context, "{}", "{}");
    expect_fold(context, "{\"a\":{\"data_offsets\":[0,10]},\"b\":{\"data_offsets\":[10,10]}}",
                "{\"a\":{\"data_offsets\":\00110]},\"b\":{\"data_offsets\":\0010]}}");
    expect_fold(context, "{\"a\":{\"data_offsets\": [0, 8]}}", "{\"a\":{\"data_offsets\": \0028]}}");
    /* what does not follow, is no pair or has another spelling stays */
    expect_fold(context, "\"data_offsets\":[4,10] \"data_offsets\":[0,4]",
                "\"data_offsets\":[4,10] \"data_offsets\":\0014]");
    const char *const untouched[] = {
        "\"data_offsets\":",        "\"data_offsets\":[",      "\"data_offsets\":[0,",
        "\"data_offsets\":[0,1",    "\"data_offsets\":[0,01]", "\"data_offsets\":[00,1]",
        "\"data_offsets\":[0,1,2]", "\"data_offsets\":[0 ,1]", "\"data_offsets\":[0,99999999999999999999]",
        "\"shape\":[0,8]",
    };
    for (size_t i = 0; i < sizeof untouched / sizeof *untouched; i++) {
        expect_fold(context, untouched[i], untouched[i]);
    }
    weft_writer writer;
    weft_writer_open(&writer, context);
    assert_false(weft_fold_offsets("a\001", 2, &writer));
    assert_false(weft_fold_offsets("a\002", 2, &writer));
    const char *const broken[] = {"\001",    "\001]",  "\0015",
                                  "\00105]", "\002x]", "\00199999999999999999999]"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        assert_int_equal(weft_unfold_offsets(context, broken[i], strlen(broken[i]), &writer),
                         WEFT_MALFORMED);
    }
    weft_writer_close(&writer);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folding),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_containers),
        cmocka_unit_test(test_large_roster),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_trailing_bytes),
        cmocka_unit_test(test_every_flipped_bit),
        cmocka_unit_test(test_source_callbacks),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_exchanged_frames),
        cmocka_unit_test(test_index_lies),
        cmocka_unit_test(test_repeated_tensors),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_header_lies),
        cmocka_unit_test(test_impossible_shapes),
        cmocka_unit_test(test_absurd_counts),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_huge_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
