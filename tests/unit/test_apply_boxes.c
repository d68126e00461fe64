/* SPDX-License-Identifier: Apache-2.0
 *
 * Boxes: tensors of three dimensions, cut along each of them, in live memory of every form (as they are,
 * half of them, joined row by row with a neighbour of odd width, in turns), of every width, as memory,
 * behind callbacks and as masters. What is prepared can be visited, as changes of the live tensors; given
 * as changes of the checkpoint's, they make the same patch. What is staged does not grow with the number of
 * rows, and is counted.
 */
#include "../../lib/patch/format/patch.h"
#include "faults.h"
#include "found.h"
#include "patches.h"
#include "seen.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIMS = 3, LIVE_MAX = 3, SLICES_MAX = 2, TENSORS = 2, W = 0, X = 1 };

static const char *const tensor_names[TENSORS] = {"w", "x"};

typedef enum form {
    FORM_STRAIGHT,
    FORM_PART,        /* a half of w, alone, and of x */
    FORM_JOINED,      /* x and w, side by side along the joint */
    FORM_PART_JOINED, /* the same with a half of w */
    FORM_TURNS,       /* the halves of w in two tensors */
    FORM_SWAPPED,     /* the halves of w, the second first, side by side along the joint */
    FORMS,
} form;

/* Shapes are in units: bytes for types under one. */
typedef struct slice {
    size_t tensor;
    int cut; /* the dimension that it is a half along, or -1 */
    uint64_t start, shape[DIMS];
} slice;

typedef struct live {
    slice slices[SLICES_MAX];
    size_t slice_count;
    unsigned joint;
    uint64_t shape[DIMS];
    size_t units;
    uint8_t *memory;
    float *masters;
    unsigned width;
} live;

typedef struct world {
    weft_context *context;
    weft_dtype dtype;
    unsigned width, per_unit;
    unsigned dim, joint; /* w is cut along the one, and joined along the other */
    uint64_t shape[TENSORS][DIMS];
    size_t units[TENSORS];
    uint8_t *olds[TENSORS], *news[TENSORS];
    weft_table *tables[2];
    weft_view *views[2];
    bytes file;
    weft_patch *patch;
    weft_diff_stats stats;
} world;

static size_t product(const uint64_t *shape) {
    return (size_t)(shape[0] * shape[1] * shape[2]);
}

static weft_tensor tensor_of(const world *world, const char *name, const uint64_t *shape) {
    weft_tensor tensor = {
        .size = sizeof tensor, .name = name, .dtype = world->dtype, .rank = DIMS, .writable = true};
    memcpy(tensor.shape, shape, sizeof(uint64_t[DIMS]));
    tensor.shape[DIMS - 1] *= world->per_unit;
    return tensor;
}

static weft_view *straight(const world *world, uint8_t *const *memory, weft_table **table_out) {
    weft_view *view;
    assert_int_equal(weft_table_create(world->context, table_out), WEFT_OK);
    for (size_t i = 0; i < TENSORS; i++) {
        weft_tensor tensor = tensor_of(world, tensor_names[i], world->shape[i]);
        tensor.data = memory[i];
        assert_int_equal(weft_table_add(*table_out, &tensor), WEFT_OK);
    }
    assert_int_equal(weft_view_create(world->context, *table_out, &view), WEFT_OK);
    return view;
}

/* A cast through F32, which masters go through, does not keep what a NaN holds. */
static void drop_nans(uint8_t *weights, size_t units) {
    for (size_t i = 0; i < units; i++) {
        uint16_t weight;
        memcpy(&weight, weights + 2 * i, sizeof weight);
        weight &= (weight & 0x7fff) > 0x7f80 ? 0xff80 : 0xffff;
        memcpy(weights + 2 * i, &weight, sizeof weight);
    }
}

