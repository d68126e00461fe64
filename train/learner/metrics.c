/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.c: see metrics.h.
 */
#include "metrics.h"

#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "../../lm/learn/text.h"
#include "../files.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINES_MAX = 512,  /* in the store */
    LINES_WHOLE = 32, /* of these so many with all their members */
    DIGITS = 9,
    READ_BYTES = 1 << 16,
    LINE_BYTES_MAX = 1 << 28, /* a model has tensors by the thousand, and each has a place in a line */
};

static const double PUT_SECONDS = 1;

/* ---- lines ---- */

static json_t *count(uint64_t value) {
    return json_integer((json_int_t)value);
}

/* JSON has no word for what is no number, and what a step that went wrong was like must be told all the
 * same. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *format_densities(const train_densities *densities) {
    json_t *json = json_object();
    for (size_t i = 0; i < TRAIN_SPANS; i++) {
        char name[8];
        double share = densities->share[i];
        snprintf(name, sizeof name, "%u", train_spans[i]);
        json_object_set_new(json, name, share >= 0 ? number(share) : json_null());
    }
    return json;
}

static json_t *format_tensors(const lm_model *model, const train_densities *densities) {
    json_t *json = json_object();
    for (size_t i = 0; densities->tensors != NULL && i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        double elements = (double)(weight->rows * weight->columns);
        json_object_set_new(json, weight->name, number((double)densities->tensors[i] / elements));
    }
    return json;
}

static json_t *format_trajectories(const train_learned *learned) {
    json_t *reasons = json_object();
    uint64_t rejected = 0;
    for (int i = TRAIN_GOOD + 1; i < TRAIN_REASONS; i++) {
        rejected += learned->rejected[i];
        if (learned->rejected[i] > 0) {
            json_object_set_new(reasons, train_reason_name((train_reason)i), count(learned->rejected[i]));
        }
    }
    return json_pack("{s:o, s:o, s:o}", "used", count(learned->batch->rollouts.batch.sequences), "rejected",
                     count(rejected), "reasons", reasons);
}

static json_t *format_workers(const train_batch *batch) {
    json_t *json = json_array();
    for (size_t i = 0; i < batch->share_count; i++) {
        const train_share *share = &batch->shares[i];
        json_array_append_new(
            json, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", share->name, "version",
                            count(share->version), "generate", number(share->effort.generate), "pull",
                            number(share->effort.pull), "pause", number(share->effort.pause), "received",
                            count(share->effort.received), "put", number(share->effort.put), "trajectories",
                            count(share->sequences)));
    }
    return json;
}

/* Old policy against sampler; null where both are the same. */
static json_t *format_mismatch(const train_learned *learned) {
    const weft_correction_diagnostics *found = &learned->result.correction;
    double sequences = found->sequences > 0 ? (double)found->sequences : 1;
    double tokens = found->tokens > 0 ? (double)found->tokens : 1;
    if (learned->batch->old == NULL) {
        return json_null();
    }
    return json_pack(
        "{s:{s:o, s:o, s:o, s:o}, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o}, s:{s:o, s:o}, s:o}", "xi", "mean",
        number(found->ratio_mean), "min", number(found->ratio_min), "max", number(found->ratio_max),
        "deviation", number(found->ratio_deviation), "weight", number(found->weight_mean), "ess",
        number(found->effective), "rejected", number((double)found->rejected / sequences), "vetoed",
        number((double)found->vetoed / sequences), "masked", number((double)found->masked / tokens), "kl",
        "k1", number(found->kl_k1), "k3", number(found->kl_k3), "chi2", "token", number(found->chi2_token),
        "sequence", number(found->chi2_sequence), "skipped", count(learned->result.skipped));
}

static json_t *format_kv(const train_learned *learned) {
    const weft_kv_options *kv = &learned->run->kv;
    const train_caches *caches = &learned->batch->caches;
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "policy", weft_kv_policy_name(kv->policy), "budget",
                     kv->policy == WEFT_KV_NONE ? json_null() : count(kv->budget), "retained",
                     count(caches->held), "full", count(caches->full), "peak_bytes",
                     count(caches->peak_bytes), "dense_bytes", count(caches->dense_bytes));
}

