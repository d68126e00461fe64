/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_fleet_ask.c: a relay that holds nothing is asked for one object by everybody at the same moment,
 * and the origin counts how often it is asked for it in turn.
 *
 * Everybody has asked for the object's size before. So all connections are there, and the relay has read
 * in the history what the object is, which costs it requests that are not of this object.
 */
#include "bench_fleet.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct question question;

typedef struct asker {
    question *question;
    weft_context *context;
    weft_store *store;
    uint8_t *answer;
    weft_status status;
    pthread_t thread;
    bool running;
} asker;

struct question {
    sync_bench *bench;
    const char *url; /* of the relay */
    char key[WEFT_STORE_KEY_MAX + 1];
    uint64_t bytes;
    uint8_t *object;
    asker *askers;
    uint64_t count;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    /* under the lock */
    uint64_t ready;
    bool go;
};

/* ---- an asker ---- */

static void await_go(question *question) {
    pthread_mutex_lock(&question->lock);
    question->ready++;
    pthread_cond_broadcast(&question->moved);
    while (!question->go) {
        pthread_cond_wait(&question->moved, &question->lock);
    }
    pthread_mutex_unlock(&question->lock);
}

static weft_status fetch(weft_context *context, weft_store *store, const question *question,
                         uint8_t *buffer) {
    const weft_store_get_request request = {
        .size = sizeof request, .key = question->key, .length = question->bytes, .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    return weft_store_get(context, store, &request, &result);
}

static void *ask(void *opaque) {
    asker *asker = opaque;
    question *question = asker->question;
    uint64_t size;
    weft_store_tag tag;
    asker->status = weft_store_open(asker->context, question->url, NULL, &asker->store);
    if (asker->status == WEFT_OK) {
        asker->status = weft_store_head(asker->context, asker->store, question->key, &size, &tag);
    }
    await_go(question);
    if (asker->status == WEFT_OK) {
        asker->status = fetch(asker->context, asker->store, question, asker->answer);
    }
    return NULL;
}

static int start_asker(question *question, asker *asker) {
    asker->question = question;
    asker->answer = bench_map(question->bytes);
    if (asker->answer == NULL) {
        return sync_no_memory(question->bench);
    }
    int code = sync_context(question->bench, 1, &asker->context);
    if (code == EXIT_DONE && pthread_create(&asker->thread, NULL, ask, asker) != 0) {
        code = command_error(question->bench->command, EXIT_FAILED, "cannot start a thread");
    }
    asker->running = code == EXIT_DONE;
    return code;
}

static void close_asker(asker *asker, uint64_t bytes) {
    weft_store_close(asker->store);
    weft_context_destroy(asker->context);
    bench_unmap(asker->answer, bytes);
}

/* ---- all of them ---- */

static void await_ready(question *question, uint64_t count) {
    pthread_mutex_lock(&question->lock);
    while (question->ready < count) {
        pthread_cond_wait(&question->moved, &question->lock);
    }
    pthread_mutex_unlock(&question->lock);
}

static void let_go(question *question) {
    pthread_mutex_lock(&question->lock);
    question->go = true;
    pthread_cond_broadcast(&question->moved);
    pthread_mutex_unlock(&question->lock);
}

static int join_askers(question *question) {
    int code = EXIT_DONE;
    for (uint64_t i = 0; i < question->count; i++) {
        asker *asker = &question->askers[i];
        if (asker->running) {
            pthread_join(asker->thread, NULL);
        }
        if (code == EXIT_DONE && asker->running && asker->status != WEFT_OK) {
            code = sync_fail(question->bench, asker->context, asker->status);
        }
    }
    return code;
}

static int check_answers(const question *question) {
    for (uint64_t i = 0; i < question->count; i++) {
        if (memcmp(question->askers[i].answer, question->object, question->bytes) != 0) {
            return command_error(question->bench->command, EXIT_INTEGRITY,
                                 "the relay gave something else for %s", question->key);
        }
    }
    return EXIT_DONE;
}

static int ask_all(question *question, fleet_meter *meter, fleet_asked *asked) {
    fleet_counts before = {0}, after = {0};
    uint64_t started = 0;
    int code = EXIT_DONE;
    while (started < question->count && code == EXIT_DONE) {
        code = start_asker(question, &question->askers[started]);
        started += code == EXIT_DONE;
    }
    await_ready(question, started);
    if (code == EXIT_DONE) {
        code = fleet_meter_read(meter, &before);
    }
    let_go(question);
    int joined = join_askers(question);
    code = code == EXIT_DONE ? joined : code;
    if (code == EXIT_DONE) {
        code = check_answers(question);
    }
    if (code == EXIT_DONE) {
        code = fleet_meter_read(meter, &after);
    }
    asked->bytes = question->bytes;
    asked->origin_requests = after.requests - before.requests;
    asked->origin_bytes = after.sent - before.sent;
    return code;
}

/* ---- the object ---- */

/* Keys ascend with versions. The newest patch the relay fetches by itself. */
static bool take_oldest(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)age_seconds;
    question *question = opaque;
    if (question->key[0] == 0 || strcmp(key, question->key) < 0) {
        snprintf(question->key, sizeof question->key, "%s", key);
        question->bytes = size;
    }
    return true;
}

