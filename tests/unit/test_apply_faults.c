/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of opening, applying, rebuilding, in-place work, recovery and merging fails once:
 * nothing leaks, weights and files are at the old state or at the new one, and no file is left over.
 */
#include "../../lib/patch/apply/journal.h"
#include "../../lib/tensor/checkpoint/checkpoint.h"
#include "faults.h"
#include "patches.h"
#include "scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BUCKET = 32 * 1024, SHAPES = 5 };

static const tensor_shape shapes[SHAPES] = {
    {"embed", WEFT_DTYPE_BF16, 400, 60}, {"layer.up", WEFT_DTYPE_BF16, 40, 60},
    {"norm", WEFT_DTYPE_F32, 60, 0},     {"scale", WEFT_DTYPE_U8, 301, 0},
    {"wide", WEFT_DTYPE_F64, 30, 9},
};

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

static weft_context *failing_context(faults *faults, unsigned threads, uint64_t stage_bytes) {
    weft_context_options options = {
        .size = sizeof options,
        .allocator = faults_allocator(faults),
        .threads = threads,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = stage_bytes}};
    weft_context *context = NULL;
    return weft_context_create(&options, &context) == WEFT_OK ? context : NULL;
}

/* Changes of several kinds: sparse in most tensors, everything in one. */
static void open_pair(pair *pair, weft_context *context, weft_profile profile) {
    pair_open(pair, context, shapes, SHAPES, WEIGHTS_TRAINED, 80);
    pair_change(pair, CHANGE_MIXED, 20000, 81);
    dice dice = {82};
    weights_change(&dice, CHANGE_RANDOM, 1, pair->news[3], shape_units(&shapes[3]), 1000000);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    pair_diff(pair, &options);
}

/* ---- live weights ---- */

/* "embed" lies behind callbacks. */
typedef struct far_tensor {
    uint8_t *memory;
    size_t bytes;
} far_tensor;

static weft_status far_read(void *opaque, uint64_t offset, void *output, size_t size) {
    const far_tensor *tensor = opaque;
    memcpy(output, tensor->memory + offset, size);
    return WEFT_OK;
}

static weft_status far_gather(void *opaque, const uint64_t *words, size_t count, void *output) {
    const far_tensor *tensor = opaque;
    for (size_t i = 0; i < count; i++) {
        size_t left = tensor->bytes - 16 * (size_t)words[i];
        memcpy((uint8_t *)output + 16 * i, tensor->memory + 16 * words[i], left < 16 ? left : 16);
    }
    return WEFT_OK;
}

static weft_status far_scatter(void *opaque, const uint64_t *units, size_t count, const void *values) {
    const far_tensor *tensor = opaque;
    for (size_t i = 0; i < count; i++) {
        memcpy(tensor->memory + 2 * units[i], (const uint8_t *)values + 2 * i, 2);
    }
    return WEFT_OK;
}

static const weft_access far_access = {far_read, far_gather, far_scatter};

typedef struct live {
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    weft_patch *patch;
    weft_apply *apply;
    far_tensor far;
} live;

static weft_status open_live(live *live, weft_context *context, const pair *pair, bool far) {
    weft_status status = weft_table_create(context, &live->table);
    for (size_t i = 0; i < SHAPES && status == WEFT_OK; i++) {
        weft_tensor tensor = *weft_table_at(pair->live.table, i);
        if (far && i == 0) {
            live->far = (far_tensor){tensor.data, (size_t)tensor.bytes};
            tensor.access = &far_access;
            tensor.opaque = &live->far;
        }
        status = weft_table_add(live->table, &tensor);
    }
    if (status == WEFT_OK) {
        status = weft_view_create(context, live->table, &live->view);
    }
    if (status == WEFT_OK) {
        status = weft_sums_compute(context, live->view, &live->sums);
    }
    weft_source source = bytes_source(&pair->file);
    if (status == WEFT_OK) {
        status = weft_patch_open(context, &source, &live->patch);
    }
    if (status == WEFT_OK) {
        status = weft_apply_create(context, live->patch, live->view, live->sums, &live->apply);
    }
    return status;
}

