/* SPDX-License-Identifier: Apache-2.0
 *
 * in_place.c: bringing a checkpoint on disk forward where it lies.
 *
 * The patch is prepared on the mapped files, which changes nothing; the prepared changes become a
 * journal; once the journal has its name, the changes are written into the files, and the journal goes.
 * Killed before the rename, the checkpoint is at the old state, and a temporary file is left that the
 * next run clears away. Killed after it, the next run replays the journal and is at the new state. With
 * `durable`, journal and files are synced in that order too, so that power may fail at any instant.
 *
 * A lock on the checkpoint, and on the files of a directory, keeps a second process out. A patch that
 * changes the files' headers cannot be put in place: the checkpoint is rebuilt beside itself and renamed.
 * Killed meanwhile, a temporary file is left, which the next run clears away.
 */
#include "in_place.h"
#include "journal.h"

#include "../../tensor/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* True if `path` leads to what the descriptor is open on. */
static bool still_there(int descriptor, const char *path) {
    struct stat held;
    struct stat found;
    return fstat(descriptor, &held) == 0 && stat(path, &found) == 0 && held.st_dev == found.st_dev &&
           held.st_ino == found.st_ino;
}

static weft_status lock_failed(weft_context *context, const char *path, int error) {
    return error == EWOULDBLOCK
               ? weft_fail(context, WEFT_BUSY, "%s: another process is changing it; try again later", path)
               : weft_fail_errno(context, error, "%s: cannot lock", path);
}

/* A process that rebuilds the checkpoint puts another file at the path while we may be waiting to lock the
 * old one; a lock on that would keep nobody out. */
static weft_status lock_checkpoint(weft_context *context, const char *path, int *descriptor_out) {
    for (;;) {
        /* without blocking, because the name may turn out to be that of a pipe */
        int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (descriptor < 0) {
            int error = errno;
            return error == ENOENT
                       ? weft_fail(context, WEFT_NOT_FOUND, "%s: there is no such checkpoint", path)
                       : weft_fail_errno(context, error, "%s: cannot open", path);
        }
        if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
            int error = errno;
            close(descriptor);
            return lock_failed(context, path, error);
        }
        if (still_there(descriptor, path)) {
            *descriptor_out = descriptor;
            return WEFT_OK;
        }
        close(descriptor);
    }
}

/* Opens a checkpoint whose path is locked. Somebody else may go by the name of one of the files in a
 * directory, and the other way round, so the files of a directory are locked too. `open_checkpoint` is
 * one of the two ways to open one. */
