/* SPDX-License-Identifier: Apache-2.0
 *
 * Foreign places by the public calls: what is written is read back to the same changes, whatever the
 * threads and however the base is held; changes that change nothing are left out; what cannot be said is
 * refused; the limit on memory holds; and every allocation may fail, of a read and of a write, without a
 * leak or a version left behind.
 *
 * Whether the bytes are those that others write is tested in tests/python/test_foreign_*.py.
 */
#include "faults.h"
#include "found.h"
#include "patches.h"
#include "scratch.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <weft/foreign.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const tensor_shape shapes[] = {{"b", WEFT_DTYPE_BF16, 300, 100},
                                      {"a", WEFT_DTYPE_F32, 50, 7},
                                      {"d", WEFT_DTYPE_I64, 9, 3},
                                      {"c", WEFT_DTYPE_U8, 13, 77}};
static const char *const schemes[] = {"slime", "skyrl", "arc2"};

static const char *place_of(scratch *scratch, const char *scheme, char place[600]) {
    snprintf(place, 600, "%s:%s/%s", scheme, scratch->directory, scheme);
    return place;
}

/* The changes as the state that they lead to. */
static void check_step(const pair *pair, const weft_foreign_step *step) {
    size_t count;
    const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
    assert_non_null(changes);
    uint64_t changed = 0, listed = 0;
    for (size_t i = 0; i < pair->count; i++) {
        const weft_tensor *tensor = weft_table_at(pair->live.table, i);
        unsigned width = weft_dtype_width(tensor->dtype);
        const weft_tensor_changes *list = NULL;
        for (size_t j = 0; j < count; j++) {
            list = strcmp(changes[j].tensor, tensor->name) == 0 ? &changes[j] : list;
        }
        uint64_t next = 0;
        for (uint64_t unit = 0; unit < tensor->bytes / width; unit++) {
            bool differs = memcmp(pair->memory[i] + unit * width, pair->news[i] + unit * width, width) != 0;
            changed += differs;
            if (differs) {
                assert_true(list != NULL && next < list->count && list->units[next] == unit);
                assert_memory_equal((const uint8_t *)list->values + next * width,
                                    pair->news[i] + unit * width, width);
                next++;
            }
        }
        listed += list != NULL ? list->count : 0;
    }
    assert_int_equal(changed, listed);
}

static weft_status write_and_read(weft_context *context, const char *place, const pair *pair,
                                  const found *found, weft_foreign_write_options options,
                                  weft_foreign_step **step_out) {
    weft_foreign_written written = {.size = sizeof written};
    weft_foreign *foreign = NULL;
    weft_status status =
        weft_foreign_write(context, place, &options, pair->live.view, found->lists, found->count, &written);
    status = status == WEFT_OK ? weft_foreign_open(context, place, NULL, &foreign) : status;
    if (status == WEFT_OK) {
        assert_true(written.bytes > 0);
        assert_int_equal(weft_foreign_count(foreign), 1);
        assert_int_equal(weft_foreign_at(foreign, 0)->version, options.version);
        assert_int_equal(weft_foreign_at(foreign, 0)->base, options.base);
        assert_ptr_equal(weft_foreign_after(foreign, options.base), weft_foreign_at(foreign, 0));
        assert_null(weft_foreign_after(foreign, options.version));
        status = weft_foreign_read(foreign, options.version, pair->live.view, step_out);
    }
    weft_foreign_close(foreign);
    return status;
}

static void test_round_trip(void **state) {
    (void)state;
    static const unsigned densities[] = {0, 30, 10000, 500000, 1000000};
    dice dice = {7};
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        for (size_t i = 0; i < COUNT(schemes) * COUNT(densities) * 2; i++) {
            const char *scheme = schemes[i % COUNT(schemes)];
            pair pair;
            found found = {0};
            scratch scratch;
            char place[600];
            weft_foreign_step *step = NULL;
            bool overwrite = strcmp(scheme, "slime") == 0 && i / (COUNT(schemes) * COUNT(densities)) == 1;
            const weft_foreign_write_options options = {.size = sizeof options,
                                                        .version = 7,
                                                        .base = 6,
                                                        .encoding = overwrite ? WEFT_FOREIGN_OVERWRITE
                                                                              : WEFT_FOREIGN_XOR};
            scratch_open_volatile(&scratch);
            pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, i);
            pair_change(&pair, CHANGE_MIXED, densities[i / COUNT(schemes) % COUNT(densities)], i);
            /* units among them that have not changed */
            found_between(&found, &dice, pair.live.view, pair.next.view, 3000);
            assert_int_equal(
                write_and_read(context, place_of(&scratch, scheme, place), &pair, &found, options, &step),
                WEFT_OK);
            check_step(&pair, step);
            weft_foreign_write_options told = {.size = sizeof told};
            weft_foreign_format format = WEFT_FOREIGN_ANY;
            assert_true(weft_foreign_labels(weft_foreign_step_labels(step), &format, &told));
            assert_string_equal(weft_foreign_format_name(format), scheme);
            assert_true(told.version == 7 && told.base == 6 && told.encoding == options.encoding);
            weft_foreign_step_destroy(step);
            found_clear(&found);
            pair_close(&pair);
            scratch_close(&scratch);
        }
        weft_context_destroy(context);
    }
}

