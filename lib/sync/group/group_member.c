/* SPDX-License-Identifier: Apache-2.0
 *
 * group_member.c: a rank of a group.
 *
 * A rank is whole at a step: the one that it was filled at, or the last one that it committed. It takes
 * part in the next by standing *engaged* while it prepares and *voted* while it waits. Who finds that all
 * have voted decides for the commit, and who finds that somebody failed, died or is late against it; there
 * is one decision, and everybody acts by it. A rank that dies after the decision comes back and is filled
 * from the mirror, which goes through the same steps.
 */
#include "../../base/sized.h"
#include "../follow/replica.h"
#include "fill.h"
#include "group_control.h"
#include "group_step.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double GROUP_SECONDS = 60;
static const uint64_t AUDIT_BYTES = (uint64_t)16 << 20;

struct weft_member {
    weft_context *context;
    pid_t process; /* that opened it */
    weft_member_options options;
    weft_group_room room;
    unsigned rank;
    const weft_view *view;
    weft_view *own_view; /* made from a layout */
    const weft_table *table;
    const weft_layout *layout;
    weft_replica replica;
    uint64_t here; /* the number of the step that it is whole at */

    /* the step that is prepared, or was committed last */
    weft_step_reader reader;
    weft_group_step step;
    uint64_t number;
    bool prepared;

    weft_member_info info;
};

static void stand(const weft_member *member, weft_standing_kind kind, uint64_t number) {
    weft_group_stand(&member->room, member->rank, (weft_standing){kind, number});
}

/* ---- filling ---- */

/* A mirror that can be filled from: it does not move, and what was decided is in it. */
static bool find_mirror(const weft_member *member, weft_group_mirror *mirror) {
    const weft_group_room *room = &member->room;
    if (!weft_group_read_mirror(room, mirror) || mirror->version == 0) {
        return false;
    }
    uint64_t newest = weft_group_newest(room);
    return newest <= mirror->number || weft_group_verdict(room, newest).kind != WEFT_VERDICT_COMMITTED;
}

static bool still_there(const weft_member *member, const weft_group_mirror *mirror) {
    weft_group_mirror now;
    return find_mirror(member, &now) && now.sequence == mirror->sequence;
}

static weft_status make_view(weft_member *member, const weft_table *checkpoint) {
    if (member->view != NULL) {
        return WEFT_OK;
    }
    weft_status status = weft_view_create_layout(member->context, member->table, member->layout, checkpoint,
                                                 &member->own_view);
    member->view = member->own_view;
    return status;
}

static weft_status fill_from(weft_member *member, const weft_checkpoint *checkpoint,
                             const weft_group_mirror *mirror) {
    const weft_table *table = weft_checkpoint_table(checkpoint);
    weft_status status = make_view(member, table);
    if (status == WEFT_OK) {
        status = weft_fill(member->context, member->view, table);
    }
    if (status == WEFT_OK) {
        weft_replica_close(&member->replica);
        status = weft_replica_open_filled(&member->replica, member->context, member->view, &mirror->digest);
    }
    return status;
}

/* The leader may begin to move the mirror at any instant, and replace its files: then the failure, or the
 * success, means nothing. */
static weft_status fill_once(weft_member *member, const weft_group_mirror *mirror) {
    size_t size = strlen(member->room.path) + sizeof "/mirror";
    char *path = weft_allocate(member->context, size);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    snprintf(path, size, "%s/mirror", member->room.path);
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_open(member->context, path, WEFT_OPEN_READ, &checkpoint);
    if (status == WEFT_OK) {
        status = fill_from(member, checkpoint, mirror);
        weft_checkpoint_close(checkpoint);
    }
    weft_release(member->context, path);
    return status;
}

