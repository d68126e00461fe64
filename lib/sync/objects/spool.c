/* SPDX-License-Identifier: Apache-2.0
 *
 * spool.c: the bytes of an object on their way up.
 */
#include "spool.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../../base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct weft_spool {
    weft_context *context;
    pthread_mutex_t mutex;
    pthread_cond_t grown;
    int file;         /* -1: in memory */
    uint8_t **blocks; /* in memory: WEFT_CHUNK_BYTES each */
    size_t block_count;
    uint8_t *pending; /* the chunk that is being filled, until, in a file, it is hashed and written */
    size_t pending_bytes;
    uint64_t size; /* that readers may see */
    bool ended;
    weft_status status;
    weft_hash *hashes;
    size_t hash_count;
};

/* ---- opening ---- */

const char *weft_spool_directory(const weft_publisher_options *options) {
    if (options->spool_directory != NULL) {
        return options->spool_directory;
    }
    const char *chosen = getenv("TMPDIR");
    return chosen != NULL && chosen[0] != '\0' ? chosen : "/tmp";
}

static weft_status open_file(weft_spool *spool, const char *directory) {
    spool->file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (spool->file >= 0) {
        return WEFT_OK;
    }
    /* not every file system can make a file without a name */
    size_t length = strlen(directory) + 32;
    char *path = weft_allocate(spool->context, length);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    snprintf(path, length, "%s/weft-spool-XXXXXX", directory);
    spool->file = mkostemp(path, O_CLOEXEC);
    weft_status status = WEFT_OK;
    if (spool->file < 0) {
        status = weft_fail_errno(spool->context, errno, "cannot make a temporary file in %s", directory);
    } else {
        unlink(path);
    }
    weft_release(spool->context, path);
    return status;
}

weft_status weft_spool_open(weft_context *context, const char *directory, weft_spool **spool_out) {
    weft_spool *spool = weft_allocate_zeroed(context, 1, sizeof *spool);
    if (spool == NULL) {
        return WEFT_NO_MEMORY;
    }
    spool->context = context;
    spool->file = -1;
    pthread_mutex_init(&spool->mutex, NULL);
    pthread_cond_init(&spool->grown, NULL);
    weft_status status = WEFT_OK;
    if (directory != NULL) {
        status = open_file(spool, directory);
        if (status == WEFT_OK) {
            spool->pending = weft_allocate(context, WEFT_CHUNK_BYTES);
            status = spool->pending != NULL ? WEFT_OK : WEFT_NO_MEMORY;
        }
    }
    if (status != WEFT_OK) {
        weft_spool_close(spool);
        return status;
    }
    *spool_out = spool;
    return WEFT_OK;
}

void weft_spool_close(weft_spool *spool) {
    if (spool == NULL) {
        return;
    }
    for (size_t i = 0; i < spool->block_count; i++) {
        weft_release(spool->context, spool->blocks[i]);
    }
    weft_release(spool->context, spool->blocks);
    if (spool->file >= 0) {
        weft_release(spool->context, spool->pending);
        close(spool->file);
    }
    weft_release(spool->context, spool->hashes);
    pthread_cond_destroy(&spool->grown);
    pthread_mutex_destroy(&spool->mutex);
    weft_release(spool->context, spool);
}

/* ---- writing ---- */

