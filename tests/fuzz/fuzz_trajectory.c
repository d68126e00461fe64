/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the trajectories of a slot. The input is an object without its SHA-256, which is computed here, so
 * that the fuzzer gets past it. What is accepted must come out the same when it is encoded again.
 */
#include "../../lib/base/hash.h"
#include "../../train/trajectory.h"

#include <stdlib.h>
#include <string.h>

static const train_run run = {
    .name = "00112233445566778899aabbccddeeff",
    .config = {16, 32, 1, 2, 2, 48, 32, true, 10000, 1e-5},
    .task = {.kind = LM_TASK_ADDITION, .digits = 1},
    .seed = 7,
    .steps = 10,
    .prompts = 2,
    .group = 2,
    .slots = 1,
    .temperature = 1,
    .staleness = 1,
    .trainers = 1,
    .local_steps = 1,
    .outer_rate = 1,
};

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void check(weft_context *context, const uint8_t *object, size_t size) {
    train_trajectory found;
    train_reason reason = TRAIN_GOOD;
    weft_status status = train_trajectory_parse(context, &run, object, size, &found, &reason);
    require((status == WEFT_OK) == (reason == TRAIN_GOOD));
    if (status == WEFT_OK) {
        weft_writer writer;
        weft_writer_open(&writer, context);
        require(train_trajectory_encode(context, &found, &writer) == WEFT_OK);
        require(writer.size == size && memcmp(writer.data, object, size) == 0);
        weft_writer_close(&writer);
        train_trajectory_close(&found);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context *context = NULL;
    weft_hash hash;
    uint8_t *object = malloc(size + WEFT_HASH_BYTES);
    if (object == NULL || weft_context_create(NULL, &context) != WEFT_OK) {
        free(object);
        return 0;
    }
    if (size > 0) {
        memcpy(object, data, size);
    }
    require(weft_hash_compute(context, object, size, &hash) == WEFT_OK);
    memcpy(object + size, hash.bytes, WEFT_HASH_BYTES);
    check(context, object, size + WEFT_HASH_BYTES);
    weft_context_destroy(context);
    free(object);
    return 0;
}
