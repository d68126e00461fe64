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

#include "../../base/status.h"
#include "../../tensor/strides.h"
#include "../../tensor/table.h"
#include "fast_loop.h"

enum { AHEAD = 32 /* changes ahead of the current one whose memory is asked for */ };

void weft_proof_begin(weft_proof *proof, const weft_window *window, weft_proof_mode mode, bool write,
                      weft_sums *moves) {
    proof->window = window;
    proof->mode = mode;
    proof->write = write;
    proof->moves = moves;
    proof->gathered = NULL;
    proof->gathered_counts = NULL;
    proof->delta = (weft_sum){{0, 0}};
    proof->run = 0;
    proof->word = UINT64_MAX;
    proof->grain = UINT64_MAX;
    proof->count = 0;
}

static void flush(weft_proof *proof) {
    if (proof->count == 0) {
        return;
    }
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    weft_sum moved = kernels->sum_words(proof->after, proof->words, proof->count);
    weft_sum_subtract(&moved, kernels->sum_words(proof->before, proof->words, proof->count));
    weft_sum_add(&proof->delta, moved);
    if (proof->moves != NULL) {
        size_t tensor = proof->window->runs[proof->run].tensor;
        weft_sums_move(proof->moves, tensor, proof->grain * WEFT_GRAIN_BYTES, moved);
    }
    proof->count = 0;
}

weft_sum weft_proof_finish(weft_proof *proof) {
    flush(proof);
    return proof->delta;
}

/* A tensor's last word may be short. */
static inline __attribute__((always_inline)) void load_word(const uint8_t *memory, size_t bytes,
                                                            size_t offset, uint8_t *output) {
    if (__builtin_expect(offset + WEFT_WORD <= bytes, 1)) {
        memcpy(output, memory + offset, WEFT_WORD);
    } else {
        memset(output, 0, WEFT_WORD);
        memcpy(output, memory + offset, bytes - offset);
    }
}

/* Goes on to the run that holds `position`. Short runs of a tensor share a batch: the rows of a box that is
 * not held alone are many, and a grain has many of them. */
static void enter_run(weft_proof *proof, uint32_t position) {
    const weft_run *runs = proof->window->runs;
    size_t next = proof->run;
    while (position >= runs[next].linear + runs[next].units) {
        next++;
    }
    if (next == proof->run) {
        return;
    }
    if (runs[next].tensor != runs[proof->run].tensor) {
        flush(proof);
        proof->grain = UINT64_MAX;
    }
    proof->word = UINT64_MAX;
    proof->run = next;
}

/* The run that a proof is in. */
typedef struct run_place {
    uint64_t linear;
    uint64_t end;
    uint64_t first_byte; /* in the tensor */
    uint32_t row;        /* units, 0 without rows */
    uint64_t gap_bytes;
    uint64_t memory_gap_bytes;
    const uint8_t *memory;
    size_t bytes; /* from the first in memory to the last */
} run_place;

static inline run_place place_of(const weft_proof *proof, unsigned width) {
    const weft_run *run = &proof->window->runs[proof->run];
    return (run_place){
        .linear = run->linear,
        .end = run->linear + run->units,
        .first_byte = run->unit * width,
        .row = (uint32_t)run->row,
        .gap_bytes = run->gap * width,
        .memory_gap_bytes = run->memory_gap * width,
        .memory = run->memory,
        .bytes = (size_t)(weft_run_offset(run, run->units - 1) + 1) * width,
    };
}

/* Adds the gaps before the unit at `unit` units into the run, to its byte in the tensor and to its offset
 * in memory. Most runs have none, and should not wait for a product with nothing. */
static inline __attribute__((always_inline)) void
add_gaps(const run_place *run, uint32_t unit, uint64_t memory_gap_bytes, uint64_t *byte, size_t *offset) {
    if (run->row != 0) {
        uint32_t row = unit / run->row;
        *byte += row * run->gap_bytes;
        *offset += (size_t)(row * memory_gap_bytes);
    }
}

/* The hot loop: takes changes from `first` on, and returns where it stopped: at `end`, or, unless they are
 * gathered, at a run that is not in memory. What changes from one step to the next is kept out of the
 * structure, since a store of bytes could be to anything in it. */
