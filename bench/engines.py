#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What following costs a live vLLM engine:

    make all && scripts/engines.sh && build/engines/venv/bin/python bench/engines.py

A language model of 135M parameters, 1% of them changed per version, eager, over `weft serve` on loopback, everything on
this machine. Prints one table; --versions N then publishes that many more under load and compares each by vLLM's weight
checker. All processes share the processors: the publisher's work slows the engine's steps, as nothing would where they
are on machines of their own. With --ahead other work on this machine does not show: see below.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Dict, Iterator, List, Tuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/engines"))

from engines import (
    COMMAND, Program, StoreServer, Stream, VLLM, Weights, fused_hashes, load_weights, move_weights, place, save_model,
    say, wait_for,
)
from limit import descendants

import torch

import weft

TOKENS = 150  # of a stream
_AHEAD = -15  # how much nicer others are
CACHES = 700 << 20  # bytes, more than those of a processor have
FEW = 40  # of one that versions come beneath by the hundred


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


class Memory:
    """Of the process that holds the weights."""

    def __init__(self, engine: VLLM) -> None:
        family = descendants(engine.process.pid)
        # with one worker vLLM may have it in the engine core's process; the weights are where most memory is
        self.process = max(family, key=lambda process: self._read(process, "RssAnon"))

    def _read(self, process: int, field: str) -> int:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
        return 0

    def now(self) -> int:
        return self._read(self.process, "VmRSS")

    def peak(self) -> int:
        return self._read(self.process, "VmHWM")

    def forget_peak(self) -> None:
        pathlib.Path(f"/proc/{self.process}/clear_refs").write_text("5")


@contextlib.contextmanager
def ahead(wanted: bool) -> Iterator[None]:
    """If wanted, this process and those that it has started come before all others meanwhile; among them all is as it
    was. Not by real-time priority: the engine's threads wait busily for each other, and one that gives way to them
    would never run. Where Linux groups processes by session, the group's weight counts."""

    def put(weight: int) -> None:
        for process in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                pathlib.Path(f"/proc/{process}/autogroup").write_text(f"{weight}\n")
            for task in pathlib.Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    now = os.getpriority(os.PRIO_PROCESS, int(task.name))
                    os.setpriority(os.PRIO_PROCESS, int(task.name), now + (weight or -_AHEAD))

    if not wanted:
        yield
        return
    say("ahead of all others from here")
    put(_AHEAD)
    try:
        yield
    finally:
        put(0)
        say("beside all others again")


def cold_commits(store: str, publisher: weft.Publisher, weights: Weights) -> List[float]:
    """Processor seconds of commits by the library alone, into tensors of this process after its caches were emptied, as
    a step of an engine empties them."""
    live = {name: weight.clone() for name, weight in weights.items()}
    other = torch.zeros(CACHES, dtype=torch.uint8)
    commits = []
    with weft.Subscriber(store, live, threads=1) as subscriber:
        subscriber.pull()
        for _ in range(5):
            move_weights(weights, seed=publisher.version)
            publisher.publish()
            subscriber.prepare()
            other.add_(1)
            start = time.thread_time()
            subscriber.commit()
            commits.append(time.thread_time() - start)
    return commits


