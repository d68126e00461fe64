/* SPDX-License-Identifier: Apache-2.0
 *
 * plain.c: packed objects as plain JSON.
 */
#include "plain.h"

#include "../../lib/base/context.h"
#include "../../lib/sync/format/pack.h"
#include "patches.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *unpack(const void *data, size_t size) {
    weft_context *context = patches_context(1);
    uint8_t *text;
    size_t length;
    if (weft_unpack(context, "a test", data, size, 1 << 20, &text, &length) != WEFT_OK) {
        fprintf(stderr, "plain: %s\n", weft_context_error(context));
        abort();
    }
    json_t *json = json_loadb((const char *)text, length, 0, NULL);
    weft_release(context, text);
    weft_context_destroy(context);
    return json;
}

json_t *plain_json(const void *data, size_t size) {
    json_t *json = weft_pack_begins(data, size) ? unpack(data, size)
                                                : json_loadb(data, size, JSON_DISABLE_EOF_CHECK, NULL);
    const char *packed = json_string_value(json_object_get(json, "packed"));
    uint8_t frame[WEFT_HEAD_MAX];
    size_t frame_size;
    if (packed != NULL && weft_base85_parse(packed, strlen(packed), frame, sizeof frame, &frame_size)) {
        json_decref(json);
        json = unpack(frame, frame_size);
    }
    if (json == NULL) {
        fprintf(stderr, "plain: no JSON\n");
        abort();
    }
    return json;
}

size_t plain_head(const void *data, size_t size, uint8_t out[WEFT_HEAD_MAX]) {
    uint8_t hash[32];
    unsigned length;
    char hex[65];
    const char *line = memchr(data, '\n', size);
    const char *end = (const char *)data + size;
    const char *next = line != NULL ? memchr(line + 1, '\n', (size_t)(end - line - 1)) : NULL;
    json_t *json = plain_json(data, size);
    char *text = json_dumps(json, JSON_COMPACT);
    if (next == NULL || text == NULL ||
        EVP_Digest(text, strlen(text), hash, &length, EVP_sha256(), NULL) != 1) {
        abort();
    }
    for (size_t i = 0; i < sizeof hash; i++) {
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    }
    int written = snprintf((char *)out, WEFT_HEAD_MAX, "%s\nsha256 %s\n%.*s", text, hex,
                           (int)(end - next - 1), next + 1);
    free(text);
    json_decref(json);
    if (written <= 0 || written >= WEFT_HEAD_MAX) {
        abort();
    }
    return (size_t)written;
}