static inline __attribute__((always_inline)) size_t prove_runs(weft_proof *proof, const uint8_t *words,
                                                               const weft_changes *changes, size_t first,
                                                               size_t end, bool steps, bool gathered,
                                                               bool write, unsigned width) {
    const uint32_t *positions = changes->positions;
    uint8_t *olds = changes->olds;
    uint8_t *news = changes->news;
    run_place run = place_of(proof, width);
    uint64_t word = proof->word;
    uint64_t grain = proof->grain;
    size_t count = proof->count;
    size_t i = first;
    for (; i < end; i++) {
        if (__builtin_expect(!gathered && positions[i] >= run.end, 0)) {
            proof->count = count;
            enter_run(proof, positions[i]);
            run = place_of(proof, width);
            word = UINT64_MAX;
            grain = proof->grain;
            count = proof->count;
            if (run.memory == NULL) {
                break;
            }
        }
        uint32_t unit = (uint32_t)(positions[i] - run.linear);
        size_t offset = (size_t)unit * width;
        uint64_t byte = run.first_byte + offset;
        add_gaps(&run, unit, run.memory_gap_bytes, &byte, &offset);
        /* the runs behind this one most often follow it in memory; where they do not, nothing is lost */
        if (!gathered && i + AHEAD < end) {
            uint32_t ahead = (uint32_t)(positions[i + AHEAD] - run.linear);
            uint64_t gaps = run.memory_gap_bytes == 0 ? 0 : ahead / run.row * run.memory_gap_bytes;
            __builtin_prefetch((const void *)((uintptr_t)run.memory + (uint64_t)ahead * width + gaps));
        }
        if (byte / WEFT_WORD != word) {
            word = byte / WEFT_WORD;
            if (count == WEFT_PROOF_BATCH || byte / WEFT_GRAIN_BYTES != grain) {
                proof->count = count;
                flush(proof);
                count = 0;
                grain = byte / WEFT_GRAIN_BYTES;
                proof->grain = grain;
            }
            uint8_t *before = proof->before + count * WEFT_WORD;
            if (gathered) {
                memcpy(before, words, WEFT_WORD);
                words += WEFT_WORD;
            } else {
                load_word(run.memory, run.bytes, offset - byte % WEFT_WORD, before);
            }
            memcpy(proof->after + count * WEFT_WORD, before, WEFT_WORD);
            proof->words[count++] = word;
        }
        size_t place = (count - 1) * WEFT_WORD + byte % WEFT_WORD;
        uint64_t value = weft_unit_load(news, i, width);
        if (steps) {
            uint64_t old = gathered ? weft_unit_load(proof->before + place, 0, width)
                                    : weft_unit_load(run.memory + offset, 0, width);
            value += old;
            weft_unit_store(olds, i, width, old);
            weft_unit_store(news, i, width, value);
        }
        weft_unit_store(proof->after + place, 0, width, value);
        if (write) {
            weft_unit_store((uint8_t *)(uintptr_t)run.memory + offset, 0, width, value);
        }
    }
    proof->word = word;
    proof->count = count;
    return i;
}

/* One loop per combination, so that the common ones are free of questions. `words` are those of the current
 * run that were gathered, or NULL. */
static size_t prove_width(weft_proof *proof, const uint8_t *words, const weft_changes *changes,
                          size_t first, size_t end) {
    bool gathered = words != NULL;
    bool steps = proof->mode == WEFT_PROOF_STEPS;
    bool write = proof->write;
    if (changes->width == 2 && !gathered && steps && !write) {
        return prove_runs(proof, words, changes, first, end, true, false, false, 2);
    }
    if (changes->width == 2 && !gathered && !steps && !write) {
        return prove_runs(proof, words, changes, first, end, false, false, false, 2);
    }
    if (changes->width == 2 && !gathered && !steps) {
        return prove_runs(proof, words, changes, first, end, false, false, true, 2);
    }
    switch (changes->width) {
    case 1:
        return prove_runs(proof, words, changes, first, end, steps, gathered, write, 1);
    case 2:
        return prove_runs(proof, words, changes, first, end, steps, gathered, write, 2);
    case 4:
        return prove_runs(proof, words, changes, first, end, steps, gathered, write, 4);
    default:
        return prove_runs(proof, words, changes, first, end, steps, gathered, write, 8);
    }
}

