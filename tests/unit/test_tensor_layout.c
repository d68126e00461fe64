/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts: every way in which a worker may hold the checkpoint's tensors is compared with a slow map that
 * is made element by element from the meaning of the words "slice", "join" and "stack"; and every
 * mistake is met with its error.
 */
#include "../../lib/tensor/digest.h"
#include "../../lib/tensor/view.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a model, and live tensors made of it the slow way ---- */

enum { MOST = 24, MOST_SLICES = 16 };

typedef enum recipe_kind { CONCAT, STACK, TIE } recipe_kind;

typedef struct test_recipe {
    const char *name;
    recipe_kind kind;
    uint32_t dim;
    size_t count;
    weft_slice slices[MOST_SLICES];
    const char *target;
} test_recipe;

/* For each unit of a live tensor: where it comes from. */
typedef struct unit_origin {
    size_t tensor; /* index in the checkpoint table */
    uint64_t unit;
} unit_origin;

typedef struct test_world {
    weft_context *context;
    weft_table *checkpoint;
    weft_table *live;
    weft_layout *layout;
    weft_view *view;
    void *data[MOST];           /* the checkpoint's */
    void *live_data[MOST];      /* by index in the live table */
    unit_origin *origins[MOST]; /* by index in the live table */
    size_t live_count;
} test_world;

static uint64_t random_state = 88172645463325252u;

static uint64_t random_u64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1du;
}

static uint64_t random_below(uint64_t limit) {
    return (random_u64() >> 11) % limit;
}

static void world_open(test_world *world) {
    memset(world, 0, sizeof *world);
    assert_int_equal(weft_context_create(NULL, &world->context), WEFT_OK);
    assert_int_equal(weft_table_create(world->context, &world->checkpoint), WEFT_OK);
    assert_int_equal(weft_table_create(world->context, &world->live), WEFT_OK);
    assert_int_equal(weft_layout_create(world->context, &world->layout), WEFT_OK);
}

static void world_close(test_world *world) {
    weft_view_destroy(world->view);
    weft_layout_destroy(world->layout);
    weft_table_destroy(world->live);
    weft_table_destroy(world->checkpoint);
    weft_context_destroy(world->context);
    for (size_t i = 0; i < MOST; i++) {
        free(world->data[i]);
        free(world->live_data[i]);
        free(world->origins[i]);
    }
}

static void add_checkpoint(test_world *world, const char *name, weft_dtype dtype, uint32_t rank, uint64_t a,
                           uint64_t b, uint64_t c) {
    weft_tensor tensor = {
        .size = sizeof tensor, .name = name, .dtype = dtype, .rank = rank, .shape = {a, b, c}};
    uint64_t elements = (rank > 0 ? a : 1) * (rank > 1 ? b : 1) * (rank > 2 ? c : 1);
    size_t bytes = (size_t)elements * weft_dtype_bits(dtype) / 8;
    size_t index = weft_table_count(world->checkpoint);
    uint8_t *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)random_u64();
    }
    world->data[index] = data;
    tensor.data = data;
    assert_int_equal(weft_table_add(world->checkpoint, &tensor), WEFT_OK);
}

static const weft_tensor *slice_source(const test_world *world, const weft_slice *slice,
                                       size_t *index_out) {
    int64_t index = weft_table_find(world->checkpoint, slice->tensor);
    assert_true(index >= 0);
    const weft_tensor *tensor = weft_table_at(world->checkpoint, (size_t)index);
    if (tensor->tied_to >= 0) {
        index = tensor->tied_to;
        tensor = weft_table_at(world->checkpoint, (size_t)index);
    }
    *index_out = (size_t)index;
    return tensor;
}

/* Where element `at` of a slice lies in its checkpoint tensor. */
static uint64_t slice_element(const weft_tensor *source, const weft_slice *slice, const uint64_t *at) {
    uint64_t linear = 0;
    for (uint32_t i = 0; i < source->rank; i++) {
        linear = linear * source->shape[i] + at[i] + ((int32_t)i == slice->dim ? slice->start : 0);
    }
    return linear;
}

static uint64_t slice_length(const weft_tensor *source, const weft_slice *slice, uint32_t dim) {
    return (int32_t)dim == slice->dim ? slice->length : source->shape[dim];
}

/* The live tensor's shape, straight from the words. */
static void live_shape(const test_world *world, const test_recipe *recipe, weft_tensor *live) {
    size_t index;
    const weft_tensor *source = slice_source(world, &recipe->slices[0], &index);
    *live = (weft_tensor){
        .size = sizeof(weft_tensor), .name = recipe->name, .dtype = source->dtype, .rank = source->rank};
    uint32_t shift = recipe->kind == STACK ? 1 : 0;
    live->rank += shift;
    live->shape[0] = recipe->count;
    for (uint32_t i = 0; i < source->rank; i++) {
        live->shape[i + shift] = slice_length(source, &recipe->slices[0], i);
    }
    if (recipe->kind == CONCAT && source->rank > 0) {
        for (size_t i = 1; i < recipe->count; i++) {
            source = slice_source(world, &recipe->slices[i], &index);
            live->shape[recipe->dim] += slice_length(source, &recipe->slices[i], recipe->dim);
        }
    }
}

/* The origin of the live element `at`: find the slice by walking along the joined dimension. */
static unit_origin live_origin(const test_world *world, const test_recipe *recipe, const uint64_t *at) {
    uint64_t inside[WEFT_RANK_MAX];
    size_t number = 0;
    size_t index;
    const weft_tensor *source = slice_source(world, &recipe->slices[0], &index);
    if (recipe->kind == STACK) {
        number = (size_t)at[0];
        memcpy(inside, at + 1, source->rank * sizeof inside[0]);
        source = slice_source(world, &recipe->slices[number], &index);
    } else {
        memcpy(inside, at, source->rank * sizeof inside[0]);
        while (source->rank > 0) {
            source = slice_source(world, &recipe->slices[number], &index);
            uint64_t length = slice_length(source, &recipe->slices[number], recipe->dim);
            if (inside[recipe->dim] < length) {
                break;
            }
            inside[recipe->dim] -= length;
            number++;
        }
    }
    return (unit_origin){index, slice_element(source, &recipe->slices[number], inside)};
}

