#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make_foreign.py: the files of tests/golden/foreign, and the seeds of the fuzz targets fuzz_foreign_*, by the writers
of tests/python/weft_foreign.py, which know the formats from their descriptions alone.

The base is that of tests/fuzz/foreign.h. Golden files are made once and never change: what is there is left alone.
"""

import os
import pathlib
import shutil
import struct
import sys
import tempfile

import numpy

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "python"))
import weft_foreign  # noqa: E402
from weft_foreign import Weights  # noqa: E402


def base_state():
    def pattern(size):
        return bytes((7 * i + 1) % 256 for i in range(size))
    return {"b": Weights("U8", (5,), pattern(5)), "f": Weights("F32", (7,), pattern(28)),
            "w": Weights("BF16", (8, 12), pattern(192))}


def next_state(seed=5, density=0.2, names=("b", "f", "w")):
    state = base_state()
    changed = weft_foreign.changed_state(numpy.random.default_rng(seed), state, density)
    return {name: changed[name] if name in names else state[name] for name in state}


def framed(*files):
    """An input of a fuzz target: files before the last one behind their lengths."""
    return b"".join(struct.pack("<H", len(data)) + data for data in files[:-1]) + files[-1]


def read(directory, name):
    return (pathlib.Path(directory) / name).read_bytes()


def seed(target, name, data):
    directory = TESTS / "fuzz" / "corpus" / target
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data)


def slime_seeds(root):
    for number, (encoding, checksum) in enumerate((e, c) for e in ("xor", "overwrite") for c in ("xxh3-128", "adler32")):
        directory = weft_foreign.write_slime(f"{root}/slime-{number}", 1, 0, base_state(), next_state(), encoding, checksum)
        index, payload = read(directory, "model.safetensors.index.json"), read(directory, "model-00000-of-00001.safetensors")
        seed("fuzz_foreign_slime", f"{encoding}-{checksum}", framed(index, payload))
        seed("fuzz_foreign_slime", f"cut-{number}", framed(index, payload[:-7]))


def skyrl_seeds(root):
    for checksum in "xxh3-128", "sha256":
        directory = weft_foreign.write_skyrl(f"{root}/skyrl-{checksum}", 1, 0, base_state(), next_state(), checksum)
        seed("fuzz_foreign_skyrl", checksum, framed(read(directory, "manifest.json"),
                                                    read(directory, "delta-rank00000-file000000.safetensors")))


def arc2_seeds(root):
    directory = weft_foreign.write_arc2(f"{root}/arc2", 1, 0, base_state(), next_state())
    seed("fuzz_foreign_arc2", "all", read(directory, "model.safetensors"))


def bf16_only(state):
    """What PULSEPT1 knows."""
    return {name: weights for name, weights in state.items() if weights.dtype == "BF16"}


def sparse_seeds(root):
    before, after = base_state(), next_state()
    for encoding in "raw", "gap_delta", None:
        path = weft_foreign.write_trl(f"{root}/trl", 1, 0, before, after, encoding)
        seed("fuzz_foreign_trl", str(encoding), pathlib.Path(path).read_bytes())
    seed("fuzz_foreign_areal", "mixed", pathlib.Path(weft_foreign.write_areal(f"{root}/areal", 1, 0, before, after)).read_bytes())
    directory = weft_foreign.write_prime_ranks(f"{root}/ranks", 1, 0, before, after, ranks=1)
    seed("fuzz_foreign_prime", "ranks", b"\1" + framed(read(directory, "sparse_manifest.json"),
                                                        read(directory, "rank_0.safetensors")))
    for compressed in False, True:
        directory = weft_foreign.write_prime_update(f"{root}/update-{compressed}", 2, 1, before, after, compressed)
        seed("fuzz_foreign_prime", f"update-{compressed}".lower(),
             b"\0" + framed(read(directory, "sparse_update_manifest.json"),
                            read(directory, "sparse_update_patch.safetensors")))
    for version in 1, 2, 3:
        data = pathlib.Path(weft_foreign.write_pulse(f"{root}/pulse", 1, 0, bf16_only(before), bf16_only(after),
                                                     version)).read_bytes()
        length, = struct.unpack_from("<I", data, 8)
        payload = weft_foreign.zstandard.ZstdDecompressor().decompress(data[12 + length:])
        seed("fuzz_foreign_pulse", f"whole-{version}", data)
        seed("fuzz_foreign_pulse", f"framed-{version}", framed(data[12:12 + length], payload))
    for version in 3, 31:
        data = pathlib.Path(weft_foreign.write_grail(f"{root}/grail", 1, 0, bf16_only(before), bf16_only(after),
                                                     version)).read_bytes()
        seed("fuzz_foreign_grail", f"whole-{version}", data)
        seed("fuzz_foreign_grail", f"plain-{version}", weft_foreign.zstandard.ZstdDecompressor().decompress(data))


def golden(root):
    """A chain of two versions in each format, and the states that they lead to."""
    first, second = next_state(), None
    second = weft_foreign.changed_state(numpy.random.default_rng(6), first, 0.1)
    states = (base_state(), first, second)
    for number, state in enumerate(states):
        weft_foreign.write_state(root / f"state-{number}.safetensors", state)
    writers = {"slime-xor": lambda *a: weft_foreign.write_slime(*a),
               "slime-overwrite": lambda *a: weft_foreign.write_slime(*a, encoding="overwrite", checksum="adler32"),
               "skyrl": weft_foreign.write_skyrl, "arc2": weft_foreign.write_arc2,
               "trl-raw": lambda *a: weft_foreign.write_trl(*a, encoding="raw"), "trl-gaps": weft_foreign.write_trl,
               "prime-ranks": weft_foreign.write_prime_ranks, "prime-update": weft_foreign.write_prime_update,
               "areal": weft_foreign.write_areal}
    bf16 = {"pulse-1": lambda *a: weft_foreign.write_pulse(*a, format_version=1),
            "pulse-2": lambda *a: weft_foreign.write_pulse(*a, format_version=2),
            "pulse-3": lambda *a: weft_foreign.write_pulse(*a, format_version=3),
            "grail-3": lambda *a: weft_foreign.write_grail(*a, format_version=3),
            "grail-31": weft_foreign.write_grail}
    for number, state in enumerate(states):
        weft_foreign.write_state(root / f"bf16-{number}.safetensors", bf16_only(state))
    for name, write in bf16.items():
        for version in (1, 2) if not (root / name).exists() else ():
            write(str(root / name), version, version - 1, bf16_only(states[version - 1]), bf16_only(states[version]))
    for name, write in writers.items():
        if (root / name).exists():
            continue
        for version in 1, 2:
            write(str(root / name), version, version - 1, states[version - 1], states[version])


def main():
    root = TESTS / "golden" / "foreign"
    root.mkdir(exist_ok=True)
    golden(root)
    scratch = tempfile.mkdtemp()
    for make in slime_seeds, skyrl_seeds, arc2_seeds, sparse_seeds:
        make(scratch)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
