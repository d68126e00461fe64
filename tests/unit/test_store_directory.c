/* SPDX-License-Identifier: Apache-2.0
 *
 * test_store_directory.c: what only a directory store can get wrong: leftovers of killed writers, full
 * disks, names that are no objects, files that somebody else changes, and memory that runs out.
 */
#include "faults.h"
#include "scratch.h"

#include <weft/store.h>

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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static scratch place;
static weft_context *context;
static weft_store *store;

static void expect(weft_status got, weft_status wanted, const char *text) {
    if (got != wanted || strstr(weft_context_error(context), text) == NULL) {
        fail_msg("status %d, not %d: \"%s\" should say \"%s\"", got, wanted, weft_context_error(context),
                 text);
    }
}

static int set_up(void **state) {
    (void)state;
    scratch_open(&place);
    if (weft_context_create(NULL, &context) != WEFT_OK) {
        return -1;
    }
    return weft_store_open(context, scratch_path(&place, "store"), NULL, &store) == WEFT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    weft_store_close(store);
    weft_context_destroy(context);
    scratch_close(&place);
    return 0;
}

static weft_status put(const char *key, const char *text) {
    return weft_store_put_bytes(context, store, key, text, strlen(text), WEFT_STORE_ALWAYS, NULL, NULL);
}

static weft_status get(const char *key, char text[64]) {
    weft_store_get_request request = {.size = sizeof request, .key = key, .length = 63, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(context, store, &request, &result);
    text[status == WEFT_OK ? result.received : 0] = '\0';
    return status;
}

/* ---- names ---- */

static void test_urls(void **state) {
    (void)state;
    char url[512];
    char text[64];
    weft_store *other = NULL;
    expect(put("a/b", "content"), WEFT_OK, "");
    snprintf(url, sizeof(url), "file://%s/", scratch_path(&place, "store"));
    expect(weft_store_open(context, url, NULL, &other), WEFT_OK, "");
    assert_string_equal(weft_store_url(other), url);
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(other, &traits);
    assert_string_equal(traits.directory, scratch_path(&place, "store"));
    assert_true(traits.conditional && !traits.paid && traits.poll_seconds == 0.02);
    weft_store_get_request request = {.size = sizeof request, .key = "a/b", .length = 63, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    expect(weft_store_get(context, other, &request, &result), WEFT_OK, "");
    assert_int_equal(result.received, 7);
    weft_store_close(other);
    scratch_write(&place, "file", "x", 1);
    expect(weft_store_open(context, scratch_path(&place, "file"), NULL, &other), WEFT_INVALID_ARGUMENT,
           "not a directory");
    expect(weft_store_watch(context, store, 0, 0, text, sizeof(text), &(size_t){0}), WEFT_UNSUPPORTED,
           "poll");
}

static void test_nothing_is_made_before_a_put(void **state) {
    (void)state;
    char text[64];
    expect(get("key", text), WEFT_NOT_FOUND, "store/key");
    expect(weft_store_remove(context, store, "key"), WEFT_OK, "");
    expect(weft_store_head(context, store, "key", NULL, NULL), WEFT_NOT_FOUND, "");
    assert_false(scratch_exists(&place, "store"));
    weft_store *deep = NULL;
    expect(weft_store_open(context, scratch_path(&place, "x/y/z"), NULL, &deep), WEFT_OK, "");
    expect(weft_store_put_bytes(context, deep, "a/b/c", "1", 1, WEFT_STORE_ALWAYS, NULL, NULL), WEFT_OK,
           "");
    assert_true(scratch_exists(&place, "x/y/z/a/b/c"));
    assert_int_equal(scratch_count(&place, "x/y/z"), 1);
    weft_store_close(deep);
}

static void test_no_objects(void **state) {
    (void)state;
    char text[64];
    expect(put("real", "content"), WEFT_OK, "");
    scratch_make_directory(&place, "store/directory");
    assert_int_equal(symlink("real", scratch_path(&place, "store/link")), 0);
    assert_int_equal(mkfifo(scratch_path(&place, "store/pipe"), 0600), 0);
    static const char *const names[] = {"directory", "link", "pipe", "real/below"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        expect(get(names[i], text), WEFT_NOT_FOUND, names[i]);
        expect(weft_store_head(context, store, names[i], NULL, NULL), WEFT_NOT_FOUND, names[i]);
        expect(weft_store_remove(context, store, names[i]), WEFT_OK, "");
    }
    assert_true(scratch_exists(&place, "store/link"));
    assert_true(scratch_exists(&place, "store/pipe"));
    expect(put("directory", "x"), WEFT_IO_FAILED, "directory");
    expect(put("real/below", "x"), WEFT_IO_FAILED, "real");
    expect(put("link", "x"), WEFT_OK, "");
    expect(get("real", text), WEFT_OK, "");
    assert_string_equal(text, "content");
    assert_int_equal(scratch_count(&place, "store"), 4);
}

static bool count_visit(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)size;
    assert_true(age_seconds >= 0);
    assert_true(weft_store_key_valid(key));
    ++*(size_t *)opaque;
    return true;
}

static void test_list_passes_over_strangers(void **state) {
    (void)state;
    size_t count = 0;
    expect(weft_store_list(context, store, "", count_visit, &count), WEFT_OK, "");
    expect(put("a", "1"), WEFT_OK, "");
    expect(put("b/c", "1"), WEFT_OK, "");
    scratch_write(&place, "store/.hidden", "x", 1);
    scratch_write(&place, "store/not a key", "x", 1);
    scratch_make_directory(&place, "store/b/.d");
    scratch_write(&place, "store/b/.d/e", "x", 1);
    assert_int_equal(symlink(".", scratch_path(&place, "store/b/loop")), 0);
    expect(weft_store_list(context, store, "", count_visit, &count), WEFT_OK, "");
    assert_int_equal(count, 2);
}

/* ---- tags ---- */

static void test_tags_differ(void **state) {
    (void)state;
    enum { PUTS = 200 };
    static weft_store_tag tags[PUTS];
    weft_store_options options = {.size = sizeof options, .volatile_writes = true};
    weft_store *quick = NULL;
    expect(weft_store_open(context, scratch_path(&place, "store"), &options, &quick), WEFT_OK, "");
    for (size_t i = 0; i < PUTS; i++) {
        uint32_t value = (uint32_t)i;
        expect(weft_store_put_bytes(context, quick, "key", &value, sizeof(value), WEFT_STORE_ALWAYS, NULL,
                                    &tags[i]),
               WEFT_OK, "");
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(tags[i].text, tags[j].text);
        }
    }
    weft_store_tag last;
    expect(weft_store_head(context, quick, "key", NULL, &last), WEFT_OK, "");
    assert_string_equal(last.text, tags[PUTS - 1].text);
    weft_store_close(quick);
}

