/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what credentials are read from: any bytes, as a file of profiles of either kind, as the JSON of a
 * program or a service, and as the XML of STS. What comes out must be terminated and fit to stand in a line
 * of a request.
 */
#include "../../lib/store/s3/s3_keys.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void check_text(const char *text, size_t capacity, char lowest) {
    size_t length = strnlen(text, capacity);
    require(length < capacity);
    for (size_t i = 0; i < length; i++) {
        require(text[i] >= lowest && text[i] < 0x7f);
    }
}

static void check_session(const weft_s3_session *session) {
    check_text(session->user, sizeof session->user, 0x21);
    check_text(session->secret, sizeof session->secret, 0x21);
    check_text(session->token, sizeof session->token, 0x21);
}

static void check_profile(const char *text, size_t size, bool config) {
    weft_s3_profile *profile = calloc(1, sizeof *profile);
    require(profile != NULL);
    weft_s3_profile_read(text, size, "work", config, profile);
    check_session(&profile->session);
    check_text(profile->command, sizeof profile->command, 0x20);
    check_text(profile->role, sizeof profile->role, 0x21);
    check_text(profile->token_file, sizeof profile->token_file, 0x20);
    check_text(profile->role_session, sizeof profile->role_session, 0x21);
    check_text(profile->region, sizeof profile->region, 0x21);
    check_text(profile->endpoint, sizeof profile->endpoint, 0x21);
    require(profile->found || profile->session.user[0] == '\0');
    free(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static weft_context *context;
    if (context == NULL) {
        require(weft_context_create(NULL, &context) == WEFT_OK);
    }
    /* A copy of its own size, so that reading beyond it is noticed. */
    char *text = malloc(size > 0 ? size : 1);
    require(text != NULL);
    if (size > 0) {
        memcpy(text, data, size);
    }
    check_profile(text, size, false);
    check_profile(text, size, true);
    weft_s3_session session;
    if (weft_s3_session_read_json(context, "test", text, size, &session) == WEFT_OK) {
        require(session.user[0] != '\0' && session.secret[0] != '\0');
    }
    check_session(&session);
    if (weft_s3_session_read(text, size, &session)) {
        require(session.user[0] != '\0' && session.secret[0] != '\0' && session.expires);
    }
    check_session(&session);
    free(text);
    return 0;
}
