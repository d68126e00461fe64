/* SPDX-License-Identifier: Apache-2.0
 *
 * journal.c: writing and replaying the journal of an in-place apply.
 */
#include "journal.h"

#include "../../tensor/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char magic[8] = {'W', 'E', 'F', 'T', 'J', 'R', 'N', '2'};

enum { RECORD_END = 0, RECORD_SPARSE = 1, RECORD_RANGE = 2 };

/* ---- writing ---- */

static weft_status put(weft_journal *journal, const void *data, size_t size) {
    XXH3_64bits_update(journal->hash, data, size);
    if (size > 0 && fwrite(data, 1, size, journal->file) != size) {
        return weft_fail_errno(journal->context, errno,
                               "writing the journal %s failed; the checkpoint is unchanged",
                               journal->temporary);
    }
    return WEFT_OK;
}

static weft_status put_record(weft_journal *journal, uint8_t kind, uint64_t tensor, uint8_t width,
                              uint64_t count) {
    uint8_t record[18];
    record[0] = kind;
    memcpy(record + 1, &tensor, 8);
    record[9] = width;
    memcpy(record + 10, &count, 8);
    return put(journal, record, sizeof record);
}

weft_status weft_journal_open(weft_journal *journal, weft_context *context, const char *path,
                              const weft_table *table, bool durable) {
    *journal = (weft_journal){.context = context, .table = table, .durable = durable};
    journal->path = weft_copy_text(context, path, strlen(path));
    journal->temporary = weft_allocate(context, strlen(path) + 8);
    if (journal->path == NULL || journal->temporary == NULL) {
        return WEFT_NO_MEMORY;
    }
    stpcpy(stpcpy(journal->temporary, path), "-new");
    journal->hash = XXH3_createState();
    if (journal->hash == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory");
    }
    XXH3_64bits_reset(journal->hash);
    int descriptor = open(journal->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0) {
        return weft_fail_errno(context, errno, "creating the journal %s failed", journal->temporary);
    }
    journal->file = fdopen(descriptor, "wb");
    if (journal->file == NULL) {
        close(descriptor);
        unlink(journal->temporary);
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory");
    }
    weft_status status = put(journal, magic, sizeof magic);
    uint8_t flag = durable;
    return status == WEFT_OK ? put(journal, &flag, 1) : status;
}

static uint64_t table_index(const weft_journal *journal, const weft_tensor *live) {
    return (uint64_t)weft_table_find(journal->table, live->name);
}

static weft_status put_units(weft_journal *journal, const weft_segment *segment, const uint32_t *positions,
                             size_t count) {
    uint64_t units[512];
    weft_status status = WEFT_OK;
    for (size_t done = 0; done < count && status == WEFT_OK;) {
        size_t some = count - done < 512 ? count - done : 512;
        for (size_t i = 0; i < some; i++) {
            units[i] = weft_segment_live(segment, positions[done + i] - segment->linear);
        }
        status = put(journal, units, some * sizeof *units);
        done += some;
    }
    return status;
}

static weft_status put_sparse(weft_journal *journal, const weft_staged *staged) {
    const weft_changes *changes = &staged->changes;
    size_t first = 0;
    for (size_t i = 0; i < staged->window.segments.count; i++) {
        const weft_segment *segment = &staged->window.segments.items[i];
        size_t end = first;
        while (end < changes->count && changes->positions[end] < segment->linear + segment->units) {
            end++;
        }
        if (end == first) {
            continue;
        }
        size_t count = end - first;
        weft_status status = put_record(journal, RECORD_SPARSE, table_index(journal, segment->live),
                                        (uint8_t)changes->width, count);
        if (status == WEFT_OK) {
            status = put_units(journal, segment, changes->positions + first, count);
        }
        if (status == WEFT_OK) {
            const uint8_t *olds = changes->olds;
            status = put(journal, olds + first * changes->width, count * changes->width);
        }
        if (status == WEFT_OK) {
            const uint8_t *news = changes->news;
            status = put(journal, news + first * changes->width, count * changes->width);
        }
        if (status != WEFT_OK) {
            return status;
        }
        first = end;
    }
    return WEFT_OK;
}

/* `units` units of live memory that follow each other, from `first` units into the segment on. */
static weft_status put_range(weft_journal *journal, const weft_staged *staged, const weft_segment *segment,
                             uint64_t first, uint64_t units) {
    weft_status status = put_record(journal, RECORD_RANGE, table_index(journal, segment->live),
                                    (uint8_t)staged->width, units);
    uint64_t live = weft_segment_live(segment, first);
    if (status == WEFT_OK) {
        status = put(journal, &live, sizeof live);
    }
    size_t start = (size_t)(segment->linear + first) * staged->width;
    size_t bytes = (size_t)units * staged->width;
    if (status == WEFT_OK) {
        status = put(journal, staged->dense_olds + start, bytes);
    }
    return status == WEFT_OK ? put(journal, staged->dense_news + start, bytes) : status;
}

