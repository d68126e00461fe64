/* SPDX-License-Identifier: Apache-2.0
 *
 * patch.c: a patch between two checkpoints, made in memory and applied to live weights.
 *
 *     cc patch.c $(pkg-config --cflags --libs weft) -o patch && ./patch OLD NEW
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

static void check(weft_context *context, weft_status status) {
    if (status != WEFT_OK) {
        fprintf(stderr, "%s\n", context != NULL ? weft_context_error(context) : weft_status_name(status));
        exit(1);
    }
}

static weft_status put(void *file, const void *data, size_t size) {
    return fwrite(data, 1, size, file) == size ? WEFT_OK : WEFT_IO_FAILED;
}

/* What a worker has: the tensors of a checkpoint in its own memory. */
static weft_table *load(weft_context *context, const weft_table *from) {
    weft_table *table;
    check(context, weft_table_create(context, &table));
    for (size_t i = 0; i < weft_table_count(from); i++) {
        weft_tensor tensor = *weft_table_at(from, i);
        if (tensor.bytes > 0) {
            tensor.data = memcpy(malloc(tensor.bytes), tensor.data, tensor.bytes);
        }
        tensor.writable = true;
        check(context, weft_table_add(table, &tensor));
    }
    return table;
}

int main(int argc, char **argv) {
    weft_context *context;
    weft_checkpoint *old, *new;
    weft_view *base, *next, *live;
    if (argc != 3) {
        return 2;
    }
    check(NULL, weft_context_create(NULL, &context));
    check(context, weft_checkpoint_open(context, argv[1], WEFT_OPEN_READ, &old));
    check(context, weft_checkpoint_open(context, argv[2], WEFT_OPEN_READ, &new));
    check(context, weft_view_create(context, weft_checkpoint_table(old), &base));
    check(context, weft_view_create(context, weft_checkpoint_table(new), &next));

    /* The trainer: a patch, here into memory. */
    char *bytes;
    size_t size;
    FILE *file = open_memstream(&bytes, &size);
    weft_sink sink = {.write = put, .opaque = file};
    weft_diff_options options = {.size = sizeof options, .profile = WEFT_PROFILE_SMALL};
    weft_diff_stats stats = {.size = sizeof stats};
    check(context, weft_diff(context, base, next, &options, &sink, &stats));
    fclose(file);

    /* The worker: its weights, and the sums that know which state they are in. */
    weft_table *table = load(context, weft_checkpoint_table(old));
    weft_sums *sums;
    check(context, weft_view_create(context, table, &live));
    check(context, weft_sums_compute(context, live, &sums));

    weft_source source = {.memory = bytes, .size = size};
    weft_patch *patch;
    weft_apply *apply;
    check(context, weft_patch_open(context, &source, &patch));
    check(context, weft_apply_create(context, patch, live, sums, &apply));
    check(context, weft_apply_prepare(apply)); /* decodes and proves; touches nothing */
    check(context, weft_apply_commit(apply));  /* the pause: only writes */

    weft_apply_stats applied = {.size = sizeof applied};
    weft_apply_describe(apply, &applied);
    char digest[WEFT_DIGEST_TEXT];
    weft_digest now = weft_sums_digest(sums);
    weft_digest_format(&now, digest);
    printf("%llu changes in %zu bytes, %.2f ms to prepare, %.2f ms to commit, now at %s\n",
           (unsigned long long)stats.changed, size, 1e3 * applied.decode_seconds,
           1e3 * applied.commit_seconds, digest);
    check(context, weft_sums_audit(context, sums, UINT64_MAX)); /* memory is what the sums say */

    weft_apply_destroy(apply);
    weft_patch_close(patch);
    weft_sums_destroy(sums);
    weft_view_destroy(live);
    weft_view_destroy(next);
    weft_view_destroy(base);
    weft_table_destroy(table);
    weft_checkpoint_close(new);
    weft_checkpoint_close(old);
    weft_context_destroy(context);
    return 0;
}
