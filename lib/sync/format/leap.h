/* SPDX-License-Identifier: Apache-2.0
 *
 * leap.h: patches over several versions, as a tree.
 *
 * A leap of level 1 goes over 4 versions, one of each next level over 4 of the level below; all end at
 * multiples of their length, and only where the history begins is there a shorter one. The node of a leap
 * names its patch, if one was worth making, and what it consists of: the records of up to 4 versions, or up
 * to 4 smaller leaps. A page names the widest leaps up to its
 * version, so that whoever missed m versions finds, in O(log m) nodes, O(log m) patches that lead there.
 */
#ifndef WEFT_SYNC_FORMAT_LEAP_H
#define WEFT_SYNC_FORMAT_LEAP_H

#include "record.h"

enum {
    WEFT_LEAP_WAYS = 4,
    WEFT_LEAP_LEVELS = 8,
    WEFT_LEAPS_MAX = 2 * (WEFT_LEAP_WAYS - 1) * WEFT_LEAP_LEVELS, /* on a page */
    WEFT_LEAP_TAIL = 128, /* versions behind the last leap of a page, at most */
    WEFT_LEAP_NODE_MAX = 256 * 1024,
};

/* The versions that a leap of a level goes over. */
uint64_t weft_leap_length(unsigned level);

void weft_leaps_close(weft_leaps *leaps, weft_context *context);
weft_status weft_leaps_add(weft_leaps *leaps, weft_context *context, const weft_leap *leap);
weft_status weft_leaps_copy(weft_leaps *leaps, weft_context *context, const weft_leaps *from);
/* Adds a leap to those that follow each other: it takes the place of the smaller ones that it consists of.
 * If it does not begin where the last one ends, the older ones go: nothing would lead from them on. */
weft_status weft_ladder_add(weft_leaps *ladder, weft_context *context, const weft_leap *leap);
/* What readers would refuse about them, or NULL: see record.h. */
const char *weft_leaps_fault(const weft_leaps *leaps);
json_t *weft_leaps_format(const weft_leaps *leaps);
/* True if each begins where the one before ends, and the last ends at `version` or before it. */
bool weft_leaps_adjoin(const weft_leaps *leaps, uint64_t version);
/* Absent is empty. */
weft_status weft_leaps_parse(weft_context *context, const char *where, const json_t *json,
                             weft_leaps *leaps);

typedef struct weft_leap_node {
    weft_context *context;
    unsigned format; /* that it is written in */
    char run[WEFT_RUN_TEXT];
    uint64_t first;
    uint64_t last;
    weft_digest base;
    bool patched;
    weft_object patch;
    size_t record_count;
    weft_record records[WEFT_LEAP_WAYS]; /* level 1: all versions; above: the last one alone */
    weft_leaps parts;                    /* above level 1: the smaller leaps, ascending */
} weft_leap_node;

void weft_leap_node_open(weft_leap_node *node, weft_context *context);
void weft_leap_node_close(weft_leap_node *node);
/* The record of the version that the leap leads to. */
const weft_record *weft_leap_node_end(const weft_leap_node *node);
/* Puts the node into the store as `key`, and describes the leap. */
weft_status weft_leap_node_write(const weft_leap_node *node, weft_store *store, const char *key,
                                 weft_leap *leap);
/* The node must be open and empty. */
weft_status weft_leap_node_parse(weft_leap_node *node, const char *where, const void *data, size_t size);
/* Fetches the node of a leap, checked against its hash and against what the leap says of it. */
weft_status weft_leap_node_fetch(weft_context *context, weft_store *store, const char *run,
                                 const weft_leap *leap, weft_leap_node **node_out);
void weft_leap_node_release(weft_context *context, weft_leap_node *node);

#endif
