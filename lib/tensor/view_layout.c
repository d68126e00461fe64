/* SPDX-License-Identifier: Apache-2.0
 *
 * view_layout.c: a layout, checked against live and checkpoint tensors and turned into a view.
 *
 * First every recipe is matched with its live tensor, and every slice becomes a draft: its range of
 * the checkpoint tensor's rows, and its place in the live tensor. The shapes that a recipe makes must
 * be exactly the live tensor's, so each live element is covered once. Then drafts are sorted by
 * checkpoint tensor and start, where overlaps stand side by side. Everything is an error here, at load
 * time, so that nothing has to be asked later.
 */
#include "layout.h"
#include "pieces.h"
#include "strides.h"
#include "table.h"

#include "../base/context.h"
#include "digest.h"

#include <stdlib.h>
#include <string.h>

typedef struct slice_draft {
    weft_piece piece;
    size_t tensor; /* view index */
    uint64_t row;
    const weft_recipe *recipe;
    const weft_slice *slice;
} slice_draft;

typedef struct view_builder {
    weft_context *context;
    weft_view *view;
    const weft_table *table;
    const weft_table *checkpoint;
    const weft_layout *layout;
    const weft_recipe **by_name; /* the recipes, names ascending */
    const weft_recipe **owner;   /* the recipe that makes each live tensor of the table */
    bool *used;                  /* each checkpoint tensor of the view: some slice names it */
    slice_draft *drafts;
    size_t draft_count;
} view_builder;

/* ---- names ---- */

static int compare_recipes(const void *a, const void *b) {
    const weft_recipe *const *first = a;
    const weft_recipe *const *second = b;
    return strcmp((*first)->name, (*second)->name);
}

static weft_status sort_recipes(view_builder *builder) {
    size_t count = builder->layout->count;
    for (size_t i = 0; i < count; i++) {
        builder->by_name[i] = &builder->layout->recipes[i];
    }
    qsort(builder->by_name, count, sizeof *builder->by_name, compare_recipes);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(builder->by_name[i - 1]->name, builder->by_name[i]->name) == 0) {
            return weft_fail(builder->context, WEFT_INVALID_ARGUMENT,
                             "layout: live tensor \"%.*s\" is covered twice: it has two recipes",
                             WEFT_NAME_SHOWN, builder->by_name[i]->name);
        }
    }
    return WEFT_OK;
}

static const weft_recipe *find_recipe(const view_builder *builder, const char *name) {
    weft_recipe key = {.name = (char *)name};
    const weft_recipe *wanted = &key;
    const weft_recipe **found = bsearch(&wanted, builder->by_name, builder->layout->count,
                                        sizeof *builder->by_name, compare_recipes);
    return found == NULL ? NULL : *found;
}

/* The index of the tensor behind a name, ties followed, or -1. */
static int64_t find_root(const weft_table *table, const char *name) {
    int64_t index = weft_table_find(table, name);
    if (index < 0) {
        return -1;
    }
    int64_t target = weft_table_at(table, (size_t)index)->tied_to;
    return target < 0 ? index : target;
}

/* ---- shapes ---- */

static uint64_t product(const uint64_t *shape, uint32_t begin, uint32_t end) {
    uint64_t result = 1;
    for (uint32_t i = begin; i < end; i++) {
        result *= shape[i]; /* fits: the table checked that every product of dimensions does */
    }
    return result;
}

/* Elements as units of the dtype. Types under a byte count in bytes, and must fill them. */
static bool to_units(weft_dtype dtype, uint64_t elements, uint64_t *units_out) {
    unsigned bits = weft_dtype_bits(dtype);
    if (bits >= 8) {
        *units_out = elements;
        return true;
    }
    *units_out = elements / 8 * bits + elements % 8 * bits / 8;
    return elements % 8 * bits % 8 == 0;
}

static weft_status fail_slice(const view_builder *builder, weft_status status, const weft_recipe *recipe,
                              const weft_slice *slice, const char *what) {
    if (slice->dim < 0) {
        return weft_fail(builder->context, status,
                         "layout: live tensor \"%.*s\": checkpoint tensor \"%.*s\" %s", WEFT_NAME_SHOWN,
                         recipe->name, WEFT_NAME_SHOWN, slice->tensor, what);
    }
    return weft_fail(builder->context, status,
                     "layout: live tensor \"%.*s\": slice of \"%.*s\" along dimension %d, start %llu, "
                     "length %llu, %s",
                     WEFT_NAME_SHOWN, recipe->name, WEFT_NAME_SHOWN, slice->tensor, (int)slice->dim,
                     (unsigned long long)slice->start, (unsigned long long)slice->length, what);
}

