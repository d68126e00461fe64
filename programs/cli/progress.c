/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c: one line on stderr while long work runs.
 *
 * Work that ends within a second never shows a bar: it would only flicker. The line is redrawn at most
 * ten times a second and wiped at the end, so that what stays on the terminal is the result.
 */
#include "command.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double delay_seconds = 1.0;
static const double interval_seconds = 0.1;

void progress_open(weft_progress *bar, bool enabled) {
    *bar = (weft_progress){.enabled = enabled};
}

static int line_width(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) {
        return size.ws_col > 160 ? 160 : size.ws_col;
    }
    return 80;
}

static void draw(weft_progress *bar, double now, uint64_t done, uint64_t total) {
    char amount[TEXT_SIZE], speed[TEXT_SIZE], cells[101];
    double elapsed = now - bar->phase_started;
    double share = total > 0 ? (double)done / (double)total : 0;
    share = share > 1 ? 1 : share;
    uint64_t rate = elapsed > 0 ? (uint64_t)((double)done / elapsed) : 0;

    int width = line_width() - 50;
    width = width > 100 ? 100 : width < 5 ? 5 : width;
    int filled = (int)(share * width);
    memset(cells, '#', (size_t)filled);
    memset(cells + filled, '.', (size_t)(width - filled));
    cells[width] = 0;

    fprintf(stderr, "\r%-8.12s [%s] %3d%%  %s  %s/s", bar->phase, cells, (int)(share * 100),
            text_bytes(done, amount), text_bytes(rate, speed));
    if (share > 0.01 && share < 1) {
        fprintf(stderr, "  %.0f s", elapsed * (1 - share) / share);
    }
    fputs("\033[K", stderr);
    fflush(stderr);
    bar->drawn = true;
    bar->drawn_at = now;
}

void progress_report(weft_progress *bar, const char *phase, uint64_t done, uint64_t total) {
    /* who waits for something to come has no end to show */
    if (!bar->enabled || total == 0) {
        return;
    }
    double now = clock_seconds();
    if (bar->started == 0) {
        bar->started = now;
    }
    if (bar->phase == NULL || strcmp(bar->phase, phase) != 0 || done < bar->done) {
        bar->phase = phase;
        bar->phase_started = now;
    }
    bar->done = done;
    if (now - bar->started >= delay_seconds && now - bar->drawn_at >= interval_seconds) {
        draw(bar, now, done, total);
    }
}

void progress_clear(weft_progress *bar) {
    if (bar->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bar->drawn = false;
    }
}