json_t *train_line_begin(const train_learned *learned) {
    const lm_grpo_result *result = &learned->result;
    const train_batch *batch = learned->batch;
    size_t sequences = batch->rollouts.batch.sequences;
    return json_pack(
        "{s:o, s:n, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:n, s:{s:o, s:o}, s:o, s:o, "
        "s:{s:n, s:o, s:o, s:n, s:n}, s:o, s:o, s:o}",
        "step", count(learned->step), "version", "reward", number(result->reward), "success",
        learned->success >= 0 ? number(learned->success) : json_null(), "loss", number(result->loss),
        "clipped", number(result->clipped), "norm", number(result->norm), "kl", number(result->kl), "rate",
        number(learned->rate), "density", format_densities(&learned->densities), "tensors",
        format_tensors(learned->model, &learned->densities), "changed", count(learned->densities.changed),
        "elements", count(learned->model->parameters), "bytes", "staleness", "mean",
        number(batch->staleness), "max", count(batch->stalest), "trajectories",
        format_trajectories(learned), "tokens", count(batch->starts[sequences]), "seconds", "step", "wait",
        number(learned->wait), "train", number(learned->train), "publish", "state", "mismatch",
        format_mismatch(learned), "kv", format_kv(learned), "workers", format_workers(batch));
}

void train_line_densities(json_t *line, const lm_model *model, const train_densities *densities) {
    json_object_set_new(line, "density", format_densities(densities));
    json_object_set_new(line, "tensors", format_tensors(model, densities));
    json_object_set_new(line, "changed", count(densities->changed));
}

/* Beside what was sent stand what others would have sent: all weights in FP32 once a round (DiLoCo), a
 * gradient of the same size every step (DDP), and what a ring of the ranks sends to reduce one such. */
void train_line_round(json_t *line, const char *name, const train_run *run, const train_round *round) {
    uint64_t dense = round->elements * sizeof(float);
    char digest[WEFT_DIGEST_TEXT];
    weft_digest_format(&round->digest, digest);
    uint64_t ring = 2 * dense / run->trainers * (run->trainers - 1);
    json_object_set_new(
        line, name,
        json_pack(
            "{s:o, s:s, s:o, s:o, s:o, s:{s:o, s:o}, s:{s:o, s:o}, s:o, s:o, s:o, s:o, s:{s:o, s:o, s:o}}",
            "number", count(round->number), "digest", digest, "included", count(round->included), "fired",
            count(round->fired), "elements", count(round->elements), "sent", "payload", count(round->sent),
            "snapshot", count(round->sent_snapshots), "received", "payload", count(round->received),
            "snapshot", count(round->received_snapshots), "dense", count(dense), "ddp",
            count(dense * run->local_steps), "ring", count(ring), "residual", number(round->residual),
            "seconds", "gate", number(round->gate), "share", number(round->share), "aggregate",
            number(round->aggregate)));
}

void train_line_finish(json_t *line, const train_published *published) {
    json_t *seconds = json_object_get(line, "seconds");
    bool known = published->version > 0;
    json_object_set_new(line, "version", known ? count(published->version) : json_null());
    json_object_set_new(
        line, "bytes",
        json_pack("{s:o, s:o}", "sent", count(published->sent), "dense", count(published->dense)));
    json_object_set_new(seconds, "publish", number(published->publish));
    json_object_set_new(seconds, "state", number(published->state));
    json_object_set_new(seconds, "step", number(published->step));
}

/* ---- the file ---- */

static weft_status no_memory(const train_metrics *metrics) {
    return weft_fail(metrics->context, WEFT_NO_MEMORY, "no memory for a line of metrics");
}

static bool step_of(const json_t *line, uint64_t *step_out) {
    const json_t *step = json_object_get(line, "step");
    *step_out = (uint64_t)json_integer_value(step);
    return json_is_integer(step) && json_integer_value(step) >= 0;
}

