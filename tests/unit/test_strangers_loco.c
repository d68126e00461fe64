/* SPDX-License-Identifier: Apache-2.0
 *
 * Strangers' callbacks: the exchange of a rank, whose every function fails at every call with every kind of
 * number or gives what cannot be, and its progress function, which cancels at every call. A rank that was
 * told so is where it was, and comes to the same bits as one that nothing has happened to.
 */
#include "../../lib/loco/loco.h"

#include "models.h"
#include "scratch.h"
#include "strangers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WEIGHTS = 5000, ROUNDS = 2 };

/* A rank that is alone: its payload is the round. */
typedef struct subject {
    weft_context *context;
    weft_loco *loco;
    float weights[WEIGHTS];
    stranger progress; /* cancels */
    stranger exchange; /* fails */
    uint64_t over;     /* rounds below this one were over long ago */
    bool due;          /* snapshots are */
    bool silent;       /* share and snapshot_get succeed, and give nothing */
    bytes payload;
    bytes snapshot;
} subject;

static void keep(bytes *bytes, const weft_loco_payload *payload) {
    weft_sink sink = bytes_sink(bytes);
    bytes->size = 0;
    assert_int_equal(sink.write(sink.opaque, payload->data, payload->size), WEFT_OK);
}

static weft_status share(void *opaque, weft_context *context, uint64_t round, const weft_loco_payload *own,
                         weft_loco_payload *all, size_t ranks) {
    subject *subject = opaque;
    (void)context;
    (void)round;
    assert_int_equal(ranks, 1);
    if (stranger_fails(&subject->exchange)) {
        return (weft_status)subject->exchange.number;
    }
    keep(&subject->payload, own);
    if (!subject->silent) {
        all[0] = (weft_loco_payload){subject->payload.data, subject->payload.size};
    }
    return WEFT_OK;
}

static weft_status ended(void *opaque, weft_context *context, uint64_t round) {
    subject *subject = opaque;
    (void)context;
    if (stranger_fails(&subject->exchange)) {
        return (weft_status)subject->exchange.number;
    }
    return round < subject->over ? WEFT_NOT_FOUND : WEFT_MORE;
}

static bool snapshot_due(void *opaque, uint64_t rounds) {
    (void)rounds;
    return ((const subject *)opaque)->due;
}

static weft_status snapshot_put(void *opaque, weft_context *context, uint64_t rounds,
                                const weft_loco_payload *snapshot) {
    subject *subject = opaque;
    (void)context;
    (void)rounds;
    if (stranger_fails(&subject->exchange)) {
        return (weft_status)subject->exchange.number;
    }
    keep(&subject->snapshot, snapshot);
    return WEFT_OK;
}

static weft_status snapshot_get(void *opaque, weft_context *context, uint64_t most,
                                weft_loco_payload *snapshot_out) {
    subject *subject = opaque;
    (void)context;
    (void)most;
    if (stranger_fails(&subject->exchange)) {
        return (weft_status)subject->exchange.number;
    }
    if (!subject->silent) {
        *snapshot_out = (weft_loco_payload){subject->snapshot.data, subject->snapshot.size};
    }
    return WEFT_OK;
}

static void close_exchange(void *opaque) {
    (void)opaque;
}

static weft_loco_exchange exchange_of(subject *subject) {
    return (weft_loco_exchange){
        .size = sizeof(weft_loco_exchange),
        .share = share,
        .ended = ended,
        .snapshot_due = snapshot_due,
        .snapshot_put = snapshot_put,
        .snapshot_get = snapshot_get,
        .close = close_exchange,
        .opaque = subject,
    };
}

static void subject_open(subject *subject) {
    memset(subject, 0, sizeof *subject);
    const weft_context_options options = {.size = sizeof options,
                                          .threads = 2,
                                          .progress = stranger_progress,
                                          .progress_opaque = &subject->progress};
    weft_loco_options chosen = {.size = sizeof chosen};
    weft_loco_defaults(&chosen);
    chosen.run = "strangers";
    const weft_loco_tensor tensors[] = {{"up", subject->weights, 3000},
                                        {"down", subject->weights + 3000, WEIGHTS - 3000}};
    dice dice = {5};
    for (size_t i = 0; i < WEIGHTS; i++) {
        subject->weights[i] = ((float)dice_below(&dice, 2001) - 1000.0f) * 1e-3f;
    }
    assert_int_equal(weft_context_create(&options, &subject->context), WEFT_OK);
    assert_int_equal(weft_loco_create(subject->context, &chosen, tensors, 2, &subject->loco), WEFT_OK);
}

static void subject_close(subject *subject) {
    weft_loco_destroy(subject->loco);
    weft_context_destroy(subject->context);
    bytes_clear(&subject->payload);
    bytes_clear(&subject->snapshot);
}

/* The steps before a round, the same in every life. */
static void train(subject *subject, uint64_t round) {
    dice dice = {100 + round};
    for (size_t i = 0; i < WEIGHTS; i++) {
        subject->weights[i] += ((float)dice_below(&dice, 2001) - 1000.0f) * 1e-5f;
    }
}

