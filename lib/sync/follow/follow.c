/* SPDX-License-Identifier: Apache-2.0
 *
 * follow.c: finding, checking and remembering the newest head.
 *
 * The parsing is weft_sync_head_parse (format/head.c); here it is decided whether a head is believed. One
 * that is older than one seen before is passed over: it comes from a store that is not consistent yet, or
 * from somebody who repeats old heads. One that was damaged on its way is fetched again. One that is whole
 * but wrongly signed is an error, and so is one of another run.
 */
#include "follow.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <string.h>

/* ---- life ---- */

enum {
    DAMAGE_ATTEMPTS = 4,
    EPOCHS_MAX = 64,
    WATCH_AGAIN_SECONDS = 30,
    /* Versions in a row that each came with an epoch of its own, as from a process per version where puts
     * have no conditions: then the next one is looked for in the next epoch. */
    HOPS = 2,
};

/* of the time that a version takes, to wait between two looks; a tenth, with time for the look itself */
static const double PAUSE_SHARE = 0.09;
/* A takeover that nothing in the old epoch tells of is found that many looks later, within these bounds. */
static const double SEARCH_LOOKS = 5;
static const double SEARCH_LEAST = 5;
static const double SEARCH_MOST = 30;

weft_status weft_follow_open(weft_follow *follow, weft_context *context, weft_store *store,
                             const weft_key *trusted, const char *mark_path, bool durable) {
    *follow = (weft_follow){.context = context,
                            .store = store,
                            .trusted = trusted,
                            .durable = durable,
                            .news = weft_clock_now()};
    if (mark_path == NULL) {
        return WEFT_OK;
    }
    follow->mark_path = weft_copy_text(context, mark_path, strlen(mark_path));
    return follow->mark_path != NULL ? weft_watermark_read(context, mark_path, &follow->mark)
                                     : WEFT_NO_MEMORY;
}

void weft_follow_close(weft_follow *follow) {
    weft_sync_head_close(&follow->head, follow->context);
    weft_release(follow->context, follow->mark_path);
}

/* ---- believing a head ---- */

static weft_status check_run(const weft_follow *follow, const weft_sync_head *head) {
    if (follow->mark.run[0] == '\0' || strcmp(follow->mark.run, head->run) == 0) {
        return WEFT_OK;
    }
    if (follow->lenient) {
        return weft_fail(follow->context, WEFT_INVALID_ARGUMENT,
                         "%s holds run %s, but this relay's cache is of run %s; start the relay with "
                         "another directory for its cache",
                         weft_store_url(follow->store), head->run, follow->mark.run);
    }
    return weft_fail(follow->context, WEFT_INVALID_ARGUMENT,
                     "%s holds run %s, but this replica follows run %s; choose another place for it%s%s%s",
                     weft_store_url(follow->store), head->run, follow->mark.run,
                     follow->mark_path != NULL ? ", or remove " : "",
                     follow->mark_path != NULL ? follow->mark_path : "",
                     follow->mark_path != NULL ? " to let it change runs" : "");
}

static weft_status write_mark(weft_follow *follow, const weft_watermark *mark) {
    weft_status status = weft_watermark_write(follow->context, follow->mark_path, mark, follow->durable);
    follow->unwritten = status;
    return follow->lenient ? WEFT_OK : status;
}

/* Writes the watermark before anything is done about the head. */
static weft_status remember_head(weft_follow *follow, const weft_sync_head *head) {
    weft_watermark mark = {
        .epoch = head->epoch,
        .sequence = head->sequence,
        .version = weft_sync_head_version(head),
        .digest = head->newest.digest,
    };
    memcpy(mark.run, head->run, sizeof mark.run);
    weft_status status = follow->mark_path != NULL && follow->keeping ? write_mark(follow, &mark) : WEFT_OK;
    if (status == WEFT_OK) {
        follow->mark = mark;
    }
    return status;
}

weft_status weft_follow_keep(weft_follow *follow) {
    if ((follow->keeping && follow->unwritten == WEFT_OK) || follow->mark_path == NULL) {
        return WEFT_OK;
    }
    follow->keeping = true;
    return follow->mark.run[0] != '\0' ? write_mark(follow, &follow->mark) : WEFT_OK;
}

