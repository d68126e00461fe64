/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of every instruction set that this machine runs, against loops written here: comparing
 * weights, comparing with masters, sorting into classes, ranks and their inverse, bits to positions. Inputs
 * end where their heap blocks end, at odd addresses too; what lies behind the allowed slack of an output
 * must survive.
 */
#include "../../lib/code/entries.h"
#include "../../lib/patch/bucket/kernels.h"
#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD_ENTRIES = 16, GUARD_BYTE = 0x5a };

/* `bytes` bytes at an address that is `offset` past an aligned one, and nothing behind them. */
typedef struct block {
    uint8_t *start;
    uint8_t *data;
} block;

static block take(size_t bytes, size_t offset) {
    block block;
    block.start = malloc(bytes + offset > 0 ? bytes + offset : 1);
    assert_non_null(block.start);
    block.data = block.start + offset;
    return block;
}

static uint16_t weight_at(const uint8_t *weights, size_t index) {
    uint16_t value;
    memcpy(&value, weights + 2 * index, sizeof value);
    return value;
}

static void set_weight(uint8_t *weights, size_t index, uint16_t value) {
    memcpy(weights + 2 * index, &value, sizeof value);
}

static const uint16_t edge_weights[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0x7f80,
                                        0xff80, 0x7f81, 0x7fc0, 0xffc0, 0x7fff, 0xffff, 0x3f80, 0xbf80};

static void fill_weights(dice *dice, uint8_t *weights, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = dice_next(dice);
        set_weight(weights, i, bits % 4 == 0 ? edge_weights[bits / 4 % 16] : (uint16_t)(bits >> 16));
    }
}

static const size_t long_counts[] = {511, 512, 513, 767, 1000, 2048, 4032, 4095, WEFT_TILE};
enum { SHORT_COUNTS = 301, COUNTS = SHORT_COUNTS + 9 };

static size_t count_at(size_t i) {
    return i < SHORT_COUNTS ? i : long_counts[i - SHORT_COUNTS];
}

static const unsigned densities[] = {0, 3000, 30000, 500000, 1000000};

/* An array of positions with room for `count`, the slack, and a guard. */
typedef struct output {
    uint32_t *entries;
    size_t room;
} output;

static output open_output(size_t count) {
    output output = {NULL, count + WEFT_KERNEL_SLACK};
    output.entries = malloc((output.room + GUARD_ENTRIES) * sizeof *output.entries);
    assert_non_null(output.entries);
    memset(output.entries, GUARD_BYTE, (output.room + GUARD_ENTRIES) * sizeof *output.entries);
    return output;
}

static void close_output(output *output) {
    const uint8_t *guard = (const uint8_t *)(output->entries + output->room);
    for (size_t i = 0; i < GUARD_ENTRIES * sizeof *output->entries; i++) {
        assert_int_equal(guard[i], GUARD_BYTE);
    }
    free(output->entries);
}

static void expect_positions(const output *output, size_t found, const uint32_t *expected, size_t count) {
    assert_int_equal(found, count);
    assert_memory_equal(output->entries, expected, count * sizeof *expected);
}

/* ---- diff ---- */

static void compare_diff(weft_cpu level, const uint8_t *base, const uint8_t *next, size_t count,
                         unsigned width, uint32_t first) {
    static uint32_t expected[WEFT_TILE];
    size_t changed = 0;
    for (size_t i = 0; i < count; i++) {
        if (memcmp(base + width * i, next + width * i, width) != 0) {
            expected[changed++] = first + (uint32_t)i;
        }
    }
    output output = open_output(changed);
    size_t found = weft_patch_kernels_for(level)->diff(base, next, count, width, first, output.entries);
    expect_positions(&output, found, expected, changed);
    close_output(&output);
}

static void test_diff(void **state) {
    (void)state;
    dice dice = {1};
    const uint32_t firsts[] = {0, 77, UINT32_MAX - WEFT_TILE};
    for (size_t c = 0; c < COUNTS; c++) {
        size_t count = count_at(c);
        for (size_t d = 0; d < 5; d++) {
            size_t round = 5 * c + d;
            for (unsigned width = 1; width <= 8; width *= 2) {
                block base = take(width * count, round % 3);
                block next = take(width * count, round % 5);
                dice_fill(&dice, base.data, width * count);
                memcpy(next.data, base.data, width * count);
                weights_change(&dice, CHANGE_MIXED, width, next.data, count, densities[d]);
                for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
                    compare_diff((weft_cpu)level, base.data, next.data, count, width, firsts[round % 3]);
                }
                free(base.start);
                free(next.start);
            }
        }
    }
}

