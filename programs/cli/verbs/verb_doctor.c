/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_doctor.c: `weft doctor STORE`: what a store can do, found out by doing it.
 *
 * All is done under keys of its own, weft-doctor/RANDOM-…, which are removed at the end, also after a
 * failure or a signal. A check that fails does not end the others: somebody who may only read learns what
 * reading is like. The exit code is that of the first failure.
 */
#include "doctor.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

static const char doc[] =
    "Find out what STORE can do, and how fast.\v" HELP_STORE
    "\nObjects are put below STORE/weft-doctor/, read, listed, put on condition and removed again; nothing "
    "of "
    "a run is touched, and nothing stays. (A bucket of S3 keeps the object weft-conditions, as after a "
    "publish.) Of a store that may only be read, what needs writing fails and the rest is told.\n"
    "\nA publisher needs conditions to be safe against a second one; without them only one may ever write. "
    "weft gc needs the listing to find leftovers of failed publishes. The clock matters to S3, which "
    "refuses "
    "requests that are more than fifteen minutes off.\n"
    "\n--cost prints instead what workers ask of a bucket in a day, and what that costs. The prices are "
    "those "
    "of Amazon S3 Standard in us-east-1 as of October 2025, without transfer: give your own.\n"
    "\nExamples:\n"
    "  weft doctor s3://bucket/run-7\n"
    "  weft doctor https://store.example/run-7 --token-file ~/.weft-token --json\n"
    "  weft doctor /srv/run-7 --bytes 256M\n"
    "  weft doctor --cost --interval 30s --price-get 0.0005\n" HELP_REMOTE_EXIT_CODES;

/* the first part of all keys here */
#define ROOM "weft-doctor"

/* that there will never be */
#define NO_VERSION ((uint64_t)1 << 52)

enum { LATENCY_ROUNDS = 11, SMALL_BYTES = 4096, KEY_SIZE = 64 };

typedef struct doctor {
    weft_command command;
    weft_remote remote;
    const char *store;
    uint64_t bytes;
    bool cost;
    doctor_prices prices;
    /* while it runs */
    char small[KEY_SIZE];
    char large[KEY_SIZE];
    uint8_t *data;
    uint8_t *back;
    weft_store_tag tag;    /* of the small object */
    bool put;              /* the small object is there */
    const char *directory; /* or NULL */
    json_t *checks;
    int code; /* of the first failure */
} doctor;

/* ---- what is told ---- */

typedef enum verdict { VERDICT_YES, VERDICT_NO, VERDICT_FAILED, VERDICT_SKIPPED } verdict;

static const char *const verdict_names[] = {"yes", "no", "failed", "skipped"};

static void tell(doctor *doctor, const char *name, verdict verdict, const char *detail) {
    progress_clear(&doctor->command.progress);
    if (doctor->command.json) {
        json_t *json = json_object();
        json_object_set_new(json, "check", json_string(name));
        json_object_set_new(json, "verdict", json_string(verdict_names[verdict]));
        json_t *text = json_string(detail);
        json_object_set_new(json, "detail", text != NULL ? text : json_string(""));
        json_array_append_new(doctor->checks, json);
        return;
    }
    printf("%-22s %-8s ", name, verdict_names[verdict]);
    text_print(stdout, detail);
    putchar('\n');
}

/* Every check ends here or in `tell`. */
static void tell_failure(doctor *doctor, const char *name, weft_status status) {
    const char *text = weft_context_error(doctor->command.context);
    tell(doctor, name, VERDICT_FAILED, *text != '\0' ? text : weft_status_name(status));
    if (doctor->code == EXIT_DONE) {
        bool remote = status == WEFT_REMOTE_FAILED || status == WEFT_REMOTE_DENIED;
        doctor->code = remote ? EXIT_REMOTE : EXIT_FAILED;
    }
}

static void tell_seconds(doctor *doctor, const char *name, const char *what, double seconds) {
    char text[TEXT_SIZE];
    char detail[2 * TEXT_SIZE + 64];
    snprintf(detail, sizeof detail, "%s %s", what, text_seconds(seconds, text));
    tell(doctor, name, VERDICT_YES, detail);
}

/* ---- checks ---- */

