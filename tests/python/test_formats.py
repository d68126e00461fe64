#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The format of a run: a run of format 1 has nothing in it that format 1 does not have, whatever is published into it,
until somebody says --format 2. What lies there is read by weft_store.py and weft_format.py, object by object."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy

import random_checkpoints as checkpoints
import serving
import weft_format
import weft_store

KINDS = {
    "bf16": ("BF16", (66, 70)), "f16": ("F16", (4200,)), "f32": ("F32", (60, 70)), "f64": ("F64", (4100,)),
    "e4m3": ("F8_E4M3", (4104,)), "e5m2": ("F8_E5M2", (4104,)), "i64": ("I64", (300,)), "bool": ("BOOL", (77,)),
}
SMALL = 2
DENSITIES = (0.001, 0.02, 0.3, 0.6, 1.0)


class FormatsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="weft-formats-")
        self.addCleanup(scratch.cleanup)
        self.place = pathlib.Path(scratch.name)
        self.store = self.place / "store"
        self.random = numpy.random.default_rng(7)
        self.state = checkpoints.random_state(self.random, KINDS)
        self.version = 0

    def weft(self, *arguments, code=0):
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.place / "cache"))
        ran = subprocess.run([serving.WEFT, *map(str, arguments)], capture_output=True, text=True, env=environment,
                             timeout=serving.PATIENCE)
        self.assertEqual(ran.returncode, code, f"{ran.args}: {ran.stdout}{ran.stderr}")
        return ran

    def publish(self, *options):
        path = self.place / "next.safetensors"
        checkpoints.write_single(self.state, path)
        said = json.loads(self.weft("publish", self.store, path, "--json", *options).stdout)
        self.version += 1
        self.assertEqual(said["version"], self.version)
        return said

    def change(self, density):
        self.state = {name: checkpoints.changed_tensor(self.random, tensor, density) if name != b"bool" else tensor
                      for name, tensor in self.state.items()}

    def formats(self):
        """Of each object that is there, with patches read as far as frames."""
        found = {}
        for path in self.store.rglob("*"):
            room = path.relative_to(self.store).parts[0]
            if not path.is_file() or room not in ("heads", "pages", "leaps", "patches", "anchors"):
                continue
            data = path.read_bytes()
            if room in ("patches", "anchors"):
                found[path] = self.patch_format(weft_format.parse_patch(data))
            else:
                plain = data.startswith(b"{") and b'"packed"' not in data
                found[path] = json.loads(data.splitlines()[0])["weft"] if plain else 2
        return found

    def patch_format(self, patch):
        """What is told, which must be no less than what is there."""
        roster = patch.header.roster
        for frame in patch.frames:
            dtype = roster[frame.spans[0].tensor].dtype
            newer = frame.coding > 4
            if frame.coding == SMALL:
                newer = frame.payload[0] >= 128 or (frame.payload[0] > 1 and dtype.width != 2)
            self.assertTrue(patch.header.version > 1 or not newer, (patch.header.version, frame.coding))
        return patch.header.version

    def assert_followed(self):
        out = self.place / "out.safetensors"
        self.weft("pull", self.store, out, "-q")
        self.assertEqual(out.read_bytes(), (self.place / "next.safetensors").read_bytes())

    def assert_read(self):
        """By the other reader, from the newest anchor on."""
        history = weft_store.History(weft_store.Directory(self.store))
        state = history.checkpoint(self.version).tensors()
        self.assertEqual({name: tensor.data.tobytes() for name, tensor in state.items()},
                         {name: tensor.data.tobytes() for name, tensor in self.state.items()})

    def test_first_format(self):
        codings = set()
        self.assertEqual(self.publish("--format", 1)["format"], 1)
        for profile in ("small", "fast", "smallest"):
            for density in DENSITIES:
                self.change(density)
                self.assertEqual(self.publish("--profile", profile)["format"], 1)
                self.assert_followed()
        self.state[b"more"] = checkpoints.random_tensor(self.random, "BF16", (70, 80))
        self.publish()
        self.assert_followed()
        self.assert_read()
        self.publish("--anchor", "now")
        self.assert_followed()
        for path in (self.store / "patches").iterdir():
            codings |= {frame.coding for frame in weft_format.parse_patch(path.read_bytes()).frames}
        self.assertEqual(codings, {1, 2, 3, 4})
        found = self.formats()
        self.assertEqual(set(found.values()), {1}, found)
        self.assertTrue({"heads", "pages", "leaps", "patches", "anchors"} <= {path.parts[-2] for path in found})

    def test_taken_on(self):
        """From one format to the next, in the middle of a page; the history stays whole, and nothing goes back."""
        self.publish("--format", 1)
        for _ in range(10):
            self.change(0.01)
            self.publish()
        self.assert_followed()
        before = {path.read_bytes() for path in self.store.rglob("*") if path.is_file()}
        self.change(0.5)
        self.assertEqual(self.publish("--format", 2)["format"], 2)
        for _ in range(10):
            self.change(0.01)
            self.assertEqual(self.publish()["format"], 2)
            self.assert_followed()
        told = json.loads(self.weft("log", self.store, "--json").stdout)
        self.assertTrue(told["whole"])
        self.assertEqual(len(told["versions"]), self.version)
        newer = {path: number for path, number in self.formats().items() if path.read_bytes() not in before}
        self.assertEqual(set(newer.values()), {2}, newer)
        refused = self.weft("publish", self.store, self.place / "next.safetensors", "--format", 1, code=2)
        self.assertIn("does not go back", refused.stderr)
        self.assert_read()

    def test_repaired(self):
        """What is mended in a run of format 1 is of format 1."""
        self.publish("--format", 1)
        for _ in range(12):
            self.change(0.01)
            self.publish("--no-leaps")
        newest = max((self.store / "pages").iterdir(), key=lambda path: path.name.split("-")[1])
        newest.write_bytes(b"damaged")
        heads = sorted((self.store / "heads").iterdir())
        heads[-1].write_bytes(b"damaged, too")
        self.weft("repair", self.store, "--apply")
        self.version -= 1  # nothing is left that names the newest one
        newest.unlink(missing_ok=True)
        self.assertEqual(set(self.formats().values()), {1}, self.formats())
        self.assertEqual(self.publish()["format"], 1)
        self.assert_followed()

    def test_new_run(self):
        self.assertEqual(self.publish()["format"], 2)
        self.assertEqual(self.publish("--format", 2)["format"], 2)
        self.weft("publish", self.store, self.place / "next.safetensors", "--format", 3, code=2)

    def test_parts(self):
        """Several processes that publish together write the run's format, though only the first is told."""
        path = self.place / "next.safetensors"
        for version in range(1, 5):
            checkpoints.write_single(self.state, path)
            options = {1: ["--format", "1"], 4: ["--format", "2"]}.get(version, [])
            parts = [subprocess.Popen([serving.WEFT, "publish", self.store, path, "--part", f"{index}/3", "-q",
                                       "--label", f"step={version}",
                                       *(options if index == 0 else [])]) for index in range(3)]
            self.assertEqual([part.wait(serving.PATIENCE) for part in parts], [0, 0, 0])
            self.version = version
            self.assert_followed()
            self.change(0.3)
            history = weft_store.History(weft_store.Directory(self.store))
            record = history.records[version]
            if "patch" in record:
                patch = history.load(record["patch"], record["base"], record["digest"])
                self.assertEqual(self.patch_format(patch), 1 if version < 4 else 2)
            self.assertEqual(history.head["weft"], 1 if version < 4 else 2)


if __name__ == "__main__":
    unittest.main()
