/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange_store.c: trainers that meet in a store, and so need reach nothing else than it.
 *
 *     loco/RUN/ROUND/RANK      a payload: put once, never changed
 *     loco/RUN/ROUND/closed    the manifest of the round
 *     loco/RUN/snapshot-N      the consensus after N rounds, for who comes back after a long time
 *     loco/RUN/snapshot        names the newest of them
 *
 * Every rank puts its payload and waits for the manifest. One of them leads: it looks for the others'
 * payloads, checks them, and closes the round when it has all, or at the deadline. Whose turn it is follows
 * from who led last: the other ranks come after it in cyclic order, each a while after the one before, so a
 * dead leader costs one delay and is not asked first again. That two of them close one round is prevented
 * by the store, which keeps the first manifest; on stores that cannot, only rank 0 leads.
 */
#include "../base/clock.h"
#include "../base/context.h"
#include "manifest.h"
#include "payload.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Between the first looks, in seconds: ranks that run in step need not wait long for each other. */
#define FIRST_PAUSE 0.002

/* What is known of a rank's payload in the round that is open. */
typedef struct place {
    const uint8_t *data; /* checked; NULL: not here yet */
    uint8_t *fetched;    /* the same, unless it is this rank's own */
    size_t size;
    weft_hash hash;
    bool refused; /* what lies there cannot be used */
} place;

typedef struct meeting {
    weft_context *context; /* whose memory it lives in */
    weft_store *store;
    weft_loco_store_options options;
    char run[WEFT_LOCO_RUN_MAX + 1];
    place *places;
    weft_manifest manifest; /* of the last round that was closed */
    uint32_t leader;        /* who led it */
    bool *missing;          /* who was not in it, and is not waited for long */
    uint64_t snapshot;      /* rounds of the newest one that is known; 0: none */
    uint8_t *snapshot_data;
    weft_loco_store_stats stats;
} meeting;

/* One attempt to end a round. */
typedef struct gathering {
    meeting *meeting;
    weft_context *context; /* for errors */
    uint64_t round;
    const weft_loco_payload *own;
    weft_hash own_hash;
    weft_loco_info own_info;
    double began;
} gathering;

/* ---- keys ---- */

typedef struct key_text {
    char text[WEFT_STORE_KEY_MAX + 1];
} key_text;

static key_text payload_key(const meeting *meeting, uint64_t round, uint32_t rank) {
    key_text key;
    snprintf(key.text, sizeof key.text, "loco/%s/%" PRIu64 "/%" PRIu32, meeting->run, round, rank);
    return key;
}

static key_text closed_key(const meeting *meeting, uint64_t round) {
    key_text key;
    snprintf(key.text, sizeof key.text, "loco/%s/%" PRIu64 "/closed", meeting->run, round);
    return key;
}

static key_text snapshot_key(const meeting *meeting, uint64_t rounds) {
    key_text key;
    snprintf(key.text, sizeof key.text, "loco/%s/snapshot-%" PRIu64, meeting->run, rounds);
    return key;
}

static key_text note_key(const meeting *meeting) {
    key_text key;
    snprintf(key.text, sizeof key.text, "loco/%s/snapshot", meeting->run);
    return key;
}

/* ---- objects ---- */

