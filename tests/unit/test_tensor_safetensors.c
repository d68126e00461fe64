/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tensor_safetensors.c: headers and indexes as texts in memory: what is understood, in which order,
 * every way to be malformed with its status and message, what is made, and memory that runs out, in our
 * allocator and in jansson's.
 */
#include "../../lib/base/context.h"
#include "../../lib/tensor/checkpoint/index.h"
#include "../../lib/tensor/checkpoint/safetensors.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char WHERE[] = "x.safetensors";

static weft_context *open_context(const weft_limits *limits) {
    weft_context_options options = {.size = sizeof options, .threads = 1, .limits = limits};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

/* All checks that a file of this header and so much data passes on its way in. */
static weft_status check_file(weft_context *context, const char *json, size_t json_bytes, uint64_t length,
                              uint64_t file_bytes, weft_table *table) {
    uint8_t prefix[WEFT_SAFETENSORS_PREFIX];
    for (unsigned i = 0; i < sizeof prefix; i++) {
        prefix[i] = (uint8_t)(length >> (8 * i));
    }
    size_t header_bytes = 0;
    weft_status status = weft_safetensors_length(context, WHERE, prefix, file_bytes, &header_bytes);
    if (status != WEFT_OK) {
        return status;
    }
    assert_int_equal(header_bytes, json_bytes);
    weft_safetensors header;
    status = weft_safetensors_parse(context, WHERE, json, json_bytes, &header);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_safetensors_fit(context, WHERE, header_bytes, header.data_bytes, file_bytes);
    if (status == WEFT_OK && table != NULL) {
        status = weft_safetensors_list(&header, WHERE, false, table);
    }
    weft_safetensors_close(&header);
    return status;
}

static void expect(weft_context *context, const char *json, size_t json_bytes, uint64_t data_bytes,
                   weft_status status, const char *text) {
    weft_context_clear(context);
    weft_status got = check_file(context, json, json_bytes, json_bytes,
                                 WEFT_SAFETENSORS_PREFIX + json_bytes + data_bytes, NULL);
    const char *error = weft_context_error(context);
    if (got != status || strstr(error, text) == NULL ||
        (status != WEFT_OK && strstr(error, WHERE) == NULL)) {
        fail_msg("%.200s: status %d, not %d; \"%s\" instead of \"%s\"", json, got, status, error, text);
    }
}

/* ---- what is understood ---- */

#define ENTRY(dtype, shape, begin, end)                                                                    \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void test_well_formed(void **state) {
    (void)state;
    static const struct {
        const char *json;
        uint64_t data_bytes;
    } cases[] = {
        {"{}", 0},
        {"{}      ", 0},
        {"{} \n\t", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{\"__metadata__\":{\"format\":\"pt\",\"\":\"\"},\"a\":" ENTRY("F32", "[]", 0, 4) "}", 4},
        {"{\"a\":" ENTRY("BF16", "[0]", 0, 0) "}", 0},
        {"{\"a\":" ENTRY("F4", "[3,2]", 0, 3) ",\"b\":" ENTRY("F6_E2M3", "[4]", 3, 6) "}", 6},
        {"{\"a\":" ENTRY("C64", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", 0, 16) "}", 16},
        {"{\"\":" ENTRY("U8", "[1]", 0, 1) "}", 1},
        {"{\"\\u00e4\\ud83d\\ude00\":" ENTRY("U8", "[1]", 0, 1) "}", 1},
        {"{\"a\":{\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"BOOL\"}}", 1},
    };
    weft_context *context = open_context(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect(context, cases[i].json, strlen(cases[i].json), cases[i].data_bytes, WEFT_OK, "");
    }
    weft_context_destroy(context);
}

/* Order of the data, whatever the order of the JSON; empty tensors before what begins at their place, in
 * the order of the JSON. */
static void test_order(void **state) {
    (void)state;
    static const char json[] = "{\"last\":" ENTRY("U8", "[2]", 6, 8) ",\"z\":" ENTRY("U8", "[0]", 4, 4) //
        ",\"middle\":" ENTRY("U8", "[2]", 4, 6) ",\"a\":" ENTRY("F32", "[0,7]", 4, 4)                   //
        ",\"first\":" ENTRY("F32", "[]", 0, 4) ",\"end\":" ENTRY("U8", "[0]", 8, 8) "}";
    static const char *const names[] = {"first", "z", "a", "middle", "last", "end"};
    weft_context *context = open_context(NULL);
    weft_table *table = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    size_t size = sizeof json - 1;
    assert_int_equal(check_file(context, json, size, size, 8 + size + 8, table), WEFT_OK);
    assert_int_equal(weft_table_count(table), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(weft_table_at(table, i)->name, names[i]);
    }
    const weft_tensor *a = weft_table_at(table, 2);
    assert_int_equal(a->dtype, WEFT_DTYPE_F32);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 0);
    assert_int_equal(a->shape[1], 7);
    assert_int_equal(weft_table_at(table, 0)->rank, 0);
    weft_table_destroy(table);
    weft_context_destroy(context);
}

/* ---- what is refused ---- */

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *json;
        uint64_t data_bytes;
        weft_status status;
        const char *text;
    } cases[] = {
        {"", 0, WEFT_MALFORMED, "'{'"},
        {" {}", 0, WEFT_MALFORMED, "'{'"},
        {"[]", 0, WEFT_MALFORMED, "'{'"},
        {"null", 0, WEFT_MALFORMED, "'{'"},
        {"{", 0, WEFT_MALFORMED, "bad JSON"},
        {"{}x", 0, WEFT_MALFORMED, "bad JSON"},
        {"{}{}", 0, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\"", 0, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 1) ",}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 1) ",\"a\":" ENTRY("U8", "[1]", 1, 2) "}", 2, WEFT_MALFORMED,
         "duplicate"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         WEFT_MALFORMED, "duplicate"},
        {"{\"a\\u0000b\":" ENTRY("U8", "[1]", 0, 1) "}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\xff\":" ENTRY("U8", "[1]", 0, 1) "}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\xed\xa0\x80\":" ENTRY("U8", "[1]", 0, 1) "}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\\ud800\":" ENTRY("U8", "[1]", 0, 1) "}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\":[[[1]]]}", 0, WEFT_MALFORMED, "nested deeper"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, WEFT_MALFORMED,
         "nested deeper"},
        /* metadata */
        {"{\"__metadata__\":[]}", 0, WEFT_MALFORMED, "not an object"},
        {"{\"__metadata__\":\"x\"}", 0, WEFT_MALFORMED, "not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, WEFT_MALFORMED, "__metadata__ \"k\""},
        {"{\"__metadata__\":{\"k\":{}}}", 0, WEFT_MALFORMED, "__metadata__ \"k\""},
        {"{\"__metadata__\":{\"k\":null}}", 0, WEFT_MALFORMED, "__metadata__ \"k\""},
        /* entries */
        {"{\"a\":1}", 0, WEFT_MALFORMED, "\"a\": it is not described"},
        {"{\"a\":[]}", 0, WEFT_MALFORMED, "\"a\": it is not described"},
        {"{\"a\":{}}", 0, WEFT_MALFORMED, "\"a\": it is not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, WEFT_MALFORMED, "\"a\": it is not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":0}}", 1, WEFT_MALFORMED,
         "\"a\": it is not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"offsets\":[0,1]}}", 1, WEFT_MALFORMED,
         "\"a\": it is not described"},
        {"{\"a\":" ENTRY("F3", "[1]", 0, 1) "}", 1, WEFT_UNSUPPORTED, "unknown dtype \"F3\""},
        {"{\"a\":" ENTRY("bf16", "[1]", 0, 2) "}", 2, WEFT_UNSUPPORTED, "unknown dtype"},
        {"{\"a\":{\"dtype\":2,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, WEFT_MALFORMED,
         "dtype is not a text"},
        {"{\"a\":" ENTRY("U8", "1", 0, 1) "}", 1, WEFT_MALFORMED, "shape is not an array"},
        {"{\"a\":" ENTRY("U8", "[1.0]", 0, 1) "}", 1, WEFT_MALFORMED, "whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1e0]", 0, 1) "}", 1, WEFT_MALFORMED, "whole numbers"},
        {"{\"a\":" ENTRY("U8", "[-1]", 0, 1) "}", 1, WEFT_MALFORMED, "whole numbers"},
        {"{\"a\":" ENTRY("U8", "[\"1\"]", 0, 1) "}", 1, WEFT_MALFORMED, "whole numbers"},
        {"{\"a\":" ENTRY("U8", "[true]", 0, 1) "}", 1, WEFT_MALFORMED, "whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, WEFT_UNSUPPORTED,
         "17 dimensions"},
        {"{\"a\":" ENTRY("U8", "[9223372036854775808]", 0, 1) "}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\":" ENTRY("U8", "[9223372036854775807]", 0, 9223372036854775807) "}", 1, WEFT_MALFORMED,
         "too large"},
        {"{\"a\":" ENTRY("U8", "[4294967296,4294967296]", 0, 0) "}", 0, WEFT_MALFORMED, "too large"},
        {"{\"a\":" ENTRY("U8", "[4294967296,4294967296,0]", 0, 0) "}", 0, WEFT_MALFORMED, "too large"},
        {"{\"a\":" ENTRY("F64", "[2305843009213693953]", 0, 8) "}", 8, WEFT_MALFORMED, "too large"},
        {"{\"a\":" ENTRY("F4", "[3]", 0, 2) "}", 2, WEFT_MALFORMED, "whole bytes"},
        {"{\"a\":" ENTRY("F6_E3M2", "[2]", 0, 2) "}", 2, WEFT_MALFORMED, "whole bytes"},
        /* offsets */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, WEFT_MALFORMED,
         "two whole numbers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, WEFT_MALFORMED,
         "two whole numbers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}}}", 1, WEFT_MALFORMED,
         "two whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 1.0) "}", 1, WEFT_MALFORMED, "two whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1]", -1, 0) "}", 1, WEFT_MALFORMED, "two whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 18446744073709551616) "}", 1, WEFT_MALFORMED, "bad JSON"},
        {"{\"a\":" ENTRY("U8", "[1]", 1, 0) "}", 1, WEFT_MALFORMED, "ends before it begins"},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 1) "}", 1, WEFT_MALFORMED,
         "need 2 bytes, its data_offsets give 1"},
        {"{\"a\":" ENTRY("BF16", "[2]", 0, 2) "}", 2, WEFT_MALFORMED, "need 4 bytes"},
        {"{\"a\":" ENTRY("U8", "[0]", 0, 1) "}", 1, WEFT_MALFORMED, "need 0 bytes"},
        {"{\"a\":" ENTRY("U8", "[]", 0, 0) "}", 0, WEFT_MALFORMED, "need 1 bytes"},
        /* coverage */
        {"{\"a\":" ENTRY("U8", "[1]", 1, 2) "}", 2, WEFT_MALFORMED, "\"a\" begins at byte 1"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 1) ",\"b\":" ENTRY("U8", "[1]", 2, 3) "}", 3, WEFT_MALFORMED,
         "a hole"},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 2) ",\"b\":" ENTRY("U8", "[2]", 1, 3) "}", 3, WEFT_MALFORMED,
         "overlap"},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 2) ",\"b\":" ENTRY("U8", "[2]", 0, 2) "}", 2, WEFT_MALFORMED,
         "overlap"},
        {"{\"a\":" ENTRY("U8", "[4]", 0, 4) ",\"b\":" ENTRY("U8", "[0]", 2, 2) "}", 4, WEFT_MALFORMED,
         "overlap"},
        {"{\"a\":" ENTRY("U8", "[0]", 1, 1) "}", 1, WEFT_MALFORMED, "a hole"},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 2) "}", 1, WEFT_TRUNCATED, "take 2 bytes but only 1"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 1) "}", 2, WEFT_MALFORMED, "1 bytes behind the last tensor"},
        {"{}", 1, WEFT_MALFORMED, "1 bytes behind"},
        {"{\"a\":" ENTRY("U8", "[1152921504606846975]", 0, 1152921504606846975) "}", 9, WEFT_TRUNCATED,
         "cut short"},
    };
    weft_context *context = open_context(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect(context, cases[i].json, strlen(cases[i].json), cases[i].data_bytes, cases[i].status,
               cases[i].text);
    }
    /* bytes that a C text cannot hold */
    expect(context, "{\"a\0\":{}}", 9, 0, WEFT_MALFORMED, "bad JSON");
    expect(context, "{}\0", 3, 0, WEFT_MALFORMED, "bad JSON");
    weft_context_destroy(context);
}

