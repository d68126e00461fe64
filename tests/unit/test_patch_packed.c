/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed buckets from the inside: the kernels of every instruction set against the portable ones, the coder
 * with many states, and the coder of units of every width, count and density. What frames make of it is in
 * test_patch_codings.c.
 */
#include "../../lib/code/pack/packed.h"
#include "../../lib/patch/bucket/bucket.h"
#include "faults.h"
#include "models.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A block of exactly `size` bytes. */
static uint8_t *take(size_t size) {
    uint8_t *block = malloc(size > 0 ? size : 1);
    assert_non_null(block);
    memset(block, 0xa5, size);
    return block;
}

static uint64_t low_mask(unsigned bits) {
    return bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

static const size_t counts[] = {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 130, 1000, 4095, 4096};
enum { COUNTS = sizeof counts / sizeof *counts };

/* ---- kernels ---- */

/* Numbers that are small, large, and around the escape. */
static void fill_numbers(dice *dice, uint8_t *numbers, size_t count, unsigned width) {
    for (size_t i = 0; i < count; i++) {
        weft_unit_store(numbers, i, width, dice_next(dice) >> dice_below(dice, 64));
    }
}

static void compare_fold(const weft_pack_kernels *kernels, dice *dice, size_t count, unsigned width) {
    const weft_pack_kernels *portable = &weft_pack_kernels_portable;
    size_t bytes = count * width;
    uint8_t *old = take(bytes), *new = take(bytes), *expected = take(bytes), *numbers = take(bytes);
    fill_numbers(dice, old, count, width);
    memcpy(new, old, bytes);
    weights_change(dice, CHANGE_MIXED, width, new, count, 500000);
    size_t changed = portable->fold_steps(old, new, count, width, expected);
    assert_int_equal(kernels->fold_steps(old, new, count, width, numbers), changed);
    assert_memory_equal(numbers, expected, bytes);
    size_t differing = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t step =
            (weft_unit_load(new, i, width) - weft_unit_load(old, i, width)) & low_mask(8 * width);
        uint64_t folded = weft_unit_load(numbers, i, width);
        uint64_t back = ((folded >> 1) ^ (0 - (folded & 1))) & low_mask(8 * width);
        assert_true(back == step);
        differing += step != 0;
    }
    assert_int_equal(differing, changed);
    kernels->unfold_steps(numbers, old, count, width, expected);
    assert_memory_equal(expected, new, bytes);
    kernels->fold_values(new, count, width, numbers);
    portable->fold_values(new, count, width, expected);
    assert_memory_equal(numbers, expected, bytes);
    kernels->unfold_values(numbers, count, width, expected);
    assert_memory_equal(expected, new, bytes);
    assert_true(kernels->varying(new, count, width) == portable->varying(new, count, width));
    free(old);
    free(new);
    free(expected);
    free(numbers);
}

/* Splits and joins; the upper parts of escapes are put back here, as a decoder does. */
static void compare_split(const weft_pack_kernels *kernels, const weft_pack_form *form,
                          const uint8_t *numbers, size_t count, unsigned width) {
    size_t symbols = weft_pack_symbols(form, count), planes = weft_pack_planes(form, count);
    size_t groups = (count + WEFT_PACK_GROUP - 1) / WEFT_PACK_GROUP;
    uint8_t *made[2] = {take(symbols), take(symbols)}, *bits[2] = {take(planes), take(planes)};
    uint8_t *escapes[2] = {take(8 * groups), take(8 * groups)}, *back = take(count * width);
    const weft_pack_kernels *both[2] = {&weft_pack_kernels_portable, kernels};
    for (unsigned i = 0; i < 2; i++) {
        weft_pack_split(both[i], form, width, numbers, count, made[i], bits[i],
                        (uint64_t *)(void *)escapes[i]);
    }
    assert_memory_equal(made[0], made[1], symbols);
    assert_memory_equal(bits[0], bits[1], planes);
    assert_memory_equal(escapes[0], escapes[1], 8 * groups);
    weft_pack_join(kernels, form, width, made[0], bits[0], count, back, (uint64_t *)(void *)escapes[1]);
    assert_memory_equal(escapes[0], escapes[1], 8 * groups);
    for (size_t i = 0; i < count; i++) {
        uint64_t number = weft_unit_load(numbers, i, width), got = weft_unit_load(back, i, width);
        uint64_t part = ((number >> form->low) - form->first) & weft_pack_upper(form, 8 * width);
        bool escaped = weft_unit_load(escapes[0], i / 64, 8) >> i % 64 & 1;
        assert_true(escaped == (part >= weft_pack_escape(form)));
        assert_true((got & low_mask(form->low)) == (number & low_mask(form->low)));
        assert_true(escaped || got == number);
    }
    for (unsigned i = 0; i < 2; i++) {
        free(made[i]);
        free(bits[i]);
        free(escapes[i]);
    }
    free(back);
}