static int find_object(question *question, weft_context *context, weft_store *directory, const char *room) {
    weft_status status = weft_store_list(context, directory, room, take_oldest, question);
    if (status == WEFT_OK && question->key[0] == 0) {
        return command_error(question->bench->command, EXIT_FAILED, "there are no %s to ask for", room);
    }
    if (status == WEFT_OK) {
        question->object = malloc(question->bytes);
        if (question->object == NULL) {
            return sync_no_memory(question->bench);
        }
        status = fetch(context, directory, question, question->object);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(question->bench, context, status);
}

static int ask_for(sync_bench *bench, weft_store *directory, const char *url, fleet_meter *meter,
                   fleet_asked *asked) {
    question question = {.bench = bench, .url = url, .count = bench->options->followers};
    pthread_mutex_init(&question.lock, NULL);
    pthread_cond_init(&question.moved, NULL);
    question.askers = calloc(question.count, sizeof *question.askers);
    int code = question.askers != NULL ? find_object(&question, meter->context, directory, asked->room)
                                       : sync_no_memory(bench);
    if (code == EXIT_DONE) {
        code = ask_all(&question, meter, asked);
    }
    for (uint64_t i = 0; question.askers != NULL && i < question.count; i++) {
        close_asker(&question.askers[i], question.bytes);
    }
    free(question.askers);
    free(question.object);
    pthread_cond_destroy(&question.moved);
    pthread_mutex_destroy(&question.lock);
    return code;
}

static int ask_relay(sync_bench *bench, const fleet_origin *origin, const char *cache, fleet_meter *meter,
                     fleet_asked asked[FLEET_ASKED]) {
    static const char *const rooms[FLEET_ASKED] = {"patches", "anchors"};
    sync_server relay = {0};
    weft_store *directory = NULL;
    int code = sync_relay_start(bench, origin->server.url, cache, &relay);
    if (code == EXIT_DONE) {
        weft_status status = weft_store_open(meter->context, origin->path, NULL, &directory);
        code = status == WEFT_OK ? EXIT_DONE : sync_fail(bench, meter->context, status);
    }
    for (int i = 0; i < FLEET_ASKED && code == EXIT_DONE; i++) {
        asked[i].room = rooms[i];
        code = ask_for(bench, directory, relay.url, meter, &asked[i]);
    }
    weft_store_close(directory);
    sync_server_stop(&relay);
    return code;
}

int bench_fleet_ask(sync_bench *bench, const fleet_origin *origin, fleet_asked asked[FLEET_ASKED]) {
    char *cache = sync_store_path(bench, "fresh");
    fleet_meter meter = {0};
    int code = cache != NULL ? fleet_meter_open(bench, origin->server.url, &meter) : EXIT_FAILED;
    if (code == EXIT_DONE) {
        code = ask_relay(bench, origin, cache, &meter, asked);
    }
    fleet_meter_close(&meter);
    sync_store_remove(cache);
    return code;
}
