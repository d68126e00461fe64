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
/* `name` is the one that it lies under. What who reads it knows besides is left at zero. */
weft_status weft_report_parse(weft_context *context, const char *name, const void *data, size_t size,
                              weft_follower *follower);

#endif
