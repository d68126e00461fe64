/* SPDX-License-Identifier: Apache-2.0
 *
 * Patches between checkpoints on disk: every byte comes back, forwards and backwards, for every dtype and
 * density; tensors that come and go; chains; in place, with its journal, its locks and its leftovers.
 */
#include "../../lib/patch/format/patch.h"
#include "patches.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024, PATCHES_MAX = 8 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

/* ---- files ---- */

static void expect_same_files(scratch *scratch, const char *a, const char *b) {
    size_t a_size;
    size_t b_size;
    uint8_t *a_data = scratch_read(scratch, a, &a_size);
    uint8_t *b_data = scratch_read(scratch, b, &b_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a_data, b_data, a_size);
    free(a_data);
    free(b_data);
}

static void copy_file(scratch *scratch, const char *from, const char *to) {
    size_t size;
    void *data = scratch_read(scratch, from, &size);
    scratch_write(scratch, to, data, size);
    free(data);
}

static void write_model(scratch *scratch, const model *model, const char *name,
                        const weft_write_options *options) {
    weft_status status =
        weft_table_write(model->context, model->table, scratch_path(scratch, name), options);
    assert_string_equal(weft_context_error(model->context), "");
    assert_int_equal(status, WEFT_OK);
}

static weft_checkpoint *open_checkpoint(weft_context *context, scratch *scratch, const char *name) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status =
        weft_checkpoint_open(context, scratch_path(scratch, name), WEFT_OPEN_READ, &checkpoint);
    assert_string_equal(weft_context_error(context), "");
    assert_int_equal(status, WEFT_OK);
    return checkpoint;
}

/* The patch between two checkpoints, and with `inverse` the way back. */
static void diff_files(weft_context *context, scratch *scratch, const char *from, const char *to,
                       weft_profile profile, bytes *patch, bytes *inverse) {
    weft_checkpoint *base = open_checkpoint(context, scratch, from);
    weft_checkpoint *next = open_checkpoint(context, scratch, to);
    weft_view *base_view = NULL;
    weft_view *next_view = NULL;
    assert_int_equal(weft_view_create(context, weft_checkpoint_table(base), &base_view), WEFT_OK);
    assert_int_equal(weft_view_create(context, weft_checkpoint_table(next), &next_view), WEFT_OK);
    patch->size = 0;
    weft_sink sink = bytes_sink(patch);
    weft_sink back = {0};
    if (inverse != NULL) {
        inverse->size = 0;
        back = bytes_sink(inverse);
    }
    weft_diff_options options = {.size = sizeof options,
                                 .profile = profile,
                                 .bucket_bytes = SMALL_BUCKET,
                                 .base_container = weft_checkpoint_container(base),
                                 .new_container = weft_checkpoint_container(next),
                                 .inverse = inverse != NULL ? &back : NULL};
    assert_int_equal(weft_diff(context, base_view, next_view, &options, &sink, NULL), WEFT_OK);
    weft_view_destroy(base_view);
    weft_view_destroy(next_view);
    weft_checkpoint_close(base);
    weft_checkpoint_close(next);
}

