/* SPDX-License-Identifier: Apache-2.0
 *
 * train_sparse.c: see train_sparse.h.
 */
#include "train_sparse.h"

#include <stdlib.h>

enum {
    OPTION_KV = 0x400,
    OPTION_KV_BUDGET,
    OPTION_KV_INTERVAL,
    OPTION_KV_SINKS,
    OPTION_KV_WINDOW,
    OPTION_CORRECTION,
    OPTION_VETO,
    OPTION_EXCLUDE_REJECTED,
};

static const struct argp_option options[] = {
    {"kv", OPTION_KV, "POLICY", 0,
     "What workers keep of their caches while they sample: none (default: all), streaming, h2o, snapkv or "
     "rkv",
     0},
    {"kv-budget", OPTION_KV_BUDGET, "N", 0, "Tokens that are left when some are evicted", 0},
    {"kv-interval", OPTION_KV_INTERVAL, "N", 0,
     "Tokens from one choice to the next (default: a quarter of the budget)", 0},
    {"kv-sinks", OPTION_KV_SINKS, "N", 0, "First tokens, which stay (default: the policy's)", 0},
    {"kv-window", OPTION_KV_WINDOW, "N", 0, "Last tokens, which stay (default: the policy's)", 0},
    {"correction", OPTION_CORRECTION, "PRESET", 0,
     "What is done about responses that the policy would not have sampled with a whole cache: none "
     "(default), paper, released, tis, mis or icepop",
     0},
    {"veto", OPTION_VETO, "X", 0,
     "Reject a trajectory if the policy gives one of its tokens less than X times what the sampler did; 0: "
     "never (default: the preset's)",
     0},
    {"exclude-rejected", OPTION_EXCLUDE_REJECTED, NULL, 0,
     "Leave rejected trajectories out of the means that others are compared with", 0},
    {0},
};

static uint64_t tokens(struct argp_state *state, const char *option, const char *text, uint64_t least) {
    return command_parse_number(state, option, text, least, WEFT_KV_TOKENS_MAX);
}

static error_t parse(int key, char *text, struct argp_state *state) {
    train_sparse *sparse = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        sparse->veto = -1;
        return 0;
    case OPTION_KV:
        if (!weft_kv_policy_parse(text, &sparse->policy)) {
            argp_error(state, "--kv is none, streaming, h2o, snapkv or rkv, not '%s'", text);
        }
        break;
    case OPTION_KV_BUDGET:
        sparse->budget = tokens(state, "--kv-budget", text, 1);
        break;
    case OPTION_KV_INTERVAL:
        sparse->interval = tokens(state, "--kv-interval", text, 1);
        break;
    case OPTION_KV_SINKS:
        sparse->sinks = tokens(state, "--kv-sinks", text, 0) + 1;
        break;
    case OPTION_KV_WINDOW:
        sparse->window = tokens(state, "--kv-window", text, 1);
        break;
    case OPTION_CORRECTION:
        sparse->correction = text;
        break;
    case OPTION_VETO:
        sparse->veto = command_parse_real(state, "--veto", text, 0, 1);
        break;
    case OPTION_EXCLUDE_REJECTED:
        sparse->exclude_rejected = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    sparse->given = true;
    return 0;
}

const struct argp train_sparse_argp = {options, parse, NULL, NULL, NULL, NULL, NULL};

static weft_kv_options choose_kv(const train_sparse *sparse) {
    weft_kv_options kv = weft_kv_defaults(sparse->policy, sparse->budget);
    kv.interval = sparse->interval > 0 ? sparse->interval : kv.interval;
    kv.sinks = sparse->sinks > 0 ? sparse->sinks - 1 : kv.sinks;
    kv.window = sparse->window > 0 ? sparse->window : kv.window;
    return kv;
}

int train_sparse_choose(weft_command *command, const train_sparse *sparse, train_options *chosen) {
    weft_correction_options *correction = &chosen->grpo.correction;
    bool limited = sparse->budget > 0 || sparse->interval > 0 || sparse->sinks > 0 || sparse->window > 0;
    if (sparse->policy == WEFT_KV_NONE && limited) {
        return command_error(command, EXIT_USAGE, "a budget for caches needs a policy; give one with --kv");
    }
    if (sparse->policy != WEFT_KV_NONE && sparse->budget == 0) {
        return command_error(command, EXIT_USAGE, "--kv %s needs a --kv-budget",
                             weft_kv_policy_name(sparse->policy));
    }
    chosen->run.kv = choose_kv(sparse);
    if (sparse->correction != NULL) {
        weft_status status = weft_correction_preset(command->context, sparse->correction, correction);
        if (status != WEFT_OK) {
            return command_error(command, EXIT_USAGE, "--correction: %s",
                                 weft_context_error(command->context));
        }
    }
    correction->veto = sparse->veto >= 0 ? sparse->veto : correction->veto;
    correction->baseline_excludes_rejected = sparse->exclude_rejected;
    return EXIT_DONE;
}
