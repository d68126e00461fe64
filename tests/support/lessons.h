/* SPDX-License-Identifier: Apache-2.0
 *
 * lessons.h: the smallest policy and the smallest tasks, and what tests of learning do with them. Every
 * call fails the test if the library fails it. For tests that have lm/ (test_lm_*).
 */
#ifndef WEFT_TESTS_LESSONS_H
#define WEFT_TESTS_LESSONS_H

#include "../../lm/learn/grpo.h"
#include "../../lm/learn/warmup.h"

extern const lm_config lesson_policy; /* 12 thousand parameters */
extern const lm_task lesson_addition; /* of one digit */
extern const lm_task lesson_chain;

enum { LESSON_PROMPTS = 16, LESSON_GROUP = 4 };

/* A trainer with a context of its own, and its first weights. */
lm_trainer *lesson_open(unsigned threads, const lm_config *config, uint64_t seed);
void lesson_close(lm_trainer *trainer);
/* Rolls out and learns from it; returns the mean reward. */
double lesson_step(lm_trainer *trainer, const lm_task *task, const lm_grpo_options *options, uint64_t step);
/* From right answers, at a rate that suits the smallest policy. */
lm_warmup_result lesson_warm_up(lm_trainer *trainer, const lm_task *task, double success, uint64_t steps);

#endif
