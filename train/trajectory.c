/* SPDX-License-Identifier: Apache-2.0
 *
 * trajectory.c: see trajectory.h.
 */
#include "trajectory.h"

#include "../lib/base/context.h"
#include "../lib/base/hash.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT = 2, MAGIC_BYTES = 8, RUN_BYTES = 16, FIXED_BYTES = 153 };

static const char MAGIC[MAGIC_BYTES + 1] = "weftroll";
static const double SECONDS_MAX = 1e9;
/* Rounding can leave a certain token a little above zero. */
static const float LOGP_MAX = 1e-3f;

const char *train_reason_name(train_reason reason) {
    static const char *const names[TRAIN_REASONS] = {
        [TRAIN_GOOD] = "good",         [TRAIN_BAD_SIZE] = "size",     [TRAIN_BAD_FORM] = "form",
        [TRAIN_BAD_RUN] = "run",       [TRAIN_BAD_PLACE] = "place",   [TRAIN_BAD_TOKENS] = "tokens",
        [TRAIN_BAD_LOGP] = "logp",     [TRAIN_BAD_REWARD] = "reward", [TRAIN_BAD_VERSION] = "version",
        [TRAIN_BAD_DIGEST] = "digest", [TRAIN_BAD_SCORE] = "score",
    };
    return reason < TRAIN_REASONS ? names[reason] : "";
}

static size_t longest(const train_run *run) {
    return lm_task_prompt_size(&run->task) + lm_task_response_size(&run->task);
}

size_t train_trajectory_bytes_max(const train_run *run) {
    size_t token = sizeof(lm_token) + sizeof(float);
    size_t sequence = sizeof(uint16_t) + sizeof(float) + longest(run) * token;
    return FIXED_BYTES + WEFT_FOLLOWER_NAME - 1 + train_slot_sequences(run) * sequence + WEFT_HASH_BYTES;
}

void train_trajectory_close(train_trajectory *trajectory) {
    if (trajectory->samples != NULL) {
        weft_release(trajectory->samples->context, trajectory->rewards);
        lm_samples_destroy(trajectory->samples);
    }
    *trajectory = (train_trajectory){.samples = NULL};
}

/* ---- writing ---- */

static void write_f64(weft_writer *writer, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    weft_writer_u64(writer, bits);
}

static void write_head(weft_writer *writer, const train_trajectory *trajectory, const uint8_t *run) {
    const train_effort *effort = &trajectory->effort;
    const lm_samples *samples = trajectory->samples;
    size_t name = strlen(trajectory->worker);
    weft_writer_bytes(writer, MAGIC, MAGIC_BYTES);
    weft_writer_u32(writer, FORMAT);
    weft_writer_bytes(writer, run, RUN_BYTES);
    weft_writer_u64(writer, trajectory->batch);
    weft_writer_u32(writer, trajectory->slot);
    weft_writer_u64(writer, trajectory->step);
    weft_writer_u64(writer, trajectory->version);
    weft_writer_bytes(writer, trajectory->digest.bytes, sizeof trajectory->digest.bytes);
    write_f64(writer, effort->generate);
    write_f64(writer, effort->pull);
    write_f64(writer, effort->pause);
    write_f64(writer, effort->put);
    weft_writer_u64(writer, effort->received);
    weft_writer_u64(writer, trajectory->caches.held);
    weft_writer_u64(writer, trajectory->caches.full);
    weft_writer_u64(writer, trajectory->caches.peak_bytes);
    weft_writer_u64(writer, trajectory->caches.dense_bytes);
    weft_writer_u32(writer, (uint32_t)samples->sequences);
    weft_writer_u32(writer, (uint32_t)samples->starts[samples->sequences]);
    weft_writer_u8(writer, (uint8_t)name);
    weft_writer_bytes(writer, trajectory->worker, name);
}

