# SPDX-License-Identifier: Apache-2.0
"""The study of sparsity: by step, learning rate, delay and size of the model.

sparsity.py WEFT WORK [--quick] [--resume] [--sizes 0.1M,2M] [--document FILE]

Measures one size and one rate at a time with `weft bench --lm --rates` and keeps each result in WORK; with
--resume, what is there already is not measured again. Then writes WORK/sparsity.csv, WORK/sparsity.svg,
WORK/testbed-law.svg and the tables; with --document, the tables go between the markers of that file, and the others
beside it.
"""
import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import textwrap

import law

SIZES = ["0.1M", "0.6M", "2M", "8M"]
RATES = ["1e-6", "3e-6", "1e-5", "3e-5", "1e-4", "3e-4", "1e-3"]
QUICK_SIZES = ["0.1M", "0.6M"]
QUICK_RATES = ["1e-6", "1e-5", "1e-4", "1e-3"]
DELAYS = ["1", "2", "4", "8", "16", "32"]
LAW_SIZES = ["2M", "0.6M", "0.1M", "8M"]  # the first that was measured has its table and its picture
LAW_RATES = ["1e-6", "1e-5", "1e-4"]
MANY = 10000  # changes of a class that counting alone puts off by a percent
BEGIN, END = "<!-- sparsity: begin -->", "<!-- sparsity: end -->"


def measure(weft, work, size, rate, steps, resume):
    result = work / f"{size}-{rate}.json"
    state = work / f"{size}.safetensors"
    if resume and result.exists():
        return
    policy = ["--state", state] if state.exists() else ["--params", size, "--save", state]
    command = [weft, "bench", "--lm", "--rates", rate, "--steps", str(steps), "--json", "--quiet", *policy]
    print(" ".join(map(str, command)), file=sys.stderr, flush=True)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    result.write_bytes(output)


def load(work, sizes, rates):
    rows = []
    for size in sizes:
        for rate in rates:
            path = work / f"{size}-{rate}.json"
            if path.exists():
                data = json.loads(path.read_text())
                rows.append({**data["rates"][0], "size": size, "rate": rate, "run": data})
    return rows


# ---- tables ----


def percent(value):
    return f"{100 * value:.2f}" if value >= 0.001 else f"{100 * value:.3f}"


