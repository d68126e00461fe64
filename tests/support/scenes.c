/* SPDX-License-Identifier: Apache-2.0
 *
 * scenes.c: a publisher and replicas around one store.
 */
#include "scenes.h"

#include "patches.h"
#include "relayed.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static void stop(const char *what, const char *detail) {
    fprintf(stderr, "scenes: %s: %s\n", what, detail);
    abort();
}

void scene_expect(const weft_context *context, weft_status status, weft_status expected, const char *what) {
    if (status != expected) {
        fprintf(stderr, "scenes: %s: %s instead of %s: %s\n", what, weft_status_name(status),
                weft_status_name(expected), weft_context_error(context));
        abort();
    }
}

/* ---- the place ---- */

/* A URL below the one in a variable. */
static weft_store *open_below(weft_context *context, const char *url, uint64_t name) {
    char place[SCENE_PATH_MAX];
    size_t length = strlen(url);
    weft_store *store;
    snprintf(place, sizeof place, "%s%sscene-%016" PRIx64, url, url[length - 1] == '/' ? "" : "/", name);
    scene_expect(context, weft_store_open(context, place, NULL, &store), WEFT_OK, "open the store");
    return store;
}

void scene_place_open(scene_place *place, weft_context *context, scratch *scratch) {
    const weft_store_options options = {.size = sizeof options, .volatile_writes = true};
    const char *url = getenv("WEFT_TEST_STORE");
    const char *reading = getenv("WEFT_TEST_READ_STORE");
    uint64_t name;
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name) {
        stop("no random bytes for", "the name of a place");
    }
    if (url != NULL && url[0] != '\0') {
        place->store = open_below(context, url, name);
    } else {
        scene_expect(context,
                     weft_store_open(context, scratch_path(scratch, "store"), &options, &place->store),
                     WEFT_OK, "open the directory");
    }
    place->reading =
        reading != NULL && reading[0] != '\0' ? open_below(context, reading, name) : place->store;
    const char *relay = getenv("WEFT_TEST_RELAY");
    if (relay != NULL && relay[0] != '\0') {
        scene_expect(context,
                     relayed_open(context, place->store, scratch_path(scratch, "relay"), &place->reading),
                     WEFT_OK, "open a relay");
    }
}

void scene_place_close(scene_place *place) {
    if (place->reading != place->store) {
        weft_store_close(place->reading);
    }
    weft_store_close(place->store);
}

/* ---- the publisher's side ---- */

void scene_open(scene *scene, const weft_publisher_options *options, uint64_t seed) {
    memset(scene, 0, sizeof *scene);
    scratch_open_volatile(&scene->scratch);
    scene->context = patches_context(2);
    scene->outside = patches_context(1);
    scene_place_open(&scene->place, scene->outside, &scene->scratch);
    scene->store = scene->place.store;
    scene_expect(scene->context,
                 fault_store_create(scene->context, scene->store, seed, &scene->faulty, &scene->faults),
                 WEFT_OK, "open the writer's store");
    trainer_open(&scene->trainer, scene->context, seed);
    scene->options = options != NULL ? *options : (weft_publisher_options){.size = sizeof scene->options};
    /* what is made in the background would come between the operations that a test counts */
    scene->options.no_leaps = true;
}

void scene_close(scene *scene) {
    weft_publisher_close(scene->publisher);
    trainer_close(&scene->trainer);
    weft_store_close(scene->faulty);
    scene_place_close(&scene->place);
    weft_context_destroy(scene->context);
    weft_context_destroy(scene->outside);
    scratch_close(&scene->scratch);
}

weft_status scene_publisher(scene *scene) {
    weft_publisher_close(scene->publisher);
    scene->publisher = NULL;
    return weft_publisher_open(scene->context, scene->faulty, scene->trainer.model.view, &scene->options,
                               &scene->publisher);
}

uint64_t scene_publish(scene *scene, unsigned per_million) {
    if (scene->publisher == NULL) {
        scene_expect(scene->context, scene_publisher(scene), WEFT_OK, "open a publisher");
    }
    weft_publish_result result = {.size = sizeof result};
    trainer_step(&scene->trainer, per_million);
    scene_expect(scene->context, weft_publisher_publish(scene->publisher, NULL, &result), WEFT_OK,
                 "publish");
    return result.version;
}

/* ---- the store ---- */

typedef struct digest_search {
    const weft_digest *digest;
    bool found;
} digest_search;

