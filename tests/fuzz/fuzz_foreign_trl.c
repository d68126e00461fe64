/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_trl.c: a file as a sparse weight patch of TRL.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_file("patch.safetensors", data, size);
    foreign_try("trl", "patch.safetensors");
    return 0;
}
