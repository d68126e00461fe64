/* SPDX-License-Identifier: Apache-2.0
 *
 * temporary.h: temporary files, and what killed processes left of them. A process holds a lock on each
 * temporary file that it writes: one that can be locked is a leftover. Where there are no locks, nothing is
 * swept.
 */
#ifndef WEFT_BASE_TEMPORARY_H
#define WEFT_BASE_TEMPORARY_H

#include <stdbool.h>

/* Locks a file or directory just created, for as long as the descriptor or a mapping made from it lasts.
 * False if a sweep was quicker and removed it. */
bool weft_temporary_claim(int descriptor);
/* True if `descriptor`, opened as `name` in `directory`, is a leftover. It is then locked, so the name can
 * no longer change. */
bool weft_temporary_is_leftover(int directory, const char *name, int descriptor);

#endif
