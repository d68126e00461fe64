/* SPDX-License-Identifier: Apache-2.0
 *
 * header.c: the header of a patch file: roster, files and labels, compressed where that helps.
 */
#include "format.h"

#include "../recall/recall.h"
#include "fold.h"

#include "../../tensor/table.h"

#include <string.h>
#include <xxhash.h>
#include <zstd.h>

static const uint8_t magic[8] = {0x89, 'W', 'E', 'F', 'T', '\r', '\n', 0x1a};

enum { FILES_NONE = 0, FILES_SAME = 1, FILES_GIVEN = 2, FILES_FOLDED = 3 };
enum { LABELS_MAX = 1024 };

/* How a body is compressed. A short one is that of a small model, whose bytes count; for a long one, all
 * threads would wait. */
enum { SHORT_BODY = 2048, SHORT_LEVEL = 19, LONG_LEVEL = 9 };

void weft_header_open(weft_header *header, weft_context *context) {
    memset(header, 0, sizeof *header);
    header->context = context;
    weft_roster_open(&header->roster, context);
}

void weft_header_close(weft_header *header) {
    weft_context *context = header->context;
    weft_roster_close(&header->roster);
    for (size_t i = 0; i < header->container.file_count; i++) {
        weft_release(context, (char *)(uintptr_t)header->container.files[i].name);
        weft_release(context, (char *)(uintptr_t)header->container.files[i].header);
    }
    weft_release(context, (weft_container_file *)(uintptr_t)header->container.files);
    weft_release(context, (char *)(uintptr_t)header->container.index);
    for (size_t i = 0; i < header->label_count; i++) {
        weft_release(context, (char *)(uintptr_t)header->labels[i]);
    }
    weft_release(context, header->labels);
    weft_header_open(header, context);
}

/* ---- writing ---- */

static void write_text(weft_writer *writer, const char *text, size_t length) {
    weft_writer_varint(writer, length);
    weft_writer_bytes(writer, text, length);
}

/* Appends all that follows the kind; false if a header cannot be folded. */
static bool write_given(weft_writer *writer, const weft_container *container, bool folded) {
    weft_writer_u8(writer, container->sharded);
    weft_writer_varint(writer, container->file_count);
    for (size_t i = 0; i < container->file_count; i++) {
        const weft_container_file *file = &container->files[i];
        write_text(writer, file->name, strlen(file->name));
        if (!folded) {
            write_text(writer, file->header, file->header_bytes);
            continue;
        }
        weft_writer text;
        weft_writer_open(&text, writer->context);
        bool possible = weft_fold_offsets(file->header, file->header_bytes, &text);
        if (possible) {
            write_text(writer, (const char *)text.data, text.size);
        }
        writer->failed = writer->failed || weft_writer_failed(&text);
        weft_writer_close(&text);
        if (!possible) {
            return false;
        }
    }
    if (container->sharded) {
        write_text(writer, container->index, container->index_bytes);
    }
    return true;
}

static void write_files(weft_writer *writer, bool same, const weft_container *container) {
    if (same || container == NULL) {
        weft_writer_u8(writer, same ? FILES_SAME : FILES_NONE);
        return;
    }
    size_t start = writer->size;
    weft_writer_u8(writer, FILES_FOLDED);
    if (!write_given(writer, container, true)) {
        writer->size = start;
        weft_writer_u8(writer, FILES_GIVEN);
        write_given(writer, container, false);
    }
}

static size_t count_texts(const char *const *labels) {
    size_t count = 0;
    while (labels != NULL && labels[count] != NULL) {
        count++;
    }
    return count;
}

/* A text that is shown to people or names something, as readers take it. */
static bool is_words(const char *text, size_t length) {
    return strlen(text) == length && weft_text_is_utf8(text, length);
}

weft_status weft_labels_check(weft_context *context, const char *const *labels, size_t most) {
    size_t count = count_texts(labels);
    for (size_t i = 0; i < count; i++) {
        if (!is_words(labels[i], strlen(labels[i]))) {
            return weft_fail(
                context, WEFT_INVALID_ARGUMENT,
                "the %s of label %zu is not UTF-8; nobody could read it, so nothing was written",
                i % 2 == 0 ? "key" : "value", i / 2 + 1);
        }
    }
    if (count % 2 != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the label %s has no value", labels[count - 1]);
    }
    return count / 2 <= most
               ? WEFT_OK
               : weft_fail(context, WEFT_LIMIT_EXCEEDED,
                           "%zu labels are too many: there is room for %zu labels", count / 2, most);
}

