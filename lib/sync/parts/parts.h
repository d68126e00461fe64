/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.h: several processes that publish one version together, each the part of the model that it holds.
 *
 * Part 0, the coordinator, is the run's writer: it owns epoch, history and head. The others, members, own
 * nothing in the store; they answer its calls. All talk goes through small objects in the room `parts`,
 * found by names that are known, never by a listing:
 *
 *   parts/<epoch>/call              the coordinator's newest call; all others poll it
 *   parts/<epoch>/<call>-<index>    what a part holds, in answer to the call to join
 *   parts/<epoch>/<call>-roll       who the members are, and which of them owns each bucket
 *   parts/<epoch>/<call>-<member>   what a member has put, in answer to the call for a version
 *
 * doc/architecture/parts.md tells how a version is made and what happens when one of them dies.
 */
#ifndef WEFT_SYNC_PARTS_PARTS_H
#define WEFT_SYNC_PARTS_PARTS_H

#include "../publish/baseline.h"
#include "parts_message.h"

typedef struct weft_parts {
    weft_context *context;
    weft_store *store;
    const weft_view *view;
    const weft_publisher_options *options;
    size_t index;
    size_t count;
    double seconds; /* how much longer than this part another may take */
    char member[WEFT_PART_NAME];
    uint64_t epoch;
    char run[WEFT_RUN_TEXT]; /* "" until the epoch is known */
    weft_part_plan plan;
    weft_hash plan_hash;
    bool *held;
    bool *owned; /* NULL until there is a roll */
    weft_part_roll roll;
    char roll_name[WEFT_PART_NAME]; /* "" until there is one */
} weft_parts;

/* `options` must outlive it. */
weft_status weft_parts_open(weft_parts *parts, weft_context *context, weft_store *store,
                            const weft_view *view, const weft_publisher_options *options);
void weft_parts_close(weft_parts *parts);

/* ---- messages in the store ---- */

/* `rest` is what follows the call's name in the key. */
void weft_parts_key(const weft_parts *parts, const char *call, const char *rest, char key[WEFT_KEY_SIZE]);
/* Signs what the writer holds, if there is a key, and puts it. `once`: WEFT_CONFLICT if there is one. */
weft_status weft_parts_put(weft_parts *parts, const char *key, weft_writer *writer, bool once);
/* Checks what came from there. `size` becomes that of what was written. */
weft_status weft_parts_open_message(const weft_parts *parts, const char *key, const uint8_t *data,
                                    size_t *size);
/* A message, checked. WEFT_NOT_FOUND: there is none. WEFT_CHECKSUM_MISMATCH: it was damaged on its way. */
weft_status weft_parts_get(weft_parts *parts, const char *key, weft_received *received_out);

/* A wait for somebody else, up to a deadline. */
typedef struct weft_parts_wait {
    double start;
    double deadline;
} weft_parts_wait;

void weft_parts_wait_begin(double seconds, weft_parts_wait *wait);
/* Sleeps. WEFT_MORE: the deadline has passed. */
weft_status weft_parts_wait_more(weft_parts *parts, const weft_parts_wait *wait);

/* ---- the roll ---- */

weft_status weft_parts_hold(const weft_parts *parts, weft_writer *writer);
/* Takes over who owns what. The baseline gets room for this part's share, unless it has that. */
weft_status weft_parts_enrol(weft_parts *parts, const char *name, weft_part_roll *roll,
                             weft_baseline *baseline);

/* ---- this part of a version ---- */

typedef struct weft_part_edition {
    weft_part_manifest manifest;
    weft_spool *spool;
    weft_sums *new_sums; /* of the part's copy, once it is published */
    bool ahead;          /* the copy holds it already; the trail leads back */
} weft_part_edition;

typedef struct weft_part_task {
    weft_call_kind kind; /* PATCH or WHOLE; DONE: an anchor of what the copy holds */
    uint64_t version;
    bool sums;
    const char *const *labels; /* may be NULL */
    const weft_writer *before; /* bytes to put before the frames; NULL: none */
} weft_part_task;

/* Encodes the owned buckets and puts them into the store as one piece, unless there is nothing to put. On
 * failure the copy is as it was, but for WHOLE: that writes over the copy, which holds nothing from then
 * on, whatever becomes of it, until the version is published. */
weft_status weft_part_edition_make(weft_parts *parts, weft_baseline *baseline, const weft_part_task *task,
                                   weft_part_edition *edition);
void weft_part_edition_close(weft_part_edition *edition, weft_context *context);

/* ---- the coordinator (parts_lead.c) ----
 *
 * It gathers the members, has each put its part, checks that the parts cover the model exactly once, and
 * writes what stands around their frames. The head is its publisher's affair. */

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

/* ---- a member (parts_rank.c) ----
 *
 * It answers the coordinator's calls, and believes that a version is published when the head names it with
 * what this member has put. */

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

/* What a diff has counted, in the result of the publish. */
void weft_publish_count(weft_publish_result *result, const weft_diff_stats *stats);

#endif