static void remember(train_metrics *metrics, json_t *line) {
    uint64_t step = 0;
    if (step_of(line, &step)) {
        metrics->next = step + 1;
    }
    json_array_append(metrics->lines, line);
    size_t size = json_array_size(metrics->lines);
    if (size > LINES_MAX) {
        json_array_remove(metrics->lines, 0);
    }
    if (size > LINES_WHOLE) {
        json_t *old = json_array_get(metrics->lines, json_array_size(metrics->lines) - LINES_WHOLE - 1);
        json_object_del(old, "tensors");
        json_object_del(old, "workers");
    }
}

/* A line at a time, however long the file is. */
typedef struct line_reader {
    weft_context *context;
    FILE *file;
    char *text; /* of the line, without its end */
    size_t room;
    size_t length;
} line_reader;

static weft_status make_room(line_reader *reader) {
    size_t room = reader->room > 0 ? 2 * reader->room : READ_BYTES;
    char *text = weft_reallocate_array(reader->context, reader->text, room, 1);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    reader->text = text;
    reader->room = room;
    return WEFT_OK;
}

/* WEFT_MORE: there is no other whole line. */
static weft_status read_line(line_reader *reader) {
    reader->length = 0;
    for (;;) {
        if (reader->room - reader->length < 2) {
            weft_status status = reader->room < LINE_BYTES_MAX ? make_room(reader) : WEFT_MORE;
            if (status != WEFT_OK) {
                return status;
            }
        }
        char *at = reader->text + reader->length;
        if (fgets(at, (int)(reader->room - reader->length), reader->file) == NULL) {
            return WEFT_MORE;
        }
        size_t got = strlen(at);
        reader->length += got;
        if (got > 0 && at[got - 1] == '\n') {
            reader->length--;
            return WEFT_OK;
        }
    }
}

/* What stays of the file: whole lines of steps before `steps`, in their order. */
static weft_status keep_lines(train_metrics *metrics, line_reader *reader, uint64_t steps,
                              uint64_t *kept_out) {
    uint64_t kept = 0;
    bool good = true;
    weft_status status = read_line(reader);
    while (status == WEFT_OK && good) {
        json_t *line = json_loadb(reader->text, reader->length, 0, NULL);
        uint64_t step = 0;
        good = line != NULL && step_of(line, &step) && step < steps && step >= metrics->next;
        if (good) {
            remember(metrics, line);
            kept += reader->length + 1;
            status = read_line(reader);
        }
        json_decref(line);
    }
    *kept_out = kept;
    return status == WEFT_MORE ? WEFT_OK : status;
}

static weft_status resume_file(train_metrics *metrics, uint64_t steps) {
    line_reader reader = {.context = metrics->context, .file = fopen(metrics->path, "r+e")};
    uint64_t kept = 0;
    if (reader.file == NULL) {
        return errno == ENOENT
                   ? WEFT_OK
                   : weft_fail_errno(metrics->context, errno, "cannot read '%s'", metrics->path);
    }
    weft_status status = keep_lines(metrics, &reader, steps, &kept);
    if (status == WEFT_OK && ferror(reader.file) != 0) {
        status = weft_fail_errno(metrics->context, errno, "cannot read '%s'", metrics->path);
    }
    if (status == WEFT_OK && ftruncate(fileno(reader.file), (off_t)kept) != 0) {
        status = weft_fail_errno(metrics->context, errno, "cannot shorten '%s'", metrics->path);
    }
    weft_release(metrics->context, reader.text);
    fclose(reader.file);
    return status;
}

static weft_status describe_run(train_metrics *metrics, const train_run *run) {
    char *text = NULL;
    weft_status status = train_run_format(metrics->context, run, &text);
    if (status == WEFT_OK) {
        metrics->run = json_loads(text, 0, NULL);
        weft_release(metrics->context, text);
    }
    return status != WEFT_OK || (metrics->run != NULL && metrics->lines != NULL) ? status
                                                                                 : no_memory(metrics);
}

