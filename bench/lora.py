# SPDX-License-Identifier: Apache-2.0
"""LoRA on a real language model: what a version costs as an adapter, and what it costs merged into the weights.

    build/engines/venv/bin/python bench/lora.py            # after scripts/engines.sh; minutes
    build/engines/venv/bin/python bench/lora.py --quick    # one rank and one rate

SmolLM2-135M (BF16 values) with PEFT's adapters in FP32 on all linear layers (alpha is twice the rank, no dropout),
AdamW without decay, clipped at 1.0, next-token loss on sums of small numbers. After each step the adapter is published
as BF16 to one store, and the merged weights to another; the bytes are those of the patches. Prints a table in Markdown.
"""

import argparse
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
TREE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TREE / "python"), str(TREE / "tests" / "engines")]

import frameworks

frameworks.ensure()

import peft
import torch
import weft
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = frameworks.PLACE.parent / "model"
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHOWN = (1, 4, 8)  # steps


def batches(tokenizer, steps):
    """Sums and their answers, 8 to a batch."""
    random = torch.Generator().manual_seed(7)
    for _ in range(steps):
        numbers = torch.randint(100, (8, 2), generator=random).tolist()
        texts = [f"What is {one} + {other}? The answer is {one + other}." for one, other in numbers]
        yield tokenizer(texts, return_tensors="pt", padding=True)


def run(rank, rate, steps, place):
    """By step: bytes of the adapter's and of the merged version, and the share that changed in each."""
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32
    )  # BF16 values, which processors compute with faster so
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=LINEAR)
    model = peft.get_peft_model(model, config)  # its adapters are FP32
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    merged = weft.lora.Merged(model)
    adapter = weft.lora.adapter_state(model)
    found = []
    with (
        weft.Publisher(place / "adapter", adapter, dtype="bfloat16", anchor_ratio=-1) as small,
        weft.Publisher(place / "merged", merged.state, anchor_ratio=-1) as large,
    ):
        small.publish()
        large.publish()
        for batch in batches(tokenizer, steps):
            labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            loss = model(**batch, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            merged.refresh()
            made = small.publish(), large.publish()
            found.append([(version.patch_bytes, version.changed / version.total) for version in made])
            print(
                f"rank {rank}, rate {rate:g}, step {len(found)}: loss {loss.item():.3f}, "
                f"adapter {made[0].patch_bytes}, merged {made[1].patch_bytes}",
                file=sys.stderr,
                flush=True,
            )
        dense = made[0].dense_bytes
    return dense, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    ranks, rates = ((8,), (1e-4,)) if quick else ((8, 16, 32), (1e-6, 1e-5, 1e-4, 1e-3))
    shown = SHOWN[:2] if quick else SHOWN
    print("| rank | adapter, whole | rate | step | adapter, bytes | changed | merged, bytes | changed | smaller |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    for rank in ranks:
        for rate in rates:
            with tempfile.TemporaryDirectory(prefix="weft-lora.") as place:
                dense, found = run(rank, rate, shown[-1], pathlib.Path(place))
            for step in shown:
                (small, few), (large, many) = found[step - 1]
                which = f"adapter, {large / small:.1f} ×" if small < large else f"merged, {small / large:.1f} ×"
                print(
                    f"| {rank} | {dense / 1e6:.1f} MB | {rate:g} | {step} | {small / 1e6:.2f} MB | {few:.0%} "
                    f"| {large / 1e6:.2f} MB | {many:.2%} | {which} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
