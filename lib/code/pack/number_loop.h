/* SPDX-License-Identifier: Apache-2.0
 *
 * number_loop.h: what loops over numbers of any width share.
 */
#ifndef WEFT_CODE_NUMBER_LOOP_H
#define WEFT_CODE_NUMBER_LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WEFT_PACK_INLINE static inline __attribute__((always_inline))

WEFT_PACK_INLINE uint64_t load_number(const void *numbers, size_t index, unsigned width) {
    uint64_t value = 0;
    memcpy(&value, (const uint8_t *)numbers + index * width, width);
    return value;
}

WEFT_PACK_INLINE void store_number(void *numbers, size_t index, unsigned width, uint64_t value) {
    memcpy((uint8_t *)numbers + index * width, &value, width);
}

/* Calls a loop with the width as a literal. */
#define WEFT_PACK_BY_WIDTH(width, CALL)                                                                    \
    do {                                                                                                   \
        switch (width) {                                                                                   \
        case 1:                                                                                            \
            CALL(1, uint8_t);                                                                              \
            break;                                                                                         \
        case 2:                                                                                            \
            CALL(2, uint16_t);                                                                             \
            break;                                                                                         \
        case 4:                                                                                            \
            CALL(4, uint32_t);                                                                             \
            break;                                                                                         \
        default:                                                                                           \
            CALL(8, uint64_t);                                                                             \
            break;                                                                                         \
        }                                                                                                  \
    } while (0)

/* Turns eight bytes into eight others: bit i of byte j becomes bit j of byte i. */
WEFT_PACK_INLINE uint64_t transpose_bits(uint64_t x) {
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aau;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000ccccu;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0u;
    return x ^ t ^ (t << 28);
}

#endif