static weft_status put_dense(weft_journal *journal, const weft_staged *staged) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < staged->window.segments.count && status == WEFT_OK; i++) {
        const weft_segment *segment = &staged->window.segments.items[i];
        for (uint64_t done = 0; done < segment->units && status == WEFT_OK;) {
            uint64_t some =
                segment->live_gap != 0 ? weft_segment_left(segment, done) : segment->units - done;
            status = put_range(journal, staged, segment, done, some);
            done += some;
        }
    }
    return status;
}

weft_status weft_journal_append(weft_journal *journal, const weft_apply *apply) {
    size_t count;
    const weft_staged *staged = weft_apply_staged(apply, &count);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        if (staged[i].used) {
            status = staged[i].dense_news == NULL ? put_sparse(journal, &staged[i])
                                                  : put_dense(journal, &staged[i]);
        }
    }
    return status;
}

weft_status weft_journal_directory(weft_context *context, const char *path, int *descriptor_out) {
    char *directory = weft_path_parent(context, path);
    if (directory == NULL) {
        return WEFT_NO_MEMORY;
    }
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    weft_status status = WEFT_OK;
    if (descriptor < 0) {
        status = weft_fail_errno(context, errno, "opening the directory %s failed", directory);
    } else {
        *descriptor_out = descriptor;
    }
    weft_release(context, directory);
    return status;
}

/* Gives the whole journal its name, for good if `directory` is its directory's descriptor and not -1. */
static weft_status give_name(weft_journal *journal, int directory) {
    bool failed = fflush(journal->file) != 0;
    failed = failed || (journal->durable && fsync(fileno(journal->file)) != 0);
    if (failed || rename(journal->temporary, journal->path) != 0) {
        return weft_fail_errno(journal->context, errno,
                               "writing the journal %s failed; the checkpoint is unchanged", journal->path);
    }
    weft_release(journal->context, journal->temporary);
    journal->temporary = NULL;
    if (directory >= 0 && fsync(directory) != 0) {
        return weft_fail_errno(journal->context, errno, "syncing the directory of %s failed",
                               journal->path);
    }
    return WEFT_OK;
}

weft_status weft_journal_publish(weft_journal *journal) {
    uint8_t end = RECORD_END;
    weft_status status = put(journal, &end, 1);
    uint64_t hash = XXH3_64bits_digest(journal->hash);
    if (status == WEFT_OK) {
        status = put(journal, &hash, sizeof hash);
    }
    if (status != WEFT_OK) {
        return status;
    }
    int directory = -1;
    if (journal->durable) {
        status = weft_journal_directory(journal->context, journal->path, &directory);
    }
    if (status == WEFT_OK) {
        status = give_name(journal, directory);
    }
    if (directory >= 0) {
        close(directory);
    }
    return status;
}

void weft_journal_close(weft_journal *journal) {
    if (journal->file != NULL) {
        fclose(journal->file);
        if (journal->temporary != NULL) {
            unlink(journal->temporary);
        }
    }
    XXH3_freeState(journal->hash);
    weft_release(journal->context, journal->path);
    weft_release(journal->context, journal->temporary);
    *journal = (weft_journal){.context = journal->context};
}

/* ---- replaying ---- */

static weft_status broken(weft_context *context, const char *path) {
    return weft_fail(context, WEFT_MALFORMED,
                     "the journal %s is damaged, and the checkpoint beside it may be "
                     "between two states; restore the checkpoint, then remove the journal",
                     path);
}

static weft_status foreign(weft_context *context, const char *path) {
    return weft_fail(
        context, WEFT_BASE_MISMATCH,
        "the journal %s was written for other weights than those beside it, which were replaced "
        "or changed since; nothing was written; if they are what you want, remove the journal",
        path);
}

/* What one pass over the records does, and what it found. */
typedef struct replay_pass {
    bool write;   /* else only look */
    bool foreign; /* some byte is neither the old nor the new one */
} replay_pass;

/* True if `count` units of `width` bytes starting at `first` lie in the tensor. */
static bool range_fits(const weft_tensor *tensor, uint64_t first, uint64_t count) {
    uint64_t units = weft_tensor_units(tensor);
    return first <= units && count <= units - first;
}

