/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tensor_checkpoint.c: checkpoints as files: written, opened, rebuilt byte for byte, changed in place;
 * single, sharded and over 4 GiB; and everything that can be wrong with files, directories, disks and
 * memory, with nothing left behind.
 */
#include "../../lib/base/context.h"
#include "../../lib/base/cpu.h"
#include "../../lib/tensor/checkpoint/checkpoint.h"
#include "faults.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- fixtures ---- */

static scratch place;
static weft_context *context;

static int set_up(void **state) {
    (void)state;
    scratch_open(&place);
    weft_context_options options = {.size = sizeof options, .threads = 2};
    return weft_context_create(&options, &context) == WEFT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    weft_context_destroy(context);
    scratch_close(&place);
    return 0;
}

static const char *path_of(const char *name) {
    return scratch_path(&place, name);
}

static void expect_status(weft_status got, weft_status wanted, const char *text) {
    if (got != wanted || strstr(weft_context_error(context), text) == NULL) {
        fail_msg("status %d, not %d: \"%s\" should say \"%s\"", got, wanted, weft_context_error(context),
                 text);
    }
}

static void expect_open_fails(const char *name, weft_status wanted, const char *text) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_open(context, path_of(name), WEFT_OPEN_READ, &checkpoint);
    assert_null(checkpoint);
    expect_status(status, wanted, text);
}

static weft_checkpoint *open_checkpoint(const char *name, weft_open_mode mode) {
    weft_checkpoint *checkpoint = NULL;
    expect_status(weft_checkpoint_open(context, path_of(name), mode, &checkpoint), WEFT_OK, "");
    return checkpoint;
}

static weft_table *new_table(void) {
    weft_table *table = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    return table;
}

static void add_bytes(weft_table *table, const char *name, void *data, uint64_t size) {
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = name,
                          .dtype = WEFT_DTYPE_U8,
                          .rank = 1,
                          .shape = {size},
                          .data = data};
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
}

static uint8_t sample[1 << 16];

static void fill_sample(void) {
    uint32_t value = 12345;
    for (size_t i = 0; i < sizeof sample; i++) {
        value = value * 1664525u + 1013904223u;
        sample[i] = (uint8_t)(value >> 24);
    }
}

/* A table of every dtype, 0-d, empty and odd sizes, so that later tensors are misaligned in the file. */
static weft_table *varied_table(void) {
    fill_sample();
    weft_table *table = new_table();
    for (int dtype = WEFT_DTYPE_BOOL; dtype <= WEFT_DTYPE_C64; dtype++) {
        static const struct {
            const char *suffix;
            uint32_t rank;
            uint64_t shape[3];
        } kinds[] = {
            {"odd", 3, {3, 1, 4}}, {"empty", 2, {5, 0}}, {"large", 2, {4, 1000}}, {"scalar", 0, {0}}};
        for (size_t i = 0; i < 4; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s", weft_dtype_name((weft_dtype)dtype), kinds[i].suffix);
            weft_tensor tensor = {
                .size = sizeof tensor, .name = name, .dtype = (weft_dtype)dtype, .rank = kinds[i].rank};
            memcpy(tensor.shape, kinds[i].shape, sizeof kinds[i].shape);
            tensor.data = sample + 17 * dtype + i;
            if (kinds[i].rank > 0 || weft_dtype_bits(tensor.dtype) >= 8) {
                assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
            }
        }
    }
    return table;
}

static void assert_same_tensors(const weft_table *expected, const weft_table *got) {
    assert_int_equal(weft_table_sorted_count(expected), weft_table_count(got));
    assert_true(weft_table_bytes(expected) == weft_table_bytes(got));
    for (size_t i = 0; i < weft_table_count(got); i++) {
        const weft_tensor *b = weft_table_at(got, i);
        int64_t index = weft_table_find(expected, b->name);
        assert_true(index >= 0);
        const weft_tensor *a = weft_table_at(expected, (size_t)index);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(b->storage, b->dtype);
        assert_int_equal(a->rank, b->rank);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        assert_true(a->bytes == b->bytes);
        if (a->bytes == 0) {
            assert_null(b->data);
        } else {
            assert_memory_equal(a->data, b->data, a->bytes);
        }
    }
}

static void assert_same_files(const char *a, const char *b) {
    size_t a_size = 0;
    size_t b_size = 0;
    void *a_data = scratch_read(&place, a, &a_size);
    void *b_data = scratch_read(&place, b, &b_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a_data, b_data, a_size);
    free(a_data);
    free(b_data);
}

/* Copies a checkpoint by its container and tensors alone. */
static weft_status copy_checkpoint(const char *from, const char *to, bool durable) {
    weft_checkpoint *source = open_checkpoint(from, WEFT_OPEN_READ);
    weft_checkpoint *target = NULL;
    weft_status status =
        weft_checkpoint_create(context, path_of(to), weft_checkpoint_container(source), &target);
    if (status == WEFT_OK) {
        const weft_table *a = weft_checkpoint_table(source);
        const weft_table *b = weft_checkpoint_table(target);
        assert_int_equal(weft_table_count(a), weft_table_count(b));
        for (size_t i = 0; i < weft_table_count(a); i++) {
            assert_string_equal(weft_table_at(a, i)->name, weft_table_at(b, i)->name);
            assert_true(weft_table_at(b, i)->writable);
            if (weft_table_at(a, i)->bytes > 0) {
                memcpy(weft_table_at(b, i)->data, weft_table_at(a, i)->data, weft_table_at(a, i)->bytes);
            }
        }
        status = weft_checkpoint_finish(target, durable);
    }
    weft_checkpoint_close(source);
    return status;
}

/* A small file from its text. */
static void write_safetensors(const char *name, const char *json, size_t data_bytes) {
    uint8_t file[4096] = {0};
    size_t length = strlen(json);
    assert_true(8 + length + data_bytes <= sizeof file);
    file[0] = (uint8_t)length;
    file[1] = (uint8_t)(length >> 8);
    memcpy(file + 8, json, length);
    memset(file + 8 + length, 'd', data_bytes);
    scratch_write(&place, name, file, 8 + length + data_bytes);
}

static void write_text(const char *name, const char *text) {
    scratch_write(&place, name, text, strlen(text));
}

#define BYTE_AT(name, begin, end)                                                                          \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" #begin "," #end "]}"

