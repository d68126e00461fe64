/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a rank: what was saved and loaded goes on as if nothing had happened, to the bit; what is
 * not the state of this rank is refused, and leaves it as it was; and no failed allocation leaks or
 * corrupts.
 */
#include "faults.h"
#include "loco_ranks.h"
#include "models.h"
#include "scratch.h"
#include "stride.h"

#include "../../lib/loco/included.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2 };

static weft_loco_options options_of(uint32_t rank) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "states";
    options.ranks = RANKS;
    options.rank = rank;
    options.significant = 8;
    return options;
}

static void open_ranks(loco_rank *ranks) {
    for (uint32_t i = 0; i < RANKS; i++) {
        weft_loco_options options = options_of(i);
        loco_rank_open(&ranks[i], &options, 2);
    }
}

static void close_ranks(loco_rank *ranks) {
    for (uint32_t i = 0; i < RANKS; i++) {
        loco_rank_close(&ranks[i]);
    }
}

static void train(loco_rank *ranks, uint64_t round) {
    for (uint32_t i = 0; i < RANKS; i++) {
        loco_rank_train(&ranks[i], 10 * round + i);
    }
}

static void end_round(loco_rank *ranks) {
    weft_loco_payload payloads[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(weft_loco_encode(ranks[i].loco, &payloads[i]), WEFT_OK);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(weft_loco_aggregate(ranks[i].loco, payloads, RANKS, NULL), WEFT_OK);
    }
}

static void assert_same(const loco_rank *a, const loco_rank *b) {
    for (uint32_t i = 0; i < RANKS; i++) {
        weft_digest left = weft_loco_digest(a[i].loco);
        weft_digest right = weft_loco_digest(b[i].loco);
        assert_true(weft_digest_equal(&left, &right));
        assert_int_equal(weft_loco_rounds(a[i].loco), weft_loco_rounds(b[i].loco));
        assert_true(weft_loco_residual_energy(a[i].loco) == weft_loco_residual_energy(b[i].loco));
        assert_memory_equal(a[i].weights, b[i].weights, a[i].elements * sizeof *a[i].weights);
    }
}

static void note_label(void *opaque, const char *key, const char *value) {
    char *text = opaque;
    size_t length = strlen(text);
    snprintf(text + length, 100 - length, "%s=%s;", key, value == NULL ? "none" : value);
}

/* Saved between two rounds, and in the middle of one. */
static void test_resume(void **state) {
    (void)state;
    for (int middle = 0; middle < 2; middle++) {
        loco_rank whole[RANKS], resumed[RANKS];
        scratch scratch;
        weft_table *extra = NULL;
        float moments[3] = {1, 2, 3};
        scratch_open(&scratch);
        open_ranks(whole);
        open_ranks(resumed);
        assert_int_equal(weft_table_create(whole[0].context, &extra), WEFT_OK);
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = "moments",
                              .dtype = WEFT_DTYPE_F32,
                              .rank = 1,
                              .shape = {3},
                              .data = moments};
        assert_int_equal(weft_table_add(extra, &tensor), WEFT_OK);
        for (uint64_t round = 0; round < 2; round++) {
            train(whole, round);
            end_round(whole);
        }
        if (middle) {
            train(whole, 2);
        }
        for (uint32_t i = 0; i < RANKS; i++) {
            const char *labels[] = {"random", "42 17", "step", "16", NULL};
            const char *path = scratch_path(&scratch, i == 0 ? "rank-0" : "rank-1");
            assert_int_equal(weft_loco_save(whole[i].loco, path, extra, labels, false), WEFT_OK);
        }
        memset(moments, 0, sizeof moments);
        for (uint32_t i = 0; i < RANKS; i++) {
            const char *keys[] = {"step", "random", "other", NULL};
            char labels[100] = "";
            const char *path = scratch_path(&scratch, i == 0 ? "rank-0" : "rank-1");
            if (weft_loco_load(resumed[i].loco, path, extra, keys, note_label, labels) != WEFT_OK) {
                fail_msg("%s", weft_context_error(resumed[i].context));
            }
            assert_string_equal(labels, "step=16;random=42 17;other=none;");
            assert_true(moments[0] == 1 && moments[1] == 2 && moments[2] == 3);
        }
        assert_same(whole, resumed);
        for (uint64_t round = 2; round < 4; round++) {
            if (round > 2 || !middle) {
                train(whole, round);
                train(resumed, round);
            }
            end_round(whole);
            end_round(resumed);
            assert_same(whole, resumed);
        }
        weft_table_destroy(extra);
        close_ranks(whole);
        close_ranks(resumed);
        scratch_close(&scratch);
    }
}