/* Adds the live tensor with the checkpoint's bytes, and notes where each unit came from. */
static void add_live(test_world *world, const test_recipe *recipe) {
    weft_tensor live = {.size = sizeof live};
    live_shape(world, recipe, &live);
    uint64_t units = 1;
    for (uint32_t i = 0; i < live.rank; i++) {
        units *= live.shape[i];
    }
    unsigned width = weft_dtype_width(live.dtype);
    size_t index = world->live_count++;
    world->origins[index] = malloc((size_t)units * sizeof(unit_origin) + 1);
    world->live_data[index] = malloc((size_t)units * width + 1);
    uint64_t at[WEFT_RANK_MAX] = {0};
    for (uint64_t unit = 0; unit < units; unit++) {
        unit_origin from = live_origin(world, recipe, at);
        world->origins[index][unit] = from;
        memcpy((uint8_t *)world->live_data[index] + unit * width,
               (uint8_t *)world->data[from.tensor] + from.unit * width, width);
        for (uint32_t i = live.rank; i-- > 0 && ++at[i] == live.shape[i];) {
            at[i] = 0;
        }
    }
    live.data = world->live_data[index];
    live.writable = true;
    assert_int_equal(weft_table_add(world->live, &live), WEFT_OK);
}

static weft_status add_recipe(weft_layout *layout, const test_recipe *recipe) {
    switch (recipe->kind) {
    case CONCAT:
        return weft_layout_concat(layout, recipe->name, recipe->dim, recipe->slices, recipe->count);
    case STACK:
        return weft_layout_stack(layout, recipe->name, recipe->slices, recipe->count);
    case TIE:
        break;
    }
    return weft_layout_tie(layout, recipe->name, recipe->target);
}

static void add_all(test_world *world, const test_recipe *recipes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (recipes[i].kind != TIE) {
            add_live(world, &recipes[i]);
        }
        assert_int_equal(add_recipe(world->layout, &recipes[i]), WEFT_OK);
    }
}

static void make_view(test_world *world) {
    weft_status status = weft_view_create_layout(world->context, world->live, world->layout,
                                                 world->checkpoint, &world->view);
    if (status != WEFT_OK) {
        fail_msg("%s", weft_context_error(world->context));
    }
}

/* ---- comparing ---- */

typedef struct holder {
    const weft_tensor *live;
    uint64_t unit;
} holder;

/* For each unit of a checkpoint tensor: which live unit holds it; live NULL if none does. */
static holder *invert(const test_world *world, size_t tensor) {
    uint64_t units = weft_tensor_units(weft_table_at(world->checkpoint, tensor));
    holder *holders = calloc((size_t)units + 1, sizeof *holders);
    for (size_t i = 0; i < world->live_count; i++) {
        const weft_tensor *live = weft_table_at(world->live, i);
        for (uint64_t unit = 0; unit < weft_tensor_units(live); unit++) {
            if (world->origins[i][unit].tensor == tensor) {
                holders[world->origins[i][unit].unit] = (holder){live, unit};
            }
        }
    }
    return holders;
}

static weft_span random_span(uint64_t units) {
    weft_span span = {.count = 1};
    span.start = random_below(units + 1);
    span.run = random_below(units - span.start + 1);
    if (span.run > 0 && random_below(2) == 0) {
        span.run = 1 + random_below(span.run < 40 ? span.run : 40);
        span.stride = span.run + random_below(40);
        uint64_t room = units - span.start - span.run;
        span.count = 1 + random_below(room / span.stride + 1);
        span.stride = span.count == 1 ? 0 : span.stride;
    }
    return span;
}

/* Each unit of the span against the slow map; then that nothing is out of order or could be joined. */
static void compare_span(const test_world *world, size_t index, const holder *holders, weft_span span) {
    uint64_t linear = random_below(1000);
    weft_segments segments = {.context = world->context};
    weft_holding holding;
    assert_int_equal(weft_view_map(world->view, index, &span, linear, &segments, &holding), WEFT_OK);
    size_t at = 0;
    uint64_t used = 0;
    uint64_t held = 0;
    for (uint64_t i = 0; i < span.run * span.count; i++) {
        uint64_t unit = span.start + i / span.run * span.stride + i % span.run;
        if (holders[unit].live == NULL) {
            assert_true(at == segments.count ||
                        weft_segment_linear(&segments.items[at], used) > linear + i);
            continue;
        }
        held++;
        assert_true(at < segments.count);
        const weft_segment *segment = &segments.items[at];
        assert_int_equal(segment->tensor, index);
        assert_int_equal(weft_segment_linear(segment, used), linear + i);
        assert_int_equal(weft_segment_unit(segment, used), unit);
        assert_int_equal(weft_segment_live(segment, used), holders[unit].unit);
        assert_string_equal(segment->live->name, holders[unit].live->name);
        if (++used == segment->units) {
            at++;
            used = 0;
        }
    }
    assert_int_equal(at, segments.count);
    assert_int_equal(used, 0);
    uint64_t units = span.run * span.count;
    assert_int_equal(holding, held == units ? WEFT_HELD_ALL : held == 0 ? WEFT_HELD_NONE : WEFT_HELD_PART);
    for (size_t i = 1; i < segments.count; i++) {
        const weft_segment *a = &segments.items[i - 1];
        const weft_segment *b = &segments.items[i];
        assert_false(a->live == b->live && a->row == 0 && a->linear + a->units == b->linear &&
                     a->unit + a->units == b->unit && a->live_unit + a->units == b->live_unit);
        assert_false(a->live == b->live && b->row == 0 && a->row == b->units &&
                     weft_segment_linear(a, a->units) == b->linear &&
                     weft_segment_unit(a, a->units) == b->unit &&
                     weft_segment_live(a, a->units) == b->live_unit);
    }
    weft_segments_close(&segments);
}

static void compare_view(const test_world *world) {
    assert_int_equal(weft_view_count(world->view), weft_table_sorted_count(world->checkpoint));
    bool complete = true;
    for (size_t i = 0; i < weft_view_count(world->view); i++) {
        size_t tensor = weft_table_sorted(world->checkpoint, i);
        const weft_tensor *original = weft_table_at(world->checkpoint, tensor);
        assert_string_equal(weft_view_at(world->view, i)->name, original->name);
        uint64_t units = weft_tensor_units(original);
        holder *holders = invert(world, tensor);
        for (uint64_t unit = 0; unit < units; unit++) {
            complete = complete && holders[unit].live != NULL;
        }
        compare_span(world, i, holders, (weft_span){0, units, 0, 1});
        for (int round = 0; round < 60; round++) {
            compare_span(world, i, holders, random_span(units));
        }
        free(holders);
    }
    assert_int_equal(weft_view_complete(world->view), complete);
}

/* The sum of each word that is held, at its place in the checkpoint tensor. A word is held if its first
 * unit is: a view never holds a part of one. */
