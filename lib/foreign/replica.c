/* SPDX-License-Identifier: Apache-2.0
 *
 * replica.c: a checkpoint on disk, or tensors in memory, that follow a foreign place. A delta becomes a
 * patch in memory, and that is put in place like any other: proven first, and on disk whole after a kill at
 * any instant.
 *
 * A file beside the checkpoint remembers the version and the digest of its state. Before a step is put in
 * place it names the next one too: after a kill, the digest of the checkpoint says which of both it is at.
 */
#include "format.h"

#include "../base/clock.h"
#include "../base/context.h"
#include "../base/hash.h"
#include "../base/sized.h"
#include "../patch/apply/in_place.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/json.h"

#include <stdlib.h>
#include <string.h>

/* Seconds between two looks, and for how long a look may fail because a file is half written. */
static const double POLL_DIRECTORY = 0.1, POLL_STORE = 1, HALF_WRITTEN = 5;

/* A version, and the labels of where it came from. */
typedef struct replica_point {
    uint64_t version;
    weft_digest digest;
    uint64_t changed;
    weft_foreign_step *step; /* without changes; NULL: nothing is known of it */
} replica_point;

struct weft_foreign_replica {
    weft_context *context;
    weft_foreign *foreign;
    weft_in_place *place;  /* a checkpoint on disk; or */
    const weft_view *live; /* tensors in memory, */
    weft_sums *sums;       /* and what they sum up to */
    char *state_path;
    bool durable;
    double poll_seconds;
    /* What is prepared, and of tensors in memory what was committed last, so that it can be taken back: */
    weft_sink sink;
    weft_patch *patch;
    weft_apply *apply;
    bool prepared;
    bool portions; /* it comes in more than one */
    replica_point before, now, ahead;
    weft_foreign_replica_info info; /* its times */
};

static const weft_view *view_of(const weft_foreign_replica *replica) {
    return replica->live != NULL ? replica->live : weft_in_place_view(replica->place);
}

static weft_sums *sums_of(const weft_foreign_replica *replica) {
    return replica->live != NULL ? replica->sums : weft_in_place_sums(replica->place);
}

static void point_close(replica_point *point) {
    weft_foreign_step_destroy(point->step);
    *point = (replica_point){0};
}

/* ---- the state ---- */

/* "dir/.NAME.weft-foreign" for "dir/NAME". */
static weft_status find_state_path(weft_context *context, const char *path, char **state_out) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    char *trimmed = weft_copy_text(context, path, length);
    if (trimmed == NULL) {
        return WEFT_NO_MEMORY;
    }
    char *slash = strrchr(trimmed, '/');
    const char *name = slash != NULL ? slash + 1 : trimmed;
    char *hidden = weft_join_texts(context, ".", name, ".weft-foreign");
    if (slash != NULL) {
        *slash = 0;
    }
    if (hidden != NULL) {
        *state_out = weft_path_join(context, slash == NULL ? "." : slash == trimmed ? "" : trimmed, hidden);
    }
    bool failed = hidden == NULL || *state_out == NULL;
    weft_release(context, hidden);
    weft_release(context, trimmed);
    return failed ? WEFT_NO_MEMORY : WEFT_OK;
}

static json_t *state_entry(uint64_t version, const weft_digest *digest) {
    char text[WEFT_DIGEST_TEXT];
    weft_digest_format(digest, text);
    return json_pack("{s:I, s:s}", "version", (json_int_t)version, "digest", text);
}

/* `next` may be NULL. */
static weft_status state_write(const weft_foreign_replica *replica, uint64_t version,
                               const weft_digest *digest, uint64_t next_version, const weft_digest *next) {
    uint64_t bytes = 0;
    json_t *states = json_array();
    int failed = json_array_append_new(states, state_entry(version, digest));
    if (next != NULL) {
        failed |= json_array_append_new(states, state_entry(next_version, next));
    }
    json_t *root = json_pack("{s:s, s:o}", "format", replica->foreign->reader->name, "states", states);
    char *text = failed == 0 && root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    weft_status status = text == NULL ? weft_json_no_memory(replica->context, replica->state_path)
                                      : weft_text_write(replica->context, replica->state_path, text,
                                                        strlen(text), replica->durable, &bytes);
    free(text);
    return status;
}

