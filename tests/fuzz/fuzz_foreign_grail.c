/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_grail.c: bytes as what a delta of grail holds, so that the fuzzer gets behind zstd; and as
 * they are.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    foreign_file("delta_1", data, size);
    foreign_try("grail", "delta_1");
    foreign_compressed_file("delta_1", data, size);
    foreign_try("grail", "delta_1");
    return 0;
}