static weft_status rebuild(weft_context *context, scratch *scratch, const char *base,
                           const bytes *const *files, size_t count, const char *output,
                           weft_digest *digest) {
    weft_checkpoint *checkpoint = open_checkpoint(context, scratch, base);
    weft_patch *patches[PATCHES_MAX];
    for (size_t i = 0; i < count; i++) {
        patches[i] = patches_open(context, files[i]);
    }
    weft_status status = weft_apply_rebuild(context, checkpoint, (const weft_patch *const *)patches, count,
                                            scratch_path(scratch, output), false, digest);
    for (size_t i = 0; i < count; i++) {
        weft_patch_close(patches[i]);
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

static weft_status in_place(weft_context *context, scratch *scratch, const char *name,
                            const bytes *const *files, size_t count, bool durable, weft_digest *digest) {
    weft_patch *patches[PATCHES_MAX];
    for (size_t i = 0; i < count; i++) {
        patches[i] = patches_open(context, files[i]);
    }
    weft_status status = weft_apply_in_place(context, scratch_path(scratch, name),
                                             (const weft_patch *const *)patches, count, durable, digest);
    for (size_t i = 0; i < count; i++) {
        weft_patch_close(patches[i]);
    }
    return status;
}

static void expect_rebuilt(weft_context *context, scratch *scratch, const char *base, const bytes *file,
                           const char *expected) {
    weft_status status = rebuild(context, scratch, base, &file, 1, "out", NULL);
    assert_string_equal(weft_context_error(context), "");
    assert_int_equal(status, WEFT_OK);
    expect_same_files(scratch, "out", expected);
}

/* ---- every dtype and density ---- */

enum { DTYPES = WEFT_DTYPE_C64 };

static const char *const dtype_names[] = {"a.one", "b.two", "c"};

/* Each dtype three times, so that buckets are shared and cut. */
static size_t dtype_shapes(tensor_shape *shapes, char names[][32]) {
    static const uint64_t sizes[][2] = {{100, 200}, {40, 0}, {13, 8}};
    size_t count = 0;
    for (int dtype = WEFT_DTYPE_BOOL; dtype <= WEFT_DTYPE_C64; dtype++) {
        for (size_t i = 0; i < 3 && count < MODEL_TENSORS_MAX - 1; i++) {
            snprintf(names[count], 32, "%s.%s", dtype_names[i], weft_dtype_name((weft_dtype)dtype));
            shapes[count] = (tensor_shape){names[count], (weft_dtype)dtype, sizes[i][0], sizes[i][1]};
            count++;
        }
    }
    return count;
}

static void test_every_dtype_and_density(void **state) {
    (void)state;
    static char names[MODEL_TENSORS_MAX][32];
    tensor_shape shapes[MODEL_TENSORS_MAX];
    size_t count = dtype_shapes(shapes, names);
    const unsigned densities[] = {0, 1, 100, 10000, 500000, 1000000}; /* 1: one unit in each tensor */
    weft_context *context = patches_context(2);
    scratch scratch;
    scratch_open(&scratch);
    for (size_t d = 0; d < 6; d++) {
        for (int kind = WEIGHTS_RANDOM; kind <= WEIGHTS_TRAINED; kind++) {
            pair pair;
            dice dice = {d};
            pair_open(&pair, context, shapes, count, (weights_kind)kind, 40 + d);
            if (densities[d] != 1) {
                pair_change(&pair, kind == WEIGHTS_RANDOM ? CHANGE_RANDOM : CHANGE_MIXED, densities[d],
                            50 + d);
            }
            for (size_t i = 0; i < count && densities[d] == 1; i++) {
                weights_change_one(&dice, CHANGE_ULP, weft_dtype_width(shapes[i].dtype), pair.news[i],
                                   (size_t)dice_below(&dice, shape_units(&shapes[i])));
            }
            write_model(&scratch, &pair.live, "base", NULL);
            write_model(&scratch, &pair.next, "next", NULL);
            for (size_t p = 0; p < 2; p++) {
                bytes patch = {0};
                bytes inverse = {0};
                diff_files(context, &scratch, "base", "next", profiles[p], &patch, &inverse);
                expect_rebuilt(context, &scratch, "base", &patch, "next");
                expect_rebuilt(context, &scratch, "next", &inverse, "base");
                bytes_clear(&patch);
                bytes_clear(&inverse);
            }
            pair_close(&pair);
        }
    }
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- tensors that come and go ---- */

/* A model of a few tensors, by version: names, dtypes and shapes differ from one to the next. */
static void make_version(scratch *scratch, weft_context *context, unsigned version, const char *name) {
    const char *const metadata[] = {"version", version % 2 == 0 ? "even" : "odd", NULL};
    weft_write_options options = {.size = sizeof options, .metadata = version < 5 ? NULL : metadata};
    model model;
    model_open(&model, context);
    dice dice = {1};
    uint64_t rows = version >= 3 ? 64 : 60;
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16,
                 model_add(&model, "embed", WEFT_DTYPE_BF16, 300, 70), 300 * 70);
    if (version != 2) {
        weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16,
                     model_add(&model, "adapter", WEFT_DTYPE_BF16, rows, 33), (size_t)rows * 33);
    }
    weft_dtype dtype = version >= 4 ? WEFT_DTYPE_F16 : WEFT_DTYPE_BF16;
    weights_fill(&dice, WEIGHTS_TRAINED, dtype, model_add(&model, "norm", dtype, 70, 0), 70);
    model_add(&model, "step", WEFT_DTYPE_I64, 0, 0);
    for (size_t i = 0; i < model.block_count; i++) {
        const weft_tensor *tensor = weft_table_at(model.table, i);
        dice.state = version * 100 + i;
        weights_change(&dice, CHANGE_ULP, weft_dtype_width(tensor->dtype), model.blocks[i],
                       (size_t)weft_tensor_units(tensor), 20000);
    }
    write_model(scratch, &model, name, &options);
    model_close(&model);
}

static void test_structure_changes(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    scratch scratch;
    scratch_open(&scratch);
    char names[7][8];
    for (unsigned version = 0; version < 7; version++) {
        snprintf(names[version], sizeof names[version], "v%u", version);
        make_version(&scratch, context, version, names[version]);
    }
    for (unsigned from = 0; from < 7; from++) {
        for (unsigned to = 0; to < 7; to++) {
            bytes patch = {0};
            bytes inverse = {0};
            diff_files(context, &scratch, names[from], names[to], profiles[(from + to) % 2], &patch,
                       &inverse);
            expect_rebuilt(context, &scratch, names[from], &patch, names[to]);
            expect_rebuilt(context, &scratch, names[to], &inverse, names[from]);
            bytes_clear(&patch);
            bytes_clear(&inverse);
        }
    }
    assert_int_equal(scratch_count(&scratch, ""), 8);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* 0 to 1 and 5 to 6 keep all tensors, the others do not. */
static void test_chain(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    scratch scratch;
    scratch_open(&scratch);
    bytes files[6] = {{0}};
    const bytes *list[6];
    char names[7][8];
    for (unsigned version = 0; version < 7; version++) {
        snprintf(names[version], sizeof names[version], "v%u", version);
        make_version(&scratch, context, version, names[version]);
    }
    for (size_t i = 0; i < 6; i++) {
        diff_files(context, &scratch, names[i], names[i + 1], profiles[i % 2], &files[i], NULL);
        list[i] = &files[i];
    }
    for (size_t first = 0; first < 6; first++) {
        for (size_t count = 1; count <= 6 - first; count++) {
            weft_digest digest;
            assert_int_equal(rebuild(context, &scratch, names[first], list + first, count, "out", &digest),
                             WEFT_OK);
            expect_same_files(&scratch, "out", names[first + count]);
            copy_file(&scratch, names[first], "here");
            weft_digest there;
            assert_int_equal(
                in_place(context, &scratch, "here", list + first, count, count % 2 == 0, &there), WEFT_OK);
            expect_same_files(&scratch, "here", names[first + count]);
            assert_true(weft_digest_equal(&digest, &there));
        }
    }
    assert_int_equal(scratch_count(&scratch, ""), 9);

    /* a link in the chain is missing: nothing is written, whatever came before it was fine */
    const bytes *gap[] = {&files[0], &files[1], &files[3]};
    assert_int_equal(rebuild(context, &scratch, "v0", gap, 3, "never", NULL), WEFT_BASE_MISMATCH);
    assert_false(scratch_exists(&scratch, "never"));
    assert_int_equal(scratch_count(&scratch, ""), 9);
    for (size_t i = 0; i < 6; i++) {
        bytes_clear(&files[i]);
    }
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- sharded checkpoints ---- */

static void expect_same_directories(scratch *scratch, const char *a, const char *b, size_t shards) {
    char left[160];
    char right[160];
    assert_int_equal(scratch_count(scratch, a), shards + 1);
    assert_int_equal(scratch_count(scratch, b), shards + 1);
    for (size_t i = 0; i <= shards; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i, shards);
        if (i == 0) {
            snprintf(name, sizeof name, "model.safetensors.index.json");
        }
        snprintf(left, sizeof left, "%s/%s", a, name);
        snprintf(right, sizeof right, "%s/%s", b, name);
        expect_same_files(scratch, left, right);
    }
}

static void test_sharded(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    scratch scratch;
    scratch_open(&scratch);
    pair pair;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 60);
    pair_change(&pair, CHANGE_MIXED, 10000, 61);
    weft_write_options options = {.size = sizeof options, .shard_bytes = 120000};
    write_model(&scratch, &pair.live, "base", &options);
    write_model(&scratch, &pair.next, "next", &options);
    write_model(&scratch, &pair.next, "single", NULL);
    size_t shards = scratch_count(&scratch, "base") - 1;
    assert_true(shards > 2);
    bytes patch = {0};
    bytes inverse = {0};
    const bytes *forwards = &patch;
    const bytes *backwards = &inverse;
    diff_files(context, &scratch, "base", "next", WEFT_PROFILE_SMALL, &patch, &inverse);
    assert_int_equal(rebuild(context, &scratch, "base", &forwards, 1, "new", NULL), WEFT_OK);
    expect_same_directories(&scratch, "new", "next", shards);
    assert_int_equal(rebuild(context, &scratch, "new", &backwards, 1, "old", NULL), WEFT_OK);
    expect_same_directories(&scratch, "old", "base", shards);
    assert_int_equal(in_place(context, &scratch, "old", &forwards, 1, true, NULL), WEFT_OK);
    expect_same_directories(&scratch, "old", "next", shards);

    /* from shards to one file, which cannot be done in place */
    diff_files(context, &scratch, "base", "single", WEFT_PROFILE_FAST, &patch, &inverse);
    assert_int_equal(rebuild(context, &scratch, "base", &forwards, 1, "one", NULL), WEFT_OK);
    expect_same_files(&scratch, "one", "single");
    assert_int_equal(rebuild(context, &scratch, "one", &backwards, 1, "many", NULL), WEFT_OK);
    expect_same_directories(&scratch, "many", "base", shards);
    assert_int_equal(in_place(context, &scratch, "base", &forwards, 1, false, NULL), WEFT_UNSUPPORTED);
    expect_same_directories(&scratch, "many", "base", shards);
    bytes_clear(&patch);
    bytes_clear(&inverse);
    pair_close(&pair);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- in place ---- */

typedef struct place {
    weft_context *context;
    scratch scratch;
    pair pair;
    bytes patch;
    const bytes *list[1];
} place;

/* Files "base" and "next", a copy of base "here", and the patch between them. */
static void place_open(place *place, weft_context *context, weft_profile profile, unsigned per_million) {
    memset(place, 0, sizeof *place);
    place->context = context;
    scratch_open(&place->scratch);
    pair_open(&place->pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 70);
    pair_change(&place->pair, CHANGE_MIXED, per_million, 71);
    write_model(&place->scratch, &place->pair.live, "base", NULL);
    write_model(&place->scratch, &place->pair.next, "next", NULL);
    copy_file(&place->scratch, "base", "here");
    diff_files(context, &place->scratch, "base", "next", profile, &place->patch, NULL);
    place->list[0] = &place->patch;
}

static void place_close(place *place) {
    bytes_clear(&place->patch);
    pair_close(&place->pair);
    scratch_close(&place->scratch);
}

/* The journal takes several portions where little may be staged. */
static void test_in_place(void **state) {
    (void)state;
    const uint64_t limits[] = {0, 1, 70000};
    const unsigned densities[] = {0, 10000, 1000000};
    for (size_t l = 0; l < 3; l++) {
        weft_context_options options = {
            .size = sizeof options,
            .threads = 2,
            .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = limits[l]}};
        weft_context *context = NULL;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        for (size_t i = 0; i < 6; i++) {
            place place;
            place_open(&place, context, profiles[i % 2], densities[i / 2]);
            weft_digest digest;
            weft_status status =
                in_place(context, &place.scratch, "here", place.list, 1, i % 3 == 0, &digest);
            assert_string_equal(weft_context_error(context), "");
            assert_int_equal(status, WEFT_OK);
            expect_same_files(&place.scratch, "here", "next");
            assert_int_equal(scratch_count(&place.scratch, ""), 3);
            /* and once more: it is not the base any longer */
            if (densities[i / 2] > 0) {
                assert_int_equal(in_place(context, &place.scratch, "here", place.list, 1, false, NULL),
                                 WEFT_BASE_MISMATCH);
                assert_non_null(strstr(weft_context_error(context), "already"));
            }
            expect_same_files(&place.scratch, "here", "next");
            assert_int_equal(scratch_count(&place.scratch, ""), 3);
            place_close(&place);
        }
        weft_context_destroy(context);
    }
}

static void test_in_place_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    place place;
    place_open(&place, context, WEFT_PROFILE_SMALL, 10000);
    scratch *scratch = &place.scratch;
    assert_int_equal(in_place(context, scratch, "nowhere", place.list, 1, false, NULL), WEFT_NOT_FOUND);
    assert_int_equal(weft_apply_in_place(context, scratch_path(scratch, "here"), NULL, 0, false, NULL),
                     WEFT_INVALID_ARGUMENT);

    /* one bit of the file differs from the base */
    size_t size;
    uint8_t *data = scratch_read(scratch, "here", &size);
    data[size - 5] ^= 1;
    scratch_write(scratch, "drifted", data, size);
    scratch_write(scratch, "copy", data, size);
    free(data);
    assert_int_equal(in_place(context, scratch, "drifted", place.list, 1, false, NULL), WEFT_BASE_MISMATCH);
    expect_same_files(scratch, "drifted", "copy");

    /* a damaged bucket */
    place.patch.data[place.patch.size / 2] ^= 1;
    assert_int_equal(in_place(context, scratch, "here", place.list, 1, false, NULL),
                     WEFT_CHECKSUM_MISMATCH);
    expect_same_files(scratch, "here", "base");
    place.patch.data[place.patch.size / 2] ^= 1;

    /* somebody else is at it */
    int other = open(scratch_path(scratch, "here"), O_RDONLY | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(flock(other, LOCK_EX), 0);
    assert_int_equal(in_place(context, scratch, "here", place.list, 1, false, NULL), WEFT_BUSY);
    expect_same_files(scratch, "here", "base");
    close(other);
    assert_int_equal(in_place(context, scratch, "here", place.list, 1, false, NULL), WEFT_OK);
    expect_same_files(scratch, "here", "next");
    assert_int_equal(scratch_count(scratch, ""), 5);
    place_close(&place);
    weft_context_destroy(context);
}

/* A link to the checkpoint stays one, whether the file is changed or replaced. */
static void test_in_place_link(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    scratch scratch;
    scratch_open(&scratch);
    bytes patch = {0};
    const bytes *list[] = {&patch};
    for (unsigned to = 1; to < 3; to++) { /* 0 to 1 keeps the header, 0 to 2 does not */
        make_version(&scratch, context, 0, "real");
        make_version(&scratch, context, to, "next");
        diff_files(context, &scratch, "real", "next", WEFT_PROFILE_FAST, &patch, NULL);
        assert_int_equal(symlink("real", scratch_path(&scratch, "link")), 0);
        assert_int_equal(in_place(context, &scratch, "link", list, 1, false, NULL), WEFT_OK);
        struct stat info;
        assert_int_equal(lstat(scratch_path(&scratch, "link"), &info), 0);
        assert_true(S_ISLNK(info.st_mode));
        expect_same_files(&scratch, "real", "next");
        assert_int_equal(unlink(scratch_path(&scratch, "link")), 0);
    }
    bytes_clear(&patch);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- what a killed process leaves ---- */

/* A journal that is not whole or not ours is not replayed, and the checkpoint is not opened meanwhile. */
static void test_bad_journals(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    place place;
    place_open(&place, context, WEFT_PROFILE_FAST, 10000);
    scratch *scratch = &place.scratch;
    const struct {
        const char *data;
        size_t size;
    } journals[] = {
        {"", 0},
        {"WEFTJRN1", 8},
        {"something else entirely", 23},
        {"WEFTJRN1\0\0abcdefgh", 18},
    };
    for (size_t i = 0; i < 4; i++) {
        scratch_write(scratch, "here.weft-journal", journals[i].data, journals[i].size);
        weft_checkpoint *checkpoint = NULL;
        assert_int_equal(
            weft_checkpoint_open(context, scratch_path(scratch, "here"), WEFT_OPEN_READ, &checkpoint),
            WEFT_BUSY);
        bool recovered = true;
        assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), &recovered),
                         WEFT_MALFORMED);
        assert_non_null(strstr(weft_context_error(context), "here.weft-journal"));
        assert_int_equal(in_place(context, scratch, "here", place.list, 1, false, NULL), WEFT_MALFORMED);
        assert_true(scratch_exists(scratch, "here.weft-journal"));
        expect_same_files(scratch, "here", "base");
    }
    assert_int_equal(unlink(scratch_path(scratch, "here.weft-journal")), 0);

    scratch_write(scratch, "here.weft-journal-new", "WEFTJRN1 half", 13);
    bool recovered = false;
    assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), &recovered), WEFT_OK);
    assert_true(recovered);
    assert_false(scratch_exists(scratch, "here.weft-journal-new"));
    assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), &recovered), WEFT_OK);
    assert_false(recovered);
    expect_same_files(scratch, "here", "base");
    place_close(&place);
    weft_context_destroy(context);
}

