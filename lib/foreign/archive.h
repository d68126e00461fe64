/* SPDX-License-Identifier: Apache-2.0
 *
 * archive.h: files that others write, read to memory: a file that is mapped, and cut short by its writer
 * meanwhile, would end the process. And safetensors files that are no checkpoints: their tensors are
 * payloads.
 */
#ifndef WEFT_FOREIGN_ARCHIVE_H
#define WEFT_FOREIGN_ARCHIVE_H

#include "../tensor/checkpoint/safetensors.h"

#include <weft/patch.h>

/* Reads a file, which must be one: nothing that has to be waited for. WEFT_NOT_FOUND if there is none;
 * WEFT_LIMIT_EXCEEDED above `most` bytes. A zero follows what is read, which is to be released. */
weft_status weft_file_read(weft_context *context, const char *path, uint64_t most, uint8_t **memory_out,
                           size_t *size_out);
/* Reads `size` bytes from `offset` on, or fewer if it ends before; and says how many it has. */
weft_status weft_file_peek(weft_context *context, const char *path, uint64_t offset, void *buffer,
                           size_t size, size_t *read_out, uint64_t *file_bytes_out);
/* Reads a text of at most limits.header_bytes. */
weft_status weft_text_read(weft_context *context, const char *path, char **text_out, size_t *size_out);

typedef struct weft_archive {
    weft_context *context;
    uint8_t *memory;
    weft_safetensors header;
    const weft_safetensors_entry **by_name;
    const uint8_t *data; /* behind the header; NULL if only that was read */
} weft_archive;

/* What is in memory, which is taken over, also on failure. */
weft_status weft_archive_open(weft_archive *archive, weft_context *context, const char *where,
                              uint8_t *memory, size_t size);
/* The header of a file, which may be large; and the bytes of the entry `name`, if there is one that has
 * `size`, else zeros. */
weft_status weft_archive_peek(weft_archive *archive, weft_context *context, const char *path,
                              const char *name, void *buffer, size_t size);
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

#endif
