/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.c: JSON texts to zstd frames and back, and base 85.
 */
#include "pack.h"

#include "../../base/context.h"

#include <string.h>
#include <zstd.h>

/* Beyond this the frames get smaller by less than they take longer. */
enum { PACK_LEVEL = 6 };

/* The dictionary, as the zstd format has them (RFC 8878, section 5): tables of the letters and lengths that
 * are usual in these texts, made once from samples, and then text. It never changes: frames that were
 * written with it are read with it. */
static const uint8_t TABLES[] = {
    0x37, 0xa4, 0x30, 0xec, 0x74, 0x66, 0x65, 0x77, 0x19, 0x10, 0xe0, 0x41, 0x2a, 0x07, 0xff, 0xff,
    0xff, 0xff, 0x4b, 0xfc, 0x85, 0x4d, 0x72, 0x3f, 0xf0, 0x98, 0x92, 0x92, 0x92, 0x12, 0x39, 0xfa,
    0x83, 0x1b, 0xd3, 0x21, 0x00, 0x00, 0x00, 0x00, 0x03, 0xc3, 0xe8, 0x8d, 0x01, 0x00, 0x74, 0xc0,
    0x81, 0x01, 0x01, 0x43, 0xc2, 0x8f, 0x16, 0x24, 0x13, 0x04, 0x41, 0x05, 0x00, 0x00, 0x70, 0x30,
    0x16, 0x8d, 0x0e, 0x42, 0x30, 0x00, 0x24, 0x06, 0x1e, 0x04, 0x70, 0x24, 0x22, 0x81, 0x22, 0x88,
    0x08, 0x00, 0x00, 0x00, 0x00, 0x04, 0x64, 0x06, 0x84, 0xc5, 0xe4, 0x61, 0xe2, 0x42, 0xf2, 0x48,
    0x28, 0x16, 0x00, 0x00, 0x40, 0x92, 0xc0, 0x00, 0x80, 0x80, 0x04, 0xa4, 0x06, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
};

static const char WORDS[] =
    "\"labels\":{\"lost\":\"the record of this version\"},\"pieces\":{\"key\":\"pieces/0"
    "000000"
    "{\"weft\":2,\"kind\":\"leap\",\"run\":\"\",\"first\":,\"last\":,\"base\":\"\",\"records\":[{"
    "\"version\":,\"patch\":{\"key\":\"patches/"
    ",\"list\":{\"key\":\"chunks/0000000\",\"replaces\":\"pages/0000000"
    "\"}],\"leaps\":[{\"first\":,\"last\":,\"base\":\"\",\"digest\":\"\",\"node\":{\"key\":\"leap"
    "s/00000001-000000\",\"bytes\":,\"sha256\":\"\"},\"bytes\":,\"key\":\"patches/0000000"
    "1-000000"
    "{\"weft\":2,\"kind\":\"page\",\"run\":\"\",\"previous\":{\"key\":\"pages/00000001-00000"
    "0\",\"bytes\":,\"sha256\":\"\"},\"anchors\":[{\"version\":,\"digest\":\"\",\"object\":{\"k"
    "ey\":\"anchors/00000001-000000\",\"bytes\":,\"chunk_bytes\":1048576,\"sha256\":[\""
    "\"]}},{\"version\":\"]}}],\"records\":[{\"version\":"
    "{\"weft\":2,\"kind\":\"head\",\"run\":\"\",\"epoch\":1,\"sequence\":,\"writer\":\"\",\"page"
    "\":{\"key\":\"pages/00000001-000000\",\"bytes\":,\"sha256\":\"\"},\"newest\":{\"versio"
    "n\":,\"epoch\":1,\"time\":17,\"floor\":1,\"digest\":\"\",\"changed\":,\"total\":,\"dense"
    "_bytes\":,\"base\":\"\",\"patch\":{\"key\":\"patches/00000001-000000\",\"bytes\":,\"ch"
    "unk_bytes\":1048576,\"sha256\":[\"\"]},\"labels\":{\"step\":\"\"},\"retired\":[\"pages"
    "/00000001-000000\"],\"leaps\":[{\"first\":";

enum { TABLE_BYTES = sizeof TABLES, WORD_BYTES = sizeof WORDS - 1, BYTES = TABLE_BYTES + WORD_BYTES };

static void copy_dictionary(uint8_t dictionary[BYTES]) {
    memcpy(dictionary, TABLES, TABLE_BYTES);
    memcpy(dictionary + TABLE_BYTES, WORDS, WORD_BYTES);
}

