/* SPDX-License-Identifier: Apache-2.0
 *
 * trajectory.h: the trajectories of one slot as an object: what a worker has made of its prompts, by which
 * policy. doc/FORMAT.md specifies the bytes.
 *
 * Anybody who may write to the store can have made one. What is parsed here belongs to the run, has the
 * sizes that the run allows, exactly the prompts of its slot and the rewards that the responses deserve;
 * whether its policy was published and may be used still, and whether the log-probabilities are that
 * policy's, the trainer checks (collect.h).
 */
#ifndef WEFT_TRAIN_TRAJECTORY_H
#define WEFT_TRAIN_TRAJECTORY_H

#include "../lib/base/bytes.h"
#include "run.h"

/* Why a trajectory is not used. */
typedef enum train_reason {
    TRAIN_GOOD = 0,
    TRAIN_BAD_SIZE,    /* longer than the run allows, or it breaks off */
    TRAIN_BAD_FORM,    /* not such an object, or damaged */
    TRAIN_BAD_RUN,     /* of another run */
    TRAIN_BAD_PLACE,   /* of another batch or slot */
    TRAIN_BAD_TOKENS,  /* not the slot's prompts, or responses that cannot be */
    TRAIN_BAD_LOGP,    /* no log-probabilities */
    TRAIN_BAD_REWARD,  /* not what the responses deserve */
    TRAIN_BAD_VERSION, /* of a policy that is too old, or from the future */
    TRAIN_BAD_DIGEST,  /* of weights that were not published as that version */
    TRAIN_BAD_SCORE,   /* the policy would not give these log-probabilities */
    TRAIN_REASONS,
} train_reason;

/* "size", "form", …; never NULL. */
const char *train_reason_name(train_reason reason);

/* What it took the worker, since the object that it put before this one. */
typedef struct train_effort {
    double generate; /* seconds */
    double pull;
    double pause;
    double put;        /* of the object before */
    uint64_t received; /* bytes */
} train_effort;

typedef struct train_trajectory {
    char run[WEFT_RUN_TEXT];
    uint64_t batch;
    uint32_t slot;
    uint64_t step;      /* of the policy */
    uint64_t version;   /* under which it was published */
    weft_digest digest; /* of its weights */
    char worker[WEFT_FOLLOWER_NAME];
    train_effort effort;
    train_caches caches;
    lm_samples *samples;
    float *rewards; /* of each sequence; of the context that the samples have */
} train_trajectory;

/* The largest that a slot's object can be. */
size_t train_trajectory_bytes_max(const train_run *run);

/* Appends the object. */
WEFT_CHECKED weft_status train_trajectory_encode(weft_context *context, const train_trajectory *trajectory,
                                                 weft_writer *writer);
/* On failure the reason is set, unless it is ours (no memory), and the text says what was expected. */
WEFT_CHECKED weft_status train_trajectory_parse(weft_context *context, const train_run *run,
                                                const void *data, size_t size,
                                                train_trajectory *trajectory_out, train_reason *reason_out);
/* Releases what it holds. */
void train_trajectory_close(train_trajectory *trajectory);

#endif
