/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: see json.h.
 */
#include "json.h"

#include "../base/context.h"

weft_status weft_json_no_memory(weft_context *context, const char *where) {
    return weft_fail(context, WEFT_NO_MEMORY, "%s: out of memory while handling JSON", where);
}

/* Looks only at brackets outside of strings. Whether the text is JSON at all is left to the parser. */
static weft_status check_brackets(weft_context *context, const char *where, const char *text, size_t size,
                                  unsigned depth_limit, uint64_t container_limit) {
    uint64_t depth = 0;
    uint64_t containers = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char byte = text[i];
        if (in_string) {
            if (byte == '\\') {
                i++;
            } else if (byte == '"') {
                in_string = false;
            }
        } else if (byte == '"') {
            in_string = true;
        } else if (byte == '{' || byte == '[') {
            depth++;
            containers++;
        } else if ((byte == '}' || byte == ']') && depth > 0) {
            depth--;
        }
        if (depth > depth_limit) {
            return weft_fail(context, WEFT_MALFORMED, "%s: JSON nested deeper than %u levels at byte %zu",
                             where, depth_limit, i);
        }
        if (containers > container_limit) {
            return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                             "%s: more than %llu JSON objects and arrays, which its tensors cannot need",
                             where, (unsigned long long)container_limit);
        }
    }
    return WEFT_OK;
}

weft_status weft_json_check(weft_context *context, const char *where, const char *text, size_t size,
                            const weft_json_bounds *bounds) {
    if (size > bounds->bytes) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s would take %zu bytes, and %zu are the most",
                         where, size, bounds->bytes);
    }
    return check_brackets(context, where, text, size, bounds->depth, bounds->containers);
}

weft_status weft_json_parse(weft_context *context, const char *where, const char *text, size_t size,
                            unsigned depth, uint64_t containers, json_t **value_out) {
    if (size == 0 || text[0] != '{') {
        return weft_fail(context, WEFT_MALFORMED, "%s: the JSON does not begin with '{'", where);
    }
    weft_status status = check_brackets(context, where, text, size, depth, containers);
    if (status != WEFT_OK) {
        return status;
    }
    json_error_t error;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (value != NULL) {
        *value_out = value;
        return WEFT_OK;
    }
    /* jansson has no text for most of the ways in which it runs out of memory; a few more it takes for
     * wrong syntax, and so must we */
    if (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory) {
        return weft_json_no_memory(context, where);
    }
    return weft_fail(context, WEFT_MALFORMED, "%s: bad JSON at byte %d: %s", where, error.position,
                     error.text);
}

static int append_text(const char *text, size_t size, void *writer) {
    weft_writer_bytes(writer, text, size);
    return weft_writer_failed(writer) ? -1 : 0;
}

void weft_json_write(weft_writer *writer, json_t *value) {
    if (value == NULL ||
        json_dump_callback(value, append_text, writer, JSON_COMPACT | JSON_ENCODE_ANY) != 0) {
        writer->failed = true;
    }
    json_decref(value);
}