/* Which of the remembered states the checkpoint is in. WEFT_NOT_FOUND: none is remembered. */
static weft_status state_read(weft_foreign_replica *replica) {
    enum { DEPTH = 4, CONTAINERS = 8 };
    weft_context *context = replica->context;
    char *text = NULL;
    size_t size = 0;
    json_t *root = NULL;
    weft_status status = weft_text_read(context, replica->state_path, &text, &size);
    if (status == WEFT_OK) {
        status = weft_json_parse(context, replica->state_path, text, size, DEPTH, CONTAINERS, &root);
    }
    weft_release(context, text);
    if (status != WEFT_OK) {
        return status;
    }
    const char *format = json_string_value(json_object_get(root, "format"));
    status = WEFT_BASE_MISMATCH;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(root, "states"), i, entry) {
        const char *digest = json_string_value(json_object_get(entry, "digest"));
        weft_digest known;
        uint64_t version;
        if (digest != NULL && weft_hex_parse(digest, known.bytes, sizeof known.bytes) &&
            weft_digest_equal(&known, &replica->now.digest) &&
            weft_json_number(json_object_get(entry, "version"), &version)) {
            replica->now.version = version;
            status = WEFT_OK;
        }
    }
    if (status == WEFT_OK && (format == NULL || strcmp(format, replica->foreign->reader->name) != 0)) {
        status = WEFT_BASE_MISMATCH;
    }
    json_decref(root);
    return status == WEFT_OK
               ? WEFT_OK
               : weft_fail(
                     context, status,
                     "%s: the checkpoint is not at a version that is remembered there: somebody else has "
                     "changed it, or it followed something else. If it is at a version of %s, remove "
                     "that file",
                     replica->state_path, weft_foreign_where(replica->foreign));
}

/* ---- opening ---- */

/* What nothing is remembered of: the version that is given, or the oldest base. */
static uint64_t first_version(const weft_foreign *foreign, const weft_foreign_replica_options *options) {
    if (options->version_given) {
        return options->version;
    }
    for (size_t i = 0; i < foreign->count; i++) {
        if (!foreign->versions[i].whole) {
            return foreign->versions[i].base;
        }
    }
    return 0;
}

static weft_status replica_create(weft_context *context, weft_foreign *foreign,
                                  const weft_foreign_replica_options *options,
                                  weft_foreign_replica_options *own, weft_foreign_replica **replica_out) {
    weft_context_clear(context);
    weft_status status =
        weft_sized_read(context, options, own, sizeof *own, "weft_foreign_replica_options");
    if (status != WEFT_OK) {
        return status;
    }
    weft_foreign_replica *replica = weft_allocate_zeroed(context, 1, sizeof *replica);
    if (replica == NULL) {
        return WEFT_NO_MEMORY;
    }
    replica->context = context;
    replica->foreign = foreign;
    replica->durable = own->durable;
    replica->poll_seconds = own->poll_seconds > 0     ? own->poll_seconds
                            : foreign->remote != NULL ? POLL_STORE
                                                      : POLL_DIRECTORY;
    *replica_out = replica;
    return WEFT_OK;
}

/* Gives the replica to the caller, if all went well. */
static weft_status replica_give(weft_foreign_replica *replica, weft_status status,
                                weft_foreign_replica **replica_out) {
    status = status == WEFT_OK ? weft_foreign_begin(replica->foreign, replica->now.version) : status;
    if (status != WEFT_OK) {
        weft_foreign_replica_close(replica);
        return status;
    }
    *replica_out = replica;
    return WEFT_OK;
}

weft_status weft_foreign_replica_open(weft_context *context, weft_foreign *foreign, const char *path,
                                      const weft_foreign_replica_options *options,
                                      weft_foreign_replica **replica_out) {
    weft_foreign_replica_options own;
    weft_foreign_replica *replica = NULL;
    weft_status status = replica_create(context, foreign, options, &own, &replica);
    if (status != WEFT_OK) {
        return status;
    }
    status = find_state_path(context, path, &replica->state_path);
    status = status == WEFT_OK ? weft_in_place_open(context, path, own.durable, &replica->place) : status;
    status = status == WEFT_OK ? weft_in_place_load(replica->place) : status;
    if (status == WEFT_OK) {
        replica->now.digest = weft_sums_digest(weft_in_place_sums(replica->place));
        status = state_read(replica);
        if (status == WEFT_NOT_FOUND) {
            weft_context_clear(context);
            replica->now.version = first_version(foreign, &own);
            status = WEFT_OK;
        }
    }
    return replica_give(replica, status, replica_out);
}

