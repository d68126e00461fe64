/* SPDX-License-Identifier: Apache-2.0
 *
 * remote.c: the options that all verbs on a STORE share, and the store that they lead to.
 */
#include "remote.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { LONGEST_TOKEN = 4096 };

/* ---- names ---- */

void remote_parse_name(struct argp_state *state, const weft_option *option, char *text) {
    if (!weft_follower_name_valid(text)) {
        argp_error(state, "--name takes 1 to 64 of A-Z a-z 0-9 . _ - and no dot first, not '%s'", text);
    }
    *(const char **)option->into = text;
}

/* What the path leads to may not exist yet, but its directory does, or nothing can be put there. */
static uint64_t hash_path(const char *path) {
    char *copy = strdup(path);
    char *parent = copy != NULL ? realpath(dirname(copy), NULL) : NULL;
    const char *place = parent != NULL ? parent : "";
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    const char *slash = memrchr(path, '/', length);
    const char *base = slash != NULL ? slash + 1 : path;
    uint64_t seed = XXH3_64bits(place, strlen(place));
    uint64_t hash = XXH3_64bits_withSeed(base, length - (size_t)(base - path), seed);
    free(parent);
    free(copy);
    return hash;
}

const char *remote_make_name(const char *path, char name[WEFT_FOLLOWER_NAME]) {
    enum { HOST_MAX = 48 };
    char host[HOST_MAX + 1] = "";
    (void)gethostname(host, HOST_MAX);
    for (char *c = host; *c != 0; c++) {
        char letter[2] = {*c, 0};
        *c = weft_follower_name_valid(letter) || (*c == '.' && c > host) ? *c : '-';
    }
    snprintf(name, WEFT_FOLLOWER_NAME, "%s-%08x", host[0] != 0 ? host : "host", (unsigned)hash_path(path));
    return name;
}

/* ---- tokens and keys ---- */

static int take_token(weft_remote *remote, const char *where, char *token) {
    size_t length = strlen(token);
    while (length > 0 && strchr(" \t\r\n", token[length - 1]) != NULL) {
        token[--length] = 0;
    }
    for (const char *c = token; *c != 0; c++) {
        if (*c <= ' ' || *c > '~') {
            return command_error(
                remote->command, EXIT_USAGE,
                "%s is not a token: a token is one line of printable characters without spaces", where);
        }
    }
    if (length == 0) {
        return command_error(remote->command, EXIT_USAGE, "%s holds no token; write one into it", where);
    }
    remote->token = strdup(token);
    return remote->token != NULL ? EXIT_DONE
                                 : command_error(remote->command, EXIT_FAILED, "no memory for a token");
}

void remote_warn_readable(weft_command *command, const char *what, const char *path, unsigned others) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & others) != 0) {
        command_warn(command, "others can read the %s %s; run chmod %o on it", what, path,
                     others == 077 ? 0600u : 0640u);
    }
}

FILE *remote_open_token_file(weft_command *command, const char *path) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        (void)command_error(command, EXIT_FAILED, "cannot open the token file %s: %s", path,
                            strerror(errno));
        return NULL;
    }
    remote_warn_readable(command, "token file", path, 077);
    return file;
}

static int read_token_file(weft_remote *remote) {
    weft_command *command = remote->command;
    const char *path = remote->token_file;
    FILE *file = remote_open_token_file(command, path);
    if (file == NULL) {
        return EXIT_FAILED;
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
        return command_error(
            command, EXIT_USAGE,
            "%s is a public key, which cannot sign; give the secret file that weft keygen wrote beside it",
            path);
    }
    if (secret) {
        remote_warn_readable(command, "secret key", path, 077);
    }
    *key_out = key;
    return EXIT_DONE;
}

/* ---- the store ---- */

