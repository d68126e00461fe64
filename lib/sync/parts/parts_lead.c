/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_lead.c: calling, collecting, checking and composing.
 */
#include "parts.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../objects/pieces.h"
#include "../publish/pressure.h"

#include <stdio.h>
#include <string.h>

enum { ANSWER_TEXT = 24 /* a number, or the name of a member */ };

static size_t bucket_count(const weft_parts_lead *lead) {
    return lead->parts.plan.plan.count;
}

static size_t tensor_count(const weft_parts_lead *lead) {
    return weft_view_count(lead->parts.view);
}

/* ---- calls ---- */

static weft_status put_call(weft_parts_lead *lead, weft_call *call) {
    weft_parts *parts = &lead->parts;
    char key[WEFT_KEY_SIZE];
    weft_writer writer;
    weft_status status = weft_hex_random(parts->context, (WEFT_PART_NAME - 1) / 2, call->name);
    if (status != WEFT_OK) {
        return status;
    }
    call->number = ++lead->number;
    call->turn = lead->turn;
    call->wait = (uint64_t)(1000 * weft_pressure_patience(parts->options));
    /* a call to join names itself: there is no other roll yet */
    memcpy(call->roll, parts->roll_name[0] != '\0' ? parts->roll_name : call->name, sizeof call->roll);
    weft_writer_open(&writer, parts->context);
    weft_call_write(call, &writer);
    weft_parts_key(parts, "call", "", key);
    status = weft_parts_put(parts, key, &writer, false);
    weft_writer_close(&writer);
    memcpy(lead->last, call->name, sizeof lead->last);
    return status;
}

void weft_parts_lead_tell(weft_parts_lead *lead, weft_call_kind kind, uint64_t version, bool anchor,
                          weft_status status) {
    weft_context *context = lead->parts.context;
    weft_call call = {.kind = kind, .version = version, .anchor = anchor, .status = status};
    if (!lead->called) {
        return;
    }
    snprintf(call.text, sizeof call.text, "%s", kind == WEFT_CALL_DONE ? "" : weft_context_error(context));
    lead->called = false;
    /* who is not told waits until it has waited long enough: this is said even by who was cancelled */
    weft_progress_hold(context);
    weft_status ignored = put_call(lead, &call);
    weft_progress_go_on(context);
    (void)ignored;
    if (kind != WEFT_CALL_DONE) {
        ignored = weft_fail(context, status, "%s", call.text);
        (void)ignored;
    }
}

static void remove_answer(weft_parts_lead *lead, const char *call, const char *rest) {
    char key[WEFT_KEY_SIZE];
    weft_parts_key(&lead->parts, call, rest, key);
    weft_status ignored = weft_store_remove(lead->parts.context, lead->parts.store, key);
    (void)ignored;
}

/* ---- collecting ---- */

/* Reads the answer of the part `index`, once. What that part failed of is the failure of it all. */
typedef weft_status (*read_answer)(void *opaque, size_t index, const uint8_t *data, size_t size);

typedef struct collection {
    weft_parts_lead *lead;
    const char *call;
    bool by_index; /* keys end with the number of the part; else with the name of the member */
    read_answer read;
    void *opaque;
} collection;

static void answer_rest(const collection *c, size_t index, char rest[ANSWER_TEXT]) {
    if (c->by_index) {
        snprintf(rest, ANSWER_TEXT, "%zu", index);
    } else {
        memcpy(rest, c->lead->parts.roll.members[index], WEFT_PART_NAME);
    }
}

/* WEFT_MORE: there is no answer yet, or it was damaged on its way. */
static weft_status try_answer(const collection *c, size_t index) {
    weft_parts *parts = &c->lead->parts;
    char key[WEFT_KEY_SIZE];
    char rest[ANSWER_TEXT];
    weft_received answer;
    answer_rest(c, index, rest);
    weft_parts_key(parts, c->call, rest, key);
    weft_status status = weft_parts_get(parts, key, &answer);
    if (status == WEFT_NOT_FOUND || status == WEFT_CHECKSUM_MISMATCH) {
        return WEFT_MORE;
    }
    if (status == WEFT_OK) {
        status = c->read(c->opaque, index, answer.data, answer.size);
        weft_received_close(&answer);
    }
    return status;
}

