/* SPDX-License-Identifier: Apache-2.0
 *
 * meetings.h: what trainers that met in a store have left there.
 */
#ifndef WEFT_SYNC_FLEET_MEETINGS_H
#define WEFT_SYNC_FLEET_MEETINGS_H

#include <weft/sync.h>

/* Removes the meetings in which nothing was put for options->meeting_seconds, and adds them to the result;
 * those of others are counted as waiting. WEFT_UNSUPPORTED where there is no listing. */
weft_status weft_meetings_collect(weft_context *context, weft_store *store, const weft_gc_options *options,
                                  weft_gc_result *result);

#endif
