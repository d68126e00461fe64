/* SPDX-License-Identifier: Apache-2.0
 *
 * files.h: the few things that a trainer does with files beside its state: directories, and reading small
 * texts (lm/learn/text.h writes them).
 */
#ifndef WEFT_TRAIN_FILES_H
#define WEFT_TRAIN_FILES_H

#include <weft/base.h>

enum { TRAIN_PATH_SIZE = 4096 };

/* "directory/name". */
WEFT_CHECKED weft_status train_path(weft_context *context, const char *directory, const char *name,
                                    char path[TRAIN_PATH_SIZE]);
/* The same as a copy, to be released with weft_release. */
WEFT_CHECKED weft_status train_path_copy(weft_context *context, const char *directory, const char *name,
                                         char **path_out);
/* Makes a directory and those above it, unless they are there. */
WEFT_CHECKED weft_status train_make_directory(weft_context *context, const char *path);
/* A file of at most `limit` bytes, terminated; the caller's, to be released with weft_release.
 * WEFT_NOT_FOUND if there is none. */
WEFT_CHECKED weft_status train_read_text(weft_context *context, const char *path, size_t limit,
                                         char **text_out, size_t *size_out);

/* One of the files that belong to a state could not be read: says what to do about it. */
weft_status train_explain_lost(weft_context *context, weft_status status);

#endif
