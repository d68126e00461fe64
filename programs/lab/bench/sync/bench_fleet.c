/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_fleet.c: `weft bench --fleet`: in which sizes its parts run, and how the results are told.
 */
#include "bench_fleet.h"

#include <stdlib.h>

/* ---- what is held against what ---- */

/* Of what may be sent to that many relays; HTTP's own bytes are in neither. */
static double origin_share(const fleet_crowd_results *crowd, uint64_t relays) {
    /* What the origin sends to one relay, if it sends everything that is new once. */
    uint64_t published = crowd->patch_bytes + crowd->page_bytes + crowd->head_bytes;
    return published > 0 ? (double)crowd->origin_bytes / (double)(relays * published) : 0;
}

static double versions_per_second(const fleet_crowd_results *crowd, uint64_t versions) {
    return crowd->elapsed > 0 ? (double)versions / crowd->elapsed : 0;
}

/* ---- JSON ---- */

static json_t *memory_json(const fleet_crowd_results *crowd, uint64_t relays) {
    json_t *json = json_array();
    for (uint64_t i = 0; i <= relays; i++) {
        json_t *entry = json_object();
        json_object_set_new(entry, "server", json_string(i == 0 ? "origin" : "relay"));
        json_object_set_new(entry, "early_bytes", json_count(crowd->memory[i].early));
        json_object_set_new(entry, "late_bytes", json_count(crowd->memory[i].late));
        json_array_append_new(json, entry);
    }
    return json;
}

static json_t *crowd_json(const fleet_crowd_results *crowd, const bench_options *options) {
    json_t *json = json_object();
    json_object_set_new(json, "total", json_count(crowd->total));
    json_object_set_new(json, "changed", json_count(crowd->changed));
    json_object_set_new(json, "lost", json_count(crowd->lost));
    json_object_set_new(json, "alive", json_count(crowd->alive));
    json_object_set_new(json, "seconds", sync_times_json(&crowd->seconds));
    json_object_set_new(json, "versions_per_second",
                        json_real(versions_per_second(crowd, options->versions)));
    json_object_set_new(json, "patch_bytes", json_count(crowd->patch_bytes));
    json_object_set_new(json, "page_bytes", json_count(crowd->page_bytes));
    json_object_set_new(json, "head_bytes", json_count(crowd->head_bytes));
    json_object_set_new(json, "origin_bytes", json_count(crowd->origin_bytes));
    json_object_set_new(json, "origin_requests", json_count(crowd->origin_requests));
    json_object_set_new(json, "origin_share", json_real(origin_share(crowd, options->relays)));
    json_object_set_new(json, "early_versions", json_count(crowd->early_versions));
    json_object_set_new(json, "memory", memory_json(crowd, options->relays));
    return json;
}

static json_t *relay_json(const fleet_results *results) {
    json_t *json = json_object();
    json_object_set_new(json, "direct", sync_latency_json(&results->direct));
    json_object_set_new(json, "relayed", sync_latency_json(&results->relayed));
    json_object_set_new(json, "median_ratio",
                        json_ratio(results->relayed.seconds.median, results->direct.seconds.median));
    return json;
}

static json_t *asked_json(const fleet_results *results) {
    json_t *json = json_array();
    for (int i = 0; i < FLEET_ASKED; i++) {
        const fleet_asked *asked = &results->asked[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "room", json_string(asked->room));
        json_object_set_new(entry, "bytes", json_count(asked->bytes));
        json_object_set_new(entry, "origin_requests", json_count(asked->origin_requests));
        json_object_set_new(entry, "origin_bytes", json_count(asked->origin_bytes));
        json_array_append_new(json, entry);
    }
    return json;
}

static int print_json(weft_command *command, const bench_options *options, const fleet_results *results) {
    json_t *json = json_object();
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "followers", json_count(options->followers));
    json_object_set_new(json, "processes", json_count(options->processes));
    json_object_set_new(json, "relays", json_count(options->relays));
    json_object_set_new(json, "versions", json_count(options->versions));
    json_object_set_new(json, "fleet", crowd_json(&results->crowd, options));
    json_object_set_new(json, "relay", relay_json(results));
    json_object_set_new(json, "asked", asked_json(results));
    return command_print_json(command, stdout, json);
}

/* ---- text ---- */

