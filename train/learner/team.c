/* SPDX-License-Identifier: Apache-2.0
 *
 * team.c: see team.h.
 */
#include "team.h"

#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "../../lib/tensor/digest.h"
#include "../consensus.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* So many ranks after the leader can be asked before a deadline's time has passed once more. */
static const double PASSING_SHARE = 12;
static const char STEP_LABEL[] = "step";
static const char ADAM_LABEL[] = "adam";

bool train_team_goes_on(const train_team *team) {
    return team->exchange.ended != NULL;
}

uint32_t train_team_leader(const train_team *team) {
    return team->leader;
}

lm_model *train_team_policy(const train_team *team) {
    return team->policy != NULL ? team->policy : team->trainer->model;
}

/* Asked when a round has ended: an exchange that is under way is not looked into. */
static void note_leader(train_team *team) {
    weft_loco_store_stats stats = {.size = sizeof stats};
    if (train_team_goes_on(team)) {
        weft_loco_store_describe(&team->exchange, &stats);
        team->leader = stats.leader;
    }
}

/* The consensus, or where this rank stands to it, is another one. */
static weft_status refresh(train_team *team) {
    note_leader(team);
    weft_status status = lm_model_refresh(team->trainer->model);
    return status == WEFT_OK && team->policy != NULL ? train_consensus_copy(team->policy, team->loco)
                                                     : status;
}

const weft_table *train_team_table(const train_team *team) {
    return team->table != NULL ? team->table : lm_model_table(team->trainer->model);
}

/* ---- gradients ---- */

static void add_stats(train_round *round, const weft_loco_stats *stats, double seconds) {
    round->elements = stats->elements;
    round->fired += stats->fired;
    round->sent += stats->sent;
    round->received += stats->received;
    round->included = stats->included;
    round->aggregate += stats->decoding + stats->moving;
    round->share += seconds - stats->decoding - stats->moving;
}

/* Gradients are averaged over all ranks or not at all: nobody is left behind. */
static bool can_be_left(const train_team *team) {
    return team->loco != NULL && train_team_goes_on(team) && team->run->outer != TRAIN_DDP;
}

/* Whether a round that failed like this cannot be ended any more, and has to be passed over. */
static bool is_lost(const train_team *team, weft_status status) {
    return can_be_left(team) &&
           (status == WEFT_NOT_FOUND || (weft_status_is_integrity(status) && status != WEFT_BASE_MISMATCH));
}

/* Comes to where the others are, since the round has `failed`. WEFT_MORE: it is there. If there is no such
 * place, the round has failed as before; if it cannot be reached, that is what fails, and why it had to be
 * is told too. */
static weft_status pass_over(train_team *team, weft_status failed) {
    weft_failure failure = weft_failure_keep(team->context, failed);
    uint64_t from = weft_loco_rounds(team->loco);
    weft_status status = weft_loco_catch_up(team->loco, &team->exchange, NULL);
    if (status == WEFT_OK) {
        return weft_loco_rounds(team->loco) != from ? WEFT_MORE
                                                    : weft_failure_tell(team->context, &failure);
    }
    return weft_fail(team->context, status,
                     "this rank cannot catch up with the others: %.511s; it has to, because of this: %s",
                     weft_context_error(team->context), failure.text);
}

/* Ends the round `from`. A rank that was on its way to where the others are when that failed goes on with
 * that. WEFT_MORE as above. */
static weft_status try_round(train_team *team, uint64_t from, weft_loco_stats *stats) {
    if (weft_loco_rounds(team->loco) != from) {
        weft_status status = weft_loco_catch_up(team->loco, &team->exchange, NULL);
        return status == WEFT_OK ? WEFT_MORE : status;
    }
    weft_status status = weft_loco_round(team->loco, &team->exchange, stats);
    return is_lost(team, status) ? pass_over(team, status) : status;
}

/* One agreement over the exchange, whatever is agreed on. WEFT_MORE: the others had gone on without this
 * rank, which has caught up. */