static void close_live(live *live) {
    weft_apply_destroy(live->apply);
    weft_patch_close(live->patch);
    weft_sums_destroy(live->sums);
    weft_view_destroy(live->view);
    weft_table_destroy(live->table);
}

/* Prepare and commit, in as many steps as it takes. */
static weft_status commit_all(weft_apply *apply, bool *committed) {
    weft_status status;
    do {
        status = weft_apply_prepare(apply);
        if (status < 0) {
            return status;
        }
        weft_status done = weft_apply_commit(apply);
        if (done != WEFT_OK) {
            return done;
        }
        *committed = true;
    } while (status == WEFT_MORE);
    return status;
}

typedef struct live_case {
    weft_profile profile;
    bool far;
    bool run;
    unsigned threads;
    uint64_t stage_bytes;
} live_case;

/* Whatever fails: no memory stays behind, and the weights are untouched unless a step was committed or a
 * run was under way. */
static void fail_live(const live_case *c) {
    weft_context *plain = patches_context(1);
    pair pair;
    open_pair(&pair, plain, c->profile);
    faults faults = {0};
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        faults_reset(&faults, n);
        live live = {0};
        bool committed = false;
        weft_status status = WEFT_NO_MEMORY;
        weft_context *context = failing_context(&faults, c->threads, c->stage_bytes);
        if (context != NULL) {
            status = open_live(&live, context, &pair, c->far);
            if (status == WEFT_OK) {
                status = c->run ? weft_apply_run(live.apply) : commit_all(live.apply, &committed);
            }
            close_live(&live);
        }
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (status == WEFT_OK) {
            assert_true(pair_at_new(&pair));
            if (!faults_fired(&faults)) {
                break;
            }
        } else {
            assert_int_equal(status, WEFT_NO_MEMORY);
            failures++;
            assert_true(c->run || committed || pair_at_old(&pair));
        }
        pair_reset(&pair);
    }
    assert_true(failures > 20);
    pair_close(&pair);
    weft_context_destroy(plain);
}

static void test_live(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        for (int far = 0; far < 2; far++) {
            fail_live(&(live_case){profiles[p], far != 0, false, 1, 0});
            fail_live(&(live_case){profiles[p], far != 0, true, 1, 0});
        }
        fail_live(&(live_case){profiles[p], true, false, 1, 70000});
        fail_live(&(live_case){profiles[p], true, false, 3, 0});
        fail_live(&(live_case){profiles[p], true, true, 3, 0});
    }
}

/* ---- files ---- */

typedef struct place {
    weft_context *plain;
    scratch scratch;
    pair pair;
    model more;    /* another set of tensors */
    bytes kept;    /* base to next */
    bytes changed; /* next to more */
    size_t entries;
} place;

static void write_model(place *place, const model *model, const char *name) {
    assert_int_equal(
        weft_table_write(place->plain, model->table, scratch_path(&place->scratch, name), NULL), WEFT_OK);
}

/* The patch between two of the files, containers included. */
static void diff_files(place *place, const char *from, const char *to, weft_profile profile, bytes *patch) {
    weft_checkpoint *base = NULL;
    weft_checkpoint *next = NULL;
    weft_view *views[2] = {NULL, NULL};
    weft_context *context = place->plain;
    assert_int_equal(
        weft_checkpoint_open(context, scratch_path(&place->scratch, from), WEFT_OPEN_READ, &base), WEFT_OK);
    assert_int_equal(
        weft_checkpoint_open(context, scratch_path(&place->scratch, to), WEFT_OPEN_READ, &next), WEFT_OK);
    assert_int_equal(weft_view_create(context, weft_checkpoint_table(base), &views[0]), WEFT_OK);
    assert_int_equal(weft_view_create(context, weft_checkpoint_table(next), &views[1]), WEFT_OK);
    weft_sink sink = bytes_sink(patch);
    weft_diff_options options = {.size = sizeof options,
                                 .profile = profile,
                                 .bucket_bytes = BUCKET,
                                 .base_container = weft_checkpoint_container(base),
                                 .new_container = weft_checkpoint_container(next)};
    assert_int_equal(weft_diff(context, views[0], views[1], &options, &sink, NULL), WEFT_OK);
    weft_view_destroy(views[0]);
    weft_view_destroy(views[1]);
    weft_checkpoint_close(base);
    weft_checkpoint_close(next);
}

