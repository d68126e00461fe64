/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the text of requests to `weft serve`. The first eight bytes are the size of an object, the rest is
 * the value of a field, read as each of them in turn; what comes out must lie within the object and the
 * buffers.
 */
#include "../../programs/server/serve_fields.c"

#include <weft/store.h>

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void check_range(const char *text, uint64_t size) {
    serve_range range = serve_range_parse(text, size);
    if (range.kind == RANGE_PART) {
        require(range.length > 0 && range.offset < size && range.length <= size - range.offset);
    }
}

static void check_path(const char *text) {
    char key[WEFT_STORE_KEY_MAX + 1];
    if (serve_path_decode(text, key, sizeof key)) {
        require(strlen(key) <= WEFT_STORE_KEY_MAX);
        if (weft_store_key_valid(key)) {
            require(key[0] != '/' && key[0] != '.' && strstr(key, "/.") == NULL &&
                    strstr(key, "//") == NULL);
        }
    }
}

static void check_tags(const char *text) {
    if (serve_tags_hold(text, "1f-2-3.4", false)) {
        require(serve_tags_hold(text, "1f-2-3.4", true));
        require(serve_tags_any(text) || strstr(text, "\"1f-2-3.4\"") != NULL);
    }
}

static void check_rest(const char *text) {
    uint64_t value = 0;
    double seconds = 0;
    size_t length = 0;
    const char *token = serve_bearer(text, &length);
    require(token == NULL || (token >= text && length <= strlen(token)));
    (void)serve_number(text, &value);
    require(!serve_seconds(text, &seconds) || (seconds >= 0 && seconds <= 1e6));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t object_size = 0;
    if (size < sizeof object_size) {
        return 0;
    }
    memcpy(&object_size, data, sizeof object_size);
    data += sizeof object_size;
    size -= sizeof object_size;
    /* On the heap and no longer than it is, so that a sanitizer sees a read behind its end. */
    char *text = malloc(size + 1);
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    check_range(text, object_size);
    check_path(text);
    check_tags(text);
    check_rest(text);
    free(text);
    return 0;
}
