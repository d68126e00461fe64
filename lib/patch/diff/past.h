/* SPDX-License-Identifier: Apache-2.0
 *
 * past.h: what a model was a while ago, told from what it is now.
 *
 * A publisher's copy moves with every version. To make one patch over many versions it would need a second
 * copy, of the state where they begin. A past keeps only the old values of what has changed since then: it
 * grows with the changes, and never beyond a copy.
 */
#ifndef WEFT_PATCH_DIFF_PAST_H
#define WEFT_PATCH_DIFF_PAST_H

#include "trail.h"

typedef struct weft_past weft_past;

/* The contexts of the calls below take memory where the past's own does, and are told what fails; that of
 * the past may be in use elsewhere meanwhile. */

/* The present: nothing has changed yet. `view` is plain memory, and the options say how diffs of it are cut
 * into buckets; both must outlive the past. */
weft_status weft_past_create(weft_context *context, const weft_view *view, const weft_diff_options *options,
                             weft_past **past_out);
void weft_past_destroy(weft_past *past);
/* Begins anew, at the present. */
void weft_past_clear(weft_past *past);

/* The view has gone one version on, by this trail. On failure the past is of no use until it is cleared. */
weft_status weft_past_add(weft_context *context, weft_past *past, const weft_trail *trail);
/* The same for all that `newer`, which began where this past ended, has gone through. */
weft_status weft_past_join(weft_context *context, weft_past *past, const weft_past *newer);
/* All that it holds, as bytes for this machine, and back into one that was made alike and is clear. What is
 * read is checked for its bounds; that it is the right past only a digest can tell. WEFT_MALFORMED: it
 * stays clear. */
weft_status weft_past_write(const weft_past *past, const weft_sink *sink);
weft_status weft_past_read(weft_context *context, weft_past *past, weft_reader *reader);
/* Memory that it holds. */
uint64_t weft_past_bytes(const weft_past *past);

/* The patch from the past to the present. Profile, labels and files are the options' that weft_diff knows;
 * `sums` are those of the present. The state that the patch starts from is stats->base, proven by the
 * changes themselves: the caller compares it with what it should be. */
weft_status weft_past_diff(weft_context *context, const weft_past *past, const weft_diff_options *options,
                           const weft_sums *sums, const weft_sink *sink, weft_diff_stats *stats);

#endif
