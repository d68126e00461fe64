/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.h: the route from the state of a replica to a version, by the fewest bytes. A route is a list of
 * steps: perhaps an anchor, then patches and leaps, each from the state that the step before leads to.
 */
#ifndef WEFT_SYNC_FOLLOW_PLANNER_H
#define WEFT_SYNC_FOLLOW_PLANNER_H

#include "../format/history.h"

/* One object to fetch and apply: an anchor, the patch of a version, or the patch of a leap. */
typedef struct weft_route_step {
    bool anchor;
    uint64_t first;   /* the version that a patch starts from; of an anchor 0 */
    weft_digest base; /* of that version */
    weft_object object;
    weft_record record; /* of the version that it leads to; of an anchor on the route perhaps no more than
                           version and digest */
} weft_route_step;

typedef struct weft_route {
    weft_context *context;
    weft_route_step *steps;
    size_t count;
    size_t next; /* the first that is not done */
    uint64_t bytes;
    weft_record start; /* where the route is empty: the version that the replica is at */
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
    unsigned depth;          /* how many versions the replica has followed one by one to from_version */
    const weft_texts *avoid; /* keys of objects that turned out to be damaged or missing */
} weft_route_request;

/* WEFT_NOT_FOUND if there is no route around what is to be avoided. The route must be empty. */
weft_status weft_route_plan(weft_route *route, const weft_route_request *request);

#endif
