/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.h: what the model makes of sequences that are given.
 */
#ifndef WEFT_LM_MODEL_FORWARD_H
#define WEFT_LM_MODEL_FORWARD_H

#include "pass.h"

/* logp[i] becomes the log-probability of token i of the batch, given those before it in its sequence, at
 * the given temperature; 0 for the first of a sequence. The same bits as generation gave. */
WEFT_CHECKED weft_status lm_score(lm_pass *pass, const lm_batch *batch, float temperature, float *logp);

#endif
