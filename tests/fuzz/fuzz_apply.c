/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_apply.c: bytes as a patch for a small model. Lengths, checksums and the base's digest are put
 * right, so that the model takes the patch seriously; in a second round also the promises (what each
 * bucket does to the digest, and the result), so that whatever can be decoded is committed.
 *
 * Whatever the patch says: memory beside the tensors is never touched; a refused prepare leaves the
 * weights and sums alone; after a commit the sums are those of memory; a rollback brings everything back;
 * and a run does what prepare and commit do.
 */
#include "../../lib/patch/format/patch.h"
#include "../../lib/tensor/digest.h"
#include "sections.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#endif
#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum { TENSORS = 7, GUARD = 64, ARENA = 64 * 1024 };

typedef struct place {
    const char *name;
    weft_dtype dtype;
    uint64_t rows, columns;
} place;

static const place places[TENSORS] = {
    {"a", WEFT_DTYPE_BF16, 40, 16}, {"b", WEFT_DTYPE_BF16, 7, 0}, {"c", WEFT_DTYPE_F32, 9, 5},
    {"d", WEFT_DTYPE_U8, 53, 0},    {"e", WEFT_DTYPE_F64, 6, 0},  {"f", WEFT_DTYPE_BF16, 5000, 0},
    {"g", WEFT_DTYPE_F16, 8, 24},
};

/* Tensors with guards between them, all in one block. */
typedef struct world {
    weft_context *context;
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    uint8_t arena[ARENA];
    uint8_t before[ARENA];
    size_t offsets[TENSORS];
    size_t sizes[TENSORS];
    size_t used;
} world;

static void require_at(bool condition, int line) {
    if (!condition) {
        fprintf(stderr, "%s:%d does not hold\n", __FILE__, line);
        abort();
    }
}
#define require(condition) require_at(condition, __LINE__)

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Like trained weights: exponents in a narrow band. */
static void fill_weights(uint8_t *memory, size_t bytes, weft_dtype dtype, uint64_t seed) {
    uint64_t state = seed;
    for (size_t i = 0; i < bytes; i++) {
        memory[i] = (uint8_t)next_random(&state);
        if (dtype == WEFT_DTYPE_BF16 && i % 2 == 1) {
            memory[i] = (uint8_t)((memory[i] & 0x80) | (0x38 + next_random(&state) % 5));
        }
    }
}

static void guard_arena(world *world, bool guarded) {
    (void)world;
    (void)guarded;
#ifdef HAVE_ASAN
    for (size_t i = 0; i < TENSORS; i++) {
        uint8_t *end = world->arena + world->offsets[i] + world->sizes[i];
        if (guarded) {
            ASAN_POISON_MEMORY_REGION(end, GUARD);
        } else {
            ASAN_UNPOISON_MEMORY_REGION(end, GUARD);
        }
    }
#endif
}

static void world_open(world *world) {
    weft_context_options options = {
        .size = sizeof options,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits),
                                 .header_bytes = 1 << 16,
                                 .tensors = 64,
                                 .bucket_bytes = 1 << 20,
                                 .stage_bytes = 1 << 24},
    };
    require(weft_context_create(&options, &world->context) == WEFT_OK);
    require(weft_table_create(world->context, &world->table) == WEFT_OK);
    memset(world->arena, 0xa5, sizeof world->arena);
    size_t at = GUARD;
    for (size_t i = 0; i < TENSORS; i++) {
        const place *p = &places[i];
        weft_tensor tensor = {
            .size = sizeof tensor, .name = p->name, .dtype = p->dtype, .rank = p->columns == 0 ? 1 : 2};
        tensor.shape[0] = p->rows;
        tensor.shape[1] = p->columns;
        tensor.data = world->arena + at;
        tensor.writable = true;
        world->offsets[i] = at;
        world->sizes[i] =
            (size_t)(p->rows * (p->columns == 0 ? 1 : p->columns)) * weft_dtype_width(p->dtype);
        require(weft_table_add(world->table, &tensor) == WEFT_OK);
        fill_weights(world->arena + at, world->sizes[i], p->dtype, 1000 + i);
        at += (world->sizes[i] + 7) / 8 * 8 + GUARD;
        require(at + GUARD < ARENA);
    }
    world->used = at;
    memcpy(world->before, world->arena, sizeof world->arena);
    require(weft_view_create(world->context, world->table, &world->view) == WEFT_OK);
    require(weft_sums_compute(world->context, world->view, &world->sums) == WEFT_OK);
}

