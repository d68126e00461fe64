/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_upload.c: how the bytes of a put reach the service: in one request if they are few, else in parts that
 * the service puts together.
 *
 * A part is read from the feed into memory, so that it can be sent again without asking the feed; while
 * some are on the way, the next one is read. All is done by the caller's thread: the engine moves the
 * bytes. The object appears when the parts are put together, and not before.
 *
 * Parts of an object of known size are all of one size, which some services insist on. Of an object of
 * unknown size they grow, so that the ten thousand that a service takes are enough for the largest object
 * that it takes.
 */
#include "s3.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../table/store.h"
#include "s3_answer.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum {
    PARTS_MAX = 10000,
    PART_BYTES = 8 << 20,
    GROWTH_PARTS = 1000,     /* of one size, then the size doubles */
    FIRST_BYTES = 256 << 10, /* of memory for what may turn out to be small */
    SLOTS = 4,               /* parts on the way at once */
    FLIGHT_BYTES = 64 << 20, /* of them, unless two are more */
    COMPLETE_SECONDS = 120,  /* that a service may take to put parts together, a blank now and then apart */
    ABORT_SECONDS = 5,
    MD5_BYTES = 16,
    PART_TEXT = 96, /* of a part in the list of them, beside its tag */
};

static const uint64_t OBJECT_MAX = (uint64_t)5 << 40;

typedef struct slot {
    weft_http_effort effort;
    weft_http_exchange exchange;
    uint8_t *data;
    size_t capacity;
    size_t size;
    unsigned number; /* of the part, from 1 on */
} slot;

typedef struct upload {
    weft_s3_store *store;
    weft_context *context;
    const weft_store_put_request *request;
    bool probing;                    /* learn_completions: in parts, however small the object is */
    uint64_t offset;                 /* of the feed, up to which it was read */
    bool ended;                      /* there */
    char id[3 * WEFT_S3_UPLOAD_MAX]; /* as it stands in a query */
    slot slots[SLOTS];
    unsigned read;     /* parts so far */
    unsigned started;  /* of them, on their way or there; in order */
    unsigned finished; /* of them, there; in order */
    weft_store_tag *tags;
    size_t tag_capacity;
} upload;

/* ---- reading parts ---- */

static uint64_t part_bytes(const upload *upload, unsigned number) {
    uint64_t size = upload->request->feed.size;
    if (size == UINT64_MAX) {
        return (uint64_t)PART_BYTES << ((number - 1) / GROWTH_PARTS);
    }
    if (size <= PART_BYTES) {
        return size;
    }
    uint64_t even = (size + PARTS_MAX - 1) / PARTS_MAX;
    return even > PART_BYTES ? even : PART_BYTES;
}

static weft_status make_room(upload *upload, slot *slot, uint64_t most) {
    bool known = upload->request->feed.size != UINT64_MAX;
    uint64_t wanted = known || upload->read > 0 ? most : FIRST_BYTES;
    if (slot->size > 0 && wanted <= slot->size) {
        wanted = (uint64_t)slot->size * 2;
    }
    wanted = wanted < most ? wanted : most;
    if (wanted <= slot->capacity && slot->data != NULL) {
        return WEFT_OK;
    }
    uint8_t *data = weft_reallocate_array(upload->context, slot->data, (size_t)wanted, 1);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    slot->data = data;
    slot->capacity = (size_t)wanted;
    return WEFT_OK;
}

/* Reads the next part into a slot that is free. Its size is zero if there was none. */
static weft_status read_part(upload *upload, slot *slot) {
    uint64_t most = part_bytes(upload, upload->read + 1);
    slot->size = 0;
    while (!upload->ended && slot->size < most) {
        size_t count = 0;
        weft_status status = make_room(upload, slot, most);
        if (status == WEFT_OK) {
            status = weft_store_feed_read(upload->context, upload->request, upload->offset,
                                          slot->data + slot->size, slot->capacity - slot->size, &count);
        }
        if (status != WEFT_OK) {
            return status;
        }
        slot->size += count;
        upload->offset += count;
        upload->ended = count == 0 || upload->offset == upload->request->feed.size;
    }
    upload->ended = upload->ended || upload->offset == upload->request->feed.size;
    if (slot->size > 0) {
        slot->number = ++upload->read;
    }
    return WEFT_OK;
}

/* ---- sending parts ---- */