weft_status weft_pack(weft_context *context, const void *text, size_t size, weft_writer *writer) {
    uint8_t dictionary[BYTES];
    size_t bound = ZSTD_compressBound(size);
    uint8_t *room = weft_writer_reserve(writer, bound);
    ZSTD_CCtx *packer = room != NULL ? ZSTD_createCCtx() : NULL;
    if (packer == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for packing %zu bytes of text", size);
    }
    copy_dictionary(dictionary);
    size_t done = ZSTD_CCtx_setParameter(packer, ZSTD_c_compressionLevel, PACK_LEVEL);
    /* whoever reads it knows the dictionary */
    done = ZSTD_isError(done) ? done : ZSTD_CCtx_setParameter(packer, ZSTD_c_dictIDFlag, 0);
    done = ZSTD_isError(done) ? done : ZSTD_CCtx_loadDictionary(packer, dictionary, BYTES);
    done = ZSTD_isError(done) ? done : ZSTD_compress2(packer, room, bound, text, size);
    ZSTD_freeCCtx(packer);
    if (ZSTD_isError(done)) {
        return weft_fail(context, WEFT_NO_MEMORY, "zstd could not pack %zu bytes of text: %s", size,
                         ZSTD_getErrorName(done));
    }
    writer->size += done;
    return WEFT_OK;
}

bool weft_pack_begins(const void *data, size_t size) {
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    return size >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
}

static weft_status fail_unpacked(weft_context *context, const char *where) {
    return weft_fail(context, WEFT_MALFORMED, "%s: what is packed in it cannot be unpacked", where);
}

weft_status weft_unpack(weft_context *context, const char *where, const void *data, size_t size,
                        size_t most, uint8_t **text_out, size_t *size_out) {
    /* the numbers for a size that is not told, and for no frame, are beyond all limits too. Frames of
     * zstd's first years, which some builds of it still read, are none. */
    unsigned long long told = weft_pack_begins(data, size) ? ZSTD_getFrameContentSize(data, size) : 0;
    if (told == 0 || told > most || ZSTD_findFrameCompressedSize(data, size) != size) {
        return fail_unpacked(context, where);
    }
    uint8_t dictionary[BYTES];
    uint8_t *text = weft_allocate(context, (size_t)told);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    ZSTD_DCtx *unpacker = ZSTD_createDCtx();
    if (unpacker == NULL) {
        weft_release(context, text);
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for unpacking %llu bytes of text", told);
    }
    copy_dictionary(dictionary);
    size_t done = ZSTD_decompress_usingDict(unpacker, text, (size_t)told, data, size, dictionary, BYTES);
    ZSTD_freeDCtx(unpacker);
    if (done != (size_t)told) {
        weft_release(context, text);
        return fail_unpacked(context, where);
    }
    *text_out = text;
    *size_out = done;
    return WEFT_OK;
}

/* ---- base 85 ---- */

/* That of RFC 1924: no letter of it needs an escape in JSON. */
static const char LETTERS[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                              "!#$%&()*+-;<=>?@^_`{|}~";

enum { BASE = 85, GROUP_BYTES = 4, GROUP_LETTERS = 5 };

/* The last group may be short: of n bytes, filled up by zeros, the first n + 1 letters. */
size_t weft_base85_size(size_t size) {
    size_t rest = size % GROUP_BYTES;
    return size / GROUP_BYTES * GROUP_LETTERS + (rest > 0 ? rest + 1 : 0);
}

void weft_base85_format(const uint8_t *data, size_t size, char *text) {
    for (size_t i = 0; i < size; i += GROUP_BYTES) {
        size_t count = size - i < GROUP_BYTES ? size - i : GROUP_BYTES;
        uint32_t group = 0;
        for (size_t j = 0; j < GROUP_BYTES; j++) {
            group = group << 8 | (j < count ? data[i + j] : 0);
        }
        char letters[GROUP_LETTERS];
        for (size_t j = GROUP_LETTERS; j > 0; j--) {
            letters[j - 1] = LETTERS[group % BASE];
            group /= BASE;
        }
        memcpy(text, letters, count + 1);
        text += count + 1;
    }
}

bool weft_base85_parse(const char *text, size_t length, uint8_t *data, size_t room, size_t *size_out) {
    size_t size = 0;
    for (size_t i = 0; i < length; i += GROUP_LETTERS) {
        size_t count = length - i < GROUP_LETTERS ? length - i : GROUP_LETTERS;
        uint64_t group = 0;
        for (size_t j = 0; j < GROUP_LETTERS; j++) {
            const char *letter = j < count ? memchr(LETTERS, text[i + j], sizeof LETTERS - 1) : NULL;
            if (letter == NULL && j < count) {
                return false;
            }
            /* what was cut off is at most this much, and does not reach the bytes that are there */
            group = group * BASE + (letter != NULL ? (uint64_t)(letter - LETTERS) : BASE - 1);
        }
        if (count == 1 || group > UINT32_MAX || room - size < count - 1) {
            return false;
        }
        for (size_t j = 0; j + 1 < count; j++) {
            data[size++] = (uint8_t)(group >> (24 - 8 * j));
        }
    }
    *size_out = size;
    return true;
}
