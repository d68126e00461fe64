/* SPDX-License-Identifier: Apache-2.0
 *
 * fault_store.h: a store over another store, which goes wrong when told to: by rules with dice that depend
 * on a seed only, or at the n-th operation, so that a test can fail each operation of a publish or a pull
 * in turn:
 *
 *     for (uint64_t n = 1;; n++) {
 *         fault_store_fail_at(faults, n, WEFT_REMOTE_FAILED);
 *         status = operation(store);
 *         if (!fault_store_fired(faults)) {
 *             break;
 *         }
 *     }
 *
 * A torn object is not among the faults: no store may show one. Safe from several threads. Several of these
 * over one store give a publisher and a subscriber faults of their own.
 *
 * Whoever is behind such a store can also be stopped, as a process is by a signal or a suspended machine:
 * no operation passes while what happens meanwhile is run. See pauses.h for sweeps of these.
 */
#ifndef WEFT_TESTS_FAULT_STORE_H
#define WEFT_TESTS_FAULT_STORE_H

#include <weft/store.h>

typedef enum fault_kind {
    FAULT_FAIL,  /* `status`, before anything happens */
    FAULT_LOSE,  /* the operation takes effect, and then gives `status`: its answer was lost */
    FAULT_DELAY, /* `seconds` later than asked */
    FAULT_LATE,  /* get, head: WEFT_NOT_FOUND; with `per_key` an object that shows up later than its name */
    FAULT_STALE, /* get, head: the content before the present one, if both passed through here */
    FAULT_WRONG, /* get: what lies under another key */
    FAULT_FLIP,  /* get: one bit is the other way round */
    FAULT_SHORT, /* get: the object ends earlier */
    FAULT_PAUSE, /* `meanwhile` is called first, and whoever else comes here waits until that has ended */
    FAULT_PAUSE_AFTER, /* the same when the operation has taken effect: its answer is on the way */
    FAULT_HOLD,        /* put, remove: on its way until fault_store_release, and the caller gets `status` */
    FAULT_KINDS,
} fault_kind;

enum {
    FAULT_ON_GET = 1,
    FAULT_ON_PUT = 2,
    FAULT_ON_HEAD = 4,
    FAULT_ON_REMOVE = 8,
    FAULT_ON_WATCH = 16,
    FAULT_ON_LIST = 32,
    FAULT_ON_AGE = 64,
    FAULT_RULES_MAX = 16,
};

/* What happens while somebody is stopped. It is called by a thread of theirs, and must come by another
 * store. */
typedef void (*fault_meanwhile)(void *opaque);

/* Zero in a field means that it says nothing, except in `kind`. */
typedef struct fault_rule {
    fault_kind kind;
    unsigned operations;       /* of FAULT_ON_…; 0: all that the kind can happen to */
    const char *pattern;       /* of keys, as fnmatch takes it; a watch has the key "" */
    double probability;        /* 0: 1 */
    uint64_t skip;             /* so many matching operations pass first */
    uint64_t limit;            /* it strikes at most so often */
    uint64_t per_key;          /* and at most so often at one key */
    weft_status status;        /* FAIL, LOSE and HOLD; 0: WEFT_REMOTE_FAILED */
    double seconds;            /* DELAY */
    const char *other;         /* WRONG: the other key; NULL: one whose content passed through here */
    fault_meanwhile meanwhile; /* PAUSE and PAUSE_AFTER; may be NULL */
    void *opaque;
} fault_rule;

typedef struct fault_store fault_store;

/* `inner` stays the caller's and must outlive the store. The control belongs to the store. */
weft_status fault_store_create(weft_context *context, weft_store *inner, uint64_t seed,
                               weft_store **store_out, fault_store **control_out);

/* Replaces the rules; the first that matches and wins its throw strikes. Texts must live as long as the
 * rules are in force. */
void fault_store_set(fault_store *control, const fault_rule *rules, size_t count);

/* The n-th operation from now fails, from 1; 0: none. Rules do not touch that operation. */
void fault_store_fail_at(fault_store *control, uint64_t n, weft_status status);
/* The same, but its answer is lost. */
void fault_store_lose_at(fault_store *control, uint64_t n, weft_status status);
/* The n-th and all later ones fail: to whoever is behind this store, the others' world ends there. */
void fault_store_fail_from(fault_store *control, uint64_t n, weft_status status);
/* The n-th of those that the rule's kind can happen to is struck by it, whatever it says of operations,
 * keys and chances. With `last` all later ones of any sort fail. */
void fault_store_strike_at(fault_store *control, uint64_t n, const fault_rule *rule, bool last);
/* True if the operation was reached. Waits for what happens while it is stopped. */
bool fault_store_fired(fault_store *control);
/* Operations since the last of these calls. */
uint64_t fault_store_calls(fault_store *control);

/* Which operation that was ("putting heads/1"), or "". Valid until the next of these calls. */
const char *fault_store_reached(fault_store *control);

/* What is held on its way arrives, in the order in which it was sent, with the conditions that it was sent
 * with; nobody hears how it went. Returns how many requests there were. */
size_t fault_store_release(fault_store *control, weft_context *context);

/* Takes conditional puts away: WEFT_UNSUPPORTED. */
void fault_store_set_plain(fault_store *control, bool plain);
/* Puts here of a head that somebody has changed since it passed through here: those which a condition would
 * have refused. Counted in a plain store only. */
uint64_t fault_store_overlaps(fault_store *control);

/* So much has passed since the objects were written, besides what really has. */
void fault_store_set_age(fault_store *control, double seconds);

/* How often a kind has struck since the store was made. */
uint64_t fault_store_count(fault_store *control, fault_kind kind);

#endif
