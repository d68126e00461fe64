# SPDX-License-Identifier: Apache-2.0
"""weft.trl with TRL's real trainers: GRPO trains FP32 masters at 1e-6 and publishes each step; with a live vLLM server
the rollouts come from what was published, and at the end the server's weights are the trainer's, by vLLM's own hashes.
Of AsyncGRPOTrainer, which needs a GPU, the protocol is tested, with the same server."""

import inspect
import os
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", WANDB_DISABLED="true")

import engines
import frameworks
import requests
import torch
import trl
import weft
import weft.trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol

STEPS = 3


def reward(completions, **_):
    """Digits are wanted, and few words."""
    return [sum(letter.isdigit() for letter in text) - 0.01 * len(text) for text in completions]


def trainer(place, callbacks=(), model=None, **options):
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(engines.MODEL, padding_side="left")
    arguments = trl.GRPOConfig(
        output_dir=str(place / "out"), use_cpu=True, bf16=False, per_device_train_batch_size=4, num_generations=4,
        max_completion_length=16, max_steps=STEPS, learning_rate=1e-6, logging_steps=1, save_strategy="no",
        report_to=[], gradient_checkpointing=False, seed=7, **options,
    )  # fmt: skip
    if model is None:
        model = AutoModelForCausalLM.from_pretrained(engines.MODEL, dtype=torch.float32)
    prompts = Dataset.from_dict(
        {"prompt": [f"What is {number} + {number + 1}? Answer briefly." for number in range(8)]}
    )
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=prompts,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def rounded(model):
    """The masters as BF16, by the names of the checkpoint."""
    return {name: weight.detach().to(torch.bfloat16) for name, weight in model.named_parameters()}


class Callback(unittest.TestCase):
    def test_publishes_masters(self):
        """A follower is bit for bit at what the masters show, and a step at 1e-6 changes few weights."""
        with engines.place("trl") as place:
            store = place / "store"
            callback = weft.trl.PublishCallback(store, every=1)
            training = trainer(place, [callback])
            training.train()
            entries = weft.log(store)
            self.assertEqual([entry.labels["step"] for entry in entries], ["3", "2", "1", "0"])
            for entry in entries[:-1]:
                engines.say(f"step {entry.labels['step']}: {entry.patch_bytes} bytes")
            self.assertTrue(0 < callback.published.changed < 0.05 * callback.published.total, callback.published)
            want = rounded(training.model)
            held = {name: torch.zeros_like(weight) for name, weight in want.items()}
            held["lm_head.weight"] = held["model.embed_tokens.weight"]  # tied, and published under both names
            with weft.Subscriber(store, held) as subscriber:
                subscriber.pull()
            for name, weight in want.items():
                self.assertTrue(torch.equal(held[name].view(torch.int16), weight.view(torch.int16)), name)

    def test_arguments(self):
        with self.assertRaises(weft.InvalidArgument):
            weft.trl.PublishCallback("store", every=0)


class Server(unittest.TestCase):
    """One vLLM server for all."""

    def test_server(self):
        with engines.place("trl") as place:
            server = engines.VLLM(
                place, "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", OMP_NUM_THREADS="1"
            )
            try:
                server.ready()
                self.train(place, server)
                self.transfer(place, server)
            finally:
                server.end()

    def train(self, place, server):
        """GRPO in server mode."""
        weft.trl.use(place / "store")
        training = trainer(place, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url)
        training.train()
        training.vllm_generation.sync_weights()  # the last step has not been generated from
        client = training.vllm_generation.vllm_client
        self.assertIsInstance(client, weft.trl.VLLMClient)
        self.assertEqual(server.version, str(client.published.version))
        engines.say(
            f"{client.published.version} versions; the last: {client.published.changed} of {client.published.total} "
            f"changed, {client.published.bytes} bytes"
        )
        self.assertEqual(plain(server.hashes()), engines.fused_hashes(rounded(training.model)))
        with self.assertRaises(weft.InvalidArgument):
            client.update_named_param("model.norm.weight", torch.zeros(576))
        client.close_communicator()

    def transfer(self, place, server):
        """What AsyncGRPOTrainer calls, in its order."""
        transfer = weft.trl.WeightTransfer(place / "async", server.url)
        wanted = {
            name: method
            for name, method in inspect.getmembers(WeightTransferProtocol, inspect.isfunction)
            if not name.startswith("_")
        }
        self.assertEqual(set(wanted), {"init_weight_transfer", "pause", "send_weights", "resume", "destroy"})
        for name, method in wanted.items():
            self.assertEqual(
                list(inspect.signature(method).parameters)[1:],
                list(inspect.signature(getattr(transfer, name)).parameters),
                name,
            )
        weights = engines.load_weights()
        transfer.init_weight_transfer()
        for seed in (1, 2):
            engines.move_weights(weights, seed)
            transfer.pause()
            transfer.send_weights(iter(weights.items()))
            transfer.resume()
            self.assertEqual(server.version, str(transfer.published.version))
            self.assertEqual(plain(server.hashes()), engines.fused_hashes(weights))
        moved = dict(weights)
        weights.popitem()
        with self.assertRaisesRegex(weft.InvalidArgument, "is missing now"):
            transfer.send_weights(iter(weights.items()))
        transfer.destroy()
        with self.assertRaisesRegex(weft.RemoteError, "answered 500.*version 99"):
            weft.trl.VLLMServers(server.url, {"store": str(place / "async"), "follow": False}, 60).go_to(99)
        self.assertEqual(plain(server.hashes()), engines.fused_hashes(moved), "a failure has changed the weights")
        self.assertEqual(requests.get(f"{server.url}/health", timeout=60).status_code, 200)


def plain(hashes):
    """vLLM's names have the worker before them."""
    return {name.split("/")[-1].split(":")[-1]: value for name, value in hashes.items()}


if __name__ == "__main__":
    frameworks.main()
