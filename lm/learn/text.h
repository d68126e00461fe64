/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h: small files of text that appear whole or not at all.
 */
#ifndef WEFT_LM_LEARN_TEXT_H
#define WEFT_LM_LEARN_TEXT_H

#include <weft/base.h>

/* Writes a file beside its place and moves it there; if `durable`, so that it outlasts a power cut. */
WEFT_CHECKED weft_status lm_text_write(weft_context *context, const char *path, const char *text,
                                       bool durable);

#endif
