/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.c: see worker.h.
 *
 *   outside   no run is known, or the one that was is over: look for one
 *   joined    there is a model; follow the versions of the run into it
 *   at work   the policy's step is known: make slots of the batches that may use it
 *
 * A run may be described anew at any time: begun again, with another model even, given more steps, or gone
 * on with by another kind of processor. So the description is read again whenever something has failed,
 * when there is nothing to do, and before the run is believed to be over.
 */
#include "worker.h"

#include "../lib/base/clock.h"
#include "../lib/base/context.h"
#include "../lib/store/rendezvous.h"
#include "trajectory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Between looks whether there is work, or a newer version. */
static const double IDLE_SECONDS = 0.25;
static const double OUTSIDE_SECONDS = 0.5;
/* As short as a look at the store can be. */
static const double GLANCE_SECONDS = 0.001;
/* How long a run that is finished is watched for more steps: by who has worked on it, and by who came to it
 * as it was and so was likely started together with a trainer that goes on with it. */
static const double LINGER_SECONDS = 0.5;
static const double LINGER_NEW_SECONDS = 3;
/* Rests become longer up to so many times, doubled each, while others are always faster. */
enum { LONGER_RESTS = 4 };

typedef struct worker {
    weft_context *context;
    weft_store *store;
    const train_worker_options *options;
    train_patience patience;
    double started;
    train_worker_result result;
    train_effort effort; /* since the last put */

    bool joined;
    bool doubtful; /* something failed since the description was last read */
    double over;   /* since when all steps are made; 0: they are not */
    bool finished;
    train_run run;
    lm_model *model;
    weft_view *view;
    weft_subscriber *subscriber;

    bool ready;     /* the model is that of `step` */
    uint64_t step;  /* of the policy */
    bool *there;    /* of each slot of the batches that it may be used for, as far as known */
    uint32_t place; /* where the search for a slot begins */
    unsigned dice;
    unsigned fruitless; /* rests since which slots were lost and none was put */
    uint64_t lost;      /* slots, when it last rested */
    float *rewards;     /* of a slot */
    bool delivered;     /* the slot below was put, and its batch was not known to be over */
    uint64_t last_batch;
    uint32_t last_slot;
} worker;

/* ---- coming and going ---- */

static void leave_run(worker *w) {
    weft_subscriber_close(w->subscriber);
    weft_view_destroy(w->view);
    lm_model_destroy(w->model);
    weft_release(w->context, w->rewards);
    weft_release(w->context, w->there);
    w->subscriber = NULL;
    w->view = NULL;
    w->model = NULL;
    w->rewards = NULL;
    w->there = NULL;
    w->joined = false;
    w->ready = false;
    w->over = 0;
    w->delivered = false; /* the same name may mean another run's slot from now on */
}

static weft_status build_model(worker *w) {
    const weft_subscriber_options options = {
        .size = sizeof options,
        .trusted = w->options->trusted,
        .empty = true,
        .report_name = w->options->name,
    };
    size_t window = (size_t)train_policy_span(&w->run) * train_slot_count(&w->run);
    w->there = weft_allocate_zeroed(w->context, window, sizeof *w->there);
    w->rewards = weft_allocate_array(w->context, train_slot_sequences(&w->run), sizeof *w->rewards);
    if (w->there == NULL || w->rewards == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = lm_model_create(w->context, &w->run.config, LM_WORKER, &w->model);
    if (status == WEFT_OK) {
        status = weft_view_create(w->context, lm_model_table(w->model), &w->view);
    }
    return status == WEFT_OK ? weft_subscriber_open(w->context, w->store, w->view, &options, &w->subscriber)
                             : status;
}

static weft_status join_run(worker *w) {
    weft_status status = train_run_get(w->context, w->store, &w->run);
    if (status == WEFT_NOT_FOUND) {
        return train_patience_wait(&w->patience, OUTSIDE_SECONDS, "no trainer has begun a run there");
    }
    if (status == WEFT_OK && w->run.fused != train_run_fused()) {
        return weft_fail(w->context, WEFT_UNSUPPORTED,
                         "the trainer's processor %s multiplications and additions, and this one (%s) does "
                         "not do the same: its trajectories would not be what the trainer's policy gives; "
                         "work on a machine of the same kind",
                         w->run.fused ? "fuses" : "does not fuse", weft_cpu_name());
    }
    if (status == WEFT_OK) {
        status = build_model(w);
    }
    if (status != WEFT_OK) {
        leave_run(w);
        return status;
    }
    w->joined = true;
    w->doubtful = false;
    w->place =
        (uint32_t)(XXH3_64bits(w->options->name, strlen(w->options->name)) % train_slot_count(&w->run));
    train_patience_calm(&w->patience);
    train_note(w->options->watch, "joined run %.8s: batches of %u prompts with %u responses in %u slots",
               w->run.name, w->run.prompts * w->run.trainers, w->run.group, train_slot_count(&w->run));
    return WEFT_OK;
}

/* Reads the description again, and leaves if it is of another run. */
static weft_status review_run(worker *w) {
    train_run found;
    weft_status status = train_run_get(w->context, w->store, &found);
    if (status != WEFT_OK && status != WEFT_NOT_FOUND) {
        return status;
    }
    w->doubtful = false;
    if (status == WEFT_OK && strcmp(found.name, w->run.name) == 0 && found.fused == w->run.fused &&
        train_run_alike(&found, &w->run)) {
        w->run.steps = found.steps;
        return WEFT_OK;
    }
    weft_context_clear(w->context);
    train_note(w->options->watch, "run %.8s is not what the store describes any more", w->run.name);
    leave_run(w);
    return WEFT_OK;
}

/* ---- following ---- */

static bool parse_step(const char *text, uint64_t *step_out) {
    char *end = NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9') {
        return false;
    }
    *step_out = strtoull(text, &end, 10);
    return *end == 0;
}

