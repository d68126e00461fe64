#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A second reader of stores, written from doc/FORMAT.md alone (sections 20 to 30).

It shares no code with the library: where the two agree, the page says what the library does. Patches are
decoded by weft_format.py, signatures are checked by the openssl command. It knows no caches, no retries and
no cheapest way: what is wrong is refused, as a FormatError with the reason.

    weft_store.py log STORE [PUBLIC-KEY]                 print the history, newest version first
    weft_store.py pull STORE VERSION OUT [PUBLIC-KEY]    write the checkpoint of a version
    weft_store.py fleet STORE [PUBLIC-KEY]               print what followers tell of themselves

STORE is a directory or an http:// URL. With PUBLIC-KEY, a PEM file, the head must be signed by that key.
"""

import base64
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import zstandard

import weft_format
from weft_format import FormatError, require

# Section 29.
MAXIMUM_KEY = 200
MAXIMUM_HEAD = 4096
MAXIMUM_PACKED_HEAD = 1 << 14
MAXIMUM_PAGE = 1 << 20
MAXIMUM_RECORDS = 64
MAXIMUM_ANCHORS = 16
MAXIMUM_TEXTS = 256
MAXIMUM_LEAPS = 48
MAXIMUM_NODE = 1 << 18
MAXIMUM_OBJECT = 2**50
MAXIMUM_HASHES = 16
MAXIMUM_LIST = 32 << 20
MAXIMUM_PIECES = 1026
MAXIMUM_PIECES_BYTES = 2 << 20
LEAST_CHUNK, MOST_CHUNK = 4096, 2**26
MAXIMUM_REPORT = 2048
MAXIMUM_REPORT_LINE = 2112
MAXIMUM_REPORT_DEPTH, MAXIMUM_REPORT_PARTS = 3, 8

# Section 24: the rooms whose objects are removed one day.
RETIRING = ("patches", "anchors", "pages", "chunks", "pieces", "leaps")

NOTHING = weft_format.state_digest({}).hex()


class Missing(FormatError):
    """There is no object under a key."""


# ----------------------------------------------------------------------------------------------------------
# Section 20: where objects lie
# ----------------------------------------------------------------------------------------------------------


def is_key(text):
    part = r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
    return len(text) <= MAXIMUM_KEY and re.fullmatch(f"{part}(/{part})*", text) is not None


class Directory:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def get(self, key):
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError as error:
            raise Missing(f"there is no {key}") from error

    def followers(self):
        room = self.root / "followers"
        return sorted(path.name for path in room.iterdir() if path.is_file()) if room.is_dir() else []


class Server:
    def __init__(self, url):
        self.url = url.rstrip("/")

    def get(self, key):
        try:
            with urllib.request.urlopen(f"{self.url}/{key}", timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            require(error.code == 404, f"the server answers {error.code} for {key}")
            raise Missing(f"there is no {key}") from error

    def followers(self):
        lines = self.get("v1/list?prefix=followers").splitlines()
        return sorted(json.loads(line)["key"].removeprefix("followers/") for line in lines)


def open_store(name):
    return Server(name) if name.startswith("http://") else Directory(name)


# ----------------------------------------------------------------------------------------------------------
# Section 21: JSON
# ----------------------------------------------------------------------------------------------------------


def unique_names(pairs):
    require(len({name for name, _ in pairs}) == len(pairs), "a name twice in JSON")
    require(not any("\0" in name for name, _ in pairs), "a zero character in JSON")
    return dict(pairs)


def refuse_constant(text):
    raise FormatError(f"{text} is not JSON")


def read_dictionary():
    """The dictionary of packed texts, as section 21 prints it: its tables in hexadecimal, then its text."""
    document = pathlib.Path(__file__).resolve().parents[2] / "doc" / "FORMAT.md"
    section = document.read_text(encoding="utf-8").split("### Packed texts\n")[1].split("\n## ")[0]
    tables, words = re.findall(r"```\n(.*?)\n```", section, re.DOTALL)
    return bytes.fromhex(tables) + words.replace("\n", "").encode()


DICTIONARY = zstandard.ZstdCompressionDict(read_dictionary(), dict_type=zstandard.DICT_TYPE_FULLDICT)


def unpack(data, most, kind):
    """The text of a packed one."""
    try:
        size = zstandard.frame_content_size(data)
        require(0 < size <= most, f"a packed {kind} that does not say its size, or is too large")
        unpacker = zstandard.ZstdDecompressor(dict_data=DICTIONARY).decompressobj()
        said = unpacker.decompress(data)
    except zstandard.ZstdError as error:
        raise FormatError(f"a packed {kind} cannot be unpacked") from error
    require(len(said) == size and unpacker.eof and not unpacker.unused_data, f"a packed {kind} that ends elsewhere")
    return said


def parse_packed(data, most, kind):
    """JSON that may be packed; if it is not, it is one line."""
    if data[:4] == bytes.fromhex("28b52ffd"):
        return parse_json(unpack(data, most, kind), kind)
    require(data[-1:] == b"\n" and data.count(b"\n") == 1, f"a {kind} is not one line")
    return parse_json(data[:-1], kind)


def parse_json(data, kind):
    require(data[:1] == b"{", f"a {kind} does not begin with {{")
    try:
        said = data.decode("utf-8")
        value = json.loads(said, object_pairs_hook=unique_names, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a {kind} is not JSON") from error
    said = text(value, "kind")
    require(said == kind, f"a {said} where a {kind} should be")
    most = 2 if kind in ("head", "page", "leap") else 1
    require(1 <= count(value, "weft") <= most, f"a {kind} of a format above {most}")
    return value


def member(value, name, kind):
    require(isinstance(value, dict), f"{name!r} is looked for in something else than an object")
    require(name in value, f"{name!r} is missing")
    require(type(value[name]) is kind, f"{name!r} is of the wrong type")
    return value[name]


def count(value, name, least=0, most=2**63 - 1):
    number = member(value, name, int)
    require(least <= number <= most, f"{name!r} is out of range")
    return number


def text(value, name, least=0, most=MAXIMUM_HEAD):
    said = member(value, name, str)
    require(least <= len(said.encode()) <= most and "\0" not in said, f"{name!r} is too long or short")
    return said


def check_hexadecimal(said, size):
    require(isinstance(said, str) and re.fullmatch(f"[0-9a-f]{{{2 * size}}}", said), "not a hash or digest")
    return said


def digest(value, name):
    return check_hexadecimal(text(value, name), 16)


def name_of(value, name, most):
    said = text(value, name, least=1, most=most)
    require(re.fullmatch("[0-9a-f]+", said), f"{name!r} is not hexadecimal")
    return said


def key_of(value, name):
    said = text(value, name)
    require(is_key(said), f"{said!r} is not a key")
    return said


# ----------------------------------------------------------------------------------------------------------
# Section 22: blobs and objects
# ----------------------------------------------------------------------------------------------------------


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def check_blob(value):
    key_of(value, "key")
    count(value, "bytes", least=1)
    check_hexadecimal(text(value, "sha256"), 32)
    return value


def fetch_blob(store, blob, most):
    require(blob["bytes"] <= most, f"{blob['key']} is too large")
    data = store.get(blob["key"])[: blob["bytes"]]
    require(len(data) == blob["bytes"], f"{blob['key']} is too short")
    require(sha256(data) == blob["sha256"], f"{blob['key']} has another hash than is said")
    return data


def chunk_count(value):
    return (value["bytes"] + value["chunk_bytes"] - 1) // value["chunk_bytes"]


def check_object(value):
    if isinstance(value, dict) and "pieces" in value:
        require("key" not in value, "an object in pieces with a key")
        count(value, "bytes", least=1, most=MAXIMUM_OBJECT)
        blob = check_blob(member(value, "pieces", dict))
        require(blob["key"].startswith("pieces/"), "a list of pieces in another room")
        return value
    key_of(value, "key")
    count(value, "bytes", least=1, most=MAXIMUM_OBJECT)
    count(value, "chunk_bytes", least=LEAST_CHUNK, most=MOST_CHUNK)
    if "list" in value:
        check_blob(member(value, "list", dict))
        require(value["list"]["bytes"] == 32 * chunk_count(value), "a list of another number of hashes")
    else:
        hashes = member(value, "sha256", list)
        require(len(hashes) == chunk_count(value) <= MAXIMUM_HASHES, "not as many hashes as chunks")
        for said in hashes:
            check_hexadecimal(said, 32)
    return value


def hashes_of(store, value):
    if "list" not in value:
        return value["sha256"]
    data = fetch_blob(store, value["list"], MAXIMUM_LIST)
    return [data[at : at + 32].hex() for at in range(0, len(data), 32)]


def pieces_of(store, value):
    data = fetch_blob(store, value["pieces"], MAXIMUM_PIECES_BYTES)
    pieces = member(parse_json(data, "pieces"), "pieces", list)
    require(1 <= len(pieces) <= MAXIMUM_PIECES, "too many pieces, or none")
    for piece in pieces:
        require("pieces" not in check_object(piece), "pieces within a piece")
        keys = [piece["key"]] + ([piece["list"]["key"]] if "list" in piece else [])
        require(all(key.split("/")[0] in RETIRING for key in keys), "a piece of another room")
    require(sum(piece["bytes"] for piece in pieces) == value["bytes"], "pieces of another length")
    return pieces


def identity_of(value):
    """The key by which an object is called."""
    return value["pieces"]["key"] if "pieces" in value else value["key"]


def fetch_object(store, value):
    if "pieces" in value:
        return b"".join(fetch_object(store, piece) for piece in pieces_of(store, value))
    data = store.get(value["key"])[: value["bytes"]]
    require(len(data) == value["bytes"], f"{value['key']} is too short")
    size = value["chunk_bytes"]
    for number, said in enumerate(hashes_of(store, value)):
        chunk = data[number * size : (number + 1) * size]
        require(sha256(chunk) == said, f"chunk {number} of {value['key']} is damaged")
    return data


# ----------------------------------------------------------------------------------------------------------
# Sections 23 to 25: heads, records, pages
# ----------------------------------------------------------------------------------------------------------


def is_signed_by(public_key, message, signature):
    with tempfile.TemporaryDirectory(prefix="weft-store.") as scratch:
        said, signed = pathlib.Path(scratch, "message"), pathlib.Path(scratch, "signature")
        said.write_bytes(message)
        signed.write_bytes(signature)
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public_key), "-rawin"]
        command += ["-in", str(said), "-sigfile", str(signed)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def parse_head(data, public_key=None):
    require(len(data) <= MAXIMUM_HEAD, "a head that is too large")
    lines = re.fullmatch(rb"([^\n]*)\nsha256 ([0-9a-f]{64})\n(?:ed25519 ([0-9a-f]{128})\n)?", data)
    require(lines is not None, "a head without its lines")
    said, promised, signature = lines.groups()
    require(sha256(said) == promised.decode(), "a head with another hash than is said")
    if public_key is not None:
        require(signature is not None, "a head that is not signed")
        good = is_signed_by(public_key, b"weft head\n" + said, bytes.fromhex(signature.decode()))
        require(good, "a head of another signer")
    head = parse_json(said, "head")
    if "packed" in head:
        try:
            packed = base64.b85decode(text(head, "packed"))
        except ValueError as error:
            raise FormatError("a packed head is not in base 85") from error
        head = parse_json(unpack(packed, MAXIMUM_PACKED_HEAD, "head"), "head")
    name_of(head, "run", most=32)
    count(head, "epoch", least=1)
    count(head, "sequence")
    name_of(head, "writer", most=16)
    if "newest" in head:
        check_blob(member(head, "page", dict))
        check_record(member(head, "newest", dict))
    return head


def check_record(record):
    count(record, "version", least=1)
    count(record, "epoch", least=1)
    count(record, "floor", most=record["version"])
    digest(record, "digest")
    for name in ("time", "changed", "total", "dense_bytes"):
        count(record, name)
    if "patch" in record:
        digest(record, "base")
        check_object(member(record, "patch", dict))
    if "recalls" in record:
        count(record, "recalls", least=1, most=min(8, record["version"] - 1))
        require("patch" in record, "a version without a patch that recalls others")
    if "labels" in record:
        labels = member(record, "labels", dict)
        require(len(labels) <= MAXIMUM_TEXTS, "too many labels")
        require(all(isinstance(value, str) for value in labels.values()), "a label that is not text")
    if "leaps" in record:
        check_leaps(member(record, "leaps", list))
    if "retired" in record:
        keys = member(record, "retired", list)
        require(len(keys) <= MAXIMUM_TEXTS, "too many retired objects")
        require(all(isinstance(key, str) and is_key(key) for key in keys), "a retired object without a key")
        require(all(key.split("/")[0] in RETIRING for key in keys), "a retired object of another room")
    return record


def level_of(first, last):
    """The lowest level whose length is enough."""
    return next(level for level in range(1, 9) if last - first <= 4**level)


def check_leaps(leaps):
    require(len(leaps) <= MAXIMUM_LEAPS, "too many leaps")
    for leap in leaps:
        last = count(leap, "last", least=1)
        first = count(leap, "first", most=last - 1)
        require(last % 4 ** level_of(first, last) == 0, "a leap of another length")
        digest(leap, "base")
        digest(leap, "digest")
        check_blob(member(leap, "node", dict))
        if "bytes" in leap:
            count(leap, "bytes", least=1)
            key_of(leap, "key")
        if "list" in leap:
            key_of(leap, "list")


def check_chain(first, base, items, begin, end):
    """Each item begins where the one before ends."""
    for item in items:
        require(begin(item) == first and item["base"] == base, "a leap with a gap")
        first, base = end(item), item["digest"]
    return first, base


def fetch_leap(store, leap, run):
    """The node of a leap."""
    data = fetch_blob(store, leap["node"], MAXIMUM_NODE)
    node = parse_packed(data, MAXIMUM_NODE, "leap")
    require(text(node, "run") == run, "a leap of another run")
    require(all(node[name] == leap[name] for name in ("first", "last", "base")), "another leap than is said")
    records = [check_record(record) for record in member(node, "records", list)]
    if node["last"] - node["first"] <= 4:
        end = check_chain(node["first"], node["base"], records, lambda r: r["version"] - 1, lambda r: r["version"])
    else:
        parts = member(node, "leaps", list)
        check_leaps(parts)
        require(2 <= len(parts) <= 4 and len(records) == 1, "a leap of too many parts, or too few")
        end = check_chain(node["first"], node["base"], parts, lambda p: p["first"], lambda p: p["last"])
    require(end == (node["last"], leap["digest"]), "a leap that ends elsewhere")
    require(records[-1]["version"] == node["last"], "a leap without the record of its end")
    if "patch" in node:
        check_object(member(node, "patch", dict))
        require(node["patch"]["bytes"] == leap["bytes"], "a leap with a patch of another size")
    return node


def check_anchors(anchors):
    require(len(anchors) <= MAXIMUM_ANCHORS, "too many anchors")
    for anchor in anchors:
        count(anchor, "version", least=1)
        digest(anchor, "digest")
        check_object(member(anchor, "object", dict))
    versions = [anchor["version"] for anchor in anchors]
    require(versions == sorted(set(versions), reverse=True), "anchors in another order")


def span_of(form, last):
    """How many records a page has that ends with a version."""
    if last % 64 == 0:
        return 64
    return (last - 1) % 8 + 1 if form == 1 else min(last & -last, 8)


def check_records(records, form):
    require(1 <= len(records) <= MAXIMUM_RECORDS, "too many records, or none")
    for record in records:
        check_record(record)
    for before, record in zip(records, records[1:]):
        require(record["version"] == before["version"] + 1, "a gap between records")
        require("patch" not in record or record["base"] == before["digest"], "a patch of another version")
    last = records[-1]["version"]
    span = span_of(form, last)
    shorter = form > 1 and last % 8 != 0 and len(records) < span
    require(len(records) == span or shorter, "a page of another range")


def fetch_page(store, blob, run):
    data = fetch_blob(store, blob, MAXIMUM_PAGE)
    page = parse_packed(data, MAXIMUM_PAGE, "page")
    require(text(page, "run") == run, "a page of another run")
    if "previous" in page:
        check_blob(member(page, "previous", dict))
    if "replaces" in page:
        require(key_of(page, "replaces").startswith("pages/"), "a replaced page of another room")
    check_records(member(page, "records", list), page["weft"])
    if page["weft"] == 1 or page["records"][-1]["version"] % 16 == 0 or "previous" not in page:
        require("anchors" in page, "a page that should be full is not")
    if "anchors" in page:
        check_anchors(member(page, "anchors", list))
    if "leaps" in page:
        require("anchors" in page or not page["leaps"], "leaps on a page that is not full")
        check_leaps(member(page, "leaps", list))
    return page


# ----------------------------------------------------------------------------------------------------------
# Section 27: reading a store
# ----------------------------------------------------------------------------------------------------------


def find_head(store, public_key=None):
    """The head of the highest epoch."""
    epoch, data = 0, None
    try:
        while True:
            data = store.get(f"heads/{epoch + 1:08d}")
            epoch += 1
    except Missing:
        require(data is not None, "there is no head")
    head = parse_head(data, public_key)
    require(head["epoch"] == epoch, "a head under the key of another epoch")
    return head


class History:
    """All versions of a run, by their numbers, and the anchors that are kept."""

    def __init__(self, store, public_key=None):
        self.store = store
        self.head = find_head(store, public_key)
        self.records, self.anchors, self.pages, self.leaps = {}, None, [], []
        if "newest" in self.head:
            self.read_pages()

    def read_pages(self):
        newest = self.head["newest"]
        blob, expected, base = self.head["page"], newest["version"], None
        while blob is not None:
            page = fetch_page(self.store, blob, self.head["run"])
            records = page["records"]
            require(records[-1]["version"] == expected, "a page that does not end where the next begins")
            require(base in (None, records[-1]["digest"]), "a patch of another version than the page before")
            self.pages.append((blob["key"], [record["version"] for record in records]))
            if self.anchors is None and "anchors" in page:
                self.anchors = page["anchors"]
                self.leaps = page.get("leaps", [])
                for number in sorted(self.records):
                    self.add_leaps(self.records[number].get("leaps", []))
            self.records |= {record["version"]: record for record in records}
            blob, expected = page.get("previous"), records[0]["version"] - 1
            base = records[0]["base"] if "patch" in records[0] else None
        last = {name: value for name, value in self.records[newest["version"]].items() if name not in ("retired", "leaps")}
        require(last == newest, "the newest record is not what the head says")

    def add_leaps(self, leaps):
        """A leap takes the place of those that begin within it; one that does not adjoin, that of all."""
        for leap in leaps:
            before = [one for one in self.leaps if one["first"] < leap["first"]]
            adjoins = not before or before[-1]["last"] == leap["first"]
            self.leaps = (before if adjoins else []) + [leap]

    def kept(self):
        """The versions whose objects are promised to be there."""
        return range(self.head["newest"]["floor"], self.head["newest"]["version"] + 1)

    def load(self, value, base, result):
        patch = weft_format.parse_patch(fetch_object(self.store, value))
        said = patch.footer.base.hex(), patch.footer.result.hex()
        require(said == (base, result), f"{identity_of(value)} leads elsewhere than the history says")
        return patch

    def way(self, first, last):
        """Patches from one version to another, over leaps where there are some: object, base and result."""
        steps = list(self.way_over(self.leaps, first, last))
        end = self.leaps[-1]["last"] if self.leaps else 0
        return steps + [self.step(self.records[number]) for number in range(max(first, end) + 1, last + 1)]

    def way_over(self, leaps, first, last):
        for leap in leaps:
            if leap["last"] <= first or leap["first"] >= last:
                continue
            node = fetch_leap(self.store, leap, self.head["run"])
            if leap["first"] >= first and leap["last"] <= last and "patch" in node:
                yield node["patch"], leap["base"], leap["digest"]
            elif "leaps" in node:
                yield from self.way_over(node["leaps"], first, last)
            else:
                wanted = [record for record in node["records"] if first < record["version"] <= last]
                yield from map(self.step, wanted)

    @staticmethod
    def step(record):
        return record["patch"], record["base"], record["digest"]

    def checkpoint(self, version, anchor=None):
        """A version, by way of an anchor: the newest that is not above it, if none is given."""
        anchors = [one for one in self.anchors if one["version"] <= version]
        require(anchors, f"no anchor leads to version {version}")
        anchor = anchor or anchors[0]
        require(anchor["digest"] == self.records[anchor["version"]]["digest"], "an anchor of another state")
        empty = weft_format.Checkpoint(weft_format.Files("given", ()), ())
        made = weft_format.apply_patch(empty, self.load(anchor["object"], NOTHING, anchor["digest"]))
        recall = weft_format.Recall()
        for number in range(anchor["version"] + 1, version + 1):
            record = self.records[number]
            require("patch" in record, f"no patch leads to version {number}")
            patch = self.load(record["patch"], record["base"], record["digest"])
            require(patch.header.recalls == record.get("recalls", 0), "a patch that recalls other versions than told")
            made = weft_format.apply_patch(made, patch, recall)
        return made


# ----------------------------------------------------------------------------------------------------------
# Section 28: what followers tell
# ----------------------------------------------------------------------------------------------------------


def number(value, name, least=0, most=1e9):
    require(isinstance(value, dict) and name in value, f"{name!r} is missing")
    require(type(value[name]) in (int, float) and least <= value[name] <= most, f"{name!r} is no such number")
    return value[name]


def is_follower_name(said):
    return re.fullmatch("[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", said) is not None


def containers(value, depth=1):
    """How many objects and arrays there are, and how deep they lie."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 0, 0
    below = [containers(one, depth + 1) for one in inner]
    return 1 + sum(parts for parts, _ in below), max([depth] + [deep for _, deep in below])


