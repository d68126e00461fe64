/* SPDX-License-Identifier: Apache-2.0
 *
 * learner_start.c: how a trainer begins a run, or finds its way back into one.
 *
 * The output directory says which run it is and how far: run.json and state.safetensors. The store says
 * what has been published of it. Whatever a killed trainer did not get to is done here.
 */
#include "learner.h"

#include "../../lib/base/context.h"
#include "../../lib/base/hash.h"
#include "../../lm/learn/text.h"
#include "../files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { RUN_BYTES = 16 };

/* Between looks for the run of rank 0. */
static const double MEET_SECONDS = 0.2;

/* ---- the output directory ---- */

/* Two trainers that write the same state would each undo the other's. */
static weft_status lock_output(train_learner *learner) {
    const char *output = learner->output;
    learner->lock = open(output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (learner->lock < 0) {
        return weft_fail_errno(learner->context, errno, "cannot open the directory '%s'", output);
    }
    if (flock(learner->lock, LOCK_EX | LOCK_NB) != 0) {
        return weft_fail(learner->context, WEFT_BUSY, "another trainer is at work in '%s'", output);
    }
    return WEFT_OK;
}

/* All ranks may be given the same directory: the first has it to itself, the others have one in it. */
static weft_status name_output(train_learner *learner) {
    const train_options *options = learner->options;
    char name[32];
    if (options->rank == 0) {
        learner->output = weft_copy_text(learner->context, options->output, strlen(options->output));
        return learner->output != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    snprintf(name, sizeof name, "rank-%u", options->rank);
    return train_path_copy(learner->context, options->output, name, &learner->output);
}

static weft_status open_output(train_learner *learner) {
    weft_status status = name_output(learner);
    if (status == WEFT_OK) {
        status = train_make_directory(learner->context, learner->output);
    }
    if (status == WEFT_OK) {
        status = lock_output(learner);
    }
    if (status == WEFT_OK) {
        status =
            train_path_copy(learner->context, learner->output, "state.safetensors", &learner->state_path);
    }
    if (status == WEFT_OK) {
        status =
            train_path_copy(learner->context, learner->output, "before.safetensors", &learner->before_path);
    }
    return status == WEFT_OK
               ? train_path_copy(learner->context, learner->output, "run.json", &learner->run_path)
               : status;
}

/* The state goes first: without it nothing else is looked at. */
static weft_status forget(train_learner *learner) {
    static const char *const names[] = {"state.safetensors",
                                        "before.safetensors",
                                        "run.json",
                                        "metrics.jsonl",
                                        "pending.json",
                                        "learning.json",
                                        "reference/model.safetensors",
                                        "reference/config.json"};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == WEFT_OK; i++) {
        char path[TRAIN_PATH_SIZE];
        status = train_path(learner->context, learner->output, names[i], path);
        if (status == WEFT_OK && unlink(path) != 0 && errno != ENOENT) {
            status = weft_fail_errno(learner->context, errno, "cannot remove '%s'", path);
        }
    }
    return status;
}

/* ---- which run ---- */

static weft_status write_run(train_learner *learner) {
    char *text = NULL;
    weft_status status = train_run_format(learner->context, &learner->run, &text);
    if (status == WEFT_OK) {
        status = lm_text_write(learner->context, learner->run_path, text, learner->options->durable);
        weft_release(learner->context, text);
    }
    return status;
}

/* Sets the name of the run that lies in the output directory. */
static weft_status read_run(train_learner *learner) {
    char *text = NULL;
    size_t size = 0;
    train_run found;
    weft_status status = train_read_text(learner->context, learner->run_path, TRAIN_RUN_MAX, &text, &size);
    if (status == WEFT_OK) {
        status = train_run_parse(learner->context, learner->run_path, text, size, &found);
        weft_release(learner->context, text);
    }
    if (status != WEFT_OK) {
        return train_explain_lost(learner->context, status);
    }
    if (!train_run_alike(&found, &learner->run)) {
        return weft_fail(learner->context, WEFT_INVALID_ARGUMENT,
                         "the run in '%s' has another model, task, seed, batch, team or way to sync than "
                         "this call says; give the same options to go on with it, or --fresh to begin anew",
                         learner->output);
    }
    memcpy(learner->run.name, found.name, sizeof found.name);
    return WEFT_OK;
}

/* A store has one run at a time, and its workers are not taken away by accident. */
static weft_status look_at_store(train_learner *learner) {
    train_run found;
    weft_status status = train_run_get(learner->context, learner->store, &found);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(learner->context);
        return WEFT_OK;
    }
    if (learner->options->fresh && status != WEFT_OK && weft_status_is_integrity(status)) {
        weft_context_clear(learner->context);
        return WEFT_OK;
    }
    if (status == WEFT_OK && !learner->options->fresh && strcmp(found.name, learner->run.name) != 0) {
        return weft_fail(learner->context, WEFT_INVALID_ARGUMENT,
                         "the store holds the run %s, whose state is not in '%s'; give the directory of "
                         "that run or another store, or say --fresh to begin a new run there",
                         found.name, learner->output);
    }
    return status;
}