static void compare_sums(const test_world *world) {
    weft_sums *sums;
    assert_int_equal(weft_sums_compute(world->context, world->view, &sums), WEFT_OK);
    for (size_t i = 0; i < weft_view_count(world->view); i++) {
        size_t tensor = weft_table_sorted(world->checkpoint, i);
        const weft_tensor *original = weft_table_at(world->checkpoint, tensor);
        unsigned width = weft_dtype_width(original->dtype);
        holder *holders = invert(world, tensor);
        weft_sum expected = {{0, 0}};
        for (uint64_t byte = 0; byte < original->bytes; byte += WEFT_WORD) {
            if (holders[byte / width].live != NULL) {
                uint8_t word[WEFT_WORD] = {0};
                uint64_t left = original->bytes - byte;
                memcpy(word, (uint8_t *)world->data[tensor] + byte,
                       left < WEFT_WORD ? (size_t)left : WEFT_WORD);
                weft_sum_add(&expected, weft_mix_portable(word, byte / WEFT_WORD));
            }
        }
        assert_true(weft_sum_equal(expected, weft_sums_total(sums, i)));
        free(holders);
    }
    assert_int_equal(weft_sums_audit(world->context, sums, UINT64_MAX), WEFT_OK);
    if (weft_view_complete(world->view)) {
        weft_view *straight;
        weft_sums *direct;
        assert_int_equal(weft_view_create(world->context, world->checkpoint, &straight), WEFT_OK);
        assert_int_equal(weft_sums_compute(world->context, straight, &direct), WEFT_OK);
        weft_digest a = weft_sums_digest(sums);
        weft_digest b = weft_sums_digest(direct);
        assert_true(weft_digest_equal(&a, &b));
        weft_sums_destroy(direct);
        weft_view_destroy(straight);
    }
    weft_sums_destroy(sums);
}

static void check_world(test_world *world) {
    make_view(world);
    compare_view(world);
    compare_sums(world);
    world_close(world);
}

#define SLICE(name, d, s, l)                                                                               \
    { .tensor = (name), .dim = (d), .start = (s), .length = (l) }
#define WHOLE(name)                                                                                        \
    { .tensor = (name), .dim = -1 }

/* ---- the ways of holding ---- */

static void add_attention(test_world *world) {
    add_checkpoint(world, "q", WEFT_DTYPE_BF16, 2, 64, 24, 0);
    add_checkpoint(world, "k", WEFT_DTYPE_BF16, 2, 16, 24, 0);
    add_checkpoint(world, "v", WEFT_DTYPE_BF16, 2, 16, 24, 0);
}

static void test_fused_rows(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_attention(&world);
    add_checkpoint(&world, "gate", WEFT_DTYPE_BF16, 2, 40, 24, 0);
    add_checkpoint(&world, "up", WEFT_DTYPE_BF16, 2, 40, 24, 0);
    add_checkpoint(&world, "norm", WEFT_DTYPE_F32, 1, 13, 0, 0);
    add_checkpoint(&world, "scale", WEFT_DTYPE_F32, 0, 0, 0, 0);
    add_checkpoint(&world, "nothing", WEFT_DTYPE_F32, 2, 3, 0, 0);
    const test_recipe recipes[] = {
        {.name = "qkv", .kind = CONCAT, .count = 3, .slices = {WHOLE("q"), WHOLE("k"), WHOLE("v")}},
        {.name = "gate_up", .kind = CONCAT, .count = 2, .slices = {WHOLE("gate"), WHOLE("up")}},
        {.name = "final.norm", .kind = CONCAT, .count = 1, .slices = {WHOLE("norm")}},
        {.name = "tied.norm", .kind = TIE, .target = "final.norm"},
        {.name = "temperature", .kind = CONCAT, .count = 1, .slices = {WHOLE("scale")}},
        {.name = "void", .kind = CONCAT, .count = 1, .slices = {WHOLE("nothing")}},
    };
    add_all(&world, recipes, 6);
    check_world(&world);
}

/* Each rank of a tensor-parallel group holds its part; all parts together are the model. */
static void check_ranks(uint64_t ranks) {
    uint64_t total = 0;
    for (uint64_t rank = 0; rank < ranks; rank++) {
        random_state = 77; /* the same model for every rank */
        test_world world;
        world_open(&world);
        add_attention(&world);
        add_checkpoint(&world, "o", WEFT_DTYPE_BF16, 2, 24, 64, 0);
        add_checkpoint(&world, "rest", WEFT_DTYPE_BF16, 1, 8, 0, 0);
        const test_recipe recipes[] = {
            {.name = "qkv",
             .kind = CONCAT,
             .count = 3,
             .slices = {SLICE("q", 0, rank * (64 / ranks), 64 / ranks),
                        SLICE("k", 0, rank * (16 / ranks), 16 / ranks),
                        SLICE("v", 0, rank * (16 / ranks), 16 / ranks)}},
            {.name = "o",
             .kind = CONCAT,
             .count = 1,
             .slices = {SLICE("o", 1, rank * (64 / ranks), 64 / ranks)}},
        };
        add_all(&world, recipes, 2);
        assert_int_equal(weft_layout_ignore(world.layout, "re*"), WEFT_OK);
        make_view(&world);
        assert_false(weft_view_complete(world.view));
        compare_view(&world);
        compare_sums(&world);

        /* a box of another rank is not held, whatever its number of rows; its own is held whole, as one */
        size_t o = (size_t)weft_view_find(world.view, "o");
        for (uint64_t other = 0; other < ranks; other++) {
            weft_span box = {other * (64 / ranks), 64 / ranks, 64, 24};
            weft_segments segments = {.context = world.context};
            weft_holding holding;
            assert_int_equal(weft_view_map(world.view, o, &box, 0, &segments, &holding), WEFT_OK);
            assert_int_equal(holding, other == rank ? WEFT_HELD_ALL : WEFT_HELD_NONE);
            assert_int_equal(segments.count, other == rank ? 1 : 0);
            weft_segments_close(&segments);
        }
        weft_sums *sums;
        assert_int_equal(weft_sums_compute(world.context, world.view, &sums), WEFT_OK);
        total += weft_sums_total(sums, o).lanes[0];
        weft_sums_destroy(sums);
        if (rank + 1 == ranks) {
            const weft_digest_kernels *kernels = weft_digest_kernels_for(WEFT_CPU_PORTABLE);
            assert_true(kernels->sum(world.data[3], 24 * 64 * 2, 0).lanes[0] == total);
        }
        world_close(&world);
    }
}

static void test_ranks_of_two_and_four(void **state) {
    (void)state;
    check_ranks(2);
    check_ranks(4);
}