/* Temporary files of the dead go; those of the living, those set aside, and what only looks alike stay. */
static void test_sweep(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    place place;
    place_open(&place, context, WEFT_PROFILE_FAST, 10000);
    scratch *scratch = &place.scratch;
    scratch_write(scratch, ".weft-12-0.tmp", "left", 4);
    scratch_make_directory(scratch, ".weft-12-1.tmp");
    scratch_write(scratch, ".weft-12-1.tmp/model-00001-of-00002.safetensors", "left", 4);
    scratch_write(scratch, ".weft-12-2.old", "the user's", 10);
    scratch_write(scratch, ".weft-x-2.tmp", "not ours", 8);
    scratch_write(scratch, ".weft-12-3.tmp~", "not ours", 8);
    scratch_write(scratch, ".weft-13-0.tmp", "in use", 6);
    int other = open(scratch_path(scratch, ".weft-13-0.tmp"), O_RDWR | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(flock(other, LOCK_EX), 0);
    bool recovered = true;
    assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), &recovered), WEFT_OK);
    assert_false(recovered);
    assert_false(scratch_exists(scratch, ".weft-12-0.tmp"));
    assert_false(scratch_exists(scratch, ".weft-12-1.tmp"));
    assert_true(scratch_exists(scratch, ".weft-12-2.old"));
    assert_true(scratch_exists(scratch, ".weft-x-2.tmp"));
    assert_true(scratch_exists(scratch, ".weft-12-3.tmp~"));
    assert_true(scratch_exists(scratch, ".weft-13-0.tmp"));
    close(other);
    assert_int_equal(rebuild(context, scratch, "base", place.list, 1, "out", NULL), WEFT_OK);
    assert_false(scratch_exists(scratch, ".weft-13-0.tmp"));
    place_close(&place);
    weft_context_destroy(context);
}