static weft_status try_fill(weft_member *member, bool *filled_out) {
    weft_group_mirror mirror;
    *filled_out = false;
    if (!find_mirror(member, &mirror)) {
        return WEFT_OK;
    }
    weft_status status = fill_once(member, &mirror);
    if (!still_there(member, &mirror)) {
        weft_context_clear(member->context);
        return status == WEFT_NO_MEMORY || status == WEFT_CANCELLED ? status : WEFT_OK;
    }
    if (status != WEFT_OK) {
        return status;
    }
    member->here = mirror.number;
    member->info.version = mirror.version;
    member->info.milliseconds = mirror.milliseconds;
    stand(member, WEFT_STANDING_READY, mirror.number);
    /* from here on the mirror does not move without us, unless it had begun to before */
    *filled_out = still_there(member, &mirror);
    if (!*filled_out) {
        stand(member, WEFT_STANDING_FILLING, 0);
    }
    return WEFT_OK;
}

static weft_status fill(weft_member *member, double until) {
    for (;;) {
        uint32_t bell = weft_group_bell(&member->room);
        bool filled;
        weft_status status = try_fill(member, &filled);
        if (status != WEFT_OK || filled) {
            return status;
        }
        if (weft_clock_now() >= until) {
            return weft_fail(member->context, WEFT_NOT_FOUND,
                             "the group at %s has no version yet that rank %u could begin with; %s",
                             member->room.path, member->rank,
                             weft_group_leader_lives(&member->room)
                                 ? "its leader is still fetching one, wait for it"
                                 : "it has no leader, start one (weft follow --group)");
        }
        status = weft_group_sleep(&member->room, bell, 1);
        if (status != WEFT_OK) {
            return status;
        }
    }
}

/* ---- life ---- */

/* Another rank may have read the vote of the process that had this place before, and be about to decide for
 * the commit. We cannot take part in that any more: the step is over before we are filled. */
static void end_former_vote(const weft_member *member) {
    weft_standing standing = weft_group_standing(&member->room, member->rank);
    if (standing.kind == WEFT_STANDING_VOTED) {
        weft_group_decide(&member->room, standing.number, (weft_verdict){WEFT_VERDICT_DIED, member->rank});
    }
}

static weft_status join(weft_member *member, const char *path) {
    double until = weft_clock_now() + member->options.seconds;
    weft_status status =
        weft_group_room_join(&member->room, member->context, path, member->rank, member->options.seconds);
    if (status != WEFT_OK) {
        return status;
    }
    end_former_vote(member);
    stand(member, WEFT_STANDING_FILLING, 0);
    return fill(member, until);
}

static weft_status open_member(weft_context *context, const char *path, unsigned rank,
                               const weft_member_options *options, const weft_member *like,
                               weft_member **member_out) {
    weft_context_clear(context);
    weft_member *member = weft_allocate_zeroed(context, 1, sizeof *member);
    if (member == NULL) {
        return WEFT_NO_MEMORY;
    }
    *member = *like;
    member->context = context;
    member->process = getpid();
    member->rank = rank;
    member->replica.context = context;
    member->info.rank = rank;
    weft_status status =
        weft_sized_read(context, options, &member->options, sizeof member->options, "weft_member_options");
    if (status != WEFT_OK) {
        weft_release(context, member);
        return status;
    }
    weft_member_options *chosen = &member->options;
    chosen->seconds = chosen->seconds > 0 ? chosen->seconds : GROUP_SECONDS;
    chosen->audit_bytes = chosen->audit_bytes != 0 ? chosen->audit_bytes : AUDIT_BYTES;
    status = join(member, path);
    if (status != WEFT_OK) {
        weft_member_close(member);
        return status;
    }
    *member_out = member;
    return WEFT_OK;
}

weft_status weft_member_open(weft_context *context, const char *path, unsigned rank, const weft_view *view,
                             const weft_member_options *options, weft_member **member_out) {
    const weft_member like = {.view = view};
    return open_member(context, path, rank, options, &like, member_out);
}

weft_status weft_member_open_layout(weft_context *context, const char *path, unsigned rank,
                                    const weft_table *table, const weft_layout *layout,
                                    const weft_member_options *options, weft_member **member_out) {
    const weft_member like = {.table = table, .layout = layout};
    return open_member(context, path, rank, options, &like, member_out);
}

