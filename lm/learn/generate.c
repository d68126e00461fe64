/* SPDX-License-Identifier: Apache-2.0
 *
 * generate.c: each thread leads some sequences forward in step, prompt tokens like sampled ones; where one
 * ends, its caches are freed and the next that waits takes its place. How many go at once follows from the
 * threads and from the memory that caches may take.
 */
#include "generate.h"

#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"
#include "../model/decode.h"
#include "../model/random.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { ROWS_MAX = 48 }; /* sequences of a thread: four tiles of rows */

typedef struct generate_run {
    lm_model *model;
    const lm_batch *prompts;
    const uint64_t *streams;
    lm_sampling sampling;
    weft_kv_options kv;
    size_t capacity;  /* tokens of the longest sequence */
    size_t fitting;   /* sequences whose caches may be there at once */
    lm_token *tokens; /* capacity for each sequence */
    float *logp;
    size_t *lengths;
    weft_kv_usage *usages; /* by share */
    atomic_size_t next;    /* the first sequence that waits */
    atomic_bool failed;    /* nothing new is begun */
} generate_run;

/* The sequences that one thread leads. */
typedef struct share {
    const generate_run *run;
    size_t limit; /* of rows */
    size_t count;
    size_t sequences[ROWS_MAX];
    lm_random randoms[ROWS_MAX];
    lm_decode_row rows[ROWS_MAX];
    weft_kv_usage *usage;
} share;

/* ---- sampling ---- */

static size_t likeliest(const float *logp, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        best = logp[i] > logp[best] ? i : best;
    }
    return best;
}

/* Rounding may leave the sum of all a little below the number that was drawn; then the likeliest is taken.
 */
static size_t draw(const float *logp, size_t count, lm_random *random) {
    double left = lm_random_uniform(random);
    for (size_t i = 0; i < count; i++) {
        left -= exp((double)logp[i]);
        if (left < 0) {
            return i;
        }
    }
    return likeliest(logp, count);
}

/* Appends a token to a sequence. False if the sequence has ended with it. */
static bool extend(const generate_run *run, size_t sequence, size_t position, float *logits,
                   lm_random *random) {
    const lm_sampling *sampling = &run->sampling;
    size_t vocabulary = run->model->config.vocabulary;
    float temperature = sampling->temperature > 0 ? sampling->temperature : 1;
    run->model->kernels->log_softmax(logits, 1.0f / temperature, vocabulary);
    size_t token =
        sampling->temperature > 0 ? draw(logits, vocabulary, random) : likeliest(logits, vocabulary);
    run->tokens[sequence * run->capacity + position + 1] = (lm_token)token;
    run->logp[sequence * run->capacity + position + 1] = logits[token];
    run->lengths[sequence] = position + 2;
    return (int32_t)token != sampling->stop &&
           position + 2 < lm_batch_length(run->prompts, sequence) + sampling->limit;
}

/* ---- a thread's share ---- */

static void destroy_caches(const generate_run *run, weft_kv_cache **caches) {
    for (size_t i = 0; caches != NULL && i < lm_cache_count(&run->model->config); i++) {
        weft_kv_cache_destroy(caches[i]);
    }
    weft_release(run->model->context, caches);
}

static weft_status create_caches(const generate_run *run, size_t prompt, weft_kv_usage *usage,
                                 weft_kv_cache ***caches_out) {
    weft_context *context = run->model->context;
    weft_kv_shape shape = lm_cache_shape(&run->model->config);
    size_t count = lm_cache_count(&run->model->config);
    size_t tokens = prompt + run->sampling.limit;
    weft_kv_options kv = run->kv;
    kv.sinks = weft_kv_sinks(&run->kv, prompt);
    weft_kv_cache **caches = weft_allocate_zeroed(context, count, sizeof *caches);
    weft_status status = caches != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = weft_kv_cache_create(context, &kv, &shape, tokens, usage, &caches[i]);
    }
    if (status != WEFT_OK) {
        destroy_caches(run, caches);
        return status;
    }
    *caches_out = caches;
    return WEFT_OK;
}

static weft_status admit(share *share, size_t sequence) {
    const generate_run *run = share->run;
    size_t length = lm_batch_length(run->prompts, sequence);
    lm_token *tokens = run->tokens + sequence * run->capacity;
    memcpy(tokens, run->prompts->tokens + run->prompts->starts[sequence], length * sizeof *tokens);
    run->lengths[sequence] = length;
    lm_decode_row row = {.token = tokens[0]};
    weft_status status = create_caches(run, length, share->usage, &row.caches);
    if (status != WEFT_OK) {
        return status;
    }
    share->sequences[share->count] = sequence;
    share->randoms[share->count] = lm_random_open(run->sampling.seed, run->streams[sequence]);
    share->rows[share->count++] = row;
    return WEFT_OK;
}

