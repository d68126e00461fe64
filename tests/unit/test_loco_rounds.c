/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole rounds between ranks that are threads of this process, against a reference that knows neither gate
 * kernels nor payloads: consensus, weights and digest of every rank must be its bits. With an open gate the
 * reference is DiLoCo.
 */
#include "loco_ranks.h"
#include "models.h"
#include "stride.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the reference ---- */

typedef struct reference {
    const weft_loco_options *options;
    size_t elements;
    float *consensus;
    float *momentum;
    float *gradient;
    float *residuals[LOCO_RANKS];
} reference;

static float *new_floats(size_t count) {
    float *floats = calloc(count, sizeof *floats);
    assert_non_null(floats);
    return floats;
}

static void reference_open(reference *r, const weft_loco_options *options, const loco_rank *rank) {
    *r = (reference){.options = options, .elements = rank->elements};
    r->consensus = new_floats(r->elements);
    r->momentum = new_floats(r->elements);
    r->gradient = new_floats(r->elements);
    for (uint32_t i = 0; i < options->ranks; i++) {
        r->residuals[i] = new_floats(r->elements);
    }
    memcpy(r->consensus, rank->weights, r->elements * sizeof *r->consensus);
}

static void reference_close(reference *r) {
    free(r->consensus);
    free(r->momentum);
    free(r->gradient);
    for (uint32_t i = 0; i < r->options->ranks; i++) {
        free(r->residuals[i]);
    }
}

static float cut(float value, uint32_t significant) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= significant == 0 ? UINT32_MAX : UINT32_MAX << (24 - significant);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* What is sent of s, if the rank is included. */
static float reference_choose(const weft_loco_options *options, float consensus, float s) {
    float next = consensus - s;
    uint16_t before, after;
    weft_bf16_from_f32(&consensus, &before, 1);
    weft_bf16_from_f32(&next, &after, 1);
    if (options->grid != 0) {
        float whole = (float)loco_on_grid((double)s, consensus, options->grid);
        return cut(whole, options->significant != 0 ? options->significant : 3);
    }
    return options->open || before != after ? cut(s, options->significant) : 0;
}

/* Adds what a rank sends to the gradient. */
static void reference_send(reference *r, uint32_t rank, const float *local, bool included) {
    for (size_t i = 0; i < r->elements; i++) {
        float s = r->residuals[rank][i] + (r->consensus[i] - local[i]);
        float sent = included ? reference_choose(r->options, r->consensus[i], s) : 0;
        r->gradient[i] += sent;
        r->residuals[rank][i] = s - sent;
    }
}

static void reference_move(reference *r, uint32_t included) {
    float mu = r->options->momentum;
    for (size_t i = 0; i < r->elements; i++) {
        float gradient = r->gradient[i] / (float)included;
        r->momentum[i] = mu * r->momentum[i] + gradient;
        float direction = mu == 0 ? gradient : gradient + mu * r->momentum[i];
        r->consensus[i] = r->consensus[i] - r->options->rate * direction;
        r->gradient[i] = 0;
    }
}

/* ---- rounds ---- */

typedef struct seated_rank {
    loco_rank rank;
    loco_seat seat;
    weft_loco_options options;
    weft_loco_stats stats;
    weft_status status;
    pthread_t thread;
} seated_rank;

static void *run_round(void *argument) {
    seated_rank *seated = argument;
    weft_loco_exchange exchange = loco_board_exchange(&seated->seat);
    seated->stats.size = sizeof seated->stats;
    seated->status = weft_loco_round(seated->rank.loco, &exchange, &seated->stats);
    exchange.close(exchange.opaque);
    return NULL;
}

/* Rank 1 has no room for what it decodes, and decodes it twice. */
enum { LITTLE = 1000 };

static void open_ranks(seated_rank *ranks, const weft_loco_options *options, loco_board *board) {
    loco_board_open(board, options->ranks);
    for (uint32_t i = 0; i < options->ranks; i++) {
        seated_rank *seated = &ranks[i];
        memset(seated, 0, sizeof *seated);
        seated->options = *options;
        seated->options.rank = i;
        seated->seat = (loco_seat){board, i};
        loco_rank_open_within(&seated->rank, &seated->options, 1 + i % 3, i == 1 ? LITTLE : 0);
    }
}