static weft_status start_attempt(upload *upload, slot *slot) {
    weft_http_exchange *exchange = &slot->exchange;
    weft_http_effort_begin(&slot->effort, exchange, WEFT_HTTP_PUT);
    size_t length = strlen(exchange->url);
    snprintf(exchange->url + length, sizeof(exchange->url) - length, "?partNumber=%u&uploadId=%s",
             slot->number, upload->id);
    weft_status status = weft_s3_fill(upload->store, upload->context, exchange, slot->data, slot->size);
    if (status == WEFT_OK) {
        slot->effort.attempts++;
        status = weft_http_engine_start(upload->store->client.engine, upload->context, exchange);
    }
    return status;
}

static weft_status start_part(upload *upload, slot *slot) {
    slot->effort = (weft_http_effort){
        .client = &upload->store->client, .context = upload->context, .key = upload->request->key};
    weft_status status = start_attempt(upload, slot);
    if (status == WEFT_OK) {
        upload->started++;
    }
    return status;
}

static weft_status keep_tag(upload *upload, const slot *slot) {
    const weft_store_tag *tag = &slot->exchange.answer.tag;
    if (tag->text[0] == '\0' || strpbrk(tag->text, "<>&") != NULL) {
        return weft_fail(upload->context, WEFT_REMOTE_FAILED,
                         "PUT of part %u of %s: the service gives it no tag that can be used", slot->number,
                         upload->request->key);
    }
    if (slot->number > upload->tag_capacity) {
        size_t capacity = upload->tag_capacity > 0 ? 2 * upload->tag_capacity : 16;
        weft_store_tag *tags =
            weft_reallocate_array(upload->context, upload->tags, capacity, sizeof(*upload->tags));
        if (tags == NULL) {
            return WEFT_NO_MEMORY;
        }
        upload->tags = tags;
        upload->tag_capacity = capacity;
    }
    upload->tags[slot->number - 1] = *tag;
    return WEFT_OK;
}

/* Waits for the part that was started first of those on the way, and sends it again as often as it takes.
 */
static weft_status finish_oldest(upload *upload) {
    slot *slot = &upload->slots[upload->finished % SLOTS];
    upload->finished++;
    for (;;) {
        weft_status status =
            weft_http_engine_finish(upload->store->client.engine, upload->context, &slot->exchange);
        if (status == WEFT_OK && weft_http_succeeded(&slot->exchange.answer)) {
            status = keep_tag(upload, slot);
            if (slot->capacity > FLIGHT_BYTES / SLOTS) { /* more than a slot may keep while it is idle */
                weft_release(upload->context, slot->data);
                slot->data = NULL;
                slot->capacity = 0;
            }
            return status;
        }
        if (status != WEFT_OK) {
            return status;
        }
        if (!weft_http_effort_again(&slot->effort, &slot->exchange)) {
            return weft_http_effort_fail(&slot->effort, &slot->exchange);
        }
        status = start_attempt(upload, slot);
        if (status != WEFT_OK) {
            return status;
        }
    }
}

/* The first two parts have been read. */
static weft_status send_parts(upload *upload) {
    weft_status status = start_part(upload, &upload->slots[0]);
    if (status == WEFT_OK && upload->slots[1].size > 0) {
        status = start_part(upload, &upload->slots[1]);
    }
    while (status == WEFT_OK && !upload->ended) {
        uint64_t fit = FLIGHT_BYTES / part_bytes(upload, upload->read + 1);
        unsigned most = fit >= SLOTS ? SLOTS : fit > 2 ? (unsigned)fit : 2;
        slot *slot = &upload->slots[upload->read % SLOTS];
        if (upload->read >= PARTS_MAX) {
            status = weft_fail(upload->context, WEFT_LIMIT_EXCEEDED,
                               "%s is larger than an object in S3 can be", upload->request->key);
        }
        while (status == WEFT_OK && upload->started - upload->finished >= most) {
            status = finish_oldest(upload);
        }
        if (status == WEFT_OK) {
            status = read_part(upload, slot);
        }
        if (status == WEFT_OK && slot->size > 0) {
            status = start_part(upload, slot);
        }
    }
    while (status == WEFT_OK && upload->finished < upload->started) {
        status = finish_oldest(upload);
    }
    return status;
}

