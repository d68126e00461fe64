/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_rates.c: the sparsity of steps by learning rate is counted rightly, and so are changes by
 * exponent beside the law; what is published is what was learned, and the trainer that it starts from is
 * left alone.
 */
#include "../../lm/learn/rates.h"

#include "../support/lessons.h"
#include "../support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <weft/sync.h>

#include <cmocka.h>

enum { SETTLE = 2, STEPS = 33 };

static lm_rates_options usual(const char *directory) {
    return (lm_rates_options){
        .task = lesson_addition,
        .grpo = lm_grpo_defaults(),
        .seed = 11, /* as lesson_step has it */
        .prompts = LESSON_PROMPTS,
        .group = LESSON_GROUP,
        .settle = SETTLE,
        .steps = STEPS,
        .directory = directory,
    };
}

static lm_trainer *warm_trainer(void) {
    lm_trainer *trainer = lesson_open(2, &lesson_policy, 3);
    lesson_warm_up(trainer, &lesson_addition, 2, 30);
    lm_adam_reset(trainer->adam);
    return trainer;
}

static double share(const uint16_t *a, const uint16_t *b, size_t count) {
    size_t differ = 0;
    for (size_t i = 0; i < count; i++) {
        differ += a[i] != b[i];
    }
    return (double)differ / (double)count;
}

typedef struct history {
    uint16_t *words; /* before the first step that counts, and after each */
    float *masters;
} history;

/* The same steps made by hand from the same state. */
static history steps_by_hand(double rate) {
    lm_trainer *trainer = warm_trainer();
    lm_grpo_options options = lm_grpo_defaults();
    size_t count = trainer->model->parameters;
    history made = {
        .words = calloc((STEPS + 1) * count, sizeof *made.words),
        .masters = calloc((STEPS + 1) * count, sizeof *made.masters),
    };
    options.adam.rate = rate;
    for (uint64_t step = 0; step <= SETTLE + STEPS; step++) {
        if (step >= SETTLE) {
            size_t place = (step - SETTLE) * count;
            memcpy(made.words + place, trainer->model->live, count * sizeof *made.words);
            memcpy(made.masters + place, trainer->model->masters, count * sizeof *made.masters);
        }
        lesson_step(trainer, &lesson_addition, &options, step);
    }
    lesson_close(trainer);
    return made;
}

static void check_densities(const lm_rates_row *row, const uint16_t *words) {
    for (size_t i = 0; i < LM_RATES_DELAYS; i++) {
        unsigned delay = lm_rates_delays[i];
        double sum = 0, most = 0;
        for (size_t step = delay; step <= STEPS; step++) {
            double differ =
                share(words + step * row->elements, words + (step - delay) * row->elements, row->elements);
            sum += differ;
            most = differ > most ? differ : most;
        }
        assert_int_equal(row->density[i].windows, STEPS - delay + 1);
        assert_float_equal(row->density[i].mean, sum / (STEPS - delay + 1), 1e-9);
        assert_float_equal(row->density[i].most, most, 1e-12);
    }
}

/* The share of its cell by which a step moves a master, 1 at most. */
static double chance(float before, float after, uint16_t word) {
    enum { EXPONENT_ONE = 1, FRACTION_BITS = 7 };
    uint32_t bits = (uint32_t)word << 16;
    float weight;
    int exponent;
    memcpy(&weight, &bits, sizeof weight);
    assert_true(frexpf(weight, &exponent) != 0);
    return fmin(1, ldexp(fabs((double)after - before), FRACTION_BITS + EXPONENT_ONE - exponent));
}

static void check_law(const lm_rates_row *row, const history *made) {
    lm_rates_law law[LM_RATES_EXPONENTS] = {{0}};
    double changes = 0, expected = 0;
    for (size_t i = 0; i < STEPS * row->elements; i++) {
        size_t next = i + row->elements;
        lm_rates_law *class = &law[made->words[i] >> 7 & 0xff];
        class->weights += 1;
        class->changes += made->words[i] != made->words[next];
        class->expected += chance(made->masters[i], made->masters[next], made->words[i]);
    }
    for (size_t i = 0; i < LM_RATES_EXPONENTS; i++) {
        assert_int_equal(row->law[i].weights, law[i].weights);
        assert_int_equal(row->law[i].changes, law[i].changes);
        assert_true(fabs(row->law[i].expected - law[i].expected) <= 1e-9 * law[i].expected);
        changes += (double)law[i].changes;
        expected += law[i].expected;
    }
    assert_float_equal(changes / (double)(STEPS * row->elements), row->density[0].mean, 1e-9);
    print_message("rate %g: %.0f changes, %.1f by the law\n", row->rate, changes, expected);
    assert_true(fabs(changes / expected - 1) < 0.15);
}

