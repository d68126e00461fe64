/* SPDX-License-Identifier: Apache-2.0
 *
 * sync.h: PULSESync. A publisher puts each new state of a model into a store as a patch; subscribers bring
 * their copies to exactly that state. doc/FORMAT.md specifies the objects,
 * doc/architecture/protocol.md the protocol.
 */
#ifndef WEFT_SYNC_H
#define WEFT_SYNC_H

#include <weft/patch.h>
#include <weft/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the head ----
 *
 * The one mutable object of a run, one per epoch: which version is the newest, and where to find it. */

enum { WEFT_HEAD_MAX = 4096 };

typedef struct weft_head_info {
    size_t size;             /* sizeof(weft_head_info) */
    char run[WEFT_RUN_TEXT]; /* which run; hexadecimal */
    uint64_t epoch;          /* of the writer; a new writer begins a new one */
    uint64_t sequence;       /* of the heads of an epoch */
    uint64_t version;        /* the newest; 0: nothing is published yet */
    weft_digest digest;      /* of the newest version's state */
    uint64_t milliseconds;   /* since 1970, when it was published, by the publisher's clock */
    uint64_t patch_bytes;    /* of the newest version's patch; 0 if it came as an anchor only */
    uint64_t dense_bytes;    /* of the model */
    uint64_t changed, total; /* elements */
    bool is_signed;
    unsigned format; /* that the run is written in; see weft_publisher_options.format */
} weft_head_info;

/* The key of an epoch's head. */
enum { WEFT_HEAD_KEY = 32 };
WEFT_API void weft_head_key(uint64_t epoch, char key[WEFT_HEAD_KEY]);
/* What a head says. With `trusted`, a head that is not signed by that key is WEFT_SIGNATURE_MISMATCH. */
WEFT_API WEFT_CHECKED weft_status weft_head_inspect(weft_context *context, const void *data, size_t size,
                                                    const weft_key *trusted, weft_head_info *info_out);
/* Finds the newest head of a store. WEFT_NOT_FOUND if there is none. `data` takes WEFT_HEAD_MAX bytes. */
WEFT_API WEFT_CHECKED weft_status weft_head_find(weft_context *context, weft_store *store,
                                                 uint64_t least_epoch, uint8_t *data, size_t *size_out,
                                                 uint64_t *epoch_out);

/* ---- publishing ---- */

typedef struct weft_publisher_options {
    size_t size; /* sizeof(weft_publisher_options) */
    /* With WEFT_PROFILE_SMALLEST the publisher and its followers keep lists of what changed within 8
     * versions, 8 bytes for each such weight. Anchors, leaps and versions in parts are WEFT_PROFILE_SMALL
     * then. */
    weft_profile profile;
    uint64_t bucket_bytes; /* 0: 8 MiB, with the fast profile 2 MiB */
    const weft_cut *cuts;
    size_t cut_count;
    const weft_container *container; /* the files that the tensors come from; NULL: one file is made up */
    const weft_key *key;             /* signs heads; NULL: they are not signed */
    bool adopt;                      /* continue a run whose head that key has not signed */
    /* A new anchor is written when the patches since the last one add up to this many times its size; 0: 1.
     * Below zero: never, except for the first version and what the store must have. */
    double anchor_ratio;
    unsigned keep_anchors; /* versions since this many anchors stay; 0: 2 */
    /* With each anchor, objects that no kept version has needed for this long are removed (see
     * weft_gc_run); 0: never, another process does it. */
    double gc_seconds;
    bool keep_followers; /* and that keeps what live followers need; see weft_gc_options */
    /* Back-pressure: a publish waits until no live follower is more than this many versions behind the
     * one to come, at most `max_lag_seconds` (0: 60), and then publishes all the same. It waits for
     * overtaken followers again only when they have moved. 0: it does not wait. Followers count by their
     * reports (see weft_fleet_read); those that hold nothing yet, or have failed, do not count.
     * WEFT_UNSUPPORTED where the store cannot list reports. */
    uint64_t max_lag;
    double max_lag_seconds;
    bool whole;          /* every version comes as an anchor and none as a patch, for comparison; of live
                            memory, published by one process */
    bool no_leaps;       /* make no patches over several versions, which shorten catching up */
    uint64_t leap_bytes; /* memory to make them with; 0: twice the model's size */
    const char *mirror_path;     /* a private checkpoint of the state published last; NULL: memory */
    const char *spool_directory; /* for anchors in flight; NULL: TMPDIR or /tmp */
    bool anchors_in_background;  /* false: a due anchor is written before publish returns */
    /* Several processes publish each version together, each the part of the model that its view holds. This
     * one is part `part_index` of `part_count`; 0 or 1: there is one process. See weft_publisher_open. */
    unsigned part_index;
    unsigned part_count;
    double part_seconds; /* how much longer than this part another may take until it fails; 0: 60 */
    /* Cuts that followers announce with their reports (weft_subscriber_options.cuts) are added to `cuts`,
     * and an anchor with them is written. They are looked for now and then, where the store can list
     * reports, and not if there are several parts, which must agree. True: only `cuts` count. */
    bool no_announced_cuts;
    /* The format that is written. 0: that of the run, which its followers can read, or the newest for a new
     * run. A higher one than the run's is for it from now on; a run never goes back. In
     * format 1 WEFT_PROFILE_SMALLEST is WEFT_PROFILE_SMALL. All parts follow the first one. */
    unsigned format;
} weft_publisher_options;