static bool compare_entry(void *opaque, const weft_log_entry *entry) {
    digest_search *search = opaque;
    search->found = weft_digest_equal(&entry->digest, search->digest);
    return !search->found;
}

bool scene_published(scene *scene, const weft_digest *digest) {
    digest_search search = {digest, false};
    weft_status status = weft_log_walk(scene->outside, scene->store, NULL, compare_entry, &search);
    scene_expect(scene->outside, status == WEFT_NOT_FOUND ? WEFT_OK : status, WEFT_OK, "walk the log");
    return search.found;
}

typedef struct object_search {
    uint64_t version;
    char best[WEFT_STORE_KEY_MAX + 1];
} object_search;

static bool compare_object(void *opaque, const char *key, uint64_t size, double age_seconds) {
    object_search *search = opaque;
    unsigned long long epoch;
    unsigned long long number;
    (void)size;
    (void)age_seconds;
    const char *name = strrchr(key, '/');
    if (name != NULL && sscanf(name, "/%llu-%llu-", &epoch, &number) == 2 && number == search->version &&
        strcmp(key, search->best) > 0) {
        snprintf(search->best, sizeof search->best, "%s", key);
    }
    return true;
}

static void list(scene *scene, const char *room, weft_store_visit visit, void *opaque) {
    scene_expect(scene->outside, weft_store_list(scene->outside, scene->store, room, visit, opaque),
                 WEFT_OK, "list a room");
}

void scene_find(scene *scene, const char *room, uint64_t version, char key[WEFT_STORE_KEY_MAX + 1]) {
    object_search search = {.version = version};
    list(scene, room, compare_object, &search);
    if (search.best[0] == '\0') {
        stop("there is no object for the version in", room);
    }
    snprintf(key, WEFT_STORE_KEY_MAX + 1, "%s", search.best);
}

char *scene_read(scene *scene, const char *key, size_t *size_out) {
    uint64_t size;
    scene_expect(scene->outside, weft_store_head(scene->outside, scene->store, key, &size, NULL), WEFT_OK,
                 key);
    char *data = calloc(1, (size_t)size + 1);
    if (data == NULL) {
        stop("no memory for", key);
    }
    weft_store_get_request request = {.size = sizeof request, .key = key, .length = size, .buffer = data};
    weft_store_get_result result = {.size = sizeof result};
    scene_expect(scene->outside, weft_store_get(scene->outside, scene->store, &request, &result), WEFT_OK,
                 key);
    if (result.received != size) {
        stop("another size than before:", key);
    }
    *size_out = (size_t)size;
    return data;
}

void scene_write(scene *scene, const char *key, const void *data, size_t size) {
    weft_status status =
        weft_store_put_bytes(scene->outside, scene->store, key, data, size, WEFT_STORE_ALWAYS, NULL, NULL);
    scene_expect(scene->outside, status, WEFT_OK, key);
}

void scene_remove(scene *scene, const char *key) {
    scene_expect(scene->outside, weft_store_remove(scene->outside, scene->store, key), WEFT_OK, key);
}

void scene_spoil(scene *scene, const char *key) {
    size_t size;
    char *data = scene_read(scene, key, &size);
    if (size == 0) {
        stop("cannot damage", key);
    }
    data[size / 2] ^= 0x10;
    scene_write(scene, key, data, size);
    free(data);
}

void scene_damage(const char *path) {
    struct stat info;
    uint8_t byte = 0;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &info) != 0 || info.st_size == 0 ||
        pread(file, &byte, 1, info.st_size / 2) != 1) {
        stop("cannot damage", path);
    }
    byte ^= 0x10;
    if (pwrite(file, &byte, 1, info.st_size / 2) != 1) {
        stop("cannot damage", path);
    }
    close(file);
}

static bool count_object(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)size;
    (void)age_seconds;
    (*(size_t *)opaque)++;
    return true;
}

size_t scene_count(scene *scene, const char *room) {
    size_t count = 0;
    list(scene, room, count_object, &count);
    return count;
}

typedef struct key_list {
    char (*keys)[WEFT_STORE_KEY_MAX + 1];
    size_t count;
} key_list;

static bool note_key(void *opaque, const char *key, uint64_t size, double age_seconds) {
    key_list *found = opaque;
    (void)size;
    (void)age_seconds;
    found->keys = realloc(found->keys, (found->count + 1) * sizeof *found->keys);
    if (found->keys == NULL) {
        stop("no memory for", key);
    }
    snprintf(found->keys[found->count], sizeof *found->keys, "%s", key);
    found->count++;
    return true;
}

