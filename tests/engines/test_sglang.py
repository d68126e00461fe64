# SPDX-License-Identifier: Apache-2.0
"""weft.sglang with a real engine: a server goes from version to version in place and answers as a fresh engine does,
token by token and with the same log-probabilities; what goes wrong is in its answer, and it serves on."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import frameworks

frameworks.ensure()  # what a server of SGLang imports

import engines
import torch
import weft
import weft.sglang
from safetensors.torch import load_file, save_file

ENGINES = pathlib.Path(os.environ.get("WEFT_ENGINES") or pathlib.Path(__file__).parents[2] / "build" / "engines")
PROMPTS = ["The capital of France is", "Once upon a time, there was a little", "Water boils at", "def fibonacci(n):"]
SAMPLING = {"temperature": 0, "max_new_tokens": 12}
PATIENCE = engines.PATIENCE
OPTIONS = {
    "device": "cpu", "dtype": "bfloat16", "attention_backend": "torch_native", "sampling_backend": "pytorch",
    "grammar_backend": "none", "mem_fraction_static": 0.6, "max_total_tokens": 4096, "max_running_requests": 8,
    "disable_overlap_schedule": True, "log_level": "warning", "skip_server_warmup": True,
    "watchdog_timeout": 3600,
}  # fmt: skip


def answers(outputs):
    """Tokens and log-probabilities, the sampled and the three likeliest."""
    return [
        (output["output_ids"], output["meta_info"]["output_token_logprobs"], output["meta_info"]["output_top_logprobs"])
        for output in json.loads(json.dumps(outputs))
    ]


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


class Server:
    """A server of SGLang in a process of its own."""

    def __init__(self, model, store, log, options=None, **environment):
        port = engines.free_port()
        words = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(model),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        for name, value in {**OPTIONS, **(options or {})}.items():
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                words,
                env=dict(os.environ, WEFT_STORE=str(store), **environment),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=60).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.close()
                    raise RuntimeError(f"SGLang did not start: {self.text()}") from None
                time.sleep(0.2)

    def text(self):
        return pathlib.Path(self.log).read_text(errors="replace")[-4000:]

    def generate(self, flush=True):
        """One prompt at a time, since sums differ with the batch; from an empty cache, since they differ with what is
        cached."""
        if flush:
            urllib.request.urlopen(
                urllib.request.Request(self.url + f"/flush_cache?timeout={PATIENCE}", b""), timeout=PATIENCE
            ).close()
        return answers(
            [
                post(
                    self.url + "/generate",
                    {"text": prompt, "sampling_params": SAMPLING, "return_logprob": True, "top_logprobs_num": 3},
                )
                for prompt in PROMPTS
            ]
        )

    def close(self):
        with contextlib.suppress(ProcessLookupError):  # also what a server has left that has ended by itself
            os.killpg(self.process.pid, 9)
        self.process.wait()


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="weft-sglang.")
        cls.addClassCleanup(scratch.cleanup)
        cls.place = pathlib.Path(scratch.name)
        cls.store = cls.place / "store"
        cls.models = [ENGINES / "model", cls.place / "second"]
        shutil.copytree(cls.models[0], cls.models[1], symlinks=False)
        state = load_file(cls.models[0] / "model.safetensors")
        with weft.Publisher(cls.store, state) as publisher:
            publisher.publish()
            torch.manual_seed(7)
            for weights in state.values():
                bits = weights.view(torch.int16)
                bits += (torch.rand(weights.shape) < 0.01).to(torch.int16)  # one step away from zero
            publisher.publish()
        save_file(state, cls.models[1] / "model.safetensors", metadata={"format": "pt"})

    def test_server_and_engine(self):
        """The server goes 1, 2, nowhere, 1, 2; a fresh engine on the second model answers as it does, and goes to 1."""
        server = Server(self.models[0], self.store, self.place / "server.log")
        self.addCleanup(server.close)
        first = server.generate()
        self.assertEqual(server.generate(), first, "SGLang itself is not repeatable")
        self.assertIn("version 1", weft.sglang.update(server.url, 1))
        self.assertEqual(server.generate(), first)
        self.assertIn("version 2", weft.sglang.update(server.url))
        second = server.generate(flush=False)  # the update has emptied the cache, or this is wrong
        self.assertNotEqual(second, first)
        self.assertEqual(server.generate(), second)

        with self.assertRaisesRegex(weft.RemoteError, "version 99"):
            weft.sglang.update(server.url, 99)
        self.assertEqual(server.generate(), second, "a failure has changed the weights")
        with self.assertRaisesRegex(weft.RemoteError, "version 0 is none"):
            weft.sglang.update(server.url, 0)
        with self.assertRaisesRegex(weft.RemoteError, "weft: "):
            weft.sglang.update(server.url, store=str(self.place / "nowhere"))
        os.rename(self.store, self.place / "away")
        with self.assertRaisesRegex(weft.RemoteError, "weft: "):
            weft.sglang.update(server.url, 1)
        self.assertEqual(server.generate(), second)
        os.rename(self.place / "away", self.store)
        weft.sglang.update(server.url, 1)
        self.assertEqual(server.generate(), first)
        self.assertIn("version 2", weft.sglang.update(server.url, 2))
        self.assertEqual(server.generate(), second)
        self.update_beneath_a_stream(server)
        self.assertEqual(server.generate(), first)
        self.assertIsNone(server.process.poll(), "the server has ended")
        server.close()

        import sglang

        os.environ["WEFT_STORE"] = str(self.store)
        engine = sglang.Engine(model_path=str(self.models[1]), **OPTIONS)
        self.addCleanup(engine.shutdown)

        def generate():
            while not engine.flush_cache().success:  # the request before has not left yet
                time.sleep(0.05)
            return answers(
                [engine.generate(prompt, SAMPLING, return_logprob=True, top_logprobs_num=3) for prompt in PROMPTS]
            )

        self.assertEqual(generate(), second, "in place and fresh differ")
        weft.sglang.update(engine, 1)
        self.assertEqual(generate(), first)
        with self.assertRaisesRegex(weft.RemoteError, "version 99"):
            weft.sglang.update(engine, 99)
        self.assertEqual(generate(), first)

        engine.shutdown()
        self.follow_by_itself(first, second)

    def follow_by_itself(self, first, second):
        """Nobody calls the server. It comes to what is published before it starts and while it answers, and answers as
        fresh engines did; a store that is away is waited for."""
        server = Server(self.models[0], self.store, self.place / "follows.log", WEFT_FOLLOW="1", WEFT_NAME="follows")
        self.addCleanup(server.close)

        def wait(version):
            self.wait(server, self.store, "follows", version)

        wait(2)
        self.assertEqual(server.generate(flush=False), second)
        with self.assertRaisesRegex(weft.RemoteError, "follows by itself"):
            weft.sglang.update(server.url, 1)
        state = load_file(self.models[0] / "model.safetensors")
        later = load_file(self.models[1] / "model.safetensors")
        with weft.Publisher(self.store, state) as publisher:

            def publish(weights):
                for name, weight in weights.items():
                    state[name].copy_(weight)
                return publisher.publish().version

            earlier = {name: weight.clone() for name, weight in state.items()}
            self.change_beneath_stream(server, [lambda: publish(later), lambda: publish(earlier)])
            wait(publish(later))
            self.assertEqual(server.generate(flush=False), second)
            os.rename(self.store / "heads", self.place / "away")
            self.assertEqual(server.generate(), second)  # which takes long enough to look for versions many times
            os.rename(self.place / "away", self.store / "heads")
            wait(publish(load_file(self.models[0] / "model.safetensors")))
        self.assertEqual(server.generate(flush=False), first)
        self.assertIsNone(server.process.poll(), "the server has ended")

    def wait(self, server, store, name, version):
        """Until a server reports that it is there."""
        end = time.monotonic() + PATIENCE
        while not any(one.name == name and one.version == version for one in weft.fleet(store).followers):
            self.assertIsNone(server.process.poll(), server.text())
            self.assertLess(time.monotonic(), end, f"not at version {version}: {server.text()}")
            time.sleep(0.1)

    def test_ranks(self):
        """Three tensor-parallel ranks follow as a group: there, and back to the answers that they began with. They
        announce the cuts that they need, and the publisher, which was told nothing, picks them up. SGLang means ranks
        to have a NUMA node each, and to speak NCCL: the first is a setting's default, and a library that is not found
        it does without."""
        ranks, store = 3, self.place / "cut"
        state, later = (load_file(model / "model.safetensors") for model in self.models)
        first = {name: weight.clone() for name, weight in state.items()}
        with weft.Publisher(store, state) as publisher:
            publisher.publish()
            server = Server(
                self.models[0], store, self.place / "ranks.log", {"tp_size": ranks, "mem_fraction_static": 0.2},
                WEFT_FOLLOW="1", WEFT_NAME="ranks", SGLANG_NCCL_SO_PATH="/nonexistent",
                SGLANG_CPU_OMP_THREADS_BIND="|".join(str(rank % (os.cpu_count() or 1)) for rank in range(ranks)),
            )  # fmt: skip
            self.addCleanup(server.close)
            end = time.monotonic() + PATIENCE
            while not any(one.version for one in weft.fleet(store).followers):
                self.assertLess(time.monotonic(), end, f"cuts were not picked up: {server.text()}")
                publisher.publish()
                publisher.settle()
                time.sleep(2)
            self.wait(server, store, "ranks", publisher.version)
            before = server.generate()
            for weights, equal in ((later, False), (first, True)):
                for name, weight in weights.items():
                    state[name].copy_(weight)
                self.wait(server, store, "ranks", publisher.publish().version)
                self.assertEqual(server.generate(flush=False) == before, equal)

    def stream(self, server, changes):
        """A long answer, which goes on while weights change and is as long as it should be; the versions that SGLang
        has computed it with."""
        length, changes = 240, list(changes)
        body = {
            "text": PROMPTS[1],
            "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": length, "ignore_eos": True},
        }
        request = urllib.request.Request(
            server.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        done = 0
        with urllib.request.urlopen(request, timeout=PATIENCE) as stream:
            for line in stream:
                if line.startswith(b"data: {"):
                    last = json.loads(line[6:])
                    if done < len(changes) and len(last["output_ids"]) > 10 * done:
                        changes[done]()
                        done += 1
        self.assertEqual(len(last["output_ids"]), length)
        for change in changes[done:]:
            change()
        return [span["version"] for span in last["meta_info"]["weight_versions"]]

    def change_beneath_stream(self, server, changes):
        """How long an answer takes and when its tokens are noticed nobody promises: if one was over before weights
        changed, there is another."""
        for _ in range(8):
            versions = self.stream(server, changes)
            print(f"versions beneath a stream: {versions}", flush=True)
            if len(versions) > 1:
                return
        self.fail("none of the streams was in flight when weights changed")

    def update_beneath_a_stream(self, server):
        self.change_beneath_stream(
            server, [lambda version=version: weft.sglang.update(server.url, version) for version in (1, 2, 1)]
        )


class Refusals(unittest.TestCase):
    """Parameters that would be written in vain, of modules that SGLang's classes are not needed for."""

    def refused(self, model, pattern):
        with self.assertRaisesRegex(weft.UnsupportedError, pattern):
            weft.sglang.layout_of(model)

    def test_parameters(self):
        model = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
        layout = weft.sglang.layout_of(model)
        self.assertEqual(layout.table()["weight"].shape, (64, 64))
        model.weight.data = torch.empty(0, dtype=torch.bfloat16)
        self.refused(model, "weight: it is empty")
        model.weight.data = torch.zeros(64, 64, dtype=torch.bfloat16).T[:32]
        self.refused(model, "not contiguous")
        model.weight.data = torch.zeros(64, 64, dtype=torch.float8_e4m3fn)
        self.refused(model, "quantised")
        model = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
        model.use_intel_amx_backend = True
        self.refused(model, "packed for AMX")
        stack = torch.nn.Module()
        stack.w13_weight = torch.nn.Parameter(torch.zeros(4, 8, 8, dtype=torch.bfloat16))
        self.refused(stack, "not known here")


