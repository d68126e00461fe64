/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.h: what a model is. Named tensors over safetensors files, sharded checkpoints or live memory;
 * the digest that identifies a state; layouts that say how a worker holds the checkpoint's tensors.
 */
#ifndef WEFT_TENSOR_H
#define WEFT_TENSOR_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every dtype of safetensors. The numbers are part of the patch format and never change. */
typedef enum weft_dtype {
    WEFT_DTYPE_BOOL = 1,
    WEFT_DTYPE_U8 = 2,
    WEFT_DTYPE_I8 = 3,
    WEFT_DTYPE_F8_E5M2 = 4,
    WEFT_DTYPE_F8_E4M3 = 5,
    WEFT_DTYPE_F8_E8M0 = 6,
    WEFT_DTYPE_F8_E5M2FNUZ = 7,
    WEFT_DTYPE_F8_E4M3FNUZ = 8,
    WEFT_DTYPE_F4 = 9,
    WEFT_DTYPE_F6_E2M3 = 10,
    WEFT_DTYPE_F6_E3M2 = 11,
    WEFT_DTYPE_U16 = 12,
    WEFT_DTYPE_I16 = 13,
    WEFT_DTYPE_F16 = 14,
    WEFT_DTYPE_BF16 = 15,
    WEFT_DTYPE_U32 = 16,
    WEFT_DTYPE_I32 = 17,
    WEFT_DTYPE_F32 = 18,
    WEFT_DTYPE_U64 = 19,
    WEFT_DTYPE_I64 = 20,
    WEFT_DTYPE_F64 = 21,
    WEFT_DTYPE_C64 = 22,
} weft_dtype;

/* The name as safetensors spells it; NULL for a number that is no dtype. */
WEFT_API const char *weft_dtype_name(weft_dtype dtype);
/* False if no dtype has this name. */
WEFT_API bool weft_dtype_parse(const char *name, weft_dtype *dtype_out);
/* Bits of one element of the shape. */
WEFT_API unsigned weft_dtype_bits(weft_dtype dtype);
/* Bytes of the unit in which changes are counted: 1, 2, 4 or 8. Types under a byte count in bytes. */
WEFT_API unsigned weft_dtype_width(weft_dtype dtype);

enum { WEFT_RANK_MAX = 16, WEFT_NAME_MAX = 4096 };

/* How to reach a tensor that is not plain memory, such as one on an accelerator. Offsets and sizes are
 * in bytes of the tensor. Each returns WEFT_OK or a failure, and may be called from several threads. */
typedef struct weft_access {
    /* contiguous bytes */
    weft_status (*read)(void *opaque, uint64_t offset, void *output, size_t size);
    /* `count` words of 16 bytes, the i-th from byte 16 * words[i]; a tensor's last word may be short. If
     * NULL, `read` is used */
    weft_status (*gather)(void *opaque, const uint64_t *words, size_t count, void *output);
    /* `count` units of the dtype's width, the i-th to unit index units[i]. If NULL, the tensor cannot be
     * changed */
    weft_status (*scatter)(void *opaque, const uint64_t *units, size_t count, const void *values);
} weft_access;

typedef struct weft_converter weft_converter;

typedef struct weft_tensor {
    size_t size; /* sizeof(weft_tensor) */
    const char *name;
    weft_dtype dtype;   /* what the model is made of */
    weft_dtype storage; /* what memory holds: the same, or F32 for the masters of a BF16 tensor */
    uint32_t rank;
    uint64_t shape[WEFT_RANK_MAX];
    uint64_t bytes; /* of all elements, in `dtype` */
    void *data;     /* NULL if the tensor is empty or reached through `access` */
    const weft_access *access;
    void *opaque;    /* passed to `access` */
    bool writable;   /* may be changed by a commit */
    int64_t tied_to; /* index of the tensor whose memory this name shares, or -1 */
    /* Of each dimension, in elements of `storage`; NULL: row-major, end to end. For plain memory and dtypes
     * of whole bytes. Elements must not overlap: each stride reaches over all that smaller ones do. */
    const int64_t *strides;
    const weft_converter *converter; /* writes what is really in use; NULL: this tensor is */
} weft_tensor;

/* For an engine that holds a tensor in another form than the checkpoint, such as quantised. The table's
 * tensor is then a private copy in the checkpoint's dtype, in plain memory that lies end to end, which
 * decoding and proofs need; and the converter keeps the engine's form up to date. */
