/* SPDX-License-Identifier: Apache-2.0
 *
 * follow.c: finding, checking and remembering the newest head.
 *
 * A head that is older than one seen before is passed over: it comes from a store that is not consistent
 * yet, or from somebody who repeats old heads. A head that was damaged on its way is fetched again. One
 * that is whole but wrongly signed is an error, and so is one of another run.
 */
#include "follow.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../../patch/apply/journal.h"
#include "../../tensor/checkpoint/checkpoint.h"
#include "../../tensor/json.h"
#include "../format/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- watermarks: in a file that is whole or not there ---- */

enum { FILE_BYTES = 1024, JSON_DEPTH = 2, JSON_CONTAINERS = 4 };

weft_status weft_watermark_path(weft_context *context, const char *path, char **path_out) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    char *trimmed = weft_copy_text(context, path, length);
    char *parent = trimmed != NULL ? weft_path_parent(context, trimmed) : NULL;
    char *result = parent != NULL ? weft_allocate(context, strlen(parent) + length + 16) : NULL;
    if (result != NULL) {
        const char *slash = strrchr(trimmed, '/');
        sprintf(result, "%s/.%s.weft-sync", parent, slash != NULL ? slash + 1 : trimmed);
    }
    weft_release(context, parent);
    weft_release(context, trimmed);
    if (result == NULL) {
        return WEFT_NO_MEMORY;
    }
    *path_out = result;
    return WEFT_OK;
}

static weft_status parse(weft_context *context, const char *path, const char *text, size_t size,
                         weft_watermark *mark) {
    json_t *json;
    weft_status status = weft_json_parse(context, path, text, size, JSON_DEPTH, JSON_CONTAINERS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_sync_check_kind(context, path, json, "watermark");
    if (status == WEFT_OK && (!weft_json_text(json, "run", mark->run, sizeof mark->run) ||
                              !weft_json_count(json, "epoch", &mark->epoch) ||
                              !weft_json_count(json, "sequence", &mark->sequence))) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: something is missing", path);
    }
    if (status == WEFT_OK && !(weft_json_count(json, "version", &mark->version) &&
                               weft_json_digest(json, "digest", &mark->digest))) {
        mark->version = 0;
    }
    json_decref(json);
    return status;
}

weft_status weft_watermark_read(weft_context *context, const char *path, weft_watermark *mark) {
    *mark = (weft_watermark){0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        int error = errno;
        return error == ENOENT ? WEFT_OK : weft_fail_errno(context, error, "%s: cannot open", path);
    }
    char text[FILE_BYTES];
    ssize_t count = read(file, text, sizeof text);
    int error = errno;
    close(file);
    if (count < 0) {
        return weft_fail_errno(context, error, "%s: cannot read", path);
    }
    /* a power cut can leave a file that was not synced empty: nothing is known then */
    if (count == 0) {
        return WEFT_OK;
    }
    weft_status status = parse(context, path, text, (size_t)count, mark);
    if (status == WEFT_MALFORMED) {
        return weft_fail(context, WEFT_MALFORMED,
                         "%s is damaged: what this replica has seen is lost; remove the file to trust the "
                         "store afresh",
                         path);
    }
    return status;
}

void weft_watermark_drop(weft_context *context, const char *path, const char *run) {
    weft_watermark mark;
    if (weft_watermark_read(context, path, &mark) != WEFT_OK || strcmp(mark.run, run) != 0) {
        unlink(path);
    }
    weft_context_clear(context);
}

static weft_status sync_directory(weft_context *context, const char *path) {
    int directory;
    weft_status status = weft_journal_directory(context, path, &directory);
    if (status != WEFT_OK) {
        return status;
    }
    if (fsync(directory) != 0) {
        status = weft_fail_errno(context, errno, "syncing the directory of %s failed", path);
    }
    close(directory);
    return status;
}

static weft_status write_file(weft_context *context, const char *temporary, const char *path,
                              const weft_watermark *mark, bool durable) {
    char text[FILE_BYTES];
    char digest[WEFT_DIGEST_TEXT];
    weft_digest_format(&mark->digest, digest);
    int length =
        snprintf(text, sizeof text,
                 "{\"weft\":%d,\"kind\":\"watermark\",\"run\":\"%s\",\"epoch\":%llu,\"sequence\":%llu,"
                 "\"version\":%llu,\"digest\":\"%s\"}\n",
                 WEFT_SYNC_FORMAT, mark->run, (unsigned long long)mark->epoch,
                 (unsigned long long)mark->sequence, (unsigned long long)mark->version, digest);
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        return weft_fail_errno(context, errno, "%s: cannot create", temporary);
    }
    ssize_t written = write(file, text, (size_t)length);
    bool failed = written != length || (durable && fsync(file) != 0);
    int error = written >= 0 && written != length ? ENOSPC : errno;
    close(file);
    if (!failed && rename(temporary, path) != 0) {
        failed = true;
        error = errno;
    }
    if (failed) {
        unlink(temporary);
        return weft_fail_errno(context, error, "writing %s failed", path);
    }
    return durable ? sync_directory(context, path) : WEFT_OK;
}

