# SPDX-License-Identifier: Apache-2.0
"""heap.py: how much anonymous memory the command takes at most, sampled while it runs.

Mapped files do not count: the kernel can take their pages back at any time.
"""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

WEFT = os.environ.get("WEFT") or "build/weft"
MEBIBYTE = 1 << 20
CHECKPOINT = 4 << 30
DENSE = 96 * MEBIBYTE  # of random bytes
SPARSE = 64 * MEBIBYTE  # of which every hundredth weight changes
LIMIT = 256 * MEBIBYTE

def anonymous(process):
    try:
        with open(f"/proc/{process.pid}/status") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def peak(*arguments, code=0):
    """Runs the command and returns the most anonymous memory that it was seen with, and its stdout."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([WEFT, *arguments], stdout=output, stderr=subprocess.DEVNULL)
        most = 0
        while process.poll() is None:
            most = max(most, anonymous(process))
            time.sleep(0.002)
        if process.returncode != code:
            sys.exit(f"weft {' '.join(arguments)}: exit code {process.returncode}, not {code}")
        output.seek(0)
        return most, output.read()


def make_checkpoint(path, stretches):
    """4 GiB of BF16 zeros in four tensors, except where `stretches` of (offset, bytes) say otherwise."""
    rows, columns = CHECKPOINT // 4 // 2 // 8192, 8192
    header = {}
    for number in range(4):
        begin = number * (CHECKPOINT // 4)
        header[f"layer.{number}"] = {
            "dtype": "BF16",
            "shape": [rows, columns],
            "data_offsets": [begin, begin + CHECKPOINT // 4],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for offset, data in stretches:
            file.seek(8 + len(text) + offset)
            file.write(data)
        file.truncate(8 + len(text) + CHECKPOINT)


def main():
    directory = tempfile.mkdtemp(prefix="weft-heap-")
    try:
        dice = random.Random(3)
        sparse = bytearray(SPARSE)
        for at in range(0, SPARSE - 200, 200):
            sparse[at + 2 * dice.randrange(100)] = dice.randrange(1, 256)
        changed = sum(value != 0 for value in sparse[::2]) + DENSE // 2
        base = os.path.join(directory, "base")
        new = os.path.join(directory, "new")
        patch = os.path.join(directory, "patch")
        make_checkpoint(base, ())
        # no weight of the dense stretch stays zero
        dense = dice.randbytes(DENSE // 2).replace(b"\0", b"\1")
        dense = b"".join((dense[: DENSE // 4] * 2, dense[DENSE // 4 :] * 2))
        make_checkpoint(new, ((MEBIBYTE, dense), (CHECKPOINT // 2, sparse)))
        for profile in ("small", "fast"):
            began = time.monotonic()
            most, output = peak("diff", base, new, "-o", patch, "--profile", profile, "-j2", "--json")
            report = json.loads(output)
            if report["changed"] != changed or report["dense_bytes"] != CHECKPOINT:
                sys.exit(f"the diff is wrong: {report}")
            print(f"diff of 4 GiB, {profile}: {most / MEBIBYTE:.0f} MiB of heap at most, a patch of "
                  f"{report['patch_bytes'] / MEBIBYTE:.0f} MiB, {time.monotonic() - began:.1f} s")
            if most > LIMIT + report["patch_bytes"]:
                sys.exit(f"{most} bytes of heap are more than {LIMIT + report['patch_bytes']}")
            if most < MEBIBYTE:
                sys.exit("the memory could not be measured")

        # 2^40 bytes of header, of which there are eight
        liar = os.path.join(directory, "liar")
        with open(liar, "wb") as file:
            file.write(struct.pack("<Q", 1 << 40) + bytes(8))
        most, _ = peak("digest", liar, code=3)
        if most > LIMIT:
            sys.exit(f"a lying header took {most} bytes of heap")
    finally:
        shutil.rmtree(directory)


main()
