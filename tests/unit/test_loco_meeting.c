/* SPDX-License-Identifier: Apache-2.0
 *
 * Trainers that meet in a store: all ranks come to the same bits for 2, 3 and 4 of them; the round goes on
 * without who is late or gone, the leader included, and who comes back has the others' consensus and has
 * lost nothing of its own; what cannot be used is refused and counted; a rank that is started again in the
 * middle of a round takes part in it once; and one that is stopped at any of its operations, while the
 * others go on however far, is with them again afterwards.
 *
 * Each rank is a thread with a context and a store of its own.
 */
#include "../support/described.h"
#include "pauses.h"
#include "scratch.h"

#include "../../lib/base/clock.h"
#include "../../lib/loco/meeting.h"

#include <weft/loco.h>

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WEIGHTS = 3000, RANKS_MAX = 4 };

/* Who comes is not late, however slow the machine: a rank waits so long for others that are on their way,
 * and hardly at all where the test knows who is there and that nobody else comes. */
static const double LONG = 300;
static const double SHORT = 0.05;

typedef struct trainer {
    weft_context *context;
    weft_store *store;
    weft_store *faulty; /* over it; NULL: nothing goes wrong with it */
    weft_loco_exchange exchange;
    weft_loco *loco;
    float weights[WEIGHTS];
    uint32_t rank;
    pthread_t thread;
    uint64_t rounds; /* for it to do */
    weft_status status;
    weft_loco_stats stats;
} trainer;

static void expect(weft_context *context, weft_status status, const char *what) {
    if (status != WEFT_OK) {
        fail_msg("%s: %s: %s", what, weft_status_name(status), weft_context_error(context));
    }
}

static float noise(uint64_t seed) {
    seed = (seed + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 29)) * 0x94d049bb133111ebu;
    return (float)((double)(seed >> 40) / (1 << 24) - 0.5);
}

static weft_loco_store_options meeting_options(uint32_t rank, uint32_t ranks) {
    weft_loco_store_options options = {.size = sizeof options};
    weft_loco_store_defaults(&options);
    options.run = "meeting";
    options.rank = rank;
    options.ranks = ranks;
    options.deadline_seconds = LONG;
    options.passing_seconds = SHORT;
    options.poll_seconds = 0.02;
    options.snapshot_rounds = 2;
    options.keep_rounds = 4;
    return options;
}

/* Instead of what it has agreed on so far, if anything. */
static void trainer_create(trainer *trainer, const weft_loco_options *options) {
    const weft_loco_tensor tensors[] = {{"a", trainer->weights, WEIGHTS / 3},
                                        {"b", trainer->weights + WEIGHTS / 3, WEIGHTS - WEIGHTS / 3}};
    weft_loco_destroy(trainer->loco);
    expect(trainer->context, weft_loco_create(trainer->context, options, tensors, 2, &trainer->loco),
           "create");
}

static void trainer_join(trainer *trainer, const char *directory, const weft_loco_store_options *options) {
    weft_loco_options loco = {.size = sizeof loco};
    weft_loco_defaults(&loco);
    const weft_store_options volatile_store = {.size = sizeof volatile_store, .volatile_writes = true};
    memset(trainer, 0, sizeof *trainer);
    trainer->rank = options->rank;
    assert_int_equal(
        weft_context_create(&(weft_context_options){.size = sizeof(weft_context_options), .threads = 1},
                            &trainer->context),
        WEFT_OK);
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] = noise(i) * 0.1f;
    }
    expect(trainer->context, weft_store_open(trainer->context, directory, &volatile_store, &trainer->store),
           "open a store");
    trainer->exchange.size = sizeof trainer->exchange;
    trainer->stats.size = sizeof trainer->stats;
    expect(trainer->context,
           weft_loco_store_open(trainer->context, trainer->store, options, &trainer->exchange), "meet");
    loco.run = options->run;
    loco.rank = options->rank;
    loco.ranks = options->ranks;
    trainer_create(trainer, &loco);
}

/* From now on its store goes wrong when told to. */
static fault_store *trainer_falter(trainer *trainer, const weft_loco_store_options *options) {
    fault_store *control;
    trainer->exchange.close(trainer->exchange.opaque);
    expect(trainer->context,
           fault_store_create(trainer->context, trainer->store, 1, &trainer->faulty, &control), "faults");
    trainer->exchange.size = sizeof trainer->exchange;
    trainer->stats.size = sizeof trainer->stats;
    expect(trainer->context,
           weft_loco_store_open(trainer->context, trainer->faulty, options, &trainer->exchange), "meet");
    return control;
}

static void trainer_leave(trainer *trainer) {
    weft_loco_destroy(trainer->loco);
    trainer->exchange.close(trainer->exchange.opaque);
    weft_store_close(trainer->faulty);
    weft_store_close(trainer->store);
    weft_context_destroy(trainer->context);
    trainer->context = NULL;
}

