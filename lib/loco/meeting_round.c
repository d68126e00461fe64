/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting_round.c: a round. Every rank puts its payload and waits for the manifest. One of them leads: it
 * looks for the others' payloads, checks them, and closes the round when it has all, or at the deadline.
 *
 * Whose turn it is follows from who led last: the other ranks come after it in cyclic order, each a while
 * after the one before, so a dead leader costs one delay and is not asked first again. That two of them
 * close one round is prevented by the store, which keeps the first manifest; on stores that cannot, only
 * rank 0 leads.
 */
#include "../base/clock.h"
#include "../base/context.h"
#include "meeting.h"

#include <inttypes.h>
#include <string.h>

/* Between looks, in seconds: ranks that run in step need not wait long for each other. */
static const double LEAST_PAUSE = 0.002;

/* One attempt to end a round. */
typedef struct gathering {
    weft_meeting *meeting;
    weft_context *context; /* for errors */
    uint64_t round;
    const weft_loco_payload *own;
    weft_hash own_hash;
    weft_loco_info own_info;
} gathering;

static double seconds_waited(const gathering *gathering) {
    return weft_clock_now() - gathering->meeting->began;
}

/* ---- the manifest of a round ---- */

/* WEFT_NOT_FOUND: the round is not closed. */
static weft_status read_manifest(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    weft_received received;
    weft_hash hash;
    weft_meeting_key key = weft_meeting_closed_key(meeting, gathering->round);
    weft_status status =
        weft_meeting_get(meeting, gathering->context, key.text, weft_manifest_most(meeting->options.ranks),
                         gathering->context, &received, &hash);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_manifest_parse(gathering->context, received.data, received.size, meeting->run,
                                 gathering->round, meeting->options.ranks, &meeting->manifest);
    weft_received_close(&received);
    return status == WEFT_OK
               ? status
               : weft_meeting_unusable(gathering->context, status, key.text,
                                       "start this rank again when there is a newer snapshot; if no "
                                       "rank has read it, remove it, and the round is closed anew");
}

/* Fetches the payload that the manifest names, unless it is here already. */
static weft_status fetch_named(gathering *gathering, uint32_t rank) {
    weft_meeting *meeting = gathering->meeting;
    const weft_manifest_payload *named = &meeting->manifest.payloads[rank];
    weft_meeting_place *place = &meeting->places[rank];
    if (place->data != NULL && place->size == named->bytes && weft_hash_equal(&place->hash, &named->hash)) {
        return WEFT_OK;
    }
    weft_meeting_key key = weft_meeting_payload_key(meeting, gathering->round, rank);
    uint64_t most = weft_loco_payload_most(gathering->own_info.elements);
    uint8_t *data = NULL;
    weft_status status = weft_meeting_get_named(meeting, gathering->context, key.text, named->bytes, most,
                                                &named->hash, &data);
    if (status != WEFT_OK) {
        return status;
    }
    weft_release(meeting->context, place->fetched);
    *place = (weft_meeting_place){
        .data = data, .fetched = data, .size = (size_t)named->bytes, .hash = named->hash};
    return WEFT_OK;
}

static bool is_own(const gathering *gathering, const weft_manifest_payload *named) {
    return named->included && named->bytes == gathering->own->size &&
           weft_hash_equal(&named->hash, &gathering->own_hash);
}

/* A payload under this rank's number that is not the one it has now, because an earlier life of it has put
 * another, is like anybody else's. */
static weft_status take_named(gathering *gathering, uint32_t rank, weft_loco_payload *payload) {
    weft_meeting *meeting = gathering->meeting;
    const weft_manifest_payload *named = &meeting->manifest.payloads[rank];
    *payload = (weft_loco_payload){NULL, 0};
    if (!named->included) {
        return WEFT_OK;
    }
    if (rank == meeting->options.rank && is_own(gathering, named)) {
        *payload = *gathering->own;
        return WEFT_OK;
    }
    weft_status status = fetch_named(gathering, rank);
    *payload = (weft_loco_payload){meeting->places[rank].data, meeting->places[rank].size};
    return status;
}

/* A payload that is named and gone was removed with its round, if that was long ago. */
static weft_status explain_loss(gathering *gathering, weft_status status) {
    weft_failure failure = weft_failure_keep(gathering->context, status);
    weft_status why = weft_meeting_why_open(gathering->meeting, gathering->context, gathering->round);
    return why == WEFT_NOT_FOUND ? why : weft_failure_tell(gathering->context, &failure);
}

