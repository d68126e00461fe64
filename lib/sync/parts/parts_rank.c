/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_rank.c: a member of a version in parts.
 *
 * Each publish of the coordinator is a turn, and each publish of a member ends with one turn: published,
 * failed, or not known yet. A member that hears of a failed turn in which it had no hand yet takes it as
 * the end of its own publish, so that members that come late stay in step with the others. A call of a
 * later turn than the one that a publish takes part in is left for the next publish.
 */
#include "parts.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../format/history.h"
#include "../objects/pieces.h"
#include "../publish/pressure.h"

#include <stdio.h>
#include <string.h>

static const double LOOK_SECONDS = 0.25;
static const uint64_t AUDIT_BYTES = (uint64_t)16 << 20;

/* ---- hearing ---- */

static bool is_involved(const weft_parts_rank *rank) {
    return rank->answered[0] != '\0';
}

/* This publish takes part in a turn. */
static bool is_busy(const weft_parts_rank *rank) {
    return rank->heard > rank->turn;
}

/* The turn that the publish under way should be, if it has joined. */
static uint64_t due_turn(const weft_parts_rank *rank) {
    return rank->joined_turn + (rank->publishes - rank->joined_publish);
}

static void enter_epoch(weft_parts_rank *rank, uint64_t epoch, const weft_sync_head *head) {
    rank->parts.epoch = epoch;
    weft_part_plan_set_format(&rank->parts.plan, head->format);
    memcpy(rank->parts.run, head->run, sizeof rank->parts.run);
    rank->parts.roll_name[0] = '\0';
    rank->number = 0;
    rank->turn = 0;
    rank->heard = 0;
    rank->joined_turn = 0;
    rank->answered[0] = '\0';
    rank->answer[0] = '\0';
    rank->tag.text[0] = '\0';
}

/* A coordinator that has begun anew is found by the head of its epoch. */
static weft_status look_for_epoch(weft_parts_rank *rank) {
    weft_parts *parts = &rank->parts;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;
    weft_sync_head head;
    if (rank->looked != 0 && weft_clock_now() - rank->looked < LOOK_SECONDS) {
        return WEFT_OK;
    }
    rank->looked = weft_clock_now();
    weft_status status =
        weft_head_find(parts->context, parts->store, parts->epoch + 1, data, &size, &epoch);
    if (status == WEFT_OK) {
        /* a head that is not the trainer's names a run of which no call is believed */
        status =
            weft_sync_head_parse(parts->context, weft_store_url(parts->store), data, size, NULL, &head);
    }
    if (status == WEFT_OK) {
        enter_epoch(rank, epoch, &head);
        weft_sync_head_close(&head, parts->context);
    }
    return status == WEFT_NOT_FOUND || status == WEFT_CHECKSUM_MISMATCH ? WEFT_OK : status;
}

/* WEFT_MORE: there is no new call. One that was damaged on its way is as good as none. */
static weft_status look_for_call(weft_parts_rank *rank, weft_call *call) {
    weft_parts *parts = &rank->parts;
    char key[WEFT_KEY_SIZE];
    uint8_t data[WEFT_CALL_BYTES];
    weft_parts_key(parts, "call", "", key);
    weft_store_get_request request = {
        .size = sizeof request,
        .key = key,
        .length = sizeof data,
        .buffer = data,
        .unless = rank->tag.text[0] != '\0' ? &rank->tag : NULL,
    };
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(parts->context, parts->store, &request, &result);
    if (status == WEFT_OK && result.unchanged) {
        return WEFT_MORE;
    }
    size_t size = status == WEFT_OK ? (size_t)result.received : 0;
    if (status == WEFT_OK) {
        status = weft_parts_open_message(parts, key, data, &size);
    }
    if (status == WEFT_NOT_FOUND || status == WEFT_CHECKSUM_MISMATCH) {
        return WEFT_MORE;
    }
    if (status == WEFT_OK) {
        status = weft_call_read(parts->context, data, size, call);
    }
    if (status != WEFT_OK) {
        return status;
    }
    rank->tag = result.tag;
    if (call->number <= rank->number) {
        return WEFT_MORE;
    }
    rank->number = call->number;
    rank->wait = (double)call->wait / 1000;
    return WEFT_OK;
}