/* A slot that was put when its batch was over already lies there for nobody. Of those before the last one
 * it is known that their batch was not over: the newest version was looked for in between. Trainers that
 * average gradients may have to make a step again. */
static void clean_up(worker *w) {
    char key[TRAIN_KEY_SIZE];
    bool over = w->run.outer != TRAIN_DDP && w->last_batch < w->step;
    if (w->delivered && over) {
        train_slot_key(w->last_batch, w->last_slot, key);
        weft_status ignored = weft_store_remove(w->context, w->store, key);
        (void)ignored;
        weft_context_clear(w->context);
        w->delivered = false;
    }
}

/* The replica has come to a version: whose is it, and of which step? */
static weft_status settle_version(worker *w) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(w->subscriber, &info);
    const char *run = weft_subscriber_label(w->subscriber, TRAIN_LABEL_RUN);
    if (run == NULL || strcmp(run, w->run.name) != 0) {
        leave_run(w);
        return train_patience_wait(&w->patience, OUTSIDE_SECONDS,
                                   "the newest version is not of the run that is described there");
    }
    if (!parse_step(weft_subscriber_label(w->subscriber, TRAIN_LABEL_STEP), &w->step)) {
        return weft_fail(w->context, WEFT_MALFORMED, "version %llu has no step for a label",
                         (unsigned long long)info.version);
    }
    size_t window = (size_t)train_policy_span(&w->run) * train_slot_count(&w->run);
    memset(w->there, 0, window * sizeof *w->there);
    clean_up(w);
    w->ready = true;
    w->result.step = w->step;
    w->result.versions++;
    train_patience_calm(&w->patience);
    return WEFT_OK;
}

static weft_status pull_version(worker *w) {
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(w->subscriber, &before);
    double start = weft_clock_now();
    w->ready = false;
    weft_status status = weft_subscriber_pull(w->subscriber, 0);
    if (status == WEFT_OK) {
        status = lm_model_refresh(w->model);
    }
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(w->subscriber, &after);
    w->effort.pull += weft_clock_now() - start;
    w->effort.pause += after.pause_seconds;
    w->effort.received += after.fetched_bytes - before.fetched_bytes;
    w->result.received += after.fetched_bytes - before.fetched_bytes;
    return status == WEFT_OK ? settle_version(w) : status;
}

/* WEFT_MORE: nothing newer came within the time. */
static weft_status follow_versions(worker *w, double seconds) {
    weft_status status = weft_subscriber_wait(w->subscriber, seconds, NULL);
    return status == WEFT_OK ? pull_version(w) : status;
}

/* ---- slots ---- */

typedef struct work {
    uint64_t batch;
    uint32_t slot;
    bool found;
} work;

