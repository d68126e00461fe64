/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c: warmed-up policies. One is named by a hash of all that it follows from.
 */
#include "learner.h"

#include "../../lib/base/context.h"
#include "../../lib/base/hash.h"
#include "../../lm/learn/state.h"
#include "../files.h"

#include <stdio.h>
#include <string.h>

enum { FORMAT = 1, TEXT_BYTES = 4096, NAME_BYTES = 12 };

static lm_warmup_options choose_warmup(const train_options *options) {
    lm_warmup_options warmup = options->warmup;
    warmup.seed = options->run.seed;
    return warmup;
}

static weft_status name_policy(weft_context *context, const train_options *options,
                               char path[TRAIN_PATH_SIZE]) {
    const lm_config *config = &options->run.config;
    const lm_task *task = &options->run.task;
    const lm_warmup_options warmup = choose_warmup(options);
    const lm_adam_options *adam = &warmup.adam;
    char text[TEXT_BYTES];
    char hex[2 * NAME_BYTES + 1];
    char name[64];
    weft_hash hash;
    int length = snprintf(
        text, sizeof text,
        "%d %u %u %u %u %u %u %u %d %a %a / %d %u %u %u / %llu %zu %llu %a %llu %zu / %a %a %a %a %a "
        "%a %llu",
        FORMAT, config->vocabulary, config->width, config->layers, config->heads, config->kv_heads,
        config->feed_forward, config->context, config->tied, config->rope_base, config->norm_epsilon,
        (int)task->kind, task->steps, task->period, task->digits, (unsigned long long)warmup.seed,
        warmup.batch, (unsigned long long)warmup.steps, warmup.success, (unsigned long long)warmup.interval,
        warmup.evaluation, adam->rate, adam->beta1, adam->beta2, adam->epsilon, adam->decay, adam->clip,
        (unsigned long long)adam->warm_up);
    if (warmup.shorter > 0) { /* policies without this keep their names */
        snprintf(text + length, sizeof text - (size_t)length, " / %u", warmup.shorter);
    }
    weft_status status = weft_hash_compute(context, text, strlen(text), &hash);
    if (status != WEFT_OK) {
        return status;
    }
    weft_hex_format(hash.bytes, NAME_BYTES, hex);
    snprintf(name, sizeof name, "policy-%s.safetensors", hex);
    return train_path(context, options->cache, name, path);
}

typedef struct warming {
    weft_context *context;
    const train_watch *watch;
} warming;

static bool on_warm_up(void *opaque, uint64_t step, double loss, double success) {
    const warming *warming = opaque;
    if (step % 50 == 0) {
        train_note(warming->watch, "warm-up step %llu: loss %.3f, success %.3f", (unsigned long long)step,
                   loss, success);
    }
    return weft_progress_ask(warming->context) == WEFT_OK;
}

static weft_status warm_up(lm_trainer *trainer, const train_options *options) {
    lm_warmup_options warmup = choose_warmup(options);
    lm_warmup_result result;
    warming warming = {trainer->model->context, options->watch};
    weft_status status = lm_model_initialise(trainer->model, options->run.seed);
    if (status != WEFT_OK || warmup.success == 0) {
        return status;
    }
    warmup.watcher = on_warm_up;
    warmup.opaque = &warming;
    status = lm_warmup(trainer, &options->run.task, &warmup, &result);
    if (status == WEFT_OK) {
        train_note(options->watch, "warmed up in %llu steps: success %.3f%s",
                   (unsigned long long)result.steps, result.success,
                   result.reached ? "" : ", less than was asked for");
    }
    return status;
}

static bool take_cached(lm_trainer *trainer, const train_options *options, const char *path) {
    weft_context *context = trainer->model->context;
    lm_progress progress;
    weft_status status = lm_state_read(trainer, path, &progress);
    if (status == WEFT_OK) {
        train_note(options->watch, "warmed up before: %s", path);
    } else if (weft_status_is_integrity(status)) {
        train_warn(options->watch, "%s; warming up again", weft_context_error(context));
    }
    weft_context_clear(context);
    return status == WEFT_OK;
}

/* A cache that cannot be written costs time, and nothing else. */
static void keep(lm_trainer *trainer, const train_options *options, const char *path) {
    weft_context *context = trainer->model->context;
    lm_progress progress = {.task = options->run.task};
    weft_status status = train_make_directory(context, options->cache);
    if (status == WEFT_OK) {
        status = lm_state_write(trainer, &progress, path, false);
    }
    if (status != WEFT_OK) {
        train_warn(options->watch, "the warmed-up policy is not kept: %s", weft_context_error(context));
    }
    weft_context_clear(context);
}

weft_status train_warm_up(lm_trainer *trainer, const train_options *options) {
    char path[TRAIN_PATH_SIZE];
    bool cached = options->cache != NULL && options->warmup.success > 0;
    weft_status status = cached ? name_policy(trainer->model->context, options, path) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    if (!cached || !take_cached(trainer, options, path)) {
        status = warm_up(trainer, options);
        lm_adam_reset(trainer->adam);
        if (status == WEFT_OK && cached) {
            keep(trainer, options, path);
        }
    }
    return status;
}
