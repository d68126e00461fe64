/* SPDX-License-Identifier: Apache-2.0
 *
 * Children by fork. A context works on in them; what has threads, connections, locks or unfinished files
 * says that it belongs to the parent, is closed without hanging, and the parent notices nothing. A child
 * that hangs is ended by its alarm, and a child that crashes by a signal.
 */
#include "../support/described.h"
#include "patches.h"
#include "runs.h"
#include "scratch.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHILD_SECONDS = 120 };

/* The thread sanitizer does not bear children of threaded parents that start threads of their own. Under it
 * they only close and destroy. */
#if defined(__SANITIZE_THREAD__)
#define THREADS_IN_CHILDREN false
#elif defined(__has_feature)
#define THREADS_IN_CHILDREN (!__has_feature(thread_sanitizer))
#else
#define THREADS_IN_CHILDREN true
#endif

/* What a child finds wrong is the line that it found it at. */
#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "child, line %d: %s\n", __LINE__, #condition);                                 \
            _exit(1);                                                                                      \
        }                                                                                                  \
    } while (0)

static void expect_child(void (*child)(void *), void *argument) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* not the test program's handler, which would go on with its tests */
        signal(SIGBUS, SIG_DFL);
        alarm(CHILD_SECONDS);
        child(argument);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static bool refused(const weft_context *context, weft_status status) {
    return status == WEFT_INVALID_ARGUMENT &&
           strstr(weft_context_error(context), "made before a fork") != NULL;
}

/* ---- contexts ---- */

static void destroy_context(void *argument) {
    pair *pair = argument;
    pair_close(pair);
    weft_context_destroy(pair->context);
}

/* The child of a child is one too. */
static void use_and_destroy(void *argument) {
    pair *pair = argument;
    weft_sums *sums = NULL;
    weft_apply *apply = NULL;
    CHECK(weft_sums_compute(pair->context, pair->live.view, &sums) == WEFT_OK);
    CHECK(weft_apply_create(pair->context, pair->patch, pair->live.view, sums, &apply) == WEFT_OK);
    CHECK(weft_apply_prepare(apply) == WEFT_OK);
    CHECK(weft_apply_commit(apply) == WEFT_OK);
    CHECK(pair_at_new(pair));
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    expect_child(destroy_context, pair);
    destroy_context(pair);
}

static bool go_on(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    (void)done;
    (void)total;
    return !atomic_load((atomic_bool *)opaque);
}

static void test_context(void **state) {
    (void)state;
    atomic_bool stop = false;
    const weft_context_options options = {
        .size = sizeof options, .threads = 4, .progress = go_on, .progress_opaque = &stop};
    weft_context *context;
    pair pair;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 1);
    pair_change(&pair, CHANGE_MIXED, 10000, 2);
    pair_diff(&pair, NULL); /* starts the threads */
    expect_child(THREADS_IN_CHILDREN ? use_and_destroy : destroy_context, &pair);
    expect_child(destroy_context, &pair);
    assert_true(pair_at_old(&pair));
    pair_diff(&pair, NULL);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* A thread that keeps a context busy while others fork. */
typedef struct busy {
    weft_context *context;
    model model;
    atomic_bool stop;
    atomic_size_t rounds;
} busy;

static void *keep_busy(void *argument) {
    busy *busy = argument;
    while (!atomic_load(&busy->stop)) {
        weft_sums *sums = NULL;
        if (weft_sums_compute(busy->context, busy->model.view, &sums) == WEFT_OK) {
            weft_sums_destroy(sums);
        }
        atomic_fetch_add(&busy->rounds, 1);
    }
    return NULL;
}

static void destroy_busy(void *argument) {
    busy *busy = argument;
    weft_context_destroy(busy->context);
}

static void test_context_in_use(void **state) {
    (void)state;
    busy busy = {0};
    atomic_bool never = false;
    const weft_context_options options = {
        .size = sizeof options, .threads = 3, .progress = go_on, .progress_opaque = &never};
    assert_int_equal(weft_context_create(&options, &busy.context), WEFT_OK);
    model_open(&busy.model, busy.context);
    model_add(&busy.model, "w", WEFT_DTYPE_BF16, 4096, 1024);
    model_show(&busy.model);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &busy), 0);
    while (atomic_load(&busy.rounds) == 0) {
        usleep(1000);
    }
    for (int i = 0; i < 50; i++) {
        expect_child(destroy_busy, &busy);
    }
    atomic_store(&busy.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    model_close(&busy.model);
    weft_context_destroy(busy.context);
}

/* ---- a store behind connections ---- */

/* A server that keeps its connections, and counts them and what ended. */
typedef struct server {
    int listener;
    uint16_t port;
    pthread_t thread;
    atomic_uint accepted, answered, ended;
} server;

