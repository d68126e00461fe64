/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.c: the one pass over both states. The two windows may be cut into different runs; the pass goes
 * over the stretches that are contiguous in the memory of both, a tile at a time.
 */
#include "bucket.h"

#include "../../code/token.h"

enum {
    SAMPLE_STRETCH = 1024,    /* units looked at in one place */
    SAMPLE_LEAST = 64 * 1024, /* units of a sample, if the bucket has them */
    SAMPLE_SHARE = 64,        /* one unit of this many in a large bucket */
};

/* A stretch that is contiguous on both sides. */
typedef struct stretch {
    uint64_t linear;
    uint64_t units;
    const uint8_t *from;
    const uint8_t *to;
    const uint8_t *to_masters;
} stretch;

/* What follows each other in the memory of one side: a row of a run that has gaps there, or runs without
 * any. */
typedef struct chain {
    const weft_window *window;
    size_t next; /* the first run behind it */
    uint64_t start;
    uint64_t end;
    const weft_run *run;    /* the first, or the one that it is a row of */
    const uint8_t *memory;  /* at `start` */
    const uint8_t *masters; /* the same; one of them is NULL */
} chain;

typedef struct stretches {
    chain from;
    chain to;
    uint64_t linear;
    unsigned width;
} stretches;

static stretches stretches_of(const weft_window *from, const weft_window *to, unsigned width) {
    return (stretches){.from = {.window = from}, .to = {.window = to}, .width = width};
}

static bool continues(const weft_run *run, const weft_run *next, unsigned width) {
    if (next->linear != run->linear + run->units || next->memory_gap != 0) {
        return false;
    }
    return run->memory != NULL
               ? next->memory == run->memory + run->units * width
               : next->memory == NULL && next->masters == run->masters + run->units * sizeof(float);
}

/* Goes on to the row, or the first row, that starts at `linear`. */
static void enter_row(chain *c, uint64_t linear, unsigned width) {
    const weft_run *run = c->run;
    uint64_t offset = weft_run_offset(run, linear - run->linear);
    c->start = linear;
    c->end = linear + weft_run_joined(run, linear - run->linear);
    c->memory = run->memory == NULL ? NULL : run->memory + offset * width;
    c->masters = run->masters == NULL ? NULL : run->masters + offset * sizeof(float);
}

/* Makes sure that the chain holds the unit at `linear`, which is in it or follows it. False at the end. */
static bool reach(chain *c, uint64_t linear, unsigned width) {
    if (linear < c->end) {
        return true;
    }
    if (c->run != NULL && c->run->memory_gap != 0 && linear < c->run->linear + c->run->units) {
        enter_row(c, linear, width);
        return true;
    }
    if (c->next == c->window->run_count) {
        return false;
    }
    const weft_run *run = &c->window->runs[c->next++];
    c->run = run;
    enter_row(c, run->linear, width);
    while (run->memory_gap == 0 && c->next < c->window->run_count &&
           continues(run, &c->window->runs[c->next], width)) {
        run = &c->window->runs[c->next++];
        c->end = run->linear + run->units;
    }
    return true;
}

static bool next_stretch(stretches *s, stretch *out) {
    if (!reach(&s->from, s->linear, s->width) || !reach(&s->to, s->linear, s->width)) {
        return false;
    }
    const chain *from = &s->from;
    const chain *to = &s->to;
    uint64_t end = from->end < to->end ? from->end : to->end;
    out->linear = s->linear;
    out->units = end - s->linear;
    out->from = from->memory + (s->linear - from->start) * s->width;
    out->to = to->memory == NULL ? NULL : to->memory + (s->linear - to->start) * s->width;
    out->to_masters = to->masters == NULL ? NULL : to->masters + (s->linear - to->start) * sizeof(float);
    s->linear = end;
    return true;
}

static inline uint64_t next_value(const stretch *s, size_t index, unsigned width) {
    if (s->to_masters != NULL) {
        return weft_bf16_round((uint32_t)weft_unit_load(s->to_masters, index, 4));
    }
    return weft_unit_load(s->to, index, width);
}

/* ---- comparing ---- */

static size_t diff_tile(const weft_patch_kernels *kernels, const stretch *s, size_t first, size_t units,
                        uint32_t *positions, unsigned width) {
    uint32_t linear = (uint32_t)(s->linear + first);
    return s->to_masters != NULL ? kernels->diff_masters(s->from + 2 * first, s->to_masters + 4 * first,
                                                         units, linear, positions)
                                 : kernels->diff(s->from + width * first, s->to + width * first, units,
                                                 width, linear, positions);
}

