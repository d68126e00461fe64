/* SPDX-License-Identifier: Apache-2.0
 *
 * pressure.h: back-pressure: a publisher that waits for its followers.
 */
#ifndef WEFT_SYNC_PUBLISH_PRESSURE_H
#define WEFT_SYNC_PUBLISH_PRESSURE_H

#include "../format/head.h"

/* A follower that was too far behind. */
typedef struct weft_straggler {
    char name[WEFT_FOLLOWER_NAME];
    uint64_t version;
    bool overtaken; /* it was waited for in vain */
} weft_straggler;

/* What is remembered from one publish to the next: who did not move while it was waited for is waited for
 * again only when it has moved. Begins as zeros. */
typedef struct weft_pressure {
    weft_straggler *stragglers;
    size_t count;
} weft_pressure;

void weft_pressure_close(weft_pressure *pressure, weft_context *context);
/* Waits until nobody is too far behind the version after the head's, as the options say. Sets
 * `waited_seconds` and `overtaken`. */
weft_status weft_pressure_wait(weft_pressure *pressure, weft_context *context, weft_store *store,
                               const weft_sync_head *head, const weft_publisher_options *options,
                               weft_publish_result *result);
/* The longest that it takes; 0: it does not wait. */
double weft_pressure_patience(const weft_publisher_options *options);

#endif
