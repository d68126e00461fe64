/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.h: warmed-up policies, kept so that the next run with the same model, task and warm-up starts at
 * once. Only a saving of time: one that is missing or damaged is made again.
 */
#ifndef WEFT_TRAIN_LEARNER_CACHE_H
#define WEFT_TRAIN_LEARNER_CACHE_H

#include "../options.h"

/* Initialises and warms up the trainer, or takes that from the cache. Its moments are forgotten. */
WEFT_CHECKED weft_status train_warm_up(lm_trainer *trainer, const train_options *options);

#endif
