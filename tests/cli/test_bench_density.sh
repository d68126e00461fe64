#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --density` in a size that says nothing about speed: every density is there, with every codec;
# options that do not go with it.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --density --params 100K --repeat 1 --json
cat > look.py << 'END'
import json
result = json.load(open("stdout"))
densities = [point["density"] for point in result["points"]]
assert densities == sorted(densities) and densities[0] < 0.001 and densities[-1] > 0.99, densities
assert result["anchor"]["patch_bytes"] > 0
for point in result["points"]:
    names = [row["name"] for row in point["rows"]]
    assert names == ["fast", "small", "COO+zstd-1", "XOR+zstd-1", "zstd-3"], names
    assert all(row["encode_gb_per_second"] > 0 and row["decode_gb_per_second"] > 0 for row in point["rows"])
END
check "the JSON: $(cat stdout)" /usr/bin/python3 look.py

expect 2 'params, --seed and --repeat only' "$weft" bench --density --sync
expect 2 'params, --seed and --repeat only' "$weft" bench --density --loco
finish
