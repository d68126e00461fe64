/* SPDX-License-Identifier: Apache-2.0
 *
 * toml.h: the part of TOML that a configuration file needs: tables of one level, bare keys, strings on one
 * line, numbers, booleans, and arrays of these. What TOML has besides is refused, and so is what TOML
 * itself refuses; what is accepted means what TOML says.
 */
#ifndef WEFT_PROGRAMS_BASE_TOML_H
#define WEFT_PROGRAMS_BASE_TOML_H

#include <stdbool.h>
#include <stddef.h>

enum { TOML_BYTES_MAX = 64 << 10, TOML_ITEMS_MAX = 512, TOML_TABLES_MAX = 16, TOML_ERROR = 160 };

typedef enum toml_kind { TOML_STRING, TOML_NUMBER, TOML_BOOLEAN } toml_kind;

/* One value; an array is one item for each of its values, in order. */
typedef struct toml_item {
    const char *table; /* "" outside of any */
    const char *key;
    const char *text; /* "true" of a boolean; of a number as it stands there */
    toml_kind kind;
    unsigned line; /* of the value */
    bool in_array;
    bool continues; /* an array: not the first of its values */
} toml_item;

typedef struct toml_document {
    toml_item items[TOML_ITEMS_MAX];
    size_t count;
    const char *tables[TOML_TABLES_MAX];
    size_t table_count;
    unsigned line; /* of the error */
    char error[TOML_ERROR];
} toml_document;

/* Reads `size` bytes at `text`, behind which there is room for one more. The text is changed, and the items
 * point into it. False: line and error say what is wrong. */
bool toml_read(char *text, size_t size, toml_document *document);

#endif
