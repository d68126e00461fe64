/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_list.c: the objects of a room, for collectors and repairers: /v1/list?prefix=ROOM.
 *
 * A directory has its entries in no order, and a room may have any number of them. An answer has the first
 * keys above `after`, in order, at most LIST_LINES of them, so that it takes bounded memory here and there;
 * if there are more, its last line says where to go on. Going over a room takes a disk's time, so it is a
 * job. Only who may write is shown what nobody has named: the others have no use for it. A relay knows none
 * of it.
 *
 * Followers are listed by their reports (serve_reports.c), for everybody who may read.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_LINES = 8192 };

typedef struct list_entry {
    char key[WEFT_STORE_KEY_MAX + 1];
    uint64_t size;
    double age;
} list_entry;

/* The smallest keys that were seen, and behind them others: twice as many have room. */
typedef struct list_work {
    const char *after;
    list_entry *entries;
    size_t count;
    bool more; /* some had no room */
} list_work;

static bool has_prefix(const serve_request *request, const char *prefix) {
    return strcmp(request->list_prefix, prefix) == 0;
}

void serve_list_begin(serve_request *request) {
    struct MHD_Connection *connection = request->connection;
    const char *prefix = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "prefix");
    const char *after = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "after");
    bool known = false;
    bool good = weft_store_key_valid(prefix) && (after == NULL || weft_store_key_valid(after));
    snprintf(request->list_prefix, sizeof request->list_prefix, "%s", good ? prefix : "");
    snprintf(request->list_after, sizeof request->list_after, "%s", good && after != NULL ? after : "");
    if (has_prefix(request, WEFT_REPORT_ROOM)) {
        return;
    }
    if (!good || request->server->relay != NULL) {
        serve_refuse(request, MHD_HTTP_NOT_FOUND, "there is no such listing");
    } else if (serve_tokens_refusal(request->server, connection, true, &known) != 0) {
        serve_refuse(request, MHD_HTTP_FORBIDDEN, "this listing is for those who may write");
    }
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const list_entry *)a)->key, ((const list_entry *)b)->key);
}

static void sort_entries(list_work *work) {
    if (work->count > 0) {
        qsort(work->entries, work->count, sizeof *work->entries, compare_entries);
    }
    if (work->count > LIST_LINES) {
        work->count = LIST_LINES;
        work->more = true;
    }
}

static bool visit(void *opaque, const char *key, uint64_t size, double age_seconds) {
    list_work *work = opaque;
    if (strcmp(key, work->after) > 0) {
        if (work->count == 2 * (size_t)LIST_LINES) {
            sort_entries(work);
        }
        list_entry *entry = &work->entries[work->count++];
        snprintf(entry->key, sizeof entry->key, "%s", key);
        entry->size = size;
        entry->age = age_seconds;
    }
    return true;
}

/* Valid keys have no letter that JSON would escape. */
static void print_entries(const list_work *work, FILE *out) {
    for (size_t i = 0; i < work->count; i++) {
        const list_entry *entry = &work->entries[i];
        fprintf(out, "{\"key\":\"%s\",\"size\":%llu,\"age\":%.3f}\n", entry->key,
                (unsigned long long)entry->size, entry->age);
    }
    if (work->more && work->count > 0) {
        fprintf(out, "{\"after\":\"%s\"}\n", work->entries[work->count - 1].key);
    }
}

void serve_list_collect(serve_request *request) {
    list_work work = {.after = request->list_after};
    if (has_prefix(request, WEFT_REPORT_ROOM)) {
        return;
    }
    work.entries = malloc(2 * (size_t)LIST_LINES * sizeof *work.entries);
    weft_status status = work.entries != NULL ? weft_store_list(request->context, request->server->store,
                                                                request->list_prefix, visit, &work)
                                              : WEFT_NO_MEMORY;
    sort_entries(&work);
    FILE *out = status == WEFT_OK ? open_memstream(&request->batch, &request->batch_size) : NULL;
    if (out != NULL) {
        print_entries(&work, out);
        if (fclose(out) != 0) {
            free(request->batch);
            request->batch = NULL;
        }
    }
    free(work.entries);
}

char *serve_text_list(serve_request *request, size_t *size_out) {
    return has_prefix(request, WEFT_REPORT_ROOM) ? serve_text_reports(request, size_out)
                                                 : serve_text_batch(request, size_out);
}
