/* SPDX-License-Identifier: Apache-2.0
 *
 * task.h: tasks whose rewards can be verified: prompts by number, right answers, and the reward of a
 * response. All follow from the prompt's tokens, so that a trainer can check what a worker claims.
 *
 * Chained sums: BOS x b1 … bK =, and the response is x + b1, then + b2, and so on round the b, each modulo
 * 10, for a number of steps. The reward is 1 if the last digit is right. The steps must not be a multiple
 * of K: then the last digit would be x plus a multiple of one sum, which can be guessed without following
 * the chain.
 *
 * Addition: BOS a + b =, and the response is the sum's digits, the lowest first, and END. The reward is 1
 * if all are right.
 */
#ifndef WEFT_LM_LEARN_TASK_H
#define WEFT_LM_LEARN_TASK_H

#include "../model/config.h"

typedef enum lm_task_kind {
    LM_TASK_CHAIN,
    LM_TASK_ADDITION,
} lm_task_kind;

enum {
    LM_TOKEN_BEGIN = 10, /* below: digits */
    LM_TOKEN_EQUALS,
    LM_TOKEN_PLUS,
    LM_TOKEN_END,
    LM_TASK_VOCABULARY = 16,
    LM_TASK_SIZE_MAX = 512, /* tokens of a prompt, and of a response */
};

typedef struct lm_task {
    lm_task_kind kind;
    uint32_t steps;  /* of a chain */
    uint32_t period; /* of a chain: K */
    uint32_t digits; /* of each number that is added */
} lm_task;

WEFT_CHECKED weft_status lm_task_check(weft_context *context, const lm_task *task);
/* Tokens of a prompt, and of a response at most. */
size_t lm_task_prompt_size(const lm_task *task);
size_t lm_task_response_size(const lm_task *task);
/* The token that ends a response, or -1. */
int32_t lm_task_stop(const lm_task *task);

/* The prompt with a number, under a seed. */
void lm_task_prompt(const lm_task *task, uint64_t seed, uint64_t number, lm_token *prompt);
/* The right response to a prompt; returns its size. 0 if the tokens are no prompt of this task. */
size_t lm_task_answer(const lm_task *task, const lm_token *prompt, size_t size, lm_token *answer);
/* 0 or 1. */
float lm_task_reward(const lm_task *task, const lm_token *prompt, size_t prompt_size,
                     const lm_token *response, size_t response_size);

#endif
