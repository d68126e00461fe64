/* SPDX-License-Identifier: Apache-2.0
 *
 * merger.c: the two threads that make leaps.
 *
 * The *keeper* has a past (lib/patch/diff/past.h) for each level, which begins at a multiple of the level's
 * length. Only the lowest takes in every version; at its end it is joined to the one above, and so on. The
 * *sender* has the list of the widest leaps, and a new leap takes the place of the smaller ones that it
 * consists of.
 */
#include "merger.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../../patch/diff/past.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft/sync.h>
#include <xxhash.h>

/* A patch that saves less than a tenth against what it leaps over is not worth its room. */
enum { WORTH_PARTS = 9, WORTH_OF = 10, QUEUE_MOST = 16 };

/* One leap to be written. */
typedef struct merger_job {
    struct merger_job *next;
    unsigned level;
    uint64_t last;
    weft_record records[WEFT_LEAP_WAYS]; /* level 1: all; above: the last alone */
    size_t record_count;
    weft_spool *spool; /* NULL: there is no patch */
} merger_job;

typedef struct merger_level {
    weft_past *past;
    bool begun;   /* at the last multiple of the level's length, or where the history begins */
    bool known;   /* of a publisher with files: the file was looked at */
    bool changed; /* and it is to be written */
} merger_level;

struct weft_merger {
    weft_context *context;
    weft_merger_task task;
    char run[WEFT_RUN_TEXT];
    const char *path; /* of the checkpoint that the files stand beside; NULL: in memory, with threads */
    atomic_bool stopping;

    /* the keeper's own */
    weft_context *keeper_context;
    merger_level levels[WEFT_LEAP_LEVELS + 1]; /* from 1 */
    unsigned highest;                          /* above it there is no memory for a past */
    uint64_t memory;                           /* that all pasts may take */
    weft_record block[WEFT_LEAP_WAYS];         /* records since the last multiple of four */
    size_t block_count;
    bool block_whole; /* none of them is missing */

    /* the sender's own */
    weft_context *sender_context;
    weft_leaps ladder;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    weft_record noted;
    bool has_note;
    bool reading; /* the keeper is at work on the baseline */
    merger_job *first_job, *last_job;
    size_t job_count;
    bool sending;
    weft_leaps finished;
    pthread_t keeper, sender;
    bool keeper_runs, sender_runs;
};

static void drop_job(weft_merger *merger, merger_job *job) {
    for (size_t i = 0; i < job->record_count; i++) {
        weft_record_close(&job->records[i], merger->context);
    }
    weft_spool_close(job->spool);
    weft_release(merger->context, job);
}

/* ---- the keeper: pasts ---- */

static weft_diff_options diff_options(const weft_merger *merger, const weft_record *record) {
    const weft_publisher_options *options = merger->task.options;
    return (weft_diff_options){
        .size = sizeof(weft_diff_options),
        .profile = options->profile,
        .format = options->format,
        .bucket_bytes = options->bucket_bytes,
        .cuts = options->cuts,
        .cut_count = options->cut_count,
        /* a process per version may have other files each time, such as other metadata */
        .base_container = merger->path == NULL ? merger->task.container : NULL,
        .new_container = merger->task.container,
        .labels = record != NULL ? (const char *const *)record->labels.items : NULL,
    };
}

static void forget_block(weft_merger *merger) {
    for (size_t i = 0; i < merger->block_count; i++) {
        weft_record_close(&merger->block[i], merger->context);
    }
    merger->block_count = 0;
}

static void end_past(merger_level *level) {
    level->begun = false;
    level->changed = true;
    if (level->past != NULL) {
        weft_past_clear(level->past);
    }
}

static weft_status create_past(weft_merger *merger, merger_level *level) {
    const weft_diff_options options = diff_options(merger, NULL);
    return level->past != NULL
               ? WEFT_OK
               : weft_past_create(merger->keeper_context, weft_baseline_view(merger->task.baseline),
                                  &options, &level->past);
}

