/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_answer.h: the few things that must be read from the XML that an S3 service answers.
 *
 * An answer is walked through once, within fixed bounds and without taking memory: names and depth are
 * limited, a document type or CDATA is refused, and only the five entities of XML and numbers are known.
 * Texts that go into a request or a line for people are checked for what they may hold.
 */
#ifndef WEFT_STORE_S3_S3_ANSWER_H
#define WEFT_STORE_S3_S3_ANSWER_H

#include <weft/store.h>

#include <time.h>

enum {
    WEFT_S3_TEXT_MAX = 8192, /* of one element, its end included */
    WEFT_S3_UPLOAD_MAX = 513,
    WEFT_S3_TOKEN_MAX = 1025,
};

/* True if the text has no spaces, control characters or bytes beyond ASCII. */
bool weft_s3_is_word(const char *text);

/* What went wrong, as the service says. Texts that are absent or unfit are empty. */
typedef struct weft_s3_error {
    char code[64];
    char message[256];
    char region[64];
    char endpoint[256];
} weft_s3_error;

/* False if there is no error with a code. The answer may be cut off behind that. */
bool weft_s3_error_read(const char *data, size_t size, weft_s3_error *error);

/* The name of an upload in parts. */
bool weft_s3_upload_read(const char *data, size_t size, char upload[WEFT_S3_UPLOAD_MAX]);

/* The tag of an upload that was put together; empty if it is not one that can be used. False if the answer
 * does not say that it was. */
bool weft_s3_completed_read(const char *data, size_t size, weft_store_tag *tag);

/* "2026-10-04T12:00:00.000Z", or with the hours and minutes of a time zone at its end. What a second is
 * divided into does not matter. */
bool weft_s3_date_read(const char *text, time_t *date_out);

/* Temporary credentials, or such as do not expire. */
typedef struct weft_s3_session {
    char user[256];
    char secret[512];
    char token[WEFT_S3_TEXT_MAX]; /* empty: none */
    bool expires;
    time_t expiration;
} weft_s3_session;

/* What STS gives to who assumes a role. False if there is none. */
bool weft_s3_session_read(const char *data, size_t size, weft_s3_session *session);

/* One object of a listing. Return false to stop. */
typedef bool (*weft_s3_object)(void *opaque, const char *key, uint64_t size, time_t modified);

/* Calls `object` for each; `next` is where the next part of the listing begins, or empty. False if this is
 * not a whole part of a listing, unless `object` stopped before that showed. */
bool weft_s3_list_read(const char *data, size_t size, weft_s3_object object, void *opaque,
                       char next[WEFT_S3_TOKEN_MAX]);

#endif
