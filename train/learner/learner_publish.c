/* SPDX-License-Identifier: Apache-2.0
 *
 * learner_publish.c: what a trainer has published, publishes, and, among several, leaves to another rank.
 *
 * A rank that does not publish knows which policy there must be, for all hold the same consensus, but not
 * under which version. It looks while it waits for work to be done; if the rank whose task it was seems to
 * be gone, the next one takes over, which fences the former.
 *
 * That a rank is gone can only be guessed, by the time that has passed, so two of them may be at it at
 * once. Then each would fence the other for ever, if it insisted. So who is fenced does not: it waits,
 * longer each time, and looks whether the policy has come. And who has fenced the others looks once more
 * before it publishes, for a policy of an earlier step must not come after one of a later. A policy may so
 * have several versions, of which all are the same.
 */
#include "learner.h"

#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "../../lib/tensor/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between looks at what the other ranks do; and, when nothing else is left to do, at most. */
static const double LOOK_SECONDS = 0.5;
static const double END_SECONDS = 0.1;

uint64_t train_learner_policy_step(const train_learner *learner) {
    bool rounds = learner->team.loco != NULL && learner->run.outer != TRAIN_DDP;
    return rounds ? weft_loco_rounds(learner->team.loco) * learner->run.local_steps : learner->step;
}

/* ---- which version is the newest ---- */

static const char *label_of(const weft_log_entry *entry, const char *key) {
    for (size_t i = 0; entry->labels[i] != NULL; i += 2) {
        if (strcmp(entry->labels[i], key) == 0) {
            return entry->labels[i + 1];
        }
    }
    return "";
}

static uint64_t step_of(const weft_log_entry *entry) {
    return strtoull(label_of(entry, TRAIN_LABEL_STEP), NULL, 10);
}

static weft_status walk(train_learner *learner, weft_log_visit visit, void *opaque) {
    weft_status status =
        weft_log_walk(learner->context, learner->store, learner->options->key, visit, opaque);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(learner->context);
        status = WEFT_OK;
    }
    return status;
}

typedef struct newest {
    const train_run *run;
    train_policy policy; /* version 0: none of this run */
} newest;

static bool visit_newest(void *opaque, const weft_log_entry *entry) {
    newest *found = opaque;
    if (strcmp(label_of(entry, TRAIN_LABEL_RUN), found->run->name) == 0) {
        found->policy =
            (train_policy){.step = step_of(entry), .version = entry->version, .digest = entry->digest};
    }
    return false;
}

/* Whether the policy that this rank knows of, or a later one, is the newest version. */
static weft_status look_for_policy(train_learner *learner, bool *there_out) {
    newest found = {.run = &learner->run};
    train_policy *own = &learner->collector.policies[0];
    weft_status status = walk(learner, visit_newest, &found);
    if (status != WEFT_OK) {
        return status;
    }
    bool same = found.policy.version != 0 && found.policy.step == own->step;
    if (same && !weft_digest_equal(&found.policy.digest, &own->digest)) {
        return weft_fail(learner->context, WEFT_DIGEST_MISMATCH,
                         "the policy of step %llu that was published is not what this rank holds: the "
                         "ranks do not compute the same; use the same version and kind of processor "
                         "everywhere, or remove this rank's state so that it joins anew",
                         (unsigned long long)own->step);
    }
    own->version = same ? found.policy.version : own->version;
    *there_out = same || (found.policy.version != 0 && found.policy.step > own->step);
    return WEFT_OK;
}

/* ---- publishing ---- */

static weft_status open_publisher(train_learner *learner) {
    const weft_publisher_options options = {
        .size = sizeof options,
        .profile = WEFT_PROFILE_SMALL,
        .key = learner->options->key,
        .gc_seconds = 600,
        .whole = learner->run.sync == TRAIN_SYNC_FULL,
    };
    return weft_publisher_open(learner->context, learner->store, learner->view, &options,
                               &learner->publisher);
}

static void close_publisher(train_learner *learner) {
    weft_publisher_close(learner->publisher);
    learner->publisher = NULL;
}

/* True if other ranks may publish, too: whoever has the task gives way to them. */
static bool is_shared(const train_learner *learner) {
    return learner->team.loco != NULL && train_team_goes_on(&learner->team);
}

/* Becomes the one who publishes. Another rank may have done so just before. */
static weft_status claim(train_learner *learner, bool *there_out) {
    weft_status status = WEFT_OK;
    if (is_shared(learner)) {
        status = train_collector_check_run(&learner->collector);
        status = status == WEFT_OK ? look_for_policy(learner, there_out) : status;
    }
    if (status == WEFT_OK && !*there_out) {
        status = open_publisher(learner);
    }
    if (status == WEFT_OK && !*there_out && is_shared(learner)) {
        status = look_for_policy(learner, there_out);
    }
    return status;
}

static weft_status publish_once(train_learner *learner, weft_publish_result *result) {
    char step[32];
    const char *const labels[] = {TRAIN_LABEL_STEP, step, TRAIN_LABEL_RUN, learner->run.name, NULL};
    bool there = false;
    snprintf(step, sizeof step, "%llu", (unsigned long long)train_learner_policy_step(learner));
    weft_status status = learner->publisher == NULL ? claim(learner, &there) : WEFT_OK;
    result->version = 0;
    return status == WEFT_OK && !there ? weft_publisher_publish(learner->publisher, labels, result)
                                       : status;
}

