/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_source.c: the choice of a source of credentials, and the environment and the files as such sources.
 */
#include "s3_source.h"

#include "../../base/context.h"
#include "../http/secret_file.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define EXPORT_TEXT "credential_process = aws configure export-credentials --profile NAME --format process"

const char *weft_s3_variable(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    if ((value == NULL || *value == '\0') && otherwise != NULL) {
        value = getenv(otherwise);
    }
    return value != NULL && *value != '\0' ? value : NULL;
}

/* ---- files ---- */

static weft_status find_file(weft_context *context, const char *variable, const char *name,
                             char path[WEFT_S3_PATH_MAX]) {
    const char *given = weft_s3_variable(variable, NULL);
    const char *home = weft_s3_variable("HOME", NULL);
    int length = given != NULL  ? snprintf(path, WEFT_S3_PATH_MAX, "%s", given)
                 : home != NULL ? snprintf(path, WEFT_S3_PATH_MAX, "%s/.aws/%s", home, name)
                                : snprintf(path, WEFT_S3_PATH_MAX, "%s", "");
    return length < WEFT_S3_PATH_MAX
               ? WEFT_OK
               : weft_fail(context, WEFT_INVALID_ARGUMENT, "the path of the AWS file %s is too long", name);
}

static weft_status read_profile_file(weft_context *context, const char *path, const char *name, bool config,
                                     weft_s3_profile *profile) {
    char *text = NULL;
    size_t size = 0;
    if (*path == '\0') {
        return WEFT_OK;
    }
    weft_status status =
        weft_secret_file_read(context, "file of AWS profiles", path, WEFT_S3_PROFILES_MAX, &text, &size);
    if (status != WEFT_OK) {
        return status == WEFT_NOT_FOUND ? WEFT_OK : status;
    }
    weft_s3_profile_read(text, size, name, config, profile);
    explicit_bzero(text, size);
    weft_release(context, text);
    return WEFT_OK;
}

static weft_status read_profile(weft_context *context, const weft_s3_files *files,
                                weft_s3_profile *profile) {
    memset(profile, 0, sizeof *profile);
    weft_status status = read_profile_file(context, files->credentials, files->profile, false, profile);
    return status == WEFT_OK ? read_profile_file(context, files->config, files->profile, true, profile)
                             : status;
}

weft_status weft_s3_profile_load(weft_context *context, weft_s3_files *files, weft_s3_profile *profile) {
    const char *name = weft_s3_variable("AWS_PROFILE", "AWS_DEFAULT_PROFILE");
    files->named = name != NULL;
    int length = snprintf(files->profile, sizeof files->profile, "%s", name != NULL ? name : "default");
    if (length >= (int)sizeof files->profile) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "AWS_PROFILE is longer than %zu bytes",
                         sizeof files->profile - 1);
    }
    weft_status status =
        find_file(context, "AWS_SHARED_CREDENTIALS_FILE", "credentials", files->credentials);
    if (status == WEFT_OK) {
        status = find_file(context, "AWS_CONFIG_FILE", "config", files->config);
    }
    return status == WEFT_OK ? read_profile(context, files, profile) : status;
}

static weft_status ask_files(weft_context *context, const weft_s3_source *source,
                             weft_s3_session *session) {
    weft_s3_profile *profile = weft_allocate(context, sizeof *profile);
    if (profile == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = read_profile(context, &source->files, profile);
    *session = profile->session;
    bool whole = session->user[0] != '\0' && session->secret[0] != '\0' && !profile->unfit;
    explicit_bzero(profile, sizeof *profile);
    weft_release(context, profile);
    if (status == WEFT_OK && !whole) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the %s no longer has keys", source->name);
    }
    return status;
}

/* ---- the choice ---- */

static char *copy(weft_context *context, const char *text) {
    return text != NULL ? weft_copy_text(context, text, strlen(text)) : NULL;
}

static weft_status choose_environment(weft_context *context, weft_s3_source *source) {
    const char *user = weft_s3_variable("AWS_ACCESS_KEY_ID", NULL);
    const char *secret = weft_s3_variable("AWS_SECRET_ACCESS_KEY", NULL);
    const char *token = weft_s3_variable("AWS_SESSION_TOKEN", NULL);
    weft_s3_session *session = &source->session;
    if (user == NULL || secret == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set "
                         "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither");
    }
    bool fits = strlen(user) < sizeof session->user && strlen(secret) < sizeof session->secret &&
                (token == NULL || strlen(token) < sizeof session->token) && weft_s3_is_word(user) &&
                weft_s3_is_word(secret) && (token == NULL || weft_s3_is_word(token));
    if (!fits) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN has spaces, line "
                         "ends or other bytes that no such thing has, or is too long");
    }
    snprintf(session->user, sizeof session->user, "%s", user);
    snprintf(session->secret, sizeof session->secret, "%s", secret);
    snprintf(session->token, sizeof session->token, "%s", token != NULL ? token : "");
    source->kind = WEFT_S3_FROM_ENVIRONMENT;
    snprintf(source->name, sizeof source->name, "environment");
    return WEFT_OK;
}

