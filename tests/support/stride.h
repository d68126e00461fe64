/* SPDX-License-Identifier: Apache-2.0
 *
 * stride.h: long sweeps in part. Where each case takes long (a store whose operations take milliseconds, a
 * thread sanitizer, which slows everything down and learns little from the hundredth allocation that
 * fails), WEFT_TEST_STRIDE, up to 60, has sweeps do only every so manieth of their cases.
 */
#ifndef WEFT_TESTS_STRIDE_H
#define WEFT_TESTS_STRIDE_H

#include <stdbool.h>

/* WEFT_TEST_STRIDE, or 1. */
unsigned test_stride(void);
/* Where a sweep begins, from 1 to the stride: each begins elsewhere, so that they leave out other cases
 * each. */
unsigned test_stride_first(void);
/* True the first time, and then every so manieth. */
bool test_stride_takes(void);

#endif
