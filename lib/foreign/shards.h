/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.h: the payloads of a version, cut into files.
 */
#ifndef WEFT_FOREIGN_SHARDS_H
#define WEFT_FOREIGN_SHARDS_H

#include "format.h"

enum { WEFT_SHARD_NAME = 64 };

typedef struct weft_shards {
    weft_context *context;
    weft_foreign_payload *payloads; /* of the tensors that are written, names ascending */
    const weft_packed **packed;     /* the same */
    size_t *files;                  /* which each is in */
    size_t count;
    char (*names)[WEFT_SHARD_NAME]; /* of the files, for the caller to fill */
    size_t *starts;                 /* the first of each file, and the end */
    size_t file_count;
} weft_shards;

/* Writes the files of a version into a directory. */
typedef weft_status weft_shards_function(const weft_foreign_writing *writing, weft_shards *shards,
                                         const char *directory, uint64_t *bytes_out);

/* Cuts the payloads into files, and has them written to a directory that appears whole as `name`. A new
 * file begins before `shard_bytes` are exceeded; with 0 there is one, or none if nothing is written. */
weft_status weft_shards_publish(const weft_foreign_writing *writing, const char *name, uint64_t shard_bytes,
                                weft_shards_function *write, weft_foreign_written *written);
/* Writes a file under its name; the checksums go into its metadata if `sums`. */
weft_status weft_shards_write(const weft_shards *shards, size_t file, const char *directory, bool sums,
                              bool durable, uint64_t *bytes_out);

/* Writes a value, which is given back, as a file, as Python does; NULL is a lack of memory. */
weft_status weft_json_file(weft_context *context, const char *directory, const char *name, json_t *value,
                           bool durable, uint64_t *bytes_out);

#endif
