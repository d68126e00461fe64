/* SPDX-License-Identifier: Apache-2.0
 *
 * layout_json.c: layouts from JSON.
 *
 *     LAYOUT  = { "weft_layout": 1, "tensors": { NAME: RECIPE, … }, "ignore": [ PATTERN, … ] }
 *     RECIPE  = SLICE-NAME                            the live tensor is that checkpoint tensor, renamed
 *             | { "slice": SLICE }                    one slice: a row or a column split
 *             | { "concat": [ SLICE, … ], "dim": D }  slices joined along dimension D (0 if left out)
 *             | { "stack": [ SLICE, … ] }             slices stacked along a new first dimension
 *             | { "tie": NAME }                       shares the memory of another live tensor
 *     SLICE   = SLICE-NAME                            all of a checkpoint tensor
 *             | { "tensor": SLICE-NAME }              the same
 *             | { "tensor": SLICE-NAME, "dim": D, "start": S, "length": L }
 *                                                     indices S to S + L - 1 along dimension D
 *
 * NAME is a live tensor, SLICE-NAME a checkpoint tensor, PATTERN a checkpoint tensor that this holder
 * does not want, where a '*' at the end stands for any ending. "ignore" may be left out. D, S and L are
 * integers from 0. Rank 1 of 2 of a small model, with q, k and v fused:
 *
 *     {"weft_layout": 1,
 *      "tensors": {
 *        "qkv": {"concat": [{"tensor": "q", "dim": 0, "start": 64, "length": 64},
 *                           {"tensor": "k", "dim": 0, "start": 16, "length": 16},
 *                           {"tensor": "v", "dim": 0, "start": 16, "length": 16}]},
 *        "o": {"slice": {"tensor": "o", "dim": 1, "start": 64, "length": 64}},
 *        "norm": "model.norm",
 *        "embed": "model.embed_tokens",
 *        "head": {"tie": "embed"}},
 *      "ignore": ["vision.*"]}
 *
 * A key that is not in the grammar is an error, as is one that stands twice: a misspelt "lenght" must
 * not quietly become another model.
 */
#include "layout.h"

#include "../base/context.h"
#include "json.h"
#include "table.h"

#include <string.h>

enum {
    DEEPEST = 5,               /* the root, "tensors", a recipe, its array, a slice */
    CONTAINERS_PER_TENSOR = 4, /* a recipe, its array and its slices, with room for fused tensors */
};

/* What a message needs to say where it is. */
typedef struct json_place {
    weft_context *context;
    const char *live; /* the live tensor at hand, or NULL */
} json_place;

static weft_status reject(const json_place *place, const char *what) {
    if (place->live == NULL) {
        return weft_fail(place->context, WEFT_MALFORMED, "layout: %s", what);
    }
    return weft_fail(place->context, WEFT_MALFORMED, "layout: live tensor \"%.*s\": %s", WEFT_NAME_SHOWN,
                     place->live, what);
}

/* `allowed` ends with NULL. */
static weft_status check_keys(const json_place *place, json_t *object, const char *const *allowed) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (allowed[i] != NULL && strcmp(allowed[i], key) != 0) {
            i++;
        }
        if (allowed[i] == NULL) {
            char text[WEFT_NAME_SHOWN + 64];
            snprintf(text, sizeof text, "unknown key \"%.*s\"", WEFT_NAME_SHOWN, key);
            return reject(place, text);
        }
    }
    return WEFT_OK;
}

static weft_status read_number(const json_place *place, json_t *object, const char *key,
                               uint64_t *value_out) {
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        char text[96];
        snprintf(text, sizeof text, "\"%s\" must be an integer from 0", key);
        return reject(place, text);
    }
    *value_out = (uint64_t)json_integer_value(value);
    return WEFT_OK;
}

static weft_status read_dim(const json_place *place, json_t *object, uint32_t *dim_out) {
    uint64_t dim;
    weft_status status = read_number(place, object, "dim", &dim);
    if (status != WEFT_OK) {
        return status;
    }
    if (dim >= WEFT_RANK_MAX) {
        return reject(place, "\"dim\" is larger than any tensor's rank");
    }
    *dim_out = (uint32_t)dim;
    return WEFT_OK;
}

