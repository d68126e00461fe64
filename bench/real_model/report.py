# SPDX-License-Identifier: Apache-2.0
"""Tables and charts of the study. A part that was not measured is left out."""
import json
import pathlib
import sys
import textwrap

import numpy

import replay
import streams

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import draw
import law

BEGIN, END = "<!-- real model: begin -->", "<!-- real model: end -->"
SETTLED = 8  # windows that begin before this step are in the table of the first steps only
SPANS = [(1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, 30), (31, 48)]
TYPES = {"embed_tokens": "embedding", "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate",
         "up_proj": "up", "down_proj": "down", "norm": "norms"}
# Share of weights that differ after k steps, in percent: 100 less the sparsity that the authors of PULSE (arXiv
# 2602.03839) published for Qwen2.5-1.5B under GRPO on MATH; k = 1, 8, 32.
PULSE = {"5e-7": (0.20, 0.25, 0.30), "1e-6": (0.27, 0.37, 0.47), "3e-6": (0.57, 0.90, 1.23), "5e-6": (0.94, 1.53, 2.14)}
LAW_RATES = ("1e-6", "3e-6", "1e-5")
INTERVAL = 20.0  # seconds of work between two versions, about what a step of this model takes here


def percent(share, digits=3):
    return f"{100 * share:.{digits}g}"