static weft_status too_late(weft_parts *parts, const bool *answered) {
    char list[128] = "";
    size_t length = 0;
    for (size_t i = 1; i < parts->count && length + 16 < sizeof list; i++) {
        if (!answered[i]) {
            length += (size_t)snprintf(list + length, sizeof list - length, " %zu", i);
        }
    }
    return weft_fail(parts->context, WEFT_REMOTE_FAILED,
                     "nothing was published: of %zu parts, these did not come within %g seconds:%s; see "
                     "whether they live, and publish again on all",
                     parts->count, parts->seconds, list);
}

/* Waits until each part but ours has answered. Answers that were damaged on their way are read again. */
static weft_status collect_all(const collection *c, bool *answered) {
    weft_parts *parts = &c->lead->parts;
    size_t missing = parts->count - 1;
    weft_parts_wait wait;
    weft_parts_wait_begin(parts->seconds, &wait);
    for (;;) {
        for (size_t i = 1; i < parts->count; i++) {
            weft_status status = answered[i] ? WEFT_MORE : try_answer(c, i);
            if (status == WEFT_OK) {
                answered[i] = true;
                missing--;
            } else if (status != WEFT_MORE) {
                return status;
            }
        }
        if (missing == 0) {
            return WEFT_OK;
        }
        weft_status status = weft_parts_wait_more(parts, &wait);
        if (status != WEFT_OK) {
            return status == WEFT_MORE ? too_late(parts, answered) : status;
        }
    }
}

static weft_status collect_answers(const collection *c) {
    weft_parts *parts = &c->lead->parts;
    bool *answered = weft_allocate_zeroed(parts->context, parts->count, sizeof *answered);
    if (answered == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_failure failure = weft_failure_keep(parts->context, collect_all(c, answered));
    for (size_t i = 1; i < parts->count; i++) {
        char rest[ANSWER_TEXT];
        answer_rest(c, i, rest);
        if (answered[i]) {
            remove_answer(c->lead, c->call, rest);
        }
    }
    weft_release(parts->context, answered);
    return weft_failure_tell(parts->context, &failure);
}

/* ---- gathering the members ---- */

typedef struct gathering {
    weft_parts_lead *lead;
    weft_part_holding *holdings; /* of each part */
    weft_part_roll roll;
} gathering;

static weft_status check_holding(const weft_parts *parts, size_t index, const weft_part_holding *holding) {
    if (holding->index != index || holding->count != parts->count) {
        return weft_fail(parts->context, WEFT_INVALID_ARGUMENT,
                         "part %llu of %llu has come where part %zu of %zu was expected",
                         (unsigned long long)holding->index, (unsigned long long)holding->count, index,
                         parts->count);
    }
    if (!weft_hash_equal(&holding->plan, &parts->plan_hash) || holding->held == NULL) {
        return weft_fail(
            parts->context, WEFT_INVALID_ARGUMENT,
            "part %zu publishes another model than part 0, or cuts it otherwise; give all parts "
            "the same tensors, profile, bucket size and cuts",
            index);
    }
    return WEFT_OK;
}

static weft_status read_holding(void *opaque, size_t index, const uint8_t *data, size_t size) {
    gathering *g = opaque;
    weft_parts *parts = &g->lead->parts;
    weft_status status =
        weft_part_holding_read(parts->context, data, size, bucket_count(g->lead), &g->holdings[index]);
    return status == WEFT_OK ? check_holding(parts, index, &g->holdings[index]) : status;
}

static size_t holders_of(const gathering *g, size_t bucket, size_t *last) {
    size_t holders = 0;
    for (size_t i = 0; i < g->lead->parts.count; i++) {
        if (g->holdings[i].held[bucket]) {
            holders++;
            *last = i;
        }
    }
    return holders;
}

static size_t least_loaded(const gathering *g, const uint64_t *loads, size_t bucket) {
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < g->lead->parts.count; i++) {
        if (g->holdings[i].held[bucket] && (best == SIZE_MAX || loads[i] < loads[best])) {
            best = i;
        }
    }
    return best;
}

