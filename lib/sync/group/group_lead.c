/* SPDX-License-Identifier: Apache-2.0
 *
 * group_lead.c: the leader of a group.
 *
 * The mirror is a checkpoint in the group's directory, and the leader an ordinary follower of it: its
 * commit is journaled, so that a leader that is killed at any instant leaves a mirror that is whole, or
 * that the next leader makes whole without fetching anything. It moves only
 *   - when all ranks have voted for the step, or
 *   - when no rank is there that could be left behind.
 *
 *   seeking   waits for the store to have something new, prepares it, and offers it to the ranks
 *   offering  waits for the decision, which the ranks make among themselves. If nobody has begun to prepare
 *             and there is something newer by then, the offer is withdrawn
 *   refused   the step is still prepared: it is offered again
 */
#include "../../base/sized.h"
#include "group_control.h"
#include "group_step.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double ENDING_SECONDS = 2;
static const double YIELD_SECONDS = 0.25;
static const double LOOK_SECONDS = 0.5; /* between looks at the store while a step is offered */

typedef enum lead_state {
    LEAD_RESTORE, /* the mirror is still to be brought to where the group is */
    LEAD_SEEK,
    LEAD_OFFER,
    LEAD_REFUSED,
} lead_state;

struct weft_group {
    weft_context *context;
    pid_t process; /* that opened it */
    weft_store *store;
    weft_group_options options;
    weft_subscriber_options follow; /* what options.follow points to */
    weft_group_room room;
    weft_subscriber *subscriber;
    weft_step_writer writer;
    bool relaying; /* what is decoded is for members */
    lead_state state;
    weft_group_step step; /* prepared */
    uint64_t number;      /* of the offer */
    double looked;        /* at the store, while something is offered */
    weft_group_info info;
};

/* ---- life ---- */

static weft_status hear_step(void *opaque, const weft_record *record, weft_patch *patch, bool anchor) {
    weft_group *group = opaque;
    if (!group->relaying) {
        return WEFT_OK;
    }
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    group->step = (weft_group_step){
        .version = record->version,
        .milliseconds = record->milliseconds,
        .anchor = anchor,
        .base = info.base,
        .result = info.result,
    };
    return weft_step_writer_begin(&group->writer, patch, (const char *const *)record->labels.items);
}

/* A process that is just ending gives up its places one after the other: the mirror may still be its own.
 */
static weft_status open_subscriber(weft_group *group, const char *path) {
    weft_subscriber_options options = group->follow;
    options.state_path = NULL;
    options.replace = true;
    double until = weft_clock_now() + ENDING_SECONDS;
    for (;;) {
        weft_status status =
            weft_subscriber_open_file(group->context, group->store, path, &options, &group->subscriber);
        if (status != WEFT_BUSY || weft_clock_now() >= until) {
            return status;
        }
        status = weft_clock_sleep(group->context, 0.01);
        if (status != WEFT_OK) {
            return status;
        }
    }
}

static weft_status open_mirror(weft_group *group) {
    char *path = weft_group_mirror_path(&group->room);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = open_subscriber(group, path);
    weft_release(group->context, path);
    if (status == WEFT_OK) {
        weft_subscriber_listen(group->subscriber, &(weft_step_listener){hear_step, group});
    }
    return status;
}

weft_status weft_group_lead(weft_context *context, weft_store *store, const char *path,
                            const weft_group_options *given, weft_group **group_out) {
    weft_context_clear(context);
    weft_group_options options;
    weft_subscriber_options follow;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_group_options");
    if (status == WEFT_OK) {
        status =
            weft_sized_read(context, options.follow, &follow, sizeof follow, "weft_subscriber_options");
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (options.members == 0 || options.members > WEFT_GROUP_MEMBERS_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "a group has 1 to %d members, not %u",
                         WEFT_GROUP_MEMBERS_MAX, options.members);
    }
    weft_group *group = weft_allocate_zeroed(context, 1, sizeof *group);
    if (group == NULL) {
        return WEFT_NO_MEMORY;
    }
    group->context = context;
    group->process = getpid();
    group->store = store;
    group->options = options;
    group->follow = follow;
    status = weft_group_room_lead(&group->room, context, path, options.members);
    if (status == WEFT_OK) {
        weft_step_writer_open(&group->writer, context, group->room.path, group->room.directory);
        /* what the leader before had offered is not committed any more, unless it was decided */
        weft_group_decide(&group->room, weft_group_newest(&group->room),
                          (weft_verdict){WEFT_VERDICT_LEADERLESS, 0});
        status = open_mirror(group);
    }
    if (status != WEFT_OK) {
        weft_group_close(group);
        return status;
    }
    *group_out = group;
    return WEFT_OK;
}

