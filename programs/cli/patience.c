/* SPDX-License-Identifier: Apache-2.0
 *
 * patience.c: failures of what follows for ever.
 */
#include "patience.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool cannot_heal(weft_status status) {
    return status == WEFT_INVALID_ARGUMENT || status == WEFT_UNSUPPORTED ||
           status == WEFT_SIGNATURE_MISMATCH || status == WEFT_WRONG_VERSION ||
           status == WEFT_REMOTE_DENIED || status == WEFT_CANCELLED;
}

/* 0.1 s, doubled up to 10 s, and then between half and all of it, so that a fleet does not come at once. */
static double back_off(weft_patience *patience) {
    double seconds = 0.1;
    for (uint64_t i = 1; i < patience->failures && seconds < 10; i++) {
        seconds *= 2;
    }
    seconds = seconds < 10 ? seconds : 10;
    if (patience->dice == 0) {
        patience->dice = (unsigned)getpid() ^ (unsigned)time(NULL);
    }
    return seconds * (0.5 + 0.5 * rand_r(&patience->dice) / (double)RAND_MAX);
}

int patience_meet(weft_patience *patience, weft_command *command, weft_status status) {
    const char *text = weft_context_error(command->context);
    text = *text != 0 ? text : weft_status_name(status);
    patience->failures++;
    bool enough = patience->most > 0 && patience->failures >= patience->most;
    if (command_interrupted() != EXIT_DONE) {
        return command_fail(command, NULL, WEFT_CANCELLED);
    }
    if (cannot_heal(status) || enough) {
        return command_fail(command, NULL, status);
    }
    if (strcmp(text, patience->trouble) != 0) {
        snprintf(patience->trouble, sizeof patience->trouble, "%s", text);
        command_error(command, EXIT_DONE, "%s; trying again", patience->trouble);
    }
    command_sleep(back_off(patience));
    return command_interrupted() == EXIT_DONE ? EXIT_DONE : command_fail(command, NULL, WEFT_CANCELLED);
}

void patience_restore(weft_patience *patience, weft_command *command) {
    if (patience->trouble[0] != 0) {
        command_note(command, "back again");
        patience->trouble[0] = 0;
    }
    patience->failures = 0;
}
