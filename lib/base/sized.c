/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.c: structures of programs that were built against other headers.
 */
#include "sized.h"
#include "context.h"

#include <string.h>

/* No structure of the API comes near this. A larger size is memory that was never set. */
enum { MOST_BYTES = 1 << 16 };

static size_t size_of_given(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static bool size_is_plausible(size_t size) {
    return size > sizeof(size_t) && size <= MOST_BYTES;
}

static weft_status refuse_size(weft_context *context, size_t size, const char *what) {
    if (context == NULL) {
        return WEFT_INVALID_ARGUMENT;
    }
    return weft_fail(context, WEFT_INVALID_ARGUMENT,
                     "%s says that its size is %zu; begin with `%s name = {.size = sizeof name}`", what,
                     size, what);
}

weft_status weft_sized_read(weft_context *context, const void *given, void *own, size_t size,
                            const char *what) {
    memset(own, 0, size);
    if (given != NULL) {
        size_t given_size = size_of_given(given);
        if (!size_is_plausible(given_size)) {
            return refuse_size(context, given_size, what);
        }
        memcpy(own, given, given_size < size ? given_size : size);
        const unsigned char *bytes = given;
        for (size_t i = size; i < given_size; ++i) {
            if (bytes[i] != 0) {
                return context == NULL
                           ? WEFT_UNSUPPORTED
                           : weft_fail(
                                 context, WEFT_UNSUPPORTED,
                                 "%s sets an option at byte %zu, and this library, %d.%d.%d, knows %zu "
                                 "bytes; run with the library that the program was built for",
                                 what, i, WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH, size);
            }
        }
    }
    memcpy(own, &size, sizeof size);
    return WEFT_OK;
}

weft_status weft_sized_check(weft_context *context, const void *given, const char *what) {
    if (given == NULL || size_is_plausible(size_of_given(given))) {
        return WEFT_OK;
    }
    return refuse_size(context, size_of_given(given), what);
}

void weft_sized_write(const void *own, void *given, size_t size) {
    if (given == NULL || !size_is_plausible(size_of_given(given))) {
        return;
    }
    size_t given_size = size_of_given(given);
    size_t common = given_size < size ? given_size : size;
    memcpy((char *)given + sizeof(size_t), (const char *)own + sizeof(size_t), common - sizeof(size_t));
}
