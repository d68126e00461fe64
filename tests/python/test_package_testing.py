#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.testing: a store whose operations are functions of Python, with faults; and the examples of all docstrings."""

import doctest
import importlib
import importlib.util
import os
import pkgutil
import threading
import time
import unittest

import numpy
import package
import serving
import weft
import weft.testing
from package import changed, equal, model


class Faults(unittest.TestCase):
    def test_run(self):
        """A whole run over Python functions. The first put of a version, and the first get, are told to fail; nothing else is
        put in the background."""
        with weft.testing.FaultyStore() as store:
            trained = model(1)
            held = {name: numpy.zeros_like(tensor) for name, tensor in trained.items()}
            with weft.Publisher(store, trained, leaps=False, anchor_ratio=-1) as publisher, \
                    weft.Subscriber(store, held) as subscriber:
                for seed in range(2, 6):
                    published = publisher.publish()
                    subscriber.pull()
                    self.assertTrue(equal(held, trained))
                    for name, tensor in changed(trained, seed).items():
                        trained[name][...] = tensor
                    store.fail("put", times=1)
                    with self.assertRaises(weft.RemoteError):
                        publisher.publish()
                    store.fail("get", times=1)
                    with self.assertRaises(weft.RemoteError):
                        subscriber.pull()
                    store.heal()
                self.assertEqual(publisher.version, published.version)
            self.assertEqual(weft.log(store)[0].digest, published.digest)
            self.assertGreater(store.operations["put"], 8)

    def test_corrupt(self):
        with weft.testing.FaultyStore() as store:
            with weft.Publisher(store, model(1)) as publisher:
                publisher.publish()
            held = model(2)
            untouched = {name: tensor.copy() for name, tensor in held.items()}
            with weft.Subscriber(store, held) as subscriber:
                store.corrupt("anchors/")
                with self.assertRaises(weft.IntegrityError):
                    subscriber.pull()
                self.assertTrue(equal(held, untouched))
                store.heal()
                subscriber.pull()
                self.assertTrue(equal(held, model(1)))

    def test_delay(self):
        with weft.testing.FaultyStore() as store:
            store.put("a", b"1")
            store.delay(0.2, "get", "a")
            start = time.monotonic()
            threads = [threading.Thread(target=store.get, args=("a",)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertGreater(time.monotonic() - start, 0.2)
            self.assertEqual(store.operations["get"], 4)

    def test_broken(self):
        """What is no weft.Error is a callback that failed."""
        def fault(name, key):
            raise ZeroDivisionError

        with weft.testing.FaultyStore(fault) as store, self.assertRaises(weft.CallbackError):
            store.head("a")

    def test_conditions(self):
        with weft.testing.FaultyStore() as store:
            tag = store.put("a/b", b"1", if_absent=True)
            for wrong in ({"if_absent": True}, {"if_tag": "other"}):
                with self.assertRaises(weft.ConflictError):
                    store.put("a/b", b"2", **wrong)
            store.put("a/b", b"2", if_tag=tag)
            self.assertEqual((store.get("a/b"), store.list("a")[0].bytes, store.list("b")), (b"2", 1, []))
            store.remove("a/b")
            with self.assertRaises(weft.NotFoundError):
                store.age("a/b")

    def test_temporary(self):
        with weft.testing.TemporaryStore() as store:
            place = store.directory
            store.put("a", b"1")
            self.assertTrue(os.path.exists(os.path.join(place, "a")))
        self.assertFalse(os.path.exists(place))


def load_tests(loader, tests, pattern):
    """The examples of the docstrings, as far as there is a torch for them. The modules that begin with a framework of their
    name are tested with it, in tests/engines."""
    torch = package.torch
    wanting = {
        "weft.device": torch is None,
        "weft.optim": not hasattr(torch and torch.optim.Optimizer, "register_step_post_hook"),
        "weft.trl": importlib.util.find_spec("trl") is None,
        "weft.verl": importlib.util.find_spec("verl") is None,
    }
    for module in pkgutil.iter_modules(weft.__path__, "weft."):
        if wanting.get(module.name):
            continue
        tests.addTests(doctest.DocTestSuite(importlib.import_module(module.name)))
    return tests


if __name__ == "__main__":
    assert package.weft is weft
    serving.end(unittest.main(exit=False).result)
