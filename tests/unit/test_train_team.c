/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer that was stopped at the end of a round, such as on a machine that was suspended, until the
 * others were so far ahead that the round is gone from the store: it comes to where they are, and does not
 * wait for a round that nobody can end any more. If it cannot come there, it says why, and why it had to;
 * and when it can, it goes on from where it was on the way.
 */
#include "../../lib/base/context.h"
#include "../../train/learner/team.h"
#include "../support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Rounds that the store keeps, and those between snapshots, are fewer. */
enum { RANKS = 2, AHEAD = 50 };

/* Who watches can put something right, at the first trouble. */
typedef struct helper {
    const char *damaged; /* NULL: nothing to put right */
    int troubles;
} helper;

typedef struct member {
    weft_context *context;
    weft_store *store;
    train_options options;
    lm_trainer *trainer;
    helper helper;
    train_watch watch;
    train_patience patience;
    train_team team;
} member;

static void say(void *opaque, const char *text) {
    (void)opaque;
    (void)text;
}

static void help(void *opaque, const char *text) {
    helper *helper = opaque;
    (void)text;
    if (helper->troubles++ == 0 && helper->damaged != NULL) {
        scratch_flip(helper->damaged);
    }
}

static void expect(weft_context *context, weft_status status, weft_status expected) {
    if (status != expected) {
        fail_msg("%s: %s", weft_status_name(status), weft_context_error(context));
    }
}

static train_options choose(uint32_t rank) {
    train_options options = train_options_defaults();
    options.run.config.layers = 1;
    options.run.config.width = 16;
    options.run.config.heads = 1;
    options.run.config.kv_heads = 1;
    options.run.config.feed_forward = 16;
    options.run.outer = TRAIN_PULSELOCO;
    options.run.trainers = RANKS;
    options.run.local_steps = 1;
    options.rank = rank;
    options.deadline = 0.001; /* of rank 0, who waits for nobody */
    options.patience = 60;
    memcpy(options.run.name, "0123", 5);
    return options;
}

static void member_open(member *member, const char *directory, uint32_t rank) {
    const weft_store_options quick = {.size = sizeof quick, .volatile_writes = true};
    member->options = choose(rank);
    member->helper = (helper){.damaged = NULL};
    member->watch = (train_watch){.note = say, .warn = help, .opaque = &member->helper};
    member->options.watch = &member->watch;
    assert_int_equal(
        weft_context_create(&(weft_context_options){.size = sizeof(weft_context_options), .threads = 1},
                            &member->context),
        WEFT_OK);
    weft_context *context = member->context;
    expect(context, weft_store_open(context, directory, &quick, &member->store), WEFT_OK);
    expect(context, lm_trainer_create(context, &member->options.run.config, &member->trainer), WEFT_OK);
    train_patience_open(&member->patience, context, &member->watch, member->options.patience);
    expect(context,
           train_team_open(&member->team, member->store, &member->options.run, &member->options,
                           member->trainer, &member->patience),
           WEFT_OK);
}

static void member_close(member *member) {
    train_team_close(&member->team);
    lm_trainer_destroy(member->trainer);
    weft_store_close(member->store);
    weft_context_destroy(member->context);
}

static void learn(member *member) {
    lm_model *model = member->trainer->model;
    for (size_t i = 0; i < model->parameters; i++) {
        model->masters[i] += 1e-3f * (float)(1 + i % 7);
    }
}

/* Two of them, of which one is far ahead of the other. */
typedef struct pair {
    scratch scratch;
    member ahead;
    member stopped;
} pair;

static void pair_open(pair *pair) {
    train_round round;
    scratch_open(&pair->scratch);
    member_open(&pair->ahead, scratch_path(&pair->scratch, "store"), 0);
    member_open(&pair->stopped, scratch_path(&pair->scratch, "store"), 1);
    learn(&pair->stopped);
    for (int i = 0; i < AHEAD; i++) {
        learn(&pair->ahead);
        expect(pair->ahead.context, train_team_agree(&pair->ahead.team, &round), WEFT_OK);
        assert_int_equal(round.included, 1);
    }
}

static void pair_close(pair *pair) {
    member_close(&pair->stopped);
    member_close(&pair->ahead);
    scratch_close(&pair->scratch);
}

static void assert_together(const pair *pair) {
    const lm_model *model = pair->ahead.trainer->model;
    assert_int_equal(weft_loco_rounds(pair->stopped.team.loco), AHEAD);
    assert_memory_equal(pair->stopped.trainer->model->masters, model->masters,
                        model->parameters * sizeof(float));
    assert_true(weft_loco_residual_energy(pair->stopped.team.loco) > 0);
}

static void a_round_that_is_gone_is_not_waited_for(void **state) {
    pair pair;
    train_round round;
    (void)state;
    pair_open(&pair);
    expect(pair.stopped.context, train_team_agree(&pair.stopped.team, &round), WEFT_MORE);
    assert_together(&pair);
    assert_int_equal(pair.stopped.helper.troubles, 0);
    /* and it is one of them again */
    learn(&pair.stopped);
    expect(pair.stopped.context, train_team_agree(&pair.stopped.team, &round), WEFT_OK);
    assert_int_equal(round.number, AHEAD);
    pair_close(&pair);
}

/* What fails is that, and not the round; the text has both. */
static void who_cannot_catch_up_says_why(void **state) {
    pair pair;
    train_round round;
    (void)state;
    pair_open(&pair);
    const char *snapshot = scratch_path(&pair.scratch, "store/loco/0123/snapshot-48");
    scratch_flip(snapshot);
    pair.stopped.patience.seconds = 0;
    expect(pair.stopped.context, train_team_agree(&pair.stopped.team, &round), WEFT_DIGEST_MISMATCH);
    const char *text = weft_context_error(pair.stopped.context);
    const char *second = strstr(text, "loco/0123/snapshot-48 cannot be used");
    assert_non_null(second);
    assert_non_null(strstr(second, "round 0 was over long ago"));
    assert_int_equal(weft_loco_rounds(pair.stopped.team.loco), 0);
    scratch_flip(snapshot);
    expect(pair.stopped.context, train_team_agree(&pair.stopped.team, &round), WEFT_MORE);
    assert_together(&pair);
    pair_close(&pair);
}

/* Half of the way is not the end of the round that it began with. */
static void who_is_held_up_on_the_way_goes_on(void **state) {
    pair pair;
    train_round round;
    (void)state;
    pair_open(&pair);
    pair.stopped.helper.damaged = scratch_path(&pair.scratch, "store/loco/0123/49/0");
    scratch_flip(pair.stopped.helper.damaged);
    expect(pair.stopped.context, train_team_agree(&pair.stopped.team, &round), WEFT_MORE);
    assert_int_equal(pair.stopped.helper.troubles, 1);
    assert_together(&pair);
    pair_close(&pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_that_is_gone_is_not_waited_for),
        cmocka_unit_test(who_cannot_catch_up_says_why),
        cmocka_unit_test(who_is_held_up_on_the_way_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
