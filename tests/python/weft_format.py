#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A second decoder of weft patches, written from doc/FORMAT.md alone.

It shares no code with the library: where the two agree, the page says what the library does. It is slow
and plain on purpose, and follows the page section by section. Where the page lets a reader refuse what no
writer writes (section 15), this one refuses, and so checks the writer too. A refusal is a FormatError with
the reason.

    weft_format.py apply BASE PATCH OUT     write the checkpoint that PATCH makes of BASE
    weft_format.py digest CKPT              print the digest of a checkpoint's state
    weft_format.py describe PATCH           print what a patch says, after checking all that needs no base
"""

import json
import pathlib
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import xxhash
import zstandard


class FormatError(Exception):
    """The input breaks a rule of the format, or is not what the patch was made for."""


def require(condition, reason):
    if not condition:
        raise FormatError(reason)


# Section 16: the fixed limits, and the defaults of a reader.
MAXIMUM_SIZE = 2**63
MAXIMUM_NAME = 4096
MAXIMUM_RANK = 16
MAXIMUM_LABELS = 1024
MAXIMUM_BUCKET_UNITS = 2**32
MAXIMUM_BUCKET_BYTES = 32 << 20
MAXIMUM_HEADER = 128 << 20
MAXIMUM_INDEX = 128 << 20
MAXIMUM_TENSORS = 2**20
MAXIMUM_FILES = 2**20


# ----------------------------------------------------------------------------------------------------------
# Section 1: conventions
# ----------------------------------------------------------------------------------------------------------


class Cursor:
    """Reads a byte string from front to back, and never past its end."""

    def __init__(self, data, what):
        self.data = data
        self.offset = 0
        self.what = what

    def left(self):
        return len(self.data) - self.offset

    def take(self, size):
        require(size <= self.left(), f"{self.what} ends early")
        piece = self.data[self.offset : self.offset + size]
        self.offset += size
        return piece

    def unsigned(self, size):
        return int.from_bytes(self.take(size), "little")

    def varint(self):
        value = 0
        for place in range(10):
            byte = self.unsigned(1)
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                require(byte != 0 or place == 0, f"{self.what}: varint not in shortest form")
                require(value < 2**64, f"{self.what}: varint above 64 bits")
                return value
        raise FormatError(f"{self.what}: varint of more than ten bytes")

    def text(self):
        return self.take(self.varint())

    def rest(self):
        return self.take(self.left())

    def finish(self):
        require(self.left() == 0, f"{self.what} has bytes left over")


class Bits:
    """A bit stream, lowest bit of the first byte first."""

    def __init__(self, data, what):
        self.data = data
        self.offset = 0
        self.what = what

    def read(self, count):
        end = self.offset + count
        require(end <= 8 * len(self.data), f"{self.what}: bits end early")
        window = int.from_bytes(self.data[self.offset // 8 : (end + 7) // 8], "little")
        value = (window >> (self.offset % 8)) & ((1 << count) - 1)
        self.offset = end
        return value

    def ones(self, limit):
        """Counts ones up to the 0 behind them, which is consumed, or up to the limit."""
        count = 0
        while count < limit and self.read(1) == 1:
            count += 1
        return count

    def finish(self):
        left = 8 * len(self.data) - self.offset
        require(left < 8, f"{self.what}: a byte or more of bits left over")
        require(self.read(left) == 0, f"{self.what}: padding bits are not zero")


def checksum(data):
    return xxhash.xxh3_64_intdigest(data)


def unzstd(data, size, what):
    """The content of one zstd frame, which must have the size given."""
    try:
        stated = zstandard.frame_content_size(data)
        require(stated in (-1, size), f"{what}: zstd content of another size than said")
        decoder = zstandard.ZstdDecompressor().decompressobj()
        content = decoder.decompress(data)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what}: not a zstd frame") from error
    require(decoder.eof, f"{what}: zstd frame ends early")
    require(not decoder.unused_data, f"{what}: bytes behind the zstd frame")
    require(len(content) == size, f"{what}: zstd content of another size than said")
    return content


def is_text(data):
    """Whether bytes are UTF-8 without zero bytes."""
    try:
        return "\0" not in bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return False


# ----------------------------------------------------------------------------------------------------------
# Section 5: dtypes and units
# ----------------------------------------------------------------------------------------------------------


class Dtype(NamedTuple):
    number: int
    name: str
    bits: int
    width: int

    @property
    def unit(self):
        """The numpy type of a unit."""
        return numpy.dtype(f"<u{self.width}")

    @property
    def units_per_word(self):
        return 16 // self.width


DTYPES = [
    Dtype(1, "BOOL", 8, 1),
    Dtype(2, "U8", 8, 1),
    Dtype(3, "I8", 8, 1),
    Dtype(4, "F8_E5M2", 8, 1),
    Dtype(5, "F8_E4M3", 8, 1),
    Dtype(6, "F8_E8M0", 8, 1),
    Dtype(7, "F8_E5M2FNUZ", 8, 1),
    Dtype(8, "F8_E4M3FNUZ", 8, 1),
    Dtype(9, "F4", 4, 1),
    Dtype(10, "F6_E2M3", 6, 1),
    Dtype(11, "F6_E3M2", 6, 1),
    Dtype(12, "U16", 16, 2),
    Dtype(13, "I16", 16, 2),
    Dtype(14, "F16", 16, 2),
    Dtype(15, "BF16", 16, 2),
    Dtype(16, "U32", 32, 4),
    Dtype(17, "I32", 32, 4),
    Dtype(18, "F32", 32, 4),
    Dtype(19, "U64", 64, 8),
    Dtype(20, "I64", 64, 8),
    Dtype(21, "F64", 64, 8),
    Dtype(22, "C64", 64, 8),
]
DTYPE_OF_NUMBER = {dtype.number: dtype for dtype in DTYPES}
DTYPE_OF_NAME = {dtype.name: dtype for dtype in DTYPES}


def tensor_bytes(dtype, shape):
    """The bytes of a tensor (section 4), if it is one that a patch can speak of."""
    widest = dtype.bits
    bits = dtype.bits
    for dimension in shape:
        widest *= max(dimension, 1)
        bits *= dimension
    require(widest < MAXIMUM_SIZE, "a tensor is too large")
    require(bits % 8 == 0, "a tensor is no whole number of bytes")
    return bits // 8


class Tensor:
    """A tensor with its content."""

    def __init__(self, dtype, shape, data):
        self.dtype = dtype
        self.shape = tuple(shape)
        self.padded = numpy.zeros((len(data) + 15) // 16 * 16, dtype=numpy.uint8)
        self.data = self.padded[: len(data)]
        self.data[:] = numpy.frombuffer(data, dtype=numpy.uint8)

    @classmethod
    def zeros(cls, dtype, shape):
        return cls(dtype, shape, bytes(tensor_bytes(dtype, shape)))

    def copy(self):
        return Tensor(self.dtype, self.shape, self.data.tobytes())

    def same_kind(self, entry):
        return self.dtype == entry.dtype and self.shape == entry.shape

    @property
    def units(self):
        """The units, as a view through which they can be changed."""
        return self.data.view(self.dtype.unit)

    def words(self):
        """The 16-byte words, a short last one filled up with zero bytes."""
        return self.padded.reshape(-1, 16)


# ----------------------------------------------------------------------------------------------------------
# Section 13: digests
# ----------------------------------------------------------------------------------------------------------


def field_product(left, right):
    """The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1."""
    product = 0
    while right:
        if right & 1:
            product ^= left
        left <<= 1
        if left > 255:
            left ^= 0x11B
        right >>= 1
    return product


def substitute(value):
    """The AES S-box, from its definition."""
    inverse = next((other for other in range(256) if field_product(value, other) == 1), 0)
    result = inverse ^ 0x63
    for turn in range(1, 5):
        result ^= (inverse << turn | inverse >> (8 - turn)) & 255
    return result


SUBSTITUTION = numpy.array([substitute(value) for value in range(256)], dtype=numpy.uint8)
DOUBLE = numpy.array([field_product(value, 2) for value in range(256)], dtype=numpy.uint8)
TRIPLE = numpy.array([field_product(value, 3) for value in range(256)], dtype=numpy.uint8)
FIRST_KEY = numpy.frombuffer(bytes.fromhex("243f6a8885a308d313198a2e03707344"), dtype=numpy.uint8)
SECOND_KEY = numpy.frombuffer(bytes.fromhex("a4093822299f31d0082efa98ec4e6c89"), dtype=numpy.uint8)


def aes_round(words, key):
    """One middle round of AES encryption for each of many words."""
    rows = []
    for row in range(4):
        columns = [4 * ((column + row) % 4) + row for column in range(4)]
        rows.append(SUBSTITUTION[words[:, columns]])
    mixed = numpy.empty_like(words)
    for row in range(4):
        first, second, third, fourth = (rows[(row + turn) % 4] for turn in range(4))
        mixed[:, row::4] = DOUBLE[first] ^ TRIPLE[second] ^ third ^ fourth
    return mixed ^ key


def mix(words, indices):
    """The mixes of words with their indices, as lanes: an array of two u64 for each word."""
    position = numpy.repeat(indices.astype("<u8"), 2).view(numpy.uint8).reshape(-1, 16)
    return aes_round(aes_round(aes_round(words, position), FIRST_KEY), SECOND_KEY).view("<u8")


def sum_of_words(words, indices):
    """The sum of mixes, lane by lane modulo 2^64."""
    total = numpy.zeros(2, dtype=numpy.uint64)
    for start in range(0, len(words), 1 << 16):
        part = slice(start, start + (1 << 16))
        total += mix(words[part], indices[part]).sum(axis=0, dtype=numpy.uint64)
    return total


def tensor_sum(tensor):
    words = tensor.words()
    return sum_of_words(words, numpy.arange(len(words), dtype=numpy.uint64))


def little_endian(value, size):
    return int(value).to_bytes(size, "little")


def kind_and_sum(tensor):
    """What a hash says about a tensor besides its name: dtype, rank, shape and sum."""
    shape = b"".join(little_endian(dimension, 8) for dimension in tensor.shape)
    lanes = b"".join(little_endian(lane, 8) for lane in tensor_sum(tensor))
    return bytes([tensor.dtype.number, len(tensor.shape)]) + shape + lanes


def tensor_value(tensor):
    return xxhash.xxh3_128_digest(b"weft-tensor-1" + kind_and_sum(tensor))


def state_digest(tensors):
    """The digest of a state, given as a dictionary from name (bytes) to Tensor."""
    said = [b"weft-state-1", little_endian(len(tensors), 8)]
    for name in sorted(tensors):
        said += [little_endian(len(name), 4), name, kind_and_sum(tensors[name])]
    return xxhash.xxh3_128_digest(b"".join(said))


# ----------------------------------------------------------------------------------------------------------
# Sections 3 and 4: preamble and header
# ----------------------------------------------------------------------------------------------------------

MAGIC = b"\x89WEFT\r\n\x1a"
END_MAGIC = b"WEFTEND1"
PROFILES = ["fast", "small", "smallest"]
FATES = ["kept", "added", "removed", "replaced"]
KEPT, ADDED, REMOVED, REPLACED = range(4)


@dataclass(frozen=True)
class Entry:
    """A tensor on the roster."""

    name: bytes
    fate: int
    dtype: Dtype
    shape: tuple

    @property
    def units(self):
        return tensor_bytes(self.dtype, self.shape) // self.dtype.width


@dataclass(frozen=True)
class File:
    """A safetensors file without its data; the name is empty if it is the only one."""

    name: bytes
    header: bytes


@dataclass(frozen=True)
class Files:
    """What a patch says about the files of the result: kind is none, same or given."""

    kind: str
    files: tuple = ()
    index: bytes | None = None


@dataclass(frozen=True)
class Header:
    version: int
    size: int
    profile: str
    roster: list
    files: Files
    labels: list
    recalls: int = 0


def read_header(data):
    preamble = Cursor(data, "preamble")
    require(preamble.take(8) == MAGIC, "not a weft patch: wrong magic")
    version = preamble.unsigned(2)
    require(version in LARGEST_CODING, f"version {version} is not known")
    require(preamble.unsigned(2) == 0, "unknown flags")
    stored_size = preamble.unsigned(4)
    raw_size = preamble.unsigned(4)
    require(stored_size <= raw_size, "the header is stored larger than it is")
    require(raw_size <= MAXIMUM_HEADER, "the header is beyond the limit")
    stored = preamble.take(stored_size)
    covered = preamble.offset
    require(preamble.unsigned(8) == checksum(data[:covered]), "the header's checksum does not match")
    body = stored if stored_size == raw_size else unzstd(stored, raw_size, "header")
    return read_header_body(body, version, preamble.offset)


def read_header_body(body, version, size):
    cursor = Cursor(body, "header")
    profile = cursor.unsigned(1)
    require(profile < len(PROFILES) and (version > 1 or profile < 2), "unknown profile")
    recalls = cursor.unsigned(1) if PROFILES[profile] == "smallest" else 0
    require(recalls <= RECALLED_VERSIONS, "a patch that recalls too much")
    roster = read_roster(cursor)
    files = read_files(cursor)
    labels = read_labels(cursor)
    cursor.finish()
    return Header(version, size, PROFILES[profile], roster, files, labels, recalls)


def read_roster(cursor):
    count = cursor.varint()
    require(count <= MAXIMUM_TENSORS, "too many tensors")
    roster = []
    for _ in range(count):
        roster.append(read_entry(cursor))
    for one, next_one in zip(roster, roster[1:]):
        require(one.name < next_one.name, "names of tensors do not ascend")
    result_bytes = sum(tensor_bytes(entry.dtype, entry.shape) for entry in roster if entry.fate != REMOVED)
    require(result_bytes < MAXIMUM_SIZE, "the result is too large")
    return roster


def read_entry(cursor):
    name = cursor.text()
    require(len(name) <= MAXIMUM_NAME, "a tensor's name is too long")
    require(is_text(name), "a tensor's name is not UTF-8 or holds a zero byte")
    fate = cursor.unsigned(1)
    require(fate < len(FATES), "unknown fate")
    number = cursor.unsigned(1)
    require(number in DTYPE_OF_NUMBER, "unknown dtype")
    rank = cursor.unsigned(1)
    require(rank <= MAXIMUM_RANK, "a tensor has too many dimensions")
    shape = tuple(cursor.varint() for _ in range(rank))
    tensor_bytes(DTYPE_OF_NUMBER[number], shape)
    return Entry(name, fate, DTYPE_OF_NUMBER[number], shape)


def unfold(text):
    """The header of a file from its folded form: lengths of data become pairs of offsets again."""
    output, following = bytearray(), 0
    position = 0
    while position < len(text):
        mark = text[position]
        position += 1
        if mark not in (1, 2):
            output.append(mark)
            continue
        end = text.find(b"]", position)
        digits = text[position:end] if end >= 0 else b""
        require(digits.isdigit() and (digits == b"0" or digits[:1] != b"0"), "broken offsets in a folded header")
        position = end + 1
        separator = b", " if mark == 2 else b","
        output += b"[%d" % following + separator
        following += int(digits)
        require(following < 1 << 63, "broken offsets in a folded header")
        output += b"%d]" % following
    return bytes(output)


def read_files(cursor):
    kind = cursor.unsigned(1)
    require(kind < 4, "unknown kind of files")
    if kind < 2:
        return Files(["none", "same"][kind])
    sharded = cursor.unsigned(1)
    require(sharded < 2, "sharded is neither 0 nor 1")
    count = cursor.varint()
    require(1 <= count <= MAXIMUM_FILES, "no files, or too many")
    require(sharded or count == 1, "several files that are not sharded")
    files = tuple(File(cursor.text(), cursor.text()) for _ in range(count))
    if kind == 3:
        files = tuple(File(file.name, unfold(file.header)) for file in files)
    for one, next_one in zip(files, files[1:]):
        require(one.name < next_one.name, "names of files do not ascend")
    for file in files:
        require(is_text(file.name), "a file's name is not UTF-8 or holds a zero byte")
        require(bool(file.name) == bool(sharded), "a shard without a name, or a single file with one")
    return Files("given", files, cursor.text() if sharded else None)


def read_labels(cursor):
    count = cursor.varint()
    require(count <= MAXIMUM_LABELS, "too many labels")
    labels = [(cursor.text(), cursor.text()) for _ in range(count)]
    for key, value in labels:
        require(is_text(key) and is_text(value), "a label is not UTF-8 or holds a zero byte")
    return labels


# ----------------------------------------------------------------------------------------------------------
# Section 6: spans and buckets
# ----------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    tensor: int
    start: int
    run: int
    stride: int
    count: int

    @property
    def units(self):
        return self.run * self.count

    @property
    def column(self):
        return self.start % self.stride

    @property
    def row(self):
        return self.start // self.stride

    def unit_indices(self):
        """The units of the tensor that the span covers, in linear order."""
        starts = self.start + numpy.arange(self.count, dtype=numpy.int64) * self.stride
        return (starts[:, None] + numpy.arange(self.run, dtype=numpy.int64)).reshape(-1)

    def word_indices(self, dtype):
        """The words of the tensor that the span covers: those of every so-many-th unit."""
        return self.unit_indices()[:: dtype.units_per_word] // dtype.units_per_word


def read_spans(cursor, roster):
    spans = []
    end_of_whole = None
    for _ in range(cursor.varint()):
        kind = cursor.unsigned(1)
        tensor = cursor.varint()
        require(tensor < len(roster), "a span of a tensor that is not on the roster")
        if kind == 0:
            require(tensor != end_of_whole, "two records of whole tensors where one would do")
            count = cursor.varint()
            end_of_whole = tensor + count
            require(count >= 1, "a record of no tensors")
            require(end_of_whole <= len(roster), "a span of a tensor that is not on the roster")
            spans += [Span(t, 0, roster[t].units, 0, 1) for t in range(tensor, end_of_whole)]
        elif kind == 1:
            spans.append(Span(tensor, cursor.varint(), cursor.varint(), 0, 1))
            end_of_whole = None
        elif kind == 2:
            spans.append(Span(tensor, *(cursor.varint() for _ in range(4))))
            require(spans[-1].stride >= 1, "a box without stride")
            end_of_whole = None
        else:
            raise FormatError("unknown kind of span")
    for span in spans:
        check_span(span, roster[span.tensor])
    check_bucket(spans, roster)
    return spans


def check_span(span, entry):
    def is_whole_words(units):
        return units * entry.dtype.width % 16 == 0

    require(entry.fate != REMOVED, "a span of a tensor that is removed")
    require(span.run >= 1 and span.count >= 1, "an empty span")
    require(is_whole_words(span.start), "a span that starts within a word")
    end = span.start + (span.count - 1) * span.stride + span.run
    require(end <= entry.units, "a span that leaves its tensor")
    if span.stride == 0:
        require(is_whole_words(span.run) or end == entry.units, "a span that ends within a word")
    else:
        require(is_whole_words(span.run), "a box whose runs end within a word")
        require(is_whole_words(span.stride), "a box whose rows end within a word")
        require(span.run <= span.stride - span.column, "a box whose runs cross the end of a row")


def check_bucket(spans, roster):
    require(spans, "a bucket without spans")
    entries = [roster[span.tensor] for span in spans]
    units = sum(span.units for span in spans)
    require(units < MAXIMUM_BUCKET_UNITS, "a bucket of too many units")
    require(units * entries[0].dtype.width <= MAXIMUM_BUCKET_BYTES, "a bucket beyond the limit")
    require(len({entry.dtype for entry in entries}) == 1, "a bucket of several dtypes")
    require(len({entry.fate == KEPT for entry in entries}) == 1, "a bucket of kept tensors and others")


def check_coverage(buckets, roster):
    """No unit is covered twice, boxes fit together, and what is new is covered completely."""
    by_tensor = {number: [] for number in range(len(roster))}
    for spans in buckets:
        for span in spans:
            by_tensor[span.tensor].append(span)
    for number, spans in by_tensor.items():
        require(len({span.stride for span in spans}) <= 1, "spans of one tensor that differ in stride")
        if spans and spans[0].stride == 0:
            check_flat_coverage(spans)
        else:
            check_box_coverage(spans)
        if roster[number].fate in (ADDED, REPLACED):
            covered = sum(span.units for span in spans)
            require(covered == roster[number].units, "a new tensor that is not covered completely")


def check_flat_coverage(spans):
    ordered = sorted(spans, key=lambda span: span.start)
    for one, next_one in zip(ordered, ordered[1:]):
        require(one.start + one.run <= next_one.start, "units covered twice")


def check_box_coverage(boxes):
    ordered = sorted(boxes, key=lambda box: (box.column, box.start))
    for one, next_one in zip(ordered, ordered[1:]):
        if one.column == next_one.column:
            require(one.run == next_one.run, "boxes whose columns overlap in part")
            require(one.row + one.count <= next_one.row, "units covered twice")
        else:
            require(one.column + one.run <= next_one.column, "boxes whose columns overlap in part")


# ----------------------------------------------------------------------------------------------------------
# Sections 7, 11 and 12: frames, index and footer
# ----------------------------------------------------------------------------------------------------------

CODINGS = {1: "fast", 2: "small", 3: "difference", 4: "values", 5: "packed steps", 6: "packed values", 7: "rice steps", 8: "smallest"}
FAST, SMALL, DIFFERENCE, VALUES, PACKED_STEPS, PACKED_VALUES, RICE_STEPS, SMALLEST = CODINGS
LARGEST_CODING = {1: VALUES, 2: SMALLEST}  # by version
FOOTER_SIZE = 92


class IndexRecord(NamedTuple):
    length: int
    checksum: int
    spans: list


@dataclass(frozen=True)
class Frame:
    length: int
    coding: int
    spans: list
    changed: int
    delta: tuple
    payload: bytes
    place: int  # of the bucket: what is recalled of it is kept under that

    @property
    def units(self):
        return sum(span.units for span in self.spans)


@dataclass(frozen=True)
class Footer:
    index_offset: int
    index_bytes: int
    base: bytes
    result: bytes
    changed: int
    total: int
    dense_bytes: int


@dataclass(frozen=True)
class Patch:
    size: int
    header: Header
    frames: list
    footer: Footer


def parse_patch(data):
    """Reads a whole patch and checks all that can be checked without the base."""
    header = read_header(data)
    footer = read_footer(data)
    require(footer.index_offset >= header.size, "the index lies in the header")
    check_totals(footer, header.roster)
    records = read_index(data, footer, header.roster)
    check_coverage([record.spans for record in records], header.roster)
    frames = read_frames(data[header.size : footer.index_offset], records, header)
    return Patch(len(data), header, frames, footer)


def read_footer(data):
    require(data[-8:] == END_MAGIC, "wrong end magic: the file was cut short")
    require(len(data) >= FOOTER_SIZE, "the file has no room for a footer")
    cursor = Cursor(data[-FOOTER_SIZE:], "footer")
    footer = Footer(
        index_offset=cursor.unsigned(8),
        index_bytes=cursor.unsigned(4),
        base=cursor.take(16),
        result=cursor.take(16),
        changed=cursor.unsigned(8),
        total=cursor.unsigned(8),
        dense_bytes=cursor.unsigned(8),
    )
    require(cursor.unsigned(8) == 0, "the reserved field of the footer is not zero")
    expected_size = footer.index_offset + footer.index_bytes + FOOTER_SIZE
    require(expected_size == len(data), "the index does not end at the footer")
    require(footer.index_bytes <= MAXIMUM_INDEX, "the index is beyond the limit")
    require(
        cursor.unsigned(8) == checksum(data[footer.index_offset : -16]),
        "the checksum of index and footer does not match",
    )
    return footer


def check_totals(footer, roster):
    result = [entry for entry in roster if entry.fate != REMOVED]
    require(footer.total == sum(entry.units for entry in result), "the footer counts other units")
    size = sum(tensor_bytes(entry.dtype, entry.shape) for entry in result)
    require(footer.dense_bytes == size, "the footer counts other bytes")


def read_index(data, footer, roster):
    start = footer.index_offset
    cursor = Cursor(data[start : start + footer.index_bytes], "index")
    records = []
    for _ in range(cursor.varint()):
        records.append(IndexRecord(cursor.varint(), cursor.unsigned(8), read_spans(cursor, roster)))
    cursor.finish()
    return records


def read_frames(data, records, header):
    cursor = Cursor(data, "frames")
    frames = []
    for record in records:
        frames.append(read_frame(cursor.take(record.length), record, header))
    cursor.finish()
    return frames


def read_frame(data, record, header):
    roster = header.roster
    require(len(data) >= 12, "a frame is too short")
    stored_checksum = int.from_bytes(data[-8:], "little")
    require(stored_checksum == checksum(data[:-8]), "a frame's checksum does not match")
    require(stored_checksum == record.checksum, "a frame's checksum is not the index's")
    cursor = Cursor(data[:-8], "frame")
    length = cursor.unsigned(4)
    require(length == record.length, "a frame's length is not the index's")
    coding = cursor.unsigned(1)
    require(1 <= coding <= LARGEST_CODING[header.version], "unknown coding")
    require(coding != SMALLEST or header.profile == "smallest", "unknown coding")
    begin = cursor.offset
    spans = read_spans(cursor, roster)
    place = checksum(data[begin : cursor.offset])
    require(spans == record.spans, "a frame's spans are not the index's")
    changed = cursor.varint()
    delta = (cursor.unsigned(8), cursor.unsigned(8))
    frame = Frame(length, coding, spans, changed, delta, cursor.rest(), place)
    require(1 <= changed <= frame.units, "a frame of no changes, or of more than there are units")
    is_kept = roster[spans[0].tensor].fate == KEPT
    require(is_kept or coding in (VALUES, PACKED_VALUES), "new tensors that are not coded as values")
    require(is_kept or coding == VALUES or changed == frame.units, "new tensors of which not all units are changed")
    require(coding not in (SMALL, SMALLEST) or changed <= frame.units // 2, "coding small with more than half changed")
    require(coding != SMALLEST or roster[spans[0].tensor].dtype.name in RECALLED_DTYPES, "no dtype for coding smallest")
    return frame


# ----------------------------------------------------------------------------------------------------------
# Section 8: coding fast
# ----------------------------------------------------------------------------------------------------------


def check_magnitude(magnitude, is_negative, width):
    """No writer goes further than half way round, and there it goes down."""
    half = 1 << (8 * width - 1)
    require(magnitude < half or (magnitude == half and is_negative), "a step that no writer writes")


def decode_fast(frame, dtype):
    """Positions and steps of a frame of coding fast."""
    low_bits = Cursor(frame.payload, "payload").unsigned(1)
    require(low_bits <= 28, "k is above 28")
    bits = Bits(frame.payload[1:], "payload")
    positions, steps = [], []
    following = 0
    for _ in range(frame.changed):
        position = following + read_fast_gap(bits, low_bits)
        require(position < frame.units, "a position outside of the bucket")
        positions.append(position)
        following = position + 1
        steps.append(read_fast_step(bits, dtype.width))
    bits.finish()
    return positions, steps


def read_fast_gap(bits, low_bits):
    quotient = bits.ones(24)
    if quotient < 24:
        return quotient << low_bits | bits.read(low_bits)
    gap = bits.read(32)
    require(gap >> low_bits >= 24, "an escape where the short code would do")
    return gap


def read_fast_step(bits, width):
    exponent = bits.ones(8 * width)
    require(exponent < 8 * width, "a step with too many bits")
    magnitude = 1 << exponent | bits.read(exponent)
    is_negative = bits.read(1) == 1
    check_magnitude(magnitude, is_negative, width)
    return (-magnitude if is_negative else magnitude) % (1 << 8 * width)


# ----------------------------------------------------------------------------------------------------------
# Section 9: coding small
# ----------------------------------------------------------------------------------------------------------

EXPONENT_SHIFT = {"BF16": 7, "F16": 10, "F32": 23}
EXPONENT_SHIFT |= {"F8_E5M2": 2, "F8_E5M2FNUZ": 2, "F8_E4M3": 3, "F8_E4M3FNUZ": 3}
TABLE_SLOTS = 4096
PACKED_STATES = 32
STATE_FLOOR = 1 << 16
LAW_POWERS = (1, 2, 3, 6)


class Table(NamedTuple):
    frequency: list
    start: list
    token_of_slot: list


class Rans:
    """The states of a rANS stream, four or more, and the words that refill them."""

    def __init__(self, stream, states=4):
        self.words = Cursor(stream, "rANS stream")
        self.states = [self.words.unsigned(4) for _ in range(states)]
        require(min(self.states) >= STATE_FLOOR, "a rANS state is too small")

    def read_array(self, table, count):
        tokens = []
        for place in range(count):
            state = self.states[place % len(self.states)]
            slot = state % TABLE_SLOTS
            token = table.token_of_slot[slot]
            state = table.frequency[token] * (state // TABLE_SLOTS) + slot - table.start[token]
            if state < STATE_FLOOR:
                state = state << 16 | self.words.unsigned(2)
            self.states[place % len(self.states)] = state
            tokens.append(token)
        return tokens

    def finish(self):
        self.words.finish()
        require(set(self.states) == {STATE_FLOOR}, "the rANS stream does not end as it should")


def decode_small(frame, dtype, before):
    """Positions and steps of a frame of coding small; before are the old units of the bucket."""
    return decode_classes(frame.payload, frame.changed, dtype, dtype, frame.units,
                          lambda cuts: class_members(before, cuts, dtype))


def decode_classes(payload, changed, dtype, cut_by, units, members_of):
    """The same of a payload; members_of gives what the ranks of each class count."""
    cursor = Cursor(payload, "payload")
    laws = payload[:1] >= b"\x80"
    cuts = read_cuts(cursor, cut_by, laws)
    counts = [cursor.varint() for _ in range(len(cuts) + 1)]
    require(sum(counts) == changed, "the classes' changes are not those of the frame")
    bits = Bits(cursor.take(cursor.varint()), "payload")
    limit = 64 if dtype.width == 2 else 128
    read_gaps = (lambda: read_either(bits, False, 128)) if laws else (lambda: read_table(bits, 128))
    read_codes = (lambda: read_either(bits, True, limit)) if laws else (lambda: read_table(bits, 256))
    tables = [(read_gaps(), read_codes()) if count else None for count in counts]
    rans = Rans(cursor.rest())
    positions, steps = [], []
    for count, pair, members in zip(counts, tables, members_of(cuts)):
        if count:
            ranks = read_ranks(rans.read_array(pair[0], count), bits, units)
            require(ranks[-1] < len(members), "a rank that its class does not have in the base")
            positions += [int(members[rank]) for rank in ranks]
            steps += read_steps(rans.read_array(pair[1], count), bits, dtype.width)
    bits.finish()
    rans.finish()
    return positions, steps


def read_cuts(cursor, dtype, laws=False):
    """Of exponents, or without a dtype of contexts."""
    classes = cursor.unsigned(1) - (128 if laws else 0)
    require(1 <= classes <= 8, "no classes, or too many")
    require(classes == 1 or dtype is None or dtype.name in EXPONENT_SHIFT, "classes of a dtype that has none")
    cuts = [cursor.unsigned(1) for _ in range(classes - 1)]
    for cut in cuts:
        largest = 255 if dtype is None else exponent_in((1 << 8 * dtype.width) - 1, dtype)
        require(1 <= cut <= largest, "a cut that is no exponent")
    for one, next_one in zip(cuts, cuts[1:]):
        require(one < next_one, "cuts do not ascend")
    return cuts


def exponent_in(units, dtype):
    """The exponent: all above the mantissa but the sign."""
    return (units & (1 << 8 * dtype.width - 1) - 1) >> EXPONENT_SHIFT[dtype.name]


def class_members(before, cuts, dtype):
    """For each class the positions of its units, ascending: what a rank counts."""
    if not cuts:
        return [numpy.arange(len(before))]
    exponents = exponent_in(before, dtype)
    classes = sum((exponents >= cut).astype(int) for cut in cuts)
    return [numpy.flatnonzero(classes == number) for number in range(len(cuts) + 1)]


def decode_smallest(frame, dtype, before, recent):
    """The same of coding smallest; recent has position, age and direction of what changed lately, ascending."""
    cursor = Cursor(frame.payload, "payload")
    items = b"".join((p << 32 | age << 1 | down).to_bytes(8, "little") for p, age, down in recent)
    require(cursor.unsigned(4) == checksum(items) % 2**32, "other recent changes than the patch was coded with")
    places = numpy.array([p for p, _, _ in recent], dtype=int)
    exponents = (before & 0x7FFF) >> EXPONENT_SHIFT[dtype.name]
    contexts = numpy.array([128 * (age > 1) for _, age, _ in recent], dtype=int)
    contexts += numpy.minimum(exponents[places], 127)
    known = cursor.varint()
    require(known <= frame.changed, "more recent changes than changes")
    positions, steps = [], []
    if known:
        payload = cursor.take(cursor.varint())
        ranks, codes = decode_classes(payload, known, dtype, None, len(recent),
                                      lambda cuts: members_by(contexts, cuts, numpy.arange(len(recent))))
        positions = [int(places[rank]) for rank in ranks]
        steps = [-step % 2**16 if recent[rank][2] else step for rank, step in zip(ranks, codes)]
    if known < frame.changed:
        others = numpy.setdiff1d(numpy.arange(frame.units), places)
        more = decode_classes(cursor.rest(), frame.changed - known, dtype, dtype, frame.units,
                              lambda cuts: members_by(exponents[others], cuts, others))
        positions, steps = positions + more[0], steps + more[1]
    cursor.finish()
    return positions, steps


def members_by(values, cuts, places):
    classes = sum(((values >= cut).astype(int) for cut in cuts), numpy.zeros(len(values), dtype=int))
    return [places[classes == number] for number in range(len(cuts) + 1)]


RECALLED_VERSIONS = 8
RECALLED_DTYPES = ("BF16", "F16")
RECALLED_SHARE = 64


class Recall:
    """Which units changed in the versions that were followed one by one, by bucket."""

    def __init__(self):
        self.versions = 0
        self.buckets = {}  # place: {position: (version, down)}

    def recent(self, frame, depth):
        items = sorted((p, self.versions + 1 - version, down)
                       for p, (version, down) in self.buckets.get(frame.place, {}).items())
        return [item for item in items if item[1] <= depth and item[0] < frame.units]

    def end(self, kept):
        """Of a version; only those of the profile smallest, and those that change nothing, are recalled."""
        self.versions = self.versions + 1 if kept else 0
        self.buckets = self.buckets if kept else {}

    def note(self, frame, dtype, before, after):
        if dtype.name not in RECALLED_DTYPES:
            return
        if frame.coding not in (FAST, SMALL, SMALLEST) or frame.changed > frame.units // RECALLED_SHARE:
            self.buckets[frame.place] = {}
            return
        bucket = self.buckets.setdefault(frame.place, {})
        for position in numpy.flatnonzero(before != after):
            down = (int(after[position]) - int(before[position])) % 2**16 >> 15
            bucket[int(position)] = (self.versions + 1, down)


def read_value(token, bits):
    """The value of a token, with the plain bits that follow it."""
    if token < 16:
        return token
    extra = 2 + (token - 16) // 4
    return ((4 + (token - 16) % 4) << extra) + bits.read(extra)


def read_ranks(tokens, bits, units):
    ranks = []
    following = 0
    for token in tokens:
        rank = following + read_value(token, bits)
        require(rank < units, "a rank outside of the bucket")
        ranks.append(rank)
        following = rank + 1
    return ranks


def read_steps(tokens, bits, width):
    return [step_of(read_value(token, bits), width) for token in tokens]


def step_of(code, width):
    require(code < 1 << 8 * width, "a step with too many bits")
    magnitude = code // 2 + 1
    is_negative = code % 2 == 1
    check_magnitude(magnitude, is_negative, width)
    return (-magnitude if is_negative else magnitude) % (1 << 8 * width)


def read_table(bits, most_tokens):
    levels = read_levels(bits)
    require(len(levels) <= most_tokens, "a table of gaps with too many tokens")
    return table_of(frequencies([weight(level) for level in levels]))


def table_of(frequency):
    start, token_of_slot = [], []
    for token, slots in enumerate(frequency):
        start.append(len(token_of_slot))
        token_of_slot += [token] * slots
    return Table(frequency, start, token_of_slot)


def read_levels(bits):
    levels = []
    level = 0
    for _ in range(bits.read(8) + 1):
        code = bits.ones(15)
        if code == 15:
            jump = bits.read(7)
            require(not -7 <= jump - level <= 7, "an escape where the short code would do")
            level = jump
        elif code % 2 == 1:
            level -= (code + 1) // 2
        else:
            level += code // 2
        require(0 <= level <= 64, "a level outside of its range")
        levels.append(level)
    require(levels[-1] != 0, "a table that ends with a token that does not occur")
    return levels


def weight(level):
    return (4 + (level - 1) % 4) << (level - 1) // 4 if level else 0


def read_either(bits, steps, limit):
    """A table of a payload in which tables may follow laws."""
    if bits.read(1) == 0:
        return read_table(bits, 256 if steps else 128)
    scale, shape, zeros = bits.read(7), bits.read(2), 0
    while bits.read(1) == 0:
        zeros += 1
        require(zeros < 8, "a law of too many tokens")
    more = (1 << zeros | bits.read(zeros)) - 1
    return table_of(frequencies(law_weights(scale, shape, more, steps, limit)))


def law_weights(scale, shape, more, steps, limit):
    """What the tokens of a law weigh."""
    power = LAW_POWERS[shape]
    a = (4 + scale % 4) << (scale // 4 + power)

    def chance(x):
        value = (a << 24) // (a + (x << 8))
        for _ in range(power):
            value = value * value >> 24
        return value

    def chance_from(token):
        first = token if token < 16 else (4 + (token - 16) % 4) << 2 + (token - 16) // 4
        if not steps:
            return chance(first)
        half = chance(first // 2)
        return half if first % 2 == 0 else (half + chance(first // 2 + 1)) // 2

    weights = [chance_from(token) - chance_from(token + 1) for token in range(128)]
    own = min(1 + max(token for token in range(128) if weights[token] >= 2048), limit)
    require(own + more <= limit, "a law of too many tokens")
    return [max(weight, 1) for weight in weights[: own + more]]


def frequencies(weights):
    total = sum(weights)
    result = [weight * TABLE_SLOTS // total for weight in weights]
    result = [1 if weight > 0 and slots == 0 else slots for weight, slots in zip(weights, result)]
    left = TABLE_SLOTS - sum(result)
    while left != 0:
        largest = result.index(max(result))
        move = left if left > 0 else -min(-left, result[largest] // 2)
        result[largest] += move
        left -= move
    return result


# ----------------------------------------------------------------------------------------------------------
# Section 10: codings difference, values, packed steps, packed values and rice steps
# ----------------------------------------------------------------------------------------------------------


def read_planes(frame, dtype):
    """The folded values of all units."""
    content = unzstd(frame.payload, frame.units * dtype.width, "payload")
    planes = numpy.frombuffer(content, dtype=numpy.uint8).reshape(dtype.width, frame.units)
    return planes.T.copy().view(dtype.unit).reshape(-1)


def unfold_steps(folded):
    one = folded.dtype.type(1)
    return (folded >> one) ^ (folded.dtype.type(0) - (folded & one))


def unfold_values(folded, width):
    return folded if width == 1 else rotate_right(folded, width)


def rotate_right(folded, width):
    one = folded.dtype.type(1)
    return (folded >> one) | (folded << folded.dtype.type(8 * width - 1))


class Form(NamedTuple):
    """How the numbers of a class are packed."""

    units: int
    low: int
    code: int
    first: int
    varying: int
    fixed: int


def decode_packed(frame, dtype, before):
    """The numbers of all units, folded steps or rotated values; before are the old units of the bucket."""
    cursor = Cursor(frame.payload, "payload")
    cuts = read_cuts(cursor, dtype)
    require(not cuts or frame.coding == PACKED_STEPS, "classes of values")
    forms = [read_form(cursor, 8 * dtype.width) for _ in range(len(cuts) + 1)]
    require(sum(form.units for form in forms) == frame.units, "the classes' units are not those of the bucket")
    low_parts = [read_low_parts(cursor, form) for form in forms]
    escapes = [cursor.varint() if form.units else 0 for form in forms]
    bits = Bits(cursor.take(cursor.varint()), "payload")
    tables = []
    for form, count in zip(forms, escapes):
        require(count <= form.units, "more escapes than units")
        codes = read_table(bits, 256) if form.units else None
        tables.append((codes, read_table(bits, 256) if count else None))
    rans = Rans(cursor.rest(), PACKED_STATES)
    numbers = numpy.zeros(frame.units, dtype=dtype.unit)
    for form, low, count, pair, members in zip(forms, low_parts, escapes, tables, class_members(before, cuts, dtype)
                                               if cuts else [numpy.arange(frame.units)]):
        require(len(members) == form.units, "a class has other units in the base")
        if form.units:
            upper = read_upper_parts(form, count, pair, rans, bits, 8 * dtype.width)
            numbers[members] = [high << form.low | rest for high, rest in zip(upper, low)]
    bits.finish()
    rans.finish()
    return numbers


def read_form(cursor, width):
    units = cursor.varint()
    if units == 0:
        return Form(0, 0, 1, 0, 0, 0)
    form = cursor.unsigned(1)
    low, code = form & 63, 1 << (form >> 6)
    first, varying, fixed = (cursor.varint() for _ in range(3))
    require(low < width, "a form without an upper part")
    require(first < 1 << width - low, "a first upper part with too many bits")
    require(varying | fixed < 1 << low and not varying & fixed, "lowest bits that contradict each other")
    return Form(units, low, code, first, varying, fixed)


def read_low_parts(cursor, form):
    """The lowest bits of the units of a class, from its planes."""
    planes = [bit for bit in range(form.low) if form.varying >> bit & 1]
    parts = []
    for start in range(0, form.units, 64):
        count = min(64, form.units - start)
        group = [form.fixed] * count
        for bit in planes:
            plane = cursor.unsigned((count + 7) // 8)
            require(plane < 1 << count, "padding bits of a plane are not zero")
            group = [part | (plane >> place & 1) << bit for place, part in enumerate(group)]
        parts += group
    return parts


def read_upper_parts(form, escapes, tables, rans, bits, width):
    per_symbol, escape = 8 // form.code, (1 << form.code) - 1
    symbols = rans.read_array(tables[0], (form.units + per_symbol - 1) // per_symbol)
    codes = [symbol >> form.code * place & escape for symbol in symbols for place in range(per_symbol)]
    require(not any(codes[form.units :]), "padding codes are not zero")
    codes = codes[: form.units]
    require(codes.count(escape) == escapes, "another number of escapes")
    tokens = iter(rans.read_array(tables[1], escapes) if escapes else [])
    limit = 1 << width - form.low
    parts = []
    for code in codes:
        part = code if code < escape else escape + read_value(next(tokens), bits)
        require(part < limit, "an upper part with too many bits")
        parts.append((part + form.first) % limit)
    return parts


RICE_BLOCK, RICE_GROUP, RICE_RUNGS = 4096, 64, 16


def decode_rice(frame, dtype):
    """The folded steps of all units."""
    cursor, bits = Cursor(frame.payload, "payload"), 8 * dtype.width
    low, rungs, thin = (cursor.unsigned(1) for _ in range(3))
    require(low < bits and rungs <= RICE_RUNGS and thin <= 1, "no form of Rice's code")
    numbers = []
    for start in range(0, frame.units, RICE_BLOCK):
        count = min(RICE_BLOCK, frame.units - start)
        numbers += read_rice_block(cursor, -(-count // RICE_GROUP) * RICE_GROUP, dtype.width, low, rungs, thin)[:count]
    require(not cursor.rest(), "bytes behind the last block")
    return numpy.array([number % (1 << bits) for number in numbers], dtype=dtype.unit)


def read_rice_block(cursor, count, width, low, rungs, thin):
    lowest = [0] * count
    for byte in range(low // 8):
        lowest = [part | value << 8 * byte for part, value in zip(lowest, cursor.take(count))]
    for bit in range(low // 8 * 8, low):
        lowest = [part | value << bit for part, value in zip(lowest, read_bits(cursor.take(count // 8), count))]
    ladder, left = [], count
    for rung in range(rungs):
        if left > 0:
            ladder.append(read_bits(read_ground(cursor, count, thin) if rung == 0 else cursor.take((left + 7) // 8), left))
            left = sum(ladder[-1])
    parts = [cursor.unsigned(width) for _ in range(left)]
    for rung in reversed(ladder):
        above = iter(parts)
        parts = [next(above) + 1 if bit else 0 for bit in rung]
    return [part << low | rest for part, rest in zip(parts, lowest)]


def read_ground(cursor, count, thin):
    if not thin:
        return cursor.take(count // 8)
    return bytes(cursor.unsigned(1) + 1 & 255 if bit else 0 for bit in read_bits(cursor.take(count // 64), count // 8))


def read_bits(data, count):
    bits = [byte >> place & 1 for byte in data for place in range(8)]
    require(not any(bits[count:]), "padding bits of a rung are not zero")
    return bits[:count]


# ----------------------------------------------------------------------------------------------------------
# Section 14: applying a patch
# ----------------------------------------------------------------------------------------------------------


def decode_frame(frame, dtype, before, recall, depth):
    """The new units of a bucket; before are the old ones, or None for new tensors."""
    if frame.coding == VALUES:
        return unfold_values(read_planes(frame, dtype), dtype.width)
    if frame.coding == PACKED_VALUES:
        return rotate_right(decode_packed(frame, dtype, before), dtype.width)
    if frame.coding == PACKED_STEPS:
        return before + unfold_steps(decode_packed(frame, dtype, before))
    if frame.coding == RICE_STEPS:
        return before + unfold_steps(decode_rice(frame, dtype))
    if frame.coding == DIFFERENCE:
        return before + unfold_steps(read_planes(frame, dtype))
    if frame.coding == FAST:
        positions, steps = decode_fast(frame, dtype)
    elif frame.coding == SMALLEST:
        require(recall is not None and recall.versions >= depth, "the patch recalls versions that are not known")
        positions, steps = decode_smallest(frame, dtype, before, recall.recent(frame, depth))
        require(len(set(positions)) == len(positions), "a unit that changes twice")
    else:
        positions, steps = decode_small(frame, dtype, before)
    after = before.copy()
    after[positions] += numpy.array(steps, dtype=dtype.unit)
    return after


def compare_roster(roster, tensors):
    """The tensors at hand are the base's: kept and removed ones as given, replaced ones of another kind."""
    expected = {entry.name: entry for entry in roster if entry.fate != ADDED}
    require(set(expected) == set(tensors), "the base has other tensors than the patch's")
    for name, entry in expected.items():
        if entry.fate == REPLACED:
            require(not tensors[name].same_kind(entry), "a tensor that is replaced by its like")
        else:
            require(tensors[name].same_kind(entry), "a tensor of the base has another dtype or shape")