typedef struct weft_publish_result {
    size_t size; /* sizeof(weft_publish_result) */
    uint64_t version;
    uint64_t epoch;
    uint64_t changed;     /* units that differ; of an anchor-only version, all */
    uint64_t total;       /* units of the model */
    uint64_t dense_bytes; /* of the model */
    uint64_t patch_bytes;
    uint64_t buckets;
    weft_digest base;        /* of the version before */
    weft_digest digest;      /* of this version */
    uint64_t uploaded_bytes; /* all objects of this version, the head included */
    uint64_t requests;       /* store operations */
    bool anchored;           /* the version came as an anchor, because there was nothing to differ from */
    uint64_t anchor_bytes;   /* of an anchor that was written besides, before the call returned */
    double seconds;          /* until the version was visible and the next one can begin: */
    double diff_seconds;     /*   diff and encode; the upload runs beside it */
    double upload_seconds;   /*   from the end of encoding until all objects were there */
    double head_seconds;     /*   until the head had moved and the baseline with it */
    double waited_seconds;   /* before all that, for followers; see max_lag */
    bool overtaken;          /* and some of them were too far behind when it was published */
    unsigned format;         /* of the run; see weft_publisher_options.format */
} weft_publish_result;

typedef struct weft_publisher weft_publisher;

/* Takes over the run in `store`, or begins one: every earlier publisher of it is fenced from now on. The
 * state that was published last is rebuilt from the store alone (unless the mirror file holds it). `view`
 * is what will be published: live memory, FP32 masters of BF16 tensors included, or a checkpoint. It must
 * be complete. The view, the store and what the options point to, except for paths, must outlive the
 * publisher. `options` may be NULL.
 *
 * With `part_count` processes that each hold a part of the model, every one opens a publisher with its
 * own `part_index`, the same profile, bucket size and cuts, and a view of the whole model's tensors (see
 * weft_view_create_layout) that holds its part. The cuts must be such that some process holds each bucket
 * whole. If several hold it, one of them publishes it. All call weft_publisher_publish once per version,
 * with the same labels; part 0 takes over the run and moves the head. A label that tells the step, such
 * as step=43, is required: only that shows parts that join, after a start or a failure, that they are at
 * the same step. A label that never changes makes a version of two steps possible. After the join, calls
 * are counted too, and a part that has called once more or less than part 0 is refused. With a `key`,
 * which every part must then have, the messages between parts are signed. No process ever needs more
 * memory than its part. `mirror_path` and `anchors_in_background` are for one process alone; `max_lag` is
 * part 0's, and the others wait that much longer for it.
 *
 * A call that is cancelled, or fails, after it has taken over has published nothing, but earlier
 * publishers stay fenced: the takeover comes first, because only then is it certain which state to
 * rebuild. */
WEFT_API WEFT_CHECKED weft_status weft_publisher_open(weft_context *context, weft_store *store,
                                                      const weft_view *view,
                                                      const weft_publisher_options *options,
                                                      weft_publisher **publisher_out);
/* Publishes what the view holds now; the weights must not change meanwhile. WEFT_OK acknowledges the
 * version: it stays in the history. On failure nothing is published, and the next call publishes whatever
 * the view holds then: retry or skip, nothing drifts. The version may appear after a failure only if the
 * store stopped answering while the head was written, or if a part other than part 0 gave up waiting for
 * the outcome, or was cancelled then; the next call finds out first. WEFT_CONFLICT: another publisher has
 * taken over, and this one is finished. `labels` (key, value, …, NULL) and `result_out` may be NULL,
 * labels only if there is one process. */
WEFT_API WEFT_CHECKED weft_status weft_publisher_publish(weft_publisher *publisher,
                                                         const char *const *labels,
                                                         weft_publish_result *result_out);
/* The same for a trainer that knows what has changed since the version that was published last: the new
 * state is that version with these changes (see weft_tensor_changes), and the view's weights are not read;
 * they may be on an accelerator, or half way through the next step. The publisher takes its own copy of the
 * last version forward, so that the cost is that of the changes, and anchors come from there too. Tensors
 * that share their memory in the view are changed under each of their names. After a failure the next call
 * gives the changes of the failed one again, together with what has changed since. What was left out stays
 * as it was for followers, until a weft_publisher_publish compares everything.
 *
 * WEFT_NOT_FOUND: the publisher has no copy to change, because nothing is published yet, or because the
 * last version has other tensors than the view or cannot be fetched; weft_publisher_publish must come
 * first. WEFT_UNSUPPORTED with the option `whole`, and in parts. */
