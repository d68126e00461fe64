/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c: see state.h.
 */
#include "state.h"

#include "../../lib/base/context.h"
#include "../../lib/tensor/digest.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 4096, FORMAT = 1 };

/* ---- config.json ---- */

static weft_status join(weft_context *context, const char *directory, const char *name, char *path) {
    if (snprintf(path, PATH_SIZE, "%s/%s", directory, name) >= PATH_SIZE) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the path of a model is too long: '%s'",
                         directory);
    }
    return WEFT_OK;
}

static weft_status write_config(weft_context *context, const lm_config *config, const char *path,
                                bool durable) {
    char *text = NULL;
    weft_status status = lm_config_format(context, config, &text);
    if (status == WEFT_OK) {
        status = lm_text_write(context, path, text, durable);
        weft_release(context, text);
    }
    return status;
}

/* ---- the model ---- */

weft_status lm_model_write(lm_model *model, const char *directory, bool durable) {
    char path[PATH_SIZE];
    weft_write_options options = {.size = sizeof options, .durable = durable};
    weft_status status = join(model->context, directory, "config.json", path);
    if (status == WEFT_OK) {
        status = write_config(model->context, &model->config, path, durable);
    }
    if (status == WEFT_OK) {
        status = join(model->context, directory, "model.safetensors", path);
    }
    if (status == WEFT_OK) {
        status = weft_table_write(model->context, model->table, path, &options);
    }
    return status;
}

static weft_status find_tensor(weft_context *context, const weft_table *table, const char *name,
                               const lm_weight *weight, weft_dtype dtype, const void **data_out) {
    int64_t index = weft_table_find(table, name);
    if (index < 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the checkpoint has no tensor '%s': it is of another architecture", name);
    }
    const weft_tensor *tensor = weft_table_at(table, (size_t)index);
    bool fits = weight->norm ? tensor->rank == 1 && tensor->shape[0] == weight->columns
                             : tensor->rank == 2 && tensor->shape[0] == weight->rows &&
                                   tensor->shape[1] == weight->columns;
    if (!fits || tensor->dtype != dtype) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the checkpoint's tensor '%s' has another shape or dtype than this model's: it is "
                         "of another architecture",
                         name);
    }
    *data_out = tensor->data;
    return WEFT_OK;
}

static void take_words(lm_model *model, const lm_weight *weight, const void *data) {
    size_t count = weight->rows * weight->columns;
    uint16_t *words = model->live + weight->offset;
    memcpy(words, data, count * sizeof *words);
    for (size_t i = 0; model->masters != NULL && i < count; i++) {
        uint32_t bits = (uint32_t)words[i] << 16;
        memcpy(&model->masters[weight->offset + i], &bits, sizeof bits);
    }
}

static weft_status read_model(lm_model *model, const weft_table *table) {
    if (weft_table_count(table) != model->weight_count) {
        return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                         "the checkpoint has %zu tensors and the model %zu: it is of another architecture",
                         weft_table_count(table), model->weight_count);
    }
    const void *data = NULL;
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        weft_status status =
            find_tensor(model->context, table, weight->name, weight, WEFT_DTYPE_BF16, &data);
        if (status != WEFT_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        take_words(model, weight, weft_table_at(table, (size_t)weft_table_find(table, weight->name))->data);
    }
    return lm_model_refresh(model);
}