/* Everything that the manifest names, and nothing else. */
static weft_status obey_manifest(gathering *gathering, weft_loco_payload *all) {
    weft_meeting *meeting = gathering->meeting;
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        weft_status status = take_named(gathering, rank, &all[rank]);
        if (status != WEFT_OK) {
            return status == WEFT_NOT_FOUND ? explain_loss(gathering, status) : status;
        }
    }
    meeting->leader = meeting->manifest.leader;
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        meeting->missing[rank] = !meeting->manifest.payloads[rank].included;
    }
    meeting->looked_back = false;
    meeting->began = -1;
    meeting->stats.left_out += !is_own(gathering, &meeting->manifest.payloads[meeting->options.rank]);
    return WEFT_OK;
}

/* ---- leading ---- */

static bool same_rules(const weft_loco_info *a, const weft_loco_info *b) {
    return strcmp(a->run, b->run) == 0 && a->round == b->round && a->ranks == b->ranks &&
           a->elements == b->elements && a->significant == b->significant && a->open == b->open &&
           a->raw == b->raw && a->average == b->average && a->rate == b->rate && a->momentum == b->momentum;
}

/* Whether a payload can be named: it is whole, in its place, made by our rules and upon our consensus. */
static void judge_payload(gathering *gathering, uint32_t rank, const uint8_t *data, size_t size,
                          weft_meeting_place *place) {
    weft_loco_info info = {.size = sizeof info};
    const weft_loco_payload payload = {data, size};
    bool intact = weft_loco_inspect(gathering->context, &payload, &info) == WEFT_OK && info.rank == rank &&
                  same_rules(&info, &gathering->own_info);
    place->apart = intact && !weft_digest_equal(&info.base, &gathering->own_info.base);
    place->refused = !intact || place->apart;
}

/* Looks for a rank's payload. That it is not there, of no use, or cannot be read now, is no failure. */
static weft_status look_for_payload(gathering *gathering, uint32_t rank) {
    weft_meeting *meeting = gathering->meeting;
    weft_meeting_place *place = &meeting->places[rank];
    weft_meeting_key key = weft_meeting_payload_key(meeting, gathering->round, rank);
    uint64_t most = weft_loco_payload_most(gathering->own_info.elements);
    weft_received received;
    weft_hash hash;
    weft_status status =
        weft_meeting_get(meeting, gathering->context, key.text, most, meeting->context, &received, &hash);
    if (status == WEFT_OK) {
        meeting->stats.received += received.size;
        judge_payload(gathering, rank, received.data, received.size, place);
        if (place->refused) {
            weft_received_close(&received);
        } else {
            *place = (weft_meeting_place){
                .data = received.data, .fetched = received.data, .size = received.size, .hash = hash};
        }
    }
    place->refused |= status == WEFT_LIMIT_EXCEEDED || status == WEFT_SIGNATURE_MISMATCH;
    meeting->stats.refused += place->refused;
    return status == WEFT_NO_MEMORY || status == WEFT_CANCELLED ? status : WEFT_OK;
}

/* Of those who were not in the last round, whoever has put a payload since is slow, and not gone: it is
 * waited for like the others. */
static void look_back(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    if (meeting->looked_back) {
        return;
    }
    meeting->looked_back = true;
    for (uint32_t rank = 0; rank < meeting->options.ranks && gathering->round > 0; rank++) {
        weft_meeting_key key = weft_meeting_payload_key(meeting, gathering->round - 1, rank);
        uint64_t size;
        if (meeting->missing[rank] &&
            weft_store_head(gathering->context, meeting->store, key.text, &size, NULL) == WEFT_OK) {
            meeting->missing[rank] = false;
        }
    }
}

/* Whether the round can be closed with what is here. */
static bool is_complete(const gathering *gathering) {
    const weft_meeting *meeting = gathering->meeting;
    double seconds = seconds_waited(gathering);
    uint32_t here = 0;
    bool expected = false;
    bool absent = false;
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        const weft_meeting_place *place = &meeting->places[rank];
        here += place->data != NULL;
        if (place->data == NULL && !place->refused) {
            expected |= !meeting->missing[rank];
            absent |= meeting->missing[rank];
        }
    }
    if (here < meeting->options.least) {
        return false;
    }
    return seconds >= meeting->options.deadline_seconds ||
           (!expected && (!absent || seconds >= meeting->options.passing_seconds));
}

/* A leader whom more ranks contradict than agree with is itself what is wrong, and must not decide. */
static weft_status check_majority(const gathering *gathering) {
    const weft_meeting *meeting = gathering->meeting;
    uint32_t here = 0;
    uint32_t apart = 0;
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        here += meeting->places[rank].data != NULL;
        apart += meeting->places[rank].apart;
    }
    if (apart <= here) {
        return WEFT_OK;
    }
    return weft_fail(gathering->context, WEFT_BASE_MISMATCH,
                     "the ranks have come apart: in round %" PRIu64 " %" PRIu32
                     " of them hold another consensus than rank %" PRIu32
                     "; start it again from a state of "
                     "the same run",
                     gathering->round, apart, meeting->options.rank);
}