static void begin_past(weft_merger *merger, unsigned number) {
    merger_level *level = &merger->levels[number];
    end_past(level);
    level->known = true;
    level->begun = number <= merger->highest && create_past(merger, level) == WEFT_OK;
}

/* All levels that begin at this version. */
static void begin_pasts(weft_merger *merger, uint64_t version) {
    for (unsigned i = 1; i <= WEFT_LEAP_LEVELS && version % weft_leap_length(i) == 0; i++) {
        begin_past(merger, i);
    }
}

/* The highest level takes the most memory, and pays last. */
static void limit_memory(weft_merger *merger) {
    uint64_t bytes = 0;
    for (unsigned i = 1; i <= WEFT_LEAP_LEVELS; i++) {
        bytes += merger->levels[i].past != NULL ? weft_past_bytes(merger->levels[i].past) : 0;
    }
    for (unsigned i = WEFT_LEAP_LEVELS; i > 0 && bytes > merger->memory; i--) {
        merger_level *level = &merger->levels[i];
        if (level->past != NULL) {
            bytes -= weft_past_bytes(level->past);
            end_past(level);
            merger->highest = i - 1;
        }
    }
}

/* ---- the keeper: pasts in files ----
 *
 * For publishers that are a process per version: a header, what the past holds, and a checksum over both.
 * It is a help: a file that is lost, torn or of another run costs the leaps that it would have served for.
 */

static const char MAGIC[8] = "weftpas1";

typedef struct file_header {
    char magic[sizeof MAGIC];
    char run[40];
    uint64_t version;
} file_header;

typedef struct file_sink {
    FILE *file;
    XXH3_state_t *hash;
} file_sink;

static weft_status write_some(void *opaque, const void *data, size_t size) {
    file_sink *sink = opaque;
    XXH3_64bits_update(sink->hash, data, size);
    return fwrite(data, 1, size, sink->file) == size ? WEFT_OK : WEFT_IO_FAILED;
}

static weft_status write_all(file_sink *sink, const file_header *header, const weft_past *past) {
    const weft_sink over = {write_some, sink};
    weft_status status = write_some(sink, header, sizeof *header);
    if (status == WEFT_OK) {
        status = weft_past_write(past, &over);
    }
    if (status == WEFT_OK) {
        uint64_t checksum = XXH3_64bits_digest(sink->hash);
        status = write_some(sink, &checksum, sizeof checksum);
    }
    return status;
}

/* `version` is the last one that the past has taken in. */
static weft_status save_file(weft_context *context, const char *path, const char *run, uint64_t version,
                             const weft_past *past) {
    file_header header = {.version = version};
    memcpy(header.magic, MAGIC, sizeof header.magic);
    snprintf(header.run, sizeof header.run, "%s", run);
    char *temporary = weft_allocate(context, strlen(path) + 8);
    if (temporary == NULL) {
        return WEFT_NO_MEMORY;
    }
    sprintf(temporary, "%s-new", path);
    file_sink sink = {fopen(temporary, "we"), XXH3_createState()};
    weft_status status = WEFT_OK;
    if (sink.file == NULL || sink.hash == NULL) {
        status = weft_fail_errno(context, errno, "%s: cannot create", temporary);
    } else {
        XXH3_64bits_reset(sink.hash);
        errno = 0;
        status = write_all(&sink, &header, past);
    }
    bool closed = sink.file == NULL || fclose(sink.file) == 0;
    XXH3_freeState(sink.hash);
    if (sink.file != NULL && (status != WEFT_OK || !closed)) {
        status = weft_fail_errno(context, errno, "writing %s failed", temporary);
        unlink(temporary);
    }
    if (status == WEFT_OK && rename(temporary, path) != 0) {
        status = weft_fail_errno(context, errno, "%s: cannot rename", temporary);
    }
    weft_release(context, temporary);
    return status;
}