static void test_lengths(void **state) {
    (void)state;
    weft_limits limits = {.size = sizeof limits, .header_bytes = 16};
    weft_context *context = open_context(&limits);
    assert_int_equal(check_file(context, "{}", 2, 2, 10, NULL), WEFT_OK);
    assert_int_equal(check_file(context, "{}", 2, 2, 9, NULL), WEFT_TRUNCATED);
    assert_int_equal(check_file(context, "{}", 2, 2, 7, NULL), WEFT_TRUNCATED);
    assert_int_equal(check_file(context, "{}", 2, UINT64_MAX, 10, NULL), WEFT_TRUNCATED);
    assert_int_equal(check_file(context, "{}", 2, UINT64_MAX - 7, 10, NULL), WEFT_TRUNCATED);
    assert_int_equal(check_file(context, "{}              ", 16, 16, 24, NULL), WEFT_OK);
    assert_int_equal(check_file(context, "{}               ", 17, 17, 25, NULL), WEFT_LIMIT_EXCEEDED);
    assert_non_null(strstr(weft_context_error(context), "limits.header_bytes"));
    assert_int_equal(check_file(context, "", 0, (uint64_t)1 << 40, (uint64_t)1 << 41, NULL),
                     WEFT_LIMIT_EXCEEDED);
    weft_context_destroy(context);
}