/* The slice's name points into the JSON value. */
static weft_status read_slice(const json_place *place, json_t *value, weft_slice *slice) {
    *slice = (weft_slice){.dim = -1};
    if (json_is_string(value)) {
        slice->tensor = json_string_value(value);
        return WEFT_OK;
    }
    static const char *const allowed[] = {"tensor", "dim", "start", "length", NULL};
    if (!json_is_object(value)) {
        return reject(place, "a slice must be a name or an object");
    }
    weft_status status = check_keys(place, value, allowed);
    if (status != WEFT_OK) {
        return status;
    }
    slice->tensor = json_string_value(json_object_get(value, "tensor"));
    if (slice->tensor == NULL) {
        return reject(place, "a slice must name its \"tensor\"");
    }
    if (json_object_size(value) == 1) {
        return WEFT_OK;
    }
    uint32_t dim = 0;
    status = read_dim(place, value, &dim);
    if (status == WEFT_OK) {
        status = read_number(place, value, "start", &slice->start);
    }
    if (status == WEFT_OK) {
        status = read_number(place, value, "length", &slice->length);
    }
    if (status == WEFT_OK) {
        slice->dim = (int32_t)dim;
    }
    return status;
}

static weft_status read_slices(const json_place *place, json_t *array, weft_slice **slices_out) {
    if (!json_is_array(array) || json_array_size(array) == 0) {
        return reject(place, "\"concat\" and \"stack\" need an array of at least one slice");
    }
    size_t count = json_array_size(array);
    weft_slice *slices = weft_allocate_array(place->context, count, sizeof *slices);
    if (slices == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        weft_status status = read_slice(place, json_array_get(array, i), &slices[i]);
        if (status != WEFT_OK) {
            weft_release(place->context, slices);
            return status;
        }
    }
    *slices_out = slices;
    return WEFT_OK;
}

static weft_status read_concat(const json_place *place, json_t *recipe, weft_layout *layout) {
    static const char *const allowed[] = {"concat", "dim", NULL};
    weft_status status = check_keys(place, recipe, allowed);
    uint32_t dim = 0;
    if (status == WEFT_OK && json_object_get(recipe, "dim") != NULL) {
        status = read_dim(place, recipe, &dim);
    }
    weft_slice *slices = NULL;
    json_t *array = json_object_get(recipe, "concat");
    if (status == WEFT_OK) {
        status = read_slices(place, array, &slices);
    }
    if (status == WEFT_OK) {
        status = weft_layout_concat(layout, place->live, dim, slices, json_array_size(array));
    }
    weft_release(place->context, slices);
    return status;
}

static weft_status read_stack(const json_place *place, json_t *recipe, weft_layout *layout) {
    static const char *const allowed[] = {"stack", NULL};
    weft_status status = check_keys(place, recipe, allowed);
    weft_slice *slices = NULL;
    json_t *array = json_object_get(recipe, "stack");
    if (status == WEFT_OK) {
        status = read_slices(place, array, &slices);
    }
    if (status == WEFT_OK) {
        status = weft_layout_stack(layout, place->live, slices, json_array_size(array));
    }
    weft_release(place->context, slices);
    return status;
}

static weft_status read_single(const json_place *place, json_t *value, weft_layout *layout) {
    weft_slice slice;
    weft_status status = read_slice(place, value, &slice);
    if (status == WEFT_OK) {
        status = weft_layout_concat(layout, place->live, 0, &slice, 1);
    }
    return status;
}

static weft_status read_one_key(const json_place *place, json_t *recipe, weft_layout *layout) {
    static const char *const allowed[] = {"slice", "tie", NULL};
    weft_status status = check_keys(place, recipe, allowed);
    if (status != WEFT_OK) {
        return status;
    }
    if (json_object_size(recipe) != 1) {
        return reject(place, "needs one of \"slice\", \"concat\", \"stack\" and \"tie\"");
    }
    json_t *slice = json_object_get(recipe, "slice");
    if (slice != NULL) {
        return read_single(place, slice, layout);
    }
    const char *target = json_string_value(json_object_get(recipe, "tie"));
    if (target == NULL) {
        return reject(place, "\"tie\" must name a live tensor");
    }
    return weft_layout_tie(layout, place->live, target);
}