void weft_group_close(weft_group *group) {
    if (group == NULL || !weft_process_is(group->process)) {
        return;
    }
    if (group->room.shared != NULL) {
        weft_group_decide(&group->room, weft_group_newest(&group->room),
                          (weft_verdict){WEFT_VERDICT_LEADERLESS, 0});
    }
    weft_subscriber_close(group->subscriber);
    weft_step_writer_close(&group->writer);
    weft_group_room_close(&group->room);
    weft_release(group->context, group);
}

/* ---- the mirror ---- */

static void place_mirror(weft_group *group, uint64_t number, uint64_t version, uint64_t milliseconds,
                         const weft_digest *digest) {
    weft_group_mirror mirror = weft_group_last_mirror(&group->room);
    mirror.sequence = (mirror.sequence | 1) + 1;
    mirror.number = number;
    mirror.version = version;
    mirror.milliseconds = milliseconds;
    mirror.digest = *digest;
    weft_group_place_mirror(&group->room, &mirror);
}

/* What the subscriber holds now is the mirror, as the step of this number left it. */
static void place_subscriber(weft_group *group, uint64_t number) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(group->subscriber, &info);
    place_mirror(group, number, info.version, info.milliseconds, &info.digest);
}

/* If that fails, nobody believes the mirror until it is restored. */
static weft_status move_mirror(weft_group *group) {
    weft_group_move_mirror(&group->room);
    group->state = LEAD_RESTORE;
    weft_status status = weft_subscriber_commit(group->subscriber);
    if (status == WEFT_OK) {
        place_subscriber(group, weft_group_newest(&group->room));
        group->state = LEAD_SEEK;
    }
    return status;
}

/* Where the ranks are, or will be as soon as they see the decision. The version is 0 if none can be
 * anywhere. The number is that of the step that was committed, not of one that was offered since: by it a
 * rank that was away for long learns that its own step was committed. */
static weft_group_step find_group(const weft_group *group, uint64_t *number_out) {
    weft_group_mirror mirror = weft_group_last_mirror(&group->room);
    uint64_t newest = weft_group_newest(&group->room);
    weft_group_step step;
    *number_out = newest;
    if (newest > mirror.number && weft_group_verdict(&group->room, newest).kind == WEFT_VERDICT_COMMITTED &&
        weft_group_read_step(&group->room, newest, &step)) {
        return step;
    }
    *number_out = mirror.number < newest ? mirror.number : newest;
    return (weft_group_step){
        .version = mirror.version, .milliseconds = mirror.milliseconds, .result = mirror.digest};
}

/* Takes the newest version instead of the one that the ranks are at. They must not stay there, while ranks
 * that come are filled with another: a step that nobody can take part in makes the number rise, and who is
 * below it is told to begin again. If the pull fails nothing is announced, and the ranks stay where they
 * are. */
static weft_status restore_newest(weft_group *group, uint64_t *number_out) {
    weft_status status = weft_subscriber_pull(group->subscriber, 0);
    if (status == WEFT_OK) {
        *number_out = weft_group_announce(&group->room, &(weft_group_step){0}, WEFT_VERDICT_COMMITTED);
    }
    return status;
}

/* After a leader that ended at any instant, the mirror is brought to where the group is. If that version is
 * no longer kept, or damaged, the newest must do. */
