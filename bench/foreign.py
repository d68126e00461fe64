#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""foreign.py: what it takes to put a delta of slime on a checkpoint, and what a bridge sends.

Makes the trace of `weft bench` (BF16 weights, one step of Adam at the learning rate 1e-6, of which some 1% of them
change), and writes the delta as slime does (xor, zstd 1, xxh3-128). Then, each in turn on a fresh copy of the
checkpoint in the page cache:

  numpy    a reader in a few lines: read the checkpoint, decompress, xor, sum, write it (one thread, a second copy)
  mapped   the same into the mapped file (one thread, in place)
  chunked  that in chunks of 2 MiB on as many threads as there are processors, as SGLang's pull does it
  weft     weft pull slime:DIR CKPT: the whole process, with the digest of the checkpoint, the proof and the journal
  step     of that, what a follower that stays takes for a version: read, prove and write in place

and the bridge: weft convert DIR STORE and weft convert STORE slime:DIR, and the bytes of the store's objects for the
version against those of the directory.

  bench/foreign.py [--parameters 64000000] [--runs 3] [--json]
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy
import xxhash
import zstandard

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "tests" / "python"))
import weft_foreign  # noqa: E402

WEFT = os.environ.get("WEFT") or str(SOURCE / "build" / "weft")
CHUNK = 2 << 20


