/* SPDX-License-Identifier: Apache-2.0
 *
 * relay.h: the inside of a relay, for its own files.
 *
 *   relay.c           heads: one thread that watches the store; and the relay's life
 *   relay_lookup.c    what a key is: known, a head, or to be learned by walking the history
 *   relay_flight.c    objects on their way: one fetch for all who read, chunks checked as they come
 *   relay_reader.c    who reads, and waits
 *   relay_store.c     the same as a store, for who can wait
 *   relay_catalog.c   which objects there are, and their hashes
 *   relay_cache.c     what lies on disk
 *
 * One lock guards everything; nothing that waits for a network or writes to a disk is done under it. Lock
 * order: the relay's, then whatever the hooks of a reader take.
 */
#ifndef WEFT_RELAY_RELAY_H
#define WEFT_RELAY_RELAY_H

#include "../sync/follow/follow.h"
#include "relay_cache.h"
#include "relay_catalog.h"

#include <pthread.h>
#include <stdatomic.h>

enum { WEFT_RELAY_LOADERS = 8, WEFT_RELAY_OLD_HEADS = 64 };

/* A failure, as it is told to everybody who waited for the same thing. */
typedef struct weft_relay_failure {
    weft_status status;
    char text[WEFT_RELAY_TEXT];
} weft_relay_failure;

/* ---- readers ---- */

typedef enum weft_reader_state {
    READER_LOOKUP, /* nobody knows yet what the key is */
    READER_KNOWN,  /* an object of the history */
    READER_FLIGHT, /* … that is on its way, or was when the reader came */
    READER_FILE,   /* … that is here */
    READER_MEMORY, /* a head */
    READER_FAILED,
} weft_reader_state;

struct weft_relay_reader {
    weft_relay *relay;
    weft_context *context;
    weft_relay_hooks hooks;
    char key[WEFT_KEY_SIZE];
    weft_reader_state state;
    uint64_t epoch;      /* of a head's key; else 0 */
    uint64_t generation; /* of the heads that were known when it came */
    uint64_t walk;       /* the number of the last walk that had begun by then */
    weft_relay_object object;
    uint8_t *memory;
    weft_flight *flight;
    weft_relay_failure failure;
    uint64_t chunk;          /* that it waits for, or reads */
    const uint8_t *held;     /* that chunk, if it is in memory */
    bool suspended;          /* by the call that is being made */
    weft_relay_reader *next; /* in the list of those who wait for the same */
};

/* Under the lock. */
void weft_reader_fail(weft_relay_reader *reader, const weft_relay_failure *failure);
/* Suspends a reader and puts it into a list. */
void weft_reader_suspend(weft_relay_reader *reader, weft_relay_reader **list);

/* ---- flights ---- */

struct weft_flight {
    weft_flight *next;     /* of the relay's; the oldest first */
    weft_relay_item *item; /* NULL: it is in the cache, and only its last readers keep it */
    uint64_t bytes, chunk_bytes;
    size_t count;
    bool prepared, preparing;
    int file;          /* the draft; -1: there is none, and chunks are held in memory */
    bool adopted;      /* the draft is a file of the cache, of which nothing is believed */
    uint8_t *ready;    /* per chunk: it was checked and can be read */
    uint8_t **held;    /* per chunk: its bytes, if they could not be written; NULL: all could */
    uint64_t reserved; /* bytes of the draft that the cache counts */
    uint64_t held_bytes;
    size_t segment_chunks, segment_count, segments_ready;
    uint8_t *segments; /* their states */
    unsigned loaders;  /* that work on it */
    unsigned readers;
    bool wanted; /* by the relay itself */
    bool fetched;
    bool done; /* all is there */
    weft_relay_failure failure;
    double retry_at;
    weft_relay_reader *waiting;
};

/* Under the lock. The flight of an item, which is begun if there is none; one that failed a while ago tries
 * again. NULL if there is no memory. */
