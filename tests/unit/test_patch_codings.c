/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets: frames made from two states and turned back into changes, in every coding, dtype and density,
 * on every instruction set; the proof against full sums; and frames that lie behind a correct checksum.
 */
#include "../../lib/code/bits.h"
#include "../../lib/patch/bucket/bucket.h"
#include "faults.h"
#include "models.h"
#include "stride.h"

#include <math.h>
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
    weft_table *table;
    weft_view *view;
    weft_roster roster;
    weft_bucket bucket;
    weft_bucket_coder *coder; /* it is large */
    weft_writer frame;
    uint8_t *base; /* of the bucket, end to end */
    uint8_t *next;
} fixture;

static void open_fixture(fixture *self) {
    memset(self, 0, sizeof *self);
    weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&self->faults), .threads = 1};
    assert_int_equal(weft_context_create(&options, &self->context), WEFT_OK);
    assert_int_equal(weft_table_create(self->context, &self->table), WEFT_OK);
    weft_roster_open(&self->roster, self->context);
    weft_writer_open(&self->frame, self->context);
    self->coder = malloc(sizeof *self->coder);
    assert_non_null(self->coder);
    weft_bucket_coder_open(self->coder, self->context);
}

static void close_fixture(fixture *self) {
    free(self->base);
    free(self->next);
    weft_bucket_close(&self->bucket, self->context);
    weft_bucket_coder_close(self->coder);
    free(self->coder);
    weft_writer_close(&self->frame);
    weft_roster_close(&self->roster);
    weft_view_destroy(self->view);
    weft_table_destroy(self->table);
    weft_context_destroy(self->context);
    assert_int_equal(faults_live_blocks(&self->faults), 0);
}

/* A tensor of `units` units, without data. */
static void describe(fixture *self, const char *name, weft_dtype dtype, uint64_t units) {
    uint64_t elements = units * 8 * weft_dtype_width(dtype) / weft_dtype_bits(dtype);
    weft_tensor tensor = {
        .size = sizeof tensor, .name = name, .dtype = dtype, .rank = 1, .shape = {elements}};
    assert_int_equal(weft_table_add(self->table, &tensor), WEFT_OK);
}

static void describe_done(fixture *self) {
    assert_int_equal(weft_view_create(self->context, self->table, &self->view), WEFT_OK);
    assert_int_equal(weft_roster_build(&self->roster, self->view, self->view), WEFT_OK);
}

static void cover(fixture *self, size_t tensor, weft_span span) {
    assert_int_equal(
        weft_bucket_add(&self->bucket, self->context, tensor, &self->roster.entries[tensor].tensor, &span),
        WEFT_OK);
}

static void take_sides(fixture *self) {
    size_t bytes = (size_t)self->bucket.units * self->bucket.width;
    self->base = malloc(bytes);
    self->next = malloc(bytes);
    assert_non_null(self->base);
    assert_non_null(self->next);
}

/* One tensor, one span over all of it. */
static void open_single(fixture *self, weft_dtype dtype, uint64_t units) {
    open_fixture(self);
    describe(self, "w", dtype, units);
    describe_done(self);
    cover(self, 0, (weft_span){0, units, 0, 1});
    take_sides(self);
}

/* ---- encoding and decoding ---- */

static weft_frame_result encode(fixture *self, weft_profile profile) {
    weft_frame_result result;
    self->frame.size = 0;
    assert_int_equal(weft_window_set_memory(&self->coder->from, &self->bucket, self->base), WEFT_OK);
    assert_int_equal(weft_window_set_memory(&self->coder->to, &self->bucket, self->next), WEFT_OK);
    assert_int_equal(weft_bucket_encode_windows(self->coder, &self->bucket, &self->roster, profile, NULL,
                                                &self->frame, &result),
                     WEFT_OK);
    return result;
}

static bool differs(const fixture *self, size_t unit) {
    unsigned width = self->bucket.width;
    return memcmp(self->base + unit * width, self->next + unit * width, width) != 0;
}

static uint64_t count_changed(const fixture *self) {
    uint64_t count = 0;
    for (size_t i = 0; i < self->bucket.units; i++) {
        count += differs(self, i);
    }
    return count;
}

/* The sum of one side, run by run, each at its place in its tensor. */
static weft_sum full_sum(const fixture *self, const uint8_t *memory) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(WEFT_CPU_PORTABLE);
    unsigned width = self->bucket.width;
    weft_sum sum = {{0, 0}};
    for (size_t i = 0; i < self->bucket.span_count; i++) {
        const weft_span *span = &self->bucket.spans[i].span;
        for (uint64_t j = 0; j < span->count; j++) {
            uint64_t first_word = (span->start + j * span->stride) * width / WEFT_WORD;
            size_t bytes = (size_t)span->run * width;
            weft_sum_add(&sum, kernels->sum(memory, bytes, first_word));
            memory += bytes;
        }
    }
    return sum;
}

static weft_sum full_delta(const fixture *self) {
    weft_sum delta = full_sum(self, self->next);
    weft_sum_subtract(&delta, full_sum(self, self->base));
    return delta;
}

/* Brings coder->changes into the order of their positions. */
static void sort_changes(fixture *self) {
    weft_changes *changes = &self->coder->changes;
    unsigned width = changes->width;
    uint32_t *index_of = malloc((size_t)self->bucket.units * sizeof *index_of);
    uint8_t *copy = malloc(2 * changes->count * width);
    assert_non_null(index_of);
    assert_non_null(copy);
    memset(index_of, 0xff, (size_t)self->bucket.units * sizeof *index_of);
    memcpy(copy, changes->olds, changes->count * width);
    memcpy(copy + changes->count * width, changes->news, changes->count * width);
    for (size_t i = 0; i < changes->count; i++) {
        assert_true(changes->positions[i] < self->bucket.units);
        assert_int_equal(index_of[changes->positions[i]], UINT32_MAX);
        index_of[changes->positions[i]] = (uint32_t)i;
    }
    size_t next = 0;
    for (uint32_t position = 0; position < self->bucket.units; position++) {
        size_t from = index_of[position];
        if (from != UINT32_MAX) {
            changes->positions[next] = position;
            weft_unit_store(changes->olds, next, width, weft_unit_load(copy, from, width));
            weft_unit_store(changes->news, next++, width,
                            weft_unit_load(copy, changes->count + from, width));
        }
    }
    free(index_of);
    free(copy);
}

/* What must be in coder->changes once olds and news are known. */
static void expect_changes(const fixture *self, uint64_t changed) {
    const weft_changes *changes = &self->coder->changes;
    unsigned width = self->bucket.width;
    size_t next = 0;
    assert_int_equal(changes->count, changed);
    for (size_t i = 0; i < self->bucket.units; i++) {
        if (differs(self, i)) {
            assert_int_equal(changes->positions[next], i);
            assert_memory_equal((uint8_t *)changes->olds + next * width, self->base + i * width, width);
            assert_memory_equal((uint8_t *)changes->news + next * width, self->next + i * width, width);
            next++;
        }
    }
    assert_int_equal(next, changed);
}

