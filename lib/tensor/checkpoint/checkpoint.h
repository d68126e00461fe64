/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.h: what is inside a checkpoint, for the files that open, create and write them, and how
 * lib/patch gets at one that an interrupted in-place apply left behind.
 */
#ifndef WEFT_TENSOR_CHECKPOINT_CHECKPOINT_H
#define WEFT_TENSOR_CHECKPOINT_CHECKPOINT_H

#include <weft/tensor.h>

#include <jansson.h>

/* Files are mapped whole. */
_Static_assert(sizeof(size_t) >= sizeof(uint64_t), "weft needs a 64-bit address space");

/* ---- for the in-place apply ---- */

/* Where the journal of an in-place apply to the checkpoint at `path` lies: "<file>.weft-journal" beside
 * a file, "<directory>/.weft-journal" in a directory (whatever it holds). Symbolic links are followed
 * first, so that every name of a checkpoint leads to the same journal. Release the result with
 * weft_release. */
weft_status weft_journal_path(weft_context *context, const char *path, char **journal_out);
/* WEFT_BUSY if that journal exists. */
weft_status weft_journal_refuse(weft_context *context, const char *path);
/* weft_checkpoint_open without looking for a journal. */
weft_status weft_checkpoint_open_unchecked(weft_context *context, const char *path, weft_open_mode mode,
                                           weft_checkpoint **checkpoint_out);

/* Removes what killed processes left in a directory while they created checkpoints there. Nothing to be
 * done about failures: whatever stays takes space and does no harm. */
void weft_temporary_sweep(const char *path);

/* ---- inside ---- */

typedef struct weft_checkpoint_file {
    char *name;   /* as in the container: "" or a shard's name */
    char *path;   /* where the file lies now; NULL if it was not created yet */
    char *target; /* of a new file: its name once finished; NULL if only its directory moves */
    char *header; /* a copy: the mapped one could change under us */
    size_t header_bytes;
    uint64_t data_bytes;
    json_t *metadata; /* or NULL */
    uint8_t *mapping; /* of the whole file */
    uint64_t mapping_bytes;
    int descriptor; /* kept for syncing files that were opened for writing; else -1 */
} weft_checkpoint_file;

/* A checkpoint that is being created. */
typedef struct weft_draft {
    pid_t process;    /* whose temporary files these are */
    char *directory;  /* where the temporary files are */
    char *target;     /* the file or directory that will stand there */
    bool fresh;       /* the directory itself is temporary and becomes the target */
    bool finished;    /* nothing is temporary any more */
    char *index_path; /* like path and target of a file */
    char *index_target;
    int lock;       /* descriptor of a temporary directory, else -1 */
    int index_lock; /* descriptor of a temporary index, else -1 */
} weft_draft;

struct weft_checkpoint {
    weft_context *context;
    weft_table *table;
    weft_checkpoint_file *files;
    size_t file_count;
    size_t *first; /* file i holds the tensors from first[i] up to first[i + 1] of the table */
    bool sharded;
    char *index;
    size_t index_bytes;
    weft_container container;
    weft_draft *draft; /* NULL unless created and not finished */
};

typedef enum weft_temporary_kind {
    WEFT_TEMPORARY_FILE,      /* ".tmp": swept after a kill */
    WEFT_TEMPORARY_DIRECTORY, /* the same */
    WEFT_TEMPORARY_ASIDE,     /* ".old": the user's own file, which is never swept */
} weft_temporary_kind;

/* Creates a file or directory under a name that nobody has; `number` helps to find a free one. */
weft_status weft_temporary_create(weft_context *context, const char *directory, size_t number,
                                  weft_temporary_kind kind, char **path_out, int *descriptor_out);

weft_status weft_checkpoint_allocate(weft_context *context, size_t file_count,
                                     weft_checkpoint **checkpoint_out);
/* Parses the header of a file and appends its tensors to the table. Files come in order. */
weft_status weft_checkpoint_list(weft_checkpoint *checkpoint, size_t file, const char *where,
                                 bool writable);
/* Maps the file behind `descriptor` and tells the tensors where their data is. */
weft_status weft_checkpoint_map(weft_checkpoint *checkpoint, size_t file, int descriptor, bool writable);
/* Points the container at the files. */
weft_status weft_checkpoint_describe(weft_checkpoint *checkpoint);
/* Removes what is temporary, and releases the draft. */
void weft_draft_abandon(weft_checkpoint *checkpoint);

/* "directory/name" */
char *weft_path_join(weft_context *context, const char *directory, const char *name);
/* The directory that holds `path`, which does not end in a slash. */
char *weft_path_parent(weft_context *context, const char *path);

#endif
