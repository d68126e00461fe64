/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_publish.c: `weft publish STORE CKPT`.
 *
 * A patch is made against what was published last. A copy of that is kept in a cache, one directory per
 * store. It is only a saving of time: one that is missing or stale is rebuilt from the store.
 */
#include "../metrics.h"
#include "../remote.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char doc[] =
    "Publish a checkpoint as the next version of the run in STORE. Only what changed since the version "
    "before is sent; the first version goes whole.\v" HELP_STORE HELP_CKPT
    "\nPublish a checkpoint that is finished: its files must not change while they are read. A version is "
    "visible to followers whole or not at all. If publishing fails, simply try again.\n"
    "\nA run has one publisher at a time. A new publisher takes over, and one that is still at work is "
    "fenced and refused. Calls that use the same cache, one after the other, are one publisher.\n"
    "\nA publisher continues the history that it finds. With --sign that must be signed by the same key, "
    "unless --adopt says otherwise.\n"
    "\nThe copy in the cache takes as much disk as the checkpoint, and the data for leaps up to twice "
    "that. If it is lost, or another machine takes over, it is rebuilt from the store.\n"
    "\nExamples:\n"
    "  weft publish /srv/run-7 step-42.safetensors --label step=42\n"
    "  weft publish https://store.example/run-7 out/step-42/ --sign run-7.key \\\n"
    "      --token-file ~/.weft-token\n"
    "  weft publish /srv/run-7 step-42.safetensors --json | jq .uploaded_bytes\n"
    "  for i in 0 1 2 3; do\n"
    "    weft publish /srv/run-7 step-43.safetensors --part $i/4 --label step=43 &\n"
    "  done; wait\n" HELP_REMOTE_EXIT_CODES;

typedef enum anchor_choice { ANCHOR_AUTO, ANCHOR_NOW, ANCHOR_NEVER } anchor_choice;

typedef struct publish_arguments {
    weft_command command;
    weft_remote remote;
    const char *paths[2]; /* STORE and CKPT */
    weft_labels labels;
    weft_cuts cuts;
    weft_profile profile;
    unsigned format;
    uint64_t bucket_bytes;
    const char *sign_file;
    bool adopt;
    double gc_seconds;
    bool keep_followers;
    uint64_t max_lag;
    double max_lag_seconds;
    const char *cache;
    anchor_choice anchor;
    double anchor_ratio;
    unsigned keep_anchors;
    bool no_leaps;
    unsigned part_index;
    unsigned part_count; /* 0: there is one process */
    weft_metrics metrics;
    bool published;
} publish_arguments;

/* ---- arguments ---- */

/* "2/4" */
static void parse_part(struct argp_state *state, const weft_option *option, char *text) {
    enum { PARTS_MAX = 1024 };
    publish_arguments *arguments = option->into;
    char *slash = strchr(text, '/');
    uint64_t index = 0, count = 0;
    if (slash != NULL) {
        *slash = 0;
    }
    if (slash == NULL || !text_parse_unsigned(text, PARTS_MAX, &index) ||
        !text_parse_unsigned(slash + 1, PARTS_MAX, &count) || index >= count) {
        argp_error(state, "--part takes a number and a count, such as 0/4 to 3/4, not '%s%s%s'", text,
                   slash != NULL ? "/" : "", slash != NULL ? slash + 1 : "");
    }
    arguments->part_index = (unsigned)index;
    arguments->part_count = (unsigned)count;
}

static void check_arguments(struct argp_state *state, void *input) {
    const publish_arguments *arguments = input;
    if (arguments->anchor_ratio == 0) {
        argp_error(state, "--anchor-ratio takes a number above zero");
    }
    if (arguments->part_count > 1 && (arguments->cache != NULL || arguments->anchor == ANCHOR_NOW)) {
        argp_error(state, "--part does not go with --cache or --anchor now");
    }
    if (arguments->part_count > 1 && arguments->labels.count == 0) {
        argp_error(state, "--part needs a --label that tells the step, such as step=43, the same on all "
                          "parts: by that parts at different steps are told apart");
    }
    if (arguments->cache != NULL && *arguments->cache == 0) {
        argp_error(state, "--cache takes a directory");
    }
}