static weft_status read_bytes(weft_context *context, const char *path, const char *run, const uint8_t *data,
                              size_t size, weft_past *past, uint64_t *version_out) {
    file_header header;
    uint64_t checksum;
    size_t body = size - sizeof checksum;
    memcpy(&header, data, sizeof header);
    memcpy(&checksum, data + body, sizeof checksum);
    header.run[sizeof header.run - 1] = '\0';
    if (memcmp(header.magic, MAGIC, sizeof header.magic) != 0 || strcmp(header.run, run) != 0 ||
        XXH3_64bits(data, body) != checksum) {
        return weft_fail(context, WEFT_MALFORMED, "%s is not a past of this run", path);
    }
    weft_reader reader = weft_reader_over(data + sizeof header, body - sizeof header);
    weft_status status = weft_past_read(context, past, &reader);
    if (status == WEFT_OK) {
        *version_out = header.version;
    }
    return status;
}

/* The past must be clear, and stays so on failure. */
static weft_status load_file(weft_context *context, const char *path, const char *run, weft_past *past,
                             uint64_t *version_out) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (file < 0) {
        return errno == ENOENT ? weft_fail(context, WEFT_NOT_FOUND, "%s: there is no such file", path)
                               : weft_fail_errno(context, errno, "%s: cannot open", path);
    }
    void *data = MAP_FAILED;
    size_t least = sizeof(file_header) + sizeof(uint64_t);
    if (fstat(file, &info) == 0 && (uint64_t)info.st_size >= least) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (data == MAP_FAILED) {
        return weft_fail(context, WEFT_MALFORMED, "%s cannot be read", path);
    }
    weft_status status = read_bytes(context, path, run, data, (size_t)info.st_size, past, version_out);
    munmap(data, (size_t)info.st_size);
    return status;
}

enum { PATH_MORE = 24 };

static char *past_path(weft_merger *merger, unsigned number) {
    size_t size = strlen(merger->path) + PATH_MORE;
    char *path = weft_allocate(merger->keeper_context, size);
    if (path != NULL) {
        snprintf(path, size, "%s.leap-%u", merger->path, number);
    }
    return path;
}

static bool read_past(weft_merger *merger, unsigned number, uint64_t *last) {
    merger_level *level = &merger->levels[number];
    char *path = past_path(merger, number);
    bool read = path != NULL && create_past(merger, level) == WEFT_OK &&
                load_file(merger->keeper_context, path, merger->run, level->past, last) == WEFT_OK;
    weft_release(merger->keeper_context, path);
    return read;
}

/* A level takes in what happens at multiples of the length below. Its file is good if it has not missed any
 * before this version; and where the level begins, none is needed. */
static void load_past(weft_merger *merger, unsigned number, uint64_t version) {
    merger_level *level = &merger->levels[number];
    if (merger->path == NULL || level->known) {
        return;
    }
    uint64_t step = weft_leap_length(number - 1);
    uint64_t last = 0;
    level->known = true;
    level->begun = read_past(merger, number, &last) && last + step >= version && last < version;
    if (!level->begun && (version - step) % weft_leap_length(number) == 0) {
        begin_past(merger, number);
    }
}

/* The memory goes too: the next version may be another process's. */
static void save_pasts(weft_merger *merger, uint64_t version) {
    for (unsigned i = 1; i <= WEFT_LEAP_LEVELS; i++) {
        merger_level *level = &merger->levels[i];
        if (level->changed) {
            char *path = past_path(merger, i);
            if (path != NULL && (!level->begun || save_file(merger->keeper_context, path, merger->run,
                                                            version, level->past) != WEFT_OK)) {
                unlink(path);
            }
            weft_release(merger->keeper_context, path);
        }
        weft_past_destroy(level->past);
        *level = (merger_level){0};
    }
}

/* ---- the keeper: patches ---- */

