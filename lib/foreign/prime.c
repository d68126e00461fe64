/* SPDX-License-Identifier: Apache-2.0
 *
 * prime.c: sparse steps of prime-rl, in both shapes that it had:
 *
 * step_N/sparse_manifest.json, rank_R.safetensors and STABLE: positions and values by rank, of which each
 * has some of a tensor. The manifest has a SHA-256 of itself.
 *
 * step_N/sparse_update_manifest.json and sparse_update_patch.safetensors, which may be one frame of zstd.
 * Each tensor has the exclusive or of its positions and values, widened to 64 bits, as torch.hash_tensor
 * computes it.
 *
 * Both say which step they lead on from, and neither proves the weights that come out.
 */
#include "format.h"

#include "../base/context.h"
#include "../base/hash.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/checkpoint/index.h"
#include "../tensor/json.h"
#include "../tensor/table.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8, LONG_NUMBER = 19 };

static const char BY_RANK[] = "sparse_manifest.json";
static const char AT_ONCE[] = "sparse_update_manifest.json";

/* ---- manifests ---- */

/* Numbers of 64 bits without a sign are too large for the parser: they become texts. */
static char *quote_long_numbers(weft_context *context, const char *text, size_t size, size_t *size_out) {
    char *output = weft_allocate(context, size + size / LONG_NUMBER * 2 + 2);
    size_t used = 0;
    bool inside = false;
    for (size_t i = 0; output != NULL && i < size;) {
        size_t digits = 0;
        while (!inside && i + digits < size && text[i + digits] >= '0' && text[i + digits] <= '9') {
            digits++;
        }
        bool whole = digits >= LONG_NUMBER && (i == 0 || strchr("-.eE+", text[i - 1]) == NULL);
        if (whole) {
            output[used++] = '"';
        }
        size_t taken = digits > 0 ? digits : inside && text[i] == '\\' && i + 1 < size ? 2 : 1;
        inside = digits == 0 && text[i] == '"' ? !inside : inside;
        memcpy(output + used, text + i, taken);
        used += taken;
        i += taken;
        if (whole) {
            output[used++] = '"';
        }
    }
    *size_out = used;
    return output;
}

static weft_status manifest_read(weft_context *context, const char *directory, const char *name,
                                 json_t **out) {
    char *path = weft_path_join(context, directory, name);
    char *text = NULL, *quoted = NULL;
    size_t size = 0;
    weft_status status = path != NULL ? weft_text_read(context, path, &text, &size) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        quoted = quote_long_numbers(context, text, size, &size);
        uint64_t containers = 2 * weft_context_limits(context)->tensors + 1024;
        status = quoted != NULL ? weft_json_parse(context, path, quoted, size, DEPTH, containers, out)
                                : WEFT_NO_MEMORY;
    }
    weft_release(context, quoted);
    weft_release(context, text);
    weft_release(context, path);
    return status;
}

static bool has_text(const json_t *object, const char *key, const char *expected) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL && strcmp(text, expected) == 0;
}

/* The manifest's own SHA-256, over what Python's json.dumps makes of the rest. */
static weft_status check_seal(weft_context *context, const char *path, json_t *manifest) {
    char given[WEFT_HASH_TEXT] = "", made[WEFT_HASH_TEXT];
    const char *text = json_string_value(json_object_get(manifest, "sha256"));
    if (text == NULL || strlen(text) >= sizeof given) {
        return weft_fail(context, WEFT_MALFORMED, "%s: its manifest has no SHA-256", path);
    }
    memcpy(given, text, strlen(text) + 1);
    (void)json_object_del(manifest, "sha256");
    char *dumped = weft_json_python(manifest, JSON_SORT_KEYS);
    if (dumped == NULL) {
        return weft_json_no_memory(context, path);
    }
    weft_hash hash;
    weft_status status = weft_hash_compute(context, dumped, strlen(dumped), &hash);
    free(dumped);
    if (status != WEFT_OK) {
        return status;
    }
    weft_hex_format(hash.bytes, sizeof hash.bytes, made);
    return strcmp(given, made) == 0 ? WEFT_OK
                                    : weft_fail(context, WEFT_CHECKSUM_MISMATCH,
                                                "%s: its manifest is not what its SHA-256 says", path);
}

/* Which steps a manifest leads from and to. */
static bool manifest_steps(const json_t *manifest, bool by_rank, uint64_t *step_out, uint64_t *base_out) {
    return weft_json_number(json_object_get(manifest, by_rank ? "target_step" : "step"), step_out) &&
           weft_json_number(json_object_get(manifest, "base_step"), base_out) && *base_out < *step_out;
}

/* ---- listing ---- */