static void *serve_connection(void *argument) {
    server *server = (void *)((uintptr_t *)argument)[0];
    int socket = (int)((uintptr_t *)argument)[1];
    free(argument);
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"e\"\r\n\r\nhello";
    char head[4096];
    size_t length = 0;
    while (length + 1 < sizeof head && recv(socket, head + length, 1, 0) == 1) {
        head[++length] = '\0';
        if (length >= 4 && strcmp(head + length - 4, "\r\n\r\n") == 0) {
            atomic_fetch_add(&server->answered, 1);
            if (send(socket, answer, sizeof answer - 1, MSG_NOSIGNAL) < 0) {
                break;
            }
            length = 0;
        }
    }
    atomic_fetch_add(&server->ended, 1);
    close(socket);
    return NULL;
}

static void *serve(void *argument) {
    server *server = argument;
    int socket;
    while ((socket = accept(server->listener, NULL, NULL)) >= 0) {
        atomic_fetch_add(&server->accepted, 1);
        uintptr_t *connection = malloc(2 * sizeof *connection);
        pthread_t thread;
        if (connection == NULL) {
            abort();
        }
        connection[0] = (uintptr_t)server;
        connection[1] = (uintptr_t)socket;
        if (pthread_create(&thread, NULL, serve_connection, connection) != 0) {
            abort();
        }
        pthread_detach(thread);
    }
    return NULL;
}

static void server_open(server *server) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    memset(server, 0, sizeof *server);
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(server->listener >= 0);
    assert_int_equal(bind(server->listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(server->listener, 16), 0);
    assert_int_equal(getsockname(server->listener, (struct sockaddr *)&address, &size), 0);
    server->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

typedef struct remote {
    weft_context *context;
    weft_store *store;
} remote;

static weft_status get_hello(remote *remote) {
    char buffer[16];
    weft_store_get_result result = {.size = sizeof result};
    const weft_store_get_request request = {
        .size = sizeof request, .key = "hello", .buffer = buffer, .length = sizeof buffer};
    return weft_store_get(remote->context, remote->store, &request, &result);
}

static bool visit(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)opaque;
    (void)key;
    (void)size;
    (void)age_seconds;
    return true;
}

static void use_remote(void *argument) {
    remote *remote = argument;
    CHECK(refused(remote->context, get_hello(remote)));
    CHECK(refused(remote->context, weft_store_remove(remote->context, remote->store, "hello")));
    CHECK(refused(remote->context, weft_store_head(remote->context, remote->store, "hello", NULL, NULL)));
    double age;
    CHECK(refused(remote->context, weft_store_age(remote->context, remote->store, "hello", &age)));
    size_t received;
    char buffer[16];
    CHECK(refused(remote->context, weft_store_watch(remote->context, remote->store, 1, 0, buffer,
                                                    sizeof buffer, &received)));
    CHECK(refused(remote->context, weft_store_list(remote->context, remote->store, "", visit, NULL)));
    CHECK(refused(remote->context, weft_store_put_bytes(remote->context, remote->store, "k", "v", 1,
                                                        WEFT_STORE_ALWAYS, NULL, NULL)));
    weft_store_close(remote->store);
    weft_context_destroy(remote->context);
}

/* Opens one of its own, with the parent's context. */
static void open_another(void *argument) {
    remote *other = argument;
    char *url = strdup(weft_store_url(other->store));
    CHECK(url != NULL);
    weft_store_close(other->store);
    CHECK(weft_store_open(other->context, url, NULL, &other->store) == WEFT_OK);
    CHECK(get_hello(other) == WEFT_OK);
    weft_store_close(other->store);
    weft_context_destroy(other->context);
}

static void test_remote_store(void **state) {
    (void)state;
    server server;
    server_open(&server);
    remote remote = {.context = patches_context(2)};
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/place", server.port);
    assert_int_equal(weft_store_open(remote.context, url, NULL, &remote.store), WEFT_OK);
    expect_child(use_remote, &remote); /* the thread has not started */
    assert_int_equal(get_hello(&remote), WEFT_OK);
    unsigned accepted = server.accepted;
    expect_child(use_remote, &remote);
    expect_child(use_remote, &remote);
    assert_int_equal(get_hello(&remote), WEFT_OK);
    assert_int_equal(server.accepted, accepted); /* over the connection that was there */
    assert_int_equal(server.ended, 0);
    expect_child(THREADS_IN_CHILDREN ? open_another : use_remote, &remote);
    assert_int_equal(get_hello(&remote), WEFT_OK);
    weft_store_close(remote.store);
    weft_context_destroy(remote.context);
    shutdown(server.listener, SHUT_RDWR);
    assert_int_equal(pthread_join(server.thread, NULL), 0);
    close(server.listener);
    while (atomic_load(&server.ended) < atomic_load(&server.accepted)) {
        usleep(1000);
    }
}