static char *repeat(const char *piece, size_t count, size_t *size_out) {
    size_t length = strlen(piece);
    char *text = malloc(count * length + 2);
    assert_non_null(text);
    text[0] = '{';
    for (size_t i = 0; i < count; i++) {
        memcpy(text + 1 + i * length, piece, length);
    }
    *size_out = count * length + 1;
    return text;
}

static void test_limits(void **state) {
    (void)state;
    weft_limits limits = {.size = sizeof limits, .tensors = 2};
    weft_context *context = open_context(&limits);
    static const char two[] =
        "{\"__metadata__\":{},\"a\":" ENTRY("U8", "[1]", 0, 1) ",\"b\":" ENTRY("U8", "[1]", 1, 2) "}";
    static const char three[] = "{\"a\":" ENTRY("U8", "[1]", 0, 1) ",\"b\":" ENTRY(
        "U8", "[1]", 1, 2) ",\"c\":" ENTRY("U8", "[1]", 2, 3) "}";
    expect(context, two, sizeof two - 1, 2, WEFT_OK, "");
    expect(context, three, sizeof three - 1, 3, WEFT_LIMIT_EXCEEDED, "");
    weft_context_destroy(context);

    context = open_context(NULL);
    size_t size = 0;
    /* a stack that recursed once for each would not survive */
    static const char *const deep[] = {"[", "{\"a\":", "[{\"a\":"};
    for (size_t i = 0; i < 3; i++) {
        char *text = repeat(deep[i], 1 << 20, &size);
        expect(context, text, size, 0, WEFT_MALFORMED, "nested deeper than 3 levels");
        free(text);
    }
    /* brackets in strings are no nesting, escaped quotes do not end strings */
    static const char quoted[] = "{\"__metadata__\":{\"k\":\"[[[[[{{{{\\\"[[[[[\\\\\"}}";
    expect(context, quoted, sizeof quoted - 1, 0, WEFT_OK, "");
    static const char hidden[] = "{\"__metadata__\":{\"k\":\"\\\\\"},\"a\":[[[[]]]]}";
    expect(context, hidden, sizeof hidden - 1, 0, WEFT_MALFORMED, "nested deeper");

    char *text = malloc(WEFT_NAME_MAX + 100);
    assert_non_null(text);
    for (unsigned over = 0; over < 2; over++) {
        char name[WEFT_NAME_MAX + 2];
        memset(name, 'n', sizeof name);
        name[WEFT_NAME_MAX + over] = '\0';
        int length = sprintf(text, "{\"%s\":" ENTRY("U8", "[1]", 0, 1) "}", name);
        expect(context, text, (size_t)length, 1, over == 0 ? WEFT_OK : WEFT_LIMIT_EXCEEDED,
               over == 0 ? "" : "longer than 4096 bytes");
    }
    free(text);
    weft_context_destroy(context);
}

