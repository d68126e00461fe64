/* SPDX-License-Identifier: Apache-2.0
 *
 * table.h: what the other files of this room need from a table beyond the public calls.
 */
#ifndef WEFT_TENSOR_TABLE_H
#define WEFT_TENSOR_TABLE_H

#include <weft/tensor.h>

/* The size of a tensor from dtype, rank and shape. Refuses, with `status` and a text that begins with
 * `where`, what takes more than 2^63 bits or does not fill whole bytes. Dimensions of zero count as one
 * for the check, so that afterwards every product of dimensions fits, also in an empty tensor. */
weft_status weft_tensor_measure(weft_context *context, weft_status status, const char *where,
                                const weft_tensor *tensor, uint64_t *bytes_out);

/* True if both have the same dtype and shape. */
bool weft_tensor_alike(const weft_tensor *a, const weft_tensor *b);

/* Tells `count` tensors from index `first` that their bytes lie one behind the other from `data` on. */
void weft_table_bind(weft_table *table, size_t first, size_t count, void *data);

/* How its tensors are reached in batches; of size 0 if they are not. */
weft_batch_access weft_table_batch(const weft_table *table);

bool weft_text_is_utf8(const char *text, size_t size);

/* How much of a name goes into an error text, so that what follows the name still fits. */
enum { WEFT_NAME_SHOWN = 200 };

#endif
