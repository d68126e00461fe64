#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a trainer that meets others in a store leaves there, decoded by weft_meeting.py, which was written from
doc/FORMAT.md: who counts in a round, which snapshot is the newest, and what a snapshot tells."""

import ctypes
import hashlib
import os
import tempfile
import unittest

import numpy
import weft_meeting
from test_loco_format import Rank, digest_of, weft

ROUNDS = 3


class StoreOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("run", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("least", ctypes.c_uint32),
        ("deadline_seconds", ctypes.c_double),
        ("passing_seconds", ctypes.c_double),
        ("poll_seconds", ctypes.c_double),
        ("patience_seconds", ctypes.c_double),
        ("keep_rounds", ctypes.c_uint64),
        ("snapshot_rounds", ctypes.c_uint64),
        ("key", ctypes.c_void_p),
    ]


class Exchange(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_void_p)
        for name in ("share", "ended", "snapshot_due", "snapshot_put", "snapshot_get", "close", "opaque")
    ]


weft.weft_loco_store_defaults.restype = None
weft.weft_store_close.argtypes = [ctypes.c_void_p]


class Member:
    """Rank 0 of three, in a store."""

    def __init__(self, place, momentum):
        self.rank = Rank(*weights(), ranks=3, momentum=momentum)
        self.store = ctypes.c_void_p()
        self.exchange = Exchange(size=ctypes.sizeof(Exchange))
        options = StoreOptions(size=ctypes.sizeof(StoreOptions))
        weft.weft_loco_store_defaults(ctypes.byref(options))
        options.run, options.ranks = b"format", 3
        options.deadline_seconds = options.passing_seconds = options.poll_seconds = 0.01
        options.keep_rounds, options.snapshot_rounds = 4, 2
        context = self.rank.context
        self.rank.need(weft.weft_store_open(context, place.encode(), None, ctypes.byref(self.store)))
        self.rank.need(
            weft.weft_loco_store_open(context, self.store, ctypes.byref(options), ctypes.byref(self.exchange))
        )

    def end_round(self):
        move(self.rank)
        self.rank.need(weft.weft_loco_round(self.rank.loco, ctypes.byref(self.exchange), None))

    def close(self):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.exchange.close)(self.exchange.opaque)
        weft.weft_store_close(self.store)
        self.rank.close()


def weights():
    random = numpy.random.default_rng(3)
    return [(0.02 * random.standard_normal(count)).astype(numpy.float32) for count in (100, 7)]


def move(rank):
    for tensor in rank.tensors.values():
        tensor *= numpy.float32(1.01)


def read(*parts):
    with open(os.path.join(*parts), "rb") as file:
        return file.read()


class MeetingFormat(unittest.TestCase):
    def meet(self, momentum):
        with tempfile.TemporaryDirectory() as place:
            room = os.path.join(place, "loco", "format")
            member = Member(place, momentum)
            other = Rank(*weights(), ranks=3, rank=1, momentum=momentum)
            # rank 1 is there in the first round only, and rank 2 never
            move(other)
            os.makedirs(os.path.join(room, "0"))
            with open(os.path.join(room, "0", "1"), "wb") as file:
                file.write(other.encode())
            for number in range(ROUNDS):
                member.end_round()
                if number == 1:
                    consensus, digest = member.rank.consensus(), digest_of(member.rank.tensors)
                self.check_closed(room, number, {0, 1} if number == 0 else {0})
            snapshot = self.check_snapshot(room)
            self.assertEqual(snapshot.consensus.tobytes(), consensus.tobytes())
            self.assertEqual(snapshot.digest, digest)
            self.assertEqual(snapshot.momentum is not None, momentum > 0)
            seals = [read(room, "1", "0")[-16:], read(room, "0", "1")[-16:], bytes(16)]
            self.assertEqual(snapshot.included, list(zip([2, 1, 0], seals)))
            member.close()
            other.close()

    def check_closed(self, room, number, expected):
        closed = weft_meeting.read_closed(read(room, str(number), "closed"), b"format")
        self.assertEqual((closed.round, closed.leader, len(closed.payloads)), (number, 0, 3))
        self.assertEqual({rank for rank, named in enumerate(closed.payloads) if named}, expected)
        for rank in expected:
            data = read(room, str(number), str(rank))
            self.assertEqual(closed.payloads[rank], (len(data), hashlib.sha256(data).digest()))

    def check_snapshot(self, room):
        newest = weft_meeting.read_newest(read(room, "snapshot"), b"format")
        data = read(room, f"snapshot-{newest.rounds}")
        self.assertEqual(newest, (2, len(data), hashlib.sha256(data).digest()))
        return weft_meeting.read_snapshot(data, b"format")

    def test_with_momentum(self):
        self.meet(0.5)

    def test_without_momentum(self):
        self.meet(0)


if __name__ == "__main__":
    unittest.main()
