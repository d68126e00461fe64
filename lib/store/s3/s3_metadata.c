/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_metadata.c: credentials that a service gives: STS for a web identity, the service of a container, and
 * that of an instance (version 2, with a token of its own; version 1 is not asked).
 *
 * Each question has a client of its own, which is closed after it: they are asked a few times an hour. The
 * services of containers and instances are on this machine: they are asked past any proxy, and not waited
 * for as long as others.
 */
#include "s3_source.h"

#include "../../base/context.h"
#include "../http/secret_file.h"
#include "s3.h"

#include <stdio.h>
#include <string.h>

enum {
    ANSWER_BYTES = 64 << 10,
    WORD_BYTES = 16 << 10,
    METADATA_TOKEN_SECONDS = 21600,
    TOKEN_LINE = WEFT_HTTP_REMARK_MAX + 64,
};

/* ---- questions ---- */

static void note_nothing(weft_http_client *client, const weft_http_exchange *exchange) {
    (void)client;
    (void)exchange;
}

/* The body of an answer may hold secrets, and is not quoted; but the code of an error of STS is. */
static weft_status fail_question(weft_context *context, const weft_http_exchange *exchange,
                                 const weft_http_settings *settings, unsigned attempts) {
    weft_s3_error error;
    (void)weft_s3_error_read(exchange->remark, exchange->remark_size, &error);
    if (exchange->answer.status < 300) {
        return weft_http_fail(context, exchange, settings, attempts);
    }
    weft_status status = exchange->answer.status < 500 ? WEFT_REMOTE_DENIED : WEFT_REMOTE_FAILED;
    return weft_fail(context, status, "%s %.400s: the service answers %ld%s%s",
                     weft_http_method_name(exchange->method), exchange->url, exchange->answer.status,
                     error.code[0] != '\0' ? " " : "", error.code);
}

static const weft_http_dialect dialect = {
    .note = note_nothing,
    .passing = weft_http_passing,
    .fail = fail_question,
};

typedef struct question {
    weft_http_method method;
    const char *path;
    const char *line; /* of the header, or NULL */
    const char *body; /* of a POST, or NULL */
} question;