/* A copy of the base, for decoding that writes. */
static uint8_t *copy_base(const fixture *self) {
    size_t bytes = (size_t)self->bucket.units * self->bucket.width;
    uint8_t *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, self->base, bytes);
    return copy;
}

static void expect_sparse(fixture *self, const weft_frame *frame) {
    weft_bucket_coder *coder = self->coder;
    weft_sum delta;
    assert_int_equal(weft_window_set_memory(&coder->from, &frame->bucket, self->base), WEFT_OK);
    assert_int_equal(weft_frame_decode(coder, frame, &coder->changes, NULL, &delta), WEFT_OK);
    assert_true(weft_sum_equal(delta, frame->delta));
    if (frame->coding != WEFT_CODING_FAST) {
        sort_changes(self);
    }
    expect_changes(self, frame->changed);
    assert_int_equal(
        weft_window_prove(&coder->from, &coder->changes, WEFT_PROOF_VALUES, false, NULL, &delta), WEFT_OK);
    assert_true(weft_sum_equal(delta, frame->delta));

    uint8_t *written = copy_base(self);
    assert_int_equal(weft_window_set_memory(&coder->from, &frame->bucket, written), WEFT_OK);
    assert_int_equal(weft_frame_decode_through(coder, frame, false, NULL, &delta), WEFT_OK);
    assert_true(weft_sum_equal(delta, frame->delta));
    assert_memory_equal(written, self->next, (size_t)self->bucket.units * self->bucket.width);
    free(written);

    if (frame->coding == WEFT_CODING_FAST) {
        assert_int_equal(weft_frame_decode_steps(coder, frame, &coder->changes), WEFT_OK);
        assert_int_equal(weft_window_set_memory(&coder->from, &frame->bucket, self->base), WEFT_OK);
        assert_int_equal(
            weft_window_prove(&coder->from, &coder->changes, WEFT_PROOF_STEPS, false, NULL, &delta),
            WEFT_OK);
        assert_true(weft_sum_equal(delta, frame->delta));
        expect_changes(self, frame->changed);
    }
}

static void expect_dense(fixture *self, const weft_frame *frame) {
    size_t bytes = (size_t)self->bucket.units * self->bucket.width;
    uint8_t *output = malloc(bytes);
    assert_non_null(output);
    bool values = frame->coding == WEFT_CODING_VALUES || frame->coding == WEFT_CODING_PACKED_VALUES;
    const void *base = values ? NULL : self->base;
    assert_int_equal(weft_frame_decode_dense(self->coder, frame, base, output), WEFT_OK);
    assert_memory_equal(output, self->next, bytes);
    assert_int_equal(weft_window_set_memory(&self->coder->from, &frame->bucket, self->base), WEFT_OK);
    weft_sum delta;
    assert_int_equal(
        weft_window_prove_all(&self->coder->from, output, self->bucket.width, false, NULL, &delta),
        WEFT_OK);
    assert_true(weft_sum_equal(delta, frame->delta));
    if (weft_frame_passes(frame)) {
        memcpy(output, self->base, bytes);
        assert_int_equal(weft_window_set_memory(&self->coder->from, &frame->bucket, output), WEFT_OK);
        assert_int_equal(weft_frame_decode_through(self->coder, frame, false, NULL, &delta), WEFT_OK);
        assert_true(weft_sum_equal(delta, frame->delta));
        assert_memory_equal(output, self->next, bytes);
    }
    free(output);
}

/* Reads the frame that is in self->frame from a block that ends with it, and decodes it. */
static weft_coding expect_frame(fixture *self) {
    uint8_t *data = malloc(self->frame.size);
    assert_non_null(data);
    memcpy(data, self->frame.data, self->frame.size);
    weft_frame frame;
    assert_int_equal(weft_frame_read(self->context, &self->roster, data, self->frame.size, &frame),
                     WEFT_OK);
    assert_true(weft_bucket_same_spans(&frame.bucket, &self->bucket));
    assert_int_equal(frame.bucket.units, self->bucket.units);
    assert_int_equal(frame.bucket.width, self->bucket.width);
    assert_int_equal(frame.bucket.dtype, self->bucket.dtype);
    assert_int_equal(frame.changed, count_changed(self));
    assert_true(weft_sum_equal(frame.delta, full_delta(self)));
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        self->coder->kernels = weft_patch_kernels_for((weft_cpu)level);
        if (weft_frame_dense(&frame)) {
            expect_dense(self, &frame);
        } else {
            expect_sparse(self, &frame);
        }
    }
    weft_coding coding = frame.coding;
    weft_bucket_close(&frame.bucket, self->context);
    free(data);
    return coding;
}

/* Encodes with every instruction set, which must give the same bytes, and decodes with every one. Returns
 * the coding, or 0 if nothing changed. */
static weft_coding round_trip(fixture *self, weft_profile profile) {
    uint64_t changed = count_changed(self);
    XXH64_hash_t first = 0;
    weft_frame_result result = {0, false, false};
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        self->coder->kernels = weft_patch_kernels_for((weft_cpu)level);
        result = encode(self, profile);
        XXH64_hash_t hash = XXH3_64bits(self->frame.data, self->frame.size);
        assert_true(level == WEFT_CPU_PORTABLE || hash == first);
        first = hash;
    }
    assert_int_equal(result.changed, changed);
    assert_int_equal(result.present, changed > 0);
    if (changed == 0) {
        assert_int_equal(self->frame.size, 0);
        return (weft_coding)0;
    }
    return expect_frame(self);
}

static void both_profiles(fixture *self) {
    round_trip(self, WEFT_PROFILE_FAST);
    round_trip(self, WEFT_PROFILE_SMALL);
}

/* ---- round trips ---- */

static const unsigned densities[] = {0, 100, 10000, 120000, 130000, 300000, 500000, 700000, 1000000};
enum { DENSITIES = 9 };

static void test_every_dtype(void **state) {
    (void)state;
    dice dice = {1};
    for (int dtype = WEFT_DTYPE_BOOL; dtype <= WEFT_DTYPE_C64; dtype++) {
        fixture self;
        enum { UNITS = 2400 };
        open_single(&self, (weft_dtype)dtype, UNITS);
        for (size_t d = 0; d < DENSITIES; d++) {
            for (int kind = CHANGE_ULP; kind <= CHANGE_RANDOM; kind++) {
                weights_fill(&dice, (weights_kind)(d % 3), (weft_dtype)dtype, self.base, UNITS);
                memcpy(self.next, self.base, (size_t)UNITS * self.bucket.width);
                weights_change(&dice, (change_kind)kind, self.bucket.width, self.next, UNITS, densities[d]);
                both_profiles(&self);
            }
        }
        close_fixture(&self);
    }
}

