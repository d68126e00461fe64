/* SPDX-License-Identifier: Apache-2.0
 *
 * http_engine.h: one thread that moves the bytes of all exchanges of a store.
 *
 * curl's multi handle belongs to that thread alone. Callers queue an exchange, wake the thread and wait;
 * the caller of a put feeds it meanwhile. The thread starts with the first exchange.
 */
#ifndef WEFT_STORE_HTTP_HTTP_ENGINE_H
#define WEFT_STORE_HTTP_HTTP_ENGINE_H

#include "http_exchange.h"

typedef struct weft_http_engine weft_http_engine;

weft_status weft_http_engine_create(weft_context *context, const weft_http_settings *settings,
                                    unsigned transfers, weft_http_engine **engine_out);
/* Ends the exchanges in flight, waits until their callers have left, and joins the thread. */
void weft_http_engine_destroy(weft_http_engine *engine);

/* Called around each operation, which may be several exchanges with pauses between them. */
void weft_http_engine_enter(weft_http_engine *engine);
void weft_http_engine_leave(weft_http_engine *engine);

/* Runs an exchange to its end. How it ended, an HTTP error or a lost connection included, is in its answer;
 * the status says only whether it could be run. `request` is NULL, or of a put whose feed is read on the
 * way; a failure of the feed ends the exchange and is returned. */
weft_status weft_http_engine_run(weft_http_engine *engine, weft_context *context,
                                 weft_http_exchange *exchange, const weft_store_put_request *request);
/* The same in two halves, for several exchanges in flight at once. Each that was started must be finished,
 * by the same thread; one that failed to start must not. The bytes of a put are given before
 * (weft_http_exchange_fill). */
weft_status weft_http_engine_start(weft_http_engine *engine, weft_context *context,
                                   weft_http_exchange *exchange);
weft_status weft_http_engine_finish(weft_http_engine *engine, weft_context *context,
                                    weft_http_exchange *exchange);
/* Between start and finish: ends the exchange early. */
void weft_http_engine_cancel(weft_http_engine *engine, weft_http_exchange *exchange);

/* Sleeps. False, at once, if the engine is being destroyed. */
bool weft_http_engine_sleep(weft_http_engine *engine, double seconds);

#endif
