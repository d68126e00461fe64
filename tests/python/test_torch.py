#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The BF16 cast against PyTorch's own, where PyTorch is installed.

Every upper half of a float is met with a spread of lower halves, or with WEFT_FULL=1 every float there is.
Numbers must agree bit for bit. A NaN must stay a NaN: which one, PyTorch does not settle itself. It gives
0x7FC0 for a scalar and 0xFFFF in its vector loops on x86, so weft keeps to the first, which is how PyTorch
defines the conversion of one value.

Without PyTorch the test says so and is skipped.
"""

import ctypes
import os
import unittest

import numpy

import serving

try:
    import torch
except ImportError:
    torch = None

LIBRARY = os.path.join(os.environ.get("WEFT_BUILD", "build"), "libweft.so")


def cast_by_weft(values):
    """The BF16 bits of an array of float32, by the library."""
    library = ctypes.CDLL(LIBRARY)
    cast = library.weft_bf16_from_f32
    cast.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    output = numpy.empty(len(values), numpy.uint16)
    cast(values.ctypes.data, output.ctypes.data, len(values))
    return output


def cast_by_torch(values):
    """The same by PyTorch."""
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(numpy.uint16)


@unittest.skipIf(torch is None, "python3-torch is not installed (make deps-test installs it)")
class Cast(unittest.TestCase):
    def test_numbers_agree_and_nans_stay_nans(self):
        step = 1 if os.environ.get("WEFT_FULL") else 1021
        for upper in range(0, 1 << 16, 1 << 10):
            first, last = upper << 16, (upper + (1 << 10)) << 16
            bits = numpy.arange(first, last, step, dtype=numpy.uint64).astype(numpy.uint32)
            edges = numpy.arange(first, last, 1 << 15, dtype=numpy.uint64)
            bits = numpy.concatenate([bits] + [(edges + offset).astype(numpy.uint32) for offset in (0, 1, 0x7FFF)])
            values = bits.view(numpy.float32)
            ours, theirs = cast_by_weft(values), cast_by_torch(values)
            nan = numpy.isnan(values)
            self.assertTrue(numpy.array_equal(ours[~nan], theirs[~nan]))
            self.assertTrue(numpy.all(ours[nan] == 0x7FC0))
            self.assertTrue(numpy.all(theirs[nan] & 0x7FFF > 0x7F80))

    def test_one_nan_is_torchs(self):
        nan = numpy.array([float("nan")], numpy.float32)
        scalar = torch.tensor(float("nan")).to(torch.bfloat16).view(torch.int16).item() & 0xFFFF
        self.assertEqual(int(cast_by_weft(nan)[0]), scalar)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
