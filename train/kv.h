/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.h: how the workers of a run compress their caches of keys and values: that part of the run's
 * description, and what they report of it.
 */
#ifndef WEFT_TRAIN_KV_H
#define WEFT_TRAIN_KV_H

#include <jansson.h>
#include <weft/rollout.h>

/* What the caches of a slot, or of all slots of a batch, held and took. */
typedef struct train_caches {
    uint64_t held;        /* tokens that queries found, summed over queries */
    uint64_t full;        /* the same if nothing were ever evicted */
    uint64_t peak_bytes;  /* memory, at its most; of several slots the sum, as if they were made at once */
    uint64_t dense_bytes; /* keys and values alone if nothing were evicted, at their most */
} train_caches;

/* So that those of a batch can be added up. */
bool train_caches_sane(const train_caches *caches);
void train_caches_add(train_caches *total, const train_caches *caches);

bool train_kv_equal(const weft_kv_options *a, const weft_kv_options *b);
/* NULL if there is no memory. */
json_t *train_kv_format(const weft_kv_options *options);
/* False if something is missing or of another type; the options are not checked. */
bool train_kv_parse(const json_t *json, weft_kv_options *options_out);

#endif