static weft_status fill(generate_run *run, share *share) {
    weft_status status = WEFT_OK;
    while (share->count < share->limit && status == WEFT_OK && !atomic_load(&run->failed)) {
        size_t sequence = atomic_fetch_add(&run->next, 1);
        if (sequence >= run->prompts->sequences) {
            break;
        }
        status = admit(share, sequence);
    }
    return status;
}

/* Every row to its next token; rows that have ended leave, and are counted. */
static size_t extend_rows(share *share, float *logits) {
    const generate_run *run = share->run;
    size_t kept = 0;
    size_t ended = 0;
    for (size_t i = 0; i < share->count; i++) {
        size_t sequence = share->sequences[i];
        lm_decode_row row = share->rows[i];
        bool goes_on = row.position + 1 < lm_batch_length(run->prompts, sequence) ||
                       extend(run, sequence, row.position, logits + i * run->model->config.vocabulary,
                              &share->randoms[i]);
        if (!goes_on) {
            destroy_caches(run, row.caches);
            ended++;
            continue;
        }
        row.position++;
        row.token = run->tokens[sequence * run->capacity + row.position];
        share->sequences[kept] = sequence;
        share->randoms[kept] = share->randoms[i];
        share->rows[kept++] = row;
    }
    share->count = kept;
    return ended;
}

static weft_status run_share(generate_run *run, share *share) {
    lm_decoder decoder = {0};
    weft_status status = lm_decoder_open(run->model, share->limit, run->capacity, &decoder);
    while (status == WEFT_OK && !atomic_load(&run->failed)) {
        status = fill(run, share);
        if (status != WEFT_OK || share->count == 0) {
            break;
        }
        status = lm_decode(&decoder, share->rows, share->count);
        if (status == WEFT_OK) {
            status = weft_progress_add(run->model->context, extend_rows(share, decoder.logits));
        }
    }
    for (size_t i = 0; i < share->count; i++) {
        destroy_caches(run, share->rows[i].caches);
    }
    lm_decoder_close(&decoder);
    return status;
}

/* The rows of a thread: an even part of the sequences, and of the memory. */
static size_t limit_rows(const generate_run *run, size_t index) {
    size_t threads = weft_context_threads(run->model->context);
    size_t limit = run->prompts->sequences / threads + 1;
    size_t fitting = run->fitting / threads + (index < run->fitting % threads ? 1 : 0);
    limit = limit < fitting ? limit : fitting;
    return limit < ROWS_MAX ? limit : ROWS_MAX;
}

static weft_status generate_share(void *argument, size_t index, unsigned worker) {
    (void)worker;
    generate_run *run = argument;
    share share = {.run = run, .limit = limit_rows(run, index), .usage = &run->usages[index]};
    weft_status status = share.limit > 0 ? run_share(run, &share) : WEFT_OK;
    if (status != WEFT_OK) {
        atomic_store(&run->failed, true);
    }
    return status;
}

/* ---- memory ---- */

static weft_status gather(const generate_run *run, lm_samples *samples) {
    size_t total = 0;
    samples->starts[0] = 0;
    for (size_t s = 0; s < samples->sequences; s++) {
        total += run->lengths[s];
        samples->starts[s + 1] = total;
        samples->prompts[s] = lm_batch_length(run->prompts, s);
    }
    samples->tokens = weft_allocate_array(samples->context, total, sizeof *samples->tokens);
    samples->logp = weft_allocate_array(samples->context, total, sizeof *samples->logp);
    if (samples->tokens == NULL || samples->logp == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t s = 0; s < samples->sequences; s++) {
        size_t from = s * run->capacity;
        memcpy(samples->tokens + samples->starts[s], run->tokens + from,
               run->lengths[s] * sizeof(lm_token));
        memcpy(samples->logp + samples->starts[s], run->logp + from, run->lengths[s] * sizeof(float));
    }
    for (unsigned i = 0; i < weft_context_threads(samples->context); i++) {
        weft_kv_usage_add(&samples->kv, &run->usages[i]);
    }
    return WEFT_OK;
}