static void test_places(void **state) {
    (void)state;
    const char *path = NULL;
    assert_int_equal(weft_foreign_place("slime:/a/b", &path), WEFT_FOREIGN_SLIME);
    assert_string_equal(path, "/a/b");
    assert_int_equal(weft_foreign_place("stitch:///a", &path), WEFT_FOREIGN_SLIME);
    assert_string_equal(path, "/a");
    assert_int_equal(weft_foreign_place("/a/slime:b", &path), WEFT_FOREIGN_ANY);
    assert_string_equal(path, "/a/slime:b");
    for (int format = 1; format <= WEFT_FOREIGN_GRAIL; format++) {
        char place[64];
        snprintf(place, sizeof place, "%s:x", weft_foreign_format_name((weft_foreign_format)format));
        assert_int_equal(weft_foreign_place(place, NULL), format);
    }
    assert_null(weft_foreign_format_name((weft_foreign_format)99));
    assert_false(
        weft_foreign_labels(NULL, &(weft_foreign_format){0}, &(weft_foreign_write_options){.size = 0}));
}

static void refused(weft_context *context, weft_status expected, weft_status status, const char *words) {
    assert_int_equal(status, expected);
    assert_non_null(strstr(weft_context_error(context), words));
}

static void test_refusals(void **state) {
    (void)state;
    dice dice = {9};
    weft_context *context = patches_context(2);
    pair pair;
    found found = {0};
    scratch scratch;
    char place[600];
    weft_foreign_step *step = NULL;
    weft_foreign *foreign = NULL;
    scratch_open_volatile(&scratch);
    pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, 1);
    pair_change(&pair, CHANGE_ULP, 10000, 1);
    found_between(&found, &dice, pair.live.view, pair.next.view, 0);
    weft_foreign_write_options options = {.size = sizeof options, .version = 1};
    place_of(&scratch, "slime", place);
    const weft_view *view = pair.live.view;
    refused(context, WEFT_UNSUPPORTED,
            weft_foreign_write(context, scratch.directory, &options, view, found.lists, found.count, NULL),
            "name the format");
    refused(context, WEFT_UNSUPPORTED,
            weft_foreign_write(context, "trl:/nowhere", &options, view, found.lists, found.count, NULL),
            "only read");
    options.base = 1;
    refused(context, WEFT_INVALID_ARGUMENT,
            weft_foreign_write(context, place, &options, view, found.lists, found.count, NULL),
            "before its base");
    options.base = 0;
    weft_tensor_changes twice[] = {found.lists[0], found.lists[0]};
    refused(context, WEFT_INVALID_ARGUMENT,
            weft_foreign_write(context, place, &options, view, twice, 2, NULL), "two entries");
    const uint64_t units[] = {5, 4};
    const weft_tensor_changes descending = {"a", units, pair.memory[1], 2};
    refused(context, WEFT_INVALID_ARGUMENT,
            weft_foreign_write(context, place, &options, view, &descending, 1, NULL), "do not ascend");
    const weft_tensor_changes stranger = {"zzz", units, pair.memory[1], 1};
    refused(context, WEFT_INVALID_ARGUMENT,
            weft_foreign_write(context, place, &options, view, &stranger, 1, NULL), "does not have");
    assert_int_equal(write_and_read(context, place, &pair, &found, options, &step), WEFT_OK);
    weft_foreign_step_destroy(step);
    refused(context, WEFT_CONFLICT,
            weft_foreign_write(context, place, &options, view, found.lists, found.count, NULL),
            "there already");
    assert_int_equal(weft_foreign_open(context, place, NULL, &foreign), WEFT_OK);
    refused(context, WEFT_NOT_FOUND, weft_foreign_read(foreign, 9, view, &step), "has no version 9");
    /* another base */
    refused(context, WEFT_CHECKSUM_MISMATCH, weft_foreign_read(foreign, 1, pair.next.view, &step),
            "was promised");
    weft_foreign_close(foreign);
    refused(context, WEFT_NOT_FOUND, weft_foreign_open(context, "slime:/no/such/place", NULL, &foreign),
            "nothing");
    found_clear(&found);
    pair_close(&pair);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* Changes that take more memory than they may. */
