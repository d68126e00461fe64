#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not lie end to end, lists of changes, and tensors on devices. CPU tensors go the way of a device here,
through weft.device.through_device."""

import contextlib
import copy
import random
import unittest
from unittest import mock

import numpy

import package
import serving
import weft
from package import torch

if torch is not None:
    from weft import device
    from weft.device import through_device


def strided(seed):
    """The arrays of package.model where they can be, as slices and transposes of others."""
    generator = numpy.random.default_rng(seed)
    wide = generator.standard_normal((40, 60)).astype("float32")
    return {
        "transposed": wide.T,
        "columns": generator.integers(0, 2**16, (30, 90)).astype("uint16")[:, 7:40],
        "steps": generator.standard_normal(301)[1::3],
        "permuted": generator.standard_normal((6, 7, 8)).astype("float16").transpose(2, 0, 1),
        "plain": generator.standard_normal(50).astype("float32"),
    }


def changed_in_place(tensors, seed, share=0.05):
    generator = numpy.random.default_rng(seed)
    for tensor in tensors.values():
        tensor[generator.random(tensor.shape) < share] += 1


class Strided(package.Case):
    def test_follow(self):
        trainer, worker = strided(1), strided(2)
        with weft.Publisher(self.path("store"), trainer) as publisher, weft.Subscriber(self.path("store"), worker) as subscriber:
            for seed in range(4):
                published = publisher.publish()
                plain = {name: numpy.ascontiguousarray(tensor) for name, tensor in trainer.items()}
                self.assertEqual(published.digest, weft.digest(plain))
                subscriber.pull()
                self.assertTrue(package.equal(trainer, worker))
                changed_in_place(trainer, seed)
            self.assertFalse(package.equal(trainer, worker))

    def test_masters(self):
        masters = {"w": numpy.random.default_rng(1).standard_normal((40, 60)).astype("float32").T}
        plain = {"w": numpy.ascontiguousarray(masters["w"])}
        self.assertEqual(weft.digest(masters, dtype="bfloat16"), weft.digest(plain, dtype="bfloat16"))

    def test_stats(self):
        old, new = strided(1), strided(1)
        new["transposed"][3, 5] += 1
        new["steps"][::10] += 1
        found = {row.name: row.changed for row in weft.stats(old, new).tensors}
        self.assertEqual(found, {"transposed": 1, "columns": 0, "steps": 10, "permuted": 0, "plain": 0})

    def test_around(self):
        """What lies between the elements stays as it is."""
        whole = numpy.arange(100.0).reshape(10, 10)
        part = {"w": whole[::2, 1:4]}
        weft.apply(part, weft.diff(part, {"w": numpy.zeros((5, 3))}))
        expected = numpy.arange(100.0).reshape(10, 10)
        expected[::2, 1:4] = 0
        self.assertTrue((whole == expected).all())

    def refused(self, kind, pattern, array):
        with self.assertRaisesRegex(kind, pattern):
            weft.digest({"w": array})

    def test_refused(self):
        self.refused(weft.UnsupportedError, "w: it is expanded.*ascontiguousarray", numpy.broadcast_to(numpy.zeros(4), (3, 4)))
        self.refused(weft.UnsupportedError, "w: it runs backwards.*ascontiguousarray", numpy.zeros(4)[::-1])
        record = numpy.zeros(4, [("a", "int8"), ("b", "<i4")])
        self.refused(weft.UnsupportedError, "no whole elements", record["b"])
        windows = numpy.lib.stride_tricks.as_strided(numpy.zeros(10), (4, 4), (8, 8))
        self.refused(weft.InvalidArgument, "overlap", windows)


class Changes(package.Case):
    def test_publish(self):
        """The same versions, whether the publisher compares or is told."""
        random_numbers = numpy.random.default_rng(5)
        told, model = package.model(1), package.model(1)
        with weft.Publisher(self.path("told"), told) as teller, weft.Publisher(self.path("store"), model) as publisher:
            teller.publish()
            publisher.publish()
            for step in range(3):
                changes = {}
                for name in ("layer.weight", "layer.bias", "bits", "steps"):
                    flat = model[name].reshape(-1)
                    positions = numpy.flatnonzero(random_numbers.random(flat.shape) < 0.1)
                    flat[positions] = (flat[positions] * 3 + 1).astype(flat.dtype)
                    changes[name] = positions, flat[positions]
                self.assertEqual(teller.publish_changes(changes, step=step).digest, publisher.publish(step=step).digest)
            self.assertEqual(teller.publish_changes({}, {"step": 3}).digest, weft.digest(model))
            worker = package.model(2)
            with weft.Subscriber(self.path("told"), worker) as subscriber:
                subscriber.pull()
                self.assertEqual(subscriber.labels, {"step": "3"})
            self.assertTrue(package.equal(worker, model))

    def test_masters(self):
        """FP32 values are rounded for BF16."""
        masters = {"w": numpy.zeros(100, "float32")}
        with weft.Publisher(self.path("store"), masters, dtype="bfloat16") as publisher:
            publisher.publish()
            masters["w"][[3, 50]] = 1.2345, -numpy.pi
            published = publisher.publish_changes({"w": ([3, 50], masters["w"][[3, 50]])})
            self.assertEqual(published.digest, weft.digest(masters, dtype="bfloat16"))

    def test_refused(self):
        model = {"w": numpy.zeros((4, 4), "float32")}
        values = numpy.zeros(2, "float32")
        with weft.Publisher(self.path("store"), model) as publisher:
            with self.assertRaises(weft.NotFoundError):
                publisher.publish_changes({"w": ([1, 2], values)})
            publisher.publish()
            for pattern, changes in (
                ("no tensor x", {"x": ([1, 2], values)}),
                ("3 positions and 2 values", {"w": ([1, 2, 3], values)}),
                ("F32, and its values are float64", {"w": ([1, 2], values.astype("float64"))}),
                ("ascend", {"w": ([2, 1], values)}),
                ("has 16 units", {"w": ([2, 16], values)}),
                ("integers, not bool", {"w": (numpy.array([True, True]), values)}),
            ):
                with self.assertRaisesRegex(weft.InvalidArgument, pattern):
                    publisher.publish_changes(changes)
            self.assertEqual((publisher.version, publisher.publish_changes({"w": ([1, 2], values + 1)}).changed), (1, 2))

    def test_prepared(self):
        """What is shown before a commit is what the commit does."""
        trainer, worker = package.model(1), package.model(1)
        with weft.Publisher(self.path("store"), trainer) as publisher, weft.Subscriber(self.path("store"), worker) as subscriber:
            publisher.publish()
            subscriber.pull()
            for seed in range(2):
                for name, tensor in package.changed(trainer, seed).items():
                    trainer[name][...] = tensor
                published = publisher.publish()
                expected = copy.deepcopy(worker)
                update = next(subscriber.follow(timeout=serving.PATIENCE))
                shown = 0
                for change in update.changes(batch=100):
                    flat = expected[change.name].reshape(-1)
                    self.assertLessEqual(len(change.units), 100)
                    self.assertEqual(flat[change.units].tobytes(), change.old.tobytes())
                    flat[change.units] = change.new
                    shown += len(change.units)
                self.assertEqual(shown, published.changed)
                self.assertTrue(package.equal(expected, trainer))
                self.assertFalse(package.equal(worker, trainer))
                update.commit()
                self.assertTrue(package.equal(worker, trainer))
                with self.assertRaises(weft.StaleError):
                    update.changes()
            self.assertEqual(list(subscriber.changes()), [])
        with weft.Subscriber(self.path("store"), self.path("replica.safetensors")) as subscriber:
            with self.assertRaises(weft.UnsupportedError):
                subscriber.changes()


def tensors(seed, size=3000):
    """Several dtypes, sizes that end within a word, one tensor with two names."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(size, 7, generator=generator).to(torch.bfloat16)
    return {
        "embedding": embedding,
        "head": embedding,
        "norm": torch.randn(13, generator=generator).to(torch.bfloat16),
        "bias": torch.randn(size, generator=generator),
        "table": torch.randint(0, 255, (size + 3,), generator=generator).to(torch.uint8),
        "steps": torch.tensor(seed),
        "empty": torch.zeros(0, 3),
        "flags": torch.zeros(5, dtype=torch.bool),
        "waves": torch.randn(9, 3, generator=generator).to(torch.complex64),
    }