/* A checkpoint that is being made survives the sweep of another process, also after its descriptors are
 * closed and only mappings are left. */
static void test_sweep_spares_the_living(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    place place;
    place_open(&place, context, WEFT_PROFILE_FAST, 10000);
    scratch *scratch = &place.scratch;
    weft_write_options options = {.size = sizeof options, .shard_bytes = 120000};
    write_model(scratch, &place.pair.live, "shards", &options);
    const char *const sources[] = {"base", "shards"};
    for (size_t i = 0; i < 2; i++) {
        weft_checkpoint *base = open_checkpoint(context, scratch, sources[i]);
        weft_checkpoint *made = NULL;
        assert_int_equal(weft_checkpoint_create(context, scratch_path(scratch, "made"),
                                                weft_checkpoint_container(base), &made),
                         WEFT_OK);
        size_t before = scratch_count(scratch, "");
        assert_int_equal(weft_apply_recover(context, scratch_path(scratch, "here"), NULL), WEFT_OK);
        assert_int_equal(scratch_count(scratch, ""), before);
        assert_int_equal(weft_checkpoint_finish(made, false), WEFT_OK);
        assert_true(scratch_exists(scratch, "made"));
        weft_checkpoint_close(base);
        if (i == 0) {
            assert_int_equal(unlink(scratch_path(scratch, "made")), 0);
        }
    }
    place_close(&place);
    weft_context_destroy(context);
}

