/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.h: what `weft convert` does, by what it goes from and to; and what `weft pull` and `weft follow`
 * take from there.
 */
#ifndef WEFT_PROGRAMS_CLI_CONVERT_CONVERT_H
#define WEFT_PROGRAMS_CLI_CONVERT_CONVERT_H

#include "../patience.h"
#include "../remote.h"

typedef enum convert_kind {
    CONVERT_NOTHING, /* cannot be told */
    CONVERT_FOREIGN,
    CONVERT_STORE,
    CONVERT_PATCH,
    CONVERT_CHECKPOINT,
} convert_kind;

typedef struct convert_arguments {
    weft_command command;
    weft_remote remote;
    const char *paths[2]; /* IN and OUT */
    const char *base;
    const char *mirror;
    uint64_t version; /* 0: the newest */
    uint64_t base_version;
    const char *base_version_given;
    unsigned encoding; /* as weft_foreign_encoding; what is given, else what the labels say */
    const char *encoding_given;
    unsigned checksum;
    const char *checksum_given;
    uint64_t level;
    uint64_t shard_bytes;
    unsigned profile;
    bool assume_base;
    bool follow;
    bool durable;
    double poll_seconds;
    convert_kind kinds[2];
} convert_arguments;

/* What IN or OUT is, by its scheme ("store:", "patch:", "checkpoint:", or a format's), its ending, or what
 * is there; `path_out` is what follows the scheme, except of a format. */
convert_kind convert_classify(weft_command *command, const char *text, const char **path_out);

/* From FOREIGN to a checkpoint, a patch or FOREIGN; from a patch or a checkpoint to FOREIGN. */
int convert_to_checkpoint(convert_arguments *arguments);
int convert_to_patch(convert_arguments *arguments);
int convert_one(convert_arguments *arguments);
/* Between a store and FOREIGN. */
int convert_to_store(convert_arguments *arguments);
int convert_from_store(convert_arguments *arguments);

/* ---- what they share ---- */

/* Opens IN; with --follow it is waited for until it can be read. */
int convert_open(convert_arguments *arguments, weft_foreign **foreign_out);
/* The options of a write, without versions. */
weft_foreign_write_options convert_write_options(const convert_arguments *arguments);
/* The changes that a patch makes to a view of a checkpoint. */
weft_status convert_patch_step(weft_context *context, const weft_patch *patch, const weft_table *table,
                               weft_foreign_step **step_out);
/* The same from one view to another. */
weft_status convert_view_step(weft_context *context, const weft_table *table, const weft_view *base,
                              const weft_view *next, weft_foreign_step **step_out);
/* A line about a version: of `version`, from `base`, with these numbers. */
int convert_tell(convert_arguments *arguments, const char *what, uint64_t version, uint64_t base,
                 json_t *more);
/* Between two looks. EXIT_DONE: look again. */
int convert_wait(convert_arguments *arguments);

/* ---- for pull and follow ---- */

/* True of FORMAT:PATH; also of a format that is refused, which opening it says. */
bool foreign_named(const char *text);

/* One step of OUT towards the newest version; opens what is not open yet. WEFT_MORE: there is none. */
typedef struct foreign_follower {
    weft_command *command;
    weft_store_options reached; /* how a place in a bucket is; see remote_options */
    const char *place;
    const char *out;
    bool assume_base;
    bool durable;
    weft_foreign *foreign;
    weft_foreign_replica *replica;
    weft_foreign_replica_info info;
    uint64_t stranded; /* the newest version that nothing leads to, and that was told of */
} foreign_follower;

#define FOREIGN_ASSUME_BASE                                                                                \
    "Believe that the base is the right one, where the deltas of another system do not say; if it is "     \
    "not, "                                                                                                \
    "the weights are wrong and nothing shows it"

weft_status foreign_follow(foreign_follower *follower);
/* Where nothing leads on: versions beyond that cannot be reached, since one between is missing, are told of
 * once if somebody waits, and are a failure if not. */
int foreign_stranded(foreign_follower *follower, bool waits);
/* A failure unless `version` is at `wanted`, or nothing is wanted (0). */
int foreign_reached(weft_command *command, const char *place, uint64_t version, uint64_t wanted);
void foreign_follow_close(foreign_follower *follower);
int foreign_follow_print(const foreign_follower *follower);

#endif
