/* SPDX-License-Identifier: Apache-2.0
 *
 * The coding `smallest`: a chain of patches, each coded with what changed in those before, comes out bit
 * for bit, with the same bytes whatever the threads; who recalls something else, or nothing, is told so;
 * and where the same weights change again and again, it takes fewer bytes than `small`.
 */
#include "../../lib/patch/diff/diff.h"
#include "../../lib/patch/format/patch.h"
#include "patches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12, SMALL_BUCKET = 32 * 1024, MOVING = 97 };

static const tensor_shape shapes[] = {
    {"a", WEFT_DTYPE_BF16, 300, 128}, {"b", WEFT_DTYPE_F16, 90, 64}, {"c", WEFT_DTYPE_F32, 40, 30}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* One unit in MOVING goes on in its direction, three times of four; others are changed now and then. */
static void move(pair *pair, unsigned step) {
    dice dice = {step + 1};
    for (size_t t = 0; t < 2; t++) {
        uint16_t *units = (uint16_t *)pair->news[t];
        for (size_t i = t; i < shape_units(&shapes[t]); i += MOVING) {
            if (dice_below(&dice, 4) > 0) {
                units[i] = (uint16_t)(units[i] + (i % 2 == 0 ? 1 : -1));
            }
        }
    }
    weights_change(&dice, CHANGE_MIXED, 2, pair->news[0], shape_units(&shapes[0]), 500);
    weights_change(&dice, CHANGE_MIXED, 4, pair->news[2], shape_units(&shapes[2]), 500);
}

static weft_status apply(pair *pair, weft_context *context, const bytes *file, weft_recall *recall) {
    weft_patch *patch = patches_open(context, file);
    weft_sums *sums = patches_sums(context, pair->live.view);
    weft_apply *apply;
    patch->recall = recall;
    patch->noted = recall != NULL;
    weft_status status = weft_apply_create(context, patch, pair->live.view, sums, &apply);
    assert_int_equal(status, WEFT_OK);
    status = weft_apply_prepare(apply);
    if (status == WEFT_OK) {
        status = weft_apply_commit(apply);
    }
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    weft_patch_close(patch);
    return status;
}

/* The chain; `files` are its patches. */
static void run(unsigned threads, bytes *files) {
    weft_context *context = patches_context(threads);
    weft_recall *writer, *reader, *empty;
    pair pair;
    size_t small = 0, smallest = 0;
    assert_int_equal(weft_recall_create(context, &writer), WEFT_OK);
    assert_int_equal(weft_recall_create(context, &reader), WEFT_OK);
    assert_int_equal(weft_recall_create(context, &empty), WEFT_OK);
    pair_open(&pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 3);
    for (unsigned i = 0; i < STEPS; i++) {
        weft_diff_options options = {
            .size = sizeof options, .profile = WEFT_PROFILE_SMALL, .bucket_bytes = SMALL_BUCKET};
        weft_sink sink = bytes_sink(&files[i]);
        weft_diff_stats stats = {.size = sizeof stats};
        move(&pair, i);
        pair_diff(&pair, &options);
        small += i > 1 ? pair.file.size : 0;
        options.profile = WEFT_PROFILE_SMALLEST;
        assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, &options, &sink, &stats),
                         WEFT_INVALID_ARGUMENT);
        unsigned depth = weft_recall_depth(writer);
        weft_recall_begin(writer);
        assert_int_equal(weft_diff_recalling(context, pair.live.view, pair.next.view, &options, writer,
                                             depth, &sink, &stats),
                         WEFT_OK);
        smallest += i > 1 ? files[i].size : 0;
        if (i > 0) {
            assert_int_equal(apply(&pair, context, &files[i], NULL), WEFT_UNSUPPORTED);
            weft_recall_begin(empty);
            assert_int_equal(apply(&pair, context, &files[i], empty), WEFT_UNSUPPORTED);
        }
        weft_recall_begin(reader);
        assert_int_equal(apply(&pair, context, &files[i], reader), WEFT_OK);
        assert_true(pair_at_new(&pair));
        weft_recall_commit(writer);
        weft_recall_commit(reader);
        /* back and on again, as a follower that rolls back */
        weft_recall_rollback(writer);
        assert_int_equal(weft_recall_depth(writer), depth);
        weft_recall_begin(writer);
        for (size_t t = 0; t < SHAPES; t++) {
            memcpy(pair.memory[t], pair.olds[t], shape_units(&shapes[t]) * (t == 2 ? 4 : 2));
        }
        bytes again = {0};
        weft_sink second = bytes_sink(&again);
        assert_int_equal(weft_diff_recalling(context, pair.live.view, pair.next.view, &options, writer,
                                             depth, &second, &stats),
                         WEFT_OK);
        assert_int_equal(again.size, files[i].size);
        assert_memory_equal(again.data, files[i].data, again.size);
        bytes_clear(&again);
        weft_recall_commit(writer);
        for (size_t t = 0; t < SHAPES; t++) {
            memcpy(pair.memory[t], pair.news[t], shape_units(&shapes[t]) * (t == 2 ? 4 : 2));
            memcpy(pair.olds[t], pair.news[t], shape_units(&shapes[t]) * (t == 2 ? 4 : 2));
        }
    }
    assert_true(smallest < small * 9 / 10);
    pair_close(&pair);
    weft_recall_destroy(writer);
    weft_recall_destroy(reader);
    weft_recall_destroy(empty);
    weft_context_destroy(context);
}