def rank_model(config, rank, ranks):
    """A model of one layer, of SGLang's own layers, as a rank has them."""
    from sglang.srt.layers import linear
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from sglang.srt.runtime_context import get_parallel

    hidden, size, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    options = {"bias": False, "params_dtype": torch.bfloat16}
    place = {"tp_rank": rank, "tp_size": ranks, "tp_group": None}

    def norm():
        return torch.nn.RMSNorm(hidden, dtype=torch.bfloat16)

    def within(**modules):
        return torch.nn.ModuleDict(modules)

    with get_parallel().override(**place, **{f"attn_{name}": value for name, value in place.items()}):
        attention = within(
            qkv_proj=linear.QKVParallelLinear(hidden, head, heads, kv_heads, **options),
            o_proj=linear.RowParallelLinear(heads * head, hidden, **options),
        )
        mlp = within(
            gate_up_proj=linear.MergedColumnParallelLinear(hidden, [size, size], **options),
            down_proj=linear.RowParallelLinear(size, hidden, **options),
        )
        layer = within(self_attn=attention, mlp=mlp, input_layernorm=norm(), post_attention_layernorm=norm())
        embedding = VocabParallelEmbedding(config["vocab_size"], hidden, params_dtype=torch.bfloat16)
        return within(model=within(embed_tokens=embedding, layers=torch.nn.ModuleList([layer]), norm=norm()))


