/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_bytes.c: readers at every truncation, varints of every length and wrong form, failure that
 * sticks, and writers that run out of memory at each step.
 */
#include "../../lib/base/bytes.h"
#include "../../lib/base/context.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static weft_context *open_context(faults *faults) {
    weft_context_options options = {.size = sizeof options, .threads = 1};
    if (faults != NULL) {
        options.allocator = faults_allocator(faults);
    }
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

/* One record of every kind of field. */
static void write_record(weft_writer *writer) {
    weft_writer_u8(writer, 0x12);
    weft_writer_u16(writer, 0x3456);
    weft_writer_u32(writer, 0x789abcdeu);
    weft_writer_u64(writer, 0xf0123456789abcdeu);
    weft_writer_varint(writer, 300);
    weft_writer_bytes(writer, "weft", 4);
    weft_writer_varint(writer, UINT64_MAX);
}

static void test_fields_are_little_endian(void **state) {
    (void)state;
    static const uint8_t expected[] = {
        0x12, 0x56, 0x34, 0xde, 0xbc, 0x9a, 0x78, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0xf0, 0xac,
        0x02, 'w',  'e',  'f',  't',  0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
    };
    weft_context *context = open_context(NULL);
    weft_writer writer;
    weft_writer_open(&writer, context);
    write_record(&writer);
    assert_false(weft_writer_failed(&writer));
    assert_int_equal(writer.size, sizeof expected);
    assert_memory_equal(writer.data, expected, sizeof expected);

    weft_reader reader = weft_reader_over(writer.data, writer.size);
    assert_int_equal(weft_reader_u8(&reader), 0x12);
    assert_int_equal(weft_reader_u16(&reader), 0x3456);
    assert_int_equal(weft_reader_u32(&reader), 0x789abcdeu);
    assert_true(weft_reader_u64(&reader) == 0xf0123456789abcdeu);
    assert_int_equal(weft_reader_varint(&reader), 300);
    assert_memory_equal(weft_reader_bytes(&reader, 4), "weft", 4);
    assert_true(weft_reader_varint(&reader) == UINT64_MAX);
    assert_int_equal(weft_reader_left(&reader), 0);
    assert_false(weft_reader_failed(&reader));
    weft_writer_close(&writer);
    weft_context_destroy(context);
}

/* Reads the record from a block of exactly `size` bytes, so that a sanitizer sees any read past it. */
static bool read_record(const uint8_t *data, size_t size) {
    uint8_t *block = malloc(size > 0 ? size : 1);
    assert_non_null(block);
    memcpy(block, data, size);
    weft_reader reader = weft_reader_over(block, size);
    weft_reader_u8(&reader);
    weft_reader_u16(&reader);
    weft_reader_u32(&reader);
    weft_reader_u64(&reader);
    weft_reader_varint(&reader);
    const uint8_t *name = weft_reader_bytes(&reader, 4);
    uint64_t last = weft_reader_varint(&reader);
    bool complete = !weft_reader_failed(&reader);
    if (complete) {
        assert_memory_equal(name, "weft", 4);
        assert_true(last == UINT64_MAX);
    } else {
        assert_int_equal(last, 0);
    }
    free(block);
    return complete;
}

static void test_every_truncation_fails(void **state) {
    (void)state;
    weft_context *context = open_context(NULL);
    weft_writer writer;
    weft_writer_open(&writer, context);
    write_record(&writer);
    for (size_t size = 0; size < writer.size; size++) {
        assert_false(read_record(writer.data, size));
    }
    assert_true(read_record(writer.data, writer.size));
    weft_writer_close(&writer);
    weft_context_destroy(context);
}

static void test_failure_sticks(void **state) {
    (void)state;
    static const uint8_t data[] = {1, 2, 3};
    weft_reader reader = weft_reader_over(data, sizeof data);
    assert_int_equal(weft_reader_u32(&reader), 0);
    assert_true(weft_reader_failed(&reader));
    /* Three bytes were left, and are not given out any more. */
    assert_int_equal(weft_reader_left(&reader), 0);
    assert_int_equal(weft_reader_u8(&reader), 0);
    assert_int_equal(weft_reader_u16(&reader), 0);
    assert_int_equal(weft_reader_u32(&reader), 0);
    assert_int_equal(weft_reader_u64(&reader), 0);
    assert_int_equal(weft_reader_varint(&reader), 0);
    assert_null(weft_reader_bytes(&reader, 0));
    assert_true(weft_reader_failed(&reader));
}

static void test_lengths_near_the_top_fail(void **state) {
    (void)state;
    static const uint8_t data[8] = {0};
    static const size_t lengths[] = {9, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 7, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        weft_reader reader = weft_reader_over(data, sizeof data);
        assert_null(weft_reader_bytes(&reader, lengths[i]));
        assert_true(weft_reader_failed(&reader));
    }
}

static void test_nothing_reads_as_nothing(void **state) {
    (void)state;
    weft_reader reader = weft_reader_over(NULL, 0);
    assert_int_equal(weft_reader_left(&reader), 0);
    assert_non_null(weft_reader_bytes(&reader, 0));
    assert_false(weft_reader_failed(&reader));
    weft_reader_u8(&reader);
    assert_true(weft_reader_failed(&reader));
}