static void test_folding(void **state) {
    (void)state;
    dice dice = {1};
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        for (unsigned width = 1; width <= 8; width *= 2) {
            for (size_t c = 0; c < COUNTS; c++) {
                compare_fold(weft_pack_kernels_for((weft_cpu)level), &dice, counts[c], width);
            }
        }
    }
}

static void test_splitting(void **state) {
    (void)state;
    dice dice = {2};
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        for (unsigned width = 1; width <= 8; width *= 2) {
            for (unsigned round = 0; round < 64 * 4; round += test_stride()) {
                unsigned bits = 8 * width;
                weft_pack_form form = {.low = round / 4 % bits, .code = 1u << round % 4};
                size_t count = counts[dice_below(&dice, COUNTS)];
                uint8_t *numbers = take(count * width);
                fill_numbers(&dice, numbers, count, width);
                form.first = dice_next(&dice) & weft_pack_upper(&form, bits);
                uint64_t lowest = low_mask(form.low), still = dice_next(&dice) & dice_next(&dice) & lowest;
                form.fixed = dice_next(&dice) & still;
                for (size_t i = 0; i < count; i++) {
                    uint64_t number = weft_unit_load(numbers, i, width);
                    weft_unit_store(numbers, i, width, (number & ~still) | form.fixed);
                }
                form.varying = lowest & ~still;
                compare_split(weft_pack_kernels_for((weft_cpu)level), &form, numbers, count, width);
                free(numbers);
            }
        }
    }
}

/* Classes of a tile, sorted apart and merged again. */
static void test_sorting(void **state) {
    (void)state;
    dice dice = {3};
    enum { CLASSES = 5 };
    const uint8_t cuts[CLASSES] = {0, 100, 120, 121, 200};
    static weft_tile tile;
    static uint16_t weights[WEFT_TILE];
    static uint8_t numbers[4 * WEFT_TILE], back[4 * WEFT_TILE];
    for (size_t c = 0; c < 3 * COUNTS; c++) {
        size_t count = counts[c / 3], width = (size_t)1 << c % 3;
        weights_fill(&dice, c % 2 == 0 ? WEIGHTS_TRAINED : WEIGHTS_RANDOM, WEFT_DTYPE_BF16, weights, count);
        dice_fill(&dice, numbers, sizeof numbers);
        weft_tile_kernels_portable.classify(weights, count, 7, cuts, CLASSES, &tile);
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            const weft_pack_kernels *kernels = weft_pack_kernels_for((weft_cpu)level);
            uint8_t *parts[CLASSES], *ends[CLASSES];
            const uint8_t *nexts[CLASSES];
            for (unsigned i = 0; i < CLASSES; i++) {
                parts[i] = take(width * (tile.counts[i] + (size_t)WEFT_KERNEL_SLACK));
                ends[i] = parts[i];
                nexts[i] = parts[i];
            }
            kernels->sort(&tile, CLASSES, (unsigned)width, numbers, ends);
            for (size_t i = 0, next[CLASSES] = {0}; i < count; i++) {
                unsigned exponent = (weights[i] & 0x7fffu) >> 7, class = 0;
                while (class + 1 < CLASSES && exponent >= cuts[class + 1]) {
                    class ++;
                }
                assert_memory_equal(parts[class] + width * next[class]++, numbers + width * i, width);
            }
            memset(back, 0, sizeof back);
            kernels->merge(&tile, CLASSES, (unsigned)width, nexts, back);
            assert_memory_equal(back, numbers, width * count);
            for (unsigned i = 0; i < CLASSES; i++) {
                assert_ptr_equal(ends[i], parts[i] + width * tile.counts[i]);
                assert_ptr_equal(nexts[i], ends[i]);
                free(parts[i]);
            }
        }
    }
}

/* ---- many states ---- */

static const weft_rans_wide_kernels *wide_at(int level) {
    return weft_rans_wide_kernels_for((weft_cpu)level);
}

/* Codes several arrays by one level and decodes them by another. */
static size_t code_arrays(dice *dice, int by, uint8_t *stream, size_t room, size_t count,
                          weft_rans_table tables[3], uint8_t *symbols) {
    weft_rans_wide_encoder encoder;
    (void)dice;
    weft_rans_wide_encoder_open(&encoder, stream, room);
    for (unsigned a = 3; a-- > 0;) {
        weft_rans_wide_encode(&encoder, wide_at(by), &tables[a], symbols + a * count, count);
    }
    const uint8_t *start = weft_rans_wide_encoder_finish(&encoder);
    size_t size = (size_t)(stream + room - start);
    memmove(stream, start, size);
    return size;
}

