/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: numbers, sizes and shapes between people, JSON and the library. Text is for people and rounds;
 * JSON is for machines and is exact.
 */
#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *text_bytes(uint64_t bytes, char text[TEXT_SIZE]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, TEXT_SIZE, "%.*f %s", digits, value, units[unit]);
    return text;
}

const char *text_count(uint64_t count, char text[TEXT_SIZE]) {
    char digits[TEXT_SIZE];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    char *cursor = text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            *cursor++ = ',';
        }
        *cursor++ = digits[i];
    }
    *cursor = 0;
    return text;
}

const char *text_shape(const weft_tensor *tensor, char text[SHAPE_SIZE]) {
    size_t used = (size_t)snprintf(text, SHAPE_SIZE, "[");
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (used > SHAPE_SIZE - 32) {
            used += (size_t)snprintf(text + used, SHAPE_SIZE - used, ", …");
            break;
        }
        used += (size_t)snprintf(text + used, SHAPE_SIZE - used, "%s%" PRIu64, i > 0 ? ", " : "",
                                 tensor->shape[i]);
    }
    snprintf(text + used, SHAPE_SIZE - used, "]");
    return text;
}

void text_print(FILE *stream, const char *text) {
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        putc(c < 0x20 || c == 0x7f ? '?' : c, stream);
    }
}

/* A decimal number, perhaps with a fraction, times base^k for the suffix letter at place k of
 * `letters`. `rest_out` is what follows the letter. */
static bool parse_scaled(const char *text, const char *letters, double base, double *value_out,
                         const char **rest_out) {
    if (*text < '0' || *text > '9') {
        return false;
    }
    char *end = NULL;
    double value = strtod(text, &end);
    if (*end != 0) {
        char upper = (char)(*end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
        const char *letter = strchr(letters, upper);
        if (letter == NULL) {
            return false;
        }
        value *= pow(base, (double)(letter - letters + 1));
        end++;
    }
    if (!(value < 9.0e18)) {
        return false;
    }
    *value_out = value;
    *rest_out = end;
    return true;
}

bool text_parse_bytes(const char *text, uint64_t *bytes_out) {
    double value;
    const char *rest;
    if (!parse_scaled(text, "KMGT", 1024, &value, &rest)) {
        return false;
    }
    if (*rest != 0 && strcmp(rest, "iB") != 0 && strcmp(rest, "ib") != 0) {
        return false;
    }
    *bytes_out = (uint64_t)value;
    return true;
}

bool text_parse_count(const char *text, uint64_t *count_out) {
    double value;
    const char *rest;
    if (!parse_scaled(text, "KMBT", 1000, &value, &rest) || *rest != 0) {
        return false;
    }
    *count_out = (uint64_t)value;
    return true;
}

bool text_parse_unsigned(const char *text, uint64_t maximum, uint64_t *value_out) {
    if (*text < '0' || *text > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || value > maximum) {
        return false;
    }
    *value_out = value;
    return true;
}

const char *text_seconds(double seconds, char text[TEXT_SIZE]) {
    bool tiny = seconds < 9.995e-5;
    bool small = seconds < 0.9995;
    double value = tiny ? 1e6 * seconds : small ? 1000 * seconds : seconds;
    int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, TEXT_SIZE, "%.*f %s", digits, value, tiny ? "us" : small ? "ms" : "s");
    return text;
}

bool text_parse_seconds(const char *text, double *seconds_out) {
    static const struct {
        const char *suffix;
        double seconds;
    } units[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    const double longest = 100 * 365.25 * 86400;
    if (*text < '0' || *text > '9') {
        return false;
    }
    char *end = NULL;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].suffix) == 0 && value * units[i].seconds <= longest) {
            *seconds_out = value * units[i].seconds;
            return true;
        }
    }
    return false;
}

bool text_split_address(const char *address, char *host, size_t host_size, uint64_t *port) {
    const char *host_end;
    const char *colon;
    if (*address == '[') {
        address++;
        host_end = strchr(address, ']');
        if (host_end == NULL || (host_end[1] != 0 && host_end[1] != ':')) {
            return false;
        }
        colon = host_end[1] == ':' ? host_end + 1 : NULL;
    } else {
        colon = strrchr(address, ':');
        host_end = colon == NULL ? address + strlen(address) : colon;
        if (colon != NULL && strchr(address, ':') != colon) {
            return false;
        }
    }
    size_t length = (size_t)(host_end - address);
    if (length >= host_size || (colon != NULL && !text_parse_unsigned(colon + 1, 65535, port))) {
        return false;
    }
    memcpy(host, address, length);
    host[length] = 0;
    return true;
}

const char *text_profile(weft_profile profile) {
    return profile == WEFT_PROFILE_FAST ? "fast" : profile == WEFT_PROFILE_SMALL ? "small" : "smallest";
}

json_t *json_digest(const weft_digest *digest) {
    char text[WEFT_DIGEST_TEXT];
    weft_digest_format(digest, text);
    return json_string(text);
}

json_t *json_shape(const weft_tensor *tensor) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->rank; i++) {
        json_array_append_new(shape, json_count(tensor->shape[i]));
    }
    return shape;
}

json_t *json_count(uint64_t count) {
    return json_integer((json_int_t)count);
}

json_t *json_ratio(double numerator, double denominator) {
    return denominator > 0 ? json_real(numerator / denominator) : json_null();
}

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool labels_add(weft_labels *labels, char *text) {
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text) {
        return false;
    }
    const char **items = realloc(labels->items, (labels->count + 3) * sizeof *items);
    if (items == NULL) {
        return false;
    }
    *equals = 0;
    labels->items = items;
    items[labels->count++] = text;
    items[labels->count++] = equals + 1;
    items[labels->count] = NULL;
    return true;
}

void labels_parse(struct argp_state *state, const weft_option *option, char *text) {
    if (!labels_add(option->into, text)) {
        argp_error(state, "--label takes KEY=VALUE, not '%s'", text);
    }
}

void labels_close(weft_labels *labels) {
    free(labels->items);
    labels->items = NULL;
    labels->count = 0;
}

/* Split at the last two colons: a pattern may hold colons itself. */
static bool cuts_add(weft_cuts *cuts, char *text) {
    char *parts = strrchr(text, ':');
    if (parts == NULL) {
        return false;
    }
    *parts++ = 0;
    char *dim = strrchr(text, ':');
    uint64_t dim_value, parts_value;
    if (dim == NULL || dim == text) {
        return false;
    }
    *dim++ = 0;
    if (!text_parse_unsigned(dim, WEFT_RANK_MAX - 1, &dim_value) ||
        !text_parse_unsigned(parts, UINT32_MAX, &parts_value) || parts_value == 0) {
        return false;
    }
    weft_cut *items = realloc(cuts->items, (cuts->count + 1) * sizeof *items);
    if (items == NULL) {
        return false;
    }
    cuts->items = items;
    items[cuts->count++] =
        (weft_cut){.pattern = text, .dim = (uint32_t)dim_value, .parts = (uint32_t)parts_value};
    return true;
}

void cuts_parse(struct argp_state *state, const weft_option *option, char *text) {
    if (!cuts_add(option->into, text)) {
        argp_error(state, "--cut takes PATTERN:DIM:PARTS, such as '*.q_proj.weight:0:4'");
    }
}

void cuts_close(weft_cuts *cuts) {
    free(cuts->items);
    *cuts = (weft_cuts){0};
}
