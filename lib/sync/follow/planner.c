/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.c: which patches, or which anchor and which patches, cost the fewest bytes.
 *
 * A replica that is a few versions behind takes the patches that it has missed, which the newest pages
 * name, unless they are so large that another way might be shorter. Else all ways are weighed, and anchors
 * and leaps are looked for, a few pages further back.
 *
 * By leaps: the newest full page names the widest leaps, one after the other, up to a few versions before
 * its own. A route from version a takes those that begin at a or later whole, and looks into the one that a
 * lies in: at the four smaller ones that it consists of, and so on down to single versions. Only the nodes
 * on the route are fetched. Each possible start, the replica's version and every anchor, is measured first;
 * then the steps from the cheapest one are added.
 *
 * By single patches, where leaps do not lead: the walk goes back from the wanted version and adds up
 * patches. Where it meets the replica's state, the patches so far are a route; where it meets an anchor,
 * the anchor and the patches so far are one. It ends when the patches alone cost more than the best route
 * found.
 *
 * A patch of the profile `smallest` looks back at versions before its own, and can be taken only by who has
 * followed these one by one. A route that does not is replaced: by one to the newest version that no patch
 * after it, up to the wanted version, looks beyond, and single patches from there; or by single patches
 * from an anchor. Nobody looks back beyond an anchor.
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

static bool is_avoided(const weft_route_request *request, const char *key) {
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

/* ---- patches that look back ---- */

/* How many versions are known at the first step, which starts from the replica's state. */
static uint64_t known_at_start(const weft_route_request *request, const weft_route_step *first) {
    return request->from_version != 0 && first->first == request->from_version ? request->depth : 0;
}

static bool is_single(const weft_route_step *step) {
    return !step->anchor && strcmp(step->object.key, step->record.patch.key) == 0;
}

/* True if no step of the route looks back further than the steps before it, and the replica, have come. */
static bool is_recalled(const weft_route *route, const weft_route_request *request) {
    uint64_t known = route->count > 0 ? known_at_start(request, &route->steps[0]) : 0;
    for (size_t i = 0; i < route->count; i++) {
        const weft_route_step *step = &route->steps[i];
        if (is_single(step) && step->record.recalls > known) {
            return false;
        }
        known = is_single(step) ? known + 1 : 0;
    }
    return true;
}

/* ---- by single patches ---- */

typedef struct walk {
    const weft_route_request *request;
    weft_route *route;       /* patches from the wanted version back, newest first */
    const weft_page *newest; /* the front; NULL: anchors are not known */
    uint64_t least;          /* it goes back no further than to this version */

    /* the best route so far */
    bool found;
    size_t patches;            /* how many of the patches above it has */
    const weft_anchor *anchor; /* that it starts from; NULL: from the replica's state */
    weft_record anchor_record; /* of the anchor's version, if there is one */
    uint64_t bytes;
} walk;

/* The same for the patches so far, the newest of which is the first. */
static bool are_recalled(const walk *walk, bool anchored) {
    const weft_route *route = walk->route;
    uint64_t known =
        !anchored && route->count > 0 ? known_at_start(walk->request, &route->steps[route->count - 1]) : 0;
    for (size_t i = route->count; i > 0; i--) {
        if (route->steps[i - 1].record.recalls > known++) {
            return false;
        }
    }
    return true;
}

/* The patches so far are a route from `anchor`, whose version `record` is, or if NULL from the replica. */
static weft_status consider_patches(walk *walk, const weft_anchor *anchor, const weft_record *record) {
    uint64_t bytes = walk->route->bytes + (anchor != NULL ? anchor->object.bytes : 0);
    if ((walk->found && bytes >= walk->bytes) || !are_recalled(walk, anchor != NULL)) {
        return WEFT_OK;
    }
    weft_context *context = walk->route->context;
    weft_record copy = {0};
    weft_status status = anchor != NULL ? weft_record_copy(context, record, &copy) : WEFT_OK;
    if (status == WEFT_OK) {
        weft_record_close(&walk->anchor_record, context);
        walk->anchor_record = copy;
        walk->anchor = anchor;
        walk->found = true;
        walk->patches = walk->route->count;
        walk->bytes = bytes;
    }
    return status;
}

/* WEFT_MORE: go on with the version before. */
static weft_status visit_record(walk *walk, const weft_record *record) {
    if (record->version < walk->least) {
        return WEFT_OK;
    }
    if (is_start(walk->request, &record->digest) && are_recalled(walk, false)) {
        weft_status status = consider_patches(walk, NULL, record);
        return status == WEFT_OK && walk->route->count == 0
                   ? weft_record_copy(walk->route->context, record, &walk->route->start)
                   : status;
    }
    const weft_anchor *anchor =
        walk->newest != NULL
            ? weft_anchor_find(walk->newest->anchors, walk->newest->anchor_count, record->version)
            : NULL;
    if (anchor != NULL && weft_digest_equal(&anchor->digest, &record->digest) &&
        !is_avoided(walk->request, anchor->object.key)) {
        weft_status status = consider_patches(walk, anchor, record);
        if (status != WEFT_OK) {
            return status;
        }
    }
    if (!record->patched || is_avoided(walk->request, record->patch.key) ||
        (walk->found && walk->route->bytes + record->patch.bytes >= walk->bytes)) {
        return WEFT_OK;
    }
    weft_status status = add_patch(walk->route, record);
    if (status == WEFT_OK && is_start(walk->request, &record->base) && are_recalled(walk, false)) {
        /* the page before need not be read, if the version before is on another */
        return consider_patches(walk, NULL, record);
    }
    return status == WEFT_OK ? WEFT_MORE : status;
}

static weft_status visit_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    walk *walk = opaque;
    weft_status status = WEFT_MORE;
    for (size_t i = page->record_count; i > 0 && status == WEFT_MORE; i--) {
        if (page->records[i - 1].version <= walk->request->version) {
            status = visit_record(walk, &page->records[i - 1]);
        }
    }
    return status;
}