weft_status train_trajectory_encode(weft_context *context, const train_trajectory *trajectory,
                                    weft_writer *writer) {
    uint8_t run[RUN_BYTES];
    weft_hash hash;
    size_t start = writer->size;
    if (!weft_hex_parse(trajectory->run, run, sizeof run) ||
        !weft_follower_name_valid(trajectory->worker)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a trajectory needs the name of its run and of its worker");
    }
    write_head(writer, trajectory, run);
    const lm_samples *samples = trajectory->samples;
    size_t tokens = samples->starts[samples->sequences];
    for (size_t i = 0; i < samples->sequences; i++) {
        weft_writer_u16(writer, (uint16_t)(samples->starts[i + 1] - samples->starts[i]));
    }
    weft_writer_bytes(writer, samples->tokens, tokens * sizeof *samples->tokens);
    weft_writer_bytes(writer, samples->logp, tokens * sizeof *samples->logp);
    weft_writer_bytes(writer, trajectory->rewards, samples->sequences * sizeof *trajectory->rewards);
    if (weft_writer_failed(writer)) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_hash_compute(context, writer->data + start, writer->size - start, &hash);
    if (status != WEFT_OK) {
        return status;
    }
    weft_writer_bytes(writer, hash.bytes, sizeof hash.bytes);
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}

/* ---- reading ---- */

typedef struct parser {
    weft_context *context;
    const train_run *run;
    weft_reader reader;
    train_trajectory found;
    uint32_t sequences;
    uint32_t tokens;
    train_reason reason;
} parser;

__attribute__((format(printf, 3, 4))) static weft_status refuse(parser *p, train_reason reason,
                                                                const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    p->reason = reason;
    return weft_fail(p->context, reason == TRAIN_BAD_SIZE ? WEFT_TRUNCATED : WEFT_MALFORMED, "%s", text);
}

static bool read_seconds(weft_reader *reader, double *seconds) {
    uint64_t bits = weft_reader_u64(reader);
    memcpy(seconds, &bits, sizeof *seconds);
    return *seconds >= 0 && *seconds <= SECONDS_MAX;
}

static bool read_worker(weft_reader *reader, char name[WEFT_FOLLOWER_NAME]) {
    uint8_t length = weft_reader_u8(reader);
    const uint8_t *bytes = weft_reader_bytes(reader, length);
    if (bytes == NULL || length >= WEFT_FOLLOWER_NAME || memchr(bytes, 0, length) != NULL) {
        return false;
    }
    memcpy(name, bytes, length);
    name[length] = 0;
    return weft_follower_name_valid(name);
}

static weft_status check_sum(parser *p, const uint8_t *data, size_t size) {
    weft_hash hash;
    if (size > train_trajectory_bytes_max(p->run) || size < FIXED_BYTES + WEFT_HASH_BYTES) {
        return refuse(p, TRAIN_BAD_SIZE, "the object has %zu bytes, which no slot of this run can have",
                      size);
    }
    if (memcmp(data, MAGIC, MAGIC_BYTES) != 0) {
        return refuse(p, TRAIN_BAD_FORM, "the object holds no trajectories");
    }
    size_t body = size - WEFT_HASH_BYTES;
    weft_status status = weft_hash_compute(p->context, data, body, &hash);
    if (status == WEFT_OK && memcmp(hash.bytes, data + body, WEFT_HASH_BYTES) != 0) {
        return refuse(p, TRAIN_BAD_FORM, "the object is damaged: its SHA-256 is not what it says");
    }
    p->reader = weft_reader_over(data, body);
    return status;
}

