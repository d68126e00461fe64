/* SPDX-License-Identifier: Apache-2.0
 *
 * cuts.c: writing and reading the cuts in a report. Anybody may write one: what is read is bounded.
 */
#include "cuts.h"

#include "../../base/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool pattern_valid(const char *pattern, size_t length) {
    unsigned stars = 0;
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)pattern[i] <= ' ' || pattern[i] == 0x7f) {
            return false;
        }
        stars += pattern[i] == '*';
    }
    return length > 0 && length < WEFT_ANNOUNCED_PATTERN && stars <= WEFT_ANNOUNCED_STARS;
}

weft_status weft_cuts_format(weft_context *context, const weft_cut *cuts, size_t count,
                             char text[WEFT_FOLLOWER_CUTS]) {
    size_t size = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        const weft_cut *cut = &cuts[i];
        if (!pattern_valid(cut->pattern, strnlen(cut->pattern, WEFT_ANNOUNCED_PATTERN)) ||
            cut->dim >= WEFT_RANK_MAX || cut->parts == 0 || cut->parts > WEFT_ANNOUNCED_PARTS) {
            return weft_fail(
                context, WEFT_INVALID_ARGUMENT,
                "the cut %s:%u:%u cannot be announced: a pattern has up to %d bytes, no spaces and "
                "%d stars, and there are up to %d parts; give it to the publisher",
                cut->pattern, cut->dim, cut->parts, WEFT_ANNOUNCED_PATTERN - 1, WEFT_ANNOUNCED_STARS,
                WEFT_ANNOUNCED_PARTS);
        }
        int written = snprintf(text + size, WEFT_FOLLOWER_CUTS - size, "%s%s:%u:%u", i > 0 ? " " : "",
                               cut->pattern, cut->dim, cut->parts);
        size += written > 0 ? (size_t)written : 0;
        if (size >= WEFT_FOLLOWER_CUTS || i >= WEFT_ANNOUNCED_CUTS) {
            return weft_fail(
                context, WEFT_LIMIT_EXCEEDED,
                "%zu cuts take more than the %d bytes that a report has for them; give them to the "
                "publisher instead of announcing them",
                count, WEFT_FOLLOWER_CUTS - 1);
        }
    }
    return WEFT_OK;
}

/* A number without a sign or leading zeros, up to `most`. */
static bool parse_number(const char **place, char end, uint32_t most, uint32_t *value_out) {
    const char *text = *place;
    uint32_t value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 4 || (digits > 1 && text[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < digits; i++) {
        value = 10 * value + (uint32_t)(text[i] - '0');
    }
    *value_out = value;
    *place = text + digits;
    return value <= most && (text[digits] == end || (end == ' ' && text[digits] == '\0'));
}

bool weft_cuts_parse(const char *text, weft_announced_cut cuts[WEFT_ANNOUNCED_CUTS], size_t *count_out) {
    size_t count = 0;
    const char *place = text;
    bool good = true;
    while (good && *place != '\0') {
        /* a pattern may have colons: the last two count */
        size_t word = strcspn(place, " ");
        size_t colons = 0;
        size_t length = word;
        while (length > 0 && colons < 2) {
            length--;
            colons += place[length] == ':';
        }
        if (count == WEFT_ANNOUNCED_CUTS || colons < 2 || !pattern_valid(place, length)) {
            return false;
        }
        weft_announced_cut *cut = &cuts[count++];
        memcpy(cut->pattern, place, length);
        cut->pattern[length] = '\0';
        place += length + 1;
        good = parse_number(&place, ':', WEFT_RANK_MAX - 1, &cut->dim);
        place += good;
        good = good && parse_number(&place, ' ', WEFT_ANNOUNCED_PARTS, &cut->parts) && cut->parts > 0;
        if (good && *place == ' ') {
            place++;
            good = *place != '\0';
        }
    }
    *count_out = count;
    return good;
}
