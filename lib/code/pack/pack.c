/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.c: the loops of pack_loop.h for any processor, which the vector forms are tested against, the
 * choice, short groups, and the form that fits a sample. No floating point: the same form, and so the same
 * bytes, everywhere.
 */
#include "pack_loop.h"

#include "../classes.h"
#include "../token.h"

const weft_pack_kernels weft_pack_kernels_portable = {
    .fold_steps = fold_steps,
    .unfold_steps = unfold_steps,
    .fold_values = fold_values,
    .unfold_values = unfold_values,
    .varying = varying,
    .split = split_groups,
    .join = join_groups,
    .sort = sort_numbers,
    .merge = merge_numbers,
};

const weft_pack_kernels *weft_pack_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_pack_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_pack_kernels_avx2;
    }
#endif
#ifdef WEFT_ARM
    if (level == WEFT_CPU_NEON) {
        return &weft_pack_kernels_neon;
    }
#endif
    (void)level;
    return &weft_pack_kernels_portable;
}

/* ---- the last group ---- */

/* A group that is filled up, and what is made of it. */
typedef struct padded_group {
    uint8_t numbers[8 * WEFT_PACK_GROUP];
    uint8_t symbols[WEFT_PACK_GROUP];
    uint8_t planes[64 * WEFT_PACK_GROUP / 8];
} padded_group;

/* The planes of a short group have fewer bytes each. */
static void copy_planes(const weft_pack_form *form, size_t count, uint8_t *to, size_t to_stride,
                        const uint8_t *from, size_t from_stride) {
    for (int p = 0; p < __builtin_popcountll(form->varying); p++) {
        memcpy(to + (size_t)p * to_stride, from + (size_t)p * from_stride, (count + 7) / 8);
    }
}

void weft_pack_split(const weft_pack_kernels *kernels, const weft_pack_form *form, unsigned width,
                     const void *numbers, size_t count, uint8_t *symbols, uint8_t *planes,
                     uint64_t *escapes) {
    size_t groups = count / WEFT_PACK_GROUP, done = groups * WEFT_PACK_GROUP, left = count - done;
    kernels->split(form, width, numbers, groups, symbols, planes, escapes);
    if (left > 0) {
        padded_group last;
        for (size_t i = 0; i < WEFT_PACK_GROUP; i++) {
            uint64_t number = i < left ? load_number(numbers, done + i, width) : form->first << form->low;
            store_number(last.numbers, i, width, number);
        }
        kernels->split(form, width, last.numbers, 1, last.symbols, last.planes, &escapes[groups]);
        memcpy(symbols + weft_pack_symbols(form, done), last.symbols, weft_pack_symbols(form, left));
        copy_planes(form, left, planes + weft_pack_planes(form, done), (left + 7) / 8, last.planes, 8);
    }
}

void weft_pack_join(const weft_pack_kernels *kernels, const weft_pack_form *form, unsigned width,
                    const uint8_t *symbols, const uint8_t *planes, size_t count, void *numbers,
                    uint64_t *escapes) {
    size_t groups = count / WEFT_PACK_GROUP, done = groups * WEFT_PACK_GROUP, left = count - done;
    kernels->join(form, width, symbols, planes, groups, numbers, escapes);
    if (left > 0) {
        padded_group last;
        memset(&last, 0, sizeof last);
        memcpy(last.symbols, symbols + weft_pack_symbols(form, done), weft_pack_symbols(form, left));
        copy_planes(form, left, last.planes, 8, planes + weft_pack_planes(form, done), (left + 7) / 8);
        kernels->join(form, width, last.symbols, last.planes, 1, last.numbers, &escapes[groups]);
        escapes[groups] &= ((uint64_t)1 << left) - 1;
        memcpy((uint8_t *)numbers + done * width, last.numbers, left * width);
    }
}

/* ---- the form ---- */

enum {
    BINS_MAX = 2048, /* upper parts that are told apart: as many as a value has exponents, */
    STEP_BINS = 256, /* or a step has codes */
    TOKEN_BITS = 4,  /* about what the token of an escape costs, beside its plain bits, */
    TOKEN_TIME = 32, /* and how many symbols' time */
    LOWS_TRIED = 3,  /* cuts that cost more than the best before, until no other is tried */
};

