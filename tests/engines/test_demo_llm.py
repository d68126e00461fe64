# SPDX-License-Identifier: Apache-2.0
"""scripts/demo_llm.sh: two steps of the real thing end with equal weights, few changes and a report; killed, it leaves no
process; without the set-up it says what to do."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import engines

DEMO = engines.TREE / "examples/llm/demo.py"


def start(*options, **environment):
    return subprocess.Popen([sys.executable, "-B", str(DEMO), *map(str, options)], text=True, env={**os.environ, **environment},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def processes_of(place):
    """Those that have it on their command line, or as their directory for temporary files."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and any(str(place).encode() in (entry / name).read_bytes() for name in ("cmdline", "environ")):
                found.append((entry.name, (entry / "cmdline").read_bytes().replace(b"\0", b" ")))
        except OSError:
            continue  # it has ended
    return found


class Demo(unittest.TestCase):
    def test_two_steps(self):
        with engines.place("demo-llm") as place:
            report = place / "report.html"
            demo = start("--steps", 2, "--json", "--output", report, "--keep", place / "run")
            out, talk = demo.communicate()
            self.assertEqual(demo.returncode, 0, talk)
            engines.say(talk)
            told = json.loads(out)
            self.assertEqual(told["proof"]["differing"], [])
            self.assertEqual((told["proof"]["version"], told["proof"]["parameters"]), (3, 182))
            lines = [json.loads(line) for line in (place / "run/metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["version"] for line in lines], [2, 3])
            for line in lines:
                worker = line["workers"][0]
                self.assertTrue(0 < line["density"]["1"] < 0.01, line["density"])
                self.assertLess(line["bytes"]["sent"], line["bytes"]["dense"] / 100)
                self.assertLess(worker["received"], line["bytes"]["dense"] / 100)
                self.assertEqual(worker["version"], line["version"])
            self.assertEqual(told["summary"]["steps"], 2)
            self.assertIn("SHA-256", told["run"]["proof"])
            self.assertIn("<!doctype html>", report.read_text())
            self.assertEqual(processes_of(place), [])

    def test_killed(self):
        with engines.place("demo-llm") as place:
            demo = start("--steps", 2, "--output", place / "report.html", "--keep", place / "run", TMPDIR=str(place))
            engines.wait_for((place / "run/vllm.log").exists, "the engine's start", 300)
            demo.send_signal(signal.SIGKILL)
            demo.communicate()
            engines.wait_for(lambda: not processes_of(place), "the end of all processes", 60)

    def test_interrupted(self):
        with engines.place("demo-llm") as place:
            demo = start("--steps", 2, "--output", place / "report.html", "--keep", place / "run", TMPDIR=str(place))
            engines.wait_for((place / "run/vllm.log").exists, "the engine's start", 300)
            demo.send_signal(signal.SIGINT)
            _, talk = demo.communicate()
            self.assertEqual(demo.returncode, 130, talk)
            self.assertIn(f"are in {place / 'run'}", talk)
            self.assertEqual(processes_of(place), [])
            self.assertFalse((place / "report.html").exists())

    def test_refusals(self):
        with engines.place("demo-llm") as place:
            for options, environment, code, words in (
                ([], {"WEFT_ENGINES": str(place / "none")}, 1, "`make demo-llm` makes it"),
                (["--keep", place], {}, 1, "takes a directory that does not"),
                (["--output", place / "none/report.html"], {}, 1, "give another --output"),
                (["--steps", "1"], {}, 2, "--steps"),
                (["--link", "fast"], {}, 2, "--link"),
            ):
                with self.subTest(words):
                    demo = start(*options, **environment)
                    _, talk = demo.communicate()
                    self.assertEqual(demo.returncode, code, talk)
                    self.assertIn(words, talk)


if __name__ == "__main__":
    unittest.main(verbosity=2)
