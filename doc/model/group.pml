/* SPDX-License-Identifier: Apache-2.0
 *
 * group.pml: the ranks of one engine commit a version together or not at all.
 *
 * What they share is the control file: the number of the newest step, one verdict per step, the standing of each
 * rank, and where the mirror is. Each `atomic` is one access to that memory, or to the mirror's file. A process
 * may be killed before any of them; the kernel then gives up its place, and another process may take it. Votes
 * may be late at any time, so that there is no clock.
 *
 * -DRANKS=n      members of the group           -DSTEPS=n   steps that are announced at most
 * -DKILLS=n      processes that are killed      -DMUTANT_x  with a defect, which must be found: README.md
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif

mtype = { OPEN, COMMITTED, ABORTED };
mtype = { ABSENT, FILLING, READY, ENGAGED, VOTED };

/* ---- the control file and the mirror ---- */

byte newest;
mtype verdicts[STEPS + 1];
byte step_base;    /* of the newest step: the version that it starts from, and the one that it leads to */
byte step_version;

typedef stand {
    mtype kind;
    byte number
};
stand standings[RANKS];

byte mirror_sequence; /* odd while it moves */
byte mirror_number;
byte mirror_version;
byte mirror_file;     /* the version that lies in the file; 0: none */

/* Places are locks, which end with the process. Place RANKS is the leader's. */
bool taken[RANKS + 1];

/* ---- what holds ---- */

byte weights[RANKS];
bool whole[RANKS];           /* the rank is at a version, and works with it */
bool committed[STEPS + 1];   /* some rank has put this step in place */
bool rolled_back[STEPS + 1]; /* some rank has gone back */

/* P5: ranks that work at the same time are at the same version. */
inline check_together(rank) {
    d_step {
        other = 0;
        do
        :: other < RANKS ->
            assert(!(taken[other] && whole[other] && whole[rank]) || weights[other] == weights[rank]);
            other++
        :: else -> break
        od;
        other = 0
    }
}

/* ---- one word decides ---- */

/* Compare and swap: the first decision stands. */
inline decide(which, what) {
#ifdef MUTANT_NO_SWAP
    verdicts[which] = what
#else
    if
    :: verdicts[which] == OPEN -> verdicts[which] = what
    :: else
    fi
#endif
}

/* ---- death ---- */

byte kills;
bool killed[RANKS + 1];

/* What it held in memory is gone with it. */
inline kill(who) {
    kills++;
    killed[who] = true;
    taken[who] = false;
    if
    :: who < RANKS -> whole[who] = false
    :: else
    fi
}

proctype killer() {
    byte who;
    do
    :: kills < KILLS ->
        atomic {
            select(who : 0 .. RANKS);
            if
            :: taken[who] && !killed[who] -> kill(who)
            :: else
            fi;
            who = 0
        }
    :: break
    od
}

/* ---- a rank ---- */

/* The mirror does not move, and what was decided is in it. */
#ifdef MUTANT_FILL_ANY
#define can_fill (mirror_sequence % 2 == 0 && mirror_version != 0)
#else
#define can_fill \
    (mirror_sequence % 2 == 0 && mirror_version != 0 && \
     (newest <= mirror_number || verdicts[newest] != COMMITTED))
#endif

inline stand_as(rank, what, which) {
    standings[rank].kind = what;
    standings[rank].number = which
}

