/* SPDX-License-Identifier: Apache-2.0
 *
 * archive.h: a safetensors file that is no checkpoint: its tensors are payloads. Read from a mapping, or
 * written from pieces of memory.
 */
#ifndef WEFT_FOREIGN_ARCHIVE_H
#define WEFT_FOREIGN_ARCHIVE_H

#include "../tensor/checkpoint/safetensors.h"

#include <weft/patch.h>

typedef struct weft_archive {
    weft_context *context;
    weft_source source;
    void *owned; /* what the bytes are in, if that is memory of ours */
    weft_safetensors header;
    const weft_safetensors_entry **by_name;
    const uint8_t *data; /* behind the header */
} weft_archive;

/* Maps a file of payloads, which must be a file: nothing that has to be waited for. */
weft_status weft_payload_map(weft_context *context, const char *path, weft_source *source_out);
weft_status weft_archive_open(weft_archive *archive, weft_context *context, const char *path);
/* The same of memory, which is taken over, also on failure. */
weft_status weft_archive_open_memory(weft_archive *archive, weft_context *context, const char *where,
                                     void *memory, size_t size);
void weft_archive_close(weft_archive *archive);
/* A text of the metadata, or NULL. */
const char *weft_archive_metadata(const weft_archive *archive, const char *key);
/* The entry of a name, or NULL. */
const weft_safetensors_entry *weft_archive_find(const weft_archive *archive, const char *name);

/* A payload to write: a row of bytes. */
typedef struct weft_foreign_payload {
    const char *name;
    const uint8_t *data;
    uint64_t size;
} weft_foreign_payload;

/* Writes U8 tensors, in the order given. `metadata` is key, value, …, NULL; or NULL. */
weft_status weft_archive_write(weft_context *context, const char *path,
                               const weft_foreign_payload *payloads, size_t count,
                               const char *const *metadata, bool durable, uint64_t *bytes_out);
/* Writes a file that is text. */
weft_status weft_text_write(weft_context *context, const char *path, const char *text, size_t size,
                            bool durable, uint64_t *bytes_out);

/* Reads a whole small file. WEFT_NOT_FOUND if there is none; WEFT_LIMIT_EXCEEDED above limits.header_bytes.
 * Release it with weft_release; it is terminated. */
weft_status weft_text_read(weft_context *context, const char *path, char **text_out, size_t *size_out);

#endif
