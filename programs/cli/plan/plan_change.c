/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_change.c: how many weights a step changes, and how many bytes that takes.
 *
 * The law: an FP32 master lies anywhere in the cell of values that round to its BF16 weight, so a step
 * moves the weight with the chance min(1, |step| / ULP), and the ULP follows from the weight's exponent.
 * How large a step is beside the learning rate, and what a change weighs, was measured; doc/PLAN.md says
 * where.
 */
#include "plan.h"

#include <math.h>

enum { BIAS = 127, FRACTION_BITS = 7 };

/* Mean |step| / rate of Adam: of a language model under GRPO, and the least and most of other runs. */
static const double STEP = 0.24, STEP_LOW = 0.19, STEP_HIGH = 0.41;
/* Deviations of matrices, where only the number of parameters is known. */
static const double DEVIATION_LOW = 0.015, DEVIATION_HIGH = 0.033;
/* Masters that are BF16 lose what does not reach half a ULP at once: their share of the law's changes. */
static const double STORED = 0.35;

static double change_share(const plan_model *model, double step) {
    double share = 0;
    for (int i = 0; i < PLAN_EXPONENTS; i++) {
        share += model->share[i] * fmin(1, step / ldexp(1, (i > 0 ? i : 1) - BIAS - FRACTION_BITS));
    }
    return share;
}

void plan_density_by_rate(const plan_model *model, double rate, bool stored, plan_density *density) {
    double factor = stored ? STORED : 1;
    plan_model low = *model, high = *model;
    if (!model->measured) {
        plan_model_spread(&low, DEVIATION_HIGH);
        plan_model_spread(&high, DEVIATION_LOW);
    }
    density->value = factor * change_share(model, STEP * rate);
    density->low = fmin(density->value, factor * change_share(&low, STEP_LOW * rate));
    density->high = fmax(density->value, factor * change_share(&high, STEP_HIGH * rate));
    snprintf(density->basis, sizeof density->basis,
             "the law |step|/ULP%s; steps of %g (%g to %g) times the rate, %s",
             stored ? ", times 0.35 for masters in BF16" : "", STEP, STEP_LOW, STEP_HIGH,
             model->measured ? "exponents of the checkpoint" : "weights of deviation 0.015 to 0.033");
}

/* Over k steps the share grows as k^0.84 on a language model, until everything has changed. */
double plan_density_after(double density, double steps) {
    return fmin(1, density * pow(steps, 0.84));
}

/* Bytes per change by density: `weft bench --density --params 8M`, the small profile. */
static const struct {
    double density, bytes;
} weights[] = {{0.00019, 1.614}, {0.00155, 1.086}, {0.00413, 0.960}, {0.01168, 0.841},
               {0.02097, 0.776}, {0.04464, 0.702}, {0.07766, 0.648}, {0.13202, 0.589},
               {0.28595, 0.508}, {0.67343, 0.464}, {0.91842, 0.534}, {0.99965, 0.915}};
enum { WEIGHTS = sizeof weights / sizeof weights[0] };

double plan_patch_bytes(const plan_model *model, double density) {
    size_t i = 1;
    while (i + 1 < WEIGHTS && weights[i].density < density) {
        i++;
    }
    double span = log(weights[i].density / weights[i - 1].density);
    double place = fmin(fmax(log(fmax(density, 1e-12) / weights[i - 1].density) / span, 0), 1);
    double each = weights[i - 1].bytes + place * (weights[i].bytes - weights[i - 1].bytes);
    return fmin(density * (double)model->parameters * each, plan_anchor_bytes(model));
}

/* As much smaller as a first version of the trace is: `weft bench --density --params 8M`. */
double plan_anchor_bytes(const plan_model *model) {
    return 2 * (double)model->parameters * 0.67;
}
