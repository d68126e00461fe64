/* SPDX-License-Identifier: Apache-2.0
 *
 * publish.pml: epochs, heads, seals, claims, takeover, gc and readers over one store.
 *
 * Publisher 1 owns epoch 1. Others take over whenever they like, and publish too. A collector removes
 * objects, and a reader follows. Each `atomic` is one request to the store, and what its sender concludes
 * from the answer alone. Before any of them a process may be stopped for as long as it likes, while the others
 * go on: that is what interleaving means. One that is never scheduled again is one that has died, so that
 * deaths need no words here.
 *
 * Time is not modelled: any object may be as old as it likes. What protects it must be a rule, not its age.
 *
 * -DPLAIN        a store without conditional puts; else one that heeds them
 * -DWRITERS=n    publisher 1 and n-1 takers          -DEDITIONS=n   versions that each tries to publish
 * -DEPOCHS=n     the last epoch that can begin       -DGIVEN_UP=n   puts of heads whose answer is lost
 * -DRESTARTS=n   times that a publisher is killed, and followed by a process with the same cache
 * -DAGAIN        a page may also be written again for the present version, as when an anchor was made
 * -DGC -DREADER  with a collector; with a reader
 * -DLIVE         for the formula at the end: publisher 1 may die at any step, which is then said with words
 * -DLIMIT_x      with what a plain store does not bear, which must break it; -DMUTANT_x: with a defect, which must be
 *                found. README.md has them all
 */
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef EDITIONS
#define EDITIONS 1
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef GIVEN_UP
#define GIVEN_UP 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif

#define PAGES (1 + WRITERS * EDITIONS)
#define bit(number) (1 << (number))

/* ---- the store ---- */

/* heads/E. Of sequence 0: there is none. All of it together is its tag. */
typedef head {
    byte sequence;
    byte writer;
    byte page
};
head heads[EPOCHS + 2];
head absent;

/* What a page says: its version; its history, as the set of pages that it goes back over, itself among them;
 * and the page that was made with the patch that leads to its version, itself unless it repeats a version.
 * Page 0 is version 1, which was there before. */
byte version[PAGES];
short history[PAGES];
byte patch_of[PAGES];
byte made_in[PAGES]; /* the epoch in its key */

/* What is there, as sets: pages, and patches by the page that they were made with. */
short pages = bit(0);
short patches = bit(0);

/* The pages of versions whose publish returned OK. */
short acknowledged;

/* ---- what holds ---- */

hidden byte at;
hidden byte newest;

inline find_last_epoch(last) {
    last = EPOCHS;
    do
    :: heads[last].sequence == 0 -> last--
    :: else -> break
    od
}

/* What somebody believes who looks for the first time. A head of sequence 1 is unsettled, and is not believed:
 * on a plain store the one before it may be ahead. */
inline find_newest() {
    find_last_epoch(at);
    do
    :: heads[at].sequence == 1 -> at--
    :: else -> break
    od;
    newest = heads[at].page
}

/* Asked whenever the store has changed, and at each acknowledgement. */
inline check() {
    d_step {
        find_newest();
        /* P1: what was acknowledged is in the history that readers follow. A history has one version of each
         * number, so no two publishers were told that they had published the same (P4). */
        assert((acknowledged & ~history[newest]) == 0);
        /* P3: what is kept is there. Here each version retires all before it. */
        assert(pages & bit(newest));
        assert(patches & bit(patch_of[newest]));
        at = 0;
        newest = 0
    }
}

/* ---- puts of heads ---- */

mtype = { WRITTEN, CONFLICT, UNKNOWN };

/* A put that was given up, or whose sender has died, and that the server may do at any time. */
typedef flight {
    byte epoch; /* 0: there is none */
    head expected;
    head bytes
};
flight flights[WRITERS + 1];
byte given_up;

#define may_be_given_up(who) (flights[who].epoch == 0 && given_up < GIVEN_UP)
#define is_same(a, b) (a.sequence == b.sequence && a.writer == b.writer && a.page == b.page)

inline set_head(target, new_sequence, new_writer, new_page) {
    target.sequence = new_sequence;
    target.writer = new_writer;
    target.page = new_page
}