/* Every cut and every flipped bit of a good header ends in a status, never in a crash; the sanitizers
 * watch. */
static void test_mutations(void **state) {
    (void)state;
    static const char json[] = "{\"__metadata__\":{\"k\":\"v\"},\"a\":" ENTRY("BF16", "[2,3]", 0, 12) //
        ",\"b\":" ENTRY("U8", "[0]", 12, 12) "}";
    size_t size = sizeof json - 1;
    weft_context *context = open_context(NULL);
    for (size_t cut = 0; cut < size; cut++) {
        char *text = malloc(cut + 1);
        assert_non_null(text);
        memcpy(text, json, cut);
        assert_int_not_equal(check_file(context, text, cut, cut, 8 + cut + 12, NULL), WEFT_OK);
        free(text);
    }
    char text[sizeof json];
    size_t refused = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        memcpy(text, json, sizeof json);
        text[bit / 8] ^= (char)(1 << (bit % 8));
        refused += check_file(context, text, size, size, 8 + size + 12, NULL) != WEFT_OK ? 1 : 0;
    }
    /* what survives are other names, other texts, and dtypes of the same size */
    assert_true(refused > 8 * size / 2);
    weft_context_destroy(context);
}

/* ---- indexes ---- */

static void test_index(void **state) {
    (void)state;
    static const struct {
        const char *json;
        weft_status status;
        const char *text;
    } cases[] = {
        {"{\"weight_map\":{}}", WEFT_OK, ""},
        {"{\"metadata\":{\"total_size\":1.5e3,\"x\":[[1]]},\"weight_map\":{\"a\":\"b.safetensors\"}}\n",
         WEFT_OK, ""},
        {"{}", WEFT_MALFORMED, "weight_map"},
        {"[]", WEFT_MALFORMED, "'{'"},
        {"{\"weight_map\":[]}", WEFT_MALFORMED, "weight_map"},
        {"{\"weight_map\":{\"a\":1}}", WEFT_MALFORMED, "\"a\""},
        {"{\"weight_map\":{\"a\":\"b.safetensors\",\"a\":\"b.safetensors\"}}", WEFT_MALFORMED, "duplicate"},
        {"{\"weight_map\":{\"a\":\"\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"../b.safetensors\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"/b.safetensors\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"c/b.safetensors\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\".b.safetensors\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"b.bin\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\".weft-journal\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"weight_map\":{\"a\":\"b\\n.safetensors\"}}", WEFT_MALFORMED, "plain name"},
        {"{\"metadata\":[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]],\"weight_map\":{}}", WEFT_MALFORMED,
         "nested"},
    };
    weft_context *context = open_context(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_context_clear(context);
        weft_index index;
        weft_status status = weft_index_parse(context, "i", cases[i].json, strlen(cases[i].json), &index);
        if (status != cases[i].status || strstr(weft_context_error(context), cases[i].text) == NULL) {
            fail_msg("%s: status %d, \"%s\"", cases[i].json, status, weft_context_error(context));
        }
        if (status == WEFT_OK) {
            weft_index_close(&index);
        }
    }
    static const char three[] = "{\"weight_map\":{\"a\":\"c.safetensors\",\"b\":\"a.safetensors\",\"c\":"
                                "\"c.safetensors\",\"d\":\"B.safetensors\"}}";
    weft_index index;
    assert_int_equal(weft_index_parse(context, "i", three, sizeof three - 1, &index), WEFT_OK);
    assert_int_equal(index.file_count, 3);
    assert_string_equal(index.files[0], "B.safetensors");
    assert_string_equal(index.files[1], "a.safetensors");
    assert_string_equal(index.files[2], "c.safetensors");
    weft_index_close(&index);
    weft_context_destroy(context);
}

