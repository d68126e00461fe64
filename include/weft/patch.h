/* SPDX-License-Identifier: Apache-2.0
 *
 * patch.h: what changed between two states. Diff, apply with prepare, commit and rollback, merge, and
 * the patch file. doc/FORMAT.md specifies every byte of it.
 */
#ifndef WEFT_PATCH_H
#define WEFT_PATCH_H

#include <weft/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a patch is coded. Every receiver reads both. */
typedef enum weft_profile {
    WEFT_PROFILE_FAST = 0,  /* bit-packed; decodes without the base */
    WEFT_PROFILE_SMALL = 1, /* conditioned on the base's exponents; the smallest of a patch alone */
    /* Conditioned on recent changes too, of which publisher and followers keep lists: for publishers only
     * (weft/sync.h). What has no such list is coded as WEFT_PROFILE_SMALL. */
    WEFT_PROFILE_SMALLEST = 2,
} weft_profile;

/* Where a patch is written. Called in order, from one thread at a time. */
typedef struct weft_sink {
    weft_status (*write)(void *opaque, const void *data, size_t size);
    void *opaque;
} weft_sink;

/* Sinks of the library's own, for who has no callback to give. Each is finished or abandoned by the process
 * that opened it, and used by the calls of one thread at a time.
 *
 * A file that appears complete or not at all: it is written under a temporary name beside `path`, and
 * finish moves it there. A pipe or a device is written straight. A terminal is WEFT_INVALID_ARGUMENT. */
WEFT_API WEFT_CHECKED weft_status weft_sink_open_file(weft_context *context, const char *path,
                                                      weft_sink *sink_out);
/* What is open already, such as stdout or a socket. It stays the caller's. */
WEFT_API WEFT_CHECKED weft_status weft_sink_open_descriptor(weft_context *context, int descriptor,
                                                            weft_sink *sink_out);
/* Memory, which weft_sink_memory shows: valid until the next write, and until the sink is abandoned. */
WEFT_API WEFT_CHECKED weft_status weft_sink_open_memory(weft_context *context, weft_sink *sink_out);
WEFT_API void weft_sink_memory(const weft_sink *sink, const void **data_out, size_t *size_out);
/* The file's temporary name, for a signal handler that removes what a killed process would leave; NULL if
 * there is none. Valid until the sink is finished or abandoned. */
WEFT_API const char *weft_sink_temporary(const weft_sink *sink);
/* All is written: the file takes its place, and with `durable` survives power loss. Closes the sink, also
 * on failure: then the path has what was there before. A sink of memory stays open. */
WEFT_API WEFT_CHECKED weft_status weft_sink_finish(weft_sink *sink, bool durable);
/* Drops what was written, and closes. Harmless after finish. */
WEFT_API void weft_sink_abandon(weft_sink *sink);

/* Cuts the tensors that match `pattern`, a shell pattern such as "*.o_proj.weight", into `parts` equal
 * boxes along `dim`, so that a holder of one box receives the buckets of that box only. One part keeps
 * each tensor in buckets of its own, for holders of some tensors only, such as some experts. */
typedef struct weft_cut {
    const char *pattern;
    uint32_t dim;
    uint32_t parts;
} weft_cut;

/* The undo log of a base that follows its diff. */
typedef struct weft_trail weft_trail;

/* What has changed in one tensor, from somebody who knows it already: an optimizer, or a kernel on an
 * accelerator. Every change must be among them; units that hold their old value may be, and are dropped.
 * The structure never grows: calls take arrays of it. */
typedef struct weft_tensor_changes {
    const char *tensor; /* its name in the checkpoint; each at most once in an array */
    const uint64_t
        *units;         /* which, counted in width-sized units (see weft_dtype_width): strictly ascending */
    const void *values; /* what each holds now, in the tensor's dtype, end to end */
    uint64_t count;
} weft_tensor_changes;

/* Formats of patches and of the histories that name them are numbered together. Those from 1 to this one
 * are read and written. */
enum { WEFT_FORMAT_NEWEST = 2 };