/* ---- the cache ---- */

static int no_memory(weft_command *command) {
    return command_error(command, EXIT_FAILED, "no memory for a path");
}

/* The same store by another relative path has the same name. One that does not exist yet is named by its
 * parent, which usually does. */
static char *absolute_path(const char *path) {
    char *known = realpath(path, NULL);
    if (known != NULL) {
        return known;
    }
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    const char *slash = memrchr(path, '/', length);
    char *parent = slash == NULL ? strdup(".") : strndup(path, slash > path ? (size_t)(slash - path) : 1);
    char *parent_known = parent != NULL ? realpath(parent, NULL) : NULL;
    const char *base = slash == NULL ? path : slash + 1;
    char *result = NULL;
    if (asprintf(&result, "%s/%.*s",
                 parent_known != NULL ? parent_known
                 : parent != NULL     ? parent
                                      : "",
                 (int)(length - (size_t)(base - path)), base) < 0) {
        result = NULL;
    }
    free(parent_known);
    free(parent);
    return result;
}

static char *store_identity(const weft_store *store) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    if (traits.directory != NULL) {
        return absolute_path(traits.directory);
    }
    const char *url = weft_store_url(store);
    size_t length = strlen(url);
    while (length > 0 && url[length - 1] == '/') {
        length--;
    }
    return strndup(url, length);
}

static int default_cache(weft_command *command, const weft_store *store, char **path_out) {
    char *identity = store_identity(store);
    char name[TEXT_SIZE + 20];
    if (identity == NULL) {
        return no_memory(command);
    }
    /* A name that people recognise, and a hash that tells stores of the same name apart. Should two ever
     * share a directory, the copy does not fit and is rebuilt. */
    const char *slash = strrchr(identity, '/');
    const char *base = slash != NULL ? slash + 1 : identity;
    size_t used = 0;
    for (; base[used] != 0 && used < TEXT_SIZE - 1; used++) {
        bool plain = (base[used] >= 'a' && base[used] <= 'z') || (base[used] >= 'A' && base[used] <= 'Z') ||
                     (base[used] >= '0' && base[used] <= '9');
        name[used] = plain ? base[used] : '-';
    }
    snprintf(name + used, 20, "-%016llx", (unsigned long long)XXH3_64bits(identity, strlen(identity)));
    free(identity);
    int code = cache_path(command, name, path_out);
    if (code == EXIT_DONE && *path_out == NULL) {
        code = command_error(
            command, EXIT_USAGE,
            "there is no HOME to keep a copy of what was published in; say where with --cache DIR");
    }
    return code;
}

/* Makes a directory and those above it, readable by the owner only: weights lie there. */
static int make_private(weft_command *command, char *path) {
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL) {
            *slash = 0;
        }
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        int error = errno;
        if (!made) {
            return command_error(command, EXIT_FAILED,
                                 "cannot make the directory %s for the copy of what was published: %s; "
                                 "choose another with --cache DIR",
                                 path, strerror(error));
        }
        if (slash == NULL) {
            return EXIT_DONE;
        }
        *slash = '/';
    }
}

/* The place of the copy: one file, or a directory if the checkpoint is sharded. */
static int find_mirror(publish_arguments *arguments, bool sharded, char **path_out) {
    weft_command *command = &arguments->command;
    char *directory = NULL;
    int code = EXIT_DONE;
    if (arguments->cache == NULL) {
        code = default_cache(command, arguments->remote.store, &directory);
    } else if ((directory = strdup(arguments->cache)) == NULL) {
        code = no_memory(command);
    }
    if (code == EXIT_DONE) {
        code = make_private(command, directory);
    }
    if (code == EXIT_DONE &&
        asprintf(path_out, "%s/%s", directory, sharded ? "mirror" : "mirror.safetensors") < 0) {
        code = no_memory(command);
    }
    free(directory);
    return code;
}

