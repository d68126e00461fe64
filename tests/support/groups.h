/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.h: a model that is cut over tensor-parallel ranks, and the leader and the members of a group as
 * functions, to be run as processes or as threads. What they do they write into a log, line by line:
 *
 *   F version hash    the rank's weights were filled
 *   C version hash    ... committed
 *   A text            the version was aborted
 *   E text            something else failed
 *   L version bytes   the leader's group is at a version, and so much was fetched
 *
 * The hash is that of the live weights as they are.
 */
#ifndef WEFT_TESTS_GROUPS_H
#define WEFT_TESTS_GROUPS_H

#include "models.h"

#include <weft/sync.h>

#include <sys/types.h>

enum { SHARDED_CUTS = 8, SHARDED_LIVE = 6 };

/* The trainer's side: the checkpoint's tensors, all BF16. */
void sharded_open(model *model, weft_context *context, dice *dice);
void sharded_step(model *model, dice *dice, unsigned per_million);
/* How the publisher must cut for `world` ranks. */
void sharded_cuts(unsigned world, weft_cut cuts[SHARDED_CUTS]);
/* The hash of what a rank holds of the trainer's weights. */
uint64_t sharded_hash(const model *model, unsigned world, unsigned rank);

/* What goes wrong with a member, when it is at `fault_version`. */
typedef enum group_fault {
    GROUP_FAULT_NONE,
    GROUP_FAULT_DRIFT,      /* its weights change behind its back */
    GROUP_FAULT_UNVOTED,    /* it is killed between prepare and commit */
    GROUP_FAULT_VOTED,      /* it is killed while it waits for the others */
    GROUP_FAULT_COMMITTING, /* it is killed in the middle of the scatter */
    GROUP_FAULT_SILENT,     /* it prepares and never votes */
    GROUP_FAULT_SLOW,       /* the others wait for its vote a while */
} group_fault;

typedef struct group_role {
    char store[512];
    char group[512];
    char log[512];
    unsigned rank; /* of a member */
    unsigned world;
    uint64_t until; /* it ends at this version; the leader when all ranks have left too */
    double seconds; /* to wait for others; 0: the default */
    group_fault fault;
    uint64_t fault_version;
    bool whole; /* each rank holds the whole model */
} group_role;

/* Both return an exit code. */
int group_lead(const group_role *role);
int group_follow(const group_role *role);

/* The same as a process: this program again. */
pid_t group_spawn(const group_role *role, bool lead);
/* For main: true if this process is one of those, and has done its part. */
bool group_spawned(int count, char **arguments, int *code_out);
/* Waits for a process to end by itself, for at most a minute; its exit code, or minus the signal. */
int group_wait(pid_t process);

#endif
