/* SPDX-License-Identifier: Apache-2.0
 *
 * spool.h: bytes of an object between the one who makes them and the store.
 *
 * The maker writes from front to back; an upload reads beside it, as far as there is something, and from
 * the beginning again when an attempt has failed. A small object stays in memory, and is hashed in the end;
 * a large one, an anchor, lies in a file that has no name, and its chunks are hashed as they fill.
 */
#ifndef WEFT_SYNC_OBJECTS_SPOOL_H
#define WEFT_SYNC_OBJECTS_SPOOL_H

#include "../format/record.h"

typedef struct weft_spool weft_spool;

/* Where a publisher's large objects lie meanwhile. */
const char *weft_spool_directory(const weft_publisher_options *options);
/* `directory` NULL: in memory. */
weft_status weft_spool_open(weft_context *context, const char *directory, weft_spool **spool_out);
void weft_spool_close(weft_spool *spool);

/* The maker's side. */
weft_sink weft_spool_sink(weft_spool *spool);
/* No more comes. Readers see the end; or with a failure, they fail. */
weft_status weft_spool_finish(weft_spool *spool, weft_status status);

/* The reader's side. */
weft_store_feed weft_spool_feed(weft_spool *spool);

/* After the end: all bytes, as a source that must not outlive the spool. */
weft_source weft_spool_source(weft_spool *spool);
/* The object that the bytes are; hashes beyond what a record holds are put into the store beside it. */
weft_status weft_spool_describe(weft_context *context, weft_spool *spool, const char *key,
                                weft_store *store, weft_object *object);
/* After the end: puts the bytes, as an object of that room which is made for a version, and describes it.
 */
weft_status weft_spool_put(weft_context *context, weft_spool *spool, weft_store *store, const char *room,
                           uint64_t epoch, uint64_t version, weft_object *object);

/* One put in a thread of its own. */
typedef struct weft_upload weft_upload;

weft_status weft_upload_start(weft_context *context, weft_store *store, const char *key, weft_spool *spool,
                              weft_upload **upload_out);
/* Waits for the end, releases, and tells how it went; or `status`, with its text, if that is a failure:
 * when who fills the spool has failed, the upload fails of that. */
weft_status weft_upload_join(weft_context *context, weft_upload *upload, weft_status status);

/* Bytes that are all there already, on their way up. Nothing of one that was never sent, or is joined, is
 * set. */
typedef struct weft_parcel {
    weft_spool *spool;
    weft_upload *upload;
} weft_parcel;

weft_status weft_parcel_send(weft_context *context, weft_store *store, const char *key, const void *data,
                             size_t size, weft_parcel *parcel);
/* As weft_upload_join. */
weft_status weft_parcel_join(weft_context *context, weft_parcel *parcel, weft_status status);

#endif
