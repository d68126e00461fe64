/* SPDX-License-Identifier: Apache-2.0
 *
 * group_step.c: the step file of a group.
 *
 * The leader decodes a patch once, into its mirror, and hears of every bucket on the way. `small` buckets,
 * which would cost each member a look at all of its weights, are written down again in the `fast` coding
 * from the changes that were just decoded; others are passed on as they came. They come in any order, and
 * so they lie in the file.
 */
#include "group_step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 32 };

static void format_name(uint64_t file, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "step-%llu", (unsigned long long)file);
}

/* ---- the leader ---- */

/* Numbers go on after those that were used: a member may still look for one. */
static void remove_old_files(weft_step_writer *writer) {
    int copy = openat(writer->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy >= 0 ? fdopendir(copy) : NULL;
    if (listing == NULL) {
        if (copy >= 0) {
            close(copy);
        }
        return;
    }
    for (const struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        unsigned long long file;
        if (sscanf(entry->d_name, "step-%llu", &file) == 1) {
            writer->file = file > writer->file ? file : writer->file;
            unlinkat(writer->directory, entry->d_name, 0);
        }
    }
    closedir(listing);
}

void weft_step_writer_open(weft_step_writer *writer, weft_context *context, const char *path,
                           int directory) {
    *writer =
        (weft_step_writer){.context = context, .path = path, .directory = directory, .descriptor = -1};
    pthread_mutex_init(&writer->lock, NULL);
    remove_old_files(writer);
}

static void drop_file(weft_step_writer *writer) {
    weft_stream_close(&writer->stream);
    if (writer->descriptor >= 0) {
        char name[NAME_BYTES];
        format_name(writer->file, name);
        unlinkat(writer->directory, name, 0);
        close(writer->descriptor);
        writer->descriptor = -1;
    }
}

void weft_step_writer_close(weft_step_writer *writer) {
    if (writer->context != NULL) {
        drop_file(writer);
        pthread_mutex_destroy(&writer->lock);
    }
}

/* The stream tells only that its sink has failed. */
static weft_status explain_failure(const weft_step_writer *writer, weft_status status) {
    return writer->error == 0
               ? status
               : weft_fail_errno(writer->context, writer->error,
                                 "%s/step-%llu: cannot write; free some space, or choose another place for "
                                 "the group",
                                 writer->path, (unsigned long long)writer->file);
}

static weft_status write_bytes(void *opaque, const void *data, size_t size) {
    weft_step_writer *writer = opaque;
    const uint8_t *bytes = data;
    while (size > 0) {
        ssize_t count = write(writer->descriptor, bytes, size);
        if (count < 0 && errno != EINTR) {
            writer->error = errno;
            return explain_failure(writer, WEFT_IO_FAILED);
        }
        bytes += count > 0 ? count : 0;
        size -= count > 0 ? (size_t)count : 0;
    }
    return WEFT_OK;
}

static weft_status relay_frame(void *opaque, const weft_frame *frame, const weft_changes *changes) {
    weft_step_writer *writer = opaque;
    weft_writer relayed;
    weft_writer_open(&relayed, writer->context);
    weft_status status =
        weft_frame_relay(writer->context, frame, &writer->patch->header.roster, changes, &relayed);
    if (status == WEFT_OK) {
        pthread_mutex_lock(&writer->lock);
        status = explain_failure(
            writer, weft_stream_frame(&writer->stream, &frame->bucket, &relayed, frame->changed));
        pthread_mutex_unlock(&writer->lock);
    }
    weft_writer_close(&relayed);
    return status;
}

weft_status weft_step_writer_begin(weft_step_writer *writer, weft_patch *patch, const char *const *labels) {
    char name[NAME_BYTES];
    drop_file(writer);
    format_name(++writer->file, name);
    writer->error = 0;
    writer->descriptor =
        openat(writer->directory, name, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (writer->descriptor < 0) {
        return weft_fail_errno(writer->context, errno, "%s/%s: cannot make the step file", writer->path,
                               name);
    }
    const weft_header *header = &patch->header;
    writer->sink = (weft_sink){write_bytes, writer};
    writer->patch = patch;
    weft_status status =
        weft_stream_open(&writer->stream, writer->context, &writer->sink, 0, WEFT_PROFILE_FAST, 0,
                         &header->roster, header->same_files, weft_patch_container(patch), labels);
    if (status == WEFT_OK) {
        patch->listener = (weft_patch_listener){relay_frame, writer};
    }
    return explain_failure(writer, status);
}

weft_status weft_step_writer_end(weft_step_writer *writer) {
    const weft_footer *footer = &writer->patch->footer;
    weft_diff_stats stats = {.size = sizeof stats, .base = footer->base, .result = footer->result};
    weft_status status = weft_stream_finish(&writer->stream, &stats);
    weft_stream_close(&writer->stream);
    return explain_failure(writer, status);
}

/* ---- a member ---- */

static weft_status map_file(weft_step_reader *reader, int descriptor) {
    struct stat info;
    if (fstat(descriptor, &info) != 0 || info.st_size <= 0) {
        return weft_fail(reader->context, WEFT_TRUNCATED, "the group's step file is empty");
    }
    reader->size = (size_t)info.st_size;
    void *memory = mmap(NULL, reader->size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) {
        return weft_fail_errno(reader->context, errno, "cannot map the group's step file");
    }
    reader->memory = memory;
    return WEFT_OK;
}

weft_status weft_step_reader_open(weft_step_reader *reader, weft_context *context, int directory,
                                  uint64_t file) {
    char name[NAME_BYTES];
    *reader = (weft_step_reader){.context = context};
    format_name(file, name);
    int descriptor = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) {
        int error = errno;
        return error == ENOENT ? weft_fail(context, WEFT_NOT_FOUND, "the group's step file is gone")
                               : weft_fail_errno(context, error, "cannot open the group's step file");
    }
    weft_status status = map_file(reader, descriptor);
    close(descriptor);
    if (status == WEFT_OK) {
        const weft_source source = {.memory = reader->memory, .size = reader->size};
        status = weft_patch_open(context, &source, &reader->patch);
    }
    if (status != WEFT_OK) {
        weft_step_reader_close(reader);
    }
    return status;
}

void weft_step_reader_close(weft_step_reader *reader) {
    weft_patch_close(reader->patch);
    if (reader->memory != NULL) {
        munmap(reader->memory, reader->size);
    }
    *reader = (weft_step_reader){0};
}
