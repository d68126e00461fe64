# SPDX-License-Identifier: Apache-2.0
"""The frontier of compressed caches (Sparse-RL): success, bytes of keys and values, and rollouts per second.

sparse_frontier.py WEFT WORK [--quick] [--resume] [--report] [--speed] [--document FILE]

Runs one arm with one seed at a time, as bench/sparse_rl.py does, and keeps each result in WORK; with --resume, what is
there already is not run again, and with --report nothing is run. Each cache is also measured for itself, on one thread:
the bytes that it takes today, and how many rollouts a second it makes. That is done once more each time, and the
fastest counts; with --speed nothing else is run, while a machine has nothing else to do. Runs of earlier studies are
taken from the table of runs beside the document, and new ones added to it. Writes the tables and WORK/sparse-
frontier.svg; with --document, the tables go between the markers of that file, and the picture and the tables of runs
and caches beside it. Budgets were chosen with seed 1, which is not among the seeds.
"""
import csv
import json
import shutil
import statistics
import sys

import sparse_rl
from sparse_rl import SEEDS

MODELS = {
    **{name: sparse_rl.MODELS[name] for name in ("short", "long")},
    "longer": {"steps": 30, "length": 259, "options": ["--long", "--chain", "250"]},
    "brief": {"steps": 40, "length": 65, "options": [], "caches": "short"},  # short, for fewer steps
}
FRONTIER = ["short", "long", "longer"]
BOTH = ["naive", "tis"]
# The model, its cache, the corrections that are tried, and with which seeds; the most telling first.
PLAN = [
    ("long", "snapkv:44", BOTH, SEEDS),
    ("long", "snapkv:40", BOTH, SEEDS),
    ("longer", "snapkv:60", BOTH, SEEDS),
    ("longer", "rkv:116", BOTH, SEEDS),
    ("short", "snapkv:34+interval2", BOTH, SEEDS),
    ("short", "rkv:36", BOTH, SEEDS),
    ("brief", "rkv:36", [*BOTH, "tis+veto", "tis+veto+exclude", "tis+geometric2", "tis+temperature1.3", "paper",
                         "paper+normalise", "paper+temperature1.3"], SEEDS[:1]),
    ("long", "snapkv:44", ["paper"], SEEDS[:1]),
    ("long", "snapkv:60", ["naive", "tis", "paper"], SEEDS[:1]),
]
SHOWN = ["dense", "naive", "tis", "paper"]
# Where other corrections are shown beside these: mismatch is considerable in the first, less in the second, and hardly
# there in the third.
COMPARED = [("brief", "rkv:36"), ("long", "snapkv:44"), ("long", "snapkv:60")]
CACHES = "sparse-caches.csv"  # of each cache: bytes and speed
CACHE_COLUMNS = ["model", "cache", "kv_bytes", "rollouts_per_second"]
SPEED = {"steps": 3, "seed": 1, "rollouts": 256}  # a step has so many rollouts
BEGIN, END = "<!-- sparse frontier: begin -->", "<!-- sparse frontier: end -->"
# The bars: so many bytes fewer, and so much of dense success.
BARS = [(0.35, 0.96), (0.50, 0.90)]


# ---- runs ----


def planned():
    """Each arm with a seed, once; dense runs are known from the table of runs, or come first."""
    runs = []
    for model, cache, corrections, seeds in PLAN:
        runs += [(f"{model}/dense", seed) for seed in seeds]
        runs += [(f"{model}/{cache}:{correction}", seed) for correction in corrections for seed in seeds]
    return list(dict.fromkeys(runs))


def cache_of(arm):
    return ":".join(arm.split(":")[:2])


def cache_name(model, arm):
    """A cache as the table of caches names it."""
    return MODELS[model].get("caches", model), cache_of(arm)


def correction_of(arm):
    return arm.split(":")[-1]


def run_all(options, known):
    runs = [("short/rkv:28:tis", SEEDS[0])] if options.quick else planned()
    for arm, seed in runs:
        model, rest = arm.split("/")
        path = sparse_rl.path_of(options.work, arm, seed)
        if not path.exists() and (model, rest, str(seed)) not in known:
            chosen = {"steps": 2, "options": ["--quick"]} if options.quick else MODELS[model]
            path.write_bytes(sparse_rl.measure(options.weft, options.work, rest, seed, chosen))
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    seeds = sorted({seed for _, seed in runs})
    return sparse_rl.load(options.work, arms, seeds)


