/* SPDX-License-Identifier: Apache-2.0
 *
 * fault_io.c: a shared object for LD_PRELOAD that makes a process's own input and output fail, or kills or
 * stops it, at a call that the environment names. It needs no help from the program, so that what is tested
 * is the command as it is shipped. It cannot be used with sanitizers, whose runtimes want to be loaded
 * first: the sanitized builds do not make it.
 *
 *   WEFT_FAULT_PATH         only calls on files in this directory or below it count; no faults without it
 *   WEFT_FAULT_CALL         which calls count, divided by commas: write (pwrite, writev and stdio's too),
 *                           fsync (fdatasync too), msync, open (where it creates), rename, link, mkdir,
 *                           truncate, allocate, unlink; not set: all (unlink only if it is to kill or stop)
 *   WEFT_FAULT_AT           strike at the n-th of them in the process, from 1; "n+": and all later ones
 *   WEFT_FAULT_PROBABILITY  strike at each with this probability, by WEFT_FAULT_SEED
 *   WEFT_FAULT_ERRNO        the error to give: ENOSPC, EDQUOT or EIO (the default)
 *   WEFT_FAULT_KILL         1: no error, but SIGKILL before the call has any effect; half: a write puts
 *                           down half of its bytes first
 *   WEFT_FAULT_STOP         1: no error, but SIGSTOP; when the process goes on, so does the call
 *   WEFT_FAULT_AGE          files, but for hidden ones, seem to have changed so many seconds earlier
 *   WEFT_FAULT_LOG          a file that gets a line for each strike: how a test knows that there was one
 *   WEFT_FAULT_CLOCK        a file with a number of seconds, perhaps below zero, by which the time of day
 *                           is off; read whenever the time is asked, so that a test can move the clock.
 *                           Waits until a time of day are as wrong as with a wrong clock.
 *
 * A write through stdio counts when the program calls fwrite or fflush, because glibc's own calls to write
 * cannot be caught. What is written through a mapping cannot fail here; msync can.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static struct {
    char path[PATH_MAX]; /* empty: no faults */
    const char *calls;   /* NULL: all */
    uint64_t at;         /* 0: never */
    bool later_too;
    double probability;
    int error;
    bool kill;
    bool half;
    bool stop;
    time_t age;
    const char *log;
    const char *clock;
} settings;

static atomic_ullong call_count;
static atomic_ullong dice;

static void *next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

static int error_by_name(const char *name) {
    if (strcmp(name, "ENOSPC") == 0) {
        return ENOSPC;
    }
    return strcmp(name, "EDQUOT") == 0 ? EDQUOT : EIO;
}

static const char *environment(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value != NULL && *value != 0 ? value : otherwise;
}

__attribute__((constructor)) static void read_environment(void) {
    char *rest;
    settings.calls = environment("WEFT_FAULT_CALL", NULL);
    settings.at = strtoull(environment("WEFT_FAULT_AT", "0"), &rest, 10);
    settings.later_too = *rest == '+';
    settings.probability = strtod(environment("WEFT_FAULT_PROBABILITY", "0"), NULL);
    atomic_store(&dice, strtoull(environment("WEFT_FAULT_SEED", "1"), NULL, 10));
    settings.error = error_by_name(environment("WEFT_FAULT_ERRNO", "EIO"));
    settings.half = strcmp(environment("WEFT_FAULT_KILL", ""), "half") == 0;
    settings.kill = settings.half || strcmp(environment("WEFT_FAULT_KILL", ""), "1") == 0;
    settings.stop = strcmp(environment("WEFT_FAULT_STOP", ""), "1") == 0;
    settings.age = (time_t)strtoull(environment("WEFT_FAULT_AGE", "0"), NULL, 10);
    settings.log = environment("WEFT_FAULT_LOG", NULL);
    settings.clock = environment("WEFT_FAULT_CLOCK", NULL);
    const char *path = environment("WEFT_FAULT_PATH", NULL);
    if (path != NULL && realpath(path, settings.path) == NULL) {
        fprintf(stderr, "fault_io: WEFT_FAULT_PATH: %s: %s\n", path, strerror(errno));
        _exit(99);
    }
}

