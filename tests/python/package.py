# SPDX-License-Identifier: Apache-2.0
"""package.py: the Python package of this tree over the library of this build, for the tests of it."""

import os
import sys
import tempfile
import unittest

import numpy

SOURCE = os.environ.get("WEFT_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.environ.get("WEFT_BUILD") or os.path.join(SOURCE, "build")
os.environ.setdefault("WEFT_LIBRARY", os.path.join(BUILD, "libweft.so"))
PYTHON = os.path.join(SOURCE, "python")
sys.path.insert(0, PYTHON)

import weft  # noqa: E402  (the path is set above)

try:
    import torch
except ImportError:
    torch = None


class Case(unittest.TestCase):
    """A test with a directory of its own."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="weft-package.")
        self.addCleanup(scratch.cleanup)
        self.place = scratch.name

    def path(self, name):
        return os.path.join(self.place, name)


def model(seed, size=20000):
    """Tensors of several dtypes and shapes, empty and scalar ones among them."""
    random = numpy.random.default_rng(seed)
    return {
        "layer.weight": random.standard_normal((size // 100, 100)).astype("float32"),
        "layer.bias": random.standard_normal(size // 100).astype("float16"),
        "bits": random.integers(0, 2**16, size).astype("uint16"),
        "steps": numpy.array(seed, "int64"),
        "empty": numpy.zeros((0, 7), "float64"),
        "flags": random.random(77) < 0.5,
    }


def changed(tensors, seed, share=0.01):
    """A copy in which about this share of each tensor is another."""
    random = numpy.random.default_rng(seed)
    copy = {}
    for name, tensor in tensors.items():
        tensor = tensor.copy()
        tensor[random.random(tensor.shape) < share] = 1
        copy[name] = tensor
    return copy


def equal(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