def table(head, rows):
    """The first column and texts to the left, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


class Stream:
    def __init__(self, options, name):
        self.name = name
        self.log = streams.entries(options.work / name)[: options.steps[name]]
        self.whole, self.lines = replay.total(options, name)
        self.variants = self.whole["variants"]

    def shares(self, variant, delay):
        return self.variants[variant]["changed"].get(str(delay), numpy.zeros(0)) / self.whole["weights"]

    def windows(self, variant, delay):
        """Of those that begin after the first steps; where there are none, of all."""
        found = self.shares(variant, delay)
        begin = min(SETTLED, len(self.log) - 2)
        return found[begin:] if len(found) > begin else found[len(found):]

    def density(self, variant, delay):
        found = self.windows(variant, delay)
        return found.mean() if len(found) else None


def read(options, name):
    path = options.work / f"replay-{name}.jsonl"
    return Stream(options, name) if path.exists() else None


# ---- tables ----


def runs(options, main, sft):
    rows = []
    for name, steps in options.steps.items():
        log = streams.entries(options.work / name)[:steps]
        if log:
            key = "reward" if "reward" in log[0] else "loss"
            part = max(1, len(log) // 4)
            first, last = (numpy.mean([entry[key] for entry in some]) for some in (log[:part], log[-part:]))
            rows.append([f"`{name}`", len(log), f"{key} {first:.3f} → {last:.3f}",
                         f"{numpy.median([entry['norm'] for entry in log]):.2f}"])
    counted = []
    for stream in filter(None, (main, sft)):
        counted.append(f"{len(stream.lines)} tensors with {stream.whole['weights']:,} weights of `{stream.name}`")
    return ["Streams of gradients that were made (reward and loss are means of the first and of the last quarter):", "",
            *table(["stream", "steps", "course", "median norm before clipping"], rows), "",
            *([f"Replayed: {', '.join(counted)}."] if counted else [])]


def density_row(stream, title, variant):
    one = stream.windows(variant, 1)
    cells = [title, percent(stream.density(variant, 1)), f"{percent(one.min())} to {percent(one.max())}"]
    for delay in replay.DELAYS[1:]:
        share = stream.density(variant, delay)
        cells.append("" if share is None else percent(share))
    eight = stream.density(variant, 8)
    return cells + ["" if eight is None else f"{eight / stream.density(variant, 1):.1f}"]


DENSITY_HEAD = ["", "k=1", "least to most", "2", "4", "8", "16", "32", "k=8 to k=1"]


def rates(main):
    lines = ["Share of the BF16 weights that differ after k steps, in percent, by learning rate and by what the "
             "optimizer stores:", ""]
    rows = []
    for name, settings in replay.VARIANTS.items():
        if " bf16" not in name and name in PULSE or name in ("1e-5", "2e-5"):
            rows.append(density_row(main, f"{name}, FP32 masters", name))
            stored = f"{name} bf16"
            rows.append(density_row(main, f"{name}, all BF16", stored))
            if name in PULSE:
                one, eight, many = PULSE[name]
                rows.append([f"{name}, PULSE, Qwen2.5-1.5B", one, "", "", "", eight, "", many, f"{eight / one:.1f}"])
    return lines + table(DENSITY_HEAD, rows)


def ways(main, sft):
    rows = [density_row(main, "AdamW, β2 .999, 1e-6", "1e-6"),
            density_row(main, "AdamW, β2 .99", "1e-6 beta2 .99"),
            density_row(main, "AdamW, β2 .95", "1e-6 beta2 .95"),
            density_row(main, "AdamW at 3e-6, BF16 weights, FP32 moments", "3e-6 bf16 weights"),
            density_row(main, "SGD at 0.1", "sgd 0.1"), density_row(main, "SGD at 1", "sgd 1")]
    with_muon = [line for line in main.lines if "muon" in line]
    if with_muon:
        def pooled(weight, counts):
            whole = sum(weight(line) for line in with_muon)
            cells = []
            for delay in replay.DELAYS:
                found = [numpy.array(counts(line)[str(delay)][min(SETTLED, len(main.log) - 2):]) for line in with_muon
                         if str(delay) in counts(line)]
                found = sum(found) / whole if found else numpy.zeros(0)
                found = found[: max(0, min(replay.MUON_STEPS, len(main.log)) - SETTLED - delay + 1)]
                cells.append(found)
            one = cells[0]
            if not len(one):
                return None
            texts = [percent(one.mean()), f"{percent(one.min())} to {percent(one.max())}"]
            texts += [percent(found.mean()) if len(found) else "" for found in cells[1:]]
            return texts + [f"{cells[3].mean() / one.mean():.1f}" if len(cells[3]) else ""]

        ours = pooled(lambda line: line["whole"], lambda line: line["muon"])
        adam = pooled(lambda line: line["weights"], lambda line: line["variants"]["1e-6"]["changed"])
        if ours:
            matrices = len(with_muon)
            rows.append([f"Muon at 1e-6, {matrices} matrices of layers 5 and 20, {replay.MUON_STEPS} steps", *ours])
            rows.append(["AdamW at 1e-6, the same matrices and steps", *adam])
    if sft:
        rows += [density_row(sft, f"supervised fine-tuning, {len(sft.log)} steps, 1e-6", "1e-6"),
                 density_row(sft, "… at 1e-5", "1e-5"), density_row(sft, "… at 2e-5", "2e-5"),
                 density_row(sft, "… at 1e-6, all BF16", "1e-6 bf16")]
        short = min(len(sft.log), len(main.log))
        cut = main.shares("1e-6", 1)[SETTLED:short]
        if len(cut):
            rows.append([f"GRPO at 1e-6, the same {short} steps", percent(cut.mean()),
                         f"{percent(cut.min())} to {percent(cut.max())}", "", "", "", "", "", ""])
    return ["The same by optimizer and by kind of training, FP32 masters unless said otherwise:", "",
            *table(DENSITY_HEAD, rows)]


def own_runs(options, main):
    """Runs with samples and gradients of their own, beside the main stream at the same rate and in the same steps."""
    rows, first, last = [], 0, 0
    for alone in filter(None, (read(options, name) for name in options.own_runs)):
        (rate,) = alone.variants
        steps = min(len(alone.log), len(main.log))
        first, last = min(SETTLED, steps - 2), steps
        cells = [f"`{alone.name}`"]
        for delay in (1, 4, 8):
            own, shared = (stream.shares(rate, delay)[first : steps - delay + 1] for stream in (alone, main))
            cells += [percent(own.mean()), f"{shared.mean() / own.mean():.2f}"] if len(own) and len(shared) else ["", ""]
        rows.append(cells)
    if not rows:
        return []
    return ["Is it fair to take one stream of gradients through other rates? Runs with samples and gradients of their "
            f"own, in percent, steps {first + 1} to {last}, and how many times as dense `{main.name}` is in the same "
            "steps, replayed at their rate; the last one has the same rate and another seed:", "",
            *table(["", "k=1", "replayed", "4", "replayed", "8", "replayed"], rows)]


def first_steps(main, sft):
    def row(stream, title, variant):
        found = stream.shares(variant, 1)
        cells = [found[a - 1 : b] for a, b in SPANS]
        return [title, *(percent(part.mean()) if len(part) else "" for part in cells)]

    rows = [row(main, "1e-6, warm-up of 5 steps", "1e-6"), row(main, "1e-6, no warm-up", "1e-6 no warm-up"),
            row(main, "1e-6, all BF16", "1e-6 bf16"), row(main, "1e-5", "1e-5")]
    if sft:
        rows.append(row(sft, "supervised fine-tuning, 1e-6", "1e-6"))
    return ["The first steps: share that one step changes, in percent, by number of the step:", "",
            *table(["", *(f"{a}" if a == b else f"{a}–{b}" for a, b in SPANS)], rows)]


def where(main):
    begin = min(SETTLED, len(main.log) - 2)

    def share(lines):
        changed = sum(numpy.sum(line["variants"]["1e-6"]["changed"]["1"][begin:]) for line in lines)
        return changed / (len(main.log) - begin) / max(1, sum(line["weights"] for line in lines))

    kinds = [[text, percent(share([line for line in main.lines if part in line["tensor"]]))]
             for part, text in TYPES.items()]
    layers = {}
    for line in main.lines:
        if ".layers." in line["tensor"] and "norm" not in line["tensor"]:
            layers.setdefault(int(line["tensor"].split(".layers.")[1].split(".")[0]), []).append(line)
    fifths = numpy.array_split(sorted(layers), 6)
    depth = [[f"{part[0]}–{part[-1]}", percent(share([line for layer in part for line in layers[layer]]))]
             for part in fifths if len(part)]
    return ["By type of tensor and by depth, k=1 at 1e-6, in percent:", "",
            *table(["", *(row[0] for row in kinds)], [["share", *(row[1] for row in kinds)]]), "",
            *table(["layers", *(row[0] for row in depth)], [["share", *(row[1] for row in depth)]])]


def law_classes(main, variant):
    """As law.py has them."""
    counted, changed, expected = numpy.array(main.variants[variant]["law"])
    return [(int(exponent) - 127, counted[exponent], changed[exponent], expected[exponent])
            for exponent in numpy.flatnonzero(changed)]


def law_lines(options, main):
    lines = ["**The law.** The chance that a step changes a weight, by exponent of the weight, beside the mean of "
             "min(1, |Δ|/ULP) over the same weights, second half of the stream. *At the edge* are masters in the first or "
             "the last 64th of the cell of values that round to their weight, when the stream begins; 1 is as many as "
             "anywhere in it:", ""]
    edges, classes = replay.edges(options), law.counted(law_classes(main, "1e-6"))
    lines += table([*law.HEAD, "at the edge"], [[*cells, f"{edges[one[0] + 127]:.2f}"]
                                                for one, cells in zip(classes, law.rows(classes))])
    judged = [one for variant in LAW_RATES for one in law.judged(law_classes(main, variant))]
    worst = abs(law.off(law.farthest(judged))) if judged else 0.0
    lines += ["", f"Rates 1e-6, 3e-6 and 1e-5 have {len(judged)} classes with at least {law.CHANGES:,} changes (of the "
              f"sample) and a chance under {law.CHANCE}; the farthest is {100 * worst:.1f}% off ({law.verdict(worst)})."]
    places = numpy.array(main.whole["places"], float)
    places /= places.sum()
    entropy = -(places[places > 0] * numpy.log2(places[places > 0])).sum()
    step = main.variants["1e-6"]["moved"][SETTLED:].mean() / main.whole["weights"] if len(main.log) > SETTLED else 0
    lines += [f"The law rests on masters that lie anywhere in their cell: in 64ths of it they have an entropy "
              f"of {entropy:.3f} of 6 bits. |Δ| is {step:.2f} of the rate in the mean."]
    return lines


def bounds():
    """Of every normal BF16 value: what is absorbed and what is seen, by rounding."""
    import torch

    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16).float()
    values = values[values.isfinite() & (values.abs() >= 2.0**-126) & (values.abs() < 2.0**127)]
    hidden = seen = 0
    for sign in (-1, 1):
        hidden += int(((values * (1 + sign * 2.0**-9 * (1 - 2.0**-12))).bfloat16().float() != values).sum())
        seen += int(((values * (1 + sign * 2.0**-8 * (1 + 2.0**-12))).bfloat16().float() == values).sum())
    return [f"With weights stored in BF16 a step below |w|/512 is always lost and one above |w|/256 always seen: of "
            f"{len(values):,} normal values, rounded with a step just below and just above these bounds up and down, "
            f"{hidden + seen} differ from that."]


def gradients(main):
    begin = min(SETTLED, len(main.log) - 2)
    steps, weights = len(main.log) - begin, main.whole["weights"]
    dense = sum(main.whole["gradient"][begin:]) / steps / weights
    master = main.variants["1e-6"]["touched"][begin:].sum() / steps / weights
    return [f"**Gradients are dense, updates are sparse.** In a step at 1e-6, {percent(dense, 4)}% of the gradient is "
            f"not zero, {percent(master, 4)}% of the FP32 masters move, and "
            f"{percent(main.density('1e-6', 1))}% of the BF16 "
            "weights change."]


def codecs(options):
    found = {rate: json.loads((options.work / f"codecs-{rate}.json").read_text()) for rate in options.rates
             if (options.work / f"codecs-{rate}.json").exists()}
    if not found:
        return []
    rows = []
    first = next(iter(found.values()))
    bound = [f"{entry['bound']:.3f}" for entry in found.values()]
    rows.append(["bound, given the exponent (`weft stats`)", *(cell for text in bound for cell in (text, ""))])
    for name in first["sizes"]:
        cells = [f"**{name}**" if name == "weft small" else name]
        for entry in found.values():
            size = entry["sizes"][name]
            times = 2 * entry["weights"] / size
            cells += ["" if name.startswith("whole") else f"{size / entry['changed']:.3f}",
                      f"{times:.2f}" if times < 10 else f"{times:.0f}"]
        rows.append(cells)
    head = [""]
    for rate, entry in found.items():
        head += [f"{rate}: bytes per change", "times fewer"]
    shares = ", ".join(f"{percent(entry['changed'] / entry['weights'])}% at {rate}, of which "
                       f"{100 * (entry['steps']['minus_1'] + entry['steps']['plus_1']) / entry['changed']:.0f}% by one "
                       "ULP" for rate, entry in found.items())
    return [f"**Bytes.** Version {options.steps[options.main]} of the whole model after version "
            f"{options.steps[options.main] - 1}, with files of each format as they are written; changed: {shares}:", "",
            *table(head, rows)]


def receivers(options):
    path = options.work / "receivers.json"
    if not path.exists():
        return []
    rows = []
    for name, entry in json.loads(path.read_text()).items():
        groups = f"{percent(entry['groups_changed'] / entry['groups'])}" if entry.get("groups") else ""
        rows.append([name, percent(entry["changed"] / entry["weights"]), groups, f"{entry['patch_bytes']:,}",
                     f"{entry['whole_bytes'] / entry['patch_bytes']:.0f}"])
    return ["**Receivers of other types** see of the same step at 1e-6 (of FP8 and INT8: share of the quantised "
            "weights; the embedding stays BF16, and is in the bytes):", "",
            *table(["", "weights changed, %", "scales changed, %", "bytes of the patch",
                    "times fewer than its own model"], rows)]


def linked(options):
    """What came over links that were shaped: of the whole model, and of a step."""
    rows = []
    for name in ("link.json", "link-slow.json"):
        path = options.work / name
        found = json.loads(path.read_text()) if path.exists() else {}
        rows += [row for row in found.get("rows", []) if row["megabits"] > 0]
    return rows


def utilisation(options):
    rows = []
    for row in linked(options):
        name = {"plain": "whole model, curl", "anchor": "whole model, weft", "patch": "**a step, weft**"}[row["kind"]]
        rows.append([name, row["megabits"], f"{row['wire_bytes']:,.0f}", f"{row['predicted_seconds']:.2f}",
                     f"{row['seconds']:.2f}", f"{100 * INTERVAL / (INTERVAL + row['seconds']):.1f}",
                     f"{row['wire_bytes'] * 8e-6 * 9 / INTERVAL:.2f}"])
    if not rows:
        return []
    return [f"**Utilisation.** The same version over a link that `tc` shapes (`bench/link.sh --model`), from the "
            f"beginning of publish to the end of commit, medians; predicted is the time without a limit and 8 · bytes / "
            f"rate. Utilisation is that of workers that wait for each version and work for {INTERVAL:.0f} s in between:",
            "", *table(["what comes", "link, Mbit/s", "bytes on the wire", "predicted, s", "measured, s",
                        "utilisation, %", "Mbit/s for 90%"], rows)]


def shrunk(options):
    """SparseRL-Sync's model of costs: seconds on the link are S / X, X being how many times fewer bytes there are."""
    codec = options.work / "codecs-1e-6.json"
    steps = [row for row in linked(options) if row["kind"] == "patch"]
    if not steps or not codec.exists():
        return []
    entry = json.loads(codec.read_text())
    size, patch = 2 * entry["weights"], entry["sizes"]["weft small"]
    rows = []
    for row in steps:
        whole = [other for other in linked(options)
                 if other["kind"] == "plain" and other["megabits"] == row["megabits"]]
        rows.append([row["megabits"], f"{8e-6 * size / row['megabits']:.2f}",
                     f"{whole[0]['seconds'] - whole[0]['fixed_seconds']:.2f}" if whole else "",
                     f"{8e-6 * patch / row['megabits']:.3f}", f"{row['seconds'] - row['fixed_seconds']:.3f}"])
    return [f"**S → S/X.** The model sends S = {size:,} bytes, a step S/X with X = {size / patch:.0f} (the row of weft "
            "small above). Seconds on the link by 8 · bytes / rate, and measured, less what the same transfer takes "
            "without a limit:", "",
            *table(["link, Mbit/s", "S", "measured", "S/X", "measured"], rows)]