static void join_past(weft_merger *merger, unsigned number, uint64_t version) {
    merger_level *level = &merger->levels[number];
    const merger_level *below = &merger->levels[number - 1];
    load_past(merger, number, version);
    level->changed = true;
    if (level->begun &&
        (!below->begun || weft_past_join(merger->keeper_context, level->past, below->past) != WEFT_OK)) {
        end_past(level);
    }
}

/* The patch of a level, from the state that the leap begins at; NULL if there is none. That it is the state
 * which was published then is proven by its digest. */
static weft_spool *encode_leap(weft_merger *merger, unsigned number, const weft_record *record) {
    const merger_level *level = &merger->levels[number];
    weft_context *context = merger->keeper_context;
    weft_spool *spool;
    if (!level->begun || weft_spool_open(context, merger->task.directory, &spool) != WEFT_OK) {
        return NULL;
    }
    const weft_diff_options options = diff_options(merger, record);
    weft_sink sink = weft_spool_sink(spool);
    weft_diff_stats stats = {.size = sizeof stats};
    weft_status status = weft_past_diff(context, level->past, &options,
                                        weft_baseline_sums(merger->task.baseline), &sink, &stats);
    if (status == WEFT_OK && !weft_digest_equal(&stats.result, &record->digest)) {
        status = WEFT_DIGEST_MISMATCH;
    }
    status = weft_spool_finish(spool, status);
    if (status != WEFT_OK) {
        weft_spool_close(spool);
        return NULL;
    }
    return spool;
}

static size_t count_jobs(weft_merger *merger) {
    pthread_mutex_lock(&merger->lock);
    size_t count = merger->job_count;
    pthread_mutex_unlock(&merger->lock);
    return count;
}

static weft_status copy_records(weft_merger *merger, merger_job *job) {
    size_t first = job->level == 1 ? 0 : merger->block_count - 1;
    weft_status status = WEFT_OK;
    for (size_t i = first; i < merger->block_count && status == WEFT_OK; i++) {
        status =
            weft_record_copy(merger->keeper_context, &merger->block[i], &job->records[job->record_count]);
        job->record_count += status == WEFT_OK;
    }
    return status;
}

static void make_leap(weft_merger *merger, unsigned number) {
    const weft_record *record = &merger->block[merger->block_count - 1];
    merger_job *job = weft_allocate_zeroed(merger->keeper_context, 1, sizeof *job);
    if (job == NULL) {
        return;
    }
    job->level = number;
    job->last = record->version;
    if (copy_records(merger, job) != WEFT_OK) {
        drop_job(merger, job);
        return;
    }
    /* who cannot send as fast as leaps are made leaves patches out, and keeps the tree together */
    job->spool = count_jobs(merger) < QUEUE_MOST ? encode_leap(merger, number, record) : NULL;
    pthread_mutex_lock(&merger->lock);
    if (merger->last_job != NULL) {
        merger->last_job->next = job;
    } else {
        merger->first_job = job;
    }
    merger->last_job = job;
    merger->job_count++;
    pthread_cond_broadcast(&merger->changed);
    pthread_mutex_unlock(&merger->lock);
}

/* The end of a leap of level 1, and maybe of others that consist of such. */
static void end_block(weft_merger *merger, uint64_t version) {
    for (unsigned i = 1; i <= WEFT_LEAP_LEVELS && version % weft_leap_length(i) == 0; i++) {
        if (i > 1) {
            join_past(merger, i, version);
        }
        if (merger->block_whole && merger->block_count > 0) {
            make_leap(merger, i);
        }
    }
    unsigned ended = 1;
    while (ended < WEFT_LEAP_LEVELS && version % weft_leap_length(ended + 1) == 0) {
        ended++;
    }
    if (ended < WEFT_LEAP_LEVELS) {
        join_past(merger, ended + 1, version);
    }
    forget_block(merger);
    merger->block_whole = true;
    limit_memory(merger);
    begin_pasts(merger, version);
}

