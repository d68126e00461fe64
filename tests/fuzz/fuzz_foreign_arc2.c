/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_arc2.c: a file as an incremental snapshot, ARC2.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_file("v1/model.safetensors", data, size);
    foreign_try("arc2", NULL);
    return 0;
}
