# SPDX-License-Identifier: Apache-2.0
"""The trainer: TRL's GRPOTrainer, whose rollouts come from the engine and whose weights go there by weft. Masters are
FP32; passes compute in BF16 where torch's autocast does.

The model was quantised before it came here, so its weights lie on a coarse grid, and masters that begin on a grid do
not behave as trained ones do. `spread` puts each master at a random place among all FP32 values that BF16 rounds to the
same weight: the engine's weights stay as they are. For zeros that cannot help, since every step is large beside them;
`start_model` gives each a small value first.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import shutil
import time
from typing import Any, Callable, Dict, List

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1", TQDM_DISABLE="1")

import torch
import transformers
import trl
import weft.trl
from datasets import Dataset
from engine import Engine
from safetensors.torch import load_file, save_file

PROMPTS = 8  # of a step
GROUP = 8  # answers to each
TOKENS = 12  # of an answer, at most
_PASS = 8  # answers that are learned from at once, which bounds memory
WARMUP = 5  # steps; Adam's first ones are as large as can be
_BLOCK = 32  # weights that were quantised together


# ---- the model ----


def start_model(model: pathlib.Path, place: pathlib.Path, seed: int) -> float:
    """Makes a copy of a checkpoint in which each zero is a value within half a step of its quantised neighbours. The share
    of the weights that were zero."""
    place.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, place)
    dice = torch.Generator().manual_seed(seed)
    weights = load_file(model / "model.safetensors")
    zeros = sum(int((weight == 0).sum()) for weight in weights.values())
    for weight in weights.values():
        if weight.dim() == 2:
            blocks = weight.view(-1, _BLOCK)
            rows = (blocks == 0).any(1).nonzero().view(-1)
            found = blocks[rows].float()
            least = found.abs().where(found != 0, torch.inf).min(1, keepdim=True).values.nan_to_num(posinf=0)
            filled = least * (torch.rand(found.shape, generator=dice) - 0.5)
            blocks[rows] = torch.where(found == 0, filled, found).to(weight.dtype)
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return float(zeros / sum(weight.numel() for weight in weights.values()))


def spread(masters: Any, seed: int) -> None:
    """Moves FP32 values that are BF16 exactly to random places that BF16 rounds back."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for master in masters.parameters():
            before = master.to(torch.bfloat16)
            # neighbours in the order of bits, as far as rounding reaches: 16 bits are dropped, half of them each way
            moves = torch.randint(-0x7FFF, 0x8000, master.shape, generator=dice, dtype=torch.int32)
            master.view(torch.int32).add_(moves * (master != 0))
            assert torch.equal(master.to(torch.bfloat16), before)


# ---- the task ----


def make_prompts(count: int, seed: int) -> Any:
    """Sums of numbers with one and two digits, with what they come to."""
    dice = random.Random(seed)
    numbers = [dice.randrange(1, 10 ** dice.randint(1, 2)) for _ in range(2 * count)]
    pairs = list(zip(numbers[::2], numbers[1::2]))
    return Dataset.from_dict({
        "prompt": [f"Question: What is {a} + {b}?\nAnswer: {a} + {b} =" for a, b in pairs],
        "answer": [a + b for a, b in pairs],
    })


def reward_right(completions: List[str], answer: List[int], **_: Any) -> List[float]:
    """1 if the first number of an answer is the sum, else 0."""
    return [float(re.findall(r"\d+", text)[:1] == [str(right)]) for text, right in zip(completions, answer)]


# ---- the steps ----


class Notes(transformers.TrainerCallback):
    """What TRL logs of its newest step."""

    def __init__(self) -> None:
        self.newest: Dict[str, float] = {}

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" in logs:
            self.newest = dict(logs)


class Densities:
    """How many BF16 weights differ from the version before, and from eight versions before."""

    def __init__(self, masters: Any) -> None:
        self._masters = dict(masters.named_parameters())
        self._before = {name: master.detach().to(torch.bfloat16) for name, master in self._masters.items()}
        self._older = {name: weight.clone() for name, weight in self._before.items()}
        self._count = 0

    def _take(self, kept: Dict[str, Any]) -> Dict[str, int]:
        """How many differ from those that were kept, by name; the masters' are kept from now on."""
        differing = {}
        for name, master in self._masters.items():
            now = master.detach().to(torch.bfloat16)
            differing[name] = int((now.view(torch.int16) != kept[name].view(torch.int16)).sum())
            kept[name].copy_(now)
        return differing

    def next(self) -> Dict[str, Any]:
        """Counted here, and not taken from what weft says: the two are compared."""
        changed = self._take(self._before)
        self._count += 1
        elements = sum(master.numel() for master in self._masters.values())
        over_eight = sum(self._take(self._older).values()) / elements if self._count % 8 == 0 else None
        kinds: Dict[str, List[int]] = {}
        for name, master in self._masters.items():
            kind = kinds.setdefault(re.sub(r"\.\d+\.", ".*.", name), [0, 0])
            kind[0] += changed[name]
            kind[1] += master.numel()
        total = sum(changed.values())
        return {
            "changed": total, "elements": elements,
            "tensors": {kind: part / whole for kind, (part, whole) in kinds.items()},
            "density": {"1": total / elements, "8": over_eight, "32": None},
        }


