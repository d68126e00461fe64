/* SPDX-License-Identifier: Apache-2.0
 *
 * roster.h: the tensors that a patch speaks of, in name order, and what becomes of each.
 */
#ifndef WEFT_PATCH_BUCKET_ROSTER_H
#define WEFT_PATCH_BUCKET_ROSTER_H

#include "../../base/bytes.h"
#include "../../base/context.h"

#include <weft/patch.h>

typedef struct weft_roster_entry {
    weft_tensor tensor; /* as it results; as it was, if it is removed. Without data. */
    weft_fate fate;
} weft_roster_entry;

typedef struct weft_roster {
    weft_context *context;
    weft_roster_entry *entries; /* names are owned */
    size_t count;
    size_t capacity;
} weft_roster;

void weft_roster_open(weft_roster *roster, weft_context *context);
void weft_roster_close(weft_roster *roster);
/* The way from `base` to `next`. */
weft_status weft_roster_build(weft_roster *roster, const weft_view *base, const weft_view *next);
void weft_roster_write(const weft_roster *roster, weft_writer *writer);
weft_status weft_roster_read(weft_roster *roster, weft_reader *reader);
/* The same roster for use with another context, which failures and memory then go to: a patch may be opened
 * with one context and applied with others. Nothing is owned. */
weft_roster weft_roster_with(const weft_roster *roster, weft_context *context);
/* True if every tensor is kept. */
bool weft_roster_plain(const weft_roster *roster);
/* For each entry the index of its name in the view, or -1; released by the caller. */
weft_status weft_roster_map(const weft_roster *roster, const weft_view *view, int64_t **map_out);

#endif