/* Memory that is written to, and the batch's state while a loop runs. The memory is the run's own, with its
 * gaps, or a stretch without any, which starts `skipped` units into the run. */
typedef struct write_state {
    run_place run;
    uint8_t *memory;
    size_t bytes;
    uint32_t skipped;
    uint64_t gap_bytes;
    uint64_t grain;
    size_t count;
} write_state;

static inline write_state write_begin(const weft_proof *proof, uint8_t *memory, size_t bytes,
                                      uint64_t linear, unsigned width) {
    run_place run = place_of(proof, width);
    return (write_state){
        .run = run,
        .memory = memory,
        .bytes = bytes,
        .skipped = (uint32_t)(linear - run.linear),
        .grain = proof->grain,
        .count = proof->count,
    };
}

/* The same for the memory of the current run. */
static inline write_state write_begin_run(const weft_proof *proof, unsigned width) {
    run_place run = place_of(proof, width);
    return (write_state){
        .run = run,
        .memory = (uint8_t *)(uintptr_t)run.memory,
        .bytes = run.bytes,
        .gap_bytes = run.memory_gap_bytes,
        .grain = proof->grain,
        .count = proof->count,
    };
}

/* Every change is an entry of its own, and reads what those before it wrote. Returns the old value. */
static inline __attribute__((always_inline)) uint64_t
write_one(weft_proof *proof, write_state *state, uint32_t unit, uint64_t value, bool step, unsigned width) {
    size_t offset = (size_t)unit * width;
    uint64_t byte = state->run.first_byte + (uint64_t)(state->skipped + unit) * width;
    add_gaps(&state->run, state->skipped + unit, state->gap_bytes, &byte, &offset);
    if (__builtin_expect(state->count == WEFT_PROOF_BATCH || byte / WEFT_GRAIN_BYTES != state->grain, 0)) {
        proof->count = state->count;
        flush(proof);
        state->count = 0;
        state->grain = byte / WEFT_GRAIN_BYTES;
        proof->grain = state->grain;
    }
    uint8_t *before = proof->before + state->count * WEFT_WORD;
    uint8_t *after = proof->after + state->count * WEFT_WORD;
    load_word(state->memory, state->bytes, offset - byte % WEFT_WORD, before);
    memcpy(after, before, WEFT_WORD);
    uint64_t old = weft_unit_load(state->memory + offset, 0, width);
    uint64_t new = step ? old + value : value;
    weft_unit_store(after + byte % WEFT_WORD, 0, width, new);
    weft_unit_store(state->memory + offset, 0, width, new);
    proof->words[state->count++] = byte / WEFT_WORD;
    return old;
}

static inline __attribute__((always_inline)) void write_some(weft_proof *proof, write_state *state,
                                                             const weft_changes *changes, size_t first,
                                                             size_t end, bool steps, unsigned width) {
    const uint32_t *positions = changes->positions;
    uint64_t linear = state->run.linear + state->skipped;
    uint8_t *olds = changes->olds;
    uint8_t *news = changes->news;
    for (size_t i = first; i < end; i++) {
        uint64_t value = weft_unit_load(news, i, width);
        uint64_t old = write_one(proof, state, (uint32_t)(positions[i] - linear), value, steps, width);
        weft_unit_store(olds, i, width, old);
        weft_unit_store(news, i, width, steps ? old + value : value);
    }
    proof->count = state->count;
}

/* Decoding a change waits for its own bits, writing one waits for memory: in one loop, with the writing
 * some changes behind, neither is waited for. */
enum { RING = 64, BEHIND = 32 };

/* Writes one decoded step, entering the run that it belongs to first. */
static inline __attribute__((always_inline)) void write_step(weft_proof *proof, write_state *state,
                                                             uint32_t position, uint16_t step) {
    const weft_run *run = &proof->window->runs[proof->run];
    if (__builtin_expect(position >= run->linear + run->units, 0)) {
        proof->count = state->count;
        enter_run(proof, position);
        run = &proof->window->runs[proof->run];
        *state = write_begin_run(proof, 2);
    }
    write_one(proof, state, (uint32_t)(position - run->linear), step, true, 2);
}

