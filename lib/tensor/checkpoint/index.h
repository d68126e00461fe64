/* SPDX-License-Identifier: Apache-2.0
 *
 * index.h: model.safetensors.index.json, which says in which file of a sharded checkpoint each tensor
 * lies: {"metadata": {...}, "weight_map": {tensor: file, ...}}.
 */
#ifndef WEFT_TENSOR_CHECKPOINT_INDEX_H
#define WEFT_TENSOR_CHECKPOINT_INDEX_H

#include <weft/tensor.h>

#include <jansson.h>

#define WEFT_INDEX_NAME "model.safetensors.index.json"
#define WEFT_SINGLE_NAME "model.safetensors"

typedef struct weft_index {
    weft_context *context;
    json_t *root;
    json_t *weight_map; /* part of root */
    const char **files; /* each file once, names ascending as bytes; texts of root */
    size_t file_count;
} weft_index;

/* Every file is a plain name that ends in ".safetensors": no path, nothing hidden, and not the name of
 * one of our own files. So nothing that an index says leads out of its directory. */
weft_status weft_index_parse(weft_context *context, const char *where, const char *json, size_t size,
                             weft_index *index_out);
void weft_index_close(weft_index *index);

/* Checks that the index and the tables of contents agree: `table` holds the tensors of all files, and
 * those of files[i] are the ones from index first[i] up to first[i + 1]. */
weft_status weft_index_check(const weft_index *index, const char *where, const weft_table *table,
                             const size_t *first);

/* Makes an index for tensors of which the i-th lies in the file files[i]. */
weft_status weft_index_build(weft_context *context, const weft_tensor *const *tensors, size_t count,
                             const char *const *files, char **json_out, size_t *size_out);

#endif
