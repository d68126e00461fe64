/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.h: the way from what a replica holds to a version, by the fewest bytes.
 */
#ifndef WEFT_SYNC_FOLLOW_PLANNER_H
#define WEFT_SYNC_FOLLOW_PLANNER_H

#include "../format/history.h"

/* One object to fetch and put in place. */
typedef struct weft_route_step {
    bool anchor;
    uint64_t first; /* the version that a patch starts from */
    weft_digest base;
    weft_object object;
    weft_record record; /* of the version that it leads to; of an anchor, maybe only version and digest */
} weft_route_step;

typedef struct weft_route {
    weft_context *context;
    weft_route_step *steps;
    size_t count;
    size_t next; /* the first that is not done */
    uint64_t bytes;
    weft_record start; /* the version that the replica is at, if no step is needed */
} weft_route;

void weft_route_open(weft_route *route, weft_context *context);
/* Forgets all steps. */
void weft_route_clear(weft_route *route);

typedef struct weft_route_request {
    weft_store *store;
    const weft_sync_head *head;
    uint64_t version;        /* where to */
    const weft_digest *from; /* where from; NULL: from nothing that is known */
    uint64_t from_version;   /* which version that is; 0: it has to be found */
    const weft_texts *avoid; /* keys of objects that turned out to be bad */
} weft_route_request;

/* WEFT_NOT_FOUND if no way is left. The route must be empty. */
weft_status weft_route_plan(weft_route *route, const weft_route_request *request);

#endif
