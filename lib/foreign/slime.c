/* SPDX-License-Identifier: Apache-2.0
 *
 * slime.c: the directories of slime, miles, SGLang, Stitch and ModelExpress: weight_vNNNNNN/ with
 * safetensors files of zstd frames, and an index that is written last and says what they are.
 *
 * Stitch keeps them in updates/, or in a directory for each run, and names the newest in a file `latest`.
 */
#include "shards.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/checkpoint/index.h"
#include "../tensor/json.h"
#include "../tensor/table.h"

#include <stdio.h>
#include <string.h>

enum { INDEX_DEPTH = 8, INDEX_CONTAINERS = 4096, NAME_SIZE = WEFT_PLACE_NAME };

#define PREFIX "weight_v"
enum { DIGITS = 6 };

/* ---- an index ---- */

typedef struct slime_index {
    json_t *root;
    const json_t *metadata;
    json_t *weight_map;   /* NULL: there is none */
    const char *encoding; /* NULL: a checkpoint */
} slime_index;

static weft_status index_read(weft_context *context, const char *directory, slime_index *index) {
    *index = (slime_index){0};
    char *path = weft_path_join(context, directory, WEFT_INDEX_NAME);
    char *text = NULL;
    size_t size = 0;
    weft_status status = path != NULL ? weft_text_read(context, path, &text, &size) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        status = weft_json_parse(context, path, text, size, INDEX_DEPTH, INDEX_CONTAINERS, &index->root);
    }
    weft_release(context, text);
    weft_release(context, path);
    if (status == WEFT_OK) {
        index->metadata = json_object_get(index->root, "metadata");
        index->weight_map = json_object_get(index->root, "weight_map");
        index->encoding = json_string_value(json_object_get(index->metadata, "delta_encoding"));
    }
    return status;
}

static weft_status index_versions(weft_context *context, const char *path, const slime_index *index,
                                  uint64_t *version_out, uint64_t *base_out) {
    if (!weft_json_number(json_object_get(index->metadata, "version"), version_out) ||
        !weft_json_number(json_object_get(index->metadata, "base_version"), base_out) ||
        *base_out >= *version_out) {
        return weft_fail(
            context, WEFT_MALFORMED,
            "%s: the index of a delta does not say of which version it is, and of which before it", path);
    }
    return WEFT_OK;
}

/* ---- listing ---- */

typedef struct slime_listing {
    weft_foreign *foreign;
    const char *directory;
    uint64_t limit; /* the newest that counts */
} slime_listing;

/* A directory that is not complete yet has no index, and is looked at again. */
static weft_status list_version(void *opaque, const char *name) {
    const slime_listing *listing = opaque;
    weft_foreign *foreign = listing->foreign;
    weft_context *context = foreign->context;
    uint64_t number = 0, version = 0, base = 0;
    if (!weft_numbered(name, PREFIX, DIGITS, "", &number) || number > listing->limit ||
        weft_foreign_known(foreign, number)) {
        return WEFT_OK;
    }
    char *path = weft_path_join(context, listing->directory, name);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    slime_index index;
    weft_status status = index_read(context, path, &index);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(context);
        if (weft_path_exists(context, path, WEFT_SINGLE_NAME)) {
            return weft_foreign_add(foreign, number, 0, true, path);
        }
        weft_release(context, path);
        return WEFT_OK;
    }
    bool whole = status == WEFT_OK && index.encoding == NULL;
    if (status == WEFT_OK && !whole) {
        status = index_versions(context, path, &index, &version, &base);
        if (status == WEFT_OK && version != number) {
            status = weft_fail(context, WEFT_MALFORMED, "%s: its index says that it is version %llu", path,
                               (unsigned long long)version);
        }
    }
    json_decref(index.root);
    if (status == WEFT_OK) {
        return weft_foreign_add(foreign, number, base, whole, path);
    }
    weft_release(context, path);
    return status;
}