static void test_stacked_experts(void **state) {
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        test_world world;
        world_open(&world);
        add_checkpoint(&world, "e0.up", WEFT_DTYPE_BF16, 2, 12, 32, 0);
        add_checkpoint(&world, "e1.up", WEFT_DTYPE_BF16, 2, 12, 32, 0);
        add_checkpoint(&world, "e2.up", WEFT_DTYPE_BF16, 2, 12, 32, 0);
        add_checkpoint(&world, "packed", WEFT_DTYPE_F16, 3, 4, 6, 8);
        const uint64_t from = (uint64_t)rank * 16;
        const test_recipe recipes[] = {
            {.name = "experts",
             .kind = STACK,
             .count = 3,
             .slices = {SLICE("e0.up", 1, from, 16), SLICE("e1.up", 1, from, 16),
                        SLICE("e2.up", 1, from, 16)}},
            {.name = "middle", .kind = CONCAT, .count = 1, .slices = {SLICE("packed", 1, 2, 3)}},
        };
        add_all(&world, recipes, 2);
        check_world(&world);
    }
}

/* One checkpoint tensor spread over several live ones, joined along another dimension than the cut. */
static void test_cut_one_way_joined_another(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_checkpoint(&world, "w", WEFT_DTYPE_BF16, 3, 5, 6, 8);
    add_checkpoint(&world, "x", WEFT_DTYPE_BF16, 3, 5, 4, 8);
    const test_recipe recipes[] = {
        {.name = "low", .kind = CONCAT, .dim = 2, .count = 2, .slices = {SLICE("w", 1, 0, 4), WHOLE("x")}},
        {.name = "high", .kind = CONCAT, .dim = 0, .count = 1, .slices = {SLICE("w", 1, 4, 2)}},
    };
    add_all(&world, recipes, 2);
    check_world(&world);
}

/* Cuts inside of a 16-byte word are allowed where both sides are held. */
static void test_cuts_within_words(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_checkpoint(&world, "w", WEFT_DTYPE_U8, 2, 37, 29, 0);
    const test_recipe recipes[] = {
        {.name = "a", .kind = CONCAT, .count = 1, .slices = {SLICE("w", 1, 0, 3)}},
        {.name = "b", .kind = CONCAT, .count = 1, .slices = {SLICE("w", 1, 3, 21)}},
        {.name = "c", .kind = CONCAT, .count = 1, .slices = {SLICE("w", 1, 24, 5)}},
    };
    add_all(&world, recipes, 3);
    check_world(&world);
}

/* A random model, cut at random and put together at random, always completely. */
static void random_world(test_world *world, char names[MOST][8], test_recipe *recipes) {
    static const weft_dtype dtypes[] = {WEFT_DTYPE_U8, WEFT_DTYPE_BF16, WEFT_DTYPE_F32, WEFT_DTYPE_I64};
    size_t tensors = 1 + random_below(3);
    size_t count = 0;
    for (size_t i = 0; i < tensors; i++) {
        uint64_t shape[3] = {1 + random_below(6), 1 + random_below(6), 1 + random_below(6)};
        uint32_t rank = (uint32_t)(1 + random_below(3));
        snprintf(names[i], sizeof names[i], "t%zu", i);
        add_checkpoint(world, names[i], dtypes[random_below(4)], rank, shape[0], shape[1], shape[2]);
        uint32_t dim = (uint32_t)random_below(rank);
        for (uint64_t start = 0; start < shape[dim];) {
            uint64_t length = 1 + random_below(shape[dim] - start);
            test_recipe *next = &recipes[count];
            snprintf(names[MOST - 1 - count], sizeof names[0], "live%zu", count);
            *next = (test_recipe){.name = names[MOST - 1 - count], .kind = CONCAT, .count = 1};
            next->dim = (uint32_t)random_below(rank);
            next->slices[0] = (weft_slice){names[i], (int32_t)dim, start, length};
            start += length;
            uint64_t again = start < shape[dim] ? shape[dim] - start : 0;
            if (again >= length && random_below(2) == 0) { /* one live tensor of two equal slices */
                next->slices[next->count++] = (weft_slice){names[i], (int32_t)dim, start, length};
                next->kind = random_below(2) == 0 ? STACK : CONCAT;
                start += length;
            }
            count++;
        }
    }
    add_all(world, recipes, count);
}

static void test_random_layouts(void **state) {
    (void)state;
    random_state = 4711;
    for (int round = 0; round < 150; round++) {
        test_world world;
        char names[MOST][8];
        test_recipe recipes[MOST];
        world_open(&world);
        random_world(&world, names, recipes);
        check_world(&world);
    }
}

/* Types under a byte count in bytes. */
static void test_small_types(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_checkpoint(&world, "w", WEFT_DTYPE_F4, 2, 4, 64, 0);
    uint8_t half[4 * 16];
    weft_tensor live = {.size = sizeof live,
                        .name = "w",
                        .dtype = WEFT_DTYPE_F4,
                        .rank = 2,
                        .shape = {4, 32},
                        .data = half};
    assert_int_equal(weft_table_add(world.live, &live), WEFT_OK);
    weft_slice right = SLICE("w", 1, 32, 32);
    assert_int_equal(weft_layout_concat(world.layout, "w", 0, &right, 1), WEFT_OK);
    make_view(&world);
    weft_segments segments = {.context = world.context};
    weft_holding holding;
    weft_span span = {0, 128, 0, 1};
    assert_int_equal(weft_view_map(world.view, 0, &span, 0, &segments, &holding), WEFT_OK);
    assert_int_equal(holding, WEFT_HELD_PART);
    assert_int_equal(segments.count, 1);
    for (size_t i = 0; i < 64; i++) {
        const weft_segment *segment = &segments.items[0];
        assert_int_equal(weft_segment_unit(segment, i), 32 * (i / 16) + 16 + i % 16);
        assert_int_equal(weft_segment_linear(segment, i), 32 * (i / 16) + 16 + i % 16);
        assert_int_equal(weft_segment_live(segment, i), i);
        assert_int_equal(weft_segment_left(segment, i), 16 - i % 16);
    }
    weft_segments_close(&segments);
    world_close(&world);
}

