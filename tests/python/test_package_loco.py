#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.loco with real ranks: over torch.distributed and in a store they come to the same bits, on all ranks, and to those
of the library alone, whose payloads are handed over within one process."""

import copy
import ctypes
import os
import subprocess
import sys
import threading
import unittest

import numpy
import package
import ranks
import serving
import weft
from package import torch

if torch is None:
    serving.skip_all("there is no torch")
try:
    import torch.distributed as distributed
except ImportError:
    distributed = None
if distributed is None or not distributed.is_available() or not distributed.is_gloo_available():
    serving.skip_all("this torch has no gloo")

from weft import _structures as structures  # noqa: E402
from weft import loco  # noqa: E402
from weft._signatures import functions  # noqa: E402
from weft.context import Context  # noqa: E402

WEIGHTS, ROUNDS = 30011, 4
TOOL = os.path.join(package.BUILD, "tests", "loco_ranks")


def noise(first, count):
    """As in tests/tools/loco_ranks.c."""
    with numpy.errstate(over="ignore"):
        seed = (numpy.uint64(first & (2**64 - 1)) + numpy.arange(count, dtype="uint64") + numpy.uint64(0x9E3779B97F4A7C15))
        seed = seed * numpy.uint64(0xBF58476D1CE4E5B9)
        seed = (seed ^ (seed >> numpy.uint64(29))) * numpy.uint64(0x94D049BB133111EB)
        return ((seed >> numpy.uint64(40)).astype("float64") / (1 << 24) - 0.5).astype("float32")


def begin():
    """The weights that every rank begins with, as torch has them."""
    return {"weights": torch.from_numpy(noise(0, WEIGHTS) * numpy.float32(0.1))}


def train(weights, round, rank):
    weights["weights"].add_(torch.from_numpy(noise((round * 1000003 + rank * 7919) * WEIGHTS, WEIGHTS) * numpy.float32(1e-4)))


def expect(count, settings, rounds=ROUNDS):
    """The digest and the last weights' bytes after each round, by weft_loco_encode and weft_loco_aggregate alone."""
    context = Context()
    every, weights = [], []
    for rank in range(count):
        held = begin()["weights"].numpy()
        options = structures.loco_options()
        functions.loco_defaults(ctypes.byref(options))
        options.run, options.rank, options.ranks = b"ranks", rank, count
        for name, value in settings.items():
            setattr(options, name, value)
        tensor = structures.loco_tensor(name=b"weights", data=held.ctypes.data, count=held.size)
        handle = ctypes.c_void_p()
        context.call(functions.loco_create, context.pointer, ctypes.byref(options), ctypes.byref(tensor), 1,
                     ctypes.byref(handle))
        every.append(handle)
        weights.append(held)
    digests = []
    for round in range(rounds):
        payloads = (structures.loco_payload * count)()
        for rank, handle in enumerate(every):
            train({"weights": torch.from_numpy(weights[rank])}, round, rank)
            context.call(functions.loco_encode, handle, ctypes.byref(payloads[rank]))
        for handle in every:
            context.call(functions.loco_aggregate, handle, payloads, count, None)
        digests.append(str(functions.loco_digest(every[0])))
    for handle in every:
        functions.loco_destroy(handle)
    context.destroy()
    return digests, weights[0].tobytes()


def meet(rank, count, place, settings):
    """One rank of a run; in a store if there is a place, else by torch.distributed."""
    weights = begin()
    exchange = loco.Meeting(place, rank, count, poll_seconds=0.005) if place else None
    digests = []
    with loco.Outer(weights, run="ranks", exchange=exchange, local_steps=1, **settings) as outer:
        assert (outer.rank, outer.ranks) == (rank, count)
        for round in range(ROUNDS):
            train(weights, round, rank)
            done = outer.step()
            digests.append(outer.digest)
            assert (done.rounds, done.elements, done.included) == (round + 1, WEIGHTS, count)
            assert 0 < done.fired <= WEIGHTS and 0 < done.share <= 1 and done.sent > 0 and done.received > 0
        if place:
            assert outer.meeting.sent > 0
    return digests, weights["weights"].numpy().tobytes()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(24, 32), torch.nn.Linear(32, 5)

    def forward(self, x):
        return self.second(torch.nn.functional.silu(self.first(x)))


