/* SPDX-License-Identifier: Apache-2.0
 *
 * manual.c: what is made of a verb's form besides the help of argp: a man page, what shells complete, and a
 * configuration file with all options in it. The build calls it for each verb and installs the result.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

/* ---- man pages ---- */

/* A backslash, and a dot or quote at the start of a line, mean something to troff; a dash is one to copy.
 */
static void print_roff(FILE *out, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        bool first = i == 0 || text[i - 1] == '\n';
        if (first && (text[i] == '.' || text[i] == '\'')) {
            fputs("\\&", out);
        }
        if (text[i] == '\\') {
            fputs("\\e", out);
        } else if (text[i] == '-') {
            fputs("\\-", out);
        } else {
            putc(text[i], out);
        }
    }
}

static void print_bold(FILE *out, const char *text) {
    fputs("\\fB", out);
    print_roff(out, text, strlen(text));
    fputs("\\fR", out);
}

static void print_italic(FILE *out, const char *text) {
    fputs("\\fI", out);
    print_roff(out, text, strlen(text));
    fputs("\\fR", out);
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* A line of the help: a paragraph, a title, or one that keeps its shape since it begins with blanks. */
static void print_line(FILE *out, const char *line, size_t length, bool *shaped) {
    bool blank = length > 0 && line[0] == ' ';
    if (blank != *shaped) {
        fputs(blank ? ".nf\n.RS 2\n" : ".RE\n.fi\n", out);
        *shaped = blank;
    }
    if (begins(line, "Examples:") || begins(line, "Example:")) {
        fputs(".SH EXAMPLES\n", out);
    } else if (begins(line, "Exit codes: ")) {
        fputs(".SH EXIT STATUS\n", out);
        print_roff(out, line + 12, length - 12);
        putc('\n', out);
    } else if (length > 0) {
        fputs(blank ? "" : ".PP\n", out);
        print_roff(out, line, length);
        putc('\n', out);
    }
}

static void print_lines(FILE *out, const char *text, size_t length) {
    bool shaped = false;
    for (const char *end = text + length; text < end;) {
        size_t size = strcspn(text, "\n\v");
        size = size < (size_t)(end - text) ? size : (size_t)(end - text);
        print_line(out, text, size, &shaped);
        text += size + 1;
    }
    if (shaped) {
        fputs(".RE\n.fi\n", out);
    }
}

static void print_option(FILE *out, const weft_option *option) {
    fputs(".TP\n", out);
    if (option->letter != 0) {
        const char letter[] = {'-', option->letter, 0};
        print_bold(out, letter);
        fputs(", ", out);
    }
    fputs("\\fB\\-\\-", out);
    print_roff(out, option->name, strlen(option->name));
    fputs("\\fR", out);
    if (option->value != NULL) {
        fputs(option->otherwise != NULL ? "[=" : "=", out);
        print_italic(out, option->value);
        fputs(option->otherwise != NULL ? "]" : "", out);
    }
    putc('\n', out);
    print_roff(out, option->help, strlen(option->help));
    putc('\n', out);
}

static void print_options(FILE *out, const weft_form *form) {
    int most = 0;
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            most = option->group > most ? option->group : most;
        }
    }
    for (int group = 0; group <= most; group++) {
        for (const option_set *set = form->sets; set->options != NULL; set++) {
            for (const weft_option *option = set->options; !option_is_last(option); option++) {
                if (option->group == group && option->name == NULL) {
                    fputs(".SS ", out);
                    print_roff(out, option->help, strcspn(option->help, ":"));
                    putc('\n', out);
                } else if (option->group == group) {
                    print_option(out, option);
                }
            }
        }
    }
}

