# SPDX-License-Identifier: Apache-2.0
"""The study of PULSELoCo: bytes of a round by learning rate, and what the policy gains.

loco.py WEFT WORK [--grid | --overlap] [--quick] [--resume] [--report] [--document FILE]

Four trainers in one process, rounds of eight steps (`weft bench --loco --study`), one run at a time. Each result is
kept in WORK; with --resume, what is there already is not run again, and with --report nothing is run. Then writes
WORK/loco.csv, WORK/loco.svg and the tables; with --document, the tables go between the markers of that file, and the
other two beside it. Rates and steps were chosen with seed 9, the longer and then the longest runs added when shorter ones
of the other seeds had shown how far PULSELoCo is behind on the way up. With --grid the tables are those of values on a
grid instead, on the way up, where the delay is; with --overlap, there too, what it costs that payloads travel during the
next round's steps.
"""
import argparse
import collections
import json
import math
import pathlib
import statistics
import subprocess
import sys

Policy = collections.namedtuple("Policy", "size shape rate steps seeds longest", defaults=[False])

# Rates at which DiLoCo with the paper's outer optimizer learns; of each policy a run on the way up and one that goes on
# until it has levelled off: who is a round or two behind on the way up need not be worse in the end.
POLICIES = [
    Policy("0.1M", "2 layers of 64, 4 heads", "1e-4", 160, [1, 2, 3, 4, 5]),
    Policy("0.1M", "2 layers of 64, 4 heads", "1e-4", 480, [1, 2, 3]),
    Policy("0.1M", "2 layers of 64, 4 heads", "1e-4", 960, [1, 2, 3], longest=True),
    Policy("0.2M", "5 layers of 64, 8 heads on 2", "1e-4", 240, [1, 2, 3]),
    Policy("0.2M", "5 layers of 64, 8 heads on 2", "1e-4", 480, [1, 2, 3], longest=True),
    Policy("0.6M", "3 layers of 128, 4 heads", "5e-5", 96, [1, 2, 3]),
    Policy("0.6M", "3 layers of 128, 4 heads", "5e-5", 240, [1, 2, 3]),
    Policy("0.6M", "3 layers of 128, 4 heads", "5e-5", 480, [1, 2, 3], longest=True),
    Policy("2M", "6 layers of 192, 6 heads on 2", "3e-5", 64, [1, 2, 3]),
    Policy("2M", "6 layers of 192, 6 heads on 2", "3e-5", 192, [1, 2, 3], longest=True),
]
QUICK = [0, 5]  # which --quick runs
AGAIN, OTHER_SEED = "diloco again", 100  # the same policy and other samples: what a run differs from itself
WAYS = ["pulseloco", "diloco", AGAIN, "ddp"]
ABLATION = Policy("0.1M", "", "3e-5", 160, [1, 2, 3])
ABLATED = ["pulseloco", "pulseloco, 8 bits", "nearest", "rounded", "forgetful", "diloco"]
CURVE_SIZE, CURVE_RATES, CURVE_STEPS, CURVE_SEED = "2M", ["1e-6", "2e-6", "3e-6", "6e-6", "1e-5"], 40, 1
LOCAL_STEPS = 8
GRID_POLICIES = [0, 3, 5, 8]  # those on the way up
GRIDS, GRID = [1, 2, 3, 4], 3  # those that bytes are told of, and the usual one
OVERLAP_POLICIES = [0, 5]
OVERLAPPED = ["diloco", "diloco, overlap", f"pulseloco, grid {GRID}", f"pulseloco, grid {GRID}, overlap"]
MARKS = {name: (f"<!-- {name}: begin -->", f"<!-- {name}: end -->") for name in ("loco", "loco grid", "loco overlap")}


# ---- runs ----


