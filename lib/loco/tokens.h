/* SPDX-License-Identifier: Apache-2.0
 *
 * tokens.h: what has fired becomes tokens and plain bits, many at a time.
 *
 * No multiple of a ULP is ever formed. Dividing a float by a power of two leaves its bits alone, so the
 * highest bits of the multiple, which are its token, and the bits below them lie in the float as it is: the
 * exponents of value and weight say which bits. All is done on integers of 32 bits without branches, in a
 * form that compilers turn into vectors; it is compiled once for each processor level.
 */
#ifndef WEFT_LOCO_TOKENS_H
#define WEFT_LOCO_TOKENS_H

#include "../base/cpu.h"

#include <stddef.h>
#include <stdint.h>

/* Something that has fired: the gap, the exponent of the weight's ULP above it, and on top the value. */
static inline uint64_t weft_fired_pack(uint32_t gap, uint32_t ulp, uint32_t value) {
    return (uint64_t)value << 32 | ulp << 24 | gap;
}

/* Replaces each of `count` packed items by its plain bits, those of the gap first, with their number in the
 * highest byte, and sets its tokens. `most` is how many bits below the highest three of a value are
 * significant. */
typedef void (*weft_tokenise)(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                              uint8_t *value_tokens);

weft_tokenise weft_tokenise_for(weft_cpu level);

void weft_tokenise_portable(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                            uint8_t *value_tokens);
#ifdef WEFT_X86
void weft_tokenise_avx2(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                        uint8_t *value_tokens);
void weft_tokenise_avx512(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                          uint8_t *value_tokens);
#endif

#endif
