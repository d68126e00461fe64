/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_meeting.c: bytes as the objects that trainers leave each other in a store besides payloads: what
 * closes a round, what names the newest snapshot, and a snapshot. What is refused must leave the rank as it
 * was; what is accepted must be what such an object can say.
 *
 * The first byte says which: 1 to 3 as the kinds of these objects are numbered, with a front and a checksum
 * that hold around the rest; 4 to 6 the same kinds, all bytes as they are.
 */
#include "../../lib/loco/included.h"
#include "../../lib/loco/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ELEMENTS = 5, RANKS = 3, RANK = 1 };

static const char RUN[] = "f";

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void try_closed(weft_context *context, const weft_writer *object) {
    weft_manifest_payload payloads[RANKS];
    weft_manifest manifest = {.payloads = payloads};
    if (weft_manifest_parse(context, object->data, object->size, RUN, 0, RANKS, &manifest) == WEFT_OK) {
        require(manifest.round == 0 && manifest.ranks == RANKS && manifest.leader < RANKS);
        require(manifest.included > 0 && manifest.included <= RANKS);
    }
}

static void try_note(weft_context *context, const weft_writer *object) {
    weft_snapshot_note note;
    if (weft_snapshot_note_parse(context, object->data, object->size, RUN, &note) == WEFT_OK) {
        weft_writer again;
        weft_writer_open(&again, context);
        weft_snapshot_note_write(&note, RUN, &again);
        require(again.size == object->size && memcmp(again.data, object->data, again.size) == 0);
        weft_writer_close(&again);
    }
}

/* An exchange with nothing but the snapshot, which is beyond the first round only. */
static weft_status ended(void *opaque, weft_context *context, uint64_t round) {
    (void)opaque;
    (void)context;
    return round == 0 ? WEFT_NOT_FOUND : WEFT_MORE;
}

static weft_status give(void *opaque, weft_context *context, uint64_t most,
                        weft_loco_payload *snapshot_out) {
    const weft_writer *object = opaque;
    (void)context;
    *snapshot_out = (weft_loco_payload){object->data, object->size};
    return object->size <= most ? WEFT_OK : WEFT_MALFORMED;
}

static void try_snapshot(weft_context *context, weft_writer *object) {
    float weights[ELEMENTS] = {1, -2, 0, 0x1p-140f, 0.3f};
    const weft_loco_tensor tensor = {"w", weights, ELEMENTS};
    const weft_loco_exchange exchange = {
        .size = sizeof exchange, .ended = ended, .snapshot_get = give, .opaque = object};
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    weft_loco *loco = NULL;
    options.run = RUN;
    options.rank = RANK;
    options.ranks = RANKS;
    require(weft_loco_create(context, &options, &tensor, 1, &loco) == WEFT_OK);
    weft_digest before = weft_loco_digest(loco);
    weights[0] = 3;
    weft_status status = weft_loco_catch_up(loco, &exchange, NULL);
    if (status == WEFT_OK) {
        bool last = false;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            require(loco->included[rank].rounds <= loco->rounds);
            last |= loco->included[rank].rounds == loco->rounds;
        }
        require(last && loco->rounds > 0 && !loco->pending);
        /* of what it had trained, all is kept, or what was sent is done with */
        require(loco->residual[0] == (loco->included[RANK].rounds > 1 ? 0 : -2) ||
                loco->included[RANK].rounds == 1);
    } else {
        weft_digest after = weft_loco_digest(loco);
        require(loco->broken ||
                (loco->rounds == 0 && weights[0] == 3 && weft_digest_equal(&before, &after)));
    }
    weft_loco_destroy(loco);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context *context = NULL;
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    weft_writer object;
    if (size == 0 || data[0] < 1 || data[0] > 6) {
        return 0;
    }
    weft_manifest_kind kind = (weft_manifest_kind)((data[0] - 1) % 3 + 1);
    require(weft_context_create(&options, &context) == WEFT_OK);
    weft_writer_open(&object, context);
    if (data[0] <= 3) {
        weft_manifest_begin(&object, kind, RUN);
    }
    weft_writer_bytes(&object, data + 1, size - 1);
    if (data[0] <= 3) {
        weft_manifest_end(&object);
    }
    if (kind == WEFT_MANIFEST_ROUND) {
        try_closed(context, &object);
    } else if (kind == WEFT_MANIFEST_NEWEST) {
        try_note(context, &object);
    } else {
        try_snapshot(context, &object);
    }
    weft_writer_close(&object);
    weft_context_destroy(context);
    return 0;
}
