/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_pulse.c: a header and an uncompressed payload as PULSEPT1, so that the fuzzer gets behind
 * zstd; and bytes as they are.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_file("as-they-are", data, size);
    foreign_try("pulse", "as-they-are");
    foreign_framed_file("framed", "PULSEPT1", data, size);
    foreign_try("pulse", "framed");
    return 0;
}
