/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h: the parts of `weft bench`: what it is told, the trace, the model in memory, the baselines, the
 * measurements.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_BENCH_H
#define WEFT_PROGRAMS_LAB_BENCH_BENCH_H

#include "../../cli/survey.h"

#include "../../../train/study.h"

/* ---- what `weft bench` is told; each bench takes what is for it ---- */

enum { BENCH_RATES_MAX = 16, BENCH_STALENESS_MAX = 8 };

typedef struct bench_options {
    uint64_t parameters; /* 0: as many as the bench usually has */
    double learning_rate;
    uint64_t seed;
    unsigned repeat;
    const char *base; /* a real pair of checkpoints; NULL: the trace */
    const char *next;
    const char *make; /* where the trace is written; NULL: it is measured */
    uint64_t steps;   /* of the trace, or of learning by rewards; 0: the usual */
    bool quick;
    const char *plot;      /* where the sweep over densities is drawn; NULL: nowhere */
    weft_dtype dtype;      /* of its weights */
    const char *directory; /* for stores; NULL: TMPDIR or /tmp; with an arm: for warmed-up policies */
    /* publishing and following */
    unsigned parts;     /* of bench_sync.h */
    uint64_t versions;  /* 0: the usual, and so the next three */
    uint64_t tensors;   /* of the bucketing */
    uint64_t followers; /* of the fleet */
    uint64_t relays;
    uint64_t processes; /* of the followers */
    /* the small policy */
    double rate;        /* of learning; 0: the usual */
    uint64_t staleness; /* of learning: versions that the sampler is behind */
    double rates[BENCH_RATES_MAX];
    size_t rate_count;
    const char *state; /* a trainer's, whose policy is measured; NULL: one is warmed up */
    const char *save;  /* where the state of that policy is left; NULL: nowhere */
    const char *arm;   /* of learning under a compressed cache */
    uint64_t chain;    /* sums of its chains; 0: the usual */
    bool long_chains;  /* the policy of its long chains */
    /* trainers in one process */
    train_study_way way;
    uint32_t trainers;
    uint32_t local_steps;
    uint32_t significant;
    uint32_t grid;
    bool overlap;
    const char *meet; /* the store where this trainer meets the others; NULL: all are in this process */
    uint32_t rank;
} bench_options;

/* ---- the benches beside the table; each prints its results ---- */

/* Each preset, a level of sequences and the objective, on one thread, beside memcpy of the same arrays. */
int bench_correction(weft_command *command, const bench_options *options);
/* What a round of PULSELoCo costs a rank. */
int bench_loco(weft_command *command, const bench_options *options);
/* Several trainers of a small policy in one process: what they send in a round, and what they gain, by the
 * way in which they agree. */
int bench_loco_study(weft_command *command, const bench_options *options);
/* Speeds of training and generation of the small policy of lm/, by size of the model. */
int bench_lm(weft_command *command, const bench_options *options);
/* One run: warm-up on right answers, then by rewards alone. */
int bench_lm_learn(weft_command *command, const bench_options *options);
/* Sparsity and bytes of steps at each of the rates. */
int bench_lm_rates(weft_command *command, const bench_options *options);
/* Rollouts per second under each KV-cache policy, in a fixed memory for keys and values. */
int bench_lm_kv(weft_command *command, const bench_options *options);
/* Learning from what a compressed cache samples: one arm of the study. */
int bench_lm_sparse(weft_command *command, const bench_options *options);

/* ---- bench_dtype.c: the types of weights that a sweep over densities can be of ---- */

typedef struct bench_dtype {
    const char *name; /* as --dtype has it */
    weft_dtype dtype;
    /* of floats that FP32 is rounded to */
    unsigned mantissa; /* bits */
    int least;         /* the exponent of the smallest normal number */
    uint32_t most;     /* the largest finite number, as bits */
    bool scaled;       /* tensors are multiplied so that they fill its range */
    double rates;      /* learning rates that change as many weights as BF16's do, against those */
} bench_dtype;

/* NULL if it is none of them. */
const bench_dtype *bench_dtype_of(weft_dtype dtype);
bool bench_dtype_parse(const char *name, weft_dtype *dtype_out);
/* Rounds to the nearest, ties to even; what is beyond the largest becomes that. */
uint32_t bench_dtype_round(const bench_dtype *dtype, float value);
/* What the weights of a tensor with that deviation are multiplied by. */
float bench_dtype_scale(const bench_dtype *dtype, float deviation);

/* ---- bench_trace.c: checkpoints of a made-up training run ---- */

typedef struct trace_tensor {
    char name[64];
    uint32_t rank;
    uint64_t rows;    /* 1 for a vector */
    uint64_t columns; /* its length */
    float deviation;  /* of a matrix; 0 for a norm's vector */
} trace_tensor;

typedef struct weft_trace {
    trace_tensor *tensors;
    size_t count;
    uint64_t parameters;
    double learning_rate;
    uint64_t seed;
    const bench_dtype *dtype; /* of the weights: BF16, unless it is set to another */
    bool
        every; /* FP32 weights are as the optimizer leaves them: otherwise those move that BF16 sees move */
} weft_trace;