static void test_every_size(void **state) {
    (void)state;
    dice dice = {2};
    const size_t sizes[] = {1,   2,   3,   7,   8,   9,    15,   16,   17,   31,   33,   63,   64,   65,
                            127, 128, 255, 256, 257, 1023, 4095, 4096, 4097, 8191, 8192, 8193, 12345};
    const weft_dtype dtypes[] = {WEFT_DTYPE_U8, WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_I64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t t = 0; t < 4; t++) {
            fixture self;
            open_single(&self, dtypes[t], sizes[s]);
            for (size_t d = 1; d < DENSITIES; d++) {
                weights_fill(&dice, WEIGHTS_TRAINED, dtypes[t], self.base, sizes[s]);
                memcpy(self.next, self.base, sizes[s] * self.bucket.width);
                weights_change(&dice, CHANGE_MIXED, self.bucket.width, self.next, sizes[s], densities[d]);
                both_profiles(&self);
            }
            close_fixture(&self);
        }
    }
}

/* One change only: at the front, at the end, and everywhere around tiles and blocks. */
static void test_one_change(void **state) {
    (void)state;
    dice dice = {3};
    enum { UNITS = 9000 };
    const size_t places[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 8191, 8192, UNITS - 2, UNITS - 1};
    const weft_dtype dtypes[] = {WEFT_DTYPE_I8, WEFT_DTYPE_BF16, WEFT_DTYPE_F16, WEFT_DTYPE_F32,
                                 WEFT_DTYPE_F64};
    for (size_t t = 0; t < 5; t++) {
        fixture self;
        open_single(&self, dtypes[t], UNITS);
        for (size_t p = 0; p < 12; p++) {
            weights_fill(&dice, WEIGHTS_TRAINED, dtypes[t], self.base, UNITS);
            memcpy(self.next, self.base, (size_t)UNITS * self.bucket.width);
            weights_change_one(&dice, CHANGE_MIXED, self.bucket.width, self.next, places[p]);
            assert_int_equal(round_trip(&self, WEFT_PROFILE_FAST), WEFT_CODING_FAST);
            assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), WEFT_CODING_SMALL);
        }
        close_fixture(&self);
    }
}

/* Every step that a two-byte unit can take, and every extreme of the wider ones. */
static void test_every_step(void **state) {
    (void)state;
    enum { UNITS = 65535 * 4 };
    fixture self;
    open_single(&self, WEFT_DTYPE_BF16, UNITS);
    dice dice = {4};
    weights_fill(&dice, WEIGHTS_RANDOM, WEFT_DTYPE_BF16, self.base, UNITS);
    memcpy(self.next, self.base, 2 * (size_t)UNITS);
    for (size_t i = 0; i < 65535; i++) {
        uint64_t value = weft_unit_load(self.base, 4 * i + i % 4, 2) + i + 1;
        weft_unit_store(self.next, 4 * i + i % 4, 2, value);
    }
    self.coder->kernels = weft_patch_kernels_for(weft_cpu_best());
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        encode(&self, (weft_profile)profile);
        expect_frame(&self);
    }
    close_fixture(&self);

    const weft_dtype dtypes[] = {WEFT_DTYPE_U8, WEFT_DTYPE_F16, WEFT_DTYPE_U32, WEFT_DTYPE_U64};
    for (size_t t = 0; t < 4; t++) {
        enum { SPREAD = 20 };
        unsigned bits = 8 * weft_dtype_width(dtypes[t]);
        open_single(&self, dtypes[t], 3 * (uint64_t)bits * SPREAD);
        dice_fill(&dice, self.base, (size_t)self.bucket.units * self.bucket.width);
        memcpy(self.next, self.base, (size_t)self.bucket.units * self.bucket.width);
        for (size_t i = 0; i < 3 * bits; i++) {
            uint64_t power = (uint64_t)1 << (i / 3);
            uint64_t step = i % 3 == 0 ? power : i % 3 == 1 ? 0 - power : 2 * power - 1;
            uint64_t value = weft_unit_load(self.base, SPREAD * i, self.bucket.width) + step;
            weft_unit_store(self.next, SPREAD * i, self.bucket.width, value);
        }
        assert_int_equal(round_trip(&self, WEFT_PROFILE_FAST), WEFT_CODING_FAST);
        assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), WEFT_CODING_SMALL);
        close_fixture(&self);
    }
}

/* Zeros of both signs, infinities, NaNs with payloads and subnormals are told apart by their bits. */
static void test_special_values(void **state) {
    (void)state;
    const uint16_t values[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0,
                               0x7f81, 0xffff, 0x0001, 0x8001, 0x007f};
    enum { VALUES = 10, SPREAD = 40, UNITS = VALUES * VALUES * SPREAD };
    fixture self;
    open_single(&self, WEFT_DTYPE_BF16, UNITS);
    dice dice = {5};
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base, UNITS);
    memcpy(self.next, self.base, 2 * (size_t)UNITS);
    for (size_t i = 0; i < VALUES * VALUES; i++) {
        weft_unit_store(self.base, SPREAD * i, 2, values[i / VALUES]);
        weft_unit_store(self.next, SPREAD * i, 2, values[i % VALUES]);
    }
    assert_int_equal(count_changed(&self), VALUES * VALUES - VALUES);
    assert_int_equal(round_trip(&self, WEFT_PROFILE_FAST), WEFT_CODING_FAST);
    assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), WEFT_CODING_SMALL);
    close_fixture(&self);
}

/* Few changes far apart, so that the fast coding escapes, and clusters with deserts between them. */
static void test_gaps(void **state) {
    (void)state;
    enum { UNITS = 1200000 };
    fixture self;
    open_single(&self, WEFT_DTYPE_BF16, UNITS);
    dice dice = {6};
    self.coder->kernels = weft_patch_kernels_for(weft_cpu_best());
    for (unsigned round = 0; round < 3; round++) {
        weights_fill(&dice, round == 0 ? WEIGHTS_ONE_OCTAVE : WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base,
                     UNITS);
        memcpy(self.next, self.base, 2 * (size_t)UNITS);
        if (round == 1) {
            weights_change(&dice, CHANGE_ULP, 2, self.next, UNITS, 100);
        } else {
            weights_change_one(&dice, CHANGE_ULP, 2, self.next, 0);
            weights_change(&dice, CHANGE_ULP, 2, self.next + 2 * 500000, 20000, 300000);
            weights_change_one(&dice, CHANGE_ULP, 2, self.next, UNITS - 1);
        }
        for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
            encode(&self, (weft_profile)profile);
            weft_coding coding = expect_frame(&self);
            assert_int_equal(coding, profile == WEFT_PROFILE_FAST ? WEFT_CODING_FAST : WEFT_CODING_SMALL);
        }
    }
    close_fixture(&self);
}

