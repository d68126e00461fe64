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
 * with every operation rounded by itself, so that all ranks compute the same bits on every processor. With
 * `grid` another rule says what is sent; the rest is the same. The
 * residual is a rank's own: what was not sent is not lost, and goes with a later round.
 *
 * With `overlap` a rank trains on while its payload travels. When the payload is made, it goes ahead to
 * where the consensus will be if all ranks have learned what it has; when the round ends, what it has
 * learned since stays with it, and is what its next payload speaks of:
 *
 *     learned   = consensus - local
 *     ahead     = consensus - rate * (learned + mu * (mu * momentum + learned))
 *     local     = ahead                                     when the payload is made
 *     local     = consensus + (local - ahead)               when the round ends
 */
#ifndef WEFT_LOCO_H
#define WEFT_LOCO_H

#include <weft/store.h>
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
    size_t size;     /* sizeof(weft_loco_options) */
    const char *run; /* at most WEFT_LOCO_RUN_MAX bytes; payloads of other runs are refused */
    uint32_t rank;
    uint32_t ranks;
    float rate;           /* of the outer optimizer */
    float momentum;       /* mu; 0: none, and no memory for it */
    uint32_t significant; /* bits of a sent value, 2 to 23; 0: all 24, nothing is cut; with `grid` 3 */
    bool open;            /* the gate fires everywhere: this is DiLoCo */
    bool raw;             /* with `open`: values travel as they lie in memory, four bytes each */
    bool average;  /* with `open` and `raw`, rate 1, no momentum: the consensus stays zero, and a round
                      sets the tensors to the mean of what the ranks hold in them: DDP's gradients. What a
                      rank held that was left out is dropped: no residual */
    uint32_t grid; /* 1 to 8: what is sent is s rounded to multiples of 2^(1 - grid) ULPs that the consensus
                      has in BF16, where that is not zero. What waits is then of either sign, and half a
                      step at most: the mean of many rounds is not late. 0: what is visible is sent */
    bool overlap;  /* the rank trains on between the payload and the end of its round, as above; not with
                      `average`. A rank's own choice, like `grid`: who receives payloads need not know */
} weft_loco_options;

/* One rank, rate 0.7, momentum 0.9, the gate in use, nothing cut. */
WEFT_API void weft_loco_defaults(weft_loco_options *options_out);

typedef struct weft_loco weft_loco;

/* The consensus of round 0 is what the tensors hold, the residual and the momentum are zero. `options` and
 * names are copied; the weights stay the caller's and must outlive the object, as must the context.
 * Beside them it takes 8 bytes for each weight, 12 with momentum, and 4 more with `overlap`. A weight that
 * is not finite is WEFT_INVALID_ARGUMENT, and named; with `average` the tensors may hold anything yet. */
WEFT_API WEFT_CHECKED weft_status weft_loco_create(weft_context *context, const weft_loco_options *options,
                                                   const weft_loco_tensor *tensors, size_t count,
                                                   weft_loco **loco_out);
/* A round that was begun is given up: its exchange is told to stop and waited for. */
WEFT_API void weft_loco_destroy(weft_loco *loco);

/* Rounds done. */
WEFT_API uint64_t weft_loco_rounds(const weft_loco *loco);
/* The digest of the consensus, with the names and sizes of its tensors: it must be equal on all ranks. */
WEFT_API weft_digest weft_loco_digest(const weft_loco *loco);
/* The consensus of a tensor, or NULL if there is none of this name. */
WEFT_API const float *weft_loco_consensus(const weft_loco *loco, const char *name);
/* The sum of the squares of the residual: how much this rank has not sent yet. */
WEFT_API double weft_loco_residual_energy(const weft_loco *loco);

/* ---- a round ---- */

/* The bytes that a rank sends. If `data` is NULL, the rank is not included in the round. */
typedef struct weft_loco_payload {
    const void *data;
    size_t size;
} weft_loco_payload;

typedef struct weft_loco_stats {
    size_t size;       /* sizeof(weft_loco_stats) */
    uint64_t elements; /* weights */
    uint64_t fired;    /* of them sent by this rank */
    uint64_t sent;     /* bytes of this rank's payload */
    uint64_t received; /* bytes of the other ranks' payloads */
    uint32_t included; /* ranks whose payload took part */
    double decoding;   /* seconds: payloads were checked and decoded */
    double moving;     /* seconds: the consensus was moved and summed */
} weft_loco_stats;