static weft_status check_store(train_learner *learner) {
    weft_status status = look_at_store(learner);
    while (status != WEFT_OK && !weft_status_is_integrity(status)) {
        status = train_patience_bear(&learner->patience, status);
        if (status != WEFT_OK) {
            return status;
        }
        status = look_at_store(learner);
    }
    return status;
}

/* ---- the run that rank 0 has begun ---- */

static bool follows(const train_learner *learner) {
    return learner->options->rank != 0 || learner->options->join;
}

/* WEFT_MORE: it is not there yet, or is from before the run was given more steps. */
static weft_status find_run(train_learner *learner, const char *expected) {
    train_run found;
    weft_status status = train_run_get(learner->context, learner->store, &found);
    if (status == WEFT_NOT_FOUND) {
        weft_context_clear(learner->context);
        return WEFT_MORE;
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (found.steps != learner->run.steps || (expected != NULL && strcmp(expected, found.name) != 0)) {
        return WEFT_MORE;
    }
    if (!train_run_alike(&found, &learner->run)) {
        return weft_fail(learner->context, WEFT_INVALID_ARGUMENT,
                         "the run in the store has another model, task, seed, batch or team than this call "
                         "says; give all ranks the same options");
    }
    if (found.fused != learner->run.fused) {
        return weft_fail(learner->context, WEFT_UNSUPPORTED,
                         "rank 0's processor %s multiplications and additions, and this one (%s) does not "
                         "do the same: their policies would not be the same; use machines of one kind",
                         found.fused ? "fuses" : "does not fuse", weft_cpu_name());
    }
    memcpy(learner->run.name, found.name, sizeof found.name);
    return WEFT_OK;
}

/* Over MPI all learn which run it is from rank 0, which has put it by then. */
static weft_status tell_run(train_learner *learner, char expected[WEFT_RUN_TEXT]) {
    char *names = weft_allocate_zeroed(learner->context, learner->run.trainers, WEFT_RUN_TEXT);
    if (names == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status =
        train_team_tell(learner->options, learner->context, learner->run.name, WEFT_RUN_TEXT, names);
    if (status == WEFT_OK) {
        memcpy(expected, names, WEFT_RUN_TEXT);
        expected[WEFT_RUN_TEXT - 1] = 0;
    }
    weft_release(learner->context, names);
    return status;
}

static weft_status meet(train_learner *learner) {
    char expected[WEFT_RUN_TEXT] = "";
    bool told = learner->options->exchange != NULL;
    weft_status status = WEFT_OK;
    if (!follows(learner)) {
        return WEFT_OK;
    }
    if (told) {
        status = tell_run(learner, expected);
    }
    while (status == WEFT_OK) {
        status = find_run(learner, told ? expected : NULL);
        if (status == WEFT_OK) {
            train_patience_calm(&learner->patience);
            return WEFT_OK;
        }
        status = status == WEFT_MORE
                     ? train_patience_wait(&learner->patience, MEET_SECONDS,
                                           "rank 0 has not begun a run of so many steps there")
                     : train_patience_bear(&learner->patience, status);
    }
    return status;
}

/* ---- the state ---- */

/* Over MPI the ranks go on together from the last round that all of them have ended. */
static weft_status keep_before(train_learner *learner) {
    const train_team *team = &learner->team;
    bool passed = weft_loco_rounds(team->loco) != learner->saved_rounds;
    if (passed && !train_team_goes_on(team) && rename(learner->state_path, learner->before_path) != 0 &&
        errno != ENOENT) {
        return weft_fail_errno(learner->context, errno, "cannot rename '%s'", learner->state_path);
    }
    return WEFT_OK;
}

static weft_status save_team(train_learner *learner) {
    weft_status status = keep_before(learner);
    if (status == WEFT_OK) {
        status = train_team_save(&learner->team, learner->step, learner->state_path);
    }
    if (status == WEFT_OK) {
        learner->saved_rounds = weft_loco_rounds(learner->team.loco);
    }
    return status;
}

static weft_status load_team(train_learner *learner, const char *path) {
    weft_status status = train_team_load(&learner->team, path, &learner->step);
    if (status == WEFT_OK) {
        learner->saved_rounds = weft_loco_rounds(learner->team.loco);
    }
    return status;
}

static weft_status open_team(train_learner *learner) {
    weft_status status = train_team_open(&learner->team, learner->store, &learner->run, learner->options,
                                         learner->trainer, &learner->patience);
    learner->turn = learner->team.passing;
    return status;
}

weft_status train_learner_save(train_learner *learner) {
    if (learner->team.loco != NULL) {
        return save_team(learner);
    }
    lm_progress progress = {
        .step = learner->step,
        .prompts = learner->step * learner->run.prompts,
        .task = learner->run.task,
    };
    return lm_state_write(learner->trainer, &progress, learner->state_path, learner->options->durable);
}

static weft_status load(train_learner *learner) {
    lm_progress progress;
    if (learner->team.loco != NULL) {
        bool there = access(learner->state_path, F_OK) == 0;
        return load_team(learner, there ? learner->state_path : learner->before_path);
    }
    weft_status status = lm_state_read(learner->trainer, learner->state_path, &progress);
    if (status == WEFT_OK) {
        learner->step = progress.step;
    }
    return status;
}

static weft_status resume(train_learner *learner) {
    weft_status status = read_run(learner);
    if (status == WEFT_OK) {
        status = check_store(learner);
    }
    if (status == WEFT_OK) {
        status = open_team(learner);
    }
    if (status == WEFT_OK) {
        status = load(learner);
    }
    if (status == WEFT_OK) {
        learner->resumed = learner->step;
        /* Who says less would tell workers that all is made when it is not. */
        status = learner->step <= learner->run.steps
                     ? WEFT_OK
                     : weft_fail(learner->context, WEFT_INVALID_ARGUMENT,
                                 "the run in '%s' has made %llu steps already; it cannot end after %llu",
                                 learner->output, (unsigned long long)learner->step,
                                 (unsigned long long)learner->run.steps);
    }
    if (status == WEFT_OK) {
        status = train_learner_resume_learning(learner);
    }
    if (status == WEFT_OK) {
        train_note(learner->options->watch, "going on with run %.8s after %llu steps", learner->run.name,
                   (unsigned long long)learner->step);
    }
    return status;
}

static weft_status begin(train_learner *learner) {
    weft_status status = follows(learner) ? WEFT_OK : check_store(learner);
    if (status == WEFT_OK) {
        status = forget(learner);
    }
    if (status == WEFT_OK) {
        status = train_warm_up(learner->trainer, learner->options);
    }
    if (status == WEFT_OK && !follows(learner)) {
        status = weft_hex_random(learner->context, RUN_BYTES, learner->run.name);
    }
    if (status == WEFT_OK) {
        status = open_team(learner);
    }
    if (status == WEFT_OK) {
        status = write_run(learner);
    }
    if (status == WEFT_OK) {
        status = train_learner_begin_learning(learner);
    }
    if (status == WEFT_OK) {
        status = train_learner_save(learner);
    }
    return status;
}

static weft_status find_state(train_learner *learner) {
    bool there = access(learner->state_path, F_OK) == 0 || access(learner->before_path, F_OK) == 0;
    return there && !learner->options->fresh ? resume(learner) : begin(learner);
}

/* ---- all of it ---- */

static weft_status put_run_once(void *opaque) {
    train_learner *learner = opaque;
    return train_run_put(learner->context, learner->store, &learner->run);
}

static weft_status put_run(train_learner *learner) {
    char told[WEFT_RUN_TEXT];
    if (follows(learner)) {
        return WEFT_OK;
    }
    weft_status status = train_patience_try(&learner->patience, put_run_once, learner);
    return status == WEFT_OK && learner->options->exchange != NULL ? tell_run(learner, told) : status;
}

/* Over MPI no rank is ahead of another by more than the round that some did not get to the end of. */
static weft_status go_back(train_learner *learner) {
    uint64_t own = weft_loco_rounds(learner->team.loco);
    uint64_t least = own;
    uint64_t *all = weft_allocate_zeroed(learner->context, learner->run.trainers, sizeof *all);
    if (all == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = train_team_tell(learner->options, learner->context, &own, sizeof own, all);
    for (uint32_t i = 0; i < learner->run.trainers && status == WEFT_OK; i++) {
        least = all[i] < least ? all[i] : least;
    }
    weft_release(learner->context, all);
    if (status != WEFT_OK || least == own) {
        return status;
    }
    status = load_team(learner, learner->before_path);
    if (status == WEFT_OK && weft_loco_rounds(learner->team.loco) != least) {
        status = weft_fail(learner->context, WEFT_BASE_MISMATCH,
                           "the states of the ranks do not belong together: one has ended %llu rounds, and "
                           "this one %llu; give the directories of one run",
                           (unsigned long long)least, (unsigned long long)own);
    }
    return status;
}

void train_learner_follow_rounds(train_learner *learner) {
    uint32_t span = learner->run.local_steps;
    learner->step = weft_loco_rounds(learner->team.loco) * span;
    if (learner->run.overlap && learner->step < learner->run.steps) {
        learner->step += span;
    }
}

weft_status train_learner_take_up(train_learner *learner) {
    train_team *team = &learner->team;
    if (!learner->run.overlap || learner->step == train_learner_policy_step(learner)) {
        return WEFT_OK;
    }
    if (learner->step < learner->run.steps) {
        return train_team_begin(team);
    }
    weft_status status = train_team_agree(team, &learner->round);
    return status == WEFT_OK || status == WEFT_MORE ? train_learner_save(learner) : status;
}

/* The same where rounds overlap: one whose steps are made is begun again, with the same payload, though the
 * others may have ended it since; that is found out when the next steps are made. */
static weft_status join_overlapping(train_learner *learner) {
    uint64_t rounds = 0;
    train_team *team = &learner->team;
    weft_status status = train_team_goes_on(team)
                             ? train_team_look(team, learner->step / learner->run.local_steps)
                             : go_back(learner);
    if (status == WEFT_MORE) {
        status = train_team_catch_up(team, &rounds);
        train_learner_follow_rounds(learner);
        status = status == WEFT_OK ? train_learner_save(learner) : status;
    }
    return status == WEFT_OK ? train_learner_take_up(learner) : status;
}

/* Comes to where the other ranks are, and ends a round that was to be ended. */
static weft_status join_team(train_learner *learner) {
    uint64_t rounds = 0;
    train_team *team = &learner->team;
    if (team->loco == NULL) {
        return WEFT_OK;
    }
    if (learner->run.overlap) {
        return join_overlapping(learner);
    }
    weft_status status = train_team_goes_on(team) ? train_team_catch_up(team, &rounds) : go_back(learner);
    if (status != WEFT_OK || learner->run.outer == TRAIN_DDP) {
        return status;
    }
    uint64_t first = weft_loco_rounds(team->loco) * learner->run.local_steps;
    learner->step = rounds > 0 ? first : learner->step;
    bool due = learner->step == first + learner->run.local_steps;
    if (due) {
        status = train_team_agree(team, &learner->round);
    }
    if (status == WEFT_MORE) {
        learner->step = weft_loco_rounds(team->loco) * learner->run.local_steps;
        status = WEFT_OK;
    }
    return status == WEFT_OK && (due || rounds > 0) ? train_learner_save(learner) : status;
}

static weft_status open_tools(train_learner *learner) {
    const train_options *options = learner->options;
    weft_status status = train_collector_open(&learner->collector, learner->context, learner->store,
                                              &learner->run, learner->trainer->pass, &learner->patience);
    learner->collector.first = options->rank * learner->run.slots;
    learner->collector.idle = learner->team.loco != NULL ? train_learner_look : NULL;
    learner->collector.opaque = learner;
    if (status == WEFT_OK) {
        status = weft_view_create(learner->context, train_team_table(&learner->team), &learner->view);
    }
    if (status == WEFT_OK) {
        status = train_metrics_open(&learner->metrics, learner->context, learner->store, options->watch,
                                    &learner->run, learner->output, learner->step);
    }
    if (status == WEFT_OK) {
        status = train_density_open(&learner->density, train_team_policy(&learner->team),
                                    options->density_bytes);
    }
    return status;
}

weft_status train_learner_start(train_learner *learner) {
    weft_status (*const stages[])(train_learner *) = {
        meet,      find_state, train_learner_open_reference, put_run,
        join_team, open_tools, train_learner_find_published};
    weft_status status = train_options_check(learner->context, learner->options);
    if (status == WEFT_OK) {
        status = open_output(learner);
    }
    if (status == WEFT_OK) {
        status = lm_trainer_create(learner->context, &learner->run.config, &learner->trainer);
    }
    for (size_t i = 0; i < sizeof stages / sizeof *stages && status == WEFT_OK; i++) {
        status = stages[i](learner);
    }
    if (status == WEFT_OK && learner->step % learner->run.local_steps == 0) {
        (void)train_density_note(&learner->density);
    }
    return status;
}

void train_learner_close(train_learner *learner) {
    weft_publisher_close(learner->publisher);
    weft_view_destroy(learner->view);
    train_density_close(&learner->density);
    train_metrics_close(&learner->metrics);
    train_collector_close(&learner->collector);
    lm_pass_destroy(learner->reference_pass);
    lm_model_destroy(learner->reference);
    train_team_close(&learner->team);
    lm_trainer_destroy(learner->trainer);
    weft_release(learner->context, learner->output);
    weft_release(learner->context, learner->before_path);
    weft_release(learner->context, learner->run_path);
    weft_release(learner->context, learner->state_path);
    if (learner->lock >= 0) {
        close(learner->lock);
    }
}