/* Takes over the record. */
static void keep_version(weft_merger *merger, weft_record *record) {
    uint64_t version = record->version;
    const weft_trail *trail = merger->task.baseline->trail;
    if (!merger->task.baseline->holds) {
        weft_record_close(record, merger->context);
        /* the copy could not follow: what is to come begins at multiples again */
        forget_block(merger);
        merger->block_whole = false;
        for (unsigned i = 1; i <= WEFT_LEAP_LEVELS; i++) {
            end_past(&merger->levels[i]);
        }
        return;
    }
    if (!record->patched || trail == NULL) {
        weft_record_close(record, merger->context);
        /* a version that came without a patch: no leap goes over it, and all begin anew */
        forget_block(merger);
        merger->block_whole = true;
        for (unsigned i = 1; i <= WEFT_LEAP_LEVELS; i++) {
            begin_past(merger, i);
        }
        return;
    }
    merger_level *lowest = &merger->levels[1];
    load_past(merger, 1, version);
    lowest->changed = true;
    if (lowest->begun && weft_past_add(merger->keeper_context, lowest->past, trail) != WEFT_OK) {
        end_past(lowest);
    }
    limit_memory(merger);
    if (merger->block_whole) {
        merger->block[merger->block_count++] = *record;
    } else {
        weft_record_close(record, merger->context);
    }
    if (version % WEFT_LEAP_WAYS == 0) {
        end_block(merger, version);
    }
}

static void *keeper_main(void *argument) {
    weft_merger *merger = argument;
    pthread_mutex_lock(&merger->lock);
    while (!atomic_load(&merger->stopping)) {
        if (!merger->has_note) {
            pthread_cond_wait(&merger->changed, &merger->lock);
            continue;
        }
        weft_record record = merger->noted;
        merger->noted = (weft_record){0};
        merger->has_note = false;
        merger->reading = true;
        pthread_mutex_unlock(&merger->lock);
        keep_version(merger, &record);
        weft_context_clear(merger->keeper_context);
        pthread_mutex_lock(&merger->lock);
        merger->reading = false;
        pthread_cond_broadcast(&merger->changed);
    }
    pthread_mutex_unlock(&merger->lock);
    return NULL;
}

/* ---- the sender ---- */

/* The leaps at the end of the ladder that one of this level, ending with them, consists of. */
static size_t count_parts(const weft_merger *merger, const merger_job *job) {
    const weft_leaps *ladder = &merger->ladder;
    uint64_t length = weft_leap_length(job->level);
    uint64_t least = job->last > length ? job->last - length : 0;
    size_t count = 0;
    while (count < ladder->count && ladder->items[ladder->count - 1 - count].first >= least) {
        count++;
    }
    return count > 0 && ladder->items[ladder->count - 1].last == job->last ? count : 0;
}

static uint64_t bytes_leapt(const merger_job *job, const weft_leap *parts, size_t part_count) {
    uint64_t bytes = 0;
    for (size_t i = 0; job->level == 1 && i < job->record_count; i++) {
        bytes += job->records[i].patch.bytes;
    }
    for (size_t i = 0; i < part_count; i++) {
        /* what a part without a patch costs is not known here: at least as much as one that was worth it */
        if (parts[i].bytes == 0) {
            return UINT64_MAX;
        }
        bytes += parts[i].bytes;
    }
    return bytes;
}

