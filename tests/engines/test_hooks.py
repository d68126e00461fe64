# SPDX-License-Identifier: Apache-2.0
"""weft.slime and weft.nemo_rl against what these frameworks document: neither is on PyPI (nemo-rl and slime there are
empty packages of other versions). Checkpoints are real ones of a real model, and processes are processes."""

import asyncio
import importlib
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import frameworks
import torch
import weft
import weft.slime
from weft import _frameworks
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

ENGINES = pathlib.Path(os.environ.get("WEFT_ENGINES") or pathlib.Path(__file__).parents[2] / "build" / "engines")


def small_model():
    """A Llama of the same family as the tests' model, with few layers."""
    config = AutoConfig.from_pretrained(ENGINES / "model")
    config.num_hidden_layers, config.layer_types = 2, None
    torch.manual_seed(7)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def move(model, seed):
    torch.manual_seed(seed)
    for parameter in model.parameters():
        bits = parameter.data.view(torch.int16)
        bits += (torch.rand(parameter.shape) < 0.01).to(torch.int16)


def read(directory):
    found = {}
    for file in sorted(pathlib.Path(directory).glob("*.safetensors")):
        found.update(load_file(file))
    return found


def pull(source, version):
    """What a process of an engine does."""
    weft.slime.pull(str(source), version)


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="weft-hooks.")
        self.addCleanup(scratch.cleanup)
        self.place = pathlib.Path(scratch.name)
        os.environ["WEFT_STORE"] = str(self.place / "store")

    def assertSame(self, one, other):
        self.assertEqual(set(one), set(other))
        for name, tensor in one.items():
            self.assertTrue(torch.equal(tensor.view(torch.int16), other[name].view(torch.int16)), name)


class Slime(Case):
    def test_versions(self):
        """Whole checkpoints in several files; on another host, processes pull them at the same time."""
        model = small_model()
        trainer, engine = self.place / "trainer", self.place / "engine"
        engine.mkdir()
        spawning = multiprocessing.get_context("spawn")
        for version in (1, 2, 3):
            move(model, version)
            written = trainer / f"weight_v{version:06d}"
            model.save_pretrained(written, max_shard_size="30MB")
            self.assertGreater(len(list(written.glob("*.safetensors"))), 1)
            made = weft.slime.publish(types.SimpleNamespace(), str(written), [])
            self.assertEqual(made.anchored, version == 1)
            if version == 2:
                continue  # engines may pass versions over
            ranks = [spawning.Process(target=pull, args=(engine, version)) for _ in range(3)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
                self.assertEqual(rank.exitcode, 0)
            self.assertSame(read(written), read(engine / f"weight_v{version:06d}"))
            self.assertEqual(
                {file.name for file in written.glob("*.safetensors*")},
                {file.name for file in (engine / f"weight_v{version:06d}").iterdir()},
            )
        self.assertTrue(0.005 < made.changed / made.total < 0.02, made)
        self.assertLess(made.bytes, made.dense_bytes / 50)
        pull(engine, 0)  # slime's name for what the engine was started with
        with self.assertRaisesRegex(weft.NotFoundError, "weight_version=9"):
            weft.slime.pull(str(engine), 9, timeout=0.2)

    def test_refusals(self):
        place = self.place / "weight_v000001"
        place.mkdir()
        (place / "model.safetensors.index.json").write_text('{"metadata": {"delta_encoding": "xor"}, "weight_map": {}}')
        with self.assertRaisesRegex(weft.InvalidArgument, "WEFT_BASE"):
            weft.slime.publish(types.SimpleNamespace(), str(place), [])
        with self.assertRaisesRegex(weft.InvalidArgument, "weight_v000007"):
            weft.slime.publish(types.SimpleNamespace(), str(self.place), [])
        (place / "model.safetensors.index.json").unlink()
        with self.assertRaisesRegex(weft.InvalidArgument, "has no model.safetensors.index.json"):
            weft.slime.publish(types.SimpleNamespace(), str(place), [])
        del os.environ["WEFT_STORE"]
        with self.assertRaisesRegex(weft.InvalidArgument, "WEFT_STORE"):
            weft.slime.pull(str(self.place), 1)


class NemoRL(Case):
    def engine(self):
        """As NeMo RL's create_checkpoint_engine makes one of refit_transport and refit_cfg."""
        module, name = "weft.nemo_rl:WeftCheckpointEngine".split(":", 1)
        settings = {"store": os.environ["WEFT_STORE"], "cache": str(self.place / "cache"), "timeout": 900}
        return getattr(importlib.import_module(module), name)(bucket_size=8 << 20, **settings)

    def test_refits(self):
        """Two ranks of a policy and two of vLLM, which are set up once and refitted three times."""
        model = small_model()
        policies, rollouts = [self.engine() for _ in range(2)], [self.engine() for _ in range(2)]
        metadata = [engine.prepare() for engine in policies + rollouts]
        sizes = {"train_world_size": 2, "rollout_world_size": 2, "metadata": metadata}
        for rank, engine in enumerate(policies):
            engine.init_policy_process_group(worker_rank=rank, **sizes)
        for rank, engine in enumerate(rollouts):
            engine.init_rollout_process_group(rollout_rank=rank, **sizes)

        async def receive(engine):
            found, batches = {}, 0
            async for batch in engine.receive_weight_batches():
                batches += 1
                self.assertTrue(len(batch) == 1 or sum(tensor.nbytes for _, tensor in batch) <= 8 << 20)
                found.update({name: tensor.clone() for name, tensor in batch})
            self.assertGreater(batches, 1)
            return found

        async def refit():
            sending = [
                engine.send_weights(((name, tensor) for name, tensor in model.named_parameters()))
                for engine in policies
            ]
            return (await asyncio.gather(*map(receive, rollouts), *sending))[:2]

        for seed in range(3):
            move(model, seed)
            for found in asyncio.run(refit()):
                self.assertSame(found, dict(model.named_parameters()))
        self.assertEqual(len(weft.log(os.environ["WEFT_STORE"])), 3)
        for engine in policies + rollouts:
            engine.finalize()


class Hosts(Case):
    def test_another_run(self):
        """Ranks do not take what an earlier job has left on their host for what they wait for."""
        store, model = self.place / "store", small_model()

        def receivers(timeout):
            made = [
                _frameworks.Receiver(str(store), cache=str(self.place / "cache"), timeout=timeout) for _ in range(2)
            ]
            for one in made:
                self.addCleanup(one.close)
                one.begin()
                one.prepare()
            return made

        def publish(count):
            stream = _frameworks.Stream(store)
            self.addCleanup(stream.close)
            for _ in range(count):
                move(model, 1)
                stream.publish_all(model.named_parameters())

        first, second = receivers(900)
        publish(2)
        self.assertEqual((first.receive(), second.receive()), (2, 2))
        first.close()
        second.close()
        shutil.rmtree(store)
        first, second = receivers(0.2)
        publish(1)
        with self.assertRaisesRegex(weft.RemoteError, "nothing newer than version 0"):
            second.receive()
        with self.assertRaisesRegex(weft.InvalidArgument, "but this replica follows run .* to let it change runs"):
            first.receive()


class Page(Case):
    def test_page(self):
        """What doc/python/verl.md shows runs as it stands there."""
        script = pathlib.Path(__file__).parents[1] / "python" / "test_package_documents.py"
        place = pathlib.Path(self.place) / "verl.md"
        place.mkdir()
        done = subprocess.run([sys.executable, "-B", script, "--pages", place], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout), {"verl.md": 0}, (place / "said").read_text())


if __name__ == "__main__":
    frameworks.main()
