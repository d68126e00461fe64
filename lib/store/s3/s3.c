/* SPDX-License-Identifier: Apache-2.0
 *
 * s3.c: a store in a bucket of an S3 service: Amazon's, or another that speaks like it.
 *
 * An object lies under prefix/key. Requests are signed by curl; gets, heads and removals are those of any
 * store behind HTTP. Each takes the newest credentials (s3_credentials.h).
 *
 * Queries are written in the order in which they are signed, each name with its "=": curl signs them as
 * they stand.
 */
#include "s3.h"

#include "../../base/context.h"
#include "s3_answer.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

/* A listing's part: a thousand keys of 1024 bytes, and what stands around them. */
enum { LIST_BYTES = 2 << 20 };

/* ---- the dialect ---- */

static void note_bucket(weft_http_client *client, const weft_http_exchange *exchange) {
    weft_s3_store *store = (weft_s3_store *)client;
    long status = exchange->answer.status;
    if ((status >= 200 && status < 300) || (status == 404 && weft_s3_says(exchange, "NoSuchKey"))) {
        atomic_store(&store->found, true);
    }
}

/* A 404 may mean that the bucket is missing, until something was found in it. */
static bool asks_why(weft_http_client *client, const weft_http_answer *answer) {
    weft_s3_store *store = (weft_s3_store *)client;
    return answer->status != 404 || !atomic_load(&store->found);
}

static const weft_http_dialect dialect = {
    .note = note_bucket,
    .passing = weft_s3_passing,
    .fail = weft_s3_fail,
    .asks_why = asks_why,
};

/* ---- requests ---- */

weft_status weft_s3_fill(const weft_s3_store *store, weft_context *context, weft_http_exchange *exchange,
                         const void *data, size_t size) {
    weft_http_exchange_fill(exchange, data, size);
    if (store->place.encrypted) {
        return WEFT_OK;
    }
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    if (EVP_Digest(size > 0 ? data : "", size, digest, &length, EVP_sha256(), NULL) != 1) {
        return weft_fail(context, WEFT_NO_MEMORY, "OpenSSL cannot compute SHA-256");
    }
    for (unsigned int i = 0; i < length; i++) {
        snprintf(exchange->hash + 2 * i, sizeof(exchange->hash) - 2 * i, "%02x", digest[i]);
    }
    /* Some services sign for the SHA-256 and do not compare it with what came, but all compare this one.
     * An OpenSSL may be without it.
     */
    if (EVP_Digest(size > 0 ? data : "", size, digest, &length, EVP_md5(), NULL) == 1) {
        EVP_EncodeBlock((unsigned char *)exchange->md5, digest, (int)length);
    }
    return WEFT_OK;
}

bool weft_s3_encode(const char *text, char *encoded, size_t capacity) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    size_t length = 0;
    for (; *text != '\0'; text++) {
        bool as_is = strchr(plain, *text) != NULL;
        size_t size = as_is ? 1 : 3;
        if (capacity - length <= size) {
            return false;
        }
        if (as_is) {
            encoded[length] = *text;
        } else {
            snprintf(encoded + length, capacity - length, "%%%02X", (unsigned char)*text);
        }
        length += size;
    }
    encoded[length] = '\0';
    return true;
}

/* ---- list ---- */

typedef struct listing {
    weft_s3_store *store;
    weft_context *context;
    char start[2 * WEFT_STORE_KEY_MAX + 3]; /* what the names of all wanted objects begin with */
    weft_store_visit visit;
    void *opaque;
    time_t now; /* by the service's clock, or -1 */
    bool stopped;
} listing;

