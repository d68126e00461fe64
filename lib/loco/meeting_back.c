/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting_back.c: what a rank that was away finds: whether a round is over, and snapshots, for rounds whose
 * payloads are gone.
 *
 * The note that names the newest snapshot never goes back, and old payloads are removed only when it is
 * there. Manifests stay for ever, some hundred bytes each: a rank that was stopped for so long that its
 * round is gone must not find the place free, close the round once more, and go on alone.
 */
#include "../base/context.h"
#include "meeting.h"

#include <inttypes.h>

enum { TRIES = 3 };

static weft_status read_note(weft_meeting *meeting, weft_context *context, weft_snapshot_note *note,
                             weft_store_tag *tag) {
    weft_received received;
    weft_hash hash;
    weft_meeting_key key = weft_meeting_note_key(meeting);
    weft_status status =
        weft_meeting_get(meeting, context, key.text, WEFT_SNAPSHOT_NOTE_MAX, context, &received, &hash);
    if (status != WEFT_OK) {
        return status;
    }
    *tag = received.tag;
    status = weft_snapshot_note_parse(context, received.data, received.size, meeting->run, note);
    weft_received_close(&received);
    return status == WEFT_OK
               ? status
               : weft_meeting_unusable(context, status, key.text,
                                       "remove it while no rank is away: the next snapshot puts it anew");
}

weft_status weft_meeting_why_open(weft_meeting *meeting, weft_context *context, uint64_t round) {
    weft_snapshot_note note;
    weft_store_tag tag;
    weft_status status = read_note(meeting, context, &note, &tag);
    if (status == WEFT_NOT_FOUND) {
        return WEFT_MORE;
    }
    if (status != WEFT_OK) {
        return status;
    }
    return note.rounds <= round
               ? WEFT_MORE
               : weft_fail(context, WEFT_NOT_FOUND,
                           "round %" PRIu64 " was over long ago: the others are beyond round %" PRIu64
                           "; catch up first",
                           round, note.rounds);
}

weft_status weft_meeting_ended(void *opaque, weft_context *context, uint64_t round) {
    weft_meeting *meeting = opaque;
    uint64_t size;
    weft_status status =
        weft_store_head(context, meeting->store, weft_meeting_closed_key(meeting, round).text, &size, NULL);
    return status == WEFT_NOT_FOUND ? weft_meeting_why_open(meeting, context, round) : status;
}

/* ---- leaving a snapshot ---- */

bool weft_meeting_snapshot_due(void *opaque, uint64_t rounds) {
    const weft_meeting *meeting = opaque;
    return meeting->leader == meeting->options.rank && rounds % meeting->options.snapshot_rounds == 0;
}

static void remove_object(weft_meeting *meeting, weft_context *context, const char *key) {
    if (weft_store_remove(context, meeting->store, key) != WEFT_OK) {
        meeting->stats.unremoved++;
    }
}

/* Payloads that nobody needs since the snapshot is there: of the rounds that have become old since the note
 * before, and once more of those that became old then, if whoever was to remove them did not come to it. */
static void remove_rounds(weft_meeting *meeting, weft_context *context, uint64_t before, uint64_t rounds) {
    uint64_t keep = meeting->options.keep_rounds;
    uint64_t end = rounds > keep ? rounds - keep : 0;
    uint64_t kept = keep + meeting->options.snapshot_rounds;
    for (uint64_t round = before > kept ? before - kept : 0; round < end; round++) {
        for (uint32_t rank = 0; rank < meeting->options.ranks; rank++) {
            remove_object(meeting, context, weft_meeting_payload_key(meeting, round, rank).text);
        }
    }
}

static weft_status put_note(weft_meeting *meeting, weft_context *context, const weft_snapshot_note *note,
                            bool first, const weft_store_tag *tag) {
    weft_writer writer;
    weft_writer_open(&writer, meeting->context);
    weft_snapshot_note_write(note, meeting->run, &writer);
    weft_meeting_key key = weft_meeting_note_key(meeting);
    const weft_message message = {
        .key = key.text,
        .data = writer.data,
        .size = writer.size,
        .condition = first ? WEFT_STORE_IF_ABSENT : WEFT_STORE_IF_SAME,
        .tag = *tag,
        .alone = true,
    };
    weft_status status = weft_writer_failed(&writer)
                             ? weft_fail(context, WEFT_NO_MEMORY, "no memory for the name of a snapshot")
                             : weft_meeting_put(meeting, context, &message);
    weft_writer_close(&writer);
    return status;
}

/* Makes the snapshot the newest one, unless there is a newer one. WEFT_CONFLICT: look again. */
static weft_status name_snapshot(weft_meeting *meeting, weft_context *context,
                                 const weft_snapshot_note *note) {
    weft_snapshot_note before = {.rounds = 0};
    weft_store_tag tag = {.text = ""};
    weft_status status = read_note(meeting, context, &before, &tag);
    bool first = status == WEFT_NOT_FOUND;
    if (status != WEFT_OK && !first) {
        return status;
    }
    if (!first && before.rounds >= note->rounds) {
        return WEFT_OK;
    }
    status = put_note(meeting, context, note, first, &tag);
    if (status == WEFT_OK && !first) {
        remove_object(meeting, context, weft_meeting_snapshot_key(meeting, before.rounds).text);
    }
    if (status == WEFT_OK) {
        remove_rounds(meeting, context, before.rounds, note->rounds);
    }
    return status;
}

weft_status weft_meeting_snapshot_put(void *opaque, weft_context *context, uint64_t rounds,
                                      const weft_loco_payload *snapshot) {
    weft_meeting *meeting = opaque;
    weft_snapshot_note note = {.rounds = rounds, .bytes = snapshot->size};
    weft_meeting_key key = weft_meeting_snapshot_key(meeting, rounds);
    weft_status status = weft_hash_compute(context, snapshot->data, snapshot->size, &note.hash);
    if (status == WEFT_OK) {
        const weft_message message = {.key = key.text, .data = snapshot->data, .size = snapshot->size};
        status = weft_meeting_put(meeting, context, &message);
    }
    if (status != WEFT_OK) {
        return status;
    }
    meeting->stats.snapshot_bytes += snapshot->size;
    status = WEFT_CONFLICT;
    for (int i = 0; i < TRIES && status == WEFT_CONFLICT; i++) {
        status = name_snapshot(meeting, context, &note);
    }
    return status;
}

/* ---- taking one ---- */

/* A snapshot may give way to a newer one between the note and the get. */
weft_status weft_meeting_snapshot_get(void *opaque, weft_context *context, uint64_t most,
                                      weft_loco_payload *snapshot_out) {
    weft_meeting *meeting = opaque;
    weft_snapshot_note note = {.rounds = 0};
    uint8_t *data = NULL;
    weft_status status = WEFT_NOT_FOUND;
    for (int i = 0; i < TRIES && status == WEFT_NOT_FOUND; i++) {
        weft_store_tag tag;
        status = read_note(meeting, context, &note, &tag);
        if (status == WEFT_OK) {
            weft_meeting_key key = weft_meeting_snapshot_key(meeting, note.rounds);
            status =
                weft_meeting_get_named(meeting, context, key.text, note.bytes, most, &note.hash, &data);
        }
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_release(meeting->context, meeting->snapshot);
    meeting->snapshot = data;
    *snapshot_out = (weft_loco_payload){data, (size_t)note.bytes};
    return WEFT_OK;
}
