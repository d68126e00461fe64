/* SPDX-License-Identifier: Apache-2.0
 *
 * toml.c: see toml.h. One pass over the text, in place: what is read is never longer than what stands
 * there.
 */
#include "toml.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct toml_reader {
    toml_document *document;
    char *next;
    unsigned line;
    const char *table;
    char *word_end; /* where a zero has to go; or NULL */
    bool failed;
} toml_reader;

static bool fail(toml_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The first failure counts. */
static bool fail(toml_reader *reader, const char *format, ...) {
    if (!reader->failed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(reader->document->error, TOML_ERROR, format, arguments);
        va_end(arguments);
        reader->document->line = reader->line;
        reader->failed = true;
    }
    return false;
}

/* ---- characters ---- */

/* The length of the UTF-8 sequence at `text`, or 0. The text ends with a zero byte, which continues none.
 */
static size_t sequence_length(const unsigned char *text) {
    size_t length = text[0] < 0x80 ? 1 : text[0] < 0xc2 ? 0 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
    if (text[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90);
    bool beyond = (text[0] == 0xed && text[1] > 0x9f) || (text[0] == 0xf4 && text[1] > 0x8f);
    return overlong || beyond ? 0 : length;
}

static bool check_characters(toml_reader *reader, size_t size) {
    const char *end = reader->next + size;
    for (const char *c = reader->next; c < end;) {
        const unsigned char *byte = (const unsigned char *)c;
        size_t length = sequence_length(byte);
        bool line_end = *c == '\n' || (*c == '\r' && c[1] == '\n');
        if (length == 0) {
            return fail(reader, "this is not UTF-8");
        }
        if ((*byte < 0x20 && *c != '\t' && !line_end) || *byte == 0x7f) {
            return fail(reader, "there is a control character, number %u", *byte);
        }
        reader->line += *c == '\n';
        c += length;
    }
    reader->line = 1;
    return true;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-';
}

static void skip_blanks(toml_reader *reader) {
    reader->next += strspn(reader->next, " \t");
}

static void skip_comment(toml_reader *reader) {
    skip_blanks(reader);
    if (*reader->next == '#') {
        reader->next += strcspn(reader->next, "\n");
    }
}

/* True if the line ended, and the next one begins. */
static bool skip_line_end(toml_reader *reader) {
    if (*reader->next == '\r') {
        reader->next++;
    }
    if (*reader->next != '\n') {
        return false;
    }
    reader->next++;
    reader->line++;
    return true;
}

/* ---- strings ---- */

static bool put_character(toml_reader *reader, char **out, uint32_t code) {
    char *c = *out;
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return fail(reader, "an escape gives no character that a value may have");
    }
    if (code < 0x80) {
        *c++ = (char)code;
    } else if (code < 0x800) {
        *c++ = (char)(0xc0 | code >> 6);
    } else {
        if (code < 0x10000) {
            *c++ = (char)(0xe0 | code >> 12);
        } else {
            *c++ = (char)(0xf0 | code >> 18);
            *c++ = (char)(0x80 | (code >> 12 & 0x3f));
        }
        *c++ = (char)(0x80 | (code >> 6 & 0x3f));
    }
    if (code >= 0x80) {
        *c++ = (char)(0x80 | (code & 0x3f));
    }
    *out = c;
    return true;
}

/* "\u00e9": at least six bytes become at most four. */
static bool read_code(toml_reader *reader, char **out, int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; i++) {
        char c = *reader->next;
        int value = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0) {
            return fail(reader, "this escape takes %d hexadecimal digits", digits);
        }
        code = code << 4 | (uint32_t)value;
        reader->next++;
    }
    return put_character(reader, out, code);
}

static bool read_escape(toml_reader *reader, char **out) {
    static const char letters[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
    char letter = *reader->next++;
    if (letter == 'u' || letter == 'U') {
        return read_code(reader, out, letter == 'u' ? 4 : 8);
    }
    const char *found = letter != 0 ? strchr(letters, letter) : NULL;
    if (found == NULL) {
        reader->next -= letter == 0;
        return fail(reader, "there is no such escape; a backslash is written \\\\, or use 'single quotes'");
    }
    *(*out)++ = values[found - letters];
    return true;
}

/* Behind the opening quote. */
static bool read_string(toml_reader *reader, char quote, const char **text_out) {
    char *out = reader->next;
    *text_out = out;
    for (;;) {
        char c = *reader->next;
        if (c == 0 || c == '\n' || c == '\r') {
            return fail(reader, "a string does not end on its line");
        }
        reader->next++;
        if (c == quote) {
            *out = 0;
            return true;
        }
        if (c == '\\' && quote == '"') {
            if (!read_escape(reader, &out)) {
                return false;
            }
        } else {
            *out++ = c;
        }
    }
}

/* ---- values ---- */

/* [+-]digits[.digits][e[+-]digits], without zeros in front. */
static bool is_number(const char *text) {
    text += *text == '+' || *text == '-';
    if (!is_digit(*text) || (*text == '0' && is_digit(text[1]))) {
        return false;
    }
    text += strspn(text, "0123456789");
    if (*text == '.') {
        size_t digits = strspn(++text, "0123456789");
        if (digits == 0) {
            return false;
        }
        text += digits;
    }
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '+' || *text == '-';
        size_t digits = strspn(text, "0123456789");
        if (digits == 0) {
            return false;
        }
        text += digits;
    }
    return *text == 0;
}