/* Gates and encodes this rank's changes since the last round. The residual has moved when this returns, and
 * with `overlap` the weights are ahead; the object holds the payload until the round is done: another call
 * gives the same one. A weight that is not finite is WEFT_INVALID_ARGUMENT, and named. The call can be
 * cancelled before it begins, and then nothing has moved; after any other failure the residual is between
 * two states, and the object can only be destroyed. */
WEFT_API WEFT_CHECKED weft_status weft_loco_encode(weft_loco *loco, weft_loco_payload *payload_out);
/* Ends the round with the payloads of all ranks, in rank order. All of them are checked and decoded before
 * anything changes; a payload that is damaged, or of another run, round, rank, model, consensus or
 * configuration is refused. The included set must be the same on every rank. If this rank's own payload is
 * not in it, it goes back into the residual, or is dropped with `average`. The call cannot be cancelled.
 * `stats` may be NULL. */
WEFT_API WEFT_CHECKED weft_status weft_loco_aggregate(weft_loco *loco, const weft_loco_payload *payloads,
                                                      size_t count, weft_loco_stats *stats);

/* How payloads reach the other ranks. Only `share` and `close` must be there; the others are for exchanges
 * that go on without a rank, which then has to come back. */
typedef struct weft_loco_exchange {
    size_t size; /* sizeof(weft_loco_exchange) */
    /* Gives `own` to all ranks and fills `all`, one for each rank, with the same set on every rank: the
     * exchange sees to it that all agree on who is included. What `all` points to stays until it is called
     * again or until the exchange is closed. Called again with the same round and bytes after a failure.
     * WEFT_NOT_FOUND: the round was over long ago; catch up. */
    weft_status (*share)(void *opaque, weft_context *context, uint64_t round, const weft_loco_payload *own,
                         weft_loco_payload *all, size_t ranks);
    /* WEFT_OK if the round is over and its payloads can still be had; WEFT_NOT_FOUND if it was over so long
     * ago that only a snapshot helps; WEFT_MORE if it is not over. */
    weft_status (*ended)(void *opaque, weft_context *context, uint64_t round);
    /* True if this rank should now leave a snapshot of the consensus after `rounds` rounds. */
    bool (*snapshot_due)(void *opaque, uint64_t rounds);
    weft_status (*snapshot_put)(void *opaque, weft_context *context, uint64_t rounds,
                                const weft_loco_payload *snapshot);
    /* The newest one, of at most `most` bytes. It stays until the next call or until the exchange is
     * closed. */
    weft_status (*snapshot_get)(void *opaque, weft_context *context, uint64_t most,
                                weft_loco_payload *snapshot_out);
    void (*close)(void *opaque);
    void *opaque;
    /* `share` may be called by another thread than the one that opened the exchange, and `ended` while it
     * is: weft_loco_round_begin needs that. */
    bool threads;
} weft_loco_exchange;

/* A whole round: encode, share, aggregate; of one that was begun, what is left of it. If sharing fails, the
 * payload is kept: call again, without training in between unless rounds overlap; WEFT_NOT_FOUND: the
 * others are far ahead, weft_loco_catch_up. A snapshot that is due and cannot be left is no failure. */
WEFT_API WEFT_CHECKED weft_status weft_loco_round(weft_loco *loco, const weft_loco_exchange *exchange,
                                                  weft_loco_stats *stats);
/* Begins a round and returns: encodes, and shares on a thread of its own while the caller trains. The next
 * weft_loco_round with the same exchange waits for the payloads and ends it, or tells why they have not
 * come. The weights change in these calls, and in weft_loco_catch_up, and at no other time. Until the round
 * has ended nobody else uses the exchange, but to ask whether a round has `ended`. A state can be saved
 * before a round is begun and after it is done, not between. WEFT_INVALID_ARGUMENT without `overlap`;
 * WEFT_UNSUPPORTED if the exchange cannot be used by another thread; WEFT_BUSY if one is begun already. */
WEFT_API WEFT_CHECKED weft_status weft_loco_round_begin(weft_loco *loco,
                                                        const weft_loco_exchange *exchange);