/* A whole object of exactly `size` bytes, in memory of the meeting's. */
static weft_status get_exactly(meeting *meeting, weft_context *context, const char *key, uint64_t size,
                               uint8_t **data_out) {
    uint8_t *data = size < SIZE_MAX ? weft_allocate(meeting->context, (size_t)size + 1) : NULL;
    if (data == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for %" PRIu64 " bytes of %s", size, key);
    }
    const weft_store_get_request request = {.key = key, .length = size + 1, .buffer = data};
    weft_store_get_result result;
    weft_status status = weft_store_get(context, meeting->store, &request, &result);
    if (status == WEFT_OK && (result.size != size || result.received != size)) {
        status = weft_fail(context, WEFT_MALFORMED, "%s has %" PRIu64 " bytes, not %" PRIu64, key,
                           result.size, size);
    }
    if (status != WEFT_OK) {
        weft_release(meeting->context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}

/* A small object of at most `capacity` bytes. */
static weft_status get_small(meeting *meeting, weft_context *context, const char *key, void *data,
                             size_t capacity, size_t *size_out) {
    const weft_store_get_request request = {.key = key, .length = capacity, .buffer = data};
    weft_store_get_result result;
    weft_status status = weft_store_get(context, meeting->store, &request, &result);
    if (status == WEFT_OK && result.size > capacity) {
        status = weft_fail(context, WEFT_MALFORMED, "%s has %" PRIu64 " bytes, which is too many", key,
                           result.size);
    }
    if (status == WEFT_OK) {
        *size_out = (size_t)result.received;
    }
    return status;
}

static weft_store_condition once(const meeting *meeting) {
    return weft_store_conditional(meeting->store) ? WEFT_STORE_IF_ABSENT : WEFT_STORE_ALWAYS;
}

/* ---- the manifest of a round ---- */

static weft_status read_manifest(gathering *gathering, weft_manifest *manifest) {
    meeting *meeting = gathering->meeting;
    size_t capacity = 256 + (size_t)44 * meeting->options.ranks;
    uint8_t *data = weft_allocate(meeting->context, capacity);
    size_t size;
    if (data == NULL) {
        return weft_fail(gathering->context, WEFT_NO_MEMORY, "no memory for a manifest");
    }
    key_text key = closed_key(meeting, gathering->round);
    weft_status status = get_small(meeting, gathering->context, key.text, data, capacity, &size);
    if (status == WEFT_OK) {
        status = weft_manifest_parse(gathering->context, data, size, meeting->run, gathering->round,
                                     meeting->options.ranks, manifest);
    }
    weft_release(meeting->context, data);
    return status;
}

static void forget_places(meeting *meeting) {
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        weft_release(meeting->context, meeting->places[rank].fetched);
        meeting->places[rank] = (place){0};
    }
}

/* Fetches the payload that the manifest names, unless it is here already. */
static weft_status fetch_named(gathering *gathering, uint32_t rank) {
    meeting *meeting = gathering->meeting;
    const weft_manifest_payload *named = &meeting->manifest.payloads[rank];
    place *place = &meeting->places[rank];
    if (place->data != NULL && place->size == named->bytes && weft_hash_equal(&place->hash, &named->hash)) {
        return WEFT_OK;
    }
    key_text key = payload_key(meeting, gathering->round, rank);
    uint8_t *data = NULL;
    weft_status status = get_exactly(meeting, gathering->context, key.text, named->bytes, &data);
    weft_hash hash;
    if (status == WEFT_OK) {
        status = weft_hash_compute(gathering->context, data, (size_t)named->bytes, &hash);
    }
    if (status == WEFT_OK && !weft_hash_equal(&hash, &named->hash)) {
        status = weft_fail(gathering->context, WEFT_DIGEST_MISMATCH,
                           "%s is not what the round was closed with; this round cannot be ended here",
                           key.text);
    }
    if (status != WEFT_OK) {
        weft_release(meeting->context, data);
        return status;
    }
    weft_release(meeting->context, place->fetched);
    *place = (struct place){.data = data, .fetched = data, .size = (size_t)named->bytes, .hash = hash};
    meeting->stats.received += named->bytes;
    return WEFT_OK;
}

static bool is_own(const gathering *gathering, const weft_manifest_payload *named) {
    return named->bytes == gathering->own->size && weft_hash_equal(&named->hash, &gathering->own_hash);
}

/* Everything that the manifest names, into `all`. A payload under this rank's number that is not the one it
 * has now, because an earlier life of it has put another, is like anybody else's. */
static weft_status obey(gathering *gathering, weft_loco_payload *all) {
    meeting *meeting = gathering->meeting;
    weft_status status = WEFT_OK;
    for (uint32_t rank = 0; rank < meeting->options.ranks && status == WEFT_OK; rank++) {
        const weft_manifest_payload *named = &meeting->manifest.payloads[rank];
        all[rank] = (weft_loco_payload){0};
        if (!named->included) {
            continue;
        }
        if (rank == meeting->options.rank && is_own(gathering, named)) {
            all[rank] = *gathering->own;
            continue;
        }
        status = fetch_named(gathering, rank);
        all[rank] = (weft_loco_payload){meeting->places[rank].data, meeting->places[rank].size};
    }
    if (status != WEFT_OK) {
        return status;
    }
    meeting->leader = meeting->manifest.leader;
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        meeting->missing[rank] = !meeting->manifest.payloads[rank].included;
    }
    const weft_manifest_payload *named = &meeting->manifest.payloads[meeting->options.rank];
    meeting->stats.left_out += !named->included || !is_own(gathering, named);
    return WEFT_OK;
}

