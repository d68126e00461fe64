/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c: see options.h. argp reads the command line and lays out the help; what it is told of options
 * is made of the tables.
 */
#include "options.h"

#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_KEY = 0x100 };

bool option_is_last(const weft_option *option) {
    return option->name == NULL && option->help == NULL;
}

size_t option_place(const weft_form *form, const option_set *set, const weft_option *option) {
    return (size_t)(set - form->sets) * SET_OPTIONS + (size_t)(option - set->options);
}

/* What argp calls an option by: its letter, or its place in the form. */
static int option_key(const weft_form *form, const option_set *set, const weft_option *option) {
    return option->letter != 0 ? option->letter : FIRST_KEY + (int)option_place(form, set, option);
}

/* "fast, small or tiny" of "fast|small|tiny". */
static void list_words(const char *words, char *text, size_t size) {
    const char *last = strrchr(words, '|');
    size_t used = 0;
    for (const char *c = words; *c != 0 && used + 5 < size; c++) {
        const char *link = c == last ? " or " : ", ";
        used += (size_t)(*c == '|' ? sprintf(text + used, "%s", link) : sprintf(text + used, "%c", *c));
    }
    text[used] = 0;
}

/* Which of the words it is, from 0. */
static unsigned find_word(struct argp_state *state, const weft_option *option, const char *text) {
    unsigned place = 0;
    for (const char *word = option->words; word != NULL; place++) {
        size_t length = strcspn(word, "|");
        if (strlen(text) == length && strncmp(word, text, length) == 0) {
            return place;
        }
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
    char list[256];
    list_words(option->words, list, sizeof list);
    argp_error(state, "--%s %s %s, not '%s'", option->name, place > 1 ? "is" : "takes", list, text);
    return 0;
}

static void refuse_value(struct argp_state *state, const weft_option *option, const char *usual,
                         const char *text) {
    argp_error(state, "--%s takes %s, not '%s'", option->name, option->what != NULL ? option->what : usual,
               text);
}

static uint64_t parse_number(struct argp_state *state, const weft_option *option, uint64_t most,
                             const char *text) {
    uint64_t value = 0;
    if (!text_parse_unsigned(text, most, &value) || value < option->least) {
        char usual[80];
        int length = snprintf(usual, sizeof usual, "a number from %llu", (unsigned long long)option->least);
        if (option->most > 0) {
            snprintf(usual + length, sizeof usual - (size_t)length, " to %llu", (unsigned long long)most);
        }
        refuse_value(state, option, usual, text);
    }
    return value;
}

static double parse_real(struct argp_state *state, const weft_option *option, const char *text) {
    char *end = NULL;
    double value = strtod(text, &end);
    double least = (double)option->least, most = option->most > 0 ? (double)option->most : 1e9;
    if (end == text || *end != 0 || !(value >= least && value <= most)) {
        char usual[80];
        snprintf(usual, sizeof usual, "a number from %g to %g", least, most);
        refuse_value(state, option, usual, text);
    }
    return value;
}

static void set_option(struct argp_state *state, const weft_option *option, char *text) {
    if (option->flag != NULL) {
        *option->flag = true;
    } else if (option->choice != NULL) {
        *option->choice = (unsigned)option->least + find_word(state, option, text);
    } else if (option->text != NULL) {
        if (option->words != NULL) {
            (void)find_word(state, option, text);
        }
        *option->text = text;
    } else if (option->number != NULL) {
        *option->number = parse_number(state, option, option->most > 0 ? option->most : INT64_MAX, text);
    } else if (option->count != NULL) {
        *option->count =
            (uint32_t)parse_number(state, option, option->most > 0 ? option->most : UINT32_MAX, text);
    } else if (option->real != NULL) {
        *option->real = parse_real(state, option, text);
    } else if (option->seconds != NULL) {
        if (!text_parse_seconds(text, option->seconds) || *option->seconds == 0) {
            refuse_value(state, option, "a length of time such as 0.5, 30s or 15m", text);
        }
    } else if (option->bytes != NULL) {
        if (!text_parse_bytes(text, option->bytes) || *option->bytes == 0) {
            refuse_value(state, option, "a size such as 8MiB", text);
        }
    } else {
        option->parse(state, option, text);
    }
}

void option_take(struct argp_state *state, option_parsing *parsing, const option_set *set,
                 const weft_option *option, char *text) {
    set_option(state, option, text);
    parsing->given[option_place(parsing->form, set, option)] = true;
    if (option->given != NULL) {
        *option->given = option->name;
    }
    if (set->given != NULL) {
        *set->given = option->name;
    }
}

static error_t parse_argument(const weft_form *form, struct argp_state *state, char *argument) {
    if (form->rest != NULL) {
        /* argp moves the arguments together at the end of argv; they are taken all at once */
        return ARGP_ERR_UNKNOWN;
    }
    if (form->paths.most == 0) {
        argp_error(state, "there are no arguments, only options: '%s'", argument);
    } else if (state->arg_num >= form->paths.most) {
        argp_error(state, "too many arguments, from '%s' on", argument);
    } else {
        form->paths.into[state->arg_num] = argument;
    }
    return 0;
}

static error_t parse_key(int key, char *argument, struct argp_state *state) {
    option_parsing *parsing = state->input;
    const weft_form *form = parsing->form;
    switch (key) {
    case ARGP_KEY_ARG:
        return parse_argument(form, state, argument);
    case ARGP_KEY_ARGS:
        *form->rest = state->argv + state->next;
        *form->rest_count = (size_t)(state->argc - state->next);
        return 0;
    case ARGP_KEY_END:
        if (form->settings != NULL) {
            settings_take(state, parsing);
        }
        if (form->rest == NULL && state->arg_num < form->paths.least) {
            argp_error(state, "%s", form->paths.missing);
        }
        if (form->check != NULL) {
            form->check(state, parsing->input);
        }
        return 0;
    default:
        break;
    }
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name != NULL && key == option_key(form, set, option)) {
                option_take(state, parsing, set, option,
                            argument != NULL ? argument : (char *)option->otherwise);
                return 0;
            }
        }
    }
    return ARGP_ERR_UNKNOWN;
}