inline copy_head(target, source) {
    set_head(target, source.sequence, source.writer, source.page)
}

inline give_up(sender, key, condition, content) {
    given_up++;
    flights[sender].epoch = key;
    copy_head(flights[sender].expected, condition);
    copy_head(flights[sender].bytes, content)
}

/* Puts a head if the one that is there is the expected one; absent: if there is none. The answer may be lost,
 * with the put done or still to be done. Or it has come, and an earlier attempt at the same is still on its way. */
inline put_if(who, where, expect, put, outcome) {
    if
    :: is_same(heads[where], expect) ->
        copy_head(heads[where], put);
        outcome = WRITTEN;
        check()
    :: is_same(heads[where], expect) && may_be_given_up(who) ->
        copy_head(heads[where], put);
        give_up(who, where, expect, put);
        outcome = WRITTEN;
        check()
    :: !is_same(heads[where], expect) -> outcome = CONFLICT
    :: may_be_given_up(who) ->
        give_up(who, where, expect, put);
        outcome = UNKNOWN
    fi
}

/* Puts a head on a plain store, whatever is there. If the answer is lost, it was done or never will be: what is done
 * after its sender has given up is a limit of plain stores. */
inline put_always(who, where, put, outcome) {
    if
    :: copy_head(heads[where], put);
        outcome = WRITTEN;
        check()
    :: may_be_given_up(who) ->
        copy_head(heads[where], put);
        given_up++;
        outcome = UNKNOWN;
        check()
    :: may_be_given_up(who) ->
        given_up++;
        outcome = UNKNOWN
#ifdef LIMIT_LATE
    :: may_be_given_up(who) ->
        give_up(who, where, absent, put);
        outcome = UNKNOWN
#endif
    fi
}

inline arrive(from) {
    if
#ifndef PLAIN
    :: !is_same(heads[flights[from].epoch], flights[from].expected)
#endif
    :: else ->
        copy_head(heads[flights[from].epoch], flights[from].bytes);
        check()
    fi;
    flights[from].epoch = 0;
    copy_head(flights[from].expected, absent);
    copy_head(flights[from].bytes, absent)
}

#if GIVEN_UP > 0 && (!defined(PLAIN) || defined(LIMIT_LATE))
proctype network() {
end:
    do
    :: atomic { flights[1].epoch != 0 -> arrive(1) }
#if WRITERS > 1
    :: atomic { flights[2].epoch != 0 -> arrive(2) }
#endif
#if WRITERS > 2
    :: atomic { flights[3].epoch != 0 -> arrive(3) }
#endif
    od
}
#endif

/* ---- publishers ---- */

byte claiming; /* plain stores: who is between its look for the next epoch and its claim of it */
byte restarts;

inline take_higher(where, best) {
    if
    :: version[heads[where].page] > version[best] -> best = heads[where].page
    :: else
    fi
}

/* From `below` on: the newest head that is settled, each read by a request of its own. */
inline find_settled() {
    do
    :: unsettled ->
        atomic {
            below--;
#ifdef MUTANT_BELIEVE_HIGHER
            take_higher(below, page);
#else
            page = heads[below].page;
#endif
            unsettled = heads[below].sequence == 1
        }
    :: else -> break
    od
}

/* The objects come first; nothing names them yet. */
inline make_edition(again) {
    mine = 1 + (me - 1) * EDITIONS + made;
    made++;
    repeats = again;
    version[mine] = (again -> version[page] : version[page] + 1);
    history[mine] = history[page] | bit(mine);
    patch_of[mine] = (again -> patch_of[page] : mine);
    made_in[mine] = epoch;
    pages = pages | bit(mine);
    patches = (again -> patches : patches | bit(mine));
    was_fenced = heads[epoch + 1].sequence != 0 || heads[epoch].writer != me
}

/* A page that was written again is nothing that anybody is told of. */
inline acknowledge() {
    if
    :: repeats
    :: else ->
#ifndef PLAIN
        /* P4: who was fenced before it began is not told that it has published. (On a plain store it is, if what
         * it has put was taken along all the same.) */
        assert(!was_fenced);
#endif
        acknowledged = acknowledged | bit(mine);
        check()
    fi
}

