/* SPDX-License-Identifier: Apache-2.0
 *
 * survey.h: what differs between two states, counted: by tensor, by exponent and by step, and the
 * entropy bound that follows from the counts.
 */
#ifndef WEFT_PROGRAMS_CLI_SURVEY_H
#define WEFT_PROGRAMS_CLI_SURVEY_H

#include "command.h"

enum { SURVEY_EXPONENTS = 256, SURVEY_STEPS = 65536 };

/* Classes of the ULP-step histogram. Steps are differences of the bits of one sign, so that + is away
 * from zero; a change of sign is a class of its own. */
enum {
    ULP_MINUS_MORE, /* -4 and beyond */
    ULP_MINUS_3,
    ULP_MINUS_2,
    ULP_MINUS_1,
    ULP_PLUS_1,
    ULP_PLUS_2,
    ULP_PLUS_3,
    ULP_PLUS_MORE,
    ULP_SIGN,
    ULP_CLASSES,
};

typedef struct survey_tensor {
    const weft_tensor *base; /* NULL: added */
    const weft_tensor *next; /* NULL: removed */
    bool kept;               /* the same dtype and shape in both: compared unit by unit */
    uint64_t units;
    uint64_t changed;
} survey_tensor;

/* Counts over BF16 tensors. The exponent is that of the old weight: (old >> 7) & 0xff. */
typedef struct survey_counts {
    uint64_t weights[SURVEY_EXPONENTS];
    uint64_t changed[SURVEY_EXPONENTS];
    uint64_t *steps[SURVEY_EXPONENTS]; /* (new - old) mod 2^16; NULL where nothing changed */
    uint64_t ulp[ULP_CLASSES];
    uint64_t up, down; /* by value, not by bits */
} survey_counts;

typedef struct weft_survey {
    survey_tensor *tensors;
    size_t tensor_count;
    uint64_t total;   /* units of the new state */
    uint64_t changed; /* units that differ, in kept tensors */
    uint64_t added, removed, replaced;
    uint64_t bf16_total, bf16_changed;
    survey_counts bf16;
} weft_survey;

/* Bits per change, pooled over the BF16 tensors. */
typedef struct survey_bound {
    double position, step; /* given the exponent of the old weight */
    double position_iid, step_iid;
} survey_bound;

int survey_run(weft_command *command, const weft_table *base, const weft_table *next, weft_survey *survey);
survey_bound survey_entropy(const weft_survey *survey);
void survey_close(weft_survey *survey);

/* ---- parallel.c ---- */

typedef void (*parallel_task)(void *argument, size_t index, unsigned worker);
/* Runs `task` for each index below `count`, on `threads` threads of which the caller is worker 0. */
void parallel_run(unsigned threads, size_t count, parallel_task task, void *argument);

#endif
