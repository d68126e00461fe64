/* SPDX-License-Identifier: Apache-2.0
 *
 * group_stages.c: a trainer, and a group of processes that follows it.
 */
#include "group_stages.h"

#include "patches.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "group stage: %s\n", what);
        abort();
    }
}

void stage_open(group_stage *stage, unsigned world, bool whole, uint64_t seed) {
    memset(stage, 0, sizeof *stage);
    stage->world = world;
    stage->whole = whole;
    stage->dice = (dice){seed};
    scratch_open_volatile(&stage->scratch);
    stage->context = patches_context(2);
    const weft_store_options volatile_writes = {.size = sizeof volatile_writes, .volatile_writes = true};
    require(weft_store_open(stage->context, scratch_path(&stage->scratch, "store"), &volatile_writes,
                            &stage->store) == WEFT_OK,
            "no store");
    sharded_open(&stage->model, stage->context, &stage->dice);
    sharded_cuts(world, stage->cuts);
    const weft_publisher_options options = {.size = sizeof options,
                                            .profile = WEFT_PROFILE_SMALL,
                                            .bucket_bytes = 32768,
                                            .cuts = stage->cuts,
                                            .cut_count = whole ? 0 : SHARDED_CUTS};
    require(weft_publisher_open(stage->context, stage->store, stage->model.view, &options,
                                &stage->publisher) == WEFT_OK,
            "no publisher");
}

void stage_close(group_stage *stage) {
    stage_kill(&stage->leader);
    for (unsigned i = 0; i < stage->world; i++) {
        stage_kill(&stage->members[i]);
    }
    weft_publisher_close(stage->publisher);
    model_close(&stage->model);
    weft_store_close(stage->store);
    weft_context_destroy(stage->context);
    scratch_close(&stage->scratch);
}

void stage_publish(group_stage *stage, unsigned per_million) {
    weft_publish_result result = {.size = sizeof result};
    sharded_step(&stage->model, &stage->dice, per_million);
    require(weft_publisher_publish(stage->publisher, NULL, &result) == WEFT_OK,
            weft_context_error(stage->context));
    stage->version = result.version;
    stage->uploaded += result.uploaded_bytes;
    require(result.version < STAGE_VERSIONS_MAX, "too many versions");
    for (unsigned i = 0; i < stage->world; i++) {
        stage->hashes[result.version][i] =
            stage->whole ? sharded_hash(&stage->model, 1, 0) : sharded_hash(&stage->model, stage->world, i);
    }
}

group_role stage_role(group_stage *stage, unsigned rank, uint64_t until) {
    group_role role = {.rank = rank, .world = stage->world, .until = until, .whole = stage->whole};
    snprintf(role.store, sizeof role.store, "%s/store", stage->scratch.directory);
    snprintf(role.group, sizeof role.group, "%s/group", stage->scratch.directory);
    snprintf(role.log, sizeof role.log, "%s/log-%u", stage->scratch.directory, rank);
    return role;
}

void stage_lead(group_stage *stage, uint64_t until) {
    group_role role = stage_role(stage, stage->world, until);
    stage->leader = group_spawn(&role, true);
}

void stage_join(group_stage *stage, unsigned rank, uint64_t until) {
    group_role role = stage_role(stage, rank, until);
    stage->members[rank] = group_spawn(&role, false);
}

void stage_kill(pid_t *process) {
    if (*process > 0) {
        kill(*process, SIGKILL);
        waitpid(*process, NULL, 0);
        *process = 0;
    }
}

/* ---- logs ---- */

static char *read_log(group_stage *stage, unsigned rank) {
    char name[32];
    snprintf(name, sizeof name, "log-%u", rank);
    if (!scratch_exists(&stage->scratch, name)) {
        return calloc(1, 1);
    }
    size_t size;
    char *text = scratch_read(&stage->scratch, name, &size);
    text = realloc(text, size + 1);
    require(text != NULL, "no memory");
    text[size] = '\0';
    return text;
}

/* A line that begins so, or contains it if `anywhere`. */
static bool find_line(group_stage *stage, unsigned rank, const char *text, bool anywhere) {
    char *log = read_log(stage, rank);
    bool found = false;
    for (const char *line = log; *line != '\0' && !found;) {
        size_t length = strcspn(line, "\n");
        const char *place = memmem(line, length, text, strlen(text));
        found = place != NULL && (anywhere || place == line);
        line += length + (line[length] == '\n');
    }
    free(log);
    return found;
}

bool stage_logged(group_stage *stage, unsigned rank, const char *text) {
    return find_line(stage, rank, text, true);
}

