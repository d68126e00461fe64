/* SPDX-License-Identifier: Apache-2.0
 *
 * loco.h: PULSELoCo. Several trainers that take a number of optimizer steps on their own, and then bring
 * their weights together by sending only what the next forward pass in BF16 can see.
 *
 * Every rank holds the same FP32 weights, the consensus, and trains a local copy. A round is
 *
 *     s         = residual + (consensus - local)            in FP32, in this order
 *     fires     where bf16(consensus) and bf16(consensus - s) have other bits
 *     sent      = s where it fires, cut towards zero to `significant` bits if that is asked for
 *     residual  = s - sent
 *     g         = (sent of rank 0 + sent of rank 1 + …) / ranks included
 *     momentum  = mu * momentum + g
 *     consensus = consensus - rate * (g + mu * momentum)    SGD with Nesterov's momentum, as PyTorch has it
 *     local     = consensus
 *
 * with every operation rounded by itself, so that all ranks compute the same bits on every processor. The
 * residual is a rank's own: what was not sent is not lost, and goes with a later round.
 */
#ifndef WEFT_LOCO_H
#define WEFT_LOCO_H

#include <weft/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_LOCO_RUN_MAX = 64, WEFT_LOCO_RANKS_MAX = 4096 };

/* A trainer's own weights. Names may come in any order, and are counted by bytes ascending. */
typedef struct weft_loco_tensor {
    const char *name;
    float *data;
    uint64_t count;
} weft_loco_tensor;

typedef struct weft_loco_options {
    const char *run; /* at most WEFT_LOCO_RUN_MAX bytes; payloads of other runs are refused */
    uint32_t rank;
    uint32_t ranks;
    float rate;           /* of the outer optimizer */
    float momentum;       /* mu; 0: none, and no memory for it */
    uint32_t significant; /* bits of a sent value, 2 to 23; 0: all 24, nothing is cut */
    bool open;            /* the gate fires everywhere: this is DiLoCo */
    bool raw;             /* with `open`: values travel as they lie in memory, four bytes each */
} weft_loco_options;

/* One rank, rate 0.7, momentum 0.9, the gate in use, nothing cut. */
WEFT_API weft_loco_options weft_loco_defaults(void);

typedef struct weft_loco weft_loco;

/* The consensus of round 0 is what the tensors hold, the residual and the momentum are zero. `options` and
 * names are copied; the weights stay the caller's and must outlive the object, as must the context.
 * Beside them it takes 8 bytes for each weight, 12 with momentum. */
WEFT_API WEFT_CHECKED weft_status weft_loco_create(weft_context *context, const weft_loco_options *options,
                                                   const weft_loco_tensor *tensors, size_t count,
                                                   weft_loco **loco_out);
WEFT_API void weft_loco_destroy(weft_loco *loco);

/* Rounds done. */
WEFT_API uint64_t weft_loco_rounds(const weft_loco *loco);
/* Of the consensus, with the names and sizes of its tensors: what all ranks must have in common. */
WEFT_API weft_digest weft_loco_digest(const weft_loco *loco);
/* The consensus of a tensor, or NULL if there is none of this name. */
WEFT_API const float *weft_loco_consensus(const weft_loco *loco, const char *name);
/* The sum of the squares of the residual: how much this rank has not sent yet. */
WEFT_API double weft_loco_residual_energy(const weft_loco *loco);

/* ---- a round ---- */

/* The bytes that a rank sends. Where `data` is NULL, the rank takes no part in the round. */
typedef struct weft_loco_payload {
    const void *data;
    size_t size;
} weft_loco_payload;

typedef struct weft_loco_stats {
    uint64_t elements; /* weights */
    uint64_t fired;    /* of them sent by this rank */
    uint64_t sent;     /* bytes of this rank's payload */
    uint64_t received; /* bytes of the other ranks' payloads */
    uint32_t included; /* ranks whose payload took part */
    double decoding;   /* seconds: payloads were checked and decoded */
    double moving;     /* seconds: the consensus was moved and summed */
} weft_loco_stats;

/* Gate and encode: what this rank has to say about its weights since the last round. The residual has moved
 * when this returns, and the payload is held by the object until the round is done: asked again, it gives
 * the same one. A weight that is not finite is WEFT_INVALID_ARGUMENT, and named. After a failure the
 * residual is between two states, and the object refuses all but to be destroyed. */