/* Directory `name` with the tensors a and b in two shards. */
static void write_two_shards(const char *name) {
    char path[128];
    scratch_make_directory(&place, name);
    snprintf(path, sizeof path, "%s/1.safetensors", name);
    write_safetensors(path, "{" BYTE_AT("a", 0, 1) "}", 1);
    snprintf(path, sizeof path, "%s/2.safetensors", name);
    write_safetensors(path, "{" BYTE_AT("b", 0, 1) "}", 1);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", name);
    write_text(path, "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}");
}

/* ---- round trips ---- */

static void test_single(void **state) {
    (void)state;
    weft_table *table = varied_table();
    assert_int_equal(weft_table_tie(table, "tied", "BF16.large"), WEFT_OK);
    static const char *const metadata[] = {"format", "pt", "note", "\xc3\xa4\n", NULL};
    const weft_write_options options = {.size = sizeof options, .metadata = metadata};
    expect_status(weft_table_write(context, table, path_of("m.safetensors"), &options), WEFT_OK, "");

    weft_checkpoint *checkpoint = open_checkpoint("m.safetensors", WEFT_OPEN_READ);
    const weft_table *read = weft_checkpoint_table(checkpoint);
    assert_same_tensors(table, read);
    for (size_t i = 0; i < weft_table_count(read); i++) {
        assert_string_equal(weft_table_at(read, i)->name, weft_table_at(table, i)->name);
        assert_false(weft_table_at(read, i)->writable);
    }
    assert_int_equal(weft_table_find(read, "tied"), -1);
    assert_string_equal(weft_checkpoint_metadata(checkpoint, "format"), "pt");
    assert_string_equal(weft_checkpoint_metadata(checkpoint, "note"), "\xc3\xa4\n");
    assert_null(weft_checkpoint_metadata(checkpoint, "none"));
    const weft_container *container = weft_checkpoint_container(checkpoint);
    assert_false(container->sharded);
    assert_int_equal(container->file_count, 1);
    assert_string_equal(container->files[0].name, "");
    assert_null(container->index);
    assert_int_equal(container->files[0].header_bytes % 8, 0);
    weft_checkpoint_close(checkpoint);

    expect_status(copy_checkpoint("m.safetensors", "copy.safetensors", true), WEFT_OK, "");
    assert_same_files("m.safetensors", "copy.safetensors");
    /* over itself, while it is mapped */
    expect_status(copy_checkpoint("copy.safetensors", "copy.safetensors", false), WEFT_OK, "");
    assert_same_files("m.safetensors", "copy.safetensors");
    assert_int_equal(scratch_count(&place, ""), 2);
    weft_table_destroy(table);
}

static void test_empty_table(void **state) {
    (void)state;
    weft_table *table = new_table();
    expect_status(weft_table_write(context, table, path_of("none.safetensors"), NULL), WEFT_OK, "");
    weft_checkpoint *checkpoint = open_checkpoint("none.safetensors", WEFT_OPEN_READ);
    assert_int_equal(weft_table_count(weft_checkpoint_table(checkpoint)), 0);
    assert_null(weft_checkpoint_metadata(checkpoint, "format"));
    weft_checkpoint_close(checkpoint);
    const weft_write_options options = {.size = sizeof options, .shard_bytes = 10};
    expect_status(weft_table_write(context, table, path_of("none"), &options), WEFT_OK, "");
    checkpoint = open_checkpoint("none", WEFT_OPEN_READ);
    assert_int_equal(weft_table_count(weft_checkpoint_table(checkpoint)), 0);
    weft_checkpoint_close(checkpoint);
    weft_table_destroy(table);
}

/* Odd header length, so that nothing is aligned; order of the JSON differs from that of the data. */
static void test_foreign_file(void **state) {
    (void)state;
    write_safetensors(
        "f.safetensors",
        "{" BYTE_AT("z", 5, 6) ",\"__metadata__\":{\"k\":\"v\"},"
                               "\"w\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[1,5]}," BYTE_AT(
                                   "y", 0, 1) "}  ",
        6);
    weft_checkpoint *checkpoint = open_checkpoint("f.safetensors", WEFT_OPEN_READ);
    const weft_table *table = weft_checkpoint_table(checkpoint);
    static const char *const names[] = {"y", "w", "z"};
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(weft_table_at(table, i)->name, names[i]);
    }
    assert_string_equal(weft_checkpoint_metadata(checkpoint, "k"), "v");
    weft_checkpoint_close(checkpoint);
    expect_status(copy_checkpoint("f.safetensors", "g.safetensors", false), WEFT_OK, "");
    assert_same_files("f.safetensors", "g.safetensors");
}

static void test_sharded(void **state) {
    (void)state;
    weft_table *table = varied_table();
    static const char *const metadata[] = {"format", "pt", NULL};
    weft_write_options options = {
        .size = sizeof options, .shard_bytes = 20000, .metadata = metadata, .durable = true};
    expect_status(weft_table_write(context, table, path_of("model/"), &options), WEFT_OK, "");
    weft_checkpoint *checkpoint = open_checkpoint("model", WEFT_OPEN_READ);
    assert_same_tensors(table, weft_checkpoint_table(checkpoint));
    for (size_t i = 0; i < weft_table_count(table); i++) {
        assert_string_equal(weft_table_at(weft_checkpoint_table(checkpoint), i)->name,
                            weft_table_at(table, i)->name);
    }
    const weft_container *container = weft_checkpoint_container(checkpoint);
    assert_true(container->sharded);
    assert_true(container->file_count > 5);
    char name[64];
    for (size_t i = 0; i < container->file_count; i++) {
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, container->file_count);
        assert_string_equal(container->files[i].name, name);
    }
    assert_string_equal(weft_checkpoint_metadata(checkpoint, "format"), "pt");
    size_t files = container->file_count + 1;
    expect_status(copy_checkpoint("model", "copy", false), WEFT_OK, "");
    for (size_t i = 0; i < container->file_count; i++) {
        char from[128];
        char to[128];
        snprintf(from, sizeof from, "model/%s", container->files[i].name);
        snprintf(to, sizeof to, "copy/%s", container->files[i].name);
        assert_same_files(from, to);
    }
    assert_same_files("model/model.safetensors.index.json", "copy/model.safetensors.index.json");
    assert_int_equal(scratch_count(&place, "model"), files);
    assert_int_equal(scratch_count(&place, "copy"), files);
    assert_int_equal(scratch_count(&place, ""), 2);
    weft_checkpoint_close(checkpoint);
    weft_table_destroy(table);
}