bool weft_proof_fast_through(weft_proof *proof, weft_fast_decoder *decoder, size_t count) {
    write_state state = write_begin_run(proof, 2);
    weft_fast_decoder d = *decoder;
    uint32_t positions[RING];
    uint16_t steps[RING];
    for (size_t i = 0; i < count; i++) {
        weft_fast_refill(&d);
        d.next += weft_fast_gap(&d);
        if (__builtin_expect(d.next >= d.units, 0)) {
            return false;
        }
        const weft_run *run = &proof->window->runs[proof->run];
        uint64_t offset = weft_run_offset(run, d.next - run->linear);
        __builtin_prefetch((const void *)((uintptr_t)run->memory + 2 * offset), 1);
        positions[i % RING] = (uint32_t)d.next++;
        steps[i % RING] = (uint16_t)weft_fast_step(&d, 2);
        if (i >= BEHIND) {
            write_step(proof, &state, positions[(i - BEHIND) % RING], steps[(i - BEHIND) % RING]);
        }
    }
    for (size_t i = count < BEHIND ? 0 : count - BEHIND; i < count; i++) {
        write_step(proof, &state, positions[i % RING], steps[i % RING]);
    }
    proof->count = state.count;
    *decoder = d;
    return weft_fast_used(&d) <= 8 * (d.end - d.start);
}

static void write_width(weft_proof *proof, write_state state, weft_changes *changes, size_t first,
                        size_t end) {
    bool steps = proof->mode == WEFT_PROOF_STEPS;
    if (changes->width == 2 && steps) {
        write_some(proof, &state, changes, first, end, true, 2);
    } else if (changes->width == 1) {
        write_some(proof, &state, changes, first, end, steps, 1);
    } else if (changes->width == 2) {
        write_some(proof, &state, changes, first, end, false, 2);
    } else if (changes->width == 4) {
        write_some(proof, &state, changes, first, end, steps, 4);
    } else {
        write_some(proof, &state, changes, first, end, steps, 8);
    }
}

/* A run without memory is one segment whose words are the live tensor's words. */
size_t weft_run_words(const weft_window *window, const weft_run *run, const weft_changes *changes,
                      size_t first, size_t end, uint64_t *words_out) {
    const weft_segment *segment = &window->segments.items[run - window->runs];
    size_t count = 0;
    for (size_t i = first; i < end; i++) {
        uint64_t unit = weft_segment_live(segment, changes->positions[i] - run->linear);
        uint64_t word = unit * changes->width / WEFT_WORD;
        if (count == 0 || words_out[count - 1] != word) {
            words_out[count++] = word;
        }
    }
    return count;
}

static weft_status gather_from(weft_context *context, const weft_tensor *live, const uint64_t *indices,
                               size_t count, uint8_t *words) {
    if (live->strides != NULL) {
        weft_tensor_gather(live, indices, count, words);
        return WEFT_OK;
    }
    return weft_answer(context, live->access->gather(live->opaque, indices, count, words),
                       "the gather function of tensor \"%.*s\"", WEFT_NAME_SHOWN, live->name);
}

/* The touched words of a run without memory, in order. */
static weft_status gather_words(const weft_window *window, const weft_run *run, const weft_changes *changes,
                                size_t first, size_t end, uint8_t **words_out) {
    const weft_segment *segment = &window->segments.items[run - window->runs];
    uint64_t *indices = weft_allocate_array(window->context, end - first, sizeof *indices);
    uint8_t *words = weft_allocate_array(window->context, end - first, WEFT_WORD);
    weft_status status = indices == NULL || words == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        size_t count = weft_run_words(window, run, changes, first, end, indices);
        memset(words, 0, count * WEFT_WORD);
        status = gather_from(window->context, segment->live, indices, count, words);
    }
    weft_release(window->context, indices);
    if (status != WEFT_OK) {
        weft_release(window->context, words);
        return status;
    }
    *words_out = words;
    return WEFT_OK;
}

/* The changes from `first` to `end` are of the current run, which lies behind callbacks. */
static weft_status prove_gathered(weft_proof *proof, weft_changes *changes, size_t first, size_t end) {
    const weft_run *run = &proof->window->runs[proof->run];
    if (proof->gathered != NULL) {
        prove_width(proof, proof->gathered, changes, first, end);
        proof->gathered += proof->gathered_counts[proof->run] * WEFT_WORD;
        return WEFT_OK;
    }
    uint8_t *words;
    weft_status status = gather_words(proof->window, run, changes, first, end, &words);
    if (status == WEFT_OK) {
        prove_width(proof, words, changes, first, end);
        weft_release(proof->window->context, words);
    }
    return status;
}