/* Several of them, and where they meet. */
typedef struct meeting {
    scratch scratch;
    uint32_t ranks;
    trainer trainers[RANKS_MAX];
} meeting;

static void meeting_open(meeting *meeting, uint32_t ranks, double deadline, double passing) {
    scratch_open_volatile(&meeting->scratch);
    meeting->ranks = ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        weft_loco_store_options options = meeting_options(rank, ranks);
        options.deadline_seconds = deadline;
        options.passing_seconds = passing;
        trainer_join(&meeting->trainers[rank], scratch_path(&meeting->scratch, "store"), &options);
    }
}

/* From its next round on. */
static void set_times(trainer *trainer, double deadline, double passing) {
    weft_meeting *meeting = trainer->exchange.opaque;
    meeting->options.deadline_seconds = deadline;
    meeting->options.passing_seconds = passing;
}

/* Those who have not left yet leave. */
static void meeting_close(meeting *meeting) {
    for (uint32_t rank = 0; rank < meeting->ranks; rank++) {
        if (meeting->trainers[rank].context != NULL) {
            trainer_leave(&meeting->trainers[rank]);
        }
    }
    scratch_close(&meeting->scratch);
}

/* What stands for the steps of a round: a function of rank and round alone. */
static void train(trainer *trainer) {
    uint64_t seed = weft_loco_rounds(trainer->loco) * 1000003 + trainer->rank * 7919;
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] += noise(seed * WEIGHTS + i) * 1e-4f;
    }
}

static weft_status train_round(trainer *trainer) {
    train(trainer);
    return weft_loco_round(trainer->loco, &trainer->exchange, &trainer->stats);
}

static void *train_rounds(void *argument) {
    trainer *trainer = argument;
    while (trainer->status == WEFT_OK && weft_loco_rounds(trainer->loco) < trainer->rounds) {
        trainer->status = train_round(trainer);
    }
    return NULL;
}

static void put_payload(trainer *trainer, const char *key, const void *data, size_t size) {
    expect(trainer->context,
           weft_store_put_bytes(trainer->context, trainer->store, key, data, size, WEFT_STORE_ALWAYS, NULL,
                                NULL),
           "put");
}

/* Has its payload of the first round in the store, where the others find it. */
static void put_first_payload(trainer *trainer) {
    weft_loco_payload payload;
    char key[64];
    snprintf(key, sizeof key, "loco/meeting/0/%" PRIu32, trainer->rank);
    expect(trainer->context, weft_loco_encode(trainer->loco, &payload), "encode");
    put_payload(trainer, key, payload.data, payload.size);
}

/* Has its rounds done beside the others. */
static void set_out(trainer *trainer, uint64_t rounds) {
    trainer->rounds = rounds;
    assert_int_equal(pthread_create(&trainer->thread, NULL, train_rounds, trainer), 0);
}

static void come_back(trainer *trainer) {
    pthread_join(trainer->thread, NULL);
    expect(trainer->context, trainer->status, "rounds");
}

/* Ranks that do their rounds at the same time. */
static void together(trainer **trainers, size_t count, uint64_t rounds) {
    for (size_t i = 0; i < count; i++) {
        set_out(trainers[i], rounds);
    }
    for (size_t i = 0; i < count; i++) {
        come_back(trainers[i]);
    }
}

/* Until a rank, which has set out, has come to a round. */
static void await_payload(trainer *witness, uint64_t round, uint32_t rank) {
    char key[64];
    uint64_t size;
    weft_store_tag tag;
    double end = weft_clock_now() + LONG;
    snprintf(key, sizeof key, "loco/meeting/%" PRIu64 "/%" PRIu32, round, rank);
    while (weft_store_head(witness->context, witness->store, key, &size, &tag) != WEFT_OK) {
        assert_true(weft_clock_now() < end);
        expect(witness->context, weft_clock_sleep(witness->context, 0.01), "sleep");
    }
}

/* A rank that has trained ends its round without one that does not come, once all others are there: from
 * then on it waits for nobody. */
static void lead_without(meeting *meeting, uint32_t leader, uint32_t absent) {
    trainer *trainer = &meeting->trainers[leader];
    for (uint32_t rank = 0; rank < meeting->ranks; rank++) {
        if (rank != leader && rank != absent) {
            await_payload(trainer, weft_loco_rounds(trainer->loco), rank);
        }
    }
    set_times(trainer, SHORT, SHORT);
    expect(trainer->context, weft_loco_round(trainer->loco, &trainer->exchange, &trainer->stats),
           "a round without one");
    set_times(trainer, LONG, LONG);
}

