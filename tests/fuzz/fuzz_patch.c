/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_patch.c: bytes as a patch file, as they are and once more with lengths and checksums put right.
 * Everything that can be asked of an opened patch is asked, every bucket is decoded, and the patch is
 * merged with itself. What a merge writes must open again. No single block of memory may be larger than
 * the limits allow.
 */
#include "../../lib/patch/format/patch.h"
#include "sections.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

enum { BUCKET_BYTES = 1 << 20, HEADER_BYTES = 1 << 16, BLOCK_MAX = 16 << 20 };

static void require_at(bool condition, int line) {
    if (!condition) {
        fprintf(stderr, "%s:%d does not hold\n", __FILE__, line);
        abort();
    }
}
#define require(condition) require_at(condition, __LINE__)

/* ---- memory ---- */

static void *take(void *opaque, size_t size) {
    (void)opaque;
    require(size <= BLOCK_MAX);
    return malloc(size);
}

static void *retake(void *opaque, void *memory, size_t size) {
    (void)opaque;
    require(size <= BLOCK_MAX);
    return realloc(memory, size);
}

static void drop(void *opaque, void *memory) {
    (void)opaque;
    free(memory);
}

/* ---- a growing sink ---- */

typedef struct output {
    uint8_t *data;
    size_t size;
} output;

static weft_status append(void *opaque, const void *data, size_t size) {
    output *output = opaque;
    output->data = realloc(output->data, output->size + size + 1);
    require(output->data != NULL);
    memcpy(output->data + output->size, data, size);
    output->size += size;
    return WEFT_OK;
}

/* ---- buckets ---- */

/* All zeros stand in for the base. */
static void decode_frame(weft_bucket_coder *coder, const weft_frame *frame) {
    size_t bytes = (size_t)frame->bucket.units * frame->bucket.width;
    require(bytes > 0 && bytes <= BUCKET_BYTES);
    uint8_t *base = calloc(bytes, 1);
    uint8_t *next = malloc(bytes);
    require(base != NULL && next != NULL);
    weft_sum delta;
    require(weft_window_set_memory(&coder->from, &frame->bucket, base) == WEFT_OK);
    if (weft_frame_dense(frame)) {
        if (weft_frame_decode_dense(coder, frame, base, next) == WEFT_OK) {
            require(weft_window_prove_all(&coder->from, next, frame->bucket.width, false, NULL, &delta) ==
                    WEFT_OK);
        }
    } else if (weft_frame_decode(coder, frame, &coder->changes, NULL, &delta) == WEFT_OK) {
        const weft_changes *changes = &coder->changes;
        /* a packed frame may lie about it */
        require(changes->count == frame->changed || frame->coding >= WEFT_CODING_PACKED_STEPS);
        memset(next, 0, bytes);
        for (size_t i = 0; i < changes->count; i++) {
            require(changes->positions[i] < frame->bucket.units);
            require(next[changes->positions[i]]++ == 0); /* each place once */
        }
    }
    if (frame->coding == WEFT_CODING_FAST) {
        (void)!weft_frame_decode_steps(coder, frame, &coder->changes);
    }
    free(base);
    free(next);
}

static void decode_all(weft_context *context, const weft_patch *patch) {
    weft_bucket_coder coder;
    weft_writer buffer;
    weft_bucket_coder_open(&coder, context);
    weft_writer_open(&buffer, context);
    for (size_t i = 0; i < patch->index.count; i++) {
        weft_bucket_info info = {.size = sizeof info};
        weft_frame frame;
        weft_status asked = weft_patch_bucket(context, patch, i, &info);
        weft_status status = weft_patch_frame(context, patch, i, &buffer, &frame);
        require(asked == status);
        if (status == WEFT_OK) {
            require(info.first_tensor < weft_patch_tensor_count(patch));
            require(info.last_tensor < weft_patch_tensor_count(patch));
            decode_frame(&coder, &frame);
            weft_bucket_close(&frame.bucket, context);
        } else {
            require(weft_context_error(context)[0] != '\0');
        }
    }
    weft_writer_close(&buffer);
    weft_bucket_coder_close(&coder);
}

static void ask(const weft_patch *patch) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    const weft_table *table = weft_patch_table(patch);
    require(weft_table_count(table) + info.removed == weft_patch_tensor_count(patch));
    for (size_t i = 0; i < weft_patch_tensor_count(patch); i++) {
        weft_fate fate;
        require(weft_patch_tensor(patch, i, &fate) != NULL);
        require(fate <= WEFT_FATE_REPLACED);
    }
    const weft_container *container = weft_patch_container(patch);
    for (size_t i = 0; container != NULL && i < container->file_count; i++) {
        require(strlen(container->files[i].name) < HEADER_BYTES);
    }
    (void)weft_patch_label(patch, "step");
}

/* The patch twice in a row. Its digests would have to be alike, so they are made so in the opened copies.
 */
static void merge_with_itself(weft_context *context, weft_patch *patch) {
    const weft_patch *const twice[] = {patch, patch};
    weft_digest base = patch->footer.base;
    patch->footer.base = patch->footer.result;
    output output = {NULL, 0};
    weft_sink sink = {append, &output};
    weft_diff_stats stats = {.size = sizeof stats};
    if (weft_merge(context, twice, 2, NULL, &sink, &stats) == WEFT_OK) {
        weft_source source = {.memory = output.data, .size = output.size};
        weft_patch *merged = NULL;
        require(stats.patch_bytes == output.size);
        require(weft_patch_open(context, &source, &merged) == WEFT_OK);
        for (size_t i = 0; i < merged->index.count; i++) {
            weft_bucket_info info = {.size = sizeof info};
            require(weft_patch_bucket(context, merged, i, &info) == WEFT_OK);
        }
        weft_patch_close(merged);
    }
    patch->footer.base = base;
    free(output.data);
}

static void try_patch(const uint8_t *data, size_t size) {
    weft_context_options options = {
        .size = sizeof options,
        .allocator = {take, retake, drop, NULL},
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits),
                                 .header_bytes = HEADER_BYTES,
                                 .tensors = 64,
                                 .bucket_bytes = BUCKET_BYTES},
    };
    weft_context *context = NULL;
    require(weft_context_create(&options, &context) == WEFT_OK);
    weft_source source = {.memory = data, .size = size};
    weft_patch *patch = NULL;
    if (weft_patch_open(context, &source, &patch) == WEFT_OK) {
        ask(patch);
        decode_all(context, patch);
        merge_with_itself(context, patch);
        weft_patch_close(patch);
    } else {
        require(patch == NULL && weft_context_error(context)[0] != '\0');
    }
    weft_context_destroy(context);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try_patch(data, size);
    sections s;
    if (sections_split(data, size, &s)) {
        size_t joined_size;
        uint8_t *joined = sections_join(&s, &joined_size);
        try_patch(joined, joined_size);
        free(joined);
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return sections_mutate(data, size, max_size, seed);
}