/* Whatever is still on the way is not wanted any more. */
static void drop_parts(upload *upload) {
    weft_http_engine *engine = upload->store->client.engine;
    for (unsigned i = upload->finished; i < upload->started; i++) {
        weft_http_engine_cancel(engine, &upload->slots[i % SLOTS].exchange);
    }
    for (; upload->finished < upload->started; upload->finished++) {
        (void)weft_http_engine_finish(engine, upload->context,
                                      &upload->slots[upload->finished % SLOTS].exchange);
    }
}

/* ---- the upload ---- */

static weft_status begin_upload(upload *upload) {
    weft_http_effort effort = {
        .client = &upload->store->client, .context = upload->context, .key = upload->request->key};
    weft_http_exchange exchange;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_POST);
        size_t length = strlen(exchange.url);
        snprintf(exchange.url + length, sizeof(exchange.url) - length, "?uploads=");
        exchange.lines = upload->store->making.lines;
        weft_status status = weft_s3_fill(upload->store, upload->context, &exchange, NULL, 0);
        if (status == WEFT_OK) {
            status = weft_http_effort_run(&effort, &exchange, NULL);
        }
        if (status != WEFT_OK) {
            return status;
        }
        char id[WEFT_S3_UPLOAD_MAX];
        if (weft_http_succeeded(&exchange.answer) &&
            weft_s3_upload_read(exchange.remark, exchange.remark_size, id) &&
            weft_s3_encode(id, upload->id, sizeof(upload->id))) {
            return WEFT_OK;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

static void locate_upload(const upload *upload, weft_http_exchange *exchange) {
    size_t length = strlen(exchange->url);
    snprintf(exchange->url + length, sizeof(exchange->url) - length, "?uploadId=%s", upload->id);
}

static bool is_before(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    const double *deadline = opaque;
    (void)phase;
    (void)done;
    (void)total;
    return weft_clock_now() < *deadline;
}

/* Tells the service to drop the parts. Tried also after a cancellation, and only briefly. It has a context
 * of its own, so that the error text of the put is not lost. */
static void abort_upload(upload *upload) {
    double deadline = weft_clock_now() + ABORT_SECONDS;
    weft_context *own = NULL;
    if (weft_context_derive(upload->context, is_before, &deadline, &own) != WEFT_OK) {
        return;
    }
    weft_http_effort effort = {
        .client = &upload->store->client, .context = own, .key = upload->request->key};
    weft_http_exchange exchange;
    weft_status status;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_DELETE);
        locate_upload(upload, &exchange);
        status = weft_http_effort_run(&effort, &exchange, NULL);
    } while (status == WEFT_OK && !weft_http_succeeded(&exchange.answer) &&
             weft_http_effort_again(&effort, &exchange));
    weft_context_destroy(own);
}

/* ---- putting it together ---- */

