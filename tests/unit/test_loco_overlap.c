/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds that were begun, over a real store: ranks train on while their payloads travel and come to the
 * same bits; a rank that is left out, a store that fails at any operation, a rank that is started again in
 * the middle of an exchange, and one that has to catch up, lose nothing of what was learned meanwhile; and
 * what cannot be done between the beginning and the end of a round is refused.
 *
 * Each rank has a context and a store of its own. Nobody waits for anybody but in the threads of exchanges,
 * so one thread moves all ranks.
 */
#include "fault_store.h"
#include "loco_ranks.h"
#include "scratch.h"

#include <weft/loco.h>

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WEIGHTS = 2000, RANKS_MAX = 3 };

/* Who comes is not late, however slow the machine is. */
static const double LONG = 300;
static const double SHORT = 0.05;

typedef struct trainer {
    weft_context *context;
    weft_store *store;
    weft_store *faulty; /* over it; NULL: nothing goes wrong with it */
    fault_store *faults;
    weft_loco_exchange exchange;
    weft_loco *loco;
    weft_loco_options options;
    float weights[WEIGHTS];
    bool cancelled; /* what its progress function says */
} trainer;

static void expect(const trainer *trainer, weft_status status, const char *what) {
    if (status != WEFT_OK) {
        fail_msg("%s: %s: %s", what, weft_status_name(status), weft_context_error(trainer->context));
    }
}

static bool keep_on(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    const trainer *trainer = opaque;
    (void)phase;
    (void)done;
    (void)total;
    return !trainer->cancelled;
}

/* A rank as it begins, or begins again: a new object over the same weights. */
static void create(trainer *trainer) {
    const weft_loco_tensor tensor = {"weights", trainer->weights, WEIGHTS};
    weft_loco_destroy(trainer->loco);
    expect(trainer, weft_loco_create(trainer->context, &trainer->options, &tensor, 1, &trainer->loco),
           "create");
}

static void join(trainer *trainer, scratch *scratch, uint32_t rank, uint32_t ranks, double deadline,
                 bool faulty) {
    const weft_store_options volatile_store = {.size = sizeof volatile_store, .volatile_writes = true};
    weft_loco_store_options meeting = {.size = sizeof meeting};
    weft_loco_store_defaults(&meeting);
    meeting.run = "overlap";
    meeting.rank = rank;
    meeting.ranks = ranks;
    meeting.deadline_seconds = deadline;
    meeting.passing_seconds = SHORT;
    meeting.poll_seconds = 0.02;
    meeting.snapshot_rounds = 2;
    meeting.keep_rounds = 4;
    memset(trainer, 0, sizeof *trainer);
    const weft_context_options options = {
        .size = sizeof options, .threads = 1, .progress = keep_on, .progress_opaque = trainer};
    assert_int_equal(weft_context_create(&options, &trainer->context), WEFT_OK);
    expect(
        trainer,
        weft_store_open(trainer->context, scratch_path(scratch, "store"), &volatile_store, &trainer->store),
        "open a store");
    if (faulty) {
        expect(trainer,
               fault_store_create(trainer->context, trainer->store, 1, &trainer->faulty, &trainer->faults),
               "faults");
    }
    trainer->exchange.size = sizeof trainer->exchange;
    expect(trainer,
           weft_loco_store_open(trainer->context, faulty ? trainer->faulty : trainer->store, &meeting,
                                &trainer->exchange),
           "meet");
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] = 0.01f + 1e-5f * (float)i;
    }
    trainer->options = (weft_loco_options){.size = sizeof trainer->options};
    weft_loco_defaults(&trainer->options);
    trainer->options.run = "overlap";
    trainer->options.rank = rank;
    trainer->options.ranks = ranks;
    trainer->options.overlap = true;
    create(trainer);
}

static void leave(trainer *trainer) {
    weft_loco_destroy(trainer->loco);
    trainer->exchange.close(trainer->exchange.opaque);
    weft_store_close(trainer->faulty);
    weft_store_close(trainer->store);
    weft_context_destroy(trainer->context);
}