/* Where everything changed, a dense coding is taken: by steps if they are small, by values if the old ones
 * say nothing. */
static void test_dense_choice(void **state) {
    (void)state;
    enum { UNITS = 50000 };
    dice dice = {7};
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_I64, WEFT_DTYPE_U8};
    for (size_t t = 0; t < 4; t++) {
        fixture self;
        open_single(&self, dtypes[t], UNITS);
        size_t bytes = (size_t)UNITS * self.bucket.width;
        dice_fill(&dice, self.base, bytes);
        memcpy(self.next, self.base, bytes);
        weights_change(&dice, CHANGE_ULP, self.bucket.width, self.next, UNITS, 1000000);
        bool floats = t < 2;
        weft_coding steps = floats ? WEFT_CODING_PACKED_STEPS : WEFT_CODING_DIFFERENCE;
        weft_coding values = floats ? WEFT_CODING_PACKED_VALUES : WEFT_CODING_VALUES;
        assert_int_equal(round_trip(&self, WEFT_PROFILE_FAST), floats ? WEFT_CODING_RICE : steps);
        assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), steps);
        assert_true(self.frame.size < bytes / 2 + 100);
        memset(self.next, 7, bytes);
        assert_int_equal(round_trip(&self, WEFT_PROFILE_FAST), values);
        assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), values);
        assert_true(self.frame.size < 1000);
        close_fixture(&self);
    }
}

/* Changes whose chance halves with every octave, as training makes them: classes pay, in every type of
 * floats. */
static void check_small_is_smaller(weft_dtype dtype, unsigned top) {
    enum { UNITS = 400000 };
    fixture self;
    open_single(&self, dtype, UNITS);
    dice dice = {8};
    unsigned width = self.bucket.width;
    weights_fill(&dice, WEIGHTS_TRAINED, dtype, self.base, UNITS);
    memcpy(self.next, self.base, width * (size_t)UNITS);
    for (size_t i = 0; i < UNITS; i++) {
        unsigned exponent = weft_exponent_in(weft_exponent_of(dtype), weft_unit_load(self.base, i, width));
        unsigned octave = top - exponent;
        if (dice_below(&dice, 1024) < (uint64_t)1 << (octave < 9 ? octave : 9)) {
            weights_change_one(&dice, CHANGE_ULP, width, self.next, i);
        }
    }
    assert_int_equal(round_trip(&self, WEFT_PROFILE_FAST), WEFT_CODING_FAST);
    size_t fast = self.frame.size;
    assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), WEFT_CODING_SMALL);
    assert_true(self.frame.size < fast * 4 / 5);
    weft_frame frame;
    assert_int_equal(weft_frame_read(self.context, &self.roster, self.frame.data, self.frame.size, &frame),
                     WEFT_OK);
    assert_in_range(frame.payload[0], WEFT_CLASS_LAWS + 2, WEFT_CLASS_LAWS + WEFT_CLASS_MAX);
    weft_bucket_close(&frame.bucket, self.context);
    close_fixture(&self);
}

static void test_small_is_smaller(void **state) {
    (void)state;
    check_small_is_smaller(WEFT_DTYPE_BF16, 122);
    check_small_is_smaller(WEFT_DTYPE_F32, 122);
    check_small_is_smaller(WEFT_DTYPE_F16, 14);
    check_small_is_smaller(WEFT_DTYPE_F8_E4M3, 14);
    check_small_is_smaller(WEFT_DTYPE_F8_E5M2, 14);
}

/* n h(c / n): the bits that it takes to say which c of n. */
static double position_bits(double n, double c) {
    return c == 0 || c == n ? 0 : n * log2(n) - c * log2(c) - (n - c) * log2(n - c);
}

/* As few changes as a step of a real run makes, 0.16%: beside a hundred bytes for the bucket they take
 * little more than positions given the exponent, and signs, are worth. */
static void test_few_changes(void **state) {
    (void)state;
    enum { UNITS = 1 << 21 };
    fixture self;
    open_single(&self, WEFT_DTYPE_BF16, UNITS);
    dice dice = {18};
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base, UNITS);
    memcpy(self.next, self.base, 2 * (size_t)UNITS);
    double units[256] = {0}, changed[256] = {0}, bits = 0;
    for (size_t i = 0; i < UNITS; i++) {
        unsigned exponent = (unsigned)(weft_unit_load(self.base, i, 2) >> 7 & 0xff);
        unsigned octave = exponent < 122 ? 122 - exponent : 0;
        units[exponent]++;
        if (dice_below(&dice, 1 << 12) < (uint64_t)1 << (octave < 11 ? octave : 11)) {
            weights_change_one(&dice, CHANGE_ULP, 2, self.next, i);
            changed[exponent]++;
        }
    }
    for (unsigned e = 0; e < 256; e++) {
        bits += position_bits(units[e], changed[e]) + changed[e];
    }
    assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), WEFT_CODING_SMALL);
    assert_true((double)self.frame.size < 1.03 * bits / 8 + 100);
    close_fixture(&self);
}

/* Tensors that end inside of a word, parts of tensors, and boxes, one behind the other. */
static void open_mixed(fixture *self, weft_dtype dtype) {
    open_fixture(self);
    describe(self, "a", dtype, 1000 * 16 + 5);
    describe(self, "b", dtype, 3);
    describe(self, "c", dtype, 64 * 160);
    describe(self, "d", dtype, 1);
    describe(self, "e", dtype, 50000);
    describe(self, "f", dtype, 4096);
    describe_done(self);
    cover(self, 0, (weft_span){0, 16005, 0, 1});
    cover(self, 1, (weft_span){0, 3, 0, 1});
    cover(self, 2, (weft_span){32, 48, 160, 64});
    cover(self, 3, (weft_span){0, 1, 0, 1});
    cover(self, 4, (weft_span){4096, 8192, 0, 1});
    cover(self, 5, (weft_span){0, 16, 16, 256});
    take_sides(self);
}

static void test_several_spans(void **state) {
    (void)state;
    dice dice = {9};
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F16, WEFT_DTYPE_U8, WEFT_DTYPE_F32,
                                 WEFT_DTYPE_F64};
    for (size_t t = 0; t < 5; t++) {
        fixture self;
        open_mixed(&self, dtypes[t]);
        for (size_t d = 0; d < DENSITIES; d++) {
            weights_fill(&dice, WEIGHTS_TRAINED, dtypes[t], self.base, (size_t)self.bucket.units);
            memcpy(self.next, self.base, (size_t)self.bucket.units * self.bucket.width);
            weights_change(&dice, CHANGE_MIXED, self.bucket.width, self.next, (size_t)self.bucket.units,
                           densities[d]);
            /* the ends of all spans */
            if (d % 2 == 1) {
                size_t linear = 0;
                for (size_t i = 0; i < self.bucket.span_count; i++) {
                    const weft_span *span = &self.bucket.spans[i].span;
                    weights_change_one(&dice, CHANGE_ULP, self.bucket.width, self.next, linear);
                    linear += (size_t)(span->run * span->count);
                    weights_change_one(&dice, CHANGE_ULP, self.bucket.width, self.next, linear - 1);
                }
            }
            both_profiles(&self);
        }
        close_fixture(&self);
    }
}

