/* SPDX-License-Identifier: Apache-2.0
 *
 * learner_reference.c: the policy that a run began with, from which it may have to diverge little. It lies
 * beside the state, for when the run is gone on with: a run that compared itself with the first policy of
 * another would be none that can be told of.
 */
#include "learner.h"

#include "../../lib/base/context.h"
#include "../../lib/tensor/digest.h"
#include "../files.h"

#include <string.h>

static weft_status digest_model(train_learner *learner, const lm_model *model,
                                char text[WEFT_DIGEST_TEXT]) {
    return weft_table_digest_text(learner->context, lm_model_table(model), text);
}

weft_status train_learner_begin_learning(train_learner *learner) {
    weft_status status = digest_model(learner, learner->trainer->model, learner->first);
    return status == WEFT_OK ? train_learner_write_learning(learner) : status;
}

static weft_status read_reference(train_learner *learner, const char *path) {
    char digest[WEFT_DIGEST_TEXT];
    weft_status status = lm_model_read(learner->reference, path);
    if (status == WEFT_OK) {
        status = digest_model(learner, learner->reference, digest);
    }
    if (status == WEFT_OK && strcmp(digest, learner->first) == 0) {
        return WEFT_OK;
    }
    bool is_other = status == WEFT_OK || weft_status_is_integrity(status);
    return weft_fail(learner->context, is_other ? WEFT_DIGEST_MISMATCH : WEFT_INVALID_ARGUMENT,
                     "'%s' does not hold the policy that the run began with, which --kl compares with "
                     "(%.511s); a run that was begun without --kl cannot be given one",
                     path, status == WEFT_OK ? "it is another" : weft_context_error(learner->context));
}

static weft_status open_reference(train_learner *learner) {
    char path[TRAIN_PATH_SIZE];
    if (learner->options->grpo.kl == 0) {
        return WEFT_OK;
    }
    weft_status status = train_path(learner->context, learner->output, "reference", path);
    if (status == WEFT_OK && learner->step == 0) {
        status = train_make_directory(learner->context, path);
        status = status == WEFT_OK
                     ? lm_model_write(learner->trainer->model, path, learner->options->durable)
                     : status;
    }
    if (status == WEFT_OK) {
        status = lm_model_create(learner->context, &learner->run.config, LM_WORKER, &learner->reference);
    }
    if (status == WEFT_OK) {
        status = read_reference(learner, path);
    }
    return status == WEFT_OK ? lm_pass_create(learner->reference, false, &learner->reference_pass) : status;
}

/* A change is written down when nothing speaks against it any more. */
weft_status train_learner_open_reference(train_learner *learner) {
    weft_status status = open_reference(learner);
    return status == WEFT_OK && learner->options->change ? train_learner_write_learning(learner) : status;
}
