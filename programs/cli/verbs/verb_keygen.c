/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_keygen.c: `weft keygen KEY`.
 */
#include "../command.h"

#include <stdlib.h>

static const char doc[] =
    "Make a pair of Ed25519 keys: KEY, the secret half, to publish with, and KEY.pub, the public half, to "
    "follow with.\v"
    "KEY is readable by its owner only and belongs on the publisher alone. KEY.pub goes to everyone who "
    "follows; it is no secret, but must come to them on a way that nobody else can change. Both are PEM "
    "files, as OpenSSL reads and writes them. Files that exist are never overwritten.\n"
    "\nExamples:\n"
    "  weft keygen run-7.key\n"
    "  weft publish --sign run-7.key /srv/run-7 step-42.safetensors\n"
    "  weft follow --trust run-7.key.pub http://store:8477/ worker.safetensors\n" HELP_EXIT_CODES;

typedef struct keygen_arguments {
    weft_command command;
    const char *path;
} keygen_arguments;

static int print_result(keygen_arguments *arguments, const weft_key *key, const char *public_path) {
    weft_command *command = &arguments->command;
    char text[WEFT_KEY_TEXT];
    weft_key_format(key, text);
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, "public_key", json_string(text));
        json_object_set_new(json, "secret_file", json_string(arguments->path));
        json_object_set_new(json, "public_file", json_string(public_path));
        return command_print_json(command, stdout, json);
    }
    if (!command->quiet) {
        printf("public key  %s\nsecret      ", text);
        text_print(stdout, arguments->path);
        printf("  (publish --sign; keep it on the publisher)\npublic      ");
        text_print(stdout, public_path);
        printf("  (pull, follow, log, gc --trust)\n");
    }
    return EXIT_DONE;
}

static int write_keys(keygen_arguments *arguments, const char *public_path) {
    weft_command *command = &arguments->command;
    weft_key *key = NULL;
    weft_status status = weft_key_generate(command->context, &key);
    if (status == WEFT_OK) {
        status = weft_key_write(command->context, key, arguments->path, public_path);
    }
    int code =
        status == WEFT_OK ? print_result(arguments, key, public_path) : command_fail(command, NULL, status);
    weft_key_destroy(key);
    return code;
}

static int run(void *input) {
    keygen_arguments *arguments = input;
    char *public_path = NULL;
    if (asprintf(&public_path, "%s.pub", arguments->path) < 0) {
        return command_error(&arguments->command, EXIT_FAILED, "no memory for a path");
    }
    int code = write_keys(arguments, public_path);
    free(public_path);
    return code;
}

int verb_keygen(int argc, char **argv) {
    keygen_arguments arguments = {0};
    const weft_form form = {"KEY", doc,
                            .paths = {&arguments.path, 1, 1, "say where to write the secret key"}};
    return command_run(&form, argc, argv, &arguments, run);
}
