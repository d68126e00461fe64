/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.h: what each step was like: a line of JSON in a file, and the newest lines in the store, for
 * people who look at a run from elsewhere.
 *
 * A line is made in two parts. What is known before the state is saved is kept beside it, so that a trainer
 * that is killed before the step's version was published can still write the line when it comes back.
 */
#ifndef WEFT_TRAIN_LEARNER_METRICS_H
#define WEFT_TRAIN_LEARNER_METRICS_H

#include "collect.h"
#include "density.h"
#include "team.h"

#include <jansson.h>

/* What is known of a step when it has been learned. */
typedef struct train_learned {
    uint64_t step;
    lm_grpo_result result;
    double rate;
    double success; /* below zero: not evaluated */
    train_densities densities;
    const lm_model *model;
    const train_batch *batch;
    const train_run *run;
    uint64_t rejected[TRAIN_REASONS]; /* since the step before */
    double wait;                      /* seconds */
    double train;
} train_learned;

/* What is known when it has been published. */
typedef struct train_published {
    uint64_t version; /* 0: another rank publishes it */
    uint64_t sent;    /* bytes */
    uint64_t dense;   /* that the model has */
    double publish;   /* seconds */
    double state;
    double step;
} train_published;

/* NULL if there is no memory. */
json_t *train_line_begin(const train_learned *learned);
/* A round has ended with the step: "round"; and, at the end of a run whose rounds overlap, the one before
 * it, which the step has ended too: "round_before". */
void train_line_round(json_t *line, const char *name, const train_run *run, const train_round *round);
void train_line_densities(json_t *line, const lm_model *model, const train_densities *densities);
void train_line_finish(json_t *line, const train_published *published);

typedef struct train_metrics {
    weft_context *context;
    weft_store *store;
    const train_watch *watch;
    json_t *run; /* its description */
    char *path;
    char *pending_path;
    json_t *lines;    /* the newest */
    uint64_t next;    /* the step that the next line is of */
    double put_since; /* when they were last put */
    bool troubled;    /* that they cannot be put was told */
} train_metrics;

/* Goes on with the file in `directory`: lines of `steps` and later are dropped, for those steps will be
 * made again. */
WEFT_CHECKED weft_status train_metrics_open(train_metrics *metrics, weft_context *context,
                                            weft_store *store, const train_watch *watch,
                                            const train_run *run, const char *directory, uint64_t steps);
void train_metrics_close(train_metrics *metrics);
/* Keeps the first part of a line until it is added. */
WEFT_CHECKED weft_status train_metrics_pend(train_metrics *metrics, const json_t *line);
/* The first part of the line of `step` that was kept, or NULL. */
json_t *train_metrics_pending(train_metrics *metrics, uint64_t step);
/* Writes a line that is finished, and shows it. */
WEFT_CHECKED weft_status train_metrics_add(train_metrics *metrics, json_t *line);
/* Puts the newest lines into the store: at most once a second, unless `now`. A store that refuses them is
 * told of once. */
void train_metrics_put(train_metrics *metrics, bool now);

#endif
