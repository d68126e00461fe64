# SPDX-License-Identifier: Apache-2.0
"""One stream of gradients through many optimizers.

Every variant starts from the same masters and takes the same gradients, clipped as in the run: they differ in nothing
but what the table VARIANTS says. That is exact for the variant that the stream was made with. For others it leaves out
that their own weights would have met other gradients; the study runs some of them for themselves and compares.

All that is elementwise needs no more than a sample: every STRIDE-th block of 1,024 weights of each tensor. A line of
WORK/replay-STREAM.jsonl has what was counted in one tensor.
"""
import json

import numpy

from streams import entries, gradient_path

BLOCK = 1024
PIECE = 1 << 18  # weights that are taken through all steps before the next
DELAYS = [1, 2, 4, 8, 16, 32]
WARM_UP = 5
BETA1, EPSILON, MUON_LAYERS, MUON_STEPS = 0.9, 1e-8, ("layers.5.", "layers.20."), 16

# name: the rate; what the weights and the moments are stored as; beta2, warm-up, optimizer where they are not the usual
VARIANTS = {
    "5e-7": {"rate": 5e-7},
    "1e-6": {"rate": 1e-6, "law": True},
    "3e-6": {"rate": 3e-6, "law": True},
    "5e-6": {"rate": 5e-6},
    "1e-5": {"rate": 1e-5, "law": True},
    "2e-5": {"rate": 2e-5},
    "5e-7 bf16": {"rate": 5e-7, "weights": "bf16", "moments": "bf16"},
    "1e-6 bf16": {"rate": 1e-6, "weights": "bf16", "moments": "bf16"},
    "3e-6 bf16": {"rate": 3e-6, "weights": "bf16", "moments": "bf16"},
    "5e-6 bf16": {"rate": 5e-6, "weights": "bf16", "moments": "bf16"},
    "1e-5 bf16": {"rate": 1e-5, "weights": "bf16", "moments": "bf16"},
    "2e-5 bf16": {"rate": 2e-5, "weights": "bf16", "moments": "bf16"},
    "3e-6 bf16 weights": {"rate": 3e-6, "weights": "bf16"},
    "1e-6 beta2 .99": {"rate": 1e-6, "beta2": 0.99},
    "1e-6 beta2 .95": {"rate": 1e-6, "beta2": 0.95},
    "1e-6 no warm-up": {"rate": 1e-6, "warm_up": 0},
    "sgd 0.1": {"rate": 0.1, "optimizer": "sgd"},
    "sgd 1": {"rate": 1.0, "optimizer": "sgd"},
}
USUAL = {"weights": "fp32", "moments": "fp32", "beta2": 0.999, "warm_up": WARM_UP, "optimizer": "adam", "law": False}


def load(path):
    """The tensors of a checkpoint of 16-bit numbers, mapped and flat."""
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + size].tobytes())
    data = data[8 + size :]
    return {name: data[slice(*entry["data_offsets"])].view("<i2") for name, entry in header.items()
            if name != "__metadata__"}


