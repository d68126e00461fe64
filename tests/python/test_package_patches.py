#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.diff, apply, merge, inspect, digest, verify, stats and save on paths, bytes and tensors, against the command."""

import io
import json
import os
import pickle
import subprocess
import unittest

import numpy
import package
import serving
import weft
from package import changed, equal, model


def command(*arguments):
    return subprocess.run([serving.WEFT, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


class Patches(package.Case):
    def setUp(self):
        super().setUp()
        self.old = model(1)
        self.new = changed(self.old, 2)

    def files(self):
        weft.save(self.old, self.path("old"), metadata={"format": "pt"})
        weft.save(self.new, self.path("new"))
        return self.path("old"), self.path("new")

    def test_live(self):
        before = weft.digest(self.old)
        patch = weft.diff(self.old, self.new, labels={"step": 1, "why": "ä"})
        self.assertEqual((patch.base, patch.result), (before, weft.digest(self.new)))
        self.assertEqual(len(patch.data), patch.patch_bytes)
        applied = weft.apply(self.old, patch)
        self.assertTrue(equal(self.old, self.new))
        self.assertEqual((applied.digest, applied.changed), (patch.result, patch.changed))
        self.assertEqual(weft.inspect(patch).labels, {"step": "1", "why": "ä"})
        with self.assertRaises(weft.BaseMismatch) as caught:
            weft.apply(self.old, patch)
        self.assertEqual(caught.exception.status, -301)
        self.assertTrue(equal(self.old, self.new))
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copy), str(copy), copy.status), (weft.BaseMismatch, str(caught.exception), -301))

    def test_transaction(self):
        untouched = {name: tensor.copy() for name, tensor in self.old.items()}
        patch = weft.diff(self.old, self.new).data
        with weft.Transaction(self.old, patch):
            self.assertTrue(equal(self.old, untouched))
        self.assertTrue(equal(self.old, untouched))
        with self.assertRaises(ZeroDivisionError), weft.Transaction(self.old, patch) as change:
            change.commit()
            self.assertTrue(equal(self.old, self.new))
            1 / 0
        self.assertTrue(equal(self.old, untouched))
        with weft.Transaction(self.old, patch) as change:
            change.commit()
            self.assertEqual(change.digest, weft.digest(self.new))
            self.assertGreaterEqual(change.pause_seconds, 0)
            change.rollback()
            self.assertTrue(equal(self.old, untouched))
            change.prepare()
            change.commit()
        self.assertTrue(equal(self.old, self.new))
        with self.assertRaisesRegex(weft.InvalidArgument, "closed"):
            change.commit()

    def test_small_stage(self):
        """More than may be staged comes in portions."""
        big = {f"t{i}": numpy.zeros(1 << 20, "uint8") for i in range(40)}
        new = {name: numpy.ones(1 << 20, "uint8") for name in big}
        with weft.Transaction(big, weft.diff(big, new), stage_bytes=16 << 20) as change:
            self.assertTrue(change._more)
            change.commit()
        self.assertTrue(equal(big, new))

    def test_files(self):
        old, new = self.files()
        patch = weft.diff(old, new, self.path("p"), profile="fast", inverse=True)
        self.assertIsNone(patch.data)
        self.assertEqual(os.path.getsize(self.path("p")), patch.patch_bytes)
        self.assertEqual(json.loads(command("verify", old, self.path("p"), "--json"))["state"], "base")
        weft.apply(old, self.path("p"), self.path("made"))
        with open(new, "rb") as one, open(self.path("made"), "rb") as other:
            self.assertEqual(one.read(), other.read())
        weft.apply(old, patch, durable=True)
        self.assertEqual(weft.verify(old, patch).state, "result")
        weft.apply(old, patch.inverse)
        self.assertEqual(weft.verify(old, patch, digest=patch.base).state, "base")
        self.assertEqual(json.loads(command("digest", old, "--json"))["digest"], weft.digest(self.old))

    def test_sinks(self):
        """Into memory, a path and a file come the same bytes; what a file raises is raised, and a path is left alone."""
        patch = weft.diff(self.old, self.new)
        file = io.BytesIO()
        weft.diff(self.old, self.new, file)
        self.assertEqual(file.getvalue(), patch.data)
        with open(self.path("p"), "wb") as opened:
            opened.write(b"there")

        class Full(io.BytesIO):
            def write(self, data):
                raise OSError(28, "no room")

        with self.assertRaisesRegex(OSError, "no room"):
            weft.diff(self.old, self.new, Full())
        with self.assertRaises(weft.BaseMismatch):
            weft.merge([patch, patch], self.path("p"), base=self.old)
        with open(self.path("p"), "rb") as opened:
            self.assertEqual(opened.read(), b"there")
        self.assertEqual(sorted(os.listdir(self.place)), ["p"])

    def test_merge(self):
        last = changed(self.new, 3)
        steps = [weft.diff(self.old, self.new), weft.diff(self.new, last)]
        whole = weft.merge(steps, base=self.old, labels={"steps": "1-2"})
        self.assertEqual((whole.base, whole.result), (steps[0].base, steps[1].result))
        weft.apply(self.old, whole.data)
        self.assertTrue(equal(self.old, last))

    def test_damage(self):
        patch = bytearray(weft.diff(self.old, self.new).data)
        untouched = {name: tensor.copy() for name, tensor in self.old.items()}
        for place in range(0, len(patch), max(1, len(patch) // 50)):
            patch[place] ^= 0x10
            with self.assertRaises(weft.IntegrityError):
                weft.apply(self.old, bytes(patch))
            patch[place] ^= 0x10
        for size in (0, 10, len(patch) - 1):
            with self.assertRaises(weft.IntegrityError):
                weft.inspect(patch[:size])
        self.assertTrue(equal(self.old, untouched))

    def test_inspect(self):
        del self.new["bits"]
        self.new["steps"] = numpy.zeros(3, "int64")
        self.new["more"] = numpy.ones(5, "complex64")
        info = weft.inspect(weft.diff(self.old, self.new), buckets=True)
        fates = {tensor.name: tensor.fate for tensor in info.tensors}
        self.assertEqual((fates["bits"], fates["steps"], fates["more"]), ("removed", "replaced", "added"))
        self.assertEqual((info.added, info.removed, info.replaced), (1, 1, 1))
        self.assertEqual(len(info.buckets), info.bucket_count)
        self.assertEqual(sum(bucket.changed for bucket in info.buckets), info.changed)
        weights = next(tensor for tensor in info.tensors if tensor.name == "layer.weight")
        self.assertEqual((weights.dtype, weights.shape), ("F32", (200, 100)))

    def test_verify(self):
        patch = weft.diff(self.old, self.new)
        with self.assertRaises(weft.DigestMismatch):
            weft.verify(self.old, digest=patch.result)
        self.old["steps"][()] = 99
        with self.assertRaisesRegex(weft.BaseMismatch, weft.digest(self.old)):
            weft.verify(self.old, patch)

    def test_masters(self):
        """FP32 in memory as BF16: the same state as the cast tensors."""
        random = numpy.random.default_rng(5)
        masters = {"w": random.standard_normal(5000).astype("float32"), "n": numpy.arange(3)}
        cast = {"w": bf16(masters["w"]), "n": masters["n"]}
        weft.save(masters, self.path("masters"), dtype="bfloat16")
        self.assertEqual(weft.digest(masters, dtype="bfloat16"), weft.digest(self.path("masters")))
        with open(self.path("masters"), "rb") as file:
            self.assertIn(cast["w"].tobytes(), file.read())
        moved = {"w": masters["w"].copy(), "n": masters["n"]}
        moved["w"][::50] *= 1.5
        patch = weft.diff(masters, moved, dtype="BF16")
        self.assertEqual((patch.changed, patch.dense_bytes), (100, 10024))
        found = weft.stats(masters, moved, dtype="bfloat16")
        self.assertEqual((found.changed, sum(c for _, c in found.exponents.values())), (100, 100))

    def test_stats(self):
        """As the command counts."""
        random = numpy.random.default_rng(6)
        masters = {"w": random.standard_normal(5000).astype("float32"), "gone": numpy.zeros(3), **self.old}
        moved = {"w": masters["w"] * (1 + 0.01 * (random.random(5000) < 0.1)).astype("float32"), **self.new}
        weft.save(masters, self.path("old"), dtype="bfloat16")
        weft.save(moved, self.path("new"), dtype="bfloat16")
        found = weft.stats(self.path("old"), self.path("new"))
        told = json.loads(command("stats", self.path("old"), self.path("new"), "--json", "--all-tensors"))
        self.assertEqual((found.total, found.changed), (told["total"], told["changed"]))
        rows = {row["name"]: (row["fate"], row["changed"]) for row in told["tensors"]}
        self.assertEqual({row.name: (row.fate, row.changed) for row in found.tensors}, rows)
        exponents = {row["exponent"]: (row["total"], row["changed"]) for row in told["exponents"]}
        self.assertEqual(found.exponents, exponents)
        self.assertEqual(found.profiles["small"], told["profiles"]["small"]["patch_bytes"])

    def test_progress(self):
        seen = []
        big = {"w": numpy.zeros(1 << 24, "uint8")}
        weft.digest(big, progress=lambda *told: seen.append(told))
        self.assertEqual(seen[-1][1:], (1 << 24, 1 << 24))
        with self.assertRaises(weft.Cancelled):
            weft.digest(big, progress=lambda *told: False)
        with self.assertRaises(KeyError):
            weft.digest(big, progress=lambda *told: {}["none"])
        weft.digest(big, progress=True)


def bf16(values):
    """To nearest even, as weft/base.h says; no NaNs here."""
    bits = values.view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


class Tensors(package.Case):
    def refused(self, value, pattern, kind=weft.UnsupportedError):
        with self.assertRaisesRegex(kind, pattern):
            weft.digest({"w": value})

    def test_numpy(self):
        self.refused(numpy.zeros((4, 4))[::-1], "backwards in memory; give numpy.ascontiguousarray")
        self.refused(numpy.zeros(4, ">f4"), "big-endian")
        self.refused(numpy.zeros(4, "complex128"), "no dtype for complex128; give its bits")
        self.refused(numpy.zeros(4, object), "no dtype for object")
        self.refused([1, 2], "a list; give a numpy array", weft.InvalidArgument)
        self.refused(numpy.float32(1), "a scalar", weft.InvalidArgument)
        with self.assertRaisesRegex(weft.InvalidArgument, "a model is a path"):
            weft.digest(7)
        with self.assertRaisesRegex(weft.FileError, "No such file"):
            weft.digest(self.path("none"))

    def test_read_only(self):
        frozen = numpy.zeros(4)
        frozen.flags.writeable = False
        with self.assertRaises(weft.Error):
            weft.apply({"w": frozen}, weft.diff({"w": numpy.zeros(4)}, {"w": numpy.ones(4)}))
        self.assertEqual(frozen.sum(), 0)

    def test_ties(self):
        """Memory under two names is written once; other overlaps are refused."""
        memory, new = numpy.zeros(1000), numpy.arange(1000.0)
        tied = {"embed": memory, "head": memory}
        patch = weft.diff(tied, {"embed": new, "head": new})
        self.assertEqual(patch.changed, 2 * 999)
        weft.apply(tied, patch)
        self.assertTrue((memory == new).all())
        with self.assertRaises(weft.InvalidArgument):
            weft.digest({"a": memory[:600], "b": memory[400:]})

    def test_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("there is no ml_dtypes")
        values = numpy.arange(8.0)
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
            dtype = numpy.dtype(getattr(ml_dtypes, name))
            old, new = {"w": numpy.zeros(8, dtype)}, {"w": values.astype(dtype)}
            weft.apply(old, weft.diff(old, new))
            self.assertEqual(old["w"].tobytes(), new["w"].tobytes())
        masters = {"w": values.astype("float32")}
        self.assertEqual(weft.digest(masters, dtype=ml_dtypes.bfloat16), weft.digest({"w": values.astype("bfloat16")}))


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