static weft_status read_recipe(const json_place *place, json_t *recipe, weft_layout *layout) {
    if (json_is_string(recipe)) {
        return read_single(place, recipe, layout);
    }
    if (!json_is_object(recipe)) {
        return reject(place, "must be a checkpoint tensor's name or an object");
    }
    if (json_object_get(recipe, "concat") != NULL) {
        return read_concat(place, recipe, layout);
    }
    if (json_object_get(recipe, "stack") != NULL) {
        return read_stack(place, recipe, layout);
    }
    return read_one_key(place, recipe, layout);
}

static weft_status read_tensors(const json_place *place, json_t *tensors, weft_layout *layout) {
    if (!json_is_object(tensors)) {
        return reject(place, "\"tensors\" must be an object of live tensors");
    }
    const char *name;
    json_t *recipe;
    json_object_foreach(tensors, name, recipe) {
        json_place inner = {place->context, name};
        weft_status status = read_recipe(&inner, recipe, layout);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status read_ignored(const json_place *place, json_t *patterns, weft_layout *layout) {
    if (patterns == NULL) {
        return WEFT_OK;
    }
    if (!json_is_array(patterns)) {
        return reject(place, "\"ignore\" must be an array of patterns");
    }
    for (size_t i = 0; i < json_array_size(patterns); i++) {
        const char *pattern = json_string_value(json_array_get(patterns, i));
        if (pattern == NULL) {
            return reject(place, "\"ignore\" must be an array of patterns");
        }
        weft_status status = weft_layout_ignore(layout, pattern);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status read_root(weft_context *context, json_t *root, weft_layout *layout) {
    static const char *const allowed[] = {"weft_layout", "tensors", "ignore", NULL};
    json_place place = {context, NULL};
    if (!json_is_object(root)) {
        return reject(&place, "the JSON text must be an object");
    }
    json_t *version = json_object_get(root, "weft_layout");
    if (!json_is_integer(version)) {
        return reject(&place, "\"weft_layout\" must say the version of the grammar, 1");
    }
    if (json_integer_value(version) != 1) {
        return weft_fail(context, WEFT_WRONG_VERSION,
                         "layout: version %lld is not known here, only 1; use a newer weft",
                         (long long)json_integer_value(version));
    }
    weft_status status = check_keys(&place, root, allowed);
    if (status == WEFT_OK) {
        status = read_tensors(&place, json_object_get(root, "tensors"), layout);
    }
    if (status == WEFT_OK) {
        status = read_ignored(&place, json_object_get(root, "ignore"), layout);
    }
    return status;
}

static weft_status load_json(weft_context *context, const char *json, size_t size, json_t **root_out) {
    uint64_t most = weft_context_limits(context)->header_bytes;
    if (size > most) {
        return weft_fail(
            context, WEFT_LIMIT_EXCEEDED,
            "layout: %zu bytes of JSON are more than the limit of %llu; raise limits.header_bytes", size,
            (unsigned long long)most);
    }
    while (size > 0 && strchr(" \t\r\n", json[0]) != NULL && json[0] != '\0') {
        json++;
        size--;
    }
    uint64_t tensors = weft_context_limits(context)->tensors;
    uint64_t containers =
        tensors > UINT64_MAX / CONTAINERS_PER_TENSOR ? UINT64_MAX : tensors * CONTAINERS_PER_TENSOR;
    return weft_json_parse(context, "layout", json, size, DEEPEST, containers, root_out);
}

weft_status weft_layout_parse(weft_context *context, const char *json, size_t size,
                              weft_layout **layout_out) {
    weft_context_clear(context);
    json_t *root;
    weft_status status = load_json(context, json, size, &root);
    if (status != WEFT_OK) {
        return status;
    }
    weft_layout *layout;
    status = weft_layout_create(context, &layout);
    if (status == WEFT_OK) {
        status = read_root(context, root, layout);
        if (status != WEFT_OK) {
            weft_layout_destroy(layout);
        }
    }
    json_decref(root);
    if (status == WEFT_OK) {
        *layout_out = layout;
    }
    return status;
}