static void close_ranks(seated_rank *ranks, uint32_t count, loco_board *board) {
    for (uint32_t i = 0; i < count; i++) {
        loco_rank_close(&ranks[i].rank);
    }
    loco_board_close(board);
}

static void all_ranks_round(seated_rank *ranks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_round, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(ranks[i].thread, NULL);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i].status != WEFT_OK) {
            fail_msg("rank %u: %s", i, weft_context_error(ranks[i].rank.context));
        }
    }
}

/* As anybody has it who holds the same tensors. */
static weft_digest digest_of(const loco_rank *rank) {
    weft_context *context = rank->context;
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    for (size_t i = 0; i < LOCO_TENSORS; i++) {
        const weft_tensor tensor = {.size = sizeof tensor,
                                    .name = rank->tensors[i].name,
                                    .dtype = WEFT_DTYPE_F32,
                                    .rank = 1,
                                    .shape = {rank->tensors[i].count},
                                    .data = rank->tensors[i].data};
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    }
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest digest = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_table_destroy(table);
    return digest;
}

static void assert_agree(const seated_rank *ranks, uint32_t count, const reference *r) {
    weft_digest first = digest_of(&ranks[0].rank);
    for (uint32_t i = 0; i < count; i++) {
        weft_digest digest = weft_loco_digest(ranks[i].rank.loco);
        assert_true(weft_digest_equal(&first, &digest));
        assert_memory_equal(ranks[i].rank.weights, r->consensus, r->elements * sizeof *r->consensus);
        double energy = 0;
        for (size_t j = 0; j < r->elements; j++) {
            energy += (double)r->residuals[i][j] * (double)r->residuals[i][j];
        }
        double found = weft_loco_residual_energy(ranks[i].rank.loco);
        assert_true(fabs(found - energy) <= 1e-9 * energy);
    }
}

static void run_options(const weft_loco_options *options, uint32_t left_out) {
    enum { ROUNDS = 3 };
    uint32_t count = options->ranks;
    seated_rank ranks[LOCO_RANKS];
    loco_board board;
    reference r;
    if (!test_stride_takes()) {
        return;
    }
    open_ranks(ranks, options, &board);
    reference_open(&r, options, &ranks[0].rank);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        board.left_out = round == 1 ? left_out : UINT32_MAX;
        uint32_t included = count - (board.left_out < count);
        for (uint32_t i = 0; i < count; i++) {
            loco_rank_train(&ranks[i].rank, 100 * round + i);
            reference_send(&r, i, ranks[i].rank.weights, i != board.left_out);
        }
        reference_move(&r, included);
        all_ranks_round(ranks, count);
        assert_agree(ranks, count, &r);
        assert_int_equal(ranks[0].stats.included, included);
        assert_int_equal(ranks[0].stats.elements, r.elements);
        assert_true(options->open ? ranks[0].stats.fired == r.elements
                                  : ranks[0].stats.fired < r.elements / 2 || options->grid > 1);
        assert_int_equal(weft_loco_rounds(ranks[count - 1].rank.loco), round + 1);
    }
    reference_close(&r);
    close_ranks(ranks, count, &board);
}

static void run_case(uint32_t count, uint32_t significant, bool open, bool raw, float rate, float momentum,
                     uint32_t left_out) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "rounds";
    options.ranks = count;
    options.significant = significant;
    options.open = open;
    options.raw = raw;
    options.rate = rate;
    options.momentum = momentum;
    run_options(&options, left_out);
}

/* Values in steps: with the usual bits of a value and with others, and with a rank that is left out. */
static void test_grid(void **state) {
    (void)state;
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "rounds";
    options.ranks = 3;
    for (options.grid = 1; options.grid <= 8; options.grid += 2) {
        options.significant = options.grid == 5 ? 8 : 0;
        run_options(&options, UINT32_MAX);
        run_options(&options, options.grid % 3);
    }
}

static void test_one(void **state) {
    (void)state;
    run_case(1, 0, false, false, 0.7f, 0.9f, UINT32_MAX);
}

/* ---- rounds that overlap with the next steps ---- */

