/* SPDX-License-Identifier: Apache-2.0
 *
 * scenes.h: a publisher and replicas around one store, each of them behind a store of its own that can be
 * told to fail. For tests of what happens to synchronisation on bad days. Every call ends the test program
 * with a message if the surroundings fail it.
 *
 * The store is a directory, unless WEFT_TEST_STORE has the URL of another: every scene takes a place of its
 * own below it. WEFT_TEST_READ_STORE, if set, is the URL by which replicas see the same place, such as that
 * of a server; with WEFT_TEST_RELAY, they see it through a relay.
 *
 * The rule that all of these tests check: what a replica holds, by its real bytes, is always a published
 * version, and once the faults are gone it is the newest.
 */
#ifndef WEFT_TESTS_SCENES_H
#define WEFT_TESTS_SCENES_H

#include "fault_store.h"
#include "runs.h"
#include "scratch.h"

enum { SCENE_PATH_MAX = 768 };

/* One place in two ways. */
typedef struct scene_place {
    weft_store *store;   /* the writers' */
    weft_store *reading; /* the replicas'; may be the same one */
} scene_place;

/* A place that nobody has used. */
void scene_place_open(scene_place *place, weft_context *context, scratch *scratch);
void scene_place_close(scene_place *place);

typedef struct scene {
    scratch scratch;
    weft_context *context; /* of the trainer and its publisher */
    weft_context *outside; /* of whoever looks at the store without faults */
    scene_place place;
    weft_store *store;  /* of the place, without faults */
    weft_store *faulty; /* the publisher's way to it */
    fault_store *faults;
    trainer trainer;
    weft_publisher_options options;
    weft_publisher *publisher; /* NULL until scene_publisher */
} scene;

/* `options` may be NULL. There is no publisher yet. No leaps are made, unless scene->options is told so. */
void scene_open(scene *scene, const weft_publisher_options *options, uint64_t seed);
void scene_close(scene *scene);
/* Opens the publisher, after closing the one before. */
weft_status scene_publisher(scene *scene);
/* One step of training, and a publish that must work. Returns the version. */
uint64_t scene_publish(scene *scene, unsigned per_million);
/* Fails the test unless the status is the expected one. */
void scene_expect(const weft_context *context, weft_status status, weft_status expected, const char *what);

/* True if the history in the store has a version with this digest. */
bool scene_published(scene *scene, const weft_digest *digest);
/* The key of the one object in a room of the store ("patches") for a version, of the newest epoch that has
 * one. */
void scene_find(scene *scene, const char *room, uint64_t version, char key[WEFT_STORE_KEY_MAX + 1]);
/* All bytes of an object and a zero behind them, to be freed by the caller. */
char *scene_read(scene *scene, const char *key, size_t *size_out);
void scene_write(scene *scene, const char *key, const void *data, size_t size);
void scene_remove(scene *scene, const char *key);
/* Changes a byte in the middle of an object. */
void scene_spoil(scene *scene, const char *key);
/* The same with a file. */
void scene_damage(const char *path);
size_t scene_count(scene *scene, const char *room);
/* Removes all objects. */
void scene_clear(scene *scene);

/* A replica: live memory, or a checkpoint if it has a name. */
typedef struct replica {
    scene *scene;
    weft_context *context;
    weft_store *store;
    fault_store *faults;
    bool file;
    char path[SCENE_PATH_MAX];
    model model;
    weft_subscriber *subscriber; /* NULL if opening failed */
} replica;

/* `name` NULL: live memory, which holds nothing yet. */
void replica_open(replica *replica, scene *scene, const char *name, const weft_subscriber_options *options);
void replica_close(replica *replica);
/* Closes and opens again what stands at the path. */
weft_status replica_reopen(replica *replica, const weft_subscriber_options *options);
/* The digest of the real bytes. False if there is no checkpoint at the path. */
bool replica_digest(replica *replica, weft_digest *digest);
/* True if the bytes are those of a published version. Memory that holds nothing yet, and says so, is too.
 */
bool replica_sound(replica *replica);
/* True if the bytes are what the trainer holds now. */
bool replica_current(replica *replica);
/* A pull that must work, after which the replica is what the trainer holds. */
void replica_catch_up(replica *replica, const char *what);
/* The same for a newcomer in live memory. */
void scene_newcomer(scene *scene, const char *what);

#endif
