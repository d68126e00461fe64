/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_measure.c: the clock around each row of the table. Every time is the smallest of several runs;
 * caches are cold at the start of each; what a run produced is checked bit for bit after it.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static bool count_processor;

void bench_count_processor(void) {
    count_processor = true;
}

static double seconds_now(void) {
    struct timespec now;
    if (!count_processor) {
        return clock_seconds();
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void keep_smallest(double *best, double seconds) {
    if (*best == 0 || seconds < *best) {
        *best = seconds;
    }
}

static uint64_t model_bytes(const bench_model *model) {
    return model->units * model->width;
}

/* Is the live copy now the new state? */
static int check_live(weft_command *command, const bench_model *model, const char *name) {
    if (memcmp(model->live, model->next, bench_model_bytes(model)) != 0) {
        return command_error(command, EXIT_INTEGRITY, "%s: the decoded state is not the new one", name);
    }
    return EXIT_DONE;
}

/* ---- memcpy ---- */

enum { COPY_BYTES = 512 << 20 };

/* Each thread copies one part: a copy in small pieces would miss memcpy's way with large ones. */
typedef struct copying {
    uint8_t *from;
    uint8_t *to;
    size_t parts;
} copying;

static void copy_part(void *argument, size_t index, unsigned worker) {
    const copying *buffers = argument;
    size_t start = COPY_BYTES / buffers->parts * index;
    size_t end = index + 1 < buffers->parts ? start + COPY_BYTES / buffers->parts : COPY_BYTES;
    (void)worker;
    memcpy(buffers->to + start, buffers->from + start, end - start);
}

/* They stay: fresh pages take longer to come than to be copied. They are no child's, whose memory is
 * measured. */
static uint8_t *map_buffer(int filling) {
    uint8_t *buffer = bench_map(COPY_BYTES);
    if (buffer != NULL) {
        madvise(buffer, COPY_BYTES, MADV_DONTFORK);
        memset(buffer, filling, COPY_BYTES);
    }
    return buffer;
}

int bench_memcpy(weft_command *command, unsigned runs, bench_row *row) {
    static uint8_t *from, *to;
    from = from != NULL ? from : map_buffer(1);
    to = to != NULL ? to : map_buffer(2);
    if (from == NULL || to == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the copy");
    }
    copying buffers = {.from = from, .to = to, .parts = row->threads};
    for (unsigned i = 0; i < runs; i++) {
        double start = seconds_now();
        parallel_run(row->threads, row->threads, copy_part, &buffers);
        keep_smallest(&row->encode, seconds_now() - start);
        /* the copy must not be optimised away */
        buffers.from[i] = buffers.to[COPY_BYTES - 1 - i] + 1;
    }
    row->name = "memcpy";
    row->bytes = COPY_BYTES;
    row->decode = row->encode;
    row->digest = row->encode;
    return EXIT_DONE;
}

/* ---- weft ---- */

/* A context, views with it, and a patch in memory. */
typedef struct bench_session {
    weft_command *command;
    bench_model *model;
    weft_context *context;
    weft_view *base;
    weft_view *next;
    weft_view *live;
    weft_sums *base_sums;
    uint8_t *patch;
    size_t capacity;
    size_t size;
} bench_session;

static weft_status append_patch(void *opaque, const void *data, size_t size) {
    bench_session *session = opaque;
    if (size > session->capacity - session->size) {
        return WEFT_NO_SPACE;
    }
    memcpy(session->patch + session->size, data, size);
    session->size += size;
    return WEFT_OK;
}

static int session_fail(const bench_session *session, weft_status status) {
    return command_fail_in(session->command, session->context, NULL, status);
}

static void session_close(bench_session *session) {
    weft_sums_destroy(session->base_sums);
    weft_view *views[] = {session->base, session->next, session->live};
    for (int i = 0; i < 3; i++) {
        weft_view_destroy(views[i]);
    }
    bench_unmap(session->patch, session->capacity);
    weft_context_destroy(session->context);
}

static int session_open(weft_command *command, bench_model *model, unsigned threads,
                        bench_session *session) {
    *session = (bench_session){.command = command, .model = model};
    int code = command_context(command, threads, &session->context);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_view_create(session->context, model->base_table, &session->base);
    if (status == WEFT_OK) {
        status = weft_view_create(session->context, model->next_table, &session->next);
    }
    if (status == WEFT_OK) {
        status = weft_view_create(session->context, model->live_table, &session->live);
    }
    if (status == WEFT_OK) {
        status = weft_sums_compute(session->context, session->base, &session->base_sums);
    }
    if (status != WEFT_OK) {
        code = session_fail(session, status);
    }
    session->capacity = (size_t)model_bytes(model) + (64u << 20);
    session->patch = bench_map(session->capacity);
    if (code == EXIT_DONE && session->patch == NULL) {
        code = command_error(command, EXIT_FAILED, "no memory for the patch");
    }
    if (code != EXIT_DONE) {
        session_close(session);
    }
    return code;
}

/* As a publisher does it: the base's sums are known, the new state's come out for the next time. */
static int time_diff(bench_session *session, weft_profile profile, bench_row *row) {
    weft_sums *sums = NULL;
    weft_sink sink = {.write = append_patch, .opaque = session};
    weft_diff_options options = {
        .size = sizeof options, .profile = profile, .base_sums = session->base_sums, .new_sums_out = &sums};
    weft_diff_stats stats = {.size = sizeof stats};
    session->size = 0;
    bench_chill();
    double start = seconds_now();
    weft_status status = weft_diff(session->context, session->base, session->next, &options, &sink, &stats);
    keep_smallest(&row->encode, seconds_now() - start);
    if (status != WEFT_OK) {
        return session_fail(session, status);
    }
    weft_sums_destroy(sums);
    row->patch_bytes = stats.patch_bytes;
    return EXIT_DONE;
}

/* To live weights: prepared while they are in use, then committed. */
static weft_status apply_live(weft_apply *apply) {
    weft_status status;
    bool more;
    do {
        status = weft_apply_prepare(apply);
        more = status == WEFT_MORE;
        if (status == WEFT_OK || status == WEFT_MORE) {
            status = weft_apply_commit(apply);
        }
    } while (more && status == WEFT_OK);
    return status;
}

/* Everything from the patch's bytes to the changed weights. */
static weft_status apply_patch(bench_session *session, weft_sums *sums, bool live,
                               weft_apply_stats *stats) {
    weft_source source = {.memory = session->patch, .size = session->size};
    weft_patch *patch = NULL;
    weft_apply *apply = NULL;
    weft_status status = weft_patch_open(session->context, &source, &patch);
    if (status == WEFT_OK) {
        status = weft_apply_create(session->context, patch, session->live, sums, &apply);
    }
    if (status == WEFT_OK) {
        status = live ? apply_live(apply) : weft_apply_run(apply);
    }
    if (apply != NULL) {
        weft_apply_describe(apply, stats);
        weft_apply_destroy(apply);
    }
    weft_patch_close(patch);
    return status;
}

static int time_apply(bench_session *session, bool live, bench_row *row) {
    weft_sums *sums = NULL;
    bench_model_restore(session->model);
    weft_status status = weft_sums_compute(session->context, session->live, &sums);
    if (status != WEFT_OK) {
        return session_fail(session, status);
    }
    bench_chill();
    weft_apply_stats stats = {.size = sizeof stats};
    double start = seconds_now();
    status = apply_patch(session, sums, live, &stats);
    double seconds = seconds_now() - start;
    weft_sums_destroy(sums);
    if (status != WEFT_OK) {
        return session_fail(session, status);
    }
    if (live) {
        keep_smallest(&row->prepare, stats.decode_seconds);
        keep_smallest(&row->commit, stats.commit_seconds);
    } else {
        keep_smallest(&row->decode, seconds);
    }
    return check_live(session->command, session->model, row->name);
}

int bench_profile(weft_command *command, bench_model *model, weft_profile profile, unsigned threads,
                  unsigned repeat, bench_row *row) {
    bench_session session;
    *row = (bench_row){.name = text_profile(profile), .threads = threads, .bytes = model_bytes(model)};
    int code = session_open(command, model, threads, &session);
    if (code != EXIT_DONE) {
        return code;
    }
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        code = time_diff(&session, profile, row);
    }
    for (unsigned i = 0; i < 2 * repeat && code == EXIT_DONE; i++) {
        code = time_apply(&session, i % 2 == 1, row);
    }
    session_close(&session);
    return code;
}

int bench_anchor(weft_command *command, bench_model *model, unsigned threads, unsigned repeat,
                 bench_row *row) {
    bench_session session;
    weft_table *nothing = NULL;
    weft_view *empty = NULL;
    *row = (bench_row){.name = "anchor", .threads = threads, .bytes = model_bytes(model)};
    int code = session_open(command, model, threads, &session);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_table_create(session.context, &nothing);
    if (status == WEFT_OK) {
        status = weft_view_create(session.context, nothing, &empty);
    }
    for (unsigned i = 0; i < repeat && status == WEFT_OK; i++) {
        weft_sums *sums = NULL;
        weft_sink sink = {.write = append_patch, .opaque = &session};
        weft_diff_options options = {.size = sizeof options, .new_sums_out = &sums};
        weft_diff_stats stats = {.size = sizeof stats};
        session.size = 0;
        bench_chill();
        double start = seconds_now();
        status = weft_diff(session.context, empty, session.next, &options, &sink, &stats);
        keep_smallest(&row->encode, seconds_now() - start);
        weft_sums_destroy(sums);
        row->patch_bytes = stats.patch_bytes;
    }
    if (status != WEFT_OK) {
        code = session_fail(&session, status);
    }
    weft_view_destroy(empty);
    weft_table_destroy(nothing);
    session_close(&session);
    return code;
}

int bench_digest(weft_command *command, bench_model *model, unsigned threads, unsigned repeat,
                 bench_row *row) {
    bench_session session;
    *row = (bench_row){.name = "full digest", .threads = threads, .bytes = model_bytes(model)};
    int code = session_open(command, model, threads, &session);
    if (code != EXIT_DONE) {
        return code;
    }
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        weft_sums *sums = NULL;
        bench_chill();
        double start = seconds_now();
        weft_status status = weft_sums_compute(session.context, session.base, &sums);
        keep_smallest(&row->digest, seconds_now() - start);
        if (status != WEFT_OK) {
            code = session_fail(&session, status);
        } else {
            weft_sums_destroy(sums);
        }
    }
    session_close(&session);
    return code;
}

