/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: layouts, made in code. layout_json.c makes them from text through the same calls.
 */
#include "layout.h"

#include "../base/context.h"
#include "table.h"

#include <string.h>

weft_status weft_layout_create(weft_context *context, weft_layout **layout_out) {
    weft_context_clear(context);
    weft_layout *layout = weft_allocate_zeroed(context, 1, sizeof *layout);
    if (layout == NULL) {
        return WEFT_NO_MEMORY;
    }
    layout->context = context;
    *layout_out = layout;
    return WEFT_OK;
}

static void release_recipe(weft_context *context, weft_recipe *recipe) {
    for (size_t i = 0; i < recipe->slice_count; i++) {
        weft_release(context, (char *)recipe->slices[i].tensor);
    }
    weft_release(context, recipe->slices);
    weft_release(context, recipe->target);
    weft_release(context, recipe->name);
}

void weft_layout_destroy(weft_layout *layout) {
    if (layout == NULL) {
        return;
    }
    weft_context *context = layout->context;
    for (size_t i = 0; i < layout->count; i++) {
        release_recipe(context, &layout->recipes[i]);
    }
    weft_release(context, layout->recipes);
    for (size_t i = 0; i < layout->ignored_count; i++) {
        weft_release(context, layout->ignored[i]);
    }
    weft_release(context, layout->ignored);
    weft_release(context, layout);
}

static weft_status check_name(weft_context *context, const char *role, const char *name) {
    if (name == NULL || name[0] == '\0') {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "layout: %s has no name", role);
    }
    if (strlen(name) > WEFT_NAME_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "layout: %s \"%.*s…\" has a name of more than %d bytes", role, WEFT_NAME_SHOWN,
                         name, WEFT_NAME_MAX);
    }
    return WEFT_OK;
}

static size_t grown(size_t capacity) {
    return capacity == 0 ? 16 : capacity * 2;
}

/* A new recipe of the given name at the end of the layout, for the caller to fill in. It counts from
 * now on, so that a failure later leaves it to drop_last. */
static weft_status add_recipe(weft_layout *layout, weft_recipe_kind kind, const char *name,
                              weft_recipe **recipe_out) {
    weft_status status = check_name(layout->context, "a live tensor", name);
    if (status != WEFT_OK) {
        return status;
    }
    if (layout->count == layout->capacity) {
        size_t capacity = grown(layout->capacity);
        weft_recipe *recipes =
            weft_reallocate_array(layout->context, layout->recipes, capacity, sizeof *recipes);
        if (recipes == NULL) {
            return WEFT_NO_MEMORY;
        }
        layout->recipes = recipes;
        layout->capacity = capacity;
    }
    char *copy = weft_copy_text(layout->context, name, strlen(name));
    if (copy == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_recipe *recipe = &layout->recipes[layout->count++];
    *recipe = (weft_recipe){.kind = kind, .name = copy};
    *recipe_out = recipe;
    return WEFT_OK;
}

static void drop_last(weft_layout *layout) {
    release_recipe(layout->context, &layout->recipes[--layout->count]);
}

static weft_status check_slice(weft_context *context, const char *name, const weft_slice *slice) {
    weft_status status = check_name(context, "a slice", slice->tensor);
    if (status != WEFT_OK) {
        return status;
    }
    if (slice->dim < -1 || slice->dim >= WEFT_RANK_MAX) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "layout: \"%.*s\" takes a slice of \"%.*s\" along dimension %d, which no tensor has",
            WEFT_NAME_SHOWN, name, WEFT_NAME_SHOWN, slice->tensor, (int)slice->dim);
    }
    return WEFT_OK;
}

