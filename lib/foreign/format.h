/* SPDX-License-Identifier: Apache-2.0
 *
 * format.h: what a format can do, behind one table; and what a place is.
 */
#ifndef WEFT_FOREIGN_FORMAT_H
#define WEFT_FOREIGN_FORMAT_H

#include "payload.h"

#include <weft/store.h>

enum { WEFT_PLACE_NAME = 64 };

typedef struct weft_remote weft_remote;

struct weft_foreign {
    weft_context *context;
    const struct weft_foreign_reader *reader;
    char *root;          /* where the versions lie; of a bucket, where they are fetched to */
    weft_remote *remote; /* NULL: it is a directory or a file */
    uint64_t from;       /* where the caller is: see weft_foreign_begin */
    weft_foreign_options options;
    weft_foreign_version *versions; /* ascending */
    size_t count;
    size_t capacity;
};

/* A version to write. */
typedef struct weft_foreign_writing {
    weft_context *context;
    const char *root;
    const weft_foreign_write_options *options;
    const weft_view *base;
    const weft_tensor_changes *changes; /* names ascending */
    const weft_packed *packed;          /* the payload of each; without data if it is left out */
    size_t count;
} weft_foreign_writing;

typedef weft_status weft_name_function(void *opaque, const char *name);

typedef struct weft_foreign_reader {
    weft_foreign_format format;
    const char *name;
    bool proves; /* new states are checked; else a base must be assumed */
    /* True if what lies at the path is of this format. */
    bool (*detect)(weft_context *context, const char *path);
    /* Adds the versions that are there and complete: weft_foreign_known and weft_foreign_add. */
    weft_status (*list)(weft_foreign *foreign);
    /* Opens the files of a delta, adds its parts to the plan and its labels to the plan's step. */
    weft_status (*collect)(const weft_foreign *foreign, const weft_foreign_version *version,
                           weft_foreign_plan *plan);
    /* NULL: it is only read. */
    weft_status (*write)(const weft_foreign_writing *writing, weft_foreign_written *written);
    bool complete;   /* a delta has all tensors, also those that do not change */
    bool overwrites; /* it can be written in both encodings */
    bool adler32;    /* it has no other checksum */
    weft_spelling spelling;
    /* For places in a bucket, whose versions are directories: the file that is written last. NULL: such are
     * not read. */
    const char *marker;
    const char *prefix; /* of the directories' names, */
    unsigned digits;    /* which these follow, and zeros before them */
    /* Calls for each file that the marker of a version names; for some several times. */
    weft_status (*files)(const weft_foreign *foreign, const weft_foreign_version *version,
                         weft_name_function *visit, void *opaque);
    /* What the file `latest` says: the directory of a run, and the newest version. NULL: there is none. */
    bool (*latest)(weft_context *context, const char *root, char run[WEFT_PLACE_NAME],
                   uint64_t *newest_out);
} weft_foreign_reader;

extern const weft_foreign_reader weft_foreign_slime;
extern const weft_foreign_reader weft_foreign_skyrl;
extern const weft_foreign_reader weft_foreign_arc2;
extern const weft_foreign_reader weft_foreign_trl;
extern const weft_foreign_reader weft_foreign_prime;
extern const weft_foreign_reader weft_foreign_areal;
extern const weft_foreign_reader weft_foreign_pulse;
extern const weft_foreign_reader weft_foreign_grail;

/* True if the version is in the list. */
bool weft_foreign_known(const weft_foreign *foreign, uint64_t version);
/* True if a version that is in the list lies at the path: such are not opened again at every look. */
bool weft_foreign_listed(const weft_foreign *foreign, const char *path);
/* WEFT_CONFLICT: what lies at the path is not the version that was listed. */
weft_status weft_foreign_changed(const weft_foreign *foreign, const weft_foreign_version *version);
/* Takes the path, also on failure. */
weft_status weft_foreign_add(weft_foreign *foreign, uint64_t version, uint64_t base, bool whole,
                             char *path);

/* ---- places in a bucket ---- */

/* True for s3:// and http(s)://. */
bool weft_remote_named(const char *path);
/* Makes the place's root and bucket. Closing is allowed after a failure. */
weft_status weft_remote_open(weft_foreign *foreign, const char *url, const weft_store_options *options);
void weft_remote_close(weft_foreign *foreign);
/* Brings the markers that are new. */
weft_status weft_remote_look(weft_foreign *foreign);
/* Takes note of how it went to list what was brought. */
void weft_remote_heed(weft_foreign *foreign, weft_status status);
/* Brings the files of a version, at most `most` bytes; those of another one go. Does nothing of a
 * directory.
 */
weft_status weft_remote_fetch(weft_foreign *foreign, const weft_foreign_version *version, uint64_t most);
/* The marker of a version is fetched anew, if it is still there. */
void weft_remote_forget(weft_foreign *foreign, const char *path);
/* For messages: the path or URL of the place. */
const char *weft_foreign_where(const weft_foreign *foreign);

/* ---- names and numbers ---- */

/* A name that is `prefix`, at least `least` digits, and `suffix`. A number that JSON has no integer for is
 * none: it could not be remembered. */
bool weft_numbered(const char *name, const char *prefix, unsigned least, const char *suffix,
                   uint64_t *number_out);
/* A version in JSON: a number, or its digits as a text. */
bool weft_json_number(const json_t *value, uint64_t *number_out);
/* What Python's json.dumps makes of a value, to be given to free(); NULL is a lack of memory. `flags` are
 * those of json_dumps. */
char *weft_json_python(const json_t *value, size_t flags);
/* The name of a dtype in torch, such as "bfloat16"; NULL if it has none. And back, to that of safetensors.
 */
const char *weft_torch_dtype(weft_dtype dtype);
const char *weft_torch_dtype_parse(const char *name);
/* Calls for each name in a directory, names ascending as bytes. WEFT_NOT_FOUND if there is none. */
weft_status weft_directory_names(weft_context *context, const char *path, weft_name_function *visit,
                                 void *opaque);
bool weft_path_exists(weft_context *context, const char *directory, const char *name);
bool weft_path_is_file(const char *path);

/* ---- a directory that appears whole ---- */

typedef struct weft_new_directory {
    weft_context *context;
    int root;        /* locked meanwhile */
    char *temporary; /* its path */
    char *target;
} weft_new_directory;

/* Makes the place if it is not there, and a directory in it that will be called `name`. WEFT_CONFLICT if
 * one is; WEFT_BUSY if somebody else writes there. */
weft_status weft_new_directory_open(weft_new_directory *directory, weft_context *context, const char *root,
                                    const char *name);
weft_status weft_new_directory_finish(weft_new_directory *directory, bool durable);
/* Removes it, unless it is finished. */
void weft_new_directory_close(weft_new_directory *directory);

#endif
