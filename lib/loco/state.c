/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c: all that a rank needs to go on, in one safetensors file.
 *
 * Tensors are named KIND.NAME: `consensus`, `residual`, `momentum`, `local` where it differs from the
 * consensus, and `extra` for what the trainer adds. Two more have no such name: `included`, as included.h
 * has it, and `about`, which holds texts: the run, the round, the configuration, and the trainer's labels
 * with `label.` before their keys. So the digest of all tensors, the only thing that stands in the
 * metadata, covers everything. A file that is not of this run, rank, model and configuration is refused
 * before anything changes.
 */
#include "loco.h"

#include "../base/context.h"
#include "../tensor/digest.h"
#include "flight.h"
#include "included.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 3, KINDS = 4, NUMBERS = 256 };

static const char ABOUT[] = "about";
static const char INCLUDED[] = "included";
static const char DIGEST[] = "weft_loco_digest";

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

/* ---- the table ---- */

static weft_status add_tensor(weft_context *context, weft_table *table, const char *prefix,
                              const weft_tensor *tensor) {
    weft_tensor named = *tensor;
    char *name = weft_join_texts(context, prefix, ".", tensor->name);
    if (name == NULL) {
        return WEFT_NO_MEMORY;
    }
    named.name = name;
    weft_status status = weft_table_add(table, &named);
    weft_release(context, name);
    return status;
}

/* Every tensor of a state of this rank but the texts, over the memory that holds it. */
static weft_status make_table(const weft_loco *loco, bool local, const weft_table *extra,
                              weft_table **table_out) {
    state_kind kinds[KINDS];
    size_t kind_count = list_kinds(loco, local, kinds);
    weft_table *table = NULL;
    weft_status status = weft_table_create(loco->context, &table);
    for (size_t k = 0; k < kind_count; k++) {
        for (size_t i = 0; i < loco->place_count && status == WEFT_OK; i++) {
            const weft_loco_place *place = &loco->places[i];
            float *data = kinds[k].local ? place->data : kinds[k].flat + place->start;
            const weft_tensor tensor = weft_loco_place_tensor(place, data);
            status = add_tensor(loco->context, table, kinds[k].prefix, &tensor);
        }
    }
    if (status == WEFT_OK) {
        const weft_tensor included = {.size = sizeof included,
                                      .name = INCLUDED,
                                      .dtype = WEFT_DTYPE_U8,
                                      .rank = 1,
                                      .shape = {weft_loco_included_bytes(loco)},
                                      .data = loco->included};
        status = weft_table_add(table, &included);
    }
    for (size_t i = 0; extra != NULL && i < weft_table_count(extra) && status == WEFT_OK; i++) {
        const weft_tensor *tensor = weft_table_at(extra, i);
        if ((tensor->bytes > 0 && tensor->data == NULL) || tensor->strides != NULL ||
            tensor->converter != NULL) {
            status = weft_fail(
                loco->context, WEFT_UNSUPPORTED,
                "tensor '%s' is not in memory, or has strides or a converter, and cannot be part of "
                "a state",
                tensor->name);
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

/* ---- texts about the state ----
 *
 * Key, value, key, value, …, each ended by a zero byte. */

typedef struct state_texts {
    char *data;
    size_t size;
} state_texts;

/* Whole pairs of texts. */
static bool texts_valid(const state_texts *texts) {
    size_t ends = 0;
    for (size_t i = 0; i < texts->size; i++) {
        ends += texts->data[i] == 0;
    }
    return texts->size > 0 && texts->data[texts->size - 1] == 0 && ends % 2 == 0;
}

/* The value of PREFIX and KEY together, or NULL. */
static const char *find_text(const state_texts *texts, const char *prefix, const char *key) {
    size_t length = strlen(prefix);
    for (const char *at = texts->data; at < texts->data + texts->size;) {
        const char *value = at + strlen(at) + 1;
        if (strncmp(at, prefix, length) == 0 && strcmp(at + length, key) == 0) {
            return value;
        }
        at = value + strlen(value) + 1;
    }
    return NULL;
}

static void put_text(weft_writer *writer, const char *prefix, const char *key, const char *value) {
    weft_writer_bytes(writer, prefix, strlen(prefix));
    weft_writer_bytes(writer, key, strlen(key) + 1);
    weft_writer_bytes(writer, value, strlen(value) + 1);
}

/* ---- saving ---- */

/* What must be the same when the state is loaded. Floats as their bits. */
static void format_configuration(const weft_loco *loco, char text[NUMBERS]) {
    const weft_loco_options *options = &loco->options;
    uint32_t rate, momentum;
    memcpy(&rate, &options->rate, sizeof rate);
    memcpy(&momentum, &options->momentum, sizeof momentum);
    snprintf(text, NUMBERS,
             "%d rank %u of %u, rate %08x, momentum %08x, significant %u, open %d, raw %d, average %d",
             FORMAT, options->rank, options->ranks, rate, momentum, options->significant, options->open,
             options->raw, options->average);
    if (options->grid != 0) {
        size_t size = strlen(text);
        snprintf(text + size, NUMBERS - size, ", grid %u", options->grid);
    }
}

static weft_status put_labels(weft_context *context, const char *const *labels, weft_writer *about) {
    for (size_t i = 0; labels != NULL && labels[i] != NULL; i += 2) {
        if (labels[i + 1] == NULL) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "a label has a key and a value");
        }
        const state_texts before = {(char *)about->data, about->size};
        if (find_text(&before, "label.", labels[i]) != NULL) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "label \"%s\" is given twice", labels[i]);
        }
        put_text(about, "label.", labels[i], labels[i + 1]);
        if (weft_writer_failed(about)) {
            return WEFT_NO_MEMORY;
        }
    }
    return WEFT_OK;
}

