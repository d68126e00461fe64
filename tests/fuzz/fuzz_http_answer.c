/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the headers of HTTP answers: any bytes, taken line by line as curl gives them. What results must
 * keep its promises: ranges in order and within the size, tags that can stand in a request, terminated
 * texts.
 */
#include "../../lib/store/http/http_exchange.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void check_tag(const weft_store_tag *tag) {
    size_t size = strnlen(tag->text, sizeof(tag->text));
    require(size < sizeof(tag->text));
    if (size == 0) {
        return;
    }
    require(size >= 3 && tag->text[0] == '"' && tag->text[size - 1] == '"');
    for (size_t i = 1; i < size - 1; i++) {
        require(tag->text[i] > 0x20 && tag->text[i] != '"' && tag->text[i] != 0x7f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_http_answer answer = {0};
    const char *cursor = (const char *)data;
    const char *end = cursor + size;
    while (cursor < end) {
        const char *newline = memchr(cursor, '\n', (size_t)(end - cursor));
        const char *next = newline != NULL ? newline + 1 : end;
        /* A copy of its own size, so that reading beyond it is noticed. */
        size_t length = (size_t)(next - cursor);
        char *line = malloc(length);
        require(line != NULL);
        memcpy(line, cursor, length);
        weft_http_answer_read(&answer, line, length);
        free(line);
        cursor = next;
    }
    if (answer.has_range) {
        require(answer.range_first <= answer.range_last && answer.range_last < answer.range_size);
    }
    check_tag(&answer.tag);
    require(memchr(answer.location, '\0', sizeof(answer.location)) != NULL);
    require(answer.retry_seconds >= 0);
    return 0;
}