/* What one alone holds is its own; of the rest each bucket goes to the holder that has the least. */
static weft_status share_out(gathering *g, uint64_t *loads) {
    const weft_parts *parts = &g->lead->parts;
    for (int shared = 0; shared < 2; shared++) {
        for (size_t i = 0; i < bucket_count(g->lead); i++) {
            size_t owner = 0;
            size_t holders = holders_of(g, i, &owner);
            if (holders == 0) {
                const char *name = weft_part_tensor(&parts->plan, i);
                return weft_fail(parts->context, WEFT_INVALID_ARGUMENT,
                                 "no part holds all of a bucket that begins with tensor %s; if that is "
                                 "sharded, tell how with a cut of it, the same on every part",
                                 name);
            }
            if ((holders > 1) != (shared == 1)) {
                continue;
            }
            owner = shared ? least_loaded(g, loads, i) : owner;
            g->roll.owners[i] = (uint16_t)owner;
            loads[owner] += weft_part_weight(&parts->plan, i);
        }
    }
    return WEFT_OK;
}

static weft_status make_roll(gathering *g) {
    weft_parts *parts = &g->lead->parts;
    weft_context *context = parts->context;
    g->roll = (weft_part_roll){.member_count = parts->count, .bucket_count = bucket_count(g->lead)};
    g->roll.members = weft_allocate_zeroed(context, parts->count, sizeof *g->roll.members);
    g->roll.owners = weft_allocate_zeroed(context, bucket_count(g->lead), sizeof *g->roll.owners);
    uint64_t *loads = weft_allocate_zeroed(context, parts->count, sizeof *loads);
    weft_status status = WEFT_NO_MEMORY;
    if (g->roll.members != NULL && g->roll.owners != NULL && loads != NULL) {
        for (size_t i = 0; i < parts->count; i++) {
            memcpy(g->roll.members[i], g->holdings[i].member, WEFT_PART_NAME);
        }
        status = share_out(g, loads);
    }
    weft_release(context, loads);
    return status;
}