static weft_status look_at(worker *w, uint64_t batch, uint32_t slot, bool *there_out) {
    char key[TRAIN_KEY_SIZE];
    uint64_t size;
    train_slot_key(batch, slot, key);
    weft_status status = weft_store_head(w->context, w->store, key, &size, NULL);
    *there_out = status == WEFT_OK;
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

static weft_status find_work(worker *w, work *found) {
    weft_status status = WEFT_OK;
    uint32_t slots = train_slot_count(&w->run);
    *found = (work){.found = false};
    for (uint32_t ahead = 0; ahead < train_policy_span(&w->run); ahead++) {
        uint64_t batch = w->step + ahead;
        for (uint32_t i = 0; i < slots && batch < w->run.steps; i++) {
            uint32_t slot = (w->place + i) % slots;
            bool *there = &w->there[(size_t)ahead * slots + slot];
            if (!*there) {
                status = look_at(w, batch, slot, there);
            }
            if (status != WEFT_OK || !*there) {
                *found = (work){.batch = batch, .slot = slot, .found = status == WEFT_OK};
                return status;
            }
        }
    }
    return WEFT_OK;
}

/* Somebody else has put the slot meanwhile. Who begins where another one does meets him again and again:
 * elsewhere there may be more to do. */
static void give_way(worker *w) {
    w->result.lost++;
    w->place = (uint32_t)rand_r(&w->dice) % train_slot_count(&w->run);
    weft_context_clear(w->context);
}

/* What no trainer would take is not put: it would be removed, made again, and so on for ever. */
static weft_status check_object(worker *w, const weft_writer *object) {
    train_trajectory again;
    train_reason reason = TRAIN_GOOD;
    weft_status status =
        train_trajectory_parse(w->context, &w->run, object->data, object->size, &again, &reason);
    if (status == WEFT_OK) {
        train_trajectory_close(&again);
    } else if (reason != TRAIN_GOOD) {
        status = weft_fail(w->context, WEFT_MALFORMED,
                           "what the policy of step %llu makes is no trajectory that a trainer would take "
                           "(%.255s); see whether its weights are finite",
                           (unsigned long long)w->step, weft_context_error(w->context));
    }
    return status;
}

static weft_status deliver_slot(worker *w, const train_trajectory *made) {
    char key[TRAIN_KEY_SIZE];
    weft_writer writer;
    train_slot_key(made->batch, made->slot, key);
    weft_writer_open(&writer, w->context);
    weft_status status = train_trajectory_encode(w->context, made, &writer);
    if (status == WEFT_OK) {
        status = check_object(w, &writer);
    }
    double start = weft_clock_now();
    if (status == WEFT_OK) {
        const weft_message message = {
            .key = key,
            .data = writer.data,
            .size = writer.size,
            .condition = WEFT_STORE_IF_ABSENT,
            .alone = true, /* who is first counts; of two that are equally good it may be the last */
        };
        status = weft_message_put(w->context, w->store, &message);
    }
    weft_writer_close(&writer);
    if (status == WEFT_OK) {
        w->effort = (train_effort){.put = weft_clock_now() - start};
        w->delivered = true;
        w->last_batch = made->batch;
        w->last_slot = made->slot;
        w->result.slots++;
        w->fruitless = 0;
        train_patience_calm(&w->patience);
        w->result.sequences += made->samples->sequences;
    } else if (status == WEFT_CONFLICT) {
        give_way(w);
        status = WEFT_OK;
    }
    return status;
}

static weft_status make_slot(worker *w, const work *work) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(w->subscriber, &info);
    lm_rollout_options options = train_slot_rollout(&w->run, work->batch, work->slot);
    lm_samples *samples = NULL;
    double start = weft_clock_now();
    weft_status status = lm_rollout(w->model, &w->run.task, &options, w->rewards, &samples);
    if (status != WEFT_OK) {
        return status;
    }
    double seconds = weft_clock_now() - start;
    w->effort.generate += seconds;
    w->result.generate += seconds;
    train_trajectory made = {
        .batch = work->batch,
        .slot = work->slot,
        .step = w->step,
        .version = info.version,
        .digest = info.digest,
        .effort = w->effort,
        .caches = {.held = samples->kv.held,
                   .full = samples->kv.full,
                   .peak_bytes = samples->kv.peak_bytes,
                   .dense_bytes = samples->kv.peak_full_bytes},
        .samples = samples,
        .rewards = w->rewards,
    };
    snprintf(made.run, sizeof made.run, "%s", w->run.name);
    snprintf(made.worker, sizeof made.worker, "%s", w->options->name);
    status = deliver_slot(w, &made);
    lm_samples_destroy(samples);
    if (status == WEFT_OK) {
        w->there[(work->batch - w->step) * train_slot_count(&w->run) + work->slot] = true;
    }
    return status;
}

/* A store may hide a slot and yet refuse it, as one that is damaged or cached does: then all that is made
 * is lost, and trying at once would only make a worker busy. */