/* Two ranks were at it at once: from now on this one leaves more time to the others, as long as patience
 * lasts for a turn of each. */
static void leave_more_time(train_learner *learner) {
    double most = learner->options->patience / (2 * (learner->run.trainers + 1));
    double doubled = 2 * learner->turn;
    learner->turn = doubled < most ? doubled : learner->turn;
}

/* Somebody else has taken over: another rank, unless WEFT_CONFLICT says that it is another run. */
static weft_status give_way(train_learner *learner) {
    close_publisher(learner);
    leave_more_time(learner);
    learner->yields = true;
    learner->missing = true;
    learner->missing_since = weft_clock_now();
    weft_status status = train_collector_check_run(&learner->collector);
    if (status != WEFT_CONFLICT) {
        weft_context_clear(learner->context);
        status = WEFT_OK;
    }
    return status;
}

static void note_published(train_learner *learner, const weft_publish_result *result,
                           train_published *published) {
    const train_policy policy = {
        .step = train_learner_policy_step(learner), .version = result->version, .digest = result->digest};
    train_collector_note(&learner->collector, &policy);
    learner->published_bytes += result->uploaded_bytes;
    published->version = result->version;
    published->sent = result->uploaded_bytes;
    published->dense = result->dense_bytes;
}

/* Publishes the policy, or finds that another rank has, or is about to: then the version is 0. */
static weft_status publish(train_learner *learner, train_published *published) {
    double start = weft_clock_now();
    weft_publish_result result = {.size = sizeof result};
    weft_status status = publish_once(learner, &result);
    while (status != WEFT_OK && !(status == WEFT_CONFLICT && is_shared(learner))) {
        status = train_patience_bear(&learner->patience, status);
        if (status != WEFT_OK) {
            return status;
        }
        status = publish_once(learner, &result);
    }
    train_patience_calm(&learner->patience);
    published->version = 0;
    if (status == WEFT_CONFLICT) {
        status = give_way(learner);
    } else if (result.version != 0) {
        note_published(learner, &result, published);
    }
    published->publish = weft_clock_now() - start;
    return status;
}

bool train_learner_leads(const train_learner *learner) {
    return train_team_leader(&learner->team) == learner->options->rank;
}

/* The rank that this one took for gone, and published for, leads again: it was only slow. */
static void review_turn(train_learner *learner) {
    if (learner->stood_in && learner->stood_in_for == train_team_leader(&learner->team)) {
        leave_more_time(learner);
    }
    learner->stood_in = false;
    learner->yields = false;
    learner->missing = false;
}

weft_status train_learner_offer(train_learner *learner, train_published *published) {
    train_policy policy = {.step = train_learner_policy_step(learner)};
    if (train_learner_leads(learner) && !is_shared(learner)) {
        return publish(learner, published);
    }
    review_turn(learner);
    weft_status status =
        weft_table_digest(learner->context, train_team_table(&learner->team), &policy.digest);
    if (status != WEFT_OK) {
        return status;
    }
    train_collector_note(&learner->collector, &policy);
    published->version = 0;
    return train_learner_leads(learner) ? publish(learner, published) : WEFT_OK;
}

/* ---- what has been published ---- */

typedef struct history {
    train_learner *learner;
    uint64_t step;                                  /* of the policy */
    uint64_t newest;                                /* version of all */
    train_policy policies[TRAIN_STALENESS_MAX + 1]; /* of it and of those before, newest first */
    size_t count;
    uint64_t patch_bytes; /* of the newest of them */
} history;

/* Of several versions of a step the newest counts. */
static bool visit_version(void *opaque, const weft_log_entry *entry) {
    history *past = opaque;
    const train_run *run = &past->learner->run;
    uint64_t step = step_of(entry);
    uint64_t wanted =
        past->count > 0 ? past->policies[past->count - 1].step - run->local_steps : past->step;
    past->newest = past->newest > 0 ? past->newest : entry->version;
    if (strcmp(label_of(entry, TRAIN_LABEL_RUN), run->name) != 0) {
        return false;
    }
    if (step == wanted) {
        past->policies[past->count++] =
            (train_policy){.step = step, .version = entry->version, .digest = entry->digest};
        past->patch_bytes = past->count == 1 ? entry->patch_bytes + entry->anchor_bytes : past->patch_bytes;
    }
    return step > 0 && past->count <= run->staleness;
}

/* True if the newest version in the store is what the state would publish. */
static bool is_published(const history *past, const weft_digest *digest) {
    return past->count > 0 && past->policies[0].step == past->step &&
           past->policies[0].version == past->newest &&
           weft_digest_equal(&past->policies[0].digest, digest);
}

