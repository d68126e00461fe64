/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync.c: `weft bench --sync`: which parts run, in which sizes, and how the results are told.
 */
#include "bench_sync.h"

#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

json_t *sync_times_json(const sync_times *times) {
    json_t *json = json_object();
    json_object_set_new(json, "best", json_real(times->best));
    json_object_set_new(json, "median", json_real(times->median));
    json_object_set_new(json, "p99", json_real(times->p99));
    json_object_set_new(json, "worst", json_real(times->worst));
    return json;
}

static json_t *publish_json(const sync_results *all) {
    const sync_publish_results *results = &all->publish;
    json_t *json = json_object(), *rows = json_array();
    for (int i = 0; i < 2; i++) {
        const sync_publish_row *row = &results->rows[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "profile", json_string(text_profile(row->profile)));
        json_object_set_new(entry, "patch_bytes", json_count(row->patch_bytes));
        json_object_set_new(entry, "uploaded_bytes", json_count(row->uploaded_bytes));
        json_object_set_new(entry, "bytes_per_change",
                            json_ratio((double)row->patch_bytes, (double)results->changed));
        json_object_set_new(entry, "seconds", sync_times_json(&row->seconds));
        json_object_set_new(entry, "diff_seconds", json_real(row->diff));
        json_object_set_new(entry, "upload_seconds", json_real(row->upload));
        json_object_set_new(entry, "head_seconds", json_real(row->head));
        json_object_set_new(entry, "gb_per_second",
                            json_ratio(1e-9 * (double)results->bytes, row->seconds.best));
        json_object_set_new(entry, "to_memcpy", json_ratio(results->copy, row->seconds.best));
        json_array_append_new(rows, entry);
    }
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "memcpy_seconds", json_real(results->copy));
    json_object_set_new(json, "rows", rows);
    return json;
}

static json_t *pause_json(const sync_results *all) {
    const sync_pause_results *results = &all->pause;
    json_t *json = json_object();
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "prepare_seconds", sync_times_json(&results->prepare));
    json_object_set_new(json, "commit_seconds", sync_times_json(&results->commit));
    json_object_set_new(json, "memcpy_seconds", json_real(results->copy));
    return json;
}

static json_t *scaling_json(const sync_results *all) {
    const sync_scaling_results *results = &all->scaling;
    json_t *json = json_object(), *models = json_array();
    for (int i = 0; i < 2; i++) {
        json_t *entry = json_object();
        json_object_set_new(entry, "total", json_count(results->totals[i]));
        json_object_set_new(entry, "commit_seconds", sync_times_json(&results->commits[i]));
        json_array_append_new(models, entry);
    }
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "models", models);
    json_object_set_new(json, "factor", json_ratio(results->commits[1].median, results->commits[0].median));
    return json;
}

json_t *sync_latency_json(const sync_latency_results *results) {
    json_t *json = json_object();
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "versions", json_count(results->versions));
    json_object_set_new(json, "lost", json_count(results->lost));
    json_object_set_new(json, "seconds", sync_times_json(&results->seconds));
    json_object_set_new(json, "p99_to_median", json_ratio(results->seconds.p99, results->seconds.median));
    json_object_set_new(json, "publisher_requests_per_version", json_real(results->requests_up));
    json_object_set_new(json, "publisher_bytes_per_version", json_real(results->bytes_up));
    json_object_set_new(json, "head_bytes_per_version", json_real(results->head_bytes));
    json_object_set_new(json, "page_bytes_per_version", json_real(results->page_bytes));
    json_object_set_new(json, "follower_requests_per_version", json_real(results->requests_down));
    json_object_set_new(json, "follower_bytes_per_version", json_real(results->bytes_down));
    json_object_set_new(json, "anchors", json_count(results->anchors));
    return json;
}

