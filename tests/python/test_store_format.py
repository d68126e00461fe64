#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stores as the command writes them, read by weft_store.py, which was written from doc/FORMAT.md alone.

Every kept version comes out bit for bit; whatever somebody has tampered with is refused. Where the command
has no way round the damage, it must refuse too.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import numpy

import serving
import test_format
import weft_format
import weft_store
from random_checkpoints import changed_state, random_state, write_sharded, write_single
from weft_format import FormatError, read_checkpoint

KINDS = {"a": ("BF16", (40, 50)), "b": ("BF16", (333,)), "c": ("F32", (17, 3)), "d": ("I64", ())}


def public_pem(raw):
    """A PEM file of an Ed25519 public key."""
    der = bytes.fromhex("302a300506032b6570032100") + raw
    command = ["openssl", "pkey", "-pubin", "-inform", "DER"]
    return subprocess.run(command, input=der, capture_output=True, check=True).stdout


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Case(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-store.")
        self.addCleanup(self.scratch.cleanup)
        self.place = pathlib.Path(self.scratch.name)
        self.store = self.place / "store"
        self.random = numpy.random.default_rng(int.from_bytes(self.id().encode(), "big") % 2**64)

    def weft(self, *arguments, code=0):
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.place / "cache"))
        ran = subprocess.run([serving.WEFT, *map(str, arguments)], capture_output=True, text=True,
                             env=environment, timeout=serving.PATIENCE)
        self.assertEqual(ran.returncode, code, f"{ran.args}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def publish(self, path, *options, store=None):
        return json.loads(self.weft("publish", store or self.store, path, "--json", *options))

    def publish_states(self, count, *options, writers=False):
        """Publishes so many checkpoints of random tensors and returns their bytes, by version. With writers,
        each comes from a publisher of its own, and so in an epoch of its own."""
        state = random_state(self.random, KINDS)
        files = {}
        for version in range(1, count + 1):
            path = self.place / "step.safetensors"
            write_single(state, path, {"step": str(version)})
            cache = self.place / (f"writer-{version}" if writers else "writer")
            said = self.publish(path, "--label", f"step={version}", "--cache", cache, *options)
            self.assertEqual(said["version"], version)
            files[version] = path.read_bytes()
            state = changed_state(self.random, state, 0.02)
        return files

    def history(self, public_key=None):
        return weft_store.History(weft_store.Directory(self.store), public_key)

    def assert_whole(self, history, files):
        """All kept versions are what was published, by way of every anchor that leads there."""
        self.assertEqual(history.kept()[-1], max(files))
        for version in history.kept():
            self.assertEqual(history.records[version]["labels"], {"step": str(version)})
            for anchor in [anchor for anchor in history.anchors if anchor["version"] <= version]:
                self.assertEqual(history.checkpoint(version, anchor).contents()[""], files[version])
        self.assertIn(history.kept()[0], [anchor["version"] for anchor in history.anchors])

    def assert_refused(self, reason, public_key=None):
        with self.assertRaisesRegex(FormatError, reason):
            history = self.history(public_key)
            for anchor in history.anchors:
                history.checkpoint(history.head["newest"]["version"], anchor)

    def assert_weft_refuses(self, *options, reached=None):
        """The command gives up too; what it leaves is a version that was published, or nothing."""
        fresh = self.place / "fresh.safetensors"
        self.weft("pull", self.store, fresh, *options, code=3)
        self.assertEqual(fresh.read_bytes() if fresh.exists() else None, reached)

    def is_packed(self, key):
        return (self.store / key).read_bytes()[:1] != b"{"

    def object_path(self, room, last=True):
        return sorted((self.store / room).iterdir())[-1 if last else 0]


class PageTest(Case):
    """The example of the page, as it stands there."""

    def blocks(self):
        return test_format.blocks(test_format.section("30. An example of a head"))

    def unbroken(self, block):
        """The bytes of a block whose JSON is broken into lines that begin with a space."""
        return re.sub("\n ", "", block).encode()

    def test_head(self):
        head, public, _ = self.blocks()
        key = self.place / "key.pub"
        key.write_bytes(public_pem(bytes.fromhex(public.strip())))
        parsed = weft_store.parse_head(self.unbroken(head), key)
        self.assertEqual((parsed["epoch"], parsed["newest"]["version"]), (3, 2))
        other = self.place / "other.pub"
        other.write_bytes(public_pem(bytes(range(32))))
        with self.assertRaisesRegex(FormatError, "another signer"):
            weft_store.parse_head(self.unbroken(head), other)

    def test_page_and_patch(self):
        head, _, page = (self.unbroken(block) for block in self.blocks())
        patch = test_format.PageTest.whole_file(self)
        newest = weft_store.parse_head(head)["newest"]
        page_key = json.loads(head.split(b"\n")[0])["page"]["key"]
        for key, data in ((page_key, page), (newest["patch"]["key"], patch)):
            path = self.store / key
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        for epoch in (1, 2, 3):
            path = self.store / f"heads/{epoch:08d}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(head)
        history = self.history()
        self.assertEqual(sorted(history.records), [1, 2])
        parsed = history.load(newest["patch"], newest["base"], newest["digest"])
        self.assertEqual(parsed.header.labels, [(b"step", b"42")])
        self.assertEqual(json.loads(self.weft("log", self.store, "--json"))["versions"][0]["version"], 2)

    def test_the_state_without_tensors(self):
        self.assertIn(f"`{weft_store.NOTHING}`", test_format.section("26. Anchors and leaps"))


class StoreTest(Case):
    def test_every_kept_version(self):
        files = self.publish_states(9)
        history = self.history()
        self.assertEqual(list(history.kept()), list(range(1, 10)))
        self.assertEqual({record["epoch"] for record in history.records.values()}, {1})
        self.assert_whole(history, files)

    def test_signed(self):
        self.weft("keygen", self.place / "key")
        files = self.publish_states(4, "--sign", self.place / "key", writers=True)
        history = self.history(self.place / "key.pub")
        self.assertEqual([history.records[version]["epoch"] for version in sorted(files)], [1, 2, 3, 4])
        self.assert_whole(history, files)
        self.weft("keygen", self.place / "other")
        self.assert_refused("another signer", self.place / "other.pub")
        self.assert_weft_refuses("--trust", self.place / "other.pub")

    def test_unsigned_where_a_key_is_trusted(self):
        self.weft("keygen", self.place / "key")
        self.publish_states(1)
        self.assert_refused("not signed", self.place / "key.pub")
        self.assert_weft_refuses("--trust", self.place / "key.pub")

    def test_long_histories(self):
        """Pages are cut as the page says; what is no longer kept is gone, and the history stays."""
        files = self.publish_states(73, "--anchor-ratio", "0.5", "--keep-anchors", "3")
        history = self.history()
        self.assertEqual([versions for _, versions in history.pages],
                         [[73], list(range(65, 73)), list(range(1, 65))])
        self.assertTrue(all(self.is_packed(key) for key, _ in history.pages))
        self.assertGreater(history.kept()[0], 1)
        self.assertEqual(len(history.anchors), 3)
        self.assert_whole(history, files)
        removed = json.loads(self.weft("gc", self.store, "--grace", "0s", "--json"))
        self.assertGreater(removed["objects"], 73)
        history = self.history()
        self.assertEqual(sorted(history.records), list(range(1, 74)))
        self.assert_whole(history, files)
        mark = weft_store.parse_json((self.store / "gc/mark").read_bytes(), "mark")
        self.assertEqual(mark["run"], history.head["run"])
        self.assertEqual(mark["collected"], history.kept()[0])
        self.assertEqual(mark["retired"], 72)
        for record in history.records.values():
            for key in record.get("retired", []):
                self.assertFalse((self.store / key).exists(), key)

    def test_leaps(self):
        """Over leaps from every version to every other: the same states, by fewer patches."""
        count = 38
        files = self.publish_states(count, "--anchor", "never")
        history = self.history()
        self.assertEqual(history.leaps[-1]["last"], count // 4 * 4)
        self.assertTrue(any(leap["last"] - leap["first"] == 16 for leap in history.leaps))
        for first in (1, 2, 4, 7, 15, 16, 21):
            for last in (5, 8, 17, 30, 32, 33, count):
                steps = history.way(first, last) if first < last else []
                made = history.checkpoint(first)
                for value, base, result in steps:
                    made = weft_format.apply_patch(made, history.load(value, base, result))
                if steps:
                    self.assertEqual(made.contents()[""], files[last])
                    self.assertLessEqual(len(steps), last - first)
        self.assertLess(len(history.way(1, count)), 14)
        patch = sorted((self.store / "leaps").iterdir())[-1]
        patch.write_bytes(flip(patch.read_bytes(), 30))
        with self.assertRaisesRegex(FormatError, "hash"):
            history.way(1, count)

    def test_sharded_and_changing_tensors(self):
        state = random_state(self.random, KINDS)
        paths = []
        for number in range(4):
            path = self.place / f"step-{number}"
            names = sorted(state)
            write_sharded([{name: state[name] for name in part} for part in (names[:2], names[2:])], path)
            self.publish(path)
            paths.append(path)
            state = changed_state(self.random, state, 0.02)
            state[b"new-%d" % number] = random_state(self.random, {"x": ("F16", (5, 5))})[b"x"]
        history = self.history()
        for version, path in enumerate(paths, start=1):
            self.assertEqual(history.checkpoint(version).contents(), read_checkpoint(path).contents())

    def test_a_list_of_chunks(self):
        state = random_state(self.random, {"w": ("U8", (17 << 20,))})
        path = self.place / "large.safetensors"
        write_single(state, path)
        self.publish(path)
        history = self.history()
        anchor = history.anchors[0]["object"]
        self.assertGreater(weft_store.chunk_count(anchor), 16)
        self.assertEqual(history.checkpoint(1).contents()[""], path.read_bytes())
        listed = self.object_path("chunks")
        listed.write_bytes(flip(listed.read_bytes(), 40))
        self.assert_refused("another hash")
        self.assert_weft_refuses()

    def test_over_http(self):
        with serving.Server() as server:
            path = self.place / "step.safetensors"
            state = random_state(self.random, KINDS)
            for version in range(1, 4):
                write_single(state, path)
                self.publish(path, store=server.url)
                state = changed_state(self.random, state, 0.02)
            history = weft_store.History(weft_store.open_store(server.url))
            self.assertEqual(history.checkpoint(3).contents()[""], path.read_bytes())

    def test_watermark(self):
        self.publish_states(2)
        self.weft("pull", self.store, self.place / "worker.safetensors")
        mark = (self.place / ".worker.safetensors.weft-sync").read_bytes()
        mark = weft_store.parse_json(mark, "watermark")
        head = self.history().head
        for name in ("run", "epoch", "sequence"):
            self.assertEqual(mark[name], head[name])


LEAP = {"first": 0, "last": 4, "base": "00" * 16, "digest": "11" * 16,
        "node": {"key": "leaps/x", "bytes": 100, "sha256": "22" * 32}}


class TamperTest(Case):
    """One publisher, three versions, signed; then somebody changes what lies there."""

    def setUp(self):
        super().setUp()
        self.weft("keygen", self.place / "key")
        self.key = self.place / "key.pub"
        self.files = self.publish_states(3, "--sign", self.place / "key", writers=True)
        self.head = self.store / "heads/00000003"

    def rewrite(self, change):
        """Changes the JSON of the head and makes its hash right again, as somebody without the key can."""
        signature = self.head.read_bytes().split(b"\n")[2]
        value = weft_store.parse_head(self.head.read_bytes())
        change(value)
        said = json.dumps(value, separators=(",", ":")).encode()
        lines = [said, b"sha256 " + weft_store.sha256(said).encode(), signature, b""]
        self.head.write_bytes(b"\n".join(lines))

    def test_nothing(self):
        self.history(self.key).checkpoint(3)

    def test_a_byte_of_the_head(self):
        data = self.head.read_bytes()
        for at in range(0, len(data), 7):
            self.head.write_bytes(flip(data, at))
            with self.assertRaises(FormatError):
                self.history(self.key)
        self.head.write_bytes(flip(data, 100))
        self.assert_weft_refuses("--trust", self.key)

    def test_the_length_of_the_head(self):
        data = self.head.read_bytes()
        for damaged in (data[:-1], data + b"\n", data + b"x", data.replace(b"\n", b"\r\n"), b"", data * 9):
            self.head.write_bytes(damaged)
            self.assert_refused("head", self.key)
            self.assert_weft_refuses()

    def test_what_the_head_says(self):
        def older_floor(value):
            value["newest"]["floor"] = 2

        self.rewrite(older_floor)
        self.assert_refused("another signer", self.key)
        self.assert_weft_refuses("--trust", self.key)
        self.assert_refused("not what the head says")

    def test_the_signature_taken_away(self):
        data = self.head.read_bytes()
        self.head.write_bytes(data[: data.index(b"ed25519")])
        self.history()
        self.assert_refused("not signed", self.key)
        self.assert_weft_refuses("--trust", self.key)

    def test_another_format(self):
        self.rewrite(lambda value: value.update(weft=3))
        self.assert_refused("a format above")
        self.assert_weft_refuses()

    def test_members_of_the_head(self):
        data = self.head.read_bytes()
        changes = [
            lambda value: value.update(epoch=0),
            lambda value: value.update(epoch="3"),
            lambda value: value.update(sequence=-1),
            lambda value: value.update(sequence=1.0),
            lambda value: value.update(run=""),
            lambda value: value.update(run="ABCDEF"),
            lambda value: value.update(run="../run"),
            lambda value: value.update(writer=""),
            lambda value: value.update(writer="somebody"),
            lambda value: value.update(kind="page"),
            lambda value: value.pop("page"),
            lambda value: value.pop("writer"),
            lambda value: value["newest"].pop("base"),
            lambda value: value["newest"].update(version=0),
            lambda value: value["newest"].update(floor=4),
            lambda value: value["newest"].update(digest="AB" * 16),
            lambda value: value["newest"].update(labels={"step": 3}),
            lambda value: value["newest"]["patch"].update(key="../heads/00000001"),
            lambda value: value["newest"]["patch"].update(chunk_bytes=0),
            lambda value: value["newest"]["patch"].update(bytes=0),
            lambda value: value["newest"]["patch"]["sha256"].append("00" * 32),
            lambda value: value["page"].update(bytes=0),
            lambda value: value["page"].update(sha256="00"),
        ]
        for change in changes:
            self.head.write_bytes(data)
            self.rewrite(change)
            with self.assertRaises(FormatError):
                self.history()
            self.assert_weft_refuses()
        self.head.write_bytes(data)
        self.rewrite(lambda value: value.update(later="unknown members are passed over"))
        self.history()
        self.weft("pull", self.store, self.place / "fresh.safetensors")

    def test_an_old_head_under_a_new_key(self):
        shutil.copy(self.store / "heads/00000002", self.store / "heads/00000004")
        self.assert_refused("another epoch", self.key)

    def test_a_replica_does_not_go_back(self):
        worker = self.place / "worker.safetensors"
        self.weft("pull", self.store, worker, "--trust", self.key)
        before = worker.read_bytes()
        self.head.unlink()
        self.weft("pull", self.store, worker, "--trust", self.key, code=1)
        self.assertEqual(worker.read_bytes(), before)

    def test_a_page(self):
        page = self.store / self.history().head["page"]["key"]
        data = page.read_bytes()
        for damaged in (flip(data, len(data) // 2), data[:-1], b""):
            page.write_bytes(damaged)
            self.assert_refused("another hash|too short", self.key)
            self.assert_weft_refuses("--trust", self.key)
        page.unlink()
        self.assert_refused("there is no pages", self.key)

    def test_what_a_page_says(self):
        """The hashes are right; the rules of sections 24 and 25 are not kept."""
        history = self.history()
        page, head = self.store / history.head["page"]["key"], self.head.read_bytes()
        newest = weft_store.parse_packed(page.read_bytes(), weft_store.MAXIMUM_PAGE, "page")
        self.assertEqual(len(newest["records"]), 1)
        changes = {
            "should be full": lambda value: value.pop("previous"),
            "not full": lambda value: value.update(leaps=[LEAP]),
            "another range": lambda value: value["records"].insert(0, history.records[2]),
        }
        self.refuse_pages(page, head, newest, changes)
        first = {**newest, "weft": 1, "anchors": history.anchors,
                 "records": [history.records[version] for version in (1, 2, 3)]}
        del first["previous"]
        changes = {
            "another range": lambda value: value["records"].pop(0),
            "another room": lambda value: value["records"][-1].update(retired=["heads/00000001"]),
            "replaced page": lambda value: value.update(replaces="heads/00000001"),
            "without a key": lambda value: value["records"][-1].update(retired=["pages/../heads"]),
            "a gap": lambda value: value["records"].pop(1),
            "another run": lambda value: value.update(run="0123"),
            "another version": lambda value: value["records"][-1].update(base="00" * 16),
        }
        self.refuse_pages(page, head, first, changes)

    def refuse_pages(self, page, head, said, changes):
        for reason, change in changes.items():
            value = json.loads(json.dumps(said))
            change(value)
            forged = json.dumps(value, separators=(",", ":")).encode() + b"\n"
            page.write_bytes(forged)
            self.head.write_bytes(head)
            blob = {"bytes": len(forged), "sha256": weft_store.sha256(forged)}
            self.rewrite(lambda value, blob=blob: value["page"].update(blob))
            self.assert_refused(reason)
            self.assert_weft_refuses()

    def test_a_page_of_another_run(self):
        other = self.place / "other"
        shutil.move(self.store, other)
        self.publish_states(3, "--sign", self.place / "key", writers=True)
        mine = self.history().head
        theirs = weft_store.find_head(weft_store.Directory(other))
        page = (other / theirs["page"]["key"]).read_bytes()
        (self.store / mine["page"]["key"]).write_bytes(page)
        self.rewrite(lambda value: value["page"].update(bytes=len(page), sha256=weft_store.sha256(page)))
        self.assert_refused("another run")
        self.assert_weft_refuses()

    def test_a_chunk_of_a_patch(self):
        patch = self.object_path("patches")
        data = patch.read_bytes()
        for damaged in (flip(data, 0), flip(data, 100), flip(data, len(data) - 1), data[:-1]):
            patch.write_bytes(damaged)
            self.assert_refused("chunk 0 of patches.* is damaged|too short", self.key)
            self.assert_weft_refuses("--trust", self.key, reached=self.files[2])

    def test_a_chunk_of_an_anchor(self):
        anchor = self.object_path("anchors")
        anchor.write_bytes(flip(anchor.read_bytes(), 500))
        self.assert_refused("chunk 0 of anchors.* is damaged", self.key)
        self.assert_weft_refuses("--trust", self.key)

    def test_patches_exchanged(self):
        first, last = self.object_path("patches", last=False), self.object_path("patches")
        first_data, last_data = first.read_bytes(), last.read_bytes()
        first.write_bytes(last_data)
        last.write_bytes(first_data)
        self.assert_refused("too short|is damaged", self.key)
        self.assert_weft_refuses("--trust", self.key, reached=self.files[1])


class ReportTest(Case):
    """What followers tell is read alike by both, and so is what others make of it."""

    def fleet(self, store):
        said = json.loads(self.weft("fleet", store, "--json"))
        return {follower["name"]: follower for follower in said["followers"]}

    def test_real_reports(self):
        self.publish_states(3)
        for name in ("one", "two.x"):
            self.weft("pull", self.store, self.place / f"{name}.safetensors", "--name", name)
        run = self.history().head["run"]
        found = weft_store.read_fleet(weft_store.Directory(self.store), run)
        self.assertEqual(found.keys(), {"one", "two.x"})
        for name, follower in self.fleet(self.store).items():
            report = found[name]
            for member in ("version", "digest", "newest", "state", "patches", "anchors", "healed", "requests"):
                self.assertEqual(report[member], follower[member], member)
            self.assertEqual((report["version"], report["lag"], report["state"]), (3, 0, "ended"))
            self.assertEqual(report["published"], self.history().records[3]["time"])
        with serving.Server(directory=str(self.store)) as server:
            self.assertEqual(weft_store.read_fleet(weft_store.Server(server.url), run), found)

    def test_made_up_reports(self):
        self.publish_states(1)
        self.weft("pull", self.store, self.place / "a.safetensors", "--name", "a")
        path = self.store / "followers" / "a"
        good = json.loads(path.read_bytes())
        error = {"time": 1, "text": "x"}
        anything = (None, -1, 0, 1, 2.5, 1e300, "", "a", "ab", [], {}, True)
        changes = [{member: value} for member in good for value in anything]
        texts = (None, -1, 1.5, "", "y" * 300, "y" * 301, "é" * 150)
        changes += [{"error": error | {member: value}} for member in error for value in texts]
        changes += [{"phases": good["phases"] | {"wait": value}} for value in (None, -1, 7, "1", 1e9, 1.1e9, [])]
        changes += [{"more": value} for value in (None, [[]], [[[]]], [[]] * 5, [[]] * 6)]
        changes += [{"interval": value} for value in (0.99, 1, 1200, 1200.5)]
        changes += [{"state": "a" * size} for size in (15, 16)]
        changes += [{"cuts": value} for value in (*anything, "a:0:2", "y" * 1025)]  # what is none counts as none
        changes += [{"version": 2**63 - 1}, {"version": 2**63}, {"version": 1.0}, {"digest": good["digest"].upper()}]
        for change in changes:
            path.write_text(json.dumps(good | change))
            ours = weft_store.read_fleet(weft_store.Directory(self.store), good["run"])
            self.assertEqual(ours.keys(), self.fleet(self.store).keys(), change)
        for left_out in good:
            path.write_text(json.dumps({name: value for name, value in good.items() if name != left_out}))
            ours = weft_store.read_fleet(weft_store.Directory(self.store), good["run"])
            self.assertEqual(ours.keys(), self.fleet(self.store).keys(), left_out)
            self.assertEqual("a" in ours, left_out in ("lag", "error", "reads"), left_out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