static void check_varint(weft_context *context, uint64_t value, size_t length) {
    weft_writer writer;
    weft_writer_open(&writer, context);
    weft_writer_varint(&writer, value);
    assert_int_equal(writer.size, length);
    weft_reader reader = weft_reader_over(writer.data, writer.size);
    assert_true(weft_reader_varint(&reader) == value);
    assert_false(weft_reader_failed(&reader));
    assert_int_equal(weft_reader_left(&reader), 0);
    for (size_t size = 0; size < length; size++) {
        weft_reader cut = weft_reader_over(writer.data, size);
        assert_int_equal(weft_reader_varint(&cut), 0);
        assert_true(weft_reader_failed(&cut));
    }
    weft_writer_close(&writer);
}

static void test_varints_of_every_length(void **state) {
    (void)state;
    weft_context *context = open_context(NULL);
    check_varint(context, 0, 1);
    for (unsigned bits = 1; bits <= 64; bits++) {
        uint64_t lowest = (uint64_t)1 << (bits - 1);
        uint64_t highest = lowest | (lowest - 1);
        check_varint(context, lowest, (bits + 6) / 7);
        check_varint(context, highest, (bits + 6) / 7);
    }
    weft_context_destroy(context);
}

static void refuse_varint(const uint8_t *data, size_t size) {
    weft_reader reader = weft_reader_over(data, size);
    assert_int_equal(weft_reader_varint(&reader), 0);
    assert_true(weft_reader_failed(&reader));
}

static void test_overlong_varints_fail(void **state) {
    (void)state;
    /* A value in `length - 1` significant bytes, then a zero byte that adds nothing. */
    for (size_t length = 2; length <= 10; length++) {
        uint8_t data[10];
        memset(data, 0x81, sizeof data);
        data[length - 1] = 0;
        refuse_varint(data, length);
        /* The same with zero as the value. */
        memset(data, 0x80, length - 1);
        refuse_varint(data, length);
    }
}

static void test_varints_beyond_64_bits_fail(void **state) {
    (void)state;
    for (unsigned top = 2; top < 256; top++) {
        uint8_t data[12];
        memset(data, 0xff, sizeof data);
        data[9] = (uint8_t)top;
        data[11] = 0;
        refuse_varint(data, sizeof data);
    }
    uint8_t endless[64];
    memset(endless, 0xff, sizeof endless);
    refuse_varint(endless, sizeof endless);
}

static void test_writer_grows_and_keeps(void **state) {
    (void)state;
    faults faults = {0};
    weft_context *context = open_context(&faults);
    weft_writer writer;
    weft_writer_open(&writer, context);
    for (uint32_t i = 0; i < 100000; i++) {
        weft_writer_u32(&writer, i * 2654435761u);
    }
    assert_false(weft_writer_failed(&writer));
    weft_reader reader = weft_reader_over(writer.data, writer.size);
    for (uint32_t i = 0; i < 100000; i++) {
        assert_int_equal(weft_reader_u32(&reader), i * 2654435761u);
    }
    assert_int_equal(weft_reader_left(&reader), 0);
    /* Growth is geometric: some twenty calls for four hundred thousand bytes. */
    assert_true(faults_calls(&faults) < 30);
    weft_writer_close(&writer);
    assert_int_equal(writer.size, 0);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

static void test_reserve(void **state) {
    (void)state;
    weft_context *context = open_context(NULL);
    weft_writer writer;
    weft_writer_open(&writer, context);
    assert_non_null(weft_writer_reserve(&writer, 0));
    weft_writer_bytes(&writer, NULL, 0);
    assert_int_equal(writer.size, 0);
    uint8_t *room = weft_writer_reserve(&writer, 5000);
    assert_non_null(room);
    memset(room, 7, 5000);
    writer.size += 3;
    weft_writer_u8(&writer, 9);
    assert_int_equal(writer.size, 4);
    assert_memory_equal(writer.data, "\7\7\7\11", 4);
    /* More than there is in the world: refused without asking for it, and it sticks. */
    assert_null(weft_writer_reserve(&writer, SIZE_MAX));
    assert_true(weft_writer_failed(&writer));
    assert_null(weft_writer_reserve(&writer, 1));
    weft_writer_u8(&writer, 1);
    assert_int_equal(writer.size, 4);
    assert_string_not_equal(weft_context_error(context), "");
    weft_writer_close(&writer);
    weft_context_destroy(context);
}

static void test_writer_without_memory(void **state) {
    (void)state;
    faults faults = {0};
    bool fired = true;
    size_t rounds = 0;
    while (fired) {
        faults_reset(&faults, 0);
        weft_context *context = open_context(&faults);
        faults_reset(&faults, rounds + 1);
        weft_writer writer;
        weft_writer_open(&writer, context);
        for (unsigned i = 0; i < 200; i++) {
            write_record(&writer);
        }
        fired = faults_fired(&faults);
        assert_int_equal(weft_writer_failed(&writer), fired);
        assert_int_equal(weft_context_error(context)[0] != '\0', fired);
        weft_writer_close(&writer);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        rounds += 1;
    }
    assert_true(rounds > 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_are_little_endian), cmocka_unit_test(test_every_truncation_fails),
        cmocka_unit_test(test_failure_sticks),           cmocka_unit_test(test_lengths_near_the_top_fail),
        cmocka_unit_test(test_nothing_reads_as_nothing), cmocka_unit_test(test_varints_of_every_length),
        cmocka_unit_test(test_overlong_varints_fail),    cmocka_unit_test(test_varints_beyond_64_bits_fail),
        cmocka_unit_test(test_writer_grows_and_keeps),   cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_writer_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
