# SPDX-License-Identifier: Apache-2.0
"""Streams of gradients: a real language model learns, and each step's gradient is kept.

The model, its task and its optimizer are those of bench/trace.py. WORK/settled has the masters that all streams begin
with. WORK/NAME/NNNN.safetensors is the gradient of step NNNN, in BF16, as the model's backward pass left it; the norm
by which it is clipped, and the reward, are in WORK/NAME/log.jsonl. Nothing else is kept: a stream that was stopped
takes its gradients once more through the optimizer, which gives the same weights to the bit, and goes on.
"""
import importlib.util
import json
import os
import pathlib
import random
import time

BENCH = pathlib.Path(__file__).resolve().parent.parent
# by its path: Python has a module `trace` of its own
_spec = importlib.util.spec_from_file_location("weft_bench_trace", BENCH / "trace.py")
trace = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(trace)


class OutOfTime(Exception):
    """The seconds that were given are over; the next call goes on."""


class Clock:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds if seconds else None

    def check(self):
        if self.end is not None and time.monotonic() > self.end:
            raise OutOfTime


def entries(room):
    path = room / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def gradient_path(room, step):
    return room / f"{step:04}.safetensors"


def take(learner, path):
    """Sets the model's gradients to those of a file, and takes a step."""
    from safetensors import safe_open

    with safe_open(path, "pt") as kept:
        for name, p in learner.parameters.items():
            p.grad = kept.get_tensor(name)
    return learner.step()


def settle(options, clock):
    """The first state of all streams."""
    target = options.work / "settled"
    if target.exists():
        return
    learner = trace.Learner(1e-4)
    part, steps = options.work / "settling", options.settle
    if part.exists():
        learner.load(part, optimizer=True)
    try:
        while learner.steps < steps:
            clock.check()
            trace.settle(learner, 1, random.Random(f"settle {learner.steps}"))
    finally:
        learner.save(part)
    learner.write(options.work / "first.safetensors")
    os.replace(part, target)


def supervise(learner, options, generator):
    """The gradient of one step of supervised fine-tuning, on right answers. Returns the loss."""
    torch, tokenizer = learner.torch, learner.tokenizer
    pairs = [(generator.randrange(1, 100), generator.randrange(1, 100))
             for _ in range(options.prompts * options.samples)]
    asked = tokenizer([f"{trace.ask(a, b)} {a + b}" for a, b in pairs], return_tensors="pt", padding=True,
                      padding_side="right")
    labels = asked["input_ids"].masked_fill(asked["attention_mask"] == 0, -100)
    for row, (a, b) in enumerate(pairs):
        labels[row, : len(tokenizer(trace.ask(a, b))["input_ids"])] = -100
    loss = learner.model(**asked, labels=labels).loss
    loss.backward()
    return float(loss)


def write_version(learner, room, step):
    """What the masters have become: room/NNNN.safetensors in BF16, and .fp16."""
    from safetensors.torch import save_file

    room.mkdir(exist_ok=True)
    path = gradient_path(room, step)
    save_file({key: master.half() for key, master in learner.masters.items()}, path.with_suffix(".fp16"))
    learner.write(f"{path}.part")
    os.replace(f"{path}.part", path)


def gather(options, clock, name, kind, rate, steps, kept=None):
    """The stream `name` up to `steps`. Its last two versions go to the directory `kept`."""
    from safetensors.torch import save_file

    room = options.work / name
    room.mkdir(exist_ok=True)
    done = entries(room)
    if len(done) >= steps:
        return
    learner = trace.Learner(rate)
    learner.load(options.work / "settled", optimizer=False)
    learner.steps = 0
    for step in range(1, len(done) + 1):
        take(learner, gradient_path(room, step))
    while learner.steps < steps:
        clock.check()
        begin, step = time.monotonic(), learner.steps + 1
        generator = random.Random(f"{name} {step}")
        found = (trace.improve if kind == "grpo" else supervise)(learner, options, generator)
        path = gradient_path(room, step)
        save_file({key: p.grad for key, p in learner.parameters.items()}, f"{path}.part")
        os.replace(f"{path}.part", path)
        norm = learner.step()
        if kept and step >= steps - 1:
            write_version(learner, kept, step)
        with (room / "log.jsonl").open("a") as log:
            log.write(json.dumps({"step": step, "norm": norm, "reward" if kind == "grpo" else "loss": found}) + "\n")
        trace.say(f"{name}: {step}/{steps}: {found:.3f}, norm {norm:.2f}, {time.monotonic() - begin:.0f} s")


def forget(options, name):
    """A stream that was replayed needs its gradients no more: they are a quarter of a gigabyte each."""
    for step in range(1, options.steps[name] + 1):
        gradient_path(options.work / name, step).unlink(missing_ok=True)


def versions(options, name, rate, wanted, target):
    """What the masters become under a stream's gradients at another rate, after each of the steps `wanted`."""
    missing = [step for step in wanted if not gradient_path(target, step).exists()]
    if not missing:
        return
    learner = trace.Learner(rate)
    learner.load(options.work / "settled", optimizer=False)
    learner.steps = 0
    for step in range(1, max(wanted) + 1):
        take(learner, gradient_path(options.work / name, step))
        if step in missing:
            write_version(learner, target, step)
