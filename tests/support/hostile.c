/* SPDX-License-Identifier: Apache-2.0
 *
 * hostile.c: see hostile.h.
 */
#include "hostile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const good_pieces[] = {
    "a",
    "step",
    "=",
    "\"",
    "\\",
    "/",
    "\n",
    "\x01",
    "\x1f",
    "\x7f",
    " ",
    "{",
    "\xc2\x80",
    "\xc3\xa9",
    "\xdf\xbf",
    "\xe0\xa0\x80",
    "\xe2\x80\xa8",
    "\xed\x9f\xbf",
    "\\u0000",
    "\xef\xbb\xbf",
    "\xef\xbf\xbe",
    "\xef\xbf\xbf",
    "\xf0\x90\x80\x80",
    "\xf4\x8f\xbf\xbf",
};

static const char *const bad_pieces[] = {
    "\x80",         "\xbf",         "\xc0\x80",     "\xc1\xbf",         "\xc3",     "\xe0\x9f\xbf",
    "\xe2\x80",     "\xed\xa0\x80", "\xed\xb3\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x9f", "\xf4\x90\x80\x80",
    "\xf8\x88\x80", "\xfe",         "\xff",
};

static const char *choose(dice *dice, const char *const *pieces, size_t count) {
    return pieces[dice_below(dice, count)];
}

/* Mostly a few bytes; sometimes nothing, or all that fits. */
static size_t choose_length(dice *dice, size_t most) {
    uint64_t kind = dice_below(dice, 8);
    size_t length = kind == 0 ? 0 : kind == 1 ? most : (size_t)dice_below(dice, 24);
    return length < most ? length : most;
}

void hostile_text(dice *dice, char *text, size_t size) {
    size_t length = choose_length(dice, size - 1);
    size_t used = 0;
    text[0] = 0;
    while (used < length) {
        const char *piece = choose(dice, good_pieces, sizeof good_pieces / sizeof *good_pieces);
        if (strlen(piece) > length - used) {
            piece = "x";
        }
        strcpy(text + used, piece);
        used += strlen(piece);
    }
    if (length > 0 && dice_below(dice, 8) == 0) {
        const char *piece = choose(dice, bad_pieces, sizeof bad_pieces / sizeof *bad_pieces);
        if (strlen(piece) <= length) {
            memcpy(text + dice_below(dice, length - strlen(piece) + 1), piece, strlen(piece));
        }
    }
}

void hostile_name(dice *dice, const char *letters, char *text, size_t size) {
    size_t length = choose_length(dice, size - 1);
    for (size_t i = 0; i < length; i++) {
        text[i] = letters[dice_below(dice, strlen(letters))];
    }
    text[length] = 0;
    if (length > 0 && dice_below(dice, 16) == 0) {
        text[dice_below(dice, length)] = "/.\xff \x01~"[dice_below(dice, 6)];
    }
}

char **hostile_labels(dice *dice, size_t most_pairs, size_t most_bytes) {
    size_t pairs = (size_t)dice_below(dice, dice_below(dice, 4) == 0 ? most_pairs + 1 : 4);
    char **labels = calloc(2 * pairs + 1, sizeof *labels);
    char *text = malloc(most_bytes + 1);
    if (labels == NULL || text == NULL) {
        abort();
    }
    for (size_t i = 0; i < 2 * pairs; i++) {
        hostile_text(dice, text, i % 2 == 0 && dice_below(dice, 4) > 0 ? 16 : most_bytes + 1);
        bool repeated = i >= 2 && i % 2 == 0 && dice_below(dice, 64) == 0;
        /* one that is not there would end the list, so few of these come in long ones */
        bool missing = i + 1 == 2 * pairs && dice_below(dice, 16) == 0;
        labels[i] = missing ? NULL : strdup(repeated ? labels[i - 2] : text);
    }
    free(text);
    return labels;
}

void hostile_labels_free(char **labels) {
    for (size_t i = 0; labels[i] != NULL; i++) {
        free(labels[i]);
    }
    free(labels);
}
