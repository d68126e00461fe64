/* SPDX-License-Identifier: Apache-2.0
 *
 * window.h: one bucket of a view, as memory.
 *
 * A bucket is a list of spans of tensors of one dtype, laid end to end: its units are counted by one
 * linear position. A window finds where they lie in live memory, as runs of equal rows at equal distances
 * there, which start on a 16-byte word of their checkpoint tensor, so that digests can be computed row by
 * row. What is not like that (callbacks, layouts that cut through words) is first copied to a scratch
 * buffer, or, where only a few words are needed, fetched by word.
 */
#ifndef WEFT_PATCH_BUCKET_WINDOW_H
#define WEFT_PATCH_BUCKET_WINDOW_H

#include "../../tensor/digest.h"
#include "../../tensor/view.h"
#include "changes.h"

typedef struct weft_bucket_span {
    size_t tensor; /* index among the tensors of the patch */
    weft_span span;
} weft_bucket_span;

/* What a bucket covers. */
typedef struct weft_bucket {
    weft_bucket_span *spans;
    size_t span_count;
    uint64_t units;
    unsigned width;
    weft_dtype dtype;
    unsigned format; /* of the patch that it is coded for; 0: the newest */
} weft_bucket;

typedef struct weft_run {
    uint64_t linear;        /* first unit along the bucket */
    uint64_t units;         /* length */
    uint64_t unit;          /* first unit in the tensor */
    uint64_t row;           /* units of a row, 0 if all of it is one; rows start and end on words */
    uint64_t gap;           /* units of the tensor between the end of a row and the next */
    uint64_t memory_gap;    /* the same in memory */
    size_t tensor;          /* view index */
    const uint8_t *memory;  /* its first byte, in dtype; NULL if only reached by word */
    const uint8_t *masters; /* FP32, if that is what the view holds and nobody asked for dtype */
} weft_run;

/* The unit of the tensor that lies `offset` units into the run. */
static inline uint64_t weft_run_unit(const weft_run *run, uint64_t offset) {
    return run->unit + offset + (run->row != 0 ? offset / run->row * run->gap : 0);
}

/* How many units of memory lie before it, from the run's first. */
static inline uint64_t weft_run_offset(const weft_run *run, uint64_t offset) {
    return offset + (run->memory_gap != 0 ? offset / run->row * run->memory_gap : 0);
}

/* How many units follow each other in memory from there on. */
static inline uint64_t weft_run_joined(const weft_run *run, uint64_t offset) {
    return run->memory_gap != 0 ? run->row - offset % run->row : run->units - offset;
}

/* How many units follow each other in the tensor, and in memory, from there on. */
static inline uint64_t weft_run_left(const weft_run *run, uint64_t offset) {
    return run->row != 0 ? run->row - offset % run->row : run->units - offset;
}

typedef enum weft_window_need {
    WEFT_NEED_NOTHING, /* segments only, to see what is held */
    WEFT_NEED_BYTES,   /* every run in memory, in dtype */
    WEFT_NEED_MASTERS, /* the same, except that FP32 masters may stay FP32 */
    WEFT_NEED_WORDS,   /* single words only; runs reached by callbacks need no memory */
} weft_window_need;

typedef struct weft_window {
    weft_context *context;
    const weft_view *view;
    weft_segments segments;
    weft_run *runs;
    size_t run_count;
    size_t run_capacity;
    uint8_t *scratch;
    size_t scratch_capacity;
    weft_holding holding;
    bool writable; /* every segment may be changed */
    bool direct;   /* runs are live memory, not copies */
} weft_window;

void weft_window_open(weft_window *window, weft_context *context);
void weft_window_close(weft_window *window);
/* Points the window at a bucket. `tensor_map` gives the view index of each of the patch's tensors, -1
 * for none. Runs are set only if the view holds all of the bucket. */
weft_status weft_window_set(weft_window *window, const weft_view *view, const int64_t *tensor_map,
                            const weft_bucket *bucket, weft_window_need need);

/* Points the window at a copy of the bucket in plain memory, in dtype. It can be read and proven, not
 * written to. */
weft_status weft_window_set_memory(weft_window *window, const weft_bucket *bucket, const uint8_t *memory);

/* True if the segment is reached in batches (weft_batch_access): no call below writes to it. */
bool weft_window_in_batch(const weft_window *window, const weft_segment *segment);

