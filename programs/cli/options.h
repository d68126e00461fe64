/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h: what a verb takes, as a table: each option once, with its help and the variable that it sets.
 * The table stands in the verb's function, beside the arguments that it fills.
 */
#ifndef WEFT_PROGRAMS_CLI_OPTIONS_H
#define WEFT_PROGRAMS_CLI_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weft_option weft_option;

/* Reads a value into option->into, or ends the process with argp_error. */
typedef void option_parser(struct argp_state *state, const weft_option *option, char *text);

struct weft_option {
    const char *name;  /* without the dashes; NULL: `help` is a title */
    const char *value; /* as the help calls it; NULL: there is none */
    int group;         /* the help lists groups in order, and each by name */
    const char *help;
    /* where it goes: one of these */
    bool *flag;
    const char **text;
    uint64_t *number; /* `least` to `most`; 0 for `most` is no limit, here and in the next two */
    uint32_t *count;
    double *real;
    double *seconds;  /* "30s", above 0 */
    uint64_t *bytes;  /* "8MiB", above 0 */
    unsigned *choice; /* one of `words`, counted from `least` */
    option_parser *parse;
    void *into;
    uint64_t least;
    uint64_t most;
    const char *words;     /* "fast|small"; with `text`, what it may be */
    const char *what;      /* what it takes, if the usual words would not say */
    const char *otherwise; /* the value if none is given; NULL: there must be one */
    const char **given;    /* the option's name, once it was given */
    char letter;           /* as in -o */
};

/* A table, which ends with {0}. */
typedef struct option_set {
    const weft_option *options;
    const char **given; /* the name of one of them, once it was given; or NULL */
} option_set;

/* Of a form, with an empty one at the end. */
enum { OPTION_SETS = 8 };

/* The arguments that are no options: `least` to `most` of them. */
typedef struct option_paths {
    const char **into;
    unsigned least;
    unsigned most;
    const char *missing; /* said if there are fewer */
} option_paths;

/* Everything that a verb takes. */
typedef struct weft_form {
    const char *arguments; /* "STORE OUT", for the help */
    const char *doc;
    option_set sets[OPTION_SETS];
    option_paths paths;
    char ***rest; /* instead of `paths`: all of them, which are any number */
    size_t *rest_count;
    void (*check)(struct argp_state *state, void *input); /* of all together, at the end; or NULL */
} weft_form;

/* Parses the command line by a form; `input` is for the form's check. Ends the process for --help and for
 * wrong usage, as argp does. */
error_t options_parse(const weft_form *form, int argc, char **argv, void *input);
/* Adds a table to a form. There must be room. */
void options_add(weft_form *form, const weft_option *options);

#endif