static bool visit_object(void *opaque, const char *name, uint64_t size, time_t modified) {
    listing *listing = opaque;
    const char *prefix = listing->store->place.prefix;
    const char *key = name + (*prefix != '\0' ? strlen(prefix) + 1 : 0);
    /* Others may keep things there too, under names that are no keys of ours. */
    if (strncmp(name, listing->start, strlen(listing->start)) != 0 || !weft_store_key_valid(key)) {
        return true;
    }
    double age = listing->now >= 0 ? difftime(listing->now, modified) : 0;
    listing->stopped = !listing->visit(listing->opaque, key, size, age > 0 ? age : 0);
    return !listing->stopped;
}

static weft_status make_list_url(const listing *listing, const char *token, char url[WEFT_HTTP_URL_MAX]) {
    char start[3 * sizeof(listing->start)];
    char place[3 * WEFT_S3_TOKEN_MAX];
    bool fits =
        weft_s3_encode(listing->start, start, sizeof(start)) && weft_s3_encode(token, place, sizeof(place));
    int length = fits ? snprintf(url, WEFT_HTTP_URL_MAX, "%s/?%s%s%slist-type=2&max-keys=1000&prefix=%s",
                                 listing->store->place.root, *token != '\0' ? "continuation-token=" : "",
                                 place, *token != '\0' ? "&" : "", start)
                      : -1;
    if (length < 0 || length >= WEFT_HTTP_URL_MAX) {
        return weft_fail(listing->context, WEFT_LIMIT_EXCEEDED,
                         "the address of the next part of the list of %s is too long",
                         listing->store->place.root);
    }
    return WEFT_OK;
}

static bool pass_over(void *opaque, const char *name, uint64_t size, time_t modified) {
    (void)opaque;
    (void)name;
    (void)size;
    (void)modified;
    return true;
}

/* A part of a listing is checked to its end before any of it is passed on. */
static bool is_list(const char *data, size_t size) {
    char next[WEFT_S3_TOKEN_MAX];
    return weft_s3_list_read(data, size, pass_over, NULL, next);
}

/* Why a part of the listing did not come. */
static weft_status fail_list(const listing *listing, const weft_http_effort *effort,
                             const weft_http_exchange *exchange) {
    if (exchange->satisfied) {
        return weft_fail(listing->context, WEFT_LIMIT_EXCEEDED,
                         "the list of %s has parts of more than %d bytes", listing->store->place.root,
                         LIST_BYTES);
    }
    if (weft_http_succeeded(&exchange->answer) && effort->cancelled == WEFT_OK) {
        return weft_fail(listing->context, WEFT_REMOTE_FAILED,
                         "%s: what came is not a list of objects; check AWS_ENDPOINT_URL_S3",
                         listing->store->place.root);
    }
    return weft_http_effort_fail(effort, exchange);
}

/* One part of the listing, as text. */
static weft_status fetch_list(listing *listing, const char *token, char *buffer, size_t *size_out) {
    weft_http_effort effort = {.client = &listing->store->client, .context = listing->context, .key = ""};
    weft_http_exchange exchange;
    bool again;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_GET);
        exchange.buffer = (uint8_t *)buffer;
        exchange.room = LIST_BYTES;
        weft_status status = make_list_url(listing, token, exchange.url);
        if (status == WEFT_OK) {
            status = weft_http_effort_run(&effort, &exchange, NULL);
        }
        if (status != WEFT_OK) {
            return status;
        }
        bool came = weft_http_succeeded(&exchange.answer);
        if (came && is_list(buffer, (size_t)exchange.received)) {
            *size_out = (size_t)exchange.received;
            listing->now = exchange.answer.date;
            return WEFT_OK;
        }
        again =
            came ? weft_http_effort_retry(&effort, &exchange) : weft_http_effort_again(&effort, &exchange);
    } while (again);
    return fail_list(listing, &effort, &exchange);
}

/* A service could send us round in circles. So the token before parts 1, 2, 4, 8, … is remembered: one of
 * these is met again, however long the circle and the way into it are. */
