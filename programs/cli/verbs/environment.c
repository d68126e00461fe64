/* SPDX-License-Identifier: Apache-2.0
 *
 * environment.c: see environment.h.
 */
#include "environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const secrets[] = {
    "WEFT_TOKEN",        "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
};
static const char LABELS[] = "WEFT_LABEL_";

static bool has_name(const char *item, const char *name, size_t length) {
    return strncmp(item, name, length) == 0 && item[length] == '=';
}

static bool is_inherited(const char *item) {
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
        if (has_name(item, secrets[i], strlen(secrets[i]))) {
            return false;
        }
    }
    return strncmp(item, LABELS, sizeof LABELS - 1) != 0;
}

/* Takes the item. */
static void add(environment *environment, char *item) {
    char **items = realloc(environment->items, (environment->count + 2) * sizeof *items);
    if (items != NULL) {
        environment->items = items;
    }
    if (items == NULL || item == NULL) {
        environment->failed = true;
        free(item);
        return;
    }
    items[environment->count++] = item;
    items[environment->count] = NULL;
}

void environment_inherit(environment *environment) {
    for (char **item = environ; item != NULL && *item != NULL; item++) {
        if (is_inherited(*item)) {
            add(environment, strdup(*item));
        }
    }
}

void environment_set(environment *environment, const char *name, const char *value) {
    size_t length = strlen(name);
    char *item = NULL;
    if (asprintf(&item, "%s=%s", name, value) < 0) {
        item = NULL;
    }
    for (size_t i = 0; i < environment->count && item != NULL; i++) {
        if (has_name(environment->items[i], name, length)) {
            free(environment->items[i]);
            environment->items[i] = item;
            return;
        }
    }
    add(environment, item);
}

void environment_close(environment *environment) {
    for (size_t i = 0; i < environment->count; i++) {
        free(environment->items[i]);
    }
    free(environment->items);
}