WEFT_API WEFT_CHECKED weft_status weft_publisher_publish_changes(weft_publisher *publisher,
                                                                 const weft_tensor_changes *changes,
                                                                 size_t count, const char *const *labels,
                                                                 weft_publish_result *result_out);
/* Writes an anchor of the newest version now, unless it has one. */
WEFT_API WEFT_CHECKED weft_status weft_publisher_anchor(weft_publisher *publisher, uint64_t *bytes_out);
/* Waits for the background. The status of the last anchor, if that failed. */
WEFT_API WEFT_CHECKED weft_status weft_publisher_settle(weft_publisher *publisher);
WEFT_API uint64_t weft_publisher_version(const weft_publisher *publisher);
WEFT_API uint64_t weft_publisher_epoch(const weft_publisher *publisher);
/* The name of the run. */
WEFT_API const char *weft_publisher_run(const weft_publisher *publisher);
/* Settles, and releases everything. */
WEFT_API void weft_publisher_close(weft_publisher *publisher);

/* ---- following ---- */

typedef enum weft_sync_phase {
    WEFT_SYNC_WAIT = 0,   /* for a version to come */
    WEFT_SYNC_FETCH = 1,  /* until the last byte was here; decoding runs beside it */
    WEFT_SYNC_DECODE = 2, /* the rest of decoding and proving, after the last byte */
    WEFT_SYNC_VERIFY = 3, /* the audit of other parts of the model */
    WEFT_SYNC_COMMIT = 4, /* the pause */
} weft_sync_phase;

WEFT_API const char *weft_sync_phase_name(weft_sync_phase phase);

/* One phase of one step has ended. `bytes`: fetched, decoded, audited or written. The subscriber is in the
 * middle of a call: it can be described, and refuses everything else with WEFT_BUSY. */
typedef void (*weft_sync_phase_function)(void *opaque, weft_sync_phase phase, uint64_t version,
                                         double seconds, uint64_t bytes);

typedef struct weft_subscriber_options {
    size_t size;             /* sizeof(weft_subscriber_options) */
    const weft_key *trusted; /* heads must be signed by it; NULL: what the store says is believed */
    const char *state_path;  /* the watermark: the newest head seen, across restarts; NULL: not kept, but a
                                file replica then uses a name beside it */
    uint64_t audit_bytes;    /* of weights re-summed at each version, in turn; 0: 16 MiB; UINT64_MAX: all */
    double poll_seconds; /* between polls where the store has no long poll; 0: of a directory 0.02, else 0.5
                            to 10, a tenth of the time that versions take */
    uint64_t fetch_bytes; /* of chunks in flight; 0: 256 MiB */
    bool empty;           /* live memory holds nothing yet: its contents are neither read nor believed */
    bool replace;         /* file replica: a model that is no version of the run may be replaced */
    bool durable;         /* file replica: survive power loss */
    weft_sync_phase_function phase;
    void *phase_opaque;
    /* Reports under this name: a small object in the store says which version the replica holds and how
     * it fares. A thread of its own writes it every `report_seconds` (0: 5, in S3 60) and soon after a
     * step or a failure. A store that refuses reports is not asked again. NULL: no reports. Copied. */
    const char *report_name;
    double report_seconds;
    /* What the publisher must cut so that this replica, and those that go with it, can take the parts that
     * they hold: announced with the reports, for a publisher to pick up. Copied. WEFT_LIMIT_EXCEEDED if
     * they take more than WEFT_FOLLOWER_CUTS - 1 bytes as text; then the publisher must be told otherwise.
     */
    const weft_cut *cuts;
    size_t cut_count;
} weft_subscriber_options;

typedef struct weft_subscriber weft_subscriber;