typedef struct weft_diff_options {
    size_t size; /* sizeof(weft_diff_options) */
    weft_profile profile;
    uint64_t bucket_bytes; /* weights per bucket; 0: 8 MiB */
    const weft_cut *cuts;
    size_t cut_count;
    const weft_container *base_container; /* NULL: the patch is between live states */
    const weft_container *new_container;
    const char *const *labels;  /* key, value, …, NULL: carried along, such as "step", "42"; UTF-8 */
    const weft_sums *base_sums; /* of the base, if known; NULL: computed first */
    weft_sums **new_sums_out;   /* NULL, or receives the sums of the new state, over the new view */
    const weft_sink *inverse;   /* NULL, or receives the patch from new to base */
    /* NULL, or the diff brings the base, a private copy in writable memory, to the new state while it is in
     * the cache; the trail can undo that. Points to NULL, or to a trail to reuse. Not together with
     * `inverse`, and only between states of the same tensors. If the diff fails, the base is as it was. */
    weft_trail **trail;
    /* NULL, or receives what the base holds where the new state differs; the base does not change. Points
     * to NULL, or to a trail to reuse. NULL afterwards if the states have different tensors. Not together
     * with `trail`. */
    weft_trail **notes;
    /* With `next` NULL: the new state is the base with these changes, and has the base's tensors. Only the
     * buckets that they are in are read. */
    const weft_tensor_changes *changes;
    size_t change_count;
    unsigned format; /* 0: the newest; 1 can be read by weft 0.1, and takes more bytes */
} weft_diff_options;

typedef struct weft_diff_stats {
    size_t size;          /* sizeof(weft_diff_stats) */
    uint64_t changed;     /* units that differ, and all units of added or replaced tensors */
    uint64_t total;       /* units in the new state */
    uint64_t dense_bytes; /* bytes of the new state */
    uint64_t patch_bytes;
    uint64_t inverse_bytes;
    uint64_t buckets;
    weft_digest base;
    weft_digest result;
} weft_diff_stats;

/* The patch from `base` to `next`. `options` may be NULL; `stats` may be NULL. Same input, same bytes,
 * whatever the threads or the processor, and whether the new state is given whole or as changes.
 * WEFT_INVALID_ARGUMENT names the tensor and the place of units that do not ascend or do not exist. */
WEFT_API WEFT_CHECKED weft_status weft_diff(weft_context *context, const weft_view *base,
                                            const weft_view *next, const weft_diff_options *options,
                                            const weft_sink *sink, weft_diff_stats *stats);

/* Puts the old values back. */
WEFT_API WEFT_CHECKED weft_status weft_trail_undo(weft_context *context, const weft_trail *trail);
WEFT_API void weft_trail_destroy(weft_trail *trail);

/* ---- a patch, opened ---- */

/* Where a patch is read from. `read` fills the whole buffer or fails, and is called from several
 * threads. If `memory` is not NULL it holds all `size` bytes, and `read` is not used. */
typedef struct weft_source {
    const void *memory;
    uint64_t size;
    weft_status (*read)(void *opaque, uint64_t offset, void *data, size_t size);
    void *opaque;
} weft_source;

/* Sources of the library's own. A file is mapped, and must not be cut short while it is open; what cannot
 * be mapped, such as a pipe, is first copied to an unnamed file in TMPDIR. WEFT_NOT_FOUND if there is none.
 */
WEFT_API WEFT_CHECKED weft_status weft_source_open_file(weft_context *context, const char *path,
                                                        weft_source *source_out);
/* What is open already, from its start if it is a file, such as stdin. It stays the caller's. */
WEFT_API WEFT_CHECKED weft_status weft_source_open_descriptor(weft_context *context, int descriptor,
                                                              weft_source *source_out);
/* After the patches that read from it. */
WEFT_API void weft_source_close(weft_source *source);

typedef struct weft_patch weft_patch;

/* Reads and checks header, index and footer. Buckets are read as they are needed. The memory or file behind
 * the source must outlive the patch. An open patch does not change: several contexts may use it at once. */
WEFT_API WEFT_CHECKED weft_status weft_patch_open(weft_context *context, const weft_source *source,
                                                  weft_patch **patch_out);
WEFT_API void weft_patch_close(weft_patch *patch);

