/* SPDX-License-Identifier: Apache-2.0
 *
 * watermark.c: the watermark of a replica as a small JSON file. It is written beside its place and renamed,
 * so that a reader finds all of an old one or all of a new one. Only a durable one is synced: after a power
 * cut another may be empty, which counts as nothing seen.
 */
#include "watermark.h"

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

static weft_status parse_watermark(weft_context *context, const char *path, const char *text, size_t size,
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
    /* not synced before a power cut */
    if (count == 0) {
        return WEFT_OK;
    }
    weft_status status = parse_watermark(context, path, text, (size_t)count, mark);
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

static weft_status replace_file(weft_context *context, const char *temporary, const char *path,
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
    weft_status status = replace_file(context, temporary, path, mark, durable);
    weft_release(context, temporary);
    return status;
}
