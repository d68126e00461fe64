/* SPDX-License-Identifier: Apache-2.0
 *
 * group_step.h: a prepared version in the form that every member of a group can use: a patch whose buckets
 * decode without the base, in a file that they map.
 */
#ifndef WEFT_SYNC_GROUP_GROUP_STEP_H
#define WEFT_SYNC_GROUP_GROUP_STEP_H

#include "../../patch/format/stream.h"
#include "../follow/subscriber.h"

#include <pthread.h>

/* The leader's side. */
typedef struct weft_step_writer {
    weft_context *context;
    const char *path; /* of the directory, for messages; the group's */
    int directory;
    uint64_t file; /* number of the newest file */
    int descriptor;
    int error; /* of a write, else 0 */
    pthread_mutex_t lock;
    weft_sink sink;
    weft_patch_stream stream;
    const weft_patch *patch;
} weft_step_writer;

/* Files of steps that a leader before has left in the directory are removed. */
void weft_step_writer_open(weft_step_writer *writer, weft_context *context, const char *path,
                           int directory);
/* Removes the file. */
void weft_step_writer_close(weft_step_writer *writer);
/* Begins a new file with what will be decoded of the patch, which stays open until the end. */
weft_status weft_step_writer_begin(weft_step_writer *writer, weft_patch *patch, const char *const *labels);
/* All of the patch was decoded: the file is whole. */
weft_status weft_step_writer_end(weft_step_writer *writer);

/* A member's side. */
typedef struct weft_step_reader {
    weft_context *context;
    void *memory;
    size_t size;
    weft_patch *patch;
} weft_step_reader;

/* WEFT_NOT_FOUND: the file is gone, and the step is over. */
weft_status weft_step_reader_open(weft_step_reader *reader, weft_context *context, int directory,
                                  uint64_t file);
void weft_step_reader_close(weft_step_reader *reader);

#endif
