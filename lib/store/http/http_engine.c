/* SPDX-License-Identifier: Apache-2.0
 *
 * http_engine.c: the thread behind all exchanges of a store.
 *
 * One mutex guards the queue and what callers and thread tell each other about an exchange; it is never
 * held while curl or a feed runs. An exchange lies in its caller's frame: from the queueing until `over` it
 * is the thread's, then the caller's again.
 *
 * Stalls are found here and not by curl: a put that waits for its own feed must not count as one. Bytes buy
 * time, at a rate that every honest link has, and never more than a stall may take: a server that sends one
 * byte now and then is given up like one that sends none.
 */
#include "http_engine.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../table/store.h"

#include <signal.h>

enum {
    PIPE_BYTES = 1 << 20,
    IDLE_CONNECTIONS = 4, /* kept beside one for each transfer */
    POLL_MILLISECONDS = 1000,
    LEAST_RATE = 1024, /* bytes per second, of all transfers of a store together */
};

/* between looks whether the caller still wants to wait */
static const double CANCEL_SECONDS = 0.1;

struct weft_http_engine {
    weft_context *context; /* for memory only */
    const weft_http_settings *settings;
    unsigned transfers;
    CURLM *multi;

    pthread_mutex_t mutex;
    pthread_cond_t ended; /* the engine ends, or a caller has left */
    pthread_t thread;
    bool started;
    bool ending;
    unsigned callers;
    weft_http_exchange *queue; /* in order of arrival */
    weft_http_exchange **queue_end;

