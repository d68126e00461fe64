/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_history.c: the newest versions of the run, for /v1/history and the page that plots them.
 *
 * Reading the history means fetching pages and checking every link, and may wait for one that is not
 * visible yet: a thread of its own does it whenever the head has moved, and requests are answered from
 * memory. It walks back to a version that is known already, so each version is read about once. What can
 * change of a version is that an anchor of it is written later. Then the head moves without a new version,
 * and all is read again; and when another publisher takes over, the last few, since it may have written one
 * before anybody looked. If something has changed, the generation counts up: who has a copy takes it again.
 *
 * At most HISTORY_MAX versions are kept. Each is kept as JSON text, at most a few KiB with its labels.
 */
#include "../../lib/base/clock.h"
#include "../cli/remote.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

enum { RETRY_SECONDS = 10, RECENT = 64 };

typedef struct history_walk {
    const serve_history *history;
    size_t again;         /* so many known versions are read again before the walk stops */
    serve_version *found; /* newest first; it takes HISTORY_MAX */
    size_t count;
    size_t kept;  /* of the known versions, those that lie before what was found */
    bool met;     /* a known version */
    bool changed; /* a known version is not what it was */
    bool failed;  /* for want of memory */
} history_walk;

/* ---- reading ---- */

static void release_versions(serve_version *versions, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(versions[i].text);
    }
    free(versions);
}

static char *describe(const weft_log_entry *entry) {
    json_t *json = remote_version(entry);
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(json);
    return text;
}

/* The place of an entry among the known versions, which have no gaps; their number if it is not there. */
static size_t find_known(const serve_history *history, const weft_log_entry *entry) {
    if (history->count == 0 || entry->version < history->versions[0].version) {
        return history->count;
    }
    uint64_t place = entry->version - history->versions[0].version;
    return place < history->count && weft_digest_equal(&history->versions[place].digest, &entry->digest)
               ? (size_t)place
               : history->count;
}

/* Compares what was found with a version that is known. True if the walk may stop there. */
static bool meet(history_walk *walk, const serve_version *found, size_t place) {
    walk->met = true;
    walk->changed |= strcmp(walk->history->versions[place].text, found->text) != 0;
    if (walk->again > 0) {
        walk->again--;
        return false;
    }
    walk->kept = place;
    return true;
}

static bool visit(void *opaque, const weft_log_entry *entry) {
    history_walk *walk = opaque;
    serve_version *found = &walk->found[walk->count];
    *found = (serve_version){.version = entry->version, .digest = entry->digest, .text = describe(entry)};
    if (found->text == NULL) {
        walk->failed = true;
        return false;
    }
    walk->count++;
    size_t place = find_known(walk->history, entry);
    bool stop = place < walk->history->count && meet(walk, found, place);
    return !stop && walk->count < HISTORY_MAX;
}

/* True if who has a copy of the known versions cannot go on from there. */
static bool has_changed(const serve_history *history, const history_walk *walk) {
    if (history->count == 0 || walk->count == 0) {
        return false;
    }
    return !walk->met || walk->changed ||
           walk->found[walk->count - 1].version < history->versions[0].version;
}

/* Puts what was found behind what stays, in a new list. False if there is no memory. */
static bool take_found(serve_history *history, const history_walk *walk) {
    size_t room = HISTORY_MAX - walk->count;
    size_t kept = walk->kept < room ? walk->kept : room;
    size_t count = kept + walk->count;
    serve_version *versions = calloc(count + 1, sizeof *versions);
    if (versions == NULL) {
        return false;
    }
    history->generation += has_changed(history, walk) ? 1 : 0;
    for (size_t i = 0; i < kept; i++) {
        serve_version *from = &history->versions[walk->kept - kept + i];
        versions[i] = *from;
        from->text = NULL;
    }
    for (size_t i = 0; i < walk->count; i++) {
        versions[count - 1 - i] = walk->found[i];
    }
    release_versions(history->versions, history->count);
    history->versions = versions;
    history->count = count;
    return true;
}

static const char *failure_text(const serve_history *history, weft_status status) {
    if (status >= 0) {
        return "no memory for the history";
    }
    const char *text = weft_context_error(history->context);
    return *text != 0 ? text : weft_status_name(status);
}

static uint64_t newest_known(const serve_history *history) {
    return history->count > 0 ? history->versions[history->count - 1].version : 0;
}

/* Of a walk that failed, what it has found and checked is taken if it is news, and else what is known
 * stays: either way there are no gaps. */
static void finish_walk(serve_history *history, history_walk *walk, weft_status status) {
    bool failed = status < 0 || walk->failed;
    pthread_mutex_lock(&history->mutex);
    bool taken = !failed || (walk->count > 0 && walk->found[0].version > newest_known(history));
    if (taken && !take_found(history, walk)) {
        failed = true;
        taken = false;
    }
    serve_text_hide(history->server, failed ? failure_text(history, status) : "", history->error,
                    sizeof history->error);
    pthread_mutex_unlock(&history->mutex);
    history->complete = !failed;
    if (taken) {
        free(walk->found);
    } else {
        release_versions(walk->found, walk->count);
    }
}

