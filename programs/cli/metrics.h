/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.h: figures of a process for Prometheus: at an address of its own (--metrics), and as a file for
 * node_exporter (--metrics-file). Whoever has figures writes all of them as text now and then; that text is
 * what is shown until the next one.
 */
#ifndef WEFT_PROGRAMS_CLI_METRICS_H
#define WEFT_PROGRAMS_CLI_METRICS_H

#include "command.h"

#include <pthread.h>

struct MHD_Daemon;

typedef struct weft_metrics {
    weft_command *command;
    const char *address; /* of --metrics; NULL: none */
    const char *file;    /* of --metrics-file; NULL: none */
    struct MHD_Daemon *daemon;
    pthread_mutex_t mutex; /* of the text */
    char *text;
    size_t size;
    FILE *draft;
    char *draft_text;
    size_t draft_size;
    bool complained; /* about a file that cannot be written */
} weft_metrics;

/* The options, for the table of a verb. */
#define METRICS_OPTIONS(metrics, number)                                                                   \
    {"metrics", "ADDRESS:PORT", number,                                                                    \
     "Show figures for Prometheus at http://ADDRESS:PORT/metrics, to everybody who reaches it",            \
     .text = &(metrics).address},                                                                          \
    {                                                                                                      \
        "metrics-file", "PATH", number,                                                                    \
            "Keep the same figures in a file for node_exporter's textfile collector (PATH ends in .prom)", \
            .text = &(metrics).file                                                                        \
    }

int metrics_open(weft_metrics *metrics, weft_command *command);
void metrics_close(weft_metrics *metrics);
/* Where to print, between begin and end; NULL: nobody wants figures. */
FILE *metrics_begin(weft_metrics *metrics);
/* Shows what was printed. */
void metrics_end(weft_metrics *metrics);

/* One number. */
void metrics_print(FILE *out, const char *name, const char *type, const char *help, double value);
double metrics_wall_seconds(void);

#endif