weft_status lm_model_read(lm_model *model, const char *directory) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_open(model->context, directory, WEFT_OPEN_READ, &checkpoint);
    if (status == WEFT_OK) {
        status = read_model(model, weft_checkpoint_table(checkpoint));
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

/* ---- the state ---- */

typedef struct state_kind {
    const char *prefix;
    float *values; /* laid out like the parameters */
} state_kind;

enum { STATE_KINDS = 3 };

static void list_kinds(const lm_trainer *trainer, state_kind kinds[STATE_KINDS]) {
    kinds[0] = (state_kind){"master", trainer->model->masters};
    kinds[1] = (state_kind){"first", trainer->adam->first};
    kinds[2] = (state_kind){"second", trainer->adam->second};
}

static void name_tensor(char *name, const char *prefix, const lm_weight *weight) {
    snprintf(name, 2 * LM_NAME_MAX, "%s.%s", prefix, weight->name);
}

static weft_status make_table(const lm_trainer *trainer, weft_table **table_out) {
    const lm_model *model = trainer->model;
    weft_table *table = NULL;
    state_kind kinds[STATE_KINDS];
    list_kinds(trainer, kinds);
    weft_status status = weft_table_create(model->context, &table);
    for (size_t i = 0; i < STATE_KINDS * model->weight_count && status == WEFT_OK; i++) {
        const lm_weight *weight = &model->weights[i / STATE_KINDS];
        const state_kind *kind = &kinds[i % STATE_KINDS];
        char name[2 * LM_NAME_MAX];
        name_tensor(name, kind->prefix, weight);
        weft_tensor tensor = {
            .size = sizeof tensor,
            .name = name,
            .dtype = WEFT_DTYPE_F32,
            .rank = weight->norm ? 1 : 2,
            .shape = {weight->norm ? weight->columns : weight->rows, weight->columns},
            .data = kind->values + weight->offset,
        };
        status = weft_table_add(table, &tensor);
    }
    if (status != WEFT_OK) {
        weft_table_destroy(table);
        return status;
    }
    *table_out = table;
    return WEFT_OK;
}

/* Numbers in a fixed order: format, optimizer steps, then the fields of lm_progress. */
typedef struct progress_text {
    char text[512];
} progress_text;

static progress_text format_progress(const lm_adam *adam, const lm_progress *progress) {
    progress_text result;
    snprintf(result.text, sizeof result.text, "%d %llu %llu %llu %llu %llu %d %u %u %u", FORMAT,
             (unsigned long long)adam->steps, (unsigned long long)progress->step,
             (unsigned long long)progress->prompts, (unsigned long long)progress->random.key,
             (unsigned long long)progress->random.count, (int)progress->task.kind, progress->task.steps,
             progress->task.period, progress->task.digits);
    return result;
}

static bool parse_progress(const char *text, uint64_t *adam_steps, lm_progress *progress) {
    unsigned long long numbers[5];
    int format = 0;
    int kind = 0;
    int end = 0;
    lm_progress parsed = {0};
    int found = sscanf(text, "%d %llu %llu %llu %llu %llu %d %u %u %u%n", &format, &numbers[0], &numbers[1],
                       &numbers[2], &numbers[3], &numbers[4], &kind, &parsed.task.steps,
                       &parsed.task.period, &parsed.task.digits, &end);
    if (found != 10 || text[end] != 0 || format != FORMAT) {
        return false;
    }
    *adam_steps = numbers[0];
    parsed.step = numbers[1];
    parsed.prompts = numbers[2];
    parsed.random = (lm_random){.key = numbers[3], .count = numbers[4]};
    parsed.task.kind = (lm_task_kind)kind;
    *progress = parsed;
    return true;
}

weft_status lm_state_write(lm_trainer *trainer, const lm_progress *progress, const char *path,
                           bool durable) {
    weft_context *context = trainer->model->context;
    weft_table *table = NULL;
    char *config = NULL;
    char digest[WEFT_DIGEST_TEXT];
    weft_status status = make_table(trainer, &table);
    if (status == WEFT_OK) {
        status = weft_table_digest_text(context, table, digest);
    }
    if (status == WEFT_OK) {
        status = lm_config_format(context, &trainer->model->config, &config);
    }
    if (status == WEFT_OK) {
        progress_text text = format_progress(trainer->adam, progress);
        const char *const metadata[] = {
            "weft_lm_config", config, "weft_lm_digest", digest, "weft_lm_progress", text.text, NULL};
        weft_write_options options = {.size = sizeof options, .metadata = metadata, .durable = durable};
        status = weft_table_write(context, table, path, &options);
    }
    weft_release(context, config);
    weft_table_destroy(table);
    return status;
}

static weft_status config_of(weft_context *context, const weft_checkpoint *checkpoint, const char *path,
                             lm_config *config_out) {
    const char *text = weft_checkpoint_metadata(checkpoint, "weft_lm_config");
    if (text == NULL) {
        return weft_fail(context, WEFT_MALFORMED, "'%s' is no trainer's state", path);
    }
    return lm_config_parse(context, text, strlen(text), config_out);
}

static weft_status check_architecture(const lm_trainer *trainer, const weft_checkpoint *checkpoint,
                                      const char *path) {
    weft_context *context = trainer->model->context;
    lm_config config;
    weft_status status = config_of(context, checkpoint, path, &config);
    if (status == WEFT_OK && !lm_config_equal(&config, &trainer->model->config)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the state in '%s' is of another architecture: width %u, %u layers, %u heads, "
                         "vocabulary %u; this run has width %u, %u layers, %u heads, vocabulary %u",
                         path, config.width, config.layers, config.heads, config.vocabulary,
                         trainer->model->config.width, trainer->model->config.layers,
                         trainer->model->config.heads, trainer->model->config.vocabulary);
    }
    return status;
}