/* Steps of a rank, other ones for each seed. */
static void train(trainer *trainer, uint64_t seed) {
    for (size_t i = 0; i < WEIGHTS; i++) {
        uint64_t hash = (seed * WEIGHTS + i + 1) * 0x9e3779b97f4a7c15u;
        trainer->weights[i] += 2e-5f * ((float)(hash >> 40) * 0x1p-24f - 0.4f);
    }
}

static void begin(trainer *trainer) {
    expect(trainer, weft_loco_round_begin(trainer->loco, &trainer->exchange), "begin");
}

static uint32_t end(trainer *trainer) {
    weft_loco_stats stats = {.size = sizeof stats};
    expect(trainer, weft_loco_round(trainer->loco, &trainer->exchange, &stats), "end");
    return stats.included;
}

static void assert_same_consensus(const trainer *a, const trainer *b) {
    weft_digest one = weft_loco_digest(a->loco);
    weft_digest other = weft_loco_digest(b->loco);
    assert_int_equal(weft_loco_rounds(a->loco), weft_loco_rounds(b->loco));
    assert_true(weft_digest_equal(&one, &other));
}

/* What the rank's weights are ahead of the consensus by. */
static double learned(const trainer *trainer, size_t i) {
    return (double)trainer->weights[i] - (double)weft_loco_consensus(trainer->loco, "weights")[i];
}

/* ---- rounds ---- */

static void ranks_agree(void **state) {
    (void)state;
    enum { RANKS = 3, ROUNDS = 5 };
    scratch scratch;
    trainer ranks[RANKS];
    scratch_open(&scratch);
    for (uint32_t r = 0; r < RANKS; r++) {
        join(&ranks[r], &scratch, r, RANKS, LONG, false);
        train(&ranks[r], r);
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            begin(&ranks[r]);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            train(&ranks[r], 10 * (round + 1) + r);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(end(&ranks[r]), RANKS);
            assert_same_consensus(&ranks[r], &ranks[0]);
            assert_true(learned(&ranks[r], 0) != 0);
        }
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        leave(&ranks[r]);
    }
    scratch_close(&scratch);
}

/* Ranks with overlap and ranks without meet: what they send is the same kind of thing. */
static void ranks_of_both_kinds_agree(void **state) {
    (void)state;
    scratch scratch;
    trainer eager, patient;
    scratch_open(&scratch);
    join(&eager, &scratch, 0, 2, LONG, false);
    join(&patient, &scratch, 1, 2, LONG, false);
    patient.options.overlap = false;
    create(&patient);
    for (uint64_t round = 0; round < 3; round++) {
        train(&eager, round);
        train(&patient, 100 + round);
        begin(&eager);
        train(&eager, 200 + round);
        assert_int_equal(end(&patient), 2);
        assert_int_equal(end(&eager), 2);
        assert_same_consensus(&eager, &patient);
        assert_true(learned(&eager, 0) != 0);
        assert_true(learned(&patient, 0) == 0);
    }
    leave(&patient);
    leave(&eager);
    scratch_close(&scratch);
}

/* The others close the round without it. Its payload goes back into the residual, and what it learned
 * meanwhile stays where it is. */
static void a_late_rank_loses_nothing(void **state) {
    (void)state;
    scratch scratch;
    trainer punctual, late;
    scratch_open(&scratch);
    join(&punctual, &scratch, 0, 2, SHORT, false);
    join(&late, &scratch, 1, 2, SHORT, false);
    train(&punctual, 1);
    train(&late, 2);
    begin(&punctual);
    train(&punctual, 3);
    assert_int_equal(end(&punctual), 1);
    float ahead[WEIGHTS], moved[WEIGHTS];
    double energy = 0;
    for (size_t i = 0; i < WEIGHTS; i++) {
        energy += learned(&late, i) * learned(&late, i);
    }
    begin(&late);
    memcpy(ahead, late.weights, sizeof ahead);
    train(&late, 4);
    for (size_t i = 0; i < WEIGHTS; i++) {
        moved[i] = late.weights[i] - ahead[i];
    }
    assert_int_equal(end(&late), 1);
    assert_same_consensus(&late, &punctual);
    double found = weft_loco_residual_energy(late.loco);
    assert_true(found > energy * 0.999999 && found < energy * 1.000001);
    for (size_t i = 0; i < WEIGHTS; i++) {
        assert_true(late.weights[i] == weft_loco_consensus(late.loco, "weights")[i] + moved[i]);
    }
    leave(&late);
    leave(&punctual);
    scratch_close(&scratch);
}