static weft_status check_container(weft_context *context, const weft_container *container) {
    if (container->file_count == 0 || container->file_count > weft_context_limits(context)->tensors) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                         "a patch cannot say that its result is made of %zu files", container->file_count);
    }
    for (size_t i = 0; i < container->file_count; i++) {
        const char *name = container->files[i].name;
        if (!is_words(name, strlen(name))) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "the name of file %zu of the result is not UTF-8", i + 1);
        }
        /* folded it may be smaller, but it is unfolded where the patch is read */
        if (container->files[i].header_bytes > weft_context_limits(context)->header_bytes) {
            return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                             "the header of file %zu of the result is larger than the limit", i + 1);
        }
    }
    return WEFT_OK;
}

/* What readers would refuse is refused before anything is written. Names of tensors were checked when they
 * came into their table. */
static weft_status check_header(weft_context *context, unsigned format, weft_profile profile,
                                const weft_roster *roster, const weft_container *container,
                                const char *const *labels) {
    uint64_t most = weft_context_limits(context)->tensors;
    if (format > WEFT_FORMAT_NEWEST) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%u is no format: this weft writes 1 to %d",
                         format, WEFT_FORMAT_NEWEST);
    }
    if (format == 1 && profile == WEFT_PROFILE_SMALLEST) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "format 1 has no profile `smallest`");
    }
    if (profile != WEFT_PROFILE_FAST && profile != WEFT_PROFILE_SMALL && profile != WEFT_PROFILE_SMALLEST) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%d is no profile of a patch", (int)profile);
    }
    if (roster->count > most) {
        return weft_fail(
            context, WEFT_LIMIT_EXCEEDED,
            "both states together have %zu tensors, more than the limit of %llu; raise limits.tensors "
            "here and where the patch is read",
            roster->count, (unsigned long long)most);
    }
    weft_status status = container != NULL ? check_container(context, container) : WEFT_OK;
    return status == WEFT_OK ? weft_labels_check(context, labels, LABELS_MAX) : status;
}

static void write_labels(weft_writer *writer, const char *const *labels) {
    size_t count = count_texts(labels);
    weft_writer_varint(writer, count / 2);
    for (size_t i = 0; i < count; i++) {
        write_text(writer, labels[i], strlen(labels[i]));
    }
}

/* Compresses the body if that makes it smaller; equal lengths mean that it is stored as it is. */
static weft_status store_body(weft_context *context, unsigned format, const weft_writer *body,
                              weft_writer *writer) {
    size_t bound = ZSTD_compressBound(body->size);
    uint8_t *packed = weft_allocate(context, bound);
    if (packed == NULL) {
        return WEFT_NO_MEMORY;
    }
    int level = body->size < SHORT_BODY ? SHORT_LEVEL : LONG_LEVEL;
    size_t size = ZSTD_compress(packed, bound, body->data, body->size, level);
    bool smaller = !ZSTD_isError(size) && size < body->size;
    const uint8_t *stored = smaller ? packed : body->data;
    size_t stored_size = smaller ? size : body->size;
    size_t start = writer->size;
    weft_writer_bytes(writer, magic, sizeof magic);
    weft_writer_u16(writer, (uint16_t)(format != 0 ? format : WEFT_FORMAT_NEWEST));
    weft_writer_u16(writer, 0);
    weft_writer_u32(writer, (uint32_t)stored_size);
    weft_writer_u32(writer, (uint32_t)body->size);
    weft_writer_bytes(writer, stored, stored_size);
    if (!weft_writer_failed(writer)) {
        weft_writer_u64(writer, XXH3_64bits(writer->data + start, writer->size - start));
    }
    weft_release(context, packed);
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}

static weft_status fail_size(weft_context *context) {
    return weft_fail(context, WEFT_LIMIT_EXCEEDED, "the patch's header would be larger than the limit");
}