static int bind_key(weft_remote *remote) {
    weft_command *command = remote->command;
    if (remote->trusted == NULL) {
        return command_error(command, EXIT_USAGE,
                             "--run says which run of a key is trusted; give the key too, with --trust");
    }
    weft_status status = weft_key_bind(command->context, remote->trusted, remote->run);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

int remote_options(weft_remote *remote, weft_store_options *options_out) {
    int code = remote->token == NULL ? find_token(remote) : EXIT_DONE;
    /* A file may change, and was read only to see that it holds a token. A pipe cannot be read again. */
    struct stat info;
    bool can_change =
        remote->token_file != NULL && stat(remote->token_file, &info) == 0 && S_ISREG(info.st_mode);
    *options_out = (weft_store_options){
        .size = sizeof *options_out,
        .token = can_change ? NULL : remote->token,
        .token_file = can_change ? remote->token_file : NULL,
        .ca_file = remote->ca_file,
        .stall_seconds = remote->stall_seconds,
        .attempts = remote->attempts,
        .transfers = remote->transfers,
        .volatile_writes = remote->volatile_writes,
    };
    return code;
}

int remote_open(weft_remote *remote, const char *url) {
    weft_command *command = remote->command;
    weft_store_options options;
    int code = remote_options(remote, &options);
    if (code == EXIT_DONE && remote->trust_file != NULL) {
        code = remote_read_key(command, remote->trust_file, false, &remote->trusted);
    }
    if (code == EXIT_DONE && remote->run != NULL) {
        code = bind_key(remote);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_store_open(command->context, url, &options, &remote->store);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

static void remote_close(weft_remote *remote) {
    weft_store_close(remote->store);
    weft_key_destroy(remote->trusted);
    if (remote->token != NULL) {
        explicit_bzero(remote->token, strlen(remote->token));
    }
    free(remote->token);
}

/* ---- a verb on a store ---- */

static void parse_retries(struct argp_state *state, const weft_option *option, char *text) {
    uint64_t retries = 0;
    if (!text_parse_unsigned(text, 1000, &retries)) {
        argp_error(state, "--retries takes a number from 0 to 1000, not '%s'", text);
    }
    *(unsigned *)option->into = (unsigned)retries + 1;
}

int remote_run(const weft_form *form, weft_remote *remote, bool reads, int argc, char **argv, void *input,
               int (*run)(void *input)) {
    const weft_option store[] = {
        {.group = 80, .help = "The store:"},
        {"token-file", "FILE", 81,
         "Send the token in FILE, which is read again when it changes (default: the environment variable "
         "WEFT_TOKEN, if it is set)",
         .text = &remote->token_file},
        {"ca-file", "FILE", 81,
         "Trust the certificates in FILE (PEM), for https, instead of those of SSL_CERT_FILE or the "
         "system's",
         .text = &remote->ca_file},
        {"timeout", "SECONDS", 81,
         "Give a transfer up when nothing, or less than 1 KiB/s, has moved for so long (default: 20)",
         .seconds = &remote->stall_seconds},
        {"retries", "N", 81, "Try an operation again so many times (default: 4)", .parse = parse_retries,
         .into = &remote->attempts},
        {0},
    };
    const weft_option trust[] = {
        {"trust", "FILE", 81,
         "Believe only what the owner of this public key has signed (PEM; weft keygen writes KEY.pub)",
         .text = &remote->trust_file},
        {"run", "RUN", 81,
         "Of what it has signed, believe only this run (weft publish --json tells it): for a key that "
         "signs several",
         .text = &remote->run},
        {0},
    };
    weft_form whole = *form;
    options_add(&whole, store);
    if (reads) {
        options_add(&whole, trust);
    }
    remote->command = input;
    int code = command_begin(&whole, argc, argv, input);
    if (code == EXIT_DONE) {
        code = run(input);
        remote_close(remote);
        code = command_end(input, code);
    }
    return code;
}

/* ---- results ---- */

json_t *remote_labels(const char *const *labels) {
    json_t *json = json_object();
    for (size_t i = 0; labels != NULL && labels[i] != NULL; i += 2) {
        json_object_set_new(json, labels[i], json_string(labels[i + 1]));
    }
    return json;
}

static json_t *follower_error(const weft_follower *follower) {
    if (follower->error[0] == 0) {
        return json_null();
    }
    json_t *json = json_object();
    json_object_set_new(json, "milliseconds", json_count(follower->error_milliseconds));
    json_object_set_new(json, "text", json_string(follower->error));
    return json;
}

json_t *remote_follower(const weft_follower *follower, double age) {
    json_t *json = json_object();
    json_object_set_new(json, "name", json_string(follower->name));
    json_object_set_new(json, "live", json_boolean(follower->live));
    json_object_set_new(json, "state", json_string(follower->state));
    json_object_set_new(json, "version", json_count(follower->version));
    json_object_set_new(json, "digest", json_digest(&follower->digest));
    json_object_set_new(json, "newest", json_count(follower->newest));
    json_object_set_new(json, "lag", json_count(follower->lag));
    json_object_set_new(json, "lag_seconds",
                        follower->lag_seconds < 0 ? json_null() : json_real(follower->lag_seconds));
    json_object_set_new(json, "age_seconds", json_real(age));
    json_object_set_new(json, "interval_seconds", json_real(follower->interval_seconds));
    json_object_set_new(json, "reads", json_count(follower->reads));
    json_object_set_new(json, "published_milliseconds", json_count(follower->published));
    json_object_set_new(json, "pause_seconds", json_real(follower->pause_seconds));
    json_t *phases = json_object();
    for (int i = 0; i <= WEFT_SYNC_COMMIT; i++) {
        json_object_set_new(phases, weft_sync_phase_name((weft_sync_phase)i),
                            json_real(follower->phase_seconds[i]));
    }
    json_object_set_new(json, "phase_seconds", phases);
    json_object_set_new(json, "patches", json_count(follower->patches));
    json_object_set_new(json, "anchors", json_count(follower->anchors));
    json_object_set_new(json, "healed", json_count(follower->healed));
    json_object_set_new(json, "fetched_bytes", json_count(follower->fetched_bytes));
    json_object_set_new(json, "requests", json_count(follower->requests));
    json_object_set_new(json, "error", follower_error(follower));
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