/* A step that was saved but not published, or published but not written into the metrics. */
static weft_status finish_line(train_learner *learner, train_published *published) {
    json_t *line = learner->step > 0 ? train_metrics_pending(&learner->metrics, learner->step - 1) : NULL;
    if (line == NULL) {
        return WEFT_OK;
    }
    published->dense = learner->trainer->model->parameters * sizeof(uint16_t);
    if (learner->round.included > 0) {
        train_line_round(line, "round", &learner->run, &learner->round);
    }
    train_line_finish(line, published);
    weft_status status = train_metrics_add(&learner->metrics, line);
    json_decref(line);
    return status;
}

static weft_status read_history(void *opaque) {
    history *past = opaque;
    *past = (history){.learner = past->learner, .step = train_learner_policy_step(past->learner)};
    return walk(past->learner, visit_version, past);
}

weft_status train_learner_find_published(train_learner *learner) {
    history past = {.learner = learner};
    weft_digest digest;
    train_published published = {.version = 0};
    weft_status status = train_patience_try(&learner->patience, read_history, &past);
    if (status == WEFT_OK) {
        status = weft_table_digest(learner->context, train_team_table(&learner->team), &digest);
    }
    if (status != WEFT_OK) {
        return status;
    }
    bool there = is_published(&past, &digest);
    for (size_t i = past.count; i > 0; i--) {
        if (there || past.policies[i - 1].step < past.step) {
            train_collector_note(&learner->collector, &past.policies[i - 1]);
        }
    }
    if (there) {
        published.version = past.policies[0].version;
        published.sent = past.patch_bytes;
    } else {
        status = train_learner_offer(learner, &published);
    }
    if (status == WEFT_OK) {
        status = finish_line(learner, &published);
    }
    if (status == WEFT_OK && learner->team.loco == NULL && learner->step > 0) {
        train_collector_clear(&learner->collector, learner->step - 1);
    }
    return status;
}

/* ---- while it waits ---- */

/* Whether it is time to take over: the ranks before this one have each had their turn, and so has the one
 * that this one gave way to. */
static bool is_overdue(train_learner *learner) {
    uint32_t ranks = learner->run.trainers;
    uint32_t turn = (learner->options->rank + ranks - train_team_leader(&learner->team)) % ranks;
    double now = weft_clock_now();
    learner->missing_since = learner->missing ? learner->missing_since : now;
    learner->missing = true;
    return is_shared(learner) && now - learner->missing_since >= (turn + learner->yields) * learner->turn;
}

static weft_status take_over(train_learner *learner) {
    train_published published;
    uint32_t leader = train_team_leader(&learner->team);
    if (leader != learner->options->rank) {
        train_note(learner->options->watch,
                   "rank %u has not published the policy of step %llu: this one does", leader,
                   (unsigned long long)train_learner_policy_step(learner));
        learner->stood_in = true;
        learner->stood_in_for = leader;
    }
    close_publisher(learner);
    learner->missing = false;
    return publish(learner, &published);
}

/* WEFT_MORE: the policy is not there yet. */
static weft_status see_to_policy(train_learner *learner) {
    bool there = false;
    weft_status status = look_for_policy(learner, &there);
    if (status != WEFT_OK) {
        status = train_patience_bear(&learner->patience, status);
    } else if (there) {
        learner->missing = false;
        return WEFT_OK;
    } else if (is_overdue(learner)) {
        status = take_over(learner);
    }
    return status == WEFT_OK ? WEFT_MORE : status;
}

/* Where rounds overlap another rank may have ended the round that this one ends when its steps are made,
 * and published its policy. A worker that comes to the run then has no older one: what it makes is refused
 * until this rank knows of the policy, so the store is asked after each refusal. */
static weft_status look_ahead(train_learner *learner) {
    newest found = {.run = &learner->run};
    uint64_t refused = learner->collector.rejected[TRAIN_BAD_VERSION];
    uint64_t next = learner->collector.policies[0].step + learner->run.local_steps;
    if (!learner->run.overlap || refused == learner->refused || next > learner->step) {
        return WEFT_OK;
    }
    weft_status status = walk(learner, visit_newest, &found);
    if (status != WEFT_OK) {
        return status;
    }
    learner->refused = refused;
    if (found.policy.version != 0 && found.policy.step == next) {
        train_collector_note(&learner->collector, &found.policy);
    }
    return WEFT_OK;
}

weft_status train_learner_look(void *opaque) {
    train_learner *learner = opaque;
    double now = weft_clock_now();
    if (now - learner->looked < LOOK_SECONDS) {
        return WEFT_OK;
    }
    learner->looked = now;
    weft_status status = train_team_look(&learner->team, learner->step / learner->run.local_steps);
    if (status == WEFT_OK) {
        status = see_to_policy(learner);
        status = status == WEFT_MORE ? WEFT_OK : status;
    }
    return status == WEFT_OK ? look_ahead(learner) : status;
}

weft_status train_learner_await_published(train_learner *learner) {
    weft_status status = is_shared(learner) ? see_to_policy(learner) : WEFT_OK;
    while (status == WEFT_MORE) {
        status = train_patience_wait(&learner->patience, END_SECONDS,
                                     "no rank has published the policy of the last step");
        status = status == WEFT_OK ? see_to_policy(learner) : status;
    }
    return status;
}
