/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16.h: the vector forms of the cast, for bf16.c. All use plain integer arithmetic: the AVX512-BF16
 * instruction treats subnormals as zero and so differs from PyTorch.
 */
#ifndef WEFT_BASE_BF16_H
#define WEFT_BASE_BF16_H

#include <stddef.h>
#include <stdint.h>

void weft_bf16_cast_avx2(const float *input, uint16_t *output, size_t count);
void weft_bf16_cast_avx512(const float *input, uint16_t *output, size_t count);
void weft_bf16_cast_neon(const float *input, uint16_t *output, size_t count);

#endif