/* Follows into live memory. The view and the store must outlive the subscriber. A view that does not hold
 * the whole model must begin empty. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_open(weft_context *context, weft_store *store,
                                                       const weft_view *view,
                                                       const weft_subscriber_options *options,
                                                       weft_subscriber **subscriber_out);
/* The same through a layout: what the checkpoint's tensors are is read from the store. Begins empty if the
 * layout holds a part of the model only. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_open_layout(weft_context *context, weft_store *store,
                                                              const weft_table *table,
                                                              const weft_layout *layout,
                                                              const weft_subscriber_options *options,
                                                              weft_subscriber **subscriber_out);
/* Follows into a checkpoint on disk, which need not exist yet. It is locked until the close. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_open_file(weft_context *context, weft_store *store,
                                                            const char *path,
                                                            const weft_subscriber_options *options,
                                                            weft_subscriber **subscriber_out);
WEFT_API void weft_subscriber_close(weft_subscriber *subscriber);

/* Waits until the store has something newer than this replica. WEFT_MORE: not within `seconds`. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_wait(weft_subscriber *subscriber, double seconds,
                                                       uint64_t *version_out);
/* Fetches, checks, decodes and proves the cheapest route to `version` (0: the newest), and leaves the
 * weights alone; they may be in use. WEFT_MORE: one step of several is prepared; commit it, which leads
 * to a published version too, and prepare again. With nothing to do it returns WEFT_OK, and commit does
 * nothing. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_prepare(weft_subscriber *subscriber, uint64_t version);
/* Visits what the prepared step changes in live memory: see weft_apply_changes. Nothing is visited if there
 * is nothing to do. WEFT_UNSUPPORTED where the changes are not there to be seen: of a file, of memory that
 * held nothing and is filled by prepare, and of a step that limits.stage_bytes cuts into portions. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_changes(weft_subscriber *subscriber, size_t batch,
                                                          weft_change_function visit, void *opaque);
/* Puts the prepared step in place: the pause. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_commit(weft_subscriber *subscriber);
/* Drops what is prepared. After a commit to live memory, restores the version before, once, until the next
 * prepare. A step that limits.stage_bytes cut into portions cannot be rolled back, since all but the first
 * are fetched and decoded during the commit: WEFT_UNSUPPORTED, and nothing is touched. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_rollback(weft_subscriber *subscriber);
/* prepare and commit until `version` (0: the newest) is reached. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_pull(weft_subscriber *subscriber, uint64_t version);
/* Re-sums everything against the promised digest. WEFT_DIGEST_MISMATCH: the weights were changed by
 * somebody else; the next prepare starts from an anchor. */
WEFT_API WEFT_CHECKED weft_status weft_subscriber_verify(weft_subscriber *subscriber);

typedef struct weft_subscriber_info {
    size_t size;      /* sizeof(weft_subscriber_info) */
    uint64_t version; /* of the replica; 0: it is at no published version */
    weft_digest digest;
    uint64_t newest; /* that the store was last seen to have */
    uint64_t epoch;
    uint64_t sequence;
    uint64_t fetched_bytes; /* since the open, heads and pages included */
    uint64_t requests;
    uint64_t patches; /* applied since the open */
    uint64_t anchors;
    uint64_t healed;       /* objects that were damaged or missing and avoided */
    double pause_seconds;  /* the last commit */
    uint64_t milliseconds; /* when the replica's version was published */
} weft_subscriber_info;

WEFT_API void weft_subscriber_describe(const weft_subscriber *subscriber, weft_subscriber_info *info_out);
/* A label of the replica's version, or NULL. Valid until the next call. */
WEFT_API const char *weft_subscriber_label(const weft_subscriber *subscriber, const char *key);
/* All of them: key, value, …, NULL. Valid until the next call. */
WEFT_API const char *const *weft_subscriber_labels(const weft_subscriber *subscriber);

/* ---- the fleet ----
 *
 * Reports of followers. They are optional and untrusted. They are for people, and for decisions that a
 * false report makes slower or more expensive, never wrong. */

enum {
    WEFT_FOLLOWER_NAME = 65, /* a name with its terminator; 1 to 64 of A-Z a-z 0-9 . _ -, no dot first */
    WEFT_FOLLOWER_STATE = 16,
    WEFT_FOLLOWER_ERROR = 301,
    WEFT_FOLLOWER_CUTS = 1025, /* a text of PATTERN:DIM:PARTS, with spaces between them */
    WEFT_FLEET_MAX = 4096,     /* of more followers, those that have been heard of most recently */
};

typedef struct weft_follower {
    char name[WEFT_FOLLOWER_NAME];
    char run[WEFT_RUN_TEXT];
    char state[WEFT_FOLLOWER_STATE]; /* waiting, fetching, prepared, failed, ended */
    uint64_t version;                /* 0: none yet */
    weft_digest digest;
    uint64_t newest;                            /* that it has seen */
    uint64_t milliseconds;                      /* since 1970, when it wrote this, by its clock */
    uint64_t published;                         /* its version, by the publisher's clock; 0: no version */
    double phase_seconds[WEFT_SYNC_COMMIT + 1]; /* of its last step */
    double pause_seconds;
    uint64_t patches, anchors, healed, fetched_bytes, requests; /* since it was started */
    uint64_t error_milliseconds;                                /* by its clock */
    char error[WEFT_FOLLOWER_ERROR];                            /* the last one, or ""; any text */
    double interval_seconds;                                    /* between its reports */
    /* added by the reader */
    double age_seconds; /* since it was heard of, by the store's clock */
    uint64_t lag;       /* versions behind the newest */
    double lag_seconds; /* between the publishing of its version and of the newest; below zero: not known */
    bool live; /* heard of within three intervals, by itself or by its relay, and its state is not ended */
    /* told by the follower: cuts that it asks the publisher for, or "" */
    char cuts[WEFT_FOLLOWER_CUTS];
    /* added by a relay that handed its report on */
    bool relayed;
    double relay_seconds; /* since the relay had heard of it, when it did so; part of age_seconds */
    unsigned reads;       /* the newest format that it can read, and that relays before it can */
} weft_follower;

