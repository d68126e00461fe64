/* SPDX-License-Identifier: Apache-2.0
 *
 * pressure.h: back-pressure: a publisher that waits for its followers.
 */
#ifndef WEFT_SYNC_PRESSURE_H
#define WEFT_SYNC_PRESSURE_H

#include "head.h"

/* Waits until nobody is too far behind the version after the head's, as the options say. Sets
 * `waited_seconds` and `overtaken`. */
weft_status weft_pressure_wait(weft_context *context, weft_store *store, const weft_sync_head *head,
                               const weft_publisher_options *options, weft_publish_result *result);

#endif
