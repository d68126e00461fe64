/* SPDX-License-Identifier: Apache-2.0
 *
 * http_client.h: what the HTTP and S3 backends share: operations with retries, gets that resume where they
 * stopped, and the check whether a put whose answer was lost has happened after all.
 *
 *   effort     one operation with all its attempts
 *   exchange   one attempt: a request and its answer (http_exchange.h)
 *   dialect    what differs between plain HTTP and S3: which failures pass, and how errors read
 *
 * A backend holds a client as its first member, and gives it its dialect.
 */
#ifndef WEFT_STORE_HTTP_HTTP_CLIENT_H
#define WEFT_STORE_HTTP_HTTP_CLIENT_H

#include "http_engine.h"
#include "http_token.h"

#include <stdatomic.h>

/* Between two looks at a store where nothing happens: a request each ten seconds is 8,640 a day. */
enum { WEFT_HTTP_IDLE_SECONDS = 10 };

typedef struct weft_http_client weft_http_client;

typedef struct weft_http_dialect {
    /* Sees every exchange that is over, before it is judged. */
    void (*note)(weft_http_client *client, const weft_http_exchange *exchange);
    /* True if the same may well succeed in a moment. */
    bool (*passing)(weft_http_client *client, const weft_http_exchange *exchange);
    /* Fails with one line: what was asked, what went wrong, and what to do. */
    weft_status (*fail)(weft_context *context, const weft_http_exchange *exchange,
                        const weft_http_settings *settings, unsigned attempts);
    /* True if GET may tell why HEAD, which has no body, was refused; NULL: never. */
    bool (*asks_why)(weft_http_client *client, const weft_http_answer *answer);
} weft_http_dialect;

struct weft_http_client {
    weft_context *context; /* for memory only */
    const weft_http_dialect *dialect;
    char *base; /* of the objects' URLs, without a slash at its end */
    weft_http_settings settings;
    weft_http_identity identity; /* of who has a token, and of no other dialect */
    weft_http_token token;
    atomic_bool dated; /* an answer had a date, and the clock there was so many seconds ahead */
    atomic_llong ahead_seconds;
    unsigned attempts;
    double backoff_seconds;
    weft_http_engine *engine;
};

/* `client` is zeroed. On failure it is to be closed all the same. */
weft_status weft_http_client_open(weft_http_client *client, weft_context *context, const char *base,
                                  const weft_store_options *options, const weft_http_dialect *dialect);
void weft_http_client_close(weft_http_client *client);

/* One operation, with all its attempts. */
typedef struct weft_http_effort {
    weft_http_client *client;
    weft_context *context;
    const char *key;
    unsigned failures;     /* in a row, without progress */
    unsigned attempts;     /* in all */
    weft_status cancelled; /* by the caller, between two attempts; else WEFT_OK */
} weft_http_effort;

/* An exchange about the effort's key. */
void weft_http_effort_begin(const weft_http_effort *effort, weft_http_exchange *exchange,
                            weft_http_method method);
/* Runs it; see weft_http_engine_run. */
weft_status weft_http_effort_run(weft_http_effort *effort, weft_http_exchange *exchange,
                                 const weft_store_put_request *request);
/* Waits until the next attempt is due. False if there is to be none: the failure does not pass, there were
 * enough attempts, or the caller has cancelled. */
bool weft_http_effort_again(weft_http_effort *effort, const weft_http_exchange *exchange);
/* The same where the caller knows that the failure passes. */
bool weft_http_effort_retry(weft_http_effort *effort, const weft_http_exchange *exchange);
weft_status weft_http_effort_fail(const weft_http_effort *effort, const weft_http_exchange *exchange);

typedef struct weft_http_line {
    char text[WEFT_STORE_TAG_MAX + 32];
} weft_http_line;

/* The condition of a put as a line of its header, or NULL if there is none. */
const char *weft_http_condition_line(const weft_store_put_request *request, weft_http_line *line);

/* True if the answer came whole and is a success. */
bool weft_http_succeeded(const weft_http_answer *answer);

/* The dialect of HTTP itself; others fall back on it. */
bool weft_http_passing(weft_http_client *client, const weft_http_exchange *exchange);
weft_status weft_http_fail(weft_context *context, const weft_http_exchange *exchange,
                           const weft_http_settings *settings, unsigned attempts);
/* True if the request cannot have reached the server, or was turned away before it was looked at. */
bool weft_http_unheard(const weft_http_exchange *exchange);
const char *weft_http_method_name(weft_http_method method);

/* Size and tag, by HEAD; `unless` as in a get. Callers of this and of what follows, the table's functions
 * apart, have entered the engine (weft_http_engine_enter). */
weft_status weft_http_look(weft_http_client *client, weft_context *context, const char *key,
                           const weft_store_tag *unless, weft_store_get_result *result);
/* True in `there_out` if the object holds the bytes of the put, which then has happened. */
weft_status weft_http_is_there(weft_http_client *client, weft_context *context,
                               const weft_store_put_request *request, weft_store_tag *tag_out,
                               bool *there_out);

/* Decides how a put ended whose last attempt failed. `doubtful`: an attempt may have been carried out
 * though its answer was lost; if the object holds the bytes of a conditional put, the put has happened.
 * `conflict`: the condition was refused. */
weft_status weft_http_settle(const weft_http_effort *effort, const weft_http_exchange *exchange,
                             const weft_store_put_request *request, bool doubtful, bool conflict,
                             weft_store_tag *tag_out);

/* What all of these stores have in common. */
void weft_http_traits(const weft_http_client *client, weft_store_traits *traits);

/* For a backend's table of operations. `self` is the client. They enter and leave the engine themselves. */
weft_status weft_http_table_get(void *self, weft_context *context, const weft_store_get_request *request,
                                weft_store_get_result *result_out);
weft_status weft_http_table_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                                 weft_store_tag *tag_out);
weft_status weft_http_table_age(void *self, weft_context *context, const char *key, double *seconds_out);
weft_status weft_http_table_remove(void *self, weft_context *context, const char *key);

#endif