def measure_cache(options, model, cache):
    """Whatever is sampled, a rollout has as many tokens, so a policy that is hardly warmed up will do."""
    steps = 1 if options.quick else SPEED["steps"]
    rest = cache if cache == "dense" else f"{cache}:naive"
    chosen = {"steps": steps, "options": [*MODELS[model]["options"], "--quick", "--threads", "1"]}
    run = json.loads(sparse_rl.measure(options.weft, options.work, rest, SPEED["seed"], chosen))
    return {"kv_bytes": sparse_rl.memory(run),
            "rollouts_per_second": SPEED["rollouts"] * steps / run["seconds"]["sample"]}


def measure_caches(options, rows):
    """Of each model the caches that its runs have, or will have."""
    caches = read_caches(options.work / CACHES)
    arms = [(row["model"], row["arm"]) for row in rows if row["model"] in MODELS]
    arms += [] if options.quick else [tuple(arm.split("/")) for arm, _ in planned()]
    for name in dict.fromkeys(cache_name(model, arm) for model, arm in arms):
        found = measure_cache(options, *name)
        caches[name] = max(found, caches.get(name, found), key=lambda one: one["rollouts_per_second"])
    return caches


def read_caches(path):
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["model"], row["cache"]): {name: float(row[name]) for name in CACHE_COLUMNS[2:]}
                for row in csv.DictReader(file)}


def write_caches(path, caches):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CACHE_COLUMNS)
        for name, row in caches.items():
            writer.writerow([*name, f"{row['kv_bytes']:.4f}", f"{row['rollouts_per_second']:.1f}"])


# ---- tables ----


def by_arm(rows):
    """Success of the dense policy and k3 at the end, by model, arm and seed."""
    found = {model: {} for model in MODELS}
    for row in rows:
        if row["model"] in MODELS:
            found[row["model"]].setdefault(row["arm"], {})[int(row["seed"])] = {
                name: float(row[name]) for name in sparse_rl.COLUMNS[4:]}
    return found


def of_dense(arms, arm):
    """What an arm keeps of dense success, with the seeds that both have; None if there is no such."""
    both = sorted(set(arms[arm]) & set(arms.get("dense", {})))
    if not both:
        return None
    return statistics.fmean(arms[arm][seed]["after_dense"] for seed in both) / statistics.fmean(
        arms["dense"][seed]["after_dense"] for seed in both)


def gains(arms, arm):
    naive = arms.get(f"{cache_of(arm)}:naive", {})
    return [arms[arm][seed]["after_dense"] - naive[seed]["after_dense"] for seed in sorted(set(arms[arm]) & set(naive))]


def mean_of(runs, name):
    return statistics.fmean(run[name] for run in runs.values())


def in_order(arms, caches, model):
    """Dense first, then by bytes, the fewest last."""
    unknown = {"kv_bytes": 0}
    return sorted(arms, key=lambda arm: (arm != "dense", -caches.get(cache_name(model, arm), unknown)["kv_bytes"],
                                         cache_of(arm)))


def line_of(model, arms, arm, caches):
    runs, cache = arms[arm], caches.get(cache_name(model, arm))
    share, dense = of_dense(arms, arm), caches.get(cache_name(model, "dense"))
    cells = [model, arm, ", ".join(map(str, sorted(runs))),
             ", ".join(f"{runs[seed]['after_dense']:.3f}" for seed in sorted(runs)),
             f"{100 * share:.1f}%" if share is not None else "",
             ", ".join(f"{100 * gain:+.1f}" for gain in gains(arms, arm)) if not arm.endswith("naive") else "",
             f"{mean_of(runs, 'after_sparse'):.3f}", f"{mean_of(runs, 'k3_end'):.3f}",
             f"{100 * mean_of(runs, 'rejected_end'):.0f}%",
             f"{100 * cache['kv_bytes']:.0f}%" if cache else "",
             f"{cache['rollouts_per_second'] / dense['rollouts_per_second']:.2f}" if cache and dense else ""]
    return "| " + " | ".join(cells) + " |"


def table(found, caches, shown):
    lines = ["| policy | arm | seeds | dense policy, by seed | of dense | points over naive, by seed | as sampled | k3 "
             "| rejected | KV bytes | rollouts/s |", "|:--|:--|:--|:--|" + "--:|" * 7]
    for model, arms in found.items():
        lines += [line_of(model, arms, arm, caches) for arm in in_order(arms, caches, model) if shown(model, arm)]
    return lines


def best(model, arms, caches, saved, seeds):
    """The corrected arm that keeps most with so many bytes fewer, of those with all seeds."""
    good = [arm for arm in arms if correction_of(arm) == "tis" and set(seeds) <= set(arms[arm])
            and caches.get(cache_name(model, arm), {"kv_bytes": 2})["kv_bytes"] <= 1 - saved]
    return max(good, key=lambda arm: of_dense(arms, arm), default=None)