static error_t parse_form(option_parsing *parsing, int argc, char **argv) {
    const weft_form *form = parsing->form;
    struct argp_option *told = calloc(OPTION_SETS * SET_OPTIONS + 1, sizeof *told);
    if (told == NULL) {
        return ENOMEM;
    }
    struct argp_option *next = told;
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            *next++ = (struct argp_option){
                .name = option->name,
                .key = option->name != NULL ? option_key(form, set, option) : 0,
                .arg = option->value,
                .flags = option->otherwise != NULL ? OPTION_ARG_OPTIONAL : 0,
                .doc = option->help,
                .group = option->group,
            };
        }
    }
    const struct argp argp = {told, parse_key, form->arguments, form->doc, NULL, NULL, NULL};
    error_t error = argp_parse(&argp, argc, argv, 0, NULL, parsing);
    free(told);
    return error;
}

error_t options_parse(const weft_form *form, int argc, char **argv, void *input) {
    weft_form whole = *form;
    option_parsing parsing = {.form = &whole, .input = input};
    const weft_option config[] = {
        {"config", "FILE", 91, "Take what is not given here from FILE; see below", .text = &parsing.config},
        {0},
    };
    if (form->settings != NULL) {
        options_add(&whole, config);
    }
    if (manual_wanted()) {
        manual_print(&whole, argv[0]);
    }
    return parse_form(&parsing, argc, argv);
}

void options_add(weft_form *form, const weft_option *options) {
    option_set *set = form->sets;
    while (set->options != NULL) {
        set++;
    }
    set->options = options;
}