/* ---- outputs that cannot be ---- */

static void test_rebuild_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    place place;
    place_open(&place, context, WEFT_PROFILE_SMALL, 10000);
    scratch *scratch = &place.scratch;
    assert_int_equal(rebuild(context, scratch, "next", place.list, 1, "out", NULL), WEFT_BASE_MISMATCH);
    assert_int_equal(rebuild(context, scratch, "base", place.list, 0, "out", NULL), WEFT_INVALID_ARGUMENT);
    assert_int_equal(rebuild(context, scratch, "base", place.list, 1, "no/such/place", NULL),
                     WEFT_IO_FAILED);
    place.patch.data[place.patch.size / 2] ^= 1;
    assert_int_equal(rebuild(context, scratch, "base", place.list, 1, "out", NULL), WEFT_CHECKSUM_MISMATCH);
    place.patch.data[place.patch.size / 2] ^= 1;
    assert_int_equal(scratch_count(scratch, ""), 3);
    /* what stood there stays, or is replaced as a whole */
    scratch_write(scratch, "out", "precious", 8);
    assert_int_equal(rebuild(context, scratch, "next", place.list, 1, "out", NULL), WEFT_BASE_MISMATCH);
    size_t size;
    void *data = scratch_read(scratch, "out", &size);
    assert_int_equal(size, 8);
    free(data);
    assert_int_equal(rebuild(context, scratch, "base", place.list, 1, "out", NULL), WEFT_OK);
    expect_same_files(scratch, "out", "next");
    /* also over the base itself */
    assert_int_equal(rebuild(context, scratch, "here", place.list, 1, "here", NULL), WEFT_OK);
    expect_same_files(scratch, "here", "next");
    place_close(&place);
    weft_context_destroy(context);
}

