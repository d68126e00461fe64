/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that was away until nothing is left of the round it last spoke in comes back by a snapshot, which
 * tells whether what it said there was included: all that it has trained counts once, element by element,
 * whether it was, was not, or another of its lives was. What tells this is common to all ranks, is saved
 * with a state and passed on by who came back; a snapshot that tells what cannot have been is refused.
 *
 * The weights, and what is trained, are such that all sums are exact: rate 1, no momentum, two ranks, of
 * which the other one trains nothing.
 */
#include "scratch.h"

#include "../../lib/loco/included.h"
#include "../../lib/loco/manifest.h"
#include "../../lib/loco/snapshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WEIGHTS = 3000, RANKS = 2, KEPT = 4, FAR = 12 };

typedef struct trainer {
    weft_context *context;
    weft_store *store;
    weft_loco_exchange exchange;
    weft_loco *loco;
    float weights[WEIGHTS];
} trainer;

/* `here` is rank 0, and `away` rank 1. */
typedef struct scene {
    scratch scratch;
    trainer here;
    trainer away;
} scene;

static float first_weight(size_t i) {
    return 1 + (float)i * 0x1p-9f;
}

/* What a weight is trained by: some of it visible in BF16, most of it of more bits than are sent. */
static float lesson(size_t i) {
    return (float)((int)(i % 61) - 30) * 0x1p-14f;
}

static void expect(const trainer *trainer, weft_status status) {
    if (status != WEFT_OK) {
        fail_msg("%s: %s", weft_status_name(status), weft_context_error(trainer->context));
    }
}

static void trainer_join(trainer *trainer, const char *directory, uint32_t rank) {
    const weft_store_options volatile_store = {.size = sizeof volatile_store, .volatile_writes = true};
    weft_loco_options loco = {.size = sizeof loco};
    weft_loco_defaults(&loco);
    weft_loco_store_options options = {.size = sizeof options};
    weft_loco_store_defaults(&options);
    loco.run = options.run = "jump";
    loco.rank = options.rank = rank;
    loco.ranks = options.ranks = RANKS;
    loco.rate = 1;
    loco.momentum = 0;
    loco.significant = 2;
    options.deadline_seconds = 0.05;
    options.passing_seconds = 0.01;
    options.poll_seconds = 0.01;
    options.snapshot_rounds = KEPT / 2;
    options.keep_rounds = KEPT;
    assert_int_equal(
        weft_context_create(&(weft_context_options){.size = sizeof(weft_context_options), .threads = 1},
                            &trainer->context),
        WEFT_OK);
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] = first_weight(i);
    }
    const weft_loco_tensor tensor = {"weights", trainer->weights, WEIGHTS};
    expect(trainer, weft_store_open(trainer->context, directory, &volatile_store, &trainer->store));
    trainer->exchange.size = sizeof trainer->exchange;
    expect(trainer, weft_loco_store_open(trainer->context, trainer->store, &options, &trainer->exchange));
    expect(trainer, weft_loco_create(trainer->context, &loco, &tensor, 1, &trainer->loco));
}

static void trainer_leave(trainer *trainer) {
    weft_loco_destroy(trainer->loco);
    trainer->exchange.close(trainer->exchange.opaque);
    weft_store_close(trainer->store);
    weft_context_destroy(trainer->context);
}

static void train(trainer *trainer, float share) {
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] += share * lesson(i);
    }
}

static void scene_open(scene *scene) {
    scratch_open(&scene->scratch);
    trainer_join(&scene->here, scratch_path(&scene->scratch, "store"), 0);
    trainer_join(&scene->away, scratch_path(&scene->scratch, "store"), 1);
}

static void scene_close(scene *scene) {
    trainer_leave(&scene->here);
    trainer_leave(&scene->away);
    scratch_close(&scene->scratch);
}