/* Tensors of a transformer with about `parameters` parameters. */
int trace_open(weft_command *command, weft_trace *trace, uint64_t parameters, double learning_rate,
               uint64_t seed);
/* `count` small matrices, of 4,096 to 65,536 weights. */
int trace_open_many(weft_command *command, weft_trace *trace, uint64_t count, double learning_rate,
                    uint64_t seed);
void trace_close(weft_trace *trace);
/* Fills states[s][t], the weights of tensor t after s steps, for all s below `count`, which is 2 for
 * weights that are not BF16. */
int trace_fill(weft_command *command, const weft_trace *trace, void **const *states, size_t count);
/* Writes the states as checkpoints: DIRECTORY/base.safetensors and new.safetensors, or step-0 to step-N
 * if `steps` is not zero. */
int trace_write(weft_command *command, const weft_trace *trace, const char *directory, unsigned steps);

/* ---- bench_model.c: two states and a live copy, in memory ---- */

typedef struct bench_tensor {
    char *name;
    uint32_t rank;
    uint64_t shape[WEFT_RANK_MAX];
    uint64_t rows;    /* dimension 0 */
    uint64_t columns; /* all others together */
    uint64_t start;   /* unit index in each state */
} bench_tensor;

typedef struct bench_model {
    bench_tensor *tensors;
    size_t count;
    uint64_t units;  /* of all tensors: the parameters */
    uint64_t extent; /* units of a state in memory: tensors start at cache lines */
    weft_dtype dtype;
    unsigned width; /* bytes of a unit */
    void *base;
    void *next;
    void *live;
    weft_table *base_table, *next_table, *live_table;
} bench_model;

int bench_model_generate(weft_command *command, bench_model *model, const weft_trace *trace);
/* The bytes of a state in memory. */
size_t bench_model_bytes(const bench_model *model);
/* Where a tensor lies in a state. */
void *bench_model_tensor(const bench_model *model, const void *state, const bench_tensor *tensor);
/* The BF16 tensors that two checkpoints share; says what it leaves out. */
int bench_model_load(weft_command *command, bench_model *model, const char *base, const char *next);
void bench_model_close(bench_model *model);
/* The model's tensors over a state of `extent` units. */
int bench_model_table(weft_command *command, const bench_model *model, void *state, weft_table **table_out);
/* Sets live to base, and the caches to neither. */
void bench_model_restore(bench_model *model);

/* Zeroed memory that takes pages only where it is touched; NULL on failure. */
void *bench_map(size_t bytes);
void bench_unmap(void *memory, size_t bytes);
/* Walks through memory that nobody needs until the caches hold nothing else. */
void bench_chill(void);

/* ---- bench_baselines.c: what others do ---- */

typedef struct bench_codec bench_codec;

typedef enum bench_baseline {
    BASELINE_COO,   /* row gaps, column gaps, new values; zstd level 1 over all */
    BASELINE_XOR,   /* each tensor's XOR, zstd level 1 */
    BASELINE_WHOLE, /* each tensor as it is, zstd level 3 */
} bench_baseline;

bench_codec *bench_codec_open(const bench_model *model, bench_baseline baseline);
void bench_codec_close(bench_codec *codec);
/* Codes next against base. Zero if zstd failed. */
size_t bench_codec_encode(bench_codec *codec);
/* Applies what was last encoded to live. */
bool bench_codec_decode(bench_codec *codec);

/* ---- bench_measure.c ---- */

/* Seconds; zero where a row has no such thing. */
typedef struct bench_row {
    const char *name;
    unsigned threads;
    uint64_t bytes;       /* that the times are counted over */
    uint64_t patch_bytes; /* 0: none */
    double encode;
    double decode; /* and apply, in one go */
    double prepare;
    double commit;
    double digest;
} bench_row;

/* More runs for a row, whose threads are set; keeps the smallest time. */
int bench_memcpy(weft_command *command, unsigned runs, bench_row *row);
int bench_profile(weft_command *command, bench_model *model, weft_profile profile, unsigned threads,
                  unsigned repeat, bench_row *row);
int bench_other(weft_command *command, bench_model *model, bench_baseline baseline, unsigned repeat,
                bench_row *row);
int bench_digest(weft_command *command, bench_model *model, unsigned threads, unsigned repeat,
                 bench_row *row);

/* From now on all rows count the processor's time instead of the clock's. It is for one thread, and leaves
 * out what other processes take. */
void bench_count_processor(void);
/* A version from nothing: what encoding takes. */
int bench_anchor(weft_command *command, bench_model *model, unsigned threads, unsigned repeat,
                 bench_row *row);

/* ---- bench_density.c ---- */

/* A sweep over densities, from one weight in ten thousand to all. */
int bench_density(weft_command *command, const bench_options *options);

/* ---- bench_table.c ---- */

/* All measurements over a model, each `repeat` times, as a table or as JSON. */
int bench_table(weft_command *command, bench_model *model, unsigned repeat);

#endif
