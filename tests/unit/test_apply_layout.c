/* SPDX-License-Identifier: Apache-2.0
 *
 * Applying through layouts: fused, stacked, renamed and tied tensors; ranks that hold rows and columns
 * and read their own buckets only; and tensors behind callbacks, which fail early and late.
 */
#include "../../lib/patch/format/patch.h"
#include "deferred.h"
#include "patches.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024, SLICES_MAX = 4, LIVE_MAX = 24 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

/* The checkpoint. "odd.*" do not fill whole words, so that fused they cut through them;
 * "left" and "right" do so in every row. */
static const tensor_shape shapes[] = {
    {"q", WEFT_DTYPE_BF16, 256, 96},      {"k", WEFT_DTYPE_BF16, 64, 96},
    {"v", WEFT_DTYPE_BF16, 64, 96},       {"o", WEFT_DTYPE_BF16, 96, 256},
    {"gate", WEFT_DTYPE_BF16, 320, 96},   {"up", WEFT_DTYPE_BF16, 320, 96},
    {"down", WEFT_DTYPE_BF16, 96, 320},   {"embed", WEFT_DTYPE_BF16, 400, 96},
    {"norm", WEFT_DTYPE_F32, 96, 0},      {"expert.0", WEFT_DTYPE_F16, 24, 40},
    {"expert.1", WEFT_DTYPE_F16, 24, 40}, {"expert.2", WEFT_DTYPE_F16, 24, 40},
    {"odd.a", WEFT_DTYPE_U8, 37, 0},      {"odd.b", WEFT_DTYPE_U8, 11, 0},
    {"odd.c", WEFT_DTYPE_U8, 1, 0},       {"odd.z", WEFT_DTYPE_U8, 70001, 0},
    {"left", WEFT_DTYPE_BF16, 2000, 13},  {"right", WEFT_DTYPE_BF16, 2000, 6},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct recipe {
    const char *name;
    bool stack;
    uint32_t dim;
    size_t count;
    weft_slice slices[SLICES_MAX];
} recipe;

static size_t find_shape(const char *name) {
    size_t i = 0;
    while (strcmp(shapes[i].name, name) != 0) {
        i++;
        assert_true(i < SHAPES);
    }
    return i;
}

/* ---- what a live tensor holds, element by element ---- */

typedef struct box {
    size_t tensor;
    uint64_t row, rows, column, columns;
} box;

/* A vector is a matrix of one column. */
static box slice_box(const weft_slice *slice) {
    box box = {.tensor = find_shape(slice->tensor)};
    const tensor_shape *shape = &shapes[box.tensor];
    box.rows = slice->dim == 0 ? slice->length : shape->rows;
    box.row = slice->dim == 0 ? slice->start : 0;
    uint64_t columns = shape->columns == 0 ? 1 : shape->columns;
    box.columns = slice->dim == 1 ? slice->length : columns;
    box.column = slice->dim == 1 ? slice->start : 0;
    return box;
}

static weft_tensor live_tensor(const recipe *recipe) {
    box first = slice_box(&recipe->slices[0]);
    const tensor_shape *shape = &shapes[first.tensor];
    uint64_t size[2] = {first.rows, first.columns};
    for (size_t i = 1; i < recipe->count && !recipe->stack; i++) {
        box more = slice_box(&recipe->slices[i]);
        size[recipe->dim] += recipe->dim == 0 ? more.rows : more.columns;
    }
    weft_tensor tensor = {
        .size = sizeof tensor, .name = recipe->name, .dtype = shape->dtype, .writable = true};
    if (recipe->stack) {
        tensor.shape[tensor.rank++] = recipe->count;
    }
    tensor.shape[tensor.rank++] = size[0];
    if (shape->columns != 0) {
        tensor.shape[tensor.rank++] = size[1];
    }
    return tensor;
}

static size_t live_bytes(const recipe *recipe) {
    weft_tensor tensor = live_tensor(recipe);
    uint64_t bytes = weft_dtype_width(tensor.dtype);
    for (uint32_t i = 0; i < tensor.rank; i++) {
        bytes *= tensor.shape[i];
    }
    return (size_t)bytes;
}

/* The live bytes of a recipe from the checkpoint's. */
static void assemble(const recipe *recipe, uint8_t *const *sources, uint8_t *output) {
    weft_tensor tensor = live_tensor(recipe);
    unsigned width = weft_dtype_width(tensor.dtype);
    uint64_t live_columns = tensor.rank == (recipe->stack ? 3u : 2u) ? tensor.shape[tensor.rank - 1] : 1;
    uint64_t row = 0;
    uint64_t column = 0;
    for (size_t i = 0; i < recipe->count; i++) {
        box box = slice_box(&recipe->slices[i]);
        uint64_t columns = shapes[box.tensor].columns == 0 ? 1 : shapes[box.tensor].columns;
        for (uint64_t r = 0; r < box.rows; r++) {
            memcpy(output + ((row + r) * live_columns + column) * width,
                   sources[box.tensor] + ((box.row + r) * columns + box.column) * width,
                   (size_t)box.columns * width);
        }
        row += recipe->stack || recipe->dim == 0 ? box.rows : 0;
        column += !recipe->stack && recipe->dim == 1 ? box.columns : 0;
    }
}

/* ---- a device ---- */

typedef struct device device;

typedef struct device_tensor {
    device *device;
    uint8_t *memory;
    size_t bytes;
    unsigned width;
} device_tensor;

struct device {
    atomic_size_t reads, gathers, scatters;
    size_t fail_read, fail_gather, fail_scatter; /* the call that fails, from 1; 0: none */
    bool fail_on;                                /* every later scatter fails too */
    atomic_bool misused;
    deferred *batches; /* that does the work instead; NULL: none */
};

static bool device_fails(atomic_size_t *calls, size_t fail_at, bool fail_on) {
    size_t call = atomic_fetch_add(calls, 1) + 1;
    return fail_at != 0 && (call == fail_at || (fail_on && call > fail_at));
}

static weft_status device_read(void *opaque, uint64_t offset, void *output, size_t size) {
    const device_tensor *tensor = opaque;
    if (device_fails(&tensor->device->reads, tensor->device->fail_read, false)) {
        return WEFT_IO_FAILED;
    }
    if (offset > tensor->bytes || size > tensor->bytes - offset) {
        tensor->device->misused = true;
        return WEFT_INVALID_ARGUMENT;
    }
    memcpy(output, tensor->memory + offset, size);
    return WEFT_OK;
}

static weft_status device_gather(void *opaque, const uint64_t *words, size_t count, void *output) {
    const device_tensor *tensor = opaque;
    if (device_fails(&tensor->device->gathers, tensor->device->fail_gather, false)) {
        return WEFT_IO_FAILED;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t start = 16 * words[i];
        if (start >= tensor->bytes || (i > 0 && words[i] <= words[i - 1])) {
            tensor->device->misused = true;
            return WEFT_INVALID_ARGUMENT;
        }
        size_t size = tensor->bytes - start < 16 ? (size_t)(tensor->bytes - start) : 16;
        memcpy((uint8_t *)output + 16 * i, tensor->memory + start, size);
    }
    return WEFT_OK;
}

static weft_status device_scatter(void *opaque, const uint64_t *units, size_t count, const void *values) {
    const device_tensor *tensor = opaque;
    if (device_fails(&tensor->device->scatters, tensor->device->fail_scatter, tensor->device->fail_on)) {
        return WEFT_IO_FAILED;
    }
    for (size_t i = 0; i < count; i++) {
        if (units[i] >= tensor->bytes / tensor->width || (i > 0 && units[i] <= units[i - 1])) {
            tensor->device->misused = true;
            return WEFT_INVALID_ARGUMENT;
        }
        memcpy(tensor->memory + units[i] * tensor->width, (const uint8_t *)values + i * tensor->width,
               tensor->width);
    }
    return WEFT_OK;
}

static const weft_access device_access = {device_read, device_gather, device_scatter};

/* ---- a worker: live tensors by recipes ---- */

typedef struct worker {
    weft_context *context;
    const recipe *recipes;
    size_t count;
    weft_table *table;
    weft_layout *layout;
    weft_view *view;
    weft_sums *sums;
    uint8_t *memory[LIVE_MAX];
    uint8_t *expected[LIVE_MAX]; /* scratch for comparisons */
    device_tensor device_tensors[LIVE_MAX];
    deferred_tensor deferred_tensors[LIVE_MAX];
    device *device;
} worker;

/* `device` NULL: plain memory. `ignored` lists what the worker does not hold. */
static void worker_open(worker *worker, const pair *pair, const recipe *recipes, size_t count,
                        device *device, const char *const *ignored) {
    weft_context *context = pair->context;
    memset(worker, 0, sizeof *worker);
    worker->context = context;
    worker->recipes = recipes;
    worker->count = count;
    worker->device = device;
    assert_int_equal(weft_table_create(context, &worker->table), WEFT_OK);
    assert_int_equal(weft_layout_create(context, &worker->layout), WEFT_OK);
    for (size_t i = 0; i < count; i++) {
        const recipe *recipe = &recipes[i];
        size_t bytes = live_bytes(recipe);
        worker->memory[i] = malloc(bytes);
        worker->expected[i] = malloc(bytes);
        assert_non_null(worker->memory[i]);
        assert_non_null(worker->expected[i]);
        assemble(recipe, pair->olds, worker->memory[i]);
        weft_tensor tensor = live_tensor(recipe);
        if (device != NULL && device->batches != NULL) {
            worker->deferred_tensors[i] = (deferred_tensor){device->batches, worker->memory[i], bytes,
                                                            weft_dtype_width(tensor.dtype)};
            tensor.access = &deferred_access;
            tensor.opaque = &worker->deferred_tensors[i];
        } else if (device != NULL) {
            worker->device_tensors[i] =
                (device_tensor){device, worker->memory[i], bytes, weft_dtype_width(tensor.dtype)};
            tensor.access = &device_access;
            tensor.opaque = &worker->device_tensors[i];
        } else {
            tensor.data = worker->memory[i];
        }
        assert_int_equal(weft_table_add(worker->table, &tensor), WEFT_OK);
        weft_status status =
            recipe->stack ? weft_layout_stack(worker->layout, recipe->name, recipe->slices, recipe->count)
                          : weft_layout_concat(worker->layout, recipe->name, recipe->dim, recipe->slices,
                                               recipe->count);
        assert_int_equal(status, WEFT_OK);
    }
    if (device != NULL && device->batches != NULL) {
        weft_batch_access batch = deferred_batch(device->batches);
        assert_int_equal(weft_table_set_batch_access(worker->table, &batch), WEFT_OK);
    }
    for (size_t i = 0; ignored != NULL && ignored[i] != NULL; i++) {
        assert_int_equal(weft_layout_ignore(worker->layout, ignored[i]), WEFT_OK);
    }
}

static void worker_show(worker *worker, const pair *pair) {
    weft_status status = weft_view_create_layout(worker->context, worker->table, worker->layout,
                                                 pair->live.table, &worker->view);
    assert_string_equal(weft_context_error(worker->context), "");
    assert_int_equal(status, WEFT_OK);
    worker->sums = patches_sums(worker->context, worker->view);
}

static void worker_close(worker *worker) {
    weft_sums_destroy(worker->sums);
    weft_view_destroy(worker->view);
    weft_layout_destroy(worker->layout);
    weft_table_destroy(worker->table);
    for (size_t i = 0; i < worker->count; i++) {
        free(worker->memory[i]);
        free(worker->expected[i]);
    }
}

static bool worker_holds(const worker *worker, uint8_t *const *sources) {
    for (size_t i = 0; i < worker->count; i++) {
        assemble(&worker->recipes[i], sources, worker->expected[i]);
        if (memcmp(worker->memory[i], worker->expected[i], live_bytes(&worker->recipes[i])) != 0) {
            return false;
        }
    }
    return true;
}

static void worker_reset(worker *worker, const pair *pair) {
    for (size_t i = 0; i < worker->count; i++) {
        assemble(&worker->recipes[i], pair->olds, worker->memory[i]);
    }
}

static void worker_audit(const worker *worker) {
    assert_int_equal(weft_sums_audit(worker->context, worker->sums, UINT64_MAX), WEFT_OK);
}

static weft_apply *worker_start(const worker *worker, const weft_patch *patch) {
    weft_apply *apply = NULL;
    weft_status status = weft_apply_create(worker->context, patch, worker->view, worker->sums, &apply);
    assert_string_equal(weft_context_error(worker->context), "");
    assert_int_equal(status, WEFT_OK);
    return apply;
}

static void worker_walk(worker *worker, const pair *pair) {
    weft_apply *apply = worker_start(worker, pair->patch);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_true(worker_holds(worker, pair->olds));
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(worker_holds(worker, pair->news));
    worker_audit(worker);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(worker_holds(worker, pair->olds));
    worker_audit(worker);
    weft_apply_destroy(apply);
    apply = worker_start(worker, pair->patch);
    assert_int_equal(weft_apply_run(apply), WEFT_OK);
    assert_true(worker_holds(worker, pair->news));
    worker_audit(worker);
    weft_apply_destroy(apply);
}

/* Small weights change far more often than large ones, as they do in training: this is what makes `small`
 * buckets of several classes, whose changes are decoded class by class. */
static void change_small_weights(pair *pair) {
    dice dice = {19};
    for (size_t i = 0; i < SHAPES; i++) {
        for (size_t unit = 0; shapes[i].dtype == WEFT_DTYPE_BF16 && unit < shape_units(&shapes[i]);
             unit++) {
            uint16_t weight;
            memcpy(&weight, pair->olds[i] + 2 * unit, sizeof weight);
            if ((weight >> 7 & 0xff) < 119 && dice_below(&dice, 8) == 0) {
                weights_change_one(&dice, CHANGE_ULP, 2, pair->news[i], unit);
            }
        }
    }
}

static void open_pair(pair *pair, weft_context *context, weft_profile profile, unsigned per_million,
                      const weft_cut *cuts, size_t cut_count) {
    pair_open(pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 17);
    pair_change(pair, CHANGE_MIXED, per_million, 18);
    change_small_weights(pair);
    /* the last word of each tensor, which may be short, is always among the changed ones */
    for (size_t i = 0; i < SHAPES; i++) {
        size_t last = shape_units(&shapes[i]) * weft_dtype_width(shapes[i].dtype) - 1;
        pair->news[i][last] = pair->olds[i][last] ^ 0x10;
    }
    weft_diff_options options = {.size = sizeof options,
                                 .profile = profile,
                                 .bucket_bytes = SMALL_BUCKET,
                                 .cuts = cuts,
                                 .cut_count = cut_count};
    pair_diff(pair, &options);
}

#define WHOLE(tensor)                                                                                      \
    { tensor, -1, 0, 0 }

static const recipe fused[] = {
    {"qkv", false, 0, 3, {WHOLE("q"), WHOLE("k"), WHOLE("v")}},
    {"o_proj", false, 0, 1, {WHOLE("o")}},
    {"gate_up", false, 0, 2, {WHOLE("gate"), WHOLE("up")}},
    {"down_proj", false, 0, 1, {WHOLE("down")}},
    {"tokens", false, 0, 1, {WHOLE("embed")}},
    {"norm", false, 0, 1, {WHOLE("norm")}},
    {"experts", true, 0, 3, {WHOLE("expert.0"), WHOLE("expert.1"), WHOLE("expert.2")}},
    {"odd", false, 0, 4, {WHOLE("odd.z"), WHOLE("odd.b"), WHOLE("odd.a"), WHOLE("odd.c")}},
    {"wide", false, 1, 2, {WHOLE("left"), WHOLE("right")}},
};
enum { FUSED = sizeof fused / sizeof *fused };

/* ---- whole workers ---- */

static const unsigned densities[] = {300, 10000, 1000000};

static void test_fused(void **state) {
    (void)state;
    weft_context *context = patches_context(3);
    for (size_t p = 0; p < 2; p++) {
        for (size_t d = 0; d < 3; d++) {
            pair pair;
            worker worker;
            if (!test_stride_takes()) {
                continue;
            }
            open_pair(&pair, context, profiles[p], densities[d], NULL, 0);
            worker_open(&worker, &pair, fused, FUSED, NULL, NULL);
            assert_int_equal(weft_layout_tie(worker.layout, "head", "tokens"), WEFT_OK);
            assert_int_equal(weft_table_tie(worker.table, "head", "tokens"), WEFT_OK);
            worker_show(&worker, &pair);
            assert_true(weft_view_complete(worker.view));
            worker_walk(&worker, &pair);
            weft_digest digest = weft_sums_digest(worker.sums);
            assert_true(weft_digest_equal(&digest, &pair.stats.result));
            worker_close(&worker);
            pair_close(&pair);
        }
    }
    weft_context_destroy(context);
}

/* ---- ranks ---- */

static const char *const row_names[] = {"q", "k", "v", "gate", "up", "embed"};
static const char *const column_names[] = {"o", "down"};

static size_t make_cuts(weft_cut *cuts, uint32_t ranks) {
    size_t count = 0;
    for (size_t i = 0; i < 6; i++) {
        cuts[count++] = (weft_cut){row_names[i], 0, ranks};
    }
    for (size_t i = 0; i < 2; i++) {
        cuts[count++] = (weft_cut){column_names[i], 1, ranks};
    }
    return count;
}

static weft_slice part_of(const char *name, int32_t dim, uint32_t rank, uint32_t ranks) {
    const tensor_shape *shape = &shapes[find_shape(name)];
    uint64_t length = (dim == 0 ? shape->rows : shape->columns) / ranks;
    return (weft_slice){name, dim, rank * length, length};
}

/* Rank `rank` of `ranks`, with everything fused. */
static size_t make_recipes(recipe *recipes, uint32_t rank, uint32_t ranks) {
    memcpy(recipes, fused, sizeof fused);
    for (size_t i = 0; i < 3; i++) {
        recipes[0].slices[i] = part_of(row_names[i], 0, rank, ranks);
    }
    recipes[1].slices[0] = part_of("o", 1, rank, ranks);
    recipes[2].slices[0] = part_of("gate", 0, rank, ranks);
    recipes[2].slices[1] = part_of("up", 0, rank, ranks);
    recipes[3].slices[0] = part_of("down", 1, rank, ranks);
    recipes[4].slices[0] = part_of("embed", 0, rank, ranks);
    return FUSED;
}

static bool is_cut(const char *name) {
    for (size_t i = 0; i < 6; i++) {
        if (strcmp(row_names[i], name) == 0 || (i < 2 && strcmp(column_names[i], name) == 0)) {
            return true;
        }
    }
    return false;
}

/* What the frames of the patch cost: those that one rank holds, and those that all do. */
static void frame_costs(const pair *pair, uint64_t *cut_out, uint64_t *shared_out) {
    *cut_out = 0;
    *shared_out = 0;
    for (size_t i = 0; i < pair->stats.buckets; i++) {
        weft_bucket_info info = {.size = sizeof info};
        assert_int_equal(weft_patch_bucket(pair->context, pair->patch, i, &info), WEFT_OK);
        const weft_tensor *tensor = weft_patch_tensor(pair->patch, info.first_tensor, NULL);
        *(is_cut(tensor->name) ? cut_out : shared_out) += info.bytes;
    }
}

static void try_ranks(weft_context *context, weft_profile profile, unsigned density, uint32_t ranks) {
    weft_cut cuts[8];
    pair pair;
    if (!test_stride_takes()) {
        return;
    }
    open_pair(&pair, context, profile, density, cuts, make_cuts(cuts, ranks));
    uint64_t cut_bytes;
    uint64_t shared_bytes;
    frame_costs(&pair, &cut_bytes, &shared_bytes);
    uint64_t read = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        recipe recipes[FUSED];
        worker worker;
        deferred batches; /* for every second rank */
        deferred_open(&batches);
        device device = {.batches = &batches};
        worker_open(&worker, &pair, recipes, make_recipes(recipes, rank, ranks),
                    rank % 2 == 1 ? &device : NULL, NULL);
        worker_show(&worker, &pair);
        assert_false(weft_view_complete(worker.view));
        worker_walk(&worker, &pair);
        worker_reset(&worker, &pair);
        weft_sums_destroy(worker.sums);
        worker.sums = patches_sums(context, worker.view);

        weft_apply *apply = worker_start(&worker, pair.patch);
        assert_int_equal(weft_apply_run(apply), WEFT_OK);
        assert_true(worker_holds(&worker, pair.news));
        weft_apply_stats stats = {.size = sizeof stats};
        weft_apply_describe(apply, &stats);
        assert_true(stats.bytes_read >= shared_bytes);
        assert_true(stats.bytes_read < shared_bytes + cut_bytes * 2 / ranks);
        assert_true(stats.changed < pair.stats.changed);
        read += stats.bytes_read - shared_bytes;
        weft_apply_destroy(apply);
        worker_close(&worker);
        deferred_close(&batches);
        assert_false(batches.misused);
    }
    /* each bucket of a part went to exactly one rank */
    assert_int_equal(read, cut_bytes);
    pair_close(&pair);
}

