/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: the `weft` command: finds the verb and hands over.
 */
#include "base/notify.h"
#include "cli/command.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const weft_verb verbs[] = {
    {"diff", "BASE NEW -o PATCH", "make the patch from one checkpoint to another", verb_diff},
    {"apply", "BASE PATCH… -o OUT", "apply patches, to a new checkpoint or in place", verb_apply},
    {"merge", "PATCH PATCH… -o PATCH", "compose patches into one", verb_merge},
    {"convert", "IN OUT", "read and write the deltas of slime and other systems", verb_convert},
    {"inspect", "FILE", "look into a patch or a checkpoint", verb_inspect},
    {"digest", "CKPT", "name the state of a checkpoint", verb_digest},
    {"verify", "CKPT [PATCH]", "check a checkpoint, alone or against a patch", verb_verify},
    {"stats", "BASE NEW", "what changed, where, and what it costs", verb_stats},
    {"publish", "STORE CKPT", "put a checkpoint into a store, as the next version of a run", verb_publish},
    {"pull", "STORE OUT", "bring a checkpoint to the newest version, or to another", verb_pull},
    {"follow", "STORE OUT", "keep a checkpoint at the newest version", verb_follow},
    {"log", "STORE", "the history of a run, every link checked", verb_log},
    {"fleet", "STORE", "who follows, and how far behind", verb_fleet},
    {"gc", "STORE", "remove what no kept version needs", verb_gc},
    {"repair", "STORE", "find what is damaged in a store, and mend it", verb_repair},
    {"doctor", "STORE", "what a store can do, and how fast", verb_doctor},
    {"plan", "", "what a run would send and cost, full sync beside weft", verb_plan},
    {"keygen", "KEY", "make a pair of keys to sign and to check with", verb_keygen},
    {"serve", "DIR", "serve a store over HTTP or HTTPS", verb_serve},
};
enum { OWN_VERBS = sizeof verbs / sizeof verbs[0] };

/* The verbs of the command and then those of the laboratory; NULL behind the last. */
static const weft_verb *verb_at(size_t i) {
    const weft_verb *verb = i < OWN_VERBS ? &verbs[i] : &lab_verbs[i - OWN_VERBS];
    return verb->name != NULL ? verb : NULL;
}

static void print_help(FILE *stream) {
    fputs("Usage: weft VERB [OPTION…] [ARGUMENT…]\n"
          "Exact sparse patches between model checkpoints: make, apply, prove and distribute them.\n\n"
          "Verbs:\n",
          stream);
    const weft_verb *verb;
    for (size_t i = 0; (verb = verb_at(i)) != NULL; i++) {
        if (verb->summary == NULL) {
            continue;
        }
        char call[64];
        snprintf(call, sizeof call, "%s %s", verb->name, verb->arguments);
        /* "…" is three bytes wide and one column: pad by hand. */
        int columns = 0;
        for (const char *c = call; *c != 0; c++) {
            columns += ((unsigned char)*c & 0xc0) != 0x80;
        }
        fprintf(stream, "  %s%*s%s\n", call, columns < 30 ? 30 - columns : 1, "", verb->summary);
    }
    fputs("\nA CKPT (also BASE, NEW, OUT) is a safetensors file, or a directory with model.safetensors\n"
          "or model.safetensors.index.json. A PATCH may be '-' for stdin or stdout.\n"
          "A STORE is a directory, an http(s):// URL such as weft serve gives, or s3://BUCKET/PREFIX.\n\n"
          "  weft help VERB    options and examples of a verb (also weft VERB --help)\n"
          "  weft --version    the version\n"
          "  weft help --man [VERB], --config VERB, --completion bash|zsh|fish\n"
          "                    a man page, a configuration file, what shells complete\n\n"
          "Every verb takes --json, --quiet, --threads N, --progress, --no-progress, --log-format and "
          "--log-level.\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damaged or not what was promised, 4 remote.\n\n"
          "Examples:\n"
          "  weft diff step-41.safetensors step-42.safetensors -o 42.weft\n"
          "  weft apply step-41.safetensors 42.weft -o step-42.safetensors\n"
          "  weft apply --in-place worker.safetensors 42.weft\n"
          "  weft publish /srv/run-7 step-42.safetensors --label step=42\n"
          "  weft follow https://store.example/run-7 worker.safetensors\n",
          stream);
}

