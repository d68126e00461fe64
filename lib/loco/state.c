/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c: all that a rank needs to go on, in one safetensors file.
 *
 * Tensors are named KIND.NAME: `consensus`, `residual`, `momentum`, `local` where it differs from the
 * consensus, and `extra` for what the trainer adds. Metadata tell the run, the round and the configuration,
 * and carry the digest of all tensors; the trainer's labels stand beside them with `label.` before their
 * keys. A file that is not of this run, rank, model and configuration is refused before anything changes.
 */
#include "loco.h"

#include "../base/context.h"

#include <stdio.h>
#include <string.h>

enum { FORMAT = 1, KINDS = 4, NUMBERS = 256 };

typedef struct state_kind {
    const char *prefix;
    float *flat; /* laid out like the consensus; NULL: the local weights, or nothing */
    bool local;
} state_kind;

static size_t list_kinds(const weft_loco *loco, bool local, state_kind kinds[KINDS]) {
    size_t count = 0;
    kinds[count++] = (state_kind){"consensus", loco->consensus, false};
    kinds[count++] = (state_kind){"residual", loco->residual, false};
    if (loco->momentum != NULL) {
        kinds[count++] = (state_kind){"momentum", loco->momentum, false};
    }
    if (local) {
        kinds[count++] = (state_kind){"local", NULL, true};
    }
    return count;
}

static bool local_differs(const weft_loco *loco) {
    for (size_t i = 0; i < loco->place_count; i++) {
        const weft_loco_place *place = &loco->places[i];
        if (place->count > 0 && memcmp(place->data, loco->consensus + place->start,
                                       (size_t)place->count * sizeof(float)) != 0) {
            return true;
        }
    }
    return false;
}

static float *data_of(const state_kind *kind, const weft_loco_place *place) {
    return kind->local ? place->data : kind->flat + place->start;
}

/* "PREFIX.NAME", to be released. */
static char *join_name(weft_context *context, const char *prefix, const char *name) {
    size_t size = strlen(prefix) + 1 + strlen(name) + 1;
    char *joined = weft_allocate(context, size);
    if (joined != NULL) {
        snprintf(joined, size, "%s.%s", prefix, name);
    }
    return joined;
}

/* ---- the table ---- */

static weft_status add_tensor(weft_context *context, weft_table *table, const char *prefix,
                              const weft_tensor *tensor) {
    weft_tensor named = *tensor;
    char *name = join_name(context, prefix, tensor->name);
    if (name == NULL) {
        return WEFT_NO_MEMORY;
    }
    named.name = name;
    weft_status status = weft_table_add(table, &named);
    weft_release(context, name);
    return status;
}

static weft_status add_kind(const weft_loco *loco, const state_kind *kind, weft_table *table) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < loco->place_count && status == WEFT_OK; i++) {
        const weft_loco_place *place = &loco->places[i];
        weft_tensor tensor = {
            .name = place->name,
            .dtype = WEFT_DTYPE_F32,
            .rank = 1,
            .shape = {place->count},
            .data = data_of(kind, place),
        };
        status = add_tensor(loco->context, table, kind->prefix, &tensor);
    }
    return status;
}

/* Every tensor of a state of this rank, over the memory that holds it. */
static weft_status make_table(const weft_loco *loco, bool local, const weft_table *extra,
                              weft_table **table_out) {
    state_kind kinds[KINDS];
    size_t kind_count = list_kinds(loco, local, kinds);
    weft_table *table = NULL;
    weft_status status = weft_table_create(loco->context, &table);
    for (size_t i = 0; i < kind_count && status == WEFT_OK; i++) {
        status = add_kind(loco, &kinds[i], table);
    }
    for (size_t i = 0; extra != NULL && i < weft_table_count(extra) && status == WEFT_OK; i++) {
        const weft_tensor *tensor = weft_table_at(extra, i);
        if (tensor->bytes > 0 && tensor->data == NULL) {
            status = weft_fail(loco->context, WEFT_UNSUPPORTED,
                               "tensor '%s' is not in memory and cannot be part of a state", tensor->name);
        } else {
            status = add_tensor(loco->context, table, "extra", tensor);
        }
    }
    if (status != WEFT_OK) {
        weft_table_destroy(table);
        return status;
    }
    *table_out = table;
    return WEFT_OK;
}

static weft_status digest_table(weft_context *context, const weft_table *table,
                                char text[WEFT_DIGEST_TEXT]) {
    weft_view *view = NULL;
    weft_sums *sums = NULL;
    weft_status status = weft_view_create(context, table, &view);
    if (status == WEFT_OK) {
        status = weft_sums_compute(context, view, &sums);
    }
    if (status == WEFT_OK) {
        weft_digest digest = weft_sums_digest(sums);
        weft_digest_format(&digest, text);
    }
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    return status;
}