/* ---- which call is meant ---- */

/* A full disk does not keep anybody from removing a file. */
static bool call_chosen(const char *call) {
    if (settings.calls == NULL) {
        return settings.kill || settings.stop || strcmp(call, "unlink") != 0;
    }
    size_t length = strlen(call);
    for (const char *item = settings.calls; item != NULL; item = strchr(item, ',')) {
        item += *item == ',';
        if (strncmp(item, call, length) == 0 && (item[length] == ',' || item[length] == 0)) {
            return true;
        }
    }
    return false;
}

static bool path_chosen(const char *path) {
    size_t length = strlen(settings.path);
    return strncmp(path, settings.path, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static uint64_t throw_dice(void) {
    uint64_t mix = atomic_fetch_add(&dice, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;
    mix = (mix ^ (mix >> 30)) * 0xbf58476d1ce4e5b9u;
    mix = (mix ^ (mix >> 27)) * 0x94d049bb133111ebu;
    return mix ^ (mix >> 31);
}

static bool turn_has_come(void) {
    uint64_t number = atomic_fetch_add(&call_count, 1) + 1;
    if (settings.at != 0) {
        return number == settings.at || (settings.later_too && number > settings.at);
    }
    return (double)(throw_dice() >> 11) < settings.probability * 0x1p53;
}

/* By system calls: our own write must not be caught. */
static void log_strike(const char *call, const char *path) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int descriptor = settings.log == NULL ? -1
                                          : (int)syscall(SYS_openat, AT_FDCWD, settings.log,
                                                         O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (descriptor >= 0) {
        syscall(SYS_write, descriptor, line, (size_t)length);
        syscall(SYS_close, descriptor);
    }
}

static void end_process(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
}

/* True if the call must fail: errno is then set. A process that was stopped comes back when it goes on.
 * Does not come back if the call is where the process ends, except from a write that is to be torn. */
static bool strike(const char *call, const char *path) {
    if (!path_chosen(path) || !turn_has_come()) {
        return false;
    }
    log_strike(call, path);
    if (settings.kill && !(settings.half && strcmp(call, "write") == 0)) {
        end_process();
    }
    if (settings.stop) {
        syscall(SYS_kill, getpid(), SIGSTOP);
        return false;
    }
    errno = settings.error;
    return true;
}

static bool descriptor_path(int descriptor, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

static bool strike_descriptor(const char *call, int descriptor) {
    char path[PATH_MAX];
    int error = errno;
    bool struck = settings.path[0] != 0 && call_chosen(call) && descriptor_path(descriptor, path) &&
                  strike(call, path);
    errno = struck ? errno : error;
    return struck;
}

/* The absolute path of a file that need not exist: its directory is resolved, its name is kept. */
static bool absolute_path(int directory, const char *name, char path[PATH_MAX]) {
    char base[PATH_MAX] = "";
    if (name[0] != '/' &&
        !(directory == AT_FDCWD ? getcwd(base, sizeof base) != NULL : descriptor_path(directory, base))) {
        return false;
    }
    char joined[2 * PATH_MAX];
    int length = snprintf(joined, sizeof joined, "%s/%s", base, name);
    while (length > 1 && joined[length - 1] == '/') {
        joined[--length] = 0;
    }
    char *slash = strrchr(joined, '/');
    *slash = 0;
    char parent[PATH_MAX];
    if (realpath(slash == joined ? "/" : joined, parent) == NULL) {
        return false;
    }
    return snprintf(path, PATH_MAX, "%s/%s", parent, slash + 1) < PATH_MAX;
}

static bool strike_path(const char *call, int directory, const char *name) {
    char path[PATH_MAX];
    int error = errno;
    bool struck = settings.path[0] != 0 && call_chosen(call) && absolute_path(directory, name, path) &&
                  strike(call, path);
    errno = struck ? errno : error;
    return struck;
}

/* The file that is mapped at an address. */
static bool mapped_path(const void *address, char path[PATH_MAX]) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[PATH_MAX + 128];
    bool found = false;
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t first, last;
        const char *name = strchr(line, '/');
        if (name != NULL && sscanf(line, "%lx-%lx", &first, &last) == 2 && (uintptr_t)address >= first &&
            (uintptr_t)address < last) {
            snprintf(path, PATH_MAX, "%.*s", (int)strcspn(name, "\n"), name);
            found = true;
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found;
}

/* ---- the calls ---- */

#pragma GCC visibility push(default)

ssize_t write(int descriptor, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = next("write");
    if (!strike_descriptor("write", descriptor)) {
        return real(descriptor, data, size);
    }
    if (settings.half) {
        (void)!real(descriptor, data, size / 2);
        end_process();
    }
    return -1;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    ssize_t (*real)(int, const void *, size_t, off_t) = next("pwrite");
    if (!strike_descriptor("write", descriptor)) {
        return real(descriptor, data, size, offset);
    }
    if (settings.half) {
        (void)!real(descriptor, data, size / 2, offset);
        end_process();
    }
    return -1;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    return pwrite(descriptor, data, size, offset);
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
    ssize_t (*real)(int, const struct iovec *, int) = next("writev");
    if (!strike_descriptor("write", descriptor)) {
        return real(descriptor, pieces, count);
    }
    if (settings.half) {
        (void)!real(descriptor, pieces, count / 2);
        end_process();
    }
    return -1;
}

/* Half of what stdio holds back is more than this file can know: a torn fwrite writes nothing of its own.
 */
size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    size_t (*real)(const void *, size_t, size_t, FILE *) = next("fwrite");
    if (!strike_descriptor("write", fileno(stream))) {
        return real(data, size, count, stream);
    }
    if (settings.half) {
        end_process();
    }
    return 0;
}

int fflush(FILE *stream) {
    int (*real)(FILE *) = next("fflush");
    if (stream == NULL || !strike_descriptor("write", fileno(stream))) {
        return real(stream);
    }
    if (settings.half) {
        end_process();
    }
    return EOF;
}

int fsync(int descriptor) {
    int (*real)(int) = next("fsync");
    return strike_descriptor("fsync", descriptor) ? -1 : real(descriptor);
}

int fdatasync(int descriptor) {
    int (*real)(int) = next("fdatasync");
    return strike_descriptor("fsync", descriptor) ? -1 : real(descriptor);
}

int msync(void *address, size_t size, int flags) {
    int (*real)(void *, size_t, int) = next("msync");
    char path[PATH_MAX];
    if (settings.path[0] != 0 && call_chosen("msync") && mapped_path(address, path) &&
        strike("msync", path)) {
        return -1;
    }
    return real(address, size, flags);
}

/* A mode that was not given is read as garbage here, and not looked at by the kernel. */
int openat(int directory, const char *path, int flags, ...) {
    int (*real)(int, const char *, int, ...) = next("openat");
    bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return creates && strike_path("open", directory, path) ? -1 : real(directory, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return openat(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return openat(AT_FDCWD, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = next("fopen");
    return mode[0] != 'r' && strike_path("open", AT_FDCWD, path) ? NULL : real(path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    return fopen(path, mode);
}

int mkostemp(char *path, int flags) {
    int (*real)(char *, int) = next("mkostemp");
    return strike_path("open", AT_FDCWD, path) ? -1 : real(path, flags);
}

int mkstemp(char *path) {
    return mkostemp(path, 0);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    int (*real)(int, const char *, int, const char *) = next("renameat");
    return strike_path("rename", to_directory, to) ? -1 : real(from_directory, from, to_directory, to);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    int (*real)(int, const char *, int, const char *, unsigned) = next("renameat2");
    return strike_path("rename", to_directory, to) ? -1
                                                   : real(from_directory, from, to_directory, to, flags);
}

int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    int (*real)(int, const char *, int, const char *, int) = next("linkat");
    return strike_path("link", to_directory, to) ? -1 : real(from_directory, from, to_directory, to, flags);
}

int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int directory, const char *path, int flags) {
    int (*real)(int, const char *, int) = next("unlinkat");
    return strike_path("unlink", directory, path) ? -1 : real(directory, path, flags);
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    int (*real)(int, const char *, mode_t) = next("mkdirat");
    return strike_path("mkdir", directory, path) ? -1 : real(directory, path, mode);
}

int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

int ftruncate(int descriptor, off_t size) {
    int (*real)(int, off_t) = next("ftruncate");
    return strike_descriptor("truncate", descriptor) ? -1 : real(descriptor, size);
}

int ftruncate64(int descriptor, off64_t size) {
    return ftruncate(descriptor, size);
}

int fallocate(int descriptor, int mode, off_t offset, off_t size) {
    int (*real)(int, int, off_t, off_t) = next("fallocate");
    return strike_descriptor("allocate", descriptor) ? -1 : real(descriptor, mode, offset, size);
}

/* Gives the error instead of setting errno. */
int posix_fallocate(int descriptor, off_t offset, off_t size) {
    int (*real)(int, off_t, off_t) = next("posix_fallocate");
    return strike_descriptor("allocate", descriptor) ? settings.error : real(descriptor, offset, size);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size) {
    return posix_fallocate(descriptor, offset, size);
}

/* ---- the clock ---- */

static double clock_shift(void) {
    char text[64];
    int descriptor = settings.clock == NULL
                         ? -1
                         : (int)syscall(SYS_openat, AT_FDCWD, settings.clock, O_RDONLY | O_CLOEXEC, 0);
    if (descriptor < 0) {
        return 0;
    }
    long length = syscall(SYS_read, descriptor, text, sizeof text - 1);
    syscall(SYS_close, descriptor);
    text[length > 0 ? length : 0] = 0;
    return strtod(text, NULL);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int (*real)(clockid_t, struct timespec *) = next("clock_gettime");
    int result = real(clock, time);
    if (result == 0 && settings.clock != NULL &&
        (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int error = errno;
        int64_t shift = (int64_t)(clock_shift() * 1e9);
        int64_t nanoseconds = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + shift;
        time->tv_sec = nanoseconds / 1000000000;
        time->tv_nsec = nanoseconds % 1000000000;
        errno = error;
    }
    return result;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return -1;
    }
    *time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *time_out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return (time_t)-1;
    }
    if (time_out != NULL) {
        *time_out = now.tv_sec;
    }
    return now.tv_sec;
}

/* ---- ages ---- */

static void make_old(const char *path, struct stat *info) {
    const char *slash = strrchr(path, '/');
    if (S_ISREG(info->st_mode) && path_chosen(path) && slash != NULL && slash[1] != '.') {
        info->st_ctim.tv_sec -= settings.age;
    }
}

int fstat(int descriptor, struct stat *info) {
    int (*real)(int, struct stat *) = next("fstat");
    int result = real(descriptor, info);
    char path[PATH_MAX];
    int error = errno;
    if (result == 0 && settings.age != 0 && settings.path[0] != 0 && descriptor_path(descriptor, path)) {
        make_old(path, info);
    }
    errno = error;
    return result;
}

int fstatat(int directory, const char *restrict name, struct stat *restrict info, int flags) {
    int (*real)(int, const char *, struct stat *, int) = next("fstatat");
    int result = real(directory, name, info, flags);
    char path[PATH_MAX];
    int error = errno;
    if (result == 0 && settings.age != 0 && settings.path[0] != 0 && absolute_path(directory, name, path)) {
        make_old(path, info);
    }
    errno = error;
    return result;
}

#pragma GCC visibility pop
