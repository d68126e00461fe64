/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_pull.c: `weft pull STORE OUT`.
 */
#include "../convert/convert.h"

#include <string.h>

static const char doc[] =
    "Bring OUT to the newest version of the run in STORE, or to another, and byte for byte to what was "
    "published. Only what is missing is fetched.\v" HELP_STORE
    "OUT is a safetensors file or a directory; it need not exist. If it holds a version of the run, "
    "patches lead on from there; else it is made from an anchor.\n"
    "\nOUT is whole at any instant, at the old or the new version, even if this command is killed. What "
    "was seen of the run is remembered beside it, in .OUT.weft-sync, so that an older state of the store "
    "is not mistaken for the newest.\n"
    "\nSTORE may be the deltas of another system, as slime:/updates; see weft convert. OUT is then brought "
    "forward "
    "from a checkpoint that is there.\n" HELP_TRUST "\nExamples:\n"
    "  weft pull /srv/run-7 worker.safetensors\n"
    "  weft pull https://store.example/run-7 model/ --trust run-7.key.pub\n"
    "  weft pull /srv/run-7 old.safetensors --version 40 --verify full\n" HELP_REMOTE_EXIT_CODES;

typedef struct pull_arguments {
    weft_command command;
    weft_remote remote;
    const char *paths[2]; /* STORE and OUT */
    uint64_t version;
    const char *verify; /* NULL or "full" */
    bool replace;
    bool durable;
    bool assume_base;
    const char *name;
} pull_arguments;

static int print_json(pull_arguments *arguments, const weft_subscriber *subscriber, double seconds) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(subscriber, &info);
    json_t *json = json_object();
    json_object_set_new(json, "version", json_count(info.version));
    json_object_set_new(json, "digest", json_digest(&info.digest));
    json_object_set_new(json, "newest", json_count(info.newest));
    json_object_set_new(json, "epoch", json_count(info.epoch));
    json_object_set_new(json, "labels", remote_labels(weft_subscriber_labels(subscriber)));
    json_object_set_new(json, "published_milliseconds", json_count(info.milliseconds));
    json_object_set_new(json, "patches", json_count(info.patches));
    json_object_set_new(json, "anchors", json_count(info.anchors));
    json_object_set_new(json, "healed", json_count(info.healed));
    json_object_set_new(json, "fetched_bytes", json_count(info.fetched_bytes));
    json_object_set_new(json, "requests", json_count(info.requests));
    json_object_set_new(json, "verified", json_boolean(arguments->verify != NULL));
    json_object_set_new(json, "seconds", json_real(seconds));
    json_object_set_new(json, "pause_seconds", json_real(info.pause_seconds));
    return command_print_json(&arguments->command, stdout, json);
}

static void print_text(const pull_arguments *arguments, const weft_subscriber_info *info, double seconds) {
    char a[TEXT_SIZE], b[TEXT_SIZE], digest[WEFT_DIGEST_TEXT];
    weft_digest_format(&info->digest, digest);
    printf("version   %llu", (unsigned long long)info->version);
    if (info->version != info->newest) {
        printf(" (the newest is %llu)", (unsigned long long)info->newest);
    }
    printf("\ndigest    %s%s\nway       ", digest,
           arguments->verify != NULL ? ", read again and checked" : "");
    if (info->patches + info->anchors == 0) {
        printf("was there already");
    } else {
        printf("%llu anchor%s, %llu patch%s", (unsigned long long)info->anchors,
               info->anchors == 1 ? "" : "s", (unsigned long long)info->patches,
               info->patches == 1 ? "" : "es");
    }
    if (info->healed > 0) {
        printf(", %llu damaged or missing gone round", (unsigned long long)info->healed);
    }
    printf("\nfetched   %s in %llu requests\ntime      %s", text_bytes(info->fetched_bytes, a),
           (unsigned long long)info->requests, text_seconds(seconds, b));
    if (info->patches + info->anchors > 0) {
        printf(", pause %s", text_seconds(info->pause_seconds, a));
    }
    putchar('\n');
}

