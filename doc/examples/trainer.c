/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.c: publishes the weights in its memory after every step.
 *
 *     cc trainer.c $(pkg-config --cflags --libs weft) -o trainer && ./trainer STORE STEPS
 */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { ROWS = 1024, COLUMNS = 1024 };

static uint16_t weights[ROWS * COLUMNS]; /* BF16 */

/* Stands for an optimizer: about one weight in a hundred moves to the next BF16 number. */
static void train(unsigned step) {
    for (size_t i = step % 97; i < ROWS * COLUMNS; i += 97) {
        weights[i]++;
    }
}

static void check(weft_context *context, weft_status status) {
    if (status < 0) {
        fprintf(stderr, "trainer: %s\n",
                context != NULL ? weft_context_error(context) : weft_status_name(status));
        exit(1);
    }
}

static void tell(const weft_publish_result *result) {
    char digest[WEFT_DIGEST_TEXT];
    weft_digest_format(&result->digest, digest);
    printf("version %llu %s %llu bytes in %.1f ms\n", (unsigned long long)result->version, digest,
           (unsigned long long)result->uploaded_bytes, 1e3 * result->seconds);
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
    check(context, weft_table_add(table, &tensor));
    check(context, weft_view_create(context, table, &view));

    weft_store *store; /* a path, http(s)://host:port or s3://bucket */
    check(context, weft_store_open(context, argv[1], NULL, &store));

    weft_publisher *publisher; /* takes over the run that is there, or begins one */
    weft_publisher_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_SMALL, .anchors_in_background = true};
    check(context, weft_publisher_open(context, store, view, &options, &publisher));

    unsigned steps = (unsigned)atoi(argv[2]);
    for (unsigned step = 1; step <= steps; step++) {
        train(step);
        char text[16];
        snprintf(text, sizeof text, "%u", step);
        const char *labels[] = {"step", text, NULL};
        weft_publish_result result = {.size = sizeof result};
        check(context, weft_publisher_publish(publisher, labels, &result));
        tell(&result);
    }

    weft_publisher_close(publisher);
    weft_store_close(store);
    weft_view_destroy(view);
    weft_table_destroy(table);
    weft_context_destroy(context);
    return 0;
}
