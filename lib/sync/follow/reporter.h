/* SPDX-License-Identifier: Apache-2.0
 *
 * reporter.h: lets a follower be seen, without its ever waiting for that.
 *
 * The follower says how it fares, which costs it a copy of a few hundred bytes; a thread puts that into the
 * store in its own time. All of these take NULL for a follower that is not to be seen.
 */
#ifndef WEFT_SYNC_FOLLOW_REPORTER_H
#define WEFT_SYNC_FOLLOW_REPORTER_H

#include "../format/report.h"

typedef struct weft_reporter weft_reporter;

/* `seconds` 0: by the kind of the store. */
weft_status weft_reporter_open(weft_context *context, weft_store *store, const char *name, double seconds,
                               weft_reporter **reporter_out);
/* Says that it ends, if that takes a moment only. */
void weft_reporter_close(weft_reporter *reporter);

void weft_reporter_phase(weft_reporter *reporter, weft_sync_phase phase, double seconds);
/* Where it is. Nothing is put before it has a run. `news`: worth telling before the interval has passed. */
void weft_reporter_tell(weft_reporter *reporter, const char *run, const weft_subscriber_info *info,
                        const char *state, bool news);
/* Its last error. */
void weft_reporter_error(weft_reporter *reporter, const char *text);

#endif
