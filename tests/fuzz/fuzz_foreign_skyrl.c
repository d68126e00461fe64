/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_skyrl.c: a manifest and a file of payloads as a delta of SkyRL.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_first_file("delta-00000001/manifest.json", &data, &size);
    foreign_file("delta-00000001/delta-rank00000-file000000.safetensors", data, size);
    foreign_try("skyrl", NULL);
    return 0;
}
