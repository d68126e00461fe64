/* SPDX-License-Identifier: Apache-2.0
 *
 * loco_ranks ROUNDS WEIGHTS [MPI-ROUND-BYTES]: one rank of trainers that meet by MPI. It moves its weights
 * by a function of rank and round, and writes the consensus' digest after each round. With one rank and
 * LOCO_RANKS=K it computes the same for K ranks within one process, as the truth to compare with.
 * LOCO_DIE=RANK:ROUND makes a rank end by a signal before that round.
 */
#include <weft/loco_mpi.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_state {
    weft_loco *loco;
    float *weights;
    uint32_t rank;
} rank_state;

static void need(weft_context *context, weft_status status, const char *what) {
    if (status != WEFT_OK) {
        fprintf(stderr, "loco_ranks: %s: %s\n", what, weft_context_error(context));
        exit(1);
    }
}

static float noise(uint64_t seed) {
    seed = (seed + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 29)) * 0x94d049bb133111ebu;
    return (float)((double)(seed >> 40) / (1 << 24) - 0.5);
}

static void open_rank(weft_context *context, rank_state *state, uint32_t rank, uint32_t ranks,
                      uint64_t count) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    state->weights = malloc(count * sizeof *state->weights);
    state->rank = rank;
    for (uint64_t i = 0; i < count; i++) {
        state->weights[i] = noise(i) * 0.1f;
    }
    options.run = "ranks";
    options.rank = rank;
    options.ranks = ranks;
    const weft_loco_tensor tensor = {"weights", state->weights, count};
    need(context, weft_loco_create(context, &options, &tensor, 1, &state->loco), "create");
}

static void train(rank_state *state, uint64_t count) {
    uint64_t seed = weft_loco_rounds(state->loco) * 1000003 + state->rank * 7919;
    for (uint64_t i = 0; i < count; i++) {
        state->weights[i] += noise(seed * count + i) * 1e-4f;
    }
}

static void say(const rank_state *state) {
    char text[WEFT_DIGEST_TEXT];
    weft_digest digest = weft_loco_digest(state->loco);
    weft_digest_format(&digest, text);
    printf("%" PRIu64 " %s\n", weft_loco_rounds(state->loco), text);
    fflush(stdout);
}

static void close_rank(rank_state *state) {
    weft_loco_destroy(state->loco);
    free(state->weights);
}

/* All ranks in this process, their payloads handed over in memory. */
static void run_alone(weft_context *context, uint32_t ranks, uint64_t rounds, uint64_t count) {
    rank_state *states = calloc(ranks, sizeof *states);
    weft_loco_payload *payloads = calloc(ranks, sizeof *payloads);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        open_rank(context, &states[rank], rank, ranks, count);
    }
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint32_t rank = 0; rank < ranks; rank++) {
            train(&states[rank], count);
            need(context, weft_loco_encode(states[rank].loco, &payloads[rank]), "encode");
        }
        for (uint32_t rank = 0; rank < ranks; rank++) {
            need(context, weft_loco_aggregate(states[rank].loco, payloads, ranks, NULL), "aggregate");
        }
        say(&states[0]);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        close_rank(&states[rank]);
    }
    free(payloads);
    free(states);
}

static void die_if_told(uint32_t rank, uint64_t round) {
    const char *told = getenv("LOCO_DIE");
    char text[64];
    snprintf(text, sizeof text, "%" PRIu32 ":%" PRIu64, rank, round);
    if (told != NULL && strcmp(told, text) == 0) {
        raise(SIGKILL);
    }
}

static void run_rank(weft_context *context, uint64_t round_bytes, uint64_t rounds, uint64_t count) {
    const weft_loco_mpi_options options = {.size = sizeof options, .round_bytes = round_bytes};
    weft_loco_exchange exchange = {.size = sizeof exchange};
    rank_state state;
    uint32_t rank, ranks;
    need(context, weft_loco_mpi_open(context, &options, &exchange, &rank, &ranks), "MPI");
    open_rank(context, &state, rank, ranks, count);
    for (uint64_t round = 0; round < rounds; round++) {
        train(&state, count);
        die_if_told(rank, round);
        need(context, weft_loco_round(state.loco, &exchange, NULL), "round");
        say(&state);
    }
    close_rank(&state);
    exchange.close(exchange.opaque);
}

int main(int argument_count, char **arguments) {
    weft_context *context;
    if (argument_count < 3 ||
        weft_context_create(&(weft_context_options){.size = sizeof(weft_context_options), .threads = 1},
                            &context) != WEFT_OK) {
        return 2;
    }
    uint64_t rounds = strtoull(arguments[1], NULL, 10);
    uint64_t count = strtoull(arguments[2], NULL, 10);
    uint64_t round_bytes = argument_count > 3 ? strtoull(arguments[3], NULL, 10) : 0;
    const char *ranks = getenv("LOCO_RANKS");
    if (ranks != NULL) {
        run_alone(context, (uint32_t)strtoul(ranks, NULL, 10), rounds, count);
    } else {
        run_rank(context, round_bytes, rounds, count);
    }
    weft_context_destroy(context);
    return 0;
}
