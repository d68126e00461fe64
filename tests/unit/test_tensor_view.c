/* SPDX-License-Identifier: Apache-2.0
 *
 * Straight views: order and names, spans mapped to segments, spans that lie, and reading segments of
 * plain memory, of F32 masters and of tensors behind callbacks.
 */
#include "../../lib/base/cpu.h"
#include "../../lib/tensor/view.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct view_fixture {
    weft_context *context;
    weft_table *table;
    weft_view *view;
    weft_segments segments;
} view_fixture;

static void open_fixture(view_fixture *self) {
    memset(self, 0, sizeof *self);
    assert_int_equal(weft_context_create(NULL, &self->context), WEFT_OK);
    assert_int_equal(weft_table_create(self->context, &self->table), WEFT_OK);
    self->segments.context = self->context;
}

static void close_fixture(view_fixture *self) {
    weft_segments_close(&self->segments);
    weft_view_destroy(self->view);
    weft_table_destroy(self->table);
    weft_context_destroy(self->context);
}

static void add(view_fixture *self, const char *name, weft_dtype dtype, uint64_t rows, uint64_t columns,
                void *data) {
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = name,
                          .dtype = dtype,
                          .rank = 2,
                          .shape = {rows, columns},
                          .data = data};
    assert_int_equal(weft_table_add(self->table, &tensor), WEFT_OK);
}

static weft_status map(view_fixture *self, size_t tensor, weft_span span, uint64_t linear,
                       weft_holding *holding) {
    self->segments.count = 0;
    return weft_view_map(self->view, tensor, &span, linear, &self->segments, holding);
}

static void expect_segment(const view_fixture *self, size_t index, uint64_t linear, uint64_t unit,
                           uint64_t units) {
    const weft_segment *segment = &self->segments.items[index];
    assert_int_equal(segment->linear, linear);
    assert_int_equal(segment->unit, unit);
    assert_int_equal(segment->live_unit, unit);
    assert_int_equal(segment->units, units);
}

static void test_order_names_and_ties(void **state) {
    (void)state;
    view_fixture fixture;
    open_fixture(&fixture);
    uint16_t data[16];
    uint8_t byte;
    add(&fixture, "b", WEFT_DTYPE_BF16, 4, 4, data);
    add(&fixture, "a\xc3\xa4", WEFT_DTYPE_U8, 1, 1, &byte);
    add(&fixture, "a", WEFT_DTYPE_I32, 0, 4, NULL);
    assert_int_equal(weft_table_tie(fixture.table, "c", "b"), WEFT_OK);
    assert_int_equal(weft_view_create(fixture.context, fixture.table, &fixture.view), WEFT_OK);
    assert_int_equal(weft_view_count(fixture.view), 3);
    assert_string_equal(weft_view_at(fixture.view, 0)->name, "a");
    assert_string_equal(weft_view_at(fixture.view, 1)->name, "a\xc3\xa4");
    assert_string_equal(weft_view_at(fixture.view, 2)->name, "b");
    assert_null(weft_view_at(fixture.view, 3));
    assert_int_equal(weft_view_find(fixture.view, "b"), 2);
    assert_int_equal(weft_view_find(fixture.view, "c"), -1);
    assert_int_equal(weft_view_find(fixture.view, ""), -1);
    assert_true(weft_view_complete(fixture.view));
    close_fixture(&fixture);
}

/* What a view gave out stays valid while its table grows. */
static void test_view_survives_growth(void **state) {
    (void)state;
    view_fixture fixture;
    open_fixture(&fixture);
    uint16_t data[16];
    add(&fixture, "w", WEFT_DTYPE_BF16, 4, 4, data);
    assert_int_equal(weft_view_create(fixture.context, fixture.table, &fixture.view), WEFT_OK);
    weft_holding holding;
    assert_int_equal(map(&fixture, 0, (weft_span){0, 16, 0, 1}, 0, &holding), WEFT_OK);
    for (int i = 0; i < 1000; i++) {
        char name[8];
        snprintf(name, sizeof name, "x%d", i);
        add(&fixture, name, WEFT_DTYPE_BF16, 4, 4, data);
    }
    assert_ptr_equal(weft_segment_memory(&fixture.segments.items[0]), data);
    assert_string_equal(fixture.segments.items[0].live->name, "w");
    close_fixture(&fixture);
}

