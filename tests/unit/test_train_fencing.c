/* SPDX-License-Identifier: Apache-2.0
 *
 * test_train_fencing.c: two trainers that are both alive and take each other for gone. Whichever of them is
 * stopped, at whichever operation of its publishing, and whatever the other does meanwhile: no policy comes
 * after a later one, neither fences the other for ever, and both end with the same consensus.
 *
 * The ranks are threads of which one at a time runs, in a time of their own: an operation on the store
 * takes as many of its seconds as the test says, and then the rank goes on whose operation ends first. So
 * the order of all that they do is the test's choice, and the clock of the machine has no part in it.
 */
#include "../../lib/base/context.h"
#include "../../lib/tensor/digest.h"
#include "../../train/learner/learner.h"
#include "../support/scratch.h"
#include "../support/stride.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, LOCAL_STEPS = 2, MOST_CLAIMS = 2 * (5 + 1) };

/* Seconds of the world: a rank's turn, an operation, a rank that is stopped, and when it is all too long.
 * Beside them what the machine takes is nothing, for that counts, too. */
static const double TURN = 2e4;
static const double OPERATION = 1e3;
static const double STOPPED = 1e7;
static const double FOR_EVER = 1e9;

/* Of the machine: how long a round waits for the rank that is not running. */
static const double DEADLINE = 0.001;

typedef struct world world;

typedef struct rank {
    world *world;
    weft_context *context;
    weft_store *store; /* the world's, each operation in the world's time */
    train_options options;
    train_learner learner;
    pthread_t thread;
    double wakes;        /* when what it does now is done */
    uint64_t operations; /* until it is stopped; 0: it is not, or has been */
    uint64_t rounds;     /* that it takes part in of its own accord */
    double busy;         /* seconds with something else first */
    bool unclaimed;      /* it has to become the one who publishes first */
    weft_status status;  /* of all that it did */
} rank;

struct world {
    scratch scratch;
    weft_context *context;
    weft_store *store;
    pthread_mutex_t mutex;
    pthread_cond_t handed;
    rank ranks[RANKS];
    rank *running;
    double now;
    double put_seconds; /* that a put of a publisher takes */
    uint64_t rounds;    /* until the run is over */
    uint64_t claims;    /* how often a rank has begun an epoch */
};

/* That this thread is. */
static _Thread_local rank *this_rank;

/* ---- time ---- */

/* What the ranks measure on the machine's clock seems that much longer to them. */
static void go_on_to(world *world, double when) {
    for (size_t i = 0; i < RANKS; i++) {
        world->ranks[i].learner.missing_since -= when - world->now;
    }
    world->now = when;
}

/* The rank that has waited longest goes on; of two, the one that is running. */
static void hand_over(world *world) {
    rank *next = world->running;
    for (size_t i = 0; i < RANKS; i++) {
        next = world->ranks[i].wakes < next->wakes ? &world->ranks[i] : next;
    }
    if (next->wakes < INFINITY) {
        go_on_to(world, next->wakes);
    }
    world->running = next;
    pthread_cond_broadcast(&world->handed);
}

static void await_turn(rank *self) {
    while (self->world->running != self) {
        pthread_cond_wait(&self->world->handed, &self->world->mutex);
    }
}

static void spend(rank *self, double seconds) {
    world *world = self->world;
    pthread_mutex_lock(&world->mutex);
    self->wakes = world->now + seconds;
    hand_over(world);
    await_turn(self);
    pthread_mutex_unlock(&world->mutex);
}

/* ---- the store of a rank ---- */

/* What a publisher's threads do in the background takes no time, nor does a meeting, which waits by the
 * machine's clock. */
static bool takes_time(const rank *self, const char *key) {
    return this_rank == self && strncmp(key, "loco/", 5) != 0;
}