/* False if it is not complete, or no step. */
static weft_status look_at_step(weft_context *context, const char *path, uint64_t number, uint64_t *base,
                                bool *whole, bool *found) {
    bool by_rank = weft_path_exists(context, path, BY_RANK),
         at_once = weft_path_exists(context, path, AT_ONCE);
    *whole = !by_rank && !at_once;
    *found = false;
    if (*whole) {
        *found = weft_path_exists(context, path, "STABLE") &&
                 (weft_path_exists(context, path, WEFT_INDEX_NAME) ||
                  weft_path_exists(context, path, WEFT_SINGLE_NAME));
        return WEFT_OK;
    }
    if (by_rank && !weft_path_exists(context, path, "STABLE")) {
        return WEFT_OK;
    }
    json_t *manifest = NULL;
    uint64_t step = 0;
    weft_status status = manifest_read(context, path, by_rank ? BY_RANK : AT_ONCE, &manifest);
    if (status == WEFT_OK) {
        *found = manifest_steps(manifest, by_rank, &step, base) && step == number;
        status = *found ? WEFT_OK
                        : weft_fail(context, WEFT_MALFORMED,
                                    "%s: its manifest does not say that it is step %llu", path,
                                    (unsigned long long)number);
    }
    json_decref(manifest);
    return status;
}

static weft_status list_step(void *opaque, const char *name) {
    weft_foreign *foreign = opaque;
    weft_context *context = foreign->context;
    uint64_t number, base = 0;
    bool whole = false, found = false;
    if (!weft_numbered(name, "step_", 1, "", &number) || weft_foreign_known(foreign, number)) {
        return WEFT_OK;
    }
    char *path = weft_path_join(context, foreign->root, name);
    weft_status status =
        path != NULL ? look_at_step(context, path, number, &base, &whole, &found) : WEFT_NO_MEMORY;
    if (status == WEFT_OK && found) {
        return weft_foreign_add(foreign, number, base, whole, path);
    }
    weft_release(context, path);
    return status;
}

static weft_status prime_list(weft_foreign *foreign) {
    return weft_directory_names(foreign->context, foreign->root, list_step, foreign);
}

typedef struct prime_detection {
    weft_context *context;
    const char *root;
    bool found;
} prime_detection;

static weft_status has_step(void *opaque, const char *name) {
    prime_detection *detection = opaque;
    uint64_t number;
    if (!detection->found && weft_numbered(name, "step_", 1, "", &number)) {
        char *path = weft_path_join(detection->context, detection->root, name);
        detection->found = path != NULL && (weft_path_exists(detection->context, path, BY_RANK) ||
                                            weft_path_exists(detection->context, path, AT_ONCE));
        weft_release(detection->context, path);
    }
    return WEFT_OK;
}

static bool prime_detect(weft_context *context, const char *path) {
    prime_detection detection = {context, path, false};
    weft_status status = weft_directory_names(context, path, has_step, &detection);
    weft_context_clear(context);
    return status == WEFT_OK && detection.found;
}

/* ---- reading ---- */

/* What torch.hash_tensor makes of an element: widened to 64 bits. */
static uint64_t widen(weft_dtype dtype, const uint8_t *data, unsigned width) {
    uint64_t bits = 0;
    float single;
    double value;
    memcpy(&bits, data, width);
    switch (dtype) {
    case WEFT_DTYPE_BF16:
    case WEFT_DTYPE_F32: {
        uint32_t pattern = dtype == WEFT_DTYPE_BF16 ? (uint32_t)bits << 16 : (uint32_t)bits;
        memcpy(&single, &pattern, sizeof single);
        value = single;
        memcpy(&bits, &value, sizeof bits);
        return bits;
    }
    case WEFT_DTYPE_I8:
        return (uint64_t)(int64_t)(int8_t)bits;
    case WEFT_DTYPE_I16:
        return (uint64_t)(int64_t)(int16_t)bits;
    case WEFT_DTYPE_I32:
        return (uint64_t)(int64_t)(int32_t)bits;
    default:
        return bits;
    }
}

static uint64_t hash_tensor(const weft_archive *archive, const weft_safetensors_entry *entry) {
    unsigned width = weft_dtype_width(entry->dtype);
    uint64_t hash = 0;
    for (uint64_t at = entry->begin; at + width <= entry->end; at += width) {
        hash ^= widen(entry->dtype, archive->data + at, width);
    }
    return hash;
}

/* Of dtypes that are widened as above. */
static weft_status check_sum(weft_foreign_plan *plan, const char *path, const json_t *entry,
                             const weft_archive *archive, const weft_safetensors_entry *positions,
                             const weft_safetensors_entry *values) {
    const json_t *given = json_object_get(entry, "checksum");
    if (given == NULL || values->dtype == WEFT_DTYPE_F16) {
        return WEFT_OK;
    }
    const char *text = json_string_value(given);
    uint64_t expected = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)json_integer_value(given);
    if (expected != (hash_tensor(archive, positions) ^ hash_tensor(archive, values))) {
        return weft_fail(plan->context, WEFT_CHECKSUM_MISMATCH,
                         "%s: \"%.*s\" is not what its checksum says", path, WEFT_NAME_SHOWN,
                         positions->name);
    }
    return WEFT_OK;
}

typedef struct prime_keys {
    const char *shape, *positions, *values, *changed;
} prime_keys;

