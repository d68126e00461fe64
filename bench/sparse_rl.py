# SPDX-License-Identifier: Apache-2.0
"""The study of learning under compressed caches of keys and values (Sparse-RL).

sparse_rl.py WEFT WORK [--quick] [--resume] [--report] [--document FILE]

Runs one arm with one seed at a time with `weft bench --lm --sparse` and keeps each result in WORK; with --resume, what
is there already is not run again, and with --report nothing is run. Then writes WORK/sparse-rl.csv,
WORK/sparse-rl.svg and the tables; with --document, the tables go between the markers of that file, and the other two
beside it. The table of runs there keeps those that WORK does not have, and tables are not written without a run that
they would lose. What is run is fixed here; its settings were chosen with seed 1, which is not among the seeds.
bench/sparse_frontier.py has more policies and budgets, and other tables.
"""
import argparse
import csv
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

SEEDS = [11, 12, 13]
# Language models, and how long they learn: the compression whose courses are drawn, and the tokens of a sequence.
MODELS = {
    "short": {"steps": 100, "length": 65, "shown": "rkv:28", "options": []},
    "long": {"steps": 60, "length": 115, "shown": "rkv:60", "options": ["--long"]},
    "late": {"steps": 150, "length": 115, "shown": "rkv:60", "options": ["--long"]},  # long, for more steps
}
RECORD = "sparse-rl.csv"  # of all runs, those of bench/sparse_frontier.py among them
CHIEF = ["naive", "tis", "paper"]
PRESETS = [*CHIEF, "released", "mis", "icepop"]
# The model, how its caches are compressed, and the corrections that are tried; the most telling first.
PLAN = [
    ("short", "rkv:28", CHIEF),
    ("long", "rkv:60", CHIEF),
    ("short", "rkv:28", [*PRESETS, "tis+veto", "paper-veto"]),
    ("short", "snapkv:28", CHIEF),
    ("short", "rkv:16", CHIEF),
    ("late", "rkv:60", ["naive", "tis"]),
    ("short", "rkv:36", ["tis", "tis+veto"]),
    ("short", "snapkv:28", PRESETS),
    ("short", "rkv:16", PRESETS),
    ("long", "rkv:60", ["mis", "tis+veto"]),
    ("short", "rkv:28", ["none+veto", "bypass"]),
    ("short", "snapkv:16", CHIEF),
]
QUICK = ["short/dense", "short/rkv:28:naive", "short/rkv:28:tis"]
COLUMNS = ["model", "arm", "seed", "steps", "before_dense", "before_sparse", "after_dense", "after_sparse", "log_xi_end",
           "k3_end", "rejected_end", "masked_end", "below_veto_end", "kv_held", "kv_full", "kv_peak_bytes",
           "kv_dense_bytes", "sample_seconds", "train_seconds"]
BEGIN, END = "<!-- sparse-rl: begin -->", "<!-- sparse-rl: end -->"
LAST = 2  # pieces of a series that count as its end: 20 steps


def all_arms():
    arms = []
    for model, cache, corrections in PLAN:
        arms += [f"{model}/dense"] + [f"{model}/{cache}:{correction}" for correction in corrections]
    return list(dict.fromkeys(arms))


