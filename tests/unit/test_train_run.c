/* SPDX-License-Identifier: Apache-2.0
 *
 * test_train_run.c: the description of a run, there and back and from hostile hands; options that cannot
 * be; densities against a count of one's own; metrics of a trainer that was killed.
 */
#include "../../lib/base/context.h"
#include "../../train/learner/metrics.h"
#include "../../train/options.h"
#include "../support/hostile.h"
#include "../support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static train_run sample_run(void) {
    train_run run = train_options_defaults().run;
    snprintf(run.name, sizeof run.name, "00112233445566778899aabbccddeeff");
    run.sync = TRAIN_SYNC_FULL;
    run.staleness = 3;
    run.temperature = 0.7;
    return run;
}

static weft_context *open_context(void) {
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    return context;
}

/* ---- the description ---- */

static void test_round_trip(void **state) {
    (void)state;
    weft_context *context = open_context();
    train_run run = sample_run(), back;
    char *text = NULL;
    assert_int_equal(train_run_format(context, &run, &text), WEFT_OK);
    assert_int_equal(train_run_parse(context, "run", text, strlen(text), &back), WEFT_OK);
    assert_true(train_run_alike(&run, &back));
    assert_string_equal(run.name, back.name);
    assert_int_equal(run.steps, back.steps);
    back.seed++;
    assert_false(train_run_alike(&run, &back));
    weft_release(context, text);
    weft_context_destroy(context);
}

/* Whatever may be written can be read, and is the same. */
static void test_written_and_read(void **state) {
    (void)state;
    weft_context *context = open_context();
    dice dice = {5};
    unsigned written = 0;
    enum { CASES = 2000 };
    for (unsigned i = 0; i < CASES; i++) {
        train_run run = sample_run(), back;
        char *text = NULL;
        const double numbers[] = {0, -1, 1, 0.5, 1e300, NAN, INFINITY};
        uint32_t *const counts[] = {&run.prompts,     &run.group,       &run.slots,       &run.staleness,
                                    &run.trainers,    &run.local_steps, &run.significant, &run.grid,
                                    &run.task.period, &run.task.steps};
        double *const reals[] = {&run.temperature, &run.outer_rate, &run.outer_momentum};
        run.overlap = dice_below(&dice, 4) == 0;
        run.outer = run.overlap ? TRAIN_DILOCO : run.outer;
        switch (dice_below(&dice, 5)) {
        case 0:
            *counts[dice_below(&dice, sizeof counts / sizeof *counts)] =
                (uint32_t)dice_next(&dice) >> dice_below(&dice, 32);
            break;
        case 1:
            *reals[dice_below(&dice, 3)] = numbers[dice_below(&dice, sizeof numbers / sizeof *numbers)];
            break;
        case 2:
            run.seed = dice_next(&dice) >> dice_below(&dice, 64);
            break;
        case 3:
            run.steps = dice_next(&dice) >> dice_below(&dice, 64);
            break;
        default:
            hostile_name(&dice, "0123456789abcdef", run.name,
                         dice_below(&dice, 2) == 0 ? sizeof run.name : 20);
        }
        weft_status status = train_run_format(context, &run, &text);
        if (status == WEFT_OK) {
            written++;
            assert_int_equal(train_run_parse(context, "run", text, strlen(text), &back), WEFT_OK);
            assert_true(train_run_alike(&run, &back));
            assert_string_equal(run.name, back.name);
            assert_int_equal(run.steps, back.steps);
            weft_release(context, text);
        } else {
            assert_int_equal(status, WEFT_INVALID_ARGUMENT);
            assert_true(weft_context_error(context)[0] != 0);
        }
    }
    assert_true(written > 0 && written < CASES);
    weft_context_destroy(context);
}

/* Without any one of its members, or with one that has another type, it is none. */
static void test_members(void **state) {
    (void)state;
    weft_context *context = open_context();
    train_run run = sample_run(), back;
    char *text = NULL;
    assert_int_equal(train_run_format(context, &run, &text), WEFT_OK);
    json_t *whole = json_loads(text, 0, NULL);
    const char *name;
    json_t *value;
    json_object_foreach(whole, name, value) {
        for (int i = 0; i < 2; i++) {
            json_t *other = json_deep_copy(whole);
            if (i == 0) {
                json_object_del(other, name);
            } else {
                json_object_set_new(other, name, json_true());
            }
            char *dumped = json_dumps(other, 0);
            assert_true(train_run_parse(context, "run", dumped, strlen(dumped), &back) < 0);
            assert_true(weft_context_error(context)[0] != 0);
            free(dumped);
            json_decref(other);
        }
    }
    json_object_set_new(whole, "weft", json_integer(2));
    char *dumped = json_dumps(whole, 0);
    assert_int_equal(train_run_parse(context, "run", dumped, strlen(dumped), &back), WEFT_WRONG_VERSION);
    free(dumped);
    json_decref(whole);
    for (size_t size = 0; size < strlen(text); size++) {
        assert_true(train_run_parse(context, "run", text, size, &back) < 0);
    }
    weft_release(context, text);
    weft_context_destroy(context);
}