/* `words` are those of a row of half of w. */
static void world_open(world *world, weft_context *context, weft_dtype dtype, unsigned dim, unsigned joint,
                       uint64_t words, unsigned per_million) {
    dice dice = {100 * dim + 10 * joint + words};
    memset(world, 0, sizeof *world);
    world->context = context;
    world->dtype = dtype;
    world->width = weft_dtype_width(dtype);
    world->per_unit = weft_dtype_bits(dtype) < 8 ? 8 / weft_dtype_bits(dtype) : 1;
    world->dim = dim;
    world->joint = joint;
    uint64_t shape[DIMS] = {6, 250, 2 * words * 16 / world->width};
    for (size_t i = 0; i < TENSORS; i++) {
        memcpy(world->shape[i], shape, sizeof shape);
        if (i == X) {
            world->shape[i][joint] = 3;
        }
        world->units[i] = product(world->shape[i]);
        world->olds[i] = malloc(world->units[i] * world->width);
        world->news[i] = malloc(world->units[i] * world->width);
        assert_true(world->olds[i] != NULL && world->news[i] != NULL);
        weights_fill(&dice, WEIGHTS_TRAINED, dtype, world->olds[i], world->units[i]);
        memcpy(world->news[i], world->olds[i], world->units[i] * world->width);
        weights_change(&dice, CHANGE_MIXED, world->width, world->news[i], world->units[i], per_million);
        weights_change_one(&dice, CHANGE_ULP, world->width, world->news[i], world->units[i] - 1);
        if (dtype == WEFT_DTYPE_BF16) {
            drop_nans(world->news[i], world->units[i]);
        }
    }
    world->views[0] = straight(world, world->olds, &world->tables[0]);
    world->views[1] = straight(world, world->news, &world->tables[1]);
}

static void world_close(world *world) {
    weft_patch_close(world->patch);
    bytes_clear(&world->file);
    for (size_t i = 0; i < TENSORS; i++) {
        weft_view_destroy(world->views[i]);
        weft_table_destroy(world->tables[i]);
        free(world->olds[i]);
        free(world->news[i]);
    }
}

/* True if the halves of x, too, end on words. */
static bool cuts_x(const world *world) {
    return world->dim != world->joint && world->joint != DIMS - 1;
}

static weft_diff_options options_of(const world *world, weft_profile profile, weft_cut cuts[TENSORS],
                                    bool cut) {
    cuts[0] = (weft_cut){"w", world->dim, 2};
    cuts[1] = (weft_cut){"x", world->dim, 2};
    size_t count = !cut ? 0 : cuts_x(world) ? 2 : 1;
    return (weft_diff_options){.size = sizeof(weft_diff_options),
                               .profile = profile,
                               .bucket_bytes = 32 * 1024,
                               .cuts = cuts,
                               .cut_count = count};
}

static void world_diff(world *world, const weft_diff_options *options) {
    world->stats.size = sizeof world->stats;
    bytes_clear(&world->file);
    weft_patch_close(world->patch);
    weft_sink sink = bytes_sink(&world->file);
    assert_int_equal(
        weft_diff(world->context, world->views[0], world->views[1], options, &sink, &world->stats),
        WEFT_OK);
    world->patch = patches_open(world->context, &world->file);
}

/* ---- live memory ---- */

static slice whole(const world *world, size_t tensor) {
    slice slice = {.tensor = tensor, .cut = -1};
    memcpy(slice.shape, world->shape[tensor], sizeof slice.shape);
    return slice;
}

static slice half(const world *world, size_t tensor, unsigned index) {
    slice slice = whole(world, tensor);
    slice.cut = (int)world->dim;
    slice.shape[world->dim] /= 2;
    slice.start = index * slice.shape[world->dim];
    return slice;
}

static live live_of(const world *world, size_t count, slice first, slice second) {
    live live = {.slices = {first, second}, .slice_count = count, .joint = world->joint};
    memcpy(live.shape, first.shape, sizeof live.shape);
    if (count > 1) {
        live.shape[live.joint] += second.shape[live.joint];
    }
    live.units = product(live.shape);
    live.width = world->width;
    live.memory = malloc(live.units * world->width);
    assert_non_null(live.memory);
    return live;
}

static size_t make_lives(const world *world, form form, live *lives) {
    slice w = whole(world, W);
    slice x = whole(world, X);
    slice other = cuts_x(world) ? half(world, X, 1) : x;
    switch (form) {
    case FORM_JOINED:
        lives[0] = live_of(world, 2, x, w);
        return 1;
    case FORM_PART_JOINED:
        lives[0] = live_of(world, 2, other, half(world, W, 1));
        return 1;
    case FORM_PART:
        lives[0] = live_of(world, 1, half(world, W, 1), w);
        lives[1] = live_of(world, 1, other, x);
        return 2;
    case FORM_TURNS:
        lives[0] = live_of(world, 1, half(world, W, 1), w);
        lives[1] = live_of(world, 1, half(world, W, 0), w);
        lives[2] = live_of(world, 1, x, x);
        return 3;
    case FORM_SWAPPED:
        lives[0] = live_of(world, 2, half(world, W, 1), half(world, W, 0));
        lives[1] = live_of(world, 1, x, x);
        return 2;
    default:
        lives[0] = live_of(world, 1, w, w);
        lives[1] = live_of(world, 1, x, x);
        return 2;
    }
}