static void test_changed_by_hand(void **state) {
    (void)state;
    weft_store_tag tag;
    expect(weft_store_put_bytes(context, store, "key", "one", 3, WEFT_STORE_ALWAYS, NULL, &tag), WEFT_OK,
           "");
    scratch_write(&place, "store/key", "two", 3);
    expect(weft_store_put_bytes(context, store, "key", "six", 3, WEFT_STORE_IF_SAME, &tag, NULL),
           WEFT_CONFLICT, "no longer");
    char text[64];
    expect(get("key", text), WEFT_OK, "");
    assert_string_equal(text, "two");
    expect(weft_store_put_bytes(context, store, "key", "six", 3, WEFT_STORE_IF_ABSENT, NULL, NULL),
           WEFT_CONFLICT, "exists already");
}

/* ---- killed writers ---- */

typedef struct endless {
    int ready;
} endless;

static weft_status read_endlessly(void *opaque, uint64_t offset, void *data, size_t capacity,
                                  size_t *count_out) {
    endless *self = opaque;
    if (offset > 0) {
        (void)!write(self->ready, "x", 1);
        pause();
    }
    memset(data, 'x', capacity);
    *count_out = capacity;
    return WEFT_OK;
}

/* A process that hangs in the middle of a put. */
static pid_t start_writer(void) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        endless endless = {ends[1]};
        weft_store_put_request request = {
            .size = sizeof request,
            .key = "huge",
            .feed = {.size = UINT64_MAX, .read = read_endlessly, .opaque = &endless}};
        (void)!weft_store_put(context, store, &request, NULL);
        _exit(0);
    }
    char byte = 0;
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void test_killed_writers_are_swept(void **state) {
    (void)state;
    pid_t dead = start_writer();
    kill(dead, SIGKILL);
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    assert_int_equal(scratch_count(&place, "store"), 1);
    pid_t alive = start_writer();
    /* the second writer's put was the first of its store, and swept */
    assert_int_equal(scratch_count(&place, "store"), 1);
    expect(put("key", "content"), WEFT_OK, "");
    assert_int_equal(scratch_count(&place, "store"), 2);
    assert_false(scratch_exists(&place, "store/huge"));
    kill(alive, SIGKILL);
    assert_int_equal(waitpid(alive, NULL, 0), alive);
    weft_store_close(store);
    expect(weft_store_open(context, scratch_path(&place, "store"), NULL, &store), WEFT_OK, "");
    expect(put("key", "content"), WEFT_OK, "");
    assert_int_equal(scratch_count(&place, "store"), 1);
}

/* ---- disks ---- */