def measure(weft, work, rest, seed, model):
    command = [weft, "bench", "--lm", "--sparse", rest, "--seed", str(seed), "--steps", str(model["steps"]),
               "--directory", work / "warm", "--json", "--quiet", *model["options"]]
    print(" ".join(map(str, command)), file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def path_of(work, arm, seed):
    return work / f"{arm.replace(':', '-').replace('/', '-')}-seed-{seed}.json"


def load(work, arms, seeds=SEEDS):
    """The runs of each arm, by seed."""
    found = {}
    for arm in arms:
        for seed in seeds:
            path = path_of(work, arm, seed)
            if path.exists():
                found.setdefault(arm, {})[seed] = json.loads(path.read_text())
    return found


# ---- tables ----


def mean(values):
    return statistics.fmean(values)


def at_end(run, name):
    return mean([piece[name] for piece in run["series"][-LAST:]])


def memory(run):
    return run["kv"]["peak_bytes"] / run["kv"]["dense_bytes"]


def each(runs, value, form="{:.3f}"):
    return ", ".join(form.format(value(run)) for _, run in sorted(runs.items()))


def naive_of(arm):
    return ":".join([*arm.split(":")[:2], "naive"])


def of_model(found, model):
    """The arms of one language model, in an order for people, named without it."""
    arms = {arm.split("/")[1]: runs for arm, runs in found.items() if arm.startswith(model + "/")}
    places = {"dense": 0, "h2o": 1, "rkv": 2, "snapkv": 3}
    return dict(sorted(arms.items(), key=lambda one: (places[one[0].split(":")[0]],
                                                      -int((one[0] + ":0").split(":")[1].split("+")[0]))))


def against(found, arm, other):
    """Differences in dense-policy success, by seed that both have."""
    both = sorted(set(found.get(arm, {})) & set(found.get(other, {})))
    return [found[arm][seed]["after"]["dense"] - found[other][seed]["after"]["dense"] for seed in both]


def main_table(found):
    lines = [
        "| arm | seeds | dense policy, by seed | mean | of dense | points over naive, by seed | as sampled | \\|log ξ\\| | rejected "
        "| masked | below veto | KV tokens | KV bytes |",
        "|:--|:--|:--|" + "--:|" * 10,
    ]
    for arm, runs in found.items():
        values = list(runs.values())
        dense = [run["after"]["dense"] for seed, run in found.get("dense", {}).items() if seed in runs]
        success = mean([run["after"]["dense"] for run in values])
        gains = against(found, arm, naive_of(arm)) if arm != "dense" and not arm.endswith(":naive") else []
        lines.append("| " + " | ".join([
            arm, ", ".join(map(str, sorted(runs))), each(runs, lambda run: run["after"]["dense"]), f"{success:.3f}",
            f"{100 * success / mean(dense):.0f}%" if dense else "",
            ", ".join(f"{100 * gain:+.1f}" for gain in gains),
            f"{mean([run['after']['sparse'] for run in values]):.3f}",
            f"{mean([at_end(run, 'distance') for run in values]):.2f}",
            f"{100 * mean([at_end(run, 'rejected') for run in values]):.0f}%",
            f"{100 * mean([at_end(run, 'masked') for run in values]):.0f}%",
            f"{100 * mean([at_end(run, 'below_veto') for run in values]):.0f}%",
            f"{100 * mean([run['kv']['held'] / run['kv']['full'] for run in values]):.0f}%",
            f"{100 * mean([memory(run) for run in values]):.0f}%"]) + " |")
    return lines


def deployment_table(found):
    names = list(next(iter(next(iter(found.values())).values()))["deployed"])
    lines = ["| trained as | whole cache | " + " | ".join(names) + " |", "|:--|" + "--:|" * (len(names) + 1)]
    for arm, runs in found.items():
        cells = [arm, f"{mean([run['after']['dense'] for run in runs.values()]):.3f}"]
        cells += [f"{mean([run['deployed'][name] for run in runs.values()]):.3f}" for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def tables_of_model(found, model):
    runs = [run for seeds in found.values() for run in seeds.values()]
    starts = {run["seed"]: run["before"]["dense"] for run in runs}
    return [f"**{model.capitalize()}**: {runs[0]['parameters']:,} parameters, sequences of {MODELS[model]['length']} tokens, "
            f"{len(runs)} runs of {MODELS[model]['steps']} steps. Success of the dense policy before them, by seed: "
            + ", ".join(f"{starts[seed]:.3f}" for seed in sorted(starts)) + ".", "", *main_table(found), "",
            "The same policies deployed with compressed caches; success, mean over seeds:", "", *deployment_table(found)]


def tables(found):
    lines = ["![success by memory, and the course of reward, mismatch and rejection](sparse-rl.svg)"]
    for model in MODELS:
        arms = of_model(found, model)
        lines += ["", *tables_of_model(arms, model)] if arms else []
    return "\n".join(lines) + "\n"


def number(value):
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def records(found):
    """What the table of runs has of each run, as text by the names of COLUMNS."""
    rows = []
    for arm, runs in found.items():
        for seed, run in sorted(runs.items()):
            kv = run["kv"]
            values = [*arm.split("/"), seed, run["steps"], run["before"]["dense"], run["before"]["sparse"], run["after"]["dense"],
                      run["after"]["sparse"]]
            values += [at_end(run, name) for name in ("distance", "k3", "rejected", "masked", "below_veto")]
            values += [kv["held"], kv["full"], kv["peak_bytes"], kv["dense_bytes"], run["seconds"]["sample"],
                       run["seconds"]["train"]]
            rows.append(dict(zip(COLUMNS, map(number, values))))
    return rows


def read_records(path):
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def name_of(row):
    return row["model"], row["arm"], row["seed"]


def write_records(path, rows):
    """Runs that the file has and that are not given stay."""
    kept = {name_of(row): row for row in [*read_records(path), *rows]}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())


# ---- the picture: of each language model, success over memory, and reward, mismatch and rejection over steps ----

WIDTH, HEIGHT, LEFT, TOP, GAP, FOOT = 230, 190, 44, 30, 46, 50
COLOURS = {"dense": "#333333", "naive": "#b03a2e", "tis": "#1f7a8c", "paper": "#8e44ad", "released": "#d4a017",
           "mis": "#2e9e6b", "icepop": "#d9702b"}


def colour_of(arm):
    return COLOURS.get(arm.split(":")[-1])


def corner(row, column):
    return LEFT + column * (WIDTH + GAP), TOP + row * (TOP + HEIGHT + FOOT)


def axes(row, column, title, bottom, left_most, right_most, most):
    x, top = corner(row, column)
    parts = [f'<text x="{x}" y="{top - 12}">{title}</text>',
             f'<text x="{x + WIDTH / 2}" y="{top + HEIGHT + 30}" text-anchor="middle">{bottom}</text>']
    for i in range(5):
        y = top + HEIGHT * i / 4
        parts.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 5}" y="{y + 4}" text-anchor="end">{most * (4 - i) / 4:.2g}</text>')
    for share in (0, 0.5, 1):
        value = left_most + share * (right_most - left_most)
        parts.append(f'<text x="{x + share * WIDTH}" y="{top + HEIGHT + 15}" text-anchor="middle">{value:g}</text>')
    return parts


