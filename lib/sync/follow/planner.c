/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.c: which patches, or which anchor and which patches, cost the fewest bytes.
 *
 * Leaps are looked at first. The newest page names the widest ones, one after the other, up to a few
 * versions before its own. A way from version a takes those that begin at a or later whole, and looks into
 * the one that a lies in: at the four smaller ones that it consists of, and so on down to single versions.
 * Only the nodes on the way are fetched.
 *
 * Where leaps do not lead, single patches do. The walk goes back from the wanted version, adding up
 * patches. Where it meets the state that the replica is at, the patches so far are a way; where it meets an
 * anchor, that and the patches are one. It ends when the patches alone cost more than the best way found.
 */
#include "planner.h"

#include "../../base/context.h"
#include "../format/leap.h"

#include <string.h>

/* ---- routes ---- */

void weft_route_open(weft_route *route, weft_context *context) {
    *route = (weft_route){.context = context};
}

void weft_route_clear(weft_route *route) {
    weft_context *context = route->context;
    for (size_t i = 0; i < route->count; i++) {
        weft_record_close(&route->steps[i].record, context);
    }
    weft_release(context, route->steps);
    weft_record_close(&route->start, context);
    weft_route_open(route, context);
}

static weft_status add_step(weft_route *route, const weft_route_step *step) {
    weft_route_step *steps =
        weft_reallocate_array(route->context, route->steps, route->count + 1, sizeof *steps);
    if (steps == NULL) {
        return WEFT_NO_MEMORY;
    }
    route->steps = steps;
    steps[route->count] = *step;
    weft_status status = weft_record_copy(route->context, &step->record, &steps[route->count].record);
    if (status == WEFT_OK) {
        route->count++;
        route->bytes += step->object.bytes;
    }
    return status;
}

static weft_status add_patch(weft_route *route, const weft_record *record) {
    const weft_route_step step = {
        .first = record->version - 1, .base = record->base, .object = record->patch, .record = *record};
    return add_step(route, &step);
}

static void reverse_steps(weft_route *route) {
    for (size_t i = 0; i < route->count / 2; i++) {
        weft_route_step step = route->steps[i];
        route->steps[i] = route->steps[route->count - 1 - i];
        route->steps[route->count - 1 - i] = step;
    }
}

