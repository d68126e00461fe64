/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.c: options and arguments that come from the environment and from a configuration file. They are
 * taken by the same table as those of the command line, after it, and only where it left something open: so
 * an option that repeats comes from one place, and is not a mixture of several.
 */
#include "../base/toml.h"
#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An error of an option ends with where to find help, under a name that here is that of a file or variable.
 * Only the first line is wanted. */
static ssize_t write_first_line(void *cookie, const char *data, size_t size) {
    static bool ended;
    (void)cookie;
    const char *end = memchr(data, '\n', size);
    if (!ended) {
        fwrite(data, 1, end != NULL ? (size_t)(end - data) + 1 : size, stderr);
    }
    ended |= end != NULL;
    return (ssize_t)size;
}

/* Where a value comes from, for the messages of whoever reads it. */
typedef struct settings_source {
    struct argp_state *state;
    char *name;   /* of the state, before */
    FILE *errors; /* of the state, before */
    FILE *ours;   /* NULL: no memory, and messages do without */
    char text[4500];
} settings_source;

static void source_open(settings_source *source, struct argp_state *state) {
    const cookie_io_functions_t functions = {.write = write_first_line};
    source->state = state;
    source->name = state->name;
    source->errors = state->err_stream;
    source->ours = fopencookie(NULL, "w", functions);
    state->name = source->text;
    if (source->ours != NULL) {
        setvbuf(source->ours, NULL, _IONBF, 0);
        state->err_stream = source->ours;
    }
}

static void source_close(settings_source *source) {
    source->state->name = source->name;
    source->state->err_stream = source->errors;
    if (source->ours != NULL) {
        fclose(source->ours);
    }
}

/* ---- names ---- */

void settings_variable(const char *table, const char *name, char text[SETTINGS_VARIABLE]) {
    snprintf(text, SETTINGS_VARIABLE, "WEFT_%s_%s", table, name);
    for (char *c = text; *c != 0; c++) {
        *c = *c == '-' ? '_' : *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
    }
}

/* Which of the form's arguments is called so; -1: none. */
static int find_path(const weft_form *form, const char *name) {
    int place = 0;
    for (const char *word = form->path_names; word != NULL; place++) {
        size_t length = strcspn(word, "|");
        if (strlen(name) == length && strncmp(word, name, length) == 0) {
            return place;
        }
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
    return -1;
}

/* ---- one value ---- */

static void take_flag(struct argp_state *state, option_parsing *parsing, const option_set *set,
                      const weft_option *option, const char *text) {
    if (strcmp(text, "true") == 0) {
        option_take(state, parsing, set, option, NULL);
    } else if (strcmp(text, "false") == 0) {
        parsing->given[option_place(parsing->form, set, option)] = true;
    } else {
        argp_error(state, "%s is true or false, not '%s'", option->name, text);
    }
}

/* ---- the environment ---- */

/* The values of an option that repeats stand side by side, with spaces between them. */
static void take_words(struct argp_state *state, option_parsing *parsing, const option_set *set,
                       const weft_option *option, char *words) {
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        option_take(state, parsing, set, option, word);
    }
}

static void take_variable(settings_source *source, option_parsing *parsing, const option_set *set,
                          const weft_option *option) {
    char variable[SETTINGS_VARIABLE];
    settings_variable(parsing->form->settings, option->name, variable);
    char *text = getenv(variable);
    if (text == NULL || *text == 0) {
        return;
    }
    snprintf(source->text, sizeof source->text, "%s: %s", source->name, variable);
    if (option->flag != NULL) {
        take_flag(source->state, parsing, set, option, text);
    } else if (option->repeats) {
        take_words(source->state, parsing, set, option, text);
    } else {
        option_take(source->state, parsing, set, option, text);
    }
}

static void take_environment(settings_source *source, option_parsing *parsing) {
    for (const option_set *set = parsing->form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name != NULL && !parsing->given[option_place(parsing->form, set, option)]) {
                take_variable(source, parsing, set, option);
            }
        }
    }
}

/* ---- the file ---- */

/* The document lives as long as the process: options point into it. */
static toml_document *document;
static char *document_text;

