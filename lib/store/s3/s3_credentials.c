/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_credentials.c: keeping credentials fresh.
 *
 * One thread asks the source, the others go on with what there is as long as that is good, and wait for it
 * only after. Dates of expiry are of the world's clock; they become times of the one that only goes forward
 * as soon as they come.
 */
#include "s3_credentials.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <stdio.h>
#include <string.h>

/* Credentials of an hour are renewed five minutes before they expire, short ones when two thirds of their
 * time have passed. */
static const double MOST_MARGIN = 300;
static const double MARGIN_SHARE = 1.0 / 3;
/* Files say nothing of expiry: they are read again that often. */
static const double FILE_SECONDS = 60;
/* Between two questions to a source that has no better answer. */
static const double LEAST_SECONDS = 1;
static const double FOR_EVER = 1e18;
static const double WAIT_SECONDS = 0.1;

/* ---- what was got ---- */

static bool is_same(const weft_s3_session *one, const weft_s3_session *other) {
    return strcmp(one->user, other->user) == 0 && strcmp(one->secret, other->secret) == 0 &&
           strcmp(one->token, other->token) == 0;
}

static void set_times(weft_s3_credentials *credentials, double now) {
    const weft_s3_session *session = &credentials->session;
    credentials->ends = FOR_EVER;
    credentials->due = credentials->source.kind == WEFT_S3_FROM_FILES ? now + FILE_SECONDS : FOR_EVER;
    if (session->expires) {
        double left = (double)session->expiration - (double)weft_clock_date() / 1000;
        double margin = left * MARGIN_SHARE < MOST_MARGIN ? left * MARGIN_SHARE : MOST_MARGIN;
        double wait = left - margin > LEAST_SECONDS ? left - margin : LEAST_SECONDS;
        /* What is past its date is used all the same, since this machine's clock may be the wrong one; the
         * service decides. */
        credentials->ends = left > 0 ? now + left : FOR_EVER;
        credentials->due = now + wait;
    }
}

static void keep(weft_s3_credentials *credentials, const weft_s3_session *session) {
    if (credentials->serial == 0 || !is_same(&credentials->session, session)) {
        credentials->serial++;
    }
    credentials->session = *session;
    snprintf(credentials->token_line, sizeof credentials->token_line, "x-amz-security-token: %s",
             session->token);
    set_times(credentials, weft_clock_now());
}

/* ---- renewal ---- */

static bool is_good(const weft_s3_credentials *credentials, double now) {
    return credentials->serial > 0 && !credentials->stale && now < credentials->ends;
}

/* The mutex is held, but not while the source is asked. */
static weft_status renew(weft_s3_credentials *credentials, weft_context *context) {
    weft_s3_session *session = weft_allocate_zeroed(context, 1, sizeof *session);
    if (session == NULL) {
        return WEFT_NO_MEMORY;
    }
    credentials->renewing = true;
    pthread_mutex_unlock(&credentials->mutex);
    weft_status status = weft_s3_source_ask(context, &credentials->source, session);
    pthread_mutex_lock(&credentials->mutex);
    credentials->renewing = false;
    if (status == WEFT_OK) {
        keep(credentials, session);
        credentials->stale = false;
    } else {
        double now = weft_clock_now();
        double left = (credentials->ends - now) * MARGIN_SHARE;
        double wait = left < LEAST_SECONDS ? LEAST_SECONDS : left < FILE_SECONDS ? left : FILE_SECONDS;
        credentials->due = now + wait;
    }
    pthread_cond_broadcast(&credentials->changed);
    explicit_bzero(session, sizeof *session);
    weft_release(context, session);
    return status;
}

/* The mutex is held. Ends with good credentials, or with the reason why there are none. */
static weft_status freshen(weft_s3_credentials *credentials, weft_context *context) {
    for (;;) {
        double now = weft_clock_now();
        bool good = is_good(credentials, now);
        bool wanted = !good || now >= credentials->due;
        if (wanted && !credentials->renewing) {
            weft_status status = renew(credentials, context);
            return status == WEFT_OK || is_good(credentials, weft_clock_now()) ? WEFT_OK : status;
        }
        if (good) {
            return WEFT_OK;
        }
        (void)weft_condition_wait(&credentials->changed, &credentials->mutex, now + WAIT_SECONDS);
        pthread_mutex_unlock(&credentials->mutex);
        weft_status status = weft_progress_ask(context);
        pthread_mutex_lock(&credentials->mutex);
        if (status != WEFT_OK) {
            return status;
        }
    }
}

static weft_status hold_credentials(void *opaque, weft_context *context, weft_http_proof *proof) {
    weft_s3_credentials *credentials = opaque;
    pthread_mutex_lock(&credentials->mutex);
    weft_status status = freshen(credentials, context);
    if (status != WEFT_OK) {
        pthread_mutex_unlock(&credentials->mutex);
        return status;
    }
    const weft_s3_session *session = &credentials->session;
    proof->is_signed = true;
    proof->signing.scheme = credentials->scheme;
    proof->signing.user = session->user;
    proof->signing.secret = session->secret;
    proof->signing.token = session->token[0] != '\0' ? credentials->token_line : NULL;
    proof->serial = credentials->serial;
    return WEFT_OK;
}

static void release_credentials(void *opaque) {
    weft_s3_credentials *credentials = opaque;
    pthread_mutex_unlock(&credentials->mutex);
}

bool weft_s3_credentials_doubt(weft_s3_credentials *credentials, uint64_t serial) {
    pthread_mutex_lock(&credentials->mutex);
    bool others = credentials->serial != serial || credentials->stale;
    /* The environment of a process does not change, and a source that gave the same again has no others. */
    if (!others && credentials->doubted != serial && credentials->source.kind != WEFT_S3_FROM_ENVIRONMENT) {
        credentials->doubted = serial;
        credentials->stale = true;
        others = true;
    }
    pthread_mutex_unlock(&credentials->mutex);
    return others;
}

/* ---- life ---- */

weft_status weft_s3_credentials_open(weft_s3_credentials *credentials, weft_context *context,
                                     const weft_s3_files *files, const weft_s3_profile *profile,
                                     const char *region, const char *ca_file) {
    credentials->context = context;
    credentials->identity = (weft_http_identity){
        .hold = hold_credentials, .release = release_credentials, .opaque = credentials};
    snprintf(credentials->scheme, sizeof credentials->scheme, "aws:amz:%s:s3", region);
    pthread_mutex_init(&credentials->mutex, NULL);
    weft_condition_open(&credentials->changed);
    return weft_s3_source_choose(context, files, profile, region, ca_file, &credentials->source);
}

void weft_s3_credentials_close(weft_s3_credentials *credentials) {
    if (credentials->context == NULL) {
        return;
    }
    weft_s3_source_close(credentials->context, &credentials->source);
    explicit_bzero(&credentials->session, sizeof credentials->session);
    explicit_bzero(credentials->token_line, sizeof credentials->token_line);
    pthread_cond_destroy(&credentials->changed);
    pthread_mutex_destroy(&credentials->mutex);
}
