/* SPDX-License-Identifier: Apache-2.0
 *
 * planner_leaps.c: the way over leaps.
 *
 * The newest page names the widest leaps, one after the other, up to a few versions before its own. A way
 * from version a takes those that begin at a or later whole, and looks into the one that a lies in: at the
 * four smaller ones that it consists of, and so on down to single versions. Only the nodes on the way are
 * fetched.
 */
#include "../base/context.h"
#include "leap.h"
#include "planner.h"

#include <string.h>

enum { NODES_MAX = 128 };

typedef struct leap_plan {
    weft_context *context;
    const weft_route_request *request;
    const weft_page *newest;
    weft_record *records; /* behind the last leap, newest first */
    size_t record_count;
    weft_leap_node *nodes[NODES_MAX];
    size_t node_count;
    bool useless;   /* the leaps end too far back */
    uint64_t start; /* the version that the replica is at; 0: none that is known */
} leap_plan;

/* ---- what the pages say ---- */

static uint64_t leaps_end(const leap_plan *plan) {
    return plan->newest->leaps.items[plan->newest->leaps.count - 1].last;
}

static weft_status keep_record(leap_plan *plan, const weft_record *record) {
    weft_record *records =
        weft_reallocate_array(plan->context, plan->records, plan->record_count + 1, sizeof *records);
    if (records == NULL) {
        return WEFT_NO_MEMORY;
    }
    plan->records = records;
    weft_status status = weft_record_copy(plan->context, record, &records[plan->record_count]);
    plan->record_count += status == WEFT_OK;
    return status;
}

/* WEFT_MORE: the page before is needed too. */
static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    leap_plan *plan = opaque;
    weft_status status = WEFT_OK;
    for (size_t i = page->record_count; i > 0 && status == WEFT_OK; i--) {
        const weft_record *record = &page->records[i - 1];
        if (record->version <= leaps_end(plan)) {
            return WEFT_OK;
        }
        /* leaps that end so far back are of no use, and a history that goes on for ever is no reason to */
        if (plan->record_count == WEFT_LEAP_TAIL) {
            plan->useless = true;
            return WEFT_OK;
        }
        status = keep_record(plan, record);
    }
    return status == WEFT_OK ? WEFT_MORE : status;
}

/* ---- which version the replica is at ---- */

typedef struct search {
    const weft_digest *digest;
    uint64_t floor;
    uint64_t version; /* 0: not found */
} search;

static weft_status search_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    search *search = opaque;
    for (size_t i = page->record_count; i > 0; i--) {
        const weft_record *record = &page->records[i - 1];
        if (weft_digest_equal(&record->digest, search->digest)) {
            search->version = record->version;
            return WEFT_OK;
        }
    }
    return page->records[0].version > search->floor ? WEFT_MORE : WEFT_OK;
}

static weft_status find_start(leap_plan *plan) {
    const weft_route_request *request = plan->request;
    plan->start = request->from != NULL ? request->from_version : 0;
    if (request->from == NULL || plan->start != 0) {
        return WEFT_OK;
    }
    search search = {.digest = request->from, .floor = request->head->newest.floor};
    weft_status status =
        weft_history_walk(plan->context, request->store, request->head, plan->newest, search_page, &search);
    plan->start = search.version;
    return status;
}

/* ---- the way ---- */

/* A way is first measured, then taken: with a route, its steps are added. */
typedef struct way {
    uint64_t first; /* the versions behind this one, */
    uint64_t last;  /* up to this one */
    uint64_t bytes;
    weft_route *route; /* NULL: only measure */
} way;