class Bench:
    def __init__(self, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.directory, self.rows = directory, []  # type: Tuple[pathlib.Path, List[Tuple[str, str]]]
        self.weights: Weights = load_weights()
        (directory / "store").mkdir()
        self.server = StoreServer(directory / "store")
        stack.callback(Program.end, self.server)
        self.publisher = stack.enter_context(weft.Publisher(self.server.url, self.weights))
        self.publisher.publish(step=0)
        self.engine = VLLM(
            directory, "--worker-extension-cls", "extension.Extension", WEFT_STORE=self.server.url,
            PYTHONPATH=str(pathlib.Path(__file__).resolve().parents[1] / "tests/engines"),
        )
        stack.callback(Program.end, self.engine)
        self.engine.ready()
        self.engine.wait_version(1)
        self.changed = 0
        self.total = sum(weight.numel() for weight in self.weights.values())

    def row(self, what: str, figure: str) -> None:
        self.rows.append((what, figure))
        say(f"{what}: {figure}")

    def move(self) -> None:
        self.changed = move_weights(self.weights, seed=self.publisher.version)

    # -- what a stream notices --

    def streams(self, rounds: int) -> None:
        plain: List[List[float]] = []
        changing: List[List[float]] = []
        delays: List[float] = []
        commits: List[float] = []
        running: List[float] = []
        pauses: List[float] = []
        published: List[float] = []
        for _ in range(rounds):
            quiet = Stream(self.engine, tokens=TOKENS)
            quiet.join()
            plain.append(quiet.gaps()[1:])
            step = statistics.median(quiet.gaps())
            self.move()
            stream = Stream(self.engine, tokens=TOKENS)
            wait_for(lambda: len(stream.times) > TOKENS // 5, "a stream to begin")
            begin = time.monotonic()
            result = self.publisher.publish(step=self.publisher.version)
            returned = time.time()
            published.append(result.seconds)
            self.engine.wait_version(result.version)
            stream.join()
            figures = self.engine.metrics()
            committed = figures["committed_timestamp_seconds"] - time.time() + time.monotonic()
            # a token of the step before the commit may still be on its way: the next one comes a step later
            first = next((at for at in stream.times if at > committed + step / 2), None)
            if first is None:
                say("a stream has ended before the commit, and does not count")
                continue
            delays.append(first - (returned - time.time() + time.monotonic()))
            changing.append(stream.gaps(after=begin, before=first))
            commits.append(figures["last_commit_seconds"])
            running.append(figures["last_commit_cpu_seconds"])
            pauses.append(figures["last_pause_seconds"])
        self.row("weights changed per version", f"{self.changed:,} of {self.total:,}")
        self.row("one engine step (gap between tokens), median", milliseconds(statistics.median(sum(plain, []))))
        for what, gaps in (
            ("no update", plain), ("from publish's begin to the first new token", changing),
        ):
            longest = [max(found) for found in gaps]
            self.row(
                f"longest gap between tokens, {what}",
                f"{milliseconds(max(longest))}; median of the longest of each stream "
                f"{milliseconds(statistics.median(longest))}, {sum(map(len, gaps))} gaps",
            )
        self.row("publish", milliseconds(statistics.median(published)))
        self.row(
            "publish's return to the first token of new weights, over HTTP",
            f"median {milliseconds(statistics.median(delays))}, longest {milliseconds(max(delays))}, "
            f"{len(delays)} versions",
        )
        self.row(
            "commit in the worker, and with calls and caches",
            f"median {milliseconds(statistics.median(commits))} and {milliseconds(statistics.median(pauses))}, "
            f"fastest {milliseconds(min(commits))} and {milliseconds(min(pauses))}, "
            f"longest {milliseconds(max(commits))} and {milliseconds(max(pauses))}",
        )
        self.row(
            "processor time of the commit",
            f"median {milliseconds(statistics.median(running))}, fastest {milliseconds(min(running))}",
        )

    def library(self, paths: List[str]) -> None:
        """The same commit without an engine around it, one thread as here: by `weft bench` on the same change, and from
        empty caches."""
        command = [str(COMMAND), "bench", "--base", paths[0], "--new", paths[1], "--json"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rate = next(row["commit_million_changes_per_second"] for row in found["rows"]
                    if row["name"] == "small" and row["threads"] == 1)
        seconds = found["changed"] / rate / 1e6
        self.row("commit in C (`weft bench --base --new`), the same change", f"fastest {milliseconds(seconds)}")
        commits = cold_commits(self.server.url, self.publisher, self.weights)
        self.row(
            "processor time of a commit by the library alone, from empty caches",
            f"median {milliseconds(statistics.median(commits))}, fastest {milliseconds(min(commits))}",
        )

    def pair(self) -> List[str]:
        """Two checkpoints, the second with a version's worth of changes."""
        moved = {name: weight.clone() for name, weight in self.weights.items()}
        move_weights(moved, seed=4711)
        directories = [save_model(self.weights, self.directory / "before"), save_model(moved, self.directory / "after")]
        return [str(directory / "model.safetensors") for directory in directories]

    def own_loader(self, paths: List[str], rounds: int) -> None:
        """vLLM's own way to put a sparse change in place."""
        seconds = []
        for turn in range(2 * rounds):
            pair = paths if turn % 2 == 0 else paths[::-1]
            answer = self.engine.post("collective_rpc", {"method": "weft_test_sparse", "args": pair}).json()
            seconds.append(float(answer["results"][0]))
        self.row("vLLM's own sparse loader, the same change", f"median {milliseconds(statistics.median(seconds))}")

    def memory(self, rounds: int) -> None:
        """The first updates of all: what they need is not there yet."""
        Stream(self.engine, tokens=50).join()
        memory = Memory(self.engine)
        before = memory.now()
        memory.forget_peak()
        for _ in range(rounds):
            self.move()
            self.engine.wait_version(self.publisher.publish(step=self.publisher.version).version)
        above = max(0, memory.peak() - before)
        self.row(
            "memory of the worker",
            f"{before / 2**20:.0f} MiB before the first update; its peak in {rounds} updates {above / 2**20:.1f} MiB "
            f"more, {above / max(1, self.changed):.1f} bytes per change (the model: {2 * self.total / 2**20:.0f} MiB)",
        )

    # -- many versions --

    def endure(self, versions: int) -> None:
        """Each is put in place while two streams are in flight. Hashes of both sides are computed afterwards."""
        memory, engine = Memory(self.engine), self.engine
        start, first = time.monotonic(), int(engine.metrics()["commits_total"])
        sizes: Dict[int, int] = {}
        equal = beneath = broken = 0
        for number in range(1, versions + 1):
            self.move()
            streams = [Stream(engine, tokens=FEW) for _ in range(2)]
            wait_for(lambda: all(len(stream.times) > 2 for stream in streams), "streams to begin")
            engine.wait_version(self.publisher.publish(step=self.publisher.version).version)
            beneath += all(stream.is_alive() for stream in streams)
            for stream in streams:
                stream.join()
                broken += stream.error is not None or stream.completed != FEW
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                expected = pool.submit(fused_hashes, self.weights)
                live = {name.rpartition(":")[2]: value for name, value in engine.hashes().items()}
                equal += live == expected.result()
            if number in (1, versions) or number % 20 == 0:
                sizes[number] = memory.now()
                say(f"version {number} of {versions}, {equal} equal, {sizes[number] / 2**20:.0f} MiB")
        commits = int(engine.metrics()["commits_total"]) - first
        self.row(
            f"{versions} versions in a row under load",
            f"{versions - commits} lost, {equal} equal by the weight checker; {2 * versions} streams of {FEW} "
            f"tokens, {broken} broken, in flight when {beneath} of the versions came; {time.monotonic() - start:.0f} s",
        )
        self.row(
            "memory of the worker meanwhile",
            ", ".join(f"{number}: {size / 2**20:.0f} MiB" for number, size in sizes.items()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="updates that are measured (default: 12; 0: none)")
    parser.add_argument(
        "--ahead", action="store_true", help="measure before all other processes (needs root; takes two minutes)"
    )
    parser.add_argument("--versions", type=int, default=0, help="then publish so many under load, each compared")
    parser.add_argument(
        "--cold", action="store_true", help="only the library's commit from empty caches, without an engine"
    )
    arguments = parser.parse_args()
    if arguments.cold:
        weights = load_weights()
        with place("bench-engines") as directory, weft.Publisher(directory / "store", weights) as publisher:
            publisher.publish()
            commits = cold_commits(str(directory / "store"), publisher, weights)
            say(f"median {milliseconds(statistics.median(commits))}, fastest {milliseconds(min(commits))}")
        return
    with place("bench-engines") as directory, contextlib.ExitStack() as stack:
        bench = Bench(directory, stack)
        if arguments.rounds:
            bench.memory(max(3, arguments.rounds // 2))
            with ahead(arguments.ahead):
                bench.streams(arguments.rounds)
        if arguments.versions:
            bench.endure(arguments.versions)
        if arguments.rounds:  # the last: it leaves the engine with other weights than the run has
            paths = bench.pair()
            with ahead(arguments.ahead):
                bench.library(paths)
                bench.own_loader(paths, max(1, arguments.rounds // 4))
        print(f"\n`bench/engines.py` on {os.cpu_count()} processors:\n\n| | |\n|---|---|")
        for what, figure in bench.rows:
            print(f"| {what} | {figure} |")


if __name__ == "__main__":
    main()
