/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_onward.c: reports on their way from here to the store that is relayed.
 *
 * A follower has its answer when its report is kept here; how the next store takes it is none of its
 * business, and may take any time. One thread hands them on, of each follower only the newest, which keeps
 * their order. When it cannot keep up, those of further followers are left out: the next report of each
 * tries again. Closing cancels what is under way.
 */
#include "../../lib/base/clock.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

enum { ERRANDS_MAX = 1024 };

struct serve_errand {
    serve_errand *next;
    char key[WEFT_STORE_KEY_MAX + 1];
    char data[WEFT_REPORT_MAX];
    size_t size;
};

/* That of the same follower, or a new one at the end; NULL if there is no room. */
static serve_errand *find_errand(serve_onward *onward, const char *key) {
    serve_errand **link = &onward->first;
    while (*link != NULL && strcmp((*link)->key, key) != 0) {
        link = &(*link)->next;
    }
    if (*link == NULL && onward->count < ERRANDS_MAX) {
        *link = calloc(1, sizeof **link);
        onward->count += *link != NULL;
    }
    return *link;
}

void serve_onward_add(serve_onward *onward, const char *key, const char *data, size_t size) {
    if (onward->server->source->hand_on == NULL) {
        return;
    }
    pthread_mutex_lock(&onward->mutex);
    serve_errand *errand = find_errand(onward, key);
    if (errand != NULL) {
        snprintf(errand->key, sizeof errand->key, "%s", key);
        memcpy(errand->data, data, size);
        errand->size = size;
        pthread_cond_signal(&onward->wake);
    }
    pthread_mutex_unlock(&onward->mutex);
}

/* NULL: it is time to end. */
static serve_errand *take_errand(serve_onward *onward) {
    pthread_mutex_lock(&onward->mutex);
    while (onward->first == NULL && !atomic_load(&onward->closing)) {
        pthread_cond_wait(&onward->wake, &onward->mutex);
    }
    serve_errand *errand = atomic_load(&onward->closing) ? NULL : onward->first;
    if (errand != NULL) {
        onward->first = errand->next;
        onward->count--;
    }
    pthread_mutex_unlock(&onward->mutex);
    return errand;
}

static void *work(void *opaque) {
    serve_onward *onward = opaque;
    serve_server *server = onward->server;
    for (serve_errand *errand = take_errand(onward); errand != NULL; errand = take_errand(onward)) {
        server->source->hand_on(server, onward->context, errand->key, errand->data, errand->size);
        free(errand);
    }
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