static json_t *bucketing_json(const sync_results *all) {
    const sync_bucketing_results *results = &all->bucketing;
    json_t *json = json_object(), *rows = json_array();
    for (int i = 0; i < SYNC_WAYS; i++) {
        const sync_bucketing_row *row = &results->rows[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "name", json_string(row->name));
        json_object_set_new(entry, "requests", json_count(row->requests));
        json_object_set_new(entry, "bytes", json_count(row->bytes));
        json_object_set_new(entry, "seconds", sync_times_json(&row->seconds));
        json_array_append_new(rows, entry);
    }
    json_object_set_new(json, "tensors", json_count(results->tensors));
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "rows", rows);
    return json;
}

static json_t *catch_up_json(const sync_results *all) {
    const sync_catch_up_results *results = &all->catch_up;
    json_t *json = json_object(), *rows = json_array();
    size_t worst;
    for (int i = 0; i < SYNC_ABSENCES; i++) {
        const sync_absence *absence = &results->absences[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "from", json_count(absence->from));
        json_object_set_new(entry, "replayed_bytes", json_count(absence->replayed));
        json_object_set_new(entry, "fetched_bytes", json_count(absence->fetched));
        json_object_set_new(entry, "requests", json_count(absence->requests));
        json_object_set_new(entry, "steps", json_count(absence->steps));
        json_object_set_new(entry, "anchors", json_count(absence->anchors));
        json_object_set_new(entry, "seconds", json_real(absence->seconds));
        json_array_append_new(rows, entry);
    }
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "missed", json_count(results->missed));
    json_object_set_new(json, "anchor_bytes", json_count(results->anchor_bytes));
    json_object_set_new(json, "patch_bytes", json_count(results->patch_bytes));
    json_object_set_new(json, "leap_bytes", json_count(results->leap_bytes));
    json_object_set_new(json, "worst", json_real(sync_catch_up_worst(results, &worst)));
    json_object_set_new(json, "worst_row", json_count(worst));
    json_object_set_new(json, "mean", json_real(sync_catch_up_mean(results)));
    json_object_set_new(json, "rows", rows);
    return json;
}

static json_t *group_json(const sync_results *all) {
    const sync_group_results *results = &all->group;
    json_t *json = json_object(), *rows = json_array();
    for (int i = 0; i < 2; i++) {
        const sync_group_row *row = &results->rows[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "name", json_string(row->name));
        json_object_set_new(entry, "pause_seconds", sync_times_json(&row->pause));
        json_object_set_new(entry, "seconds", sync_times_json(&row->seconds));
        json_object_set_new(entry, "processor_seconds_per_version", json_real(row->processor));
        json_object_set_new(entry, "bytes_per_version", json_real(row->bytes));
        json_object_set_new(entry, "requests_per_version", json_real(row->requests));
        json_array_append_new(rows, entry);
    }
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "versions", json_count(results->versions));
    json_object_set_new(json, "replicas", json_count(SYNC_GROUP_RANKS));
    json_object_set_new(json, "rows", rows);
    return json;
}

static uint64_t highest(const uint64_t *values) {
    uint64_t most = 0;
    for (int i = 0; i < SYNC_TEAM; i++) {
        most = values[i] > most ? values[i] : most;
    }
    return most;
}

static json_t *parts_json(const sync_results *all) {
    const sync_parts_results *results = &all->parts;
    json_t *json = json_object(), *rows = json_array();
    for (int i = 0; i < 2; i++) {
        const sync_parts_row *row = &results->rows[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "profile", json_string(text_profile(row->profile)));
        json_object_set_new(entry, "patch_bytes", json_count(row->patch_bytes));
        json_object_set_new(entry, "alone_seconds", sync_times_json(&row->alone));
        json_object_set_new(entry, "together_seconds", sync_times_json(&row->together));
        json_object_set_new(entry, "ratio", json_ratio(row->together.best, row->alone.best));
        json_object_set_new(entry, "alone_processor_seconds", json_real(row->alone_processor));
        json_object_set_new(entry, "together_processor_seconds", json_real(row->together_processor));
        json_object_set_new(entry, "alone_peak_bytes", json_count(row->alone_peak));
        json_object_set_new(entry, "alone_weight_bytes", json_count(row->alone_held));
        json_object_set_new(entry, "part_peak_bytes", json_count(highest(row->peaks)));
        json_object_set_new(entry, "part_weight_bytes", json_count(highest(row->held)));
        json_array_append_new(rows, entry);
    }
    json_object_set_new(json, "total", json_count(results->total));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "processes", json_count(SYNC_TEAM));
    json_object_set_new(json, "rows", rows);
    return json;
}

