/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix.c: the digest's mix in portable C, which is the reference, and the choice of kernels.
 *
 * One table of 256 entries joins SubBytes and MixColumns, as in every software AES. The table is a
 * constant: nothing is built at run time, so nothing needs a lock. Timing that depends on the data is
 * no concern, because weights are not secrets of the digest.
 */
#include "digest_mix.h"

#include <string.h>

/* Entry s holds, from the lowest byte, 2*S(s), S(s), S(s), 3*S(s): the column that MixColumns makes of
 * the byte in row 0. The other rows are rotations of it. */
static const uint32_t round_table[256] = {
    0xa56363c6u, 0x847c7cf8u, 0x997777eeu, 0x8d7b7bf6u, 0x0df2f2ffu, 0xbd6b6bd6u, 0xb16f6fdeu, 0x54c5c591u,
    0x50303060u, 0x03010102u, 0xa96767ceu, 0x7d2b2b56u, 0x19fefee7u, 0x62d7d7b5u, 0xe6abab4du, 0x9a7676ecu,
    0x45caca8fu, 0x9d82821fu, 0x40c9c989u, 0x877d7dfau, 0x15fafaefu, 0xeb5959b2u, 0xc947478eu, 0x0bf0f0fbu,
    0xecadad41u, 0x67d4d4b3u, 0xfda2a25fu, 0xeaafaf45u, 0xbf9c9c23u, 0xf7a4a453u, 0x967272e4u, 0x5bc0c09bu,
    0xc2b7b775u, 0x1cfdfde1u, 0xae93933du, 0x6a26264cu, 0x5a36366cu, 0x413f3f7eu, 0x02f7f7f5u, 0x4fcccc83u,
    0x5c343468u, 0xf4a5a551u, 0x34e5e5d1u, 0x08f1f1f9u, 0x937171e2u, 0x73d8d8abu, 0x53313162u, 0x3f15152au,
    0x0c040408u, 0x52c7c795u, 0x65232346u, 0x5ec3c39du, 0x28181830u, 0xa1969637u, 0x0f05050au, 0xb59a9a2fu,
    0x0907070eu, 0x36121224u, 0x9b80801bu, 0x3de2e2dfu, 0x26ebebcdu, 0x6927274eu, 0xcdb2b27fu, 0x9f7575eau,
    0x1b090912u, 0x9e83831du, 0x742c2c58u, 0x2e1a1a34u, 0x2d1b1b36u, 0xb26e6edcu, 0xee5a5ab4u, 0xfba0a05bu,
    0xf65252a4u, 0x4d3b3b76u, 0x61d6d6b7u, 0xceb3b37du, 0x7b292952u, 0x3ee3e3ddu, 0x712f2f5eu, 0x97848413u,
    0xf55353a6u, 0x68d1d1b9u, 0x00000000u, 0x2cededc1u, 0x60202040u, 0x1ffcfce3u, 0xc8b1b179u, 0xed5b5bb6u,
    0xbe6a6ad4u, 0x46cbcb8du, 0xd9bebe67u, 0x4b393972u, 0xde4a4a94u, 0xd44c4c98u, 0xe85858b0u, 0x4acfcf85u,
    0x6bd0d0bbu, 0x2aefefc5u, 0xe5aaaa4fu, 0x16fbfbedu, 0xc5434386u, 0xd74d4d9au, 0x55333366u, 0x94858511u,
    0xcf45458au, 0x10f9f9e9u, 0x06020204u, 0x817f7ffeu, 0xf05050a0u, 0x443c3c78u, 0xba9f9f25u, 0xe3a8a84bu,
    0xf35151a2u, 0xfea3a35du, 0xc0404080u, 0x8a8f8f05u, 0xad92923fu, 0xbc9d9d21u, 0x48383870u, 0x04f5f5f1u,
    0xdfbcbc63u, 0xc1b6b677u, 0x75dadaafu, 0x63212142u, 0x30101020u, 0x1affffe5u, 0x0ef3f3fdu, 0x6dd2d2bfu,
    0x4ccdcd81u, 0x140c0c18u, 0x35131326u, 0x2fececc3u, 0xe15f5fbeu, 0xa2979735u, 0xcc444488u, 0x3917172eu,
    0x57c4c493u, 0xf2a7a755u, 0x827e7efcu, 0x473d3d7au, 0xac6464c8u, 0xe75d5dbau, 0x2b191932u, 0x957373e6u,
    0xa06060c0u, 0x98818119u, 0xd14f4f9eu, 0x7fdcdca3u, 0x66222244u, 0x7e2a2a54u, 0xab90903bu, 0x8388880bu,
    0xca46468cu, 0x29eeeec7u, 0xd3b8b86bu, 0x3c141428u, 0x79dedea7u, 0xe25e5ebcu, 0x1d0b0b16u, 0x76dbdbadu,
    0x3be0e0dbu, 0x56323264u, 0x4e3a3a74u, 0x1e0a0a14u, 0xdb494992u, 0x0a06060cu, 0x6c242448u, 0xe45c5cb8u,
    0x5dc2c29fu, 0x6ed3d3bdu, 0xefacac43u, 0xa66262c4u, 0xa8919139u, 0xa4959531u, 0x37e4e4d3u, 0x8b7979f2u,
    0x32e7e7d5u, 0x43c8c88bu, 0x5937376eu, 0xb76d6ddau, 0x8c8d8d01u, 0x64d5d5b1u, 0xd24e4e9cu, 0xe0a9a949u,
    0xb46c6cd8u, 0xfa5656acu, 0x07f4f4f3u, 0x25eaeacfu, 0xaf6565cau, 0x8e7a7af4u, 0xe9aeae47u, 0x18080810u,
    0xd5baba6fu, 0x887878f0u, 0x6f25254au, 0x722e2e5cu, 0x241c1c38u, 0xf1a6a657u, 0xc7b4b473u, 0x51c6c697u,
    0x23e8e8cbu, 0x7cdddda1u, 0x9c7474e8u, 0x211f1f3eu, 0xdd4b4b96u, 0xdcbdbd61u, 0x868b8b0du, 0x858a8a0fu,
    0x907070e0u, 0x423e3e7cu, 0xc4b5b571u, 0xaa6666ccu, 0xd8484890u, 0x05030306u, 0x01f6f6f7u, 0x120e0e1cu,
    0xa36161c2u, 0x5f35356au, 0xf95757aeu, 0xd0b9b969u, 0x91868617u, 0x58c1c199u, 0x271d1d3au, 0xb99e9e27u,
    0x38e1e1d9u, 0x13f8f8ebu, 0xb398982bu, 0x33111122u, 0xbb6969d2u, 0x70d9d9a9u, 0x898e8e07u, 0xa7949433u,
    0xb69b9b2du, 0x221e1e3cu, 0x92878715u, 0x20e9e9c9u, 0x49cece87u, 0xff5555aau, 0x78282850u, 0x7adfdfa5u,
    0x8f8c8c03u, 0xf8a1a159u, 0x80898909u, 0x170d0d1au, 0xdabfbf65u, 0x31e6e6d7u, 0xc6424284u, 0xb86868d0u,
    0xc3414182u, 0xb0999929u, 0x772d2d5au, 0x110f0f1eu, 0xcbb0b07bu, 0xfc5454a8u, 0xd6bbbb6du, 0x3a16162cu,
};

