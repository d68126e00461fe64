/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_stats.c: `weft stats BASE NEW`, the researcher's view of a step: what changed, where, by how
 * much, and what it costs against the bound.
 */
#include "../survey.h"

#include <stdlib.h>
#include <string.h>

static const char doc[] =
    "Count what changed between two checkpoints: density overall, by tensor and by exponent of the old "
    "weight; the sizes of the steps; and what the patch costs in each profile.\v" HELP_CKPT
    "\nThe bound is the entropy H(position | exponent byte) + H(step | exponent byte) in bits per change, "
    "pooled over the BF16 tensors that both have. The exponent byte is (old >> 7) & 0xff; a step is (new - "
    "old) mod 2^16 of the bits. The position term is the sum over exponents e of n_e h(c_e / n_e) / C, "
    "with h the binary entropy, n_e weights and c_e of C changes; the step term comes from exact "
    "histograms. Beside it stand the same without the exponent (iid). A profile's cost is the whole patch "
    "file.\n"
    "\nSteps of one sign count in ULPs, + away from zero; up and down are by value.\n"
    "\nExamples:\n"
    "  weft stats step-41.safetensors step-42.safetensors\n"
    "  weft stats old/ new/ --all-tensors\n"
    "  weft stats old/ new/ --json | jq .profiles.small.bits_per_change\n" HELP_EXIT_CODES;

typedef struct stats_arguments {
    weft_command command;
    const char *paths[2];
    uint64_t top;
    bool all_tensors;
    bool no_profiles;
} stats_arguments;

/* What one profile costs. */
typedef struct profile_cost {
    uint64_t bytes;
    double seconds;
} profile_cost;

/* ---- what the profiles cost ---- */

static weft_status swallow(void *opaque, const void *data, size_t size) {
    (void)opaque;
    (void)data;
    (void)size;
    return WEFT_OK;
}

static int measure_profile(weft_command *command, const weft_model models[2], weft_profile profile,
                           profile_cost *cost) {
    weft_sink sink = {.write = swallow};
    weft_diff_options diff = {
        .size = sizeof diff,
        .profile = profile,
        .base_container = weft_checkpoint_container(models[0].checkpoint),
        .new_container = weft_checkpoint_container(models[1].checkpoint),
    };
    weft_diff_stats stats = {.size = sizeof stats};
    double start = clock_seconds();
    weft_status status = weft_diff(command->context, models[0].view, models[1].view, &diff, &sink, &stats);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    cost->bytes = stats.patch_bytes;
    cost->seconds = clock_seconds() - start;
    return EXIT_DONE;
}

/* The bound speaks of BF16 changes only; a patch that carries others cannot be held against it. */
static bool comparable(const weft_survey *survey) {
    return survey->changed > 0 && survey->changed == survey->bf16_changed && survey->added == 0 &&
           survey->replaced == 0;
}

/* ---- JSON ---- */

static const char *const ulp_keys[ULP_CLASSES] = {"minus_more", "minus_3", "minus_2",   "minus_1", "plus_1",
                                                  "plus_2",     "plus_3",  "plus_more", "sign"};
static const char *const ulp_names[ULP_CLASSES] = {"-4 and more", "-3", "-2",          "-1",        "+1",
                                                   "+2",          "+3", "+4 and more", "sign flips"};

static json_t *tensors_json(const survey_tensor *tensors, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const survey_tensor *tensor = &tensors[i];
        const weft_tensor *shown = tensor->next != NULL ? tensor->next : tensor->base;
        json_t *json = json_object();
        json_object_set_new(json, "name", json_string(shown->name));
        json_object_set_new(json, "dtype", json_string(weft_dtype_name(shown->dtype)));
        json_object_set_new(json, "shape", json_shape(shown));
        json_object_set_new(json, "fate",
                            json_string(tensor->kept           ? "kept"
                                        : tensor->base == NULL ? "added"
                                        : tensor->next == NULL ? "removed"
                                                               : "replaced"));
        json_object_set_new(json, "total", json_count(tensor->units));
        json_object_set_new(json, "changed", json_count(tensor->changed));
        json_object_set_new(json, "density", json_ratio((double)tensor->changed, (double)tensor->units));
        json_array_append_new(list, json);
    }
    return list;
}

