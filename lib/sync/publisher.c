/* SPDX-License-Identifier: Apache-2.0
 *
 * publisher.c: from weights to a version in the store.
 *
 * A version is made in this order: the patch is encoded and uploaded, bucket by bucket, at the same time;
 * then the page that names it; then the head that names the page. Only when the head has moved does the
 * baseline, the copy of what was published last, belong to the new version. Whatever fails before that is
 * undone, and the next publish starts from the old baseline.
 *
 * Whether a head was written can be unknown, when the store stopped answering. The version is then kept
 * pending, with all that is needed to finish or to undo it, until the store can be asked.
 *
 * Where several processes publish together, part 0 does all this, and has the encoding done by all; the
 * others only answer it (parts_rank.c).
 */
#include "../base/clock.h"
#include "../base/context.h"
#include "../base/sized.h"
#include "../patch/diff/diff.h"
#include "../tensor/checkpoint/safetensors.h"
#include "../tensor/table.h"
#include "../tensor/view.h"
#include "parts/parts.h"
#include "publish/anchor.h"
#include "publish/announced.h"
#include "publish/baseline.h"
#include "publish/claim.h"
#include "publish/ledger.h"
#include "publish/merger.h"
#include "publish/pressure.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEEP_ANCHORS = 2,
    LABELS_MAX = 64,
    RECALL_SPAN = 64, /* no patch recalls changes from before the last version of which this is a divisor */
};

static const uint64_t FAST_BUCKET_BYTES = (uint64_t)2 << 20;
/* of the baseline, re-summed at each version, in turn */
static const uint64_t AUDIT_BYTES = (uint64_t)16 << 20;

/* What a version is made of. */
typedef struct content {
    const char *const *labels;
    bool given; /* the state before with these changes; else what the view holds */
    const weft_tensor_changes *changes;
    size_t change_count;
} content;

/* One version on its way. */
typedef struct edition {
    weft_record record;
    weft_blob page;
    weft_claim_move move;
    weft_spool *spool;
    weft_upload *upload;
    weft_parcel tail;    /* of a version in parts */
    weft_parcel list;    /* the same */
    bool recalled;       /* the patch is told what changed lately, and tells what it changes */
    bool ahead;          /* the mirror holds it already; the trail leads back */
    weft_sums *new_sums; /* of the new state */
    bool anchored;       /* the version comes as an anchor */
    bool again;          /* no new version: the present one's page names a new anchor */
    weft_anchor anchor;
    weft_ledger_mark before;
    bool used;
} edition;

struct weft_publisher {
    weft_context *context;
    pid_t process; /* that opened it */
    weft_store *store;
    const weft_view *view;
    weft_publisher_options options;
    weft_container container; /* what followers' files look like */
    weft_container_file container_file;
    char *made_header; /* NULL if the caller gave the files */
    char *mirror_path;
    char *spool_path;

    weft_identity identity;
    weft_claim claim;
    weft_ledger ledger;

    weft_pressure pressure;
    weft_announced announced;
    bool recut; /* there is no anchor yet with the cuts of now */
    weft_baseline baseline;
    bool recalls;        /* the profile is `smallest`, */
    weft_recall *recall; /* and this is what changed lately; else NULL */
    char *recall_path;   /* beside a checkpoint, or NULL */
    edition pending;     /* unknown whether it is published */

    weft_parts_lead *lead; /* part 0 of several; NULL if this process is alone */
    weft_parts_rank *rank; /* another part: of all the above only context, view, store and options count */
    weft_merger *merger;   /* NULL: no leaps are made */
    weft_anchor_job *job;
    weft_failure anchor_failure; /* of the last anchor */
    bool unnamed;                /* there is an anchor or a leap that no page names yet */
};

/* ---- small things ---- */

static weft_status make_key(const weft_publisher *publisher, const char *room, uint64_t version,
                            char key[WEFT_KEY_SIZE]) {
    return weft_sync_key(publisher->context, room, publisher->claim.head.epoch, version, key);
}

/* ---- opening ---- */

/* Followers that keep files need to know what they look like. */
static weft_status choose_container(weft_publisher *publisher) {
    if (publisher->options.container != NULL) {
        publisher->container = *publisher->options.container;
        return WEFT_OK;
    }
    weft_context *context = publisher->context;
    size_t count = weft_view_count(publisher->view);
    const weft_tensor **tensors = weft_allocate_array(context, count, sizeof *tensors);
    if (tensors == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        tensors[i] = weft_view_at(publisher->view, i);
    }
    weft_status status = weft_safetensors_build(context, tensors, count, NULL, &publisher->made_header,
                                                &publisher->container_file.header_bytes);
    weft_release(context, tensors);
    if (status == WEFT_OK) {
        publisher->container_file.name = "";
        publisher->container_file.header = publisher->made_header;
        publisher->container = (weft_container){.file_count = 1, .files = &publisher->container_file};
    }
    return status;
}

