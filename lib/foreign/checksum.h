/* SPDX-License-Identifier: Apache-2.0
 *
 * checksum.h: the checksums that other formats carry, over bytes that come piece by piece, as their text.
 */
#ifndef WEFT_FOREIGN_CHECKSUM_H
#define WEFT_FOREIGN_CHECKSUM_H

#include <weft/foreign.h>

enum { WEFT_CHECKSUM_TEXT = 65 };

/* How a checksum is spelt: in hexadecimal of full length, except where Adler-32 is a decimal number. */
typedef enum weft_spelling {
    WEFT_SPELT_HEXADECIMAL = 0,
    WEFT_SPELT_DECIMAL = 1,
} weft_spelling;

/* "xxh3-128", "adler32", "blake3", "sha256" */
const char *weft_checksum_name(weft_foreign_checksum kind);
bool weft_checksum_parse(const char *name, weft_foreign_checksum *kind_out);

typedef struct weft_checksum weft_checksum;

/* WEFT_UNSUPPORTED if this library cannot compute it. */
weft_status weft_checksum_open(weft_context *context, weft_foreign_checksum kind,
                               weft_checksum **checksum_out);
void weft_checksum_close(weft_checksum *checksum);
/* From the beginning. */
weft_status weft_checksum_begin(weft_checksum *checksum);
weft_status weft_checksum_add(weft_checksum *checksum, const void *data, size_t size);
weft_status weft_checksum_end(weft_checksum *checksum, weft_spelling spelling,
                              char text[WEFT_CHECKSUM_TEXT]);

#endif
