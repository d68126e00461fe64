/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_avx512.c: the kernels of tile.h for AVX-512 with VBMI, GFNI and VPOPCNTDQ: the masks and counts of
 * all classes of 64 weights at once.
 */
#include "tile.h"

#include "lanes.h"

/* Asks for line `line` of what is ahead, where there is such. */
static inline void ask(const uintptr_t ahead[2], size_t line) {
    weft_cpu_fetch(ahead[0] + 64 * line);
    weft_cpu_fetch(ahead[1] + 64 * line);
}

/* Lines of what is ahead that are asked for with each group of eight blocks. */
enum { GROUP = 8, ASKED = WEFT_TILE_AHEAD / 64 * GROUP / WEFT_TILE_BLOCKS };

static const uint8_t counting[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};

/* Bit c of entry e is set if exponents whose highest eight bits are e belong to class c. Cuts are
 * exponents, so that none is lost when they are shifted up. */
typedef struct class_bits {
    __m512i entries[4];
} class_bits;

static class_bits class_bits_of(unsigned shift, const uint8_t *cuts, unsigned classes) {
    class_bits table;
    __m512i exponents = _mm512_loadu_si512(counting);
    for (unsigned i = 0; i < 4; i++) {
        table.entries[i] = _mm512_set1_epi8(1);
        for (unsigned c = 1; c < classes; c++) {
            __m512i first = _mm512_set1_epi8((char)(cuts[c] << (shift - 7)));
            __mmask64 from = _mm512_cmpge_epu8_mask(exponents, first);
            table.entries[i] =
                _mm512_mask_mov_epi8(table.entries[i], from, _mm512_set1_epi8((char)(1 << c)));
        }
        exponents = _mm512_add_epi8(exponents, _mm512_set1_epi8(64));
    }
    return table;
}

/* What order the bytes of 64 weights go through. */
typedef struct byte_orders {
    __m512i high;   /* the higher bytes of two registers of words, in groups of eight from the last to the
                       first */
    __m512i across; /* byte i of group j goes to byte j of group i */
} byte_orders;

static byte_orders byte_orders_make(void) {
    __m512i i = _mm512_loadu_si512(counting), seven = _mm512_set1_epi8(7);
    __m512i last_first = _mm512_xor_si512(i, seven);
    __m512i group = _mm512_and_si512(_mm512_srli_epi16(i, 3), seven);
    return (byte_orders){
        .high = _mm512_or_si512(_mm512_add_epi8(last_first, last_first), _mm512_set1_epi8(1)),
        .across = _mm512_or_si512(_mm512_slli_epi16(_mm512_and_si512(i, seven), 3), group),
    };
}

/* The masks of all classes, one in each lane, of a block of 64 weights. A byte of class bits for each
 * weight is a matrix of 64 rows and 8 columns; the masks are its columns. Eight rows at a time it is turned
 * round by a product with the bits of one, of which gf2p8affineqb makes eight. */
static inline __m512i block_masks(__m512i low, __m512i high, const class_bits *table,
                                  const byte_orders *orders) {
    const __m512i ones = _mm512_set1_epi64((long long)0x8040201008040201u);
    __m512i e =
        _mm512_permutex2var_epi8(_mm512_slli_epi16(low, 1), orders->high, _mm512_slli_epi16(high, 1));
    __m512i bits = _mm512_permutex2var_epi8(table->entries[0], e, table->entries[1]);
    __m512i upper = _mm512_permutex2var_epi8(table->entries[2], e, table->entries[3]);
    bits = _mm512_mask_mov_epi8(bits, _mm512_movepi8_mask(e), upper);
    return _mm512_permutexvar_epi8(orders->across, _mm512_gf2p8affine_epi64_epi8(ones, bits, 0));
}

/* Lane c of row b becomes lane b of row c. */
static inline void turn_round(__m512i rows[GROUP]) {
    __m512i pairs[GROUP], fours[GROUP];
    for (unsigned i = 0; i < GROUP; i += 2) {
        pairs[i] = _mm512_unpacklo_epi64(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi64(rows[i], rows[i + 1]);
    }
    for (unsigned i = 0; i < GROUP; i += 4) {
        for (unsigned j = 0; j < 2; j++) {
            fours[i + j] = _mm512_shuffle_i64x2(pairs[i + j], pairs[i + j + 2], 0x88);
            fours[i + j + 2] = _mm512_shuffle_i64x2(pairs[i + j], pairs[i + j + 2], 0xdd);
        }
    }
    for (unsigned j = 0; j < 4; j++) {
        rows[j] = _mm512_shuffle_i64x2(fours[j], fours[j + 4], 0x88);
        rows[j + 4] = _mm512_shuffle_i64x2(fours[j], fours[j + 4], 0xdd);
    }
}

/* Stores the members before each of eight blocks: four words in each lane of `first` and of `last`. */
static inline void store_before(weft_tile *tile, size_t block, __m512i first, __m512i last) {
    __m512i even = _mm512_unpacklo_epi64(first, last), odd = _mm512_unpackhi_epi64(first, last);
    __m128i parts[WEFT_CLASS_MAX] = {
        _mm512_castsi512_si128(even),       _mm512_castsi512_si128(odd),
        _mm512_extracti64x2_epi64(even, 1), _mm512_extracti64x2_epi64(odd, 1),
        _mm512_extracti64x2_epi64(even, 2), _mm512_extracti64x2_epi64(odd, 2),
        _mm512_extracti64x2_epi64(even, 3), _mm512_extracti64x2_epi64(odd, 3),
    };
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        _mm_storeu_si128((__m128i *)(void *)(tile->before[c] + block), parts[c]);
    }
}

