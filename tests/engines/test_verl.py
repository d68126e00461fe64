# SPDX-License-Identifier: Apache-2.0
"""weft.verl under verl's own CheckpointEngineManager, with Ray. Two actors train a small Llama of transformers. On the
side of the rollouts there are verl's CheckpointEngineWorker and its ServerAdapter, which hands weights to verl's worker
extension in a live vLLM. What stands in: verl's actors and vLLMHttpServer need GPUs, so that an actor is the loop
around a model below, and a server an actor of Ray that has vLLM's own LLM. vLLM's hashes of what it holds are compared
with the trainer's weights. A second test has two rollout workers on a host, whose adapter keeps what it is given."""

import asyncio
import hashlib
import os
import pathlib
import tempfile
import unittest

import frameworks

frameworks.ensure()

# The machine may be busy with others: Ray's workers do not give way to all of them, one that is slow to start is not
# replaced by another, and none is started before it is needed. verl finds the platform of processor_platform.py in all
# of its processes.
os.environ.update(
    RAY_AUTH_MODE="disabled", RAY_memory_monitor_refresh_ms="0", RAY_worker_register_timeout_seconds="900",
    RAY_health_check_timeout_ms="900000",
    RAY_prestart_worker_first_driver="0", RAY_enable_worker_prestart="0", RAY_worker_niceness="0",
    VERL_PLATFORM="processor",
    VERL_USE_EXTERNAL_MODULES="processor_platform", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1",
    VLLM_ENGINE_READY_TIMEOUT_S="3600", VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="3600",
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1",
    PYTHONPATH=f"{pathlib.Path(__file__).resolve().parent}{os.pathsep}{os.environ['PYTHONPATH']}",
)  # fmt: skip

import ray
import torch
import weft
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

PATIENCE = 900  # seconds, far more than anything takes on a machine that others use too
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

    def weights(self, step):
        return weights_at(step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        generator = ((name, weight) for name, weight in self.weights(global_steps).items())
        metrics = await self.checkpoint_engine.send_weights(generator, global_steps=global_steps)
        assert next(generator, None) is None, "some weights were not taken, and other ranks would wait"
        return metrics or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *arguments, **named):
        return getattr(self.checkpoint_engine, method)(*arguments, **named)


SMALL = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64,
    "num_key_value_heads": 1, "vocab_size": 512, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def small_model():
    import transformers

    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


class Trainer(Actor):
    """An actor that trains: FP32 masters, AdamW, and what a model of transformers calls its tensors."""

    def __init__(self, config):
        super().__init__(config)
        self.model = small_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def weights(self, _):
        torch.manual_seed(11)  # all ranks take the same step, as those of verl do
        tokens = torch.randint(SMALL["vocab_size"], (4, 32))
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {name: weight for name, weight in self.model.state_dict().items() if name != "lm_head.weight"}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def digests(self):
        return engine_digests(self.model.state_dict())


def engine_digests(state):
    """Of the weights as BF16, as vLLM holds them on one rank."""
    from engines import fused_hashes

    state = {name: weight.to(torch.bfloat16) for name, weight in state.items() if name != "lm_head.weight"}
    return fused_hashes(state)


class Server:
    """What verl's ServerAdapter calls on its server, around vLLM."""

    def __init__(self, model):
        os.environ["VERL_RAY_JOB_ID"] = ray.get_runtime_context().get_job_id()
        from vllm import LLM

        self.engine = LLM(
            model, dtype="bfloat16", enforce_eager=True, max_model_len=128, skip_tokenizer_init=True,
            worker_extension_cls="verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
        )  # fmt: skip
        self.steps = []

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        return self.engine.collective_rpc(method, timeout, args, kwargs)

    def clear_kv_cache(self):
        self.engine.reset_prefix_cache()

    def set_global_steps(self, steps):
        self.steps.append(steps)

    def state(self):
        """The steps that it was told of, hashes of its parameters, and an answer."""
        from vllm import SamplingParams

        found = self.engine.collective_rpc("compute_weight_checksums")
        answer = self.engine.generate({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=4, detokenize=False))
        hashes = {name.rpartition(":")[2]: value for name, value in found[0].items()}
        return self.steps, hashes, list(answer[0].outputs[0].token_ids)


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
        kwargs = {"store": str(self.place / "store"), "cache": str(self.place / "cache"), "timeout": PATIENCE, **more}
        return CheckpointEngineConfig(backend="weft", custom_backend_module="weft.verl", engine_kwargs={"weft": kwargs})

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="weft-ray.", ignore_cleanup_errors=True)
        cls.addClassCleanup(scratch.cleanup)
        cls.addClassCleanup(ray.shutdown)
        for left in reversed(range(10)):
            try:
                ray.init(
                    num_cpus=8, _temp_dir=scratch.name, include_dashboard=False, log_to_driver=False,
                    object_store_memory=100 << 20,
                )  # fmt: skip
                break
            except Exception as error:  # Ray gives itself 30 s, which no setting changes
                if left == 0 or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()

    def group(self, kind, count, *arguments, **named):
        """Workers of verl's, each a process."""
        pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
        made = RayClassWithInitArgs(ray.remote(kind), *arguments, **named)
        group = RayWorkerGroup(pool, made, device_name="cpu")
        self.addCleanup(lambda: [ray.kill(worker) for worker in group.workers])
        return group

    def test_live_engine(self):
        config = self.config()
        small_model().to(torch.bfloat16).save_pretrained(self.place / "model")
        server = ray.remote(Server).options(name="vllm_server_0_0").remote(str(self.place / "model"))
        self.addCleanup(ray.kill, server)
        trainers = self.group(Trainer, 2, config)
        rollout = RolloutConfig(name="vllm", mode="async", checkpoint_engine=config)
        workers = self.group(CheckpointEngineWorker, 1, rollout_config=rollout, model_config=None)
        manager = CheckpointEngineManager(config, trainers, [Replica(workers.workers)])
        before = ray.get(server.state.remote(), timeout=PATIENCE)[1]
        for step in (1, 2, 3):
            metrics = manager.update_weights(global_steps=step)
            steps, held, tokens = ray.get(server.state.remote(), timeout=PATIENCE)
            print(f"step {step}: {metrics}, vLLM answers {tokens}", flush=True)
            self.assertEqual(steps, list(range(1, step + 1)))
            self.assertNotEqual(held, before, "training has changed nothing")
            self.assertEqual([held, held], trainers.digests(), "vLLM does not hold what the trainer has")
            before = held
        self.assertTrue(0 < metrics["weft/changed"] < 1, metrics)

    def test_manager(self):
        config = self.config()
        actors = self.group(Actor, 2, config)
        rollout = RolloutConfig(name="vllm", checkpoint_engine=config)
        workers = self.group(
            CheckpointEngineWorker, 2, rollout_config=rollout, model_config=None, server_adapter=Adapter(str(self.place))
        )
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
