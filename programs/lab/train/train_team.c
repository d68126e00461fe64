/* SPDX-License-Identifier: Apache-2.0
 *
 * train_team.c: several trainers. libweft-mpi is loaded only when it is asked for, so that the command runs
 * where there is no MPI.
 */
#include "train_arguments.h"

#include "../../../lib/base/context.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loco_mpi.h>

enum { DEFAULT_LOCAL_STEPS = 8 };

/* An option that would do nothing was meant to do something. */
static void check_use(const train_team_options *team, struct argp_state *state) {
    train_outer outer = team->chosen->run.outer;
    const char *alone = team->of_store != NULL ? team->of_store : team->of_outer;
    alone = alone != NULL ? alone : team->of_values;
    if (outer == TRAIN_ALONE && alone != NULL) {
        argp_error(state, "--%s is for several trainers: give --trainers, or --outer for one alone", alone);
    }
    if (outer == TRAIN_DDP && team->of_outer != NULL) {
        argp_error(state, "--%s is of the outer optimizer, which ddp has not: leave it out",
                   team->of_outer);
    }
    if (outer != TRAIN_PULSELOCO && team->of_values != NULL) {
        argp_error(state, "--%s is pulseloco's: %s sends values as they are", team->of_values,
                   train_outer_name(outer));
    }
    if (team->exchange_kind == TRAIN_OVER_MPI && team->of_store != NULL) {
        argp_error(state, "--%s is for trainers that meet in a store; over MPI all wait for each other",
                   team->of_store);
    }
    if (team->chosen->join && team->chosen->fresh) {
        argp_error(state, "--join takes part in a run, and --fresh begins one: choose one of them");
    }
}

/* What follows from what was given. Over MPI nobody knows yet how many trainers there are. */
void train_team_choose(train_team_options *team, struct argp_state *state) {
    train_run *run = &team->chosen->run;
    bool several = run->trainers > 1 || team->exchange_kind == TRAIN_OVER_MPI;
    if (several && run->outer == TRAIN_ALONE) {
        run->outer = TRAIN_PULSELOCO;
    }
    bool rounds = run->outer == TRAIN_PULSELOCO || run->outer == TRAIN_DILOCO;
    run->local_steps = rounds ? DEFAULT_LOCAL_STEPS : 1;
    if (team->local_steps > 0) {
        run->local_steps = team->local_steps;
    }
    if (team->exchange_kind == TRAIN_OVER_MPI && team->of_rank != NULL) {
        argp_error(state, "over MPI the rank is known: leave out --rank");
    }
    if (run->trainers > 1 && team->exchange_kind != TRAIN_OVER_MPI && team->of_rank == NULL) {
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
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "cannot use MPI: %s; install " WEFT_MPI_LIBRARY
            " and an MPI beside this program, or let trainers meet in the store: --exchange store --rank R",
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
    if (team->exchange_kind != TRAIN_OVER_MPI) {
        return WEFT_OK;
    }
    weft_status status = load(context, &open);
    if (status == WEFT_OK) {
        team->exchange.size = sizeof team->exchange;
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
