/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_repair.c: `weft repair STORE`.
 */
#include "../remote.h"

static const char doc[] =
    "Look for what is damaged in STORE, say what that means, and mend it.\v" HELP_STORE
    "\nChecks the head of every epoch, every page of the history, and the patches, anchors and leaps that "
    "the kept versions need. For each finding it says what it means for readers, what can be done, and "
    "which versions are lost by it. Without --apply nothing is changed.\n"
    "\nHeads and pages are mended: they are rebuilt from what lies beside them, byte for byte where "
    "possible, and otherwise anew, in an epoch that repair begins like a publisher. Readers avoid damaged "
    "patches and anchors, and the next anchor makes up for them: weft publish --anchor now.\n"
    "\nMost is found where the store can be listed: a directory, or a bucket in S3. To repair a store "
    "behind weft serve, repair its directory.\n" HELP_TRUST "\nExamples:\n"
    "  weft repair /srv/run-7\n"
    "  weft repair /srv/run-7 --deep --json\n"
    "  weft repair /srv/run-7 --apply\n"
    "  weft repair s3://models/run-7 --apply --sign run-7.key\n"
    "\nExit codes: 0 all is well, or is mended, 1 failed, 2 wrong usage, 3 something is damaged, 4 the "
    "store was not reached or refused, 130 interrupted.\n";

typedef struct repair_arguments {
    weft_command command;
    weft_remote remote;
    const char *store;
    const char *sign_file;
    bool apply;
    bool adopt;
    bool deep;
    bool unlisted;
    json_t *findings; /* NULL: each is printed */
} repair_arguments;

static void check_arguments(struct argp_state *state, void *input) {
    const repair_arguments *arguments = input;
    if (arguments->adopt && arguments->sign_file == NULL) {
        argp_error(state, "--adopt goes with --sign");
    }
}

static json_t *json_finding(const weft_repair_finding *finding) {
    json_t *json = json_object();
    json_object_set_new(json, "kind", json_string(weft_repair_kind_name(finding->kind)));
    json_object_set_new(json, "key", finding->key[0] != 0 ? json_string(finding->key) : json_null());
    json_object_set_new(json, "wrong", json_string(finding->wrong));
    json_object_set_new(json, "effect", json_string(finding->effect));
    json_object_set_new(json, "remedy", json_string(finding->remedy));
    json_object_set_new(json, "lost_first", finding->first > 0 ? json_count(finding->first) : json_null());
    json_object_set_new(json, "lost_last", finding->first > 0 ? json_count(finding->last) : json_null());
    json_object_set_new(json, "mendable", json_boolean(finding->mendable));
    json_object_set_new(json, "mended", json_boolean(finding->mended));
    return json;
}

static void on_found(void *opaque, const weft_repair_finding *finding) {
    repair_arguments *arguments = opaque;
    progress_clear(&arguments->command.progress);
    if (arguments->findings != NULL) {
        json_array_append_new(arguments->findings, json_finding(finding));
        return;
    }
    printf("%s %s", finding->mended ? "mended" : "damaged", weft_repair_kind_name(finding->kind));
    if (finding->key[0] != 0) {
        printf(" %s", finding->key);
    }
    printf(":\n  wrong:  %s\n  effect: %s\n  %s %s\n", finding->wrong, finding->effect,
           finding->mended ? "done:  " : "remedy:", finding->remedy);
    if (finding->first > 0) {
        printf("  lost:   versions %llu to %llu\n", (unsigned long long)finding->first,
               (unsigned long long)finding->last);
    }
}

static int print_json(repair_arguments *arguments, const weft_repair_result *result) {
    json_t *json = json_object();
    json_object_set_new(json, "apply", json_boolean(arguments->apply));
    json_object_set_new(json, "sound", json_boolean(result->findings == 0));
    json_object_set_new(json, "findings_left", json_count(result->findings));
    json_object_set_new(json, "mendable", json_count(result->mendable));
    json_object_set_new(json, "mended", json_count(result->mended));
    json_object_set_new(json, "version", json_count(result->version));
    json_object_set_new(json, "epoch", json_count(result->epoch));
    json_object_set_new(json, "oldest", json_count(result->oldest));
    json_object_set_new(json, "floor", json_count(result->floor));
    json_object_set_new(json, "reachable", json_count(result->reachable));
    json_object_set_new(json, "listed", json_boolean(result->listed));
    json_object_set_new(json, "signed", json_boolean(result->is_signed));
    json_object_set(json, "findings", arguments->findings);
    return command_print_json(&arguments->command, stdout, json);
}