static void test_masters_through_a_layout(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_checkpoint(&world, "w", WEFT_DTYPE_BF16, 2, 40, 16, 0);
    float masters[40 * 16];
    const uint16_t *weights = world.data[0];
    for (size_t i = 0; i < 40 * 16; i++) {
        uint16_t weight = (uint16_t)(weights[i] & 0x3fff); /* finite, so that the cast gives it back */
        ((uint16_t *)world.data[0])[i] = weight;
        uint32_t bits = (uint32_t)weight << 16;
        memcpy(&masters[i], &bits, sizeof bits);
    }
    weft_tensor live = {.size = sizeof live,
                        .name = "m",
                        .dtype = WEFT_DTYPE_BF16,
                        .storage = WEFT_DTYPE_F32,
                        .rank = 2,
                        .shape = {40, 16},
                        .data = masters};
    assert_int_equal(weft_table_add(world.live, &live), WEFT_OK);
    weft_slice whole = WHOLE("w");
    assert_int_equal(weft_layout_concat(world.layout, "m", 1, &whole, 1), WEFT_OK);
    make_view(&world);
    weft_sums *sums;
    assert_int_equal(weft_sums_compute(world.context, world.view, &sums), WEFT_OK);
    weft_sum expected = weft_digest_kernels_for(WEFT_CPU_PORTABLE)->sum(weights, 40 * 16 * 2, 0);
    assert_true(weft_sum_equal(weft_sums_total(sums, 0), expected));
    weft_sums_destroy(sums);
    world_close(&world);
}

/* Tied names in the checkpoint, in the live table and in the layout all lead to the same memory. */
static void test_ties(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_checkpoint(&world, "embed", WEFT_DTYPE_BF16, 2, 8, 8, 0);
    assert_int_equal(weft_table_tie(world.checkpoint, "lm_head", "embed"), WEFT_OK);
    const test_recipe recipes[] = {
        {.name = "tokens", .kind = CONCAT, .count = 1, .slices = {WHOLE("lm_head")}},
        {.name = "head", .kind = TIE, .target = "tokens"},
        {.name = "same", .kind = TIE, .target = "tokens"},
    };
    add_all(&world, recipes, 3);
    assert_int_equal(weft_table_tie(world.live, "head", "tokens"), WEFT_OK);
    weft_tensor same = *weft_table_at(world.live, 0);
    same.name = "same";
    assert_int_equal(weft_table_add(world.live, &same), WEFT_OK);
    make_view(&world);
    assert_int_equal(weft_view_count(world.view), 1);
    compare_view(&world);
    compare_sums(&world);
    world_close(&world);
}

/* ---- mistakes ---- */

/* "w" and "x" are 8 by 16, BF16; "y" is 4 by 16; "b" has 24 bytes; "n" is F4; rows of
 * "r" have 24 bytes. */
static void open_mistake(test_world *world) {
    world_open(world);
    add_checkpoint(world, "w", WEFT_DTYPE_BF16, 2, 8, 16, 0);
    add_checkpoint(world, "x", WEFT_DTYPE_BF16, 2, 8, 16, 0);
    add_checkpoint(world, "y", WEFT_DTYPE_BF16, 2, 4, 16, 0);
    add_checkpoint(world, "b", WEFT_DTYPE_U8, 1, 24, 0, 0);
    add_checkpoint(world, "n", WEFT_DTYPE_F4, 2, 4, 6, 0);
    add_checkpoint(world, "s", WEFT_DTYPE_F32, 0, 0, 0, 0);
    add_checkpoint(world, "r", WEFT_DTYPE_U8, 2, 4, 24, 0);
}

static void add_live_plain(test_world *world, const char *name, weft_dtype dtype, uint32_t rank, uint64_t a,
                           uint64_t b) {
    static uint8_t memory[4096];
    weft_tensor live = {.size = sizeof live,
                        .name = name,
                        .dtype = dtype,
                        .rank = rank,
                        .shape = {a, b, 16},
                        .data = memory};
    assert_int_equal(weft_table_add(world->live, &live), WEFT_OK);
}

static void expect_mistake(test_world *world, bool ignore_rest, weft_status status, const char *text) {
    if (ignore_rest) {
        assert_int_equal(weft_layout_ignore(world->layout, "*"), WEFT_OK);
    }
    weft_view *view = (weft_view *)world;
    assert_int_equal(
        weft_view_create_layout(world->context, world->live, world->layout, world->checkpoint, &view),
        status);
    assert_ptr_equal(view, world);
    if (strstr(weft_context_error(world->context), text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, weft_context_error(world->context));
    }
    world_close(world);
}

static void concat(test_world *world, const char *name, uint32_t dim, size_t count,
                   const weft_slice *slices) {
    assert_int_equal(weft_layout_concat(world->layout, name, dim, slices, count), WEFT_OK);
}

static void test_wrong_names(void **state) {
    (void)state;
    test_world world;
    const weft_slice whole = WHOLE("w");
    const weft_slice unknown = WHOLE("z");
    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &unknown);
    expect_mistake(&world, true, WEFT_NOT_FOUND, "checkpoint tensor \"z\" is not in the checkpoint");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "c", 0, 1, &whole);
    expect_mistake(&world, true, WEFT_NOT_FOUND, "live tensor \"c\" is not in the table");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    add_live_plain(&world, "c", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &whole);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "live tensor \"c\" is not covered");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &whole);
    assert_int_equal(weft_layout_ignore(world.layout, "x"), WEFT_OK);
    assert_int_equal(weft_layout_ignore(world.layout, "r"), WEFT_OK);
    assert_int_equal(weft_layout_ignore(world.layout, "b*"), WEFT_OK);
    assert_int_equal(weft_layout_ignore(world.layout, "s"), WEFT_OK);
    assert_int_equal(weft_layout_ignore(world.layout, "nn*"), WEFT_OK);
    expect_mistake(&world, false, WEFT_INVALID_ARGUMENT,
                   "checkpoint tensor \"n\" is neither used nor ignored");
}

static void test_covered_twice(void **state) {
    (void)state;
    test_world world;
    const weft_slice whole = WHOLE("w");
    const weft_slice other = WHOLE("x");
    const weft_slice rows = SLICE("w", 0, 2, 2);
    const weft_slice columns = SLICE("w", 1, 8, 8);
    const weft_slice overlap[] = {SLICE("w", 0, 0, 4), SLICE("w", 0, 3, 4)};

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &whole);
    concat(&world, "a", 0, 1, &other);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "live tensor \"a\" is covered twice");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    assert_int_equal(weft_table_tie(world.live, "c", "a"), WEFT_OK);
    concat(&world, "a", 0, 1, &whole);
    concat(&world, "c", 0, 1, &other);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "are tied, so their memory is covered twice");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    add_live_plain(&world, "c", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &whole);
    concat(&world, "c", 0, 1, &whole);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "checkpoint tensor \"w\" is covered twice");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 2, overlap);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "checkpoint tensor \"w\" is covered twice");

    /* rows and columns always meet */
    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 2, 16);
    add_live_plain(&world, "c", WEFT_DTYPE_BF16, 2, 8, 8);
    concat(&world, "a", 0, 1, &rows);
    concat(&world, "c", 0, 1, &columns);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "covered twice where slices of live tensors");
}