/* Versions between two looks share the time between them. */
static void note_pace(weft_follow *follow, const weft_sync_head *head) {
    const weft_record *before = &follow->head.newest;
    const weft_record *now = &head->newest;
    if (follow->seen && now->version > before->version && now->milliseconds > before->milliseconds) {
        follow->interval = (double)(now->milliseconds - before->milliseconds) / 1000 /
                           (double)(now->version - before->version);
    }
    if (!follow->seen || now->version != before->version) {
        follow->news = weft_clock_now();
    }
    if (follow->seen && now->version > before->version) {
        follow->hops = head->epoch > follow->head.epoch ? follow->hops + 1 : 0;
    }
}

/* Takes over `head` if it is newer than the watermark, or is the head of the watermark that was read at the
 * opening. An unsettled claim does not count yet: its writer has still to look at the epoch before.
 * WEFT_MORE: it is not news. Closes a head that it does not take over. */
static weft_status accept_head(weft_follow *follow, weft_sync_head *head) {
    weft_status status = check_run(follow, head);
    bool newer = weft_sync_head_newer(head, follow->mark.epoch, follow->mark.sequence) &&
                 !weft_sync_head_unsettled(head);
    bool again =
        !follow->seen && head->epoch == follow->mark.epoch && head->sequence == follow->mark.sequence;
    if (status == WEFT_OK && newer) {
        status = remember_head(follow, head);
    }
    if (status != WEFT_OK || (!newer && !again)) {
        weft_sync_head_close(head, follow->context);
        return status == WEFT_OK ? WEFT_MORE : status;
    }
    note_pace(follow, head);
    weft_sync_head_close(&follow->head, follow->context);
    follow->head = *head;
    follow->seen = true;
    return WEFT_OK;
}

/* Parses a head as it was read. `epoch` is that of the key it lay under, or 0 if it came by a long poll. A
 * head under another epoch's key counts as damaged. */
static weft_status accept_bytes(weft_follow *follow, const uint8_t *data, size_t size, uint64_t epoch) {
    weft_sync_head head;
    const char *url = weft_store_url(follow->store);
    weft_status status = weft_sync_head_parse(follow->context, url, data, size, follow->trusted, &head);
    if (status != WEFT_OK) {
        return status;
    }
    if (epoch != 0 && head.epoch != epoch) {
        weft_sync_head_close(&head, follow->context);
        return weft_fail(follow->context, WEFT_CHECKSUM_MISMATCH,
                         "%s: what lies under the name of epoch %llu's head is not that head", url,
                         (unsigned long long)epoch);
    }
    status = accept_head(follow, &head);
    if (status == WEFT_OK) {
        memcpy(follow->data, data, size);
        follow->size = size;
    }
    return status;
}

/* ---- looking for a newer one ---- */

/* `unless_same`: WEFT_MORE if the object is still the one that was read last. */
static weft_status read_epoch(weft_follow *follow, uint64_t epoch, bool unless_same) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag = {""};
    weft_status status = weft_sync_head_read(follow->context, follow->store, epoch,
                                             unless_same ? &follow->tag : NULL, data, &size, &tag);
    if (status != WEFT_OK) {
        return status;
    }
    status = accept_bytes(follow, data, size, epoch);
    if (status >= 0) {
        follow->tag = tag;
    }
    return status;
}

static weft_status read_newest(weft_follow *follow) {
    weft_stored_head stored;
    weft_sync_head head;
    weft_status status =
        weft_sync_head_newest(follow->context, follow->store, follow->trusted, &stored, &head);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sync_head_close(&head, follow->context);
    return accept_bytes(follow, stored.data, stored.size, stored.epoch);
}

/* Reads the head of the epoch that was seen last, then those of later epochs. Each is checked before the
 * next is asked for: a server that has something under every name must not keep us. A head that the trusted
 * key has not signed is passed over if a later one is signed by it. */
