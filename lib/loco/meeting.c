/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting.c: a meeting is opened and closed; its keys and objects.
 */
#include "meeting.h"
#include "../base/sized.h"

#include "../base/context.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char AGAIN[] = "start this rank again when there is a newer snapshot";

/* ---- keys ---- */

weft_meeting_key weft_meeting_payload_key(const weft_meeting *meeting, uint64_t round, uint32_t rank) {
    weft_meeting_key key;
    snprintf(key.text, sizeof key.text, "loco/%s/%" PRIu64 "/%" PRIu32, meeting->run, round, rank);
    return key;
}

weft_meeting_key weft_meeting_closed_key(const weft_meeting *meeting, uint64_t round) {
    weft_meeting_key key;
    snprintf(key.text, sizeof key.text, "loco/%s/%" PRIu64 "/closed", meeting->run, round);
    return key;
}

weft_meeting_key weft_meeting_snapshot_key(const weft_meeting *meeting, uint64_t rounds) {
    weft_meeting_key key;
    snprintf(key.text, sizeof key.text, "loco/%s/snapshot-%" PRIu64, meeting->run, rounds);
    return key;
}

weft_meeting_key weft_meeting_note_key(const weft_meeting *meeting) {
    weft_meeting_key key;
    snprintf(key.text, sizeof key.text, "loco/%s/snapshot", meeting->run);
    return key;
}

/* ---- objects ---- */

weft_status weft_meeting_unusable(weft_context *context, weft_status status, const char *key,
                                  const char *next) {
    return weft_fail(context, status, "%s cannot be used: %.511s; see who else writes to the store, and %s",
                     key, weft_context_error(context), next);
}

weft_status weft_meeting_put(const weft_meeting *meeting, weft_context *context,
                             const weft_message *message) {
    const weft_message_seal seal = {meeting->options.key, meeting->run, message->key};
    weft_message signed_one = *message;
    uint8_t signature[WEFT_SIGNATURE_BYTES];
    weft_hash hash;
    if (seal.key == NULL) {
        return weft_message_put(context, meeting->store, message);
    }
    weft_status status = weft_hash_compute(context, message->data, message->size, &hash);
    if (status == WEFT_OK) {
        status = weft_message_sign(context, &seal, "rank", hash.bytes, sizeof hash.bytes, signature);
    }
    signed_one.signature = signature;
    return status == WEFT_OK ? weft_message_put(context, meeting->store, &signed_one) : status;
}

weft_status weft_meeting_get(const weft_meeting *meeting, weft_context *context, const char *key,
                             uint64_t most, weft_context *memory, weft_received *received_out,
                             weft_hash *hash_out) {
    const weft_message_seal seal = {meeting->options.key, meeting->run, key};
    size_t behind = seal.key != NULL ? WEFT_SIGNATURE_BYTES : 0;
    weft_received received;
    weft_status status = weft_message_get(context, meeting->store, key, most + behind, memory, &received);
    if (status != WEFT_OK) {
        return status;
    }
    bool whole = received.size >= behind;
    received.size -= whole ? behind : 0;
    status = weft_hash_compute(context, received.data, received.size, hash_out);
    if (status == WEFT_OK && seal.key != NULL) {
        status = weft_message_check(context, &seal, "rank", hash_out->bytes, sizeof hash_out->bytes,
                                    whole ? received.data + received.size : NULL);
    }
    if (status != WEFT_OK) {
        weft_received_close(&received);
        return status;
    }
    *received_out = received;
    return WEFT_OK;
}

weft_status weft_meeting_get_named(weft_meeting *meeting, weft_context *context, const char *key,
                                   uint64_t size, uint64_t most, const weft_hash *hash,
                                   uint8_t **data_out) {
    weft_hash got;
    weft_received received;
    if (size > most || size >= SIZE_MAX / 2) {
        return weft_fail(context, WEFT_MALFORMED, "%s cannot have %" PRIu64 " bytes", key, size);
    }
    weft_status status = weft_meeting_get(meeting, context, key, size, meeting->context, &received, &got);
    if (status == WEFT_LIMIT_EXCEEDED) {
        return weft_meeting_unusable(context, WEFT_MALFORMED, key, AGAIN);
    }
    if (status != WEFT_OK) {
        return status;
    }
    meeting->stats.received += received.size;
    if (received.size != size) {
        status = weft_fail(context, WEFT_MALFORMED, "it has %zu bytes, not %" PRIu64, received.size, size);
    } else if (!weft_hash_equal(&got, hash)) {
        status = weft_fail(context, WEFT_DIGEST_MISMATCH, "its bytes are not those that were agreed on");
    }
    if (status != WEFT_OK) {
        weft_received_close(&received);
        return weft_meeting_unusable(context, status, key, AGAIN);
    }
    *data_out = received.data;
    return WEFT_OK;
}

/* ---- opening and closing ---- */

void weft_meeting_forget(weft_meeting *meeting) {
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        weft_release(meeting->context, meeting->places[rank].fetched);
        meeting->places[rank] = (weft_meeting_place){.data = NULL};
    }
    weft_release(meeting->context, meeting->snapshot);
    meeting->snapshot = NULL;
}

