/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_merge.c: `weft merge PATCH PATCH… -o PATCH`.
 */
#include "../command.h"

#include <string.h>

static const char doc[] =
    "Compose patches that follow one another into one that does the same: a weight that changed in several "
    "is carried once, and one that changed back not at all.\v" HELP_CKPT
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
    const char *profile_given;
    weft_labels labels;
    bool durable;
} merge_arguments;

static void check_arguments(struct argp_state *state, void *input) {
    merge_arguments *arguments = input;
    if (arguments->path_count == 0) {
        argp_error(state, "give the patches to merge, oldest first");
    }
    if (arguments->output == NULL) {
        argp_error(state, "say where to write the patch with -o PATCH ('-' for stdout)");
    }
    if (arguments->profile_given == NULL) {
        arguments->profile = arguments->base != NULL ? WEFT_PROFILE_SMALL : WEFT_PROFILE_FAST;
    }
    if (arguments->profile == WEFT_PROFILE_SMALL && arguments->base == NULL) {
        argp_error(state, "--profile small needs the first patch's base: give --base CKPT");
    }
}

/* Bytes of the patches that were merged. */
static uint64_t merged_bytes(const patch_list *list) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < list->count; i++) {
        weft_patch_info info = {.size = sizeof info};
        weft_patch_describe(list->patches[i], &info);
        bytes += info.bytes;
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
        .size = sizeof merge,
        .profile = arguments->profile,
        .base = base->view,
        .labels = arguments->labels.items,
    };
    weft_diff_stats stats = {.size = sizeof stats};
    double start = clock_seconds();
    weft_status status =
        weft_merge(command->context, list->patches, list->count, &merge, &output->sink, &stats);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    int code = output_finish(command, output);
    return code == EXIT_DONE ? print_result(arguments, list, &stats, clock_seconds() - start) : code;
}

static int run(void *input) {
    merge_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_model base = {0};
    patch_list list = {0};
    weft_output output = {0};
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
    const weft_option options[] = {
        {"output", "PATCH", 1, "Where to write the merged patch; '-' for stdout", .letter = 'o',
         .text = &arguments.output},
        {"base", "CKPT", 1,
         "The checkpoint that the first patch starts from; needed unless all patches, and the result, are "
         "of profile fast",
         .text = &arguments.base},
        {"profile", "NAME", 1, "small or fast; default: small with --base, fast without",
         .choice = &arguments.profile, .words = PROFILE_WORDS, .given = &arguments.profile_given},
        {"label", "KEY=VALUE", 1, "Text carried along in the patch; may be repeated", .parse = labels_parse,
         .into = &arguments.labels},
        {"durable", NULL, 1, "Return only when the patch would survive a power loss",
         .flag = &arguments.durable},
        {0},
    };
    const weft_form form = {"PATCH PATCH... -o PATCH",
                            doc,
                            {{options, NULL}},
                            .rest = &arguments.paths,
                            .rest_count = &arguments.path_count,
                            .check = check_arguments};
    int code = command_run(&form, argc, argv, &arguments, run);
    labels_close(&arguments.labels);
    return code;
}