/* A list of changes made elsewhere, as merging makes it. */
static void test_encode_changes(void **state) {
    (void)state;
    fixture self;
    open_mixed(&self, WEFT_DTYPE_BF16);
    dice dice = {10};
    size_t units = (size_t)self.bucket.units;
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base, units);
    memcpy(self.next, self.base, 2 * units);
    size_t changed = weights_change(&dice, CHANGE_MIXED, 2, self.next, units, 20000);
    weft_changes *changes = &self.coder->changes;
    assert_int_equal(weft_changes_reset(changes, 2, changed), WEFT_OK);
    for (size_t i = 0; i < units; i++) {
        if (differs(&self, i)) {
            changes->positions[changes->count] = (uint32_t)i;
            weft_unit_store(changes->olds, changes->count, 2, weft_unit_load(self.base, i, 2));
            weft_unit_store(changes->news, changes->count++, 2, weft_unit_load(self.next, i, 2));
        }
    }
    weft_frame_result result;
    assert_int_equal(weft_bucket_encode_changes(self.coder, &self.bucket, &self.roster, full_delta(&self),
                                                &self.frame, &result),
                     WEFT_OK);
    assert_int_equal(result.changed, changed);
    assert_true(result.present);
    assert_int_equal(expect_frame(&self), WEFT_CODING_FAST);

    changes->count = 0;
    self.frame.size = 0;
    assert_int_equal(weft_bucket_encode_changes(self.coder, &self.bucket, &self.roster, full_delta(&self),
                                                &self.frame, &result),
                     WEFT_OK);
    assert_false(result.present);
    assert_int_equal(self.frame.size, 0);
    close_fixture(&self);
}

/* A word of the base that drifted gives another delta, even where nothing changes beside it. */
static void test_proof_sees_drift(void **state) {
    (void)state;
    fixture self;
    open_mixed(&self, WEFT_DTYPE_BF16);
    dice dice = {11};
    size_t units = (size_t)self.bucket.units;
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base, units);
    memcpy(self.next, self.base, 2 * units);
    weights_change(&dice, CHANGE_ULP, 2, self.next, units, 20000);
    encode(&self, WEFT_PROFILE_FAST);
    weft_frame frame;
    assert_int_equal(weft_frame_read(self.context, &self.roster, self.frame.data, self.frame.size, &frame),
                     WEFT_OK);
    for (unsigned round = 0; round < 200 / test_stride(); round++) {
        size_t unit;
        do {
            unit = (size_t)dice_below(&dice, units);
        } while (!differs(&self, unit));
        /* the neighbour lies in the same word if it stands on the same side of every eighth unit */
        size_t place = round % 2 == 0 || unit >= 16000 ? unit : unit ^ 1;
        self.base[2 * place] ^= (uint8_t)(1u << round % 8);
        assert_int_equal(weft_window_set_memory(&self.coder->from, &frame.bucket, self.base), WEFT_OK);
        weft_sum delta;
        assert_int_equal(weft_frame_decode(self.coder, &frame, &self.coder->changes, NULL, &delta),
                         WEFT_OK);
        assert_false(weft_sum_equal(delta, frame.delta));
        self.base[2 * place] ^= (uint8_t)(1u << round % 8);
    }
    weft_bucket_close(&frame.bucket, self.context);
    close_fixture(&self);
}

/* ---- hostile frames ---- */

static void seal(uint8_t *frame, size_t size) {
    for (unsigned i = 0; i < WEFT_FRAME_LENGTH; i++) {
        frame[i] = (uint8_t)(size >> (8 * i));
    }
    uint64_t checksum = XXH3_64bits(frame, size - WEFT_FRAME_CHECKSUM);
    for (unsigned i = 0; i < WEFT_FRAME_CHECKSUM; i++) {
        frame[size - WEFT_FRAME_CHECKSUM + i] = (uint8_t)(checksum >> (8 * i));
    }
}

/* Every position inside of the bucket, and none twice. */
static void expect_in_bounds(const fixture *self, const weft_frame *frame) {
    const weft_changes *changes = &self->coder->changes;
    uint8_t *seen = calloc((size_t)frame->bucket.units, 1);
    assert_non_null(seen);
    /* a packed frame has its own count, and may lie about it */
    bool packed = frame->coding >= WEFT_CODING_PACKED_STEPS;
    assert_true(packed || changes->count == frame->changed);
    for (size_t i = 0; i < changes->count; i++) {
        assert_true(changes->positions[i] < frame->bucket.units);
        assert_false(seen[changes->positions[i]]);
        seen[changes->positions[i]] = 1;
    }
    free(seen);
}

/* Decodes whatever a frame says over any base; true if that worked. */
static bool try_decode(fixture *self, const weft_frame *frame) {
    size_t bytes = (size_t)frame->bucket.units * frame->bucket.width;
    uint8_t *base = malloc(bytes);
    uint8_t *output = malloc(bytes);
    assert_non_null(base);
    assert_non_null(output);
    size_t known = (size_t)self->bucket.units * self->bucket.width;
    memset(base, 0x3c, bytes);
    memcpy(base, self->base, bytes < known ? bytes : known);
    weft_bucket_coder *coder = self->coder;
    weft_status status;
    if (weft_frame_dense(frame)) {
        status = weft_frame_decode_dense(self->coder, frame, base, output);
    } else {
        weft_sum delta;
        assert_int_equal(weft_window_set_memory(&coder->from, &frame->bucket, base), WEFT_OK);
        status = weft_frame_decode(coder, frame, &coder->changes, NULL, &delta);
        if (status == WEFT_OK) {
            expect_in_bounds(self, frame);
        }
        if (frame->coding == WEFT_CODING_FAST) {
            assert_int_equal(weft_frame_decode_steps(coder, frame, &coder->changes), status);
        }
        weft_sum again;
        assert_int_equal(weft_frame_decode_through(coder, frame, false, NULL, &again), status);
        assert_true(status != WEFT_OK || weft_sum_equal(delta, again));
    }
    if (status != WEFT_OK) {
        assert_true(status == WEFT_MALFORMED || status == WEFT_BASE_MISMATCH);
        assert_true(weft_context_error(self->context)[0] != 0);
    }
    free(base);
    free(output);
    return status == WEFT_OK;
}

