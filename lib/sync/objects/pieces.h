/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.h: a large object that is other large objects end to end. The ranks of a sharded trainer each put
 * the frames that they made; header and index come from one of them; and what readers see is one patch.
 * doc/FORMAT.md specifies the JSON of the list.
 *
 * Lists have a room of their own whose name is the last in the order of keys: gc removes by that order, so
 * that a list outlives the pieces which nothing else names.
 */
#ifndef WEFT_SYNC_OBJECTS_PIECES_H
#define WEFT_SYNC_OBJECTS_PIECES_H

#include "../format/record.h"
#include "spool.h"

enum { WEFT_PIECES_MAX = 1026, WEFT_PIECES_BYTES = 2 << 20 };

typedef struct weft_pieces {
    weft_context *context;
    weft_object *items;
    size_t count;
} weft_pieces;

void weft_pieces_open(weft_pieces *pieces, weft_context *context);
void weft_pieces_close(weft_pieces *pieces);
/* Copies a piece behind those that are there. */
weft_status weft_pieces_add(weft_pieces *pieces, const weft_object *piece);
/* Sends the list off to lie under `key`; `object_out` is what all pieces are together. */
weft_status weft_pieces_send(const weft_pieces *pieces, weft_store *store, const char *key,
                             weft_parcel *parcel, weft_object *object_out);
/* The pieces of an object; of one that is not in pieces, the object itself. The pieces must be open and
 * empty. */
weft_status weft_pieces_fetch(weft_pieces *pieces, weft_store *store, const weft_object *object);
/* The list under a key of which nothing else is known any more, its hash neither: who removes what it names
 * must know what is needed. */
weft_status weft_pieces_look(weft_pieces *pieces, weft_store *store, const char *key);
weft_status weft_pieces_parse(weft_pieces *pieces, const char *where, const void *data, size_t size);
weft_status weft_pieces_format(const weft_pieces *pieces, weft_writer *writer);

#endif