static weft_status check_state(const lm_trainer *trainer, const weft_checkpoint *checkpoint,
                               const char *path) {
    weft_context *context = trainer->model->context;
    const weft_table *table = weft_checkpoint_table(checkpoint);
    const void *data = NULL;
    state_kind kinds[STATE_KINDS];
    list_kinds(trainer, kinds);
    for (size_t i = 0; i < STATE_KINDS * trainer->model->weight_count; i++) {
        const lm_weight *weight = &trainer->model->weights[i / STATE_KINDS];
        char name[2 * LM_NAME_MAX];
        name_tensor(name, kinds[i % STATE_KINDS].prefix, weight);
        weft_status status = find_tensor(context, table, name, weight, WEFT_DTYPE_F32, &data);
        if (status != WEFT_OK) {
            return status;
        }
    }
    const char *promised = weft_checkpoint_metadata(checkpoint, "weft_lm_digest");
    char digest[WEFT_DIGEST_TEXT];
    weft_status status = weft_table_digest_text(context, table, digest);
    if (status == WEFT_OK && (promised == NULL || strcmp(promised, digest) != 0)) {
        return weft_fail(context, WEFT_DIGEST_MISMATCH,
                         "the state in '%s' is damaged: its digest is %s and should be %s", path, digest,
                         promised != NULL ? promised : "there");
    }
    return status;
}

static void take_state(lm_trainer *trainer, const weft_table *table) {
    state_kind kinds[STATE_KINDS];
    list_kinds(trainer, kinds);
    for (size_t i = 0; i < STATE_KINDS * trainer->model->weight_count; i++) {
        const lm_weight *weight = &trainer->model->weights[i / STATE_KINDS];
        const state_kind *kind = &kinds[i % STATE_KINDS];
        char name[2 * LM_NAME_MAX];
        name_tensor(name, kind->prefix, weight);
        const weft_tensor *tensor = weft_table_at(table, (size_t)weft_table_find(table, name));
        memcpy(kind->values + weight->offset, tensor->data, weight->rows * weight->columns * sizeof(float));
    }
}

weft_status lm_state_read(lm_trainer *trainer, const char *path, lm_progress *progress_out) {
    weft_context *context = trainer->model->context;
    weft_checkpoint *checkpoint = NULL;
    uint64_t adam_steps = 0;
    lm_progress progress;
    weft_status status = weft_checkpoint_open(context, path, WEFT_OPEN_READ, &checkpoint);
    if (status == WEFT_OK) {
        status = check_architecture(trainer, checkpoint, path);
    }
    if (status == WEFT_OK) {
        const char *text = weft_checkpoint_metadata(checkpoint, "weft_lm_progress");
        if (text == NULL || !parse_progress(text, &adam_steps, &progress)) {
            status =
                weft_fail(context, WEFT_MALFORMED, "the state in '%s' does not say how far it is", path);
        }
    }
    if (status == WEFT_OK) {
        status = lm_task_check(context, &progress.task);
    }
    if (status == WEFT_OK) {
        status = check_state(trainer, checkpoint, path);
    }
    if (status == WEFT_OK) {
        take_state(trainer, weft_checkpoint_table(checkpoint));
        trainer->adam->steps = adam_steps;
        status = lm_model_refresh(trainer->model);
    }
    weft_checkpoint_close(checkpoint);
    if (status == WEFT_OK) {
        *progress_out = progress;
    }
    return status;
}

static weft_status read_config(weft_context *context, const char *path, lm_config *config_out) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_open(context, path, WEFT_OPEN_READ, &checkpoint);
    if (status == WEFT_OK) {
        status = config_of(context, checkpoint, path, config_out);
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

weft_status lm_state_open(weft_context *context, const char *path, lm_trainer **trainer_out,
                          lm_progress *progress_out) {
    lm_config config;
    lm_trainer *trainer = NULL;
    weft_status status = read_config(context, path, &config);
    if (status == WEFT_OK) {
        status = lm_trainer_create(context, &config, &trainer);
    }
    if (status == WEFT_OK) {
        status = lm_state_read(trainer, path, progress_out);
    }
    if (status != WEFT_OK) {
        lm_trainer_destroy(trainer);
        return status;
    }
    *trainer_out = trainer;
    return WEFT_OK;
}
