/* SPDX-License-Identifier: Apache-2.0
 *
 * train_mpi.c: trainers that mpirun has started. libweft-mpi is loaded only when it is asked for, so that
 * the command runs where there is no MPI.
 */
#include "train_arguments.h"

#include "../lib/base/context.h"

#include <dlfcn.h>
#include <weft/loco_mpi.h>

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

weft_status train_mpi_open(weft_context *context, train_options *chosen, weft_loco_exchange *exchange_out) {
    open_function open = NULL;
    uint32_t ranks = 0;
    uint32_t named = chosen->run.trainers;
    weft_status status = load(context, &open);
    if (status == WEFT_OK) {
        status = open(context, NULL, exchange_out, &chosen->rank, &ranks);
    }
    if (status == WEFT_OK && named > 1 && named != ranks) {
        status =
            weft_fail(context, WEFT_INVALID_ARGUMENT, "MPI has started %u trainers, not %u", ranks, named);
    }
    if (status == WEFT_OK) {
        chosen->run.trainers = ranks;
        chosen->exchange = exchange_out;
    }
    return status;
}