/* What a rank is, from outside and inside. */
typedef struct standing {
    weft_digest digest;
    uint64_t rounds;
    float weights[WEIGHTS];
    float consensus[WEIGHTS];
    float residual[WEIGHTS];
} standing;

static standing *stand(const subject *subject) {
    standing *standing = malloc(sizeof *standing);
    assert_non_null(standing);
    standing->digest = weft_loco_digest(subject->loco);
    standing->rounds = weft_loco_rounds(subject->loco);
    memcpy(standing->weights, subject->weights, sizeof standing->weights);
    memcpy(standing->consensus, subject->loco->consensus, sizeof standing->consensus);
    memcpy(standing->residual, subject->loco->residual, sizeof standing->residual);
    return standing;
}

static void check_standing(const subject *subject, const standing *expected, bool residual) {
    standing *here = stand(subject);
    assert_memory_equal(&here->digest, &expected->digest, sizeof here->digest);
    assert_int_equal(here->rounds, expected->rounds);
    assert_memory_equal(here->weights, expected->weights, sizeof here->weights);
    assert_memory_equal(here->consensus, expected->consensus, sizeof here->consensus);
    if (residual) {
        assert_memory_equal(here->residual, expected->residual, sizeof here->residual);
    }
    free(here);
}

static void do_round(subject *subject) {
    const weft_loco_exchange exchange = exchange_of(subject);
    train(subject, weft_loco_rounds(subject->loco));
    assert_int_equal(weft_loco_round(subject->loco, &exchange, NULL), WEFT_OK);
}

/* A rank that nothing happens to, after some rounds. */
static standing *reference(uint64_t rounds) {
    subject subject;
    subject_open(&subject);
    while (weft_loco_rounds(subject.loco) < rounds) {
        do_round(&subject);
    }
    standing *standing = stand(&subject);
    subject_close(&subject);
    return standing;
}

/* ---- the exchange ---- */

static void test_share(void **state) {
    (void)state;
    standing *expected = reference(ROUNDS);
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        subject subject;
        subject_open(&subject);
        const weft_loco_exchange exchange = exchange_of(&subject);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            train(&subject, round);
            standing *before = stand(&subject);
            stranger_reset(&subject.exchange, 1, stranger_numbers[i]);
            assert_int_equal(weft_loco_round(subject.loco, &exchange, NULL),
                             stranger_meaning(stranger_numbers[i]));
            assert_true(weft_context_error(subject.context)[0] != '\0');
            check_standing(&subject, before, false);
            /* succeeds, and names nobody */
            stranger_reset(&subject.exchange, 0, WEFT_OK);
            subject.silent = true;
            assert_int_equal(weft_loco_round(subject.loco, &exchange, NULL), WEFT_INVALID_ARGUMENT);
            check_standing(&subject, before, false);
            subject.silent = false;
            assert_int_equal(weft_loco_round(subject.loco, &exchange, NULL), WEFT_OK);
            free(before);
        }
        check_standing(&subject, expected, true);
        subject_close(&subject);
    }
    free(expected);
}

/* A snapshot that is not left is no failure, whatever the number. */
static void test_snapshot_put(void **state) {
    (void)state;
    standing *expected = reference(1);
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        subject subject;
        subject_open(&subject);
        subject.due = true;
        stranger_reset(&subject.exchange, 2, stranger_numbers[i]);
        do_round(&subject);
        assert_true(stranger_fired(&subject.exchange));
        assert_string_equal(weft_context_error(subject.context), "");
        check_standing(&subject, expected, true);
        subject_close(&subject);
    }
    free(expected);
}

/* A snapshot of the rank after some rounds. */
static void make_snapshot(bytes *snapshot, uint64_t rounds) {
    subject subject;
    subject_open(&subject);
    subject.due = true;
    while (weft_loco_rounds(subject.loco) < rounds) {
        do_round(&subject);
    }
    *snapshot = subject.snapshot;
    subject.snapshot = (bytes){0};
    subject_close(&subject);
}

static void test_coming_back(void **state) {
    (void)state;
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        int number = stranger_numbers[i];
        subject subject;
        subject_open(&subject);
        make_snapshot(&subject.snapshot, ROUNDS);
        subject.over = ROUNDS;
        const weft_loco_exchange exchange = exchange_of(&subject);
        weft_loco_exchange without = exchange;
        without.snapshot_get = NULL;
        standing *before = stand(&subject);
        /* whether it has ended, and then the snapshot */
        for (size_t n = 1; n <= 2; n++) {
            bool open = n == 1 && number == WEFT_MORE;
            stranger_reset(&subject.exchange, n, number);
            assert_int_equal(weft_loco_catch_up(subject.loco, &exchange, NULL),
                             open ? WEFT_OK : stranger_meaning(number));
            check_standing(&subject, before, true);
        }
        stranger_reset(&subject.exchange, 0, WEFT_OK);
        subject.silent = true;
        assert_int_equal(weft_loco_catch_up(subject.loco, &exchange, NULL), WEFT_CALLBACK_FAILED);
        assert_int_equal(weft_loco_catch_up(subject.loco, &without, NULL), WEFT_NOT_FOUND);
        check_standing(&subject, before, true);
        subject.silent = false;
        assert_int_equal(weft_loco_catch_up(subject.loco, &exchange, NULL), WEFT_OK);
        assert_int_equal(weft_loco_rounds(subject.loco), ROUNDS);
        free(before);
        subject_close(&subject);
    }
}

