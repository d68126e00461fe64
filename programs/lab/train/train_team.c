/* SPDX-License-Identifier: Apache-2.0
 *
 * train_team.c: see train_team.h. libweft-mpi is loaded only when it is asked for, so that the command runs
 * where there is no MPI.
 */
#include "train_team.h"

#include "../../cli/remote.h"

#include "../../../lib/base/context.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loco_mpi.h>

enum {
    OPTION_TRAINERS = 0x500,
    OPTION_RANK,
    OPTION_OUTER,
    OPTION_EXCHANGE,
    OPTION_LOCAL_STEPS,
    OPTION_OUTER_RATE,
    OPTION_OUTER_MOMENTUM,
    OPTION_SIGNIFICANT,
    OPTION_DEADLINE,
    OPTION_JOIN,
};

enum { DEFAULT_LOCAL_STEPS = 8 };

static const struct argp_option options[] = {
    {"trainers", OPTION_TRAINERS, "K", 0,
     "There are K trainers (default: 1), each a process with the same options; over MPI: as many as it has "
     "started",
     0},
    {"rank", OPTION_RANK, "R", 0,
     "Which of them this is, from 0; the others keep their files in DIR/rank-R. Over MPI it is known", 0},
    {"exchange", OPTION_EXCHANGE, "HOW", 0,
     "store (default): they meet in STORE, and go on without one that is gone; mpi: mpirun has started "
     "them",
     0},
    {"outer", OPTION_OUTER, "HOW", 0,
     "pulseloco (default): after each round send what the next forward pass can see; diloco: send all; "
     "ddp: "
     "average the gradients of each update",
     0},
    {"local-steps", OPTION_LOCAL_STEPS, "H", 0, "Steps of a round (default: 8; ddp: 1)", 0},
    {"outer-rate", OPTION_OUTER_RATE, "R", 0, "Rate of the outer optimizer (default: 0.7)", 0},
    {"outer-momentum", OPTION_OUTER_MOMENTUM, "M", 0, "Its momentum (default: 0.9)", 0},
    {"significant", OPTION_SIGNIFICANT, "BITS", 0,
     "Cut the values that pulseloco sends to so many significant bits, 2 to 23; the rest stays for a later "
     "round (default: 0: nothing is cut)",
     0},
    {"deadline", OPTION_DEADLINE, "TIME", 0,
     "How long the end of a round waits for trainers that are late, over a store (default: 60s; ddp waits "
     "for all, as long as --patience says)",
     0},
    {"join", OPTION_JOIN, NULL, 0,
     "Rank 0 takes part in the run that the store holds, though its state is not in DIR, as other ranks do",
     0},
    {0},
};

static double real(struct argp_state *state, const char *option, const char *text) {
    return command_parse_real(state, option, text, 0, 1000);
}

