/* SPDX-License-Identifier: Apache-2.0
 *
 * trl.c: sparse weight patches of TRL: safetensors files with NAME.val and NAME.idx (or .values and
 * .indices), where positions are whole or gaps. deltas/step_NNNNNN.safetensors lead from each step to the
 * next, and anchors/step_NNNNNN.safetensors are whole.
 *
 * Nothing in them says which weights they belong to, or proves the result.
 */
#include "format.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/table.h"

#include <string.h>

static bool is_patch(const weft_archive *archive) {
    const char *format = weft_archive_metadata(archive, "format");
    return format != NULL && strcmp(format, "sparse_weight_patch") == 0;
}

/* ---- listing ---- */

typedef struct trl_listing {
    weft_foreign *foreign;
    const char *directory;
    bool whole;
} trl_listing;

static weft_status list_version(void *opaque, const char *name) {
    const trl_listing *listing = opaque;
    uint64_t number;
    if (!weft_numbered(name, "step_", 1, ".safetensors", &number) ||
        weft_foreign_known(listing->foreign, number)) {
        return WEFT_OK;
    }
    uint64_t base = number > 0 ? number - 1 : 0;
    return weft_foreign_add(listing->foreign, number, base, listing->whole,
                            weft_path_join(listing->foreign->context, listing->directory, name));
}

static weft_status list_folder(weft_foreign *foreign, const char *name, bool whole) {
    char *path = weft_path_join(foreign->context, foreign->root, name);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    trl_listing listing = {foreign, path, whole};
    weft_status status = weft_directory_names(foreign->context, path, list_version, &listing);
    weft_release(foreign->context, path);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(foreign->context);
        return WEFT_OK;
    }
    return status;
}

static weft_status list_file(weft_foreign *foreign) {
    weft_context *context = foreign->context;
    weft_archive archive;
    uint64_t version = 1;
    if (foreign->count > 0) {
        return WEFT_OK;
    }
    weft_status status = weft_archive_peek(&archive, context, foreign->root, "", NULL, 0);
    if (status != WEFT_OK) {
        return status;
    }
    const char *text = weft_archive_metadata(&archive, "model_version");
    if (text != NULL && (!weft_numbered(text, "", 1, "", &version) || version == 0)) {
        version = 1;
    }
    weft_archive_close(&archive);
    return weft_foreign_add(foreign, version, version - 1, false,
                            weft_copy_text(context, foreign->root, strlen(foreign->root)));
}

static weft_status trl_list(weft_foreign *foreign) {
    if (weft_path_is_file(foreign->root)) {
        return list_file(foreign);
    }
    /* a step that is there in both forms is taken as a delta */
    weft_status status = list_folder(foreign, "deltas", false);
    return status == WEFT_OK ? list_folder(foreign, "anchors", true) : status;
}

static bool trl_detect(weft_context *context, const char *path) {
    bool found = !weft_path_is_file(path) && weft_path_exists(context, path, "deltas") &&
                 weft_path_exists(context, path, "anchors");
    weft_archive archive;
    if (!found && weft_path_is_file(path) &&
        weft_archive_peek(&archive, context, path, "", NULL, 0) == WEFT_OK) {
        found = is_patch(&archive);
        weft_archive_close(&archive);
    }
    weft_context_clear(context);
    return found;
}

/* ---- reading ---- */

/* The name without `suffix`, as memory of the plan; NULL if it does not end so, or there is no memory. */
static const char *without_suffix(weft_foreign_plan *plan, const char *name, const char *suffix,
                                  weft_status *status) {
    size_t length = strlen(name), tail = strlen(suffix);
    if (length <= tail || strcmp(name + length - tail, suffix) != 0) {
        return NULL;
    }
    char *own = weft_copy_text(plan->context, name, length - tail);
    *status = own != NULL ? weft_foreign_plan_keep(plan, own) : WEFT_NO_MEMORY;
    return *status == WEFT_OK ? own : NULL;
}

static weft_status add_pair(weft_foreign_plan *plan, const char *path, const weft_archive *archive,
                            const weft_safetensors_entry *values, const char *name, const char *suffix,
                            bool gaps) {
    weft_context *context = plan->context;
    char *key = weft_join_texts(context, name, suffix, "");
    if (key == NULL) {
        return WEFT_NO_MEMORY;
    }
    const weft_safetensors_entry *positions = weft_archive_find(archive, key);
    weft_release(context, key);
    bool known = positions != NULL &&
                 (gaps ? positions->dtype == WEFT_DTYPE_U16 || positions->dtype == WEFT_DTYPE_U32
                       : positions->dtype == WEFT_DTYPE_I32);
    if (!known) {
        return weft_fail(context, positions == NULL ? WEFT_MALFORMED : WEFT_UNSUPPORTED, "%s: \"%.*s\" %s",
                         path, WEFT_NAME_SHOWN, name,
                         positions == NULL ? "has values and no positions"
                                           : "has positions in an encoding that is not read here");
    }
    const weft_foreign_part part = {.name = name,
                                    .coding = WEFT_CODED_UNITS,
                                    .data = archive->data + positions->begin,
                                    .size = (size_t)(positions->end - positions->begin),
                                    .dtype = weft_dtype_name(values->dtype),
                                    .positions = positions->dtype,
                                    .gaps = gaps,
                                    .values = archive->data + values->begin,
                                    .value_bytes = (size_t)(values->end - values->begin)};
    return weft_foreign_plan_part(plan, &part);
}

static weft_status trl_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                               weft_foreign_plan *plan) {
    weft_context *context = foreign->context;
    weft_archive *archive = NULL;
    weft_status status = weft_foreign_plan_archive(plan, version->path, &archive);
    if (status != WEFT_OK) {
        return status;
    }
    const char *sparse = weft_archive_metadata(archive, "sparse");
    const char *encoding = weft_archive_metadata(archive, "encoding");
    if (!is_patch(archive) || (sparse != NULL && strcmp(sparse, "True") != 0)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: this is no sparse weight patch", version->path);
    }
    bool gaps = encoding != NULL && strcmp(encoding, "gap_delta") == 0;
    if (encoding != NULL && !gaps && strcmp(encoding, "raw") != 0) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "%s: its positions are coded as %.40s; raw and gap_delta "
                         "are read",
                         version->path, encoding);
    }
    size_t pairs = 0;
    for (size_t i = 0; status == WEFT_OK && i < archive->header.count; i++) {
        const weft_safetensors_entry *entry = &archive->header.entries[i];
        const char *name = without_suffix(plan, entry->name, ".val", &status);
        const char *older = name == NULL ? without_suffix(plan, entry->name, ".values", &status) : NULL;
        if (status == WEFT_OK && (name != NULL || older != NULL)) {
            status = add_pair(plan, version->path, archive, entry, name != NULL ? name : older,
                              name != NULL ? ".idx" : ".indices", name != NULL && gaps);
            pairs++;
        }
    }
    if (status == WEFT_OK && 2 * pairs != archive->header.count) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: it holds more than positions and values",
                           version->path);
    }
    return status;
}

const weft_foreign_reader weft_foreign_trl = {
    .format = WEFT_FOREIGN_TRL,
    .name = "trl",
    .detect = trl_detect,
    .list = trl_list,
    .collect = trl_collect,
};
