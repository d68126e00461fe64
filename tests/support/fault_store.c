/* SPDX-License-Identifier: Apache-2.0
 *
 * fault_store.c: see fault_store.h. An operation first asks whether it is to be struck, which counts the
 * strike at once so that limits hold among threads; if it then turns out that there is nothing to strike
 * at, the strike is withdrawn and the operation goes its normal way.
 */
#include "fault_store.h"

#include "../../lib/base/context.h"
#include "models.h"

#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTENT_MAX = 64 * 1024, CONTENTS_MAX = 256, NO_RULE = -1 };

/* What was once under a key. */
typedef struct content {
    struct content *next;
    char key[WEFT_STORE_KEY_MAX + 1];
    weft_store_tag tag;
    size_t size;
    uint8_t bytes[];
} content;

/* How often a rule has struck at a key. */
typedef struct key_count {
    struct key_count *next;
    size_t rule;
    char key[WEFT_STORE_KEY_MAX + 1];
    uint64_t count;
} key_count;

/* A put or a remove that is on its way. */
typedef struct request {
    struct request *next;
    bool removes;
    char key[WEFT_STORE_KEY_MAX + 1];
    weft_store_condition condition;
    weft_store_tag tag;
    bytes bytes;
    bytes found; /* under the key when it was sent, in a plain store; nothing if there was no object */
} request;

typedef struct rule_state {
    fault_rule rule;
    uint64_t matched, struck;
} rule_state;

struct fault_store {
    pthread_mutex_t lock;
    weft_store *inner;
    dice dice;
    rule_state rules[FAULT_RULES_MAX];
    size_t rule_count;
    uint64_t generation; /* of the rules */
    key_count *key_counts;
    content *contents; /* the newest first */
    uint64_t counts[FAULT_KINDS];
    uint64_t calls, at; /* the operation that is struck by its number */
    bool last;
    fault_rule numbered;
    char reached[WEFT_STORE_KEY_MAX + 32]; /* that operation, in words */
    bool paused;
    pthread_cond_t gone_on;
    request *held; /* the oldest first */
    bool plain;
    uint64_t overlaps;
    double age_seconds;
};

/* What an operation is struck by. */
typedef struct strike {
    bool struck;
    const char *what; /* the operation, in words */
    fault_rule rule;
    int index; /* of the rule, or NO_RULE */
    uint64_t generation;
    uint64_t number; /* a throw of the dice for whatever the fault needs one for */
} strike;

static void *require(void *memory) {
    if (memory == NULL) {
        fprintf(stderr, "fault_store: out of memory\n");
        exit(99);
    }
    return memory;
}

/* ---- choosing ---- */

static unsigned possible_operations(fault_kind kind) {
    switch (kind) {
    case FAULT_LATE:
    case FAULT_STALE:
        return FAULT_ON_GET | FAULT_ON_HEAD;
    case FAULT_WRONG:
    case FAULT_FLIP:
    case FAULT_SHORT:
        return FAULT_ON_GET;
    case FAULT_HOLD:
        return FAULT_ON_PUT | FAULT_ON_REMOVE;
    default:
        return ~0u;
    }
}

static bool rule_matches(const fault_rule *rule, unsigned operation, const char *key) {
    return (possible_operations(rule->kind) & operation) != 0 &&
           (rule->operations == 0 || (rule->operations & operation) != 0) &&
           (rule->pattern == NULL || fnmatch(rule->pattern, key, 0) == 0);
}

static uint64_t *count_of_key(fault_store *self, size_t rule, const char *key) {
    for (key_count *entry = self->key_counts; entry != NULL; entry = entry->next) {
        if (entry->rule == rule && strcmp(entry->key, key) == 0) {
            return &entry->count;
        }
    }
    key_count *entry = require(calloc(1, sizeof *entry));
    entry->next = self->key_counts;
    entry->rule = rule;
    snprintf(entry->key, sizeof entry->key, "%s", key);
    self->key_counts = entry;
    return &entry->count;
}

static bool wins_throw(fault_store *self, double probability) {
    return probability == 0 || (double)(dice_next(&self->dice) >> 11) < probability * 0x1p53;
}

static bool rule_strikes(fault_store *self, size_t index, unsigned operation, const char *key) {
    rule_state *state = &self->rules[index];
    const fault_rule *rule = &state->rule;
    if (!rule_matches(rule, operation, key)) {
        return false;
    }
    state->matched++;
    return state->matched > rule->skip && (rule->limit == 0 || state->struck < rule->limit) &&
           (rule->per_key == 0 || *count_of_key(self, index, key) < rule->per_key) &&
           wins_throw(self, rule->probability);
}