static void test_a_chain(void **state) {
    (void)state;
    bytes one[STEPS] = {{0}}, three[STEPS] = {{0}};
    run(1, one);
    run(3, three);
    for (unsigned i = 0; i < STEPS; i++) {
        assert_int_equal(one[i].size, three[i].size);
        assert_memory_equal(one[i].data, three[i].data, one[i].size);
        bytes_clear(&one[i]);
        bytes_clear(&three[i]);
    }
}

/* ---- memory ---- */

static size_t measure(const weft_recall *recall, weft_context *context) {
    const weft_recall_mark mark = {0};
    weft_writer writer;
    weft_writer_open(&writer, context);
    assert_int_equal(weft_recall_write(recall, &mark, &writer), WEFT_OK);
    size_t size = writer.size;
    weft_writer_close(&writer);
    return size;
}

/* Where each version brings other buckets, what is recalled of those before them goes. */
static void test_buckets_come_and_go(void **state) {
    (void)state;
    enum { BUCKETS = 100, VERSIONS = 64, CHANGES = 3 };
    static const uint32_t positions[CHANGES] = {1, 5, 9};
    static const uint16_t olds[CHANGES] = {1, 2, 3}, news[CHANGES] = {2, 1, 4};
    weft_context *context = patches_context(1);
    weft_recall *recall;
    assert_int_equal(weft_recall_create(context, &recall), WEFT_OK);
    for (uint64_t v = 0; v < VERSIONS; v++) {
        weft_recall_begin(recall);
        for (uint64_t b = 0; b < BUCKETS; b++) {
            assert_int_equal(
                weft_recall_note(recall, v * BUCKETS + b, positions, olds, news, CHANGES, false), WEFT_OK);
        }
        weft_recall_commit(recall);
        assert_true(measure(recall, context) < (size_t)BUCKETS * VERSIONS * (16 + 5 * CHANGES) / 3);
        weft_recent recent;
        weft_recent_open(&recent, context);
        for (uint64_t back = 0; back <= v; back++) {
            assert_int_equal(weft_recent_list(&recent, recall, (v - back) * BUCKETS, 64, WEFT_RECALL_STEPS),
                             WEFT_OK);
            assert_int_equal(recent.count, back < WEFT_RECALL_STEPS ? CHANGES : 0);
        }
        weft_recent_close(&recent);
    }
    weft_recall_destroy(recall);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_chain),
                                       cmocka_unit_test(test_buckets_come_and_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
