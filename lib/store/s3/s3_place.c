/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_place.c: where a bucket is.
 */
#include "s3_place.h"

#include "../../base/context.h"
#include "../http/http_exchange.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum { BUCKET_MAX = 255, HOST_LABEL_MAX = 63, ENDPOINT_MAX = 512 };

static bool is_given(const char *text) {
    return text != NULL && *text != '\0';
}

static bool is_lower(char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9');
}

static bool is_word_byte(char byte) {
    return is_lower(byte) || (byte >= 'A' && byte <= 'Z') || byte == '-' || byte == '_';
}

/* ---- the URL ---- */

/* Whatever a service takes that needs no encoding; Amazon takes less. */
static bool is_bucket(const char *name, size_t size) {
    if (size < 1 || size > BUCKET_MAX || name[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        if (!is_word_byte(name[i]) && name[i] != '.') {
            return false;
        }
    }
    return true;
}

/* True if it can be one label of a host's name, so that a certificate for "*.host" is good for it. */
static bool is_host_label(const char *name, size_t size) {
    if (size < 3 || size > HOST_LABEL_MAX || !is_lower(name[0]) || !is_lower(name[size - 1])) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        if (!is_lower(name[i]) && name[i] != '-') {
            return false;
        }
    }
    return true;
}

/* Splits s3://bucket/prefix. Nothing of a wrong one is quoted: somebody may have put a secret into it. */
static weft_status split_url(weft_context *context, const char *url, char bucket[BUCKET_MAX + 1],
                             char prefix[WEFT_STORE_KEY_MAX + 1]) {
    const char *name = url + strlen("s3://");
    size_t size = strcspn(name, "/");
    if (!is_bucket(name, size)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the store's URL names no bucket: write s3://BUCKET/PREFIX, with a bucket of "
                         "letters, digits and . - _, and keep credentials to the environment");
    }
    memcpy(bucket, name, size);
    bucket[size] = '\0';
    const char *rest = name[size] == '/' ? name + size + 1 : name + size;
    size_t length = strlen(rest);
    while (length > 0 && rest[length - 1] == '/') {
        length--;
    }
    prefix[0] = '\0';
    if (length <= WEFT_STORE_KEY_MAX) {
        memcpy(prefix, rest, length);
        prefix[length] = '\0';
    }
    if (length > 0 && !weft_store_key_valid(prefix)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the prefix in the store's URL must be what a key may be: at most %d of A-Z a-z "
                         "0-9 . _ ~ - in parts divided by single slashes, none of which begins with a dot",
                         WEFT_STORE_KEY_MAX);
    }
    return WEFT_OK;
}

static weft_status find_region(weft_context *context, const char *given, char region[WEFT_S3_REGION_MAX]) {
    const char *name = is_given(given) ? given : "us-east-1";
    for (const char *byte = name; *byte != '\0'; byte++) {
        if (!is_word_byte(*byte) || byte - name >= WEFT_S3_REGION_MAX - 1) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "AWS_REGION does not hold the name of a region, such as us-east-1");
        }
    }
    snprintf(region, WEFT_S3_REGION_MAX, "%s", name);
    return WEFT_OK;
}

/* ---- the endpoint ---- */

/* The parts of an endpoint's URL, as curl's texts. */
typedef struct endpoint {
    char *scheme, *host, *port, *path;
} endpoint;

static void release_endpoint(endpoint *endpoint) {
    curl_free(endpoint->scheme);
    curl_free(endpoint->host);
    curl_free(endpoint->port);
    curl_free(endpoint->path);
}

static bool read_endpoint(CURLU *url, endpoint *endpoint) {
    bool read = curl_url_get(url, CURLUPART_SCHEME, &endpoint->scheme, 0) == CURLUE_OK &&
                curl_url_get(url, CURLUPART_HOST, &endpoint->host, 0) == CURLUE_OK &&
                curl_url_get(url, CURLUPART_PATH, &endpoint->path, 0) == CURLUE_OK;
    CURLUcode port = curl_url_get(url, CURLUPART_PORT, &endpoint->port, 0);
    bool http = read && (strcmp(endpoint->scheme, "http") == 0 || strcmp(endpoint->scheme, "https") == 0);
    bool more = weft_http_url_has(url, CURLUPART_USER) || weft_http_url_has(url, CURLUPART_PASSWORD) ||
                weft_http_url_has(url, CURLUPART_QUERY) || weft_http_url_has(url, CURLUPART_FRAGMENT);
    return http && !more && (port == CURLUE_OK || port == CURLUE_NO_PORT);
}