static weft_status run_shares(generate_run *run) {
    weft_context *context = run->model->context;
    unsigned threads = weft_context_threads(context);
    size_t count = run->prompts->sequences;
    run->tokens = weft_allocate_zeroed(context, count * run->capacity, sizeof *run->tokens);
    run->logp = weft_allocate_zeroed(context, count * run->capacity, sizeof *run->logp);
    run->lengths = weft_allocate_zeroed(context, count, sizeof *run->lengths);
    run->usages = weft_allocate_zeroed(context, threads, sizeof *run->usages);
    if (run->tokens == NULL || run->logp == NULL || run->lengths == NULL || run->usages == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_progress_begin(context, "generating", count);
    return weft_parallel(context, threads, generate_share, run);
}

static void release_run(generate_run *run) {
    weft_context *context = run->model->context;
    weft_release(context, run->usages);
    weft_release(context, run->lengths);
    weft_release(context, run->logp);
    weft_release(context, run->tokens);
}

/* ---- entry points ---- */

static weft_status check(const lm_model *model, const lm_batch *prompts, const lm_sampling *sampling) {
    weft_status status = lm_batch_check(model, prompts);
    if (status == WEFT_OK && sampling->temperature != 0) {
        status = lm_check_temperature(model, sampling->temperature);
    }
    for (size_t s = 0; s < prompts->sequences && status == WEFT_OK; s++) {
        if (sampling->limit == 0 || sampling->limit > model->config.context - lm_batch_length(prompts, s)) {
            status = weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                               "a prompt of %zu tokens and a response of up to %zu do not fit a context of "
                               "%u, or the response may have no token",
                               lm_batch_length(prompts, s), sampling->limit, model->config.context);
        }
    }
    if (status == WEFT_OK && sampling->kv != NULL) {
        status = weft_kv_check(model->context, sampling->kv);
    }
    return status;
}

size_t lm_sampling_bytes(const lm_config *config, const weft_kv_options *kv, size_t tokens) {
    const weft_kv_options none = {.size = sizeof none, .policy = WEFT_KV_NONE};
    weft_kv_shape shape = lm_cache_shape(config);
    return lm_cache_count(config) * weft_kv_bytes(kv != NULL ? kv : &none, &shape, tokens);
}

/* How many sequences the memory for caches has room for. */
static weft_status measure_room(generate_run *run) {
    run->fitting = run->prompts->sequences;
    if (run->sampling.kv_bytes == 0) {
        return WEFT_OK;
    }
    size_t each = lm_sampling_bytes(&run->model->config, &run->kv, run->capacity);
    run->fitting = run->sampling.kv_bytes / each;
    if (run->fitting == 0) {
        return weft_fail(run->model->context, WEFT_LIMIT_EXCEEDED,
                         "the keys and values of one sequence take %zu bytes, and only %zu are allowed; "
                         "allow more, or choose a smaller KV budget",
                         each, run->sampling.kv_bytes);
    }
    return WEFT_OK;
}

static lm_samples *create_samples(weft_context *context, size_t sequences) {
    lm_samples *samples = weft_allocate_zeroed(context, 1, sizeof *samples);
    if (samples == NULL) {
        return NULL;
    }
    samples->context = context;
    samples->sequences = sequences;
    samples->starts = weft_allocate_array(context, sequences + 1, sizeof *samples->starts);
    samples->prompts = weft_allocate_array(context, sequences, sizeof *samples->prompts);
    if (samples->starts == NULL || samples->prompts == NULL) {
        lm_samples_destroy(samples);
        return NULL;
    }
    return samples;
}

weft_status lm_generate(lm_model *model, const lm_batch *prompts, const uint64_t *streams,
                        const lm_sampling *sampling, lm_samples **samples_out) {
    weft_status status = check(model, prompts, sampling);
    if (status != WEFT_OK) {
        return status;
    }
    generate_run run = {.model = model, .prompts = prompts, .streams = streams, .sampling = *sampling};
    run.kv = sampling->kv != NULL
                 ? *sampling->kv
                 : (weft_kv_options){.size = sizeof(weft_kv_options), .policy = WEFT_KV_NONE};
    atomic_init(&run.next, 0);
    atomic_init(&run.failed, false);
    for (size_t s = 0; s < prompts->sequences; s++) {
        size_t longest = lm_batch_length(prompts, s) + sampling->limit;
        run.capacity = longest > run.capacity ? longest : run.capacity;
    }
    status = measure_room(&run);
    if (status != WEFT_OK) {
        return status;
    }
    lm_samples *samples = create_samples(model->context, prompts->sequences);
    status = samples != NULL ? run_shares(&run) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        status = gather(&run, samples);
    }
    release_run(&run);
    if (status != WEFT_OK) {
        lm_samples_destroy(samples);
        return status;
    }
    *samples_out = samples;
    return WEFT_OK;
}

void lm_samples_destroy(lm_samples *samples) {
    if (samples == NULL) {
        return;
    }
    weft_context *context = samples->context;
    weft_release(context, samples->logp);
    weft_release(context, samples->tokens);
    weft_release(context, samples->prompts);
    weft_release(context, samples->starts);
    weft_release(context, samples);
}

lm_batch lm_samples_batch(const lm_samples *samples) {
    return (lm_batch){
        .sequences = samples->sequences, .starts = samples->starts, .tokens = samples->tokens};
}