inline forget_edition() {
    mine = 0;
    repeats = false;
    was_fenced = false;
    answer = 0;
    copy_head(next, absent)
}

#ifdef LIVE
#define may_die (me == 1)
#define pause if :: skip :: may_die -> goto ended fi
#else
#define may_die true
#define pause skip
#endif

proctype publisher(byte me) {
    byte epoch;
    byte page;     /* of the newest version, as far as this publisher knows */
    byte made;     /* editions so far */
    byte mine;     /* the page that is to be published */
    byte issued;   /* the last sequence that was given to a head; it is given to no other */
    byte identity; /* the epoch that a process with the same cache may go on with; 0: none */
    byte below;
    bool unsettled;
    bool repeats;
    bool was_fenced;
    head known;    /* heads/epoch as this publisher has put or read it: its tag */
    head next;
    mtype answer;

    if
    :: me != 1
    :: else ->
        atomic {
            epoch = 1;
            identity = 1;
            issued = 2;
            set_head(known, 2, 1, 0)
        }
        goto ready
    fi;

look:
    pause; /* a step of its own: between two requests others may come */
    atomic {
        find_last_epoch(epoch);
        if
        :: epoch == EPOCHS -> goto ended
        :: else
        fi
    }

#ifndef PLAIN

    atomic {
        copy_head(known, heads[epoch]);
        page = known.page;
        if
        :: identity == epoch && known.writer == me -> issued = known.sequence; goto renew
        :: else
        fi
    }
#if !defined(MUTANT_NO_SEAL) && !defined(MUTANT_CLAIM_FIRST)
    atomic { /* the seal: the last word on this epoch */
        set_head(next, known.sequence + 1, me, page);
        put_if(me, epoch, known, next, answer);
        if
        :: answer == WRITTEN
        :: else -> forget_edition(); goto look
        fi
    }
#endif
    atomic { /* the claim of the next */
        set_head(next, 1, me, page);
        put_if(me, epoch + 1, absent, next, answer);
        if
        :: answer == WRITTEN ->
            epoch++;
            copy_head(known, next);
            issued = 1;
            identity = epoch;
            forget_edition()
        :: else -> forget_edition(); goto look
        fi
    }
#ifdef MUTANT_CLAIM_FIRST
    atomic { /* the seal comes after the claim */
        heads[epoch - 1].sequence++;
        heads[epoch - 1].writer = me
    }
#endif
#ifdef MUTANT_NO_SEAL
    atomic { /* what was published between the look and the claim is taken along */
        take_higher(epoch - 1, page);
        if
        :: page == known.page -> goto ready
        :: else
        fi
    }
    atomic {
        issued++;
        set_head(next, issued, me, page);
        put_if(me, epoch, known, next, answer);
        if
        :: answer == WRITTEN -> copy_head(known, next); forget_edition()
        :: else -> forget_edition(); goto look
        fi
    }
#endif
    goto ready;

renew: /* what a process before us has left on its way must not arrive any more */
    pause;
    atomic {
        issued++;
        set_head(next, issued, me, page);
        put_if(me, epoch, known, next, answer);
        if
        :: answer == WRITTEN -> copy_head(known, next); forget_edition()
        :: else -> forget_edition(); goto look
        fi
    }

ready:
    if
    :: made < EDITIONS -> d_step { make_edition(false) }
#ifdef AGAIN
    :: made < EDITIONS -> d_step { make_edition(true) }
#endif
#if RESTARTS > 0
    :: atomic { restarts < RESTARTS -> restarts++; goto look }
#endif
    :: me == 1 || made == EDITIONS -> goto ended
    fi;
#ifdef MUTANT_NO_SEAL
    atomic { /* the look for a later epoch comes before the put */
        if
        :: heads[epoch + 1].sequence != 0 -> goto ended
        :: else
        fi
    }
#endif
put_head:
    pause;
    atomic {
        issued++;
        set_head(next, issued, me, mine);
        put_if(me, epoch, known, next, answer);
        if
        :: answer == WRITTEN ->
            acknowledge();
            page = mine;
            copy_head(known, next);
            forget_edition();
            goto ready
        :: answer == UNKNOWN -> goto resolve
        :: answer == CONFLICT
        fi
    }
read_head:
    pause;
    atomic {
        copy_head(next, heads[epoch]);
        if
        :: next.page == mine -> acknowledge(); page = mine
        :: else
        fi;
        if
        :: next.writer == me && (next.page == mine || next.page == page) ->
            copy_head(known, next);
            forget_edition();
            goto ready
#ifdef MUTANT_WRITE_OVER
        :: next.writer == me && next.page != mine && next.page != page ->
            copy_head(known, next);
            goto put_head
#endif
        :: else -> goto ended /* it is a stranger's, or one of ours that has come too late: finished, and told so */
        fi
    }
resolve:
    pause;
#ifdef MUTANT_WRITE_OVER
    goto read_head;
#endif
    atomic { /* once this is done, what was given up never will be */
        issued++;
        set_head(next, issued, me, page);
        put_if(me, epoch, known, next, answer);
        if
        :: answer == WRITTEN ->
            copy_head(known, next);
            forget_edition();
            goto ready
        :: answer == UNKNOWN -> goto resolve
        :: answer == CONFLICT -> goto read_head
        fi
    }

#else /* PLAIN */

    atomic {
        page = heads[epoch].page;
        unsettled = heads[epoch].sequence == 1;
        below = epoch
    }
    find_settled();
#ifndef LIMIT_OVERLAP
    atomic { claiming == 0 -> claiming = me } /* that claims do not overlap is the operator's duty */
#endif
    atomic {
        if
        :: heads[epoch + 1].sequence != 0 -> claiming = 0; goto look
        :: else
        fi
    }
    if
    :: skip
    :: atomic { may_die -> claiming = 0; goto ended } /* others may claim now */
    fi;
    atomic { /* the claim */
        epoch++;
        set_head(heads[epoch], 1, me, page);
        claiming = 0;
        issued = 1;
        check()
    }
    atomic { /* is it ours? */
        if
        :: heads[epoch].writer != me -> goto look
        :: else
        fi
    }
    /* the settling: what the publisher before has put since our look is taken along */
#ifndef MUTANT_NO_SETTLE
    atomic {
        unsettled = true;
        below = epoch
    }
    find_settled();
#endif
    atomic {
        issued = 2;
        set_head(heads[epoch], 2, me, page);
        check();
        unsettled = false;
        below = 0
    }

ready:
    if
    :: made < EDITIONS -> d_step { make_edition(false) }
#ifdef AGAIN
    :: made < EDITIONS -> d_step { make_edition(true) }
#endif
#if RESTARTS > 0
    :: atomic { restarts < RESTARTS -> restarts++; goto look }
#endif
    :: me == 1 || made == EDITIONS -> goto ended
    fi;
    atomic { /* is the head still ours? */
        if
        :: heads[epoch].writer != me -> goto ended
        :: else
        fi
    }
    atomic {
        issued++;
        set_head(next, issued, me, mine);
        put_always(me, epoch, next, answer);
        if
        :: answer == WRITTEN -> goto later_epoch
        :: answer == UNKNOWN
        fi
    }
    atomic { /* what is not there counts as never sent */
        if
        :: heads[epoch].page == mine
        :: heads[epoch].page != mine && heads[epoch].writer == me -> forget_edition(); goto ready
        :: else -> goto ended
        fi
    }
later_epoch:
    pause;
    atomic {
        if
        :: heads[epoch + 1].sequence == 0 ->
            acknowledge();
            page = mine;
            forget_edition();
            goto ready
        :: else
        fi
    }
    /* fenced; was it taken along? Only a settled head can tell, and only the last */
was_it_taken:
    pause;
    atomic { find_last_epoch(epoch) }
    atomic {
        page = heads[epoch].page;
        if
        :: heads[epoch].sequence == 1 ->
#ifdef MUTANT_BELIEVE_UNSETTLED
            page = heads[epoch - 1].page
#else
            goto ended /* nobody can tell yet */
#endif
        :: else
        fi;
        if
        :: history[page] & bit(mine)
        :: else -> goto ended /* it is not, and it is told so */
        fi
    }
    atomic {
        if
#ifndef MUTANT_ONE_LOOK
        :: heads[epoch + 1].sequence != 0 -> goto was_it_taken
#endif
        :: else -> acknowledge()
        fi
    }
#endif

ended:
    skip
}

