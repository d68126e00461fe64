/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_diff.c: `weft diff BASE NEW -o PATCH`.
 */
#include "../command.h"

#include <stdlib.h>
#include <string.h>

static const char doc[] =
    "Write the patch that turns BASE into NEW, bit for bit. It names the digests of both, and is refused "
    "on any other base.\v" HELP_CKPT
    "\nThe patch appears at its path complete or not at all. The same input gives the same bytes, whatever "
    "the number of threads. With -o - the report goes to stderr.\n"
    "\nExamples:\n"
    "  weft diff step-41.safetensors step-42.safetensors -o 42.weft\n"
    "  weft diff old/ new/ -o - | ssh worker weft apply --in-place model/ -\n"
    "  weft diff old/ new/ -o up.weft --inverse down.weft --label step=42\n"
    "  weft diff old/ new/ -o tp4.weft --cut '*.q_proj.weight:0:4' \\\n"
    "      --cut '*.o_proj.weight:1:4'\n" HELP_EXIT_CODES;

typedef struct diff_arguments {
    weft_command command;
    const char *paths[2];
    const char *output;
    const char *inverse;
    weft_profile profile;
    uint64_t bucket_bytes;
    weft_cuts cuts;
    weft_labels labels;
    bool durable;
} diff_arguments;

static void check_arguments(struct argp_state *state, void *input) {
    const diff_arguments *arguments = input;
    if (arguments->output == NULL) {
        argp_error(state, "say where to write the patch with -o PATCH ('-' for stdout)");
    }
    if (arguments->inverse != NULL && strcmp(arguments->inverse, arguments->output) == 0) {
        argp_error(state, "the patch and its inverse need different files");
    }
}

static int print_json(diff_arguments *arguments, FILE *stream, const weft_diff_stats *stats,
                      double seconds) {
    json_t *json = json_object();
    json_object_set_new(json, "changed", json_count(stats->changed));
    json_object_set_new(json, "total", json_count(stats->total));
    json_object_set_new(json, "density", json_ratio((double)stats->changed, (double)stats->total));
    json_object_set_new(json, "patch_bytes", json_count(stats->patch_bytes));
    json_object_set_new(json, "dense_bytes", json_count(stats->dense_bytes));
    json_object_set_new(json, "ratio", json_ratio((double)stats->dense_bytes, (double)stats->patch_bytes));
    json_object_set_new(json, "bytes_per_change",
                        json_ratio((double)stats->patch_bytes, (double)stats->changed));
    json_object_set_new(json, "buckets", json_count(stats->buckets));
    json_object_set_new(json, "profile", json_string(text_profile(arguments->profile)));
    json_object_set_new(json, "base", json_digest(&stats->base));
    json_object_set_new(json, "result", json_digest(&stats->result));
    json_object_set_new(json, "inverse_bytes",
                        arguments->inverse != NULL ? json_count(stats->inverse_bytes) : json_null());
    json_object_set_new(json, "seconds", json_real(seconds));
    return command_print_json(&arguments->command, stream, json);
}

static void print_text(const diff_arguments *arguments, FILE *stream, const weft_diff_stats *stats,
                       double seconds) {
    char a[TEXT_SIZE], b[TEXT_SIZE], base[WEFT_DIGEST_TEXT], result[WEFT_DIGEST_TEXT];
    weft_digest_format(&stats->base, base);
    weft_digest_format(&stats->result, result);
    double density = stats->total > 0 ? 100.0 * (double)stats->changed / (double)stats->total : 0;
    fprintf(stream, "changed   %s of %s (%.3f%%)\n", text_count(stats->changed, a),
            text_count(stats->total, b), density);
    fprintf(stream, "patch     %s for %s", text_bytes(stats->patch_bytes, a),
            text_bytes(stats->dense_bytes, b));
    if (stats->patch_bytes > 0) {
        fprintf(stream, " (%.1f times smaller)", (double)stats->dense_bytes / (double)stats->patch_bytes);
    }
    if (stats->changed > 0) {
        fprintf(stream, ", %.3f bytes per change", (double)stats->patch_bytes / (double)stats->changed);
    }
    fprintf(stream, "\nbuckets   %s, profile %s\n", text_count(stats->buckets, a),
            text_profile(arguments->profile));
    if (arguments->inverse != NULL) {
        fprintf(stream, "inverse   %s\n", text_bytes(stats->inverse_bytes, a));
    }
    fprintf(stream, "base      %s\nresult    %s\ntime      %.3f s\n", base, result, seconds);
}

