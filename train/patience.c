/* SPDX-License-Identifier: Apache-2.0
 *
 * patience.c: see patience.h.
 */
#include "patience.h"

#include "../lib/base/clock.h"
#include "../lib/base/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

static const double FIRST_SECONDS = 0.1;
static const double LONGEST_SECONDS = 5;

void train_note(const train_watch *watch, const char *format, ...) {
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    watch->note(watch->opaque, text);
}

void train_warn(const train_watch *watch, const char *format, ...) {
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    watch->warn(watch->opaque, text);
}

void train_patience_open(train_patience *patience, weft_context *context, const train_watch *watch,
                         double seconds) {
    *patience = (train_patience){
        .context = context,
        .watch = watch,
        .seconds = seconds,
        .since = weft_clock_now(),
    };
}

void train_patience_calm(train_patience *patience) {
    if (patience->trouble[0] != 0) {
        train_note(patience->watch, "back again");
        patience->trouble[0] = 0;
    }
    patience->failures = 0;
    patience->since = weft_clock_now();
}

/* Neither time nor another attempt changes these. */
static bool is_final(weft_status status) {
    return status == WEFT_INVALID_ARGUMENT || status == WEFT_UNSUPPORTED || status == WEFT_CONFLICT ||
           status == WEFT_SIGNATURE_MISMATCH || status == WEFT_WRONG_VERSION ||
           status == WEFT_REMOTE_DENIED || status == WEFT_NO_MEMORY || status == WEFT_CANCELLED;
}

weft_status train_patience_bear(train_patience *patience, weft_status status) {
    char text[sizeof patience->trouble];
    const char *error = weft_context_error(patience->context);
    snprintf(text, sizeof text, "%s", error[0] != 0 ? error : weft_status_name(status));
    patience->failures++;
    if (is_final(status) || weft_clock_now() - patience->since > patience->seconds) {
        return status;
    }
    if (strcmp(text, patience->trouble) != 0) {
        memcpy(patience->trouble, text, sizeof text);
        train_warn(patience->watch, "%s; trying again", text);
    }
    weft_context_clear(patience->context);
    double pause = weft_clock_backoff(FIRST_SECONDS, LONGEST_SECONDS, patience->failures);
    return weft_clock_sleep(patience->context, pause * weft_clock_jitter());
}

weft_status train_patience_try(train_patience *patience, weft_status (*attempt)(void *opaque),
                               void *opaque) {
    weft_status status = attempt(opaque);
    while (status != WEFT_OK) {
        status = train_patience_bear(patience, status);
        if (status != WEFT_OK) {
            return status;
        }
        status = attempt(opaque);
    }
    return WEFT_OK;
}

weft_status train_patience_wait(train_patience *patience, double seconds, const char *what) {
    double waited = weft_clock_now() - patience->since;
    if (waited > patience->seconds) {
        return weft_fail(patience->context, WEFT_REMOTE_FAILED,
                         "nothing has come for %.0f s: %s; --patience says how long to wait", waited, what);
    }
    return weft_clock_sleep(patience->context, seconds * weft_clock_jitter());
}
