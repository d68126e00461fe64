# SPDX-License-Identifier: Apache-2.0
"""A decoder of what trainers leave each other in a store besides payloads, written from section 35 of
doc/FORMAT.md and nothing else: strict where the page is."""

from typing import NamedTuple, Optional

import numpy
from weft_format import Cursor, checksum, require

MAGIC = b"weftmeet"
CLOSED, NEWEST, SNAPSHOT = 1, 2, 3


class Named(NamedTuple):
    """A payload that counts."""

    size: int
    sha256: bytes


class Closed(NamedTuple):
    round: int
    leader: int
    payloads: list  # for each rank, or None


class Newest(NamedTuple):
    rounds: int
    size: int
    sha256: bytes


class Snapshot(NamedTuple):
    rounds: int
    digest: bytes
    included: list  # for each rank: rounds, seal
    consensus: numpy.ndarray
    momentum: Optional[numpy.ndarray]


def open_object(data, kind, run):
    """A cursor at the fields of the kind."""
    require(len(data) >= 8, "an object that is cut short")
    body = data[:-8]
    require(int.from_bytes(data[-8:], "little") == checksum(body), "a checksum is wrong")
    cursor = Cursor(body, "object")
    require(cursor.take(8) == MAGIC, "no object of a meeting")
    require(cursor.unsigned(1) == 2, "another version")
    require(cursor.unsigned(1) == kind, "another kind")
    require(cursor.take(cursor.varint()) == run, "another run")
    return cursor


def read_flag(cursor):
    flag = cursor.unsigned(1)
    require(flag in (0, 1), "neither 0 nor 1")
    return flag == 1


def read_closed(data, run):
    cursor = open_object(data, CLOSED, run)
    number, leader, ranks = cursor.unsigned(8), cursor.unsigned(4), cursor.unsigned(4)
    payloads = []
    for _ in range(ranks):
        payloads.append(Named(cursor.unsigned(8), cursor.take(32)) if read_flag(cursor) else None)
    cursor.finish()
    require(leader < ranks, "a leader that there is not")
    require(any(payloads), "a round of nobody")
    return Closed(number, leader, payloads)


def read_newest(data, run):
    cursor = open_object(data, NEWEST, run)
    newest = Newest(cursor.unsigned(8), cursor.unsigned(8), cursor.take(32))
    cursor.finish()
    return newest


def read_snapshot(data, run):
    cursor = open_object(data, SNAPSHOT, run)
    rounds, elements = cursor.unsigned(8), cursor.unsigned(8)
    has_momentum = read_flag(cursor)
    digest = cursor.take(16)
    included = [(cursor.unsigned(8), cursor.take(16)) for _ in range(cursor.unsigned(4))]
    consensus = numpy.frombuffer(cursor.take(4 * elements), dtype="<f4")
    momentum = numpy.frombuffer(cursor.take(4 * elements), dtype="<f4") if has_momentum else None
    cursor.finish()
    require(max(last for last, _ in included) == rounds, "a last round of nobody, or one that has not been")
    require(all(last > 0 or seal == bytes(16) for last, seal in included), "the seal of no payload")
    return Snapshot(rounds, digest, included, consensus, momentum)
