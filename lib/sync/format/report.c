/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c: writing and reading what a follower tells of itself.
 *
 * Anybody may write a report: what is read is bounded, and its texts are for showing only.
 */
#include "report.h"

#include "../../base/context.h"
#include "../../tensor/json.h"
#include "cuts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_DEPTH = 3, JSON_CONTAINERS = 8, NUMBER_DIGITS = 6, READS_MAX = 1000 };

static const double NUMBER_MAX = 1e9;

/* ---- names ---- */

bool weft_follower_name_valid(const char *name) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = name != NULL ? strnlen(name, WEFT_FOLLOWER_NAME) : 0;
    return length > 0 && length < WEFT_FOLLOWER_NAME && name[0] != '.' && strspn(name, letters) == length;
}

void weft_report_key(const char *name, char key[WEFT_KEY_SIZE]) {
    snprintf(key, WEFT_KEY_SIZE, WEFT_REPORT_ROOM "/%s", name);
}

const char *weft_report_name(const char *key) {
    size_t room = strlen(WEFT_REPORT_ROOM);
    return strncmp(key, WEFT_REPORT_ROOM, room) == 0 && key[room] == '/' &&
                   weft_follower_name_valid(key + room + 1)
               ? key + room + 1
               : NULL;
}

static bool state_valid(const char *state) {
    return state[0] != '\0' && strspn(state, "abcdefghijklmnopqrstuvwxyz") == strlen(state);
}

const char *weft_sync_phase_name(weft_sync_phase phase) {
    static const char *const names[] = {"wait", "fetch", "decode", "verify", "commit"};
    return phase <= WEFT_SYNC_COMMIT ? names[phase] : "";
}

/* ---- writing ---- */

static json_t *format_seconds(double seconds) {
    double bounded = seconds > 0 ? seconds : 0;
    return json_real(bounded < NUMBER_MAX ? bounded : NUMBER_MAX);
}

/* One line that is UTF-8, cut between characters. */
static void clean_text(const char *text, char clean[WEFT_FOLLOWER_ERROR]) {
    snprintf(clean, WEFT_FOLLOWER_ERROR, "%s", text);
    size_t length = strlen(clean);
    if (length == WEFT_FOLLOWER_ERROR - 1) {
        while (length > 0 && ((unsigned char)clean[length - 1] & 0xc0) == 0x80) {
            length--;
        }
        length -= length > 0 && ((unsigned char)clean[length - 1] & 0x80) != 0;
        clean[length] = '\0';
    }
    json_t *valid = json_string(clean);
    for (char *byte = clean; *byte != '\0'; byte++) {
        bool control = (unsigned char)*byte < 0x20 || *byte == 0x7f;
        bool broken = valid == NULL && ((unsigned char)*byte & 0x80) != 0;
        *byte = control || broken ? '?' : *byte;
    }
    json_decref(valid);
}

static json_t *format_json(const weft_follower *follower) {
    uint64_t lag = follower->newest > follower->version ? follower->newest - follower->version : 0;
    json_t *json = weft_json_with(json_object(), "weft", weft_count_json(WEFT_SYNC_FORMAT));
    json = weft_json_with(json, "kind", json_string("follower"));
    json = weft_json_with(json, "name", json_string(follower->name));
    json = weft_json_with(json, "run", json_string(follower->run));
    json = weft_json_with(json, "version", weft_count_json(follower->version));
    json = weft_json_with(json, "digest", weft_digest_json(&follower->digest));
    json = weft_json_with(json, "newest", weft_count_json(follower->newest));
    json = weft_json_with(json, "lag", weft_count_json(lag));
    json = weft_json_with(json, "time", weft_count_json(follower->milliseconds));
    json = weft_json_with(json, "published", weft_count_json(follower->published));
    json = weft_json_with(json, "state", json_string(follower->state));
    json_t *phases = json_object();
    for (int i = 0; i <= WEFT_SYNC_COMMIT; i++) {
        phases = weft_json_with(phases, weft_sync_phase_name((weft_sync_phase)i),
                                format_seconds(follower->phase_seconds[i]));
    }
    json = weft_json_with(json, "phases", phases);
    json = weft_json_with(json, "pause", format_seconds(follower->pause_seconds));
    json = weft_json_with(json, "patches", weft_count_json(follower->patches));
    json = weft_json_with(json, "anchors", weft_count_json(follower->anchors));
    json = weft_json_with(json, "healed", weft_count_json(follower->healed));
    json = weft_json_with(json, "fetched_bytes", weft_count_json(follower->fetched_bytes));
    json = weft_json_with(json, "requests", weft_count_json(follower->requests));
    if (follower->error[0] != '\0') {
        char text[WEFT_FOLLOWER_ERROR];
        clean_text(follower->error, text);
        json_t *error =
            weft_json_with(json_object(), "time", weft_count_json(follower->error_milliseconds));
        json = weft_json_with(json, "error", weft_json_with(error, "text", json_string(text)));
    }
    if (follower->cuts[0] != '\0') {
        json = weft_json_with(json, "cuts", json_string(follower->cuts));
    }
    json = weft_json_with(json, "reads", weft_count_json(follower->reads));
    if (follower->relayed) {
        json = weft_json_with(json, "relayed", format_seconds(follower->relay_seconds));
    }
    return weft_json_with(json, "interval", format_seconds(follower->interval_seconds));
}