def sample(flat, stride):
    if len(flat) < BLOCK * stride:
        return flat
    blocks = flat[: len(flat) // BLOCK * BLOCK].reshape(-1, BLOCK)
    return blocks[::stride].reshape(-1)


def clip(norm):
    return min(1.0, 1.0 / (norm + 1e-6))


class Variant:
    """The weights of one piece under one optimizer, and their versions in BF16."""

    def __init__(self, torch, masters, steps, **settings):
        self.torch = torch
        self.settings = {**USUAL, **settings}
        self.stored = self.settings["weights"] == "bf16"
        self.weights = masters.bfloat16().float() if self.stored else masters.clone()
        self.versions = torch.empty(steps + 1, len(masters), dtype=torch.int16)
        self.versions[0] = self.weights.bfloat16().view(torch.int16)
        self.law = torch.zeros(3, 256, dtype=torch.float64)
        self.moved = numpy.zeros(steps)
        self.touched = numpy.zeros(steps)

    def step(self, number, direction):
        """Step `number`, from 1, along a direction; what it did is counted."""
        rate = self.settings["rate"]
        if self.settings["warm_up"]:
            rate *= min(1, number / self.settings["warm_up"])
        new = self.weights - rate * direction
        if self.stored:
            new = new.bfloat16().float()
        rounded = new.bfloat16().view(self.torch.int16)
        change = (new - self.weights).abs_()
        self.moved[number - 1] = float(change.sum(dtype=self.torch.float64)) / rate
        self.touched[number - 1] = int(change.count_nonzero())
        if self.settings["law"] and number > len(self.moved) // 2:
            old = self.versions[number - 1]
            exponents = ((old.int() >> 7) & 0xFF).long()
            share = self.torch.clamp(change * self.torch.exp2(134.0 - exponents), max=1)
            self.law[0] += exponents.bincount(minlength=256)
            self.law[1] += exponents.bincount((rounded != old).double(), minlength=256)
            self.law[2] += exponents.bincount(share.double(), minlength=256)
        self.versions[number] = rounded
        self.weights = new


def directions(torch, settings, gradients, scales):
    """What the optimizer would take from the weights at a rate of 1, step by step."""
    if settings["optimizer"] == "sgd":
        for gradient, scale in zip(gradients, scales):
            yield gradient.float() * scale
        return
    beta2, rounded = settings["beta2"], settings["moments"] == "bf16"
    first = torch.zeros(gradients.shape[1])
    second = torch.zeros(gradients.shape[1])
    for number, (gradient, scale) in enumerate(zip(gradients, scales), 1):
        gradient = gradient.float() * scale
        first.lerp_(gradient, 1 - BETA1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        below = (second / (1 - beta2**number)).sqrt_().add_(EPSILON)
        yield first / (1 - BETA1**number) / below
        if rounded:
            first, second = first.bfloat16().float(), second.bfloat16().float()


def count(versions):
    """By delay: how many weights differ, for each version that such a delay can begin with."""
    steps = len(versions) - 1
    return {str(k): [int((versions[t + k] != versions[t]).sum()) for t in range(steps - k + 1)]
            for k in DELAYS if k <= steps}


def add(total, counts):
    for delay, values in counts.items():
        total[delay] = [a + b for a, b in zip(total.get(delay, [0] * len(values)), values)]


def replay_tensor(torch, masters, gradients, scales, names):
    """All variants over the sample of one tensor."""
    steps = len(scales)
    found = {name: {"changed": {}, "law": torch.zeros(3, 256, dtype=torch.float64), "moved": numpy.zeros(steps),
                    "touched": numpy.zeros(steps)} for name in names}
    groups = {}
    for name in names:
        settings = {**USUAL, **VARIANTS[name]}
        groups.setdefault((settings["optimizer"], settings["beta2"], settings["moments"]), []).append(name)
    for begin in range(0, len(masters), PIECE):
        piece = slice(begin, begin + PIECE)
        for group in groups.values():
            variants = {name: Variant(torch, masters[piece], steps, **VARIANTS[name]) for name in group}
            settings = next(iter(variants.values())).settings
            for number, direction in enumerate(directions(torch, settings, gradients[:, piece], scales), 1):
                for variant in variants.values():
                    variant.step(number, direction)
            for name, variant in variants.items():
                add(found[name]["changed"], count(variant.versions))
                for key in ("law", "moved", "touched"):
                    found[name][key] += getattr(variant, key)
    return {name: {key: value if key == "changed" else value.tolist() for key, value in counted.items()
                   if key != "law" or VARIANTS[name].get("law")} for name, counted in found.items()}


def cells(torch, masters):
    """The exponent of each BF16 weight, and in which 64th of the cell of values that round to it its master lies."""
    rounded = masters.bfloat16()
    exponents = (rounded.view(torch.int16).int() >> 7) & 0xFF
    place = (masters - rounded.float()) * torch.exp2(134.0 - exponents.float()) + 0.5
    return exponents.long(), (place * 64).long().clamp(0, 63)


def places(torch, masters):
    """How many masters lie in each 64th of their cell."""
    return cells(torch, masters)[1].bincount(minlength=64).tolist()


def edges(options):
    """By exponent: how many masters lie at the two edges of their cell when a stream begins, for each that would if they
    lay anywhere in it alike."""
    import torch

    state = torch.load(options.work / "settled", weights_only=True, mmap=True)["masters"]
    found = torch.zeros(2, 256, dtype=torch.float64)
    for whole in state.values():
        masters = torch.from_numpy(numpy.array(sample(whole.flatten().numpy(), options.stride)))
        exponents, place = cells(torch, masters)
        found[0] += exponents.bincount(minlength=256)
        found[1] += exponents.bincount(((place == 0) | (place == 63)).double(), minlength=256)
    return (32 * found[1] / found[0]).numpy()


def muon(torch, shape, masters, gradients, scales, rate):
    """A whole matrix under torch's Muon, with steps as large as AdamW's."""
    weight = torch.nn.Parameter(masters.view(shape).clone())
    optimizer = torch.optim.Muon([weight], lr=rate, weight_decay=0, adjust_lr_fn="match_rms_adamw")
    versions = [weight.detach().bfloat16().view(torch.int16).flatten()]
    for number, (gradient, scale) in enumerate(zip(gradients, scales), 1):
        weight.grad = gradient.view(shape).float() * scale
        optimizer.param_groups[0]["lr"] = rate * min(1, number / WARM_UP)
        optimizer.step()
        versions.append(weight.detach().bfloat16().view(torch.int16).flatten())
    return count(torch.stack(versions))


def replay(options, clock, stream, names):
    """All tensors of a stream that have no line yet."""
    import torch

    room = options.work / stream
    logged = entries(room)[: options.steps[stream]]
    result = options.work / f"replay-{stream}.jsonl"
    done = {json.loads(line)["tensor"] for line in result.read_text().splitlines()} if result.exists() else set()
    state = torch.load(options.work / "settled", weights_only=True, mmap=True)["masters"]
    files = [load(gradient_path(room, entry["step"])) for entry in logged]
    scales = [clip(entry["norm"]) for entry in logged]
    for name, whole in state.items():
        if name in done:
            continue
        clock.check()
        flat = whole.flatten()
        masters = torch.from_numpy(numpy.array(sample(flat.numpy(), options.stride)))
        gradients = torch.from_numpy(numpy.stack([sample(file[name], options.stride) for file in files]))
        gradients = gradients.view(torch.bfloat16)
        line = {"tensor": name, "whole": len(flat), "weights": len(masters), "places": places(torch, masters),
                "gradient": [int(gradient.count_nonzero()) for gradient in gradients],
                "variants": replay_tensor(torch, masters, gradients, scales, names)}
        if stream == options.main and whole.dim() == 2 and any(layer in name for layer in MUON_LAYERS):
            steps = min(MUON_STEPS, len(files))
            all_of_it = torch.from_numpy(numpy.stack([file[name] for file in files[:steps]])).view(torch.bfloat16)
            line["muon"] = muon(torch, whole.shape, flat, all_of_it, scales, 1e-6)
        with result.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def total(options, stream):
    """All tensors of a stream together, each as large as it is and not as its sample is (but for the law and the places
    in cells, which count what was looked at); and the lines they come from."""
    lines = [json.loads(line) for line in (options.work / f"replay-{stream}.jsonl").read_text().splitlines()]
    grown = [line["whole"] / line["weights"] for line in lines]

    def sum_of(values, factors=None):
        factors = factors or [1] * len(lines)
        return numpy.sum([numpy.array(value) * factor for value, factor in zip(values, factors)], axis=0)

    whole = {"weights": sum(line["whole"] for line in lines), "places": sum_of([line["places"] for line in lines]),
             "gradient": sum_of([line["gradient"] for line in lines], grown), "variants": {}}
    for name in lines[0]["variants"]:
        mine = [line["variants"][name] for line in lines]
        sums = {key: sum_of([entry[key] for entry in mine], grown) for key in ("moved", "touched")}
        sums["changed"] = {delay: sum_of([entry["changed"][delay] for entry in mine], grown)
                           for delay in mine[0]["changed"]}
        if "law" in mine[0]:
            sums["law"] = sum_of([entry["law"] for entry in mine])
        whole["variants"][name] = sums
    return whole, lines