class Study:
    def __init__(self, weft, work, resume, report):
        self.weft, self.work, self.resume, self.report = weft, work, resume, report
        self.done = {}

    def run(self, arguments):
        command = [self.weft, "bench", *map(str, arguments), "--quiet", "--json"]
        print(" ".join(map(str, command)), file=sys.stderr, flush=True)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    def policy(self, size, seed):
        """A policy of this size that succeeds in about half of the cases."""
        state = self.work / f"{size}-{seed}.safetensors"
        if not state.exists():
            self.run(["--lm", "--rates", "1e-6", "--steps", 1, "--params", size, "--seed", seed, "--save", state])
        return state

    def measure(self, way, size, rate, steps, seed):
        """The result of a run, which is made once; None if it is not there and is not to be made."""
        name, *settings = way.split(", ")
        grid = next((one.removeprefix("grid ") for one in settings if one.startswith("grid ")), 0)
        bits = next((one.removesuffix(" bits") for one in settings if one.endswith(" bits")), 0)
        overlap = ["--overlap"] if "overlap" in settings else []
        state_seed = seed
        if way == AGAIN:
            name, seed = "diloco", seed + OTHER_SEED
        on_grid = f"-grid-{grid}" if grid else ""
        path = self.work / f"{name}-{size}-{rate}-{steps}-{seed}-{bits}{on_grid}{'-overlap' if overlap else ''}.json"
        if path not in self.done:
            if not self.report and not (self.resume and path.exists()):
                state = self.policy(size, state_seed)
                path.write_bytes(self.run(["--loco", "--study", name, "--state", state, "--rate", rate,
                                           "--steps", steps, "--seed", seed, "--significant", bits, "--grid", grid,
                                           *overlap]))
            self.done[path] = json.loads(path.read_text()) if path.exists() else None
        return self.done[path]

    def each(self, way, policy):
        if way == AGAIN and not policy.longest:
            return {}
        found = {seed: self.measure(way, policy.size, policy.rate, policy.steps, seed) for seed in policy.seeds}
        return {seed: result for seed, result in found.items() if result is not None}


# ---- tables ----


def mean(runs, name):
    return statistics.fmean(run[name] for run in runs)


def spread(runs, name):
    values = [run[name] for run in runs.values()]
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def differences(runs, others, value):
    return [value(runs[seed]) - value(others[seed]) for seed in sorted(set(runs) & set(others))]


