# SPDX-License-Identifier: Apache-2.0
"""Reward against delay: the small policy learns from what workers sample that are some versions behind.

staleness.py WEFT WORK [--quick] [--seeds 1,2,3] [--document FILE]

One run of `weft bench --lm --learn` for each delay and seed; each result is kept in WORK, and not measured again. With
--document the table goes between the marks of that file.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

DELAYS = [0, 1, 2, 4, 8]
BEGIN, END = "<!-- staleness: begin -->", "<!-- staleness: end -->"


def measure(weft, work, delay, seed, steps):
    result = work / f"{delay}-{seed}.json"
    if not result.exists():
        command = [weft, "bench", "--lm", "--learn", "--seed", seed, "--staleness", str(delay), "--json", "--quiet"]
        command += ["--steps", str(steps)] if steps else []
        print(" ".join(command), file=sys.stderr, flush=True)
        result.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def table(work):
    lines = ["| versions behind | seeds | success before | after, by seed | mean | reward, last 20 steps |",
             "|--:|--:|--:|--:|--:|--:|"]
    for delay in DELAYS:
        runs = [json.loads(path.read_text()) for path in sorted(work.glob(f"{delay}-*.json"))]
        if runs:
            after = [run["success_after"] for run in runs]
            lines.append(f"| {delay} | {len(runs)} | {statistics.mean(run['success_before'] for run in runs):.3f} | "
                         f"{', '.join(f'{value:.3f}' for value in after)} | {statistics.mean(after):.3f} | "
                         f"{statistics.mean(run['last_rewards'] for run in runs):.3f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--document", type=pathlib.Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for seed in ["1"] if options.quick else options.seeds.split(","):
        for delay in [0, 8] if options.quick else DELAYS:
            measure(options.weft, options.work, delay, seed, 20 if options.quick else 0)
    text = table(options.work)
    sys.stdout.write(text)
    if options.document:
        before, rest = options.document.read_text().split(BEGIN)
        options.document.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
