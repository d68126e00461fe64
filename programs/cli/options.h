/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h: what a verb takes, as a table: each option once, with its help and the variable that it sets.
 * The table stands in the verb's function, beside the arguments that it fills. It feeds the command line,
 * and for verbs with settings the environment and a configuration file too (settings.c); help, man pages
 * and completions are made of it (manual.c).
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
    bool repeats;          /* may be given several times, and each time counts */
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
    const char *path_names; /* "store|out", as settings call them; NULL: they do not */
    char ***rest;           /* instead of `paths`: all of them, which are any number */
    size_t *rest_count;
    void (*check)(struct argp_state *state, void *input); /* of all together, at the end; or NULL */
    const char
        *settings; /* "serve": takes --config FILE, reads its table [serve], and WEFT_SERVE_…; or NULL */
} weft_form;

/* For the help of verbs that have settings. */
#define HELP_SETTINGS(verb, VERB)                                                                          \
    "\nOptions and arguments may stand in a file (--config FILE), under their names without dashes in a "  \
    "table [" verb "], and in environment variables WEFT_" VERB                                            \
    "_NAME, in capitals with '_' for '-'. The "                                                            \
    "command line comes first, then the environment, then the file. 'weft help --config " verb "' prints " \
    "such a file with all of them. Secrets are given by the names of files that hold them.\n"

/* Parses the command line by a form; `input` is for the form's check. Ends the process for --help and for
 * wrong usage, as argp does. */
error_t options_parse(const weft_form *form, int argc, char **argv, void *input);
/* Adds a table to a form. There must be room. */
void options_add(weft_form *form, const weft_option *options);

/* ---- manual.c: man pages, completions and configuration files, made of a form ---- */

typedef enum manual_kind {
    MANUAL_NONE,
    MANUAL_MAN,
    MANUAL_CONFIG,
    MANUAL_BASH,
    MANUAL_ZSH,
    MANUAL_FISH,
} manual_kind;

/* From here on options_parse prints the form in this way and ends the process. */
void manual_want(manual_kind kind, const char *summary);
bool manual_wanted(void);
void manual_print(const weft_form *form, const char *name);

/* ---- settings.c: what the command line leaves open, from elsewhere ---- */

enum { SET_OPTIONS = 256 };

typedef struct option_parsing {
    const weft_form *form;
    void *input;
    const char *config;                    /* the file; NULL: there is none */
    bool given[OPTION_SETS * SET_OPTIONS]; /* by where an option stands in the form */
} option_parsing;

size_t option_place(const weft_form *form, const option_set *set, const weft_option *option);
bool option_is_last(const weft_option *option);
/* Takes a value, which must stay where it is. `text` is NULL for a flag. */
void option_take(struct argp_state *state, option_parsing *parsing, const option_set *set,
                 const weft_option *option, char *text);
/* Takes what the environment and then the file have for options that were not given before. What is wrong
 * there ends the process, as on the command line; the message names the variable, or the file and the line.
 */
void settings_take(struct argp_state *state, option_parsing *parsing);
/* "WEFT_FOLLOW_MAX_FAILURES" of "follow" and "max-failures". */
enum { SETTINGS_VARIABLE = 96 };
void settings_variable(const char *table, const char *name, char text[SETTINGS_VARIABLE]);

#endif