static bool try_frame(fixture *self, const uint8_t *data, size_t size) {
    weft_frame frame;
    weft_status status = weft_frame_read(self->context, &self->roster, data, size, &frame);
    if (status != WEFT_OK) {
        assert_true(weft_context_error(self->context)[0] != 0);
        return false;
    }
    uint64_t units = 0;
    for (size_t i = 0; i < frame.bucket.span_count; i++) {
        const weft_bucket_span *item = &frame.bucket.spans[i];
        assert_true(item->tensor < self->roster.count);
        uint64_t last = item->span.start + (item->span.count - 1) * item->span.stride + item->span.run;
        assert_true(last <= weft_tensor_units(&self->roster.entries[item->tensor].tensor));
        units += item->span.run * item->span.count;
    }
    assert_int_equal(frame.bucket.units, units);
    bool decoded = try_decode(self, &frame);
    weft_bucket_close(&frame.bucket, self->context);
    return decoded;
}

/* Where the payload of self->frame begins. */
static size_t payload_start(fixture *self) {
    weft_frame frame;
    assert_int_equal(
        weft_frame_read(self->context, &self->roster, self->frame.data, self->frame.size, &frame), WEFT_OK);
    size_t start = (size_t)(frame.payload - self->frame.data);
    weft_bucket_close(&frame.bucket, self->context);
    return start;
}

static void mutate(fixture *self, dice *dice, size_t from) {
    size_t size = self->frame.size;
    uint8_t *data = malloc(size);
    assert_non_null(data);
    memcpy(data, self->frame.data, size);
    unsigned places = 1 + (unsigned)dice_below(dice, 4);
    for (unsigned i = 0; i < places; i++) {
        size_t room = size - WEFT_FRAME_CHECKSUM - from;
        size_t place = from + (size_t)dice_below(dice, i % 2 == 0 && room > 24 ? 24 : room);
        uint64_t bits = dice_next(dice);
        data[place] =
            bits % 3 == 0 ? (uint8_t)(bits >> 8) : (uint8_t)(data[place] ^ (1u << (bits >> 8 & 7)));
    }
    seal(data, size);
    try_frame(self, data, size);
    free(data);
}

/* Frames cut at every length below their own, and longer ones. */
static void cut_and_stretch(fixture *self) {
    size_t size = self->frame.size;
    size_t start = payload_start(self);
    size_t step = size > 400 ? size / 200 : 1;
    for (size_t length = WEFT_FRAME_CHECKSUM + WEFT_FRAME_LENGTH; length < size; length += step) {
        uint8_t *data = malloc(length);
        assert_non_null(data);
        memcpy(data, self->frame.data, length);
        seal(data, length);
        bool decoded = try_frame(self, data, length);
        assert_false(decoded && length < start + WEFT_FRAME_CHECKSUM);
        free(data);
    }
    uint8_t *longer = malloc(size + 16);
    assert_non_null(longer);
    memset(longer, 0, size + 16);
    memcpy(longer, self->frame.data, size - WEFT_FRAME_CHECKSUM);
    seal(longer, size + 16);
    assert_false(try_frame(self, longer, size + 16));
    free(longer);
}

static void test_hostile_frames(void **state) {
    (void)state;
    dice dice = {12};
    const unsigned chances[] = {200, 3000, 60000, 400000, 1000000};
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_U8, WEFT_DTYPE_F32, WEFT_DTYPE_I64};
    for (size_t t = 0; t < 4; t++) {
        for (size_t c = 0; c < 5; c++) {
            fixture self;
            if (c % 2 == 0) {
                open_mixed(&self, dtypes[t]);
            } else {
                open_single(&self, dtypes[t], 5000);
            }
            size_t units = (size_t)self.bucket.units;
            weights_fill(&dice, WEIGHTS_TRAINED, dtypes[t], self.base, units);
            memcpy(self.next, self.base, units * self.bucket.width);
            weights_change(&dice, CHANGE_MIXED, self.bucket.width, self.next, units, chances[c]);
            weights_change_one(&dice, CHANGE_ULP, self.bucket.width, self.next, units / 2);
            for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
                encode(&self, (weft_profile)profile);
                size_t start = payload_start(&self);
                for (unsigned round = 0; round < 100 / test_stride(); round++) {
                    self.coder->kernels = weft_patch_kernels_for(round % (weft_cpu_best() + 1));
                    mutate(&self, &dice, round % 3 == 0 ? WEFT_FRAME_LENGTH : start);
                }
                cut_and_stretch(&self);
            }
            close_fixture(&self);
        }
    }
}

/* Payloads of any bytes at all. */
static void test_random_payloads(void **state) {
    (void)state;
    dice dice = {13};
    fixture self;
    open_mixed(&self, WEFT_DTYPE_BF16);
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base, (size_t)self.bucket.units);
    for (unsigned round = 0; round < 4000 / test_stride(); round++) {
        weft_writer frame;
        weft_writer_open(&frame, self.context);
        weft_writer_u32(&frame, 0);
        weft_writer_u8(&frame, (uint8_t)(1 + round % 6));
        weft_bucket_write_spans(&self.bucket, &self.roster, &frame);
        weft_writer_varint(&frame, 1 + dice_below(&dice, round % 5 == 0 ? self.bucket.units : 40));
        weft_writer_u64(&frame, 0);
        weft_writer_u64(&frame, 0);
        size_t length = (size_t)dice_below(&dice, 120);
        for (size_t i = 0; i < length; i++) {
            weft_writer_u8(&frame, (uint8_t)(i == 0 ? dice_below(&dice, 10) : dice_next(&dice)));
        }
        weft_writer_u64(&frame, 0);
        uint8_t *data = malloc(frame.size);
        assert_non_null(data);
        memcpy(data, frame.data, frame.size);
        seal(data, frame.size);
        try_frame(&self, data, frame.size);
        free(data);
        weft_writer_close(&frame);
    }
    close_fixture(&self);
}

/* The payload of a large bucket in the frame of a small one: it names what is not there. */
static void test_payloads_of_larger_buckets(void **state) {
    (void)state;
    enum { UNITS = 20000, COVERED = 4096 };
    dice dice = {16};
    const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_U8, WEFT_DTYPE_F32, WEFT_DTYPE_I64};
    for (size_t t = 0; t < 4; t++) {
        for (unsigned kind = 0; kind < 6; kind++) {
            fixture self;
            open_single(&self, dtypes[t], UNITS);
            unsigned width = self.bucket.width;
            weights_fill(&dice, kind < 2 ? WEIGHTS_ONE_OCTAVE : WEIGHTS_TRAINED, dtypes[t], self.base,
                         UNITS);
            memcpy(self.next, self.base, (size_t)UNITS * width);
            weights_change(&dice, CHANGE_ULP, width, self.next, UNITS, kind < 4 ? 20000 : 1000000);
            weights_change_one(&dice, CHANGE_ULP, width, self.next, UNITS - 1);
            encode(&self, (weft_profile)(kind % 2));
            weft_frame frame;
            assert_int_equal(
                weft_frame_read(self.context, &self.roster, self.frame.data, self.frame.size, &frame),
                WEFT_OK);
            weft_writer forged;
            weft_writer_open(&forged, self.context);
            weft_writer_u32(&forged, 0);
            weft_writer_u8(&forged, (uint8_t)frame.coding);
            const uint8_t spans[] = {1, 1, 0, 0, 0x80, 0x20}; /* flat: tensor 0 from 0, 4096 units */
            weft_writer_bytes(&forged, spans, sizeof spans);
            weft_writer_varint(&forged, frame.changed < COVERED ? frame.changed : COVERED);
            weft_writer_u64(&forged, 0);
            weft_writer_u64(&forged, 0);
            weft_writer_bytes(&forged, frame.payload, frame.payload_size);
            weft_writer_u64(&forged, 0);
            uint8_t *data = malloc(forged.size);
            assert_non_null(data);
            memcpy(data, forged.data, forged.size);
            seal(data, forged.size);
            assert_false(try_frame(&self, data, forged.size));
            free(data);
            weft_writer_close(&forged);
            weft_bucket_close(&frame.bucket, self.context);
            close_fixture(&self);
        }
    }
}