static weft_status get_node(leap_plan *plan, const weft_leap *leap, const weft_leap_node **node_out) {
    for (size_t i = 0; i < plan->node_count; i++) {
        if (plan->nodes[i]->first == leap->first && plan->nodes[i]->last == leap->last) {
            *node_out = plan->nodes[i];
            return WEFT_OK;
        }
    }
    if (plan->node_count == NODES_MAX || weft_route_avoids(plan->request, leap->node.key)) {
        return WEFT_MORE;
    }
    weft_leap_node *node;
    weft_status status =
        weft_leap_node_fetch(plan->context, plan->request->store, plan->request->head->run, leap, &node);
    if (status == WEFT_OK) {
        plan->nodes[plan->node_count++] = node;
        *node_out = node;
    }
    return status;
}

static weft_status go_patch(leap_plan *plan, const weft_record *record, way *way) {
    if (record->version <= way->first || record->version > way->last) {
        return WEFT_OK;
    }
    if (!record->patched || weft_route_avoids(plan->request, record->patch.key)) {
        return WEFT_MORE;
    }
    way->bytes += record->patch.bytes;
    const weft_route_step step = {
        .first = record->version - 1, .base = record->base, .object = record->patch, .record = *record};
    return way->route != NULL ? weft_route_add(way->route, &step) : WEFT_OK;
}

static weft_status go_whole(leap_plan *plan, const weft_leap *leap, way *way) {
    way->bytes += leap->bytes;
    if (way->route == NULL) {
        return WEFT_OK;
    }
    const weft_leap_node *node;
    weft_status status = get_node(plan, leap, &node);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_route_step step = {.first = leap->first,
                                  .base = leap->base,
                                  .object = node->patch,
                                  .record = *weft_leap_node_end(node)};
    return weft_route_add(way->route, &step);
}

/* Leaps nest a few levels deep: their lengths are powers of four. */
static weft_status go_leaps(leap_plan *plan, const weft_leaps *leaps, way *way) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < leaps->count && status == WEFT_OK; i++) {
        const weft_leap *leap = &leaps->items[i];
        if (leap->last <= way->first || leap->first >= way->last) {
            continue;
        }
        bool whole = leap->first >= way->first && leap->last <= way->last && leap->bytes > 0 &&
                     !weft_route_avoids(plan->request, leap->key);
        if (whole) {
            status = go_whole(plan, leap, way);
            continue;
        }
        const weft_leap_node *node;
        status = get_node(plan, leap, &node);
        if (status == WEFT_OK && node->parts.count > 0) {
            status = go_leaps(plan, &node->parts, way);
        }
        for (size_t j = 0; status == WEFT_OK && node->parts.count == 0 && j < node->record_count; j++) {
            status = go_patch(plan, &node->records[j], way);
        }
    }
    return status;
}

/* WEFT_MORE: leaps and patches do not lead from there. */
static weft_status go(leap_plan *plan, way *way) {
    bool begins = plan->newest->leaps.items[0].first <= way->first || leaps_end(plan) <= way->first;
    weft_status status = begins ? go_leaps(plan, &plan->newest->leaps, way) : WEFT_MORE;
    for (size_t i = plan->record_count; i > 0 && status == WEFT_OK; i--) {
        status = go_patch(plan, &plan->records[i - 1], way);
    }
    return status;
}

/* ---- choosing ---- */

typedef struct choice {
    bool found;
    uint64_t bytes;
    uint64_t first;
    const weft_anchor *anchor; /* NULL: from where the replica is */
} choice;

static weft_status consider(leap_plan *plan, uint64_t first, const weft_anchor *anchor, choice *best) {
    uint64_t bytes = anchor != NULL ? anchor->object.bytes : 0;
    if (best->found && bytes >= best->bytes) {
        return WEFT_OK;
    }
    way way = {.first = first, .last = plan->request->version, .bytes = bytes};
    weft_status status = go(plan, &way);
    if (status == WEFT_OK && (!best->found || way.bytes < best->bytes)) {
        *best = (choice){true, way.bytes, first, anchor};
    }
    return status == WEFT_MORE ? WEFT_OK : status;
}

/* Who is there already, or at a version before all leaps that somebody has kept the patches for, is not to
 * be sent over an anchor because of that. */
