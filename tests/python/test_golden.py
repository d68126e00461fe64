#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Golden patches and fresh random ones, decoded by the command and by weft_format.py.

The golden files of tests/golden pin decoding for ever: each patch makes its result byte for byte, and each
damaged patch is refused, by both decoders. Random checkpoints then show that what the command writes today
is what doc/FORMAT.md says. They are new in every run; WEFT_SEED repeats a run whose seed was printed.
"""

import os
import pathlib
import subprocess
import tempfile
import time
import tomllib
import unittest

import numpy

import random_checkpoints as checkpoints
from weft_format import DTYPES, KEPT, REMOVED
from weft_format import FormatError, apply_patch, parse_patch, read_checkpoint, state_digest

COMMAND = os.environ.get("WEFT", "weft")
SOURCE = pathlib.Path(os.environ.get("WEFT_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
GOLDEN = SOURCE / "tests" / "golden"
MANIFEST = tomllib.loads((GOLDEN / "manifest.toml").read_text())
SEED = int(os.environ.get("WEFT_SEED", time.time_ns() % 2**32))
EXIT_DAMAGED = 3


def weft(*arguments):
    """Runs the command and returns its exit code, what it printed, and what it complained about."""
    command = [COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace", check=False)
    return done.returncode, done.stdout, done.stderr


def files_of(path):
    """The content of a checkpoint's files by their names; the name of a single file is empty."""
    if path.is_dir():
        return {file.name: file.read_bytes() for file in path.iterdir()}
    return {"": path.read_bytes()}


class PatchTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-golden-")
        self.addCleanup(self.scratch.cleanup)
        self.directory = pathlib.Path(self.scratch.name)

    def run_weft(self, *arguments):
        code, printed, complaint = weft(*arguments)
        self.assertEqual(code, 0, complaint)
        return printed

    def assert_decodes(self, base, patch, result):
        """weft_format.py makes the result, and the counts of changes, which inform only, are true."""
        parsed = parse_patch(patch.read_bytes())
        checkpoint = read_checkpoint(base)
        decoded = apply_patch(checkpoint, parsed)
        self.assertTrue(decoded.contents() == files_of(result), "weft_format.py decodes to something else")
        self.assert_true_counts(parsed, checkpoint.tensors(), decoded.tensors())

    def assert_true_counts(self, patch, old, new):
        changed = 0
        for entry in patch.header.roster:
            if entry.fate == KEPT:
                changed += int(numpy.count_nonzero(old[entry.name].units != new[entry.name].units))
            elif entry.fate != REMOVED:
                changed += entry.units
        self.assertEqual(patch.footer.changed, changed)
        self.assertEqual(sum(frame.changed for frame in patch.frames), changed)


class GoldenTest(PatchTest):
    def test_patches_make_their_results(self):
        for case in MANIFEST["golden"]:
            with self.subTest(case["name"]):
                self.check_patch(case)

    def check_patch(self, case):
        base, result = (GOLDEN / "checkpoints" / case[role] for role in ("base", "result"))
        patch = GOLDEN / "patches" / f"{case['name']}.weft"
        self.assert_decodes(base, patch, result)
        output = self.directory / case["name"]
        self.run_weft("apply", "--quiet", base, patch, "-o", output)
        self.assertTrue(files_of(output) == files_of(result), "the command decodes to something else")

    def test_damaged_patches_are_refused(self):
        for case in MANIFEST["error"]:
            with self.subTest(case["name"]):
                self.check_refusal(case)

    def check_refusal(self, case):
        base = GOLDEN / "checkpoints" / case["base"]
        patch = GOLDEN / "errors" / f"{case['name']}.weft"
        with self.assertRaises(FormatError) as refusal:
            apply_patch(read_checkpoint(base), parse_patch(patch.read_bytes()))
        self.assertEqual(str(refusal.exception), case["refusal"])
        output = self.directory / case["name"]
        code, _, complaint = weft("apply", "--quiet", base, patch, "-o", output)
        self.assertEqual(code, EXIT_DAMAGED, complaint)
        self.assertFalse(output.exists(), "the command wrote something in spite of all")

    def test_every_file_is_listed(self):
        for kind, folder in (("golden", "patches"), ("error", "errors")):
            listed = {f"{case['name']}.weft" for case in MANIFEST[kind]}
            self.assertEqual(listed, {path.name for path in (GOLDEN / folder).iterdir()})


