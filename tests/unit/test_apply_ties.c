/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that share memory and do not say so: the same memory under several names is one tie, with every
 * name in digests and patches; whatever else overlaps is refused when the view is made. And sums, which
 * stand only for a view of the same parts.
 */
#include "../../lib/tensor/view.h"
#include "faults.h"
#include "patches.h"
#include "seen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 6, BUCKET = 32 * 1024 };

/* "embed", "head" and "tail" are one; "a" and "z" stand beside them, and in buckets with them if they are
 * small. */
static const char *const names[TENSORS] = {"a", "embed", "head", "norm", "tail", "z"};
static const bool tied[TENSORS] = {false, true, true, false, true, false};

typedef struct world {
    weft_context *context;
    model old, new; /* each tensor with memory of its own */
    uint8_t *olds[TENSORS], *news[TENSORS];
    size_t bytes;     /* of each tensor */
    uint8_t *live[4]; /* the tie's, and those of the others */
    uint8_t *lives[TENSORS];
    weft_table *table;
    weft_view *view;
    bytes file;
    weft_patch *patch;
    weft_diff_stats stats;
} world;

static void world_open(world *world, weft_context *context, weft_dtype dtype, uint64_t rows,
                       uint64_t columns, unsigned per_million) {
    unsigned width = weft_dtype_width(dtype);
    dice dice = {rows + columns};
    memset(world, 0, sizeof *world);
    world->context = context;
    model_open(&world->old, context);
    model_open(&world->new, context);
    assert_int_equal(weft_table_create(context, &world->table), WEFT_OK);
    size_t alone = 1;
    for (size_t i = 0; i < TENSORS; i++) {
        world->olds[i] = model_add(&world->old, names[i], dtype, rows, columns);
        world->news[i] = model_add(&world->new, names[i], dtype, rows, columns);
        const weft_tensor *tensor = weft_table_at(world->old.table, i);
        world->bytes = (size_t)tensor->bytes;
        if (tied[i] && i > 1) {
            memcpy(world->olds[i], world->olds[1], world->bytes);
            memcpy(world->news[i], world->news[1], world->bytes);
        } else {
            weights_fill(&dice, WEIGHTS_TRAINED, dtype, world->olds[i], world->bytes / width);
            memcpy(world->news[i], world->olds[i], world->bytes);
            weights_change(&dice, CHANGE_MIXED, width, world->news[i], world->bytes / width, per_million);
        }
        size_t place = tied[i] ? 0 : alone++;
        if (world->live[place] == NULL) {
            world->live[place] = malloc(world->bytes);
            assert_non_null(world->live[place]);
        }
        world->lives[i] = world->live[place];
        memcpy(world->lives[i], world->olds[i], world->bytes);
        weft_tensor live = *tensor;
        live.data = world->lives[i];
        live.writable = true;
        assert_int_equal(weft_table_add(world->table, &live), WEFT_OK);
    }
    model_show(&world->old);
    model_show(&world->new);
    weft_status status = weft_view_create(context, world->table, &world->view);
    assert_string_equal(weft_context_error(context), "");
    assert_int_equal(status, WEFT_OK);
    assert_int_equal(weft_view_count(world->view), TENSORS);
}

static void world_close(world *world) {
    weft_patch_close(world->patch);
    bytes_clear(&world->file);
    weft_view_destroy(world->view);
    weft_table_destroy(world->table);
    for (size_t i = 0; i < 4; i++) {
        free(world->live[i]);
    }
    model_close(&world->old);
    model_close(&world->new);
}

static void world_diff(world *world, weft_profile profile) {
    const weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    weft_sink sink = bytes_sink(&world->file);
    weft_patch_close(world->patch);
    world->stats.size = sizeof world->stats;
    bytes_clear(&world->file);
    assert_int_equal(
        weft_diff(world->context, world->old.view, world->new.view, &options, &sink, &world->stats),
        WEFT_OK);
    world->patch = patches_open(world->context, &world->file);
}

