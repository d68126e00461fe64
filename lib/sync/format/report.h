/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h: what a follower tells of itself, as it lies in the store. doc/FORMAT.md specifies the JSON.
 */
#ifndef WEFT_SYNC_FORMAT_REPORT_H
#define WEFT_SYNC_FORMAT_REPORT_H

#include "record.h"

enum { WEFT_REPORT_MAX = 2048 };

/* The room of the store. */
#define WEFT_REPORT_ROOM "followers"

/* Where `weft serve` takes many reports at once, and gives all of them. */
#define WEFT_REPORT_BATCH_KEY "v1/followers"
/* Of one line of a batch, and of all that are put at once. */
enum { WEFT_REPORT_LINE_MAX = WEFT_REPORT_MAX + 64, WEFT_REPORT_BATCH_MAX = 512 << 10 };

/* Bounds of an interval, in seconds. */
#define WEFT_REPORT_SHORTEST 1.0
#define WEFT_REPORT_LONGEST 1200.0

/* The key under which it lies. The name must be valid. */
void weft_report_key(const char *name, char key[WEFT_KEY_SIZE]);
/* The name in such a key, or NULL if it is none. */
const char *weft_report_name(const char *key);
/* The error's text may be anything; what cannot be written down is replaced. */
weft_status weft_report_format(weft_context *context, const weft_follower *follower,
                               uint8_t data[WEFT_REPORT_MAX], size_t *size_out);
/* `name` is the one that it lies under; NULL: any. What who reads it knows besides is left at zero. */
weft_status weft_report_parse(weft_context *context, const char *name, const void *data, size_t size,
                              weft_follower *follower);

/* A line of a batch, with its line feed: a report, and how many seconds ago it came. */
weft_status weft_report_line_format(weft_context *context, const weft_follower *follower, double age,
                                    char line[WEFT_REPORT_LINE_MAX], size_t *size_out);
/* The next line of what is left of a batch, and what is left after it. WEFT_MALFORMED: it is none, and nor
 * is the rest if `left` is still what it was. */
weft_status weft_report_line_parse(weft_context *context, const char **text, size_t *left,
                                   weft_follower *follower, double *age_out);

#endif