static size_t dump_json(const json_t *json, uint8_t data[WEFT_REPORT_MAX]) {
    return json != NULL ? json_dumpb(json, (char *)data, WEFT_REPORT_MAX,
                                     JSON_COMPACT | JSON_REAL_PRECISION(NUMBER_DIGITS))
                        : 0;
}

weft_status weft_report_format(weft_context *context, const weft_follower *follower,
                               uint8_t data[WEFT_REPORT_MAX], size_t *size_out) {
    if (!weft_follower_name_valid(follower->name) || !weft_sync_name_valid(follower->run) ||
        !state_valid(follower->state) ||
        !(follower->interval_seconds >= WEFT_REPORT_SHORTEST &&
          follower->interval_seconds <= WEFT_REPORT_LONGEST)) {
        return weft_sync_unwritable(context, "a report", "its name, run, state or interval");
    }
    json_t *json = format_json(follower);
    size_t size = dump_json(json, data);
    /* with cuts a long error may find no room; these are needed, and it is in the follower's log */
    if (size > WEFT_REPORT_MAX && json_object_del(json, "error") == 0) {
        size = dump_json(json, data);
    }
    json_decref(json);
    if (size == 0) {
        return weft_json_no_memory(context, "a report");
    }
    if (size > WEFT_REPORT_MAX) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "a report of %zu bytes is longer than %d", size,
                         WEFT_REPORT_MAX);
    }
    *size_out = size;
    return WEFT_OK;
}

/* ---- reading ---- */

static bool parse_number(const json_t *json, const char *name, double least, double most,
                         double *value_out) {
    const json_t *member = json_object_get(json, name);
    double value = json_number_value(member);
    if (!json_is_number(member) || !(value >= least && value <= most)) {
        return false;
    }
    *value_out = value;
    return true;
}

static bool parse_phases(const json_t *json, weft_follower *follower) {
    const json_t *phases = json_object_get(json, "phases");
    bool good = json_is_object(phases);
    for (int i = 0; i <= WEFT_SYNC_COMMIT && good; i++) {
        good = parse_number(phases, weft_sync_phase_name((weft_sync_phase)i), 0, NUMBER_MAX,
                            &follower->phase_seconds[i]);
    }
    return good;
}

static bool parse_error(const json_t *json, weft_follower *follower) {
    const json_t *error = json_object_get(json, "error");
    return error == NULL ||
           (json_is_object(error) && weft_json_count(error, "time", &follower->error_milliseconds) &&
            weft_json_text(error, "text", follower->error, sizeof follower->error));
}

/* What cannot be cuts is passed over: the rest of the report is as good as ever. */
static void parse_cuts(const json_t *json, weft_follower *follower) {
    weft_announced_cut cuts[WEFT_ANNOUNCED_CUTS];
    size_t count;
    if (json_object_get(json, "cuts") != NULL &&
        (!weft_json_text(json, "cuts", follower->cuts, sizeof follower->cuts) ||
         !weft_cuts_parse(follower->cuts, cuts, &count))) {
        follower->cuts[0] = '\0';
    }
}

static bool parse_where(const json_t *json, weft_follower *follower) {
    return weft_json_name(json, "run", follower->run, sizeof follower->run) &&
           weft_json_count(json, "version", &follower->version) &&
           weft_json_digest(json, "digest", &follower->digest) &&
           weft_json_count(json, "newest", &follower->newest) &&
           weft_json_count(json, "time", &follower->milliseconds) &&
           weft_json_count(json, "published", &follower->published) &&
           weft_json_text(json, "state", follower->state, WEFT_FOLLOWER_STATE) &&
           state_valid(follower->state);
}

static bool parse_how(const json_t *json, weft_follower *follower) {
    return parse_phases(json, follower) &&
           parse_number(json, "pause", 0, NUMBER_MAX, &follower->pause_seconds) &&
           weft_json_count(json, "patches", &follower->patches) &&
           weft_json_count(json, "anchors", &follower->anchors) &&
           weft_json_count(json, "healed", &follower->healed) &&
           weft_json_count(json, "fetched_bytes", &follower->fetched_bytes) &&
           weft_json_count(json, "requests", &follower->requests) && parse_error(json, follower) &&
           parse_number(json, "interval", WEFT_REPORT_SHORTEST, WEFT_REPORT_LONGEST,
                        &follower->interval_seconds);
}