/* The checkpoint tensor of a slice, and the slice's own shape. */
static weft_status shape_slice(view_builder *builder, const weft_recipe *recipe, const weft_slice *slice,
                               size_t *tensor_out, weft_tensor *shape_out) {
    int64_t index = find_root(builder->checkpoint, slice->tensor);
    if (index < 0) {
        return fail_slice(builder, WEFT_NOT_FOUND, recipe, slice, "is not in the checkpoint");
    }
    const char *name = weft_table_at(builder->checkpoint, (size_t)index)->name;
    size_t tensor = (size_t)weft_view_find(builder->view, name);
    *shape_out = *weft_view_at(builder->view, tensor);
    if (slice->dim >= 0) {
        if ((uint32_t)slice->dim >= shape_out->rank) {
            return fail_slice(builder, WEFT_INVALID_ARGUMENT, recipe, slice,
                              "names a dimension that the tensor does not have");
        }
        uint64_t length = shape_out->shape[slice->dim];
        if (slice->length == 0 || slice->start > length || slice->length > length - slice->start) {
            return fail_slice(builder, WEFT_INVALID_ARGUMENT, recipe, slice,
                              "is empty or leaves the tensor's range");
        }
        shape_out->shape[slice->dim] = slice->length;
    }
    *tensor_out = tensor;
    return WEFT_OK;
}

/* Whether slices of shapes `a` and `b` can be joined: equal but for dimension `dim`. */
static bool joinable(const weft_tensor *a, const weft_tensor *b, uint32_t dim) {
    if (a->rank != b->rank || a->dtype != b->dtype) {
        return false;
    }
    for (uint32_t i = 0; i < a->rank; i++) {
        if (i != dim && a->shape[i] != b->shape[i]) {
            return false;
        }
    }
    return true;
}

/* Adds the slice's shape to `whole`, the shape of the recipe's slices before it. */
static weft_status join_shape(const view_builder *builder, const weft_recipe *recipe,
                              const weft_slice *slice, const weft_tensor *shape, weft_tensor *whole) {
    bool stack = recipe->kind == WEFT_RECIPE_STACK;
    if (!joinable(shape, whole, stack ? WEFT_RANK_MAX : recipe->dim)) {
        return fail_slice(builder, WEFT_INVALID_ARGUMENT, recipe, slice,
                          "does not fit to the slice before it: dtype or shape differ");
    }
    if (!stack && __builtin_add_overflow(whole->shape[recipe->dim], shape->shape[recipe->dim],
                                         &whole->shape[recipe->dim])) {
        return fail_slice(builder, WEFT_INVALID_ARGUMENT, recipe, slice,
                          "makes the live tensor larger than 64 bits can count");
    }
    return WEFT_OK;
}

static bool same_shape(const weft_tensor *a, const uint64_t *shape, uint32_t rank) {
    return a->rank == rank && memcmp(a->shape, shape, rank * sizeof shape[0]) == 0;
}

static weft_status check_live(const view_builder *builder, const weft_recipe *recipe,
                              const weft_tensor *whole, const weft_tensor *live) {
    uint64_t shape[WEFT_RANK_MAX + 1] = {recipe->slice_count};
    uint32_t rank = whole->rank;
    bool stack = recipe->kind == WEFT_RECIPE_STACK;
    memcpy(shape + stack, whole->shape, whole->rank * sizeof shape[0]);
    rank += stack;
    if (whole->dtype != live->dtype) {
        return weft_fail(
            builder->context, WEFT_INVALID_ARGUMENT,
            "layout: live tensor \"%.*s\" is %s, but the checkpoint has %s; publish what followers hold: "
            "F32 masters of BF16 weights have dtype BF16 and storage F32 (in Python dtype=\"bfloat16\")",
            WEFT_NAME_SHOWN, recipe->name, weft_dtype_name(live->dtype), weft_dtype_name(whole->dtype));
    }
    if (rank != live->rank) {
        return weft_fail(builder->context, WEFT_INVALID_ARGUMENT,
                         "layout: live tensor \"%.*s\" has %u dimensions, but its slices make %u",
                         WEFT_NAME_SHOWN, recipe->name, (unsigned)live->rank, (unsigned)rank);
    }
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] != live->shape[i]) {
            return weft_fail(
                builder->context, WEFT_INVALID_ARGUMENT,
                "layout: dimension %u of live tensor \"%.*s\" is %llu, but its slices cover %llu",
                (unsigned)i, WEFT_NAME_SHOWN, recipe->name, (unsigned long long)live->shape[i],
                (unsigned long long)shape[i]);
        }
    }
    return WEFT_OK;
}

