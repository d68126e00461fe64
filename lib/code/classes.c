/* SPDX-License-Identifier: Apache-2.0
 *
 * classes.c: counts the exponents of a sample and cuts them into classes so that it would cost least. No
 * floating point: the same cuts, and so the same bytes, everywhere.
 */
#include "classes.h"

#include "lanes.h"

enum {
    BINS_MAX = 64,
    LEVELS_COST_BITS = 320, /* about what a class costs with two tables of levels, */
    LAWS_COST_BITS = 44,    /* and with two that follow laws: mostly its count and its cut */
    EXPECTED = 128,         /* changes that what is expected of steps counts for */
    FINE = 16,              /* parts that sampled units and changes are counted in */
    RATE_BITS = 24,
};

uint64_t weft_fixed_log2(uint64_t x) {
    if (x == 0) {
        return 0;
    }
    unsigned top = 63u - (unsigned)__builtin_clzll(x);
    uint64_t fraction = top >= 16 ? (x >> (top - 16)) & 0xffff : (x << (16 - top)) & 0xffff;
    uint64_t bulge = (fraction * (65536 - fraction)) >> 16;
    return ((uint64_t)top << 16) + fraction + ((bulge * 22481) >> 16);
}

typedef struct bins {
    unsigned count;
    unsigned first_exponent[BINS_MAX];
    /* sums over the bins before */
    uint64_t units[BINS_MAX + 1];
    uint64_t changed[BINS_MAX + 1];
    uint64_t octaves[BINS_MAX + 1][8];
} bins;

/* ---- what is expected of steps ---- */

/* A weight changes with a chance of about |update| / ULP: twice as often with every exponent down, until at
 * some exponent all do; below that it is the steps that double. Zeros are left out: they may have been set.
 * Sets how many of the units of each exponent change, in parts, if it is that one, and returns the sum. */
static uint64_t expect_from(const weft_class_sample *sample, unsigned saturated, uint64_t expected[256]) {
    uint64_t sum = 0;
    expected[0] = 0;
    for (unsigned e = 1; e < 256; e++) {
        unsigned above = e > saturated ? e - saturated : 0;
        expected[e] = above > RATE_BITS ? 0 : ((uint64_t)sample->units[e] << RATE_BITS) >> above;
        sum += expected[e];
    }
    return sum;
}

/* Mixes what was sampled with what is expected of as many changes: a sample of few says little. */
static void temper(const weft_class_sample *sample, weft_class_sample *tempered) {
    uint64_t expected[256];
    uint64_t changed = 0;
    for (unsigned e = 0; e < 256; e++) {
        changed += sample->changed[e];
    }
    unsigned low = 0, high = 255; /* the least exponent with which there are enough changes */
    while (low < high) {
        unsigned middle = (low + high) / 2;
        bool enough = expect_from(sample, middle, expected) >= changed << RATE_BITS;
        low = enough ? low : middle + 1;
        high = enough ? middle : high;
    }
    uint64_t sum = expect_from(sample, low, expected);
    uint64_t part = changed == 0 ? 0 : sum / (changed * FINE);
    tempered->sampled = sample->sampled;
    for (unsigned e = 0; e < 256; e++) {
        uint64_t own = part == 0 ? 0 : EXPECTED * (expected[e] / part) / (changed + EXPECTED);
        unsigned octave = e < low ? low - e : 0;
        tempered->units[e] = FINE * sample->units[e];
        tempered->changed[e] = (uint32_t)own;
        for (unsigned o = 0; o < 8; o++) {
            tempered->octaves[e][o] =
                (uint32_t)(FINE * changed * sample->octaves[e][o] / (changed + EXPECTED));
            tempered->changed[e] += tempered->octaves[e][o];
        }
        tempered->octaves[e][octave < 7 ? octave : 7] += (uint32_t)own;
    }
}

/* ---- cutting ---- */

static unsigned occupied(const weft_class_sample *sample, unsigned shift) {
    unsigned count = 0;
    int last = -1;
    for (unsigned e = 0; e < 256; e++) {
        if (sample->units[e] != 0 && (int)(e >> shift) != last) {
            last = (int)(e >> shift);
            count++;
        }
    }
    return count;
}

/* The exponents that occur, merged to as few bins as the search can take. */
static void collect_bins(const weft_class_sample *sample, bins *bins_out) {
    unsigned shift = 0;
    while (occupied(sample, shift) > BINS_MAX) {
        shift++;
    }
    memset(bins_out, 0, sizeof *bins_out);
    int last = -1;
    unsigned b = 0;
    for (unsigned e = 0; e < 256; e++) {
        if (sample->units[e] == 0) {
            continue;
        }
        if ((int)(e >> shift) != last) {
            last = (int)(e >> shift);
            bins_out->first_exponent[b] = e;
            b++;
            bins_out->units[b] = bins_out->units[b - 1];
            bins_out->changed[b] = bins_out->changed[b - 1];
            memcpy(bins_out->octaves[b], bins_out->octaves[b - 1], sizeof bins_out->octaves[b]);
        }
        bins_out->units[b] += sample->units[e];
        bins_out->changed[b] += sample->changed[e];
        for (unsigned o = 0; o < 8; o++) {
            bins_out->octaves[b][o] += sample->octaves[e][o];
        }
    }
    bins_out->count = b;
}