static bool decode_arrays(int by, const uint8_t *stream, size_t size, size_t count,
                          weft_rans_table tables[3], uint8_t *output) {
    weft_rans_wide_decoder *decoder = malloc(sizeof *decoder);
    assert_non_null(decoder);
    bool good = weft_rans_wide_decoder_open(decoder, stream, size);
    for (unsigned a = 0; a < 3 && good; a++) {
        good = weft_rans_wide_decode(decoder, wide_at(by), &tables[a], output + a * count, count);
    }
    good = good && weft_rans_wide_decoder_done(decoder);
    free(decoder);
    return good;
}

static void test_wide(void **state) {
    (void)state;
    dice dice = {4};
    int best = (int)weft_cpu_best();
    for (size_t c = 0; c < COUNTS; c++) {
        size_t count = counts[c], room = 6 * count + WEFT_RANS_WIDE_BYTES;
        weft_rans_table tables[3];
        uint8_t *symbols = take(3 * count), *output = take(3 * count), *first = take(room),
                *second = take(room);
        for (unsigned a = 0; a < 3; a++) {
            unsigned kinds = a == 0 ? 1 : a == 1 ? 5 : 256;
            for (size_t i = 0; i < count; i++) {
                symbols[a * count + i] = (uint8_t)(dice_below(&dice, kinds) & dice_below(&dice, kinds));
            }
            weft_rans_table_fit_symbols(&tables[a], symbols + a * count, count);
        }
        size_t size = code_arrays(&dice, WEFT_CPU_PORTABLE, first, room, count, tables, symbols);
        assert_int_equal(code_arrays(&dice, best, second, room, count, tables, symbols), size);
        assert_memory_equal(first, second, size);
        for (int level = WEFT_CPU_PORTABLE; level <= best; level++) {
            uint8_t *exact = take(size);
            memcpy(exact, first, size);
            assert_true(decode_arrays(level, exact, size, count, tables, output));
            assert_memory_equal(output, symbols, 3 * count);
            for (unsigned round = 0; round < 40; round++) {
                size_t cut = (size_t)dice_below(&dice, size);
                uint8_t *shorter = take(cut);
                memcpy(shorter, first, cut);
                assert_false(decode_arrays(level, shorter, cut, count, tables, output));
                free(shorter);
                size_t place = (size_t)dice_below(&dice, size);
                exact[place] ^= (uint8_t)(1u << dice_below(&dice, 8));
                bool good = decode_arrays(level, exact, size, count, tables, output);
                assert_false(good && memcmp(output, symbols, 3 * count) == 0);
                exact[place] = first[place];
            }
            free(exact);
        }
        free(symbols);
        free(output);
        free(first);
        free(second);
    }
}

/* ---- units ---- */

typedef struct packer {
    faults faults;
    weft_context *context;
    weft_packed_encoder *encoder; /* these are large */
    weft_packed_decoder *decoder;
    weft_writer payload;
} packer;

static void packer_open(packer *self) {
    memset(self, 0, sizeof *self);
    weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&self->faults), .threads = 1};
    assert_int_equal(weft_context_create(&options, &self->context), WEFT_OK);
    self->encoder = malloc(sizeof *self->encoder);
    self->decoder = malloc(sizeof *self->decoder);
    assert_non_null(self->encoder);
    assert_non_null(self->decoder);
    weft_packed_encoder_open(self->encoder, self->context);
    weft_packed_decoder_open(self->decoder, self->context);
    weft_writer_open(&self->payload, self->context);
}

static void packer_close(packer *self) {
    weft_packed_encoder_close(self->encoder);
    weft_packed_decoder_close(self->decoder);
    weft_writer_close(&self->payload);
    free(self->encoder);
    free(self->decoder);
    weft_context_destroy(self->context);
    assert_int_equal(faults_live_blocks(&self->faults), 0);
}

typedef struct work {
    weft_dtype dtype;
    weft_profile profile;
    bool values;
    const weft_class_sample *sample;
    const uint8_t *old;
    const uint8_t *new;
    size_t units;
    size_t sampled; /* units at the front that the form is chosen from */
} work;