static weft_status choose_web_identity(weft_context *context, const char *region, const char *role,
                                       const char *token_file, const char *session,
                                       weft_s3_source *source) {
    char url[256];
    const char *given = weft_s3_variable("AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL");
    snprintf(url, sizeof url, "https://sts.%s.amazonaws.com%s", region,
             strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
    source->kind = WEFT_S3_FROM_WEB_IDENTITY;
    source->url = copy(context, given != NULL ? given : url);
    source->role = copy(context, role);
    source->token_file = copy(context, token_file);
    source->role_session = copy(context, session != NULL && *session != '\0' ? session : "weft");
    snprintf(source->name, sizeof source->name, "web identity for the role %.200s", role);
    return source->url != NULL && source->role != NULL && source->token_file != NULL &&
                   source->role_session != NULL
               ? WEFT_OK
               : WEFT_NO_MEMORY;
}

/* A profile that says how to get credentials, whether that is understood here or not. */
static bool has_credentials(const weft_s3_profile *profile) {
    return profile->session.user[0] != '\0' || profile->session.secret[0] != '\0' ||
           profile->command[0] != '\0' || profile->role[0] != '\0' || profile->asks_more || profile->unfit;
}

static weft_status choose_profile(weft_context *context, const weft_s3_files *files,
                                  const weft_s3_profile *profile, const char *region,
                                  weft_s3_source *source) {
    const weft_s3_session *session = &profile->session;
    if (profile->unfit) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "the AWS profile %s has a value that is too long or has bytes that it cannot have; "
            "correct it in %s or %s",
            files->profile, files->credentials, files->config);
    }
    if (profile->role[0] != '\0' && profile->token_file[0] != '\0') {
        return choose_web_identity(context, region, profile->role, profile->token_file,
                                   profile->role_session, source);
    }
    if (profile->command[0] != '\0') {
        source->kind = WEFT_S3_FROM_PROCESS;
        source->command = copy(context, profile->command);
        snprintf(source->name, sizeof source->name, "credential_process of the profile %s", files->profile);
        return source->command != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    if (profile->role[0] != '\0' || (profile->asks_more && session->user[0] == '\0')) {
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "the AWS profile %s needs a sign-in or a role of another profile, which weft leaves "
            "to others: make a profile with the line " EXPORT_TEXT ", and name it in AWS_PROFILE",
            files->profile);
    }
    if (session->user[0] == '\0' || session->secret[0] == '\0') {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the AWS profile %s has only one of aws_access_key_id and aws_secret_access_key",
                         files->profile);
    }
    source->kind = WEFT_S3_FROM_FILES;
    source->files = *files;
    snprintf(source->name, sizeof source->name, "profile %s", files->profile);
    return WEFT_OK;
}

/* The token goes to whoever answers there: over TLS, or to a service of this machine. */
static bool is_trusted(const char *text) {
    static const char *const services[] = {"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "[::1]",
                                           "localhost"};
    CURLU *url = curl_url();
    char *scheme = NULL;
    char *host = NULL;
    bool known = url != NULL && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK &&
                 curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                 curl_url_get(url, CURLUPART_HOST, &host, 0) == CURLUE_OK;
    bool trusted = known && strcmp(scheme, "https") == 0;
    struct in_addr address;
    if (known && strcmp(scheme, "http") == 0) {
        trusted = inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
        for (size_t i = 0; i < sizeof services / sizeof *services; i++) {
            trusted = trusted || strcmp(host, services[i]) == 0;
        }
    }
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(url);
    return trusted;
}

