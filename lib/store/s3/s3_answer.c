/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_answer.c: a walk through XML, and what is picked up on it.
 */
#include "s3_answer.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PATH_MAX_BYTES = 256, DEPTH_MAX = 8 };

/* ---- the walk ---- */

/* An element has ended. `path` is "Outer/Inner"; `text` is its own, "" if there are elements within, NULL
 * if it is too long. False to stop. */
typedef bool (*element_function)(void *opaque, const char *path, const char *text);

typedef struct walk {
    const char *cursor;
    const char *end;
    element_function element;
    void *opaque;
    bool stopped;
    char path[PATH_MAX_BYTES];
    size_t path_size;
    unsigned depth;
    bool rooted; /* the outermost element has begun */
    bool leaf;   /* nothing has ended within the element that began last */
    char text[WEFT_S3_TEXT_MAX];
    size_t text_size;
    bool too_long;
} walk;

static bool is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

static bool is_name_byte(char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
           byte == '-' || byte == '_' || byte == '.';
}

static bool begins_with(const walk *walk, const char *text) {
    size_t length = strlen(text);
    return (size_t)(walk->end - walk->cursor) >= length && memcmp(walk->cursor, text, length) == 0;
}

/* Goes behind the next `text`. */
static bool skip_past(walk *walk, const char *text) {
    size_t length = strlen(text);
    const char *found = memmem(walk->cursor, (size_t)(walk->end - walk->cursor), text, length);
    if (found == NULL) {
        return false;
    }
    walk->cursor = found + length;
    return true;
}

/* A name without its namespace. */
static bool read_name(walk *walk, const char **name_out, size_t *size_out) {
    const char *name = walk->cursor;
    while (walk->cursor < walk->end && (is_name_byte(*walk->cursor) || *walk->cursor == ':')) {
        if (*walk->cursor == ':') {
            name = walk->cursor + 1;
        }
        walk->cursor++;
    }
    *name_out = name;
    *size_out = (size_t)(walk->cursor - name);
    return *size_out > 0;
}

static void add_byte(walk *walk, char byte) {
    if (walk->text_size + 1 < sizeof(walk->text)) {
        walk->text[walk->text_size++] = byte;
    } else {
        walk->too_long = true;
    }
}

static void add_character(walk *walk, unsigned long code) {
    if (code < 0x80) {
        add_byte(walk, (char)code);
    } else if (code < 0x800) {
        add_byte(walk, (char)(0xc0 | code >> 6));
        add_byte(walk, (char)(0x80 | (code & 0x3f)));
    } else if (code < 0x10000) {
        add_byte(walk, (char)(0xe0 | code >> 12));
        add_byte(walk, (char)(0x80 | (code >> 6 & 0x3f)));
        add_byte(walk, (char)(0x80 | (code & 0x3f)));
    } else {
        add_byte(walk, (char)(0xf0 | code >> 18));
        add_byte(walk, (char)(0x80 | (code >> 12 & 0x3f)));
        add_byte(walk, (char)(0x80 | (code >> 6 & 0x3f)));
        add_byte(walk, (char)(0x80 | (code & 0x3f)));
    }
}

static int digit_of(char byte) {
    if (byte >= '0' && byte <= '9') {
        return byte - '0';
    }
    if (byte >= 'a' && byte <= 'f') {
        return byte - 'a' + 10;
    }
    return byte >= 'A' && byte <= 'F' ? byte - 'A' + 10 : 16;
}

/* "#38" or "#x26" */
static bool read_number_entity(walk *walk, const char *name, size_t size) {
    int base = size > 1 && name[1] == 'x' ? 16 : 10;
    size_t first = base == 16 ? 2 : 1;
    unsigned long code = 0;
    for (size_t i = first; i < size; i++) {
        int digit = digit_of(name[i]);
        if (digit >= base) {
            return false;
        }
        code = code * (unsigned)base + (unsigned)digit;
        if (code > 0x10ffff) {
            return false;
        }
    }
    if (code == 0 || (code >= 0xd800 && code < 0xe000)) {
        return false;
    }
    add_character(walk, code);
    return true;
}