def step(model, seed, share=0.02):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.items():
            if name != "head" and tensor.numel() > 0:
                mask = torch.rand(tensor.shape, generator=generator) < share
                tensor.copy_(torch.where(mask, (tensor + 1).to(tensor.dtype), tensor))
                last = tensor.view(-1)
                last[-1] = ~last[-1] if tensor.dtype == torch.bool else last[-1] + 1


def same(one, other):
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        torch.equal(device.flat_bits(one[name]), device.flat_bits(other[name])) for name in one)


@unittest.skipIf(torch is None, "there is no torch")
class Devices(package.Case):
    @contextlib.contextmanager
    def pair(self, trainer, worker, **options):
        with weft.Publisher(self.path("store"), trainer, **options) as publisher:
            publisher.publish()
            with weft.Subscriber(self.path("store"), worker) as subscriber:
                subscriber.pull()
                yield publisher, subscriber

    def test_follow(self):
        for profile in ("small", "fast"):
            self.setUp()
            trainer, worker = tensors(1), tensors(2)
            with self.pair(through_device(trainer), through_device(worker), profile=profile) as (publisher, subscriber):
                self.assertTrue(same(trainer, worker))
                for seed in range(4):
                    step(trainer, seed)
                    self.assertEqual(publisher.publish().digest, weft.digest(trainer))
                    subscriber.pull()
                    self.assertTrue(same(trainer, worker))
                    subscriber.verify()

    def test_bits(self):
        """Every bit pattern is moved as it is, NaNs that signal too, wherever a tensor begins."""
        patterns = torch.tensor([0x7FF4, 0x7F81, -0x7F, 0x7FF0, 1, -1, -0x8000], dtype=torch.int16)
        for start in (0, 3, 8):
            memory = patterns.repeat(200)
            worker = {"w": memory[start:].view(torch.bfloat16)}
            before = memory.clone()
            target = {"w": before[start:].clone().view(torch.bfloat16)}
            target["w"].view(torch.int16)[::50] = 0x7FF1
            for profile in ("small", "fast"):
                with weft.Transaction(through_device(worker), weft.diff(worker, target, profile=profile)) as change:
                    change.commit()
                    self.assertTrue(same(worker, target))
                    self.assertTrue(torch.equal(memory[:start], before[:start]))
                    change.rollback()
                    self.assertTrue(torch.equal(memory, before))

    def test_portions(self):
        """Positions go in portions, which end anywhere; what lies in a row goes without."""
        for portion, run in ((1, 10**6), (100, 5), (3001, 64)):
            with mock.patch.object(device, "_PORTION", portion), mock.patch.object(device, "_RUN", run):
                worker, target = tensors(1, 700), tensors(1, 700)
                step(target, 3, 0.1)
                target["bias"][100:300] += 1
                for profile in ("small", "fast"):
                    with weft.Transaction(through_device(worker), weft.diff(worker, target, profile=profile)) as change:
                        change.commit()
                        self.assertTrue(same(worker, target))
                        change.rollback()
                        self.assertTrue(same(worker, tensors(1, 700)))

    def test_module(self):
        trainer, worker = torch.nn.Linear(33, 5), torch.nn.Linear(33, 5)
        with self.pair(trainer, through_device(worker)) as (publisher, subscriber):
            with torch.no_grad():
                trainer.weight[2, 7] = 5
            publisher.publish()
            subscriber.pull()
            self.assertTrue(torch.equal(trainer.weight, worker.weight))
            worker.weight.data = worker.weight.data.clone()
            with self.assertRaisesRegex(weft.StaleError, "weight"):
                subscriber.prepare()

    def test_one_tensor(self):
        """Some tensors on a device, and others not; sizes around a word; dtypes of every width."""
        choice = random.Random(3)
        for size in [*range(1, 20), 31, 32, 33, 1000]:
            dtype = choice.choice([torch.uint8, torch.int16, torch.float32, torch.int64, torch.bfloat16])
            old = {"a": torch.zeros(size, dtype=dtype), "b": torch.zeros(size)}
            new = {"a": torch.arange(size).remainder(2).to(dtype), "b": torch.ones(size)}
            new["a"][-1] = 1
            target = {"a": through_device(old["a"]), "b": old["b"]}
            for profile in ("fast", "small"):
                patch = weft.diff(old, new, profile=profile)
                with weft.Transaction(target, patch) as change:
                    change.commit()
                    self.assertTrue(torch.equal(old["a"], new["a"]) and torch.equal(old["b"], new["b"]))
                    change.rollback()
                    self.assertFalse(old["a"].any())

    def test_moved(self):
        """What is moved goes with what changes."""
        trainer = {"w": torch.randn(1000000).to(torch.bfloat16)}
        worker = {"w": torch.zeros_like(trainer["w"])}
        with self.pair(trainer, through_device(worker), profile="fast") as (publisher, subscriber):
            reached = subscriber._tensors.device
            self.assertLessEqual(reached.sent, 2 * 1000000)
            for count in (10, 1000):
                sent, received = reached.sent, reached.received
                trainer["w"][torch.arange(count) * 991] += 1
                changed = publisher.publish().changed
                subscriber.pull()
                self.assertTrue(torch.equal(trainer["w"], worker["w"]))
                self.assertGreater(changed, 0)
                self.assertLessEqual(reached.sent - sent, 18 * changed)
                self.assertLessEqual(reached.received - received, 16 * changed)

    def test_layout(self):
        """Fused and sliced, through the device."""
        trainer = {name: torch.randn(24, 10).to(torch.bfloat16) for name in ("q", "k")}
        live = {"qk": torch.zeros(24, 10, dtype=torch.bfloat16)}
        slices = [{"tensor": name, "dim": 0, "start": 12, "length": 12} for name in ("q", "k")]
        layout = {"weft_layout": 1, "tensors": {"qk": {"concat": slices, "dim": 0}}}
        with weft.Publisher(self.path("store"), trainer, cuts=[("*", 0, 2)]) as publisher:
            publisher.publish()
            with weft.Subscriber(self.path("store"), through_device(live), layout=layout) as subscriber:
                for seed in range(3):
                    subscriber.pull()
                    self.assertTrue(torch.equal(live["qk"], torch.cat([trainer["q"][12:], trainer["k"][12:]])))
                    step(trainer, seed, 0.2)
                    publisher.publish()

    def test_ties(self):
        worker = tensors(1, 500)
        broken = {name: tensor.clone() for name, tensor in worker.items()}
        broken["head"][3, 3] += 1
        before = {name: tensor.clone() for name, tensor in worker.items()}
        with weft.Transaction(through_device(worker), weft.diff(worker, broken)) as change:
            with self.assertRaisesRegex(weft.UnsupportedError, "embedding and head share their memory"):
                change.commit()
        self.assertTrue(same(worker, before))
        memory = torch.zeros(10)
        with self.assertRaisesRegex(weft.InvalidArgument, "a and b overlap"):
            weft.digest(through_device({"a": memory[:6], "b": memory[4:]}))

    def test_masters(self):
        """Masters are rounded where they are, and every NaN as the library does it."""
        masters = {"w": torch.randn(3001)}
        masters["w"][::7] = float("nan")
        masters["w"][::11] = -float("nan")
        self.assertEqual(weft.digest(through_device(masters), dtype=torch.bfloat16), weft.digest(masters, dtype=torch.bfloat16))
        patch = weft.diff({"w": masters["w"].to(torch.bfloat16)}, {"w": torch.zeros(3001, dtype=torch.bfloat16)})
        with self.assertRaises(weft.Error):
            weft.apply(through_device(masters), patch, dtype=torch.bfloat16)

    def test_failures(self):
        """What fails there is raised here, and the weights are as they were."""
        worker = tensors(1, 500)
        target = {name: tensor.clone() for name, tensor in worker.items()}
        target["head"] = target["embedding"]
        step(target, 7)
        patch = weft.diff(worker, target, profile="fast")
        before = {name: tensor.clone() for name, tensor in worker.items()}
        failure = RuntimeError("the device is gone")
        with mock.patch.object(device._Reached, "gather", side_effect=failure):
            change = weft.Transaction(through_device(worker), patch)
            with self.assertRaisesRegex(RuntimeError, "is gone"):
                change.prepare()
        change.prepare()
        scatter = device.Device._scatter
        with mock.patch.object(device.Device, "_scatter", autospec=True, side_effect=[failure, None]) as patched:
            with self.assertRaisesRegex(RuntimeError, "is gone"):
                change.commit()
            self.assertEqual(patched.call_count, 2)
        self.assertIs(device.Device._scatter, scatter)
        self.assertTrue(same(worker, before))
        change.close()
        with mock.patch.object(device._Reached, "bits", side_effect=failure):
            with self.assertRaisesRegex(RuntimeError, "is gone"):
                weft.digest(through_device(worker))

    def test_inference(self):
        """Weights that were made in inference mode can be changed, and so can those that want gradients."""
        with torch.inference_mode():
            made = torch.zeros(100)
        wanting = torch.nn.Parameter(torch.zeros(100))
        for tensor in (made, wanting):
            weft.apply({"w": through_device(tensor)}, weft.diff({"w": torch.zeros(100)}, {"w": torch.ones(100)}))
            self.assertTrue(bool((tensor == 1).all()))

    def test_prepared(self):
        trainer, worker = tensors(1), tensors(2)
        with self.pair(trainer, through_device(worker)) as (publisher, subscriber):
            step(trainer, 1)
            publisher.publish()
            update = next(subscriber.follow(timeout=serving.PATIENCE))
            expected = {name: tensor.clone() for name, tensor in worker.items()}
            for name, units, old, new in update.changes():
                self.assertEqual((old.dtype, units.dtype), (worker[name].dtype, torch.int64))
                self.assertTrue(torch.equal(expected[name].view(-1)[units], old))
                expected[name].view(-1)[units] = new
            self.assertTrue(same(expected, trainer))

    def test_save(self):
        model = tensors(1)
        weft.save(through_device(model), self.path("model.safetensors"))
        self.assertEqual(weft.digest(self.path("model.safetensors")), weft.digest(model))

    def test_stats(self):
        old, new = tensors(1), tensors(1)
        new["bias"][5] += 1
        self.assertEqual(weft.stats(through_device(old), through_device(new)).changed, 1)

    def test_refused(self):
        for pattern, tensor in (
            ("device meta.*to_empty", torch.zeros(4, device="meta")),
            (r"not contiguous, on cpu; give tensor.contiguous\(\)", torch.zeros(4, 4).t()[1:]),
        ):
            with self.assertRaisesRegex(weft.UnsupportedError, pattern):
                weft.digest({"w": through_device(tensor)})
        with self.assertRaisesRegex(weft.InvalidArgument, "no torch tensor"):
            weft.digest({"w": through_device(numpy.zeros(4))})
        with self.assertRaisesRegex(weft.InvalidArgument, "disk"):
            through_device("model.safetensors")

    def test_streams(self):
        """Work begins after the caller's stream, on a stream of its own, and has ended when a call returns."""
        events = []

        class Stream:
            def wait_stream(self, other):
                events.append(("wait", other))

            def synchronize(self):
                events.append("synchronize")

        class Module:
            @staticmethod
            def current_stream(_):
                return "the caller's"

            @staticmethod
            @contextlib.contextmanager
            def stream(_):
                events.append("work")
                yield

        class Lane(device._Lane):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                self._module, self._stream = Module, Stream()

        old, new = {"w": torch.zeros(1000)}, {"w": torch.zeros(1000)}
        new["w"][::50] = 1
        patch = weft.diff(old, new, profile="fast")
        with mock.patch.object(device, "_Lane", Lane):
            change = weft.Transaction(through_device(old), patch)
            self.addCleanup(change.close)
            for call in (change.prepare, change.commit, change.rollback):
                events.clear()
                call()
                self.assertEqual(events[0], ("wait", "the caller's"))
                self.assertIn("work", events)
                self.assertEqual(events[-1], "synchronize")


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
