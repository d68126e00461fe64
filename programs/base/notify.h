/* SPDX-License-Identifier: Apache-2.0
 *
 * notify.h: tells whoever supervises the process (systemd, Type=notify) how it is: datagrams to the socket
 * that NOTIFY_SOCKET names, as sd_notify(3) describes them. Without that variable nothing is done.
 */
#ifndef WEFT_PROGRAMS_BASE_NOTIFY_H
#define WEFT_PROGRAMS_BASE_NOTIFY_H

/* Before there are threads. */
void notify_open(void);
/* Once: the process does what it is for. */
void notify_ready(void);
/* A line for people. */
void notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The process moves. To be called as often as one likes: what is sent is a few within the time that
 * WATCHDOG_USEC allows. */
void notify_alive(void);
void notify_stopping(void);

#endif