static weft_status check_options(weft_publisher *publisher) {
    weft_publisher_options *options = &publisher->options;
    options->anchor_ratio = options->anchor_ratio != 0 ? options->anchor_ratio : 1;
    options->keep_anchors = options->keep_anchors != 0 ? options->keep_anchors : KEEP_ANCHORS;
    /* with both states of a bucket of each thread in the cache, changes are proven and written there */
    if (options->bucket_bytes == 0 && options->profile == WEFT_PROFILE_FAST) {
        options->bucket_bytes = FAST_BUCKET_BYTES;
    }
    if (options->format > WEFT_FORMAT_NEWEST) {
        return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                         "%u is no format: this weft writes 1 to %d", options->format, WEFT_FORMAT_NEWEST);
    }
    if (options->part_count > 1 || options->part_index > 0) {
        if (options->part_index >= options->part_count || options->part_count > WEFT_PARTS_MAX) {
            return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                             "part %u of %u does not exist: parts are numbered from 0, at most %d of them",
                             options->part_index, options->part_count, WEFT_PARTS_MAX);
        }
        if (options->mirror_path != NULL) {
            return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                             "a publisher of a part keeps its copy in memory, not in a checkpoint");
        }
    } else if (!weft_view_complete(publisher->view)) {
        return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                         "what is published must hold the whole model");
    }
    if (options->whole && (options->part_count > 1 || options->mirror_path != NULL)) {
        return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                         "versions come whole from live memory of one process only");
    }
    options->no_leaps = options->no_leaps || options->whole;
    /* anchors, leaps and parts recall nothing */
    bool recalls = options->profile == WEFT_PROFILE_SMALLEST;
    options->profile = recalls ? WEFT_PROFILE_SMALL : options->profile;
    publisher->recalls = recalls && options->part_count <= 1;
    if (options->part_index == 0 && options->key != NULL && !weft_key_secret(options->key)) {
        return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                         "the key is a public one, which cannot sign; give the secret file of weft keygen");
    }
    return WEFT_OK;
}

static weft_status open_merger(weft_publisher *publisher) {
    /* no process has all of a version that is made of parts */
    if (publisher->options.no_leaps || publisher->lead != NULL) {
        return WEFT_OK;
    }
    const weft_merger_task task = {
        .store = publisher->store,
        .baseline = &publisher->baseline,
        .view = publisher->view,
        .options = &publisher->options,
        .container = &publisher->container,
        .directory = weft_spool_directory(&publisher->options),
        .run = publisher->claim.head.run,
        .epoch = publisher->claim.head.epoch,
    };
    return weft_merger_open(publisher->context, &task, &publisher->ledger, &publisher->merger);
}

/* Who was stopped here while others went on may miss pages that they have retired since: that is no damage
 * that repair could mend. */
static weft_status resume_history(weft_publisher *publisher) {
    weft_status status = weft_ledger_resume(&publisher->ledger, &publisher->claim.head);
    if (status != WEFT_NOT_FOUND) {
        return status;
    }
    weft_failure failure = weft_failure_keep(publisher->context, status);
    return weft_claim_check(&publisher->claim) == WEFT_CONFLICT
               ? WEFT_CONFLICT
               : weft_failure_tell(publisher->context, &failure);
}

/* A checkpoint's processes hand on what they recall. */
static weft_status open_recall(weft_publisher *publisher) {
    weft_context *context = publisher->context;
    const weft_baseline *baseline = &publisher->baseline;
    weft_status status = WEFT_OK;
    uint64_t version = 0;
    if (!publisher->recalls) {
        return WEFT_OK;
    }
    if (baseline->path != NULL) {
        status = weft_recall_path(context, baseline->path, &publisher->recall_path);
    }
    if (status == WEFT_OK && publisher->recall_path != NULL && baseline->holds) {
        status = weft_recall_load(context, publisher->recall_path, baseline->digest.bytes,
                                  &publisher->recall, &version);
    }
    if (status == WEFT_OK && version != baseline->version) {
        weft_recall_destroy(publisher->recall);
        publisher->recall = NULL;
    }
    return status == WEFT_OK && publisher->recall == NULL ? weft_recall_create(context, &publisher->recall)
                                                          : status;
}

static void close_recall(weft_publisher *publisher) {
    if (publisher->recall_path != NULL) {
        weft_recall_mark mark = {.version = publisher->baseline.version};
        memcpy(mark.digest, publisher->baseline.digest.bytes, sizeof mark.digest);
        weft_recall_save(publisher->baseline.holds ? publisher->recall : NULL, publisher->context,
                         publisher->recall_path, &mark);
        weft_release(publisher->context, publisher->recall_path);
    }
    weft_recall_destroy(publisher->recall);
}

static weft_status open_publisher(weft_publisher *publisher) {
    weft_status status = check_options(publisher);
    if (status == WEFT_OK && publisher->options.part_index > 0) {
        publisher->rank = weft_allocate_zeroed(publisher->context, 1, sizeof *publisher->rank);
        return publisher->rank != NULL
                   ? weft_parts_rank_open(publisher->rank, publisher->context, publisher->store,
                                          publisher->view, &publisher->options)
                   : WEFT_NO_MEMORY;
    }
    if (status == WEFT_OK && publisher->options.part_count > 1) {
        publisher->lead = weft_allocate_zeroed(publisher->context, 1, sizeof *publisher->lead);
        status = publisher->lead != NULL
                     ? weft_parts_lead_open(publisher->lead, publisher->context, publisher->store,
                                            publisher->view, &publisher->options)
                     : WEFT_NO_MEMORY;
    }
    if (status == WEFT_OK) {
        status = choose_container(publisher);
    }
    if (status == WEFT_OK) {
        status =
            weft_identity_open(&publisher->identity, publisher->context, publisher->options.mirror_path);
    }
    if (status == WEFT_OK) {
        status =
            weft_claim_take(&publisher->claim, publisher->context, publisher->store, publisher->options.key,
                            publisher->options.adopt, publisher->options.format, &publisher->identity);
        publisher->options.format = publisher->claim.head.format;
        publisher->recalls = publisher->recalls && publisher->options.format > 1;
    }
    weft_ledger_open(&publisher->ledger, publisher->context, publisher->store, publisher->claim.head.run,
                     publisher->options.format);
    if (status == WEFT_OK && publisher->claim.head.started) {
        status = resume_history(publisher);
    }
    if (status == WEFT_OK) {
        /* how much of the model a part copies is known when all parts have said what they hold */
        status = weft_baseline_open(&publisher->baseline, publisher->context, publisher->store,
                                    publisher->lead == NULL ? publisher->view : NULL,
                                    publisher->options.mirror_path);
        publisher->baseline.trusted = publisher->options.key;
    }
    if (status == WEFT_OK && publisher->lead == NULL) {
        status = weft_baseline_rebuild(&publisher->baseline, &publisher->claim.head);
    }
    if (status == WEFT_OK) {
        status = open_recall(publisher);
    }
    return status == WEFT_OK ? open_merger(publisher) : status;
}