/* A shard ends before the limit would be exceeded; equality is allowed; what is larger stands alone. */
static void test_shard_sizes(void **state) {
    (void)state;
    static const uint64_t sizes[] = {4, 6, 1, 25, 0, 9, 1, 1};
    static const size_t shard_of[] = {1, 1, 2, 3, 4, 4, 4, 5};
    fill_sample();
    weft_table *table = new_table();
    char name[16];
    for (size_t i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "t%zu", i);
        add_bytes(table, name, sample, sizes[i]);
    }
    const weft_write_options options = {.size = sizeof options, .shard_bytes = 10};
    expect_status(weft_table_write(context, table, path_of("m"), &options), WEFT_OK, "");
    weft_checkpoint *checkpoint = open_checkpoint("m", WEFT_OPEN_READ);
    const weft_container *container = weft_checkpoint_container(checkpoint);
    assert_int_equal(container->file_count, 5);
    for (size_t i = 0; i < 8; i++) {
        char expected[80];
        snprintf(expected, sizeof expected, "\"t%zu\":\"model-%05zu-of-00005.safetensors\"", i,
                 shard_of[i]);
        assert_non_null(memmem(container->index, container->index_bytes, expected, strlen(expected)));
    }
    weft_checkpoint_close(checkpoint);
    weft_table_destroy(table);
}

static void test_many_tensors(void **state) {
    (void)state;
    fill_sample();
    weft_table *table = new_table();
    for (unsigned i = 0; i < 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%u.weight", i * 7919 % 5000);
        add_bytes(table, name, sample + i, i % 13);
    }
    expect_status(weft_table_write(context, table, path_of("m.safetensors"), NULL), WEFT_OK, "");
    const weft_write_options options = {.size = sizeof options, .shard_bytes = 3000};
    expect_status(weft_table_write(context, table, path_of("m"), &options), WEFT_OK, "");
    static const char *const names[] = {"m.safetensors", "m"};
    for (size_t i = 0; i < 2; i++) {
        weft_checkpoint *checkpoint = open_checkpoint(names[i], WEFT_OPEN_READ);
        assert_same_tensors(table, weft_checkpoint_table(checkpoint));
        weft_checkpoint_close(checkpoint);
    }
    weft_table_destroy(table);
}

/* The data of a sparse file takes no disk. */
static void test_over_4_gib(void **state) {
    (void)state;
    uint64_t elements = (uint64_t)5 << 28;
    char json[256];
    int length =
        snprintf(json, sizeof json,
                 "{\"big\":{\"dtype\":\"F32\",\"shape\":[5,%llu],\"data_offsets\":[0,%llu]},\"last\":{"
                 "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%llu,%llu]}}",
                 (unsigned long long)elements / 5, (unsigned long long)elements * 4,
                 (unsigned long long)elements * 4, (unsigned long long)elements * 4 + 1);
    write_safetensors("big.safetensors", json, 0);
    off_t end = (off_t)(8 + (uint64_t)length + elements * 4);
    int descriptor = open(path_of("big.safetensors"), O_RDWR);
    assert_true(descriptor >= 0);
    if (ftruncate(descriptor, end) != 0 || pwrite(descriptor, "x", 1, end) != 1) {
        close(descriptor);
        print_message("this file system does not hold sparse files over 4 GiB: %s\n", strerror(errno));
        skip();
    }
    weft_checkpoint *checkpoint = open_checkpoint("big.safetensors", WEFT_OPEN_READ);
    const weft_table *table = weft_checkpoint_table(checkpoint);
    const weft_tensor *big = weft_table_at(table, 0);
    assert_true(big->bytes == elements * 4 && big->bytes > UINT32_MAX);
    assert_true(weft_tensor_units(big) == elements);
    const uint8_t *bytes = big->data;
    assert_int_equal(bytes[big->bytes - 1], 0);
    assert_int_equal(*(const uint8_t *)weft_table_at(table, 1)->data, 'x');
    weft_checkpoint_close(checkpoint);
    assert_int_equal(ftruncate(descriptor, end), 0);
    close(descriptor);
    expect_open_fails("big.safetensors", WEFT_TRUNCATED, "cut short");
}

/* ---- sources other than plain memory ---- */

static weft_status read_pattern(void *opaque, uint64_t offset, void *output, size_t size) {
    if (opaque != NULL && offset > 0) {
        return WEFT_IO_FAILED;
    }
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *)output)[i] = (uint8_t)((offset + i) * 31 >> 3);
    }
    return WEFT_OK;
}

static void test_masters_and_callbacks(void **state) {
    (void)state;
    enum { COUNT = 2500001, PATTERN = 9000001 };
    float *masters = malloc(COUNT * sizeof *masters);
    assert_non_null(masters);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i * 2654435761u;
        memcpy(&masters[i], &bits, sizeof bits);
    }
    weft_table *table = new_table();
    add_bytes(table, "shift by one", sample, 1);
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "masters",
                          .dtype = WEFT_DTYPE_BF16,
                          .storage = WEFT_DTYPE_F32,
                          .rank = 1};
    tensor.shape[0] = COUNT;
    tensor.data = masters;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    static const weft_access access = {.read = read_pattern};
    tensor = (weft_tensor){
        .size = sizeof(weft_tensor), .name = "far", .dtype = WEFT_DTYPE_U8, .rank = 1, .access = &access};
    tensor.shape[0] = PATTERN;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    expect_status(weft_table_write(context, table, path_of("m.safetensors"), NULL), WEFT_OK, "");
    weft_table_destroy(table);

    weft_checkpoint *checkpoint = open_checkpoint("m.safetensors", WEFT_OPEN_READ);
    const uint8_t *cast = weft_table_at(weft_checkpoint_table(checkpoint), 1)->data;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint16_t value;
        memcpy(&value, cast + 2 * (size_t)i, sizeof value);
        if (value != weft_bf16_round(i * 2654435761u)) {
            fail_msg("element %u", i);
        }
    }
    const uint8_t *far = weft_table_at(weft_checkpoint_table(checkpoint), 2)->data;
    for (uint64_t i = 0; i < PATTERN; i++) {
        if (far[i] != (uint8_t)(i * 31 >> 3)) {
            fail_msg("byte %llu", (unsigned long long)i);
        }
    }
    weft_checkpoint_close(checkpoint);
    free(masters);
}

