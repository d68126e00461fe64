# SPDX-License-Identifier: Apache-2.0
"""weft.verl under verl's own CheckpointEngineManager, with Ray: two actors and two rollout workers in processes of
their own, verl's CheckpointEngineWorker on the side of the rollouts. What stands in is the model (a small one) and the
engine behind the rollout, since verl's actors and engines need GPUs: the adapter keeps what it is given, and its digest
is compared with the trainer's."""

import asyncio
import hashlib
import os
import pathlib
import tempfile
import unittest

import frameworks

frameworks.ensure()

import ray
import torch
import weft
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

SHAPES = {"embed.weight": (1000, 64), "norm.weight": (64,), "layer.weight": (64, 256), "gate.bias": (7,)}


def weights_at(step):
    """FP32 masters, of which a few hundred show in BF16 after each step."""
    torch.manual_seed(7)
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    for number in range(step):
        torch.manual_seed(100 + number)
        for weight in weights.values():
            weight += torch.randn(weight.shape) * (torch.rand(weight.shape) < 0.01)
    return weights


def digest_of(weights):
    """Of the weights as BF16, by name."""
    sums = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        sums.update(name.encode() + weight.to(torch.bfloat16).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sums.hexdigest()


class Actor(Worker):
    """What verl's ActorRolloutRefWorker does with a checkpoint engine, around a model of four tensors."""

    def __init__(self, config):
        super().__init__()
        import_external_libs(config.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend,
            is_master=self.rank == 0,
            bucket_size=config.update_weights_bucket_megabytes << 20,
            **config.engine_kwargs[config.backend],
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        generator = ((name, weight) for name, weight in weights_at(global_steps).items())
        metrics = await self.checkpoint_engine.send_weights(generator, global_steps=global_steps)
        assert next(generator, None) is None, "some weights were not taken, and other ranks would wait"
        return metrics or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *arguments, **named):
        return getattr(self.checkpoint_engine, method)(*arguments, **named)


class Adapter:
    """In place of an engine: it says what it was given."""

    replica_rank, is_leader_rank = 0, True

    def __init__(self, place):
        self.place = place

    async def update_weights(self, weights, global_steps=None, wire_format=None):
        assert wire_format == "named_tensors", wire_format
        given = {name: weight.clone() async for name, weight in weights}
        place = pathlib.Path(self.place) / f"{os.environ['RANK']}-{global_steps}"
        place.write_text(digest_of(given))


class Replica:
    """What a manager calls on a rollout replica, beside its workers."""

    def __init__(self, workers):
        self.workers, self.calls = workers, []

    def __getattr__(self, name):
        async def call(**_):
            self.calls.append(name)

        return call


class Verl(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="weft-verl.")
        self.addCleanup(scratch.cleanup)
        self.place = pathlib.Path(scratch.name)

    def config(self, **more):
        kwargs = {"store": str(self.place / "store"), "cache": str(self.place / "cache"), "timeout": 60, **more}
        return CheckpointEngineConfig(backend="weft", custom_backend_module="weft.verl", engine_kwargs={"weft": kwargs})

    def test_manager(self):
        # this one is on loopback, and the machine may be busy with others
        os.environ.update(RAY_AUTH_MODE="disabled", RAY_memory_monitor_refresh_ms="0")
        ray.init(num_cpus=64, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
        self.addCleanup(ray.shutdown)
        config = self.config()
        pool = RayResourcePool([2], use_gpu=False)
        actors = RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(Actor), config), device_name="cpu")
        rollout = RolloutConfig(name="vllm", checkpoint_engine=config)
        made = RayClassWithInitArgs(
            ray.remote(CheckpointEngineWorker),
            rollout_config=rollout,
            model_config=None,
            server_adapter=Adapter(str(self.place)),
        )
        workers = RayWorkerGroup(RayResourcePool([2], use_gpu=False), made, device_name="cpu")
        replica = Replica(workers.workers)
        manager = CheckpointEngineManager(config, actors, [replica])
        for step in (1, 2, 5):
            metrics = manager.update_weights(global_steps=step)
            for rank in range(2):
                self.assertEqual((self.place / f"{rank}-{step}").read_text(), digest_of(weights_at(step)), (rank, step))
            print(f"step {step}: {metrics}", flush=True)
        self.assertEqual(metrics["weft/version"], 3)
        self.assertTrue(0 < metrics["weft/changed"] < 0.1)
        self.assertEqual([entry.labels["step"] for entry in weft.log(self.place / "store")], ["5", "2", "1"])
        self.assertEqual(
            replica.calls[:2] + replica.calls[-2:],
            ["abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"],
        )

    def test_nothing_is_published(self):
        """A receiver ends with an error, and does not wait for ever."""
        import_external_libs("weft.verl")
        engine = CheckpointEngineRegistry.new(
            "weft", bucket_size=1 << 20, **{**self.config().engine_kwargs["weft"], "timeout": 1}
        )
        engine.prepare()

        async def receive():
            return [name async for name, _ in engine.receive_weights()]

        with self.assertRaisesRegex(weft.RemoteError, "nothing newer than version 0"):
            asyncio.run(receive())


if __name__ == "__main__":
    frameworks.main()