static weft_status pack(packer *self, const work *work, weft_cpu level) {
    unsigned width = weft_dtype_width(work->dtype);
    self->payload.size = 0;
    weft_packed_sample sample = {work->old, work->new,
                                 work->sampled < work->units ? work->sampled : work->units};
    weft_status status = weft_packed_encoder_begin(self->encoder, &weft_patch_kernels_for(level)->packed,
                                                   weft_packed_kind_of(work->dtype), work->values,
                                                   work->sample, &sample, work->units);
    for (bool again = true; again && status == WEFT_OK;) {
        for (size_t done = 0; done < work->units && status == WEFT_OK; done += WEFT_TILE) {
            size_t some = work->units - done < WEFT_TILE ? work->units - done : WEFT_TILE;
            status = weft_packed_encoder_tile(self->encoder, work->old + done * width,
                                              work->new + done *width, some);
        }
        status = status == WEFT_OK ? weft_packed_encoder_end(self->encoder, &again) : status;
    }
    return status == WEFT_OK ? weft_packed_encoder_finish(self->encoder, &self->payload) : status;
}

static weft_status unpack(packer *self, const work *work, weft_cpu level, const uint8_t *payload,
                          size_t size, const uint8_t *base, uint8_t *output) {
    unsigned width = weft_dtype_width(work->dtype);
    weft_status status = weft_packed_decoder_begin(self->decoder, &weft_patch_kernels_for(level)->packed,
                                                   weft_packed_kind_of(work->dtype), work->values, payload,
                                                   size, work->units);
    for (size_t done = 0; done < work->units && status == WEFT_OK; done += WEFT_TILE) {
        size_t some = work->units - done < WEFT_TILE ? work->units - done : WEFT_TILE;
        status = weft_packed_decoder_next(self->decoder, base == NULL ? NULL : base + done * width, some,
                                          output + done * width);
    }
    return status;
}

/* The same bytes from every instruction set, and the same units to every one. */
static void round_trip(packer *self, const work *work) {
    size_t bytes = work->units * weft_dtype_width(work->dtype);
    uint8_t *output = take(bytes), *payload = NULL;
    size_t size = 0;
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        assert_int_equal(pack(self, work, (weft_cpu)level), WEFT_OK);
        if (payload == NULL) {
            size = self->payload.size;
            payload = take(size + WEFT_BITS_SLACK);
            memcpy(payload, self->payload.data, size);
        }
        assert_int_equal(self->payload.size, size);
        assert_memory_equal(self->payload.data, payload, size);
        memset(output, 0x5a, bytes);
        assert_int_equal(
            unpack(self, work, (weft_cpu)level, payload, size, work->values ? NULL : work->old, output),
            WEFT_OK);
        assert_memory_equal(output, work->new, bytes);
    }
    free(output);
    free(payload);
}

static const weft_dtype packed_dtypes[] = {
    WEFT_DTYPE_F8_E5M2, WEFT_DTYPE_F8_E4M3, WEFT_DTYPE_F8_E5M2FNUZ, WEFT_DTYPE_F8_E4M3FNUZ,
    WEFT_DTYPE_F16,     WEFT_DTYPE_BF16,    WEFT_DTYPE_F32,         WEFT_DTYPE_F64,
};
enum { DTYPES = sizeof packed_dtypes / sizeof *packed_dtypes };

static void count_sample(const work *work, weft_class_sample *sample) {
    weft_exponent exponent = weft_exponent_of(work->dtype);
    memset(sample, 0, sizeof *sample);
    for (size_t i = 0; i < work->units; i++) {
        uint64_t old = weft_unit_load(work->old, i, exponent.width);
        sample->units[weft_exponent_in(exponent, old)]++;
        sample->changed[weft_exponent_in(exponent, old)] +=
            old != weft_unit_load(work->new, i, exponent.width);
    }
    sample->sampled = work->units;
}

/* Every dtype, size and density, by steps and by values; steps in classes too. */
static void test_units(void **state) {
    (void)state;
    dice dice = {5};
    packer self;
    packer_open(&self);
    const unsigned densities[] = {0, 100, 10000, 60000, 300000, 900000, 1000000};
    static weft_class_sample sample;
    for (size_t t = 0; t < DTYPES; t++) {
        unsigned width = weft_dtype_width(packed_dtypes[t]);
        for (size_t round = 0; round < 7 * (COUNTS + 1); round += test_stride()) {
            size_t units = round / 7 < COUNTS ? counts[round / 7] : 20011;
            uint8_t *old = take(units * width), *new = take(units * width);
            weights_fill(&dice, (weights_kind)(round % 3), packed_dtypes[t], old, units);
            memcpy(new, old, units * width);
            weights_change(&dice, (change_kind)(round / 3 % 3), width, new, units, densities[round % 7]);
            for (unsigned kind = 0; kind < 4; kind++) {
                work work = {packed_dtypes[t],
                             (weft_profile)(kind % 2),
                             kind / 2 == 1,
                             NULL,
                             old,
                             new,
                             units,
                             round % 2 == 0 ? 4000 : 70};
                round_trip(&self, &work);
                if (kind == 1 && width < 8) {
                    count_sample(&work, &sample);
                    work.sample = &sample;
                    round_trip(&self, &work);
                }
            }
            free(old);
            free(new);
        }
    }
    packer_close(&self);
}