/* A patch between live states names no files: the base's are kept, or one is made up. */
static void test_without_containers(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    place place;
    place_open(&place, context, WEFT_PROFILE_FAST, 10000);
    pair_diff(&place.pair, NULL);
    const bytes *list[] = {&place.pair.file};
    assert_int_equal(rebuild(context, &place.scratch, "base", list, 1, "out", NULL), WEFT_OK);
    expect_same_files(&place.scratch, "out", "next");
    assert_int_equal(in_place(context, &place.scratch, "here", list, 1, false, NULL), WEFT_OK);
    expect_same_files(&place.scratch, "here", "next");
    place_close(&place);

    place_open(&place, context, WEFT_PROFILE_FAST, 10000);
    model less;
    model_open(&less, context);
    for (size_t i = 3; i < MIXED_SHAPES; i++) {
        const tensor_shape *s = &mixed_shapes[i];
        memcpy(model_add(&less, s->name, s->dtype, s->rows, s->columns), place.pair.news[i],
               shape_units(s) * weft_dtype_width(s->dtype));
    }
    model_show(&less);
    weft_sink sink = bytes_sink(&place.patch);
    place.patch.size = 0;
    weft_diff_stats stats = {.size = sizeof stats};
    assert_int_equal(weft_diff(context, place.pair.live.view, less.view, NULL, &sink, &stats), WEFT_OK);
    weft_digest digest;
    assert_int_equal(rebuild(context, &place.scratch, "base", place.list, 1, "out", &digest), WEFT_OK);
    assert_true(weft_digest_equal(&digest, &stats.result));
    weft_checkpoint *made = open_checkpoint(context, &place.scratch, "out");
    assert_int_equal(weft_table_count(weft_checkpoint_table(made)), MIXED_SHAPES - 3);
    weft_checkpoint_close(made);
    model_close(&less);
    place_close(&place);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype_and_density),
        cmocka_unit_test(test_structure_changes),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_in_place_refused),
        cmocka_unit_test(test_in_place_link),
        cmocka_unit_test(test_bad_journals),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_sweep_spares_the_living),
        cmocka_unit_test(test_rebuild_refused),
        cmocka_unit_test(test_without_containers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
