/* SPDX-License-Identifier: Apache-2.0
 *
 * http_fail.c: curl's codes, HTTP's numbers and OpenSSL's verdicts on certificates, as statuses and texts
 * that say what to do.
 */
#include "http_client.h"

#include "../../base/context.h"

#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <string.h>

static bool passing_status(long status) {
    return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 ||
           status == 503 || status == 504 || (status >= 520 && status <= 530);
}

bool weft_http_passing(weft_http_client *client, const weft_http_exchange *exchange) {
    (void)client;
    const weft_http_answer *answer = &exchange->answer;
    if (exchange->misranged || answer->encoded) {
        return false;
    }
    if (exchange->overrun) {
        return true; /* two that announce different things, of which one may be behind the other */
    }
    if (answer->status >= 300) {
        return passing_status(answer->status);
    }
    switch (answer->code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_SEND_FAIL_REWIND:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_UPLOAD_FAILED:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_AGAIN:
        return true;
    default:
        return false;
    }
}

bool weft_http_unheard(const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    if (answer->status != 0) {
        return answer->status >= 300 && answer->status < 500 && answer->status != 408;
    }
    switch (answer->code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return true;
    default:
        return false;
    }
}

/* ---- texts ---- */

typedef struct failure {
    weft_status status;
    char text[768];
} failure;

static failure failure_of(weft_status status, const char *text) {
    failure failure = {.status = status};
    snprintf(failure.text, sizeof(failure.text), "%s", text);
    return failure;
}

static failure explain_certificate(const weft_http_answer *answer) {
    failure failure = {.status = WEFT_REMOTE_DENIED};
    switch (answer->certificate) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return failure_of(WEFT_REMOTE_DENIED,
                          "the server's certificate has expired; renew it there, or set this "
                          "machine's clock right");
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return failure_of(WEFT_REMOTE_DENIED,
                          "the server's certificate is not valid yet; set the clocks of both "
                          "machines right");
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        return failure_of(WEFT_REMOTE_DENIED,
                          "the server's certificate comes from an authority that is not trusted "
                          "here; give that authority's certificate with --ca-file");
    case X509_V_OK:
    case X509_V_ERR_UNSPECIFIED: /* curl compares names itself, and leaves this */
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        snprintf(failure.text, sizeof(failure.text),
                 "the server's certificate is for another host (%s); use the name that it was made for, or "
                 "have it made for this one",
                 answer->text);
        return failure;
    default:
        return failure_of(WEFT_REMOTE_DENIED, answer->text);
    }
}

/* What curl says of the network. */
static failure explain_code(const weft_http_exchange *exchange, const weft_http_settings *settings) {
    const weft_http_answer *answer = &exchange->answer;
    const char *said = answer->text[0] != '\0' ? answer->text : curl_easy_strerror(answer->code);
    failure failure = {.status = WEFT_REMOTE_FAILED};
    if (exchange->stalled) {
        snprintf(failure.text, sizeof(failure.text), "%s for %g seconds",
                 exchange->moved > 0 ? "next to nothing moved" : "no byte moved", settings->stall_seconds);
        return failure;
    }
    switch (answer->code) {
    case CURLE_PEER_FAILED_VERIFICATION:
        return explain_certificate(answer);
    case CURLE_SSL_CACERT_BADFILE:
        snprintf(failure.text, sizeof(failure.text), "cannot read certificates from %s",
                 settings->ca_file != NULL ? settings->ca_file : "the system's file");
        failure.status = WEFT_INVALID_ARGUMENT;
        return failure;
    case CURLE_COULDNT_CONNECT:
        if (answer->system_error != 0) {
            char buffer[128];
            snprintf(failure.text, sizeof(failure.text), "cannot connect: %s; is the server running there?",
                     strerror_r((int)answer->system_error, buffer, sizeof(buffer)));
            return failure;
        }
        return failure_of(WEFT_REMOTE_FAILED, said);
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return failure_of(WEFT_REMOTE_FAILED,
                          "what answers there does not speak HTTP; check the address and port");
    case CURLE_ABORTED_BY_CALLBACK:
        return failure_of(WEFT_CANCELLED, "the store was closed");
    case CURLE_OUT_OF_MEMORY:
        return failure_of(WEFT_NO_MEMORY, "out of memory in libcurl");
    default:
        snprintf(failure.text, sizeof(failure.text), "%s", said);
        return failure;
    }
}

