/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own sinks and sources: a file appears complete or not at all, whatever fails on the way;
 * pipes and devices are written straight and read through a copy; memory; and a child that was forked.
 */
#include "faults.h"
#include "patches.h"
#include "scratch.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char text[] = "all that is to be written, in two pieces";

static void put(const weft_sink *sink, const char *data, size_t size) {
    assert_int_equal(sink->write(sink->opaque, data, size), WEFT_OK);
}

static void put_text(const weft_sink *sink) {
    put(sink, text, 10);
    put(sink, text + 10, sizeof text - 10);
}

static bool file_holds(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(size + 2);
    assert_non_null(bytes);
    size_t got = file != NULL ? fread(bytes, 1, size + 2, file) : SIZE_MAX;
    bool same = got == size && memcmp(bytes, data, size) == 0;
    if (file != NULL) {
        fclose(file);
    }
    free(bytes);
    return same;
}

/* ---- files ---- */

static void test_a_file(void **state) {
    (void)state;
    scratch scratch;
    weft_context *context = patches_context(1);
    weft_sink sink;
    scratch_open(&scratch);
    for (unsigned durable = 0; durable < 2; durable++) {
        const char *path = scratch_path(&scratch, durable ? "again" : "patch");
        assert_int_equal(weft_sink_open_file(context, path, &sink), WEFT_OK);
        assert_non_null(strstr(weft_sink_temporary(&sink), ".tmp"));
        assert_int_equal(access(weft_sink_temporary(&sink), F_OK), 0);
        put_text(&sink);
        assert_int_not_equal(access(path, F_OK), 0);
        assert_int_equal(weft_sink_finish(&sink, durable), WEFT_OK);
        assert_true(file_holds(path, text, sizeof text));
        assert_int_equal(scratch_count(&scratch, ""), 1 + durable);
        assert_null(sink.opaque);
        weft_sink_abandon(&sink);
        assert_int_equal(weft_sink_finish(&sink, false), WEFT_INVALID_ARGUMENT);
    }
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* Until the end, and after an abandon, the path has what it had. */
static void test_what_was_there(void **state) {
    (void)state;
    scratch scratch;
    weft_context *context = patches_context(1);
    weft_sink sink;
    scratch_open(&scratch);
    scratch_write(&scratch, "patch", "old", 3);
    const char *path = scratch_path(&scratch, "patch");
    const char *link = scratch_path(&scratch, "link");
    assert_int_equal(symlink("patch", link), 0);
    assert_int_equal(weft_sink_open_file(context, path, &sink), WEFT_OK);
    put_text(&sink);
    assert_true(file_holds(path, "old", 3));
    weft_sink_abandon(&sink);
    weft_sink_abandon(&sink);
    assert_true(file_holds(path, "old", 3));
    assert_int_equal(scratch_count(&scratch, ""), 2);
    /* through a link, what it leads to is replaced */
    struct stat info;
    assert_int_equal(weft_sink_open_file(context, link, &sink), WEFT_OK);
    put_text(&sink);
    assert_int_equal(weft_sink_finish(&sink, false), WEFT_OK);
    assert_true(file_holds(path, text, sizeof text));
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(scratch_count(&scratch, ""), 2);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

static void test_what_cannot_be_written(void **state) {
    (void)state;
    scratch scratch;
    weft_context *context = patches_context(2);
    weft_sink sink = {0};
    pair pair;
    scratch_open(&scratch);
    scratch_make_directory(&scratch, "directory");
    assert_int_equal(weft_sink_open_file(context, scratch_path(&scratch, "directory"), &sink),
                     WEFT_IO_FAILED);
    assert_int_equal(weft_sink_open_file(context, scratch_path(&scratch, "no/such/place"), &sink),
                     WEFT_IO_FAILED);
    assert_non_null(strstr(weft_context_error(context), "no/such/place"));
    assert_int_equal(weft_sink_open_descriptor(context, -1, &sink), WEFT_IO_FAILED);
    assert_null(sink.write);
    /* the text of a diff says where it could not write, and what is not complete is not finished */
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 1);
    pair_change(&pair, CHANGE_ULP, 10000, 2);
    assert_int_equal(weft_sink_open_file(context, "/dev/full", &sink), WEFT_OK);
    assert_null(weft_sink_temporary(&sink));
    assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, NULL, &sink, NULL), WEFT_NO_SPACE);
    assert_non_null(strstr(weft_context_error(context), "/dev/full: No space"));
    assert_int_equal(weft_sink_finish(&sink, false), WEFT_IO_FAILED);
    assert_null(sink.write);
    pair_close(&pair);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* A directory that is gone by the end: nothing is left behind, and the sink is closed. */