static weft_status begin_operation(rank *self, weft_context *context, const char *key) {
    if (!takes_time(self, key)) {
        return WEFT_OK;
    }
    bool stops = self->operations == 1;
    self->operations -= self->operations > 0;
    spend(self, stops ? STOPPED : OPERATION);
    return self->world->now < FOR_EVER
               ? WEFT_OK
               : weft_fail(context, WEFT_CANCELLED, "the ranks hinder each other for ever");
}

static weft_status rank_get(void *opaque, weft_context *context, const weft_store_get_request *request,
                            weft_store_get_result *result_out) {
    rank *self = opaque;
    weft_status status = begin_operation(self, context, request->key);
    return status == WEFT_OK ? weft_store_get(context, self->world->store, request, result_out) : status;
}

static weft_status rank_put(void *opaque, weft_context *context, const weft_store_put_request *request,
                            weft_store_tag *tag_out) {
    rank *self = opaque;
    weft_status status = begin_operation(self, context, request->key);
    if (status == WEFT_OK) {
        status = weft_store_put(context, self->world->store, request, tag_out);
    }
    if (takes_time(self, request->key)) {
        bool claims = request->condition == WEFT_STORE_IF_ABSENT && strncmp(request->key, "heads/", 6) == 0;
        self->world->claims += claims && status == WEFT_OK;
        spend(self, self->world->put_seconds);
    }
    return status;
}

static weft_status rank_head(void *opaque, weft_context *context, const char *key, uint64_t *size_out,
                             weft_store_tag *tag_out) {
    rank *self = opaque;
    weft_status status = begin_operation(self, context, key);
    return status == WEFT_OK ? weft_store_head(context, self->world->store, key, size_out, tag_out)
                             : status;
}

static weft_status rank_remove(void *opaque, weft_context *context, const char *key) {
    rank *self = opaque;
    return weft_store_remove(context, self->world->store, key);
}

static void rank_traits(void *opaque, weft_store_traits *traits) {
    rank *self = opaque;
    weft_store_traits_of(self->world->store, traits);
}

static void rank_leave(void *opaque) {
    (void)opaque;
}

/* ---- ranks ---- */

static void ignore(void *opaque, const char *text) {
    (void)opaque;
    (void)text;
}

static const train_watch watch = {.note = ignore, .warn = ignore};

static train_options choose_options(world *world, uint32_t number) {
    train_options options = train_options_defaults();
    options.run.config.width = 32;
    options.run.config.layers = 1;
    options.run.config.heads = 2;
    options.run.config.kv_heads = 2;
    options.run.config.feed_forward = 32;
    options.run.trainers = RANKS;
    options.run.outer = TRAIN_PULSELOCO;
    options.run.local_steps = LOCAL_STEPS;
    options.run.steps = world->rounds * LOCAL_STEPS;
    options.warmup.success = 0;
    options.output = scratch_path(&world->scratch, "output");
    options.rank = number;
    options.deadline = DEADLINE;
    options.patience = FOR_EVER;
    options.watch = &watch;
    return options;
}

static void rank_open(world *world, uint32_t number) {
    static const weft_store_operations operations = {
        .size = sizeof operations,
        .name = "rank",
        .traits = rank_traits,
        .get = rank_get,
        .put = rank_put,
        .head = rank_head,
        .remove = rank_remove,
        .close = rank_leave,
    };
    rank *self = &world->ranks[number];
    self->world = world;
    self->options = choose_options(world, number);
    assert_int_equal(weft_context_create(NULL, &self->context), WEFT_OK);
    assert_int_equal(weft_store_create(self->context, "rank:", &operations, self, &self->store), WEFT_OK);
    train_learner_open(&self->learner, self->context, self->store, &self->options);
    if (train_learner_start(&self->learner) != WEFT_OK) {
        fail_msg("rank %u: %s", number, weft_context_error(self->context));
    }
    self->learner.turn = TURN;
}

static void rank_close(rank *self) {
    train_learner_close(&self->learner);
    weft_store_close(self->store);
    weft_context_destroy(self->context);
}