/* Every single position of a tile, alone and left out, so that no lane is forgotten or moved. */
/* Where a level proves on the way: the same positions, and the sum that two passes give. */
static void test_diff_proven(void **state) {
    (void)state;
    dice dice = {13};
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const weft_patch_kernels *kernels = weft_patch_kernels_for((weft_cpu)level);
        const weft_digest_kernels *digests = weft_digest_kernels_for((weft_cpu)level);
        for (size_t i = 0; kernels->diff_proven != NULL && i < COUNTS; i++) {
            size_t count = count_at(i);
            block base = take(2 * count, i % 5), next = take(2 * count, i % 3);
            uint32_t positions[2][WEFT_TILE + WEFT_KERNEL_SLACK];
            uint64_t word = dice_next(&dice) >> 20;
            fill_weights(&dice, base.data, count);
            memcpy(next.data, base.data, 2 * count);
            for (size_t j = 0; j < count; j++) {
                if (dice_next(&dice) % (1u << i % 9) == 0) {
                    set_weight(next.data, j, (uint16_t)dice_next(&dice));
                }
            }
            weft_sum moved, expected = digests->sum(next.data, 2 * count, word);
            weft_sum_subtract(&expected, digests->sum(base.data, 2 * count, word));
            size_t found =
                kernels->diff_proven(base.data, next.data, count, 77, positions[0], word, &moved);
            assert_int_equal(found, kernels->diff(base.data, next.data, count, 2, 77, positions[1]));
            assert_memory_equal(positions[0], positions[1], found * sizeof **positions);
            assert_true(weft_sum_equal(moved, expected));
            free(base.start);
            free(next.start);
        }
    }
}

static void test_diff_every_lane(void **state) {
    (void)state;
    dice dice = {2};
    enum { COUNT = 700 };
    block base = take(2 * COUNT, 1);
    block next = take(2 * COUNT, 0);
    fill_weights(&dice, base.data, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        memcpy(next.data, base.data, 2 * COUNT);
        next.data[2 * i + i % 2] ^= (uint8_t)(1u << i % 8);
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            compare_diff((weft_cpu)level, base.data, next.data, COUNT, 2, 5);
        }
        for (size_t j = 0; j < COUNT; j++) {
            set_weight(next.data, j, (uint16_t)(weight_at(base.data, j) ^ (i == j ? 0 : 0x8000)));
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            compare_diff((weft_cpu)level, base.data, next.data, COUNT, 2, 5);
        }
    }
    free(base.start);
    free(next.start);
}

/* ---- diff_masters ---- */

static const uint32_t edge_masters[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00007fff, 0x00008000, 0x00008001, 0x00018000,
    0x007fffff, 0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000, 0x3f817fff, 0x7f7f7fff, 0x7f7f8000,
    0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xff800001, 0x7f80ffff, 0x7fc00000,
    0xffc00000, 0x7fffffff, 0xffffffff, 0x7fbfffff, 0x00800000, 0x807f8000, 0x807f7fff, 0x42c88000};

static uint32_t master_at(const uint8_t *masters, size_t index) {
    uint32_t value;
    memcpy(&value, masters + 4 * index, sizeof value);
    return value;
}

/* To nearest even, by comparing the distances to both neighbours; every NaN becomes the one. */
static uint16_t nearest_bf16(uint32_t master) {
    if ((master & 0x7f800000) == 0x7f800000) {
        return (master & 0x007fffff) == 0 ? (uint16_t)(master >> 16) : 0x7fc0;
    }
    uint32_t below = master >> 16;
    uint32_t distance = master - (below << 16);
    if (distance > 0x10000 - distance || (distance == 0x8000 && below % 2 == 1)) {
        below++;
    }
    return (uint16_t)below;
}

