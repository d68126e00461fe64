/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_onward.c: reports on their way from here to the store that is relayed.
 *
 * A follower has its answer when its report is kept here; how the next store takes it is none of its
 * business, and may take any time. One thread hands them on, of each follower only the newest, which keeps
 * their order, and as many in one request as fit: however far the next store is, all that came while one
 * request was under way go with the next. With each goes how long ago it came here, so that who is late on
 * the way is not taken for dead. A store that knows no batches gets them one by one. When the thread cannot
 * keep up, those of further followers are left out: the next report of each tries again. Closing cancels
 * what is under way.
 */
#include "../../lib/base/clock.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

enum { ERRANDS_MAX = WEFT_FLEET_MAX };

/* Between requests, so that reports gather. */
static const double GATHER_SECONDS = 0.2;
/* after which a store that knew no batches is asked again: it may have been replaced */
static const double BATCHES_SECONDS = 300;

struct serve_errand {
    serve_errand *next;
    weft_follower follower;
    double came;
};

/* That of the same follower, or a new one at the end; NULL if there is no room. */
static serve_errand *find_errand(serve_onward *onward, const char *name) {
    serve_errand **link = &onward->first;
    while (*link != NULL && strcmp((*link)->follower.name, name) != 0) {
        link = &(*link)->next;
    }
    if (*link == NULL && onward->count < ERRANDS_MAX) {
        *link = calloc(1, sizeof **link);
        onward->count += *link != NULL;
    }
    return *link;
}

void serve_onward_add(serve_onward *onward, const weft_follower *follower, double age) {
    if (onward->server->source->hand_on == NULL) {
        return;
    }
    pthread_mutex_lock(&onward->mutex);
    serve_errand *errand = find_errand(onward, follower->name);
    if (errand != NULL) {
        errand->follower = *follower;
        /* what does not come through here does not reach it */
        if (follower->reads > WEFT_FORMAT_NEWEST) {
            errand->follower.reads = WEFT_FORMAT_NEWEST;
        }
        errand->came = clock_seconds() - age;
        pthread_cond_signal(&onward->wake);
    }
    pthread_mutex_unlock(&onward->mutex);
}

/* All that there is; NULL: it is time to end. */
static serve_errand *take_errands(serve_onward *onward) {
    pthread_mutex_lock(&onward->mutex);
    while (onward->first == NULL && !atomic_load(&onward->closing)) {
        pthread_cond_wait(&onward->wake, &onward->mutex);
    }
    serve_errand *errands = NULL;
    if (!atomic_load(&onward->closing)) {
        errands = onward->first;
        onward->first = NULL;
        onward->count = 0;
    }
    pthread_mutex_unlock(&onward->mutex);
    return errands;
}

static void drop_first(serve_errand **errands) {
    serve_errand *first = *errands;
    *errands = first->next;
    free(first);
}

/* The way that every store knows, and that says nothing of how late a report is. */
static weft_status hand_on_one(serve_onward *onward, const weft_follower *follower) {
    serve_server *server = onward->server;
    uint8_t data[WEFT_REPORT_MAX];
    size_t size = 0;
    char key[WEFT_STORE_KEY_MAX + 1];
    weft_status status = weft_report_format(onward->context, follower, data, &size);
    if (status == WEFT_OK) {
        snprintf(key, sizeof key, WEFT_REPORT_ROOM "/%s", follower->name);
        status = server->source->hand_on(server, onward->context, key, data, size);
    }
    return status;
}

/* Takes as many as fit into one request. */
static weft_status hand_on_many(serve_onward *onward, serve_errand **errands, char *batch) {
    serve_server *server = onward->server;
    size_t used = 0;
    while (*errands != NULL && used + WEFT_REPORT_LINE_MAX <= WEFT_REPORT_BATCH_MAX) {
        size_t size = 0;
        double age = clock_seconds() - (*errands)->came;
        if (weft_report_line_format(onward->context, &(*errands)->follower, age, batch + used, &size) ==
            WEFT_OK) {
            used += size;
        }
        drop_first(errands);
    }
    return server->source->hand_on(server, onward->context, WEFT_REPORT_BATCH_KEY, batch, used);
}

/* That they are kept here is enough for the followers: of those that are lost here the next report tries
 * again. While the store does not answer, it is not asked for each of them. */
static void hand_on_all(serve_onward *onward, serve_errand **errands, char *batch) {
    weft_status status = WEFT_OK;
    while (*errands != NULL && status != WEFT_REMOTE_FAILED && !atomic_load(&onward->closing)) {
        if (clock_seconds() >= onward->batches) {
            weft_follower first = (*errands)->follower;
            status = hand_on_many(onward, errands, batch);
            if (status == WEFT_NOT_FOUND || status == WEFT_UNSUPPORTED || status == WEFT_REMOTE_DENIED) {
                onward->batches = clock_seconds() + BATCHES_SECONDS;
                status = hand_on_one(onward, &first);
            }
        } else {
            status = hand_on_one(onward, &(*errands)->follower);
            drop_first(errands);
        }
    }
}

static void *work(void *opaque) {
    serve_onward *onward = opaque;
    char *batch = malloc(WEFT_REPORT_BATCH_MAX);
    for (serve_errand *errands = take_errands(onward); errands != NULL; errands = take_errands(onward)) {
        if (batch != NULL) {
            hand_on_all(onward, &errands, batch);
        }
        while (errands != NULL) {
            drop_first(&errands);
        }
        (void)weft_clock_sleep(onward->context, GATHER_SECONDS);
    }
    free(batch);
    return NULL;
}

static void release(serve_onward *onward) {
    while (onward->first != NULL) {
        serve_errand *errand = onward->first;
        onward->first = errand->next;
        free(errand);
    }
    pthread_cond_destroy(&onward->wake);
    pthread_mutex_destroy(&onward->mutex);
    weft_context_destroy(onward->context);
}

bool serve_onward_open(serve_onward *onward, serve_server *server) {
    *onward = (serve_onward){.server = server};
    weft_context_options options = {.size = sizeof options,
                                    .threads = 1,
                                    .progress = weft_thread_keep_on,
                                    .progress_opaque = &onward->closing};
    if (weft_context_create(&options, &onward->context) != WEFT_OK) {
        return false;
    }
    pthread_cond_init(&onward->wake, NULL);
    pthread_mutex_init(&onward->mutex, NULL);
    if (pthread_create(&onward->thread, NULL, work, onward) != 0) {
        release(onward);
        return false;
    }
    return true;
}

void serve_onward_close(serve_onward *onward) {
    pthread_mutex_lock(&onward->mutex);
    atomic_store(&onward->closing, true);
    pthread_cond_signal(&onward->wake);
    pthread_mutex_unlock(&onward->mutex);
    pthread_join(onward->thread, NULL);
    release(onward);
}