typedef struct weft_fleet_options {
    size_t size; /* sizeof(weft_fleet_options) */
    const weft_key *trusted;
    const weft_head_info *head; /* of the run, if the caller knows it; NULL: the newest is looked for */
} weft_fleet_options;

typedef struct weft_fleet {
    size_t size; /* sizeof(weft_fleet) */
    const weft_follower *const
        *followers; /* the live ones first, and of these the one that is most behind */
    size_t count;
    size_t live;
    size_t left_out;  /* objects that are no report of this run, or too many, or older than a day */
    uint64_t newest;  /* version of the run; 0: none */
    uint64_t slowest; /* the lowest version of a live follower that has one; 0: none */
    unsigned reads;   /* the newest format that all live followers can read; 0: there are none */
} weft_fleet;

WEFT_API bool weft_follower_name_valid(const char *name);
/* Reads the reports in a store. WEFT_UNSUPPORTED where it has no listing, as with a web server other than
 * `weft serve`; WEFT_NOT_FOUND if there is no run. `options` may be NULL. */
WEFT_API WEFT_CHECKED weft_status weft_fleet_read(weft_context *context, weft_store *store,
                                                  const weft_fleet_options *options, weft_fleet *fleet_out);
WEFT_API void weft_fleet_close(weft_context *context, weft_fleet *fleet);

/* ---- groups ----
 *
 * Several replicas on one host, such as the tensor-parallel ranks of one engine, that commit the same
 * version together or not at all. They meet in a directory of a memory file system, which belongs to one
 * user. Its leader follows the run: it fetches and decodes each version once, into a mirror of the whole
 * model there. Members fill their weights from the mirror, prepare from what the leader has decoded, and
 * vote by committing: a version is put in place when all of them have prepared it. */

enum { WEFT_GROUP_MEMBERS_MAX = 256 };

typedef struct weft_group_options {
    size_t size;      /* sizeof(weft_group_options) */
    unsigned members; /* ranks 0 to members - 1, all of which must vote */
    /* As for any subscriber; what is about live memory or files in it does not count. */
    const weft_subscriber_options *follow; /* may be NULL */
} weft_group_options;

typedef struct weft_group weft_group;

/* Takes the lead of the group at `path`, which is created if it does not exist. WEFT_BUSY: it has a leader.
 * Continues from what a former leader left. The store and what the options point to must outlive the group.
 * One process or thread per host leads; it may be a member too. */
WEFT_API WEFT_CHECKED weft_status weft_group_lead(weft_context *context, weft_store *store,
                                                  const char *path, const weft_group_options *options,
                                                  weft_group **group_out);
/* Leads for `seconds`, or until the group is at another version: WEFT_OK. WEFT_MORE: not yet; the next
 * call, which should come soon, continues. WEFT_ABORTED: a version was not committed, and the text names
 * the rank and the reason; the next call offers it again, or a newer one. While no rank is present, the
 * mirror follows alone. */
WEFT_API WEFT_CHECKED weft_status weft_group_run(weft_group *group, double seconds, uint64_t *version_out);

typedef struct weft_group_info {
    size_t size;      /* sizeof(weft_group_info) */
    uint64_t version; /* of the group; 0: none yet */
    weft_digest digest;
    uint64_t newest;             /* that the store was last seen to have */
    uint64_t offered;            /* the version that is being voted on, or 0 */
    unsigned present;            /* ranks that are there */
    uint64_t committed, aborted; /* since the lead was taken */
    uint64_t step_bytes;         /* of the step that was offered last, as members read it */
    uint64_t fetched_bytes, requests;
    uint64_t milliseconds; /* when the group's version was published */
} weft_group_info;

WEFT_API void weft_group_describe(const weft_group *group, weft_group_info *info_out);
/* The directory stays, and the mirror in it, for the next leader. */
WEFT_API void weft_group_close(weft_group *group);

typedef struct weft_member_options {
    size_t size;          /* sizeof(weft_member_options) */
    double seconds;       /* for the group to be there, and for the others to vote; 0: 60 */
    uint64_t audit_bytes; /* of weights re-summed at each version, in turn; 0: 16 MiB; UINT64_MAX: all */
} weft_member_options;

typedef struct weft_member weft_member;

/* Joins as `rank` and fills the weights from the mirror: what they hold is not read. WEFT_BUSY: the rank is
 * there already. The view must outlive the member. */
WEFT_API WEFT_CHECKED weft_status weft_member_open(weft_context *context, const char *path, unsigned rank,
                                                   const weft_view *view,
                                                   const weft_member_options *options,
                                                   weft_member **member_out);