/* Another life of the rank that was away, which has what `state` says, or nothing. */
static void live_again(scene *scene, const char *state) {
    trainer_leave(&scene->away);
    trainer_join(&scene->away, scratch_path(&scene->scratch, "store"), 1);
    if (state != NULL) {
        expect(&scene->away, weft_loco_load(scene->away.loco, state, NULL, NULL, NULL, NULL));
    }
}

/* Has its payload in the store, where whoever leads finds it. */
static void speak(trainer *trainer) {
    weft_loco_payload payload;
    char key[64];
    snprintf(key, sizeof key, "loco/jump/%llu/%u", (unsigned long long)weft_loco_rounds(trainer->loco),
             trainer->loco->options.rank);
    expect(trainer, weft_loco_encode(trainer->loco, &payload));
    assert_true(trainer->loco->fired > 0 && trainer->loco->fired < WEIGHTS);
    expect(trainer, weft_store_put_bytes(trainer->context, trainer->store, key, payload.data, payload.size,
                                         WEFT_STORE_ALWAYS, NULL, NULL));
}

static uint32_t end_round(trainer *trainer) {
    weft_loco_stats stats = {.size = sizeof stats};
    expect(trainer, weft_loco_round(trainer->loco, &trainer->exchange, &stats));
    return stats.included;
}

/* Does rounds alone until there are so many more. */
static void go_far(trainer *trainer) {
    for (int i = 0; i < FAR; i++) {
        assert_int_equal(end_round(trainer), 1);
    }
}

/* Comes to where the other is, by a jump over a round of which no payload is left. */
static void jump(scene *scene, trainer *back, const trainer *other) {
    uint64_t from = weft_loco_rounds(back->loco);
    uint64_t to = weft_loco_rounds(other->loco);
    uint64_t size, moved = 0;
    weft_store_tag tag;
    char key[64];
    for (unsigned rank = 0; rank < RANKS; rank++) {
        snprintf(key, sizeof key, "loco/jump/%llu/%u", (unsigned long long)from, rank);
        assert_int_equal(weft_store_head(scene->here.context, scene->here.store, key, &size, &tag),
                         WEFT_NOT_FOUND);
    }
    expect(back, weft_loco_catch_up(back->loco, &back->exchange, &moved));
    assert_int_equal(moved, to - from);
    assert_memory_equal(back->weights, other->weights, sizeof back->weights);
    assert_memory_equal(back->loco->included, other->loco->included, weft_loco_included_bytes(back->loco));
}

/* In all rounds with both ranks the other's part was zero: the consensus has moved by half of what this one
 * has sent. */
static void assert_all_counts_once(const trainer *trainer, float share) {
    for (size_t i = 0; i < WEIGHTS; i++) {
        float sent = 2 * (first_weight(i) - trainer->loco->consensus[i]);
        assert_true(sent + trainer->loco->residual[i] == -share * lesson(i));
    }
}

static void what_was_included_counts_once(void **state) {
    (void)state;
    /* once the same life comes back, and once another */
    for (int lives = 1; lives <= 2; lives++) {
        scene scene;
        scene_open(&scene);
        const char *path = scratch_path(&scene.scratch, "state");
        train(&scene.away, 1);
        expect(&scene.away, weft_loco_save(scene.away.loco, path, NULL, NULL, false));
        speak(&scene.away);
        assert_int_equal(end_round(&scene.here), 2);
        go_far(&scene.here);
        if (lives == 2) {
            live_again(&scene, path);
        }
        jump(&scene, &scene.away, &scene.here);
        assert_true(weft_loco_residual_energy(scene.away.loco) > 0);
        assert_all_counts_once(&scene.away, 1);
        /* and so it is when it has trained and spoken once more */
        train(&scene.away, 2);
        speak(&scene.away);
        assert_int_equal(end_round(&scene.here), 2);
        assert_int_equal(end_round(&scene.away), 2);
        assert_all_counts_once(&scene.away, 3);
        scene_close(&scene);
    }
}