/* The end of the changes from `first` on that are in the current run. */
static size_t run_changes(const weft_proof *proof, const weft_changes *changes, size_t first, size_t end) {
    const weft_run *run = &proof->window->runs[proof->run];
    uint64_t limit = run->linear + run->units;
    if (changes->positions[end - 1] < limit) {
        return end;
    }
    size_t last = first + 1;
    while (changes->positions[last] < limit) {
        last++;
    }
    return last;
}

weft_status weft_proof_add(weft_proof *proof, weft_changes *changes, size_t first, size_t end) {
    weft_status status = WEFT_OK;
    while (first < end && status == WEFT_OK) {
        enter_run(proof, changes->positions[first]);
        bool memory = proof->window->runs[proof->run].memory != NULL;
        if (memory && !(proof->write && proof->mode == WEFT_PROOF_STEPS)) {
            first = prove_width(proof, NULL, changes, first, end);
            continue;
        }
        size_t last = run_changes(proof, changes, first, end);
        if (!memory) {
            status = prove_gathered(proof, changes, first, last);
        } else {
            /* such steps may be out of order, and a word that changes again must be read again */
            write_width(proof, write_begin_run(proof, changes->width), changes, first, last);
        }
        first = last;
    }
    return status;
}

void weft_proof_through(weft_proof *proof, weft_changes *changes, size_t first, size_t end, uint8_t *memory,
                        size_t bytes, uint64_t linear) {
    if (first < end) {
        enter_run(proof, (uint32_t)linear);
        write_width(proof, write_begin(proof, memory, bytes, linear, changes->width), changes, first, end);
    }
}

bool weft_proof_by_callback(const weft_proof *proof) {
    for (size_t i = 0; i < proof->window->run_count; i++) {
        if (proof->window->runs[i].memory == NULL) {
            return true;
        }
    }
    return false;
}

weft_status weft_window_prove(const weft_window *window, weft_changes *changes, weft_proof_mode mode,
                              bool write, weft_sums *moves, weft_sum *delta_out) {
    weft_proof proof;
    weft_proof_begin(&proof, window, mode, write, moves);
    weft_status status = weft_proof_add(&proof, changes, 0, changes->count);
    if (status == WEFT_OK) {
        *delta_out = weft_proof_finish(&proof);
    }
    return status;
}

weft_status weft_window_prove_gathered(const weft_window *window, weft_changes *changes,
                                       const uint8_t *words, const size_t *counts, weft_sums *moves,
                                       weft_sum *delta_out) {
    weft_proof proof;
    weft_proof_begin(&proof, window, WEFT_PROOF_STEPS, false, moves);
    proof.gathered = words;
    proof.gathered_counts = counts;
    weft_status status = weft_proof_add(&proof, changes, 0, changes->count);
    if (status == WEFT_OK) {
        *delta_out = weft_proof_finish(&proof);
    }
    return status;
}

weft_status weft_window_prove_all(const weft_window *window, const void *values, unsigned width, bool fresh,
                                  weft_sums *moves, weft_sum *delta_out) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    weft_sum delta = {{0, 0}};
    for (size_t i = 0; i < window->run_count; i++) {
        const weft_run *run = &window->runs[i];
        uint64_t bytes = run->units * width;
        const uint8_t *next = (const uint8_t *)values + run->linear * width;
        for (uint64_t done = 0; done < bytes;) {
            uint64_t byte = weft_run_unit(run, done / width) * width;
            uint64_t left = weft_run_left(run, done / width) * width;
            uint64_t room = WEFT_GRAIN_BYTES - byte % WEFT_GRAIN_BYTES;
            size_t size = (size_t)(left < room ? left : room);
            weft_sum moved = kernels->sum(next + done, size, byte / WEFT_WORD);
            if (!fresh) {
                const uint8_t *memory = run->memory + weft_run_offset(run, done / width) * width;
                weft_sum_subtract(&moved, kernels->sum(memory, size, byte / WEFT_WORD));
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
