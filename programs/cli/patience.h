/* SPDX-License-Identifier: Apache-2.0
 *
 * patience.h: what follows for ever meets failures: those that may heal are told once and tried again, at
 * growing intervals; those that cannot end it.
 */
#ifndef WEFT_PROGRAMS_CLI_PATIENCE_H
#define WEFT_PROGRAMS_CLI_PATIENCE_H

#include "command.h"

typedef struct weft_patience {
    uint64_t most;      /* failures in a row; 0: as many as come */
    uint64_t failures;  /* in a row */
    char trouble[1024]; /* told last */
    unsigned dice;      /* 0: not thrown yet */
} weft_patience;

/* EXIT_DONE: worth another try, now that a while has passed. */
int patience_meet(weft_patience *patience, weft_command *command, weft_status status);
/* After a success. */
void patience_restore(weft_patience *patience, weft_command *command);

#endif
