/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes layouts: any bytes as JSON, seen against a small fixed model. If a view results, its promises
 * are checked: every segment lies within both tensors, segments ascend, and what it holds can be summed.
 */
#include "../../lib/tensor/view.h"

#include <stdlib.h>
#include <string.h>

typedef struct description {
    const char *name;
    weft_dtype dtype;
    uint32_t rank;
    uint64_t shape[3];
} description;

static const description checkpoint_tensors[] = {
    {"q", WEFT_DTYPE_BF16, 2, {8, 8, 0}},  {"k", WEFT_DTYPE_BF16, 2, {4, 8, 0}},
    {"v", WEFT_DTYPE_BF16, 2, {4, 8, 0}},  {"o", WEFT_DTYPE_BF16, 2, {8, 16, 0}},
    {"e0", WEFT_DTYPE_F16, 2, {4, 16, 0}}, {"e1", WEFT_DTYPE_F16, 2, {4, 16, 0}},
    {"n", WEFT_DTYPE_F4, 2, {4, 64, 0}},   {"s", WEFT_DTYPE_F32, 0, {0, 0, 0}},
};

static const description live_tensors[] = {
    {"qkv", WEFT_DTYPE_BF16, 2, {16, 8, 0}},
    {"out", WEFT_DTYPE_BF16, 2, {8, 8, 0}},
    {"experts", WEFT_DTYPE_F16, 3, {2, 4, 8}},
    {"n", WEFT_DTYPE_F4, 2, {4, 32, 0}},
};

static uint8_t memory[4096];

/* A harness that cannot set up its own model is of no use; the library itself never aborts. */
static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static weft_table *make_table(weft_context *context, const description *tensors, size_t count) {
    weft_table *table;
    require(weft_table_create(context, &table) == WEFT_OK);
    for (size_t i = 0; i < count; i++) {
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = tensors[i].name,
                              .dtype = tensors[i].dtype,
                              .rank = tensors[i].rank,
                              .data = memory};
        memcpy(tensor.shape, tensors[i].shape, sizeof tensors[i].shape);
        require(weft_table_add(table, &tensor) == WEFT_OK);
    }
    return table;
}

static void check_tensor(weft_context *context, const weft_view *view, size_t index) {
    const weft_tensor *tensor = weft_view_at(view, index);
    weft_span span = {.run = weft_tensor_units(tensor), .count = 1};
    weft_segments segments = {.context = context};
    weft_holding holding;
    require(weft_view_map(view, index, &span, 0, &segments, &holding) == WEFT_OK);
    uint64_t held = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < segments.count; i++) {
        const weft_segment *segment = &segments.items[i];
        require(segment->units > 0 && segment->unit >= end && segment->linear == segment->unit);
        require(segment->live_unit + segment->units <= weft_tensor_units(segment->live));
        require(segment->live->dtype == tensor->dtype);
        end = segment->unit + segment->units;
        held += segment->units;
    }
    require(end <= span.run);
    require((holding == WEFT_HELD_ALL) == (held == span.run));
    weft_segments_close(&segments);
}

static void check_view(weft_context *context, const weft_view *view) {
    for (size_t i = 0; i < weft_view_count(view); i++) {
        check_tensor(context, view, i);
    }
    weft_sums *sums;
    require(weft_sums_compute(context, view, &sums) == WEFT_OK);
    weft_sums_destroy(sums);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context_options options = {.size = sizeof options,
                                    .threads = 1,
                                    .limits =
                                        &(weft_limits){.size = sizeof(weft_limits), .header_bytes = 65536}};
    weft_context *context;
    require(weft_context_create(&options, &context) == WEFT_OK);
    weft_layout *layout;
    if (weft_layout_parse(context, (const char *)data, size, &layout) == WEFT_OK) {
        weft_table *checkpoint = make_table(context, checkpoint_tensors,
                                            sizeof checkpoint_tensors / sizeof checkpoint_tensors[0]);
        weft_table *live = make_table(context, live_tensors, sizeof live_tensors / sizeof live_tensors[0]);
        weft_view *view;
        if (weft_view_create_layout(context, live, layout, checkpoint, &view) == WEFT_OK) {
            check_view(context, view);
            weft_view_destroy(view);
        }
        weft_table_destroy(live);
        weft_table_destroy(checkpoint);
        weft_layout_destroy(layout);
    }
    weft_context_destroy(context);
    return 0;
}
