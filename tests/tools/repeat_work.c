/* SPDX-License-Identifier: Apache-2.0
 *
 * repeat_work.c: does one thing with two states of a model a number of times, in memory and on one thread,
 * for those who count what it takes (bench/arm64.sh): what two runs differ in is the work alone.
 *
 *   repeat_work BASE NEW diff|prepare|digest fast|small TIMES
 */
#include <weft/patch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static weft_context *context;

static void require(weft_status status) {
    if (status != WEFT_OK) {
        fprintf(stderr, "repeat_work: %s\n", weft_context_error(context));
        exit(1);
    }
}

typedef struct patch_bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
} patch_bytes;

static weft_status append(void *opaque, const void *data, size_t size) {
    patch_bytes *bytes = opaque;
    if (size > bytes->capacity - bytes->size) {
        return WEFT_NO_SPACE;
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    return WEFT_OK;
}

/* Writable because prepare asks for that; nothing is written. */
static weft_view *view_of(const char *path, weft_checkpoint **checkpoint) {
    weft_view *view = NULL;
    require(weft_checkpoint_open(context, path, WEFT_OPEN_WRITE, checkpoint));
    require(weft_view_create(context, weft_checkpoint_table(*checkpoint), &view));
    return view;
}

static void diff(const weft_view *base, const weft_view *next, const weft_sums *sums, weft_profile profile,
                 patch_bytes *bytes) {
    weft_sums *new_sums = NULL;
    weft_sink sink = {.write = append, .opaque = bytes};
    weft_diff_options options = {
        .size = sizeof options, .profile = profile, .base_sums = sums, .new_sums_out = &new_sums};
    bytes->size = 0;
    require(weft_diff(context, base, next, &options, &sink, NULL));
    weft_sums_destroy(new_sums);
}

static void prepare(const weft_view *base, weft_sums *sums, const patch_bytes *bytes) {
    weft_source source = {.memory = bytes->data, .size = bytes->size};
    weft_patch *patch = NULL;
    weft_apply *apply = NULL;
    require(weft_patch_open(context, &source, &patch));
    require(weft_apply_create(context, patch, base, sums, &apply));
    require(weft_apply_prepare(apply));
    weft_apply_destroy(apply);
    weft_patch_close(patch);
}

static void digest(const weft_view *base) {
    weft_sums *sums = NULL;
    require(weft_sums_compute(context, base, &sums));
    weft_sums_destroy(sums);
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: repeat_work BASE NEW diff|prepare|digest fast|small TIMES\n");
        return 2;
    }
    weft_context_options options = {.size = sizeof options, .threads = 1};
    weft_checkpoint *old = NULL, *new = NULL;
    if (weft_context_create(&options, &context) != WEFT_OK) {
        return 1;
    }
    weft_view *base = view_of(words[1], &old), *next = view_of(words[2], &new);
    weft_profile profile = strcmp(words[4], "small") == 0 ? WEFT_PROFILE_SMALL : WEFT_PROFILE_FAST;
    weft_sums *sums = NULL;
    patch_bytes bytes = {.capacity = (size_t)64 << 20};
    bytes.data = malloc(bytes.capacity);
    require(bytes.data != NULL ? weft_sums_compute(context, base, &sums) : WEFT_NO_MEMORY);
    diff(base, next, sums, profile, &bytes);
    for (int times = atoi(words[5]); times > 0; times--) {
        if (strcmp(words[3], "diff") == 0) {
            diff(base, next, sums, profile, &bytes);
        } else if (strcmp(words[3], "prepare") == 0) {
            prepare(base, sums, &bytes);
        } else {
            digest(base);
        }
    }
    printf("%s %s: %zu bytes of patch\n", weft_cpu_name(), words[3], bytes.size);
    free(bytes.data);
    weft_sums_destroy(sums);
    weft_view_destroy(base);
    weft_view_destroy(next);
    weft_checkpoint_close(old);
    weft_checkpoint_close(new);
    weft_context_destroy(context);
    return 0;
}