static weft_status own_holding(gathering *g) {
    const weft_parts *parts = &g->lead->parts;
    weft_part_holding *own = &g->holdings[0];
    own->held = weft_allocate_array(parts->context, bucket_count(g->lead), sizeof *own->held);
    if (own->held == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(own->held, parts->held, bucket_count(g->lead) * sizeof *own->held);
    memcpy(own->member, parts->member, sizeof own->member);
    return WEFT_OK;
}

static weft_status fill_roll(gathering *g, weft_baseline *baseline, uint64_t version) {
    weft_parts_lead *lead = g->lead;
    weft_call call = {.kind = WEFT_CALL_JOIN, .version = version};
    weft_status status = own_holding(g);
    if (status == WEFT_OK) {
        lead->called = true; /* even if we never hear that the call has arrived */
        status = put_call(lead, &call);
    }
    if (status == WEFT_OK) {
        const collection answers = {lead, call.name, true, read_holding, g};
        status = collect_answers(&answers);
    }
    if (status == WEFT_OK) {
        status = make_roll(g);
    }
    if (status == WEFT_OK) {
        weft_parts *parts = &g->lead->parts;
        char key[WEFT_KEY_SIZE];
        weft_writer writer;
        weft_writer_open(&writer, parts->context);
        weft_part_roll_write(&g->roll, &writer);
        weft_parts_key(parts, call.name, "roll", key);
        status = weft_parts_put(parts, key, &writer, false);
        weft_writer_close(&writer);
    }
    return status == WEFT_OK ? weft_parts_enrol(&lead->parts, call.name, &g->roll, baseline) : status;
}

/* The members are asked anew: one of them may be another process by now. */
static void dismiss_members(weft_parts_lead *lead) {
    if (lead->parts.roll_name[0] != '\0') {
        remove_answer(lead, lead->parts.roll_name, "roll");
        lead->parts.roll_name[0] = '\0';
    }
}

static weft_status gather_members(weft_parts_lead *lead, weft_baseline *baseline, uint64_t version) {
    weft_context *context = lead->parts.context;
    gathering g = {.lead = lead};
    g.holdings = weft_allocate_zeroed(context, lead->parts.count, sizeof *g.holdings);
    if (g.holdings == NULL) {
        return WEFT_NO_MEMORY;
    }
    lead->totalled = false;
    weft_status status = fill_roll(&g, baseline, version);
    for (size_t i = 0; i < lead->parts.count; i++) {
        weft_part_holding_close(&g.holdings[i], context);
    }
    weft_release(context, g.holdings);
    weft_part_roll_close(&g.roll, context);
    return status;
}

void weft_parts_lead_count(weft_parts_lead *lead) {
    lead->turn++;
}

weft_status weft_parts_lead_begin(weft_parts_lead *lead, weft_baseline *baseline,
                                  const weft_sync_head *head, uint64_t version) {
    lead->parts.epoch = head->epoch;
    weft_part_plan_set_format(&lead->parts.plan, head->format);
    memcpy(lead->parts.run, head->run, sizeof lead->parts.run);
    return lead->parts.roll_name[0] == '\0' ? gather_members(lead, baseline, version) : WEFT_OK;
}

/* ---- a version ---- */

typedef struct making {
    weft_parts_lead *lead;
    const weft_parts_order *order;
    weft_call call;
    weft_writer header;            /* which stands before our own frames */
    weft_part_manifest *manifests; /* of each part; the first is a loan of the edition's */
    bool *covered;                 /* each bucket: some part has sent it */
    bool refused;
} making;

static bool same_texts(const weft_texts *a, const weft_texts *b) {
    if (a->count != b->count) {
        return false;
    }
    for (size_t i = 0; i < a->count; i++) {
        if (strcmp(a->items[i], b->items[i]) != 0) {
            return false;
        }
    }
    return true;
}

/* Each bucket from its owner, once; their lengths are those of the piece. */
static bool covers_buckets(making *m, size_t index) {
    const weft_parts *parts = &m->lead->parts;
    const weft_part_manifest *manifest = &m->manifests[index];
    uint64_t bytes = 0;
    for (size_t i = 0; i < manifest->frame_count; i++) {
        const weft_part_frame *frame = &manifest->frames[i];
        if (frame->bucket >= bucket_count(m->lead) || parts->roll.owners[frame->bucket] != index ||
            m->covered[frame->bucket] || frame->length == 0 || frame->length > UINT32_MAX ||
            frame->changed == 0 || frame->changed > parts->plan.plan.items[frame->bucket].bucket.units) {
            return false;
        }
        m->covered[frame->bucket] = true;
        bytes += frame->length;
    }
    bytes += index == 0 ? m->header.size : 0;
    return bytes == manifest->piece.bytes;
}

/* What the history is to name must be what a collector may remove some day. */
static bool is_removable(const weft_part_manifest *manifest) {
    return manifest->frame_count == 0 ||
           (weft_key_collectable(manifest->piece.key) &&
            (!manifest->piece.listed || weft_key_collectable(manifest->piece.list.key)));
}

static weft_status check_manifest(making *m, size_t index) {
    weft_context *context = m->lead->parts.context;
    const weft_part_manifest *manifest = &m->manifests[index];
    if (strcmp(manifest->member, m->lead->parts.roll.members[index]) != 0 || manifest->moves == NULL ||
        (m->call.sums && manifest->sums == NULL) || !is_removable(manifest) || !covers_buckets(m, index)) {
        return weft_fail(context, WEFT_MALFORMED,
                         "nothing was published: what part %zu says of its buckets is not what it owns",
                         index);
    }
    if (!same_texts(&manifest->labels, &m->manifests[0].labels)) {
        const weft_texts *labels = &manifest->labels;
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "nothing was published: part %zu gives other labels than part 0 (%s %s): are all "
                         "parts at the same step?",
                         index, labels->count > 0 ? labels->items[0] : "no label",
                         labels->count > 1 ? labels->items[1] : "");
    }
    return WEFT_OK;
}

static weft_status read_manifest(void *opaque, size_t index, const uint8_t *data, size_t size) {
    making *m = opaque;
    weft_parts_lead *lead = m->lead;
    weft_part_manifest *manifest = &m->manifests[index];
    weft_status status = weft_part_manifest_read(lead->parts.context, data, size, bucket_count(lead),
                                                 tensor_count(lead), manifest);
    if (status != WEFT_OK) {
        return status;
    }
    if (manifest->status == WEFT_OK) {
        return check_manifest(m, index);
    }
    m->refused = m->refused || manifest->status == WEFT_BASE_MISMATCH;
    return weft_fail(lead->parts.context, (weft_status)manifest->status,
                     "nothing was published: part %zu failed: %s", index, manifest->text);
}