proctype member(byte me) {
    byte other;
    byte here;    /* the number of the step that it is whole at */
    byte number;  /* of the step that it takes part in */
    byte version;
    byte base;
    byte sequence;
    byte missing;

restart:
    atomic {
        !killed[me] && !taken[me] -> taken[me] = true
    }
    {
#ifndef MUTANT_REJOIN
    /* a vote of the process that had this place before does not count for this one */
    atomic {
        if
        :: standings[me].kind == VOTED -> decide(standings[me].number, ABORTED)
        :: else
        fi
    }
#endif
    atomic { stand_as(me, FILLING, 0) }

    /* -- filling: what is copied counts only if the mirror has not moved meanwhile -- */
fill:
    atomic { can_fill -> sequence = mirror_sequence; here = mirror_number; version = mirror_version }
    atomic { weights[me] = mirror_file }
    if
    :: atomic { can_fill && mirror_sequence == sequence -> stand_as(me, READY, here) }
    :: else -> goto fill
    fi;
    if
    :: atomic {
        can_fill && mirror_sequence == sequence ->
        sequence = 0;
        whole[me] = true;
        check_together(me)
    }
    :: else -> atomic { stand_as(me, FILLING, 0) }; goto fill
    fi;

    /* -- waiting for an offer -- */
wait:
    if
    :: atomic {
        mirror_sequence % 2 == 0 && mirror_number > here && mirror_version != weights[me] ->
        assert(false) /* the group has gone on without this rank */
    }
    :: atomic { newest > here && verdicts[newest] == OPEN -> number = newest }
    fi;
    atomic { version = step_version; base = step_base }
    if
    :: newest != number -> goto wait
    :: else
    fi;
    atomic { stand_as(me, ENGAGED, number) }
    if
    :: atomic { weights[me] == base } -> skip
    :: else -> goto refuse
    :: goto refuse /* it cannot prepare, or the engine rolls back */
    fi;

    /* -- the vote -- */
    atomic { stand_as(me, VOTED, number); whole[me] = false } /* the engine is in its pause from here on */
    missing = 0;
    do
    :: verdicts[number] != OPEN -> break
    :: else ->
        if
#ifndef MUTANT_NO_VOTES
        :: missing < RANKS ->
            if
            :: atomic { standings[missing].kind == VOTED && standings[missing].number == number -> missing++ }
            :: else -> missing = 0
            fi
        :: missing == RANKS -> atomic { decide(number, COMMITTED) }
#else
        :: atomic { true -> decide(number, COMMITTED) }
#endif
        :: atomic { true -> decide(number, ABORTED) } /* somebody is late, or is found dead */
        fi
    od;
    if
    :: atomic {
        verdicts[number] == COMMITTED ->
        missing = 0;
        assert(!rolled_back[number] && weights[me] == base);
        committed[number] = true
    }
        atomic { weights[me] = version; here = number }
    :: atomic {
        else ->
        missing = 0;
        assert(!committed[number]);
        rolled_back[number] = true
    }
    fi;
    atomic { stand_as(me, READY, here); whole[me] = true; check_together(me) }
    number = 0;
    version = 0;
    base = 0;
    goto wait;

refuse:
    atomic { decide(number, ABORTED) }
    atomic {
        if
        :: verdicts[number] == COMMITTED -> assert(false) /* without its vote */
        :: else
        fi;
        stand_as(me, READY, here);
        goto wait
    }
    } unless {
        atomic {
            killed[me] ->
            killed[me] = false;
            other = 0;
            here = 0;
            number = 0;
            version = 0;
            base = 0;
            sequence = 0;
            missing = 0;
            weights[me] = 0;
            goto restart
        }
    }
}

/* ---- the leader ---- */

inline announce(from, to, what) {
    atomic { number = newest + 1; newest = number } /* who reads the step before sees that it has gone */
    atomic { step_base = from; step_version = to }
    atomic { verdicts[number] = what }              /* before which nobody reads this one */
}

/* The mirror is a journaled checkpoint: a leader that is killed leaves it at the old version or the new. */
inline move_mirror(to) {
    atomic { mirror_sequence = mirror_sequence | 1 }
    atomic { mirror_file = to }
    atomic { mirror_number = newest; mirror_version = mirror_file; mirror_sequence++ }
}

#define inhabited (taken[0] || taken[1] || taken[RANKS - 1])

proctype leader() {
    byte number;
    byte sequence;

restart:
    atomic { !killed[RANKS] && !taken[RANKS] -> taken[RANKS] = true }
    {
    /* what the leader before had offered is not committed any more, unless it was decided */
    if
    :: newest > 0 -> atomic { decide(newest, ABORTED) }
    :: else
    fi;
    /* the mirror is brought to where the ranks are */
    if
    :: newest > mirror_number && verdicts[newest] == COMMITTED ->
        number = step_version;
        move_mirror(number)
    :: else ->
        atomic { mirror_sequence = mirror_sequence | 1 }
        atomic { mirror_file = mirror_version }
        atomic { mirror_sequence++ }
    fi;

seek:
    number = 0;
    if
    :: newest == STEPS -> goto idle
    :: else
    fi;
    if
    :: mirror_version == 0 || !inhabited ->
        /* alone: a rank that has just come is seen, since it takes its place before it looks at the mirror */
        sequence = mirror_sequence;
        atomic { mirror_sequence = mirror_sequence | 1 }
        if
#ifndef MUTANT_ALONE
        :: mirror_version != 0 && inhabited ->
            atomic { mirror_sequence = sequence; sequence = 0; goto seek }
#endif
        :: else -> sequence = 0
        fi;
        announce(0, 0, COMMITTED);
        number = mirror_file + 1;
        move_mirror(number);
        goto seek
    :: else
    fi;

offer:
    if
    :: newest == STEPS -> goto idle
    :: else
    fi;
    announce(mirror_file, mirror_file + 1, OPEN);
    if
    :: verdicts[number] == COMMITTED -> number = mirror_file + 1; move_mirror(number); goto seek
    :: verdicts[number] == ABORTED -> number = 0; goto offer
    fi;

idle:
    false /* until it is killed */
    } unless {
        atomic { killed[RANKS] -> killed[RANKS] = false; number = 0; sequence = 0; goto restart }
    }
}

init {
    byte other = 0;
    atomic {
        verdicts[0] = ABORTED;
        do
        :: other < RANKS -> stand_as(other, ABSENT, 0); run member(other); other++
        :: else -> break
        od;
        other = 0;
        run leader();
        run killer()
    }
}
