/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange_mpi.c: payloads by MPI's all-gather. Sizes go first; then the payloads follow in rounds, in
 * which every rank gives an equal share at most, so that counts and offsets stay below 2^31 however large
 * the payloads are.
 */
#include <weft/loco_mpi.h>

#include "../../base/context.h"
#include "../../base/sized.h"

#include <inttypes.h>
#include <mpi.h>
#include <string.h>

enum { ROUND_BYTES = 1 << 30 };

typedef struct circle {
    weft_context *context; /* its own, for memory: rounds may be shared on a thread beside the caller's */
    MPI_Comm ranks_comm;
    int rank;
    int ranks;
    bool finalise;
    uint64_t share;     /* bytes of one rank in one call, at most */
    uint64_t *sizes;    /* of all payloads */
    uint64_t *starts;   /* of each in `payloads` */
    int *counts;        /* of one call */
    int *offsets;       /* of one call */
    uint8_t *payloads;  /* of all ranks, one behind the other */
    uint8_t *received;  /* by one call */
    uint64_t room;      /* of `payloads` */
    uint64_t call_room; /* of `received` */
} circle;

static weft_status fail_mpi(weft_context *context, int error, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) {
        length = 0;
    }
    return weft_fail(context, WEFT_REMOTE_FAILED, "MPI could not %s: %.*s; start the job again, it resumes",
                     what, length, text);
}

static weft_status grow(circle *circle, weft_context *context, uint8_t **memory, uint64_t *room,
                        uint64_t size) {
    if (size <= *room) {
        return WEFT_OK;
    }
    weft_release(circle->context, *memory);
    *room = 0;
    *memory = size <= SIZE_MAX ? weft_allocate(circle->context, (size_t)size) : NULL;
    if (*memory == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for %" PRIu64 " bytes of the ranks' payloads",
                         size);
    }
    *room = size;
    return WEFT_OK;
}

/* Everybody's size, and where each payload will lie. */
static weft_status share_sizes(circle *circle, weft_context *context, uint64_t own, uint64_t *most_out) {
    int error = MPI_Allgather(&own, 1, MPI_UINT64_T, circle->sizes, 1, MPI_UINT64_T, circle->ranks_comm);
    if (error != MPI_SUCCESS) {
        return fail_mpi(context, error, "gather the sizes of payloads");
    }
    uint64_t total = 0;
    uint64_t most = 0;
    for (int rank = 0; rank < circle->ranks; rank++) {
        circle->starts[rank] = total;
        if (circle->sizes[rank] > UINT64_MAX - total) {
            return weft_fail(context, WEFT_MALFORMED, "the sizes of payloads cannot be");
        }
        total += circle->sizes[rank];
        most = circle->sizes[rank] > most ? circle->sizes[rank] : most;
    }
    *most_out = most;
    return grow(circle, context, &circle->payloads, &circle->room, total);
}

/* What each rank gives in the call that begins at `done` of every payload; returns the sum. */
static uint64_t plan_call(circle *circle, uint64_t done) {
    uint64_t total = 0;
    for (int rank = 0; rank < circle->ranks; rank++) {
        uint64_t left = circle->sizes[rank] > done ? circle->sizes[rank] - done : 0;
        uint64_t count = left < circle->share ? left : circle->share;
        circle->counts[rank] = (int)count;
        circle->offsets[rank] = (int)total;
        total += count;
    }
    return total;
}

static weft_status share_bytes(circle *circle, weft_context *context, const uint8_t *own, uint64_t done) {
    uint64_t total = plan_call(circle, done);
    weft_status status = grow(circle, context, &circle->received, &circle->call_room, total);
    if (status != WEFT_OK) {
        return status;
    }
    int count = circle->counts[circle->rank];
    const uint8_t *from = count > 0 ? own + done : own;
    int error = MPI_Allgatherv(from, count, MPI_BYTE, circle->received, circle->counts, circle->offsets,
                               MPI_BYTE, circle->ranks_comm);
    if (error != MPI_SUCCESS) {
        return fail_mpi(context, error, "gather payloads");
    }
    for (int rank = 0; rank < circle->ranks; rank++) {
        if (circle->counts[rank] > 0) {
            memcpy(circle->payloads + circle->starts[rank] + done, circle->received + circle->offsets[rank],
                   (size_t)circle->counts[rank]);
        }
    }
    return WEFT_OK;
}

static weft_status share(void *opaque, weft_context *context, uint64_t round, const weft_loco_payload *own,
                         weft_loco_payload *all, size_t ranks) {
    circle *circle = opaque;
    uint64_t most = 0;
    (void)round;
    if (ranks != (size_t)circle->ranks) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%zu ranks were to share, but MPI has started %d",
                         ranks, circle->ranks);
    }
    weft_status status = share_sizes(circle, context, own->size, &most);
    for (uint64_t done = 0; done < most && status == WEFT_OK; done += circle->share) {
        status = share_bytes(circle, context, own->data, done);
    }
    for (size_t rank = 0; rank < ranks && status == WEFT_OK; rank++) {
        all[rank] =
            (weft_loco_payload){circle->payloads + circle->starts[rank], (size_t)circle->sizes[rank]};
    }
    return status;
}