static bool read_entity(walk *walk) {
    static const struct {
        const char *name;
        char byte;
    } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    const char *name = walk->cursor + 1;
    if (!skip_past(walk, ";")) {
        return false;
    }
    size_t size = (size_t)(walk->cursor - 1 - name);
    if (size > 0 && name[0] == '#') {
        return read_number_entity(walk, name, size);
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (size == strlen(known[i].name) && memcmp(name, known[i].name, size) == 0) {
            add_byte(walk, known[i].byte);
            return true;
        }
    }
    return false;
}

static void begin_text(walk *walk) {
    walk->text_size = 0;
    walk->too_long = false;
}

static bool enter_element(walk *walk, const char *name, size_t size) {
    bool outermost = walk->depth == 0;
    if ((outermost && walk->rooted) || walk->depth == DEPTH_MAX ||
        walk->path_size + 1 + size >= sizeof(walk->path)) {
        return false;
    }
    if (!outermost) {
        walk->path[walk->path_size++] = '/';
    }
    memcpy(walk->path + walk->path_size, name, size);
    walk->path_size += size;
    walk->path[walk->path_size] = '\0';
    walk->depth++;
    walk->rooted = true;
    walk->leaf = true;
    begin_text(walk);
    return true;
}

static bool leave_element(walk *walk, const char *name, size_t size) {
    char *slash = strrchr(walk->path, '/');
    char *last = slash != NULL ? slash + 1 : walk->path;
    if (walk->depth == 0 || strlen(last) != size || memcmp(last, name, size) != 0) {
        return false;
    }
    walk->text[walk->text_size] = '\0';
    const char *text = !walk->leaf ? "" : walk->too_long ? NULL : walk->text;
    walk->stopped = !walk->element(walk->opaque, walk->path, text);
    walk->path_size = slash != NULL ? (size_t)(slash - walk->path) : 0;
    walk->path[walk->path_size] = '\0';
    walk->depth--;
    walk->leaf = false;
    begin_text(walk);
    return true;
}

/* Attributes are passed over, up to and with the tag's end. */
static bool skip_attributes(walk *walk, bool *closed_out) {
    *closed_out = false;
    while (walk->cursor < walk->end) {
        char byte = *walk->cursor++;
        if (byte == '>') {
            return true;
        }
        if (byte == '<') {
            return false;
        }
        *closed_out = byte == '/';
        if ((byte == '"' || byte == '\'') && !skip_past(walk, byte == '"' ? "\"" : "'")) {
            return false;
        }
    }
    return false;
}

static bool read_tag(walk *walk) {
    const char *name = NULL;
    size_t size = 0;
    bool closing = begins_with(walk, "</");
    walk->cursor += closing ? 2 : 1;
    if (!read_name(walk, &name, &size)) {
        return false;
    }
    if (closing) {
        while (walk->cursor < walk->end && is_space(*walk->cursor)) {
            walk->cursor++;
        }
        return begins_with(walk, ">") && skip_past(walk, ">") && leave_element(walk, name, size);
    }
    bool closed = false;
    return skip_attributes(walk, &closed) && enter_element(walk, name, size) &&
           (!closed || leave_element(walk, name, size));
}

/* The next piece of markup, entity or byte of text. */
static bool read_next(walk *walk) {
    if (begins_with(walk, "<?")) {
        return skip_past(walk, "?>");
    }
    if (begins_with(walk, "<!--")) {
        return skip_past(walk, "-->");
    }
    char byte = *walk->cursor;
    if (byte == '<') {
        return !begins_with(walk, "<!") && read_tag(walk);
    }
    if (walk->depth > 0 && byte == '&') {
        return read_entity(walk);
    }
    walk->cursor++;
    if (walk->depth == 0) {
        return is_space(byte);
    }
    add_byte(walk, byte);
    return byte != '\0';
}

/* False if the data is no XML, or not all of it. What was told before that holds. */
static bool walk_through(const char *data, size_t size, element_function element, void *opaque) {
    walk walk = {.cursor = data, .end = data + size, .element = element, .opaque = opaque};
    if (begins_with(&walk, "\xef\xbb\xbf")) {
        walk.cursor += 3;
    }
    while (walk.cursor < walk.end && !walk.stopped) {
        if (!read_next(&walk)) {
            return false;
        }
    }
    return walk.stopped || (walk.rooted && walk.depth == 0);
}

/* ---- what is picked up ---- */

bool weft_s3_is_word(const char *text) {
    for (; *text != '\0'; text++) {
        if (*text <= 0x20 || *text >= 0x7f) {
            return false;
        }
    }
    return true;
}

