/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h: the parts of `weft plan`: how large a model is and how its weights are spread, how many of them a
 * step changes, what a version then weighs, and a simulation of the protocol over links and relays.
 */
#ifndef WEFT_PROGRAMS_CLI_PLAN_PLAN_H
#define WEFT_PROGRAMS_CLI_PLAN_PLAN_H

#include "../command.h"

/* ---- plan_model.c: what is sent ---- */

enum { PLAN_EXPONENTS = 256 };

typedef struct plan_model {
    char name[TEXT_SIZE];
    uint64_t parameters;
    bool measured;                /* the shares are of a checkpoint, and not of a Gaussian */
    double share[PLAN_EXPONENTS]; /* of weights, by the exponent field of BF16 */
} plan_model;

/* A name of the table, a config.json or a directory that has only that, or a checkpoint. */
int plan_model_open(weft_command *command, const char *given, plan_model *model);
/* So many parameters. */
void plan_model_count(plan_model *model, uint64_t parameters);
/* Spreads the weights as a Gaussian with this deviation. */
void plan_model_spread(plan_model *model, double deviation);
/* Prints the names that it knows. */
int plan_model_list(weft_command *command);

/* ---- plan_change.c: what a step changes, and what that weighs ---- */

/* What a density rests on. */
typedef struct plan_density {
    double value, low, high; /* shares of the weights */
    char basis[200];         /* in words: where value and bounds come from */
} plan_density;

/* By the law: a weight changes with the chance |step| / ULP. `stored`: masters are BF16 themselves. */
void plan_density_by_rate(const plan_model *model, double rate, bool stored, plan_density *density);
/* After k steps of this density. */
double plan_density_after(double density, double steps);
/* Bytes of a patch in the small profile. */
double plan_patch_bytes(const plan_model *model, double density);
/* Bytes of a snapshot of all weights. */
double plan_anchor_bytes(const plan_model *model);

/* ---- plan_simulate.c: the protocol, event by event ---- */

enum { PLAN_REGIONS_MAX = 64 };

typedef struct plan_region {
    char name[TEXT_SIZE];
    uint64_t workers;
    double rate;  /* bytes per second of the link to it, which all of it shares */
    double delay; /* seconds one way */
} plan_region;

typedef struct plan_fleet {
    plan_region regions[PLAN_REGIONS_MAX];
    size_t count;
    double uplink;    /* bytes per second that the store can send, to all regions together */
    double local;     /* of a relay to its readers, and of a reader */
    uint64_t relays;  /* of each region that read from the store; 0: workers do so themselves */
    uint64_t fan_out; /* readers of a relay, at most; more make another tier */
    uint64_t versions;
    double step; /* seconds from one version to the next */
    uint64_t anchor_every;
    double leave;  /* share of the workers that goes away at a version … */
    uint64_t away; /* … for so many versions */
    double join;   /* share that is replaced by new ones, which have nothing */
    double faults; /* chance that a transfer is cut */
    uint64_t seed;
} plan_fleet;

/* What one way to synchronise costs the ends. */
typedef struct plan_way {
    bool whole;     /* full sync: each version is the whole model */
    double density; /* of a step */
    double payload; /* bytes of a version */
    double publish; /* seconds until it can be seen */
    double prepare; /* seconds from the last byte to the commit */
    double pause;   /* seconds of the commit */
    const plan_model *model;
} plan_way;

typedef struct plan_result {
    uint64_t commits, skipped; /* versions that workers were brought to, and that they passed over */
    uint64_t most_behind;      /* versions */
    uint64_t anchors, leaps, cuts;
    double median, p99,
        worst; /* seconds from the end of a step to the commit, of workers that were there */
    double store_bytes, store_requests;   /* that the store answers, per version */
    double all_bytes, all_requests;       /* the same, if no region passed over any version */
    double worker_bytes, worker_requests; /* that workers get, per version */
    uint64_t relays;
} plan_result;

int plan_simulate(weft_command *command, const plan_fleet *fleet, const plan_way *way, plan_result *result);

#endif