/* ---- leading ---- */

/* The payload can be named: it is whole, of this run, round and rank, and upon our consensus. */
static bool usable(gathering *gathering, uint32_t rank, const uint8_t *data, size_t size) {
    weft_loco_info info;
    const weft_loco_payload payload = {data, size};
    return weft_loco_inspect(gathering->context, &payload, &info) == WEFT_OK &&
           strcmp(info.run, gathering->meeting->run) == 0 && info.round == gathering->round &&
           info.rank == rank && info.ranks == gathering->meeting->options.ranks &&
           info.elements == gathering->own_info.elements &&
           memcmp(&info.base, &gathering->own_info.base, sizeof info.base) == 0;
}

/* Looks for a rank's payload. That it is not there, or of no use, is no failure. */
static weft_status look(gathering *gathering, uint32_t rank) {
    meeting *meeting = gathering->meeting;
    place *place = &meeting->places[rank];
    key_text key = payload_key(meeting, gathering->round, rank);
    uint64_t size;
    weft_store_tag tag;
    weft_status status = weft_store_head(gathering->context, meeting->store, key.text, &size, &tag);
    if (status == WEFT_NOT_FOUND) {
        return WEFT_OK;
    }
    if (status == WEFT_OK && size > weft_loco_payload_most(gathering->own_info.elements)) {
        place->refused = true;
        meeting->stats.refused++;
        return WEFT_OK;
    }
    uint8_t *data = NULL;
    if (status == WEFT_OK) {
        status = get_exactly(meeting, gathering->context, key.text, size, &data);
    }
    weft_hash hash;
    if (status == WEFT_OK) {
        meeting->stats.received += size;
        status = weft_hash_compute(gathering->context, data, (size_t)size, &hash);
    }
    if (status == WEFT_OK && !usable(gathering, rank, data, (size_t)size)) {
        place->refused = true;
        meeting->stats.refused++;
    }
    if (status != WEFT_OK || place->refused) {
        weft_release(meeting->context, data);
        return status;
    }
    *place = (struct place){.data = data, .fetched = data, .size = (size_t)size, .hash = hash};
    return WEFT_OK;
}

/* Whether the round can be closed with what is here. */
static bool complete(const gathering *gathering, double waited) {
    const meeting *meeting = gathering->meeting;
    uint32_t here = 0;
    bool expected = false;
    bool absent = false;
    for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
        const place *place = &meeting->places[rank];
        here += place->data != NULL;
        if (place->data == NULL && !place->refused) {
            expected |= !meeting->missing[rank];
            absent |= meeting->missing[rank];
        }
    }
    if (here < meeting->options.least) {
        return false;
    }
    return waited >= meeting->options.deadline_seconds ||
           (!expected && (!absent || waited >= meeting->options.passing_seconds));
}

/* Puts the manifest. WEFT_CONFLICT: somebody else has closed the round. */
static weft_status close_round(gathering *gathering) {
    meeting *meeting = gathering->meeting;
    weft_manifest *manifest = &meeting->manifest;
    manifest->round = gathering->round;
    manifest->leader = meeting->options.rank;
    manifest->ranks = meeting->options.ranks;
    manifest->included = 0;
    for (uint32_t rank = 0; rank < manifest->ranks; rank++) {
        const place *place = &meeting->places[rank];
        manifest->payloads[rank] = (weft_manifest_payload){place->data != NULL, place->size, place->hash};
        manifest->included += place->data != NULL;
    }
    weft_writer writer;
    weft_writer_open(&writer, meeting->context);
    weft_manifest_write(manifest, meeting->run, &writer);
    key_text key = closed_key(meeting, gathering->round);
    weft_status status = weft_writer_failed(&writer)
                             ? weft_fail(gathering->context, WEFT_NO_MEMORY, "no memory for a manifest")
                             : weft_store_put_bytes(gathering->context, meeting->store, key.text,
                                                    writer.data, writer.size, once(meeting), NULL, NULL);
    weft_writer_close(&writer);
    meeting->stats.led += status == WEFT_OK;
    return status;
}