/* Stores the masks of eight blocks, and what was counted before each; returns the members so far. */
static inline __m512i put_group(weft_tile *tile, size_t block, __m512i rows[GROUP], __m512i members) {
    __m512i before[2];
    for (unsigned half = 0; half < 2; half++) {
        before[half] = members;
        members = _mm512_add_epi64(members, _mm512_popcnt_epi64(rows[4 * half]));
        for (unsigned i = 1; i < 4; i++) {
            before[half] = _mm512_or_si512(before[half], _mm512_slli_epi64(members, 16 * i));
            members = _mm512_add_epi64(members, _mm512_popcnt_epi64(rows[4 * half + i]));
        }
    }
    store_before(tile, block, before[0], before[1]);
    turn_round(rows);
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        _mm512_storeu_si512(tile->masks[c] + block, rows[c]);
    }
    return members;
}

/* The last block may be short, and those past it are empty. */
static __m512i last_block(const uint8_t *weights, size_t left, const class_bits *table,
                          const byte_orders *orders) {
    uint64_t valid = weft_lanes_left(left);
    __m512i low = _mm512_maskz_loadu_epi16(weft_lanes_low(valid), weights);
    __m512i high = _mm512_maskz_loadu_epi16(weft_lanes_high(valid), weights + 64);
    return _mm512_and_si512(block_masks(low, high, table, orders), _mm512_set1_epi64((long long)valid));
}

static void classify_avx512(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                            unsigned classes, weft_tile *tile) {
    /* nothing ahead: what is here already */
    const uintptr_t ahead[2] = {tile->ahead[0] != 0 ? tile->ahead[0] : (uintptr_t)weights,
                                tile->ahead[1] != 0 ? tile->ahead[1] : (uintptr_t)weights};
    const class_bits table = class_bits_of(shift, cuts, classes);
    const byte_orders orders = byte_orders_make();
    const uint8_t *bytes = weights;
    __m512i members = _mm512_setzero_si512(), rows[GROUP];
    size_t b = 0;
    for (; 64 * (b + GROUP) <= count; b += GROUP) {
        for (unsigned i = 0; i < GROUP; i++) {
            const uint8_t *block = bytes + 128 * (b + i);
            ask(ahead, b / GROUP * ASKED + i);
            rows[i] =
                block_masks(_mm512_loadu_si512(block), _mm512_loadu_si512(block + 64), &table, &orders);
        }
        for (unsigned i = GROUP; i < ASKED; i++) {
            ask(ahead, b / GROUP * ASKED + i);
        }
        members = put_group(tile, b, rows, members);
    }
    for (; b < WEFT_TILE_BLOCKS; b += GROUP) {
        for (unsigned i = 0; i < GROUP; i++) {
            size_t begin = 64 * (b + i), left = begin < count ? count - begin : 0;
            rows[i] =
                left > 0 ? last_block(bytes + 2 * begin, left, &table, &orders) : _mm512_setzero_si512();
        }
        members = put_group(tile, b, rows, members);
    }
    _mm256_storeu_si256((__m256i *)(void *)tile->counts, _mm512_cvtepi64_epi32(members));
}

/* The block of a rank is the last one that starts at or before it: two compares against all 64 starts,
 * with no branch to mispredict. Blocks past the last member start at the member count and never match. */
static size_t select_avx512(const weft_tile *tile, unsigned class_index, const uint32_t *ranks,
                            size_t count, uint32_t first, uint16_t *indices) {
    const uint16_t *before = tile->before[class_index];
    const uint64_t *masks = tile->masks[class_index];
    uint32_t members = tile->counts[class_index];
    __m512i before_low = _mm512_loadu_si512(before);
    __m512i before_high = _mm512_loadu_si512(before + 32);
    size_t i = 0;
    for (; i < count && ranks[i] - first < members; i++) {
        uint32_t rank = ranks[i] - first;
        __m512i wanted = _mm512_set1_epi16((short)rank);
        uint64_t starts = (uint64_t)_mm512_cmple_epu16_mask(before_low, wanted) |
                          (uint64_t)_mm512_cmple_epu16_mask(before_high, wanted) << 32;
        unsigned block = 63u - (unsigned)__builtin_clzll(starts);
        uint64_t bit = _pdep_u64((uint64_t)1 << (rank - before[block]), masks[block]);
        indices[i] = (uint16_t)(64 * block + (unsigned)_tzcnt_u64(bit));
    }
    return i;
}

const weft_tile_kernels weft_tile_kernels_avx512 = {
    .classify = classify_avx512,
    .select = select_avx512,
};