static void test_wrong_shapes(void **state) {
    (void)state;
    static const struct {
        weft_slice slices[2];
        size_t count;
        const char *text;
        weft_dtype dtype;
        uint64_t shape[2];
        uint32_t rank;
        uint32_t dim;
        bool stack;
    } cases[] = {
        {{WHOLE("w")}, 1, "is 9, but its slices cover 8", WEFT_DTYPE_BF16, {9, 16}, 2, 0, false},
        {{WHOLE("w")}, 1, "has 1 dimensions, but its slices make 2", WEFT_DTYPE_BF16, {128}, 1, 0, false},
        {{WHOLE("w")}, 1, "is F16, but the checkpoint has BF16", WEFT_DTYPE_F16, {8, 16}, 2, 0, false},
        {{WHOLE("w")}, 1, "is F32, but the checkpoint has BF16", WEFT_DTYPE_F32, {8, 16}, 2, 0, false},
        {{WHOLE("w"), WHOLE("y")}, 2, "does not fit", WEFT_DTYPE_BF16, {8, 32}, 2, 1, false},
        {{WHOLE("w"), WHOLE("b")}, 2, "does not fit", WEFT_DTYPE_BF16, {8, 32}, 2, 0, false},
        {{WHOLE("w"), WHOLE("y")}, 2, "does not fit", WEFT_DTYPE_BF16, {2, 8}, 3, 0, true},
        {{WHOLE("w"), WHOLE("x")}, 2, "is 3, but its slices cover 2", WEFT_DTYPE_BF16, {3, 8}, 3, 0, true},
        {{WHOLE("w")}, 1, "is joined along dimension 2", WEFT_DTYPE_BF16, {8, 16}, 2, 2, false},
        {{WHOLE("s"), WHOLE("s")}, 2, "is joined along dimension 0", WEFT_DTYPE_F32, {2}, 1, 0, false},
        {{SLICE("s", 0, 0, 1)},
         1,
         "a dimension that the tensor does not have",
         WEFT_DTYPE_F32,
         {1},
         1,
         0,
         false},
        {{SLICE("w", 2, 0, 1)},
         1,
         "a dimension that the tensor does not have",
         WEFT_DTYPE_BF16,
         {8},
         1,
         0,
         false},
        {{SLICE("w", 0, 7, 2)}, 1, "leaves the tensor's range", WEFT_DTYPE_BF16, {2, 16}, 2, 0, false},
        {{SLICE("w", 0, 9, 0)}, 1, "leaves the tensor's range", WEFT_DTYPE_BF16, {2, 16}, 2, 0, false},
        {{SLICE("w", 0, 4, 0)}, 1, "is empty", WEFT_DTYPE_BF16, {0, 16}, 2, 0, false},
        {{SLICE("w", 0, UINT64_MAX, 2)},
         1,
         "leaves the tensor's range",
         WEFT_DTYPE_BF16,
         {2, 16},
         2,
         0,
         false},
        {{SLICE("w", 0, 1, UINT64_MAX)},
         1,
         "leaves the tensor's range",
         WEFT_DTYPE_BF16,
         {2, 16},
         2,
         0,
         false},
        {{SLICE("n", 1, 1, 4)}, 1, "cuts through a byte", WEFT_DTYPE_F4, {4, 4}, 2, 0, false},
        {{SLICE("n", 1, 0, 3)}, 1, "cuts through a byte", WEFT_DTYPE_F4, {4, 3}, 2, 0, false},
        {{SLICE("w", 1, 4, 8)}, 1, "cuts must fall on 16 bytes", WEFT_DTYPE_BF16, {8, 8}, 2, 0, false},
        {{SLICE("w", 1, 0, 4)}, 1, "cuts must fall on 16 bytes", WEFT_DTYPE_BF16, {8, 4}, 2, 0, false},
        /* the first row's cut falls on a word, the second's does not */
        {{SLICE("r", 1, 16, 8)}, 1, "cuts must fall on 16 bytes", WEFT_DTYPE_U8, {4, 8}, 2, 0, false},
        {{SLICE("b", 0, 8, 16)}, 1, "cuts must fall on 16 bytes", WEFT_DTYPE_U8, {16}, 1, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_world world;
        open_mistake(&world);
        add_live_plain(&world, "a", cases[i].dtype, cases[i].rank, cases[i].shape[0], cases[i].shape[1]);
        if (cases[i].stack) {
            assert_int_equal(weft_layout_stack(world.layout, "a", cases[i].slices, cases[i].count),
                             WEFT_OK);
        } else {
            concat(&world, "a", cases[i].dim, cases[i].count, cases[i].slices);
        }
        expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, cases[i].text);
    }
}

/* The same cuts are right where they fall on words, where the rest is held, or at the tensor's end. */
static void test_cuts_that_are_right(void **state) {
    (void)state;
    const test_recipe right[][2] = {
        {{.name = "a", .kind = CONCAT, .count = 1, .slices = {SLICE("b", 0, 16, 8)}}, {.name = NULL}},
        {{.name = "a", .kind = CONCAT, .count = 1, .slices = {SLICE("b", 0, 0, 16)}}, {.name = NULL}},
        {{.name = "a", .kind = CONCAT, .count = 1, .slices = {SLICE("w", 1, 0, 4)}},
         {.name = "c", .kind = CONCAT, .count = 1, .slices = {SLICE("w", 1, 4, 4)}}},
    };
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        test_world world;
        open_mistake(&world);
        add_all(&world, right[i], right[i][1].name == NULL ? 1 : 2);
        assert_int_equal(weft_layout_ignore(world.layout, "*"), WEFT_OK);
        check_world(&world);
    }
}

static void test_wrong_ties(void **state) {
    (void)state;
    test_world world;
    const weft_slice whole = WHOLE("w");
    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &whole);
    assert_int_equal(weft_layout_tie(world.layout, "t", "nowhere"), WEFT_OK);
    expect_mistake(&world, true, WEFT_NOT_FOUND, "tied to \"nowhere\", which the layout does not make");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    concat(&world, "a", 0, 1, &whole);
    assert_int_equal(weft_layout_tie(world.layout, "t", "u"), WEFT_OK);
    assert_int_equal(weft_layout_tie(world.layout, "u", "t"), WEFT_OK);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "which is itself tied");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    add_live_plain(&world, "t", WEFT_DTYPE_BF16, 2, 8, 8);
    concat(&world, "a", 0, 1, &whole);
    assert_int_equal(weft_layout_tie(world.layout, "t", "a"), WEFT_OK);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "are tied, but dtype or shape differ");

    open_mistake(&world);
    add_live_plain(&world, "a", WEFT_DTYPE_BF16, 2, 8, 16);
    uint16_t elsewhere[128];
    weft_tensor own = *weft_table_at(world.live, 0);
    own.name = "t";
    own.data = elsewhere;
    assert_int_equal(weft_table_add(world.live, &own), WEFT_OK);
    concat(&world, "a", 0, 1, &whole);
    assert_int_equal(weft_layout_tie(world.layout, "t", "a"), WEFT_OK);
    expect_mistake(&world, true, WEFT_INVALID_ARGUMENT, "each has memory of its own");
}

