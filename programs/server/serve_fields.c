/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_fields.c: the text of requests, read by RFC 9110's grammar and in favour of the careful answer:
 * what is malformed never matches, never selects a part and never becomes a key.
 */
#include "serve_fields.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- paths ---- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

bool serve_path_decode(const char *path, char *key, size_t capacity) {
    if (*path++ != '/') {
        return false;
    }
    size_t used = 0;
    while (*path != 0) {
        char c = *path++;
        if (c == '%') {
            int high = hex_digit(path[0]);
            int low = high < 0 ? -1 : hex_digit(path[1]);
            if (low < 0 || (high == 0 && low == 0)) {
                return false;
            }
            c = (char)(high * 16 + low);
            path += 2;
        }
        if (used + 1 >= capacity) {
            return false;
        }
        key[used++] = c;
    }
    key[used] = 0;
    return true;
}

/* ---- numbers ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Reads digits and stays at the largest number when there are too many: a position that large lies behind
 * the end of every object. False if there is no digit. */
static bool read_position(const char **cursor, uint64_t *value_out) {
    if (!is_digit(**cursor)) {
        return false;
    }
    uint64_t value = 0;
    for (; is_digit(**cursor); (*cursor)++) {
        uint64_t digit = (uint64_t)(**cursor - '0');
        value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    }
    *value_out = value;
    return true;
}

bool serve_number(const char *text, uint64_t *value_out) {
    enum { MOST_DIGITS = 19 };
    size_t length = strspn(text, "0123456789");
    return length <= MOST_DIGITS && text[length] == 0 && read_position(&text, value_out);
}

bool serve_seconds(const char *text, double *seconds_out) {
    enum { MOST_CHARACTERS = 20 };
    size_t length = strspn(text, "0123456789.");
    if (length == 0 || length > MOST_CHARACTERS || text[length] != 0 || !is_digit(text[0])) {
        return false;
    }
    char *end;
    double seconds = strtod(text, &end);
    if (*end != 0 || seconds > 1e6) {
        return false;
    }
    *seconds_out = seconds;
    return true;
}

/* ---- hosts ---- */

static bool is_address(int family, const char *text, size_t length) {
    char copy[INET6_ADDRSTRLEN];
    uint8_t address[sizeof(struct in6_addr)];
    if (length >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, length);
    copy[length] = 0;
    return inet_pton(family, copy, address) == 1;
}

static bool is_port(const char *text) {
    return *text == 0 || (*text == ':' && text[1 + strspn(text + 1, "0123456789")] == 0);
}

bool serve_host_known(const char *field, const char *const *names, size_t count) {
    if (*field == '[') {
        size_t length = strcspn(field + 1, "]");
        return field[1 + length] == ']' && is_port(field + length + 2) &&
               is_address(AF_INET6, field + 1, length);
    }
    size_t length = strcspn(field, ":");
    if (!is_port(field + length)) {
        return false;
    }
    bool known = is_address(AF_INET, field, length);
    known |= length == strlen("localhost") && strncasecmp(field, "localhost", length) == 0;
    for (size_t i = 0; i < count; i++) {
        known |= length == strlen(names[i]) && strncasecmp(field, names[i], length) == 0;
    }
    return known;
}

/* ---- ranges ---- */

static void skip_blanks(const char **cursor) {
    *cursor += strspn(*cursor, " \t");
}

/* Lists may have empty members. */
static void skip_separators(const char **cursor) {
    *cursor += strspn(*cursor, " \t,");
}

/* The last `count` bytes. */
static serve_range suffix_range(uint64_t count, uint64_t size) {
    if (count == 0) {
        return (serve_range){.kind = RANGE_UNSATISFIABLE};
    }
    if (size == 0) {
        /* Satisfiable, says the RFC, but Content-Range has no way to say "nothing of nothing". */
        return (serve_range){.kind = RANGE_WHOLE};
    }
    uint64_t length = count < size ? count : size;
    return (serve_range){.kind = RANGE_PART, .offset = size - length, .length = length};
}

static serve_range inner_range(uint64_t first, uint64_t last, uint64_t size) {
    if (first >= size) {
        return (serve_range){.kind = RANGE_UNSATISFIABLE};
    }
    uint64_t end = last < size - 1 ? last : size - 1;
    return (serve_range){.kind = RANGE_PART, .offset = first, .length = end - first + 1};
}

/* One member of the list. False if it is malformed. */
static bool read_range(const char **cursor, uint64_t size, serve_range *range_out) {
    uint64_t first = 0;
    uint64_t last = UINT64_MAX;
    bool has_first = read_position(cursor, &first);
    if (**cursor != '-') {
        return false;
    }
    (*cursor)++;
    bool has_last = read_position(cursor, &last);
    if ((!has_first && !has_last) || (has_first && last < first)) {
        return false;
    }
    *range_out = has_first ? inner_range(first, last, size) : suffix_range(last, size);
    skip_blanks(cursor);
    return **cursor == ',' || **cursor == 0;
}

serve_range serve_range_parse(const char *field, uint64_t size) {
    static const char unit[] = "bytes";
    const serve_range whole = {.kind = RANGE_WHOLE};
    if (field == NULL) {
        return whole;
    }
    skip_blanks(&field);
    if (strncasecmp(field, unit, sizeof unit - 1) != 0 || field[sizeof unit - 1] != '=') {
        return whole;
    }
    field += sizeof unit;
    skip_separators(&field);
    serve_range range;
    if (!read_range(&field, size, &range)) {
        return whole;
    }
    skip_separators(&field);
    return *field == 0 ? range : whole;
}

/* ---- entity tags ---- */

bool serve_tags_any(const char *list) {
    skip_blanks(&list);
    return list[0] == '*' && list[1 + strspn(list + 1, " \t")] == 0;
}

bool serve_tags_hold(const char *list, const char *tag, bool weak) {
    if (serve_tags_any(list)) {
        return true;
    }
    size_t tag_length = strlen(tag);
    for (;;) {
        skip_separators(&list);
        bool is_weak = list[0] == 'W' && list[1] == '/';
        if (is_weak) {
            list += 2;
        }
        if (*list != '"') {
            return false;
        }
        const char *text = ++list;
        list = strchr(text, '"');
        if (list == NULL) {
            return false;
        }
        if ((weak || !is_weak) && (size_t)(list - text) == tag_length &&
            memcmp(text, tag, tag_length) == 0) {
            return true;
        }
        list++;
    }
}

/* ---- authorization ---- */

const char *serve_bearer(const char *field, size_t *length_out) {
    static const char scheme[] = "Bearer";
    skip_blanks(&field);
    if (strncasecmp(field, scheme, sizeof scheme - 1) != 0 || field[sizeof scheme - 1] != ' ') {
        return NULL;
    }
    field += sizeof scheme;
    skip_blanks(&field);
    size_t length = strlen(field);
    while (length > 0 && (field[length - 1] == ' ' || field[length - 1] == '\t')) {
        length--;
    }
    *length_out = length;
    return field;
}
