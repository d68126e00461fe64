/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_memory.c: publishing from live memory to a directory, and the pause of a worker whose weights
 * are live memory. Beside each stands memcpy with as many threads, run in turn with what it is compared to.
 */
#include "bench_sync.h"

#include <stdlib.h>
#include <string.h>

/* How long memcpy takes for `bytes` with the bench's threads; keeps the smallest. */
static int time_copy(sync_bench *bench, uint64_t bytes, double *best) {
    bench_row row = {.threads = bench->threads};
    int code = bench_memcpy(bench->command, 1, &row);
    double seconds = row.encode * (double)bytes / (double)row.bytes;
    if (*best == 0 || seconds < *best) {
        *best = seconds;
    }
    return code;
}

int sync_stepped_open(sync_bench *bench, uint64_t parameters, sync_stepped *stepped) {
    const bench_options *options = bench->options;
    weft_trace trace;
    *stepped = (sync_stepped){0};
    int code = trace_open(bench->command, &trace, parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    code = bench_model_generate(bench->command, &stepped->model, &trace);
    trace_close(&trace);
    progress_clear(&bench->command->progress);
    return code;
}

int sync_stepped_changes(sync_bench *bench, sync_stepped *stepped, uint64_t count) {
    bench_model *model = &stepped->model;
    return count > 0 ? sync_flips_scatter(bench, model, count, &stepped->flips)
                     : sync_flips_between(bench, model, model->base, model->next, &stepped->flips);
}

void sync_stepped_close(sync_stepped *stepped) {
    sync_flips_close(&stepped->flips);
    bench_model_close(&stepped->model);
}

/* ---- publish ---- */

static int publish_rows(sync_bench *bench, sync_pair *pair, const sync_flips *flips,
                        sync_publish_results *results, sync_publish_row *row, double *samples) {
    int code = EXIT_DONE;
    for (unsigned i = 0; i < bench->options->repeat && code == EXIT_DONE; i++) {
        weft_publish_result result = {.size = sizeof result};
        code = time_copy(bench, results->bytes, &results->copy);
        if (code == EXIT_DONE) {
            code = sync_pair_publish(pair, flips, &result);
        }
        if (code == EXIT_DONE) {
            samples[i] = result.seconds;
            row->patch_bytes = result.patch_bytes;
            row->uploaded_bytes = result.uploaded_bytes;
            if (i == 0 || result.seconds < row->seconds.best) {
                row->seconds.best = result.seconds;
                row->diff = result.diff_seconds;
                row->upload = result.upload_seconds;
                row->head = result.head_seconds;
            }
            results->changed = result.changed;
        }
    }
    return code;
}

static int publish_profile(sync_bench *bench, sync_stepped *stepped, sync_publish_results *results,
                           sync_publish_row *row) {
    double *samples = calloc(bench->options->repeat, sizeof *samples);
    char *path = sync_store_path(bench, "published");
    sync_pair pair = {0};
    sync_pair_options options = {.profile = row->profile};
    int code = samples != NULL && path != NULL ? EXIT_DONE : sync_no_memory(bench);
    if (code == EXIT_DONE) {
        code = sync_pair_open(bench, &stepped->model, path, &options, &pair);
    }
    if (code == EXIT_DONE) {
        code = publish_rows(bench, &pair, &stepped->flips, results, row, samples);
        sync_pair_close(&pair);
    }
    if (code == EXIT_DONE) {
        row->seconds = sync_times_of(samples, bench->options->repeat);
    }
    sync_store_remove(path);
    free(samples);
    return code;
}

int bench_sync_publish(sync_bench *bench, sync_results *all) {
    sync_publish_results *results = &all->publish;
    sync_stepped stepped;
    int code = sync_stepped_open(bench, bench->options->parameters, &stepped);
    if (code == EXIT_DONE) {
        code = sync_stepped_changes(bench, &stepped, 0);
    }
    results->total = stepped.model.units;
    results->bytes = stepped.model.units * sizeof(uint16_t);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++) {
        results->rows[i].profile = i == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL;
        code = publish_profile(bench, &stepped, results, &results->rows[i]);
    }
    sync_stepped_close(&stepped);
    return code;
}

/* ---- the pause ---- */

static int run_pause(sync_bench *bench, sync_pair *pair, const sync_flips *flips,
                     sync_pause_results *results, double *prepares, double *commits) {
    int code = EXIT_DONE;
    for (unsigned i = 0; i < bench->options->repeat && code == EXIT_DONE; i++) {
        code = time_copy(bench, results->total * sizeof(uint16_t), &results->copy);
        if (code == EXIT_DONE) {
            code = sync_pair_publish(pair, flips, NULL);
        }
        if (code == EXIT_DONE) {
            code = sync_pair_follow(pair, &prepares[i], &commits[i]);
        }
    }
    return code;
}