static void refuse(loco_rank *rank, const char *path, weft_status expected, const char *words) {
    weft_digest before = weft_loco_digest(rank->loco);
    weft_status status = weft_loco_load(rank->loco, path, NULL, NULL, NULL, NULL);
    weft_digest after = weft_loco_digest(rank->loco);
    assert_int_equal(status, expected);
    assert_non_null(strstr(weft_context_error(rank->context), words));
    assert_true(weft_digest_equal(&before, &after));
}

static void test_refused(void **state) {
    (void)state;
    loco_rank ranks[RANKS], other;
    scratch scratch;
    scratch_open(&scratch);
    open_ranks(ranks);
    train(ranks, 0);
    end_round(ranks);
    const char *path = scratch_path(&scratch, "rank-0");
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, NULL, false), WEFT_OK);
    refuse(&ranks[1], path, WEFT_BASE_MISMATCH, "another rank or configuration");
    weft_loco_options options = options_of(0);
    options.run = "elsewhere";
    loco_rank_open(&other, &options, 1);
    refuse(&other, path, WEFT_BASE_MISMATCH, "of run 'states'");
    loco_rank_close(&other);
    options = options_of(0);
    options.momentum = 0;
    loco_rank_open(&other, &options, 1);
    refuse(&other, path, WEFT_BASE_MISMATCH, "another rank or configuration");
    loco_rank_close(&other);
    options = options_of(0);
    options.significant = 0;
    options.open = options.raw = options.average = true;
    options.rate = 1;
    options.momentum = 0;
    const char *averages = scratch_path(&scratch, "averages");
    loco_rank_open(&other, &options, 1);
    assert_int_equal(weft_loco_save(other.loco, averages, NULL, NULL, false), WEFT_OK);
    loco_rank_close(&other);
    options.average = false;
    loco_rank_open(&other, &options, 1);
    refuse(&other, averages, WEFT_BASE_MISMATCH, "another rank or configuration");
    loco_rank_close(&other);
    size_t size = 0;
    uint8_t *file = scratch_read(&scratch, "rank-0", &size);
    file[size / 2] ^= 4;
    scratch_write(&scratch, "damaged", file, size);
    refuse(&ranks[0], scratch_path(&scratch, "damaged"), WEFT_DIGEST_MISMATCH, "damaged");
    free(file);
    weft_loco_payload payload;
    assert_int_equal(weft_loco_encode(ranks[0].loco, &payload), WEFT_OK);
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, NULL, false), WEFT_BUSY);
    close_ranks(ranks);
    scratch_close(&scratch);
}

/* Where a text begins that must be there. */
static size_t place_of(const void *bytes, size_t size, const void *text, size_t length) {
    const char *at = bytes;
    for (size_t i = 0; i + length <= size; i++) {
        if (memcmp(at + i, text, length) == 0) {
            return i;
        }
    }
    fail_msg("the text is not there");
    return 0;
}

/* All that a state tells is under its digest, and not only weights. */
static void test_texts_damaged(void **state) {
    (void)state;
    const char *const texts[] = {"42 17", "random", "rounds", "configuration", "rank 0 of 2", "states"};
    const char *labels[] = {"random", "42 17", NULL};
    loco_rank ranks[RANKS];
    scratch scratch;
    size_t size = 0;
    scratch_open(&scratch);
    open_ranks(ranks);
    train(ranks, 0);
    end_round(ranks);
    const char *path = scratch_path(&scratch, "whole");
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, labels, false), WEFT_OK);
    uint8_t *file = scratch_read(&scratch, "whole", &size);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t place = place_of(file, size, texts[i], strlen(texts[i])) + strlen(texts[i]) - 1;
        file[place] ^= 1;
        scratch_write(&scratch, "damaged", file, size);
        refuse(&ranks[0], scratch_path(&scratch, "damaged"), WEFT_DIGEST_MISMATCH, "damaged");
        file[place] ^= 1;
    }
    size_t digit = place_of(file, size, "rounds\0001", 8) + 7;
    file[digit] = '9';
    scratch_write(&scratch, "damaged", file, size);
    refuse(&ranks[0], scratch_path(&scratch, "damaged"), WEFT_DIGEST_MISMATCH, "damaged");
    free(file);
    close_ranks(ranks);
    scratch_close(&scratch);
}

static weft_status write_sealed(weft_context *context, const weft_table *table, const char *path) {
    weft_view *view = NULL;
    weft_sums *sums = NULL;
    char text[WEFT_DIGEST_TEXT];
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest digest = weft_sums_digest(sums);
    weft_digest_format(&digest, text);
    const char *const metadata[] = {"weft_loco_digest", text, NULL};
    weft_status status =
        weft_table_write(context, table, path,
                         &(weft_write_options){.size = sizeof(weft_write_options), .metadata = metadata});
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    return status;
}

