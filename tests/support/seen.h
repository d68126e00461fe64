/* SPDX-License-Identifier: Apache-2.0
 *
 * seen.h: what is visited of prepared changes, put together again: a copy of each live tensor, which
 * becomes what the tensor will be, and proof that every old value is what it holds now. Every call ends the
 * test program with a message if the surroundings fail it.
 */
#ifndef WEFT_TESTS_SEEN_H
#define WEFT_TESTS_SEEN_H

#include <weft/patch.h>

enum { SEEN_MAX = 64 };

typedef struct seen {
    const weft_table *table; /* of the live tensors */
    uint8_t *olds[SEEN_MAX]; /* what they hold now */
    uint8_t *news[SEEN_MAX]; /* with what was visited */
    size_t most;             /* units that a batch may have; 0: any number */
    uint64_t changed;
    unsigned batches;
    /* of the visit before */
    size_t tensor;
    uint64_t unit;
    bool any;
    /* the first thing that was wrong; NULL: nothing */
    const char *wrong;
} seen;

/* `read` gives the present bytes of a tensor of the table: `data`, unless it is NULL. */
void seen_open(seen *seen, const weft_table *table,
               const void *(*read)(void *opaque, const weft_tensor *tensor), void *opaque);
void seen_close(seen *seen);
/* A weft_change_function, whose opaque is the seen. */
weft_status seen_visit(void *opaque, const weft_change_batch *batch);
/* True if all that was visited is right, and what the tensors hold by now is what it said. Tensors that are
 * tied to others are not looked at. */
bool seen_holds(const seen *seen, const void *(*read)(void *opaque, const weft_tensor *tensor),
                void *opaque);

#endif
