/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects in pieces: whatever the pieces and their chunks are, what is read is the pieces end to end; and a
 * list that is not what it should be is refused.
 */
#include "../../lib/base/context.h"
#include "../../lib/sync/objects/fetch.h"
#include "../../lib/sync/objects/pieces.h"
#include "models.h"
#include "scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 300000 };

typedef struct bench {
    scratch scratch;
    weft_context *context;
    weft_store *store;
    uint8_t data[SIZE];
    weft_pieces pieces;
    weft_object object;
} bench;

static void open_bench(bench *b) {
    dice dice = {7};
    const weft_context_options options = {.size = sizeof options, .threads = 2};
    scratch_open(&b->scratch);
    assert_int_equal(weft_context_create(&options, &b->context), WEFT_OK);
    assert_int_equal(weft_store_open(b->context, scratch_path(&b->scratch, "store"), NULL, &b->store),
                     WEFT_OK);
    dice_fill(&dice, b->data, SIZE);
    weft_pieces_open(&b->pieces, b->context);
}

static void close_bench(bench *b) {
    weft_pieces_close(&b->pieces);
    weft_store_close(b->store);
    weft_context_destroy(b->context);
    scratch_close(&b->scratch);
}

/* Puts bytes [start, start + size) as a piece of its own. */
static void add_piece(bench *b, size_t start, size_t size, size_t chunk_bytes) {
    weft_object piece = {.bytes = size, .chunk_bytes = chunk_bytes};
    weft_hash hashes[SIZE / 4096 + 1];
    size_t count = (size_t)weft_object_chunks(&piece);
    snprintf(piece.key, sizeof piece.key, "patches/%zu", b->pieces.count);
    for (size_t i = 0; i < count; i++) {
        size_t left = size - i * chunk_bytes;
        assert_int_equal(weft_hash_compute(b->context, b->data + start + i * chunk_bytes,
                                           left < chunk_bytes ? left : chunk_bytes, &hashes[i]),
                         WEFT_OK);
    }
    piece.listed = count > WEFT_CHUNKS_INLINE;
    if (piece.listed) {
        piece.list.bytes = count * sizeof *hashes;
        snprintf(piece.list.key, sizeof piece.list.key, "chunks/%zu", b->pieces.count);
        assert_int_equal(weft_hash_compute(b->context, hashes, count * sizeof *hashes, &piece.list.hash),
                         WEFT_OK);
        assert_int_equal(weft_store_put_bytes(b->context, b->store, piece.list.key, hashes,
                                              count * sizeof *hashes, WEFT_STORE_ALWAYS, NULL, NULL),
                         WEFT_OK);
    } else {
        memcpy(piece.chunks, hashes, count * sizeof *hashes);
    }
    assert_int_equal(weft_store_put_bytes(b->context, b->store, piece.key, b->data + start, size,
                                          WEFT_STORE_ALWAYS, NULL, NULL),
                     WEFT_OK);
    assert_int_equal(weft_pieces_add(&b->pieces, &piece), WEFT_OK);
}

/* Some pieces of one byte, some of many chunks, one with its hashes in a list. */
static void add_pieces(bench *b) {
    static const size_t sizes[] = {1, 4096, 100000, 1, 12289, 99, 0};
    static const size_t chunks[] = {4096, 4096, 4096, 1 << 20, 8192, 4096, 65536};
    size_t start = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i] > 0 ? sizes[i] : SIZE - start;
        add_piece(b, start, size, chunks[i]);
        start += size;
    }
    weft_parcel list = {NULL, NULL};
    assert_int_equal(weft_pieces_send(&b->pieces, b->store, "pieces/x", &list, &b->object), WEFT_OK);
    assert_int_equal(weft_parcel_join(b->context, &list, WEFT_OK), WEFT_OK);
}