/* ---- the sample ---- */

static inline void sample_change(weft_class_sample *sample, weft_exponent exponent, uint64_t old,
                                 uint64_t new) {
    uint64_t magnitude = weft_step_code((new - old) & 0xffff, 16) / 2 + 1;
    unsigned octave = 63u - (unsigned)__builtin_clzll(magnitude);
    unsigned e = (unsigned)(old & 0x7fff) >> exponent.shift;
    sample->changed[e]++;
    sample->octaves[e][octave < 7 ? octave : 7]++;
}

/* `scratch` has room for SAMPLE_STRETCH positions. */
static void sample_units(const weft_patch_kernels *kernels, const stretch *s, size_t first, size_t units,
                         weft_exponent exponent, uint32_t *scratch, weft_class_sample *sample) {
    size_t found = diff_tile(kernels, s, first, units, scratch, 2);
    for (size_t i = 0; i < found; i++) {
        size_t index = (size_t)(scratch[i] - s->linear);
        sample_change(sample, exponent, weft_unit_load(s->from, index, 2), next_value(s, index, 2));
    }
    weft_class_sample_units(sample, s->from + 2 * first, units, exponent.shift);
}

/* The first index from `from` on whose position is at or past `limit`. */
static size_t changes_before(const weft_changes *changes, size_t from, uint64_t limit) {
    while (from < changes->count && changes->positions[from] < limit) {
        from++;
    }
    return from;
}

/* The same where the changes are known. `next` is the first that may be among them. */
static void sample_known(const weft_changes *changes, const stretch *s, size_t first, size_t units,
                         weft_exponent exponent, size_t *next, weft_class_sample *sample) {
    size_t i = changes_before(changes, *next, s->linear + first);
    *next = changes_before(changes, i, s->linear + first + units);
    for (; i < *next; i++) {
        sample_change(sample, exponent, weft_unit_load(changes->olds, i, 2),
                      weft_unit_load(changes->news, i, 2));
    }
    weft_class_sample_units(sample, s->from + 2 * first, units, exponent.shift);
}

/* Looks at SAMPLE_STRETCH units at the start of every period. */
static void take_sample(const weft_bucket_coder *coder, const weft_bucket *bucket, bool known,
                        weft_exponent exponent, weft_class_sample *sample) {
    uint64_t wanted = bucket->units / SAMPLE_SHARE;
    wanted = wanted < SAMPLE_LEAST ? SAMPLE_LEAST : wanted;
    uint64_t period = bucket->units <= wanted ? SAMPLE_STRETCH : bucket->units / (wanted / SAMPLE_STRETCH);
    memset(sample, 0, sizeof *sample);
    stretches iterator = stretches_of(&coder->from, known ? &coder->from : &coder->to, bucket->width);
    stretch s;
    size_t next = 0;
    while (next_stretch(&iterator, &s)) {
        uint64_t end = s.linear + s.units;
        uint64_t at = s.linear / period * period;
        for (; at < end; at += period) {
            uint64_t first = at < s.linear ? s.linear : at;
            uint64_t last = at + SAMPLE_STRETCH < end ? at + SAMPLE_STRETCH : end;
            if (first < last && known) {
                sample_known(&coder->changes, &s, (size_t)(first - s.linear), (size_t)(last - first),
                             exponent, &next, sample);
            } else if (first < last) {
                sample_units(coder->kernels, &s, (size_t)(first - s.linear), (size_t)(last - first),
                             exponent, coder->changes.positions, sample);
            }
        }
    }
}

weft_status weft_scan_sample(weft_bucket_coder *coder, const weft_bucket *bucket,
                             weft_class_sample *sample) {
    weft_status status = weft_changes_reset(&coder->changes, bucket->width, WEFT_TILE);
    if (status == WEFT_OK) {
        take_sample(coder, bucket, false, weft_exponent_of(bucket->dtype), sample);
    }
    return status;
}

