/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_jobs.c: a queue of requests whose next step waits for a disk (syncing a put, removing a large
 * file), and a few threads that take them from it. Without them, one fsync would hold up every other
 * connection of the same libmicrohttpd thread, heads and watchers included.
 */
#include "serve.h"

static void run_job(serve_request *request) {
    request->job(request);
    request->job_done = true;
}

static void *work(void *opaque) {
    serve_jobs *jobs = opaque;
    pthread_mutex_lock(&jobs->mutex);
    for (;;) {
        serve_request *request = jobs->first;
        if (request == NULL && jobs->closing) {
            break;
        }
        if (request == NULL) {
            pthread_cond_wait(&jobs->wake, &jobs->mutex);
            continue;
        }
        jobs->first = request->next;
        pthread_mutex_unlock(&jobs->mutex);
        /* Once resumed, the request may end and be gone. */
        struct MHD_Connection *connection = request->connection;
        run_job(request);
        MHD_resume_connection(connection);
        pthread_mutex_lock(&jobs->mutex);
    }
    pthread_mutex_unlock(&jobs->mutex);
    return NULL;
}

bool serve_jobs_open(serve_jobs *jobs) {
    *jobs = (serve_jobs){0};
    pthread_mutex_init(&jobs->mutex, NULL);
    pthread_cond_init(&jobs->wake, NULL);
    while (jobs->thread_count < JOB_THREADS &&
           pthread_create(&jobs->threads[jobs->thread_count], NULL, work, jobs) == 0) {
        jobs->thread_count++;
    }
    if (jobs->thread_count == 0) {
        serve_jobs_close(jobs);
        return false;
    }
    return true;
}

bool serve_jobs_defer(serve_jobs *jobs, serve_request *request) {
    pthread_mutex_lock(&jobs->mutex);
    bool closing = jobs->closing;
    if (!closing) {
        MHD_suspend_connection(request->connection);
        request->next = NULL;
        if (jobs->first == NULL) {
            jobs->first = request;
        } else {
            jobs->last->next = request;
        }
        jobs->last = request;
        pthread_cond_signal(&jobs->wake);
    }
    pthread_mutex_unlock(&jobs->mutex);
    if (closing) {
        run_job(request);
    }
    return !closing;
}

void serve_jobs_finish(serve_jobs *jobs) {
    pthread_mutex_lock(&jobs->mutex);
    jobs->closing = true;
    pthread_cond_broadcast(&jobs->wake);
    pthread_mutex_unlock(&jobs->mutex);
    for (size_t i = 0; i < jobs->thread_count; i++) {
        pthread_join(jobs->threads[i], NULL);
    }
}

void serve_jobs_close(serve_jobs *jobs) {
    pthread_cond_destroy(&jobs->wake);
    pthread_mutex_destroy(&jobs->mutex);
}
