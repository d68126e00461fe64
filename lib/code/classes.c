/* SPDX-License-Identifier: Apache-2.0
 *
 * classes.c: counts the exponents of a sample and cuts them into classes so that it would cost least. No
 * floating point: the same cuts, and so the same bytes, everywhere.
 */
#include "classes.h"

#include "lanes.h"

enum {
    BINS_MAX = 64,
    CLASS_COST_BITS = 320, /* about what a class's two tables cost */
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
void weft_class_sample_units(weft_class_sample *sample, const void *weights, size_t count, unsigned shift) {
    uint32_t tables[4][256] = {{0}};
    for (size_t i = 0; i < count; i++) {
        tables[i % 4][(weft_weight_at(weights, i) & 0x7fffu) >> shift]++;
    }
    for (unsigned e = 0; e < 256; e++) {
        sample->units[e] += tables[0][e] + tables[1][e] + tables[2][e] + tables[3][e];
    }
    sample->sampled += count;
}

void weft_classes_cut(weft_classes *classes, const weft_class_sample *sample, uint64_t units) {
    classes->count = 1;
    classes->cuts[0] = 0;
    if (sample != NULL && sample->sampled > 0) {
        bins b;
        collect_bins(sample, &b);
        cut_bins(classes, &b, ((uint64_t)CLASS_COST_BITS << 16) * sample->sampled / units);
    }
    unsigned c = 0;
    for (unsigned e = 0; e < 256; e++) {
        while (c + 1 < classes->count && e >= classes->cuts[c + 1]) {
            c++;
        }
        classes->of_exponent[e] = (uint8_t)c;
    }
}