static failure explain_status(const weft_http_exchange *exchange, const weft_http_settings *settings) {
    const weft_http_answer *answer = &exchange->answer;
    failure failure = {.status = WEFT_REMOTE_FAILED};
    switch (answer->status) {
    case 401:
    case 403:
        return failure_of(
            WEFT_REMOTE_DENIED,
            settings->identity == NULL
                ? "the server wants a token; give it with --token-file or WEFT_TOKEN"
                : "the server does not accept the token for this; give another with --token-file or "
                  "WEFT_TOKEN");
    case 404:
    case 410:
        return failure_of(WEFT_NOT_FOUND, "there is no such object");
    case 405:
    case 501:
        return failure_of(WEFT_UNSUPPORTED,
                          "the server does not take such requests; it must allow PUT and DELETE "
                          "(nginx: dav_methods), or be a `weft serve`");
    case 409:
        return failure_of(WEFT_REMOTE_FAILED,
                          "the server cannot make that name (nginx: create_full_put_path on)");
    case 412:
        return failure_of(WEFT_CONFLICT, "somebody else wrote there in between");
    case 413:
        return failure_of(WEFT_LIMIT_EXCEEDED,
                          "the object is larger than the server takes; raise the limit there "
                          "(nginx: client_max_body_size)");
    case 421:
        return failure_of(WEFT_REMOTE_DENIED,
                          "the server does not go by that name; use its address, or give it the "
                          "name with --host");
    case 507:
        return failure_of(WEFT_NO_SPACE,
                          "the server has no space left: its disk is full, or its --max-bytes is reached");
    default:
        break;
    }
    if (answer->status >= 300 && answer->status < 400 && answer->location[0] != '\0') {
        snprintf(failure.text, sizeof(failure.text),
                 "the server points to %s, and redirections are not followed; open the store there",
                 answer->location);
    } else {
        snprintf(failure.text, sizeof(failure.text), "the server answers %ld", answer->status);
    }
    return failure;
}

static failure explain_exchange(const weft_http_exchange *exchange, const weft_http_settings *settings) {
    const weft_http_answer *answer = &exchange->answer;
    if (answer->status >= 300) {
        return explain_status(exchange, settings);
    }
    if (answer->encoded) {
        return failure_of(WEFT_REMOTE_FAILED, "the server compresses objects, which it was not asked to");
    }
    if (exchange->misranged) {
        return failure_of(WEFT_REMOTE_FAILED, "the server sends another range than it was asked for");
    }
    if (exchange->overrun) {
        return failure_of(WEFT_REMOTE_FAILED, "the server sends more than it announced");
    }
    if (answer->code != CURLE_OK && !exchange->satisfied) {
        return explain_code(exchange, settings);
    }
    if (exchange->method == WEFT_HTTP_GET && answer->status == 200) {
        return failure_of(WEFT_REMOTE_FAILED, "the server does not say how long the object is");
    }
    return explain_status(exchange, settings);
}

const char *weft_http_method_name(weft_http_method method) {
    switch (method) {
    case WEFT_HTTP_HEAD:
        return "HEAD";
    case WEFT_HTTP_PUT:
        return "PUT";
    case WEFT_HTTP_POST:
        return "POST";
    case WEFT_HTTP_DELETE:
        return "DELETE";
    default:
        return "GET";
    }
}

weft_status weft_http_fail(weft_context *context, const weft_http_exchange *exchange,
                           const weft_http_settings *settings, unsigned attempts) {
    failure failure = explain_exchange(exchange, settings);
    char tried[32] = "";
    if (attempts > 1) {
        snprintf(tried, sizeof(tried), " (%u attempts)", attempts);
    }
    return weft_fail(context, failure.status, "%s %.400s: %.500s%s",
                     weft_http_method_name(exchange->method), exchange->url, failure.text, tried);
}