static uint64_t entropy_term(uint64_t count) {
    return count * weft_fixed_log2(count);
}

/* What the sampled changes of bins [from, to) cost as one class: positions and magnitudes. */
static uint64_t class_cost(const bins *b, unsigned from, unsigned to) {
    uint64_t units = b->units[to] - b->units[from];
    uint64_t changed = b->changed[to] - b->changed[from];
    uint64_t positive = entropy_term(units) + entropy_term(changed);
    uint64_t negative = entropy_term(changed) + entropy_term(units - changed);
    for (unsigned o = 0; o < 8; o++) {
        negative += entropy_term(b->octaves[to][o] - b->octaves[from][o]);
    }
    return positive > negative ? positive - negative : 0;
}

/* Dynamic programming over the number of classes: cost[k][j] is the least for the first j bins. */
static void cut_bins(weft_classes *classes, const bins *b, uint64_t table_cost) {
    uint64_t alone[BINS_MAX][BINS_MAX + 1];
    uint64_t cost[WEFT_CLASS_MAX + 1][BINS_MAX + 1];
    uint8_t from[WEFT_CLASS_MAX + 1][BINS_MAX + 1];
    unsigned best = 1;
    for (unsigned i = 0; i < b->count; i++) {
        for (unsigned j = i + 1; j <= b->count; j++) {
            alone[i][j] = class_cost(b, i, j);
        }
    }
    for (unsigned j = 1; j <= b->count; j++) {
        cost[1][j] = alone[0][j];
        from[1][j] = 0;
    }
    for (unsigned k = 2; k <= WEFT_CLASS_MAX && k <= b->count; k++) {
        for (unsigned j = k; j <= b->count; j++) {
            cost[k][j] = UINT64_MAX;
            for (unsigned i = k - 1; i < j; i++) {
                uint64_t total = cost[k - 1][i] + alone[i][j];
                if (total < cost[k][j]) {
                    cost[k][j] = total;
                    from[k][j] = (uint8_t)i;
                }
            }
        }
        if (cost[k][b->count] + k * table_cost < cost[best][b->count] + best * table_cost) {
            best = k;
        }
    }
    classes->count = best;
    unsigned end = b->count;
    for (unsigned k = best; k > 0; k--) {
        end = from[k][end];
        classes->cuts[k - 1] = k == 1 ? 0 : (uint8_t)b->first_exponent[end];
    }
}

/* Four tables by turns: neighbours often share an exponent, and a counter that was just written is slow to
 * read. */
void weft_class_sample_units(weft_class_sample *sample, const void *words, size_t count, unsigned shift) {
    uint32_t tables[4][256] = {{0}};
    for (size_t i = 0; i < count; i++) {
        tables[i % 4][(weft_weight_at(words, i) & 0x7fffu) >> shift]++;
    }
    for (unsigned e = 0; e < 256; e++) {
        sample->units[e] += tables[0][e] + tables[1][e] + tables[2][e] + tables[3][e];
    }
    sample->sampled += count;
}

static void map_exponents(weft_classes *classes) {
    unsigned c = 0;
    for (unsigned e = 0; e < 256; e++) {
        while (c + 1 < classes->count && e >= classes->cuts[c + 1]) {
            c++;
        }
        classes->of_exponent[e] = (uint8_t)c;
    }
}

void weft_classes_cut(weft_classes *classes, const weft_class_sample *sample, uint64_t units, bool steps) {
    classes->count = 1;
    classes->cuts[0] = 0;
    if (sample != NULL && sample->sampled > 0) {
        bins b;
        weft_class_sample tempered;
        uint64_t cost = (uint64_t)(steps ? FINE * LAWS_COST_BITS : LEVELS_COST_BITS) << 16;
        if (steps) {
            temper(sample, &tempered);
        }
        collect_bins(steps ? &tempered : sample, &b);
        cut_bins(classes, &b, cost * sample->sampled / units);
    }
    map_exponents(classes);
}

void weft_classes_cut_known(weft_classes *classes, const weft_class_sample *sample) {
    bins b;
    collect_bins(sample, &b);
    cut_bins(classes, &b, (uint64_t)LAWS_COST_BITS << 16);
    map_exponents(classes);
}
