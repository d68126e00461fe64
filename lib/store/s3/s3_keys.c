/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_keys.c: profiles in INI files, and credentials in JSON.
 */
#include "s3_keys.h"

#include "../../base/context.h"
#include "../../tensor/json.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { JSON_DEPTH = 4, JSON_CONTAINERS = 64 };

/* ---- profiles ---- */

/* A part of a line. */
typedef struct slice {
    const char *text;
    size_t size;
} slice;

static bool is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r';
}

static slice trim(slice part) {
    while (part.size > 0 && is_space(part.text[0])) {
        part.text++;
        part.size--;
    }
    while (part.size > 0 && is_space(part.text[part.size - 1])) {
        part.size--;
    }
    return part;
}

static bool is_text(slice part, const char *text) {
    return part.size == strlen(text) && strncasecmp(part.text, text, part.size) == 0;
}

static slice behind(slice part, size_t count) {
    return trim((slice){part.text + count, part.size - count});
}

/* "[name]", or "[profile name]" in the other file, where only "default" may do without the word. */
static bool is_section(slice line, const char *name, bool config) {
    const char *end = memchr(line.text, ']', line.size);
    if (end == NULL) {
        return false;
    }
    slice title = trim((slice){line.text + 1, (size_t)(end - line.text) - 1});
    static const char word[] = "profile";
    size_t length = strlen(word);
    bool named =
        title.size > length && strncmp(title.text, word, length) == 0 && is_space(title.text[length]);
    if (config && named) {
        title = behind(title, length);
    } else if (config && !is_text(title, "default")) {
        return false;
    }
    if (title.size >= 2 && title.text[0] == '"' && title.text[title.size - 1] == '"') {
        title = (slice){title.text + 1, title.size - 2};
    }
    return title.size == strlen(name) && memcmp(title.text, name, title.size) == 0;
}

/* A value up to a comment, which begins behind a space. */
static slice without_comment(slice value) {
    for (size_t i = 1; i < value.size; i++) {
        if ((value.text[i] == '#' || value.text[i] == ';') && is_space(value.text[i - 1])) {
            return trim((slice){value.text, i});
        }
    }
    return value;
}

/* The first file that says something wins. */
static void take(weft_s3_profile *profile, slice value, char *field, size_t capacity, bool spaces) {
    bool fits = value.size < capacity;
    for (size_t i = 0; i < value.size; i++) {
        fits = fits && value.text[i] >= (spaces ? 0x20 : 0x21) && value.text[i] < 0x7f;
    }
    if (field[0] == '\0' && fits) {
        memcpy(field, value.text, value.size);
        field[value.size] = '\0';
    }
    profile->unfit = profile->unfit || !fits;
}

static void take_line(weft_s3_profile *profile, slice name, slice value) {
    weft_s3_session *session = &profile->session;
    slice word = without_comment(value);
    if (is_text(name, "aws_access_key_id")) {
        take(profile, word, session->user, sizeof session->user, false);
    } else if (is_text(name, "aws_secret_access_key")) {
        take(profile, word, session->secret, sizeof session->secret, false);
    } else if (is_text(name, "aws_session_token")) {
        take(profile, word, session->token, sizeof session->token, false);
    } else if (is_text(name, "credential_process")) {
        take(profile, value, profile->command, sizeof profile->command, true);
    } else if (is_text(name, "role_arn")) {
        take(profile, word, profile->role, sizeof profile->role, false);
    } else if (is_text(name, "web_identity_token_file")) {
        take(profile, word, profile->token_file, sizeof profile->token_file, true);
    } else if (is_text(name, "role_session_name")) {
        take(profile, word, profile->role_session, sizeof profile->role_session, false);
    } else if (is_text(name, "region")) {
        take(profile, word, profile->region, sizeof profile->region, false);
    } else if (is_text(name, "endpoint_url")) {
        take(profile, word, profile->endpoint, sizeof profile->endpoint, false);
    } else if (is_text(name, "source_profile") || is_text(name, "credential_source") ||
               (name.size > 4 && strncasecmp(name.text, "sso_", 4) == 0)) {
        profile->asks_more = true;
    }
}

