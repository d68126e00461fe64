/* SPDX-License-Identifier: Apache-2.0
 *
 * rebuild.c: a new checkpoint from an old one and patches, byte for byte the one that was diffed.
 *
 * The base is proven first. What the patches keep is copied to the new checkpoint, still under a
 * temporary name; the patches are applied there, as to live memory; the result is summed anew from the
 * bytes that were written; only then does it get its name. Patches that keep all tensors share one copy;
 * one that adds, removes or replaces tensors changes the files and gets a step of its own.
 */
#include "apply.h"

#include "../../base/pool.h"
#include "../../tensor/checkpoint/safetensors.h"
#include "../../tensor/table.h"

#include <stdio.h>
#include <unistd.h>

enum { COPY_BYTES = 8 << 20 };

/* ---- copying what is kept ---- */

typedef struct copy_piece {
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;
} copy_piece;

typedef struct copy_work {
    weft_context *context;
    copy_piece *pieces;
    size_t count;
} copy_work;

static weft_status add_pieces(copy_work *work, const weft_tensor *from, const weft_tensor *to) {
    size_t more = (size_t)((from->bytes + COPY_BYTES - 1) / COPY_BYTES);
    copy_piece *pieces =
        weft_reallocate_array(work->context, work->pieces, work->count + more, sizeof *pieces);
    if (pieces == NULL) {
        return WEFT_NO_MEMORY;
    }
    work->pieces = pieces;
    for (uint64_t done = 0; done < from->bytes; done += COPY_BYTES) {
        uint64_t left = from->bytes - done;
        work->pieces[work->count++] =
            (copy_piece){(const uint8_t *)from->data + done, (uint8_t *)to->data + done,
                         (size_t)(left < COPY_BYTES ? left : COPY_BYTES)};
    }
    return WEFT_OK;
}

static weft_status copy_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const copy_work *work = argument;
    const copy_piece *piece = &work->pieces[index];
    memcpy(piece->to, piece->from, piece->bytes);
    return weft_progress_add(work->context, piece->bytes);
}

static weft_status copy_kept(weft_context *context, const weft_table *from, const weft_table *to) {
    copy_work work = {.context = context};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < weft_table_count(to) && status == WEFT_OK; i++) {
        const weft_tensor *target = weft_table_at(to, i);
        int64_t found = weft_table_find(from, target->name);
        if (found >= 0 && weft_tensor_alike(target, weft_table_at(from, (size_t)found)) &&
            target->bytes > 0) {
            status = add_pieces(&work, weft_table_at(from, (size_t)found), target);
        }
    }
    if (status == WEFT_OK) {
        weft_progress_begin(context, "copy", weft_table_bytes(to));
        status = weft_parallel(context, work.count, copy_task, &work);
    }
    weft_release(context, work.pieces);
    return status;
}

/* ---- the files of the result ---- */

/* The files that the patches lead to: those that the last patch to name any names, or the base's. */
static const weft_container *result_container(const weft_checkpoint *base, const weft_patch *const *patches,
                                              size_t count) {
    const weft_container *container = base != NULL ? weft_checkpoint_container(base) : NULL;
    for (size_t i = 0; i < count; i++) {
        const weft_container *given = weft_patch_container(patches[i]);
        container = given != NULL ? given : container;
    }
    return container;
}

/* A patch between live states names no files; if it changes the set of tensors, one file is made up. */
static weft_status create_single(weft_context *context, const weft_table *table, const char *path,
                                 weft_checkpoint **checkpoint_out) {
    size_t count = weft_table_count(table);
    const weft_tensor **tensors = weft_allocate_array(context, count, sizeof *tensors);
    if (tensors == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        tensors[i] = weft_table_at(table, i);
    }
    char *header = NULL;
    weft_container_file file = {.name = ""};
    weft_status status = weft_safetensors_build(context, tensors, count, NULL, &header, &file.header_bytes);
    if (status == WEFT_OK) {
        file.header = header;
        weft_container container = {.file_count = 1, .files = &file};
        status = weft_checkpoint_create(context, path, &container, checkpoint_out);
    }
    weft_release(context, header);
    weft_release(context, tensors);
    return status;
}