static void count_strike(fault_store *self, const strike *strike, const char *key, int change) {
    self->counts[strike->rule.kind] += (uint64_t)change;
    if (strike->index != NO_RULE && strike->generation == self->generation) {
        self->rules[strike->index].struck += (uint64_t)change;
        *count_of_key(self, (size_t)strike->index, key) += (uint64_t)change;
    }
}

static const char *operation_name(unsigned operation) {
    switch (operation) {
    case FAULT_ON_GET:
        return "getting";
    case FAULT_ON_PUT:
        return "putting";
    case FAULT_ON_HEAD:
        return "asking for";
    case FAULT_ON_REMOVE:
        return "removing";
    case FAULT_ON_WATCH:
        return "watching";
    case FAULT_ON_AGE:
        return "asking for the age of";
    default:
        return "listing";
    }
}

/* The operation that is struck by its number, and those after it. Only what the kind can happen to counts.
 */
static bool number_strikes(fault_store *self, unsigned operation, const char *key, fault_rule *rule_out) {
    if (self->at != 0 && self->last && self->calls >= self->at) {
        *rule_out = (fault_rule){.kind = FAULT_FAIL, .status = self->numbered.status};
        return true;
    }
    if ((possible_operations(self->numbered.kind) & operation) == 0 || ++self->calls != self->at) {
        return false;
    }
    snprintf(self->reached, sizeof self->reached, "%s %s", operation_name(operation), key);
    *rule_out = self->numbered;
    return true;
}

/* Until nobody is stopped; the lock is the caller's. */
static void await_others(fault_store *self) {
    while (self->paused) {
        pthread_cond_wait(&self->gone_on, &self->lock);
    }
}

static strike choose(fault_store *self, unsigned operation, const char *key) {
    strike chosen = {.index = NO_RULE, .what = operation_name(operation)};
    pthread_mutex_lock(&self->lock);
    await_others(self);
    chosen.struck = number_strikes(self, operation, key, &chosen.rule);
    for (size_t i = 0; i < self->rule_count && !chosen.struck; i++) {
        if (rule_strikes(self, i, operation, key)) {
            chosen.struck = true;
            chosen.rule = self->rules[i].rule;
            chosen.index = (int)i;
        }
    }
    if (chosen.struck) {
        chosen.generation = self->generation;
        chosen.number = dice_next(&self->dice);
        count_strike(self, &chosen, key, 1);
        self->paused = chosen.rule.kind == FAULT_PAUSE;
    }
    pthread_mutex_unlock(&self->lock);
    return chosen;
}

static void withdraw(fault_store *self, const strike *strike, const char *key) {
    pthread_mutex_lock(&self->lock);
    count_strike(self, strike, key, -1);
    pthread_mutex_unlock(&self->lock);
}

static bool is_struck_by(const strike *strike, fault_kind kind) {
    return strike->struck && strike->rule.kind == kind;
}

/* ---- faults that need no content ---- */

static void sleep_for(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    while (nanosleep(&time, &time) != 0) {
    }
}

static weft_status injected(weft_context *context, const strike *strike, const char *key) {
    weft_status status = strike->rule.status == WEFT_OK ? WEFT_REMOTE_FAILED : strike->rule.status;
    return weft_fail(context, status, "%s %s: a fault was asked for", strike->what, key);
}

/* Nobody gets past choose() while `paused` is set. */
static void stand_still(fault_store *self, const fault_rule *rule) {
    if (rule->meanwhile != NULL) {
        rule->meanwhile(rule->opaque);
    }
    pthread_mutex_lock(&self->lock);
    self->paused = false;
    pthread_cond_broadcast(&self->gone_on);
    pthread_mutex_unlock(&self->lock);
}

/* What happens before an operation: waiting, or failing at once. */
static weft_status before(fault_store *self, weft_context *context, const strike *strike, const char *key) {
    if (is_struck_by(strike, FAULT_DELAY)) {
        sleep_for(strike->rule.seconds);
    }
    if (is_struck_by(strike, FAULT_PAUSE)) {
        stand_still(self, &strike->rule);
    }
    if (is_struck_by(strike, FAULT_LATE)) {
        return weft_fail(context, WEFT_NOT_FOUND, "there is no %s yet: a fault was asked for", key);
    }
    return is_struck_by(strike, FAULT_FAIL) ? injected(context, strike, key) : WEFT_OK;
}

