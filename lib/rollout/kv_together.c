/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_together.c: the caches of a sequence choose together: how many rows each of them keeps follows from
 * the scores of all (Ada-KV, with layers as well as heads). Which rows those are, each cache then chooses
 * as it does alone. Room is given out by panels, so that what a sequence takes is no more than with equal
 * budgets.
 */
#include "../base/context.h"
#include "kv_policy.h"

#include <math.h>

/* One choice. Arrays have an element for each cache. */
typedef struct together {
    weft_kv_cache *const *caches;
    size_t count;
    size_t budget;   /* rows that each would keep alone */
    size_t own;      /* of these the best that it keeps whatever the others have */
    size_t *sizes;   /* rows that each keeps */
    size_t *panels;  /* of room for them and for those that come until the next choice */
    float *scores;   /* of all caches, one after another */
    uint64_t *ranks; /* of rows for which caches compete */
    uint64_t *copy;  /* of the ranks of one cache */
} together;

static size_t always_kept(const weft_kv_options *options) {
    return options->sinks + weft_kv_recent(options);
}

static size_t candidates_of(const weft_kv_cache *cache) {
    return cache->rows - always_kept(&cache->options);
}

static size_t own_of(const together *work, size_t index) {
    size_t candidates = candidates_of(work->caches[index]);
    return work->own < candidates ? work->own : candidates;
}

/* The scores of a cache's candidates become ranks, those of its own part apart; the number of the others.
 */
static size_t rank_others(const together *work, size_t index, const float *scores, size_t offset,
                          uint64_t *ranks) {
    const weft_kv_cache *cache = work->caches[index];
    size_t candidates = candidates_of(cache), own = own_of(work, index), others = 0;
    for (size_t i = 0; i < candidates; i++) {
        work->copy[i] = weft_kv_rank(scores[cache->options.sinks + i], offset + i);
    }
    uint64_t last = own > 0 ? weft_kv_find_rank(work->copy, candidates, own) : UINT64_MAX;
    for (size_t i = 0; i < candidates; i++) {
        uint64_t rank = weft_kv_rank(scores[cache->options.sinks + i], offset + i);
        if (own == 0 || rank < last) {
            ranks[others++] = rank;
        }
    }
    return others;
}

/* How many rows each keeps: what is its own, and as many as are among the best of all others. */
static void compete(const together *work) {
    size_t offset = 0, others = 0, taken = 0;
    const float *scores = work->scores;
    for (size_t i = 0; i < work->count; i++) {
        const weft_kv_cache *cache = work->caches[i];
        size_t more = rank_others(work, i, scores, offset, work->ranks + others);
        work->sizes[i] = always_kept(&cache->options) + own_of(work, i);
        work->panels[i] = more; /* until the ranks have been searched */
        taken += work->sizes[i];
        offset += candidates_of(cache);
        others += more;
        scores += cache->rows;
    }
    size_t wanted = work->count * work->budget > taken ? work->count * work->budget - taken : 0;
    if (wanted == 0) {
        return;
    }
    wanted = wanted < others ? wanted : others;
    uint64_t *copy = work->ranks + others; /* the search changes the order */
    for (size_t i = 0; i < others; i++) {
        copy[i] = work->ranks[i];
    }
    uint64_t last = weft_kv_find_rank(copy, others, wanted);
    const uint64_t *rank = work->ranks;
    for (size_t i = 0; i < work->count; i++) {
        for (size_t left = work->panels[i]; left > 0; left--) {
            work->sizes[i] += *rank++ >= last;
        }
    }
}

/* Panels for what a cache keeps in any case. */
static size_t least_panels(const together *work, size_t index) {
    const weft_kv_options *options = &work->caches[index]->options;
    return weft_kv_whole_panels(always_kept(options) + own_of(work, index) + options->interval) /
           WEFT_KV_PANEL;
}

/* Rows beyond the panels that a cache has, negative if there is room left. */
static double unmet(const together *work, size_t index) {
    return (double)(work->sizes[index] + work->caches[index]->options.interval) -
           (double)(work->panels[index] * WEFT_KV_PANEL);
}

/* The cache that most wants another panel and has rows for it, or that can best give one away; `count` if
 * there is none. */
static size_t find_cache(const together *work, bool give) {
    size_t best = work->count;
    for (size_t i = 0; i < work->count; i++) {
        const weft_kv_cache *cache = work->caches[i];
        bool may = give ? work->panels[i] * WEFT_KV_PANEL < cache->rows + cache->options.interval
                        : work->panels[i] > least_panels(work, i);
        bool better = best == work->count ||
                      (give ? unmet(work, i) > unmet(work, best) : unmet(work, i) < unmet(work, best));
        best = may && better ? i : best;
    }
    return best;
}

