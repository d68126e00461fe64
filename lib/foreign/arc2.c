/* SPDX-License-Identifier: Apache-2.0
 *
 * arc2.c: incremental snapshots of Fireworks, arc_v2: safetensors files with the names of the base's, a
 * zstd frame of new xor old for every tensor, whether it changes or not, and Adler-32 as a decimal number
 * in the metadata.
 *
 * Neither a version nor a base is written down: those are identities of the hot-load call. Here they are
 * numbers at the end of directories' names, and the base is the number before.
 */
#include "shards.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/checkpoint/index.h"
#include "../tensor/table.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_SIZE = 64 };

static const char SUFFIX[] = ".safetensors";

static bool is_archive(const char *name) {
    size_t length = strlen(name);
    return length >= sizeof SUFFIX && strcmp(name + length - (sizeof SUFFIX - 1), SUFFIX) == 0;
}

/* ---- listing ---- */

/* The number that a name ends in. */
static bool ends_in_number(const char *name, uint64_t *number_out) {
    size_t length = strlen(name), start = length;
    while (start > 0 && name[start - 1] >= '0' && name[start - 1] <= '9') {
        start--;
    }
    return weft_numbered(name + start, "", 1, "", number_out);
}

typedef struct arc2_listing {
    weft_foreign *foreign;
    bool archives; /* there are files */
} arc2_listing;

static weft_status list_version(void *opaque, const char *name) {
    arc2_listing *listing = opaque;
    weft_foreign *foreign = listing->foreign;
    uint64_t number;
    struct stat info;
    if (is_archive(name)) {
        listing->archives = true;
        return WEFT_OK;
    }
    if (!ends_in_number(name, &number) || weft_foreign_known(foreign, number) || number == 0) {
        return WEFT_OK;
    }
    char *path = weft_path_join(foreign->context, foreign->root, name);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        weft_release(foreign->context, path);
        return WEFT_OK;
    }
    return weft_foreign_add(foreign, number, number - 1, false, path);
}

static weft_status arc2_list(weft_foreign *foreign) {
    weft_context *context = foreign->context;
    arc2_listing listing = {.foreign = foreign};
    bool alone = weft_path_is_file(foreign->root);
    weft_status status =
        alone ? WEFT_OK : weft_directory_names(context, foreign->root, list_version, &listing);
    if (status == WEFT_OK && (alone || listing.archives) && foreign->count == 0) {
        status = weft_foreign_add(foreign, 1, 0, false,
                                  weft_copy_text(context, foreign->root, strlen(foreign->root)));
    }
    return status;
}

/* Nothing in the files tells them from others. */
static bool arc2_detect(weft_context *context, const char *path) {
    (void)context;
    (void)path;
    return false;
}

/* ---- reading ---- */

typedef struct arc2_reading {
    weft_foreign_plan *plan;
    const char *directory;
} arc2_reading;

static weft_status add_archive(weft_foreign_plan *plan, const char *path) {
    weft_archive *archive = NULL;
    weft_status status = weft_foreign_plan_archive(plan, path, &archive);
    for (size_t i = 0; status == WEFT_OK && i < archive->header.count; i++) {
        const weft_safetensors_entry *entry = &archive->header.entries[i];
        const char *expected = weft_archive_metadata(archive, entry->name);
        if (entry->dtype != WEFT_DTYPE_U8 || expected == NULL) {
            return weft_fail(plan->context, WEFT_MALFORMED, "%s: \"%.*s\" %s", path, WEFT_NAME_SHOWN,
                             entry->name, expected == NULL ? "has no checksum" : "is no row of bytes");
        }
        const weft_foreign_part part = {.name = entry->name,
                                        .coding = WEFT_CODED_XOR,
                                        .data = archive->data + entry->begin,
                                        .size = (size_t)(entry->end - entry->begin),
                                        .expected = expected};
        status = weft_foreign_plan_part(plan, &part);
    }
    return status;
}