/* ---- the collector ---- */

#ifdef GC

#define is_told(number) (history[view.page] & bit(number))
#define current (view.sequence == 1 -> epoch - 1 : epoch)
/* What no page tells of, but a head of this epoch or a later one may still come to name. */
#ifdef MUTANT_GC_AGE
#define may_come(number) false
#else
#define may_come(number) (made_in[number] >= current && version[number] >= version[view.page])
#endif
#ifdef MUTANT_GC_PAGE
#define page_may_come(number) (made_in[number] >= current && version[number] > version[view.page])
#else
#define page_may_come(number) may_come(number)
#endif
#define page_may_go(number) (number != view.page && (is_told(number) || !page_may_come(number)))
#define patch_may_go(number) \
    (is_told(number) && version[number] < version[view.page] || !is_told(number) && !may_come(number))

/* Each time one object, of all that it would remove. */
proctype collector() {
    byte epoch;
    byte object;
    head view;
look:
    skip;
    atomic { find_last_epoch(epoch) }
    atomic {
        copy_head(view, heads[epoch]);
        if
#ifdef MUTANT_GC_UNSETTLED
        :: view.sequence == 1 -> take_higher(epoch - 1, view.page)
#else
        :: view.sequence == 1 -> copy_head(view, absent); goto look
#endif
        :: else
        fi
    }
#if defined(PLAIN) && !defined(MUTANT_GC_ONE_LOOK)
    atomic {
        if
        :: heads[epoch + 1].sequence != 0 -> copy_head(view, absent); goto look
        :: else
        fi
    }
#endif
    atomic {
        select(object : 0 .. PAGES - 1);
        if
        :: (pages & bit(object)) && page_may_go(object) -> pages = pages & ~bit(object)
        :: (patches & bit(object)) && patch_may_go(object) -> patches = patches & ~bit(object)
        :: else
        fi;
        check();
        object = 0;
        epoch = 0;
        copy_head(view, absent);
        goto look
    }
}
#endif