static weft_status write_file(weft_spool *spool) {
    size_t done = 0;
    uint64_t offset = (uint64_t)spool->hash_count * WEFT_CHUNK_BYTES;
    while (done < spool->pending_bytes) {
        ssize_t count =
            pwrite(spool->file, spool->pending + done, spool->pending_bytes - done, (off_t)(offset + done));
        if (count < 0 && errno != EINTR) {
            return weft_fail_errno(spool->context, errno, "writing the temporary file of an anchor failed");
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return WEFT_OK;
}

/* In memory the pending chunk is the last block; readers see it as it grows. */
static weft_status begin_chunk(weft_spool *spool) {
    spool->pending_bytes = 0;
    if (spool->file >= 0) {
        return WEFT_OK;
    }
    uint8_t **blocks =
        weft_reallocate_array(spool->context, spool->blocks, spool->block_count + 1, sizeof *blocks);
    if (blocks != NULL) {
        spool->blocks = blocks;
        blocks[spool->block_count] = weft_allocate(spool->context, WEFT_CHUNK_BYTES);
    }
    if (blocks == NULL || blocks[spool->block_count] == NULL) {
        return WEFT_NO_MEMORY;
    }
    spool->pending = blocks[spool->block_count++];
    return WEFT_OK;
}

static weft_status end_chunk(weft_spool *spool) {
    weft_hash *hashes =
        weft_reallocate_array(spool->context, spool->hashes, spool->hash_count + 1, sizeof *hashes);
    if (hashes == NULL) {
        return WEFT_NO_MEMORY;
    }
    spool->hashes = hashes;
    weft_status status = WEFT_OK;
    if (spool->file >= 0) {
        status = weft_hash_compute(spool->context, spool->pending, spool->pending_bytes,
                                   &hashes[spool->hash_count]);
        status = status == WEFT_OK ? write_file(spool) : status;
    }
    if (status == WEFT_OK) {
        spool->hash_count++;
    }
    return status;
}

static weft_status write_bytes(void *opaque, const void *data, size_t size) {
    weft_spool *spool = opaque;
    const uint8_t *bytes = data;
    while (size > 0) {
        if (spool->pending_bytes == WEFT_CHUNK_BYTES || (spool->file < 0 && spool->block_count == 0)) {
            /* the blocks array may move while a reader looks at it: it is changed under the lock */
            weft_status status = spool->pending_bytes > 0 ? end_chunk(spool) : WEFT_OK;
            if (status != WEFT_OK) {
                return status;
            }
            pthread_mutex_lock(&spool->mutex);
            status = begin_chunk(spool);
            pthread_mutex_unlock(&spool->mutex);
            if (status != WEFT_OK) {
                return status;
            }
        }
        size_t room = WEFT_CHUNK_BYTES - spool->pending_bytes;
        size_t part = size < room ? size : room;
        memcpy(spool->pending + spool->pending_bytes, bytes, part);
        spool->pending_bytes += part;
        bytes += part;
        size -= part;
        uint64_t whole = (uint64_t)spool->hash_count * WEFT_CHUNK_BYTES;
        pthread_mutex_lock(&spool->mutex);
        spool->size = spool->file >= 0 ? whole : whole + spool->pending_bytes;
        pthread_cond_broadcast(&spool->grown);
        pthread_mutex_unlock(&spool->mutex);
    }
    return WEFT_OK;
}

weft_sink weft_spool_sink(weft_spool *spool) {
    return (weft_sink){write_bytes, spool};
}

static weft_status hash_block(void *argument, size_t index, unsigned worker) {
    const weft_spool *spool = argument;
    uint64_t left = spool->size - (uint64_t)index * WEFT_CHUNK_BYTES;
    (void)worker;
    return weft_hash_compute(spool->context, spool->blocks[index],
                             left < WEFT_CHUNK_BYTES ? (size_t)left : WEFT_CHUNK_BYTES,
                             &spool->hashes[index]);
}

/* What is in memory is hashed by all threads, in the end: while it grows, each chunk would hold up whoever
 * makes the next one. */
weft_status weft_spool_finish(weft_spool *spool, weft_status status) {
    if (status == WEFT_OK && spool->pending_bytes > 0) {
        status = end_chunk(spool);
    }
    pthread_mutex_lock(&spool->mutex);
    if (status == WEFT_OK && spool->hash_count > 0) {
        spool->size = (uint64_t)(spool->hash_count - 1) * WEFT_CHUNK_BYTES + spool->pending_bytes;
    }
    spool->status = status;
    spool->ended = true;
    pthread_cond_broadcast(&spool->grown);
    pthread_mutex_unlock(&spool->mutex);
    return status == WEFT_OK && spool->file < 0
               ? weft_parallel(spool->context, spool->hash_count, hash_block, spool)
               : status;
}

/* ---- reading ---- */

static weft_status copy_out(weft_spool *spool, uint64_t offset, void *data, size_t size) {
    if (spool->file < 0) {
        memcpy(data, spool->blocks[offset / WEFT_CHUNK_BYTES] + offset % WEFT_CHUNK_BYTES, size);
        return WEFT_OK;
    }
    size_t done = 0;
    while (done < size) {
        ssize_t count = pread(spool->file, (uint8_t *)data + done, size - done, (off_t)(offset + done));
        if (count == 0 || (count < 0 && errno != EINTR)) {
            return WEFT_IO_FAILED;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return WEFT_OK;
}

static weft_status read_bytes(void *opaque, uint64_t offset, void *data, size_t capacity,
                              size_t *count_out) {
    weft_spool *spool = opaque;
    pthread_mutex_lock(&spool->mutex);
    while (!spool->ended && spool->size <= offset) {
        pthread_cond_wait(&spool->grown, &spool->mutex);
    }
    weft_status status = spool->status;
    size_t count = 0;
    if (status == WEFT_OK && spool->size > offset) {
        uint64_t left = spool->size - offset;
        uint64_t in_chunk = WEFT_CHUNK_BYTES - offset % WEFT_CHUNK_BYTES;
        left = left < in_chunk ? left : in_chunk;
        count = left < capacity ? (size_t)left : capacity;
        status = copy_out(spool, offset, data, count);
    }
    pthread_mutex_unlock(&spool->mutex);
    *count_out = count;
    return status;
}

weft_store_feed weft_spool_feed(weft_spool *spool) {
    return (weft_store_feed){spool->ended ? spool->size : UINT64_MAX, read_bytes, spool};
}

static weft_status read_all(void *opaque, uint64_t offset, void *data, size_t size) {
    size_t done = 0;
    while (done < size) {
        size_t count;
        weft_status status = read_bytes(opaque, offset + done, (uint8_t *)data + done, size - done, &count);
        if (status != WEFT_OK || count == 0) {
            return status != WEFT_OK ? status : WEFT_TRUNCATED;
        }
        done += count;
    }
    return WEFT_OK;
}

weft_source weft_spool_source(weft_spool *spool) {
    return (weft_source){.size = spool->size, .read = read_all, .opaque = spool};
}

weft_status weft_spool_describe(weft_context *context, weft_spool *spool, const char *key,
                                weft_store *store, weft_object *object) {
    *object = (weft_object){.bytes = spool->size, .chunk_bytes = WEFT_CHUNK_BYTES};
    snprintf(object->key, sizeof object->key, "%s", key);
    if (spool->hash_count <= WEFT_CHUNKS_INLINE) {
        memcpy(object->chunks, spool->hashes, spool->hash_count * sizeof *spool->hashes);
        return WEFT_OK;
    }
    object->listed = true;
    weft_sync_key_beside(key, "chunks", object->list.key);
    object->list.bytes = spool->hash_count * sizeof *spool->hashes;
    weft_status status =
        weft_hash_compute(context, spool->hashes, (size_t)object->list.bytes, &object->list.hash);
    return status == WEFT_OK
               ? weft_store_put_bytes(context, store, object->list.key, spool->hashes,
                                      (size_t)object->list.bytes, WEFT_STORE_ALWAYS, NULL, NULL)
               : status;
}

weft_status weft_spool_put(weft_context *context, weft_spool *spool, weft_store *store, const char *room,
                           uint64_t epoch, uint64_t version, weft_object *object) {
    char key[WEFT_KEY_SIZE];
    weft_status status = weft_sync_key(context, room, epoch, version, key);
    if (status == WEFT_OK) {
        weft_store_put_request request = {
            .size = sizeof request, .key = key, .feed = weft_spool_feed(spool)};
        status = weft_store_put(context, store, &request, NULL);
    }
    return status == WEFT_OK ? weft_spool_describe(context, spool, key, store, object) : status;
}

/* ---- uploading ---- */

struct weft_upload {
    weft_context *context; /* the thread's own */
    weft_store *store;
    weft_store_put_request request;
    char key[WEFT_KEY_SIZE];
    pthread_t thread;
    atomic_bool stopping;
    weft_status status;
};

static void *upload_main(void *argument) {
    weft_upload *upload = argument;
    upload->status = weft_store_put(upload->context, upload->store, &upload->request, NULL);
    return NULL;
}

weft_status weft_upload_start(weft_context *context, weft_store *store, const char *key, weft_spool *spool,
                              weft_upload **upload_out) {
    weft_upload *upload = weft_allocate_zeroed(context, 1, sizeof *upload);
    if (upload == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status =
        weft_context_derive(context, weft_thread_keep_on, &upload->stopping, &upload->context);
    if (status == WEFT_OK) {
        snprintf(upload->key, sizeof upload->key, "%s", key);
        upload->store = store;
        upload->request = (weft_store_put_request){
            .size = sizeof(weft_store_put_request), .key = upload->key, .feed = weft_spool_feed(spool)};
        int error = pthread_create(&upload->thread, NULL, upload_main, upload);
        if (error != 0) {
            status = weft_fail_errno(context, error, "cannot start a thread for an upload");
            weft_context_destroy(upload->context);
        }
    }
    if (status != WEFT_OK) {
        weft_release(context, upload);
        return status;
    }
    *upload_out = upload;
    return WEFT_OK;
}

weft_status weft_upload_join(weft_context *context, weft_upload *upload, weft_status status) {
    weft_failure before = weft_failure_keep(context, status);
    weft_thread_join(context, upload->thread, &upload->stopping);
    weft_failure failure = weft_failure_keep(upload->context, upload->status);
    weft_context_destroy(upload->context);
    weft_release(context, upload);
    return weft_failure_tell(context, status == WEFT_OK ? &failure : &before);
}

/* ---- parcels ---- */

weft_status weft_parcel_send(weft_context *context, weft_store *store, const char *key, const void *data,
                             size_t size, weft_parcel *parcel) {
    weft_parcel sent = {NULL, NULL};
    weft_status status = weft_spool_open(context, NULL, &sent.spool);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sink sink = weft_spool_sink(sent.spool);
    status = weft_spool_finish(sent.spool, sink.write(sink.opaque, data, size));
    if (status == WEFT_OK) {
        status = weft_upload_start(context, store, key, sent.spool, &sent.upload);
    }
    if (status != WEFT_OK) {
        weft_spool_close(sent.spool);
        return status;
    }
    *parcel = sent;
    return WEFT_OK;
}

weft_status weft_parcel_join(weft_context *context, weft_parcel *parcel, weft_status status) {
    if (parcel->upload == NULL) {
        return status;
    }
    status = weft_upload_join(context, parcel->upload, status);
    weft_spool_close(parcel->spool);
    *parcel = (weft_parcel){NULL, NULL};
    return status;
}