/* ---- drafts ---- */

/* The slice's range of each row of its checkpoint tensor. */
static bool place_in_checkpoint(const weft_tensor *tensor, const weft_slice *slice, slice_draft *draft) {
    uint64_t row = product(tensor->shape, 0, tensor->rank);
    uint64_t start = 0;
    uint64_t length = row;
    if (slice->dim >= 0 && slice->length < tensor->shape[slice->dim]) {
        uint32_t dim = (uint32_t)slice->dim;
        uint64_t inner = product(tensor->shape, dim + 1, tensor->rank);
        row = tensor->shape[dim] * inner;
        start = slice->start * inner;
        length = slice->length * inner;
    }
    return to_units(tensor->dtype, row, &draft->row) &&
           to_units(tensor->dtype, start, &draft->piece.start) &&
           to_units(tensor->dtype, length, &draft->piece.length);
}

/* Where the slice lies in the live tensor. `before` counts the indices along the recipe's dimension (a
 * stack: the slices) before this one. */
static bool place_in_live(const weft_recipe *recipe, const weft_tensor *shape, const weft_tensor *live,
                          uint64_t before, slice_draft *draft) {
    uint64_t elements = product(shape->shape, 0, shape->rank);
    uint64_t base = before * elements;
    uint64_t run = elements;
    uint64_t stride = elements;
    if (recipe->kind == WEFT_RECIPE_CONCAT && shape->rank > 0) {
        uint64_t inner = product(shape->shape, recipe->dim + 1, shape->rank);
        base = before * inner;
        if (product(shape->shape, 0, recipe->dim) > 1 && recipe->slice_count > 1) {
            run = shape->shape[recipe->dim] * inner;
            stride = live->shape[recipe->dim] * inner;
        }
    }
    return to_units(live->dtype, base, &draft->piece.live_base) &&
           to_units(live->dtype, run, &draft->piece.live_run) &&
           to_units(live->dtype, stride, &draft->piece.live_stride);
}

/* Drafts of one recipe whose shapes are proven to fit. Empty slices need none. */
static weft_status draft_slices(view_builder *builder, const weft_recipe *recipe, size_t live) {
    uint64_t before = 0;
    for (size_t i = 0; i < recipe->slice_count; i++) {
        const weft_slice *slice = &recipe->slices[i];
        size_t tensor;
        weft_tensor shape = {.size = sizeof shape};
        weft_status status = shape_slice(builder, recipe, slice, &tensor, &shape);
        if (status != WEFT_OK) {
            return status;
        }
        builder->used[tensor] = true;
        if (product(shape.shape, 0, shape.rank) > 0) {
            slice_draft *draft = &builder->drafts[builder->draft_count++];
            draft->tensor = tensor;
            draft->recipe = recipe;
            draft->slice = slice;
            draft->piece.live = &builder->view->live[live];
            if (!place_in_checkpoint(weft_view_at(builder->view, tensor), slice, draft) ||
                !place_in_live(recipe, &shape, draft->piece.live, before, draft)) {
                return fail_slice(builder, WEFT_INVALID_ARGUMENT, recipe, slice,
                                  "cuts through a byte of a type smaller than one");
            }
        }
        before += recipe->kind == WEFT_RECIPE_STACK || shape.rank == 0 ? 1 : shape.shape[recipe->dim];
    }
    return WEFT_OK;
}