static weft_status ask(weft_http_client *client, weft_context *context, const question *question,
                       char answer[ANSWER_BYTES], size_t *size_out) {
    weft_http_effort effort = {.client = client, .context = context, .key = ""};
    weft_http_exchange exchange;
    do {
        weft_http_effort_begin(&effort, &exchange, question->method);
        snprintf(exchange.url, sizeof exchange.url, "%s%s", client->base, question->path);
        exchange.conditions[0] = question->line;
        exchange.buffer = (uint8_t *)answer;
        exchange.room = ANSWER_BYTES;
        if (question->method != WEFT_HTTP_GET) {
            const char *body = question->body != NULL ? question->body : "";
            weft_http_exchange_fill(&exchange, body, strlen(body));
        }
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        if (weft_http_succeeded(&exchange.answer) && !exchange.answer.encoded) {
            *size_out = (size_t)exchange.received;
            return WEFT_OK;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

/* A conversation with a service, and room for its answers. */
typedef struct conversation {
    weft_http_client client;
    weft_context *context;
    char *answer;
    size_t size;
} conversation;

static weft_status open_conversation(conversation *conversation, weft_context *context,
                                     const weft_s3_source *source, bool here) {
    weft_store_options options = {
        .size = sizeof options,
        .ca_file = source->ca_file,
        .connect_seconds = here ? 2 : 0,
        .stall_seconds = here ? 5 : 0,
        .attempts = here ? 3 : 0,
        .transfers = 1,
    };
    memset(conversation, 0, sizeof *conversation);
    conversation->context = context;
    conversation->client.context = context;
    conversation->answer = weft_allocate(context, ANSWER_BYTES);
    weft_status status =
        conversation->answer != NULL
            ? weft_http_client_open(&conversation->client, context, source->url, &options, &dialect)
            : WEFT_NO_MEMORY;
    conversation->client.settings.direct = here;
    return status;
}

static void close_conversation(conversation *conversation) {
    weft_http_client_close(&conversation->client);
    if (conversation->answer != NULL) {
        explicit_bzero(conversation->answer, ANSWER_BYTES);
    }
    weft_release(conversation->context, conversation->answer);
}

static weft_status say(conversation *conversation, const question *question) {
    return ask(&conversation->client, conversation->context, question, conversation->answer,
               &conversation->size);
}

/* ---- a container ---- */

weft_status weft_s3_ask_container(weft_context *context, const weft_s3_source *source,
                                  weft_s3_session *session) {
    char *word = NULL;
    char *line = NULL;
    weft_status status = source->token_file != NULL
                             ? weft_secret_file_word(context, "container's token file", source->token_file,
                                                     WORD_BYTES, &word)
                             : WEFT_OK;
    const char *token = word != NULL ? word : source->token;
    if (status == WEFT_OK && token != NULL) {
        if (!weft_s3_is_word(token)) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "AWS_CONTAINER_AUTHORIZATION_TOKEN has spaces or bytes that no token has");
        }
        line = weft_join_texts(context, "Authorization: ", token, "");
        status = line != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    conversation conversation;
    if (status == WEFT_OK) {
        status = open_conversation(&conversation, context, source, true);
        if (status == WEFT_OK) {
            status = say(&conversation, &(question){.method = WEFT_HTTP_GET, .path = "", .line = line});
        }
        if (status == WEFT_OK) {
            status = weft_s3_session_read_json(context, source->name, conversation.answer,
                                               conversation.size, session);
        }
        close_conversation(&conversation);
    }
    weft_secret_release(context, word);
    weft_secret_release(context, line);
    return status;
}

/* ---- an instance ---- */

/* One word of what came; false if it is none, or too long. */
static bool take_word(const conversation *conversation, char *word, size_t capacity) {
    size_t size = conversation->size;
    while (size > 0 && (conversation->answer[size - 1] == '\n' || conversation->answer[size - 1] == '\r')) {
        size--;
    }
    if (size == 0 || size >= capacity || memchr(conversation->answer, '\0', size) != NULL) {
        return false;
    }
    memcpy(word, conversation->answer, size);
    word[size] = '\0';
    return weft_s3_is_word(word);
}

static bool is_role(const char *role) {
    return role[strspn(role, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+=,.@_-")] ==
           '\0';
}

static weft_status converse_with_instance(conversation *conversation, const weft_s3_source *source,
                                          weft_s3_session *session) {
    static const char place[] = "/latest/meta-data/iam/security-credentials/";
    char life[96];
    char token[WEFT_HTTP_REMARK_MAX];
    char line[TOKEN_LINE];
    char role[128];
    char path[sizeof place + sizeof role];
    snprintf(life, sizeof life, "X-aws-ec2-metadata-token-ttl-seconds: %d", METADATA_TOKEN_SECONDS);
    weft_status status =
        say(conversation, &(question){.method = WEFT_HTTP_PUT, .path = "/latest/api/token", .line = life});
    if (status != WEFT_OK) {
        return weft_fail(conversation->context, WEFT_REMOTE_FAILED,
                         "no credentials: neither AWS_ACCESS_KEY_ID nor a profile, a web identity or a "
                         "container gives any, and the instance metadata does not answer (%.400s)",
                         weft_context_error(conversation->context));
    }
    if (!take_word(conversation, token, sizeof token)) {
        return weft_fail(conversation->context, WEFT_REMOTE_FAILED, "%s: what came is not a token",
                         source->name);
    }
    snprintf(line, sizeof line, "X-aws-ec2-metadata-token: %s", token);
    status = say(conversation, &(question){.method = WEFT_HTTP_GET, .path = place, .line = line});
    if (status == WEFT_OK && (!take_word(conversation, role, sizeof role) || !is_role(role))) {
        return weft_fail(conversation->context, WEFT_REMOTE_FAILED,
                         "%s: what came is not the name of a role", source->name);
    }
    if (status != WEFT_OK) {
        return weft_fail(conversation->context, status, "the instance has no role: %.500s",
                         weft_context_error(conversation->context));
    }
    snprintf(path, sizeof path, "%s%s", place, role);
    status = say(conversation, &(question){.method = WEFT_HTTP_GET, .path = path, .line = line});
    explicit_bzero(token, sizeof token);
    explicit_bzero(line, sizeof line);
    return status == WEFT_OK ? weft_s3_session_read_json(conversation->context, source->name,
                                                         conversation->answer, conversation->size, session)
                             : status;
}

weft_status weft_s3_ask_instance(weft_context *context, const weft_s3_source *source,
                                 weft_s3_session *session) {
    conversation conversation;
    weft_status status = open_conversation(&conversation, context, source, true);
    if (status == WEFT_OK) {
        status = converse_with_instance(&conversation, source, session);
    }
    close_conversation(&conversation);
    return status;
}

/* ---- a web identity ---- */

static char *make_form(weft_context *context, const weft_s3_source *source, const char *token) {
    size_t capacity = 3 * (strlen(token) + strlen(source->role) + strlen(source->role_session)) + 256;
    char *form = weft_allocate(context, capacity);
    char *role = weft_allocate(context, capacity);
    char *name = weft_allocate(context, capacity);
    char *word = weft_allocate(context, capacity);
    bool fits = form != NULL && role != NULL && name != NULL && word != NULL &&
                weft_s3_encode(source->role, role, capacity) &&
                weft_s3_encode(source->role_session, name, capacity) &&
                weft_s3_encode(token, word, capacity);
    if (fits) {
        snprintf(form, capacity,
                 "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s&RoleSessionName=%s&"
                 "WebIdentityToken=%s",
                 role, name, word);
    }
    weft_release(context, role);
    weft_release(context, name);
    if (word != NULL) {
        explicit_bzero(word, capacity);
    }
    weft_release(context, word);
    if (!fits) {
        weft_release(context, form);
    }
    return fits ? form : NULL;
}

weft_status weft_s3_ask_web_identity(weft_context *context, const weft_s3_source *source,
                                     weft_s3_session *session) {
    char *token = NULL;
    weft_status status =
        weft_secret_file_word(context, "web identity's token file", source->token_file, WORD_BYTES, &token);
    if (status != WEFT_OK) {
        return status;
    }
    char *form = make_form(context, source, token);
    weft_secret_release(context, token);
    if (form == NULL) {
        return WEFT_NO_MEMORY;
    }
    conversation conversation;
    status = open_conversation(&conversation, context, source, false);
    if (status == WEFT_OK) {
        status = say(&conversation, &(question){.method = WEFT_HTTP_POST,
                                                .path = "/",
                                                .line = "Content-Type: application/x-www-form-urlencoded",
                                                .body = form});
    }
    if (status == WEFT_OK && !weft_s3_session_read(conversation.answer, conversation.size, session)) {
        status = weft_fail(context, WEFT_REMOTE_FAILED,
                           "%s: what came from %s holds no credentials; check AWS_ENDPOINT_URL_STS",
                           source->name, source->url);
    }
    close_conversation(&conversation);
    weft_secret_release(context, form);
    return status;
}