def main_table(rows):
    lines = [
        "| parameters | rate | k=1 | 2 | 4 | 8 | 16 | 32 | most, k=1 | bytes per sync | times fewer | reward |",
        "|--:|--:|" + "--:|" * 10,
    ]
    for row in rows:
        cells = [f"{row['run']['parameters']:,}", row["rate"]]
        for delay in DELAYS:
            density = row["density"][delay]
            cells.append(percent(density["mean"]) if density else "")
        cells.append(percent(row["density"]["1"]["most"]))
        cells.append(f"{row['bytes']['sent']:,.0f}")
        cells.append(f"{row['times_fewer']:.0f}")
        cells.append(f"{row['reward']:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


STEPS = [(1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, 30), (31, 50), (51, 70)]


def step_table(rows):
    """The first steps after Adam's reset, and those that count."""
    lines = [
        "| parameters | rate | " + " | ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in STEPS) + " |",
        "|--:|--:|" + "--:|" * len(STEPS),
    ]
    for row in rows:
        steps = row["density_by_step"]
        cells = [f"{row['run']['parameters']:,}", row["rate"]]
        for first, last in STEPS:
            part = steps[first - 1 : last]
            cells.append(percent(sum(part) / len(part)) if part else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def law_classes(row):
    """As law.py has them."""
    return [(one["exponent"], one["weights"], one["changes"], one["expected"]) for one in row["law"]]


def law_rows(rows):
    """Of the size that is shown by exponent."""
    size = next(size for size in LAW_SIZES if any(row["size"] == size for row in rows))
    return [row for row in rows if row["size"] == size]


def far(pairs):
    """The class that is farthest off, of pairs of a row and a class."""
    if not pairs:
        return "none"
    row, one = max(pairs, key=lambda pair: abs(law.off(pair[1])))
    return (f"{100 * law.off(one):+.1f}% off (weights from 2^{one[0]} of {row['run']['parameters']:,} parameters at "
            f"{row['rate']}, {one[2]:,} changes)")


def law_text(rows):
    lines = []
    shown = law_rows(rows)[0]
    text = (f"**The law.** The chance that a step changes a weight, by exponent of the weight, beside the mean of min(1, "
            f"|Δ|/ULP) over the same weights: {shown['run']['parameters']:,} parameters at {shown['rate']}, the "
            f"{shown['run']['steps']} steps that count, exponents with at least {law.CHANGES:,} changes. Δ is the change "
            "of the FP32 master from one version to the next:")
    lines += [*textwrap.wrap(text, 120), "", "| " + " | ".join(law.HEAD) + " |", "|---|" + "--:|" * (len(law.HEAD) - 1)]
    lines += ["| " + " | ".join(cells) + " |" for cells in law.rows(law_classes(shown))]
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    lines += ["", *textwrap.wrap(f"All sizes and rates: the exponents with at least {law.CHANGES:,} changes and a chance "
                                 f"under {law.CHANCE}, and by how many percent the farthest of them is off:", 120)]
    lines += ["", "| parameters | " + " | ".join(rates) + " |", "|--:|" + "--:|" * len(rates)]
    for size in dict.fromkeys(row["size"] for row in rows):
        of_size = {row["rate"]: row for row in rows if row["size"] == size}
        cells = [f"{next(iter(of_size.values()))['run']['parameters']:,}"]
        for rate in rates:
            judged = law.judged(law_classes(of_size[rate])) if rate in of_size else []
            cells.append(f"{len(judged)}: {100 * law.off(law.farthest(judged)):+.1f}" if judged else "")
        lines.append("| " + " | ".join(cells) + " |")
    judged = [(row, one) for row in rows for one in law.judged(law_classes(row))]
    many = [pair for pair in judged if pair[1][2] >= MANY]
    few = [(row, one) for row in rows for one in law.judged(law_classes(row), law.FEW, law.CHANGES)]
    totals = [sum(one[2] for one in law_classes(row)) / sum(one[3] for one in law_classes(row)) for row in rows]
    text = (f"Together these are {len(judged)} classes. The farthest is {far(judged)}; "
            f"{law.verdict(law.off(law.farthest(one for _, one in judged)))}. Of the {len(many)} with at least "
            f"{MANY:,} changes it is {far(many)}. The {len(few)} classes with {law.FEW} to {law.CHANGES - 1} changes are not "
            f"judged; the farthest is {far(few)}. All changes of a run together are {100 * (min(totals) - 1):+.2f}% to "
            f"{100 * (max(totals) - 1):+.2f}% off.")
    return [*lines, "", *textwrap.wrap(text, 120), "", "![chance of a change by size of the weight](testbed-law.svg)"]


def tables(rows):
    lines = ["Share of the BF16 weights that differ after k steps, in percent, and what a version costs:", ""]
    lines += main_table(rows)
    few = [row for row in rows if row["rate"] in ("1e-6", "1e-5", "1e-4")]
    lines += ["", "Share that one step changes, by step since Adam's moments were reset (1–20 do not count above):"]
    lines += ["", *step_table(few), "", *law_text(rows)]
    return "\n".join(lines) + "\n"


def csv(rows):
    lines = ["parameters,rate,delay,density_mean,density_most,windows,bytes_sent,bytes_dense,reward"]
    for row in rows:
        for delay in DELAYS:
            density = row["density"][delay]
            if density:
                values = [row["run"]["parameters"], row["rate"], delay, f"{density['mean']:.6g}"]
                values += [f"{density['most']:.6g}", density["windows"], f"{row['bytes']['sent']:.1f}"]
                values += [row["bytes"]["dense"], f"{row['reward']:.4f}"]
                lines.append(",".join(map(str, values)))
    return "\n".join(lines) + "\n"


# ---- the picture: density over the delay, both logarithmic, a panel for each size ----

WIDTH, HEIGHT, LEFT, TOP, DECADES = 210, 220, 46, 30, 3
COLOURS = ["#1b4f72", "#1f7a8c", "#2e9e6b", "#8aa627", "#d4a017", "#d9702b", "#b03a2e"]


def place(column, delay, density):
    x = LEFT + column * (WIDTH + 16) + (math.log2(int(delay)) / 5) * (WIDTH - 34)
    y = TOP + HEIGHT * (-math.log10(max(density, 1e-3)) / DECADES)
    return f"{x:.1f},{y:.1f}"


def panel(rows, size, column, rates):
    left = LEFT + column * (WIDTH + 16)
    parts = [f'<text x="{left}" y="{TOP - 10}">{size} parameters</text>']
    for power in range(DECADES + 1):
        y = TOP + HEIGHT * power / DECADES
        parts.append(f'<line x1="{left}" x2="{left + WIDTH - 34}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        if column == 0:
            parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{100 * 10.0 ** -power:g}%</text>')
    for delay in DELAYS:
        x = place(column, delay, 1).split(",")[0]
        parts.append(f'<text x="{x}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{delay}</text>')
    for row in (row for row in rows if row["size"] == size):
        colour = COLOURS[rates.index(row["rate"])]
        points = [place(column, k, row["density"][k]["mean"]) for k in DELAYS if row["density"][k]]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return parts


def picture(rows, sizes, rates):
    width = LEFT + len(sizes) * (WIDTH + 16) + 70
    height = TOP + HEIGHT + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for column, size in enumerate(sizes):
        parts += panel(rows, size, column, rates)
    for i, rate in enumerate(rates):
        y = TOP + 12 + 18 * i
        parts.append(f'<line x1="{width - 82}" x2="{width - 64}" y1="{y}" y2="{y}" stroke="{COLOURS[i]}" '
                     'stroke-width="3"/>')
        parts.append(f'<text x="{width - 58}" y="{y + 4}">{rate}</text>')
    parts.append(f'<text x="{LEFT}" y="{height - 8}">weights that differ after so many steps, by learning rate'
                 "</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def put_tables(document, text):
    before, rest = document.read_text().split(BEGIN)
    after = rest.split(END)[1]
    document.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--sizes")
    parser.add_argument("--document", type=pathlib.Path)
    options = parser.parse_args()
    sizes = QUICK_SIZES if options.quick else SIZES
    rates = QUICK_RATES if options.quick else RATES
    steps = 33 if options.quick else 50
    if not options.resume:
        shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True, exist_ok=True)
    for size in options.sizes.split(",") if options.sizes else sizes:
        for rate in rates:
            measure(options.weft, options.work, size, rate, steps, options.resume)
    rows = load(options.work, sizes, rates)
    sizes = [size for size in sizes if any(row["size"] == size for row in rows)]
    text = tables(rows)
    sys.stdout.write(text)
    places = [options.work]
    if options.document:
        put_tables(options.document, text)
        places.append(options.document.parent)
    for directory in places:
        (directory / "sparsity.csv").write_text(csv(rows))
        (directory / "sparsity.svg").write_text(picture(rows, sizes, rates))
        law.chart(directory / "testbed-law.svg",
                  {row["rate"]: law_classes(row) for row in law_rows(rows) if row["rate"] in LAW_RATES})


main()
