/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_large.c: one step of a model of real size. The bench's generator makes two states of it; a trainer
 * publishes the first, then what the step has changed, and a worker in memory of its own follows through
 * the server, whose page shows it. In the end both hold the same bits, or the demo fails.
 */
#include "demo.h"

/* The papers' rate. */
static const double RATE = 1e-6;
static const uint64_t SEED = 1;

int demo_page_open(sync_bench *bench, const char *store, sync_server *server_out) {
    *server_out = (sync_server){0};
#ifdef WEFT_SERVER
    int code = sync_server_start(bench, store, false, server_out);
    if (code == EXIT_DONE) {
        command_note(bench->command, "watch it in a browser: %s", server_out->url);
    }
    return code;
#else
    (void)store;
    command_note(bench->command, "there is no page to watch: this weft was built without a server");
    return EXIT_DONE;
#endif
}

typedef struct large_step {
    weft_publish_result published;
    double prepare; /* seconds: fetched, decoded, proven */
    double commit;  /* the pause */
} large_step;

static json_t *json_step(const bench_model *model, const large_step *step) {
    json_t *json = json_object(), *bytes = json_object();
    uint64_t dense = model->units * model->width;
    json_object_set_new(bytes, "sent", json_count(step->published.uploaded_bytes));
    json_object_set_new(bytes, "dense", json_count(dense));
    json_object_set_new(bytes, "reduction",
                        json_ratio((double)dense, (double)step->published.uploaded_bytes));
    json_object_set_new(json, "parameters", json_count(model->units));
    json_object_set_new(json, "rate", json_real(RATE));
    json_object_set_new(json, "changed", json_count(step->published.changed));
    json_object_set_new(json, "density", json_ratio((double)step->published.changed, (double)model->units));
    json_object_set_new(json, "bytes", bytes);
    json_object_set_new(json, "publish", json_real(step->published.seconds));
    json_object_set_new(json, "prepare", json_real(step->prepare));
    json_object_set_new(json, "pause", json_real(step->commit));
    return json;
}

/* sync_pair_follow compares the worker's weights with the trainer's, all of them. */
static int take_step(sync_bench *bench, bench_model *model, const char *store, const char *url,
                     large_step *step) {
    const sync_pair_options options = {.profile = WEFT_PROFILE_SMALL,
                                       .follow = true,
                                       .no_leaps = true,
                                       .unsynced = true,
                                       .worker_url = url};
    sync_flips flips = {0};
    sync_pair pair = {0};
    int code = sync_flips_between(bench, model, model->base, model->next, &flips);
    if (code == EXIT_DONE) {
        code = sync_pair_open(bench, model, store, &options, &pair);
    }
    if (code == EXIT_DONE) {
        step->published = (weft_publish_result){.size = sizeof step->published};
        code = sync_pair_publish(&pair, &flips, &step->published);
    }
    if (code == EXIT_DONE) {
        code = sync_pair_follow(&pair, &step->prepare, &step->commit);
    }
    sync_pair_close(&pair);
    sync_flips_close(&flips);
    return code;
}

static int make_model(weft_command *command, uint64_t parameters, bench_model *model) {
    weft_trace trace;
    int code = trace_open(command, &trace, parameters, RATE, SEED);
    if (code == EXIT_DONE) {
        code = bench_model_generate(command, model, &trace);
        trace_close(&trace);
        progress_clear(&command->progress);
    }
    return code;
}

int demo_large_measure(weft_command *command, const char *directory, uint64_t parameters,
                       json_t **large_out) {
    const bench_options options = {.directory = directory};
    sync_bench bench;
    sync_server server = {0};
    bench_model model = {0};
    large_step step;
    int code = sync_bench_open(command, &options, &bench);
    if (code != EXIT_DONE) {
        return code;
    }
    char *store = sync_store_path(&bench, "store");
    code = store != NULL ? make_model(command, parameters, &model) : EXIT_FAILED;
    if (code == EXIT_DONE) {
        code = demo_page_open(&bench, store, &server);
    }
    if (code == EXIT_DONE) {
        code = take_step(&bench, &model, store, server.pid != 0 ? server.url : NULL, &step);
    }
    if (code == EXIT_DONE) {
        *large_out = json_step(&model, &step);
    }
    sync_server_stop(&server);
    bench_model_close(&model);
    sync_store_remove(store);
    sync_bench_close(&bench);
    return code;
}