/* Cuts the route down to the best one, and puts its steps in the order in which they are applied. */
static weft_status order_route(walk *walk) {
    weft_route *route = walk->route;
    while (route->count > walk->patches) {
        route->bytes -= route->steps[--route->count].object.bytes;
        weft_record_close(&route->steps[route->count].record, route->context);
    }
    weft_status status = WEFT_OK;
    if (walk->anchor != NULL) {
        const weft_route_step step = {
            .anchor = true, .object = walk->anchor->object, .record = walk->anchor_record};
        status = add_step(route, &step);
    }
    for (size_t i = 0; i < route->count / 2; i++) {
        weft_route_step step = route->steps[i];
        route->steps[i] = route->steps[route->count - 1 - i];
        route->steps[route->count - 1 - i] = step;
    }
    return status;
}

static bool is_damage(weft_status status) {
    return weft_status_is_integrity(status) || status == WEFT_NOT_FOUND;
}

/* Pages further back than a route that was found need not be read, so they may be damaged or gone. */
static bool is_harmless(const walk *walk, weft_status status) {
    return walk->found && is_damage(status);
}

/* The usual case, one version behind: the head alone names the patch. */
static bool is_one_behind(const weft_route_request *request) {
    const weft_record *newest = &request->head->newest;
    return request->version == newest->version && newest->patched && is_start(request, &newest->base) &&
           !is_avoided(request, newest->patch.key);
}

static weft_status plan_by_patches(weft_route *route, const weft_route_request *request,
                                   const weft_page *newest) {
    walk walk = {.request = request, .route = route, .newest = newest};
    weft_status status =
        weft_history_walk(route->context, request->store, request->head, newest, visit_page, &walk);
    status = is_harmless(&walk, status) ? WEFT_OK : status;
    if (status == WEFT_OK && !walk.found) {
        status = weft_fail(route->context, WEFT_NOT_FOUND, "%s: no way leads to version %llu%s",
                           weft_store_url(request->store), (unsigned long long)request->version,
                           request->avoid->count > 0 ? " around what is damaged or missing"
                                                     : ": what it needs is no longer kept");
    }
    if (status == WEFT_OK) {
        status = order_route(&walk);
    }
    weft_record_close(&walk.anchor_record, route->context);
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
    weft_record *records; /* of the versions after the last leap, newest first */
    size_t record_count;
    weft_leap_node *nodes[NODES_MAX];
    size_t node_count;
    bool too_old;   /* the leaps end further back than WEFT_LEAP_TAIL versions */
    uint64_t start; /* the version that the replica is at; 0: none that is known */
} leap_plan;

/* The version that the last leap leads to. */
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

