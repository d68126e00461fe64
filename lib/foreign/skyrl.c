/* SPDX-License-Identifier: Apache-2.0
 *
 * skyrl.c: the deltas of SkyRL: delta-NNNNNNNN/ with safetensors files of zstd frames, and manifest.json,
 * which is written last and names each tensor's file, key, dtype, shape and checksum.
 */
#include "shards.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/json.h"
#include "../tensor/table.h"

#include <stdio.h>
#include <string.h>

enum { MANIFEST_DEPTH = 8, NAME_SIZE = 64 };

#define PREFIX "delta-"
#define MANIFEST "manifest.json"
enum { DIGITS = 8 };
static const uint64_t SHARD_BYTES = UINT64_C(1) << 30;

/* Names of torch, without its name. */
static const struct {
    const char *torch;
    weft_dtype dtype;
} dtypes[] = {
    {"bfloat16", WEFT_DTYPE_BF16},
    {"float16", WEFT_DTYPE_F16},
    {"float32", WEFT_DTYPE_F32},
    {"float64", WEFT_DTYPE_F64},
    {"uint8", WEFT_DTYPE_U8},
    {"int8", WEFT_DTYPE_I8},
    {"int16", WEFT_DTYPE_I16},
    {"int32", WEFT_DTYPE_I32},
    {"int64", WEFT_DTYPE_I64},
    {"bool", WEFT_DTYPE_BOOL},
    {"float8_e4m3fn", WEFT_DTYPE_F8_E4M3},
    {"float8_e5m2", WEFT_DTYPE_F8_E5M2},
    {"uint16", WEFT_DTYPE_U16},
    {"uint32", WEFT_DTYPE_U32},
    {"uint64", WEFT_DTYPE_U64},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

const char *weft_torch_dtype(weft_dtype dtype) {
    for (size_t i = 0; i < DTYPES; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].torch;
        }
    }
    return NULL;
}

const char *weft_torch_dtype_parse(const char *name) {
    name = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < DTYPES; i++) {
        if (strcmp(dtypes[i].torch, name) == 0) {
            return weft_dtype_name(dtypes[i].dtype);
        }
    }
    return NULL;
}

/* ---- listing ---- */

static weft_status manifest_read(weft_context *context, const char *directory, json_t **manifest_out) {
    char *path = weft_path_join(context, directory, MANIFEST);
    char *text = NULL;
    size_t size = 0;
    weft_status status = path != NULL ? weft_text_read(context, path, &text, &size) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        uint64_t containers = 2 * weft_context_limits(context)->tensors + 16;
        status = weft_json_parse(context, path, text, size, MANIFEST_DEPTH, containers, manifest_out);
    }
    weft_release(context, text);
    weft_release(context, path);
    return status;
}

static bool manifest_versions(const json_t *manifest, uint64_t *version_out, uint64_t *base_out) {
    return weft_json_number(json_object_get(manifest, "version"), version_out) &&
           weft_json_number(json_object_get(manifest, "base_version"), base_out) &&
           *base_out < *version_out;
}

static weft_status list_version(void *opaque, const char *name) {
    weft_foreign *foreign = opaque;
    weft_context *context = foreign->context;
    uint64_t number = 0, version = 0, base = 0;
    if (!weft_numbered(name, PREFIX, DIGITS, "", &number) || weft_foreign_known(foreign, number)) {
        return WEFT_OK;
    }
    char *path = weft_path_join(context, foreign->root, name);
    json_t *manifest = NULL;
    weft_status status = path != NULL ? manifest_read(context, path, &manifest) : WEFT_NO_MEMORY;
    if (status == WEFT_NOT_FOUND) { /* it is not complete yet */
        weft_context_clear(context);
        weft_release(context, path);
        return WEFT_OK;
    }
    if (status == WEFT_OK && (!manifest_versions(manifest, &version, &base) || version != number)) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: its manifest does not say that it is version %llu",
                           path, (unsigned long long)number);
    }
    json_decref(manifest);
    if (status == WEFT_OK) {
        return weft_foreign_add(foreign, number, base, false, path);
    }
    weft_release(context, path);
    return status;
}

static weft_status skyrl_list(weft_foreign *foreign) {
    return weft_directory_names(foreign->context, foreign->root, list_version, foreign);
}

static weft_status has_version(void *opaque, const char *name) {
    uint64_t number;
    bool *found = opaque;
    *found = *found || weft_numbered(name, PREFIX, DIGITS, "", &number);
    return WEFT_OK;
}

static bool skyrl_detect(weft_context *context, const char *path) {
    bool found = false;
    weft_status status = weft_directory_names(context, path, has_version, &found);
    weft_context_clear(context);
    return status == WEFT_OK && found;
}

/* Of a place in a bucket: the files that the manifest names. */
static weft_status skyrl_files(const weft_foreign *foreign, const weft_foreign_version *version,
                               weft_name_function *visit, void *opaque) {
    json_t *manifest = NULL, *tensor;
    size_t i;
    weft_status status = manifest_read(foreign->context, version->path, &manifest);
    json_array_foreach(json_object_get(manifest, "tensors"), i, tensor) {
        const char *file = json_string_value(json_object_get(tensor, "payload_file"));
        if (status == WEFT_OK && file != NULL) { /* what names none is refused when it is read */
            status = visit(opaque, file);
        }
    }
    json_decref(manifest);
    return status;
}