/* "[run/]weight_v000007" in the file `latest`: where the versions are, and which is the newest. False if
 * there is none, or it leads elsewhere. */
static bool read_latest(weft_context *context, const char *root, char run[NAME_SIZE], uint64_t *limit) {
    char *path = weft_path_join(context, root, "latest");
    char *text = NULL;
    size_t size = 0;
    bool found = path != NULL && weft_text_read(context, path, &text, &size) == WEFT_OK;
    if (found) {
        text[strcspn(text, " \r\n\t")] = 0;
        const char *slash = strrchr(text, '/');
        size_t length = slash != NULL ? (size_t)(slash - text) : 0;
        found = length < NAME_SIZE && text[0] != '.' && memchr(text, '/', length) == NULL &&
                weft_numbered(slash != NULL ? slash + 1 : text, PREFIX, DIGITS, "", limit);
        if (found) {
            memcpy(run, text, length);
            run[length] = 0;
        }
    }
    weft_context_clear(context);
    weft_release(context, text);
    weft_release(context, path);
    return found;
}

/* Lists one directory; that it does not exist is no failure. */
static weft_status list_directory(slime_listing *listing, const char *parent, const char *name) {
    weft_context *context = listing->foreign->context;
    char *path = name[0] != 0 ? weft_path_join(context, parent, name)
                              : weft_copy_text(context, parent, strlen(parent));
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    listing->directory = path;
    weft_status status = weft_directory_names(context, path, list_version, listing);
    weft_release(context, path);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(context);
        return WEFT_OK;
    }
    return status;
}

static weft_status slime_list(weft_foreign *foreign) {
    slime_listing listing = {.foreign = foreign, .limit = UINT64_MAX};
    char run[NAME_SIZE] = "", updates[2 * NAME_SIZE];
    (void)read_latest(foreign->context, foreign->root, run, &listing.limit);
    snprintf(updates, sizeof updates, "updates%s%s", run[0] != 0 ? "/" : "", run);
    weft_status status = list_directory(&listing, foreign->root, run);
    return status == WEFT_OK ? list_directory(&listing, foreign->root, updates) : status;
}

static weft_status has_version(void *opaque, const char *name) {
    uint64_t number;
    bool *found = opaque;
    *found = *found || weft_numbered(name, PREFIX, DIGITS, "", &number);
    return WEFT_OK;
}

static bool slime_detect(weft_context *context, const char *path) {
    char run[NAME_SIZE];
    uint64_t limit;
    bool found = false;
    if (weft_directory_names(context, path, has_version, &found) != WEFT_OK) {
        weft_context_clear(context);
        return false;
    }
    return found || read_latest(context, path, run, &limit);
}

/* Of a place in a bucket: the files that the index names. */
static weft_status slime_files(const weft_foreign *foreign, const weft_foreign_version *version,
                               weft_name_function *visit, void *opaque) {
    slime_index index;
    weft_status status = index_read(foreign->context, version->path, &index);
    if (status != WEFT_OK) {
        return status;
    }
    const char *tensor;
    json_t *file;
    json_object_foreach(index.weight_map, tensor, file) {
        if (status == WEFT_OK) {
            status = json_is_string(file)
                         ? visit(opaque, json_string_value(file))
                         : weft_fail(foreign->context, WEFT_MALFORMED,
                                     "%s: its index does not say in which file \"%.*s\" is", version->path,
                                     WEFT_NAME_SHOWN, tensor);
        }
    }
    json_decref(index.root);
    return status;
}

/* ---- reading ---- */

typedef struct slime_reading {
    weft_foreign_plan *plan;
    const char *directory;
    const slime_index *index;
    weft_foreign_coding coding;
} slime_reading;