/* For a rank that comes back: ends all rounds that the others have ended without it, or, where they were
 * too many, or their payloads are damaged or gone, takes the newest snapshot. What it has trained and not
 * sent goes into the residual, unless its payload turns out to have been included. The exchange of a round
 * that was begun is stopped first. `rounds_out`, by how many rounds it has moved, may be NULL. */
WEFT_API WEFT_CHECKED weft_status weft_loco_catch_up(weft_loco *loco, const weft_loco_exchange *exchange,
                                                     uint64_t *rounds_out);

/* What is in a payload, without the consensus that it is coded against. */
typedef struct weft_loco_info {
    size_t size; /* sizeof(weft_loco_info) */
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
    bool average;
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
 * and so is the memory of `extra`, the tensors of the inner optimizer (or NULL). Everything is checked, and
 * all of it is under a digest, before anything changes. `label` is called with the value of each of `keys`
 * (up to NULL; or NULL), which is NULL if there is no such label. A round that was begun is given
 * up when all is checked. */
WEFT_API WEFT_CHECKED weft_status
weft_loco_load(weft_loco *loco, const char *path, const weft_table *extra, const char *const *keys,
               void (*label)(void *opaque, const char *key, const char *value), void *opaque);

/* ---- meeting in a store ----
 *
 * For trainers that can reach nothing but a store. Each puts its payload. One of them, the leader, closes
 * the round when all are there or at the deadline, with a manifest that names the payloads that count;
 * all obey it. A rank that is late or gone is left out, and the others go on: what it has learned stays
 * in its residual. If the leader is gone, the next rank closes the round. A round is closed once, because
 * the store refuses a second manifest; on a store without conditional puts only rank 0 leads, and the
 * round waits for it. */

typedef struct weft_loco_store_options {
    size_t size;     /* sizeof(weft_loco_store_options) */
    const char *run; /* as in weft_loco_options; letters, digits and . _ ~ - */
    uint32_t rank;
    uint32_t ranks;
    uint32_t least;          /* payloads without which no round is closed, however late it is */
    double deadline_seconds; /* that the leader waits for payloads, from when its own is there */
    double passing_seconds;  /* that the next rank leaves to a leader after its deadline; and that a rank
                                which was left out of the last round is waited for */
    double poll_seconds;     /* between looks, at most */
    double patience_seconds; /* after which a rank whose round still is not closed, as it lacks payloads
                                without which it cannot be, fails; 0: never */
    uint64_t keep_rounds;    /* whose payloads are kept for ranks that come back; at least two snapshots' */
    uint64_t snapshot_rounds; /* between snapshots of the consensus, for ranks that come back later */
    const weft_key *key; /* secret, the same for all ranks; signs what is put, and what others have put must
                            be signed by it; NULL: the store is believed. Must outlive the exchange */
} weft_loco_store_options;

/* One rank, which is all that is needed; 60 s, 5 s, 0.2 s, never; 32 and 16 rounds. A run must be named. */
WEFT_API void weft_loco_store_defaults(weft_loco_store_options *options_out);
/* The store must outlive the exchange. `options` is copied. */
WEFT_API WEFT_CHECKED weft_status weft_loco_store_open(weft_context *context, weft_store *store,
                                                       const weft_loco_store_options *options,
                                                       weft_loco_exchange *exchange_out);

typedef struct weft_loco_store_stats {
    size_t size;             /* sizeof(weft_loco_store_stats) */
    uint64_t sent;           /* bytes of payloads put */
    uint64_t received;       /* bytes of payloads and snapshots fetched */
    uint64_t snapshot_bytes; /* put */
    uint64_t led;            /* rounds that this rank closed */
    uint32_t leader;         /* the rank that closed the last one that has ended here; at first 0 */
    uint64_t left_out;       /* rounds that ended without its payload */
    uint64_t refused;        /* payloads that it found unusable as a leader, and did not name */
    uint64_t unremoved;      /* old objects that could not be removed */
} weft_loco_store_stats;

WEFT_API void weft_loco_store_describe(const weft_loco_exchange *exchange,
                                       weft_loco_store_stats *stats_out);

/* ---- the gate alone ---- */

/* The gate over FP32 buffers of any kind, for callers with their own payload and exchange. `positions`
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
