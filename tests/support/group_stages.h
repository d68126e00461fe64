/* SPDX-License-Identifier: Apache-2.0
 *
 * group_stages.h: a trainer, and a group of processes that follows it. Every call ends the test program
 * with a message if the surroundings fail it.
 *
 * The rule that all of these tests check: what a rank holds, by its real bytes, is a published version;
 * ranks that commit do so together; and once the faults are gone all are at the newest.
 */
#ifndef WEFT_TESTS_GROUP_STAGES_H
#define WEFT_TESTS_GROUP_STAGES_H

#include "groups.h"
#include "scratch.h"

enum { STAGE_RANKS_MAX = 8, STAGE_VERSIONS_MAX = 4096 };

typedef struct group_stage {
    scratch scratch;
    weft_context *context;
    weft_store *store;
    model model;
    dice dice;
    weft_cut cuts[SHARDED_CUTS];
    weft_publisher *publisher;
    unsigned world;
    bool whole;
    uint64_t version;
    uint64_t uploaded;
    uint64_t hashes[STAGE_VERSIONS_MAX][STAGE_RANKS_MAX];
    pid_t leader;
    pid_t members[STAGE_RANKS_MAX];
} group_stage;

/* `whole`: each rank holds the whole model. */
void stage_open(group_stage *stage, unsigned world, bool whole, uint64_t seed);
/* Processes that are still there are killed. */
void stage_close(group_stage *stage);
/* One step of training. */
void stage_publish(group_stage *stage, unsigned per_million);
/* What a process is told; to be changed before it is started. */
group_role stage_role(group_stage *stage, unsigned rank, uint64_t until);
void stage_lead(group_stage *stage, uint64_t until);
void stage_join(group_stage *stage, unsigned rank, uint64_t until);
void stage_kill(pid_t *process);
/* Waits until the log of a rank has a line that begins so; for at most a minute. */
void stage_await(group_stage *stage, unsigned rank, const char *beginning);
bool stage_logged(group_stage *stage, unsigned rank, const char *text);
/* Waits for all processes, which must end well. */
void stage_finish(group_stage *stage);
/* All weights that were logged are those of their versions, versions only rise, and if `together` the ranks
 * have committed the same ones. Returns how many rank 0 has committed. */
size_t stage_check(group_stage *stage, bool together);
/* For ranks that were killed and came back: between being filled and its end, a rank has gone through every
 * version that any rank has committed. Returns how many those are. */
size_t stage_check_lives(group_stage *stage);
/* The last line of the leader's log that begins with 'L': bytes that were fetched. */
uint64_t stage_fetched(group_stage *stage);

#endif
