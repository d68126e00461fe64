/* SPDX-License-Identifier: Apache-2.0
 *
 * foreign.h: the formats in which other systems leave weights for their engines: directories and files of
 * deltas. A version of theirs is read against its base and becomes a list of changes, which weft_diff makes
 * a patch of and weft_publisher_publish_changes a version; and a list of changes is written as a version of
 * theirs. doc/INTEROP.md has the table of formats, and what each can prove.
 *
 * Everything that is read is untrusted. A checksum that the format has is checked on reading, over the
 * whole new state of each tensor, before anybody sees a change; and made on writing.
 */
#ifndef WEFT_FOREIGN_H
#define WEFT_FOREIGN_H

#include <weft/patch.h>
#include <weft/store.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_foreign_format {
    WEFT_FOREIGN_ANY = 0,   /* what is found there */
    WEFT_FOREIGN_SLIME = 1, /* weight_vNNNNNN/ of slime, miles, SGLang, Stitch and ModelExpress */
    WEFT_FOREIGN_SKYRL = 2, /* delta-NNNNNNNN/ of SkyRL */
    WEFT_FOREIGN_ARC2 = 3,  /* incremental snapshots of Fireworks, arc_v2 */
    WEFT_FOREIGN_TRL = 4,   /* read only, as the rest: sparse weight patches of TRL */
    WEFT_FOREIGN_PRIME = 5, /* sparse steps of prime-rl, both shapes */
    WEFT_FOREIGN_AREAL = 6, /* deltas of AReaL-DTE */
    WEFT_FOREIGN_PULSE = 7, /* PULSEPT1, version 1 to 3 */
    WEFT_FOREIGN_GRAIL = 8, /* COO of grail, version 3 and 3.1 */
} weft_foreign_format;

/* As it stands before the colon of a place: "slime"; NULL for a number that is no format. */
WEFT_API const char *weft_foreign_format_name(weft_foreign_format format);
/* Takes "slime:/updates", "slime:///updates", "slime:s3://bucket/updates" or a path alone apart, and points
 * into it: `path_out` may be NULL. WEFT_FOREIGN_ANY if it names no format. */
WEFT_API weft_foreign_format weft_foreign_place(const char *place, const char **path_out);

/* How a delta is written. */
typedef enum weft_foreign_encoding {
    WEFT_FOREIGN_XOR = 0,       /* new xor old, all of it */
    WEFT_FOREIGN_OVERWRITE = 1, /* 32-bit byte positions and new bytes */
} weft_foreign_encoding;

typedef enum weft_foreign_checksum {
    WEFT_FOREIGN_XXH3_128 = 0,
    WEFT_FOREIGN_ADLER32 = 1,
    WEFT_FOREIGN_BLAKE3 = 2, /* WEFT_UNSUPPORTED in a library that was built without it */
    WEFT_FOREIGN_SHA256 = 3,
} weft_foreign_checksum;

/* ---- what lies there ---- */

typedef struct weft_foreign weft_foreign;

typedef struct weft_foreign_version {
    uint64_t version;
    uint64_t base;    /* the version that it is a delta of */
    bool whole;       /* a checkpoint, for weft_checkpoint_open, and no delta */
    const char *path; /* of its directory or file */
} weft_foreign_version;

typedef struct weft_foreign_options {
    size_t size; /* sizeof(weft_foreign_options) */
    /* For formats that do not say which state they belong to: the base is believed to be the right one. If
     * it is not, the result is wrong weights that nobody notices. */
    bool assume_base;
    /* How a place in a bucket is reached; NULL: as weft_store_open does without. */
    const weft_store_options *store;
} weft_foreign_options;

/* Opens a place (see weft_foreign_place) and lists its versions. A place that exists and has none yet is
 * no failure if its format is named. WEFT_NOT_FOUND if it does not exist, WEFT_UNSUPPORTED if nothing
 * known is there, or if the format is known and refused. `options` may be NULL.
 *
 * Of slime and SkyRL the path may be s3://bucket/prefix or http(s)://host/prefix. What a version consists
 * of is then fetched when it is read, into a directory below TMPDIR (else /tmp) that goes with the place:
 * the files of one version at a time. A store that cannot list is asked for the numbers that follow the
 * newest that is known, and for `latest`. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_open(weft_context *context, const char *place,
                                                    const weft_foreign_options *options,
                                                    weft_foreign **foreign_out);
WEFT_API void weft_foreign_close(weft_foreign *foreign);
/* Its format. */
WEFT_API weft_foreign_format weft_foreign_kind(const weft_foreign *foreign);
/* Looks again for versions. Those that have been seen stay, and their order: ascending. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_look(weft_foreign *foreign);
/* Says at which version the caller is, for places that cannot be listed: they are looked at from there on.
 */
