/* SPDX-License-Identifier: Apache-2.0
 *
 * rivals.c: several publishers of one run, and what they were told; see rivals.h.
 */
#include "rivals.h"

#include "patches.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double DAY_SECONDS = 86400;

enum { PER_MILLION = 100000, UNITS = RIVALS_ROWS * RIVALS_COLUMNS };

const char *const rivals_event_names[RIVALS_EVENTS] = {
    [RIVALS_NOTHING] = "nothing",
    [RIVALS_COLLECT] = "gc",
    [RIVALS_TAKE] = "a takeover",
    [RIVALS_TAKE_PUBLISH] = "a takeover and a publish",
    [RIVALS_TAKE_COLLECT] = "a takeover, publishes with anchors and gc",
    [RIVALS_TAKE_TWICE] = "two takeovers and publishes",
    [RIVALS_PUBLISH] = "a publish",
    [RIVALS_SAME] = "a publish with the same identity",
};

/* ---- opening and closing ---- */

void rivals_model(model *model, weft_context *context) {
    model_open(model, context);
    model_add(model, "weights", WEFT_DTYPE_BF16, RIVALS_ROWS, RIVALS_COLUMNS);
    model_show(model);
}

static void open_rival(rivals *rivals, rival *rival, char name) {
    rival->name = name;
    rival->context = patches_context(1);
    scene_expect(rival->context,
                 fault_store_create(rival->context, rivals->place.store, (uint64_t)name, &rival->store,
                                    &rival->faults),
                 WEFT_OK, "open a publisher's store");
    fault_store_set_plain(rival->faults, rivals->plain);
    rival->dice = (dice){(uint64_t)name};
    rivals_model(&rival->model, rival->context);
    weights_fill(&rival->dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, rival->model.blocks[0], UNITS);
    rival->options = (weft_publisher_options){.size = sizeof(weft_publisher_options),
                                              .anchor_ratio = -1,
                                              .no_leaps = true,
                                              .spool_directory = rivals->scratch.directory};
    char cache[16];
    snprintf(cache, sizeof cache, "cache-%c", name);
    scratch_make_directory(&rivals->scratch, cache);
    snprintf(rival->mirror, sizeof rival->mirror, "%s/%s/mirror", rivals->scratch.directory, cache);
}

static void close_rival(rival *rival) {
    weft_publisher_close(rival->publisher);
    model_close(&rival->model);
    weft_store_close(rival->store);
    weft_context_destroy(rival->context);
}

bool rivals_place_is_plain(void) {
    scratch scratch;
    scene_place place;
    scratch_open_volatile(&scratch);
    weft_context *context = patches_context(1);
    scene_place_open(&place, context, &scratch);
    weft_status status =
        weft_store_put_bytes(context, place.store, "probe", "", 0, WEFT_STORE_IF_ABSENT, NULL, NULL);
    scene_place_close(&place);
    weft_context_destroy(context);
    scratch_close(&scratch);
    return status == WEFT_UNSUPPORTED;
}

void rivals_open(rivals *rivals, pause_case *pause, bool plain) {
    const weft_subscriber_options following = {.size = sizeof following, .empty = true};
    memset(rivals, 0, sizeof *rivals);
    pthread_mutex_init(&rivals->lock, NULL);
    rivals->pause = pause;
    rivals->plain = plain;
    scratch_open_volatile(&rivals->scratch);
    rivals->outside = patches_context(1);
    scene_place_open(&rivals->place, rivals->outside, &rivals->scratch);
    open_rival(rivals, &rivals->subject, 'A');
    for (unsigned i = 0; i < RIVALS_OTHERS; i++) {
        open_rival(rivals, &rivals->others[i], (char)('B' + i));
    }
    rivals->collecting = patches_context(1);
    scene_expect(
        rivals->collecting,
        fault_store_create(rivals->collecting, rivals->place.store, 1, &rivals->aged, &rivals->aging),
        WEFT_OK, "open the collector's store");
    fault_store_set_age(rivals->aging, DAY_SECONDS);
    rivals->reading = patches_context(1);
    rivals_model(&rivals->follower, rivals->reading);
    scene_expect(rivals->reading,
                 weft_subscriber_open(rivals->reading, rivals->place.reading, rivals->follower.view,
                                      &following, &rivals->subscriber),
                 WEFT_OK, "open a follower");
}

