/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h: the inner loops of the model, in one form per instruction set (lib/base/cpu.h).
 *
 * The product of matrices is our own and not a BLAS for one property: an element of the result is always
 * the chain fma(a[i][k], b[k][j], sum) over ascending k, whatever the shape around it. A row's result
 * therefore does not depend on which other rows are computed with it, on the number of threads, or on where
 * a long chain is cut. That is why generation agrees with training bit for bit, and a gradient with itself
 * for any number of threads. At the shapes of small models it is faster than OpenBLAS too, because weights
 * are packed once per optimizer step and not once per call.
 *
 * The other kernels use plain IEEE operations in a fixed order, sixteen partial sums where there is a sum,
 * so that all forms agree bit for bit; only the portable product differs, which does not fuse.
 */
#ifndef WEFT_LM_MODEL_KERNELS_H
#define WEFT_LM_MODEL_KERNELS_H

#include "../../lib/base/cpu.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    LM_PANEL = 32, /* columns of a packed panel */
    LM_LANES = 16, /* floats of a vector */
    LM_STRIP = 8,  /* columns of a strip, as caches have them */
};

/* C = A B, or C += A B. Element (i, k) of A is a[i * a_row + k * a_step]. B is packed: panels of LM_PANEL
 * columns, `panel` floats apart, each `depth` rows of LM_PANEL floats; columns beyond the last are zero. */
typedef struct lm_product {
    size_t rows;
    size_t columns;
    size_t depth;
    const float *a;
    size_t a_row;
    size_t a_step;
    const float *b;
    size_t panel;
    float *c;
    size_t c_row;
    bool accumulate;
} lm_product;

/* C = A B for the few rows of A that share a cache. B lies in strips of LM_STRIP columns: element (k, j) is
 * b[j / LM_STRIP * strip + k * step + j % LM_STRIP], and all of the last strip can be read. */
typedef struct lm_strip_product {
    size_t rows;
    size_t columns;
    size_t depth;
    const float *a; /* rows one after another, `a_row` floats apart */
    size_t a_row;
    const float *b;
    size_t strip;
    size_t step;
    float *c;
    size_t c_row;
} lm_strip_product;

/* What one step of AdamW needs. `bias1` and `bias2` are 1 - beta^step. */
typedef struct lm_adam_step {
    float rate;
    float beta1;
    float beta2;
    float bias1;
    float bias2;
    float epsilon;
    float decay; /* weight decay times rate */
    float scale; /* of the gradient, from clipping */
} lm_adam_step;

typedef struct lm_kernels {
    /* The columns of one panel, for all rows. */
    void (*panel)(const lm_product *product, size_t number);
    /* All of a product of strips, with the same bits as the product of panels has. */
    void (*strips)(const lm_strip_product *product);
    /* output = x * scale * gain with scale = 1 / sqrt(mean(x^2) + epsilon), which is returned. */
    float (*norm)(const float *x, const float *gain, float epsilon, size_t count, float *output);
    /* dx += what the norm's input gets from the gradient `dy` of its output. */
    void (*norm_back)(const float *x, const float *gain, float scale, const float *dy, size_t count,
                      float *dx);
    /* output = silu(gate) * up */
    void (*swiglu)(const float *gate, const float *up, size_t count, float *output);
    /* Replaces gate and up by their gradients. */
    void (*swiglu_back)(float *gate, float *up, const float *doutput, size_t count);
    /* row = softmax(row * scale) */
    void (*softmax)(float *row, float scale, size_t count);
    /* Replaces the gradient of the probabilities by that of the scores before the scale. */
    void (*softmax_back)(const float *probabilities, float *gradient, float scale, size_t count);
    /* row = row * scale - log(sum(exp(row * scale))) */
    void (*log_softmax)(float *row, float scale, size_t count);
    /* Turns log-probabilities into slope * scale * ((v == target) - probability), by v. */
    void (*log_softmax_back)(float *row, size_t target, float slope, float scale, size_t count);
    /* Rotates pairs (x[i], x[i + half]); `sign` -1 rotates back. */
    void (*rotate)(float *x, const float *cosines, const float *sines, float sign, size_t half);
    void (*add)(float *x, const float *y, size_t count);
    /* x[i] += a[i] * b[i] * scale */
    void (*add_product)(float *x, const float *a, const float *b, float scale, size_t count);
    void (*adam)(const lm_adam_step *step, const float *gradient, float *master, float *first,
                 float *second, size_t count);
} lm_kernels;

/* The kernels of a level, which this machine must run. */
const lm_kernels *lm_kernels_at(weft_cpu level);

void lm_product_run(const lm_kernels *kernels, const lm_product *product);

/* Floats that packing `depth` rows of `columns` takes. */
size_t lm_pack_size(size_t columns, size_t depth);
/* Packs B, whose element (k, j) is b[k * row + j * step]; panels are depth * LM_PANEL floats apart. */
void lm_pack(const float *b, size_t row, size_t step, size_t columns, size_t depth, float *packed);

extern const lm_kernels lm_kernels_portable;
extern const lm_kernels lm_kernels_avx2;
extern const lm_kernels lm_kernels_avx512;

#endif
