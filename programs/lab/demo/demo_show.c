/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_show.c: what the terminal shows while `weft demo` runs: on a terminal one block that is drawn again
 * and again, elsewhere a line every few steps.
 */
#include "demo.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { SPARKS = 48, LINES_IN_ALL = 20, TALK_COLUMNS = 76 };

static const double DRAW_SECONDS = 0.1;
static const double TALK_SECONDS = 5;

void demo_show_open(demo_show *show, const weft_command *command) {
    bool terminal = isatty(STDERR_FILENO) != 0;
    *show = (demo_show){
        .quiet = command->quiet,
        .redraw = !command->hide_progress && (command->show_progress || terminal),
        .started = clock_seconds(),
    };
}

/* ---- numbers ---- */

static double number(const json_t *step, const char *group, const char *name) {
    return training_number(step, group, name, 0);
}

/* The longest pause of a step; below zero if none is told. */
static double longest_pause(const json_t *step) {
    const json_t *workers = json_object_get(step, "workers");
    double longest = -1;
    for (size_t i = 0; i < json_array_size(workers); i++) {
        longest = fmax(longest, training_number(json_array_get(workers, i), NULL, "pause", -1));
    }
    return longest;
}

static void add_up(demo_show *show, const json_t *steps) {
    for (; show->seen < json_array_size(steps); show->seen++) {
        const json_t *step = json_array_get(steps, show->seen);
        show->pause = fmax(show->pause, longest_pause(step));
        show->saved += number(step, "bytes", "dense") - number(step, "bytes", "sent");
    }
}

static double mean_reward(const json_t *steps, size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; i++) {
        sum += number(json_array_get(steps, i), NULL, "reward");
    }
    return end > begin ? sum / (double)(end - begin) : 0;
}

/* ---- the block ---- */

/* Mean rewards of all steps so far, from 0 to 1. */
static void print_sparks(const json_t *steps) {
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    enum { BARS = sizeof bars / sizeof bars[0] };
    size_t count = json_array_size(steps);
    size_t cells = count < SPARKS ? count : SPARKS;
    for (size_t i = 0; i < cells; i++) {
        double reward = mean_reward(steps, i * count / cells, (i + 1) * count / cells);
        double level = fmin(fmax(reward, 0), 1) * BARS;
        fputs(bars[level < BARS ? (size_t)level : BARS - 1], stderr);
    }
}

static void begin_line(demo_show *show, const char *name) {
    fprintf(stderr, "\033[K  %-9s", name);
    show->drawn++;
}

static void draw_steps(demo_show *show, const json_t *steps) {
    char sent[TEXT_SIZE], dense[TEXT_SIZE], saved[TEXT_SIZE], pause[TEXT_SIZE], most[TEXT_SIZE];
    size_t count = json_array_size(steps);
    const json_t *last = json_array_get(steps, count - 1);
    double bytes = number(last, "bytes", "sent");
    begin_line(show, "step");
    fprintf(stderr, "%zu", count);
    if (show->total > 0) {
        fprintf(stderr, " of %llu", (unsigned long long)show->total);
    }
    fprintf(stderr, ", version %.0f, %.0f s\n", number(last, NULL, "version"),
            clock_seconds() - show->started);
    begin_line(show, "reward");
    fprintf(stderr, "%.3f  ", number(last, NULL, "reward"));
    print_sparks(steps);
    fputc('\n', stderr);
    begin_line(show, "density");
    fprintf(stderr, "%.2f%% of %.0f weights\n", 100 * number(last, "density", "1"),
            number(last, NULL, "elements"));
    begin_line(show, "sync");
    fprintf(stderr, "%s instead of %s, %.0f times fewer; %s saved so far\n",
            text_bytes((uint64_t)bytes, sent), text_bytes((uint64_t)number(last, "bytes", "dense"), dense),
            number(last, "bytes", "dense") / fmax(bytes, 1),
            text_bytes((uint64_t)fmax(show->saved, 0), saved));
    begin_line(show, "pause");
    fprintf(stderr, "%s, longest so far %s; staleness %.2f\n",
            text_seconds(fmax(longest_pause(last), 0), pause), text_seconds(show->pause, most),
            number(last, "staleness", "mean"));
}

static void draw_talk(demo_show *show, const char *talk) {
    char line[TALK_COLUMNS + 1];
    snprintf(line, sizeof line, "%s", talk);
    fputs("\033[K  ", stderr);
    text_print(stderr, line);
    fputc('\n', stderr);
    show->drawn++;
}

static void draw(demo_show *show, const json_t *steps, const char *talk) {
    if (show->drawn > 0) {
        fprintf(stderr, "\033[%dA\r\033[J", show->drawn);
    }
    show->drawn = 0;
    if (json_array_size(steps) > 0) {
        draw_steps(show, steps);
    } else {
        draw_talk(show, talk);
    }
    fflush(stderr);
}

/* ---- lines ---- */

static void print_line(const json_t *steps) {
    char sent[TEXT_SIZE], dense[TEXT_SIZE], pause[TEXT_SIZE];
    size_t count = json_array_size(steps);
    const json_t *last = json_array_get(steps, count - 1);
    fprintf(stderr,
            "step %zu  version %.0f  reward %.3f  density %.2f%%  %s of %s  pause %s  staleness %.2f\n",
            count, number(last, NULL, "version"), number(last, NULL, "reward"),
            100 * number(last, "density", "1"), text_bytes((uint64_t)number(last, "bytes", "sent"), sent),
            text_bytes((uint64_t)number(last, "bytes", "dense"), dense),
            text_seconds(fmax(longest_pause(last), 0), pause), number(last, "staleness", "mean"));
}

static void print_now_and_then(demo_show *show, const json_t *steps, const char *talk) {
    size_t count = json_array_size(steps);
    size_t every = show->total > LINES_IN_ALL ? (size_t)show->total / LINES_IN_ALL : 1;
    if (count == 0 && *talk != 0 && clock_seconds() - show->at >= TALK_SECONDS) {
        text_print(stderr, talk);
        fputc('\n', stderr);
        show->at = clock_seconds();
    }
    if (count > 0 && (show->told == 0 || count >= show->told + every)) {
        print_line(steps);
        show->told = count;
    }
}

/* ---- all ---- */

void demo_show_update(demo_show *show, const json_t *steps, const char *talk) {
    add_up(show, steps);
    if (show->quiet) {
        return;
    }
    if (!show->redraw) {
        print_now_and_then(show, steps, talk);
    } else if (clock_seconds() - show->at >= DRAW_SECONDS) {
        draw(show, steps, talk);
        show->at = clock_seconds();
    }
}

void demo_show_close(demo_show *show, const json_t *steps) {
    add_up(show, steps);
    if (show->quiet || json_array_size(steps) == 0) {
        return;
    }
    if (show->redraw) {
        draw(show, steps, "");
    } else if (json_array_size(steps) > show->told) {
        print_line(steps);
    }
}