static weft_status keep_path(weft_publisher *publisher, const char **path, char **copy) {
    if (*path == NULL) {
        return WEFT_OK;
    }
    *copy = weft_copy_text(publisher->context, *path, strlen(*path));
    *path = *copy;
    return *copy != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

weft_status weft_publisher_open(weft_context *context, weft_store *store, const weft_view *view,
                                const weft_publisher_options *options, weft_publisher **publisher_out) {
    weft_context_clear(context);
    weft_publisher *publisher = weft_allocate_zeroed(context, 1, sizeof *publisher);
    if (publisher == NULL) {
        return WEFT_NO_MEMORY;
    }
    publisher->context = context;
    publisher->process = getpid();
    publisher->store = store;
    publisher->view = view;
    publisher->identity = (weft_identity){.context = context, .file = -1};
    publisher->claim.context = context;
    publisher->ledger.context = context;
    weft_status status = weft_sized_read(context, options, &publisher->options, sizeof publisher->options,
                                         "weft_publisher_options");
    if (status == WEFT_OK) {
        status = keep_path(publisher, &publisher->options.mirror_path, &publisher->mirror_path);
    }
    if (status == WEFT_OK) {
        status = keep_path(publisher, &publisher->options.spool_directory, &publisher->spool_path);
    }
    if (status == WEFT_OK) {
        status = open_publisher(publisher);
    }
    if (status != WEFT_OK) {
        weft_publisher_close(publisher);
        return status;
    }
    *publisher_out = publisher;
    return WEFT_OK;
}

/* ---- an edition ---- */

static void close_edition(weft_publisher *publisher, edition *e) {
    weft_record_close(&e->record, publisher->context);
    weft_claim_drop(&publisher->claim, &e->move);
    weft_spool_close(e->spool);
    weft_sums_destroy(e->new_sums);
    *e = (edition){0};
}

static bool is_repeated(const char *const *labels, size_t index) {
    for (size_t i = 0; i < index; i += 2) {
        if (strcmp(labels[i], labels[index]) == 0) {
            return true;
        }
    }
    return false;
}

/* The bytes that a text takes in JSON. */
static size_t measure_text(const char *text) {
    size_t size = 2;
    for (const char *byte = text; *byte != '\0'; byte++) {
        bool escaped = strchr("\"\\\b\f\n\r\t", *byte) != NULL;
        size += escaped ? 2 : (unsigned char)*byte < 0x20 ? 6 : 1;
    }
    return size;
}

/* Before anything of the version is made. */
static weft_status check_labels(weft_publisher *publisher, const char *const *labels) {
    weft_context *context = publisher->context;
    size_t bytes = 0;
    size_t written = 0;
    weft_status status = weft_labels_check(context, labels, LABELS_MAX);
    for (size_t i = 0; labels != NULL && labels[i] != NULL && status == WEFT_OK; i++) {
        bytes += strlen(labels[i]);
        written += measure_text(labels[i]) + 1;
        if (i % 2 == 0 && is_repeated(labels, i)) {
            status = weft_fail(context, WEFT_INVALID_ARGUMENT, "the label %s is given twice", labels[i]);
        }
    }
    if (status == WEFT_OK && bytes > WEFT_LABEL_BYTES) {
        status = weft_fail(context, WEFT_LIMIT_EXCEEDED,
                           "the labels take %zu bytes; a version has room for %d", bytes, WEFT_LABEL_BYTES);
    }
    if (status == WEFT_OK && written > WEFT_LABEL_JSON) {
        status =
            weft_fail(context, WEFT_LIMIT_EXCEEDED,
                      "the labels take %zu bytes as JSON, which escapes quotes and control characters; a "
                      "version has room for %d",
                      written, WEFT_LABEL_JSON);
    }
    return status;
}

/* Changes are given by name. What is one memory in the view must stay the same: followers that share it,
 * too, could not take the version. */
static weft_status check_ties(const weft_publisher *publisher, const weft_sums *sums) {
    const weft_view *view = publisher->view;
    for (size_t i = 0; weft_view_tied(view) && i < weft_view_count(view); i++) {
        size_t tie = weft_view_tie(view, i);
        if (tie == WEFT_NO_TIE) {
            continue;
        }
        weft_digest a = weft_sums_tensor(sums, tie);
        weft_digest b = weft_sums_tensor(sums, i);
        if (!weft_digest_equal(&a, &b)) {
            return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                             "tensors %s and %s share their memory, but the changes make them differ; give "
                             "the same changes under both names",
                             weft_view_at(view, tie)->name, weft_view_at(view, i)->name);
        }
    }
    return WEFT_OK;
}

/* What may be recalled by the next patch. Who comes by an anchor, or by leaps to a multiple of RECALL_SPAN,
 * recalls nothing, and must be able to go on from there: no later patch looks back further. */
