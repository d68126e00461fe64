#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Publisher, Subscriber, Group, Member, Store, Key, log, fleet, gc and repair: on directories and behind `weft serve`, from
several threads, with asyncio, and when Ctrl-C is pressed."""

import asyncio
import copy
import gc
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy
import package
import serving
import weft
from package import changed, equal, model
from weft import context


def zeros(tensors):
    return {name: numpy.zeros_like(tensor) for name, tensor in tensors.items()}


def move(tensors, seed):
    """Changes about a hundredth of each tensor in place."""
    for name, tensor in changed(tensors, seed).items():
        tensors[name][...] = tensor


class Sync(package.Case):
    def test_follow(self):
        trained, held = model(1), zeros(model(1))
        with weft.Publisher(self.path("store"), trained) as publisher:
            first = publisher.publish(step=1)
            self.assertTrue(first.anchored)
            with weft.Subscriber(self.path("store"), held) as subscriber:
                follow = subscriber.follow(timeout=serving.PATIENCE)
                for step in range(2, 6):
                    update = next(follow)
                    self.assertFalse(equal(held, trained))
                    self.assertEqual((update.version, update.labels["step"]), (step - 1, str(step - 1)))
                    update.commit()
                    self.assertTrue(equal(held, trained))
                    self.assertEqual((update.version, update.labels["step"]), (step - 1, str(step - 1)))
                    move(trained, step)
                    published = publisher.publish({"why": "test"}, step=step)
                    self.assertEqual(published.version, step)
                    self.assertEqual(published.digest, weft.digest(trained))
                    self.assertLess(sum(published.phases.values()), published.seconds + published.waited_seconds + 0.1)
                follow.close()
                info = subscriber.pull()
                self.assertEqual((info.version, info.digest, info.anchors), (5, published.digest, 1))
                self.assertEqual(subscriber.labels, {"why": "test", "step": "5"})
                self.assertIsNone(subscriber.poll())
                subscriber.verify()
                held["bits"][0] += 1
                with self.assertRaises(weft.DigestMismatch):
                    subscriber.verify()
                subscriber.pull()
                self.assertTrue(equal(held, trained))

    def test_steps(self):
        """prepare, commit and rollback by hand; an update that is not committed is dropped."""
        trained, held = model(1), zeros(model(1))
        with weft.Publisher(self.path("store"), trained) as publisher:
            publisher.publish()
            with weft.Subscriber(self.path("store"), held, empty=True) as subscriber:
                self.assertEqual(subscriber.wait(10), 1)
                self.assertFalse(subscriber.prepare())
                subscriber.commit()
                before = {name: tensor.copy() for name, tensor in held.items()}
                move(trained, 2)
                publisher.publish()
                self.assertEqual(subscriber.poll(), 2)
                for update in subscriber.follow(timeout=0.3):
                    self.assertEqual(update.version, 2)  # once, and not again
                self.assertTrue(equal(held, before))
                self.assertEqual(subscriber.version, 1)
                with next(subscriber.follow()) as update:
                    pass
                self.assertTrue(equal(held, before))
                with next(subscriber.follow()) as update:
                    update.commit()
                self.assertTrue(equal(held, trained))
                update.rollback()
                self.assertTrue(equal(held, before))
                stale = next(subscriber.follow())
                subscriber.pull()
                with self.assertRaises(weft.StaleError):
                    stale.commit()
                for beyond in (-1, 2**64 + 1):
                    with self.assertRaisesRegex(weft.InvalidArgument, "no version"):
                        subscriber.pull(beyond)

    def test_masters(self):
        """FP32 masters reach a follower in BF16."""
        masters = {"w": numpy.random.default_rng(1).standard_normal(5000).astype("float32")}
        with weft.Publisher(self.path("store"), masters, dtype="bfloat16") as publisher:
            publisher.publish()
            masters["w"][::10] *= 3
            self.assertEqual(publisher.publish().changed, 500)
        with weft.Subscriber(self.path("store"), self.path("replica.safetensors")) as subscriber:
            self.assertEqual(subscriber.pull().digest, weft.digest(masters, dtype="bfloat16"))
        self.assertEqual(weft.digest(self.path("replica.safetensors")), weft.digest(masters, dtype="bfloat16"))

    def test_replaced_tensors(self):
        """A tensor that was replaced, and not changed in place, is not passed over in silence."""
        trained = model(1)
        with weft.Publisher(self.path("store"), trained) as publisher:
            publisher.publish()
            trained["layer.weight"] = trained["layer.weight"] + 1
            with self.assertRaisesRegex(weft.StaleError, "layer.weight.*in place"):
                publisher.publish()
            self.assertEqual(publisher.version, 1)
        held = zeros(model(1))
        with weft.Subscriber(self.path("store"), held) as subscriber:
            del held["bits"]
            with self.assertRaisesRegex(weft.StaleError, "bits"):
                subscriber.pull()

    def test_other_shapes(self):
        """Memory that was resized, or is seen in another shape or dtype, is not read as what it was; nor are names left out."""
        def resize(tensors):
            tensors["w"].resize(10, refcheck=False)

        def reshape(tensors):
            tensors["w"].shape = (300, 1000)

        def retype(tensors):
            tensors["w"] = tensors["w"].view("int64")

        def transpose(tensors):
            tensors["w"] = tensors["w"].T

        def add(tensors):
            tensors["more"] = numpy.zeros(3)

        for number, change in enumerate((resize, reshape, retype, transpose, add)):
            trained = {"w": numpy.zeros((1000, 300))}
            with self.subTest(change.__name__), weft.Publisher(self.path(f"store{number}"), trained) as publisher:
                publisher.publish()
                change(trained)
                with self.assertRaises(weft.StaleError):
                    publisher.publish()
                self.assertEqual(publisher.version, 1)
        nothing = {}
        with weft.Publisher(self.path("empty"), nothing) as publisher:
            publisher.publish()
            nothing["w"] = numpy.zeros(3)
            with self.assertRaisesRegex(weft.StaleError, "w was not in the model"):
                publisher.publish()

    def test_lost_in_c(self):
        """What C would cut off or wrap around is refused: texts with a NUL, and numbers."""
        trained, place = {"w": numpy.zeros(3)}, self.path("store")
        for given in ({"keep_anchors": -1}, {"max_lag": -1}, {"leap_bytes": 2**64}, {"threads": 2**40}):
            with self.subTest(given), self.assertRaisesRegex(weft.InvalidArgument, f"{next(iter(given))} is .*out of range"):
                weft.Publisher(place, trained, **given)
        for name in ("a\0b", 1, "\udc80"):
            with self.subTest(name), self.assertRaises(weft.InvalidArgument):
                weft.Publisher(place, {name: trained["w"]})
        with weft.Publisher(place, trained) as publisher:
            for labels in ({"a": "b\0c"}, {"a\0b": "c"}):
                with self.assertRaisesRegex(weft.InvalidArgument, "NUL"):
                    publisher.publish(labels)
            publisher.publish()
            publisher.publish_changes({"w": ([1], numpy.array([1.5], ">f8"))})
        with weft.Subscriber(place, trained) as subscriber:
            subscriber.pull()
        self.assertEqual(trained["w"].tolist(), [0, 1.5, 0])
        with self.assertRaisesRegex(weft.InvalidArgument, "NUL"):
            weft.Store(self.path("a\0b"))
        with weft.Store(place) as store:
            with self.assertRaisesRegex(weft.InvalidArgument, "NUL"):
                store.put("a\0b", b"x")
            store.put("numbers", numpy.arange(3))
            self.assertEqual(store.get("numbers"), numpy.arange(3).tobytes())

    def test_mistyped_url(self):
        for url in ("http:/host/run", "https:host", "s3:/bucket/run", "file:/place"):
            with self.subTest(url), self.assertRaisesRegex(weft.InvalidArgument, f"{url} is no URL"):
                weft.Store(url)

    def test_not_copied(self):
        """A copy would give back the library's object twice."""
        trained = {"w": numpy.zeros(3)}
        with weft.Publisher(self.path("store"), trained) as publisher, weft.Store(self.path("store")) as store, \
                weft.Subscriber(self.path("store"), trained) as subscriber, weft.Key.generate() as key:
            for handle in (publisher, store, subscriber, key):
                for make in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                        make(handle)

    def test_phase_fails(self):
        """An exception of on_phase does not end a call that is past its point of no return, and is not lost."""
        trained = {"w": numpy.ones(3)}
        with weft.Publisher(self.path("store"), trained) as publisher:
            publisher.publish()
        held = {"w": numpy.zeros(3)}

        def phase(_):
            raise KeyError("of the phase")

        with weft.Subscriber(self.path("store"), held, on_phase=phase) as subscriber, \
                self.assertLogs("weft", logging.ERROR) as logged:
            self.assertEqual(subscriber.pull().version, 1)
        self.assertIn("of the phase", logged.output[0])

    def test_next_after_close(self):
        with weft.Subscriber(self.path("store"), {"w": numpy.zeros(3)}) as subscriber:
            pass
        with self.assertRaisesRegex(weft.InvalidArgument, "closed"):
            asyncio.run(subscriber.next())
        self.assertEqual([thread for thread in threading.enumerate() if thread.name.startswith("weft")], [])

    def test_fenced(self):
        trained = model(1)
        with weft.Publisher(self.path("store"), trained) as one, weft.Publisher(self.path("store"), trained) as other:
            other.publish()
            with self.assertRaises(weft.ConflictError):
                one.publish()
            self.assertEqual(other.run, one.run)
            self.assertGreater(other.epoch, one.epoch)

    def test_keys(self):
        key, stranger = weft.Key.generate(), weft.Key.generate()
        key.write(self.path("run.key"))
        stranger.write(self.path("stranger.key"), self.path("stranger.pub"))
        self.assertEqual(os.stat(self.path("run.key")).st_mode & 0o777, 0o600)
        with self.assertRaises(weft.Error):
            key.write(self.path("run.key"))
        trained = model(1)
        with weft.Publisher(self.path("store"), trained, key=self.path("run.key")) as publisher:
            publisher.publish()
        with weft.Subscriber(self.path("store"), zeros(trained), trust=self.path("run.key.pub")) as subscriber:
            self.assertEqual(subscriber.pull().version, 1)
        with self.assertRaises(weft.SignatureMismatch):
            with weft.Subscriber(self.path("store"), zeros(trained), trust=self.path("stranger.pub")) as subscriber:
                subscriber.pull()
        self.assertEqual(len(weft.log(self.path("store"), trust=key)), 1)
        with self.assertRaises(weft.SignatureMismatch):
            weft.log(self.path("store"), trust=stranger)

    def test_layout(self):
        """Two ranks hold halves and a fused tensor."""
        random = numpy.random.default_rng(3)
        trained = {name: random.standard_normal((8, 16)).astype("float32") for name in ("q", "k", "o")}
        layouts = [{"weft_layout": 1, "tensors": {
            "qk": {"concat": [{"tensor": name, "dim": 0, "start": 4 * rank, "length": 4} for name in ("q", "k")]},
            "o": {"slice": {"tensor": "o", "dim": 1, "start": 8 * rank, "length": 8}}}} for rank in range(2)]
        held = [{"qk": numpy.zeros((8, 16), "float32"), "o": numpy.zeros((8, 8), "float32")} for _ in range(2)]
        cuts = {"[qk]": (0, 2), "o": (1, 2)}

        def check():
            for rank in range(2):
                part = slice(4 * rank, 4 * rank + 4)
                fused = numpy.concatenate([trained["q"][part], trained["k"][part]])
                self.assertTrue((held[rank]["qk"] == fused).all())
                self.assertTrue((held[rank]["o"] == trained["o"][:, 8 * rank : 8 * rank + 8]).all())

        with open(self.path("layout.json"), "w") as file:
            json.dump(layouts[1], file)
        with weft.Publisher(self.path("store"), trained, cuts=cuts) as publisher:
            publisher.publish()
            with weft.Subscriber(self.path("store"), held[0], layout=layouts[0]) as one, \
                    weft.Subscriber(self.path("store"), held[1], layout=self.path("layout.json")) as other:
                for _ in range(3):
                    one.pull()
                    other.pull()
                    check()
                    trained["q"][random.random((8, 16)) < 0.2] += 1
                    trained["o"][random.random((8, 16)) < 0.2] += 1
                    publisher.publish()

    def test_layout_object(self):
        """As weft.layouts has it: some of an engine's tensors, in the shape that is held of a padded one."""

        class Held:
            def __init__(self, shape, dtype):
                self.shape, self.dtype = shape, dtype

        class Layout:
            def to_json(self):
                return json.dumps({"weft_layout": 1, "tensors": {"live": "w"}})

            def table(self):
                return {"live": Held((3, 5), "F32")}

        with weft.Publisher(self.path("store"), {"w": numpy.ones((3, 5), "float32")}) as publisher:
            publisher.publish()
        engine = {"live": numpy.zeros((8, 5), "float32"), "rotary": numpy.zeros(3)[::2]}
        with weft.Subscriber(self.path("store"), engine, layout=Layout()) as subscriber:
            subscriber.pull()
        self.assertEqual((engine["live"][:3].sum(), engine["live"][3:].sum()), (15, 0))
        for wrong in ({}, {"live": numpy.zeros(14, "float32")}, {"live": numpy.zeros((8, 5))}):
            with self.assertRaisesRegex(weft.InvalidArgument, "the layout"):
                weft.Subscriber(self.path("store"), wrong, layout=Layout())

    def test_announced_cuts(self):
        """A follower that holds halves of tensors says so, and a publisher that was told nothing cuts there."""
        model = {"a": numpy.arange(64 * 32, dtype="float32").reshape(64, 32), "b": numpy.ones((64, 32), "float32")}
        half = {"a": numpy.zeros((32, 32), "float32"), "b": numpy.zeros((64, 16), "float32")}
        layout = {"weft_layout": 1, "tensors": {
            "a": {"slice": {"tensor": "a", "dim": 0, "start": 32, "length": 32}},
            "b": {"slice": {"tensor": "b", "dim": 1, "start": 16, "length": 16}}}}
        wanted = [("a", 0, 2), ("b", 1, 2), ("*", 0, 7), ("c", 0, 2)]  # the last two fit nothing, and harm nobody
        with weft.Publisher(self.path("run"), model) as publisher, weft.Publisher(
                self.path("deaf"), model, announced_cuts=False) as deaf:
            for one in (publisher, deaf):
                one.publish(step=1)
            for one, heard in ((publisher, True), (deaf, False)):
                place = self.path("run" if heard else "deaf")
                with weft.Subscriber(place, half, layout=layout, name="half", report_seconds=1, cuts=wanted) as subscriber:
                    with self.assertRaisesRegex(weft.IntegrityError, "reaches beyond what this layout holds"):
                        subscriber.pull()
                    end = time.monotonic() + 60
                    while not any(found.cuts for found in weft.fleet(place).followers) and time.monotonic() < end:
                        time.sleep(0.02)
                    self.assertEqual([found.cuts for found in weft.fleet(place).followers], ["a:0:2 b:1:2 *:0:7 c:0:2"])
                    for step in range(2, 5):
                        model["a"][40, step] += 1
                        one.publish(step=step)
                        one.settle()
                        if heard:
                            self.assertEqual(subscriber.pull().version, step)
                            numpy.testing.assert_array_equal(half["a"], model["a"][32:])
                            numpy.testing.assert_array_equal(half["b"], model["b"][:, 16:])
                    if not heard:
                        with self.assertRaises(weft.IntegrityError):
                            subscriber.pull()

    def test_parts(self):
        """Two processes' worth of publishers, each with half of a tensor, make one version."""
        whole = {"w": numpy.arange(64, dtype="float32").reshape(8, 8)}
        halves = [{"w": whole["w"][4 * part : 4 * part + 4].copy()} for part in range(2)]
        layouts = [{"weft_layout": 1, "tensors": {
            "w": {"slice": {"tensor": "w", "dim": 0, "start": 4 * part, "length": 4}}}} for part in range(2)]
        results = [None, None]

        def work(part):
            with weft.Publisher(self.path("store"), halves[part], part=(part, 2), layout=layouts[part],
                                checkpoint=whole, cuts=[("w", 0, 2)]) as publisher:
                publisher.publish(step=1)
                halves[part]["w"] += 1
                results[part] = publisher.publish(step=2)

        threads = [threading.Thread(target=work, args=(part,)) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = zeros(whole)
        with weft.Subscriber(self.path("store"), held) as subscriber:
            self.assertEqual(subscriber.pull().version, 2)
        self.assertTrue((held["w"] == whole["w"] + 1).all())
        self.assertEqual([result.version for result in results], [2, 2])

    def test_group(self):
        """The ranks of a group go together."""
        trained = model(1)
        held = [zeros(trained) for _ in range(2)]
        reached = threading.Barrier(3)
        steps = []

        def work(rank):
            with weft.Member(self.path("group"), rank, held[rank], seconds=serving.PATIENCE) as member:
                self.assertEqual(member.version, 1)
                reached.wait()
                for update in member.follow():
                    steps.append((rank, update.commit().version, member.label("step")))
                    reached.wait()
                    if update.version == 3:
                        break

        with weft.Publisher(self.path("store"), trained) as publisher:
            publisher.publish(step=10)
            with weft.Group(self.path("store"), self.path("group"), members=2).start() as group:
                threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
                for thread in threads:
                    thread.start()
                reached.wait()
                for step in (20, 30):
                    move(trained, step)
                    publisher.publish(step=step)
                    reached.wait()
                    self.assertTrue(all(equal(one, trained) for one in held))
                for thread in threads:
                    thread.join()
                end = time.monotonic() + serving.PATIENCE
                while group.info.committed < 2 and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertEqual((group.info.version, group.info.committed), (3, 2))
        self.assertEqual(sorted(steps), [(0, 2, "20"), (0, 3, "30"), (1, 2, "20"), (1, 3, "30")])

    def test_history(self):
        trained = model(1)
        with weft.Publisher(self.path("store"), trained, keep_anchors=1, anchors_in_background=False) as publisher:
            for step in range(5):
                publisher.publish(step=step)
                move(trained, step + 2)
                publisher.anchor()
            publisher.settle()
            entries = weft.log(self.path("store"))
            self.assertEqual([entry.version for entry in entries], [5, 4, 3, 2, 1])
            self.assertEqual(entries[0].labels, {"step": "4"})
            would = weft.gc(self.path("store"), grace_seconds=0, dry_run=True)
            did = weft.gc(self.path("store"), grace_seconds=0)
            self.assertGreater(did.objects, 0)
            self.assertEqual((would.objects, len(did.removed)), (did.objects, did.objects))
        with weft.Subscriber(self.path("store"), zeros(trained), name="worker-1", report_seconds=0.05) as subscriber:
            subscriber.pull()
            end = time.monotonic() + serving.PATIENCE
            while weft.fleet(self.path("store")).slowest != 5:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.02)
            one, = weft.fleet(self.path("store")).followers
            self.assertEqual((one.name, one.version, one.lag, one.live), ("worker-1", 5, 0, True))
        found = weft.repair(self.path("store"), deep=True)
        self.assertEqual((found.left, found.version, list(found.findings)), (0, 5, []))

    def test_repair(self):
        with weft.Publisher(self.path("store"), model(1)) as publisher:
            publisher.publish()
            publisher.publish()
        with weft.Store(self.path("store")) as store:
            store.put(store.list("heads")[-1].key, b"something else")
            found = weft.repair(store)
            self.assertEqual((found.left, found.mendable, found.findings[0].kind), (1, 1, "head"))
            self.assertTrue(weft.repair(store, apply=True).findings[0].mended)
            self.assertEqual((weft.repair(store).left, weft.log(store)[0].version), (0, 2))

    def test_store(self):
        with weft.Store(self.path("store")) as store:
            tag = store.put("a/b", b"one", if_absent=True)
            with self.assertRaises(weft.ConflictError):
                store.put("a/b", b"two", if_absent=True)
            self.assertEqual(store.tag("a/b"), tag)
            store.put("a/b", b"three", if_tag=tag)
            with self.assertRaises(weft.ConflictError):
                store.put("a/b", b"four", if_tag=tag)
            self.assertEqual((store.get("a/b"), store.get("a/b", 1, 2), store.head("a/b")), (b"three", b"hr", 5))
            self.assertEqual([(found.key, found.bytes) for found in store.list("a")], [("a/b", 5)])
            self.assertLess(store.age("a/b"), serving.PATIENCE)
            self.assertEqual(store.directory, self.path("store"))
            self.assertGreater(store.traffic.sent, 5)
            store.remove("a/b")
            with self.assertRaises(weft.NotFoundError):
                store.get("a/b")
            with self.assertRaises(weft.InvalidArgument):
                store.put("../x", b"")
        with self.assertRaisesRegex(weft.InvalidArgument, "closed"):
            store.get("a/b")

    def test_served(self):
        """Behind `weft serve`, with a token."""
        token = "write-1"
        with open(self.path("token"), "w") as file:
            file.write(token + "\n")
        with serving.Server("--write-token-file", self.path("token")) as server:
            trained, held = model(1), zeros(model(1))
            with self.assertRaises(weft.DeniedError):
                weft.Publisher(server.url, trained, token="wrong")
            with weft.Publisher(server.url, trained, token=token) as publisher, \
                    weft.Store(server.url, token=token) as store, weft.Subscriber(store, held) as subscriber:
                publisher.publish(step=1)
                for step in range(2, 5):
                    subscriber.pull()
                    self.assertTrue(equal(held, trained))
                    move(trained, step)
                    timer = threading.Timer(0.2, publisher.publish, kwargs={"step": step})
                    timer.start()
                    self.assertEqual(subscriber.wait(serving.PATIENCE), step)
                    timer.join()
                    self.assertIsNone(store.watch(step, 0.1))
        with self.assertRaises(weft.RemoteError):
            weft.Store(server.url, attempts=1).get("head")

    def test_asyncio(self):
        trained, held = model(1), zeros(model(1))

        async def work():
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.01)

            ticking = asyncio.ensure_future(tick())
            with weft.Publisher(self.path("store"), trained) as publisher, \
                    weft.Subscriber(self.path("store"), held) as subscriber:
                publisher.publish(step=1)
                (await subscriber.next()).commit()
                self.assertTrue(equal(held, trained))
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(subscriber.next(), 0.3)
                self.assertGreater(ticks, 5)
                self.assertIsNone(subscriber.poll())  # what was cancelled has ended
                for step in (2, 3):
                    move(trained, step)
                    publisher.publish(step=step)
                async for update in subscriber:
                    if update.commit().version == 3:
                        break
                self.assertTrue(equal(held, trained))
            ticking.cancel()

        asyncio.run(work())

    def test_busy(self):
        """A call while another is under way is refused; close ends the one that waits."""
        trained = model(1)
        with weft.Publisher(self.path("store"), trained) as publisher:
            publisher.publish()
        subscriber = weft.Subscriber(self.path("store"), zeros(trained))
        subscriber.pull()
        failures = []

        def wait():
            try:
                subscriber.wait()
            except weft.Error as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        with self.assertRaises(weft.BusyError):
            subscriber.pull()
        self.assertEqual(subscriber.version, 1)
        start = time.monotonic()
        subscriber.close()
        thread.join()
        self.assertLess(time.monotonic() - start, 60)
        self.assertIsInstance(failures[0], weft.Cancelled)

    def test_phases_and_log(self):
        trained, phases = model(1), []
        with self.assertLogs("weft", logging.INFO) as logged:
            with weft.Publisher(self.path("store"), trained) as publisher:
                publisher.publish()
            with weft.Subscriber(self.path("store"), zeros(trained), on_phase=phases.append) as subscriber:
                next(subscriber.follow()).commit()
        self.assertIn("commit", [phase.name for phase in phases])
        self.assertRegex(logged.output[0], "version 1: ")

    def test_released(self):
        """What is dropped is closed, and gives back the tensors."""
        trained = model(1)
        seen = weakref.ref(trained["bits"])
        publisher = weft.Publisher(self.path("store"), trained)
        del trained
        gc.collect()
        self.assertIsNotNone(seen())
        publisher.publish()
        del publisher
        gc.collect()
        self.assertIsNone(seen())
        with self.assertRaises(weft.InvalidArgument):
            weft.Publisher(self.path("store"), model(1), part=(2, 2))
        with self.assertRaises(weft.Error):
            weft.Publisher("ftp://nowhere", model(1))

    def test_borrowed(self):
        """A store or key that is closed while it is in use stays until its users are closed."""
        key = weft.Key.generate()
        with weft.Store(self.path("store")) as store:
            publisher = weft.Publisher(store, model(1), key=key)
            subscriber = weft.Subscriber(store, zeros(model(1)), trust=key)
        key.close()
        with self.assertRaisesRegex(weft.InvalidArgument, "closed"):
            store.list()
        with self.assertRaisesRegex(weft.InvalidArgument, "closed"):
            key.text
        publisher.publish()
        publisher.close()
        self.assertEqual(subscriber.pull().version, 1)
        self.assertTrue(store._handle)
        subscriber.close()
        self.assertFalse(store._handle or key._handle)

    def test_left_open(self):
        """A program that closes nothing ends as it should."""
        program = ("import sys, numpy, weft; publisher = weft.Publisher(sys.argv[1], {'w': numpy.zeros(100)}); "
                   "publisher.publish(); subscriber = weft.Subscriber(sys.argv[1], {'w': numpy.zeros(100)}); "
                   "print(subscriber.pull().version); follow = subscriber.follow(timeout=0)")
        done = subprocess.run([sys.executable, "-B", "-c", program, self.path("store")], capture_output=True, text=True,
                              env=dict(os.environ, PYTHONPATH=package.PYTHON))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "1\n", ""))

    def test_certificates(self):
        """A server is believed by the certificates of SSL_CERT_FILE."""
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                               "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.path("key"),
                               "-out", self.path("cert")], capture_output=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        with serving.Server("--tls-cert", self.path("cert"), "--tls-key", self.path("key")) as server:
            with weft.Store(server.url, attempts=1) as store, self.assertRaises(weft.RemoteError):
                store.put("a", b"1")
            os.environ["SSL_CERT_FILE"] = self.path("cert")
            self.addCleanup(os.environ.pop, "SSL_CERT_FILE")
            with weft.Store(server.url) as store:
                store.put("a", b"1")
                self.assertEqual(store.get("a"), b"1")