/* ---- text ---- */

static void print_model(const char *part, uint64_t total, uint64_t changed) {
    char total_text[TEXT_SIZE], changed_text[TEXT_SIZE];
    printf("\n%-10s %s weights, %s changed (%.3f%%)", part, text_count(total, total_text),
           text_count(changed, changed_text), 100 * (double)changed / (double)total);
}

static void print_publish(const sync_results *all) {
    const sync_publish_results *results = &all->publish;
    double gigabytes = 1e-9 * (double)results->bytes;
    print_model("publish", results->total, results->changed);
    printf(", to a directory, synced\n");
    printf("  %-8s %13s %9s %9s %7s %6s %9s %8s %8s\n", "", "bytes/change", "ms", "median", "GB/s", "x",
           "diff", "upload", "head");
    printf("  %-8s %13s %9.1f %9s %7.2f %6.2f\n", "memcpy", "", 1e3 * results->copy, "",
           gigabytes / results->copy, 1.0);
    for (int i = 0; i < 2; i++) {
        const sync_publish_row *row = &results->rows[i];
        double changed = results->changed > 0 ? (double)results->changed : 1;
        printf("  %-8s %13.3f %9.1f %9.1f %7.2f %6.2f %9.1f %8.1f %8.1f\n", text_profile(row->profile),
               (double)row->patch_bytes / changed, 1e3 * row->seconds.best, 1e3 * row->seconds.median,
               gigabytes / row->seconds.best, results->copy / row->seconds.best, 1e3 * row->diff,
               1e3 * row->upload, 1e3 * row->head);
    }
}

static void print_pause(const sync_results *all) {
    const sync_pause_results *results = &all->pause;
    print_model("pause", results->total, results->changed);
    printf("\n  commit %.1f ms (median %.1f), prepare before it %.1f ms; memcpy of the model %.1f ms\n",
           1e3 * results->commit.best, 1e3 * results->commit.median, 1e3 * results->prepare.best,
           1e3 * results->copy);
}

static void print_scaling(const sync_results *all) {
    const sync_scaling_results *results = &all->scaling;
    char changed[TEXT_SIZE], small[TEXT_SIZE], large[TEXT_SIZE];
    printf("\n%-10s commit of %s changes, cold caches\n", "scaling", text_count(results->changed, changed));
    printf("  %s weights %.2f ms, %s weights %.2f ms (medians): factor %.2f\n",
           text_count(results->totals[0], small), 1e3 * results->commits[0].median,
           text_count(results->totals[1], large), 1e3 * results->commits[1].median,
           results->commits[1].median / results->commits[0].median);
}

static void print_latency(const sync_results *all) {
    const sync_latency_results *results = &all->latency;
    char up[TEXT_SIZE], down[TEXT_SIZE];
    print_model("latency", results->total, results->changed);
    printf(", %llu versions over HTTP, %llu anchors beside\n", (unsigned long long)results->versions,
           (unsigned long long)results->anchors);
    printf("  publish to commit: median %.1f ms, p99 %.1f ms (%.1f x), longest %.1f ms; %llu lost\n",
           1e3 * results->seconds.median, 1e3 * results->seconds.p99,
           results->seconds.p99 / results->seconds.median, 1e3 * results->seconds.worst,
           (unsigned long long)results->lost);
    printf("  per version: publisher %.2f requests, %s; follower %.2f requests, %s\n", results->requests_up,
           text_bytes((uint64_t)results->bytes_up, up), results->requests_down,
           text_bytes((uint64_t)results->bytes_down, down));
    printf("  of the publisher's: head %.0f B, pages %.0f B\n", results->head_bytes, results->page_bytes);
}

