/* SPDX-License-Identifier: Apache-2.0
 *
 * lm_reference.h: the model of lm/ once more, in double precision and as plainly as it can be said: no
 * packing, no tiles, no threads. The tests hold the fast kernels and the whole fast model against it, and
 * take finite differences of it to check every gradient.
 */
#ifndef WEFT_TESTS_LM_REFERENCE_H
#define WEFT_TESTS_LM_REFERENCE_H

#include "../../lm/model/model.h"

/* output[rows x columns] = input[rows x inner] times the transpose of matrix[columns x inner] */
void lm_reference_linear(const double *input, const double *matrix, size_t rows, size_t inner,
                         size_t columns, double *output);
void lm_reference_norm(const double *x, const double *gain, double epsilon, size_t count, double *output);
void lm_reference_softmax(double *row, double scale, size_t count);
void lm_reference_log_softmax(double *row, double scale, size_t count);
void lm_reference_swiglu(const double *gate, const double *up, size_t count, double *output);
/* Rotates one head at a position. */
void lm_reference_rotate(double *x, size_t position, double base, size_t head);

/* Log-probabilities of the tokens of one sequence under `parameters`, laid out like those of `model`, which
 * gives the layout and the config only. logp[0] is 0. */
WEFT_CHECKED weft_status lm_reference_score(const lm_model *model, const double *parameters,
                                            const lm_token *tokens, size_t length, double temperature,
                                            double *logp);

#endif