static void assert_same(const trainer *a, const trainer *b) {
    weft_digest left = weft_loco_digest(a->loco);
    weft_digest right = weft_loco_digest(b->loco);
    assert_int_equal(weft_loco_rounds(a->loco), weft_loco_rounds(b->loco));
    assert_memory_equal(&left, &right, sizeof left);
    assert_memory_equal(a->weights, b->weights, sizeof a->weights);
}

/* ---- the tests ---- */

static void ranks_come_to_the_same_bits(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++) {
        meeting meeting;
        trainer *trainers = meeting.trainers;
        meeting_open(&meeting, ranks, LONG, SHORT);
        together((trainer *[]){&trainers[0], &trainers[1], &trainers[2], &trainers[3]}, ranks, 6);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            weft_loco_store_stats stats = {.size = sizeof stats};
            weft_loco_store_describe(&trainers[rank].exchange, &stats);
            assert_same(&trainers[0], &trainers[rank]);
            assert_int_equal(trainers[rank].stats.included, ranks);
            assert_int_equal(stats.left_out + stats.refused, 0);
            assert_int_equal(stats.led, rank == 0 ? 6 : 0);
        }
        meeting_close(&meeting);
    }
}

static void the_others_go_on_without_the_leader(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    meeting_open(&meeting, 3, LONG, LONG);
    together((trainer *[]){&trainers[0], &trainers[1], &trainers[2]}, 3, 1);
    /* rank 0 leads, and is gone for a round */
    set_out(&trainers[2], 2);
    train(&trainers[1]);
    lead_without(&meeting, 1, 0);
    come_back(&trainers[2]);
    assert_same(&trainers[1], &trainers[2]);
    assert_int_equal(trainers[1].stats.included, 2);
    assert_int_equal(meeting_stats(&trainers[1].exchange).led, 1);
    /* it comes late with its payload of that round, which stays its own */
    uint64_t missed = 0;
    train(&trainers[0]);
    expect(trainers[0].context, weft_loco_catch_up(trainers[0].loco, &trainers[0].exchange, &missed),
           "back");
    assert_int_equal(missed, 1);
    assert_same(&trainers[0], &trainers[1]);
    assert_int_equal(meeting_stats(&trainers[0].exchange).left_out, 1);
    assert_true(weft_loco_residual_energy(trainers[0].loco) > weft_loco_residual_energy(trainers[1].loco));
    /* and takes part again, while rank 1 leads on */
    together((trainer *[]){&trainers[0], &trainers[1], &trainers[2]}, 3, 4);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_same(&trainers[0], &trainers[rank]);
        assert_int_equal(trainers[rank].stats.included, 3);
    }
    assert_int_equal(meeting_stats(&trainers[1].exchange).led, 3);
    meeting_close(&meeting);
}

static void a_long_absence_ends_with_a_snapshot(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    meeting_open(&meeting, 2, SHORT, SHORT);
    together((trainer *[]){&trainers[0]}, 1, 11);
    train(&trainers[1]);
    float local[WEIGHTS];
    memcpy(local, trainers[1].weights, sizeof local);
    const float *before = weft_loco_consensus(trainers[1].loco, "a");
    double energy = 0;
    for (size_t i = 0; i < WEIGHTS / 3; i++) {
        double change = (double)before[i] - (double)local[i];
        energy += change * change;
    }
    uint64_t missed = 0;
    expect(trainers[1].context, weft_loco_catch_up(trainers[1].loco, &trainers[1].exchange, &missed),
           "back");
    assert_int_equal(missed, 11);
    assert_same(&trainers[0], &trainers[1]);
    assert_true(weft_loco_residual_energy(trainers[1].loco) >= energy);
    assert_true(meeting_stats(&trainers[0].exchange).snapshot_bytes > 0);
    assert_int_equal(meeting_stats(&trainers[0].exchange).unremoved, 0);
    together((trainer *[]){&trainers[0], &trainers[1]}, 2, 13);
    assert_same(&trainers[0], &trainers[1]);
    meeting_close(&meeting);
}

static void what_cannot_be_used_is_refused(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    weft_loco_payload payload;
    meeting_open(&meeting, 2, LONG, SHORT);
    train(&trainers[1]);
    expect(trainers[1].context, weft_loco_encode(trainers[1].loco, &payload), "encode");
    uint8_t *bytes = malloc(payload.size);
    memcpy(bytes, payload.data, payload.size);
    /* damaged; cut short; of another round; another rank's; nothing of the kind */
    for (unsigned round = 0; round < 5; round++) {
        char key[64];
        size_t size = round == 1 ? payload.size / 2 : round == 4 ? 5 : payload.size;
        memcpy(bytes, payload.data, payload.size);
        if (round == 0) {
            bytes[payload.size / 2] ^= 4;
        }
        snprintf(key, sizeof key, "loco/meeting/%u/%d", round, 1);
        put_payload(&trainers[1], key, bytes, size);
        expect(trainers[0].context, train_round(&trainers[0]), "a round");
        assert_int_equal(trainers[0].stats.included, 1);
        assert_int_equal(meeting_stats(&trainers[0].exchange).refused, round + 1);
    }
    free(bytes);
    meeting_close(&meeting);
}

