# SPDX-License-Identifier: Apache-2.0
"""Takes patches apart and puts them together again with correct lengths and checksums.

A patch that was damaged on the way is caught by its checksums. This module makes the other kind: patches
that are sound as files and lie in what they say, or that are valid in ways in which weft's writer does not
use the format. A test takes a real patch, changes a field of the Pieces, and seals it.
"""

from dataclasses import dataclass, replace

import numpy

from weft_format import END_MAGIC, MAGIC, PACKED_STEPS, PACKED_VALUES, RICE_STEPS, SMALL, STATE_FLOOR, TABLE_SLOTS
from weft_format import Cursor, Form, bucket_units, checksum, class_members, frequencies, law_weights
from weft_format import little_endian, parse_patch, read_spans, unzstd, weight


def varint(value):
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def text(data):
    return varint(len(data)) + data


def span_list(*records):
    return varint(len(records)) + b"".join(records)


def whole(tensor, count=1):
    return b"\0" + varint(tensor) + varint(count)


def flat(tensor, start, run):
    return b"\1" + b"".join(map(varint, (tensor, start, run)))


def box(tensor, start, run, stride, count):
    return b"\2" + b"".join(map(varint, (tensor, start, run, stride, count)))


def roster_entry(entry):
    shape = b"".join(map(varint, entry.shape))
    return text(entry.name) + bytes([entry.fate, entry.dtype.number, len(entry.shape)]) + shape


def header_body(profile=0, roster=(), files=b"\1", labels=b"\0"):
    """A header body from roster entries, and from files and labels as bytes."""
    return bytes([profile]) + varint(len(roster)) + b"".join(map(roster_entry, roster)) + files + labels


@dataclass
class FramePieces:
    """A frame; index_spans and index_length are what the index says about it, if that differs."""

    coding: int
    spans: bytes
    changed: int
    delta: tuple
    payload: bytes
    index_spans: bytes | None = None
    index_length: int | None = None

    def seal(self):
        delta = b"".join(little_endian(lane, 8) for lane in self.delta)
        body = bytes([self.coding]) + self.spans + varint(self.changed) + delta + self.payload
        frame = little_endian(4 + len(body) + 8, 4) + body
        return frame + little_endian(checksum(frame), 8)

    def index_record(self, frame):
        length = len(frame) if self.index_length is None else self.index_length
        return varint(length) + frame[-8:] + (self.index_spans or self.spans)


@dataclass
class Pieces:
    """A patch in parts. The body of the header is stored as it is, unless it is given compressed."""

    header: bytes
    frames: list
    base: bytes
    result: bytes
    changed: int
    total: int
    dense_bytes: int
    version: int = 1
    flags: int = 0
    compressed_header: bytes | None = None
    index_tail: bytes = b""
    reserved: int = 0

    def seal(self):
        frames = [frame.seal() for frame in self.frames]
        front = self.seal_header() + b"".join(frames)
        index = varint(len(frames))
        for pieces, frame in zip(self.frames, frames):
            index += pieces.index_record(frame)
        return front + self.seal_end(len(front), index + self.index_tail)

    def seal_header(self):
        stored = self.header if self.compressed_header is None else self.compressed_header
        numbers = little_endian(self.version, 2) + little_endian(self.flags, 2)
        sizes = little_endian(len(stored), 4) + little_endian(len(self.header), 4)
        front = MAGIC + numbers + sizes + stored
        return front + little_endian(checksum(front), 8)

    def seal_end(self, index_offset, index):
        counts = (self.changed, self.total, self.dense_bytes, self.reserved)
        footer = little_endian(index_offset, 8) + little_endian(len(index), 4) + self.base + self.result
        end = index + footer + b"".join(little_endian(count, 8) for count in counts)
        return end + little_endian(checksum(end), 8) + END_MAGIC

    def with_frame(self, number, **fields):
        """A copy in which one frame has other fields."""
        frames = list(self.frames)
        frames[number] = replace(frames[number], **fields)
        return replace(self, frames=frames)


def take_apart(data):
    """The pieces of a patch."""
    patch = parse_patch(data)
    frames = []
    start = patch.header.size
    for frame in patch.frames:
        cursor = Cursor(data[start + 5 : start + frame.length], "frame")
        read_spans(cursor, patch.header.roster)
        spans = cursor.data[: cursor.offset]
        frames.append(FramePieces(frame.coding, spans, frame.changed, frame.delta, frame.payload))
        start += frame.length
    footer = patch.footer
    counts = (footer.changed, footer.total, footer.dense_bytes)
    return Pieces(raw_header(data), frames, footer.base, footer.result, *counts, version=patch.header.version)


def raw_header(data):
    stored_size, raw_size = (int.from_bytes(data[offset : offset + 4], "little") for offset in (12, 16))
    stored = data[20 : 20 + stored_size]
    return stored if stored_size == raw_size else unzstd(stored, raw_size, "header")


# ----------------------------------------------------------------------------------------------------------
# The writer's side of the codings fast, small and packed, with choices that weft's writer would not make
# ----------------------------------------------------------------------------------------------------------


