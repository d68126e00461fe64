/* SPDX-License-Identifier: Apache-2.0
 *
 * format.h: the parts of a patch file around the buckets. doc/FORMAT.md specifies every byte.
 *
 *   preamble  magic, version, lengths of the header
 *   header    profile, roster, files of the result, labels; zstd where that helps
 *   buckets   frames, one after the other
 *   index     length, checksum and spans of every frame
 *   footer    fixed size: where the index is, the digests of base and result, totals
 *
 * The digests stand in the footer because they are known last: a diff reads both states once, writes as
 * it goes, and can make the inverse at the same time, whose base is this patch's result.
 */
#ifndef WEFT_PATCH_FORMAT_FORMAT_H
#define WEFT_PATCH_FORMAT_FORMAT_H

#include "../bucket/plan.h"

enum {
    WEFT_FORMAT_OLDEST = 1, /* that is read; WEFT_FORMAT_NEWEST is the other end */
    WEFT_PREAMBLE_BYTES = 20,
    WEFT_FOOTER_BYTES = 92,
    WEFT_CHECKSUM_BYTES = 8,
};

/* What a header says. */
typedef struct weft_header {
    weft_context *context;
    unsigned version; /* of the format */
    weft_profile profile;
    unsigned depth; /* of `smallest`: how many versions before this one it looks back at */
    weft_roster roster;
    bool same_files;          /* the result's files are the base's */
    weft_container container; /* otherwise, if file_count > 0; owned */
    const char **labels;      /* key, value, …; owned */
    size_t label_count;       /* strings: twice the pairs */
} weft_header;

void weft_header_open(weft_header *header, weft_context *context);
void weft_header_close(weft_header *header);
/* Labels (key, value, …, NULL; or NULL) as they may be written: UTF-8, in pairs, at most so many of them.
 */
weft_status weft_labels_check(weft_context *context, const char *const *labels, size_t most);
/* Appends preamble, header and checksum. `format` 0 is the newest; `container` may be NULL; `depth` counts
 * with `smallest`. */
weft_status weft_header_write(weft_context *context, unsigned format, weft_profile profile, unsigned depth,
                              const weft_roster *roster, bool same_files, const weft_container *container,
                              const char *const *labels, weft_writer *writer);
/* The size of preamble, header and checksum, from a preamble of WEFT_PREAMBLE_BYTES. */
weft_status weft_header_measure(weft_context *context, const uint8_t *preamble, uint64_t *size_out);
weft_status weft_header_read(weft_header *header, const uint8_t *data, size_t size);

typedef struct weft_frame_index_entry {
    uint64_t offset;
    uint64_t length;
    uint64_t checksum;
    weft_bucket bucket; /* owned */
} weft_frame_index_entry;

typedef struct weft_frame_index {
    weft_context *context;
    weft_frame_index_entry *entries;
    size_t count;
} weft_frame_index;

typedef struct weft_footer {
    uint64_t index_offset;
    uint64_t index_bytes;
    weft_digest base;
    weft_digest result;
    uint64_t changed;
    uint64_t total;
    uint64_t dense_bytes;
} weft_footer;

void weft_frame_index_open(weft_frame_index *index, weft_context *context);
void weft_frame_index_close(weft_frame_index *index);
/* Refuses buckets of which two cover the same weight, or that leave out a part of a new tensor. */
weft_status weft_frame_index_check(const weft_frame_index *index, const weft_roster *roster);
/* One record of the index; `count` of them follow a varint that counts them. */
void weft_frame_index_write_entry(const weft_bucket *bucket, const weft_roster *roster, uint64_t length,
                                  uint64_t checksum, weft_writer *writer);
/* Appends the footer to a writer that holds exactly the index. */
void weft_footer_write(const weft_footer *footer, weft_writer *writer);
/* Reads the last WEFT_FOOTER_BYTES of a file of `file_size` bytes whose header takes `header_size`. Its
 * checksum covers the index too and is checked by weft_frame_index_read. */
weft_status weft_footer_read(weft_context *context, const uint8_t *data, uint64_t header_size,
                             uint64_t file_size, weft_footer *footer);
/* `data` is the index and the footer. Frames must lie end to end from the header to the index, and no
 * two may cover the same weight. */
weft_status weft_frame_index_read(weft_frame_index *index, const weft_roster *roster,
                                  const weft_footer *footer, uint64_t header_size, const uint8_t *data,
                                  size_t size);

#endif