weft_status weft_foreign_replica_open_view(weft_context *context, weft_foreign *foreign,
                                           const weft_view *view,
                                           const weft_foreign_replica_options *options,
                                           weft_foreign_replica **replica_out) {
    weft_foreign_replica_options own;
    weft_foreign_replica *replica = NULL;
    weft_status status = replica_create(context, foreign, options, &own, &replica);
    if (status != WEFT_OK) {
        return status;
    }
    replica->live = view;
    replica->now.version = first_version(foreign, &own);
    status = weft_sums_compute(context, view, &replica->sums);
    if (status == WEFT_OK) {
        replica->now.digest = weft_sums_digest(replica->sums);
    }
    return replica_give(replica, status, replica_out);
}

/* What was prepared or committed last goes: it cannot be taken back any more. */
static void drop_patch(weft_foreign_replica *replica) {
    if (replica->apply != NULL) {
        weft_apply_destroy(replica->apply);
    }
    if (replica->patch != NULL) {
        if (replica->place != NULL) {
            weft_in_place_rollback(replica->place);
        }
        weft_patch_close(replica->patch);
    }
    if (replica->sink.opaque != NULL) {
        weft_sink_abandon(&replica->sink);
    }
    replica->apply = NULL;
    replica->patch = NULL;
    replica->sink = (weft_sink){0};
    replica->prepared = false;
    point_close(&replica->ahead);
}

void weft_foreign_replica_close(weft_foreign_replica *replica) {
    if (replica == NULL) {
        return;
    }
    drop_patch(replica);
    if (replica->place != NULL) {
        weft_in_place_close(replica->place);
    }
    weft_sums_destroy(replica->sums);
    point_close(&replica->before);
    point_close(&replica->now);
    weft_release(replica->context, replica->state_path);
    weft_release(replica->context, replica);
}

void weft_foreign_replica_describe(const weft_foreign_replica *replica,
                                   weft_foreign_replica_info *info_out) {
    weft_foreign_replica_info info = replica->info;
    info.version = replica->now.version;
    info.digest = replica->now.digest;
    info.changed = replica->now.changed;
    info.prepared = replica->prepared ? replica->ahead.version : 0;
    weft_sized_write(&info, info_out, sizeof info);
}

const char *const *weft_foreign_replica_labels(const weft_foreign_replica *replica, bool prepared) {
    static const char *const none[] = {NULL};
    const replica_point *point = prepared && replica->prepared ? &replica->ahead : &replica->now;
    return point->step != NULL ? weft_foreign_step_labels(point->step) : none;
}

weft_status weft_foreign_replica_verify(weft_foreign_replica *replica) {
    weft_context *context = replica->context;
    weft_status status = weft_context_enter(context);
    weft_sums *sums = NULL;
    status = status == WEFT_OK ? weft_sums_compute(context, view_of(replica), &sums) : status;
    if (status == WEFT_OK) {
        weft_digest digest = weft_sums_digest(sums);
        weft_sums_destroy(sums);
        if (!weft_digest_equal(&digest, &replica->now.digest)) {
            return weft_fail(
                context, WEFT_DIGEST_MISMATCH,
                "the weights are not those of version %llu any more: somebody else has changed "
                "them",
                (unsigned long long)replica->now.version);
        }
    }
    return status;
}

/* ---- a step ---- */

/* The patch from what the replica holds to a delta's result. */
static weft_status diff_delta(weft_foreign_replica *replica, const weft_foreign_version *version,
                              weft_diff_stats *stats) {
    weft_foreign_step *step = NULL;
    double start = weft_clock_now();
    weft_status status = weft_foreign_read(replica->foreign, version->version, view_of(replica), &step);
    replica->info.read_seconds = weft_clock_now() - start;
    if (status != WEFT_OK) {
        return status;
    }
    size_t count = 0;
    const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
    const weft_diff_options options = {.size = sizeof options,
                                       .profile = WEFT_PROFILE_FAST,
                                       .base_sums = sums_of(replica),
                                       .labels = weft_foreign_step_labels(step),
                                       .changes = changes,
                                       .change_count = count};
    status = changes != NULL
                 ? weft_diff(replica->context, view_of(replica), NULL, &options, &replica->sink, stats)
                 : WEFT_NO_MEMORY;
    weft_step_empty(step);
    replica->ahead.step = step;
    return status;
}

