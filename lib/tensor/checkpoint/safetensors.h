/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors.h: the header of a safetensors file.
 *
 * A file is: the length n of the header (u64, little-endian), n bytes of JSON, and the data. The JSON is
 * one object that maps each tensor's name to {"dtype": text, "shape": [...], "data_offsets": [begin, end]},
 * offsets counted from the start of the data; the key "__metadata__", if there, maps texts to texts.
 * Trailing spaces may pad the JSON. The tensors cover the data exactly: no holes, no overlaps.
 */
#ifndef WEFT_TENSOR_CHECKPOINT_SAFETENSORS_H
#define WEFT_TENSOR_CHECKPOINT_SAFETENSORS_H

#include <weft/tensor.h>

#include <jansson.h>

enum { WEFT_SAFETENSORS_PREFIX = 8 };

typedef struct weft_safetensors_entry {
    const char *name;
    json_t *shape;
    weft_dtype dtype;
    uint64_t begin;
    uint64_t end;
    size_t appearance; /* its place in the JSON */
} weft_safetensors_entry;

/* A parsed header. The entries are in the order of the data; empty tensors at the same place, in the
 * order of the JSON. Names and shapes belong to `root`. */
typedef struct weft_safetensors {
    weft_context *context;
    json_t *root;
    json_t *metadata; /* part of root, or NULL */
    weft_safetensors_entry *entries;
    size_t count;
    uint64_t data_bytes;
} weft_safetensors;

/* The header's length from the first bytes of a file of `file_bytes` bytes, checked against the file and
 * the context's limit. `where` is the file's name for error texts, here and below. */
weft_status weft_safetensors_length(weft_context *context, const char *where,
                                    const uint8_t prefix[WEFT_SAFETENSORS_PREFIX], uint64_t file_bytes,
                                    size_t *header_bytes_out);
/* Parses and checks all of the JSON. */
weft_status weft_safetensors_parse(weft_context *context, const char *where, const char *json, size_t size,
                                   weft_safetensors *header_out);
void weft_safetensors_close(weft_safetensors *header);
/* Checks that a file of `file_bytes` bytes ends where its data does. */
weft_status weft_safetensors_fit(weft_context *context, const char *where, size_t header_bytes,
                                 uint64_t data_bytes, uint64_t file_bytes);
/* Adds the tensors to a table, in order, without their data. */
weft_status weft_safetensors_list(const weft_safetensors *header, const char *where, bool writable,
                                  weft_table *table);

/* Makes the header of a file that holds these tensors one behind the other: compact JSON, metadata (see
 * weft_write_options) first, padded with spaces to a multiple of eight bytes. */
weft_status weft_safetensors_build(weft_context *context, const weft_tensor *const *tensors, size_t count,
                                   const char *const *metadata, char **json_out, size_t *size_out);

#endif