/* With a key the ranks come to the same bits, and nobody else can steer them: not with a payload, nor by
 * closing a round. */
static void who_has_no_key_decides_nothing(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    weft_key *keys[2];
    trainer late;
    uint64_t missed;
    meeting_open(&meeting, 3, LONG, SHORT);
    for (size_t i = 0; i < 2; i++) {
        expect(trainers[0].context, weft_key_generate(trainers[0].context, &keys[i]), "a key");
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ((weft_meeting *)trainers[rank].exchange.opaque)->options.key = keys[0];
    }
    /* rank 2 has another key, then none */
    weft_loco_payload payload;
    expect(trainers[2].context, weft_loco_encode(trainers[2].loco, &payload), "encode");
    weft_meeting *forger = trainers[2].exchange.opaque;
    for (uint64_t round = 0; round < 4; round++) {
        weft_meeting_key key = weft_meeting_payload_key(forger, round, 2);
        const weft_message message = {.key = key.text, .data = payload.data, .size = payload.size};
        forger->options.key = round == 0 ? keys[1] : NULL;
        expect(trainers[2].context, weft_meeting_put(forger, trainers[2].context, &message), "forge");
        together((trainer *[]){&trainers[0], &trainers[1]}, 2, round + 1);
        assert_same(&trainers[0], &trainers[1]);
        assert_int_equal(trainers[0].stats.included, 2);
        assert_int_equal(meeting_stats(&trainers[0].exchange).refused, round + 1);
    }
    /* who has the key can come back; who has another is told what it needs */
    weft_loco_store_options options = meeting_options(1, 3);
    options.key = keys[0];
    trainer_join(&late, scratch_path(&meeting.scratch, "store"), &options);
    expect(late.context, weft_loco_catch_up(late.loco, &late.exchange, &missed), "back");
    assert_same(&trainers[0], &late);
    trainer_leave(&late);
    options.key = keys[1];
    trainer_join(&late, scratch_path(&meeting.scratch, "store"), &options);
    assert_int_equal(weft_loco_catch_up(late.loco, &late.exchange, &missed), WEFT_SIGNATURE_MISMATCH);
    assert_non_null(strstr(weft_context_error(late.context), "the same secret key"));
    trainer_leave(&late);
    /* a round that somebody else has closed is not over */
    const weft_message closed = {.key = "loco/meeting/4/closed", .data = "closed", .size = 6};
    forger->options.key = keys[1];
    expect(trainers[2].context, weft_meeting_put(forger, trainers[2].context, &closed), "forge");
    assert_int_equal(train_round(&trainers[0]), WEFT_SIGNATURE_MISMATCH);
    for (size_t i = 0; i < 2; i++) {
        weft_key_destroy(keys[i]);
    }
    meeting_close(&meeting);
}

/* Who is so far behind that rounds are gone must not end them again, alone. */
static void rounds_of_long_ago_stay_over(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    meeting_open(&meeting, 2, SHORT, SHORT);
    together((trainer *[]){&trainers[0]}, 1, 12);
    assert_int_equal(train_round(&trainers[1]), WEFT_NOT_FOUND);
    assert_non_null(strstr(weft_context_error(trainers[1].context), "catch up"));
    assert_int_equal(meeting_stats(&trainers[1].exchange).led, 0);
    uint64_t missed = 0;
    expect(trainers[1].context, weft_loco_catch_up(trainers[1].loco, &trainers[1].exchange, &missed),
           "back");
    assert_int_equal(missed, 12);
    assert_same(&trainers[0], &trainers[1]);
    /* what is over is gone from the store: two snapshots' rounds are left, one snapshot, and the manifests
     */
    char key[64];
    for (unsigned round = 0; round < 12; round++) {
        uint64_t size;
        weft_store_tag tag;
        snprintf(key, sizeof key, "loco/meeting/%u/closed", round);
        weft_status status = weft_store_head(trainers[0].context, trainers[0].store, key, &size, &tag);
        assert_int_equal(status, WEFT_OK);
        snprintf(key, sizeof key, "loco/meeting/%u/0", round);
        status = weft_store_head(trainers[0].context, trainers[0].store, key, &size, &tag);
        assert_int_equal(status, round < 8 ? WEFT_NOT_FOUND : WEFT_OK);
        snprintf(key, sizeof key, "loco/meeting/snapshot-%u", round + 1);
        status = weft_store_head(trainers[0].context, trainers[0].store, key, &size, &tag);
        assert_int_equal(status, round + 1 < 12 ? WEFT_NOT_FOUND : WEFT_OK);
    }
    meeting_close(&meeting);
}