static const weft_verb *find_verb(const char *name) {
    const weft_verb *verb;
    for (size_t i = 0; (verb = verb_at(i)) != NULL && strcmp(verb->name, name) != 0; i++) {
    }
    return verb;
}

/* Levenshtein's distance, for names short enough to be a mistyped verb. */
static size_t edit_distance(const char *a, const char *b) {
    enum { LONGEST = 16 };
    size_t row[LONGEST + 1];
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > LONGEST || b_length > LONGEST) {
        return LONGEST;
    }
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_length];
}

static int unknown_verb(const char *name) {
    const weft_verb *nearest = &verbs[0], *verb;
    for (size_t i = 1; (verb = verb_at(i)) != NULL; i++) {
        if (verb->summary != NULL && edit_distance(name, verb->name) < edit_distance(name, nearest->name)) {
            nearest = verb;
        }
    }
    fputs("weft: there is no verb '", stderr);
    text_print(stderr, name);
    fputs("'", stderr);
    if (edit_distance(name, nearest->name) <= 2) {
        fprintf(stderr, "; did you mean '%s'?", nearest->name);
    }
    fputs("\nTry 'weft --help' for the list of verbs.\n", stderr);
    return EXIT_USAGE;
}

static int run_verb(const weft_verb *verb, int argc, char **argv) {
    static char name[32];
    snprintf(name, sizeof name, "weft %s", verb->name);
    argv[0] = name;
    return verb->run(argc, argv);
}

/* ---- man pages, completions, configuration files ---- */

/* Each verb prints what it takes in a process of its own, since its form stands in its function. */
static int describe_verb(const weft_verb *verb, manual_kind kind) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        static char word[] = "weft";
        char *arguments[] = {word, NULL};
        manual_want(kind, verb->summary);
        exit(run_verb(verb, 1, arguments));
    }
    int state = 0;
    bool ended = child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state);
    return ended ? WEXITSTATUS(state) : EXIT_FAILED;
}

/* Before, between and behind what the verbs print. */
typedef struct completion {
    const char *name;
    manual_kind kind;
    const char *begin;
    const char *verb; /* with the name and the summary; NULL: nothing */
    const char *middle;
    const char *end;
} completion;

static const completion completions[] = {
    {"bash", MANUAL_BASH,
     "# bash completion for weft; made by `weft help --completion bash`.\n"
     "_weft() {\n"
     "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} options= words= "
     "kind=\n"
     "    COMPREPLY=()\n"
     "    if [ \"$previous\" = = ]; then\n"
     "        previous=${COMP_WORDS[COMP_CWORD-2]}\n"
     "    elif [ \"$current\" = = ]; then\n"
     "        current=\n"
     "    fi\n"
     "    local verbs='help",
     " %1$s",
     "'\n"
     "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"${COMP_WORDS[1]}\" = help ]; "
     "}; then\n"
     "        mapfile -t COMPREPLY < <(compgen -W \"$verbs\" -- \"$current\")\n"
     "        return\n"
     "    fi\n"
     "    case ${COMP_WORDS[1]} in\n",
     "    esac\n"
     "    if [ -n \"$words\" ]; then\n"
     "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
     "    elif [ \"$kind\" = value ]; then\n"
     "        return\n"
     "    elif [[ $current = -* ]]; then\n"
     "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
     "    else\n"
     "        compopt -o filenames 2> /dev/null\n"
     "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
     "    fi\n"
     "}\n"
     "complete -F _weft weft\n"},
    {"zsh", MANUAL_ZSH,
     "#compdef weft\n# zsh completion for weft; made by `weft help --completion zsh`.\n"
     "_weft() {\n"
     "    local -a verbs=(\n",
     "        '%1$s:%2$s'\n",
     "    )\n"
     "    if (( CURRENT == 2 )); then\n"
     "        _describe verb verbs\n"
     "        return\n"
     "    fi\n"
     "    local verb=$words[2]\n"
     "    shift words\n"
     "    (( CURRENT-- ))\n"
     "    case $verb in\n",
     "    esac\n"
     "}\n"
     "_weft \"$@\"\n"},
    {"fish", MANUAL_FISH, "# fish completion for weft; made by `weft help --completion fish`.\n",
     "complete -c weft -n __fish_use_subcommand -f -a %1$s -d '%2$s'\n", "", ""},
};

