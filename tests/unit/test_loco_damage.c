/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that comes back and finds that somebody has damaged or removed what the others had agreed on: it
 * passes over such a round by a snapshot beyond it; where there is none it says which object it is, has
 * changed nothing, and goes on when the object is as it was. A rank that holds other weights than the rest
 * is not helped to theirs.
 */
#include "scratch.h"

#include <weft/loco.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WEIGHTS = 500, RANKS = 2, SNAPSHOT = 4, ROUNDS = 6 };

typedef struct trainer {
    weft_context *context;
    weft_store *store;
    weft_loco_exchange exchange;
    weft_loco *loco;
    float weights[WEIGHTS];
} trainer;

/* Rank 0 does its rounds alone; rank 1 is away, and comes when they are done. */
typedef struct scene {
    scratch scratch;
    trainer here;
    trainer back;
} scene;

static void expect(weft_context *context, weft_status status) {
    if (status != WEFT_OK) {
        fail_msg("%s: %s", weft_status_name(status), weft_context_error(context));
    }
}

static void trainer_join(trainer *trainer, const char *directory, uint32_t rank) {
    weft_loco_options loco = {.size = sizeof loco};
    weft_loco_defaults(&loco);
    weft_loco_store_options options = {.size = sizeof options};
    weft_loco_store_defaults(&options);
    loco.run = options.run = "damage";
    loco.rank = options.rank = rank;
    loco.ranks = options.ranks = RANKS;
    options.deadline_seconds = options.passing_seconds = 0.01;
    options.poll_seconds = 0.01;
    options.snapshot_rounds = SNAPSHOT;
    options.keep_rounds = 2 * SNAPSHOT;
    assert_int_equal(weft_context_create(NULL, &trainer->context), WEFT_OK);
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] = 0.01f * (float)(i + 1);
    }
    const weft_loco_tensor tensor = {"weights", trainer->weights, WEIGHTS};
    expect(trainer->context, weft_store_open(trainer->context, directory, NULL, &trainer->store));
    trainer->exchange.size = sizeof trainer->exchange;
    expect(trainer->context,
           weft_loco_store_open(trainer->context, trainer->store, &options, &trainer->exchange));
    expect(trainer->context, weft_loco_create(trainer->context, &loco, &tensor, 1, &trainer->loco));
}

static void trainer_leave(trainer *trainer) {
    weft_loco_destroy(trainer->loco);
    trainer->exchange.close(trainer->exchange.opaque);
    weft_store_close(trainer->store);
    weft_context_destroy(trainer->context);
}

static void train(trainer *trainer) {
    for (size_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] *= 1.001f;
    }
}

static void scene_open(scene *scene) {
    scratch_open(&scene->scratch);
    const char *directory = scratch_path(&scene->scratch, "store");
    trainer_join(&scene->here, directory, 0);
    trainer_join(&scene->back, directory, 1);
    for (int i = 0; i < ROUNDS; i++) {
        train(&scene->here);
        expect(scene->here.context, weft_loco_round(scene->here.loco, &scene->here.exchange, NULL));
    }
}

static void scene_close(scene *scene) {
    trainer_leave(&scene->here);
    trainer_leave(&scene->back);
    scratch_close(&scene->scratch);
}

static const char *object_path(scene *scene, int round, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "store/loco/damage/%d/%s", round, name);
    return scratch_path(&scene->scratch, path);
}

static void assert_together(scene *scene, uint64_t moved) {
    weft_digest here = weft_loco_digest(scene->here.loco);
    weft_digest back = weft_loco_digest(scene->back.loco);
    assert_int_equal(moved, ROUNDS);
    assert_int_equal(weft_loco_rounds(scene->back.loco), ROUNDS);
    assert_memory_equal(&here, &back, sizeof here);
    assert_memory_equal(scene->here.weights, scene->back.weights, sizeof scene->here.weights);
}

static void a_snapshot_leads_past_damage(void **state) {
    static const char *const names[] = {"0", "closed", "0"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        scene scene;
        uint64_t moved = 0;
        scene_open(&scene);
        const char *path = object_path(&scene, 1, names[i]);
        if (i < 2) {
            scratch_flip(path);
        } else {
            assert_int_equal(unlink(path), 0);
        }
        train(&scene.back);
        expect(scene.back.context, weft_loco_catch_up(scene.back.loco, &scene.back.exchange, &moved));
        assert_together(&scene, moved);
        /* what it has trained is not lost */
        assert_true(weft_loco_residual_energy(scene.back.loco) > 0);
        scene_close(&scene);
    }
}

static void without_a_snapshot_it_says_what_is_damaged(void **state) {
    static const char *const names[] = {"0", "closed"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        scene scene;
        uint64_t moved = 0;
        scene_open(&scene);
        scratch_flip(object_path(&scene, SNAPSHOT, names[i]));
        weft_status status = weft_loco_catch_up(scene.back.loco, &scene.back.exchange, &moved);
        assert_true(weft_status_is_integrity(status));
        assert_non_null(strstr(weft_context_error(scene.back.context), "loco/damage/4/"));
        assert_non_null(strstr(weft_context_error(scene.back.context), "newer snapshot"));
        assert_int_equal(weft_loco_rounds(scene.back.loco), SNAPSHOT);
        scratch_flip(object_path(&scene, SNAPSHOT, names[i]));
        expect(scene.back.context, weft_loco_catch_up(scene.back.loco, &scene.back.exchange, &moved));
        assert_together(&scene, SNAPSHOT + moved);
        scene_close(&scene);
    }
}

static void who_has_come_apart_is_not_helped(void **state) {
    scene scene;
    uint64_t moved = 0;
    (void)state;
    scene_open(&scene);
    weft_loco *other = NULL;
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "damage";
    options.rank = 1;
    options.ranks = RANKS;
    scene.back.weights[7] = 5;
    const weft_loco_tensor tensor = {"weights", scene.back.weights, WEIGHTS};
    expect(scene.back.context, weft_loco_create(scene.back.context, &options, &tensor, 1, &other));
    assert_int_equal(weft_loco_catch_up(other, &scene.back.exchange, &moved), WEFT_BASE_MISMATCH);
    weft_loco_destroy(other);
    scene_close(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_leads_past_damage),
        cmocka_unit_test(without_a_snapshot_it_says_what_is_damaged),
        cmocka_unit_test(who_has_come_apart_is_not_helped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