static void print_bucketing(const sync_results *all) {
    const sync_bucketing_results *results = &all->bucketing;
    char tensors[TEXT_SIZE], requests[TEXT_SIZE], bytes[TEXT_SIZE];
    print_model("bucketing", results->total, results->changed);
    printf(" in %s tensors, over HTTP\n", text_count(results->tensors, tensors));
    printf("  %-24s %10s %12s %9s %9s\n", "", "requests", "bytes", "ms", "median");
    for (int i = 0; i < SYNC_WAYS; i++) {
        const sync_bucketing_row *row = &results->rows[i];
        printf("  %-24s %10s %12s %9.1f %9.1f\n", row->text, text_count(row->requests, requests),
               text_count(row->bytes, bytes), 1e3 * row->seconds.best, 1e3 * row->seconds.median);
    }
}

static void print_catch_up(const sync_results *all) {
    const sync_catch_up_results *results = &all->catch_up;
    char fetched[TEXT_SIZE], replayed[TEXT_SIZE], anchor[TEXT_SIZE];
    size_t index;
    double worst = sync_catch_up_worst(results, &index);
    const sync_absence *absence = &results->absences[index];
    print_model("catch-up", results->total, results->changed);
    printf(" per version, %llu versions missed, from %d of them\n", (unsigned long long)results->missed,
           SYNC_ABSENCES);
    printf("  worst, from version %llu: %s in %llu requests and %llu steps, %.1f%% of %s one by one, %.0f "
           "ms\n",
           (unsigned long long)absence->from, text_bytes(absence->fetched, fetched),
           (unsigned long long)absence->requests, (unsigned long long)absence->steps, 100 * worst,
           text_bytes(absence->replayed, replayed), 1e3 * absence->seconds);
    printf("  mean %.1f%%; an anchor has %s; the publisher sends %.0f%% more than the patches for it\n",
           100 * sync_catch_up_mean(results), text_bytes(results->anchor_bytes, anchor),
           100 * (double)results->leap_bytes / (double)results->patch_bytes);
}

static void print_group(const sync_results *all) {
    const sync_group_results *results = &all->group;
    char bytes[TEXT_SIZE];
    print_model("group", results->total, results->changed);
    printf(", %d replicas on one host, %llu versions\n", SYNC_GROUP_RANKS,
           (unsigned long long)results->versions);
    printf("  %-8s %9s %9s %14s %9s %11s %12s %9s\n", "", "pause ms", "p99", "publish-commit", "p99",
           "CPU ms", "bytes", "requests");
    for (int i = 0; i < 2; i++) {
        const sync_group_row *row = &results->rows[i];
        printf("  %-8s %9.1f %9.1f %14.1f %9.1f %11.1f %12s %9.1f\n", row->name, 1e3 * row->pause.median,
               1e3 * row->pause.p99, 1e3 * row->seconds.median, 1e3 * row->seconds.p99,
               1e3 * row->processor, text_count((uint64_t)row->bytes, bytes), row->requests);
    }
}

static void print_parts(const sync_results *all) {
    const sync_parts_results *results = &all->parts;
    char alone[TEXT_SIZE], part[TEXT_SIZE], held[TEXT_SIZE], share[TEXT_SIZE];
    print_model("parts", results->total, results->changed);
    printf(", %d processes with a part each against one, a thread each\n", SYNC_TEAM);
    for (int i = 0; i < 2; i++) {
        const sync_parts_row *row = &results->rows[i];
        printf("  %-8s alone %.1f ms (median %.1f), together %.1f ms (median %.1f): %.2f\n",
               text_profile(row->profile), 1e3 * row->alone.best, 1e3 * row->alone.median,
               1e3 * row->together.best, 1e3 * row->together.median, row->together.best / row->alone.best);
        printf("  %-8s processor time %.1f ms, together %.1f ms\n", "", 1e3 * row->alone_processor,
               1e3 * row->together_processor);
        printf("  %-8s at most %s of memory alone for %s of weights, %s in a part for %s\n", "",
               text_bytes(row->alone_peak, alone), text_bytes(row->alone_held, held),
               text_bytes(highest(row->peaks), part), text_bytes(highest(row->held), share));
    }
}