void weft_s3_profile_read(const char *text, size_t size, const char *name, bool config,
                          weft_s3_profile *profile) {
    bool inside = false;
    while (size > 0) {
        const char *end = memchr(text, '\n', size);
        size_t length = end != NULL ? (size_t)(end - text) : size;
        slice line = trim((slice){text, length});
        /* what is indented belongs to the line before, such as the settings below "s3 =" */
        bool nested = length > 0 && is_space(text[0]);
        if (line.size > 0 && line.text[0] == '[') {
            inside = is_section(line, name, config);
            profile->found = profile->found || inside;
        } else if (inside && !nested && line.size > 0 && line.text[0] != '#' && line.text[0] != ';') {
            const char *equals = memchr(line.text, '=', line.size);
            size_t before = equals != NULL ? (size_t)(equals - line.text) : line.size;
            if (equals != NULL) {
                take_line(profile, trim((slice){line.text, before}), behind(line, before + 1));
            }
        }
        size -= end != NULL ? length + 1 : length;
        text += end != NULL ? length + 1 : length;
    }
}

/* ---- JSON ---- */

static bool copy_member(const json_t *json, const char *name, char *field, size_t capacity) {
    const char *text = json_string_value(json_object_get(json, name));
    if (text == NULL || strlen(text) >= capacity || !weft_s3_is_word(text)) {
        return false;
    }
    memcpy(field, text, strlen(text) + 1);
    return true;
}

static bool is_null(const json_t *json, const char *name) {
    const json_t *member = json_object_get(json, name);
    return member == NULL || json_is_null(member);
}

/* False if it is not credentials. */
static bool read_members(const json_t *json, weft_s3_session *session) {
    const char *token = is_null(json, "Token") ? "SessionToken" : "Token";
    const char *date = json_string_value(json_object_get(json, "Expiration"));
    const json_t *version = json_object_get(json, "Version");
    bool good = (version == NULL || json_integer_value(version) == 1) &&
                copy_member(json, "AccessKeyId", session->user, sizeof session->user) &&
                copy_member(json, "SecretAccessKey", session->secret, sizeof session->secret) &&
                (is_null(json, token) || copy_member(json, token, session->token, sizeof session->token));
    session->expires = !is_null(json, "Expiration");
    good = good && (!session->expires || (date != NULL && weft_s3_date_read(date, &session->expiration)));
    return good && session->user[0] != '\0' && session->secret[0] != '\0';
}

/* What an instance or a container says instead of credentials. */
static void read_refusal(const json_t *json, char *text, size_t capacity) {
    const char *code = json_string_value(json_object_get(json, "Code"));
    code = code != NULL ? code : json_string_value(json_object_get(json, "code"));
    bool refused = code != NULL && strcasecmp(code, "Success") != 0 && weft_s3_is_word(code);
    snprintf(text, capacity, "%s%.64s", refused ? ": " : "", refused ? code : "");
}

weft_status weft_s3_session_read_json(weft_context *context, const char *where, const char *text,
                                      size_t size, weft_s3_session *session) {
    json_t *json = NULL;
    memset(session, 0, sizeof *session);
    if (size > WEFT_S3_SESSION_JSON_MAX ||
        weft_json_parse(context, where, text, size, JSON_DEPTH, JSON_CONTAINERS, &json) != WEFT_OK) {
        return weft_fail(context, WEFT_REMOTE_FAILED, "%s: what came is not credentials in JSON", where);
    }
    char refusal[80];
    read_refusal(json, refusal, sizeof refusal);
    bool good = refusal[0] == '\0' && read_members(json, session);
    json_decref(json);
    if (!good) {
        explicit_bzero(session, sizeof *session);
        return weft_fail(context, WEFT_REMOTE_FAILED, "%s: what came holds no credentials%s", where,
                         refusal);
    }
    return WEFT_OK;
}