static weft_status put_small(doctor *doctor, weft_store_condition condition, const weft_store_tag *tag,
                             weft_store_tag *tag_out) {
    return weft_store_put_bytes(doctor->command.context, doctor->remote.store, doctor->small, doctor->data,
                                SMALL_BYTES, condition, tag, tag_out);
}

static weft_status get(doctor *doctor, const char *key, uint64_t offset, uint64_t length,
                       const weft_store_tag *unless, weft_store_get_result *result) {
    const weft_store_get_request request = {.size = sizeof request,
                                            .key = key,
                                            .offset = offset,
                                            .length = length,
                                            .buffer = doctor->back,
                                            .unless = unless};
    result->size = sizeof *result;
    return weft_store_get(doctor->command.context, doctor->remote.store, &request, result);
}

/* The first request: it tells whether anybody is there, and lets us in. */
static bool check_reach(doctor *doctor) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(doctor->remote.store, &traits);
    doctor->directory = traits.directory;
    if (doctor->directory != NULL && access(doctor->directory, F_OK) != 0) {
        tell(doctor, "reach", VERDICT_FAILED, "there is no such directory; the first publish makes it");
        doctor->code = EXIT_FAILED;
        return false;
    }
    uint64_t size = 0;
    weft_store_tag tag;
    double start = clock_seconds();
    weft_status status =
        weft_store_head(doctor->command.context, doctor->remote.store, doctor->small, &size, &tag);
    if (status != WEFT_OK && status != WEFT_NOT_FOUND) {
        tell_failure(doctor, "reach", status);
        return false;
    }
    tell_seconds(doctor, "reach", "the first answer came after", clock_seconds() - start);
    return true;
}

static void check_access(doctor *doctor) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(doctor->remote.store, &traits);
    const char *url = weft_store_url(doctor->remote.store);
    if (traits.directory != NULL) {
        return;
    }
    bool plain = strncasecmp(url, "http:", 5) == 0;
    bool secure = strncasecmp(url, "https:", 6) == 0;
    if (plain || secure) {
        tell(doctor, "TLS", secure ? VERDICT_YES : VERDICT_NO,
             secure ? "the certificate is trusted here" : "tokens and weights can be read on the way");
        tell(doctor, "credentials", doctor->remote.token != NULL ? VERDICT_YES : VERDICT_NO,
             doctor->remote.token != NULL ? "a token is sent, and was not refused" : "no token is sent");
    } else {
        tell(doctor, "credentials", traits.credentials != NULL ? VERDICT_YES : VERDICT_NO,
             traits.credentials != NULL ? traits.credentials : "none");
    }
    char detail[128];
    snprintf(detail, sizeof detail, "the store's clock is %.0f s ahead (give or take 1)",
             traits.ahead_seconds);
    bool close = traits.ahead_seconds >= -60 && traits.ahead_seconds <= 60;
    tell(doctor, "clock",
         !traits.dated ? VERDICT_SKIPPED
         : close       ? VERDICT_YES
                       : VERDICT_NO,
         traits.dated ? detail : "the store's answers have no date");
}

static void check_put(doctor *doctor) {
    double start = clock_seconds();
    weft_status status = put_small(doctor, WEFT_STORE_ALWAYS, NULL, &doctor->tag);
    doctor->put = status == WEFT_OK;
    if (!doctor->put) {
        tell_failure(doctor, "put", status);
        return;
    }
    tell_seconds(doctor, "put", "4 KiB in", clock_seconds() - start);
}

