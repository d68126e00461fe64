/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.c: what the coordinator and the members of a version in parts have in common.
 */
#include "parts.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double PART_SECONDS = 60;
static const double PAUSE_LEAST = 0.0001;
static const double PAUSE_SHARE = 1.0 / 16; /* of what was waited already */
static const double PAUSE_LOCAL = 0.001;
static const double PAUSE_REMOTE = 0.05;

enum { FIRST_BYTES = 64 << 10 };

/* ---- opening ---- */

static weft_status hash_plan(weft_parts *parts) {
    weft_writer writer;
    weft_writer_open(&writer, parts->context);
    weft_part_plan_write(&parts->plan, &writer);
    weft_status status = weft_writer_failed(&writer) ? WEFT_NO_MEMORY
                                                     : weft_hash_compute(parts->context, writer.data,
                                                                         writer.size, &parts->plan_hash);
    weft_writer_close(&writer);
    return status;
}

weft_status weft_parts_open(weft_parts *parts, weft_context *context, weft_store *store,
                            const weft_view *view, const weft_publisher_options *options) {
    *parts = (weft_parts){
        .context = context,
        .store = store,
        .view = view,
        .options = options,
        .index = options->part_index,
        .count = options->part_count,
        .seconds = options->part_seconds > 0 ? options->part_seconds : PART_SECONDS,
    };
    const weft_diff_options diff = {
        .profile = options->profile,
        .bucket_bytes = options->bucket_bytes,
        .cuts = options->cuts,
        .cut_count = options->cut_count,
    };
    weft_status status = weft_part_plan_open(&parts->plan, context, view, &diff);
    if (status == WEFT_OK) {
        status = hash_plan(parts);
    }
    if (status == WEFT_OK) {
        status = weft_hex_random(context, (WEFT_PART_NAME - 1) / 2, parts->member);
    }
    if (status == WEFT_OK) {
        parts->held = weft_allocate_zeroed(context, parts->plan.plan.count, sizeof *parts->held);
        status = parts->held != NULL ? weft_part_holds(&parts->plan, view, parts->held) : WEFT_NO_MEMORY;
    }
    return status;
}

void weft_parts_close(weft_parts *parts) {
    if (parts->context == NULL) {
        return;
    }
    weft_part_plan_close(&parts->plan);
    weft_part_roll_close(&parts->roll, parts->context);
    weft_release(parts->context, parts->held);
    weft_release(parts->context, parts->owned);
}

/* ---- messages in the store ---- */

void weft_parts_key(const weft_parts *parts, const char *call, const char *rest, char key[WEFT_KEY_SIZE]) {
    snprintf(key, WEFT_KEY_SIZE, "parts/%08llu/%s%s%s", (unsigned long long)parts->epoch, call,
             rest[0] != '\0' ? "-" : "", rest);
}

/* Messages are of this run alone, and one that a power cut has torn does not match its checksum. */
weft_status weft_parts_put(weft_parts *parts, const char *key, weft_writer *writer,
                           weft_store_condition condition) {
    const weft_message_seal seal = {parts->options->key, parts->run, key};
    weft_status status = weft_message_close(parts->context, &seal, writer);
    return status == WEFT_OK ? weft_store_put_message(parts->context, parts->store, key, writer->data,
                                                      writer->size, condition)
                             : status;
}

weft_status weft_parts_open_message(const weft_parts *parts, const char *key, const uint8_t *data,
                                    size_t *size) {
    const weft_message_seal seal = {parts->options->key, parts->run, key};
    return weft_message_open(parts->context, &seal, data, *size, size);
}

