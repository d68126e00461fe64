/* SPDX-License-Identifier: Apache-2.0
 *
 * classes_read.h: reading what is coded by classes of the exponent: the changes of a `small` bucket, and
 * the values of a block of PULSELoCo, which differ in what stands at a position only.
 *
 * The front says where the classes are cut and how many entries each has; then come plain bits, which begin
 * with two tables for each class that has entries, of gaps and of what stands there; then the stream of
 * tokens. Gaps become ranks within the class. Where a rank lies is known when the weights, which both sides
 * hold, are classified, tile by tile. The bytes are hostile: nothing is believed that was not bounded.
 */
#ifndef WEFT_CODE_CLASSES_READ_H
#define WEFT_CODE_CLASSES_READ_H

#include "../base/bytes.h"
#include "classes.h"
#include "rans.h"

/* What the front says, and what is behind it. */
typedef struct weft_class_header {
    unsigned classes;
    unsigned shift; /* of the exponent */
    uint8_t cuts[WEFT_CLASS_MAX];
    uint32_t counts[WEFT_CLASS_MAX]; /* entries */
    weft_bits_reader bits;
    const uint8_t *stream;
    size_t stream_size;
} weft_class_header;

/* False if `payload` does not begin with a valid front of `count` entries. */
bool weft_class_header_read(weft_class_header *header, const uint8_t *payload, size_t size,
                            weft_exponent exponent, size_t count);
/* Reads the tables of all classes that have entries. False if one is none, or has more tokens than it may
 * have. */
bool weft_class_tables_read(weft_class_header *header, unsigned gap_tokens, weft_rans_table *gaps,
                            unsigned value_tokens, weft_rans_table *values);
/* True if bits and stream are used up. */
bool weft_class_header_done(const weft_class_header *header, const weft_rans_decoder *rans);

/* How far each class has come. */
typedef struct weft_class_cursors {
    size_t next[WEFT_CLASS_MAX]; /* entry; the entries of a class are together, and up to: */
    size_t end[WEFT_CLASS_MAX];
    uint32_t members[WEFT_CLASS_MAX]; /* weights */
} weft_class_cursors;

void weft_class_cursors_open(weft_class_cursors *cursors, const weft_class_header *header);
/* False if entries are left: there are no such weights. */
bool weft_class_cursors_done(const weft_class_cursors *cursors, const weft_class_header *header);

/* Finds where the next entries of class `c` lie in a classified tile, by the ranks of all entries, and goes
 * past them. Ranks past the tile wait for the next one; a rank before it cannot be, since ranks ascend and
 * every tile takes all of its own. Returns how many it found. */
static inline size_t weft_class_cursors_take(weft_class_cursors *cursors, const weft_tile_kernels *kernels,
                                             const weft_tile *tile, unsigned c, const uint32_t *ranks,
                                             uint16_t *indices) {
    size_t next = cursors->next[c];
    size_t found =
        kernels->select(tile, c, ranks + next, cursors->end[c] - next, cursors->members[c], indices);
    cursors->next[c] += found;
    cursors->members[c] += tile->counts[c];
    return found;
}

#endif
