/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_quota.c: how many bytes a store may hold (--max-bytes), for each run of many its own.
 *
 * Objects also come and go without this server: by a publisher on this machine, by `weft gc`. So what is
 * there is counted by going over the store, when that was last done a while ago, and once more before
 * anybody is refused; in between, what was put is added. Jobs do it, which may wait for the disk. Heads and
 * the collector's mark are small and always go: a full run can still be taken over, and collected.
 */
#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "serve.h"

#include <string.h>

static const double COUNT_SECONDS = 60;
/* at most so often while the run is full */
static const double FULL_SECONDS = 1;

void serve_quota_open(serve_quota *quota, uint64_t most) {
    *quota = (serve_quota){.most = most};
    pthread_mutex_init(&quota->mutex, NULL);
}

void serve_quota_close(serve_quota *quota) {
    pthread_mutex_destroy(&quota->mutex);
}

static bool add_size(void *opaque, const char *key, uint64_t size, double age_seconds) {
    uint64_t *used = opaque;
    (void)key;
    (void)age_seconds;
    *used += size;
    return true;
}

/* Does it, unless it was done within so many seconds. */
static weft_status count_again(serve_quota *quota, serve_request *request, double seconds) {
    uint64_t used = 0;
    if (quota->counted != 0 && weft_clock_now() - quota->counted < seconds) {
        return WEFT_OK;
    }
    weft_status status = weft_store_list(request->context, request->server->store, "", add_size, &used);
    if (status == WEFT_OK) {
        quota->used = used;
        quota->counted = weft_clock_now();
    }
    return status;
}

weft_status serve_quota_take(serve_request *request) {
    serve_quota *quota = &request->server->quota;
    const char *key = request->key;
    if (quota->most == 0 || strncmp(key, "heads/", 6) == 0 || strncmp(key, "gc/", 3) == 0) {
        return WEFT_OK;
    }
    pthread_mutex_lock(&quota->mutex);
    weft_status status = count_again(quota, request, COUNT_SECONDS);
    if (status == WEFT_OK && quota->used + request->received > quota->most) {
        status = count_again(quota, request, FULL_SECONDS);
    }
    if (status == WEFT_OK && quota->used + request->received > quota->most) {
        status = weft_fail(request->context, WEFT_NO_SPACE,
                           "%s: with this object of %llu bytes there would be more than --max-bytes",
                           weft_store_url(request->server->store), (unsigned long long)request->received);
    }
    quota->used += status == WEFT_OK ? request->received : 0;
    pthread_mutex_unlock(&quota->mutex);
    return status;
}
