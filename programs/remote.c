/* SPDX-License-Identifier: Apache-2.0
 *
 * remote.c: the options that all verbs on a STORE share, and the store that they lead to.
 */
#include "remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OPTION_TOKEN_FILE = 0x2000, OPTION_CA_FILE, OPTION_TIMEOUT, OPTION_RETRIES, OPTION_TRUST };
enum { LONGEST_TOKEN = 4096 };

/* ---- options ---- */

static const struct argp_option remote_options[] = {
    {NULL, 0, NULL, 0, "The store:", 80},
    {"token-file", OPTION_TOKEN_FILE, "FILE", 0,
     "Send the token in FILE (default: the environment variable WEFT_TOKEN, if it is set)", 81},
    {"ca-file", OPTION_CA_FILE, "FILE", 0,
     "Trust the certificates in FILE (PEM) instead of the system's, for https", 81},
    {"timeout", OPTION_TIMEOUT, "SECONDS", 0,
     "Give a transfer up when nothing has moved for so long (default: 20)", 81},
    {"retries", OPTION_RETRIES, "N", 0, "Try an operation again so many times (default: 4)", 81},
    {0},
};

double remote_parse_seconds(struct argp_state *state, const char *option, const char *text) {
    double seconds = 0;
    if (!text_parse_seconds(text, &seconds) || seconds == 0) {
        argp_error(state, "%s takes a length of time such as 0.5, 30s or 15m, not '%s'", option, text);
    }
    return seconds;
}

