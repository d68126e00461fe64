/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_areal.c: a file as a delta of AReaL-DTE.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_file("delta.safetensors", data, size);
    foreign_try("areal", "delta.safetensors");
    return 0;
}
