/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_flight.c: objects on their way. However many ask for an object, one flight fetches it: into a
 * draft, chunk by chunk, each checked before it counts as there. Readers get a chunk as soon as it does,
 * while others are still coming.
 *
 * An object is fetched in segments of up to SEGMENT_BYTES, one request each, so that an object that is not
 * large is one request, and of a large one the end, which a follower wants first, need not wait for all
 * before it. A segment that somebody waits for goes first. Of the threads, some are kept free of large
 * objects: a patch must not wait behind anchors.
 *
 * A file that lies in the cache from an earlier process becomes the draft of a flight: its chunks are
 * checked first, and only those that are wrong are fetched. So there is one way into the cache, and nothing
 * in it is believed twice.
 *
 * When a flight fails, who waits is told, and what it has is kept: the next who asks goes on from there.
 * Where the disk is full, chunks are held in memory for as long as somebody reads them.
 */
#include "relay.h"

#include "../base/clock.h"
#include "../base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SEGMENT_BYTES = 16 << 20,
    FLIGHT_LOADERS = 3,                    /* of one object at once */
    BULK_LOADERS = WEFT_RELAY_LOADERS - 3, /* of all objects that have several segments */
    DAMAGE_ATTEMPTS = 3,
    IDLE_FLIGHTS = 16, /* that are kept though nobody wants them */
};

/* Held in memory of all flights together, where the disk has no room. */
static const uint64_t HELD_MOST = (uint64_t)256 << 20;

/* A failure is told to all who ask within so long a time, instead of asking the store for each. */
static const double RETRY_SECONDS = 0.5;

const weft_relay_failure WEFT_RELAY_SHORTAGE = {
    WEFT_REMOTE_FAILED, "the relay has too many files open; raise the limit (ulimit -n)"};

enum { SEGMENT_ABSENT, SEGMENT_LOADING, SEGMENT_READY };

typedef struct job {
    weft_flight *flight;
    size_t segment;
    bool prepare;
    weft_old_head *head; /* or NULL */
    uint64_t gone, end;  /* files to remove; equal: none */
} job;

static size_t chunk_size(const weft_flight *flight, size_t index) {
    uint64_t left = flight->bytes - (uint64_t)index * flight->chunk_bytes;
    return (size_t)(left < flight->chunk_bytes ? left : flight->chunk_bytes);
}

/* ---- who waits ---- */

/* Resumes the readers whose chunk is there; all of them if it failed or is done. */
static void wake_readers(weft_flight *flight) {
    bool all = flight->failure.status != WEFT_OK || flight->done;
    for (weft_relay_reader **link = &flight->waiting; *link != NULL;) {
        weft_relay_reader *reader = *link;
        if (all || flight->ready[reader->chunk]) {
            *link = reader->next;
            reader->hooks.resume(reader->hooks.opaque);
        } else {
            link = &reader->next;
        }
    }
}

static void set_failure(weft_flight *flight, const weft_relay_failure *failure) {
    if (flight->failure.status == WEFT_OK) {
        flight->failure = *failure;
        flight->retry_at = weft_clock_now() + RETRY_SECONDS;
        flight->wanted = false;
    }
    wake_readers(flight);
}

/* The flight of a list is over: what still has no hashes will not get them from it. */
static void fail_owners(weft_relay *relay, const char *list, const weft_relay_failure *failure) {
    for (weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        if (flight->item->hashes == NULL && strcmp(flight->item->list, list) == 0) {
            set_failure(flight, failure);
        }
    }
}

static void fail_flight(weft_relay *relay, weft_flight *flight, const weft_relay_failure *failure) {
    set_failure(flight, failure);
    fail_owners(relay, flight->item->node.key, failure);
}

static weft_relay_failure failure_of(weft_context *context, weft_status status) {
    weft_relay_failure failure = {.status = status};
    snprintf(failure.text, sizeof failure.text, "%s", weft_context_error(context));
    return failure;
}

/* ---- life ---- */

