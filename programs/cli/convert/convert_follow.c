/* SPDX-License-Identifier: Apache-2.0
 *
 * convert_follow.c: a checkpoint that follows a foreign place, for `weft pull`, `weft follow` and `weft
 * convert`.
 */
#include "convert.h"

#include <string.h>

bool foreign_named(const char *text) {
    return weft_foreign_place(text, NULL) != WEFT_FOREIGN_ANY || strncmp(text, "arc3:", 5) == 0;
}

weft_status foreign_follow(foreign_follower *follower) {
    weft_context *context = follower->command->context;
    weft_status status = WEFT_OK;
    if (follower->foreign == NULL) {
        const weft_foreign_options options = {
            .size = sizeof options, .assume_base = follower->assume_base, .store = &follower->reached};
        status = weft_foreign_open(context, follower->place, &options, &follower->foreign);
    } else {
        status = weft_foreign_look(follower->foreign);
    }
    if (status == WEFT_OK && follower->replica == NULL) {
        const weft_foreign_replica_options options = {.size = sizeof options, .durable = follower->durable};
        status = weft_foreign_replica_open(context, follower->foreign, follower->out, &options,
                                           &follower->replica);
    }
    if (status == WEFT_OK) {
        status = weft_foreign_replica_step(follower->replica);
    }
    if (follower->replica != NULL) {
        follower->info.size = sizeof follower->info;
        weft_foreign_replica_describe(follower->replica, &follower->info);
    }
    return status;
}

int foreign_stranded(foreign_follower *follower, bool waits) {
    size_t count = weft_foreign_count(follower->foreign);
    uint64_t at = follower->info.version;
    if (count == 0 && !waits) {
        command_note(follower->command, "%s has no version yet", follower->place);
    }
    uint64_t newest = count > 0 ? weft_foreign_at(follower->foreign, count - 1)->version : 0;
    if (newest <= at || weft_foreign_after(follower->foreign, at) != NULL) {
        return EXIT_DONE;
    }
    if (!waits) {
        return command_error(follower->command, EXIT_FAILED,
                             "%s has version %llu, and nothing there leads on from version %llu: a delta "
                             "between is missing. Get it there, or begin from a later checkpoint",
                             follower->place, (unsigned long long)newest, (unsigned long long)at);
    }
    if (follower->stranded != newest) {
        follower->stranded = newest;
        command_note(follower->command,
                     "%s has version %llu, and nothing there leads on from version %llu; waiting for it",
                     follower->place, (unsigned long long)newest, (unsigned long long)at);
    }
    return EXIT_DONE;
}

int foreign_reached(weft_command *command, const char *place, uint64_t version, uint64_t wanted) {
    return version >= wanted
               ? EXIT_DONE
               : command_error(command, EXIT_FAILED, "%s leads to version %llu and no further", place,
                               (unsigned long long)version);
}

void foreign_follow_close(foreign_follower *follower) {
    weft_foreign_replica_close(follower->replica);
    weft_foreign_close(follower->foreign);
    follower->replica = NULL;
    follower->foreign = NULL;
}

int foreign_follow_print(const foreign_follower *follower) {
    weft_command *command = follower->command;
    const weft_foreign_replica_info *info = &follower->info;
    progress_clear(&command->progress);
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, "version", json_count(info->version));
        json_object_set_new(json, "digest", json_digest(&info->digest));
        json_object_set_new(json, "changed", json_count(info->changed));
        json_object_set_new(json, "read_seconds", json_real(info->read_seconds));
        json_object_set_new(json, "prove_seconds", json_real(info->prove_seconds));
        json_object_set_new(json, "pause_seconds", json_real(info->pause_seconds));
        return command_print_json_line(command, stdout, json);
    }
    if (!command->quiet) {
        char a[TEXT_SIZE], b[TEXT_SIZE], c[TEXT_SIZE], d[TEXT_SIZE];
        printf("version %llu  %s changed  read %s  prove %s  pause %s\n", (unsigned long long)info->version,
               text_count(info->changed, a), text_seconds(info->read_seconds, b),
               text_seconds(info->prove_seconds, c), text_seconds(info->pause_seconds, d));
        fflush(stdout);
    }
    return EXIT_DONE;
}