static weft_status check_concat_dim(const view_builder *builder, const weft_recipe *recipe, uint32_t rank) {
    if (recipe->kind == WEFT_RECIPE_STACK || recipe->dim < rank ||
        (rank == 0 && recipe->dim == 0 && recipe->slice_count == 1)) {
        return WEFT_OK;
    }
    return weft_fail(builder->context, WEFT_INVALID_ARGUMENT,
                     "layout: live tensor \"%.*s\" is joined along dimension %u, but its slices have %u",
                     WEFT_NAME_SHOWN, recipe->name, (unsigned)recipe->dim, (unsigned)rank);
}

static weft_status measure_recipe(view_builder *builder, const weft_recipe *recipe, weft_tensor *whole) {
    size_t tensor;
    weft_status status = shape_slice(builder, recipe, &recipe->slices[0], &tensor, whole);
    if (status == WEFT_OK) {
        status = check_concat_dim(builder, recipe, whole->rank);
    }
    for (size_t i = 1; i < recipe->slice_count && status == WEFT_OK; i++) {
        weft_tensor shape = {.size = sizeof shape};
        status = shape_slice(builder, recipe, &recipe->slices[i], &tensor, &shape);
        if (status == WEFT_OK) {
            status = join_shape(builder, recipe, &recipe->slices[i], &shape, whole);
        }
    }
    return status;
}

static weft_status follow_recipe(view_builder *builder, const weft_recipe *recipe) {
    int64_t live = find_root(builder->table, recipe->name);
    if (live < 0) {
        return weft_fail(builder->context, WEFT_NOT_FOUND,
                         "layout: live tensor \"%.*s\" is not in the table of live tensors",
                         WEFT_NAME_SHOWN, recipe->name);
    }
    if (builder->owner[live] != NULL) {
        return weft_fail(builder->context, WEFT_INVALID_ARGUMENT,
                         "layout: live tensors \"%.*s\" and \"%.*s\" are tied, so their memory is covered "
                         "twice; say \"tie\" for one of them",
                         WEFT_NAME_SHOWN, builder->owner[live]->name, WEFT_NAME_SHOWN, recipe->name);
    }
    builder->owner[live] = recipe;
    weft_tensor whole = {.size = sizeof whole};
    weft_status status = measure_recipe(builder, recipe, &whole);
    if (status == WEFT_OK) {
        status = check_live(builder, recipe, &whole, &builder->view->live[live]);
    }
    if (status == WEFT_OK) {
        status = draft_slices(builder, recipe, (size_t)live);
    }
    return status;
}

/* A tied name needs no tensor in the table; if it has one, it must be the target's memory. */
static weft_status follow_tie(view_builder *builder, const weft_recipe *tie) {
    const weft_recipe *made = find_recipe(builder, tie->target);
    if (made == NULL || made->kind == WEFT_RECIPE_TIE) {
        return weft_fail(builder->context, made == NULL ? WEFT_NOT_FOUND : WEFT_INVALID_ARGUMENT,
                         "layout: live tensor \"%.*s\" is tied to \"%.*s\", which %s", WEFT_NAME_SHOWN,
                         tie->name, WEFT_NAME_SHOWN, tie->target,
                         made == NULL ? "the layout does not make" : "is itself tied");
    }
    int64_t name = find_root(builder->table, tie->name);
    int64_t target = find_root(builder->table, tie->target);
    if (name < 0 || name == target) {
        return WEFT_OK;
    }
    const weft_tensor *a = &builder->view->live[name];
    const weft_tensor *b = &builder->view->live[target];
    if (a->dtype != b->dtype || a->storage != b->storage || !same_shape(a, b->shape, b->rank)) {
        return weft_fail(builder->context, WEFT_INVALID_ARGUMENT,
                         "layout: live tensors \"%.*s\" and \"%.*s\" are tied, but dtype or shape differ",
                         WEFT_NAME_SHOWN, tie->name, WEFT_NAME_SHOWN, tie->target);
    }
    bool same = a->access == b->access && a->opaque == b->opaque && weft_tensor_same_places(a, b);
    if (!same) {
        return weft_fail(
            builder->context, WEFT_INVALID_ARGUMENT,
            "layout: live tensors \"%.*s\" and \"%.*s\" are tied, but each has memory of its own; "
            "point both to the same",
            WEFT_NAME_SHOWN, tie->name, WEFT_NAME_SHOWN, tie->target);
    }
    builder->owner[name] = tie;
    return WEFT_OK;
}