/* How long this rank leaves the round to those whose turn is before its own; below zero: it never leads. */
static double turn_seconds(const meeting *meeting) {
    if (!weft_store_conditional(meeting->store)) {
        return meeting->options.rank == 0 ? 0 : -1;
    }
    uint32_t ranks = meeting->options.ranks;
    uint32_t turn = (meeting->options.rank + ranks - meeting->leader) % ranks;
    return turn == 0 ? 0 : meeting->options.deadline_seconds + turn * meeting->options.passing_seconds;
}

/* WEFT_MORE: not closed yet. */
static weft_status lead(gathering *gathering) {
    meeting *meeting = gathering->meeting;
    weft_status status = WEFT_OK;
    for (uint32_t rank = 0; rank < meeting->options.ranks && status == WEFT_OK; rank++) {
        if (meeting->places[rank].data == NULL && !meeting->places[rank].refused) {
            status = look(gathering, rank);
        }
    }
    if (status != WEFT_OK) {
        return status;
    }
    return complete(gathering, weft_clock_now() - gathering->began) ? close_round(gathering) : WEFT_MORE;
}

/* ---- the parts of a round ---- */

static weft_status begin(meeting *meeting, weft_context *context, uint64_t round,
                         const weft_loco_payload *own, gathering *gathering_out) {
    forget_places(meeting);
    gathering gathering = {
        .meeting = meeting, .context = context, .round = round, .own = own, .began = weft_clock_now()};
    weft_status status = weft_hash_compute(context, own->data, own->size, &gathering.own_hash);
    if (status == WEFT_OK) {
        status = weft_loco_inspect(context, own, &gathering.own_info);
    }
    if (status == WEFT_OK) {
        *gathering_out = gathering;
    }
    return status;
}

/* Puts this rank's payload. One that is there already is left: the same one, put before a failure, or
 * another of an earlier life, which then stands for this rank. */
static weft_status announce(gathering *gathering) {
    meeting *meeting = gathering->meeting;
    key_text key = payload_key(meeting, gathering->round, meeting->options.rank);
    weft_status status =
        weft_store_put_bytes(gathering->context, meeting->store, key.text, gathering->own->data,
                             gathering->own->size, once(meeting), NULL, NULL);
    if (status == WEFT_CONFLICT) {
        return WEFT_OK;
    }
    if (status != WEFT_OK) {
        return status;
    }
    meeting->stats.sent += gathering->own->size;
    meeting->places[meeting->options.rank] =
        (place){.data = gathering->own->data, .size = gathering->own->size, .hash = gathering->own_hash};
    return WEFT_OK;
}

/* The manifest, if the round is closed; WEFT_NOT_FOUND if not. */
static weft_status find_closed(gathering *gathering) {
    return read_manifest(gathering, &gathering->meeting->manifest);
}

static weft_status wait_until_closed(gathering *gathering) {
    meeting *meeting = gathering->meeting;
    double turn = turn_seconds(meeting);
    double pause = FIRST_PAUSE;
    for (;;) {
        weft_status status = find_closed(gathering);
        if (status != WEFT_NOT_FOUND) {
            return status;
        }
        double waited = weft_clock_now() - gathering->began;
        if (turn >= 0 && waited >= turn) {
            status = lead(gathering);
            if (status != WEFT_MORE && status != WEFT_CONFLICT) {
                return status;
            }
        }
        status = weft_clock_sleep(gathering->context, pause);
        if (status != WEFT_OK) {
            return status;
        }
        pause = 1.5 * pause < meeting->options.poll_seconds ? 1.5 * pause : meeting->options.poll_seconds;
    }
}

/* Rounds that nobody needs any more: the newest snapshot is after them. */
static void remove_old(meeting *meeting, weft_context *context, uint64_t round) {
    uint64_t keep = meeting->options.keep_rounds;
    if (round < keep || round - keep >= meeting->snapshot) {
        return;
    }
    uint64_t old = round - keep;
    weft_status status = WEFT_OK;
    for (uint32_t rank = 0; rank < meeting->options.ranks && status == WEFT_OK; rank++) {
        status = weft_store_remove(context, meeting->store, payload_key(meeting, old, rank).text);
    }
    if (status == WEFT_OK) {
        status = weft_store_remove(context, meeting->store, closed_key(meeting, old).text);
    }
    meeting->stats.unremoved += status != WEFT_OK;
}