/* Writes the state `from` again with other bytes for a tensor, under a digest that holds. */
static void forge(weft_context *context, const char *from, const char *to, const char *name,
                  const void *bytes, size_t size) {
    weft_checkpoint *file = NULL;
    weft_table *table = NULL;
    assert_int_equal(weft_checkpoint_open(context, from, WEFT_OPEN_READ, &file), WEFT_OK);
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    const weft_table *found = weft_checkpoint_table(file);
    for (size_t i = 0; i < weft_table_count(found); i++) {
        weft_tensor tensor = *weft_table_at(found, i);
        if (strcmp(tensor.name, name) == 0) {
            tensor = (weft_tensor){.size = sizeof(weft_tensor),
                                   .name = name,
                                   .dtype = WEFT_DTYPE_U8,
                                   .rank = 1,
                                   .shape = {size},
                                   .data = (void *)(uintptr_t)bytes};
        }
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    }
    assert_int_equal(write_sealed(context, table, to), WEFT_OK);
    weft_table_destroy(table);
    weft_checkpoint_close(file);
}

/* Numbers are read strictly, and texts that are cut are none. */
static void test_texts_forged(void **state) {
    (void)state;
    const char *const rounds[] = {"-1", " 1", "+1", "01", "1 ", "1x", "", "18446744073709551616"};
    loco_rank ranks[RANKS];
    scratch scratch;
    char texts[200];
    scratch_open(&scratch);
    open_ranks(ranks);
    const char *path = scratch_path(&scratch, "whole");
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, NULL, false), WEFT_OK);
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        int size = snprintf(texts, sizeof texts, "run%cstates%cconfiguration%cany%crounds%c%s", 0, 0, 0, 0,
                            0, rounds[i]);
        const char *forged = scratch_path(&scratch, "forged");
        forge(ranks[0].context, path, forged, "about", texts, (size_t)size + 1);
        refuse(&ranks[0], forged, WEFT_MALFORMED, "round or configuration");
        forge(ranks[0].context, path, forged, "about", texts, (size_t)size - strlen(rounds[i]));
        refuse(&ranks[0], forged, WEFT_MALFORMED, "does not tell what it is a state of");
    }
    forge(ranks[0].context, path, scratch_path(&scratch, "forged"), "about", texts, 0);
    refuse(&ranks[0], scratch_path(&scratch, "forged"), WEFT_MALFORMED, "does not tell");
    const char *twice[] = {"a", "1", "a", "2", NULL}, *odd[] = {"a", NULL};
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, twice, false), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, odd, false), WEFT_INVALID_ARGUMENT);
    close_ranks(ranks);
    scratch_close(&scratch);
}

/* A round in which nobody was, one that has not been, and a number of ranks that is not ours. */
static void test_included_forged(void **state) {
    (void)state;
    const weft_loco_included included[][RANKS] = {
        {{0}, {0}}, {{1, {1}}, {2, {1}}}, {{1, {1}}, {0, {1}}}, {{1, {1}}, {0}}};
    loco_rank ranks[RANKS];
    scratch scratch;
    scratch_open(&scratch);
    open_ranks(ranks);
    train(ranks, 0);
    end_round(ranks);
    const char *path = scratch_path(&scratch, "whole");
    const char *forged = scratch_path(&scratch, "forged");
    weft_loco *loco = ranks[0].loco;
    assert_int_equal(weft_loco_save(loco, path, NULL, NULL, false), WEFT_OK);
    for (size_t i = 0; i < 3; i++) {
        forge(ranks[0].context, path, forged, "included", included[i], sizeof included[i]);
        refuse(&ranks[0], forged, WEFT_MALFORMED, "rounds that cannot have been");
    }
    forge(ranks[0].context, path, forged, "included", included[3], sizeof included[3] / 2);
    refuse(&ranks[0], forged, WEFT_BASE_MISMATCH, "tensor 'included'");
    forge(ranks[0].context, path, forged, "included", included[3], sizeof included[3]);
    assert_int_equal(weft_loco_load(loco, forged, NULL, NULL, NULL, NULL), WEFT_OK);
    assert_memory_equal(loco->included, included[3], sizeof included[3]);
    close_ranks(ranks);
    scratch_close(&scratch);
}

/* ---- failures ---- */