/* Keeps the records of the versions after the last leap. WEFT_MORE: the page before is needed too. */
static weft_status visit_tail(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    leap_plan *plan = opaque;
    weft_status status = WEFT_OK;
    for (size_t i = page->record_count; i > 0 && status == WEFT_OK; i--) {
        const weft_record *record = &page->records[i - 1];
        if (record->version <= leaps_end(plan)) {
            return WEFT_OK;
        }
        /* such leaps save little, and a made-up history without an end must not keep us */
        if (plan->record_count == WEFT_LEAP_TAIL) {
            plan->too_old = true;
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

/* ---- by leaps: from one version to another ---- */

/* The steps from version `first` to version `last`. Without a route their bytes are added up; with one they
 * are added to it too. */
typedef struct stretch {
    uint64_t first;
    uint64_t last;
    uint64_t bytes;
    weft_route *route; /* NULL: only measure */
} stretch;

/* The node of a leap, fetched once. WEFT_MORE: it is to be avoided, or there are too many. */
static weft_status get_node(leap_plan *plan, const weft_leap *leap, const weft_leap_node **node_out) {
    for (size_t i = 0; i < plan->node_count; i++) {
        if (plan->nodes[i]->first == leap->first && plan->nodes[i]->last == leap->last) {
            *node_out = plan->nodes[i];
            return WEFT_OK;
        }
    }
    if (plan->node_count == NODES_MAX || is_avoided(plan->request, leap->node.key)) {
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

/* Each of these adds what lies within the stretch. WEFT_MORE: something on it is missing. */

static weft_status add_record(leap_plan *plan, const weft_record *record, stretch *stretch) {
    if (record->version <= stretch->first || record->version > stretch->last) {
        return WEFT_OK;
    }
    if (!record->patched || is_avoided(plan->request, record->patch.key)) {
        return WEFT_MORE;
    }
    stretch->bytes += record->patch.bytes;
    return stretch->route != NULL ? add_patch(stretch->route, record) : WEFT_OK;
}

static weft_status add_whole_leap(leap_plan *plan, const weft_leap *leap, stretch *stretch) {
    stretch->bytes += leap->bytes;
    if (stretch->route == NULL) {
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
    return add_step(stretch->route, &step);
}

/* Recursion is a few levels deep: the lengths of leaps are powers of four. */
static weft_status add_leaps(leap_plan *plan, const weft_leaps *leaps, stretch *stretch) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < leaps->count && status == WEFT_OK; i++) {
        const weft_leap *leap = &leaps->items[i];
        if (leap->last <= stretch->first || leap->first >= stretch->last) {
            continue;
        }
        bool whole = leap->first >= stretch->first && leap->last <= stretch->last && leap->bytes > 0 &&
                     !is_avoided(plan->request, leap->key);
        if (whole) {
            status = add_whole_leap(plan, leap, stretch);
            continue;
        }
        const weft_leap_node *node;
        status = get_node(plan, leap, &node);
        if (status == WEFT_OK && node->parts.count > 0) {
            status = add_leaps(plan, &node->parts, stretch);
        }
        for (size_t j = 0; status == WEFT_OK && node->parts.count == 0 && j < node->record_count; j++) {
            status = add_record(plan, &node->records[j], stretch);
        }
    }
    return status;
}

/* Leaps, then the patches after the last of them. */
static weft_status add_stretch(leap_plan *plan, stretch *stretch) {
    bool begins = plan->newest->leaps.items[0].first <= stretch->first || leaps_end(plan) <= stretch->first;
    weft_status status = begins ? add_leaps(plan, &plan->newest->leaps, stretch) : WEFT_MORE;
    for (size_t i = plan->record_count; i > 0 && status == WEFT_OK; i--) {
        status = add_record(plan, &plan->records[i - 1], stretch);
    }
    return status;
}

/* ---- by leaps: choosing ---- */

typedef struct choice {
    bool found;
    uint64_t bytes;
    uint64_t first;            /* the version that it starts from */
    const weft_anchor *anchor; /* of that version; NULL: it is the replica's */
} choice;

static weft_status consider_start(leap_plan *plan, uint64_t first, const weft_anchor *anchor,
                                  choice *best) {
    uint64_t bytes = anchor != NULL ? anchor->object.bytes : 0;
    if (best->found && bytes >= best->bytes) {
        return WEFT_OK;
    }
    stretch stretch = {.first = first, .last = plan->request->version, .bytes = bytes};
    weft_status status = add_stretch(plan, &stretch);
    if (status == WEFT_OK && (!best->found || stretch.bytes < best->bytes)) {
        *best = (choice){true, stretch.bytes, first, anchor};
    }
    return status == WEFT_MORE ? WEFT_OK : status;
}

/* True if the replica is at the wanted version already, or at one before all leaps. Leaps do not lead from
 * there, so here only anchors would be found. Single patches may be cheaper: gc can keep them for
 * followers.
 */
static bool is_outside_leaps(const leap_plan *plan) {
    return plan->start != 0 &&
           (plan->start == plan->request->version ||
            (plan->start < plan->request->version && plan->start < plan->newest->leaps.items[0].first));
}

static weft_status choose_start(leap_plan *plan, choice *best) {
    uint64_t target = plan->request->version;
    weft_status status = WEFT_OK;
    if (plan->too_old || is_outside_leaps(plan)) {
        return WEFT_MORE;
    }
    if (plan->start != 0 && plan->start < target) {
        status = consider_start(plan, plan->start, NULL, best);
    }
    for (size_t i = 0; i < plan->newest->anchor_count && status == WEFT_OK; i++) {
        const weft_anchor *anchor = &plan->newest->anchors[i];
        if (anchor->version <= target && !is_avoided(plan->request, anchor->object.key)) {
            status = consider_start(plan, anchor->version, anchor, best);
        }
    }
    return status;
}

/* A page tells version and digest of an anchor, which is enough for a step on the route. The last step
 * needs the whole record: that of the newest version is in the head; for another, WEFT_MORE. */
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

/* True if the first step starts from the state that it should, and each leads to where the next starts. */
static bool is_connected(const leap_plan *plan, const choice *best, const weft_route *route) {
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

static weft_status build_route(leap_plan *plan, const choice *best, weft_route *route) {
    stretch stretch = {.first = best->first, .last = plan->request->version, .route = route};
    weft_status status = best->anchor != NULL ? add_anchor(plan, best->anchor, route) : WEFT_OK;
    if (status == WEFT_OK) {
        status = add_stretch(plan, &stretch);
    }
    return status == WEFT_OK && !is_connected(plan, best, route) ? WEFT_MORE : status;
}

/* With pages or nodes damaged or gone, single patches may still lead there. */
static bool leaves_single_patches(weft_status status) {
    return weft_status_is_integrity(status) || status == WEFT_NOT_FOUND;
}

/* Leaps, and single patches at the ends. WEFT_MORE: they do not lead there, and the route is to be found
 * patch by patch. `newest` is the head's page. The route must be empty. */
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
        status = choose_start(&plan, &best);
    }
    if (status == WEFT_OK) {
        status = best.found ? build_route(&plan, &best, route) : WEFT_MORE;
    }
    for (size_t i = 0; i < plan.record_count; i++) {
        weft_record_close(&plan.records[i], plan.context);
    }
    for (size_t i = 0; i < plan.node_count; i++) {
        weft_leap_node_release(plan.context, plan.nodes[i]);
    }
    weft_release(plan.context, plan.records);
    if (status != WEFT_OK) {
        weft_route_clear(route);
    }
    return leaves_single_patches(status) ? WEFT_MORE : status;
}

/* ---- the plan ---- */

enum { FEW_VERSIONS = 4, SMALL_PATCHES = 4 };

/* True if the replica is so few versions behind that leaps would hardly help. */
static bool is_few_behind(const weft_route_request *request) {
    return request->from != NULL && request->from_version != 0 &&
           request->from_version < request->version &&
           request->version - request->from_version <= FEW_VERSIONS &&
           request->head->newest.version - request->from_version <= FEW_VERSIONS;
}

/* The patches that a replica has missed, if they are a small part of the model, as no anchor is. WEFT_MORE:
 * other ways are to be weighed, also where a page is damaged or gone: the newest full page may be after it.
 */
static weft_status plan_by_few(weft_route *route, const weft_route_request *request) {
    walk walk = {.request = request, .route = route, .least = request->from_version};
    weft_status status =
        weft_history_walk(route->context, request->store, request->head, NULL, visit_page, &walk);
    bool taken = status == WEFT_OK && walk.found &&
                 route->count == request->version - request->from_version &&
                 route->bytes < request->head->newest.dense_bytes / SMALL_PATCHES;
    if (taken) {
        return order_route(&walk);
    }
    weft_route_clear(route);
    return status == WEFT_OK || is_damage(status) ? WEFT_MORE : status;
}

/* The best way, if no patch looked back. */
static weft_status plan_plainly(weft_route *route, const weft_route_request *request) {
    if (is_one_behind(request)) {
        return add_patch(route, &request->head->newest);
    }
    weft_status status = is_few_behind(request) ? plan_by_few(route, request) : WEFT_MORE;
    if (status != WEFT_MORE) {
        return status;
    }
    weft_page *front;
    status = weft_history_front(route->context, request->store, request->head, &front);
    if (status != WEFT_OK) {
        return status;
    }
    status = plan_by_leaps(route, request, front);
    if (status == WEFT_MORE) {
        status = plan_by_patches(route, request, front);
    }
    weft_history_release(route->context, front);
    return status;
}

/* ---- around patches that look back ---- */

/* The patches from the wanted version back to one that none of them looks beyond. Not the first that looks
 * back at nothing need be that: a publisher that another was in between of may have followed its versions.
 */
typedef struct tail_walk {
    const weft_route_request *request;
    weft_route *tail;
    uint64_t least; /* the version that they look back to */
} tail_walk;

/* WEFT_MORE: go on with the version before. */
static weft_status visit_tail_record(tail_walk *walk, const weft_record *record) {
    if (!record->patched || is_avoided(walk->request, record->patch.key)) {
        return WEFT_NOT_FOUND;
    }
    uint64_t before = record->version - 1;
    uint64_t least = before - record->recalls;
    walk->least = least < walk->least ? least : walk->least;
    weft_status status = add_patch(walk->tail, record);
    return status == WEFT_OK && before > walk->least ? WEFT_MORE : status;
}

static weft_status visit_tail_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    tail_walk *walk = opaque;
    weft_status status = WEFT_MORE;
    for (size_t i = page->record_count; i > 0 && status == WEFT_MORE; i--) {
        if (page->records[i - 1].version <= walk->request->version) {
            status = visit_tail_record(walk, &page->records[i - 1]);
        }
    }
    return status;
}

/* Adds the newest `count` steps of the tail, in order. */
static weft_status add_tail(weft_route *route, const weft_route *tail, size_t count) {
    weft_status status = WEFT_OK;
    for (size_t i = count; i > 0 && status == WEFT_OK; i--) {
        status = add_step(route, &tail->steps[i - 1]);
    }
    return status;
}

/* From where the replica is on the tail. WEFT_MORE: it is not there, or recalls too little. */
static weft_status plan_along_tail(weft_route *route, const weft_route_request *request,
                                   const weft_route *tail) {
    size_t count = 1;
    while (count <= tail->count && !is_start(request, &tail->steps[count - 1].base)) {
        count++;
    }
    if (count > tail->count) {
        return WEFT_MORE;
    }
    weft_status status = add_tail(route, tail, count);
    if (status == WEFT_OK && !is_recalled(route, request)) {
        weft_route_clear(route);
        return WEFT_MORE;
    }
    return status;
}

/* To where the tail begins, and along it. WEFT_MORE: there is no such way. */
static weft_status plan_to_tail(weft_route *route, const weft_route_request *request,
                                const weft_route *tail) {
    const weft_route_step *first = &tail->steps[tail->count - 1];
    weft_route_request before = *request;
    before.version = first->first;
    weft_status status = plan_along_tail(route, request, tail);
    if (status != WEFT_MORE) {
        return status;
    }
    status = before.version == 0 ? WEFT_MORE : plan_plainly(route, &before);
    if (status == WEFT_OK) {
        status = add_tail(route, tail, tail->count);
    }
    if (status == WEFT_OK && !is_recalled(route, request)) {
        status = WEFT_MORE;
    }
    return status == WEFT_NOT_FOUND ? WEFT_MORE : status;
}

static weft_status plan_recalling(weft_route *route, const weft_route_request *request) {
    weft_context *context = route->context;
    weft_route tail;
    weft_page *front;
    weft_route_open(&tail, context);
    weft_status status = weft_history_front(context, request->store, request->head, &front);
    if (status != WEFT_OK) {
        return status;
    }
    tail_walk walk = {request, &tail, UINT64_MAX};
    status = weft_history_walk(context, request->store, request->head, front, visit_tail_page, &walk);
    status = status == WEFT_OK && tail.count > 0 ? plan_to_tail(route, request, &tail) : WEFT_MORE;
    weft_route_clear(&tail);
    if (status == WEFT_MORE) {
        weft_route_clear(route);
        weft_context_clear(context);
        status = plan_by_patches(route, request, front);
    }
    weft_history_release(context, front);
    return status;
}

weft_status weft_route_plan(weft_route *route, const weft_route_request *request) {
    weft_status status = plan_plainly(route, request);
    if (status != WEFT_OK || is_recalled(route, request)) {
        return status;
    }
    weft_route_clear(route);
    return plan_recalling(route, request);
}
