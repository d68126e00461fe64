/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_lead.h: the coordinator's side of versions in parts. It gathers the members, has each put its part,
 * checks that the parts cover the model exactly once, and writes what stands around their frames. The head
 * is its publisher's affair.
 */
#ifndef WEFT_SYNC_PARTS_PARTS_LEAD_H
#define WEFT_SYNC_PARTS_PARTS_LEAD_H

#include "parts.h"

typedef struct weft_parts_lead {
    weft_parts parts;
    uint64_t number;           /* of the last call */
    uint64_t turn;             /* of the publishes, those included that ended before a call */
    bool called;               /* this turn's members wait to be told how it ends */
    weft_sum *totals;          /* of each tensor of what was published last */
    bool totalled;             /* they are known */
    weft_sum *next_totals;     /* of the version under way */
    char last[WEFT_PART_NAME]; /* the name of the last call that was told to all */
} weft_parts_lead;

weft_status weft_parts_lead_open(weft_parts_lead *lead, weft_context *context, weft_store *store,
                                 const weft_view *view, const weft_publisher_options *options);
/* Tells the members that nobody calls them any more. */
void weft_parts_lead_close(weft_parts_lead *lead);

/* A new turn: to be told of each publish before anything else, whatever becomes of it. */
void weft_parts_lead_count(weft_parts_lead *lead);
/* Gathers the members for `version` unless they are known, and makes room in the baseline for this part's
 * share. */
weft_status weft_parts_lead_begin(weft_parts_lead *lead, weft_baseline *baseline,
                                  const weft_sync_head *head, uint64_t version);

typedef struct weft_parts_order {
    bool whole;
    uint64_t version;
    weft_digest base; /* what was published last, unless it is whole */
    const char *const *labels;
    const weft_container *container;
} weft_parts_order;

typedef struct weft_parts_made {
    weft_object object;
    weft_diff_stats stats;
    weft_part_edition own;
    weft_parcel tail; /* what stands behind the frames, on its way */
    weft_parcel list; /* of the pieces, the same */
    bool refused;     /* the version failed, because somebody's copy of the one before cannot be used */
} weft_parts_made;

/* Has the version made by all parts. All of it is in the store once `tail` and `list` are joined. On
 * failure nothing is on its way, and the baseline is as it was, or, if all of the version was to be made,
 * holds nothing. */
weft_status weft_parts_lead_make(weft_parts_lead *lead, weft_baseline *baseline,
                                 const weft_parts_order *order, weft_parts_made *made);
/* The version that was made last is published. */
void weft_parts_lead_settle(weft_parts_lead *lead);
/* Ends the turn for everybody: WEFT_CALL_DONE, FAILED or UNKNOWN. */
void weft_parts_lead_tell(weft_parts_lead *lead, weft_call_kind kind, uint64_t version, bool anchor,
                          weft_status status);
/* After DONE with `anchor`: an anchor of what was just published, made by all parts. */
weft_status weft_parts_lead_anchor(weft_parts_lead *lead, weft_baseline *baseline, weft_anchor *anchor,
                                   const weft_container *container);

#endif
