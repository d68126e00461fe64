/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads: the same bytes with any number of threads, sizes within the bounds that the coding promises,
 * and refusal of all that is damaged, cut, or meant for another run, round, rank, consensus or
 * configuration. What is refused leaves the rank as it was: the right payload still ends the round.
 */
#include "../../lib/loco/loco.h"
#include "loco_ranks.h"
#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static weft_loco_options options_of(uint32_t rank) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "payloads";
    options.ranks = 2;
    options.rank = rank;
    return options;
}

static weft_loco_payload encode(loco_rank *rank) {
    weft_loco_payload payload;
    if (weft_loco_encode(rank->loco, &payload) != WEFT_OK) {
        fail_msg("%s", weft_context_error(rank->context));
    }
    return payload;
}

static void test_threads(void **state) {
    (void)state;
    const uint32_t significant[] = {0, 8, 8};
    for (unsigned kind = 0; kind < 3; kind++) {
        loco_rank ranks[3];
        weft_loco_payload payloads[3];
        for (unsigned i = 0; i < 3; i++) {
            weft_loco_options options = options_of(0);
            options.significant = significant[kind];
            options.open = kind == 2;
            loco_rank_open(&ranks[i], &options, 1 + i);
            loco_rank_train(&ranks[i], 5);
            payloads[i] = encode(&ranks[i]);
            assert_int_equal(payloads[i].size, payloads[0].size);
            assert_memory_equal(payloads[i].data, payloads[0].data, payloads[0].size);
            weft_loco_payload again = encode(&ranks[i]);
            assert_ptr_equal(again.data, payloads[i].data);
        }
        weft_loco_info info = {.size = sizeof info};
        assert_int_equal(weft_loco_inspect(ranks[0].context, &payloads[0], &info), WEFT_OK);
        assert_string_equal(info.run, "payloads");
        assert_int_equal(info.ranks, 2);
        assert_int_equal(info.elements, ranks[0].elements);
        assert_int_equal(info.blocks, 2);
        assert_int_equal(info.significant, significant[kind]);
        assert_true(info.open == (kind == 2));
        for (unsigned i = 0; i < 3; i++) {
            loco_rank_close(&ranks[i]);
        }
    }
}

/* Normal weights and small steps, of which about one in 25 is visible: the sizes that are promised. */
static void test_size(void **state) {
    (void)state;
    enum { COUNT = 1 << 20 };
    const struct {
        uint32_t significant;
        double most;
    } cases[] = {{0, 3.0}, {8, 1.9}};
    float *weights = malloc(COUNT * sizeof *weights);
    assert_non_null(weights);
    for (unsigned c = 0; c < 2; c++) {
        weft_context *context = NULL;
        weft_loco *loco = NULL;
        weft_loco_payload payload;
        weft_loco_info info = {.size = sizeof info};
        weft_loco_options options = {.size = sizeof options};
        weft_loco_defaults(&options);
        weft_loco_tensor tensor = {"weights", weights, COUNT};
        dice dice = {31};
        options.significant = cases[c].significant;
        for (size_t i = 0; i < COUNT; i++) {
            float sum = 0;
            for (int j = 0; j < 6; j++) {
                sum += (float)dice_below(&dice, 1 << 20) * 0x1p-20f - 0.5f;
            }
            weights[i] = 0.03f * sum;
        }
        assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
        assert_int_equal(weft_loco_create(context, &options, &tensor, 1, &loco), WEFT_OK);
        for (size_t i = 0; i < COUNT; i++) {
            for (int step = 0; step < 8; step++) {
                weights[i] += ((float)dice_below(&dice, 1 << 20) * 0x1p-20f - 0.5f) * 2e-6f;
            }
        }
        assert_int_equal(weft_loco_encode(loco, &payload), WEFT_OK);
        assert_int_equal(weft_loco_inspect(context, &payload, &info), WEFT_OK);
        double density = (double)info.fired / COUNT;
        double bytes = (double)payload.size / (double)info.fired;
        assert_true(density > 0.02 && density < 0.06);
        if (bytes > cases[c].most) {
            fail_msg("%.3f bytes per fired weight with %u bits", bytes, cases[c].significant);
        }
        weft_loco_destroy(loco);
        weft_context_destroy(context);
    }
    free(weights);
}

/* ---- what is refused ---- */

/* Two ranks that have encoded their first round. */
typedef struct pair {
    loco_rank ranks[2];
    weft_loco_payload payloads[2];
    uint8_t *copy; /* of the payload of rank 1, to be damaged */
} pair;

static void open_pair(pair *p) {
    for (uint32_t i = 0; i < 2; i++) {
        weft_loco_options options = options_of(i);
        loco_rank_open(&p->ranks[i], &options, 2);
        loco_rank_train(&p->ranks[i], i);
        p->payloads[i] = encode(&p->ranks[i]);
    }
    p->copy = malloc(p->payloads[1].size);
    assert_non_null(p->copy);
    memcpy(p->copy, p->payloads[1].data, p->payloads[1].size);
}

static void close_pair(pair *p) {
    loco_rank_close(&p->ranks[0]);
    loco_rank_close(&p->ranks[1]);
    free(p->copy);
}

static weft_status give(pair *p, const void *data, size_t size) {
    weft_loco_payload payloads[2] = {p->payloads[0], {data, size}};
    return weft_loco_aggregate(p->ranks[0].loco, payloads, 2, NULL);
}