static void begin_recall(weft_publisher *publisher, edition *e) {
    const weft_ledger *ledger = &publisher->ledger;
    uint64_t anchor = ledger->anchor_count > 0 ? ledger->anchors[0].version : 0;
    uint64_t copied = publisher->job != NULL ? weft_anchor_version(publisher->job) : 0;
    uint64_t since = ledger->version - (copied > anchor ? copied : anchor);
    uint64_t span = ledger->version % RECALL_SPAN;
    uint64_t known = weft_recall_depth(publisher->recall);
    since = since < span ? since : span;
    weft_recall_begin(publisher->recall);
    e->record.recalls = known < since ? known : since;
    e->recalled = true;
}

/* Diff and encode, with the upload beside it. On failure the upload is over and the mirror as it was. */
static weft_status encode_patch(weft_publisher *publisher, edition *e, const content *content,
                                const char *key, weft_diff_stats *stats) {
    weft_context *context = publisher->context;
    weft_status status = weft_spool_open(context, NULL, &e->spool);
    if (status == WEFT_OK) {
        status = weft_upload_start(context, publisher->store, key, e->spool, &e->upload);
    }
    if (status != WEFT_OK) {
        return status;
    }
    const weft_publisher_options *options = &publisher->options;
    weft_baseline *baseline = &publisher->baseline;
    bool file = baseline->path != NULL;
    if (publisher->recall != NULL) {
        begin_recall(publisher, e);
    }
    const weft_diff_options diff = {
        .size = sizeof diff,
        .profile = e->recalled ? WEFT_PROFILE_SMALLEST : options->profile,
        .format = options->format,
        .bucket_bytes = options->bucket_bytes,
        .cuts = options->cuts,
        .cut_count = options->cut_count,
        .base_container = file ? weft_baseline_container(baseline) : &publisher->container,
        .new_container = &publisher->container,
        .labels = content->labels,
        .base_sums = weft_baseline_sums(baseline),
        .new_sums_out = &e->new_sums,
        .trail = file ? NULL : &baseline->trail,
        .notes = file && publisher->merger != NULL ? &baseline->trail : NULL,
        .changes = content->changes,
        .change_count = content->change_count,
    };
    weft_sink sink = weft_spool_sink(e->spool);
    const weft_view *next = content->given ? NULL : publisher->view;
    status = weft_diff_recalling(context, weft_baseline_view(baseline), next, &diff, publisher->recall,
                                 (unsigned)e->record.recalls, &sink, stats);
    e->ahead = status == WEFT_OK && !file;
    if (status == WEFT_OK && content->given) {
        status = check_ties(publisher, e->new_sums);
    }
    return weft_spool_finish(e->spool, status);
}

/* A version without a base: all of the model, as an anchor. In memory the mirror is filled first, so that
 * the anchor and the baseline are the same even if the weights do not stay still. */
static weft_status encode_whole(weft_publisher *publisher, edition *e, const char *const *labels,
                                const char *key, weft_diff_stats *stats) {
    weft_context *context = publisher->context;
    bool file = publisher->baseline.path != NULL;
    weft_status status = weft_spool_open(context, weft_spool_directory(&publisher->options), &e->spool);
    if (status == WEFT_OK && !file) {
        status = weft_mirror_fill(context, &publisher->baseline.mirror, publisher->view);
    }
    if (status == WEFT_OK) {
        status = weft_upload_start(context, publisher->store, key, e->spool, &e->upload);
    }
    if (status != WEFT_OK) {
        return status;
    }
    const weft_view *view = file ? publisher->view : publisher->baseline.mirror.view;
    e->anchored = true;
    status = weft_anchor_encode(context, view, &publisher->options, &publisher->container, labels, e->spool,
                                &e->new_sums, stats);
    return weft_spool_finish(e->spool, status);
}

/* Has the version made by all parts. `refused_out`: somebody has nothing to differ from. */
static weft_status encode_parts(weft_publisher *publisher, edition *e, const char *const *labels,
                                bool whole, weft_diff_stats *stats, bool *refused_out) {
    const weft_parts_order order = {
        .whole = whole,
        .version = e->record.version,
        .base = publisher->baseline.digest,
        .labels = labels,
        .container = &publisher->container,
    };
    weft_parts_made made;
    weft_status status = weft_parts_lead_make(publisher->lead, &publisher->baseline, &order, &made);
    *refused_out = made.refused;
    if (status != WEFT_OK) {
        return status;
    }
    e->anchored = whole;
    e->new_sums = made.own.new_sums;
    e->ahead = made.own.ahead;
    *(whole ? &e->anchor.object : &e->record.patch) = made.object;
    *stats = made.stats;
    e->tail = made.tail;
    e->list = made.list;
    made.own.new_sums = NULL;
    weft_part_edition_close(&made.own, publisher->context);
    return WEFT_OK;
}

static weft_status encode_edition(weft_publisher *publisher, edition *e, const content *content,
                                  const char *key, bool *whole, weft_diff_stats *stats) {
    const char *const *labels = content->labels;
    if (publisher->lead == NULL) {
        return *whole ? encode_whole(publisher, e, labels, key, stats)
                      : encode_patch(publisher, e, content, key, stats);
    }
    bool refused;
    weft_status status = encode_parts(publisher, e, labels, *whole, stats, &refused);
    if (refused && !*whole) {
        *whole = true;
        status = encode_parts(publisher, e, labels, true, stats, &refused);
    }
    return status;
}

/* Objects and page, up to the point where only the head is missing. */
static weft_status upload_edition(weft_publisher *publisher, edition *e, const char *key) {
    char page_key[WEFT_KEY_SIZE];
    weft_status status = WEFT_OK;
    /* what parts have made is described by who composed it */
    if (publisher->lead == NULL) {
        status = weft_spool_describe(publisher->context, e->spool, key, publisher->store,
                                     e->anchored ? &e->anchor.object : &e->record.patch);
    }
    if (status == WEFT_OK && e->anchored) {
        e->anchor.version = e->record.version;
        e->anchor.digest = e->record.digest;
        status = weft_ledger_add_anchor(&publisher->ledger, &e->anchor, publisher->options.keep_anchors);
    }
    if (status == WEFT_OK) {
        weft_sync_key_beside(key, "pages", page_key);
        status = weft_ledger_draft(&publisher->ledger, &e->record, page_key, &e->page);
    }
    return status == WEFT_OK ? weft_claim_check(&publisher->claim) : status;
}

