/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_fields.h: what the text of a request means: its path, its ranges, its entity tags, its numbers.
 *
 * All of it comes from strangers. These functions take terminated text, touch no memory but what they are
 * given, and know nothing of connections, so that tests and the fuzzer reach them alone.
 */
#ifndef WEFT_PROGRAMS_SERVER_SERVE_FIELDS_H
#define WEFT_PROGRAMS_SERVER_SERVE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Percent-decodes a path without its leading slash into `key`, which takes `capacity` bytes with the
 * terminator. False if it does not begin with a slash, is too long, has an escape that is none, or hides a
 * zero byte. Whether the result is a key is for the store to say. */
bool serve_path_decode(const char *path, char *key, size_t capacity);

typedef enum serve_range_kind {
    RANGE_WHOLE,         /* no range, or one that RFC 9110 tells us to ignore: send everything */
    RANGE_PART,          /* `length` bytes, at least one, from `offset` */
    RANGE_UNSATISFIABLE, /* nothing of the object lies in it */
} serve_range_kind;

typedef struct serve_range {
    serve_range_kind kind;
    uint64_t offset;
    uint64_t length;
} serve_range;

/* A Range field over an object of `size` bytes. `field` may be NULL. Several ranges are answered with the
 * whole, as RFC 9110 allows: nobody who follows a run asks for them. */
serve_range serve_range_parse(const char *field, uint64_t size);

/* True if a list of entity tags (If-Match, If-None-Match) holds `tag`, which comes without quotes, or is
 * "*". With `weak`, W/"x" is taken for "x". What follows a malformed member is not read. */
bool serve_tags_hold(const char *list, const char *tag, bool weak);
/* True if the list is "*". */
bool serve_tags_any(const char *list);

/* The token of "Bearer TOKEN", which ends before `length_out`; NULL if it is another scheme. */
const char *serve_bearer(const char *field, size_t *length_out);

/* True if a Host field names an address, "localhost" or one of `names`, with or without a port. */
bool serve_host_known(const char *field, const char *const *names, size_t count);

/* Decimal digits only. */
bool serve_number(const char *text, uint64_t *value_out);
/* Decimal digits, perhaps with a fraction; at most a million. */
bool serve_seconds(const char *text, double *seconds_out);

#endif
