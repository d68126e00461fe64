/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.h: the way from what a replica holds to a version, by the fewest bytes.
 */
#ifndef WEFT_SYNC_PLANNER_H
#define WEFT_SYNC_PLANNER_H

#include "head.h"

/* One object to fetch and put in place. */
typedef struct weft_route_step {
    bool anchor;
    weft_object object;
    weft_record record; /* of the version that it leads to; of an anchor, maybe only version and digest */
} weft_route_step;

typedef struct weft_route {
    weft_context *context;
    weft_route_step *steps;
    size_t count;
    size_t next; /* the first that is not done */
    uint64_t bytes;
} weft_route;

void weft_route_open(weft_route *route, weft_context *context);
/* Forgets all steps. */
void weft_route_clear(weft_route *route);

typedef struct weft_route_request {
    weft_store *store;
    const weft_sync_head *head;
    uint64_t version;        /* where to */
    const weft_digest *from; /* where from; NULL: from nothing that is known */
    const weft_texts *avoid; /* keys of objects that turned out to be bad */
} weft_route_request;

/* WEFT_NOT_FOUND if no way is left. The route must be empty. */
weft_status weft_route_plan(weft_route *route, const weft_route_request *request);

/* ---- reading the history ---- */

/* Reads the page of a blob and checks that it belongs to the run. Waits a little for one that is not there
 * yet. The caller closes and releases the page. */
weft_status weft_history_page(weft_context *context, weft_store *store, const weft_blob *blob,
                              const char *run, weft_page **page_out);
void weft_history_release(weft_context *context, weft_page *page);

/* Sleeps, and between the slices of sleep asks whether to stop: WEFT_CANCELLED. */
weft_status weft_sync_sleep(weft_context *context, double seconds);
double weft_sync_now(void);

/* How long an object that a head names may take to become visible. */
#define WEFT_VISIBLE_SECONDS 3.0

#endif