static bool avoids(const weft_route_request *request, const char *key) {
    for (size_t i = 0; i < request->avoid->count; i++) {
        if (strcmp(request->avoid->items[i], key) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_start(const weft_route_request *request, const weft_digest *digest) {
    return request->from != NULL && weft_digest_equal(request->from, digest);
}

/* ---- by single patches ---- */

typedef struct walk {
    const weft_route_request *request;
    weft_route *route;    /* patches from the wanted version back, newest first */
    weft_anchor *anchors; /* of the newest page */
    size_t anchor_count;
    bool found;
    size_t patches;            /* of the best way: the first so many of the route, */
    const weft_anchor *anchor; /* from here, or NULL: from where the replica is */
    weft_record anchor_record; /* of that version, or of version 0 */
    uint64_t bytes;
} walk;

static const weft_anchor *anchor_at(const walk *w, const weft_record *record) {
    for (size_t i = 0; i < w->anchor_count; i++) {
        const weft_anchor *anchor = &w->anchors[i];
        if (anchor->version == record->version && weft_digest_equal(&anchor->digest, &record->digest) &&
            !avoids(w->request, anchor->object.key)) {
            return anchor;
        }
    }
    return NULL;
}

static weft_status consider(walk *w, const weft_anchor *anchor, const weft_record *record) {
    uint64_t bytes = w->route->bytes + (anchor != NULL ? anchor->object.bytes : 0);
    if (w->found && bytes >= w->bytes) {
        return WEFT_OK;
    }
    weft_context *context = w->route->context;
    weft_record copy = {0};
    weft_status status = anchor != NULL ? weft_record_copy(context, record, &copy) : WEFT_OK;
    if (status == WEFT_OK) {
        weft_record_close(&w->anchor_record, context);
        w->anchor_record = copy;
        w->anchor = anchor;
        w->found = true;
        w->patches = w->route->count;
        w->bytes = bytes;
    }
    return status;
}

/* WEFT_MORE: go on with the version before. */
static weft_status visit(walk *w, const weft_record *record) {
    if (is_start(w->request, &record->digest)) {
        weft_status status = consider(w, NULL, record);
        return status == WEFT_OK && w->route->count == 0
                   ? weft_record_copy(w->route->context, record, &w->route->start)
                   : status;
    }
    const weft_anchor *anchor = anchor_at(w, record);
    if (anchor != NULL) {
        weft_status status = consider(w, anchor, record);
        if (status != WEFT_OK) {
            return status;
        }
    }
    if (!record->patched || avoids(w->request, record->patch.key) ||
        (w->found && w->route->bytes + record->patch.bytes >= w->bytes)) {
        return WEFT_OK;
    }
    weft_status status = add_patch(w->route, record);
    return status == WEFT_OK ? WEFT_MORE : status;
}

static weft_status keep_anchors(walk *w, const weft_page *page) {
    weft_context *context = w->route->context;
    w->anchors = weft_allocate_array(context, page->anchor_count, sizeof *w->anchors);
    if (w->anchors == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(w->anchors, page->anchors, page->anchor_count * sizeof *w->anchors);
    w->anchor_count = page->anchor_count;
    return WEFT_OK;
}

static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    walk *w = opaque;
    weft_status status = w->anchors == NULL ? keep_anchors(w, page) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    status = WEFT_MORE;
    for (size_t i = page->record_count; i > 0 && status == WEFT_MORE; i--) {
        if (page->records[i - 1].version <= w->request->version) {
            status = visit(w, &page->records[i - 1]);
        }
    }
    return status;
}

/* Cuts the route down to the best way, in the order in which it is gone. */
static weft_status settle(walk *w) {
    weft_route *route = w->route;
    while (route->count > w->patches) {
        route->bytes -= route->steps[--route->count].object.bytes;
        weft_record_close(&route->steps[route->count].record, route->context);
    }
    weft_status status = WEFT_OK;
    if (w->anchor != NULL) {
        const weft_route_step step = {
            .anchor = true, .object = w->anchor->object, .record = w->anchor_record};
        status = add_step(route, &step);
    }
    reverse_steps(route);
    return status;
}

/* What lies further back than a way that was found need not be read, and so may be damaged or gone. */
static bool harmless(const walk *w, weft_status status) {
    return w->found && (weft_status_is_integrity(status) || status == WEFT_NOT_FOUND);
}

/* One behind is the usual case, and the head alone knows the way. */
static bool next_in_line(const weft_route_request *request) {
    const weft_record *newest = &request->head->newest;
    return request->version == newest->version && newest->patched && is_start(request, &newest->base) &&
           !avoids(request, newest->patch.key);
}

static weft_status plan_by_patches(weft_route *route, const weft_route_request *request,
                                   const weft_page *newest) {
    walk w = {.request = request, .route = route};
    weft_status status =
        weft_history_walk(route->context, request->store, request->head, newest, visit_page, &w);
    status = harmless(&w, status) ? WEFT_OK : status;
    if (status == WEFT_OK && !w.found) {
        status = weft_fail(route->context, WEFT_NOT_FOUND, "%s: no way leads to version %llu%s",
                           weft_store_url(request->store), (unsigned long long)request->version,
                           request->avoid->count > 0 ? " around what is damaged or missing"
                                                     : ": what it needs is no longer kept");
    }
    if (status == WEFT_OK) {
        status = settle(&w);
    }
    weft_record_close(&w.anchor_record, route->context);
    weft_release(route->context, w.anchors);
    if (status != WEFT_OK) {
        weft_route_clear(route);
    }
    return status;
}

/* ---- by leaps: what the pages say ---- */

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
static weft_status visit_tail(void *opaque, const weft_blob *blob, const weft_page *page) {
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

/* ---- by leaps: which version the replica is at ---- */

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

/* ---- by leaps: the way ---- */

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
    if (plan->node_count == NODES_MAX || avoids(plan->request, leap->node.key)) {
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
    if (!record->patched || avoids(plan->request, record->patch.key)) {
        return WEFT_MORE;
    }
    way->bytes += record->patch.bytes;
    const weft_route_step step = {
        .first = record->version - 1, .base = record->base, .object = record->patch, .record = *record};
    return way->route != NULL ? add_step(way->route, &step) : WEFT_OK;
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
    return add_step(way->route, &step);
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
                     !avoids(plan->request, leap->key);
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

/* ---- by leaps: choosing ---- */

typedef struct choice {
    bool found;
    uint64_t bytes;
    uint64_t first;
    const weft_anchor *anchor; /* NULL: from where the replica is */
} choice;

static weft_status consider_leaps(leap_plan *plan, uint64_t first, const weft_anchor *anchor,
                                  choice *best) {
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
        status = consider_leaps(plan, plan->start, NULL, best);
    }
    for (size_t i = 0; i < plan->newest->anchor_count && status == WEFT_OK; i++) {
        const weft_anchor *anchor = &plan->newest->anchors[i];
        if (anchor->version <= target && !avoids(plan->request, anchor->object.key)) {
            status = consider_leaps(plan, anchor->version, anchor, best);
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
    return add_step(route, &step);
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

/* Leaps where there are some, single patches at the ends. WEFT_MORE: they do not lead there, and the way is
 * to be found patch by patch. `newest` is the head's page. The route must be empty. */
static weft_status plan_by_leaps(weft_route *route, const weft_route_request *request,
                                 const weft_page *newest) {
    if (newest->leaps.count == 0) {
        return WEFT_MORE;
    }
    leap_plan plan = {.context = route->context, .request = request, .newest = newest};
    choice best = {0};
    weft_status status =
        weft_history_walk(route->context, request->store, request->head, newest, visit_tail, &plan);
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

/* ---- the choice ---- */

weft_status weft_route_plan(weft_route *route, const weft_route_request *request) {
    if (next_in_line(request)) {
        return add_patch(route, &request->head->newest);
    }
    weft_page *newest;
    weft_status status = weft_history_page(route->context, request->store, &request->head->page,
                                           request->head->run, &newest);
    if (status != WEFT_OK) {
        return status;
    }
    status = plan_by_leaps(route, request, newest);
    if (status == WEFT_MORE) {
        status = plan_by_patches(route, request, newest);
    }
    weft_history_release(route->context, newest);
    return status;
}