static weft_status share(void *opaque, weft_context *context, uint64_t round, const weft_loco_payload *own,
                         weft_loco_payload *all, size_t ranks) {
    meeting *meeting = opaque;
    gathering gathering;
    if (ranks != meeting->options.ranks) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%zu ranks were to meet in the store, but it was opened for %" PRIu32, ranks,
                         meeting->options.ranks);
    }
    weft_status status = begin(meeting, context, round, own, &gathering);
    if (status == WEFT_OK) {
        status = find_closed(&gathering);
    }
    if (status == WEFT_NOT_FOUND) {
        status = announce(&gathering);
        status = status == WEFT_OK ? wait_until_closed(&gathering) : status;
    }
    if (status == WEFT_OK) {
        status = obey(&gathering, all);
    }
    if (status == WEFT_OK && meeting->leader == meeting->options.rank) {
        remove_old(meeting, context, round);
    }
    return status;
}

/* ---- coming back ---- */

static weft_status read_note(meeting *meeting, weft_context *context, weft_snapshot_note *note) {
    uint8_t data[WEFT_SNAPSHOT_NOTE_MAX];
    size_t size;
    weft_status status = get_small(meeting, context, note_key(meeting).text, data, sizeof data, &size);
    return status == WEFT_OK ? weft_snapshot_note_parse(context, data, size, meeting->run, note) : status;
}

/* Why there is no manifest: WEFT_MORE if the round is open, WEFT_NOT_FOUND if it was long ago. */
static weft_status why_open(meeting *meeting, weft_context *context, uint64_t round) {
    weft_snapshot_note note;
    weft_status status = read_note(meeting, context, &note);
    if (status == WEFT_NOT_FOUND) {
        return WEFT_MORE;
    }
    if (status != WEFT_OK) {
        return status;
    }
    return note.rounds > round ? WEFT_NOT_FOUND : WEFT_MORE;
}

static weft_status ended(void *opaque, weft_context *context, uint64_t round) {
    meeting *meeting = opaque;
    uint64_t size;
    weft_store_tag tag;
    weft_status status =
        weft_store_head(context, meeting->store, closed_key(meeting, round).text, &size, &tag);
    return status == WEFT_NOT_FOUND ? why_open(meeting, context, round) : status;
}

static bool snapshot_due(void *opaque, uint64_t rounds) {
    const meeting *meeting = opaque;
    return meeting->leader == meeting->options.rank && rounds % meeting->options.snapshot_rounds == 0;
}

