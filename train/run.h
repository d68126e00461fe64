/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h: what a run of training is, as its trainer puts it into the store, and where its objects lie.
 *
 * A batch is one step of the trainers. Its prompts are divided into slots; which prompts a slot has follows
 * from batch and slot alone, and its trajectories are one object. So the name of an object says what work
 * it is and its presence that the work is done: nobody hands work out, and none is used twice.
 *
 * Several trainers take a number of steps, a round, each on its own slots; then they agree on what they
 * have learned. That consensus is what is published, so all batches of a round are made by the policy of
 * its beginning, and a policy's step is a multiple of the steps of a round.
 */
#ifndef WEFT_TRAIN_RUN_H
#define WEFT_TRAIN_RUN_H

#include "../lm/learn/trainer.h"

#include <jansson.h>
#include <weft/loco.h>
#include <weft/rollout.h>
#include <weft/sync.h>

#define TRAIN_RUN_KEY "train/run"
#define TRAIN_METRICS_KEY "train/metrics"
#define TRAIN_ROLLOUTS_ROOM "train/rollouts"

/* Labels of a version. */
#define TRAIN_LABEL_STEP "step"
#define TRAIN_LABEL_RUN "train"

enum {
    TRAIN_RUN_MAX = 1 << 16, /* bytes of the description */
    TRAIN_OBJECT_MAX = 16 << 20 /* of a slot's trajectories */,
    TRAIN_STALENESS_MAX = 64,
    TRAIN_LOCAL_STEPS_MAX = 1000,
    TRAIN_KEY_SIZE = WEFT_STORE_KEY_MAX + 1,
};

/* How several trainers come to one policy. */
typedef enum train_outer {
    TRAIN_ALONE,     /* there is one, and nothing to agree on */
    TRAIN_PULSELOCO, /* rounds of several steps; only what the next forward pass can see is sent */
    TRAIN_DILOCO,    /* rounds of several steps; everything is sent */
    TRAIN_DDP,       /* gradients are averaged before each update: a round is a step */
    TRAIN_OUTERS,
} train_outer;

/* How weights travel. */
typedef enum train_sync {
    TRAIN_SYNC_PATCH, /* what changed */
    TRAIN_SYNC_FULL,  /* every version whole */
} train_sync;

typedef struct train_run {
    char name[WEFT_RUN_TEXT]; /* hexadecimal, drawn by the trainer when the run begins */
    lm_config config;
    lm_task task;
    uint64_t seed;
    uint64_t steps;   /* until it is finished */
    uint32_t prompts; /* of a batch, for each trainer */
    uint32_t group;   /* responses to each */
    uint32_t slots;   /* of a batch, for each trainer; divides prompts */
    double temperature;
    weft_kv_options kv; /* how workers compress their caches */
    uint32_t staleness; /* rounds that a policy may be behind the batch's; 0: strictly synchronous */
    train_sync sync;
    train_outer outer;
    uint32_t trainers;
    uint32_t local_steps; /* of a round; divides steps */
    double outer_rate;    /* of the outer optimizer; and its momentum */
    double outer_momentum;
    uint32_t significant; /* bits of a value that is sent; 0: all */
    uint32_t grid;        /* steps of values that are sent, as weft_loco_options has it */
    bool overlap;         /* payloads of a round travel during the steps of the next, which ends it; those
                             steps take batches of the policy before, so the staleness is at least 1 */
    bool fused; /* the trainer's processor fuses multiplications and additions: see train_run_fused */
} train_run;

/* True if this process computes with fused operations. A response has the same bits on all machines of
 * which that is true, and on all others; but not across. */
bool train_run_fused(void);

/* WEFT_INVALID_ARGUMENT if there can be no such run. The name is not looked at. */
WEFT_CHECKED weft_status train_run_check(weft_context *context, const train_run *run);
/* True if both are the same but for name, steps and processor. */
bool train_run_alike(const train_run *a, const train_run *b);
/* "alone", "pulseloco", "diloco", "ddp". */
const char *train_outer_name(train_outer outer);
bool train_outer_find(const char *name, train_outer *outer_out);

/* The JSON is the caller's, to be released with weft_release. */
WEFT_CHECKED weft_status train_run_format(weft_context *context, const train_run *run, char **text_out);
/* Parses and checks. `where` begins the text of a failure. */
WEFT_CHECKED weft_status train_run_parse(weft_context *context, const char *where, const char *text,
                                         size_t size, train_run *run_out);

WEFT_CHECKED weft_status train_run_put(weft_context *context, weft_store *store, const train_run *run);
/* WEFT_NOT_FOUND if nobody trains there. */
WEFT_CHECKED weft_status train_run_get(weft_context *context, weft_store *store, train_run *run_out);

/* ---- slots ---- */

/* Of a batch. Rank r has the slots from r * slots on. */
static inline uint32_t train_slot_count(const train_run *run) {
    return run->trainers * run->slots;
}
/* Batches, from a policy's step on, that it may be used for. */
static inline uint64_t train_policy_span(const train_run *run) {
    return (run->staleness + (uint64_t)1) * run->local_steps;
}
/* The step of the oldest policy that a batch may be made by. */
static inline uint64_t train_batch_oldest(const train_run *run, uint64_t batch) {
    uint64_t round = batch / run->local_steps;
    return (round > run->staleness ? round - run->staleness : 0) * run->local_steps;
}
void train_slot_key(uint64_t batch, uint32_t slot, char key[TRAIN_KEY_SIZE]);
/* What a worker rolls out for a slot. */
lm_rollout_options train_slot_rollout(const train_run *run, uint64_t batch, uint32_t slot);
static inline size_t train_slot_sequences(const train_run *run) {
    return (size_t)(run->prompts / run->slots) * run->group;
}
/* True if something is evicted from a worker's caches, so that the log-probabilities of its tokens are not
 * those that its policy gives with a whole cache. */
bool train_run_compresses(const train_run *run);
/* Fresh prompts to evaluate a policy on, which no batch has; with a whole cache. */
lm_rollout_options train_evaluation(const train_run *run, size_t prompts);

/* ---- kv.c: how the workers of a run compress their caches, and what they report of it ---- */

/* What the caches of a slot, or of all slots of a batch, held and took. */
typedef struct train_caches {
    uint64_t held;        /* tokens that queries found, summed over queries */
    uint64_t full;        /* the same if nothing were ever evicted */
    uint64_t peak_bytes;  /* memory, at its most; of several slots the sum, as if they were made at once */
    uint64_t dense_bytes; /* keys and values alone if nothing were evicted, at their most */
} train_caches;

/* So that those of a batch can be added up. */
bool train_caches_sane(const train_caches *caches);
void train_caches_add(train_caches *total, const train_caches *caches);

bool train_kv_equal(const weft_kv_options *a, const weft_kv_options *b);
/* NULL if there is no memory. */
json_t *train_kv_format(const weft_kv_options *options);
/* False if something is missing or of another type; the options are not checked. */
bool train_kv_parse(const json_t *json, weft_kv_options *options_out);

#endif
