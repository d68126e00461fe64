/* SPDX-License-Identifier: Apache-2.0
 *
 * http_exchange.h: one HTTP request and its answer.
 *
 * The caller fills in what it asks, the engine's thread runs it, and the caller reads the answer after
 * that. Nothing in an answer is believed: a body never goes beyond the caller's buffer, and the bytes of a
 * range count only if the server says that they are the range asked for.
 */
#ifndef WEFT_STORE_HTTP_HTTP_EXCHANGE_H
#define WEFT_STORE_HTTP_HTTP_EXCHANGE_H

#include <weft/store.h>

#include <curl/curl.h>
#include <pthread.h>

enum {
    WEFT_HTTP_URL_MAX = 4096,
    WEFT_HTTP_LOCATION_MAX = 256,
    WEFT_HTTP_REGION_MAX = 64,
    WEFT_HTTP_REMARK_MAX = 4096,
    WEFT_HTTP_HASH_MAX = 65,
    WEFT_HTTP_MD5_MAX = 25,
};

/* How requests are signed, as S3 wants it (AWS Signature Version 4). curl does it; what it leaves to its
 * caller is to say what is known of the body. */
typedef struct weft_http_signing {
    const char *scheme; /* as CURLOPT_AWS_SIGV4 takes it */
    const char *user;
    const char *secret;
    const char *token; /* the header line of temporary credentials, or NULL */
} weft_http_signing;

/* How one request shows who asks. */
typedef struct weft_http_proof {
    const char *authorization; /* the header line, or NULL */
    bool is_signed;
    weft_http_signing signing;
    uint64_t serial; /* of what the proof is made from: another number, another secret */
} weft_http_proof;

/* Who asks. What proves it may change while the store is open, so each request takes it anew. */
typedef struct weft_http_identity {
    /* Gets what is newest, which may take a while and fail. What it gives stays as it is until `release`,
     * which follows at once. */
    weft_status (*hold)(void *opaque, weft_context *context, weft_http_proof *proof_out);
    void (*release)(void *opaque);
    void *opaque;
} weft_http_identity;

/* What all exchanges of a store share. */
typedef struct weft_http_settings {
    const weft_http_identity *identity; /* NULL: nobody in particular */
    bool direct;                        /* past any proxy */
    bool steady_tags;                   /* tags tell contents apart however young they are */
    char *ca_file;                      /* or NULL */
    double connect_seconds;
    double stall_seconds;
} weft_http_settings;

typedef enum weft_http_method {
    WEFT_HTTP_GET,
    WEFT_HTTP_HEAD,
    WEFT_HTTP_PUT,
    WEFT_HTTP_POST,
    WEFT_HTTP_DELETE,
} weft_http_method;

/* The bytes of a put on their way from the caller's thread, which may have to wait for them, to the
 * engine's, which must not. A ring; guarded by the engine's mutex. Bytes that are all in memory are a ring
 * that is full from the beginning. */
typedef struct weft_http_pipe {
    uint8_t *ring;
    size_t capacity;
    uint64_t filled; /* bytes in all, ever */
    uint64_t drained;
    bool ended;
    bool dry; /* curl waits for bytes: the transfer is paused */
} weft_http_pipe;

typedef struct weft_http_answer {
    CURLcode code;
    long status;       /* 0: none came */
    long certificate;  /* what the check of the server's certificate said; see X509_V_ERR_… */
    long system_error; /* errno of a failed connect, or 0 */
    bool stale; /* failed without an answer, on a connection that was kept from an earlier exchange */
    bool weft;  /* from a server of ours */
    bool has_length;
    uint64_t length; /* of the body, as announced */
    bool has_range;
    uint64_t range_first, range_last, range_size;
    bool encoded;       /* compressed on the way, which nobody asked for */
    weft_store_tag tag; /* a strong one that is known to mean these bytes; else empty */
    time_t date, modified;
    double retry_seconds;
    char location[WEFT_HTTP_LOCATION_MAX];
    char region[WEFT_HTTP_REGION_MAX]; /* where the bucket is, as S3 says */
    char text[CURL_ERROR_SIZE];
} weft_http_answer;

