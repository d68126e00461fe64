/* SPDX-License-Identifier: Apache-2.0
 *
 * learner_start.c: how a trainer begins a run, or finds its way back into one.
 *
 * The output directory says which run it is and how far: run.json and state.safetensors. The store says
 * what has been published of it. Whatever a killed trainer did not get to is done here.
 */
#include "learner.h"

#include "../lib/base/context.h"
#include "../lib/base/hash.h"
#include "cache.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { RUN_BYTES = 16 };

/* ---- the output directory ---- */

/* Two trainers that write the same state would each undo the other's. */
static weft_status lock_output(train_learner *learner) {
    const char *output = learner->options->output;
    learner->lock = open(output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (learner->lock < 0) {
        return weft_fail_errno(learner->context, errno, "cannot open the directory '%s'", output);
    }
    if (flock(learner->lock, LOCK_EX | LOCK_NB) != 0) {
        return weft_fail(learner->context, WEFT_BUSY, "another trainer is at work in '%s'", output);
    }
    return WEFT_OK;
}

static weft_status open_output(train_learner *learner) {
    weft_status status = train_make_directory(learner->context, learner->options->output);
    if (status == WEFT_OK) {
        status = lock_output(learner);
    }
    if (status == WEFT_OK) {
        status = train_path_copy(learner->context, learner->options->output, "state.safetensors",
                                 &learner->state_path);
    }
    return status == WEFT_OK
               ? train_path_copy(learner->context, learner->options->output, "run.json", &learner->run_path)
               : status;
}

/* The state goes first: without it nothing else is looked at. */
static weft_status forget(train_learner *learner) {
    static const char *const names[] = {"state.safetensors", "run.json", "metrics.jsonl", "pending.json"};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == WEFT_OK; i++) {
        char path[TRAIN_PATH_SIZE];
        status = train_path(learner->context, learner->options->output, names[i], path);
        if (status == WEFT_OK && unlink(path) != 0 && errno != ENOENT) {
            status = weft_fail_errno(learner->context, errno, "cannot remove '%s'", path);
        }
    }
    return status;
}

/* ---- which run ---- */

static weft_status write_run(train_learner *learner) {
    char *text = NULL;
    weft_status status = train_run_format(learner->context, &learner->run, &text);
    if (status == WEFT_OK) {
        status = train_write_text(learner->context, learner->run_path, text);
        weft_release(learner->context, text);
    }
    return status;
}

/* Sets the name of the run that lies in the output directory. */
static weft_status read_run(train_learner *learner) {
    char *text = NULL;
    size_t size = 0;
    train_run found;
    weft_status status = train_read_text(learner->context, learner->run_path, TRAIN_RUN_MAX, &text, &size);
    if (status == WEFT_OK) {
        status = train_run_parse(learner->context, learner->run_path, text, size, &found);
        weft_release(learner->context, text);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (!train_run_alike(&found, &learner->run)) {
        return weft_fail(
            learner->context, WEFT_INVALID_ARGUMENT,
            "the run in '%s' has another model, task, seed, batch or way to sync than this call "
            "says; give the same options to go on with it, or --fresh to begin anew",
            learner->options->output);
    }
    memcpy(learner->run.name, found.name, sizeof found.name);
    return WEFT_OK;
}

/* A store has one run at a time, and its workers are not taken away by accident. */
static weft_status check_store(train_learner *learner) {
    train_run found;
    weft_status status = train_run_get(learner->context, learner->store, &found);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(learner->context);
        return WEFT_OK;
    }
    if (learner->options->fresh && status != WEFT_OK && weft_status_is_integrity(status)) {
        weft_context_clear(learner->context);
        return WEFT_OK;
    }
    if (status == WEFT_OK && !learner->options->fresh && strcmp(found.name, learner->run.name) != 0) {
        return weft_fail(
            learner->context, WEFT_INVALID_ARGUMENT,
            "the store holds the run %s, whose state is not in '%s'; give the directory of that "
            "run or another store, or say --fresh to begin a new run there",
            found.name, learner->options->output);
    }
    return status;
}

/* ---- the state ---- */

weft_status train_learner_save(train_learner *learner) {
    lm_progress progress = {
        .step = learner->step,
        .prompts = learner->step * learner->run.prompts,
        .task = learner->run.task,
    };
    return lm_state_write(learner->trainer, &progress, learner->state_path, learner->options->durable);
}

