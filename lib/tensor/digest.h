/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h: the mix, its kernels, and how the rooms above move sums.
 *
 * The mix of the word w (16 bytes, zero-padded at a tensor's end) at word index p of its tensor:
 *
 *     x = aesenc(w, (p, p));  x = aesenc(x, K1);  x = aesenc(x, K2)
 *
 * where aesenc is one AES encryption round (ShiftRows, SubBytes, MixColumns, then XOR with the round
 * key), (p, p) is p as a little-endian u64 twice, and K1 and K2 are fixed. Sums are two u64 lanes,
 * each modulo 2^64. Three rounds make every output bit depend on every input bit, and no relation
 * between the changes of different words survives: a drifted word never hides behind a correct step.
 */
#ifndef WEFT_TENSOR_DIGEST_H
#define WEFT_TENSOR_DIGEST_H

#include "../base/cpu.h"

#include <weft/tensor.h>

typedef struct weft_sum {
    uint64_t lanes[2];
} weft_sum;

enum { WEFT_WORD = 16, WEFT_GRAIN_BYTES = 256 * 1024 };

typedef struct weft_digest_kernels {
    /* Sum over `bytes` bytes that start at word index `word`; a short last word is zero-padded. */
    weft_sum (*sum)(const void *data, size_t bytes, uint64_t word);
    /* Sum over `count` words given side by side, the i-th with index words[i]. */
    weft_sum (*sum_words)(const void *data, const uint64_t *words, size_t count);
    /* sum(after) less sum(before), for states that are the same in most places: what is the same costs a
     * look. */
    weft_sum (*difference)(const void *before, const void *after, size_t bytes, uint64_t word);
} weft_digest_kernels;

const weft_digest_kernels *weft_digest_kernels_for(weft_cpu level);

weft_sum weft_mix_portable(const uint8_t word[WEFT_WORD], uint64_t index);

static inline void weft_sum_add(weft_sum *sum, weft_sum other) {
    sum->lanes[0] += other.lanes[0];
    sum->lanes[1] += other.lanes[1];
}
static inline void weft_sum_subtract(weft_sum *sum, weft_sum other) {
    sum->lanes[0] -= other.lanes[0];
    sum->lanes[1] -= other.lanes[1];
}
static inline bool weft_sum_equal(weft_sum a, weft_sum b) {
    return a.lanes[0] == b.lanes[0] && a.lanes[1] == b.lanes[1];
}

/* The digest of all tensors of a table; and the same as text. */
weft_status weft_table_digest(weft_context *context, const weft_table *table, weft_digest *digest_out);
weft_status weft_table_digest_text(weft_context *context, const weft_table *table,
                                   char text[WEFT_DIGEST_TEXT]);

/* Sums of zero everywhere, shaped like the view: a place to collect moves or to build a state. */
weft_status weft_sums_zero(weft_context *context, const weft_view *view, weft_sums **sums_out);
/* WEFT_INVALID_ARGUMENT unless the sums are those of a view of the same tensors, held alike. */
weft_status weft_sums_check(weft_context *context, const weft_sums *sums, const weft_view *view);
/* The sums stand for `view` from now on, which has the same tensors, held alike: that is what an audit
 * reads. */
void weft_sums_attach(weft_sums *sums, const weft_view *view);
/* Adds the sums of every tensor that both have, with the same name, dtype and shape. */
void weft_sums_add_common(weft_sums *sums, const weft_sums *source);
/* Adds to the grain that holds `byte` of the tensor. Atomic: workers may add at the same time. */
void weft_sums_move(weft_sums *sums, size_t tensor, uint64_t byte, weft_sum delta);
/* Adds (or with `negate` subtracts) all of `moves`. */
void weft_sums_merge(weft_sums *sums, const weft_sums *moves, bool negate);
/* The sum of a tensor, all grains together. */
weft_sum weft_sums_total(const weft_sums *sums, size_t tensor);
/* The state's digest from per-tensor sums, without a weft_sums: tensors in canonical order. */
typedef weft_sum (*weft_sum_lookup)(void *opaque, size_t tensor);
weft_digest weft_state_digest(const weft_view *view, weft_sum_lookup lookup, void *opaque);
/* Of a state without tensors, which anchors start from. */
weft_digest weft_state_nothing(void);

#endif
