/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: stores of objects. A directory, an HTTP(S) server or a bucket in S3, behind one table of
 * operations.
 *
 * An object is bytes under a key. It appears whole or not at all, and a reader never sees a part of one
 * put and a part of another. Nothing here knows what the bytes mean, and nothing needs a listing.
 *
 * Several threads may use one store at once, each with a context of its own: an operation takes the
 * context of the caller for its error text and memory.
 */
#ifndef WEFT_STORE_H
#define WEFT_STORE_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_STORE_KEY_MAX = 200, WEFT_STORE_TAG_MAX = 128 };

/* What identifies one content of a key to conditional operations: an entity tag. Empty if the backend has
 * none. Equal tags mean equal bytes. */
typedef struct weft_store_tag {
    char text[WEFT_STORE_TAG_MAX];
} weft_store_tag;

typedef struct weft_store_options {
    size_t size;            /* sizeof(weft_store_options) */
    const char *token;      /* sent as a bearer token, except to S3; NULL: none */
    const char *ca_file;    /* PEM certificates to trust instead of the system's; NULL: those of the
                               environment's SSL_CERT_FILE, else the system's */
    double connect_seconds; /* to reach the server; 0: 10 */
    double stall_seconds;   /* without a byte moving, or with less than 1 KiB/s for all transfers together,
                               before a transfer is given up; 0: 20 */
    unsigned attempts;      /* of one operation, the first included; 0: 5 */
    double backoff_seconds; /* before the second attempt, doubled and jittered from then on; 0: 0.1 */
    unsigned transfers;     /* in flight at once; 0: 8 */
    bool volatile_writes;   /* directory: skip the syncs that make a put survive power loss */
    const char *token_file; /* instead of `token`: a file that has it; read again when it changes */
} weft_store_options;

typedef struct weft_store weft_store;

/* `url` is a path, file:///path, http(s)://host[:port]/prefix, or s3://bucket/prefix. `options` may be NULL
 * and is copied. A directory need not exist yet: the first put makes it. Nothing is sent yet. The store's
 * own memory is the context's, which must outlive it.
 *
 * Everything else that S3 needs comes from where other S3 programs look for it, and only from there:
 * secrets stay out of argument lists and structures, and a URL is enough to open any store. Credentials are
 * those of the first source that there is, and are renewed before they expire and when the service refuses
 * them:
 *
 *     AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY   and AWS_SESSION_TOKEN too if they are temporary
 *     AWS_PROFILE, or AWS_DEFAULT_PROFILE        a profile ("default") of ~/.aws/credentials, ~/.aws/config
 *                                                (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE): its keys,
 *                                                credential_process, or role and web_identity_token_file
 *     AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN  a role for a web identity, of STS (AWS_ENDPOINT_URL_STS)
 *     AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI, AWS_CONTAINER_AUTHORIZATION_TOKEN or _TOKEN_FILE
 *     else the metadata of the instance, unless AWS_EC2_METADATA_DISABLED is "true"
 *
 * The variables are read once, here. These too:
 *
 *     AWS_REGION, or AWS_DEFAULT_REGION          us-east-1 if neither is set
 *     AWS_ENDPOINT_URL_S3, or AWS_ENDPOINT_URL   a service other than Amazon's
 *     AWS_CA_BUNDLE                              as `ca_file`, which goes before it
 *     WEFT_S3_ADDRESSING                         path: https://host/bucket; virtual: https://bucket.host
 *     WEFT_S3_ENCRYPTION, WEFT_S3_KMS_KEY        how the service is to encrypt what is put: AES256 or
 *                                                aws:kms, and the key of the latter
 *     WEFT_S3_STORAGE_CLASS                      where it is to keep it, such as STANDARD_IA
 *
 * If WEFT_S3_ADDRESSING is not set, the bucket is part of Amazon's host name, but part of the path if an
 * endpoint is given or the bucket's name cannot be part of a host name.
 *
 * Objects above 8 MiB are multipart uploads. Parts of killed puts stay until the bucket's lifecycle rules
 * remove them. The first conditional put leaves a small object behind, weft-conditions, which tells whether
 * the service heeds conditions. Multipart uploads are probed separately: some services heed conditions only
 * of puts in one request.
 */
WEFT_API WEFT_CHECKED weft_status weft_store_open(weft_context *context, const char *url,
                                                  const weft_store_options *options,
                                                  weft_store **store_out);
WEFT_API void weft_store_close(weft_store *store);
/* The URL that it was opened with, without credentials. */
WEFT_API const char *weft_store_url(const weft_store *store);

/* What a store is like, for callers that choose how to use it. A URL does not tell this, least of all the
 * URL of a backend of the caller's own. Asking costs no request. */
