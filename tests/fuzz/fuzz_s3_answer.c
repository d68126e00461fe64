/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the answers of an S3 service: any bytes, read as each kind of answer in turn. What comes out must
 * be terminated, and fit to stand in a request or in a line for people.
 */
#include "../../lib/store/s3/s3_answer.h"

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

static bool visit(void *opaque, const char *key, uint64_t size, time_t modified) {
    unsigned *left = opaque;
    (void)size;
    (void)modified;
    require(key[0] != '\0' && strlen(key) < WEFT_S3_TEXT_MAX);
    return (*left)-- > 1;
}

static void check_list(const char *text, size_t size, unsigned most) {
    char next[WEFT_S3_TOKEN_MAX];
    memset(next, 'x', sizeof(next));
    bool whole = weft_s3_list_read(text, size, visit, &most, next);
    check_text(next, sizeof(next), 0x21);
    require(most > 0 || (whole && next[0] == '\0'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* A copy of its own size, so that reading beyond it is noticed. */
    char *text = malloc(size > 0 ? size : 1);
    require(text != NULL);
    if (size > 0) {
        memcpy(text, data, size);
    }
    weft_s3_error error;
    bool has_code = weft_s3_error_read(text, size, &error);
    require(has_code == (error.code[0] != '\0'));
    check_text(error.code, sizeof(error.code), 0x21);
    check_text(error.message, sizeof(error.message), 0x20);
    check_text(error.region, sizeof(error.region), 0x21);
    check_text(error.endpoint, sizeof(error.endpoint), 0x21);
    char upload[WEFT_S3_UPLOAD_MAX];
    require(!weft_s3_upload_read(text, size, upload) || upload[0] != '\0');
    check_text(upload, sizeof(upload), 0x21);
    weft_store_tag tag;
    (void)weft_s3_completed_read(text, size, &tag);
    check_text(tag.text, sizeof(tag.text), 0x21);
    check_list(text, size, 1000000);
    check_list(text, size, 1);
    free(text);
    return 0;
}
