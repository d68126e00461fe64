/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.c: which patches, or which anchor and which patches, cost the fewest bytes.
 *
 * Leaps are looked at first (planner_leaps.c). Where they do not lead, single patches do:
 * The walk goes back from the wanted version, adding up patches. Where it meets the state that the replica
 * is at, the patches so far are a way; where it meets an anchor, that and the patches are one. It ends when
 * the patches alone cost more than the best way found.
 */
#include "planner.h"

#include "../base/context.h"

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

weft_status weft_route_add(weft_route *route, const weft_route_step *step) {
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
    return weft_route_add(route, &step);
}

static void reverse_steps(weft_route *route) {
    for (size_t i = 0; i < route->count / 2; i++) {
        weft_route_step step = route->steps[i];
        route->steps[i] = route->steps[route->count - 1 - i];
        route->steps[route->count - 1 - i] = step;
    }
}

bool weft_route_avoids(const weft_route_request *request, const char *key) {
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

/* ---- the walk ---- */

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
            !weft_route_avoids(w->request, anchor->object.key)) {
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
    if (!record->patched || weft_route_avoids(w->request, record->patch.key) ||
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
        status = weft_route_add(route, &step);
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
           !weft_route_avoids(request, newest->patch.key);
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
    status = weft_route_plan_leaps(route, request, newest);
    if (status == WEFT_MORE) {
        status = plan_by_patches(route, request, newest);
    }
    weft_history_release(route->context, newest);
    return status;
}