/* The same to a checkpoint. */
static weft_status diff_whole(weft_foreign_replica *replica, const weft_foreign_version *version,
                              weft_diff_stats *stats) {
    weft_context *context = replica->context;
    weft_checkpoint *checkpoint = NULL;
    weft_view *next = NULL;
    weft_foreign_step *step = NULL;
    weft_status status = weft_foreign_fetch(replica->foreign, version->version, view_of(replica));
    status = status == WEFT_OK ? weft_checkpoint_open(context, version->path, WEFT_OPEN_READ, &checkpoint)
                               : status;
    status =
        status == WEFT_OK ? weft_view_create(context, weft_checkpoint_table(checkpoint), &next) : status;
    status = status == WEFT_OK ? weft_foreign_step_create(context, &step) : status;
    replica->ahead.step = step;
    if (status == WEFT_OK) {
        const weft_diff_options options = {
            .size = sizeof options, .profile = WEFT_PROFILE_FAST, .base_sums = sums_of(replica)};
        status = weft_step_label(step, "foreign.format", replica->foreign->reader->name);
        status =
            status == WEFT_OK ? weft_step_label_number(step, "foreign.version", version->version) : status;
        status = status == WEFT_OK
                     ? weft_diff(context, view_of(replica), next, &options, &replica->sink, stats)
                     : status;
    }
    weft_view_destroy(next);
    weft_checkpoint_close(checkpoint);
    return status;
}

static weft_status prepare_patch(weft_foreign_replica *replica) {
    weft_source source = {0};
    const void *data;
    size_t size;
    weft_sink_memory(&replica->sink, &data, &size);
    source.memory = data;
    source.size = size;
    weft_status status = weft_patch_open(replica->context, &source, &replica->patch);
    if (status != WEFT_OK) {
        return status;
    }
    if (replica->live == NULL) {
        return weft_in_place_prepare(replica->place, replica->patch);
    }
    status =
        weft_apply_create(replica->context, replica->patch, replica->live, replica->sums, &replica->apply);
    status = status == WEFT_OK ? weft_apply_prepare(replica->apply) : status;
    replica->portions = status == WEFT_MORE;
    return status == WEFT_MORE ? WEFT_OK : status;
}

/* The newest version that something leads to. */
static uint64_t newest_reachable(const weft_foreign_replica *replica) {
    uint64_t version = replica->now.version;
    for (const weft_foreign_version *next;
         (next = weft_foreign_after(replica->foreign, version)) != NULL;) {
        version = next->version;
    }
    return version;
}

/* What a writer has not written whole is looked at again, for a while. */
static bool may_be_half_written(weft_status status) {
    return status == WEFT_MALFORMED || status == WEFT_TRUNCATED;
}

weft_status weft_foreign_replica_wait(weft_foreign_replica *replica, double seconds,
                                      uint64_t *version_out) {
    weft_context *context = replica->context;
    double end = weft_clock_now() + seconds, failing = 0;
    weft_status status = weft_context_enter(context);
    while (status == WEFT_OK) {
        double now = weft_clock_now();
        status = weft_foreign_look(replica->foreign);
        failing = status == WEFT_OK ? 0 : failing == 0 ? now : failing;
        if (status != WEFT_OK && !(may_be_half_written(status) && now - failing < HALF_WRITTEN)) {
            return status;
        }
        if (status == WEFT_OK && newest_reachable(replica) > replica->now.version) {
            if (version_out != NULL) {
                *version_out = newest_reachable(replica);
            }
            return WEFT_OK;
        }
        if (now >= end) {
            return status == WEFT_OK ? WEFT_MORE : status;
        }
        double pause = end - now < replica->poll_seconds ? end - now : replica->poll_seconds;
        weft_context_clear(context);
        status = weft_clock_sleep(context, pause);
    }
    return status;
}

static weft_status prepare_version(weft_foreign_replica *replica, const weft_foreign_version *next) {
    weft_context *context = replica->context;
    weft_status status;
    uint64_t version = next->version;
    weft_diff_stats stats = {.size = sizeof stats};
    double start = weft_clock_now();
    replica->info.read_seconds = 0;
    status = weft_sink_open_memory(context, &replica->sink);
    if (status != WEFT_OK) {
        replica->sink = (weft_sink){0};
        return status;
    }
    status = next->whole ? diff_whole(replica, next, &stats) : diff_delta(replica, next, &stats);
    status = status == WEFT_OK ? prepare_patch(replica) : status;
    replica->info.prove_seconds = weft_clock_now() - start - replica->info.read_seconds;
    replica->prepared = status == WEFT_OK;
    if (status != WEFT_OK) {
        drop_patch(replica);
        return status;
    }
    replica->ahead.version = version;
    replica->ahead.digest = stats.result;
    replica->ahead.changed = stats.changed;
    return WEFT_OK;
}