static weft_status open_locked(weft_context *context, const char *path,
                               weft_status (*open_checkpoint)(weft_context *, const char *, weft_open_mode,
                                                              weft_checkpoint **),
                               weft_checkpoint **checkpoint_out) {
    weft_checkpoint *checkpoint;
    struct stat info;
    weft_status status = open_checkpoint(context, path, WEFT_OPEN_WRITE, &checkpoint);
    if (status != WEFT_OK) {
        return status;
    }
    bool directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    for (size_t i = 0; directory && i < checkpoint->file_count && status == WEFT_OK; i++) {
        if (flock(checkpoint->files[i].descriptor, LOCK_EX | LOCK_NB) != 0) {
            status = lock_failed(context, checkpoint->files[i].path, errno);
        }
    }
    if (status != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return WEFT_OK;
}

/* ---- recovery ---- */

/* A journal that came back after a power cut would be replayed on whatever stands there by then. */
static weft_status remove_journal(weft_context *context, const char *journal, bool durable) {
    int directory = -1;
    weft_status status = durable ? weft_journal_directory(context, journal, &directory) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    bool failed = unlink(journal) != 0 && errno != ENOENT;
    failed = failed || (directory >= 0 && fsync(directory) != 0);
    if (failed) {
        status = weft_fail_errno(context, errno, "removing the journal %s failed", journal);
    }
    if (directory >= 0) {
        close(directory);
    }
    return status;
}

static weft_status replay(weft_context *context, const char *path, const char *journal) {
    weft_checkpoint *checkpoint;
    weft_status status = open_locked(context, path, weft_checkpoint_open_unchecked, &checkpoint);
    if (status != WEFT_OK) {
        return status;
    }
    bool durable = false;
    status = weft_journal_replay(context, journal, weft_checkpoint_table(checkpoint), &durable);
    if (status == WEFT_OK && durable) {
        status = weft_checkpoint_flush(checkpoint);
    }
    weft_checkpoint_close(checkpoint);
    return status == WEFT_OK ? remove_journal(context, journal, durable) : status;
}

/* The directory that holds the journal is the one that temporary checkpoints are made in. */
static weft_status sweep_beside(weft_context *context, const char *journal) {
    char *directory = weft_path_parent(context, journal);
    if (directory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_temporary_sweep(directory);
    weft_release(context, directory);
    return WEFT_OK;
}

/* With the lock held: replays a whole journal, clears away an unfinished one. */
static weft_status recover_locked(weft_context *context, const char *path, const char *journal,
                                  bool *recovered_out) {
    struct stat info;
    *recovered_out = false;
    if (lstat(journal, &info) == 0) {
        weft_status status = replay(context, path, journal);
        *recovered_out = status == WEFT_OK;
        return status;
    }
    char *temporary = weft_allocate(context, strlen(journal) + 8);
    if (temporary == NULL) {
        return WEFT_NO_MEMORY;
    }
    stpcpy(stpcpy(temporary, journal), "-new");
    *recovered_out = unlink(temporary) == 0;
    weft_release(context, temporary);
    return WEFT_OK;
}

static bool anything_to_recover(const char *journal) {
    struct stat info;
    char temporary[PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s-new", journal);
    return lstat(journal, &info) == 0 || lstat(temporary, &info) == 0;
}

weft_status weft_apply_recover(weft_context *context, const char *path, bool *recovered_out) {
    weft_context_clear(context);
    char *journal;
    weft_status status = weft_journal_path(context, path, &journal);
    if (status != WEFT_OK) {
        return status;
    }
    bool recovered = false;
    status = sweep_beside(context, journal);
    if (status == WEFT_OK && anything_to_recover(journal)) {
        int lock;
        status = lock_checkpoint(context, path, &lock);
        if (status == WEFT_OK) {
            status = recover_locked(context, path, journal, &recovered);
            close(lock);
        }
    }
    weft_release(context, journal);
    if (status == WEFT_OK && recovered_out != NULL) {
        *recovered_out = recovered;
    }
    return status;
}

/* ---- a checkpoint, held ---- */

struct weft_in_place {
    weft_context *context;
    char *path; /* with links followed */
    char *journal_path;
    int lock;
    bool durable;

    /* while it is mapped */
    weft_checkpoint *checkpoint;
    weft_view *view;
    weft_sums *sums;

    /* while a patch is prepared: either changes in a journal, or a new checkpoint without its name */
    weft_apply *apply;
    weft_journal journal;
    bool staged; /* all changes are in memory too */
    weft_checkpoint *draft;
};

/* A link stays a link: what it leads to is changed. */
static weft_status resolve(weft_context *context, const char *path, char **resolved_out) {
    char *resolved = weft_allocate(context, PATH_MAX);
    if (resolved == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (realpath(path, resolved) == NULL) {
        int error = errno;
        weft_release(context, resolved);
        return error == ENOENT ? weft_fail(context, WEFT_NOT_FOUND, "%s: there is no such checkpoint", path)
                               : weft_fail_errno(context, error, "%s: cannot open", path);
    }
    *resolved_out = resolved;
    return WEFT_OK;
}

static void unload(weft_in_place *place) {
    weft_sums_destroy(place->sums);
    weft_view_destroy(place->view);
    weft_checkpoint_close(place->checkpoint);
    place->sums = NULL;
    place->view = NULL;
    place->checkpoint = NULL;
}

void weft_in_place_close(weft_in_place *place) {
    if (place == NULL) {
        return;
    }
    weft_in_place_rollback(place);
    unload(place);
    if (place->lock >= 0) {
        close(place->lock);
    }
    weft_release(place->context, place->journal_path);
    weft_release(place->context, place->path);
    weft_release(place->context, place);
}

weft_status weft_in_place_open(weft_context *context, const char *path, bool durable,
                               weft_in_place **place_out) {
    weft_in_place *place = weft_allocate_zeroed(context, 1, sizeof *place);
    if (place == NULL) {
        return WEFT_NO_MEMORY;
    }
    place->context = context;
    place->durable = durable;
    place->lock = -1;
    bool recovered;
    weft_status status = resolve(context, path, &place->path);
    if (status == WEFT_OK) {
        status = weft_journal_path(context, place->path, &place->journal_path);
    }
    if (status == WEFT_OK) {
        status = lock_checkpoint(context, place->path, &place->lock);
    }
    if (status == WEFT_OK) {
        status = recover_locked(context, place->path, place->journal_path, &recovered);
    }
    if (status == WEFT_OK) {
        status = sweep_beside(context, place->journal_path);
    }
    if (status != WEFT_OK) {
        weft_in_place_close(place);
        return status;
    }
    *place_out = place;
    return WEFT_OK;
}

weft_status weft_in_place_load(weft_in_place *place) {
    weft_context *context = place->context;
    if (place->sums != NULL) {
        return WEFT_OK;
    }
    weft_status status = open_locked(context, place->path, weft_checkpoint_open, &place->checkpoint);
    if (status == WEFT_OK) {
        status = weft_view_create(context, weft_checkpoint_table(place->checkpoint), &place->view);
    }
    /* a journal makes the new state of the old one, which must itself be on the disk */
    if (status == WEFT_OK && place->durable) {
        status = weft_checkpoint_flush(place->checkpoint);
    }
    if (status == WEFT_OK) {
        status = weft_sums_compute(context, place->view, &place->sums);
    }
    if (status != WEFT_OK) {
        unload(place);
    }
    return status;
}

const weft_view *weft_in_place_view(const weft_in_place *place) {
    return place->view;
}

weft_sums *weft_in_place_sums(const weft_in_place *place) {
    return place->sums;
}

const weft_checkpoint *weft_in_place_checkpoint(const weft_in_place *place) {
    return place->checkpoint;
}

/* ---- preparing ---- */

/* Prepares everything, in as many portions as the staging limit asks for, into the journal. If there was
 * one portion only, it stays staged and is committed from memory. */
static weft_status write_journal(weft_in_place *place) {
    weft_status status = weft_apply_prepare(place->apply);
    place->staged = status == WEFT_OK;
    while (status >= 0) {
        weft_status appended = weft_journal_append(&place->journal, place->apply);
        if (appended != WEFT_OK || status == WEFT_OK) {
            return appended;
        }
        weft_apply_drain(place->apply);
        status = weft_apply_prepare(place->apply);
    }
    return status;
}

static weft_status prepare_changes(weft_in_place *place, const weft_patch *patch) {
    weft_status status = weft_in_place_load(place);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_apply_create(place->context, patch, place->view, place->sums, &place->apply);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_journal_open(&place->journal, place->context, place->journal_path,
                               weft_checkpoint_table(place->checkpoint), place->durable);
    if (status == WEFT_OK) {
        status = write_journal(place);
    }
    if (status != WEFT_OK) {
        weft_in_place_rollback(place);
    }
    return status;
}

static weft_status prepare_rewrite(weft_in_place *place, const weft_patch *patch) {
    weft_context *context = place->context;
    weft_checkpoint *checkpoint;
    weft_status status = weft_checkpoint_open(context, place->path, WEFT_OPEN_READ, &checkpoint);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_container *given = weft_patch_container(patch);
    if (weft_checkpoint_container(checkpoint)->sharded || (given != NULL && given->sharded)) {
        status =
            weft_fail(context, WEFT_UNSUPPORTED,
                      "%s: the patch changes the files of a sharded checkpoint, which cannot be done in "
                      "place and be safe; use weft apply %s PATCH -o OUT",
                      place->path, place->path);
    } else {
        status = weft_apply_rebuild_draft(context, checkpoint, &patch, 1, place->path, &place->draft);
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

static bool keeps_headers(const weft_patch *patch) {
    return weft_roster_plain(&patch->header.roster) && weft_patch_container(patch) == NULL;
}

weft_status weft_in_place_prepare(weft_in_place *place, const weft_patch *patch) {
    weft_in_place_rollback(place);
    return keeps_headers(patch) ? prepare_changes(place, patch) : prepare_rewrite(place, patch);
}

void weft_in_place_rollback(weft_in_place *place) {
    if (place->apply != NULL) {
        weft_journal_close(&place->journal);
        weft_apply_destroy(place->apply);
        place->apply = NULL;
    }
    weft_checkpoint_close(place->draft);
    place->draft = NULL;
}

/* ---- committing ---- */

/* Changes that are no longer in memory are taken from the journal. The last ones still are, and with them
 * the moves of all: to commit them moves the sums. */
static weft_status write_changes(weft_in_place *place) {
    weft_context *context = place->context;
    bool ignored;
    weft_status status = weft_journal_publish(&place->journal);
    if (status == WEFT_OK && !place->staged) {
        status = weft_journal_replay(context, place->journal_path, weft_checkpoint_table(place->checkpoint),
                                     &ignored);
    }
    if (status == WEFT_OK) {
        status = weft_apply_commit(place->apply);
    }
    if (status == WEFT_OK && place->durable) {
        status = weft_checkpoint_flush(place->checkpoint);
    }
    return status == WEFT_OK ? remove_journal(context, place->journal_path, place->durable) : status;
}

static weft_status commit_changes(weft_in_place *place) {
    weft_status status = write_changes(place);
    weft_in_place_rollback(place);
    if (status != WEFT_OK) {
        /* what stands in the files is no longer known */
        unload(place);
        return status;
    }
    if (!still_there(place->lock, place->path)) {
        return weft_fail(
            place->context, WEFT_IO_FAILED,
            "%s was removed or replaced while it was changed; what was changed is gone with it",
            place->path);
    }
    return WEFT_OK;
}

/* The lock moves on to the new file. */
static weft_status commit_rewrite(weft_in_place *place) {
    weft_checkpoint *draft = place->draft;
    place->draft = NULL;
    weft_status status = weft_checkpoint_finish(draft, place->durable);
    unload(place);
    if (status == WEFT_OK && !still_there(place->lock, place->path)) {
        close(place->lock);
        place->lock = -1;
        status = lock_checkpoint(place->context, place->path, &place->lock);
    }
    return status;
}

weft_status weft_in_place_commit(weft_in_place *place) {
    if (place->draft != NULL) {
        return commit_rewrite(place);
    }
    return place->apply != NULL ? commit_changes(place) : WEFT_OK;
}

weft_status weft_apply_in_place(weft_context *context, const char *path, const weft_patch *const *patches,
                                size_t count, bool durable, weft_digest *digest_out) {
    weft_context_clear(context);
    if (count == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "no patch to apply");
    }
    weft_in_place *place = NULL;
    weft_status status = weft_in_place_open(context, path, durable, &place);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = weft_in_place_prepare(place, patches[i]);
        if (status == WEFT_OK) {
            status = weft_in_place_commit(place);
        }
        status = weft_patch_blame(context, status, i, count, "; those before it are applied");
    }
    weft_in_place_close(place);
    if (status == WEFT_OK && digest_out != NULL) {
        *digest_out = patches[count - 1]->footer.result;
    }
    return status;
}
