/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_merge.c: `weft merge PATCH PATCH… -o PATCH`.
 */
#include "../command.h"

#include <string.h>

enum { OPTION_BASE = 0x100, OPTION_PROFILE, OPTION_LABEL, OPTION_DURABLE };

static const struct argp_option options[] = {
    {"output", 'o', "PATCH", 0, "Where to write the merged patch; '-' for stdout", 1},
    {"base", OPTION_BASE, "CKPT", 0,
     "The checkpoint that the first patch starts from; needed unless all patches, and the result, are "
     "of profile fast",
     1},
    {"profile", OPTION_PROFILE, "NAME", 0, "small or fast; default: small with --base, fast without", 1},
    {"label", OPTION_LABEL, "KEY=VALUE", 0, "Text carried along in the patch; may be repeated", 1},
    {"durable", OPTION_DURABLE, NULL, 0, "Return only when the patch would survive a power loss", 1},
    {0},
};

static const char doc[] =
    "Compose patches that follow one another into one that does the same: a weight that "
    "changed in several is carried once, and one that changed back not at all.\v" HELP_CKPT
    "\nThe patches are given in order, oldest first; each must start from the state that the one before "
    "makes, keep all tensors, and be cut into the same buckets. One of them may be '-' for stdin.\n"
    "\nExamples:\n"
    "  weft merge 41.weft 42.weft 43.weft -o 41-43.weft\n"
    "  weft merge --base step-40.safetensors 41.weft 42.weft -o 41-42.weft --json\n" HELP_EXIT_CODES;

typedef struct merge_arguments {
    weft_command command;
    char **paths;
    size_t path_count;
    const char *output;
    const char *base;
    weft_profile profile;
    bool profile_given;
    weft_labels labels;
    bool durable;
} merge_arguments;

static void parse_end(merge_arguments *arguments, struct argp_state *state) {
    if (arguments->path_count == 0) {
        argp_error(state, "give the patches to merge, oldest first");
    }
    if (arguments->output == NULL) {
        argp_error(state, "say where to write the patch with -o PATCH ('-' for stdout)");
    }
    if (!arguments->profile_given) {
        arguments->profile = arguments->base != NULL ? WEFT_PROFILE_SMALL : WEFT_PROFILE_FAST;
    }
    if (arguments->profile == WEFT_PROFILE_SMALL && arguments->base == NULL) {
        argp_error(state, "--profile small needs the first patch's base: give --base CKPT");
    }
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    merge_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &arguments->command;
        return 0;
    case 'o':
        arguments->output = argument;
        return 0;
    case OPTION_BASE:
        arguments->base = argument;
        return 0;
    case OPTION_PROFILE:
        arguments->profile = command_parse_profile(state, argument);
        arguments->profile_given = true;
        return 0;
    case OPTION_LABEL:
        labels_parse(&arguments->labels, state, argument);
        return 0;
    case OPTION_DURABLE:
        arguments->durable = true;
        return 0;
    case ARGP_KEY_ARGS:
        arguments->paths = state->argv + state->next;
        arguments->path_count = (size_t)(state->argc - state->next);
        return 0;
    case ARGP_KEY_END:
        parse_end(arguments, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {options, parse, "PATCH PATCH... -o PATCH", doc, command_children,
                                 NULL,    NULL};

/* Bytes of the patches that were merged. */
static uint64_t merged_bytes(const patch_list *list) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < list->count; i++) {
        bytes += weft_patch_describe(list->patches[i]).bytes;
    }
    return bytes;
}

static int print_result(merge_arguments *arguments, const patch_list *list, const weft_diff_stats *stats,
                        double seconds) {
    weft_command *command = &arguments->command;
    FILE *stream = strcmp(arguments->output, "-") == 0 ? stderr : stdout;
    progress_clear(&command->progress);
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, "patches", json_count(list->count));
        json_object_set_new(json, "input_bytes", json_count(merged_bytes(list)));
        json_object_set_new(json, "patch_bytes", json_count(stats->patch_bytes));
        json_object_set_new(json, "changed", json_count(stats->changed));
        json_object_set_new(json, "total", json_count(stats->total));
        json_object_set_new(json, "dense_bytes", json_count(stats->dense_bytes));
        json_object_set_new(json, "bytes_per_change",
                            json_ratio((double)stats->patch_bytes, (double)stats->changed));
        json_object_set_new(json, "buckets", json_count(stats->buckets));
        json_object_set_new(json, "profile", json_string(text_profile(arguments->profile)));
        json_object_set_new(json, "base", json_digest(&stats->base));
        json_object_set_new(json, "result", json_digest(&stats->result));
        json_object_set_new(json, "seconds", json_real(seconds));
        return command_print_json(command, stream, json);
    }
    if (!command->quiet) {
        char a[TEXT_SIZE], b[TEXT_SIZE], base[WEFT_DIGEST_TEXT], result[WEFT_DIGEST_TEXT];
        weft_digest_format(&stats->base, base);
        weft_digest_format(&stats->result, result);
        fprintf(stream, "merged    %zu patches of %s into %s, profile %s\n", list->count,
                text_bytes(merged_bytes(list), a), text_bytes(stats->patch_bytes, b),
                text_profile(arguments->profile));
        fprintf(stream, "changed   %s of %s\n", text_count(stats->changed, a), text_count(stats->total, b));
        fprintf(stream, "base      %s\nresult    %s\ntime      %.3f s\n", base, result, seconds);
    }
    return EXIT_DONE;
}

static int merge(merge_arguments *arguments, const patch_list *list, const weft_model *base,
                 weft_output *output) {
    weft_command *command = &arguments->command;
    weft_merge_options merge = {
        .profile = arguments->profile,
        .base = base->view,
        .labels = arguments->labels.items,
    };
    weft_diff_stats stats;
    double start = clock_seconds();
    weft_status status =
        weft_merge(command->context, list->patches, list->count, &merge, &output->sink, &stats);
    if (status != WEFT_OK) {
        return output_fail(command, output, status);
    }
    int code = output_finish(command, output);
    return code == EXIT_DONE ? print_result(arguments, list, &stats, clock_seconds() - start) : code;
}

static int run(void *input) {
    merge_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_model base = {0};
    patch_list list = {0};
    weft_output output = {.descriptor = -1};
    int code = EXIT_DONE;
    for (size_t i = 0; i < arguments->path_count && code == EXIT_DONE; i++) {
        code = output_guard(command, arguments->output, arguments->paths[i]);
    }
    if (code == EXIT_DONE && arguments->base != NULL) {
        code = output_guard(command, arguments->output, arguments->base);
    }
    if (code == EXIT_DONE && arguments->base != NULL) {
        code = model_open(command, arguments->base, &base);
    }
    if (code == EXIT_DONE) {
        code = patch_list_open(command, arguments->paths, arguments->path_count, &list);
    }
    if (code == EXIT_DONE) {
        code = output_open(command, &output, arguments->output, arguments->durable);
    }
    if (code == EXIT_DONE) {
        code = merge(arguments, &list, &base, &output);
    }
    output_close(&output);
    patch_list_close(&list);
    model_close(&base);
    return code;
}

int verb_merge(int argc, char **argv) {
    merge_arguments arguments = {0};
    int code = command_run(&argp, argc, argv, &arguments, run);
    labels_close(&arguments.labels);
    return code;
}