static bool holds(const world *world, uint8_t *const *sources) {
    bool same = true;
    for (size_t i = 0; i < TENSORS; i++) {
        same = same && memcmp(world->lives[i], sources[i], world->bytes) == 0;
    }
    return same;
}

static void reset(world *world) {
    for (size_t i = 0; i < TENSORS; i++) {
        memcpy(world->lives[i], world->olds[i], world->bytes);
    }
}

static weft_apply *start(const world *world, weft_sums **sums_out) {
    weft_apply *apply;
    *sums_out = patches_sums(world->context, world->view);
    weft_status status = weft_apply_create(world->context, world->patch, world->view, *sums_out, &apply);
    assert_string_equal(weft_context_error(world->context), "");
    assert_int_equal(status, WEFT_OK);
    return apply;
}

static void finish(const world *world, weft_apply *apply, weft_sums *sums) {
    assert_true(holds(world, world->news));
    weft_digest digest = weft_sums_digest(sums);
    assert_true(weft_digest_equal(&digest, &world->stats.result));
    assert_int_equal(weft_sums_audit(world->context, sums, UINT64_MAX), WEFT_OK);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
}

static void walk(world *world) {
    weft_sums *sums;
    seen seen;
    reset(world);
    weft_apply *apply = start(world, &sums);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    seen_open(&seen, world->table, NULL, NULL);
    assert_int_equal(weft_apply_changes(apply, 0, seen_visit, &seen), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(holds(world, world->news));
    /* the tie is visited once, as the first of its names */
    assert_memory_equal(seen.news[2], seen.olds[2], world->bytes);
    assert_memory_equal(seen.news[4], seen.olds[4], world->bytes);
    memcpy(seen.news[2], seen.news[1], world->bytes);
    memcpy(seen.news[4], seen.news[1], world->bytes);
    assert_true(seen_holds(&seen, NULL, NULL));
    seen_close(&seen);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_true(holds(world, world->olds));
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    finish(world, apply, sums);
    reset(world);
    apply = start(world, &sums);
    assert_int_equal(weft_apply_run(apply), WEFT_OK);
    finish(world, apply, sums);
}

/* What a publisher makes of memory with ties is what it makes of copies. */
static void diff_ties(world *world, weft_profile profile) {
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    for (size_t i = 0; i < TENSORS; i++) {
        memcpy(world->lives[i], world->news[i], world->bytes);
    }
    assert_int_equal(weft_diff(world->context, world->old.view, world->view, &options, &sink, NULL),
                     WEFT_OK);
    assert_int_equal(file.size, world->file.size);
    assert_memory_equal(file.data, world->file.data, file.size);
    bytes_clear(&file);
    /* a base that follows would be new for the second name before it is read for it */
    weft_trail *trail = NULL;
    reset(world);
    options.trail = &trail;
    assert_int_equal(weft_diff(world->context, world->view, world->new.view, &options, &sink, NULL),
                     WEFT_INVALID_ARGUMENT);
    assert_true(holds(world, world->olds));
    weft_trail_destroy(trail);
    bytes_clear(&file);
}

static void test_same_memory(void **state) {
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_F64};
    static const uint64_t shapes[][2] = {{1, 3}, {37, 13}, {64, 64}, {300, 250}, {2048, 64}};
    static const unsigned densities[] = {2000, 100000, 1000000};
    weft_context *context = patches_context(3);
    for (size_t t = 0; t < 4; t++) {
        for (size_t s = 0; s < 5; s++) {
            world world;
            world_open(&world, context, dtypes[t], shapes[s][0], shapes[s][1], densities[(t + s) % 3]);
            for (unsigned p = 0; p < 2; p++) {
                world_diff(&world, p == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL);
                walk(&world);
                if (world.stats.changed > 0) {
                    diff_ties(&world, p == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL);
                }
            }
            world_close(&world);
        }
    }
    weft_context_destroy(context);
}

