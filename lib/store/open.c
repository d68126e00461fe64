/* SPDX-License-Identifier: Apache-2.0
 *
 * open.c: from a URL to the kind of store that it names.
 */
#include "../base/context.h"
#include "../base/sized.h"
#include "directory.h"
#include "http/http.h"
#include "s3/s3.h"
#include "table/store.h"

#include <string.h>
#include <strings.h>

#define SCHEMES "a path, file://, http://, https:// and s3://"

/* The length of "scheme" in "scheme://…", or 0 for a path. */
static size_t scheme_length(const char *url) {
    size_t length = strspn(url, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return strncmp(url + length, "://", 3) == 0 ? length : 0;
}

static bool has_scheme(const char *url, const char *scheme) {
    size_t length = scheme_length(url);
    return length == strlen(scheme) && strncasecmp(url, scheme, length) == 0;
}

static bool is_http(const char *url) {
    return has_scheme(url, "http") || has_scheme(url, "https");
}

/* A path, or file:///path. */
static weft_status open_directory(weft_context *context, const char *url, const weft_store_options *options,
                                  void **self_out) {
    const char *root = url;
    if (has_scheme(url, "file")) {
        root = url + strlen("file://");
        if (*root != '/') {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "the store's URL names a host: write file:///path, or the path alone");
        }
    }
    return weft_directory_open(context, root, options, self_out);
}

static weft_status check_url(weft_context *context, const char *url) {
    if (url == NULL || *url == '\0') {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the store's URL is empty: this build understands " SCHEMES);
    }
    size_t scheme = scheme_length(url);
    if (scheme > 0 && !has_scheme(url, "file") && !is_http(url) && !has_scheme(url, "s3")) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "cannot open a store at %.*s://: this build understands " SCHEMES, (int)scheme,
                         url);
    }
    return WEFT_OK;
}

typedef struct backend {
    const weft_store_operations *operations;
    weft_status (*open)(weft_context *context, const char *url, const weft_store_options *options,
                        void **self_out);
} backend;

static const backend *find_backend(const char *url) {
    static const backend directory = {&weft_directory_operations, open_directory};
    static const backend http = {&weft_http_operations, weft_http_open};
    static const backend s3 = {&weft_s3_operations, weft_s3_open};
    if (has_scheme(url, "s3")) {
        return &s3;
    }
    return is_http(url) ? &http : &directory;
}

weft_status weft_store_open(weft_context *context, const char *url, const weft_store_options *given,
                            weft_store **store_out) {
    weft_store_options options;
    weft_context_clear(context);
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_store_options");
    if (status == WEFT_OK) {
        status = check_url(context, url);
    }
    if (status != WEFT_OK) {
        return status;
    }
    const backend *backend = find_backend(url);
    void *self = NULL;
    status = backend->open(context, url, &options, &self);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_store_create(context, url, backend->operations, self, store_out);
    if (status != WEFT_OK) {
        backend->operations->close(self);
    } else if (backend->operations != &weft_directory_operations) {
        weft_store_bind(*store_out);
    }
    return status;
}