static weft_status list_parts(listing *listing, char *buffer) {
    char token[WEFT_S3_TOKEN_MAX] = "";
    char next[WEFT_S3_TOKEN_MAX] = "";
    char mark[WEFT_S3_TOKEN_MAX] = "";
    uint64_t part = 0;
    do {
        part++;
        memcpy(token, next, sizeof(token));
        if ((part & (part - 1)) == 0) {
            memcpy(mark, token, sizeof(mark));
        }
        size_t size = 0;
        weft_status status = fetch_list(listing, token, buffer, &size);
        if (status != WEFT_OK) {
            return status;
        }
        (void)weft_s3_list_read(buffer, size, visit_object, listing, next);
        if (next[0] != '\0' && strcmp(next, mark) == 0) {
            return weft_fail(listing->context, WEFT_REMOTE_FAILED,
                             "%s: the list of objects goes round in circles; check AWS_ENDPOINT_URL_S3",
                             listing->store->place.root);
        }
    } while (next[0] != '\0' && !listing->stopped);
    return WEFT_OK;
}

static weft_status list_objects(weft_s3_store *store, weft_context *context, const char *prefix,
                                weft_store_visit visit, void *opaque) {
    listing listing = {.store = store, .context = context, .visit = visit, .opaque = opaque};
    const char *place = store->place.prefix;
    snprintf(listing.start, sizeof(listing.start), "%s%s%s%s", place, *place != '\0' ? "/" : "", prefix,
             *prefix != '\0' ? "/" : "");
    char *buffer = weft_allocate(context, LIST_BYTES);
    if (buffer == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = list_parts(&listing, buffer);
    weft_release(context, buffer);
    return status;
}

/* ---- the table ---- */

static weft_status s3_put(void *self, weft_context *context, const weft_store_put_request *request,
                          weft_store_tag *tag_out) {
    weft_s3_store *store = self;
    weft_http_engine_enter(store->client.engine);
    weft_status status = weft_s3_put(store, context, request, tag_out);
    weft_http_engine_leave(store->client.engine);
    return status;
}

static weft_status s3_list(void *self, weft_context *context, const char *prefix, weft_store_visit visit,
                           void *opaque) {
    weft_s3_store *store = self;
    weft_http_engine_enter(store->client.engine);
    weft_status status = list_objects(store, context, prefix, visit, opaque);
    weft_http_engine_leave(store->client.engine);
    return status;
}

static void s3_traits(void *self, weft_store_traits *traits) {
    weft_s3_store *store = self;
    traits->paid = true;
    weft_http_traits(&store->client, traits);
    traits->conditional = atomic_load(&store->conditions) == S3_CONDITIONS_HEEDED;
    traits->credentials = store->credentials.source.name;
}

static void s3_close(void *self) {
    weft_s3_store *store = self;
    weft_context *context = store->client.context;
    weft_http_client_close(&store->client);
    weft_s3_credentials_close(&store->credentials);
    weft_release(context, store);
}

const weft_store_operations weft_s3_operations = {
    .size = sizeof weft_s3_operations,
    .name = "s3",
    .traits = s3_traits,
    .get = weft_http_table_get,
    .put = s3_put,
    .head = weft_http_table_head,
    .remove = weft_http_table_remove,
    .list = s3_list,
    .age = weft_http_table_age,
    .close = s3_close,
};

/* ---- opening ---- */

/* The service is given by the environment, else by the profile. */
static const char *setting(const char *name, const char *otherwise, const char *profile) {
    const char *value = weft_s3_variable(name, otherwise);
    return value != NULL ? value : *profile != '\0' ? profile : NULL;
}

/* Adds a line for a variable, if that is set. */
static weft_status add_line(weft_context *context, weft_s3_making *making, const char *variable,
                            const char *name, char *line, size_t capacity) {
    const char *value = weft_s3_variable(variable, NULL);
    size_t count = 0;
    if (value == NULL) {
        return WEFT_OK;
    }
    int length = snprintf(line, capacity, "%s: %s", name, value);
    if (length < 0 || (size_t)length >= capacity || !weft_s3_is_word(value)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%s is too long, or has spaces, line ends or other bytes that no such thing has",
                         variable);
    }
    while (making->lines[count] != NULL) {
        count++;
    }
    making->lines[count] = line;
    return WEFT_OK;
}

