/* SPDX-License-Identifier: Apache-2.0
 *
 * sections.h: a patch file taken apart and put together again with correct lengths and checksums, so that
 * the fuzzer gets past them to what lies behind. Taking apart is lenient: any bytes have sections.
 */
#ifndef WEFT_FUZZ_SECTIONS_H
#define WEFT_FUZZ_SECTIONS_H

#include "../../lib/patch/format/format.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* libFuzzer's, if it is there. */
__attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum {
    SECTIONS_FRAMES = 32,
    FRAME_FIELDS = WEFT_FRAME_LENGTH + WEFT_FRAME_CHECKSUM,
    /* in the footer */
    FOOTER_BASE = 12,
    FOOTER_RESULT = 28,
    FOOTER_RESERVED = 68, /* its lowest bit says here: leave the index as it is */
    FOOTER_CHECKSUM = 76,
    SECTIONS_LEAST = WEFT_PREAMBLE_BYTES + WEFT_CHECKSUM_BYTES + WEFT_FOOTER_BYTES,
};

typedef struct section {
    const uint8_t *data;
    size_t size;
} section;

typedef struct sections {
    uint8_t preamble[WEFT_PREAMBLE_BYTES];
    section body;
    section frames[SECTIONS_FRAMES]; /* without length and checksum */
    size_t frame_count;
    section index;
    uint8_t footer[WEFT_FOOTER_BYTES];
} sections;

static inline uint32_t load_u32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline bool sections_split(const uint8_t *data, size_t size, sections *s) {
    if (size < SECTIONS_LEAST) {
        return false;
    }
    memcpy(s->preamble, data, sizeof s->preamble);
    memcpy(s->footer, data + size - WEFT_FOOTER_BYTES, sizeof s->footer);
    size_t room = size - SECTIONS_LEAST;
    size_t stored = load_u32(data + 12);
    s->body = (section){data + WEFT_PREAMBLE_BYTES, stored < room ? stored : room};
    size_t at = WEFT_PREAMBLE_BYTES + s->body.size + WEFT_CHECKSUM_BYTES;
    size_t end = size - WEFT_FOOTER_BYTES;
    uint64_t given;
    memcpy(&given, s->footer, sizeof given);
    size_t index = given < at || given > end ? end : (size_t)given;
    s->index = (section){data + index, end - index};
    s->frame_count = 0;
    while (index - at > FRAME_FIELDS && s->frame_count < SECTIONS_FRAMES) {
        size_t length = load_u32(data + at);
        length = length <= FRAME_FIELDS ? FRAME_FIELDS + 1 : length;
        length = length > index - at ? index - at : length;
        s->frames[s->frame_count++] = (section){data + at + WEFT_FRAME_LENGTH, length - FRAME_FIELDS};
        at += length;
    }
    return true;
}

static inline uint8_t *put_bytes(uint8_t *to, const void *data, size_t size) {
    if (size > 0) {
        memcpy(to, data, size);
    }
    return to + size;
}

static inline uint8_t *put_varint(uint8_t *to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        *to++ = (uint8_t)(value | 0x80);
    }
    *to++ = (uint8_t)value;
    return to;
}

static inline uint8_t *put_checksum(uint8_t *to, const uint8_t *from) {
    uint64_t checksum = XXH3_64bits(from, (size_t)(to - from));
    return put_bytes(to, &checksum, sizeof checksum);
}

/* The bytes of a frame's spans, which follow its coding and stand in the index again. */
static inline section frame_spans(const section *frame) {
    static const unsigned fields[] = {2, 3, 5};
    weft_reader reader = weft_reader_over(frame->data, frame->size);
    weft_reader_u8(&reader);
    const uint8_t *start = reader.cursor;
    uint64_t records = weft_reader_varint(&reader);
    for (; records > 0 && !weft_reader_failed(&reader); records--) {
        uint8_t kind = weft_reader_u8(&reader);
        for (unsigned i = 0; i < fields[kind < 3 ? kind : 0]; i++) {
            weft_reader_varint(&reader);
        }
    }
    return (section){start, (size_t)(reader.cursor - start)};
}

static inline uint8_t *put_index(uint8_t *to, const sections *s, uint8_t *const *starts) {
    to = put_varint(to, s->frame_count);
    for (size_t i = 0; i < s->frame_count; i++) {
        section spans = frame_spans(&s->frames[i]);
        size_t length = s->frames[i].size + FRAME_FIELDS;
        to = put_varint(to, length);
        to = put_bytes(to, starts[i] + length - WEFT_FRAME_CHECKSUM, WEFT_FRAME_CHECKSUM);
        to = put_bytes(to, spans.data, spans.size);
    }
    return to;
}

