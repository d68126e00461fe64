/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_apply.c: `weft apply BASE PATCH… -o OUT` and `weft apply --in-place CKPT PATCH…`.
 */
#include "../command.h"

#include <stdlib.h>
#include <string.h>

static const char doc[] =
    "Apply one patch, or several in order. Every patch must start from the state that the one before "
    "makes; a patch for another base is refused before anything is written.\v" HELP_CKPT
    "\nWith -o the result is byte for byte the checkpoint that was diffed, and appears complete or not at "
    "all. In place, each patch is a transaction of its own: it is decoded and proven before the first "
    "weight changes, and a process killed at any instant leaves the state before or after it, which the "
    "next weft command (or --recover) settles.\n"
    "\nExamples:\n"
    "  weft apply step-40.safetensors 41.weft 42.weft -o step-42.safetensors\n"
    "  weft apply --in-place worker/ 42.weft --durable\n"
    "  curl -s https://host/42.weft | weft apply --in-place worker/ -\n"
    "  weft apply --in-place worker/ --recover\n" HELP_EXIT_CODES;

typedef struct apply_arguments {
    weft_command command;
    char **paths; /* the checkpoint, then the patches */
    size_t path_count;
    const char *output;
    bool in_place;
    bool recover;
    bool durable;
} apply_arguments;

static void check_arguments(struct argp_state *state, void *input) {
    const apply_arguments *arguments = input;
    if (arguments->recover && (!arguments->in_place || arguments->path_count != 1)) {
        argp_error(state, "--recover goes with --in-place and one checkpoint, without patches");
    }
    if (!arguments->recover && arguments->path_count < 2) {
        argp_error(state, "give a checkpoint and at least one patch");
    }
    if (arguments->in_place && arguments->output != NULL) {
        argp_error(state, "give either -o OUT or --in-place");
    }
    if (!arguments->in_place && arguments->output == NULL) {
        argp_error(state, "say where the result goes: -o OUT, or --in-place");
    }
    if (arguments->output != NULL && strcmp(arguments->output, "-") == 0) {
        argp_error(state, "a checkpoint is not written to stdout; give -o a path");
    }
}

static int print_result(apply_arguments *arguments, const patch_list *list, const weft_digest *digest,
                        double seconds) {
    weft_command *command = &arguments->command;
    uint64_t changed = 0, bytes = 0;
    for (size_t i = 0; i < list->count; i++) {
        weft_patch_info info = {.size = sizeof info};
        weft_patch_describe(list->patches[i], &info);
        changed += info.changed;
        bytes += info.bytes;
    }
    progress_clear(&command->progress);
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, "digest", json_digest(digest));
        json_object_set_new(json, "patches", json_count(list->count));
        json_object_set_new(json, "changed", json_count(changed));
        json_object_set_new(json, "patch_bytes", json_count(bytes));
        json_object_set_new(json, "in_place", json_boolean(arguments->in_place));
        json_object_set_new(json, "seconds", json_real(seconds));
        return command_print_json(command, stdout, json);
    }
    if (!command->quiet) {
        char text[WEFT_DIGEST_TEXT], count[TEXT_SIZE], size[TEXT_SIZE];
        weft_digest_format(digest, text);
        printf("applied   %zu patch%s, %s changes, %s\nresult    %s\ntime      %.3f s\n", list->count,
               list->count == 1 ? "" : "es", text_count(changed, count), text_bytes(bytes, size), text,
               seconds);
    }
    return EXIT_DONE;
}

static int apply_patches(apply_arguments *arguments, const patch_list *list) {
    weft_command *command = &arguments->command;
    const char *path = arguments->paths[0];
    weft_digest digest;
    double start = clock_seconds();
    weft_status status;
    if (arguments->in_place) {
        status = weft_apply_in_place(command->context, path, list->patches, list->count, arguments->durable,
                                     &digest);
    } else {
        weft_model base;
        int code = output_guard(command, arguments->output, path);
        if (code == EXIT_DONE) {
            code = model_open(command, path, &base);
        }
        if (code != EXIT_DONE) {
            return code;
        }
        status = weft_apply_rebuild(command->context, base.checkpoint, list->patches, list->count,
                                    arguments->output, arguments->durable, &digest);
        model_close(&base);
    }
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    return print_result(arguments, list, &digest, clock_seconds() - start);
}

static int recover(apply_arguments *arguments) {
    weft_command *command = &arguments->command;
    bool recovered = false;
    int code = model_recover(command, arguments->paths[0], &recovered);
    if (code != EXIT_DONE) {
        return code;
    }
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, "recovered", json_boolean(recovered));
        return command_print_json(command, stdout, json);
    }
    if (!recovered) {
        command_note(command, "%s: nothing to recover", arguments->paths[0]);
    }
    return EXIT_DONE;
}

static int run(void *input) {
    apply_arguments *arguments = input;
    weft_command *command = &arguments->command;
    if (arguments->recover) {
        return recover(arguments);
    }
    int code = EXIT_DONE;
    bool recovered;
    if (arguments->in_place) {
        code = model_recover(command, arguments->paths[0], &recovered);
    }
    for (size_t i = 1; i < arguments->path_count && code == EXIT_DONE && !arguments->in_place; i++) {
        code = output_guard(command, arguments->output, arguments->paths[i]);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    patch_list list;
    code = patch_list_open(command, arguments->paths + 1, arguments->path_count - 1, &list);
    if (code == EXIT_DONE) {
        code = apply_patches(arguments, &list);
        patch_list_close(&list);
    }
    return code;
}

int verb_apply(int argc, char **argv) {
    apply_arguments arguments = {0};
    const weft_option options[] = {
        {"output", "OUT", 1, "Write the result to OUT and leave BASE alone", .letter = 'o',
         .text = &arguments.output},
        {"in-place", NULL, 1, "Change the checkpoint itself", .flag = &arguments.in_place},
        {"recover", NULL, 1, "With --in-place and no patch: finish or undo what a killed run left behind",
         .flag = &arguments.recover},
        {"durable", NULL, 1, "Return only when the result would survive a power loss",
         .flag = &arguments.durable},
        {0},
    };
    const weft_form form = {"BASE PATCH... -o OUT\n--in-place CKPT PATCH...",
                            doc,
                            {{options, NULL}},
                            .rest = &arguments.paths,
                            .rest_count = &arguments.path_count,
                            .check = check_arguments};
    return command_run(&form, argc, argv, &arguments, run);
}
