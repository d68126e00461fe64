/* SPDX-License-Identifier: Apache-2.0
 *
 * task.c: see task.h.
 */
#include "task.h"

#include "../../lib/base/context.h"
#include "../model/random.h"

#include <string.h>

enum { BASE = 10, STEPS_MAX = 500, PERIOD_MAX = 64, DIGITS_MAX = 100 };

weft_status lm_task_check(weft_context *context, const lm_task *task) {
    if (task->kind == LM_TASK_CHAIN) {
        if (task->period < 1 || task->period > PERIOD_MAX || task->steps < 1 || task->steps > STEPS_MAX) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "a chain of %u steps with %u numbers cannot be used; choose at most %d and %d",
                             task->steps, task->period, STEPS_MAX, PERIOD_MAX);
        }
        if (task->steps % task->period == 0) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "a chain of %u steps round %u numbers can be guessed: choose a number of "
                             "steps that is no multiple of %u",
                             task->steps, task->period, task->period);
        }
        return WEFT_OK;
    }
    if (task->kind != LM_TASK_ADDITION || task->digits < 1 || task->digits > DIGITS_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "there is no task %d with numbers of %u digits; addition takes 1 to %d",
                         (int)task->kind, task->digits, DIGITS_MAX);
    }
    return WEFT_OK;
}

size_t lm_task_prompt_size(const lm_task *task) {
    return task->kind == LM_TASK_CHAIN ? 3 + (size_t)task->period : 3 + 2 * (size_t)task->digits;
}

size_t lm_task_response_size(const lm_task *task) {
    return task->kind == LM_TASK_CHAIN ? task->steps : task->digits + 2;
}

int32_t lm_task_stop(const lm_task *task) {
    return task->kind == LM_TASK_CHAIN ? -1 : LM_TOKEN_END;
}

static void draw_digits(lm_random *random, lm_token *digits, size_t count) {
    for (size_t i = 0; i < count; i++) {
        digits[i] = (lm_token)lm_random_below(random, BASE);
    }
}

void lm_task_prompt(const lm_task *task, uint64_t seed, uint64_t number, lm_token *prompt) {
    lm_random random = lm_random_open(seed, number);
    size_t size = lm_task_prompt_size(task);
    prompt[0] = LM_TOKEN_BEGIN;
    draw_digits(&random, prompt + 1, size - 2);
    if (task->kind == LM_TASK_ADDITION) {
        prompt[1 + task->digits] = LM_TOKEN_PLUS;
    }
    prompt[size - 1] = LM_TOKEN_EQUALS;
}

static bool is_prompt(const lm_task *task, const lm_token *prompt, size_t size) {
    if (size != lm_task_prompt_size(task) || prompt[0] != LM_TOKEN_BEGIN ||
        prompt[size - 1] != LM_TOKEN_EQUALS) {
        return false;
    }
    for (size_t i = 1; i + 1 < size; i++) {
        bool plus = task->kind == LM_TASK_ADDITION && i == 1 + task->digits;
        if (plus ? prompt[i] != LM_TOKEN_PLUS : prompt[i] >= BASE) {
            return false;
        }
    }
    return true;
}

static size_t answer_chain(const lm_task *task, const lm_token *prompt, lm_token *answer) {
    unsigned digit = prompt[1];
    for (size_t step = 0; step < task->steps; step++) {
        digit = (digit + prompt[2 + step % task->period]) % BASE;
        answer[step] = (lm_token)digit;
    }
    return task->steps;
}

/* Numbers are written as people do, the highest digit first; the sum the other way round, without leading
 * zeros. */
static size_t answer_addition(const lm_task *task, const lm_token *prompt, lm_token *answer) {
    const lm_token *first = prompt + 1;
    const lm_token *second = prompt + 2 + task->digits;
    unsigned carry = 0;
    size_t size = 0;
    for (size_t i = task->digits; i-- > 0;) {
        unsigned sum = first[i] + second[i] + carry;
        answer[size++] = (lm_token)(sum % BASE);
        carry = sum / BASE;
    }
    answer[size++] = (lm_token)carry;
    while (size > 1 && answer[size - 1] == 0) {
        size--;
    }
    answer[size++] = LM_TOKEN_END;
    return size;
}

size_t lm_task_answer(const lm_task *task, const lm_token *prompt, size_t size, lm_token *answer) {
    if (!is_prompt(task, prompt, size)) {
        return 0;
    }
    return task->kind == LM_TASK_CHAIN ? answer_chain(task, prompt, answer)
                                       : answer_addition(task, prompt, answer);
}

float lm_task_reward(const lm_task *task, const lm_token *prompt, size_t prompt_size,
                     const lm_token *response, size_t response_size) {
    lm_token answer[LM_TASK_SIZE_MAX];
    size_t size = lm_task_answer(task, prompt, prompt_size, answer);
    if (size == 0 || response_size != size) {
        return 0;
    }
    if (task->kind == LM_TASK_CHAIN) {
        return response[size - 1] == answer[size - 1] ? 1 : 0;
    }
    return memcmp(response, answer, size * sizeof *answer) == 0 ? 1 : 0;
}
