/* SPDX-License-Identifier: Apache-2.0
 *
 * remote.c: a place that is a store: s3://bucket/prefix or http(s)://host/prefix. What readers need lies in
 * a scratch directory of this process, under the names that it has in the store: the markers of all
 * versions, which say what they consist of, and the files of one version at a time.
 *
 * A store that cannot list is asked for the numbers that come next, and for `latest` if the format has
 * that.
 */
#include "format.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/table.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft/store.h>

enum {
    FIRST_BYTES = 64 * 1024,       /* of a small object: most are smaller */
    CHUNK_BYTES = 8 * 1024 * 1024, /* of a large one */
    PROBES = 4,                    /* numbers that may be missing, where nothing is listed */
    PROBED_MOST = 4096,            /* versions that one look finds so */
    LISTED_MOST = 1 << 16,         /* or by a list */
    DEEPEST = 3,                   /* "updates/run/weight_v000007" */
    PATH_DEPTH = 8,                /* what is removed goes no deeper */
};

/* of all markers that one look brings */
static const uint64_t MARKER_BYTES = (uint64_t)4 << 30;

struct weft_remote {
    weft_store *store;
    uint64_t marker_bytes; /* that this look may still bring */
    bool unlisted;         /* the store cannot list */
    bool again; /* a marker could not be understood: all that are of no version yet are fetched again */
    bool holds; /* the files of a version are there, */
    char *directory; /* in this directory of scratch; or some of them */
};

bool weft_remote_named(const char *path) {
    return strncasecmp(path, "s3://", 5) == 0 || strncasecmp(path, "http://", 7) == 0 ||
           strncasecmp(path, "https://", 8) == 0;
}

/* ---- the scratch directory ---- */

