/* SPDX-License-Identifier: Apache-2.0
 *
 * loco_ranks.c: see loco_ranks.h.
 */
#include "loco_ranks.h"

#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- ranks ---- */

static const struct {
    const char *name;
    size_t count;
    float scale;
} shapes[LOCO_TENSORS] = {
    {"layers.1.weight", 700000, 0.02f},
    {"layers.0.weight", 400123, 0.3f},
    {"norm", 1, 1.0f},
    {"embed", 30011, 0.0005f},
    {"nothing", 0, 1.0f},
};

static float random_weight(dice *dice, float scale) {
    /* the sum of four is close enough to normal */
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(int64_t)(dice_next(dice) >> 40) * 0x1p-24f - 0.5f;
    }
    switch (dice_next(dice) % 512) {
    case 0:
        return 0;
    case 1:
        return sum * 0x1p-130f;
    case 2:
        return sum > 0 ? 0.015625f : -0.015625f;
    default:
        return scale * sum;
    }
}

void loco_rank_open(loco_rank *rank, const weft_loco_options *options, unsigned threads) {
    loco_rank_open_within(rank, options, threads, 0);
}

void loco_rank_open_within(loco_rank *rank, const weft_loco_options *options, unsigned threads,
                           uint64_t stage_bytes) {
    const weft_limits limits = {.size = sizeof limits, .stage_bytes = stage_bytes};
    const weft_context_options context_options = {
        .size = sizeof context_options, .threads = threads, .limits = &limits};
    dice dice = {4711};
    memset(rank, 0, sizeof *rank);
    assert_int_equal(weft_context_create(&context_options, &rank->context), WEFT_OK);
    for (size_t i = 0; i < LOCO_TENSORS; i++) {
        rank->elements += shapes[i].count;
    }
    rank->weights = malloc(rank->elements * sizeof *rank->weights);
    assert_non_null(rank->weights);
    float *next = rank->weights;
    for (size_t i = 0; i < LOCO_TENSORS; i++) {
        rank->tensors[i] = (weft_loco_tensor){shapes[i].name, next, shapes[i].count};
        for (size_t j = 0; j < shapes[i].count; j++) {
            *next++ = random_weight(&dice, shapes[i].scale);
        }
    }
    assert_int_equal(weft_loco_create(rank->context, options, rank->tensors, LOCO_TENSORS, &rank->loco),
                     WEFT_OK);
}

void loco_rank_close(loco_rank *rank) {
    weft_loco_destroy(rank->loco);
    weft_context_destroy(rank->context);
    free(rank->weights);
}

void loco_rank_train(loco_rank *rank, uint64_t seed) {
    dice dice = {seed + 1};
    for (size_t i = 0; i < rank->elements; i++) {
        uint64_t bits = dice_next(&dice);
        float step = ((float)(bits & 0xffff) - 32767.5f) * 0x1p-15f;
        rank->weights[i] -= (bits >> 60) == 0 ? 0 : 2e-5f * step;
    }
}

/* ---- the board ---- */

void loco_board_open(loco_board *board, size_t ranks) {
    memset(board, 0, sizeof *board);
    board->ranks = ranks;
    board->left_out = UINT32_MAX;
    assert_int_equal(pthread_mutex_init(&board->mutex, NULL), 0);
    assert_int_equal(pthread_cond_init(&board->changed, NULL), 0);
}

void loco_board_close(loco_board *board) {
    for (size_t i = 0; i < LOCO_RANKS; i++) {
        free(board->slots[0][i].data);
        free(board->slots[1][i].data);
    }
    pthread_cond_destroy(&board->changed);
    pthread_mutex_destroy(&board->mutex);
}

/* Puts the payload down and waits for the others. The first one of a round clears the round before last. */
static weft_status share(void *opaque, weft_context *context, uint64_t round, const weft_loco_payload *own,
                         weft_loco_payload *all, size_t ranks) {
    const loco_seat *seat = opaque;
    loco_board *board = seat->board;
    size_t turn = round % 2;
    void *copy = malloc(own->size);
    (void)context;
    if (copy == NULL || ranks != board->ranks) {
        free(copy);
        return WEFT_REMOTE_FAILED;
    }
    memcpy(copy, own->data, own->size);
    pthread_mutex_lock(&board->mutex);
    if (board->arrived[turn] == board->ranks) {
        board->arrived[turn] = 0;
    }
    free(board->slots[turn][seat->rank].data);
    board->slots[turn][seat->rank].data = copy;
    board->slots[turn][seat->rank].size = own->size;
    board->arrived[turn]++;
    pthread_cond_broadcast(&board->changed);
    while (board->arrived[turn] < board->ranks) {
        pthread_cond_wait(&board->changed, &board->mutex);
    }
    for (size_t i = 0; i < ranks; i++) {
        all[i] = (weft_loco_payload){board->slots[turn][i].data, board->slots[turn][i].size};
    }
    if (board->left_out < ranks) {
        all[board->left_out] = (weft_loco_payload){NULL, 0};
    }
    pthread_mutex_unlock(&board->mutex);
    return WEFT_OK;
}

static void close_seat(void *opaque) {
    (void)opaque;
}

weft_loco_exchange loco_board_exchange(loco_seat *seat) {
    return (weft_loco_exchange){.size = sizeof(weft_loco_exchange),
                                .share = share,
                                .close = close_seat,
                                .opaque = seat,
                                .threads = true};
}

double loco_on_grid(double s, float consensus, uint32_t grid) {
    int exponent = consensus == 0 || ilogbf(consensus) < -126 ? -126 : ilogbf(consensus);
    double step = ldexp(1, exponent - 7 - ((int)grid - 1));
    return fabs(s) < 1.5 * 0x1p21 * step ? nearbyint(s / step) * step : s;
}
