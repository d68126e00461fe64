/* SPDX-License-Identifier: Apache-2.0
 *
 * replica.c: live memory or a checkpoint, one step at a time. Live memory is changed by weft_apply
 * (patch/apply/apply.h), with its sums beside it. A checkpoint is changed in place
 * (patch/apply/in_place.h), or where files themselves change, written anew as a draft and renamed.
 */
#include "replica.h"

#include "../../base/context.h"
#include "../../tensor/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is recalled ---- */

static void forget_recent(weft_replica *replica) {
    weft_recall_destroy(replica->recall);
    replica->recall = NULL;
    replica->loaded_version = 0;
}

static weft_status load_recent(weft_replica *replica) {
    weft_status status = weft_recall_path(replica->context, replica->path, &replica->recall_path);
    return status == WEFT_OK && replica->known
               ? weft_recall_load(replica->context, replica->recall_path, replica->digest.bytes,
                                  &replica->recall, &replica->loaded_version)
               : status;
}

void weft_replica_save(weft_replica *replica, uint64_t version) {
    if (replica->recall_path != NULL) {
        weft_recall_mark mark = {.version = version};
        memcpy(mark.digest, replica->digest.bytes, sizeof mark.digest);
        weft_recall_save(replica->known ? replica->recall : NULL, replica->context, replica->recall_path,
                         &mark);
    }
}

unsigned weft_replica_recalls(const weft_replica *replica) {
    return replica->recall != NULL ? weft_recall_depth(replica->recall) : 0;
}

void weft_replica_skip(weft_replica *replica, bool next) {
    if (replica->recall != NULL && next) {
        weft_recall_begin(replica->recall);
        weft_recall_commit(replica->recall);
        replica->alone = false; /* a rollback goes back further */
    } else {
        forget_recent(replica);
    }
}

/* True if the version may have been passed over by who has the state already: no frames are left out. */
static bool is_unchanged(const weft_patch *patch) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    return weft_digest_equal(&info.base, &info.result) && info.buckets == 0;
}

/* Lets the step look at what is recalled, and add to it. */
static weft_status begin_recall(weft_replica *replica, weft_patch *patch, weft_replica_step kind) {
    const weft_header *header = &patch->header;
    replica->alone =
        kind == WEFT_STEP_PATCH && (header->profile == WEFT_PROFILE_SMALLEST || is_unchanged(patch));
    if (!replica->alone) {
        return WEFT_OK;
    }
    weft_status status = WEFT_OK;
    if (header->depth > weft_replica_recalls(replica)) {
        return weft_fail(replica->context, WEFT_UNSUPPORTED,
                         "the patch recalls the changes of %u versions, of which %u were followed here",
                         header->depth, weft_replica_recalls(replica));
    }
    if (replica->recall == NULL) {
        status = weft_recall_create(replica->context, &replica->recall);
    }
    if (status == WEFT_OK) {
        weft_recall_begin(replica->recall);
        patch->recall = replica->recall;
        patch->noted = true;
    }
    return status;
}

/* ---- live memory ---- */

weft_status weft_replica_open_live(weft_replica *replica, weft_context *context, const weft_view *view,
                                   bool blank) {
    *replica = (weft_replica){.context = context, .view = view, .blank = blank};
    if (blank) {
        return weft_sums_zero(context, view, &replica->sums);
    }
    if (!weft_view_complete(view)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "live memory that holds a part of the model cannot be recognised by its digest; "
                         "open it as empty, so that it is loaded first");
    }
    weft_status status = weft_sums_compute(context, view, &replica->sums);
    if (status == WEFT_OK) {
        replica->known = true;
        replica->digest = weft_sums_digest(replica->sums);
    }
    return status;
}

weft_status weft_replica_open_filled(weft_replica *replica, weft_context *context, const weft_view *view,
                                     const weft_digest *digest) {
    *replica = (weft_replica){.context = context, .view = view};
    weft_status status = weft_sums_compute(context, view, &replica->sums);
    if (status != WEFT_OK) {
        return status;
    }
    weft_digest found = weft_sums_digest(replica->sums);
    if (weft_view_complete(view) && !weft_digest_equal(&found, digest)) {
        return weft_fail(
            context, WEFT_DIGEST_MISMATCH,
            "the weights that were loaded are not those of the version that they were taken for");
    }
    replica->known = true;
    replica->digest = *digest;
    return WEFT_OK;
}

bool weft_replica_complete(const weft_replica *replica) {
    return replica->path != NULL || weft_view_complete(replica->view);
}

/* An anchor starts from nothing: the sums of what it replaces are put aside. */
static weft_status replace_sums(weft_replica *replica) {
    weft_sums *sums;
    weft_status status = weft_sums_zero(replica->context, replica->view, &sums);
    if (status == WEFT_OK) {
        weft_sums_destroy(replica->before);
        replica->before = replica->sums;
        replica->sums = sums;
    }
    return status;
}

static void restore_sums(weft_replica *replica) {
    if (replica->before != NULL) {
        weft_sums_destroy(replica->sums);
        replica->sums = replica->before;
        replica->before = NULL;
    }
}