static weft_status copy_slices(weft_layout *layout, weft_recipe *recipe, const weft_slice *slices,
                               size_t count) {
    if (slices == NULL || count == 0) {
        return weft_fail(layout->context, WEFT_INVALID_ARGUMENT,
                         "layout: live tensor \"%.*s\" is made of no slices", WEFT_NAME_SHOWN,
                         recipe->name);
    }
    recipe->slices = weft_allocate_array(layout->context, count, sizeof *recipe->slices);
    if (recipe->slices == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        weft_status status = check_slice(layout->context, recipe->name, &slices[i]);
        if (status != WEFT_OK) {
            return status;
        }
        char *tensor = weft_copy_text(layout->context, slices[i].tensor, strlen(slices[i].tensor));
        if (tensor == NULL) {
            return WEFT_NO_MEMORY;
        }
        recipe->slices[i] = slices[i];
        recipe->slices[i].tensor = tensor;
        recipe->slice_count++;
    }
    return WEFT_OK;
}

static weft_status add_slices(weft_layout *layout, weft_recipe_kind kind, const char *name, uint32_t dim,
                              const weft_slice *slices, size_t count) {
    weft_context_clear(layout->context);
    weft_recipe *recipe;
    weft_status status = add_recipe(layout, kind, name, &recipe);
    if (status != WEFT_OK) {
        return status;
    }
    recipe->dim = dim;
    status = copy_slices(layout, recipe, slices, count);
    if (status != WEFT_OK) {
        drop_last(layout);
    }
    return status;
}

weft_status weft_layout_concat(weft_layout *layout, const char *name, uint32_t dim,
                               const weft_slice *slices, size_t count) {
    return add_slices(layout, WEFT_RECIPE_CONCAT, name, dim, slices, count);
}

weft_status weft_layout_stack(weft_layout *layout, const char *name, const weft_slice *slices,
                              size_t count) {
    return add_slices(layout, WEFT_RECIPE_STACK, name, 0, slices, count);
}

weft_status weft_layout_tie(weft_layout *layout, const char *name, const char *target) {
    weft_context_clear(layout->context);
    weft_status status = check_name(layout->context, "the target of a tie", target);
    if (status != WEFT_OK) {
        return status;
    }
    weft_recipe *recipe;
    status = add_recipe(layout, WEFT_RECIPE_TIE, name, &recipe);
    if (status != WEFT_OK) {
        return status;
    }
    recipe->target = weft_copy_text(layout->context, target, strlen(target));
    if (recipe->target == NULL) {
        drop_last(layout);
        return WEFT_NO_MEMORY;
    }
    return WEFT_OK;
}

weft_status weft_layout_ignore(weft_layout *layout, const char *pattern) {
    weft_context_clear(layout->context);
    weft_status status = check_name(layout->context, "an ignored pattern", pattern);
    if (status != WEFT_OK) {
        return status;
    }
    const char *star = strchr(pattern, '*');
    if (star != NULL && star[1] != '\0') {
        return weft_fail(layout->context, WEFT_INVALID_ARGUMENT,
                         "layout: in the ignored pattern \"%.*s\" a '*' may stand at the end only",
                         WEFT_NAME_SHOWN, pattern);
    }
    if (layout->ignored_count == layout->ignored_capacity) {
        size_t capacity = grown(layout->ignored_capacity);
        char **ignored = weft_reallocate_array(layout->context, layout->ignored, capacity, sizeof *ignored);
        if (ignored == NULL) {
            return WEFT_NO_MEMORY;
        }
        layout->ignored = ignored;
        layout->ignored_capacity = capacity;
    }
    char *copy = weft_copy_text(layout->context, pattern, strlen(pattern));
    if (copy == NULL) {
        return WEFT_NO_MEMORY;
    }
    layout->ignored[layout->ignored_count++] = copy;
    return WEFT_OK;
}

static bool matches(const char *pattern, const char *name) {
    size_t length = strlen(pattern);
    if (length > 0 && pattern[length - 1] == '*') {
        return strncmp(pattern, name, length - 1) == 0;
    }
    return strcmp(pattern, name) == 0;
}

bool weft_layout_ignores(const weft_layout *layout, const char *name) {
    for (size_t i = 0; i < layout->ignored_count; i++) {
        if (matches(layout->ignored[i], name)) {
            return true;
        }
    }
    return false;
}
