/* SPDX-License-Identifier: Apache-2.0
 *
 * store_tool.c: one operation on a store, for the tests that start real servers.
 *
 *     store_tool get|put|head|remove|watch URL [KEY]
 *     store_tool list|clear URL
 *     store_tool copy URL URL
 *
 * put reads stdin, get and watch write stdout, list writes keys, clear removes all objects, and copy puts
 * those of one store into another. WEFT_STORE_TOKEN and WEFT_STORE_CA_FILE as in
 * test_store_conformance; WEFT_STORE_ATTEMPTS bounds the attempts. The exit code is 0, or 1 with the status
 * and the text of the failure on stderr.
 */
#include <weft/store.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 64 << 20 };

static weft_status read_stdin(void *opaque, uint64_t offset, void *data, size_t capacity,
                              size_t *count_out) {
    FILE *input = opaque;
    if (offset == 0) {
        rewind(input);
    }
    *count_out = fread(data, 1, capacity, input);
    return WEFT_OK;
}

static weft_status operate(weft_context *context, weft_store *store, const char *verb, const char *key) {
    static uint8_t buffer[BUFFER_BYTES];
    weft_status status = WEFT_INVALID_ARGUMENT;
    size_t count = 0;
    if (strcmp(verb, "get") == 0) {
        weft_store_get_request request = {
            .size = sizeof request, .key = key, .length = BUFFER_BYTES, .buffer = buffer};
        weft_store_get_result result = {.size = sizeof result};
        status = weft_store_get(context, store, &request, &result);
        count = (size_t)result.received;
    } else if (strcmp(verb, "put") == 0) {
        weft_store_put_request request = {
            .size = sizeof request,
            .key = key,
            .feed = {.size = UINT64_MAX, .read = read_stdin, .opaque = stdin}};
        status = weft_store_put(context, store, &request, NULL);
    } else if (strcmp(verb, "head") == 0) {
        uint64_t size = 0;
        weft_store_tag tag = {""};
        status = weft_store_head(context, store, key, &size, &tag);
        if (status == WEFT_OK) {
            printf("%llu %s\n", (unsigned long long)size, tag.text);
        }
    } else if (strcmp(verb, "remove") == 0) {
        status = weft_store_remove(context, store, key);
    } else if (strcmp(verb, "watch") == 0) {
        status = weft_store_watch(context, store, 0, 1, buffer, sizeof(buffer), &count);
    }
    if (status == WEFT_OK && fwrite(buffer, 1, count, stdout) != count) {
        status = WEFT_IO_FAILED;
    }
    return status;
}

/* ---- all objects ---- */

typedef struct key_list {
    char (*keys)[WEFT_STORE_KEY_MAX + 1];
    size_t count;
} key_list;

static bool note_key(void *opaque, const char *key, uint64_t size, double age_seconds) {
    key_list *list = opaque;
    void *larger = realloc(list->keys, (list->count + 1) * sizeof *list->keys);
    (void)size;
    (void)age_seconds;
    if (larger == NULL) {
        return false;
    }
    list->keys = larger;
    snprintf(list->keys[list->count], sizeof *list->keys, "%s", key);
    list->count++;
    return true;
}

static weft_status copy_object(weft_context *context, weft_store *from, weft_store *to, const char *key) {
    static uint8_t buffer[BUFFER_BYTES];
    weft_store_get_request request = {
        .size = sizeof request, .key = key, .length = BUFFER_BYTES, .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(context, from, &request, &result);
    return status == WEFT_OK ? weft_store_put_bytes(context, to, key, buffer, (size_t)result.received,
                                                    WEFT_STORE_ALWAYS, NULL, NULL)
                             : status;
}

/* What the verb does with each object; `to` is for copies. */
static weft_status operate_on_all(weft_context *context, weft_store *store, const char *verb,
                                  weft_store *to) {
    key_list list = {0};
    weft_status status = weft_store_list(context, store, "", note_key, &list);
    for (size_t i = 0; i < list.count && status == WEFT_OK; i++) {
        if (strcmp(verb, "list") == 0) {
            printf("%s\n", list.keys[i]);
        } else if (strcmp(verb, "clear") == 0) {
            status = weft_store_remove(context, store, list.keys[i]);
        } else {
            status = copy_object(context, store, to, list.keys[i]);
        }
    }
    free(list.keys);
    return status;
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: store_tool get|put|head|remove|watch|list|clear|copy URL [KEY|URL]\n");
        return 2;
    }
    const char *attempts = getenv("WEFT_STORE_ATTEMPTS");
    weft_store_options options = {
        .size = sizeof options,
        .token = getenv("WEFT_STORE_TOKEN"),
        .ca_file = getenv("WEFT_STORE_CA_FILE"),
        .attempts = attempts != NULL ? (unsigned)atoi(attempts) : 0,
    };
    weft_context *context = NULL;
    weft_store *store = NULL;
    weft_store *to = NULL;
    const char *verb = arguments[1];
    if (weft_context_create(NULL, &context) != WEFT_OK) {
        return 1;
    }
    weft_status status = weft_store_open(context, arguments[2], &options, &store);
    if (status == WEFT_OK && strcmp(verb, "copy") == 0 && count > 3) {
        status = weft_store_open(context, arguments[3], &options, &to);
    }
    if (status == WEFT_OK) {
        bool all = strcmp(verb, "list") == 0 || strcmp(verb, "clear") == 0 || to != NULL;
        status = all ? operate_on_all(context, store, verb, to)
                     : operate(context, store, verb, count > 3 ? arguments[3] : "");
    }
    if (status != WEFT_OK) {
        fprintf(stderr, "weft store: %s: %s\n", weft_status_name(status), weft_context_error(context));
    }
    weft_store_close(to);
    weft_store_close(store);
    weft_context_destroy(context);
    return status == WEFT_OK ? 0 : 1;
}
