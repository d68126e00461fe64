/* SPDX-License-Identifier: Apache-2.0
 *
 * lab_verbs.c: the verbs of the laboratory, and the only way from the rest of the command into it.
 */
#include "../cli/command.h"

const weft_verb lab_verbs[] = {
    {"train", "STORE --role ROLE",
     "train a small policy by reinforcement, its roles joined by a store alone", verb_train},
    {"demo", "", "a policy learns, its workers follow; with a report", verb_demo},
    {"bench", "", "this machine against its limits, in one table", verb_bench},
    {NULL, NULL, NULL, NULL},
};