void weft_member_close(weft_member *member) {
    if (member == NULL || !weft_process_is(member->process)) {
        return;
    }
    if (member->room.shared != NULL) {
        if (member->prepared) {
            weft_group_decide(&member->room, member->number,
                              (weft_verdict){WEFT_VERDICT_REFUSED, member->rank});
        }
        stand(member, WEFT_STANDING_ABSENT, 0);
    }
    weft_replica_close(&member->replica);
    weft_step_reader_close(&member->reader);
    weft_view_destroy(member->own_view);
    weft_group_room_close(&member->room);
    weft_release(member->context, member);
}

/* ---- waiting ---- */

static bool at(const weft_member *member, const weft_digest *digest) {
    return member->replica.known && weft_digest_equal(&member->replica.digest, digest);
}

/* A version with the same weights under another number is reached by taking note of it. */
static weft_status check_place(weft_member *member) {
    weft_group_mirror mirror;
    if (!member->replica.known) {
        return weft_fail(member->context, WEFT_BASE_MISMATCH,
                         "the weights of rank %u are at no version any more; close the member and open it "
                         "again to fill them",
                         member->rank);
    }
    if (!weft_group_read_mirror(&member->room, &mirror) || mirror.version == 0) {
        return WEFT_OK;
    }
    if (at(member, &mirror.digest)) {
        member->info.version = mirror.version;
        member->info.milliseconds = mirror.milliseconds;
        member->here = mirror.number > member->here ? mirror.number : member->here;
        return WEFT_OK;
    }
    return mirror.number <= member->here
               ? WEFT_OK
               : weft_fail(member->context, WEFT_BASE_MISMATCH,
                           "the group at %s has gone on to version %llu without rank %u, which is at %llu; "
                           "close the member and open it again to fill it",
                           member->room.path, (unsigned long long)mirror.version, member->rank,
                           (unsigned long long)member->info.version);
}

static bool find_offer(const weft_member *member, uint64_t *number_out, weft_group_step *step) {
    *number_out = weft_group_newest(&member->room);
    return *number_out > member->here &&
           weft_group_verdict(&member->room, *number_out).kind == WEFT_VERDICT_OPEN &&
           weft_group_read_step(&member->room, *number_out, step);
}

/* Waits for an offer, of a certain version unless that is 0. WEFT_MORE: none came. */
static weft_status await_offer(weft_member *member, uint64_t version, double seconds, uint64_t *number_out,
                               weft_group_step *step) {
    double until = weft_clock_now() + seconds;
    for (;;) {
        uint32_t bell = weft_group_bell(&member->room);
        weft_status status = check_place(member);
        if (status != WEFT_OK) {
            return status;
        }
        if (find_offer(member, number_out, step) && (version == 0 || step->version == version)) {
            return WEFT_OK;
        }
        double left = until - weft_clock_now();
        if (!(left > 0) || (version != 0 && member->info.version == version)) {
            return WEFT_MORE;
        }
        status = weft_group_sleep(&member->room, bell, left);
        if (status != WEFT_OK) {
            return status;
        }
    }
}

/* Where every call begins. */
static weft_status enter(const weft_member *member) {
    weft_status status = weft_context_enter(member->context);
    return status == WEFT_OK
               ? weft_process_check(member->context, member->process, "this member of a group")
               : status;
}

weft_status weft_member_wait(weft_member *member, double seconds, uint64_t *version_out) {
    weft_status entered = enter(member);
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_progress_begin(member->context, "wait", 0);
    uint64_t number;
    weft_group_step step;
    weft_status status = await_offer(member, 0, seconds, &number, &step);
    if (status == WEFT_OK && version_out != NULL) {
        *version_out = step.version;
    }
    return status;
}

/* ---- preparing ---- */

/* The step before is over: it can no longer be undone, and its file may go. */
static void drop_step(weft_member *member) {
    weft_replica_settle(&member->replica);
    weft_step_reader_close(&member->reader);
}