static void recreate(trainer *trainer, uint32_t ranks, uint32_t significant, float shift) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "meeting";
    options.rank = trainer->rank;
    options.ranks = ranks;
    options.significant = significant;
    trainer->weights[7] += shift;
    trainer_create(trainer, &options);
}

/* Of four ranks, those who agree have ended their rounds as one. */
static void assert_agreement(const meeting *meeting, uint32_t odd) {
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank != odd) {
            assert_same(&meeting->trainers[1], &meeting->trainers[rank]);
            assert_int_equal(meeting->trainers[rank].stats.included, 3);
        }
    }
}

/* A rank with other rules is left out, and is told so. */
static void the_odd_one_out_does_not_stop_the_others(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    meeting_open(&meeting, 4, LONG, LONG);
    recreate(&trainers[2], 4, 8, 0);
    for (uint32_t rank = 1; rank < 4; rank++) {
        set_out(&trainers[rank], 2);
    }
    expect(trainers[0].context, train_round(&trainers[0]), "a round of three");
    assert_int_equal(trainers[0].stats.included, 3);
    pthread_join(trainers[2].thread, NULL);
    assert_int_not_equal(trainers[2].status, WEFT_OK);
    train(&trainers[0]);
    lead_without(&meeting, 0, 2);
    come_back(&trainers[1]);
    come_back(&trainers[3]);
    assert_agreement(&meeting, 2);
    meeting_close(&meeting);
}

/* One with another consensus may not decide for those who agree, even if it is its turn. */
static void the_odd_one_out_does_not_lead(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    meeting_open(&meeting, 4, LONG, LONG);
    recreate(&trainers[0], 4, 0, 0.5f);
    set_out(&trainers[2], 2);
    set_out(&trainers[3], 2);
    train(&trainers[1]);
    put_first_payload(&trainers[1]);
    assert_int_equal(train_round(&trainers[0]), WEFT_BASE_MISMATCH);
    lead_without(&meeting, 1, 0);
    train(&trainers[1]);
    lead_without(&meeting, 1, 0);
    come_back(&trainers[2]);
    come_back(&trainers[3]);
    assert_agreement(&meeting, 0);
    meeting_close(&meeting);
}

/* Left out once, a rank that is only slower than the others is waited for again. */
static void who_is_slow_is_not_taken_for_gone(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    meeting_open(&meeting, 2, LONG, 0.001);
    /* rank 1 comes when the round is over, but has put its payload */
    train(&trainers[1]);
    set_times(&trainers[0], SHORT, 0.001);
    expect(trainers[0].context, train_round(&trainers[0]), "a round without rank 1");
    put_first_payload(&trainers[1]);
    expect(trainers[1].context, weft_loco_round(trainers[1].loco, &trainers[1].exchange, NULL), "too late");
    assert_same(&trainers[0], &trainers[1]);
    /* the next time it comes later than a rank that is gone would be waited for */
    set_times(&trainers[0], LONG, 0.001);
    set_out(&trainers[0], 2);
    expect(trainers[1].context, weft_clock_sleep(trainers[1].context, 0.1), "sleep");
    expect(trainers[1].context, train_round(&trainers[1]), "in time");
    come_back(&trainers[0]);
    assert_int_equal(trainers[1].stats.included, 2);
    meeting_close(&meeting);
}

/* What cannot be read is not waited for longer than what is not there. */
static void an_object_that_cannot_be_read_stops_nobody(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    weft_loco_store_options options = meeting_options(0, 2);
    options.deadline_seconds = SHORT;
    meeting_open(&meeting, 2, LONG, SHORT);
    train(&trainers[1]);
    put_first_payload(&trainers[1]);
    const fault_rule rule = {.kind = FAULT_FAIL,
                             .operations = FAULT_ON_GET | FAULT_ON_HEAD,
                             .pattern = "loco/meeting/0/1",
                             .limit = UINT64_MAX};
    fault_store_set(trainer_falter(&trainers[0], &options), &rule, 1);
    expect(trainers[0].context, train_round(&trainers[0]), "a round");
    assert_int_equal(trainers[0].stats.included, 1);
    meeting_close(&meeting);
}

