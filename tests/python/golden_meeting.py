# SPDX-License-Identifier: Apache-2.0
"""golden_meeting.py: the golden store of ranks that meet: how it was made (tests/golden/make_stores.py), and what
test_golden_meeting.py needs to know of it."""

import ctypes
import json

import numpy
from test_loco_format import Rank, digest_of, weft
from test_loco_meeting import Member, move, weights

ROUNDS = 3
KINDS = {
    "plain": {},
    "significant": {"significant": 5},
    "open": {"open": True},
    "raw": {"open": True, "raw": True},
    "average": {"open": True, "raw": True, "average": True, "rate": 1, "momentum": 0},
}



def first_weights(kind):
    """What a rank begins with: a mean is of nothing in common."""
    return [tensor * (0 if KINDS[kind].get("average") else 1) for tensor in weights()]


def save(rank, path):
    labels = (ctypes.c_char_p * 3)(b"random", "17 ünïcode".encode(), None)
    rank.need(weft.weft_loco_save(rank.loco, str(path).encode(), None, labels, False))


def load(rank, path):
    rank.need(weft.weft_loco_load(rank.loco, str(path).encode(), None, None, None, None))


def catch_up(member):
    rounds = ctypes.c_uint64()
    rank = member.rank
    rank.need(weft.weft_loco_catch_up(rank.loco, ctypes.byref(member.exchange), ctypes.byref(rounds)))


def step(rank):
    """Moves weights as a rank of these payloads has done."""
    for tensor in rank.tensors.values():
        tensor += numpy.float32(0.001)


def make(place):
    store = place / "store"
    room = store / "loco" / "format"
    member = Member(str(store), 0.5)
    other = Rank(*weights(), ranks=3, rank=1, momentum=0.5)
    move(other)
    (room / "0").mkdir(parents=True)
    (room / "0" / "1").write_bytes(other.encode())
    for _ in range(ROUNDS):
        member.end_round()
    save(member.rank, place / "rank-0.safetensors")
    (place / "payloads").mkdir()
    digests = {"meeting": digest_of(member.rank.tensors).hex()}
    for kind, options in KINDS.items():
        rank = Rank(*first_weights(kind), **options)
        step(rank)
        data = rank.encode()
        (place / "payloads" / kind).write_bytes(data)
        rank.aggregate(data)
        digests[kind] = digest_of(rank.tensors).hex()
        rank.close()
    (place / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")
    member.close()
    other.close()