def point(row, column, x, y):
    left, top = corner(row, column)
    return left + x * WIDTH, top + HEIGHT * (1 - min(max(y, 0), 1))


def mark(x, y, arm, colour):
    """A square for SnapKV, else a circle."""
    if arm.startswith("snapkv"):
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{colour}" fill-opacity="0.75"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" fill-opacity="0.75"/>'


def frontier(found, row, column, kind, title):
    parts = axes(row, column, title, "KV bytes, % of a whole cache", 30, 110, 1)
    for arm, runs in found.items():
        for run in runs.values() if colour_of(arm) else []:
            x, y = point(row, column, (100 * memory(run) - 30) / 80, run["after"][kind])
            parts.append(mark(x, y, arm, colour_of(arm)))
    return parts


def courses(found, row, column, name, title, shown, steps):
    drawn = {arm: runs for arm, runs in found.items() if arm == "dense" or (arm.startswith(shown) and colour_of(arm))}
    most = 2 if name == "distance" else 1
    parts = axes(row, column, title, "steps", 0, steps, most)
    for arm, runs in drawn.items():
        count = min(len(run["series"]) for run in runs.values())
        values = [mean([run["series"][i][name] for run in runs.values()]) for i in range(count)]
        places = [point(row, column, (i + 0.5) / count, value / most) for i, value in enumerate(values)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour_of(arm)}" stroke-width="1.8"/>')
    return parts


