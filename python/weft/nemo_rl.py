# SPDX-License-Identifier: Apache-2.0
"""NeMo RL: a refit transport for rollouts that are not colocated. Rank 0 of the policy publishes; each host of vLLM
follows.

    policy.generation.refit_transport: "weft.nemo_rl:WeftCheckpointEngine"
    policy.generation.refit_cfg: {"weft.nemo_rl:WeftCheckpointEngine": {store: "s3://bucket/run-7"}}

What changed crosses the network. On a host of rollouts the weights are whole again, in a checkpoint in memory, and are
handed to vLLM's loader in batches.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, List, Mapping, Optional, Tuple

from ._frameworks import Receiver, Stream

if TYPE_CHECKING:
    CheckpointEngine = object
else:
    try:
        from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine
    except ImportError:  # NeMo RL takes any class with these methods
        CheckpointEngine = object


class WeftCheckpointEngine(CheckpointEngine):
    """`store` is what policy and rollouts share, or `rollout_store` the address by which rollouts reach it. `cache` is
    a directory on a host of rollouts, by default below /dev/shm; `timeout` the seconds in which a version must come;
    `publisher` has options of weft.Publisher, such as key."""

    cleanup_after_load = False  # what is yielded lies in host memory that stays
    shard_hf_weights = False
    shard_expert_weights = False

    def __init__(
        self,
        bucket_size: int,
        *,
        store: str,
        rollout_store: Optional[str] = None,
        trust: Optional[str] = None,
        cache: Optional[str] = None,
        timeout: float = 600,
        publisher: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.bucket_size = bucket_size
        self._stream = Stream(store, **(publisher or {}))
        self._receiver = Receiver(rollout_store or store, trust=trust, cache=cache, timeout=timeout)
        self._sends = False

    def prepare(self) -> Dict[str, Any]:
        """Called on all workers before the first refit: rollouts wait for what is published after this."""
        self._receiver.prepare()
        return {}

    def get_target_weight_layout(self) -> None:
        """Weights are sent whole."""

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: List[Any]
    ) -> None:
        self._sends = worker_rank == 0

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: List[Any]
    ) -> None:
        """There are no connections to make."""
        self._receiver.begin()

    def finalize(self) -> None:
        """The run is left to the next publisher."""
        self._stream.close()
        self._receiver.close()

    async def send_weights(self, weights: Any) -> None:
        """By all ranks of the policy, since each tensor may be gathered from all of them."""
        for name, tensor in weights:
            if self._sends:
                self._stream.take(name, tensor)
        if self._sends:
            await asyncio.to_thread(self._stream.publish)

    async def receive_weight_batches(self) -> "AsyncIterator[List[Tuple[str, Any]]]":
        """All weights, in batches of at most bucket_size bytes, or of one tensor that is larger."""
        await asyncio.to_thread(self._receiver.receive)
        batch: List[Tuple[str, Any]] = []
        size = 0
        for name, tensor in self._receiver.tensors():
            if batch and size + tensor.nbytes > self.bucket_size:
                yield batch
                batch, size = [], 0
            batch.append((name, tensor))
            size += tensor.nbytes
        if batch:
            yield batch
