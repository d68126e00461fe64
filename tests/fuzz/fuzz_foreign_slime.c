/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_slime.c: an index and a file of payloads as a version of slime.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_first_file("weight_v000001/model.safetensors.index.json", &data, &size);
    foreign_file("weight_v000001/model-00000-of-00001.safetensors", data, size);
    foreign_try("slime", NULL);
    return 0;
}