/* Sizes become such that with what comes until the next choice they fill whole panels, which together have
 * no more rows than equal budgets. False if even what caches keep in any case does not fit. */
static bool round_sizes(const together *work) {
    const weft_kv_options *options = &work->caches[0]->options;
    size_t all = work->count * (work->budget + options->interval) / WEFT_KV_PANEL, given = 0;
    for (size_t i = 0; i < work->count; i++) {
        size_t least = least_panels(work, i);
        size_t wanted = (work->sizes[i] + options->interval) / WEFT_KV_PANEL;
        work->panels[i] = wanted > least ? wanted : least;
        given += work->panels[i];
    }
    for (; given > all; given--) {
        size_t index = find_cache(work, false);
        if (index == work->count) {
            return false;
        }
        work->panels[index]--;
    }
    for (size_t index = 0; given < all && (index = find_cache(work, true)) < work->count; given++) {
        work->panels[index]++;
    }
    for (size_t i = 0; i < work->count; i++) {
        size_t size = work->panels[i] * WEFT_KV_PANEL - options->interval;
        work->sizes[i] = size < work->caches[i]->rows ? size : work->caches[i]->rows;
    }
    return true;
}

static weft_status score_all(const together *work) {
    float *scores = work->scores;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < work->count && status == WEFT_OK; i++) {
        const weft_kv_cache *cache = work->caches[i];
        status = weft_kv_score(cache, cache->rows - weft_kv_recent(&cache->options), scores);
        scores += cache->rows;
    }
    return status;
}

static weft_status choose(const together *work) {
    weft_status status = score_all(work);
    if (status != WEFT_OK) {
        return status;
    }
    compete(work);
    if (!round_sizes(work)) {
        for (size_t i = 0; i < work->count; i++) {
            work->sizes[i] = work->budget < work->caches[i]->rows ? work->budget : work->caches[i]->rows;
        }
    }
    const float *scores = work->scores;
    for (size_t i = 0; i < work->count && status == WEFT_OK; i++) {
        size_t rows = work->caches[i]->rows;
        status = weft_kv_keep_best(work->caches[i], scores, work->sizes[i]);
        scores += rows;
    }
    return status;
}

static weft_status check(weft_kv_cache *const *caches, size_t count) {
    size_t all = 0;
    for (size_t i = 0; i < count; i++) {
        if (!caches[i]->told || caches[i]->seen != caches[0]->seen) {
            return weft_fail(caches[0]->context, WEFT_INVALID_ARGUMENT,
                             "caches that choose together have not all seen the same tokens; call "
                             "weft_kv_caches_choose after weft_kv_cache_observe of each");
        }
        all += caches[i]->rows;
    }
    return all < UINT32_MAX
               ? WEFT_OK
               : weft_fail(caches[0]->context, WEFT_LIMIT_EXCEEDED,
                           "caches that choose together hold %zu rows, more than %u", all, UINT32_MAX);
}

weft_status weft_kv_caches_choose(weft_kv_cache *const *caches, size_t count) {
    if (count == 0 || !weft_kv_together(&caches[0]->options)) {
        return WEFT_OK;
    }
    weft_status status = check(caches, count);
    if (status != WEFT_OK) {
        return status;
    }
    weft_context *context = caches[0]->context;
    const weft_kv_options *options = &caches[0]->options;
    size_t budget = weft_kv_budget(options, caches[0]->seen), rows = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        rows += caches[i]->rows;
        most = caches[i]->rows > most ? caches[i]->rows : most;
    }
    bool due = caches[0]->chosen > 0 ? caches[0]->seen - caches[0]->chosen >= options->interval
                                     : caches[0]->rows >= budget + options->interval;
    if (!due) {
        return WEFT_OK;
    }
    size_t between = budget - always_kept(options);
    together work = {
        .caches = caches,
        .count = count,
        .budget = budget,
        .own = between - (size_t)floor(options->common * (double)between),
        .sizes = weft_allocate_zeroed(context, 2 * count, sizeof *work.sizes),
        .scores = weft_allocate_array(context, rows, sizeof *work.scores),
        .ranks = weft_allocate_array(context, 2 * rows + most, sizeof *work.ranks),
    };
    status = WEFT_NO_MEMORY;
    if (work.sizes != NULL && work.scores != NULL && work.ranks != NULL) {
        work.panels = work.sizes + count;
        work.copy = work.ranks + 2 * rows;
        status = choose(&work);
    }
    weft_release(context, work.ranks);
    weft_release(context, work.scores);
    weft_release(context, work.sizes);
    return status;
}
