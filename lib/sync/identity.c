/* SPDX-License-Identifier: Apache-2.0
 *
 * identity.c: remembering who wrote last.
 *
 * The file is locked, so it is written where it lies. One that a crash has torn names nobody: the next
 * writer then begins an epoch of its own, which is always right.
 */
#include "identity.h"

#include "../base/context.h"
#include "watermark.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 128 };

static weft_status make_path(weft_identity *identity, const char *mirror_path) {
    char *mark;
    weft_status status = weft_watermark_path(identity->context, mirror_path, &mark);
    if (status != WEFT_OK) {
        return status;
    }
    size_t size = strlen(mark) + 16;
    identity->path = weft_allocate(identity->context, size);
    if (identity->path != NULL) {
        snprintf(identity->path, size, "%s-writer", mark);
    }
    weft_release(identity->context, mark);
    return identity->path != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

weft_status weft_identity_open(weft_identity *identity, weft_context *context, const char *mirror_path) {
    *identity = (weft_identity){.context = context, .file = -1};
    if (mirror_path == NULL) {
        return WEFT_OK;
    }
    weft_status status = make_path(identity, mirror_path);
    if (status != WEFT_OK) {
        return status;
    }
    identity->file = open(identity->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (identity->file < 0) {
        return weft_fail_errno(context, errno, "%s: cannot create", identity->path);
    }
    if (flock(identity->file, LOCK_EX | LOCK_NB) != 0) {
        return weft_fail(context, WEFT_BUSY,
                         "another process is publishing with the mirror at %s; wait for it, or choose "
                         "another place for this one",
                         mirror_path);
    }
    return WEFT_OK;
}

void weft_identity_close(weft_identity *identity) {
    if (identity->file >= 0) {
        close(identity->file);
    }
    weft_release(identity->context, identity->path);
}

static int format(const weft_sync_head *head, char text[TEXT_BYTES]) {
    return snprintf(text, TEXT_BYTES, "%s %llu %s\n", head->run, (unsigned long long)head->epoch,
                    head->writer);
}

bool weft_identity_owns(const weft_identity *identity, const weft_sync_head *head) {
    char expected[TEXT_BYTES];
    char found[TEXT_BYTES];
    int length = format(head, expected);
    ssize_t count = identity->file >= 0 ? pread(identity->file, found, sizeof found, 0) : -1;
    return count == length && memcmp(found, expected, (size_t)length) == 0;
}

weft_status weft_identity_keep(const weft_identity *identity, const weft_sync_head *head) {
    if (identity->file < 0) {
        return WEFT_OK;
    }
    char text[TEXT_BYTES];
    int length = format(head, text);
    if (ftruncate(identity->file, 0) != 0 ||
        pwrite(identity->file, text, (size_t)length, 0) != (ssize_t)length) {
        return weft_fail_errno(identity->context, errno, "%s: cannot write", identity->path);
    }
    return WEFT_OK;
}