static void compare_masters(weft_cpu level, const uint8_t *base, const uint8_t *masters, size_t count,
                            uint32_t first) {
    static uint32_t expected[WEFT_TILE];
    size_t changed = 0;
    for (size_t i = 0; i < count; i++) {
        if (weight_at(base, i) != nearest_bf16(master_at(masters, i))) {
            expected[changed++] = first + (uint32_t)i;
        }
    }
    output output = open_output(changed);
    size_t found = weft_patch_kernels_for(level)->diff_masters(base, masters, count, first, output.entries);
    expect_positions(&output, found, expected, changed);
    close_output(&output);
}

static void test_diff_masters(void **state) {
    (void)state;
    dice dice = {3};
    for (size_t c = 0; c < COUNTS; c++) {
        size_t count = count_at(c);
        for (size_t d = 0; d < 5; d++) {
            size_t round = 5 * c + d;
            block base = take(2 * count, round % 3);
            block masters = take(4 * count, round % 5);
            for (size_t i = 0; i < count; i++) {
                uint64_t bits = dice_next(&dice);
                uint32_t master = bits % 4 == 0 ? edge_masters[bits / 4 % 32] : (uint32_t)(bits >> 16);
                memcpy(masters.data + 4 * i, &master, sizeof master);
                set_weight(base.data, i, nearest_bf16(master));
            }
            weights_change(&dice, CHANGE_MIXED, 2, base.data, count, densities[d]);
            for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
                compare_masters((weft_cpu)level, base.data, masters.data, count, (uint32_t)(round * 1000));
            }
            free(base.start);
            free(masters.start);
        }
    }
}

/* Both sides of every rounding boundary: all upper halves, with the low halves around the tie. */
static void test_masters_at_boundaries(void **state) {
    (void)state;
    const uint16_t lows[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    static uint8_t base[2 * WEFT_TILE];
    static uint8_t masters[4 * WEFT_TILE];
    for (uint32_t upper = 0; upper < 65536; upper += WEFT_TILE) {
        for (size_t l = 0; l < 6; l++) {
            for (size_t i = 0; i < WEFT_TILE; i++) {
                uint32_t master = (upper + (uint32_t)i) << 16 | lows[l];
                memcpy(masters + 4 * i, &master, sizeof master);
                set_weight(base, i, (uint16_t)(nearest_bf16(master) + (i % 7 == 0)));
            }
            for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
                compare_masters((weft_cpu)level, base, masters, WEFT_TILE, 0);
            }
        }
    }
}

/* ---- classes ---- */

/* How weights are sorted: by exponent, between cuts. */
typedef struct sorting {
    unsigned shift;
    unsigned classes;
    uint8_t cuts[WEFT_CLASS_MAX];
} sorting;

static sorting draw_sorting(dice *dice, unsigned shift, unsigned classes) {
    sorting sorting = {shift, classes, {0}};
    unsigned highest = 0x7fffu >> shift;
    for (unsigned c = 1; c < classes; c++) {
        unsigned room = highest - (classes - 1 - c) - sorting.cuts[c - 1];
        sorting.cuts[c] = (uint8_t)(sorting.cuts[c - 1] + 1 + dice_below(dice, room / 2 + 1) % room);
    }
    return sorting;
}

static unsigned class_of_weight(uint16_t weight, const sorting *sorting) {
    unsigned c = sorting->classes - 1;
    while (c > 0 && (weight & 0x7fff) < sorting->cuts[c] << sorting->shift) {
        c--;
    }
    return c;
}

static void expect_tile(const weft_tile *tile, const uint8_t *weights, size_t count,
                        const sorting *sorting) {
    for (unsigned c = 0; c < sorting->classes; c++) {
        uint32_t members = 0;
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
            assert_int_equal(tile->before[c][b], members);
            uint64_t mask = 0;
            for (size_t i = 64 * b; i < 64 * b + 64 && i < count; i++) {
                bool member = class_of_weight(weight_at(weights, i), sorting) == c;
                mask |= (uint64_t)member << (i - 64 * b);
                members += member;
            }
            assert_true(tile->masks[c][b] == mask);
        }
        assert_int_equal(tile->counts[c], members);
    }
}

/* Weights that stand just below, on and above the thresholds, besides any. */
static void fill_around(dice *dice, uint8_t *weights, size_t count, const sorting *sorting) {
    fill_weights(dice, weights, count);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = dice_next(dice);
        if (bits % 3 == 0) {
            unsigned cut = sorting->cuts[bits / 3 % sorting->classes];
            uint16_t near = (uint16_t)((cut << sorting->shift) + bits / 32 % 3);
            set_weight(weights, i, (uint16_t)((near == 0 ? 0 : near - 1) | (bits >> 40 & 1) << 15));
        }
    }
}