static int compare_doubles(const void *one, const void *other) {
    double a = *(const double *)one;
    double b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Gets the object again and again; the median is what a follower's look takes. */
static void check_get(doctor *doctor) {
    double seconds[LATENCY_ROUNDS];
    weft_store_get_result result = {.size = sizeof result};
    for (int i = 0; i < LATENCY_ROUNDS; i++) {
        double start = clock_seconds();
        weft_status status = get(doctor, doctor->small, 0, SMALL_BYTES, NULL, &result);
        seconds[i] = clock_seconds() - start;
        if (status != WEFT_OK) {
            tell_failure(doctor, "get", status);
            return;
        }
        if (result.received != SMALL_BYTES || memcmp(doctor->back, doctor->data, SMALL_BYTES) != 0) {
            tell(doctor, "get", VERDICT_FAILED, "what came back is not what was put");
            doctor->code = EXIT_INTEGRITY;
            return;
        }
    }
    qsort(seconds, LATENCY_ROUNDS, sizeof *seconds, compare_doubles);
    char half[TEXT_SIZE];
    char most[TEXT_SIZE];
    char detail[3 * TEXT_SIZE];
    snprintf(detail, sizeof detail, "4 KiB in %s (median of %d), at most %s",
             text_seconds(seconds[LATENCY_ROUNDS / 2], half), LATENCY_ROUNDS,
             text_seconds(seconds[LATENCY_ROUNDS - 1], most));
    tell(doctor, "get", VERDICT_YES, detail);
}

static void check_range(doctor *doctor) {
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = get(doctor, doctor->small, 100, 50, NULL, &result);
    if (status != WEFT_OK) {
        tell_failure(doctor, "ranges", status);
        return;
    }
    bool right = result.received == 50 && memcmp(doctor->back, doctor->data + 100, 50) == 0;
    tell(doctor, "ranges", right ? VERDICT_YES : VERDICT_FAILED,
         right ? "a part of an object can be had" : "a part of an object is another one");
    doctor->code = right || doctor->code != EXIT_DONE ? doctor->code : EXIT_INTEGRITY;
}

/* Whether a look at a head that is the same costs its bytes. */
static void check_unless(doctor *doctor) {
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = get(doctor, doctor->small, 0, SMALL_BYTES, &doctor->tag, &result);
    if (status != WEFT_OK) {
        tell_failure(doctor, "conditional get", status);
        return;
    }
    tell(doctor, "conditional get", result.unchanged ? VERDICT_YES : VERDICT_NO,
         result.unchanged ? "what is unchanged is not sent again" : "every look is sent the whole head");
}

/* Puts on condition: one that must be refused twice, and one that must be taken. */
static void check_conditions(doctor *doctor) {
    const weft_store_tag foreign = {"\"weft-doctor\""};
    weft_store_tag tag;
    weft_status absent = put_small(doctor, WEFT_STORE_IF_ABSENT, NULL, &tag);
    weft_status same =
        absent == WEFT_CONFLICT ? put_small(doctor, WEFT_STORE_IF_SAME, &foreign, &tag) : absent;
    weft_status right =
        same == WEFT_CONFLICT ? put_small(doctor, WEFT_STORE_IF_SAME, &doctor->tag, &tag) : same;
    if (absent == WEFT_UNSUPPORTED || same == WEFT_UNSUPPORTED) {
        tell(doctor, "conditional put", VERDICT_NO,
             "no conditions: never let two publishers write to this store");
    } else if (absent == WEFT_CONFLICT && same == WEFT_CONFLICT && right == WEFT_OK) {
        tell(doctor, "conditional put", VERDICT_YES, "If-None-Match and If-Match are heeded");
        doctor->tag = tag;
    } else if (absent == WEFT_OK || same == WEFT_OK) {
        tell(doctor, "conditional put", VERDICT_FAILED, "a put whose condition did not hold was taken");
        doctor->code = doctor->code != EXIT_DONE ? doctor->code : EXIT_INTEGRITY;
    } else {
        tell_failure(doctor, "conditional put", right);
    }
}

typedef struct found {
    const char *key;
    bool there;
    double age;
} found;

static bool note_key(void *opaque, const char *key, uint64_t size, double age_seconds) {
    found *found = opaque;
    if (strcmp(key, found->key) == 0) {
        found->there = size == SMALL_BYTES;
        found->age = age_seconds;
    }
    return true;
}

static void check_list(doctor *doctor) {
    found found = {.key = doctor->small};
    double start = clock_seconds();
    weft_status status =
        weft_store_list(doctor->command.context, doctor->remote.store, ROOM, note_key, &found);
    if (status == WEFT_UNSUPPORTED) {
        tell(doctor, "list", VERDICT_NO, "gc finds only what the history names");
    } else if (status != WEFT_OK) {
        tell_failure(doctor, "list", status);
    } else if (!found.there) {
        tell(doctor, "list", VERDICT_FAILED, "an object that is there is not in the list");
        doctor->code = doctor->code != EXIT_DONE ? doctor->code : EXIT_INTEGRITY;
    } else {
        tell_seconds(doctor, "list", "an object that was just put is there, after",
                     clock_seconds() - start);
    }
}

static void check_watch(doctor *doctor) {
    size_t received = 0;
    weft_status status = weft_store_watch(doctor->command.context, doctor->remote.store, NO_VERSION, 0.05,
                                          doctor->back, SMALL_BYTES, &received);
    bool waits = status == WEFT_OK || status == WEFT_MORE;
    if (!waits && status != WEFT_UNSUPPORTED && status != WEFT_NOT_FOUND) {
        tell_failure(doctor, "watch", status);
        return;
    }
    tell(doctor, "watch", waits ? VERDICT_YES : VERDICT_NO,
         waits ? "followers wait on the server" : "followers look again and again (see --cost)");
}

static void tell_rate(doctor *doctor, const char *name, double seconds) {
    char bytes[TEXT_SIZE];
    char detail[3 * TEXT_SIZE];
    snprintf(detail, sizeof detail, "%s at %.1f MB/s", text_bytes(doctor->bytes, bytes),
             (double)doctor->bytes / 1e6 / (seconds > 1e-9 ? seconds : 1e-9));
    tell(doctor, name, VERDICT_YES, detail);
}

static void check_throughput(doctor *doctor) {
    weft_context *context = doctor->command.context;
    weft_store *store = doctor->remote.store;
    weft_store_get_result result = {.size = sizeof result};
    double start = clock_seconds();
    weft_status status = weft_store_put_bytes(context, store, doctor->large, doctor->data, doctor->bytes,
                                              WEFT_STORE_ALWAYS, NULL, NULL);
    if (status != WEFT_OK) {
        tell_failure(doctor, "throughput of puts", status);
        return;
    }
    tell_rate(doctor, "throughput of puts", clock_seconds() - start);
    start = clock_seconds();
    status = get(doctor, doctor->large, 0, doctor->bytes, NULL, &result);
    if (status != WEFT_OK) {
        tell_failure(doctor, "throughput of gets", status);
        return;
    }
    if (result.received != doctor->bytes || memcmp(doctor->back, doctor->data, doctor->bytes) != 0) {
        tell(doctor, "throughput of gets", VERDICT_FAILED, "what came back is not what was put");
        doctor->code = EXIT_INTEGRITY;
        return;
    }
    tell_rate(doctor, "throughput of gets", clock_seconds() - start);
    /* large objects of S3 are put in parts, and services differ about conditions of these */
    status = weft_store_put_bytes(context, store, doctor->large, doctor->data, doctor->bytes,
                                  WEFT_STORE_IF_ABSENT, NULL, NULL);
    if (status == WEFT_UNSUPPORTED || status == WEFT_CONFLICT) {
        tell(doctor, "large put on condition", status == WEFT_CONFLICT ? VERDICT_YES : VERDICT_NO,
             status == WEFT_CONFLICT ? "heeded" : "not for objects of that size");
    } else {
        tell_failure(doctor, "large put on condition", status);
    }
}

/* By a context of its own, so that a signal does not leave anything behind. */
static void clear_away(doctor *doctor) {
    weft_context *context = NULL;
    if (weft_context_create(NULL, &context) != WEFT_OK) {
        return;
    }
    const char *keys[] = {doctor->small, doctor->large};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        weft_status status = weft_store_remove(context, doctor->remote.store, keys[i]);
        if (status != WEFT_OK) {
            tell(doctor, "remove", VERDICT_FAILED, weft_context_error(context));
            doctor->code = doctor->code != EXIT_DONE ? doctor->code : EXIT_FAILED;
            weft_context_destroy(context);
            return;
        }
    }
    if (doctor->directory != NULL) {
        /* where keys are paths, their folder is left, and empty */
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/" ROOM, doctor->directory);
        (void)rmdir(path);
    }
    tell(doctor, "remove", VERDICT_YES, "nothing of this is left");
    weft_context_destroy(context);
}