static int print_completion(const char *shell) {
    const completion *found = NULL;
    for (size_t i = 0; i < sizeof completions / sizeof *completions; i++) {
        found = strcmp(completions[i].name, shell) == 0 ? &completions[i] : found;
    }
    if (found == NULL) {
        fputs("weft: --completion takes bash, zsh or fish\n", stderr);
        return EXIT_USAGE;
    }
    const weft_verb *verb;
    fputs(found->begin, stdout);
    for (size_t i = 0; (verb = verb_at(i)) != NULL; i++) {
        if (verb->summary != NULL) {
            printf(found->verb, verb->name, verb->summary);
        }
    }
    fputs(found->middle, stdout);
    int code = EXIT_DONE;
    for (size_t i = 0; (verb = verb_at(i)) != NULL && code == EXIT_DONE; i++) {
        code = verb->summary != NULL ? describe_verb(verb, found->kind) : EXIT_DONE;
    }
    fputs(found->end, stdout);
    return code;
}

/* Of the command itself; its verbs have pages of their own. */
static int print_own_page(void) {
    printf(".TH \"weft\" 1 \"\" \"weft %d.%d.%d\" \"weft\"\n"
           ".SH NAME\nweft \\- exact sparse patches between model checkpoints\n"
           ".SH SYNOPSIS\n\\fBweft\\fR \\fIVERB\\fR [\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n"
           ".SH DESCRIPTION\nMakes, applies, proves and distributes patches between the checkpoints of a "
           "model.\n"
           "Each verb has a page of its own, such as\n.BR weft\\-follow (1).\n.SH VERBS\n",
           WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    const weft_verb *verb;
    for (size_t i = 0; (verb = verb_at(i)) != NULL; i++) {
        if (verb->summary != NULL) {
            printf(".TP\n.BR weft\\-%s (1)\n%s\n", verb->name, verb->summary);
        }
    }
    fputs(
        ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage, 3 damaged or not what was promised, 4 remote.\n",
        stdout);
    return EXIT_DONE;
}

/* "weft help --man VERB" and its like; -1: it is none of them. */
static int describe(int argc, char **argv) {
    const char *what = argc > 2 ? argv[2] : "";
    if (strcmp(what, "--man") == 0 && argc == 3) {
        return print_own_page();
    }
    if (strcmp(what, "--completion") == 0) {
        return print_completion(argc > 3 ? argv[3] : "");
    }
    if (strcmp(what, "--man") != 0 && strcmp(what, "--config") != 0) {
        return -1;
    }
    const weft_verb *verb = argc > 3 ? find_verb(argv[3]) : NULL;
    if (verb == NULL || verb->summary == NULL) {
        return unknown_verb(argc > 3 ? argv[3] : "");
    }
    return describe_verb(verb, strcmp(what, "--man") == 0 ? MANUAL_MAN : MANUAL_CONFIG);
}

static int help_for(int argc, char **argv) {
    int described = describe(argc, argv);
    if (described >= 0) {
        return described;
    }
    if (argc < 3) {
        print_help(stdout);
        return EXIT_DONE;
    }
    const weft_verb *verb = find_verb(argv[2]);
    if (verb == NULL) {
        return unknown_verb(argv[2]);
    }
    static char help[] = "--help";
    char *arguments[] = {argv[0], help, NULL};
    return run_verb(verb, 2, arguments);
}

int main(int argc, char **argv) {
    static char version[64];
    snprintf(version, sizeof version, "weft %d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR,
             WEFT_VERSION_PATCH);
    argp_program_version = version;
    command_handle_signals();
    notify_open();
    /* Processes that share a stderr, such as trainers, must not write into each other's lines. */
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ);

    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "-?") == 0) {
        print_help(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "help") == 0) {
        return help_for(argc, argv);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("%s\n", version);
        return EXIT_DONE;
    }
    const weft_verb *verb = find_verb(argv[1]);
    if (verb == NULL) {
        return unknown_verb(argv[1]);
    }
    return run_verb(verb, argc - 1, argv + 1);
}
