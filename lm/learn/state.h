/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h: a model and a trainer's whole state on disk, as safetensors.
 *
 * The model is what inference wants: BF16 under Hugging Face's names, config.json beside it. The state is
 * what a resumed run needs to continue bit for bit: masters and moments in FP32 and, in the file's
 * metadata, the config, the optimizer's step, how far the run is and a digest of it all. One file, moved
 * into place at once: a killed run leaves the state before or after, whole.
 */
#ifndef WEFT_LM_LEARN_STATE_H
#define WEFT_LM_LEARN_STATE_H

#include "../model/random.h"
#include "trainer.h"

/* How far a run is. All random numbers follow from counts (random.h), so this is all there is to it. */
typedef struct lm_progress {
    uint64_t step;
    uint64_t prompts; /* the number of the next prompt */
    lm_random random; /* a stream of the caller's, if it has one */
    lm_task task;
} lm_progress;

/* Writes model.safetensors and config.json into a directory that exists. */
WEFT_CHECKED weft_status lm_model_write(lm_model *model, const char *directory, bool durable);
/* Fills a model of the same architecture; a trainer's masters become the BF16 values. */
WEFT_CHECKED weft_status lm_model_read(lm_model *model, const char *directory);

WEFT_CHECKED weft_status lm_state_write(lm_trainer *trainer, const lm_progress *progress, const char *path,
                                        bool durable);
/* Nothing is changed unless everything fits: WEFT_INVALID_ARGUMENT for a state of another architecture,
 * WEFT_MALFORMED for a file that is none, WEFT_DIGEST_MISMATCH for one that was damaged. */
WEFT_CHECKED weft_status lm_state_read(lm_trainer *trainer, const char *path, lm_progress *progress_out);
/* A trainer of the architecture that the state says, which has read it. */
WEFT_CHECKED weft_status lm_state_open(weft_context *context, const char *path, lm_trainer **trainer_out,
                                       lm_progress *progress_out);

#endif