void rivals_close(rivals *rivals) {
    weft_subscriber_close(rivals->subscriber);
    model_close(&rivals->follower);
    weft_context_destroy(rivals->reading);
    weft_store_close(rivals->aged);
    weft_context_destroy(rivals->collecting);
    close_rival(&rivals->subject);
    for (unsigned i = 0; i < RIVALS_OTHERS; i++) {
        close_rival(&rivals->others[i]);
    }
    scene_place_close(&rivals->place);
    weft_context_destroy(rivals->outside);
    scratch_close(&rivals->scratch);
    pthread_mutex_destroy(&rivals->lock);
}

/* ---- publishers ---- */

weft_status rival_take(rival *rival) {
    rival_end(rival);
    return weft_publisher_open(rival->context, rival->store, rival->model.view, &rival->options,
                               &rival->publisher);
}

void rival_end(rival *rival) {
    weft_publisher_close(rival->publisher);
    rival->publisher = NULL;
}

/* Where a thread of the subject's is stopped, the subject itself goes on beside the others. */
void rivals_acknowledge(rivals *rivals, const rival *rival, uint64_t version) {
    const acknowledged entry = {rival->name, version, worker_digest(rival->context, rival->model.view)};
    pthread_mutex_lock(&rivals->lock);
    if (pause_require(rivals->pause, rivals->count < RIVALS_VERSIONS,
                      "more versions than the ledger has")) {
        rivals->ledger[rivals->count++] = entry;
    }
    pthread_mutex_unlock(&rivals->lock);
}

void rival_step(rival *rival) {
    weights_change(&rival->dice, CHANGE_MIXED, 2, rival->model.blocks[0], UNITS, PER_MILLION);
}

weft_status rival_publish(rivals *rivals, rival *rival) {
    weft_publish_result result = {.size = sizeof result};
    if (rival->publisher == NULL) {
        return WEFT_CONFLICT;
    }
    rival_step(rival);
    weft_status status = weft_publisher_publish(rival->publisher, NULL, &result);
    if (status == WEFT_OK) {
        rivals_acknowledge(rivals, rival, result.version);
    }
    return status;
}

static bool works(rivals *rivals, const rival *rival, weft_status status, const char *what) {
    return pause_require(rivals->pause, status == WEFT_OK, "%c cannot %s: %s", rival->name, what,
                         weft_context_error(rival->context));
}

void rivals_take(rivals *rivals, unsigned other) {
    rival *rival = &rivals->others[other];
    rivals->taken_over++;
    works(rivals, rival, rival_take(rival), "take over");
}

void rivals_publish(rivals *rivals, unsigned other) {
    rival *rival = &rivals->others[other];
    if (rival->publisher != NULL) {
        works(rivals, rival, rival_publish(rivals, rival), "publish");
    }
}

void rivals_collect(rivals *rivals) {
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = 0};
    weft_status status = weft_gc_run(rivals->collecting, rivals->aged, &options, NULL);
    pause_require(rivals->pause, status == WEFT_OK || status == WEFT_NOT_FOUND, "gc: %s",
                  weft_context_error(rivals->collecting));
}

/* ---- readers ---- */

void rivals_follow(rivals *rivals) {
    weft_status status = weft_subscriber_pull(rivals->subscriber, 0);
    pause_require(rivals->pause, status == WEFT_OK || (status == WEFT_NOT_FOUND && rivals->count == 0),
                  "the follower cannot pull: %s: %s", weft_status_name(status),
                  weft_context_error(rivals->reading));
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(rivals->subscriber, &info);
    weft_digest digest = worker_digest(rivals->reading, rivals->follower.view);
    pause_require(rivals->pause, info.version >= rivals->seen,
                  "the follower was at version %" PRIu64 " and is at %" PRIu64, rivals->seen, info.version);
    pause_require(rivals->pause, info.version == 0 || weft_digest_equal(&digest, &info.digest),
                  "the follower does not hold what it says");
    rivals->seen = info.version;
}

/* A replica that holds nothing yet. */
typedef struct newcomer {
    weft_context *context;
    model model;
    weft_subscriber *subscriber;
} newcomer;

static void open_newcomer(newcomer *newcomer, rivals *rivals) {
    const weft_subscriber_options options = {.size = sizeof options, .empty = true};
    newcomer->context = patches_context(1);
    rivals_model(&newcomer->model, newcomer->context);
    scene_expect(newcomer->context,
                 weft_subscriber_open(newcomer->context, rivals->place.reading, newcomer->model.view,
                                      &options, &newcomer->subscriber),
                 WEFT_OK, "open a newcomer");
}