static void test_ranks(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        for (size_t p = 0; p < 2; p++) {
            for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
                try_ranks(context, profiles[p], 10000, ranks);
            }
        }
        try_ranks(context, WEFT_PROFILE_SMALL, 1000000, 2);
        weft_context_destroy(context);
    }
}

/* A holder of some whole tensors only. The buckets of the others are not read. */
static void test_some_tensors(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    const weft_cut cuts[] = {{"gate", 0, 2}, {"up", 0, 2}};
    pair pair;
    open_pair(&pair, context, WEFT_PROFILE_SMALL, 10000, cuts, 2);
    worker worker;
    const char *const ignored[] = {"q",    "k",        "v",     "o",    "down",  "embed",
                                   "norm", "expert.*", "odd.*", "left", "right", NULL};
    worker_open(&worker, &pair, &fused[2], 1, NULL, ignored);
    worker_show(&worker, &pair);
    worker_walk(&worker, &pair);
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* The patch is not cut where the ranks are. */
static void test_cuts_do_not_match(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t p = 0; p < 2; p++) {
        pair pair;
        open_pair(&pair, context, profiles[p], 10000, NULL, 0);
        recipe recipes[FUSED];
        worker worker;
        worker_open(&worker, &pair, recipes, make_recipes(recipes, 1, 2), NULL, NULL);
        worker_show(&worker, &pair);
        weft_apply *apply = worker_start(&worker, pair.patch);
        assert_int_equal(weft_apply_prepare(apply), WEFT_UNSUPPORTED);
        assert_non_null(strstr(weft_context_error(context), "cut"));
        assert_true(worker_holds(&worker, pair.olds));
        worker_audit(&worker);
        weft_apply_destroy(apply);
        worker_close(&worker);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* One bit of drift in a rank's part is found by that rank, and does not concern the other. */
static void test_drifted_rank(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    weft_cut cuts[8];
    pair pair;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 1000000, cuts, make_cuts(cuts, 2));
    for (uint32_t rank = 0; rank < 2; rank++) {
        recipe recipes[FUSED];
        worker worker;
        worker_open(&worker, &pair, recipes, make_recipes(recipes, rank, 2), NULL, NULL);
        worker_show(&worker, &pair);
        worker.memory[1][100 * rank] ^= (uint8_t)rank;
        weft_apply *apply = worker_start(&worker, pair.patch);
        assert_int_equal(weft_apply_prepare(apply), rank == 0 ? WEFT_OK : WEFT_DIGEST_MISMATCH);
        weft_apply_destroy(apply);
        worker_close(&worker);
    }
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- devices ---- */

/* Every checkpoint tensor as it is. */
static size_t plain_recipes(recipe *recipes) {
    for (size_t i = 0; i < SHAPES; i++) {
        recipes[i] = (recipe){shapes[i].name, false, 0, 1, {{shapes[i].name, -1, 0, 0}}};
    }
    return SHAPES;
}

static void test_devices(void **state) {
    (void)state;
    recipe plain[SHAPES];
    size_t plain_count = plain_recipes(plain);
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        for (size_t p = 0; p < 2; p++) {
            for (size_t d = 0; d < 3; d++) {
                pair pair;
                open_pair(&pair, context, profiles[p], densities[d], NULL, 0);
                for (int way = 0; way < 4; way++) {
                    bool layout = way % 2 == 1;
                    deferred batches;
                    deferred_open(&batches);
                    device device = {.batches = way < 2 ? NULL : &batches};
                    worker worker;
                    worker_open(&worker, &pair, layout ? fused : plain, layout ? FUSED : plain_count,
                                &device, NULL);
                    if (layout) {
                        assert_int_equal(weft_layout_tie(worker.layout, "head", "tokens"), WEFT_OK);
                        assert_int_equal(weft_table_tie(worker.table, "head", "tokens"), WEFT_OK);
                    }
                    worker_show(&worker, &pair);
                    worker_walk(&worker, &pair);
                    assert_false(device.misused || batches.misused);
                    worker_close(&worker);
                    deferred_close(&batches);
                }
                pair_close(&pair);
            }
        }
        weft_context_destroy(context);
    }
}

/* `fast` buckets of plain device tensors fetch the words that they touch and nothing else. */
static void test_device_fetches_words(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    recipe plain[SHAPES];
    pair pair;
    device device = {0};
    worker worker;
    open_pair(&pair, context, WEFT_PROFILE_FAST, 300, NULL, 0);
    worker_open(&worker, &pair, plain, plain_recipes(plain), &device, NULL);
    worker_show(&worker, &pair);
    weft_apply *apply = worker_start(&worker, pair.patch);
    size_t reads = device.reads;
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(device.reads, reads);
    assert_true(device.gathers >= pair.stats.buckets);
    assert_int_equal(device.scatters, 0);
    weft_apply_destroy(apply);
    worker_close(&worker);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void fail_prepare(worker *worker, const pair *pair, device *device, size_t *counter_fail) {
    size_t failures = 0;
    for (size_t n = 1;; n += test_stride() * (1 + n / 8)) {
        device->reads = 0;
        device->gathers = 0;
        *counter_fail = n;
        weft_apply *apply = worker_start(worker, pair->patch);
        weft_status status = weft_apply_prepare(apply);
        *counter_fail = 0;
        assert_true(worker_holds(worker, pair->olds));
        if (status == WEFT_OK) {
            weft_apply_destroy(apply);
            break;
        }
        assert_int_equal(status, WEFT_IO_FAILED);
        assert_non_null(strstr(weft_context_error(worker->context), "tensor"));
        failures++;
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        weft_apply_destroy(apply);
    }
    assert_true(failures > 0);
}

static void fail_commit(worker *worker, const pair *pair, device *device) {
    size_t failures = 0;
    for (size_t n = 1;; n += test_stride() * (1 + n / 8)) {
        weft_apply *apply = worker_start(worker, pair->patch);
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        device->scatters = 0;
        device->fail_scatter = n;
        weft_status status = weft_apply_commit(apply);
        device->fail_scatter = 0;
        if (status == WEFT_OK) {
            assert_true(worker_holds(worker, pair->news));
            assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
            weft_apply_destroy(apply);
            break;
        }
        assert_int_equal(status, WEFT_IO_FAILED);
        failures++;
        assert_true(worker_holds(worker, pair->olds));
        worker_audit(worker);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
        assert_true(worker_holds(worker, pair->news));
        assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
        assert_true(worker_holds(worker, pair->olds));
        weft_apply_destroy(apply);
    }
    assert_true(failures * test_stride() > 10);
}

/* A device that stops working in the middle of a commit and comes back: the rollback then brings the old
 * weights back, and until then nothing else is allowed. */
static void lose_device(worker *worker, const pair *pair, device *device) {
    weft_apply *apply = worker_start(worker, pair->patch);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    device->scatters = 0;
    device->fail_scatter = 3;
    device->fail_on = true;
    assert_int_equal(weft_apply_commit(apply), WEFT_IO_FAILED);
    assert_int_equal(weft_apply_commit(apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_prepare(apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_rollback(apply), WEFT_IO_FAILED);
    device->fail_scatter = 0;
    device->fail_on = false;
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(worker_holds(worker, pair->olds));
    worker_audit(worker);
    weft_apply_destroy(apply);
}

static void test_device_fails(void **state) {
    (void)state;
    recipe plain[SHAPES];
    size_t plain_count = plain_recipes(plain);
    for (size_t p = 0; p < 2; p++) {
        for (int layout = 0; layout < 2; layout++) {
            weft_context *context = patches_context(layout ? 2 : 1);
            pair pair;
            device device = {0};
            worker worker;
            open_pair(&pair, context, profiles[p], p == 0 ? 60000 : 300000, NULL, 0);
            worker_open(&worker, &pair, layout ? fused : plain, layout ? FUSED : plain_count, &device,
                        NULL);
            worker_show(&worker, &pair);
            if (p == 0) {
                fail_prepare(&worker, &pair, &device, &device.fail_gather);
            }
            if (p == 1 || layout) {
                fail_prepare(&worker, &pair, &device, &device.fail_read);
            }
            fail_commit(&worker, &pair, &device);
            lose_device(&worker, &pair, &device);
            assert_false(device.misused);
            worker_close(&worker);
            pair_close(&pair);
            weft_context_destroy(context);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_some_tensors),
        cmocka_unit_test(test_cuts_do_not_match),
        cmocka_unit_test(test_drifted_rank),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_device_fetches_words),
        cmocka_unit_test(test_device_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
