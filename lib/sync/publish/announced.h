/* SPDX-License-Identifier: Apache-2.0
 *
 * announced.h: cuts that followers have asked for in their reports, added to those that the publisher was
 * given.
 */
#ifndef WEFT_SYNC_PUBLISH_ANNOUNCED_H
#define WEFT_SYNC_PUBLISH_ANNOUNCED_H

#include "../format/cuts.h"
#include "../format/head.h"

/* What is remembered from one publish to the next. Begins as zeros. */
typedef struct weft_announced {
    weft_announced_cut added[WEFT_ANNOUNCED_CUTS];
    size_t count;
    const weft_cut *given; /* the publisher's own, which come first */
    size_t given_count;
    weft_cut *cuts; /* both together; NULL as long as nothing is added */
    double next;    /* when to look again */
    bool begun;
    bool pending; /* some are added that the options do not name yet */
} weft_announced;

void weft_announced_close(weft_announced *announced, weft_context *context);
/* Looks at the reports, if that is due. True: somebody wants cuts that are not among those that there are,
 * and they are to be taken by weft_announced_take when nobody uses the present ones. A store that cannot be
 * asked is asked later: nothing depends on it. */
bool weft_announced_look(weft_announced *announced, weft_context *context, weft_store *store,
                         const weft_sync_head *head, const weft_view *view,
                         const weft_publisher_options *options);
/* Has the options name them. */
weft_status weft_announced_take(weft_announced *announced, weft_context *context,
                                weft_publisher_options *options);

#endif
