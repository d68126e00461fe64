/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_training.c: the steps of a trainer that keeps its run in this store, for /v1/train and the page
 * that plots them.
 *
 * A trainer replaces one object after each step. It is read, and checked, when somebody asks and it has
 * changed since; that waits for a disk, so it is a job. A relay passes on what the history of the run
 * proves, which this is no part of: there is never any training to be seen on one.
 */
#include "../base/training.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

void serve_training_open(serve_training *training, serve_server *server) {
    *training = (serve_training){.server = server};
    pthread_mutex_init(&training->mutex, NULL);
}

void serve_training_close(serve_training *training) {
    json_decref(training->told);
    pthread_mutex_destroy(&training->mutex);
}

/* ---- looking ---- */

/* Takes what there is now, which may be nothing. */
static void take(serve_training *training, json_t *told, const char *error) {
    json_decref(training->told);
    training->told = told;
    serve_text_hide(training->server, error, training->error, sizeof training->error);
}

static weft_status read_object(serve_training *training, weft_context *context, uint64_t size,
                               json_t **told_out) {
    char *text = malloc(size > 0 ? size : 1);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    const weft_store_get_request get = {
        .size = sizeof get, .key = TRAINING_METRICS_KEY, .length = size, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(context, training->server->store, &get, &result);
    if (status == WEFT_OK) {
        training->tag = result.tag;
        status = training_object_parse(context, TRAINING_METRICS_KEY, text, result.received, told_out);
    }
    free(text);
    return status;
}

static void look(serve_training *training, weft_context *context) {
    uint64_t size = 0;
    weft_store_tag tag;
    json_t *told = NULL;
    weft_status status =
        weft_store_head(context, training->server->store, TRAINING_METRICS_KEY, &size, &tag);
    if (status == WEFT_OK && *tag.text != 0 && strcmp(tag.text, training->tag.text) == 0) {
        return;
    }
    training->tag = (weft_store_tag){{0}};
    if (status == WEFT_OK && size > TRAINING_OBJECT_MAX) {
        take(training, NULL, "what the trainer tells is too long");
        return;
    }
    if (status == WEFT_OK) {
        status = read_object(training, context, size, &told);
    }
    bool failed = status != WEFT_OK && status != WEFT_NOT_FOUND;
    take(training, told, failed ? weft_context_error(context) : "");
}

void serve_training_look(serve_request *request) {
    serve_training *training = &request->server->training;
    if (request->server->relay != NULL) {
        return;
    }
    pthread_mutex_lock(&training->mutex);
    look(training, request->context);
    pthread_mutex_unlock(&training->mutex);
}

/* ---- telling ---- */

static double number_of(const json_t *step) {
    return training_number(step, NULL, "step", 0);
}

/* `told` may be NULL. */
static json_t *select_steps(const json_t *told, uint64_t from) {
    json_t *selected = json_array();
    const json_t *steps = json_object_get(told, "steps");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_t *step = json_array_get(steps, i);
        if (number_of(step) >= (double)from) {
            json_array_append(selected, step);
        }
    }
    return selected;
}

static json_t *make_answer(const serve_training *training, uint64_t from) {
    json_t *json = json_object();
    const json_t *steps = json_object_get(training->told, "steps");
    json_t *run = json_object_get(training->told, "run");
    size_t count = json_array_size(steps);
    double newest = count > 0 ? number_of(json_array_get(steps, count - 1)) : 0;
    json_object_set_new(json, "newest", json_count((uint64_t)(newest > 0 ? newest : 0)));
    json_object_set_new(json, "error", *training->error != 0 ? json_string(training->error) : json_null());
    json_object_set_new(json, "run", run != NULL ? json_incref(run) : json_null());
    json_object_set_new(json, "steps", select_steps(training->told, from));
    return json;
}

char *serve_text_training(serve_request *request, size_t *size_out) {
    serve_training *training = &request->server->training;
    pthread_mutex_lock(&training->mutex);
    json_t *json = make_answer(training, request->after);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    pthread_mutex_unlock(&training->mutex);
    *size_out = text != NULL ? strlen(text) : 0;
    return text;
}