static void close_meeting(void *opaque) {
    weft_meeting *meeting = opaque;
    if (meeting->places != NULL) {
        weft_meeting_forget(meeting);
    }
    weft_release(meeting->context, meeting->places);
    weft_release(meeting->context, meeting->missing);
    weft_release(meeting->context, meeting->manifest.payloads);
    weft_context *context = meeting->context;
    weft_release(context, meeting);
    weft_context_destroy(context);
}

void weft_loco_store_defaults(weft_loco_store_options *options_out) {
    const weft_loco_store_options defaults = {.size = sizeof defaults,
                                              .run = "",
                                              .ranks = 1,
                                              .deadline_seconds = 60,
                                              .passing_seconds = 5,
                                              .least = 1,
                                              .poll_seconds = 0.2,
                                              .keep_rounds = 32,
                                              .snapshot_rounds = 16};
    weft_sized_write(&defaults, options_out, sizeof defaults);
}

static bool is_run_good(const char *run) {
    char key[WEFT_STORE_KEY_MAX + 1];
    if (run == NULL || run[0] == 0 || strlen(run) > WEFT_LOCO_RUN_MAX || strchr(run, '/') != NULL) {
        return false;
    }
    int length = snprintf(key, sizeof key, "loco/%s/%" PRIu64 "/closed", run, UINT64_MAX);
    return length > 0 && length <= WEFT_STORE_KEY_MAX && weft_store_key_valid(key);
}

static weft_status check_options(weft_context *context, const weft_loco_store_options *options) {
    if (!is_run_good(options->run)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a run that meets in a store needs a name of letters, digits and . _ ~ -, of at "
                         "most %d bytes",
                         WEFT_LOCO_RUN_MAX);
    }
    if (options->ranks == 0 || options->ranks > WEFT_LOCO_RANKS_MAX || options->rank >= options->ranks ||
        options->least == 0 || options->least > options->ranks) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "rank %" PRIu32 " of %" PRIu32 ", of which %" PRIu32
                         " are needed, is no place in a meeting",
                         options->rank, options->ranks, options->least);
    }
    if (!(options->deadline_seconds > 0) || !(options->passing_seconds > 0) ||
        !(options->poll_seconds > 0) || !(options->patience_seconds >= 0) ||
        options->snapshot_rounds == 0 || options->keep_rounds / 2 < options->snapshot_rounds) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "times must be above zero, and rounds be kept for two snapshots at least");
    }
    return WEFT_OK;
}

static bool allocate_ranks(weft_meeting *meeting, uint32_t ranks) {
    weft_context *context = meeting->context;
    meeting->places = weft_allocate_zeroed(context, ranks, sizeof *meeting->places);
    meeting->missing = weft_allocate_zeroed(context, ranks, sizeof *meeting->missing);
    meeting->manifest.payloads = weft_allocate_zeroed(context, ranks, sizeof *meeting->manifest.payloads);
    return meeting->places != NULL && meeting->missing != NULL && meeting->manifest.payloads != NULL;
}

weft_status weft_loco_store_open(weft_context *context, weft_store *store,
                                 const weft_loco_store_options *given, weft_loco_exchange *exchange_out) {
    weft_context_clear(context);
    weft_loco_store_options options;
    weft_status status =
        weft_sized_read(context, given, &options, sizeof options, "weft_loco_store_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, exchange_out, "weft_loco_exchange");
    }
    if (status == WEFT_OK) {
        status = check_options(context, &options);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_context *own = NULL;
    status = weft_context_derive(context, NULL, NULL, &own);
    if (status != WEFT_OK) {
        return status;
    }
    weft_meeting *meeting = weft_allocate_zeroed(own, 1, sizeof *meeting);
    if (meeting == NULL) {
        weft_context_destroy(own);
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for a meeting");
    }
    meeting->context = own;
    meeting->store = store;
    meeting->options = options;
    snprintf(meeting->run, sizeof meeting->run, "%s", options.run);
    meeting->options.run = meeting->run;
    meeting->began = -1;
    if (!allocate_ranks(meeting, options.ranks)) {
        close_meeting(meeting);
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for the ranks of a meeting");
    }
    const weft_loco_exchange exchange = {.size = sizeof exchange,
                                         .share = weft_meeting_share,
                                         .ended = weft_meeting_ended,
                                         .snapshot_due = weft_meeting_snapshot_due,
                                         .snapshot_put = weft_meeting_snapshot_put,
                                         .snapshot_get = weft_meeting_snapshot_get,
                                         .close = close_meeting,
                                         .opaque = meeting,
                                         .threads = true};
    weft_sized_write(&exchange, exchange_out, sizeof exchange);
    return WEFT_OK;
}

void weft_loco_store_describe(const weft_loco_exchange *exchange, weft_loco_store_stats *stats_out) {
    const weft_meeting *meeting = exchange->opaque;
    weft_loco_store_stats stats = meeting->stats;
    stats.leader = meeting->leader;
    weft_sized_write(&stats, stats_out, sizeof stats);
}
