/* SPDX-License-Identifier: Apache-2.0
 *
 * loco_mpi.h: the exchange of PULSELoCo over MPI. It is a library of its own, libweft-mpi, so that nothing
 * else needs MPI.
 */
#ifndef WEFT_LOCO_MPI_H
#define WEFT_LOCO_MPI_H

#include <weft/loco.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_loco_mpi_options {
    size_t size;          /* sizeof(weft_loco_mpi_options) */
    uint64_t round_bytes; /* received in one call of MPI, whose counts have 31 bits; 0: 1 GiB */
} weft_loco_mpi_options;

/* Joins the processes that MPI has started, and tells which of them this is; `options` may be NULL. MPI is
 * initialised here, and finalised when the exchange is closed, unless the caller had done so before.
 *
 * All payloads reach all ranks in every round: who fails says so and ends, and MPI ends the others. Rounds
 * can overlap (`threads` of the exchange) if MPI was initialised for calls of several threads, one at a
 * time (MPI_THREAD_SERIALIZED), as it is here; the caller then makes none of its own between the beginning
 * and the end of a round. */
WEFT_API WEFT_CHECKED weft_status weft_loco_mpi_open(weft_context *context,
                                                     const weft_loco_mpi_options *options,
                                                     weft_loco_exchange *exchange_out, uint32_t *rank_out,
                                                     uint32_t *ranks_out);

#ifdef __cplusplus
}
#endif
#endif
