/* SPDX-License-Identifier: Apache-2.0
 *
 * base.h: statuses and contexts, which every other header uses.
 *
 * A context carries everything that a call needs from its surroundings: the allocator, the limits on
 * input, the number of threads, the progress function, and the text of the last error. There is no global
 * state: two contexts never influence each other. One thread at a time uses a context; the library's own
 * workers share it safely.
 *
 * After fork, a child has one thread: a copy of the one that called it. A context that no call was using
 * at that moment works in the child as before (its threads start anew there). So does what is only
 * memory: tables, views, sums, layouts, patches, keys. So do stores that are directories. Objects with
 * threads, connections, locks or unfinished files (other stores, publishers, subscribers, groups, relays,
 * a checkpoint that is being made) belong to the process that opened them. In a child every call on them
 * fails with WEFT_INVALID_ARGUMENT, and closing them only forgets them, without giving back their memory,
 * so that nothing of the parent's is ended, sent or removed; locks that they give back stay held until
 * the child ends. A context that was in use can only be destroyed, by a child of another thread; a child
 * that a callback forks must not return from it. The allocator's hooks, if there are any, must survive a
 * fork as malloc does.
 *
 * Structures can grow, so that a program which was built against an older header runs with a newer library
 * of the same name:
 *
 *   - Options that a program fills, and results that the library fills for it, begin with their size:
 *     `weft_diff_options options = {.size = sizeof options};`. The library believes no more than that many
 *     bytes to be there; options that an older program does not know are zero, which is always the default.
 *     A program that sets an option which an older library does not know gets WEFT_UNSUPPORTED. A size
 *     that no version had is WEFT_INVALID_ARGUMENT; a call without a status then leaves the result alone.
 *   - Structures that the library owns and shows by pointer only grow at their end.
 *   - Small values, and elements of arrays, never change: weft_digest, weft_store_tag, weft_cut,
 * weft_slice, weft_sink, weft_source and others without a size.
 *
 * weft_version says which library a program runs with. The name of the shared library changes when an old
 * program could not run with it any more; the symbols of each minor version carry its name.
 */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_CHECKED __attribute__((warn_unused_result))
#else
#define WEFT_API
#define WEFT_CHECKED
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 2
#define WEFT_VERSION_PATCH 0

/* The version of the library that runs: major * 1000000 + minor * 1000 + patch, such as 2000 for 0.2.0. */
WEFT_API unsigned weft_version(void);

/* Zero is success, positive is unfinished business, negative is failure. The numbers are pinned: each
 * block of one hundred says who has to act, and a number never changes its meaning. */
typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_MORE = 1, /* done so far; call again for the rest */

    /* the caller's input */
    WEFT_INVALID_ARGUMENT = -100,
    WEFT_UNSUPPORTED = -101,
    WEFT_NOT_FOUND = -102,
    WEFT_BUSY = -103,
    WEFT_CALLBACK_FAILED = -104, /* a callback broke its contract: the text says which */

    /* the bytes of a file or message */
    WEFT_MALFORMED = -200,
    WEFT_TRUNCATED = -201,
    WEFT_WRONG_VERSION = -202,

    /* integrity: well-formed, but not what was promised */
    WEFT_CHECKSUM_MISMATCH = -300,
    WEFT_BASE_MISMATCH = -301,
    WEFT_DIGEST_MISMATCH = -302,
    WEFT_SIGNATURE_MISMATCH = -303,

    /* local input and output */
    WEFT_IO_FAILED = -400,
    WEFT_NO_SPACE = -401,

    /* remote: a store, or what lies between */
    WEFT_REMOTE_FAILED = -500, /* unreachable, or it failed, after all attempts; later may work */
    WEFT_REMOTE_DENIED = -501, /* it wants other credentials, or cannot prove its identity */
    WEFT_CONFLICT = -502,      /* somebody else wrote in between */
    WEFT_ABORTED = -503,       /* other ranks of a group did not commit; nothing was changed */

    /* resources */
    WEFT_NO_MEMORY = -600,
    WEFT_LIMIT_EXCEEDED = -601,
    WEFT_CANCELLED = -602,
} weft_status;