/* ---- faults ---- */

/* Each operation of the store in turn fails on the exchange's thread: the end of the round tells, and asked
 * again it goes on, though the rank has trained in between. The bits are those of a store that works. */
static void a_round_survives_a_failing_store(void **state) {
    (void)state;
    uint64_t calls = 0;
    trainer quiet;
    scratch peace;
    scratch_open(&peace);
    join(&quiet, &peace, 0, 1, LONG, false);
    for (uint64_t round = 0; round < 2; round++) {
        train(&quiet, round);
        begin(&quiet);
        train(&quiet, 10 + round);
        train(&quiet, 20 + round);
        assert_int_equal(end(&quiet), 1);
    }
    for (uint64_t at = 1; at == 1 || at <= calls; at++) {
        scratch scratch;
        trainer trainer;
        scratch_open(&scratch);
        join(&trainer, &scratch, 0, 1, LONG, true);
        fault_store_fail_at(trainer.faults, at, WEFT_REMOTE_FAILED);
        for (uint64_t round = 0; round < 2; round++) {
            train(&trainer, round);
            begin(&trainer);
            train(&trainer, 10 + round);
            weft_status status = weft_loco_round(trainer.loco, &trainer.exchange, NULL);
            bool ended = status == WEFT_OK;
            if (!ended) {
                assert_int_equal(status, WEFT_REMOTE_FAILED);
                assert_true(strlen(weft_context_error(trainer.context)) > 0);
            }
            train(&trainer, 20 + round);
            if (!ended) {
                assert_int_equal(end(&trainer), 1);
            }
        }
        assert_same_consensus(&trainer, &quiet);
        for (size_t i = 0; i < WEIGHTS; i++) {
            double apart = learned(&trainer, i) - learned(&quiet, i);
            assert_true(apart < 1e-8 && apart > -1e-8);
        }
        calls = at == 1 ? fault_store_calls(trainer.faults) : calls;
        leave(&trainer);
        scratch_close(&scratch);
    }
    leave(&quiet);
    scratch_close(&peace);
}

/* A rank that is stopped while its payload travels goes on from the state that it saved before, with the
 * same payload, and comes to the bits of one that was never stopped. */
static void a_rank_that_is_started_again_has_the_same_bits(void **state) {
    (void)state;
    scratch scratch, undisturbed;
    trainer ranks[2], others[2];
    scratch_open(&scratch);
    scratch_open(&undisturbed);
    for (uint32_t r = 0; r < 2; r++) {
        join(&ranks[r], &scratch, r, 2, LONG, false);
        join(&others[r], &undisturbed, r, 2, LONG, false);
    }
    for (uint64_t round = 0; round < 3; round++) {
        for (uint32_t r = 0; r < 2; r++) {
            train(&ranks[r], 10 * round + r);
            train(&others[r], 10 * round + r);
        }
        const char *path = scratch_path(&scratch, "state");
        expect(&ranks[1], weft_loco_save(ranks[1].loco, path, NULL, NULL, false), "save");
        begin(&ranks[1]);
        train(&ranks[1], 1000);
        assert_int_equal(weft_loco_save(ranks[1].loco, scratch_path(&scratch, "no"), NULL, NULL, false),
                         WEFT_BUSY);
        if (round == 1) {
            create(&ranks[1]); /* over weights that are of no use: all is in the state */
        }
        expect(&ranks[1], weft_loco_load(ranks[1].loco, path, NULL, NULL, NULL, NULL), "load");
        for (uint32_t r = 0; r < 2; r++) {
            begin(&ranks[r]);
            train(&ranks[r], 10 * round + 5 + r);
            begin(&others[r]);
            train(&others[r], 10 * round + 5 + r);
        }
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(end(&ranks[r]), 2);
            assert_int_equal(end(&others[r]), 2);
            assert_same_consensus(&ranks[r], &others[r]);
            assert_memory_equal(ranks[r].weights, others[r].weights, sizeof ranks[r].weights);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        leave(&ranks[r]);
        leave(&others[r]);
    }
    scratch_close(&undisturbed);
    scratch_close(&scratch);
}

