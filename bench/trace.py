#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trace of a real language model that learns by GRPO.

trace.py DIRECTORY [--rates 1e-6 3e-6] [--steps 16] [--settle 90] [--prompts 8] [--samples 8]
    [--tokens 24] [--weft PATH]
trace.py DIRECTORY --cut [--weft PATH]

Wants the Python of build/engines (scripts/engines.sh); WEFT_ENGINES names another directory. The model first takes
--settle steps of AdamW at 5e-5 on this tree's documents, so that its FP32 masters fill their rounding cells as those of
a trained model do: DIRECTORY/first.safetensors is then the first version. From there, one run for each learning rate:
GRPO in plain torch on sums of one and two digits, --samples answers of at most --tokens tokens to each of --prompts
prompts a step. FP32 masters, a BF16 copy computes, AdamW (0.9, 0.999), no decay, clipping at 1.0, 5 steps of warm-up.
DIRECTORY/RATE/NNNN.weft is the patch from version NNNN - 1 to NNNN, in the `small` profile; `weft apply` makes versions
of them. A run that was stopped goes on where it was: state is kept every 4 steps.

With --cut, DIRECTORY/cut gets the same trace of a part of the model with 6.4M weights.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

TREE = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # virtual machines may name AMX and not have it
os.environ.setdefault("TQDM_DISABLE", "1")
ENGINES = pathlib.Path(os.environ.get("WEFT_ENGINES", TREE / "build/engines"))
WARM_UP = 5
KEEP = 4  # steps between states that are kept
CUT = re.compile(r"model\.layers\.(9|19)\.(?!self_attn\.o_proj)")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--rates", nargs="+", default=["1e-6", "3e-6"])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--settle", type=int, default=90)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--weft", default=TREE / "build/weft")
    return parser.parse_args()


def say(text):
    print(time.strftime("%H:%M:%S"), text, flush=True)


# ---- the model, its masters and its versions ----


class Learner:
    """A BF16 model that computes, and the FP32 masters that learn."""

    def __init__(self, rate):
        import torch
        import transformers

        self.torch = torch
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(ENGINES / "model")
        self.model = transformers.AutoModelForCausalLM.from_pretrained(ENGINES / "model", dtype=torch.bfloat16)
        self.parameters = dict(self.model.named_parameters())
        self.masters = {name: p.detach().float() for name, p in self.parameters.items()}
        self.optimizer = torch.optim.AdamW(self.masters.values(), lr=rate, betas=(0.9, 0.999), weight_decay=0,
                                           fused=True)
        self.rate = rate
        self.steps = 0

    def publish(self):
        """Rounds the masters into the model."""
        with self.torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(self.masters[name])

    def step(self):
        """Takes the gradients of the model to the masters, and a step."""
        for name, p in self.parameters.items():
            self.masters[name].grad = p.grad.float()
            p.grad = None
        norm = self.torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, self.steps / WARM_UP)
        self.optimizer.step()
        self.publish()
        return float(norm)

    def save(self, path):
        state = {"masters": self.masters, "optimizer": self.optimizer.state_dict(), "steps": self.steps}
        self.torch.save(state, f"{path}.part")
        os.replace(f"{path}.part", path)

    def load(self, path, optimizer):
        state = self.torch.load(path, weights_only=True, mmap=True)
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        if optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
            self.steps = state["steps"]
        self.publish()

    def write(self, path):
        from safetensors.torch import save_file

        save_file({name: p.detach() for name, p in self.parameters.items()}, path)


# ---- learning ----


def settle(learner, steps, generator):
    """Steps on the documents of this tree."""
    text = "\n".join(path.read_text() for path in sorted((TREE / "doc").rglob("*.md")))
    tokens = learner.torch.tensor(learner.tokenizer(text)["input_ids"])
    for step in range(steps):
        begin = generator.randrange(len(tokens) - 128)
        batch = tokens[None, begin : begin + 128]
        loss = learner.model(input_ids=batch, labels=batch).loss
        loss.backward()
        norm = learner.step()
        say(f"settling {step + 1}/{steps}: loss {float(loss):.3f}, norm {norm:.2f}")


def ask(a, b):
    return f"Question: What is {a} + {b}?\nAnswer: {a} + {b} ="


def reward(answer, right):
    """1 for the sum, less for a number farther from it, 0 for none: a weak model has something to learn too."""
    numbers = re.findall(r"\d{1,4}", answer)
    return 1 / (1 + abs(int(numbers[0]) - right) / 5) if numbers else 0.0