/* What the live tensor holds of the checkpoint's tensors, row by row of the last dimension. */
static void assemble(const world *world, const live *live, uint8_t *const *sources, uint8_t *output) {
    uint64_t before = 0;
    for (size_t s = 0; s < live->slice_count; s++) {
        const slice *slice = &live->slices[s];
        const uint64_t *shape = world->shape[slice->tensor];
        for (uint64_t i = 0; i < slice->shape[0]; i++) {
            for (uint64_t j = 0; j < slice->shape[1]; j++) {
                uint64_t from[DIMS] = {i, j, 0};
                uint64_t to[DIMS] = {i, j, 0};
                if (slice->cut >= 0) {
                    from[slice->cut] += slice->start;
                }
                to[live->joint] += before;
                memcpy(output + ((to[0] * live->shape[1] + to[1]) * live->shape[2] + to[2]) * world->width,
                       sources[slice->tensor] +
                           ((from[0] * shape[1] + from[1]) * shape[2] + from[2]) * world->width,
                       (size_t)slice->shape[2] * world->width);
            }
        }
        before += slice->shape[live->joint];
    }
}

static weft_status live_read(void *opaque, uint64_t offset, void *output, size_t size) {
    const live *live = opaque;
    memcpy(output, live->memory + offset, size);
    return WEFT_OK;
}

static weft_status live_gather(void *opaque, const uint64_t *words, size_t count, void *output) {
    const live *live = opaque;
    size_t bytes = live->units * live->width;
    for (size_t i = 0; i < count; i++) {
        size_t start = 16 * (size_t)words[i];
        if (start >= bytes || (i > 0 && words[i] <= words[i - 1])) {
            return WEFT_INVALID_ARGUMENT;
        }
        memcpy((uint8_t *)output + 16 * i, live->memory + start, bytes - start < 16 ? bytes - start : 16);
    }
    return WEFT_OK;
}

static weft_status live_scatter(void *opaque, const uint64_t *units, size_t count, const void *values) {
    const live *live = opaque;
    for (size_t i = 0; i < count; i++) {
        if (units[i] >= live->units || (i > 0 && units[i] <= units[i - 1])) {
            return WEFT_INVALID_ARGUMENT;
        }
        memcpy(live->memory + units[i] * live->width, (const uint8_t *)values + i * live->width,
               live->width);
    }
    return WEFT_OK;
}

static const weft_access live_access = {live_read, live_gather, live_scatter};

typedef enum backing {
    BACKING_MEMORY,
    BACKING_CALLBACKS,
    BACKING_MASTERS,
} backing;

typedef struct holder {
    live lives[LIVE_MAX];
    size_t count;
    weft_table *table;
    weft_layout *layout;
    weft_view *view;
} holder;

static float *masters_of(const live *live) {
    float *masters = malloc(live->units * sizeof *masters);
    assert_non_null(masters);
    for (size_t i = 0; i < live->units; i++) {
        uint16_t weight;
        memcpy(&weight, live->memory + 2 * i, sizeof weight);
        uint32_t bits = (uint32_t)weight << 16;
        memcpy(&masters[i], &bits, sizeof bits);
    }
    return masters;
}

