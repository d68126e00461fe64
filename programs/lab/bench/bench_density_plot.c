/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_density_plot.c: the sweep over densities as a picture in SVG: a panel each for encoding, decoding
 * and bytes, a line for each codec, both axes logarithmic. It brings its own ground, so that it reads on
 * light and dark pages.
 */
#include "bench_density.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    PANELS = 3,
    PANEL_WIDTH = 250,
    PANEL_HEIGHT = 220,
    LEFT = 52, /* of a panel, for its numbers */
    TOP = 34,
    PICTURE_WIDTH = PANELS * (PANEL_WIDTH + LEFT) + 16,
    PICTURE_HEIGHT = TOP + PANEL_HEIGHT + 62,
    DENSITY_DECADES = 4, /* 0.01% to 100% */
};

typedef struct panel {
    const char *title;
    const char *unit;
    double least; /* the lowest line, a power of ten */
    int decades;
} panel;

static const panel panels[PANELS] = {
    {"encode, GB/s of weights", "", 0.1, 3},
    {"decode and apply, GB/s of weights", "", 0.1, 4},
    {"bytes, % of the model", "%", 0.01, 4},
};

static const char *const colours[DENSITY_CODECS] = {"#b03a2e", "#1b4f72", "#2e9e6b", "#d4a017", "#7f8c8d"};

static double value_of(const density_point *point, unsigned codec, unsigned index) {
    const bench_row *row = &point->rows[codec];
    if (index < 2) {
        return density_speed(row, index == 0 ? row->encode : row->decode);
    }
    return 100 * (double)row->patch_bytes / (double)row->bytes;
}

static double panel_left(unsigned index) {
    return LEFT + index * (double)(PANEL_WIDTH + LEFT);
}

static double clamp(double share) {
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

static double across(unsigned index, double density) {
    return panel_left(index) + PANEL_WIDTH * clamp(1 + log10(density) / DENSITY_DECADES);
}

static double down(unsigned index, double value) {
    const panel *p = &panels[index];
    return TOP + PANEL_HEIGHT * (1 - clamp(log10(value / p->least) / p->decades));
}

static void draw_grid(FILE *file, unsigned index) {
    const panel *p = &panels[index];
    double left = panel_left(index);
    fprintf(file, "<text x=\"%.0f\" y=\"%d\">%s</text>\n", left, TOP - 14, p->title);
    for (int i = 0; i <= p->decades; i++) {
        double value = p->least * pow(10, i), y = down(index, value);
        fprintf(file,
                "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%g%s</text>\n",
                left, left + PANEL_WIDTH, y, y, left - 6, y + 4, value, p->unit);
    }
    for (int i = 0; i <= DENSITY_DECADES; i++) {
        double density = pow(10, i - DENSITY_DECADES);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g%%</text>\n",
                across(index, density), TOP + PANEL_HEIGHT + 16, 100 * density);
    }
}

static void draw_line(FILE *file, const density_results *results, unsigned index, unsigned codec) {
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" points=\"", colours[codec],
            codec < 2 ? "2.4" : "1.2");
    for (unsigned i = 0; i < DENSITY_POINTS; i++) {
        const density_point *point = &results->points[i];
        if (point->changed > 0) {
            fprintf(file, "%.1f,%.1f ", across(index, density_of(results, point)),
                    down(index, value_of(point, codec, index)));
        }
    }
    fprintf(file, "\"/>\n");
}

static void draw(FILE *file, const density_results *results) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"11\" fill=\"#333\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            PICTURE_WIDTH, PICTURE_HEIGHT, PICTURE_WIDTH, PICTURE_HEIGHT);
    for (unsigned index = 0; index < PANELS; index++) {
        draw_grid(file, index);
        for (unsigned codec = DENSITY_CODECS; codec-- > 0;) {
            draw_line(file, results, index, codec);
        }
    }
    for (unsigned codec = 0; codec < DENSITY_CODECS; codec++) {
        int x = LEFT + 110 * (int)codec, y = TOP + PANEL_HEIGHT + 38;
        fprintf(file,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"3\"/>"
                "<text x=\"%d\" y=\"%d\">%s</text>\n",
                x, x + 18, y, y, colours[codec], x + 24, y + 4, results->points[0].rows[codec].name);
    }
    fprintf(
        file,
        "<text x=\"%d\" y=\"%d\">over the share of %s weights that changed; %s, one thread; memcpy %.1f "
        "GB/s</text>\n</svg>\n",
        LEFT, PICTURE_HEIGHT - 8, results->dtype->name, weft_cpu_name(),
        density_speed(&results->copy, results->copy.encode));
}

int density_plot(weft_command *command, const density_results *results, const char *path) {
    FILE *file = fopen(path, "w");
    bool failed = file == NULL;
    if (!failed) {
        draw(file, results);
        failed = ferror(file) != 0;
        failed |= fclose(file) != 0;
    }
    return failed ? command_error(command, EXIT_FAILED, "cannot write %s: %s", path, strerror(errno))
                  : EXIT_DONE;
}