static weft_status resume(train_learner *learner) {
    lm_progress progress;
    weft_status status = read_run(learner);
    if (status == WEFT_OK) {
        status = check_store(learner);
    }
    if (status == WEFT_OK) {
        status = lm_state_read(learner->trainer, learner->state_path, &progress);
    }
    if (status == WEFT_OK) {
        learner->step = progress.step;
        learner->resumed = progress.step;
        train_note(learner->options->watch, "going on with run %.8s after %llu steps", learner->run.name,
                   (unsigned long long)progress.step);
    }
    return status;
}

static weft_status begin(train_learner *learner) {
    weft_status status = check_store(learner);
    if (status == WEFT_OK) {
        status = forget(learner);
    }
    if (status == WEFT_OK) {
        status = train_warm_up(learner->trainer, learner->options);
    }
    if (status == WEFT_OK) {
        status = weft_hex_random(learner->context, RUN_BYTES, learner->run.name);
    }
    if (status == WEFT_OK) {
        status = write_run(learner);
    }
    if (status == WEFT_OK) {
        status = train_learner_save(learner);
    }
    return status;
}

static weft_status find_state(train_learner *learner) {
    bool there = access(learner->state_path, F_OK) == 0;
    return there && !learner->options->fresh ? resume(learner) : begin(learner);
}

/* ---- the reference ---- */

/* The policy that the run began with. It is kept beside the state, for when the run is gone on with. */
static weft_status open_reference(train_learner *learner) {
    char path[TRAIN_PATH_SIZE];
    if (learner->options->grpo.kl == 0) {
        return WEFT_OK;
    }
    weft_status status = train_path(learner->context, learner->options->output, "reference", path);
    if (status == WEFT_OK && learner->step == 0) {
        status = train_make_directory(learner->context, path);
        status = status == WEFT_OK ? lm_model_write(learner->trainer->model, path, false) : status;
    }
    if (status == WEFT_OK) {
        status = lm_model_create(learner->context, &learner->run.config, LM_WORKER, &learner->reference);
    }
    if (status == WEFT_OK) {
        status = lm_model_read(learner->reference, path);
    }
    return status == WEFT_OK ? lm_pass_create(learner->reference, false, &learner->reference_pass) : status;
}

/* ---- what has been published ---- */

typedef struct history {
    const train_run *run;
    uint64_t step;                                  /* of the state */
    train_policy policies[TRAIN_STALENESS_MAX + 1]; /* of it and of the steps before, newest first */
    size_t count;
    uint64_t patch_bytes; /* of the newest version */
} history;

static const char *label_of(const weft_log_entry *entry, const char *key) {
    for (size_t i = 0; entry->labels[i] != NULL; i += 2) {
        if (strcmp(entry->labels[i], key) == 0) {
            return entry->labels[i + 1];
        }
    }
    return "";
}

/* Of several versions of a step the newest counts. */
static bool visit_version(void *opaque, const weft_log_entry *entry) {
    history *past = opaque;
    uint64_t step = strtoull(label_of(entry, TRAIN_LABEL_STEP), NULL, 10);
    uint64_t wanted = past->count > 0 ? past->policies[past->count - 1].step - 1 : past->step;
    if (strcmp(label_of(entry, TRAIN_LABEL_RUN), past->run->name) != 0) {
        return false;
    }
    if (step == wanted) {
        past->policies[past->count++] =
            (train_policy){.step = step, .version = entry->version, .digest = entry->digest};
        past->patch_bytes = past->count == 1 ? entry->patch_bytes + entry->anchor_bytes : past->patch_bytes;
    }
    return step > 0 && past->count <= past->run->staleness;
}

static weft_status read_history(train_learner *learner, history *past) {
    *past = (history){.run = &learner->run, .step = learner->step};
    weft_status status =
        weft_log_walk(learner->context, learner->store, learner->options->key, visit_version, past);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(learner->context);
        status = WEFT_OK;
    }
    return status;
}

static weft_status digest_model(train_learner *learner, weft_digest *digest_out) {
    weft_sums *sums = NULL;
    weft_status status = weft_sums_compute(learner->context, learner->view, &sums);
    if (status == WEFT_OK) {
        *digest_out = weft_sums_digest(sums);
        weft_sums_destroy(sums);
    }
    return status;
}

