#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What it would be worth to know which weights changed lately, in coded bytes.

history.py DIRECTORY RATE [--last 4] [--every 1] [--span 8] [--weft PATH]

Takes the last versions of a run of bench/trace.py, and codes every bucket of each (or every n-th bucket) in two ways.
*Plain* is the coding `small`: eight classes by exponent, and tables of laws or levels, whichever are shorter. With
*history*, weights that changed in the last version, and those that changed within --span versions, are classes of their
own, cut by exponent into three each; a step of theirs is said as in the direction of the last one or against it, with a
chance that the bucket gives in five bits. The others are coded as before. All that a bucket's payload needs is counted:
cuts, counts, tables, plain bits, states. Tokens count as much as their slots say, which is what rANS makes of them to a
thousandth; classes are cut by all weights and not by a sample, in both. *small* is what the command makes of the same
buckets. Wants numpy, xxhash and zstandard, as the tests do.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests/python"))
import weft_format

TOKENS = 128
CLASSES = 8
CLASS_BITS = 44  # what cutting one class more is taken to cost
STATES_BITS = 8 * (16 + 2)  # the states of the coder, and the size of the plain bits
BASES = numpy.array([t if t < 16 else (4 + t % 4) << 2 + (t - 16) // 4 for t in range(TOKENS + 1)])
EXTRA = numpy.array([0 if t < 16 else 2 + (t - 16) // 4 for t in range(TOKENS)])


def tokens_of(values):
    return numpy.searchsorted(BASES, values, side="right") - 1


# ---- tables ----


def law_costs(steps):
    """What each token costs under each law, and how many tokens each has."""
    limit = 64 if steps else 128
    costs, own = [], []
    for scale in range(128):
        for shape in range(4):
            weights = weft_format.law_weights(scale, shape, 0, steps, limit)
            slots = numpy.array(weft_format.frequencies(weights))
            costs.append(numpy.concatenate([12 - numpy.log2(slots), numpy.full(TOKENS - len(slots), 12.0)]))
            own.append(len(slots))
    return numpy.array(costs), numpy.array(own)


LAWS = {steps: law_costs(steps) for steps in (False, True)}
WEIGHTS = numpy.array([weft_format.weight(level) for level in range(65)])


def law_bits(counts, steps):
    costs, own = LAWS[steps]
    more = numpy.maximum(numpy.flatnonzero(counts)[-1] + 1 - own, 0)
    return (costs @ counts + 11 + 2 * numpy.floor(numpy.log2(more + 1))).min()


def level_bits(counts):
    counts = counts[: numpy.flatnonzero(counts)[-1] + 1]
    wanted = (counts << 15) // counts.sum()
    levels = numpy.where(counts > 0, 1 + numpy.abs(WEIGHTS[1:] - wanted[:, None]).argmin(1), 0)
    slots = numpy.array(weft_format.frequencies(WEIGHTS[levels].tolist()))
    moves = numpy.diff(levels, prepend=0)
    codes = numpy.where(moves < 0, -2 * moves - 1, 2 * moves)
    seen = counts > 0
    return 9 + numpy.where(codes < 15, codes + 1, 22).sum() + (counts[seen] * (12 - numpy.log2(slots[seen]))).sum()


def array_bits(values, steps):
    """Of gaps or codes of steps: their table, their tokens and their plain bits."""
    tokens = tokens_of(values)
    counts = numpy.bincount(tokens, minlength=TOKENS)
    return min(law_bits(counts, steps), level_bits(counts)) + EXTRA[tokens].sum()


def directed_bits(codes, along):
    """Of steps of which it is known which way the last one went."""
    tokens = tokens_of(2 * (codes // 2) + ~along)
    counts = numpy.bincount(tokens, minlength=TOKENS)
    by_levels = level_bits(counts) + EXTRA[tokens].sum()
    chance = numpy.clip(numpy.round(32 * along.mean()), 1, 31) / 32
    sign = -numpy.log2(numpy.where(along, chance, 1 - chance)).sum()
    return min(by_levels, array_bits(codes, True) - len(codes) + sign + 5)


# ---- buckets ----


def entropy(counts):
    return numpy.where(counts > 0, counts * numpy.log2(numpy.maximum(counts, 1)), 0)


def cut(exponents, changed, magnitudes, most):
    """The exponents at which at most `most` classes begin."""
    units = numpy.bincount(exponents, minlength=256)
    octaves = numpy.zeros((256, 8))
    numpy.add.at(octaves, (exponents[changed], numpy.minimum(magnitudes, 7)), 1)
    present = numpy.flatnonzero(units)
    units = numpy.concatenate([[0], units[present].cumsum()])
    octaves = numpy.vstack([numpy.zeros((1, 8)), octaves[present].cumsum(0)])
    inside = units[None] - units[:, None]
    steps = numpy.maximum(octaves[None] - octaves[:, None], 0)
    alone = entropy(inside) - entropy(inside - steps.sum(2)) - entropy(steps).sum(2)
    size = len(present)
    cost, begin = [alone[0]], []
    for _ in range(1, min(most, size)):
        total = cost[-1][:, None] + numpy.where(numpy.triu(numpy.ones_like(alone), 1) > 0, alone, numpy.inf)
        total[0] = numpy.inf
        begin.append(total.argmin(0))
        cost.append(total.min(0))
    best = min(range(len(cost)), key=lambda classes: cost[classes][size] + classes * CLASS_BITS)
    cuts, end = [], size
    for classes in range(best, 0, -1):
        end = begin[classes - 1][end]
        cuts.append(present[end])
    return numpy.array(cuts[::-1], dtype=int)


def classes_bits(exponents, changed, codes, most, along=None):
    """Of the changes of some units, in classes by exponent."""
    if len(changed) == 0:
        return 8
    cuts = cut(exponents, changed, numpy.log2(codes // 2 + 1).astype(int), most)
    classes = numpy.searchsorted(cuts, exponents, side="right")
    bits = 8 + 8 * len(cuts)
    for number in range(len(cuts) + 1):
        mine = classes[changed] == number
        bits += 8 * max(1, -(-int(mine.sum()).bit_length() // 7))
        if mine.any():
            ranks = (classes == number).cumsum()[changed[mine]] - 1
            bits += array_bits(numpy.diff(ranks, prepend=-1) - 1, False)
            bits += array_bits(codes[mine], True) if along is None else directed_bits(codes[mine], along[mine])
    return bits


def bucket_bits(old, new, age, direction, span):
    """Plain, and with history."""
    changed = numpy.flatnonzero(old != new)
    steps = (new[changed] - old[changed]).view(numpy.int16).astype(int)
    codes = numpy.where(steps > 0, 2 * steps - 2, -2 * steps - 1)
    exponents = ((old & 0x7FFF) >> 7).astype(int)
    plain = STATES_BITS + classes_bits(exponents, changed, codes, CLASSES)
    history = STATES_BITS
    along = (steps > 0) == (direction[changed] > 0)
    for first, last in ((0, 0), (1, 1), (2, span)):
        among = (age >= first) & (age <= last)
        mine = among[changed]
        ranks = among.cumsum()[changed[mine]] - 1
        history += classes_bits(exponents[among], ranks, codes[mine], 3 if first else CLASSES,
                                along[mine] if first else None)
    return numpy.array([plain, history]) / 8


# ---- versions ----


def load(path):
    data = numpy.fromfile(path, dtype=numpy.uint8)
    size = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + size].tobytes())
    data = data[8 + size :]
    return {name: data[slice(*entry["data_offsets"])].view("<u2") for name, entry in header.items()
            if name != "__metadata__"}


def judge(options, patch, before, after, ages, directions):
    roster = patch.header.roster
    total = numpy.zeros(3)
    changes = 0
    for frame in patch.frames[:: options.every]:
        old, new, age, direction = (
            numpy.concatenate([state[roster[span.tensor].name.decode()][span.start : span.start + span.run]
                               for span in frame.spans]) for state in (before, after, ages, directions))
        total += [len(frame.payload), *bucket_bits(old, new, age, direction, options.span)]
        changes += frame.changed
    return changes, total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("rate")
    parser.add_argument("--last", type=int, default=4)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--span", type=int, default=8)
    parser.add_argument("--weft", default=TREE / "build/weft")
    options = parser.parse_args()
    patches = sorted((options.directory / options.rate).glob("[0-9]*.weft"))
    totals = numpy.zeros(3)
    with tempfile.TemporaryDirectory() as room:
        old, new, again = (pathlib.Path(room) / name for name in ("old.safetensors", "new.safetensors", "again.weft"))
        old.symlink_to((options.directory / "first.safetensors").resolve())
        before = load(old)
        ages = {name: numpy.zeros(len(units), numpy.uint8) for name, units in before.items()}
        directions = {name: numpy.zeros(len(units), numpy.int8) for name, units in before.items()}
        for number, path in enumerate(patches):
            subprocess.run([options.weft, "apply", "--quiet", old, path, "-o", new], check=True)
            after = load(new)
            if number >= len(patches) - options.last:
                subprocess.run([options.weft, "diff", "--quiet", old, new, "-o", again], check=True)
                patch = weft_format.parse_patch(again.read_bytes())
                changes, (small, plain, history) = judge(options, patch, before, after, ages, directions)
                totals += [small, plain, history]
                print(f"{path.name}: {changes} changes; small {small:.0f} bytes, plain {plain:.0f}, "
                      f"history {history:.0f}: {100 * (1 - history / plain):.2f}% less", flush=True)
            for name, units in after.items():
                changed = numpy.flatnonzero(units != before[name])
                age = ages[name]
                age[age > 0] += 1
                age[age > options.span] = 0
                age[changed] = 1
                directions[name][changed] = numpy.sign((units[changed] - before[name][changed]).view(numpy.int16))
            before = after
            new.replace(old)
    small, plain, history = totals
    print(f"all: plain {plain / small:.4f} of small; history {100 * (1 - history / plain):.2f}% less than plain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
