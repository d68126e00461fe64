/* SPDX-License-Identifier: Apache-2.0
 *
 * backends.h: the kinds of store that weft_store_open chooses from.
 */
#ifndef WEFT_STORE_BACKENDS_H
#define WEFT_STORE_BACKENDS_H

#include <weft/store.h>

/* What each opens is closed by its table's `close`. `options` is never NULL. */
extern const weft_store_operations weft_directory_operations;
weft_status weft_directory_open(weft_context *context, const char *root, const weft_store_options *options,
                                void **self_out);

#endif
