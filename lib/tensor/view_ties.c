/* SPDX-License-Identifier: Apache-2.0
 *
 * view_ties.c: memory that several tensors of a view share, which nobody may have said: a state_dict gives
 * an embedding and an output head the same memory under two names.
 *
 * Live tensors are sorted by address, where those that share memory stand side by side. The same places
 * with the same dtype and shape are a tie; slices of one buffer may interleave, as strides say; anything
 * else that overlaps is an error. Then every checkpoint tensor that lies in such memory must lie there
 * exactly as another does, to which it is tied: it is read as ever, and written through the other. What
 * lies behind callbacks cannot be seen.
 */
#include "pieces.h"
#include "strides.h"

#include "../base/context.h"
#include "table.h"

#include <stdlib.h>
#include <string.h>

/* A live tensor in plain memory. */
typedef struct live_extent {
    const uint8_t *start;
    const uint8_t *end;
    const uint8_t *farthest; /* end of this one and of all before it */
    const weft_tensor *live;
} live_extent;

/* Where a checkpoint tensor begins in live memory. */
typedef struct tensor_place {
    const uint8_t *start;
    size_t tensor;
} tensor_place;

static const uint8_t *place_of(const weft_piece *piece) {
    return weft_tensor_memory(piece->live, piece->live_base);
}

static int compare_extents(const void *a, const void *b) {
    const live_extent *first = a;
    const live_extent *second = b;
    if (first->start != second->start) {
        return first->start < second->start ? -1 : 1;
    }
    if (first->end != second->end) {
        return first->end < second->end ? -1 : 1;
    }
    return strcmp(first->live->name, second->live->name);
}

static int compare_places(const void *a, const void *b) {
    const tensor_place *first = a;
    const tensor_place *second = b;
    if (first->start != second->start) {
        return first->start < second->start ? -1 : 1;
    }
    return first->tensor < second->tensor ? -1 : 1;
}

/* `shared_out`: both are the same memory. */
static weft_status check_pair(weft_context *context, const weft_tensor *a, const weft_tensor *b,
                              bool *shared_out) {
    if (weft_tensor_same_places(a, b) && weft_tensor_alike(a, b)) {
        if (a->converter != b->converter) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "tensors \"%.*s\" and \"%.*s\" are the same memory, but have different "
                             "converters, of which only one would be called",
                             WEFT_NAME_SHOWN, a->name, WEFT_NAME_SHOWN, b->name);
        }
        *shared_out = true;
        return WEFT_OK;
    }
    if (weft_tensor_apart(a, b)) {
        return WEFT_OK;
    }
    bool same = a->data == b->data && weft_tensor_end(a) == weft_tensor_end(b);
    return weft_fail(
        context, WEFT_INVALID_ARGUMENT,
        same ? "tensors \"%.*s\" and \"%.*s\" are the same memory, but strides, dtype or shape "
               "differ"
             : "tensors \"%.*s\" and \"%.*s\" overlap in memory; only the same memory under two "
               "names is a tie",
        WEFT_NAME_SHOWN, a->name, WEFT_NAME_SHOWN, b->name);
}

/* `shared_out`: some memory has two names. */
static weft_status check_extents(weft_context *context, const weft_tensor *lives, size_t count,
                                 bool *shared_out) {
    live_extent *extents = weft_allocate_array(context, count, sizeof *extents);
    if (extents == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const weft_tensor *live = &lives[i];
        if (live->data != NULL && live->tied_to < 0) {
            const uint8_t *end = weft_tensor_end(live);
            extents[used++] = (live_extent){live->data, end, end, live};
        }
    }
    qsort(extents, used, sizeof *extents, compare_extents);
    weft_status status = WEFT_OK;
    for (size_t i = 1; i < used && status == WEFT_OK; i++) {
        const uint8_t *before = extents[i - 1].farthest;
        extents[i].farthest = before > extents[i].end ? before : extents[i].end;
        for (size_t j = i; j-- > 0 && status == WEFT_OK && extents[j].farthest > extents[i].start;) {
            status = check_pair(context, extents[j].live, extents[i].live, shared_out);
        }
    }
    weft_release(context, extents);
    return status;
}

/* True if both are the same memory. Behind callbacks only one tensor is known to be the same as another:
 * itself. */