static weft_status read_later_epochs(weft_follow *follow) {
    weft_failure failure = {.status = WEFT_OK};
    weft_status found = read_epoch(follow, follow->mark.epoch, follow->seen);
    /* it was seen there before, so the store hides it for a while, or another run has been begun there */
    bool hidden = found == WEFT_NOT_FOUND;
    found = hidden ? WEFT_MORE : found;
    weft_status status = found < 0 ? found : WEFT_OK;
    uint64_t epoch = follow->mark.epoch;
    int i = 0;
    for (; i < EPOCHS_MAX && (status >= 0 || status == WEFT_SIGNATURE_MISMATCH); i++) {
        if (status == WEFT_SIGNATURE_MISMATCH) {
            failure = weft_failure_keep(follow->context, status);
        }
        status = read_epoch(follow, ++epoch, false);
        if (status == WEFT_OK) {
            found = WEFT_OK;
            failure.status = WEFT_OK;
        }
    }
    if (i == EPOCHS_MAX && found != WEFT_OK) {
        /* nothing but claims and untrusted heads so far: another look from here would get no further */
        return read_newest(follow);
    }
    if (status < 0 && status != WEFT_NOT_FOUND) {
        return status;
    }
    if (hidden && found == WEFT_MORE && failure.status == WEFT_OK) {
        found = read_newest(follow); /* which is of an earlier epoch, and check_run says what it is of */
        return found == WEFT_NOT_FOUND ? WEFT_MORE : found;
    }
    return failure.status != WEFT_OK ? weft_failure_tell(follow->context, &failure) : found;
}

static weft_status look_without_retry(weft_follow *follow) {
    weft_status status = follow->mark.epoch > 0 ? read_later_epochs(follow) : WEFT_MORE;
    /* a store without a head as late as the watermark's may hold another run, which check_run then says */
    return status == WEFT_MORE && !follow->seen ? read_newest(follow) : status;
}

weft_status weft_follow_look(weft_follow *follow) {
    follow->looked = weft_clock_now();
    follow->searched = follow->looked;
    weft_status status = look_without_retry(follow);
    for (unsigned i = 1; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = weft_clock_sleep(follow->context, weft_clock_backoff(0.02, 1, i));
        if (status == WEFT_OK) {
            status = look_without_retry(follow);
        }
    }
    return status;
}

weft_status weft_follow_glance(weft_follow *follow, double pause) {
    double now = weft_clock_now();
    double search = pause * SEARCH_LOOKS < SEARCH_LEAST ? SEARCH_LEAST : pause * SEARCH_LOOKS;
    search = search < SEARCH_MOST ? search : SEARCH_MOST;
    if (!follow->seen || now - follow->searched >= search) {
        return weft_follow_look(follow);
    }
    uint64_t before = weft_sync_head_version(&follow->head);
    follow->looked = now;
    if (follow->hops >= HOPS) {
        bool exists;
        weft_status hopped =
            weft_head_exists(follow->context, follow->store, follow->mark.epoch + 1, &exists);
        return hopped == WEFT_OK ? exists ? weft_follow_look(follow) : WEFT_MORE : hopped;
    }
    weft_status status = read_epoch(follow, follow->mark.epoch, true);
    if (status == WEFT_MORE || (status == WEFT_OK && weft_sync_head_version(&follow->head) > before)) {
        return status;
    }
    weft_status looked = weft_follow_look(follow);
    return status == WEFT_OK && looked == WEFT_MORE ? WEFT_OK : looked;
}

double weft_follow_pause(const weft_follow *follow, double least, double most) {
    double quiet = weft_clock_now() - follow->news;
    double pause = PAUSE_SHARE * (quiet > follow->interval ? quiet : follow->interval);
    pause = pause < most ? pause : most;
    return pause > least ? pause : least;
}

weft_status weft_follow_watch(weft_follow *follow, uint64_t after, double seconds) {
    if (follow->polls && weft_clock_now() < follow->watch_again) {
        return WEFT_UNSUPPORTED;
    }
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_status status =
        weft_store_watch(follow->context, follow->store, after, seconds, data, sizeof data, &size);
    follow->polls = status == WEFT_UNSUPPORTED;
    follow->watch_again = weft_clock_now() + WATCH_AGAIN_SECONDS;
    if (status != WEFT_OK) {
        return status;
    }
    follow->tag = (weft_store_tag){""};
    status = accept_bytes(follow, data, size, 0);
    /* Another look heals damage on the way. A claim is not news, but the epoch before may have some. */
    return status == WEFT_CHECKSUM_MISMATCH || status == WEFT_MORE ? weft_follow_look(follow) : status;
}