/* Begins the round of every rank: all of them in one thread, for nobody waits. */
static void begin_rounds(seated_rank *ranks, uint32_t count, weft_loco_exchange *exchanges) {
    for (uint32_t i = 0; i < count; i++) {
        exchanges[i] = loco_board_exchange(&ranks[i].seat);
        if (weft_loco_round_begin(ranks[i].rank.loco, &exchanges[i]) != WEFT_OK) {
            fail_msg("rank %u: %s", i, weft_context_error(ranks[i].rank.context));
        }
    }
}

static void end_rounds(seated_rank *ranks, uint32_t count, const weft_loco_exchange *exchanges) {
    for (uint32_t i = 0; i < count; i++) {
        ranks[i].stats.size = sizeof ranks[i].stats;
        if (weft_loco_round(ranks[i].rank.loco, &exchanges[i], &ranks[i].stats) != WEFT_OK) {
            fail_msg("rank %u: %s", i, weft_context_error(ranks[i].rank.context));
        }
    }
}

/* Where the consensus would be if all ranks had learned what this one has. */
static void reference_ahead(const reference *r, const float *local, float *ahead) {
    float mu = r->options->momentum;
    for (size_t i = 0; i < r->elements; i++) {
        float learned = r->consensus[i] - local[i];
        float momentum = mu * r->momentum[i] + learned;
        float direction = mu == 0 ? learned : learned + mu * momentum;
        ahead[i] = r->consensus[i] - r->options->rate * direction;
    }
}

/* The consensus is what it would be without overlap, from payloads that speak of the steps before. A rank
 * goes ahead when its payload is made, and in the end has what it learned since upon the consensus. */
static void run_overlapped(const weft_loco_options *given, uint32_t left_out) {
    enum { ROUNDS = 4 };
    weft_loco_options options = *given;
    uint32_t count = options.ranks;
    seated_rank ranks[LOCO_RANKS];
    weft_loco_exchange exchanges[LOCO_RANKS];
    float *ahead[LOCO_RANKS];
    loco_board board;
    reference r;
    options.overlap = true;
    if (!test_stride_takes()) {
        return;
    }
    open_ranks(ranks, &options, &board);
    reference_open(&r, &options, &ranks[0].rank);
    for (uint32_t i = 0; i < count; i++) {
        ahead[i] = new_floats(r.elements);
        loco_rank_train(&ranks[i].rank, i);
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        board.left_out = round == 1 ? left_out : UINT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            reference_ahead(&r, ranks[i].rank.weights, ahead[i]);
            reference_send(&r, i, ranks[i].rank.weights, i != board.left_out);
        }
        begin_rounds(ranks, count, exchanges);
        reference_move(&r, count - (board.left_out < count));
        for (uint32_t i = 0; i < count; i++) {
            assert_memory_equal(ranks[i].rank.weights, ahead[i], r.elements * sizeof *ahead[i]);
            loco_rank_train(&ranks[i].rank, 100 * (round + 1) + i);
            float *expected = ahead[i];
            for (size_t j = 0; j < r.elements; j++) {
                float moved = ranks[i].rank.weights[j] - ahead[i][j];
                expected[j] = moved == 0 ? r.consensus[j] : r.consensus[j] + moved;
            }
        }
        end_rounds(ranks, count, exchanges);
        for (uint32_t i = 0; i < count; i++) {
            const loco_rank *rank = &ranks[i].rank;
            weft_digest first = weft_loco_digest(ranks[0].rank.loco);
            weft_digest digest = weft_loco_digest(rank->loco);
            assert_true(weft_digest_equal(&first, &digest));
            assert_memory_equal(rank->weights, ahead[i], r.elements * sizeof *ahead[i]);
            const float *consensus = weft_loco_consensus(rank->loco, rank->tensors[0].name);
            assert_memory_equal(consensus, r.consensus + (rank->tensors[0].data - rank->weights),
                                rank->tensors[0].count * sizeof *consensus);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        free(ahead[i]);
    }
    reference_close(&r);
    close_ranks(ranks, count, &board);
}

static void test_overlap(void **state) {
    (void)state;
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "rounds";
    for (options.ranks = 1; options.ranks <= 3; options.ranks++) {
        run_overlapped(&options, options.ranks == 3 ? 1 : UINT32_MAX);
    }
    options.ranks = 3;
    options.grid = 3;
    run_overlapped(&options, 2);
    options.grid = 0;
    options.momentum = 0;
    run_overlapped(&options, UINT32_MAX);
    options.open = true;
    options.raw = true;
    run_overlapped(&options, 0);
}

