/* SPDX-License-Identifier: Apache-2.0
 *
 * loco_ranks.h: ranks of PULSELoCo with a small model each, steps that move their weights, and an exchange
 * between threads of one process. Every call ends the test if it fails.
 */
#ifndef WEFT_TESTS_LOCO_RANKS_H
#define WEFT_TESTS_LOCO_RANKS_H

#include <pthread.h>
#include <weft/loco.h>

enum { LOCO_TENSORS = 5, LOCO_RANKS = 8 };

typedef struct loco_rank {
    weft_context *context;
    weft_loco *loco;
    weft_loco_tensor tensors[LOCO_TENSORS];
    float *weights; /* of all tensors, in the order of their names */
    size_t elements;
} loco_rank;

/* The model has two blocks, names that are not in order, an empty tensor, a tensor of one element, zeros,
 * subnormal weights and weights at powers of two. It is the same for every rank. */
void loco_rank_open(loco_rank *rank, const weft_loco_options *options, unsigned threads);
/* The same, with so much memory for what was decoded; 0: the default. */
void loco_rank_open_within(loco_rank *rank, const weft_loco_options *options, unsigned threads,
                           uint64_t stage_bytes);
void loco_rank_close(loco_rank *rank);
/* Moves the weights as a few steps of an optimizer do, by the seed. */
void loco_rank_train(loco_rank *rank, uint64_t seed);

/* Where the payloads of a round meet. */
typedef struct loco_board {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t ranks;
    uint32_t left_out; /* a rank whose payload is passed over; UINT32_MAX: none */
    struct {
        void *data;
        size_t size;
    } slots[2][LOCO_RANKS]; /* rounds by turns: a rank may be one ahead */
    size_t arrived[2];
} loco_board;

typedef struct loco_seat {
    loco_board *board;
    uint32_t rank;
} loco_seat;

void loco_board_open(loco_board *board, size_t ranks);
void loco_board_close(loco_board *board);
weft_loco_exchange loco_board_exchange(loco_seat *seat);

/* By the definition of `grid`: s in whole steps, or as it is where it has millions of them. */
double loco_on_grid(double s, float consensus, uint32_t grid);

#endif
