/* SPDX-License-Identifier: Apache-2.0
 *
 * proof.c: what changes do to the digest, computed from the words in memory.
 *
 * Every touched word is copied twice, the new values are put into the second copy, and both copies are
 * mixed. The words come from live memory, never from the patch: a word that drifted anywhere gives
 * another delta, and the patch is refused. Words are collected in batches that stay in the first-level
 * cache; a batch ends where the grain ends, so that each grain gets its own share.
 */
#include "window.h"

enum {
    BATCH = 256,
    AHEAD = 24, /* changes ahead of the current one whose memory is asked for */
};

typedef struct proof {
    const weft_digest_kernels *kernels;
    weft_sums *moves;
    weft_sum delta;
    size_t tensor;
    uint64_t grain;
    size_t count;
    uint64_t words[BATCH];
    uint8_t before[BATCH * WEFT_WORD];
    uint8_t after[BATCH * WEFT_WORD];
} proof;

static void flush(proof *state) {
    if (state->count == 0) {
        return;
    }
    weft_sum moved = state->kernels->sum_words(state->after, state->words, state->count);
    weft_sum_subtract(&moved, state->kernels->sum_words(state->before, state->words, state->count));
    weft_sum_add(&state->delta, moved);
    if (state->moves != NULL) {
        weft_sums_move(state->moves, state->tensor, state->grain * WEFT_GRAIN_BYTES, moved);
    }
    state->count = 0;
}

/* Where the words of a run come from: memory, or a buffer with just the touched words in order. */
typedef struct word_source {
    const uint8_t *memory; /* byte 0 of the run */
    size_t bytes;          /* of the run */
    const uint8_t *gathered;
} word_source;

static inline __attribute__((always_inline)) void load_word(const word_source *source, size_t offset,
                                                            uint8_t *output) {
    if (offset + WEFT_WORD <= source->bytes) {
        memcpy(output, source->memory + offset, WEFT_WORD);
    } else {
        memset(output, 0, WEFT_WORD);
        memcpy(output, source->memory + offset, source->bytes - offset);
    }
}

static inline __attribute__((always_inline)) void prove_run(proof *state, const weft_run *run,
                                                            word_source source, weft_changes *changes,
                                                            size_t first, size_t end, bool steps,
                                                            bool gathered, unsigned width) {
    const uint32_t *positions = changes->positions;
    uint64_t first_byte = run->unit * width;
    uint64_t word = UINT64_MAX;
    flush(state);
    state->tensor = run->tensor;
    state->grain = UINT64_MAX;
    for (size_t i = first; i < end; i++) {
        size_t offset = (size_t)(positions[i] - run->linear) * width;
        if (!gathered && i + AHEAD < end) {
            __builtin_prefetch(source.memory + (size_t)(positions[i + AHEAD] - run->linear) * width);
        }
        uint64_t byte = first_byte + offset;
        if (byte / WEFT_WORD != word) {
            word = byte / WEFT_WORD;
            if (state->count == BATCH || byte / WEFT_GRAIN_BYTES != state->grain) {
                flush(state);
                state->grain = byte / WEFT_GRAIN_BYTES;
            }
            uint8_t *before = state->before + state->count * WEFT_WORD;
            uint8_t *after = state->after + state->count * WEFT_WORD;
            if (gathered) {
                memcpy(before, source.gathered, WEFT_WORD);
                source.gathered += WEFT_WORD;
            } else {
                load_word(&source, offset & ~(size_t)(WEFT_WORD - 1), before);
            }
            memcpy(after, before, WEFT_WORD);
            state->words[state->count++] = word;
        }
        size_t place = (state->count - 1) * WEFT_WORD + byte % WEFT_WORD;
        uint64_t value = weft_unit_load(changes->news, i, width);
        if (steps) {
            uint64_t old = gathered ? weft_unit_load(state->before + place, 0, width)
                                    : weft_unit_load(source.memory + offset, 0, width);
            value += old;
            weft_unit_store(changes->olds, i, width, old);
            weft_unit_store(changes->news, i, width, value);
        }
        weft_unit_store(state->after + place, 0, width, value);
    }
    flush(state);
}

/* One loop per combination, so that the common ones are free of questions. */
static void prove_width(proof *state, const weft_run *run, word_source source, weft_changes *changes,
                        size_t first, size_t end, bool steps) {
    bool gathered = source.gathered != NULL;
    if (changes->width == 2 && !gathered && steps) {
        prove_run(state, run, source, changes, first, end, true, false, 2);
    } else if (changes->width == 2 && !gathered) {
        prove_run(state, run, source, changes, first, end, false, false, 2);
    } else if (changes->width == 1) {
        prove_run(state, run, source, changes, first, end, steps, gathered, 1);
    } else if (changes->width == 2) {
        prove_run(state, run, source, changes, first, end, steps, gathered, 2);
    } else if (changes->width == 4) {
        prove_run(state, run, source, changes, first, end, steps, gathered, 4);
    } else {
        prove_run(state, run, source, changes, first, end, steps, gathered, 8);
    }
}

