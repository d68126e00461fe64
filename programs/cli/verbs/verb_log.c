/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_log.c: `weft log STORE`.
 */
#include "../remote.h"

static const char doc[] =
    "Print the history of the run in STORE, newest version first, and check every link of it.\v" HELP_STORE
    "\nEach part of the history names the part before it by its SHA-256, and the head names the newest "
    "part. If a link does not fit, the command says so and gives exit code 3.\n" HELP_TRUST
    "\nColumns: the version; the epoch, which counts how often a publisher took over; when it was "
    "published, by the publisher's clock; the digest of the state; how many weights changed; the bytes of "
    "its patch and of its anchor; whether its objects are kept, or may be or were removed by weft gc; and "
    "its labels.\n"
    "\nExamples:\n"
    "  weft log /srv/run-7 -n 20\n"
    "  weft log https://store.example/run-7 --trust run-7.key.pub\n"
    "  weft log /srv/run-7 --json | jq '[.versions[].patch_bytes] | add'\n" HELP_REMOTE_EXIT_CODES;

typedef struct log_arguments {
    weft_command command;
    weft_remote remote;
    const char *store;
    uint64_t number; /* 0: all */
} log_arguments;

typedef struct log_report {
    weft_command *command;
    uint64_t number;
    uint64_t count;
    uint64_t oldest;
    json_t *versions; /* NULL: a table is printed */
} log_report;

/* ---- results ---- */

static json_t *json_entry(const weft_log_entry *entry) {
    json_t *json = remote_version(entry);
    json_object_set_new(json, "kept", json_boolean(entry->kept));
    return json;
}

static void print_entry(const weft_log_entry *entry) {
    char time[TEXT_SIZE], patch[TEXT_SIZE], anchor[TEXT_SIZE], changed[TEXT_SIZE];
    char digest[WEFT_DIGEST_TEXT];
    double share = entry->total > 0 ? 100.0 * (double)entry->changed / (double)entry->total : 0;
    weft_digest_format(&entry->digest, digest);
    snprintf(changed, sizeof changed, "%.3f%%", share);
    printf("%8llu %6llu  %-20s  %.12s  %9s  %9s  %9s  %-9s", (unsigned long long)entry->version,
           (unsigned long long)entry->epoch, remote_time(entry->milliseconds, time), digest,
           entry->patch_bytes > 0 ? changed : "-",
           entry->patch_bytes > 0 ? text_bytes(entry->patch_bytes, patch) : "-",
           entry->anchor_bytes > 0 ? text_bytes(entry->anchor_bytes, anchor) : "-",
           entry->kept ? "kept" : "collected");
    for (size_t i = 0; entry->labels[i] != NULL; i += 2) {
        putchar(' ');
        text_print(stdout, entry->labels[i]);
        putchar('=');
        text_print(stdout, entry->labels[i + 1]);
    }
    putchar('\n');
}

static bool visit(void *opaque, const weft_log_entry *entry) {
    log_report *report = opaque;
    if (report->number > 0 && report->count == report->number) {
        return false;
    }
    progress_clear(&report->command->progress);
    if (report->versions != NULL) {
        json_array_append_new(report->versions, json_entry(entry));
    } else {
        if (report->count == 0) {
            printf("%8s %6s  %-20s  %-12s  %9s  %9s  %9s  %-9s %s\n", "version", "epoch", "time", "digest",
                   "changed", "patch", "anchor", "objects", "labels");
        }
        print_entry(entry);
    }
    report->count++;
    report->oldest = entry->version;
    return command_interrupted() == EXIT_DONE;
}

static int finish_report(log_arguments *arguments, log_report *report) {
    weft_command *command = &arguments->command;
    bool whole = report->oldest <= 1;
    if (report->versions != NULL) {
        json_t *json = json_object();
        json_object_set(json, "versions", report->versions);
        json_object_set_new(json, "whole", json_boolean(whole));
        json_object_set_new(json, "trusted", json_boolean(arguments->remote.trusted != NULL));
        return command_print_json(command, stdout, json);
    }
    if (report->count == 0) {
        command_note(command, "%s: nothing is published there yet", arguments->store);
        return EXIT_DONE;
    }
    printf("%s%llu version%s, every link checked%s\n", whole ? "" : "the newest ",
           (unsigned long long)report->count, report->count == 1 ? "" : "s",
           arguments->remote.trusted != NULL ? ", signed by the key that is trusted" : "");
    return EXIT_DONE;
}

static int run(void *input) {
    log_arguments *arguments = input;
    weft_command *command = &arguments->command;
    int code = remote_open(&arguments->remote, arguments->store);
    if (code != EXIT_DONE) {
        return code;
    }
    log_report report = {.command = command, .number = arguments->number};
    if (command->json && (report.versions = json_array()) == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the JSON result");
    }
    weft_status status =
        weft_log_walk(command->context, arguments->remote.store, arguments->remote.trusted, visit, &report);
    if (status >= 0 && command_interrupted() != EXIT_DONE) {
        status = WEFT_CANCELLED;
    }
    code = status < 0 ? command_fail(command, NULL, status) : finish_report(arguments, &report);
    json_decref(report.versions);
    return code;
}

int verb_log(int argc, char **argv) {
    log_arguments arguments = {0};
    const weft_option options[] = {
        {"number", "N", 1, "Only the newest N versions", .letter = 'n', .number = &arguments.number,
         .least = 1, .what = "a number of versions"},
        {0},
    };
    const weft_form form = {
        "STORE", doc, {{options, NULL}}, .paths = {&arguments.store, 1, 1, "give a store"}};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
