# SPDX-License-Identifier: Apache-2.0
"""A trainer and a worker in two processes: AdamW moves FP32 masters, and the worker follows in BF16.

The worker's logits are the trainer's, bit for bit, at every version.
"""

import multiprocessing
import tempfile
from typing import Any

import torch
import weft
from llama import CONFIG, Llama

torch.set_num_threads(1)  # in both processes: sums of several threads may come in another order
STEPS = 8
PROBE = torch.arange(48).view(2, 24) * 7 % CONFIG["vocab_size"]


def logits_of(model: Llama) -> Any:
    with torch.no_grad():
        return model(PROBE).float().numpy()  # BF16 fits into FP32 exactly


def follow(store: str, answers: Any) -> None:
    model = Llama().bfloat16()
    with weft.Subscriber(store, model, empty=True) as subscriber:  # the first update fills it
        for update in subscriber.follow(timeout=100):
            update.commit()  # the pause: no request runs here
            answers.put((update.version, logits_of(model)))
            if update.version == STEPS:
                break


def train(store: str, answers: Any) -> None:
    torch.manual_seed(7)
    masters, served = Llama(), Llama().bfloat16()
    optimizer = torch.optim.AdamW(masters.parameters(), lr=1e-6)
    with weft.Publisher(store, masters, dtype=torch.bfloat16) as publisher:
        for step in range(STEPS):
            text = torch.randint(CONFIG["vocab_size"], (4, 33))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(masters(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
            optimizer.step()
            made = publisher.publish(step=step)
            version, logits = answers.get(timeout=100)
            served.load_state_dict(masters.state_dict())  # casts as the publisher does
            assert version == made.version and (logits == logits_of(served)).all()
            print(f"version {version}: {made.changed / made.total:.2%} changed, {made.patch_bytes} bytes; logits equal")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as store:
        answers = context.Queue()
        worker = context.Process(target=follow, args=(store, answers), daemon=True)
        worker.start()
        train(store, answers)
        worker.join()
