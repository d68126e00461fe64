/* SPDX-License-Identifier: Apache-2.0
 *
 * consensus.h: the policy that trainers have agreed on, where it is not what a trainer computes with:
 * rounds that overlap leave each rank ahead of it.
 */
#ifndef WEFT_TRAIN_CONSENSUS_H
#define WEFT_TRAIN_CONSENSUS_H

#include "../lm/model/model.h"

#include <weft/loco.h>

/* Sets a worker's model to the consensus, whose tensors are those of the model. */
WEFT_CHECKED weft_status train_consensus_copy(lm_model *model, const weft_loco *loco);

#endif