static bool beside(const leap_plan *plan) {
    return plan->start != 0 &&
           (plan->start == plan->request->version ||
            (plan->start < plan->request->version && plan->start < plan->newest->leaps.items[0].first));
}

static weft_status choose(leap_plan *plan, choice *best) {
    uint64_t target = plan->request->version;
    weft_status status = WEFT_OK;
    if (plan->useless || beside(plan)) {
        return WEFT_MORE;
    }
    if (plan->start != 0 && plan->start < target) {
        status = consider(plan, plan->start, NULL, best);
    }
    for (size_t i = 0; i < plan->newest->anchor_count && status == WEFT_OK; i++) {
        const weft_anchor *anchor = &plan->newest->anchors[i];
        if (anchor->version <= target && !weft_route_avoids(plan->request, anchor->object.key)) {
            status = consider(plan, anchor->version, anchor, best);
        }
    }
    return status;
}

/* Of the version of an anchor that is on the way to others, no more than this need be known. */
static weft_status add_anchor(leap_plan *plan, const weft_anchor *anchor, weft_route *route) {
    const weft_record *newest = &plan->request->head->newest;
    weft_route_step step = {.anchor = true, .object = anchor->object};
    step.record = (weft_record){.version = anchor->version, .digest = anchor->digest};
    if (anchor->version == newest->version) {
        step.record = *newest;
    } else if (anchor->version == plan->request->version) {
        return WEFT_MORE;
    }
    return weft_route_add(route, &step);
}

/* What the replica was taken to be at is what the first step starts from, and each leads to the next. */
static bool holds_together(const leap_plan *plan, const choice *best, const weft_route *route) {
    const weft_digest *before = best->anchor != NULL ? &best->anchor->digest : plan->request->from;
    uint64_t version = best->first;
    for (size_t i = best->anchor != NULL; i < route->count; i++) {
        const weft_route_step *step = &route->steps[i];
        if (step->first != version || !weft_digest_equal(&step->base, before)) {
            return false;
        }
        before = &step->record.digest;
        version = step->record.version;
    }
    return version == plan->request->version;
}

static weft_status take(leap_plan *plan, const choice *best, weft_route *route) {
    way way = {.first = best->first, .last = plan->request->version, .route = route};
    weft_status status = best->anchor != NULL ? add_anchor(plan, best->anchor, route) : WEFT_OK;
    if (status == WEFT_OK) {
        status = go(plan, &way);
    }
    return status == WEFT_OK && !holds_together(plan, best, route) ? WEFT_MORE : status;
}

static void close_plan(leap_plan *plan) {
    for (size_t i = 0; i < plan->record_count; i++) {
        weft_record_close(&plan->records[i], plan->context);
    }
    for (size_t i = 0; i < plan->node_count; i++) {
        weft_leap_node_release(plan->context, plan->nodes[i]);
    }
    weft_release(plan->context, plan->records);
}

/* Pages and nodes that are damaged or gone leave the way by single patches. */
static bool not_this_way(weft_status status) {
    return weft_status_is_integrity(status) || status == WEFT_NOT_FOUND;
}

weft_status weft_route_plan_leaps(weft_route *route, const weft_route_request *request,
                                  const weft_page *newest) {
    if (newest->leaps.count == 0) {
        return WEFT_MORE;
    }
    leap_plan plan = {.context = route->context, .request = request, .newest = newest};
    choice best = {0};
    weft_status status =
        weft_history_walk(route->context, request->store, request->head, newest, visit_page, &plan);
    if (status == WEFT_OK) {
        status = find_start(&plan);
    }
    if (status == WEFT_OK) {
        status = choose(&plan, &best);
    }
    if (status == WEFT_OK) {
        status = best.found ? take(&plan, &best, route) : WEFT_MORE;
    }
    close_plan(&plan);
    if (status != WEFT_OK) {
        weft_route_clear(route);
    }
    return not_this_way(status) ? WEFT_MORE : status;
}