/* Writes the new (or with `restore` the old) values to live memory; not those of tensors that are tied to
 * others, whose memory they are in. */
weft_status weft_window_scatter(const weft_window *window, const weft_changes *changes, bool restore);
/* Writes all of the bucket in the same way. */
weft_status weft_window_fill(const weft_window *window, const void *values, unsigned width);
/* Copies what the runs show, in dtype; masters are cast. */
void weft_window_copy_runs(const weft_window *window, unsigned width, uint8_t *output);
/* Copies all of the bucket, in dtype. From runs that are copies themselves it is taken from these. */
weft_status weft_window_copy(const weft_window *window, void *output, unsigned width);

/* How a proof learns the new values. */
typedef enum weft_proof_mode {
    WEFT_PROOF_VALUES, /* olds and news are given, and the olds are those in the window */
    WEFT_PROOF_STEPS,  /* news hold steps; olds are read from the window, news become old + step */
} weft_proof_mode;

enum {
    WEFT_PROOF_BATCH = 256, /* words mixed at a time */
    WEFT_PROOF_CHUNK = 16,  /* changes decoded, and their memory asked for, before they are proven */
};

/* A proof under way: what changes do to the digest, from the words in memory. */
typedef struct weft_proof {
    const weft_window *window;
    weft_proof_mode mode;
    bool write; /* put the new values into the window's memory on the way */
    weft_sums *moves;
    weft_sum delta;
    /* The words of runs without memory, run by run, and how many each has; NULL: to be fetched. */
    const uint8_t *gathered;
    const size_t *gathered_counts;
    size_t run;     /* the window's run that the last change was in */
    uint64_t word;  /* the word that the last change was in */
    uint64_t grain; /* of the words in the batch */
    size_t count;
    uint64_t words[WEFT_PROOF_BATCH];
    uint8_t before[WEFT_PROOF_BATCH * WEFT_WORD];
    uint8_t after[WEFT_PROOF_BATCH * WEFT_WORD];
} weft_proof;

/* Unless `moves` is NULL it receives the share of every grain. With `write`, which needs a direct and
 * writable window of plain memory, the weights are changed as they are read. */
void weft_proof_begin(weft_proof *proof, const weft_window *window, weft_proof_mode mode, bool write,
                      weft_sums *moves);
/* Takes the changes from index `first` up to `end`, which follow those taken before. */
weft_status weft_proof_add(weft_proof *proof, weft_changes *changes, size_t first, size_t end);
/* The same for changes, in any order, to a stretch of plain memory within one run, which starts at bucket
 * position `linear`, on a word: the new values are written there on the way. Writing is what makes the
 * order free: a word that changes twice is read with its first change in it the second time. */
void weft_proof_through(weft_proof *proof, weft_changes *changes, size_t first, size_t end, uint8_t *memory,
                        size_t bytes, uint64_t linear);
/* Decodes all `count` changes of two bytes of a bucket and writes them on the way. False if the stream
 * does not hold them. */
struct weft_fast_decoder;
bool weft_proof_fast_through(weft_proof *proof, struct weft_fast_decoder *decoder, size_t count);
/* What all of them do together. */
weft_sum weft_proof_finish(weft_proof *proof);
/* True if words are fetched by callback, which is best done for all changes at once. */
bool weft_proof_by_callback(const weft_proof *proof);

/* A whole proof of ascending changes: the bucket's delta. `write` as for weft_proof_begin. */
weft_status weft_window_prove(const weft_window *window, weft_changes *changes, weft_proof_mode mode,
                              bool write, weft_sums *moves, weft_sum *delta_out);

/* The words of the live tensor, in order, that the changes from `first` to `end` touch, which are of a run
 * without memory. Returns how many. */
size_t weft_run_words(const weft_window *window, const weft_run *run, const weft_changes *changes,
                      size_t first, size_t end, uint64_t *words_out);
/* The same as weft_window_prove for steps, when these words of all runs have been gathered. */
weft_status weft_window_prove_gathered(const weft_window *window, weft_changes *changes,
                                       const uint8_t *words, const size_t *counts, weft_sums *moves,
                                       weft_sum *delta_out);

/* The proof of a bucket that is replaced as a whole by `values`: its delta; `fresh` means that nothing was
 * there before. */
weft_status weft_window_prove_all(const weft_window *window, const void *values, unsigned width, bool fresh,
                                  weft_sums *moves, weft_sum *delta_out);

#endif
