#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a whole checkpoint takes: an anchor of weft beside the method of ZipNN.

anchor.py CHECKPOINT [--weft PATH]

CHECKPOINT is a safetensors file; its BF16 tensors count. ZipNN splits BF16 weights into the exponents, which it codes
by Huffman in chunks of 256 KiB, and the rest, which it leaves as it is; here the best code of each chunk is counted,
with 30 bytes for its table. weft's bytes are those of the object that `weft publish` puts into a fresh store in
/dev/shm. Wants numpy.
"""
import argparse
import heapq
import json
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy

TREE = pathlib.Path(__file__).resolve().parent.parent
CHUNK = 1 << 18  # exponents
TABLE = 30  # bytes


def huffman_bits(counts):
    heap = [int(count) for count in counts if count > 0]
    heapq.heapify(heap)
    total = heap[0] if len(heap) == 1 else 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


def tensors(path):
    """The BF16 words of each tensor."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] == "BF16":
                begin, end = entry["data_offsets"]
                file.seek(8 + size + begin)
                yield numpy.frombuffer(file.read(end - begin), numpy.uint16)


def zipnn_bytes(path):
    """The weights, and the bytes of ZipNN's method."""
    weights = bits = 0
    for words in tensors(path):
        weights += len(words)
        exponents = words >> 7 & 0xff
        for first in range(0, len(exponents), CHUNK):
            chunk = exponents[first:first + CHUNK]
            bits += huffman_bits(numpy.bincount(chunk, minlength=256)) + 8 * len(chunk) + 8 * TABLE
    return weights, bits // 8


def seconds_of(command):
    """The processor's, outside of the kernel: how long that takes to give memory hangs on the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


def anchor(weft, path):
    """The bytes of an anchor, and how long one thread takes to publish and to pull it, in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as room:
        shutil.copy(path, f"{room}/checkpoint.safetensors")
        alone = ["--quiet", "--threads", "1"]
        publish = seconds_of([weft, "publish", f"{room}/store", f"{room}/checkpoint.safetensors", *alone])
        pull = seconds_of([weft, "pull", f"{room}/store", f"{room}/pulled.safetensors", *alone])
        size = sum(file.stat().st_size for file in pathlib.Path(room, "store/anchors").iterdir())
    return size, publish, pull


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--weft", default=TREE / "build/weft")
    options = parser.parse_args()
    weights, zipnn = zipnn_bytes(options.checkpoint)
    if weights == 0:
        sys.exit(f"{options.checkpoint} has no BF16 tensor")
    size, publish, pull = anchor(options.weft, options.checkpoint)
    print(f"{weights:,} BF16 weights, {2 * weights:,} bytes")
    for name, size in ("ZipNN's method", zipnn), ("weft, an anchor", size):
        bits = 8 * size / weights
        print(f"{name:16} {size:14,} bytes  {100 * bits / 16:.2f}%  {bits - 8:.3f} bits per exponent")
    gigabytes = 2e-9 * weights
    print(f"one thread publishes it in {publish:.2f} s, {gigabytes / publish:.2f} GB/s, and pulls it in "
          f"{pull:.2f} s, {gigabytes / pull:.2f} GB/s; with all checks, without the kernel's time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