static void what_was_not_included_is_kept(void **state) {
    (void)state;
    /* once it has spoken when it was too late, and once not at all */
    for (int spoken = 0; spoken < 2; spoken++) {
        scene scene;
        scene_open(&scene);
        train(&scene.away, 1);
        assert_int_equal(end_round(&scene.here), 1);
        if (spoken) {
            speak(&scene.away);
        }
        go_far(&scene.here);
        jump(&scene, &scene.away, &scene.here);
        assert_all_counts_once(&scene.away, 1);
        speak(&scene.away);
        assert_int_equal(end_round(&scene.here), 2);
        assert_int_equal(end_round(&scene.away), 2);
        assert_all_counts_once(&scene.away, 1);
        scene_close(&scene);
    }
}

/* Included in the round before: that says nothing of what was trained since. */
static void an_earlier_round_is_another(void **state) {
    scene scene;
    (void)state;
    scene_open(&scene);
    train(&scene.away, 1);
    speak(&scene.away);
    assert_int_equal(end_round(&scene.here), 2);
    assert_int_equal(end_round(&scene.away), 2);
    train(&scene.away, 1);
    go_far(&scene.here);
    jump(&scene, &scene.away, &scene.here);
    assert_all_counts_once(&scene.away, 2);
    scene_close(&scene);
}

/* A life that has lost its state holds another payload of that round than the one that was included. */
static void another_payload_is_kept(void **state) {
    scene scene;
    (void)state;
    scene_open(&scene);
    train(&scene.away, 1);
    speak(&scene.away);
    assert_int_equal(end_round(&scene.here), 2);
    go_far(&scene.here);
    live_again(&scene, NULL);
    train(&scene.away, 2);
    jump(&scene, &scene.away, &scene.here);
    for (size_t i = 0; i < WEIGHTS; i++) {
        assert_true(scene.away.loco->residual[i] == -2 * lesson(i));
    }
    scene_close(&scene);
}

/* An old copy of a state, whose rank has since gone on from it: it has said already what it says now. */
static void an_old_state_says_nothing_again(void **state) {
    scene scene;
    (void)state;
    scene_open(&scene);
    const char *path = scratch_path(&scene.scratch, "state");
    train(&scene.away, 1);
    expect(&scene.away, weft_loco_save(scene.away.loco, path, NULL, NULL, false));
    speak(&scene.away);
    float rest[WEIGHTS];
    memcpy(rest, scene.away.loco->residual, sizeof rest);
    assert_int_equal(end_round(&scene.here), 2);
    assert_int_equal(end_round(&scene.away), 2);
    train(&scene.away, 1);
    speak(&scene.away);
    assert_int_equal(end_round(&scene.here), 2);
    go_far(&scene.here);
    live_again(&scene, path);
    jump(&scene, &scene.away, &scene.here);
    assert_memory_equal(scene.away.loco->residual, rest, sizeof rest);
    scene_close(&scene);
}

/* Who came back by a snapshot leaves one in turn, even after it was saved and loaded. */
static void who_came_back_passes_it_on(void **state) {
    scene scene;
    (void)state;
    scene_open(&scene);
    const char *path = scratch_path(&scene.scratch, "state");
    go_far(&scene.here);
    jump(&scene, &scene.away, &scene.here);
    train(&scene.here, 1);
    speak(&scene.here);
    /* rank 0 is gone: rank 1 leads */
    assert_int_equal(end_round(&scene.away), 2);
    expect(&scene.away, weft_loco_save(scene.away.loco, path, NULL, NULL, false));
    live_again(&scene, path);
    go_far(&scene.away);
    jump(&scene, &scene.here, &scene.away);
    assert_int_equal(scene.here.loco->included[0].rounds, FAR + 1);
    assert_int_equal(scene.here.loco->included[1].rounds, 2 * FAR + 1);
    assert_all_counts_once(&scene.here, 1);
    scene_close(&scene);
}

/* ---- snapshots that tell what cannot have been ---- */

/* An exchange with nothing but a snapshot. */
static weft_status long_over(void *opaque, weft_context *context, uint64_t round) {
    (void)opaque;
    (void)context;
    return round < FAR ? WEFT_NOT_FOUND : WEFT_MORE;
}