/* Killed after its payload was put, it trains the same again, and finds that it was there already. */
static void a_rank_that_starts_again_takes_part_once(void **state) {
    (void)state;
    meeting meeting;
    trainer *trainers = meeting.trainers;
    trainer again;
    weft_loco_store_options options = meeting_options(1, 2);
    meeting_open(&meeting, 2, LONG, SHORT);
    train(&trainers[1]);
    put_first_payload(&trainers[1]);
    trainer_leave(&trainers[1]);
    expect(trainers[0].context, train_round(&trainers[0]), "a round");
    assert_int_equal(trainers[0].stats.included, 2);

    trainer_join(&again, scratch_path(&meeting.scratch, "store"), &options);
    expect(again.context, train_round(&again), "the same round");
    assert_same(&trainers[0], &again);
    assert_int_equal(meeting_stats(&again.exchange).left_out, 0);
    trainer_leave(&again);

    /* with its state lost it trains something else, which is taken back: what was included stays that */
    trainer_join(&again, scratch_path(&meeting.scratch, "store"), &options);
    again.weights[5] += 0.25f;
    expect(again.context, weft_loco_round(again.loco, &again.exchange, &again.stats), "another life");
    assert_same(&trainers[0], &again);
    assert_int_equal(meeting_stats(&again.exchange).left_out, 1);
    assert_true(weft_loco_residual_energy(again.loco) > 0.06);
    trainer_leave(&again);
    meeting_close(&meeting);
}

/* A store that fails at any of its operations: the round is done by calling again, and its bits are the
 * same. */
static void a_round_survives_a_failing_store(void **state) {
    (void)state;
    trainer quiet;
    weft_loco_store_options options = meeting_options(0, 1);
    scratch scratch;
    uint64_t calls = 0;
    scratch_open(&scratch);
    trainer_join(&quiet, scratch_path(&scratch, "quiet"), &options);
    for (int round = 0; round < 2; round++) {
        expect(quiet.context, train_round(&quiet), "a quiet round");
    }
    for (uint64_t at = 1; at == 1 || at <= calls; at++) {
        trainer trainer;
        char name[32];
        snprintf(name, sizeof name, "store-%" PRIu64, at);
        trainer_join(&trainer, scratch_path(&scratch, name), &options);
        fault_store *control = trainer_falter(&trainer, &options);
        fault_store_fail_at(control, at, WEFT_REMOTE_FAILED);
        for (int round = 0; round < 2; round++) {
            train(&trainer);
            weft_status status = weft_loco_round(trainer.loco, &trainer.exchange, &trainer.stats);
            if (status != WEFT_OK) {
                assert_int_equal(status, WEFT_REMOTE_FAILED);
                expect(trainer.context, weft_loco_round(trainer.loco, &trainer.exchange, &trainer.stats),
                       "the same round again");
            }
        }
        assert_same(&quiet, &trainer);
        calls = at == 1 ? fault_store_calls(control) : calls;
        trainer_leave(&trainer);
    }
    trainer_leave(&quiet);
    scratch_close(&scratch);
}

static void impossible_meetings_are_refused(void **state) {
    (void)state;
    scratch scratch;
    trainer trainer;
    weft_loco_store_options good = meeting_options(0, 2);
    weft_loco_exchange exchange = {.size = sizeof exchange};
    scratch_open(&scratch);
    trainer_join(&trainer, scratch_path(&scratch, "store"), &good);
    weft_loco_store_options bad[8] = {good, good, good, good, good, good, good, good};
    bad[0].run = "two/parts";
    bad[1].run = "";
    bad[2].rank = 2;
    bad[3].least = 3;
    bad[4].deadline_seconds = NAN;
    bad[5].keep_rounds = 3;
    bad[6].run = NULL;
    bad[7].snapshot_rounds = (uint64_t)1 << 63;
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(weft_loco_store_open(trainer.context, trainer.store, &bad[i], &exchange),
                         WEFT_INVALID_ARGUMENT);
        assert_true(strlen(weft_context_error(trainer.context)) > 0);
    }
    trainer_leave(&trainer);
    scratch_close(&scratch);
}

/* DDP's gradients: a round sets every rank's values to their mean, summed in the order of ranks. */
static void averages_are_means(void **state) {
    (void)state;
    enum { RANKS = 3 };
    weft_context *context;
    weft_loco *ranks[RANKS];
    weft_loco_payload payloads[RANKS];
    float values[RANKS][WEIGHTS];
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        weft_loco_options options = {.size = sizeof options,
                                     .run = "ddp",
                                     .rank = rank,
                                     .ranks = RANKS,
                                     .rate = 1,
                                     .open = true,
                                     .raw = true,
                                     .average = true};
        const weft_loco_tensor tensor = {"gradient", values[rank], WEIGHTS};
        expect(context, weft_loco_create(context, &options, &tensor, 1, &ranks[rank]), "create");
    }
    for (uint64_t round = 0; round < 3; round++) {
        float means[WEIGHTS];
        for (size_t i = 0; i < WEIGHTS; i++) {
            float sum = 0;
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                values[rank][i] = noise(round * 100 + rank * 10 + i);
                sum += values[rank][i];
            }
            means[i] = sum / RANKS;
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            expect(context, weft_loco_encode(ranks[rank], &payloads[rank]), "encode");
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            expect(context, weft_loco_aggregate(ranks[rank], payloads, RANKS, NULL), "aggregate");
            assert_memory_equal(values[rank], means, sizeof means);
        }
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        weft_loco_destroy(ranks[rank]);
    }
    weft_context_destroy(context);
}

