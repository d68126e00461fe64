/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_rank.h: a member's side of versions in parts. It answers the coordinator's calls, and believes that
 * a version is published when the head names it with what this member has put.
 */
#ifndef WEFT_SYNC_PARTS_RANK_H
#define WEFT_SYNC_PARTS_RANK_H

#include "parts.h"

typedef struct weft_parts_rank {
    weft_parts parts;
    weft_baseline baseline;
    uint64_t number; /* of the newest call seen in this epoch */
    uint64_t turn;   /* the newest that has ended for this member */
    uint64_t heard;  /* the newest of which it has obeyed a call */
    bool missed; /* a publish has ended before it heard of a turn: that turn's failure is not the next's */
    char answered[WEFT_PART_NAME]; /* the call to join that it has answered, or "" */
    weft_store_tag tag;            /* of the call's object */
    double looked;                 /* when it was last looked for a later epoch */
    char run[WEFT_RUN_TEXT];
    uint64_t version; /* the newest known to be published */

    /* What this member has put for a version of which it is not known yet whether it is published. */
    bool made;
    bool current; /* by the publish under way; else by an earlier one */
    weft_part_edition edition;
    uint64_t made_epoch;
    uint64_t made_turn;
    uint64_t made_version;
} weft_parts_rank;

weft_status weft_parts_rank_open(weft_parts_rank *rank, weft_context *context, weft_store *store,
                                 const weft_view *view, const weft_publisher_options *options);
void weft_parts_rank_close(weft_parts_rank *rank);
weft_status weft_parts_rank_publish(weft_parts_rank *rank, const char *const *labels,
                                    weft_publish_result *result);

#endif