/* What happens after it. A failure of the operation's own counts instead of the fault. */
static weft_status after(fault_store *self, weft_context *context, const strike *strike, const char *key,
                         weft_status status) {
    if (is_struck_by(strike, FAULT_PAUSE_AFTER)) {
        pthread_mutex_lock(&self->lock);
        await_others(self);
        self->paused = true;
        pthread_mutex_unlock(&self->lock);
        stand_still(self, &strike->rule);
    }
    if (!is_struck_by(strike, FAULT_LOSE)) {
        return status;
    }
    if (status < 0) {
        withdraw(self, strike, key);
        return status;
    }
    return injected(context, strike, key);
}

/* ---- contents that passed through ---- */

static bool same_bytes(const content *content, const void *bytes, size_t size) {
    return content->size == size && (size == 0 || memcmp(content->bytes, bytes, size) == 0);
}

/* The newest content of a key that is not these bytes. */
static content *find_older(fault_store *self, const char *key, const void *bytes, size_t size) {
    content *found = self->contents;
    while (found != NULL && (strcmp(found->key, key) != 0 || same_bytes(found, bytes, size))) {
        found = found->next;
    }
    return found;
}

static const content *newest(const fault_store *self, const char *key) {
    const content *found = self->contents;
    while (found != NULL && strcmp(found->key, key) != 0) {
        found = found->next;
    }
    return found;
}

static void drop_oldest(fault_store *self) {
    content **link = &self->contents;
    for (size_t i = 0; i < CONTENTS_MAX && *link != NULL; i++) {
        link = &(*link)->next;
    }
    while (*link != NULL) {
        content *oldest = *link;
        *link = oldest->next;
        free(oldest);
    }
}

static void remember(fault_store *self, const char *key, const weft_store_tag *tag, const void *bytes,
                     size_t size) {
    pthread_mutex_lock(&self->lock);
    const content *last = newest(self, key);
    if (last == NULL || !same_bytes(last, bytes, size)) {
        content *added = require(calloc(1, sizeof *added + size));
        snprintf(added->key, sizeof added->key, "%s", key);
        added->tag = *tag;
        added->size = size;
        if (size > 0) {
            memcpy(added->bytes, bytes, size);
        }
        added->next = self->contents;
        self->contents = added;
        drop_oldest(self);
    }
    pthread_mutex_unlock(&self->lock);
}

/* Answers a get as a store would that has this content. */
static void answer_from(const content *content, const weft_store_get_request *request,
                        weft_store_get_result *result_out) {
    *result_out = (weft_store_get_result){
        .size = sizeof(weft_store_get_result), .object_bytes = content->size, .tag = content->tag};
    if (request->unless != NULL && content->tag.text[0] != 0 &&
        strcmp(request->unless->text, content->tag.text) == 0) {
        result_out->unchanged = true;
        return;
    }
    uint64_t left = request->offset < content->size ? content->size - request->offset : 0;
    result_out->received = left < request->length ? left : request->length;
    if (result_out->received > 0) {
        memcpy(request->buffer, content->bytes + request->offset, (size_t)result_out->received);
    }
}

/* Learns what is under the key now, and answers with what was there before. False if nothing is known. */
static bool answer_stale(fault_store *self, weft_context *context, const weft_store_get_request *request,
                         weft_store_get_result *result_out) {
    uint8_t *bytes = require(malloc(CONTENT_MAX));
    weft_store_get_request whole = {
        .size = sizeof whole, .key = request->key, .length = CONTENT_MAX, .buffer = bytes};
    weft_store_get_result now = {.size = sizeof now};
    bool answered = false;
    if (weft_store_get(context, self->inner, &whole, &now) == WEFT_OK && now.received == now.object_bytes) {
        remember(self, request->key, &now.tag, bytes, (size_t)now.object_bytes);
        pthread_mutex_lock(&self->lock);
        const content *older = find_older(self, request->key, bytes, (size_t)now.object_bytes);
        if (older != NULL) {
            answer_from(older, request, result_out);
            answered = true;
        }
        pthread_mutex_unlock(&self->lock);
    }
    free(bytes);
    return answered;
}

