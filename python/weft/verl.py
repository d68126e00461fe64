# SPDX-License-Identifier: Apache-2.0
"""verl: a checkpoint engine in its registry. Rank 0 of the actors publishes; each host of the rollouts follows.

    actor_rollout_ref.rollout.checkpoint_engine.backend=weft
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=weft.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.weft.store=s3://bucket/run-7

What changed crosses the network. On a host of rollouts the weights are whole again, in a checkpoint in memory, and verl
loads them from there as it loads those of its other engines.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Tuple

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ._frameworks import Receiver, Stream


async def pairs_of(weights: Any) -> "AsyncIterator[Tuple[str, Any]]":
    """Weights come from a generator, or from an asynchronous one."""
    if hasattr(weights, "__aiter__"):
        async for pair in weights:
            yield pair
    else:
        for pair in weights:
            yield pair


class WeftCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """`store` is what trainers and rollouts share, or `rollout_store` the address by which rollouts reach it. `cache`
    is a directory on a host of rollouts, by default below /dev/shm; `timeout` the seconds in which a version must come;
    `publisher` has options of weft.Publisher, such as key."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        store: str,
        rollout_store: Optional[str] = None,
        trust: Optional[str] = None,
        cache: Optional[str] = None,
        timeout: float = 600,
        publisher: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self._stream = Stream(store, **(publisher or {}))
        self._receiver = Receiver(rollout_store or store, trust=trust, cache=cache, timeout=timeout)

    def prepare(self) -> Dict[str, Any]:
        """Called on all workers before each sync: rollouts wait for what is published after this."""
        self._receiver.prepare()
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: List[Any]
    ) -> Tuple[Dict[str, List[Any]], Dict[str, List[Any]]]:
        """There are no connections to make; each worker is told which side it is on."""
        return {"rollout": [False] * actor_wg_world_size}, {"rollout": [True] * rollout_world_size}

    def init_process_group(self, rollout: bool = False) -> None:
        """Again before each sync."""
        if rollout:
            self._receiver.begin()

    def finalize(self) -> None:
        """The store and the checkpoint stay open for the next sync."""

    async def send_weights(self, weights: Any, global_steps: Optional[int] = None) -> Dict[str, float]:
        """By all actors, since each tensor may be gathered from all of them. What it gives are metrics of the sync."""
        async for name, tensor in pairs_of(weights):
            if self.is_master:
                self._stream.take(name, tensor)
        if not self.is_master:
            return {}
        labels = {} if global_steps is None else {"step": global_steps}
        made = await asyncio.to_thread(lambda: self._stream.publish(**labels))
        return {
            "weft/version": made.version,
            "weft/bytes": made.bytes,
            "weft/changed": made.changed / max(1, made.total),
            "weft/seconds": made.seconds,
        }

    async def receive_weights(self, global_steps: Optional[int] = None) -> "AsyncIterator[Tuple[str, Any]]":
        """All weights, in memory of the host that the next sync changes."""
        await asyncio.to_thread(self._receiver.receive)
        for pair in self._receiver.tensors():
            yield pair


CheckpointEngineRegistry.register("weft")(WeftCheckpointEngine)
