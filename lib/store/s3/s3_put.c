/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_put.c: puts that are one request, and the question whether the service heeds conditions.
 *
 * Services differ: Amazon heeds the conditions of puts, Swift refuses them, and others ignore them, which
 * would overwrite what must not be. So before the first conditional put a small object is put once or
 * twice, on the condition that it is not there. Only a service that then refuses it is trusted with
 * conditions.
 */
#include "s3.h"

#include "../../base/context.h"

#include <string.h>

/* ---- one request ---- */

/* One attempt. */
static weft_status put_once(weft_http_effort *effort, weft_s3_store *store,
                            const weft_store_put_request *request, const void *data, size_t size,
                            weft_http_exchange *exchange) {
    weft_http_line line;
    weft_http_effort_begin(effort, exchange, WEFT_HTTP_PUT);
    exchange->fresh = request->condition != WEFT_STORE_ALWAYS;
    exchange->conditions[0] = weft_http_condition_line(request, &line);
    exchange->lines = store->making.lines;
    weft_status status = weft_s3_fill(store, effort->context, exchange, data, size);
    return status == WEFT_OK ? weft_http_effort_run(effort, exchange, NULL) : status;
}

/* An object that is to be replaced but is not there is no longer the one with the tag. */
bool weft_s3_refuses(const weft_store_put_request *request, const weft_http_exchange *exchange) {
    return exchange->answer.status == 412 ||
           (request->condition == WEFT_STORE_IF_SAME && exchange->answer.status == 404 &&
            !weft_s3_says(exchange, "NoSuchBucket"));
}

weft_status weft_s3_put_whole(weft_s3_store *store, weft_context *context,
                              const weft_store_put_request *request, const void *data, size_t size,
                              weft_store_tag *tag_out) {
    weft_http_effort effort = {.client = &store->client, .context = context, .key = request->key};
    weft_http_exchange exchange;
    bool doubtful = false;
    do {
        weft_status status = put_once(&effort, store, request, data, size, &exchange);
        if (status != WEFT_OK) {
            return status;
        }
        if (weft_http_succeeded(&exchange.answer)) {
            *tag_out = exchange.answer.tag;
            return WEFT_OK;
        }
        doubtful = doubtful || !weft_http_unheard(&exchange);
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_settle(&effort, &exchange, request, doubtful, weft_s3_refuses(request, &exchange),
                            tag_out);
}

/* ---- conditions ---- */

typedef enum reaction { REACTION_TAKEN, REACTION_REFUSED, REACTION_UNKNOWN_TO_IT } reaction;

/* What the service makes of a condition; anything else is a failure. */
static weft_status try_condition(weft_s3_store *store, weft_context *context,
                                 weft_store_condition condition, reaction *reaction_out) {
    weft_http_effort effort = {.client = &store->client, .context = context, .key = WEFT_S3_PROBE_KEY};
    weft_store_put_request request = {
        .size = sizeof request, .key = WEFT_S3_PROBE_KEY, .condition = condition, .tag = {"\"weft\""}};
    weft_http_exchange exchange;
    do {
        weft_status status = put_once(&effort, store, &request, WEFT_S3_PROBE_CONTENT,
                                      sizeof(WEFT_S3_PROBE_CONTENT) - 1, &exchange);
        if (status != WEFT_OK) {
            return status;
        }
        long answer = exchange.answer.status;
        if (weft_http_succeeded(&exchange.answer)) {
            *reaction_out = REACTION_TAKEN;
            return WEFT_OK;
        }
        if (answer == 412) {
            *reaction_out = REACTION_REFUSED;
            return WEFT_OK;
        }
        if (answer == 501 || answer == 405 || weft_s3_says(&exchange, "NotImplemented") ||
            weft_s3_says(&exchange, "InvalidArgument") || weft_s3_says(&exchange, "InvalidRequest")) {
            *reaction_out = REACTION_UNKNOWN_TO_IT;
            return WEFT_OK;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

weft_status weft_s3_learn_conditions(weft_s3_store *store, weft_context *context) {
    if (atomic_load(&store->conditions) != S3_CONDITIONS_UNKNOWN) {
        return WEFT_OK;
    }
    reaction reaction = REACTION_TAKEN;
    weft_status status = WEFT_OK;
    /* If the first makes the object, the second must be refused. */
    for (int i = 0; i < 2 && status == WEFT_OK && reaction == REACTION_TAKEN; i++) {
        status = try_condition(store, context, WEFT_STORE_IF_ABSENT, &reaction);
    }
    if (status == WEFT_OK && reaction == REACTION_REFUSED) {
        status = try_condition(store, context, WEFT_STORE_IF_SAME, &reaction);
    }
    if (status == WEFT_OK) {
        atomic_store(&store->conditions,
                     reaction == REACTION_REFUSED ? S3_CONDITIONS_HEEDED : S3_CONDITIONS_NONE);
    }
    return status;
}