static weft_status fill_node(weft_merger *merger, merger_job *job, const weft_leap *parts,
                             size_t part_count, weft_leap_node *node) {
    memcpy(node->run, merger->run, sizeof node->run);
    node->last = job->last;
    /* the records in a node are what it takes to go that way; what they retire, or what leaps were made
     * with them, is the pages' affair */
    for (size_t i = 0; i < job->record_count; i++) {
        weft_texts_close(&job->records[i].retired, merger->context);
        weft_leaps_close(&job->records[i].leaps, merger->context);
        node->records[node->record_count++] = job->records[i];
    }
    job->record_count = 0;
    if (part_count == 0) {
        node->first = node->records[0].version - 1;
        node->base = node->records[0].base;
        return WEFT_OK;
    }
    weft_status status = WEFT_OK;
    node->first = parts[0].first;
    node->base = parts[0].base;
    for (size_t i = 0; i < part_count && status == WEFT_OK; i++) {
        status = weft_leaps_add(&node->parts, merger->sender_context, &parts[i]);
    }
    return status;
}

static bool leads_from(weft_merger *merger, const merger_job *job, const weft_digest *base) {
    weft_source source = weft_spool_source(job->spool);
    weft_patch *patch;
    if (weft_patch_open(merger->sender_context, &source, &patch) != WEFT_OK) {
        return false;
    }
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    weft_patch_close(patch);
    return weft_digest_equal(&info.base, base);
}

static weft_status write_leap(weft_merger *merger, merger_job *job, weft_leap *leap) {
    weft_context *context = merger->sender_context;
    char key[WEFT_KEY_SIZE];
    size_t part_count = job->level > 1 ? count_parts(merger, job) : 0;
    const weft_leap *parts =
        part_count > 0 ? &merger->ladder.items[merger->ladder.count - part_count] : NULL;
    uint64_t leapt = bytes_leapt(job, parts, part_count);
    weft_leap_node node;
    weft_leap_node_open(&node, context);
    node.format = merger->task.options->format;
    weft_status status = fill_node(merger, job, parts, part_count, &node);
    if (status == WEFT_OK && job->spool != NULL && leads_from(merger, job, &node.base) &&
        weft_spool_source(job->spool).size < leapt / WORTH_OF * WORTH_PARTS) {
        status = weft_spool_put(context, job->spool, merger->task.store, "patches", merger->task.epoch,
                                job->last, &node.patch);
        node.patched = status == WEFT_OK;
    }
    if (status == WEFT_OK && node.patched) {
        weft_sync_key_beside(node.patch.key, "leaps", key);
    } else if (status == WEFT_OK) {
        status = weft_sync_key(context, "leaps", merger->task.epoch, job->last, key);
    }
    if (status == WEFT_OK) {
        status = weft_leap_node_write(&node, merger->task.store, key, leap);
    }
    weft_leap_node_close(&node);
    return status;
}

/* A leap without a patch only serves to hold others together. */
static bool is_wanted(const weft_merger *merger, const merger_job *job) {
    if (job->level == 1) {
        return job->spool != NULL || merger->ladder.count > 0;
    }
    size_t parts = count_parts(merger, job);
    return parts >= 2 && parts <= WEFT_LEAP_WAYS;
}

static void send_job(weft_merger *merger, merger_job *job) {
    weft_leap leap;
    if (!is_wanted(merger, job) || write_leap(merger, job, &leap) != WEFT_OK ||
        weft_ladder_add(&merger->ladder, merger->sender_context, &leap) != WEFT_OK) {
        return;
    }
    pthread_mutex_lock(&merger->lock);
    weft_status ignored = weft_leaps_add(&merger->finished, merger->sender_context, &leap);
    (void)ignored;
    pthread_mutex_unlock(&merger->lock);
}

static void *sender_main(void *argument) {
    weft_merger *merger = argument;
    /* on Linux this is the thread alone: training goes first. The keeper is not held back like this, since
     * the next version waits for it. */
    setpriority(PRIO_PROCESS, 0, 10);
    pthread_mutex_lock(&merger->lock);
    while (!atomic_load(&merger->stopping)) {
        merger_job *job = merger->first_job;
        if (job == NULL) {
            pthread_cond_wait(&merger->changed, &merger->lock);
            continue;
        }
        merger->first_job = job->next;
        merger->job_count--;
        if (job->next == NULL) {
            merger->last_job = NULL;
        }
        merger->sending = true;
        pthread_mutex_unlock(&merger->lock);
        send_job(merger, job);
        drop_job(merger, job);
        weft_context_clear(merger->sender_context);
        pthread_mutex_lock(&merger->lock);
        merger->sending = false;
        pthread_cond_broadcast(&merger->changed);
    }
    pthread_mutex_unlock(&merger->lock);
    return NULL;
}