/* Leaves `field` alone if the text does not fit or is not one word. */
static void copy_word(char *field, size_t capacity, const char *text) {
    if (text != NULL && strlen(text) < capacity && weft_s3_is_word(text)) {
        memcpy(field, text, strlen(text) + 1);
    }
}

/* For people: cut where there is no more room, and without what would upset a terminal. */
static void copy_sentence(char *field, size_t capacity, const char *text) {
    if (text == NULL) {
        return;
    }
    snprintf(field, capacity, "%s", text);
    for (char *byte = field; *byte != '\0'; byte++) {
        if (*byte < 0x20 || *byte >= 0x7f) {
            *byte = ' ';
        }
    }
}

static bool note_error(void *opaque, const char *path, const char *text) {
    weft_s3_error *error = opaque;
    static const char wrapped[] = "ErrorResponse/"; /* as STS has it */
    path += strncmp(path, wrapped, strlen(wrapped)) == 0 ? strlen(wrapped) : 0;
    if (strcmp(path, "Error/Code") == 0) {
        copy_word(error->code, sizeof(error->code), text);
    } else if (strcmp(path, "Error/Message") == 0) {
        copy_sentence(error->message, sizeof(error->message), text);
    } else if (strcmp(path, "Error/Region") == 0) {
        copy_word(error->region, sizeof(error->region), text);
    } else if (strcmp(path, "Error/Endpoint") == 0) {
        copy_word(error->endpoint, sizeof(error->endpoint), text);
    }
    return true;
}

bool weft_s3_error_read(const char *data, size_t size, weft_s3_error *error) {
    memset(error, 0, sizeof(*error));
    (void)walk_through(data, size, note_error, error);
    return error->code[0] != '\0';
}

static bool note_upload(void *opaque, const char *path, const char *text) {
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0) {
        copy_word(opaque, WEFT_S3_UPLOAD_MAX, text);
    }
    return true;
}

bool weft_s3_upload_read(const char *data, size_t size, char upload[WEFT_S3_UPLOAD_MAX]) {
    upload[0] = '\0';
    return walk_through(data, size, note_upload, upload) && upload[0] != '\0';
}

typedef struct completed {
    bool done;
    weft_store_tag *tag;
} completed;

static bool note_completed(void *opaque, const char *path, const char *text) {
    completed *completed = opaque;
    if (strcmp(path, "CompleteMultipartUploadResult/ETag") == 0) {
        copy_word(completed->tag->text, sizeof(completed->tag->text), text);
    } else if (strcmp(path, "CompleteMultipartUploadResult") == 0) {
        completed->done = true;
    }
    return true;
}

bool weft_s3_completed_read(const char *data, size_t size, weft_store_tag *tag) {
    completed completed = {.tag = tag};
    memset(tag, 0, sizeof(*tag));
    return walk_through(data, size, note_completed, &completed) && completed.done;
}

/* ---- listings ---- */

typedef struct listing {
    weft_s3_object object;
    void *opaque;
    char *next;
    bool listed;  /* it is a listing, and at its end */
    bool stopped; /* by who was told of the objects */
    bool truncated;
    char key[WEFT_S3_TEXT_MAX];
    bool has_size, has_date;
    uint64_t size;
    time_t modified;
} listing;

static bool read_size(const char *text, uint64_t *size_out) {
    uint64_t number = 0;
    for (const char *byte = text; *byte != '\0'; byte++) {
        if (*byte < '0' || *byte > '9' || __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*byte - '0'), &number)) {
            return false;
        }
    }
    *size_out = number;
    return *text != '\0';
}

/* So many digits, and the byte behind them. */
static bool read_digits(const char **cursor, int count, char behind, int *number_out) {
    int number = 0;
    for (int i = 0; i < count; i++) {
        char byte = (*cursor)[i];
        if (byte < '0' || byte > '9') {
            return false;
        }
        number = number * 10 + (byte - '0');
    }
    *cursor += count;
    *number_out = number;
    if (behind == '\0') {
        return true;
    }
    return *(*cursor)++ == behind;
}

/* "Z" or "+01:00", in seconds. */
static bool read_zone(const char *text, int *seconds_out) {
    int hours = 0;
    int minutes = 0;
    int sign = *text == '-' ? -1 : 1;
    *seconds_out = 0;
    if (strcmp(text, "Z") == 0) {
        return true;
    }
    bool good = (*text == '+' || *text == '-') && text++ != NULL && read_digits(&text, 2, ':', &hours) &&
                read_digits(&text, 2, '\0', &minutes) && *text == '\0';
    *seconds_out = sign * (hours * 3600 + minutes * 60);
    return good;
}