/* Links are removed and not followed. */
static void remove_tree(int parent, const char *name, unsigned depth) {
    int descriptor = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = descriptor >= 0 ? fdopendir(descriptor) : NULL;
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (unlinkat(descriptor, entry->d_name, 0) != 0 && depth > 0) {
            remove_tree(descriptor, entry->d_name, depth - 1);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    } else if (descriptor >= 0) {
        close(descriptor);
    }
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

static weft_status make_scratch(weft_context *context, char **path_out) {
    const char *parent = getenv("TMPDIR");
    char *path =
        weft_path_join(context, parent != NULL && *parent != 0 ? parent : "/tmp", "weft-foreign-XXXXXX");
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (mkdtemp(path) == NULL) {
        weft_status status =
            weft_fail_errno(context, errno, "%s: cannot make a directory for what is fetched", path);
        weft_release(context, path);
        return status;
    }
    *path_out = path;
    return WEFT_OK;
}

/* Makes the directories that a key lies in. */
static weft_status make_parents(const weft_foreign *foreign, const char *key) {
    for (const char *slash = strchr(key, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        char *parent = weft_copy_text(foreign->context, key, (size_t)(slash - key));
        char *path = parent != NULL ? weft_path_join(foreign->context, foreign->root, parent) : NULL;
        bool failed = path == NULL || (mkdir(path, 0700) != 0 && errno != EEXIST);
        weft_status status = !failed ? WEFT_OK
                             : path == NULL
                                 ? WEFT_NO_MEMORY
                                 : weft_fail_errno(foreign->context, errno, "%s: cannot make", path);
        weft_release(foreign->context, parent);
        weft_release(foreign->context, path);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

weft_status weft_remote_open(weft_foreign *foreign, const char *url, const weft_store_options *options) {
    weft_context *context = foreign->context;
    if (foreign->reader->marker == NULL) {
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "%s: versions of %s are read from a directory; of a bucket those of slime and skyrl "
            "are, whose last file says that a version is complete. Copy it to a file system",
            url, foreign->reader->name);
    }
    foreign->remote = weft_allocate_zeroed(context, 1, sizeof *foreign->remote);
    if (foreign->remote == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_store_open(context, url, options, &foreign->remote->store);
    return status == WEFT_OK ? make_scratch(context, &foreign->root) : status;
}

void weft_remote_close(weft_foreign *foreign) {
    if (foreign->remote == NULL) {
        return;
    }
    if (foreign->root != NULL) {
        remove_tree(AT_FDCWD, foreign->root, PATH_DEPTH);
    }
    weft_store_close(foreign->remote->store);
    weft_release(foreign->context, foreign->remote->directory);
    weft_release(foreign->context, foreign->remote);
}

const char *weft_foreign_where(const weft_foreign *foreign) {
    return foreign->remote != NULL ? weft_store_url(foreign->remote->store) : foreign->root;
}

/* ---- small objects ---- */

static weft_status get_part(weft_foreign *foreign, const char *key, uint64_t offset, void *buffer,
                            uint64_t length, weft_store_get_result *result) {
    const weft_store_get_request request = {
        .size = sizeof request, .key = key, .offset = offset, .length = length, .buffer = buffer};
    *result = (weft_store_get_result){.size = sizeof *result};
    return weft_store_get(foreign->context, foreign->remote->store, &request, result);
}

static weft_status fail_many(const weft_foreign *foreign) {
    return weft_fail(foreign->context, WEFT_LIMIT_EXCEEDED,
                     "%s has more versions after %llu than can be followed; start from a newer checkpoint",
                     weft_foreign_where(foreign), (unsigned long long)foreign->from);
}

/* Brings an object of at most limits.header_bytes to scratch. WEFT_NOT_FOUND if there is none. */
static weft_status bring_small(weft_foreign *foreign, const char *key) {
    weft_context *context = foreign->context;
    weft_remote *remote = foreign->remote;
    uint64_t limit = weft_context_limits(context)->header_bytes, size = FIRST_BYTES, written = 0;
    char *text = weft_allocate(context, FIRST_BYTES);
    weft_store_get_result result;
    weft_status status = text != NULL ? get_part(foreign, key, 0, text, size, &result) : WEFT_NO_MEMORY;
    if (status == WEFT_OK && result.object_bytes > limit) {
        status = weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s/%s: it has more than %llu bytes",
                           weft_foreign_where(foreign), key, (unsigned long long)limit);
    } else if (status == WEFT_OK && result.object_bytes > size) {
        size = result.object_bytes;
        weft_release(context, text);
        text = weft_allocate(context, (size_t)size);
        status = text != NULL ? get_part(foreign, key, 0, text, size, &result) : WEFT_NO_MEMORY;
    }
    status = status == WEFT_OK && result.received > remote->marker_bytes ? fail_many(foreign) : status;
    remote->marker_bytes -= status == WEFT_OK ? result.received : 0;
    char *path = status == WEFT_OK ? weft_path_join(context, foreign->root, key) : NULL;
    status = status == WEFT_OK && path == NULL ? WEFT_NO_MEMORY : status;
    status = status == WEFT_OK ? make_parents(foreign, key) : status;
    status = status == WEFT_OK
                 ? weft_text_write(context, path, text, (size_t)result.received, false, &written)
                 : status;
    weft_release(context, path);
    weft_release(context, text);
    return status;
}

/* ---- looking ---- */

typedef struct remote_keys {
    weft_foreign *foreign;
    char **keys;
    size_t count;
    size_t capacity;
    weft_status status;
} remote_keys;

static void keys_close(remote_keys *keys) {
    for (size_t i = 0; i < keys->count; i++) {
        weft_release(keys->foreign->context, keys->keys[i]);
    }
    weft_release(keys->foreign->context, keys->keys);
}

static weft_status keys_add(remote_keys *keys, const char *key) {
    weft_context *context = keys->foreign->context;
    if (keys->count == keys->capacity) {
        size_t capacity = 2 * keys->capacity + 16;
        char **more = weft_reallocate_array(context, keys->keys, capacity, sizeof *more);
        if (more == NULL) {
            return WEFT_NO_MEMORY;
        }
        keys->keys = more;
        keys->capacity = capacity;
    }
    keys->keys[keys->count] = weft_copy_text(context, key, strlen(key));
    return keys->keys[keys->count] != NULL ? (keys->count++, WEFT_OK) : WEFT_NO_MEMORY;
}

/* "[updates/][run/]weight_v000007/MARKER", and its number. */
static bool is_marker(const weft_foreign_reader *reader, const char *key, uint64_t *number_out) {
    size_t length = strlen(key), tail = strlen(reader->marker);
    unsigned slashes = 0;
    const char *start = key;
    char directory[WEFT_STORE_KEY_MAX + 1];
    if (length < tail + 2 || length > WEFT_STORE_KEY_MAX || key[length - tail - 1] != '/' ||
        strcmp(key + length - tail, reader->marker) != 0 || !weft_store_key_valid(key)) {
        return false;
    }
    memcpy(directory, key, length - tail - 1);
    directory[length - tail - 1] = 0;
    for (const char *slash = directory; (slash = strchr(slash, '/')) != NULL; slash++, slashes++) {
        start = key + (slash + 1 - directory);
    }
    return slashes < DEEPEST &&
           weft_numbered(directory + (start - key), reader->prefix, reader->digits, "", number_out);
}

static bool visit_key(void *opaque, const char *key, uint64_t size, double age) {
    remote_keys *keys = opaque;
    uint64_t number;
    (void)size;
    (void)age;
    const weft_foreign *foreign = keys->foreign;
    if (is_marker(foreign->reader, key, &number) && !weft_foreign_known(foreign, number) &&
        (foreign->remote->again || !weft_path_exists(foreign->context, foreign->root, key))) {
        keys->status = keys->count < LISTED_MOST ? keys_add(keys, key) : fail_many(foreign);
    }
    return keys->status == WEFT_OK;
}

/* A marker that was listed may be gone by now. */
static weft_status bring_listed(weft_foreign *foreign) {
    remote_keys keys = {.foreign = foreign};
    weft_status status = weft_store_list(foreign->context, foreign->remote->store, "", visit_key, &keys);
    status = status == WEFT_OK ? keys.status : status;
    for (size_t i = 0; i < keys.count && status == WEFT_OK; i++) {
        status = bring_small(foreign, keys.keys[i]);
        status = status == WEFT_NOT_FOUND ? WEFT_OK : status;
    }
    keys_close(&keys);
    return status;
}

/* Brings the marker of a number, below a directory of the store; `found` if there is one. */
static weft_status probe(weft_foreign *foreign, const char *below, uint64_t number, bool *found) {
    const weft_foreign_reader *reader = foreign->reader;
    char key[WEFT_STORE_KEY_MAX + 1];
    int length = snprintf(key, sizeof key, "%s%s%s%0*llu/%s", below, below[0] != 0 ? "/" : "",
                          reader->prefix, (int)reader->digits, (unsigned long long)number, reader->marker);
    if (length < 0 || (size_t)length >= sizeof key || !weft_store_key_valid(key)) {
        return weft_fail(foreign->context, WEFT_MALFORMED, "%s: its `latest` names what no key can be",
                         weft_foreign_where(foreign));
    }
    weft_status status = bring_small(foreign, key);
    *found = status == WEFT_OK;
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(foreign->context);
        return WEFT_OK;
    }
    return status;
}

/* Down from what `latest` names, to what is known or where the caller is, or so far that nobody would
 * follow from there. */
static weft_status probe_down(weft_foreign *foreign, const char *below, uint64_t newest) {
    weft_status status = WEFT_OK;
    unsigned missed = 0;
    for (uint64_t number = newest; status == WEFT_OK && missed < PROBES && number > foreign->from &&
                                   newest - number < PROBED_MOST && !weft_foreign_known(foreign, number);
         number--) {
        bool found = false;
        status = probe(foreign, below, number, &found);
        missed = found ? 0 : missed + 1;
    }
    return status;
}

/* Up from the newest that is known; the next look goes on. */
static weft_status probe_up(weft_foreign *foreign, const char *below) {
    uint64_t last = foreign->count > 0 ? foreign->versions[foreign->count - 1].version : 0;
    uint64_t number = last > foreign->from ? last : foreign->from;
    uint64_t most = number < INT64_MAX - PROBED_MOST ? number + PROBED_MOST : INT64_MAX;
    weft_status status = WEFT_OK;
    for (unsigned missed = 0; status == WEFT_OK && missed < PROBES && number < most;) {
        bool found = false;
        status = probe(foreign, below, ++number, &found);
        missed = found ? 0 : missed + 1;
    }
    return status;
}

static weft_status bring_probed(weft_foreign *foreign) {
    char run[WEFT_PLACE_NAME] = "", updates[2 * WEFT_PLACE_NAME];
    uint64_t newest = 0;
    bool told = foreign->reader->latest != NULL &&
                foreign->reader->latest(foreign->context, foreign->root, run, &newest);
    weft_status status = told ? probe_down(foreign, run, newest) : probe_up(foreign, run);
    if (status == WEFT_OK && foreign->reader->latest != NULL) {
        snprintf(updates, sizeof updates, "updates%s%s", run[0] != 0 ? "/" : "", run);
        status = told ? probe_down(foreign, updates, newest) : probe_up(foreign, updates);
    }
    return status;
}

/* Which version is the newest that counts, where the format has a file for that. */
static weft_status bring_latest(weft_foreign *foreign) {
    static const char name[] = "latest";
    if (foreign->reader->latest == NULL) {
        return WEFT_OK;
    }
    weft_status status = bring_small(foreign, name);
    if (status == WEFT_NOT_FOUND) {
        char *path = weft_path_join(foreign->context, foreign->root, name);
        weft_context_clear(foreign->context);
        status = path != NULL ? WEFT_OK : WEFT_NO_MEMORY;
        if (path != NULL) {
            (void)unlink(path);
        }
        weft_release(foreign->context, path);
    }
    return status;
}

weft_status weft_remote_look(weft_foreign *foreign) {
    foreign->remote->marker_bytes = MARKER_BYTES;
    weft_status status = bring_latest(foreign);
    if (status == WEFT_OK && !foreign->remote->unlisted) {
        status = bring_listed(foreign);
        if (status == WEFT_UNSUPPORTED) {
            weft_context_clear(foreign->context);
            foreign->remote->unlisted = true;
            status = WEFT_OK;
        }
    }
    return status == WEFT_OK && foreign->remote->unlisted ? bring_probed(foreign) : status;
}

void weft_remote_heed(weft_foreign *foreign, weft_status status) {
    if (foreign->remote != NULL) {
        foreign->remote->again = status != WEFT_OK;
    }
}

/* ---- the files of a version ---- */

typedef struct remote_fetch {
    weft_foreign *foreign;
    const char *directory; /* of the version, as a key */
    uint64_t left;         /* bytes that may be fetched */
    uint8_t *buffer;
} remote_fetch;

static weft_status copy_object(remote_fetch *fetch, const char *key, int descriptor) {
    weft_context *context = fetch->foreign->context;
    weft_store_get_result first = {0}, result;
    uint64_t done = 0;
    weft_status status = WEFT_OK;
    do {
        status = get_part(fetch->foreign, key, done, fetch->buffer, CHUNK_BYTES, &result);
        if (status != WEFT_OK) {
            return status;
        }
        first = done == 0 ? result : first;
        if (result.object_bytes > fetch->left) {
            return weft_fail(
                context, WEFT_LIMIT_EXCEEDED,
                "%s/%s: with its %llu bytes the version is larger than one of this model can be",
                weft_foreign_where(fetch->foreign), key, (unsigned long long)result.object_bytes);
        }
        if (result.object_bytes != first.object_bytes || strcmp(result.tag.text, first.tag.text) != 0 ||
            (result.received == 0 && done < first.object_bytes)) {
            return weft_fail(context, WEFT_CONFLICT, "%s/%s: it has changed while it was fetched",
                             weft_foreign_where(fetch->foreign), key);
        }
        for (uint64_t written = 0; written < result.received;) {
            ssize_t count = write(descriptor, fetch->buffer + written, (size_t)(result.received - written));
            if (count < 0 && errno != EINTR) {
                return weft_fail_errno(context, errno, "%s: cannot keep %s", fetch->foreign->root, key);
            }
            written += count > 0 ? (uint64_t)count : 0;
        }
        done += result.received;
        status = weft_progress_add(context, result.received);
    } while (status == WEFT_OK && done < first.object_bytes);
    fetch->left -= first.object_bytes;
    return status;
}

/* Files that several tensors are in are named several times. */
static weft_status fetch_file(void *opaque, const char *name) {
    remote_fetch *fetch = opaque;
    weft_context *context = fetch->foreign->context;
    char key[WEFT_STORE_KEY_MAX + 1];
    int length = snprintf(key, sizeof key, "%s/%s", fetch->directory, name);
    if (strchr(name, '/') != NULL || length < 0 || (size_t)length >= sizeof key ||
        !weft_store_key_valid(key)) {
        return weft_fail(context, WEFT_MALFORMED, "%s/%s: it names a file that no key can be: \"%.*s\"",
                         weft_foreign_where(fetch->foreign), fetch->directory, WEFT_NAME_SHOWN, name);
    }
    char *path = weft_path_join(context, fetch->foreign->root, key);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0 && errno != EEXIST) {
        status = weft_fail_errno(context, errno, "%s: cannot make", path);
    } else if (descriptor >= 0) {
        status = copy_object(fetch, key, descriptor);
        if (close(descriptor) != 0 && status == WEFT_OK) {
            status = weft_fail_errno(context, errno, "%s: cannot keep it", path);
        }
        if (status != WEFT_OK) {
            (void)unlink(path);
        }
    }
    weft_release(context, path);
    return status;
}

/* All but the marker goes. */
static void drop_held(weft_foreign *foreign) {
    weft_remote *remote = foreign->remote;
    DIR *stream = remote->directory != NULL ? opendir(remote->directory) : NULL;
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, foreign->reader->marker) != 0) {
            (void)unlinkat(dirfd(stream), entry->d_name, 0);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    weft_release(foreign->context, remote->directory);
    remote->directory = NULL;
    remote->holds = false;
}

void weft_remote_forget(weft_foreign *foreign, const char *path) {
    char *marker =
        foreign->remote != NULL ? weft_path_join(foreign->context, path, foreign->reader->marker) : NULL;
    if (marker != NULL) {
        (void)unlink(marker);
    }
    weft_release(foreign->context, marker);
}

weft_status weft_remote_fetch(weft_foreign *foreign, const weft_foreign_version *version, uint64_t most) {
    weft_remote *remote = foreign->remote;
    weft_context *context = foreign->context;
    if (remote == NULL || (remote->holds && strcmp(remote->directory, version->path) == 0)) {
        return WEFT_OK;
    }
    drop_held(foreign);
    remote->directory = weft_copy_text(context, version->path, strlen(version->path));
    remote_fetch fetch = {.foreign = foreign,
                          .directory = version->path + strlen(foreign->root) + 1,
                          .left = most,
                          .buffer = weft_allocate(context, CHUNK_BYTES)};
    weft_status status = remote->directory == NULL || fetch.buffer == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        weft_progress_begin(context, "fetch", 0);
        status = foreign->reader->files(foreign, version, fetch_file, &fetch);
    }
    weft_release(context, fetch.buffer);
    remote->holds = status == WEFT_OK;
    return status;
}