/* ---- the publisher's side ---- */

/* The records since the last multiple of four: the leap that is under way goes over them too. */
static weft_status take_block(weft_merger *merger, const weft_ledger *ledger) {
    size_t count = (size_t)(ledger->version % WEFT_LEAP_WAYS);
    merger->block_whole = count <= ledger->record_count;
    weft_status status = WEFT_OK;
    for (size_t i = count; merger->block_whole && i > 0 && status == WEFT_OK; i--) {
        const weft_record *record = &ledger->records[ledger->record_count - i];
        if (!record->patched) {
            forget_block(merger);
            continue;
        }
        status = weft_record_copy(merger->context, record, &merger->block[merger->block_count]);
        merger->block_count += status == WEFT_OK;
    }
    return status;
}

static weft_status open_merger(weft_merger *merger, const weft_ledger *ledger) {
    weft_context *context = merger->context;
    if (merger->path != NULL) {
        merger->keeper_context = context;
        merger->sender_context = context;
        weft_status copied = weft_leaps_copy(&merger->ladder, context, &ledger->ladder);
        return copied == WEFT_OK ? take_block(merger, ledger) : copied;
    }
    weft_status status =
        weft_context_derive(context, weft_thread_keep_on, &merger->stopping, &merger->keeper_context);
    if (status == WEFT_OK) {
        status =
            weft_context_derive(context, weft_thread_keep_on, &merger->stopping, &merger->sender_context);
    }
    if (status == WEFT_OK) {
        status = weft_leaps_copy(&merger->ladder, context, &ledger->ladder);
    }
    if (status == WEFT_OK) {
        status = take_block(merger, ledger);
    }
    if (status == WEFT_OK) {
        begin_pasts(merger, ledger->version);
        int error = pthread_create(&merger->keeper, NULL, keeper_main, merger);
        merger->keeper_runs = error == 0;
        if (error == 0) {
            error = pthread_create(&merger->sender, NULL, sender_main, merger);
            merger->sender_runs = error == 0;
        }
        status = error == 0
                     ? WEFT_OK
                     : weft_fail_errno(merger->context, error, "cannot start a thread for merged patches");
    }
    return status;
}

static uint64_t view_bytes(const weft_view *view) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < weft_view_count(view); i++) {
        bytes += weft_view_at(view, i)->bytes;
    }
    return bytes;
}

weft_status weft_merger_open(weft_context *context, const weft_merger_task *task, const weft_ledger *ledger,
                             weft_merger **merger_out) {
    weft_merger *merger = weft_allocate_zeroed(context, 1, sizeof *merger);
    if (merger == NULL) {
        return WEFT_NO_MEMORY;
    }
    merger->context = context;
    merger->task = *task;
    merger->highest = WEFT_LEAP_LEVELS;
    memcpy(merger->run, task->run, sizeof merger->run);
    merger->path = task->baseline->path;
    merger->memory =
        task->options->leap_bytes != 0 ? task->options->leap_bytes : 2 * view_bytes(task->view);
    atomic_init(&merger->stopping, false);
    pthread_mutex_init(&merger->lock, NULL);
    weft_condition_open(&merger->changed);
    weft_status status = open_merger(merger, ledger);
    if (status != WEFT_OK) {
        weft_merger_close(merger);
        return status;
    }
    *merger_out = merger;
    return WEFT_OK;
}