/* ---- results ---- */

/* Who is there, if anybody tells: not worth failing for, nor worth a request for each of them where
 * requests are paid for, unless they are waited for anyway. */
static bool look_for_followers(publish_arguments *arguments, const char *run,
                               const weft_publish_result *result, weft_fleet *fleet) {
    weft_command *command = &arguments->command;
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(arguments->remote.store, &traits);
    if (traits.paid && arguments->max_lag == 0) {
        return false;
    }
    weft_head_info head = {.size = sizeof head, .version = result->version};
    const weft_fleet_options chosen = {.size = sizeof chosen, .head = &head};
    snprintf(head.run, sizeof head.run, "%s", run);
    return weft_fleet_read(command->context, arguments->remote.store, &chosen, fleet) == WEFT_OK;
}

static json_t *json_fleet(const weft_fleet *fleet) {
    json_t *json = json_object();
    json_object_set_new(json, "reports", json_count(fleet->count));
    json_object_set_new(json, "live", json_count(fleet->live));
    json_object_set_new(json, "slowest", fleet->slowest > 0 ? json_count(fleet->slowest) : json_null());
    return json;
}

static int print_json(publish_arguments *arguments, const char *run, const weft_publish_result *result,
                      const weft_fleet *fleet) {
    json_t *json = json_object();
    json_object_set_new(json, "run", json_string(run));
    json_object_set_new(json, "version", json_count(result->version));
    json_object_set_new(json, "epoch", json_count(result->epoch));
    json_object_set_new(json, "digest", json_digest(&result->digest));
    json_object_set_new(json, "base", result->anchored ? json_null() : json_digest(&result->base));
    json_object_set_new(json, "labels", remote_labels(arguments->labels.items));
    json_object_set_new(json, "anchored", json_boolean(result->anchored));
    json_object_set_new(json, "changed", json_count(result->changed));
    json_object_set_new(json, "total", json_count(result->total));
    json_object_set_new(json, "density", json_ratio((double)result->changed, (double)result->total));
    json_object_set_new(json, "patch_bytes", json_count(result->patch_bytes));
    json_object_set_new(json, "dense_bytes", json_count(result->dense_bytes));
    json_object_set_new(json, "ratio",
                        json_ratio((double)result->dense_bytes, (double)result->patch_bytes));
    json_object_set_new(json, "buckets", json_count(result->buckets));
    json_object_set_new(json, "profile", json_string(text_profile(arguments->profile)));
    json_object_set_new(json, "format", json_count(result->format));
    json_object_set_new(json, "uploaded_bytes", json_count(result->uploaded_bytes));
    json_object_set_new(json, "requests", json_count(result->requests));
    json_object_set_new(json, "anchor_bytes", json_count(result->anchor_bytes));
    json_object_set_new(json, "seconds", json_real(result->seconds));
    json_object_set_new(json, "diff_seconds", json_real(result->diff_seconds));
    json_object_set_new(json, "upload_seconds", json_real(result->upload_seconds));
    json_object_set_new(json, "head_seconds", json_real(result->head_seconds));
    json_object_set_new(json, "waited_seconds", json_real(result->waited_seconds));
    json_object_set_new(json, "overtaken", json_boolean(result->overtaken));
    json_object_set_new(json, "fleet", fleet != NULL ? json_fleet(fleet) : json_null());
    return command_print_json(&arguments->command, stdout, json);
}

static void print_fleet(const weft_publish_result *result, const weft_fleet *fleet) {
    char text[TEXT_SIZE];
    if (result->waited_seconds >= 0.5 || result->overtaken) {
        printf("waited %s for followers%s\n", text_seconds(result->waited_seconds, text),
               result->overtaken ? ", and went on without those that are too far behind" : "");
    }
    if (fleet != NULL && fleet->live > 0) {
        printf("%zu follower%s %s", fleet->live, fleet->live == 1 ? "" : "s",
               fleet->live == 1 ? "is live" : "are live");
        if (fleet->slowest > 0) {
            printf(", the slowest at version %llu", (unsigned long long)fleet->slowest);
        }
        putchar('\n');
    }
}

