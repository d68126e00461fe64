/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.h: the role that makes trajectories: follows the policy, rolls out slots that nobody has made yet,
 * and puts them into the store.
 *
 * It keeps nothing: what it is to do it reads from the store, and what it has not put is lost with it. Any
 * number of workers may come and go at any time; two that make the same slot waste work and nothing else.
 */
#ifndef WEFT_TRAIN_WORKER_H
#define WEFT_TRAIN_WORKER_H

#include "patience.h"
#include "run.h"

typedef struct train_worker_options {
    const char *name; /* a follower's name; of the workers that run at a time, each should have its own */
    const weft_key *trusted; /* versions must be signed by it; NULL: the store is believed */
    double patience;         /* seconds without anything new until it gives up */
    double max_seconds;      /* after which it ends by itself; 0: when the run is finished */
    const train_watch *watch;
} train_worker_options;

typedef struct train_worker_result {
    uint64_t slots;     /* put */
    uint64_t sequences; /* in them */
    uint64_t lost;      /* slots that somebody else put first */
    uint64_t versions;  /* pulled */
    uint64_t received;  /* bytes of weights */
    uint64_t step;      /* of the last policy */
    bool finished;      /* the run is; else the time was over */
    double generate;    /* seconds */
} train_worker_result;

/* Works until the run is finished, the time is over, patience is at its end, or it is cancelled. */
WEFT_CHECKED weft_status train_worker_run(weft_context *context, weft_store *store,
                                          const train_worker_options *options,
                                          train_worker_result *result_out);

#endif