/* ---- what is made ---- */

static const weft_tensor made[] = {
    {.size = sizeof(weft_tensor),
     .name = "w",
     .dtype = WEFT_DTYPE_BF16,
     .rank = 2,
     .shape = {2, 3},
     .bytes = 12},
    {.size = sizeof(weft_tensor),
     .name = "scalar \"\\\n\xc3\xa4",
     .dtype = WEFT_DTYPE_F32,
     .rank = 0,
     .bytes = 4},
    {.size = sizeof(weft_tensor),
     .name = "empty",
     .dtype = WEFT_DTYPE_U8,
     .rank = 1,
     .shape = {0},
     .bytes = 0},
};
static const weft_tensor *const made_list[] = {&made[0], &made[1], &made[2]};

static void test_build(void **state) {
    (void)state;
    static const char expected[] = "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\\\"\"},\"w\":" ENTRY(
        "BF16", "[2,3]", 0,
        12) ",\"scalar \\\"\\\\\\n\xc3\xa4\":" ENTRY("F32", "[]", 12, 16) ",\"empty\":" ENTRY("U8", "[0]",
                                                                                              16, 16) "}";
    static const char *const metadata[] = {"format", "pt", "a", "\"", NULL};
    weft_context *context = open_context(NULL);
    char *json = NULL;
    size_t size = 0;
    assert_int_equal(weft_safetensors_build(context, made_list, 3, metadata, &json, &size), WEFT_OK);
    assert_int_equal(size % 8, 0);
    assert_true(size >= sizeof expected - 1 && size < sizeof expected + 7);
    assert_memory_equal(json, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < size; i++) {
        assert_int_equal(json[i], ' ');
    }
    expect(context, json, size, 16, WEFT_OK, "");
    weft_release(context, json);

    assert_int_equal(weft_safetensors_build(context, NULL, 0, NULL, &json, &size), WEFT_OK);
    assert_int_equal(size, 8);
    assert_memory_equal(json, "{}      ", 8);
    weft_release(context, json);

    static const char *const odd[] = {"key", NULL};
    static const char *const twice[] = {"k", "1", "k", "2", NULL};
    static const char *const not_utf8[] = {"k", "\xff", NULL};
    assert_int_equal(weft_safetensors_build(context, NULL, 0, odd, &json, &size), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_safetensors_build(context, NULL, 0, twice, &json, &size), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_safetensors_build(context, NULL, 0, not_utf8, &json, &size),
                     WEFT_INVALID_ARGUMENT);
    const weft_tensor reserved = {
        .size = sizeof reserved, .name = "__metadata__", .dtype = WEFT_DTYPE_U8, .rank = 1, .bytes = 0};
    const weft_tensor *const list[] = {&reserved};
    assert_int_equal(weft_safetensors_build(context, list, 1, NULL, &json, &size), WEFT_INVALID_ARGUMENT);
    weft_context_destroy(context);
}