static void fill_classes(uint8_t class_of_exponent[256], const sorting *sorting) {
    for (unsigned e = 0; e <= 0x7fffu >> sorting->shift; e++) {
        class_of_exponent[e] = (uint8_t)class_of_weight((uint16_t)(e << sorting->shift), sorting);
    }
}

/* Some weights of the tile as changes: in their classes, with the members of a class between them. The
 * classes have a past. */
static void expect_sorted(weft_cpu level, const weft_tile *tile, const uint8_t *weights, size_t count,
                          const sorting *sorting, uint32_t linear, dice *dice) {
    static uint64_t items[2][WEFT_CLASS_MAX][WEFT_TILE];
    static uint32_t positions[WEFT_TILE];
    static uint32_t values[WEFT_TILE];
    static uint16_t olds[WEFT_TILE];
    static uint8_t class_of_exponent[256];
    weft_sorting state = {.classes = sorting->classes,
                          .class_of_exponent = class_of_exponent,
                          .shift = sorting->shift,
                          .exponents = WEFT_ITEM_STEPS};
    uint32_t passed[WEFT_CLASS_MAX];
    size_t changed[WEFT_CLASS_MAX] = {0};
    unsigned keep = 1 + dice_below(dice, 100);
    size_t found = 0;
    fill_classes(class_of_exponent, sorting);
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        passed[c] = state.offsets[c] = dice_below(dice, UINT32_MAX - WEFT_TILE);
        state.ends[c] = items[1][c];
    }
    for (size_t i = 0; i < count; i++) {
        unsigned c = class_of_weight(weight_at(weights, i), sorting);
        if (dice_below(dice, 100) < keep) {
            positions[found] = linear + (uint32_t)i;
            values[found] = (uint32_t)dice_next(dice);
            items[0][c][changed[c]++] = (uint64_t)values[found] << 32 | passed[c];
            olds[found++] = weight_at(weights, i);
            passed[c] = 0;
        } else {
            passed[c]++;
        }
    }
    weft_entries entries = {found, positions, values, olds};
    weft_entry_kernels_for(level)->sort(tile, &entries, linear, &state);
    for (unsigned c = 0; c < sorting->classes; c++) {
        assert_int_equal(state.ends[c] - items[1][c], changed[c]);
        assert_memory_equal(items[1][c], items[0][c], changed[c] * sizeof(uint64_t));
        assert_int_equal((uint32_t)(state.offsets[c] + tile->counts[c]), passed[c]);
    }
}

static void expect_selection(const weft_tile_kernels *kernels, const weft_tile *tile, unsigned class_index,
                             const uint16_t *members, size_t member_count, unsigned keep, uint32_t first,
                             dice *dice) {
    static uint32_t ranks[WEFT_TILE + 1];
    static uint16_t expected[WEFT_TILE];
    size_t count = 0;
    for (size_t i = 0; i < member_count; i++) {
        if (dice_below(dice, 100) < keep) {
            ranks[count] = first + (uint32_t)i;
            expected[count++] = members[i];
        }
    }
    size_t room = count + WEFT_KERNEL_SLACK;
    uint16_t *indices = malloc((room + GUARD_ENTRIES) * sizeof *indices);
    assert_non_null(indices);
    memset(indices, GUARD_BYTE, (room + GUARD_ENTRIES) * sizeof *indices);
    /* the first rank past the tile ends the search */
    ranks[count] = first + (uint32_t)member_count;
    assert_int_equal(kernels->select(tile, class_index, ranks, count + 1, first, indices), count);
    assert_memory_equal(indices, expected, count * sizeof *expected);
    for (size_t i = 0; i < GUARD_ENTRIES; i++) {
        assert_int_equal(indices[room + i], GUARD_BYTE * 0x0101);
    }
    free(indices);
}

