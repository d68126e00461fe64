/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_gc.c: `weft gc STORE`.
 */
#include "../remote.h"

static const char doc[] =
    "Remove from STORE what no kept version needs.\v" HELP_STORE
    "\nThe publisher decides which versions are kept (weft publish --keep-anchors): those since the oldest "
    "kept anchor. Objects of older versions are removed when they have not been needed for the grace "
    "period, so that a worker that is fetching one can finish. The store's own clock decides. Where a "
    "server gives no dates, what would have to wait stays, and --grace 0 removes it at once. In a "
    "directory, in S3 and through weft serve, leftovers of failed publishes are removed too. The history "
    "itself stays: weft log still shows every version.\n"
    "\nMay run at any time, beside publishers, however long one of them was stopped, and followers; once "
    "an hour is often enough.\n" HELP_TRUST "\nExamples:\n"
    "  weft gc /srv/run-7 --dry-run\n"
    "  weft gc /srv/run-7 --grace 1d\n"
    "  weft gc https://store.example/run-7 --token-file ~/.weft-token --json\n" HELP_REMOTE_EXIT_CODES;

typedef struct gc_arguments {
    weft_command command;
    weft_remote remote;
    const char *store;
    double grace_seconds;
    bool dry_run;
    bool keep_followers;
    double meeting_seconds;
    json_t *removed; /* NULL: each is printed */
} gc_arguments;

static void parse_grace(struct argp_state *state, const weft_option *option, char *text) {
    if (!text_parse_seconds(text, option->into)) {
        argp_error(state, "--grace takes a length of time such as 30s, 15m, 2h or 1d, not '%s'", text);
    }
}

static void on_removed(void *opaque, const char *key, uint64_t bytes) {
    gc_arguments *arguments = opaque;
    weft_command *command = &arguments->command;
    progress_clear(&command->progress);
    if (arguments->removed != NULL) {
        json_t *json = json_object();
        json_object_set_new(json, "key", json_string(key));
        json_object_set_new(json, "bytes", bytes > 0 ? json_count(bytes) : json_null());
        json_array_append_new(arguments->removed, json);
    } else if (!command->quiet) {
        char text[TEXT_SIZE];
        printf("%s  %9s  %s\n", arguments->dry_run ? "would remove" : "removed",
               bytes > 0 ? text_bytes(bytes, text) : "", key);
    }
}

/* Why nothing, or less, has gone. */
static void print_reasons(const weft_gc_result *result) {
    if (result->unsettled) {
        puts("a publisher has taken over the run: nothing is removed before its first version; run weft gc "
             "again after that");
    }
    if (result->ageless) {
        puts("this store does not tell how old an object is: what has to wait stays; --grace 0 removes it "
             "without waiting, also from under a worker that is just fetching it");
    }
}

static int print_result(gc_arguments *arguments, const weft_gc_result *result) {
    weft_command *command = &arguments->command;
    progress_clear(&command->progress);
    if (arguments->removed != NULL) {
        json_t *json = json_object();
        json_object_set_new(json, "dry_run", json_boolean(arguments->dry_run));
        json_object_set_new(json, "objects", json_count(result->objects));
        json_object_set_new(json, "bytes", json_count(result->bytes));
        json_object_set_new(json, "waiting", json_count(result->waiting));
        json_object_set_new(json, "oldest", json_count(result->oldest));
        json_object_set_new(json, "follower",
                            result->follower > 0 ? json_count(result->follower) : json_null());
        json_object_set_new(json, "ageless", json_boolean(result->ageless));
        json_object_set_new(json, "unsettled", json_boolean(result->unsettled));
        json_object_set(json, "removed", arguments->removed);
        return command_print_json(command, stdout, json);
    }
    if (!command->quiet) {
        char text[TEXT_SIZE];
        printf("%s%llu object%s, %s or more; %llu waiting for the grace period to end; versions since %llu "
               "are kept",
               arguments->dry_run ? "would remove " : "removed ", (unsigned long long)result->objects,
               result->objects == 1 ? "" : "s", text_bytes(result->bytes, text),
               (unsigned long long)result->waiting, (unsigned long long)result->oldest);
        if (result->follower > 0) {
            printf(", and the patches since %llu for a follower that is there",
                   (unsigned long long)result->follower);
        }
        putchar('\n');
        print_reasons(result);
    }
    return EXIT_DONE;
}

static int run(void *input) {
    gc_arguments *arguments = input;
    weft_command *command = &arguments->command;
    int code = remote_open(&arguments->remote, arguments->store);
    if (code != EXIT_DONE) {
        return code;
    }
    if (command->json && (arguments->removed = json_array()) == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the JSON result");
    }
    const weft_gc_options chosen = {
        .size = sizeof chosen,
        .trusted = arguments->remote.trusted,
        .grace_seconds = arguments->grace_seconds,
        .dry_run = arguments->dry_run,
        .keep_followers = arguments->keep_followers,
        .meeting_seconds = arguments->meeting_seconds,
        .removed = on_removed,
        .opaque = arguments,
    };
    weft_gc_result result = {.size = sizeof result};
    weft_status status = weft_gc_run(command->context, arguments->remote.store, &chosen, &result);
    code = status < 0 ? command_fail(command, NULL, status) : print_result(arguments, &result);
    json_decref(arguments->removed);
    return code;
}

int verb_gc(int argc, char **argv) {
    gc_arguments arguments = {.grace_seconds = -1};
    const weft_option options[] = {
        {"grace", "TIME", 1,
         "Leave what was still needed so short a time ago, by the store's clock: 30s, 15m, 2h, 1d "
         "(default: 1h)",
         .parse = parse_grace, .into = &arguments.grace_seconds},
        {"keep-followers", NULL, 1,
         "Keep the patches that a live follower needs to catch up; see weft fleet",
         .flag = &arguments.keep_followers},
        {"meetings", "AGE", 1,
         "Remove as well what trainers that met in STORE have left (loco/), if none of them has put "
         "anything "
         "for AGE, such as 7d: they cannot go on after that",
         .seconds = &arguments.meeting_seconds, .what = "an age such as 2h or 7d"},
        {"dry-run", NULL, 1, "Only tell what would be removed", .flag = &arguments.dry_run},
        {0},
    };
    const weft_form form = {
        "STORE", doc, {{options, NULL}}, .paths = {&arguments.store, 1, 1, "give a store"}};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