static void print_synopsis(FILE *out, const char *name, const char *arguments) {
    fputs(".SH SYNOPSIS\n", out);
    for (const char *line = arguments != NULL ? arguments : ""; line != NULL;) {
        size_t length = strcspn(line, "\n");
        print_bold(out, name);
        fputs(" [\\fIOPTION\\fR...] ", out);
        print_roff(out, line, length);
        putc('\n', out);
        line = line[length] == '\n' ? line + length + 1 : NULL;
        fputs(line != NULL ? ".br\n" : "", out);
    }
}

static void print_man(FILE *out, const weft_form *form, const char *name, const char *summary) {
    char title[64];
    snprintf(title, sizeof title, "%s", name);
    for (char *c = title; *c != 0; c++) {
        *c = *c == ' ' ? '-' : *c;
    }
    fprintf(out, ".TH \"%s\" 1 \"\" \"weft %d.%d.%d\" \"weft\"\n.SH NAME\n", title, WEFT_VERSION_MAJOR,
            WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    print_roff(out, title, strlen(title));
    fprintf(out, " \\- %s\n", summary);
    print_synopsis(out, name, form->arguments);
    fputs(".SH DESCRIPTION\n", out);
    const char *more = strchr(form->doc, '\v');
    size_t brief = more != NULL ? (size_t)(more - form->doc) : strlen(form->doc);
    print_lines(out, form->doc, brief);
    fputs(".SH OPTIONS\n", out);
    print_options(out, form);
    if (more != NULL) {
        fputs(".SH NOTES\n", out);
        print_lines(out, more + 1, strlen(more + 1));
    }
    fputs(".SH SEE ALSO\n.BR weft (1)\n", out);
}

/* ---- configuration files ---- */

static void print_comment(FILE *out, const char *text) {
    int column = 0;
    for (const char *word = text; *word != 0;) {
        int length = (int)strcspn(word, " ");
        if (column == 0 || column + 1 + length > 98) {
            fputs(column == 0 ? "#" : "\n#", out);
            column = 1;
        }
        fprintf(out, " %.*s", length, word);
        column += 1 + length;
        word += length + (word[length] == ' ');
    }
    putc('\n', out);
}

static void print_setting(FILE *out, const char *table, const weft_option *option) {
    char variable[SETTINGS_VARIABLE];
    settings_variable(table, option->name, variable);
    putc('\n', out);
    print_comment(out, option->help);
    fprintf(out, "# (%s)\n", variable);
    if (option->flag != NULL) {
        fprintf(out, "# %s = true\n", option->name);
    } else if (option->repeats) {
        fprintf(out, "# %s = [\"%s\"]\n", option->name, option->value);
    } else if (option->number != NULL || option->count != NULL || option->real != NULL) {
        fprintf(out, "# %s = %s\n", option->name, option->value);
    } else {
        fprintf(out, "# %s = \"%s\"\n", option->name, option->value);
    }
}

static void print_config(FILE *out, const weft_form *form) {
    if (form->settings == NULL) {
        fputs("weft: this verb takes no configuration file; serve and follow do\n", stderr);
        exit(EXIT_USAGE);
    }
    fprintf(
        out,
        "# What `weft %s --config FILE` takes. Remove the '#' before a name, and give a value.\n\n[%s]\n",
        form->settings, form->settings);
    for (const char *word = form->path_names; word != NULL;) {
        int length = (int)strcspn(word, "|");
        fprintf(out, "# %.*s = \"\"\n", length, word);
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name != NULL && strcmp(option->name, "config") != 0) {
                print_setting(out, form->settings, option);
            }
        }
    }
}

/* ---- completions ---- */

/* Of a value that is a path, shells offer files. */
static bool is_path(const char *value) {
    return strcmp(value, "FILE") == 0 || strcmp(value, "DIR") == 0 || strcmp(value, "PATH") == 0;
}

