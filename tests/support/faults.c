/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.c: the fault-injecting allocator. Bytes are counted as malloc gave them, which needs no header
 * in front of each block and so leaves the sanitizers' view of block bounds as it is.
 */
#include "faults.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static bool must_fail(faults *self) {
    size_t call = atomic_fetch_add(&self->calls, 1) + 1;
    return self->fail_at != 0 && (call == self->fail_at || (self->fail_on && call > self->fail_at));
}

static void count_block(faults *self, void *memory) {
    size_t bytes = malloc_usable_size(memory);
    atomic_fetch_add(&self->live_blocks, 1);
    size_t live = atomic_fetch_add(&self->live_bytes, bytes) + bytes;
    size_t peak = atomic_load(&self->peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&self->peak_bytes, &peak, live)) {
    }
}

static void discount_block(faults *self, void *memory) {
    atomic_fetch_sub(&self->live_blocks, 1);
    atomic_fetch_sub(&self->live_bytes, malloc_usable_size(memory));
}

/* Fresh memory is filled, so that nothing can rely on finding zeros in it. */
static void *allocate(void *opaque, size_t size) {
    faults *self = opaque;
    void *memory = must_fail(self) ? NULL : malloc(size);
    if (memory != NULL) {
        memset(memory, 0xa5, size);
        count_block(self, memory);
    }
    return memory;
}

/* The old block stops counting before realloc may give it to someone else. */
static void *reallocate(void *opaque, void *memory, size_t size) {
    faults *self = opaque;
    if (memory == NULL) {
        return allocate(opaque, size);
    }
    if (must_fail(self)) {
        return NULL;
    }
    discount_block(self, memory);
    void *moved = realloc(memory, size);
    count_block(self, moved != NULL ? moved : memory);
    return moved;
}

static void release(void *opaque, void *memory) {
    if (memory != NULL) {
        discount_block(opaque, memory);
        free(memory);
    }
}

weft_allocator faults_allocator(faults *self) {
    return (weft_allocator){allocate, reallocate, release, self};
}

void faults_reset(faults *self, size_t fail_at) {
    self->fail_at = fail_at;
    atomic_store(&self->calls, 0);
    atomic_store(&self->peak_bytes, atomic_load(&self->live_bytes));
}

size_t faults_calls(const faults *self) {
    return atomic_load(&self->calls);
}

bool faults_fired(const faults *self) {
    return self->fail_at != 0 && atomic_load(&self->calls) >= self->fail_at;
}

size_t faults_live_blocks(const faults *self) {
    return atomic_load(&self->live_blocks);
}

size_t faults_live_bytes(const faults *self) {
    return atomic_load(&self->live_bytes);
}

size_t faults_peak_bytes(const faults *self) {
    return atomic_load(&self->peak_bytes);
}
