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

/* A new file begins before options->shard_bytes are exceeded; without that there is one, or none if nothing
 * is written. Closing is allowed after a failure. */
weft_status weft_shards_open(weft_shards *shards, const weft_foreign_writing *writing);
void weft_shards_close(weft_shards *shards);
/* Writes a file under its name; the checksums go into its metadata if `sums`. */
weft_status weft_shards_write(const weft_shards *shards, size_t file, const char *directory, bool sums,
                              bool durable, uint64_t *bytes_out);

/* Writes a value, which is given back, as a file, as Python does; NULL is a lack of memory. */
weft_status weft_json_file(weft_context *context, const char *directory, const char *name, json_t *value,
                           bool durable, uint64_t *bytes_out);

#endif