/* ---- reading ---- */

/* The archive of a payload file, opened once. */
static weft_status find_archive(weft_foreign_plan *plan, const char *directory, const char **files,
                                size_t *count, const char *file, const weft_archive **archive_out) {
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(files[i], file) == 0) {
            *archive_out = &plan->archives[i];
            return WEFT_OK;
        }
    }
    if (file[0] == '.' || strchr(file, '/') != NULL) {
        return weft_fail(plan->context, WEFT_MALFORMED, "%s: its manifest names a file that is not in it",
                         directory);
    }
    char *path = weft_path_join(plan->context, directory, file);
    weft_archive *archive = NULL;
    weft_status status = path != NULL ? weft_foreign_plan_archive(plan, path, &archive) : WEFT_NO_MEMORY;
    weft_release(plan->context, path);
    if (status == WEFT_OK) {
        files[(*count)++] = file;
        *archive_out = archive;
    }
    return status;
}

typedef struct skyrl_entry {
    const char *name, *dtype, *file, *key, *checksum, *algorithm;
    const json_t *shape;
} skyrl_entry;

static bool entry_parse(const json_t *value, skyrl_entry *entry) {
    *entry = (skyrl_entry){
        .name = json_string_value(json_object_get(value, "name")),
        .dtype = json_string_value(json_object_get(value, "dtype")),
        .file = json_string_value(json_object_get(value, "payload_file")),
        .key = json_string_value(json_object_get(value, "payload_key")),
        .checksum = json_string_value(json_object_get(value, "checksum")),
        .algorithm = json_string_value(json_object_get(value, "checksum_algorithm")),
        .shape = json_object_get(value, "shape"),
    };
    entry->dtype = entry->dtype != NULL ? weft_torch_dtype_parse(entry->dtype) : NULL;
    return entry->name != NULL && entry->dtype != NULL && entry->file != NULL && entry->key != NULL &&
           entry->checksum != NULL && entry->algorithm != NULL && json_is_array(entry->shape);
}

/* All tensors have the same kind of checksum. */
static weft_status choose_checksum(weft_foreign_plan *plan, const char *directory,
                                   const skyrl_entry *entry) {
    weft_foreign_checksum kind;
    bool first = plan->part_count == 0;
    if (!weft_checksum_parse(entry->algorithm, &kind) || (!first && kind != plan->checksum)) {
        return weft_fail(plan->context, WEFT_UNSUPPORTED, "%s: its checksums are %.40s, %s", directory,
                         entry->algorithm, first ? "which is not known" : "and others are not");
    }
    plan->checksum = kind;
    return first ? weft_step_label(plan->step, "foreign.checksum", entry->algorithm) : WEFT_OK;
}

static weft_status collect_entry(weft_foreign_plan *plan, const char *directory, const json_t *value,
                                 const char **files, size_t *file_count) {
    skyrl_entry entry;
    const weft_archive *archive = NULL;
    if (!entry_parse(value, &entry)) {
        return weft_fail(plan->context, WEFT_MALFORMED, "%s: tensor %zu of its manifest is not complete",
                         directory, plan->part_count);
    }
    weft_status status = choose_checksum(plan, directory, &entry);
    status =
        status == WEFT_OK ? find_archive(plan, directory, files, file_count, entry.file, &archive) : status;
    if (status != WEFT_OK) {
        return status;
    }
    const weft_safetensors_entry *payload = weft_archive_find(archive, entry.key);
    if (payload == NULL || payload->dtype != WEFT_DTYPE_U8) {
        return weft_fail(plan->context, WEFT_MALFORMED, "%s/%s: it has no payload \"%.*s\"", directory,
                         entry.file, WEFT_NAME_SHOWN, entry.key);
    }
    const weft_foreign_part part = {.name = entry.name,
                                    .coding = WEFT_CODED_XOR,
                                    .data = archive->data + payload->begin,
                                    .size = (size_t)(payload->end - payload->begin),
                                    .expected = entry.checksum,
                                    .dtype = entry.dtype,
                                    .shape = entry.shape};
    return weft_foreign_plan_part(plan, &part);
}

static weft_status skyrl_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_plan *plan) {
    weft_context *context = foreign->context;
    weft_status status = manifest_read(context, version->path, &plan->json);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t number = 0, base = 0;
    if (!manifest_versions(plan->json, &number, &base) || number != version->version ||
        base != version->base) {
        return weft_foreign_changed(foreign, version);
    }
    const json_t *tensors = json_object_get(plan->json, "tensors");
    const char **files = weft_allocate_array(context, json_array_size(tensors) + 1, sizeof *files);
    size_t file_count = 0;
    status = files == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK && !json_is_array(tensors)) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: its manifest has no tensors", version->path);
    }
    for (size_t i = 0; status == WEFT_OK && i < json_array_size(tensors); i++) {
        status = collect_entry(plan, version->path, json_array_get(tensors, i), files, &file_count);
    }
    weft_release(context, files);
    return status;
}