struct weft_converter {
    size_t size; /* sizeof(weft_converter) */
    /* Some units of the tensor, in any order, are `values` now. Called by commits, and by rollbacks with
     * the old values, when the private copy has all of them already, so that a scale can be computed anew
     * from it; from the thread that called weft. A failure is treated like that of a scatter function: the
     * old values are put back, here too. */
    weft_status (*commit)(void *opaque, const weft_tensor *tensor, const uint64_t *units, size_t count,
                          const void *values);
    void *opaque;
};

/* How to reach all tensors of a table that have an `access`, many at a time, as an accelerator wants it:
 * one transfer and one kernel launch for a whole commit. Calls come from the thread that called weft, never
 * two at a time. Between `begin` and `end`, gather and scatter may be put off: arrays stay valid, outputs
 * are filled and values are written when `end` returns. A `begin` that succeeded is followed by one `end`,
 * also after a failure in between, when it does not matter what `end` still does. `read` of a tensor's own
 * access is not called between the two.
 *
 * A commit is one batch, and so is a rollback. A prepare is one batch if the words that it needs fit, with
 * the staged changes, into limits.stage_bytes: 24 bytes for a word, and for a staged change 8 more than in
 * plain memory; what does not fit is gathered in a batch of its own. A failure in a prepare changes
 * nothing. After one in a commit the old values are put back, in another batch; if that fails too, the
 * weights are between two states until weft_apply_rollback succeeds, and the message says so.
 *
 * Bytes that an apply moves for a changed unit of BF16:
 *
 *   fast      prepare gathers the words that change: 16, and 8 for the index; a little less where changes
 *             share words (15.5 and 7.8 at 1%)
 *   small     prepare reads buckets whole whose changes go with the exponent, as in training, through
 *             `read`: 2000 at 0.1%, 200 at 1%; other buckets, and dtypes other than BF16, F16, F32
 *             and FP8, are gathered like `fast`
 *   both      buckets of which most changed are read whole; and so is what a layout has put together in a
 *             way that 16-byte words of the checkpoint are not words of the live tensor
 *   commit    scatters 2, and 8 for the index; a rollback does the same
 *
 * Sums, audits and diffs read whole tensors through `read`, from several threads. */
typedef struct weft_batch_access {
    size_t size; /* sizeof(weft_batch_access) */
    weft_status (*begin)(void *opaque);
    /* as in weft_access; `tensor` is the tensor's `opaque` */
    weft_status (*gather)(void *opaque, void *tensor, const uint64_t *words, size_t count, void *output);
    weft_status (*scatter)(void *opaque, void *tensor, const uint64_t *units, size_t count,
                           const void *values);
    weft_status (*end)(void *opaque);
    void *opaque;
} weft_batch_access;

/* Number of width-sized units. */
WEFT_API uint64_t weft_tensor_units(const weft_tensor *tensor);

typedef struct weft_table weft_table;

WEFT_API WEFT_CHECKED weft_status weft_table_create(weft_context *context, weft_table **table_out);
WEFT_API void weft_table_destroy(weft_table *table);
/* Copies name and description; `bytes` is computed, `storage` 0 means `dtype`, `tied_to` is ignored,
 * strides of a tensor whose elements lie end to end are left out. The memory behind `data` stays the
 * caller's and must outlive the table. */
WEFT_API WEFT_CHECKED weft_status weft_table_add(weft_table *table, const weft_tensor *tensor);
/* A second name for the tensor `target`. It is written and digested once, under the target's name. */
WEFT_API WEFT_CHECKED weft_status weft_table_tie(weft_table *table, const char *name, const char *target);
/* Tensors that have an `access` are gathered and scattered through `batch`, which is copied, by views that
 * are made from now on. Their own gather and scatter are not called and may be NULL; `read` is needed. All
 * four functions must be given. NULL: no longer. */
WEFT_API WEFT_CHECKED weft_status weft_table_set_batch_access(weft_table *table,
                                                              const weft_batch_access *batch);
WEFT_API size_t weft_table_count(const weft_table *table);
WEFT_API const weft_tensor *weft_table_at(const weft_table *table, size_t index);
/* The index of a name, or -1. */
WEFT_API int64_t weft_table_find(const weft_table *table, const char *name);
/* The index of the n-th tensor in canonical order: names ascending as bytes, ties left out. */
WEFT_API size_t weft_table_sorted_count(const weft_table *table);
WEFT_API size_t weft_table_sorted(const weft_table *table, size_t position);
/* Bytes of all tensors, ties counted once. */
WEFT_API uint64_t weft_table_bytes(const weft_table *table);

/* ---- checkpoints on disk ---- */

