/* SPDX-License-Identifier: Apache-2.0
 *
 * announced.c: picking up the cuts that followers ask for.
 *
 * Anybody who may read may report. So what is announced can only make a patch larger, never a publish fail:
 * a cut that does not fit every tensor that it matches is passed over, and there are few. Cuts stay when
 * those who asked for them are gone, because taking them back would cost an anchor.
 */
#include "announced.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../../patch/bucket/plan.h"
#include "../fleet/fleet.h"

#include <fnmatch.h>
#include <string.h>

/* Between looks, and in a store where every request is paid for. */
static const double LOOK_SECONDS = 5;
static const double LOOK_PAID_SECONDS = 60;
/* of the time that a look takes: what it may cost is a small part of a publisher's time */
static const double LOOK_SHARE = 100;

void weft_announced_close(weft_announced *announced, weft_context *context) {
    weft_release(context, announced->cuts);
    *announced = (weft_announced){0};
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Whether some tensor is cut so, and all that match can be. */
static bool fits(const weft_context *context, const weft_view *view, const weft_announced_cut *announced) {
    const weft_cut cut = {announced->pattern, announced->dim, announced->parts};
    bool found = false;
    for (size_t i = 0; i < weft_view_count(view); i++) {
        const weft_tensor *tensor = weft_view_at(view, i);
        if (fnmatch(cut.pattern, tensor->name, 0) == 0) {
            found = true;
            if (weft_plan_cut_fault(context, tensor, &cut) != NULL) {
                return false;
            }
        }
    }
    return found;
}

static bool is_given(const weft_announced *announced, const char *pattern) {
    bool found = false;
    for (size_t i = 0; i < announced->given_count && !found; i++) {
        found = strcmp(announced->given[i].pattern, pattern) == 0;
    }
    return found;
}

/* Who wants the same tensors in other numbers of parts gets what both can take. */
static bool add_cut(weft_announced *announced, const weft_context *context, const weft_view *view,
                    const weft_announced_cut *wanted) {
    weft_announced_cut *same = NULL;
    for (size_t i = 0; i < announced->count && same == NULL; i++) {
        same = strcmp(announced->added[i].pattern, wanted->pattern) == 0 ? &announced->added[i] : NULL;
    }
    if (same != NULL && (same->dim != wanted->dim || same->parts % wanted->parts == 0)) {
        return false;
    }
    weft_announced_cut cut = *wanted;
    if (same != NULL) {
        cut.parts = same->parts / common_divisor(same->parts, wanted->parts) * wanted->parts;
    } else if (announced->count == WEFT_ANNOUNCED_CUTS || is_given(announced, wanted->pattern)) {
        return false;
    }
    if (cut.parts > WEFT_ANNOUNCED_PARTS || !fits(context, view, &cut)) {
        return false;
    }
    *(same != NULL ? same : &announced->added[announced->count++]) = cut;
    return true;
}

static bool add_follower(weft_announced *announced, const weft_context *context, const weft_view *view,
                         const weft_follower *follower) {
    weft_announced_cut cuts[WEFT_ANNOUNCED_CUTS];
    size_t count = 0;
    bool news = false;
    if (follower->cuts[0] != '\0' && weft_cuts_parse(follower->cuts, cuts, &count)) {
        for (size_t i = 0; i < count; i++) {
            news = add_cut(announced, context, view, &cuts[i]) || news;
        }
    }
    return news;
}

bool weft_announced_look(weft_announced *announced, weft_context *context, weft_store *store,
                         const weft_sync_head *head, const weft_view *view,
                         const weft_publisher_options *options) {
    double start = weft_clock_now();
    if (options->no_announced_cuts || options->part_count > 1 || !head->started ||
        (announced->begun && start < announced->next)) {
        return announced->pending;
    }
    if (!announced->begun) {
        announced->given = options->cuts;
        announced->given_count = options->cut_count;
        announced->begun = true;
    }
    weft_fleet fleet = {.size = sizeof fleet};
    if (weft_fleet_read_live(context, store, head, &fleet) == WEFT_OK) {
        for (size_t i = 0; i < fleet.live; i++) {
            bool news = add_follower(announced, context, view, fleet.followers[i]);
            announced->pending = announced->pending || news;
        }
        weft_fleet_close(context, &fleet);
    }
    weft_context_clear(context);
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    double took = weft_clock_now() - start;
    double pause = traits.paid ? LOOK_PAID_SECONDS : LOOK_SECONDS;
    announced->next = start + (pause > LOOK_SHARE * took ? pause : LOOK_SHARE * took);
    return announced->pending;
}

weft_status weft_announced_take(weft_announced *announced, weft_context *context,
                                weft_publisher_options *options) {
    size_t count = announced->given_count + announced->count;
    weft_cut *cuts = weft_allocate_array(context, count, sizeof *cuts);
    if (cuts == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < announced->given_count; i++) {
        cuts[i] = announced->given[i];
    }
    for (size_t i = 0; i < announced->count; i++) {
        const weft_announced_cut *cut = &announced->added[i];
        cuts[announced->given_count + i] = (weft_cut){cut->pattern, cut->dim, cut->parts};
    }
    weft_release(context, announced->cuts);
    announced->cuts = cuts;
    announced->pending = false;
    options->cuts = cuts;
    options->cut_count = count;
    return WEFT_OK;
}