/* At a limit, what is tied comes first and together, and the rest in steps. */
static void test_in_steps(void **state) {
    (void)state;
    static const uint64_t limits[] = {1, 256 << 10, 3 << 20};
    for (size_t l = 0; l < 3; l++) {
        const weft_context_options options = {
            .size = sizeof options,
            .threads = 2,
            .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = limits[l]}};
        weft_context *context;
        world world;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        world_open(&world, context, WEFT_DTYPE_BF16, 1024, 256, 20000);
        world_diff(&world, WEFT_PROFILE_FAST);
        weft_sums *sums;
        weft_apply *apply = start(&world, &sums);
        size_t steps = 0;
        weft_status status = WEFT_MORE;
        while (status == WEFT_MORE) {
            status = weft_apply_prepare(apply);
            if (status < 0) {
                break;
            }
            assert_int_equal(weft_apply_commit(apply), WEFT_OK);
            steps++;
        }
        if (limits[l] == 1) {
            assert_int_equal(status, WEFT_LIMIT_EXCEEDED);
            assert_non_null(strstr(weft_context_error(context), "stage_bytes"));
            assert_true(holds(&world, world.olds));
            weft_apply_destroy(apply);
            weft_sums_destroy(sums);
        } else {
            assert_int_equal(status, WEFT_OK);
            assert_true(limits[l] != 256 << 10 || steps > 1);
            finish(&world, apply, sums);
        }
        world_close(&world);
        weft_context_destroy(context);
    }
}

/* What is staged together and does not fit is given up when the limit is reached, not when all of it is in
 * memory. */
static void test_the_limit_is_kept(void **state) {
    (void)state;
    enum { STAGE = 64 << 10 };
    faults faults = {0};
    const weft_context_options options = {
        .size = sizeof options,
        .threads = 2,
        .allocator = faults_allocator(&faults),
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = STAGE}};
    weft_context *context;
    world world;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    world_open(&world, context, WEFT_DTYPE_BF16, 8192, 256, 400000);
    world_diff(&world, WEFT_PROFILE_FAST);
    for (unsigned run = 0; run < 2; run++) {
        weft_sums *sums;
        weft_apply *apply = start(&world, &sums);
        faults_reset(&faults, 0);
        size_t before = faults_live_bytes(&faults);
        assert_int_equal(run ? weft_apply_run(apply) : weft_apply_prepare(apply), WEFT_LIMIT_EXCEEDED);
        assert_true(faults_peak_bytes(&faults) - before < STAGE + 32 * BUCKET);
        assert_true(holds(&world, world.olds));
        weft_apply_destroy(apply);
        weft_sums_destroy(sums);
    }
    world_close(&world);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

/* One of the names changes otherwise: nothing is touched. */
static void test_different_changes(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (unsigned kind = 0; kind < 3; kind++) {
        world world;
        world_open(&world, context, WEFT_DTYPE_BF16, 300, 250, 10000);
        if (kind == 0) {
            world.news[4][1000] ^= 1;
        } else if (kind == 1) {
            memcpy(world.news[4], world.olds[4], world.bytes); /* it does not change at all */
        } else {
            memcpy(world.news[1], world.olds[1], world.bytes); /* the one that is written does not */
            memcpy(world.news[2], world.olds[2], world.bytes);
        }
        for (unsigned p = 0; p < 2; p++) {
            world_diff(&world, p == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL);
            weft_sums *sums;
            weft_apply *apply = start(&world, &sums);
            assert_int_equal(weft_apply_prepare(apply), WEFT_UNSUPPORTED);
            assert_non_null(strstr(weft_context_error(context), "tensors embed and tail share"));
            assert_true(holds(&world, world.olds));
            weft_apply_destroy(apply);
            assert_int_equal(weft_apply_create(context, world.patch, world.view, sums, &apply), WEFT_OK);
            assert_int_equal(weft_apply_run(apply), WEFT_UNSUPPORTED);
            assert_true(holds(&world, world.olds));
            weft_apply_destroy(apply);
            weft_sums_destroy(sums);
        }
        world_close(&world);
    }
    weft_context_destroy(context);
}

