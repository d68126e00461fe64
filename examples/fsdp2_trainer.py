# SPDX-License-Identifier: Apache-2.0
"""Two ranks train a Llama under FSDP2 and publish it together, each its shards: to publish, no rank gathers the model.

Two workers follow in BF16. Only to check them, each rank gathers the model after all: one worker's logits are the same,
bit for bit, at every version.
"""

import os
import tempfile
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
import weft
import weft.sharded
from llama import CONFIG, Llama
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_trainer_worker import STEPS, follow, logits_of


def train(rank: int, place: str, answers: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=2)
    torch.manual_seed(7)
    model, gathered, mesh = Llama(), Llama().bfloat16(), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    torch.manual_seed(rank)  # from here on each rank has text of its own
    with weft.sharded.Publisher(f"{place}/store", model, dtype=torch.bfloat16) as publisher:
        assert not publisher.exchanged  # every shard goes from where it lies
        for step in range(STEPS):
            text = torch.randint(CONFIG["vocab_size"], (4, 33))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
            optimizer.step()
            made = publisher.publish(step=step)  # by both ranks
            gathered.load_state_dict({name: shards.full_tensor() for name, shards in model.state_dict().items()})
            version, logits = answers.get()
            assert version == made.version and (logits == logits_of(gathered)).all()
            print(f"version {version}, rank {rank}: {made.changed / made.total:.2%} changed; its worker's logits are equal")
    torch.distributed.destroy_process_group()


def run(process: int, place: str, answers: Any) -> None:
    if process < 2:
        train(process, place, answers[process])
    else:
        follow(f"{place}/store", answers[process - 2])


if __name__ == "__main__":
    queues = [torch.multiprocessing.get_context("spawn").SimpleQueue() for _ in range(2)]
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(run, (place, queues), 4)  # one that fails ends all