/* "--profile=" or "--quiet": what an option is called, a line for each, for the scripts below. */
static void print_bash(FILE *out, const weft_form *form, const char *verb) {
    fprintf(out, "        %s)\n            options='--help", verb);
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name != NULL) {
                fprintf(out, " --%s", option->name);
            }
        }
    }
    fputs("'\n            case $previous in\n", out);
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name != NULL && option->words != NULL) {
                fprintf(out, "                --%s) words='", option->name);
                for (const char *c = option->words; *c != 0; c++) {
                    putc(*c == '|' ? ' ' : *c, out);
                }
                fputs("' ;;\n", out);
            } else if (option->name != NULL && option->value != NULL && !is_path(option->value)) {
                fprintf(out, "                --%s) kind=value ;;\n", option->name);
            }
        }
    }
    fputs("            esac ;;\n", out);
}

/* Text for zsh and fish, between single quotes. */
static void print_quoted(FILE *out, const char *text, const char *escaped) {
    for (; *text != 0; text++) {
        if (*text == '\'') {
            fputs("'\\''", out);
        } else {
            fputs(strchr(escaped, *text) != NULL ? "\\" : "", out);
            putc(*text, out);
        }
    }
}

static void print_zsh(FILE *out, const weft_form *form, const char *verb) {
    fprintf(out, "        %s) _arguments", verb);
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name == NULL) {
                continue;
            }
            fprintf(out, " \\\n            '%s--%s%s[", option->repeats ? "*" : "", option->name,
                    option->value != NULL ? "=" : "");
            print_quoted(out, option->help, "[]\\");
            putc(']', out);
            if (option->words != NULL) {
                fprintf(out, ":%s:(", option->value);
                for (const char *c = option->words; *c != 0; c++) {
                    putc(*c == '|' ? ' ' : *c, out);
                }
                putc(')', out);
            } else if (option->value != NULL) {
                putc(':', out);
                print_quoted(out, option->value, ":\\");
                fputs(is_path(option->value) ? ":_files" : ": ", out);
            }
            putc('\'', out);
        }
    }
    fputs(" \\\n            '*:file:_files' ;;\n", out);
}

static void print_fish(FILE *out, const weft_form *form, const char *verb) {
    for (const option_set *set = form->sets; set->options != NULL; set++) {
        for (const weft_option *option = set->options; !option_is_last(option); option++) {
            if (option->name == NULL) {
                continue;
            }
            fprintf(out, "complete -c weft -n '__fish_seen_subcommand_from %s' -l %s", verb, option->name);
            if (option->letter != 0) {
                fprintf(out, " -s %c", option->letter);
            }
            if (option->words != NULL) {
                fputs(" -x -a '", out);
                for (const char *c = option->words; *c != 0; c++) {
                    putc(*c == '|' ? ' ' : *c, out);
                }
                putc('\'', out);
            } else if (option->value != NULL) {
                fputs(is_path(option->value) ? " -r -F" : " -x", out);
            }
            fputs(" -d '", out);
            for (const char *c = option->help; *c != 0; c++) {
                fputs(*c == '\'' || *c == '\\' ? "\\" : "", out);
                putc(*c, out);
            }
            fputs("'\n", out);
        }
    }
}

/* ---- which ---- */

static manual_kind wanted;
static const char *wanted_summary;

void manual_want(manual_kind kind, const char *summary) {
    wanted = kind;
    wanted_summary = summary;
}

bool manual_wanted(void) {
    return wanted != MANUAL_NONE;
}

void manual_print(const weft_form *form, const char *name) {
    const char *verb = strchr(name, ' ') != NULL ? strchr(name, ' ') + 1 : name;
    switch (wanted) {
    case MANUAL_MAN:
        print_man(stdout, form, name, wanted_summary);
        break;
    case MANUAL_CONFIG:
        print_config(stdout, form);
        break;
    case MANUAL_BASH:
        print_bash(stdout, form, verb);
        break;
    case MANUAL_ZSH:
        print_zsh(stdout, form, verb);
        break;
    case MANUAL_FISH:
        print_fish(stdout, form, verb);
        break;
    case MANUAL_NONE:
        break;
    }
    exit(fflush(stdout) == 0 ? EXIT_DONE : EXIT_FAILED);
}
