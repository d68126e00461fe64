/* SPDX-License-Identifier: Apache-2.0
 *
 * program.c: a stranger's program. It sees only what `make install` put in place, and brings one set of
 * weights in memory to another by a patch.
 */
#include <weft/weft.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 10000 };

typedef struct buffer {
    unsigned char bytes[1 << 16];
    size_t size;
} buffer;

static weft_status append(void *opaque, const void *data, size_t size) {
    buffer *buffer = opaque;
    if (size > sizeof buffer->bytes - buffer->size) {
        return WEFT_NO_SPACE;
    }
    memcpy(buffer->bytes + buffer->size, data, size);
    buffer->size += size;
    return WEFT_OK;
}

static void require(weft_context *context, weft_status status) {
    if (status != WEFT_OK) {
        fprintf(stderr, "%s: %s\n", weft_status_name(status),
                context != NULL ? weft_context_error(context) : "");
        exit(EXIT_FAILURE);
    }
}

static weft_table *describe(weft_context *context, uint16_t *weights) {
    weft_table *table = NULL;
    require(context, weft_table_create(context, &table));
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "weight",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 2,
                          .shape = {100, COUNT / 100}};
    tensor.data = weights;
    tensor.writable = true;
    require(context, weft_table_add(table, &tensor));
    return table;
}

static void apply(weft_context *context, const buffer *bytes, const weft_view *view) {
    weft_source source = {.memory = bytes->bytes, .size = bytes->size};
    weft_patch *patch = NULL;
    weft_sums *sums = NULL;
    weft_apply *transaction = NULL;
    require(context, weft_patch_open(context, &source, &patch));
    require(context, weft_sums_compute(context, view, &sums));
    require(context, weft_apply_create(context, patch, view, sums, &transaction));
    require(context, weft_apply_prepare(transaction));
    require(context, weft_apply_commit(transaction));
    weft_apply_destroy(transaction);
    weft_sums_destroy(sums);
    weft_patch_close(patch);
}

int main(void) {
    static uint16_t old_weights[COUNT];
    static uint16_t new_weights[COUNT];
    static float masters[COUNT];
    static buffer patch;
    for (int i = 0; i < COUNT; i++) {
        masters[i] = (float)(i + 1) / 777.0f;
    }
    weft_bf16_from_f32(masters, old_weights, COUNT);
    memcpy(new_weights, old_weights, sizeof new_weights);
    for (int i = 5; i < COUNT; i += 97) {
        new_weights[i] += 1;
    }

    weft_context *context = NULL;
    require(NULL, weft_context_create(NULL, &context));
    weft_table *old_table = describe(context, old_weights);
    weft_table *new_table = describe(context, new_weights);
    weft_view *old_view = NULL;
    weft_view *new_view = NULL;
    require(context, weft_view_create(context, old_table, &old_view));
    require(context, weft_view_create(context, new_table, &new_view));
    weft_sink sink = {append, &patch};
    weft_diff_stats stats = {.size = sizeof stats};
    require(context, weft_diff(context, old_view, new_view, NULL, &sink, &stats));
    apply(context, &patch, old_view);
    bool equal = memcmp(old_weights, new_weights, sizeof new_weights) == 0;
    printf("%llu changes in %zu bytes on %s: %s\n", (unsigned long long)stats.changed, patch.size,
           weft_cpu_name(), equal ? "equal" : "different");
    weft_view_destroy(new_view);
    weft_view_destroy(old_view);
    weft_table_destroy(new_table);
    weft_table_destroy(old_table);
    weft_context_destroy(context);
    return equal && stats.changed == 104 ? EXIT_SUCCESS : EXIT_FAILURE;
}