class Learner:
    """Trains for some steps. After each, `tell` gets a line as those of metrics.jsonl (doc/FORMAT.md, section 34)."""

    def __init__(
        self,
        model: pathlib.Path,
        directory: pathlib.Path,
        engine: Engine,
        store_url: str,
        *,
        steps: int,
        rate: float,
        whole: bool,
        seed: int,
        tell: Callable[[Dict[str, Any]], None],
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._metrics = directory / "metrics.jsonl"
        self._notes = Notes()
        # all that makes the trainer send its weights by weft
        weft.trl.use(str(directory / "store"), engine_store=store_url, options={"whole": whole})
        self.masters = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        spread(self.masters, seed)
        optimizer = torch.optim.AdamW(self.masters.parameters(), lr=rate, betas=(0.9, 0.999), weight_decay=0)
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARMUP))
        self._trainer = trl.GRPOTrainer(
            model=self.masters,
            optimizers=(optimizer, warmup),
            processing_class=transformers.AutoTokenizer.from_pretrained(model, padding_side="left"),
            reward_funcs=reward_right,
            train_dataset=make_prompts(PROMPTS * steps, seed),
            callbacks=[self._notes],
            args=trl.GRPOConfig(
                output_dir=str(directory / "trl"), max_steps=steps, learning_rate=rate, seed=seed, max_grad_norm=1.0,
                per_device_train_batch_size=_PASS, gradient_accumulation_steps=PROMPTS * GROUP // _PASS,
                num_generations=GROUP, max_completion_length=TOKENS, use_vllm=True, vllm_mode="server",
                vllm_server_base_url=engine.url, use_cpu=True, bf16=True, gradient_checkpointing=False,
                logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
            ),
        )
        self._trainer.remove_callback(transformers.PrinterCallback)
        self._client = self._trainer.vllm_generation.vllm_client
        self._densities = Densities(self.masters)
        self._fetched = 0.0
        self._versions = 0
        self._generating = 0.0
        self._mark = 0.0

    def run(self) -> None:
        generation = self._trainer.vllm_generation
        self._sync, self._generate = generation.sync_weights, generation.generate
        generation.sync_weights, generation.generate = self._sync_noted, self._generate_timed
        try:
            self._trainer.train()
            generation.sync_weights()  # TRL syncs before a step's rollouts; the last step has none behind it
        finally:
            self._client.close_communicator()  # TRL does so when the process ends, and the store is gone by then

    def _generate_timed(self, *arguments: Any, **named: Any) -> Any:
        start = time.monotonic()
        found = self._generate(*arguments, **named)
        self._generating += time.monotonic() - start
        return found

    def _sync_noted(self) -> None:
        """Ends a step: what it made is published, and is in the engine when this returns."""
        start = time.monotonic()
        self._sync()
        now = time.monotonic()
        if self._versions > 0:
            self._note(start, now)
        self._versions += 1
        self._mark = time.monotonic()
        self._generating = 0.0
        self._fetched = self._engine.figures()["fetched_bytes_total"]

    def _note(self, start: float, now: float) -> None:
        published, notes, figures = self._client.published, self._notes.newest, self._engine.figures()
        densities = self._densities.next()
        if not published.anchored and published.changed != densities["changed"]:
            raise AssertionError(f"weft published {published.changed} changes, and torch counts {densities['changed']}")
        line = {
            "step": self._versions - 1, "version": published.version, "reward": notes["reward"], "success": None,
            "loss": notes["loss"], "norm": notes["grad_norm"], "rate": notes["learning_rate"], **densities,
            "bytes": {"sent": published.bytes, "dense": published.dense_bytes},
            "staleness": {"mean": 0, "max": 0},
            "trajectories": {"used": PROMPTS * GROUP, "rejected": 0, "reasons": {}},
            "seconds": {
                "step": now - self._mark, "wait": self._generating, "train": start - self._mark - self._generating,
                "publish": now - start, "state": 0,
            },
            "workers": [{
                "name": "vLLM", "version": int(self._engine.version), "generate": self._generating,
                "pull": now - start - published.seconds, "pause": figures["last_pause_seconds"], "put": None,
                "received": int(figures["fetched_bytes_total"] - self._fetched), "trajectories": PROMPTS * GROUP,
            }],
        }
        with open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._tell(line)
