/* SPDX-License-Identifier: Apache-2.0
 *
 * pressure.c: back-pressure: a publisher that waits for its followers.
 *
 * It holds training back for a while, never for good: a follower that does not get on is overtaken, and one
 * that is no longer heard of does not count. Who holds nothing yet computes with no old weights, and who
 * has failed is not helped by waiting. Who was overtaken is waited for again when it has moved: one that is
 * stuck, or a report that somebody made up, costs the patience once, not at every publish.
 */
#include "pressure.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../fleet/fleet.h"

#include <string.h>

static const double PATIENCE_SECONDS = 60;
static const double FIRST_PAUSE_SECONDS = 0.1;
static const double LONGEST_PAUSE_SECONDS = 1;

static bool is_too_far(const weft_follower *follower, uint64_t version, uint64_t max_lag) {
    return follower->version > 0 && strcmp(follower->state, "failed") != 0 && follower->version < version &&
           version - follower->version > max_lag;
}

void weft_pressure_close(weft_pressure *pressure, weft_context *context) {
    weft_release(context, pressure->stragglers);
    *pressure = (weft_pressure){0};
}

static bool was_overtaken(const weft_pressure *pressure, const weft_follower *follower) {
    bool found = false;
    for (size_t i = 0; i < pressure->count && !found; i++) {
        const weft_straggler *straggler = &pressure->stragglers[i];
        found = straggler->overtaken && straggler->version == follower->version &&
                strcmp(straggler->name, follower->name) == 0;
    }
    return found;
}

/* Those who are too far behind now take the place of those who were. */
static weft_status note_stragglers(weft_pressure *pressure, weft_context *context, const weft_fleet *fleet,
                                   uint64_t version, uint64_t max_lag) {
    weft_pressure noted = {0};
    noted.stragglers = weft_allocate_array(context, fleet->live + 1, sizeof *noted.stragglers);
    if (noted.stragglers == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < fleet->live; i++) {
        const weft_follower *follower = fleet->followers[i];
        if (is_too_far(follower, version, max_lag)) {
            weft_straggler *straggler = &noted.stragglers[noted.count++];
            *straggler = (weft_straggler){.version = follower->version,
                                          .overtaken = was_overtaken(pressure, follower)};
            memcpy(straggler->name, follower->name, sizeof straggler->name);
        }
    }
    weft_pressure_close(pressure, context);
    *pressure = noted;
    return WEFT_OK;
}

static bool is_awaited(const weft_pressure *pressure) {
    bool found = false;
    for (size_t i = 0; i < pressure->count && !found; i++) {
        found = !pressure->stragglers[i].overtaken;
    }
    return found;
}

/* WEFT_MORE: somebody is to be waited for, or that could not be found out just now. */
static weft_status look_at_followers(weft_pressure *pressure, weft_context *context, weft_store *store,
                                     const weft_sync_head *head, uint64_t max_lag) {
    weft_fleet fleet = {.size = sizeof fleet};
    weft_status status = weft_fleet_read_live(context, store, head, &fleet);
    if (status == WEFT_REMOTE_FAILED || status == WEFT_IO_FAILED) {
        return WEFT_MORE;
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = note_stragglers(pressure, context, &fleet, fleet.newest + 1, max_lag);
    weft_fleet_close(context, &fleet);
    return status == WEFT_OK && is_awaited(pressure) ? WEFT_MORE : status;
}

double weft_pressure_patience(const weft_publisher_options *options) {
    if (options->max_lag == 0) {
        return 0;
    }
    return options->max_lag_seconds > 0 ? options->max_lag_seconds : PATIENCE_SECONDS;
}

weft_status weft_pressure_wait(weft_pressure *pressure, weft_context *context, weft_store *store,
                               const weft_sync_head *head, const weft_publisher_options *options,
                               weft_publish_result *result) {
    double patience = weft_pressure_patience(options);
    double start = weft_clock_now();
    unsigned looks = 1;
    if (options->max_lag == 0 || !head->started) {
        return WEFT_OK;
    }
    weft_progress_begin(context, "wait for followers", 0);
    weft_status status = look_at_followers(pressure, context, store, head, options->max_lag);
    double left = start + patience - weft_clock_now();
    while (status == WEFT_MORE && left > 0) {
        double pause = weft_clock_backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, looks++);
        status = weft_clock_sleep(context, pause < left ? pause : left);
        if (status == WEFT_OK) {
            status = look_at_followers(pressure, context, store, head, options->max_lag);
        }
        left = start + patience - weft_clock_now();
    }
    result->waited_seconds = weft_clock_now() - start;
    if (status < 0) {
        return status;
    }
    result->overtaken = status == WEFT_MORE || pressure->count > 0;
    for (size_t i = 0; i < pressure->count; i++) {
        pressure->stragglers[i].overtaken = true;
    }
    return WEFT_OK;
}