/* ---- writing ---- */

static json_t *shape_json(const weft_tensor *tensor) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->rank; i++) {
        (void)json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    }
    return shape;
}

static json_t *tensor_json(const weft_shards *shards, size_t index, const weft_tensor *tensor,
                           weft_foreign_checksum checksum) {
    const weft_foreign_payload *payload = &shards->payloads[index];
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:s, s:s, s:s, s:s}", "name", payload->name, "dtype",
                     weft_torch_dtype(tensor->dtype), "shape", shape_json(tensor), "uncompressed_num_bytes",
                     (json_int_t)tensor->bytes, "compressed_num_bytes", (json_int_t)payload->size,
                     "payload_file", shards->names[shards->files[index]], "payload_key", payload->name,
                     "checksum", shards->packed[index]->checksum, "checksum_algorithm",
                     weft_checksum_name(checksum));
}

static weft_status write_manifest(const weft_foreign_writing *writing, const char *directory,
                                  const weft_shards *shards, uint64_t *bytes) {
    const weft_foreign_write_options *options = writing->options;
    json_t *tensors = json_array(), *files = json_array();
    uint64_t plain = 0, packed = 0;
    int failed = 0;
    for (size_t i = 0; i < shards->count; i++) {
        const weft_tensor *tensor =
            weft_view_at(writing->base, (size_t)weft_view_find(writing->base, shards->payloads[i].name));
        failed |= json_array_append_new(tensors, tensor_json(shards, i, tensor, options->checksum));
        plain += tensor->bytes;
        packed += shards->payloads[i].size;
    }
    for (size_t i = 0; i < shards->file_count; i++) {
        failed |= json_array_append_new(files, json_string(shards->names[i]));
    }
    json_t *root = json_pack("{s:I, s:I, s:o, s:I, s:I, s:o}", "version", (json_int_t)options->version,
                             "base_version", (json_int_t)options->base, "tensors", tensors,
                             "total_uncompressed_num_bytes", (json_int_t)plain,
                             "total_compressed_num_bytes", (json_int_t)packed, "payload_files", files);
    if (failed != 0) {
        json_decref(root);
        root = NULL;
    }
    return weft_json_file(writing->context, directory, MANIFEST, root, options->durable, bytes);
}

static weft_status check_writable(const weft_foreign_writing *writing) {
    const weft_foreign_write_options *options = writing->options;
    if (options->base >= options->version ||
        (options->checksum != WEFT_FOREIGN_XXH3_128 && options->checksum != WEFT_FOREIGN_SHA256)) {
        return weft_fail(writing->context, WEFT_INVALID_ARGUMENT, "SkyRL has no %s",
                         options->base >= options->version ? "version at or before its base"
                                                           : "checksums but xxh3-128 and sha256");
    }
    for (size_t i = 0; i < writing->count; i++) {
        const weft_tensor *tensor =
            weft_view_at(writing->base, (size_t)weft_view_find(writing->base, writing->changes[i].tensor));
        if (weft_torch_dtype(tensor->dtype) == NULL) {
            return weft_fail(writing->context, WEFT_UNSUPPORTED,
                             "tensor \"%.*s\" has the dtype %s, which has no "
                             "name in torch",
                             WEFT_NAME_SHOWN, tensor->name, weft_dtype_name(tensor->dtype));
        }
    }
    return WEFT_OK;
}

static weft_status write_files(const weft_foreign_writing *writing, weft_shards *shards,
                               const char *directory, uint64_t *bytes) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < shards->file_count && status == WEFT_OK; i++) {
        snprintf(shards->names[i], WEFT_SHARD_NAME, "delta-rank00000-file%06zu.safetensors", i);
        status = weft_shards_write(shards, i, directory, false, writing->options->durable, bytes);
    }
    return status == WEFT_OK ? write_manifest(writing, directory, shards, bytes) : status;
}

static weft_status skyrl_write(const weft_foreign_writing *writing, weft_foreign_written *written) {
    const weft_foreign_write_options *options = writing->options;
    char name[NAME_SIZE];
    weft_status status = check_writable(writing);
    snprintf(name, sizeof name, "%s%08llu", PREFIX, (unsigned long long)options->version);
    return status == WEFT_OK
               ? weft_shards_publish(writing, name,
                                     options->shard_bytes > 0 ? options->shard_bytes : SHARD_BYTES,
                                     write_files, written)
               : status;
}

const weft_foreign_reader weft_foreign_skyrl = {
    .format = WEFT_FOREIGN_SKYRL,
    .name = "skyrl",
    .proves = true,
    .detect = skyrl_detect,
    .list = skyrl_list,
    .collect = skyrl_collect,
    .write = skyrl_write,
    .marker = MANIFEST,
    .prefix = PREFIX,
    .digits = DIGITS,
    .files = skyrl_files,
};
