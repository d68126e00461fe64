/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_fleet_tools.c: what servers tell of themselves: their counters at /metrics, and their memory.
 */
#include "bench_fleet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- counters ---- */

int fleet_meter_open(sync_bench *bench, const char *url, fleet_meter *meter) {
    *meter = (fleet_meter){.bench = bench};
    int code = sync_context(bench, 1, &meter->context);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_store_open(meter->context, url, NULL, &meter->store);
    return status == WEFT_OK ? EXIT_DONE : sync_fail(bench, meter->context, status);
}

void fleet_meter_close(fleet_meter *meter) {
    weft_store_close(meter->store);
    weft_context_destroy(meter->context);
    *meter = (fleet_meter){0};
}

/* The value of a line "NAME VALUE". */
static uint64_t find_number(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && line[length] == ' ') {
            return (uint64_t)strtod(line + length, NULL);
        }
    }
    return 0;
}

/* A server answers for /metrics as for any object. */
static int read_once(fleet_meter *meter, fleet_counts *counts_out) {
    enum { TEXT_BYTES = 64 << 10 };
    char *text = calloc(1, TEXT_BYTES + 1);
    if (text == NULL) {
        return sync_no_memory(meter->bench);
    }
    const weft_store_get_request request = {
        .size = sizeof request, .key = "metrics", .length = TEXT_BYTES, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(meter->context, meter->store, &request, &result);
    if (status == WEFT_OK) {
        counts_out->requests = find_number(text, "weft_serve_request_seconds_count{route=\"object\"}");
        counts_out->sent = find_number(text, "weft_serve_bytes_sent_total") - meter->own;
        meter->own += result.received;
    }
    free(text);
    return status == WEFT_OK ? EXIT_DONE : sync_fail(meter->bench, meter->context, status);
}

/* An answer is counted when it was sent, a moment after it was received. */
int fleet_meter_read(fleet_meter *meter, fleet_counts *counts_out) {
    const struct timespec moment = {.tv_nsec = 50000000};
    fleet_counts before, now;
    int code = read_once(meter, &now);
    do {
        before = now;
        nanosleep(&moment, NULL);
        code = code == EXIT_DONE ? read_once(meter, &now) : code;
    } while (code == EXIT_DONE && (now.requests != before.requests || now.sent != before.sent));
    *counts_out = now;
    return code;
}

/* ---- memory ---- */

uint64_t fleet_resident(pid_t pid) {
    char path[64], line[256];
    uint64_t kibibytes = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "VmRSS: %" SCNu64, &kibibytes) != 1) {
    }
    fclose(file);
    return kibibytes << 10;
}