class Interrupt(package.Case):
    PROGRAM = """
import sys, numpy, weft, time
weights = {"w": numpy.zeros(100)}
with weft.Publisher(sys.argv[1], weights) as publisher:
    publisher.publish()
with weft.Subscriber(sys.argv[1], weights) as subscriber:
    subscriber.pull()
    print("waiting", flush=True)
    try:
        if sys.argv[2] == "wait":
            subscriber.wait()
        else:
            big = {"w": numpy.zeros(1 << 28, "uint8")}
            while True:
                weft.digest(big, threads=1)
    except KeyboardInterrupt:
        start = time.monotonic()
        print("interrupted", subscriber.poll(), flush=True)
"""

    def test_interrupt(self):
        for what in ("wait", "digest"):
            process = subprocess.Popen([sys.executable, "-B", "-c", self.PROGRAM, self.path(what), what],
                                       stdout=subprocess.PIPE, text=True,
                                       env=dict(os.environ, PYTHONPATH=package.PYTHON))
            self.assertEqual(process.stdout.readline(), "waiting\n")
            time.sleep(0.7)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stdout.readline(), "interrupted None\n")
            self.assertLess(time.monotonic() - start, 60)
            self.assertEqual(process.wait(), 0)
            process.stdout.close()


class Starting(unittest.TestCase):
    """A signal that comes while the thread of a call starts."""

    def started(self, started_first):
        start, stop, ended = threading.Thread.start, threading.Event(), []

        def interrupted(thread):
            if started_first:
                start(thread)
                time.sleep(0.2)
            raise KeyboardInterrupt

        def call():
            stop.wait()
            time.sleep(0.2)
            ended.append(True)

        with mock.patch.object(threading.Thread, "start", interrupted), self.assertRaises(KeyboardInterrupt):
            context.interruptible(call, stop.set)
        return ended

    def test_begun(self):
        """The call has ended when it is raised: what the call uses can be closed."""
        self.assertEqual(self.started(True), [True])

    def test_not_begun(self):
        self.assertEqual(self.started(False), [])


class Import(unittest.TestCase):
    def test_import(self):
        """It imports neither torch nor numpy, which take seconds; the names are all there."""
        code = ("import sys, weft; assert not {'torch', 'numpy'} & set(sys.modules); "
                "weft.Publisher; assert 'torch' not in sys.modules; [getattr(weft, name) for name in weft.__all__]")
        subprocess.run([sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=package.PYTHON), check=True)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