static void drop_apply(weft_replica *replica) {
    weft_apply_destroy(replica->apply);
    replica->apply = NULL;
    replica->more = false;
    replica->committed = false;
}

static weft_status prepare_live(weft_replica *replica, const weft_patch *patch, bool anchor) {
    weft_context *context = replica->context;
    drop_apply(replica);
    weft_sums_destroy(replica->before);
    replica->before = NULL;
    weft_status status = anchor ? replace_sums(replica) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    weft_apply_kind anchor_kind = replica->blank ? WEFT_APPLY_REBUILD : WEFT_APPLY_REPLACE;
    status = weft_apply_create_as(context, anchor ? anchor_kind : WEFT_APPLY_LIVE, patch, replica->view,
                                  replica->sums, &replica->apply);
    /* memory that holds nothing is filled at once, without a second copy of the model in between */
    if (status == WEFT_OK) {
        status =
            anchor && replica->blank ? weft_apply_run(replica->apply) : weft_apply_prepare(replica->apply);
    }
    if (status < 0) {
        drop_apply(replica);
        restore_sums(replica);
        return status;
    }
    replica->more = status == WEFT_MORE;
    return WEFT_OK;
}

/* Memory that was blank has been filled by prepare. */
static weft_status commit_live(weft_replica *replica) {
    if (replica->blank) {
        drop_apply(replica);
        replica->blank = false;
        return WEFT_OK;
    }
    bool whole = !replica->more; /* portions whose old values are gone cannot be put back */
    weft_status status = weft_apply_commit(replica->apply);
    while (status == WEFT_OK && replica->more) {
        status = weft_apply_prepare(replica->apply);
        replica->more = status == WEFT_MORE;
        if (status >= 0) {
            status = weft_apply_commit(replica->apply);
        }
    }
    replica->committed = status == WEFT_OK && whole;
    return status;
}

static weft_status rollback_live(weft_replica *replica) {
    weft_status status = replica->blank ? WEFT_OK : weft_apply_rollback(replica->apply);
    drop_apply(replica);
    restore_sums(replica);
    return status;
}

/* ---- a checkpoint ---- */

static bool is_unreadable(weft_status status) {
    return status == WEFT_MALFORMED || status == WEFT_TRUNCATED || status == WEFT_NOT_FOUND ||
           status == WEFT_UNSUPPORTED || status == WEFT_BASE_MISMATCH || status == WEFT_CHECKSUM_MISMATCH;
}

/* Goes on after an operation on the place that ended with `status`: loads it, or closes it after a failure.
 */
static weft_status load_or_close_place(weft_replica *replica, weft_status status) {
    if (status == WEFT_OK) {
        status = weft_in_place_load(replica->place);
    }
    if (status != WEFT_OK) {
        weft_in_place_close(replica->place);
        replica->place = NULL;
    }
    return status;
}

static weft_status load_place(weft_replica *replica) {
    weft_status status =
        weft_in_place_open(replica->context, replica->path, replica->durable, &replica->place);
    status = load_or_close_place(replica, status);
    if (status == WEFT_OK) {
        replica->known = true;
        replica->digest = weft_sums_digest(weft_in_place_sums(replica->place));
    }
    return status;
}

/* True also if that cannot be told. */
static bool holds_file(const char *directory, const char *name) {
    struct stat info;
    int descriptor = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool found = descriptor < 0 || fstatat(descriptor, name, &info, 0) == 0 || errno != ENOENT;
    if (descriptor >= 0) {
        close(descriptor);
    }
    return found;
}

/* A directory without a checkpoint is a place for one. */
static bool is_free(const char *path, const struct stat *info) {
    return S_ISDIR(info->st_mode) && !holds_file(path, "model.safetensors") &&
           !holds_file(path, "model.safetensors.index.json");
}

weft_status weft_replica_open_file(weft_replica *replica, weft_context *context, const char *path,
                                   bool durable, bool ours) {
    *replica = (weft_replica){.context = context, .durable = durable};
    replica->path = weft_copy_text(context, path, strlen(path));
    if (replica->path == NULL) {
        return WEFT_NO_MEMORY;
    }
    struct stat info;
    if (stat(path, &info) != 0) {
        int error = errno;
        return error == ENOENT ? load_recent(replica)
                               : weft_fail_errno(context, error, "%s: cannot look at it", path);
    }
    if (is_free(path, &info)) {
        return load_recent(replica);
    }
    replica->present = true;
    weft_status status = load_place(replica);
    if (status == WEFT_OK) {
        status = load_recent(replica);
    }
    if (status == WEFT_OK || (ours && is_unreadable(status))) {
        return WEFT_OK;
    }
    if (is_unreadable(status)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%s exists and is not a checkpoint; move it away, or choose another place", path);
    }
    return status;
}

static weft_status prepare_file(weft_replica *replica, const weft_patch *patch, bool anchor) {
    const weft_checkpoint *base = NULL;
    if (!anchor) {
        weft_status status = weft_in_place_prepare(replica->place, patch);
        if (status != WEFT_UNSUPPORTED) {
            return status;
        }
        /* the files change, and not only the weights in them: all of them are written anew */
        weft_context_clear(replica->context);
        base = weft_in_place_checkpoint(replica->place);
    }
    return weft_apply_rebuild_draft(replica->context, base, &patch, 1, replica->path, &replica->draft);
}