static weft_status put_about(const weft_loco *loco, const char *const *labels, weft_writer *about) {
    char configuration[NUMBERS], rounds[NUMBERS];
    format_configuration(loco, configuration);
    snprintf(rounds, sizeof rounds, "%llu", (unsigned long long)loco->rounds);
    put_text(about, "", "run", loco->run);
    put_text(about, "", "rounds", rounds);
    put_text(about, "", "configuration", configuration);
    return weft_writer_failed(about) ? WEFT_NO_MEMORY : put_labels(loco->context, labels, about);
}

static weft_status write_state(const weft_loco *loco, const char *path, weft_table *table,
                               const weft_writer *about, bool durable) {
    weft_context *context = loco->context;
    char digest[WEFT_DIGEST_TEXT];
    const weft_tensor tensor = {.size = sizeof tensor,
                                .name = ABOUT,
                                .dtype = WEFT_DTYPE_U8,
                                .rank = 1,
                                .shape = {about->size},
                                .data = about->data};
    weft_status status = weft_table_add(table, &tensor);
    if (status == WEFT_OK) {
        status = weft_table_digest_text(context, table, digest);
    }
    if (status == WEFT_OK) {
        const char *const metadata[] = {DIGEST, digest, NULL};
        const weft_write_options options = {
            .size = sizeof options, .metadata = metadata, .durable = durable};
        status = weft_table_write(context, table, path, &options);
    }
    return status;
}

weft_status weft_loco_save(const weft_loco *loco, const char *path, const weft_table *extra,
                           const char *const *labels, bool durable) {
    weft_context *context = loco->context;
    weft_table *table = NULL;
    weft_writer about;
    weft_writer_open(&about, context);
    weft_status status = weft_context_enter(context);
    if (status == WEFT_OK) {
        status = weft_loco_check(loco);
    }
    if (status == WEFT_OK && loco->pending) {
        status = weft_fail(context, WEFT_BUSY,
                           "a payload waits for the end of round %llu: save before the round or after it",
                           (unsigned long long)loco->rounds);
    }
    if (status == WEFT_OK) {
        status = make_table(loco, local_differs(loco), extra, &table);
    }
    if (status == WEFT_OK) {
        status = put_about(loco, labels, &about);
    }
    if (status == WEFT_OK) {
        status = write_state(loco, path, table, &about, durable);
    }
    weft_table_destroy(table);
    weft_writer_close(&about);
    return status;
}

/* ---- loading ---- */

/* The file is whole: its digest is the promised one. */
static weft_status check_digest(weft_context *context, const weft_checkpoint *file, const char *path) {
    const char *promised = weft_checkpoint_metadata(file, DIGEST);
    char digest[WEFT_DIGEST_TEXT];
    if (promised == NULL) {
        return weft_fail(context, WEFT_MALFORMED, "'%s' is no state of PULSELoCo", path);
    }
    weft_status status = weft_table_digest_text(context, weft_checkpoint_table(file), digest);
    if (status == WEFT_OK && strcmp(promised, digest) != 0) {
        return weft_fail(
            context, WEFT_DIGEST_MISMATCH,
            "the state in '%s' is damaged: its digest is %s and should be %s; go on from another "
            "copy of it, or begin without it",
            path, digest, promised);
    }
    return status;
}

