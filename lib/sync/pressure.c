/* SPDX-License-Identifier: Apache-2.0
 *
 * pressure.c: back-pressure: a publisher that waits for its followers.
 *
 * It holds training back for a while, never for good: a follower that does not get on is overtaken, and one
 * that is no longer heard of does not count. Who holds nothing yet computes with no old weights, and who
 * has failed is not helped by waiting.
 */
#include "pressure.h"

#include "../base/context.h"
#include "clock.h"
#include "fleet.h"

#include <string.h>

static const double PATIENCE_SECONDS = 60;
static const double FIRST_PAUSE_SECONDS = 0.1;
static const double LONGEST_PAUSE_SECONDS = 1;

static bool is_too_far(const weft_follower *follower, uint64_t version, uint64_t max_lag) {
    return follower->version > 0 && strcmp(follower->state, "failed") != 0 && follower->version < version &&
           version - follower->version > max_lag;
}

/* WEFT_MORE: somebody is too far behind, or that could not be found out just now. */
static weft_status look(weft_context *context, weft_store *store, const weft_sync_head *head,
                        uint64_t max_lag) {
    weft_fleet fleet;
    weft_head_info info = weft_fleet_head(head);
    const weft_fleet_options options = {.head = &info};
    weft_status status = weft_fleet_read(context, store, &options, &fleet);
    if (status == WEFT_REMOTE_FAILED || status == WEFT_IO_FAILED) {
        return WEFT_MORE;
    }
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < fleet.live && status == WEFT_OK; i++) {
        status = is_too_far(&fleet.followers[i], info.version + 1, max_lag) ? WEFT_MORE : WEFT_OK;
    }
    weft_fleet_close(context, &fleet);
    return status;
}

weft_status weft_pressure_wait(weft_context *context, weft_store *store, const weft_sync_head *head,
                               const weft_publisher_options *options, weft_publish_result *result) {
    double patience = options->max_lag_seconds > 0 ? options->max_lag_seconds : PATIENCE_SECONDS;
    double start = weft_sync_now();
    double pause = FIRST_PAUSE_SECONDS;
    if (options->max_lag == 0 || !head->started) {
        return WEFT_OK;
    }
    weft_progress_begin(context, "wait for followers", 0);
    weft_status status = look(context, store, head, options->max_lag);
    double left = start + patience - weft_sync_now();
    while (status == WEFT_MORE && left > 0) {
        status = weft_sync_sleep(context, pause < left ? pause : left);
        pause = 2 * pause < LONGEST_PAUSE_SECONDS ? 2 * pause : LONGEST_PAUSE_SECONDS;
        if (status == WEFT_OK) {
            status = look(context, store, head, options->max_lag);
        }
        left = start + patience - weft_sync_now();
    }
    result->waited_seconds = weft_sync_now() - start;
    result->overtaken = status == WEFT_MORE;
    return status == WEFT_MORE ? WEFT_OK : status;
}