static weft_status restore_mirror(weft_group *group) {
    uint64_t number;
    weft_group_step place = find_group(group, &number);
    weft_group_move_mirror(&group->room);
    weft_status status = WEFT_OK;
    group->relaying = false;
    if (place.version != 0 && weft_subscriber_holds(group->subscriber, &place.result)) {
        place_mirror(group, number, place.version, place.milliseconds, &place.result);
    } else if (place.version != 0) {
        status = weft_subscriber_pull(group->subscriber, place.version);
        if (weft_subscriber_unusable(status)) {
            status = restore_newest(group, &number);
        }
        if (status == WEFT_OK) {
            place_subscriber(group, number);
        }
    }
    if (status == WEFT_OK) {
        group->state = LEAD_SEEK;
    }
    return status;
}

/* ---- offering ---- */

static weft_status offer_step(weft_group *group) {
    weft_group_reap(&group->room);
    group->number = weft_group_announce(&group->room, &group->step, WEFT_VERDICT_OPEN);
    group->looked = weft_clock_now();
    group->state = LEAD_OFFER;
    return WEFT_OK;
}

/* A mirror that ranks can have been filled from. */
static bool read_whole(const weft_group *group, weft_group_mirror *mirror) {
    return weft_group_read_mirror(&group->room, mirror) && mirror->version != 0;
}

/* Nobody is there, or nobody can hold anything: the step is committed without a vote. A rank that comes now
 * waits until the mirror is in place; one that came just before is seen, because a rank takes its place
 * before it looks at the mirror. Then the step is prepared again, for members. */
static weft_status go_alone(weft_group *group) {
    weft_group_mirror before;
    bool whole = read_whole(group, &before);
    weft_group_move_mirror(&group->room);
    if (whole && weft_group_inhabited(&group->room)) {
        weft_group_place_mirror(&group->room, &before);
        return weft_subscriber_rollback(group->subscriber);
    }
    weft_group_announce(&group->room, &(weft_group_step){0}, WEFT_VERDICT_COMMITTED);
    return move_mirror(group);
}

static weft_status seek_step(weft_group *group, double until) {
    double left = until - weft_clock_now();
    weft_status status = weft_subscriber_wait(group->subscriber, left > 0 ? left : 0, NULL);
    if (status != WEFT_OK) {
        return status;
    }
    weft_group_mirror mirror;
    bool whole = read_whole(group, &mirror);
    group->relaying = whole && weft_group_inhabited(&group->room);
    status = weft_subscriber_prepare(group->subscriber, 0);
    if (status < 0) {
        return status;
    }
    if (!weft_subscriber_prepared(group->subscriber)) {
        /* the same weights under another version, or those that were there at the start */
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(group->subscriber, &info);
        if (!whole || mirror.version != info.version) {
            place_subscriber(group, whole ? mirror.number : weft_group_newest(&group->room));
        }
        return WEFT_OK;
    }
    if (!group->relaying) {
        return go_alone(group);
    }
    status = weft_step_writer_end(&group->writer);
    group->info.step_bytes = group->writer.stream.written;
    group->step.file = group->writer.file;
    return status == WEFT_OK ? offer_step(group) : status;
}

static bool is_engaged(const weft_group *group) {
    bool found = false;
    for (unsigned i = 0; i < group->options.members && !found; i++) {
        weft_standing standing = weft_group_standing(&group->room, i);
        found = standing.number == group->number && standing.kind >= WEFT_STANDING_ENGAGED;
    }
    return found;
}

/* Withdraws what nobody has begun with, if there is something newer, or nobody is left to vote. */
static weft_status reconsider_offer(weft_group *group) {
    double now = weft_clock_now();
    if (now < group->looked + LOOK_SECONDS || is_engaged(group)) {
        return WEFT_OK;
    }
    group->looked = now;
    uint64_t newest = 0;
    weft_status status = weft_subscriber_look(group->subscriber, &newest);
    /* a store that is not reached is told of when it is needed */
    if ((status == WEFT_OK && newest > group->step.version) || !weft_group_inhabited(&group->room)) {
        weft_group_decide(&group->room, group->number, (weft_verdict){WEFT_VERDICT_WITHDRAWN, 0});
    }
    return status == WEFT_CANCELLED ? status : WEFT_OK;
}