WEFT_API WEFT_CHECKED weft_status weft_foreign_begin(weft_foreign *foreign, uint64_t version);
/* Those that are complete; NULL past the last. Valid until the next look. */
WEFT_API size_t weft_foreign_count(const weft_foreign *foreign);
WEFT_API const weft_foreign_version *weft_foreign_at(const weft_foreign *foreign, size_t index);
/* The delta that leads on from `version`, of several the one that leads farthest; NULL: none. */
WEFT_API const weft_foreign_version *weft_foreign_after(const weft_foreign *foreign, uint64_t version);

/* Brings the files of a version of a bucket to its path: those of a checkpoint, before it is opened there.
 * They stay until those of another version are fetched or read. WEFT_LIMIT_EXCEEDED if they are far larger
 * than a version of `base` can be. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_fetch(weft_foreign *foreign, uint64_t version,
                                                     const weft_view *base);

/* ---- changes ---- */

/* The changes of one version, and where it came from. */
typedef struct weft_foreign_step weft_foreign_step;

/* One that is empty, to be filled by weft_foreign_step_add. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_step_create(weft_context *context,
                                                           weft_foreign_step **step_out);
/* A weft_change_function, for weft_apply_changes and weft_subscriber_changes, whose `opaque` is the step:
 * adds the new values of a batch. Batches of a tensor must come in order, one behind the other. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_step_add(void *opaque, const weft_change_batch *batch);
/* Reads the delta of `version` against `base`, which must hold all of the version's base, and checks every
 * checksum; nothing is changed. WEFT_CHECKSUM_MISMATCH: what came out is not what was promised, because the
 * delta is damaged or the base is another one. WEFT_LIMIT_EXCEEDED if the changes take more memory than
 * limits.stage_bytes: a unit of BF16 takes 10 bytes. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_read(weft_foreign *foreign, uint64_t version,
                                                    const weft_view *base, weft_foreign_step **step_out);
WEFT_API void weft_foreign_step_destroy(weft_foreign_step *step);
/* As weft_diff and weft_publisher_publish_changes take them. Valid until the step is changed. */
WEFT_API const weft_tensor_changes *weft_foreign_step_changes(const weft_foreign_step *step,
                                                              size_t *count_out);
/* What a version made of the step should carry along: key, value, …, NULL. "foreign.format",
 * "foreign.version", "foreign.base" and what else a writer needs to give the same directory back. */
WEFT_API const char *const *weft_foreign_step_labels(const weft_foreign_step *step);

/* ---- writing ---- */

typedef struct weft_foreign_write_options {
    size_t size; /* sizeof(weft_foreign_write_options) */
    uint64_t version;
    uint64_t base; /* the version before */
    weft_foreign_encoding encoding;
    weft_foreign_checksum checksum;
    int level;            /* of zstd; 0: 1, which is what others write */
    uint64_t shard_bytes; /* a new file begins before this is exceeded; 0: one file, of SkyRL 1 GiB */
    bool durable;
    /* For ARC2, whose files are those of the base: the base's. NULL: one file. */
    const weft_container *container;
} weft_foreign_write_options;

typedef struct weft_foreign_written {
    size_t size; /* sizeof(weft_foreign_written) */
    uint64_t bytes;
    uint64_t tensors; /* with changes */
} weft_foreign_written;

/* Writes the changes of `base` as a version of the place, which must name its format and is made if it does
 * not exist. The version appears whole or not at all; WEFT_CONFLICT if it is there already. Changes that
 * change nothing are left out. WEFT_UNSUPPORTED for what the format cannot say. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_write(weft_context *context, const char *place,
                                                     const weft_foreign_write_options *options,
                                                     const weft_view *base,
                                                     const weft_tensor_changes *changes, size_t count,
                                                     weft_foreign_written *written_out);

/* The labels of a version that came from a place, for weft_foreign_write to give the same back: fills what
 * they tell. False if they are of no foreign version. */
