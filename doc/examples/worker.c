/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.c: keeps the weights in its memory at the newest version, until it has reached one.
 *
 *     cc worker.c $(pkg-config --cflags --libs weft) -o worker && ./worker STORE VERSION
 */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { ROWS = 1024, COLUMNS = 1024 };

static uint16_t weights[ROWS * COLUMNS]; /* BF16; what an inference engine computes with */

static void check(weft_context *context, weft_status status) {
    if (status < 0) {
        fprintf(stderr, "worker: %s\n",
                context != NULL ? weft_context_error(context) : weft_status_name(status));
        exit(1);
    }
}

static weft_subscriber_info tell(const weft_subscriber *subscriber) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(subscriber, &info);
    const char *step = weft_subscriber_label(subscriber, "step");
    char digest[WEFT_DIGEST_TEXT];
    weft_digest_format(&info.digest, digest);
    printf("version %llu %s step %s, paused for %.2f ms\n", (unsigned long long)info.version, digest,
           step != NULL ? step : "?", 1e3 * info.pause_seconds);
    return info;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    weft_context *context;
    weft_table *table;
    weft_view *view;
    check(NULL, weft_context_create(NULL, &context));
    check(context, weft_table_create(context, &table));
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "weight",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 2,
                          .shape = {ROWS, COLUMNS}};
    tensor.data = weights;
    tensor.writable = true;
    check(context, weft_table_add(table, &tensor));
    check(context, weft_view_create(context, table, &view));

    weft_store *store;
    check(context, weft_store_open(context, argv[1], NULL, &store));

    weft_subscriber *subscriber;
    weft_subscriber_options options = {.size = sizeof options};
    options.empty = true; /* the weights hold nothing yet: fetch an anchor */
    check(context, weft_subscriber_open(context, store, view, &options, &subscriber));

    uint64_t last = strtoull(argv[2], NULL, 10);
    weft_subscriber_info info = {.size = sizeof info};
    while (info.version < last) {
        check(context, weft_subscriber_wait(subscriber, 60, NULL));
        weft_status status;
        do {
            status = weft_subscriber_prepare(subscriber, 0); /* fetches and proves; weights are in use */
            check(context, status);
            /* let running requests finish here, or pause them */
            check(context, weft_subscriber_commit(subscriber)); /* the pause: writes what changed */
            /* and let them go on */
        } while (status == WEFT_MORE);
        info = tell(subscriber);
    }

    weft_subscriber_close(subscriber);
    weft_store_close(store);
    weft_view_destroy(view);
    weft_table_destroy(table);
    weft_context_destroy(context);
    return 0;
}
