/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.c: the one pass over both states. The two windows may be cut into different runs; the pass goes
 * over the stretches that are contiguous in the memory of both, a tile at a time.
 */
#include "bucket.h"

#include "../../code/lanes.h"
#include "../../code/token.h"

enum {
    SAMPLE_STRETCH = 1024,    /* units looked at in one place */
    SAMPLE_LEAST = 64 * 1024, /* units of a sample, if the bucket has them */
    SAMPLE_SHARE = 64,        /* one unit of this many in a large bucket */
    GLANCE = 16 * 1024,       /* units that say how many differ, */
    GLANCE_RUNS = 64,         /* in so many places, since rows differ in how much they change */
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

/* ---- some of the units ---- */

/* `run` units at the start of every `distance`, as far as they are there. */
typedef struct picks {
    stretches iterator;
    stretch s; /* that the last pick is in */
    uint64_t at;
    uint64_t run;
    uint64_t distance;
} picks;

static picks picks_of(const weft_window *from, const weft_window *to, unsigned width, uint64_t run,
                      uint64_t distance) {
    return (picks){.iterator = stretches_of(from, to, width), .run = run, .distance = distance};
}

/* Where the next one starts in p->s, and how long it is. */
static bool next_pick(picks *p, size_t *first, size_t *units) {
    for (;;) {
        uint64_t end = p->s.linear + p->s.units;
        for (; p->at < end; p->at += p->distance) {
            uint64_t from = p->at < p->s.linear ? p->s.linear : p->at;
            uint64_t to = p->at + p->run < end ? p->at + p->run : end;
            if (from < to) {
                *first = (size_t)(from - p->s.linear);
                *units = (size_t)(to - from);
                p->at += p->distance;
                return true;
            }
        }
        if (!next_stretch(&p->iterator, &p->s)) {
            return false;
        }
        p->at = p->s.linear / p->distance * p->distance;
    }
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

/* Steps of four-byte units are long: their octaves are counted modulo 8, since those of a class are
 * neighbours. */
static inline void sample_change(weft_class_sample *sample, weft_exponent exponent, uint64_t old,
                                 uint64_t new) {
    uint64_t mask = ((uint64_t)1 << (8 * exponent.width)) - 1;
    uint64_t magnitude = weft_step_code((new - old) & mask, 8 * exponent.width) / 2 + 1;
    unsigned octave = 63u - (unsigned)__builtin_clzll(magnitude);
    unsigned e = weft_exponent_in(exponent, old);
    sample->changed[e]++;
    sample->octaves[e][exponent.width == 4 ? octave % 8 : octave < 7 ? octave : 7]++;
}

/* The exponents of units, at most SAMPLE_STRETCH. */
static void sample_exponents(weft_class_sample *sample, weft_exponent exponent, const uint8_t *units,
                             size_t count) {
    uint16_t words[SAMPLE_STRETCH];
    if (exponent.width == 2) {
        weft_class_sample_units(sample, units, count, exponent.shift);
        return;
    }
    weft_entry_kernels_for(weft_cpu_level())->words(units, count, exponent.width, words);
    weft_class_sample_units(sample, words, count, exponent.shift);
}

/* `scratch` has room for SAMPLE_STRETCH positions. */
static void sample_units(const weft_patch_kernels *kernels, const stretch *s, size_t first, size_t units,
                         weft_exponent exponent, uint32_t *scratch, weft_class_sample *sample) {
    unsigned width = exponent.width;
    size_t found = diff_tile(kernels, s, first, units, scratch, width);
    for (size_t i = 0; i < found; i++) {
        size_t index = (size_t)(scratch[i] - s->linear);
        sample_change(sample, exponent, weft_unit_load(s->from, index, width), next_value(s, index, width));
    }
    sample_exponents(sample, exponent, s->from + width * first, units);
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
    unsigned width = exponent.width;
    size_t i = changes_before(changes, *next, s->linear + first);
    *next = changes_before(changes, i, s->linear + first + units);
    for (; i < *next; i++) {
        sample_change(sample, exponent, weft_unit_load(changes->olds, i, width),
                      weft_unit_load(changes->news, i, width));
    }
    sample_exponents(sample, exponent, s->from + width * first, units);
}

/* Looks at SAMPLE_STRETCH units at the start of every period. */
static void take_sample(const weft_bucket_coder *coder, const weft_bucket *bucket, bool known,
                        weft_exponent exponent, weft_class_sample *sample) {
    uint64_t wanted = bucket->units / SAMPLE_SHARE;
    wanted = wanted < SAMPLE_LEAST ? SAMPLE_LEAST : wanted;
    uint64_t period = bucket->units <= wanted ? SAMPLE_STRETCH : bucket->units / (wanted / SAMPLE_STRETCH);
    memset(sample, 0, sizeof *sample);
    picks p =
        picks_of(&coder->from, known ? &coder->from : &coder->to, bucket->width, SAMPLE_STRETCH, period);
    size_t next = 0, first, units;
    while (next_pick(&p, &first, &units)) {
        if (known) {
            sample_known(&coder->changes, &p.s, first, units, exponent, &next, sample);
        } else {
            sample_units(coder->kernels, &p.s, first, units, exponent, coder->changes.positions, sample);
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

/* So many runs, of `most` units in all, at equal distances along the bucket: the same units, whatever
 * memory they lie in. */
static picks picks_along(const weft_window *from, const weft_window *to, const weft_bucket *bucket,
                         size_t runs, size_t most) {
    uint64_t run = most / runs, distance = bucket->units / runs;
    return picks_of(from, to, bucket->width, run, distance > run ? distance : run);
}

size_t weft_scan_pick(weft_bucket_coder *coder, const weft_window *from, const weft_window *to,
                      const weft_bucket *bucket, size_t most) {
    unsigned width = bucket->width;
    most = most < sizeof coder->tile_olds / width ? most : sizeof coder->tile_olds / width;
    picks p = picks_along(from, to, bucket, 16, most);
    size_t picked = 0, first, units;
    while (next_pick(&p, &first, &units)) {
        for (size_t i = first; i < first + units && picked < most; i++) {
            weft_unit_store(coder->tile_olds, picked, width, weft_unit_load(p.s.from, i, width));
            weft_unit_store(coder->tile_news, picked, width, next_value(&p.s, i, width));
            picked++;
        }
    }
    return picked;
}

size_t weft_scan_glance(weft_bucket_coder *coder, const weft_bucket *bucket, size_t *differing) {
    picks p = picks_along(&coder->from, &coder->to, bucket, GLANCE_RUNS, GLANCE);
    size_t picked = 0, first, units;
    *differing = 0;
    while (next_pick(&p, &first, &units)) {
        *differing += diff_tile(coder->kernels, &p.s, first, units, coder->tile_positions, bucket->width);
        picked += units;
    }
    return picked;
}

static void begin_small(weft_bucket_coder *coder, const weft_bucket *bucket, bool known) {
    weft_exponent exponent = weft_exponent_of(bucket->dtype);
    weft_class_sample sample;
    if (bucket->format == 1 && bucket->width != 2) {
        exponent = (weft_exponent){.present = false};
    }
    if (exponent.present) {
        take_sample(coder, bucket, known, exponent, &sample);
    }
    weft_small_encoder_begin(&coder->small_encoder, exponent, exponent.present ? &sample : NULL,
                             bucket->units, bucket->format != 1);
}

/* ---- the pass ---- */

/* What a pass does on its way. */
typedef struct scan_pass {
    weft_bucket_coder *coder;
    unsigned width;
    bool small;
    uint64_t most;    /* changes; it stops once there are more */
    weft_sum *delta;  /* NULL: nothing is proven */
    weft_sums *moves; /* or NULL */
    size_t run;       /* of coder->from, that proving is in */
} scan_pass;

/* A tile as plain memory on both sides. */
typedef struct scan_tile {
    uint64_t linear;
    size_t units;
    const uint8_t *from;
    const uint8_t *to;
} scan_tile;

static const weft_run *run_at(scan_pass *pass, uint64_t linear) {
    const weft_run *runs = pass->coder->from.runs;
    while (linear >= runs[pass->run].linear + runs[pass->run].units) {
        pass->run++;
    }
    return &runs[pass->run];
}

/* The tile that starts `first` units into the stretch. It ends on a word of its tensor, or where the
 * stretch does, so that no word lies in two of them. */
static scan_tile cut_tile(scan_pass *pass, const stretch *s, size_t first) {
    scan_tile tile = {s->linear + first, (size_t)(s->units - first), s->from + first * pass->width, NULL};
    if (tile.units > WEFT_TILE) {
        run_at(pass, tile.linear);
        size_t run = pass->run;
        uint64_t end = tile.linear + WEFT_TILE;
        tile.units = WEFT_TILE - (size_t)(end - run_at(pass, end)->linear) % (WEFT_WORD / pass->width);
        pass->run = run;
    }
    if (s->to_masters != NULL) {
        weft_bf16_cast(weft_cpu_level(), (const float *)(const void *)(s->to_masters + 4 * first),
                       (uint16_t *)(void *)pass->coder->tile_news, tile.units);
        tile.to = pass->coder->tile_news;
    } else {
        tile.to = s->to + first * pass->width;
    }
    return tile;
}

/* What follows each other in memory and in a tensor, within one grain, from `start` on, as far as the tile
 * goes. */
typedef struct scan_piece {
    const weft_run *run;
    uint64_t start;
    uint64_t end;
    uint64_t byte; /* of the tensor, at the start */
} scan_piece;

static scan_piece piece_at(scan_pass *pass, const scan_tile *tile, uint64_t start) {
    const weft_run *run = run_at(pass, start);
    scan_piece piece = {run, start, tile->linear + tile->units,
                        weft_run_unit(run, start - run->linear) * pass->width};
    uint64_t row_end = start + weft_run_left(run, start - run->linear);
    uint64_t grain_end = start + (WEFT_GRAIN_BYTES - piece.byte % WEFT_GRAIN_BYTES) / pass->width;
    piece.end = piece.end < row_end ? piece.end : row_end;
    piece.end = piece.end < grain_end ? piece.end : grain_end;
    return piece;
}

static void add_moved(scan_pass *pass, const scan_piece *piece, weft_sum moved) {
    weft_sum_add(pass->delta, moved);
    if (pass->moves != NULL) {
        weft_sums_move(pass->moves, piece->run->tensor, piece->byte, moved);
    }
}

/* What the changes from index `change` up to `last`, which are those of the tile, do to the digest. Only
 * pieces with a change in them are looked at. */
static void prove_tile(scan_pass *pass, const scan_tile *tile, size_t change, size_t last) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    const weft_changes *changes = &pass->coder->changes;
    uint64_t done = tile->linear;
    while (change < last) {
        const weft_run *run = run_at(pass, changes->positions[change]);
        uint64_t offset = changes->positions[change] - run->linear;
        uint64_t row = run->linear + (run->row != 0 ? offset / run->row * run->row : 0);
        scan_piece piece = piece_at(pass, tile, row > done ? row : done);
        size_t place = (size_t)(piece.start - tile->linear) * pass->width;
        add_moved(pass, &piece,
                  kernels->difference(tile->from + place, tile->to + place,
                                      (size_t)(piece.end - piece.start) * pass->width,
                                      piece.byte / WEFT_WORD));
        done = piece.end;
        change = weft_changes_before(changes, change, done);
    }
}

/* Finds what differs in the tile; returns how many. Where the tile is one piece, it is proven on the way,
 * if the processor is good at it. */
static size_t compare_tile(scan_pass *pass, const scan_tile *tile, uint32_t *positions, bool *proven) {
    const weft_patch_kernels *kernels = pass->coder->kernels;
    uint32_t linear = (uint32_t)tile->linear;
    *proven = pass->delta == NULL;
    if (!*proven && pass->width == 2 && kernels->diff_proven != NULL) {
        scan_piece piece = piece_at(pass, tile, tile->linear);
        if (piece.end == tile->linear + tile->units) {
            weft_sum moved;
            size_t found = kernels->diff_proven(tile->from, tile->to, tile->units, linear, positions,
                                                piece.byte / WEFT_WORD, &moved);
            *proven = true;
            add_moved(pass, &piece, moved);
            return found;
        }
    }
    return kernels->diff(tile->from, tile->to, tile->units, pass->width, linear, positions);
}

static inline __attribute__((always_inline)) void load_values(const scan_tile *tile, weft_changes *changes,
                                                              size_t found, unsigned width) {
    for (size_t i = changes->count; i < changes->count + found; i++) {
        size_t index = (size_t)(changes->positions[i] - tile->linear);
        weft_unit_store(changes->olds, i, width, weft_unit_load(tile->from, index, width));
        weft_unit_store(changes->news, i, width, weft_unit_load(tile->to, index, width));
    }
}

static void load_changes(const scan_tile *tile, weft_changes *changes, size_t found) {
    switch (changes->width) {
    case 1:
        load_values(tile, changes, found, 1);
        break;
    case 2:
        load_values(tile, changes, found, 2);
        break;
    case 4:
        load_values(tile, changes, found, 4);
        break;
    default:
        load_values(tile, changes, found, 8);
        break;
    }
}

/* Comparing asks for memory half a tile ahead of where it is, so that the first half of the next tile is
 * under way by now; classifying asks for what comes after that. */
static void ask_ahead(scan_pass *pass, const scan_tile *tile) {
    uintptr_t *ahead = pass->coder->small_encoder.coder.tile.ahead;
    size_t past = WEFT_TILE * pass->width + WEFT_LANES_AHEAD;
    ahead[0] = (uintptr_t)tile->from + past;
    ahead[1] = (uintptr_t)tile->to + past;
}

static weft_status scan_stretch(scan_pass *pass, const stretch *s) {
    weft_bucket_coder *coder = pass->coder;
    weft_changes *changes = &coder->changes;
    weft_status status = WEFT_OK;
    for (size_t first = 0; first < s->units && changes->count <= pass->most && status == WEFT_OK;) {
        status = weft_changes_grow(changes, WEFT_TILE);
        if (status != WEFT_OK) {
            return status;
        }
        scan_tile tile = cut_tile(pass, s, first);
        size_t before = changes->count;
        bool proven;
        size_t found = compare_tile(pass, &tile, changes->positions + before, &proven);
        load_changes(&tile, changes, found);
        changes->count += found;
        if (!proven) {
            prove_tile(pass, &tile, before, changes->count);
        }
        if (pass->small) {
            ask_ahead(pass, &tile);
            status = weft_small_encoder_tile(&coder->small_encoder, tile.from, tile.units,
                                             (uint32_t)tile.linear, changes, before);
        }
        first += tile.units;
    }
    return status;
}

/* Takes the moves of a pass back that has stopped early: the same, from the new state to the old one. */
static void take_back(scan_pass *pass) {
    weft_bucket_coder *coder = pass->coder;
    const weft_changes *changes = &coder->changes;
    stretches iterator = stretches_of(&coder->from, &coder->to, pass->width);
    stretch s;
    size_t next = 0;
    pass->run = 0;
    while (next < changes->count && next_stretch(&iterator, &s)) {
        for (size_t first = 0; first < s.units && next < changes->count;) {
            scan_tile tile = cut_tile(pass, &s, first);
            const scan_tile back = {tile.linear, tile.units, tile.to, tile.from};
            size_t last = changes_before(changes, next, tile.linear + tile.units);
            prove_tile(pass, &back, next, last);
            next = last;
            first += tile.units;
        }
    }
}

static weft_status scan_all(scan_pass *pass) {
    weft_bucket_coder *coder = pass->coder;
    stretches iterator = stretches_of(&coder->from, &coder->to, pass->width);
    weft_status status = WEFT_OK;
    stretch s;
    while (status == WEFT_OK && coder->changes.count <= pass->most && next_stretch(&iterator, &s)) {
        status = scan_stretch(pass, &s);
    }
    return status;
}

weft_status weft_scan(weft_bucket_coder *coder, const weft_bucket *bucket, bool small, uint64_t most,
                      weft_sums *moves, weft_sum *delta, bool *dense_out) {
    weft_status status = weft_changes_reset(&coder->changes, bucket->width, WEFT_TILE);
    if (status != WEFT_OK) {
        return status;
    }
    if (small) {
        begin_small(coder, bucket, false);
    }
    scan_pass pass = {coder, bucket->width, small, most, delta, moves, 0};
    status = scan_all(&pass);
    *dense_out = coder->changes.count > most;
    if (*dense_out && delta != NULL) {
        take_back(&pass);
    }
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