/* ---- after the head has moved, or not ---- */

static weft_status finish_edition(weft_publisher *publisher, edition *e) {
    if (e->again) {
        weft_status status = weft_ledger_enter(&publisher->ledger, NULL, &e->page);
        publisher->unnamed = false;
        close_edition(publisher, e);
        return status;
    }
    weft_digest digest = e->record.digest;
    weft_status status = weft_ledger_enter(&publisher->ledger, &e->record, &e->page);
    weft_baseline_advance(&publisher->baseline, e->spool, e->anchored, &e->new_sums,
                          publisher->ledger.version, &digest, publisher->recall);
    if (e->recalled) {
        weft_recall_commit(publisher->recall);
    } else if (publisher->recall != NULL) {
        weft_recall_reset(publisher->recall);
    }
    if (publisher->lead != NULL) {
        weft_parts_lead_settle(publisher->lead);
    }
    if (publisher->merger != NULL && status == WEFT_OK) {
        weft_merger_note(publisher->merger, &publisher->ledger.records[publisher->ledger.record_count - 1]);
    }
    close_edition(publisher, e);
    return status;
}

static void abandon_edition(weft_publisher *publisher, edition *e) {
    if (e->recalled) {
        weft_recall_rollback(publisher->recall);
    }
    if (e->ahead) {
        weft_baseline_undo(&publisher->baseline);
    }
    if (e->anchored) {
        weft_ledger_restore(&publisher->ledger, &e->before);
    }
    close_edition(publisher, e);
}

static weft_status abandon_because(weft_publisher *publisher, edition *e, weft_status status) {
    weft_failure failure = weft_failure_keep(publisher->context, status);
    abandon_edition(publisher, e);
    return weft_failure_tell(publisher->context, &failure);
}

static weft_status resolve_pending(weft_publisher *publisher) {
    if (!publisher->pending.used) {
        return WEFT_OK;
    }
    bool written = false;
    weft_status status = weft_claim_resolve(&publisher->claim, &publisher->pending.move, &written);
    if (status != WEFT_OK && !publisher->claim.fenced) {
        return status;
    }
    if (written) {
        return finish_edition(publisher, &publisher->pending);
    }
    abandon_edition(publisher, &publisher->pending);
    return status;
}

/* The baseline may be moved: an anchor that is made of it must not look. */
static weft_status resolve_locked(weft_publisher *publisher) {
    pthread_mutex_lock(&publisher->baseline.lock);
    weft_status status = resolve_pending(publisher);
    pthread_mutex_unlock(&publisher->baseline.lock);
    return status;
}

static weft_status move_head(weft_publisher *publisher, edition *e) {
    weft_record newest = e->again ? publisher->claim.head.newest : e->record;
    newest.floor = e->again ? publisher->ledger.floor : newest.floor;
    weft_status status = weft_claim_prepare(&publisher->claim, &e->page, &newest, &e->move);
    if (status != WEFT_OK) {
        return abandon_because(publisher, e, status);
    }
    bool unknown;
    /* a head that is on its way cannot be called back */
    weft_progress_hold(publisher->context);
    status = weft_claim_commit(&publisher->claim, &e->move, &unknown);
    if (unknown) {
        e->used = true;
        publisher->pending = *e;
        *e = (edition){0};
    } else {
        status = status == WEFT_OK ? finish_edition(publisher, e) : abandon_because(publisher, e, status);
    }
    weft_progress_go_on(publisher->context);
    return status;
}

/* ---- leaps ---- */

static weft_status collect_leaps(weft_publisher *publisher, bool wait) {
    bool any = false;
    weft_status status = WEFT_OK;
    if (publisher->merger != NULL) {
        status = weft_merger_collect(publisher->merger, wait, &publisher->ledger, &any);
    }
    publisher->unnamed = publisher->unnamed || any;
    return status;
}

/* ---- anchors ---- */

/* The head names the present version once more, with a page that names its new anchor. */
static weft_status rewrite_page(weft_publisher *publisher) {
    char key[WEFT_KEY_SIZE];
    edition e = {.again = true};
    weft_status status = make_key(publisher, "pages", publisher->ledger.version, key);
    if (status == WEFT_OK) {
        status = weft_ledger_redraft(&publisher->ledger, key, &e.page);
    }
    if (status == WEFT_OK) {
        status = weft_claim_check(&publisher->claim);
    }
    return status == WEFT_OK ? move_head(publisher, &e) : status;
}

static weft_status take_anchor(weft_publisher *publisher, const weft_anchor *anchor) {
    weft_status status =
        weft_ledger_add_anchor(&publisher->ledger, anchor, publisher->options.keep_anchors);
    publisher->unnamed = publisher->unnamed || status == WEFT_OK;
    return status;
}

/* An anchor that does not have the digest of its version was made of a copy that has drifted: nothing is
 * believed of it, and the next version comes whole. */
static void note_anchor(weft_publisher *publisher, weft_status status) {
    publisher->anchor_failure = weft_failure_keep(publisher->context, status);
    if (status == WEFT_DIGEST_MISMATCH) {
        if (publisher->merger != NULL) {
            weft_merger_yield(publisher->merger);
        }
        publisher->baseline.holds = false;
    }
    weft_context_clear(publisher->context);
}