void scene_clear(scene *scene) {
    key_list found = {0};
    list(scene, "", note_key, &found);
    for (size_t i = 0; i < found.count; i++) {
        scene_remove(scene, found.keys[i]);
    }
    free(found.keys);
}

/* ---- replicas ---- */

static weft_status open_subscriber(replica *replica, const weft_subscriber_options *options) {
    weft_subscriber_options chosen =
        options != NULL ? *options : (weft_subscriber_options){.size = sizeof(weft_subscriber_options)};
    if (replica->file) {
        return weft_subscriber_open_file(replica->context, replica->store, replica->path, &chosen,
                                         &replica->subscriber);
    }
    chosen.empty = true;
    return weft_subscriber_open(replica->context, replica->store, replica->model.view, &chosen,
                                &replica->subscriber);
}

void replica_open(replica *replica, scene *scene, const char *name,
                  const weft_subscriber_options *options) {
    memset(replica, 0, sizeof *replica);
    replica->scene = scene;
    replica->context = patches_context(2);
    replica->file = name != NULL;
    scene_expect(
        replica->context,
        fault_store_create(replica->context, scene->place.reading, 77, &replica->store, &replica->faults),
        WEFT_OK, "open a reader's store");
    if (replica->file) {
        snprintf(replica->path, sizeof replica->path, "%s/%s", scene->scratch.directory, name);
    } else {
        worker_open(&replica->model, replica->context);
    }
    scene_expect(replica->context, open_subscriber(replica, options), WEFT_OK, "open a subscriber");
}

void replica_close(replica *replica) {
    weft_subscriber_close(replica->subscriber);
    if (!replica->file) {
        model_close(&replica->model);
    }
    weft_store_close(replica->store);
    weft_context_destroy(replica->context);
}

weft_status replica_reopen(replica *replica, const weft_subscriber_options *options) {
    weft_subscriber_close(replica->subscriber);
    replica->subscriber = NULL;
    return open_subscriber(replica, options);
}

/* The file is read as anybody would; what an interrupted change has left is undone or finished first. */
static bool file_digest(const replica *replica, weft_digest *digest) {
    weft_context *context = replica->scene->outside;
    weft_checkpoint *checkpoint;
    struct stat info;
    if (stat(replica->path, &info) != 0) {
        return false;
    }
    scene_expect(context, weft_checkpoint_open(context, replica->path, WEFT_OPEN_READ, &checkpoint),
                 WEFT_OK, "open the checkpoint of a replica");
    weft_view *view;
    scene_expect(context, weft_view_create(context, weft_checkpoint_table(checkpoint), &view), WEFT_OK,
                 "view the checkpoint of a replica");
    *digest = worker_digest(context, view);
    weft_view_destroy(view);
    weft_checkpoint_close(checkpoint);
    return true;
}

bool replica_digest(replica *replica, weft_digest *digest) {
    if (replica->file) {
        return file_digest(replica, digest);
    }
    *digest = worker_digest(replica->scene->outside, replica->model.view);
    return true;
}

bool replica_sound(replica *replica) {
    weft_digest digest;
    if (!replica_digest(replica, &digest)) {
        return true;
    }
    weft_subscriber_info info = {.size = sizeof info};
    if (replica->subscriber != NULL) {
        weft_subscriber_describe(replica->subscriber, &info);
    }
    if (info.version != 0 && !weft_digest_equal(&digest, &info.digest)) {
        return false;
    }
    bool nothing_yet = !replica->file && info.anchors == 0;
    return nothing_yet || scene_published(replica->scene, &digest);
}

bool replica_current(replica *replica) {
    weft_digest digest;
    weft_digest wanted = trainer_digest(&replica->scene->trainer);
    return (replica->file || worker_equals(&replica->model, &replica->scene->trainer)) &&
           replica_digest(replica, &digest) && weft_digest_equal(&digest, &wanted);
}

void replica_catch_up(replica *replica, const char *what) {
    scene_expect(replica->context, weft_subscriber_pull(replica->subscriber, 0), WEFT_OK, what);
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(replica->subscriber, &info);
    if (!replica_current(replica)) {
        stop(what, "the replica is not what the trainer holds");
    }
    if (info.version == 0 || info.version != info.newest) {
        stop(what, "the replica does not say that it is at the newest version");
    }
}

void scene_newcomer(scene *scene, const char *what) {
    replica fresh;
    replica_open(&fresh, scene, NULL, NULL);
    replica_catch_up(&fresh, what);
    replica_close(&fresh);
}