/* Answers with the content of another key that passed through here. */
static bool answer_remembered_other(fault_store *self, uint64_t number,
                                    const weft_store_get_request *request,
                                    weft_store_get_result *result_out) {
    pthread_mutex_lock(&self->lock);
    uint64_t others = 0;
    for (const content *other = self->contents; other != NULL; other = other->next) {
        others += strcmp(other->key, request->key) != 0;
    }
    uint64_t left = others > 0 ? number % others : 0;
    for (const content *other = self->contents; other != NULL && others > 0; other = other->next) {
        if (strcmp(other->key, request->key) != 0 && left-- == 0) {
            answer_from(other, request, result_out);
            break;
        }
    }
    pthread_mutex_unlock(&self->lock);
    return others > 0;
}

static bool answer_wrong(fault_store *self, weft_context *context, const strike *strike,
                         const weft_store_get_request *request, weft_store_get_result *result_out) {
    if (strike->rule.other == NULL) {
        return answer_remembered_other(self, strike->number, request, result_out);
    }
    weft_store_get_request elsewhere = *request;
    elsewhere.key = strike->rule.other;
    elsewhere.arrived = NULL;
    return weft_store_get(context, self->inner, &elsewhere, result_out) == WEFT_OK;
}

/* ---- the operations ---- */

static void damage(fault_store *self, const strike *strike, const weft_store_get_request *request,
                   weft_store_get_result *result) {
    bool flips = is_struck_by(strike, FAULT_FLIP);
    if (!flips && !is_struck_by(strike, FAULT_SHORT)) {
        return;
    }
    if (result->received == 0) {
        withdraw(self, strike, request->key);
    } else if (flips) {
        uint64_t bit = strike->number % (8 * result->received);
        ((uint8_t *)request->buffer)[bit / 8] ^= (uint8_t)(1u << bit % 8);
    } else {
        result->received = strike->number % result->received;
        result->object_bytes = request->offset + result->received;
    }
}

static weft_status fault_get(void *opaque, weft_context *context, const weft_store_get_request *request,
                             weft_store_get_result *result_out) {
    fault_store *self = opaque;
    strike strike = choose(self, FAULT_ON_GET, request->key);
    weft_status status = before(self, context, &strike, request->key);
    if (status != WEFT_OK) {
        return status;
    }
    bool stale = is_struck_by(&strike, FAULT_STALE);
    if (stale || is_struck_by(&strike, FAULT_WRONG)) {
        if (stale ? answer_stale(self, context, request, result_out)
                  : answer_wrong(self, context, &strike, request, result_out)) {
            return WEFT_OK;
        }
        withdraw(self, &strike, request->key);
        strike.struck = false;
    }
    weft_store_get_result result = {.size = sizeof result};
    weft_store_get_request quiet = *request; /* who is told of bytes is told of what comes out here */
    quiet.arrived = NULL;
    status = weft_store_get(context, self->inner, &quiet, &result);
    if (status == WEFT_OK) {
        if (!result.unchanged && request->offset == 0 && result.received == result.object_bytes &&
            result.object_bytes <= CONTENT_MAX) {
            remember(self, request->key, &result.tag, request->buffer, (size_t)result.object_bytes);
        }
        damage(self, &strike, request, &result);
    }
    status = after(self, context, &strike, request->key, status);
    if (status == WEFT_OK) {
        *result_out = result;
    }
    return status;
}

/* Reads on behalf of the inner store and keeps what it read. */
typedef struct recorder {
    const weft_store_feed *feed;
    uint8_t *bytes;
    uint64_t size; /* the end of what was read; above CONTENT_MAX it is not kept */
} recorder;

static weft_status read_and_record(void *opaque, uint64_t offset, void *data, size_t capacity,
                                   size_t *count_out) {
    recorder *recorder = opaque;
    size_t count = 0;
    weft_status status = recorder->feed->read(recorder->feed->opaque, offset, data, capacity, &count);
    if (status != WEFT_OK) {
        return status;
    }
    recorder->size = offset + count;
    if (count > 0 && recorder->size <= CONTENT_MAX) {
        memcpy(recorder->bytes + offset, data, count);
    }
    *count_out = count;
    return WEFT_OK;
}

/* ---- stores without conditional puts ---- */

