/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_rank.h: a member's side of versions in parts. It answers the coordinator's calls, and believes that
 * a version is published when the head names it with what this member has put.
 */
#ifndef WEFT_SYNC_PARTS_PARTS_RANK_H
#define WEFT_SYNC_PARTS_PARTS_RANK_H

#include "parts.h"

typedef struct weft_parts_rank {
    weft_parts parts;
    weft_baseline baseline;
    uint64_t number;               /* of the newest call seen in this epoch */
    uint64_t turn;                 /* the newest that has ended for this member */
    uint64_t heard;                /* the newest of which it has obeyed a call */
    char answered[WEFT_PART_NAME]; /* the call to join that it has answered, or "" */
    char answer[WEFT_KEY_SIZE];    /* the last answer, until the coordinator has surely read it; or "" */
    /* Who joins is level with the coordinator; from then on each publish counts one on both sides. */
    uint64_t publishes;
    uint64_t joined_publish;
    uint64_t joined_turn; /* 0: it is not level with anybody */
    double wait;          /* how long the coordinator may wait for followers before it calls, in seconds */
    weft_store_tag tag;   /* of the call's object */
    double looked;        /* when it was last looked for a later epoch */
    uint64_t version;     /* the newest known to be published */

    /* What this member has put for a version of which it is not known yet whether it is published. */
    bool made;
    bool current; /* by the publish under way; else by an earlier one */
    weft_part_edition edition;
    uint64_t made_epoch;
    uint64_t made_turn;
    char made_roll[WEFT_PART_NAME];
    uint64_t made_version;
} weft_parts_rank;

weft_status weft_parts_rank_open(weft_parts_rank *rank, weft_context *context, weft_store *store,
                                 const weft_view *view, const weft_publisher_options *options);
void weft_parts_rank_close(weft_parts_rank *rank);
/* To be told of each publish before anything else, whatever becomes of it. */
void weft_parts_rank_count(weft_parts_rank *rank);
weft_status weft_parts_rank_publish(weft_parts_rank *rank, const char *const *labels,
                                    weft_publish_result *result);

#endif
