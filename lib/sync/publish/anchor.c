/* SPDX-License-Identifier: Apache-2.0
 *
 * anchor.c: writing anchors, in the background or at once.
 */
#include "anchor.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

weft_status weft_anchor_encode(weft_context *context, const weft_view *view,
                               const weft_publisher_options *options, const weft_container *container,
                               const char *const *labels, weft_spool *spool, weft_sums **sums_out,
                               weft_diff_stats *stats) {
    weft_table *nothing = NULL;
    weft_view *nowhere = NULL;
    weft_status status = weft_table_create(context, &nothing);
    if (status == WEFT_OK) {
        status = weft_view_create(context, nothing, &nowhere);
    }
    if (status == WEFT_OK) {
        const weft_diff_options diff = {
            .size = sizeof diff,
            .profile = options->profile,
            .format = options->format,
            .bucket_bytes = options->bucket_bytes,
            .cuts = options->cuts,
            .cut_count = options->cut_count,
            .new_container = container,
            .labels = labels,
            .new_sums_out = sums_out,
        };
        weft_sink sink = weft_spool_sink(spool);
        status = weft_diff(context, nowhere, view, &diff, &sink, stats);
    }
    weft_view_destroy(nowhere);
    weft_table_destroy(nothing);
    return status;
}

weft_status weft_anchor_write(weft_context *context, const weft_anchor_task *task, const weft_view *view,
                              weft_anchor *anchor) {
    char key[WEFT_KEY_SIZE];
    weft_diff_stats stats = {.size = sizeof stats};
    weft_spool *spool;
    weft_upload *upload;
    weft_status status = weft_spool_open(context, weft_spool_directory(task->options), &spool);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_sync_key(context, "anchors", task->epoch, anchor->version, key);
    if (status == WEFT_OK) {
        status = weft_upload_start(context, task->store, key, spool, &upload);
    }
    if (status == WEFT_OK) {
        status =
            weft_anchor_encode(context, view, task->options, task->container, NULL, spool, NULL, &stats);
        if (status == WEFT_OK && !weft_digest_equal(&stats.result, &anchor->digest)) {
            status = weft_fail(context, WEFT_DIGEST_MISMATCH,
                               "the copy of version %llu that an anchor was to be made of has drifted",
                               (unsigned long long)anchor->version);
        }
        status = weft_upload_join(context, upload, weft_spool_finish(spool, status));
    }
    if (status == WEFT_OK) {
        status = weft_spool_describe(context, spool, key, task->store, &anchor->object);
    }
    weft_spool_close(spool);
    return status;
}

/* ---- in the background ---- */

struct weft_anchor_job {
    weft_context *context; /* the thread's own */
    weft_anchor_task task;
    pthread_t thread;
    atomic_bool done;
    atomic_bool stopping;
    weft_failure failure;
    weft_anchor anchor;
};

/* A copy, so that publishing can go on. Its memory is taken, and touched, before the lock is. */
static weft_status copy_mirror(weft_anchor_job *job, weft_mirror *copy) {
    const weft_anchor_task *task = &job->task;
    weft_status status = weft_mirror_open(copy, job->context, task->mirror->view);
    if (status != WEFT_OK) {
        return status;
    }
    memset(copy->memory, 0, (size_t)copy->bytes);
    pthread_mutex_lock(task->lock);
    weft_mirror_copy(copy, task->mirror);
    job->anchor.version = *task->version;
    job->anchor.digest = *task->digest;
    pthread_mutex_unlock(task->lock);
    return WEFT_OK;
}

void weft_anchor_collect(weft_context *context, weft_store *store, const weft_publisher_options *chosen) {
    const weft_gc_options options = {.size = sizeof options,
                                     .trusted = chosen->key,
                                     .grace_seconds = chosen->gc_seconds,
                                     .keep_followers = chosen->keep_followers};
    if (chosen->gc_seconds > 0) {
        weft_status ignored = weft_gc_run(context, store, &options, NULL);
        (void)ignored;
    }
}

static void *anchor_main(void *argument) {
    weft_anchor_job *job = argument;
    /* on Linux this is the thread alone: training goes first */
    setpriority(PRIO_PROCESS, 0, 10);
    weft_mirror copy = {0};
    weft_status status = copy_mirror(job, &copy);
    if (status == WEFT_OK) {
        status = weft_anchor_write(job->context, &job->task, copy.view, &job->anchor);
    }
    weft_mirror_close(&copy);
    job->failure = weft_failure_keep(job->context, status);
    weft_anchor_collect(job->context, job->task.store, job->task.options);
    atomic_store(&job->done, true);
    return NULL;
}

weft_status weft_anchor_start(weft_context *context, const weft_anchor_task *task,
                              weft_anchor_job **job_out) {
    weft_anchor_job *job = weft_allocate_zeroed(context, 1, sizeof *job);
    if (job == NULL) {
        return WEFT_NO_MEMORY;
    }
    job->task = *task;
    atomic_init(&job->done, false);
    atomic_init(&job->stopping, false);
    weft_status status = weft_context_derive(context, weft_thread_keep_on, &job->stopping, &job->context);
    if (status == WEFT_OK) {
        int error = pthread_create(&job->thread, NULL, anchor_main, job);
        if (error != 0) {
            status = weft_fail_errno(context, error, "cannot start a thread for an anchor");
            weft_context_destroy(job->context);
        }
    }
    if (status != WEFT_OK) {
        weft_release(context, job);
        return status;
    }
    *job_out = job;
    return WEFT_OK;
}

bool weft_anchor_done(weft_anchor_job *job) {
    return atomic_load(&job->done);
}

uint64_t weft_anchor_version(const weft_anchor_job *job) {
    return job->anchor.version;
}

weft_status weft_anchor_join(weft_context *context, weft_anchor_job *job, weft_anchor *anchor) {
    weft_thread_join(context, job->thread, &job->stopping);
    weft_status status = job->failure.status;
    *anchor = job->anchor;
    if (status != WEFT_OK) {
        status = weft_fail(context, status, "an anchor could not be written: %s", job->failure.text);
    }
    weft_context_destroy(job->context);
    weft_release(context, job);
    return status;
}