static weft_status add_entry(weft_foreign_plan *plan, const char *path, const weft_archive *archive,
                             const json_t *entry, const prime_keys *keys) {
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *torch = json_string_value(json_object_get(entry, "dtype"));
    const char *key = json_string_value(json_object_get(entry, keys->positions));
    const char *value_key = json_string_value(json_object_get(entry, keys->values));
    const json_t *shape = json_object_get(entry, keys->shape);
    const char *dtype = torch != NULL ? weft_torch_dtype_parse(torch) : NULL;
    const weft_safetensors_entry *positions = key != NULL ? weft_archive_find(archive, key) : NULL;
    const weft_safetensors_entry *values = value_key != NULL ? weft_archive_find(archive, value_key) : NULL;
    uint64_t changed = 0;
    if (name == NULL || dtype == NULL || positions == NULL || values == NULL || !json_is_array(shape) ||
        (positions->dtype != WEFT_DTYPE_I32 && positions->dtype != WEFT_DTYPE_I64) ||
        strcmp(dtype, weft_dtype_name(values->dtype)) != 0 ||
        !weft_json_number(json_object_get(entry, keys->changed), &changed) ||
        positions->end - positions->begin != changed * weft_dtype_width(positions->dtype)) {
        return weft_fail(plan->context, WEFT_MALFORMED,
                         "%s: tensor %zu of its manifest is not there as it says", path, plan->part_count);
    }
    weft_status status = check_sum(plan, path, entry, archive, positions, values);
    const weft_foreign_part part = {.name = name,
                                    .coding = WEFT_CODED_UNITS,
                                    .data = archive->data + positions->begin,
                                    .size = (size_t)(positions->end - positions->begin),
                                    .dtype = dtype,
                                    .shape = shape,
                                    .positions = positions->dtype,
                                    .values = archive->data + values->begin,
                                    .value_bytes = (size_t)(values->end - values->begin)};
    return status == WEFT_OK ? weft_foreign_plan_part(plan, &part) : status;
}

static weft_status add_entries(weft_foreign_plan *plan, const char *directory, const char *file,
                               const json_t *tensors, const prime_keys *keys) {
    weft_context *context = plan->context;
    if (!json_is_array(tensors)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: its manifest does not list its tensors", directory);
    }
    if (json_array_size(tensors) == 0) {
        return WEFT_OK;
    }
    if (file == NULL || file[0] == '.' || strchr(file, '/') != NULL) {
        return weft_fail(context, WEFT_MALFORMED, "%s: its manifest names a file that is not in it",
                         directory);
    }
    char *path = weft_path_join(context, directory, file);
    weft_archive *archive = NULL;
    weft_status status = path != NULL ? weft_foreign_plan_archive(plan, path, &archive) : WEFT_NO_MEMORY;
    for (size_t i = 0; status == WEFT_OK && i < json_array_size(tensors); i++) {
        status = add_entry(plan, directory, archive, json_array_get(tensors, i), keys);
    }
    weft_release(context, path);
    return status;
}

static weft_status collect_ranks(weft_foreign_plan *plan, const char *directory) {
    static const prime_keys keys = {"global_shape", "indices_key", "values_key", "changed"};
    weft_status status = check_seal(plan->context, directory, plan->json);
    if (status == WEFT_OK && !has_text(plan->json, "format", "prime-rl-sparse-hf-v1")) {
        status =
            weft_fail(plan->context, WEFT_UNSUPPORTED, "%s: its manifest is of another format", directory);
    }
    const json_t *ranks = json_object_get(plan->json, "ranks");
    plan->pieces = true;
    if (status == WEFT_OK && !json_is_array(ranks)) {
        status =
            weft_fail(plan->context, WEFT_MALFORMED, "%s: its manifest does not list its ranks", directory);
    }
    for (size_t i = 0; status == WEFT_OK && i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        status = add_entries(plan, directory, json_string_value(json_object_get(rank, "file")),
                             json_object_get(rank, "tensors"), &keys);
    }
    return status;
}

static weft_status collect_update(weft_foreign_plan *plan, const char *directory) {
    static const prime_keys keys = {"shape", "indices", "values", "changed_numel"};
    if (!has_text(plan->json, "format", "prime-rl-sparse-update") ||
        json_integer_value(json_object_get(plan->json, "version")) != 1) {
        return weft_fail(plan->context, WEFT_UNSUPPORTED, "%s: its manifest is of another format",
                         directory);
    }
    return add_entries(plan, directory, json_string_value(json_object_get(plan->json, "patch_file")),
                       json_object_get(plan->json, "tensors"), &keys);
}

static weft_status prime_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_plan *plan) {
    bool by_rank = weft_path_exists(foreign->context, version->path, BY_RANK);
    weft_status status =
        manifest_read(foreign->context, version->path, by_rank ? BY_RANK : AT_ONCE, &plan->json);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t step = 0, base = 0;
    if (!manifest_steps(plan->json, by_rank, &step, &base) || step != version->version ||
        base != version->base) {
        return weft_foreign_changed(foreign, version);
    }
    return by_rank ? collect_ranks(plan, version->path) : collect_update(plan, version->path);
}

const weft_foreign_reader weft_foreign_prime = {
    .format = WEFT_FOREIGN_PRIME,
    .name = "prime",
    .detect = prime_detect,
    .list = prime_list,
    .collect = prime_collect,
};
