/* SPDX-License-Identifier: Apache-2.0
 *
 * plain.h: heads, pages and nodes as plain JSON, for tests that look into them or forge them.
 */
#ifndef WEFT_TESTS_PLAIN_H
#define WEFT_TESTS_PLAIN_H

#include <weft/sync.h>

#include <jansson.h>

/* The JSON of an object, packed or not; what stands behind a head's is passed over. */
json_t *plain_json(const void *data, size_t size);

/* The same head in plain JSON, with a hash that fits; a signature stays, and does not fit any more. */
size_t plain_head(const void *data, size_t size, uint8_t out[WEFT_HEAD_MAX]);

#endif
