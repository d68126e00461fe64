#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs beside the C calls that it makes, in one process: python_package.py [--params 256M].

A model of BF16 tensors of torch is published into a directory and followed in the same process; a step changes 1% of
the weights, and the next one reverts it. Times are the fastest of --repeat steps. "C call" is the part of a Python call
that is spent within libweft. The device path is measured on CPU tensors (weft.device.through_device), the direct path
beside it on the same versions. Needs torch; WEFT_LIBRARY names the library if it is not build/libweft.so.
"""
import argparse
import os
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import torch  # noqa: E402
import weft  # noqa: E402
from weft import device  # noqa: E402
from weft._signatures import functions  # noqa: E402

TENSORS = 64
MIB = 1 << 20


class Timed:
    """A function of the library, and how long its last call took."""

    def __init__(self, name):
        self.function = getattr(functions, name)
        self.seconds = 0.0
        setattr(functions, name, self)

    def __call__(self, *arguments):
        start = time.perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.seconds = time.perf_counter() - start


def resident(field="VmRSS"):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


class Peak:
    """The most memory beyond what there was before."""

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = resident()
        return self

    def __exit__(self, *_):
        self.bytes = resident("VmHWM") - self.before


def make(params, fill):
    size = params // TENSORS
    return {f"layers.{i}.weight": (torch.randn(size // 1024, 1024) * 0.02 if fill else torch.zeros(size // 1024, 1024))
            .to(torch.bfloat16) for i in range(TENSORS)}


def measured(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Run:
    def __init__(self, params, share, repeat, directory):
        self.model = make(params, True)
        self.params, self.repeat, self.directory = params, repeat, directory
        count = int(params * share) // TENSORS
        self.positions = [torch.randperm(tensor.numel())[:count].sort()[0] for tensor in self.model.values()]

    def step(self):
        for tensor, positions in zip(self.model.values(), self.positions):
            bits = tensor.view(torch.int16).view(-1)
            bits[positions] = bits[positions] ^ 1

    def publishing(self, leaps):
        """Rows of publish, and the memory."""
        call, pairs = Timed("publisher_publish"), []
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            with Peak() as peak, weft.Publisher(place, self.model, anchor_ratio=-1, leaps=leaps) as publisher:
                publisher.publish()
                for _ in range(self.repeat):
                    self.step()
                    pairs.append((measured(publisher.publish), call.seconds))
        setattr(functions, "publisher_publish", call.function)
        whole, inner = map(min, zip(*pairs))
        extra = peak.bytes - 2 * self.params
        return whole, inner, extra

    def following(self, profile):
        """prepare and commit, direct and through the device path, and what was moved."""
        call = Timed("subscriber_commit")
        read = [0]
        bits, lock = device._Reached.bits, threading.Lock()

        def counted(tensor, first, count):
            with lock:
                read[0] += count * tensor.width
            return bits(tensor, first, count)

        device._Reached.bits = counted
        ways = {"direct": {}, "device": {}}
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            with weft.Publisher(place, self.model, profile=profile, anchor_ratio=-1, leaps=False) as publisher:
                publisher.publish()
                lives = {"direct": make(self.params, False), "device": make(self.params, False)}
                given = {"direct": lives["direct"], "device": device.through_device(lives["device"])}
                followers = {}
                for way in ways:
                    with Peak() as peak:
                        followers[way] = weft.Subscriber(place, given[way], empty=True, audit_bytes=1)
                        followers[way].pull()
                    kept = resident() - peak.before
                    ways[way] = {"prepare": [], "commit": [], "inner": [], "memory": [], "moved": [], "first": peak.bytes,
                                 "kept": kept}
                for _ in range(self.repeat):
                    self.step()
                    changed = publisher.publish().changed
                    for way, follower in followers.items():
                        reached = follower._tensors.device
                        read[0] = 0
                        before = 0 if reached is None else reached.sent + reached.received
                        with Peak() as peak:
                            ways[way]["prepare"].append(measured(follower.prepare))
                            ways[way]["commit"].append(measured(follower.commit))
                        ways[way]["inner"].append(ways[way]["commit"][-1] - call.seconds)
                        ways[way]["memory"].append(ways[way]["kept"] + peak.bytes)
                        after = 0 if reached is None else reached.sent + reached.received
                        ways[way]["moved"].append(((after - before) / changed, read[0] / changed))
                for name, tensor in self.model.items():
                    for way in ways:
                        assert torch.equal(tensor.view(torch.int16), lives[way][name].view(torch.int16)), (way, name)
                for follower in followers.values():
                    follower.close()
        device._Reached.bits = bits
        setattr(functions, "subscriber_commit", call.function)
        return ways


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--params", default="256M")
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--directory", help="where stores are made, and removed again")
    given = parser.parse_args()
    params = int(given.params.rstrip("M")) << 20
    run = Run(params, given.share, given.repeat, given.directory)
    print(f"torch {torch.__version__}, {params / 1e6:.0f}M BF16 parameters, {given.share:.1%} changed, {os.cpu_count()} cores\n")
    print("| | Python, ms | C call, ms | beside it | memory beyond one BF16 baseline |")
    print("|---|---:|---:|---:|---:|")
    for leaps in (False, True):
        whole, inner, extra = run.publishing(leaps)
        print(f"| publish{', leaps' if leaps else ''} | {1e3 * whole:.1f} | {1e3 * inner:.1f} | {whole / inner - 1:.2%} |"
              f" {extra / MIB:.0f} MiB |", flush=True)
    print("\n| | prepare, ms | commit, ms | of it not in C, ms | prepare + commit | memory, MiB | of the first version | bytes moved per change |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for profile in ("small", "fast"):
        ways = run.following(profile)
        direct = min(map(sum, zip(ways["direct"]["prepare"], ways["direct"]["commit"])))
        for way, found in ways.items():
            both = min(map(sum, zip(found["prepare"], found["commit"])))
            batched, read = (statistics.median(values) for values in zip(*found["moved"]))
            print(f"| {profile}, {way} | {1e3 * min(found['prepare']):.1f} | {1e3 * min(found['commit']):.1f} |"
                  f" {1e3 * max(found['inner']):.2f} | {both / direct:.2f} x | {max(found['memory']) / MIB:.0f} |"
                  f" {found['first'] / MIB:.0f} |"
                  f" {batched:.1f} in batches, {read:.1f} by read |", flush=True)


if __name__ == "__main__":
    main()
