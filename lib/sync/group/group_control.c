/* SPDX-License-Identifier: Apache-2.0
 *
 * group_control.c: the control file of a group, its places and its words.
 *
 * Places are single bytes of the file under open-file-description locks, which belong to one open of the
 * file (so that threads of one process can be members too) and end with it.
 */
#include "group_control.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    FORMAT = 1,
    RING = 64, /* verdicts that are remembered */
    TEXT_WORDS = WEFT_GROUP_TEXT / 8,
    LEADER_BYTE = 0,
    RANK_BYTE = 1, /* of rank 0 */
    NUMBER_SHIFT = 24,
    RANK_SHIFT = 8,
};

static const uint64_t MAGIC = 0x70756f7267740077; /* in no text */
static const double TAKE_SECONDS = 1; /* a place that the leader only looks at is free again at once */

typedef struct shared_digest {
    _Atomic uint64_t halves[2];
} shared_digest;

typedef struct shared_step {
    _Atomic uint64_t version;
    _Atomic uint64_t milliseconds;
    _Atomic uint64_t file;
    _Atomic uint64_t anchor;
    shared_digest base;
    shared_digest result;
} shared_step;

typedef struct shared_mirror {
    _Atomic uint64_t sequence; /* odd while it moves */
    _Atomic uint64_t number;
    _Atomic uint64_t version;
    _Atomic uint64_t milliseconds;
    shared_digest digest;
} shared_mirror;

typedef struct shared_rank {
    _Atomic uint64_t standing; /* number << 8 | kind */
    _Atomic uint64_t text[TEXT_WORDS];
} shared_rank;

struct weft_group_shared {
    _Atomic uint64_t magic; /* written last */
    _Atomic uint64_t format;
    _Atomic uint64_t members;
    _Atomic uint32_t bell;
    _Atomic uint64_t newest;
    _Atomic uint64_t verdicts[RING]; /* number << 24 | rank << 8 | kind */
    shared_step step;                /* the newest */
    shared_mirror mirror;
    shared_rank ranks[WEFT_GROUP_MEMBERS_MAX];
};

/* ---- the directory and the file ---- */

static weft_status open_directory(weft_group_room *room) {
    room->directory = open(room->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (room->directory < 0) {
        int error = errno;
        return error == ENOENT
                   ? weft_fail(room->context, WEFT_NOT_FOUND, "%s: there is no such group", room->path)
                   : weft_fail_errno(room->context, error, "%s: cannot open", room->path);
    }
    struct stat info;
    if (fstat(room->directory, &info) != 0) {
        return weft_fail_errno(room->context, errno, "%s: cannot look at it", room->path);
    }
    if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        return weft_fail(room->context, WEFT_INVALID_ARGUMENT,
                         "%s belongs to another user, or others may enter it (mode %03o instead of 700): "
                         "choose another place for the group",
                         room->path, (unsigned)(info.st_mode & 0777));
    }
    return WEFT_OK;
}