typedef struct weft_patch_info {
    size_t size; /* sizeof(weft_patch_info) */
    uint16_t version;
    weft_profile profile;
    uint64_t bytes;
    uint64_t changed;
    uint64_t total;
    uint64_t dense_bytes;
    uint64_t buckets;
    uint64_t added, removed, replaced; /* tensors */
    weft_digest base;
    weft_digest result;
    uint64_t recalls; /* how many versions before it the patch was coded with: see WEFT_PROFILE_SMALLEST */
} weft_patch_info;

WEFT_API void weft_patch_describe(const weft_patch *patch, weft_patch_info *info_out);
/* Names, dtypes and shapes of the resulting state, without data. */
WEFT_API const weft_table *weft_patch_table(const weft_patch *patch);
/* The resulting checkpoint's files, if the patch carries them; NULL if they are the base's or none. */
WEFT_API const weft_container *weft_patch_container(const weft_patch *patch);
/* The value of a label, or NULL. */
WEFT_API const char *weft_patch_label(const weft_patch *patch, const char *key);
WEFT_API size_t weft_patch_label_count(const weft_patch *patch);
/* The key of the n-th label, or NULL past the last. */
WEFT_API const char *weft_patch_label_key(const weft_patch *patch, size_t index);

typedef enum weft_fate {
    WEFT_FATE_KEPT = 0,
    WEFT_FATE_ADDED = 1,
    WEFT_FATE_REMOVED = 2,
    WEFT_FATE_REPLACED = 3, /* another dtype or shape */
} weft_fate;

/* The n-th tensor of the patch, in name order, removed ones included; NULL past the last. */
WEFT_API size_t weft_patch_tensor_count(const weft_patch *patch);
WEFT_API const weft_tensor *weft_patch_tensor(const weft_patch *patch, size_t index, weft_fate *fate_out);

typedef enum weft_coding {
    WEFT_CODING_FAST = 1,
    WEFT_CODING_SMALL = 2,
    WEFT_CODING_DIFFERENCE = 3,    /* every unit's step, in byte planes, zstd */
    WEFT_CODING_VALUES = 4,        /* every unit's new value, in byte planes, zstd */
    WEFT_CODING_PACKED_STEPS = 5,  /* every unit's step, of floats: codes, entropy-coded, and plain bits */
    WEFT_CODING_PACKED_VALUES = 6, /* every unit's new value, in the same way */
    WEFT_CODING_RICE = 7,          /* every unit's step: Rice's code, in planes of bits */
    WEFT_CODING_SMALLEST = 8,      /* as small, with recent changes in classes of their own */
} weft_coding;

typedef struct weft_bucket_info {
    size_t size; /* sizeof(weft_bucket_info) */
    weft_coding coding;
    uint64_t offset; /* in the file */
    uint64_t bytes;
    uint64_t units;
    uint64_t changed;
    size_t first_tensor; /* index for weft_patch_tensor */
    size_t last_tensor;
} weft_bucket_info;

/* Reads the bucket's frame and checks it. */
WEFT_API WEFT_CHECKED weft_status weft_patch_bucket(weft_context *context, const weft_patch *patch,
                                                    size_t index, weft_bucket_info *info_out);

/* ---- apply ---- */

typedef struct weft_apply weft_apply;

typedef struct weft_apply_stats {
    size_t size;           /* sizeof(weft_apply_stats) */
    uint64_t changed;      /* staged or committed units */
    uint64_t buckets;      /* decoded */
    uint64_t bytes_read;   /* of the patch */
    uint64_t stage_bytes;  /* memory held by prepared changes and their destinations */
    double decode_seconds; /* prepare: fetch, check, decode, prove */
    double commit_seconds; /* the pause */
} weft_apply_stats;

/* A transaction that brings the view from the patch's base to its result. `sums` are those of the view
 * and move with it; they identify the base. A view that holds only some parts of cut tensors (see weft_cut)
 * takes the buckets of those parts. Tensors must all be kept: a patch that adds, removes or replaces
 * tensors needs weft_apply_rebuild. */
WEFT_API WEFT_CHECKED weft_status weft_apply_create(weft_context *context, const weft_patch *patch,
                                                    const weft_view *view, weft_sums *sums,
                                                    weft_apply **apply_out);