static void test_build_index(void **state) {
    (void)state;
    static const char *const files[] = {"1.safetensors", "1.safetensors", "2.safetensors"};
    weft_context *context = open_context(NULL);
    char *json = NULL;
    size_t size = 0;
    assert_int_equal(weft_index_build(context, made_list, 3, files, &json, &size), WEFT_OK);
    static const char expected[] = "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"w\":\"1."
                                   "safetensors\",\"scalar \\\"\\\\\\n\xc3\xa4\":"
                                   "\"1.safetensors\",\"empty\":\"2.safetensors\"}}\n";
    assert_int_equal(size, sizeof expected - 1);
    assert_memory_equal(json, expected, size);
    weft_release(context, json);
    weft_context_destroy(context);
}

/* ---- memory ---- */

/* One counter for the context's allocator and jansson's, which is global to the process. */
static faults both;

static void *jansson_allocate(size_t size) {
    weft_allocator allocator = faults_allocator(&both);
    return allocator.allocate(allocator.opaque, size);
}

static void jansson_release(void *memory) {
    weft_allocator allocator = faults_allocator(&both);
    if (memory != NULL) {
        allocator.release(allocator.opaque, memory);
    }
}

static weft_status use_everything(void) {
    static const char *const metadata[] = {"format", "pt", NULL};
    static const char *const files[] = {"1.safetensors", "1.safetensors", "2.safetensors"};
    weft_context_options options = {
        .size = sizeof options, .threads = 1, .allocator = faults_allocator(&both)};
    weft_context *context = NULL;
    weft_status status = weft_context_create(&options, &context);
    if (status != WEFT_OK) {
        return status;
    }
    weft_table *table = NULL;
    char *json = NULL;
    char *index_json = NULL;
    size_t size = 0;
    size_t index_size = 0;
    status = weft_table_create(context, &table);
    if (status == WEFT_OK) {
        status = weft_safetensors_build(context, made_list, 3, metadata, &json, &size);
    }
    if (status == WEFT_OK) {
        status = check_file(context, json, size, size, 8 + size + 16, table);
    }
    if (status == WEFT_OK) {
        status = weft_index_build(context, made_list, 3, files, &index_json, &index_size);
    }
    weft_index index;
    if (status == WEFT_OK) {
        status = weft_index_parse(context, "i", index_json, index_size, &index);
    }
    if (status == WEFT_OK) {
        weft_index_close(&index);
    }
    assert_true(status == WEFT_OK || weft_context_error(context)[0] != '\0');
    weft_release(context, json);
    weft_release(context, index_json);
    weft_table_destroy(table);
    weft_context_destroy(context);
    return status;
}

