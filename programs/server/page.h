/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h: what the pages of programs/server/page have in common on this side.
 */
#ifndef WEFT_PROGRAMS_SERVER_PAGE_H
#define WEFT_PROGRAMS_SERVER_PAGE_H

#include <stdbool.h>
#include <stddef.h>

enum { PAGE_POLICY = 512 };

/* A Content-Security-Policy: the browser is to run this one script, use this one style, and ask nobody for
 * anything but what `more` allows. False if there is no SHA-256 to be had. */
bool page_policy(const char *script, size_t script_size, const char *style, size_t style_size,
                 const char *more, char policy[PAGE_POLICY]);

#endif