static void check_all(doctor *doctor) {
    void (*const checks[])(struct doctor *) = {check_get,  check_range, check_unless,    check_conditions,
                                               check_list, check_watch, check_throughput};
    check_access(doctor);
    check_put(doctor);
    for (size_t i = 0; doctor->put && i < sizeof checks / sizeof *checks; i++) {
        if (command_interrupted() != EXIT_DONE) {
            break;
        }
        checks[i](doctor);
    }
    if (doctor->put) {
        clear_away(doctor);
    }
}

/* ---- the verb ---- */

static int prepare(doctor *doctor) {
    uint64_t number = 0;
    size_t most = (size_t)(doctor->bytes > SMALL_BYTES ? doctor->bytes : SMALL_BYTES);
    doctor->data = malloc(most);
    doctor->back = malloc(most);
    doctor->checks = json_array();
    if (doctor->data == NULL || doctor->back == NULL || doctor->checks == NULL) {
        return command_error(&doctor->command, EXIT_FAILED,
                             "no memory for %llu bytes; give fewer with --bytes", (unsigned long long)most);
    }
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
        return command_error(&doctor->command, EXIT_FAILED, "cannot get random bytes: %s", strerror(errno));
    }
    snprintf(doctor->small, sizeof doctor->small, ROOM "/%016llx-small", (unsigned long long)number);
    snprintf(doctor->large, sizeof doctor->large, ROOM "/%016llx-large", (unsigned long long)number);
    /* bytes that nothing on the way can make smaller */
    for (size_t i = 0; i < most; i++) {
        number = number * 6364136223846793005U + 1442695040888963407U;
        doctor->data[i] = (uint8_t)(number >> 56);
    }
    return EXIT_DONE;
}