/* Files base, next and more, and the patches from each to the one after it. */
static void place_open(place *place, weft_profile profile) {
    memset(place, 0, sizeof *place);
    place->plain = patches_context(1);
    scratch_open(&place->scratch);
    open_pair(&place->pair, place->plain, profile);
    model_open(&place->more, place->plain);
    for (size_t i = 1; i < SHAPES; i++) {
        const tensor_shape *s = &shapes[i];
        memcpy(model_add(&place->more, s->name, s->dtype, s->rows, s->columns), place->pair.news[i],
               shape_units(s) * weft_dtype_width(s->dtype));
    }
    model_add(&place->more, "bias", WEFT_DTYPE_F16, 50, 0);
    write_model(place, &place->pair.live, "base");
    write_model(place, &place->pair.next, "next");
    write_model(place, &place->more, "more");
    diff_files(place, "base", "next", profile, &place->kept);
    diff_files(place, "next", "more", profile, &place->changed);
}

static void place_close(place *place) {
    bytes_clear(&place->kept);
    bytes_clear(&place->changed);
    model_close(&place->more);
    pair_close(&place->pair);
    scratch_close(&place->scratch);
    weft_context_destroy(place->plain);
}

static bool same_file(scratch *scratch, const char *a, const char *b) {
    size_t a_size;
    size_t b_size;
    void *a_data = scratch_read(scratch, a, &a_size);
    void *b_data = scratch_read(scratch, b, &b_size);
    bool same = a_size == b_size && memcmp(a_data, b_data, a_size) == 0;
    free(a_data);
    free(b_data);
    return same;
}

static void copy_file(scratch *scratch, const char *from, const char *to) {
    size_t size;
    void *data = scratch_read(scratch, from, &size);
    scratch_write(scratch, to, data, size);
    free(data);
}

/* Opens both patches, or the first `count`. */
static weft_status open_patches(weft_context *context, const place *place, size_t count,
                                weft_patch **patches) {
    const bytes *files[] = {&place->kept, &place->changed};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        weft_source source = bytes_source(files[i]);
        status = weft_patch_open(context, &source, &patches[i]);
    }
    return status;
}

static weft_status try_rebuild(weft_context *context, place *place, size_t count) {
    weft_patch *patches[2] = {NULL, NULL};
    weft_checkpoint *base = NULL;
    weft_status status = open_patches(context, place, count, patches);
    if (status == WEFT_OK) {
        status =
            weft_checkpoint_open(context, scratch_path(&place->scratch, "base"), WEFT_OPEN_READ, &base);
    }
    if (status == WEFT_OK) {
        status = weft_apply_rebuild(context, base, (const weft_patch *const *)patches, count,
                                    scratch_path(&place->scratch, "out"), true, NULL);
    }
    weft_checkpoint_close(base);
    weft_patch_close(patches[0]);
    weft_patch_close(patches[1]);
    return status;
}

static void fail_rebuild(weft_profile profile, size_t count) {
    place place;
    place_open(&place, profile);
    copy_file(&place.scratch, "base", "copy");
    faults faults = {0};
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        faults_reset(&faults, n);
        weft_context *context = failing_context(&faults, 1, 0);
        weft_status status = context != NULL ? try_rebuild(context, &place, count) : WEFT_NO_MEMORY;
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        assert_true(same_file(&place.scratch, "base", "copy"));
        if (status == WEFT_OK) {
            assert_true(same_file(&place.scratch, "out", count == 1 ? "next" : "more"));
            assert_int_equal(unlink(scratch_path(&place.scratch, "out")), 0);
        } else {
            assert_int_equal(status, WEFT_NO_MEMORY);
            failures++;
        }
        assert_int_equal(scratch_count(&place.scratch, ""), 4);
        if (!faults_fired(&faults)) {
            break;
        }
    }
    assert_true(failures > 50);
    place_close(&place);
}