/* ---- what is published ---- */

typedef struct record {
    uint64_t newest; /* step; of the version before the one that was seen last: */
    uint64_t step;
    size_t versions;
    bool ordered;
} record;

static bool visit_version(void *opaque, const weft_log_entry *entry) {
    record *past = opaque;
    for (size_t i = 0; entry->labels[i] != NULL; i += 2) {
        if (strcmp(entry->labels[i], TRAIN_LABEL_STEP) == 0) {
            uint64_t step = strtoull(entry->labels[i + 1], NULL, 10);
            past->newest = past->versions == 0 ? step : past->newest;
            past->ordered = past->ordered && (past->versions == 0 || step <= past->step);
            past->step = step;
            past->versions++;
        }
    }
    return true;
}

/* From the newest version back. */
static record read_record(world *world) {
    record past = {.ordered = true};
    weft_status status = weft_log_walk(world->context, world->store, NULL, visit_version, &past);
    past.ordered = past.ordered && status == WEFT_OK;
    return past;
}

/* ---- what a rank does ---- */

static weft_status end_round(rank *self) {
    train_learner *learner = &self->learner;
    train_published published;
    train_round round;
    for (size_t i = 0; i < learner->trainer->model->parameters; i += 3) {
        learner->trainer->model->masters[i] += 0.01F * (float)(1 + self->options.rank);
    }
    learner->step += LOCAL_STEPS;
    weft_status status = train_team_agree(&learner->team, &round);
    return status == WEFT_OK ? train_learner_offer(learner, &published) : status;
}

static weft_status rejoin(rank *self) {
    train_learner *learner = &self->learner;
    train_published published;
    uint64_t rounds = 0;
    weft_status status = train_team_catch_up(&learner->team, &rounds);
    learner->step = weft_loco_rounds(learner->team.loco) * LOCAL_STEPS;
    return status == WEFT_OK ? train_learner_offer(learner, &published) : status;
}

static weft_status look(rank *self) {
    self->learner.looked = -INFINITY;
    weft_status status = train_learner_look(&self->learner);
    if (status == WEFT_MORE) {
        status = rejoin(self);
    }
    spend(self, OPERATION);
    return status;
}

static bool is_over(const rank *self) {
    return weft_loco_rounds(self->learner.team.loco) == self->world->rounds &&
           read_record(self->world).newest == self->world->rounds * LOCAL_STEPS;
}

/* It ends its first rounds itself, each when the policy before it is there, and follows the other's. */
static weft_status live(rank *self) {
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && !is_over(self)) {
        uint64_t round = weft_loco_rounds(self->learner.team.loco);
        if (round < self->rounds && read_record(self->world).newest == round * LOCAL_STEPS) {
            status = end_round(self);
        } else {
            status = look(self);
        }
    }
    return status == WEFT_OK ? train_learner_await_published(&self->learner) : status;
}

static void *run_rank(void *opaque) {
    rank *self = opaque;
    world *world = self->world;
    this_rank = self;
    pthread_mutex_lock(&world->mutex);
    await_turn(self);
    pthread_mutex_unlock(&world->mutex);
    if (self->unclaimed) {
        weft_publisher_close(self->learner.publisher);
        self->learner.publisher = NULL;
    }
    spend(self, self->busy);
    self->status = live(self);
    pthread_mutex_lock(&world->mutex);
    self->wakes = INFINITY;
    hand_over(world);
    pthread_mutex_unlock(&world->mutex);
    return NULL;
}

/* ---- a world of two ---- */

static void world_open(world *world, uint64_t rounds) {
    *world = (struct world){.rounds = rounds};
    const weft_store_options options = {.size = sizeof options, .volatile_writes = true};
    scratch_open_volatile(&world->scratch);
    pthread_mutex_init(&world->mutex, NULL);
    pthread_cond_init(&world->handed, NULL);
    assert_int_equal(weft_context_create(NULL, &world->context), WEFT_OK);
    assert_int_equal(
        weft_store_open(world->context, scratch_path(&world->scratch, "store"), &options, &world->store),
        WEFT_OK);
    for (uint32_t i = 0; i < RANKS; i++) {
        rank_open(world, i);
    }
}

