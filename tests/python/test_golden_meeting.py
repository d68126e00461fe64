#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The golden store of ranks that meet, and golden payloads of each kind: read for ever, and gone on with."""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import weft_loco
import weft_meeting
from golden_meeting import KINDS, ROUNDS, catch_up, first_weights, load, step
from test_loco_format import Rank, digest_of
from test_loco_meeting import Member

SOURCE = pathlib.Path(os.environ.get("WEFT_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
GOLDEN = SOURCE / "tests" / "golden" / "stores" / "meeting"
DIGESTS = json.loads((GOLDEN / "digests.json").read_text())
ROOM = "store/loco/format"


class PayloadTest(unittest.TestCase):
    def test_each_kind(self):
        self.assertEqual({path.name for path in (GOLDEN / "payloads").iterdir()}, set(KINDS))
        for kind, options in KINDS.items():
            with self.subTest(kind):
                data = (GOLDEN / "payloads" / kind).read_bytes()
                rank = Rank(*first_weights(kind), **options)
                payload = weft_loco.decode_payload(data, rank.consensus())
                self.assertEqual((payload.header.round, payload.header.run), (0, b"format"))
                self.assertGreater(len(payload.values), 0)
                step(rank)
                rank.encode()  # before a round ends, each rank has; the payload of then stands for it
                rank.aggregate(data)
                self.assertEqual(digest_of(rank.tensors).hex(), DIGESTS[kind])
                rank.close()


class MeetingTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-golden-")
        self.addCleanup(self.scratch.cleanup)
        self.place = pathlib.Path(self.scratch.name) / "meeting"
        shutil.copytree(GOLDEN, self.place)

    def test_objects(self):
        for number in range(ROUNDS):
            closed = weft_meeting.read_closed((GOLDEN / ROOM / str(number) / "closed").read_bytes(), b"format")
            self.assertEqual((closed.round, closed.leader, len(closed.payloads)), (number, 0, 3))
            self.assertEqual([payload is not None for payload in closed.payloads], [True, number == 0, False])
            for rank, payload in enumerate(closed.payloads):
                if payload is not None:
                    data = (GOLDEN / ROOM / str(number) / str(rank)).read_bytes()
                    self.assertEqual(payload, (len(data), hashlib.sha256(data).digest()))
        newest = weft_meeting.read_newest((GOLDEN / ROOM / "snapshot").read_bytes(), b"format")
        data = (GOLDEN / ROOM / "snapshot-2").read_bytes()
        self.assertEqual(newest, (2, len(data), hashlib.sha256(data).digest()))
        snapshot = weft_meeting.read_snapshot(data, b"format")
        self.assertEqual([last for last, _ in snapshot.included], [2, 1, 0])

    def test_rank_goes_on(self):
        """With the state of then, to the next round."""
        member = Member(str(self.place / "store"), 0.5)
        load(member.rank, self.place / "rank-0.safetensors")
        self.assertEqual(digest_of(member.rank.tensors).hex(), DIGESTS["meeting"])
        member.end_round()
        closed = (self.place / ROOM / str(ROUNDS) / "closed").read_bytes()
        self.assertEqual(weft_meeting.read_closed(closed, b"format").round, ROUNDS)
        member.close()

    def test_rank_comes_back(self):
        """With nothing: by the rounds that are there, or by the snapshot and the round after it."""
        for what in ("rounds", "snapshot"):
            with self.subTest(what):
                if what == "snapshot":
                    shutil.rmtree(self.place / ROOM / "0")
                    shutil.rmtree(self.place / ROOM / "1")
                member = Member(str(self.place / "store"), 0.5)
                catch_up(member)
                self.assertEqual(digest_of(member.rank.tensors).hex(), DIGESTS["meeting"])
                member.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
