/* SPDX-License-Identifier: Apache-2.0
 *
 * deferred.h: memory that is reached in batches, as an accelerator's: what is asked for between begin and
 * end is done at the end, and not before. It counts what moves, fails when told to, and notices a caller
 * that breaks the contract of weft_batch_access.
 */
#ifndef WEFT_TESTS_DEFERRED_H
#define WEFT_TESTS_DEFERRED_H

#include <weft/tensor.h>

#include <pthread.h>
#include <stdatomic.h>

typedef enum deferred_call {
    DEFERRED_BEGIN,
    DEFERRED_GATHER,
    DEFERRED_SCATTER,
    DEFERRED_END,
    DEFERRED_CALLS,
} deferred_call;

typedef struct deferred deferred;

/* A tensor's `opaque`. */
typedef struct deferred_tensor {
    deferred *device;
    uint8_t *memory;
    size_t bytes;
    unsigned width;
} deferred_tensor;

typedef struct deferred_request {
    const deferred_tensor *tensor;
    const uint64_t *indices;
    size_t count;
    void *output;
    const void *values;
    uint64_t checksum; /* of indices and values, which must stay what they were */
} deferred_request;

struct deferred {
    pthread_t thread; /* the only one that may call in batches */
    size_t calls[DEFERRED_CALLS];
    size_t fail_at[DEFERRED_CALLS]; /* the call that fails, from 1; 0: none */
    bool fail_on;                   /* later ones too */
    weft_status failure;            /* what a failing call returns */
    void (*inside)(void *opaque);   /* called by every call of a batch, unless NULL */
    void *inside_opaque;
    uint64_t index_bytes, gathered_bytes, scattered_bytes;
    atomic_uint_least64_t read_bytes;
    bool trusting; /* do not check, for measurements */
    bool open;
    atomic_bool misused;
    deferred_request *requests;
    size_t count, capacity;
};

/* Its calls come from this thread. */
void deferred_open(deferred *device);
void deferred_close(deferred *device);
/* Counts from 0 again. */
void deferred_reset(deferred *device);
weft_batch_access deferred_batch(deferred *device);
/* Only `read`, which works from any thread. */
extern const weft_access deferred_access;

#endif