static weft_status exchange_once(train_team *team) {
    weft_loco_payload own;
    weft_loco_stats stats = {.size = sizeof stats};
    uint64_t from = weft_loco_rounds(team->loco);
    double start = weft_clock_now();
    weft_status status = weft_loco_encode(team->loco, &own);
    if (status != WEFT_OK) {
        return status;
    }
    double encoded = weft_clock_now();
    team->round.gate += encoded - start;
    status = try_round(team, from, &stats);
    while (status != WEFT_OK && status != WEFT_MORE && train_team_goes_on(team)) {
        status = train_patience_bear(team->patience, status);
        if (status != WEFT_OK) {
            return status;
        }
        status = try_round(team, from, &stats);
    }
    if (status == WEFT_OK || status == WEFT_MORE) {
        train_patience_calm(team->patience);
    }
    if (status == WEFT_OK) {
        add_stats(&team->round, &stats, weft_clock_now() - encoded);
    }
    return status;
}

static weft_status average_gradient(void *opaque) {
    return exchange_once(opaque);
}

/* ---- rounds ---- */

/* What the store's exchange has moved beside the payloads of rounds. */
static void add_snapshots(train_team *team, train_round *round) {
    if (!train_team_goes_on(team)) {
        return;
    }
    weft_loco_store_stats now = {.size = sizeof now};
    weft_loco_store_describe(&team->exchange, &now);
    uint64_t fetched = now.received - team->told.received;
    round->sent_snapshots = now.snapshot_bytes - team->told.snapshot_bytes;
    round->received_snapshots = fetched > round->received ? fetched - round->received : 0;
    team->told = now;
}

/* The consensus; under DDP weights and moments, for which nobody else sees that they stay the same. */
static weft_status digest_common(const train_team *team, weft_digest *digest_out) {
    if (team->run->outer == TRAIN_DDP) {
        return weft_table_digest(team->context, team->extra, digest_out);
    }
    *digest_out = weft_loco_digest(team->loco);
    return WEFT_OK;
}

weft_status train_team_begin(train_team *team) {
    double start = weft_clock_now();
    weft_status status = weft_loco_round_begin(team->loco, &team->exchange);
    team->round.gate += weft_clock_now() - start;
    return status == WEFT_OK ? lm_model_refresh(team->trainer->model) : status;
}

weft_status train_team_agree(train_team *team, train_round *round_out) {
    bool gradients = team->run->outer == TRAIN_DDP;
    uint64_t number = weft_loco_rounds(team->loco);
    weft_status status = WEFT_OK;
    if (!gradients) {
        status = exchange_once(team);
    }
    if (status == WEFT_MORE) {
        team->round = (train_round){.number = 0};
        status = refresh(team);
        return status == WEFT_OK ? WEFT_MORE : status;
    }
    if (status == WEFT_OK && gradients) {
        note_leader(team);
    } else if (status == WEFT_OK) {
        status = refresh(team);
    }
    if (status == WEFT_OK) {
        status = digest_common(team, &team->round.digest);
    }
    if (status == WEFT_OK) {
        team->round.number = number;
        team->round.residual = sqrt(weft_loco_residual_energy(team->loco));
        add_snapshots(team, &team->round);
        *round_out = team->round;
        team->round = (train_round){.number = 0};
    }
    return status;
}

weft_status train_team_look(train_team *team, uint64_t round) {
    if (!can_be_left(team)) {
        return WEFT_OK;
    }
    weft_status status = team->exchange.ended(team->exchange.opaque, team->context, round);
    if (status == WEFT_OK || status == WEFT_NOT_FOUND) {
        weft_context_clear(team->context);
        return WEFT_MORE;
    }
    return status == WEFT_MORE ? WEFT_OK : train_patience_bear(team->patience, status);
}

static weft_status catch_up(void *opaque) {
    train_team *team = opaque;
    return weft_loco_catch_up(team->loco, &team->exchange, NULL);
}

weft_status train_team_catch_up(train_team *team, uint64_t *rounds_out) {
    uint64_t before = weft_loco_rounds(team->loco);
    weft_status status = can_be_left(team) ? train_patience_try(team->patience, catch_up, team) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    *rounds_out = weft_loco_rounds(team->loco) - before;
    return *rounds_out > 0 ? refresh(team) : WEFT_OK;
}