static weft_status check_step(const weft_member *member) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(member->reader.patch, &info);
    bool contradicts = member->step.anchor && weft_roster_plain(&member->reader.patch->header.roster);
    if (contradicts || !weft_digest_equal(&info.result, &member->step.result) ||
        !weft_digest_equal(&info.base, &member->step.base)) {
        return weft_fail(member->context, WEFT_CHECKSUM_MISMATCH,
                         "the group's step file is not that of version %llu",
                         (unsigned long long)member->step.version);
    }
    if (!member->step.anchor && !at(member, &member->step.base)) {
        return weft_fail(
            member->context, WEFT_BASE_MISMATCH,
            "rank %u is not where version %llu starts from; close the member and open it again "
            "to fill it",
            member->rank, (unsigned long long)member->step.version);
    }
    return WEFT_OK;
}

static weft_status run_step(weft_member *member) {
    drop_step(member);
    weft_status status = weft_replica_audit(&member->replica, member->options.audit_bytes);
    if (status == WEFT_OK) {
        status = weft_step_reader_open(&member->reader, member->context, member->room.directory,
                                       member->step.file);
    }
    if (status == WEFT_OK) {
        status = check_step(member);
    }
    if (status == WEFT_OK) {
        status = weft_replica_prepare(&member->replica, member->reader.patch,
                                      member->step.anchor ? WEFT_STEP_ANCHOR : WEFT_STEP_LEAP);
    }
    if (status == WEFT_DIGEST_MISMATCH) {
        /* the leader has proven the step on its mirror: it is the weights here that are wrong */
        weft_replica_forget(&member->replica);
    }
    return status;
}

/* Everybody is told why, unless the step was over before. */
static void refuse(weft_member *member, weft_verdict_kind kind, const char *text) {
    weft_group_write_text(&member->room, member->rank, text);
    weft_group_decide(&member->room, member->number, (weft_verdict){kind, member->rank});
    stand(member, kind == WEFT_VERDICT_FAILED ? WEFT_STANDING_FAILED : WEFT_STANDING_READY, member->here);
}

weft_status weft_member_prepare(weft_member *member, uint64_t version) {
    weft_status entered = enter(member);
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_progress_begin(member->context, "wait", 0);
    if (member->prepared) {
        return weft_fail(member->context, WEFT_INVALID_ARGUMENT,
                         "version %llu is prepared; commit it or roll it back first",
                         (unsigned long long)member->step.version);
    }
    double patience = version != 0 ? member->options.seconds : 0;
    weft_status status = await_offer(member, version, patience, &member->number, &member->step);
    if (status == WEFT_MORE && (version == 0 || member->info.version == version)) {
        return WEFT_OK;
    }
    if (status == WEFT_MORE) {
        return weft_fail(member->context, WEFT_NOT_FOUND,
                         "the group at %s was not offered version %llu within %.0f seconds",
                         member->room.path, (unsigned long long)version, patience);
    }
    if (status != WEFT_OK) {
        return status;
    }
    stand(member, WEFT_STANDING_ENGAGED, member->number);
    status = run_step(member);
    if (status != WEFT_OK) {
        weft_failure failure = weft_failure_keep(member->context, status);
        drop_step(member);
        refuse(member, WEFT_VERDICT_FAILED, failure.text);
        return weft_failure_tell(member->context, &failure);
    }
    member->prepared = true;
    return WEFT_OK;
}

weft_status weft_member_rollback(weft_member *member) {
    weft_status entered = enter(member);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (!member->prepared) {
        return weft_fail(member->context, WEFT_UNSUPPORTED,
                         "nothing is prepared; what a group has committed stays");
    }
    member->prepared = false;
    weft_status status = weft_replica_rollback(&member->replica);
    drop_step(member);
    refuse(member, WEFT_VERDICT_REFUSED, "");
    return status;
}

/* ---- voting ---- */

/* The first rank that has not voted, or the number of ranks. */
static unsigned find_missing(const weft_member *member) {
    unsigned rank = 0;
    while (rank < member->room.members) {
        weft_standing standing = weft_group_standing(&member->room, rank);
        if (standing.kind != WEFT_STANDING_VOTED || standing.number != member->number) {
            break;
        }
        rank++;
    }
    return rank;
}