static void test_a_place_that_goes_away(void **state) {
    (void)state;
    faults faults = {0};
    const weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
    scratch scratch;
    weft_context *context;
    weft_sink sink;
    char here[512];
    char there[512];
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    scratch_open(&scratch);
    scratch_make_directory(&scratch, "here");
    snprintf(here, sizeof here, "%s", scratch_path(&scratch, "here"));
    snprintf(there, sizeof there, "%s", scratch_path(&scratch, "there"));
    assert_int_equal(weft_sink_open_file(context, scratch_path(&scratch, "here/patch"), &sink), WEFT_OK);
    put_text(&sink);
    assert_int_equal(rename(here, there), 0);
    assert_int_equal(weft_sink_finish(&sink, true), WEFT_IO_FAILED);
    assert_non_null(strstr(weft_context_error(context), "here/patch"));
    assert_null(sink.write);
    scratch_close(&scratch);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

/* ---- streams and memory ---- */

typedef struct stream_reader {
    const char *path;
    char bytes[sizeof text + 1];
    size_t size;
} stream_reader;

static void *read_stream(void *opaque) {
    stream_reader *reader = opaque;
    FILE *file = fopen(reader->path, "rb");
    reader->size = file != NULL ? fread(reader->bytes, 1, sizeof reader->bytes, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    return NULL;
}

static void test_a_pipe_with_a_name(void **state) {
    (void)state;
    scratch scratch;
    weft_context *context = patches_context(1);
    weft_sink sink;
    pthread_t thread;
    char path[512];
    scratch_open(&scratch);
    snprintf(path, sizeof path, "%s", scratch_path(&scratch, "pipe"));
    stream_reader reader = {.path = path};
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_stream, &reader), 0);
    assert_int_equal(weft_sink_open_file(context, path, &sink), WEFT_OK);
    put_text(&sink);
    assert_int_equal(weft_sink_finish(&sink, true), WEFT_OK);
    pthread_join(thread, NULL);
    assert_int_equal(reader.size, sizeof text);
    assert_memory_equal(reader.bytes, text, sizeof text);
    assert_int_equal(scratch_count(&scratch, ""), 1);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

static void test_descriptors(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    weft_sink sink;
    weft_source source;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(weft_sink_open_descriptor(context, ends[1], &sink), WEFT_OK);
    put_text(&sink);
    assert_int_equal(weft_sink_finish(&sink, false), WEFT_OK);
    /* it stays the caller's */
    assert_int_equal(write(ends[1], "!", 1), 1);
    assert_int_equal(close(ends[1]), 0);
    assert_int_equal(weft_source_open_descriptor(context, ends[0], &source), WEFT_OK);
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(source.size, sizeof text + 1);
    assert_memory_equal(source.memory, text, sizeof text);
    char last;
    assert_int_equal(source.read(source.opaque, sizeof text, &last, 1), WEFT_OK);
    assert_int_equal(last, '!');
    assert_int_equal(source.read(source.opaque, sizeof text, &last, 2), WEFT_TRUNCATED);
    weft_source_close(&source);
    weft_source_close(&source);
    assert_null(source.memory);
    weft_context_destroy(context);
}

static void test_memory(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    weft_sink sink;
    const void *data = text;
    size_t size = 1;
    assert_int_equal(weft_sink_open_memory(context, &sink), WEFT_OK);
    weft_sink_memory(&sink, &data, &size);
    assert_int_equal(size, 0);
    put_text(&sink);
    assert_int_equal(weft_sink_finish(&sink, true), WEFT_OK);
    weft_sink_memory(&sink, &data, &size);
    assert_int_equal(size, sizeof text);
    assert_memory_equal(data, text, sizeof text);
    assert_null(weft_sink_temporary(&sink));
    weft_sink_abandon(&sink);
    weft_sink_memory(&sink, &data, &size);
    assert_null(data);
    assert_int_equal(size, 0);
    /* a sink of somebody else is none of these */
    bytes bytes = {0};
    weft_sink other = bytes_sink(&bytes);
    weft_sink_memory(&other, &data, &size);
    assert_null(data);
    assert_int_equal(weft_sink_finish(&other, false), WEFT_INVALID_ARGUMENT);
    weft_context_destroy(context);
}

static void test_sources(void **state) {
    (void)state;
    scratch scratch;
    weft_context *context = patches_context(1);
    weft_source source = {0};
    scratch_open(&scratch);
    assert_int_equal(weft_source_open_file(context, scratch_path(&scratch, "absent"), &source),
                     WEFT_NOT_FOUND);
    assert_non_null(strstr(weft_context_error(context), "absent"));
    assert_int_equal(weft_source_open_file(context, scratch.directory, &source), WEFT_IO_FAILED);
    assert_int_equal(weft_source_open_descriptor(context, -1, &source), WEFT_IO_FAILED);
    assert_null(source.read);
    scratch_write(&scratch, "empty", "", 0);
    weft_patch *patch;
    assert_int_equal(weft_source_open_file(context, scratch_path(&scratch, "empty"), &source), WEFT_OK);
    assert_int_equal(source.size, 0);
    assert_int_equal(weft_patch_open(context, &source, &patch), WEFT_TRUNCATED);
    weft_source_close(&source);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- a patch, from beginning to end, and every allocation that fails on the way ---- */

static weft_status send(weft_context *context, const char *path, pair *pair, weft_sums *sums) {
    weft_sink sink;
    weft_source source;
    weft_patch *patch;
    weft_apply *apply;
    weft_status status = weft_sink_open_file(context, path, &sink);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_diff(context, pair->live.view, pair->next.view, NULL, &sink, NULL);
    if (status == WEFT_OK) {
        status = weft_sink_finish(&sink, false);
    }
    weft_sink_abandon(&sink);
    if (status == WEFT_OK) {
        status = weft_source_open_file(context, path, &source);
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_patch_open(context, &source, &patch);
    if (status == WEFT_OK) {
        status = weft_apply_create(context, patch, pair->live.view, sums, &apply);
        if (status == WEFT_OK) {
            status = weft_apply_prepare(apply);
            status = status == WEFT_OK ? weft_apply_commit(apply) : status;
            weft_apply_destroy(apply);
        }
        weft_patch_close(patch);
    }
    weft_source_close(&source);
    return status;
}

static void test_there_and_back(void **state) {
    (void)state;
    static const tensor_shape shape = {"w", WEFT_DTYPE_BF16, 50, 40};
    scratch scratch;
    scratch_open(&scratch);
    bool fired = true;
    size_t failures = 0;
    for (size_t n = 1; fired; n++) {
        faults faults = {0};
        const weft_context_options options = {
            .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
        weft_context *context;
        pair pair;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        pair_open(&pair, context, &shape, 1, WEIGHTS_TRAINED, 1);
        pair_change(&pair, CHANGE_ULP, 10000, 2);
        weft_sums *sums = patches_sums(context, pair.live.view);
        faults_reset(&faults, n);
        weft_status status = send(context, scratch_path(&scratch, "patch"), &pair, sums);
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
        assert_true(fired ? pair_at_old(&pair) : pair_at_new(&pair));
        assert_true(scratch_count(&scratch, "") <= 1);
        failures += fired;
        weft_sums_destroy(sums);
        pair_close(&pair);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
    }
    assert_true(failures > 10);
    scratch_close(&scratch);
}

/* The memory of a sink is taken as it grows. */
static void test_memory_that_ends(void **state) {
    (void)state;
    faults faults = {0};
    const weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    bool fired = true;
    for (size_t n = 1; fired; n++) {
        weft_sink sink;
        faults_reset(&faults, n);
        weft_status status = weft_sink_open_memory(context, &sink);
        if (status == WEFT_OK) {
            for (unsigned i = 0; i < 100 && status == WEFT_OK; i++) {
                status = sink.write(sink.opaque, text, sizeof text);
            }
            weft_sink_abandon(&sink);
        }
        fired = faults_fired(&faults);
        assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
    }
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

/* ---- forks ---- */

static void test_a_child(void **state) {
    (void)state;
    scratch scratch;
    weft_context *context = patches_context(1);
    weft_sink sink;
    scratch_open(&scratch);
    const char *path = scratch_path(&scratch, "patch");
    assert_int_equal(weft_sink_open_file(context, path, &sink), WEFT_OK);
    put_text(&sink);
    pid_t child = fork();
    if (child == 0) {
        weft_status status = weft_sink_finish(&sink, false);
        weft_sink_abandon(&sink);
        _exit(status == WEFT_INVALID_ARGUMENT ? 0 : 1);
    }
    int code = 1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(weft_sink_finish(&sink, false), WEFT_OK);
    assert_true(file_holds(path, text, sizeof text));
    scratch_close(&scratch);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file),
        cmocka_unit_test(test_what_was_there),
        cmocka_unit_test(test_what_cannot_be_written),
        cmocka_unit_test(test_a_place_that_goes_away),
        cmocka_unit_test(test_a_pipe_with_a_name),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_memory_that_ends),
        cmocka_unit_test(test_a_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
