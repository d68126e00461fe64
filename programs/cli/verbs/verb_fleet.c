/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_fleet.c: `weft fleet STORE`.
 */
#include "../remote.h"

#include <errno.h>
#include <string.h>

static const char doc[] =
    "Show the followers of the run in STORE, by their reports; the one that is most behind comes "
    "first.\v" HELP_STORE
    "\nWhere the store is a web server, it must be a weft serve: others have no listing.\n"
    "\nColumns: the name; the version that the follower holds; how many versions, and how much older, that "
    "is than the newest; what it does (waiting, fetching, prepared, failed, ended), or \"silent\" if it "
    "was not heard of for three of its intervals; its last pause; how long ago it was heard of; and its "
    "last error.\n"
    "\nReports are untrusted: whoever may write to the store, or read from a weft serve, may write what "
    "they like. Of more than 4096 followers, those that were heard of most recently are shown.\n"
    "\nExamples:\n"
    "  weft fleet /srv/run-7\n"
    "  weft fleet https://store.example/run-7 --watch\n"
    "  weft fleet /srv/run-7 --json | jq '.followers[] | [.name, .lag]'\n" HELP_REMOTE_EXIT_CODES;

typedef struct fleet_arguments {
    weft_command command;
    weft_remote remote;
    const char *store;
    double watch_seconds; /* 0: once */
    bool live;
} fleet_arguments;

/* ---- results ---- */

static int print_json(fleet_arguments *arguments, const weft_fleet *fleet) {
    weft_command *command = &arguments->command;
    json_t *json = json_object();
    json_t *followers = json_array();
    size_t count = arguments->live ? fleet->live : fleet->count;
    for (size_t i = 0; i < count; i++) {
        const weft_follower *follower = fleet->followers[i];
        json_array_append_new(followers, remote_follower(follower, follower->age_seconds));
    }
    json_object_set_new(json, "newest", json_count(fleet->newest));
    json_object_set_new(json, "live", json_count(fleet->live));
    json_object_set_new(json, "slowest", fleet->slowest > 0 ? json_count(fleet->slowest) : json_null());
    json_object_set_new(json, "reads", fleet->reads > 0 ? json_count(fleet->reads) : json_null());
    json_object_set_new(json, "left_out", json_count(fleet->left_out));
    json_object_set_new(json, "followers", followers);
    return arguments->watch_seconds > 0 ? command_print_json_line(command, stdout, json)
                                        : command_print_json(command, stdout, json);
}

static const char *word_for(const weft_follower *follower) {
    return follower->live || strcmp(follower->state, "ended") == 0 ? follower->state : "silent";
}

static void print_follower(const weft_follower *follower) {
    char behind[TEXT_SIZE], pause[TEXT_SIZE], heard[TEXT_SIZE];
    printf("%-24s  %8llu  %6llu  %9s  %-9s  %9s  %9s", follower->name,
           (unsigned long long)follower->version, (unsigned long long)follower->lag,
           follower->lag_seconds < 0 ? "-" : text_seconds(follower->lag_seconds, behind),
           word_for(follower), text_seconds(follower->pause_seconds, pause),
           text_seconds(follower->age_seconds, heard));
    if (follower->error[0] != 0) {
        printf("  ");
        text_print(stdout, follower->error);
    }
    putchar('\n');
}

/* Who would be left behind by the format that this weft writes to new runs. */
static void print_reads(const weft_fleet *fleet) {
    const weft_follower *first = NULL;
    size_t older = 0;
    for (size_t i = 0; i < fleet->live; i++) {
        const weft_follower *follower = fleet->followers[i];
        bool old = follower->reads < WEFT_FORMAT_NEWEST;
        first = old && first == NULL ? follower : first;
        older += old;
    }
    if (first != NULL) {
        printf("; %zu of them cannot read format %d, such as %s", older, WEFT_FORMAT_NEWEST, first->name);
    } else if (fleet->live > 0) {
        printf("; all of them read format %d", WEFT_FORMAT_NEWEST);
    }
}

static int print_table(fleet_arguments *arguments, const weft_fleet *fleet) {
    size_t count = arguments->live ? fleet->live : fleet->count;
    if (count > 0) {
        printf("%-24s  %8s  %6s  %9s  %-9s  %9s  %9s  %s\n", "name", "version", "lag", "behind", "state",
               "pause", "heard", "error");
    }
    for (size_t i = 0; i < count; i++) {
        print_follower(fleet->followers[i]);
    }
    printf("%zu live of %zu; the newest version is %llu", fleet->live, fleet->count,
           (unsigned long long)fleet->newest);
    if (fleet->slowest > 0) {
        printf(", the slowest follower at %llu", (unsigned long long)fleet->slowest);
    }
    print_reads(fleet);
    printf("%s\n", arguments->watch_seconds > 0 ? "\n" : "");
    return fflush(stdout) == 0 ? EXIT_DONE
                               : command_error(&arguments->command, EXIT_FAILED,
                                               "cannot write the result: %s", strerror(errno));
}

/* ---- looking ---- */

static int look(fleet_arguments *arguments) {
    weft_command *command = &arguments->command;
    const weft_fleet_options chosen = {.size = sizeof chosen, .trusted = arguments->remote.trusted};
    weft_fleet fleet = {.size = sizeof fleet};
    weft_status status = weft_fleet_read(command->context, arguments->remote.store, &chosen, &fleet);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    progress_clear(&command->progress);
    int code = command->json ? print_json(arguments, &fleet) : print_table(arguments, &fleet);
    weft_fleet_close(command->context, &fleet);
    return code;
}

static int run(void *input) {
    fleet_arguments *arguments = input;
    int code = remote_open(&arguments->remote, arguments->store);
    if (code == EXIT_DONE) {
        code = look(arguments);
    }
    while (code == EXIT_DONE && arguments->watch_seconds > 0) {
        command_sleep(arguments->watch_seconds);
        code = command_interrupted() == EXIT_DONE ? look(arguments)
                                                  : command_fail(&arguments->command, NULL, WEFT_CANCELLED);
    }
    return code;
}

int verb_fleet(int argc, char **argv) {
    fleet_arguments arguments = {0};
    const weft_option options[] = {
        {"watch", "TIME", 1, "Look again and again, every TIME (default: 2s), until interrupted",
         .seconds = &arguments.watch_seconds, .otherwise = "2s"},
        {"live", NULL, 1, "Only live followers", .flag = &arguments.live},
        {0},
    };
    const weft_form form = {
        "STORE", doc, {{options, NULL}}, .paths = {&arguments.store, 1, 1, "give a store"}};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