/* Decodes and proves everything and touches nothing. WEFT_MORE: the staging limit was reached; commit
 * what is staged, then prepare again. WEFT_UNSUPPORTED: tensors that share their memory would differ
 * afterwards. Their changes are staged together, before all others: WEFT_LIMIT_EXCEEDED if they alone
 * exceed the limit. */
WEFT_API WEFT_CHECKED weft_status weft_apply_prepare(weft_apply *apply);
/* Some of what is prepared and proven: units of one live tensor, ascending, each with what it holds and
 * what it will hold, in the tensor's dtype, end to end. All of it is gone when the visit returns. */
typedef struct weft_change_batch {
    const weft_tensor *tensor; /* as the view has it */
    size_t index;              /* of that tensor in the table that the view was made of */
    size_t count;
    const uint64_t *units;
    const void *olds;
    const void *news;
} weft_change_batch;

typedef weft_status (*weft_change_function)(void *opaque, const weft_change_batch *batch);

/* Visits all that a commit of the prepared step would change, on the calling thread: tensor by tensor in
 * the order of the table, at most `batch` units at a time (0: 65536). Memory with several names is visited
 * once, under the name that the others are tied to. A failure of `visit` ends the call and is passed on;
 * what is prepared stays prepared. */
WEFT_API WEFT_CHECKED weft_status weft_apply_changes(weft_apply *apply, size_t batch,
                                                     weft_change_function visit, void *opaque);
/* Scatters the prepared changes and moves the sums. */
WEFT_API WEFT_CHECKED weft_status weft_apply_commit(weft_apply *apply);
/* Drops prepared changes; after a commit, puts the old words back. What earlier steps committed (see
 * WEFT_MORE) stays; WEFT_UNSUPPORTED says so. */
WEFT_API WEFT_CHECKED weft_status weft_apply_rollback(weft_apply *apply);
/* For a private copy of the weights that may be lost: decodes, proves and writes in one go, which is the
 * fastest. On failure the copy is between two states and must be thrown away. */
WEFT_API WEFT_CHECKED weft_status weft_apply_run(weft_apply *apply);
WEFT_API void weft_apply_describe(const weft_apply *apply, weft_apply_stats *stats_out);
WEFT_API void weft_apply_destroy(weft_apply *apply);

/* Makes the checkpoint at `output_path` from `base` and one or several patches in order, byte for byte the
 * one that was diffed. The base is proven while it is read. */
WEFT_API WEFT_CHECKED weft_status weft_apply_rebuild(weft_context *context, const weft_checkpoint *base,
                                                     const weft_patch *const *patches, size_t count,
                                                     const char *output_path, bool durable,
                                                     weft_digest *digest_out);

/* Brings the checkpoint at `path` forward in place, patch by patch, each a transaction of its own. After
 * a kill at any instant, weft_apply_recover finishes or undoes the work: the checkpoint is at the state
 * before or after a patch, never between. With `durable` that holds for power loss too. */
WEFT_API WEFT_CHECKED weft_status weft_apply_in_place(weft_context *context, const char *path,
                                                      const weft_patch *const *patches, size_t count,
                                                      bool durable, weft_digest *digest_out);
/* Finishes or clears away what a killed weft_apply_in_place left behind. The command does this before it
 * opens a checkpoint. WEFT_BUSY if the other process still lives. */
WEFT_API WEFT_CHECKED weft_status weft_apply_recover(weft_context *context, const char *path,
                                                     bool *recovered_out);

/* ---- merge ---- */

typedef struct weft_merge_options {
    size_t size; /* sizeof(weft_merge_options) */
    weft_profile profile;
    const weft_view *base; /* the first patch's base; needed unless every bucket is coded fast */
    const char *const *labels;
} weft_merge_options;

/* One patch that does what `patches` do in order. Each must start from the state that the one before
 * makes, keep all tensors, and be cut into the same buckets. */
WEFT_API WEFT_CHECKED weft_status weft_merge(weft_context *context, const weft_patch *const *patches,
                                             size_t count, const weft_merge_options *options,
                                             const weft_sink *sink, weft_diff_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
