#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --density` in a size that says nothing about speed: every density is there, with every codec, and
# none where weft takes more bytes than XOR+zstd-1; other types of weights; the picture; options that do not go
# with it.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --density --params 300K --repeat 1 --json --plot density.svg
cat > look.py << 'END'
import json
result = json.load(open("stdout"))
densities = [point["density"] for point in result["points"]]
assert densities == sorted(densities) and densities[0] < 0.001 and densities[-1] > 0.99, densities
assert result["anchor"]["patch_bytes"] > 0
for point in result["points"]:
    fast, small, _, xor, _ = (row["patch_bytes"] for row in point["rows"])
    assert small <= fast <= xor or point["density"] < 0.001, point
    names = [row["name"] for row in point["rows"]]
    assert names == ["fast", "small", "COO+zstd-1", "XOR+zstd-1", "zstd-3"], names
    assert all(row["encode_gb_per_second"] > 0 and row["decode_gb_per_second"] > 0 for row in point["rows"])
END
check "the JSON: $(cat stdout)" /usr/bin/python3 look.py
cat > look.py << 'END'
import xml.etree.ElementTree
picture = xml.etree.ElementTree.parse("density.svg").getroot()
lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
assert len(lines) == 3 * 5 and all(len(line.get("points").split()) == 15 for line in lines)
END
check "the picture" /usr/bin/python3 look.py
expect 1 'cannot write' "$weft" bench --density --params 10K --repeat 1 --plot missing/density.svg

cat > look.py << 'END'
import json, sys
result = json.load(open("stdout"))
name, width, points = sys.argv[1], int(sys.argv[2]), result["points"]
assert result["dtype"] == name and len(points) == (18 if name == "f32" else 15)
densities = [point["density"] for point in points[:15]]
assert densities == sorted(densities) and densities[0] < 0.002 and densities[-1] > 0.99, densities
assert all(point["density"] > 0.99 for point in points[15:])
for point in points:
    _, small, coo, xor, _ = (row["patch_bytes"] for row in point["rows"])
    assert small <= min(coo, xor) and small < width * result["total"] or point["density"] < 0.01, point
END
for dtype in 'f32 4' 'f8_e4m3 1'; do
    read -r name width <<< "$dtype"
    expect 0 '' "$weft" bench --density --dtype "$name" --params 100K --repeat 1 --json
    check "$name: $(cat stdout)" /usr/bin/python3 look.py "$name" "$width"
done

expect 2 'dtype is bf16, f16, f32, f8_e4m3 or f8_e5m2' "$weft" bench --density --dtype f64
expect 2 'params, --seed, --repeat, --dtype and --plot only' "$weft" bench --density --sync
expect 2 'params, --seed, --repeat, --dtype and --plot only' "$weft" bench --density --loco
expect 2 'dtype and --plot go with --density' "$weft" bench --plot density.svg
expect 2 'dtype and --plot go with --density' "$weft" bench --dtype f16
finish