/* The first 32 bytes of the fractional part of pi. */
const uint8_t weft_mix_keys[2][WEFT_WORD] = {
    {0x24, 0x3f, 0x6a, 0x88, 0x85, 0xa3, 0x08, 0xd3, 0x13, 0x19, 0x8a, 0x2e, 0x03, 0x70, 0x73, 0x44},
    {0xa4, 0x09, 0x38, 0x22, 0x29, 0x9f, 0x31, 0xd0, 0x08, 0x2e, 0xfa, 0x98, 0xec, 0x4e, 0x6c, 0x89},
};

/* The columns of the AES state, row 0 in the lowest byte. */
typedef struct columns {
    uint32_t at[4];
} columns;

static uint32_t load_column(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static columns load_columns(const uint8_t word[WEFT_WORD]) {
    columns state;
    for (size_t i = 0; i < 4; i++) {
        state.at[i] = load_column(word + 4 * i);
    }
    return state;
}

static uint32_t rotate(uint32_t value, unsigned bits) {
    return value << bits | value >> (32 - bits);
}

/* Column i of the result takes row r from column i + r: that is ShiftRows. */
static columns encrypt_round(columns state, columns key) {
    columns result;
    for (size_t i = 0; i < 4; i++) {
        uint32_t row0 = round_table[state.at[i] & 0xff];
        uint32_t row1 = round_table[state.at[(i + 1) & 3] >> 8 & 0xff];
        uint32_t row2 = round_table[state.at[(i + 2) & 3] >> 16 & 0xff];
        uint32_t row3 = round_table[state.at[(i + 3) & 3] >> 24];
        result.at[i] = row0 ^ rotate(row1, 8) ^ rotate(row2, 16) ^ rotate(row3, 24) ^ key.at[i];
    }
    return result;
}

weft_sum weft_mix_portable(const uint8_t word[WEFT_WORD], uint64_t index) {
    uint32_t low = (uint32_t)index;
    uint32_t high = (uint32_t)(index >> 32);
    columns position = {{low, high, low, high}};
    columns state = encrypt_round(load_columns(word), position);
    state = encrypt_round(state, load_columns(weft_mix_keys[0]));
    state = encrypt_round(state, load_columns(weft_mix_keys[1]));
    return (weft_sum){{
        (uint64_t)state.at[1] << 32 | state.at[0],
        (uint64_t)state.at[3] << 32 | state.at[2],
    }};
}

static weft_sum sum_portable(const void *data, size_t bytes, uint64_t word) {
    const uint8_t *cursor = data;
    weft_sum sum = {{0, 0}};
    for (; bytes >= WEFT_WORD; bytes -= WEFT_WORD) {
        weft_sum_add(&sum, weft_mix_portable(cursor, word++));
        cursor += WEFT_WORD;
    }
    if (bytes > 0) {
        uint8_t last[WEFT_WORD] = {0};
        memcpy(last, cursor, bytes);
        weft_sum_add(&sum, weft_mix_portable(last, word));
    }
    return sum;
}

static weft_sum sum_words_portable(const void *data, const uint64_t *words, size_t count) {
    const uint8_t *cursor = data;
    weft_sum sum = {{0, 0}};
    for (size_t i = 0; i < count; i++) {
        weft_sum_add(&sum, weft_mix_portable(cursor + i * WEFT_WORD, words[i]));
    }
    return sum;
}

static weft_sum difference_portable(const void *before, const void *after, size_t bytes, uint64_t word) {
    const uint8_t *old = before, *new = after;
    weft_sum sum = {{0, 0}};
    for (size_t done = 0; done < bytes; done += WEFT_WORD) {
        size_t some = bytes - done < WEFT_WORD ? bytes - done : WEFT_WORD;
        if (memcmp(old + done, new + done, some) != 0) {
            weft_sum_add(&sum, sum_portable(new + done, some, word + done / WEFT_WORD));
            weft_sum_subtract(&sum, sum_portable(old + done, some, word + done / WEFT_WORD));
        }
    }
    return sum;
}

static const weft_digest_kernels portable_kernels = {sum_portable, sum_words_portable, difference_portable};

const weft_digest_kernels *weft_digest_kernels_for(weft_cpu level) {
    switch (level) {
#ifdef WEFT_X86
    case WEFT_CPU_AVX512:
        return &weft_digest_kernels_avx512;
    case WEFT_CPU_AVX2:
        return &weft_digest_kernels_avx2;
#endif
#ifdef WEFT_ARM
    case WEFT_CPU_NEON:
        return &weft_digest_kernels_neon;
#endif
    default:
        return &portable_kernels;
    }
}