static void fill_manifest(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    weft_manifest *manifest = &meeting->manifest;
    manifest->round = gathering->round;
    manifest->leader = meeting->options.rank;
    manifest->ranks = meeting->options.ranks;
    manifest->included = 0;
    for (uint32_t rank = 0; rank < manifest->ranks; rank++) {
        const weft_meeting_place *place = &meeting->places[rank];
        manifest->payloads[rank] = (weft_manifest_payload){place->data != NULL, place->size, place->hash};
        manifest->included += place->data != NULL;
    }
}

/* WEFT_CONFLICT: somebody else has closed the round. WEFT_UNSUPPORTED: the store knows no conditions, and
 * this rank may not decide without. */
static weft_status close_round(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    weft_status status = weft_meeting_why_open(meeting, gathering->context, gathering->round);
    if (status != WEFT_MORE) {
        return status;
    }
    status = check_majority(gathering);
    if (status != WEFT_OK) {
        return status;
    }
    fill_manifest(gathering);
    weft_writer writer;
    weft_writer_open(&writer, meeting->context);
    weft_manifest_write(&meeting->manifest, meeting->run, &writer);
    weft_meeting_key key = weft_meeting_closed_key(meeting, gathering->round);
    const weft_message message = {
        .key = key.text,
        .data = writer.data,
        .size = writer.size,
        .condition = WEFT_STORE_IF_ABSENT,
        .alone = meeting->options.rank == 0,
    };
    status = weft_writer_failed(&writer)
                 ? weft_fail(gathering->context, WEFT_NO_MEMORY, "no memory for a manifest")
                 : weft_meeting_put(meeting, gathering->context, &message);
    weft_writer_close(&writer);
    meeting->unconditional |= status == WEFT_UNSUPPORTED;
    meeting->stats.led += status == WEFT_OK;
    return status;
}

/* WEFT_MORE: not closed yet. */
static weft_status lead_round(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    weft_status status = WEFT_OK;
    look_back(gathering);
    for (uint32_t rank = 0; rank < meeting->options.ranks && status == WEFT_OK; rank++) {
        if (meeting->places[rank].data == NULL && !meeting->places[rank].refused) {
            status = look_for_payload(gathering, rank);
        }
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = is_complete(gathering) ? close_round(gathering) : WEFT_MORE;
    return status == WEFT_CONFLICT || status == WEFT_UNSUPPORTED ? WEFT_MORE : status;
}

/* Seconds that this rank leaves the round to those whose turn is before its own. */
static double turn_seconds(const weft_meeting *meeting) {
    uint32_t ranks = meeting->options.ranks;
    uint32_t first = meeting->unconditional ? 0 : meeting->leader;
    uint32_t turn = (meeting->options.rank + ranks - first) % ranks;
    return turn == 0 ? 0 : meeting->options.deadline_seconds + turn * meeting->options.passing_seconds;
}

/* Where only rank 0 may close a round, the others cannot wait for it for ever. */
static weft_status check_leader(const gathering *gathering) {
    const weft_meeting *meeting = gathering->meeting;
    const weft_loco_store_options *options = &meeting->options;
    double most = 2 * options->deadline_seconds + options->ranks * options->passing_seconds;
    if (!meeting->unconditional || options->rank == 0 || seconds_waited(gathering) < most) {
        return WEFT_OK;
    }
    return weft_fail(gathering->context, WEFT_REMOTE_FAILED,
                     "rank 0 has not closed round %" PRIu64 ", and on a store without conditional puts no "
                     "other rank can; see whether it runs, and try again",
                     gathering->round);
}

/* The first of the ranks whose payload is not here. */
static uint32_t first_absent(const weft_meeting *meeting) {
    uint32_t rank = 0;
    while (rank + 1 < meeting->options.ranks && meeting->places[rank].data != NULL) {
        rank++;
    }
    return rank;
}

/* Payloads without which a round is not closed are not waited for for ever either. */
static weft_status check_patience(const gathering *gathering) {
    const weft_meeting *meeting = gathering->meeting;
    const weft_loco_store_options *options = &meeting->options;
    double seconds = seconds_waited(gathering);
    uint32_t here = 0;
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        here += meeting->places[rank].data != NULL;
    }
    bool leading = seconds >= turn_seconds(meeting);
    if (options->patience_seconds == 0 || seconds < options->patience_seconds || !leading ||
        here >= options->least) {
        return WEFT_OK;
    }
    uint32_t absent = first_absent(meeting);
    return weft_fail(gathering->context, WEFT_REMOTE_FAILED,
                     "round %" PRIu64 " needs %" PRIu32 " ranks, and after %.0f s %" PRIu32
                     " are there: rank %" PRIu32 " %s; see whether it runs, and start this one again",
                     gathering->round, options->least, seconds, here, absent,
                     meeting->places[absent].refused ? "has put what cannot be used" : "has not come");
}

