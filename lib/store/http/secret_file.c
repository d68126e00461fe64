/* SPDX-License-Identifier: Apache-2.0
 *
 * secret_file.c: reading small files whose content must not stay in memory.
 */
#include "secret_file.h"

#include "../../base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static weft_status read_bytes(weft_context *context, const char *what, const char *path, int file,
                              char *text, size_t most, size_t *size_out) {
    size_t size = 0;
    ssize_t count = 0;
    do {
        count = read(file, text + size, most + 1 - size);
        size += count > 0 ? (size_t)count : 0;
    } while ((count > 0 && size <= most) || (count < 0 && errno == EINTR));
    if (count < 0) {
        return weft_fail_errno(context, errno, "cannot read the %s %s", what, path);
    }
    if (size > most) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "the %s %s is longer than %zu bytes", what, path,
                         most);
    }
    text[size] = '\0';
    *size_out = size;
    return WEFT_OK;
}

weft_status weft_secret_file_read(weft_context *context, const char *what, const char *path, size_t most,
                                  char **text_out, size_t *size_out) {
    /* a pipe that nobody writes to is not waited for */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 && errno == ENOENT) {
        return weft_fail(context, WEFT_NOT_FOUND, "there is no %s %s", what, path);
    }
    if (file < 0) {
        return weft_fail_errno(context, errno, "cannot open the %s %s", what, path);
    }
    char *text = weft_allocate_zeroed(context, most + 2, 1);
    weft_status status =
        text != NULL ? read_bytes(context, what, path, file, text, most, size_out) : WEFT_NO_MEMORY;
    close(file);
    if (status != WEFT_OK) {
        weft_secret_release(context, text);
        return status;
    }
    *text_out = text;
    return WEFT_OK;
}

static bool is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

weft_status weft_secret_file_word(weft_context *context, const char *what, const char *path, size_t most,
                                  char **word_out) {
    char *text = NULL;
    size_t size = 0;
    weft_status status = weft_secret_file_read(context, what, path, most, &text, &size);
    if (status != WEFT_OK) {
        return status;
    }
    size_t first = 0;
    while (first < size && is_space(text[first])) {
        first++;
    }
    while (size > first && is_space(text[size - 1])) {
        size--;
    }
    bool word = size > first;
    for (size_t i = first; i < size; i++) {
        word = word && text[i] > ' ' && text[i] < 0x7f;
    }
    if (!word) {
        weft_secret_release(context, text);
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the %s %s does not hold one word of printable characters", what, path);
    }
    memmove(text, text + first, size - first);
    explicit_bzero(text + (size - first), most + 1 - (size - first));
    *word_out = text;
    return WEFT_OK;
}

void weft_secret_release(weft_context *context, char *text) {
    if (text != NULL) {
        explicit_bzero(text, strlen(text));
    }
    weft_release(context, text);
}
