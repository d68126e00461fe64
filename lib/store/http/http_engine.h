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
/* Ends what is on the way, waits until its callers have left, and joins the thread. */
void weft_http_engine_destroy(weft_http_engine *engine);

/* Around each operation, which may be several exchanges and the time between them. */
void weft_http_engine_enter(weft_http_engine *engine);
void weft_http_engine_leave(weft_http_engine *engine);

/* Runs an exchange to its end, whatever that is: the answer tells. `request` is of a put that is read
 * on the way, else NULL, and a failure of its feed ends the exchange and is returned. Otherwise only what
 * kept the exchange from being run is a failure. */
weft_status weft_http_engine_run(weft_http_engine *engine, weft_context *context,
                                 weft_http_exchange *exchange, const weft_store_put_request *request);
/* The same in two halves, for who has several on the way: each that was started is to be finished, by the
 * same thread. The bytes of a put are in it already (weft_http_exchange_fill). A failure to start needs no
 * finish. */
weft_status weft_http_engine_start(weft_http_engine *engine, weft_context *context,
                                   weft_http_exchange *exchange);
weft_status weft_http_engine_finish(weft_http_engine *engine, weft_context *context,
                                    weft_http_exchange *exchange);
/* Between the two: it is no longer wanted. */
void weft_http_engine_cancel(weft_http_engine *engine, weft_http_exchange *exchange);

/* Waits, but not beyond the engine's end. False if that has come. */
bool weft_http_engine_sleep(weft_http_engine *engine, double seconds);

#endif
