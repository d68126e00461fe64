# SPDX-License-Identifier: Apache-2.0
"""The study of PULSELoCo: bytes of a round, and what the policy gains.

loco.py WEFT WORK [--quick] [--resume] [--document FILE]

Four trainers in one process, rounds of eight steps (`weft bench --loco --study`). Bytes are measured at the rates
of large models, rewards at rates at which policies this small learn in minutes. Each result is kept in WORK; with
--resume, what is there already is not measured again. With --document, the tables go between the markers of that
file.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

BYTES_SIZE, BYTES_RATES, BYTES_STEPS = "2M", ["1e-6", "3e-6"], 40
# size, rate and steps of a policy whose rewards are compared
POLICIES = [("0.1M", "2e-4", 160), ("0.1M", "5e-5", 160), ("0.6M", "1e-4", 96), ("2M", "3e-5", 48)]
SEEDS = [1, 2, 3]
ABLATION = ("0.1M", "2e-4", 160)
BEGIN, END = "<!-- loco: begin -->", "<!-- loco: end -->"


def run(command, output=None):
    print(" ".join(map(str, command)), file=sys.stderr, flush=True)
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    if output is not None:
        output.write_bytes(result)


class Study:
    def __init__(self, weft, work, resume):
        self.weft, self.work, self.resume = weft, work, resume

    def policy(self, size, seed):
        """A policy of this size that succeeds in half of the cases."""
        state = self.work / f"{size}-{seed}.safetensors"
        if not state.exists():
            run([self.weft, "bench", "--lm", "--rates", "1e-6", "--steps", "1", "--params", size, "--seed", str(seed),
                 "--save", state, "--quiet", "--json"])
        return state

    def measure(self, way, size, rate, steps, seed, bits=0):
        result = self.work / f"{way}-{size}-{rate}-{steps}-{seed}-{bits}.json"
        if not (self.resume and result.exists()):
            run([self.weft, "bench", "--loco", "--study", way, "--state", self.policy(size, seed), "--rate", rate,
                 "--steps", str(steps), "--seed", str(seed), "--significant", str(bits), "--quiet", "--json"], result)
        return json.loads(result.read_text())


def bytes_table(study, rates, steps):
    lines = [
        "| rate | values | weights sent | sent by a rank | bytes per weight sent | less than DiLoCo | less than DDP "
        "| received | less than a ring |", "|--:|---|--:|--:|--:|--:|--:|--:|--:|"]
    for rate in rates:
        for bits in 0, 8:
            found = study.measure("pulseloco", BYTES_SIZE, rate, steps, 1, bits)
            part = found["bytes"]
            lines.append(
                f"| {rate} | {'all 24 bits' if bits == 0 else f'{bits} bits'} | {100 * found['fired']:.2f}% "
                f"| {part['sent']:,.0f} | {part['sent'] / found['fired'] / found['parameters']:.2f} "
                f"| {part['fewer_than_diloco']:.1f}× | {part['fewer_than_ddp']:.0f}× | {part['received']:,.0f} "
                f"| {2 * part['ring'] / (part['sent'] + part['received']):.1f}× |")
    return lines


def reward_row(study, way, size, rate, steps, seeds):
    found = [study.measure(way, size, rate, steps, seed) for seed in seeds]
    mean = lambda name: statistics.mean(result[name] for result in found)
    rise = [result["success_after"] - result["success_before"] for result in found]
    sent = statistics.mean(result["bytes"]["sent"] for result in found)
    sent_text = f"{sent:,.0f}" if sent > 0 else ""
    return (f"| {size} | {rate} | {way} | {mean('first_rewards'):.3f} | {mean('last_rewards'):.3f} "
            f"| {mean('success_before'):.3f} | {mean('success_after'):.3f} | {min(rise):+.3f} to {max(rise):+.3f} "
            f"| {100 * mean('fired'):.1f}% | {sent_text} |")


def reward_table(study, policies, seeds, ablation):
    lines = ["| parameters | rate | way | reward, first quarter | last | success before | after | rise by seed "
             "| weights sent | bytes |", "|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|"]
    for size, rate, steps in policies:
        for way in "pulseloco", "diloco":
            lines.append(reward_row(study, way, size, rate, steps, seeds))
    for way in ablation:
        lines.append(reward_row(study, way, *ABLATION, seeds))
    return lines


def write(document, lines):
    text = document.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    document.write_text(text[:begin] + "\n\n" + "\n".join(lines) + "\n\n" + text[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weft", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--document", type=pathlib.Path)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    study = Study(chosen.weft.resolve(), chosen.work, chosen.resume)
    quick = chosen.quick
    lines = ["Bytes of a round:", ""]
    lines += bytes_table(study, BYTES_RATES[:1] if quick else BYTES_RATES, 24 if quick else BYTES_STEPS)
    lines += ["", "What the policy gains:", ""]
    lines += reward_table(study, POLICIES[:1] if quick else POLICIES, SEEDS[:1] if quick else SEEDS,
                          [] if quick else ["forgetful", "rounded"])
    print("\n".join(lines))
    if chosen.document is not None:
        write(chosen.document, lines)


if __name__ == "__main__":
    main()
