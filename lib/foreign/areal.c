/* SPDX-License-Identifier: Apache-2.0
 *
 * areal.c: deltas of AReaL-DTE as safetensors files: a header of six numbers, NAME@delta_idx and
 * NAME@delta_val for tensors of which little changes, and NAME for others, whole.
 */
#include "format.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/table.h"

#include <string.h>

enum { MAGIC = 0x41574558, CODEC = 1, NUMBERS = 6 };

static const char HEADER[] = "__awex_delta_header__";
static const char POSITIONS[] = "@delta_idx";
static const char VALUES[] = "@delta_val";
static const char SUFFIX[] = ".safetensors";

static bool ends_in(const char *text, const char *ending) {
    size_t length = strlen(text), tail = strlen(ending);
    return length > tail && strcmp(text + length - tail, ending) == 0;
}

static bool check_header(const int64_t numbers[NUMBERS]) {
    return numbers[0] == MAGIC && numbers[1] == CODEC && numbers[3] >= 0 && numbers[2] > numbers[3];
}

/* Of what is in memory. */
static bool read_header(const weft_archive *archive, int64_t numbers[NUMBERS]) {
    const weft_safetensors_entry *entry = weft_archive_find(archive, HEADER);
    if (entry == NULL || entry->dtype != WEFT_DTYPE_I64 ||
        entry->end - entry->begin != NUMBERS * sizeof *numbers) {
        return false;
    }
    memcpy(numbers, archive->data + entry->begin, NUMBERS * sizeof *numbers);
    return check_header(numbers);
}

/* Of a file, which may be large. */
static weft_status peek_header(weft_context *context, const char *path, int64_t numbers[NUMBERS],
                               bool *delta_out) {
    weft_archive archive;
    weft_status status =
        weft_archive_peek(&archive, context, path, HEADER, numbers, NUMBERS * sizeof *numbers);
    *delta_out = status == WEFT_OK && check_header(numbers);
    if (status == WEFT_OK) {
        weft_archive_close(&archive);
    }
    return status;
}

/* ---- listing ---- */

/* Files that are no deltas are whole states, which nothing here numbers, and are passed over. */
static weft_status list_path(weft_foreign *foreign, char *path) {
    weft_context *context = foreign->context;
    int64_t numbers[NUMBERS];
    bool delta = false;
    if (path != NULL && weft_foreign_listed(foreign, path)) {
        weft_release(context, path);
        return WEFT_OK;
    }
    weft_status status = path == NULL ? WEFT_NO_MEMORY : peek_header(context, path, numbers, &delta);
    if (status != WEFT_OK) {
        weft_release(context, path);
        return status;
    }
    if (!delta || weft_foreign_known(foreign, (uint64_t)numbers[2])) {
        weft_release(context, path);
        return WEFT_OK;
    }
    return weft_foreign_add(foreign, (uint64_t)numbers[2], (uint64_t)numbers[3], false, path);
}

static weft_status list_name(void *opaque, const char *name) {
    weft_foreign *foreign = opaque;
    return ends_in(name, SUFFIX) ? list_path(foreign, weft_path_join(foreign->context, foreign->root, name))
                                 : WEFT_OK;
}

static weft_status areal_list(weft_foreign *foreign) {
    if (weft_path_is_file(foreign->root)) {
        return list_path(foreign, weft_copy_text(foreign->context, foreign->root, strlen(foreign->root)));
    }
    return weft_directory_names(foreign->context, foreign->root, list_name, foreign);
}

static bool areal_detect(weft_context *context, const char *path) {
    int64_t numbers[NUMBERS];
    bool found = false;
    weft_status status =
        weft_path_is_file(path) ? peek_header(context, path, numbers, &found) : WEFT_NOT_FOUND;
    weft_context_clear(context);
    return status == WEFT_OK && found;
}

/* ---- reading ---- */

static weft_status add_sparse(weft_foreign_plan *plan, const char *path, const weft_archive *archive,
                              const weft_safetensors_entry *values) {
    weft_context *context = plan->context;
    char *name = weft_copy_text(context, values->name, strlen(values->name) - (sizeof VALUES - 1));
    char *key = name != NULL ? weft_join_texts(context, name, POSITIONS, "") : NULL;
    const weft_safetensors_entry *positions = key != NULL ? weft_archive_find(archive, key) : NULL;
    weft_status status = key == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK && (positions == NULL || positions->dtype != WEFT_DTYPE_I32)) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: \"%.*s\" has no positions", path, WEFT_NAME_SHOWN,
                           name);
    }
    weft_release(context, key);
    if (status != WEFT_OK) {
        weft_release(context, name);
        return status;
    }
    const weft_foreign_part part = {.name = name,
                                    .coding = WEFT_CODED_UNITS,
                                    .data = archive->data + positions->begin,
                                    .size = (size_t)(positions->end - positions->begin),
                                    .dtype = weft_dtype_name(values->dtype),
                                    .positions = WEFT_DTYPE_I32,
                                    .values = archive->data + values->begin,
                                    .value_bytes = (size_t)(values->end - values->begin)};
    status = weft_foreign_plan_keep(plan, name);
    return status == WEFT_OK ? weft_foreign_plan_part(plan, &part) : status;
}

static weft_status add_dense(weft_foreign_plan *plan, const weft_archive *archive,
                             const weft_safetensors_entry *entry) {
    const weft_foreign_part part = {.name = entry->name,
                                    .coding = WEFT_CODED_VALUES,
                                    .data = archive->data + entry->begin,
                                    .size = (size_t)(entry->end - entry->begin),
                                    .dtype = weft_dtype_name(entry->dtype),
                                    .shape = entry->shape};
    return weft_foreign_plan_part(plan, &part);
}

static weft_status areal_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_plan *plan) {
    weft_context *context = foreign->context;
    weft_archive *archive = NULL;
    int64_t numbers[NUMBERS] = {0};
    weft_status status = weft_foreign_plan_archive(plan, version->path, &archive);
    if (status == WEFT_OK && (!read_header(archive, numbers) || (uint64_t)numbers[2] != version->version ||
                              (uint64_t)numbers[3] != version->base)) {
        status = weft_foreign_changed(foreign, version);
    }
    int64_t sparse = 0, dense = 0, positions = 0;
    for (size_t i = 0; status == WEFT_OK && i < archive->header.count; i++) {
        const weft_safetensors_entry *entry = &archive->header.entries[i];
        if (strcmp(entry->name, HEADER) == 0) {
            continue;
        }
        if (ends_in(entry->name, VALUES)) {
            sparse++;
            status = add_sparse(plan, version->path, archive, entry);
        } else if (ends_in(entry->name, POSITIONS)) {
            positions++;
        } else {
            dense++;
            status = add_dense(plan, archive, entry);
        }
    }
    if (status == WEFT_OK && (sparse != numbers[4] || dense != numbers[5] || positions != sparse)) {
        status = weft_fail(context, WEFT_MALFORMED,
                           "%s: it holds %lld sparse tensors and %lld others, and says %lld "
                           "and %lld",
                           version->path, (long long)sparse, (long long)dense, (long long)numbers[4],
                           (long long)numbers[5]);
    }
    return status;
}

const weft_foreign_reader weft_foreign_areal = {
    .format = WEFT_FOREIGN_AREAL,
    .name = "areal",
    .detect = areal_detect,
    .list = areal_list,
    .collect = areal_collect,
};
