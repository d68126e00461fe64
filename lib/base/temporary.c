/* SPDX-License-Identifier: Apache-2.0
 *
 * temporary.c: see temporary.h.
 */
#include "temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

bool weft_temporary_claim(int descriptor) {
    struct stat info;
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        return errno != EWOULDBLOCK;
    }
    return fstat(descriptor, &info) != 0 || info.st_nlink > 0;
}

/* The writer may have finished, renamed the file and let go of the lock since it was opened: then the
 * descriptor is of finished work, and the name leads elsewhere. */
bool weft_temporary_is_leftover(int directory, const char *name, int descriptor) {
    struct stat held;
    struct stat named;
    return flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &held) == 0 &&
           fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}