/* The new file takes the place of the old one, whose lock goes with it. */
static weft_status commit_file(weft_replica *replica) {
    if (replica->draft == NULL) {
        return load_or_close_place(replica, weft_in_place_commit(replica->place));
    }
    weft_in_place_close(replica->place);
    replica->place = NULL;
    weft_status status = weft_checkpoint_finish(replica->draft, replica->durable);
    replica->draft = NULL;
    return status == WEFT_OK ? load_place(replica) : status;
}

static weft_status rollback_file(weft_replica *replica) {
    if (replica->place != NULL) {
        weft_in_place_rollback(replica->place);
    }
    weft_checkpoint_close(replica->draft);
    replica->draft = NULL;
    return WEFT_OK;
}

/* ---- both ---- */

void weft_replica_forget(weft_replica *replica) {
    replica->known = false;
    forget_recent(replica);
}

weft_status weft_replica_recover(weft_replica *replica) {
    if (replica->path == NULL || replica->known || replica->place != NULL || !replica->present) {
        return WEFT_OK;
    }
    weft_status status = load_place(replica);
    return is_unreadable(status) ? WEFT_OK : status;
}

void weft_replica_settle(weft_replica *replica) {
    drop_apply(replica);
    weft_sums_destroy(replica->before);
    replica->before = NULL;
}

weft_status weft_replica_prepare(weft_replica *replica, weft_patch *patch, weft_replica_step kind) {
    bool anchor = kind == WEFT_STEP_ANCHOR;
    weft_status status = begin_recall(replica, patch, kind);
    if (status == WEFT_OK) {
        status = replica->path != NULL ? prepare_file(replica, patch, anchor)
                                       : prepare_live(replica, patch, anchor);
    }
    if (status == WEFT_OK) {
        replica->patch = patch;
    }
    return status;
}

weft_status weft_replica_changes(weft_replica *replica, size_t batch, weft_change_function visit,
                                 void *opaque) {
    if (replica->path != NULL) {
        return weft_fail(replica->context, WEFT_UNSUPPORTED,
                         "changes are visited of live memory; of a file, compare its versions");
    }
    if (replica->blank) {
        return weft_fail(replica->context, WEFT_UNSUPPORTED,
                         "this memory held nothing, and prepare has filled it: all of it is new");
    }
    if (replica->more) {
        return weft_fail(replica->context, WEFT_UNSUPPORTED,
                         "limits.stage_bytes cuts this step into portions, of which only the first is "
                         "prepared; raise it to see all changes before the commit");
    }
    return weft_apply_changes(replica->apply, batch, visit, opaque);
}

weft_status weft_replica_commit(weft_replica *replica) {
    replica->known_before = replica->known;
    replica->digest_before = replica->digest;
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(replica->patch, &info);
    replica->patch = NULL;
    replica->known = false;
    /* The caller cannot cancel from here on: later portions are still to be fetched, and a file that was
     * put in place is still to be summed. */
    weft_progress_hold(replica->context);
    weft_status status = replica->path != NULL ? commit_file(replica) : commit_live(replica);
    weft_progress_go_on(replica->context);
    if (status == WEFT_OK && replica->alone) {
        weft_recall_commit(replica->recall);
    } else {
        forget_recent(replica);
    }
    if (status != WEFT_OK) {
        return status;
    }
    replica->digest = info.result;
    replica->known = true;
    replica->present = true;
    return WEFT_OK;
}

weft_status weft_replica_rollback(weft_replica *replica) {
    bool prepared = replica->patch != NULL;
    replica->patch = NULL;
    if (!prepared && !replica->committed) {
        return weft_fail(replica->context, WEFT_UNSUPPORTED,
                         "nothing is prepared, and there is nothing to go back to; an older version is "
                         "reached by pulling it");
    }
    weft_status status = replica->path != NULL ? rollback_file(replica) : rollback_live(replica);
    if (replica->alone && replica->recall != NULL) {
        weft_recall_rollback(replica->recall);
    } else if (!prepared) {
        forget_recent(replica);
    }
    if (!prepared) {
        replica->known = status == WEFT_OK && replica->known_before;
        replica->digest = replica->digest_before;
    }
    return status;
}

weft_status weft_replica_audit(weft_replica *replica, uint64_t bytes) {
    weft_sums *sums = replica->path != NULL ? weft_in_place_sums(replica->place) : replica->sums;
    weft_status status = weft_sums_audit(replica->context, sums, bytes);
    if (status == WEFT_DIGEST_MISMATCH) {
        weft_replica_forget(replica);
    }
    return status;
}

void weft_replica_close(weft_replica *replica) {
    forget_recent(replica);
    weft_apply_destroy(replica->apply);
    weft_sums_destroy(replica->sums);
    weft_sums_destroy(replica->before);
    weft_checkpoint_close(replica->draft);
    weft_in_place_close(replica->place);
    weft_release(replica->context, replica->recall_path);
    weft_release(replica->context, replica->path);
}