/* What lies under a key now, as far as it is kept; nothing if there is no object. */
static bytes look(fault_store *self, weft_context *context, const char *key) {
    bytes now = {.data = require(malloc(CONTENT_MAX)), .capacity = CONTENT_MAX};
    weft_store_get_request whole = {
        .size = sizeof whole, .key = key, .length = CONTENT_MAX, .buffer = now.data};
    weft_store_get_result result = {.size = sizeof result};
    if (weft_store_get(context, self->inner, &whole, &result) == WEFT_OK) {
        now.size = (size_t)result.received;
    }
    return now;
}

static bool is_plain_head(const fault_store *self, const char *key) {
    return self->plain && strncmp(key, "heads/", 6) == 0;
}

/* A head that somebody else has put there since this side has seen it. */
static void note_overlap(fault_store *self, weft_context *context, const char *key) {
    bytes now = look(self, context, key);
    pthread_mutex_lock(&self->lock);
    const content *seen = newest(self, key);
    self->overlaps += now.size > 0 && (seen == NULL || !same_bytes(seen, now.data, now.size));
    pthread_mutex_unlock(&self->lock);
    bytes_clear(&now);
}

/* The same for one that arrives late. */
static void note_late_overlap(fault_store *self, weft_context *context, const request *held) {
    bytes now = look(self, context, held->key);
    pthread_mutex_lock(&self->lock);
    self->overlaps += now.size != held->found.size || memcmp(now.data, held->found.data, now.size) != 0;
    pthread_mutex_unlock(&self->lock);
    bytes_clear(&now);
}

/* ---- what is on its way ---- */

static void hold(fault_store *self, request *held) {
    pthread_mutex_lock(&self->lock);
    request **link = &self->held;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = held;
    pthread_mutex_unlock(&self->lock);
}

static request *new_request(const char *key) {
    request *made = require(calloc(1, sizeof *made));
    snprintf(made->key, sizeof made->key, "%s", key);
    return made;
}

static void free_request(request *freed) {
    bytes_clear(&freed->bytes);
    bytes_clear(&freed->found);
    free(freed);
}

/* All of its bytes are sent, and then nothing is heard. */
static weft_status hold_put(fault_store *self, weft_context *context, const strike *strike,
                            const weft_store_put_request *put) {
    request *held = new_request(put->key);
    held->condition = put->condition;
    held->tag = put->tag;
    if (is_plain_head(self, put->key)) {
        held->found = look(self, context, put->key);
    }
    weft_sink sink = bytes_sink(&held->bytes);
    uint8_t *buffer = require(malloc(CONTENT_MAX));
    size_t count = 1;
    weft_status status = WEFT_OK;
    for (uint64_t offset = 0; status == WEFT_OK && count > 0; offset += count) {
        status = put->feed.read(put->feed.opaque, offset, buffer, CONTENT_MAX, &count);
        if (status == WEFT_OK && count > 0) {
            status = sink.write(sink.opaque, buffer, count);
        }
    }
    free(buffer);
    if (status != WEFT_OK) {
        free_request(held);
        return status;
    }
    hold(self, held);
    return injected(context, strike, put->key);
}

static weft_status carry_out(fault_store *self, weft_context *context, const request *held) {
    if (held->removes) {
        return weft_store_remove(context, self->inner, held->key);
    }
    return weft_store_put_bytes(context, self->inner, held->key, held->bytes.data, held->bytes.size,
                                held->condition, &held->tag, NULL);
}