static void test_options(void **state) {
    (void)state;
    weft_context *context = open_context();
    const train_options good = train_options_defaults();
    train_options bad[12];
    size_t count = sizeof bad / sizeof *bad;
    assert_int_equal(train_options_check(context, &good), WEFT_OK);
    for (size_t i = 0; i < count; i++) {
        bad[i] = good;
    }
    bad[0].run.slots = 5;
    bad[1].run.group = 1;
    bad[2].run.prompts = 1 << 15;
    bad[3].run.temperature = 0;
    bad[4].run.staleness = TRAIN_STALENESS_MAX + 1;
    bad[5].run.steps = 0;
    bad[6].run.config.context = 16;
    bad[7].run.config.vocabulary = 8;
    bad[8].grpo.updates = 0;
    bad[9].grpo.adam.rate = -1;
    bad[10].warmup.success = 2;
    bad[11].patience = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(train_options_check(context, &bad[i]), WEFT_INVALID_ARGUMENT);
        assert_true(weft_context_error(context)[0] != 0);
    }
    weft_context_destroy(context);
}

/* Slots cover the prompts of all batches, each once. */
static void test_slots(void **state) {
    (void)state;
    train_run run = sample_run();
    uint64_t next = 0;
    for (uint64_t batch = 0; batch < 3; batch++) {
        for (uint32_t slot = 0; slot < run.slots; slot++) {
            lm_rollout_options work = train_slot_rollout(&run, batch, slot);
            assert_int_equal(work.first, next);
            next += work.prompts;
        }
    }
    assert_int_equal(next, 3 * run.prompts);
}

/* ---- densities ---- */

static void test_densities(void **state) {
    (void)state;
    enum { VERSIONS = 40 };
    weft_context *context = open_context();
    train_run run = sample_run();
    lm_model *model = NULL;
    assert_int_equal(lm_model_create(context, &run.config, LM_WORKER, &model), WEFT_OK);
    size_t size = model->parameters;
    uint16_t *past = calloc(VERSIONS * size, sizeof *past);
    assert_non_null(past);
    train_density whole, small;
    assert_int_equal(train_density_open(&whole, model, UINT64_MAX), WEFT_OK);
    assert_int_equal(train_density_open(&small, model, 9 * size * sizeof *past), WEFT_OK);
    for (size_t v = 0; v < VERSIONS; v++) {
        for (size_t i = v; i < size; i += 17 + v) {
            model->live[i] ^= (uint16_t)(v % 3);
        }
        memcpy(past + v * size, model->live, size * sizeof *past);
        train_densities found = train_density_note(&whole);
        train_densities less = train_density_note(&small);
        for (size_t k = 0; k < TRAIN_SPANS; k++) {
            size_t changed = 0;
            for (size_t i = 0; v >= train_spans[k] && i < size; i++) {
                changed += past[(v - train_spans[k]) * size + i] != model->live[i];
            }
            double expected = v >= train_spans[k] ? (double)changed / (double)size : -1;
            assert_true(found.share[k] == expected);
            assert_true(less.share[k] == (k < 2 ? expected : -1));
            assert_true(k > 0 || v == 0 || found.changed == changed);
        }
        size_t sum = 0;
        for (size_t i = 0; i < model->weight_count; i++) {
            sum += found.tensors[i];
        }
        assert_int_equal(sum, found.changed);
    }
    free(past);
    train_density_close(&small);
    train_density_close(&whole);
    lm_model_destroy(model);
    weft_context_destroy(context);
}

/* ---- metrics ---- */

static void ignore(void *opaque, const char *text) {
    (void)opaque;
    (void)text;
}

/* A line that no buffer has room for at once. */
static json_t *make_long_line(uint64_t step) {
    enum { LENGTH = 3 << 20 };
    char *text = malloc(LENGTH + 1);
    assert_non_null(text);
    memset(text, 'x', LENGTH);
    text[LENGTH] = 0;
    json_t *line = json_pack("{s:I, s:{}, s:s}", "step", (json_int_t)step, "seconds", "long", text);
    free(text);
    assert_non_null(line);
    return line;
}

static json_t *make_line(uint64_t step) {
    return json_pack("{s:I, s:f, s:{s:f}, s:{}}", "step", (json_int_t)step, "reward", 0.5, "seconds",
                     "wait", 1.0, "tensors");
}

static void add_line(train_metrics *metrics, uint64_t step) {
    json_t *line = make_line(step);
    const train_published published = {.version = step + 2, .sent = 100, .dense = 1000};
    train_line_finish(line, &published);
    assert_int_equal(train_metrics_add(metrics, line), WEFT_OK);
    json_decref(line);
}