/* PICKS runs at equal distances along the bucket: the same units, whatever memory they lie in. */
size_t weft_scan_pick(weft_bucket_coder *coder, const weft_window *from, const weft_window *to,
                      const weft_bucket *bucket, size_t most) {
    enum { PICKS = 16 };
    unsigned width = bucket->width;
    most = most < sizeof coder->tile_olds / width ? most : sizeof coder->tile_olds / width;
    stretches iterator = stretches_of(from, to, width);
    stretch s;
    uint64_t run = most / PICKS, distance = bucket->units / PICKS;
    distance = distance > run ? distance : run;
    size_t picked = 0;
    while (next_stretch(&iterator, &s)) {
        uint64_t end = s.linear + s.units;
        for (uint64_t at = s.linear / distance * distance; at < end; at += distance) {
            uint64_t first = at < s.linear ? s.linear : at, last = at + run < end ? at + run : end;
            for (uint64_t i = first; i < last && picked < most; i++) {
                size_t index = (size_t)(i - s.linear);
                weft_unit_store(coder->tile_olds, picked, width, weft_unit_load(s.from, index, width));
                weft_unit_store(coder->tile_news, picked, width, next_value(&s, index, width));
                picked++;
            }
        }
    }
    return picked;
}

static void begin_small(weft_bucket_coder *coder, const weft_bucket *bucket, bool known) {
    weft_exponent exponent = weft_exponent_of(bucket->dtype);
    weft_class_sample sample;
    if (exponent.present) {
        take_sample(coder, bucket, known, exponent, &sample);
    }
    weft_small_encoder_begin(&coder->small_encoder, exponent, exponent.present ? &sample : NULL,
                             bucket->units);
}

/* ---- the pass ---- */

static inline __attribute__((always_inline)) void load_values(const stretch *s, weft_changes *changes,
                                                              size_t found, unsigned width) {
    for (size_t i = changes->count; i < changes->count + found; i++) {
        size_t index = (size_t)(changes->positions[i] - s->linear);
        weft_unit_store(changes->olds, i, width, weft_unit_load(s->from, index, width));
        weft_unit_store(changes->news, i, width, next_value(s, index, width));
    }
}

static void load_changes(const stretch *s, weft_changes *changes, size_t found) {
    switch (changes->width) {
    case 1:
        load_values(s, changes, found, 1);
        break;
    case 2:
        load_values(s, changes, found, 2);
        break;
    case 4:
        load_values(s, changes, found, 4);
        break;
    default:
        load_values(s, changes, found, 8);
        break;
    }
}

/* Goes on until `most` changes are found. */
static weft_status scan_stretch(weft_bucket_coder *coder, const stretch *s, bool small, uint64_t most) {
    weft_changes *changes = &coder->changes;
    unsigned width = changes->width;
    weft_status status = WEFT_OK;
    for (size_t first = 0; first < s->units && changes->count <= most && status == WEFT_OK;
         first += WEFT_TILE) {
        size_t units = s->units - first < WEFT_TILE ? (size_t)(s->units - first) : WEFT_TILE;
        status = weft_changes_grow(changes, WEFT_TILE);
        if (status != WEFT_OK) {
            return status;
        }
        size_t before = changes->count;
        size_t found = diff_tile(coder->kernels, s, first, units, changes->positions + before, width);
        load_changes(s, changes, found);
        changes->count += found;
        if (small) {
            status = weft_small_encoder_tile(&coder->small_encoder, s->from + first * width, units,
                                             (uint32_t)(s->linear + first), changes, before);
        }
    }
    return status;
}

weft_status weft_scan(weft_bucket_coder *coder, const weft_bucket *bucket, bool small, uint64_t most,
                      bool *dense_out) {
    weft_status status = weft_changes_reset(&coder->changes, bucket->width, WEFT_TILE);
    if (status != WEFT_OK) {
        return status;
    }
    if (small) {
        begin_small(coder, bucket, false);
    }
    stretches iterator = stretches_of(&coder->from, &coder->to, bucket->width);
    stretch s;
    while (status == WEFT_OK && coder->changes.count <= most && next_stretch(&iterator, &s)) {
        status = scan_stretch(coder, &s, small, most);
    }
    *dense_out = coder->changes.count > most;
    return status;
}

weft_status weft_scan_known(weft_bucket_coder *coder, const weft_bucket *bucket) {
    const weft_changes *changes = &coder->changes;
    begin_small(coder, bucket, true);
    stretches iterator = stretches_of(&coder->from, &coder->from, bucket->width);
    stretch s;
    size_t before = 0;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && next_stretch(&iterator, &s)) {
        for (size_t first = 0; first < s.units && status == WEFT_OK; first += WEFT_TILE) {
            size_t units = s.units - first < WEFT_TILE ? (size_t)(s.units - first) : WEFT_TILE;
            weft_changes so_far = *changes;
            so_far.count = changes_before(changes, before, s.linear + first + units);
            status = weft_small_encoder_tile(&coder->small_encoder, s.from + first * bucket->width, units,
                                             (uint32_t)(s.linear + first), &so_far, before);
            before = so_far.count;
        }
    }
    return status;
}
