/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.h: an allocator that fails when told to and counts what is alive, so that a test can fail each
 * allocation of an operation in turn and prove that nothing leaks. Safe from several threads.
 *
 *     faults faults = {0};
 *     for (size_t n = 1;; n++) {
 *         faults_reset(&faults, n);
 *         status = operation(context made with faults_allocator(&faults));
 *         assert_int_equal(faults_live_blocks(&faults), 0);
 *         if (!faults_fired(&faults)) {
 *             break;
 *         }
 *     }
 */
#ifndef WEFT_TESTS_FAULTS_H
#define WEFT_TESTS_FAULTS_H

#include <weft/base.h>

#include <stdatomic.h>

typedef struct faults {
    size_t fail_at; /* the call that fails, from 1; 0: none */
    bool fail_on;   /* every later call fails too */
    atomic_size_t calls;
    atomic_size_t live_blocks;
    atomic_size_t live_bytes;
    atomic_size_t peak_bytes;
} faults;

weft_allocator faults_allocator(faults *faults);
/* Starts counting calls again and sets which one fails. The peak starts from what is alive. */
void faults_reset(faults *faults, size_t fail_at);
/* Calls that took or would have taken memory, since the reset. */
size_t faults_calls(const faults *faults);
/* True if the call that was to fail was reached. */
bool faults_fired(const faults *faults);
size_t faults_live_blocks(const faults *faults);
size_t faults_live_bytes(const faults *faults);
/* The most bytes that were alive at once since the reset. */
size_t faults_peak_bytes(const faults *faults);

#endif