/* A new file of the sections, to be freed. */
static inline uint8_t *sections_join(const sections *s, size_t *size_out) {
    size_t bound = SECTIONS_LEAST + s->body.size + s->index.size + 16;
    for (size_t i = 0; i < s->frame_count; i++) {
        bound += 2 * s->frames[i].size + FRAME_FIELDS + 32;
    }
    uint8_t *file = malloc(bound);
    uint8_t *starts[SECTIONS_FRAMES];
    if (file == NULL) {
        abort();
    }
    uint8_t *to = put_bytes(file, s->preamble, sizeof s->preamble);
    uint32_t stored = (uint32_t)s->body.size;
    bool compressed = load_u32(s->preamble + 12) < load_u32(s->preamble + 16);
    memcpy(file + 12, &stored, sizeof stored);
    if (!compressed) {
        memcpy(file + 16, &stored, sizeof stored);
    }
    to = put_checksum(put_bytes(to, s->body.data, s->body.size), file);
    for (size_t i = 0; i < s->frame_count; i++) {
        uint32_t length = (uint32_t)(s->frames[i].size + FRAME_FIELDS);
        starts[i] = to;
        to = put_bytes(to, &length, sizeof length);
        to = put_checksum(put_bytes(to, s->frames[i].data, s->frames[i].size), starts[i]);
    }
    uint8_t *index = to;
    bool keep = (s->footer[FOOTER_RESERVED] & 1) != 0;
    to = keep ? put_bytes(to, s->index.data, s->index.size) : put_index(to, s, starts);
    uint64_t offset = (uint64_t)(index - file);
    uint32_t bytes = (uint32_t)(to - index);
    to = put_bytes(to, &offset, sizeof offset);
    to = put_bytes(to, &bytes, sizeof bytes);
    to = put_bytes(to, s->footer + FOOTER_BASE, FOOTER_CHECKSUM - FOOTER_BASE);
    to = put_checksum(to, index);
    to = put_bytes(to, s->footer + FOOTER_CHECKSUM + 8, 8);
    *size_out = (size_t)(to - file);
    return file;
}

/* ---- mutating: one section at a time, and the frames' order ---- */

static inline void mutate_section(section *target, uint8_t *buffer, size_t room) {
    size_t size = target->size < room ? target->size : room;
    put_bytes(buffer, target->data, size);
    *target = (section){buffer, LLVMFuzzerMutate(buffer, size, room)};
}

static inline void shuffle_frames(sections *s, unsigned seed) {
    size_t a = seed / 8 % s->frame_count;
    size_t b = seed / 512 % s->frame_count;
    section kept = s->frames[a];
    if (seed % 8 == 0) {
        s->frames[a] = s->frames[--s->frame_count];
    } else if (seed % 8 < 4 && s->frame_count < SECTIONS_FRAMES) {
        s->frames[s->frame_count++] = kept;
    } else {
        s->frames[a] = s->frames[b];
        s->frames[b] = kept;
    }
}

static inline size_t sections_mutate(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    enum { ROOM = 1 << 16 };
    static uint8_t buffer[ROOM];
    sections s;
    if (seed % 16 == 0 || !sections_split(data, size, &s)) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    unsigned choice = seed / 16 % 16;
    if (choice == 0) {
        mutate_section(&s.body, buffer, ROOM);
    } else if (choice == 1) {
        mutate_section(&s.index, buffer, ROOM);
        s.footer[FOOTER_RESERVED] |= 1;
    } else if (choice == 2) {
        LLVMFuzzerMutate(s.footer, WEFT_FOOTER_BYTES - 8, WEFT_FOOTER_BYTES - 8);
    } else if (choice == 3 && s.frame_count > 0) {
        shuffle_frames(&s, seed / 256);
    } else if (s.frame_count > 0) {
        mutate_section(&s.frames[seed / 256 % s.frame_count], buffer, ROOM);
    }
    size_t joined_size;
    uint8_t *joined = sections_join(&s, &joined_size);
    if (joined_size <= max_size) {
        memcpy(data, joined, joined_size);
        size = joined_size;
    }
    free(joined);
    return size;
}

#endif
