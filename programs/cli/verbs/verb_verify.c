/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_verify.c: `weft verify CKPT [PATCH]`.
 */
#include "../command.h"

#include <string.h>
#include <strings.h>

static const char doc[] =
    "Check a checkpoint: that its headers and structure are valid, and, if --digest is given, that it is "
    "that state. With a PATCH, check every bucket of the patch too, and say whether the checkpoint is the "
    "patch's base, its result, or neither.\v" HELP_CKPT "The PATCH may be '-' for stdin.\n"
    "\nExamples:\n"
    "  weft verify model/\n"
    "  weft verify model/ --digest 0f5e11a9c2d4b7e83a6610c47f92d35b\n"
    "  weft verify worker/ 42.weft && echo 'at 41 or at 42'\n"
    "  weft verify worker/ 42.weft --json | jq -r .state\n" HELP_EXIT_CODES
    "The state \"neither\", a wrong digest and a damaged patch give 3.\n";

typedef struct verify_arguments {
    weft_command command;
    const char *paths[2]; /* CKPT and PATCH, which may be NULL */
    const char *digest;
} verify_arguments;

static void check_arguments(struct argp_state *state, void *input) {
    const char *digest = ((const verify_arguments *)input)->digest;
    const size_t digits = WEFT_DIGEST_TEXT - 1;
    if (digest != NULL &&
        (strlen(digest) != digits || strspn(digest, "0123456789abcdefABCDEF") != digits)) {
        argp_error(state, "--digest takes %zu hexadecimal digits", digits);
    }
}

/* Reads every bucket of the patch against its checksum. */
static int check_buckets(verify_arguments *arguments, const patch_file *file, uint64_t *buckets_out) {
    weft_command *command = &arguments->command;
    weft_patch_info patch = {.size = sizeof patch};
    weft_patch_describe(file->patch, &patch);
    uint64_t count = patch.buckets;
    for (uint64_t i = 0; i < count; i++) {
        weft_bucket_info info = {.size = sizeof info};
        weft_status status = weft_patch_bucket(command->context, file->patch, (size_t)i, &info);
        if (status != WEFT_OK) {
            return command_fail(command, arguments->paths[1], status);
        }
        if (command_interrupted() != EXIT_DONE) {
            return command_error(command, command_interrupted(), "interrupted");
        }
    }
    *buckets_out = count;
    return EXIT_DONE;
}

static const char *state_name(const weft_digest *digest, const weft_patch_info *info) {
    bool is_base = weft_digest_equal(digest, &info->base);
    bool is_result = weft_digest_equal(digest, &info->result);
    if (is_base && is_result) {
        return "base and result";
    }
    return is_base ? "base" : is_result ? "result" : "neither";
}

static int print_json(verify_arguments *arguments, const weft_digest *digest, const patch_file *file,
                      uint64_t buckets, const char *state, bool matches) {
    json_t *json = json_object();
    json_object_set_new(json, "digest", json_digest(digest));
    if (arguments->digest != NULL) {
        json_object_set_new(json, "matches", json_boolean(matches));
    }
    if (file != NULL) {
        weft_patch_info info = {.size = sizeof info};
        weft_patch_describe(file->patch, &info);
        json_object_set_new(json, "state", json_string(state));
        json_object_set_new(json, "base", json_digest(&info.base));
        json_object_set_new(json, "result", json_digest(&info.result));
        json_object_set_new(json, "buckets", json_count(buckets));
    }
    return command_print_json(&arguments->command, stdout, json);
}

static void print_text(const weft_digest *digest, const patch_file *file, uint64_t buckets,
                       const char *state) {
    char text[WEFT_DIGEST_TEXT], count[TEXT_SIZE];
    weft_digest_format(digest, text);
    printf("checkpoint  valid, digest %s\n", text);
    if (file == NULL) {
        return;
    }
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(file->patch, &info);
    printf("patch       valid, %s bucket%s checked\n", text_count(buckets, count), buckets == 1 ? "" : "s");
    weft_digest_format(&info.base, text);
    printf("base        %s\n", text);
    weft_digest_format(&info.result, text);
    printf("result      %s\n", text);
    printf("state       the checkpoint is %s%s\n", strcmp(state, "neither") == 0 ? "" : "the patch's ",
           state);
}

/* Reports, and decides: 3 if the checkpoint is not what it should be. */
static int conclude(verify_arguments *arguments, const weft_digest *digest, const patch_file *file,
                    uint64_t buckets) {
    weft_command *command = &arguments->command;
    char text[WEFT_DIGEST_TEXT];
    weft_digest_format(digest, text);
    bool matches = arguments->digest == NULL || strcasecmp(text, arguments->digest) == 0;
    const char *state = "";
    if (file != NULL) {
        weft_patch_info info = {.size = sizeof info};
        weft_patch_describe(file->patch, &info);
        state = state_name(digest, &info);
    }
    progress_clear(&command->progress);
    int code = EXIT_DONE;
    if (command->json) {
        code = print_json(arguments, digest, file, buckets, state, matches);
    } else if (!command->quiet) {
        print_text(digest, file, buckets, state);
    }
    if (!matches) {
        return command_error(command, EXIT_INTEGRITY, "digest mismatch: %s is %s, not %s",
                             arguments->paths[0], text, arguments->digest);
    }
    if (strcmp(state, "neither") == 0) {
        return command_error(
            command, EXIT_INTEGRITY,
            "%s is neither the base nor the result of %s; find the patch that starts from %s",
            arguments->paths[0], arguments->paths[1], text);
    }
    return code;
}

static int run(void *input) {
    verify_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_model model = {0};
    patch_file file = {0};
    weft_sums *sums = NULL;
    uint64_t buckets = 0;
    int code = model_open(command, arguments->paths[0], &model);
    if (code == EXIT_DONE && arguments->paths[1] != NULL) {
        code = patch_file_open(command, arguments->paths[1], &file);
        if (code == EXIT_DONE) {
            code = check_buckets(arguments, &file, &buckets);
        }
    }
    if (code == EXIT_DONE) {
        weft_status status = weft_sums_compute(command->context, model.view, &sums);
        code = status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
    }
    if (code == EXIT_DONE) {
        weft_digest digest = weft_sums_digest(sums);
        code = conclude(arguments, &digest, arguments->paths[1] != NULL ? &file : NULL, buckets);
    }
    weft_sums_destroy(sums);
    patch_file_close(&file);
    model_close(&model);
    return code;
}

int verb_verify(int argc, char **argv) {
    verify_arguments arguments = {0};
    const weft_option options[] = {
        {"digest", "HEX", 1, "The digest that the checkpoint must have", .text = &arguments.digest},
        {0},
    };
    const weft_form form = {"CKPT [PATCH]",
                            doc,
                            {{options, NULL}},
                            .paths = {arguments.paths, 1, 2, "give a checkpoint"},
                            .check = check_arguments};
    return command_run(&form, argc, argv, &arguments, run);
}