/* The next publish finds the call again. */
static void leave_call(weft_parts_rank *rank, const weft_call *call) {
    rank->number = call->number - 1;
    rank->tag.text[0] = '\0';
}

/* Who has answered waits longer than the coordinator does for the others, so as to hear why it gave up; who
 * has not, as long as the coordinator may wait for followers first. */
static double call_seconds(const weft_parts_rank *rank) {
    bool answered = rank->current || is_busy(rank);
    return answered ? 2 * rank->parts.seconds : rank->parts.seconds + rank->wait;
}

static weft_status heard_nothing(const weft_parts_rank *rank) {
    const weft_parts *parts = &rank->parts;
    return weft_fail(parts->context, WEFT_REMOTE_FAILED,
                     "part 0 of %zu was not heard of for %g seconds%s; see whether it lives, and publish "
                     "again on all parts",
                     parts->count, call_seconds(rank),
                     rank->made ? " after this part was put: whether the version is published is found out "
                                  "by the next publish"
                                : "");
}

static weft_status next_call(weft_parts_rank *rank, weft_call *call) {
    weft_parts_wait wait;
    weft_parts_wait_begin(call_seconds(rank), &wait);
    for (;;) {
        weft_status status = look_for_epoch(rank);
        if (status == WEFT_OK) {
            status = rank->parts.epoch > 0 ? look_for_call(rank, call) : WEFT_MORE;
        }
        if (status != WEFT_MORE) {
            return status;
        }
        status = weft_parts_wait_more(&rank->parts, &wait);
        if (status != WEFT_OK) {
            return status == WEFT_MORE ? heard_nothing(rank) : status;
        }
    }
}

/* ---- the head ---- */

static weft_status read_head(weft_parts_rank *rank, weft_sync_head *head) {
    weft_parts *parts = &rank->parts;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_status status =
        weft_sync_head_read(parts->context, parts->store, parts->epoch, NULL, data, &size, NULL);
    if (status == WEFT_OK) {
        status = weft_sync_head_parse(parts->context, weft_store_url(parts->store), data, size,
                                      parts->options->key, head);
    }
    return status;
}

/* Looks for a version in the history. */
typedef struct search {
    uint64_t version;
    bool full; /* the newest page that names the anchors was read */
    bool found;
    bool placed; /* `object` is what leads to it */
    weft_object object;
    weft_digest digest;
    weft_diff_stats stats;
} search;

static void note_record(search *s, const weft_record *record) {
    s->found = true;
    s->digest = record->digest;
    s->stats = (weft_diff_stats){
        .size = sizeof(weft_diff_stats),
        .changed = record->changed,
        .total = record->total,
        .dense_bytes = record->dense_bytes,
        .result = record->digest,
        .base = record->base,
    };
    if (record->patched) {
        s->placed = true;
        s->object = record->patch;
    }
}

static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    search *s = opaque;
    const weft_anchor *anchor =
        s->full ? NULL : weft_anchor_find(page->anchors, page->anchor_count, s->version);
    if (anchor != NULL) {
        s->placed = true;
        s->object = anchor->object;
    }
    s->full = s->full || page->full;
    for (size_t i = 0; i < page->record_count; i++) {
        if (page->records[i].version == s->version) {
            note_record(s, &page->records[i]);
        }
    }
    bool more = s->found ? !s->placed && !s->full : page->records[0].version > s->version;
    return more ? WEFT_MORE : WEFT_OK;
}