/* Callbacks that return a weft_status return WEFT_OK or one of the failures above, which is passed on.
 * Any other number, such as an error of CUDA or of a system call, becomes WEFT_CALLBACK_FAILED. WEFT_MORE
 * counts only where its meaning is stated. */

/* A short name for a status, such as "base mismatch". Never NULL. */
WEFT_API const char *weft_status_name(weft_status status);
/* True for the blocks of -200 and -300: bytes were read, and they are not what they should be. */
WEFT_API bool weft_status_is_integrity(weft_status status);

/* Memory hooks. Called from several threads at once. `reallocate` may be given NULL. */
typedef struct weft_allocator {
    void *(*allocate)(void *opaque, size_t size);
    void *(*reallocate)(void *opaque, void *memory, size_t size);
    void (*release)(void *opaque, void *memory);
    void *opaque;
} weft_allocator;

/* Limits on what a file may claim. Zero in a field means its default. */
typedef struct weft_limits {
    size_t size;           /* sizeof(weft_limits) */
    uint64_t header_bytes; /* a safetensors header, a patch's header or index; default 32 MiB */
    uint64_t tensors;      /* tensors in a table; default 2^20 */
    uint64_t bucket_bytes; /* weights that one bucket may cover; default 32 MiB */
    uint64_t stage_bytes;  /* prepared changes, and where they go, held in memory; default 4 GiB */
} weft_limits;

/* Called now and then, from one thread at a time, while long work runs. `done` of `total` bytes of
 * weights. Return false to cancel: the call then ends with WEFT_CANCELLED and has changed nothing. Past
 * its point of no return a call no longer asks, except about optional work, such as an anchor after a
 * publish: then it ends with WEFT_OK without that. A call that goes from one whole state to the next
 * (weft_apply_in_place with several patches, weft_subscriber_pull, weft_loco_catch_up, weft_gc_run) stays
 * where it was when it was cancelled.
 *
 * The context is in use meanwhile, and so are the objects that the call works on. A call that the
 * function makes with them returns WEFT_BUSY if it would have to wait for the running one, or would
 * continue an apply, a publisher, a follower or a rank of this context, which may be the one at work.
 * That holds for every callback. Use another context. */
typedef bool (*weft_progress_function)(void *opaque, const char *phase, uint64_t done, uint64_t total);

typedef struct weft_context_options {
    size_t size;               /* sizeof(weft_context_options) */
    weft_allocator allocator;  /* all NULL: malloc, realloc, free */
    const weft_limits *limits; /* NULL: the defaults */
    unsigned threads;          /* 0: one per processor available to this process */
    weft_progress_function progress;
    void *progress_opaque;
} weft_context_options;

typedef struct weft_context weft_context;

/* `options` may be NULL for all defaults. */
WEFT_API WEFT_CHECKED weft_status weft_context_create(const weft_context_options *options,
                                                      weft_context **context_out);
WEFT_API void weft_context_destroy(weft_context *context);

/* One line about the last failure: what, where, and what to do next. Empty if nothing failed. Valid
 * until the next call with this context. */
WEFT_API const char *weft_context_error(const weft_context *context);
WEFT_API unsigned weft_context_threads(const weft_context *context);

/* The instruction set in use: "avx512", "avx2", "neon" or "portable". The environment variable WEFT_CPU,
 * read once per process, forces one of them; a name that this machine cannot run is ignored. */
WEFT_API const char *weft_cpu_name(void);

/* FP32 to BF16, to nearest even, subnormals kept: bit for bit what PyTorch makes of every number. Every
 * NaN becomes 0x7FC0, as PyTorch defines it for one value (its vector loops on x86 give 0xFFFF instead). */
WEFT_API void weft_bf16_from_f32(const float *input, uint16_t *output, size_t count);

#ifdef __cplusplus
}
#endif
#endif
