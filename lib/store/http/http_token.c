/* SPDX-License-Identifier: Apache-2.0
 *
 * http_token.c: what a store behind HTTP says of who it is.
 *
 * A file is looked at once a second at most. One that cannot be read, or holds no token, leaves the last
 * token in force: whoever replaces a file may take it away for a moment.
 */
#include "http_token.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "secret_file.h"

#include <string.h>

enum { TOKEN_BYTES = 4096 };

static const double LOOK_SECONDS = 1;

static bool is_same(const struct stat *one, const struct stat *other) {
    return one->st_ino == other->st_ino && one->st_dev == other->st_dev && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

static weft_status set_line(weft_http_token *token, const char *word) {
    char *line = weft_join_texts(token->context, "Authorization: Bearer ", word, "");
    if (line == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_secret_release(token->context, token->line);
    token->line = line;
    token->serial++;
    return WEFT_OK;
}

/* The file as it is before it is read: what changes in between is read again. */
static weft_status read_file(weft_http_token *token, weft_context *context) {
    struct stat file = {0};
    char *word = NULL;
    (void)stat(token->path, &file);
    weft_status status = weft_secret_file_word(context, "token file", token->path, TOKEN_BYTES, &word);
    if (status == WEFT_OK) {
        status = set_line(token, word);
        token->file = file;
    }
    weft_secret_release(context, word);
    return status;
}

static weft_status hold_token(void *opaque, weft_context *context, weft_http_proof *proof) {
    weft_http_token *token = opaque;
    pthread_mutex_lock(&token->mutex);
    double now = weft_clock_now();
    if (token->path != NULL && now - token->looked >= LOOK_SECONDS) {
        struct stat file = {0};
        token->looked = now;
        if (stat(token->path, &file) == 0 && !is_same(&file, &token->file)) {
            (void)read_file(token, context);
        }
    }
    proof->authorization = token->line;
    proof->serial = token->serial;
    return WEFT_OK;
}

static void release_token(void *opaque) {
    weft_http_token *token = opaque;
    pthread_mutex_unlock(&token->mutex);
}

weft_status weft_http_token_open(weft_http_token *token, weft_context *context,
                                 const weft_store_options *options, weft_http_identity *identity_out) {
    token->context = context;
    pthread_mutex_init(&token->mutex, NULL);
    *identity_out = (weft_http_identity){.hold = hold_token, .release = release_token, .opaque = token};
    if (options->token != NULL) {
        return set_line(token, options->token);
    }
    token->path = weft_copy_text(context, options->token_file, strlen(options->token_file));
    token->looked = weft_clock_now();
    return token->path != NULL ? read_file(token, context) : WEFT_NO_MEMORY;
}

void weft_http_token_close(weft_http_token *token) {
    if (token->context == NULL) {
        return;
    }
    weft_secret_release(token->context, token->line);
    weft_release(token->context, token->path);
    pthread_mutex_destroy(&token->mutex);
}