static json_t *exponents_json(const weft_survey *survey) {
    json_t *list = json_array();
    for (unsigned e = 0; e < SURVEY_EXPONENTS; e++) {
        double weights = (double)survey->bf16.weights[e], changed = (double)survey->bf16.changed[e];
        if (survey->bf16.weights[e] == 0) {
            continue;
        }
        json_t *json = json_object();
        json_object_set_new(json, "exponent", json_count(e));
        json_object_set_new(json, "total", json_count(survey->bf16.weights[e]));
        json_object_set_new(json, "changed", json_count(survey->bf16.changed[e]));
        json_object_set_new(json, "density", json_ratio(changed, weights));
        json_object_set_new(json, "share_of_weights", json_ratio(weights, (double)survey->bf16_total));
        json_object_set_new(json, "share_of_changes", json_ratio(changed, (double)survey->bf16_changed));
        json_array_append_new(list, json);
    }
    return list;
}

static json_t *steps_json(const weft_survey *survey) {
    json_t *json = json_object();
    for (unsigned c = 0; c < ULP_CLASSES; c++) {
        json_object_set_new(json, ulp_keys[c], json_count(survey->bf16.ulp[c]));
    }
    json_object_set_new(json, "up", json_count(survey->bf16.up));
    json_object_set_new(json, "down", json_count(survey->bf16.down));
    return json;
}

static json_t *bound_json(const survey_bound *bound) {
    json_t *json = json_object();
    json_object_set_new(json, "position_bits", json_real(bound->position));
    json_object_set_new(json, "step_bits", json_real(bound->step));
    json_object_set_new(json, "bits_per_change", json_real(bound->position + bound->step));
    json_object_set_new(json, "position_bits_iid", json_real(bound->position_iid));
    json_object_set_new(json, "step_bits_iid", json_real(bound->step_iid));
    return json;
}

static json_t *profiles_json(const weft_survey *survey, const survey_bound *bound,
                             const profile_cost costs[2]) {
    json_t *json = json_object();
    for (int i = 0; i < 2; i++) {
        json_t *profile = json_object();
        double bits = 8.0 * (double)costs[i].bytes, changed = (double)survey->changed;
        double limit = comparable(survey) ? (bound->position + bound->step) * changed : 0;
        json_object_set_new(profile, "patch_bytes", json_count(costs[i].bytes));
        json_object_set_new(profile, "bits_per_change", json_ratio(bits, changed));
        json_object_set_new(profile, "bytes_per_change", json_ratio(bits / 8, changed));
        json_object_set_new(profile, "ratio_to_bound", json_ratio(bits, limit));
        json_object_set_new(profile, "seconds", json_real(costs[i].seconds));
        json_object_set_new(json, text_profile((weft_profile)i), profile);
    }
    return json;
}

static int print_json(stats_arguments *arguments, const weft_survey *survey, const survey_bound *bound,
                      const profile_cost costs[2]) {
    json_t *json = json_object();
    json_object_set_new(json, "changed", json_count(survey->changed));
    json_object_set_new(json, "total", json_count(survey->total));
    json_object_set_new(json, "density", json_ratio((double)survey->changed, (double)survey->total));
    json_object_set_new(json, "added", json_count(survey->added));
    json_object_set_new(json, "removed", json_count(survey->removed));
    json_object_set_new(json, "replaced", json_count(survey->replaced));
    json_object_set_new(json, "bf16_changed", json_count(survey->bf16_changed));
    json_object_set_new(json, "bf16_total", json_count(survey->bf16_total));
    json_object_set_new(json, "tensors", tensors_json(survey->tensors, survey->tensor_count));
    json_object_set_new(json, "exponents", exponents_json(survey));
    json_object_set_new(json, "steps", steps_json(survey));
    json_object_set_new(json, "bound", survey->bf16_changed > 0 ? bound_json(bound) : json_null());
    json_object_set_new(json, "profiles",
                        !arguments->no_profiles ? profiles_json(survey, bound, costs) : json_null());
    return command_print_json(&arguments->command, stdout, json);
}