static weft_status create_output(weft_context *context, const weft_checkpoint *base,
                                 const weft_patch *const *patches, size_t count, const char *path,
                                 weft_checkpoint **output_out) {
    bool plain = weft_roster_plain(&patches[0]->header.roster);
    if (!plain && weft_patch_container(patches[0]) == NULL) {
        return create_single(context, weft_patch_table(patches[0]), path, output_out);
    }
    const weft_container *container = result_container(base, patches, count);
    if (container == NULL) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "base mismatch: the patch needs a base to start from");
    }
    return weft_checkpoint_create(context, path, container, output_out);
}

/* ---- one step ---- */

/* What the patch says becomes of each tensor must be possible for the base. The digests would find out
 * too, but only after all the work. */
static weft_status check_fates(weft_context *context, const weft_table *base, const weft_roster *roster) {
    for (size_t i = 0; i < roster->count; i++) {
        const weft_roster_entry *entry = &roster->entries[i];
        int64_t found = weft_table_find(base, entry->tensor.name);
        bool same = found >= 0 && weft_tensor_alike(weft_table_at(base, (size_t)found), &entry->tensor);
        bool possible = entry->fate == WEFT_FATE_ADDED      ? found < 0
                        : entry->fate == WEFT_FATE_REPLACED ? found >= 0 && !same
                                                            : same;
        if (!possible) {
            return weft_fail(
                context, WEFT_BASE_MISMATCH,
                "base mismatch: the patch does not fit what the base has of tensor %s; nothing "
                "was written",
                entry->tensor.name);
        }
    }
    return WEFT_OK;
}

static weft_status apply_one(weft_context *context, const weft_patch *patch, const weft_view *view,
                             weft_sums *sums) {
    weft_apply *apply;
    weft_status status = weft_apply_create_as(context, WEFT_APPLY_REBUILD, patch, view, sums, &apply);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_apply_run(apply);
    weft_apply_destroy(apply);
    return status;
}

/* Sums what was really written. */
static weft_status prove_output(weft_context *context, const weft_view *view, const weft_patch *last) {
    weft_sums *sums;
    weft_status status = weft_sums_compute(context, view, &sums);
    if (status != WEFT_OK) {
        return status;
    }
    weft_digest made = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    if (!weft_digest_equal(&made, &last->footer.result)) {
        return weft_fail(context, WEFT_DIGEST_MISMATCH,
                         "the written checkpoint does not have the promised digest; it was discarded");
    }
    return WEFT_OK;
}

typedef struct step {
    weft_table *nothing; /* what there is without a base */
    weft_view *base_view;
    weft_sums *base_sums;
    weft_checkpoint *output;
    weft_view *view;
    weft_sums *sums;
} step;

static weft_status run_step(weft_context *context, step *s, const weft_checkpoint *base,
                            const weft_patch *const *patches, size_t first, size_t count, size_t total,
                            const char *path) {
    weft_status status = base == NULL ? weft_table_create(context, &s->nothing) : WEFT_OK;
    const weft_table *table = base != NULL ? weft_checkpoint_table(base) : s->nothing;
    if (status == WEFT_OK) {
        status = weft_view_create(context, table, &s->base_view);
    }
    if (status == WEFT_OK) {
        status = weft_sums_compute(context, s->base_view, &s->base_sums);
    }
    if (status == WEFT_OK) {
        status = weft_patch_check_base(context, patches[first], s->base_sums);
        status = weft_patch_blame(context, status, first, total, "");
    }
    if (status == WEFT_OK) {
        status = check_fates(context, table, &patches[first]->header.roster);
    }
    if (status == WEFT_OK) {
        status = create_output(context, base, patches + first, count, path, &s->output);
    }
    if (status == WEFT_OK) {
        status = copy_kept(context, table, weft_checkpoint_table(s->output));
    }
    if (status == WEFT_OK) {
        status = weft_view_create(context, weft_checkpoint_table(s->output), &s->view);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, s->view, &s->sums);
    }
    if (status == WEFT_OK) {
        weft_sums_add_common(s->sums, s->base_sums);
    }
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        if (i > 0) {
            status = weft_patch_check_base(context, patches[first + i], s->sums);
        }
        if (status == WEFT_OK) {
            status = apply_one(context, patches[first + i], s->view, s->sums);
        }
        status = weft_patch_blame(context, status, first + i, total, "");
    }
    return status == WEFT_OK ? prove_output(context, s->view, patches[first + count - 1]) : status;
}