def quarter(number):
    """Mean reward of a quarter of a run, from 0."""
    def value(run):
        rewards = [item["reward"] for item in run["rounds"]]
        return statistics.fmean(rewards[len(rewards) * number // 4:len(rewards) * (number + 1) // 4])
    return value


def paired(values):
    """By seed, and their mean with its standard error."""
    if not values:
        return ["", ""]
    percent = [100 * value for value in values]
    error = f" ± {statistics.stdev(percent) / math.sqrt(len(percent)):.1f}" if len(percent) > 1 else ""
    return [", ".join(f"{value:+.1f}" for value in percent), f"{statistics.fmean(percent):+.1f}{error}"]


def row(cells):
    return "| " + " | ".join(cells) + " |"


def header(names):
    left = ("policy", "way", "values", "shape")
    return [row(names), "|" + "".join(":--|" if name in left else "--:|" for name in names)]


GAINS = ["reward, last quarter", "points over DiLoCo, second quarter", "last quarter", "rounds behind", "success after",
         "points over DiLoCo, by seed", "mean"]


def rounds_behind(runs, baseline):
    """The area between the two courses of rewards, over how much DiLoCo's rises: where that is steady, the lag."""
    both = sorted(set(runs) & set(baseline))
    if not both or any(runs[seed]["local_steps"] != baseline[seed]["local_steps"] for seed in both):
        return ""
    ours, theirs = [[statistics.fmean(found[seed]["rounds"][i]["reward"] for seed in both)
                     for i in range(len(baseline[both[0]]["rounds"]))] for found in (runs, baseline)]
    return f"{(sum(theirs) - sum(ours)) / (theirs[-1] - theirs[0]):.1f}"


def gain_cells(runs, baseline):
    """Reward and success in the end, and how many points they are over DiLoCo's with the same seed."""
    values = [quarter(1), quarter(3), lambda run: run["success_after"]]
    second, last, after = [paired(differences(runs, baseline, value)) for value in values]
    if runs is baseline:
        return [spread(runs, "last_rewards"), "", "", "", spread(runs, "success_after"), "", ""]
    return [spread(runs, "last_rewards"), second[1], last[1], rounds_behind(runs, baseline),
            spread(runs, "success_after"), *after]


def gain_table(study, policies):
    lines = header(["policy", "way", "seeds", "success before", *GAINS])
    for policy in policies:
        found = {way: study.each(way, policy) for way in WAYS}
        shared = set.intersection(*(set(found[way]) for way in ("pulseloco", "diloco")))
        found = {way: {seed: run for seed, run in runs.items() if seed in shared} for way, runs in found.items()}
        baseline = found["diloco"]
        for way, runs in found.items():
            name = f"{policy.size}, {policy.rate}, {policy.steps} steps" if way == WAYS[0] else ""
            if runs:
                before = spread(runs, "success_before")
                lines.append(row([name, way, str(len(runs)), before, *gain_cells(runs, baseline)]))
    return lines


def pooled(study, policies):
    """All pairs of the longest runs together."""
    parts = []
    for way in "pulseloco", AGAIN:
        points = [100 * point for policy in policies if policy.longest
                  for point in differences(study.each(way, policy), study.each("diloco", policy),
                                           lambda run: run["success_after"])]
        if len(points) > 1:
            error = statistics.stdev(points) / math.sqrt(len(points))
            parts.append(f"{way} {statistics.fmean(points):+.1f} ± {error:.1f} ({len(points)} pairs, "
                         f"{sum(point > 0 for point in points)} above, deviation {statistics.stdev(points):.1f})")
    return ["", "Points over DiLoCo in the longest runs, all policies: " + "; ".join(parts) + "."] if parts else []


def policy_table(study, policies):
    lines = header(["policy", "shape", "rate", *TRAFFIC])
    for policy in policies:
        runs = study.each("pulseloco", policy)
        if runs:
            lines.append(row([policy.size, policy.shape, policy.rate, *traffic_cells(list(runs.values()))]))
    return lines


def ablation_table(study):
    lines = header(["way", *GAINS, "weights sent", "residual in the end"])
    baseline = study.each("diloco", ABLATION)
    for way in ABLATED:
        runs = baseline if way == "diloco" else study.each(way, ABLATION)
        if runs:
            lines.append(row([way, *gain_cells(runs, baseline), f"{100 * mean(runs.values(), 'fired'):.1f}%",
                              f"{mean(runs.values(), 'residual'):.3f}"]))
    return lines


def grid_table(study, policies):
    lines = header(["policy", "way", "seeds", "rounds behind", "success after", "points over DiLoCo, by seed", "mean",
                    "weights sent", "sent by a rank", "less than DiLoCo", "less than DDP"])
    for policy in policies:
        found = {way: study.each(way, policy) for way in ("pulseloco", f"pulseloco, grid {GRID}", "diloco")}
        shared = set.intersection(*map(set, found.values()))
        found = {way: {seed: run for seed, run in runs.items() if seed in shared} for way, runs in found.items()}
        name = f"{policy.size}, {policy.rate}, {policy.steps} steps"
        for way, runs in found.items() if shared else []:
            behind, success, by_seed, points = gain_cells(runs, found["diloco"])[3:]
            weights, sent, _, dense, ddp = traffic_cells(list(runs.values()))[:5]
            lines.append(row([name, way, str(len(runs)), behind, success, by_seed, points, weights, sent, dense, ddp]))
            name = ""
    return lines


def overlap_table(study, policies):
    lines = header(["policy", "way", "seeds", *GAINS])
    for policy in policies:
        found = {way: study.each(way, policy) for way in OVERLAPPED}
        shared = set.intersection(*map(set, found.values()))
        found = {way: {seed: run for seed, run in runs.items() if seed in shared} for way, runs in found.items()}
        name = f"{policy.size}, {policy.rate}, {policy.steps} steps"
        for way, runs in found.items() if shared else []:
            lines.append(row([name, way, str(len(runs)), *gain_cells(runs, found["diloco"])]))
            name = ""
    return lines


def grid_bytes(study, rates, steps):
    lines = header(["rate", "values", *TRAFFIC])
    for rate in rates:
        for way in ["pulseloco", *(f"pulseloco, grid {grid}" for grid in GRIDS)]:
            result = study.measure(way, CURVE_SIZE, rate, steps, CURVE_SEED)
            if result is not None:
                values = way.partition(", ")[2] or "as they are, where seen"
                lines.append(row([rate, values, *traffic_cells([result])]))
    return lines


# ---- bytes of a round ----

TRAFFIC = ["weights sent", "sent by a rank", "bytes per weight sent", "less than DiLoCo", "less than DDP", "received",
           "ring of FP32, each way", "less than the ring"]


def traffic_cells(runs):
    """A rank sends one payload and receives those of the others; in a ring it receives as much as it sends."""
    fired, part = mean(runs, "fired"), {name: mean([run["bytes"] for run in runs], name) for name in runs[0]["bytes"]}
    both = part["sent"] + part["received"]
    return [f"{100 * fired:.2f}%", f"{part['sent']:,.0f}", f"{part['sent'] / fired / runs[0]['parameters']:.2f}",
            f"{part['dense'] / part['sent']:.1f}×", f"{part['ddp'] / part['sent']:.0f}×", f"{part['received']:,.0f}",
            f"{part['ring']:,.0f}", f"{2 * part['ring'] / both:.1f}×"]


def curve(study, rates, steps):
    """Rate, bits of a value, result."""
    found = []
    for rate in rates:
        for bits in 0, 8:
            way = "pulseloco, 8 bits" if bits else "pulseloco"
            found.append((rate, bits, study.measure(way, CURVE_SIZE, rate, steps, CURVE_SEED)))
    return [item for item in found if item[2] is not None]


def curve_table(found):
    lines = header(["rate", "values", *TRAFFIC])
    for rate, bits, result in found:
        lines.append(row([rate, f"{bits} bits" if bits else "all 24 bits", *traffic_cells([result])]))
    return lines


def csv(study):
    lines = ["way,parameters,rate,seed,significant,steps,success_before,success_after,first_rewards,last_rewards,fired,"
             "changed,residual,sent,received"]
    for _, run in sorted((str(path), run) for path, run in study.done.items() if run is not None):
        steps = len(run["rounds"]) * run["local_steps"]
        values = [run["way"], run["parameters"], run["rate"], run["seed"], run["significant"], steps]
        values += [run[name] for name in ("success_before", "success_after", "first_rewards", "last_rewards", "fired",
                                          "changed", "residual")]
        values += [run["bytes"]["sent"], run["bytes"]["received"]]
        lines.append(",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values))
    return "\n".join(lines) + "\n"


# ---- the picture: weights and bytes over the rate, and the course of rewards ----

WIDTH, HEIGHT, LEFT, TOP, ACROSS, DOWN, COLUMNS = 230, 180, 44, 30, 276, 250, 3
COLOURS = {"pulseloco": "#1f7a8c", "diloco": "#d9702b", AGAIN: "#e8b48a", "ddp": "#888888", "8 bits": "#8e44ad"}


def place(panel, x, y):
    """Panels are numbered row by row."""
    return LEFT + panel % COLUMNS * ACROSS + x * WIDTH, TOP + panel // COLUMNS * DOWN + HEIGHT * (1 - y)


def frame(panel, title, bottom):
    x, y = place(panel, 0, 1)
    return [f'<text x="{x}" y="{y - 12}">{title}</text>',
            f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT + 30}" text-anchor="middle">{bottom}</text>']


def mark_left(panel, share, text):
    x, y = place(panel, 0, share)
    return [f'<line x1="{x}" x2="{x + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{x - 5}" y="{y + 4:.1f}" text-anchor="end">{text}</text>']


def mark_below(panel, share, text):
    x, y = place(panel, share, 0)
    return [f'<text x="{x:.1f}" y="{y + 15}" text-anchor="middle">{text}</text>']


def line(panel, points, colour, dots):
    places = [place(panel, x, y) for x, y in points]
    parts = ['<polyline points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
             + f'" fill="none" stroke="{colour}" stroke-width="1.8"/>']
    return parts + [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places if dots]


def by_rate(panel, found, title, value, marks):
    """Both axes logarithmic; rates from 1e-6 to 1e-5."""
    low, high = math.log(marks[0]), math.log(marks[-1])
    parts = frame(panel, title, "learning rate")
    for mark in marks:
        parts += mark_left(panel, (math.log(mark) - low) / (high - low), f"{mark:g}")
    for rate in "1e-6", "3e-6", "1e-5":
        parts += mark_below(panel, math.log10(float(rate) / 1e-6), rate)
    for bits in 0, 8:
        points = [(math.log10(float(rate) / 1e-6), (math.log(value(run)) - low) / (high - low))
                  for rate, its, run in found if its == bits]
        parts += line(panel, points, COLOURS["8 bits" if bits else "pulseloco"], True)
    return parts


def course(panel, study, policy):
    parts = frame(panel, f"reward, {policy.size}, mean of {len(policy.seeds)} seeds", "steps")
    for i in range(6):
        parts += mark_left(panel, i / 5, f"{0.5 + 0.1 * i:.1f}")
    for share in 0, 0.5, 1:
        parts += mark_below(panel, share, f"{share * policy.steps:g}")
    for way in WAYS:
        runs = study.each(way, policy)
        if runs:
            points = [(share, min(max(2 * (reward - 0.5), 0), 1)) for share, reward in rewards_of(runs)]
            parts += line(panel, points, COLOURS[way], False)
    return parts


def rewards_of(runs):
    """Share of the steps, mean reward; of every eight steps."""
    series = [[item["reward"] for item in run["rounds"]] for run in runs.values()]
    together = LOCAL_STEPS // next(iter(runs.values()))["local_steps"]
    count = len(series[0]) // together
    parts = [[value for values in series for value in values[i * together:(i + 1) * together]] for i in range(count)]
    return [((i + 0.5) / count, statistics.fmean(part)) for i, part in enumerate(parts)]


def panels(study, found, policies):
    if found:
        yield lambda panel: by_rate(panel, found, f"weights sent, %, {CURVE_SIZE}", lambda run: 100 * run["fired"],
                                    [2, 5, 10, 20, 40])
        yield lambda panel: by_rate(panel, found, "times fewer bytes sent than DiLoCo",
                                    lambda run: run["bytes"]["fewer_than_diloco"], [2.5, 5, 10, 20, 40])
    for policy in policies:
        if study.each("pulseloco", policy):
            yield lambda panel, policy=policy: course(panel, study, policy)


def picture(study, found, policies):
    drawn = [part for i, draw in enumerate(panels(study, found, policies)) for part in draw(i)]
    rows = math.ceil(len(list(panels(study, found, policies))) / COLUMNS)
    width, height = LEFT + COLUMNS * ACROSS, TOP + rows * DOWN + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="11" fill="#333">', f'<rect width="{width}" height="{height}" fill="#fff"/>', *drawn]
    shown = [way for way in WAYS if any(study.each(way, policy) for policy in policies)] + (["8 bits"] if found else [])
    for i, name in enumerate(shown):
        text = "pulseloco, values of 8 bits" if name == "8 bits" else name
        parts.append(f'<rect x="{LEFT + 105 * i}" y="{height - 18}" width="14" height="6" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{LEFT + 105 * i + 19}" y="{height - 11}">{text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def put_tables(document, text, marks):
    begin, end = marks
    before, rest = document.read_text().split(begin)
    after = rest.split(end)[1]
    document.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def few_seeds(numbers, quick):
    """Policies with the first three seeds; --quick: one of them with one."""
    chosen, seeds = (numbers[:1], 1) if quick else (numbers, 3)
    return [POLICIES[i]._replace(seeds=POLICIES[i].seeds[:seeds]) for i in chosen]


def overlap_tables(study, quick):
    return "\n".join(["What the policy gains on the way up:", "",
                      *overlap_table(study, few_seeds(OVERLAP_POLICIES, quick))]) + "\n"


def grid_tables(study, quick):
    policies = few_seeds(GRID_POLICIES, quick)
    lines = ["What the policy gains on the way up:", "", *grid_table(study, policies), "",
             f"Bytes of a round, {CURVE_SIZE}, seed {CURVE_SEED}:", "",
             *grid_bytes(study, CURVE_RATES[:1], 24 if quick else CURVE_STEPS)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--grid", action="store_true")
    instead.add_argument("--overlap", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--document", type=pathlib.Path)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    study = Study(chosen.weft.resolve(), chosen.work, chosen.resume, chosen.report)
    if chosen.grid or chosen.overlap:
        text = (grid_tables if chosen.grid else overlap_tables)(study, chosen.quick)
        sys.stdout.write(text)
        if chosen.document is not None:
            put_tables(chosen.document, text, MARKS["loco grid" if chosen.grid else "loco overlap"])
        return
    policies, courses = POLICIES, [policy for policy in POLICIES if policy.longest]
    if chosen.quick:
        policies = courses = [POLICIES[i]._replace(seeds=POLICIES[i].seeds[:1]) for i in QUICK]
    found = curve(study, CURVE_RATES[:1] if chosen.quick else CURVE_RATES, 24 if chosen.quick else CURVE_STEPS)
    tables = [("What the policy gains:", gain_table(study, policies)),
              (f"Other ways to send, {ABLATION.size}, {ABLATION.rate}, {ABLATION.steps} steps, "
               f"seeds {', '.join(map(str, ABLATION.seeds))}:", [] if chosen.quick else ablation_table(study)),
              (f"Bytes of a round by rate, {CURVE_SIZE}, seed {CURVE_SEED}:", curve_table(found)),
              ("Bytes of a round in the runs above:", policy_table(study, policies))]
    lines = ["![weights and bytes by rate, and the course of rewards](loco.svg)"]
    for title, table in tables:
        lines += ["", title, "", *table] if len(table) > 2 else []
        if title == tables[0][0]:
            lines += pooled(study, policies)
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    places = [chosen.work]
    if chosen.document is not None:
        put_tables(chosen.document, text, MARKS["loco"])
        places.append(chosen.document.parent)
    for directory in places:
        (directory / "loco.csv").write_text(csv(study))
        (directory / "loco.svg").write_text(picture(study, found, courses))


if __name__ == "__main__":
    main()