static void test_limit(void **state) {
    (void)state;
    dice dice = {4};
    weft_context *context = patches_context(2);
    const weft_limits limits = {.size = sizeof limits, .stage_bytes = 64 * 1024};
    const weft_context_options narrow = {.size = sizeof narrow, .threads = 2, .limits = &limits};
    weft_context *small = NULL;
    pair pair;
    found found = {0};
    scratch scratch;
    char place[600];
    weft_foreign_step *step = NULL;
    weft_foreign *foreign = NULL;
    assert_int_equal(weft_context_create(&narrow, &small), WEFT_OK);
    scratch_open_volatile(&scratch);
    pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, 1);
    pair_change(&pair, CHANGE_ULP, 500000, 1);
    found_between(&found, &dice, pair.live.view, pair.next.view, 0);
    const weft_foreign_write_options options = {.size = sizeof options, .version = 1};
    assert_int_equal(
        write_and_read(context, place_of(&scratch, "slime", place), &pair, &found, options, &step),
        WEFT_OK);
    weft_foreign_step_destroy(step);
    assert_int_equal(weft_foreign_open(small, place, NULL, &foreign), WEFT_OK);
    refused(small, WEFT_LIMIT_EXCEEDED, weft_foreign_read(foreign, 1, pair.live.view, &step),
            "stage_bytes");
    weft_foreign_close(foreign);
    found_clear(&found);
    pair_close(&pair);
    scratch_close(&scratch);
    weft_context_destroy(small);
    weft_context_destroy(context);
}

/* A base that a layout holds in another way than the checkpoint has it. */
static void test_layout(void **state) {
    (void)state;
    static const tensor_shape two[] = {{"a", WEFT_DTYPE_BF16, 32, 64}, {"b", WEFT_DTYPE_BF16, 16, 64}};
    dice dice = {6};
    weft_context *context = patches_context(2);
    pair pair;
    found found = {0};
    scratch scratch;
    char place[600];
    weft_foreign_step *step = NULL;
    weft_foreign *foreign = NULL;
    scratch_open_volatile(&scratch);
    pair_open(&pair, context, two, COUNT(two), WEIGHTS_TRAINED, 1);
    pair_change(&pair, CHANGE_ULP, 50000, 1);
    found_between(&found, &dice, pair.live.view, pair.next.view, 0);
    const weft_foreign_write_options options = {.size = sizeof options, .version = 1};
    assert_int_equal(
        write_and_read(context, place_of(&scratch, "slime", place), &pair, &found, options, &step),
        WEFT_OK);
    weft_foreign_step_destroy(step);
    /* one live tensor: both, one below the other */
    uint8_t *fused = malloc(48 * 64 * 2);
    memcpy(fused, pair.memory[0], 32 * 64 * 2);
    memcpy(fused + 32 * 64 * 2, pair.memory[1], 16 * 64 * 2);
    weft_table *table = NULL;
    weft_layout *layout = NULL;
    weft_view *view = NULL;
    const weft_slice slices[] = {{"a", -1, 0, 0}, {"b", -1, 0, 0}};
    const weft_tensor tensor = {.size = sizeof tensor,
                                .name = "ab",
                                .dtype = WEFT_DTYPE_BF16,
                                .rank = 2,
                                .shape = {48, 64},
                                .data = fused};
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_layout_create(context, &layout), WEFT_OK);
    assert_int_equal(weft_layout_concat(layout, "ab", 0, slices, 2), WEFT_OK);
    assert_int_equal(weft_view_create_layout(context, table, layout, pair.live.table, &view), WEFT_OK);
    assert_int_equal(weft_foreign_open(context, place, NULL, &foreign), WEFT_OK);
    assert_int_equal(weft_foreign_read(foreign, 1, view, &step), WEFT_OK);
    check_step(&pair, step);
    weft_foreign_step_destroy(step);
    weft_foreign_close(foreign);
    weft_view_destroy(view);
    weft_layout_destroy(layout);
    weft_table_destroy(table);
    free(fused);
    found_clear(&found);
    pair_close(&pair);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