def bucket_delta(spans, roster, old, new):
    """What a bucket does to the digest's lanes: all of its words count, changed or not."""
    delta = numpy.zeros(2, dtype=numpy.uint64)
    for span in spans:
        entry = roster[span.tensor]
        indices = span.word_indices(entry.dtype)
        delta += sum_of_words(new[entry.name].words()[indices], indices)
        if entry.fate == KEPT:
            delta -= sum_of_words(old[entry.name].words()[indices], indices)
    return tuple(int(lane) for lane in delta)


def bucket_units(spans, roster, tensors):
    """The units of a bucket in linear order."""
    return numpy.concatenate(
        [tensors[roster[span.tensor].name].units[span.unit_indices()] for span in spans]
    )


def apply_frame(frame, roster, old, new, recall, depth):
    """Puts one bucket's new units into the new tensors, and proves it by its delta."""
    first = roster[frame.spans[0].tensor]
    before = bucket_units(frame.spans, roster, old) if first.fate == KEPT else None
    after = decode_frame(frame, first.dtype, before, recall, depth)
    if recall is not None and before is not None:
        recall.note(frame, first.dtype, before, after)
    done = 0
    for span in frame.spans:
        new[roster[span.tensor].name].units[span.unit_indices()] = after[done : done + span.units]
        done += span.units
    delta = bucket_delta(frame.spans, roster, old, new)
    require(delta == frame.delta, "a bucket's delta does not match")