# ---- charts ----


def draw_density(main, path):
    series = []
    for number, rate in enumerate(("5e-7", "1e-6", "3e-6", "1e-5", "2e-5")):
        for variant, style, title in ((rate, "line points", f"{rate}, FP32"),
                                      (f"{rate} bf16", "dashed", f"{rate}, BF16")):
            points = [(k, main.density(variant, k)) for k in replay.DELAYS]
            points = [(k, share) for k, share in points if share]
            if points:
                series.append((title, points, style, number))
    draw.chart(path, "Weights that differ after k steps", draw.Axis(1, 32, [(k, k) for k in replay.DELAYS], True),
               draw.Axis(1e-4, 1, law.PERCENTS, True), series, "steps between two versions, k",
               "share of the BF16 weights")


def draw_utilisation(options, path):
    if not linked(options):
        return
    series = []
    for number, (kind, title) in enumerate((("plain", "full sync"), ("patch", "weft"))):
        rows = [row for row in linked(options) if row["kind"] == kind]
        size = rows[0]["wire_bytes"]
        rates = [10 ** (power / 8) for power in range(-8, 25)]
        fixed = rows[0]["fixed_seconds"]
        curve = [(rate, INTERVAL / (INTERVAL + fixed + 8e-6 * size / rate)) for rate in rates]
        series.append((f"{title}, predicted", curve, "line", number))
        series.append((f"{title}, measured", [(row["megabits"], INTERVAL / (INTERVAL + row["seconds"])) for row in rows],
                       "points", number))
    draw.chart(path, "Utilisation of workers that wait for each version",
               draw.Axis(0.1, 1000, [(10.0**p, f"{10.0**p:g}") for p in range(-1, 4)], True),
               draw.Axis(0, 1, [(n / 4, f"{25 * n}%") for n in range(5)], False), series, "link, Mbit/s", "utilisation")