static weft_status add_entry(const slime_reading *reading, const char *file, const weft_archive *archive,
                             const weft_safetensors_entry *entry) {
    weft_context *context = reading->plan->context;
    const char *expected = weft_archive_metadata(archive, entry->name);
    const json_t *mapped = json_object_get(reading->index->weight_map, entry->name);
    if (entry->dtype != WEFT_DTYPE_U8 || expected == NULL) {
        return weft_fail(context, WEFT_MALFORMED, "%s/%s: \"%.*s\" %s", reading->directory, file,
                         WEFT_NAME_SHOWN, entry->name,
                         expected == NULL ? "has no checksum" : "is no row of bytes");
    }
    if (!json_is_string(mapped) || strcmp(json_string_value(mapped), file) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "%s/%s: it holds \"%.*s\", and the index does not say so",
                         reading->directory, file, WEFT_NAME_SHOWN, entry->name);
    }
    const weft_foreign_part part = {.name = entry->name,
                                    .coding = reading->coding,
                                    .data = archive->data + entry->begin,
                                    .size = (size_t)(entry->end - entry->begin),
                                    .expected = expected};
    return weft_foreign_plan_part(reading->plan, &part);
}

/* Every safetensors file counts, as it does for the engines. */
static weft_status add_file(void *opaque, const char *name) {
    slime_reading *reading = opaque;
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);
    if (length < sizeof suffix || strcmp(name + length - (sizeof suffix - 1), suffix) != 0) {
        return WEFT_OK;
    }
    char *path = weft_path_join(reading->plan->context, reading->directory, name);
    weft_archive *archive = NULL;
    weft_status status =
        path != NULL ? weft_foreign_plan_archive(reading->plan, path, &archive) : WEFT_NO_MEMORY;
    weft_release(reading->plan->context, path);
    for (size_t i = 0; status == WEFT_OK && i < archive->header.count; i++) {
        status = add_entry(reading, name, archive, &archive->header.entries[i]);
    }
    return status;
}

static weft_status choose_coding(weft_context *context, const char *path, const slime_index *index,
                                 slime_reading *reading) {
    const char *compression = json_string_value(json_object_get(index->metadata, "compression_format"));
    const char *checksum = json_string_value(json_object_get(index->metadata, "checksum_format"));
    if (compression == NULL || strcmp(compression, "zstd") != 0) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s: it is compressed by %.40s; zstd is what is read",
                         path, compression != NULL ? compression : "nobody knows what");
    }
    if (checksum == NULL || !weft_checksum_parse(checksum, &reading->plan->checksum)) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s: its checksums are %.40s, which is not known", path,
                         checksum != NULL ? checksum : "missing");
    }
    if (strcmp(index->encoding, "xor") != 0 && strcmp(index->encoding, "overwrite") != 0) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s: its encoding is %.40s; xor and overwrite are read",
                         path, index->encoding);
    }
    reading->coding = index->encoding[0] == 'x' ? WEFT_CODED_XOR : WEFT_CODED_OVERWRITE;
    weft_foreign_step *step = reading->plan->step;
    weft_status status = weft_step_label(step, "foreign.encoding", index->encoding);
    return status == WEFT_OK ? weft_step_label(step, "foreign.checksum", checksum) : status;
}

/* A tensor that the index names and no file has. */
static weft_status check_map(const slime_reading *reading) {
    size_t mapped = json_object_size(reading->index->weight_map);
    if (mapped > reading->plan->part_count) {
        return weft_fail(reading->plan->context, WEFT_TRUNCATED,
                         "%s: the index names %zu tensors, and %zu are there", reading->directory, mapped,
                         reading->plan->part_count);
    }
    return WEFT_OK;
}