static void print_text(const weft_publish_result *result) {
    char a[TEXT_SIZE], b[TEXT_SIZE], digest[WEFT_DIGEST_TEXT];
    printf("published version %llu (epoch %llu): ", (unsigned long long)result->version,
           (unsigned long long)result->epoch);
    if (result->anchored) {
        printf("the whole model, ");
    } else {
        double share = result->total > 0 ? 100.0 * (double)result->changed / (double)result->total : 0;
        printf("%s of %s weights changed (%.2f%%), ", text_count(result->changed, a),
               text_count(result->total, b), share);
    }
    printf("%s instead of %s", text_bytes(result->patch_bytes, a), text_bytes(result->dense_bytes, b));
    if (result->patch_bytes > 0 && result->patch_bytes < result->dense_bytes) {
        double times = (double)result->dense_bytes / (double)result->patch_bytes;
        printf(" (%.*f times fewer)", times < 9.95 ? 1 : 0, times);
    }
    weft_digest_format(&result->digest, digest);
    printf(", %s; digest %s\n", text_seconds(result->seconds, a), digest);
    if (result->anchor_bytes > 0) {
        printf("wrote an anchor of it, %s\n", text_bytes(result->anchor_bytes, a));
    }
}

static int print_result(publish_arguments *arguments, const char *run, const weft_publish_result *result) {
    weft_command *command = &arguments->command;
    weft_fleet fleet = {.size = sizeof fleet};
    int code = EXIT_DONE;
    if (command->quiet && !command->json) {
        return EXIT_DONE;
    }
    bool seen = look_for_followers(arguments, run, result, &fleet);
    if (seen && fleet.live > 0 && fleet.reads < result->format) {
        command_warn(command, "there are followers that cannot read format %u: upgrade them (weft fleet)",
                     result->format);
    }
    if (command->json) {
        code = print_json(arguments, run, result, seen ? &fleet : NULL);
    } else {
        print_text(result);
        print_fleet(result, seen ? &fleet : NULL);
    }
    weft_fleet_close(command->context, &fleet);
    return code;
}

/* ---- metrics ---- */

/* `result` is NULL before there is one, and after a failure. */
static void show_figures(publish_arguments *arguments, const weft_publish_result *result, bool ended) {
    FILE *out = metrics_begin(&arguments->metrics);
    if (out == NULL) {
        return;
    }
    if (ended) {
        metrics_print(out, "weft_publish_last_run_timestamp_seconds", "gauge",
                      "When weft publish last ended.", metrics_wall_seconds());
        metrics_print(out, "weft_publish_last_run_success", "gauge",
                      "1 if it published, and 0 if it failed.", result != NULL);
    }
    if (result != NULL) {
        metrics_print(out, "weft_publish_version", "gauge", "The version that was published.",
                      (double)result->version);
        metrics_print(out, "weft_publish_epoch", "gauge", "The publisher's epoch.", (double)result->epoch);
        metrics_print(out, "weft_publish_patch_bytes", "gauge", "Size of the patch.",
                      (double)result->patch_bytes);
        metrics_print(out, "weft_publish_dense_bytes", "gauge", "Size of the model.",
                      (double)result->dense_bytes);
        metrics_print(out, "weft_publish_changed_ratio", "gauge",
                      "Part of the model's elements that this version changed.",
                      result->total > 0 ? (double)result->changed / (double)result->total : 0);
        metrics_print(out, "weft_publish_uploaded_bytes", "gauge", "Bytes that were sent for it.",
                      (double)result->uploaded_bytes);
        metrics_print(out, "weft_publish_requests", "gauge", "Requests to the store for it.",
                      (double)result->requests);
        metrics_print(out, "weft_publish_seconds", "gauge", "How long it took.", result->seconds);
        metrics_print(out, "weft_publish_waited_seconds", "gauge", "Of these, waiting for followers.",
                      result->waited_seconds);
    }
    metrics_end(&arguments->metrics);
}