def decode_state(patch, old, recall=None):
    """The tensors of the result, from those of the base. With a recall, the patch is of the next version."""
    roster = patch.header.roster
    compare_roster(roster, old)
    require(state_digest(old) == patch.footer.base, "the base is another one: its digest does not match")
    new = {}
    for entry in roster:
        if entry.fate == KEPT:
            new[entry.name] = old[entry.name].copy()
        elif entry.fate != REMOVED:
            new[entry.name] = Tensor.zeros(entry.dtype, entry.shape)
    for frame in patch.frames:
        apply_frame(frame, roster, old, new, recall, patch.header.recalls)
    if recall is not None:
        recall.end(patch.header.profile == "smallest" or not patch.frames)
    require(state_digest(new) == patch.footer.result, "the digest of the result does not match")
    return new


def apply_patch(base, patch, recall=None):
    """The checkpoint that a patch makes of another."""
    new = decode_state(patch, base.tensors(), recall)
    is_given = patch.header.files.kind == "given"
    return build_checkpoint(patch.header.files if is_given else base.files, new)


# ----------------------------------------------------------------------------------------------------------
# Checkpoints: safetensors files, single or sharded
# ----------------------------------------------------------------------------------------------------------

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"


class Place(NamedTuple):
    """Where a header says that a tensor is."""

    name: bytes
    dtype: Dtype
    shape: tuple
    begin: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint, and the data of each of them in the same order."""

    files: Files
    data: tuple

    def tensors(self):
        result = {}
        for file, data in zip(self.files.files, self.data):
            for place in read_places(file.header):
                require(place.name not in result, "a tensor in two files")
                require(place.end <= len(data), "a tensor beyond the end of its file")
                result[place.name] = Tensor(place.dtype, place.shape, data[place.begin : place.end])
        return result

    def contents(self):
        """The bytes of each file by its name, which is empty for a single file."""
        result = {}
        for file, data in zip(self.files.files, self.data):
            result[file.name.decode()] = little_endian(len(file.header), 8) + file.header + data
        if self.files.index is not None:
            result[INDEX_NAME] = self.files.index
        return result


def unique_keys(pairs):
    require(len({key for key, _ in pairs}) == len(pairs), "a key twice in JSON")
    return dict(pairs)


def read_json(data, what):
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys)
    except ValueError as error:
        raise FormatError(f"{what} is not JSON") from error
    require(isinstance(value, dict), f"{what} is not a JSON object")
    return value


def read_places(header):
    """The tensors of a safetensors header in the order of their data, which they cover without hole."""
    places = []
    for name, said in read_json(header, "a file's header").items():
        if name != "__metadata__":
            places.append(read_place(name, said))
    places.sort(key=lambda place: (place.begin, place.end))
    end = 0
    for place in places:
        require(place.begin == end, "a file with a hole or an overlap")
        end = place.end
    return places


def read_place(name, said):
    try:
        dtype = DTYPE_OF_NAME[said["dtype"]]
        shape = tuple(int(dimension) for dimension in said["shape"])
        begin, end = (int(offset) for offset in said["data_offsets"])
        place = Place(name.encode("utf-8"), dtype, shape, begin, end)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"a file's header does not describe {name!r}") from error
    require(all(dimension >= 0 for dimension in shape), "a dimension below zero")
    require(end - begin == tensor_bytes(dtype, shape), "a tensor of another size than its shape's")
    return place


def build_checkpoint(files, tensors):
    """Puts tensors where the headers of the files say; they name exactly these tensors."""
    named = set()
    all_data = []
    for file in files.files:
        data = b""
        for place in read_places(file.header):
            require(place.name in tensors and place.name not in named, "a header that names other tensors")
            named.add(place.name)
            tensor = tensors[place.name]
            is_same = (tensor.dtype, tensor.shape) == (place.dtype, place.shape)
            require(is_same, "a header that gives another dtype or shape than the roster")
            data += tensor.data.tobytes()
        all_data.append(data)
    require(named == set(tensors), "the headers leave a tensor out")
    checkpoint = Checkpoint(files, tuple(all_data))
    check_shards(checkpoint)
    return checkpoint


def check_shards(checkpoint):
    """The files of a sharded checkpoint have safe names, and its index says which tensors are in which."""
    if checkpoint.files.index is None:
        return
    expected = {}
    for file in checkpoint.files.files:
        name = file.name.decode()
        is_plain = name.endswith(".safetensors") and "/" not in name and "\0" not in name
        require(is_plain, f"{name!r} is not a plain file name that ends in .safetensors")
        expected |= {place.name.decode(): name for place in read_places(file.header)}
    said = read_json(checkpoint.files.index, INDEX_NAME).get("weight_map")
    require(said == expected, "the index does not say which tensors are in which file")


def split_file(data):
    """The header and the data of a safetensors file."""
    cursor = Cursor(data, "a safetensors file")
    header = cursor.take(cursor.unsigned(8))
    return header, cursor.rest()


def read_checkpoint(path):
    path = pathlib.Path(path)
    if path.is_dir() and (path / INDEX_NAME).exists():
        return read_sharded_checkpoint(path)
    header, data = split_file((path / SINGLE_NAME if path.is_dir() else path).read_bytes())
    return Checkpoint(Files("given", (File(b"", header),)), (data,))


def read_sharded_checkpoint(path):
    index = (path / INDEX_NAME).read_bytes()
    names = sorted(set(read_json(index, INDEX_NAME).get("weight_map", {}).values()))
    parts = [split_file((path / name).read_bytes()) for name in names]
    files = tuple(File(name.encode(), header) for name, (header, _) in zip(names, parts))
    checkpoint = Checkpoint(Files("given", files, index), tuple(data for _, data in parts))
    check_shards(checkpoint)
    return checkpoint


def write_checkpoint(checkpoint, path):
    """Writes a single file at the path, or the files of a sharded checkpoint into a directory there."""
    path = pathlib.Path(path)
    contents = checkpoint.contents()
    if checkpoint.files.index is None:
        path.write_bytes(contents[""])
        return
    path.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (path / name).write_bytes(content)


# ----------------------------------------------------------------------------------------------------------
# The command
# ----------------------------------------------------------------------------------------------------------


def describe(patch):
    """What a patch says about itself, as lines."""
    header, footer = patch.header, patch.footer
    lines = [
        f"{patch.size} bytes, profile {header.profile}, files {header.files.kind}",
        f"base    {footer.base.hex()}",
        f"result  {footer.result.hex()}",
        f"changed {footer.changed} of {footer.total} units, {footer.dense_bytes} bytes",
    ]
    for key, value in header.labels:
        lines.append(f"label {key.decode()} = {value.decode()}")
    for file in header.files.files:
        lines.append(f"file {file.name.decode()!r}, header {len(file.header)} bytes")
    for number, entry in enumerate(header.roster):
        name, fate = entry.name.decode(), FATES[entry.fate]
        lines.append(f"tensor {number} {name!r} {fate} {entry.dtype.name} {list(entry.shape)}")
    for number, frame in enumerate(patch.frames):
        spans = ", ".join(describe_span(span) for span in frame.spans)
        coding = CODINGS[frame.coding]
        lines.append(
            f"frame {number} {coding} {frame.length} bytes, {frame.changed} of {frame.units} units: {spans}"
        )
    return lines


def describe_span(span):
    flat = f"{span.tensor}[{span.start}+{span.run}]"
    return flat if span.stride == 0 else f"{flat}*{span.count}/{span.stride}"


def main(arguments):
    match arguments:
        case ["apply", base, patch, output]:
            parsed = parse_patch(pathlib.Path(patch).read_bytes())
            write_checkpoint(apply_patch(read_checkpoint(base), parsed), output)
        case ["digest", checkpoint]:
            print(state_digest(read_checkpoint(checkpoint).tensors()).hex())
        case ["describe", patch]:
            print("\n".join(describe(parse_patch(pathlib.Path(patch).read_bytes()))))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FormatError as refusal:
        print(f"weft_format.py: {refusal}", file=sys.stderr)
        sys.exit(3)
    except OSError as failure:
        print(f"weft_format.py: {failure}", file=sys.stderr)
        sys.exit(1)
