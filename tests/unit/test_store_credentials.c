/* SPDX-License-Identifier: Apache-2.0
 *
 * test_store_credentials.c: what is read of profiles, of credentials in JSON and XML, and of their dates;
 * and which of it is refused; and programs that do not end. (Where they come from:
 * tests/cli/test_credentials_s3.sh.)
 */
#include "../../lib/store/s3/s3_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static weft_context *context;

static int set_up(void **state) {
    (void)state;
    return weft_context_create(NULL, &context) == WEFT_OK ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    weft_context_destroy(context);
    return 0;
}

static void read_profile(const char *text, bool config, weft_s3_profile *profile) {
    weft_s3_profile_read(text, strlen(text), "work", config, profile);
}

static void test_profiles(void **state) {
    (void)state;
    static const char credentials[] =
        "aws_access_key_id = outside\n[other]\naws_access_key_id = other\n"
        "[ work ] ; here\r\nAWS_Access_Key_ID=AKIA1\t# why\r\n"
        "aws_secret_access_key = a/b+c=d#e\r\n[work2]\naws_session_token = no";
    static const char config[] = "[work]\nregion = wrong\n[profile other]\nregion = wrong\n[profile work]\n"
                                 "aws_access_key_id = later\nregion=eu-west-1\ns3 =\n  region = nested\n"
                                 "credential_process = \"a b\" c # d\nnothing";
    weft_s3_profile *profile = calloc(1, sizeof *profile);
    assert_non_null(profile);
    read_profile(credentials, false, profile);
    read_profile(config, true, profile);
    assert_true(profile->found && !profile->unfit && !profile->asks_more);
    assert_string_equal(profile->session.user, "AKIA1");
    assert_string_equal(profile->session.secret, "a/b+c=d#e");
    assert_string_equal(profile->session.token, "");
    assert_string_equal(profile->region, "eu-west-1");
    assert_string_equal(profile->command, "\"a b\" c # d");

    memset(profile, 0, sizeof *profile);
    read_profile("[work]\nsso_session = x\naws_secret_access_key = a\001b", false, profile);
    assert_true(profile->asks_more && profile->unfit);
    assert_string_equal(profile->session.secret, "");

    memset(profile, 0, sizeof *profile);
    char *longest = malloc(sizeof profile->session.token + 32);
    assert_non_null(longest);
    memcpy(longest, "[work]\naws_session_token=", 25);
    memset(longest + 25, 'x', sizeof profile->session.token);
    weft_s3_profile_read(longest, 25 + sizeof profile->session.token, "work", false, profile);
    assert_true(profile->unfit);
    memset(profile, 0, sizeof *profile);
    weft_s3_profile_read(longest, 25 + sizeof profile->session.token - 1, "work", false, profile);
    assert_false(profile->unfit);
    assert_int_equal(strlen(profile->session.token), sizeof profile->session.token - 1);
    free(longest);
    free(profile);
}

static void test_dates(void **state) {
    (void)state;
    static const struct {
        const char *text;
        long date;
    } cases[] = {
        {"1970-01-02T00:00:00Z", 86400},
        {"2026-10-04T12:00:00.123456Z", 1791115200},
        {"2026-10-04T13:30:00+01:30", 1791115200},
        {"2026-10-04T07:00:00-05:00", 1791115200},
        {"2026-10-04T12:00:00", -1},
        {"2026-10-04 12:00:00Z", -1},
        {"2026-13-04T12:00:00Z", -1},
        {"2026-10-04T12:00:00+1:00", -1},
        {"2026-10-04T12:00:00Z ", -1},
        {"", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        time_t date = -1;
        bool good = weft_s3_date_read(cases[i].text, &date);
        assert_int_equal(good, cases[i].date >= 0);
        if (good) {
            assert_int_equal(date, cases[i].date);
        }
    }
}

static void test_json(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *token; /* NULL: refused */
    } cases[] = {
        {"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\"}", ""},
        {"{\"Version\":1,\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"SessionToken\":\"c\"}", "c"},
        {"{\"Code\":\"Success\",\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Token\":\"d\","
         "\"Expiration\":\"2026-10-04T12:00:00Z\"}",
         "d"},
        {"{\"Version\":2,\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\"}", NULL},
        {"{\"Code\":\"Failed\",\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\"}", NULL},
        {"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"\"}", NULL},
        {"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b c\"}", NULL},
        {"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Token\":\"x\\r\\nHost: y\"}", NULL},
        {"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Expiration\":\"soon\"}", NULL},
        {"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Expiration\":5}", NULL},
        {"[]", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_s3_session session;
        weft_status status =
            weft_s3_session_read_json(context, "here", cases[i].text, strlen(cases[i].text), &session);
        assert_int_equal(status, cases[i].token != NULL ? WEFT_OK : WEFT_REMOTE_FAILED);
        assert_string_equal(session.token, cases[i].token != NULL ? cases[i].token : "");
    }
}

static bool ask_often(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    unsigned *asked = opaque;
    (void)phase;
    (void)done;
    (void)total;
    return ++*asked < 20;
}

/* One that says all that it has to say and does not end is not waited for, once the caller has enough. */
static void test_process_that_stays(void **state) {
    (void)state;
    static char command[] = "exec >&-; exec sleep 1000";
    unsigned asked = 0;
    const weft_context_options options = {
        .size = sizeof options, .threads = 1, .progress = ask_often, .progress_opaque = &asked};
    weft_context *asking = NULL;
    weft_s3_session session;
    weft_s3_source source = {.kind = WEFT_S3_FROM_PROCESS, .name = "program", .command = command};
    assert_int_equal(weft_context_create(&options, &asking), WEFT_OK);
    assert_int_equal(weft_s3_ask_process(asking, &source, &session), WEFT_CANCELLED);
    weft_context_destroy(asking);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profiles),
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_process_that_stays),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