static weft_status get_once(weft_parts *parts, const char *key, uint64_t room, uint8_t **data_out,
                            weft_store_get_result *result) {
    uint8_t *data = weft_allocate(parts->context, (size_t)room);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_store_get_request request = {.key = key, .length = room, .buffer = data};
    weft_status status = weft_store_get(parts->context, parts->store, &request, result);
    if (status != WEFT_OK) {
        weft_release(parts->context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}

weft_status weft_parts_get(weft_parts *parts, const char *key, uint8_t **data_out, size_t *size_out) {
    weft_store_get_result result;
    uint8_t *data;
    weft_status status = get_once(parts, key, FIRST_BYTES, &data, &result);
    if (status == WEFT_OK && result.size > result.received) {
        weft_release(parts->context, data);
        status = result.size <= WEFT_MESSAGE_BYTES
                     ? get_once(parts, key, result.size, &data, &result)
                     : weft_fail(parts->context, WEFT_LIMIT_EXCEEDED, "%s/%s has %llu bytes, too many",
                                 weft_store_url(parts->store), key, (unsigned long long)result.size);
    }
    if (status != WEFT_OK) {
        return status;
    }
    *size_out = (size_t)result.received;
    status = weft_parts_open_message(parts, key, data, size_out);
    if (status != WEFT_OK) {
        weft_release(parts->context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}

void weft_parts_wait_begin(const weft_parts *parts, double seconds, weft_parts_wait *wait) {
    wait->most = weft_store_traits_of(parts->store).directory != NULL ? PAUSE_LOCAL : PAUSE_REMOTE;
    wait->start = weft_clock_now();
    wait->deadline = wait->start + seconds;
}

weft_status weft_parts_wait_more(weft_parts *parts, weft_parts_wait *wait) {
    double now = weft_clock_now();
    if (now >= wait->deadline) {
        return WEFT_MORE;
    }
    double pause = (now - wait->start) * PAUSE_SHARE;
    pause = pause > PAUSE_LEAST ? pause : PAUSE_LEAST;
    return weft_clock_sleep(parts->context, pause < wait->most ? pause : wait->most);
}

/* ---- the roll ---- */

weft_status weft_parts_hold(const weft_parts *parts, weft_writer *writer) {
    weft_part_holding holding = {
        .index = parts->index,
        .count = parts->count,
        .plan = parts->plan_hash,
        .held = parts->held,
        .bucket_count = parts->plan.plan.count,
    };
    memcpy(holding.member, parts->member, sizeof holding.member);
    weft_part_holding_write(&holding, writer);
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}

static bool same_owned(const weft_parts *parts, const bool *owned) {
    return parts->owned != NULL && memcmp(parts->owned, owned, parts->plan.plan.count * sizeof *owned) == 0;
}

weft_status weft_parts_enrol(weft_parts *parts, const char *name, weft_part_roll *roll,
                             weft_baseline *baseline) {
    size_t count = parts->plan.plan.count;
    bool *owned = weft_allocate_zeroed(parts->context, count, sizeof *owned);
    if (owned == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        owned[i] = roll->owners[i] == parts->index;
    }
    weft_status status = same_owned(parts, owned)
                             ? WEFT_OK
                             : weft_baseline_share(baseline, parts->view, &parts->plan, owned);
    if (status != WEFT_OK) {
        weft_release(parts->context, owned);
        return status;
    }
    weft_release(parts->context, parts->owned);
    parts->owned = owned;
    weft_part_roll_close(&parts->roll, parts->context);
    parts->roll = *roll;
    *roll = (weft_part_roll){.members = NULL};
    snprintf(parts->roll_name, sizeof parts->roll_name, "%s", name);
    return WEFT_OK;
}

/* ---- this part of a version ---- */

static weft_status take_totals(weft_parts *parts, const weft_sums *moves, weft_part_manifest *manifest) {
    size_t count = weft_view_count(parts->view);
    manifest->moves = weft_allocate_zeroed(parts->context, count, sizeof *manifest->moves);
    if (manifest->moves == NULL) {
        return WEFT_NO_MEMORY;
    }
    manifest->tensor_count = count;
    for (size_t i = 0; i < count; i++) {
        manifest->moves[i] = weft_sums_total(moves, i);
    }
    return WEFT_OK;
}

/* The sums of the owned buckets as they are in the copy. */
static weft_status take_sums(weft_parts *parts, const weft_baseline *baseline,
                             weft_part_manifest *manifest) {
    size_t count = weft_view_count(parts->view);
    manifest->sums = weft_allocate_zeroed(parts->context, count, sizeof *manifest->sums);
    return manifest->sums != NULL ? weft_part_total(parts->context, &parts->plan, parts->owned,
                                                    baseline->mirror.view, manifest->sums)
                                  : WEFT_NO_MEMORY;
}

/* The copy is filled first, so that what is sent and what is kept are the same even if the weights do not
 * stay still. */
static weft_status fill_copy(weft_parts *parts, weft_baseline *baseline) {
    baseline->holds = false;
    return weft_part_copy(parts->context, &parts->plan, parts->owned, parts->view, baseline->mirror.view);
}

static weft_status encode(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                          weft_part_edition *edition) {
    bool patch = task->kind == WEFT_CALL_PATCH;
    const weft_part_request request = {
        .plan = &parts->plan,
        .owned = parts->owned,
        .base = patch ? baseline->mirror.view : NULL,
        .next = patch ? parts->view : baseline->mirror.view,
        .trail = patch ? &baseline->trail : NULL,
    };
    weft_part_result result;
    weft_sink sink = weft_spool_sink(edition->spool);
    weft_status status = weft_part_encode(parts->context, &request, &sink, &result);
    if (status != WEFT_OK) {
        return status;
    }
    edition->ahead = patch;
    edition->manifest.frames = result.frames;
    edition->manifest.frame_count = result.frame_count;
    status = take_totals(parts, result.moves, &edition->manifest);
    if (patch) {
        weft_sums_merge(result.moves, baseline->sums, false);
        edition->new_sums = result.moves;
    } else {
        weft_sums_destroy(result.moves);
    }
    return status;
}

static weft_status make_frames(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                               weft_part_edition *edition) {
    weft_sink sink = weft_spool_sink(edition->spool);
    weft_status status =
        task->before != NULL ? sink.write(sink.opaque, task->before->data, task->before->size) : WEFT_OK;
    if (status == WEFT_OK && task->sums) {
        status = take_sums(parts, baseline, &edition->manifest);
    }
    if (status == WEFT_OK) {
        status = encode(parts, baseline, task, edition);
    }
    if (status == WEFT_OK && task->kind == WEFT_CALL_WHOLE) {
        status = weft_sums_compute(parts->context, baseline->mirror.view, &edition->new_sums);
    }
    return weft_spool_finish(edition->spool, status);
}

static weft_status upload_frames(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                                 const char *key, weft_part_edition *edition) {
    weft_context *context = parts->context;
    weft_upload *upload;
    weft_status status = weft_upload_start(context, parts->store, key, edition->spool, &upload);
    if (status != WEFT_OK) {
        return status;
    }
    return weft_upload_join(context, upload, make_frames(parts, baseline, task, edition));
}

/* A member in which nothing has changed has no piece. */
static weft_status describe_piece(weft_parts *parts, const weft_part_task *task, const char *key,
                                  weft_part_edition *edition) {
    char list_key[WEFT_KEY_SIZE];
    if (edition->manifest.frame_count == 0 && task->before == NULL) {
        return weft_store_remove(parts->context, parts->store, key);
    }
    weft_status status = weft_sync_key(parts->context, "chunks", parts->epoch, task->version, list_key);
    return status == WEFT_OK ? weft_spool_describe(parts->context, edition->spool, key, list_key,
                                                   parts->store, &edition->manifest.piece)
                             : status;
}

static weft_status copy_labels(weft_parts *parts, const weft_part_task *task, weft_texts *labels) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; task->labels != NULL && task->labels[i] != NULL && status == WEFT_OK; i++) {
        status = weft_texts_add(labels, parts->context, task->labels[i]);
    }
    return status;
}

static weft_status make(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                        weft_part_edition *edition) {
    bool patch = task->kind == WEFT_CALL_PATCH;
    char key[WEFT_KEY_SIZE];
    weft_status status = copy_labels(parts, task, &edition->manifest.labels);
    if (status == WEFT_OK && task->kind == WEFT_CALL_WHOLE) {
        status = fill_copy(parts, baseline);
    }
    if (status == WEFT_OK) {
        status =
            weft_sync_key(parts->context, patch ? "patches" : "anchors", parts->epoch, task->version, key);
    }
    if (status == WEFT_OK) {
        status = weft_spool_open(parts->context, patch ? NULL : weft_spool_directory(parts->options),
                                 &edition->spool);
    }
    if (status == WEFT_OK) {
        status = upload_frames(parts, baseline, task, key, edition);
    }
    return status == WEFT_OK ? describe_piece(parts, task, key, edition) : status;
}

weft_status weft_part_edition_make(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                                   weft_part_edition *edition) {
    *edition = (weft_part_edition){.ahead = false};
    memcpy(edition->manifest.member, parts->member, sizeof parts->member);
    weft_status status = make(parts, baseline, task, edition);
    if (status != WEFT_OK) {
        weft_failure failure = weft_failure_keep(parts->context, status);
        if (edition->ahead) {
            weft_baseline_undo(baseline);
        }
        weft_part_edition_close(edition, parts->context);
        return weft_failure_tell(parts->context, &failure);
    }
    return WEFT_OK;
}

void weft_part_edition_close(weft_part_edition *edition, weft_context *context) {
    weft_part_manifest_close(&edition->manifest, context);
    weft_spool_close(edition->spool);
    weft_sums_destroy(edition->new_sums);
    *edition = (weft_part_edition){.ahead = false};
}