/* All patterns of two bytes: every NaN, both zeros, subnormals and infinities, as values and as steps. */
static void test_every_pattern(void **state) {
    (void)state;
    enum { UNITS = 65536 };
    packer self;
    packer_open(&self);
    uint8_t *old = take(2 * UNITS), *new = take(2 * UNITS);
    for (size_t i = 0; i < UNITS; i++) {
        weft_unit_store(old, i, 2, (uint16_t)(i * 40503));
        weft_unit_store(new, i, 2, i);
    }
    for (unsigned kind = 0; kind < 4; kind++) {
        for (unsigned t = 0; t < 2; t++) {
            work work = {t == 0 ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F16,
                         (weft_profile)(kind % 2),
                         kind / 2 == 1,
                         NULL,
                         old,
                         new,
                         UNITS,
                         4000};
            round_trip(&self, &work);
        }
    }
    free(old);
    free(new);
    packer_close(&self);
}

/* What is the same everywhere takes next to nothing, and exponents less than a byte. */
static void test_sizes(void **state) {
    (void)state;
    enum { UNITS = 100000 };
    packer self;
    packer_open(&self);
    dice dice = {6};
    uint8_t *old = take(4 * UNITS), *new = take(4 * UNITS);
    memset(old, 0, 4 * UNITS);
    for (size_t i = 0; i < UNITS; i++) {
        weft_unit_store(new, i, 4, 0x3f800000);
    }
    work work = {WEFT_DTYPE_F32, WEFT_PROFILE_SMALL, true, NULL, old, new, UNITS, 4000};
    round_trip(&self, &work);
    assert_true(self.payload.size < 200);
    /* FP32 that holds BF16 */
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, old, UNITS);
    for (size_t i = 0; i < UNITS; i++) {
        weft_unit_store(new, i, 4, weft_unit_load(old, i, 2) << 16);
    }
    round_trip(&self, &work);
    assert_true(self.payload.size < 2 * UNITS * 3 / 4);
    memcpy(new, old, 2 * UNITS);
    work.dtype = WEFT_DTYPE_BF16;
    round_trip(&self, &work);
    assert_true(self.payload.size < 2 * UNITS * 3 / 4);
    free(old);
    free(new);
    packer_close(&self);
}

/* Classes that have other units in the base. */
static void test_another_base(void **state) {
    (void)state;
    enum { UNITS = 30000 };
    packer self;
    packer_open(&self);
    dice dice = {7};
    static weft_class_sample sample;
    uint8_t *old = take(2 * UNITS), *new = take(2 * UNITS), *output = take(2 * UNITS);
    for (size_t i = 0; i < UNITS; i++) {
        weft_unit_store(old, i, 2, i % 2 == 0 ? 0x3c00 : 0x3000);
    }
    memcpy(new, old, 2 * UNITS);
    for (size_t i = 1; i < UNITS; i += 2) {
        weights_change_one(&dice, CHANGE_ULP, 2, new, i);
    }
    work work = {WEFT_DTYPE_BF16, WEFT_PROFILE_SMALL, false, &sample, old, new, UNITS, 4000};
    count_sample(&work, &sample);
    round_trip(&self, &work);
    assert_true(self.payload.data[0] > 1);
    uint8_t *payload = take(self.payload.size + WEFT_BITS_SLACK);
    memcpy(payload, self.payload.data, self.payload.size);
    for (size_t places = 0; places < 3; places++) {
        uint8_t *base = take(2 * UNITS);
        memcpy(base, old, 2 * UNITS);
        weft_unit_store(base,
                        places == 0   ? 0
                        : places == 1 ? UNITS / 2 + 1
                                      : UNITS - 1,
                        2, places == 0 ? 0x3000 : 0x3c00);
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            assert_int_equal(
                unpack(&self, &work, (weft_cpu)level, payload, self.payload.size, base, output),
                WEFT_BASE_MISMATCH);
        }
        free(base);
    }
    free(payload);
    free(old);
    free(new);
    free(output);
    packer_close(&self);
}