/* A copy, to be released: the mapped ones could change under us. */
static weft_status copy_texts(weft_context *context, const weft_checkpoint *file, const char *path,
                              state_texts *texts) {
    const weft_table *found = weft_checkpoint_table(file);
    int64_t index = weft_table_find(found, ABOUT);
    const weft_tensor *about = index < 0 ? NULL : weft_table_at(found, (size_t)index);
    if (about != NULL && about->bytes > 0) {
        texts->data = weft_allocate(context, (size_t)about->bytes);
        if (texts->data == NULL) {
            return WEFT_NO_MEMORY;
        }
        texts->size = (size_t)about->bytes;
        memcpy(texts->data, about->data, texts->size);
    }
    if (!texts_valid(texts)) {
        return weft_fail(context, WEFT_MALFORMED, "'%s' does not tell what it is a state of", path);
    }
    return WEFT_OK;
}

/* Digits alone, as they are written: no sign, blank or zero before them. */
static bool parse_rounds(const char *text, uint64_t *rounds_out) {
    char again[NUMBERS];
    unsigned long long number = strtoull(text, NULL, 10);
    snprintf(again, sizeof again, "%llu", number);
    *rounds_out = number;
    return strcmp(text, again) == 0;
}

static weft_status check_texts(const weft_loco *loco, const state_texts *texts, const char *path,
                               uint64_t *rounds_out) {
    const char *run = find_text(texts, "", "run");
    const char *configuration = find_text(texts, "", "configuration");
    const char *rounds = find_text(texts, "", "rounds");
    char expected[NUMBERS];
    if (run == NULL || configuration == NULL || rounds == NULL || !parse_rounds(rounds, rounds_out)) {
        return weft_fail(loco->context, WEFT_MALFORMED,
                         "'%s' does not tell its run, round or configuration", path);
    }
    format_configuration(loco, expected);
    if (strcmp(run, loco->run) != 0) {
        return weft_fail(loco->context, WEFT_BASE_MISMATCH,
                         "the state in '%s' is of run '%s'; this is '%s': give a file of this run", path,
                         run, loco->run);
    }
    if (strcmp(configuration, expected) != 0) {
        return weft_fail(
            loco->context, WEFT_BASE_MISMATCH,
            "the state in '%s' is of another rank or configuration: '%s'; this is '%s'; give each "
            "rank its own file, and the configuration that it was saved with",
            path, configuration, expected);
    }
    return WEFT_OK;
}

/* The file has exactly the tensors of `table`, and its texts. */
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
    if (weft_table_count(found) != weft_table_count(table) + 1) {
        return weft_fail(
            loco->context, WEFT_BASE_MISMATCH,
            "the state in '%s' is of another model or optimizer: it has %zu tensors and not %zu", path,
            weft_table_count(found), weft_table_count(table) + 1);
    }
    return WEFT_OK;
}

static void copy_tensors(const weft_table *found, const weft_table *table) {
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

static weft_status load_file(weft_loco *loco, const weft_checkpoint *file, const char *path,
                             const weft_table *extra, state_texts *texts) {
    const weft_table *found = weft_checkpoint_table(file);
    weft_table *table = NULL;
    uint64_t rounds = 0;
    bool local = has_local(found);
    weft_status status = check_digest(loco->context, file, path);
    if (status == WEFT_OK) {
        status = copy_texts(loco->context, file, path, texts);
    }
    if (status == WEFT_OK) {
        status = check_texts(loco, texts, path, &rounds);
    }
    if (status == WEFT_OK) {
        status = make_table(loco, local, extra, &table);
    }
    if (status == WEFT_OK) {
        status = check_tensors(loco, file, table, path);
    }
    if (status == WEFT_OK) {
        const weft_tensor *included = weft_table_at(found, (size_t)weft_table_find(found, INCLUDED));
        if (!weft_loco_included_possible(loco, included->data, rounds)) {
            status = weft_fail(loco->context, WEFT_MALFORMED,
                               "the state in '%s' has ranks in rounds that cannot have been", path);
        }
    }
    if (status == WEFT_OK) {
        weft_loco_flight_close(loco);
        loco->pending = false;
        copy_tensors(found, table);
        if (!local) {
            weft_loco_set_local(loco, 0, loco->elements);
        }
        loco->rounds = rounds;
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
    state_texts texts = {0};
    weft_status status = weft_context_enter(loco->context);
    if (status == WEFT_OK) {
        status = weft_checkpoint_open(loco->context, path, WEFT_OPEN_READ, &file);
    }
    if (status == WEFT_OK) {
        status = load_file(loco, file, path, extra, &texts);
    }
    for (size_t i = 0; status == WEFT_OK && keys != NULL && keys[i] != NULL; i++) {
        label(opaque, keys[i], find_text(&texts, "label.", keys[i]));
    }
    weft_release(loco->context, texts.data);
    weft_checkpoint_close(file);
    return status;
}
