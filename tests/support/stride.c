/* SPDX-License-Identifier: Apache-2.0
 *
 * stride.c: see stride.h.
 */
#include "stride.h"

#include <stdlib.h>

unsigned test_stride(void) {
    const char *text = getenv("WEFT_TEST_STRIDE");
    int stride = text != NULL ? atoi(text) : 1;
    return stride >= 1 ? (unsigned)stride : 1;
}

unsigned test_stride_first(void) {
    static unsigned sweeps;
    return 1 + sweeps++ % test_stride();
}

bool test_stride_takes(void) {
    static unsigned cases;
    return cases++ % test_stride() == 0;
}
