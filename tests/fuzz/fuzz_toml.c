/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes configuration files. What is read lies within the text, ends there, and is what its kind says;
 * what is refused has a line and a reason.
 */
#include "../../programs/base/toml.c"

#include <stdlib.h>

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void check_item(const toml_item *item, const char *text, size_t size) {
    const char *parts[] = {item->key, item->text};
    for (size_t i = 0; i < 2; i++) {
        require(parts[i] >= text && parts[i] <= text + size);
        require(strlen(parts[i]) <= (size_t)(text + size - parts[i]));
    }
    require(*item->key != 0 && item->line >= 1);
    require(item->kind != TOML_NUMBER || is_number(item->text));
    require(item->kind != TOML_BOOLEAN || strcmp(item->text, "true") == 0 ||
            strcmp(item->text, "false") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static toml_document document;
    char *text = malloc(size + 1);
    if (text == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(text, data, size);
    }
    document.error[0] = 0;
    if (toml_read(text, size, &document)) {
        for (size_t i = 0; i < document.count; i++) {
            check_item(&document.items[i], text, size);
        }
    } else {
        require(document.line >= 1 && document.error[0] != 0);
    }
    free(text);
    return 0;
}