static weft_status read_making(weft_context *context, weft_s3_making *making) {
    weft_status status = add_line(context, making, "WEFT_S3_ENCRYPTION", "x-amz-server-side-encryption",
                                  making->encryption, sizeof making->encryption);
    if (status == WEFT_OK) {
        status = add_line(context, making, "WEFT_S3_KMS_KEY", "x-amz-server-side-encryption-aws-kms-key-id",
                          making->key, sizeof making->key);
    }
    return status == WEFT_OK ? add_line(context, making, "WEFT_S3_STORAGE_CLASS", "x-amz-storage-class",
                                        making->class, sizeof making->class)
                             : status;
}

static weft_status open_service(weft_s3_store *store, weft_context *context, const char *url,
                                const weft_store_options *options, const weft_s3_files *files,
                                const weft_s3_profile *profile) {
    const weft_s3_environment environment = {
        .endpoint = setting("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", profile->endpoint),
        .region = setting("AWS_REGION", "AWS_DEFAULT_REGION", profile->region),
        .addressing = weft_s3_variable("WEFT_S3_ADDRESSING", NULL),
    };
    weft_store_options own = *options;
    own.token = NULL; /* it is for servers of ours */
    own.token_file = NULL;
    if (own.ca_file == NULL) {
        own.ca_file = weft_s3_variable("AWS_CA_BUNDLE", NULL);
    }
    weft_status status = weft_s3_place_find(context, url, &environment, &store->place);
    if (status == WEFT_OK) {
        status = read_making(context, &store->making);
    }
    if (status == WEFT_OK) {
        status = weft_s3_credentials_open(&store->credentials, context, files, profile, store->place.region,
                                          own.ca_file);
    }
    if (status != WEFT_OK) {
        return status;
    }
    store->client.settings.identity = &store->credentials.identity;
    store->client.settings.steady_tags = true;
    char base[WEFT_S3_ROOT_MAX + WEFT_STORE_KEY_MAX + 2];
    snprintf(base, sizeof(base), "%s/%s", store->place.root, store->place.prefix);
    return weft_http_client_open(&store->client, context, base, &own, &dialect);
}

static weft_status fill_store(weft_s3_store *store, weft_context *context, const char *url,
                              const weft_store_options *options) {
    weft_s3_files *files = weft_allocate_zeroed(context, 1, sizeof *files);
    weft_s3_profile *profile = weft_allocate_zeroed(context, 1, sizeof *profile);
    weft_status status = WEFT_NO_MEMORY;
    if (files != NULL && profile != NULL) {
        status = weft_s3_profile_load(context, files, profile);
        /* Files that cannot be read are nothing to who has all in the environment. */
        bool needed = weft_s3_variable("AWS_ACCESS_KEY_ID", NULL) == NULL;
        status = status == WEFT_OK || !needed ? open_service(store, context, url, options, files, profile)
                                              : status;
        explicit_bzero(profile, sizeof *profile);
    }
    weft_release(context, files);
    weft_release(context, profile);
    return status;
}

weft_status weft_s3_open(weft_context *context, const char *url, const weft_store_options *options,
                         void **self_out) {
    weft_s3_store *store = weft_allocate_zeroed(context, 1, sizeof(*store));
    if (store == NULL) {
        return WEFT_NO_MEMORY;
    }
    store->client.context = context;
    atomic_init(&store->conditions, S3_CONDITIONS_UNKNOWN);
    atomic_init(&store->completions, S3_CONDITIONS_UNKNOWN);
    atomic_init(&store->found, false);
    weft_status status = fill_store(store, context, url, options);
    if (status != WEFT_OK) {
        s3_close(store);
        return status;
    }
    *self_out = store;
    return WEFT_OK;
}
