/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint_finish.c: a new checkpoint takes its place, or is abandoned.
 *
 * Three ways to the target:
 *  - a single file: renamed over the target, atomically;
 *  - a sharded checkpoint whose directory does not exist: made in a temporary directory, which is then
 *    renamed, atomically;
 *  - a sharded checkpoint into a directory that exists, and may hold other files than ours: this takes
 *    several renames. The old index is set aside first and the new one placed last, so that a reader that
 *    goes by the index sees the old checkpoint, none, or the new one, and never a mixture. If a rename
 *    fails, the old files are put back. After a kill between the renames the directory has no index, and
 * the old files are still there under names of the form .weft-*.old. Old shards that the new index does not
 *    name stay: they may be somebody's.
 */
#include "checkpoint.h"

#include "../../base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static weft_status sync_path(weft_context *context, const char *path) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    int error = descriptor < 0 || fsync(descriptor) != 0 ? errno : 0;
    if (descriptor >= 0) {
        close(descriptor);
    }
    return error == 0 ? WEFT_OK : weft_fail_errno(context, error, "cannot sync %s", path);
}

/* Everything that renaming will make visible. Syncing a file also writes what was changed through its
 * mapping. */
static weft_status sync_files(const weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    const weft_draft *draft = checkpoint->draft;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < checkpoint->file_count && status == WEFT_OK; i++) {
        status = sync_path(context, checkpoint->files[i].path);
    }
    if (status == WEFT_OK && draft->index_path != NULL) {
        status = sync_path(context, draft->index_path);
    }
    if (status == WEFT_OK && draft->fresh) {
        status = sync_path(context, draft->directory);
    }
    return status;
}

/* One file of a directory that is being replaced. */
typedef struct replacement {
    const char *path;
    const char *target;
    char *aside;   /* a temporary name of ours, or NULL if there is nothing to set aside */
    bool moved;    /* the old file stands at `aside` */
    bool replaced; /* the new file stands at `target` */
} replacement;

static weft_status set_aside(weft_context *context, const char *directory, size_t number,
                             replacement *item) {
    struct stat info;
    if (lstat(item->target, &info) != 0) {
        return errno == ENOENT ? WEFT_OK
                               : weft_fail_errno(context, errno, "cannot replace %s", item->target);
    }
    int descriptor = -1;
    weft_status status =
        weft_temporary_create(context, directory, number, WEFT_TEMPORARY_ASIDE, &item->aside, &descriptor);
    if (status != WEFT_OK) {
        return status;
    }
    close(descriptor);
    if (rename(item->target, item->aside) != 0) {
        return weft_fail_errno(context, errno, "cannot replace %s", item->target);
    }
    item->moved = true;
    return WEFT_OK;
}

static weft_status put_in_place(weft_context *context, replacement *item) {
    if (rename(item->path, item->target) != 0) {
        return weft_fail_errno(context, errno, "cannot move the new file to %s", item->target);
    }
    item->replaced = true;
    return WEFT_OK;
}

/* The failure has been recorded; if this fails too, the old file stays at its temporary name. */
static void undo_replacement(const replacement *item) {
    if (item->replaced) {
        (void)rename(item->target, item->path);
    }
    if (item->moved) {
        (void)rename(item->aside, item->target);
    } else if (item->aside != NULL) {
        (void)unlink(item->aside);
    }
}

/* The last item is the index: set aside first, placed last. */
static weft_status replace_items(weft_context *context, const char *directory, replacement *items,
                                 size_t count) {
    weft_status status = set_aside(context, directory, count, &items[count - 1]);
    for (size_t i = 0; i < count - 1 && status == WEFT_OK; i++) {
        status = set_aside(context, directory, count + 1 + i, &items[i]);
        if (status == WEFT_OK) {
            status = put_in_place(context, &items[i]);
        }
    }
    return status == WEFT_OK ? put_in_place(context, &items[count - 1]) : status;
}

static weft_status replace_shards(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    const weft_draft *draft = checkpoint->draft;
    size_t count = checkpoint->file_count + 1;
    replacement *items = weft_allocate_zeroed(context, count, sizeof(*items));
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count - 1; i++) {
        items[i].path = checkpoint->files[i].path;
        items[i].target = checkpoint->files[i].target;
    }
    items[count - 1].path = draft->index_path;
    items[count - 1].target = draft->index_target;
    weft_status status = replace_items(context, draft->directory, items, count);
    for (size_t i = 0; i < count; i++) {
        if (status != WEFT_OK) {
            undo_replacement(&items[i]);
        } else if (items[i].moved) {
            (void)unlink(items[i].aside);
        }
        weft_release(context, items[i].aside);
    }
    weft_release(context, items);
    return status;
}

static weft_status rename_files(weft_checkpoint *checkpoint) {
    const weft_draft *draft = checkpoint->draft;
    if (checkpoint->sharded && !draft->fresh) {
        return replace_shards(checkpoint);
    }
    const char *path = draft->fresh ? draft->directory : checkpoint->files[0].path;
    if (rename(path, draft->target) != 0) {
        return weft_fail_errno(checkpoint->context, errno, "cannot move the new checkpoint to %s",
                               draft->target);
    }
    return WEFT_OK;
}

/* All memory is taken before anything is renamed. If the last sync fails, the new checkpoint stands at its
 * path, but a power cut could still undo that. */
static weft_status rename_durably(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    const weft_draft *draft = checkpoint->draft;
    /* the directory whose entries renaming changes */
    char *directory = draft->fresh ? weft_path_parent(context, draft->target)
                                   : weft_copy_text(context, draft->directory, strlen(draft->directory));
    if (directory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = sync_files(checkpoint);
    if (status == WEFT_OK) {
        status = rename_files(checkpoint);
    }
    if (status == WEFT_OK) {
        checkpoint->draft->finished = true;
        status = sync_path(context, directory);
    }
    weft_release(context, directory);
    return status;
}

weft_status weft_checkpoint_finish(weft_checkpoint *checkpoint, bool durable) {
    weft_context *context = checkpoint->context;
    weft_context_clear(context);
    weft_status status;
    if (checkpoint->draft == NULL) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "only a checkpoint from weft_checkpoint_create can be finished");
    } else {
        status = weft_process_check(context, checkpoint->draft->process, "this checkpoint");
    }
    if (status == WEFT_OK && durable) {
        status = rename_durably(checkpoint);
    } else if (status == WEFT_OK) {
        status = rename_files(checkpoint);
        checkpoint->draft->finished = status == WEFT_OK;
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

void weft_draft_abandon(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    if (!draft->finished && weft_process_is(draft->process)) {
        for (size_t i = 0; i < checkpoint->file_count; i++) {
            if (checkpoint->files[i].path != NULL) {
                (void)unlink(checkpoint->files[i].path);
            }
        }
        if (draft->index_path != NULL) {
            (void)unlink(draft->index_path);
        }
        if (draft->fresh) {
            (void)rmdir(draft->directory);
        }
    }
    if (draft->lock >= 0) {
        close(draft->lock);
    }
    if (draft->index_lock >= 0) {
        close(draft->index_lock);
    }
    weft_release(context, draft->directory);
    weft_release(context, draft->target);
    weft_release(context, draft->index_path);
    weft_release(context, draft->index_target);
    weft_release(context, draft);
    checkpoint->draft = NULL;
}