/* Takes in what the background has done. A failed anchor harms nothing: another is tried. */
static void collect_anchor(weft_publisher *publisher, bool wait) {
    if (publisher->job == NULL || (!wait && !weft_anchor_done(publisher->job))) {
        return;
    }
    weft_anchor anchor;
    weft_status status = weft_anchor_join(publisher->context, publisher->job, &anchor);
    publisher->job = NULL;
    note_anchor(publisher, status == WEFT_OK ? take_anchor(publisher, &anchor) : status);
}

static bool anchor_due(const weft_publisher *publisher) {
    const weft_ledger *ledger = &publisher->ledger;
    if (publisher->options.anchor_ratio < 0 || publisher->job != NULL || !publisher->baseline.holds) {
        return (ledger->anchor_count == 0 || publisher->recut) && publisher->job == NULL &&
               publisher->baseline.holds;
    }
    return ledger->anchor_count == 0 || publisher->recut ||
           (double)ledger->patch_bytes >=
               publisher->options.anchor_ratio * (double)ledger->anchors[0].object.bytes;
}

static weft_anchor_task describe_anchor_task(weft_publisher *publisher) {
    return (weft_anchor_task){
        .store = publisher->store,
        .mirror = &publisher->baseline.mirror,
        .options = &publisher->options,
        .container = &publisher->container,
        .epoch = publisher->claim.head.epoch,
        .lock = &publisher->baseline.lock,
        .version = &publisher->baseline.version,
        .digest = &publisher->baseline.digest,
    };
}

static weft_status write_anchor_now(weft_publisher *publisher, uint64_t *bytes_out) {
    weft_anchor anchor = {.version = publisher->baseline.version, .digest = publisher->baseline.digest};
    const weft_anchor_task task = describe_anchor_task(publisher);
    weft_status status =
        publisher->lead != NULL
            ? weft_parts_lead_anchor(publisher->lead, &publisher->baseline, &anchor, &publisher->container)
            : weft_anchor_write(publisher->context, &task, weft_baseline_view(&publisher->baseline),
                                &anchor);
    if (status == WEFT_OK) {
        status = take_anchor(publisher, &anchor);
    }
    if (status == WEFT_OK) {
        status = rewrite_page(publisher);
    }
    if (status == WEFT_OK && bytes_out != NULL) {
        *bytes_out = anchor.object.bytes;
    }
    if (status == WEFT_OK) {
        weft_anchor_collect(publisher->context, publisher->store, &publisher->options);
        weft_context_clear(publisher->context);
    }
    return status;
}

/* Where every call begins. */
static weft_status enter_call(const weft_publisher *publisher) {
    weft_status status = weft_context_enter(publisher->context);
    return status == WEFT_OK ? weft_process_check(publisher->context, publisher->process, "this publisher")
                             : status;
}

weft_status weft_publisher_anchor(weft_publisher *publisher, uint64_t *bytes_out) {
    weft_status entered = enter_call(publisher);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (publisher->lead != NULL || publisher->rank != NULL) {
        return weft_fail(publisher->context, WEFT_UNSUPPORTED,
                         "anchors of versions in parts are made with a publish, when they are due");
    }
    weft_status status = resolve_locked(publisher);
    if (status != WEFT_OK) {
        return status;
    }
    collect_anchor(publisher, true);
    if (!publisher->baseline.holds || publisher->ledger.version == 0) {
        return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                         "there is no version yet that an anchor could be made of; publish one first");
    }
    const weft_ledger *ledger = &publisher->ledger;
    if (ledger->anchor_count > 0 && ledger->anchors[0].version == ledger->version) {
        if (bytes_out != NULL) {
            *bytes_out = ledger->anchors[0].object.bytes;
        }
        return publisher->unnamed ? rewrite_page(publisher) : WEFT_OK;
    }
    return write_anchor_now(publisher, bytes_out);
}

weft_status weft_publisher_settle(weft_publisher *publisher) {
    weft_status entered = enter_call(publisher);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (publisher->rank != NULL) {
        return WEFT_OK;
    }
    weft_status status = resolve_locked(publisher);
    if (status == WEFT_OK) {
        collect_anchor(publisher, true);
        status = collect_leaps(publisher, true);
    }
    if (status == WEFT_OK && publisher->unnamed && !publisher->claim.fenced) {
        status = rewrite_page(publisher);
    }
    return status == WEFT_OK ? weft_failure_tell(publisher->context, &publisher->anchor_failure) : status;
}

/* ---- publishing ---- */

/* Changes need a state to be changes of, and one of the view's tensors. */
static weft_status check_base(const weft_publisher *publisher) {
    const weft_baseline *baseline = &publisher->baseline;
    if (!baseline->holds) {
        return weft_fail(publisher->context, WEFT_NOT_FOUND,
                         "there is no copy of a published version that changes could be added to; publish "
                         "the whole state first (weft_publisher_publish)");
    }
    const weft_view *base = weft_baseline_view(baseline);
    bool same = weft_view_count(base) == weft_view_count(publisher->view);
    for (size_t i = 0; same && i < weft_view_count(base); i++) {
        const weft_tensor *old = weft_view_at(base, i);
        const weft_tensor *new = weft_view_at(publisher->view, i);
        same = strcmp(old->name, new->name) == 0 && weft_tensor_alike(old, new);
    }
    return same ? WEFT_OK
                : weft_fail(publisher->context, WEFT_NOT_FOUND,
                            "the version that was published last has other tensors than the view, and "
                            "changes cannot tell that; publish the whole state first "
                            "(weft_publisher_publish)");
}