static void world_close(world *world) {
    weft_sums_destroy(world->sums);
    weft_view_destroy(world->view);
    weft_table_destroy(world->table);
    weft_context_destroy(world->context);
}

static bool unchanged(world *world) {
    guard_arena(world, false);
    return memcmp(world->arena, world->before, sizeof world->arena) == 0;
}

static void check_guards(world *world) {
    guard_arena(world, false);
    size_t at = 0;
    for (size_t i = 0; i <= TENSORS; i++) {
        size_t end = i < TENSORS ? world->offsets[i] : world->used;
        for (; at < end; at++) {
            require(world->arena[at] == 0xa5);
        }
        at = i < TENSORS ? at + world->sizes[i] : at;
    }
}

static void check_sums(world *world, const weft_digest *expected) {
    weft_digest digest = weft_sums_digest(world->sums);
    require(weft_digest_equal(&digest, expected));
    require(weft_sums_audit(world->context, world->sums, UINT64_MAX) == WEFT_OK);
}

/* Prepare, commit, and back. True if the patch was taken; `after` is then what the arena held. */
static bool walk(world *world, const weft_patch *patch, uint8_t *after) {
    weft_digest base = weft_sums_digest(world->sums);
    weft_apply *apply = NULL;
    if (weft_apply_create(world->context, patch, world->view, world->sums, &apply) != WEFT_OK) {
        require(apply == NULL && weft_context_error(world->context)[0] != '\0');
        return false;
    }
    guard_arena(world, true);
    weft_status prepared = weft_apply_prepare(apply);
    require(prepared == WEFT_OK || weft_context_error(world->context)[0] != '\0');
    require(unchanged(world));
    check_sums(world, &base);
    if (prepared == WEFT_OK) {
        guard_arena(world, true);
        require(weft_apply_commit(apply) == WEFT_OK);
        check_guards(world);
        check_sums(world, &patch->footer.result);
        memcpy(after, world->arena, sizeof world->arena);
        guard_arena(world, true);
        require(weft_apply_rollback(apply) == WEFT_OK);
        require(unchanged(world));
        check_sums(world, &base);
    }
    weft_apply_destroy(apply);
    return prepared == WEFT_OK;
}

/* The same in one go, which must come to the same. */
static void run(world *world, const weft_patch *patch, bool taken, const uint8_t *after) {
    weft_apply *apply = NULL;
    if (weft_apply_create(world->context, patch, world->view, world->sums, &apply) != WEFT_OK) {
        require(!taken);
        return;
    }
    guard_arena(world, true);
    weft_status status = weft_apply_run(apply);
    check_guards(world);
    require((status == WEFT_OK) == taken);
    require(!taken || memcmp(world->arena, after, sizeof world->arena) == 0);
    weft_apply_destroy(apply);
}

/* ---- making promises true ---- */

typedef struct after_sums {
    const weft_sums *sums;
    const weft_sums *moves;
} after_sums;

static weft_sum total_after(void *opaque, size_t tensor) {
    const after_sums *after = opaque;
    weft_sum total = weft_sums_total(after->sums, tensor);
    weft_sum_add(&total, weft_sums_total(after->moves, tensor));
    return total;
}

static bool measure_frame(world *world, weft_bucket_coder *coder, const weft_frame *frame,
                          const int64_t *map, weft_sums *moves, weft_sum *delta) {
    if (weft_window_set(&coder->from, world->view, map, &frame->bucket, WEFT_NEED_BYTES) != WEFT_OK ||
        coder->from.holding != WEFT_HELD_ALL) {
        return false;
    }
    if (!weft_frame_dense(frame)) {
        return weft_frame_decode(coder, frame, &coder->changes, moves, delta) == WEFT_OK;
    }
    size_t bytes = (size_t)frame->bucket.units * frame->bucket.width;
    uint8_t *olds = malloc(bytes);
    uint8_t *news = malloc(bytes);
    require(olds != NULL && news != NULL);
    bool good =
        weft_window_copy(&coder->from, olds, frame->bucket.width) == WEFT_OK &&
        weft_frame_decode_dense(coder, frame, olds, news) == WEFT_OK &&
        weft_window_prove_all(&coder->from, news, frame->bucket.width, false, moves, delta) == WEFT_OK;
    free(olds);
    free(news);
    return good;
}