/* The list of the parts. NULL if there is no memory. */
static char *list_tags(const upload *upload, size_t *size_out) {
    size_t capacity = 256 + (size_t)upload->finished * (PART_TEXT + WEFT_STORE_TAG_MAX);
    char *text = weft_allocate(upload->context, capacity);
    if (text == NULL) {
        return NULL;
    }
    size_t size = (size_t)snprintf(
        text, capacity, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (unsigned i = 0; i < upload->finished; i++) {
        size += (size_t)snprintf(text + size, capacity - size,
                                 "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1,
                                 upload->tags[i].text);
    }
    size += (size_t)snprintf(text + size, capacity - size, "</CompleteMultipartUpload>");
    *size_out = size;
    return text;
}

static bool read_hexadecimal(const char *text, uint8_t bytes[MD5_BYTES]) {
    for (size_t i = 0; i < MD5_BYTES; i++) {
        unsigned byte = 0;
        if (strspn(text + 2 * i, "0123456789abcdef") < 2 || sscanf(text + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        bytes[i] = (uint8_t)byte;
    }
    return true;
}

/* The tag that most services give to parts that were put together: the MD5 of theirs, and how many they
 * are. False if it cannot be told. */
static bool expected_tag(const upload *upload, weft_store_tag *tag) {
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    uint8_t digest[EVP_MAX_MD_SIZE];
    bool known = hash != NULL && EVP_DigestInit_ex(hash, EVP_md5(), NULL) == 1;
    for (unsigned i = 0; known && i < upload->finished; i++) {
        uint8_t part[MD5_BYTES];
        const char *text = upload->tags[i].text;
        known = strlen(text) == 2 * MD5_BYTES + 2 && read_hexadecimal(text + 1, part) &&
                EVP_DigestUpdate(hash, part, sizeof(part)) == 1;
    }
    known = known && EVP_DigestFinal_ex(hash, digest, NULL) == 1;
    EVP_MD_CTX_free(hash);
    size_t size = 0;
    tag->text[size++] = '"';
    for (size_t i = 0; known && i < MD5_BYTES; i++) {
        size += (size_t)snprintf(tag->text + size, sizeof(tag->text) - size, "%02x", digest[i]);
    }
    snprintf(tag->text + size, sizeof(tag->text) - size, "-%u\"", upload->finished);
    return known;
}

/* The upload is gone, or its fate unknown: it may have been put together without our hearing of it. */
static weft_status is_complete(upload *upload, weft_store_tag *tag_out, bool *complete_out) {
    weft_store_get_result result = {.size = sizeof result};
    weft_store_tag expected;
    *complete_out = false;
    weft_status status =
        weft_http_look(&upload->store->client, upload->context, upload->request->key, NULL, &result);
    if (status != WEFT_OK || result.object_bytes != upload->offset) {
        return status == WEFT_NOT_FOUND ? WEFT_OK : status;
    }
    if (expected_tag(upload, &expected) && strcmp(expected.text, result.tag.text) == 0) {
        *tag_out = result.tag;
        *complete_out = true;
        return WEFT_OK;
    }
    return weft_http_is_there(&upload->store->client, upload->context, upload->request, tag_out,
                              complete_out);
}

static weft_status settle_upload(upload *upload, const weft_http_effort *effort,
                                 const weft_http_exchange *exchange, bool doubtful,
                                 weft_store_tag *tag_out) {
    bool conflict =
        upload->request->condition != WEFT_STORE_ALWAYS && weft_s3_refuses(upload->request, exchange);
    if (doubtful && effort->cancelled == WEFT_OK) {
        weft_store_tag tag;
        bool complete = false;
        if (is_complete(upload, &tag, &complete) == WEFT_OK && complete) {
            *tag_out = tag;
            return WEFT_OK;
        }
    }
    if (conflict && effort->cancelled == WEFT_OK) {
        return weft_fail(effort->context, WEFT_CONFLICT,
                         "POST %.400s: somebody else wrote there in between", exchange->url);
    }
    return weft_http_effort_fail(effort, exchange);
}

/* A service may answer 200 before it knows, and say in the body that it failed. */
static weft_status send_list(upload *upload, const char *list, size_t size, weft_store_tag *tag_out) {
    weft_http_effort effort = {
        .client = &upload->store->client, .context = upload->context, .key = upload->request->key};
    weft_http_exchange exchange;
    weft_http_line line;
    bool doubtful = false;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_POST);
        locate_upload(upload, &exchange);
        exchange.conditions[0] = weft_http_condition_line(upload->request, &line);
        exchange.fresh = true;
        exchange.wait_seconds = COMPLETE_SECONDS;
        weft_status status = weft_s3_fill(upload->store, upload->context, &exchange, list, size);
        if (status == WEFT_OK) {
            status = weft_http_effort_run(&effort, &exchange, NULL);
        }
        if (status != WEFT_OK) {
            return status;
        }
        weft_store_tag tag;
        if (weft_http_succeeded(&exchange.answer) &&
            weft_s3_completed_read(exchange.remark, exchange.remark_size, &tag)) {
            *tag_out = weft_http_tag_valid(&tag) ? tag : (weft_store_tag){{0}};
            return WEFT_OK;
        }
        doubtful = doubtful || !weft_http_unheard(&exchange);
    } while (weft_http_effort_again(&effort, &exchange));
    return settle_upload(upload, &effort, &exchange, doubtful, tag_out);
}

static weft_status learn_completions(weft_s3_store *store, weft_context *context);

static weft_status put_in_parts(upload *upload, weft_store_tag *tag_out) {
    weft_status status = upload->request->condition != WEFT_STORE_ALWAYS && !upload->probing
                             ? learn_completions(upload->store, upload->context)
                             : WEFT_OK;
    if (status == WEFT_OK) {
        status = begin_upload(upload);
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = send_parts(upload);
    if (status == WEFT_OK) {
        size_t size = 0;
        char *list = list_tags(upload, &size);
        status = list != NULL ? send_list(upload, list, size, tag_out) : WEFT_NO_MEMORY;
        weft_release(upload->context, list);
    }
    if (status != WEFT_OK) {
        drop_parts(upload);
        abort_upload(upload);
    }
    return status;
}

/* ---- put ---- */

static weft_status run_upload(upload *upload, weft_store_tag *tag_out) {
    slot *first = &upload->slots[0];
    slot *second = &upload->slots[1];
    weft_status status = read_part(upload, first);
    if (status == WEFT_OK && !upload->ended) {
        status = read_part(upload, second);
    }
    if (status != WEFT_OK) {
        return status;
    }
    return second->size == 0 && !upload->probing
               ? weft_s3_put_whole(upload->store, upload->context, upload->request, first->data,
                                   first->size, tag_out)
               : put_in_parts(upload, tag_out);
}

static weft_status put_object(weft_s3_store *store, weft_context *context,
                              const weft_store_put_request *request, bool probing,
                              weft_store_tag *tag_out) {
    upload *upload = weft_allocate_zeroed(context, 1, sizeof(*upload));
    if (upload == NULL) {
        return WEFT_NO_MEMORY;
    }
    upload->store = store;
    upload->context = context;
    upload->request = request;
    upload->probing = probing;
    weft_status status = run_upload(upload, tag_out);
    for (size_t i = 0; i < SLOTS; i++) {
        weft_release(context, upload->slots[i].data);
    }
    weft_release(context, upload->tags);
    weft_release(context, upload);
    return status;
}

static weft_status read_probe(void *opaque, uint64_t offset, void *data, size_t capacity,
                              size_t *count_out) {
    (void)opaque;
    size_t left = sizeof(WEFT_S3_PROBE_CONTENT) - 1 - (size_t)offset;
    *count_out = left < capacity ? left : capacity;
    memcpy(data, &WEFT_S3_PROBE_CONTENT[offset], *count_out);
    return WEFT_OK;
}

/* Finds out whether the service heeds conditions when it completes an upload: it must refuse to replace the
 * probe, which is there already. (A service that replaces it nevertheless puts the same bytes there.)
 * WEFT_UNSUPPORTED: it does not heed them. */
static weft_status learn_completions(weft_s3_store *store, weft_context *context) {
    const weft_store_put_request probe = {
        .size = sizeof probe,
        .key = WEFT_S3_PROBE_KEY,
        .feed = {.size = sizeof(WEFT_S3_PROBE_CONTENT) - 1, .read = read_probe},
        .condition = WEFT_STORE_IF_ABSENT,
    };
    weft_store_tag tag;
    if (atomic_load(&store->completions) == S3_CONDITIONS_UNKNOWN) {
        weft_status status = put_object(store, context, &probe, true, &tag);
        if (status != WEFT_OK && status != WEFT_CONFLICT && status != WEFT_UNSUPPORTED) {
            return status;
        }
        atomic_store(&store->completions,
                     status == WEFT_CONFLICT ? S3_CONDITIONS_HEEDED : S3_CONDITIONS_NONE);
    }
    return atomic_load(&store->completions) == S3_CONDITIONS_HEEDED
               ? WEFT_OK
               : weft_fail(context, WEFT_UNSUPPORTED,
                           "the service at %s puts no objects of more than %d bytes on condition",
                           store->place.root, PART_BYTES);
}

static weft_status check_put(weft_s3_store *store, weft_context *context,
                             const weft_store_put_request *request) {
    if (request->feed.size != UINT64_MAX && request->feed.size > OBJECT_MAX) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s is larger than an object in S3 can be",
                         request->key);
    }
    if (request->condition == WEFT_STORE_ALWAYS) {
        return WEFT_OK;
    }
    weft_status status = weft_s3_learn_conditions(store, context);
    if (status == WEFT_OK && atomic_load(&store->conditions) != S3_CONDITIONS_HEEDED) {
        return weft_fail(context, WEFT_UNSUPPORTED, "the service at %s does not put objects on condition",
                         store->place.root);
    }
    if (status == WEFT_OK && request->condition == WEFT_STORE_IF_SAME &&
        !weft_http_tag_valid(&request->tag)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the tag of the put of %s is not one of this store", request->key);
    }
    return status;
}

weft_status weft_s3_put(weft_s3_store *store, weft_context *context, const weft_store_put_request *request,
                        weft_store_tag *tag_out) {
    weft_status status = check_put(store, context, request);
    return status == WEFT_OK ? put_object(store, context, request, false, tag_out) : status;
}
