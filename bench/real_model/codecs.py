#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What one pair of checkpoints costs in the formats of the field, in bytes.

codecs.py OLD NEW RESULT [--weft PATH]

weft's profiles and the bound are those of the command. Formats of others are written by tests/python/weft_foreign.py,
from their public descriptions; all that they put into files counts. Wants numpy, xxhash and zstandard, as the tests do.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import zstandard

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/python"))
import weft_foreign

FORMATS = {
    "grail 3.1, COO + zstd-1": weft_foreign.write_grail,
    "PULSEPT1, gaps of 16 bits + zstd-1": weft_foreign.write_pulse,
    "PULSEPT1, Rice by exponent": lambda *words: weft_foreign.write_pulse(*words, format_version=3),
    "slime, XOR + zstd-1": weft_foreign.write_slime,
    "TRL, gaps of 16 bits": weft_foreign.write_trl,
    "AReaL, int32 + BF16": weft_foreign.write_areal,
}


def size_of(path):
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--weft", default=TREE / "build/weft")
    options = parser.parse_args()
    before, after = weft_foreign.read_state(options.old), weft_foreign.read_state(options.new)
    weights = sum(len(entry.units) for entry in before.values())
    changed = sum(int(numpy.count_nonzero(before[name].units != after[name].units)) for name in before)
    sizes = {}
    with tempfile.TemporaryDirectory() as room:
        for profile in ("small", "fast"):
            patch = pathlib.Path(room) / "patch"
            subprocess.run([options.weft, "diff", "--quiet", "--profile", profile, options.old, options.new,
                            "-o", patch], check=True)
            sizes[f"weft {profile}"] = patch.stat().st_size
        for name, write in FORMATS.items():
            directory = pathlib.Path(room) / name.split(",")[0] / str(len(sizes))
            directory.mkdir(parents=True)
            write(str(directory), 1, 0, before, after)
            sizes[name] = size_of(directory)
    level = zstandard.ZstdCompressor(level=3)
    sizes["whole checkpoint, zstd-3"] = sum(len(level.compress(entry.data)) for entry in after.values())
    stats = json.loads(subprocess.run([options.weft, "stats", "--json", options.old, options.new], check=True,
                                      stdout=subprocess.PIPE).stdout)
    options.result.write_text(json.dumps({"weights": weights, "changed": changed, "sizes": sizes,
                                          "bound": stats["bound"]["bits_per_change"] / 8,
                                          "steps": stats["steps"]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
