# SPDX-License-Identifier: Apache-2.0
"""The law: a step changes a BF16 weight with the chance |Δ|/ULP, 1 at most, where Δ is the change of its FP32 master.

What was counted, beside it: a class is the weights of one exponent, as (exponent, weight-steps, changes, changes by the
law).
"""
import math

import draw

CHANGES, CHANCE, BAR = 1000, 0.3, 0.15  # which classes are judged, and how far off they may be
FEW = 100  # changes that a class needs for a point in the chart
HEAD = ["weights from", "weight-steps", "changes", "chance, %", "law, %", "ratio"]
PERCENTS = [(1e-4, "0.01%"), (1e-3, "0.1%"), (1e-2, "1%"), (1e-1, "10%"), (1, "100%")]


def counted(classes):
    """The classes with enough changes for a table."""
    return [one for one in classes if one[2] >= CHANGES]


def rows(classes):
    """Of a table with HEAD: the classes with enough changes."""
    return [[f"2^{exponent}", f"{weights:,.0f}", f"{changes:,.0f}", f"{100 * changes / weights:.4g}",
             f"{100 * expected / weights:.4g}", f"{changes / expected:.3f}"]
            for exponent, weights, changes, expected in counted(classes)]


def judged(classes, low=CHANGES, high=math.inf):
    """Those with so many changes. Few say little; and a class that changes nearly always says nothing."""
    return [one for one in classes if low <= one[2] < high and one[2] < CHANCE * one[1]]


def off(one):
    return one[2] / one[3] - 1


def farthest(classes):
    return max(classes, key=lambda one: abs(off(one)))


def verdict(distance):
    return f"the bar is {100 * BAR:.0f}%: {'met' if abs(distance) <= BAR else '**missed**'}"


def chart(path, by_rate):
    """Measured chances as points over the law as lines, for each rate."""
    series, seen = [], []
    for number, (rate, classes) in enumerate(by_rate.items()):
        drawn = [one for one in classes if one[2] >= FEW]
        if drawn:
            seen += [one[0] for one in drawn]
            series.append((f"{rate}, |Δ|/ULP", [(e, expected / weights) for e, weights, _, expected in drawn], "line",
                           number))
            series.append((f"{rate}, measured", [(e, changes / weights) for e, weights, changes, _ in drawn], "points",
                           number))
    if series:
        low, high = min(seen), max(seen)
        ticks = [(e, f"2^{e}") for e in range(low, high + 1, 2 if high - low < 24 else 4)]  # as many as there is room for
        draw.chart(path, "Chance that a step changes a weight", draw.Axis(low, high, ticks, False),
                   draw.Axis(1e-4, 1, PERCENTS, True), series, "size of the weight", "chance")