static void add_live(const world *world, holder *holder, size_t index, backing backing) {
    static const char *const names[LIVE_MAX] = {"live.0", "live.1", "live.2"};
    live *live = &holder->lives[index];
    weft_tensor tensor = tensor_of(world, names[index], live->shape);
    if (backing == BACKING_CALLBACKS) {
        tensor.access = &live_access;
        tensor.opaque = live;
    } else if (backing == BACKING_MASTERS) {
        live->masters = masters_of(live);
        tensor.data = live->masters;
        tensor.storage = WEFT_DTYPE_F32;
    } else {
        tensor.data = live->memory;
    }
    assert_int_equal(weft_table_add(holder->table, &tensor), WEFT_OK);
    weft_slice slices[SLICES_MAX];
    for (size_t i = 0; i < live->slice_count; i++) {
        const slice *from = &live->slices[i];
        uint64_t scale = from->cut == DIMS - 1 ? world->per_unit : 1;
        slices[i] = (weft_slice){tensor_names[from->tensor], from->cut, from->start * scale,
                                 from->cut < 0 ? 0 : from->shape[from->cut] * scale};
    }
    assert_int_equal(
        weft_layout_concat(holder->layout, names[index], live->joint, slices, live->slice_count), WEFT_OK);
}

static void holder_open(const world *world, holder *holder, form form, backing backing,
                        uint8_t *const *sources) {
    memset(holder, 0, sizeof *holder);
    holder->count = make_lives(world, form, holder->lives);
    assert_int_equal(weft_table_create(world->context, &holder->table), WEFT_OK);
    assert_int_equal(weft_layout_create(world->context, &holder->layout), WEFT_OK);
    for (size_t i = 0; i < holder->count; i++) {
        assemble(world, &holder->lives[i], sources, holder->lives[i].memory);
        add_live(world, holder, i, backing);
    }
    weft_status status = weft_view_create_layout(world->context, holder->table, holder->layout,
                                                 world->tables[0], &holder->view);
    assert_string_equal(weft_context_error(world->context), "");
    assert_int_equal(status, WEFT_OK);
}

static void holder_close(holder *holder) {
    weft_view_destroy(holder->view);
    weft_layout_destroy(holder->layout);
    weft_table_destroy(holder->table);
    for (size_t i = 0; i < holder->count; i++) {
        free(holder->lives[i].memory);
        free(holder->lives[i].masters);
    }
}

static bool holds(const world *world, const holder *holder, uint8_t *const *sources) {
    bool same = true;
    for (size_t i = 0; i < holder->count; i++) {
        size_t bytes = holder->lives[i].units * world->width;
        uint8_t *expected = malloc(bytes);
        assert_non_null(expected);
        assemble(world, &holder->lives[i], sources, expected);
        same = same && memcmp(expected, holder->lives[i].memory, bytes) == 0;
        free(expected);
    }
    return same;
}

/* ---- the sweep ---- */

static weft_apply *start(const world *world, const holder *holder, weft_sums *sums) {
    weft_apply *apply;
    weft_status status = weft_apply_create(world->context, world->patch, holder->view, sums, &apply);
    assert_string_equal(weft_context_error(world->context), "");
    assert_int_equal(status, WEFT_OK);
    return apply;
}

static const void *live_bytes(void *opaque, const weft_tensor *tensor) {
    (void)opaque;
    const live *live = tensor->opaque;
    return live != NULL ? live->memory : tensor->data;
}

static void walk(const world *world, form form, backing backing) {
    seen seen;
    holder holder;
    holder_open(world, &holder, form, backing, world->olds);
    weft_sums *sums = patches_sums(world->context, holder.view);
    weft_apply *apply = start(world, &holder, sums);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    seen_open(&seen, holder.table, live_bytes, NULL);
    seen.most = form % 2 == 0 ? 100 : 0;
    assert_int_equal(weft_apply_changes(apply, seen.most, seen_visit, &seen), WEFT_OK);
    assert_true(holds(world, &holder, world->olds));
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(holds(world, &holder, world->news));
    assert_true(seen_holds(&seen, live_bytes, NULL));
    assert_true(seen.changed > 0);
    seen_close(&seen);
    assert_int_equal(weft_sums_audit(world->context, sums, UINT64_MAX), WEFT_OK);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(holds(world, &holder, world->olds));
    weft_apply_destroy(apply);
    apply = start(world, &holder, sums);
    assert_int_equal(weft_apply_run(apply), WEFT_OK);
    assert_true(holds(world, &holder, world->news));
    assert_int_equal(weft_sums_audit(world->context, sums, UINT64_MAX), WEFT_OK);
    weft_apply_destroy(apply);
    if (weft_view_complete(holder.view)) {
        weft_digest digest = weft_sums_digest(sums);
        assert_true(weft_digest_equal(&digest, &world->stats.result));
    }
    weft_sums_destroy(sums);
    holder_close(&holder);
}

