/* SPDX-License-Identifier: Apache-2.0
 *
 * learning.h: how a run learns, as learning.json beside the state keeps it: what only the trainer needs to
 * know, and so is not in the description of the run, but decides what comes of it. Together with it lies
 * the digest of the policy that the run began with, which the reference of a divergence must have.
 */
#ifndef WEFT_TRAIN_LEARNER_LEARNING_H
#define WEFT_TRAIN_LEARNER_LEARNING_H

#include "../options.h"

#define TRAIN_LEARNING_NAME "learning.json"

/* Keeps how `options` learn. `first` is the digest of the first policy, as hexadecimal text. */
WEFT_CHECKED weft_status train_learning_write(weft_context *context, const char *directory,
                                              const train_options *options, const char *first);
/* WEFT_INVALID_ARGUMENT, with a text that names it, if `options` learn otherwise than the run has until now
 * and do not say that this is meant. */
WEFT_CHECKED weft_status train_learning_check(weft_context *context, const char *directory,
                                              const train_options *options,
                                              char first_out[WEFT_DIGEST_TEXT]);

#endif