static error_t parse_remote(int key, char *argument, struct argp_state *state) {
    weft_remote *remote = state->input;
    uint64_t value = 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = remote->command;
        return 0;
    case OPTION_TOKEN_FILE:
        remote->token_file = argument;
        return 0;
    case OPTION_CA_FILE:
        remote->ca_file = argument;
        return 0;
    case OPTION_TIMEOUT:
        remote->stall_seconds = remote_parse_seconds(state, "--timeout", argument);
        return 0;
    case OPTION_RETRIES:
        if (!text_parse_unsigned(argument, 1000, &value)) {
            argp_error(state, "--retries takes a number from 0 to 1000, not '%s'", argument);
        }
        remote->attempts = (unsigned)value + 1;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option reader_options[] = {
    {"trust", OPTION_TRUST, "FILE", 0,
     "Believe only what the owner of this public key has signed (PEM; weft keygen writes KEY.pub)", 81},
    {0},
};

static error_t parse_reader(int key, char *argument, struct argp_state *state) {
    weft_remote *remote = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = remote;
        return 0;
    case OPTION_TRUST:
        remote->trust_file = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp remote_argp = {remote_options,   parse_remote, NULL, NULL,
                                        command_children, NULL,         NULL};
const struct argp_child remote_children[] = {{&remote_argp, 0, NULL, 0}, {0}};
static const struct argp reader_argp = {reader_options,  parse_reader, NULL, NULL,
                                        remote_children, NULL,         NULL};
const struct argp_child reader_children[] = {{&reader_argp, 0, NULL, 0}, {0}};

void remote_parse_begin(weft_remote *remote, weft_command *command, struct argp_state *state) {
    remote->command = command;
    state->child_inputs[0] = remote;
}

/* ---- tokens and keys ---- */

static int take_token(weft_remote *remote, const char *where, char *token) {
    size_t length = strlen(token);
    while (length > 0 && strchr(" \t\r\n", token[length - 1]) != NULL) {
        token[--length] = 0;
    }
    for (const char *c = token; *c != 0; c++) {
        if (*c <= ' ' || *c > '~') {
            return command_error(remote->command, EXIT_USAGE,
                                 "%s is not a token: a token is one line of printable characters without "
                                 "spaces",
                                 where);
        }
    }
    if (length == 0) {
        return command_error(remote->command, EXIT_USAGE, "%s holds no token; write one into it", where);
    }
    remote->token = strdup(token);
    return remote->token != NULL ? EXIT_DONE
                                 : command_error(remote->command, EXIT_FAILED, "no memory for a token");
}

static int read_token_file(weft_remote *remote) {
    weft_command *command = remote->command;
    const char *path = remote->token_file;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return command_error(command, EXIT_FAILED, "cannot open the token file %s: %s", path,
                             strerror(errno));
    }
    struct stat info;
    if (fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
        command_note(command, "warning: others can read the token file %s; run chmod 600 on it", path);
    }
    char token[LONGEST_TOKEN + 2];
    size_t count = fread(token, 1, sizeof token - 1, file);
    bool failed = ferror(file) != 0;
    int error = errno;
    fclose(file);
    if (failed) {
        return command_error(command, EXIT_FAILED, "cannot read the token file %s: %s", path,
                             strerror(error));
    }
    if (count > LONGEST_TOKEN) {
        return command_error(command, EXIT_USAGE, "%s is longer than a token may be, %d bytes", path,
                             LONGEST_TOKEN);
    }
    token[count] = 0;
    return take_token(remote, path, token);
}

static int find_token(weft_remote *remote) {
    if (remote->token_file != NULL) {
        return read_token_file(remote);
    }
    const char *given = getenv("WEFT_TOKEN");
    if (given == NULL || *given == 0) {
        return EXIT_DONE;
    }
    char *copy = strdup(given);
    int code = copy != NULL ? take_token(remote, "WEFT_TOKEN", copy)
                            : command_error(remote->command, EXIT_FAILED, "no memory for a token");
    free(copy);
    return code;
}

int remote_read_key(weft_command *command, const char *path, bool secret, weft_key **key_out) {
    weft_key *key;
    weft_status status = weft_key_read(command->context, path, &key);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    if (secret && !weft_key_secret(key)) {
        weft_key_destroy(key);
        return command_error(command, EXIT_USAGE,
                             "%s is a public key, which cannot sign; give the secret file that weft keygen "
                             "wrote beside it",
                             path);
    }
    *key_out = key;
    return EXIT_DONE;
}

/* ---- the store ---- */

int remote_open(weft_remote *remote, const char *url) {
    weft_command *command = remote->command;
    int code = find_token(remote);
    if (code == EXIT_DONE && remote->trust_file != NULL) {
        code = remote_read_key(command, remote->trust_file, false, &remote->trusted);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    weft_store_options options = {
        .token = remote->token,
        .ca_file = remote->ca_file,
        .stall_seconds = remote->stall_seconds,
        .attempts = remote->attempts,
    };
    weft_status status = weft_store_open(command->context, url, &options, &remote->store);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

void remote_close(weft_remote *remote) {
    weft_store_close(remote->store);
    weft_key_destroy(remote->trusted);
    if (remote->token != NULL) {
        explicit_bzero(remote->token, strlen(remote->token));
    }
    free(remote->token);
    remote->store = NULL;
    remote->trusted = NULL;
    remote->token = NULL;
}

/* ---- results ---- */

json_t *remote_labels(const char *const *labels) {
    json_t *json = json_object();
    for (size_t i = 0; labels != NULL && labels[i] != NULL; i += 2) {
        json_object_set_new(json, labels[i], json_string(labels[i + 1]));
    }
    return json;
}

const char *remote_time(uint64_t milliseconds, char text[TEXT_SIZE]) {
    time_t seconds = (time_t)(milliseconds / 1000);
    struct tm parts;
    if (gmtime_r(&seconds, &parts) == NULL ||
        strftime(text, TEXT_SIZE, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        snprintf(text, TEXT_SIZE, "?");
    }
    return text;
}

json_t *remote_version(const weft_log_entry *entry) {
    char time[TEXT_SIZE];
    json_t *json = json_object();
    json_object_set_new(json, "version", json_count(entry->version));
    json_object_set_new(json, "epoch", json_count(entry->epoch));
    json_object_set_new(json, "time", json_string(remote_time(entry->milliseconds, time)));
    json_object_set_new(json, "published_milliseconds", json_count(entry->milliseconds));
    json_object_set_new(json, "digest", json_digest(&entry->digest));
    json_object_set_new(json, "changed", json_count(entry->changed));
    json_object_set_new(json, "total", json_count(entry->total));
    json_object_set_new(json, "density", json_ratio((double)entry->changed, (double)entry->total));
    json_object_set_new(json, "patch_bytes", json_count(entry->patch_bytes));
    json_object_set_new(json, "anchor_bytes", json_count(entry->anchor_bytes));
    json_object_set_new(json, "dense_bytes", json_count(entry->dense_bytes));
    json_object_set_new(json, "labels", remote_labels(entry->labels));
    return json;
}