/* Rank 0 goes first. */
static void world_run(world *world) {
    pthread_mutex_lock(&world->mutex);
    world->running = &world->ranks[0];
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_create(&world->ranks[i].thread, NULL, run_rank, &world->ranks[i]), 0);
    }
    pthread_mutex_unlock(&world->mutex);
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_join(world->ranks[i].thread, NULL), 0);
    }
}

static void world_check(world *world, const char *what, uint64_t number) {
    for (size_t i = 0; i < RANKS; i++) {
        if (world->ranks[i].status != WEFT_OK) {
            fail_msg("%s %llu: rank %zu: %s", what, (unsigned long long)number, i,
                     weft_context_error(world->ranks[i].context));
        }
    }
    record past = read_record(world);
    weft_digest first = weft_loco_digest(world->ranks[0].learner.team.loco);
    weft_digest second = weft_loco_digest(world->ranks[1].learner.team.loco);
    if (!past.ordered) {
        fail_msg("%s %llu: a policy came after a later one", what, (unsigned long long)number);
    }
    assert_int_equal(past.newest, world->rounds * LOCAL_STEPS);
    assert_true(past.versions > world->rounds);
    assert_true(weft_digest_equal(&first, &second));
}

static void world_close(world *world) {
    for (size_t i = 0; i < RANKS; i++) {
        rank_close(&world->ranks[i]);
    }
    weft_store_close(world->store);
    weft_context_destroy(world->context);
    pthread_cond_destroy(&world->handed);
    pthread_mutex_destroy(&world->mutex);
    scratch_close(&world->scratch);
}

/* ---- one that is stopped ---- */

/* Rank 0 leads, and is stopped at its n-th operation for longer than rank 1 waits; that one publishes in
 * its place, and ends `rounds` rounds in all. False if rank 0 was done before. */
static bool stop_at(uint64_t n, uint64_t rounds, bool unclaimed, const char *what) {
    world world;
    world_open(&world, rounds);
    world.ranks[0].rounds = 1;
    world.ranks[0].unclaimed = unclaimed;
    world.ranks[0].operations = n;
    world.ranks[1].rounds = rounds;
    world_run(&world);
    world_check(&world, what, n);
    bool stopped = world.now > STOPPED;
    world_close(&world);
    return stopped;
}

static void stop_everywhere(uint64_t rounds, bool unclaimed, const char *what) {
    uint64_t n = test_stride_first();
    while (stop_at(n, rounds, unclaimed, what)) {
        n += test_stride();
    }
    print_message("%s: of %llu operations\n", what, (unsigned long long)n - 1);
}

static void test_stopped(void **state) {
    (void)state;
    stop_everywhere(1, false, "the other stands in");
    stop_everywhere(2, false, "the other goes on");
    stop_everywhere(2, true, "one that has yet to take over");
}

/* ---- two that are slow ---- */

/* A put takes much longer than a turn, so each takes the other for gone while it publishes, and fences it,
 * until they have learned to wait as long as it takes: less than 32 turns, so each learns at most five
 * times, and then the policy takes one more claim of each. */
static void test_slow(void **state) {
    (void)state;
    world world;
    world_open(&world, 1);
    world.put_seconds = 10 * TURN;
    world.ranks[1].busy = 10 * TURN;
    world.ranks[0].rounds = 1;
    world.ranks[0].unclaimed = true;
    world_run(&world);
    world_check(&world, "slow puts", 0);
    print_message("%llu claims in %.0f s\n", (unsigned long long)world.claims, world.now);
    assert_in_range(world.claims, 4, MOST_CLAIMS);
    world_close(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