def parse_report(data, name):
    require(len(data) <= MAXIMUM_REPORT, "a report that is too large")
    report = parse_json(data, "follower")
    parts, depth = containers(report)
    require(parts <= MAXIMUM_REPORT_PARTS and depth <= MAXIMUM_REPORT_DEPTH, "a report of too many parts")
    require(is_follower_name(name) and text(report, "name") == name, "a report of another name")
    name_of(report, "run", most=32)
    digest(report, "digest")
    for said in ("version", "newest", "time", "published", "patches", "anchors", "healed", "fetched_bytes",
                 "requests"):
        count(report, said)
    require(re.fullmatch("[a-z]{1,15}", text(report, "state")), "a state that is none")
    for phase in ("wait", "fetch", "decode", "verify", "commit"):
        number(member(report, "phases", dict), phase)
    number(report, "pause")
    number(report, "interval", least=1, most=1200)
    if "error" in report:
        count(member(report, "error", dict), "time")
        text(report["error"], "text", most=300)
    if "relayed" in report:
        relayed = report["relayed"]
        if type(relayed) not in (int, float) or not 0 <= relayed <= 1e9:
            del report["relayed"]
    reads = report.get("reads")
    report["reads"] = reads if type(reads) is int and 1 <= reads < 2**63 else 1
    return report