static void test_no_memory(void **state) {
    (void)state;
    dice dice = {3};
    for (size_t scheme = 0; scheme < COUNT(schemes); scheme++) {
        bool fired = true;
        for (size_t n = test_stride_first(); fired; n += test_stride()) {
            faults faults = {0};
            const weft_context_options context_options = {
                .size = sizeof context_options, .allocator = faults_allocator(&faults), .threads = 2};
            weft_context *context;
            pair pair;
            found found = {0};
            scratch scratch;
            char place[600];
            weft_foreign_step *step = NULL;
            assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
            scratch_open_volatile(&scratch);
            pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, 2);
            pair_change(&pair, CHANGE_ULP, 2000, 4);
            found_between(&found, &dice, pair.live.view, pair.next.view, 100);
            const weft_foreign_write_options options = {.size = sizeof options, .version = 1};
            place_of(&scratch, schemes[scheme], place);
            faults_reset(&faults, n);
            weft_status status = write_and_read(context, place, &pair, &found, options, &step);
            fired = faults_fired(&faults);
            faults_reset(&faults, 0);
            assert_true(status == WEFT_OK || (fired && status == WEFT_NO_MEMORY));
            /* whole, or not there */
            weft_foreign *foreign = NULL;
            if (weft_foreign_open(context, place, NULL, &foreign) == WEFT_OK &&
                weft_foreign_count(foreign) > 0) {
                weft_foreign_step *again = NULL;
                assert_int_equal(weft_foreign_read(foreign, 1, pair.live.view, &again), WEFT_OK);
                check_step(&pair, again);
                weft_foreign_step_destroy(again);
            } else {
                assert_int_not_equal(status, WEFT_OK);
            }
            weft_foreign_close(foreign);
            weft_foreign_step_destroy(step);
            found_clear(&found);
            pair_close(&pair);
            scratch_close(&scratch);
            weft_context_destroy(context);
            assert_int_equal(faults_live_blocks(&faults), 0);
        }
    }
}

enum { SWOLLEN = 40 * 1024 };

/* A safetensors file of 40 KiB in a frame of zstd of a few bytes: a block as it is, and one of a byte that
 * repeats. */
static void write_swollen(const char *directory, const char *name) {
    char text[256], path[700];
    int length = snprintf(text, sizeof text,
                          "{\"__metadata__\":{\"%s\":\"1\"},\"%s\":{\"dtype\":\"U8\",\"shape\":[%d],"
                          "\"data_offsets\":[0,%d]}}",
                          name, name, SWOLLEN, SWOLLEN);
    uint32_t plain = (uint32_t)(length + 8) << 3, repeated = (uint32_t)SWOLLEN << 3 | 1u << 1 | 1u;
    uint64_t size = (uint64_t)length;
    const uint8_t head[] = {0x28, 0xb5, 0x2f, 0xfd, 0, 0x50};
    const uint8_t zero = 0;
    snprintf(path, sizeof path, "%s/%s.safetensors", directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    size_t written = fwrite(head, 1, sizeof head, file) + fwrite(&plain, 1, 3, file) +
                     fwrite(&size, 1, sizeof size, file) + fwrite(text, 1, size, file) +
                     fwrite(&repeated, 1, 3, file) + fwrite(&zero, 1, 1, file);
    assert_int_equal(written, sizeof head + 3 + sizeof size + size + 3 + 1);
    assert_int_equal(fclose(file), 0);
}

/* What frames of zstd swell to counts together, not file by file. */
static void test_swollen(void **state) {
    (void)state;
    const weft_limits limits = {.size = sizeof limits, .stage_bytes = 64 * 1024};
    const weft_context_options narrow = {.size = sizeof narrow, .threads = 1, .limits = &limits};
    weft_context *context = NULL;
    pair pair;
    scratch scratch;
    char root[600], place[620];
    weft_foreign_step *step = NULL;
    weft_foreign *foreign = NULL;
    assert_int_equal(weft_context_create(&narrow, &context), WEFT_OK);
    scratch_open_volatile(&scratch);
    pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, 1);
    snprintf(root, sizeof root, "%s/v1", scratch.directory);
    snprintf(place, sizeof place, "arc2:%s", scratch.directory);
    assert_int_equal(mkdir(root, 0777), 0);
    write_swollen(root, "a");
    assert_int_equal(weft_foreign_open(context, place, NULL, &foreign), WEFT_OK);
    refused(context, WEFT_BASE_MISMATCH, weft_foreign_read(foreign, 1, pair.live.view, &step),
            "1 tensors and the base 4");
    write_swollen(root, "b");
    refused(context, WEFT_LIMIT_EXCEEDED, weft_foreign_read(foreign, 1, pair.live.view, &step),
            "it holds more than");
    weft_foreign_close(foreign);
    pair_close(&pair);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_places), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limit),      cmocka_unit_test(test_layout), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_swollen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