def panels(found, row, model):
    shown, steps = MODELS[model]["shown"], MODELS[model]["steps"]
    parts = frontier(found, row, 0, "dense", f"{model}: success of the dense policy")
    parts += frontier(found, row, 1, "sparse", f"{model}: success as sampled")
    for column, name, title in ((2, "reward", "reward as sampled"), (3, "distance", "mean |log ξ|"),
                                (4, "rejected", "rejected trajectories")):
        parts += courses(found, row, column, name, f"{model}: {title}, {shown}", shown, steps)
    return parts


def paper(width, height):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            'font-size="11" fill="#333">', f'<rect width="{width}" height="{height}" fill="#fff"/>']


def legend(names, apart, height):
    parts = []
    for i, name in enumerate(names):
        x = LEFT + apart * i
        parts.append(f'<rect x="{x}" y="{height - 18}" width="14" height="6" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 19}" y="{height - 11}">{name}</text>')
    return parts


def picture(found):
    models = [model for model in MODELS if of_model(found, model)]
    width, height = corner(len(models), 5)
    parts = paper(width, height)
    for row, model in enumerate(models):
        parts += panels(of_model(found, model), row, model)
    parts += legend(COLOURS, 110, height)
    parts.append(f'<text x="{LEFT + 800}" y="{height - 11}">circles: R-KV and dense; squares: SnapKV; a mark is a run, '
                 'a line a mean of seeds</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def put_tables(document, text, begin=BEGIN, end=END):
    before, rest = document.read_text().split(begin)
    after = rest.split(end)[1]
    document.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def lost(document, arms, found):
    """Runs in the tables of the document that are not at hand: only some of their figures are in the table of runs."""
    there = {name_of(row) for row in records(found)}
    rows = read_records(document.parent / RECORD)
    return [name_of(row) for row in rows if f"{row['model']}/{row['arm']}" in arms and name_of(row) not in there]


def judge(found, arm):
    """The bar: corrected over naive in every pair of seeds, by 10 points in the mean, with 35% fewer bytes."""
    gains = against(found, arm, naive_of(arm))
    if not gains:
        return ""
    saved = 1 - mean([memory(run) for run in found[arm].values()])
    good = min(gains) > 0 and mean(gains) >= 0.1 and saved >= 0.35
    return (f"{arm} over naive: {', '.join(f'{100 * gain:+.1f}' for gain in gains)} points, mean "
            f"{100 * mean(gains):+.1f}; KV bytes {100 * saved:.0f}% fewer: {'holds' if good else 'DOES NOT HOLD'}\n")


def verdict(found):
    return "".join(judge(found, f"{model}/{chosen['shown']}:tis") for model, chosen in MODELS.items())


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--document", type=pathlib.Path)
    return parser


def main():
    options = arguments(__doc__).parse_args()
    arms = QUICK if options.quick else all_arms()
    if not options.resume and not options.report:
        shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True, exist_ok=True)
    for arm in [] if options.report else arms:
        for seed in SEEDS:
            path = path_of(options.work, arm, seed)
            if not path.exists():
                model, rest = arm.split("/")
                path.write_bytes(measure(options.weft, options.work, rest, seed, MODELS[model]))
    found = load(options.work, arms)
    if not found:
        sys.exit(f"there are no results in {options.work}")
    text = tables(found)
    sys.stdout.write(text + "\n" + verdict(found))
    places = [options.work]
    if options.document:
        gone = lost(options.document, arms, found)
        if gone:
            sys.exit(f"{options.work} lacks {len(gone)} runs that the tables of {options.document} have, such as "
                     f"{' '.join(gone[0])}")
        put_tables(options.document, text)
        places.append(options.document.parent)
    for directory in places:
        write_records(directory / RECORD, records(found))
        (directory / "sparse-rl.svg").write_text(picture(found))


if __name__ == "__main__":
    main()