class Layouts(unittest.TestCase):
    """Layers of tensor-parallel ranks, of which SGLang makes as many as one likes without starting them.
    Before an engine, which settles the ranks of this process; classes are run by name."""

    def test_layouts(self):
        """What live layers say is what weft.layouts knows of SGLang, also of a padded vocabulary and shared KV
        heads."""
        config = {
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "num_hidden_layers": 1,
            "vocab_size": 1000,
            "dtype": "bfloat16",
            "tie_word_embeddings": True,
        }
        for ranks, changed in (
            (1, {}),
            (3, {"vocab_size": 960}),
            (4, {"num_attention_heads": 8, "num_key_value_heads": 2}),
        ):
            for rank in range(ranks):
                with self.subTest(rank=rank, ranks=ranks):
                    live = weft.sglang.layout_of(rank_model({**config, **changed}, rank, ranks))
                    known = weft.layouts.from_config({**config, **changed}, "sglang", tensor_parallel=(rank, ranks))
                    self.assertEqual(live.table(), known.table())
                    self.assertEqual(
                        live.recipes, {name: recipe for name, recipe in known.recipes.items() if recipe.kind != "tie"}
                    )

    def test_repacked(self):
        config = {
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "vocab_size": 64,
        }
        model = rank_model(config, 0, 1)
        down = model["model"]["layers"][0]["mlp"]["down_proj"]
        down.weight.data = torch.zeros(16, 256, dtype=torch.bfloat16)
        with self.assertRaisesRegex(weft.UnsupportedError, r"its shape is \(16, 256\), not \(64, 64\)"):
            weft.sglang.layout_of(model)


if __name__ == "__main__":
    frameworks.main()