/* Nothing is learned while payloads travel: then it is as if they had taken no time. */
static void test_overlap_of_nothing(void **state) {
    (void)state;
    seated_rank ranks[LOCO_RANKS], others[LOCO_RANKS];
    weft_loco_exchange exchanges[LOCO_RANKS];
    loco_board board, other_board;
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "rounds";
    options.ranks = 2;
    open_ranks(others, &options, &other_board);
    options.overlap = true;
    open_ranks(ranks, &options, &board);
    for (uint64_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            loco_rank_train(&ranks[i].rank, 10 * round + i);
            loco_rank_train(&others[i].rank, 10 * round + i);
        }
        begin_rounds(ranks, 2, exchanges);
        end_rounds(ranks, 2, exchanges);
        all_ranks_round(others, 2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_memory_equal(ranks[i].rank.weights, others[i].rank.weights,
                                ranks[i].rank.elements * sizeof(float));
            assert_true(weft_loco_residual_energy(ranks[i].rank.loco) ==
                        weft_loco_residual_energy(others[i].rank.loco));
        }
    }
    close_ranks(others, 2, &other_board);
    close_ranks(ranks, 2, &board);
}

/* One rank and an open gate: DiLoCo. */
static void test_diloco(void **state) {
    (void)state;
    run_case(1, 0, true, false, 0.7f, 0.9f, UINT32_MAX);
    run_case(1, 0, true, true, 0.7f, 0.9f, UINT32_MAX);
    run_case(3, 0, true, true, 0.7f, 0.9f, UINT32_MAX);
}

/* The same against DiLoCo as it is written elsewhere, without residual or gate. */
static void test_diloco_alone(void **state) {
    (void)state;
    seated_rank ranks[LOCO_RANKS];
    loco_board board;
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.run = "diloco";
    options.open = true;
    open_ranks(ranks, &options, &board);
    loco_rank *rank = &ranks[0].rank;
    float *weights = new_floats(rank->elements);
    float *momentum = new_floats(rank->elements);
    memcpy(weights, rank->weights, rank->elements * sizeof *weights);
    for (uint64_t round = 0; round < 4; round++) {
        loco_rank_train(rank, round);
        for (size_t i = 0; i < rank->elements; i++) {
            float change = weights[i] - rank->weights[i];
            momentum[i] = options.momentum * momentum[i] + change;
            weights[i] -= options.rate * (change + options.momentum * momentum[i]);
        }
        all_ranks_round(ranks, 1);
        assert_memory_equal(rank->weights, weights, rank->elements * sizeof *weights);
    }
    free(momentum);
    free(weights);
    close_ranks(ranks, 1, &board);
}

static void test_agreement(void **state) {
    (void)state;
    for (uint32_t count = 2; count <= 4; count++) {
        run_case(count, 0, false, false, 0.7f, 0.9f, UINT32_MAX);
    }
    run_case(4, 8, false, false, 0.7f, 0.9f, UINT32_MAX);
}

static void test_cut(void **state) {
    (void)state;
    run_case(2, 2, false, false, 0.5f, 0, UINT32_MAX);
    run_case(2, 23, true, false, 0.5f, 0.5f, UINT32_MAX);
}

/* A round without one of the ranks: divided by those that are there, and nothing of the other is lost. */
static void test_left_out(void **state) {
    (void)state;
    run_case(3, 0, false, false, 0.7f, 0.9f, 1);
    run_case(3, 8, false, false, 0.7f, 0.9f, 2);
    run_case(2, 0, true, true, 0.7f, 0.9f, 0);
}

/* Rate 1, no momentum, open gate: the consensus is the mean of the weights. On a grid where no operation
 * rounds, to the bit. */