/* A diff of states in this form gives the patch of states that lie as they are. */
static void diff_again(world *world, form form, backing backing, weft_diff_options options) {
    holder from;
    holder to;
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    weft_trail *trail = NULL;
    holder_open(world, &from, form, BACKING_MEMORY, world->olds);
    holder_open(world, &to, form, backing, world->news);
    assert_int_equal(weft_diff(world->context, from.view, to.view, &options, &sink, NULL), WEFT_OK);
    assert_int_equal(file.size, world->file.size);
    assert_memory_equal(file.data, world->file.data, file.size);
    bytes_clear(&file);
    options.trail = &trail;
    weft_status status = weft_diff(world->context, from.view, to.view, &options, &sink, NULL);
    if (status == WEFT_OK) { /* else the form cuts through words, and the base cannot follow */
        assert_memory_equal(file.data, world->file.data, file.size);
        assert_true(holds(world, &from, world->news));
        assert_int_equal(weft_trail_undo(world->context, trail), WEFT_OK);
    }
    assert_true(holds(world, &from, world->olds));
    weft_trail_destroy(trail);
    bytes_clear(&file);
    holder_close(&from);
    holder_close(&to);
}

/* And so do changes, whatever the form that their base is in. */
static void diff_given(world *world, form form, backing backing, weft_diff_options options) {
    holder from;
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    found found = {0};
    dice dice = {1};
    holder_open(world, &from, form, backing, world->olds);
    for (size_t i = TENSORS; i-- > 0;) {
        found_add(&found, &dice, tensor_names[i], world->width, world->olds[i], world->news[i],
                  world->units[i], 3000);
    }
    options.changes = found.lists;
    options.change_count = found.count;
    assert_int_equal(weft_diff(world->context, from.view, NULL, &options, &sink, NULL), WEFT_OK);
    assert_int_equal(file.size, world->file.size);
    assert_memory_equal(file.data, world->file.data, file.size);
    found_clear(&found);
    bytes_clear(&file);
    holder_close(&from);
}

static void sweep_forms(world *world, weft_profile profile, bool cut) {
    weft_cut cuts[TENSORS];
    weft_diff_options options = options_of(world, profile, cuts, cut);
    world_diff(world, &options);
    for (form form = FORM_STRAIGHT; form < FORMS; form++) {
        bool part = form == FORM_PART || form == FORM_PART_JOINED;
        bool fits = form != FORM_PART_JOINED || world->dim == world->joint || cuts_x(world);
        if ((part && !cut) || !fits || !test_stride_takes()) {
            continue;
        }
        walk(world, form, BACKING_MEMORY);
        walk(world, form, BACKING_CALLBACKS);
        if (!part) {
            diff_again(world, form, BACKING_MEMORY, options);
            diff_again(world, form, BACKING_CALLBACKS, options);
            diff_given(world, form, BACKING_MEMORY, options);
            diff_given(world, form, BACKING_CALLBACKS, options);
        }
        if (!part && world->dtype == WEFT_DTYPE_BF16) {
            diff_again(world, form, BACKING_MASTERS, options);
        }
    }
}

static void test_every_form(void **state) {
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_F4,
                                        WEFT_DTYPE_F64};
    static const unsigned densities[] = {3000, 60000, 900000};
    weft_context *context = patches_context(2);
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        for (unsigned dim = 0; dim < DIMS; dim++) {
            for (unsigned joint = 0; joint < DIMS; joint++) {
                world world;
                world_open(&world, context, dtypes[t], dim, joint, 1 + 2 * (joint % 2),
                           densities[(t + dim + joint) % 3]);
                for (unsigned p = 0; p < 4; p++) {
                    sweep_forms(&world, p % 2 == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL, p / 2 == 0);
                }
                world_close(&world);
            }
        }
    }
    weft_context_destroy(context);
}

/* ---- memory ---- */

enum { ROWS = 256 * 1024, COLUMNS = 16, TALL_CHANGES = 300 };