static void test_no_memory(void **state) {
    (void)state;
    enum { UNITS = 9000 };
    dice dice = {8};
    uint8_t *old = take(2 * UNITS), *new = take(2 * UNITS), *output = take(2 * UNITS);
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, old, UNITS);
    memcpy(new, old, 2 * UNITS);
    weights_change(&dice, CHANGE_MIXED, 2, new, UNITS, 500000);
    const work work = {WEFT_DTYPE_BF16, WEFT_PROFILE_SMALL, false, NULL, old, new, UNITS, 4000};
    bool done = false;
    for (size_t nth = 1; !done; nth++) {
        packer self;
        packer_open(&self);
        faults_reset(&self.faults, nth);
        weft_status status = pack(&self, &work, weft_cpu_best());
        if (status == WEFT_OK) {
            weft_writer_u64(&self.payload, 0);
            status = weft_writer_failed(&self.payload)
                         ? WEFT_NO_MEMORY
                         : unpack(&self, &work, weft_cpu_best(), self.payload.data, self.payload.size - 8,
                                  old, output);
        }
        done = status == WEFT_OK;
        assert_true(done || status == WEFT_NO_MEMORY);
        packer_close(&self);
    }
    assert_memory_equal(output, new, 2 * UNITS);
    free(old);
    free(new);
    free(output);
}

/* ---- the choice ---- */

/* Diffs two states of one tensor, whose result is what the new state is, and tells the coding. */
static weft_coding coding_of(weft_context *context, const weft_view *base, const weft_view *next,
                             weft_profile profile) {
    bytes patch = {0};
    weft_sink sink = bytes_sink(&patch);
    weft_sums *made = NULL, *expected = NULL;
    weft_diff_options options = {.size = sizeof options, .profile = profile, .new_sums_out = &made};
    weft_diff_stats stats = {.size = sizeof stats};
    assert_int_equal(weft_diff(context, base, next, &options, &sink, &stats), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, next, &expected), WEFT_OK);
    weft_digest one = weft_sums_digest(made), other = weft_sums_digest(expected);
    assert_memory_equal(&one, &other, sizeof one);
    assert_memory_equal(&stats.result, &other, sizeof other);
    weft_source source = bytes_source(&patch);
    weft_patch *opened = NULL;
    weft_bucket_info info = {.size = sizeof info};
    assert_int_equal(weft_patch_open(context, &source, &opened), WEFT_OK);
    assert_int_equal(weft_patch_bucket(context, opened, 0, &info), WEFT_OK);
    assert_int_equal(info.changed, stats.changed);
    weft_patch_close(opened);
    weft_sums_destroy(made);
    weft_sums_destroy(expected);
    bytes_clear(&patch);
    return info.coding;
}

/* ---- Rice's code ---- */

/* Rungs up and down, and the lowest bits off and on, at every level as at the portable one. */
static void compare_rice(const weft_rice_kernels *kernels, dice *dice, size_t count, unsigned width) {
    const weft_rice_kernels *portable = &weft_rice_kernels_portable;
    size_t bytes = count * width, whole = (count + 63) / 64 * 64, slack = WEFT_RICE_SLACK;
    uint8_t *numbers = take(bytes + slack), *bits[2], *rest[2], *back = take(bytes + slack);
    size_t climbed[2];
    fill_numbers(dice, numbers, count, width);
    for (unsigned i = 0; i < 2; i++) {
        bits[i] = take((count + 7) / 8 + slack);
        rest[i] = take(bytes + slack);
        memcpy(rest[i], numbers, bytes);
        climbed[i] = (i == 0 ? portable : kernels)->climb(rest[i], count, width, bits[i], rest[i]);
    }
    assert_int_equal(climbed[0], climbed[1]);
    assert_memory_equal(bits[0], bits[1], (count + 7) / 8);
    assert_memory_equal(rest[0], rest[1], climbed[0] * width);
    assert_int_equal(kernels->ones(bits[0], (count + 7) / 8), climbed[0]);
    kernels->descend(bits[0], count, width, rest[0], back);
    assert_memory_equal(back, numbers, bytes);
    for (unsigned i = 0; i < 2; i++) {
        free(bits[i]);
        free(rest[i]);
    }
    for (unsigned low = 1; low < 8 * width; low++) {
        uint8_t *cut[2], *planes[2];
        for (unsigned i = 0; i < 2; i++) {
            cut[i] = take(whole * width);
            planes[i] = take(whole / 8 * low);
            memcpy(cut[i], numbers, bytes);
            memset(cut[i] + bytes, 0, (whole - count) * width);
            (i == 0 ? portable : kernels)->cut(cut[i], whole, width, low, planes[i]);
        }
        assert_memory_equal(cut[0], cut[1], whole * width);
        assert_memory_equal(planes[0], planes[1], whole / 8 * low);
        kernels->mend(cut[0], whole, width, low, planes[0]);
        assert_memory_equal(cut[0], numbers, bytes);
        for (unsigned i = 0; i < 2; i++) {
            free(cut[i]);
            free(planes[i]);
        }
    }
    free(numbers);
    free(back);
}