weft_flight *weft_flight_for(weft_relay *relay, weft_relay_item *item);
/* A reader no longer reads it. */
void weft_flight_leave(weft_relay *relay, weft_flight *flight);
/* The relay wants an item to be there, and to teach. */
weft_flight *weft_flight_want(weft_relay *relay, weft_relay_item *item);
/* Opens the file of an item that was verified, if it is still the same, and all that it has told of is
 * still known. Below zero one of these: */
enum { WEFT_FILE_OTHER = -1, WEFT_FILE_SHORTAGE = -2 }; /* it is not; no descriptor is left to look */
extern const weft_relay_failure WEFT_RELAY_SHORTAGE;
int weft_flight_open_proven(weft_relay *relay, weft_relay_item *item);
/* The threads. */
weft_status weft_flight_start(weft_relay *relay);
void weft_flight_stop(weft_relay *relay);
void weft_flight_release_all(weft_relay *relay);

/* ---- looking up ---- */

/* A head of an earlier epoch. */
typedef struct weft_old_head {
    uint64_t epoch; /* 0: the place is free */
    bool wanted, loading;
    double fetched; /* when */
    weft_relay_failure failure;
    size_t size;
    uint8_t data[WEFT_HEAD_MAX];
} weft_old_head;

/* Under the lock: settles what the reader's key is, or puts it into a list and suspends it. */
void weft_lookup_begin(weft_relay_reader *reader);
/* Under the lock: goes on with the walk over the history, as far as somebody waits for it. */
void weft_lookup_walk(weft_relay *relay);
/* Under the lock: a head of an earlier epoch that is to be fetched. */
weft_old_head *weft_lookup_choose(weft_relay *relay);
/* Without the lock. */
void weft_lookup_fetch(weft_relay *relay, weft_context *context, weft_old_head *head);
/* Under the lock: resumes all, who then find that it is over. */
void weft_lookup_dismiss(weft_relay *relay);

/* ---- the relay ---- */

typedef struct weft_relay_walk {
    bool active;
    uint64_t number;
    uint64_t generation; /* of the head that it began with */
    uint64_t prunes;     /* of the catalog, when it began */
    weft_blob cursor;
    uint64_t below; /* the page at the cursor ends below this version, or the walk would never end */
    unsigned pages; /* that were passed */
} weft_relay_walk;

typedef struct weft_relay_loader {
    weft_relay *relay;
    weft_context *context;
    pthread_t thread;
} weft_relay_loader;

struct weft_relay {
    pid_t process;         /* that opened it */
    weft_context *owner;   /* whose memory it is itself */
    weft_context *context; /* for the memory of all else */
    weft_store *upstream;
    weft_relay_options options;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    atomic_bool stopping;
    bool over; /* the threads have ended: nobody may be suspended any more */

    weft_relay_cache cache;
    weft_relay_catalog catalog;

    /* the newest head */
    uint64_t generation; /* counts heads; 0: there is none yet */
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_head_info info;
    weft_blob page;
    bool started; /* it has a version, and `page` holds */
    uint64_t floor;
    bool looked; /* once at least */
    bool asked;  /* the store has answered, if only that there is none */
    bool reached;
    double idle_seconds; /* the longest pause between two looks at the upstream; 0: it is not polled with
                            care */
    double state_since;
    double confirmed;          /* 0: never */
    bool head_lost, mark_lost; /* the disk had no room for the newest head, or for the mark */
    char error[WEFT_RELAY_TEXT];

    weft_old_head old_heads[WEFT_RELAY_OLD_HEADS];
    weft_relay_reader *lookups;
    weft_relay_walk walk;
    uint64_t walked;        /* the generation whose history is known as far back as it is kept, */
    uint64_t walked_prunes; /* unless the catalog has forgotten something since */

    weft_flight *flights;
    uint64_t held_bytes;
    unsigned bulk_loaders; /* that work on objects of several segments */
    weft_relay_stats stats;

    weft_follow follow;
    weft_context *watcher_context;
    pthread_t watcher;
    bool watching;
    weft_relay_loader loaders[WEFT_RELAY_LOADERS];
    unsigned loader_count;
};

/* Where every call begins that is not from a thread of the relay's own. */
weft_status weft_relay_enter(weft_context *context, const weft_relay *relay);

#endif