/* ---- the others ---- */

int bench_other(weft_command *command, bench_model *model, bench_baseline baseline, unsigned repeat,
                bench_row *row) {
    static const char *const names[] = {"COO+zstd-1", "XOR+zstd-1", "zstd-3"};
    *row = (bench_row){.name = names[baseline], .threads = 1, .bytes = model_bytes(model)};
    bench_codec *codec = bench_codec_open(model, baseline);
    int code =
        codec != NULL ? EXIT_DONE : command_error(command, EXIT_FAILED, "no memory for %s", row->name);
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        bench_chill();
        double start = seconds_now();
        row->patch_bytes = bench_codec_encode(codec);
        keep_smallest(&row->encode, seconds_now() - start);
        bench_model_restore(model);
        start = seconds_now();
        bool decoded = row->patch_bytes > 0 && bench_codec_decode(codec);
        keep_smallest(&row->decode, seconds_now() - start);
        code = decoded ? check_live(command, model, row->name)
                       : command_error(command, EXIT_FAILED, "%s: zstd failed", row->name);
        if (code == EXIT_DONE && command_interrupted() != EXIT_DONE) {
            code = command_error(command, command_interrupted(), "interrupted");
        }
    }
    if (codec != NULL) {
        bench_codec_close(codec);
    }
    return code;
}
