/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_recall.c: bytes as what is recalled of a checkpoint, and as a payload of the coding `smallest` that
 * was coded with it. The checksum of the one and the check of the other are put right.
 *
 *   u16 size, the file's bytes without its checksum, u8 versions looked back at, u16 changes, the payload
 *
 * Whatever they say: positions that come out are those of units, none more often than changes were told;
 * and what was read can be written and read again.
 */
#include "../../lib/patch/bucket/bucket.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { UNITS = 5000, PLACE = 42 /* where the first bucket of the file stands */ };

static void require_at(bool condition, int line) {
    if (!condition) {
        fprintf(stderr, "%s:%d does not hold\n", __FILE__, line);
        abort();
    }
}
#define require(condition) require_at(condition, __LINE__)

static void decode(weft_context *context, weft_recall *recall, uint64_t place, unsigned depth, size_t count,
                   const uint8_t *payload, size_t size) {
    uint16_t weights[UNITS];
    weft_bucket_span span = {0, {0, UNITS, 0, 1}};
    const weft_bucket bucket = {&span, 1, UNITS, 2, WEFT_DTYPE_BF16, 0};
    weft_window window;
    weft_recent recent;
    weft_changes changes;
    weft_small_decoder *decoder = malloc(sizeof *decoder);
    /* all that is behind the payload is what bit readers may look at */
    uint8_t *copy = calloc(1, size + 64);
    require(decoder != NULL && copy != NULL);
    for (size_t i = 0; i < UNITS; i++) {
        weights[i] = (uint16_t)(0x3a00 + i * 2654435761u % 0x600);
    }
    weft_window_open(&window, context);
    weft_recent_open(&recent, context);
    weft_changes_open(&changes, context);
    weft_small_decoder_open(decoder, context);
    require(weft_window_set_memory(&window, &bucket, (const uint8_t *)weights) == WEFT_OK);
    require(weft_recent_list(&recent, recall, place, UNITS, depth) == WEFT_OK);
    require(weft_changes_reset(&changes, 2, count) == WEFT_OK);
    memcpy(copy, payload, size);
    memcpy(copy, &recent.check, size < 4 ? size : 4);
    weft_status status = weft_smallest_decode(decoder, weft_tile_kernels_for(weft_cpu_level()),
                                              weft_exponent_of(WEFT_DTYPE_BF16), &recent, copy, size, UNITS,
                                              count, &window, &changes);
    require(changes.count <= count && (status != WEFT_OK || changes.count == count));
    for (size_t i = 0; i < changes.count; i++) {
        require(changes.positions[i] < UNITS);
    }
    weft_small_decoder_close(decoder);
    weft_changes_close(&changes);
    weft_recent_close(&recent);
    weft_window_close(&window);
    free(copy);
    free(decoder);
}

static void check_again(weft_context *context, const weft_recall *recall, const weft_recall_mark *mark) {
    weft_recall *again;
    weft_recall_mark found;
    weft_writer first, second;
    weft_writer_open(&first, context);
    weft_writer_open(&second, context);
    require(weft_recall_create(context, &again) == WEFT_OK);
    require(weft_recall_write(recall, mark, &first) == WEFT_OK);
    require(weft_recall_read(again, first.data, first.size, &found) == WEFT_OK);
    require(weft_recall_write(again, &found, &second) == WEFT_OK);
    require(first.size == second.size);
    weft_recall_destroy(again);
    weft_writer_close(&first);
    weft_writer_close(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_reader reader = weft_reader_over(data, size);
    size_t length = weft_reader_u16(&reader);
    const uint8_t *bytes = weft_reader_bytes(&reader, length);
    unsigned depth = weft_reader_u8(&reader);
    size_t count = weft_reader_u16(&reader);
    if (weft_reader_failed(&reader) || count > UNITS / 2) {
        return 0;
    }
    uint8_t *file = malloc(length + 8);
    require(file != NULL);
    memcpy(file, bytes, length);
    uint64_t checksum = XXH3_64bits(file, length), place = 0;
    memcpy(file + length, &checksum, 8);
    memcpy(&place, length >= PLACE + 8 ? file + PLACE : (const uint8_t *)&checksum, 8);
    weft_context *context;
    weft_recall *recall;
    weft_recall_mark mark;
    require(weft_context_create(NULL, &context) == WEFT_OK);
    require(weft_recall_create(context, &recall) == WEFT_OK);
    if (weft_recall_read(recall, file, length + 8, &mark) == WEFT_OK) {
        check_again(context, recall, &mark);
        decode(context, recall, place, depth % (WEFT_RECALL_STEPS + 1), count, reader.cursor,
               weft_reader_left(&reader));
    }
    weft_recall_destroy(recall);
    weft_context_destroy(context);
    free(file);
    return 0;
}