/* ---- saving ---- */

/* What must be the same when the state is loaded. Floats as their bits. */
static void format_configuration(const weft_loco *loco, char text[NUMBERS]) {
    const weft_loco_options *options = &loco->options;
    uint32_t rate, momentum;
    memcpy(&rate, &options->rate, sizeof rate);
    memcpy(&momentum, &options->momentum, sizeof momentum);
    snprintf(text, NUMBERS, "%d rank %u of %u, rate %08x, momentum %08x, significant %u, open %d, raw %d",
             FORMAT, options->rank, options->ranks, rate, momentum, options->significant, options->open,
             options->raw);
}

/* Our own metadata and the labels, as weft_table_write takes them; to be released, with the joined keys. */
static weft_status make_metadata(weft_context *context, const char *const *own, const char *const *labels,
                                 const char ***items_out) {
    size_t own_count = 0, label_count = 0;
    while (own[own_count] != NULL) {
        own_count++;
    }
    while (labels != NULL && labels[label_count] != NULL) {
        label_count++;
    }
    if (label_count % 2 != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "a label has a key and a value");
    }
    const char **items = weft_allocate_zeroed(context, own_count + label_count + 1, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < label_count; i += 2) {
        items[i] = join_name(context, "label", labels[i]);
        items[i + 1] = labels[i + 1];
        if (items[i] == NULL) {
            for (size_t j = 0; j < i; j += 2) {
                weft_release(context, (void *)(uintptr_t)items[j]);
            }
            weft_release(context, items);
            return WEFT_NO_MEMORY;
        }
    }
    memcpy(items + label_count, own, own_count * sizeof *items);
    *items_out = items;
    return WEFT_OK;
}

static void release_metadata(weft_context *context, const char **items) {
    for (size_t i = 0; items[i] != NULL && strncmp(items[i], "label.", 6) == 0; i += 2) {
        weft_release(context, (void *)(uintptr_t)items[i]);
    }
    weft_release(context, items);
}

weft_status weft_loco_save(const weft_loco *loco, const char *path, const weft_table *extra,
                           const char *const *labels, bool durable) {
    weft_context *context = loco->context;
    weft_table *table = NULL;
    char digest[WEFT_DIGEST_TEXT], configuration[NUMBERS], rounds[NUMBERS];
    weft_context_clear(context);
    weft_status status = weft_loco_check(loco);
    if (status == WEFT_OK && loco->pending) {
        status = weft_fail(context, WEFT_BUSY,
                           "a payload waits for the end of round %llu: save before the round or after it",
                           (unsigned long long)loco->rounds);
    }
    if (status == WEFT_OK) {
        status = make_table(loco, local_differs(loco), extra, &table);
    }
    if (status == WEFT_OK) {
        status = digest_table(context, table, digest);
    }
    if (status == WEFT_OK) {
        const char **items = NULL;
        format_configuration(loco, configuration);
        snprintf(rounds, sizeof rounds, "%llu", (unsigned long long)loco->rounds);
        const char *const own[] = {"weft_loco_configuration",
                                   configuration,
                                   "weft_loco_digest",
                                   digest,
                                   "weft_loco_rounds",
                                   rounds,
                                   "weft_loco_run",
                                   loco->run,
                                   NULL};
        status = make_metadata(context, own, labels, &items);
        if (status == WEFT_OK) {
            weft_write_options options = {.metadata = items, .durable = durable};
            status = weft_table_write(context, table, path, &options);
            release_metadata(context, items);
        }
    }
    weft_table_destroy(table);
    return status;
}

/* ---- loading ---- */

static weft_status check_metadata(const weft_loco *loco, const weft_checkpoint *file, const char *path,
                                  uint64_t *rounds_out) {
    const char *run = weft_checkpoint_metadata(file, "weft_loco_run");
    const char *configuration = weft_checkpoint_metadata(file, "weft_loco_configuration");
    const char *rounds = weft_checkpoint_metadata(file, "weft_loco_rounds");
    char expected[NUMBERS];
    unsigned long long number = 0;
    int end = 0;
    if (run == NULL || configuration == NULL || rounds == NULL ||
        sscanf(rounds, "%llu%n", &number, &end) != 1 || rounds[end] != 0) {
        return weft_fail(loco->context, WEFT_MALFORMED, "'%s' is no state of PULSELoCo", path);
    }
    format_configuration(loco, expected);
    if (strcmp(run, loco->run) != 0) {
        return weft_fail(loco->context, WEFT_BASE_MISMATCH,
                         "the state in '%s' is of run '%s'; this is '%s'", path, run, loco->run);
    }
    if (strcmp(configuration, expected) != 0) {
        return weft_fail(loco->context, WEFT_BASE_MISMATCH,
                         "the state in '%s' is of another rank or configuration: '%s'; this is '%s'", path,
                         configuration, expected);
    }
    *rounds_out = number;
    return WEFT_OK;
}

