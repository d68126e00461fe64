/* SPDX-License-Identifier: Apache-2.0
 *
 * environment.h: the environment of a command that we run. It is put together on the side: other threads
 * read ours at any time, and nothing may be changed in there once they run.
 */
#ifndef WEFT_PROGRAMS_CLI_VERBS_ENVIRONMENT_H
#define WEFT_PROGRAMS_CLI_VERBS_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct environment {
    char **items; /* "NAME=VALUE", ended by NULL */
    size_t count;
    bool failed; /* no memory; it sticks */
} environment;

/* What we were given, without what is ours to know: tokens and keys of the store. Labels that somebody else
 * has set are left out too. */
void environment_inherit(environment *environment);
/* The last value of a name counts. */
void environment_set(environment *environment, const char *name, const char *value);
void environment_close(environment *environment);

#endif
