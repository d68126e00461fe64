/* SPDX-License-Identifier: Apache-2.0
 *
 * status.h: the way in for numbers that strangers return.
 *
 * A function of the caller's says weft_status and may return anything: a positive error of its own looks
 * like WEFT_MORE, and an unknown one like nothing at all. Whatever calls such a function passes the number
 * through here before anybody looks at it.
 */
#ifndef WEFT_BASE_STATUS_H
#define WEFT_BASE_STATUS_H

#include <weft/base.h>

/* WEFT_OK and known failures stay what they are; every other number is WEFT_CALLBACK_FAILED. Without a
 * text, for who cannot write one: a thread that has no context of its own. */
weft_status weft_status_from(weft_status answer);

/* The same with the text of the failure. The format names the function: "the gather function of tensor %s".
 */
weft_status weft_answer(weft_context *context, weft_status answer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* For a function that was given the context: a text that it has left says more, and stays. The caller has
 * forgotten the text before it. */
weft_status weft_answer_told(weft_context *context, weft_status answer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
