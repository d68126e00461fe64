/* SPDX-License-Identifier: Apache-2.0
 *
 * cuts.h: the cuts that a follower asks its publisher for, as a text in its report.
 */
#ifndef WEFT_SYNC_FORMAT_CUTS_H
#define WEFT_SYNC_FORMAT_CUTS_H

#include "weft/sync.h"

enum {
    WEFT_ANNOUNCED_CUTS = 64,     /* at most, of a follower, and of all together */
    WEFT_ANNOUNCED_PATTERN = 129, /* with its terminator */
    WEFT_ANNOUNCED_PARTS = 1024,
    WEFT_ANNOUNCED_STARS = 4, /* in a pattern: matching is to stay cheap */
};

/* A weft_cut with its pattern. */
typedef struct weft_announced_cut {
    char pattern[WEFT_ANNOUNCED_PATTERN];
    uint32_t dim;
    uint32_t parts;
} weft_announced_cut;

/* PATTERN:DIM:PARTS for each, with a space between them. */
weft_status weft_cuts_format(weft_context *context, const weft_cut *cuts, size_t count,
                             char text[WEFT_FOLLOWER_CUTS]);
/* False: this is not such a text, or is beyond the limits. */
bool weft_cuts_parse(const char *text, weft_announced_cut cuts[WEFT_ANNOUNCED_CUTS], size_t *count_out);

#endif