weft_status weft_header_write(weft_context *context, unsigned format, weft_profile profile, unsigned depth,
                              const weft_roster *roster, bool same_files, const weft_container *container,
                              const char *const *labels, weft_writer *writer) {
    const weft_container *given = same_files ? NULL : container;
    weft_status status = check_header(context, format, profile, roster, given, labels);
    if (status != WEFT_OK) {
        return status;
    }
    weft_writer body;
    weft_writer_open(&body, context);
    weft_writer_u8(&body, (uint8_t)profile);
    if (profile == WEFT_PROFILE_SMALLEST) {
        weft_writer_u8(&body, (uint8_t)depth);
    }
    weft_roster_write(roster, &body);
    write_files(&body, same_files, container);
    write_labels(&body, labels);
    status = weft_writer_failed(&body) ? WEFT_NO_MEMORY : WEFT_OK;
    uint64_t limit = weft_context_limits(context)->header_bytes;
    if (status == WEFT_OK && (body.size > limit || body.size > UINT32_MAX)) {
        status = fail_size(context);
    }
    if (status == WEFT_OK) {
        status = store_body(context, format, &body, writer);
    }
    weft_writer_close(&body);
    /* readers count what stands around the body, too */
    return status == WEFT_OK && writer->size > limit ? fail_size(context) : status;
}

/* ---- reading ---- */

weft_status weft_header_measure(weft_context *context, const uint8_t *preamble, uint64_t *size_out) {
    weft_reader reader = weft_reader_over(preamble, WEFT_PREAMBLE_BYTES);
    const uint8_t *start = weft_reader_bytes(&reader, sizeof magic);
    uint16_t version = weft_reader_u16(&reader);
    uint16_t flags = weft_reader_u16(&reader);
    uint32_t stored = weft_reader_u32(&reader);
    if (memcmp(start, magic, sizeof magic) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "this is not a weft patch");
    }
    if (version < WEFT_FORMAT_OLDEST || version > WEFT_FORMAT_NEWEST) {
        return weft_fail(
            context, WEFT_WRONG_VERSION,
            "the patch is of format version %u, this weft reads versions %u to %u; upgrade weft", version,
            WEFT_FORMAT_OLDEST, WEFT_FORMAT_NEWEST);
    }
    if (flags != 0) {
        return weft_fail(context, WEFT_WRONG_VERSION,
                         "the patch needs features (flags %#x) that this weft does not know; upgrade weft",
                         flags);
    }
    *size_out = (uint64_t)WEFT_PREAMBLE_BYTES + stored + WEFT_CHECKSUM_BYTES;
    return WEFT_OK;
}

static weft_status read_text(weft_context *context, weft_reader *reader, const char **text_out,
                             size_t *length_out) {
    uint64_t length = weft_reader_varint(reader);
    if (weft_reader_failed(reader) || length > weft_reader_left(reader)) {
        return weft_fail(context, WEFT_MALFORMED, "the patch's header ends inside of a text");
    }
    *length_out = (size_t)length;
    *text_out =
        weft_copy_text(context, (const char *)weft_reader_bytes(reader, (size_t)length), (size_t)length);
    return *text_out == NULL ? WEFT_NO_MEMORY : WEFT_OK;
}

static weft_status read_words(weft_context *context, weft_reader *reader, const char **text_out) {
    size_t length = 0;
    weft_status status = read_text(context, reader, text_out, &length);
    if (status == WEFT_OK && !is_words(*text_out, length)) {
        status = weft_fail(context, WEFT_MALFORMED, "a name or label in the patch's header is not UTF-8");
    }
    return status;
}

static weft_status unfold_header(weft_context *context, weft_container_file *file) {
    weft_writer text;
    weft_writer_open(&text, context);
    weft_status status = weft_unfold_offsets(context, file->header, file->header_bytes, &text);
    char *unfolded = NULL;
    if (status == WEFT_OK) {
        unfolded = weft_copy_text(context, (const char *)text.data, text.size);
        status = unfolded == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    }
    if (status == WEFT_OK) {
        weft_release(context, (char *)(uintptr_t)file->header);
        file->header = unfolded;
        file->header_bytes = text.size;
    }
    weft_writer_close(&text);
    return status;
}