def read_batch(data):
    """The reports of a batch, with their ages, by their names; what is none is left out."""
    reports = {}
    for line in data.split(b"\n")[:-1]:
        found = re.fullmatch(rb'\{"age":([0-9]+(?:\.[0-9]*)?),"report":(.*)\}', line)
        if found is None or len(line) >= MAXIMUM_REPORT_LINE or float(found[1]) > 1e9:
            continue
        try:
            name = json.loads(found[2])["name"]
            reports[name] = (float(found[1]), parse_report(found[2], name))
        except (FormatError, ValueError, KeyError, TypeError):
            continue
    return reports


def read_fleet(store, run):
    """The reports of a run by their names; what is none is left out."""
    reports = {}
    for name in store.followers():
        try:
            report = parse_report(store.get(f"followers/{name}"), name)
        except FormatError:
            continue
        if report["run"] == run:
            reports[name] = report
    return reports


def main(arguments):
    match arguments:
        case ["fleet", store, *public_key] if len(public_key) < 2:
            opened = open_store(store)
            for name, report in read_fleet(opened, find_head(opened, *public_key)["run"]).items():
                print(name, report["version"], report["state"], report.get("error", {}).get("text", "-"))
        case ["log", store, *public_key] if len(public_key) < 2:
            history = History(open_store(store), *public_key)
            for version in sorted(history.records, reverse=True):
                record = history.records[version]
                print(version, record["digest"], record.get("labels", {}))
        case ["pull", store, version, output, *public_key] if len(public_key) < 2:
            history = History(open_store(store), *public_key)
            weft_format.write_checkpoint(history.checkpoint(int(version)), output)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FormatError as refusal:
        print(f"weft_store.py: {refusal}", file=sys.stderr)
        sys.exit(3)
    except OSError as failure:
        print(f"weft_store.py: {failure}", file=sys.stderr)
        sys.exit(1)
