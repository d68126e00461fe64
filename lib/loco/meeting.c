/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting.c: a meeting is opened and closed; its keys and objects.
 */
#include "meeting.h"

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

static weft_status receive(weft_meeting *meeting, weft_context *context, const char *key, uint64_t size,
                           uint8_t *data) {
    const weft_store_get_request request = {.key = key, .length = size + 1, .buffer = data};
    weft_store_get_result result;
    weft_status status = weft_store_get(context, meeting->store, &request, &result);
    if (status == WEFT_OK && (result.size != size || result.received != size)) {
        status =
            weft_fail(context, WEFT_MALFORMED, "it has %" PRIu64 " bytes, not %" PRIu64, result.size, size);
        status = weft_meeting_unusable(context, status, key, AGAIN);
    }
    return status;
}

weft_status weft_meeting_get(weft_meeting *meeting, weft_context *context, const char *key, uint64_t size,
                             uint64_t most, const weft_hash *hash, uint8_t **data_out) {
    weft_hash got;
    if (size > most || size >= SIZE_MAX) {
        return weft_fail(context, WEFT_MALFORMED, "%s cannot have %" PRIu64 " bytes", key, size);
    }
    uint8_t *data = weft_allocate(meeting->context, (size_t)size + 1);
    if (data == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for %" PRIu64 " bytes of %s", size, key);
    }
    weft_status status = receive(meeting, context, key, size, data);
    if (status == WEFT_OK) {
        meeting->stats.received += size;
        status = weft_hash_compute(context, data, (size_t)size, &got);
    }
    if (status == WEFT_OK && !weft_hash_equal(&got, hash)) {
        status = weft_fail(context, WEFT_DIGEST_MISMATCH, "its bytes are not those that were agreed on");
        status = weft_meeting_unusable(context, status, key, AGAIN);
    }
    if (status != WEFT_OK) {
        weft_release(meeting->context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}

weft_status weft_meeting_get_small(weft_meeting *meeting, weft_context *context, const char *key,
                                   void *data, size_t capacity, size_t *size_out, weft_store_tag *tag_out) {
    const weft_store_get_request request = {.key = key, .length = capacity, .buffer = data};
    weft_store_get_result result;
    weft_status status = weft_store_get(context, meeting->store, &request, &result);
    if (status == WEFT_OK && result.size > capacity) {
        status = weft_fail(context, WEFT_MALFORMED, "%s has %" PRIu64 " bytes, which is too many", key,
                           result.size);
    }
    if (status == WEFT_OK) {
        *size_out = (size_t)result.received;
        *tag_out = result.tag;
    }
    return status;
}

weft_status weft_meeting_look(weft_meeting *meeting, weft_context *context, const char *key,
                              uint64_t *size_out) {
    weft_store_tag tag;
    return weft_store_head(context, meeting->store, key, size_out, &tag);
}

weft_status weft_meeting_put_once(weft_meeting *meeting, weft_context *context, const char *key,
                                  const void *data, size_t size) {
    uint64_t there;
    weft_status status =
        weft_store_put_bytes(context, meeting->store, key, data, size, WEFT_STORE_IF_ABSENT, NULL, NULL);
    if (status != WEFT_UNSUPPORTED) {
        return status;
    }
    status = weft_meeting_look(meeting, context, key, &there);
    if (status == WEFT_OK) {
        return WEFT_CONFLICT;
    }
    return status != WEFT_NOT_FOUND ? status
                                    : weft_store_put_bytes(context, meeting->store, key, data, size,
                                                           WEFT_STORE_ALWAYS, NULL, NULL);
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
    weft_release(meeting->context, meeting);
}

weft_loco_store_options weft_loco_store_defaults(void) {
    return (weft_loco_store_options){.run = "",
                                     .ranks = 1,
                                     .deadline_seconds = 60,
                                     .passing_seconds = 5,
                                     .least = 1,
                                     .poll_seconds = 0.2,
                                     .keep_rounds = 32,
                                     .snapshot_rounds = 16};
}

static bool is_run_good(const char *run) {
    char key[WEFT_STORE_KEY_MAX + 1];
    if (run == NULL || run[0] == 0 || strlen(run) > WEFT_LOCO_RUN_MAX || strchr(run, '/') != NULL) {
        return false;
    }
    int length = snprintf(key, sizeof key, "loco/%s/%" PRIu64 "/closed", run, UINT64_MAX);
    return length > 0 && length <= WEFT_STORE_KEY_MAX && weft_store_key_valid(key);
}

static weft_status check(weft_context *context, const weft_loco_store_options *options) {
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

static bool allocate(weft_meeting *meeting, uint32_t ranks) {
    weft_context *context = meeting->context;
    meeting->places = weft_allocate_zeroed(context, ranks, sizeof *meeting->places);
    meeting->missing = weft_allocate_zeroed(context, ranks, sizeof *meeting->missing);
    meeting->manifest.payloads = weft_allocate_zeroed(context, ranks, sizeof *meeting->manifest.payloads);
    return meeting->places != NULL && meeting->missing != NULL && meeting->manifest.payloads != NULL;
}

weft_status weft_loco_store_open(weft_context *context, weft_store *store,
                                 const weft_loco_store_options *options, weft_loco_exchange *exchange_out) {
    weft_context_clear(context);
    weft_status status = check(context, options);
    if (status != WEFT_OK) {
        return status;
    }
    weft_meeting *meeting = weft_allocate_zeroed(context, 1, sizeof *meeting);
    if (meeting == NULL) {
        return WEFT_NO_MEMORY;
    }
    meeting->context = context;
    meeting->store = store;
    meeting->options = *options;
    snprintf(meeting->run, sizeof meeting->run, "%s", options->run);
    meeting->options.run = meeting->run;
    meeting->began = -1;
    if (!allocate(meeting, options->ranks)) {
        close_meeting(meeting);
        return WEFT_NO_MEMORY;
    }
    *exchange_out = (weft_loco_exchange){.share = weft_meeting_share,
                                         .ended = weft_meeting_ended,
                                         .snapshot_due = weft_meeting_snapshot_due,
                                         .snapshot_put = weft_meeting_snapshot_put,
                                         .snapshot_get = weft_meeting_snapshot_get,
                                         .close = close_meeting,
                                         .opaque = meeting};
    return WEFT_OK;
}

weft_loco_store_stats weft_loco_store_describe(const weft_loco_exchange *exchange) {
    const weft_meeting *meeting = exchange->opaque;
    weft_loco_store_stats stats = meeting->stats;
    stats.leader = meeting->leader;
    return stats;
}