static int pull_into(pull_arguments *arguments, weft_subscriber *subscriber, double start) {
    weft_command *command = &arguments->command;
    weft_status status = weft_subscriber_pull(subscriber, arguments->version);
    if (status == WEFT_OK && arguments->verify != NULL) {
        status = weft_subscriber_verify(subscriber);
    }
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    double seconds = clock_seconds() - start;
    progress_clear(&command->progress);
    if (command->json) {
        return print_json(arguments, subscriber, seconds);
    }
    if (!command->quiet) {
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(subscriber, &info);
        print_text(arguments, &info, seconds);
    }
    return EXIT_DONE;
}

/* From the directories of another system. */
static int pull_foreign(pull_arguments *arguments) {
    foreign_follower follower = {.command = &arguments->command,
                                 .place = arguments->paths[0],
                                 .out = arguments->paths[1],
                                 .assume_base = arguments->assume_base,
                                 .durable = arguments->durable};
    weft_status status = WEFT_OK;
    int code = EXIT_DONE;
    if (arguments->verify != NULL || arguments->replace || arguments->name != NULL) {
        return command_error(&arguments->command, EXIT_USAGE,
                             "--verify, --replace and --name are about a store, which %s is not",
                             arguments->paths[0]);
    }
    code = remote_options(&arguments->remote, &follower.reached);
    while (status == WEFT_OK && code == EXIT_DONE &&
           (arguments->version == 0 || follower.info.version < arguments->version)) {
        status = foreign_follow(&follower);
        code = status == WEFT_OK ? foreign_follow_print(&follower) : EXIT_DONE;
    }
    code = status < 0 ? command_fail(&arguments->command, NULL, status) : code;
    code = code == EXIT_DONE && status == WEFT_MORE ? foreign_stranded(&follower, false) : code;
    code = code == EXIT_DONE ? foreign_reached(&arguments->command, arguments->paths[0],
                                               follower.info.version, arguments->version)
                             : code;
    foreign_follow_close(&follower);
    return code;
}

static int run(void *input) {
    pull_arguments *arguments = input;
    if (foreign_named(arguments->paths[0])) {
        return pull_foreign(arguments);
    }
    weft_command *command = &arguments->command;
    double start = clock_seconds();
    int code = remote_open(&arguments->remote, arguments->paths[0]);
    if (code != EXIT_DONE) {
        return code;
    }
    const weft_subscriber_options chosen = {
        .size = sizeof chosen,
        .trusted = arguments->remote.trusted,
        .replace = arguments->replace,
        .durable = arguments->durable,
        .report_name = arguments->name,
    };
    weft_subscriber *subscriber;
    weft_status status = weft_subscriber_open_file(command->context, arguments->remote.store,
                                                   arguments->paths[1], &chosen, &subscriber);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    code = pull_into(arguments, subscriber, start);
    weft_subscriber_close(subscriber);
    return code;
}

int verb_pull(int argc, char **argv) {
    /* nothing is written into the store but reports */
    pull_arguments arguments = {.remote = {.volatile_writes = true}};
    const weft_option options[] = {
        {"version", "N", 1, "Bring OUT to version N (default: the newest)", .number = &arguments.version,
         .least = 1, .what = "the number of a version"},
        {"verify", "full", 1, "Read all of OUT again afterwards, and check it", .text = &arguments.verify,
         .words = "full"},
        {"replace", NULL, 1, "OUT may be a model that is of no version of the run: replace it",
         .flag = &arguments.replace},
        {"durable", NULL, 1, "OUT is whole, old or new, even after a power loss",
         .flag = &arguments.durable},
        {"assume-base", NULL, 1, FOREIGN_ASSUME_BASE, .flag = &arguments.assume_base},
        {"name", "NAME", 1, "Be seen under this name meanwhile; see weft fleet", .parse = remote_parse_name,
         .into = &arguments.name},
        {0},
    };
    const weft_form form = {
        "STORE OUT",
        doc,
        {{options, NULL}},
        .paths = {arguments.paths, 2, 2, "give the store, and the checkpoint to bring up to date"}};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