/* ---- a reader ---- */

#ifdef READER

inline meet() {
    if
    :: heads[where].sequence > 1 && (where > epoch || heads[where].sequence > seen.sequence) ->
        /* P2: no reader goes back */
#ifndef PLAIN
        assert(version[heads[where].page] >= version[seen.page]);
#endif
        assert(!(acknowledged & bit(seen.page)) || (history[heads[where].page] & bit(seen.page)));
        epoch = where;
        copy_head(seen, heads[where])
    :: else ->
        /* no two heads have one number */
        assert(where > epoch || heads[where].sequence < seen.sequence || is_same(heads[where], seen))
    fi
}

proctype reader() {
    byte epoch = 1;
    byte where;
    head seen;
look:
    skip;
    atomic {
        if
        :: where = epoch
        :: where = epoch + 1
        fi;
        meet();
        where = 0;
        goto look
    }
}
#endif

init {
    atomic {
        set_head(heads[1], 2, 1, 0);
        version[0] = 1;
        history[0] = bit(0);
        made_in[0] = 1;
#if GIVEN_UP > 0 && (!defined(PLAIN) || defined(LIMIT_LATE))
        run network();
#endif
#ifdef GC
        run collector();
#endif
#ifdef READER
        run reader();
#endif
        run publisher(1);
#if WRITERS > 1
        run publisher(2);
#endif
#if WRITERS > 2
        run publisher(3);
#endif
    }
}

#ifdef LIVE
/* Who is left alone publishes. (Publisher 2 has the pages from 1 + EDITIONS on.) */
ltl publishes { <> ((acknowledged >> (1 + EDITIONS)) != 0) }
#endif