/* ---- the parts of a round ---- */

static weft_status check_own(const gathering *gathering) {
    const weft_loco_store_options *options = &gathering->meeting->options;
    const weft_loco_info *info = &gathering->own_info;
    return info->rank == options->rank && info->ranks == options->ranks &&
                   info->round == gathering->round && strcmp(info->run, options->run) == 0
               ? WEFT_OK
               : weft_fail(gathering->context, WEFT_INVALID_ARGUMENT,
                           "the payload is of rank %" PRIu32 " of %" PRIu32
                           " in run '%s', and the meeting was opened for rank %" PRIu32 " of %" PRIu32
                           " in run '%s'",
                           info->rank, info->ranks, info->run, options->rank, options->ranks, options->run);
}

/* Asked again after a failure, a rank has still come to the round when it first did. */
static weft_status begin_gathering(weft_meeting *meeting, weft_context *context, uint64_t round,
                                   const weft_loco_payload *own, gathering *gathering_out) {
    weft_meeting_forget(meeting);
    if (meeting->began < 0 || meeting->round != round) {
        meeting->began = weft_clock_now();
        meeting->round = round;
    }
    gathering gathering = {.meeting = meeting, .context = context, .round = round, .own = own};
    weft_status status = weft_hash_compute(context, own->data, own->size, &gathering.own_hash);
    if (status == WEFT_OK) {
        gathering.own_info.size = sizeof gathering.own_info;
        status = weft_loco_inspect(context, own, &gathering.own_info);
    }
    if (status == WEFT_OK) {
        status = check_own(&gathering);
    }
    if (status == WEFT_OK) {
        *gathering_out = gathering;
    }
    return status;
}

/* Puts this rank's payload. One that is there already is left: the same one, put before a failure, or
 * another of an earlier life, which then stands for this rank. */
static weft_status put_own_payload(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    uint32_t rank = meeting->options.rank;
    const weft_loco_payload *own = gathering->own;
    weft_meeting_key key = weft_meeting_payload_key(meeting, gathering->round, rank);
    const weft_message message = {
        .key = key.text,
        .data = own->data,
        .size = own->size,
        .condition = WEFT_STORE_IF_ABSENT,
        .alone = true,
    };
    weft_status status = weft_meeting_put(meeting, gathering->context, &message);
    if (status == WEFT_CONFLICT) {
        return WEFT_OK;
    }
    if (status != WEFT_OK) {
        return status;
    }
    meeting->stats.sent += own->size;
    meeting->places[rank] =
        (weft_meeting_place){.data = own->data, .size = own->size, .hash = gathering->own_hash};
    return WEFT_OK;
}

static weft_status wait_until_closed(gathering *gathering) {
    weft_meeting *meeting = gathering->meeting;
    for (;;) {
        weft_status status = read_manifest(gathering);
        if (status != WEFT_NOT_FOUND) {
            return status;
        }
        status = WEFT_MORE;
        if (seconds_waited(gathering) >= turn_seconds(meeting)) {
            status = lead_round(gathering);
        }
        if (status != WEFT_MORE) {
            return status;
        }
        status = check_leader(gathering);
        if (status == WEFT_OK) {
            status = check_patience(gathering);
        }
        if (status == WEFT_OK) {
            status = weft_clock_sleep(
                gathering->context,
                weft_clock_pause(seconds_waited(gathering), LEAST_PAUSE, meeting->options.poll_seconds));
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
}

static weft_status take_part(gathering *gathering) {
    weft_status status = weft_meeting_why_open(gathering->meeting, gathering->context, gathering->round);
    if (status != WEFT_MORE) {
        return status;
    }
    status = put_own_payload(gathering);
    return status == WEFT_OK ? wait_until_closed(gathering) : status;
}

weft_status weft_meeting_share(void *opaque, weft_context *context, uint64_t round,
                               const weft_loco_payload *own, weft_loco_payload *all, size_t ranks) {
    weft_meeting *meeting = opaque;
    gathering gathering;
    if (ranks != meeting->options.ranks) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%zu ranks were to meet in the store, but it was opened for %" PRIu32, ranks,
                         meeting->options.ranks);
    }
    weft_status status = begin_gathering(meeting, context, round, own, &gathering);
    if (status == WEFT_OK) {
        status = read_manifest(&gathering);
    }
    if (status == WEFT_NOT_FOUND) {
        status = take_part(&gathering);
    }
    return status == WEFT_OK ? obey_manifest(&gathering, all) : status;
}