static void test_rungs(void **state) {
    (void)state;
    dice dice = {11};
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        for (unsigned width = 1; width <= 8; width *= 2) {
            for (size_t c = 0; c < COUNTS; c += test_stride()) {
                compare_rice(weft_rice_kernels_for((weft_cpu)level), &dice, counts[c], width);
            }
        }
    }
}

/* Numbers that turn over: what no encoder writes, decoders agree about. */
static void test_turning_over(void **state) {
    (void)state;
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        for (unsigned width = 1; width <= 8; width *= 2) {
            uint8_t bits[2 + WEFT_RICE_SLACK] = {0xff, 0x0f}, zeros[12 * 8] = {0};
            uint8_t rest[12 * 8 + WEFT_RICE_SLACK], numbers[12 * 8 + WEFT_RICE_SLACK];
            memset(rest, 0xff, sizeof rest);
            weft_rice_kernels_for((weft_cpu)level)->descend(bits, 12, width, rest, numbers);
            assert_memory_equal(numbers, zeros, 12 * width);
        }
    }
}

typedef struct ricer {
    weft_context *context;
    weft_rice_encoder encoder;
    weft_rice_decoder decoder;
    weft_writer payload;
} ricer;

/* Tiles of uneven sizes, as runs of tensors make them. */
static void rice_encode(ricer *self, weft_cpu level, weft_rice_form form, unsigned width,
                        const uint8_t *old, const uint8_t *new, size_t units) {
    self->payload.size = 0;
    weft_rice_encoder_begin(&self->encoder, weft_pack_kernels_for(level), weft_rice_kernels_for(level),
                            form, width, &self->payload);
    for (size_t done = 0, some; done < units; done += some) {
        some = done % 3 == 0 ? WEFT_RICE_BLOCK : 1000;
        some = some < units - done ? some : units - done;
        assert_int_equal(weft_rice_encoder_tile(&self->encoder, old + done * width, new + done *width, some,
                                                &self->payload),
                         WEFT_OK);
    }
    assert_int_equal(weft_rice_encoder_end(&self->encoder, &self->payload), WEFT_OK);
}

static weft_status rice_decode(ricer *self, weft_cpu level, unsigned width, const uint8_t *payload,
                               size_t size, const uint8_t *old, size_t units, uint8_t *new) {
    weft_status status =
        weft_rice_decoder_begin(&self->decoder, self->context, weft_pack_kernels_for(level),
                                weft_rice_kernels_for(level), width, payload, size, units);
    for (size_t done = 0, some; done < units && status == WEFT_OK; done += some) {
        some = done % 2 == 0 ? 999 : WEFT_RICE_BLOCK;
        some = some < units - done ? some : units - done;
        status = weft_rice_decoder_next(&self->decoder, old + done * width, some, new + done *width);
    }
    return status;
}

/* The same bytes at every level, and the same units from them; damage and cuts are refused or decoded to
 * something, and never leave their memory. */
static void rice_round_trip(ricer *self, dice *dice, weft_rice_form form, unsigned width,
                            const uint8_t *old, const uint8_t *new, size_t units) {
    uint8_t *payload = NULL, *output = take(units * width), *other = take(units * width);
    size_t size = 0;
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        rice_encode(self, (weft_cpu)level, form, width, old, new, units);
        if (payload == NULL) {
            size = self->payload.size;
            payload = take(size + WEFT_BITS_SLACK);
            memcpy(payload, self->payload.data, size);
        }
        assert_int_equal(self->payload.size, size);
        assert_memory_equal(self->payload.data, payload, size);
        assert_int_equal(rice_decode(self, (weft_cpu)level, width, payload, size, old, units, output),
                         WEFT_OK);
        assert_memory_equal(output, new, units * width);
        assert_int_equal(rice_decode(self, (weft_cpu)level, width, payload, size - 1, old, units, output),
                         WEFT_MALFORMED);
    }
    payload[WEFT_RICE_FRONT + dice_below(dice, size - WEFT_RICE_FRONT)] ^= 1 << dice_below(dice, 8);
    weft_status expected = rice_decode(self, WEFT_CPU_PORTABLE, width, payload, size, old, units, output);
    for (int level = WEFT_CPU_PORTABLE + 1; level <= (int)weft_cpu_best(); level++) {
        assert_int_equal(rice_decode(self, (weft_cpu)level, width, payload, size, old, units, other),
                         expected);
        assert_true(expected != WEFT_OK || memcmp(other, output, units * width) == 0);
    }
    free(payload);
    free(output);
    free(other);
}