/* With a whole version or an anchor, no bucket may be missing. */
static weft_status check_cover(const making *m, bool whole) {
    for (size_t i = 0; whole && i < bucket_count(m->lead); i++) {
        if (!m->covered[i]) {
            return weft_fail(m->lead->parts.context, WEFT_MALFORMED,
                             "nothing was published: no part has sent all of tensor %s",
                             weft_part_tensor(&m->lead->parts.plan, i));
        }
    }
    return WEFT_OK;
}

static weft_sum look_up(void *opaque, size_t tensor) {
    return ((const weft_sum *)opaque)[tensor];
}

static weft_digest digest_of(const weft_parts_lead *lead, weft_sum *totals) {
    return weft_state_digest(lead->parts.view, look_up, totals);
}

static void add_up(const making *m, bool moves, weft_sum *totals) {
    for (size_t i = 0; i < m->lead->parts.count; i++) {
        const weft_sum *sums = moves ? m->manifests[i].moves : m->manifests[i].sums;
        for (size_t j = 0; j < tensor_count(m->lead); j++) {
            weft_sum_add(&totals[j], sums[j]);
        }
    }
}

/* What the parts start from must be what was published, all of them together. */
static weft_status check_base(making *m) {
    weft_parts_lead *lead = m->lead;
    if (m->call.sums) {
        memset(lead->totals, 0, tensor_count(lead) * sizeof *lead->totals);
        add_up(m, false, lead->totals);
    }
    weft_digest digest = digest_of(lead, lead->totals);
    lead->totalled = weft_digest_equal(&digest, &m->order->base);
    if (!lead->totalled) {
        m->refused = true;
        return weft_fail(lead->parts.context, WEFT_BASE_MISMATCH,
                         "the copies that the parts have of version %llu are not what was published",
                         (unsigned long long)m->order->version - 1);
    }
    return WEFT_OK;
}

static void sum_up(making *m, bool whole, weft_parts_made *made) {
    weft_parts_lead *lead = m->lead;
    weft_diff_stats *stats = &made->stats;
    weft_sum *next = lead->next_totals;
    memset(next, 0, tensor_count(lead) * sizeof *next);
    stats->base = weft_state_nothing();
    if (!whole) {
        memcpy(next, lead->totals, tensor_count(lead) * sizeof *next);
        stats->base = m->order->base;
    }
    add_up(m, true, next);
    stats->result = digest_of(lead, next);
}

/* ---- around the frames ---- */

/* Starts to put what stands behind the frames, and adds it to the list. */
static weft_status put_tail(const making *m, const char *room, const weft_writer *tail, weft_pieces *pieces,
                            weft_parts_made *made) {
    weft_parts *parts = &m->lead->parts;
    weft_context *context = parts->context;
    char key[WEFT_KEY_SIZE];
    weft_object piece;
    weft_status status = weft_sync_key(context, room, parts->epoch, m->order->version, key);
    if (status == WEFT_OK) {
        status = weft_parcel_send(context, parts->store, key, tail->data, tail->size, &made->tail);
    }
    if (status == WEFT_OK) {
        status = weft_spool_describe(context, made->tail.spool, key, parts->store, &piece);
    }
    return status == WEFT_OK ? weft_pieces_add(pieces, &piece) : status;
}

static weft_status list_frames(const making *m, weft_part_frame **frames_out, size_t *count_out) {
    size_t count = 0;
    for (size_t i = 0; i < m->lead->parts.count; i++) {
        count += m->manifests[i].frame_count;
    }
    weft_part_frame *frames = weft_allocate_array(m->lead->parts.context, count, sizeof *frames);
    if (frames == NULL) {
        return WEFT_NO_MEMORY;
    }
    *count_out = count;
    *frames_out = frames;
    for (size_t i = 0; i < m->lead->parts.count; i++) {
        const weft_part_manifest *manifest = &m->manifests[i];
        memcpy(frames, manifest->frames, manifest->frame_count * sizeof *frames);
        frames += manifest->frame_count;
    }
    return WEFT_OK;
}