static size_t count_lines(scratch *scratch) {
    size_t size = 0, lines = 0;
    char *text = scratch_read(scratch, "metrics.jsonl", &size);
    for (size_t i = 0; i < size; i++) {
        lines += text[i] == '\n';
    }
    assert_true(size == 0 || text[size - 1] == '\n');
    free(text);
    return lines;
}

static void test_metrics(void **state) {
    (void)state;
    weft_context *context = open_context();
    scratch scratch;
    scratch_open(&scratch);
    const train_watch watch = {.note = ignore, .warn = ignore};
    train_run run = sample_run();
    weft_store *store = NULL;
    train_metrics metrics;
    assert_int_equal(weft_store_open(context, scratch_path(&scratch, "store"), NULL, &store), WEFT_OK);
    assert_int_equal(train_metrics_open(&metrics, context, store, &watch, &run, scratch.directory, 0),
                     WEFT_OK);
    for (uint64_t step = 0; step < 600; step++) {
        add_line(&metrics, step);
    }
    json_t *pending = make_line(600);
    assert_int_equal(train_metrics_pend(&metrics, pending), WEFT_OK);
    json_decref(pending);
    train_metrics_put(&metrics, true);
    assert_int_equal(json_array_size(metrics.lines), 512);
    assert_null(json_object_get(json_array_get(metrics.lines, 400), "tensors"));
    assert_non_null(json_object_get(json_array_get(metrics.lines, 511), "tensors"));
    train_metrics_close(&metrics);
    assert_true(scratch_exists(&scratch, "store/train/metrics"));

    /* killed while it wrote a line, after 601 steps were saved */
    FILE *file = fopen(scratch_path(&scratch, "metrics.jsonl"), "a");
    assert_non_null(file);
    fputs("{\"step\":600,\"rew", file);
    fclose(file);
    assert_int_equal(train_metrics_open(&metrics, context, store, &watch, &run, scratch.directory, 601),
                     WEFT_OK);
    assert_int_equal(metrics.next, 600);
    assert_null(train_metrics_pending(&metrics, 599));
    pending = train_metrics_pending(&metrics, 600);
    assert_non_null(pending);
    json_decref(pending);
    add_line(&metrics, 600);
    assert_null(train_metrics_pending(&metrics, 600));
    train_metrics_close(&metrics);
    assert_int_equal(count_lines(&scratch), 601);

    /* gone back to an older state: its later steps are made again */
    assert_int_equal(train_metrics_open(&metrics, context, store, &watch, &run, scratch.directory, 10),
                     WEFT_OK);
    assert_int_equal(metrics.next, 10);
    train_metrics_close(&metrics);
    assert_int_equal(count_lines(&scratch), 10);

    /* lines that are long, in the file and beside it */
    assert_int_equal(train_metrics_open(&metrics, context, store, &watch, &run, scratch.directory, 10),
                     WEFT_OK);
    json_t *line = make_long_line(10);
    assert_int_equal(train_metrics_add(&metrics, line), WEFT_OK);
    json_decref(line);
    add_line(&metrics, 11);
    pending = make_long_line(12);
    assert_int_equal(train_metrics_pend(&metrics, pending), WEFT_OK);
    json_decref(pending);
    train_metrics_close(&metrics);
    assert_int_equal(train_metrics_open(&metrics, context, store, &watch, &run, scratch.directory, 12),
                     WEFT_OK);
    assert_int_equal(metrics.next, 12);
    pending = train_metrics_pending(&metrics, 12);
    assert_non_null(pending);
    json_decref(pending);
    train_metrics_close(&metrics);
    assert_int_equal(count_lines(&scratch), 12);
    weft_store_close(store);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* A step that went wrong is told of: what is no number is null. */
static void test_no_numbers(void **state) {
    (void)state;
    weft_context *context = open_context();
    train_run run = sample_run();
    lm_model *model = NULL;
    size_t starts[1] = {0};
    train_batch batch = {.starts = starts};
    assert_int_equal(lm_model_create(context, &run.config, LM_WORKER, &model), WEFT_OK);
    const train_learned learned = {
        .result = {.loss = NAN, .norm = INFINITY, .reward = 0.5},
        .success = -1,
        .densities = train_densities_unknown(),
        .model = model,
        .batch = &batch,
        .run = &run,
    };
    json_t *line = train_line_begin(&learned);
    assert_non_null(line);
    assert_true(json_is_null(json_object_get(line, "loss")));
    assert_true(json_is_null(json_object_get(line, "norm")));
    assert_true(json_real_value(json_object_get(line, "reward")) == 0.5);
    const train_round round = {.residual = NAN, .gate = 1};
    train_line_round(line, "round", &run, &round);
    assert_true(json_is_null(json_object_get(json_object_get(line, "round"), "residual")));
    json_decref(line);
    lm_model_destroy(model);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_written_and_read),
        cmocka_unit_test(test_members),    cmocka_unit_test(test_options),
        cmocka_unit_test(test_slots),      cmocka_unit_test(test_densities),
        cmocka_unit_test(test_metrics),    cmocka_unit_test(test_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
