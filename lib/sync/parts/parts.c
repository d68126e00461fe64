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
static const double PAUSE_LOCAL = 0.001;
static const double PAUSE_REMOTE = 0.05;

/* ---- opening ---- */

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
        .size = sizeof diff,
        .profile = options->profile,
        .bucket_bytes = options->bucket_bytes,
        .cuts = options->cuts,
        .cut_count = options->cut_count,
    };
    weft_status status = weft_part_plan_open(&parts->plan, context, view, &diff);
    if (status == WEFT_OK) {
        weft_writer writer;
        weft_writer_open(&writer, parts->context);
        weft_part_plan_write(&parts->plan, &writer);
        status = weft_writer_failed(&writer)
                     ? WEFT_NO_MEMORY
                     : weft_hash_compute(parts->context, writer.data, writer.size, &parts->plan_hash);
        weft_writer_close(&writer);
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
weft_status weft_parts_put(weft_parts *parts, const char *key, weft_writer *writer, bool once) {
    const weft_message_seal seal = {parts->options->key, parts->run, key};
    weft_status status = weft_message_close(parts->context, &seal, writer);
    const weft_message message = {
        .key = key,
        .data = writer->data,
        .size = writer->size,
        .condition = once ? WEFT_STORE_IF_ABSENT : WEFT_STORE_ALWAYS,
        .volatile_write = true,
        .alone = true,
    };
    return status == WEFT_OK ? weft_message_put(parts->context, parts->store, &message) : status;
}

weft_status weft_parts_open_message(const weft_parts *parts, const char *key, const uint8_t *data,
                                    size_t *size) {
    const weft_message_seal seal = {parts->options->key, parts->run, key};
    return weft_message_open(parts->context, &seal, data, *size, size);
}

weft_status weft_parts_get(weft_parts *parts, const char *key, weft_received *received_out) {
    weft_received received;
    weft_status status =
        weft_message_get(parts->context, parts->store, key, WEFT_MESSAGE_BYTES, parts->context, &received);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_parts_open_message(parts, key, received.data, &received.size);
    if (status != WEFT_OK) {
        weft_received_close(&received);
        return status;
    }
    *received_out = received;
    return WEFT_OK;
}

void weft_parts_wait_begin(double seconds, weft_parts_wait *wait) {
    wait->start = weft_clock_now();
    wait->deadline = wait->start + seconds;
}

weft_status weft_parts_wait_more(weft_parts *parts, const weft_parts_wait *wait) {
    double now = weft_clock_now();
    if (now >= wait->deadline) {
        return WEFT_MORE;
    }
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(parts->store, &traits);
    double most = traits.directory != NULL ? PAUSE_LOCAL : PAUSE_REMOTE;
    return weft_clock_sleep(parts->context, weft_clock_pause(now - wait->start, PAUSE_LEAST, most));
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
    bool same = parts->owned != NULL && memcmp(parts->owned, owned, count * sizeof *owned) == 0;
    weft_status status = same ? WEFT_OK : weft_baseline_share(baseline, parts->view, &parts->plan, owned);
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

static weft_status encode_frames(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
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
    weft_part_manifest *manifest = &edition->manifest;
    size_t count = weft_view_count(parts->view);
    edition->ahead = patch;
    manifest->frames = result.frames;
    manifest->frame_count = result.frame_count;
    manifest->moves = weft_allocate_zeroed(parts->context, count, sizeof *manifest->moves);
    manifest->tensor_count = manifest->moves != NULL ? count : 0;
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        manifest->moves[i] = weft_sums_total(result.moves, i);
    }
    if (patch) {
        weft_sums_merge(result.moves, baseline->sums, false);
        edition->new_sums = result.moves;
    } else {
        weft_sums_destroy(result.moves);
    }
    return manifest->moves != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

static weft_status make_frames(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                               weft_part_edition *edition) {
    weft_sink sink = weft_spool_sink(edition->spool);
    weft_status status =
        task->before != NULL ? sink.write(sink.opaque, task->before->data, task->before->size) : WEFT_OK;
    if (status == WEFT_OK && task->sums) {
        /* the sums of the owned buckets as they are in the copy */
        size_t count = weft_view_count(parts->view);
        edition->manifest.sums =
            weft_allocate_zeroed(parts->context, count, sizeof *edition->manifest.sums);
        status = edition->manifest.sums != NULL
                     ? weft_part_total(parts->context, &parts->plan, parts->owned, baseline->mirror.view,
                                       edition->manifest.sums)
                     : WEFT_NO_MEMORY;
    }
    if (status == WEFT_OK) {
        status = encode_frames(parts, baseline, task, edition);
    }
    if (status == WEFT_OK && task->kind == WEFT_CALL_WHOLE) {
        status = weft_sums_compute(parts->context, baseline->mirror.view, &edition->new_sums);
    }
    return weft_spool_finish(edition->spool, status);
}

/* A member in which nothing has changed has no piece. */
static weft_status describe_piece(weft_parts *parts, const weft_part_task *task, const char *key,
                                  weft_part_edition *edition) {
    if (edition->manifest.frame_count == 0 && task->before == NULL) {
        return weft_store_remove(parts->context, parts->store, key);
    }
    return weft_spool_describe(parts->context, edition->spool, key, parts->store, &edition->manifest.piece);
}

weft_status weft_part_edition_make(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                                   weft_part_edition *edition) {
    *edition = (weft_part_edition){.ahead = false};
    memcpy(edition->manifest.member, parts->member, sizeof parts->member);
    bool patch = task->kind == WEFT_CALL_PATCH;
    char key[WEFT_KEY_SIZE];
    weft_status status = WEFT_OK;
    for (size_t i = 0; task->labels != NULL && task->labels[i] != NULL && status == WEFT_OK; i++) {
        status = weft_texts_add(&edition->manifest.labels, parts->context, task->labels[i]);
    }
    if (status == WEFT_OK && task->kind == WEFT_CALL_WHOLE) {
        /* the copy is filled first, so that what is sent and what is kept are the same even if the weights
         * do not stay still */
        baseline->holds = false;
        status =
            weft_part_copy(parts->context, &parts->plan, parts->owned, parts->view, baseline->mirror.view);
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
        weft_upload *upload;
        status = weft_upload_start(parts->context, parts->store, key, edition->spool, &upload);
        if (status == WEFT_OK) {
            status = weft_upload_join(parts->context, upload, make_frames(parts, baseline, task, edition));
        }
    }
    if (status == WEFT_OK) {
        status = describe_piece(parts, task, key, edition);
    }
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
