/* SPDX-License-Identifier: Apache-2.0
 *
 * strides.h: live tensors whose elements do not lie end to end: slices of a fused buffer, padded rows,
 * transposed views.
 *
 * Everywhere else, a unit of a live tensor is a number in row-major order, whatever the strides; only who
 * touches memory turns it into a place. So a transposed tensor is one segment like any other. Its elements
 * are units, since types under a byte cannot have strides.
 */
#ifndef WEFT_TENSOR_STRIDES_H
#define WEFT_TENSOR_STRIDES_H

#include <weft/tensor.h>

/* The dimensions that count, outermost first: those of more than one index, joined where one continues the
 * next. A tensor of one element has none. */
typedef struct weft_strides {
    uint32_t rank;
    uint64_t counts[WEFT_RANK_MAX];
    uint64_t steps[WEFT_RANK_MAX];
} weft_strides;

/* Refuses strides that are negative, let elements overlap, or leave the address space. */
weft_status weft_strides_check(weft_context *context, const weft_tensor *tensor);
/* Of a tensor with strides, or without: then it is one dimension. */
weft_strides weft_strides_of(const weft_tensor *tensor);
/* True if the units lie end to end. */
bool weft_strides_joined(const weft_strides *strides);

/* How many elements lie before `unit` in memory. */
uint64_t weft_strides_offset(const weft_strides *strides, uint64_t unit);

/* A row of elements at equal distances. */
typedef struct weft_stretch {
    uint64_t offset; /* of the first in memory */
    uint64_t units;
    uint64_t step;
} weft_stretch;

/* The row that begins at `unit`, of at most `units` units. */
weft_stretch weft_strides_stretch(const weft_strides *strides, uint64_t unit, uint64_t units);

/* The first byte of a unit of a tensor in plain memory, in its storage type. */
uint8_t *weft_tensor_memory(const weft_tensor *tensor, uint64_t unit);
/* Copies units of a tensor in plain memory, in dtype; F32 masters are cast. */
void weft_tensor_read(const weft_tensor *tensor, uint64_t unit, uint64_t units, void *output);
/* The same by words of 16 bytes, as the gather of weft_access; a last word that is short is filled up with
 * zeros. */
void weft_tensor_gather(const weft_tensor *tensor, const uint64_t *words, size_t count, void *output);
/* Writes units of a tensor that is held in dtype. */
void weft_tensor_write(const weft_tensor *tensor, uint64_t unit, uint64_t units, const void *values);

/* One behind its last byte. */
const uint8_t *weft_tensor_end(const weft_tensor *tensor);
/* True if both are the same elements at the same places. */
bool weft_tensor_same_places(const weft_tensor *a, const weft_tensor *b);
/* True if no byte is in both. Slices of one buffer are told apart, however they interleave; for other
 * tensors whose bytes interleave without a common stride, the answer may be false all the same. */
bool weft_tensor_apart(const weft_tensor *a, const weft_tensor *b);

#endif
