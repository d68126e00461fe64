/* SPDX-License-Identifier: Apache-2.0
 *
 * training.h: what a trainer tells of its steps, for those who show it: a line of metrics.jsonl for each,
 * and the object train/metrics with the newest of them. doc/FORMAT.md has both.
 *
 * Anybody who can write to the store may have written them. What is read here is bounded, and has the
 * members that a page or a terminal relies on, with values that can be shown; anything else that was there
 * is left out.
 */
#ifndef WEFT_PROGRAMS_BASE_TRAINING_H
#define WEFT_PROGRAMS_BASE_TRAINING_H

#include <jansson.h>
#include <weft/base.h>

/* Where it lies in a store. The server knows trainers by their objects alone: it includes nothing of
 * train/. */
#define TRAINING_METRICS_KEY "train/metrics"

enum {
    TRAINING_LINE_MAX = 1 << 20,
    TRAINING_OBJECT_MAX = 16 << 20,
    TRAINING_STEPS_MAX = 1 << 16, /* that are kept in memory and shown */
};

/* One line, without its end. */
WEFT_CHECKED weft_status training_line_parse(weft_context *context, const char *where, const char *text,
                                             size_t size, json_t **step_out);
/* The object: {"run": …, "steps": […]}, the steps in order. */
WEFT_CHECKED weft_status training_object_parse(weft_context *context, const char *where, const char *text,
                                               size_t size, json_t **object_out);
/* What a run is, as a shallow object of texts and numbers. */
WEFT_CHECKED weft_status training_run_parse(weft_context *context, const char *where, const char *text,
                                            size_t size, json_t **run_out);

/* Puts a step, which it takes, behind those before it. A trainer that went back to a state that it had
 * saved tells steps again: the later word counts. False if there is no room or no memory. */
bool training_append(json_t *steps, json_t *step);

/* The number under a name, or under two, of a step; `otherwise` if it is null. */
double training_number(const json_t *step, const char *group, const char *name, double otherwise);

#endif