static weft_status list_pieces(const making *m, bool whole, weft_pieces *pieces, weft_parts_made *made) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < m->lead->parts.count && status == WEFT_OK; i++) {
        const weft_object *piece = &m->manifests[i].piece;
        status = piece->bytes > 0 ? weft_pieces_add(pieces, piece) : WEFT_OK;
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_context *context = m->lead->parts.context;
    weft_part_frame *frames;
    size_t count;
    weft_writer tail;
    status = list_frames(m, &frames, &count);
    if (status != WEFT_OK) {
        return status;
    }
    weft_writer_open(&tail, context);
    status = weft_part_write_tail(&m->lead->parts.plan, whole, frames, count, m->header.size, &tail,
                                  &made->stats);
    if (status == WEFT_OK) {
        status = put_tail(m, whole ? "anchors" : "patches", &tail, pieces, made);
    }
    weft_writer_close(&tail);
    weft_release(context, frames);
    return status;
}

static weft_status compose_object(const making *m, bool whole, weft_parts_made *made) {
    weft_parts *parts = &m->lead->parts;
    char key[WEFT_KEY_SIZE];
    weft_pieces pieces;
    weft_pieces_open(&pieces, parts->context);
    weft_status status = list_pieces(m, whole, &pieces, made);
    if (status == WEFT_OK) {
        status = weft_sync_key(parts->context, "pieces", parts->epoch, m->order->version, key);
    }
    if (status == WEFT_OK) {
        status = weft_pieces_send(&pieces, parts->store, key, &made->list, &made->object);
    }
    weft_pieces_close(&pieces);
    return status;
}

/* ---- all of it ---- */

/* Our own part, then everybody's; the members work at the same time. */
static weft_status make_parts(making *m, weft_baseline *baseline, weft_parts_made *made) {
    weft_parts_lead *lead = m->lead;
    const weft_part_task task = {
        .kind = m->call.kind,
        .version = m->order->version,
        .sums = m->call.sums,
        .labels = m->order->labels,
        .before = &m->header,
    };
    weft_status status = weft_part_write_header(&lead->parts.plan, m->order->whole, m->order->container,
                                                m->order->labels, &m->header);
    if (status == WEFT_OK) {
        status = weft_part_edition_make(&lead->parts, baseline, &task, &made->own);
    }
    if (status != WEFT_OK) {
        return status;
    }
    m->manifests[0] = made->own.manifest;
    status = check_manifest(m, 0);
    if (status == WEFT_OK) {
        const collection answers = {lead, m->call.name, false, read_manifest, m};
        status = collect_answers(&answers);
    }
    return status;
}

