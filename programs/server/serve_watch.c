/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_watch.c: knows the newest head, and holds the requests that wait for a newer one.
 *
 * One thread looks for heads. It is woken by a put through this server or a relay's news
 * (serve_watch_poke), by inotify when another process has written into the directory, and by the clock: for
 * a waiting request whose time is up, and to look again all the same, since network file systems tell
 * nobody anything.
 *
 * Waiting requests are suspended and stand in a list. Who takes one off the list resumes it, after that it
 * is libmicrohttpd's again.
 */
#include "serve.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

/* Between looks that nothing has caused. */
static const double LOOK_SECONDS = 1.0;

/* ---- the head ---- */

/* A head that was served is never followed by an older one, unless all are gone. */
static bool is_newer(const serve_head *known, const weft_head_info *found) {
    return !known->known || found->epoch > known->info.epoch ||
           (found->epoch == known->info.epoch && found->sequence > known->info.sequence);
}

/* Says so once, until a head can be read again. */
static void complain(serve_watch *watch, const char *text) {
    if (!watch->complained) {
        serve_report(watch->server, "the newest head is of no use: %s", text);
        watch->complained = true;
    }
}

static void forget_head(serve_watch *watch) {
    pthread_mutex_lock(&watch->mutex);
    watch->head = (serve_head){.known = false};
    pthread_mutex_unlock(&watch->mutex);
    serve_history_poke(&watch->server->history);
}

static weft_status read_newest(serve_watch *watch, serve_head *found, uint64_t *epoch_out) {
    /* Only this thread writes the head, so it reads it without the lock. */
    uint64_t least = watch->head.known ? watch->head.info.epoch : 0;
    const serve_source *source = watch->server->source;
    weft_status status = source->find_head(watch->server, watch->context, least, found, epoch_out);
    /* the directory was emptied, and a new run may begin in it */
    if (status == WEFT_NOT_FOUND && least > 0) {
        forget_head(watch);
        status = source->find_head(watch->server, watch->context, 0, found, epoch_out);
    }
    return status;
}

static void look_for_head(serve_watch *watch) {
    serve_head found = {.known = true};
    uint64_t epoch = 0;
    weft_status status = read_newest(watch, &found, &epoch);
    if (status == WEFT_NOT_FOUND) {
        return;
    }
    if (status != WEFT_OK) {
        const char *text = weft_context_error(watch->context);
        complain(watch, *text != 0 ? text : weft_status_name(status));
        return;
    }
    if (found.info.epoch != epoch) {
        complain(watch, "it lies under the key of another epoch");
        return;
    }
    watch->complained = false;
    if (is_newer(&watch->head, &found.info)) {
        pthread_mutex_lock(&watch->mutex);
        watch->head = found;
        pthread_mutex_unlock(&watch->mutex);
        serve_history_poke(&watch->server->history);
    }
}

/* ---- who waits ---- */

static bool is_satisfied(const serve_watch *watch, const serve_request *request) {
    return watch->head.known && watch->head.info.version > request->after;
}

/* Resumes those who need not wait any longer, and returns when the next one's time is up. */
static double release_waiting(serve_watch *watch) {
    pthread_mutex_lock(&watch->mutex);
    double now = clock_seconds();
    double next = now + LOOK_SECONDS;
    for (serve_request **link = &watch->waiting; *link != NULL;) {
        serve_request *request = *link;
        if (is_satisfied(watch, request) || request->deadline <= now || watch->closing) {
            *link = request->next;
            watch->count--;
            atomic_fetch_sub(&watch->server->site->watching, 1);
            MHD_resume_connection(request->connection);
        } else {
            next = request->deadline < next ? request->deadline : next;
            link = &request->next;
        }
    }
    pthread_mutex_unlock(&watch->mutex);
    return next;
}