/* Fast streams put together bit by bit, with steps longer than their width can be, in the middle of others
 * and at the end. */
static void test_steps_too_long(void **state) {
    (void)state;
    const weft_dtype dtypes[] = {WEFT_DTYPE_U8, WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_I64};
    for (size_t t = 0; t < 4; t++) {
        fixture self;
        open_single(&self, dtypes[t], 4096);
        memset(self.base, 0, (size_t)4096 * self.bucket.width);
        unsigned bits = 8 * self.bucket.width;
        for (unsigned length = 0; length < bits + 10; length++) {
            for (unsigned before = 0; before < 3; before++) {
                uint8_t room[256] = {0};
                weft_bits_writer stream = {room, 0, 0};
                for (unsigned i = 0; i < 7 * before; i++) {
                    weft_bits_put(&stream, 0, 3); /* no gap, and a step of one */
                }
                weft_bits_put(&stream, 0, 1);
                for (unsigned i = 0; i < length; i++) {
                    weft_bits_put(&stream, 1, 1);
                }
                weft_bits_put(&stream, 0, 1);
                weft_bits_put_wide(&stream, 0, length < 64 ? length : 64);
                weft_bits_put(&stream, 0, 1);
                for (unsigned i = 0; i < 100; i++) {
                    weft_bits_put(&stream, 0, 3);
                }
                size_t size = (size_t)(weft_bits_finish(&stream) - room);
                self.frame.size = 0;
                weft_writer_u32(&self.frame, 0);
                weft_writer_u8(&self.frame, WEFT_CODING_FAST);
                weft_bucket_write_spans(&self.bucket, &self.roster, &self.frame);
                weft_writer_varint(&self.frame, 7 * before + 101);
                weft_writer_u64(&self.frame, 0);
                weft_writer_u64(&self.frame, 0);
                weft_writer_u8(&self.frame, 0); /* k */
                weft_writer_bytes(&self.frame, room, size);
                weft_writer_u64(&self.frame, 0);
                uint8_t *data = malloc(self.frame.size);
                assert_non_null(data);
                memcpy(data, self.frame.data, self.frame.size);
                seal(data, self.frame.size);
                assert_int_equal(try_frame(&self, data, self.frame.size), length < bits);
                free(data);
            }
        }
        close_fixture(&self);
    }
}

/* Lists of spans, given as the numbers that they are made of. */
static void expect_spans(fixture *self, const uint64_t *numbers, size_t count, weft_status expected) {
    weft_writer writer;
    weft_writer_open(&writer, self->context);
    for (size_t i = 0; i < count; i++) {
        weft_writer_varint(&writer, numbers[i]);
    }
    weft_reader reader = weft_reader_over(writer.data, writer.size);
    weft_bucket bucket = {0};
    assert_int_equal(weft_bucket_read_spans(&bucket, &self->roster, &reader), expected);
    weft_bucket_close(&bucket, self->context);
    weft_writer_close(&writer);
}

#define SPANS(expected, ...)                                                                               \
    expect_spans(&self, (const uint64_t[]){__VA_ARGS__},                                                   \
                 sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), expected)

static void test_hostile_spans(void **state) {
    (void)state;
    fixture self;
    open_fixture(&self);
    describe(&self, "a", WEFT_DTYPE_BF16, 100);
    describe(&self, "b", WEFT_DTYPE_BF16, 4096);
    describe(&self, "c", WEFT_DTYPE_F32, 4096);
    describe(&self, "d", WEFT_DTYPE_F32, 0);
    describe_done(&self);
    /* records, then: 0 tensor sequence | 1 tensor start run | 2 tensor start run stride count */
    SPANS(WEFT_OK, 1, 0, 0, 2);
    SPANS(WEFT_OK, 1, 0, 2, 1);
    SPANS(WEFT_OK, 1, 1, 1, 8, 4088);
    SPANS(WEFT_OK, 1, 1, 0, 96, 4);
    SPANS(WEFT_OK, 1, 2, 1, 8, 8, 64, 64);
    SPANS(WEFT_OK, 2, 0, 0, 1, 1, 1, 0, 64);
    SPANS(WEFT_MALFORMED, 0);
    SPANS(WEFT_MALFORMED, 1);
    SPANS(WEFT_MALFORMED, 1, 0, 0, 0);
    SPANS(WEFT_MALFORMED, 1, 3, 0, 1);
    SPANS(WEFT_MALFORMED, 1, 0, 4, 1);
    SPANS(WEFT_MALFORMED, 1, 0, 3, 1);                  /* empty */
    SPANS(WEFT_MALFORMED, 1, 0, 1, 2);                  /* two dtypes */
    SPANS(WEFT_MALFORMED, 1, 0, 0, 5);                  /* past the roster */
    SPANS(WEFT_MALFORMED, 1, 0, 1, UINT64_MAX);         /* far past it */
    SPANS(WEFT_MALFORMED, 1, 0, UINT64_MAX, 2);         /* around the end of numbers */
    SPANS(WEFT_MALFORMED, 1, 1, 1, 8, 4089);            /* past the end */
    SPANS(WEFT_MALFORMED, 1, 1, 1, 4, 8);               /* starts inside of a word */
    SPANS(WEFT_MALFORMED, 1, 1, 1, 8, 9);               /* ends inside of one */
    SPANS(WEFT_MALFORMED, 1, 1, 0, 0, 0);               /* covers nothing */
    SPANS(WEFT_MALFORMED, 1, 1, 1, UINT64_MAX - 7, 16); /* wraps */
    SPANS(WEFT_MALFORMED, 1, 2, 1, 8, 8, 0, 64);        /* no stride */
    SPANS(WEFT_MALFORMED, 1, 2, 1, 8, 16, 8, 4);        /* overlaps itself */
    SPANS(WEFT_MALFORMED, 1, 2, 1, 8, 8, 64, 65);       /* one row too many */
    SPANS(WEFT_MALFORMED, 1, 2, 1, 8, 8, 64, 0);        /* no rows */
    SPANS(WEFT_MALFORMED, 1, 2, 1, 8, 8, (uint64_t)1 << 63, 3);
    SPANS(WEFT_MALFORMED, 1, 2, 1, 8, 8, 60, 4);         /* rows inside of words */
    SPANS(WEFT_MALFORMED, 3, 0, 0, 2, 0, 0, 2, 0, 0, 2); /* more tensors than there are */
    close_fixture(&self);
}