def make(directory, parameters):
    subprocess.run([WEFT, "bench", "--make", directory, "--params", str(parameters), "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    before = weft_foreign.read_state(directory / "base.safetensors")
    after = weft_foreign.read_state(directory / "new.safetensors")
    os.remove(directory / "new.safetensors")
    os.mkdir(directory / "updates")
    version = weft_foreign.write_slime(directory / "updates", 1, 0, before, after)
    changed = sum(int(numpy.count_nonzero(before[name].units != after[name].units)) for name in before)
    return pathlib.Path(version), sum(len(weights.data) for weights in before.values()), changed


def locations(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: (8 + length + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in header.items()}


def apply_copying(delta, checkpoint):
    entries, sums = weft_foreign.safetensors_read(delta)
    where = locations(checkpoint)
    weights = numpy.fromfile(checkpoint, numpy.uint8)
    for name, (_, _, blob) in entries.items():
        offset, size = where[name]
        xor = numpy.frombuffer(zstandard.ZstdDecompressor().decompress(blob), numpy.uint8)
        changed = weights[offset:offset + size] ^ xor
        assert xxhash.xxh3_128(changed).hexdigest() == sums[name]
        weights[offset:offset + size] = changed
    weights.tofile(f"{checkpoint}.new")
    os.replace(f"{checkpoint}.new", checkpoint)


def apply_mapped(delta, checkpoint):
    entries, sums = weft_foreign.safetensors_read(delta)
    where = locations(checkpoint)
    for name, (_, _, blob) in entries.items():
        offset, size = where[name]
        weights = numpy.memmap(checkpoint, numpy.uint8, "r+", offset, size)
        weights ^= numpy.frombuffer(zstandard.ZstdDecompressor().decompress(blob), numpy.uint8)
        assert xxhash.xxh3_128(weights).hexdigest() == sums[name]


def apply_in_chunks(delta, checkpoint):
    entries, sums = weft_foreign.safetensors_read(delta)
    where = locations(checkpoint)
    with open(checkpoint, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        def apply(name):
            offset, size = where[name]
            weights = numpy.ndarray((size,), numpy.uint8, memory, offset)
            reader = zstandard.ZstdDecompressor().stream_reader(entries[name][2])
            hasher, position = xxhash.xxh3_128(), 0
            while position < size:
                block = numpy.frombuffer(reader.read(min(CHUNK, size - position)), numpy.uint8)
                weights[position:position + len(block)] ^= block
                hasher.update(weights[position:position + len(block)])
                position += len(block)
            assert hasher.hexdigest() == sums[name]
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(apply, entries))


def apply_weft(directory, checkpoint):
    done = subprocess.run([WEFT, "pull", f"slime:{directory}", checkpoint, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def resident(directory, checkpoint):
    """The most memory that weft had resident. A child begins with its parent's, so that has to be small."""
    program = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)")
    done = subprocess.run([sys.executable, "-c", program, WEFT, "pull", f"slime:{directory}", checkpoint], check=True,
                          stdout=subprocess.PIPE)
    return int(done.stdout)


def forget(directory):
    """The copy, and what was remembered of it."""
    for path in directory / "copy.safetensors", directory / ".copy.safetensors.weft-foreign":
        if path.exists():
            path.unlink()


def seconds(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def bridge(directory):
    lines = []
    for arguments in ((f"slime:{directory}/updates", f"store:{directory}/store", "--base", directory / "base.safetensors",
                       "--mirror", directory / "in.safetensors"),
                      (f"store:{directory}/store", f"slime:{directory}/engine", "--mirror", directory / "out.safetensors")):
        done = subprocess.run([WEFT, "convert", "--json", *map(str, arguments)], check=True, stdout=subprocess.PIPE)
        lines.append([json.loads(line) for line in done.stdout.splitlines()][-1])
    theirs, ours = directory / "updates" / "weight_v000001", directory / "engine" / "weight_v000001"
    same = all((theirs / name).read_bytes() == (ours / name).read_bytes() for name in os.listdir(theirs))
    return lines[0]["uploaded_bytes"], lines[1]["fetched_bytes"], same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=64000000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", default=None, help="where to work; a memory file system leaves the disk out")
    parser.add_argument("--no-bridge", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-foreign.", dir=arguments.directory) as name:
        directory = pathlib.Path(name)
        version, model_bytes, changed = make(directory, arguments.parameters)
        delta = version / "model-00000-of-00001.safetensors"
        best, weft_info = {}, None
        for _ in range(arguments.runs):
            for reader in "numpy", "mapped", "chunked", "weft":
                checkpoint = directory / "copy.safetensors"
                shutil.copy(directory / "base.safetensors", checkpoint)
                work = {"numpy": lambda: apply_copying(delta, checkpoint),
                        "mapped": lambda: apply_mapped(delta, checkpoint),
                        "chunked": lambda: apply_in_chunks(delta, checkpoint),
                        "weft": lambda: apply_weft(directory / "updates", checkpoint)}[reader]
                took, info = seconds(work)
                if reader == "weft" and took < best.get("weft", 1e9):
                    weft_info = info
                best[reader] = min(took, best.get(reader, 1e9))
                forget(directory)
        best["step"] = sum(weft_info[f"{phase}_seconds"] for phase in ("read", "prove", "pause"))
        shutil.copy(directory / "base.safetensors", checkpoint)
        peak = resident(directory / "updates", checkpoint)
        forget(directory)
        result = {"parameters": arguments.parameters, "changed": changed, "model_bytes": model_bytes,
                  "directory_bytes": sum(f.stat().st_size for f in version.iterdir()),
                  "seconds": best, "weft": weft_info, "weft_resident_bytes": peak}
        if not arguments.no_bridge:
            sent, fetched, same = bridge(directory)
            result.update(uploaded_bytes=sent, fetched_bytes=fetched, same_bytes=same,
                          link_ratio=fetched / result["directory_bytes"])
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{arguments.parameters} weights, {changed / arguments.parameters:.2%} changed: a model of {model_bytes} bytes, "
          f"a directory of "
          f"{result['directory_bytes']}")
    for reader, took in best.items():
        print(f"  {reader:8} {took:.3f} s   weft is {took / best['weft']:.2f} times as fast, a step {took / best['step']:.2f}")
    print(f"  a step reads for {weft_info['read_seconds']:.3f} s, proves for {weft_info['prove_seconds']:.3f} and writes for "
          f"{weft_info['pause_seconds']:.3f}; weft is resident with at most {peak / model_bytes:.2f} of the model's bytes, the "
          f"mapped file included")
    if not arguments.no_bridge:
        print(f"  the bridge sends {sent} bytes and fetches {fetched}, {result['link_ratio']:.3f} of the directory's; the "
              f"same bytes come out: {same}")


if __name__ == "__main__":
    main()