/* ---- text ---- */

static double percent(uint64_t part, uint64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static int by_density(const void *left, const void *right) {
    const survey_tensor *a = left, *b = right;
    double difference = percent(b->changed, b->units) - percent(a->changed, a->units);
    if (difference != 0) {
        return difference > 0 ? 1 : -1;
    }
    const char *a_name = (a->next != NULL ? a->next : a->base)->name;
    const char *b_name = (b->next != NULL ? b->next : b->base)->name;
    return strcmp(a_name, b_name);
}

static void print_tensors(const stats_arguments *arguments, weft_survey *survey) {
    qsort(survey->tensors, survey->tensor_count, sizeof *survey->tensors, by_density);
    bool all = arguments->all_tensors || arguments->top >= survey->tensor_count;
    size_t shown = all ? survey->tensor_count : (size_t)arguments->top;
    printf("\ntensors, densest first%s\n",
           shown < survey->tensor_count ? " (--all-tensors for the rest)" : "");
    for (size_t i = 0; i < shown; i++) {
        const survey_tensor *tensor = &survey->tensors[i];
        const weft_tensor *form = tensor->next != NULL ? tensor->next : tensor->base;
        char count[TEXT_SIZE], shape[SHAPE_SIZE];
        if (tensor->kept) {
            printf("  %8.3f%%  %14s  ", percent(tensor->changed, tensor->units),
                   text_count(tensor->changed, count));
        } else {
            printf("  %9s  %14s  ",
                   tensor->base == NULL   ? "added"
                   : tensor->next == NULL ? "removed"
                                          : "replaced",
                   "");
        }
        printf("%-8s %-16s ", weft_dtype_name(form->dtype), text_shape(form, shape));
        text_print(stdout, form->name);
        putchar('\n');
    }
}

/* Exponents that hold next to nothing are summed up in a last line. */
static void print_exponents(const weft_survey *survey) {
    char count[TEXT_SIZE];
    uint64_t other_weights = 0, other_changed = 0;
    printf("\nby exponent of the old weight (BF16)\n  %8s %16s %10s %10s %10s\n", "|weight|", "weights",
           "density", "of weights", "of changes");
    for (int e = SURVEY_EXPONENTS - 1; e >= 0; e--) {
        uint64_t weights = survey->bf16.weights[e], changed = survey->bf16.changed[e];
        double of_weights = percent(weights, survey->bf16_total);
        double of_changes = percent(changed, survey->bf16_changed);
        if (of_weights < 0.5 && of_changes < 0.5) {
            other_weights += weights;
            other_changed += changed;
            continue;
        }
        char label[TEXT_SIZE];
        snprintf(label, sizeof label, e == 0 ? "<2^-126" : "2^%d", e - 127);
        printf("  %8s %16s %9.3f%% %9.2f%% %9.2f%%\n", label, text_count(weights, count),
               percent(changed, weights), of_weights, of_changes);
    }
    if (other_weights > 0) {
        printf("  %8s %16s %9.3f%% %9.2f%% %9.2f%%\n", "others", text_count(other_weights, count),
               percent(other_changed, other_weights), percent(other_weights, survey->bf16_total),
               percent(other_changed, survey->bf16_changed));
    }
}

static void print_text(const stats_arguments *arguments, weft_survey *survey, const survey_bound *bound,
                       const profile_cost costs[2]) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    printf("changed   %s of %s (%.4f%%)\n", text_count(survey->changed, a), text_count(survey->total, b),
           percent(survey->changed, survey->total));
    printf("tensors   %zu (%llu added, %llu removed, %llu replaced)\n", survey->tensor_count,
           (unsigned long long)survey->added, (unsigned long long)survey->removed,
           (unsigned long long)survey->replaced);
    print_tensors(arguments, survey);
    if (survey->bf16_changed > 0) {
        print_exponents(survey);
        char count[TEXT_SIZE];
        uint64_t changed = survey->bf16_changed;
        printf("\nsteps in ULPs, + away from zero (BF16)\n");
        for (unsigned c = 0; c < ULP_CLASSES; c++) {
            printf("  %-12s %14s %9.3f%%\n", ulp_names[c], text_count(survey->bf16.ulp[c], count),
                   percent(survey->bf16.ulp[c], changed));
        }
        printf("  by value: %.2f%% up, %.2f%% down\n", percent(survey->bf16.up, changed),
               percent(survey->bf16.down, changed));
        double limit = bound->position + bound->step;
        printf("\nbits per change     position     step    total\n");
        printf("  iid entropy       %8.3f %8.3f %8.3f\n", bound->position_iid, bound->step_iid,
               bound->position_iid + bound->step_iid);
        printf("  given exponent    %8.3f %8.3f %8.3f  <- the bound\n", bound->position, bound->step,
               limit);
        for (int i = 0; !arguments->no_profiles && i < 2; i++) {
            char size[TEXT_SIZE];
            double bits = 8.0 * (double)costs[i].bytes / (double)survey->changed;
            printf("  profile %-5s                      %8.3f", text_profile((weft_profile)i), bits);
            if (comparable(survey)) {
                printf("  %.3f x bound", bits / limit);
            }
            printf(", %.3f bytes per change, %s in %.2f s\n", bits / 8, text_bytes(costs[i].bytes, size),
                   costs[i].seconds);
        }
        if (!comparable(survey)) {
            printf("  (the patches also carry what is not BF16 or not in both: no ratio to the bound)\n");
        }
    }
}