typedef struct weft_store_traits {
    size_t size; /* sizeof(weft_store_traits) */
    const char
        *directory; /* its path, if the store is a directory of this machine; lives as long as the store */
    double poll_seconds;  /* a fair time between two looks for news; 0.5, for a directory 0.02 */
    bool paid;            /* every request costs money */
    bool conditional;     /* puts can be conditional; a backend that cannot know yet says false */
    double idle_seconds;  /* the longest fair time between two looks where nothing has happened for long; 0:
                             poll_seconds always */
    bool dated;           /* the store's last answer had a date: */
    double ahead_seconds; /* by which its clock is so far ahead of this machine's, give or take a second */
    const char *credentials; /* where those of S3 come from, for people; NULL: it has none. Lives as long as
                                the store */
} weft_store_traits;

WEFT_API void weft_store_traits_of(const weft_store *store, weft_store_traits *traits_out);

/* Traffic since the store was opened: operations, and bytes of objects. */
typedef struct weft_store_traffic {
    size_t size; /* sizeof(weft_store_traffic) */
    uint64_t requests;
    uint64_t sent;
    uint64_t received;
} weft_store_traffic;

WEFT_API void weft_store_traffic_of(const weft_store *store, weft_store_traffic *traffic_out);

/* Keys are made of [A-Za-z0-9._~-] in parts divided by single slashes; no part is "." or ".." or begins
 * with ".". */
WEFT_API bool weft_store_key_valid(const char *key);

typedef struct weft_store_get_request {
    size_t size; /* sizeof(weft_store_get_request) */
    const char *key;
    uint64_t offset;
    uint64_t length; /* at most this many bytes from `offset`; the object's end cuts it short */
    void *buffer;    /* takes `length` bytes */
    const weft_store_tag *unless; /* NULL, or the tag of what the caller has, which is not sent again */
    /* NULL, or called on the caller's own thread while bytes arrive: the first `received` of the buffer are
     * there. If a transfer has to start over, the number falls, and bytes are written again. The last call,
     * with all of them, comes when the get has succeeded. */
    void (*arrived)(void *opaque, uint64_t received);
    void *opaque;
} weft_store_get_request;

typedef struct weft_store_get_result {
    size_t size; /* sizeof(weft_store_get_result) */
    uint64_t received;
    uint64_t object_bytes; /* of the whole object */
    weft_store_tag tag;
    bool unchanged; /* `unless` still holds; nothing was received, and object_bytes may be left at 0 */
} weft_store_get_result;

/* WEFT_NOT_FOUND if there is no such object. A broken transfer resumes where it stopped, if the object is
 * still the same one. */
WEFT_API WEFT_CHECKED weft_status weft_store_get(weft_context *context, weft_store *store,
                                                 const weft_store_get_request *request,
                                                 weft_store_get_result *result_out);

/* Where the bytes of a put come from. The size need not be known in advance. `read` waits until at least
 * one byte from `offset` on is there, gives at most `capacity` of them, and zero only at the end. It is
 * called by one thread at a time, and again from the beginning when an attempt has failed. */
typedef struct weft_store_feed {
    uint64_t size; /* UINT64_MAX: not known yet */
    weft_status (*read)(void *opaque, uint64_t offset, void *data, size_t capacity, size_t *count_out);
    void *opaque;
} weft_store_feed;

typedef enum weft_store_condition {
    WEFT_STORE_ALWAYS = 0,
    WEFT_STORE_IF_ABSENT = 1, /* only if there is no object under the key */
    WEFT_STORE_IF_SAME = 2,   /* only if the object is still the one with `tag` */
} weft_store_condition;

typedef struct weft_store_put_request {
    size_t size; /* sizeof(weft_store_put_request) */
    const char *key;
    weft_store_feed feed;
    weft_store_condition condition;
    weft_store_tag tag;  /* of IF_SAME */
    bool volatile_write; /* as volatile_writes of the store, for this object */
} weft_store_put_request;

/* The object is there, whole, when this returns WEFT_OK. WEFT_CONFLICT if the condition did not hold,
 * WEFT_UNSUPPORTED if the backend cannot tell. A conditional put whose answer was lost is looked up before
 * it is said to have failed. `tag_out` may be NULL. */
WEFT_API WEFT_CHECKED weft_status weft_store_put(weft_context *context, weft_store *store,
                                                 const weft_store_put_request *request,
                                                 weft_store_tag *tag_out);
/* A put of bytes in memory. */
WEFT_API WEFT_CHECKED weft_status weft_store_put_bytes(weft_context *context, weft_store *store,
                                                       const char *key, const void *data, size_t size,
                                                       weft_store_condition condition,
                                                       const weft_store_tag *tag, weft_store_tag *tag_out);

/* Size and tag, without the bytes, as HTTP's HEAD gives them. WEFT_NOT_FOUND if there is no such object. */
WEFT_API WEFT_CHECKED weft_status weft_store_head(weft_context *context, weft_store *store, const char *key,
                                                  uint64_t *size_out, weft_store_tag *tag_out);