/* A payload of rank 1 in round 0, whole and of the same weights, but made by these rules. */
static void put_foreign(trainer *trainer, const weft_loco_options *options, size_t weights) {
    weft_loco *loco = NULL;
    weft_loco_payload payload;
    float local[WEIGHTS];
    memcpy(local, trainer->weights, sizeof local);
    const weft_loco_tensor tensors[] = {{"a", local, WEIGHTS / 3},
                                        {"b", local + WEIGHTS / 3, weights - WEIGHTS / 3}};
    expect(trainer->context, weft_loco_create(trainer->context, options, tensors, 2, &loco), "create");
    local[7] += 1;
    expect(trainer->context, weft_loco_encode(loco, &payload), "encode");
    put_payload(trainer, "loco/meeting/0/1", payload.data, payload.size);
    weft_loco_destroy(loco);
}

/* Whether rank 0, by rules of its own, uses what rank 1 has put by others. */
static bool uses(const weft_loco_options *own, const weft_loco_options *other, size_t weights) {
    scratch scratch;
    trainer trainer;
    scratch_open(&scratch);
    weft_loco_store_options options = meeting_options(0, 2);
    trainer_join(&trainer, scratch_path(&scratch, "store"), &options);
    trainer_create(&trainer, own);
    put_foreign(&trainer, other, weights);
    expect(trainer.context, train_round(&trainer), "a round");
    bool used = trainer.stats.included == 2;
    assert_int_equal(meeting_stats(&trainer.exchange).refused, used ? 0 : 1);
    trainer_leave(&trainer);
    scratch_close(&scratch);
    return used;
}

static void other_rules_are_refused(void **state) {
    (void)state;
    weft_loco_options own = {.size = sizeof own};
    weft_loco_defaults(&own);
    own.run = "meeting";
    own.ranks = 2;
    weft_loco_options same = own;
    same.rank = 1;
    assert_true(uses(&own, &same, WEIGHTS));
    assert_false(uses(&own, &same, WEIGHTS - 1));
    weft_loco_options others[] = {same, same, same, same, same, same};
    others[0].run = "another";
    others[1].ranks = 3;
    others[2].significant = 8;
    others[3].open = true;
    others[4].rate = 0.5f;
    others[5].momentum = 0.5f;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_false(uses(&own, &others[i], WEIGHTS));
    }
    /* everything, in FP32, once as changes and once as means */
    weft_loco_options dense = own;
    dense.open = true;
    dense.rate = 1;
    dense.momentum = 0;
    weft_loco_options raw = dense;
    raw.rank = 1;
    raw.raw = true;
    assert_false(uses(&dense, &raw, WEIGHTS));
    dense.raw = true;
    assert_true(uses(&dense, &raw, WEIGHTS));
    raw.average = true;
    assert_false(uses(&dense, &raw, WEIGHTS));
}

/* A round that needs all is not waited for without end; who then comes closes it all the same. */
static void a_round_that_lacks_ranks_fails(void **state) {
    (void)state;
    scratch scratch;
    trainer first, second;
    scratch_open(&scratch);
    weft_loco_store_options options = meeting_options(0, 2);
    options.least = 2;
    options.deadline_seconds = SHORT;
    options.patience_seconds = 0.2;
    trainer_join(&first, scratch_path(&scratch, "store"), &options);
    assert_int_equal(train_round(&first), WEFT_REMOTE_FAILED);
    assert_non_null(strstr(weft_context_error(first.context), "rank 1 has not come"));
    assert_int_equal(weft_loco_rounds(first.loco), 0);
    options.rank = 1;
    options.patience_seconds = 0;
    trainer_join(&second, scratch_path(&scratch, "store"), &options);
    assert_int_equal(train_round(&second), WEFT_OK);
    assert_int_equal(weft_loco_round(first.loco, &first.exchange, NULL), WEFT_OK);
    assert_same(&first, &second);
    trainer_leave(&second);
    trainer_leave(&first);
    scratch_close(&scratch);
}

/* ---- stopped at each operation ---- */

static const char *const stopped_events[] = {"nothing", "one round", "rounds until it is removed",
                                             "the other is there and waits"};

typedef struct stopped {
    meeting meeting;
    size_t event;
} stopped;