# ---- the report ----


def fill(line):
    """A paragraph in lines of 120 columns; tables and pictures as they are."""
    return line if line.startswith(("|", "!")) else textwrap.fill(line, 120, break_on_hyphens=False)


def write(options):
    main, sft = read(options, options.main), read(options, "sft-1e-6")
    blocks = [runs(options, main, sft)]
    if main:
        blocks += [rates(main), ["![density by delay and rate](real-density.svg)"], ways(main, sft),
                   own_runs(options, main), first_steps(main, sft), where(main), gradients(main), law_lines(options, main),
                   ["![chance of a change by size of the weight](real-law.svg)"], bounds()]
    blocks += [codecs(options), receivers(options), shrunk(options), utilisation(options)]
    if linked(options):
        blocks.append(["![utilisation by bandwidth](real-utilisation.svg)"])
    text = "\n\n".join("\n".join(map(fill, block)) for block in blocks if block) + "\n"
    print(text)
    place = options.document.parent if options.document else options.work
    if main:
        draw_density(main, place / "real-density.svg")
        law.chart(place / "real-law.svg", {variant: law_classes(main, variant) for variant in LAW_RATES})
    draw_utilisation(options, place / "real-utilisation.svg")
    if options.document:
        before, rest = options.document.read_text().split(BEGIN)
        options.document.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}")