/* The others are `ahead` rounds further: payloads are there for few of them, and a snapshot for more. */
static void catch_up_after(uint64_t ahead) {
    scratch scratch;
    trainer steady, away;
    uint64_t rounds = 0;
    scratch_open(&scratch);
    join(&steady, &scratch, 0, 2, SHORT, false);
    join(&away, &scratch, 1, 2, LONG, false);
    train(&away, 7);
    begin(&away);
    train(&away, 8);
    for (uint64_t round = 0; round < ahead; round++) {
        train(&steady, round);
        begin(&steady);
        (void)end(&steady);
    }
    expect(&away, weft_loco_catch_up(away.loco, &away.exchange, &rounds), "catch up");
    assert_int_equal(rounds, ahead);
    assert_same_consensus(&steady, &away);
    train(&away, 9);
    train(&steady, 100);
    begin(&away);
    begin(&steady);
    assert_int_equal(end(&steady), end(&away));
    assert_same_consensus(&steady, &away);
    leave(&away);
    leave(&steady);
    scratch_close(&scratch);
}

static void a_rank_catches_up(void **state) {
    (void)state;
    catch_up_after(1);
    catch_up_after(2);
    catch_up_after(12);
}

/* ---- what is refused, and giving up ---- */

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    scratch scratch;
    trainer trainer;
    weft_loco_payload own = {NULL, 0};
    scratch_open(&scratch);
    join(&trainer, &scratch, 0, 1, LONG, false);
    weft_loco_exchange funnelled = trainer.exchange;
    funnelled.threads = false;
    assert_int_equal(weft_loco_round_begin(trainer.loco, &funnelled), WEFT_UNSUPPORTED);
    train(&trainer, 1);
    begin(&trainer);
    assert_int_equal(weft_loco_round_begin(trainer.loco, &trainer.exchange), WEFT_BUSY);
    expect(&trainer, weft_loco_encode(trainer.loco, &own), "the payload again");
    assert_int_equal(weft_loco_aggregate(trainer.loco, &own, 1, NULL), WEFT_BUSY);
    assert_int_equal(end(&trainer), 1);
    trainer.options.overlap = false;
    create(&trainer);
    assert_int_equal(weft_loco_round_begin(trainer.loco, &trainer.exchange), WEFT_INVALID_ARGUMENT);
    weft_loco_options gradients = {.size = sizeof gradients,
                                   .run = "ddp",
                                   .ranks = 1,
                                   .rate = 1,
                                   .open = true,
                                   .raw = true,
                                   .average = true,
                                   .overlap = true};
    const weft_loco_tensor tensor = {"weights", trainer.weights, WEIGHTS};
    weft_loco *none = NULL;
    assert_int_equal(weft_loco_create(trainer.context, &gradients, &tensor, 1, &none),
                     WEFT_INVALID_ARGUMENT);
    leave(&trainer);
    scratch_close(&scratch);
}

/* Nobody else comes. Who waits for the end of the round can be told to stop, and come back to it; and an
 * object that is destroyed does not wait. */
static void a_wait_can_be_given_up(void **state) {
    (void)state;
    scratch scratch;
    trainer first, second;
    scratch_open(&scratch);
    join(&first, &scratch, 0, 2, LONG, false);
    join(&second, &scratch, 1, 2, LONG, false);
    train(&first, 1);
    begin(&first);
    train(&first, 2);
    first.cancelled = true;
    assert_int_equal(weft_loco_round(first.loco, &first.exchange, NULL), WEFT_CANCELLED);
    first.cancelled = false;
    train(&second, 3);
    begin(&second);
    assert_int_equal(end(&first), 2);
    assert_int_equal(end(&second), 2);
    assert_same_consensus(&first, &second);
    begin(&first);
    leave(&first);
    leave(&second);
    scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(ranks_of_both_kinds_agree),
        cmocka_unit_test(a_late_rank_loses_nothing),
        cmocka_unit_test(a_round_survives_a_failing_store),
        cmocka_unit_test(a_rank_that_is_started_again_has_the_same_bits),
        cmocka_unit_test(a_rank_catches_up),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_wait_can_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
