/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c: what a process says of itself, on stderr: a line for each message, by level. Lines for people name
 * the verb; those of a log have the time and the level too, or are objects of JSON. A line is written by
 * one call, so that threads, and processes that share a stderr, do not mix theirs.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const level_names[] = {"error", "warning", "info", "debug"};

static log_level chosen_level(const weft_command *command) {
    if (command->log_level > 0) {
        return (log_level)(command->log_level - 1);
    }
    return command->quiet ? LOG_ERROR : LOG_INFO;
}

bool log_wants(const weft_command *command, log_level level) {
    return level <= chosen_level(command);
}

/* "2026-10-04T12:00:00.123Z" */
static void print_time(FILE *out) {
    struct timespec now;
    struct tm parts;
    char text[TEXT_SIZE] = "?";
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) != NULL) {
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    }
    fprintf(out, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

/* What is not UTF-8 cannot stand in JSON. */
static json_t *json_text(const char *text) {
    json_t *json = json_string(text);
    if (json != NULL) {
        return json;
    }
    char *plain = strdup(text);
    for (char *c = plain; c != NULL && *c != 0; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
    json = plain != NULL ? json_string(plain) : NULL;
    free(plain);
    return json;
}

static void print_json(FILE *out, const weft_command *command, log_level level, const char *path,
                       const char *text) {
    char *time = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&time, &size);
    if (stream == NULL) {
        return;
    }
    print_time(stream);
    fclose(stream);
    json_t *json = json_object();
    json_object_set_new(json, "time", json_text(time));
    json_object_set_new(json, "level", json_string(level_names[level]));
    json_object_set_new(json, "process", json_text(command->name));
    if (path != NULL) {
        json_object_set_new(json, "path", json_text(path));
    }
    json_object_set_new(json, "message", json_text(text));
    json_dumpf(json, out, 0);
    json_decref(json);
    free(time);
    putc('\n', out);
}

static void print_text(FILE *out, const weft_command *command, log_level level, const char *path,
                       const char *text) {
    if (command->log_format == LOG_TEXT) {
        print_time(out);
        fprintf(out, " %s ", level_names[level]);
    }
    fprintf(out, "%s: ", command->name);
    if (level == LOG_WARNING && command->log_format != LOG_TEXT) {
        fputs("warning: ", out);
    }
    if (path != NULL) {
        text_print(out, path);
        fputs(": ", out);
    }
    text_print(out, text);
    putc('\n', out);
}

void log_write(const weft_command *command, log_level level, const char *path, const char *text) {
    if (!log_wants(command, level)) {
        return;
    }
    char *line = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&line, &size);
    if (out == NULL) {
        print_text(stderr, command, level, path, text);
        return;
    }
    if (command->log_format == LOG_JSON) {
        print_json(out, command, level, path, text);
    } else {
        print_text(out, command, level, path, text);
    }
    if (fclose(out) == 0) {
        fwrite(line, 1, size, stderr);
        fflush(stderr);
    }
    free(line);
}