static void close_circle(void *opaque) {
    circle *circle = opaque;
    bool finalise = circle->finalise;
    if (circle->ranks_comm != MPI_COMM_NULL) {
        MPI_Comm_free(&circle->ranks_comm);
    }
    weft_release(circle->context, circle->sizes);
    weft_release(circle->context, circle->starts);
    weft_release(circle->context, circle->counts);
    weft_release(circle->context, circle->offsets);
    weft_release(circle->context, circle->payloads);
    weft_release(circle->context, circle->received);
    weft_context *context = circle->context;
    weft_release(context, circle);
    weft_context_destroy(context);
    if (finalise) {
        MPI_Finalize();
    }
}

/* Any thread may call, one at a time, if MPI has that: so rounds can overlap. */
static weft_status initialise(weft_context *context, bool *finalise_out, bool *threads_out) {
    int initialised = 0;
    int provided = MPI_THREAD_SINGLE;
    int error = MPI_Initialized(&initialised);
    *finalise_out = false;
    if (error == MPI_SUCCESS && !initialised) {
        error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
        *finalise_out = error == MPI_SUCCESS;
    } else if (error == MPI_SUCCESS) {
        error = MPI_Query_thread(&provided);
    }
    *threads_out = provided >= MPI_THREAD_SERIALIZED;
    return error == MPI_SUCCESS ? WEFT_OK : fail_mpi(context, error, "start");
}

/* A communicator of our own: messages of the caller's cannot be taken for ours, and errors come back. */
static weft_status join(circle *circle, weft_context *context) {
    int error = MPI_Comm_dup(MPI_COMM_WORLD, &circle->ranks_comm);
    if (error == MPI_SUCCESS) {
        error = MPI_Comm_set_errhandler(circle->ranks_comm, MPI_ERRORS_RETURN);
    }
    if (error == MPI_SUCCESS) {
        error = MPI_Comm_rank(circle->ranks_comm, &circle->rank);
    }
    if (error == MPI_SUCCESS) {
        error = MPI_Comm_size(circle->ranks_comm, &circle->ranks);
    }
    if (error != MPI_SUCCESS) {
        return fail_mpi(context, error, "join its ranks");
    }
    if (circle->ranks > WEFT_LOCO_RANKS_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "MPI has started %d ranks, and %d is the most",
                         circle->ranks, WEFT_LOCO_RANKS_MAX);
    }
    size_t ranks = (size_t)circle->ranks;
    circle->sizes = weft_allocate_array(context, ranks, sizeof *circle->sizes);
    circle->starts = weft_allocate_array(context, ranks, sizeof *circle->starts);
    circle->counts = weft_allocate_array(context, ranks, sizeof *circle->counts);
    circle->offsets = weft_allocate_array(context, ranks, sizeof *circle->offsets);
    return circle->sizes != NULL && circle->starts != NULL && circle->counts != NULL &&
                   circle->offsets != NULL
               ? WEFT_OK
               : WEFT_NO_MEMORY;
}

weft_status weft_loco_mpi_open(weft_context *context, const weft_loco_mpi_options *given,
                               weft_loco_exchange *exchange_out, uint32_t *rank_out, uint32_t *ranks_out) {
    weft_context_clear(context);
    weft_loco_mpi_options options;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_loco_mpi_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, exchange_out, "weft_loco_exchange");
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_context *own = NULL;
    status = weft_context_derive(context, NULL, NULL, &own);
    if (status != WEFT_OK) {
        return status;
    }
    circle *circle = weft_allocate_zeroed(own, 1, sizeof *circle);
    if (circle == NULL) {
        weft_context_destroy(own);
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for the ranks of MPI");
    }
    circle->context = own;
    circle->ranks_comm = MPI_COMM_NULL;
    bool threads = false;
    status = initialise(context, &circle->finalise, &threads);
    if (status == WEFT_OK) {
        status = join(circle, context);
    }
    if (status != WEFT_OK) {
        close_circle(circle);
        return status;
    }
    uint64_t bytes = options.round_bytes != 0 ? options.round_bytes : ROUND_BYTES;
    bytes = bytes < INT32_MAX ? bytes : INT32_MAX;
    circle->share = bytes / (uint64_t)circle->ranks > 0 ? bytes / (uint64_t)circle->ranks : 1;
    const weft_loco_exchange exchange = {.size = sizeof exchange,
                                         .share = share,
                                         .close = close_circle,
                                         .opaque = circle,
                                         .threads = threads};
    weft_sized_write(&exchange, exchange_out, sizeof exchange);
    *rank_out = (uint32_t)circle->rank;
    *ranks_out = (uint32_t)circle->ranks;
    return WEFT_OK;
}