serve_verdict serve_watch_ask(serve_watch *watch, serve_request *request, serve_head *head_out) {
    serve_verdict verdict = VERDICT_SUSPENDED;
    bool ends_soon = request->deadline < clock_seconds() + LOOK_SECONDS;
    pthread_mutex_lock(&watch->mutex);
    if (is_satisfied(watch, request)) {
        *head_out = watch->head;
        verdict = VERDICT_HEAD;
    } else if (watch->closing || request->deadline <= clock_seconds()) {
        verdict = VERDICT_NONE;
    } else if (atomic_load(&watch->server->site->watching) >= watch->server->max_watchers) {
        verdict = VERDICT_FULL;
    } else {
        MHD_suspend_connection(request->connection);
        request->next = watch->waiting;
        watch->waiting = request;
        watch->count++;
        atomic_fetch_add(&watch->server->site->watching, 1);
    }
    pthread_mutex_unlock(&watch->mutex);
    if (verdict == VERDICT_SUSPENDED && ends_soon) {
        /* The thread may be asleep beyond this request's time. */
        serve_watch_poke(watch);
    }
    return verdict;
}

serve_head serve_watch_head(serve_watch *watch, size_t *watchers_out) {
    pthread_mutex_lock(&watch->mutex);
    serve_head head = watch->head;
    *watchers_out = watch->count;
    pthread_mutex_unlock(&watch->mutex);
    return head;
}

/* ---- the thread ---- */

/* Asks to be told of new heads, and of the directory that they will be in. Asking again for what is already
 * watched changes nothing; a directory that was removed and made again needs it. */
static void ask_notifier(const serve_watch *watch) {
    static const uint32_t events = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR;
    char path[PATH_MAX];
    if (watch->notifier < 0) {
        return;
    }
    (void)inotify_add_watch(watch->notifier, watch->server->directory,
                            IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
    int length = snprintf(path, sizeof path, "%s/heads", watch->server->directory);
    if (length > 0 && (size_t)length < sizeof path) {
        (void)inotify_add_watch(watch->notifier, path, events);
    }
}

static void drain(int descriptor) {
    char events[4096];
    while (descriptor >= 0 && read(descriptor, events, sizeof events) > 0) {
    }
}

static void sleep_until(const serve_watch *watch, double next) {
    struct pollfd descriptors[2] = {{.fd = watch->poke, .events = POLLIN},
                                    {.fd = watch->notifier, .events = POLLIN}};
    double left = next - clock_seconds();
    int milliseconds = left > 0 ? (int)(left * 1e3) + 1 : 0;
    (void)poll(descriptors, 2, milliseconds);
    drain(watch->poke);
    drain(watch->notifier);
}

static bool is_closing(serve_watch *watch) {
    pthread_mutex_lock(&watch->mutex);
    bool closing = watch->closing;
    pthread_mutex_unlock(&watch->mutex);
    return closing;
}

static void *watch_heads(void *opaque) {
    serve_watch *watch = opaque;
    while (!is_closing(watch)) {
        /* First ask, then look: what comes in between is told. */
        ask_notifier(watch);
        look_for_head(watch);
        double next = release_waiting(watch);
        sleep_until(watch, next);
    }
    (void)release_waiting(watch);
    return NULL;
}

/* ---- life ---- */

static bool start(serve_watch *watch) {
    weft_context_options options = {.size = sizeof options, .threads = 1};
    if (watch->poke < 0 || weft_context_create(&options, &watch->context) != WEFT_OK) {
        return false;
    }
    /* The first answers already know it. */
    look_for_head(watch);
    return pthread_create(&watch->thread, NULL, watch_heads, watch) == 0;
}

bool serve_watch_open(serve_watch *watch, serve_server *server) {
    *watch = (serve_watch){.server = server};
    /* A relay tells of its heads by a poke, and writes files that nobody need look at. */
    watch->notifier = server->relay == NULL ? inotify_init1(IN_NONBLOCK | IN_CLOEXEC) : -1;
    watch->poke = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&watch->mutex, NULL);
    bool started = start(watch);
    if (!started) {
        serve_watch_close(watch);
    }
    return started;
}

void serve_watch_poke(serve_watch *watch) {
    uint64_t one = 1;
    ssize_t written = write(watch->poke, &one, sizeof one);
    (void)written;
}

void serve_watch_dismiss(serve_watch *watch) {
    pthread_mutex_lock(&watch->mutex);
    watch->closing = true;
    pthread_mutex_unlock(&watch->mutex);
    serve_watch_poke(watch);
    pthread_join(watch->thread, NULL);
}

void serve_watch_close(serve_watch *watch) {
    pthread_mutex_destroy(&watch->mutex);
    weft_context_destroy(watch->context);
    if (watch->poke >= 0) {
        close(watch->poke);
    }
    if (watch->notifier >= 0) {
        close(watch->notifier);
    }
}