WEFT_API WEFT_CHECKED weft_status weft_loco_encode(weft_loco *loco, weft_loco_payload *payload_out);
/* Ends the round with the payloads of all ranks, in the order of ranks. All of them are checked and decoded
 * before anything changes; a payload that is damaged, or of another run, round, rank, model, consensus or
 * configuration is refused. Those included must be the same on every rank. Where this rank's own is not
 * among them, it is taken back. `stats` may be NULL. */
WEFT_API WEFT_CHECKED weft_status weft_loco_aggregate(weft_loco *loco, const weft_loco_payload *payloads,
                                                      size_t count, weft_loco_stats *stats);

/* How payloads reach the other ranks. */
typedef struct weft_loco_exchange {
    /* Gives `own` to all ranks and fills `all`, one for each rank, with the same set on every rank: the
     * exchange sees to it that all agree on who is included. What `all` points to stays until the next call
     * or until the exchange is closed. Called again with the same round and bytes after a failure. */
    weft_status (*share)(void *opaque, weft_context *context, uint64_t round, const weft_loco_payload *own,
                         weft_loco_payload *all, size_t ranks);
    void (*close)(void *opaque);
    void *opaque;
} weft_loco_exchange;

/* A whole round: encode, share, aggregate. If sharing fails, the payload is kept: call again, without
 * training in between. */
WEFT_API WEFT_CHECKED weft_status weft_loco_round(weft_loco *loco, const weft_loco_exchange *exchange,
                                                  weft_loco_stats *stats);

/* What is in a payload, without the consensus that it is coded against. */
typedef struct weft_loco_info {
    char run[WEFT_LOCO_RUN_MAX + 1];
    uint64_t round;
    uint32_t rank;
    uint32_t ranks;
    uint64_t elements;
    uint64_t fired;
    uint64_t blocks;
    uint32_t significant;
    bool open;
    bool raw;
    float rate;
    float momentum;
    weft_digest base; /* of the consensus */
} weft_loco_info;

/* Checks header, every checksum and the end. */
WEFT_API WEFT_CHECKED weft_status weft_loco_inspect(weft_context *context, const weft_loco_payload *payload,
                                                    weft_loco_info *info_out);

/* ---- the state of a rank ---- */

/* Writes consensus, residual, momentum, round and, where it differs from the consensus, the local weights;
 * and what else the trainer needs to go on: `extra`, the tensors of its inner optimizer (or NULL), and
 * `labels` (key, value, …, NULL; or NULL), such as the state of its random numbers. A safetensors file that
 * appears whole or not at all. Not while a payload waits for its round. */
WEFT_API WEFT_CHECKED weft_status weft_loco_save(const weft_loco *loco, const char *path,
                                                 const weft_table *extra, const char *const *labels,
                                                 bool durable);
/* Reads it back into an object of the same run, rank, configuration and tensors; the local weights are set,
 * and so is the memory of `extra`, the tensors of the inner optimizer (or NULL). Everything is checked, a
 * digest included, before anything changes. `label` is called with the value of each of `keys` (up to NULL;
 * or NULL), which is NULL if there is no such label. */
WEFT_API WEFT_CHECKED weft_status
weft_loco_load(weft_loco *loco, const char *path, const weft_table *extra, const char *const *keys,
               void (*label)(void *opaque, const char *key, const char *value), void *opaque);

/* ---- the gate alone ---- */

/* The gate over FP32 buffers of any kind, for who has a payload and an exchange of their own. `positions`
 * and `values` have room for `count` entries each and take those that fire, ascending; where values are not
 * cut, the residual is zero there. `count` is below 2^32. WEFT_INVALID_ARGUMENT if a value is not finite:
 * the residual is then undefined. One thread. */
WEFT_API WEFT_CHECKED weft_status weft_loco_gate(weft_context *context, const float *consensus,
                                                 const float *local, float *residual, uint64_t count,
                                                 uint32_t significant, bool open, uint32_t *positions,
                                                 float *values, uint64_t *fired_out);

#ifdef __cplusplus
}
#endif
#endif