static void test_wrong_calls(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    const weft_slice whole = WHOLE("w");
    const weft_slice nameless = {.tensor = NULL, .dim = -1};
    const weft_slice below = SLICE("w", -2, 0, 1);
    const weft_slice above = SLICE("w", WEFT_RANK_MAX, 0, 1);
    char *longest = calloc(WEFT_NAME_MAX + 2, 1);
    memset(longest, 'n', WEFT_NAME_MAX + 1);
    weft_layout *layout = world.layout;
    assert_int_equal(weft_layout_concat(layout, NULL, 0, &whole, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_concat(layout, "", 0, &whole, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_concat(layout, longest, 0, &whole, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_concat(layout, "a", 0, &whole, 0), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_concat(layout, "a", 0, NULL, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_stack(layout, "a", &nameless, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_stack(layout, "a", &below, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_stack(layout, "a", &above, 1), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_tie(layout, "a", ""), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_tie(layout, NULL, "a"), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_ignore(layout, "a*b"), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_layout_ignore(layout, ""), WEFT_INVALID_ARGUMENT);
    /* nothing of that stays behind: an empty layout of an empty model is right */
    make_view(&world);
    assert_true(weft_view_complete(world.view));
    free(longest);
    world_close(&world);
}

/* ---- JSON ---- */

static const char small_json[] =
    "\n{\"weft_layout\": 1, \"tensors\": {"
    "\"qkv\": {\"concat\": [{\"tensor\": \"q\", \"dim\": 0, \"start\": 32, \"length\": 32},"
    " {\"tensor\": \"k\", \"dim\": 0, \"start\": 8, \"length\": 8}, {\"tensor\": \"v\"}], \"dim\": 0},"
    "\"o\": {\"slice\": {\"tensor\": \"o\", \"dim\": 1, \"start\": 24, \"length\": 8}},"
    "\"experts\": {\"stack\": [\"e0\", \"e1\"]},"
    "\"norm\": \"model.norm\","
    "\"joined\": {\"concat\": [\"f0\", \"f1\"], \"dim\": 1},"
    "\"head\": {\"tie\": \"norm\"}},"
    "\"ignore\": [\"vision.*\", \"extra\"]}\n";

static void test_json(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_attention(&world);
    add_checkpoint(&world, "o", WEFT_DTYPE_BF16, 2, 6, 32, 0);
    add_checkpoint(&world, "e0", WEFT_DTYPE_BF16, 2, 6, 8, 0);
    add_checkpoint(&world, "e1", WEFT_DTYPE_BF16, 2, 6, 8, 0);
    add_checkpoint(&world, "f0", WEFT_DTYPE_BF16, 2, 6, 5, 0);
    add_checkpoint(&world, "f1", WEFT_DTYPE_BF16, 2, 6, 3, 0);
    add_checkpoint(&world, "model.norm", WEFT_DTYPE_F32, 1, 7, 0, 0);
    add_checkpoint(&world, "vision.a", WEFT_DTYPE_F32, 1, 7, 0, 0);
    add_checkpoint(&world, "extra", WEFT_DTYPE_F32, 1, 7, 0, 0);
    const test_recipe recipes[] = {
        {.name = "qkv",
         .kind = CONCAT,
         .count = 3,
         .slices = {SLICE("q", 0, 32, 32), SLICE("k", 0, 8, 8), WHOLE("v")}},
        {.name = "o", .kind = CONCAT, .count = 1, .slices = {SLICE("o", 1, 24, 8)}},
        {.name = "experts", .kind = STACK, .count = 2, .slices = {WHOLE("e0"), WHOLE("e1")}},
        {.name = "norm", .kind = CONCAT, .count = 1, .slices = {WHOLE("model.norm")}},
        {.name = "joined", .kind = CONCAT, .dim = 1, .count = 2, .slices = {WHOLE("f0"), WHOLE("f1")}},
    };
    for (size_t i = 0; i < 5; i++) {
        add_live(&world, &recipes[i]);
    }
    weft_layout_destroy(world.layout);
    world.layout = NULL;
    assert_int_equal(weft_layout_parse(world.context, small_json, sizeof small_json - 1, &world.layout),
                     WEFT_OK);
    check_world(&world);
}

static void test_wrong_json(void **state) {
    (void)state;
    static const struct {
        const char *json;
        weft_status status;
        const char *text;
    } cases[] = {
        {"", WEFT_MALFORMED, "layout"},
        {"[]", WEFT_MALFORMED, "layout"},
        {"{", WEFT_MALFORMED, "layout"},
        {"{\"weft_layout\":1,\"tensors\":{}} x", WEFT_MALFORMED, "layout"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":\"b\",\"a\":\"c\"}}", WEFT_MALFORMED, "duplicate"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":\"\xff\"}}", WEFT_MALFORMED, "0xff"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":{\"tensor\":[[[]]]}}}}", WEFT_MALFORMED,
         "nested"},
        {"{\"tensors\":{}}", WEFT_MALFORMED, "\"weft_layout\""},
        {"{\"weft_layout\":\"1\",\"tensors\":{}}", WEFT_MALFORMED, "\"weft_layout\""},
        {"{\"weft_layout\":2,\"tensors\":{},\"new\":0}", WEFT_WRONG_VERSION, "version 2"},
        {"{\"weft_layout\":1}", WEFT_MALFORMED, "\"tensors\" must be an object"},
        {"{\"weft_layout\":1,\"tensors\":[]}", WEFT_MALFORMED, "\"tensors\" must be an object"},
        {"{\"weft_layout\":1,\"tensors\":{},\"ignored\":[]}", WEFT_MALFORMED, "unknown key \"ignored\""},
        {"{\"weft_layout\":1,\"tensors\":{},\"ignore\":\"a\"}", WEFT_MALFORMED, "array of patterns"},
        {"{\"weft_layout\":1,\"tensors\":{},\"ignore\":[1]}", WEFT_MALFORMED, "array of patterns"},
        {"{\"weft_layout\":1,\"tensors\":{},\"ignore\":[\"a*b\"]}", WEFT_INVALID_ARGUMENT, "a*b"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":1}}", WEFT_MALFORMED, "\"a\": must be"},
        {"{\"weft_layout\":1,\"tensors\":{\"\":\"b\"}}", WEFT_INVALID_ARGUMENT, "no name"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":\"\"}}", WEFT_INVALID_ARGUMENT, "no name"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{}}}", WEFT_MALFORMED, "needs one of"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":\"b\",\"tie\":\"c\"}}}", WEFT_MALFORMED,
         "needs one of"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"tie\":1}}}", WEFT_MALFORMED, "\"tie\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":\"b\",\"dim\":0}}}", WEFT_MALFORMED,
         "unknown key \"dim\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"stack\":[\"b\"],\"dim\":0}}}", WEFT_MALFORMED,
         "unknown key \"dim\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"stack\":[\"b\"],\"concat\":[\"b\"]}}}", WEFT_MALFORMED,
         "unknown key \"stack\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"concat\":[]}}}", WEFT_MALFORMED, "at least one slice"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"stack\":\"b\"}}}", WEFT_MALFORMED, "at least one slice"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"concat\":[\"b\"],\"dim\":-1}}}", WEFT_MALFORMED,
         "\"dim\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"concat\":[\"b\"],\"dim\":1.0}}}", WEFT_MALFORMED,
         "\"dim\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"concat\":[\"b\"],\"dim\":16}}}", WEFT_MALFORMED,
         "\"dim\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":3}}}", WEFT_MALFORMED, "a name or an object"},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":{\"dim\":0}}}}", WEFT_MALFORMED, "\"tensor\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":{\"tensor\":\"b\",\"dim\":0,\"start\":0}}}}",
         WEFT_MALFORMED, "\"length\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":{\"tensor\":\"b\",\"dim\":0,\"length\":1}}}}",
         WEFT_MALFORMED, "\"start\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":{\"tensor\":\"b\",\"start\":0,\"length\":1}}}}",
         WEFT_MALFORMED, "\"dim\""},
        {"{\"weft_layout\":1,\"tensors\":{\"a\":{\"slice\":{\"tensor\":\"b\",\"lenght\":1}}}}",
         WEFT_MALFORMED, "\"a\": unknown key \"lenght\""},
    };
    weft_context_options options = {.size = sizeof options,
                                    .limits =
                                        &(weft_limits){.size = sizeof(weft_limits), .header_bytes = 4096}};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_layout *layout = (weft_layout *)context;
        weft_status status = weft_layout_parse(context, cases[i].json, strlen(cases[i].json), &layout);
        if (status != cases[i].status || strstr(weft_context_error(context), cases[i].text) == NULL) {
            fail_msg("%s: %d, \"%s\"", cases[i].json, status, weft_context_error(context));
        }
        assert_ptr_equal(layout, context);
    }
    char *big = malloc(5000);
    memset(big, ' ', 5000);
    weft_layout *layout;
    assert_int_equal(weft_layout_parse(context, big, 5000, &layout), WEFT_LIMIT_EXCEEDED);
    free(big);
    weft_context_destroy(context);
}

/* ---- memory ---- */

static weft_status use_everything(weft_context *context, const test_world *world) {
    weft_layout *layout = NULL;
    weft_view *view = NULL;
    weft_segments segments = {.context = context};
    weft_status status = weft_layout_parse(context, small_json, sizeof small_json - 1, &layout);
    if (status == WEFT_OK) {
        status = weft_view_create_layout(context, world->live, layout, world->checkpoint, &view);
    }
    for (size_t i = 0; status == WEFT_OK && i < weft_view_count(view); i++) {
        weft_span span = {0, weft_tensor_units(weft_view_at(view, i)), 0, 1};
        weft_holding holding;
        status = weft_view_map(view, i, &span, 0, &segments, &holding);
    }
    weft_segments_close(&segments);
    weft_view_destroy(view);
    weft_layout_destroy(layout);
    return status;
}

static void test_each_allocation_fails_once(void **state) {
    (void)state;
    test_world world;
    world_open(&world);
    add_attention(&world);
    add_checkpoint(&world, "o", WEFT_DTYPE_BF16, 2, 64, 32, 0);
    add_checkpoint(&world, "e0", WEFT_DTYPE_BF16, 2, 6, 8, 0);
    add_checkpoint(&world, "e1", WEFT_DTYPE_BF16, 2, 6, 8, 0);
    add_checkpoint(&world, "f0", WEFT_DTYPE_BF16, 2, 6, 5, 0);
    add_checkpoint(&world, "f1", WEFT_DTYPE_BF16, 2, 6, 3, 0);
    add_checkpoint(&world, "model.norm", WEFT_DTYPE_F32, 1, 7, 0, 0);
    const test_recipe recipes[] = {
        {.name = "qkv",
         .kind = CONCAT,
         .count = 3,
         .slices = {SLICE("q", 0, 32, 32), SLICE("k", 0, 8, 8), WHOLE("v")}},
        {.name = "o", .kind = CONCAT, .count = 1, .slices = {SLICE("o", 1, 24, 8)}},
        {.name = "experts", .kind = STACK, .count = 2, .slices = {WHOLE("e0"), WHOLE("e1")}},
        {.name = "norm", .kind = CONCAT, .count = 1, .slices = {WHOLE("model.norm")}},
        {.name = "joined", .kind = CONCAT, .dim = 1, .count = 2, .slices = {WHOLE("f0"), WHOLE("f1")}},
    };
    for (size_t i = 0; i < 5; i++) {
        add_live(&world, &recipes[i]);
    }
    faults injector = {0};
    weft_context_options options = {.size = sizeof options, .allocator = faults_allocator(&injector)};
    size_t count = 0;
    for (size_t n = 1;; n++) {
        weft_context *context;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        faults_reset(&injector, n);
        weft_status status = use_everything(context, &world);
        bool fired = faults_fired(&injector);
        assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
        faults_reset(&injector, 0);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&injector), 0);
        if (!fired) {
            break;
        }
        count++;
    }
    assert_true(count > 30);
    world_close(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_rows),
        cmocka_unit_test(test_ranks_of_two_and_four),
        cmocka_unit_test(test_stacked_experts),
        cmocka_unit_test(test_cut_one_way_joined_another),
        cmocka_unit_test(test_cuts_within_words),
        cmocka_unit_test(test_random_layouts),
        cmocka_unit_test(test_small_types),
        cmocka_unit_test(test_masters_through_a_layout),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_wrong_names),
        cmocka_unit_test(test_covered_twice),
        cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_cuts_that_are_right),
        cmocka_unit_test(test_wrong_ties),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_wrong_json),
        cmocka_unit_test(test_each_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