static void free_flight(weft_relay *relay, weft_flight *flight) {
    weft_context *context = relay->context;
    if (flight->file >= 0) {
        close(flight->file);
    }
    size_t count = flight->held != NULL ? flight->count : 0;
    for (size_t i = 0; i < count; i++) {
        weft_release(context, flight->held[i]);
    }
    relay->held_bytes -= flight->held_bytes;
    weft_release(context, flight->held);
    weft_release(context, flight->ready);
    weft_release(context, flight->segments);
    weft_release(context, flight);
}

static void take_off_list(weft_relay *relay, weft_flight *flight) {
    weft_flight **link = &relay->flights;
    while (*link != flight) {
        link = &(*link)->next;
    }
    *link = flight->next;
    flight->item->flight = NULL;
    flight->item = NULL;
    weft_relay_cache_return(&relay->cache, flight->reserved);
    flight->reserved = 0;
}

/* Nobody reads it, and nobody loads it. */
static void drop_flight(weft_relay *relay, weft_flight *flight) {
    weft_relay_cache_discard(&relay->cache, flight->item->node.key);
    take_off_list(relay, flight);
    free_flight(relay, flight);
}

static bool is_idle(const weft_flight *flight) {
    return flight->readers == 0 && flight->loaders == 0 && !flight->preparing && !flight->wanted;
}

/* Drafts that nobody wants are kept for who may come, as long as there is room, and those that could not be
 * put into the cache not even that long. */
static void trim_flights(weft_relay *relay) {
    bool crowded = !weft_relay_cache_shrink(&relay->cache, 0);
    unsigned idle = 0;
    for (weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        idle += is_idle(flight);
    }
    for (weft_flight *flight = relay->flights, *next; flight != NULL; flight = next) {
        next = flight->next;
        if (is_idle(flight) && (flight->done || flight->held != NULL || crowded || idle > IDLE_FLIGHTS)) {
            drop_flight(relay, flight);
            crowded = !weft_relay_cache_shrink(&relay->cache, 0);
            idle--;
        }
    }
}

static weft_flight *make_flight(weft_relay *relay, weft_relay_item *item) {
    weft_context *context = relay->context;
    weft_flight *flight = weft_allocate_zeroed(context, 1, sizeof *flight);
    if (flight == NULL) {
        return NULL;
    }
    flight->file = -1;
    flight->item = item;
    flight->bytes = item->bytes;
    flight->chunk_bytes = item->chunk_bytes;
    flight->count = item->count;
    flight->segment_chunks = SEGMENT_BYTES / (size_t)item->chunk_bytes;
    flight->segment_chunks = flight->segment_chunks > 0 ? flight->segment_chunks : 1;
    flight->segment_count = (item->count + flight->segment_chunks - 1) / flight->segment_chunks;
    flight->ready = weft_allocate_zeroed(context, item->count, 1);
    flight->segments = weft_allocate_zeroed(context, flight->segment_count, 1);
    if (flight->ready == NULL || flight->segments == NULL) {
        free_flight(relay, flight);
        return NULL;
    }
    weft_flight **link = &relay->flights;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = flight;
    item->flight = flight;
    item->proven = false;
    return flight;
}

weft_flight *weft_flight_for(weft_relay *relay, weft_relay_item *item) {
    weft_flight *flight = item->flight != NULL ? item->flight : make_flight(relay, item);
    if (flight == NULL) {
        return NULL;
    }
    if (flight->failure.status != WEFT_OK && weft_clock_now() >= flight->retry_at) {
        flight->failure.status = WEFT_OK;
    }
    if (item->hashes == NULL && flight->failure.status == WEFT_OK) {
        /* an object whose hashes are an object of their own needs that one first */
        weft_relay_item *list = weft_relay_catalog_find(&relay->catalog, item->list);
        weft_flight *first = list != NULL ? weft_flight_want(relay, list) : NULL;
        weft_relay_failure failure = {WEFT_REMOTE_FAILED, "the list of its hashes could not be had"};
        if (first != NULL && first->failure.status != WEFT_OK) {
            failure = first->failure;
        }
        if (first == NULL || first->done || first->failure.status != WEFT_OK) {
            fail_flight(relay, flight, &failure);
        }
    }
    pthread_cond_signal(&relay->work);
    return flight;
}