static bool has_piece(const weft_pieces *pieces, const char *key) {
    for (size_t i = 0; i < pieces->count; i++) {
        if (strcmp(pieces->items[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

typedef enum ownership { OURS, ANOTHERS, NOT_KNOWN } ownership;

/* Was the version made with what this member has put? While its roll is in force no version is published
 * without it; else its piece must be there. A version without changes of this member has none, and an
 * anchor is named for some time only. */
static weft_status is_ours(weft_parts_rank *rank, const weft_call *call, const search *s,
                           ownership *ours_out) {
    const weft_part_manifest *manifest = &rank->edition.manifest;
    if (rank->made_epoch == rank->parts.epoch && strcmp(rank->made_roll, call->roll) == 0) {
        *ours_out = OURS;
        return WEFT_OK;
    }
    if (manifest->frame_count == 0 || !s->placed) {
        *ours_out = NOT_KNOWN;
        return WEFT_OK;
    }
    weft_pieces pieces;
    weft_pieces_open(&pieces, rank->parts.context);
    weft_status status = weft_pieces_fetch(&pieces, rank->parts.store, &s->object);
    if (status == WEFT_OK) {
        *ours_out = has_piece(&pieces, manifest->piece.key) ? OURS : ANOTHERS;
    }
    weft_pieces_close(&pieces);
    return status;
}

/* Looks for the version that was made. A store may show the head later than the call that tells of it. */
static weft_status find_version(weft_parts_rank *rank, bool told, search *s) {
    double deadline = weft_clock_now() + WEFT_VISIBLE_SECONDS;
    for (;;) {
        weft_sync_head head;
        weft_status status = read_head(rank, &head);
        if (status != WEFT_OK) {
            return status;
        }
        *s = (search){.version = rank->made_version};
        if (head.started && head.newest.version >= s->version) {
            status = weft_history_walk(rank->parts.context, rank->parts.store, &head, NULL, visit_page, s);
        }
        weft_sync_head_close(&head, rank->parts.context);
        if (status != WEFT_OK || s->found || !told || weft_clock_now() > deadline) {
            return status;
        }
        status = weft_clock_sleep(rank->parts.context, 0.05);
        if (status != WEFT_OK) {
            return status;
        }
    }
}

/* ---- what was put, published or not ---- */

static void forget_edition(weft_parts_rank *rank) {
    weft_part_edition_close(&rank->edition, rank->parts.context);
    rank->made = false;
}

static void undo_edition(weft_parts_rank *rank) {
    if (rank->edition.ahead) {
        weft_baseline_undo(&rank->baseline);
    }
    forget_edition(rank);
}

/* `told`: the coordinator says that it is published; else only the head can. */
static weft_status settle_edition(weft_parts_rank *rank, const weft_call *call, bool told,
                                  bool *published_out, weft_diff_stats *stats) {
    search s;
    ownership ours = ANOTHERS;
    weft_status status = find_version(rank, told, &s);
    if (status == WEFT_OK && s.found) {
        status = is_ours(rank, call, &s, &ours);
    }
    if (status != WEFT_OK) {
        return status; /* still not known */
    }
    *published_out = s.found && ours == OURS;
    if (told && ours == ANOTHERS) {
        unsigned long long version = rank->made_version;
        undo_edition(rank);
        rank->baseline.holds = false;
        return weft_fail(
            rank->parts.context, WEFT_CONFLICT,
            "version %llu was published with another process as part %zu of %zu; one process only "
            "may be that part",
            version, rank->parts.index, rank->parts.count);
    }
    if (ours != OURS) {
        undo_edition(rank);
        rank->baseline.holds = rank->baseline.holds && ours == ANOTHERS;
        return WEFT_OK;
    }
    *stats = s.stats;
    stats->patch_bytes = s.object.bytes;
    rank->version = rank->made_version;
    weft_baseline_advance(&rank->baseline, NULL, false, &rank->edition.new_sums, rank->version, &s.digest,
                          NULL);
    forget_edition(rank);
    return WEFT_OK;
}

/* ---- answers ---- */

static weft_status answer_join(weft_parts_rank *rank, const weft_call *call) {
    weft_parts *parts = &rank->parts;
    char key[WEFT_KEY_SIZE];
    char index[24];
    weft_writer writer;
    weft_writer_open(&writer, parts->context);
    snprintf(index, sizeof index, "%zu", parts->index);
    weft_parts_key(parts, call->name, index, key);
    weft_status status = weft_parts_hold(parts, &writer);
    if (status == WEFT_OK) {
        weft_store_traits traits = {.size = sizeof traits};
        weft_store_traits_of(parts->store, &traits);
        status = weft_parts_put(parts, key, &writer,
                                traits.conditional ? WEFT_STORE_IF_ABSENT : WEFT_STORE_ALWAYS);
    }
    weft_writer_close(&writer);
    if (status == WEFT_CONFLICT) {
        return weft_fail(parts->context, WEFT_CONFLICT,
                         "another process publishes as part %zu of %zu; one only may be that part",
                         parts->index, parts->count);
    }
    if (status == WEFT_OK) {
        memcpy(rank->answered, call->name, sizeof rank->answered);
        memcpy(rank->answer, key, sizeof rank->answer);
        rank->joined_publish = rank->publishes;
        rank->joined_turn = call->turn;
    }
    return status;
}

/* A store may show the roll later than the call that names it, and it may be damaged on its way. */
static weft_status fetch_roll(weft_parts_rank *rank, const weft_call *call, weft_part_roll *roll) {
    weft_parts *parts = &rank->parts;
    char key[WEFT_KEY_SIZE];
    weft_received received;
    weft_parts_wait wait;
    weft_parts_key(parts, call->roll, "roll", key);
    weft_parts_wait_begin(WEFT_VISIBLE_SECONDS, &wait);
    weft_status status = weft_parts_get(parts, key, &received);
    while (status == WEFT_NOT_FOUND || status == WEFT_CHECKSUM_MISMATCH) {
        weft_status waited = weft_parts_wait_more(parts, &wait);
        if (waited != WEFT_OK) {
            return waited == WEFT_MORE ? status : waited;
        }
        status = weft_parts_get(parts, key, &received);
    }
    if (status == WEFT_OK) {
        status =
            weft_part_roll_read(parts->context, received.data, received.size, parts->plan.plan.count, roll);
        weft_received_close(&received);
    }
    return status;
}

static weft_status take_roll(weft_parts_rank *rank, const weft_call *call) {
    weft_parts *parts = &rank->parts;
    weft_part_roll roll;
    weft_status status = fetch_roll(rank, call, &roll);
    if (status != WEFT_OK) {
        return status;
    }
    if (roll.member_count != parts->count || strcmp(roll.members[parts->index], parts->member) != 0) {
        status =
            weft_fail(parts->context, WEFT_CONFLICT,
                      "the version is being made with another process as part %zu of %zu; one only may "
                      "be that part",
                      parts->index, parts->count);
    }
    if (status == WEFT_OK) {
        status = weft_parts_enrol(parts, call->roll, &roll, &rank->baseline);
    }
    weft_part_roll_close(&roll, parts->context);
    return status;
}

static bool starts_from(const weft_parts_rank *rank, const weft_call *call) {
    const weft_baseline *baseline = &rank->baseline;
    return baseline->holds && baseline->version + 1 == call->version &&
           weft_digest_equal(&baseline->digest, &call->base);
}

/* The copy is brought to what the patch starts from. WEFT_BASE_MISMATCH: it cannot be. */
static weft_status prepare_base(weft_parts_rank *rank, const weft_call *call) {
    if (call->kind != WEFT_CALL_PATCH) {
        return WEFT_OK;
    }
    weft_status status = WEFT_OK;
    if (!starts_from(rank, call)) {
        weft_sync_head head;
        status = read_head(rank, &head);
        if (status == WEFT_OK) {
            status = weft_baseline_rebuild(&rank->baseline, &head);
            weft_sync_head_close(&head, rank->parts.context);
        }
    }
    if (status == WEFT_OK && !starts_from(rank, call)) {
        status = weft_fail(rank->parts.context, WEFT_BASE_MISMATCH,
                           "version %llu cannot be rebuilt from the store",
                           (unsigned long long)call->version - 1);
    }
    return status;
}

static weft_status put_manifest(weft_parts_rank *rank, const weft_call *call,
                                const weft_part_manifest *manifest) {
    weft_parts *parts = &rank->parts;
    char key[WEFT_KEY_SIZE];
    weft_writer writer;
    weft_writer_open(&writer, parts->context);
    weft_part_manifest_write(manifest, &writer);
    weft_parts_key(parts, call->name, parts->member, key);
    memcpy(rank->answer, key, sizeof rank->answer);
    weft_status status = weft_parts_put(parts, key, &writer, false);
    weft_writer_close(&writer);
    return status;
}

/* That this part failed is told, so that nobody waits for it. */
static weft_status put_failure(weft_parts_rank *rank, const weft_call *call, weft_status status) {
    weft_part_manifest manifest = {.status = status};
    memcpy(manifest.member, rank->parts.member, sizeof manifest.member);
    snprintf(manifest.text, sizeof manifest.text, "%s", weft_context_error(rank->parts.context));
    return put_manifest(rank, call, &manifest);
}

/* The same for who cannot go on. */
static weft_status fail_turn(weft_parts_rank *rank, const weft_call *call, weft_status status) {
    weft_failure failure = weft_failure_keep(rank->parts.context, status);
    weft_status ignored = put_failure(rank, call, status);
    (void)ignored;
    return weft_failure_tell(rank->parts.context, &failure);
}

static weft_status answer_version(weft_parts_rank *rank, const weft_call *call, const char *const *labels) {
    const weft_part_task task = {
        .kind = call->kind,
        .version = call->version,
        .sums = call->sums,
        .labels = labels,
    };
    weft_part_edition edition;
    weft_status status = prepare_base(rank, call);
    if (status == WEFT_OK) {
        status = weft_part_edition_make(&rank->parts, &rank->baseline, &task, &edition);
    }
    if (status == WEFT_CANCELLED) {
        return fail_turn(rank, call, status);
    }
    if (status != WEFT_OK) {
        return put_failure(rank, call, status);
    }
    /* from here on it may be published, even if we never hear that the manifest has arrived */
    rank->edition = edition;
    rank->made = true;
    rank->current = true;
    rank->made_epoch = rank->parts.epoch;
    rank->made_turn = call->turn;
    memcpy(rank->made_roll, call->roll, sizeof rank->made_roll);
    rank->made_version = call->version;
    return put_manifest(rank, call, &rank->edition.manifest);
}

/* A failed anchor harms nothing: the coordinator tries another. */
static void answer_anchor(weft_parts_rank *rank, const weft_call *call) {
    const weft_part_task task = {.kind = WEFT_CALL_DONE, .version = call->version};
    weft_part_edition edition;
    weft_status status = weft_part_edition_make(&rank->parts, &rank->baseline, &task, &edition);
    if (status == WEFT_OK) {
        status = put_manifest(rank, call, &edition.manifest);
        weft_part_edition_close(&edition, rank->parts.context);
    } else {
        status = put_failure(rank, call, status);
    }
    weft_context_clear(rank->parts.context);
}

/* ---- a turn ---- */

/* What came too late for the coordinator is of no use to anybody. */
static void remove_answer(weft_parts_rank *rank) {
    if (rank->answer[0] != '\0') {
        weft_status ignored = weft_store_remove(rank->parts.context, rank->parts.store, rank->answer);
        (void)ignored;
        rank->answer[0] = '\0';
    }
}

static weft_status turn_failed(weft_parts_rank *rank, const weft_call *call) {
    rank->turn = call->turn;
    if (call->kind != WEFT_CALL_UNKNOWN) {
        remove_answer(rank);
    }
    /* what is said of part 0 would be believed of this one */
    weft_status status = call->status == WEFT_OK || call->status == WEFT_CONFLICT
                             ? WEFT_REMOTE_FAILED
                             : (weft_status)call->status;
    return weft_fail(rank->parts.context, status, "%s",
                     call->text[0] != '\0' ? call->text : "part 0 has given up this version");
}

/* True if the call says how the turn of what was put has ended, or comes after that. */
static bool ends_edition(const weft_parts_rank *rank, const weft_call *call) {
    return rank->made && (rank->made_epoch != rank->parts.epoch || call->turn > rank->made_turn ||
                          call->kind != WEFT_CALL_UNKNOWN);
}

/* Published, according to whoever leads. */
static bool tells_published(const weft_parts_rank *rank, const weft_call *call) {
    if (rank->made_epoch != rank->parts.epoch) {
        return false;
    }
    return call->turn == rank->made_turn
               ? call->kind == WEFT_CALL_DONE
               : call->kind != WEFT_CALL_CLOSED && call->version > rank->made_version;
}

/* WEFT_MORE: go on with the call; the publish is not over. */
static weft_status end_edition(weft_parts_rank *rank, const weft_call *call, weft_publish_result *result) {
    bool mine = rank->current;
    bool same_turn = rank->made_epoch == rank->parts.epoch && call->turn == rank->made_turn;
    bool again = same_turn && (call->kind == WEFT_CALL_PATCH || call->kind == WEFT_CALL_WHOLE);
    uint64_t version = rank->made_version;
    uint64_t turn = rank->made_turn;
    weft_diff_stats stats = {.size = sizeof stats};
    bool published = false;
    weft_status status = WEFT_OK;
    /* a version that its coordinator says has failed cannot be published any more */
    if (same_turn && call->kind != WEFT_CALL_DONE) {
        undo_edition(rank);
    } else {
        status = settle_edition(rank, call, tells_published(rank, call), &published, &stats);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (again) {
        return WEFT_MORE;
    }
    if (rank->made_epoch == rank->parts.epoch) {
        rank->turn = turn;
    }
    if (published && same_turn && call->anchor) {
        answer_anchor(rank, call);
    }
    if (!mine) {
        return WEFT_MORE;
    }
    if (!same_turn) {
        leave_call(rank, call);
    }
    if (published) {
        result->version = version;
        weft_publish_count(result, &stats);
        return WEFT_OK;
    }
    return same_turn
               ? turn_failed(rank, call)
               : weft_fail(
                     rank->parts.context, WEFT_REMOTE_FAILED,
                     "part 0 has gone on without saying that version %llu is published; publish again "
                     "on all parts",
                     (unsigned long long)version);
}

/* Labels alone do not tell steps apart if they stay the same. */
static weft_status check_step(weft_parts_rank *rank, const weft_call *call) {
    const weft_parts *parts = &rank->parts;
    if (due_turn(rank) == call->turn) {
        return WEFT_OK;
    }
    unsigned long long ours = rank->publishes - rank->joined_publish + 1;
    unsigned long long theirs = call->turn - rank->joined_turn + 1;
    rank->joined_turn = 0;
    return weft_fail(parts->context, WEFT_INVALID_ARGUMENT,
                     "part %zu is at publish %llu since it joined, part 0 at publish %llu: give all parts "
                     "a label such as step=N, and publish the same step again on all",
                     parts->index, ours, theirs);
}

static weft_status obey_version(weft_parts_rank *rank, const weft_call *call, const char *const *labels) {
    bool known = strcmp(call->roll, rank->parts.roll_name) == 0;
    if (!known && strcmp(call->roll, rank->answered) != 0) {
        return WEFT_MORE; /* of members that this one does not belong to */
    }
    rank->heard = call->turn;
    weft_status status = check_step(rank, call);
    if (status == WEFT_OK && !known) {
        status = take_roll(rank, call);
    }
    status = status == WEFT_OK ? answer_version(rank, call, labels) : fail_turn(rank, call, status);
    return status == WEFT_OK ? WEFT_MORE : status;
}

/* The coordinator has gone on before this publish knew how its turn has ended, or had any part in it. */
static weft_status left_behind(weft_parts_rank *rank, const weft_call *call) {
    if (!is_busy(rank)) {
        rank->joined_turn = 0; /* else one that is behind for good would never join again */
    }
    leave_call(rank, call);
    remove_answer(rank);
    rank->turn = call->turn - 1;
    return weft_fail(
        rank->parts.context, WEFT_REMOTE_FAILED,
        "part 0 has given up the version that part %zu of %zu was to be of, and is at the next "
        "one; publish again on all parts",
        rank->parts.index, rank->parts.count);
}

/* A call to join is for the publish that is level with the coordinator's, as far as that is known. */
static bool is_too_late(const weft_parts_rank *rank, const weft_call *call) {
    if (is_busy(rank)) {
        return call->turn > rank->heard;
    }
    return call->kind == WEFT_CALL_JOIN && rank->joined_turn > 0 && call->turn > due_turn(rank);
}

/* WEFT_MORE: the publish is not over. */
static weft_status obey_call(weft_parts_rank *rank, const weft_call *call, const char *const *labels) {
    weft_status status;
    switch (call->kind) {
    case WEFT_CALL_JOIN:
        rank->heard = call->turn;
        status = answer_join(rank, call);
        return status == WEFT_OK ? WEFT_MORE : status;
    case WEFT_CALL_PATCH:
    case WEFT_CALL_WHOLE:
        return obey_version(rank, call, labels);
    case WEFT_CALL_DONE:
        if (!is_involved(rank)) {
            return WEFT_MORE;
        }
        rank->turn = call->turn;
        return weft_fail(rank->parts.context, WEFT_CONFLICT,
                         "version %llu was published without this process, part %zu of %zu",
                         (unsigned long long)call->version, rank->parts.index, rank->parts.count);
    case WEFT_CALL_FAILED:
    case WEFT_CALL_UNKNOWN:
    case WEFT_CALL_CLOSED:
        break;
    }
    if (!is_involved(rank)) {
        return WEFT_MORE;
    }
    /* of a publish that has ended before it heard of its turn; or of nobody knows which */
    bool earlier =
        (rank->joined_turn == 0 || call->turn < due_turn(rank)) && call->kind != WEFT_CALL_CLOSED;
    status = turn_failed(rank, call);
    return earlier ? WEFT_MORE : status;
}

static weft_status take_turn(weft_parts_rank *rank, const char *const *labels,
                             weft_publish_result *result) {
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        weft_call call;
        status = next_call(rank, &call);
        if (status != WEFT_OK) {
            return status;
        }
        status = WEFT_MORE;
        if (ends_edition(rank, &call)) {
            status = end_edition(rank, &call, result);
        }
        if (status == WEFT_MORE && rank->made && rank->current && call.kind == WEFT_CALL_UNKNOWN) {
            return turn_failed(rank, &call);
        }
        if (status == WEFT_MORE && !rank->made && is_too_late(rank, &call)) {
            return left_behind(rank, &call);
        }
        if (status == WEFT_MORE && !rank->made && call.turn > rank->turn) {
            status = obey_call(rank, &call, labels);
        }
    }
    return status;
}

void weft_parts_rank_count(weft_parts_rank *rank) {
    rank->publishes++;
}

/* An audit goes over so many bytes of the model, and re-sums what the copy holds of them: all parts
 * together re-sum as much as a process alone would. At once, while the coordinator does the same and has
 * not called yet. A copy that is ahead of its sums can wait for the next time. */
static weft_status audit_copy(weft_parts_rank *rank) {
    return rank->made ? WEFT_OK : weft_baseline_audit(&rank->baseline, AUDIT_BYTES);
}

weft_status weft_parts_rank_publish(weft_parts_rank *rank, const char *const *labels,
                                    weft_publish_result *result) {
    rank->current = false;
    rank->looked = 0;
    weft_status status = audit_copy(rank);
    if (status == WEFT_OK) {
        status = take_turn(rank, labels, result);
    }
    /* what is said later of a turn that this publish has given up is not the end of the next one */
    if (status != WEFT_OK && !rank->made && rank->heard > rank->turn) {
        rank->turn = rank->heard;
    }
    result->epoch = rank->parts.epoch;
    result->format = rank->parts.plan.format;
    return status;
}

/* ---- life ---- */

weft_status weft_parts_rank_open(weft_parts_rank *rank, weft_context *context, weft_store *store,
                                 const weft_view *view, const weft_publisher_options *options) {
    *rank = (weft_parts_rank){.wait = weft_pressure_patience(options)};
    weft_status status = weft_parts_open(&rank->parts, context, store, view, options);
    if (status == WEFT_OK) {
        status = weft_baseline_open(&rank->baseline, context, store, NULL, NULL);
        rank->baseline.trusted = options->key;
    }
    return status;
}

void weft_parts_rank_close(weft_parts_rank *rank) {
    if (rank->parts.context == NULL) {
        return;
    }
    forget_edition(rank);
    weft_baseline_close(&rank->baseline);
    weft_parts_close(&rank->parts);
}

void weft_publish_count(weft_publish_result *result, const weft_diff_stats *stats) {
    result->changed = stats->changed;
    result->total = stats->total;
    result->dense_bytes = stats->dense_bytes;
    result->patch_bytes = stats->patch_bytes;
    result->buckets = stats->buckets;
    result->base = stats->base;
    result->digest = stats->result;
}
