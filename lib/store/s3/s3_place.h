/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_place.h: from s3://bucket/prefix and the usual variables to the addresses of objects.
 *
 * A bucket is part of the path (https://host/bucket/key) or of the host (https://bucket.host/key). Amazon
 * wants the latter; services of one's own usually know the former only, and so do certificates for names
 * with dots in them.
 */
#ifndef WEFT_STORE_S3_S3_PLACE_H
#define WEFT_STORE_S3_S3_PLACE_H

#include <weft/store.h>

enum { WEFT_S3_ROOT_MAX = 1024, WEFT_S3_REGION_MAX = 64 };

/* What the environment says; NULL or empty: nothing. */
typedef struct weft_s3_environment {
    const char *endpoint;
    const char *region;
    const char *addressing; /* "path" or "virtual" */
} weft_s3_environment;

typedef struct weft_s3_place {
    char root[WEFT_S3_ROOT_MAX];         /* of the bucket, without a slash at its end */
    char prefix[WEFT_STORE_KEY_MAX + 1]; /* of the keys, without a slash at its end; may be empty */
    char region[WEFT_S3_REGION_MAX];
    bool encrypted; /* https */
} weft_s3_place;

weft_status weft_s3_place_find(weft_context *context, const char *url,
                               const weft_s3_environment *environment, weft_s3_place *place);

#endif