static void close_newcomer(newcomer *newcomer) {
    weft_subscriber_close(newcomer->subscriber);
    model_close(&newcomer->model);
    weft_context_destroy(newcomer->context);
}

/* To a version, or with 0 to the newest one. */
static weft_digest pull_newcomer(rivals *rivals, newcomer *newcomer, uint64_t version) {
    weft_status status = weft_subscriber_pull(newcomer->subscriber, version);
    pause_require(rivals->pause, status == WEFT_OK || (status == WEFT_NOT_FOUND && rivals->count == 0),
                  "a newcomer cannot pull version %" PRIu64 ": %s", version,
                  weft_context_error(newcomer->context));
    return worker_digest(newcomer->context, newcomer->model.view);
}

void rivals_read(rivals *rivals) {
    newcomer newcomer;
    rivals_follow(rivals);
    open_newcomer(&newcomer, rivals);
    (void)pull_newcomer(rivals, &newcomer, 0);
    close_newcomer(&newcomer);
}

/* ---- meanwhile ---- */

static void take_and_collect(rivals *rivals) {
    rivals->others[0].options.anchor_ratio = 1e-9;
    rivals->others[0].options.keep_anchors = 1;
    rivals_take(rivals, 0);
    for (int i = 0; i < 2; i++) {
        rivals_publish(rivals, 0);
    }
    rivals_collect(rivals);
}

/* A snapshot of a machine that goes on elsewhere. */
static void copy_cache(rivals *rivals, char from, char to) {
    char folder[16];
    snprintf(folder, sizeof folder, "cache-%c", from);
    DIR *directory = opendir(scratch_path(&rivals->scratch, folder));
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char names[2][sizeof entry->d_name + 16];
        snprintf(names[0], sizeof names[0], "cache-%c/%s", from, entry->d_name);
        snprintf(names[1], sizeof names[1], "cache-%c/%s", to, entry->d_name);
        if (entry->d_type == DT_REG) {
            size_t size;
            void *data = scratch_read(&rivals->scratch, names[0], &size);
            scratch_write(&rivals->scratch, names[1], data, size);
            free(data);
        }
    }
    closedir(directory);
}

static void publish_as_subject(rivals *rivals) {
    rival *other = &rivals->others[0];
    if (rivals->subject.options.mirror_path == NULL) {
        return;
    }
    other->options.mirror_path = rivals->subject.mirror;
    if (pause_alive(rivals->pause)) {
        copy_cache(rivals, rivals->subject.name, other->name);
        other->options.mirror_path = other->mirror;
    }
    rivals_take(rivals, 0);
    rivals_publish(rivals, 0);
}

void rivals_happen_unread(void *opaque) {
    rivals *rivals = opaque;
    switch ((rivals_event)rivals->pause->event) {
    case RIVALS_COLLECT:
        rivals_collect(rivals);
        break;
    case RIVALS_TAKE:
        rivals_take(rivals, 0);
        break;
    case RIVALS_TAKE_PUBLISH:
        rivals_take(rivals, 0);
        rivals_publish(rivals, 0);
        break;
    case RIVALS_TAKE_COLLECT:
        take_and_collect(rivals);
        break;
    case RIVALS_TAKE_TWICE:
        rivals_take(rivals, 0);
        rivals_publish(rivals, 0);
        rivals_take(rivals, 1);
        rivals_publish(rivals, 1);
        break;
    case RIVALS_PUBLISH:
        rivals_publish(rivals, 1);
        break;
    case RIVALS_SAME:
        publish_as_subject(rivals);
        break;
    default:
        break;
    }
}

void rivals_happen(void *opaque) {
    rivals_happen_unread(opaque);
    rivals_read(opaque);
}

/* ---- afterwards ---- */

/* What the history has. */
typedef struct history {
    bool there[RIVALS_VERSIONS + 1];
    bool kept[RIVALS_VERSIONS + 1];
    weft_digest digests[RIVALS_VERSIONS + 1];
    uint64_t newest;
} history;

