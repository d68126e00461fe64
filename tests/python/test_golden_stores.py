#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Golden stores (tests/golden/make_stores.py): read for ever, and gone on with.

Every kept version of each comes out as it was published, by the command and by weft_store.py; what was told of it is
still understood; and publishers, followers, collectors and trainers of today go on where those of then have ended, in
a copy.
"""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

import numpy

import random_checkpoints as checkpoints
import serving
import weft_format
import weft_store
import weft_train

SOURCE = pathlib.Path(os.environ.get("WEFT_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
STORES = SOURCE / "tests" / "golden" / "stores"
MANIFEST = json.loads((STORES / "manifest.json").read_text())

sys.path.insert(0, str(SOURCE / "tests" / "golden"))
from make_stores import TINY, hash_of  # noqa: E402

TRAINING = {"trainer": (), "team": ("--local-steps", "2", "--trainers", "2", "--sync", "full")}


class Case(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-golden-")
        self.addCleanup(self.scratch.cleanup)
        self.place = pathlib.Path(self.scratch.name)
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.place / "home"))

    def copy(self, name):
        """A copy of the whole case, which may be changed."""
        place = self.place / name
        shutil.copytree(STORES / name, place)
        for path in place.rglob("key"):
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        return place

    def weft(self, *arguments, code=0):
        ran = subprocess.run([serving.WEFT, *map(str, arguments)], capture_output=True, text=True, env=self.environment,
                             timeout=serving.PATIENCE)
        self.assertEqual(ran.returncode, code, f"{ran.args}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def trust(self, place):
        return ["--trust", place / "key.pub"] if (place / "key.pub").exists() else []

    def history(self, place):
        key = place / "key.pub"
        return weft_store.History(weft_store.Directory(place / "store"), key if key.exists() else None)

    def pull(self, place, version, out, *options, store=None):
        self.weft("pull", store or place / "store", out, "--version", version, "-q", *self.trust(place), *options)
        return weft_format.read_checkpoint(out)

    def assert_versions(self, place, versions, step=1):
        """Versions that are kept come out, by both readers: the first and the last from nothing, of those between
        every so many, each from the one before."""
        history = self.history(place)
        told = json.loads(self.weft("log", place / "store", "--json", *self.trust(place)))
        self.assertTrue(told["whole"])
        told = {version["version"]: version for version in told["versions"]}
        self.assertEqual(set(told), {version["version"] for version in versions})
        kept = history.kept()
        for version in versions:
            number = version["version"]
            record = history.records[number]
            self.assertEqual((record["digest"], record.get("labels", {})), (version["digest"], version["labels"]))
            self.assertEqual((told[number]["digest"], told[number]["labels"]), (version["digest"], version["labels"]))
            self.assertEqual(told[number]["kept"], number in kept)
        made = {number: version["files"] for number, version in enumerate(versions, start=1) if number in kept}
        with tempfile.TemporaryDirectory(dir=self.place) as scratch:
            for number in sorted({kept[0], kept[-1], *kept[::step]}):
                out = pathlib.Path(scratch) / "walker"
                self.assertEqual(hash_of(self.pull(place, number, out).contents()), made[number])
            self.weft("verify", out, "--digest", versions[-1]["digest"])
            for number in {kept[0], kept[-1]}:
                out = pathlib.Path(scratch) / f"fresh-{number}"
                self.assertEqual(hash_of(self.pull(place, number, out).contents()), made[number])
        state, recall = None, weft_format.Recall()
        for number in kept:
            record = history.records[number]
            if state is not None and "patch" in record:
                patch = history.load(record["patch"], record["base"], record["digest"])
                state = weft_format.apply_patch(state, patch, recall)
            else:
                state, recall = history.checkpoint(number), weft_format.Recall()
            self.assertEqual(hash_of(state.contents()), made[number])


def each_store(test):
    """A test of every golden store in which versions are."""

    def run(self):
        for name, case in MANIFEST.items():
            if case["versions"]:
                with self.subTest(name):
                    test(self, name, case["versions"])

    return run


class ReadTest(Case):
    def test_every_store_is_listed(self):
        self.assertEqual({path.name for path in STORES.iterdir()}, set(MANIFEST) | {"manifest.json"})

    @each_store
    def test_versions(self, name, versions):
        self.assert_versions(STORES / name, versions)

    @each_store
    def test_over_http_and_through_a_relay(self, name, versions):
        place = self.copy(name)
        for number in (versions[-1]["version"], self.history(place).kept()[0]):
            with serving.Server(directory=str(place / "store")) as origin:
                cache = ("--cache", str(self.place / f"relay-{name}-{number}"))
                with serving.Server(*cache, *map(str, self.trust(place)), directory=origin.url) as relay:
                    for way, url in (("origin", origin.url), ("relay", relay.url)):
                        out = self.place / f"{name}-{number}-{way}"
                        found = self.pull(place, number, out, store=url)
                        self.assertEqual(hash_of(found.contents()), versions[number - 1]["files"])

    def test_way_over_leaps(self):
        """From the first version to the last, by the widest leaps: by far fewer patches than there are versions."""
        place, versions = STORES / "leaps", MANIFEST["leaps"]["versions"]
        history = self.history(place)
        steps = history.way(1, len(versions))
        self.assertLess(len(steps), 8)
        made = history.checkpoint(1)
        for value, base, result in steps:
            made = weft_format.apply_patch(made, history.load(value, base, result))
        self.assertEqual(hash_of(made.contents()), versions[-1]["files"])
        out = self.place / "worker.safetensors"
        self.pull(place, 1, out)
        said = json.loads(self.weft("pull", place / "store", out, "--json"))
        self.assertEqual(hash_of(weft_format.read_checkpoint(out).contents()), versions[-1]["files"])
        self.assertLess(said["patches"], 8)

    def test_replica(self):
        """One that was left behind goes on, by its watermark, and sees no version that is not there."""
        place = self.copy("long")
        versions = MANIFEST["long"]["versions"]
        self.assertEqual(hash_of(weft_format.read_checkpoint(place / "replica.safetensors").contents()),
                         versions[23]["files"])
        weft_store.parse_json((place / ".replica.safetensors.weft-sync").read_bytes(), "watermark")
        said = json.loads(self.weft("pull", place / "store", place / "replica.safetensors", "--json"))
        self.assertEqual((said["version"], said["anchors"]), (30, 0))
        self.assertEqual(hash_of(weft_format.read_checkpoint(place / "replica.safetensors").contents()),
                         versions[29]["files"])

    def test_reports(self):
        place = STORES / "young"
        ours = weft_store.read_fleet(weft_store.Directory(place / "store"), self.history(place).head["run"])
        theirs = json.loads(self.weft("fleet", place / "store", "--json"))["followers"]
        theirs = {follower["name"]: follower for follower in theirs}
        self.assertEqual(ours.keys(), {"one", "two.x_y-Z", "three"})
        self.assertEqual(ours.keys(), theirs.keys())
        for name, report in ours.items():
            for member in ("version", "digest", "newest", "state", "patches", "anchors", "healed", "requests"):
                self.assertEqual(report[member], theirs[name][member], member)
        self.assertIn("damaged", ours["three"]["error"]["text"])
        self.assertIn("damaged", json.dumps(theirs["three"]))

    def test_mark(self):
        history = self.history(STORES / "long")
        mark = weft_store.parse_json((STORES / "long/store/gc/mark").read_bytes(), "mark")
        self.assertEqual(mark["run"], history.head["run"])
        self.assertEqual((mark["collected"], mark["retired"]), (history.kept()[0], 30))


class GoOnTest(Case):
    def assert_next(self, place, versions, *options):
        """The oldest kept version, or some first one, is published as the next; all that were there stay."""
        path = self.place / f"{place.name}-next"
        if versions:
            self.pull(place, self.history(place).kept()[0], path)
        else:
            kinds = {"x": ("BF16", (40, 3))}
            checkpoints.write_single(checkpoints.random_state(numpy.random.default_rng(1), kinds), path)
        files = weft_format.read_checkpoint(path)
        said = json.loads(self.weft("publish", place / "store", path, "--label", "more=1", "--json", *options))
        more = {"version": len(versions) + 1, "digest": weft_format.state_digest(files.tensors()).hex(),
                "labels": {"more": "1"}, "files": hash_of(files.contents())}
        self.assertEqual((said["version"], said["digest"]), (more["version"], more["digest"]))
        self.assertEqual(self.history(place).kept()[-1], more["version"])
        self.assert_versions(place, [*versions, more], 9)

    def sign(self, place):
        return ["--sign", place / "key"] if (place / "key").exists() else []

    @each_store
    def test_publish(self, name, versions):
        """A writer that knows nothing of the run takes over."""
        self.assert_next(self.copy(name), versions, "--cache", self.place / f"cache-{name}", *self.sign(STORES / name))

    def test_publish_with_the_old_cache(self):
        """The writer of then goes on: with its copy, so that a patch is enough."""
        for name in ("long", "leaps"):
            place = self.copy(name)
            path = self.place / f"{name}.safetensors"
            versions = MANIFEST[name]["versions"]
            self.pull(place, len(versions), path)
            said = json.loads(self.weft("publish", place / "store", path, "--cache", place / "cache", "--json"))
            self.assertEqual((said["version"], said["changed"]), (len(versions) + 1, 0))
            more = {"version": said["version"], "digest": versions[-1]["digest"], "labels": {},
                    "files": versions[-1]["files"]}
            self.assert_versions(place, [*versions, more], 9)

    def test_publish_into_a_run_without_versions(self):
        place = self.copy("begun")
        self.assertEqual(json.loads(self.weft("log", place / "store", "--json"))["versions"], [])
        run = self.history(place).head["run"]
        self.assert_next(place, [])
        self.assertEqual(self.history(place).head["run"], run)

    def test_publish_in_parts(self):
        place, versions = self.copy("parts"), MANIFEST["parts"]["versions"]
        path = self.place / "next.safetensors"
        self.pull(place, 2, path)
        command = [serving.WEFT, "publish", str(place / "store"), str(path), "--cut", "t*:0:1", "-q"]
        command += ["--label", "step=6"]
        parts = [subprocess.Popen([*command, "--part", f"{part}/3"], env=self.environment) for part in range(3)]
        self.assertEqual([part.wait(serving.PATIENCE) for part in parts], [0, 0, 0])
        self.assert_versions(place, [*versions, {**versions[1], "version": 6, "labels": {"step": "6"}}])

    @each_store
    def test_collect(self, name, versions):
        """What may be removed is; every version that was kept still comes out."""
        place = self.copy(name)
        kept = self.history(place).kept()
        objects = sum(1 for path in (place / "store").rglob("*") if path.is_file())
        would = json.loads(self.weft("gc", place / "store", "--grace", "0s", "--dry-run", "--json", *self.trust(place)))
        self.assertEqual(sum(1 for path in (place / "store").rglob("*") if path.is_file()), objects)
        done = json.loads(self.weft("gc", place / "store", "--grace", "0s", "--json", *self.trust(place)))
        self.assertEqual(done["objects"], would["objects"])
        self.assertEqual(self.history(place).kept(), kept)
        self.assert_versions(place, versions, 9)


def has_fused_arithmetic():
    """Whether this processor can go on with runs whose log-probabilities are computed with fused multiply-adds."""
    return os.environ.get("WEFT_CPU") != "portable" and " fma " in pathlib.Path("/proc/cpuinfo").read_text()


class TrainingTest(Case):
    def start(self, *arguments):
        process = subprocess.Popen([serving.WEFT, "train", *map(str, arguments), "-q"], env=self.environment)
        self.addCleanup(process.kill)
        return process

    def test_what_a_trainer_leaves(self):
        for name in TRAINING:
            run, slots = weft_train.read_slots(STORES / name / "store")
            lines = [json.loads(line) for line in (STORES / name / "out/metrics.jsonl").read_text().splitlines()]
            told = json.loads((STORES / name / "store/train/metrics").read_bytes())
            # the trainer was given more steps since
            self.assertEqual({**told["run"], "steps": run["steps"]}, run)
            self.assertEqual(told["steps"], lines)
            self.assertEqual(set(slots), {(3, 0), (3, 1)} if name == "trainer" else set())

    @unittest.skipUnless(has_fused_arithmetic(), "these runs are of processors with fused multiply-adds")
    def test_trainer_goes_on(self):
        """It finds its state and the batch that was made for it, and learns from that."""
        place = self.copy("trainer")
        before = (place / "out/metrics.jsonl").read_text().splitlines()
        options = ("--role", "trainer", "--output", place / "out", *TINY, "--steps", "6")
        worker = self.start(place / "store", "--role", "rollout", "--name", "new", "--threads", "1")
        self.weft("train", place / "store", *options)
        self.assertEqual(worker.wait(serving.PATIENCE), 0)
        lines = (place / "out/metrics.jsonl").read_text().splitlines()
        self.assertEqual((lines[:3], len(lines)), (before, 6))
        for step, name in ((3, "w.1"), (4, "new"), (5, "new")):
            line = json.loads(lines[step])
            self.assertEqual(line["trajectories"], {"used": 16, "rejected": 0, "reasons": {}})
            self.assertEqual([worker["name"] for worker in line["workers"]], [name])
        newest = self.history(place).head["newest"]
        self.assertEqual((newest["version"], newest["labels"]["step"]), (7, "6"))

    @unittest.skipUnless(has_fused_arithmetic(), "these runs are of processors with fused multiply-adds")
    def test_team_goes_on(self):
        """Each rank finds its state, and they agree after each round."""
        place = self.copy("team")
        options = ("--role", "trainer", "--output", place / "out", *TINY, *TRAINING["team"], "--steps", "8")
        ranks = [self.start(place / "store", *options, "--rank", rank) for rank in range(2)]
        worker = self.start(place / "store", "--role", "rollout", "--threads", "1")
        self.assertEqual([process.wait(serving.PATIENCE) for process in (*ranks, worker)], [0, 0, 0])
        digests = []
        for path in (place / "out/metrics.jsonl", place / "out/rank-1/metrics.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], list(range(8)))
            digests.append([line["round"]["digest"] for line in lines if "round" in line])
        self.assertEqual(len(digests[0]), 4)
        self.assertEqual(digests[0], digests[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
