# SPDX-License-Identifier: Apache-2.0
"""examples/llm/demo.py: two steps of the real thing end with equal weights, few changes and a report; interrupted or
killed, it leaves no process; without its set-up it says what to do."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, Iterator, List, Tuple

from engines import TREE, place, run, say, wait_for

DEMO = TREE / "examples/llm/demo.py"


def start(*options: Any, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-B", str(DEMO), *map(str, options)], text=True,
                            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def processes_of(directory: pathlib.Path) -> List[Tuple[str, bytes]]:
    """Those that have it on their command line, or in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            told = [(entry / name).read_bytes() for name in ("cmdline", "environ")] if entry.name.isdigit() else []
            if any(str(directory).encode() in text for text in told):
                found.append((entry.name, told[0].replace(b"\0", b" ")))
        except OSError:
            continue  # it has ended
    return found


def test_two_steps() -> None:
    with place("demo-llm") as directory:
        report = directory / "report.html"
        demo = start("--steps", 2, "--json", "--output", report, "--keep", directory / "run", TMPDIR=str(directory))
        out, talk = demo.communicate()
        assert demo.returncode == 0, talk
        say(talk)
        told = json.loads(out)
        assert told["proof"] == {"version": 3, "parameters": 182, "differing": []}, told["proof"]
        lines = [json.loads(line) for line in (directory / "run/metrics.jsonl").read_text().splitlines()]
        assert [line["version"] for line in lines] == [2, 3], lines
        for line in lines:
            worker = line["workers"][0]
            assert 0 < line["density"]["1"] < 0.01, line["density"]
            assert max(line["bytes"]["sent"], worker["received"]) < line["bytes"]["dense"] / 100, line
            assert worker["version"] == line["version"], line
        assert told["summary"]["steps"] == 2 and "SHA-256" in told["run"]["proof"], told
        assert "<!doctype html>" in report.read_text()
        assert processes_of(directory) == []


@contextlib.contextmanager
def begun(directory: pathlib.Path) -> "Iterator[subprocess.Popen[str]]":
    """One whose engine has been started, if it does not answer yet."""
    with start("--steps", 2, "--output", directory / "report.html", "--keep", directory / "run",
               TMPDIR=str(directory)) as demo:
        try:
            log = directory / "run/vllm.log"
            wait_for(lambda: (log.exists() and log.stat().st_size > 0) or demo.poll() is not None, "the engine's start")
            yield demo
        finally:
            demo.kill()


def test_interrupted() -> None:
    with place("demo-llm") as directory, begun(directory) as demo:
        demo.send_signal(signal.SIGINT)
        _, talk = demo.communicate()
        assert demo.returncode == 130 and f"are in {directory / 'run'}" in talk, talk
        assert processes_of(directory) == []
        assert not (directory / "report.html").exists(), "a report of no step"


def test_killed() -> None:
    with place("demo-llm") as directory, begun(directory) as demo:
        assert demo.poll() is None, demo.communicate()[1]
        demo.kill()
        demo.communicate()
        wait_for(lambda: not processes_of(directory), "the end of all processes")


def test_refusals() -> None:
    with place("demo-llm") as directory:
        for options, environment, code, words in (
            ([], {"WEFT_ENGINES": str(directory / "none")}, 1, "`make demo-llm` makes it"),
            (["--keep", directory], {}, 1, "takes a directory that does not"),
            (["--output", directory / "none/report.html"], {}, 1, "give another --output"),
            (["--steps", "1"], {}, 2, "--steps"),
            (["--link", "fast"], {}, 2, "--link"),
        ):
            demo = start(*options, **environment)
            _, talk = demo.communicate()
            assert demo.returncode == code and words in talk, (options, talk)


if __name__ == "__main__":
    run(test_refusals, test_two_steps, test_interrupted, test_killed)