static weft_status publish_edition(weft_publisher *publisher, edition *e, const content *content,
                                   weft_publish_result *result) {
    char key[WEFT_KEY_SIZE];
    weft_ledger_save(&publisher->ledger, &e->before);
    const char *const *labels = content->labels;
    e->record = (weft_record){
        .version = publisher->ledger.version + 1,
        .epoch = publisher->claim.head.epoch,
        .milliseconds = weft_clock_date(),
    };
    weft_status status = check_labels(publisher, labels);
    for (size_t i = 0; labels != NULL && labels[i] != NULL && status == WEFT_OK; i++) {
        status = weft_texts_add(&e->record.labels, publisher->context, labels[i]);
    }
    /* who has nothing to differ from sends all there is */
    publisher->baseline.holds = publisher->baseline.holds && !publisher->options.whole;
    bool whole = !publisher->baseline.holds;
    if (status == WEFT_OK) {
        status = make_key(publisher, whole ? "anchors" : "patches", e->record.version, key);
    }
    double start = weft_clock_now();
    weft_diff_stats stats = {.size = sizeof stats};
    if (status == WEFT_OK) {
        status = encode_edition(publisher, e, content, key, &whole, &stats);
    }
    double encoded = weft_clock_now();
    if (status == WEFT_OK) {
        e->record.digest = stats.result;
        e->record.base = stats.base;
        e->record.changed = stats.changed;
        e->record.total = stats.total;
        e->record.dense_bytes = stats.dense_bytes;
        weft_publish_count(result, &stats);
        e->record.patched = !whole;
        status = upload_edition(publisher, e, key);
    }
    if (e->upload != NULL) {
        status = weft_upload_join(publisher->context, e->upload, status);
        e->upload = NULL;
    }
    status = weft_parcel_join(publisher->context, &e->tail, status);
    status = weft_parcel_join(publisher->context, &e->list, status);
    double uploaded = weft_clock_now();
    if (status != WEFT_OK) {
        return abandon_because(publisher, e, status);
    }
    result->version = e->record.version;
    result->diff_seconds = encoded - start;
    result->upload_seconds = uploaded - encoded;
    result->anchored = whole;
    status = move_head(publisher, e);
    result->head_seconds = weft_clock_now() - uploaded;
    return status;
}

static weft_status publish_locked(weft_publisher *publisher, const content *content,
                                  weft_publish_result *result) {
    weft_status status = publisher->claim.fenced ? weft_claim_check(&publisher->claim) : WEFT_OK;
    if (status == WEFT_OK) {
        status = resolve_pending(publisher);
    }
    if (publisher->merger != NULL) {
        weft_merger_yield(publisher->merger);
    }
    if (status == WEFT_OK) {
        collect_anchor(publisher, false);
        status = collect_leaps(publisher, false);
    }
    if (status == WEFT_OK) {
        status = weft_baseline_audit(&publisher->baseline, AUDIT_BYTES);
    }
    if (status == WEFT_OK && publisher->lead != NULL) {
        status = weft_parts_lead_begin(publisher->lead, &publisher->baseline, &publisher->claim.head,
                                       publisher->ledger.version + 1);
    }
    /* a checkpoint that could not follow is fetched again, and so is a part, and what is to be changed */
    if (status == WEFT_OK && !publisher->baseline.holds &&
        (publisher->baseline.path != NULL || publisher->lead != NULL || content->given)) {
        status = weft_baseline_rebuild(&publisher->baseline, &publisher->claim.head);
    }
    if (status == WEFT_OK && content->given) {
        status = check_base(publisher);
    }
    if (status != WEFT_OK) {
        return status;
    }
    edition e = {0};
    status = publish_edition(publisher, &e, content, result);
    if (status == WEFT_OK) {
        publisher->unnamed = false;
    }
    return status;
}

/* Cuts that followers have asked for since the last look. What is made in the background uses the present
 * ones: it is finished first. Leaps begin anew, with the next block of versions. */
static weft_status pick_up_cuts(weft_publisher *publisher) {
    if (!weft_announced_look(&publisher->announced, publisher->context, publisher->store,
                             &publisher->claim.head, publisher->view, &publisher->options)) {
        return WEFT_OK;
    }
    collect_anchor(publisher, true);
    weft_status status = collect_leaps(publisher, true);
    if (status == WEFT_OK) {
        weft_merger_close(publisher->merger);
        publisher->merger = NULL;
        status = weft_announced_take(&publisher->announced, publisher->context, &publisher->options);
    }
    publisher->recut = status == WEFT_OK;
    return status == WEFT_OK ? open_merger(publisher) : status;
}

static weft_status publish_all(weft_publisher *publisher, const content *content,
                               weft_publish_result *result, bool *due_out) {
    weft_status status = pick_up_cuts(publisher);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_pressure_wait(&publisher->pressure, publisher->context, publisher->store,
                                &publisher->claim.head, &publisher->options, result);
    if (status == WEFT_OK) {
        pthread_mutex_lock(&publisher->baseline.lock);
        status = publish_locked(publisher, content, result);
        pthread_mutex_unlock(&publisher->baseline.lock);
    }
    *due_out = status == WEFT_OK && anchor_due(publisher);
    if (publisher->lead != NULL) {
        weft_call_kind how = status == WEFT_OK         ? WEFT_CALL_DONE
                             : publisher->pending.used ? WEFT_CALL_UNKNOWN
                                                       : WEFT_CALL_FAILED;
        weft_parts_lead_tell(publisher->lead, how, publisher->ledger.version, *due_out, status);
    }
    return status;
}

