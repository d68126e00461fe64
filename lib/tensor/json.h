/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: reading hostile JSON and writing plain JSON, over jansson.
 *
 * jansson takes its memory from malloc, not from the context: its hooks are global to the process. What
 * it takes is bounded instead by looking at the text first: see weft_json_parse.
 *
 * jansson 2.14 does not always notice when malloc refuses it a few bytes: a token of the text can then come
 * out with a byte missing. Nothing worse follows: names, sizes and offsets are checked as if they had been
 * written so, and files keep the header's own bytes.
 */
#ifndef WEFT_TENSOR_JSON_H
#define WEFT_TENSOR_JSON_H

#include "../base/bytes.h"

#include <jansson.h>

/* Parses an object. `where` begins the text of a failure. Refused before any memory is taken: text that
 * does not begin with '{', that nests deeper than `depth`, or that holds more than `containers` objects
 * and arrays. Refused by the parser: duplicate keys, NUL, bytes that are not UTF-8, anything but white
 * space behind the object. With these limits a parsed text takes at most some thirty times its size,
 * and some 200 bytes for each container. The caller gives the result back with json_decref. */
weft_status weft_json_parse(weft_context *context, const char *where, const char *text, size_t size,
                            unsigned depth, uint64_t containers, json_t **value_out);

/* What a text may be at most. */
typedef struct weft_json_bounds {
    size_t bytes;
    unsigned depth;
    uint64_t containers;
} weft_json_bounds;

/* For who writes: a text that its readers would find beyond their bounds is refused. */
weft_status weft_json_check(weft_context *context, const char *where, const char *text, size_t size,
                            const weft_json_bounds *bounds);

/* Appends a value in compact form and gives it back. NULL, which is what jansson's constructors give
 * when there is no memory, makes the writer fail. */
void weft_json_write(weft_writer *writer, json_t *value);

/* The failure of a writer that collected JSON. */
weft_status weft_json_no_memory(weft_context *context, const char *where);

#endif