/* The part of a checkpoint that is not weights: which files there are, and the JSON header of each,
 * byte for byte. A container and the tensors together give back every byte of the files. */
typedef struct weft_container_file {
    const char *name;   /* "" for a checkpoint given as a single file */
    const char *header; /* JSON, not terminated */
    size_t header_bytes;
} weft_container_file;

typedef struct weft_container {
    bool sharded; /* a directory with an index; else one file */
    size_t file_count;
    const weft_container_file *files; /* names ascending as bytes */
    const char *index;                /* model.safetensors.index.json, byte for byte; NULL if not sharded */
    size_t index_bytes;
} weft_container;

typedef struct weft_checkpoint weft_checkpoint;

typedef enum weft_open_mode {
    WEFT_OPEN_READ = 0,
    WEFT_OPEN_WRITE = 1, /* tensors are writable in place, through a shared mapping */
} weft_open_mode;

/* `path` is a safetensors file, or a directory that holds model.safetensors or
 * model.safetensors.index.json. Files are mapped, not read. The tensors come in the order of the data;
 * of a sharded checkpoint, file by file, names ascending. WEFT_BUSY if an in-place apply is under way or
 * was interrupted: see weft_apply_recover. */
WEFT_API WEFT_CHECKED weft_status weft_checkpoint_open(weft_context *context, const char *path,
                                                       weft_open_mode mode,
                                                       weft_checkpoint **checkpoint_out);
WEFT_API void weft_checkpoint_close(weft_checkpoint *checkpoint);
WEFT_API const weft_table *weft_checkpoint_table(const weft_checkpoint *checkpoint);
WEFT_API const weft_container *weft_checkpoint_container(const weft_checkpoint *checkpoint);
/* Pushes in-place changes to the disk (msync and fsync). */
WEFT_API WEFT_CHECKED weft_status weft_checkpoint_flush(weft_checkpoint *checkpoint);
/* The value of a key of `__metadata__` in the first file that has it, or NULL. */
WEFT_API const char *weft_checkpoint_metadata(const weft_checkpoint *checkpoint, const char *key);

/* Creates a checkpoint under temporary names beside `path`, with every byte of headers in place and all
 * of its disk space reserved. Its table is writable; fill it, then finish or abandon it. The container is
 * checked like a file's headers and copied. If `path` is a directory that exists, a single file becomes
 * its model.safetensors. */
WEFT_API WEFT_CHECKED weft_status weft_checkpoint_create(weft_context *context, const char *path,
                                                         const weft_container *container,
                                                         weft_checkpoint **checkpoint_out);
/* Moves the new checkpoint to its path, atomically for a single file or a new directory, and closes it.
 * In a directory that exists, shards are replaced one by one: the old index is removed first and the new
 * one comes last, so a reader of the index never meets a mixture. `durable` syncs files and directory
 * first. On failure the path has nothing that was not there before, and the temporary files are gone. */
WEFT_API WEFT_CHECKED weft_status weft_checkpoint_finish(weft_checkpoint *checkpoint, bool durable);
/* Closing a created checkpoint that was not finished removes its temporary files. */

typedef struct weft_write_options {
    size_t size;                 /* sizeof(weft_write_options) */
    uint64_t shard_bytes;        /* 0: one file; else start a new shard before exceeding this */
    const char *const *metadata; /* key, value, key, value, …, NULL; or NULL for none */
    bool durable;
} weft_write_options;

/* Writes a table as safetensors: one file at `path`, or with `shard_bytes` a Hugging Face directory. */
WEFT_API WEFT_CHECKED weft_status weft_table_write(weft_context *context, const weft_table *table,
                                                   const char *path, const weft_write_options *options);

/* ---- layouts ----
 *
 * A layout says, for each live tensor, which slices of which checkpoint tensors it is made of. */

typedef struct weft_layout weft_layout;

WEFT_API WEFT_CHECKED weft_status weft_layout_create(weft_context *context, weft_layout **layout_out);
WEFT_API void weft_layout_destroy(weft_layout *layout);

/* A part of a checkpoint tensor: all of it, or `length` indices from `start` along dimension `dim`. */
typedef struct weft_slice {
    const char *tensor;
    int32_t dim;     /* -1: the whole tensor */
    uint64_t start;  /* ignored for the whole tensor */
    uint64_t length; /* ignored for the whole tensor */
} weft_slice;

/* The live tensor `name` is the slices joined along `dim` (one slice: a rename, a row or a column
 * split). */
WEFT_API WEFT_CHECKED weft_status weft_layout_concat(weft_layout *layout, const char *name, uint32_t dim,
                                                     const weft_slice *slices, size_t count);