static weft_status give(void *opaque, weft_context *context, uint64_t most,
                        weft_loco_payload *snapshot_out) {
    const weft_loco_payload *snapshot = opaque;
    (void)context;
    assert_true(snapshot->size <= most);
    *snapshot_out = *snapshot;
    return WEFT_OK;
}

static weft_status take(trainer *trainer, const weft_writer *snapshot) {
    weft_loco_payload bytes = {snapshot->data, snapshot->size};
    const weft_loco_exchange exchange = {
        .size = sizeof exchange, .ended = long_over, .snapshot_get = give, .opaque = &bytes};
    return weft_loco_catch_up(trainer->loco, &exchange, NULL);
}

/* A snapshot of the rank, in which these are the last rounds of the ranks, cut short by some bytes. */
static void forge(trainer *trainer, const weft_loco_included *included, uint32_t ranks, size_t less,
                  weft_writer *writer) {
    const weft_loco *loco = trainer->loco;
    weft_writer_open(writer, trainer->context);
    weft_manifest_begin(writer, WEFT_MANIFEST_SNAPSHOT, loco->run);
    weft_writer_u64(writer, FAR);
    weft_writer_u64(writer, WEIGHTS);
    weft_writer_u8(writer, 0);
    weft_writer_bytes(writer, loco->digest.bytes, sizeof loco->digest.bytes);
    weft_writer_u32(writer, ranks);
    weft_writer_bytes(writer, included, ranks * sizeof *included);
    weft_writer_bytes(writer, loco->consensus, WEIGHTS * sizeof(float));
    writer->size -= less;
    weft_manifest_end(writer);
}

static void impossible_ones_are_refused(void **state) {
    static const struct {
        weft_loco_included included[3];
        uint32_t ranks;
        size_t less; /* bytes of it that are cut off */
        weft_status expected;
    } cases[] = {
        {{{FAR, {1}}, {FAR + 1, {2}}}, 2, 0, WEFT_MALFORMED},
        {{{FAR, {1}}, {UINT64_MAX, {2}}}, 2, 0, WEFT_MALFORMED},
        {{{FAR - 1, {1}}, {3, {2}}}, 2, 0, WEFT_MALFORMED},
        {{{0, {0}}, {0, {0}}}, 2, 0, WEFT_MALFORMED},
        {{{FAR, {1}}, {0, {2}}}, 2, 0, WEFT_MALFORMED},
        {{{FAR, {1}}}, 1, 0, WEFT_BASE_MISMATCH},
        {{{FAR, {1}}, {2, {2}}, {3, {3}}}, 3, 0, WEFT_BASE_MISMATCH},
        {{{FAR, {1}}, {2, {2}}}, 2, sizeof(float), WEFT_MALFORMED},
        {{{FAR, {1}}, {2, {2}}}, 2, WEIGHTS * sizeof(float) + 1, WEFT_MALFORMED},
        {{{FAR, {1}}, {0, {0}}}, 2, 0, WEFT_OK},
    };
    scene scene;
    (void)state;
    scene_open(&scene);
    trainer *trainer = &scene.away;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_writer writer;
        forge(trainer, cases[i].included, cases[i].ranks, cases[i].less, &writer);
        assert_int_equal(take(trainer, &writer), cases[i].expected);
        assert_int_equal(weft_loco_rounds(trainer->loco), cases[i].expected == WEFT_OK ? FAR : 0);
        assert_false(trainer->loco->pending);
        weft_writer_close(&writer);
    }
    scene_close(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_included_counts_once),   cmocka_unit_test(what_was_not_included_is_kept),
        cmocka_unit_test(an_earlier_round_is_another),     cmocka_unit_test(another_payload_is_kept),
        cmocka_unit_test(an_old_state_says_nothing_again), cmocka_unit_test(who_came_back_passes_it_on),
        cmocka_unit_test(impossible_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