bool weft_s3_date_read(const char *text, time_t *date_out) {
    struct tm date = {0};
    if (!read_digits(&text, 4, '-', &date.tm_year) || !read_digits(&text, 2, '-', &date.tm_mon) ||
        !read_digits(&text, 2, 'T', &date.tm_mday) || !read_digits(&text, 2, ':', &date.tm_hour) ||
        !read_digits(&text, 2, ':', &date.tm_min) || !read_digits(&text, 2, '\0', &date.tm_sec)) {
        return false;
    }
    if (*text == '.') {
        text += 1 + strspn(text + 1, "0123456789");
    }
    date.tm_year -= 1900;
    date.tm_mon -= 1;
    int zone = 0;
    bool good = read_zone(text, &zone) && date.tm_mon >= 0 && date.tm_mon < 12;
    *date_out = timegm(&date) - zone;
    return good;
}

static bool note_listed(void *opaque, const char *path, const char *text) {
    static const char outer[] = "ListBucketResult";
    listing *listing = opaque;
    if (strncmp(path, outer, strlen(outer)) != 0) {
        return true;
    }
    const char *rest = path + strlen(outer);
    if (strcmp(rest, "/Contents/Key") == 0) {
        snprintf(listing->key, sizeof(listing->key), "%s", text != NULL ? text : "");
    } else if (strcmp(rest, "/Contents/Size") == 0) {
        listing->has_size = text != NULL && read_size(text, &listing->size);
    } else if (strcmp(rest, "/Contents/LastModified") == 0) {
        listing->has_date = text != NULL && weft_s3_date_read(text, &listing->modified);
    } else if (strcmp(rest, "/Contents") == 0) {
        bool whole = listing->key[0] != '\0' && listing->has_size && listing->has_date;
        listing->stopped =
            whole && !listing->object(listing->opaque, listing->key, listing->size, listing->modified);
        listing->key[0] = '\0';
        listing->has_size = false;
        listing->has_date = false;
        return !listing->stopped;
    } else if (strcmp(rest, "/IsTruncated") == 0) {
        listing->truncated = text != NULL && strcasecmp(text, "true") == 0;
    } else if (strcmp(rest, "/NextContinuationToken") == 0) {
        copy_word(listing->next, WEFT_S3_TOKEN_MAX, text);
    } else if (*rest == '\0') {
        listing->listed = true;
    }
    return true;
}

bool weft_s3_list_read(const char *data, size_t size, weft_s3_object object, void *opaque,
                       char next[WEFT_S3_TOKEN_MAX]) {
    listing listing = {.object = object, .opaque = opaque, .next = next};
    next[0] = '\0';
    bool whole = walk_through(data, size, note_listed, &listing);
    if (listing.stopped || !listing.truncated) {
        next[0] = '\0';
    }
    return listing.stopped || (whole && listing.listed && (!listing.truncated || next[0] != '\0'));
}

/* ---- credentials ---- */

static bool note_session(void *opaque, const char *path, const char *text) {
    static const char outer[] =
        "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/";
    weft_s3_session *session = opaque;
    if (strncmp(path, outer, strlen(outer)) != 0) {
        return true;
    }
    const char *rest = path + strlen(outer);
    if (strcmp(rest, "AccessKeyId") == 0) {
        copy_word(session->user, sizeof(session->user), text);
    } else if (strcmp(rest, "SecretAccessKey") == 0) {
        copy_word(session->secret, sizeof(session->secret), text);
    } else if (strcmp(rest, "SessionToken") == 0) {
        copy_word(session->token, sizeof(session->token), text);
    } else if (strcmp(rest, "Expiration") == 0) {
        session->expires = text != NULL && weft_s3_date_read(text, &session->expiration);
    }
    return true;
}

bool weft_s3_session_read(const char *data, size_t size, weft_s3_session *session) {
    memset(session, 0, sizeof(*session));
    bool whole = walk_through(data, size, note_session, session);
    return whole && session->user[0] != '\0' && session->secret[0] != '\0' && session->token[0] != '\0' &&
           session->expires;
}