static weft_status slime_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_plan *plan) {
    weft_context *context = foreign->context;
    slime_index index;
    uint64_t number = 0, base = 0;
    weft_status status = index_read(context, version->path, &index);
    if (status != WEFT_OK) {
        return status;
    }
    slime_reading reading = {.plan = plan, .directory = version->path, .index = &index};
    status = index_versions(context, version->path, &index, &number, &base);
    if (status == WEFT_OK &&
        (index.encoding == NULL || number != version->version || base != version->base)) {
        status = weft_foreign_changed(foreign, version);
    }
    status = status == WEFT_OK ? choose_coding(context, version->path, &index, &reading) : status;
    if (status == WEFT_OK && !json_is_object(index.weight_map)) {
        /* a file that is missing would not be missed */
        status = weft_fail(context, WEFT_MALFORMED,
                           "%s: its index has no weight_map, which says what the delta consists of",
                           version->path);
    }
    status = status == WEFT_OK ? weft_directory_names(context, version->path, add_file, &reading) : status;
    status = status == WEFT_OK ? check_map(&reading) : status;
    json_decref(index.root);
    return status;
}

/* ---- writing ---- */

static int set_text(json_t *object, const char *key, const char *value) {
    return json_object_set_new(object, key, json_string(value));
}

static weft_status write_index(weft_context *context, const char *directory, const weft_shards *shards,
                               const weft_foreign_write_options *options, uint64_t *bytes) {
    char version[32], base[32];
    snprintf(version, sizeof version, "%06llu", (unsigned long long)options->version);
    snprintf(base, sizeof base, "%06llu", (unsigned long long)options->base);
    json_t *root = json_object(), *metadata = json_object(), *map = json_object();
    int failed =
        set_text(metadata, "version", version) | set_text(metadata, "base_version", base) |
        set_text(metadata, "delta_encoding", options->encoding == WEFT_FOREIGN_XOR ? "xor" : "overwrite") |
        set_text(metadata, "compression_format", "zstd") |
        set_text(metadata, "checksum_format", weft_checksum_name(options->checksum));
    for (size_t i = 0; i < shards->count; i++) {
        failed |= set_text(map, shards->payloads[i].name, shards->names[shards->files[i]]);
    }
    failed |= json_object_set_new(root, "metadata", metadata);
    failed |= json_object_set_new(root, "weight_map", map);
    return weft_json_file(context, directory, WEFT_INDEX_NAME, failed == 0 ? root : NULL, options->durable,
                          bytes);
}

static weft_status write_files(const weft_foreign_writing *writing, weft_shards *shards,
                               const char *directory, uint64_t *bytes) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < shards->file_count && status == WEFT_OK; i++) {
        snprintf(shards->names[i], WEFT_SHARD_NAME, "model-%05zu-of-%05zu.safetensors", i,
                 shards->file_count);
        status = weft_shards_write(shards, i, directory, true, writing->options->durable, bytes);
    }
    return status == WEFT_OK ? write_index(writing->context, directory, shards, writing->options, bytes)
                             : status;
}

static weft_status slime_write(const weft_foreign_writing *writing, weft_foreign_written *written) {
    const weft_foreign_write_options *options = writing->options;
    char name[NAME_SIZE];
    if (options->base >= options->version || options->checksum == WEFT_FOREIGN_SHA256) {
        return weft_fail(writing->context, WEFT_INVALID_ARGUMENT, "slime has no %s",
                         options->checksum == WEFT_FOREIGN_SHA256 ? "SHA-256"
                                                                  : "version at or before its base");
    }
    snprintf(name, sizeof name, "%s%06llu", PREFIX, (unsigned long long)options->version);
    return weft_shards_publish(writing, name, options->shard_bytes, write_files, written);
}

const weft_foreign_reader weft_foreign_slime = {
    .format = WEFT_FOREIGN_SLIME,
    .name = "slime",
    .proves = true,
    .detect = slime_detect,
    .list = slime_list,
    .collect = slime_collect,
    .write = slime_write,
    .overwrites = true,
    .spelling = WEFT_SPELT_HEXADECIMAL,
    .marker = WEFT_INDEX_NAME,
    .prefix = PREFIX,
    .digits = DIGITS,
    .files = slime_files,
    .latest = read_latest,
};
