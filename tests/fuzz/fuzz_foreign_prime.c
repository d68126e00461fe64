/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_foreign_prime.c: a manifest and a file of positions and values as a step of prime-rl; the first byte
 * says in which shape.
 */
#include "foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bool by_rank = size > 0 && (*data & 1) != 0;
    data += size > 0;
    size -= size > 0;
    if (by_rank) {
        foreign_file("step_1/STABLE", data, 0);
        foreign_first_file("step_1/sparse_manifest.json", &data, &size);
        foreign_file("step_1/rank_0.safetensors", data, size);
    } else {
        foreign_first_file("step_2/sparse_update_manifest.json", &data, &size);
        foreign_file("step_2/sparse_update_patch.safetensors", data, size);
    }
    foreign_try("prime", NULL);
    return 0;
}