/* What is signed is the path as it stands, so it must need no encoding. */
static bool is_plain_path(const char *path) {
    for (; *path != '\0'; path++) {
        if (!is_word_byte(*path) && *path != '.' && *path != '~' && *path != '/') {
            return false;
        }
    }
    return true;
}

static weft_status parse_endpoint(weft_context *context, const char *text, endpoint *endpoint) {
    CURLU *url = curl_url();
    if (url == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for a URL");
    }
    bool fits = strlen(text) <= ENDPOINT_MAX && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK &&
                read_endpoint(url, endpoint) && is_plain_path(endpoint->path);
    curl_url_cleanup(url);
    if (!fits) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is not the address of a service: write "
                         "http(s)://HOST[:PORT], without user, password or query");
    }
    size_t length = strlen(endpoint->path);
    while (length > 0 && endpoint->path[length - 1] == '/') {
        endpoint->path[--length] = '\0';
    }
    return WEFT_OK;
}

static bool is_address(const char *host) {
    struct in_addr address;
    return host[0] == '[' || inet_pton(AF_INET, host, &address) == 1;
}

/* ---- addressing ---- */

static weft_status choose_virtual(weft_context *context, const char *bucket, const endpoint *endpoint,
                                  const weft_s3_environment *environment, bool *virtual_out) {
    const char *wish = environment->addressing;
    bool possible = is_host_label(bucket, strlen(bucket)) && !is_address(endpoint->host);
    if (!is_given(wish)) {
        *virtual_out = possible && !is_given(environment->endpoint);
        return WEFT_OK;
    }
    *virtual_out = strcmp(wish, "virtual") == 0;
    if (!*virtual_out && strcmp(wish, "path") != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "WEFT_S3_ADDRESSING is neither \"path\" nor \"virtual\"");
    }
    if (*virtual_out && !possible) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the bucket %s cannot be part of the host %s, which WEFT_S3_ADDRESSING=virtual "
                         "asks for: the bucket must be 3 to 63 of a-z 0-9 -, and the host a name; use "
                         "WEFT_S3_ADDRESSING=path",
                         bucket, endpoint->host);
    }
    return WEFT_OK;
}

static weft_status make_root(weft_context *context, const char *bucket, const endpoint *endpoint,
                             const weft_s3_environment *environment, weft_s3_place *place) {
    bool in_host = false;
    weft_status status = choose_virtual(context, bucket, endpoint, environment, &in_host);
    if (status != WEFT_OK) {
        return status;
    }
    int length = snprintf(place->root, sizeof(place->root), "%s://%s%s%s%s%s%s%s%s", endpoint->scheme,
                          in_host ? bucket : "", in_host ? "." : "", endpoint->host,
                          endpoint->port != NULL ? ":" : "", endpoint->port != NULL ? endpoint->port : "",
                          endpoint->path, in_host ? "" : "/", in_host ? "" : bucket);
    if (length < 0 || (size_t)length >= sizeof(place->root)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the address of the bucket %s is too long",
                         bucket);
    }
    place->encrypted = strcmp(endpoint->scheme, "https") == 0;
    return WEFT_OK;
}

weft_status weft_s3_place_find(weft_context *context, const char *url,
                               const weft_s3_environment *environment, weft_s3_place *place) {
    char bucket[BUCKET_MAX + 1];
    char amazon[ENDPOINT_MAX];
    endpoint endpoint = {0};
    weft_status status = split_url(context, url, bucket, place->prefix);
    if (status == WEFT_OK) {
        status = find_region(context, environment->region, place->region);
    }
    if (status != WEFT_OK) {
        return status;
    }
    snprintf(amazon, sizeof(amazon), "https://s3.%s.amazonaws.com%s", place->region,
             strncmp(place->region, "cn-", 3) == 0 ? ".cn" : "");
    status = parse_endpoint(context, is_given(environment->endpoint) ? environment->endpoint : amazon,
                            &endpoint);
    if (status == WEFT_OK) {
        status = make_root(context, bucket, &endpoint, environment, place);
    }
    release_endpoint(&endpoint);
    return status;
}