weft_status weft_foreign_replica_prepare(weft_foreign_replica *replica, uint64_t version) {
    weft_context *context = replica->context;
    weft_status status = weft_context_enter(context);
    if (status != WEFT_OK) {
        return status;
    }
    drop_patch(replica);
    const weft_foreign_version *next = weft_foreign_after(replica->foreign, replica->now.version);
    if (version == 0 ? next == NULL : version == replica->now.version) {
        return WEFT_OK;
    }
    if (next == NULL || (version != 0 && next->version > version)) {
        return weft_fail(context, WEFT_NOT_FOUND, "nothing in %s leads from version %llu to version %llu",
                         weft_foreign_where(replica->foreign), (unsigned long long)replica->now.version,
                         (unsigned long long)version);
    }
    status = prepare_version(replica, next);
    if (status != WEFT_OK) {
        return status;
    }
    bool last = version != 0 ? replica->ahead.version == version
                             : weft_foreign_after(replica->foreign, replica->ahead.version) == NULL;
    return last ? WEFT_OK : WEFT_MORE;
}

weft_status weft_foreign_replica_changes(weft_foreign_replica *replica, size_t batch,
                                         weft_change_function visit, void *opaque) {
    if (!replica->prepared || replica->apply == NULL || replica->portions) {
        weft_context_clear(replica->context);
        return weft_fail(replica->context, WEFT_UNSUPPORTED, "%s",
                         !replica->prepared       ? "nothing is prepared whose changes could be seen"
                         : replica->apply == NULL ? "the changes of a checkpoint on disk cannot be seen; "
                                                    "follow into tensors in memory"
                                                  : "the changes come in portions, by limits.stage_bytes");
    }
    return weft_apply_changes(replica->apply, batch, visit, opaque);
}

static weft_status commit_live(weft_foreign_replica *replica) {
    weft_status status = weft_apply_commit(replica->apply);
    while (status == WEFT_OK && replica->portions) {
        status = weft_apply_prepare(replica->apply);
        replica->portions = status == WEFT_MORE;
        status = status >= 0 ? weft_apply_commit(replica->apply) : status;
    }
    return status;
}

static weft_status commit_file(weft_foreign_replica *replica) {
    weft_status status = state_write(replica, replica->now.version, &replica->now.digest,
                                     replica->ahead.version, &replica->ahead.digest);
    return status == WEFT_OK ? weft_in_place_commit(replica->place) : status;
}

weft_status weft_foreign_replica_commit(weft_foreign_replica *replica) {
    weft_context *context = replica->context;
    weft_status status = weft_context_enter(context);
    if (status != WEFT_OK) {
        return status;
    }
    if (!replica->prepared) {
        return WEFT_OK;
    }
    double start = weft_clock_now();
    status = replica->live != NULL ? commit_live(replica) : commit_file(replica);
    replica->info.pause_seconds = weft_clock_now() - start;
    if (status != WEFT_OK) {
        return status;
    }
    point_close(&replica->before);
    replica->before = replica->now;
    replica->now = replica->ahead;
    replica->ahead = (replica_point){0};
    replica->prepared = false;
    if (replica->live != NULL) {
        return WEFT_OK;
    }
    drop_patch(replica);
    /* a failure to tidy up is no failure of the step: the file names both versions */
    weft_failure kept = weft_failure_keep(context, WEFT_OK);
    if (state_write(replica, replica->now.version, &replica->now.digest, 0, NULL) != WEFT_OK) {
        (void)weft_failure_tell(context, &kept);
    }
    return WEFT_OK;
}

weft_status weft_foreign_replica_rollback(weft_foreign_replica *replica) {
    weft_status status = weft_context_enter(replica->context);
    if (status != WEFT_OK || replica->prepared) {
        drop_patch(replica);
        return status;
    }
    if (replica->apply == NULL) {
        return weft_fail(
            replica->context, WEFT_UNSUPPORTED,
            "nothing is prepared, and there is no commit to tensors in memory to be taken back");
    }
    status = weft_apply_rollback(replica->apply);
    if (status == WEFT_OK) {
        point_close(&replica->now);
        replica->now = replica->before;
        replica->before = (replica_point){0};
    }
    drop_patch(replica);
    return status;
}

weft_status weft_foreign_replica_step(weft_foreign_replica *replica) {
    if (weft_foreign_after(replica->foreign, replica->now.version) == NULL) {
        return WEFT_MORE;
    }
    weft_status status = weft_foreign_replica_prepare(replica, 0);
    return status >= 0 ? weft_foreign_replica_commit(replica) : status;
}