static void fail_each(bool jansson_too) {
    for (size_t n = 1;; n++) {
        faults_reset(&both, n);
        weft_status status = use_everything();
        assert_int_equal(faults_live_blocks(&both), 0);
        if (!faults_fired(&both)) {
            assert_int_equal(status, WEFT_OK);
            assert_true(n > (jansson_too ? 50 : 10));
            break;
        }
        /* of jansson's own failures, some come as wrong syntax, or not at all: see json.h */
        assert_true(jansson_too || status == WEFT_NO_MEMORY);
    }
}

static void test_every_allocation_failed(void **state) {
    (void)state;
    fail_each(false);
    json_set_alloc_funcs(jansson_allocate, jansson_release);
    fail_each(true);
    json_set_alloc_funcs(malloc, free);
}

/* A hostile header takes a bounded multiple of its size. */
static void test_memory_is_bounded(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    json_set_alloc_funcs(jansson_allocate, jansson_release);
    weft_limits limits = {.size = sizeof limits, .tensors = 64};
    weft_context *context = open_context(&limits);
    char *text = malloc(COUNT * 16);
    assert_non_null(text);
    for (unsigned kind = 0; kind < 2; kind++) {
        size_t size = (size_t)sprintf(text, "%s", kind == 0 ? "{\"a\":[0" : "{\"__metadata__\":{\"\":\"\"");
        for (unsigned i = 0; i < COUNT; i++) {
            size +=
                (size_t)(kind == 0 ? sprintf(text + size, ",0") : sprintf(text + size, ",\"%x\":\"\"", i));
        }
        size += (size_t)sprintf(text + size, "%s", kind == 0 ? "]}" : "}}");
        faults_reset(&both, 0);
        expect(context, text, size, 0, kind == 0 ? WEFT_MALFORMED : WEFT_OK, "");
        assert_true(faults_peak_bytes(&both) > COUNT);
        assert_true(faults_peak_bytes(&both) < 40 * size);
    }
    free(text);
    /* without a limit on containers this one would take hundreds of megabytes */
    size_t size = 0;
    text = repeat("\"a\":{},", 1 << 20, &size);
    faults_reset(&both, 0);
    expect(context, text, size, 0, WEFT_LIMIT_EXCEEDED, "objects and arrays");
    assert_int_equal(faults_peak_bytes(&both), 0);
    free(text);
    weft_context_destroy(context);
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_well_formed),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_build),
        cmocka_unit_test(test_build_index),
        cmocka_unit_test(test_every_allocation_failed),
        cmocka_unit_test(test_memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