static void expect_selections(const weft_tile_kernels *kernels, const weft_tile *tile,
                              const uint8_t *weights, size_t count, const sorting *sorting, dice *dice) {
    static uint16_t members[WEFT_TILE];
    const unsigned keeps[] = {0, 2, 40, 100};
    for (unsigned c = 0; c < sorting->classes; c++) {
        size_t member_count = 0;
        for (size_t i = 0; i < count; i++) {
            if (class_of_weight(weight_at(weights, i), sorting) == c) {
                members[member_count++] = (uint16_t)i;
            }
        }
        for (size_t k = 0; k < 4; k++) {
            uint32_t first = k == 0 ? 0 : (uint32_t)dice_below(dice, UINT32_MAX - WEFT_TILE);
            expect_selection(kernels, tile, c, members, member_count, keeps[k], first, dice);
        }
    }
}

static void test_classes(void **state) {
    (void)state;
    dice dice = {4};
    for (size_t round = 0; round < COUNTS; round++) {
        size_t count = count_at(round);
        const unsigned shifts[] = {7, 10, 7, 8, 11};
        sorting sorting = draw_sorting(&dice, shifts[round % 5], 1 + (unsigned)(round % WEFT_CLASS_MAX));
        block weights = take(2 * count, round % 3);
        fill_around(&dice, weights.data, count, &sorting);
        uint32_t linear = (uint32_t)dice_below(&dice, UINT32_MAX - WEFT_TILE);
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            const weft_tile_kernels *kernels = weft_tile_kernels_for((weft_cpu)level);
            weft_tile *tile = malloc(sizeof *tile);
            uint8_t *cuts = malloc(sorting.classes);
            assert_non_null(tile);
            assert_non_null(cuts);
            memset(tile, 0xa5, sizeof *tile);
            memcpy(cuts, sorting.cuts, sorting.classes);
            kernels->classify(weights.data, count, sorting.shift, cuts, sorting.classes, tile);
            expect_tile(tile, weights.data, count, &sorting);
            expect_sorted((weft_cpu)level, tile, weights.data, count, &sorting, linear, &dice);
            expect_selections(kernels, tile, weights.data, count, &sorting, &dice);
            free(cuts);
            free(tile);
        }
        free(weights.start);
    }
}

/* Every weight there is, between cuts at every exponent. */
static void test_every_weight_is_classified(void **state) {
    (void)state;
    static uint8_t weights[2 * WEFT_TILE];
    for (unsigned cut = 1; cut < 256; cut++) {
        const sorting sorting = {7, 2, {0, (uint8_t)cut}};
        for (size_t i = 0; i < WEFT_TILE; i++) {
            set_weight(weights, i, (uint16_t)(16 * i + cut % 16));
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            weft_tile tile;
            weft_tile_kernels_for((weft_cpu)level)
                ->classify(weights, WEFT_TILE, sorting.shift, sorting.cuts, 2, &tile);
            expect_tile(&tile, weights, WEFT_TILE, &sorting);
        }
    }
}

/* Classes that fill whole blocks or none, so that empty blocks lie before, between and behind. */
static void test_selection_over_empty_blocks(void **state) {
    (void)state;
    dice dice = {5};
    const sorting sorting = {7, 2, {0, 0x7f}};
    static uint8_t weights[2 * WEFT_TILE];
    for (unsigned round = 0; round < 200; round++) {
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
            uint64_t high = dice_below(&dice, 4) == 0 ? dice_next(&dice) : 0;
            for (size_t i = 0; i < 64; i++) {
                set_weight(weights, 64 * b + i, high >> i & 1 ? 0x4000 : 0x3000);
            }
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            const weft_tile_kernels *kernels = weft_tile_kernels_for((weft_cpu)level);
            weft_tile tile;
            kernels->classify(weights, WEFT_TILE, sorting.shift, sorting.cuts, 2, &tile);
            expect_selections(kernels, &tile, weights, WEFT_TILE, &sorting, &dice);
        }
    }
}

/* ---- the fast coding ---- */

/* Bit by bit, from its description. */
typedef struct plain_bits {
    uint8_t *bytes;
    size_t count;
} plain_bits;

static void plain_put(plain_bits *bits, uint64_t value, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        bits->bytes[bits->count / 8] |= (uint8_t)((value >> i & 1) << bits->count % 8);
        bits->count++;
    }
}