weft_status weft_watermark_write(weft_context *context, const char *path, const weft_watermark *mark,
                                 bool durable) {
    char *temporary = weft_allocate(context, strlen(path) + 8);
    if (temporary == NULL) {
        return WEFT_NO_MEMORY;
    }
    sprintf(temporary, "%s-new", path);
    weft_status status = write_file(context, temporary, path, mark, durable);
    weft_release(context, temporary);
    return status;
}

/* ---- the newest head ---- */

enum { DAMAGE_ATTEMPTS = 4, EPOCHS_MAX = 64, WATCH_AGAIN_SECONDS = 30 };

weft_status weft_follow_open(weft_follow *follow, weft_context *context, weft_store *store,
                             const weft_key *trusted, const char *mark_path, bool durable) {
    *follow = (weft_follow){.context = context, .store = store, .trusted = trusted, .durable = durable};
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

/* What was seen is written down before anything is done about it. */
static weft_status remember(weft_follow *follow, const weft_sync_head *head) {
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

/* Takes over `head` if it is news. A replica that was restarted has seen the newest head before, and must
 * take it again. A claim is no news yet: its writer has still to look at what there is. */
static weft_status accept(weft_follow *follow, weft_sync_head *head) {
    weft_status status = check_run(follow, head);
    bool newer = weft_sync_head_newer(head, follow->mark.epoch, follow->mark.sequence) &&
                 !weft_sync_head_unsettled(head);
    bool again =
        !follow->seen && head->epoch == follow->mark.epoch && head->sequence == follow->mark.sequence;
    if (status == WEFT_OK && newer) {
        status = remember(follow, head);
    }
    if (status != WEFT_OK || (!newer && !again)) {
        weft_sync_head_close(head, follow->context);
        return status == WEFT_OK ? WEFT_MORE : status;
    }
    weft_sync_head_close(&follow->head, follow->context);
    follow->head = *head;
    follow->seen = true;
    return WEFT_OK;
}

/* `epoch` is that of the key it lay under, or 0. A head under another's name is as good as damaged. */
static weft_status take_head(weft_follow *follow, const uint8_t *data, size_t size, uint64_t epoch) {
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
    status = accept(follow, &head);
    if (status == WEFT_OK) {
        memcpy(follow->data, data, size);
        follow->size = size;
    }
    return status;
}

/* ---- looking ---- */

static weft_status look_at(weft_follow *follow, uint64_t epoch, bool again) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag = {""};
    weft_status status = weft_sync_head_read(follow->context, follow->store, epoch,
                                             again ? &follow->tag : NULL, data, &size, &tag);
    if (status != WEFT_OK) {
        return status;
    }
    status = take_head(follow, data, size, epoch);
    if (status >= 0) {
        follow->tag = tag;
    }
    return status;
}

static weft_status look_first(weft_follow *follow) {
    weft_stored_head stored;
    weft_sync_head head;
    weft_status status =
        weft_sync_head_newest(follow->context, follow->store, follow->trusted, &stored, &head);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sync_head_close(&head, follow->context);
    return take_head(follow, stored.data, stored.size, stored.epoch);
}

/* The head of the epoch that was seen last, then those of later ones, each checked before the next is asked
 * for: a server that has something under every name must not keep us. A writer that nobody trusts is passed
 * over if there is one after it that is. */
static weft_status look_later(weft_follow *follow) {
    weft_failure failure = {.status = WEFT_OK};
    weft_status found = look_at(follow, follow->mark.epoch, follow->seen);
    /* a head that was there is only hidden for a while */
    found = found == WEFT_NOT_FOUND ? WEFT_MORE : found;
    weft_status status = found < 0 ? found : WEFT_OK;
    uint64_t epoch = follow->mark.epoch;
    int i = 0;
    for (; i < EPOCHS_MAX && (status >= 0 || status == WEFT_SIGNATURE_MISMATCH); i++) {
        if (status == WEFT_SIGNATURE_MISMATCH) {
            failure = weft_failure_keep(follow->context, status);
        }
        status = look_at(follow, ++epoch, false);
        if (status == WEFT_OK) {
            found = WEFT_OK;
            failure.status = WEFT_OK;
        }
    }
    if (i == EPOCHS_MAX && found != WEFT_OK) {
        /* nothing but claims, or writers that nobody trusts: the next look would come no further */
        return look_first(follow);
    }
    if (status < 0 && status != WEFT_NOT_FOUND) {
        return status;
    }
    return failure.status != WEFT_OK ? weft_failure_tell(follow->context, &failure) : found;
}

static weft_status look_once(weft_follow *follow) {
    weft_status status = follow->mark.epoch > 0 ? look_later(follow) : WEFT_MORE;
    /* a store that has no head as late as one seen before may hold another run, and is to be told so */
    return status == WEFT_MORE && !follow->seen ? look_first(follow) : status;
}

weft_status weft_follow_look(weft_follow *follow) {
    weft_status status = look_once(follow);
    for (unsigned i = 1; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = weft_clock_sleep(follow->context, weft_clock_backoff(0.02, 1, i));
        if (status == WEFT_OK) {
            status = look_once(follow);
        }
    }
    return status;
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
    status = take_head(follow, data, size, 0);
    /* what was damaged on its way is asked for again; and a claim leads to what it repeats */
    return status == WEFT_CHECKSUM_MISMATCH || status == WEFT_MORE ? weft_follow_look(follow) : status;
}