int bench_sync_pause(sync_bench *bench, sync_results *all) {
    sync_pause_results *results = &all->pause;
    enum { PARAMETERS = 256000000 };
    uint64_t parameters = bench->options->parameters;
    unsigned repeat = bench->options->repeat;
    sync_stepped stepped;
    sync_pair pair = {0};
    sync_pair_options options = {.profile = WEFT_PROFILE_SMALL, .follow = true};
    double *samples = calloc(2 * (size_t)repeat, sizeof *samples);
    char *path = sync_store_path(bench, "paused");
    int code = sync_stepped_open(bench, parameters < PARAMETERS ? parameters : PARAMETERS, &stepped);
    if (code == EXIT_DONE) {
        code = sync_stepped_changes(bench, &stepped, 0);
    }
    if (code == EXIT_DONE && (samples == NULL || path == NULL)) {
        code = sync_no_memory(bench);
    }
    if (code == EXIT_DONE) {
        code = sync_pair_open(bench, &stepped.model, path, &options, &pair);
    }
    if (code == EXIT_DONE) {
        results->total = stepped.model.units;
        results->changed = stepped.flips.count;
        code = run_pause(bench, &pair, &stepped.flips, results, samples, samples + repeat);
        sync_pair_close(&pair);
    }
    if (code == EXIT_DONE) {
        results->prepare = sync_times_of(samples, repeat);
        results->commit = sync_times_of(samples + repeat, repeat);
    }
    sync_stepped_close(&stepped);
    sync_store_remove(path);
    free(samples);
    return code;
}

/* ---- how the pause grows with the model ---- */

/* One of the two models. */
typedef struct scaled {
    sync_stepped stepped;
    sync_pair pair;
    char *path;
    double *commits;
} scaled;

static void close_scaled(scaled *side) {
    sync_pair_close(&side->pair);
    sync_stepped_close(&side->stepped);
    sync_store_remove(side->path);
    free(side->commits);
}

static int open_scaled(sync_bench *bench, uint64_t parameters, uint64_t changes, const char *name,
                       scaled *side) {
    sync_pair_options options = {.profile = WEFT_PROFILE_SMALL, .follow = true};
    *side = (scaled){.commits = calloc(bench->options->repeat, sizeof *side->commits)};
    int code = sync_stepped_open(bench, parameters, &side->stepped);
    if (code == EXIT_DONE) {
        code = sync_stepped_changes(bench, &side->stepped, changes);
    }
    if (code == EXIT_DONE && (side->path = sync_store_path(bench, name)) == NULL) {
        code = EXIT_FAILED;
    }
    if (code == EXIT_DONE && side->commits == NULL) {
        code = sync_no_memory(bench);
    }
    return code == EXIT_DONE
               ? sync_pair_open(bench, &side->stepped.model, side->path, &options, &side->pair)
               : code;
}

static int run_scaled(scaled *side, unsigned run) {
    double prepare;
    int code = sync_pair_publish(&side->pair, &side->stepped.flips, NULL);
    return code == EXIT_DONE ? sync_pair_follow(&side->pair, &prepare, &side->commits[run]) : code;
}

int bench_sync_scaling(sync_bench *bench, sync_results *all) {
    sync_scaling_results *results = &all->scaling;
    enum { SMALL_PARAMETERS = 64000000 };
    uint64_t large = bench->options->parameters;
    uint64_t small = large / 4 < SMALL_PARAMETERS ? large / 4 : SMALL_PARAMETERS;
    scaled sides[2] = {{.path = NULL}};
    int code = open_scaled(bench, small, small / 100, "small", &sides[0]);
    if (code == EXIT_DONE) {
        code = open_scaled(bench, large, small / 100, "large", &sides[1]);
    }
    for (unsigned i = 0; i < 2 * bench->options->repeat && code == EXIT_DONE; i++) {
        code = run_scaled(&sides[i % 2], i / 2);
    }
    results->changed = sides[0].stepped.flips.count;
    for (int i = 0; i < 2; i++) {
        if (code == EXIT_DONE) {
            results->totals[i] = sides[i].stepped.model.units;
            results->commits[i] = sync_times_of(sides[i].commits, bench->options->repeat);
        }
        close_scaled(&sides[i]);
    }
    return code;
}