static void plain_fast(plain_bits *bits, uint32_t gap, uint16_t step, unsigned k) {
    uint32_t quotient = gap >> k;
    unsigned magnitude = step < 0x8000 ? step : 0x10000u - step, length = 0;
    while (magnitude >> (length + 1) != 0) {
        length++;
    }
    plain_put(bits, 0xffffff, quotient < WEFT_FAST_ESCAPE ? quotient : WEFT_FAST_ESCAPE);
    plain_put(bits, (uint64_t)gap << (quotient < WEFT_FAST_ESCAPE),
              quotient < WEFT_FAST_ESCAPE ? k + 1 : 32);
    plain_put(bits, 0xffff, length);
    plain_put(bits, 0, 1);
    plain_put(bits, magnitude, length);
    plain_put(bits, step >> 15, 1);
}

static void expect_fast(weft_cpu level, const weft_changes *changes, unsigned k) {
    size_t room = 14 * changes->count + 16;
    plain_bits expected = {calloc(room, 1), 0};
    uint8_t *written = malloc(room);
    weft_bits_writer bits = {written, 0, 0};
    uint32_t next = 0;
    for (size_t i = 0; i < changes->count; i++) {
        uint16_t step =
            (uint16_t)(((const uint16_t *)changes->news)[i] - ((const uint16_t *)changes->olds)[i]);
        plain_fast(&expected, changes->positions[i] - next, step, k);
        next = changes->positions[i] + 1;
    }
    weft_patch_kernels_for(level)->encode_fast(&bits, changes, k);
    size_t size = (size_t)(weft_bits_finish(&bits) - written);
    assert_int_equal(size, (expected.count + 7) / 8);
    assert_memory_equal(written, expected.bytes, size);
    free(written);
    free(expected.bytes);
}

/* Steps of every length among many of one, gaps that escape and gaps that do not, in blocks of exact size.
 */
static void test_fast_is_written(void **state) {
    (void)state;
    dice dice = {11};
    for (size_t round = 0; round < 3 * SHORT_COUNTS; round++) {
        size_t count = round % SHORT_COUNTS;
        unsigned k = (unsigned)(dice_next(&dice) % 13);
        uint32_t *positions = malloc((count + 1) * sizeof *positions);
        uint16_t *olds = malloc((count + 1) * sizeof *olds), *news = malloc((count + 1) * sizeof *news);
        uint32_t next = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t bits = dice_next(&dice);
            uint32_t limit = bits % 64 == 0 ? 40u << k : 3u << k;
            uint16_t step =
                (uint16_t)(bits % 9 == 0 ? (1 + (bits >> 32) % 0xffff) >> (bits >> 48) % 16 : 1);
            positions[i] = next + (uint32_t)(bits >> 8) % limit;
            next = positions[i] + 1;
            olds[i] = (uint16_t)(bits >> 40);
            step = step == 0 ? 0x8000 : step;
            news[i] = (uint16_t)(bits >> 20 & 1 ? olds[i] + step : olds[i] - step);
        }
        const weft_changes changes = {.width = 2,
                                      .count = count,
                                      .capacity = count,
                                      .positions = positions,
                                      .olds = olds,
                                      .news = news};
        for (int level = 0; level <= (int)weft_cpu_best(); level++) {
            expect_fast((weft_cpu)level, &changes, k);
        }
        free(positions);
        free(olds);
        free(news);
    }
}

static void test_levels_differ(void **state) {
    (void)state;
    assert_ptr_equal(weft_patch_kernels_for(WEFT_CPU_PORTABLE), &weft_patch_kernels_portable);
#ifdef WEFT_X86
    assert_ptr_equal(weft_patch_kernels_for(WEFT_CPU_AVX2), &weft_patch_kernels_avx2);
    assert_ptr_equal(weft_patch_kernels_for(WEFT_CPU_AVX512), &weft_patch_kernels_avx512);
#endif
#ifdef WEFT_ARM
    assert_ptr_equal(weft_patch_kernels_for(WEFT_CPU_NEON), &weft_patch_kernels_neon);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diff),
        cmocka_unit_test(test_diff_proven),
        cmocka_unit_test(test_diff_every_lane),
        cmocka_unit_test(test_diff_masters),
        cmocka_unit_test(test_masters_at_boundaries),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_every_weight_is_classified),
        cmocka_unit_test(test_selection_over_empty_blocks),
        cmocka_unit_test(test_fast_is_written),
        cmocka_unit_test(test_levels_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