static bool same_memory(const weft_tensor *a, const weft_tensor *b) {
    return a->data != NULL ? a->data == b->data : a == b;
}

/* True if both lie in the same memory in the same way. */
static bool same_place(const weft_mapping *a, const weft_mapping *b) {
    bool same = a->units == b->units && a->row == b->row && a->piece_count == b->piece_count;
    for (size_t i = 0; same && i < a->piece_count; i++) {
        const weft_piece *first = &a->pieces[i];
        const weft_piece *second = &b->pieces[i];
        same = same_memory(first->live, second->live) && first->start == second->start &&
               first->length == second->length && first->live_base == second->live_base &&
               first->live_run == second->live_run && first->live_stride == second->live_stride;
    }
    return same;
}

static weft_status tie_places(weft_view *view, const tensor_place *places, size_t count) {
    for (size_t i = 1; i < count; i++) {
        if (places[i].start != places[i - 1].start) {
            continue;
        }
        size_t tensor = places[i].tensor;
        size_t before = places[i - 1].tensor;
        size_t first = weft_view_tie(view, before);
        first = first == WEFT_NO_TIE ? before : first;
        if (!weft_tensor_alike(&view->tensors[first], &view->tensors[tensor]) ||
            !same_place(&view->mappings[first], &view->mappings[tensor])) {
            return weft_fail(
                view->context, WEFT_INVALID_ARGUMENT,
                "tensors \"%.*s\" and \"%.*s\" share memory here, but lie in it in different ways",
                WEFT_NAME_SHOWN, view->tensors[first].name, WEFT_NAME_SHOWN, view->tensors[tensor].name);
        }
        view->mappings[tensor].tie = first;
        view->tied = true;
    }
    return WEFT_OK;
}

/* A piece of memory that is covered by two tensors whose first pieces lie apart: no tie. */
static weft_status check_pieces(weft_view *view, size_t pieces) {
    tensor_place *places = weft_allocate_array(view->context, pieces, sizeof *places);
    if (places == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t used = 0;
    for (size_t i = 0; i < view->count; i++) {
        const weft_mapping *mapping = &view->mappings[i];
        for (size_t p = 0; mapping->tie == WEFT_NO_TIE && p < mapping->piece_count; p++) {
            if (mapping->pieces[p].live->data != NULL) {
                places[used++] = (tensor_place){place_of(&mapping->pieces[p]), i};
            }
        }
    }
    qsort(places, used, sizeof *places, compare_places);
    weft_status status = WEFT_OK;
    for (size_t i = 1; i < used && status == WEFT_OK; i++) {
        if (places[i].start == places[i - 1].start) {
            status = weft_fail(
                view->context, WEFT_INVALID_ARGUMENT,
                "tensors \"%.*s\" and \"%.*s\" share some of their memory here, and not all of it",
                WEFT_NAME_SHOWN, view->tensors[places[i - 1].tensor].name, WEFT_NAME_SHOWN,
                view->tensors[places[i].tensor].name);
        }
    }
    weft_release(view->context, places);
    return status;
}

weft_status weft_view_find_ties(weft_view *view, const weft_tensor *lives, size_t count) {
    bool shared = false;
    for (size_t i = 0; i < count; i++) {
        view->converts = view->converts || lives[i].converter != NULL;
    }
    weft_status status = check_extents(view->context, lives, count, &shared);
    if (status != WEFT_OK || !shared) {
        return status;
    }
    tensor_place *places = weft_allocate_array(view->context, view->count, sizeof *places);
    if (places == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t used = 0;
    size_t pieces = 0;
    for (size_t i = 0; i < view->count; i++) {
        const weft_mapping *mapping = &view->mappings[i];
        pieces += mapping->piece_count;
        if (mapping->piece_count > 0 && mapping->pieces[0].live->data != NULL) {
            places[used++] = (tensor_place){place_of(&mapping->pieces[0]), i};
        }
    }
    qsort(places, used, sizeof *places, compare_places);
    status = tie_places(view, places, used);
    weft_release(view->context, places);
    return status == WEFT_OK ? check_pieces(view, pieces) : status;
}

size_t weft_view_tie(const weft_view *view, size_t tensor) {
    return view->mappings[tensor].tie;
}

bool weft_view_tied(const weft_view *view) {
    return view->tied;
}