static void test_rice(void **state) {
    (void)state;
    dice dice = {12};
    ricer *self = calloc(1, sizeof *self);
    assert_non_null(self);
    weft_context_options options = {.size = sizeof options, .threads = 1};
    assert_int_equal(weft_context_create(&options, &self->context), WEFT_OK);
    weft_writer_open(&self->payload, self->context);
    const unsigned densities[] = {0, 100, 10000, 60000, 300000, 900000, 1000000};
    static uint64_t sample[WEFT_PACK_SAMPLE];
    for (size_t t = 0; t < DTYPES; t++) {
        unsigned width = weft_dtype_width(packed_dtypes[t]);
        for (size_t round = 0; round < 7 * (COUNTS + 1); round += test_stride()) {
            size_t units = round / 7 < COUNTS ? counts[round / 7] : 20011, bytes = units * width;
            uint8_t *old = take(bytes), *new = take(bytes), *numbers = take(bytes);
            weights_fill(&dice, (weights_kind)(round % 3), packed_dtypes[t], old, units);
            memcpy(new, old, bytes);
            weights_change(&dice, (change_kind)(round / 3 % 3), width, new, units, densities[round % 7]);
            weft_pack_kernels_portable.fold_steps(old, new, units, width, numbers);
            size_t sampled = units < 4096 ? units : 4096;
            for (size_t i = 0; i < sampled; i++) {
                sample[i] = weft_unit_load(numbers, i, width);
            }
            weft_rice_form form;
            uint64_t cost = weft_rice_form_fit(&form, sample, sampled, width);
            rice_round_trip(self, &dice, form, width, old, new, units);
            /* the form costs what was said, but for bytes that are not full and groups */
            assert_true(units != sampled || self->payload.size <= (cost >> 19) + 3 + 18 + 64 * width);
            form = (weft_rice_form){(unsigned)dice_below(&dice, 8 * width),
                                    (unsigned)dice_below(&dice, WEFT_RICE_RUNGS + 1), round % 2 == 0};
            rice_round_trip(self, &dice, form, width, old, new, units);
            free(old);
            free(new);
            free(numbers);
        }
    }
    weft_writer_close(&self->payload);
    weft_context_destroy(self->context);
    free(self);
}

/* The count decides, whatever the units say that are looked at first: changes all over, only where these
 * are, and only where they are not. */
static void test_choice(void **state) {
    (void)state;
    enum { UNITS = 32768, PERIOD = 2048, PICK = 256 };
    weft_context_options options = {.size = sizeof options, .threads = 1};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    dice dice = {9};
    for (unsigned kind = 0; kind < 6; kind++) {
        bool is_small = kind >= 3;
        size_t most = UNITS / 12;
        weft_profile profile = is_small ? WEFT_PROFILE_SMALL : WEFT_PROFILE_FAST;
        weft_coding dense = is_small ? WEFT_CODING_PACKED_STEPS : WEFT_CODING_RICE;
        for (unsigned more = 0; more < 2; more++) {
            model base, next;
            model_open(&base, context);
            model_open(&next, context);
            uint16_t *old = model_add(&base, "w", WEFT_DTYPE_BF16, UNITS, 0);
            uint16_t *new = model_add(&next, "w", WEFT_DTYPE_BF16, UNITS, 0);
            weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, old, UNITS);
            memcpy(new, old, 2 * UNITS);
            for (size_t i = 0; i < most; i++) {
                size_t picked = i / PICK * PERIOD + i % PICK;
                size_t place = kind % 3 == 0 ? 11 * i : picked % UNITS + (kind % 3 == 2 ? 1000 : 0);
                new[place]++;
            }
            new[UNITS - 1] = (uint16_t)(old[UNITS - 1] + more);
            model_show(&base);
            model_show(&next);
            assert_int_equal(coding_of(context, base.view, next.view, profile), more == 1 ? dense
                                                                                : is_small
                                                                                    ? WEFT_CODING_SMALL
                                                                                    : WEFT_CODING_FAST);
            model_close(&base);
            model_close(&next);
        }
    }
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folding),   cmocka_unit_test(test_splitting),
        cmocka_unit_test(test_sorting),   cmocka_unit_test(test_wide),
        cmocka_unit_test(test_units),     cmocka_unit_test(test_every_pattern),
        cmocka_unit_test(test_sizes),     cmocka_unit_test(test_another_base),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_rungs),     cmocka_unit_test(test_turning_over),
        cmocka_unit_test(test_rice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
