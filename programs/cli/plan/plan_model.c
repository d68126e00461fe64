/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_model.c: what a plan knows of a model: how many parameters it has, and how its weights are spread
 * over exponents. By name, by the sizes in a config.json, or by looking at the weights of a checkpoint.
 */
#include "plan.h"
#include "plan_config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BIAS = 127, CONFIG_MAX = 1 << 20, LOOKED_AT = 1 << 24 };

/* Of matrices of language models; that of the smallest model here was measured, with bench/trace.py. */
static const double DEVIATION = 0.02;

static const struct {
    const char *name;
    uint64_t parameters;
    double deviation;
} models[] = {
    {"SmolLM2-135M", 134515008, 0.19},         {"Qwen2.5-0.5B", 494032768, DEVIATION},
    {"Qwen2.5-1.5B", 1543714304, DEVIATION},   {"Llama-3.2-3B", 3212749824, DEVIATION},
    {"Qwen2.5-7B", 7615616512, DEVIATION},     {"Llama-3.1-8B", 8030261248, DEVIATION},
    {"Qwen3-8B", 8190735360, DEVIATION},       {"Qwen3-30B-A3B", 30532122624, DEVIATION},
    {"Llama-3.1-70B", 70553706496, DEVIATION}, {"Qwen3-235B-A22B", 235093634560, DEVIATION},
    {"DeepSeek-V3", 671026419200, DEVIATION},  {"Kimi-K2", 1026408232448, DEVIATION},
};
enum { MODELS = sizeof models / sizeof models[0] };

void plan_model_spread(plan_model *model, double deviation) {
    for (int i = 0; i < PLAN_EXPONENTS; i++) {
        double least = i > 0 ? ldexp(1, i - BIAS) : 0, most = ldexp(1, i + 1 - BIAS);
        model->share[i] = erf(most / deviation / sqrt(2)) - erf(least / deviation / sqrt(2));
    }
}

void plan_model_count(plan_model *model, uint64_t parameters) {
    *model = (plan_model){.name = "a model", .parameters = parameters};
    plan_model_spread(model, DEVIATION);
}

int plan_model_list(weft_command *command) {
    json_t *names = json_array();
    for (size_t i = 0; i < MODELS; i++) {
        json_array_append_new(names, json_string(models[i].name));
        if (!command->json) {
            puts(models[i].name);
        }
    }
    if (command->json) {
        return command_print_json(command, stdout, names);
    }
    json_decref(names);
    return EXIT_DONE;
}

/* ---- config.json ---- */

static int open_config(weft_command *command, const char *path, plan_model *model) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return command_error(command, EXIT_FAILED, "cannot open %s: %s", path, strerror(errno));
    }
    char *text = malloc(CONFIG_MAX + 1);
    size_t size = text != NULL ? fread(text, 1, CONFIG_MAX + 1, file) : 0;
    int error = text == NULL ? ENOMEM : ferror(file) != 0 ? errno : size > CONFIG_MAX ? EFBIG : 0;
    uint64_t parameters = 0;
    bool counted = error == 0 && plan_config_count(text, size, &parameters);
    fclose(file);
    free(text);
    if (error != 0) {
        return command_error(command, EXIT_FAILED, "cannot read %s: %s", path, strerror(error));
    }
    if (!counted) {
        return command_error(
            command, EXIT_FAILED,
            "%s has no sizes of a transformer; give the number of parameters with --params", path);
    }
    plan_model_count(model, parameters);
    return EXIT_DONE;
}

/* ---- a checkpoint ---- */

/* Where exponents stand in a weight of two or four bytes; those of other types are not looked at. */
static void look_at(const weft_tensor *tensor, uint64_t elements, uint64_t stride,
                    double counts[PLAN_EXPONENTS]) {
    const uint16_t *halves = tensor->data;
    const uint32_t *words = tensor->data;
    for (uint64_t i = 0; i < elements; i += stride) {
        uint32_t exponent = tensor->dtype == WEFT_DTYPE_BF16 ? (uint32_t)halves[i] >> 7 : words[i] >> 23;
        counts[exponent & 0xff]++;
    }
}

static uint64_t count_elements(const weft_tensor *tensor) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        elements *= tensor->shape[i];
    }
    return elements;
}

static int open_checkpoint(weft_command *command, const char *path, plan_model *model) {
    weft_model opened;
    double counts[PLAN_EXPONENTS] = {0}, all = 0;
    int code = model_open(command, path, &opened);
    if (code != EXIT_DONE) {
        return code;
    }
    uint64_t parameters = 0;
    for (size_t i = 0; i < weft_view_count(opened.view); i++) {
        parameters += count_elements(weft_view_at(opened.view, i));
    }
    plan_model_count(model, parameters);
    /* some millions are as good as all */
    uint64_t stride = parameters / LOOKED_AT + 1;
    for (size_t i = 0; i < weft_view_count(opened.view); i++) {
        const weft_tensor *tensor = weft_view_at(opened.view, i);
        if ((tensor->dtype == WEFT_DTYPE_BF16 || tensor->dtype == WEFT_DTYPE_F32) && tensor->data != NULL) {
            look_at(tensor, count_elements(tensor), stride, counts);
        }
    }
    for (int i = 0; i < PLAN_EXPONENTS; i++) {
        all += counts[i];
    }
    for (int i = 0; i < PLAN_EXPONENTS && all > 0; i++) {
        model->measured = true;
        model->share[i] = counts[i] / all;
    }
    model_close(&opened);
    return EXIT_DONE;
}

/* ---- all ---- */

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

int plan_model_open(weft_command *command, const char *given, plan_model *model) {
    char config[4096];
    struct stat state;
    for (size_t i = 0; i < MODELS; i++) {
        if (strcasecmp(models[i].name, given) == 0) {
            plan_model_count(model, models[i].parameters);
            plan_model_spread(model, models[i].deviation);
            snprintf(model->name, sizeof model->name, "%s", models[i].name);
            return EXIT_DONE;
        }
    }
    if (stat(given, &state) != 0) {
        return command_error(command, EXIT_FAILED,
                             "%s is neither a model that weft knows nor a file (%s); weft plan --model '?' "
                             "lists models",
                             given, strerror(errno));
    }
    if (ends_with(given, ".json")) {
        return open_config(command, given, model);
    }
    /* a directory of Hugging Face may have both, or come without its weights */
    char weights[4096], index[4096];
    snprintf(config, sizeof config, "%s/config.json", given);
    snprintf(weights, sizeof weights, "%s/model.safetensors", given);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", given);
    if (S_ISDIR(state.st_mode) && stat(config, &state) == 0 && stat(weights, &state) != 0 &&
        stat(index, &state) != 0) {
        return open_config(command, config, model);
    }
    return open_checkpoint(command, given, model);
}