weft_status train_team_tell(const train_options *options, weft_context *context, const void *own,
                            size_t size, void *all) {
    const weft_loco_exchange *exchange = options->exchange;
    size_t ranks = options->run.trainers;
    const weft_loco_payload payload = {own, size};
    weft_loco_payload *payloads = weft_allocate_zeroed(context, ranks, sizeof *payloads);
    if (payloads == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = exchange->share(exchange->opaque, context, 0, &payload, payloads, ranks);
    for (size_t i = 0; i < ranks && status == WEFT_OK; i++) {
        if (payloads[i].size != size) {
            status =
                weft_fail(context, WEFT_MALFORMED,
                          "rank %zu does not speak as this one does: use the same version everywhere", i);
        } else {
            memcpy((uint8_t *)all + i * size, payloads[i].data, size);
        }
    }
    weft_release(context, payloads);
    return status;
}

/* ---- the state ---- */

weft_status train_team_save(train_team *team, uint64_t step, const char *path) {
    const lm_model *model = team->trainer->model;
    char steps[32];
    char adam[32];
    const char *const labels[] = {STEP_LABEL, steps, ADAM_LABEL, adam, NULL};
    snprintf(steps, sizeof steps, "%llu", (unsigned long long)step);
    snprintf(adam, sizeof adam, "%llu", (unsigned long long)team->trainer->adam->steps);
    if (team->run->outer == TRAIN_DDP) {
        /* between steps nobody needs it, and zeros are not written */
        memset(team->trainer->gradient, 0, model->parameters * sizeof *team->trainer->gradient);
    }
    return weft_loco_save(team->loco, path, team->extra, labels, team->options->durable);
}

typedef struct found_labels {
    bool good;
    uint64_t step;
    uint64_t adam;
} found_labels;

static void take_label(void *opaque, const char *key, const char *value) {
    found_labels *found = opaque;
    char *end = NULL;
    uint64_t number = value != NULL ? strtoull(value, &end, 10) : 0;
    if (value == NULL || value[0] < '0' || value[0] > '9' || *end != 0) {
        found->good = false;
    } else if (strcmp(key, STEP_LABEL) == 0) {
        found->step = number;
    } else {
        found->adam = number;
    }
}

weft_status train_team_load(train_team *team, const char *path, uint64_t *step_out) {
    static const char *const keys[] = {STEP_LABEL, ADAM_LABEL, NULL};
    found_labels found = {.good = true};
    weft_status status = weft_loco_load(team->loco, path, team->extra, keys, take_label, &found);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t first = weft_loco_rounds(team->loco) * team->run->local_steps;
    bool gradients = team->run->outer == TRAIN_DDP;
    if (!found.good ||
        (!gradients && (found.step < first || found.step - first > team->run->local_steps))) {
        return weft_fail(team->context, WEFT_MALFORMED, "the state in '%s' does not say how far it is",
                         path);
    }
    team->trainer->adam->steps = found.adam;
    *step_out = found.step;
    return refresh(team);
}

/* ---- opening and closing ---- */

/* Flat, as they lie in memory. */
static weft_status add_flat(weft_table *table, const char *name, float *data, size_t count) {
    const weft_tensor tensor = {.size = sizeof tensor,
                                .name = name,
                                .dtype = WEFT_DTYPE_F32,
                                .rank = 1,
                                .shape = {count},
                                .data = data};
    return weft_table_add(table, &tensor);
}

static weft_status list_extra(train_team *team) {
    const lm_model *model = team->trainer->model;
    const lm_adam *adam = team->trainer->adam;
    weft_status status = weft_table_create(team->context, &team->extra);
    if (status == WEFT_OK) {
        status = add_flat(team->extra, "first", adam->first, model->parameters);
    }
    if (status == WEFT_OK) {
        status = add_flat(team->extra, "second", adam->second, model->parameters);
    }
    if (status == WEFT_OK && team->run->outer == TRAIN_DDP) {
        status = add_flat(team->extra, "master", model->masters, model->parameters);
    }
    return status;
}

/* The local weights move while the consensus of the round's beginning may still have to be published. */
static weft_status list_consensus(train_team *team) {
    const weft_table *model = lm_model_table(team->trainer->model);
    weft_status status = weft_table_create(team->context, &team->table);
    for (size_t i = 0; i < weft_table_count(model) && status == WEFT_OK; i++) {
        weft_tensor tensor = *weft_table_at(model, i);
        tensor.data = (void *)(uintptr_t)weft_loco_consensus(team->loco, tensor.name);
        status = weft_table_add(team->table, &tensor);
    }
    return status;
}

static weft_loco_options choose_loco(const train_run *run, uint32_t rank) {
    weft_loco_options options = {
        .size = sizeof options,
        .run = run->name,
        .rank = rank,
        .ranks = run->trainers,
        .rate = (float)run->outer_rate,
        .momentum = (float)run->outer_momentum,
        .significant = run->significant,
        .grid = run->grid,
        .overlap = run->overlap,
    };
    if (run->outer != TRAIN_PULSELOCO) {
        options.open = true;
        options.raw = true;
        options.significant = 0;
        options.grid = 0;
    }
    if (run->outer == TRAIN_DDP) {
        options.average = true;
        options.rate = 1;
        options.momentum = 0;
    }
    return options;
}

static weft_status open_loco(train_team *team) {
    lm_model *model = team->trainer->model;
    float *values = team->run->outer == TRAIN_DDP ? team->trainer->gradient : model->masters;
    const weft_loco_options options = choose_loco(team->run, team->options->rank);
    weft_loco_tensor *tensors = weft_allocate_array(team->context, model->weight_count, sizeof *tensors);
    if (tensors == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        tensors[i] =
            (weft_loco_tensor){weight->name, values + weight->offset, weight->rows * weight->columns};
    }
    memset(team->trainer->gradient, 0, model->parameters * sizeof *team->trainer->gradient);
    weft_status status =
        weft_loco_create(team->context, &options, tensors, model->weight_count, &team->loco);
    weft_release(team->context, tensors);
    return status;
}

static weft_status open_exchange(train_team *team, weft_store *store) {
    const train_options *chosen = team->options;
    weft_loco_store_options options = {.size = sizeof options};
    weft_loco_store_defaults(&options);
    if (chosen->exchange != NULL) {
        team->exchange = *chosen->exchange;
        return WEFT_OK;
    }
    options.run = team->run->name;
    options.rank = chosen->rank;
    options.ranks = team->run->trainers;
    options.least = team->run->outer == TRAIN_DDP ? team->run->trainers : 1;
    options.deadline_seconds = chosen->deadline;
    options.passing_seconds = team->passing;
    options.patience_seconds = chosen->patience;
    options.key = chosen->key;
    team->exchange.size = sizeof team->exchange;
    return weft_loco_store_open(team->context, store, &options, &team->exchange);
}

/* What rounds that overlap need. */
static weft_status open_overlap(train_team *team) {
    if (!team->run->overlap) {
        return WEFT_OK;
    }
    if (!team->exchange.threads) {
        return weft_fail(team->context, WEFT_UNSUPPORTED,
                         "this MPI serves one thread only, and rounds that overlap have one beside the "
                         "trainer's; leave out --overlap, or let trainers meet in the store");
    }
    weft_status status =
        lm_model_create(team->context, &team->trainer->model->config, LM_WORKER, &team->policy);
    return status == WEFT_OK ? train_consensus_copy(team->policy, team->loco) : status;
}

weft_status train_team_open(train_team *team, weft_store *store, const train_run *run,
                            const train_options *options, lm_trainer *trainer, train_patience *patience) {
    *team = (train_team){
        .context = trainer->model->context,
        .run = run,
        .options = options,
        .trainer = trainer,
        .patience = patience,
        .passing = options->deadline / PASSING_SHARE,
    };
    if (run->outer == TRAIN_ALONE) {
        return WEFT_OK;
    }
    weft_status status = open_loco(team);
    if (status == WEFT_OK) {
        status = open_exchange(team, store);
    }
    if (status == WEFT_OK) {
        status = open_overlap(team);
    }
    if (status == WEFT_OK) {
        status = list_extra(team);
    }
    if (status == WEFT_OK && run->outer == TRAIN_DDP) {
        trainer->reduce = average_gradient;
        trainer->reduce_opaque = team;
    } else if (status == WEFT_OK) {
        status = list_consensus(team);
    }
    return status;
}

void train_team_close(train_team *team) {
    weft_table_destroy(team->table);
    weft_table_destroy(team->extra);
    lm_model_destroy(team->policy);
    /* first what may still use the other */
    weft_loco_destroy(team->loco);
    if (team->exchange.close != NULL && team->options->exchange == NULL) {
        team->exchange.close(team->exchange.opaque);
    }
    *team = (train_team){.context = NULL};
}
