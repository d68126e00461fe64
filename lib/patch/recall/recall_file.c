/* SPDX-License-Identifier: Apache-2.0
 *
 * recall_file.c: what is recalled of a checkpoint that is followed, or published from, by one process after
 * the other. doc/FORMAT.md, section 28, has the bytes.
 */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { FORMAT = 1, CHECKSUM = 8, ITEM = 5, BUCKET = 16, FILE_MAX = 1 << 30 };

static const uint8_t magic[8] = {'w', 'e', 'f', 't', 'l', 'a', 't', 'e'};

/* ---- bytes ---- */

static size_t count_known(const weft_recall *recall, const weft_recall_list *list) {
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        count += recall->steps + 1 - weft_recall_step(list->items[i]) <= WEFT_RECALL_STEPS;
    }
    return count;
}

static void write_list(const weft_recall *recall, const weft_recall_list *list, weft_writer *writer) {
    for (size_t i = 0; i < list->count; i++) {
        uint64_t item = list->items[i];
        uint64_t age = recall->steps + 1 - weft_recall_step(item);
        if (age <= WEFT_RECALL_STEPS) {
            weft_writer_u32(writer, (uint32_t)(item >> 32));
            weft_writer_u8(writer, (uint8_t)(age << 1 | (item & 1)));
        }
    }
}

weft_status weft_recall_write(const weft_recall *recall, const weft_recall_mark *mark,
                              weft_writer *writer) {
    size_t start = writer->size;
    weft_writer_bytes(writer, magic, sizeof magic);
    weft_writer_u8(writer, FORMAT);
    weft_writer_u8(writer, (uint8_t)weft_recall_depth(recall));
    weft_writer_u64(writer, mark->version);
    weft_writer_bytes(writer, mark->digest, sizeof mark->digest);
    weft_writer_u64(writer, recall->count);
    for (size_t i = 0; i < recall->room; i++) {
        if (recall->slots[i] != NULL) {
            weft_writer_u64(writer, recall->slots[i]->bucket);
            weft_writer_u64(writer, count_known(recall, &recall->slots[i]->present));
            write_list(recall, &recall->slots[i]->present, writer);
        }
    }
    if (!weft_writer_failed(writer)) {
        weft_writer_u64(writer, XXH3_64bits(writer->data + start, writer->size - start));
    }
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}

static weft_status fail_bytes(const weft_recall *recall) {
    return weft_fail(recall->context, WEFT_MALFORMED, "this is no list of recent changes");
}