static void test_source_fails(void **state) {
    (void)state;
    static const weft_access broken = {.read = read_pattern};
    static const weft_access none = {0};
    weft_table *table = new_table();
    weft_tensor tensor = {
        .size = sizeof tensor, .name = "far", .dtype = WEFT_DTYPE_U8, .rank = 1, .access = &broken};
    tensor.shape[0] = 9000001;
    tensor.opaque = &tensor;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    expect_status(weft_table_write(context, table, path_of("m.safetensors"), NULL), WEFT_IO_FAILED,
                  "\"far\"");
    weft_table_destroy(table);
    const weft_access *const without[] = {NULL, &none};
    for (size_t i = 0; i < 2; i++) {
        table = new_table();
        tensor.access = without[i];
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
        expect_status(weft_table_write(context, table, path_of("m.safetensors"), NULL),
                      WEFT_INVALID_ARGUMENT, "neither data nor a read function");
        weft_table_destroy(table);
    }
    table = new_table();
    add_bytes(table, "__metadata__", sample, 1);
    expect_status(weft_table_write(context, table, path_of("m.safetensors"), NULL), WEFT_INVALID_ARGUMENT,
                  "__metadata__");
    weft_table_destroy(table);
    assert_int_equal(scratch_count(&place, ""), 0);
}

static bool cancel_at_once(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    (void)done;
    (void)total;
    ++*(unsigned *)opaque;
    return false;
}

static void test_cancelled(void **state) {
    (void)state;
    write_text("m.safetensors", "old");
    unsigned calls = 0;
    weft_context_options options = {
        .size = sizeof options, .threads = 1, .progress = cancel_at_once, .progress_opaque = &calls};
    weft_context *cancelling = NULL;
    assert_int_equal(weft_context_create(&options, &cancelling), WEFT_OK);
    weft_table *table = new_table();
    add_bytes(table, "a", sample, sizeof sample);
    assert_int_equal(weft_table_write(cancelling, table, path_of("m.safetensors"), NULL), WEFT_CANCELLED);
    assert_true(calls > 0);
    size_t size = 0;
    char *kept = scratch_read(&place, "m.safetensors", &size);
    assert_int_equal(size, 3);
    assert_memory_equal(kept, "old", 3);
    free(kept);
    assert_int_equal(scratch_count(&place, ""), 1);
    weft_table_destroy(table);
    weft_context_destroy(cancelling);
}

/* ---- in place ---- */

static void test_writable(void **state) {
    (void)state;
    write_safetensors("w.safetensors", "{" BYTE_AT("a", 0, 1) "," BYTE_AT("b", 1, 2) "}", 2);
    write_two_shards("dir");
    static const char *const names[] = {"w.safetensors", "dir"};
    for (size_t i = 0; i < 2; i++) {
        weft_checkpoint *checkpoint = open_checkpoint(names[i], WEFT_OPEN_WRITE);
        const weft_tensor *b = weft_table_at(weft_checkpoint_table(checkpoint), 1);
        assert_true(b->writable);
        *(uint8_t *)b->data = 'B';
        assert_int_equal(weft_checkpoint_flush(checkpoint), WEFT_OK);
        expect_status(weft_checkpoint_finish(checkpoint, false), WEFT_INVALID_ARGUMENT,
                      "weft_checkpoint_create");
        checkpoint = open_checkpoint(names[i], WEFT_OPEN_READ);
        assert_int_equal(*(uint8_t *)weft_table_at(weft_checkpoint_table(checkpoint), 0)->data, 'd');
        assert_int_equal(*(uint8_t *)weft_table_at(weft_checkpoint_table(checkpoint), 1)->data, 'B');
        assert_int_equal(weft_checkpoint_flush(checkpoint), WEFT_OK);
        weft_checkpoint_close(checkpoint);
    }
    weft_checkpoint_close(NULL);
}

