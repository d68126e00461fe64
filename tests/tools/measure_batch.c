/* SPDX-License-Identifier: Apache-2.0
 *
 * measure_batch.c: what an apply moves through weft_batch_access, and what that costs against plain memory.
 * The device is host memory that works at the end of a batch; both ways change the same weights in turn.
 * Prints, for 64M BF16 parameters, a row for each profile and density: bytes through the callbacks per
 * changed unit, batches, and milliseconds (fastest of 15 rounds, in turn).
 *
 *   measure_batch [THREADS]
 */
#include "deferred.h"
#include "patches.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TENSORS = 8, ROUNDS = 15 };

static const tensor_shape shapes[TENSORS] = {
    {"a", WEFT_DTYPE_BF16, 2048, 4096}, {"b", WEFT_DTYPE_BF16, 2048, 4096},
    {"c", WEFT_DTYPE_BF16, 2048, 4096}, {"d", WEFT_DTYPE_BF16, 2048, 4096},
    {"e", WEFT_DTYPE_BF16, 2048, 4096}, {"f", WEFT_DTYPE_BF16, 2048, 4096},
    {"g", WEFT_DTYPE_BF16, 2048, 4096}, {"h", WEFT_DTYPE_BF16, 2048, 4096},
};

static void require(weft_status status, weft_context *context) {
    if (status != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_context_error(context));
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* One of the two ways, and the fastest seen of it. */
typedef struct way {
    weft_view *view;
    weft_sums *sums;
    double prepare, commit;
} way;

static void way_open(way *way, weft_context *context, const weft_table *table) {
    *way = (struct way){.prepare = 1e9, .commit = 1e9};
    require(weft_view_create(context, table, &way->view), context);
    way->sums = patches_sums(context, way->view);
}

static void way_close(way *way) {
    weft_sums_destroy(way->sums);
    weft_view_destroy(way->view);
}

/* Brings the weights to the new state and back. */
static void way_go(way *way, const pair *pair, deferred *device, uint64_t *moved) {
    weft_context *context = pair->context;
    weft_apply *apply = NULL;
    require(weft_apply_create(context, pair->patch, way->view, way->sums, &apply), context);
    deferred_reset(device);
    double start = now();
    require(weft_apply_prepare(apply), context);
    double prepared = now();
    moved[0] = device->calls[DEFERRED_BEGIN];
    moved[1] = device->read_bytes;
    moved[2] = device->gathered_bytes;
    moved[3] = device->index_bytes;
    deferred_reset(device);
    double before = now();
    require(weft_apply_commit(apply), context);
    double committed = now();
    moved[4] = device->calls[DEFERRED_BEGIN];
    moved[5] = device->scattered_bytes + device->index_bytes;
    if (!pair_at_new(pair)) {
        fprintf(stderr, "the weights are wrong\n");
        exit(1);
    }
    require(weft_apply_rollback(apply), context);
    weft_apply_destroy(apply);
    way->prepare = prepared - start < way->prepare ? prepared - start : way->prepare;
    way->commit = committed - before < way->commit ? committed - before : way->commit;
}

/* Small weights change more often, as in training: a chance goes with the step between neighbours. */
static double chance_of(uint16_t weight) {
    int exponent = weight >> 7 & 0xff;
    return exponent <= 110 ? 1.0 : 1.0 / (double)(1u << (exponent - 110 < 20 ? exponent - 110 : 20));
}

static void change_as_trained(pair *pair, unsigned per_million) {
    dice dice = {2};
    double total = 0;
    size_t units = shape_units(&shapes[0]);
    for (size_t i = 0; i < units; i++) {
        total += chance_of(((const uint16_t *)(const void *)pair->olds[0])[i]);
    }
    double scale = per_million * 1e-6 * (double)units / total * 0x1p32;
    for (size_t t = 0; t < TENSORS; t++) {
        const uint16_t *weights = (const uint16_t *)(const void *)pair->olds[t];
        for (size_t i = 0; i < units; i++) {
            if ((double)(dice_next(&dice) >> 32) < scale * chance_of(weights[i])) {
                weights_change_one(&dice, CHANGE_ULP, 2, pair->news[t], i);
            }
        }
    }
}

static void measure_row(weft_context *context, weft_profile profile, unsigned per_million) {
    pair pair;
    pair_open(&pair, context, shapes, TENSORS, WEIGHTS_TRAINED, 1);
    change_as_trained(&pair, per_million);
    weft_diff_options options = {.size = sizeof options, .profile = profile};
    pair_diff(&pair, &options);
    deferred device;
    deferred_open(&device);
    device.trusting = true;
    deferred_tensor tensors[TENSORS];
    weft_batch_access batch = deferred_batch(&device);
    weft_table *table = NULL;
    require(weft_table_create(context, &table), context);
    for (size_t i = 0; i < TENSORS; i++) {
        weft_tensor tensor = *weft_table_at(pair.live.table, i);
        tensors[i] = (deferred_tensor){&device, tensor.data, (size_t)tensor.bytes, 2};
        tensor.access = &deferred_access;
        tensor.opaque = &tensors[i];
        require(weft_table_add(table, &tensor), context);
    }
    require(weft_table_set_batch_access(table, &batch), context);
    uint64_t moved[6];
    way plain;
    way batched;
    way_open(&plain, context, pair.live.table);
    way_open(&batched, context, table);
    for (int i = 0; i < ROUNDS; i++) {
        way_go(&plain, &pair, &device, moved);
        way_go(&batched, &pair, &device, moved);
    }
    double changed = (double)pair.stats.changed;
    printf("%-5s %5.1f%%  prepare: %llu batches, per change %7.1f read %5.1f gathered %5.1f index"
           "  commit: %llu batches, %4.1f per change\n",
           profile == WEFT_PROFILE_FAST ? "fast" : "small", per_million / 1e4, (unsigned long long)moved[0],
           (double)moved[1] / changed, (double)moved[2] / changed, (double)moved[3] / changed,
           (unsigned long long)moved[4], (double)moved[5] / changed);
    printf("              prepare %.2f ms, plain %.2f   commit %.2f ms, plain %.2f   together x %.2f\n",
           batched.prepare * 1e3, plain.prepare * 1e3, batched.commit * 1e3, plain.commit * 1e3,
           (batched.prepare + batched.commit) / (plain.prepare + plain.commit));
    way_close(&plain);
    way_close(&batched);
    weft_table_destroy(table);
    deferred_close(&device);
    pair_close(&pair);
}

int main(int count, char **arguments) {
    weft_context *context = patches_context(count > 1 ? (unsigned)atoi(arguments[1]) : 2);
    measure_row(context, WEFT_PROFILE_FAST, 1000);
    measure_row(context, WEFT_PROFILE_FAST, 10000);
    measure_row(context, WEFT_PROFILE_SMALL, 1000);
    measure_row(context, WEFT_PROFILE_SMALL, 10000);
    weft_context_destroy(context);
    return 0;
}