/* WEFT_OK too if there was no such object. */
WEFT_API WEFT_CHECKED weft_status weft_store_remove(weft_context *context, weft_store *store,
                                                    const char *key);

/* Long poll: waits on the server until there is a head of a version above `after`, and gives the bytes of
 * that head. WEFT_MORE if there was none within `seconds`; WEFT_UNSUPPORTED if the store has no long poll
 * (finding out costs at most one request; then poll). */
WEFT_API WEFT_CHECKED weft_status weft_store_watch(weft_context *context, weft_store *store, uint64_t after,
                                                   double seconds, void *buffer, size_t capacity,
                                                   size_t *received_out);

/* Calls `visit` for every object under a prefix of whole parts ("pages", or "" for all), in no order, with
 * its age by the store's own clock. WEFT_UNSUPPORTED where there is no listing. Return false from `visit`
 * to stop. */
typedef bool (*weft_store_visit)(void *opaque, const char *key, uint64_t size, double age_seconds);
WEFT_API WEFT_CHECKED weft_status weft_store_list(weft_context *context, weft_store *store,
                                                  const char *prefix, weft_store_visit visit, void *opaque);

/* How long ago the object was put, in seconds, by the store's own clock: a lower bound, never more than the
 * true age. The caller's clock and the writer's clock play no part. WEFT_NOT_FOUND if there is no such
 * object, WEFT_UNSUPPORTED where the store does not tell: a relay, or a server that gives no dates. */
WEFT_API WEFT_CHECKED weft_status weft_store_age(weft_context *context, weft_store *store, const char *key,
                                                 double *seconds_out);

/* ---- keys ----
 *
 * Ed25519. A publisher signs heads with the secret half; followers trust the public half. Trainers that
 * work on one run sign what they leave each other in a store, all with the same secret half. */

typedef struct weft_key weft_key;

/* The name of a run, terminated. */
enum { WEFT_RUN_TEXT = 33 };

/* A new pair. */
WEFT_API WEFT_CHECKED weft_status weft_key_generate(weft_context *context, weft_key **key_out);
/* PEM, as OpenSSL writes it: a private key ("PRIVATE KEY") or a public one ("PUBLIC KEY"). */
WEFT_API WEFT_CHECKED weft_status weft_key_read(weft_context *context, const char *path,
                                                weft_key **key_out);
/* Writes both halves. The secret file is readable by its owner only. Files that exist are refused. */
WEFT_API WEFT_CHECKED weft_status weft_key_write(weft_context *context, const weft_key *key,
                                                 const char *secret_path, const char *public_path);
/* Binds the key to this run: whoever trusts it refuses heads of any other run that it has signed. This is
 * for a newcomer, which knows nothing of a store but the key, where one key signs several runs.
 * WEFT_INVALID_ARGUMENT if `run` cannot be the name of a run. */
WEFT_API WEFT_CHECKED weft_status weft_key_bind(weft_context *context, weft_key *key, const char *run);
WEFT_API void weft_key_destroy(weft_key *key);
WEFT_API bool weft_key_secret(const weft_key *key);
/* The public half in hexadecimal, terminated. */
enum { WEFT_KEY_TEXT = 65 };
WEFT_API void weft_key_format(const weft_key *key, char text[WEFT_KEY_TEXT]);

/* ---- your own backend ----
 *
 * The table behind every store. Keys are checked before they come here. Operations that a backend
 * does not have are NULL, except get, put, head, remove and close. */
typedef struct weft_store_operations {
    size_t size; /* sizeof(weft_store_operations) */
    const char *name;
    /* Changes the members that differ from the defaults: no directory, the usual poll_seconds, not paid,
     * not conditional. */
    void (*traits)(void *self, weft_store_traits *traits);
    weft_status (*get)(void *self, weft_context *context, const weft_store_get_request *request,
                       weft_store_get_result *result_out);
    weft_status (*put)(void *self, weft_context *context, const weft_store_put_request *request,
                       weft_store_tag *tag_out);
    weft_status (*head)(void *self, weft_context *context, const char *key, uint64_t *size_out,
                        weft_store_tag *tag_out);
    weft_status (*remove)(void *self, weft_context *context, const char *key);
    weft_status (*watch)(void *self, weft_context *context, uint64_t after, double seconds, void *buffer,
                         size_t capacity, size_t *received_out);
    weft_status (*list)(void *self, weft_context *context, const char *prefix, weft_store_visit visit,
                        void *opaque);
    weft_status (*age)(void *self, weft_context *context, const char *key, double *seconds_out);
    void (*close)(void *self);
} weft_store_operations;

/* A store over the caller's table; `self` belongs to it and is closed with it. On failure `self` stays the
 * caller's. */
WEFT_API WEFT_CHECKED weft_status weft_store_create(weft_context *context, const char *url,
                                                    const weft_store_operations *operations, void *self,
                                                    weft_store **store_out);

#ifdef __cplusplus
}
#endif
#endif