/* ---- what is refused ---- */

static void expect_pair(weft_tensor a, weft_tensor b, weft_status expected, const char *text) {
    weft_context *context = patches_context(1);
    for (unsigned turn = 0; turn < 2; turn++) {
        weft_table *table;
        weft_view *view = NULL;
        assert_int_equal(weft_table_create(context, &table), WEFT_OK);
        assert_int_equal(weft_table_add(table, turn == 0 ? &a : &b), WEFT_OK);
        assert_int_equal(weft_table_add(table, turn == 0 ? &b : &a), WEFT_OK);
        assert_int_equal(weft_view_create(context, table, &view), expected);
        if (expected != WEFT_OK) {
            assert_non_null(strstr(weft_context_error(context), text));
            assert_non_null(strstr(weft_context_error(context), "\"one\""));
            assert_non_null(strstr(weft_context_error(context), "\"two\""));
        }
        weft_view_destroy(view);
        weft_table_destroy(table);
    }
    weft_context_destroy(context);
}

static weft_tensor matrix(const char *name, weft_dtype dtype, uint64_t rows, uint64_t columns, void *data) {
    return (weft_tensor){.size = sizeof(weft_tensor),
                         .name = name,
                         .dtype = dtype,
                         .rank = 2,
                         .shape = {rows, columns},
                         .data = data,
                         .writable = true};
}

static void test_overlaps(void **state) {
    (void)state;
    static _Alignas(16) uint8_t memory[4096];
    const weft_dtype bf16 = WEFT_DTYPE_BF16;
    weft_tensor one = matrix("one", bf16, 8, 16, memory + 256);
    expect_pair(one, matrix("two", bf16, 8, 16, memory + 256), WEFT_OK, "");
    expect_pair(one, matrix("two", bf16, 8, 16, memory + 512), WEFT_OK, ""); /* side by side */
    expect_pair(one, matrix("two", bf16, 0, 16, memory + 300), WEFT_OK, ""); /* nothing */
    expect_pair(one, matrix("two", bf16, 8, 16, memory + 258), WEFT_INVALID_ARGUMENT, "overlap");
    expect_pair(one, matrix("two", bf16, 8, 16, memory + 510), WEFT_INVALID_ARGUMENT, "overlap");
    expect_pair(one, matrix("two", bf16, 1, 1, memory + 300), WEFT_INVALID_ARGUMENT, "overlap");
    expect_pair(one, matrix("two", bf16, 4, 16, memory + 256), WEFT_INVALID_ARGUMENT, "overlap");
    expect_pair(one, matrix("two", bf16, 64, 16, memory), WEFT_INVALID_ARGUMENT, "overlap");
    expect_pair(one, matrix("two", bf16, 16, 8, memory + 256), WEFT_INVALID_ARGUMENT, "dtype or shape");
    expect_pair(one, matrix("two", WEFT_DTYPE_F16, 8, 16, memory + 256), WEFT_INVALID_ARGUMENT,
                "dtype or shape");
    /* masters take four bytes each */
    weft_tensor masters = matrix("two", bf16, 8, 16, memory);
    masters.storage = WEFT_DTYPE_F32;
    expect_pair(one, masters, WEFT_INVALID_ARGUMENT, "overlap");
    masters.data = memory + 512;
    expect_pair(one, masters, WEFT_OK, "");
}

/* ---- layouts ---- */

typedef struct live_recipe {
    const char *name;
    uint8_t *memory; /* NULL: behind functions */
    uint64_t rows, columns;
    weft_slice slices[2];
    size_t count;
} live_recipe;

static const weft_access far_away = {NULL, NULL, NULL};