/* ---- publishers and followers ---- */

typedef struct run {
    scratch scratch;
    char store_path[512], group_path[512];
    weft_context *contexts[4];
    weft_store *stores[4];
    trainer trainer;
    model worker, ranks;
    weft_publisher *publisher;
    weft_subscriber *subscriber;
    weft_relay *relay;
    weft_relay_reader *reader;
    weft_group *group;
    weft_member *member;
    atomic_bool stop;
} run;

static void close_all(void *argument) {
    run *run = argument;
    weft_member_close(run->member);
    weft_group_close(run->group);
    weft_relay_reader_close(run->reader);
    weft_relay_close(run->relay);
    weft_subscriber_close(run->subscriber);
    weft_publisher_close(run->publisher);
    for (size_t i = 0; i < 4; i++) {
        weft_store_close(run->stores[i]);
        weft_context_destroy(run->contexts[i]);
    }
}

static void try_all(void *argument) {
    run *run = argument;
    uint64_t version;
    uint8_t head[WEFT_HEAD_MAX];
    size_t size;
    weft_head_info info = {.size = sizeof info};
    weft_relay_object object = {.size = sizeof object};
    weft_publish_result result = {.size = sizeof result};
    weft_context *context = run->contexts[0];
    CHECK(refused(context, weft_publisher_publish(run->publisher, NULL, &result)));
    CHECK(refused(context, weft_publisher_settle(run->publisher)));
    CHECK(refused(context, weft_publisher_anchor(run->publisher, NULL)));
    context = run->contexts[1];
    CHECK(refused(context, weft_subscriber_wait(run->subscriber, 10, &version)));
    CHECK(refused(context, weft_subscriber_prepare(run->subscriber, 0)));
    CHECK(refused(context, weft_subscriber_pull(run->subscriber, 0)));
    CHECK(refused(context, weft_subscriber_commit(run->subscriber)));
    CHECK(refused(context, weft_subscriber_rollback(run->subscriber)));
    CHECK(refused(context, weft_subscriber_verify(run->subscriber)));
    context = run->contexts[2];
    CHECK(refused(context, weft_relay_head(context, run->relay, head, &size, &info)));
    CHECK(refused(context, weft_relay_reader_find(run->reader, &object)));
    CHECK(relay_stats(run->relay).objects == 0);
    weft_relay_stop(run->relay);
    context = run->contexts[3];
    CHECK(refused(context, weft_member_wait(run->member, 10, &version)));
    CHECK(refused(context, weft_member_commit(run->member)));
    CHECK(refused(context, weft_member_rollback(run->member)));
    close_all(run);
}

/* Leads with a context of its own, which is in use whenever somebody forks. */
static void *lead(void *argument) {
    run *run = argument;
    weft_context *context = patches_context(1);
    weft_store *store;
    const weft_group_options options = {.size = sizeof options, .members = 1};
    if (weft_store_open(context, run->store_path, NULL, &store) != WEFT_OK ||
        weft_group_lead(context, store, run->group_path, &options, &run->group) != WEFT_OK) {
        fprintf(stderr, "the group has no leader: %s\n", weft_context_error(context));
        abort();
    }
    while (!atomic_load(&run->stop)) {
        weft_status ignored = weft_group_run(run->group, 0.05, NULL);
        (void)ignored;
    }
    weft_group_close(run->group);
    weft_store_close(store);
    weft_context_destroy(context);
    return NULL;
}

static void publish(run *run, uint64_t version) {
    weft_publish_result result = {.size = sizeof result};
    trainer_step(&run->trainer, 20000);
    assert_int_equal(weft_publisher_publish(run->publisher, NULL, &result), WEFT_OK);
    assert_int_equal(result.version, version);
}