static weft_status choose_container(weft_context *context, const char *relative, const char *full,
                                    weft_s3_source *source) {
    source->kind = WEFT_S3_FROM_CONTAINER;
    source->url = relative != NULL ? weft_join_texts(context, "http://169.254.170.2", relative, "")
                                   : copy(context, full);
    if (source->url == NULL) {
        return WEFT_NO_MEMORY;
    }
    if ((relative != NULL && *relative != '/') || !is_trusted(source->url)) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "AWS_CONTAINER_CREDENTIALS_%s: a path that begins with /, or else https, or http to "
            "this machine or the address of a container's service",
            relative != NULL ? "RELATIVE_URI" : "FULL_URI");
    }
    const char *file = weft_s3_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", NULL);
    const char *token = weft_s3_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN", NULL);
    source->token_file = copy(context, file);
    source->token = file == NULL ? copy(context, token) : NULL;
    snprintf(source->name, sizeof source->name, "container service at %.200s", source->url);
    bool all = (file == NULL || source->token_file != NULL) &&
               (file != NULL || token == NULL || source->token != NULL);
    return all ? WEFT_OK : WEFT_NO_MEMORY;
}

static weft_status choose_instance(weft_context *context, const weft_s3_files *files,
                                   weft_s3_source *source) {
    const char *disabled = weft_s3_variable("AWS_EC2_METADATA_DISABLED", NULL);
    const char *mode = weft_s3_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", NULL);
    const char *given = weft_s3_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", NULL);
    bool six = mode != NULL && strcasecmp(mode, "IPv6") == 0;
    if (disabled != NULL && strcasecmp(disabled, "true") == 0) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "a store in S3 needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "and AWS_SESSION_TOKEN for temporary ones, or name a profile of %s or %s in "
            "AWS_PROFILE",
            files->credentials, files->config);
    }
    source->kind = WEFT_S3_FROM_INSTANCE;
    source->url = copy(context, given != NULL ? given
                                : six         ? "http://[fd00:ec2::254]"
                                              : "http://169.254.169.254");
    if (source->url == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t length = strlen(source->url);
    while (length > 0 && source->url[length - 1] == '/') {
        source->url[--length] = '\0';
    }
    snprintf(source->name, sizeof source->name, "instance metadata at %.200s", source->url);
    return WEFT_OK;
}

static weft_status choose(weft_context *context, const weft_s3_files *files, const weft_s3_profile *profile,
                          const char *region, weft_s3_source *source) {
    const char *token_file = weft_s3_variable("AWS_WEB_IDENTITY_TOKEN_FILE", NULL);
    const char *role = weft_s3_variable("AWS_ROLE_ARN", NULL);
    const char *relative = weft_s3_variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", NULL);
    const char *full = weft_s3_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI", NULL);
    if (weft_s3_variable("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") != NULL) {
        return choose_environment(context, source);
    }
    if (has_credentials(profile)) {
        return choose_profile(context, files, profile, region, source);
    }
    if (files->named && !profile->found) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "there is no profile %s, which AWS_PROFILE names, in %s or %s", files->profile,
                         files->credentials, files->config);
    }
    if (token_file != NULL && role != NULL) {
        return choose_web_identity(context, region, role, token_file,
                                   weft_s3_variable("AWS_ROLE_SESSION_NAME", NULL), source);
    }
    if (relative != NULL || full != NULL) {
        return choose_container(context, relative, full, source);
    }
    return choose_instance(context, files, source);
}

weft_status weft_s3_source_choose(weft_context *context, const weft_s3_files *files,
                                  const weft_s3_profile *profile, const char *region, const char *ca_file,
                                  weft_s3_source *source) {
    weft_status status = choose(context, files, profile, region, source);
    if (status == WEFT_OK && ca_file != NULL) {
        source->ca_file = copy(context, ca_file);
        status = source->ca_file != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    return status;
}

weft_status weft_s3_source_ask(weft_context *context, const weft_s3_source *source,
                               weft_s3_session *session) {
    switch (source->kind) {
    case WEFT_S3_FROM_FILES:
        return ask_files(context, source, session);
    case WEFT_S3_FROM_PROCESS:
        return weft_s3_ask_process(context, source, session);
    case WEFT_S3_FROM_WEB_IDENTITY:
        return weft_s3_ask_web_identity(context, source, session);
    case WEFT_S3_FROM_CONTAINER:
        return weft_s3_ask_container(context, source, session);
    case WEFT_S3_FROM_INSTANCE:
        return weft_s3_ask_instance(context, source, session);
    default:
        *session = source->session;
        return WEFT_OK;
    }
}

void weft_s3_source_close(weft_context *context, weft_s3_source *source) {
    explicit_bzero(&source->session, sizeof source->session);
    weft_release(context, source->command);
    weft_release(context, source->role);
    weft_release(context, source->role_session);
    weft_release(context, source->token_file);
    weft_secret_release(context, source->token);
    weft_release(context, source->url);
    weft_release(context, source->ca_file);
}