/* When parts join, after a failure or a start, only labels tell whether they are at the same step. */
static weft_status check_step_label(const weft_publisher *publisher, const char *const *labels) {
    bool parts = publisher->lead != NULL || publisher->rank != NULL;
    if (!parts || (labels != NULL && labels[0] != NULL)) {
        return WEFT_OK;
    }
    return weft_fail(publisher->context, WEFT_INVALID_ARGUMENT,
                     "a version in parts needs a label that tells its step, such as step=43, the same on "
                     "all parts: without one, parts that are not at the same step could not be told apart");
}

static weft_status check_changes(const weft_publisher *publisher) {
    if (publisher->lead != NULL || publisher->rank != NULL) {
        return weft_fail(publisher->context, WEFT_UNSUPPORTED,
                         "a version in parts is made of what the parts hold, not of changes; use "
                         "weft_publisher_publish");
    }
    return publisher->options.whole
               ? weft_fail(publisher->context, WEFT_UNSUPPORTED,
                           "a publisher of whole versions needs the whole state, not changes; use "
                           "weft_publisher_publish")
               : WEFT_OK;
}

static weft_status publish_content(weft_publisher *publisher, const content *content,
                                   weft_publish_result *result_out) {
    const char *const *labels = content->labels;
    weft_status entered = enter_call(publisher);
    if (entered == WEFT_OK) {
        entered = weft_sized_check(publisher->context, result_out, "weft_publish_result");
    }
    if (entered == WEFT_OK && content->given) {
        entered = check_changes(publisher);
    }
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_publish_result result = {
        .size = sizeof result, .epoch = publisher->claim.head.epoch, .format = publisher->options.format};
    bool due = false;
    weft_store_traffic before = {.size = sizeof before};
    weft_store_traffic_of(publisher->store, &before);
    double start = weft_clock_now();
    /* each part's publishes are counted from the moment that all have joined */
    if (publisher->lead != NULL) {
        weft_parts_lead_count(publisher->lead);
    }
    if (publisher->rank != NULL) {
        weft_parts_rank_count(publisher->rank);
    }
    weft_status status = check_step_label(publisher, labels);
    if (status == WEFT_OK && publisher->rank != NULL) {
        status = check_labels(publisher, labels);
        status = status == WEFT_OK ? weft_parts_rank_publish(publisher->rank, labels, &result) : status;
    } else if (status == WEFT_OK) {
        status = publish_all(publisher, content, &result, &due);
    }
    if (status != WEFT_OK) {
        return status;
    }
    result.seconds = weft_clock_now() - start - result.waited_seconds;
    weft_store_traffic after = {.size = sizeof after};
    weft_store_traffic_of(publisher->store, &after);
    result.uploaded_bytes = after.sent - before.sent;
    result.requests = after.requests - before.requests;
    if (due) {
        publisher->recut = false;
        bool background = publisher->options.anchors_in_background && publisher->baseline.path == NULL &&
                          publisher->lead == NULL;
        const weft_anchor_task task = describe_anchor_task(publisher);
        note_anchor(publisher, background ? weft_anchor_start(publisher->context, &task, &publisher->job)
                                          : write_anchor_now(publisher, &result.anchor_bytes));
    }
    weft_sized_write(&result, result_out, sizeof result);
    return WEFT_OK;
}

weft_status weft_publisher_publish(weft_publisher *publisher, const char *const *labels,
                                   weft_publish_result *result_out) {
    const content content = {.labels = labels};
    return publish_content(publisher, &content, result_out);
}

weft_status weft_publisher_publish_changes(weft_publisher *publisher, const weft_tensor_changes *changes,
                                           size_t count, const char *const *labels,
                                           weft_publish_result *result_out) {
    const content content = {.labels = labels, .given = true, .changes = changes, .change_count = count};
    return publish_content(publisher, &content, result_out);
}

/* ---- the rest ---- */

uint64_t weft_publisher_version(const weft_publisher *publisher) {
    return publisher->rank != NULL ? publisher->rank->version : publisher->ledger.version;
}

uint64_t weft_publisher_epoch(const weft_publisher *publisher) {
    return publisher->rank != NULL ? publisher->rank->parts.epoch : publisher->claim.head.epoch;
}

const char *weft_publisher_run(const weft_publisher *publisher) {
    return publisher->rank != NULL ? publisher->rank->parts.run : publisher->claim.head.run;
}

void weft_publisher_close(weft_publisher *publisher) {
    if (publisher == NULL || !weft_process_is(publisher->process)) {
        return;
    }
    weft_context *context = publisher->context;
    if (publisher->job != NULL || publisher->unnamed || publisher->pending.used ||
        publisher->merger != NULL) {
        /* who wants to know how it went settles first */
        weft_status ignored = weft_publisher_settle(publisher);
        (void)ignored;
    }
    if (publisher->job != NULL) {
        weft_anchor lost;
        weft_status ignored = weft_anchor_join(context, publisher->job, &lost);
        (void)ignored;
    }
    weft_merger_close(publisher->merger);
    weft_announced_close(&publisher->announced, context);
    close_edition(publisher, &publisher->pending);
    if (publisher->lead != NULL) {
        weft_parts_lead_close(publisher->lead);
        weft_release(publisher->context, publisher->lead);
    }
    if (publisher->rank != NULL) {
        weft_parts_rank_close(publisher->rank);
        weft_release(publisher->context, publisher->rank);
    }
    weft_pressure_close(&publisher->pressure, context);
    weft_ledger_close(&publisher->ledger);
    weft_claim_close(&publisher->claim);
    weft_identity_close(&publisher->identity);
    close_recall(publisher);
    weft_baseline_close(&publisher->baseline);
    weft_release(context, publisher->made_header);
    weft_release(context, publisher->mirror_path);
    weft_release(context, publisher->spool_path);
    weft_release(context, publisher);
}