typedef struct weft_http_exchange {
    /* what is asked */
    weft_http_method method;
    char url[WEFT_HTTP_URL_MAX];
    const char *conditions[2]; /* header lines, or NULL */
    const char *const *lines;  /* more of them, up to a NULL; or NULL */
    bool ranged;               /* only the bytes from `first` to `last` */
    uint64_t first, last;
    uint8_t
        *buffer; /* takes `room` bytes of the answer from `first` on; NULL: nothing but a remark is kept */
    uint64_t room;
    void (*arrived)(void *opaque, uint64_t received); /* as in the get's request, or NULL */
    void *arrived_opaque;
    uint64_t arrived_before;       /* bytes that the get has from earlier exchanges */
    uint64_t put_size;             /* UINT64_MAX: not known yet */
    char hash[WEFT_HTTP_HASH_MAX]; /* SHA-256 of a signed body, in hexadecimal; empty: not known */
    char md5[WEFT_HTTP_MD5_MAX];   /* MD5 of it, in base64; empty: not known */
    bool fresh;                    /* on a connection of its own, so that curl never repeats it by itself */
    bool asks; /* the server says whether it wants the body before that is sent, as ours always does */
    double wait_seconds; /* that the server may keep still beyond the usual; such an exchange waits for
                            nobody's turn */

    /* what came back */
    weft_http_answer answer;
    uint64_t received; /* bytes in the buffer */
    uint64_t body;     /* bytes that came, whether kept or not */
    bool begun;        /* the body has */
    bool satisfied;    /* the buffer has all that was wanted, and the rest was not waited for */
    bool overrun;      /* the body was longer than announced */
    bool misranged;    /* a range came that was not asked for */
    char remark[WEFT_HTTP_REMARK_MAX]; /* the beginning of a body that is no object */
    size_t remark_size;

    /* the engine's */
    weft_http_pipe pipe;
    CURL *easy;
    struct curl_slist *headers;
    uint64_t proof;         /* its serial */
    pthread_mutex_t *mutex; /* of the pipe and of what follows, up to `over` */
    pthread_cond_t changed; /* the pipe has room, or it is over */
    uint64_t ready;         /* bytes in the buffer, as the caller may know; of gets that are told */
    uint64_t told;          /* … and as it was told */
    bool resume;            /* the pipe is no longer dry */
    bool cancel;
    bool over;
    bool stalled;         /* nothing moved for too long, or next to nothing */
    bool steady_tags;     /* as the settings have it */
    uint64_t moved;       /* bytes of bodies in either direction, as last seen */
    unsigned steps;       /* that were done, as last seen */
    double patient_until; /* given up then, unless enough moves */
    struct weft_http_exchange *next;
} weft_http_exchange;

/* Gives a put its bytes, which must stay where they are until it is over. */
void weft_http_exchange_fill(weft_http_exchange *exchange, const void *data, size_t size);

/* Makes curl's handle. False if there is no memory for it. */
bool weft_http_exchange_prepare(weft_http_exchange *exchange, const weft_http_settings *settings,
                                const weft_http_proof *proof);
void weft_http_exchange_release(weft_http_exchange *exchange);
/* After the last byte, with curl's verdict. */
void weft_http_exchange_finish(weft_http_exchange *exchange, CURLcode code);

/* A strong tag, quotes included. A weak one ("W/…") does not promise the same bytes; a tag from elsewhere,
 * such as a directory, must not become a line of a request. */
bool weft_http_tag_valid(const weft_store_tag *tag);
/* True if the URL has such a part. */
bool weft_http_url_has(CURLU *url, CURLUPart part);
/* One line of an answer's header. */
void weft_http_answer_read(weft_http_answer *answer, const char *line, size_t size);

#endif
