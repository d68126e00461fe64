/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_fail.c: the codes of S3's errors as statuses and texts that say what to do. Without a code (HEAD has
 * no body) the HTTP status has to do; without an answer, http_fail.c speaks.
 */
#include "s3.h"

#include "../../base/context.h"
#include "s3_answer.h"

#include <stdio.h>
#include <string.h>

#define DENIED_TEXT                                                                                        \
    "the service does not allow this to these credentials (AWS_ACCESS_KEY_ID); let them have "             \
    "s3:GetObject, s3:PutObject, "                                                                         \
    "s3:DeleteObject and s3:ListBucket (without the last one, what is missing looks forbidden too)"
#define TOKEN_TEXT                                                                                         \
    "the temporary credentials are no longer valid; set new ones in AWS_ACCESS_KEY_ID, "                   \
    "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or use a source that renews them, such as a profile"

static weft_s3_error read_error(const weft_http_exchange *exchange) {
    weft_s3_error error;
    (void)weft_s3_error_read(exchange->remark, exchange->remark_size, &error);
    return error;
}

bool weft_s3_says(const weft_http_exchange *exchange, const char *code) {
    weft_s3_error error = read_error(exchange);
    return strcmp(error.code, code) == 0;
}

/* Answers to a POST are read; one that says neither that it was done nor why not was cut short. */
static bool is_garbled(const weft_http_exchange *exchange, const weft_s3_error *error) {
    return exchange->method == WEFT_HTTP_POST && weft_http_succeeded(&exchange->answer) &&
           error->code[0] == '\0';
}

/* The service does not know the credentials, or no longer. Others may be had by now. */
static bool is_out_of_date(const weft_s3_error *error) {
    static const char *const codes[] = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken",
                                        "InvalidAccessKeyId"};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (strcmp(error->code, codes[i]) == 0) {
            return true;
        }
    }
    return false;
}