/* The file has exactly the tensors of `table`, and its digest is the promised one. */
static weft_status check_tensors(const weft_loco *loco, const weft_checkpoint *file,
                                 const weft_table *table, const char *path) {
    const weft_table *found = weft_checkpoint_table(file);
    for (size_t i = 0; i < weft_table_count(table); i++) {
        const weft_tensor *wanted = weft_table_at(table, i);
        int64_t index = weft_table_find(found, wanted->name);
        const weft_tensor *tensor = index < 0 ? NULL : weft_table_at(found, (size_t)index);
        if (tensor == NULL || tensor->dtype != wanted->dtype || tensor->bytes != wanted->bytes) {
            return weft_fail(loco->context, WEFT_BASE_MISMATCH,
                             "the state in '%s' is of another model or optimizer: it %s tensor '%s'%s",
                             path, tensor == NULL ? "has no" : "has", wanted->name,
                             tensor == NULL ? "" : " with another dtype or size");
        }
    }
    if (weft_table_count(found) != weft_table_count(table)) {
        return weft_fail(
            loco->context, WEFT_BASE_MISMATCH,
            "the state in '%s' is of another model or optimizer: it has %zu tensors and not %zu", path,
            weft_table_count(found), weft_table_count(table));
    }
    const char *promised = weft_checkpoint_metadata(file, "weft_loco_digest");
    char digest[WEFT_DIGEST_TEXT];
    weft_status status = digest_table(loco->context, found, digest);
    if (status == WEFT_OK && (promised == NULL || strcmp(promised, digest) != 0)) {
        return weft_fail(loco->context, WEFT_DIGEST_MISMATCH,
                         "the state in '%s' is damaged: its digest is %s and should be %s", path, digest,
                         promised != NULL ? promised : "there");
    }
    return status;
}

static void take_tensors(const weft_table *found, const weft_table *table) {
    for (size_t i = 0; i < weft_table_count(table); i++) {
        const weft_tensor *to = weft_table_at(table, i);
        const weft_tensor *from = weft_table_at(found, (size_t)weft_table_find(found, to->name));
        if (to->bytes > 0) {
            memcpy(to->data, from->data, (size_t)to->bytes);
        }
    }
}

static bool has_local(const weft_table *table) {
    for (size_t i = 0; i < weft_table_count(table); i++) {
        if (strncmp(weft_table_at(table, i)->name, "local.", 6) == 0) {
            return true;
        }
    }
    return false;
}

static weft_status load(weft_loco *loco, const weft_checkpoint *file, const char *path,
                        const weft_table *extra) {
    weft_table *table = NULL;
    uint64_t rounds = 0;
    bool local = has_local(weft_checkpoint_table(file));
    weft_status status = check_metadata(loco, file, path, &rounds);
    if (status == WEFT_OK) {
        status = make_table(loco, local, extra, &table);
    }
    if (status == WEFT_OK) {
        status = check_tensors(loco, file, table, path);
    }
    if (status == WEFT_OK) {
        take_tensors(weft_checkpoint_table(file), table);
        if (!local) {
            weft_loco_set_local(loco, 0, loco->elements);
        }
        loco->rounds = rounds;
        loco->pending = false;
        status = weft_loco_move_digest(loco);
        loco->broken = status != WEFT_OK;
    }
    weft_table_destroy(table);
    return status;
}

weft_status weft_loco_load(weft_loco *loco, const char *path, const weft_table *extra,
                           const char *const *keys,
                           void (*label)(void *opaque, const char *key, const char *value), void *opaque) {
    weft_checkpoint *file = NULL;
    weft_context_clear(loco->context);
    weft_status status = weft_checkpoint_open(loco->context, path, WEFT_OPEN_READ, &file);
    if (status == WEFT_OK) {
        status = load(loco, file, path, extra);
    }
    for (size_t i = 0; status == WEFT_OK && keys != NULL && keys[i] != NULL; i++) {
        char *key = join_name(loco->context, "label", keys[i]);
        if (key == NULL) {
            status = WEFT_NO_MEMORY;
            break;
        }
        label(opaque, keys[i], weft_checkpoint_metadata(file, key));
        weft_release(loco->context, key);
    }
    weft_checkpoint_close(file);
    return status;
}