/* ---- publishing ---- */

static int publish_once(publish_arguments *arguments, weft_publisher *publisher) {
    weft_command *command = &arguments->command;
    weft_publish_result result = {.size = sizeof result};
    weft_status status = weft_publisher_publish(publisher, arguments->labels.items, &result);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    arguments->published = true;
    show_figures(arguments, &result, true);
    if (arguments->anchor == ANCHOR_NOW && !result.anchored && result.anchor_bytes == 0) {
        status = weft_publisher_anchor(publisher, &result.anchor_bytes);
    } else {
        status = weft_publisher_settle(publisher);
    }
    progress_clear(&command->progress);
    int code = EXIT_DONE;
    if (status != WEFT_OK) {
        command_note(command, "version %llu is published, but its anchor could not be written: %s",
                     (unsigned long long)result.version, weft_context_error(command->context));
        code = arguments->anchor == ANCHOR_NOW ? command_fail(command, NULL, status) : EXIT_DONE;
    }
    int printed = print_result(arguments, weft_publisher_run(publisher), &result);
    return code != EXIT_DONE ? code : printed;
}

static int publish_model(publish_arguments *arguments, const weft_model *model, const weft_key *key) {
    weft_command *command = &arguments->command;
    const weft_container *container = weft_checkpoint_container(model->checkpoint);
    char *mirror = NULL;
    int code = arguments->part_count > 1 ? EXIT_DONE : find_mirror(arguments, container->sharded, &mirror);
    if (code != EXIT_DONE) {
        return code;
    }
    const weft_publisher_options chosen = {
        .size = sizeof chosen,
        .profile = arguments->profile,
        .format = arguments->format,
        .bucket_bytes = arguments->bucket_bytes,
        .cuts = arguments->cuts.items,
        .cut_count = arguments->cuts.count,
        .container = container,
        .key = key,
        .adopt = arguments->adopt,
        .gc_seconds = arguments->gc_seconds,
        .keep_followers = arguments->keep_followers,
        .max_lag = arguments->max_lag,
        .max_lag_seconds = arguments->max_lag_seconds,
        .anchor_ratio = arguments->anchor == ANCHOR_NEVER ? -1 : arguments->anchor_ratio,
        .keep_anchors = arguments->keep_anchors,
        .no_leaps = arguments->no_leaps,
        .mirror_path = mirror,
        .part_index = arguments->part_index,
        .part_count = arguments->part_count,
    };
    weft_publisher *publisher;
    weft_status status =
        weft_publisher_open(command->context, arguments->remote.store, model->view, &chosen, &publisher);
    if (status == WEFT_OK) {
        code = publish_once(arguments, publisher);
        weft_publisher_close(publisher);
    } else {
        code = command_fail(command, NULL, status);
    }
    free(mirror);
    return code;
}

static int run(void *input) {
    publish_arguments *arguments = input;
    weft_command *command = &arguments->command;
    weft_key *key = NULL;
    weft_model model = {0};
    int code = metrics_open(&arguments->metrics, command);
    show_figures(arguments, NULL, false);
    if (code == EXIT_DONE && arguments->sign_file != NULL) {
        code = remote_read_key(command, arguments->sign_file, true, &key);
    }
    if (code == EXIT_DONE) {
        code = model_open(command, arguments->paths[1], &model);
    }
    if (code == EXIT_DONE) {
        code = remote_open(&arguments->remote, arguments->paths[0]);
    }
    if (code == EXIT_DONE) {
        code = publish_model(arguments, &model, key);
    }
    if (!arguments->published) {
        show_figures(arguments, NULL, true);
    }
    metrics_close(&arguments->metrics);
    model_close(&model);
    weft_key_destroy(key);
    return code;
}