/* The `count` patches from `first` on either all keep their tensors, or there is one. The result is proven
 * and still under temporary names. */
static weft_status rebuild_step(weft_context *context, const weft_checkpoint *base,
                                const weft_patch *const *patches, size_t first, size_t count, size_t total,
                                const char *path, weft_checkpoint **output_out) {
    step s = {0};
    weft_status status = run_step(context, &s, base, patches, first, count, total, path);
    weft_sums_destroy(s.sums);
    weft_view_destroy(s.view);
    weft_sums_destroy(s.base_sums);
    weft_view_destroy(s.base_view);
    weft_table_destroy(s.nothing);
    if (status != WEFT_OK) {
        weft_checkpoint_close(s.output);
        return status;
    }
    *output_out = s.output;
    return WEFT_OK;
}

static size_t step_length(const weft_patch *const *patches, size_t count) {
    size_t length = 0;
    while (length < count && weft_roster_plain(&patches[length]->header.roster)) {
        length++;
    }
    return length > 0 ? length : 1;
}

/* A name beside the output that no checkpoint has. Intermediate checkpoints are made for it and never get
 * it. */
static char *intermediate_path(weft_context *context, const char *output_path) {
    size_t size = strlen(output_path) + 64;
    char *path = weft_allocate(context, size);
    if (path != NULL) {
        snprintf(path, size, "%s.weft-step-%ld", output_path, (long)getpid());
    }
    return path;
}

/* Each step starts from what the one before has made; closing that removes it. */
static weft_status rebuild_steps(weft_context *context, const weft_checkpoint *base,
                                 const weft_patch *const *patches, size_t count, const char *output_path,
                                 const char *step_path, weft_checkpoint **output_out) {
    weft_checkpoint *made = NULL;
    weft_status status = WEFT_OK;
    for (size_t done = 0; done < count && status == WEFT_OK;) {
        size_t length = step_length(patches + done, count - done);
        weft_checkpoint *next = NULL;
        status = rebuild_step(context, made != NULL ? made : base, patches, done, length, count,
                              done + length == count ? output_path : step_path, &next);
        weft_checkpoint_close(made);
        made = next;
        done += length;
    }
    if (status == WEFT_OK) {
        *output_out = made;
    }
    return status;
}

weft_status weft_apply_rebuild_draft(weft_context *context, const weft_checkpoint *base,
                                     const weft_patch *const *patches, size_t count,
                                     const char *output_path, weft_checkpoint **draft_out) {
    if (count == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "no patch to apply");
    }
    char *step_path = intermediate_path(context, output_path);
    if (step_path == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = rebuild_steps(context, base, patches, count, output_path, step_path, draft_out);
    weft_release(context, step_path);
    return status;
}

weft_status weft_apply_rebuild(weft_context *context, const weft_checkpoint *base,
                               const weft_patch *const *patches, size_t count, const char *output_path,
                               bool durable, weft_digest *digest_out) {
    weft_context_clear(context);
    weft_checkpoint *output = NULL;
    weft_status status = weft_apply_rebuild_draft(context, base, patches, count, output_path, &output);
    if (status == WEFT_OK) {
        status = weft_checkpoint_finish(output, durable);
    }
    if (status == WEFT_OK && digest_out != NULL) {
        *digest_out = patches[count - 1]->footer.result;
    }
    return status;
}