static weft_status follow_recipes(view_builder *builder) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < builder->layout->count && status == WEFT_OK; i++) {
        const weft_recipe *recipe = &builder->layout->recipes[i];
        status = recipe->kind == WEFT_RECIPE_TIE ? WEFT_OK : follow_recipe(builder, recipe);
    }
    for (size_t i = 0; i < builder->layout->count && status == WEFT_OK; i++) {
        const weft_recipe *recipe = &builder->layout->recipes[i];
        status = recipe->kind == WEFT_RECIPE_TIE ? follow_tie(builder, recipe) : WEFT_OK;
    }
    return status;
}

/* ---- what is covered ---- */

static weft_status check_covered(const view_builder *builder) {
    for (size_t i = 0; i < weft_table_sorted_count(builder->table); i++) {
        size_t live = weft_table_sorted(builder->table, i);
        if (builder->owner[live] == NULL) {
            return weft_fail(
                builder->context, WEFT_INVALID_ARGUMENT,
                "layout: live tensor \"%.*s\" is not covered by any slice; add a recipe or a tie",
                WEFT_NAME_SHOWN, builder->view->live[live].name);
        }
    }
    for (size_t i = 0; i < builder->view->count; i++) {
        const char *name = builder->view->tensors[i].name;
        if (!builder->used[i] && !weft_layout_ignores(builder->layout, name)) {
            return weft_fail(builder->context, WEFT_INVALID_ARGUMENT,
                             "layout: checkpoint tensor \"%.*s\" is neither used nor ignored; add it to a "
                             "recipe or to \"ignore\"",
                             WEFT_NAME_SHOWN, name);
        }
    }
    return WEFT_OK;
}

static int compare_drafts(const void *a, const void *b) {
    const slice_draft *first = a;
    const slice_draft *second = b;
    if (first->tensor != second->tensor) {
        return first->tensor < second->tensor ? -1 : 1;
    }
    if (first->piece.start != second->piece.start) {
        return first->piece.start < second->piece.start ? -1 : 1;
    }
    return 0;
}

/* Different rows mean different dimensions, and such slices always meet. */
static weft_status check_overlap(const view_builder *builder, const slice_draft *drafts, size_t count) {
    for (size_t i = 1; i < count; i++) {
        const slice_draft *last = &drafts[i - 1];
        const slice_draft *next = &drafts[i];
        if (last->row != next->row || last->piece.start + last->piece.length > next->piece.start) {
            return weft_fail(
                builder->context, WEFT_INVALID_ARGUMENT,
                "layout: checkpoint tensor \"%.*s\" is covered twice where slices of live tensors "
                "\"%.*s\" and \"%.*s\" meet",
                WEFT_NAME_SHOWN, weft_view_at(builder->view, last->tensor)->name, WEFT_NAME_SHOWN,
                last->recipe->name, WEFT_NAME_SHOWN, next->recipe->name);
        }
    }
    return WEFT_OK;
}

static weft_status fail_word(const view_builder *builder, const slice_draft *draft) {
    return fail_slice(builder, WEFT_INVALID_ARGUMENT, draft->recipe, draft->slice,
                      "ends within a 16-byte word of the checkpoint tensor whose rest is not held; cuts "
                      "must fall on 16 bytes, or the digest cannot be kept");
}

/* Each 16-byte word of the checkpoint tensor must be held as a whole or not at all. Whatever is held of
 * a row begins and ends at the same places in every row, so all of them lie on words if these places
 * and the length of a row do. */
static weft_status check_words(const view_builder *builder, const slice_draft *drafts, size_t count) {
    const weft_mapping *mapping = &builder->view->mappings[drafts[0].tensor];
    uint64_t width = weft_dtype_width(weft_view_at(builder->view, drafts[0].tensor)->dtype);
    uint64_t row = drafts[0].row;
    uint64_t end = 0;
    bool gaps = false;
    for (size_t i = 0; i < count; i++) {
        const weft_piece *piece = &drafts[i].piece;
        if (piece->start > end) {
            gaps = true;
            if (piece->start * width % WEFT_WORD != 0) {
                return fail_word(builder, &drafts[i]);
            }
            if (end * width % WEFT_WORD != 0) {
                return fail_word(builder, &drafts[i - 1]);
            }
        }
        end = piece->start + piece->length;
    }
    if (end < row) {
        gaps = true;
        if (end * width % WEFT_WORD != 0) {
            return fail_word(builder, &drafts[count - 1]);
        }
    }
    if (gaps && mapping->units > row && row * width % WEFT_WORD != 0) {
        return fail_word(builder, &drafts[0]);
    }
    return WEFT_OK;
}

