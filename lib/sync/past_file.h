/* SPDX-License-Identifier: Apache-2.0
 *
 * past_file.h: a past (lib/patch/past.h) in a file, for publishers that are a process per version. It is a
 * help: a file that is lost, torn or of another run costs the leaps that it would have served for.
 */
#ifndef WEFT_SYNC_PAST_FILE_H
#define WEFT_SYNC_PAST_FILE_H

#include "../patch/past.h"

#include <weft/sync.h>

/* `version` is the last one that the past has taken in. */
weft_status weft_past_save(weft_context *context, const char *path, const char *run, uint64_t version,
                           const weft_past *past);
/* The past must be clear, and stays so on failure. */
weft_status weft_past_load(weft_context *context, const char *path, const char *run, weft_past *past,
                           uint64_t *version_out);

#endif