/* A worker that comes to the store afterwards has the words of the last step. */
static void check_store(lm_trainer *trainer, const char *path, const uint16_t *last) {
    weft_context *context = trainer->model->context;
    weft_store *store = NULL;
    weft_view *view = NULL;
    weft_subscriber *subscriber = NULL;
    lm_model *worker = NULL;
    weft_subscriber_options options = {.size = sizeof options, .empty = true};
    assert_int_equal(lm_model_create(context, &trainer->model->config, LM_WORKER, &worker), WEFT_OK);
    assert_int_equal(weft_store_open(context, path, NULL, &store), WEFT_OK);
    assert_int_equal(weft_view_create(context, lm_model_table(worker), &view), WEFT_OK);
    assert_int_equal(weft_subscriber_open(context, store, view, &options, &subscriber), WEFT_OK);
    assert_int_equal(weft_subscriber_pull(subscriber, 0), WEFT_OK);
    assert_memory_equal(worker->live, last, worker->parameters * sizeof *last);
    weft_subscriber_close(subscriber);
    weft_view_destroy(view);
    weft_store_close(store);
    lm_model_destroy(worker);
}

static void test_counts(void **state) {
    (void)state;
    scratch scratch;
    scratch_open(&scratch);
    lm_trainer *trainer = warm_trainer();
    size_t count = trainer->model->parameters;
    float *masters = calloc(count, sizeof *masters);
    memcpy(masters, trainer->model->masters, count * sizeof *masters);
    lm_rates_options options = usual(scratch.directory);
    lm_rates_row rows[2] = {{.rate = 1e-6}, {.rate = 1e-3}};
    assert_int_equal(lm_rates_measure(trainer, &options, rows, 2), WEFT_OK);
    assert_memory_equal(masters, trainer->model->masters, count * sizeof *masters);
    assert_int_equal(trainer->adam->steps, 0);
    for (size_t i = 0; i < 2; i++) {
        history made = steps_by_hand(rows[i].rate);
        assert_int_equal(rows[i].elements, count);
        assert_int_equal(rows[i].dense_bytes, 2 * count);
        check_densities(&rows[i], made.words);
        check_law(&rows[i], &made);
        check_store(trainer, scratch_path(&scratch, i == 0 ? "rate-0" : "rate-1"),
                    made.words + STEPS * count);
        assert_true(rows[i].patch_bytes > 0 && rows[i].bytes > rows[i].patch_bytes);
        assert_true((double)rows[i].most_bytes >= rows[i].bytes);
        free(made.words);
        free(made.masters);
    }
    assert_true(rows[0].density[0].mean < 0.02 && rows[1].density[0].mean > 10 * rows[0].density[0].mean);
    assert_true(rows[1].bytes > 2 * rows[0].bytes);
    free(masters);
    lesson_close(trainer);
    scratch_close(&scratch);
}

typedef struct witness {
    unsigned calls;
    double densities; /* of the steps that count */
    uint64_t bytes;
    uint64_t last; /* step, to stop after */
} witness;

static bool look(void *opaque, const lm_rates_step *step) {
    witness *witness = opaque;
    witness->calls += 1;
    assert_int_equal(step->step, witness->calls);
    assert_true(step->counted == (step->step > SETTLE) && step->counted == (step->bytes > 0));
    assert_true(step->reward >= 0 && step->reward <= 1 && step->density >= 0 && step->density <= 1);
    witness->densities += step->counted ? step->density : 0;
    witness->bytes += step->bytes;
    return step->step < witness->last;
}

static void test_watched(void **state) {
    (void)state;
    scratch scratch;
    scratch_open(&scratch);
    lm_trainer *trainer = warm_trainer();
    witness all = {.last = 1000}, three = {.last = SETTLE + 3};
    lm_rates_row row = {.rate = 1e-4};
    lm_rates_options options = usual(scratch.directory);
    options.watcher = look;
    options.opaque = &all;
    assert_int_equal(lm_rates_measure(trainer, &options, &row, 1), WEFT_OK);
    assert_int_equal(all.calls, SETTLE + STEPS);
    assert_float_equal(all.densities / STEPS, row.density[0].mean, 1e-9);
    assert_float_equal((double)all.bytes / STEPS, row.bytes, 1e-3);
    scratch_make_directory(&scratch, "other");
    options.directory = scratch_path(&scratch, "other");
    options.opaque = &three;
    assert_int_equal(lm_rates_measure(trainer, &options, &row, 1), WEFT_CANCELLED);
    assert_int_equal(three.calls, SETTLE + 3);
    lesson_close(trainer);
    scratch_close(&scratch);
}

static void test_refusals(void **state) {
    (void)state;
    scratch scratch;
    scratch_open(&scratch);
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 3);
    lm_rates_row row = {.rate = 1e-5};
    lm_rates_options options = usual(scratch.directory);
    options.group = 1;
    assert_int_equal(lm_rates_measure(trainer, &options, &row, 1), WEFT_INVALID_ARGUMENT);
    row.rate = 2;
    options = usual(scratch.directory);
    assert_int_equal(lm_rates_measure(trainer, &options, &row, 1), WEFT_INVALID_ARGUMENT);
    lesson_close(trainer);
    scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_watched),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