static void test_read_only_file(void **state) {
    (void)state;
    write_safetensors("r.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    assert_int_equal(chmod(path_of("r.safetensors"), 0444), 0);
    assert_int_equal(chmod(place.directory, 0755), 0);
    /* root may write anything, so be somebody else for a moment */
    bool root = geteuid() == 0;
    if (root) {
        assert_int_equal(seteuid(65534), 0);
    }
    weft_checkpoint *checkpoint = NULL;
    weft_status write =
        weft_checkpoint_open(context, path_of("r.safetensors"), WEFT_OPEN_WRITE, &checkpoint);
    char text[512];
    snprintf(text, sizeof text, "%s", weft_context_error(context));
    weft_checkpoint *readable = NULL;
    weft_status read = weft_checkpoint_open(context, path_of("r.safetensors"), WEFT_OPEN_READ, &readable);
    if (root) {
        assert_int_equal(seteuid(0), 0);
    }
    assert_int_equal(write, WEFT_IO_FAILED);
    assert_null(checkpoint);
    assert_non_null(strstr(text, "r.safetensors for writing: Permission denied"));
    assert_int_equal(read, WEFT_OK);
    weft_checkpoint_close(readable);
}

/* ---- wrong files ---- */

static void test_wrong_files(void **state) {
    (void)state;
    expect_open_fails("missing.safetensors", WEFT_IO_FAILED, "missing.safetensors: No such file");
    write_text("short.safetensors", "1234567");
    expect_open_fails("short.safetensors", WEFT_TRUNCATED, "7 bytes");
    write_text("none.safetensors", "");
    expect_open_fails("none.safetensors", WEFT_TRUNCATED, "0 bytes");
    write_text("text.safetensors", "This is not a safetensors file at all.");
    expect_open_fails("text.safetensors", WEFT_TRUNCATED, "no safetensors file");
    write_safetensors("bad.safetensors", "{" BYTE_AT("a", 0, 1) "," BYTE_AT("b", 2, 3) "}", 3);
    expect_open_fails("bad.safetensors", WEFT_MALFORMED, "bad.safetensors: tensor \"b\" begins at byte 2");
    write_text("file", "");
    expect_open_fails("file/model.safetensors", WEFT_IO_FAILED, "Not a directory");
    scratch_make_directory(&place, "empty");
    expect_open_fails("empty", WEFT_NOT_FOUND, "neither model.safetensors nor");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    expect_open_fails("pipe", WEFT_INVALID_ARGUMENT, "not a regular file");
    weft_checkpoint *checkpoint = NULL;
    expect_status(weft_checkpoint_open(context, "/dev/null", WEFT_OPEN_READ, &checkpoint),
                  WEFT_INVALID_ARGUMENT, "not a regular file");
}

static void test_every_truncation(void **state) {
    (void)state;
    write_safetensors("whole.safetensors", "{" BYTE_AT("a", 0, 1) "," BYTE_AT("b", 1, 2) "}", 2);
    size_t size = 0;
    uint8_t *whole = scratch_read(&place, "whole.safetensors", &size);
    for (size_t cut = 0; cut < size; cut++) {
        scratch_write(&place, "cut.safetensors", whole, cut);
        expect_open_fails("cut.safetensors", WEFT_TRUNCATED, "cut.safetensors");
    }
    free(whole);
    weft_checkpoint_close(open_checkpoint("whole.safetensors", WEFT_OPEN_READ));
}

static void test_wrong_shards(void **state) {
    (void)state;
    write_two_shards("d");
    weft_checkpoint_close(open_checkpoint("d", WEFT_OPEN_READ));
    static const struct {
        const char *index;
        weft_status status;
        const char *text;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"1.safetensors\"}", WEFT_MALFORMED, "index.json: bad JSON"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"../d/2.safetensors\"}}", WEFT_MALFORMED,
         "plain name"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}", WEFT_IO_FAILED,
         "3.safetensors: No such file"},
        {"{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}}", WEFT_MALFORMED,
         "\"a\" is in 1.safetensors, but the index says it is in 2.safetensors"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\"}}", WEFT_MALFORMED,
         "lists tensor \"b\", but 1.safetensors does not hold it"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}}", WEFT_MALFORMED,
         "\"b\" is in 2.safetensors, but the index does not list it"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"c\":\"2.safetensors\"}}",
         WEFT_MALFORMED, "lists tensor \"c\""},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"c\":\"again.safetensors\"}}",
         WEFT_MALFORMED, "again.safetensors: tensor \"a\": another file has it too"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"pipe.safetensors\"}}", WEFT_INVALID_ARGUMENT,
         "not a regular file"},
    };
    write_safetensors("d/again.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    assert_int_equal(mkfifo(path_of("d/pipe.safetensors"), 0600), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text("d/model.safetensors.index.json", cases[i].index);
        expect_open_fails("d", cases[i].status, cases[i].text);
    }
    weft_context_options options = {
        .size = sizeof options, .limits = &(weft_limits){.size = sizeof(weft_limits), .header_bytes = 100}};
    weft_context *strict = NULL;
    weft_checkpoint *checkpoint = NULL;
    assert_int_equal(weft_context_create(&options, &strict), WEFT_OK);
    write_two_shards("e");
    char index[200] = "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
    memset(index + strlen(index), ' ', sizeof index - 1 - strlen(index));
    write_text("e/model.safetensors.index.json", index);
    weft_checkpoint_close(open_checkpoint("e", WEFT_OPEN_READ));
    assert_int_equal(weft_checkpoint_open(strict, path_of("e"), WEFT_OPEN_READ, &checkpoint),
                     WEFT_LIMIT_EXCEEDED);
    weft_context_destroy(strict);
}

