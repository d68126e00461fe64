/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_tokens.c: bearer tokens: reading them from files, and asking a request for one.
 *
 * Who has a write token may read too. With a read token, all reading needs one of the two; with a write
 * token, all writing needs it.
 */
#include "serve.h"
#include "serve_fields.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1024, LONGEST_TOKEN = 4096 };

static bool hash_token(const char *token, size_t length, uint8_t hash[TOKEN_HASH]) {
    return EVP_Digest(token, length, hash, NULL, EVP_sha256(), NULL) == 1;
}

static int add_token(weft_command *command, const char *path, const char *token, size_t length,
                     serve_tokens *tokens) {
    if (length > LONGEST_TOKEN || tokens->count == MOST_TOKENS) {
        return command_error(command, EXIT_USAGE, "%s: more than %d tokens, or one of more than %d bytes",
                             path, MOST_TOKENS, LONGEST_TOKEN);
    }
    void *hashes = realloc(tokens->hashes, (tokens->count + 1) * sizeof *tokens->hashes);
    if (hashes == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the tokens of %s", path);
    }
    tokens->hashes = hashes;
    if (!hash_token(token, length, tokens->hashes[tokens->count])) {
        return command_error(command, EXIT_FAILED, "cannot compute a SHA-256");
    }
    tokens->count++;
    return EXIT_DONE;
}

static int read_lines(weft_command *command, const char *path, FILE *file, serve_tokens *tokens) {
    char *line = NULL;
    size_t capacity = 0;
    int code = EXIT_DONE;
    for (ssize_t length; code == EXIT_DONE && (length = getline(&line, &capacity, file)) >= 0;) {
        while (length > 0 && strchr(" \t\r\n", line[length - 1]) != NULL) {
            length--;
        }
        if (length > 0) {
            code = add_token(command, path, line, (size_t)length, tokens);
        }
    }
    if (line != NULL) {
        OPENSSL_cleanse(line, capacity);
    }
    free(line);
    if (code == EXIT_DONE && ferror(file)) {
        return command_error(command, EXIT_FAILED, "cannot read the tokens in %s: %s", path,
                             strerror(errno));
    }
    if (code == EXIT_DONE && tokens->count == 0) {
        return command_error(command, EXIT_USAGE,
                             "%s holds no token; write one into it, on a line of its own", path);
    }
    return code;
}

int serve_tokens_read(weft_command *command, const char *path, serve_tokens *tokens) {
    FILE *file = remote_open_token_file(command, path);
    if (file == NULL) {
        return EXIT_FAILED;
    }
    (void)fstat(fileno(file), &tokens->file);
    int code = read_lines(command, path, file, tokens);
    fclose(file);
    tokens->needed = code == EXIT_DONE;
    return code;
}

int serve_tokens_reload(serve_server *server, const char *path, serve_tokens *tokens) {
    serve_tokens fresh = {0};
    int code = serve_tokens_read(server->command, path, &fresh);
    if (code == EXIT_DONE) {
        uint8_t(*before)[TOKEN_HASH] = tokens->hashes;
        pthread_rwlock_wrlock(&server->site->tokens_lock);
        tokens->hashes = fresh.hashes;
        tokens->count = fresh.count;
        pthread_rwlock_unlock(&server->site->tokens_lock);
        tokens->needed = true;
        tokens->file = fresh.file;
        fresh.hashes = before;
    }
    serve_tokens_close(&fresh);
    return code;
}

bool serve_tokens_changed(const char *path, serve_tokens *tokens) {
    struct stat now;
    /* a pipe cannot be read again */
    if (path == NULL || stat(path, &now) != 0 || !S_ISREG(now.st_mode)) {
        return false;
    }
    const struct stat *before = &tokens->file;
    bool changed = now.st_ino != before->st_ino || now.st_dev != before->st_dev ||
                   now.st_size != before->st_size || now.st_mtim.tv_sec != before->st_mtim.tv_sec ||
                   now.st_mtim.tv_nsec != before->st_mtim.tv_nsec;
    tokens->file = now;
    return changed;
}

void serve_tokens_close(serve_tokens *tokens) {
    free(tokens->hashes);
    memset(tokens, 0, sizeof *tokens);
}

/* Looks at all of them, whichever it is. */
static bool holds(const serve_tokens *tokens, const uint8_t hash[TOKEN_HASH]) {
    bool found = false;
    for (size_t i = 0; i < tokens->count; i++) {
        found |= CRYPTO_memcmp(tokens->hashes[i], hash, TOKEN_HASH) == 0;
    }
    return found;
}

/* Which rights the token of a request has. */
static void find_rights(serve_server *server, struct MHD_Connection *connection, bool *reads_out,
                        bool *writes_out) {
    const char *field = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    size_t length = 0;
    const char *token = field == NULL ? NULL : serve_bearer(field, &length);
    uint8_t hash[TOKEN_HASH];
    if (token == NULL || length > LONGEST_TOKEN || !hash_token(token, length, hash)) {
        *reads_out = *writes_out = false;
        return;
    }
    const serve_server *site = server->site;
    pthread_rwlock_rdlock(&server->site->tokens_lock);
    *reads_out = holds(&server->read_tokens, hash) || holds(&site->read_tokens, hash);
    *writes_out = holds(&server->write_tokens, hash) || holds(&site->write_tokens, hash);
    pthread_rwlock_unlock(&server->site->tokens_lock);
}

bool serve_tokens_needed(const serve_server *server, bool writes) {
    const serve_server *site = server->site;
    return writes ? server->write_tokens.needed || site->write_tokens.needed
                  : server->read_tokens.needed || site->read_tokens.needed;
}

unsigned serve_tokens_refusal(serve_server *server, struct MHD_Connection *connection, bool writes,
                              bool *known_out) {
    bool may_read, may_write;
    bool needed = serve_tokens_needed(server, writes);
    find_rights(server, connection, &may_read, &may_write);
    *known_out = may_read || may_write;
    if (!needed || may_write || (may_read && !writes)) {
        return 0;
    }
    return may_read ? MHD_HTTP_FORBIDDEN : MHD_HTTP_UNAUTHORIZED;
}
