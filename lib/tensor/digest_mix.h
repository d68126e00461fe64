/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix.h: what the kernels of the digest share with each other. Users go through digest.h.
 */
#ifndef WEFT_TENSOR_DIGEST_MIX_H
#define WEFT_TENSOR_DIGEST_MIX_H

#include "digest.h"

/* K1 and K2 of the mix. */
extern const uint8_t weft_mix_keys[2][WEFT_WORD];

#ifdef WEFT_X86
extern const weft_digest_kernels weft_digest_kernels_avx2;
extern const weft_digest_kernels weft_digest_kernels_avx512;
#endif
#ifdef WEFT_ARM
extern const weft_digest_kernels weft_digest_kernels_neon;
#endif

#endif
