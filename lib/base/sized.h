/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.h: structures that cross the public API and begin with their size (see base.h).
 *
 * The program may have been built against an older or a newer header, so what it passes may be shorter or
 * longer than what this library knows. Every public function that takes such a structure copies it here
 * first, and works on its own copy.
 */
#ifndef WEFT_BASE_SIZED_H
#define WEFT_BASE_SIZED_H

#include <weft/base.h>

/* Copies `given`, or all defaults if that is NULL, to `own`, whose size is `size`. What `given` does not
 * have is zero. WEFT_UNSUPPORTED if it sets something that this library does not know. `what` is the name
 * of the type. */
weft_status weft_sized_read(weft_context *context, const void *given, void *own, size_t size,
                            const char *what);

/* WEFT_INVALID_ARGUMENT if `given`, which may be NULL, cannot be the size of a result. To be asked before
 * anything is done. */
weft_status weft_sized_check(weft_context *context, const void *given, const char *what);

/* Copies as much of `own` to `given` as the program has room for. Nothing is written to NULL, or to what
 * weft_sized_check refuses. */
void weft_sized_write(const void *own, void *given, size_t size);

#endif
