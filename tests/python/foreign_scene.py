# SPDX-License-Identifier: Apache-2.0
"""foreign_scene.py: a base, a place for deltas beside it, and what the tests of foreign formats do with both."""

import filecmp
import json
import os
import shutil
import subprocess
import tempfile

import numpy

import serving
from weft_foreign import changed_state, random_state, write_state

KINDS = {
    "model.embed_tokens.weight": ("BF16", (257, 96)),
    "model.layers.0.mlp.weight": ("BF16", (96, 200)),
    "model.layers.0.scale": ("F32", (33,)),
    "model.layers.0.fp8": ("F8_E4M3", (64, 65)),
    "model.norm.weight": ("F16", (95,)),
    "steps": ("I64", (5,)),
    "mask": ("BOOL", (77,)),
    "empty": ("BF16", (0, 4)),
    "scalar": ("F64", ()),
    "modèle.\U0001d6c3": ("BF16", (7, 3)),
}
DENSITIES = (0, 1, 0.01, 0.5, 1.0)  # nothing, one unit, and shares


def weft(*arguments, code=0):
    done = subprocess.run([serving.WEFT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=serving.PATIENCE)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def digest(path):
    return json.loads(weft("digest", path, "--json"))["digest"]


def same_directory(a, b):
    assert sorted(os.listdir(a)) == sorted(os.listdir(b)), (os.listdir(a), os.listdir(b))
    for name in os.listdir(a):
        with open(os.path.join(a, name), "rb") as one, open(os.path.join(b, name), "rb") as other:
            assert one.read() == other.read(), name


class Scene:
    """A base, and what is made from it, in a directory of its own."""

    def __init__(self, seed=1, kinds=None):
        self.random = numpy.random.default_rng(seed)
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-foreign.")
        self.state = random_state(self.random, kinds or KINDS)
        self.base = self.path("base.safetensors")
        self.place = self.path("updates")
        os.mkdir(self.place)
        write_state(self.base, self.state)

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scratch.cleanup()

    def advance(self, density):
        before, self.state = self.state, changed_state(self.random, self.state, density)
        return before, self.state

    def save(self, name):
        write_state(self.path(name), self.state)
        return self.path(name)

    def refused(self, scheme, status, words, *arguments, place=None):
        """Converting onto a copy of the base fails with this exit code and these words, and changes nothing."""
        out = self.path("refused.safetensors")
        shutil.copy(self.base, out)
        text = weft("convert", f"{scheme}:{place or self.place}", out, *arguments, code=status)
        assert words in text, text
        assert filecmp.cmp(out, self.base, shallow=False)
        os.remove(out)