static bool note_entry(void *opaque, const weft_log_entry *entry) {
    history *history = opaque;
    if (entry->version <= RIVALS_VERSIONS) {
        history->there[entry->version] = true;
        history->kept[entry->version] = entry->kept;
        history->digests[entry->version] = entry->digest;
        history->newest = entry->version > history->newest ? entry->version : history->newest;
    }
    return true;
}

static void check_ledger(rivals *rivals, const history *history) {
    for (size_t i = 0; i < rivals->count; i++) {
        const acknowledged *told = &rivals->ledger[i];
        pause_require(rivals->pause,
                      history->there[told->version] &&
                          weft_digest_equal(&history->digests[told->version], &told->digest),
                      "%c was told that version %" PRIu64 " is published, and the history has %s", told->by,
                      told->version, history->there[told->version] ? "another one" : "none");
    }
}

/* One newcomer from version to version, and one to the newest. */
static void check_kept(rivals *rivals, const history *history) {
    newcomer newcomers[2];
    open_newcomer(&newcomers[0], rivals);
    open_newcomer(&newcomers[1], rivals);
    for (uint64_t v = 1; v <= history->newest; v++) {
        if (history->kept[v]) {
            weft_digest digest = pull_newcomer(rivals, &newcomers[0], v);
            pause_require(rivals->pause, weft_digest_equal(&digest, &history->digests[v]),
                          "version %" PRIu64 " is another one when it is pulled", v);
        }
    }
    weft_digest newest = pull_newcomer(rivals, &newcomers[1], 0);
    pause_require(rivals->pause, weft_digest_equal(&newest, &history->digests[history->newest]),
                  "a newcomer does not get the newest version");
    close_newcomer(&newcomers[0]);
    close_newcomer(&newcomers[1]);
}

/* Who was overtaken hears so, and who was not goes on. Something that arrived late may cost a try; and
 * where puts have no conditions, a head of one's own that was given up and has arrived looks like
 * another's. */
static void go_on(rivals *rivals) {
    rival *subject = &rivals->subject;
    weft_status status = WEFT_REMOTE_FAILED;
    for (int i = 0; i < 3 && status != WEFT_OK && status != WEFT_CONFLICT; i++) {
        status = rival_publish(rivals, subject);
    }
    bool late = rivals->pause->kind == PAUSE_LATE || rivals->pause->kind == PAUSE_LATER;
    bool overtaken = rivals->taken_over > 0 || (rivals->plain && late);
    pause_require(rivals->pause, status == WEFT_OK || (status == WEFT_CONFLICT && overtaken),
                  "A, %s, cannot go on: %s: %s", rivals->taken_over > 0 ? "overtaken" : "alone",
                  weft_status_name(status), weft_context_error(subject->context));
    rivals_follow(rivals);
}

static void excuse_overlaps(rivals *rivals) {
    uint64_t count = fault_store_overlaps(rivals->subject.faults);
    for (unsigned i = 0; i < RIVALS_OTHERS; i++) {
        count += fault_store_overlaps(rivals->others[i].faults);
    }
    bool again = rivals->pause->kind == PAUSE_LATER && rivals->taken_over == 0;
    if (count > 0) {
        pause_excuse(
            rivals->pause,
            again ? "a head that its writer gave up arrives after a later one of the same writer, where "
                    "puts have no conditions"
                  : "two writers' puts of one head overlap, where puts have no conditions");
    }
}

bool rivals_newest(const rivals *rivals, const model *model) {
    return memcmp(model->blocks[0], rivals->others[RIVALS_OTHERS - 1].model.blocks[0], RIVALS_BYTES) == 0;
}

void rivals_check(rivals *rivals) {
    history history = {0};
    excuse_overlaps(rivals);
    rivals_follow(rivals);
    if (rivals->subject.publisher != NULL) {
        go_on(rivals);
    }
    rivals_take(rivals, RIVALS_OTHERS - 1);
    rivals_publish(rivals, RIVALS_OTHERS - 1);
    rivals_collect(rivals);
    rivals_follow(rivals);
    pause_require(rivals->pause, rivals_newest(rivals, &rivals->follower),
                  "the follower is not at what was published last");
    weft_status status = weft_log_walk(rivals->outside, rivals->place.store, NULL, note_entry, &history);
    pause_require(rivals->pause, status == WEFT_OK, "log: %s", weft_context_error(rivals->outside));
    check_ledger(rivals, &history);
    check_kept(rivals, &history);
    excuse_overlaps(rivals);
}
