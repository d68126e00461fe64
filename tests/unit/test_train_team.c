/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer that was stopped at the end of a round, such as on a machine that was suspended, until the
 * others were so far ahead that the round is gone from the store: it comes to where they are, and does not
 * wait for a round that nobody can end any more.
 */
#include "../../lib/base/context.h"
#include "../../train/team.h"
#include "../support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Rounds that the store keeps, and those between snapshots, are fewer. */
enum { RANKS = 2, AHEAD = 50 };

typedef struct member {
    weft_context *context;
    weft_store *store;
    train_options options;
    lm_trainer *trainer;
    train_patience patience;
    train_team team;
} member;

static void say(void *opaque, const char *text) {
    (void)opaque;
    (void)text;
}

static const train_watch watch = {.note = say, .warn = say};

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
    options.watch = &watch;
    memcpy(options.run.name, "0123", 5);
    return options;
}

static void member_open(member *member, const char *directory, uint32_t rank) {
    const weft_store_options quick = {.volatile_writes = true};
    member->options = choose(rank);
    assert_int_equal(weft_context_create(&(weft_context_options){.threads = 1}, &member->context), WEFT_OK);
    weft_context *context = member->context;
    expect(context, weft_store_open(context, directory, &quick, &member->store), WEFT_OK);
    expect(context, lm_trainer_create(context, &member->options.run.config, &member->trainer), WEFT_OK);
    train_patience_open(&member->patience, context, &watch, member->options.patience);
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

static void a_round_that_is_gone_is_not_waited_for(void **state) {
    scratch scratch;
    member ahead;
    member stopped;
    train_round round;
    (void)state;
    scratch_open(&scratch);
    member_open(&ahead, scratch_path(&scratch, "store"), 0);
    member_open(&stopped, scratch_path(&scratch, "store"), 1);
    learn(&stopped);
    for (int i = 0; i < AHEAD; i++) {
        learn(&ahead);
        expect(ahead.context, train_team_agree(&ahead.team, &round), WEFT_OK);
        assert_int_equal(round.included, 1);
    }
    expect(stopped.context, train_team_agree(&stopped.team, &round), WEFT_MORE);
    assert_int_equal(weft_loco_rounds(stopped.team.loco), AHEAD);
    assert_memory_equal(stopped.trainer->model->masters, ahead.trainer->model->masters,
                        ahead.trainer->model->parameters * sizeof(float));
    assert_true(weft_loco_residual_energy(stopped.team.loco) > 0);
    /* and it is one of them again */
    learn(&stopped);
    expect(stopped.context, train_team_agree(&stopped.team, &round), WEFT_OK);
    assert_int_equal(round.number, AHEAD);
    member_close(&stopped);
    member_close(&ahead);
    scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_round_that_is_gone_is_not_waited_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