static void read_history(serve_history *history, size_t again) {
    history_walk walk = {.history = history, .again = again};
    walk.found = calloc(HISTORY_MAX, sizeof *walk.found);
    weft_status status = WEFT_OK;
    if (walk.found == NULL) {
        walk.failed = true;
    } else {
        status = weft_log_walk(history->context, history->server->store, NULL, visit, &walk);
    }
    finish_walk(history, &walk, status);
}

static void forget_history(serve_history *history) {
    pthread_mutex_lock(&history->mutex);
    release_versions(history->versions, history->count);
    history->versions = NULL;
    history->count = 0;
    history->generation++;
    pthread_mutex_unlock(&history->mutex);
}

/* How many known versions may have changed since the head was another. */
static size_t count_doubtful(const weft_head_info *before, const weft_head_info *now) {
    if (before->epoch != now->epoch) {
        return RECENT;
    }
    return now->sequence - before->sequence == now->version - before->version ? 0 : HISTORY_MAX;
}

static void follow_head(serve_history *history) {
    size_t watchers = 0;
    serve_head head = serve_watch_head(&history->server->watch, &watchers);
    if (!head.known || strcmp(head.info.run, history->seen.run) != 0) {
        forget_history(history);
        history->complete = false;
    }
    if (head.known) {
        read_history(history, history->complete ? count_doubtful(&history->seen, &head.info) : HISTORY_MAX);
    }
    history->seen = head.info;
}

/* ---- the thread ---- */

/* Waits, with the lock, for a poke or the end; after a failure, for a while only. */
static void wait_for_poke(serve_history *history) {
    double end = weft_clock_now() + RETRY_SECONDS;
    bool in_time = true;
    while (!history->poked && !atomic_load(&history->closing) && in_time) {
        if (*history->error != 0) {
            in_time = weft_condition_wait(&history->wake, &history->mutex, end);
        } else {
            pthread_cond_wait(&history->wake, &history->mutex);
        }
    }
}

static void *history_main(void *opaque) {
    serve_history *history = opaque;
    pthread_mutex_lock(&history->mutex);
    for (;;) {
        wait_for_poke(history);
        if (atomic_load(&history->closing)) {
            break;
        }
        history->poked = false;
        pthread_mutex_unlock(&history->mutex);
        follow_head(history);
        pthread_mutex_lock(&history->mutex);
    }
    pthread_mutex_unlock(&history->mutex);
    return NULL;
}

bool serve_history_open(serve_history *history, serve_server *server) {
    *history = (serve_history){.server = server};
    weft_context_options options = {.size = sizeof options,
                                    .threads = 1,
                                    .progress = weft_thread_keep_on,
                                    .progress_opaque = &history->closing};
    if (weft_context_create(&options, &history->context) != WEFT_OK) {
        return false;
    }
    weft_condition_open(&history->wake);
    pthread_mutex_init(&history->mutex, NULL);
    bool started = pthread_create(&history->thread, NULL, history_main, history) == 0;
    if (!started) {
        serve_history_close(history);
    }
    return started;
}

void serve_history_poke(serve_history *history) {
    pthread_mutex_lock(&history->mutex);
    history->poked = true;
    pthread_cond_signal(&history->wake);
    pthread_mutex_unlock(&history->mutex);
}

void serve_history_finish(serve_history *history) {
    pthread_mutex_lock(&history->mutex);
    atomic_store(&history->closing, true);
    pthread_cond_signal(&history->wake);
    pthread_mutex_unlock(&history->mutex);
    pthread_join(history->thread, NULL);
}

void serve_history_close(serve_history *history) {
    release_versions(history->versions, history->count);
    pthread_cond_destroy(&history->wake);
    pthread_mutex_destroy(&history->mutex);
    weft_context_destroy(history->context);
}

/* ---- answers ---- */

static json_t *json_summary(const serve_history *history) {
    json_t *json = json_object();
    uint64_t oldest = history->count > 0 ? history->versions[0].version : 0;
    json_object_set_new(json, "generation", json_count(history->generation));
    json_object_set_new(json, "oldest", json_count(oldest));
    json_object_set_new(json, "newest", json_count(newest_known(history)));
    json_object_set_new(json, "error", *history->error != 0 ? json_string(history->error) : json_null());
    return json;
}

json_t *serve_history_summary(serve_history *history) {
    pthread_mutex_lock(&history->mutex);
    json_t *json = json_summary(history);
    pthread_mutex_unlock(&history->mutex);
    return json;
}

static void print_history(const serve_history *history, uint64_t since, uint64_t limit, FILE *out) {
    json_t *summary = json_summary(history);
    char *text = json_dumps(summary, JSON_COMPACT | JSON_EMBED);
    json_decref(summary);
    fprintf(out, "{%s,\"versions\":[", text != NULL ? text : "\"error\":null");
    free(text);
    /* The first version above `since` of the newest `limit`. */
    size_t first = history->count > limit ? history->count - (size_t)limit : 0;
    while (first < history->count && history->versions[first].version <= since) {
        first++;
    }
    for (size_t i = first; i < history->count; i++) {
        fprintf(out, "%s\n%s", i > first ? "," : "", history->versions[i].text);
    }
    fputs("]}\n", out);
}

char *serve_text_history(serve_request *request, size_t *size_out) {
    serve_history *history = &request->server->history;
    char *text = NULL;
    FILE *out = open_memstream(&text, size_out);
    if (out == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&history->mutex);
    print_history(history, request->after, request->limit, out);
    pthread_mutex_unlock(&history->mutex);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
