/* SPDX-License-Identifier: Apache-2.0
 *
 * directory.h: a store in a directory, and two calls beside its table of operations, for servers and
 * relays: an object as a descriptor, and a put whose bytes are appended as they come. `self` is what
 * weft_directory_open gave. Callers check keys (weft_store_key_valid).
 */
#ifndef WEFT_STORE_DIRECTORY_H
#define WEFT_STORE_DIRECTORY_H

#include <weft/store.h>

/* For open.c. The table's `close` closes it. `options` is never NULL. */
extern const weft_store_operations weft_directory_operations;
weft_status weft_directory_open(weft_context *context, const char *root, const weft_store_options *options,
                                void **self_out);

/* Opens an object. The descriptor keeps its content, whatever is put under the key meanwhile.
 * WEFT_NOT_FOUND if there is none. */
weft_status weft_directory_object(weft_context *context, void *self, const char *key, int *descriptor_out,
                                  uint64_t *size_out, weft_store_tag *tag_out);

/* A put that is being written, as a temporary file. The request is copied, and its `feed` is not used. The
 * context and the store must outlive it. */
typedef struct weft_directory_draft weft_directory_draft;

/* WEFT_CONFLICT if the condition does not hold already now. */
weft_status weft_directory_draft_open(weft_context *context, void *self,
                                      const weft_store_put_request *request,
                                      weft_directory_draft **draft_out);
weft_status weft_directory_draft_append(weft_directory_draft *draft, const void *data, size_t size);
/* The object is there, whole, when this returns WEFT_OK. The draft is gone in any case. */
weft_status weft_directory_draft_finish(weft_directory_draft *draft, weft_store_tag *tag_out);
void weft_directory_draft_abandon(weft_directory_draft *draft);

#endif
