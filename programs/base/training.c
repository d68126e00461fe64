/* SPDX-License-Identifier: Apache-2.0
 *
 * training.c: see training.h. Members are copied by a table into an object of our own, so that what comes
 * out has nothing in it that was not looked at.
 */
#include "training.h"

#include "../../lib/base/context.h"
#include "../../lib/tensor/json.h"

#include <string.h>

enum {
    NAME_MAX_BYTES = 256,
    TENSORS_MAX = 4096,
    WORKERS_MAX = 256,
    REASONS_MAX = 64,
    SETTINGS_MAX = 64,
    SETTINGS_DEPTH = 3,
    STEP_DEPTH = 4,
    STEP_CONTAINERS = 8 + WORKERS_MAX,
};

static const double NUMBER_MOST = 1e18;

typedef enum member_kind {
    NEEDED, /* a number; without it there is no step */
    TOLD,   /* a number, or null if there is none */
} member_kind;

typedef struct member {
    const char *group; /* NULL: of the step itself */
    const char *name;
    member_kind kind;
} member;

static const member step_members[] = {
    {NULL, "step", NEEDED},
    {NULL, "version", NEEDED},
    {NULL, "reward", NEEDED},
    {NULL, "success", TOLD},
    {NULL, "loss", TOLD},
    {NULL, "clipped", TOLD},
    {NULL, "norm", TOLD},
    {NULL, "kl", TOLD},
    {NULL, "rate", NEEDED},
    {NULL, "changed", TOLD},
    {NULL, "elements", NEEDED},
    {NULL, "tokens", TOLD},
    {"density", "1", TOLD},
    {"density", "8", TOLD},
    {"density", "32", TOLD},
    {"bytes", "sent", NEEDED},
    {"bytes", "dense", NEEDED},
    {"staleness", "mean", TOLD},
    {"staleness", "max", TOLD},
    {"trajectories", "used", TOLD},
    {"trajectories", "rejected", TOLD},
    {"seconds", "step", TOLD},
    {"seconds", "wait", TOLD},
    {"seconds", "train", TOLD},
    {"seconds", "publish", TOLD},
    {"seconds", "state", TOLD},
};
static const member worker_members[] = {
    {NULL, "version", TOLD}, {NULL, "generate", TOLD}, {NULL, "pull", TOLD},         {NULL, "pause", TOLD},
    {NULL, "put", TOLD},     {NULL, "received", TOLD}, {NULL, "trajectories", TOLD},
};
enum {
    STEP_MEMBERS = sizeof step_members / sizeof step_members[0],
    WORKER_MEMBERS = sizeof worker_members / sizeof worker_members[0],
};

/* ---- copying ---- */

static bool is_number(const json_t *value) {
    double number = json_number_value(value);
    return json_is_number(value) && number >= -NUMBER_MOST && number <= NUMBER_MOST;
}

static bool is_short_text(const json_t *value) {
    return json_is_string(value) && json_string_length(value) <= NAME_MAX_BYTES;
}

/* The object under a name of `json`, which is made if need be. */
static json_t *find_group(json_t *json, const char *name) {
    json_t *group = name == NULL ? json : json_object_get(json, name);
    if (group == NULL && json_object_set_new(json, name, json_object()) == 0) {
        group = json_object_get(json, name);
    }
    return group;
}

static bool copy_member(const json_t *told, json_t *kept, const member *member) {
    const json_t *group = member->group == NULL ? told : json_object_get(told, member->group);
    json_t *value = json_object_get(group, member->name);
    bool good = is_number(value);
    json_t *into = find_group(kept, member->group);
    if (!good && member->kind == NEEDED) {
        return false;
    }
    return json_object_set_new(into, member->name, good ? json_incref(value) : json_null()) == 0;
}

static bool copy_members(const json_t *told, json_t *kept, const member *members, size_t count) {
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        good = copy_member(told, kept, &members[i]);
    }
    return good;
}

/* Names that the run chooses, each with a number; other values and names too long are left out. */
static bool copy_map(const json_t *told, json_t *kept, const char *name, size_t most) {
    json_t *map = json_object();
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)told, key, value) {
        if (json_object_size(map) < most && strlen(key) <= NAME_MAX_BYTES && is_number(value)) {
            json_object_set(map, key, value);
        }
    }
    return json_object_set_new(kept, name, map) == 0;
}

static json_t *copy_worker(const json_t *told) {
    json_t *kept = json_object();
    json_t *name = json_object_get(told, "name");
    bool good = json_is_object(told) && is_short_text(name) && json_object_set(kept, "name", name) == 0 &&
                copy_members(told, kept, worker_members, WORKER_MEMBERS);
    if (!good) {
        json_decref(kept);
        return NULL;
    }
    return kept;
}

