/* SPDX-License-Identifier: Apache-2.0
 *
 * payload.h: the changes of one tensor, as other formats code them: read against the base and proven, and
 * written.
 */
#ifndef WEFT_FOREIGN_PAYLOAD_H
#define WEFT_FOREIGN_PAYLOAD_H

#include "archive.h"
#include "checksum.h"
#include "step.h"

typedef enum weft_foreign_coding {
    WEFT_CODED_XOR,       /* one zstd frame of new xor old */
    WEFT_CODED_OVERWRITE, /* one zstd frame of u32 count, u32 byte positions, new bytes */
    WEFT_CODED_UNITS,     /* positions and new values */
    WEFT_CODED_VALUES,    /* the whole tensor */
    WEFT_CODED_OWN,       /* by a function of the format */
} weft_foreign_coding;

typedef struct weft_foreign_part weft_foreign_part;

/* Fills the list of a part, ascending and within the tensor; `tensor` is that of the base. */
typedef weft_status weft_foreign_decode(const weft_foreign_part *part, const weft_tensor *tensor,
                                        weft_base_reader *base, weft_foreign_step *step,
                                        weft_change_list *list);

struct weft_foreign_part {
    const char *name; /* within an archive of the plan */
    size_t tensor;    /* in the base's view */
    weft_foreign_coding coding;
    const uint8_t *data;
    size_t size;
    const char *expected; /* the checksum of the tensor's new bytes; NULL: there is none */
    const char *dtype;    /* as safetensors spells it, if the format says so; else NULL */
    const json_t *shape;  /* the same */
    /* Of positions and values: */
    weft_dtype positions; /* of `data` */
    bool gaps;            /* each is how many units lie between it and the one before */
    const uint8_t *values;
    size_t value_bytes;
    weft_foreign_decode *decode; /* of a format's own coding: */
    unsigned variant;
    uint64_t count; /* that it promises */
};

/* What a version consists of. */
typedef struct weft_foreign_plan {
    weft_context *context;
    weft_archive *archives;
    size_t archive_count;
    size_t archive_capacity;
    uint64_t most; /* bytes that files may take in memory, compressed and not, */
    uint64_t held; /* and do */
    weft_foreign_part *parts;
    size_t part_count;
    size_t part_capacity;
    weft_foreign_checksum checksum;
    weft_spelling spelling;
    bool complete;  /* the delta must have every tensor of the base */
    bool pieces;    /* a tensor may come in several parts, none of which changes what another does */
    void **buffers; /* what parts point to, besides archives */
    size_t buffer_count;
    json_t *json;            /* what texts of the parts are in, besides archives; or NULL */
    weft_foreign_step *step; /* what is read, and its labels */
} weft_foreign_plan;

void weft_foreign_plan_close(weft_foreign_plan *plan);
/* Opens a safetensors file that stays open as long as the plan. */
weft_status weft_foreign_plan_archive(weft_foreign_plan *plan, const char *path,
                                      weft_archive **archive_out);
/* Reads a file to memory, which is the caller's to release. */
weft_status weft_foreign_plan_file(weft_foreign_plan *plan, const char *path, uint8_t **memory_out,
                                   size_t *size_out);
/* The same of a frame of zstd. */
weft_status weft_foreign_plan_inflate(weft_foreign_plan *plan, const char *where, const uint8_t *data,
                                      size_t size, uint8_t **memory_out, size_t *size_out);
/* Keeps memory that parts point to; takes it, also on failure. */
weft_status weft_foreign_plan_keep(weft_foreign_plan *plan, void *memory);
weft_status weft_foreign_plan_part(weft_foreign_plan *plan, const weft_foreign_part *part);
/* Reads all parts against the base into the plan's step. Each tensor comes once: a difference that is put
 * on twice is gone. */
weft_status weft_foreign_plan_decode(weft_foreign_plan *plan, const weft_view *base);

/* A tensor's changes as a payload. */
typedef struct weft_packed {
    uint8_t *data;
    size_t size;
    char checksum[WEFT_CHECKSUM_TEXT];
    bool changed;
} weft_packed;

typedef struct weft_pack_options {
    weft_foreign_encoding encoding;
    weft_foreign_checksum checksum;
    weft_spelling spelling;
    int level;
    bool complete; /* what does not change has a payload too */
} weft_pack_options;

/* Packs the changes of each tensor of the list. What comes back is as many, to be given back with
 * weft_packed_close. */
weft_status weft_pack_changes(weft_context *context, const weft_view *base,
                              const weft_tensor_changes *changes, size_t count,
                              const weft_pack_options *options, weft_packed **packed_out);
void weft_packed_close(weft_context *context, weft_packed *packed, size_t count);

#endif
