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
/* Signs what the writer holds, if there is a key, and puts it. */
weft_status weft_parts_put(weft_parts *parts, const char *key, weft_writer *writer,
                           weft_store_condition condition);
/* Checks what came from there. `size` becomes that of what was written. */
weft_status weft_parts_open_message(const weft_parts *parts, const char *key, const uint8_t *data,
                                    size_t *size);
/* The bytes of a message, checked and released by the caller. WEFT_NOT_FOUND: there is none.
 * WEFT_CHECKSUM_MISMATCH: it was damaged on its way. */
weft_status weft_parts_get(weft_parts *parts, const char *key, uint8_t **data_out, size_t *size_out);

/* A wait for somebody else, up to a deadline: pauses that grow with it, so that it lasts little longer than
 * it must. */
typedef struct weft_parts_wait {
    double start;
    double most; /* of a pause */
    double deadline;
} weft_parts_wait;

void weft_parts_wait_begin(const weft_parts *parts, double seconds, weft_parts_wait *wait);
/* Sleeps. WEFT_MORE: the deadline has passed. */
weft_status weft_parts_wait_more(weft_parts *parts, weft_parts_wait *wait);

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

#endif