static void test_rebuild(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        fail_rebuild(profiles[p], 1);
        fail_rebuild(profiles[p], 2);
    }
}

static weft_status try_in_place(weft_context *context, place *place, size_t count) {
    weft_patch *patches[2] = {NULL, NULL};
    weft_status status = open_patches(context, place, count, patches);
    if (status == WEFT_OK) {
        status = weft_apply_in_place(context, scratch_path(&place->scratch, "here"),
                                     (const weft_patch *const *)patches, count, false, NULL);
    }
    weft_patch_close(patches[0]);
    weft_patch_close(patches[1]);
    return status;
}

/* What was begun and journaled is finished by the next one who comes by. */
static void fail_in_place(weft_profile profile, size_t count, uint64_t stage_bytes) {
    place place;
    place_open(&place, profile);
    scratch *scratch = &place.scratch;
    faults faults = {0};
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        copy_file(scratch, "base", "here");
        faults_reset(&faults, n);
        weft_context *context = failing_context(&faults, 1, stage_bytes);
        weft_status status = context != NULL ? try_in_place(context, &place, count) : WEFT_NO_MEMORY;
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        assert_int_equal(weft_apply_recover(place.plain, scratch_path(scratch, "here"), NULL), WEFT_OK);
        if (status == WEFT_OK) {
            assert_true(same_file(scratch, "here", count == 1 ? "next" : "more"));
        } else {
            assert_int_equal(status, WEFT_NO_MEMORY);
            failures++;
            assert_true(same_file(scratch, "here", "base") || same_file(scratch, "here", "next") ||
                        (count == 2 && same_file(scratch, "here", "more")));
        }
        assert_int_equal(scratch_count(scratch, ""), 4);
        if (!faults_fired(&faults)) {
            break;
        }
    }
    assert_true(failures > 50);
    place_close(&place);
}

static void test_in_place(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        fail_in_place(profiles[p], 1, 0);
        fail_in_place(profiles[p], 1, 70000);
        fail_in_place(profiles[p], 2, 0);
    }
}

/* ---- recovery ---- */

/* Writes the journal of an in-place apply to "here", as a process would that is killed right after. */
static void leave_journal(place *place) {
    weft_context *context = place->plain;
    weft_checkpoint *checkpoint = NULL;
    weft_view *view = NULL;
    weft_apply *apply = NULL;
    char *path = NULL;
    const char *here = scratch_path(&place->scratch, "here");
    assert_int_equal(weft_checkpoint_open(context, here, WEFT_OPEN_WRITE, &checkpoint), WEFT_OK);
    assert_int_equal(weft_view_create(context, weft_checkpoint_table(checkpoint), &view), WEFT_OK);
    weft_sums *sums = patches_sums(context, view);
    weft_patch *patch = patches_open(context, &place->kept);
    assert_int_equal(weft_apply_create(context, patch, view, sums, &apply), WEFT_OK);
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
    weft_patch_close(patch);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_checkpoint_close(checkpoint);
}

static void test_recovery(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        place place;
        place_open(&place, profiles[p]);
        scratch *scratch = &place.scratch;
        faults faults = {0};
        size_t failures = 0;
        for (size_t n = 1;; n++) {
            copy_file(scratch, "base", "here");
            leave_journal(&place);
            assert_true(same_file(scratch, "here", "base"));
            faults_reset(&faults, n);
            bool recovered = false;
            weft_context *context = failing_context(&faults, 1, 0);
            weft_status status =
                context != NULL ? weft_apply_recover(context, scratch_path(scratch, "here"), &recovered)
                                : WEFT_NO_MEMORY;
            weft_context_destroy(context);
            assert_int_equal(faults_live_blocks(&faults), 0);
            if (status != WEFT_OK) {
                assert_int_equal(status, WEFT_NO_MEMORY);
                assert_false(recovered);
                failures++;
                assert_int_equal(weft_apply_recover(place.plain, scratch_path(scratch, "here"), &recovered),
                                 WEFT_OK);
            }
            assert_true(recovered);
            assert_true(same_file(scratch, "here", "next"));
            assert_int_equal(scratch_count(scratch, ""), 4);
            if (!faults_fired(&faults)) {
                break;
            }
        }
        assert_true(failures > 10);
        place_close(&place);
    }
}