/* ---- cancelling ---- */

/* Each call of the progress function cancels a round: nothing has moved, and the next attempt ends it. */
static void test_cancelled_rounds(void **state) {
    (void)state;
    standing *expected = reference(ROUNDS);
    bool fired = true;
    size_t cancelled = 0;
    for (size_t n = 1; fired; n++) {
        subject subject;
        subject_open(&subject);
        const weft_loco_exchange exchange = exchange_of(&subject);
        fired = false;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            train(&subject, round);
            standing *before = stand(&subject);
            stranger_reset(&subject.progress, n, 0);
            weft_status status = weft_loco_round(subject.loco, &exchange, NULL);
            fired = fired || stranger_fired(&subject.progress);
            assert_int_equal(status, stranger_fired(&subject.progress) ? WEFT_CANCELLED : WEFT_OK);
            stranger_reset(&subject.progress, 0, 0);
            if (status == WEFT_CANCELLED) {
                cancelled++;
                check_standing(&subject, before, true);
                assert_int_equal(weft_loco_round(subject.loco, &exchange, NULL), WEFT_OK);
            }
            free(before);
        }
        check_standing(&subject, expected, true);
        subject_close(&subject);
    }
    assert_true(cancelled > 0);
    free(expected);
}

/* The second half of a round by itself, as who has an exchange of their own calls it. */
static void test_cancelled_aggregates(void **state) {
    (void)state;
    standing *expected = reference(1);
    bool fired = true;
    for (size_t n = 1; fired; n++) {
        subject subject;
        weft_loco_payload payload;
        subject_open(&subject);
        train(&subject, 0);
        assert_int_equal(weft_loco_encode(subject.loco, &payload), WEFT_OK);
        standing *before = stand(&subject);
        stranger_reset(&subject.progress, n, 0);
        weft_status status = weft_loco_aggregate(subject.loco, &payload, 1, NULL);
        fired = stranger_fired(&subject.progress);
        stranger_reset(&subject.progress, 0, 0);
        assert_int_equal(status, fired ? WEFT_CANCELLED : WEFT_OK);
        if (fired) {
            check_standing(&subject, before, true);
            assert_int_equal(weft_loco_aggregate(subject.loco, &payload, 1, NULL), WEFT_OK);
        }
        check_standing(&subject, expected, true);
        free(before);
        subject_close(&subject);
    }
    free(expected);
}

/* A state that is read back, and a snapshot that is taken. */
static void test_cancelled_ways_back(void **state) {
    (void)state;
    standing *expected = reference(ROUNDS);
    scratch scratch;
    subject saved;
    scratch_open_volatile(&scratch);
    subject_open(&saved);
    for (unsigned i = 0; i < ROUNDS; i++) {
        do_round(&saved);
    }
    assert_int_equal(weft_loco_save(saved.loco, scratch_path(&scratch, "state"), NULL, NULL, false),
                     WEFT_OK);
    subject_close(&saved);
    for (int snapshot = 0; snapshot < 2; snapshot++) {
        bool fired = true;
        for (size_t n = 1; fired; n++) {
            subject subject;
            subject_open(&subject);
            make_snapshot(&subject.snapshot, ROUNDS);
            subject.over = ROUNDS;
            const weft_loco_exchange exchange = exchange_of(&subject);
            standing *before = stand(&subject);
            weft_status status = WEFT_CANCELLED;
            for (unsigned tries = 0; tries < 2 && status == WEFT_CANCELLED; tries++) {
                stranger_reset(&subject.progress, tries == 0 ? n : 0, 0);
                status = snapshot ? weft_loco_catch_up(subject.loco, &exchange, NULL)
                                  : weft_loco_load(subject.loco, scratch_path(&scratch, "state"), NULL,
                                                   NULL, NULL, NULL);
                fired = tries == 0 ? stranger_fired(&subject.progress) : fired;
                assert_int_equal(status, tries == 0 && fired ? WEFT_CANCELLED : WEFT_OK);
                if (status == WEFT_CANCELLED) {
                    check_standing(&subject, before, true);
                }
            }
            check_standing(&subject, expected, !snapshot);
            free(before);
            subject_close(&subject);
        }
    }
    scratch_close(&scratch);
    free(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_snapshot_put),
        cmocka_unit_test(test_coming_back),
        cmocka_unit_test(test_cancelled_rounds),
        cmocka_unit_test(test_cancelled_aggregates),
        cmocka_unit_test(test_cancelled_ways_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