static bool copy_workers(const json_t *told, json_t *kept) {
    json_t *workers = json_array();
    for (size_t i = 0; i < json_array_size(told) && i < WORKERS_MAX; i++) {
        /* what is no worker is not appended, which is no failure of the rest */
        json_array_append_new(workers, copy_worker(json_array_get(told, i)));
    }
    return json_object_set_new(kept, "workers", workers) == 0;
}

/* NULL if it is no step. */
static json_t *copy_step(const json_t *told) {
    json_t *kept = json_object();
    const json_t *reasons = json_object_get(json_object_get(told, "trajectories"), "reasons");
    bool good = json_is_object(told) && copy_members(told, kept, step_members, STEP_MEMBERS) &&
                copy_map(json_object_get(told, "tensors"), kept, "tensors", TENSORS_MAX) &&
                copy_map(reasons, json_object_get(kept, "trajectories"), "reasons", REASONS_MAX) &&
                copy_workers(json_object_get(told, "workers"), kept);
    if (!good) {
        json_decref(kept);
        return NULL;
    }
    return kept;
}

/* Texts, numbers, truth and null, in objects of a few levels; the rest is null. */
static json_t *copy_settings(const json_t *told, unsigned depth) {
    if (json_is_object(told) && depth > 0) {
        json_t *kept = json_object();
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)told, key, value) {
            if (json_object_size(kept) < SETTINGS_MAX && strlen(key) <= NAME_MAX_BYTES) {
                json_object_set_new(kept, key, copy_settings(value, depth - 1));
            }
        }
        return kept;
    }
    bool plain = is_number(told) || is_short_text(told) || json_is_boolean(told);
    return plain ? json_copy((json_t *)told) : json_null();
}

/* ---- reading ---- */

weft_status training_line_parse(weft_context *context, const char *where, const char *text, size_t size,
                                json_t **step_out) {
    json_t *told = NULL;
    weft_status status = weft_json_parse(context, where, text, size, STEP_DEPTH, STEP_CONTAINERS, &told);
    if (status != WEFT_OK) {
        return status;
    }
    json_t *step = copy_step(told);
    json_decref(told);
    if (step == NULL) {
        return weft_fail(context, WEFT_MALFORMED, "%s: this line tells of no step of a trainer", where);
    }
    *step_out = step;
    return WEFT_OK;
}

weft_status training_object_parse(weft_context *context, const char *where, const char *text, size_t size,
                                  json_t **object_out) {
    const uint64_t containers = (uint64_t)1 << 18;
    json_t *told = NULL;
    weft_status status = weft_json_parse(context, where, text, size, 2 + STEP_DEPTH, containers, &told);
    if (status != WEFT_OK) {
        return status;
    }
    json_t *object = json_object(), *steps = json_array();
    const json_t *lines = json_object_get(told, "steps");
    bool good = json_is_array(lines);
    for (size_t i = 0; i < json_array_size(lines) && good; i++) {
        good = training_append(steps, copy_step(json_array_get(lines, i)));
    }
    json_object_set_new(object, "run", copy_settings(json_object_get(told, "run"), SETTINGS_DEPTH));
    json_object_set_new(object, "steps", steps);
    json_decref(told);
    if (!good) {
        json_decref(object);
        return weft_fail(context, WEFT_MALFORMED, "%s: this is no list of a trainer's steps", where);
    }
    *object_out = object;
    return WEFT_OK;
}

weft_status training_run_parse(weft_context *context, const char *where, const char *text, size_t size,
                               json_t **run_out) {
    json_t *told = NULL;
    weft_status status = weft_json_parse(context, where, text, size, SETTINGS_DEPTH, SETTINGS_MAX, &told);
    if (status == WEFT_OK) {
        *run_out = copy_settings(told, SETTINGS_DEPTH);
        json_decref(told);
    }
    return status;
}

/* ---- steps ---- */

bool training_append(json_t *steps, json_t *step) {
    if (step == NULL) {
        return false;
    }
    double number = training_number(step, NULL, "step", 0);
    size_t count = json_array_size(steps);
    while (count > 0 && training_number(json_array_get(steps, count - 1), NULL, "step", 0) >= number) {
        json_array_remove(steps, --count);
    }
    if (count >= TRAINING_STEPS_MAX) {
        json_decref(step);
        return false;
    }
    return json_array_append_new(steps, step) == 0;
}

double training_number(const json_t *step, const char *group, const char *name, double otherwise) {
    const json_t *value = json_object_get(group == NULL ? step : json_object_get(step, group), name);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}