static void test_spans(void **state) {
    (void)state;
    view_fixture fixture;
    open_fixture(&fixture);
    uint16_t data[64];
    add(&fixture, "w", WEFT_DTYPE_BF16, 8, 8, data);
    assert_int_equal(weft_view_create(fixture.context, fixture.table, &fixture.view), WEFT_OK);
    weft_holding holding = WEFT_HELD_NONE;

    assert_int_equal(map(&fixture, 0, (weft_span){5, 20, 0, 1}, 100, &holding), WEFT_OK);
    assert_int_equal(holding, WEFT_HELD_ALL);
    assert_int_equal(fixture.segments.count, 1);
    expect_segment(&fixture, 0, 100, 5, 20);
    assert_ptr_equal(weft_segment_memory(&fixture.segments.items[0]), data + 5);

    /* columns 2 to 4 */
    assert_int_equal(map(&fixture, 0, (weft_span){2, 3, 8, 8}, 7, &holding), WEFT_OK);
    assert_int_equal(fixture.segments.count, 1);
    expect_segment(&fixture, 0, 7, 2, 24);
    for (size_t i = 0; i < 24; i++) {
        const weft_segment *segment = &fixture.segments.items[0];
        assert_int_equal(weft_segment_linear(segment, i), 7 + i);
        assert_int_equal(weft_segment_unit(segment, i), 2 + 8 * (i / 3) + i % 3);
        assert_int_equal(weft_segment_live(segment, i), 2 + 8 * (i / 3) + i % 3);
        assert_int_equal(weft_segment_left(segment, i), 3 - i % 3);
    }

    /* whole rows are one piece */
    assert_int_equal(map(&fixture, 0, (weft_span){8, 8, 8, 7}, 0, &holding), WEFT_OK);
    assert_int_equal(fixture.segments.count, 1);
    expect_segment(&fixture, 0, 0, 8, 56);

    /* a later mapping appends and does not grow what was there */
    weft_span next = {0, 8, 0, 1};
    assert_int_equal(weft_view_map(fixture.view, 0, &next, 56, &fixture.segments, &holding), WEFT_OK);
    assert_int_equal(fixture.segments.count, 2);
    expect_segment(&fixture, 0, 0, 8, 56);
    expect_segment(&fixture, 1, 56, 0, 8);

    /* nothing is always held */
    assert_int_equal(map(&fixture, 0, (weft_span){64, 0, 0, 1}, 0, &holding), WEFT_OK);
    assert_int_equal(holding, WEFT_HELD_ALL);
    assert_int_equal(fixture.segments.count, 0);
    close_fixture(&fixture);
}

static void test_spans_that_lie(void **state) {
    (void)state;
    view_fixture fixture;
    open_fixture(&fixture);
    uint16_t data[64];
    add(&fixture, "empty", WEFT_DTYPE_BF16, 8, 0, NULL);
    add(&fixture, "w", WEFT_DTYPE_BF16, 8, 8, data);
    assert_int_equal(weft_view_create(fixture.context, fixture.table, &fixture.view), WEFT_OK);
    static const weft_span bad[] = {
        {0, 65, 0, 1},
        {64, 1, 0, 1},
        {65, 0, 0, 1},
        {UINT64_MAX, 1, 0, 1},
        {1, UINT64_MAX, 0, 1},
        {0, 8, 8, 9},
        {1, 8, 8, 8},
        {0, 8, 7, 2},                 /* runs overlap */
        {0, 0, 8, 8},                 /* runs of nothing */
        {0, 8, 8, 0},                 /* no runs */
        {0, 1, 8, (uint64_t)1 << 61}, /* count * stride wraps to 0 */
        {0, 1, (uint64_t)1 << 63, 3}, /* so does this */
        {0, 8, 0, 2},                 /* stride 0 repeats itself */
        {0, (uint64_t)1 << 32, 0, (uint64_t)1 << 32},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        weft_holding holding = WEFT_HELD_PART;
        assert_int_equal(map(&fixture, 1, bad[i], 0, &holding), WEFT_MALFORMED);
        assert_non_null(strstr(weft_context_error(fixture.context), "\"w\""));
        assert_int_equal(holding, WEFT_HELD_PART);
        assert_int_equal(fixture.segments.count, 0);
    }
    weft_holding holding;
    assert_int_equal(map(&fixture, 1, (weft_span){0, 64, 0, 1}, UINT64_MAX - 63, &holding), WEFT_MALFORMED);
    assert_int_equal(map(&fixture, 1, (weft_span){0, 64, 0, 1}, UINT64_MAX - 64, &holding), WEFT_OK);
    assert_int_equal(map(&fixture, 0, (weft_span){0, 1, 0, 1}, 0, &holding), WEFT_MALFORMED);
    assert_int_equal(map(&fixture, 0, (weft_span){0, 0, 0, 1}, 0, &holding), WEFT_OK);
    assert_int_equal(map(&fixture, 2, (weft_span){0, 0, 0, 1}, 0, &holding), WEFT_INVALID_ARGUMENT);
    close_fixture(&fixture);
}

