/* SPDX-License-Identifier: Apache-2.0
 *
 * secret_file.h: small files that hold a secret, or say where one is: tokens, credentials, profiles.
 */
#ifndef WEFT_STORE_HTTP_SECRET_FILE_H
#define WEFT_STORE_HTTP_SECRET_FILE_H

#include <weft/base.h>

/* Reads all of a file of at most `most` bytes, with a NUL behind them. `what` is said of it in a failure.
 * WEFT_NOT_FOUND if there is none. The text is given back with weft_secret_release. */
weft_status weft_secret_file_read(weft_context *context, const char *what, const char *path, size_t most,
                                  char **text_out, size_t *size_out);
/* Reads a file that holds one word, and white space around it at most: a token. */
weft_status weft_secret_file_word(weft_context *context, const char *what, const char *path, size_t most,
                                  char **word_out);
/* Overwrites a text before its memory is given back; NULL is nothing. */
void weft_secret_release(weft_context *context, char *text);

#endif