static weft_status snapshot_put(void *opaque, weft_context *context, uint64_t rounds,
                                const weft_loco_payload *snapshot) {
    meeting *meeting = opaque;
    weft_snapshot_note note = {.rounds = rounds, .bytes = snapshot->size};
    uint64_t before = meeting->snapshot;
    weft_status status = weft_hash_compute(context, snapshot->data, snapshot->size, &note.hash);
    if (status == WEFT_OK) {
        status = weft_store_put_bytes(context, meeting->store, snapshot_key(meeting, rounds).text,
                                      snapshot->data, snapshot->size, WEFT_STORE_ALWAYS, NULL, NULL);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_writer writer;
    weft_writer_open(&writer, meeting->context);
    weft_snapshot_note_write(&note, meeting->run, &writer);
    status = weft_writer_failed(&writer)
                 ? weft_fail(context, WEFT_NO_MEMORY, "no memory for the name of a snapshot")
                 : weft_store_put_bytes(context, meeting->store, note_key(meeting).text, writer.data,
                                        writer.size, WEFT_STORE_ALWAYS, NULL, NULL);
    weft_writer_close(&writer);
    if (status != WEFT_OK) {
        return status;
    }
    meeting->snapshot = rounds;
    meeting->stats.snapshot_bytes += snapshot->size;
    if (before != 0 && before != rounds) {
        weft_status removed =
            weft_store_remove(context, meeting->store, snapshot_key(meeting, before).text);
        meeting->stats.unremoved += removed != WEFT_OK;
    }
    return WEFT_OK;
}

static weft_status snapshot_get(void *opaque, weft_context *context, weft_loco_payload *snapshot_out) {
    meeting *meeting = opaque;
    weft_snapshot_note note;
    uint8_t *data = NULL;
    weft_hash hash;
    weft_status status = read_note(meeting, context, &note);
    if (status == WEFT_OK) {
        status = get_exactly(meeting, context, snapshot_key(meeting, note.rounds).text, note.bytes, &data);
    }
    if (status == WEFT_OK) {
        status = weft_hash_compute(context, data, (size_t)note.bytes, &hash);
    }
    if (status == WEFT_OK && !weft_hash_equal(&hash, &note.hash)) {
        status = weft_fail(context, WEFT_DIGEST_MISMATCH,
                           "the snapshot after %" PRIu64 " rounds was damaged", note.rounds);
    }
    if (status != WEFT_OK) {
        weft_release(meeting->context, data);
        return status;
    }
    weft_release(meeting->context, meeting->snapshot_data);
    meeting->snapshot_data = data;
    meeting->snapshot = note.rounds;
    meeting->stats.received += note.bytes;
    *snapshot_out = (weft_loco_payload){data, (size_t)note.bytes};
    return WEFT_OK;
}

/* ---- opening and closing ---- */

static void close_meeting(void *opaque) {
    meeting *meeting = opaque;
    forget_places(meeting);
    weft_release(meeting->context, meeting->snapshot_data);
    weft_release(meeting->context, meeting->places);
    weft_release(meeting->context, meeting->missing);
    weft_release(meeting->context, meeting->manifest.payloads);
    weft_release(meeting->context, meeting);
}

weft_loco_store_options weft_loco_store_defaults(void) {
    return (weft_loco_store_options){.ranks = 1,
                                     .deadline_seconds = 60,
                                     .passing_seconds = 5,
                                     .least = 1,
                                     .poll_seconds = 0.2,
                                     .keep_rounds = 32,
                                     .snapshot_rounds = 16};
}

static weft_status check(weft_context *context, const weft_loco_store_options *options) {
    char key[WEFT_STORE_KEY_MAX + 1];
    int length = snprintf(key, sizeof key, "loco/%s/%" PRIu64 "/closed", options->run, UINT64_MAX);
    if (length < 0 || length > WEFT_STORE_KEY_MAX || !weft_store_key_valid(key) ||
        strlen(options->run) > WEFT_LOCO_RUN_MAX || strchr(options->run, '/') != NULL) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "a run that meets in a store needs a name of letters, digits and . _ ~ -, of at most "
            "%d bytes",
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
        !(options->poll_seconds > 0) || options->snapshot_rounds == 0 ||
        options->keep_rounds < 2 * options->snapshot_rounds) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "times must be above zero, and rounds be kept for two snapshots at least");
    }
    return WEFT_OK;
}

weft_status weft_loco_store_open(weft_context *context, weft_store *store,
                                 const weft_loco_store_options *options, weft_loco_exchange *exchange_out) {
    weft_context_clear(context);
    weft_status status = check(context, options);
    if (status != WEFT_OK) {
        return status;
    }
    meeting *meeting = weft_allocate_zeroed(context, 1, sizeof *meeting);
    if (meeting == NULL) {
        return WEFT_NO_MEMORY;
    }
    meeting->context = context;
    meeting->store = store;
    meeting->options = *options;
    snprintf(meeting->run, sizeof meeting->run, "%s", options->run);
    meeting->options.run = meeting->run;
    meeting->places = weft_allocate_zeroed(context, options->ranks, sizeof *meeting->places);
    meeting->missing = weft_allocate_zeroed(context, options->ranks, sizeof *meeting->missing);
    meeting->manifest.payloads =
        weft_allocate_zeroed(context, options->ranks, sizeof *meeting->manifest.payloads);
    if (meeting->places == NULL || meeting->missing == NULL || meeting->manifest.payloads == NULL) {
        close_meeting(meeting);
        return WEFT_NO_MEMORY;
    }
    *exchange_out = (weft_loco_exchange){.share = share,
                                         .ended = ended,
                                         .snapshot_due = snapshot_due,
                                         .snapshot_put = snapshot_put,
                                         .snapshot_get = snapshot_get,
                                         .close = close_meeting,
                                         .opaque = meeting};
    return WEFT_OK;
}

weft_loco_store_stats weft_loco_store_describe(const weft_loco_exchange *exchange) {
    const meeting *meeting = exchange->opaque;
    weft_loco_store_stats stats = meeting->stats;
    stats.leader = meeting->leader;
    return stats;
}