/* Training that broke is named, and ends the rank until a state is loaded. */
static void test_broken(void **state) {
    (void)state;
    loco_rank ranks[RANKS];
    scratch scratch;
    weft_loco_payload payload;
    scratch_open(&scratch);
    open_ranks(ranks);
    const char *path = scratch_path(&scratch, "state");
    assert_int_equal(weft_loco_save(ranks[0].loco, path, NULL, NULL, false), WEFT_OK);
    ranks[0].tensors[1].data[123456] = __builtin_nanf("");
    assert_int_equal(weft_loco_encode(ranks[0].loco, &payload), WEFT_INVALID_ARGUMENT);
    assert_non_null(
        strstr(weft_context_error(ranks[0].context), "tensor 'layers.0.weight' at element 123456"));
    assert_int_equal(weft_loco_encode(ranks[0].loco, &payload), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(ranks[0].context), "between two rounds"));
    assert_int_equal(weft_loco_load(ranks[0].loco, path, NULL, NULL, NULL, NULL), WEFT_OK);
    train(ranks, 0);
    end_round(ranks);
    close_ranks(ranks);
    scratch_close(&scratch);
}

/* Weights that are no numbers are refused at once, and named; averages begin with none. */
static void test_not_finite(void **state) {
    (void)state;
    const float broken[] = {__builtin_nanf(""), __builtin_inff(), -__builtin_inff()};
    float weights[8] = {0};
    weft_loco_tensor tensors[] = {{"b", weights, 5}, {"none", weights, 0}, {"a", weights + 5, 3}};
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    weft_loco *loco = NULL;
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        for (size_t at = 0; at < 8; at++) {
            char words[64];
            snprintf(words, sizeof words, "tensor '%s' at element %zu is not finite", at < 5 ? "b" : "a",
                     at % 5);
            weights[at] = broken[i];
            assert_int_equal(weft_loco_create(context, &options, tensors, 3, &loco), WEFT_INVALID_ARGUMENT);
            assert_non_null(strstr(weft_context_error(context), words));
            assert_null(loco);
            weights[at] = 0;
        }
    }
    weights[3] = __FLT_MAX__;
    assert_int_equal(weft_loco_create(context, &options, tensors, 3, &loco), WEFT_OK);
    weft_loco_destroy(loco);
    weights[3] = broken[0];
    options.open = options.raw = options.average = true;
    options.rate = 1;
    options.momentum = 0;
    assert_int_equal(weft_loco_create(context, &options, tensors, 3, &loco), WEFT_OK);
    weft_loco_destroy(loco);
    weft_context_destroy(context);
}

static weft_status whole_life(weft_context *context, const char *path, float *weights, size_t count) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    weft_loco_tensor tensors[2] = {{"b", weights, count / 2},
                                   {"a", weights + count / 2, count - count / 2}};
    weft_loco *loco = NULL;
    weft_loco_payload payload;
    weft_status status = weft_loco_create(context, &options, tensors, 2, &loco);
    for (int round = 0; round < 2 && status == WEFT_OK; round++) {
        for (size_t i = 0; i < count; i++) {
            weights[i] += (float)(i % 7) * 1e-4f;
        }
        status = weft_loco_encode(loco, &payload);
        if (status == WEFT_OK) {
            status = weft_loco_aggregate(loco, &payload, 1, NULL);
        }
    }
    if (status == WEFT_OK) {
        const char *labels[] = {"key", "value", NULL};
        status = weft_loco_save(loco, path, NULL, labels, false);
    }
    if (status == WEFT_OK) {
        const char *keys[] = {"key", "other", NULL};
        char noted[100] = "";
        weights[0] = 3;
        status = weft_loco_load(loco, path, NULL, keys, note_label, noted);
        /* nothing has changed, or the object knows that it is broken */
        assert_true(status == WEFT_OK || weights[0] == 3 ||
                    weft_loco_save(loco, path, NULL, NULL, false) == WEFT_INVALID_ARGUMENT);
    }
    weft_loco_destroy(loco);
    return status;
}

static void test_allocations(void **state) {
    (void)state;
    enum { COUNT = 5000 };
    float weights[COUNT];
    faults faults = {0};
    scratch scratch;
    scratch_open(&scratch);
    for (size_t n = test_stride_first();; n += test_stride()) {
        weft_context *context = NULL;
        for (size_t i = 0; i < COUNT; i++) {
            weights[i] = 0.01f + 1e-5f * (float)i;
        }
        faults_reset(&faults, n);
        const weft_context_options options = {
            .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
        weft_status status = weft_context_create(&options, &context);
        if (status == WEFT_OK) {
            status = whole_life(context, scratch_path(&scratch, "state"), weights, COUNT);
            weft_context_destroy(context);
        }
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            assert_int_equal(status, WEFT_OK);
            assert_true(n > 30);
            break;
        }
        assert_true(status != WEFT_OK);
    }
    scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_texts_damaged),   cmocka_unit_test(test_texts_forged),
        cmocka_unit_test(test_included_forged), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_not_finite),      cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
