/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.h: small JSON texts, packed: heads, pages and the nodes of leaps are most of what a small model
 * sends.
 *
 * A text is packed as a zstd frame with a dictionary of the words that these texts consist of. A head is
 * lines of text, which older readers must be able to tell from damage: there the frame is written in base
 * 85. doc/FORMAT.md has both.
 */
#ifndef WEFT_SYNC_FORMAT_PACK_H
#define WEFT_SYNC_FORMAT_PACK_H

#include "../../base/bytes.h"

/* Appends the frame of a text. */
weft_status weft_pack(weft_context *context, const void *text, size_t size, weft_writer *writer);
/* True if the data are such a frame, and no JSON, as far as their beginning tells. */
bool weft_pack_begins(const void *data, size_t size);
/* The text of a frame, of at most so many bytes; the caller releases it. WEFT_MALFORMED: it is none. */
weft_status weft_unpack(weft_context *context, const char *where, const void *data, size_t size,
                        size_t most, uint8_t **text_out, size_t *size_out);

/* The bytes that `size` bytes take in base 85, without an end. */
size_t weft_base85_size(size_t size);
void weft_base85_format(const uint8_t *data, size_t size, char *text);
/* The bytes of a text, `room` of them at most; false if it is none. */
bool weft_base85_parse(const char *text, size_t length, uint8_t *data, size_t room, size_t *size_out);

#endif
