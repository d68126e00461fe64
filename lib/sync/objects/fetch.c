/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch.c: chunks on their way down.
 *
 * One lock guards the table of chunks. Loaders take the chunk that somebody waits for, else the next one in
 * order, as long as there is room; they download and hash without the lock.
 *
 * The relay's flights (relay_flight.c) fetch chunks too, and are not these: a flight has many readers, none
 * of which may block, keeps what it has in a file that outlives the process, and asks for many chunks by
 * one request. Here one reader waits, in memory that is given back behind it.
 */
#include "fetch.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "pieces.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { LOADERS = 4, DAMAGE_ATTEMPTS = 3 };

typedef enum chunk_state {
    CHUNK_ABSENT,
    CHUNK_LOADING,
    CHUNK_READY,
} chunk_state;

typedef struct chunk {
    const weft_object *piece;
    uint64_t offset; /* in its piece */
    uint64_t start;  /* in the whole */
    size_t size;
    chunk_state state;
    bool awaited; /* a reader waits for it */
    uint8_t *data;
    uint64_t read_bytes; /* handed out so far */
} chunk;

typedef struct loader {
    weft_fetch *fetch;
    weft_context *context;
    pthread_t thread;
} loader;

struct weft_fetch {
    weft_context *context;
    weft_store *store;
    weft_pieces pieces;
    uint64_t bytes;    /* of all pieces */
    weft_hash *hashes; /* of all chunks */
    chunk *chunks;     /* piece by piece */
    size_t count;
    uint64_t hold_bytes;
    bool ahead;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t next;         /* no chunk before it is fetched ahead any more */
    uint64_t held_bytes; /* of chunks that are loading or ready */
    atomic_bool stopping;
    weft_failure failure; /* the first; sticks */
    weft_fetch_stats stats;

    loader loaders[LOADERS];
    unsigned loader_count;
};

