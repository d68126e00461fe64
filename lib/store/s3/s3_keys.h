/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_keys.h: credentials as texts, and reading them from what others write: profiles in INI files, and the
 * JSON of programs, containers and instances. (The XML of STS: s3_answer.h.) All of it is read within fixed
 * bounds, and nothing that could not stand in a request comes out.
 */
#ifndef WEFT_STORE_S3_S3_KEYS_H
#define WEFT_STORE_S3_S3_KEYS_H

#include "s3_answer.h"

enum {
    WEFT_S3_PROFILES_MAX = 1 << 20, /* of a file of profiles */
    WEFT_S3_SESSION_JSON_MAX = 64 << 10,
    WEFT_S3_PATH_MAX = 4096,
    WEFT_S3_COMMAND_MAX = 4096,
    WEFT_S3_ROLE_MAX = 2049,
    WEFT_S3_ROLE_SESSION_MAX = 65,
};

/* What the files say of one profile. A text that is absent is empty. */
typedef struct weft_s3_profile {
    bool found;
    weft_s3_session session;
    char command[WEFT_S3_COMMAND_MAX]; /* credential_process */
    char role[WEFT_S3_ROLE_MAX];       /* role_arn */
    char token_file[WEFT_S3_PATH_MAX]; /* web_identity_token_file */
    char role_session[WEFT_S3_ROLE_SESSION_MAX];
    char region[64];
    char endpoint[512]; /* endpoint_url */
    bool asks_more; /* it needs a sign-in or another profile (sso_…, source_profile, credential_source) */
    bool unfit;     /* something in it is too long, or has bytes that it cannot have */
} weft_s3_profile;

/* Adds what one file says of the profile called `name`; what is there already stays. `config` is true for
 * the file whose sections are called "[profile NAME]". */
void weft_s3_profile_read(const char *text, size_t size, const char *name, bool config,
                          weft_s3_profile *profile);

/* {"AccessKeyId": …, "SecretAccessKey": …, "Token" or "SessionToken": …, "Expiration": …}. `where` begins
 * the text of a failure, which quotes no secret. */
weft_status weft_s3_session_read_json(weft_context *context, const char *where, const char *text,
                                      size_t size, weft_s3_session *session);

#endif
