/* SPDX-License-Identifier: Apache-2.0
 *
 * lab_absent.c: stands for the laboratory in a build without it (-DWEFT_LAB=OFF). Its verbs are not listed,
 * and say where they are to be had.
 */
#include "cli/command.h"

static int refuse_verb(int argc, char **argv) {
    (void)argc;
    fprintf(stderr, "%s: this weft was built without the laboratory; build with -DWEFT_LAB=ON\n", argv[0]);
    return EXIT_USAGE;
}

const weft_verb lab_verbs[] = {
    {"train", NULL, NULL, refuse_verb},
    {"demo", NULL, NULL, refuse_verb},
    {"bench", NULL, NULL, refuse_verb},
    {NULL, NULL, NULL, NULL},
};