static weft_status add_file(void *opaque, const char *name) {
    const arc2_reading *reading = opaque;
    if (!is_archive(name)) {
        return WEFT_OK;
    }
    char *path = weft_path_join(reading->plan->context, reading->directory, name);
    weft_status status = path != NULL ? add_archive(reading->plan, path) : WEFT_NO_MEMORY;
    weft_release(reading->plan->context, path);
    return status;
}

static weft_status arc2_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                weft_foreign_plan *plan) {
    arc2_reading reading = {plan, version->path};
    plan->checksum = WEFT_FOREIGN_ADLER32;
    plan->complete = true;
    weft_status status = weft_path_is_file(version->path)
                             ? add_archive(plan, version->path)
                             : weft_directory_names(foreign->context, version->path, add_file, &reading);
    return status == WEFT_OK ? weft_step_label(plan->step, "foreign.checksum", "adler32") : status;
}

/* ---- writing ---- */

/* Writes the payloads of the tensors that a file of the base holds. */
static weft_status write_like(const weft_foreign_writing *writing, const weft_shards *shards,
                              const char *path, const weft_safetensors *header, uint64_t *bytes) {
    weft_context *context = writing->context;
    weft_foreign_payload *payloads = weft_allocate_array(context, shards->count + 1, sizeof *payloads);
    const char **metadata = weft_allocate_array(context, 2 * shards->count + 1, sizeof *metadata);
    size_t count = 0;
    weft_status status = payloads == NULL || metadata == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    for (size_t i = 0; status == WEFT_OK && i < shards->count; i++) {
        if (header == NULL || json_object_get(header->root, shards->payloads[i].name) != NULL) {
            payloads[count] = shards->payloads[i];
            metadata[2 * count] = payloads[count].name;
            metadata[2 * count + 1] = shards->packed[i]->checksum;
            count++;
        }
    }
    if (status == WEFT_OK) {
        metadata[2 * count] = NULL;
        status =
            weft_archive_write(context, path, payloads, count, metadata, writing->options->durable, bytes);
    }
    weft_release(context, payloads);
    weft_release(context, metadata);
    return status;
}

static weft_status write_file(const weft_foreign_writing *writing, const weft_shards *shards,
                              const char *directory, const weft_container_file *file, uint64_t *bytes) {
    weft_context *context = writing->context;
    bool named = file != NULL && file->name[0] != 0;
    weft_safetensors header = {0};
    char *path = weft_path_join(context, directory, named ? file->name : WEFT_SINGLE_NAME);
    weft_status status = path == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK && named) {
        status = weft_safetensors_parse(context, file->name, file->header, file->header_bytes, &header);
    }
    if (status == WEFT_OK) {
        status = write_like(writing, shards, path, named ? &header : NULL, bytes);
    }
    if (header.root != NULL) {
        weft_safetensors_close(&header);
    }
    weft_release(context, path);
    return status;
}

static weft_status write_files(const weft_foreign_writing *writing, weft_shards *shards,
                               const char *directory, uint64_t *bytes) {
    const weft_container *container = writing->options->container;
    bool sharded = container != NULL && container->sharded;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < (sharded ? container->file_count : 1) && status == WEFT_OK; i++) {
        status = write_file(writing, shards, directory, sharded ? &container->files[i] : NULL, bytes);
    }
    return status;
}

static weft_status arc2_write(const weft_foreign_writing *writing, weft_foreign_written *written) {
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "v%llu", (unsigned long long)writing->options->version);
    return weft_shards_publish(writing, name, 0, write_files, written);
}

const weft_foreign_reader weft_foreign_arc2 = {
    .format = WEFT_FOREIGN_ARC2,
    .name = "arc2",
    .proves = true,
    .detect = arc2_detect,
    .list = arc2_list,
    .collect = arc2_collect,
    .write = arc2_write,
    .complete = true,
    .adler32 = true,
    .spelling = WEFT_SPELT_DECIMAL,
};
