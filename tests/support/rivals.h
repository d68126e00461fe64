/* SPDX-License-Identifier: Apache-2.0
 *
 * rivals.h: several publishers of one run, a collector, and a reader that follows all along, around one
 * store; and a ledger of every version that one of them was told is published. One of the publishers is the
 * subject, which is stopped or killed (see pauses.h); the others do something meanwhile. In the end all
 * that is in the ledger must be in the history, and the run must go on.
 *
 * What is not as it should be fails the case of the pause, and the rest goes on as well as it can.
 */
#ifndef WEFT_TESTS_RIVALS_H
#define WEFT_TESTS_RIVALS_H

#include "pauses.h"
#include "scenes.h"

#include <pthread.h>

enum { RIVALS_OTHERS = 3, RIVALS_VERSIONS = 64, RIVALS_ROWS = 16, RIVALS_COLUMNS = 16, RIVALS_BYTES = 512 };

typedef struct rival {
    char name; /* of the subject, 'A' */
    weft_context *context;
    weft_store *store; /* its own way to the place */
    fault_store *faults;
    model model; /* tiny: a sweep publishes it a hundred thousand times */
    dice dice;
    weft_publisher_options options;
    char mirror[SCENE_PATH_MAX]; /* for options.mirror_path, if it is to have one; alone in its directory */
    weft_publisher *publisher;   /* NULL: it has not taken over yet, could not, or is gone */
} rival;

typedef struct acknowledged {
    char by;
    uint64_t version;
    weft_digest digest;
} acknowledged;

typedef struct rivals {
    pause_case *pause;
    scratch scratch;
    weft_context *outside;
    scene_place place;
    bool plain;
    rival subject;
    rival others[RIVALS_OTHERS];
    unsigned taken_over; /* how often others have, since the pause began */
    weft_context *collecting;
    weft_store *aged; /* the collector's: a day later */
    fault_store *aging;
    weft_context *reading;
    model follower;
    weft_subscriber *subscriber;
    uint64_t seen;        /* the version that the follower was last at */
    pthread_mutex_t lock; /* of the ledger */
    acknowledged ledger[RIVALS_VERSIONS];
    size_t count;
} rivals;

/* True if the store of these tests has no conditional puts. */
bool rivals_place_is_plain(void);
/* With `plain`, publishers have no conditional puts, wherever the store is. */
void rivals_open(rivals *rivals, pause_case *pause, bool plain);
void rivals_close(rivals *rivals);

/* Opens a publisher, which takes over unless the run is its own; after closing the one before. */
weft_status rival_take(rival *rival);
/* One step of training, and a publish; what is acknowledged goes to the ledger. Without a publisher,
 * WEFT_CONFLICT. */
weft_status rival_publish(rivals *rivals, rival *rival);
/* The two halves of that. */
void rival_step(rival *rival);
void rivals_acknowledge(rivals *rivals, const rival *rival, uint64_t version);
/* As a killed process leaves it. */
void rival_end(rival *rival);

/* What the others do. Each must work. */
void rivals_take(rivals *rivals, unsigned other);
void rivals_publish(rivals *rivals, unsigned other);
void rivals_collect(rivals *rivals);
/* The follower goes to the newest version, which is never one before where it is. */
void rivals_follow(rivals *rivals);
/* And a newcomer too. */
void rivals_read(rivals *rivals);

/* What can happen meanwhile, by number; `rivals` is the opaque of a fault_meanwhile. The first is nothing
 * but reading. */
typedef enum rivals_event {
    RIVALS_NOTHING,
    RIVALS_COLLECT,
    RIVALS_TAKE,
    RIVALS_TAKE_PUBLISH,
    RIVALS_TAKE_COLLECT, /* takes over, publishes with anchors so that the versions before go, and collects
                          */
    RIVALS_TAKE_TWICE,   /* two of them, one after the other; both publish */
    RIVALS_PUBLISH,      /* the second of the others, who has the run already, publishes */
    RIVALS_SAME, /* one with a copy of the subject's mirror and identity, or with both if it is dead,
                    publishes */
    RIVALS_EVENTS,
} rivals_event;
extern const char *const rivals_event_names[RIVALS_EVENTS];
void rivals_happen(void *opaque);
/* The same without reading, for a subject whom readers need. */
void rivals_happen_unread(void *opaque);

/* After the pause: the subject goes on if it is alive; another takes over; all that was acknowledged is in
 * the history, can be pulled unless it is below the floor, and readers are at the newest version; log and
 * gc work. */
void rivals_check(rivals *rivals);
/* True if the weights are what was published last of all by rivals_check. */
bool rivals_newest(const rivals *rivals, const model *model);
/* Memory for one more replica. */
void rivals_model(model *model, weft_context *context);

#endif