/* Writes into each frame what it does, as far as frames can be decoded, and into the result's place in the
 * footer what all of them do. The file belongs to us, and the payloads point into it. */
static void fulfil(world *world, const weft_patch *patch, uint8_t *file, size_t size) {
    weft_apply *apply = NULL;
    if (weft_apply_create(world->context, patch, world->view, world->sums, &apply) != WEFT_OK) {
        return; /* other tensors than ours */
    }
    weft_apply_destroy(apply);
    weft_bucket_coder coder;
    weft_writer buffer;
    weft_sums *moves = NULL;
    int64_t *map = NULL;
    weft_bucket_coder_open(&coder, world->context);
    weft_writer_open(&buffer, world->context);
    require(weft_sums_zero(world->context, world->view, &moves) == WEFT_OK);
    require(weft_roster_map(&patch->header.roster, world->view, &map) == WEFT_OK);
    for (size_t i = 0; i < patch->index.count; i++) {
        weft_frame frame;
        if (weft_patch_frame(world->context, patch, i, &buffer, &frame) != WEFT_OK) {
            continue;
        }
        weft_sum delta;
        if (measure_frame(world, &coder, &frame, map, moves, &delta)) {
            memcpy(file + (frame.payload - file) - sizeof delta.lanes, delta.lanes, sizeof delta.lanes);
        }
        weft_bucket_close(&frame.bucket, world->context);
    }
    after_sums after = {world->sums, moves};
    weft_digest result = weft_state_digest(world->view, total_after, &after);
    memcpy(file + size - WEFT_FOOTER_BYTES + FOOTER_RESULT, result.bytes, sizeof result.bytes);
    weft_release(world->context, map);
    weft_sums_destroy(moves);
    weft_writer_close(&buffer);
    weft_bucket_coder_close(&coder);
}

static weft_patch *open_patch(world *world, const uint8_t *file, size_t size) {
    weft_source source = {.memory = file, .size = size};
    weft_patch *patch = NULL;
    return weft_patch_open(world->context, &source, &patch) == WEFT_OK ? patch : NULL;
}

static void try_patch(world *world, const uint8_t *file, size_t size) {
    static uint8_t after[ARENA];
    weft_patch *patch = open_patch(world, file, size);
    if (patch == NULL) {
        return;
    }
    bool taken = walk(world, patch, after);
    run(world, patch, taken, after);
    weft_patch_close(patch);
    memcpy(world->arena, world->before, sizeof world->arena);
    weft_sums_destroy(world->sums);
    require(weft_sums_compute(world->context, world->view, &world->sums) == WEFT_OK);
}

static uint8_t *repair(const world *world, const uint8_t *data, size_t size, size_t *size_out) {
    sections s;
    if (!sections_split(data, size, &s)) {
        return NULL;
    }
    weft_digest base = weft_sums_digest(world->sums);
    memcpy(s.footer + FOOTER_BASE, base.bytes, sizeof base.bytes);
    return sections_join(&s, size_out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static world world;
    world_open(&world);
    size_t file_size = 0;
    uint8_t *file = repair(&world, data, size, &file_size);
    weft_patch *patch = file != NULL ? open_patch(&world, file, file_size) : NULL;
    if (patch != NULL) {
        try_patch(&world, file, file_size);
        fulfil(&world, patch, file, file_size);
        weft_patch_close(patch);
        size_t true_size = 0;
        uint8_t *true_file = repair(&world, file, file_size, &true_size);
        try_patch(&world, true_file, true_size);
        free(true_file);
    }
    free(file);
    world_close(&world);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return sections_mutate(data, size, max_size, seed);
}