void stage_await(group_stage *stage, unsigned rank, const char *beginning) {
    for (int i = 0; i < 60000 && !find_line(stage, rank, beginning, false); i += 2) {
        const struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
    if (!find_line(stage, rank, beginning, false)) {
        char *log = read_log(stage, rank);
        fprintf(stderr, "group stage: rank %u never came to '%s':\n%s", rank, beginning, log);
        free(log);
        abort();
    }
}

static void check_end(group_stage *stage, unsigned rank, pid_t *process) {
    int code = *process > 0 ? group_wait(*process) : 0;
    *process = 0;
    if (code != 0) {
        char *log = read_log(stage, rank);
        fprintf(stderr, "group stage: place %u ended with %d:\n%s", rank, code, log);
        free(log);
        abort();
    }
}

void stage_finish(group_stage *stage) {
    for (unsigned i = 0; i < stage->world; i++) {
        check_end(stage, i, &stage->members[i]);
    }
    check_end(stage, stage->world, &stage->leader);
}

/* A line about weights; false if there is none left. `line` moves on. */
static bool next_weights(const char **line, char *kind, uint64_t *version, uint64_t *hash) {
    while (**line != '\0') {
        unsigned long long number, value;
        const char *here = *line;
        size_t length = strcspn(here, "\n");
        *line += length + (here[length] == '\n');
        if (sscanf(here, "%c %llu %llx", kind, &number, &value) == 3 && (*kind == 'C' || *kind == 'F')) {
            *version = number;
            *hash = value;
            return true;
        }
    }
    return false;
}

/* The versions that a rank has committed, in order. */
static size_t check_log(group_stage *stage, unsigned rank, uint64_t *versions) {
    char *log = read_log(stage, rank);
    const char *line = log;
    char kind;
    uint64_t version, hash, last = 0;
    size_t count = 0;
    while (next_weights(&line, &kind, &version, &hash)) {
        if (version == 0 || version > stage->version || hash != stage->hashes[version][rank] ||
            version < last || (kind == 'C' && version == last)) {
            fprintf(stderr, "group stage: rank %u is wrong at %c %llu:\n%s", rank, kind,
                    (unsigned long long)version, log);
            abort();
        }
        last = version;
        if (kind == 'C') {
            versions[count++] = version;
        }
    }
    free(log);
    return count;
}

size_t stage_check(group_stage *stage, bool together) {
    static uint64_t first[STAGE_VERSIONS_MAX];
    static uint64_t other[STAGE_VERSIONS_MAX];
    size_t count = check_log(stage, 0, first);
    for (unsigned i = 1; i < stage->world; i++) {
        size_t found = check_log(stage, i, other);
        if (together && (found != count || memcmp(first, other, count * sizeof *first) != 0)) {
            fprintf(stderr, "group stage: ranks 0 and %u have committed other versions\n", i);
            abort();
        }
    }
    return count;
}

static void check_lives(group_stage *stage, unsigned rank, const bool *committed) {
    char *log = read_log(stage, rank);
    const char *line = log;
    char kind;
    uint64_t version, hash, last = 0;
    while (next_weights(&line, &kind, &version, &hash)) {
        for (uint64_t v = last + 1; kind == 'C' && v < version; v++) {
            if (committed[v]) {
                fprintf(stderr, "group stage: rank %u went from %llu to %llu past %llu:\n%s", rank,
                        (unsigned long long)last, (unsigned long long)version, (unsigned long long)v, log);
                abort();
            }
        }
        last = version;
    }
    free(log);
}

size_t stage_check_lives(group_stage *stage) {
    static uint64_t versions[STAGE_VERSIONS_MAX];
    size_t distinct = 0;
    bool committed[STAGE_VERSIONS_MAX] = {false};
    for (unsigned i = 0; i < stage->world; i++) {
        size_t count = check_log(stage, i, versions);
        for (size_t j = 0; j < count; j++) {
            distinct += !committed[versions[j]];
            committed[versions[j]] = true;
        }
    }
    for (unsigned i = 0; i < stage->world; i++) {
        check_lives(stage, i, committed);
    }
    return distinct;
}

uint64_t stage_fetched(group_stage *stage) {
    char *log = read_log(stage, stage->world);
    unsigned long long version, bytes = 0;
    for (const char *line = log; *line != '\0';) {
        sscanf(line, "L %llu %llu", &version, &bytes);
        size_t length = strcspn(line, "\n");
        line += length + (line[length] == '\n');
    }
    free(log);
    return bytes;
}