static weft_status fault_put(void *opaque, weft_context *context, const weft_store_put_request *request,
                             weft_store_tag *tag_out) {
    fault_store *self = opaque;
    if (self->plain && request->condition != WEFT_STORE_ALWAYS) {
        return WEFT_UNSUPPORTED;
    }
    strike strike = choose(self, FAULT_ON_PUT, request->key);
    weft_status status = before(self, context, &strike, request->key);
    if (status == WEFT_OK && is_struck_by(&strike, FAULT_HOLD)) {
        return hold_put(self, context, &strike, request);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (is_plain_head(self, request->key)) {
        note_overlap(self, context, request->key);
    }
    recorder recorder = {.feed = &request->feed, .bytes = require(malloc(CONTENT_MAX))};
    weft_store_put_request recorded = *request;
    recorded.feed.read = read_and_record;
    recorded.feed.opaque = &recorder;
    weft_store_tag tag = {{0}};
    status = weft_store_put(context, self->inner, &recorded, &tag);
    if (status == WEFT_OK && recorder.size <= CONTENT_MAX) {
        remember(self, request->key, &tag, recorder.bytes, (size_t)recorder.size);
    }
    free(recorder.bytes);
    status = after(self, context, &strike, request->key, status);
    if (status == WEFT_OK) {
        *tag_out = tag;
    }
    return status;
}

static weft_status fault_head(void *opaque, weft_context *context, const char *key, uint64_t *size_out,
                              weft_store_tag *tag_out) {
    fault_store *self = opaque;
    strike strike = choose(self, FAULT_ON_HEAD, key);
    weft_status status = before(self, context, &strike, key);
    if (status != WEFT_OK) {
        return status;
    }
    weft_store_get_request nothing = {.size = sizeof nothing, .key = key};
    weft_store_get_result result = {.size = sizeof result};
    if (is_struck_by(&strike, FAULT_STALE)) {
        if (answer_stale(self, context, &nothing, &result)) {
            *size_out = result.object_bytes;
            *tag_out = result.tag;
            return WEFT_OK;
        }
        withdraw(self, &strike, key);
        strike.struck = false;
    }
    status = weft_store_head(context, self->inner, key, &result.object_bytes, &result.tag);
    status = after(self, context, &strike, key, status);
    if (status == WEFT_OK) {
        *size_out = result.object_bytes;
        *tag_out = result.tag;
    }
    return status;
}

static weft_status fault_remove(void *opaque, weft_context *context, const char *key) {
    fault_store *self = opaque;
    strike strike = choose(self, FAULT_ON_REMOVE, key);
    weft_status status = before(self, context, &strike, key);
    if (status == WEFT_OK && is_struck_by(&strike, FAULT_HOLD)) {
        request *held = new_request(key);
        held->removes = true;
        hold(self, held);
        return injected(context, &strike, key);
    }
    if (status == WEFT_OK) {
        status = weft_store_remove(context, self->inner, key);
        status = after(self, context, &strike, key, status);
    }
    return status;
}

static weft_status fault_watch(void *opaque, weft_context *context, uint64_t after_version, double seconds,
                               void *buffer, size_t capacity, size_t *received_out) {
    fault_store *self = opaque;
    strike strike = choose(self, FAULT_ON_WATCH, "");
    weft_status status = before(self, context, &strike, "");
    size_t received = 0;
    if (status == WEFT_OK) {
        status =
            weft_store_watch(context, self->inner, after_version, seconds, buffer, capacity, &received);
        status = after(self, context, &strike, "", status);
    }
    if (status == WEFT_OK) {
        *received_out = received;
    }
    return status;
}

/* Shows objects older than they are. */
typedef struct aged_visit {
    weft_store_visit visit;
    void *opaque;
    double seconds;
} aged_visit;

static bool visit_aged(void *opaque, const char *key, uint64_t size, double age_seconds) {
    const aged_visit *aged = opaque;
    return aged->visit(aged->opaque, key, size, age_seconds + aged->seconds);
}

static weft_status fault_list(void *opaque, weft_context *context, const char *prefix,
                              weft_store_visit visit, void *visit_opaque) {
    fault_store *self = opaque;
    strike strike = choose(self, FAULT_ON_LIST, prefix);
    weft_status status = before(self, context, &strike, prefix);
    if (status == WEFT_OK) {
        aged_visit aged = {visit, visit_opaque, self->age_seconds};
        status = weft_store_list(context, self->inner, prefix, visit_aged, &aged);
        status = after(self, context, &strike, prefix, status);
    }
    return status;
}

static weft_status fault_age(void *opaque, weft_context *context, const char *key, double *seconds_out) {
    fault_store *self = opaque;
    strike strike = choose(self, FAULT_ON_AGE, key);
    double seconds = 0;
    weft_status status = before(self, context, &strike, key);
    if (status == WEFT_OK) {
        status = weft_store_age(context, self->inner, key, &seconds);
        status = after(self, context, &strike, key, status);
    }
    if (status == WEFT_OK) {
        *seconds_out = seconds + self->age_seconds;
    }
    return status;
}

static void fault_traits(void *opaque, weft_store_traits *traits) {
    const fault_store *self = opaque;
    weft_store_traits_of(self->inner, traits);
    traits->conditional = traits->conditional && !self->plain;
}

static void forget_key_counts(fault_store *self) {
    while (self->key_counts != NULL) {
        key_count *entry = self->key_counts;
        self->key_counts = entry->next;
        free(entry);
    }
}

static void fault_close(void *opaque) {
    fault_store *self = opaque;
    forget_key_counts(self);
    while (self->contents != NULL) {
        content *entry = self->contents;
        self->contents = entry->next;
        free(entry);
    }
    while (self->held != NULL) {
        request *held = self->held;
        self->held = held->next;
        free_request(held);
    }
    pthread_cond_destroy(&self->gone_on);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static const weft_store_operations fault_operations = {
    .size = sizeof fault_operations,
    .name = "faults",
    .traits = fault_traits,
    .get = fault_get,
    .put = fault_put,
    .head = fault_head,
    .remove = fault_remove,
    .watch = fault_watch,
    .list = fault_list,
    .age = fault_age,
    .close = fault_close,
};

weft_status fault_store_create(weft_context *context, weft_store *inner, uint64_t seed,
                               weft_store **store_out, fault_store **control_out) {
    fault_store *self = require(calloc(1, sizeof *self));
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->gone_on, NULL);
    self->inner = inner;
    self->dice.state = seed;
    weft_status status =
        weft_store_create(context, weft_store_url(inner), &fault_operations, self, store_out);
    if (status != WEFT_OK) {
        fault_close(self);
        return status;
    }
    *control_out = self;
    return WEFT_OK;
}

/* ---- control ---- */

void fault_store_set(fault_store *control, const fault_rule *rules, size_t count) {
    if (count > FAULT_RULES_MAX) {
        fprintf(stderr, "fault_store: more than %d rules\n", FAULT_RULES_MAX);
        exit(99);
    }
    pthread_mutex_lock(&control->lock);
    for (size_t i = 0; i < count; i++) {
        control->rules[i] = (rule_state){.rule = rules[i]};
    }
    control->rule_count = count;
    control->generation++;
    forget_key_counts(control);
    pthread_mutex_unlock(&control->lock);
}

void fault_store_strike_at(fault_store *control, uint64_t n, const fault_rule *rule, bool last) {
    pthread_mutex_lock(&control->lock);
    control->calls = 0;
    control->at = n;
    control->last = last;
    control->numbered = *rule;
    control->reached[0] = '\0';
    pthread_mutex_unlock(&control->lock);
}

void fault_store_fail_at(fault_store *control, uint64_t n, weft_status status) {
    fault_store_strike_at(control, n, &(fault_rule){.kind = FAULT_FAIL, .status = status}, false);
}

void fault_store_lose_at(fault_store *control, uint64_t n, weft_status status) {
    fault_store_strike_at(control, n, &(fault_rule){.kind = FAULT_LOSE, .status = status}, false);
}

void fault_store_fail_from(fault_store *control, uint64_t n, weft_status status) {
    fault_store_strike_at(control, n, &(fault_rule){.kind = FAULT_FAIL, .status = status}, true);
}

const char *fault_store_reached(fault_store *control) {
    return control->reached;
}

size_t fault_store_release(fault_store *control, weft_context *context) {
    size_t count = 0;
    pthread_mutex_lock(&control->lock);
    request *held = control->held;
    control->held = NULL;
    pthread_mutex_unlock(&control->lock);
    while (held != NULL) {
        request *next = held->next;
        if (!held->removes && is_plain_head(control, held->key)) {
            note_late_overlap(control, context, held);
        }
        weft_status ignored = carry_out(control, context, held);
        (void)ignored;
        free_request(held);
        held = next;
        count++;
    }
    return count;
}

void fault_store_set_plain(fault_store *control, bool plain) {
    control->plain = plain;
}

uint64_t fault_store_overlaps(fault_store *control) {
    pthread_mutex_lock(&control->lock);
    uint64_t overlaps = control->overlaps;
    pthread_mutex_unlock(&control->lock);
    return overlaps;
}

void fault_store_set_age(fault_store *control, double seconds) {
    control->age_seconds = seconds;
}

bool fault_store_fired(fault_store *control) {
    pthread_mutex_lock(&control->lock);
    await_others(control);
    bool fired = control->at != 0 && control->calls >= control->at;
    pthread_mutex_unlock(&control->lock);
    return fired;
}

uint64_t fault_store_calls(fault_store *control) {
    pthread_mutex_lock(&control->lock);
    uint64_t calls = control->calls;
    pthread_mutex_unlock(&control->lock);
    return calls;
}

uint64_t fault_store_count(fault_store *control, fault_kind kind) {
    pthread_mutex_lock(&control->lock);
    uint64_t count = control->counts[kind];
    pthread_mutex_unlock(&control->lock);
    return count;
}
