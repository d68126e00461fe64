#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Payloads that the library makes, decoded by weft_loco.py, which was written from doc/FORMAT.md: the values
are bit for bit those that the library's gate lets through."""

import ctypes
import os
import unittest

import numpy
import weft_format
import weft_loco

LIBRARY = os.path.join(os.environ.get("WEFT_BUILD", "build"), "libweft.so")
weft = ctypes.CDLL(LIBRARY)
FLOATS = ctypes.POINTER(ctypes.c_float)


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("run", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("rate", ctypes.c_float),
        ("momentum", ctypes.c_float),
        ("significant", ctypes.c_uint32),
        ("open", ctypes.c_bool),
        ("raw", ctypes.c_bool),
        ("average", ctypes.c_bool),
    ]


class NamedWeights(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", FLOATS), ("count", ctypes.c_uint64)]


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


weft.weft_loco_defaults.restype = None
weft.weft_loco_consensus.restype = FLOATS
weft.weft_context_error.restype = ctypes.c_char_p


def floats(array):
    return array.ctypes.data_as(FLOATS)


class Rank:
    """A trainer with two tensors, and its residual once more for the gate alone."""

    def __init__(self, first, second, **options):
        self.context = ctypes.c_void_p()
        assert weft.weft_context_create(None, ctypes.byref(self.context)) == 0
        self.tensors = {b"a": first, b"b": second}
        self.residual = numpy.zeros(len(first) + len(second), numpy.float32)
        self.options = Options(size=ctypes.sizeof(Options))
        weft.weft_loco_defaults(ctypes.byref(self.options))
        self.options.run = b"format"
        for name, value in options.items():
            setattr(self.options, name, value)
        given = (NamedWeights * 2)(*[NamedWeights(n, floats(t), len(t)) for n, t in self.tensors.items()])
        self.loco = ctypes.c_void_p()
        self.need(
            weft.weft_loco_create(self.context, ctypes.byref(self.options), given, 2, ctypes.byref(self.loco))
        )

    def need(self, status):
        if status != 0:
            raise AssertionError(weft.weft_context_error(self.context).decode())

    def close(self):
        weft.weft_loco_destroy(self.loco)
        weft.weft_context_destroy(self.context)

    def consensus(self):
        parts = [
            numpy.ctypeslib.as_array(weft.weft_loco_consensus(self.loco, name), (len(tensor),))
            for name, tensor in self.tensors.items()
        ]
        return numpy.concatenate(parts)

    def gate(self, consensus):
        """What the gate lets through."""
        local = numpy.concatenate(list(self.tensors.values()))
        positions = numpy.zeros(len(local), numpy.uint32)
        values = numpy.zeros(len(local), numpy.float32)
        fired = ctypes.c_uint64()
        self.need(
            weft.weft_loco_gate(
                self.context,
                floats(consensus),
                floats(local),
                floats(self.residual),
                ctypes.c_uint64(len(local)),
                self.options.significant,
                self.options.open,
                positions.ctypes.data_as(ctypes.c_void_p),
                floats(values),
                ctypes.byref(fired),
            )
        )
        return positions[: fired.value], values[: fired.value]

    def encode(self):
        payload = Bytes()
        self.need(weft.weft_loco_encode(self.loco, ctypes.byref(payload)))
        return ctypes.string_at(payload.data, payload.size)

    def aggregate(self, data):
        payload = Bytes(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
        self.need(weft.weft_loco_aggregate(self.loco, ctypes.byref(payload), 1, None))


def digest_of(tensors):
    kind = weft_format.DTYPE_OF_NAME["F32"]
    return weft_format.state_digest(
        {name: weft_format.Tensor(kind, [len(data)], data.tobytes()) for name, data in tensors.items()}
    )


class LocoFormat(unittest.TestCase):
    def compare(self, first, second, step, rounds=2, **options):
        """Trains and sends for some rounds. Returns how many values there were."""
        random = numpy.random.default_rng(5)
        rank = Rank(first, second, **options)
        total = 0
        for number in range(rounds):
            consensus = rank.consensus()
            base = digest_of(rank.tensors)
            for tensor in rank.tensors.values():
                step(random, tensor)
            positions, values = rank.gate(consensus)
            data = rank.encode()
            payload = weft_loco.decode_payload(data, consensus)
            self.assertEqual(payload.header.round, number)
            self.assertEqual(payload.header.run, b"format")
            self.assertEqual(payload.header.base, base)
            self.assertEqual(payload.positions.tolist(), positions.tolist())
            # the coding knows no sign of zero
            self.assertEqual((payload.values + 0).tobytes(), (values + 0).tobytes())
            rank.aggregate(data)
            total += len(values)
        rank.close()
        return total

    @staticmethod
    def weights(count, seed):
        random = numpy.random.default_rng(seed)
        return (0.02 * random.standard_normal(count)).astype(numpy.float32)

    @staticmethod
    def small_step(random, tensor):
        tensor += (2e-6 * random.standard_normal(len(tensor))).astype(numpy.float32)

    @staticmethod
    def wild_step(random, tensor):
        """Moves of all sizes: some are no multiples, some are beyond 2^48 ULPs."""
        scale = numpy.exp2(random.uniform(-60, 20, len(tensor)))
        tensor += (scale * random.standard_normal(len(tensor))).astype(numpy.float32)

    def test_two_blocks(self):
        fired = self.compare(self.weights(1000, 1), self.weights((1 << 20) + 3000, 2), self.small_step, 1)
        self.assertGreater(fired, 10000)

    def test_values_that_are_cut(self):
        for significant in (2, 3, 4, 8, 23):
            with self.subTest(significant=significant):
                self.compare(
                    self.weights(9000, 3), self.weights(100, 4), self.small_step, significant=significant
                )

    def test_open_gate(self):
        fired = self.compare(self.weights(5000, 5), self.weights(7, 6), self.small_step, open=True)
        self.assertEqual(fired, 2 * 5007)
        self.compare(self.weights(5000, 5), self.weights(7, 6), self.small_step, open=True, raw=True)

    def test_averages(self):
        options = {"open": True, "raw": True, "average": True, "rate": 1, "momentum": 0}
        zeros = [numpy.zeros(count, numpy.float32) for count in (50, 7)]
        self.assertEqual(self.compare(*zeros, self.small_step, 1, **options), 57)

    def test_values_of_all_sizes(self):
        random = numpy.random.default_rng(7)
        exponents = random.uniform(-149, 30, 6000)
        weights = numpy.exp2(exponents).astype(numpy.float32)
        weights[::17] = 0
        weights[5::23] *= -1
        for options in ({}, {"significant": 5}, {"open": True}):
            with self.subTest(**options):
                self.compare(weights.copy(), self.weights(50, 8), self.wild_step, 3, **options)

    def test_nothing_to_send(self):
        self.assertEqual(self.compare(self.weights(500, 1), self.weights(5, 2), lambda *_: None), 0)


if __name__ == "__main__":
    unittest.main()