static int report_survey(stats_arguments *arguments, const weft_model models[2], weft_survey *survey) {
    weft_command *command = &arguments->command;
    profile_cost costs[2] = {{0}};
    for (int i = 0; !arguments->no_profiles && i < 2; i++) {
        int code = measure_profile(command, models, (weft_profile)i, &costs[i]);
        if (code != EXIT_DONE) {
            return code;
        }
    }
    survey_bound bound = survey_entropy(survey);
    progress_clear(&command->progress);
    if (command->json) {
        return print_json(arguments, survey, &bound, costs);
    }
    print_text(arguments, survey, &bound, costs);
    return EXIT_DONE;
}

static int run(void *input) {
    stats_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_model models[2] = {{0}};
    int code = EXIT_DONE;
    for (int i = 0; i < 2 && code == EXIT_DONE; i++) {
        code = model_open(command, arguments->paths[i], &models[i]);
    }
    if (code == EXIT_DONE) {
        weft_survey survey;
        code = survey_run(command, weft_checkpoint_table(models[0].checkpoint),
                          weft_checkpoint_table(models[1].checkpoint), &survey);
        if (code == EXIT_DONE) {
            code = report_survey(arguments, models, &survey);
            survey_close(&survey);
        }
    }
    model_close(&models[1]);
    model_close(&models[0]);
    return code;
}

int verb_stats(int argc, char **argv) {
    stats_arguments arguments = {.top = 10};
    const weft_option options[] = {
        {"top", "N", 1, "Show the N tensors with the highest density (default 10)",
         .number = &arguments.top, .most = UINT32_MAX},
        {"all-tensors", NULL, 1, "Show every tensor", .flag = &arguments.all_tensors},
        {"no-profiles", NULL, 1, "Do not make the patches to see what each profile costs",
         .flag = &arguments.no_profiles},
        {0},
    };
    const weft_form form = {"BASE NEW",
                            doc,
                            {{options, NULL}},
                            .paths = {arguments.paths, 2, 2, "give two checkpoints: BASE and NEW"}};
    return command_run(&form, argc, argv, &arguments, run);
}