def train_module(rank, count, place):
    """AdamW inside, rounds outside. Rank by rank the state is saved in the middle of the local steps, and read back into a new
    object; both go on to the same bits."""
    def steps(module, optimizer, outer, first, last):
        rounds = 0
        for step in range(first, last):
            generator = torch.Generator().manual_seed(1000 * step + rank)
            x = torch.randn(16, 24, generator=generator)
            loss = torch.nn.functional.cross_entropy(module(x), torch.randint(5, (16,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rounds += outer.step() is not None
        return rounds

    path = os.path.join(place, f"state-{rank}")
    module = Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    with loco.Outer(module, run="nets", local_steps=3, momentum=0.5) as outer:
        assert steps(module, optimizer, outer, 0, 4) == 1
        kept, inner = outer.state_dict(), copy.deepcopy(optimizer.state_dict())
        outer.save(path, {"note": "four"}, extra={f"{index}.{name}": value for index, state in inner["state"].items()
                                                  for name, value in state.items()})
        assert steps(module, optimizer, outer, 4, 9) == 2
        digest, bits = outer.digest, [parameter.detach().clone() for parameter in module.parameters()]
    for way in ("file", "state_dict"):
        again = Net()
        optimizer = torch.optim.AdamW(again.parameters(), lr=1e-2)
        with loco.Outer(again, run="nets", local_steps=3, momentum=0.5) as outer:
            if way == "file":
                extra = {f"{index}.{name}": torch.zeros_like(value) for index, state in inner["state"].items()
                         for name, value in state.items()}
                assert outer.load(path, "note", "none", extra=extra) == {"note": "four", "none": None}
                state = {index: {name: extra[f"{index}.{name}"] for name in state} for index, state in inner["state"].items()}
                optimizer.load_state_dict({"state": state, "param_groups": inner["param_groups"]})
            else:
                outer.load_state_dict(kept)
                optimizer.load_state_dict(inner)
            assert outer.rounds == 1
            assert steps(again, optimizer, outer, 4, 9) == 2
            assert outer.digest == digest, way
            assert all(torch.equal(*pair) for pair in zip(bits, again.parameters())), way
    return digest, [bit.numpy().tobytes() for bit in bits]


def meet_apart(rank, count):
    """Ranks that do not begin alike are told."""
    weights = begin()
    weights["weights"][0] += rank
    with loco.Outer(weights, run="ranks", momentum=0) as outer:
        try:
            outer.round()
        except weft.Error as error:
            return str(error)


def fail_to_share(rank, count):
    """What an exchange raises comes out of the round, and the round can be done again."""
    weights = begin()
    with loco.Outer(weights, run="ranks", local_steps=2) as outer:
        train(weights, 0, rank)
        assert outer.step() is None
        gather = outer._exchange._gather

        def fail(tensor):
            raise RuntimeError("the network is down")

        outer._exchange._gather = fail
        try:
            outer.step()
            return "no failure"
        except RuntimeError as error:
            assert str(error) == "the network is down", error
        outer._exchange._gather = gather
        outer.round()
        return [outer.digest]


class Ranks(package.Case):
    def compare(self, count, settings, place=None):
        found = ranks.run(count, meet, place, settings)
        expected = expect(count, settings)
        for one in found:
            self.assertEqual(one[0], expected[0])
            self.assertEqual(one[1], expected[1])
        self.assertEqual(len(set(expected[0])), ROUNDS)
        return expected[0]

    def test_distributed(self):
        """And the same as the tool of the C tests."""
        digests = self.compare(2, {})
        if not os.path.exists(TOOL):
            self.skipTest("there is no loco_ranks in this build")
        told = subprocess.run([TOOL, str(ROUNDS), str(WEIGHTS)], env={**os.environ, "LOCO_RANKS": "2"}, capture_output=True,
                              text=True, check=True).stdout
        self.assertEqual([line.split()[1] for line in told.splitlines()], digests)

    def test_four(self):
        self.compare(4, {"rate": 0.5, "momentum": 0.0, "significant": 8})

    def test_grid(self):
        self.compare(3, {"grid": 3})

    def test_open(self):
        self.compare(2, {"open": True, "raw": True})

    def test_store(self):
        self.compare(2, {}, self.path("store"))

    def test_store_of_four(self):
        self.compare(4, {}, self.path("store"))

    def test_module(self):
        found = ranks.run(2, train_module, self.place)
        self.assertEqual(found[0], found[1])

    def test_apart(self):
        for text in ranks.run(2, meet_apart):
            self.assertRegex(text, "consensus")

    def test_failure(self):
        found = ranks.run(2, fail_to_share)
        self.assertEqual(found, [expect(2, {}, 1)[0]] * 2)


class Alone(package.Case):
    """What needs no other process."""

    def meeting(self, rank=0, count=1, **settings):
        return loco.Meeting(self.path("store"), rank, count, poll_seconds=0.005, **settings)

    def test_late(self):
        """A rank that never comes is left out; when it does, it catches up."""
        key = weft.Key.generate()
        weights = [begin(), begin()]
        with loco.Outer(weights[0], run="late", exchange=self.meeting(0, 2, least=1, deadline_seconds=0.05, key=key)) as outer:
            for round in range(3):
                train(weights[0], round, 0)
                self.assertEqual(outer.round().included, 1)
            with loco.Outer(weights[1], run="late", exchange=self.meeting(1, 2, least=1, key=key)) as other:
                train(weights[1], 0, 1)
                self.assertEqual(other.catch_up(), 3)
                self.assertEqual(other.digest, outer.digest)
                self.assertGreater(other.residual_energy, 0)
                done = []
                thread = threading.Thread(target=lambda: done.append(other.round()))
                thread.start()
                included = outer.round().included
                thread.join(serving.PATIENCE)
                self.assertEqual((done[0].included, other.digest), (included, outer.digest))
                self.assertEqual(outer.meeting.led, 4)
        self.assertTrue(torch.equal(weights[0]["weights"], weights[1]["weights"]))

    def test_overlap(self):
        """Payloads travel while the next steps are made, so one thread moves both ranks."""
        weights = [begin(), begin()]
        meetings = [self.meeting(rank, 2, deadline_seconds=serving.PATIENCE) for rank in range(2)]
        outers = [loco.Outer(weights[rank], run="overlap", exchange=meetings[rank], local_steps=2, overlap=True)
                  for rank in range(2)]
        done = []
        for step in range(8):
            for rank, outer in enumerate(outers):
                train(weights[rank], step, rank)
                done.append(outer.step())
            self.assertEqual(outers[0].digest, outers[1].digest)
        self.assertEqual([one and one.rounds for one in done[::2]], [None, None, None, 1, None, 2, None, 3])
        self.assertEqual([one.included for one in done if one], [2] * 6)
        self.assertFalse(torch.equal(weights[0]["weights"], weights[1]["weights"]))  # each ahead by its own steps
        for call in lambda: outers[0].save(self.path("state")), lambda: outers[0].meeting, outers[0].begin:
            self.assertRaises(weft.BusyError, call)
        self.assertEqual([outer.round().rounds for outer in outers], [4, 4])
        self.assertTrue(torch.equal(weights[0]["weights"], weights[1]["weights"]))
        outers[0].save(self.path("state"))
        for outer in outers:
            outer.close()
        with self.assertRaisesRegex(weft.UnsupportedError, "torch.distributed"):
            loco.Outer(begin(), run="x", overlap=True)
        with loco.Outer(begin(), run="x", exchange=self.meeting()) as outer:
            self.assertRaises(weft.InvalidArgument, outer.begin)

    def test_refused(self):
        for tensor, pattern in ((torch.zeros(3, dtype=torch.bfloat16), "bfloat16.*autocast"),
                                (torch.zeros(3, device="meta"), "on meta.*masters"),
                                (torch.zeros(4, 4).t()[1:], "not contiguous")):
            with self.assertRaisesRegex(weft.UnsupportedError, pattern):
                loco.Outer({"w": tensor}, run="x", exchange=self.meeting())
        with self.assertRaisesRegex(weft.InvalidArgument, "w.*not finite|finite"):
            loco.Outer({"w": torch.full((3,), float("nan"))}, run="x", exchange=self.meeting())
        with self.assertRaisesRegex(weft.InvalidArgument, "init_process_group"):
            loco.Outer(begin(), run="x")
        with self.assertRaisesRegex(weft.InvalidArgument, "local_steps"):
            loco.Outer(begin(), run="x", exchange=self.meeting(), local_steps=0)
        with self.assertRaisesRegex(weft.InvalidArgument, "mapping"):
            loco.Outer(7, run="x", exchange=self.meeting())

    def test_moved(self):
        module = Net()
        with loco.Outer(module, run="x", exchange=self.meeting()) as outer:
            outer.round()
            module.first.weight.data = module.first.weight.data.clone()
            with self.assertRaisesRegex(weft.StaleError, "first.weight"):
                outer.round()

    def test_other_state(self):
        """A state of another rank, or a damaged one, changes nothing."""
        weights = begin()
        with loco.Outer(weights, run="x", exchange=self.meeting()) as outer:
            outer.save(self.path("state"))
            with open(self.path("state"), "r+b") as file:
                file.seek(-5, os.SEEK_END)
                file.write(b"\x01")
            before = weights["weights"].clone()
            with self.assertRaises(weft.Error):
                outer.load(self.path("state"))
            self.assertTrue(torch.equal(weights["weights"], before))
            with loco.Outer(begin(), run="y", exchange=self.meeting()) as other:
                other.save(self.path("other"))
            with self.assertRaises(weft.Error):
                outer.load(self.path("other"))

    def test_interrupt(self):
        """Ctrl-C ends the wait for a rank that does not come."""
        program = f"""
import os, sys, threading, time, signal
sys.path[:0] = [{os.path.dirname(os.path.abspath(__file__))!r}]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import test_package_loco as t
store = t.distributed.FileStore({self.path("meeting")!r}, 2)
t.distributed.init_process_group("gloo", store=store, rank=int(sys.argv[1]), world_size=2)
weights = t.begin()
with t.loco.Outer(weights, run="ranks") as outer:
    if sys.argv[1] == "0":
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            outer.round()
        except KeyboardInterrupt:
            print("ended")
    else:
        sys.stdin.read()
sys.stdout.flush()
os._exit(0)
"""
        processes = [subprocess.Popen([sys.executable, "-B", "-c", program, str(rank)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            self.assertEqual(processes[0].communicate(timeout=serving.PATIENCE)[0], "ended\n")
        finally:
            for process in processes:
                process.kill()
                process.communicate()


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