static void test_run(void **state) {
    (void)state;
    run run = {0};
    scratch_open_volatile(&run.scratch);
    snprintf(run.group_path, sizeof run.group_path, "%s/group", run.scratch.directory);
    snprintf(run.store_path, sizeof run.store_path, "%s/store", run.scratch.directory);
    for (size_t i = 0; i < 4; i++) {
        run.contexts[i] = patches_context(2);
        assert_int_equal(weft_store_open(run.contexts[i], run.store_path, NULL, &run.stores[i]), WEFT_OK);
    }
    trainer_open(&run.trainer, run.contexts[0], 3);
    /* an anchor in the background with each version, and merges beside it */
    const weft_publisher_options publishing = {
        .size = sizeof publishing, .anchor_ratio = 1e-6, .anchors_in_background = true};
    assert_int_equal(weft_publisher_open(run.contexts[0], run.stores[0], run.trainer.model.view,
                                         &publishing, &run.publisher),
                     WEFT_OK);
    publish(&run, 1);
    worker_open(&run.worker, run.contexts[1]);
    const weft_subscriber_options following = {
        .size = sizeof following, .report_name = "w", .report_seconds = 1};
    assert_int_equal(
        weft_subscriber_open(run.contexts[1], run.stores[1], run.worker.view, &following, &run.subscriber),
        WEFT_OK);
    assert_int_equal(weft_subscriber_pull(run.subscriber, 0), WEFT_OK);
    assert_int_equal(weft_relay_open(run.contexts[2], run.stores[2], scratch_path(&run.scratch, "relay"),
                                     NULL, &run.relay),
                     WEFT_OK);
    assert_int_equal(weft_relay_reader_open(run.contexts[2], run.relay, "patches/x", &(weft_relay_hooks){0},
                                            &run.reader),
                     WEFT_OK);
    pthread_t leader;
    assert_int_equal(pthread_create(&leader, NULL, lead, &run), 0);
    worker_open(&run.ranks, run.contexts[3]);
    weft_status status =
        weft_member_open(run.contexts[3], run.group_path, 0, run.ranks.view, NULL, &run.member);
    assert_string_equal(weft_context_error(run.contexts[3]), "");
    assert_int_equal(status, WEFT_OK);
    for (uint64_t version = 2; version < 8; version++) {
        publish(&run, version);
        assert_int_equal(weft_member_prepare(run.member, version), WEFT_OK);
        assert_int_equal(weft_subscriber_prepare(run.subscriber, version), WEFT_OK);
        expect_child(version % 2 == 0 ? try_all : close_all, &run);
        assert_int_equal(weft_subscriber_commit(run.subscriber), WEFT_OK);
        assert_true(worker_equals(&run.worker, &run.trainer));
        assert_int_equal(weft_member_commit(run.member), WEFT_OK);
        assert_true(worker_equals(&run.ranks, &run.trainer));
    }
    uint8_t head[WEFT_HEAD_MAX];
    size_t size;
    weft_head_info info = {.size = sizeof info};
    for (int i = 0; i < 10000 && info.version != 7; i++) {
        assert_int_equal(weft_relay_head(run.contexts[2], run.relay, head, &size, &info), WEFT_OK);
        usleep(1000);
    }
    assert_int_equal(info.version, 7);
    assert_int_equal(weft_publisher_settle(run.publisher), WEFT_OK);
    weft_member_close(run.member);
    run.member = NULL;
    atomic_store(&run.stop, true);
    assert_int_equal(pthread_join(leader, NULL), 0);
    run.group = NULL;
    model_close(&run.ranks);
    weft_subscriber_close(run.subscriber);
    run.subscriber = NULL;
    model_close(&run.worker);
    weft_publisher_close(run.publisher);
    run.publisher = NULL;
    trainer_close(&run.trainer);
    close_all(&run);
    scratch_close(&run.scratch);
}

/* ---- a checkpoint that is being made ---- */

static void drop_draft(void *argument) {
    weft_checkpoint_close(argument);
}

static void finish_draft(void *argument) {
    CHECK(weft_checkpoint_finish(argument, false) == WEFT_INVALID_ARGUMENT);
}

static void test_checkpoint(void **state) {
    (void)state;
    static const char header[] = "{\"w\":{\"dtype\":\"BF16\",\"shape\":[8,8],\"data_offsets\":[0,128]}}";
    const weft_container_file file = {"", header, sizeof header - 1};
    const weft_container container = {.file_count = 1, .files = &file};
    scratch scratch;
    scratch_open(&scratch);
    weft_context *context = patches_context(1);
    weft_checkpoint *draft;
    weft_status status =
        weft_checkpoint_create(context, scratch_path(&scratch, "made.safetensors"), &container, &draft);
    assert_string_equal(weft_context_error(context), "");
    assert_int_equal(status, WEFT_OK);
    size_t files = scratch_count(&scratch, "");
    expect_child(drop_draft, draft);
    expect_child(finish_draft, draft);
    assert_int_equal(scratch_count(&scratch, ""), files);
    assert_false(scratch_exists(&scratch, "made.safetensors"));
    assert_int_equal(weft_checkpoint_finish(draft, false), WEFT_OK);
    assert_true(scratch_exists(&scratch, "made.safetensors"));
    weft_context_destroy(context);
    scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context),      cmocka_unit_test(test_context_in_use),
        cmocka_unit_test(test_remote_store), cmocka_unit_test(test_run),
        cmocka_unit_test(test_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