int verb_publish(int argc, char **argv) {
    publish_arguments arguments = {.profile = WEFT_PROFILE_SMALL, .anchor_ratio = 1};
    const weft_option options[] = {
        {"label", "KEY=VALUE", 1, "Text carried along with the version, such as step=42; may be repeated",
         .parse = labels_parse, .into = &arguments.labels},
        {"profile", "NAME", 1,
         "small (default): few bytes; fast: more bytes, quicker on both sides; smallest: the fewest, for "
         "followers "
         "that take every version",
         .choice = &arguments.profile, .words = PROFILE_WORDS "|smallest"},
        {"format", "N", 1,
         "Write format N from now on: 1, which weft 0.1 reads, or 2 (default: that of the run, and for a "
         "new "
         "run 2). A run does not go back; weft fleet says what its followers can read",
         .count = &arguments.format, .least = 1, .most = WEFT_FORMAT_NEWEST},
        {"cut", "PATTERN:DIM:PARTS", 1, HELP_CUT, .parse = cuts_parse, .into = &arguments.cuts},
        {"bucket", "SIZE", 1,
         "Weights per bucket, the unit that is coded and checked alone (default: 8MiB; with --profile fast "
         "2MiB)",
         .bytes = &arguments.bucket_bytes},
        {"sign", "FILE", 1,
         "Sign with this secret key (weft keygen makes one), so that followers can use --trust",
         .text = &arguments.sign_file},
        {"adopt", NULL, 1,
         "With --sign: continue a run whose history that key has not signed, and sign for it from now on",
         .flag = &arguments.adopt},
        {"cache", "DIR", 1,
         "Keep the copy of what was published last in DIR (default: a directory per store in "
         "${XDG_CACHE_HOME:-~/.cache}/weft)",
         .text = &arguments.cache},
        {"part", "I/N", 1,
         "Publish together with N - 1 other processes, each of which is given the same checkpoint and "
         "another I, from 0 on; each encodes and sends a part of it, and keeps no cache",
         .parse = parse_part, .into = &arguments},
        {"anchor", "WHEN", 2,
         "Write an anchor, a snapshot for workers that start or were away: auto (default), when the "
         "patches since the last one outweigh it; now; or never",
         .choice = &arguments.anchor, .words = "auto|now|never"},
        {"anchor-ratio", "R", 2,
         "With --anchor auto: when the patches add up to R times the last anchor (default: 1)",
         .real = &arguments.anchor_ratio, .what = "a number above zero"},
        {"keep-anchors", "N", 2,
         "Versions older than the last N anchors may be removed by weft gc (default: 2)",
         .count = &arguments.keep_anchors, .least = 1, .most = 15},
        {"no-leaps", NULL, 2, "Make no patches over 4, 16, 64, ... versions, which shorten catching up",
         .flag = &arguments.no_leaps},
        {"gc", "AGE", 2,
         "With each anchor, remove what no kept version has needed for AGE (such as 1h), as weft gc does",
         .seconds = &arguments.gc_seconds, .what = "an age such as 30m, 2h or 1d"},
        {"keep-followers", NULL, 2, "With --gc: keep the patches that a live follower needs to catch up",
         .flag = &arguments.keep_followers},
        {"max-lag", "N", 3,
         "Before publishing, wait until every live follower is within N versions of the new one; see weft "
         "fleet",
         .number = &arguments.max_lag, .least = 1, .what = "a number of versions"},
        {"max-lag-wait", "TIME", 3,
         "With --max-lag: wait at most TIME, and then publish all the same (default: 60s)",
         .seconds = &arguments.max_lag_seconds},
        METRICS_OPTIONS(arguments.metrics, 4),
        {0},
    };
    const weft_form form = {
        "STORE CKPT",
        doc,
        {{options, NULL}},
        .paths = {arguments.paths, 2, 2, "give the store, and the checkpoint to publish"},
        .check = check_arguments};
    int code = remote_run(&form, &arguments.remote, false, argc, argv, &arguments, run);
    cuts_close(&arguments.cuts);
    labels_close(&arguments.labels);
    return code;
}