static weft_status read_list(weft_recall *recall, weft_reader *reader, uint64_t count,
                             weft_recall_list *list) {
    list->items = weft_allocate_array(recall->context, (size_t)count, sizeof *list->items);
    if (list->items == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (; list->count < count; list->count++) {
        uint64_t position = weft_reader_u32(reader);
        unsigned last = weft_reader_u8(reader);
        unsigned age = last >> 1;
        if (age < 1 || age > recall->known ||
            (list->count > 0 && position <= list->items[list->count - 1] >> 32)) {
            return fail_bytes(recall);
        }
        list->items[list->count] = position << 32 | (recall->steps + 1 - age) << 1 | (last & 1);
    }
    return WEFT_OK;
}

static weft_status read_bucket(weft_recall *recall, weft_reader *reader) {
    uint64_t bucket = weft_reader_u64(reader);
    uint64_t count = weft_reader_u64(reader);
    weft_recall_bucket *slot;
    if (weft_reader_failed(reader) || count > weft_reader_left(reader) / ITEM) {
        return fail_bytes(recall);
    }
    weft_status status = weft_recall_slot(recall, bucket, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    return slot->present.items == NULL ? read_list(recall, reader, count, &slot->present)
                                       : fail_bytes(recall);
}

weft_status weft_recall_read(weft_recall *recall, const uint8_t *data, size_t size,
                             weft_recall_mark *mark) {
    if (size < CHECKSUM) {
        return fail_bytes(recall);
    }
    weft_reader reader = weft_reader_over(data, size - CHECKSUM);
    weft_reader last = weft_reader_over(data + size - CHECKSUM, CHECKSUM);
    const uint8_t *begin = weft_reader_bytes(&reader, sizeof magic);
    unsigned format = weft_reader_u8(&reader);
    unsigned known = weft_reader_u8(&reader);
    mark->version = weft_reader_u64(&reader);
    const uint8_t *digest = weft_reader_bytes(&reader, sizeof mark->digest);
    uint64_t buckets = weft_reader_u64(&reader);
    if (weft_reader_failed(&reader) || memcmp(begin, magic, sizeof magic) != 0 || format != FORMAT ||
        known > WEFT_RECALL_STEPS || buckets > weft_reader_left(&reader) / BUCKET ||
        XXH3_64bits(data, size - CHECKSUM) != weft_reader_u64(&last)) {
        return fail_bytes(recall);
    }
    memcpy(mark->digest, digest, sizeof mark->digest);
    recall->known = known;
    recall->steps = WEFT_RECALL_STEPS;
    weft_status status = WEFT_OK;
    for (uint64_t i = 0; i < buckets && status == WEFT_OK; i++) {
        status = read_bucket(recall, &reader);
    }
    return status == WEFT_OK && weft_reader_left(&reader) > 0 ? fail_bytes(recall) : status;
}

/* ---- files ---- */

weft_status weft_recall_path(weft_context *context, const char *path, char **path_out) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    size_t name = length;
    while (name > 0 && path[name - 1] != '/') {
        name--;
    }
    char *result = weft_allocate(context, length + 16);
    if (result == NULL) {
        return WEFT_NO_MEMORY;
    }
    sprintf(result, "%.*s.%.*s.weft-recall", (int)name, path, (int)(length - name), path + name);
    *path_out = result;
    return WEFT_OK;
}

static bool write_file(const char *path, const weft_writer *bytes) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    size_t done = 0;
    while (file >= 0 && done < bytes->size) {
        ssize_t written = write(file, bytes->data + done, bytes->size - done);
        if (written <= 0) {
            break;
        }
        done += (size_t)written;
    }
    return file >= 0 && close(file) == 0 && done == bytes->size;
}

void weft_recall_save(const weft_recall *recall, weft_context *context, const char *path,
                      const weft_recall_mark *mark) {
    weft_writer bytes;
    weft_writer_open(&bytes, context);
    char *beside = weft_allocate(context, strlen(path) + 8);
    bool kept = recall != NULL && weft_recall_depth(recall) > 0 && beside != NULL &&
                weft_recall_write(recall, mark, &bytes) == WEFT_OK;
    if (kept) {
        sprintf(beside, "%s-new", path);
        kept = write_file(beside, &bytes) && rename(beside, path) == 0;
        if (!kept) {
            unlink(beside);
        }
    }
    if (!kept) {
        unlink(path);
    }
    weft_release(context, beside);
    weft_writer_close(&bytes);
}

/* NULL: there is none. */
static uint8_t *read_file(weft_context *context, const char *path, size_t *size_out) {
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t *data = NULL;
    if (file >= 0 && fstat(file, &info) == 0 && info.st_size > 0 && info.st_size <= FILE_MAX) {
        data = weft_allocate(context, (size_t)info.st_size);
    }
    size_t done = 0;
    while (data != NULL && done < (size_t)info.st_size) {
        ssize_t some = read(file, data + done, (size_t)info.st_size - done);
        if (some <= 0) {
            weft_release(context, data);
            data = NULL;
            break;
        }
        done += (size_t)some;
    }
    if (file >= 0) {
        close(file);
    }
    *size_out = done;
    return data;
}

weft_status weft_recall_load(weft_context *context, const char *path, const uint8_t digest[16],
                             weft_recall **recall_out, uint64_t *version_out) {
    size_t size;
    weft_recall_mark mark;
    weft_recall *recall = NULL;
    uint8_t *data = read_file(context, path, &size);
    weft_status status = data != NULL ? weft_recall_create(context, &recall) : WEFT_OK;
    if (recall != NULL) {
        status = weft_recall_read(recall, data, size, &mark);
        if (status != WEFT_OK || memcmp(mark.digest, digest, sizeof mark.digest) != 0) {
            weft_recall_destroy(recall);
            recall = NULL;
        }
    }
    weft_release(context, data);
    if (status == WEFT_MALFORMED) {
        weft_context_clear(context);
        status = WEFT_OK;
    }
    if (status == WEFT_OK) {
        *recall_out = recall;
        *version_out = recall != NULL ? mark.version : 0;
    }
    return status;
}