static weft_status make_view(weft_context *context, const weft_table *checkpoint,
                             const live_recipe *recipes, size_t count, weft_table **table,
                             weft_view **view) {
    weft_layout *layout;
    assert_int_equal(weft_table_create(context, table), WEFT_OK);
    assert_int_equal(weft_layout_create(context, &layout), WEFT_OK);
    for (size_t i = 0; i < count; i++) {
        weft_tensor tensor = matrix(recipes[i].name, WEFT_DTYPE_BF16, recipes[i].rows, recipes[i].columns,
                                    recipes[i].memory);
        tensor.access = recipes[i].memory == NULL ? &far_away : NULL;
        assert_int_equal(weft_table_add(*table, &tensor), WEFT_OK);
        assert_int_equal(
            weft_layout_concat(layout, recipes[i].name, 0, recipes[i].slices, recipes[i].count), WEFT_OK);
    }
    weft_status status = weft_view_create_layout(context, *table, layout, checkpoint, view);
    weft_layout_destroy(layout);
    return status;
}

enum { ROWS = 128, COLUMNS = 64, HALF = ROWS / 2 };

/* A rank that holds half of the rows of both, in the same memory. */
static void test_ranks(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    static const tensor_shape shapes[] = {{"embed", WEFT_DTYPE_BF16, ROWS, COLUMNS},
                                          {"head", WEFT_DTYPE_BF16, ROWS, COLUMNS}};
    static uint8_t memory[2][HALF * COLUMNS * 2];
    pair pair;
    pair_open(&pair, context, shapes, 2, WEIGHTS_TRAINED, 3);
    pair_change(&pair, CHANGE_ULP, 50000, 4);
    memcpy(pair.memory[1], pair.memory[0], sizeof memory);
    memcpy(pair.olds[1], pair.olds[0], sizeof memory);
    memcpy(pair.news[1], pair.news[0], sizeof memory);
    const weft_cut cuts[] = {{"embed", 0, 2}, {"head", 0, 2}};
    pair_diff(&pair, &(weft_diff_options){.size = sizeof(weft_diff_options), .cuts = cuts, .cut_count = 2});
    weft_table *tables[2];
    weft_view *views[2];
    weft_sums *sums[2];
    for (uint64_t rank = 0; rank < 2; rank++) {
        const live_recipe recipes[] = {
            {"in", memory[rank], HALF, COLUMNS, {{"embed", 0, rank * HALF, HALF}}, 1},
            {"out", memory[rank], HALF, COLUMNS, {{"head", 0, rank * HALF, HALF}}, 1},
        };
        memcpy(memory[rank], pair.olds[0] + rank * sizeof memory[0], sizeof memory[0]);
        assert_int_equal(make_view(context, pair.live.table, recipes, 2, &tables[rank], &views[rank]),
                         WEFT_OK);
        assert_int_equal(weft_view_tie(views[rank], 0), WEFT_NO_TIE);
        assert_int_equal(weft_view_tie(views[rank], 1), 0);
        sums[rank] = patches_sums(context, views[rank]);
    }
    /* both hold as much, and not the same */
    weft_apply *apply;
    for (unsigned rank = 0; rank < 2; rank++) {
        assert_int_equal(weft_apply_create(context, pair.patch, views[rank], sums[1 - rank], &apply),
                         WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "sum that view itself"));
        assert_int_equal(weft_apply_create(context, pair.patch, views[rank], sums[rank], &apply), WEFT_OK);
        assert_int_equal(rank == 0 ? weft_apply_prepare(apply) : weft_apply_run(apply), WEFT_OK);
        assert_int_equal(rank == 0 ? weft_apply_commit(apply) : WEFT_OK, WEFT_OK);
        assert_memory_equal(memory[rank], pair.news[0] + rank * sizeof memory[0], sizeof memory[0]);
        assert_int_equal(weft_sums_audit(context, sums[rank], UINT64_MAX), WEFT_OK);
        weft_apply_destroy(apply);
    }
    for (unsigned rank = 0; rank < 2; rank++) {
        weft_sums_destroy(sums[rank]);
        weft_view_destroy(views[rank]);
        weft_table_destroy(tables[rank]);
    }
    pair_close(&pair);
    weft_context_destroy(context);
}

