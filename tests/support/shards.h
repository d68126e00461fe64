/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.h: a sharded trainer: real processes, each of which holds some rows or columns of a model and
 * publishes them, and is told by the test what to do. What the whole model is at a step can be computed by
 * anybody, so that what followers get can be compared with it. Every call ends the test program with a
 * message if the surroundings fail it.
 */
#ifndef WEFT_TESTS_SHARDS_H
#define WEFT_TESTS_SHARDS_H

#include "fault_store.h"
#include "runs.h"

#include <sys/types.h>

enum { SHARDS_MAX = 8, SHARD_TEXT = 512 };

/* The whole model, unsharded, at a step. */
typedef struct shard_model {
    weft_context *context;
    model model;
    uint64_t step;
} shard_model;

void shard_model_open(shard_model *model, weft_context *context);
void shard_model_close(shard_model *model);
/* Replaces the weights by those of a step, from 1. */
void shard_model_set(shard_model *model, uint64_t step);

typedef struct shard_options {
    double part_seconds;
    double anchor_ratio;
    weft_profile profile;
    bool uncut;      /* nothing is told of how tensors are sharded */
    bool other_cuts; /* this process cuts one tensor as nobody else does */
    const char *key; /* the file of a secret key; NULL: none */
    uint64_t max_lag;
    double max_lag_seconds;
} shard_options;

/* What a process answers. */
typedef struct shard_answer {
    weft_status status;
    weft_publish_result result;
    uint64_t peak_kib; /* of its memory */
    char text[SHARD_TEXT];
} shard_answer;

typedef struct shard {
    pid_t pid;
    int channel;
} shard;

/* Starts the process that is part `index` of `count`, and opens its publisher. */
void shard_start(shard *shard, const char *store, unsigned index, unsigned count,
                 const shard_options *options);
/* From the next publish on, operations of that process that match fail, once, or are late; with FAULT_PAUSE
 * the process ends there, as if killed: see shard_await_death. `pattern` must be short. */
void shard_fault(shard *shard, fault_kind kind, unsigned operations, const char *pattern, double seconds,
                 uint64_t skip);
/* The same for one operation that ends with a status. */
void shard_fail_with(shard *shard, weft_status status, unsigned operations, const char *pattern);
/* The n-th store operation of the next publish fails, or its answer is lost; 0: none. */
void shard_fail_at(shard *shard, bool lose, uint64_t n);
/* Tells the process to publish its part of a step, and does not wait. Label 0: without labels. */
void shard_publish(shard *shard, uint64_t step, uint64_t label);
/* What came of it. */
shard_answer shard_wait(shard *shard);
/* Closes the publisher and ends the process. */
void shard_stop(shard *shard);
/* SIGKILL. */
void shard_kill(shard *shard);
/* Until it has been killed by a fault. */
void shard_await_death(shard *shard);

#endif
