/* SPDX-License-Identifier: Apache-2.0
 *
 * collect.c: see collect.h.
 */
#include "collect.h"

#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "../../lm/model/pass.h"

#include <stdio.h>
#include <string.h>

/* Between looks for a slot, from the first number up to the second. */
static const double POLL_SECONDS = 0.002;
static const double POLL_MOST_SECONDS = 0.2;
/* Between looks whether the run is still this one. */
static const double LOOK_SECONDS = 2;

weft_status train_collector_open(train_collector *collector, weft_context *context, weft_store *store,
                                 const train_run *run, lm_pass *pass, train_patience *patience) {
    size_t tokens =
        train_slot_sequences(run) * (lm_task_prompt_size(&run->task) + lm_task_response_size(&run->task));
    *collector = (train_collector){
        .context = context,
        .store = store,
        .run = run,
        .pass = pass,
        .patience = patience,
        .watch = patience->watch,
    };
    collector->buffer = weft_allocate(context, train_trajectory_bytes_max(run) + 1);
    collector->scores = weft_allocate_array(context, tokens, sizeof *collector->scores);
    return collector->buffer != NULL && collector->scores != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

void train_collector_close(train_collector *collector) {
    if (collector->context != NULL) {
        weft_release(collector->context, collector->scores);
        weft_release(collector->context, collector->buffer);
    }
    *collector = (train_collector){.context = NULL};
}

void train_collector_note(train_collector *collector, const train_policy *policy) {
    size_t kept = collector->policy_count;
    if (kept > 0 && collector->policies[0].step == policy->step) {
        collector->policies[0] = *policy;
        return;
    }
    kept = kept < collector->run->staleness ? kept : collector->run->staleness;
    memmove(collector->policies + 1, collector->policies, kept * sizeof *collector->policies);
    collector->policies[0] = *policy;
    collector->policy_count = kept + 1;
}

/* ---- checking ---- */

static const train_policy *find_policy(const train_collector *collector, uint64_t step) {
    for (size_t i = 0; i < collector->policy_count; i++) {
        if (collector->policies[i].step == step) {
            return &collector->policies[i];
        }
    }
    return NULL;
}

static weft_status check_policy(train_collector *collector, uint64_t batch, const train_trajectory *found,
                                train_reason *reason_out) {
    const train_policy *policy = find_policy(collector, found->step);
    uint64_t oldest = train_batch_oldest(collector->run, batch);
    if (policy == NULL || found->step > batch || found->step < oldest) {
        *reason_out = TRAIN_BAD_VERSION;
        return weft_fail(collector->context, WEFT_BASE_MISMATCH,
                         "it was made by the policy of step %llu; batch %llu takes those from %llu on",
                         (unsigned long long)found->step, (unsigned long long)batch,
                         (unsigned long long)oldest);
    }
    /* whichever version it came as: ranks that take one another for gone may publish a policy twice */
    if (!weft_digest_equal(&found->digest, &policy->digest)) {
        *reason_out = TRAIN_BAD_DIGEST;
        return weft_fail(collector->context, WEFT_DIGEST_MISMATCH,
                         "the policy that it had as version %llu is not that of step %llu",
                         (unsigned long long)found->version, (unsigned long long)policy->step);
    }
    return WEFT_OK;
}

/* What the newest policy has sampled, it can be asked about; not what it has sampled from a compressed
 * cache, for a response does not say which tokens were evicted. */
static weft_status check_scores(train_collector *collector, const train_trajectory *found,
                                train_reason *reason_out) {
    const lm_samples *samples = found->samples;
    lm_batch batch = lm_samples_batch(samples);
    bool computed = found->batch % collector->run->local_steps == 0 && !collector->run->overlap &&
                    !train_run_compresses(collector->run);
    if (found->step != collector->policies[0].step || !computed) {
        return WEFT_OK;
    }
    weft_status status =
        lm_score(collector->pass, &batch, (float)collector->run->temperature, collector->scores);
    for (size_t s = 0; s < samples->sequences && status == WEFT_OK; s++) {
        size_t first = samples->starts[s] + samples->prompts[s];
        size_t count = samples->starts[s + 1] - first;
        if (memcmp(collector->scores + first, samples->logp + first, count * sizeof(float)) != 0) {
            *reason_out = TRAIN_BAD_SCORE;
            status = weft_fail(collector->context, WEFT_DIGEST_MISMATCH,
                               "sequence %zu does not have the log-probabilities that its policy gives", s);
        }
    }
    return status;
}

weft_status train_collector_check(train_collector *collector, uint64_t batch, uint32_t slot,
                                  const void *data, size_t size, train_trajectory *trajectory_out,
                                  train_reason *reason_out) {
    train_trajectory found = {.samples = NULL};
    weft_status status =
        train_trajectory_parse(collector->context, collector->run, data, size, &found, reason_out);
    if (status == WEFT_OK && (found.batch != batch || found.slot != slot)) {
        *reason_out = TRAIN_BAD_PLACE;
        status = weft_fail(collector->context, WEFT_MALFORMED, "it is of batch %llu and slot %u",
                           (unsigned long long)found.batch, found.slot);
    }
    if (status == WEFT_OK) {
        status = check_policy(collector, batch, &found, reason_out);
    }
    if (status == WEFT_OK) {
        status = check_scores(collector, &found, reason_out);
    }
    if (status != WEFT_OK) {
        train_trajectory_close(&found);
        return status;
    }
    *trajectory_out = found;
    return WEFT_OK;
}

/* ---- one slot ---- */

static weft_status fetch_slot(train_collector *collector, uint64_t batch, uint32_t slot,
                              train_trajectory *trajectory, train_reason *reason) {
    char key[TRAIN_KEY_SIZE];
    weft_store_get_result result = {.size = sizeof result};
    train_slot_key(batch, slot, key);
    weft_store_get_request request = {
        .size = sizeof request,
        .key = key,
        .length = train_trajectory_bytes_max(collector->run) + 1,
        .buffer = collector->buffer,
    };
    weft_status status = weft_store_get(collector->context, collector->store, &request, &result);
    return status == WEFT_OK ? train_collector_check(collector, batch, slot, collector->buffer,
                                                     (size_t)result.received, trajectory, reason)
                             : status;
}

weft_status train_collector_check_run(train_collector *collector) {
    train_run found;
    collector->looked = weft_clock_now();
    weft_status status = train_run_get(collector->context, collector->store, &found);
    if (status == WEFT_OK && strcmp(found.name, collector->run->name) != 0) {
        return weft_fail(collector->context, WEFT_CONFLICT,
                         "another trainer has begun the run %.8s in the store, and this one is over",
                         found.name);
    }
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

static weft_status reject_slot(train_collector *collector, uint64_t batch, uint32_t slot,
                               train_reason reason) {
    char key[TRAIN_KEY_SIZE];
    char why[512];
    snprintf(why, sizeof why, "%s", weft_context_error(collector->context));
    weft_status status = train_collector_check_run(collector);
    if (status != WEFT_OK) {
        return status;
    }
    train_slot_key(batch, slot, key);
    status = weft_store_remove(collector->context, collector->store, key);
    if (status == WEFT_OK) { /* else it is found again, and must not be counted twice */
        train_warn(collector->watch, "%s is not used (%s): %s", key, train_reason_name(reason), why);
        collector->rejected[reason]++;
    }
    return status;
}

/* One look at a slot. WEFT_MORE: it is not there, or was not good. Bytes can be damaged on the way: what
 * seems bad is fetched once more before that is believed. */
static weft_status look_at_slot(train_collector *collector, uint64_t batch, uint32_t slot,
                                train_trajectory *trajectory) {
    train_reason reason = TRAIN_GOOD;
    weft_status status = fetch_slot(collector, batch, slot, trajectory, &reason);
    if (reason != TRAIN_GOOD) {
        reason = TRAIN_GOOD;
        status = fetch_slot(collector, batch, slot, trajectory, &reason);
    }
    if (reason != TRAIN_GOOD) {
        status = reject_slot(collector, batch, slot, reason);
        return status == WEFT_OK ? WEFT_MORE : status;
    }
    return status == WEFT_NOT_FOUND ? WEFT_MORE : status;
}

/* One look at each slot that is not there yet. Trouble with the store is borne here. */
static weft_status look_round(train_collector *collector, uint64_t batch, train_trajectory *slots,
                              uint32_t *missing_out, bool *came_out) {
    *missing_out = 0;
    *came_out = false;
    for (uint32_t i = 0; i < collector->run->slots; i++) {
        if (slots[i].samples != NULL) {
            continue;
        }
        weft_status status = look_at_slot(collector, batch, collector->first + i, &slots[i]);
        *came_out = *came_out || status == WEFT_OK;
        *missing_out += status != WEFT_OK;
        if (status < 0) {
            status = train_patience_bear(collector->patience, status);
        }
        if (status < 0) {
            return status;
        }
    }
    return WEFT_OK;
}

/* All slots are looked at, not only the next: a bad one is to be made again while others come. */
static weft_status await_slots(train_collector *collector, uint64_t batch, train_trajectory *slots) {
    double since = weft_clock_now();
    for (;;) {
        uint32_t missing;
        bool came;
        weft_status status = look_round(collector, batch, slots, &missing, &came);
        if (status != WEFT_OK || missing == 0) {
            return status;
        }
        weft_context_clear(collector->context);
        if (came) {
            train_patience_calm(collector->patience);
            since = weft_clock_now();
        }
        status = collector->idle != NULL ? collector->idle(collector->opaque) : WEFT_OK;
        if (status == WEFT_OK && weft_clock_now() - collector->looked > LOOK_SECONDS) {
            status = train_collector_check_run(collector);
            status = status == WEFT_OK ? WEFT_OK : train_patience_bear(collector->patience, status);
        }
        if (status != WEFT_OK) {
            return status;
        }
        weft_context_clear(collector->context);
        double pause = weft_clock_pause(weft_clock_now() - since, POLL_SECONDS, POLL_MOST_SECONDS);
        status = train_patience_wait(collector->patience, pause, "no worker delivers trajectories");
        if (status != WEFT_OK) {
            return status;
        }
    }
}

/* ---- all of them ---- */

void train_batch_close(train_batch *batch) {
    if (batch->context != NULL) {
        weft_release(batch->context, batch->shares);
        weft_release(batch->context, batch->rewards);
        weft_release(batch->context, batch->old);
        weft_release(batch->context, batch->logp);
        weft_release(batch->context, batch->tokens);
        weft_release(batch->context, batch->prompts);
        weft_release(batch->context, batch->starts);
    }
    *batch = (train_batch){.context = NULL};
}

static weft_status take_memory(train_batch *batch, size_t sequences, size_t tokens, size_t slots) {
    weft_context *context = batch->context;
    batch->starts = weft_allocate_array(context, sequences + 1, sizeof *batch->starts);
    batch->prompts = weft_allocate_array(context, sequences, sizeof *batch->prompts);
    batch->tokens = weft_allocate_array(context, tokens, sizeof *batch->tokens);
    batch->logp = weft_allocate_array(context, tokens, sizeof *batch->logp);
    batch->rewards = weft_allocate_array(context, sequences, sizeof *batch->rewards);
    batch->shares = weft_allocate_zeroed(context, slots, sizeof *batch->shares);
    return batch->starts != NULL && batch->prompts != NULL && batch->tokens != NULL &&
                   batch->logp != NULL && batch->rewards != NULL && batch->shares != NULL
               ? WEFT_OK
               : WEFT_NO_MEMORY;
}

static train_share *share_of(train_batch *batch, const char *name) {
    for (size_t i = 0; i < batch->share_count; i++) {
        if (strcmp(batch->shares[i].name, name) == 0) {
            return &batch->shares[i];
        }
    }
    train_share *share = &batch->shares[batch->share_count++];
    snprintf(share->name, sizeof share->name, "%s", name);
    return share;
}

static void add_share(train_batch *batch, const train_trajectory *from) {
    train_share *share = share_of(batch, from->worker);
    share->version = from->version > share->version ? from->version : share->version;
    share->sequences += from->samples->sequences;
    share->effort.generate += from->effort.generate;
    share->effort.pull += from->effort.pull;
    share->effort.pause += from->effort.pause;
    share->effort.put += from->effort.put;
    share->effort.received += from->effort.received;
}

static void append_samples(train_batch *batch, size_t *sequences, const lm_samples *samples,
                           const float *rewards) {
    size_t at = batch->starts[*sequences];
    size_t tokens = samples->starts[samples->sequences];
    for (size_t i = 0; i < samples->sequences; i++) {
        batch->starts[*sequences + i + 1] = at + samples->starts[i + 1];
    }
    memcpy(batch->prompts + *sequences, samples->prompts, samples->sequences * sizeof *batch->prompts);
    memcpy(batch->rewards + *sequences, rewards, samples->sequences * sizeof *batch->rewards);
    memcpy(batch->tokens + at, samples->tokens, tokens * sizeof *batch->tokens);
    memcpy(batch->logp + at, samples->logp, tokens * sizeof *batch->logp);
    *sequences += samples->sequences;
}

static void add_slot(train_batch *batch, size_t *sequences, uint64_t number, const train_trajectory *slot,
                     uint32_t slots) {
    uint64_t behind = number - slot->step;
    append_samples(batch, sequences, slot->samples, slot->rewards);
    add_share(batch, slot);
    train_caches_add(&batch->caches, &slot->caches);
    batch->staleness += (double)behind / slots;
    batch->stalest = behind > batch->stalest ? behind : batch->stalest;
}

static weft_status assemble_batch(train_collector *collector, uint64_t number,
                                  const train_trajectory *slots, train_batch *batch) {
    const train_run *run = collector->run;
    size_t sequences = 0;
    size_t tokens = 0;
    for (uint32_t i = 0; i < run->slots; i++) {
        tokens += slots[i].samples->starts[slots[i].samples->sequences];
    }
    weft_status status = take_memory(batch, (size_t)run->prompts * run->group, tokens, run->slots);
    if (status != WEFT_OK) {
        return status;
    }
    batch->starts[0] = 0;
    for (uint32_t i = 0; i < run->slots; i++) {
        add_slot(batch, &sequences, number, &slots[i], run->slots);
    }
    batch->rollouts = (lm_rollouts){
        .batch = {.sequences = sequences, .starts = batch->starts, .tokens = batch->tokens},
        .prompts = batch->prompts,
        .logp = batch->logp,
        .rewards = batch->rewards,
        .group = run->group,
    };
    return WEFT_OK;
}

weft_status train_collect(train_collector *collector, uint64_t number, train_batch *batch_out) {
    weft_context *context = collector->context;
    train_batch batch = {.context = context};
    train_trajectory *slots = weft_allocate_zeroed(context, collector->run->slots, sizeof *slots);
    if (slots == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = await_slots(collector, number, slots);
    if (status == WEFT_OK) {
        train_patience_calm(collector->patience);
        status = assemble_batch(collector, number, slots, &batch);
    }
    for (uint32_t i = 0; i < collector->run->slots; i++) {
        train_trajectory_close(&slots[i]);
    }
    weft_release(context, slots);
    if (status != WEFT_OK) {
        train_batch_close(&batch);
        return status;
    }
    *batch_out = batch;
    return WEFT_OK;
}

weft_status train_batch_score(train_batch *batch, lm_pass *pass, float temperature) {
    size_t tokens = batch->starts[batch->rollouts.batch.sequences];
    batch->old = weft_allocate_array(batch->context, tokens, sizeof *batch->old);
    if (batch->old == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = lm_score(pass, &batch->rollouts.batch, temperature, batch->old);
    if (status == WEFT_OK) {
        batch->rollouts.old = batch->old;
    }
    return status;
}

void train_collector_clear(train_collector *collector, uint64_t batch) {
    char key[TRAIN_KEY_SIZE];
    weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < collector->run->slots && status == WEFT_OK; i++) {
        train_slot_key(batch, collector->first + i, key);
        status = weft_store_remove(collector->context, collector->store, key);
    }
    weft_context_clear(collector->context);
}
