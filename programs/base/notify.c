/* SPDX-License-Identifier: Apache-2.0
 *
 * notify.c: see notify.h. A message that cannot be sent is lost: a supervisor must not hold up what it
 * supervises.
 */
#include "notify.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_un address;
static socklen_t address_size; /* 0: nobody is told */
static int descriptor = -1;
static uint64_t interval; /* nanoseconds; 0: nobody watches */
static _Atomic uint64_t alive_at;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Half of what the supervisor waits for, if the variable is meant for this process. */
static uint64_t find_interval(void) {
    const char *text = getenv("WATCHDOG_USEC");
    const char *process = getenv("WATCHDOG_PID");
    if (text == NULL || (process != NULL && strtoll(process, NULL, 10) != (long long)getpid())) {
        return 0;
    }
    char *end = NULL;
    unsigned long long microseconds = strtoull(text, &end, 10);
    return end != text && *end == 0 && microseconds < UINT64_MAX / 1000 ? microseconds * 500 : 0;
}

void notify_open(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length = path != NULL ? strlen(path) : 0;
    if (length < 2 || length >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        return;
    }
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, length);
    /* an abstract name begins with a zero and has none at the end */
    bool abstract = path[0] == '@';
    if (abstract) {
        address.sun_path[0] = 0;
    }
    address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (abstract ? 0 : 1));
    interval = find_interval();
}

static void send_text(const char *text) {
    if (address_size > 0) {
        (void)sendto(descriptor, text, strlen(text), MSG_NOSIGNAL,
                     (const struct sockaddr *)(const void *)&address, address_size);
    }
}

void notify_ready(void) {
    send_text("READY=1");
}

void notify_stopping(void) {
    send_text("STOPPING=1");
}

void notify_status(const char *format, ...) {
    char text[512] = "STATUS=";
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    for (char *c = text; *c != 0; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    send_text(text);
}

void notify_alive(void) {
    uint64_t time = interval > 0 ? now() : 0;
    uint64_t last = atomic_load(&alive_at);
    if (interval > 0 && (last == 0 || time - last >= interval / 2) &&
        atomic_compare_exchange_strong(&alive_at, &last, time)) {
        send_text("WATCHDOG=1");
    }
}