class BitWriter:
    """A bit stream to which bits are appended."""

    def __init__(self):
        self.value = 0
        self.size = 0

    def write(self, value, count):
        self.value |= value << self.size
        self.size += count

    def ones(self, count, limit=None):
        """That many ones and a 0 behind them, unless they reach the limit."""
        self.write((1 << count) - 1, count if count == limit else count + 1)

    def bytes(self):
        return little_endian(self.value, (self.size + 7) // 8)


def fast_payload(low_bits, changes):
    """The payload of coding fast from pairs of gap and step, the step below zero for a step down."""
    bits = BitWriter()
    for gap, step in changes:
        quotient = min(gap >> low_bits, 24)
        bits.ones(quotient, 24)
        if quotient == 24:
            bits.write(gap, 32)
        else:
            bits.write(gap & ((1 << low_bits) - 1), low_bits)
        exponent = abs(step).bit_length() - 1
        bits.ones(exponent)
        bits.write(abs(step) & ((1 << exponent) - 1), exponent)
        bits.write(int(step < 0), 1)
    return bytes([low_bits]) + bits.bytes()


def token_of(value):
    """The token of a value, and the value and number of the plain bits behind it."""
    if value < 16:
        return value, 0, 0
    extra = value.bit_length() - 3
    token = 16 + 4 * (extra - 2) + (value >> extra) - 4
    return token, value & ((1 << extra) - 1), extra


def code_of(step, width):
    """The code of a step: 0, 1, 2, 3 … for +1, -1, +2, -2 …"""
    half = 1 << (8 * width - 1)
    return 2 * ((1 << 8 * width) - step) - 1 if step >= half else 2 * step - 2


def levels_near_counts(tokens):
    """Levels whose weights are near the counts of the tokens."""
    counts = [tokens.count(token) for token in range(max(tokens) + 1)]
    return [max(level for level in range(65) if weight(level) <= 4 * count) for count in counts]


def write_table(bits, levels):
    bits.write(len(levels) - 1, 8)
    before = 0
    for level in levels:
        move = level - before
        code = 2 * move if move >= 0 else -2 * move - 1
        bits.ones(min(code, 15), 15)
        if code >= 15:
            bits.write(level, 7)
        before = level


def rans_stream(arrays, count=4):
    """The stream of token arrays, each given with its frequencies; it is written from its end."""
    states = [STATE_FLOOR] * count
    words = b""
    for tokens, frequency in reversed(arrays):
        for place in reversed(range(len(tokens))):
            slots, start = frequency[tokens[place]], sum(frequency[: tokens[place]])
            state = states[place % count]
            if state >= slots << 20:
                words = little_endian(state % STATE_FLOOR, 2) + words
                state >>= 16
            states[place % count] = state // slots * TABLE_SLOTS + state % slots + start
    return b"".join(little_endian(state, 4) for state in states) + words


def small_values(before, after, dtype, cuts):
    """The gaps and the codes of each class, for a bucket cut at these exponents."""
    steps = after - before
    values = []
    for members in class_members(before, cuts, dtype):
        ranks = numpy.flatnonzero(steps[members]).tolist()
        gaps = [rank - previous - 1 for previous, rank in zip([-1] + ranks, ranks)]
        codes = [code_of(int(steps[members[rank]]), dtype.width) for rank in ranks]
        values.append((gaps, codes))
    return values


def write_law(bits, scale, shape, more):
    bits.write(scale, 7)
    bits.write(shape, 2)
    zeros = (more + 1).bit_length() - 1
    bits.write(1 << zeros, zeros + 1)
    bits.write(more + 1 - (1 << zeros), zeros)


def small_payload(values, cuts, levels_of=levels_near_counts, laws=(), limit=64):
    """The payload of coding small from the gaps and the codes of each class. With laws, one for each table: a scale, a
    shape and how many tokens more, or None for levels."""
    bits = BitWriter()
    coded = []
    for number, array in enumerate(array for pair in values for array in pair if array):
        tokens = [token_of(value)[0] for value in array]
        law = laws[number] if laws else None
        if laws:
            bits.write(law is not None, 1)
        if law is not None:
            write_law(bits, *law)
            steps = number % 2 == 1
            coded.append((tokens, frequencies(law_weights(*law, steps, limit if steps else 128))))
            continue
        levels = levels_of(tokens)
        write_table(bits, levels)
        coded.append((tokens, frequencies([weight(level) for level in levels])))
    for array in (array for pair in values for array in pair):
        for value in array:
            bits.write(*token_of(value)[1:])
    counts = b"".join(varint(len(gaps)) for gaps, _ in values)
    return bytes([len(cuts) + 1 + (128 if laws else 0), *cuts]) + counts + text(bits.bytes()) + rans_stream(coded)


def recode_small(pieces, patch, number, old, new, cuts, laws=()):
    """A copy of a patch's pieces in which one frame of kept tensors is coded small with these cuts and laws."""
    roster, spans = patch.header.roster, patch.frames[number].spans
    before, after = (bucket_units(spans, roster, tensors) for tensors in (old, new))
    values = small_values(before, after, roster[spans[0].tensor].dtype, cuts)
    payload = small_payload(values, cuts, laws=laws)
    return pieces.with_frame(number, coding=SMALL, payload=payload)


def packed_numbers(before, after, values, width):
    """The rotated values, or the folded steps, of units."""
    bits = 8 * width
    if values:
        return [(int(unit) << 1 | int(unit) >> bits - 1) % (1 << bits) for unit in after]
    steps = [(int(new) - int(old)) % (1 << bits) for old, new in zip(before, after)]
    return [2 * step if step < 1 << bits - 1 else 2 * ((1 << bits) - step) - 1 for step in steps]


def packed_form(numbers, low, code, first=0):
    """A form of these numbers, in which all lowest bits that differ have planes."""
    lowest = [number & (1 << low) - 1 for number in numbers]
    varying = 0
    for part in lowest:
        varying |= part ^ lowest[0]
    return Form(len(numbers), low, code, first, varying, lowest[0] & ~varying if numbers else 0)


def packed_planes(numbers, form):
    planes = b""
    for start in range(0, len(numbers), 64):
        group = numbers[start : start + 64]
        for bit in (bit for bit in range(form.low) if form.varying >> bit & 1):
            plane = sum((number >> bit & 1) << place for place, number in enumerate(group))
            planes += little_endian(plane, (len(group) + 7) // 8)
    return planes


def packed_payload(classes, cuts, width, states=32):
    """The payload of a packed coding from the numbers and the form of each class."""
    front, planes, escapes, coded, rests = bytes([len(cuts) + 1, *cuts]), b"", b"", [], []
    bits = BitWriter()
    for numbers, form in classes:
        front += varint(len(numbers))
        if not numbers:
            continue
        front += bytes([form.low | (form.code.bit_length() - 1) << 6])
        front += varint(form.first) + varint(form.varying) + varint(form.fixed)
        planes += packed_planes(numbers, form)
        escape = (1 << form.code) - 1
        parts = [((number >> form.low) - form.first) % (1 << 8 * width - form.low) for number in numbers]
        codes = [min(part, escape) for part in parts] + [0] * (-len(parts) % (8 // form.code))
        symbols = [
            sum(code << form.code * place for place, code in enumerate(codes[start : start + 8 // form.code]))
            for start in range(0, len(codes), 8 // form.code)
        ]
        beyond = [token_of(part - escape) for part in parts if part >= escape]
        rests += beyond
        escapes += varint(len(beyond))
        for tokens in filter(None, (symbols, [token for token, _, _ in beyond])):
            levels = levels_near_counts(tokens)
            write_table(bits, levels)
            coded.append((tokens, frequencies([weight(level) for level in levels])))
    for _, rest, extra in rests:
        bits.write(rest, extra)
    return front + planes + escapes + text(bits.bytes()) + rans_stream(coded, states)


def recode_packed(pieces, patch, number, old, new, values, low, code):
    """A copy of a patch's pieces in which one frame is packed with one class of this form."""
    roster, spans = patch.header.roster, patch.frames[number].spans
    before, after = (bucket_units(spans, roster, tensors) for tensors in (old, new))
    width = roster[spans[0].tensor].dtype.width
    numbers = packed_numbers(before, after, values, width)
    first = numbers[0] >> low if values else 0
    payload = packed_payload([(numbers, packed_form(numbers, low, code, first))], [], width)
    return pieces.with_frame(number, coding=PACKED_VALUES if values else PACKED_STEPS, payload=payload)


def rice_payload(numbers, width, low, rungs, thin):
    """The payload of coding 7 from the folded steps of all units."""
    payload = bytes([low, rungs, thin])
    for start in range(0, len(numbers), 4096):
        block = numbers[start : start + 4096]
        payload += rice_block(block + [0] * (-len(block) % 64), width, low, rungs, thin)
    return payload


def rice_block(numbers, width, low, rungs, thin):
    data = b"".join(bytes(number >> 8 * byte & 255 for number in numbers) for byte in range(low // 8))
    for bit in range(low // 8 * 8, low):
        data += rice_bits(number >> bit & 1 for number in numbers)
    parts = [number >> low for number in numbers]
    for rung in range(rungs):
        if parts:
            bits = rice_bits(part > 0 for part in parts)
            if rung == 0 and thin:
                bits = rice_bits(byte > 0 for byte in bits) + bytes(byte - 1 for byte in bits if byte > 0)
            data += bits
            parts = [part - 1 for part in parts if part > 0]
    return data + b"".join(little_endian(part, width) for part in parts)


def rice_bits(bits):
    bits = [int(bit) for bit in bits]
    return little_endian(sum(bit << place for place, bit in enumerate(bits)), (len(bits) + 7) // 8)


def recode_rice(pieces, patch, number, old, new, low, rungs, thin):
    """A copy of a patch's pieces in which one frame has all steps by Rice's code."""
    roster, spans = patch.header.roster, patch.frames[number].spans
    before, after = (bucket_units(spans, roster, tensors) for tensors in (old, new))
    width = roster[spans[0].tensor].dtype.width
    payload = rice_payload(packed_numbers(before, after, False, width), width, low, rungs, thin)
    return pieces.with_frame(number, coding=RICE_STEPS, payload=payload)