static double rest_seconds(worker *w) {
    if (w->result.lost > w->lost && w->fruitless < LONGER_RESTS) {
        w->fruitless++;
    }
    w->lost = w->result.lost;
    return IDLE_SECONDS * (1U << w->fruitless) * weft_clock_jitter();
}

/* All slots are there: the trainer is at work, or gone, or will find one bad and remove it. */
static weft_status rest_a_while(worker *w) {
    size_t window = (size_t)train_policy_span(&w->run) * train_slot_count(&w->run);
    weft_status status = follow_versions(w, rest_seconds(w));
    if (status != WEFT_MORE) {
        return status;
    }
    status = review_run(w);
    if (status != WEFT_OK || !w->joined) {
        return status;
    }
    memset(w->there, 0, window * sizeof *w->there);
    return train_patience_wait(&w->patience, 0, "the trainer has published nothing and wants nothing");
}

static weft_status work_on(worker *w) {
    work next;
    weft_status status = find_work(w, &next);
    if (status != WEFT_OK) {
        return status;
    }
    return next.found ? make_slot(w, &next) : rest_a_while(w);
}

/* ---- the loop ---- */

static bool all_is_made(const worker *w) {
    return w->ready && w->step >= w->run.steps;
}

static weft_status linger_at_end(worker *w) {
    double now = weft_clock_now();
    w->over = w->over > 0 ? w->over : now;
    weft_status status = review_run(w);
    if (status != WEFT_OK || !w->joined || !all_is_made(w)) {
        return status;
    }
    w->finished = now - w->over >= (w->result.slots > 0 ? LINGER_SECONDS : LINGER_NEW_SECONDS);
    status = w->finished ? WEFT_OK : follow_versions(w, IDLE_SECONDS);
    return status == WEFT_MORE ? WEFT_OK : status;
}

/* Where rounds overlap a rank makes the steps of a round before it ends the one before. So the policy that
 * follows on this one may be published while ranks still want batches of the round that it opens, which are
 * of this policy: they come first. The policy after that one says that all have them. */
static weft_status follow_when_done(worker *w, uint64_t newest) {
    weft_subscriber_info info = {.size = sizeof info};
    work owed = {.found = false};
    weft_status status = WEFT_OK;
    weft_subscriber_describe(w->subscriber, &info);
    if (w->ready && w->run.overlap && newest == info.version + 1) {
        status = find_work(w, &owed);
    }
    if (status == WEFT_OK) {
        bool before = owed.found && owed.batch < w->step + 2 * (uint64_t)w->run.local_steps;
        status = before ? make_slot(w, &owed) : pull_version(w);
    }
    return status;
}

static weft_status go_on(worker *w) {
    uint64_t newest = 0;
    weft_status status =
        weft_subscriber_wait(w->subscriber, w->ready ? GLANCE_SECONDS : IDLE_SECONDS, &newest);
    if (status == WEFT_OK) {
        status = follow_when_done(w, newest);
    }
    if (status == WEFT_MORE && !w->ready) {
        w->doubtful = true;
        return train_patience_wait(&w->patience, 0, "the trainer has published nothing yet");
    }
    if (status < 0 || !w->ready || all_is_made(w)) {
        return status < 0 ? status : WEFT_OK;
    }
    w->over = 0;
    return work_on(w);
}

static weft_status take_turn(worker *w) {
    if (!w->joined) {
        return join_run(w);
    }
    if (w->doubtful) {
        return review_run(w);
    }
    return all_is_made(w) ? linger_at_end(w) : go_on(w);
}

static bool time_is_over(const worker *w) {
    double most = w->options->max_seconds;
    return most > 0 && weft_clock_now() - w->started > most;
}

weft_status train_worker_run(weft_context *context, weft_store *store, const train_worker_options *options,
                             train_worker_result *result_out) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    worker w = {
        .context = context,
        .store = store,
        .options = options,
        .started = weft_clock_now(),
        .dice = (unsigned)getpid() ^ (unsigned)weft_clock_date(),
    };
    weft_status status = WEFT_OK;
    weft_context_clear(context);
    train_patience_open(&w.patience, context, options->watch, options->patience);
    while (status == WEFT_OK && !w.finished && !time_is_over(&w)) {
        status = weft_progress_ask(context);
        if (status == WEFT_OK) {
            status = take_turn(&w);
        }
        if (status < 0) {
            status = train_patience_bear(&w.patience, status);
            w.doubtful = true;
        }
    }
    w.result.finished = w.finished;
    leave_run(&w);
    if (status == WEFT_OK) {
        *result_out = w.result;
    }
    return status;
}
