/* SPDX-License-Identifier: Apache-2.0
 *
 * consensus.c: see consensus.h.
 */
#include "consensus.h"

weft_status train_consensus_copy(lm_model *model, const weft_loco *loco) {
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        weft_bf16_from_f32(weft_loco_consensus(loco, weight->name), model->live + weight->offset,
                           weight->rows * weight->columns);
    }
    return lm_model_refresh(model);
}