static weft_status read_zeros(void *opaque, uint64_t offset, void *data, size_t capacity,
                              size_t *count_out) {
    (void)opaque;
    (void)offset;
    memset(data, 0, capacity);
    *count_out = capacity;
    return WEFT_OK;
}

static void test_full_disk(void **state) {
    (void)state;
    scratch_make_directory(&place, "store");
    if (mount("none", scratch_path(&place, "store"), "tmpfs", 0, "size=1m") != 0) {
        print_message("full disks: no tmpfs can be mounted here: %s\n", strerror(errno));
        skip();
    }
    weft_store_put_request request = {
        .size = sizeof request, .key = "huge", .feed = {.size = 4 << 20, .read = read_zeros}};
    weft_status status = weft_store_put(context, store, &request, NULL);
    size_t left = scratch_count(&place, "store");
    char text[512];
    snprintf(text, sizeof(text), "%s", weft_context_error(context));
    weft_status small = put("key", "content");
    umount(scratch_path(&place, "store"));
    assert_int_equal(status, WEFT_NO_SPACE);
    assert_non_null(strstr(text, "No space left"));
    assert_non_null(strstr(text, "huge"));
    assert_int_equal(left, 0);
    assert_int_equal(small, WEFT_OK);
}

/* Root may do everything, so a child that is not root tries. */
static void test_forbidden(void **state) {
    (void)state;
    expect(put("open/key", "content"), WEFT_OK, "");
    expect(put("shut/key", "content"), WEFT_OK, "");
    assert_int_equal(chmod(scratch_path(&place, "store/shut"), 0), 0);
    assert_int_equal(chmod(scratch_path(&place, "store"), 0555), 0);
    assert_int_equal(chmod(place.directory, 0755), 0);
    pid_t child = fork();
    if (child == 0) {
        char text[64];
        size_t count = 0;
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
            _exit(2);
        }
        bool right = get("open/key", text) == WEFT_OK && get("shut/key", text) == WEFT_IO_FAILED &&
                     strstr(weft_context_error(context), "Permission denied") != NULL &&
                     put("key", "x") == WEFT_IO_FAILED &&
                     strstr(weft_context_error(context), "Permission denied") != NULL &&
                     weft_store_list(context, store, "", count_visit, &count) == WEFT_IO_FAILED &&
                     weft_store_remove(context, store, "open/key") == WEFT_IO_FAILED;
        _exit(right ? 0 : 1);
    }
    int outcome = 0;
    assert_int_equal(waitpid(child, &outcome, 0), child);
    chmod(scratch_path(&place, "store"), 0755);
    chmod(scratch_path(&place, "store/shut"), 0755);
    assert_true(WIFEXITED(outcome));
    if (WEXITSTATUS(outcome) == 2) {
        print_message("forbidden directories: root cannot become somebody else here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(outcome), 0);
}

/* ---- memory ---- */

static void test_no_memory(void **state) {
    (void)state;
    for (size_t n = 1;; n++) {
        faults faults = {0};
        weft_context_options options = {.size = sizeof options, .allocator = faults_allocator(&faults)};
        weft_context *failing = NULL;
        weft_store *opened = NULL;
        faults_reset(&faults, n + 1); /* the context itself is the first */
        assert_int_equal(weft_context_create(&options, &failing), WEFT_OK);
        weft_status status = weft_store_open(failing, scratch_path(&place, "store"), NULL, &opened);
        if (status == WEFT_OK) {
            status =
                weft_store_put_bytes(failing, opened, "key", "content", 7, WEFT_STORE_ALWAYS, NULL, NULL);
            assert_int_equal(scratch_exists(&place, "store/key"), status == WEFT_OK);
        } else {
            assert_null(opened);
        }
        weft_store_close(opened);
        weft_context_destroy(failing);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            assert_int_equal(status, WEFT_OK);
            assert_true(n > 4);
            break;
        }
        assert_int_equal(status, WEFT_NO_MEMORY);
    }
    assert_int_equal(scratch_count(&place, "store"), 1);
}

/* ---- a table of one's own ---- */

static void test_own_table(void **state) {
    (void)state;
    weft_store_operations none = {.size = sizeof none, .name = "none"};
    weft_store *made = NULL;
    expect(weft_store_create(context, "none", &none, NULL, &made), WEFT_INVALID_ARGUMENT, "needs");
    assert_null(made);
    expect(weft_store_create(context, NULL, NULL, NULL, &made), WEFT_INVALID_ARGUMENT, "needs");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_urls),
        TEST(test_nothing_is_made_before_a_put),
        TEST(test_no_objects),
        TEST(test_list_passes_over_strangers),
        TEST(test_tags_differ),
        TEST(test_changed_by_hand),
        TEST(test_killed_writers_are_swept),
        TEST(test_full_disk),
        TEST(test_forbidden),
        TEST(test_no_memory),
        TEST(test_own_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
