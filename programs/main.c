/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: the `weft` command: finds the verb and hands over.
 */
#include "cli/command.h"

#include <stdlib.h>
#include <string.h>

static const weft_verb verbs[] = {
    {"diff", "BASE NEW -o PATCH", "make the patch from one checkpoint to another", verb_diff},
    {"apply", "BASE PATCH… -o OUT", "apply patches, to a new checkpoint or in place", verb_apply},
    {"merge", "PATCH PATCH… -o PATCH", "compose patches into one", verb_merge},
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
          "  weft --version    the version\n\n"
          "Every verb takes --json, --quiet, --threads N, --progress and --no-progress.\n"
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

static int help_for(int argc, char **argv) {
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