static int print_result(repair_arguments *arguments, const weft_repair_result *result) {
    weft_command *command = &arguments->command;
    progress_clear(&command->progress);
    int code = result->findings > 0 ? EXIT_INTEGRITY : EXIT_DONE;
    if (arguments->findings != NULL) {
        int printed = print_json(arguments, result);
        code = printed != EXIT_DONE ? printed : code;
    } else if (result->version > 0) {
        printf("version %llu, epoch %llu; the history tells of versions since %llu; %llu of the %llu that "
               "are kept, since %llu, can be reached\n",
               (unsigned long long)result->version, (unsigned long long)result->epoch,
               (unsigned long long)result->oldest, (unsigned long long)result->reachable,
               (unsigned long long)(result->version - result->floor + 1),
               (unsigned long long)result->floor);
    }
    if (result->mendable > 0) {
        command_note(
            command, "%llu of %llu can be mended: weft repair %s --apply, when no publisher is running",
            (unsigned long long)result->mendable, (unsigned long long)result->findings, arguments->store);
    }
    if (!result->listed && result->findings > 0) {
        command_note(command, "%s cannot be listed: more may be found in the directory that is served",
                     arguments->store);
    }
    return code == EXIT_DONE ? code
                             : command_error(command, code, "%s: %llu thing%s damaged%s", arguments->store,
                                             (unsigned long long)result->findings,
                                             result->findings == 1 ? " is" : "s are",
                                             result->mended > 0 ? " that repair cannot mend" : "");
}

static int mend(repair_arguments *arguments, const weft_key *key) {
    weft_command *command = &arguments->command;
    if (command->json && (arguments->findings = json_array()) == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the JSON result");
    }
    const weft_repair_options chosen = {
        .size = sizeof chosen,
        .trusted = arguments->remote.trusted,
        .key = key,
        .adopt = arguments->adopt,
        .apply = arguments->apply,
        .unlisted = arguments->unlisted,
        .deep = arguments->deep,
        .found = on_found,
        .opaque = arguments,
    };
    weft_repair_result result = {.size = sizeof result};
    weft_status status = weft_repair_run(command->context, arguments->remote.store, &chosen, &result);
    int code = status < 0 ? command_fail(command, NULL, status) : print_result(arguments, &result);
    json_decref(arguments->findings);
    return code;
}

static int run(void *input) {
    repair_arguments *arguments = input;
    weft_key *key = NULL;
    int code = remote_open(&arguments->remote, arguments->store);
    if (code == EXIT_DONE && arguments->sign_file != NULL) {
        code = remote_read_key(&arguments->command, arguments->sign_file, true, &key);
    }
    if (code == EXIT_DONE) {
        code = mend(arguments, key);
    }
    weft_key_destroy(key);
    return code;
}

int verb_repair(int argc, char **argv) {
    repair_arguments arguments = {0};
    const weft_option options[] = {
        {"apply", NULL, 1, "Mend what can be mended; no publisher may be running",
         .flag = &arguments.apply},
        {"sign", "FILE", 1,
         "The secret key of a signed run: heads must be signed by it, and those that are written are",
         .text = &arguments.sign_file},
        {"adopt", NULL, 1, "With --sign: sign also for what was found and is not proven by anything signed",
         .flag = &arguments.adopt},
        {"deep", NULL, 1, "Read everything that is kept, and check every chunk of it",
         .flag = &arguments.deep},
        {"unlisted", NULL, 1,
         "Mend the history also of a store that has no listing, and lose what a listing might have found",
         .flag = &arguments.unlisted},
        {0},
    };
    const weft_form form = {"STORE",
                            doc,
                            {{options, NULL}},
                            .paths = {&arguments.store, 1, 1, "give a store"},
                            .check = check_arguments};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