static bool is_scattering(const weft_group *group) {
    bool found = false;
    for (unsigned i = 0; i < group->options.members && !found; i++) {
        weft_standing standing = weft_group_standing(&group->room, i);
        found = standing.number == group->number && standing.kind == WEFT_STANDING_VOTED &&
                weft_group_rank_lives(&group->room, i);
    }
    return found;
}

/* The ranks are in their pause: the mirror leaves them processors and memory for a moment. */
static void let_ranks_go_first(const weft_group *group) {
    double until = weft_clock_now() + YIELD_SECONDS;
    uint32_t bell = weft_group_bell(&group->room);
    while (is_scattering(group) && weft_clock_now() < until &&
           weft_group_sleep(&group->room, bell, YIELD_SECONDS) == WEFT_OK) {
        bell = weft_group_bell(&group->room);
    }
}

/* WEFT_MORE: there is no decision yet. */
static weft_status await_decision(weft_group *group, double until) {
    for (;;) {
        uint32_t bell = weft_group_bell(&group->room);
        weft_verdict verdict = weft_group_verdict(&group->room, group->number);
        if (verdict.kind == WEFT_VERDICT_COMMITTED) {
            group->info.committed++;
            let_ranks_go_first(group);
            return move_mirror(group);
        }
        if (verdict.kind == WEFT_VERDICT_WITHDRAWN) {
            group->state = LEAD_SEEK;
            return WEFT_OK;
        }
        if (verdict.kind != WEFT_VERDICT_OPEN) {
            group->info.aborted++;
            group->state = LEAD_REFUSED;
            return weft_group_explain(&group->room, group->number, group->step.version);
        }
        double left = until - weft_clock_now();
        weft_status status = left > 0 ? weft_group_sleep(&group->room, bell, left) : WEFT_MORE;
        if (status == WEFT_OK) {
            status = reconsider_offer(group);
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
}

weft_status weft_group_run(weft_group *group, double seconds, uint64_t *version_out) {
    weft_status status = weft_context_enter(group->context);
    if (status == WEFT_OK) {
        status = weft_process_check(group->context, group->process, "this leader of a group");
    }
    if (status != WEFT_OK) {
        return status;
    }
    double until = weft_clock_now() + seconds;
    uint64_t before = weft_group_last_mirror(&group->room).version;
    do {
        switch (group->state) {
        case LEAD_RESTORE:
            status = restore_mirror(group);
            break;
        case LEAD_SEEK:
            status = seek_step(group, until);
            break;
        case LEAD_OFFER:
            status = await_decision(group, until);
            break;
        case LEAD_REFUSED:
            status = offer_step(group);
            break;
        }
    } while (status >= 0 && weft_group_last_mirror(&group->room).version == before &&
             weft_clock_now() < until);
    if (status < 0) {
        return status;
    }
    weft_group_mirror mirror = weft_group_last_mirror(&group->room);
    if (mirror.version == before) {
        return WEFT_MORE;
    }
    if (version_out != NULL) {
        *version_out = mirror.version;
    }
    return WEFT_OK;
}

void weft_group_describe(const weft_group *group, weft_group_info *info_out) {
    weft_group_info info = group->info;
    weft_subscriber_info subscriber = {.size = sizeof subscriber};
    weft_subscriber_describe(group->subscriber, &subscriber);
    weft_group_mirror mirror = weft_group_last_mirror(&group->room);
    info.version = mirror.version;
    info.digest = mirror.digest;
    info.milliseconds = mirror.milliseconds;
    info.newest = subscriber.newest;
    info.offered = group->state == LEAD_OFFER ? group->step.version : 0;
    for (unsigned i = 0; i < group->options.members; i++) {
        info.present += weft_group_rank_lives(&group->room, i);
    }
    info.fetched_bytes = subscriber.fetched_bytes;
    info.requests = subscriber.requests;
    weft_sized_write(&info, info_out, sizeof info);
}