/* A kill may fall between two bytes of a unit that is not aligned, hence byte by byte. */
static void replay_place(replay_pass *pass, uint8_t *place, const uint8_t *olds, const uint8_t *news,
                         size_t bytes) {
    if (pass->write) {
        memcpy(place, news, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++) {
        pass->foreign = pass->foreign || (place[i] != olds[i] && place[i] != news[i]);
    }
}

static bool replay_sparse(replay_pass *pass, weft_reader *reader, const weft_tensor *tensor, unsigned width,
                          uint64_t count) {
    if (count > weft_reader_left(reader) / (8 + 2 * width)) {
        return false;
    }
    const uint8_t *units = weft_reader_bytes(reader, (size_t)count * 8);
    const uint8_t *olds = weft_reader_bytes(reader, (size_t)count * width);
    const uint8_t *news = weft_reader_bytes(reader, (size_t)count * width);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t unit;
        memcpy(&unit, units + 8 * i, 8);
        if (!range_fits(tensor, unit, 1)) {
            return false;
        }
        replay_place(pass, (uint8_t *)tensor->data + unit * width, olds + i * width, news + i * width,
                     width);
    }
    return true;
}

static bool replay_range(replay_pass *pass, weft_reader *reader, const weft_tensor *tensor, unsigned width,
                         uint64_t count) {
    uint64_t first = weft_reader_u64(reader);
    if (weft_reader_failed(reader) || count > weft_reader_left(reader) / (2 * width) ||
        !range_fits(tensor, first, count)) {
        return false;
    }
    const uint8_t *olds = weft_reader_bytes(reader, (size_t)count * width);
    const uint8_t *news = weft_reader_bytes(reader, (size_t)count * width);
    if (count > 0) {
        replay_place(pass, (uint8_t *)tensor->data + first * width, olds, news, (size_t)count * width);
    }
    return true;
}

static bool replay_records(replay_pass *pass, weft_reader reader, const weft_table *table) {
    for (;;) {
        uint8_t kind = weft_reader_u8(&reader);
        if (weft_reader_failed(&reader) || kind > RECORD_RANGE) {
            return false;
        }
        if (kind == RECORD_END) {
            return weft_reader_left(&reader) == 0;
        }
        uint64_t index = weft_reader_u64(&reader);
        unsigned width = weft_reader_u8(&reader);
        uint64_t count = weft_reader_u64(&reader);
        if (weft_reader_failed(&reader) || index >= weft_table_count(table) ||
            width != weft_dtype_width(weft_table_at(table, (size_t)index)->dtype)) {
            return false;
        }
        const weft_tensor *tensor = weft_table_at(table, (size_t)index);
        bool good = kind == RECORD_SPARSE ? replay_sparse(pass, &reader, tensor, width, count)
                                          : replay_range(pass, &reader, tensor, width, count);
        if (!good) {
            return false;
        }
    }
}

static weft_status replay_bytes(weft_context *context, const char *path, const uint8_t *data, size_t size,
                                const weft_table *table, bool *durable_out) {
    if (size < sizeof magic + 2 + 8 || memcmp(data, magic, sizeof magic) != 0) {
        return broken(context, path);
    }
    weft_reader last = weft_reader_over(data + size - 8, 8);
    if (XXH3_64bits(data, size - 8) != weft_reader_u64(&last)) {
        return broken(context, path);
    }
    weft_reader reader = weft_reader_over(data + sizeof magic, size - sizeof magic - 8);
    *durable_out = weft_reader_u8(&reader) != 0;
    /* the first pass proves that the second can do no harm; records that do not fit are those of a journal
     * for another checkpoint, since its checksum is right */
    replay_pass look = {.write = false};
    if (!replay_records(&look, reader, table) || look.foreign) {
        return foreign(context, path);
    }
    replay_pass write = {.write = true};
    return replay_records(&write, reader, table) ? WEFT_OK : broken(context, path);
}

weft_status weft_journal_replay(weft_context *context, const char *path, const weft_table *table,
                                bool *durable_out) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (descriptor < 0 || fstat(descriptor, &info) != 0) {
        int error = errno;
        if (descriptor >= 0) {
            close(descriptor);
        }
        return weft_fail_errno(context, error, "opening the journal %s failed", path);
    }
    size_t size = (size_t)info.st_size;
    if (size == 0) {
        close(descriptor);
        return broken(context, path);
    }
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (data == MAP_FAILED) {
        return weft_fail_errno(context, errno, "mapping the journal %s failed", path);
    }
    weft_status status = replay_bytes(context, path, data, size, table, durable_out);
    munmap(data, size);
    return status;
}