static void read_everywhere(bench *b, uint64_t hold_bytes, bool ahead) {
    weft_fetch *fetch;
    dice dice = {hold_bytes};
    uint8_t *output = malloc(SIZE);
    assert_non_null(output);
    assert_int_equal(weft_fetch_open(b->context, b->store, &b->object, hold_bytes, ahead, &fetch), WEFT_OK);
    weft_source source = weft_fetch_source(fetch);
    assert_int_equal(source.size, SIZE);
    assert_int_equal(source.read(source.opaque, 0, output, SIZE), WEFT_OK);
    assert_memory_equal(output, b->data, SIZE);
    for (int i = 0; i < 300; i++) {
        size_t start = (size_t)dice_below(&dice, SIZE);
        size_t size = (size_t)dice_below(&dice, i % 2 == 0 ? 50 : SIZE - start) % (SIZE - start) + 1;
        assert_int_equal(source.read(source.opaque, start, output, size), WEFT_OK);
        assert_memory_equal(output, b->data + start, size);
    }
    weft_fetch_close(fetch);
    free(output);
}

static void test_reads(void **state) {
    (void)state;
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    open_bench(b);
    add_pieces(b);
    assert_true(b->object.pieced);
    assert_int_equal(b->object.bytes, SIZE);
    read_everywhere(b, 1 << 20, true);
    read_everywhere(b, 1 << 20, false);
    read_everywhere(b, 70000, true); /* less than all: chunks are dropped and fetched again */
    close_bench(b);
    free(b);
}

static void expect_refused(bench *b, weft_status expected) {
    weft_fetch *fetch;
    uint8_t byte;
    weft_status status = weft_fetch_open(b->context, b->store, &b->object, 1 << 20, true, &fetch);
    if (status == WEFT_OK) {
        weft_source source = weft_fetch_source(fetch);
        for (uint64_t i = 0; i < SIZE && status == WEFT_OK; i++) {
            status = source.read(source.opaque, i, &byte, 1);
        }
        status = weft_fetch_explain(b->context, fetch, status);
        weft_fetch_close(fetch);
    }
    assert_int_equal(status, expected);
}

static void test_damage(void **state) {
    (void)state;
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    open_bench(b);
    add_pieces(b);
    size_t size;
    uint8_t *piece = scratch_read(&b->scratch, "store/patches/2", &size);
    piece[77777] ^= 1;
    scratch_write(&b->scratch, "store/patches/2", piece, size);
    expect_refused(b, WEFT_CHECKSUM_MISMATCH);
    piece[77777] ^= 1;
    scratch_write(&b->scratch, "store/patches/2", piece, size);
    free(piece);
    assert_int_equal(weft_store_remove(b->context, b->store, "patches/4"), WEFT_OK);
    expect_refused(b, WEFT_NOT_FOUND);
    b->object.bytes--;
    expect_refused(b, WEFT_MALFORMED);
    b->object.list.hash.bytes[3] ^= 1;
    expect_refused(b, WEFT_CHECKSUM_MISMATCH);
    close_bench(b);
    free(b);
}

#define HASH "\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\""
#define PIECE(key) "{\"key\":\"" key "\",\"bytes\":5,\"chunk_bytes\":4096,\"sha256\":[" HASH "]}"
#define LIST(items) "{\"weft\":1,\"kind\":\"pieces\",\"pieces\":[" items "]}"

static void test_lists(void **state) {
    (void)state;
    static const struct {
        const char *text;
        weft_status status;
    } cases[] = {
        {LIST(PIECE("patches/a") "," PIECE("anchors/b")), WEFT_OK},
        {LIST(""), WEFT_MALFORMED},
        {LIST(PIECE("heads/00000001")), WEFT_MALFORMED},
        {LIST(PIECE("../x")), WEFT_MALFORMED},
        {LIST("{\"bytes\":5,\"pieces\":{\"key\":\"pieces/a\",\"bytes\":5,\"sha256\":" HASH "}}"),
         WEFT_MALFORMED},
        {LIST("3"), WEFT_MALFORMED},
        {"{\"weft\":1,\"kind\":\"pieces\"}", WEFT_MALFORMED},
        {"{\"weft\":1,\"kind\":\"page\",\"pieces\":[" PIECE("patches/a") "]}", WEFT_MALFORMED},
        {"{\"weft\":2,\"kind\":\"pieces\",\"pieces\":[" PIECE("patches/a") "]}", WEFT_WRONG_VERSION},
    };
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_pieces pieces;
        weft_pieces_open(&pieces, context);
        assert_int_equal(weft_pieces_parse(&pieces, "list", cases[i].text, strlen(cases[i].text)),
                         cases[i].status);
        assert_int_equal(pieces.count, cases[i].status == WEFT_OK ? 2 : 0);
        weft_pieces_close(&pieces);
    }
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
