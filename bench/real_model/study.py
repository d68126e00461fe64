#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of a real language model: what its training changes, and what it costs to send.

study.py WORK [--quick] [--seconds N] [--report] [--document FILE] [--weft PATH]

Wants the Python of build/engines (scripts/engines.sh) and about 25 GB of disk. SmolLM2-135M learns by GRPO, and by
supervised fine-tuning; each step's gradient is kept (streams.py). The gradients go through optimizers, rates and types
of storage (replay.py). Versions are made of them, and coded in the formats of the field (codecs.py) and as receivers of
fewer bits see them (receivers.py). report.py makes tables and charts of what is there.

All of it goes on where it was stopped; --seconds stops it after so long, and then it exits with 75. --quick does a part
in minutes. --report only writes the report. With --document the tables go between the marks of that file and the charts
beside it; else both go to WORK.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

ROOM = pathlib.Path(__file__).resolve().parent
TREE = ROOM.parents[1]
MAIN = "grpo-1e-6"
RATES = {"1e-6": 1e-6, "3e-6": 3e-6, "1e-5": 1e-5}  # of which versions are made and coded
STREAMS = {MAIN: ("grpo", 1e-6), "sft-1e-6": ("sft", 1e-6), "grpo-1e-5": ("grpo", 1e-5), "grpo-3e-6": ("grpo", 3e-6),
           "grpo-1e-6-again": ("grpo", 1e-6)}
STEPS = {MAIN: 48, "sft-1e-6": 24, "grpo-1e-5": 24, "grpo-3e-6": 24, "grpo-1e-6-again": 24}
QUICK_STEPS = {MAIN: 8, "sft-1e-6": 6, "grpo-1e-5": 6}
REPLAYED = {"sft-1e-6": ["1e-6", "1e-5", "2e-5", "1e-6 bf16", "1e-5 bf16"], "grpo-1e-5": ["1e-5"], "grpo-3e-6": ["3e-6"],
            "grpo-1e-6-again": ["1e-6"]}
LINKS, SLOW_LINKS = "1000 200 100", "10 2"  # Mbit/s; a whole model would take minutes over the slow ones
LINK_STEPS = 5  # versions over each link: the last, the one before, the last, …
AGAIN = 75


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--document", type=pathlib.Path)
    parser.add_argument("--weft", default=TREE / "build/weft")
    options = parser.parse_args()
    options.main = MAIN
    options.rates = list(RATES)[:1] if options.quick else list(RATES)
    options.steps = QUICK_STEPS if options.quick else STEPS
    options.own_runs = [name for name in options.steps if name.startswith("grpo") and name != MAIN]
    options.settle = 6 if options.quick else 45
    options.prompts, options.samples, options.tokens = (2, 4, 8) if options.quick else (8, 8, 8)
    options.stride = 64 if options.quick else 16
    return options


def code(options, clock, rates):
    """The last two versions of the main stream at some rates, in all formats."""
    import streams

    last = options.steps[MAIN]
    for rate in rates:
        result, room = options.work / f"codecs-{rate}.json", options.work / f"versions-{rate}"
        if not result.exists():
            clock.check()
            streams.versions(options, MAIN, RATES[rate], [last - 1, last], room)
            clock.check()
            subprocess.run(["/usr/bin/python3", "-B", ROOM / "codecs.py", *(streams.gradient_path(room, step)
                           for step in (last - 1, last)), result, "--weft", options.weft], check=True)


def link(options, clock, result, rates, *ways):
    """The same two versions over links of some rates, back and forth, so that there is a median."""
    import streams

    if result.exists():
        return
    clock.check()
    last, model = options.steps[MAIN], options.work / "linked"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    for number in range(LINK_STEPS + 1):
        version = streams.gradient_path(options.work / "versions-1e-6", last - 1 + number % 2)
        os.link(version, model / f"step-{number}.safetensors")
    output = subprocess.run([TREE / "bench/link.sh", "--model", model, "--steps", str(LINK_STEPS), "--rates", rates,
                             "--json", *ways], check=True, stdout=subprocess.PIPE,
                            env={**os.environ, "WEFT": str(options.weft)}).stdout
    result.write_bytes(output)


def measure(options, clock):
    import receivers
    import replay
    import streams

    streams.settle(options, clock)
    versions, last = options.work / "versions-1e-6", options.steps[MAIN]
    streams.gather(options, clock, MAIN, *STREAMS[MAIN], last, versions)
    code(options, clock, options.rates[:1])
    receivers.receivers(options, clock, versions, [last - 1, last])
    replay.replay(options, clock, MAIN, list(replay.VARIANTS))
    code(options, clock, options.rates[1:])
    for name in list(options.steps)[1:]:
        streams.gather(options, clock, name, *STREAMS[name], options.steps[name])
        replay.replay(options, clock, name, REPLAYED[name])
        streams.forget(options, name)
    link(options, clock, options.work / "link.json", "1000" if options.quick else LINKS)
    link(options, clock, options.work / "link-slow.json", "10" if options.quick else SLOW_LINKS, "--patches")


def main():
    options = parse_options()
    options.work.mkdir(parents=True, exist_ok=True)
    import report
    import streams

    try:
        if not options.report:
            measure(options, streams.Clock(options.seconds))
    except streams.OutOfTime:
        print("time is over; the same command goes on", file=sys.stderr)
        return AGAIN
    report.write(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
