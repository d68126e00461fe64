# SPDX-License-Identifier: Apache-2.0
"""Two tensor-parallel ranks, each a process, hold a Llama as vLLM does: qkv_proj and gate_up_proj fused and split.

They commit each version together. What they hold is compared with the slow way: slice the whole state, then fuse.
"""

import tempfile
from typing import Any, Dict

import torch
import torch.multiprocessing
import weft
from llama import CONFIG, Llama
from weft import layouts

VERSIONS = 4
RANKS = [layouts.from_config(CONFIG, "vllm", tensor_parallel=(rank, 2)) for rank in range(2)]
ROWS = ("embed_tokens", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
COLUMNS = ("o_proj", "down_proj")
FUSED = dict(q_proj="qkv_proj", k_proj="qkv_proj", v_proj="qkv_proj", gate_proj="gate_up_proj", up_proj="gate_up_proj")


def follow(rank: int, place: str, held: Any, answers: Any) -> None:
    with weft.Member(place, rank, held[rank], layout=RANKS[rank].to_json(), seconds=100) as member:  # fills the tensors
        answers.put((rank, member.version))
        for update in member.follow(timeout=100):
            answers.put((rank, update.commit().version))  # votes, waits for the other rank, writes
            if update.version == VERSIONS:
                break


def slice_and_fuse(whole: Dict[str, torch.Tensor], rank: int) -> Dict[str, torch.Tensor]:
    found: Dict[str, torch.Tensor] = {}
    for name, tensor in whole.items():
        kind = name.split(".")[-2]
        part = tensor.chunk(2, int(kind in COLUMNS))[rank] if kind in ROWS + COLUMNS else tensor
        live = name.replace(kind, FUSED.get(kind, kind))
        found[live] = torch.cat((found[live], part)) if live in found else part
    return found


if __name__ == "__main__":
    trained, answers = Llama().bfloat16(), torch.multiprocessing.get_context("spawn").SimpleQueue()
    held = [{name: torch.zeros(live.shape).bfloat16().share_memory_() for name, live in rank.table().items()}
            for rank in RANKS]  # fmt: skip
    with tempfile.TemporaryDirectory() as store, tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        with weft.Publisher(store, trained, cuts=layouts.cuts_for(RANKS)) as publisher, \
             weft.Group(store, place + "/engine", members=2).start():  # fmt: skip
            workers = torch.multiprocessing.spawn(follow, (place + "/engine", held, answers), 2, False, True)
            for version in range(1, VERSIONS + 1):
                for tensor in trained.state_dict().values():
                    tensor += 0.125 * (torch.rand(tensor.shape) < 0.01)
                publisher.publish()
                assert sorted(answers.get() for _ in RANKS) == [(0, version), (1, version)]
                for rank in range(2):
                    for name, tensor in slice_and_fuse(trained.state_dict(), rank).items():
                        assert torch.equal(held[rank][name], tensor)
                print(f"version {version}: each rank holds its {len(held[0])} tensors, fused and split")
            workers.join()