static weft_status settle_tensor(view_builder *builder, size_t first, size_t count) {
    const slice_draft *drafts = &builder->drafts[first];
    weft_status status = check_overlap(builder, drafts, count);
    if (status == WEFT_OK) {
        status = check_words(builder, drafts, count);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_mapping *mapping = &builder->view->mappings[drafts[0].tensor];
    mapping->row = drafts[0].row;
    mapping->pieces = &builder->view->pieces[first];
    mapping->piece_count = count;
    for (size_t i = 0; i < count; i++) {
        mapping->pieces[i] = drafts[i].piece;
    }
    return WEFT_OK;
}

static weft_status settle_drafts(view_builder *builder) {
    qsort(builder->drafts, builder->draft_count, sizeof *builder->drafts, compare_drafts);
    size_t first = 0;
    while (first < builder->draft_count) {
        size_t end = first + 1;
        while (end < builder->draft_count && builder->drafts[end].tensor == builder->drafts[first].tensor) {
            end++;
        }
        weft_status status = settle_tensor(builder, first, end - first);
        if (status != WEFT_OK) {
            return status;
        }
        first = end;
    }
    weft_view_settle(builder->view);
    return WEFT_OK;
}

/* ---- the whole ---- */

static size_t count_slices(const weft_layout *layout) {
    size_t count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        count += layout->recipes[i].slice_count;
    }
    return count;
}

/* The view's own copies of what the checkpoint's tensors say and of the live tensors. */
static weft_status open_builder(view_builder *builder) {
    weft_context *context = builder->context;
    size_t slices = count_slices(builder->layout);
    size_t live_count = weft_table_count(builder->table);
    weft_status status = weft_view_begin(context, builder->checkpoint, slices, &builder->view);
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < builder->view->count; i++) {
        builder->view->tensors[i].data = NULL;
        builder->view->tensors[i].access = NULL;
        builder->view->tensors[i].strides = NULL;
        builder->view->tensors[i].converter = NULL;
    }
    builder->view->batch = weft_table_batch(builder->table);
    builder->view->live = weft_allocate_array(context, live_count, sizeof *builder->view->live);
    builder->by_name = weft_allocate_array(context, builder->layout->count, sizeof *builder->by_name);
    builder->owner = weft_allocate_zeroed(context, live_count, sizeof *builder->owner);
    builder->used = weft_allocate_zeroed(context, builder->view->count, sizeof *builder->used);
    builder->drafts = weft_allocate_zeroed(context, slices, sizeof *builder->drafts);
    if (builder->view->live == NULL || builder->by_name == NULL || builder->owner == NULL ||
        builder->used == NULL || builder->drafts == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < live_count; i++) {
        builder->view->live[i] = *weft_table_at(builder->table, i);
    }
    return WEFT_OK;
}

static void close_builder(view_builder *builder) {
    weft_release(builder->context, builder->drafts);
    weft_release(builder->context, builder->used);
    weft_release(builder->context, builder->owner);
    weft_release(builder->context, builder->by_name);
}

weft_status weft_view_create_layout(weft_context *context, const weft_table *table,
                                    const weft_layout *layout, const weft_table *checkpoint,
                                    weft_view **view_out) {
    weft_context_clear(context);
    view_builder builder = {.context = context, .table = table, .checkpoint = checkpoint, .layout = layout};
    weft_status status = open_builder(&builder);
    if (status == WEFT_OK) {
        status = sort_recipes(&builder);
    }
    if (status == WEFT_OK) {
        status = follow_recipes(&builder);
    }
    if (status == WEFT_OK) {
        status = check_covered(&builder);
    }
    if (status == WEFT_OK) {
        status = settle_drafts(&builder);
    }
    if (status == WEFT_OK) {
        status = weft_view_find_ties(builder.view, builder.view->live, weft_table_count(table));
    }
    close_builder(&builder);
    if (status != WEFT_OK) {
        weft_view_destroy(builder.view);
        return status;
    }
    *view_out = builder.view;
    return WEFT_OK;
}