/* Two checkpoints in one directory: only if the index names the other file too. */
static void test_both_kinds(void **state) {
    (void)state;
    write_two_shards("d");
    write_safetensors("d/model.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    expect_open_fails("d", WEFT_INVALID_ARGUMENT, "two checkpoints");
    scratch_make_directory(&place, "one");
    write_safetensors("one/model.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    weft_checkpoint *checkpoint = open_checkpoint("one", WEFT_OPEN_READ);
    assert_false(weft_checkpoint_container(checkpoint)->sharded);
    assert_string_equal(weft_checkpoint_container(checkpoint)->files[0].name, "");
    weft_checkpoint_close(checkpoint);
    write_text("one/model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model.safetensors\"}}");
    checkpoint = open_checkpoint("one", WEFT_OPEN_READ);
    assert_true(weft_checkpoint_container(checkpoint)->sharded);
    weft_checkpoint_close(checkpoint);
    expect_status(copy_checkpoint("one", "two", false), WEFT_OK, "");
    expect_status(copy_checkpoint("two", "one", false), WEFT_OK, "");
    assert_same_files("one/model.safetensors", "two/model.safetensors");
    expect_status(copy_checkpoint("d/1.safetensors", "d", false), WEFT_INVALID_ARGUMENT, "another one");
    scratch_make_directory(&place, "three");
    write_safetensors("three/model.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    assert_int_equal(unlink(path_of("d/model.safetensors")), 0);
    expect_status(copy_checkpoint("d", "three", false), WEFT_INVALID_ARGUMENT, "another one");
    assert_int_equal(scratch_count(&place, "three"), 1);
}

/* ---- where new checkpoints go ---- */

static void test_places(void **state) {
    (void)state;
    write_safetensors("s.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    write_two_shards("d");
    scratch_make_directory(&place, "dir");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    assert_int_equal(symlink("/dev/null", path_of("null")), 0);
    assert_int_equal(symlink("dir", path_of("link")), 0);
    assert_int_equal(symlink("nowhere", path_of("dangling")), 0);

    expect_status(copy_checkpoint("s.safetensors", "pipe", false), WEFT_INVALID_ARGUMENT, "pipe");
    expect_status(copy_checkpoint("s.safetensors", "null", false), WEFT_INVALID_ARGUMENT, "device");
    expect_status(copy_checkpoint("d", "null", false), WEFT_INVALID_ARGUMENT, "device");
    expect_status(copy_checkpoint("d", "s.safetensors", false), WEFT_INVALID_ARGUMENT, "needs a directory");
    expect_status(copy_checkpoint("s.safetensors", "new/", false), WEFT_INVALID_ARGUMENT,
                  "not a file name");
    expect_status(copy_checkpoint("s.safetensors", "no/such/dir", false), WEFT_IO_FAILED, "No such file");
    expect_status(copy_checkpoint("d", "no/such/dir", false), WEFT_IO_FAILED, "No such file");
    expect_status(copy_checkpoint("s.safetensors", "s.safetensors/x", false), WEFT_IO_FAILED,
                  "Not a directory");
    weft_checkpoint *source = open_checkpoint("s.safetensors", WEFT_OPEN_READ);
    weft_checkpoint *target = NULL;
    assert_int_equal(weft_checkpoint_create(context, "", weft_checkpoint_container(source), &target),
                     WEFT_INVALID_ARGUMENT);
    weft_checkpoint_close(source);
    assert_int_equal(scratch_count(&place, ""), 7);
    assert_int_equal(scratch_count(&place, "dir"), 0);

    expect_status(copy_checkpoint("s.safetensors", "link", false), WEFT_OK, "");
    assert_same_files("s.safetensors", "dir/model.safetensors");
    assert_int_equal(scratch_count(&place, "dir"), 1);
    expect_status(copy_checkpoint("s.safetensors", "dangling", false), WEFT_OK, "");
    assert_same_files("s.safetensors", "dangling");
}

static void test_mode_is_kept(void **state) {
    (void)state;
    write_safetensors("s.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    write_safetensors("secret.safetensors", "{}", 0);
    assert_int_equal(chmod(path_of("secret.safetensors"), 0600), 0);
    expect_status(copy_checkpoint("s.safetensors", "secret.safetensors", false), WEFT_OK, "");
    struct stat info;
    assert_int_equal(stat(path_of("secret.safetensors"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    mode_t mask = umask(022);
    expect_status(copy_checkpoint("s.safetensors", "open.safetensors", false), WEFT_OK, "");
    umask(mask);
    assert_int_equal(stat(path_of("open.safetensors"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
}

static void test_abandoned(void **state) {
    (void)state;
    write_safetensors("s.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    write_two_shards("d");
    static const char *const pairs[][2] = {{"s.safetensors", "new.safetensors"},
                                           {"s.safetensors", "s.safetensors"},
                                           {"s.safetensors", "d"},
                                           {"d", "new"},
                                           {"d", "d"}};
    for (size_t i = 0; i < 5; i++) {
        if (i == 2) {
            assert_int_equal(rename(path_of("d/model.safetensors.index.json"), path_of("kept")), 0);
        }
        weft_checkpoint *source = open_checkpoint(pairs[i][0], WEFT_OPEN_READ);
        weft_checkpoint *target = NULL;
        expect_status(weft_checkpoint_create(context, path_of(pairs[i][1]),
                                             weft_checkpoint_container(source), &target),
                      WEFT_OK, "");
        assert_int_equal(scratch_count(&place, "") + scratch_count(&place, "d") > 5, 1);
        weft_checkpoint_close(target);
        weft_checkpoint_close(source);
        if (i == 2) {
            assert_int_equal(rename(path_of("kept"), path_of("d/model.safetensors.index.json")), 0);
        }
        assert_int_equal(scratch_count(&place, ""), 2);
        assert_int_equal(scratch_count(&place, "d"), 3);
    }
}

/* Into a directory that holds other files, and an older checkpoint with other shards. */
static void test_replaced_shards(void **state) {
    (void)state;
    write_two_shards("old");
    write_text("old/config.json", "{}");
    write_text("old/2.safetensors", "to be replaced");
    write_text("old/unrelated.safetensors", "kept");
    write_two_shards("new");
    expect_status(copy_checkpoint("new", "old", true), WEFT_OK, "");
    assert_same_files("new/1.safetensors", "old/1.safetensors");
    assert_same_files("new/2.safetensors", "old/2.safetensors");
    assert_same_files("new/model.safetensors.index.json", "old/model.safetensors.index.json");
    assert_int_equal(scratch_count(&place, "old"), 5);

    /* a rename that fails half-way: a directory stands where the second shard should go */
    write_two_shards("stuck");
    write_text("stuck/1.safetensors", "old 1");
    write_text("stuck/model.safetensors.index.json", "old index");
    assert_int_equal(unlink(path_of("stuck/2.safetensors")), 0);
    scratch_make_directory(&place, "stuck/2.safetensors");
    expect_status(copy_checkpoint("new", "stuck", false), WEFT_IO_FAILED, "cannot replace");
    static const char *const names[] = {"stuck/1.safetensors", "stuck/model.safetensors.index.json"};
    static const char *const texts[] = {"old 1", "old index"};
    for (size_t i = 0; i < 2; i++) {
        size_t size = 0;
        char *text = scratch_read(&place, names[i], &size);
        assert_int_equal(size, strlen(texts[i]));
        assert_memory_equal(text, texts[i], size);
        free(text);
    }
    assert_int_equal(scratch_count(&place, "stuck"), 3);
    /* the target vanished, or somebody else made it */
    weft_checkpoint *source = open_checkpoint("new", WEFT_OPEN_READ);
    weft_checkpoint *target = NULL;
    expect_status(
        weft_checkpoint_create(context, path_of("raced"), weft_checkpoint_container(source), &target),
        WEFT_OK, "");
    scratch_make_directory(&place, "raced");
    write_text("raced/theirs", "x");
    expect_status(weft_checkpoint_finish(target, false), WEFT_IO_FAILED, "raced");
    assert_int_equal(scratch_count(&place, "raced"), 1);
    assert_int_equal(scratch_count(&place, ""), 4);
    weft_checkpoint_close(source);
}

/* ---- journals ---- */

static void test_journals(void **state) {
    (void)state;
    write_safetensors("s.safetensors", "{" BYTE_AT("a", 0, 1) "}", 1);
    write_two_shards("d");
    assert_int_equal(symlink("s.safetensors", path_of("link")), 0);
    char *journal = NULL;
    assert_int_equal(weft_journal_path(context, path_of("link"), &journal), WEFT_OK);
    assert_string_equal(strrchr(journal, '/'), "/s.safetensors.weft-journal");
    weft_release(context, journal);
    assert_int_equal(weft_journal_path(context, path_of("d/"), &journal), WEFT_OK);
    assert_string_equal(strrchr(journal, '/') - 2, "/d/.weft-journal");
    weft_release(context, journal);

    write_text("s.safetensors.weft-journal", "");
    expect_open_fails("s.safetensors", WEFT_BUSY, "--recover");
    expect_open_fails("link", WEFT_BUSY, "weft_apply_recover");
    weft_checkpoint *checkpoint = NULL;
    assert_int_equal(
        weft_checkpoint_open_unchecked(context, path_of("s.safetensors"), WEFT_OPEN_WRITE, &checkpoint),
        WEFT_OK);
    weft_checkpoint *target = NULL;
    expect_status(weft_checkpoint_create(context, path_of("s.safetensors"),
                                         weft_checkpoint_container(checkpoint), &target),
                  WEFT_BUSY, "interrupted");
    weft_checkpoint_close(checkpoint);
    assert_int_equal(unlink(path_of("s.safetensors.weft-journal")), 0);
    weft_checkpoint_close(open_checkpoint("link", WEFT_OPEN_READ));

    write_text("d/.weft-journal", "");
    expect_open_fails("d", WEFT_BUSY, "--recover");
    expect_open_fails("d/1.safetensors", WEFT_BUSY, "/d --recover");
    expect_status(copy_checkpoint("s.safetensors", "d/new.safetensors", false), WEFT_BUSY, "/d --recover");
    assert_int_equal(unlink(path_of("d/.weft-journal")), 0);
    write_text("d/2.safetensors.weft-journal", "");
    expect_open_fails("d", WEFT_BUSY, "/d/2.safetensors --recover");
    assert_int_equal(unlink(path_of("d/2.safetensors.weft-journal")), 0);
    weft_checkpoint_close(open_checkpoint("d", WEFT_OPEN_READ));
}

/* ---- hostile containers ---- */

static void expect_create_fails(const weft_container *container, weft_status wanted, const char *text) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_create(context, path_of("out"), container, &checkpoint);
    assert_null(checkpoint);
    expect_status(status, wanted, text);
    assert_int_equal(scratch_count(&place, ""), 0);
}

static void test_hostile_containers(void **state) {
    (void)state;
    static const char good[] = "{" BYTE_AT("a", 0, 1) "}";
    static const char other[] = "{" BYTE_AT("b", 0, 1) "}";
    static const char bad[] = "{" BYTE_AT("a", 1, 2) "}";
    static const char huge[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1152921504606846975],\"data_offsets\":["
                               "0,1152921504606846975]}}";
    static const char index[] = "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
    static const char escaping[] = "{\"weight_map\":{\"a\":\"../1.safetensors\"}}";
    weft_container_file files[2] = {{"", good, sizeof good - 1}, {"x", good, sizeof good - 1}};
    weft_container container = {.file_count = 2, .files = files};
    expect_create_fails(&container, WEFT_MALFORMED, "must have one file");
    container.file_count = 0;
    expect_create_fails(&container, WEFT_MALFORMED, "must have one file");
    container.file_count = 1;
    files[0].name = "../x";
    expect_create_fails(&container, WEFT_MALFORMED, "without a name");
    files[0] = (weft_container_file){"", bad, sizeof bad - 1};
    expect_create_fails(&container, WEFT_MALFORMED, "a hole");
    files[0] = (weft_container_file){"", good, 5};
    expect_create_fails(&container, WEFT_MALFORMED, "bad JSON");
    files[0] = (weft_container_file){"", huge, sizeof huge - 1};
    expect_create_fails(&container, WEFT_NO_SPACE, "it needs 11529215046");

    container = (weft_container){.sharded = true, .file_count = 2, .files = files};
    files[0] = (weft_container_file){"1.safetensors", good, sizeof good - 1};
    files[1] = (weft_container_file){"2.safetensors", other, sizeof other - 1};
    expect_create_fails(&container, WEFT_MALFORMED, "index is missing");
    container.index = index;
    container.index_bytes = sizeof index - 2;
    expect_create_fails(&container, WEFT_MALFORMED, "bad JSON");
    container.index_bytes = sizeof index - 1;
    files[1].header = good;
    expect_create_fails(&container, WEFT_MALFORMED, "another file has it too");
    files[1] = (weft_container_file){"3.safetensors", other, sizeof other - 1};
    expect_create_fails(&container, WEFT_MALFORMED, "3.safetensors");
    files[1].name = "../2.safetensors";
    expect_create_fails(&container, WEFT_MALFORMED, "../2.safetensors");
    files[1].name = NULL;
    expect_create_fails(&container, WEFT_MALFORMED, "files must ascend");
    files[1].name = "2.safetensors";
    container.file_count = 1;
    expect_create_fails(&container, WEFT_MALFORMED, "names 2 files, but the container has 1");
    files[0].header = other;
    files[1].header = good;
    container.file_count = 2;
    expect_create_fails(&container, WEFT_MALFORMED, "\"b\" is in 1.safetensors");
    files[0] = (weft_container_file){"../1.safetensors", good, sizeof good - 1};
    container = (weft_container){true, 1, files, escaping, sizeof escaping - 1};
    expect_create_fails(&container, WEFT_MALFORMED, "plain name");
}

/* ---- full disks ---- */

/* Runs in a process of its own, which may change its limits and mounts. */
static int in_child(int (*body)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(body());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

enum { CANNOT_MOUNT = 77 };

/* Fails with a number that tells the check. */
static int write_to_small_disk(void) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", path_of("disk"), "tmpfs", 0, "size=1m") != 0) {
        return CANNOT_MOUNT;
    }
    static uint8_t weights[3 << 20];
    weft_table *table = NULL;
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "a",
                          .dtype = WEFT_DTYPE_U8,
                          .rank = 1,
                          .shape = {600000},
                          .data = weights};
    if (weft_table_create(context, &table) != WEFT_OK || weft_table_add(table, &tensor) != WEFT_OK) {
        return 1;
    }
    /* what fits, stays; the same again does not fit beside it */
    if (weft_table_write(context, table, path_of("disk/a.safetensors"), NULL) != WEFT_OK) {
        return 2;
    }
    if (weft_table_write(context, table, path_of("disk/b.safetensors"), NULL) != WEFT_NO_SPACE) {
        return 3;
    }
    if (weft_table_write(context, table, path_of("disk/a.safetensors"), NULL) != WEFT_NO_SPACE) {
        return 4;
    }
    const weft_write_options options = {.size = sizeof options, .shard_bytes = 100000};
    if (weft_table_write(context, table, path_of("disk/b"), &options) != WEFT_NO_SPACE) {
        return 5;
    }
    if (scratch_count(&place, "disk") != 1) {
        return 6;
    }
    weft_checkpoint *checkpoint = NULL;
    if (weft_checkpoint_open(context, path_of("disk/a.safetensors"), WEFT_OPEN_READ, &checkpoint) !=
        WEFT_OK) {
        return 7;
    }
    weft_checkpoint_close(checkpoint);
    weft_table_destroy(table);
    return 0;
}

static void test_small_disk(void **state) {
    (void)state;
    scratch_make_directory(&place, "disk");
    int result = in_child(write_to_small_disk);
    if (result == CANNOT_MOUNT) {
        print_message("full disks: no small one can be mounted here, which needs root\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* The reservation itself fails, behind the check of the free space. */
static int write_beyond_limit(void) {
    const struct rlimit limit = {1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return 1;
    }
    static uint8_t weights[2 << 20];
    weft_table *table = NULL;
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "a",
                          .dtype = WEFT_DTYPE_U8,
                          .rank = 1,
                          .shape = {2 << 20},
                          .data = weights};
    if (weft_table_create(context, &table) != WEFT_OK || weft_table_add(table, &tensor) != WEFT_OK) {
        return 2;
    }
    const weft_write_options options = {.size = sizeof options, .shard_bytes = 100000};
    if (weft_table_write(context, table, path_of("a.safetensors"), NULL) != WEFT_IO_FAILED ||
        strstr(weft_context_error(context), "cannot reserve") == NULL) {
        return 3;
    }
    if (weft_table_write(context, table, path_of("a"), &options) != WEFT_IO_FAILED) {
        return 4;
    }
    weft_table_destroy(table);
    return scratch_count(&place, "") == 0 ? 0 : 5;
}

static void test_file_size_limit(void **state) {
    (void)state;
    assert_int_equal(in_child(write_beyond_limit), 0);
}

/* ---- memory and descriptors ---- */

static size_t open_descriptors(void) {
    size_t count = 0;
    for (int descriptor = 0; descriptor < 256; descriptor++) {
        count += fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
    }
    return count;
}

typedef weft_status (*operation)(weft_context *with, const char *source, const char *target);

static weft_status do_open(weft_context *with, const char *source, const char *target) {
    (void)target;
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_open(with, source, WEFT_OPEN_WRITE, &checkpoint);
    weft_checkpoint_close(checkpoint);
    return status;
}

static weft_status do_create(weft_context *with, const char *source, const char *target) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_open(with, source, WEFT_OPEN_READ, &checkpoint);
    if (status != WEFT_OK) {
        return status;
    }
    weft_checkpoint *created = NULL;
    status = weft_checkpoint_create(with, target, weft_checkpoint_container(checkpoint), &created);
    if (status == WEFT_OK) {
        status = weft_checkpoint_finish(created, true);
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

static weft_status write_with(weft_context *with, const char *target, uint64_t shard_bytes) {
    static const char *const metadata[] = {"format", "pt", NULL};
    const weft_write_options options = {
        .size = sizeof options, .shard_bytes = shard_bytes, .metadata = metadata};
    weft_table *table = NULL;
    weft_status status = weft_table_create(with, &table);
    static const char *const names[] = {"a", "b", "c"};
    for (size_t i = 0; i < 3 && status == WEFT_OK; i++) {
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = names[i],
                              .dtype = WEFT_DTYPE_U8,
                              .rank = 1,
                              .shape = {9},
                              .data = sample};
        status = weft_table_add(table, &tensor);
    }
    if (status == WEFT_OK) {
        status = weft_table_tie(table, "tied", "b");
    }
    if (status == WEFT_OK) {
        status = weft_table_write(with, table, target, &options);
    }
    weft_table_destroy(table);
    return status;
}

static weft_status do_write(weft_context *with, const char *source, const char *target) {
    (void)source;
    return write_with(with, target, 0);
}

static weft_status do_write_sharded(weft_context *with, const char *source, const char *target) {
    (void)source;
    return write_with(with, target, 20);
}

/* Each allocation fails in turn; nothing leaks, nothing is left on disk but a result. */
static void fail_each(operation run, const char *source, const char *target) {
    size_t before = open_descriptors();
    size_t entries = scratch_count(&place, "");
    bool existed = scratch_exists(&place, target);
    faults faults = {0};
    for (size_t n = 1;; n++) {
        faults_reset(&faults, n);
        weft_context_options options = {
            .size = sizeof options, .threads = 2, .allocator = faults_allocator(&faults)};
        weft_context *with = NULL;
        weft_status status = weft_context_create(&options, &with);
        if (status == WEFT_OK) {
            status = run(with, path_of(source), path_of(target));
            assert_true(status == WEFT_OK || weft_context_error(with)[0] != '\0');
            weft_context_destroy(with);
        }
        assert_int_equal(faults_live_blocks(&faults), 0);
        assert_int_equal(open_descriptors(), before);
        bool fired = faults_fired(&faults);
        if (fired && status == WEFT_NO_MEMORY) {
            /* a durable finish may run out of memory after the rename */
            assert_true(scratch_count(&place, "") <= entries + 1);
        } else {
            assert_int_equal(status, WEFT_OK);
        }
        if (!existed && scratch_exists(&place, target)) {
            weft_checkpoint_close(open_checkpoint(target, WEFT_OPEN_READ));
            char command[600];
            snprintf(command, sizeof command, "rm -r '%s'", path_of(target));
            assert_int_equal(system(command), 0);
        }
        assert_int_equal(scratch_count(&place, ""), entries);
        if (!fired) {
            assert_true(n > 5);
            return;
        }
    }
}

static void test_every_allocation_failed(void **state) {
    (void)state;
    fill_sample();
    write_safetensors("s.safetensors", "{" BYTE_AT("a", 0, 1) ",\"__metadata__\":{\"k\":\"v\"}}", 1);
    write_two_shards("d");
    write_two_shards("old");
    fail_each(do_open, "s.safetensors", "none");
    fail_each(do_open, "d", "none");
    fail_each(do_create, "s.safetensors", "new.safetensors");
    fail_each(do_create, "d", "new");
    fail_each(do_create, "d", "old");
    assert_int_equal(scratch_count(&place, "old"), 3);
    weft_checkpoint_close(open_checkpoint("old", WEFT_OPEN_READ));
    fail_each(do_write, "none", "w.safetensors");
    fail_each(do_write_sharded, "none", "w");
}

int main(void) {
#define CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_single),
        CASE(test_empty_table),
        CASE(test_foreign_file),
        CASE(test_sharded),
        CASE(test_shard_sizes),
        CASE(test_many_tensors),
        CASE(test_over_4_gib),
        CASE(test_masters_and_callbacks),
        CASE(test_source_fails),
        CASE(test_cancelled),
        CASE(test_writable),
        CASE(test_read_only_file),
        CASE(test_wrong_files),
        CASE(test_every_truncation),
        CASE(test_wrong_shards),
        CASE(test_both_kinds),
        CASE(test_places),
        CASE(test_mode_is_kept),
        CASE(test_abandoned),
        CASE(test_replaced_shards),
        CASE(test_journals),
        CASE(test_hostile_containers),
        CASE(test_small_disk),
        CASE(test_file_size_limit),
        CASE(test_every_allocation_failed),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