static void read_file(settings_source *source, const char *path) {
    FILE *file = fopen(path, "re");
    snprintf(source->text, sizeof source->text, "%s: %s", source->name, path);
    if (file == NULL) {
        argp_error(source->state, "cannot open the configuration file: %s", strerror(errno));
    }
    document = malloc(sizeof *document);
    document_text = malloc(TOML_BYTES_MAX + 2);
    if (document == NULL || document_text == NULL) {
        argp_error(source->state, "no memory for the configuration file");
    }
    size_t size = fread(document_text, 1, TOML_BYTES_MAX + 1, file);
    bool failed = ferror(file) != 0;
    int error = errno;
    fclose(file);
    if (failed) {
        argp_error(source->state, "cannot read the configuration file: %s", strerror(error));
    }
    if (!toml_read(document_text, size, document)) {
        snprintf(source->text, sizeof source->text, "%s: %s:%u", source->name, path, document->line);
        argp_error(source->state, "%s", document->error);
    }
}

static const weft_option *find_option(const weft_form *form, const char *name, const option_set **set_out) {
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name != NULL && strcmp(option->name, name) == 0) {
                *set_out = set;
                return option;
            }
        }
    }
    return NULL;
}

static void check_item(struct argp_state *state, const weft_option *option, const toml_item *item) {
    if (strcmp(option->name, "config") == 0) {
        argp_error(state, "a configuration file names no other");
    }
    if (item->in_array && !option->repeats) {
        argp_error(state, "%s takes one value, not an array", item->key);
    }
    if ((option->flag != NULL) != (item->kind == TOML_BOOLEAN)) {
        argp_error(state, "%s takes %s", item->key,
                   option->flag != NULL ? "true or false" : "a text in quotes or a number");
    }
}

/* `taken` tells which options were given before the file was looked at. */
static void take_item(struct argp_state *state, option_parsing *parsing, const bool *taken,
                      const toml_item *item) {
    const option_set *set = NULL;
    const weft_option *option = find_option(parsing->form, item->key, &set);
    if (option == NULL) {
        argp_error(state, "%s has no option '%s'; weft %s --help lists them", parsing->form->settings,
                   item->key, parsing->form->settings);
        return;
    }
    check_item(state, option, item);
    if (taken[option_place(parsing->form, set, option)]) {
        return;
    }
    if (option->flag != NULL) {
        take_flag(state, parsing, set, option, item->text);
    } else {
        option_take(state, parsing, set, option, (char *)item->text);
    }
}

/* True if the item is an argument. */
static bool take_path(struct argp_state *state, option_parsing *parsing, bool told, const toml_item *item) {
    const char **into = parsing->form->paths.into;
    int place = find_path(parsing->form, item->key);
    if (place >= 0 && (item->kind != TOML_STRING || item->in_array)) {
        argp_error(state, "%s takes a text in quotes", item->key);
    }
    if (place >= 0 && !told && into[place] == NULL) {
        into[place] = item->text;
    }
    return place >= 0;
}

/* Tables of other verbs may stand beside ours. */
static void take_file(settings_source *source, option_parsing *parsing, bool told) {
    bool taken[OPTION_SETS * SET_OPTIONS];
    memcpy(taken, parsing->given, sizeof taken);
    read_file(source, parsing->config);
    for (size_t i = 0; i < document->count; i++) {
        const toml_item *item = &document->items[i];
        snprintf(source->text, sizeof source->text, "%s: %s:%u", source->name, parsing->config, item->line);
        if (*item->table == 0) {
            argp_error(source->state, "'%s' stands in no table; put [%s] above it", item->key,
                       parsing->form->settings);
        }
        if (strcmp(item->table, parsing->form->settings) == 0 &&
            !take_path(source->state, parsing, told, item)) {
            take_item(source->state, parsing, taken, item);
        }
    }
}

/* ---- all of it ---- */

static void take_path_variables(const weft_form *form) {
    char name[SETTINGS_VARIABLE / 2], variable[SETTINGS_VARIABLE];
    unsigned place = 0;
    for (const char *word = form->path_names; word != NULL; place++) {
        int length = (int)strcspn(word, "|");
        snprintf(name, sizeof name, "%.*s", length, word);
        settings_variable(form->settings, name, variable);
        const char *text = getenv(variable);
        if (text != NULL && *text != 0) {
            form->paths.into[place] = text;
        }
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
}

/* Of the arguments, the command line gives all or none: there they have no names. */
void settings_take(struct argp_state *state, option_parsing *parsing) {
    static settings_source source;
    const option_paths *paths = &parsing->form->paths;
    bool told = state->arg_num > 0;
    source_open(&source, state);
    if (!told) {
        take_path_variables(parsing->form);
    }
    take_environment(&source, parsing);
    if (parsing->config != NULL) {
        take_file(&source, parsing, told);
    }
    source_close(&source);
    while (!told && state->arg_num < paths->most && paths->into[state->arg_num] != NULL) {
        state->arg_num++;
    }
}