weft_flight *weft_flight_want(weft_relay *relay, weft_relay_item *item) {
    weft_flight *flight = weft_flight_for(relay, item);
    if (flight != NULL && flight->failure.status == WEFT_OK) {
        flight->wanted = true;
    }
    return flight;
}

void weft_flight_leave(weft_relay *relay, weft_flight *flight) {
    flight->readers--;
    if (flight->item != NULL) {
        trim_flights(relay);
        pthread_cond_signal(&relay->work);
    } else if (flight->readers == 0 && flight->loaders == 0) {
        free_flight(relay, flight);
    }
}

void weft_flight_release_all(weft_relay *relay) {
    while (relay->flights != NULL) {
        drop_flight(relay, relay->flights);
    }
}

/* ---- the draft ---- */

static bool is_shortage(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

/* Without the lock. Where no draft can be made, memory must do; but where descriptors are short, which
 * passes, it would be the wrong thing to run out of next: false. */
static bool prepare_draft(weft_relay *relay, weft_flight *flight) {
    flight->file = weft_relay_cache_open_draft(&relay->cache, flight->item->node.key, &flight->adopted);
    if (flight->file < 0 && (is_shortage(errno) || flight->adopted)) {
        return false;
    }
    if (flight->file >= 0 && ftruncate(flight->file, (off_t)flight->bytes) != 0) {
        close(flight->file);
        flight->file = -1;
    }
    return true;
}

static bool write_chunk(const weft_flight *flight, uint64_t offset, const uint8_t *data, size_t size) {
    while (size > 0) {
        ssize_t put = pwrite(flight->file, data, size, (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        data += put;
        offset += (uint64_t)put;
        size -= (size_t)put;
    }
    return true;
}

static bool read_chunk(const weft_flight *flight, uint64_t offset, uint8_t *data, size_t size) {
    while (size > 0) {
        ssize_t got = pread(flight->file, data, size, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        data += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return true;
}

/* ---- chunks ---- */

/* Under the lock. */
static weft_status hold_chunk(weft_relay *relay, weft_context *context, weft_flight *flight, size_t index,
                              const uint8_t *data) {
    size_t size = chunk_size(flight, index);
    relay->stats.disk_full = true;
    if (relay->held_bytes + size > HELD_MOST) {
        return weft_fail(context, WEFT_NO_SPACE,
                         "the relay's disk is full, and so is the memory that it uses instead");
    }
    if (flight->held == NULL) {
        flight->held = weft_allocate_zeroed(relay->context, flight->count, sizeof(uint8_t *));
    }
    uint8_t *copy = flight->held != NULL ? weft_allocate(relay->context, size) : NULL;
    if (copy == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for a chunk of %s",
                         flight->item->node.key);
    }
    memcpy(copy, data, size);
    flight->held[index] = copy;
    flight->held_bytes += size;
    relay->held_bytes += size;
    return WEFT_OK;
}

/* An object that tells of others is of one chunk. It does so before anybody gets it: who has read it may
 * ask for the others at once. One that makes no sense is handed on all the same; but where there is no
 * memory, which passes, the flight fails and is tried again. */
static weft_status learn_names(weft_relay *relay, weft_context *context, weft_relay_item *item,
                               const uint8_t *data) {
    weft_status status = item->teach(&relay->catalog, context, item, data, (size_t)item->bytes);
    pthread_mutex_lock(&relay->mutex);
    item->taught = status == WEFT_OK;
    item->hopeless = status != WEFT_OK && status != WEFT_NO_MEMORY;
    if (status != WEFT_OK) {
        snprintf(relay->error, sizeof relay->error, "%s", weft_context_error(context));
    }
    pthread_mutex_unlock(&relay->mutex);
    return status == WEFT_NO_MEMORY ? status : WEFT_OK;
}

/* A chunk whose hash is right: keeps it and lets readers have it. `written`: it is in the draft already. */
static weft_status keep_chunk(weft_relay *relay, weft_context *context, weft_flight *flight, size_t index,
                              const uint8_t *data, bool written) {
    size_t size = chunk_size(flight, index);
    uint64_t offset = (uint64_t)index * flight->chunk_bytes;
    weft_status status =
        flight->item->teach != NULL ? learn_names(relay, context, flight->item, data) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    if (!written && flight->file >= 0) {
        written = write_chunk(flight, offset, data, size);
    }
    pthread_mutex_lock(&relay->mutex);
    if (written) {
        weft_relay_cache_reserve(&relay->cache, size);
        flight->reserved += size;
        (void)weft_relay_cache_shrink(&relay->cache, 0);
    } else {
        status = hold_chunk(relay, context, flight, index, data);
    }
    if (status == WEFT_OK) {
        flight->ready[index] = 1;
        wake_readers(flight);
    }
    pthread_mutex_unlock(&relay->mutex);
    return status;
}

static bool is_right(weft_context *context, const weft_flight *flight, size_t index, const uint8_t *data) {
    weft_hash hash;
    return weft_hash_compute(context, data, chunk_size(flight, index), &hash) == WEFT_OK &&
           weft_hash_equal(&hash, &flight->item->hashes[index]);
}

static void count_damage(weft_relay *relay, uint64_t *counter) {
    pthread_mutex_lock(&relay->mutex);
    ++*counter;
    pthread_mutex_unlock(&relay->mutex);
}

/* ---- segments ---- */

/* Only the thread that loads a segment sets its chunks ready, and so reads that without the lock. */
typedef struct intake {
    weft_relay *relay;
    weft_context *context;
    weft_flight *flight;
    uint8_t *buffer;
    size_t first, end; /* chunks that are being fetched */
    size_t next;       /* the first that was not looked at */
    weft_status status;
} intake;

static void take_arrived(void *opaque, uint64_t received) {
    intake *intake = opaque;
    weft_flight *flight = intake->flight;
    while (intake->next < intake->end && intake->status == WEFT_OK) {
        size_t index = intake->next;
        uint64_t start = (uint64_t)(index - intake->first) * flight->chunk_bytes;
        if (start + chunk_size(flight, index) > received) {
            return;
        }
        intake->next++;
        if (flight->ready[index]) {
            continue;
        }
        if (is_right(intake->context, flight, index, intake->buffer + start)) {
            intake->status =
                keep_chunk(intake->relay, intake->context, flight, index, intake->buffer + start, false);
        } else {
            count_damage(intake->relay, &intake->relay->stats.damaged);
        }
    }
}

static weft_status fetch_chunks(intake *intake) {
    const weft_flight *flight = intake->flight;
    uint64_t start = (uint64_t)intake->first * flight->chunk_bytes;
    uint64_t end = (uint64_t)(intake->end - 1) * flight->chunk_bytes + chunk_size(flight, intake->end - 1);
    weft_store_get_request request = {
        .size = sizeof request,
        .key = flight->item->node.key,
        .offset = start,
        .length = end - start,
        .buffer = intake->buffer,
        .arrived = take_arrived,
        .opaque = intake,
    };
    weft_store_get_result result = {.size = sizeof result};
    intake->next = intake->first;
    weft_status status = weft_store_get(intake->context, intake->relay->upstream, &request, &result);
    return status == WEFT_OK ? intake->status : status;
}

/* Looks at what the cache has of the segment. */
static weft_status adopt_chunks(intake *intake, size_t first, size_t end) {
    weft_flight *flight = intake->flight;
    weft_status status = WEFT_OK;
    for (size_t i = first; i < end && status == WEFT_OK; i++) {
        uint64_t offset = (uint64_t)i * flight->chunk_bytes;
        if (!flight->ready[i] && read_chunk(flight, offset, intake->buffer, chunk_size(flight, i)) &&
            is_right(intake->context, flight, i, intake->buffer)) {
            status = keep_chunk(intake->relay, intake->context, flight, i, intake->buffer, true);
        } else if (!flight->ready[i]) {
            count_damage(intake->relay, &intake->relay->stats.damaged_cached);
        }
    }
    return status;
}

/* The chunks from the first to the last that are missing. False if none is. */
static bool find_missing(intake *intake, size_t first, size_t end) {
    const uint8_t *ready = intake->flight->ready;
    while (first < end && ready[first]) {
        first++;
    }
    while (end > first && ready[end - 1]) {
        end--;
    }
    intake->first = first;
    intake->end = end;
    return first < end;
}

static weft_status load_into(intake *intake, size_t first, size_t end) {
    weft_flight *flight = intake->flight;
    weft_status status = flight->adopted ? adopt_chunks(intake, first, end) : WEFT_OK;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_OK && find_missing(intake, first, end); i++) {
        pthread_mutex_lock(&intake->relay->mutex);
        intake->relay->stats.fetches += !flight->fetched;
        flight->fetched = true;
        pthread_mutex_unlock(&intake->relay->mutex);
        status = fetch_chunks(intake);
    }
    if (status == WEFT_OK && find_missing(intake, first, end)) {
        status = weft_fail(intake->context, WEFT_CHECKSUM_MISMATCH,
                           "%s/%s is damaged: bytes from %llu on are not what the history names",
                           weft_store_url(intake->relay->upstream), flight->item->node.key,
                           (unsigned long long)intake->first * flight->chunk_bytes);
    }
    return status;
}

/* ---- when all is there ---- */

static weft_relay_print print_of(const struct stat *info) {
    return (weft_relay_print){
        .device = info->st_dev,
        .inode = info->st_ino,
        .bytes = (uint64_t)info->st_size,
        .modified = info->st_mtim,
        .changed = info->st_ctim,
    };
}

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool same_print(const weft_relay_print *a, const weft_relay_print *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           same_time(a->modified, b->modified) && same_time(a->changed, b->changed);
}

int weft_flight_open_proven(weft_relay *relay, weft_relay_item *item) {
    char path[PATH_MAX];
    struct stat info;
    bool teaches = item->teach != NULL && !item->hopeless;
    if (!item->proven || (teaches && !weft_relay_catalog_taught(&relay->catalog, item))) {
        return WEFT_FILE_OTHER;
    }
    weft_relay_cache_path(&relay->cache, item->node.key, path);
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && is_shortage(errno)) {
        return WEFT_FILE_SHORTAGE;
    }
    if (file >= 0 && fstat(file, &info) == 0) {
        weft_relay_print print = print_of(&info);
        if (S_ISREG(info.st_mode) && same_print(&print, &item->print)) {
            weft_relay_cache_touch(&relay->cache, item->node.key);
            return file;
        }
    }
    item->proven = false;
    if (file >= 0) {
        close(file);
    }
    return WEFT_FILE_OTHER;
}

/* The file gets the name under which others find it after its last check. Who writes to it before the print
 * is taken changes its time of modification, which a change of name does not: such a file is not `proven`,
 * and is checked again before anybody gets it. */
static bool place_draft(weft_relay *relay, weft_context *context, const weft_flight *flight,
                        weft_relay_print *print, bool *proven) {
    struct stat draft;
    struct stat placed;
    if (flight->held != NULL || flight->file < 0 || fstat(flight->file, &draft) != 0 ||
        weft_relay_cache_place(&relay->cache, context, flight->item->node.key) != WEFT_OK ||
        fstat(flight->file, &placed) != 0) {
        return false;
    }
    *print = print_of(&placed);
    *proven = same_time(draft.st_mtim, placed.st_mtim) && draft.st_size == placed.st_size;
    return true;
}

/* Under the lock, with the flight's last loader about to leave. */
static void settle_flight(weft_relay *relay, weft_flight *flight, bool placed,
                          const weft_relay_print *print, bool proven) {
    weft_relay_item *item = flight->item;
    flight->done = true;
    flight->wanted = false;
    wake_readers(flight);
    if (!placed) {
        relay->stats.disk_full = true;
        return;
    }
    relay->stats.disk_full = false;
    take_off_list(relay, flight);
    item->proven = proven;
    item->print = *print;
    weft_relay_cache_add(&relay->cache, item->node.key, item->bytes);
    (void)weft_relay_cache_shrink(&relay->cache, 0);
}

/* The thread that has loaded the last segment. */
static void finish_flight(weft_relay *relay, weft_context *context, weft_flight *flight) {
    static const weft_relay_failure other = {WEFT_REMOTE_FAILED, "the list of its hashes is another's"};
    const weft_relay_item *item = flight->item;
    weft_relay_print print = {0};
    bool proven = false;
    bool placed = place_draft(relay, context, flight, &print, &proven);
    pthread_mutex_lock(&relay->mutex);
    settle_flight(relay, flight, placed, &print, proven);
    if (item->teach != NULL) {
        fail_owners(relay, item->node.key, &other);
        weft_lookup_walk(relay);
    }
    pthread_mutex_unlock(&relay->mutex);
}

/* ---- loaders ---- */

static bool is_bulk(const weft_flight *flight) {
    return flight->segment_count > 1;
}

static bool can_load(const weft_relay *relay, const weft_flight *flight) {
    return flight->failure.status == WEFT_OK && !flight->done && flight->prepared &&
           flight->item->hashes != NULL && (flight->readers > 0 || flight->wanted) &&
           !(is_bulk(flight) && relay->bulk_loaders >= BULK_LOADERS);
}

static bool choose_awaited(weft_relay *relay, job *job) {
    for (weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        for (const weft_relay_reader *reader = can_load(relay, flight) ? flight->waiting : NULL;
             reader != NULL; reader = reader->next) {
            job->segment = (size_t)reader->chunk / flight->segment_chunks;
            if (flight->segments[job->segment] == SEGMENT_ABSENT) {
                job->flight = flight;
                return true;
            }
        }
    }
    return false;
}

static bool choose_next(weft_relay *relay, job *job) {
    for (weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        bool busy = flight->loaders >= FLIGHT_LOADERS;
        for (size_t i = 0; !busy && can_load(relay, flight) && i < flight->segment_count; i++) {
            if (flight->segments[i] == SEGMENT_ABSENT) {
                job->flight = flight;
                job->segment = i;
                return true;
            }
        }
    }
    return false;
}

static bool choose_prepare(weft_relay *relay, job *job) {
    for (weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        if (!flight->prepared && !flight->preparing && flight->failure.status == WEFT_OK) {
            job->flight = flight;
            job->prepare = true;
            return true;
        }
    }
    return false;
}

static bool choose_job(weft_relay *relay, job *job) {
    *job = (struct job){0};
    /* first, or a relay that is always busy would need more room than it was given */
    if (weft_relay_cache_take_gone(&relay->cache, &job->gone, &job->end)) {
        return true;
    }
    job->head = weft_lookup_choose(relay);
    if (job->head != NULL || choose_prepare(relay, job)) {
        return true;
    }
    return choose_awaited(relay, job) || choose_next(relay, job);
}

/* With the lock held, which is given up meanwhile. */
static void run_prepare(weft_relay *relay, weft_flight *flight) {
    /* under the lock: a file of the cache is taken out of it */
    flight->preparing = true;
    flight->adopted = weft_relay_cache_has(&relay->cache, flight->item->node.key);
    if (flight->adopted) {
        weft_relay_cache_forget(&relay->cache, flight->item->node.key);
    }
    bool adopted = flight->adopted;
    pthread_mutex_unlock(&relay->mutex);
    bool prepared = prepare_draft(relay, flight);
    pthread_mutex_lock(&relay->mutex);
    flight->preparing = false;
    flight->prepared = prepared;
    if (!prepared) {
        fail_flight(relay, flight, &WEFT_RELAY_SHORTAGE);
        if (adopted) {
            weft_relay_cache_add(&relay->cache, flight->item->node.key, flight->bytes);
        }
        weft_lookup_walk(relay);
        trim_flights(relay);
    }
}

static void run_load(weft_relay *relay, weft_context *context, weft_flight *flight, size_t segment) {
    unsigned bulk = is_bulk(flight);
    flight->segments[segment] = SEGMENT_LOADING;
    flight->loaders++;
    relay->bulk_loaders += bulk;
    pthread_mutex_unlock(&relay->mutex);
    size_t first = segment * flight->segment_chunks;
    size_t end = first + flight->segment_chunks;
    end = end < flight->count ? end : flight->count;
    uint64_t bytes = (uint64_t)(end - first - 1) * flight->chunk_bytes + chunk_size(flight, end - 1);
    intake intake = {.relay = relay, .context = context, .flight = flight};
    intake.buffer = weft_allocate(context, (size_t)bytes);
    weft_status status = intake.buffer != NULL ? load_into(&intake, first, end) : WEFT_NO_MEMORY;
    weft_release(context, intake.buffer);
    weft_relay_failure failure = failure_of(context, status);
    pthread_mutex_lock(&relay->mutex);
    relay->bulk_loaders -= bulk;
    flight->segments[segment] = status == WEFT_OK ? SEGMENT_READY : SEGMENT_ABSENT;
    flight->segments_ready += status == WEFT_OK;
    if (status != WEFT_OK) {
        fail_flight(relay, flight, &failure);
    }
    bool last = flight->segments_ready == flight->segment_count;
    if (last) {
        pthread_mutex_unlock(&relay->mutex);
        finish_flight(relay, context, flight);
        pthread_mutex_lock(&relay->mutex);
    }
    flight->loaders--;
    if (flight->item == NULL && flight->readers == 0) {
        free_flight(relay, flight);
    }
    if (status != WEFT_OK) {
        weft_lookup_walk(relay);
    }
    trim_flights(relay);
}

static bool is_more(const weft_relay *relay, const job *job) {
    return job->flight == NULL || is_bulk(job->flight) || relay->flights->next != NULL;
}

/* Work that appears wakes one thread; who finds some wakes the next one if there may be more; and who has
 * finished looks for itself. */
static void *loader_main(void *argument) {
    weft_relay_loader *loader = argument;
    weft_relay *relay = loader->relay;
    job job;
    pthread_mutex_lock(&relay->mutex);
    while (!atomic_load(&relay->stopping)) {
        bool chosen = choose_job(relay, &job);
        if (chosen && is_more(relay, &job)) {
            pthread_cond_signal(&relay->work);
        }
        if (!chosen) {
            pthread_cond_wait(&relay->work, &relay->mutex);
        } else if (job.head != NULL) {
            pthread_mutex_unlock(&relay->mutex);
            weft_lookup_fetch(relay, loader->context, job.head);
            pthread_mutex_lock(&relay->mutex);
        } else if (job.flight == NULL) {
            pthread_mutex_unlock(&relay->mutex);
            weft_relay_cache_sweep(&relay->cache, job.gone, job.end);
            pthread_mutex_lock(&relay->mutex);
        } else if (job.prepare) {
            run_prepare(relay, job.flight);
        } else {
            run_load(relay, loader->context, job.flight, job.segment);
        }
    }
    pthread_mutex_unlock(&relay->mutex);
    return NULL;
}

weft_status weft_flight_start(weft_relay *relay) {
    for (; relay->loader_count < WEFT_RELAY_LOADERS; relay->loader_count++) {
        weft_relay_loader *loader = &relay->loaders[relay->loader_count];
        loader->relay = relay;
        weft_status status =
            weft_context_derive(relay->context, weft_thread_keep_on, &relay->stopping, &loader->context);
        if (status != WEFT_OK) {
            return status;
        }
        int error = pthread_create(&loader->thread, NULL, loader_main, loader);
        if (error != 0) {
            weft_context_destroy(loader->context);
            return weft_fail_errno(relay->context, error, "cannot start a thread of the relay");
        }
    }
    return WEFT_OK;
}

void weft_flight_stop(weft_relay *relay) {
    const weft_relay_failure failure = {WEFT_CANCELLED, "the relay is ending"};
    for (unsigned i = 0; i < relay->loader_count; i++) {
        pthread_join(relay->loaders[i].thread, NULL);
        weft_context_destroy(relay->loaders[i].context);
    }
    relay->loader_count = 0;
    pthread_mutex_lock(&relay->mutex);
    relay->over = true;
    for (weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        fail_flight(relay, flight, &failure);
        flight->retry_at = HUGE_VAL;
    }
    weft_lookup_dismiss(relay);
    pthread_mutex_unlock(&relay->mutex);
}
