/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.h: what a layout is made of, for view_layout.c, which turns it into a view. A layout is only
 * the wish; nothing in it is checked against tensors before a view is made.
 */
#ifndef WEFT_TENSOR_LAYOUT_H
#define WEFT_TENSOR_LAYOUT_H

#include <weft/tensor.h>

typedef enum weft_recipe_kind {
    WEFT_RECIPE_CONCAT = 0,
    WEFT_RECIPE_STACK = 1,
    WEFT_RECIPE_TIE = 2,
} weft_recipe_kind;

/* How one live tensor is made. Texts and slices belong to the layout. */
typedef struct weft_recipe {
    weft_recipe_kind kind;
    char *name;
    char *target;       /* tie */
    uint32_t dim;       /* concat */
    weft_slice *slices; /* concat and stack */
    size_t slice_count;
} weft_recipe;

struct weft_layout {
    weft_context *context;
    weft_recipe *recipes;
    size_t count;
    size_t capacity;
    char **ignored;
    size_t ignored_count;
    size_t ignored_capacity;
};

/* True if the layout says that the checkpoint tensor `name` is not wanted. */
bool weft_layout_ignores(const weft_layout *layout, const char *name);

#endif