static weft_status open_making(making *m) {
    weft_context *context = m->lead->parts.context;
    m->manifests = weft_allocate_zeroed(context, m->lead->parts.count, sizeof *m->manifests);
    m->covered = weft_allocate_zeroed(context, bucket_count(m->lead), sizeof *m->covered);
    weft_writer_open(&m->header, context);
    return m->manifests != NULL && m->covered != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

static void close_making(making *m) {
    weft_context *context = m->lead->parts.context;
    for (size_t i = 1; m->manifests != NULL && i < m->lead->parts.count; i++) {
        weft_part_manifest_close(&m->manifests[i], context);
    }
    weft_release(context, m->manifests);
    weft_release(context, m->covered);
    weft_writer_close(&m->header);
}

static weft_status join_ends(weft_context *context, weft_parts_made *made, weft_status status) {
    status = weft_parcel_join(context, &made->tail, status);
    return weft_parcel_join(context, &made->list, status);
}

/* The failure's text outlives what is undone. */
static weft_status give_up(weft_parts_lead *lead, weft_baseline *baseline, weft_parts_made *made,
                           weft_status status) {
    weft_context *context = lead->parts.context;
    status = join_ends(context, made, status);
    weft_failure failure = weft_failure_keep(context, status);
    if (made->own.ahead) {
        weft_baseline_undo(baseline);
    }
    weft_part_edition_close(&made->own, context);
    /* one that did not answer may have been replaced, and those that are out of step agree on a step anew
     */
    if (status == WEFT_REMOTE_FAILED || status == WEFT_INVALID_ARGUMENT) {
        dismiss_members(lead);
    }
    return weft_failure_tell(context, &failure);
}

weft_status weft_parts_lead_make(weft_parts_lead *lead, weft_baseline *baseline,
                                 const weft_parts_order *order, weft_parts_made *made) {
    making m = {.lead = lead, .order = order};
    m.call = (weft_call){
        .kind = order->whole ? WEFT_CALL_WHOLE : WEFT_CALL_PATCH,
        .version = order->version,
        .sums = !order->whole && !lead->totalled,
        .base = order->base,
    };
    *made = (weft_parts_made){.refused = false};
    weft_status status = open_making(&m);
    if (status == WEFT_OK) {
        lead->called = true;
        status = put_call(m.lead, &m.call);
    }
    if (status == WEFT_OK) {
        status = make_parts(&m, baseline, made);
    }
    if (status == WEFT_OK) {
        status = check_cover(&m, order->whole);
    }
    if (status == WEFT_OK && !order->whole) {
        status = check_base(&m);
    }
    if (status == WEFT_OK) {
        sum_up(&m, order->whole, made);
        status = compose_object(&m, order->whole, made);
    }
    made->refused = status != WEFT_OK && m.refused;
    close_making(&m);
    return status == WEFT_OK ? WEFT_OK : give_up(lead, baseline, made, status);
}

void weft_parts_lead_settle(weft_parts_lead *lead) {
    weft_sum *former = lead->totals;
    lead->totals = lead->next_totals;
    lead->next_totals = former;
    lead->totalled = true;
}

weft_status weft_parts_lead_anchor(weft_parts_lead *lead, weft_baseline *baseline, weft_anchor *anchor,
                                   const weft_container *container) {
    const weft_parts_order order = {.whole = true, .version = anchor->version, .container = container};
    making m = {.lead = lead, .order = &order, .call = {.kind = WEFT_CALL_DONE}};
    weft_parts_made made = {.refused = false};
    memcpy(m.call.name, lead->last, sizeof m.call.name);
    weft_status status = open_making(&m);
    if (status == WEFT_OK) {
        status = make_parts(&m, baseline, &made);
    }
    if (status == WEFT_OK) {
        status = check_cover(&m, true);
    }
    if (status == WEFT_OK) {
        sum_up(&m, true, &made);
    }
    if (status == WEFT_OK && !weft_digest_equal(&made.stats.result, &anchor->digest)) {
        status = weft_fail(lead->parts.context, WEFT_DIGEST_MISMATCH,
                           "the copy of version %llu that an anchor was to be made of has drifted",
                           (unsigned long long)order.version);
    }
    if (status == WEFT_OK) {
        status = compose_object(&m, true, &made);
    }
    status = join_ends(lead->parts.context, &made, status);
    if (status == WEFT_OK) {
        anchor->object = made.object;
    }
    close_making(&m);
    weft_part_edition_close(&made.own, lead->parts.context);
    return status;
}

/* ---- life ---- */

weft_status weft_parts_lead_open(weft_parts_lead *lead, weft_context *context, weft_store *store,
                                 const weft_view *view, const weft_publisher_options *options) {
    *lead = (weft_parts_lead){.number = 0};
    weft_status status = weft_parts_open(&lead->parts, context, store, view, options);
    if (status == WEFT_OK) {
        lead->totals = weft_allocate_zeroed(context, tensor_count(lead), sizeof *lead->totals);
        lead->next_totals = weft_allocate_zeroed(context, tensor_count(lead), sizeof *lead->next_totals);
        status = lead->totals != NULL && lead->next_totals != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    return status;
}

void weft_parts_lead_close(weft_parts_lead *lead) {
    weft_context *context = lead->parts.context;
    if (context == NULL) {
        return;
    }
    if (lead->number > 0) {
        weft_call call = {.kind = WEFT_CALL_CLOSED, .status = WEFT_REMOTE_FAILED};
        lead->turn++;
        weft_status ignored = put_call(lead, &call);
        (void)ignored;
        dismiss_members(lead);
    }
    weft_release(context, lead->totals);
    weft_release(context, lead->next_totals);
    weft_parts_close(&lead->parts);
}