static weft_status open_file(weft_group_room *room, int flags) {
    room->file = openat(room->directory, "control", O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
    if (room->file < 0) {
        int error = errno;
        return error == ENOENT
                   ? weft_fail(room->context, WEFT_NOT_FOUND, "%s: nobody leads this group yet", room->path)
                   : weft_fail_errno(room->context, error, "%s/control: cannot open", room->path);
    }
    return WEFT_OK;
}

static weft_status map_file(weft_group_room *room) {
    struct stat info;
    if (fstat(room->file, &info) != 0) {
        return weft_fail_errno(room->context, errno, "%s/control: cannot look at it", room->path);
    }
    if (info.st_size < (off_t)sizeof(weft_group_shared)) {
        return weft_fail(room->context, WEFT_NOT_FOUND, "%s: nobody leads this group yet", room->path);
    }
    void *memory = mmap(NULL, sizeof(weft_group_shared), PROT_READ | PROT_WRITE, MAP_SHARED, room->file, 0);
    if (memory == MAP_FAILED) {
        return weft_fail_errno(room->context, errno, "%s/control: cannot map", room->path);
    }
    room->shared = memory;
    return WEFT_OK;
}

static weft_status check_shared(weft_group_room *room) {
    const weft_group_shared *shared = room->shared;
    uint64_t magic = atomic_load(&shared->magic);
    if (magic == 0) {
        return weft_fail(room->context, WEFT_NOT_FOUND, "%s: nobody leads this group yet", room->path);
    }
    uint64_t members = atomic_load(&shared->members);
    if (magic != MAGIC || atomic_load(&shared->format) != FORMAT || members == 0 ||
        members > WEFT_GROUP_MEMBERS_MAX) {
        return weft_fail(room->context, WEFT_WRONG_VERSION,
                         "%s holds no group, or one of another version of weft; remove it when nobody uses "
                         "it any more",
                         room->path);
    }
    room->members = (unsigned)members;
    return WEFT_OK;
}

static weft_status begin_room(weft_group_room *room, weft_context *context, const char *path) {
    *room = (weft_group_room){.context = context, .directory = -1, .file = -1};
    room->path = weft_copy_text(context, path, strlen(path));
    return room->path != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

static void leave_file(weft_group_room *room) {
    if (room->shared != NULL) {
        munmap(room->shared, sizeof(weft_group_shared));
    }
    if (room->file >= 0) {
        close(room->file);
    }
    if (room->directory >= 0) {
        close(room->directory);
    }
    room->shared = NULL;
    room->file = -1;
    room->directory = -1;
}

void weft_group_room_close(weft_group_room *room) {
    if (room->context == NULL) {
        return;
    }
    leave_file(room);
    weft_release(room->context, room->path);
    *room = (weft_group_room){.directory = -1, .file = -1};
}

/* ---- places ---- */

static bool lock_byte(int file, off_t byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

static bool is_locked(int file, off_t byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool weft_group_leader_lives(const weft_group_room *room) {
    return is_locked(room->file, LEADER_BYTE);
}

bool weft_group_rank_lives(const weft_group_room *room, unsigned rank) {
    return is_locked(room->file, RANK_BYTE + (off_t)rank);
}

bool weft_group_inhabited(const weft_group_room *room) {
    bool found = false;
    for (unsigned i = 0; i < room->members && !found; i++) {
        found = weft_group_rank_lives(room, i);
    }
    return found;
}

/* ---- leading and joining ---- */

/* Every page must be there before it is written to: in a file with holes, a file system that is full ends
 * whoever touches one. */
static weft_status reserve_shared(weft_group_room *room) {
    int error;
    do {
        error = posix_fallocate(room->file, 0, (off_t)sizeof(weft_group_shared));
    } while (error == EINTR);
    if (error == 0) {
        return WEFT_OK;
    }
    return weft_fail_errno(
        room->context, error,
        "%s: cannot take the %zu bytes that the group shares; free some space, or choose "
        "another place for the group",
        room->path, sizeof(weft_group_shared));
}

static weft_status lead_room(weft_group_room *room, unsigned members) {
    if (mkdir(room->path, 0700) != 0 && errno != EEXIST) {
        return weft_fail_errno(room->context, errno, "%s: cannot make the group's directory", room->path);
    }
    weft_status status = open_directory(room);
    if (status == WEFT_OK) {
        status = open_file(room, O_CREAT);
    }
    if (status == WEFT_OK && !lock_byte(room->file, LEADER_BYTE)) {
        status = weft_fail(room->context, WEFT_BUSY, "%s: another process leads this group", room->path);
    }
    /* a file that nobody has finished is begun again */
    if (status == WEFT_OK) {
        status = reserve_shared(room);
    }
    if (status == WEFT_OK) {
        status = map_file(room);
    }
    if (status == WEFT_OK && atomic_load(&room->shared->magic) == 0) {
        atomic_store(&room->shared->format, FORMAT);
        atomic_store(&room->shared->members, members);
        atomic_store(&room->shared->magic, MAGIC);
    }
    if (status == WEFT_OK) {
        status = check_shared(room);
    }
    if (status != WEFT_OK) {
        return status;
    }
    return room->members == members
               ? WEFT_OK
               : weft_fail(room->context, WEFT_INVALID_ARGUMENT,
                           "the group at %s has %u members, not %u; remove the directory when nobody uses "
                           "it any more",
                           room->path, room->members, members);
}

weft_status weft_group_room_lead(weft_group_room *room, weft_context *context, const char *path,
                                 unsigned members) {
    weft_status status = begin_room(room, context, path);
    if (status == WEFT_OK) {
        status = lead_room(room, members);
    }
    if (status != WEFT_OK) {
        weft_group_room_close(room);
    }
    return status;
}

static weft_status enter_room(weft_group_room *room) {
    weft_status status = open_directory(room);
    if (status == WEFT_OK) {
        status = open_file(room, 0);
    }
    if (status == WEFT_OK) {
        status = map_file(room);
    }
    return status == WEFT_OK ? check_shared(room) : status;
}

static weft_status take_rank(weft_group_room *room, unsigned rank) {
    if (rank >= room->members) {
        return weft_fail(room->context, WEFT_INVALID_ARGUMENT,
                         "the group at %s has %u members, ranks 0 to %u; there is no rank %u", room->path,
                         room->members, room->members - 1, rank);
    }
    double until = weft_clock_now() + TAKE_SECONDS;
    while (!lock_byte(room->file, RANK_BYTE + (off_t)rank)) {
        if (weft_clock_now() >= until) {
            return weft_fail(room->context, WEFT_BUSY,
                             "rank %u of the group at %s is taken by another process", rank, room->path);
        }
        weft_status status = weft_clock_sleep(room->context, 0.01);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

weft_status weft_group_room_join(weft_group_room *room, weft_context *context, const char *path,
                                 unsigned rank, double seconds) {
    double until = weft_clock_now() + seconds;
    weft_status status = begin_room(room, context, path);
    if (status != WEFT_OK) {
        return status;
    }
    status = enter_room(room);
    while (status == WEFT_NOT_FOUND && weft_clock_now() < until) {
        leave_file(room);
        status = weft_clock_sleep(context, 0.02);
        if (status == WEFT_OK) {
            status = enter_room(room);
        }
    }
    if (status == WEFT_OK) {
        status = take_rank(room, rank);
    }
    if (status != WEFT_OK) {
        weft_group_room_close(room);
    }
    return status;
}

/* ---- the bell ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void weft_group_ring(const weft_group_room *room) {
    atomic_fetch_add(&room->shared->bell, 1);
    futex(&room->shared->bell, FUTEX_WAKE, INT32_MAX, NULL);
}

uint32_t weft_group_bell(const weft_group_room *room) {
    return atomic_load(&room->shared->bell);
}

weft_status weft_group_sleep(const weft_group_room *room, uint32_t bell, double seconds) {
    double slice = seconds < 0.02 ? seconds : 0.02;
    if (slice > 0) {
        struct timespec time = {0, (long)(slice * 1e9)};
        futex(&room->shared->bell, FUTEX_WAIT, bell, &time);
    }
    return weft_progress_ask(room->context);
}

/* ---- digests ---- */

static void store_digest(shared_digest *shared, const weft_digest *digest) {
    uint64_t halves[2];
    memcpy(halves, digest->bytes, sizeof halves);
    atomic_store(&shared->halves[0], halves[0]);
    atomic_store(&shared->halves[1], halves[1]);
}

static weft_digest load_digest(const shared_digest *shared) {
    uint64_t halves[2] = {atomic_load(&shared->halves[0]), atomic_load(&shared->halves[1])};
    weft_digest digest;
    memcpy(digest.bytes, halves, sizeof halves);
    return digest;
}

/* ---- steps ---- */

static uint64_t pack_verdict(uint64_t number, weft_verdict verdict) {
    return number << NUMBER_SHIFT | (uint64_t)verdict.rank << RANK_SHIFT | (uint64_t)verdict.kind;
}

uint64_t weft_group_newest(const weft_group_room *room) {
    return atomic_load(&room->shared->newest);
}

/* First the number, so that who is reading the step before sees that it has gone; last the verdict, before
 * which nobody reads this one. */
uint64_t weft_group_announce(const weft_group_room *room, const weft_group_step *step,
                             weft_verdict_kind kind) {
    weft_group_shared *shared = room->shared;
    uint64_t number = weft_group_newest(room) + 1;
    atomic_store(&shared->newest, number);
    atomic_store(&shared->step.version, step->version);
    atomic_store(&shared->step.milliseconds, step->milliseconds);
    atomic_store(&shared->step.anchor, step->anchor);
    store_digest(&shared->step.base, &step->base);
    store_digest(&shared->step.result, &step->result);
    atomic_store(&shared->step.file, step->file);
    atomic_store(&shared->verdicts[number % RING], pack_verdict(number, (weft_verdict){kind, 0}));
    weft_group_ring(room);
    return number;
}

bool weft_group_read_step(const weft_group_room *room, uint64_t number, weft_group_step *step) {
    const shared_step *shared = &room->shared->step;
    *step = (weft_group_step){
        .version = atomic_load(&shared->version),
        .milliseconds = atomic_load(&shared->milliseconds),
        .file = atomic_load(&shared->file),
        .anchor = atomic_load(&shared->anchor) != 0,
        .base = load_digest(&shared->base),
        .result = load_digest(&shared->result),
    };
    return weft_group_newest(room) == number;
}

weft_verdict weft_group_verdict(const weft_group_room *room, uint64_t number) {
    uint64_t word = atomic_load(&room->shared->verdicts[number % RING]);
    if (word >> NUMBER_SHIFT != number) {
        /* the mirror goes through every step that was committed, and stays there until the next is */
        bool committed = weft_group_last_mirror(room).number == number;
        return (weft_verdict){committed ? WEFT_VERDICT_COMMITTED : WEFT_VERDICT_FORGOTTEN, 0};
    }
    uint64_t kind = word & (((uint64_t)1 << RANK_SHIFT) - 1);
    unsigned rank = (unsigned)(word >> RANK_SHIFT) & 0xffff;
    return (weft_verdict){kind < WEFT_VERDICT_FORGOTTEN ? (weft_verdict_kind)kind : WEFT_VERDICT_FORGOTTEN,
                          rank < room->members ? rank : 0};
}

void weft_group_decide(const weft_group_room *room, uint64_t number, weft_verdict verdict) {
    uint64_t open = pack_verdict(number, (weft_verdict){WEFT_VERDICT_OPEN, 0});
    if (atomic_compare_exchange_strong(&room->shared->verdicts[number % RING], &open,
                                       pack_verdict(number, verdict))) {
        weft_group_ring(room);
    }
}

static void read_text(const weft_group_room *room, unsigned rank, char text[WEFT_GROUP_TEXT]) {
    for (size_t i = 0; i < TEXT_WORDS; i++) {
        uint64_t word = atomic_load(&room->shared->ranks[rank].text[i]);
        memcpy(text + 8 * i, &word, 8);
    }
    text[WEFT_GROUP_TEXT - 1] = '\0';
}

weft_status weft_group_explain(const weft_group_room *room, uint64_t number, uint64_t version) {
    weft_verdict verdict = weft_group_verdict(room, number);
    unsigned long long which = version;
    char text[WEFT_GROUP_TEXT];
    switch (verdict.kind) {
    case WEFT_VERDICT_FAILED:
        read_text(room, verdict.rank, text);
        return weft_fail(room->context, WEFT_ABORTED,
                         "version %llu was not committed: rank %u could not prepare it: %s; all ranks stay "
                         "where they are",
                         which, verdict.rank, text);
    case WEFT_VERDICT_DIED:
        return weft_fail(
            room->context, WEFT_ABORTED,
            "version %llu was not committed: rank %u died before all had voted; all ranks stay "
            "where they are, start it again",
            which, verdict.rank);
    case WEFT_VERDICT_LATE:
        return weft_fail(
            room->context, WEFT_ABORTED,
            "version %llu was not committed: rank %u did not vote in time; all ranks stay where "
            "they are",
            which, verdict.rank);
    case WEFT_VERDICT_LEADERLESS:
        return weft_fail(room->context, WEFT_ABORTED,
                         "version %llu was not committed: the leader of %s died before all had voted; all "
                         "ranks stay where they are, start it again",
                         which, room->path);
    case WEFT_VERDICT_REFUSED:
        return weft_fail(
            room->context, WEFT_ABORTED,
            "version %llu was not committed: rank %u rolled back; all ranks stay where they are", which,
            verdict.rank);
    case WEFT_VERDICT_FORGOTTEN:
        return weft_fail(
            room->context, WEFT_ABORTED,
            "what became of version %llu is no longer known: this rank was stopped for too long; "
            "it stays where it was, and hears at its next wait if it must be filled again",
            which);
    default:
        return weft_fail(room->context, WEFT_ABORTED,
                         "version %llu was taken back, because there is a newer one; prepare again", which);
    }
}

/* ---- ranks ---- */

void weft_group_stand(const weft_group_room *room, unsigned rank, weft_standing standing) {
    atomic_store(&room->shared->ranks[rank].standing, standing.number << 8 | (uint64_t)standing.kind);
    weft_group_ring(room);
}

weft_standing weft_group_standing(const weft_group_room *room, unsigned rank) {
    uint64_t word = atomic_load(&room->shared->ranks[rank].standing);
    uint64_t kind = word & 0xff;
    return (weft_standing){kind <= WEFT_STANDING_FAILED ? (weft_standing_kind)kind : WEFT_STANDING_FAILED,
                           word >> 8};
}

void weft_group_write_text(const weft_group_room *room, unsigned rank, const char *text) {
    char padded[WEFT_GROUP_TEXT] = "";
    snprintf(padded, sizeof padded, "%s", text);
    for (size_t i = 0; i < TEXT_WORDS; i++) {
        uint64_t word;
        memcpy(&word, padded + 8 * i, 8);
        atomic_store(&room->shared->ranks[rank].text[i], word);
    }
}

void weft_group_reap(const weft_group_room *room) {
    for (unsigned i = 0; i < room->members; i++) {
        off_t byte = RANK_BYTE + (off_t)i;
        if (weft_group_standing(room, i).kind != WEFT_STANDING_ABSENT && lock_byte(room->file, byte)) {
            weft_group_stand(room, i, (weft_standing){WEFT_STANDING_ABSENT, 0});
            struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
            fcntl(room->file, F_OFD_SETLK, &lock);
        }
    }
}

/* ---- the mirror ---- */

weft_group_mirror weft_group_last_mirror(const weft_group_room *room) {
    const shared_mirror *shared = &room->shared->mirror;
    return (weft_group_mirror){
        .sequence = atomic_load(&shared->sequence),
        .number = atomic_load(&shared->number),
        .version = atomic_load(&shared->version),
        .milliseconds = atomic_load(&shared->milliseconds),
        .digest = load_digest(&shared->digest),
    };
}

char *weft_group_mirror_path(const weft_group_room *room) {
    size_t size = strlen(room->path) + sizeof "/mirror";
    char *path = weft_allocate(room->context, size);
    if (path != NULL) {
        snprintf(path, size, "%s/mirror", room->path);
    }
    return path;
}

bool weft_group_read_mirror(const weft_group_room *room, weft_group_mirror *mirror) {
    *mirror = weft_group_last_mirror(room);
    return mirror->sequence % 2 == 0 && atomic_load(&room->shared->mirror.sequence) == mirror->sequence;
}

void weft_group_move_mirror(const weft_group_room *room) {
    atomic_fetch_or(&room->shared->mirror.sequence, 1);
}

void weft_group_place_mirror(const weft_group_room *room, const weft_group_mirror *mirror) {
    shared_mirror *shared = &room->shared->mirror;
    weft_group_move_mirror(room);
    atomic_store(&shared->number, mirror->number);
    atomic_store(&shared->version, mirror->version);
    atomic_store(&shared->milliseconds, mirror->milliseconds);
    store_digest(&shared->digest, &mirror->digest);
    atomic_store(&shared->sequence, mirror->sequence);
    weft_group_ring(room);
}