/* The same through a layout. */
WEFT_API WEFT_CHECKED weft_status weft_member_open_layout(weft_context *context, const char *path,
                                                          unsigned rank, const weft_table *table,
                                                          const weft_layout *layout,
                                                          const weft_member_options *options,
                                                          weft_member **member_out);
/* Leaves the group; it waits for the rank to come back. */
WEFT_API void weft_member_close(weft_member *member);

/* Waits until the leader offers a version. WEFT_MORE: not within `seconds`. WEFT_BASE_MISMATCH: the group
 * has gone on without this rank, which must be closed and opened again. */
WEFT_API WEFT_CHECKED weft_status weft_member_wait(weft_member *member, double seconds,
                                                   uint64_t *version_out);
/* Decodes and proves the offered version, and leaves the weights alone. With a `version`, waits for that
 * one; 0: the one on offer, and if there is none, WEFT_OK, and commit does nothing. A failure counts for
 * all: no rank commits the version. */
WEFT_API WEFT_CHECKED weft_status weft_member_prepare(weft_member *member, uint64_t version);
/* Votes, waits for the others, and commits the version. WEFT_ABORTED: a rank could not prepare it, died, or
 * did not vote in time; all ranks stay at the version before, and get the same text. */
WEFT_API WEFT_CHECKED weft_status weft_member_commit(weft_member *member);
/* Drops what is prepared, for all ranks. What was committed cannot be taken back. */
WEFT_API WEFT_CHECKED weft_status weft_member_rollback(weft_member *member);
/* Re-sums everything that the rank holds. WEFT_DIGEST_MISMATCH: the weights were changed by somebody else;
 * close the member and open it again. */
WEFT_API WEFT_CHECKED weft_status weft_member_verify(weft_member *member);

typedef struct weft_member_info {
    size_t size; /* sizeof(weft_member_info) */
    uint64_t version;
    weft_digest digest; /* of the whole model at that version, whatever the rank holds of it */
    unsigned rank;
    uint64_t committed, aborted; /* since the open */
    double pause_seconds;        /* the last commit, from the decision on */
    double vote_seconds;         /* how long it waited for the decision */
    uint64_t milliseconds;       /* when the version was published */
} weft_member_info;

WEFT_API void weft_member_describe(const weft_member *member, weft_member_info *info_out);
/* A label of the version that was committed last, or NULL. Valid until the next call. */
WEFT_API const char *weft_member_label(const weft_member *member, const char *key);

/* ---- relaying ----
 *
 * A relay stands between a store and many readers. It caches what it has fetched in a directory of its
 * own, which is laid out like a store. It fetches each object once, however many ask for it at the same
 * moment. It passes on only what a head and the pages behind it name, chunk by chunk, each checked first.
 * It serves what it has while the store is unreachable.
 *
 * Nothing here waits for the network: a reader of bytes that are not there yet is suspended, and a thread
 * of the relay resumes it. */

typedef struct weft_relay_options {
    size_t size;             /* sizeof(weft_relay_options) */
    const weft_key *trusted; /* heads must be signed by it; NULL: what the store says is believed */
    uint64_t cache_bytes;    /* kept in the directory; 0: 10 GiB. Objects in flight come on top */
    double poll_seconds;     /* between polls where the store has no long poll; 0: as a subscriber does */
    void (*news)(void *opaque); /* there is a new head; called by a thread of the relay's; may be NULL */
    void *opaque;
} weft_relay_options;

/* Transfers that a relay has in flight at once: objects, heads and reports. Open its store for as many, so
 * that none waits for another. */
enum { WEFT_RELAY_TRANSFERS = 24 };

typedef struct weft_relay weft_relay;

/* The directory is made if it does not exist, and locked: WEFT_BUSY if another relay has it. Files are
 * removed from it: WEFT_INVALID_ARGUMENT if it has files and was never a relay's, or does not lie apart
 * from a directory that is relayed. Upstream and trusted key must outlive the relay. `options` may be NULL.
 * The store is looked at before this returns, but not for long, and it need not be reached. */
WEFT_API WEFT_CHECKED weft_status weft_relay_open(weft_context *context, weft_store *upstream,
                                                  const char *directory, const weft_relay_options *options,
                                                  weft_relay **relay_out);
/* Ends all transfers, and resumes everybody: from now on nobody is suspended, and what is not here fails.
 */
WEFT_API void weft_relay_stop(weft_relay *relay);
/* All readers must be closed. */
WEFT_API void weft_relay_close(weft_relay *relay);

/* The newest head that was verified. WEFT_NOT_FOUND if the store has none, WEFT_REMOTE_FAILED if it could
 * not be asked yet. */
WEFT_API WEFT_CHECKED weft_status weft_relay_head(weft_context *context, weft_relay *relay,
                                                  uint8_t data[WEFT_HEAD_MAX], size_t *size_out,
                                                  weft_head_info *info_out);

/* How a reader is suspended, by its own thread within a call, and resumed, by any. Neither may call back.
 */