static int examine(doctor *doctor) {
    if (!doctor->command.json) {
        printf("%s\n", weft_store_url(doctor->remote.store));
    }
    if (check_reach(doctor)) {
        check_all(doctor);
    }
    int code = command_interrupted() != EXIT_DONE ? command_interrupted() : doctor->code;
    if (doctor->command.json) {
        json_t *json = json_object();
        json_object_set_new(json, "store", json_string(weft_store_url(doctor->remote.store)));
        json_object_set_new(json, "sound", json_boolean(code == EXIT_DONE));
        json_object_set(json, "checks", doctor->checks);
        int printed = command_print_json(&doctor->command, stdout, json);
        code = code != EXIT_DONE ? code : printed;
    }
    return code != EXIT_DONE
               ? command_error(&doctor->command, code, "not all is well with this store; see above")
               : EXIT_DONE;
}

static int run(void *input) {
    doctor *doctor = input;
    if (doctor->cost) {
        return doctor_cost(&doctor->command, &doctor->prices);
    }
    int code = remote_open(&doctor->remote, doctor->store);
    code = code == EXIT_DONE ? prepare(doctor) : code;
    code = code == EXIT_DONE ? examine(doctor) : code;
    json_decref(doctor->checks);
    free(doctor->data);
    free(doctor->back);
    return code;
}

static void check_arguments(struct argp_state *state, void *input) {
    const doctor *doctor = input;
    if (doctor->cost == (doctor->store != NULL)) {
        argp_error(state, doctor->cost ? "--cost asks no store; give none" : "give a store");
    }
}

int verb_doctor(int argc, char **argv) {
    doctor doctor = {
        .bytes = 16 << 20,
        .prices = {
            .interval_seconds = 60, .workers_per_relay = 250, .get_price = 0.0004, .put_price = 0.005}};
    const weft_option options[] = {
        {"bytes", "SIZE", 1, "Measure throughput with an object of this size (default: 16MiB)",
         .bytes = &doctor.bytes},
        {"cost", NULL, 2, "Print requests and price a day for 1, 100 and 10,000 workers, and ask no store",
         .flag = &doctor.cost},
        {"interval", "TIME", 2, "With a version so often (default: 60s)",
         .seconds = &doctor.prices.interval_seconds},
        {"workers-per-relay", "N", 2, "With so many workers to a relay (default: 250)",
         .number = &doctor.prices.workers_per_relay, .least = 1},
        {"price-get", "DOLLARS", 2, "For 1,000 GETs (default: 0.0004)", .real = &doctor.prices.get_price},
        {"price-put", "DOLLARS", 2, "For 1,000 PUTs (default: 0.005)", .real = &doctor.prices.put_price},
        {0},
    };
    const weft_form form = {"[STORE]",
                            doc,
                            {{options, NULL}},
                            .paths = {&doctor.store, 0, 1, "give a store"},
                            .check = check_arguments};
    return remote_run(&form, &doctor.remote, false, argc, argv, &doctor, run);
}
