#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The examples and test values of doc/FORMAT.md, read from the page itself.

Whoever writes a decoder from the page starts from its examples, so they must not be wrong. Everything is
taken from the text as it stands there and decoded by weft_format.py.
"""

import os
import pathlib
import re
import unittest

import numpy
import xxhash

import forge
import weft_format
from weft_format import DTYPE_OF_NAME, SMALL, Tensor, decode_state, parse_patch, state_digest, tensor_value

SOURCE = pathlib.Path(os.environ.get("WEFT_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
PAGE = (SOURCE / "doc" / "FORMAT.md").read_text()
BFLOAT = DTYPE_OF_NAME["BF16"]


def section(heading):
    """The text under a heading, up to the next heading of any level."""
    return re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(text):
    return re.findall(r"^```\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def leading_bytes(words):
    """The bytes at the start of a line, before its comment."""
    data = b""
    for word in words:
        if not re.fullmatch("[0-9a-f]{2}", word):
            break
        data += bytes.fromhex(word)
    return data


def listing(block):
    return b"".join(leading_bytes(line.split()) for line in block.splitlines())


def table(text):
    """The rows of the tables of a text, as lists of cells without backquotes."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def base_of_page():
    words = blocks(section("19. Examples"))[0].split()
    return Tensor(BFLOAT, (2, 18), numpy.array([int(word, 16) for word in words], dtype="<u2").tobytes())


def result_of_page():
    result = base_of_page()
    for unit, value in re.findall(r"unit (\d+) is `([0-9a-f]{4})`", section("19. Examples")):
        result.units[int(unit)] = int(value, 16)
    return result


def mixed(word, index):
    words = numpy.frombuffer(word.ljust(16, b"\0"), dtype=numpy.uint8).reshape(1, 16)
    return [int(lane) for lane in weft_format.mix(words, numpy.array([index], dtype=numpy.uint64))[0]]


class PageTest(unittest.TestCase):
    def test_hashes_of_nothing(self):
        self.assertIn(f"0x{xxhash.xxh3_64_hexdigest(b'')}", section("1. Conventions"))
        self.assertIn(xxhash.xxh3_128_hexdigest(b""), section("State digest"))
        self.assertIn(state_digest({}).hex(), section("State digest"))

    def test_dtypes(self):
        rows = [row for row in table(section("5. Dtypes and units")) if row[0].isdigit()]
        cells = [row[:4] for row in rows] + [row[5:] for row in rows]
        on_page = {weft_format.Dtype(int(c[0]), c[1], int(c[2]), int(c[3])) for c in cells}
        self.assertEqual(on_page, set(weft_format.DTYPES))

    def test_mixes(self):
        rows = [[int(lane, 16) for lane in row[2:]] for row in table(section("The mix"))[2:]]
        self.assertEqual(rows[0], mixed(bytes(16), 0))
        self.assertEqual(rows[1], mixed(bytes(range(16)), 0x0102030405060708))

    def test_digests(self):
        rows = {row[0]: row[1:] for row in table(section("Digests"))}
        lanes = {}
        for name in ("0, old", "0, new", "4, old", "4, new"):
            lanes[name] = mixed(leading_bytes(rows[name][0].replace(",", " ,").split()), int(name[0]))
            self.assertEqual([int(lane, 16) for lane in rows[name][1:]], lanes[name])
        for lane in range(2):
            delta = sum(lanes[f"{word}, new"][lane] - lanes[f"{word}, old"][lane] for word in (0, 4))
            self.assertEqual(int(rows["delta"][1 + lane], 16), delta % 2**64)
        for column, tensor in enumerate((base_of_page(), result_of_page())):
            sums = [int(rows[f"sum, lane {lane}"][column], 16) for lane in range(2)]
            self.assertEqual(sums, weft_format.tensor_sum(tensor).tolist())
            self.assertEqual(rows["value of the tensor"][column], tensor_value(tensor).hex())
            self.assertEqual(rows["state digest"][column], state_digest({b"w": tensor}).hex())
        hashed = listing(blocks(section("Digests"))[0])
        self.assertEqual(xxhash.xxh3_128_hexdigest(hashed), rows["state digest"][0])

    def whole_file(self):
        data = b""
        for line in blocks(section("A whole file, fast"))[0].splitlines():
            if line:
                offset, *words = line.split()
                self.assertEqual(int(offset, 16), len(data), line)
                data += leading_bytes(words)
        return data

    def assert_makes_result(self, data):
        decoded = decode_state(parse_patch(data), {b"w": base_of_page()})
        self.assertEqual(decoded[b"w"].data.tobytes(), result_of_page().data.tobytes())

    def test_whole_file(self):
        data = self.whole_file()
        self.assertEqual(len(data), 192)
        self.assertEqual(parse_patch(data).header.labels, [(b"step", b"42")])
        self.assert_makes_result(data)

    def test_small_payloads(self):
        pieces = forge.take_apart(self.whole_file())
        sizes = {"A payload, small": 43, "A payload, small, with laws": 23, "A payload, small, with two classes": 51}
        for heading, size in sizes.items():
            payload = listing(blocks(section(heading))[0])
            self.assertEqual(len(payload), size)
            self.assert_makes_result(pieces.with_frame(0, coding=SMALL, payload=payload).seal())

    def test_dense_units(self):
        for row in table(section("Units, dense"))[2:]:
            old, new, folded, low, high = (int(cell or "0", 16) for cell in row[1:])
            self.assertEqual(folded, high << 8 | low)
            folded = numpy.array([folded], dtype="<u2")
            if row[0] == "values":
                self.assertEqual(weft_format.unfold_values(folded, 2)[0], new)
            else:
                self.assertEqual((old + int(weft_format.unfold_steps(folded)[0])) % 2**16, new)


if __name__ == "__main__":
    unittest.main(verbosity=2)
