/* SPDX-License-Identifier: Apache-2.0
 *
 * journal.h: a redo journal: prepared changes on disk, in terms of a checkpoint's tensors.
 *
 * The journal is a local file between two runs of the same weft, not a format for interchange. It is
 * written under a temporary name and renamed when it is whole, so that a journal that can be seen is a
 * journal that can be replayed; replaying twice does no harm, since it holds absolute values.
 *
 * Old values are there so that a journal knows its checkpoint: where it was killed, every byte is the old
 * or the new one. Anything else was put there since, and is not to be written over.
 *
 *   "WEFTJRN2"  u8 durable
 *   records:    u8 1 (sparse) or 2 (range)  u64 table index  u8 width  u64 count
 *               sparse: count x u64 unit;  range: u64 first unit
 *               count old values, count new values
 *   end:        u8 0, u64 XXH3-64 of all bytes before it
 */
#ifndef WEFT_PATCH_APPLY_JOURNAL_H
#define WEFT_PATCH_APPLY_JOURNAL_H

#include "apply.h"

#include <stdio.h>

typedef struct weft_journal {
    weft_context *context;
    const weft_table *table;
    char *path;      /* of the whole journal */
    char *temporary; /* of the one being written */
    FILE *file;
    void *hash;
    bool durable;
} weft_journal;

/* Starts a journal at `path`, which is copied. */
weft_status weft_journal_open(weft_journal *journal, weft_context *context, const char *path,
                              const weft_table *table, bool durable);
/* Appends the prepared changes of an apply to a view of the table. */
weft_status weft_journal_append(weft_journal *journal, const weft_apply *apply);
/* Makes it whole and visible. From here on the new state will be reached. */
weft_status weft_journal_publish(weft_journal *journal);
/* Opens the directory of the journal at `path`, to sync what will be done in it: all that can fail for want
 * of memory is behind one before that. */
weft_status weft_journal_directory(weft_context *context, const char *path, int *descriptor_out);
/* Closes; what was not published is removed. */
void weft_journal_close(weft_journal *journal);
/* Writes everything that the journal at `path` says into the table's tensors, or nothing, with
 * WEFT_BASE_MISMATCH, if they are not those that it was written for. */
weft_status weft_journal_replay(weft_context *context, const char *path, const weft_table *table,
                                bool *durable_out);

#endif
