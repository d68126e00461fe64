/* SPDX-License-Identifier: Apache-2.0
 *
 * train_sparse.h: the options of `weft train` for sampling with a compressed cache of keys and values, and
 * for the correction of what is learned from such responses.
 */
#ifndef WEFT_PROGRAMS_LAB_TRAIN_TRAIN_SPARSE_H
#define WEFT_PROGRAMS_LAB_TRAIN_TRAIN_SPARSE_H

#include "../../cli/command.h"

#include "../../../train/options.h"

typedef struct train_sparse {
    bool given; /* one of them was */
    weft_kv_policy policy;
    uint64_t budget;   /* 0: not given */
    uint64_t interval; /* 0: the policy's */
    uint64_t sinks;    /* one more than was given; 0: the policy's */
    uint64_t window;   /* 0: the policy's */
    const char *correction;
    double veto; /* below 0: the preset's */
    bool exclude_rejected;
} train_sparse;

/* To be a child of the verb's, with a train_sparse for its input. */
extern const struct argp train_sparse_argp;

/* Makes options of them; an exit code. */
int train_sparse_choose(weft_command *command, const train_sparse *sparse, train_options *chosen);

#endif