void weft_merger_close(weft_merger *merger) {
    if (merger == NULL) {
        return;
    }
    weft_context *context = merger->context;
    pthread_mutex_lock(&merger->lock);
    atomic_store(&merger->stopping, true);
    pthread_cond_broadcast(&merger->changed);
    pthread_mutex_unlock(&merger->lock);
    if (merger->keeper_runs) {
        pthread_join(merger->keeper, NULL);
    }
    if (merger->sender_runs) {
        pthread_join(merger->sender, NULL);
    }
    for (merger_job *job = merger->first_job; job != NULL;) {
        merger_job *next = job->next;
        drop_job(merger, job);
        job = next;
    }
    for (unsigned i = 1; i <= WEFT_LEAP_LEVELS; i++) {
        weft_past_destroy(merger->levels[i].past);
    }
    forget_block(merger);
    weft_record_close(&merger->noted, context);
    weft_leaps_close(&merger->ladder, context);
    weft_leaps_close(&merger->finished, context);
    if (merger->path == NULL) {
        weft_context_destroy(merger->keeper_context);
        weft_context_destroy(merger->sender_context);
    }
    pthread_cond_destroy(&merger->changed);
    pthread_mutex_destroy(&merger->lock);
    weft_release(context, merger);
}

/* Takes over the record. What goes wrong is nobody's failure. */
static void work_now(weft_merger *merger, weft_record *record) {
    uint64_t version = record->version;
    keep_version(merger, record);
    save_pasts(merger, version);
    while (merger->first_job != NULL) {
        merger_job *job = merger->first_job;
        merger->first_job = job->next;
        send_job(merger, job);
        drop_job(merger, job);
    }
    merger->last_job = NULL;
    merger->job_count = 0;
    weft_context_clear(merger->context);
}

void weft_merger_note(weft_merger *merger, const weft_record *record) {
    weft_record copy;
    if (weft_record_copy(merger->context, record, &copy) != WEFT_OK) {
        copy = (weft_record){.version = record->version};
        weft_context_clear(merger->context);
    }
    if (merger->path != NULL) {
        work_now(merger, &copy);
        return;
    }
    pthread_mutex_lock(&merger->lock);
    merger->noted = copy;
    merger->has_note = true;
    pthread_cond_broadcast(&merger->changed);
    pthread_mutex_unlock(&merger->lock);
}

void weft_merger_yield(weft_merger *merger) {
    pthread_mutex_lock(&merger->lock);
    while (merger->has_note || merger->reading) {
        pthread_cond_wait(&merger->changed, &merger->lock);
    }
    pthread_mutex_unlock(&merger->lock);
}

static bool at_rest(const weft_merger *merger) {
    return !merger->has_note && !merger->reading && merger->first_job == NULL && !merger->sending;
}

/* Leaves the lock taken. */
static void wait_for_rest(weft_merger *merger) {
    pthread_mutex_lock(&merger->lock);
    while (!at_rest(merger)) {
        weft_condition_wait(&merger->changed, &merger->lock, weft_clock_now() + 0.1);
        if (weft_progress_ask(merger->context) != WEFT_OK) {
            return;
        }
    }
}

weft_status weft_merger_collect(weft_merger *merger, bool wait, weft_ledger *ledger, bool *any_out) {
    *any_out = false;
    if (wait) {
        wait_for_rest(merger);
    } else {
        pthread_mutex_lock(&merger->lock);
    }
    weft_leaps *finished = &merger->finished;
    size_t room = weft_ledger_leap_room(ledger);
    size_t count = finished->count < room ? finished->count : room;
    size_t taken = 0;
    weft_status status = WEFT_OK;
    while (taken < count && status == WEFT_OK) {
        status = weft_ledger_add_leap(ledger, &finished->items[taken]);
        taken += status == WEFT_OK;
    }
    finished->count -= taken;
    if (taken > 0) {
        memmove(finished->items, finished->items + taken, finished->count * sizeof *finished->items);
    }
    pthread_mutex_unlock(&merger->lock);
    *any_out = taken > 0;
    return status;
}