/* True if the newest version in the store is what the state would publish. */
static bool is_published(const train_learner *learner, const history *past, const weft_digest *digest) {
    return past->count > 0 && past->policies[0].step == learner->step &&
           past->policies[0].version == weft_publisher_version(learner->publisher) &&
           weft_digest_equal(&past->policies[0].digest, digest);
}

/* A step that was saved but not published, or published but not written into the metrics. */
static weft_status finish_line(train_learner *learner, train_published *published) {
    json_t *line = learner->step > 0 ? train_metrics_pending(&learner->metrics, learner->step - 1) : NULL;
    if (line == NULL) {
        return WEFT_OK;
    }
    published->dense = learner->trainer->model->parameters * sizeof(uint16_t);
    train_line_finish(line, published);
    weft_status status = train_metrics_add(&learner->metrics, line);
    json_decref(line);
    return status;
}

static weft_status catch_up(train_learner *learner) {
    history past;
    weft_digest digest;
    train_published published = {.version = 0};
    weft_status status = read_history(learner, &past);
    if (status == WEFT_OK) {
        status = digest_model(learner, &digest);
    }
    if (status != WEFT_OK) {
        return status;
    }
    bool there = is_published(learner, &past, &digest);
    for (size_t i = past.count; i > 0; i--) {
        if (there || past.policies[i - 1].step < learner->step) {
            train_collector_note(&learner->collector, &past.policies[i - 1]);
        }
    }
    if (there) {
        published.version = past.policies[0].version;
        published.sent = past.patch_bytes;
    } else {
        status = train_learner_publish(learner, &published);
    }
    return status == WEFT_OK ? finish_line(learner, &published) : status;
}

/* ---- all of it ---- */

static weft_status put_run(train_learner *learner) {
    weft_status status = WEFT_OK;
    do {
        status = train_run_put(learner->context, learner->store, &learner->run);
        if (status == WEFT_OK) {
            return WEFT_OK;
        }
        status = train_patience_bear(&learner->patience, status);
    } while (status == WEFT_OK);
    return status;
}

static weft_status open_publisher(train_learner *learner) {
    const weft_publisher_options options = {
        .key = learner->options->key,
        .gc_seconds = 600,
        .whole = learner->run.sync == TRAIN_SYNC_FULL,
    };
    weft_status status =
        weft_view_create(learner->context, lm_model_table(learner->trainer->model), &learner->view);
    return status == WEFT_OK ? weft_publisher_open(learner->context, learner->store, learner->view,
                                                   &options, &learner->publisher)
                             : status;
}

static weft_status open_tools(train_learner *learner) {
    const train_options *options = learner->options;
    weft_status status = train_collector_open(&learner->collector, learner->context, learner->store,
                                              &learner->run, learner->trainer->pass, &learner->patience);
    if (status == WEFT_OK) {
        status = train_metrics_open(&learner->metrics, learner->context, learner->store, options->watch,
                                    &learner->run, options->output, learner->step);
    }
    if (status == WEFT_OK) {
        status = train_density_open(&learner->density, learner->trainer->model, options->density_bytes);
    }
    return status;
}

weft_status train_learner_start(train_learner *learner) {
    weft_status (*const stages[])(train_learner *) = {find_state, open_reference, open_tools,
                                                      put_run,    open_publisher, catch_up};
    weft_status status = train_options_check(learner->context, learner->options);
    if (status == WEFT_OK) {
        status = open_output(learner);
    }
    if (status == WEFT_OK) {
        status = lm_trainer_create(learner->context, &learner->run.config, &learner->trainer);
    }
    for (size_t i = 0; i < sizeof stages / sizeof *stages && status == WEFT_OK; i++) {
        status = stages[i](learner);
    }
    if (status == WEFT_OK) {
        (void)train_density_note(&learner->density);
    }
    return status;
}

void train_learner_close(train_learner *learner) {
    weft_publisher_close(learner->publisher);
    weft_view_destroy(learner->view);
    train_density_close(&learner->density);
    train_metrics_close(&learner->metrics);
    train_collector_close(&learner->collector);
    lm_pass_destroy(learner->reference_pass);
    lm_model_destroy(learner->reference);
    lm_trainer_destroy(learner->trainer);
    weft_release(learner->context, learner->run_path);
    weft_release(learner->context, learner->state_path);
    if (learner->lock >= 0) {
        close(learner->lock);
    }
}