/* The chunk that holds an offset. */
static size_t find_chunk(const weft_fetch *fetch, uint64_t offset) {
    size_t low = 0;
    size_t high = fetch->count;
    while (high - low > 1) { /* chunks[low].start <= offset < chunks[high].start */
        size_t middle = low + (high - low) / 2;
        if (fetch->chunks[middle].start <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- loading ---- */

static weft_status load_chunk_once(weft_fetch *fetch, weft_context *context, size_t index, uint8_t *data) {
    const chunk *chunk = &fetch->chunks[index];
    size_t size = chunk->size;
    weft_store_get_request request = {
        .size = sizeof request,
        .key = chunk->piece->key,
        .offset = chunk->offset,
        .length = size,
        .buffer = data,
    };
    weft_store_get_result result = {.size = sizeof result};
    weft_hash hash = {{0}};
    weft_status status = weft_store_get(context, fetch->store, &request, &result);
    if (status == WEFT_OK && result.received == size) {
        status = weft_hash_compute(context, data, size, &hash);
    }
    if (status == WEFT_OK && !weft_hash_equal(&hash, &fetch->hashes[index])) {
        status = weft_fail(
            context, WEFT_CHECKSUM_MISMATCH,
            "%s/%s is damaged: bytes from %llu on are not what the history names, however often fetched",
            weft_store_url(fetch->store), chunk->piece->key, (unsigned long long)request.offset);
    }
    return status;
}

static weft_status load_chunk(weft_fetch *fetch, weft_context *context, size_t index, uint8_t *data) {
    weft_status status = WEFT_CHECKSUM_MISMATCH;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = load_chunk_once(fetch, context, index, data);
        pthread_mutex_lock(&fetch->mutex);
        fetch->stats.bytes += fetch->chunks[index].size;
        fetch->stats.damaged += status == WEFT_CHECKSUM_MISMATCH;
        pthread_mutex_unlock(&fetch->mutex);
    }
    return status;
}

/* With the lock held. A chunk that somebody waits for is taken even if there is no room. */
static bool choose_chunk(weft_fetch *fetch, size_t *index_out) {
    for (size_t i = 0; i < fetch->count; i++) {
        if (fetch->chunks[i].state == CHUNK_ABSENT && fetch->chunks[i].awaited) {
            *index_out = i;
            return true;
        }
    }
    while (fetch->next < fetch->count && fetch->chunks[fetch->next].state != CHUNK_ABSENT) {
        fetch->next++;
    }
    if (!fetch->ahead || fetch->next >= fetch->count ||
        fetch->held_bytes + fetch->chunks[fetch->next].size > fetch->hold_bytes) {
        return false;
    }
    *index_out = fetch->next++;
    return true;
}

/* With the lock held, which is given up while the chunk comes. */
static void take_chunk(weft_fetch *fetch, weft_context *context, size_t index) {
    chunk *chunk = &fetch->chunks[index];
    size_t size = chunk->size;
    chunk->state = CHUNK_LOADING;
    fetch->held_bytes += size;
    pthread_mutex_unlock(&fetch->mutex);
    uint8_t *data = weft_allocate(context, size);
    weft_status status = data != NULL ? load_chunk(fetch, context, index, data) : WEFT_NO_MEMORY;
    pthread_mutex_lock(&fetch->mutex);
    if (status == WEFT_OK) {
        chunk->state = CHUNK_READY;
        chunk->data = data;
        chunk->read_bytes = 0;
        chunk->awaited = false;
        fetch->stats.last = weft_clock_now();
    } else {
        weft_release(context, data);
        chunk->state = CHUNK_ABSENT;
        fetch->held_bytes -= size;
        if (fetch->failure.status == WEFT_OK) {
            fetch->failure = weft_failure_keep(context, status);
        }
    }
    pthread_cond_broadcast(&fetch->changed);
}

static void *loader_main(void *argument) {
    loader *loader = argument;
    weft_fetch *fetch = loader->fetch;
    pthread_mutex_lock(&fetch->mutex);
    while (!fetch->stopping && fetch->failure.status == WEFT_OK) {
        size_t index;
        if (choose_chunk(fetch, &index)) {
            take_chunk(fetch, loader->context, index);
        } else {
            pthread_cond_wait(&fetch->changed, &fetch->mutex);
        }
    }
    pthread_mutex_unlock(&fetch->mutex);
    return NULL;
}

/* ---- reading ---- */

/* With the lock held. The reader's own context is not used to load: it may belong to a loop. */
static weft_status await_chunk(weft_fetch *fetch, size_t index) {
    chunk *chunk = &fetch->chunks[index];
    while (chunk->state != CHUNK_READY && fetch->failure.status == WEFT_OK && !fetch->stopping) {
        if (!chunk->awaited && chunk->state == CHUNK_ABSENT) {
            chunk->awaited = true;
            pthread_cond_broadcast(&fetch->changed);
        }
        weft_condition_wait(&fetch->changed, &fetch->mutex, weft_clock_now() + 0.1);
        if (weft_progress_ask(fetch->context) != WEFT_OK) {
            return WEFT_CANCELLED;
        }
    }
    return chunk->state == CHUNK_READY ? WEFT_OK : fetch->failure.status;
}

/* A chunk that was read through makes room for others, unless there is room for all. */
static void settle_chunk(weft_fetch *fetch, size_t index) {
    chunk *chunk = &fetch->chunks[index];
    if (fetch->bytes <= fetch->hold_bytes || chunk->read_bytes < chunk->size) {
        return;
    }
    weft_release(fetch->context, chunk->data);
    chunk->data = NULL;
    chunk->state = CHUNK_ABSENT;
    fetch->held_bytes -= chunk->size;
    pthread_cond_broadcast(&fetch->changed);
}

static weft_status read_range(void *opaque, uint64_t offset, void *data, size_t size) {
    weft_fetch *fetch = opaque;
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&fetch->mutex);
    for (size_t done = 0; done < size && status == WEFT_OK;) {
        size_t index = find_chunk(fetch, offset + done);
        chunk *chunk = &fetch->chunks[index];
        size_t start = (size_t)(offset + done - chunk->start);
        status = await_chunk(fetch, index);
        if (status == WEFT_OK) {
            size_t room = chunk->size - start;
            size_t part = size - done < room ? size - done : room;
            memcpy((uint8_t *)data + done, chunk->data + start, part);
            chunk->read_bytes += part;
            done += part;
            settle_chunk(fetch, index);
        }
    }
    pthread_mutex_unlock(&fetch->mutex);
    return status;
}

weft_source weft_fetch_source(weft_fetch *fetch) {
    weft_source source = {.size = fetch->bytes, .read = read_range, .opaque = fetch};
    if (fetch->count == 1 && fetch->chunks[0].state == CHUNK_READY) {
        source.memory = fetch->chunks[0].data;
    }
    return source;
}

/* ---- life ---- */

/* Lists of hashes are short beside what they describe; what all of them take is bounded like a header. */
static weft_status count_chunks(weft_fetch *fetch) {
    weft_context *context = fetch->context;
    uint64_t most = weft_context_limits(context)->header_bytes / sizeof *fetch->hashes;
    uint64_t count = 0;
    for (size_t i = 0; i < fetch->pieces.count; i++) {
        uint64_t chunks = weft_object_chunks(&fetch->pieces.items[i]);
        if (chunks > most - count) {
            return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                             "%s/%s has more chunks than the limit of a header allows to list",
                             weft_store_url(fetch->store), fetch->pieces.items[i].key);
        }
        count += chunks;
    }
    fetch->count = (size_t)count;
    return WEFT_OK;
}

