/* SPDX-License-Identifier: Apache-2.0
 *
 * group_control.h: what the members of a group know of each other, in memory that they share.
 *
 * There is no lock that a dead process could leave behind. Every word has one writer at a time: the
 * leader's are written by who holds the leader's file lock, those of a rank by who holds that rank's. The
 * kernel gives both up when their process ends, and that is how a death is noticed. The one word that
 * several may write is the decision of a step, and it is written once: from open to what became of it, by
 * compare-and-swap. Nothing in here is an offset or a length; a value that makes no sense can mislead, but
 * not crash.
 */
#ifndef WEFT_SYNC_GROUP_GROUP_CONTROL_H
#define WEFT_SYNC_GROUP_GROUP_CONTROL_H

#include <weft/sync.h>

enum { WEFT_GROUP_TEXT = 512 };

/* What became of a step. */
typedef enum weft_verdict_kind {
    WEFT_VERDICT_OPEN = 0,
    WEFT_VERDICT_COMMITTED = 1,
    /* all others mean that nobody commits it */
    WEFT_VERDICT_FAILED = 2,     /* the rank could not prepare it; its text says why */
    WEFT_VERDICT_DIED = 3,       /* the rank's process ended before it voted, or before the decision */
    WEFT_VERDICT_LATE = 4,       /* the rank did not vote in time */
    WEFT_VERDICT_LEADERLESS = 5, /* the leader ended before all had voted */
    WEFT_VERDICT_REFUSED = 6,    /* the rank rolled back */
    WEFT_VERDICT_WITHDRAWN = 7,  /* nobody had begun, and there was something newer */
    WEFT_VERDICT_FORGOTTEN = 8,  /* too long ago */
} weft_verdict_kind;

typedef struct weft_verdict {
    weft_verdict_kind kind;
    unsigned rank;
} weft_verdict;

/* Where a rank stands; the number of a step belongs to the last four. */
typedef enum weft_standing_kind {
    WEFT_STANDING_ABSENT = 0,
    WEFT_STANDING_FILLING = 1, /* it takes its weights from the mirror */
    WEFT_STANDING_READY = 2,   /* whole, at the step that it was filled at or committed */
    WEFT_STANDING_ENGAGED = 3, /* preparing or prepared */
    WEFT_STANDING_VOTED = 4,   /* for the commit */
    WEFT_STANDING_FAILED = 5,
} weft_standing_kind;

typedef struct weft_standing {
    weft_standing_kind kind;
    uint64_t number;
} weft_standing;

/* A step that the leader has prepared. */
typedef struct weft_group_step {
    uint64_t version;
    uint64_t milliseconds; /* when it was published */
    uint64_t file;         /* which step file holds it */
    bool anchor;           /* it leads there from any state */
    weft_digest base;
    weft_digest result;
} weft_group_step;

/* The copy of the model that all ranks are filled from. */
typedef struct weft_group_mirror {
    uint64_t sequence; /* another one: it has moved meanwhile */
    uint64_t number;   /* of the newest step that is in it */
    uint64_t version;  /* 0: it holds nothing */
    uint64_t milliseconds;
    weft_digest digest;
} weft_group_mirror;

typedef struct weft_group_shared weft_group_shared;

/* One leader's or member's hold on a group. */
typedef struct weft_group_room {
    weft_context *context;
    char *path;
    int directory;
    int file; /* its locks are the holder's */
    weft_group_shared *shared;
    unsigned members;
} weft_group_room;

/* Makes the directory, unless it is there, and takes the leader's place. WEFT_BUSY: somebody has it. */
weft_status weft_group_room_lead(weft_group_room *room, weft_context *context, const char *path,
                                 unsigned members);
/* Waits for the group to be there, and takes a rank's place. WEFT_BUSY: somebody has it. */
weft_status weft_group_room_join(weft_group_room *room, weft_context *context, const char *path,
                                 unsigned rank, double seconds);
void weft_group_room_close(weft_group_room *room);

/* Is somebody alive in the place? Not to be asked about one's own. */
bool weft_group_leader_lives(const weft_group_room *room);
bool weft_group_rank_lives(const weft_group_room *room, unsigned rank);
/* True if any rank's place is taken. */
bool weft_group_inhabited(const weft_group_room *room);

/* Every change is followed by a ring. Who waits looks at the bell first, then at what it waits for, and
 * then sleeps unless the bell has been rung since; or until the time is over, which is at most a few
 * milliseconds when a death must be noticed. */
void weft_group_ring(const weft_group_room *room);
uint32_t weft_group_bell(const weft_group_room *room);
/* WEFT_CANCELLED if the caller's progress function says so. */
weft_status weft_group_sleep(const weft_group_room *room, uint32_t bell, double seconds);

/* ---- steps ---- */

/* The number of the newest one; 0: none yet. */
uint64_t weft_group_newest(const weft_group_room *room);
/* By the leader, when the one before is decided. Returns its number. */
uint64_t weft_group_announce(const weft_group_room *room, const weft_group_step *step,
                             weft_verdict_kind kind);
/* Of a step whose verdict was read. False if it is no longer the newest. */
bool weft_group_read_step(const weft_group_room *room, uint64_t number, weft_group_step *step);
weft_verdict weft_group_verdict(const weft_group_room *room, uint64_t number);
/* Does nothing if it is decided already. */
void weft_group_decide(const weft_group_room *room, uint64_t number, weft_verdict verdict);
/* The failure of a step that was not committed, in the context. */
weft_status weft_group_explain(const weft_group_room *room, uint64_t number, uint64_t version);

/* ---- ranks ---- */

void weft_group_stand(const weft_group_room *room, unsigned rank, weft_standing standing);
weft_standing weft_group_standing(const weft_group_room *room, unsigned rank);
/* Why the rank failed. */
void weft_group_write_text(const weft_group_room *room, unsigned rank, const char *text);
/* By the leader: ranks that died are absent, so that the next step waits for them to come back. */
void weft_group_reap(const weft_group_room *room);

/* ---- the mirror ---- */

/* Where it lies, to be released with weft_release; NULL: no memory. */
char *weft_group_mirror_path(const weft_group_room *room);
/* False while it moves. */
bool weft_group_read_mirror(const weft_group_room *room, weft_group_mirror *mirror);
/* What it was before it began to move, whether or not it moves. For the leader. */
weft_group_mirror weft_group_last_mirror(const weft_group_room *room);
/* By the leader: between the two nobody believes it. */
void weft_group_move_mirror(const weft_group_room *room);
void weft_group_place_mirror(const weft_group_room *room, const weft_group_mirror *mirror);

#endif
