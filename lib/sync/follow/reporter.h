/* SPDX-License-Identifier: Apache-2.0
 *
 * reporter.h: a follower's reports to the fleet, which it never waits for.
 *
 * The follower says what it does, which costs it a copy of a few hundred bytes. A thread puts that into the
 * store when it is due. All functions but the opening take NULL for a follower that does not report.
 */
#ifndef WEFT_SYNC_FOLLOW_REPORTER_H
#define WEFT_SYNC_FOLLOW_REPORTER_H

#include "../format/report.h"

typedef struct weft_reporter weft_reporter;

/* As the options say: under which name, how often (0: by the kind of the store), and with which cuts. */
weft_status weft_reporter_open(weft_context *context, weft_store *store,
                               const weft_subscriber_options *options, weft_reporter **reporter_out);
/* Puts a last report, `ended`, if that takes no more than a second. */
void weft_reporter_close(weft_reporter *reporter);

/* A phase of a step has ended, and took so long. */
void weft_reporter_phase(weft_reporter *reporter, weft_sync_phase phase, double seconds);
/* What the follower holds and does. Nothing is put as long as `run` is empty. `news`: report it before the
 * interval has passed. */
void weft_reporter_tell(weft_reporter *reporter, const char *run, const weft_subscriber_info *info,
                        const char *state, bool news);
/* The follower's last error. It is left out of reports after an hour. */
void weft_reporter_error(weft_reporter *reporter, const char *text);

#endif