def improve(learner, options, generator):
    """One step of GRPO. Returns the mean reward."""
    torch, tokenizer = learner.torch, learner.tokenizer
    pairs = [(generator.randrange(1, 100), generator.randrange(1, 100)) for _ in range(options.prompts)]
    asked = tokenizer([ask(a, b) for a, b in pairs for _ in range(options.samples)], return_tensors="pt", padding=True,
                      padding_side="left")
    torch.manual_seed(generator.randrange(2**31))
    with torch.no_grad():
        tokens = learner.model.generate(**asked, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=options.tokens,
                                        pad_token_id=tokenizer.pad_token_id)
    begin = asked["input_ids"].shape[1]
    answers = tokenizer.batch_decode(tokens[:, begin:], skip_special_tokens=True)
    rewards = torch.tensor([reward(text, a + b) for text, (a, b) in
                            zip(answers, [pair for pair in pairs for _ in range(options.samples)])])
    groups = rewards.view(options.prompts, options.samples)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    ended = (tokens[:, begin:] == tokenizer.eos_token_id).cumsum(1)
    told = ((ended - (tokens[:, begin:] == tokenizer.eos_token_id).long()) == 0).float()
    attention = torch.cat([asked["attention_mask"], told.long()], 1)
    total = told.sum()
    for rows in range(0, len(tokens), options.samples):
        part = slice(rows, rows + options.samples)
        if not bool(advantages[part].any()):
            continue
        logits = learner.model(input_ids=tokens[part], attention_mask=attention[part],
                               logits_to_keep=tokens.shape[1] - begin + 1).logits[:, :-1].float()
        chosen = torch.log_softmax(logits, -1).gather(2, tokens[part, begin:, None]).squeeze(2)
        loss = -(chosen * told[part] * advantages[part, None]).sum() / total
        loss.backward()
    for p in learner.parameters.values():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return float(rewards.mean())


# ---- versions ----


def weft(options, *words):
    subprocess.run([options.weft, *words, "--quiet"], check=True)


def go_back(options, first, room, version):
    """Makes room/last.safetensors be `version`."""
    patches = [room / f"{n:04}.weft" for n in range(1, version + 1)]
    for path in room.glob("*.weft"):
        if path not in patches:
            path.unlink()
    shutil.copy(first, room / "last.safetensors")
    if patches:
        weft(options, "apply", "--in-place", room / "last.safetensors", *patches)


def run(options, rate):
    first, room = options.directory / "first.safetensors", options.directory / rate
    room.mkdir(exist_ok=True)
    learner = Learner(float(rate))
    if (room / "state").exists():
        learner.load(room / "state", optimizer=True)
    else:
        learner.load(options.directory / "settled", optimizer=False)
    go_back(options, first, room, learner.steps)
    while learner.steps < options.steps:
        begin = time.monotonic()
        mean = improve(learner, options, random.Random(f"{rate} {learner.steps}"))
        norm = learner.step()
        learner.write(room / "next.safetensors")
        patch = room / f"{learner.steps:04}.weft"
        weft(options, "diff", room / "last.safetensors", room / "next.safetensors", "-o", patch)
        os.replace(room / "next.safetensors", room / "last.safetensors")
        if learner.steps % KEEP == 0 or learner.steps == options.steps:
            learner.save(room / "state")
        line = {"step": learner.steps, "reward": mean, "norm": norm, "bytes": patch.stat().st_size}
        with (room / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        say(f"{rate}: {learner.steps}/{options.steps}: reward {mean:.3f}, norm {norm:.2f}, {line['bytes']} bytes, "
            f"{time.monotonic() - begin:.0f} s")


def make(options):
    options.directory.mkdir(parents=True, exist_ok=True)
    if not (options.directory / "first.safetensors").exists():
        learner = Learner(5e-5)
        settle(learner, options.settle, random.Random(1))
        learner.save(options.directory / "settled")
        learner.write(options.directory / "first.part")
        os.replace(options.directory / "first.part", options.directory / "first.safetensors")
    for rate in options.rates:
        run(options, rate)


# ---- a part of the model ----


def cut_file(source, target):
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, "pt") as whole:
        save_file({name: whole.get_tensor(name) for name in whole.keys() if CUT.match(name)}, target)


def cut(options):
    room = options.directory / "cut"
    room.mkdir(exist_ok=True)
    cut_file(options.directory / "first.safetensors", room / "first.safetensors")
    for rate in options.rates:
        (room / rate).mkdir(exist_ok=True)
        whole, last, new = (room / f"{name}.safetensors" for name in ("whole", "last", "new"))
        shutil.copy(options.directory / "first.safetensors", whole)
        shutil.copy(room / "first.safetensors", last)
        for patch in sorted((options.directory / rate).glob("*.weft")):
            weft(options, "apply", "--in-place", whole, patch)
            cut_file(whole, new)
            weft(options, "diff", last, new, "-o", room / rate / patch.name)
            os.replace(new, last)
        whole.unlink()
        last.unlink()


def main():
    options = parse_options()
    if options.cut:
        cut(options)
    else:
        make(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