static void print_crowd(const fleet_crowd_results *crowd, const bench_options *options) {
    char total[TEXT_SIZE], changed[TEXT_SIZE], sent[TEXT_SIZE], patches[TEXT_SIZE], index[TEXT_SIZE];
    printf("\n%-8s %llu followers behind %llu relay%s, %s weights, %s changed (%.3f%%), %llu versions\n",
           "fleet", (unsigned long long)options->followers, (unsigned long long)options->relays,
           options->relays == 1 ? "" : "s", text_count(crowd->total, total),
           text_count(crowd->changed, changed), 100 * (double)crowd->changed / (double)crowd->total,
           (unsigned long long)options->versions);
    printf(
        "  publish to commit: median %.1f ms, p99 %.1f ms, longest %.1f ms; %.2f versions/s; %llu lost\n",
        1e3 * crowd->seconds.median, 1e3 * crowd->seconds.p99, 1e3 * crowd->seconds.worst,
        versions_per_second(crowd, options->versions), (unsigned long long)crowd->lost);
    printf("  %llu of them are processes; the origin takes %llu for alive\n",
           (unsigned long long)options->processes, (unsigned long long)crowd->alive);
    printf(
        "  the origin sent %s in %llu requests: %.3f of patches (%s) and index (%s) once to each relay\n",
        text_bytes(crowd->origin_bytes, sent), (unsigned long long)crowd->origin_requests,
        origin_share(crowd, options->relays), text_bytes(crowd->patch_bytes, patches),
        text_bytes(crowd->page_bytes + crowd->head_bytes, index));
    printf("  resident after %llu versions and at the end:", (unsigned long long)crowd->early_versions);
    for (uint64_t i = 0; i <= options->relays; i++) {
        char early[TEXT_SIZE], late[TEXT_SIZE];
        printf("%s %s %s, %s", i == 0 ? "" : ";", i == 0 ? "origin" : "relay",
               text_bytes(crowd->memory[i].early, early), text_bytes(crowd->memory[i].late, late));
    }
    putchar('\n');
}

static void print_relay(const fleet_results *results) {
    const sync_times *direct = &results->direct.seconds, *relayed = &results->relayed.seconds;
    printf("\n%-8s one follower, %llu versions each, in turn; publish to commit\n", "relay",
           (unsigned long long)results->direct.versions);
    printf("  at the origin median %.1f ms, p99 %.1f ms; through a relay %.1f ms, %.1f ms: %.2f x at the "
           "median\n",
           1e3 * direct->median, 1e3 * direct->p99, 1e3 * relayed->median, 1e3 * relayed->p99,
           relayed->median / direct->median);
}

static void print_asked(const fleet_results *results, const bench_options *options) {
    printf("\n%-8s %llu at the same moment, of a relay that holds nothing\n", "ask",
           (unsigned long long)options->followers);
    for (int i = 0; i < FLEET_ASKED; i++) {
        const fleet_asked *asked = &results->asked[i];
        char bytes[TEXT_SIZE], sent[TEXT_SIZE];
        printf("  an object of %s, %s bytes: the origin was asked %llu time%s and sent %s bytes\n",
               asked->room, text_count(asked->bytes, bytes), (unsigned long long)asked->origin_requests,
               asked->origin_requests == 1 ? "" : "s", text_count(asked->origin_bytes, sent));
    }
}

/* ---- the run ---- */

/* Two lines that share nothing: while one makes a version, the other waits. */
static int run_lines(sync_bench *bench, fleet_results *results) {
    uint64_t versions = (bench->options->versions + 1) / 2;
    sync_line *direct = NULL, *relayed = NULL;
    int code = sync_line_open(bench, false, versions, &direct);
    if (code == EXIT_DONE) {
        code = sync_line_open(bench, true, versions, &relayed);
    }
    for (uint64_t i = 0; i < 2 * versions && code == EXIT_DONE; i++) {
        code = sync_line_step(i % 2 == 0 ? direct : relayed);
    }
    if (code == EXIT_DONE) {
        code = sync_line_finish(direct, &results->direct);
    }
    if (code == EXIT_DONE) {
        code = sync_line_finish(relayed, &results->relayed);
    }
    sync_line_close(relayed);
    sync_line_close(direct);
    return code;
}

static int run_crowd(sync_bench *bench, fleet_results *results) {
    fleet_origin origin = {.path = sync_store_path(bench, "origin")};
    int code =
        origin.path != NULL ? sync_server_start(bench, origin.path, true, &origin.server) : EXIT_FAILED;
    if (code == EXIT_DONE) {
        code = bench_fleet_crowd(bench, &origin, &results->crowd);
    }
    if (code == EXIT_DONE) {
        code = bench_fleet_ask(bench, &origin, results->asked);
    }
    sync_server_stop(&origin.server);
    sync_store_remove(origin.path);
    return code;
}

int bench_fleet(weft_command *command, const bench_options *options) {
    bench_options chosen = *options;
    fleet_results results = {0};
    sync_bench bench;
    chosen.parameters = sync_choose(options->parameters, options->quick, 1000000, 8000000);
    chosen.versions = sync_choose(options->versions, options->quick, 12, 200);
    chosen.followers = sync_choose(options->followers, options->quick, 8, 64);
    chosen.relays = sync_choose(options->relays, options->quick, 2, 2);
    chosen.processes = options->processes < chosen.followers ? options->processes : chosen.followers;
    int code = sync_bench_open(command, &chosen, &bench);
    if (code != EXIT_DONE) {
        return code;
    }
    code = run_crowd(&bench, &results);
    if (code == EXIT_DONE) {
        code = run_lines(&bench, &results);
    }
    sync_bench_close(&bench);
    progress_clear(&command->progress);
    if (code != EXIT_DONE) {
        return code;
    }
    if (command->json) {
        return print_json(command, &chosen, &results);
    }
    printf("%s\n", weft_cpu_name());
    print_crowd(&results.crowd, &chosen);
    print_relay(&results);
    print_asked(&results, &chosen);
    return EXIT_DONE;
}