/* After all refusals the round ends as if there had been none. */
static void end_pair(pair *p) {
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(weft_loco_rounds(p->ranks[i].loco), 0);
        assert_int_equal(weft_loco_aggregate(p->ranks[i].loco, p->payloads, 2, NULL), WEFT_OK);
    }
    assert_memory_equal(p->ranks[0].weights, p->ranks[1].weights,
                        p->ranks[0].elements * sizeof *p->ranks[0].weights);
}

static void test_damage(void **state) {
    (void)state;
    pair p;
    open_pair(&p);
    size_t size = p.payloads[1].size;
    for (size_t i = 0; i < size; i += i < 120 || i + 40 > size ? 1 : 4999) {
        p.copy[i] ^= (uint8_t)(1u << (i % 8));
        weft_status status = give(&p, p.copy, size);
        assert_true(weft_status_is_integrity(status));
        assert_true(strlen(weft_context_error(p.ranks[0].context)) > 0);
        p.copy[i] ^= (uint8_t)(1u << (i % 8));
    }
    end_pair(&p);
    close_pair(&p);
}

static void test_cut_short(void **state) {
    (void)state;
    pair p;
    open_pair(&p);
    size_t size = p.payloads[1].size;
    for (size_t left = 0; left < size; left += left < 120 || left + 40 > size ? 1 : 7919) {
        uint8_t *part = malloc(left > 0 ? left : 1);
        assert_non_null(part);
        memcpy(part, p.copy, left);
        assert_true(weft_status_is_integrity(give(&p, part, left)));
        free(part);
    }
    uint8_t *longer = malloc(size + 1);
    assert_non_null(longer);
    memcpy(longer, p.copy, size);
    longer[size] = 0;
    assert_int_equal(give(&p, longer, size + 1), WEFT_MALFORMED);
    free(longer);
    end_pair(&p);
    close_pair(&p);
}

/* What a rank with other options sends is refused with `status` and `words`. */
static void refuse_other(pair *p, const weft_loco_options *options, weft_status status, const char *words) {
    loco_rank other;
    loco_rank_open(&other, options, 1);
    loco_rank_train(&other, 1);
    weft_loco_payload payload = encode(&other);
    assert_int_equal(give(p, payload.data, payload.size), status);
    assert_non_null(strstr(weft_context_error(p->ranks[0].context), words));
    loco_rank_close(&other);
}

static void test_others(void **state) {
    (void)state;
    pair p;
    open_pair(&p);
    weft_loco_options options = options_of(1);
    options.run = "another";
    refuse_other(&p, &options, WEFT_BASE_MISMATCH, "run 'another'");
    options = options_of(0);
    refuse_other(&p, &options, WEFT_BASE_MISMATCH, "rank 0 of 2");
    options = options_of(1);
    options.ranks = 3;
    refuse_other(&p, &options, WEFT_BASE_MISMATCH, "rank 1 of 3");
    options = options_of(1);
    options.rate = 0.5f;
    refuse_other(&p, &options, WEFT_INVALID_ARGUMENT, "another configuration");
    options = options_of(1);
    options.significant = 8;
    refuse_other(&p, &options, WEFT_INVALID_ARGUMENT, "another configuration");
    options = options_of(1);
    options.open = true;
    refuse_other(&p, &options, WEFT_INVALID_ARGUMENT, "another configuration");
    /* what lies in the place of this rank is of this rank */
    weft_loco_payload swapped[2] = {{p.copy, p.payloads[1].size}, p.payloads[1]};
    assert_int_equal(weft_loco_aggregate(p.ranks[0].loco, swapped, 2, NULL), WEFT_BASE_MISMATCH);
    weft_loco_payload nobody[2] = {{NULL, 0}, {NULL, 0}};
    assert_int_equal(weft_loco_aggregate(p.ranks[0].loco, nobody, 2, NULL), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_loco_aggregate(p.ranks[0].loco, p.payloads, 1, NULL), WEFT_INVALID_ARGUMENT);
    end_pair(&p);
    assert_int_equal(weft_loco_aggregate(p.ranks[0].loco, p.payloads, 2, NULL), WEFT_INVALID_ARGUMENT);
    /* the payload of the round before */
    p.payloads[0] = encode(&p.ranks[0]);
    assert_int_equal(give(&p, p.copy, p.payloads[1].size), WEFT_BASE_MISMATCH);
    assert_non_null(strstr(weft_context_error(p.ranks[0].context), "round 0"));
    close_pair(&p);
}

/* Ranks that have come apart stop, and say so. */
static void test_apart(void **state) {
    (void)state;
    pair p;
    open_pair(&p);
    end_pair(&p);
    p.ranks[1].loco->consensus[12345] += 1e-3f;
    assert_int_equal(weft_loco_move_digest(p.ranks[1].loco), WEFT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        p.payloads[i] = encode(&p.ranks[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(weft_loco_aggregate(p.ranks[i].loco, p.payloads, 2, NULL), WEFT_BASE_MISMATCH);
        assert_non_null(strstr(weft_context_error(p.ranks[i].context), "come apart"));
    }
    close_pair(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_size),   cmocka_unit_test(test_damage),
        cmocka_unit_test(test_cut_short), cmocka_unit_test(test_others), cmocka_unit_test(test_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