static error_t parse(int key, char *text, struct argp_state *state) {
    train_team_options *team = state->input;
    train_options *chosen = team->chosen;
    switch (key) {
    case OPTION_TRAINERS:
        chosen->run.trainers =
            (uint32_t)command_parse_number(state, "--trainers", text, 1, WEFT_LOCO_RANKS_MAX);
        break;
    case OPTION_RANK:
        chosen->rank = (uint32_t)command_parse_number(state, "--rank", text, 0, WEFT_LOCO_RANKS_MAX - 1);
        team->rank_given = true;
        break;
    case OPTION_OUTER:
        if (!train_outer_find(text, &chosen->run.outer) || chosen->run.outer == TRAIN_ALONE) {
            argp_error(state, "--outer is pulseloco, diloco or ddp, not '%s'", text);
        }
        break;
    case OPTION_EXCHANGE:
        if (strcmp(text, "store") != 0 && strcmp(text, "mpi") != 0) {
            argp_error(state, "--exchange is store or mpi, not '%s'", text);
        }
        team->over_mpi = strcmp(text, "mpi") == 0;
        break;
    case OPTION_LOCAL_STEPS:
        team->local_steps =
            (uint32_t)command_parse_number(state, "--local-steps", text, 1, TRAIN_LOCAL_STEPS_MAX);
        break;
    case OPTION_OUTER_RATE:
        chosen->run.outer_rate = real(state, "--outer-rate", text);
        team->of_outer = "--outer-rate";
        break;
    case OPTION_OUTER_MOMENTUM:
        chosen->run.outer_momentum = real(state, "--outer-momentum", text);
        team->of_outer = "--outer-momentum";
        break;
    case OPTION_SIGNIFICANT:
        chosen->run.significant = (uint32_t)command_parse_number(state, "--significant", text, 0, 23);
        team->of_values = "--significant";
        break;
    case OPTION_DEADLINE:
        chosen->deadline = remote_parse_seconds(state, "--deadline", text);
        team->of_store = "--deadline";
        break;
    case OPTION_JOIN:
        chosen->join = true;
        team->of_store = "--join";
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    team->given = true;
    return 0;
}

const struct argp train_team_argp = {options, parse, NULL, NULL, NULL, NULL, NULL};

/* An option that would do nothing was meant to do something. */
static void check_use(const train_team_options *team, struct argp_state *state) {
    train_outer outer = team->chosen->run.outer;
    const char *alone = team->of_store != NULL ? team->of_store : team->of_outer;
    alone = alone != NULL ? alone : team->of_values;
    if (outer == TRAIN_ALONE && alone != NULL) {
        argp_error(state, "%s is for several trainers: give --trainers, or --outer for one alone", alone);
    }
    if (outer == TRAIN_DDP && team->of_outer != NULL) {
        argp_error(state, "%s is of the outer optimizer, which ddp has not: leave it out", team->of_outer);
    }
    if (outer != TRAIN_PULSELOCO && team->of_values != NULL) {
        argp_error(state, "%s is pulseloco's: %s sends values as they are", team->of_values,
                   train_outer_name(outer));
    }
    if (team->over_mpi && team->of_store != NULL) {
        argp_error(state, "%s is for trainers that meet in a store; over MPI all wait for each other",
                   team->of_store);
    }
    if (team->chosen->join && team->chosen->fresh) {
        argp_error(state, "--join takes part in a run, and --fresh begins one: choose one of them");
    }
}

/* What follows from what was given. Over MPI nobody knows yet how many trainers there are. */
void train_team_choose(train_team_options *team, struct argp_state *state) {
    train_run *run = &team->chosen->run;
    bool several = run->trainers > 1 || team->over_mpi;
    if (several && run->outer == TRAIN_ALONE) {
        run->outer = TRAIN_PULSELOCO;
    }
    bool rounds = run->outer == TRAIN_PULSELOCO || run->outer == TRAIN_DILOCO;
    run->local_steps = rounds ? DEFAULT_LOCAL_STEPS : 1;
    if (team->local_steps > 0) {
        run->local_steps = team->local_steps;
    }
    if (team->over_mpi && team->rank_given) {
        argp_error(state, "over MPI the rank is known: leave out --rank");
    }
    if (run->trainers > 1 && !team->over_mpi && !team->rank_given) {
        argp_error(state, "which of the %u trainers is this? Give --rank, or --exchange mpi",
                   run->trainers);
    }
    check_use(team, state);
}

/* ---- MPI ---- */

typedef weft_status (*open_function)(weft_context *context, const weft_loco_mpi_options *options,
                                     weft_loco_exchange *exchange_out, uint32_t *rank_out,
                                     uint32_t *ranks_out);

static weft_status load(weft_context *context, open_function *open_out) {
    const char *why = NULL;
    void *library = dlopen(WEFT_MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    void *symbol = library != NULL ? dlsym(library, "weft_loco_mpi_open") : NULL;
    if (symbol == NULL) {
        why = dlerror();
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "cannot use MPI: %s; install " WEFT_MPI_LIBRARY
                         " and an MPI beside this program, or let trainers meet in the store: --exchange "
                         "store --rank R",
                         why != NULL ? why : "the library has no such function");
    }
    /* C has no cast from an object to a function */
    *(void **)open_out = symbol;
    return WEFT_OK;
}

weft_status train_team_join(weft_context *context, train_team_options *team) {
    train_options *chosen = team->chosen;
    open_function open = NULL;
    uint32_t ranks = 0;
    uint32_t named = chosen->run.trainers;
    if (!team->over_mpi) {
        return WEFT_OK;
    }
    weft_status status = load(context, &open);
    if (status == WEFT_OK) {
        status = open(context, NULL, &team->exchange, &chosen->rank, &ranks);
    }
    if (status == WEFT_OK && named > 1 && named != ranks) {
        status = weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "MPI has started %u trainers, not %u; leave out --trainers, or give it to mpirun as -n", ranks,
            named);
    }
    if (status == WEFT_OK) {
        chosen->run.trainers = ranks;
        chosen->exchange = &team->exchange;
    }
    return status;
}

void train_team_leave(train_team_options *team) {
    if (team->chosen->exchange != NULL) {
        team->exchange.close(team->exchange.opaque);
    }
}