static weft_status read_head(parser *p) {
    weft_reader *reader = &p->reader;
    train_trajectory *found = &p->found;
    train_effort *effort = &found->effort;
    weft_reader_bytes(reader, MAGIC_BYTES);
    uint32_t format = weft_reader_u32(reader);
    const uint8_t *run = weft_reader_bytes(reader, RUN_BYTES);
    weft_hex_format(run, RUN_BYTES, found->run);
    found->batch = weft_reader_u64(reader);
    found->slot = weft_reader_u32(reader);
    found->step = weft_reader_u64(reader);
    found->version = weft_reader_u64(reader);
    memcpy(found->digest.bytes, weft_reader_bytes(reader, sizeof found->digest.bytes),
           sizeof found->digest.bytes);
    bool sane = read_seconds(reader, &effort->generate);
    sane = read_seconds(reader, &effort->pull) && sane;
    sane = read_seconds(reader, &effort->pause) && sane;
    sane = read_seconds(reader, &effort->put) && sane;
    effort->received = weft_reader_u64(reader);
    found->caches.held = weft_reader_u64(reader);
    found->caches.full = weft_reader_u64(reader);
    found->caches.peak_bytes = weft_reader_u64(reader);
    found->caches.dense_bytes = weft_reader_u64(reader);
    p->sequences = weft_reader_u32(reader);
    p->tokens = weft_reader_u32(reader);
    if (format != FORMAT) {
        return refuse(p, TRAIN_BAD_FORM, "the object has format %u; this program knows %d", format, FORMAT);
    }
    if (!read_worker(reader, found->worker) || !sane || effort->received > INT64_MAX ||
        !train_caches_sane(&found->caches)) {
        return refuse(p, TRAIN_BAD_FORM, "who made it, or what it took, makes no sense");
    }
    return WEFT_OK;
}

static weft_status check_head(parser *p) {
    const train_run *run = p->run;
    if (strcmp(p->found.run, run->name) != 0) {
        return refuse(p, TRAIN_BAD_RUN, "it is of the run %s, and this is %s", p->found.run, run->name);
    }
    if (p->found.slot >= train_slot_count(run) || p->found.batch >= run->steps) {
        return refuse(p, TRAIN_BAD_PLACE, "the run has no batch %llu with a slot %u",
                      (unsigned long long)p->found.batch, p->found.slot);
    }
    size_t body =
        p->sequences * (sizeof(uint16_t) + sizeof(float)) + p->tokens * (sizeof(lm_token) + sizeof(float));
    if (p->sequences != train_slot_sequences(run) || p->tokens > p->sequences * longest(run) ||
        weft_reader_left(&p->reader) != body) {
        return refuse(p, TRAIN_BAD_SIZE, "%u sequences with %u tokens in %zu bytes are not a slot's",
                      p->sequences, p->tokens, weft_reader_left(&p->reader));
    }
    return WEFT_OK;
}

static weft_status take_memory(parser *p) {
    weft_context *context = p->context;
    lm_samples *samples = weft_allocate_zeroed(context, 1, sizeof *samples);
    if (samples == NULL) {
        return WEFT_NO_MEMORY;
    }
    p->found.samples = samples;
    samples->context = context;
    samples->sequences = p->sequences;
    samples->starts = weft_allocate_array(context, p->sequences + (size_t)1, sizeof *samples->starts);
    samples->prompts = weft_allocate_array(context, p->sequences, sizeof *samples->prompts);
    samples->tokens = weft_allocate_array(context, p->tokens, sizeof *samples->tokens);
    samples->logp = weft_allocate_array(context, p->tokens, sizeof *samples->logp);
    p->found.rewards = weft_allocate_array(context, p->sequences, sizeof *p->found.rewards);
    return samples->starts != NULL && samples->prompts != NULL && samples->tokens != NULL &&
                   samples->logp != NULL && p->found.rewards != NULL
               ? WEFT_OK
               : WEFT_NO_MEMORY;
}

static void read_array(parser *p, void *array, size_t bytes) {
    memcpy(array, weft_reader_bytes(&p->reader, bytes), bytes);
}