/* ---- merging ---- */

static weft_status try_merge(weft_context *context, const pair *pair, const bytes *second, bool with_base,
                             bytes *output) {
    weft_source sources[] = {bytes_source(&pair->file), bytes_source(second)};
    weft_patch *patches[2] = {NULL, NULL};
    weft_sink sink = bytes_sink(output);
    weft_merge_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_SMALL, .base = with_base ? pair->live.view : NULL};
    weft_status status = weft_patch_open(context, &sources[0], &patches[0]);
    if (status == WEFT_OK) {
        status = weft_patch_open(context, &sources[1], &patches[1]);
    }
    if (status == WEFT_OK) {
        status = weft_merge(context, (const weft_patch *const *)patches, 2, &options, &sink, NULL);
    }
    weft_patch_close(patches[0]);
    weft_patch_close(patches[1]);
    return status;
}

static void fail_merge(weft_profile profile, bool with_base, unsigned threads) {
    weft_context *plain = patches_context(1);
    pair pair;
    pair_open(&pair, plain, shapes, SHAPES, WEIGHTS_TRAINED, 90);
    pair_change(&pair, CHANGE_MIXED, 20000, 91);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = BUCKET};
    pair_diff(&pair, &options);
    model last;
    model_open(&last, plain);
    dice dice = {92};
    for (size_t i = 0; i < SHAPES; i++) {
        const tensor_shape *s = &shapes[i];
        uint8_t *memory = model_add(&last, s->name, s->dtype, s->rows, s->columns);
        memcpy(memory, pair.news[i], shape_units(s) * weft_dtype_width(s->dtype));
        weights_change(&dice, CHANGE_ULP, weft_dtype_width(s->dtype), memory, shape_units(s), 20000);
    }
    bytes second = {0};
    weft_sink sink = bytes_sink(&second);
    assert_int_equal(weft_diff(plain, pair.next.view, model_show(&last), &options, &sink, NULL), WEFT_OK);

    faults faults = {0};
    bytes first_output = {0};
    size_t failures = 0;
    assert_int_equal(try_merge(plain, &pair, &second, with_base, &first_output), WEFT_OK);
    for (size_t n = 1;; n++) {
        bytes output = {0};
        faults_reset(&faults, n);
        weft_context *context = failing_context(&faults, threads, 0);
        weft_status status =
            context != NULL ? try_merge(context, &pair, &second, with_base, &output) : WEFT_NO_MEMORY;
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (status == WEFT_OK) {
            assert_int_equal(output.size, first_output.size);
            assert_memory_equal(output.data, first_output.data, output.size);
        } else {
            assert_int_equal(status, WEFT_NO_MEMORY);
            failures++;
        }
        bytes_clear(&output);
        if (!faults_fired(&faults)) {
            break;
        }
    }
    assert_true(failures > 20);
    bytes_clear(&first_output);
    bytes_clear(&second);
    model_close(&last);
    pair_close(&pair);
    weft_context_destroy(plain);
}

static void test_merge(void **state) {
    (void)state;
    fail_merge(WEFT_PROFILE_FAST, false, 1);
    fail_merge(WEFT_PROFILE_FAST, true, 1);
    fail_merge(WEFT_PROFILE_SMALL, true, 1);
    fail_merge(WEFT_PROFILE_SMALL, true, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live),     cmocka_unit_test(test_rebuild), cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_recovery), cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