/* ---- the run ---- */

static json_t *latency_json(const sync_results *all) {
    return sync_latency_json(&all->latency);
}

/* In the order in which they run and are told; a part's place is its bit. */
static const struct {
    const char *name;
    const char *json_name;
    int (*run)(sync_bench *bench, sync_results *all);
    json_t *(*json)(const sync_results *all);
    void (*print)(const sync_results *all);
} parts[] = {
    {"publish", "publish", bench_sync_publish, publish_json, print_publish},
    {"pause", "pause", bench_sync_pause, pause_json, print_pause},
    {"scaling", "scaling", bench_sync_scaling, scaling_json, print_scaling},
    {"latency", "latency", bench_sync_latency, latency_json, print_latency},
    {"bucketing", "bucketing", bench_sync_buckets, bucketing_json, print_bucketing},
    {"catch-up", "catch_up", bench_sync_catch_up, catch_up_json, print_catch_up},
    {"group", "group", bench_sync_group, group_json, print_group},
    {"parts", "parts", bench_sync_parts, parts_json, print_parts},
    {"serial", "serial", bench_sync_serial, sync_serial_json, sync_serial_print},
};
enum { PART_COUNT = sizeof parts / sizeof parts[0] };

bool bench_sync_parse_parts(const char *text, unsigned *parts_out) {
    unsigned chosen = 0;
    for (;;) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < PART_COUNT &&
               (strlen(parts[i].name) != length || strncmp(parts[i].name, text, length) != 0)) {
            i++;
        }
        if (i == PART_COUNT) {
            return false;
        }
        chosen |= 1u << i;
        if (text[length] == 0) {
            *parts_out = chosen;
            return true;
        }
        text += length + 1;
    }
}

int bench_sync(weft_command *command, const bench_options *options) {
    bench_options chosen = *options;
    sync_results results = {0};
    sync_bench bench;
    chosen.parameters = sync_choose(options->parameters, options->quick, 256000000, 1000000000);
    chosen.versions = sync_choose(options->versions, options->quick, 100, 500);
    chosen.tensors = sync_choose(options->tensors, options->quick, 2000, 2000);
    int code = sync_bench_open(command, &chosen, &bench);
    if (code != EXIT_DONE) {
        return code;
    }
    results.threads = bench.threads;
    for (size_t i = 0; i < PART_COUNT && code == EXIT_DONE; i++) {
        if (chosen.parts & 1u << i) {
            code = parts[i].run(&bench, &results);
        }
    }
    sync_bench_close(&bench);
    progress_clear(&command->progress);
    if (code != EXIT_DONE) {
        return code;
    }
    json_t *json = json_object();
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "threads", json_count(results.threads));
    json_object_set_new(json, "repeat", json_count(chosen.repeat));
    if (!command->json) {
        printf("%s, %u thread%s; fastest of %u unless it says otherwise; x: memcpy with as many threads is "
               "1\n",
               weft_cpu_name(), results.threads, results.threads == 1 ? "" : "s", chosen.repeat);
    }
    for (size_t i = 0; i < PART_COUNT; i++) {
        if ((chosen.parts & 1u << i) && command->json) {
            json_object_set_new(json, parts[i].json_name, parts[i].json(&results));
        } else if (chosen.parts & 1u << i) {
            parts[i].print(&results);
        }
    }
    if (command->json) {
        return command_print_json(command, stdout, json);
    }
    json_decref(json);
    return EXIT_DONE;
}
