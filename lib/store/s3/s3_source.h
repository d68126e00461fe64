/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_source.h: where credentials come from, in the order that users of Amazon's programs know: the
 * environment, a profile of the files in ~/.aws (keys, a program, a role for a web identity), a web
 * identity that the environment names, a container's service, the instance's service.
 */
#ifndef WEFT_STORE_S3_S3_SOURCE_H
#define WEFT_STORE_S3_S3_SOURCE_H

#include "s3_keys.h"

typedef enum weft_s3_source_kind {
    WEFT_S3_FROM_ENVIRONMENT,
    WEFT_S3_FROM_FILES,
    WEFT_S3_FROM_PROCESS,
    WEFT_S3_FROM_WEB_IDENTITY,
    WEFT_S3_FROM_CONTAINER,
    WEFT_S3_FROM_INSTANCE,
} weft_s3_source_kind;

/* The files of profiles, and which one counts. */
typedef struct weft_s3_files {
    char credentials[WEFT_S3_PATH_MAX];
    char config[WEFT_S3_PATH_MAX];
    char profile[256];
    bool named; /* by the environment; else it is "default", which need not exist */
} weft_s3_files;

typedef struct weft_s3_source {
    weft_s3_source_kind kind;
    char name[320];          /* for people */
    weft_s3_files files;     /* of FROM_FILES */
    weft_s3_session session; /* of FROM_ENVIRONMENT */
    char *command;           /* of FROM_PROCESS */
    char *role;              /* of FROM_WEB_IDENTITY, with what follows */
    char *role_session;
    char *token_file; /* … or of FROM_CONTAINER: what goes into its Authorization; may be NULL */
    char *token;      /* of FROM_CONTAINER: the same as text; may be NULL */
    char *url;        /* of the service that is asked */
    char *ca_file;    /* as of the store; may be NULL */
} weft_s3_source;

/* The first of the variables that is set and not empty, or NULL. */
const char *weft_s3_variable(const char *name, const char *otherwise);

/* Reads what the files say of the profile that counts, and where they are. */
weft_status weft_s3_profile_load(weft_context *context, weft_s3_files *files, weft_s3_profile *profile);
/* Chooses, without asking anybody. `source` is zeroed; on failure it is to be closed all the same. */
weft_status weft_s3_source_choose(weft_context *context, const weft_s3_files *files,
                                  const weft_s3_profile *profile, const char *region, const char *ca_file,
                                  weft_s3_source *source);
/* Gets credentials. */
weft_status weft_s3_source_ask(weft_context *context, const weft_s3_source *source,
                               weft_s3_session *session);
void weft_s3_source_close(weft_context *context, weft_s3_source *source);

/* Those that are asked over HTTP; s3_metadata.c. */
weft_status weft_s3_ask_web_identity(weft_context *context, const weft_s3_source *source,
                                     weft_s3_session *session);
weft_status weft_s3_ask_container(weft_context *context, const weft_s3_source *source,
                                  weft_s3_session *session);
weft_status weft_s3_ask_instance(weft_context *context, const weft_s3_source *source,
                                 weft_s3_session *session);
/* Runs a command and reads what it prints; s3_process.c. */
weft_status weft_s3_ask_process(weft_context *context, const weft_s3_source *source,
                                weft_s3_session *session);

#endif