static weft_status read_body(parser *p) {
    lm_samples *samples = p->found.samples;
    size_t prompt = lm_task_prompt_size(&p->run->task);
    samples->starts[0] = 0;
    for (size_t i = 0; i < p->sequences; i++) {
        size_t length = weft_reader_u16(&p->reader);
        if (length <= prompt || length > longest(p->run)) {
            return refuse(p, TRAIN_BAD_TOKENS, "sequence %zu has %zu tokens, which none of the task has", i,
                          length);
        }
        samples->prompts[i] = prompt;
        samples->starts[i + 1] = samples->starts[i] + length;
    }
    if (samples->starts[p->sequences] != p->tokens) {
        return refuse(p, TRAIN_BAD_SIZE, "the sequences have %zu tokens and should have %u",
                      samples->starts[p->sequences], p->tokens);
    }
    read_array(p, samples->tokens, p->tokens * sizeof *samples->tokens);
    read_array(p, samples->logp, p->tokens * sizeof *samples->logp);
    read_array(p, p->found.rewards, p->sequences * sizeof *p->found.rewards);
    return WEFT_OK;
}

/* A response ends with the token that stops it, and there only, or is as long as one may be. */
static bool response_ends(const parser *p, const lm_token *response, size_t size) {
    int32_t stop = lm_task_stop(&p->run->task);
    for (size_t i = 0; i + 1 < size; i++) {
        if (response[i] == stop) {
            return false;
        }
    }
    return size == lm_task_response_size(&p->run->task) || response[size - 1] == stop;
}

static weft_status check_sequence(parser *p, size_t index, const lm_token *expected) {
    const lm_samples *samples = p->found.samples;
    const lm_token *tokens = samples->tokens + samples->starts[index];
    const float *logp = samples->logp + samples->starts[index];
    size_t length = samples->starts[index + 1] - samples->starts[index];
    size_t prompt = samples->prompts[index];
    if (memcmp(tokens, expected, prompt * sizeof *tokens) != 0) {
        return refuse(p, TRAIN_BAD_TOKENS, "sequence %zu does not begin with its prompt", index);
    }
    for (size_t i = prompt; i < length; i++) {
        if (tokens[i] >= p->run->config.vocabulary) {
            return refuse(p, TRAIN_BAD_TOKENS, "sequence %zu has a token %u outside of the vocabulary",
                          index, tokens[i]);
        }
    }
    if (!response_ends(p, tokens + prompt, length - prompt)) {
        return refuse(p, TRAIN_BAD_TOKENS, "the response in sequence %zu ends where none does", index);
    }
    for (size_t i = 0; i < length; i++) {
        if (i < prompt ? logp[i] != 0 : !(logp[i] <= LOGP_MAX && isfinite(logp[i]))) {
            return refuse(p, TRAIN_BAD_LOGP, "token %zu of sequence %zu has %g for a log-probability", i,
                          index, (double)logp[i]);
        }
    }
    float reward = lm_task_reward(&p->run->task, tokens, prompt, tokens + prompt, length - prompt);
    if (p->found.rewards[index] != reward) {
        return refuse(p, TRAIN_BAD_REWARD, "sequence %zu claims a reward of %g and deserves %g", index,
                      (double)p->found.rewards[index], (double)reward);
    }
    return WEFT_OK;
}

static weft_status check_body(parser *p) {
    const train_run *run = p->run;
    lm_rollout_options work = train_slot_rollout(run, p->found.batch, p->found.slot);
    lm_token prompt[LM_TASK_SIZE_MAX];
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < p->sequences && status == WEFT_OK; i++) {
        if (i % run->group == 0) {
            lm_task_prompt(&run->task, work.seed, work.first + i / run->group, prompt);
        }
        status = check_sequence(p, i, prompt);
    }
    return status;
}

weft_status train_trajectory_parse(weft_context *context, const train_run *run, const void *data,
                                   size_t size, train_trajectory *trajectory_out,
                                   train_reason *reason_out) {
    parser p = {.context = context, .run = run};
    weft_status (*const stages[])(parser *) = {read_head, check_head, take_memory, read_body, check_body};
    weft_status status = check_sum(&p, data, size);
    for (size_t i = 0; i < sizeof stages / sizeof *stages && status == WEFT_OK; i++) {
        status = stages[i](&p);
    }
    if (status != WEFT_OK) {
        train_trajectory_close(&p.found);
        *reason_out = p.reason;
        return status;
    }
    *trajectory_out = p.found;
    return WEFT_OK;
}