static void while_stopped(void *opaque) {
    stopped *scene = opaque;
    trainer *other = &scene->meeting.trainers[0];
    static const uint64_t rounds[] = {0, 1, 12, 0};
    if (rounds[scene->event] > weft_loco_rounds(other->loco)) {
        uint64_t missed;
        expect(other->context, weft_loco_catch_up(other->loco, &other->exchange, &missed), "the other");
        together(&other, 1, rounds[scene->event]);
    }
}

static bool same_consensus(trainer *a, trainer *b) {
    return weft_loco_rounds(a->loco) == weft_loco_rounds(b->loco) &&
           memcmp(weft_loco_consensus(a->loco, "a"), weft_loco_consensus(b->loco, "a"),
                  WEIGHTS / 3 * sizeof(float)) == 0;
}

/* What a trainer does whose round has failed: it asks again, or catches up. */
static weft_status end_somehow(trainer *trainer, weft_status status) {
    uint64_t missed;
    for (unsigned i = 0; i < 3 && status != WEFT_OK && status != WEFT_NOT_FOUND; i++) {
        status = weft_loco_round(trainer->loco, &trainer->exchange, NULL);
    }
    return weft_loco_catch_up(trainer->loco, &trainer->exchange, &missed);
}

static void run_stopped(void *opaque, pause_case *pause) {
    (void)opaque;
    stopped scene = {.event = pause->event};
    trainer *subject = &scene.meeting.trainers[1];
    trainer *other = &scene.meeting.trainers[0];
    weft_loco_store_options options = meeting_options(1, 2);
    options.deadline_seconds = options.passing_seconds = 1e-9;
    meeting_open(&scene.meeting, 2, 1e-9, 1e-9);
    fault_store *faults = trainer_falter(subject, &options);
    if (pause->event == 3) {
        train(other);
        put_first_payload(other);
    }
    pause_begin(pause, faults, while_stopped, &scene);
    weft_status status = train_round(subject);
    if (pause_retries(pause)) {
        status = end_somehow(subject, status);
    }
    if (pause_end(pause, other->context)) {
        pause_require(pause, end_somehow(subject, status) == WEFT_OK, "the subject: %s",
                      weft_context_error(subject->context));
        pause_require(pause, end_somehow(other, WEFT_OK) == WEFT_OK, "the other: %s",
                      weft_context_error(other->context));
        pause_require(pause, same_consensus(subject, other), "they have come apart");
        uint64_t led = meeting_stats(&subject->exchange).led + meeting_stats(&other->exchange).led;
        pause_require(pause, led <= weft_loco_rounds(other->loco), "a round was closed twice");
        set_times(subject, LONG, LONG);
        set_times(other, LONG, LONG);
        uint64_t next = weft_loco_rounds(other->loco) + 1;
        if (!pause->failed) {
            together((trainer *[]){subject, other}, 2, next);
            pause_require(pause, same_consensus(subject, other), "they come apart in the next round");
            pause_require(pause, other->stats.included == 2, "the next round is not of both");
        }
    }
    meeting_close(&scene.meeting);
}

static void a_rank_is_stopped_anywhere(void **state) {
    (void)state;
    pause_tally tally = {0};
    const pause_sweep sweep = {
        .subject = "a round",
        .run = run_stopped,
        .events = stopped_events,
        .event_count = sizeof stopped_events / sizeof *stopped_events,
        .kinds = 1 << PAUSE_BEFORE | 1 << PAUSE_LATE | 1 << PAUSE_LATER,
        .most = 30,
    };
    pauses_sweep(&sweep, &tally);
    assert_int_equal(pauses_report(&tally), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_come_to_the_same_bits),
        cmocka_unit_test(the_others_go_on_without_the_leader),
        cmocka_unit_test(a_long_absence_ends_with_a_snapshot),
        cmocka_unit_test(what_cannot_be_used_is_refused),
        cmocka_unit_test(who_has_no_key_decides_nothing),
        cmocka_unit_test(rounds_of_long_ago_stay_over),
        cmocka_unit_test(the_odd_one_out_does_not_stop_the_others),
        cmocka_unit_test(the_odd_one_out_does_not_lead),
        cmocka_unit_test(who_is_slow_is_not_taken_for_gone),
        cmocka_unit_test(an_object_that_cannot_be_read_stops_nobody),
        cmocka_unit_test(a_rank_that_starts_again_takes_part_once),
        cmocka_unit_test(a_round_survives_a_failing_store),
        cmocka_unit_test(impossible_meetings_are_refused),
        cmocka_unit_test(a_round_that_lacks_ranks_fails),
        cmocka_unit_test(other_rules_are_refused),
        cmocka_unit_test(averages_are_means),
        cmocka_unit_test(a_rank_is_stopped_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