static void look_for_deaths(const weft_member *member) {
    const weft_group_room *room = &member->room;
    for (unsigned i = 0; i < room->members; i++) {
        weft_standing standing = weft_group_standing(room, i);
        bool voted = standing.kind == WEFT_STANDING_VOTED && standing.number == member->number;
        if (i != member->rank && standing.kind != WEFT_STANDING_ABSENT && !voted &&
            !weft_group_rank_lives(room, i)) {
            weft_group_decide(room, member->number, (weft_verdict){WEFT_VERDICT_DIED, i});
        }
    }
    if (!weft_group_leader_lives(room)) {
        weft_group_decide(room, member->number, (weft_verdict){WEFT_VERDICT_LEADERLESS, 0});
    }
}

/* After this there is a decision. */
static void vote(weft_member *member) {
    const weft_group_room *room = &member->room;
    double until = weft_clock_now() + member->options.seconds;
    stand(member, WEFT_STANDING_VOTED, member->number);
    for (;;) {
        uint32_t bell = weft_group_bell(room);
        unsigned missing = find_missing(member);
        if (missing == room->members) {
            weft_group_decide(room, member->number, (weft_verdict){WEFT_VERDICT_COMMITTED, 0});
        }
        if (weft_group_verdict(room, member->number).kind != WEFT_VERDICT_OPEN) {
            return;
        }
        if (weft_clock_now() >= until) {
            weft_group_decide(room, member->number, (weft_verdict){WEFT_VERDICT_LATE, missing});
        } else if (weft_group_sleep(room, bell, 1) != WEFT_OK) {
            weft_group_decide(room, member->number, (weft_verdict){WEFT_VERDICT_REFUSED, member->rank});
        } else if (weft_group_bell(room) == bell) {
            look_for_deaths(member);
        }
    }
}

static weft_status put_in_place(weft_member *member) {
    double start = weft_clock_now();
    weft_status status = weft_replica_commit(&member->replica);
    member->info.pause_seconds = weft_clock_now() - start;
    if (status != WEFT_OK) {
        stand(member, WEFT_STANDING_FAILED, member->here);
        return status;
    }
    member->here = member->number;
    member->info.version = member->step.version;
    member->info.milliseconds = member->step.milliseconds;
    member->info.committed++;
    stand(member, WEFT_STANDING_READY, member->here);
    return WEFT_OK;
}

weft_status weft_member_commit(weft_member *member) {
    weft_status entered = enter(member);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (!member->prepared) {
        return WEFT_OK;
    }
    weft_progress_begin(member->context, "vote", 0);
    double start = weft_clock_now();
    vote(member);
    member->info.vote_seconds = weft_clock_now() - start;
    member->prepared = false;
    if (weft_group_verdict(&member->room, member->number).kind == WEFT_VERDICT_COMMITTED) {
        return put_in_place(member);
    }
    weft_status status = weft_replica_rollback(&member->replica);
    drop_step(member);
    stand(member, WEFT_STANDING_READY, member->here);
    member->info.aborted++;
    return status == WEFT_OK ? weft_group_explain(&member->room, member->number, member->step.version)
                             : status;
}

/* ---- telling ---- */

weft_status weft_member_verify(weft_member *member) {
    weft_status entered = enter(member);
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_status status = check_place(member);
    return status == WEFT_OK ? weft_replica_audit(&member->replica, UINT64_MAX) : status;
}

void weft_member_describe(const weft_member *member, weft_member_info *info_out) {
    weft_member_info info = member->info;
    info.digest = member->replica.digest;
    info.version = member->replica.known ? info.version : 0;
    weft_sized_write(&info, info_out, sizeof info);
}

const char *weft_member_label(const weft_member *member, const char *key) {
    bool committed = !member->prepared && member->reader.patch != NULL;
    return committed ? weft_patch_label(member->reader.patch, key) : NULL;
}