/* What a prepared patch holds is what its statistics say, and little, however many rows there are. */
static void measure_rows(weft_profile profile, uint32_t parts, bool alone) {
    faults faults = {0};
    const weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 2};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    const tensor_shape shape = {"w", WEFT_DTYPE_BF16, ROWS, COLUMNS};
    pair pair;
    pair_open(&pair, context, &shape, 1, WEIGHTS_TRAINED, 5);
    dice dice = {6};
    for (size_t i = 0; i < TALL_CHANGES; i++) {
        weights_change_one(&dice, CHANGE_ULP, 2, pair.news[0], dice_below(&dice, ROWS * COLUMNS));
    }
    const weft_cut cut = {"w", 1, parts};
    pair_diff(&pair,
              &(weft_diff_options){
                  .size = sizeof(weft_diff_options), .profile = profile, .cuts = &cut, .cut_count = 1});
    uint64_t columns = COLUMNS / parts;
    uint8_t *half = malloc(ROWS * columns * 2);
    assert_non_null(half);
    for (size_t i = 0; i < ROWS; i++) {
        memcpy(half + i * columns * 2, pair.olds[0] + i * COLUMNS * 2, columns * 2);
    }
    weft_table *table;
    weft_layout *layout;
    weft_view *view;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    assert_int_equal(weft_layout_create(context, &layout), WEFT_OK);
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "w",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 2,
                          .shape = {ROWS, columns},
                          .data = half,
                          .writable = true};
    const weft_slice slice = {"w", 1, 0, columns};
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_layout_concat(layout, "w", 0, &slice, 1), WEFT_OK);
    assert_int_equal(weft_view_create_layout(context, table, layout, pair.live.table, &view), WEFT_OK);
    const weft_view *used = alone ? view : pair.live.view;
    weft_sums *sums = patches_sums(context, used);
    weft_apply *apply;
    assert_int_equal(weft_apply_create(context, pair.patch, used, sums, &apply), WEFT_OK);
    size_t before = faults_live_bytes(&faults);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    weft_apply_stats stats = {.size = sizeof stats};
    weft_apply_describe(apply, &stats);
    size_t held = faults_live_bytes(&faults) - before;
    /* coders keep what they needed for a bucket: a copy of its weights at most */
    assert_true(held < ((size_t)2 << 20) + stats.stage_bytes);
    assert_true(stats.stage_bytes < 64 * 1024);
    assert_true(stats.stage_bytes >= stats.changed * 8 + stats.buckets * sizeof(weft_segment));
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    weft_apply_destroy(apply);
    assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_layout_destroy(layout);
    weft_table_destroy(table);
    free(half);
    pair_close(&pair);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

static void test_rows_take_no_memory(void **state) {
    (void)state;
    measure_rows(WEFT_PROFILE_FAST, 2, false);
    measure_rows(WEFT_PROFILE_FAST, 2, true);
    measure_rows(WEFT_PROFILE_SMALL, 2, false);
    measure_rows(WEFT_PROFILE_SMALL, 2, true);
}

/* Rows that are held in turns take a segment each. They count: prepare stops at the limit. */
static void test_turns_count(void **state) {
    (void)state;
    enum { LIMIT = 1 << 20 };
    faults faults = {0};
    const weft_context_options options = {
        .size = sizeof options,
        .allocator = faults_allocator(&faults),
        .threads = 2,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = LIMIT}};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    world world;
    world_open(&world, context, WEFT_DTYPE_BF16, 2, 1, 1, 1000);
    weft_diff_options wanted = {
        .size = sizeof wanted, .profile = WEFT_PROFILE_FAST, .bucket_bytes = 32 * 1024};
    world_diff(&world, &wanted);
    holder holder;
    holder_open(&world, &holder, FORM_TURNS, BACKING_MEMORY, world.olds);
    weft_sums *sums = patches_sums(context, holder.view);
    weft_apply *apply = start(&world, &holder, sums);
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        size_t before = faults_live_bytes(&faults);
        status = weft_apply_prepare(apply);
        assert_true(status >= 0);
        weft_apply_stats stats = {.size = sizeof stats};
        weft_apply_describe(apply, &stats);
        /* a bucket has 1024 rows, in two turns each */
        assert_true(stats.stage_bytes > 1024 * sizeof(weft_segment));
        assert_true(stats.stage_bytes <= LIMIT);
        assert_true(faults_live_bytes(&faults) < before + LIMIT);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    }
    assert_true(holds(&world, &holder, world.news));
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    holder_close(&holder);
    world_close(&world);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form),
        cmocka_unit_test(test_rows_take_no_memory),
        cmocka_unit_test(test_turns_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