/* The touched words of a run that lies behind callbacks, in order. Such a run is one segment whose words
 * are the live tensor's words. */
static weft_status gather_words(const weft_window *window, const weft_run *run, const weft_changes *changes,
                                size_t first, size_t end, uint8_t **words_out) {
    const weft_segment *segment = &window->segments.items[run - window->runs];
    uint64_t shift = segment->live_unit * changes->width / WEFT_WORD;
    uint64_t *indices = weft_allocate_array(window->context, end - first, sizeof *indices);
    uint8_t *words = weft_allocate_array(window->context, end - first, WEFT_WORD);
    weft_status status = indices == NULL || words == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    size_t count = 0;
    for (size_t i = first; i < end && status == WEFT_OK; i++) {
        uint64_t word = shift + (changes->positions[i] - run->linear) * changes->width / WEFT_WORD;
        if (count == 0 || indices[count - 1] != word) {
            indices[count++] = word;
        }
    }
    if (status == WEFT_OK) {
        memset(words, 0, count * WEFT_WORD);
        status = segment->live->access->gather(segment->live->opaque, indices, count, words);
        if (status != WEFT_OK) {
            weft_fail(window->context, status, "the gather callback of tensor %s failed",
                      segment->live->name);
        }
    }
    weft_release(window->context, indices);
    if (status != WEFT_OK) {
        weft_release(window->context, words);
        return status;
    }
    *words_out = words;
    return WEFT_OK;
}

static weft_status prove_one(proof *state, const weft_window *window, const weft_run *run,
                             weft_changes *changes, size_t first, size_t end, bool steps) {
    word_source source = {run->memory, (size_t)run->units * changes->width, NULL};
    if (run->memory != NULL) {
        prove_width(state, run, source, changes, first, end, steps);
        return WEFT_OK;
    }
    uint8_t *words = NULL;
    weft_status status = gather_words(window, run, changes, first, end, &words);
    if (status == WEFT_OK) {
        source.gathered = words;
        prove_width(state, run, source, changes, first, end, steps);
        weft_release(window->context, words);
    }
    return status;
}

weft_status weft_window_prove(const weft_window *window, weft_changes *changes, weft_proof_mode mode,
                              weft_sums *moves, weft_sum *delta_out) {
    proof state;
    state.kernels = weft_digest_kernels_for(weft_cpu_level());
    state.moves = moves;
    state.delta = (weft_sum){{0, 0}};
    state.count = 0;
    size_t first = 0;
    for (size_t i = 0; i < window->run_count && first < changes->count; i++) {
        const weft_run *run = &window->runs[i];
        uint64_t limit = run->linear + run->units;
        size_t end = first;
        if (i + 1 == window->run_count) {
            end = changes->count;
        }
        while (end < changes->count && changes->positions[end] < limit) {
            end++;
        }
        if (end > first) {
            weft_status status =
                prove_one(&state, window, run, changes, first, end, mode == WEFT_PROOF_STEPS);
            if (status != WEFT_OK) {
                return status;
            }
        }
        first = end;
    }
    *delta_out = state.delta;
    return WEFT_OK;
}

weft_status weft_window_prove_all(const weft_window *window, const void *values, unsigned width, bool fresh,
                                  weft_sums *moves, weft_sum *delta_out) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    weft_sum delta = {{0, 0}};
    for (size_t i = 0; i < window->run_count; i++) {
        const weft_run *run = &window->runs[i];
        uint64_t first_byte = run->unit * width;
        uint64_t bytes = run->units * width;
        const uint8_t *next = (const uint8_t *)values + run->linear * width;
        for (uint64_t done = 0; done < bytes;) {
            uint64_t byte = first_byte + done;
            uint64_t room = WEFT_GRAIN_BYTES - byte % WEFT_GRAIN_BYTES;
            size_t size = (size_t)(bytes - done < room ? bytes - done : room);
            weft_sum moved = kernels->sum(next + done, size, byte / WEFT_WORD);
            if (!fresh) {
                weft_sum_subtract(&moved, kernels->sum(run->memory + done, size, byte / WEFT_WORD));
            }
            weft_sum_add(&delta, moved);
            if (moves != NULL) {
                weft_sums_move(moves, run->tensor, byte, moved);
            }
            done += size;
        }
    }
    *delta_out = delta;
    return WEFT_OK;
}