static void test_read_masters(void **state) {
    (void)state;
    view_fixture fixture;
    open_fixture(&fixture);
    float masters[64];
    for (int i = 0; i < 64; i++) {
        masters[i] = (float)i * 1.0039f - 7.0f;
    }
    weft_tensor tensor = {
        .size = sizeof tensor,
        .name = "w",
        .dtype = WEFT_DTYPE_BF16,
        .storage = WEFT_DTYPE_F32,
        .rank = 1,
        .shape = {64},
        .data = masters,
    };
    assert_int_equal(weft_table_add(fixture.table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(fixture.context, fixture.table, &fixture.view), WEFT_OK);
    weft_holding holding;
    assert_int_equal(map(&fixture, 0, (weft_span){10, 40, 0, 1}, 0, &holding), WEFT_OK);
    assert_ptr_equal(weft_segment_memory(&fixture.segments.items[0]), masters + 10);
    uint16_t output[30];
    assert_int_equal(weft_segment_read(fixture.context, &fixture.segments.items[0], 5, 30, output),
                     WEFT_OK);
    for (int i = 0; i < 30; i++) {
        uint32_t bits;
        memcpy(&bits, &masters[15 + i], sizeof bits);
        assert_int_equal(output[i], weft_bf16_round(bits));
    }
    close_fixture(&fixture);
}

static weft_status read_pattern(void *opaque, uint64_t offset, void *output, size_t size) {
    if (opaque == NULL) {
        return WEFT_MORE;
    }
    memcpy(output, (const uint8_t *)opaque + offset, size);
    return WEFT_OK;
}

static void test_read_access(void **state) {
    (void)state;
    static const weft_access access = {.read = read_pattern};
    static const weft_access blind = {0};
    uint32_t data[16];
    for (uint32_t i = 0; i < 16; i++) {
        data[i] = i * 0x01010101u;
    }
    view_fixture fixture;
    open_fixture(&fixture);
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "a",
                          .dtype = WEFT_DTYPE_U32,
                          .rank = 1,
                          .shape = {16},
                          .access = &access,
                          .opaque = data};
    assert_int_equal(weft_table_add(fixture.table, &tensor), WEFT_OK);
    tensor.name = "b";
    tensor.opaque = NULL;
    assert_int_equal(weft_table_add(fixture.table, &tensor), WEFT_OK);
    tensor.name = "c";
    tensor.access = &blind;
    assert_int_equal(weft_table_add(fixture.table, &tensor), WEFT_OK);
    tensor.name = "d";
    tensor.access = NULL;
    assert_int_equal(weft_table_add(fixture.table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(fixture.context, fixture.table, &fixture.view), WEFT_OK);
    static const weft_status expected[] = {WEFT_OK, WEFT_CALLBACK_FAILED, WEFT_INVALID_ARGUMENT,
                                           WEFT_INVALID_ARGUMENT};
    for (size_t i = 0; i < 4; i++) {
        weft_holding holding;
        assert_int_equal(map(&fixture, i, (weft_span){4, 8, 0, 1}, 0, &holding), WEFT_OK);
        assert_null(weft_segment_memory(&fixture.segments.items[0]));
        uint32_t output[3] = {0};
        weft_status status = weft_segment_read(fixture.context, &fixture.segments.items[0], 2, 3, output);
        assert_int_equal(status, expected[i]);
        if (status == WEFT_OK) {
            assert_memory_equal(output, data + 6, sizeof output);
        } else {
            assert_non_null(
                strstr(weft_context_error(fixture.context), weft_view_at(fixture.view, i)->name));
        }
    }
    close_fixture(&fixture);
}

static weft_status view_everything(weft_context *context) {
    weft_table *table = NULL;
    weft_view *view = NULL;
    weft_segments segments = {.context = context};
    uint16_t data[64];
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "w",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 1,
                          .shape = {64},
                          .data = data};
    weft_status status = weft_table_create(context, &table);
    if (status == WEFT_OK) {
        status = weft_table_add(table, &tensor);
    }
    tensor.name = "the same memory";
    if (status == WEFT_OK) {
        status = weft_table_add(table, &tensor);
    }
    if (status == WEFT_OK) {
        status = weft_view_create(context, table, &view);
    }
    weft_span span = {0, 1, 2, 32};
    weft_holding holding;
    if (status == WEFT_OK) {
        status = weft_view_map(view, 0, &span, 0, &segments, &holding);
    }
    weft_segments_close(&segments);
    weft_view_destroy(view);
    weft_table_destroy(table);
    return status;
}

static void test_each_allocation_fails_once(void **state) {
    (void)state;
    faults injector = {0};
    weft_context_options options = {.size = sizeof options, .allocator = faults_allocator(&injector)};
    size_t count = 0;
    for (size_t n = 1;; n++) {
        weft_context *context;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        faults_reset(&injector, n);
        weft_status status = view_everything(context);
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
    assert_true(count >= 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_names_and_ties),
        cmocka_unit_test(test_view_survives_growth),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_spans_that_lie),
        cmocka_unit_test(test_read_masters),
        cmocka_unit_test(test_read_access),
        cmocka_unit_test(test_each_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
