/* SPDX-License-Identifier: Apache-2.0
 *
 * test_patch_journal.c: what recovery does when the checkpoint beside a journal is not as the kill left it,
 * and who is kept out while a checkpoint is changed in place.
 */
#include "../../lib/patch/apply/journal.h"
#include "../../lib/tensor/checkpoint/checkpoint.h"
#include "patches.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

/* A checkpoint "base", its successor "next", the patch between them, and a directory to work in. */
typedef struct place {
    scratch scratch;
    pair pair;
} place;

static void write_model(place *place, const model *model, const char *name) {
    assert_int_equal(
        weft_table_write(place->pair.context, model->table, scratch_path(&place->scratch, name), NULL),
        WEFT_OK);
}

static void place_open(place *place, weft_context *context, unsigned per_million) {
    scratch_open(&place->scratch);
    pair_open(&place->pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 1);
    pair_change(&place->pair, CHANGE_MIXED, per_million, 2);
    weft_diff_options options = {.size = sizeof options, .profile = WEFT_PROFILE_SMALL};
    pair_diff(&place->pair, &options);
    write_model(place, &place->pair.live, "base");
    write_model(place, &place->pair.next, "next");
}

static void place_close(place *place) {
    pair_close(&place->pair);
    scratch_close(&place->scratch);
}

static void copy_file(scratch *scratch, const char *from, const char *to) {
    size_t size;
    void *data = scratch_read(scratch, from, &size);
    scratch_write(scratch, to, data, size);
    free(data);
}

static bool same_file(scratch *scratch, const char *a, const char *b) {
    size_t size_a;
    size_t size_b;
    void *data_a = scratch_read(scratch, a, &size_a);
    void *data_b = scratch_read(scratch, b, &size_b);
    bool same = size_a == size_b && memcmp(data_a, data_b, size_a) == 0;
    free(data_a);
    free(data_b);
    return same;
}

/* The journal of an in-place apply to "here", as a process leaves it that is killed right after. */
static void leave_journal(place *place) {
    weft_context *context = place->pair.context;
    weft_checkpoint *checkpoint = NULL;
    weft_view *view = NULL;
    weft_apply *apply = NULL;
    char *path = NULL;
    const char *here = scratch_path(&place->scratch, "here");
    assert_int_equal(weft_checkpoint_open(context, here, WEFT_OPEN_WRITE, &checkpoint), WEFT_OK);
    assert_int_equal(weft_view_create(context, weft_checkpoint_table(checkpoint), &view), WEFT_OK);
    weft_sums *sums = patches_sums(context, view);
    assert_int_equal(weft_apply_create(context, place->pair.patch, view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_journal_path(context, here, &path), WEFT_OK);
    weft_journal journal;
    assert_int_equal(weft_journal_open(&journal, context, path, weft_checkpoint_table(checkpoint), true),
                     WEFT_OK);
    assert_int_equal(weft_journal_append(&journal, apply), WEFT_OK);
    assert_int_equal(weft_journal_publish(&journal), WEFT_OK);
    weft_journal_close(&journal);
    weft_release(context, path);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_checkpoint_close(checkpoint);
}

/* Whatever share of the bytes had been written, the new state is reached. */
static void test_half_written(void **state) {
    (void)state;
    const unsigned densities[] = {10000, 900000};
    for (size_t d = 0; d < 2; d++) {
        weft_context *context = patches_context(2);
        place place;
        place_open(&place, context, densities[d]);
        scratch *scratch = &place.scratch;
        for (unsigned share = 0; share <= 4; share++) {
            size_t size;
            uint8_t *bytes = scratch_read(scratch, "base", &size);
            uint8_t *news = scratch_read(scratch, "next", &size);
            copy_file(scratch, "base", "here");
            leave_journal(&place);
            for (size_t i = 0; i < size; i++) {
                bytes[i] = i % 4 < share ? news[i] : bytes[i];
            }
            scratch_write(scratch, "here", bytes, size);
            bool recovered = false;
            assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), &recovered),
                             WEFT_OK);
            assert_true(recovered);
            assert_true(same_file(scratch, "here", "next"));
            free(bytes);
            free(news);
        }
        place_close(&place);
        weft_context_destroy(context);
    }
}

/* A checkpoint that somebody put there since is not written to. */
static void test_replaced(void **state) {
    (void)state;
    const unsigned densities[] = {10000, 900000};
    for (size_t d = 0; d < 2; d++) {
        weft_context *context = patches_context(2);
        place place;
        place_open(&place, context, densities[d]);
        scratch *scratch = &place.scratch;
        pair_change(&place.pair, CHANGE_RANDOM, 900000, 3);
        write_model(&place, &place.pair.next, "other");
        copy_file(scratch, "base", "here");
        leave_journal(&place);
        copy_file(scratch, "other", "here");
        bool recovered = false;
        assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), &recovered),
                         WEFT_BASE_MISMATCH);
        assert_false(recovered);
        assert_non_null(strstr(weft_context_error(context), "here.weft-journal"));
        assert_true(same_file(scratch, "here", "other"));
        assert_true(scratch_exists(scratch, "here.weft-journal"));
        place_close(&place);
        weft_context_destroy(context);
    }
}

/* Whoever changes a file keeps out whoever changes the directory that it is in, and the other way round. */
static void test_file_and_directory(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    place place;
    place_open(&place, context, 10000);
    scratch *scratch = &place.scratch;
    const weft_patch *list[] = {place.pair.patch};
    scratch_make_directory(scratch, "dir");
    copy_file(scratch, "base", "dir/model.safetensors");
    int holder = open(scratch_path(scratch, "dir/model.safetensors"), O_RDONLY | O_CLOEXEC);
    assert_true(holder >= 0);
    assert_int_equal(flock(holder, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(weft_apply_in_place(context, scratch_path(scratch, "dir"), list, 1, false, NULL),
                     WEFT_BUSY);
    assert_true(same_file(scratch, "dir/model.safetensors", "base"));
    close(holder);
    assert_int_equal(weft_apply_in_place(context, scratch_path(scratch, "dir"), list, 1, true, NULL),
                     WEFT_OK);
    assert_true(same_file(scratch, "dir/model.safetensors", "next"));
    place_close(&place);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_written),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_file_and_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