WEFT_API bool weft_foreign_labels(const char *const *labels, weft_foreign_format *format_out,
                                  weft_foreign_write_options *options);

/* ---- a checkpoint, or tensors in memory, that follow ---- */

typedef struct weft_foreign_replica weft_foreign_replica;

typedef struct weft_foreign_replica_options {
    size_t size; /* sizeof(weft_foreign_replica_options) */
    bool durable;
    /* The version that the weights are at, if nothing beside a checkpoint says so; not given, the oldest
     * base. A format that checks new states proves it for every tensor that changes. */
    uint64_t version;
    bool version_given;
    double poll_seconds; /* between two looks of a wait; 0: 0.1, of a bucket 1 */
} weft_foreign_replica_options;

/* A checkpoint on disk that is brought forward, locked until the close. Killed at any instant it is at one
 * version or another, whole: see weft_apply_in_place. A file beside it, .NAME.weft-foreign, remembers
 * which. The foreign place must outlive it, and has the same context. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_open(weft_context *context, weft_foreign *foreign,
                                                            const char *path,
                                                            const weft_foreign_replica_options *options,
                                                            weft_foreign_replica **replica_out);
/* The same of tensors in memory: a view that holds all of them, writable, which must outlive it. They are
 * summed first. Nothing remembers their version after the close. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_open_view(
    weft_context *context, weft_foreign *foreign, const weft_view *view,
    const weft_foreign_replica_options *options, weft_foreign_replica **replica_out);
WEFT_API void weft_foreign_replica_close(weft_foreign_replica *replica);

typedef struct weft_foreign_replica_info {
    size_t size; /* sizeof(weft_foreign_replica_info) */
    uint64_t version;
    weft_digest digest;
    uint64_t changed;     /* units, by the last step */
    double read_seconds;  /* the last step: decode and check, */
    double prove_seconds; /* make the patch and prepare it, */
    double pause_seconds; /* and write it in place */
    uint64_t prepared;    /* the version that a commit leads to; 0: nothing is prepared */
} weft_foreign_replica_info;

WEFT_API void weft_foreign_replica_describe(const weft_foreign_replica *replica,
                                            weft_foreign_replica_info *info_out);
/* Labels of where its version came from, or the one that is `prepared`: key, value, …, NULL. Valid until
 * the next call. Empty of the version that it began with. */
WEFT_API const char *const *weft_foreign_replica_labels(const weft_foreign_replica *replica, bool prepared);
/* Looks until there is a way on, to `version_out`, which may be NULL. WEFT_MORE: not within `seconds`. What
 * is malformed, and may be half written, is a failure if it stays so for 5 seconds or to the end. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_wait(weft_foreign_replica *replica, double seconds,
                                                            uint64_t *version_out);
/* Reads and proves the next delta on the way to `version` (0: the newest that is known), and leaves the
 * weights alone. WEFT_MORE: others follow it; commit, and prepare again. With nothing to do it returns
 * WEFT_OK, and commit does nothing. What was prepared before is dropped. WEFT_NOT_FOUND if nothing leads
 * there.
 */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_prepare(weft_foreign_replica *replica,
                                                               uint64_t version);
/* Visits what a commit will change: see weft_apply_changes. WEFT_UNSUPPORTED for a checkpoint on disk. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_changes(weft_foreign_replica *replica, size_t batch,
                                                               weft_change_function visit, void *opaque);
/* Puts what is prepared in place: the pause. What exceeds limits.stage_bytes in memory comes in portions,
 * within it. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_commit(weft_foreign_replica *replica);
/* Drops what is prepared; else, of tensors in memory, takes the last commit back. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_rollback(weft_foreign_replica *replica);
/* Sums all weights again. WEFT_DIGEST_MISMATCH if somebody else has changed them. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_verify(weft_foreign_replica *replica);
/* Prepares and commits. WEFT_MORE: there is nothing yet. */
WEFT_API WEFT_CHECKED weft_status weft_foreign_replica_step(weft_foreign_replica *replica);

#ifdef __cplusplus
}
#endif
#endif