/* The upper parts of a sample. */
typedef struct uppers {
    size_t count;
    uint64_t mask; /* their bits */
    unsigned bin_count;
    uint32_t bins[BINS_MAX];
    uint32_t before[BINS_MAX + 1]; /* how many are in the bins before */
    uint64_t beyond;               /* plain bits of those past the bins, and their tokens */
} uppers;

static void count_uppers(uppers *u, const uint64_t *sample, size_t count, unsigned low,
                         const weft_pack_wish *wish) {
    const weft_pack_form cut = {.low = low};
    u->count = count;
    u->mask = weft_pack_upper(&cut, wish->bits);
    u->bin_count = !wish->values ? STEP_BINS : u->mask < BINS_MAX ? (unsigned)u->mask + 1 : BINS_MAX;
    u->beyond = 0;
    memset(u->bins, 0, u->bin_count * sizeof *u->bins);
    for (size_t i = 0; i < count; i++) {
        uint64_t part = sample[i] >> low;
        if (part < u->bin_count) {
            u->bins[part]++;
        } else {
            u->beyond += TOKEN_BITS + weft_token_bits(weft_token_of(part));
        }
    }
    u->before[0] = 0;
    for (unsigned i = 0; i < u->bin_count; i++) {
        u->before[i + 1] = u->before[i] + u->bins[i];
    }
}

static uint32_t count_between(const uppers *u, unsigned from, unsigned to) {
    return u->before[to < u->bin_count ? to : u->bin_count] - u->before[from];
}

/* Where as many codes as there are below the escape meet the most upper parts. */
static unsigned best_first(const uppers *u, unsigned codes) {
    unsigned best = 0;
    for (unsigned i = 1; i < u->bin_count; i++) {
        if (count_between(u, i, i + codes) > count_between(u, best, best + codes)) {
            best = i;
        }
    }
    return best;
}

static uint64_t entropy_term(uint64_t count) {
    return count * weft_fixed_log2(count);
}

/* Bits * 2^16 of the codes, the escapes, and the planes. */
static uint64_t form_cost(const uppers *u, const weft_pack_form *form, unsigned price) {
    unsigned first = (unsigned)form->first, codes = (unsigned)weft_pack_escape(form), end = first + codes;
    uint64_t escapes = u->count - count_between(u, first, end);
    uint64_t all = entropy_term(u->count), parts = entropy_term(escapes);
    uint64_t plain = u->beyond + u->count * (uint64_t)form->low;
    for (unsigned i = 0; i < u->bin_count; i++) {
        if (u->bins[i] > 0 && i >= first && i < end) {
            parts += entropy_term(u->bins[i]);
        } else if (u->bins[i] > 0) {
            uint64_t escape = (((uint64_t)i - first) & u->mask) - codes;
            plain += u->bins[i] * (uint64_t)(TOKEN_BITS + weft_token_bits(weft_token_of(escape)));
        }
    }
    uint64_t symbols = u->count * (uint64_t)form->code / 8 + TOKEN_TIME * escapes;
    return (all > parts ? all - parts : 0) + (plain << 16) + symbols * price;
}

static void try_codes(const uppers *u, const weft_pack_wish *wish, unsigned low, weft_pack_form *best,
                      uint64_t *least) {
    for (unsigned code = 1; code <= 8; code *= 2) {
        weft_pack_form form = {.low = low, .code = code};
        form.first = wish->values ? best_first(u, (unsigned)weft_pack_escape(&form)) : 0;
        uint64_t cost = form_cost(u, &form, wish->price);
        if (cost < *least) {
            *least = cost;
            *best = form;
        }
    }
}

uint64_t weft_pack_form_fit(weft_pack_form *form, const uint64_t *sample, size_t count,
                            const weft_pack_wish *wish) {
    uppers u;
    uint64_t least = UINT64_MAX, any = 0;
    unsigned worse = 0;
    for (size_t i = 0; i < count; i++) {
        any |= sample[i];
    }
    unsigned low = wish->values ? wish->low : 0;
    do {
        uint64_t before = least;
        count_uppers(&u, sample, count, low, wish);
        try_codes(&u, wish, low, form, &least);
        worse = least < before || u.beyond > 0 ? 0 : worse + 1;
        low++;
    } while (!wish->values && low < wish->bits && any >> low != 0 && worse < LOWS_TRIED);
    return least;
}
