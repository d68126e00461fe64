# SPDX-License-Identifier: Apache-2.0
"""A decoder of PULSELoCo's payloads, written from sections 31 and 32 of doc/FORMAT.md and nothing else: slow,
and strict where the page is."""

from typing import NamedTuple

import numpy
import xxhash
from weft_format import (
    DTYPE_OF_NAME,
    Bits,
    Cursor,
    Rans,
    checksum,
    class_members,
    read_cuts,
    read_table,
    read_value,
    require,
)

MAGIC = b"WEFTLOCO"
OPEN, RAW, AVERAGE = 1, 2, 4
GAP_TOKENS = 96
FIRST_INVALID, ESCAPE = 192, 255
BFLOAT = DTYPE_OF_NAME["BF16"]


class Header(NamedTuple):
    is_open: bool
    is_raw: bool
    is_average: bool
    significant: int
    rank: int
    ranks: int
    block_elements: int
    round: int
    elements: int
    base: bytes
    rate: numpy.float32
    momentum: numpy.float32
    run: bytes


class Payload(NamedTuple):
    header: Header
    positions: numpy.ndarray  # ascending
    values: numpy.ndarray  # FP32


def read_float(cursor):
    return numpy.frombuffer(cursor.take(4), dtype="<f4")[0]


def read_checksum(cursor, start):
    said = checksum(cursor.data[start : cursor.offset])
    require(cursor.unsigned(8) == said, "a checksum is wrong")
    return said


def read_header(cursor):
    require(cursor.take(8) == MAGIC, "no payload")
    require(cursor.unsigned(2) == 1, "another version")
    flags = cursor.unsigned(1)
    require(flags in (0, OPEN, OPEN | RAW, OPEN | RAW | AVERAGE), "flags that do not exist, or not together")
    header = Header(
        is_open=flags & OPEN != 0,
        is_raw=flags & RAW != 0,
        is_average=flags & AVERAGE != 0,
        significant=cursor.unsigned(1),
        rank=cursor.unsigned(4),
        ranks=cursor.unsigned(4),
        block_elements=cursor.unsigned(4),
        round=cursor.unsigned(8),
        elements=cursor.unsigned(8),
        base=cursor.take(16),
        rate=read_float(cursor),
        momentum=read_float(cursor),
        run=cursor.take(cursor.unsigned(1)),
    )
    require(header.significant == 0 or 2 <= header.significant <= 23, "significant bits")
    require(header.significant == 0 or not header.is_raw, "raw values are not cut")
    require(not header.is_average or (header.rate, header.momentum) == (1, 0), "averages move no weights")
    require(1 <= header.ranks <= 4096 and header.rank < header.ranks, "ranks")
    require(1 <= header.block_elements <= 1 << 24 and header.elements >= 1, "sizes")
    require(len(header.run) <= 64 and 0 not in header.run, "the name of the run")
    return header


def read_number(token, bits, significant, exponent):
    """The FP32 number of a token at an element with this exponent."""
    if token == ESCAPE:
        return numpy.frombuffer(bits.read(32).to_bytes(4, "little"), dtype="<f4")[0]
    if token == 0:
        return numpy.float32(0)
    extra = 0 if token < 16 else 2 + (token - 16) // 4
    base = token if token < 16 else (4 + (token - 16) % 4) << extra
    kept = min(extra, max((significant or 24) - 3, 0))
    sign = -1.0 if bits.read(1) else 1.0
    multiple = base + (bits.read(kept) << (extra - kept))
    exact = sign * multiple * 2.0 ** (max(exponent, 1) - 150)
    value = numpy.float32(exact)
    require(float(value) == exact, "a multiple that is no FP32 number")
    return value


def decode_block(block, fired, header, consensus):
    """Positions in the block and values; consensus are the block's elements."""
    words = (consensus.view(numpy.uint32) >> 16).astype(numpy.uint16)
    cursor = Cursor(block, "block")
    cuts = read_cuts(cursor, BFLOAT)
    counts = [cursor.varint() for _ in range(len(cuts) + 1)]
    require(sum(counts) == fired, "the classes' values are not those of the frame")
    bits = Bits(cursor.take(cursor.varint()), "block")
    tables = [(read_table(bits, GAP_TOKENS), read_table(bits, 256)) if count else None for count in counts]
    rans = Rans(cursor.rest())
    positions, values = [], []
    for count, pair, members in zip(counts, tables, class_members(words, cuts, BFLOAT)):
        if count == 0:
            continue
        require(not any(pair[1].frequency[FIRST_INVALID:ESCAPE]), "a token that does not exist")
        gaps = rans.read_array(pair[0], count)
        tokens = rans.read_array(pair[1], count)
        rank = -1
        for gap, token in zip(gaps, tokens):
            rank += 1 + read_value(gap, bits)
            require(rank < len(members), "a rank that its class does not have")
            position = int(members[rank])
            positions.append(position)
            values.append(read_number(token, bits, header.significant, int(words[position]) >> 7 & 0xFF))
    bits.finish()
    rans.finish()
    return numpy.array(positions, dtype=numpy.int64), numpy.array(values, dtype=numpy.float32)


def decode_payload(data, consensus):
    """The values of a payload; consensus are all elements as FP32."""
    cursor = Cursor(data, "payload")
    header = read_header(cursor)
    require(header.elements == len(consensus), "another model")
    checksums = [read_checksum(cursor, 0)]
    positions, values = [numpy.zeros(0, numpy.int64)], [numpy.zeros(0, numpy.float32)]
    for first in range(0, header.elements, header.block_elements):
        part = consensus[first : first + header.block_elements]
        start = cursor.offset
        size, fired = cursor.unsigned(4), cursor.unsigned(4)
        block = cursor.take(size)
        checksums.append(read_checksum(cursor, start))
        require((size == 0) == (fired == 0), "a frame without values has no bytes, and only such a one")
        require(not header.is_open or fired == len(part), "an open gate leaves nothing out")
        if header.is_raw:
            where, what = numpy.arange(fired), numpy.frombuffer(block, dtype="<f4")
        elif fired:
            where, what = decode_block(block, fired, header, part)
        else:
            continue
        order = numpy.argsort(where)
        positions.append(first + where[order])
        values.append(what[order])
    fired = cursor.unsigned(8)
    sealed = b"".join(number.to_bytes(8, "little") for number in checksums + [fired])
    seal = xxhash.xxh3_128_intdigest(sealed).to_bytes(16, "little")
    require(cursor.take(16) == seal, "the seal is broken")
    cursor.finish()
    result = Payload(header, numpy.concatenate(positions), numpy.concatenate(values))
    require(len(result.values) == fired, "the number of values")
    require(bool(numpy.isfinite(result.values).all()), "a value that is not finite")
    return result
