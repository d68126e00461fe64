#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What `weft train` keeps in a store, read by weft_train.py, which was written from doc/FORMAT.md alone.

A trainer leaves its first version and gives up; a worker makes the first batch. Then everything that was said
of it in the store is looked at, and over HTTP the bounds and the tokens of the server.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import serving
import weft_store
import weft_train
from weft_format import FormatError

TINY = ["--hidden", "32", "--heads", "2", "--kv-heads", "2", "--feed-forward", "64", "--context", "32", "--prompts", "6",
        "--group", "4", "--slots", "3", "--steps", "5", "--warmup-success", "0", "--threads", "1", "--evaluate-prompts",
        "16"]
CHAIN = ["--task", "chain", "--chain-steps", "5", "--chain-period", "2"]
ADDITION = ["--task", "addition", "--digits", "1"]


class Case(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-train.")
        self.addCleanup(self.scratch.cleanup)
        self.place = pathlib.Path(self.scratch.name)
        self.store = self.place / "store"
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.place / "cache"))

    def weft(self, *arguments, code=0):
        ran = subprocess.run([serving.WEFT, *map(str, arguments)], capture_output=True, text=True, env=self.environment,
                             timeout=serving.PATIENCE)
        self.assertEqual(ran.returncode, code, f"{ran.args}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def train(self, *options, code=0):
        return self.weft("train", self.store, "--role", "trainer", "--output", self.place / "out", *TINY, *options, code=code)

    def begin(self, *options):
        """A run of which nothing is there but the first batch."""
        self.train(*options, "--patience", "0.1", code=4)
        worker = subprocess.Popen([serving.WEFT, "train", str(self.store), "--role", "rollout", "--name", "w.1", "-q"],
                                  env=self.environment)
        try:
            end = time.monotonic() + serving.PATIENCE
            while len(list((self.store / "train" / "rollouts").glob("0-*"))) < 3 and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            worker.terminate()
            worker.wait()


class FormatTest(Case):
    def check(self, *options):
        self.begin(*options)
        run, slots = weft_train.read_slots(self.store)
        history = weft_store.History(weft_store.Directory(self.store))
        newest = history.records[max(history.records)]
        self.assertEqual(newest["labels"], {"step": "0", "train": run["name"]})
        self.assertEqual(set(slots), {(0, 0), (0, 1), (0, 2)})
        for found in slots.values():
            self.assertEqual((found["step"], found["version"], found["digest"]), (0, newest["version"], newest["digest"]))
            self.assertEqual(found["worker"], "w.1")
            prompts = [tuple(tokens[: weft_train.sizes(run["task"])[0]]) for tokens, _, _ in found["sequences"]]
            self.assertEqual([len(set(prompts[i : i + 4])) for i in (0, 4)], [1, 1])
        self.assertGreater(sum(found["received"] for found in slots.values()), 0)
        return slots

    def test_chain(self):
        self.check(*CHAIN)

    def test_addition(self):
        self.check(*ADDITION)

    def test_tampering(self):
        self.begin(*CHAIN)
        run, _ = weft_train.read_slots(self.store)
        data = (self.store / "train" / "rollouts" / "0-1").read_bytes()
        for at in range(0, len(data), 7):
            with self.assertRaises(FormatError):
                weft_train.parse_rollouts(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], run, 0, 1)
        with self.assertRaisesRegex(FormatError, "another place"):
            weft_train.parse_rollouts(data, run, 0, 2)

    def test_metrics(self):
        """Of a whole run, in the store as in the file."""
        worker = subprocess.Popen([serving.WEFT, "train", str(self.store), "--role", "rollout", "-q"], env=self.environment)
        try:
            result = json.loads(self.train(*CHAIN, "--json"))
            self.assertEqual(worker.wait(serving.PATIENCE), 0)
        finally:
            worker.kill()
            worker.wait()
        told = json.loads((self.store / "train" / "metrics").read_bytes())
        lines = [json.loads(line) for line in (self.place / "out" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(told["steps"], lines)
        self.assertEqual(told["run"], weft_train.parse_run((self.store / "train" / "run").read_bytes()))
        self.assertEqual(result["run"], told["run"]["name"])
        history = weft_store.History(weft_store.Directory(self.store))
        for step, line in enumerate(lines):
            record = history.records[line["version"]]
            self.assertEqual((line["step"], int(record["labels"]["step"])), (step, step + 1))
            self.assertEqual((line["changed"], line["elements"]), (record["changed"], record["total"]))
            self.assertAlmostEqual(line["density"]["1"], record["changed"] / record["total"])
            self.assertGreaterEqual(line["bytes"]["sent"], record["patch"]["bytes"])
            self.assertEqual(line["bytes"]["dense"], record["dense_bytes"])
            self.assertEqual(sum(worker["trajectories"] for worker in line["workers"]), line["trajectories"]["used"])


class ServerTest(Case):
    def put(self, url, token, size):
        request = urllib.request.Request(url, data=bytes(size), method="PUT", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=serving.PATIENCE) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except (ConnectionError, urllib.error.URLError):
            return None  # refused before all of it was sent

    def test_bounds_and_tokens(self):
        for name in ("reader", "writer"):
            path = self.place / name
            path.write_text(f"{name}-token\n")
            path.chmod(0o600)
        with serving.Server("--read-token-file", str(self.place / "reader"), "--write-token-file",
                            str(self.place / "writer"), directory=str(self.store)) as server:
            slot = f"{server.url.rstrip('/')}/train/rollouts/0-0"
            self.assertEqual(self.put(slot, "reader-token", 100), 403)
            self.assertEqual(self.put(slot, "writer-token", 16 << 20), 201)
            self.assertIn(self.put(slot, "writer-token", (16 << 20) + 1), (413, None))
            self.assertEqual((self.store / "train" / "rollouts" / "0-0").stat().st_size, 16 << 20)


if __name__ == "__main__":
    unittest.main()