def bars(found, caches):
    lines = ["| at least so many bytes fewer | of dense, at least | " + " | ".join(FRONTIER) + " |",
             "|:--|--:|" + ":--|" * len(FRONTIER)]
    for saved, wanted in BARS:
        cells = []
        for model in FRONTIER:
            arm = best(model, found[model], caches, saved, SEEDS)
            cells.append(f"{arm}: {100 * of_dense(found[model], arm):.1f}%" if arm else "none was run")
        lines.append(f"| {100 * saved:.0f}% | {100 * wanted:.0f}% | " + " | ".join(cells) + " |")
    return lines


def is_shown(model, arm):
    return model in FRONTIER and correction_of(arm) in SHOWN


def is_compared(model, arm):
    return (model, cache_of(arm)) in COMPARED


def tables(found, caches):
    return "\n".join(["![success and rollouts per second by bytes of keys and values](sparse-frontier.svg)", "",
                      *table(found, caches, is_shown), "", "The bars, and the best `tis` arm with all three seeds:", "",
                      *bars(found, caches), "",
                      "Other corrections, where mismatch is considerable, less, and hardly there:", "",
                      *table(found, caches, is_compared)]) + "\n"


# ---- the picture: of each policy, what is kept of dense success, and rollouts per second, over bytes ----


LEAST, MOST = 20, 110  # bytes, % of a whole cache


def panel(row, column, title, highest):
    return sparse_rl.axes(row, column, title, "KV bytes, % of a whole cache", LEAST, MOST, highest)


def place(row, column, cache, height):
    return sparse_rl.point(row, column, (100 * cache["kv_bytes"] - LEAST) / (MOST - LEAST), height)


def success_panel(model, arms, caches, column):
    parts = panel(0, column, f"{model}: of dense success", 1.2)
    dense = arms.get("dense", {})
    for arm in (arm for arm in arms if is_shown(model, arm) and cache_name(model, arm) in caches):
        for seed in sorted(set(arms[arm]) & set(dense)):
            kept = arms[arm][seed]["after_dense"] / dense[seed]["after_dense"]
            x, y = place(0, column, caches[cache_name(model, arm)], kept / 1.2)
            parts.append(sparse_rl.mark(x, y, arm, sparse_rl.colour_of(arm)))
    return parts


def speed_panel(model, caches, column):
    parts = panel(1, column, f"{model}: rollouts/s, dense = 1", 2)
    dense = caches.get((model, "dense"))
    for (name, cache), row in caches.items():
        if name == model and dense:
            x, y = place(1, column, row, row["rollouts_per_second"] / dense["rollouts_per_second"] / 2)
            parts.append(sparse_rl.mark(x, y, cache, "#333333"))
    return parts


def picture(found, caches):
    width, height = sparse_rl.corner(2, len(FRONTIER))
    parts = sparse_rl.paper(width, height)
    for column, model in enumerate(FRONTIER):
        parts += success_panel(model, found[model], caches, column) + speed_panel(model, caches, column)
    parts += sparse_rl.legend(SHOWN, 80, height)
    parts.append(f'<text x="{sparse_rl.LEFT + 340}" y="{height - 11}">circles: R-KV and dense; squares: SnapKV; '
                 'a mark above is a run</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    parser = sparse_rl.arguments(__doc__)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    kept = options.resume or options.report or options.speed
    if not kept:
        shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True, exist_ok=True)
    beside = options.document.parent if options.document else options.work
    earlier = sparse_rl.read_records(beside / sparse_rl.RECORD)
    if options.report or options.speed:
        new = sparse_rl.load(options.work, dict.fromkeys(arm for arm, _ in planned()), {seed for _, seed in planned()})
    else:
        new = run_all(options, {sparse_rl.name_of(row) for row in earlier})
    rows = list({sparse_rl.name_of(row): row for row in [*earlier, *sparse_rl.records(new)]}.values())
    if not options.report:
        write_caches(options.work / CACHES, measure_caches(options, rows))
    caches = read_caches(options.work / CACHES) or read_caches(beside / CACHES)
    found = by_arm(rows)
    text = tables(found, caches)
    sys.stdout.write(text)
    (options.work / "sparse-frontier.svg").write_text(picture(found, caches))
    if options.document:
        sparse_rl.put_tables(options.document, text, BEGIN, END)
        sparse_rl.write_records(beside / sparse_rl.RECORD, sparse_rl.records(new))
        (beside / "sparse-frontier.svg").write_text(picture(found, caches))
        if (options.work / CACHES).exists():
            shutil.copy(options.work / CACHES, beside / CACHES)


if __name__ == "__main__":
    main()
