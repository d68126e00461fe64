#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.layouts against the slow way: for random small models of each architecture and random ranks, a rank's tensors
are allocated as an engine's constructors do and filled as its weight loaders do, tensor by tensor, in numpy. A real
subscriber follows a real store through the layout into live memory, with the publisher's cuts from cuts_for. Every
bit must be equal, and the ranks together must hold every element of the checkpoint."""

import ctypes
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import types
import unittest

import numpy

SOURCE = os.environ.get("WEFT_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.environ.get("WEFT_BUILD", "build")
WEFT = os.environ.get("WEFT") or os.path.join(BUILD, "weft")
os.environ["WEFT_LIBRARY"] = os.path.join(BUILD, "libweft.so")
sys.path.insert(0, os.path.join(SOURCE, "python"))

from weft import layouts, library  # noqa: E402  (the path is set above)

WIDTHS = {"BF16": numpy.uint16, "F32": numpy.uint32}
NUMBERS = {"BF16": 15, "F32": 18}


# hidden and intermediate size, heads, layers, vocabulary and more; weights; tensors
PUBLISHED = (
    ("llama", (4096, 14336, 32, 32, 128256, {"num_key_value_heads": 8}), 8030261248, 291),  # Llama-3-8B
    ("mistral", (4096, 14336, 32, 32, 32000, {}), 7241732096, 291),  # Mistral-7B-v0.1
    ("mixtral", (4096, 14336, 32, 32, 32000, {"num_local_experts": 8}), 46702792704, 995),  # Mixtral-8x7B
    ("qwen2", (3584, 18944, 28, 28, 152064, {"num_key_value_heads": 4}), 7615616512, 339),  # Qwen2.5-7B
    ("qwen3", (4096, 12288, 32, 36, 151936, {"num_key_value_heads": 8}), 8190735360, 399),  # Qwen3-8B
    (
        "qwen3_moe",  # Qwen3-30B-A3B
        (2048, 6144, 32, 48, 151936, {"head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128}),
        30532122624,
        18867,
    ),
    ("gemma2", (3584, 14336, 16, 42, 256000, {"num_key_value_heads": 8}), 9241705984, 464),  # Gemma-2-9B
    ("gemma3_text", (1152, 6912, 4, 26, 262144, {"num_key_value_heads": 1}), 999885952, 340),  # Gemma-3-1B
    (
        "deepseek_v3",  # DeepSeek-V3 without the layer that predicts a further token
        (
            *(7168, 18432, 128, 61, 129280),
            {
                "moe_intermediate_size": 2048,
                "n_routed_experts": 256,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
            },
        ),
        671026419200,
        45395,
    ),
)


def published_config(family, sizes):
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
    return dict(zip(keys, sizes)) | {"model_type": family} | sizes[5]


# ---- random models ----


def make_config(family, chance, tensor=1, stages=1, **given):
    """Sizes of which every cut falls on 16 bytes, with room for the finer cuts that ranks of several kinds need."""
    kv_heads = chance.choice([1, 2, 4])
    config = {
        "model_type": family,
        "torch_dtype": "bfloat16",
        "hidden_size": chance.choice([64, 128]),
        "intermediate_size": 192 * tensor if stages == 1 else 128 * tensor,
        "num_hidden_layers": chance.choice([2, 3]) if stages == 1 else 5,
        "num_attention_heads": kv_heads * 4,
        "num_key_value_heads": kv_heads,
        "head_dim": chance.choice([16, 32]),
        "vocab_size": chance.choice([128, 192, 101, 37]) if stages == 1 else 256,
        "tie_word_embeddings": chance.random() < 0.5,
    }
    if family == "llama":
        config |= {"attention_bias": chance.random() < 0.5, "mlp_bias": chance.random() < 0.5}
    if family == "mixtral":
        config |= {"num_local_experts": 8, "tie_word_embeddings": False}
    if family == "qwen3_moe":
        config |= {"num_experts": 8, "moe_intermediate_size": 128, "mlp_only_layers": [0], "tie_word_embeddings": False}
    if family == "deepseek_v3":
        config |= {
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "q_lora_rank": chance.choice([None, 24]),
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": chance.choice([1, 2]),
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": chance.choice([0, 1]),
            "tie_word_embeddings": False,
        }
        del config["head_dim"]
    return config | given


def make_checkpoint(config, seed):
    """Random bits, by the shapes that the module says; the slow way checks these against its own."""
    generator = numpy.random.default_rng(seed)
    return {
        name: generator.integers(0, 1 << 8 * WIDTHS[tensor.dtype]().nbytes, tensor.shape, WIDTHS[tensor.dtype])
        for name, tensor in layouts.checkpoint_tensors(config).items()
    }


def change_checkpoint(checkpoint, seed):
    generator = numpy.random.default_rng(seed)
    changed = {}
    for name, array in checkpoint.items():
        changed[name] = array.copy()
        places = generator.integers(0, array.size, max(1, array.size // 50))
        changed[name].reshape(-1)[places] ^= 1
    return changed


def write_checkpoint(path, checkpoint):
    header, offset = {}, 0
    for name, array in checkpoint.items():
        dtype = "BF16" if array.dtype == numpy.uint16 else "F32"
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in checkpoint.values():
            file.write(array.tobytes())


# ---- the slow way ----


class Engine:
    """A rank of vLLM or SGLang: `parameters` has what its constructors allocate; load() does as its loaders do."""

    def __init__(self, config, engine, tp, ep, pp, dtype=None):
        self.config, self.engine, self.dtype = config, engine, dtype
        self.rank, self.size = tp
        self.parameters = {}
        layers = config["num_hidden_layers"]
        self.layers = self.own_layers(layers, *pp)
        self.first, self.last = pp[0] == 0, pp[0] == pp[1] - 1
        self.ep = ep
        self.experts_path = "experts.routed_experts" if engine == "vllm" else "experts"
        self.vocabulary = -(-config["vocab_size"] // 64) * 64 // self.size
        embedding = (self.vocabulary, config["hidden_size"])
        tied = config["tie_word_embeddings"]
        if engine == "sglang" and config["model_type"] == "gemma3_text":
            self.allocate("model.embed_tokens.weight", (config["vocab_size"], config["hidden_size"]))
        elif self.first or (tied and self.last and engine == "vllm"):
            self.allocate("model.embed_tokens.weight", embedding)
        if self.last:
            self.allocate("model.norm.weight", embedding[1:])
            if not tied or (engine == "sglang" and pp[1] > 1):
                self.allocate("lm_head.weight", embedding)
        for layer in self.layers:
            self.construct_layer(layer)

    def own_layers(self, layers, rank, size):
        counts = [layers // size] * size
        for extra in range(layers % size):
            counts[-1 - extra if self.engine == "sglang" else -2 - extra] += 1
        return list(range(sum(counts[:rank]), sum(counts[: rank + 1])))

    def allocate(self, name, shape, bits=None):
        self.parameters[name] = numpy.zeros(shape, self.dtype or bits or numpy.uint16)

    # -- constructors --

    def construct_layer(self, layer):
        config, prefix, hidden = self.config, f"model.layers.{layer}", self.config["hidden_size"]
        norms = ["input", "post_attention"]
        if config["model_type"].startswith("gemma"):
            norms += ["pre_feedforward", "post_feedforward"]
        for norm in norms:
            self.allocate(f"{prefix}.{norm}_layernorm.weight", (hidden,))
        if config["model_type"] == "deepseek_v3":
            self.construct_latent(f"{prefix}.self_attn")
        else:
            self.construct_attention(f"{prefix}.self_attn")
        if self.is_moe(layer):
            self.construct_moe(f"{prefix}.block_sparse_moe" if config["model_type"] == "mixtral" else f"{prefix}.mlp")
        else:
            self.construct_mlp(f"{prefix}.mlp", config["intermediate_size"])

    def is_moe(self, layer):
        kind = self.config["model_type"]
        if kind == "qwen3_moe":
            return layer not in self.config["mlp_only_layers"]
        return kind == "mixtral" or (kind == "deepseek_v3" and layer >= self.config["first_k_dense_replace"])

    def construct_attention(self, prefix):
        config, hidden = self.config, self.config["hidden_size"]
        self.heads = config["num_attention_heads"] // self.size
        self.kv_heads = max(1, config["num_key_value_heads"] // self.size)
        self.replicas = max(1, self.size // config["num_key_value_heads"])
        rows = (self.heads + 2 * self.kv_heads) * config["head_dim"]
        self.allocate(f"{prefix}.qkv_proj.weight", (rows, hidden))
        self.allocate(f"{prefix}.o_proj.weight", (hidden, self.heads * config["head_dim"]))
        if config.get("attention_bias") or config["model_type"] == "qwen2":
            self.allocate(f"{prefix}.qkv_proj.bias", (rows,))
        if config.get("attention_bias"):
            self.allocate(f"{prefix}.o_proj.bias", (hidden,))
        if config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
            self.allocate(f"{prefix}.q_norm.weight", (config["head_dim"],))
            self.allocate(f"{prefix}.k_norm.weight", (config["head_dim"],))

    def construct_latent(self, prefix):
        c, hidden, heads = self.config, self.config["hidden_size"], self.config["num_attention_heads"] // self.size
        latent = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        query = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        if c["q_lora_rank"] is None:
            self.allocate(f"{prefix}.q_proj.weight", (query, hidden))
            self.allocate(f"{prefix}.kv_a_proj_with_mqa.weight", (latent, hidden))
        else:
            self.fused = "fused_qkv_a_proj" + ("_with_mqa" if self.engine == "sglang" else "")
            self.allocate(f"{prefix}.{self.fused}.weight", (c["q_lora_rank"] + latent, hidden))
            self.allocate(f"{prefix}.q_a_layernorm.weight", (c["q_lora_rank"],))
            self.allocate(f"{prefix}.q_b_proj.weight", (query, c["q_lora_rank"]))
        self.allocate(f"{prefix}.kv_a_layernorm.weight", (c["kv_lora_rank"],))
        rows = heads * (c["qk_nope_head_dim"] + c["v_head_dim"])
        self.allocate(f"{prefix}.kv_b_proj.weight", (rows, c["kv_lora_rank"]))
        self.allocate(f"{prefix}.o_proj.weight", (hidden, heads * c["v_head_dim"]))

    def construct_mlp(self, prefix, size):
        hidden = self.config["hidden_size"]
        self.allocate(f"{prefix}.gate_up_proj.weight", (2 * size // self.size, hidden))
        self.allocate(f"{prefix}.down_proj.weight", (hidden, size // self.size))
        if self.config.get("mlp_bias"):
            self.allocate(f"{prefix}.gate_up_proj.bias", (2 * size // self.size,))
            self.allocate(f"{prefix}.down_proj.bias", (hidden,))

    def construct_moe(self, prefix):
        c, hidden = self.config, self.config["hidden_size"]
        count = c.get("num_local_experts") or c.get("num_experts") or c.get("n_routed_experts")
        size = c["intermediate_size"] if c["model_type"] == "mixtral" else c["moe_intermediate_size"]
        self.allocate(f"{prefix}.gate.weight", (count, hidden))
        if c["model_type"] == "deepseek_v3":
            self.allocate(f"{prefix}.gate.e_score_correction_bias", (count,), numpy.uint32)
            self.construct_mlp(f"{prefix}.shared_experts", c["n_shared_experts"] * size)
        # which experts are here, at which place, and how each is split
        if self.ep is None:
            self.places = {number: number for number in range(count)}
            self.moe_rank, self.moe_size = self.rank, self.size
        else:
            rank, ranks = self.ep
            owners = [owner for owner in range(ranks) for _ in range(count // ranks + (owner < count % ranks))]
            mine = [number for number, owner in enumerate(owners) if owner == rank]
            self.places = {number: place for place, number in enumerate(mine)}
            self.moe_size = 1 if self.engine == "vllm" else self.size // ranks
            self.moe_rank = self.rank % self.moe_size
        own = size // self.moe_size
        self.allocate(f"{prefix}.{self.experts_path}.w13_weight", (len(self.places), 2 * own, hidden))
        self.allocate(f"{prefix}.{self.experts_path}.w2_weight", (len(self.places), hidden, own))

    # -- loaders --

    def narrow(self, array, dim, rank, size):
        own = array.shape[dim] // size
        return array.take(range(rank * own, (rank + 1) * own), dim)

    def load(self, name, array):
        if self.config["model_type"] == "deepseek_v3" and name.startswith(f"model.layers.{self.config['num_hidden_layers']}."):
            return  # the layer that predicts a further token
        if name == "model.embed_tokens.weight" and self.config["tie_word_embeddings"]:
            self.load_vocabulary("lm_head.weight", array)
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            self.load_vocabulary(name, array)
            return
        pieces = name.split(".")
        if pieces[1] == "layers" and int(pieces[2]) not in self.layers:
            return
        if ".experts." in name:
            self.load_expert(name, array)
            return
        module, leaf = pieces[-2], pieces[-1]
        prefix = ".".join(pieces[:-2])
        if module in ("q_proj", "k_proj", "v_proj") and f"{prefix}.qkv_proj.{leaf}" in self.parameters:
            head = self.config["head_dim"]
            q, kv = self.heads * head, self.kv_heads * head
            start, own, rank = {
                "q_proj": (0, q, self.rank),
                "k_proj": (q, kv, self.rank // self.replicas),
                "v_proj": (q + kv, kv, self.rank // self.replicas),
            }[module]
            self.parameters[f"{prefix}.qkv_proj.{leaf}"][start : start + own] = array[rank * own : (rank + 1) * own]
        elif module in ("gate_proj", "up_proj"):
            target = self.parameters[f"{prefix}.gate_up_proj.{leaf}"]
            half = len(target) // 2
            start = 0 if module == "gate_proj" else half
            target[start : start + half] = self.narrow(array, 0, self.rank, self.size)
        elif module in ("q_a_proj", "kv_a_proj_with_mqa") and f"{prefix}.{module}.{leaf}" not in self.parameters:
            start = 0 if module == "q_a_proj" else self.config["q_lora_rank"]
            self.parameters[f"{prefix}.{self.fused}.{leaf}"][start : start + len(array)] = array
        elif module in ("o_proj", "down_proj") and leaf == "weight":
            self.parameters[name][...] = self.narrow(array, 1, self.rank, self.size)
        elif module in ("q_b_proj", "kv_b_proj", "q_proj"):
            self.parameters[name][...] = self.narrow(array, 0, self.rank, self.size)
        elif name in self.parameters:
            self.parameters[name][...] = array
        else:
            assert name == "model.norm.weight" and not self.last, name

    def load_vocabulary(self, name, array):
        if name in self.parameters:
            rows = array[self.rank * self.vocabulary :][: self.vocabulary]
            if self.parameters[name].shape == array.shape:
                rows = array
            self.parameters[name][: len(rows)] = rows

    def load_expert(self, name, array):
        before, after = name.split(".experts.")
        number, which, _ = after.split(".")
        place = self.places.get(int(number))
        if place is None:
            return
        if which in ("down_proj", "w2"):
            target = self.parameters[f"{before}.{self.experts_path}.w2_weight"][place]
            target[...] = self.narrow(array, 1, self.moe_rank, self.moe_size)
        else:
            target = self.parameters[f"{before}.{self.experts_path}.w13_weight"][place]
            half = len(target) // 2
            start = 0 if which in ("gate_proj", "w1") else half
            target[start : start + half] = self.narrow(array, 0, self.moe_rank, self.moe_size)


def load_whole(config, checkpoint, stacked):
    """A model of transformers, whole; version 5 stacks experts, and calls Mixtral's block mlp."""
    live, experts = {}, {}
    for name, array in checkpoint.items():
        if config["model_type"] == "deepseek_v3" and name.startswith(f"model.layers.{config['num_hidden_layers']}."):
            continue
        if stacked:
            name = name.replace("block_sparse_moe", "mlp")
        if stacked and ".experts." in name:
            before, after = name.split(".experts.")
            number, which, _ = after.split(".")
            which = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(which, which)
            experts.setdefault(f"{before}.experts", {})[int(number), which] = array
        else:
            live[name] = array
    for block, arrays in experts.items():
        numbers = sorted({number for number, _ in arrays})
        gates, ups, downs = ([arrays[number, which] for number in numbers] for which in ("gate_proj", "up_proj", "down_proj"))
        live[f"{block}.gate_up_proj"] = numpy.concatenate([numpy.stack(gates), numpy.stack(ups)], 1)
        live[f"{block}.down_proj"] = numpy.stack(downs)
    return live


