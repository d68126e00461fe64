/* SPDX-License-Identifier: Apache-2.0
 *
 * status.c: names and kinds of status codes, and what strangers return.
 */
#include "status.h"

/* NULL for a number that is no status. */
static const char *find_name(weft_status status) {
    switch (status) {
    case WEFT_OK:
        return "ok";
    case WEFT_MORE:
        return "more";
    case WEFT_INVALID_ARGUMENT:
        return "invalid argument";
    case WEFT_UNSUPPORTED:
        return "unsupported";
    case WEFT_NOT_FOUND:
        return "not found";
    case WEFT_BUSY:
        return "busy";
    case WEFT_CALLBACK_FAILED:
        return "callback failed";
    case WEFT_MALFORMED:
        return "malformed";
    case WEFT_TRUNCATED:
        return "truncated";
    case WEFT_WRONG_VERSION:
        return "wrong version";
    case WEFT_CHECKSUM_MISMATCH:
        return "checksum mismatch";
    case WEFT_BASE_MISMATCH:
        return "base mismatch";
    case WEFT_DIGEST_MISMATCH:
        return "digest mismatch";
    case WEFT_SIGNATURE_MISMATCH:
        return "signature mismatch";
    case WEFT_IO_FAILED:
        return "input/output failed";
    case WEFT_NO_SPACE:
        return "no space";
    case WEFT_REMOTE_FAILED:
        return "remote failed";
    case WEFT_REMOTE_DENIED:
        return "remote denied";
    case WEFT_CONFLICT:
        return "conflict";
    case WEFT_ABORTED:
        return "aborted";
    case WEFT_NO_MEMORY:
        return "no memory";
    case WEFT_LIMIT_EXCEEDED:
        return "limit exceeded";
    case WEFT_CANCELLED:
        return "cancelled";
    }
    return NULL;
}

unsigned weft_version(void) {
    return WEFT_VERSION_MAJOR * 1000000u + WEFT_VERSION_MINOR * 1000u + WEFT_VERSION_PATCH;
}

const char *weft_status_name(weft_status status) {
    const char *name = find_name(status);
    return name != NULL ? name : "unknown status";
}

weft_status weft_status_from(weft_status answer) {
    bool ours = answer == WEFT_OK || (answer < 0 && find_name(answer) != NULL);
    return ours ? answer : WEFT_CALLBACK_FAILED;
}

bool weft_status_is_integrity(weft_status status) {
    return status <= -200 && status > -400;
}