/* The live tensor `name` is the slices stacked along a new first dimension. */
WEFT_API WEFT_CHECKED weft_status weft_layout_stack(weft_layout *layout, const char *name,
                                                    const weft_slice *slices, size_t count);
/* The live name `name` shares the memory of live tensor `target`. */
WEFT_API WEFT_CHECKED weft_status weft_layout_tie(weft_layout *layout, const char *name,
                                                  const char *target);
/* Checkpoint tensors that this holder does not want; a trailing '*' matches any ending. */
WEFT_API WEFT_CHECKED weft_status weft_layout_ignore(weft_layout *layout, const char *pattern);
/* The same from JSON; doc/architecture/layouts.md has the grammar. */
WEFT_API WEFT_CHECKED weft_status weft_layout_parse(weft_context *context, const char *json, size_t size,
                                                    weft_layout **layout_out);

/* ---- views ----
 *
 * A view presents live tensors with the checkpoint's names, shapes and order, whatever the layout behind
 * it. Everything that compares, digests or changes weights works on views. */

typedef struct weft_view weft_view;

/* The tensors of `table` as they are. The table must outlive the view. Tensors of the same dtype and
 * shape that share their memory, such as an embedding and an output head, are tied: each is in the digest
 * and in patches under its own name, the memory is written once, and a patch that would make them differ
 * is refused. Any other overlap of memory is WEFT_INVALID_ARGUMENT; slices of one buffer that interleave
 * (see strides) do not overlap. Memory behind callbacks cannot be compared. */
WEFT_API WEFT_CHECKED weft_status weft_view_create(weft_context *context, const weft_table *table,
                                                   weft_view **view_out);
/* The tensors of `table` through a layout of the checkpoint described by `checkpoint` (names, dtypes and
 * shapes; its data is not used). It is an error if no slice, or more than one, covers an element of a
 * live tensor, or if the layout neither uses nor ignores a checkpoint tensor. The table must outlive the
 * view. */
WEFT_API WEFT_CHECKED weft_status weft_view_create_layout(weft_context *context, const weft_table *table,
                                                          const weft_layout *layout,
                                                          const weft_table *checkpoint,
                                                          weft_view **view_out);
WEFT_API void weft_view_destroy(weft_view *view);
/* Checkpoint tensors, names ascending as bytes. Of each, name, dtype, rank, shape and bytes count. */
WEFT_API size_t weft_view_count(const weft_view *view);
WEFT_API const weft_tensor *weft_view_at(const weft_view *view, size_t index);
/* The index of a name, or -1. */
WEFT_API int64_t weft_view_find(const weft_view *view, const char *name);
/* True if every element of every checkpoint tensor is held. */
WEFT_API bool weft_view_complete(const weft_view *view);

/* ---- the digest ----
 *
 * Each 16-byte word of a tensor is mixed with its position by a nonlinear function, and the mixes are
 * summed per grain (a fixed range of a tensor), per tensor, and hashed with name, dtype and shape into
 * one value for the state. Because sums can be updated word by word, a state's new digest costs only
 * what changed. It detects accidents; it is no defence against someone who forges weights. */

typedef struct weft_digest {
    uint8_t bytes[16];
} weft_digest;

enum { WEFT_DIGEST_TEXT = 33 };
/* Lower-case hexadecimal, terminated. */
WEFT_API void weft_digest_format(const weft_digest *digest, char text[WEFT_DIGEST_TEXT]);
WEFT_API bool weft_digest_equal(const weft_digest *a, const weft_digest *b);

/* The grain sums of one state of a table. */
typedef struct weft_sums weft_sums;

/* Sums everything that the view holds, on all threads. The view must outlive the sums. */
WEFT_API WEFT_CHECKED weft_status weft_sums_compute(weft_context *context, const weft_view *view,
                                                    weft_sums **sums_out);
WEFT_API void weft_sums_destroy(weft_sums *sums);
/* The digest of the state. Comparable with others only if the view is complete. */
WEFT_API weft_digest weft_sums_digest(const weft_sums *sums);
/* The value of one tensor (by view index): its sum, bound to dtype and shape but not to its name. */
WEFT_API weft_digest weft_sums_tensor(const weft_sums *sums, size_t index);
/* Re-sums the next `bytes` worth of grains, round robin, against memory. WEFT_DIGEST_MISMATCH names the
 * tensor and range that drifted. UINT64_MAX audits everything. */
WEFT_API WEFT_CHECKED weft_status weft_sums_audit(weft_context *context, weft_sums *sums, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