static weft_status read_files(weft_header *header, weft_reader *reader) {
    uint8_t kind = weft_reader_u8(reader);
    header->same_files = kind == FILES_SAME;
    if (weft_reader_failed(reader) || kind > FILES_FOLDED) {
        return weft_fail(header->context, WEFT_MALFORMED,
                         "the patch's header does not say which files result");
    }
    if (kind < FILES_GIVEN) {
        return WEFT_OK;
    }
    uint8_t sharded = weft_reader_u8(reader);
    header->container.sharded = sharded == 1;
    uint64_t count = weft_reader_varint(reader);
    /* a file takes at least two bytes here, and holds a tensor in all but the oddest checkpoints */
    if (weft_reader_failed(reader) || sharded > 1 || count == 0 || count > weft_reader_left(reader) / 2 ||
        count > weft_context_limits(header->context)->tensors) {
        return weft_fail(header->context, WEFT_MALFORMED, "the patch's list of files is broken");
    }
    weft_container_file *files = weft_allocate_zeroed(header->context, (size_t)count, sizeof *files);
    if (files == NULL) {
        return WEFT_NO_MEMORY;
    }
    header->container.files = files;
    header->container.file_count = (size_t)count;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = read_words(header->context, reader, &files[i].name);
        if (status == WEFT_OK) {
            status = read_text(header->context, reader, &files[i].header, &files[i].header_bytes);
        }
        if (status == WEFT_OK && kind == FILES_FOLDED) {
            status = unfold_header(header->context, &files[i]);
        }
    }
    if (status == WEFT_OK && header->container.sharded) {
        status =
            read_text(header->context, reader, &header->container.index, &header->container.index_bytes);
    }
    return status;
}

static weft_status read_labels(weft_header *header, weft_reader *reader) {
    uint64_t pairs = weft_reader_varint(reader);
    if (weft_reader_failed(reader) || pairs > LABELS_MAX) {
        return weft_fail(header->context, WEFT_MALFORMED, "the patch's labels are broken");
    }
    header->labels = weft_allocate_zeroed(header->context, 2 * (size_t)pairs, sizeof *header->labels);
    if (header->labels == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (uint64_t i = 0; i < 2 * pairs; i++) {
        header->label_count++;
        weft_status status = read_words(header->context, reader, &header->labels[i]);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status read_body(weft_header *header, const uint8_t *body, size_t size) {
    weft_reader reader = weft_reader_over(body, size);
    uint8_t profile = weft_reader_u8(&reader);
    header->depth = profile == WEFT_PROFILE_SMALLEST ? weft_reader_u8(&reader) : 0;
    if (weft_reader_failed(&reader) || profile > WEFT_PROFILE_SMALLEST ||
        header->depth > WEFT_RECALL_STEPS || (profile == WEFT_PROFILE_SMALLEST && header->version < 2)) {
        return weft_fail(header->context, WEFT_MALFORMED, "the patch's header names no known profile");
    }
    header->profile = (weft_profile)profile;
    weft_status status = weft_roster_read(&header->roster, &reader);
    if (status == WEFT_OK) {
        status = read_files(header, &reader);
    }
    if (status == WEFT_OK) {
        status = read_labels(header, &reader);
    }
    if (status == WEFT_OK && weft_reader_left(&reader) != 0) {
        status = weft_fail(header->context, WEFT_MALFORMED, "the patch's header has bytes left over");
    }
    return status;
}

weft_status weft_header_read(weft_header *header, const uint8_t *data, size_t size) {
    weft_context *context = header->context;
    weft_reader last = weft_reader_over(data + size - WEFT_CHECKSUM_BYTES, WEFT_CHECKSUM_BYTES);
    if (XXH3_64bits(data, size - WEFT_CHECKSUM_BYTES) != weft_reader_u64(&last)) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH,
                         "the patch's header was damaged on its way; fetch the patch again");
    }
    weft_reader version = weft_reader_over(data + 8, 2);
    header->version = weft_reader_u16(&version);
    weft_reader lengths = weft_reader_over(data + 12, 8);
    size_t stored = weft_reader_u32(&lengths);
    size_t raw = weft_reader_u32(&lengths);
    if (stored > raw || raw > weft_context_limits(context)->header_bytes) {
        return weft_fail(context, stored > raw ? WEFT_MALFORMED : WEFT_LIMIT_EXCEEDED,
                         "the patch's header of %zu bytes (%zu stored) is beyond the limit", raw, stored);
    }
    const uint8_t *body = data + WEFT_PREAMBLE_BYTES;
    if (stored == raw) {
        return read_body(header, body, raw);
    }
    uint8_t *unpacked = weft_allocate(context, raw);
    if (unpacked == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status;
    if (ZSTD_decompress(unpacked, raw, body, stored) != raw) {
        status = weft_fail(context, WEFT_MALFORMED, "the patch's header does not unpack");
    } else {
        status = read_body(header, unpacked, raw);
    }
    weft_release(context, unpacked);
    return status;
}