typedef struct weft_relay_hooks {
    void (*suspend)(void *opaque);
    void (*resume)(void *opaque);
    void *opaque;
} weft_relay_hooks;

typedef struct weft_relay_reader weft_relay_reader;

typedef struct weft_relay_object {
    size_t size; /* sizeof(weft_relay_object) */
    uint64_t bytes;
    weft_store_tag tag; /* of the contents, and the same on every relay */
    int file;           /* the whole object, checked; -1 if it is still coming. The reader's own */
} weft_relay_object;

/* Begins to read an object. The context is the reader's until it is closed. */
WEFT_API WEFT_CHECKED weft_status weft_relay_reader_open(weft_context *context, weft_relay *relay,
                                                         const char *key, const weft_relay_hooks *hooks,
                                                         weft_relay_reader **reader_out);
/* Each of these returns WEFT_MORE when it has suspended the reader: call again when resumed. */
/* What it is. WEFT_NOT_FOUND if the history does not name it. */
WEFT_API WEFT_CHECKED weft_status weft_relay_reader_find(weft_relay_reader *reader,
                                                         weft_relay_object *object_out);
/* Bytes from `offset`, below the size, are there. The object is fetched from now on. */
WEFT_API WEFT_CHECKED weft_status weft_relay_reader_await(weft_relay_reader *reader, uint64_t offset);
/* At least one byte, and at most `capacity`. */
WEFT_API WEFT_CHECKED weft_status weft_relay_reader_read(weft_relay_reader *reader, uint64_t offset,
                                                         void *data, size_t capacity, size_t *count_out);
/* Hands the object's `file` over to the caller, who closes it; the reader reads no more. */
WEFT_API int weft_relay_reader_release_file(weft_relay_reader *reader);
/* Not while it is suspended. */
WEFT_API void weft_relay_reader_close(weft_relay_reader *reader);

/* Hands a follower's report (followers/NAME) on to the store, which waits for it; not while that cannot be
 * reached. */
WEFT_API WEFT_CHECKED weft_status weft_relay_report(weft_context *context, weft_relay *relay,
                                                    const char *key, const void *data, size_t size);
/* What the relay has, and can get, as a store to read from: its calls wait. To be closed before the relay.
 */
WEFT_API WEFT_CHECKED weft_status weft_relay_store(weft_context *context, weft_relay *relay,
                                                   weft_store **store_out);

enum { WEFT_RELAY_TEXT = 256 };

typedef struct weft_relay_stats {
    size_t size; /* sizeof(weft_relay_stats) */
    uint64_t upstream_requests, upstream_bytes;
    uint64_t fetches; /* objects whose fetch was begun */
    uint64_t hits;    /* asked for, and here */
    uint64_t misses;  /* asked for, and not here */
    uint64_t joined;  /* asked for, and already in flight */
    uint64_t evictions;
    uint64_t damaged;        /* chunks that came wrong, and were not passed on */
    uint64_t damaged_cached; /* chunks that were found wrong in the directory */
    uint64_t refused_heads;  /* heads that were malformed, of another run, or wrongly signed */
    uint64_t objects;        /* named by the history, as far as it was read */
    uint64_t cached_bytes, cache_limit;
    uint64_t under_way;          /* objects that are being fetched */
    bool disk_full;              /* there was no room for the last object, the last head or the mark */
    bool reached;                /* the last look at the store succeeded */
    double state_seconds;        /* for this long */
    double head_seconds;         /* since the newest head was last confirmed; below zero: never */
    char error[WEFT_RELAY_TEXT]; /* of the last failed look; "" if there was none */
} weft_relay_stats;

WEFT_API void weft_relay_describe(weft_relay *relay, weft_relay_stats *stats_out);

/* ---- the audit trail, and what it no longer needs ---- */

typedef struct weft_log_entry {
    uint64_t version;
    uint64_t epoch;
    weft_digest digest;
    uint64_t milliseconds;
    uint64_t patch_bytes;  /* 0: none */
    uint64_t anchor_bytes; /* 0: none */
    uint64_t changed, total, dense_bytes;
    bool kept;                 /* its objects are still promised to be there */
    const char *const *labels; /* key, value, …, NULL; valid during the call */
} weft_log_entry;

/* Return false to stop. */
typedef bool (*weft_log_visit)(void *opaque, const weft_log_entry *entry);
/* Walks the hash-linked history from the newest version back, checking every link. */
WEFT_API WEFT_CHECKED weft_status weft_log_walk(weft_context *context, weft_store *store,
                                                const weft_key *trusted, weft_log_visit visit,
                                                void *opaque);