bool weft_s3_passing(weft_http_client *client, const weft_http_exchange *exchange) {
    static const char *const passing[] = {"InternalError",
                                          "SlowDown",
                                          "ServiceUnavailable",
                                          "RequestTimeout",
                                          "OperationAborted",
                                          "TooManyRequests",
                                          "ConditionalRequestConflict",
                                          "Throttling",
                                          "RequestThrottled",
                                          "BandwidthExceeded",
                                          "BadDigest", /* what came is not what was sent */
                                          "IncompleteBody",
                                          "XAmzContentSHA256Mismatch"};
    weft_s3_error error = read_error(exchange);
    if (weft_http_passing(client, exchange) || is_garbled(exchange, &error)) {
        return true;
    }
    if (is_out_of_date(&error)) {
        return weft_s3_credentials_doubt(&((weft_s3_store *)client)->credentials, exchange->proof);
    }
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        if (strcmp(error.code, passing[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- texts ---- */

typedef struct meaning {
    const char *code;
    weft_status status;
    const char *text;
} meaning;

static const meaning by_code[] = {
    {"NoSuchKey", WEFT_NOT_FOUND, "there is no such object"},
    {"NoSuchBucket", WEFT_INVALID_ARGUMENT,
     "there is no such bucket; create it, or check the store's URL, AWS_ENDPOINT_URL_S3 and AWS_REGION"},
    {"InvalidBucketName", WEFT_INVALID_ARGUMENT,
     "the service does not take that name for a bucket; check the store's URL"},
    {"AccessDenied", WEFT_REMOTE_DENIED, DENIED_TEXT},
    {"AllAccessDisabled", WEFT_REMOTE_DENIED, DENIED_TEXT},
    {"AccountProblem", WEFT_REMOTE_DENIED, "the account has a problem; ask the service"},
    {"SignatureDoesNotMatch", WEFT_REMOTE_DENIED,
     "the signature is wrong; check that AWS_SECRET_ACCESS_KEY belongs to AWS_ACCESS_KEY_ID, and "
     "AWS_REGION"},
    {"InvalidAccessKeyId", WEFT_REMOTE_DENIED,
     "the service does not know the key; check AWS_ACCESS_KEY_ID, and for a temporary one "
     "AWS_SESSION_TOKEN"},
    {"ExpiredToken", WEFT_REMOTE_DENIED, TOKEN_TEXT},
    {"TokenRefreshRequired", WEFT_REMOTE_DENIED, TOKEN_TEXT},
    {"InvalidToken", WEFT_REMOTE_DENIED, TOKEN_TEXT},
    {"RequestTimeTooSkewed", WEFT_REMOTE_DENIED,
     "this machine's clock differs too much from the service's; set it right"},
    {"RequestExpired", WEFT_REMOTE_DENIED,
     "this machine's clock differs too much from the service's; set it right"},
    {"PreconditionFailed", WEFT_CONFLICT, "somebody else wrote there in between"},
    {"NotImplemented", WEFT_UNSUPPORTED, "the service does not do that"},
    {"MethodNotAllowed", WEFT_UNSUPPORTED, "the service does not do that there"},
    {"EntityTooLarge", WEFT_LIMIT_EXCEEDED, "the object is larger than the service takes"},
    {"QuotaExceeded", WEFT_NO_SPACE, "the quota there is used up"},
    {"XMinioStorageFull", WEFT_NO_SPACE, "the service has no space left"},
    {"SlowDown", WEFT_REMOTE_FAILED, "the service asks for fewer requests; try again later"},
    {"InvalidObjectState", WEFT_REMOTE_FAILED,
     "the object was moved to an archive; restore it, and leave the store out of such rules"},
};

static const meaning by_status[] = {
    {"401", WEFT_REMOTE_DENIED, DENIED_TEXT},
    {"403", WEFT_REMOTE_DENIED, DENIED_TEXT},
    {"404", WEFT_NOT_FOUND, "there is no such object"},
    {"412", WEFT_CONFLICT, "somebody else wrote there in between"},
    {"501", WEFT_UNSUPPORTED, "the service does not do that"},
    {"507", WEFT_NO_SPACE, "the service has no space left"},
};

static const meaning *find_meaning(const meaning *meanings, size_t count, const char *code) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(meanings[i].code, code) == 0) {
            return &meanings[i];
        }
    }
    return NULL;
}

typedef struct failure {
    weft_status status;
    char text[640];
} failure;

/* The bucket is elsewhere, or the request was signed for another region than the service's. */
static bool explain_region(const weft_http_answer *answer, const weft_s3_error *error, failure *failure) {
    const char *region = answer->region[0] != '\0' ? answer->region : error->region;
    bool redirected = answer->status >= 300 && answer->status < 400;
    bool misplaced = redirected || strcmp(error->code, "AuthorizationHeaderMalformed") == 0 ||
                     strcmp(error->code, "PermanentRedirect") == 0 ||
                     strcmp(error->code, "TemporaryRedirect") == 0;
    if (!misplaced) {
        return false;
    }
    failure->status = WEFT_INVALID_ARGUMENT;
    if (region[0] != '\0') {
        snprintf(failure->text, sizeof(failure->text),
                 "the bucket is in the region %.60s; set AWS_REGION=%.60s", region, region);
    } else if (error->endpoint[0] != '\0' || answer->location[0] != '\0') {
        snprintf(failure->text, sizeof(failure->text),
                 "the service points to %.250s, which is not followed; set AWS_REGION or "
                 "AWS_ENDPOINT_URL_S3 for the place where the bucket is",
                 error->endpoint[0] != '\0' ? error->endpoint : answer->location);
    } else {
        snprintf(
            failure->text, sizeof(failure->text),
            "the bucket is elsewhere; set AWS_REGION or AWS_ENDPOINT_URL_S3 for the place where it is");
    }
    return true;
}

static failure explain_exchange(const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    weft_s3_error error = read_error(exchange);
    failure failure = {.status = WEFT_REMOTE_FAILED};
    if (explain_region(answer, &error, &failure)) {
        return failure;
    }
    const meaning *meaning = find_meaning(by_code, sizeof(by_code) / sizeof(by_code[0]), error.code);
    if (meaning == NULL && error.code[0] == '\0') {
        char number[24];
        snprintf(number, sizeof(number), "%ld", answer->status);
        meaning = find_meaning(by_status, sizeof(by_status) / sizeof(by_status[0]), number);
    }
    if (meaning != NULL) {
        failure.status = meaning->status;
        snprintf(failure.text, sizeof(failure.text), "%s%s%s%s", meaning->text,
                 error.code[0] != '\0' ? " (" : "", error.code, error.code[0] != '\0' ? ")" : "");
    } else if (error.code[0] != '\0') {
        snprintf(failure.text, sizeof(failure.text), "the service answers %ld %s: %s", answer->status,
                 error.code, error.message);
    } else {
        snprintf(failure.text, sizeof(failure.text),
                 "the service answers %ld, and not as S3 does; check AWS_ENDPOINT_URL_S3", answer->status);
    }
    return failure;
}

weft_status weft_s3_fail(weft_context *context, const weft_http_exchange *exchange,
                         const weft_http_settings *settings, unsigned attempts) {
    bool answered = exchange->answer.status >= 300 ||
                    (exchange->method == WEFT_HTTP_POST && exchange->answer.code == CURLE_OK);
    if (!answered) {
        return weft_http_fail(context, exchange, settings, attempts);
    }
    failure failure = explain_exchange(exchange);
    char tried[32] = "";
    if (attempts > 1) {
        snprintf(tried, sizeof(tried), " (%u attempts)", attempts);
    }
    /* without the query: it names uploads, not objects */
    size_t length = strcspn(exchange->url, "?");
    return weft_fail(context, failure.status, "%s %.*s: %s%s", weft_http_method_name(exchange->method),
                     (int)(length < 300 ? length : 300), exchange->url, failure.text, tried);
}
