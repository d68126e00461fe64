# SPDX-License-Identifier: Apache-2.0
"""Three tensor-parallel workers of vLLM follow as one: each takes its own parts, all commit the same version or none.

The run begins without cuts. The engine announces those that its workers need, and the publisher, which was told
nothing, picks them up.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from typing import Any, Dict, List

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from engines import (
    PATIENCE, Program, StoreServer, VLLM, change_beneath_stream, hash_of, load_weights, move_weights, place, run,
    wait_for,
)

import weft

RANKS = 3  # the model has 9 heads and 3 KV heads


class Scene:
    """What the tests have between them."""

    weights = load_weights()
    first: List[Any]

    def open(self, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.path = directory / "store"
        self.path.mkdir()
        self.publisher = stack.enter_context(weft.Publisher(self.path, self.weights))
        self.publisher.publish(step=0)
        self.server = StoreServer(self.path)
        stack.callback(Program.end, self.server)
        self.engine = VLLM(
            directory, "--tensor-parallel-size", str(RANKS), "--worker-extension-cls", "extension.Extension",
            WEFT_STORE=self.server.url, WEFT_NAME="ranks", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1",
            PYTHONPATH=str(pathlib.Path(__file__).parent),
        )
        stack.callback(Program.end, self.engine)
        self.engine.ready()

    def move(self) -> None:
        move_weights(self.weights, seed=self.publisher.version)

    def publish_moved(self) -> int:
        return self.publisher.publish(step=self.publisher.version).version


scene = Scene()


def expected_hashes(weights: Dict[str, Any]) -> Dict[str, str]:
    """Of each worker's parameters, cut by hand from the checkpoint's tensors."""
    found = {}
    for rank in range(RANKS):

        def rows(weight: Any, rank: int = rank) -> Any:
            return weight.chunk(RANKS, 0)[rank]

        for name, weight in weights.items():
            if name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
                continue
            if name.endswith("q_proj.weight"):
                parts = [weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
                name, weight = name.replace("q_proj", "qkv_proj"), torch_cat([rows(part) for part in parts])
            elif name.endswith("gate_proj.weight"):
                parts = [weight, weights[name.replace("gate_proj", "up_proj")]]
                name, weight = name.replace("gate_proj", "gate_up_proj"), torch_cat([rows(part) for part in parts])
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                weight = weight.chunk(RANKS, 1)[rank]
            elif name.endswith("embed_tokens.weight"):
                weight = rows(weight)
            found[f"dp0:pp0:pcp0:tp{rank}:{name}"] = hash_of(weight)
    return found


def torch_cat(parts: List[Any]) -> Any:
    import torch

    return torch.cat(parts)


def test_cuts_are_announced_and_picked_up() -> None:
    engine, publisher = scene.engine, scene.publisher
    scene.first = engine.generate()
    assert engine.post("start_weight_update").status_code == 200
    answer = engine.post("update_weights", {"update_info": {"version": 1}})
    assert answer.status_code == 500 and "the publisher must cut the tensor where the layout does" in answer.text
    report = wait_for(
        lambda: [one for one in weft.fleet(scene.path).followers if one.name == "ranks" and one.cuts], "a report"
    )[0]
    assert f"model.layers.*.self_attn.q_proj.weight:0:{RANKS}" in report.cuts, report.cuts
    before, end = engine.version, time.monotonic() + PATIENCE
    while engine.version == before:
        assert time.monotonic() < end, f"the engine is at {engine.version}, the run at {publisher.version}"
        publisher.publish(step=publisher.version)
        publisher.settle()
        time.sleep(2)
    engine.wait_version(publisher.version)
    assert engine.hashes() == expected_hashes(scene.weights)


def test_all_ranks_follow_as_one() -> None:
    for _ in range(2):
        change_beneath_stream(scene.engine, scene.move, scene.publish_moved, tokens=60)
        assert scene.engine.hashes() == expected_hashes(scene.weights)


def test_one_rank_cannot_and_none_does() -> None:
    engine, name = scene.engine, "model.layers.3.mlp.down_proj.weight"
    before, version = engine.hashes(), engine.version
    move = {"method": "weft_test_move", "args": ["1", name]}
    assert engine.post("collective_rpc", move).json()["results"] == ["False", "True", "False"]
    scene.move()
    after = scene.publish_moved()
    wait_for(lambda: f"parameter {name} is no longer where it was" in engine.log.read_text(), "the refusal")
    assert engine.version == version and engine.hashes() == before, "a rank has changed"
    assert engine.generate(["Water boils at"])
    engine.post("collective_rpc", move)
    engine.wait_version(after)
    assert engine.hashes() == expected_hashes(scene.weights)


def test_back_to_the_first_weights() -> None:
    for name, weight in load_weights().items():
        scene.weights[name].copy_(weight)
    moved = scene.engine.generate()
    scene.engine.wait_version(scene.publisher.publish(step="back").version)
    assert scene.engine.hashes() == expected_hashes(scene.weights)
    assert scene.engine.generate() == scene.first != moved, "tokens or log-probabilities differ from those at the start"


def main() -> None:
    with place("vllm-ranks") as directory, contextlib.ExitStack() as stack:
        scene.open(directory, stack)
        run(
            test_cuts_are_announced_and_picked_up, test_all_ranks_follow_as_one, test_one_rank_cannot_and_none_does,
            test_back_to_the_first_weights,
        )


if __name__ == "__main__":
    main()