class RandomTest(PatchTest):
    def setUp(self):
        super().setUp()
        self.random = numpy.random.default_rng(SEED)

    def check_pair(self, base, result, *options):
        """The patches of both profiles, both ways, and the digests."""
        for path in (base, result):
            digest = self.run_weft("digest", path).split()[0]
            self.assertEqual(digest, state_digest(read_checkpoint(path).tensors()).hex())
        for profile in ("fast", "small"):
            patch, inverse = (self.directory / f"{base.name}.{way}.{profile}" for way in ("there", "back"))
            chosen = ("--quiet", "--profile", profile, *options)
            self.run_weft("diff", base, result, "-o", patch, "--inverse", inverse, *chosen)
            self.assert_decodes(base, patch, result)
            self.assert_decodes(result, inverse, base)

    def write_pair(self, first, second):
        paths = (self.directory / "base.safetensors", self.directory / "result.safetensors")
        for path, state in zip(paths, (first, second)):
            checkpoints.write_single(state, path)
        return paths

    def random_shape(self, most_units):
        """A shape of up to four dimensions whose product is a multiple of 4, as types of 6 bits need it."""
        shape = self.random.integers(1, 12, self.random.integers(0, 4)).tolist()
        units = int(self.random.integers(0, max(1, most_units // (4 * int(numpy.prod(shape))))))
        return (*shape, 4 * units)

    def random_kinds(self, count, most_units):
        names = [dtype.name for dtype in DTYPES]
        return {
            f"tensor.{number}": (str(self.random.choice(names)), self.random_shape(most_units))
            for number in range(count)
        }

    def test_dtypes_and_densities(self):
        for density in (0.0005, 0.01, 0.1, 0.3, 0.9):
            largest_step = (1, 3, 300, 2**64 - 1)[self.random.integers(4)]
            with self.subTest(density=density, largest_step=largest_step, seed=SEED):
                first = checkpoints.random_state(self.random, self.random_kinds(12, 4000))
                second = checkpoints.changed_state(self.random, first, density, largest_step)
                self.check_pair(*self.write_pair(first, second))

    def test_tensors_that_come_and_go(self):
        for _ in range(3):
            with self.subTest(seed=SEED):
                first = checkpoints.random_state(self.random, self.random_kinds(8, 500))
                second = checkpoints.changed_state(self.random, first, 0.05)
                second |= checkpoints.random_state(self.random, self.random_kinds(3, 500))
                added = checkpoints.random_state(self.random, self.random_kinds(12, 500))
                second |= {name: added[name] for name in list(added)[8:]}
                del second[b"tensor.7"], second[b"tensor.5"]
                self.check_pair(*self.write_pair(first, second))

    def test_several_classes_and_buckets(self):
        for density in (0.002, 0.02, 0.08):
            with self.subTest(density=density, seed=SEED):
                kinds = {"a": ("BF16", (180, 1001)), "b": ("BF16", (77,)), "c": ("F16", (5000,))}
                first = checkpoints.random_state(self.random, kinds)
                second = checkpoints.changed_state(self.random, first, density)
                for name in (b"a", b"b"):
                    second[name] = checkpoints.changed_small_exponents(self.random, first[name], density)
                pair = self.write_pair(first, second)
                self.check_pair(*pair)
                self.check_pair(*pair, "--bucket-size", "64KiB")

    def test_cuts(self):
        kinds = {"rows": ("BF16", (8, 40)), "columns": ("F32", (30, 64)), "middle": ("I8", (4, 8, 32))}
        first = checkpoints.random_state(self.random, kinds)
        second = checkpoints.changed_state(self.random, first, 0.05)
        with self.subTest(seed=SEED):
            cuts = ("--cut", "rows:0:4", "--cut", "columns:1:2", "--cut", "middle:1:4")
            self.check_pair(*self.write_pair(first, second), *cuts)

    def test_merged(self):
        states = [checkpoints.random_state(self.random, self.random_kinds(6, 2000))]
        for density in (0.01, 0.04, 0.01):
            states.append(checkpoints.changed_state(self.random, states[-1], density))
        paths = [self.directory / f"{number}.safetensors" for number in range(len(states))]
        for path, state in zip(paths, states):
            checkpoints.write_single(state, path)
        for profile in ("fast", "small"):
            with self.subTest(profile=profile, seed=SEED):
                self.check_merged(paths, profile)

    def check_merged(self, paths, profile):
        patches = []
        for base, result in zip(paths, paths[1:]):
            patches.append(self.directory / f"{result.name}.{profile}")
            self.run_weft("diff", "--quiet", base, result, "-o", patches[-1], "--profile", profile)
        merged = self.directory / f"merged.{profile}"
        options = ("--base", paths[0], "--profile", profile)
        self.run_weft("merge", "--quiet", *patches, "-o", merged, *options)
        self.assert_decodes(paths[0], merged, paths[-1])


if __name__ == "__main__":
    print(f"WEFT_SEED={SEED}", flush=True)
    unittest.main(verbosity=2)