static void test_averaging(void **state) {
    (void)state;
    const uint32_t counts[] = {2, 4};
    for (size_t c = 0; c < 2; c += test_stride()) {
        uint32_t count = counts[c];
        seated_rank ranks[LOCO_RANKS];
        loco_board board;
        weft_loco_options options = {.size = sizeof options};
        weft_loco_defaults(&options);
        options.ranks = count;
        options.open = true;
        options.rate = 1;
        options.momentum = 0;
        open_ranks(ranks, &options, &board);
        size_t elements = ranks[0].rank.elements;
        float *mean = new_floats(elements);
        for (uint32_t i = 0; i < count; i++) {
            loco_rank *rank = &ranks[i].rank;
            weft_loco_destroy(rank->loco);
            memset(rank->weights, 0, elements * sizeof *rank->weights);
            assert_int_equal(weft_loco_create(rank->context, &ranks[i].options, rank->tensors, LOCO_TENSORS,
                                              &rank->loco),
                             WEFT_OK);
        }
        for (uint64_t round = 0; round < 2; round++) {
            dice dice = {77 + round};
            memset(mean, 0, elements * sizeof *mean);
            for (uint32_t i = 0; i < count; i++) {
                for (size_t j = 0; j < elements; j++) {
                    float weight = (float)dice_below(&dice, 4096) * 0x1p-12f;
                    ranks[i].rank.weights[j] = weight;
                    mean[j] += weight / (float)count;
                }
            }
            all_ranks_round(ranks, count);
            assert_memory_equal(ranks[count - 1].rank.weights, mean, elements * sizeof *mean);
        }
        free(mean);
        close_ranks(ranks, count, &board);
    }
}

/* A gradient that was left out of its average is no part of the next. */
static void test_average_left_out(void **state) {
    (void)state;
    enum { COUNT = 4 };
    weft_context *context = NULL;
    weft_loco *ranks[2];
    float held[2][COUNT];
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.ranks = 2;
    options.open = options.raw = options.average = true;
    options.rate = 1;
    options.momentum = 0;
    for (uint32_t i = 0; i < 2; i++) {
        weft_loco_tensor tensor = {"gradient", held[i], COUNT};
        memset(held[i], 0, sizeof held[i]);
        options.rank = i;
        assert_int_equal(weft_loco_create(context, &options, &tensor, 1, &ranks[i]), WEFT_OK);
    }
    for (int round = 0; round < 2; round++) {
        weft_loco_payload payloads[2];
        for (int i = 0; i < 2; i++) {
            for (size_t j = 0; j < COUNT; j++) {
                held[i][j] = round == 0 && i == 1 ? 5 : 1;
            }
            assert_int_equal(weft_loco_encode(ranks[i], &payloads[i]), WEFT_OK);
        }
        weft_loco_info info = {.size = sizeof info};
        assert_int_equal(weft_loco_inspect(context, &payloads[0], &info), WEFT_OK);
        assert_true(info.open && info.raw && info.average);
        if (round == 0) {
            payloads[1] = (weft_loco_payload){0};
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(weft_loco_aggregate(ranks[i], payloads, 2, NULL), WEFT_OK);
            assert_true(weft_loco_residual_energy(ranks[i]) == 0);
            assert_true(held[i][0] == 1 && held[i][COUNT - 1] == 1);
        }
    }
    weft_loco_destroy(ranks[0]);
    weft_loco_destroy(ranks[1]);
    weft_context_destroy(context);
}

/* A rank that averages and one that moves weights do not share a round, though their values look alike. */
static void test_average_alone(void **state) {
    (void)state;
    weft_context *context = NULL;
    weft_loco *ranks[2];
    float held[2] = {0, 0};
    weft_loco_payload payloads[2];
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    options.ranks = 2;
    options.open = options.raw = true;
    options.rate = 1;
    options.momentum = 0;
    for (uint32_t i = 0; i < 2; i++) {
        weft_loco_tensor tensor = {"gradient", &held[i], 1};
        options.rank = i;
        options.average = i == 1;
        assert_int_equal(weft_loco_create(context, &options, &tensor, 1, &ranks[i]), WEFT_OK);
        held[i] = 1;
        assert_int_equal(weft_loco_encode(ranks[i], &payloads[i]), WEFT_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(weft_loco_aggregate(ranks[i], payloads, 2, NULL), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "averages"));
    }
    weft_loco_destroy(ranks[0]);
    weft_loco_destroy(ranks[1]);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_overlap_of_nothing),
        cmocka_unit_test(test_diloco),
        cmocka_unit_test(test_diloco_alone),
        cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_averaging),
        cmocka_unit_test(test_average_left_out),
        cmocka_unit_test(test_average_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