    /* the thread's */
    weft_http_exchange *active;
    unsigned active_count; /* without those that wait on the server */
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;

static void start_curl(void) {
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* ---- the thread ---- */

/* When an exchange that has just made progress is given up, if it makes none from now on. */
static double latest_deadline(const weft_http_engine *engine, const weft_http_exchange *exchange,
                              double now) {
    return now + engine->settings->stall_seconds + exchange->wait_seconds;
}

static void end_exchange(weft_http_engine *engine, weft_http_exchange *exchange, CURLcode code) {
    weft_http_exchange **link = &engine->active;
    while (*link != exchange) {
        link = &(*link)->next;
    }
    *link = exchange->next;
    engine->active_count -= exchange->wait_seconds > 0 ? 0 : 1;
    weft_http_exchange_finish(exchange, code);
    curl_multi_remove_handle(engine->multi, exchange->easy);
    pthread_mutex_lock(&engine->mutex);
    exchange->over = true;
    pthread_cond_signal(&exchange->changed);
    pthread_mutex_unlock(&engine->mutex);
}

/* Takes the next exchange from the queue, or NULL if all transfers are busy. Long polls take no transfer,
 * and a cancelled exchange is taken at once, to be ended. */
static weft_http_exchange *take_queued(weft_http_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    weft_http_exchange **link = &engine->queue;
    bool full = engine->active_count >= engine->transfers && !engine->ending;
    while (*link != NULL && full && (*link)->wait_seconds <= 0 && !(*link)->cancel) {
        link = &(*link)->next;
    }
    weft_http_exchange *exchange = *link;
    if (exchange != NULL) {
        *link = exchange->next;
        if (engine->queue_end == &exchange->next) {
            engine->queue_end = link;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    return exchange;
}

static void start_queued(weft_http_engine *engine) {
    weft_http_exchange *exchange = take_queued(engine);
    while (exchange != NULL) {
        exchange->next = engine->active;
        engine->active = exchange;
        engine->active_count += exchange->wait_seconds > 0 ? 0 : 1;
        exchange->patient_until =
            latest_deadline(engine, exchange, weft_clock_now() + engine->settings->connect_seconds);
        if (curl_multi_add_handle(engine->multi, exchange->easy) != CURLM_OK) {
            end_exchange(engine, exchange, CURLE_OUT_OF_MEMORY);
        }
        exchange = take_queued(engine);
    }
}

/* Ends what callers have cancelled, and resumes puts whose feed has more. */
static void heed_callers(weft_http_engine *engine) {
    weft_http_exchange *next = NULL;
    for (weft_http_exchange *exchange = engine->active; exchange != NULL; exchange = next) {
        next = exchange->next;
        pthread_mutex_lock(&engine->mutex);
        bool cancel = exchange->cancel || engine->ending;
        bool resume = exchange->resume;
        exchange->resume = false;
        pthread_mutex_unlock(&engine->mutex);
        if (cancel) {
            end_exchange(engine, exchange, CURLE_ABORTED_BY_CALLBACK);
        } else if (resume) {
            /* the feed was late, and not the server */
            exchange->patient_until = latest_deadline(engine, exchange, weft_clock_now());
            curl_easy_pause(exchange->easy, CURLPAUSE_CONT);
        }
    }
}

static void end_finished(weft_http_engine *engine) {
    int left = 0;
    for (CURLMsg *message = curl_multi_info_read(engine->multi, &left); message != NULL;
         message = curl_multi_info_read(engine->multi, &left)) {
        if (message->msg == CURLMSG_DONE) {
            CURLcode code = message->data.result;
            weft_http_exchange *exchange = NULL;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &exchange);
            end_exchange(engine, exchange, code);
        }
    }
}

/* Progress without bytes of a body: how many of these steps are done, each of which may take its time: the
 * connection stands, all of the body was sent, the answer begins, its body begins. */
static unsigned count_steps(const weft_http_exchange *exchange, uint64_t sent) {
    curl_off_t connected = 0;
    curl_easy_getinfo(exchange->easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
    bool all_sent = exchange->put_size > 0 && sent == exchange->put_size;
    bool answers = exchange->answer.status >= 200;
    return (connected > 0 ? 1U : 0) + (all_sent ? 1 : 0) + (answers ? 1 : 0) + (exchange->begun ? 1 : 0);
}

/* Bytes of bodies, in either direction, extend the deadline. Lines of a header do not: a server could send
 * those for ever. */
static void extend_patience(weft_http_engine *engine, weft_http_exchange *exchange, double now) {
    double most = latest_deadline(engine, exchange, now);
    curl_off_t sent = 0;
    curl_off_t came = 0;
    curl_easy_getinfo(exchange->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    curl_easy_getinfo(exchange->easy, CURLINFO_SIZE_DOWNLOAD_T, &came);
    uint64_t all = (uint64_t)sent + (uint64_t)came;
    uint64_t moved = all > exchange->moved ? all - exchange->moved : 0;
    exchange->moved = all;
    unsigned steps = count_steps(exchange, (uint64_t)sent);
    pthread_mutex_lock(&engine->mutex);
    bool waits_for_feed = exchange->pipe.dry;
    pthread_mutex_unlock(&engine->mutex);
    if (steps > exchange->steps || waits_for_feed) {
        exchange->patient_until = most;
    } else {
        /* those that share a link have a part of it each */
        unsigned sharing = engine->active_count > 0 ? engine->active_count : 1;
        double bought = exchange->patient_until + (double)moved * sharing / LEAST_RATE;
        exchange->patient_until = moved == 0 || bought < most ? bought : most;
    }
    exchange->steps = steps > exchange->steps ? steps : exchange->steps;
}

/* Gives up what has been too slow for too long. Returns how many milliseconds until the next look. */
static int end_stalled(weft_http_engine *engine) {
    double now = weft_clock_now();
    double soonest = now + POLL_MILLISECONDS * 1e-3;
    weft_http_exchange *next = NULL;
    for (weft_http_exchange *exchange = engine->active; exchange != NULL; exchange = next) {
        next = exchange->next;
        extend_patience(engine, exchange, now);
        if (now >= exchange->patient_until) {
            exchange->stalled = true;
            end_exchange(engine, exchange, CURLE_OPERATION_TIMEDOUT);
        } else if (exchange->patient_until < soonest) {
            soonest = exchange->patient_until;
        }
    }
    return (int)((soonest - now) * 1000) + 1;
}

static bool is_ending(weft_http_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    bool ending = engine->ending && engine->queue == NULL;
    pthread_mutex_unlock(&engine->mutex);
    return ending && engine->active == NULL;
}

static void *run_thread(void *opaque) {
    weft_http_engine *engine = opaque;
    while (!is_ending(engine)) {
        int running = 0;
        start_queued(engine);
        heed_callers(engine);
        curl_multi_perform(engine->multi, &running);
        end_finished(engine);
        int milliseconds = end_stalled(engine);
        /* Ended exchanges make room for queued ones, which nobody wakes the thread for again. */
        start_queued(engine);
        curl_multi_poll(engine->multi, NULL, 0, milliseconds, NULL);
    }
    return NULL;
}

/* Signals are for the program's own threads; above all SIGPIPE, which OpenSSL may raise. */
static int start_thread(weft_http_engine *engine) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&engine->thread, NULL, run_thread, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- callers ---- */

static weft_status enqueue(weft_http_engine *engine, weft_context *context, weft_http_exchange *exchange) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&engine->mutex);
    if (engine->ending) {
        status = weft_fail(context, WEFT_CANCELLED, "the store was closed");
    } else if (!engine->started) {
        int error = start_thread(engine);
        engine->started = error == 0;
        if (error != 0) {
            status = weft_fail_errno(context, error, "cannot start a thread for transfers");
        }
    }
    if (status == WEFT_OK) {
        exchange->next = NULL;
        *engine->queue_end = exchange;
        engine->queue_end = &exchange->next;
    }
    pthread_mutex_unlock(&engine->mutex);
    if (status == WEFT_OK) {
        curl_multi_wakeup(engine->multi);
    }
    return status;
}

/* The caller's side of an exchange: `count` bytes were added to the pipe (0: it ends), or it is cancelled.
 */
static void tell_exchange(weft_http_engine *engine, weft_http_exchange *exchange, size_t count,
                          bool cancel) {
    weft_http_pipe *pipe = &exchange->pipe;
    pthread_mutex_lock(&engine->mutex);
    pipe->filled += count;
    pipe->ended = count == 0 && !cancel;
    exchange->cancel = cancel;
    bool wake = pipe->dry || cancel;
    exchange->resume = exchange->resume || pipe->dry;
    pipe->dry = false;
    pthread_mutex_unlock(&engine->mutex);
    if (wake) {
        curl_multi_wakeup(engine->multi);
    }
}

/* Waits for room in the pipe. Zero if the exchange is over, or the caller has cancelled it. */
static size_t wait_for_room(weft_http_engine *engine, weft_context *context, weft_http_exchange *exchange,
                            weft_status *status_out) {
    weft_http_pipe *pipe = &exchange->pipe;
    bool over = false;
    while (!over) {
        double end = weft_clock_now() + CANCEL_SECONDS;
        bool in_time = true;
        pthread_mutex_lock(&engine->mutex);
        while (!exchange->over && in_time && pipe->filled - pipe->drained == pipe->capacity) {
            in_time = weft_condition_wait(&exchange->changed, &engine->mutex, end);
        }
        over = exchange->over;
        size_t at = (size_t)(pipe->filled % pipe->capacity);
        size_t room = pipe->capacity - (size_t)(pipe->filled - pipe->drained);
        pthread_mutex_unlock(&engine->mutex);
        if (!over && room > 0) {
            return room < pipe->capacity - at ? room : pipe->capacity - at;
        }
        *status_out = over ? WEFT_OK : weft_progress_ask(context);
        if (*status_out != WEFT_OK) {
            tell_exchange(engine, exchange, 0, true);
            return 0;
        }
    }
    return 0;
}

/* Moves the feed into the pipe until one of them ends. */
static weft_status pump_feed(weft_http_engine *engine, weft_context *context, weft_http_exchange *exchange,
                             const weft_store_put_request *request) {
    weft_http_pipe *pipe = &exchange->pipe;
    weft_status cancelled = WEFT_OK;
    size_t room = wait_for_room(engine, context, exchange, &cancelled);
    while (room > 0) {
        size_t count = 0;
        weft_status status =
            weft_store_feed_read(context, request, pipe->filled,
                                 pipe->ring + (size_t)(pipe->filled % pipe->capacity), room, &count);
        tell_exchange(engine, exchange, count, status != WEFT_OK);
        if (status != WEFT_OK) {
            return status;
        }
        room = count > 0 ? wait_for_room(engine, context, exchange, &cancelled) : 0;
    }
    return cancelled;
}

/* Waits for the end at most CANCEL_SECONDS, so that the caller can be asked whether to go on. Reports bytes
 * that have arrived meanwhile. */
static bool is_over_soon(weft_http_engine *engine, weft_http_exchange *exchange) {
    double end = weft_clock_now() + CANCEL_SECONDS;
    bool in_time = true;
    pthread_mutex_lock(&engine->mutex);
    while (!exchange->over && in_time && exchange->ready == exchange->told) {
        in_time = weft_condition_wait(&exchange->changed, &engine->mutex, end);
    }
    bool over = exchange->over;
    uint64_t ready = exchange->ready;
    pthread_mutex_unlock(&engine->mutex);
    if (!over && ready > exchange->told) {
        exchange->told = ready;
        exchange->arrived(exchange->arrived_opaque, exchange->arrived_before + ready);
    }
    return over;
}

/* The caller can cancel, since a server may be silent for long; in a long poll it is so on purpose. */
static weft_status wait_until_over(weft_http_engine *engine, weft_context *context,
                                   weft_http_exchange *exchange) {
    weft_status status = WEFT_OK;
    while (!is_over_soon(engine, exchange)) {
        if (status == WEFT_OK) {
            status = weft_progress_ask(context);
            if (status != WEFT_OK) {
                tell_exchange(engine, exchange, 0, true);
            }
        }
    }
    return status;
}

void weft_http_engine_enter(weft_http_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    engine->callers++;
    pthread_mutex_unlock(&engine->mutex);
}

void weft_http_engine_leave(weft_http_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    engine->callers--;
    pthread_cond_broadcast(&engine->ended);
    pthread_mutex_unlock(&engine->mutex);
}

weft_status weft_http_engine_start(weft_http_engine *engine, weft_context *context,
                                   weft_http_exchange *exchange) {
    const weft_http_identity *identity = engine->settings->identity;
    weft_http_proof proof = {0};
    weft_status status = identity != NULL ? identity->hold(identity->opaque, context, &proof) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    exchange->mutex = &engine->mutex;
    /* curl takes copies */
    bool prepared = weft_http_exchange_prepare(exchange, engine->settings, &proof);
    if (identity != NULL) {
        identity->release(identity->opaque);
    }
    status = prepared
                 ? enqueue(engine, context, exchange)
                 : weft_fail(context, WEFT_NO_MEMORY, "out of memory for a request to %s", exchange->url);
    if (status != WEFT_OK) {
        weft_http_exchange_release(exchange);
    }
    return status;
}

weft_status weft_http_engine_finish(weft_http_engine *engine, weft_context *context,
                                    weft_http_exchange *exchange) {
    weft_status status = wait_until_over(engine, context, exchange);
    weft_http_exchange_release(exchange);
    return status;
}

void weft_http_engine_cancel(weft_http_engine *engine, weft_http_exchange *exchange) {
    tell_exchange(engine, exchange, 0, true);
}

weft_status weft_http_engine_run(weft_http_engine *engine, weft_context *context,
                                 weft_http_exchange *exchange, const weft_store_put_request *request) {
    if (request != NULL) {
        uint64_t size = request->feed.size;
        exchange->pipe.capacity = size == 0 ? 1 : size < PIPE_BYTES ? (size_t)size : PIPE_BYTES;
        exchange->pipe.ring = weft_allocate(context, exchange->pipe.capacity);
        if (exchange->pipe.ring == NULL) {
            return WEFT_NO_MEMORY;
        }
    }
    weft_status status = weft_http_engine_start(engine, context, exchange);
    if (status == WEFT_OK) {
        status = request != NULL ? pump_feed(engine, context, exchange, request) : WEFT_OK;
        weft_status waited = weft_http_engine_finish(engine, context, exchange);
        status = status == WEFT_OK ? waited : status;
    }
    if (request != NULL) {
        weft_release(context, exchange->pipe.ring);
    }
    return status;
}

bool weft_http_engine_sleep(weft_http_engine *engine, double seconds) {
    double end = weft_clock_now() + seconds;
    bool in_time = true;
    pthread_mutex_lock(&engine->mutex);
    while (!engine->ending && in_time) {
        in_time = weft_condition_wait(&engine->ended, &engine->mutex, end);
    }
    bool ending = engine->ending;
    pthread_mutex_unlock(&engine->mutex);
    return !ending;
}

/* ---- life ---- */

weft_status weft_http_engine_create(weft_context *context, const weft_http_settings *settings,
                                    unsigned transfers, weft_http_engine **engine_out) {
    pthread_once(&curl_once, start_curl);
    if (curl_ready != CURLE_OK) {
        return weft_fail(context, WEFT_NO_MEMORY, "libcurl does not start: %s",
                         curl_easy_strerror(curl_ready));
    }
    weft_http_engine *engine = weft_allocate_zeroed(context, 1, sizeof(*engine));
    if (engine == NULL) {
        return WEFT_NO_MEMORY;
    }
    engine->multi = curl_multi_init();
    if (engine->multi == NULL) {
        weft_release(context, engine);
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for transfers");
    }
    curl_multi_setopt(engine->multi, CURLMOPT_MAXCONNECTS, (long)transfers + IDLE_CONNECTIONS);
    weft_condition_open(&engine->ended);
    pthread_mutex_init(&engine->mutex, NULL);
    engine->context = context;
    engine->settings = settings;
    engine->transfers = transfers;
    engine->queue_end = &engine->queue;
    *engine_out = engine;
    return WEFT_OK;
}

void weft_http_engine_destroy(weft_http_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    engine->ending = true;
    pthread_cond_broadcast(&engine->ended);
    pthread_mutex_unlock(&engine->mutex);
    if (engine->started) {
        curl_multi_wakeup(engine->multi);
        pthread_join(engine->thread, NULL);
    }
    pthread_mutex_lock(&engine->mutex);
    while (engine->callers > 0) {
        pthread_cond_wait(&engine->ended, &engine->mutex);
    }
    pthread_mutex_unlock(&engine->mutex);
    curl_multi_cleanup(engine->multi);
    pthread_cond_destroy(&engine->ended);
    pthread_mutex_destroy(&engine->mutex);
    weft_release(engine->context, engine);
}
