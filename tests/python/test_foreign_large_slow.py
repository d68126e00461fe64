# SPDX-License-Identifier: Apache-2.0
"""A tensor above 4 GiB, in a file of holes: a difference reaches all of it, positions of 32 bits do not, and what they
say after they have wrapped is found and not believed."""

import json
import os
import shutil
import struct
import tempfile

import numpy
import xxhash
import zstandard

import serving
import weft_foreign
from foreign_scene import weft

UNITS = (1 << 31) + 1000  # of BF16: 4 GiB and 2000 bytes
SIZE = 2 * UNITS
CHUNK = 1 << 24
CHANGES = {5: b"\x11\x22", 1 << 20: b"\x33\x44", (1 << 31) + 7: b"\x55\x66"}  # new values of units; the old are zero


def state_chunks():
    """The new state, chunk by chunk."""
    zeros = bytes(CHUNK)
    for start in range(0, SIZE, CHUNK):
        size = min(CHUNK, SIZE - start)
        inside = {2 * unit - start: value for unit, value in CHANGES.items() if start <= 2 * unit < start + size}
        if not inside:
            yield zeros[:size]
            continue
        chunk = bytearray(size)
        for offset, value in inside.items():
            chunk[offset:offset + 2] = value
        yield bytes(chunk)


def header():
    text = json.dumps({"w": {"dtype": "BF16", "shape": [UNITS], "data_offsets": [0, SIZE]}}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_base(path):
    with open(path, "wb") as file:
        file.write(header())
        file.truncate(len(header()) + SIZE)


def compressed_state():
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=SIZE)
    return b"".join(compressor.compress(chunk) for chunk in state_chunks()) + compressor.flush()


def checksum():
    digest = xxhash.xxh3_128()
    for chunk in state_chunks():
        digest.update(chunk)
    return digest.hexdigest()


def write_version(place, payload, encoding, digest):
    directory = os.path.join(place, "weight_v000001")
    os.makedirs(directory)
    with open(os.path.join(directory, "model-00000-of-00001.safetensors"), "wb") as file:
        file.write(weft_foreign.safetensors_bytes([("w", "U8", (len(payload),), payload)], {"w": digest}))
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"version": "000001", "base_version": "000000", "delta_encoding": encoding,
                                "compression_format": "zstd", "checksum_format": "xxh3-128"},
                   "weight_map": {"w": "model-00000-of-00001.safetensors"}}, file)


def read_unit(path, unit):
    with open(path, "rb") as file:
        file.seek(len(header()) + 2 * unit)
        return file.read(2)


def overwriting(wrapped):
    """Byte positions as slime writes them: without their upper bits."""
    positions = [2 * unit + byte for unit in sorted(CHANGES) for byte in range(2)]
    values = b"".join(CHANGES[unit] for unit in sorted(CHANGES))
    if not wrapped:  # a writer that sorts them after they have wrapped
        order = sorted(range(len(positions)), key=lambda i: positions[i] % (1 << 32))
        positions, values = [positions[i] for i in order], bytes(values[i] for i in order)
    return struct.pack("<I", len(positions)) + numpy.array(positions, "<u8").astype("<u4").tobytes() + values


def test_a_tensor_above_four_gibibytes():
    with tempfile.TemporaryDirectory(prefix="weft-foreign.") as scratch:
        if shutil.disk_usage(scratch).free < 2 << 30:
            serving.skip_all("too little room")
        out, digest = os.path.join(scratch, "out.safetensors"), checksum()
        for wrapped, words in ((True, "wrap"), (False, "was promised")):
            write_base(out)
            place = os.path.join(scratch, f"overwrite-{wrapped}")
            write_version(place, weft_foreign.compress(overwriting(wrapped)), "overwrite", digest)
            assert words in weft("pull", f"slime:{place}", out, code=3)
            assert all(read_unit(out, unit) == b"\0\0" for unit in CHANGES)
        place = os.path.join(scratch, "xor")
        write_version(place, compressed_state(), "xor", digest)
        weft("pull", f"slime:{place}", out)
        assert all(read_unit(out, unit) == value for unit, value in CHANGES.items())
        # written again: positions of 32 bits do not reach, and that is said
        changed = out
        base = os.path.join(scratch, "base.safetensors")
        write_base(base)
        text = weft("convert", changed, f"slime:{os.path.join(scratch, 'again')}", "--base", base, "--encoding", "overwrite",
                    code=1)
        assert "would wrap" in text, text


if __name__ == "__main__":
    serving.main()
