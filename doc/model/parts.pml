/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.pml: a version by several processes, which talk through the store alone.
 *
 * Coordinator 1 has epoch 1; coordinator 2 takes over whenever it likes, as if the first had died (and the first may
 * go on, or be stopped for ever, at any step). Members answer their calls. A seal and a claim are one step here:
 * publish.pml is about them. Each `atomic` is one request to the store. Anybody may lose patience at any time,
 * so that there is no clock.
 *
 * A part's step is the step of training that its weights are at, which it gives as a label. After an error
 * it publishes the same step again.
 *
 * -DMEMBERS=n    members beside the coordinator     -DTURNS=n    versions that each coordinator tries to publish
 * -DGIVEN_UP=n   heads whose put is given up        -DMUTANT_x   with a defect, which must be found: README.md
 */
#ifndef MEMBERS
#define MEMBERS 1
#endif
#ifndef TURNS
#define TURNS 2
#endif
#ifndef GIVEN_UP
#define GIVEN_UP 1
#endif

#define EPOCHS 2
#define PAGES (1 + EPOCHS * TURNS)
#define bit(number) (1 << (number))

mtype = { NONE, JOIN, PATCH, DONE, FAILED, DOUBT };

/* ---- the store ---- */

typedef epoch_head {
    bool there;
    bool sealed; /* by who took over: no put of its writer is done any more */
    byte page
};
epoch_head heads[EPOCHS + 2];

/* A page's version and history, as in publish.pml, and what it is made of: the edition of each member, and the steps
 * that they were at. An edition is what a member has put for one call; its name is in its key. */
typedef members {
    byte edition[MEMBERS];
    byte step[MEMBERS]
};
byte version[PAGES];
short history[PAGES];
members made_of[PAGES];
byte made_at[PAGES]; /* the coordinator's own step */

/* The call of an epoch, which is written over and over, and the answers to it. */
typedef call_object {
    mtype kind;
    byte number; /* its name; answers lie under it */
    byte turn;
    byte version;
    byte roll    /* the call that those had joined by, who are asked now */
};
call_object calls[EPOCHS + 1];
typedef answer_object {
    byte call; /* 0: there is none */
    byte edition;
    byte step
};
typedef answer_objects {
    answer_object from[MEMBERS]
};
answer_objects answers[EPOCHS + 1];

/* ---- what holds ---- */

short acknowledged;    /* pages whose publish returned OK, on any part */
short undone[MEMBERS]; /* editions that their member has gone back from */
hidden byte newest;
hidden byte each;
hidden byte who;

/* Asked whenever the store has changed, and when something is acknowledged or undone. */
inline check() {
    d_step {
        newest = (heads[2].there -> heads[2].page : heads[1].page);
        /* P1: on whichever part it was acknowledged, it is in the history */
        assert((acknowledged & ~history[newest]) == 0);
        each = 1;
        do
        :: each < PAGES && (history[newest] & bit(each)) ->
            who = 0;
            do
            :: who < MEMBERS ->
                /* one version, one step */
                assert(made_of[each].step[who] == made_at[each]);
                /* what was undone is in no version; else the copy of which the member makes its next patch
                 * would be another than what was published */
                assert(!(undone[who] & bit(made_of[each].edition[who])));
                who++
            :: else -> break
            od;
            each++
        :: each < PAGES && !(history[newest] & bit(each)) -> each++
        :: else -> break
        od;
        each = 0;
        who = 0;
        newest = 0
    }
}

/* ---- the coordinator ---- */

byte given_up;
byte in_flight; /* the page that a head put names that was given up; 0: there is none. Coordinator 1's */

inline call_all(what) {
    number++;
    calls[epoch].kind = what;
    calls[epoch].number = number;
    calls[epoch].turn = turn;
    calls[epoch].version = version[page] + (what == DONE -> 0 : 1);
    calls[epoch].roll = (roll == 0 -> number : roll)
}

#define has_answered(part) (answers[epoch].from[part].call == number)
#define all_answered (has_answered(0) && has_answered(MEMBERS - 1))

inline take_answers() {
    d_step {
        who = 0;
        do
        :: who < MEMBERS ->
            made_of[mine].edition[who] = answers[epoch].from[who].edition;
            made_of[mine].step[who] = answers[epoch].from[who].step;
            same = same && answers[epoch].from[who].step == step;
            who++
        :: else -> break
        od;
        who = 0
    }
}