/* Added by a relay, which makes a follower no worse: what makes no sense is passed over. */
static void parse_relayed(const json_t *json, weft_follower *follower) {
    follower->relayed = json_object_get(json, "relayed") != NULL &&
                        parse_number(json, "relayed", 0, NUMBER_MAX, &follower->relay_seconds);
}

/* Who does not say what it reads is of the time before there was anything to say. */
static void parse_reads(const json_t *json, weft_follower *follower) {
    uint64_t reads = 0;
    bool told = weft_json_count(json, "reads", &reads) && reads >= 1;
    follower->reads = !told ? 1 : reads < READS_MAX ? (unsigned)reads : READS_MAX;
}

static bool parse_name(const json_t *json, const char *name, weft_follower *follower) {
    return weft_json_text(json, "name", follower->name, sizeof follower->name) &&
           weft_follower_name_valid(follower->name) && (name == NULL || strcmp(follower->name, name) == 0);
}

weft_status weft_report_parse(weft_context *context, const char *key_name, const void *data, size_t size,
                              weft_follower *follower) {
    const char *name = key_name != NULL ? key_name : "a report";
    if (size > WEFT_REPORT_MAX) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "the report of %s is longer than %d bytes", name,
                         WEFT_REPORT_MAX);
    }
    json_t *json;
    weft_status status = weft_json_parse(context, name, data, size, JSON_DEPTH, JSON_CONTAINERS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    weft_follower found = {.age_seconds = 0};
    status = weft_sync_check_kind(context, name, json, "follower");
    if (status == WEFT_OK && !parse_name(json, key_name, &found)) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: this report is not its own", name);
    }
    if (status == WEFT_OK && (!parse_where(json, &found) || !parse_how(json, &found))) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: something is missing or makes no sense", name);
    }
    if (status == WEFT_OK) {
        parse_cuts(json, &found);
        parse_relayed(json, &found);
        parse_reads(json, &found);
        *follower = found;
    }
    json_decref(json);
    return status;
}

/* ---- batches ---- */

static const char LINE_BEGIN[] = "{\"age\":";
static const char LINE_MIDDLE[] = ",\"report\":";

weft_status weft_report_line_format(weft_context *context, const weft_follower *follower, double age,
                                    char line[WEFT_REPORT_LINE_MAX], size_t *size_out) {
    uint8_t data[WEFT_REPORT_MAX];
    size_t size = 0;
    weft_status status = weft_report_format(context, follower, data, &size);
    if (status == WEFT_OK) {
        double told = age > 0 ? age < NUMBER_MAX ? age : NUMBER_MAX : 0;
        *size_out = (size_t)snprintf(line, WEFT_REPORT_LINE_MAX, "%s%.3f%s%.*s}\n", LINE_BEGIN, told,
                                     LINE_MIDDLE, (int)size, (const char *)data);
    }
    return status;
}

static weft_status refuse_line(weft_context *context, const char *what) {
    return weft_fail(context, WEFT_MALFORMED, "a batch of reports: %s", what);
}

/* Digits, and perhaps a dot and digits; true if `middle` follows. */
static bool read_age(const char *text, const char *middle, double *age_out) {
    size_t whole = strspn(text, "0123456789");
    size_t length = whole;
    if (text[length] == '.') {
        length += 1 + strspn(text + length + 1, "0123456789");
    }
    *age_out = whole > 0 && length < 24 ? strtod(text, NULL) : -1;
    return *age_out >= 0 && *age_out <= NUMBER_MAX && text + length == middle;
}

weft_status weft_report_line_parse(weft_context *context, const char **text, size_t *left,
                                   weft_follower *follower, double *age_out) {
    const char *begin = *text;
    const char *end = memchr(begin, '\n', *left < WEFT_REPORT_LINE_MAX ? *left : WEFT_REPORT_LINE_MAX);
    size_t head = strlen(LINE_BEGIN);
    if (end == NULL) {
        return refuse_line(context, "a line is too long, or breaks off");
    }
    *left -= (size_t)(end - begin) + 1;
    *text = end + 1;
    /* a copy that ends, for the functions that look for an end */
    char line[WEFT_REPORT_LINE_MAX];
    size_t size = (size_t)(end - begin);
    memcpy(line, begin, size);
    line[size] = '\0';
    const char *middle = strstr(line, LINE_MIDDLE);
    if (strncmp(line, LINE_BEGIN, head) != 0 || middle == NULL || !read_age(line + head, middle, age_out) ||
        line[size - 1] != '}') {
        return refuse_line(context, "a line is none");
    }
    const char *report = middle + strlen(LINE_MIDDLE);
    const char *last = line + size - 1;
    return report <= last ? weft_report_parse(context, NULL, report, (size_t)(last - report), follower)
                          : refuse_line(context, "a line is none");
}