/* A claim of many changes in few bytes takes no memory for them. */
static void test_claims_take_no_memory(void **state) {
    (void)state;
    fixture self;
    enum { UNITS = 1 << 24 };
    open_fixture(&self);
    describe(&self, "w", WEFT_DTYPE_BF16, UNITS);
    describe_done(&self);
    cover(&self, 0, (weft_span){0, UNITS, 0, 1});
    weft_writer_u32(&self.frame, 0);
    weft_writer_u8(&self.frame, WEFT_CODING_FAST);
    weft_bucket_write_spans(&self.bucket, &self.roster, &self.frame);
    weft_writer_varint(&self.frame, UNITS);
    for (unsigned i = 0; i < 16 + 20 + WEFT_FRAME_CHECKSUM; i++) {
        weft_writer_u8(&self.frame, 0);
    }
    seal(self.frame.data, self.frame.size);
    faults_reset(&self.faults, 0);
    size_t before = faults_live_bytes(&self.faults);
    weft_frame frame;
    assert_int_equal(weft_frame_read(self.context, &self.roster, self.frame.data, self.frame.size, &frame),
                     WEFT_OK);
    weft_sum delta;
    assert_int_equal(weft_frame_decode(self.coder, &frame, &self.coder->changes, NULL, &delta),
                     WEFT_MALFORMED);
    assert_true(faults_peak_bytes(&self.faults) - before < 4096);
    weft_bucket_close(&frame.bucket, self.context);
    close_fixture(&self);
}

/* The frame's own fields, each wrong in turn. */
static void test_frame_fields(void **state) {
    (void)state;
    fixture self;
    open_single(&self, WEFT_DTYPE_BF16, 64);
    dice dice = {14};
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, self.base, 64);
    memcpy(self.next, self.base, 128);
    weights_change_one(&dice, CHANGE_ULP, 2, self.next, 5);
    encode(&self, WEFT_PROFILE_FAST);
    size_t size = self.frame.size;
    uint8_t *data = self.frame.data;
    weft_frame frame;
    for (size_t length = 0; length < size; length++) {
        assert_int_not_equal(weft_frame_read(self.context, &self.roster, data, length, &frame), WEFT_OK);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(weft_frame_read(self.context, &self.roster, data, size, &frame),
                         WEFT_CHECKSUM_MISMATCH);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* coding, at byte 4 */
    for (unsigned coding = 0; coding < 256; coding++) {
        data[4] = (uint8_t)coding;
        seal(data, size);
        weft_status status = weft_frame_read(self.context, &self.roster, data, size, &frame);
        assert_int_equal(status, coding >= 1 && coding <= WEFT_CODING_SMALLEST ? WEFT_OK : WEFT_MALFORMED);
        if (status == WEFT_OK) {
            weft_bucket_close(&frame.bucket, self.context);
        }
    }
    data[4] = WEFT_CODING_FAST;
    /* changes, at byte 9: length, coding, one record of three bytes */
    assert_int_equal(data[9], 1);
    data[9] = 0;
    seal(data, size);
    assert_int_equal(weft_frame_read(self.context, &self.roster, data, size, &frame), WEFT_MALFORMED);
    data[9] = 65;
    seal(data, size);
    assert_int_equal(weft_frame_read(self.context, &self.roster, data, size, &frame), WEFT_MALFORMED);
    data[9] = 1;
    seal(data, size);
    assert_true(try_frame(&self, data, size));
    /* a tensor that was not there before cannot be coded by what it was */
    self.roster.entries[0].fate = WEFT_FATE_ADDED;
    assert_int_equal(weft_frame_read(self.context, &self.roster, data, size, &frame), WEFT_MALFORMED);
    self.roster.entries[0].fate = WEFT_FATE_REMOVED;
    assert_int_equal(weft_frame_read(self.context, &self.roster, data, size, &frame), WEFT_MALFORMED);
    close_fixture(&self);
}

/* A small frame over a base that lacks the weights it names. */
static void test_small_on_another_base(void **state) {
    (void)state;
    enum { UNITS = 400000 };
    fixture self;
    open_single(&self, WEFT_DTYPE_BF16, UNITS);
    dice dice = {15};
    for (size_t i = 0; i < UNITS; i++) {
        weft_unit_store(self.base, i, 2, i < UNITS / 2 ? 0x3c00 : 0x3000);
    }
    memcpy(self.next, self.base, 2 * (size_t)UNITS);
    weights_change(&dice, CHANGE_ULP, 2, self.next + UNITS, UNITS / 2, 80000);
    assert_int_equal(round_trip(&self, WEFT_PROFILE_SMALL), WEFT_CODING_SMALL);
    weft_frame frame;
    assert_int_equal(weft_frame_read(self.context, &self.roster, self.frame.data, self.frame.size, &frame),
                     WEFT_OK);
    assert_true((frame.payload[0] & ~WEFT_CLASS_LAWS) > 1);
    for (size_t i = 0; i < UNITS; i++) {
        weft_unit_store(self.base, i, 2, 0x3c00);
    }
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        self.coder->kernels = weft_patch_kernels_for((weft_cpu)level);
        assert_int_equal(weft_window_set_memory(&self.coder->from, &frame.bucket, self.base), WEFT_OK);
        weft_sum delta;
        assert_int_equal(weft_frame_decode(self.coder, &frame, &self.coder->changes, NULL, &delta),
                         WEFT_BASE_MISMATCH);
    }
    weft_bucket_close(&frame.bucket, self.context);
    close_fixture(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_every_size),
        cmocka_unit_test(test_one_change),
        cmocka_unit_test(test_every_step),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_dense_choice),
        cmocka_unit_test(test_small_is_smaller),
        cmocka_unit_test(test_few_changes),
        cmocka_unit_test(test_several_spans),
        cmocka_unit_test(test_encode_changes),
        cmocka_unit_test(test_proof_sees_drift),
        cmocka_unit_test(test_hostile_frames),
        cmocka_unit_test(test_random_payloads),
        cmocka_unit_test(test_payloads_of_larger_buckets),
        cmocka_unit_test(test_steps_too_long),
        cmocka_unit_test(test_hostile_spans),
        cmocka_unit_test(test_claims_take_no_memory),
        cmocka_unit_test(test_frame_fields),
        cmocka_unit_test(test_small_on_another_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
