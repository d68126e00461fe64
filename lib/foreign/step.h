/* SPDX-License-Identifier: Apache-2.0
 *
 * step.h: what a version changes, as lists that grow; and the base that they are changes of, chunk by
 * chunk.
 */
#ifndef WEFT_FOREIGN_STEP_H
#define WEFT_FOREIGN_STEP_H

#include "../tensor/view.h"

#include <stdatomic.h>
#include <weft/foreign.h>

typedef struct weft_change_list {
    char *name;
    unsigned width;
    uint64_t *units;
    uint8_t *values;
    uint64_t count;
    uint64_t capacity;
} weft_change_list;

enum { WEFT_STEP_LABELS = 16 };

struct weft_foreign_step {
    weft_context *context;
    weft_change_list *lists;
    size_t count;
    size_t capacity;
    weft_tensor_changes *changes; /* the lists, as others take them; made when they are asked for */
    char *labels[2 * WEFT_STEP_LABELS + 1];
    size_t label_count;     /* keys and values */
    _Atomic uint64_t bytes; /* that the lists take */
};

/* Room for the lists of `count` tensors, which are empty and have no names yet. */
weft_status weft_step_resize(weft_foreign_step *step, size_t count);
/* Room for `more` changes in a list. Safe from several threads, each with a list of its own. */
weft_status weft_list_reserve(weft_foreign_step *step, weft_change_list *list, uint64_t more);
/* Drops all changes and keeps the labels. */
void weft_step_empty(weft_foreign_step *step);
/* Leaves out lists without changes. */
void weft_step_settle(weft_foreign_step *step);
/* Joins lists of the same tensor, of which none may change what another does; names ascend then. */
weft_status weft_step_join(weft_foreign_step *step);
weft_status weft_step_label(weft_foreign_step *step, const char *key, const char *value);
weft_status weft_step_label_number(weft_foreign_step *step, const char *key, uint64_t value);

/* Reads a tensor of the base, whatever holds it. */
typedef struct weft_base_reader {
    weft_context *context;
    const weft_view *view;
    weft_segments segments;
    uint8_t *scratch;
    size_t capacity;
} weft_base_reader;

void weft_base_reader_open(weft_base_reader *reader, weft_context *context, const weft_view *view);
void weft_base_reader_close(weft_base_reader *reader);
/* `size` bytes of a tensor from byte `offset` on, both whole units; valid until the next call. */
weft_status weft_base_read(weft_base_reader *reader, size_t tensor, uint64_t offset, size_t size,
                           const uint8_t **bytes_out);

#endif