static weft_status read_hashes(weft_fetch *fetch, const weft_object *piece, weft_hash *hashes) {
    size_t bytes = (size_t)weft_object_chunks(piece) * sizeof *hashes;
    if (!piece->listed) {
        memcpy(hashes, piece->chunks, bytes);
        return WEFT_OK;
    }
    uint8_t *data;
    weft_status status = weft_blob_fetch(fetch->context, fetch->store, &piece->list, bytes, &data);
    if (status == WEFT_OK) {
        memcpy(hashes, data, bytes);
        fetch->stats.bytes += bytes;
        weft_release(fetch->context, data);
    }
    return status;
}

/* Where each chunk lies, and its hash. */
static weft_status list_chunks(weft_fetch *fetch) {
    weft_context *context = fetch->context;
    weft_status status = count_chunks(fetch);
    if (status != WEFT_OK) {
        return status;
    }
    fetch->hashes = weft_allocate_array(context, fetch->count, sizeof *fetch->hashes);
    fetch->chunks = weft_allocate_zeroed(context, fetch->count, sizeof *fetch->chunks);
    if (fetch->hashes == NULL || fetch->chunks == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t next = 0;
    for (size_t i = 0; i < fetch->pieces.count && status == WEFT_OK; i++) {
        const weft_object *piece = &fetch->pieces.items[i];
        status = read_hashes(fetch, piece, fetch->hashes + next);
        for (uint64_t done = 0; done < piece->bytes; done += piece->chunk_bytes) {
            uint64_t left = piece->bytes - done;
            fetch->chunks[next++] = (chunk){
                .piece = piece,
                .offset = done,
                .start = fetch->bytes + done,
                .size = (size_t)(left < piece->chunk_bytes ? left : piece->chunk_bytes),
            };
        }
        fetch->bytes += piece->bytes;
    }
    return status;
}

static weft_status start_loaders(weft_fetch *fetch) {
    unsigned wanted = fetch->count < LOADERS ? (unsigned)fetch->count : LOADERS;
    for (; fetch->loader_count < wanted; fetch->loader_count++) {
        loader *loader = &fetch->loaders[fetch->loader_count];
        loader->fetch = fetch;
        weft_status status =
            weft_context_derive(fetch->context, weft_thread_keep_on, &fetch->stopping, &loader->context);
        if (status != WEFT_OK) {
            return status;
        }
        int error = pthread_create(&loader->thread, NULL, loader_main, loader);
        if (error != 0) {
            weft_context_destroy(loader->context);
            return weft_fail_errno(fetch->context, error, "cannot start a thread for a download");
        }
    }
    return WEFT_OK;
}

/* An object of one chunk is fetched by the caller: a thread would only cost time. */
static weft_status take_whole(weft_fetch *fetch) {
    pthread_mutex_lock(&fetch->mutex);
    take_chunk(fetch, fetch->context, 0);
    pthread_mutex_unlock(&fetch->mutex);
    return fetch->failure.status;
}

weft_status weft_fetch_open(weft_context *context, weft_store *store, const weft_object *object,
                            uint64_t hold_bytes, bool ahead, weft_fetch **fetch_out) {
    weft_fetch *fetch = weft_allocate_zeroed(context, 1, sizeof *fetch);
    if (fetch == NULL) {
        return WEFT_NO_MEMORY;
    }
    fetch->context = context;
    fetch->store = store;
    fetch->hold_bytes = hold_bytes;
    fetch->ahead = ahead;
    weft_pieces_open(&fetch->pieces, context);
    pthread_mutex_init(&fetch->mutex, NULL);
    weft_condition_open(&fetch->changed);
    weft_status status = weft_pieces_fetch(&fetch->pieces, store, object);
    if (status == WEFT_OK && object->pieced) {
        fetch->stats.bytes += object->list.bytes;
    }
    if (status == WEFT_OK) {
        status = list_chunks(fetch);
    }
    if (status == WEFT_OK) {
        /* a patch is opened from both of its ends */
        fetch->chunks[0].awaited = true;
        fetch->chunks[fetch->count - 1].awaited = true;
        status = fetch->count == 1 ? take_whole(fetch) : start_loaders(fetch);
    }
    if (status != WEFT_OK) {
        weft_fetch_close(fetch);
        return status;
    }
    *fetch_out = fetch;
    return WEFT_OK;
}

void weft_fetch_close(weft_fetch *fetch) {
    if (fetch == NULL) {
        return;
    }
    pthread_mutex_lock(&fetch->mutex);
    fetch->stopping = true;
    pthread_cond_broadcast(&fetch->changed);
    pthread_mutex_unlock(&fetch->mutex);
    for (unsigned i = 0; i < fetch->loader_count; i++) {
        pthread_join(fetch->loaders[i].thread, NULL);
        weft_context_destroy(fetch->loaders[i].context);
    }
    for (size_t i = 0; fetch->chunks != NULL && i < fetch->count; i++) {
        weft_release(fetch->context, fetch->chunks[i].data);
    }
    weft_release(fetch->context, fetch->chunks);
    weft_release(fetch->context, fetch->hashes);
    weft_pieces_close(&fetch->pieces);
    pthread_cond_destroy(&fetch->changed);
    pthread_mutex_destroy(&fetch->mutex);
    weft_release(fetch->context, fetch);
}

weft_fetch_stats weft_fetch_describe(weft_fetch *fetch) {
    pthread_mutex_lock(&fetch->mutex);
    weft_fetch_stats stats = fetch->stats;
    pthread_mutex_unlock(&fetch->mutex);
    return stats;
}

weft_status weft_fetch_explain(weft_context *context, weft_fetch *fetch, weft_status status) {
    pthread_mutex_lock(&fetch->mutex);
    if (status != WEFT_OK && fetch->failure.status != WEFT_OK) {
        status = weft_failure_tell(context, &fetch->failure);
    }
    pthread_mutex_unlock(&fetch->mutex);
    return status;
}
