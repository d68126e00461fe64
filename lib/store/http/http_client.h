/* SPDX-License-Identifier: Apache-2.0
 *
 * http_client.h: what the stores behind HTTP share: operations that are tried again, gets that go on where
 * they stopped, and the look whether a put has happened after all.
 *
 * A backend holds a client as its first member, and tells by a dialect how its server speaks.
 */
#ifndef WEFT_STORE_HTTP_HTTP_CLIENT_H
#define WEFT_STORE_HTTP_HTTP_CLIENT_H

#include "http_engine.h"

typedef struct weft_http_client weft_http_client;

typedef struct weft_http_dialect {
    /* Sees every exchange that is over, before it is judged. */
    void (*note)(weft_http_client *client, const weft_http_exchange *exchange);
    /* True if the same may well succeed in a moment. */
    bool (*passing)(const weft_http_exchange *exchange);
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
/* Waits until the next attempt is due. False if there is none: what was met does not pass, there were
 * enough of them, or the caller has cancelled. */
bool weft_http_effort_again(weft_http_effort *effort, const weft_http_exchange *exchange);
/* The same for who knows that what was met passes. */
bool weft_http_effort_retry(weft_http_effort *effort, const weft_http_exchange *exchange);
weft_status weft_http_effort_fail(const weft_http_effort *effort, const weft_http_exchange *exchange);

/* A tag from elsewhere, such as a directory, must not become a line of a request. */
bool weft_http_tag_valid(const weft_store_tag *tag);

typedef struct weft_http_line {
    char text[WEFT_STORE_TAG_MAX + 32];
} weft_http_line;

/* The condition of a put as a line of its header, or NULL if there is none. */
const char *weft_http_condition_line(const weft_store_put_request *request, weft_http_line *line);

/* True if the answer came whole and is a success. */
bool weft_http_succeeded(const weft_http_answer *answer);

/* Size and tag; `unless` as in a get. Like all but the table's, these are for who has entered
 * the engine. */
weft_status weft_http_look(weft_http_client *client, weft_context *context, const char *key,
                           const weft_store_tag *unless, weft_store_get_result *result);
/* True in `there_out` if the object holds the bytes of the put, which then has happened. */
weft_status weft_http_is_there(weft_http_client *client, weft_context *context,
                               const weft_store_put_request *request, weft_store_tag *tag_out,
                               bool *there_out);

/* For a backend's table of operations; `self` is the client. */
weft_status weft_http_table_get(void *self, weft_context *context, const weft_store_get_request *request,
                                weft_store_get_result *result_out);
weft_status weft_http_table_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                                 weft_store_tag *tag_out);
weft_status weft_http_table_age(void *self, weft_context *context, const char *key, double *seconds_out);
weft_status weft_http_table_remove(void *self, weft_context *context, const char *key);

#endif
