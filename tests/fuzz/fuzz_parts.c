/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_parts.c: bytes as each of the messages between the parts of a version, inside a good seal and as a
 * seal themselves. What is accepted must hold what the parts rely on, and must be written as it was read.
 */
#include "../../lib/base/context.h"
#include "../../lib/sync/parts/parts_message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BUCKETS = 20, TENSORS = 3 };

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void try_call(weft_context *context, const weft_writer *bytes, weft_writer *again) {
    weft_call call;
    if (weft_call_read(context, bytes->data, bytes->size, &call) == WEFT_OK) {
        weft_call_write(&call, again);
        require(call.kind >= WEFT_CALL_JOIN && call.kind <= WEFT_CALL_CLOSED);
    }
}

static void try_holding(weft_context *context, const weft_writer *bytes) {
    weft_part_holding holding;
    if (weft_part_holding_read(context, bytes->data, bytes->size, BUCKETS, &holding) == WEFT_OK) {
        require(strlen(holding.member) == WEFT_PART_NAME - 1);
        weft_part_holding_close(&holding, context);
    }
}

static void try_roll(weft_context *context, const weft_writer *bytes) {
    weft_part_roll roll;
    if (weft_part_roll_read(context, bytes->data, bytes->size, BUCKETS, &roll) == WEFT_OK) {
        for (size_t i = 0; i < BUCKETS; i++) {
            require(roll.owners[i] < roll.member_count);
        }
        weft_part_roll_close(&roll, context);
    }
}

static void try_manifest(weft_context *context, const weft_writer *bytes) {
    weft_part_manifest manifest;
    if (weft_part_manifest_read(context, bytes->data, bytes->size, BUCKETS, TENSORS, &manifest) ==
        WEFT_OK) {
        require(manifest.frame_count <= BUCKETS);
        require(manifest.frame_count == 0 || weft_store_key_valid(manifest.piece.key));
        weft_part_manifest_close(&manifest, context);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context *context = NULL;
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    const weft_message_seal seal = {.run = "run", .where = "where"};
    weft_writer bytes;
    weft_writer again;
    size_t inside;
    require(weft_context_create(&options, &context) == WEFT_OK);
    weft_writer_open(&bytes, context);
    weft_writer_open(&again, context);
    weft_writer_bytes(&bytes, data, size);
    require(weft_message_open(context, &seal, data, size, &inside) != WEFT_OK || inside < size);
    require(weft_message_close(context, &seal, &bytes) == WEFT_OK);
    require(weft_message_open(context, &seal, bytes.data, bytes.size, &inside) == WEFT_OK);
    require(inside == size);
    bytes.size = inside;
    try_call(context, &bytes, &again);
    require(again.size <= WEFT_CALL_BYTES);
    try_holding(context, &bytes);
    try_roll(context, &bytes);
    try_manifest(context, &bytes);
    weft_writer_close(&again);
    weft_writer_close(&bytes);
    weft_context_destroy(context);
    return 0;
}
