/* SPDX-License-Identifier: Apache-2.0
 *
 * strangers.h: functions that a caller gives to the library, which fail when told to, with any number, so
 * that a test can fail each call in turn:
 *
 *     for (size_t n = 1;; n++) {
 *         stranger_reset(&stranger, n, number);
 *         status = operation(with functions that ask stranger_fails);
 *         if (!stranger_fired(&stranger)) {
 *             break;
 *         }
 *     }
 *
 * Safe from several threads.
 */
#ifndef WEFT_TESTS_STRANGERS_H
#define WEFT_TESTS_STRANGERS_H

#include "models.h"

#include <stdatomic.h>

typedef struct stranger {
    size_t fail_at; /* the call that fails, from 1; 0: none */
    bool fail_on;   /* every later call fails too */
    int number;     /* that it returns then */
    atomic_size_t calls;
} stranger;

/* Every kind of number: a failure of ours, one that nobody knows, WEFT_MORE, and errors of CUDA. */
extern const int stranger_numbers[];
enum { STRANGER_NUMBERS = 5 };

/* What the library must make of a number that is not WEFT_OK. */
weft_status stranger_meaning(int number);

void stranger_reset(stranger *stranger, size_t fail_at, int number);
/* Counts a call, and says whether it is to fail. */
bool stranger_fails(stranger *stranger);
/* True if the call that was to fail was reached. */
bool stranger_fired(const stranger *stranger);

/* Memory behind the functions of weft_access. A read that fails has filled part of its buffer with garbage,
 * and a scatter that fails has written half of its units, as a device does that is lost on the way. */
typedef struct far_tensor {
    uint8_t *memory;
    size_t bytes;
    unsigned width;
    stranger *stranger;
} far_tensor;

extern const weft_access far_access;

/* Puts the memory of a tensor behind these functions. */
void far_tensor_take(far_tensor *far, weft_tensor *tensor, stranger *stranger);

/* A patch that is read by a function. */
typedef struct far_patch {
    const bytes *file;
    stranger *stranger;
} far_patch;

weft_source far_patch_source(far_patch *patch);

/* A sink that keeps what it is given. */
typedef struct far_sink {
    bytes file;
    stranger *stranger;
} far_sink;

weft_sink far_sink_over(far_sink *sink);

/* A progress function: false from the call that was to fail on. */
bool stranger_progress(void *stranger, const char *phase, uint64_t done, uint64_t total);

#endif