static int print_result(diff_arguments *arguments, const weft_diff_stats *stats, double seconds) {
    bool stdout_taken = strcmp(arguments->output, "-") == 0 ||
                        (arguments->inverse != NULL && strcmp(arguments->inverse, "-") == 0);
    FILE *stream = stdout_taken ? stderr : stdout;
    progress_clear(&arguments->command.progress);
    if (arguments->command.json) {
        return print_json(arguments, stream, stats, seconds);
    }
    if (!arguments->command.quiet) {
        print_text(arguments, stream, stats, seconds);
    }
    return EXIT_DONE;
}

static int guard_outputs(diff_arguments *arguments) {
    int code = EXIT_DONE;
    for (int i = 0; i < 2 && code == EXIT_DONE; i++) {
        code = output_guard(&arguments->command, arguments->output, arguments->paths[i]);
        if (code == EXIT_DONE && arguments->inverse != NULL) {
            code = output_guard(&arguments->command, arguments->inverse, arguments->paths[i]);
        }
    }
    return code;
}

/* Runs the diff into outputs that are open, and finishes them. */
static int write_patch(diff_arguments *arguments, const weft_model models[2], weft_output *patch,
                       weft_output *inverse) {
    weft_command *command = &arguments->command;
    weft_diff_options diff = {
        .size = sizeof diff,
        .profile = arguments->profile,
        .bucket_bytes = arguments->bucket_bytes,
        .cuts = arguments->cuts.items,
        .cut_count = arguments->cuts.count,
        .base_container = weft_checkpoint_container(models[0].checkpoint),
        .new_container = weft_checkpoint_container(models[1].checkpoint),
        .labels = arguments->labels.items,
        .inverse = arguments->inverse != NULL ? &inverse->sink : NULL,
    };
    weft_diff_stats stats = {.size = sizeof stats};
    double start = clock_seconds();
    weft_status status =
        weft_diff(command->context, models[0].view, models[1].view, &diff, &patch->sink, &stats);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    int code = output_finish(command, patch);
    if (code == EXIT_DONE && arguments->inverse != NULL) {
        code = output_finish(command, inverse);
    }
    return code == EXIT_DONE ? print_result(arguments, &stats, clock_seconds() - start) : code;
}

static int run(void *input) {
    diff_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_model models[2] = {{0}};
    weft_output patch = {0}, inverse = {0};
    int code = guard_outputs(arguments);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++) {
        code = model_open(command, arguments->paths[i], &models[i]);
    }
    if (code == EXIT_DONE) {
        code = output_open(command, &patch, arguments->output, arguments->durable);
    }
    if (code == EXIT_DONE && arguments->inverse != NULL) {
        code = output_open(command, &inverse, arguments->inverse, arguments->durable);
    }
    if (code == EXIT_DONE) {
        code = write_patch(arguments, models, &patch, &inverse);
    }
    output_close(&inverse);
    output_close(&patch);
    model_close(&models[1]);
    model_close(&models[0]);
    return code;
}

int verb_diff(int argc, char **argv) {
    diff_arguments arguments = {.profile = WEFT_PROFILE_SMALL};
    const weft_option options[] = {
        {"output", "PATCH", 1, "Where to write the patch; '-' for stdout", .letter = 'o',
         .text = &arguments.output},
        {"profile", "NAME", 1,
         "small (default): the fewest bytes, decoded with the base at hand; fast: more bytes, quicker on "
         "both sides, decoded without the base",
         .choice = &arguments.profile, .words = PROFILE_WORDS},
        {"inverse", "FILE", 1, "Also write the patch from NEW back to BASE, from the same pass",
         .text = &arguments.inverse},
        {"bucket-size", "SIZE", 1,
         "Weights per bucket, the unit that is coded and checked alone; suffixes K, M, KiB, MiB (default "
         "8MiB)",
         .bytes = &arguments.bucket_bytes},
        {"cut", "PATTERN:DIM:PARTS", 1, HELP_CUT, .parse = cuts_parse, .into = &arguments.cuts},
        {"label", "KEY=VALUE", 1, "Text carried along in the patch; may be repeated", .parse = labels_parse,
         .into = &arguments.labels},
        {"durable", NULL, 1, "Return only when the patch would survive a power loss",
         .flag = &arguments.durable},
        {0},
    };
    const weft_form form = {"BASE NEW -o PATCH",
                            doc,
                            {{options, NULL}},
                            .paths = {arguments.paths, 2, 2, "give two checkpoints: BASE and NEW"},
                            .check = check_arguments};
    int code = command_run(&form, argc, argv, &arguments, run);
    cuts_close(&arguments.cuts);
    labels_close(&arguments.labels);
    return code;
}
