/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_digest.c: `weft digest CKPT`.
 */
#include "../command.h"

static const char doc[] =
    "Print the digest that names the state of a checkpoint: all tensors, bound to their names, dtypes and "
    "shapes.\v" HELP_CKPT
    "\nThe digest does not depend on how the tensors are spread over files, on their order, or on "
    "metadata. It finds accidents; it is no defence against someone who forges weights.\n"
    "\nExamples:\n"
    "  weft digest model.safetensors\n"
    "  weft digest --tensors model/ | sort\n" HELP_EXIT_CODES;

typedef struct digest_arguments {
    weft_command command;
    const char *path;
    bool tensors;
} digest_arguments;

static int print_json(digest_arguments *arguments, const weft_view *view, const weft_sums *sums) {
    weft_digest digest = weft_sums_digest(sums);
    json_t *json = json_object();
    json_object_set_new(json, "digest", json_digest(&digest));
    if (arguments->tensors) {
        json_t *tensors = json_object();
        for (size_t i = 0; i < weft_view_count(view); i++) {
            weft_digest value = weft_sums_tensor(sums, i);
            json_object_set_new(tensors, weft_view_at(view, i)->name, json_digest(&value));
        }
        json_object_set_new(json, "tensors", tensors);
    }
    return command_print_json(&arguments->command, stdout, json);
}

static void print_line(const weft_digest *digest, const char *name) {
    char text[WEFT_DIGEST_TEXT];
    weft_digest_format(digest, text);
    printf("%s  ", text);
    text_print(stdout, name);
    putchar('\n');
}

static void print_text(const digest_arguments *arguments, const weft_view *view, const weft_sums *sums) {
    for (size_t i = 0; arguments->tensors && i < weft_view_count(view); i++) {
        weft_digest value = weft_sums_tensor(sums, i);
        print_line(&value, weft_view_at(view, i)->name);
    }
    weft_digest digest = weft_sums_digest(sums);
    print_line(&digest, arguments->path);
}

static int run(void *input) {
    digest_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_model model;
    int code = model_open(command, arguments->path, &model);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_sums *sums = NULL;
    weft_status status = weft_sums_compute(command->context, model.view, &sums);
    if (status != WEFT_OK) {
        code = command_fail(command, NULL, status);
    } else {
        progress_clear(&command->progress);
        if (command->json) {
            code = print_json(arguments, model.view, sums);
        } else {
            print_text(arguments, model.view, sums);
        }
        weft_sums_destroy(sums);
    }
    model_close(&model);
    return code;
}

int verb_digest(int argc, char **argv) {
    digest_arguments arguments = {0};
    const weft_option options[] = {
        {"tensors", NULL, 1, "Also print the value of each tensor", .flag = &arguments.tensors},
        {0},
    };
    const weft_form form = {
        "CKPT", doc, {{options, NULL}}, .paths = {&arguments.path, 1, 1, "give a checkpoint"}};
    return command_run(&form, argc, argv, &arguments, run);
}