weft_status train_metrics_open(train_metrics *metrics, weft_context *context, weft_store *store,
                               const train_watch *watch, const train_run *run, const char *directory,
                               uint64_t steps) {
    *metrics = (train_metrics){.context = context, .store = store, .watch = watch, .lines = json_array()};
    weft_status status = describe_run(metrics, run);
    if (status == WEFT_OK) {
        status = train_path_copy(context, directory, "metrics.jsonl", &metrics->path);
    }
    if (status == WEFT_OK) {
        status = train_path_copy(context, directory, "pending.json", &metrics->pending_path);
    }
    return status == WEFT_OK ? resume_file(metrics, steps) : status;
}

void train_metrics_close(train_metrics *metrics) {
    if (metrics->context != NULL) {
        json_decref(metrics->lines);
        json_decref(metrics->run);
        weft_release(metrics->context, metrics->pending_path);
        weft_release(metrics->context, metrics->path);
    }
    *metrics = (train_metrics){.context = NULL};
}

weft_status train_metrics_pend(train_metrics *metrics, const json_t *line) {
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    if (text == NULL) {
        return no_memory(metrics);
    }
    weft_status status = lm_text_write(metrics->context, metrics->pending_path, text, false);
    free(text);
    return status;
}

json_t *train_metrics_pending(train_metrics *metrics, uint64_t step) {
    char *text = NULL;
    size_t size = 0;
    uint64_t found = 0;
    if (train_read_text(metrics->context, metrics->pending_path, LINE_BYTES_MAX, &text, &size) != WEFT_OK) {
        weft_context_clear(metrics->context);
        return NULL;
    }
    json_t *line = json_loadb(text, size, 0, NULL);
    weft_release(metrics->context, text);
    if (line != NULL && (!step_of(line, &found) || found != step || metrics->next > step ||
                         !json_is_object(json_object_get(line, "seconds")))) {
        json_decref(line);
        line = NULL;
    }
    return line;
}

static weft_status append(const train_metrics *metrics, const char *text) {
    FILE *file = fopen(metrics->path, "ae");
    if (file == NULL) {
        return weft_fail_errno(metrics->context, errno, "cannot write '%s'", metrics->path);
    }
    off_t start = fseeko(file, 0, SEEK_END) == 0 ? ftello(file) : -1;
    bool written = fprintf(file, "%s\n", text) >= 0 && fflush(file) == 0;
    int error = errno;
    /* half of a line would spoil the next one */
    bool undone = written || (start >= 0 && ftruncate(fileno(file), start) == 0);
    fclose(file);
    return written ? WEFT_OK
                   : weft_fail_errno(metrics->context, error, "cannot write '%s'%s", metrics->path,
                                     undone ? "" : " nor undo that");
}

weft_status train_metrics_add(train_metrics *metrics, json_t *line) {
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    if (text == NULL) {
        return no_memory(metrics);
    }
    weft_status status = append(metrics, text);
    free(text);
    if (status == WEFT_OK && metrics->watch->step != NULL) {
        metrics->watch->step(metrics->watch->opaque, line);
    }
    if (status == WEFT_OK) {
        remember(metrics, line);
    }
    return status;
}

/* ---- the store ---- */

static weft_status put_lines(train_metrics *metrics) {
    json_t *json = json_pack("{s:O, s:O}", "run", metrics->run, "steps", metrics->lines);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_decref(json);
    if (text == NULL) {
        return no_memory(metrics);
    }
    weft_status status = weft_store_put_bytes(metrics->context, metrics->store, TRAIN_METRICS_KEY, text,
                                              strlen(text), WEFT_STORE_ALWAYS, NULL, NULL);
    free(text);
    return status;
}

void train_metrics_put(train_metrics *metrics, bool now) {
    if (!now && weft_clock_now() - metrics->put_since < PUT_SECONDS) {
        return;
    }
    metrics->put_since = weft_clock_now();
    if (put_lines(metrics) != WEFT_OK && !metrics->troubled) {
        metrics->troubled = true;
        train_warn(metrics->watch, "the store does not take metrics: %s",
                   weft_context_error(metrics->context));
    }
    weft_context_clear(metrics->context);
}