typedef struct weft_gc_options {
    size_t size; /* sizeof(weft_gc_options) */
    const weft_key *trusted;
    /* Since an object was last needed, by the store's clock (weft_store_age); 0: at once, whatever the
     * store tells; below zero: 3600. */
    double grace_seconds;
    bool dry_run;
    /* Keeps the patches that a live follower needs to catch up, however old they are. Fails where followers
     * cannot be listed. */
    bool keep_followers;
    /* Called for each object removed, or that would be; may be NULL. */
    void (*removed)(void *opaque, const char *key, uint64_t bytes);
    void *opaque;
    /* What trainers that met here (weft/loco.h) have left goes, if nothing was put into their meeting for
     * so long, by the store's clock: ranks that were stopped cannot go on from then on. 0: it stays. */
    double meeting_seconds;
} weft_gc_options;

typedef struct weft_gc_result {
    size_t size; /* sizeof(weft_gc_result) */
    uint64_t objects;
    uint64_t bytes;    /* as far as known */
    uint64_t waiting;  /* no longer needed, within the grace period */
    uint64_t oldest;   /* the oldest version that is kept */
    uint64_t follower; /* patches from this version on are left for a follower that is there; 0: none */
    bool ageless;   /* the store does not tell how old objects are: what waits stays, unless grace is 0 */
    bool unsettled; /* a publisher is taking the run over: nothing was removed before its first version */
} weft_gc_result;

/* Removes what no kept version needs. The publisher has decided which versions are kept and written that
 * into the history. Where the store has a listing, leftovers of failed publishes go too. What a publisher
 * may still name, however long it was stopped, stays. So this may run at any time, beside publishers,
 * other collectors and takeovers, and may itself be stopped anywhere. */
WEFT_API WEFT_CHECKED weft_status weft_gc_run(weft_context *context, weft_store *store,
                                              const weft_gc_options *options, weft_gc_result *result_out);

/* ---- repairing a run whose store was damaged ----
 *
 * Readers avoid damaged patches and anchors, and the next anchor makes up for them. Two things do not
 * heal by themselves: something else in the place of a head, and a damaged page of the history. Both can
 * mostly be rebuilt from what lies beside them. */

typedef enum weft_repair_kind {
    WEFT_REPAIR_HEAD = 0,
    WEFT_REPAIR_PAGE = 1,
    WEFT_REPAIR_PATCH = 2,
    WEFT_REPAIR_ANCHOR = 3,
    WEFT_REPAIR_LEAP = 4,
    WEFT_REPAIR_VERSIONS = 5, /* no object: versions that are kept and cannot be reached */
} weft_repair_kind;

/* "head", "page", … */
WEFT_API const char *weft_repair_kind_name(weft_repair_kind kind);

typedef struct weft_repair_finding {
    weft_repair_kind kind;
    const char *key;    /* of the object that is damaged; "" if none is */
    const char *wrong;  /* what is wrong */
    const char *effect; /* what that means for readers and publishers */
    const char *remedy; /* what repair does about it, or what else does */
    uint64_t first;     /* versions that are lost by it, or cannot be reached; 0: none */
    uint64_t last;
    bool mendable; /* repair can mend it, as far as `first` and `last` do not say otherwise */
    bool mended;
} weft_repair_finding;

typedef struct weft_repair_options {
    size_t size;             /* sizeof(weft_repair_options) */
    const weft_key *trusted; /* heads must be signed by it; NULL: what the store says is believed */
    const weft_key *key;     /* signs what is written, and is trusted; needed to mend a signed run */
    bool adopt; /* sign also for what was found and is not proven by anything signed, as a publisher's */
    bool apply; /* mend; else nothing is changed. No publisher may be running */
    bool
        unlisted; /* mend a page of a store that has no listing, and lose what a listing might have found */
    bool deep;    /* read everything that is kept, and check every chunk */
    /* Called for each finding, at the end; may be NULL. */
    void (*found)(void *opaque, const weft_repair_finding *finding);
    void *opaque;
} weft_repair_options;

typedef struct weft_repair_result {
    size_t size;        /* sizeof(weft_repair_result) */
    uint64_t findings;  /* that are left, */
    uint64_t mendable;  /* and of these, which repair can mend */
    uint64_t mended;    /* that are mended now */
    uint64_t version;   /* the newest that can be continued; 0: none */
    uint64_t epoch;     /* of the newest head */
    uint64_t oldest;    /* the oldest version that the history tells of */
    uint64_t floor;     /* the oldest version that is kept */
    uint64_t reachable; /* of the kept versions */
    bool listed;        /* the store can be listed; else less can be found */
    bool is_signed;
} weft_repair_result;

/* Checks heads, history and all that the kept versions need, and reports what is wrong. With `apply` it
 * mends what can be mended, losing no more than what is damaged. WEFT_OK also if something is damaged:
 * see the result. WEFT_NOT_FOUND if there is no run. WEFT_CONFLICT if somebody else writes there. */
WEFT_API WEFT_CHECKED weft_status weft_repair_run(weft_context *context, weft_store *store,
                                                  const weft_repair_options *options,
                                                  weft_repair_result *result_out);

#ifdef __cplusplus
}
#endif
#endif
