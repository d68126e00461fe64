/* SPDX-License-Identifier: Apache-2.0
 *
 * random.c: the hash is the finalizer of splitmix64, applied to the key and then to key and count.
 */
#include "random.h"

#include <math.h>

static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

lm_random lm_random_open(uint64_t seed, uint64_t stream) {
    return (lm_random){.key = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ (stream * 0xd1342543de82ef95u + 1))};
}

uint64_t lm_random_next(lm_random *random) {
    random->count += 1;
    return mix(random->key ^ mix(random->count * 0x9e3779b97f4a7c15u));
}

float lm_random_uniform(lm_random *random) {
    return (float)(lm_random_next(random) >> 40) * 0x1p-24f;
}

uint32_t lm_random_below(lm_random *random, uint32_t bound) {
    return (uint32_t)(((lm_random_next(random) >> 32) * bound) >> 32);
}

float lm_random_normal(lm_random *random) {
    double first = ((double)(lm_random_next(random) >> 11) + 0.5) * 0x1p-53;
    double second = (double)(lm_random_next(random) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(first)) * cos(6.283185307179586 * second));
}