static bool add_item(toml_reader *reader, const toml_item *item) {
    toml_document *document = reader->document;
    if (document->count == TOML_ITEMS_MAX) {
        return fail(reader, "there are more than %d values", TOML_ITEMS_MAX);
    }
    document->items[document->count++] = *item;
    return true;
}

/* A word ends where a blank, a comma, a bracket, a comment or the line does. The zero behind it has to wait
 * until what ended it was looked at: see end_word. */
static bool read_word(toml_reader *reader, toml_item *item) {
    char *word = reader->next;
    char *end = word + strcspn(word, " \t\r\n,]#");
    char ended = *end;
    *end = 0;
    bool boolean = strcmp(word, "true") == 0 || strcmp(word, "false") == 0;
    bool number = is_number(word);
    bool empty = end == word;
    *end = ended;
    if (!boolean && !number) {
        return fail(reader, empty ? "there is no value" : "this is no value; text stands in quotes");
    }
    item->kind = boolean ? TOML_BOOLEAN : TOML_NUMBER;
    item->text = word;
    reader->next = end;
    reader->word_end = end;
    return true;
}

/* To be called when what ended the last word was passed. */
static void end_word(toml_reader *reader) {
    if (reader->word_end != NULL) {
        *reader->word_end = 0;
        reader->word_end = NULL;
    }
}

static bool read_value(toml_reader *reader, toml_item *item) {
    char first = *reader->next;
    item->line = reader->line;
    if (first != '"' && first != '\'') {
        return read_word(reader, item) && add_item(reader, item);
    }
    reader->next++;
    item->kind = TOML_STRING;
    return read_string(reader, first, &item->text) && add_item(reader, item);
}

static void skip_lines(toml_reader *reader) {
    do {
        skip_comment(reader);
    } while (skip_line_end(reader));
}

/* Behind the opening bracket. It may go over several lines, with comments, and a comma may be the last. */
static bool read_array(toml_reader *reader, toml_item *item) {
    item->in_array = true;
    for (;;) {
        skip_lines(reader);
        if (*reader->next == ']') {
            reader->next++;
            return item->continues || fail(reader, "an empty array says nothing; leave it out");
        }
        if (*reader->next == '[' || *reader->next == '{') {
            return fail(reader, "an array holds strings, numbers or booleans, and no arrays or tables");
        }
        if (!read_value(reader, item)) {
            return false;
        }
        item->continues = true;
        skip_lines(reader);
        if (*reader->next == ',') {
            reader->next++;
            end_word(reader);
        } else if (*reader->next != ']') {
            return fail(reader, "between the values of an array there is a comma, and a ']' behind them");
        }
    }
}

/* ---- lines ---- */

static bool is_known_key(const toml_reader *reader, const char *key) {
    const toml_document *document = reader->document;
    for (size_t i = 0; i < document->count; i++) {
        if (document->items[i].table == reader->table && strcmp(document->items[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

static bool read_pair(toml_reader *reader) {
    char *key = reader->next;
    while (is_bare(*reader->next)) {
        reader->next++;
    }
    char *end = reader->next;
    skip_blanks(reader);
    if (end == key || *reader->next != '=') {
        return fail(reader,
                    "a line is a [table], a comment, or NAME = VALUE, with a name of A-Z a-z 0-9 _ -");
    }
    reader->next++;
    *end = 0;
    if (is_known_key(reader, key)) {
        return fail(reader, "'%.60s' is given twice", key);
    }
    toml_item item = {.table = reader->table, .key = key};
    skip_blanks(reader);
    if (*reader->next == '[') {
        reader->next++;
        return read_array(reader, &item);
    }
    return read_value(reader, &item);
}

static bool read_table(toml_reader *reader) {
    toml_document *document = reader->document;
    char *name = ++reader->next;
    while (is_bare(*reader->next)) {
        reader->next++;
    }
    if (reader->next == name || *reader->next != ']') {
        return fail(reader, "a table is written [name], with a name of A-Z a-z 0-9 _ -");
    }
    *reader->next++ = 0;
    for (size_t i = 0; i < document->table_count; i++) {
        if (strcmp(document->tables[i], name) == 0) {
            return fail(reader, "the table [%.60s] is there twice", name);
        }
    }
    if (document->table_count == TOML_TABLES_MAX) {
        return fail(reader, "there are more than %d tables", TOML_TABLES_MAX);
    }
    document->tables[document->table_count++] = name;
    reader->table = name;
    return true;
}

static bool read_line(toml_reader *reader) {
    skip_blanks(reader);
    bool read = true;
    if (*reader->next == '[') {
        read = read_table(reader);
    } else if (strchr("#\r\n", *reader->next) == NULL) {
        read = read_pair(reader);
    }
    if (!read) {
        return false;
    }
    skip_comment(reader);
    if (*reader->next != 0 && !skip_line_end(reader)) {
        return fail(reader, "there is more on this line than a name and a value");
    }
    end_word(reader);
    return true;
}

bool toml_read(char *text, size_t size, toml_document *document) {
    toml_reader reader = {.document = document, .next = text, .line = 1, .table = ""};
    document->count = 0;
    document->table_count = 0;
    if (size > TOML_BYTES_MAX) {
        return fail(&reader, "the file has more than %d bytes", TOML_BYTES_MAX);
    }
    text[size] = 0;
    if (!check_characters(&reader, size)) {
        return false;
    }
    while (*reader.next != 0) {
        if (!read_line(&reader)) {
            return false;
        }
    }
    return true;
}