# ---- the library ----


class LiveTensor(library.Sized):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("storage", ctypes.c_int),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.c_uint64 * 16),
        ("bytes", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("access", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("writable", ctypes.c_bool),
        ("tied_to", ctypes.c_int64),
    ]


class SubscriberOptions(library.Sized):
    _fields_ = [
        ("trusted", ctypes.c_void_p),
        ("state_path", ctypes.c_char_p),
        ("audit_bytes", ctypes.c_uint64),
        ("poll_seconds", ctypes.c_double),
        ("fetch_bytes", ctypes.c_uint64),
        ("empty", ctypes.c_bool),
        ("replace", ctypes.c_bool),
        ("durable", ctypes.c_bool),
        ("phase", ctypes.c_void_p),
        ("phase_opaque", ctypes.c_void_p),
        ("report_name", ctypes.c_char_p),
        ("report_seconds", ctypes.c_double),
    ]


class Library:
    """A context and what is made with it, destroyed in the opposite order."""

    def __init__(self):
        self.made = []
        self.context = ctypes.c_void_p()
        assert library.library.weft_context_create(None, ctypes.byref(self.context)) == 0

    def check(self, status):
        if status < 0:
            raise library.Error(status, library.library.weft_context_error(self.context).decode())

    def make(self, create, destroy, *arguments):
        made = ctypes.c_void_p()
        self.check(getattr(library.library, create)(self.context, *arguments, ctypes.byref(made)))
        self.made.append((getattr(library.library, destroy), made))
        return made

    def make_table(self, tensors, memory=None):
        """Without memory the addresses are such as no tensor overlaps another."""
        table = self.make("weft_table_create", "weft_table_destroy")
        address = 1 << 40
        for name, tensor in tensors.items():
            described = LiveTensor(
                name=name.encode(),
                dtype=NUMBERS[tensor.dtype],
                rank=len(tensor.shape),
                shape=(ctypes.c_uint64 * 16)(*tensor.shape),
                data=address if memory is None else memory[name].ctypes.data,
                writable=True,
            )
            self.check(library.library.weft_table_add(table, ctypes.byref(described)))
            address += math.prod(tensor.shape) * 4
        return table

    def parse(self, layout):
        text = layout.to_json().encode()
        return self.make("weft_layout_parse", "weft_layout_destroy", text, ctypes.c_size_t(len(text)))

    def close(self):
        for destroy, made in reversed(self.made):
            destroy.restype = None
            destroy(made)
        library.library.weft_context_destroy(self.context)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Follower(Library):
    """A rank's live memory, which follows a store through its layout."""

    def __init__(self, store, layout):
        super().__init__()
        self.memory = {name: numpy.zeros(live.shape, WIDTHS[live.dtype]) for name, live in layout.live.items()}
        table, recipes = self.make_table(layout.table(), self.memory), self.parse(layout)
        opened = self.make("weft_store_open", "weft_store_close", store.encode(), None)
        options = ctypes.byref(SubscriberOptions(empty=True))
        arguments = (opened, table, recipes, options)
        self.subscriber = self.make("weft_subscriber_open_layout", "weft_subscriber_close", *arguments)

    def pull(self):
        self.check(library.library.weft_subscriber_pull(self.subscriber, ctypes.c_uint64(0)))


# ---- tests ----


class Models(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def publish(self, checkpoint, cuts):
        path = os.path.join(self.directory, "checkpoint.safetensors")
        write_checkpoint(path, checkpoint)
        store = os.path.join(self.directory, "store")
        command = [WEFT, "publish", "-q", "-j", "1", "--cache", os.path.join(self.directory, "cache"), store, path]
        subprocess.run(command + [f"--cut={cut}" for cut in cuts], check=True)
        return store

    def compare(self, memory, expected, label):
        self.assertEqual(set(memory), set(expected), label)
        for name, array in expected.items():
            self.assertEqual(memory[name].shape, array.shape, (label, name))
            self.assertTrue(numpy.array_equal(memory[name], array), (label, name))

    def check_covered(self, config, checkpoint, engines):
        """The slow way again, with a number for each element of the checkpoint."""
        count, numbered = 1, {}
        for name, array in checkpoint.items():
            numbered[name] = numpy.arange(count, count + array.size, dtype=numpy.int64).reshape(array.shape)
            count += array.size
        covered = numpy.zeros(count, bool)
        for arguments in engines:
            engine = Engine(config, *arguments, dtype=numpy.int64)
            for name, array in numbered.items():
                engine.load(name, array)
            for array in engine.parameters.values():
                covered[array.reshape(-1)] = True
        extra = f"model.layers.{config['num_hidden_layers']}."
        for name, array in numbered.items():
            if not name.startswith(extra):
                self.assertTrue(covered[array].all(), name)

    def check_model(self, config, engine, workers, **options):
        """Each worker is (tensor, expert, pipeline)."""
        label = (engine, workers, config)
        checkpoint = make_checkpoint(config, 1)
        changed = change_checkpoint(checkpoint, 2)
        ranks = [layouts.from_config(config, engine, *worker, **options) for worker in workers]
        cuts = layouts.cuts_for(ranks)
        store = self.publish(checkpoint, cuts)
        followers = []
        for version in (checkpoint, changed):
            if version is changed:
                self.publish(changed, cuts)
            for place, worker in enumerate(workers):
                if version is checkpoint:
                    followers.append(Follower(store, ranks[place]))
                    self.addCleanup(followers[-1].close)
                followers[place].pull()
                slow = Engine(config, engine, *worker)
                for name, array in version.items():
                    slow.load(name, array)
                self.compare(followers[place].memory, slow.parameters, label)
        self.check_covered(config, checkpoint, [(engine, *worker) for worker in workers])

    def check_tensor_parallel(self, family, seed):
        chance = random.Random(f"{family} {seed}")
        size = (4, 2, 1)[seed % 3]
        config = make_config(family, chance, size)
        engine = ("vllm", "sglang")[seed % 2]
        with self.subTest(engine=engine, size=size, config=config):
            self.check_model(config, engine, [((rank, size), None, (0, 1)) for rank in range(size)])

    def test_tensor_parallel(self):
        for family in layouts._FAMILIES:
            for seed in range(4):
                with self.subTest(family=family, seed=seed):
                    self.setUp()
                    self.check_tensor_parallel(family, seed)

    def test_expert_parallel(self):
        for family in ("mixtral", "qwen3_moe", "deepseek_v3"):
            for engine, size in (("vllm", 2), ("vllm", 4), ("sglang", 2)):
                with self.subTest(family=family, engine=engine, size=size):
                    self.setUp()
                    config = make_config(family, random.Random(f"{family} {engine} {size}"), size, vocab_size=128)
                    self.check_model(config, engine, [((rank, size), (rank, size), (0, 1)) for rank in range(size)])

    def test_experts_split_both_ways(self):
        """SGLang with fewer expert than tensor ranks; vLLM with experts that no equal number is left of."""
        config = make_config("qwen3_moe", random.Random(3), 4, vocab_size=128)
        self.check_model(config, "sglang", [((rank, 4), (rank // 2, 2), (0, 1)) for rank in range(4)])
        self.setUp()
        config = make_config("qwen3_moe", random.Random(4), 4, vocab_size=128, num_experts=10)
        self.check_model(config, "vllm", [((rank, 4), (rank, 4), (0, 1)) for rank in range(4)])

    def test_pipeline_parallel(self):
        for engine in ("vllm", "sglang"):
            for family, tied in (("qwen2", True), ("llama", False), ("deepseek_v3", False)):
                for size, stages in ((1, 3), (2, 2)):
                    with self.subTest(engine=engine, family=family, size=size, stages=stages):
                        self.setUp()
                        config = make_config(family, random.Random(5), size, stages, tie_word_embeddings=tied)
                        workers = [((rank, size), None, (stage, stages)) for stage in range(stages) for rank in range(size)]
                        self.check_model(config, engine, workers)

    def test_transformers(self):
        for engine in ("transformers", "transformers4"):
            for family in layouts._FAMILIES:
                with self.subTest(engine=engine, family=family):
                    self.setUp()
                    config = make_config(family, random.Random(6))
                    checkpoint = make_checkpoint(config, 7)
                    layout = layouts.from_config(config, engine)
                    store = self.publish(checkpoint, layouts.cuts_for([layout]))
                    with Follower(store, layout) as follower:
                        follower.pull()
                        self.compare(follower.memory, load_whole(config, checkpoint, engine == "transformers"), family)
                    ties = {"lm_head.weight": "model.embed_tokens.weight"} if config["tie_word_embeddings"] else {}
                    self.assertEqual(layout.ties, ties)

    def test_uncut_is_refused(self):
        """Without the cuts a rank meets buckets that reach beyond what it holds: cuts_for is not idle."""
        config = make_config("llama", random.Random(8), 2)
        layout = layouts.from_config(config, "vllm", (0, 2))
        with Follower(self.publish(make_checkpoint(config, 9), []), layout) as follower:
            with self.assertRaisesRegex(library.Error, "must cut"):
                follower.pull()

    def test_fused_shared_expert(self):
        config = make_config("deepseek_v3", random.Random(10), 2, n_shared_experts=1, num_nextn_predict_layers=0, vocab_size=128)
        checkpoint = make_checkpoint(config, 11)
        ranks = [layouts.from_config(config, "sglang", (rank, 2), fuse_shared_experts=True) for rank in range(2)]
        store = self.publish(checkpoint, layouts.cuts_for(ranks))
        with Follower(store, ranks[1]) as follower:
            follower.pull()
            shared = "model.layers.1.mlp.shared_experts."
            gate, up, down = (checkpoint[f"{shared}{name}_proj.weight"] for name in ("gate", "up", "down"))
            experts = follower.memory["model.layers.1.mlp.experts.w13_weight"]
            self.assertEqual(experts.shape, (9, 128, config["hidden_size"]))
            self.assertTrue(numpy.array_equal(experts[8], numpy.concatenate([gate[64:], up[64:]])))
            self.assertTrue(numpy.array_equal(follower.memory["model.layers.1.mlp.experts.w2_weight"][8], down[:, 64:]))
            self.assertNotIn(f"{shared}gate_up_proj.weight", follower.memory)
        split = layouts.from_config(config, "sglang", (3, 4), (1, 2), fuse_shared_experts=True)
        slices = split.recipes["model.layers.1.mlp.experts.w2_weight"].slices
        self.assertEqual([part.tensor.split(".")[5] for part in slices], ["4", "5", "6", "7", "down_proj"])
        self.assertEqual({part[1:] for part in slices}, {(1, 64, 64)})


class Details(unittest.TestCase):
    """Numbers of published models, counted by hand, and what must be refused."""

    QWEN = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 152064,
    }

    def test_published_counts(self):
        """Weights and tensors of published models, as their headers have them, from the sizes in their configs."""
        for family, sizes, weights, count in PUBLISHED:
            tensors = layouts.checkpoint_tensors(published_config(family, sizes))
            self.assertEqual(sum(math.prod(tensor.shape) for tensor in tensors.values()), weights, family)
            self.assertEqual(len(tensors), count, family)

    def test_published_views(self):
        """The library checks a rank of each against the whole checkpoint. Nothing is read, so addresses will do."""
        for family, sizes, _, _ in PUBLISHED:
            with self.subTest(family=family), Library() as made:
                size = math.gcd(8, sizes[2])
                ranks = [layouts.from_config(published_config(family, sizes), "vllm", (rank, size)) for rank in (0, size - 1)]
                for layout in ranks:
                    live, checkpoint = made.make_table(layout.table()), made.make_table(layout.checkpoint)
                    recipes = made.parse(layout)
                    made.make("weft_view_create_layout", "weft_view_destroy", live, recipes, checkpoint)
                parts = {cut.parts for cut in layouts.cuts_for(ranks)}
                self.assertIn(size, parts)

    def test_slices(self):
        layout = layouts.from_config(self.QWEN, "vllm", (3, 4))
        self.assertEqual(layout.live["model.layers.0.self_attn.qkv_proj.weight"].shape, (7 * 128 + 2 * 128, 3584))
        recipes = json.loads(layout.to_json())["tensors"]
        self.assertEqual(
            recipes["model.layers.5.self_attn.qkv_proj.bias"]["concat"],
            [
                {"tensor": "model.layers.5.self_attn.q_proj.bias", "dim": 0, "start": 2688, "length": 896},
                {"tensor": "model.layers.5.self_attn.k_proj.bias", "dim": 0, "start": 384, "length": 128},
                {"tensor": "model.layers.5.self_attn.v_proj.bias", "dim": 0, "start": 384, "length": 128},
            ],
        )

    def test_replicated_heads(self):
        """Eight ranks over four KV heads: two each have the same."""
        config = self.QWEN | {"num_attention_heads": 32, "head_dim": 128}
        for rank in range(8):
            recipe = layouts.from_config(config, "sglang", (rank, 8)).recipes["model.layers.0.self_attn.qkv_proj.weight"]
            self.assertEqual([part.start for part in recipe.slices], [rank * 512, rank // 2 * 128, rank // 2 * 128])
        cuts = layouts.cuts_for(layouts.from_config(config, "vllm", (rank, 8)) for rank in range(8))
        self.assertIn(layouts.Cut("model.layers.*.self_attn.k_proj.weight", 0, 4), cuts)
        self.assertIn(layouts.Cut("model.layers.*.self_attn.q_proj.weight", 0, 8), cuts)

    def test_padding(self):
        """32 001 rows are padded to 32 064: of 16 032 each, the second rank holds 15 969."""
        config = self.QWEN | {"vocab_size": 32001, "tie_word_embeddings": True}
        layout = layouts.from_config(config, "vllm", (1, 2))
        live = layout.live["model.embed_tokens.weight"]
        self.assertEqual((live.shape, live.held), ((16032, 3584), (15969, 3584)))
        self.assertEqual(layout.ties, {"lm_head.weight": "model.embed_tokens.weight"})
        with self.assertRaisesRegex(layouts.LayoutError, "pad_to_multiple_of=64"):
            layouts.cuts_for(layouts.from_config(config, "vllm", (rank, 2)) for rank in range(2))
        few = layouts.from_config(self.QWEN | {"vocab_size": 40}, "vllm", (3, 4))
        self.assertNotIn("model.embed_tokens.weight", few.recipes)
        self.assertIn("is padding only", layouts.describe(few))

    def test_placement(self):
        config = make_config("qwen3_moe", random.Random(12))
        kinds = {"linear": [6, 7], "round_robin": [3, 7]}
        for placement, numbers in kinds.items():
            layout = layouts.from_config(config, "vllm", (0, 1), (3, 4), expert_placement=placement, experts_module="experts")
            recipe = layout.recipes["model.layers.1.mlp.experts.w2_weight"]
            self.assertEqual([int(part.tensor.split(".")[5]) for part in recipe.slices], numbers)
        swapped = layouts.from_config(config, "sglang", up_first=True).recipes["model.layers.1.mlp.experts.w13_weight"]
        self.assertEqual([part.tensor.split(".")[6] for part in swapped.slices[:3]], ["up_proj", "gate_proj", "up_proj"])
        given = layouts.from_config(config, "sglang", (0, 1), moe_tensor_parallel=(1, 4))
        recipe = given.recipes["model.layers.1.mlp.experts.w2_weight"]
        self.assertEqual({part[1:] for part in recipe.slices}, {(1, 32, 32)})

    def test_stages(self):
        config = self.QWEN | {"num_hidden_layers": 5}

        def found(engine, stage, stages):
            layout = layouts.from_config(config, engine, pipeline_parallel=(stage, stages))
            return sorted({int(name.split(".")[2]) for name in layout.live if ".layers." in name})

        self.assertEqual([found("vllm", stage, 3) for stage in range(3)], [[0, 1], [2, 3], [4]])
        self.assertEqual([found("sglang", stage, 3) for stage in range(3)], [[0], [1, 2], [3, 4]])
        self.assertEqual(found("vllm", 1, [1, 4]), [1, 2, 3, 4])

    def test_ways_to_give_a_config(self):
        expected = layouts.from_config(self.QWEN).to_json()
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
                json.dump(self.QWEN, file)
            self.assertEqual(layouts.from_config(directory).to_json(), expected)
            self.assertEqual(layouts.from_config(os.path.join(directory, "config.json")).to_json(), expected)
        given = types.SimpleNamespace(to_dict=lambda: self.QWEN | {"model_type": "unheard"})
        self.assertEqual(layouts.from_config(given).to_json(), expected)

    def test_given_tensors(self):
        config = make_config("qwen3", random.Random(13), tie_word_embeddings=True)
        checkpoint = make_checkpoint(config, 14) | {"lm_head.weight": make_checkpoint(config, 14)["model.embed_tokens.weight"]}
        with tempfile.TemporaryDirectory() as directory:
            write_checkpoint(os.path.join(directory, "model.safetensors"), checkpoint)
            layout = layouts.from_config(config, tensors=directory)
            self.assertEqual(layout.ignored, ("lm_head.*",))
            self.assertEqual(layouts.cuts_for([layout]), [("lm_head.weight", 0, 1)])
            index = os.path.join(directory, "model.safetensors.index.json")
            with open(index, "w", encoding="utf-8") as file:
                json.dump({"weight_map": dict.fromkeys(layouts.checkpoint_tensors(config), "model.safetensors")}, file)
            self.assertEqual(layouts.from_config(config, tensors=index).to_json(), layout.to_json())
            os.remove(os.path.join(directory, "model.safetensors"))
            self.assertEqual(layouts.from_config(config, tensors=index).to_json(), layouts.from_config(config).to_json())
        good = layouts.checkpoint_tensors(config)
        half = {name: (tensor.shape, "float16") for name, tensor in good.items()}
        self.assertEqual(layouts.from_config(config, tensors=half).live["model.norm.weight"].dtype, "F16")
        extra = good | {"vision.weight": ((8, 8), "BF16")}
        self.assertIn("vision.*", layouts.from_config(config, tensors=extra, ignore=("vision.*",)).ignored)
        for tensors, text in (
            (extra, "has a tensor vision.weight"),
            ({name: tensor for name, tensor in good.items() if "k_norm" not in name}, "has no tensor .*k_norm"),
            (good | {"model.norm.weight": ((9,), "BF16")}, "has the shape"),
        ):
            with self.assertRaisesRegex(layouts.LayoutError, text):
                layouts.from_config(config, tensors=tensors)

    def test_refused(self):
        moe = make_config("qwen3_moe", random.Random(15))
        deepseek = make_config("deepseek_v3", random.Random(16))
        bias = "model.layers.1.mlp.gate.e_score_correction_bias"
        converted = layouts.checkpoint_tensors(deepseek) | {bias: ((8,), "BF16")}
        for arguments, options, text in (
            ((self.QWEN | {"model_type": "mamba", "architectures": None},), {}, "Write one by hand"),
            (({"model_type": "gemma3", "text_config": {}},), {}, "text_config"),
            ((self.QWEN | {"quantization_config": {"quant_method": "fp8"}},), {}, "plain BF16"),
            ((self.QWEN | {"hidden_size": None},), {}, "no hidden_size"),
            ((self.QWEN | {"num_key_value_heads": 0},), {}, "no num_key_value_heads"),
            ((self.QWEN | {"head_dim": -1},), {}, "no head_dim"),
            ((self.QWEN, "tgi"), {}, "choose one of"),
            ((self.QWEN, "vllm", (4, 4)), {}, "rank from 0"),
            ((self.QWEN, "vllm", (0, 3)), {}, "number of heads"),
            ((self.QWEN, "transformers", (0, 2)), {}, "whole models only"),
            ((self.QWEN, "vllm", (0, 1), None, (0, [1, 2])), {}, "28 in all"),
            ((moe, "sglang", (0, 4), (1, 2)), {}, "has the rank 0 of 2"),
            ((moe, "sglang"), {"expert_placement": "round_robin"}, "expert_placement"),
            ((moe, "sglang"), {"fuse_shared_experts": True}, "fuse_shared_experts"),
            ((deepseek, "vllm"), {"tensors": converted}, "publish it as F32"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(layouts.LayoutError, text):
                layouts.from_config(*arguments, **options)

    def test_example(self):
        """What the error shows is a layout."""
        made = ctypes.c_void_p()
        text = layouts.EXAMPLE.encode()
        library.call("weft_layout_parse", text, ctypes.c_size_t(len(text)), ctypes.byref(made))
        library.library.weft_layout_destroy.restype = None
        library.library.weft_layout_destroy(made)

    def test_description(self):
        text = layouts.describe(layouts.from_config(self.QWEN, "vllm", (1, 4)))
        self.assertIn("layers 0 to 27, 28 of them", text)
        self.assertIn("down_proj.weight[:, 4736:9472]", text)
        self.assertLess(len(text.splitlines()), 16)

    def test_cuts_of_strangers(self):
        other = layouts.from_config(self.QWEN | {"num_hidden_layers": 2})
        with self.assertRaisesRegex(layouts.LayoutError, "different checkpoints"):
            layouts.cuts_for([layouts.from_config(self.QWEN), other])


if __name__ == "__main__":
    unittest.main()