proctype coordinator(byte epoch) {
    byte page;
    byte mine;
    byte turn;
    byte number;
    byte roll; /* 0: all must join */
    byte step = 1;
    bool same;
    bool doubt; /* nobody knows whether `mine` is published */

    if
    :: epoch == 1
    :: else ->
        atomic { /* the seal and the claim; what was given up before is refused from now on */
            heads[1].sealed = true;
            in_flight = 0;
            page = heads[1].page;
            heads[2].page = page;
            heads[2].there = true;
            check()
        }
    fi;

publish:
    if
    :: turn == TURNS -> goto ended
    :: else -> turn++
    fi;
    if
    :: doubt ->
        atomic { /* the head of before is put again: then what was given up never will be */
            doubt = false;
            if
            :: heads[epoch].page == mine ->
                page = mine;
                step++;
                acknowledged = acknowledged | bit(mine);
                check()
            :: heads[epoch].page != mine && heads[epoch].sealed -> goto ended
            :: else -> in_flight = 0
            fi
        }
    :: else
    fi;
    if
    :: roll == 0 ->
        atomic { call_all(JOIN) }
        if
        :: all_answered -> roll = number
        :: goto failed
        fi
    :: else
    fi;
    atomic { call_all(PATCH) }
    if
    :: all_answered
    :: goto failed
    fi;
    atomic {
        mine = 1 + (epoch - 1) * TURNS + turn - 1;
        version[mine] = version[page] + 1;
        history[mine] = history[page] | bit(mine);
        made_at[mine] = step;
        same = true;
        take_answers()
    }
#ifdef MUTANT_ANY_STEP
    same = true;
#endif
    if
    :: !same -> goto failed
    :: else
    fi;
#ifdef MUTANT_DONE_FIRST
    atomic { page = mine; call_all(DONE) }
#endif
    if
    :: atomic { /* the head, if it is still ours */
        !heads[epoch].sealed ->
        heads[epoch].page = mine;
        page = mine;
        step++;
        acknowledged = acknowledged | bit(mine);
        check()
    }
    :: atomic { heads[epoch].sealed } -> goto failed
    :: atomic {
        epoch == 1 && given_up < GIVEN_UP ->
        given_up++;
        in_flight = mine;
        doubt = true
    }
#ifdef MUTANT_DOUBT_FAILS
        goto failed
#else
        atomic { call_all(DOUBT) }
        goto publish
#endif
    fi;
    atomic { call_all(DONE) }
    goto publish;

failed: /* told, so that nobody waits; and all are asked anew */
    atomic { roll = 0; call_all(FAILED) }
    if
    :: heads[epoch].sealed -> goto ended
    :: else -> goto publish
    fi;

ended:
    skip
}

/* What was given up arrives, if the head is still the one that it was to replace. */
proctype network() {
end:
    do
    :: atomic {
        in_flight != 0 && !heads[1].sealed ->
        heads[1].page = in_flight;
        in_flight = 0;
        check()
    }
    od
}

/* ---- a member ---- */

inline enter_epoch(which) {
    epoch = which;
    number = 0;
    roll = 0;
    joined = 0
}

/* The page of the version that was made, in the history of this epoch's head; 0: there is none. */
inline find_version() {
    d_step {
        found = 0;
        each = 1;
        do
        :: each < PAGES ->
            if
            :: (history[heads[epoch].page] & bit(each)) && version[each] == made_version -> found = each
            :: else
            fi;
            each++
        :: else -> break
        od;
        each = 0
    }
}

inline undo() {
    undone[me] = undone[me] | bit(edition);
    check()
}

proctype member(byte me) {
    byte epoch = 1;
    byte number;  /* of the last call that was heard */
    byte roll;    /* the one that it stands in */
    byte joined;  /* the call to join that it has answered last */
    byte step = 1;
    byte editions;
    byte edition; /* that was put, and is published, or not, or nobody knows; 0: none */
    byte made_epoch;
    byte made_turn;
    byte made_version;
    byte made_roll;
    bool current; /* it was put by the publish that is under way */
    byte found;
    call_object call;

hear: /* of a new epoch, or of a new call */
    if
    :: atomic { epoch == 1 && heads[2].there -> enter_epoch(2) } ; goto hear
    :: atomic {
        calls[epoch].number > number ->
        number = calls[epoch].number;
        call.kind = calls[epoch].kind;
        call.turn = calls[epoch].turn;
        call.version = calls[epoch].version;
        call.roll = calls[epoch].roll
    }
    :: atomic { current -> current = false } ; goto hear /* it has waited long enough: the publish ends with an error */
    fi;

    /* -- what was put before: does the call tell what became of it? -- */
    if
    :: edition != 0 && (made_epoch != epoch || call.turn > made_turn || call.kind != DOUBT) ->
        if
        :: made_epoch == epoch && call.turn == made_turn && call.kind != DONE ->
            atomic { undo() } /* its coordinator says that it has failed */
        :: else ->
            atomic { /* else only the head can tell */
#ifdef MUTANT_FORGET
                found = 0;
#else
                find_version();
#endif
                if
                :: found != 0 && (made_epoch == epoch && made_roll == call.roll ||
                                  made_of[found].edition[me] == edition) ->
                    assert(made_of[found].edition[me] == edition);
                    if
                    :: current -> step++; acknowledged = acknowledged | bit(found); check()
                    :: !current -> step++ /* its trainer has asked the others what became of that step */
                    :: !current
                    fi
                :: else -> undo()
                fi
            }
        fi;
        atomic {
            edition = 0;
            current = false;
            made_epoch = 0;
            made_turn = 0;
            made_version = 0;
            made_roll = 0;
            found = 0
        }
    :: else
    fi;

    /* -- obeying -- */
    if
    :: edition == 0 && call.kind == JOIN ->
        atomic { answers[epoch].from[me].call = number; joined = number; roll = 0 }
    :: edition == 0 && call.kind == PATCH && (call.roll == roll || call.roll == joined) ->
        atomic {
            roll = call.roll;
            editions++;
            edition = editions;
            current = true;
            made_epoch = epoch;
            made_turn = call.turn;
            made_version = call.version;
            made_roll = call.roll;
            answers[epoch].from[me].edition = edition;
            answers[epoch].from[me].step = step;
            answers[epoch].from[me].call = number
        }
    :: else
    fi;
    goto hear
}

init {
    byte other = 0;
    atomic {
        heads[1].there = true;
        version[0] = 1;
        history[0] = bit(0);
        do
        :: other < MEMBERS -> run member(other); other++
        :: else -> break
        od;
        other = 0;
        run network();
        run coordinator(1);
        run coordinator(2)
    }
}