/* The same memory, but not the same parts in it. */
static void test_layouts_that_differ(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    static uint8_t memory[ROWS * COLUMNS * 2];
    static uint8_t other[ROWS * COLUMNS * 2];
    model model;
    model_open(&model, context);
    model_add(&model, "embed", WEFT_DTYPE_BF16, ROWS, COLUMNS);
    model_add(&model, "head", WEFT_DTYPE_BF16, ROWS, COLUMNS);
    const struct {
        live_recipe recipes[4];
        size_t count;
        const char *text;
    } cases[] = {
        /* another half */
        {{{"in", memory, HALF, COLUMNS, {{"embed", 0, 0, HALF}}, 1},
          {"out", memory, HALF, COLUMNS, {{"head", 0, HALF, HALF}}, 1}},
         2,
         "in different ways"},
        /* halves in the other order */
        {{{"in", memory, ROWS, COLUMNS, {{"embed", 0, 0, HALF}, {"embed", 0, HALF, HALF}}, 2},
          {"out", memory, ROWS, COLUMNS, {{"head", 0, HALF, HALF}, {"head", 0, 0, HALF}}, 2}},
         2,
         "share"},
        /* one half of each has memory of its own */
        {{{"in", memory, HALF, COLUMNS, {{"embed", 0, 0, HALF}}, 1},
          {"in.2", other, HALF, COLUMNS, {{"embed", 0, HALF, HALF}}, 1},
          {"out", memory, HALF, COLUMNS, {{"head", 0, 0, HALF}}, 1},
          {"out.2", other + sizeof other / 2, HALF, COLUMNS, {{"head", 0, HALF, HALF}}, 1}},
         4,
         "in different ways"},
        /* the same, behind functions, which nobody can compare */
        {{{"in", memory, HALF, COLUMNS, {{"embed", 0, 0, HALF}}, 1},
          {"in.2", NULL, HALF, COLUMNS, {{"embed", 0, HALF, HALF}}, 1},
          {"out", memory, HALF, COLUMNS, {{"head", 0, 0, HALF}}, 1},
          {"out.2", NULL, HALF, COLUMNS, {{"head", 0, HALF, HALF}}, 1}},
         4,
         "in different ways"},
        /* the same, where it is the second half that is shared */
        {{{"in", other, HALF, COLUMNS, {{"embed", 0, 0, HALF}}, 1},
          {"in.2", memory, HALF, COLUMNS, {{"embed", 0, HALF, HALF}}, 1},
          {"out", other + sizeof other / 2, HALF, COLUMNS, {{"head", 0, 0, HALF}}, 1},
          {"out.2", memory, HALF, COLUMNS, {{"head", 0, HALF, HALF}}, 1}},
         4,
         "not all of it"},
        /* one tensor twice */
        {{{"in", memory, HALF, COLUMNS, {{"embed", 0, 0, HALF}}, 1},
          {"in.2", memory, HALF, COLUMNS, {{"embed", 0, HALF, HALF}}, 1},
          {"out", other, ROWS, COLUMNS, {{"head", -1, 0, 0}}, 1}},
         3,
         "share"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_table *table;
        weft_view *view;
        assert_int_equal(make_view(context, model.table, cases[i].recipes, cases[i].count, &table, &view),
                         WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), cases[i].text));
        weft_table_destroy(table);
    }
    model_close(&model);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_memory),
        cmocka_unit_test(test_in_steps),
        cmocka_unit_test(test_the_limit_is_kept),
        cmocka_unit_test(test_different_changes),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_layouts_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
