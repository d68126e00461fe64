# SPDX-License-Identifier: Apache-2.0
"""Layouts of inference engines: which slices of a checkpoint's tensors each rank's live tensors consist of.

    from weft import layouts

    ranks = [layouts.from_config("Qwen3-8B/config.json", "vllm", tensor_parallel=(rank, 4)) for rank in range(4)]
    ranks[1].to_json()         # for weft_layout_parse
    ranks[1].live              # what rank 1 allocates; .table() is what the library is told of it
    layouts.cuts_for(ranks)    # the publisher's cuts, so that each rank fetches its own parts only
    print(layouts.describe(ranks[1]))

The grammar of a layout is in doc/architecture/layouts.md. Which rules of which engine are followed, and what
no layout can express, is in doc/python/layouts.md. Nothing but the standard library is needed.
"""

from __future__ import annotations

import bisect
import dataclasses
import fnmatch
import fractions
import json
import math
import os
import pathlib
import re
import struct
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union, cast

Path = Union[str, "os.PathLike[str]"]
Config = Any  # a dict, the path of a config.json or of its directory, or a configuration of transformers
Shape = Tuple[int, ...]
Rank = Tuple[int, int]  # and the number of ranks
_Ranges = Tuple[Tuple[fractions.Fraction, fractions.Fraction], ...]

ENGINES = ("vllm", "sglang", "transformers", "transformers4")
_VOCABULARY_PADDING = 64  # of vLLM and SGLang, in rows
_MOST_PARTS = 4096
_WORD = 16  # bytes; the digest's unit, on which cuts must fall
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16}
_BITS |= {"U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8}
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "half": "F16", "float": "F32"}


class LayoutError(ValueError):
    """No layout can be made of this; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Name, shape and dtype are all that a layout needs of a tensor. The dtype is spelt as in safetensors."""

    shape: Shape
    dtype: str


@dataclasses.dataclass(frozen=True)
class Live(Tensor):
    """A tensor that an engine allocates. The library is told of `held` in place of `shape`: the same contiguous
    memory from its beginning, without rows that pad a vocabulary, and with stacked matrices one below another."""

    held: Shape


class Slice(NamedTuple):
    """Part of a checkpoint tensor; all of it if `dim` is None."""

    tensor: str
    dim: Optional[int] = None
    start: int = 0
    length: int = 0

    def to_json(self) -> Union[str, Dict[str, Any]]:
        if self.dim is None:
            return self.tensor
        return {"tensor": self.tensor, "dim": self.dim, "start": self.start, "length": self.length}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a live tensor is made: `kind` is "concat" (of one slice too), "stack" or "tie"."""

    kind: str
    slices: Tuple[Slice, ...] = ()
    target: str = ""

    def to_json(self) -> Union[str, Dict[str, Any]]:
        if self.kind == "tie":
            return {"tie": self.target}
        slices = [part.to_json() for part in self.slices]
        if self.kind == "concat" and len(slices) == 1:
            return slices[0] if isinstance(slices[0], str) else {"slice": slices[0]}
        return {self.kind: slices}


class Cut(NamedTuple):
    """As weft_cut (weft/patch.h); its text is an argument of `weft publish --cut`."""

    pattern: str
    dim: int
    parts: int

    def __str__(self) -> str:
        return f"{self.pattern}:{self.dim}:{self.parts}"


@dataclasses.dataclass
class Layout:
    """One rank's layout. `live` has what is to be allocated, ties left out; `recipes` says of what each is made;
    `ignored` are patterns of checkpoint tensors that this rank does not hold; `checkpoint` has the tensors that the
    layout was made for; `notes` say what the engine must do beyond writing these tensors."""

    recipes: Dict[str, Recipe]
    live: Dict[str, Live]
    ignored: Tuple[str, ...]
    checkpoint: Dict[str, Tensor]
    notes: Tuple[str, ...] = ()

    def to_json(self) -> str:
        tensors = {name: recipe.to_json() for name, recipe in self.recipes.items()}
        return json.dumps({"weft_layout": 1, "tensors": tensors, "ignore": list(self.ignored)})

    @property
    def ties(self) -> Dict[str, str]:
        return {name: recipe.target for name, recipe in self.recipes.items() if recipe.kind == "tie"}

    def table(self) -> Dict[str, Tensor]:
        """What the library's table of live tensors has: of each name the shape that is held, and the dtype. A live
        tensor that is padding only is not in it."""
        return {
            name: Tensor(self.live[name].held, self.live[name].dtype)
            for name, recipe in self.recipes.items()
            if recipe.kind != "tie"
        }

    def held(self) -> Dict[str, List[Slice]]:
        """The slices that this rank holds, by checkpoint tensor."""
        found: Dict[str, List[Slice]] = {}
        for recipe in self.recipes.values():
            for part in recipe.slices:
                found.setdefault(part.tensor, []).append(part)
        return found


# ---- what a config says ----

# What the configurations of transformers leave out of config.json where it is the default of their class.
_FAMILIES: Dict[str, Dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "qwen3_moe": {"num_key_value_heads": 4, "decoder_sparse_step": 1},
    "deepseek_v3": {"first_k_dense_replace": 3, "moe_layer_freq": 1, "n_shared_experts": 1},
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True},
    "gemma3_text": {"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True},
}
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
}

EXAMPLE = """{"weft_layout": 1,
 "tensors": {
   "qkv": {"concat": [{"tensor": "q", "dim": 0, "start": 64, "length": 64},
                      {"tensor": "k", "dim": 0, "start": 16, "length": 16},
                      {"tensor": "v", "dim": 0, "start": 16, "length": 16}]},
   "o": {"slice": {"tensor": "o", "dim": 1, "start": 64, "length": 64}},
   "norm": "model.norm",
   "embed": "model.embed_tokens",
   "head": {"tie": "embed"}},
 "ignore": ["vision.*"]}"""


def _read_config(config: Config) -> Dict[str, Any]:
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    elif not isinstance(config, dict):
        path = pathlib.Path(config)
        path = path / "config.json" if path.is_dir() else path
        config = json.loads(path.read_text(encoding="utf-8"))
    return cast(Dict[str, Any], config)


class _Model:
    """A config's sizes, and the tensors of its checkpoint."""

    def __init__(self, config: Config) -> None:
        config = _read_config(config)
        names = [config.get("model_type")] + [_ARCHITECTURES.get(name) for name in config.get("architectures") or ()]
        family = next((name for name in names if name in _FAMILIES), None)
        if family is None:
            if isinstance(config.get("text_config"), dict):
                hint = (
                    'It has a "text_config": its language model alone may be known, from_config(config["text_config"], '
                    '…); then put the prefixes before the names, and the rest into "ignore".\n'
                )
            else:
                hint = ""
            raise LayoutError(
                f"no layout is known for the model type {config.get('model_type')!r}, architectures "
                f"{config.get('architectures')!r}; known are {', '.join(_FAMILIES)}.\n{hint}Write one by hand: of each live "
                "tensor the slices that it consists of, such as rank 1 of 2 of a small model:\n"
                f"{EXAMPLE}\nThe grammar is in doc/architecture/layouts.md."
            )
        if config.get("quantization_config"):
            raise LayoutError(
                "the config has a quantization_config: engines re-lay quantised weights and their scales, which no layout "
                "follows; publish plain BF16 weights, and remove quantization_config from the config that is given here"
            )
        self.family: str = family
        self.config = {**_FAMILIES[family], **{key: value for key, value in config.items() if value is not None}}
        self.layers = self.size("num_hidden_layers")
        self.hidden = self.size("hidden_size")
        self.vocabulary = self.size("vocab_size")
        self.heads = self.size("num_attention_heads")
        self.tied = bool(self.config.get("tie_word_embeddings", False))
        self.dtype = _spell_dtype(self.config.get("dtype") or self.config.get("torch_dtype") or "bfloat16")
        self.latent = family == "deepseek_v3"
        if not self.latent:
            self.kv_heads = self.size("num_key_value_heads") if "num_key_value_heads" in self.config else self.heads
            self.head = self.size("head_dim") if self.config.get("head_dim") else self.hidden // self.heads
        bias = bool(self.config.get("attention_bias", False))
        self.qkv_bias = bias or family == "qwen2"
        self.o_bias = bias
        self.mlp_bias = bool(self.config.get("mlp_bias", False))
        self.qk_norms = family in ("qwen3", "qwen3_moe", "gemma3_text")
        self.norms = ["input_layernorm", "post_attention_layernorm"]
        if family.startswith("gemma"):
            self.norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        # the names of an expert's gate, up and down, and of the module that has them
        self.block = "block_sparse_moe" if family == "mixtral" else "mlp"
        self.expert_names = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        self.experts = 0
        if family == "mixtral":
            self.experts, self.expert_size = self.size("num_local_experts"), self.size("intermediate_size")
        elif family == "qwen3_moe":
            key = "num_experts" if "num_experts" in self.config else "num_local_experts"
            self.experts, self.expert_size = self.size(key), self.size("moe_intermediate_size")
        elif family == "deepseek_v3":
            self.experts, self.expert_size = self.size("n_routed_experts"), self.size("moe_intermediate_size")
        self.shared: int = self.config["n_shared_experts"] if self.latent else 0
        self.scored: bool = self.latent and self.config.get("topk_method", "noaux_tc") == "noaux_tc"
        self.extra_layers: int = self.config.get("num_nextn_predict_layers", 0) if self.latent else 0

    def size(self, key: str) -> int:
        value = self.config.get(key)
        if not isinstance(value, int) or value <= 0:
            raise LayoutError(f"the config has no {key}, or it is not a number from 1: {value!r}")
        return value

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer has experts."""
        if self.family == "qwen3_moe":
            dense = layer in self.config.get("mlp_only_layers", ())
            step: int = self.config["decoder_sparse_step"]
            return not dense and (layer + 1) % step == 0
        if self.family == "deepseek_v3":
            first: int = self.config["first_k_dense_replace"]
            frequency: int = self.config["moe_layer_freq"]
            return layer >= first and layer % frequency == 0
        return self.family == "mixtral"

    def expert(self, layer: int, number: int, which: int) -> str:
        """The name of an expert's gate (0), up (1) or down (2)."""
        return f"model.layers.{layer}.{self.block}.experts.{number}.{self.expert_names[which]}.weight"

    # -- the checkpoint --

    def _attention(self, prefix: str) -> Iterator[Tuple[str, Shape]]:
        if self.latent:
            rank, kv_rank = self.config.get("q_lora_rank"), self.size("kv_lora_rank")
            nope, rope, value = (self.size(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
            if rank is None:
                yield f"{prefix}.q_proj.weight", (self.heads * (nope + rope), self.hidden)
            else:
                yield f"{prefix}.q_a_proj.weight", (rank, self.hidden)
                yield f"{prefix}.q_a_layernorm.weight", (rank,)
                yield f"{prefix}.q_b_proj.weight", (self.heads * (nope + rope), rank)
            yield f"{prefix}.kv_a_proj_with_mqa.weight", (kv_rank + rope, self.hidden)
            yield f"{prefix}.kv_a_layernorm.weight", (kv_rank,)
            yield f"{prefix}.kv_b_proj.weight", (self.heads * (nope + value), kv_rank)
            yield f"{prefix}.o_proj.weight", (self.hidden, self.heads * value)
            return
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            yield f"{prefix}.{name}_proj.weight", (heads * self.head, self.hidden)
            if self.qkv_bias:
                yield f"{prefix}.{name}_proj.bias", (heads * self.head,)
        yield f"{prefix}.o_proj.weight", (self.hidden, self.heads * self.head)
        if self.o_bias:
            yield f"{prefix}.o_proj.bias", (self.hidden,)
        if self.qk_norms:
            yield f"{prefix}.q_norm.weight", (self.head,)
            yield f"{prefix}.k_norm.weight", (self.head,)

    def _gated(
        self, prefix: str, size: int, names: Tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    ) -> Iterator[Tuple[str, Shape]]:
        for name, shape in zip(names, ((size, self.hidden), (size, self.hidden), (self.hidden, size))):
            yield f"{prefix}.{name}.weight", shape
            if self.mlp_bias:
                yield f"{prefix}.{name}.bias", shape[:1]

    def _layer(self, layer: int) -> Iterator[Tuple[str, Shape]]:
        prefix = f"model.layers.{layer}"
        for norm in self.norms:
            yield f"{prefix}.{norm}.weight", (self.hidden,)
        yield from self._attention(f"{prefix}.self_attn")
        if not self.is_sparse(layer):
            yield from self._gated(f"{prefix}.mlp", self.size("intermediate_size"))
            return
        block = f"{prefix}.{self.block}"
        yield f"{block}.gate.weight", (self.experts, self.hidden)
        if self.scored:
            yield f"{block}.gate.e_score_correction_bias", (self.experts,)
        for number in range(self.experts):
            yield from self._gated(f"{block}.experts.{number}", self.expert_size, self.expert_names)
        if self.shared:
            yield from self._gated(f"{block}.shared_experts", self.shared * self.expert_size)

    def _shapes(self) -> Iterator[Tuple[str, Shape]]:
        embedding = (self.vocabulary, self.hidden)
        yield "model.embed_tokens.weight", embedding
        for layer in range(self.layers + self.extra_layers):
            yield from self._layer(layer)
        for layer in range(self.layers, self.layers + self.extra_layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.embed_tokens.weight", embedding
            yield f"{prefix}.enorm.weight", (self.hidden,)
            yield f"{prefix}.hnorm.weight", (self.hidden,)
            yield f"{prefix}.eh_proj.weight", (self.hidden, 2 * self.hidden)
            yield f"{prefix}.shared_head.norm.weight", (self.hidden,)
            yield f"{prefix}.shared_head.head.weight", embedding
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", embedding

    def tensors(self) -> Dict[str, Tensor]:
        return {
            name: Tensor(shape, "F32" if name.endswith("e_score_correction_bias") else self.dtype)
            for name, shape in self._shapes()
        }

    def skips(self, name: str) -> bool:
        """Tensors that checkpoints may have and engines do not load."""
        found = re.match(r"model\.layers\.(\d+)\.", name)
        return (
            name.endswith("rotary_emb.inv_freq")
            or (self.tied and name == "lm_head.weight")
            or (self.latent and found is not None and int(found[1]) >= self.layers)
        )


def _spell_dtype(dtype: object) -> str:
    text = str(dtype).removeprefix("torch.")
    found = _DTYPES.get(text, text)
    if found not in _BITS:
        raise LayoutError(f"the dtype {dtype} is not known; known are {', '.join(_BITS)}")
    return found


def checkpoint_tensors(config: Config) -> Dict[str, Tensor]:
    """The tensors of a checkpoint of this config, by name, as Hugging Face publishes it: DeepSeek-V3's layers that
    predict further tokens too."""
    return _Model(config).tensors()


# ---- tensors that are given ----


def _read_header(path: Path) -> Dict[str, Optional[Tensor]]:
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: Tensor(tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}


def read_tensors(path: Path) -> Dict[str, Optional[Tensor]]:
    """Names, shapes and dtypes from the headers of a safetensors file, an index of shards, or the directory of
    either. Of an index whose shards are not there the values are None: their names alone are known."""
    path = pathlib.Path(path)
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        path = index if index.exists() else path / "model.safetensors"
    if path.suffix != ".json":
        return _read_header(path)
    where = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    shards = sorted(set(where.values()))
    if not all((path.parent / shard).exists() for shard in shards):
        return dict.fromkeys(where)
    tensors: Dict[str, Optional[Tensor]] = {}
    for shard in shards:
        tensors.update(_read_header(path.parent / shard))
    return tensors


def _take_tensors(model: _Model, given: Union[None, Path, Dict[str, Any]], ignore: Sequence[str]) -> Dict[str, Tensor]:
    """The checkpoint: what is given, checked against what the config says; of the latter all that may be ignored is
    optional."""
    expected = model.tensors()
    if given is None:
        return expected
    if not isinstance(given, dict):
        given = read_tensors(given)
    tensors: Dict[str, Tensor] = {}
    for name, tensor in given.items():
        known = expected.get(name)
        unwanted = model.skips(name) or any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
        if known is None and not unwanted:
            raise LayoutError(
                f"the checkpoint has a tensor {name}, which a {model.family} of this config has not; if this worker does "
                "not want it, give ignore=(…). Experts that a trainer holds stacked are published under their names in "
                'checkpoints through the layout from_config(config, engine="transformers")'
            )
        if tensor is None:
            if known is None:
                raise LayoutError(f"the shape of {name} is not known: give the directory with the shards, not the index alone")
            tensors[name] = known
            continue
        if not isinstance(tensor, Tensor) and hasattr(tensor, "shape"):
            tensor = (tensor.shape, tensor.dtype)
        shape, dtype = (tensor.shape, tensor.dtype) if isinstance(tensor, Tensor) else tensor
        tensors[name] = Tensor(tuple(int(size) for size in shape), _spell_dtype(dtype))
        if known is not None and tensors[name].shape != known.shape:
            raise LayoutError(f"{name} has the shape {tensors[name].shape}, but the config says {known.shape}")
    for name in expected:
        if name not in tensors and not model.skips(name):
            raise LayoutError(f"the checkpoint has no tensor {name}, which a {model.family} of this config has")
    return tensors


# ---- live tensors ----


def _divide(size: int, parts: int, what: str) -> int:
    if size % parts:
        raise LayoutError(f"{what}, {size}, cannot be divided by {parts}; no engine splits it so")
    return size // parts


class _Builder:
    """Live tensors, added one by one."""

    def __init__(self, checkpoint: Dict[str, Tensor]) -> None:
        self.checkpoint = checkpoint
        self.recipes: Dict[str, Recipe] = {}
        self.live: Dict[str, Live] = {}

    def part(self, tensor: str, dim: int, rank: int, size: int) -> Slice:
        """One of `size` even parts along `dim`; all of it if there is one."""
        if size == 1:
            return Slice(tensor)
        length = _divide(self.checkpoint[tensor].shape[dim], size, f"dimension {dim} of {tensor}")
        return Slice(tensor, dim, rank * length, length)

    def shape(self, part: Slice) -> Shape:
        shape = list(self.checkpoint[part.tensor].shape)
        if part.dim is not None:
            shape[part.dim] = part.length
        return tuple(shape)

    def _add(self, name: str, kind: str, slices: Sequence[Slice], shape: Shape, held: Shape) -> None:
        self.recipes[name] = Recipe(kind, tuple(slices))
        self.live[name] = Live(shape, self.checkpoint[slices[0].tensor].dtype, held)

    def whole(self, name: str, tensor: Optional[str] = None) -> None:
        self.join(name, [Slice(tensor or name)])

    def join(self, name: str, slices: Sequence[Slice]) -> None:
        """The slices, one below another."""
        shapes = [self.shape(part) for part in slices]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        self._add(name, "concat", slices, shape, shape)

    def stack(self, name: str, slices: Sequence[Slice]) -> None:
        shape = (len(slices), *self.shape(slices[0]))
        self._add(name, "stack", slices, shape, shape)

    def stack_joined(self, name: str, groups: Sequence[Sequence[Slice]]) -> None:
        """A stack of joined slices, which lie in memory as all slices one below another."""
        rows = sum(self.shape(part)[0] for part in groups[0])
        rest = self.shape(groups[0][0])[1:]
        slices = [part for group in groups for part in group]
        self._add(name, "concat", slices, (len(groups), rows, *rest), (len(groups) * rows, *rest))

    def vocabulary(self, name: str, tensor: str, rank: int, size: int) -> None:
        """Rows of an embedding whose number is padded to a multiple of 64 and divided. The padding is the engine's:
        nothing of the checkpoint lies there, so the library is told of the rows before it."""
        rows, width = self.checkpoint[tensor].shape
        padded = -(-rows // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
        each = _divide(padded, size, f"the padded vocabulary of {tensor}")
        start, end = min(rank * each, rows), min((rank + 1) * each, rows)
        if end > start:
            part = Slice(tensor) if end - start == rows else Slice(tensor, 0, start, end - start)
            self._add(name, "concat", [part], (each, width), (end - start, width))
        else:
            self.live[name] = Live((each, width), self.checkpoint[tensor].dtype, (0, width))

    def tie(self, name: str, target: str) -> None:
        self.recipes[name] = Recipe("tie", target=target)


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """Where a worker stands: in tensor parallelism, in that of the experts, and which experts and layers it has."""

    tensor: Rank
    expert_tensor: Rank
    experts: Tuple[int, ...]
    layers: range
    first: bool
    last: bool


def _check_rank(value: Rank, what: str) -> Rank:
    rank, size = value
    if not 0 <= rank < size:
        raise LayoutError(f"{what}={value!r} must be (rank, size), the rank from 0 to size - 1")
    return int(rank), int(size)


def _split_layers(layers: int, parallel: Tuple[int, Union[int, Sequence[int]]], engine: str) -> Tuple[range, Rank]:
    """The layers of a stage. What is left over goes in vLLM to the stages before the last, in SGLang to the last."""
    rank, counts = parallel
    if isinstance(counts, int):
        _check_rank(cast(Rank, parallel), "pipeline_parallel")
        each, left = divmod(layers, counts)
        end = counts if engine == "sglang" else counts - 1
        counts = [each + (end - left <= stage < end) for stage in range(counts)]
    if not 0 <= rank < len(counts) or sum(counts) != layers:
        raise LayoutError(f"pipeline_parallel={parallel!r} must give a rank and the layers of each stage, {layers} in all")
    return range(sum(counts[:rank]), sum(counts[: rank + 1])), (rank, len(counts))


def _split_experts(
    model: _Model, tensor: Rank, expert: Optional[Rank], moe_tensor: Optional[Rank], placement: str, engine: str
) -> Tuple[Rank, Tuple[int, ...]]:
    """The experts of a rank, and the part of each."""
    if moe_tensor is not None:
        moe_tensor = _check_rank(moe_tensor, "moe_tensor_parallel")
    if expert is None or not model.experts:
        return moe_tensor or tensor, tuple(range(model.experts))
    rank, size = _check_rank(expert, "expert_parallel")
    if size > model.experts:
        raise LayoutError(f"expert_parallel={expert!r}: there are {model.experts} experts only")
    if engine == "vllm":
        if placement == "round_robin":
            return moe_tensor or (0, 1), tuple(range(rank, model.experts, size))
        each, left = divmod(model.experts, size)
        start = rank * each + min(rank, left)
        return moe_tensor or (0, 1), tuple(range(start, start + each + (rank < left)))
    if moe_tensor is None:
        within = _divide(tensor[1], size, "the size of tensor_parallel, which SGLang divides by that of expert_parallel")
        if rank != tensor[0] // within:
            raise LayoutError(
                f"in SGLang rank {tensor[0]} of tensor_parallel={tensor!r} has the rank {tensor[0] // within} of "
                f"{size} in expert_parallel, not {rank}; with another placement give moe_tensor_parallel=(rank, size)"
            )
        moe_tensor = (tensor[0] % within, within)
    each = _divide(model.experts, size, "the number of experts")
    return moe_tensor, tuple(range(rank * each, (rank + 1) * each))


class _Fused:
    """The live tensors of vLLM and SGLang: q, k and v in one, gate and up in one, experts in stacks."""

    def __init__(self, model: _Model, builder: _Builder, ranks: _Ranks, names: Dict[str, Union[str, bool]]) -> None:
        self.model, self.builder, self.ranks, self.names = model, builder, ranks, names

    def build(self) -> None:
        model, builder, ranks = self.model, self.builder, self.ranks
        embedding, head = "model.embed_tokens.weight", "lm_head.weight"
        if self.names["whole_embedding"]:
            builder.whole(embedding)
        elif ranks.first or (ranks.last and model.tied and self.names["last_embeds"]):
            builder.vocabulary(embedding, embedding, *ranks.tensor)
        for layer in ranks.layers:
            self._add_layer(layer)
        if ranks.last:
            builder.whole("model.norm.weight")
            if not model.tied:
                builder.vocabulary(head, head, *ranks.tensor)
            elif embedding not in builder.live:
                builder.vocabulary(head, embedding, *ranks.tensor)
            elif embedding in builder.recipes:
                builder.tie(head, embedding)

    def _columns(self, live: str, names: Sequence[str]) -> None:
        """Column-parallel: the outputs, which are rows, are split, of each of the matrices that are joined."""
        builder = self.builder
        for leaf in ("weight", "bias"):
            if f"{names[0]}.{leaf}" in builder.checkpoint:
                builder.join(f"{live}.{leaf}", [builder.part(f"{name}.{leaf}", 0, *self.ranks.tensor) for name in names])

    def _rows(self, name: str) -> None:
        """Row-parallel: the inputs are split; each rank has all of a bias."""
        builder = self.builder
        builder.join(f"{name}.weight", [builder.part(f"{name}.weight", 1, *self.ranks.tensor)])
        if f"{name}.bias" in builder.checkpoint:
            builder.whole(f"{name}.bias")

    def _add_layer(self, layer: int) -> None:
        prefix, model, builder = f"model.layers.{layer}", self.model, self.builder
        for norm in model.norms:
            builder.whole(f"{prefix}.{norm}.weight")
        if model.latent:
            self._add_latent(f"{prefix}.self_attn")
        else:
            self._add_attention(f"{prefix}.self_attn")
        if model.is_sparse(layer):
            self._add_experts(layer, f"{prefix}.{model.block}")
        else:
            self._add_gated(f"{prefix}.mlp")

    def _add_attention(self, prefix: str) -> None:
        """Each rank has its heads of q, k and v. With more ranks than KV heads, ranks that stand together share one."""
        model, builder, (rank, size) = self.model, self.builder, self.ranks.tensor
        _divide(model.heads, size, "the number of heads")
        if model.kv_heads >= size:
            _divide(model.kv_heads, size, "the number of KV heads")
            kv = (rank, size)
        else:
            kv = (rank // _divide(size, model.kv_heads, "the size of tensor_parallel"), model.kv_heads)
        for leaf in ("weight", "bias"):
            names = [f"{prefix}.{name}_proj.{leaf}" for name in "qkv"]
            if names[0] in builder.checkpoint:
                slices = [builder.part(name, 0, *part) for name, part in zip(names, ((rank, size), kv, kv))]
                builder.join(f"{prefix}.qkv_proj.{leaf}", slices)
        self._rows(f"{prefix}.o_proj")
        if model.qk_norms:
            builder.whole(f"{prefix}.q_norm.weight")
            builder.whole(f"{prefix}.k_norm.weight")

    def _add_latent(self, prefix: str) -> None:
        """Multi-head latent attention: what leads to the latent vectors is on every rank, the heads are split."""
        model, builder = self.model, self.builder
        _divide(model.heads, self.ranks.tensor[1], "the number of heads")
        if f"{prefix}.q_a_proj.weight" in builder.checkpoint:
            slices = [Slice(f"{prefix}.{name}.weight") for name in ("q_a_proj", "kv_a_proj_with_mqa")]
            builder.join(f"{prefix}.{self.names['fused_a']}.weight", slices)
            builder.whole(f"{prefix}.q_a_layernorm.weight")
            self._columns(f"{prefix}.q_b_proj", [f"{prefix}.q_b_proj"])
        else:
            self._columns(f"{prefix}.q_proj", [f"{prefix}.q_proj"])
            builder.whole(f"{prefix}.kv_a_proj_with_mqa.weight")
        builder.whole(f"{prefix}.kv_a_layernorm.weight")
        self._columns(f"{prefix}.kv_b_proj", [f"{prefix}.kv_b_proj"])
        self._rows(f"{prefix}.o_proj")

    def _add_gated(self, prefix: str) -> None:
        self._columns(f"{prefix}.gate_up_proj", [f"{prefix}.gate_proj", f"{prefix}.up_proj"])
        self._rows(f"{prefix}.down_proj")

    def _add_experts(self, layer: int, block: str) -> None:
        model, builder, part = self.model, self.builder, self.builder.part
        builder.whole(f"{block}.gate.weight")
        if model.scored:
            name = f"{block}.gate.e_score_correction_bias"
            if builder.checkpoint[name].dtype != "F32":
                raise LayoutError(
                    f"{name} is {builder.checkpoint[name].dtype} in the checkpoint, but engines hold it as F32, and a layout "
                    "converts nothing; publish it as F32"
                )
            builder.whole(name)
        matrices = [tuple(model.expert(layer, number, which) for which in range(3)) for number in self.ranks.experts]
        if self.names["fuse_shared"]:
            matrices.append(tuple(f"{block}.shared_experts.{name}.weight" for name in model.expert_names))
        elif model.shared:
            self._add_gated(f"{block}.shared_experts")
        split = self.ranks.expert_tensor
        experts = f"{block}.{self.names['experts']}"
        halves = [[part(gate, 0, *split), part(up, 0, *split)] for gate, up, _ in matrices]
        if self.names["up_first"]:
            halves = [[up, gate] for gate, up in halves]
        builder.stack_joined(f"{experts}.w13_weight", halves)
        builder.stack(f"{experts}.w2_weight", [part(down, 1, *split) for _, _, down in matrices])


def _build_transformers(model: _Model, builder: _Builder, stacked: bool) -> None:
    """The live tensors of transformers have the checkpoint's names; version 5 stacks experts."""
    for name in builder.checkpoint:
        found = re.match(r"model\.layers\.(\d+)\.(.*)$", name)
        if model.skips(name) and name != "lm_head.weight":
            continue
        if stacked and found and model.experts and found[2].startswith(f"{model.block}."):
            if ".experts." in found[2]:
                continue
            builder.whole(name.replace(f".{model.block}.", ".mlp."), name)
        else:
            builder.whole(name)
    if model.tied and "lm_head.weight" not in builder.checkpoint:
        builder.tie("lm_head.weight", "model.embed_tokens.weight")
    for layer in range(model.layers) if stacked else ():
        if model.is_sparse(layer):
            names = [[model.expert(layer, number, which) for which in range(3)] for number in range(model.experts)]
            block = f"model.layers.{layer}.mlp.experts"
            builder.stack_joined(f"{block}.gate_up_proj", [[Slice(gate), Slice(up)] for gate, up, _ in names])
            builder.stack(f"{block}.down_proj", [Slice(down) for _, _, down in names])


def _find_ignored(checkpoint: Dict[str, Tensor], recipes: Dict[str, Recipe]) -> Tuple[str, ...]:
    """Patterns for all that no recipe uses: whole branches of dotted names where nothing of a branch is used."""
    used = {part.tensor for recipe in recipes.values() for part in recipe.slices}
    branches: Set[str] = set()
    for name in used:
        branches.update(name[: place.end()] for place in re.finditer(r"\.", name))
    patterns = {}
    for name in checkpoint:
        if name not in used:
            ends = (name[: place.end()] for place in re.finditer(r"\.", name))
            branch = next((branch for branch in ends if branch not in branches), None)
            patterns[name if branch is None else branch + "*"] = True
    return tuple(patterns)


def _collect_notes(model: _Model, layout: Layout, engine: str) -> Iterator[str]:
    if any(live.held != live.shape and len(live.shape) == 3 for live in layout.live.values()):
        yield "stacked gate and up: give the library the same memory in the shape `held`, such as tensor.view(held)"
    if any(live.held != live.shape and len(live.shape) == 2 for live in layout.live.values()):
        yield "padded vocabulary: give the library the first `held` rows; rows of padding stay as the engine has them"
    if model.experts and engine in ("vllm", "sglang"):
        yield (
            "the stacks are laid out as for the Triton kernels; choose these where the engine would take others that pack "
            "weights (SGLang: --moe-runner-backend triton), or compare live shapes and a few weights after the first update"
        )
    if model.latent and engine in ("vllm", "sglang"):
        yield (
            "after each update, have the engine derive its absorbed matrices from kv_b_proj anew (vLLM: W_UK_T and W_UV in "
            "process_weights_after_loading; SGLang: w_kc and w_vc in post_load_weights)"
        )


def from_config(
    config: Config,
    engine: str = "vllm",
    tensor_parallel: Rank = (0, 1),
    expert_parallel: Optional[Rank] = None,
    pipeline_parallel: Tuple[int, Union[int, Sequence[int]]] = (0, 1),
    *,
    tensors: Union[None, Path, Dict[str, Any]] = None,
    ignore: Sequence[str] = (),
    moe_tensor_parallel: Optional[Rank] = None,
    expert_placement: str = "linear",
    experts_module: Optional[str] = None,
    fuse_shared_experts: bool = False,
    up_first: bool = False,
) -> Layout:
    """The layout of one worker.

    `config` is a dict, the path of a config.json or of its directory, or a configuration of transformers. Ranks are
    (rank, size); `expert_parallel` None splits experts like other matrices, and pipeline_parallel may give the number
    of layers of each stage in place of a size. `tensors` are those of the checkpoint where they are not what the
    config alone says: a path (see read_tensors), or a dict of tensors or of (shape, dtype); `ignore` has patterns of
    those that the worker does not want. moe_tensor_parallel says how each expert is split where that follows from no
    other rank, as with data-parallel attention. `expert_placement` is vLLM's: linear or round_robin. `experts_module`
    is the live module of the stacks: "experts.routed_experts" in vLLM from 0.25 on, "experts" in 0.20 and in SGLang.
    `fuse_shared_experts` is SGLang's: the shared expert is the last of each stack. `up_first` is for kernels that want
    up before gate, such as FlashInfer's CUTLASS."""
    if engine not in ENGINES:
        raise LayoutError(f"engine cannot be {engine!r}; choose one of {', '.join(ENGINES)}")
    model = _Model(config)
    checkpoint = _take_tensors(model, tensors, ignore)
    builder = _Builder(checkpoint)
    tensor = _check_rank(tensor_parallel, "tensor_parallel")
    layers, (stage, stages) = _split_layers(model.layers, pipeline_parallel, engine)
    if engine.startswith("transformers"):
        if tensor[1] != 1 or expert_parallel is not None or stages != 1:
            raise LayoutError(
                "transformers: this module knows whole models only; of a model that is split (tp_plan) gather the tensors "
                "first, or write the layout by hand: see doc/architecture/layouts.md"
            )
        _build_transformers(model, builder, engine == "transformers")
    else:
        if expert_placement not in ("linear", "round_robin") or (engine == "sglang" and expert_placement != "linear"):
            raise LayoutError(f"expert_placement cannot be {expert_placement!r} in {engine}")
        if fuse_shared_experts and (engine != "sglang" or model.shared != 1):
            raise LayoutError("fuse_shared_experts is for SGLang and a model with one shared expert")
        split, experts = _split_experts(model, tensor, expert_parallel, moe_tensor_parallel, expert_placement, engine)
        ranks = _Ranks(tensor, split, experts, layers, stage == 0, stage == stages - 1)
        names: Dict[str, Union[str, bool]] = {
            "fused_a": "fused_qkv_a_proj" if engine == "vllm" else "fused_qkv_a_proj_with_mqa",
            "experts": experts_module or ("experts.routed_experts" if engine == "vllm" else "experts"),
            "fuse_shared": fuse_shared_experts,
            "last_embeds": engine == "vllm",
            "whole_embedding": engine == "sglang" and model.family == "gemma3_text",
            "up_first": up_first,
        }
        _Fused(model, builder, ranks, names).build()
    ignored = _find_ignored(checkpoint, builder.recipes)
    layout = Layout(builder.recipes, builder.live, ignored, checkpoint)
    layout.notes = tuple(_collect_notes(model, layout, engine))
    return layout


# ---- cuts ----


_WHOLE: _Ranges = ((fractions.Fraction(0), fractions.Fraction(1)),)


def _measure_holding(parts: Sequence[Tuple[Optional[int], int, int]], shape: Shape) -> Tuple[Optional[int], _Ranges]:
    """Which part of a tensor a rank holds: the dimension, or None, and ranges of it as fractions. The slices are
    (dim, start, length)."""
    if not parts:
        return None, ()
    dim = parts[0][0]
    if dim is None or any(other is None for other, _, _ in parts):
        return None, _WHOLE
    ranges: List[Tuple[int, int]] = []
    for start, end in sorted((start, start + length) for _, start, length in parts):
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    if ranges == [(0, shape[dim])]:
        return None, _WHOLE
    size = shape[dim]
    return dim, tuple((fractions.Fraction(start, size), fractions.Fraction(end, size)) for start, end in ranges)


def _fits(tensor: Tensor, dim: int, parts: int) -> bool:
    if tensor.shape[dim] % parts:
        return False
    run = tensor.shape[dim] // parts * math.prod(tensor.shape[dim + 1 :])
    return run * _BITS[tensor.dtype] % (8 * _WORD) == 0


def _choose_parts(
    names: Sequence[str], checkpoint: Dict[str, Tensor], dims: Dict[str, int], key: Tuple[_Ranges, ...], used: Set[int]
) -> int:
    """Boxes of the same part share buckets, so tensors that are held differently need different numbers of parts."""
    least = math.lcm(*(bound.denominator for ranges in key for pair in ranges for bound in pair))
    for parts in range(least, _MOST_PARTS + 1, least):
        if parts not in used and all(_fits(checkpoint[name], dims[name], parts) for name in names):
            return parts
    name = names[0]
    raise LayoutError(
        f"{name}, of the shape {checkpoint[name].shape}, cannot be cut into a multiple of {least} equal parts along dimension "
        f"{dims[name]}, at most {_MOST_PARTS}, each of whole {_WORD}-byte words, and not into as many as tensors that other "
        "workers hold; pad a vocabulary to a multiple of 64 before publishing (resize_token_embeddings with "
        "pad_to_multiple_of=64), or publish to a store for each pipeline stage or group of experts"
    )


def _escape(name: str) -> str:
    return re.sub(r"([\[*?])", r"[\1]", name)


def _generalise(name: str) -> Iterator[str]:
    """Patterns that match the name, the widest first: any number, any but the last, any but the first, the name."""
    pieces = re.split(r"((?<=\.)\d+(?=\.))", _escape(name))
    numbers = range(1, len(pieces), 2)
    for kept in ((), numbers[-1:], numbers[:1], numbers):
        yield "".join("*" if place in numbers and place not in kept else piece for place, piece in enumerate(pieces))


def _find_branches(cuts: Dict[str, Tuple[int, int]], names: Iterable[str]) -> List[str]:
    """Layers of which every tensor stays alone in its bucket: one pattern for each, which comes before others."""
    layers: Dict[str, Set[Optional[Tuple[int, int]]]] = {}
    for name in names:
        found = re.match(r"model\.layers\.\d+\.", name)
        if found:
            layers.setdefault(found[0], set()).add(cuts.get(name))
    return [branch for branch, found in layers.items() if found == {(0, 1)}]


def _write_patterns(cuts: Dict[str, Tuple[int, int]], checkpoint: Iterable[str]) -> List[Cut]:
    """As few patterns as give each name its cut, and the others none. The first pattern that matches counts."""
    branches = _find_branches(cuts, checkpoint)
    found = {branch + "*": (0, 1) for branch in branches}
    settled = re.compile("|".join(re.escape(branch) for branch in branches) or "$.")
    names = sorted(name for name in checkpoint if not settled.match(name))
    verdicts: Dict[str, Set[Optional[Tuple[int, int]]]] = {}

    def agrees(pattern: str, cut: Tuple[int, int]) -> bool:
        if pattern not in verdicts:
            literal = re.split(r"[*\[]", pattern, maxsplit=1)[0]
            matches = re.compile(fnmatch.translate(pattern)).match
            first, last = bisect.bisect_left(names, literal), bisect.bisect_right(names, literal + "\U0010ffff")
            verdicts[pattern] = {cuts.get(name) for name in names[first:last] if matches(name)}
        return verdicts[pattern] == {cut}

    for name in names:
        if name in cuts:
            found.setdefault(next(pattern for pattern in _generalise(name) if agrees(pattern, cuts[name])), cuts[name])
    return [Cut(pattern, *cut) for pattern, cut in found.items()]


def cuts_for(layouts: Iterable[Layout]) -> List[Cut]:
    """The publisher's cuts for workers of these layouts: one of each different rank. Tensors that all hold whole need
    none; of the others each worker then fetches its own parts only."""
    layouts = list(layouts)
    if not layouts:
        return []
    checkpoint = layouts[0].checkpoint
    if any(layout.checkpoint != checkpoint for layout in layouts):
        raise LayoutError("the layouts are of different checkpoints; a publisher has one")
    held = [layout.held() for layout in layouts]
    cuts: Dict[str, Tuple[int, int]] = {}
    classes: Dict[Tuple[_Ranges, ...], List[str]] = {}
    dims: Dict[str, int] = {}
    measured: Dict[Any, List[Tuple[Optional[int], _Ranges]]] = {}
    for name, tensor in checkpoint.items():
        slices = tuple(tuple(part[1:] for part in rank.get(name, ())) for rank in held)
        if (slices, tensor.shape) not in measured:  # layers and experts are alike
            measured[slices, tensor.shape] = [_measure_holding(parts, tensor.shape) for parts in slices]
        holdings = measured[slices, tensor.shape]
        split = {dim for dim, _ in holdings if dim is not None}
        key = tuple(ranges for _, ranges in holdings)
        if len(split) > 1:
            raise LayoutError(f"workers split {name} along different dimensions; publish to a store for each kind of worker")
        if split:
            dims[name] = split.pop()
            classes.setdefault(key, []).append(name)
        elif any(ranges != _WHOLE for ranges in key):
            cuts[name] = (0, 1)
    used: Set[int] = set()
    for key, names in classes.items():
        parts = _choose_parts(names, checkpoint, dims, key, used)
        used.add(parts)
        cuts.update((name, (dims[name], parts)) for name in names)
    return _write_patterns(cuts, checkpoint)


# ---- for people ----


def _show_slice(part: Slice) -> str:
    if part.dim is None:
        return part.tensor
    return f"{part.tensor}[{':, ' * part.dim}{part.start}:{part.start + part.length}]"


def _show_recipe(recipe: Recipe) -> str:
    if recipe.kind == "tie":
        return f"is {recipe.target}"
    slices = [_show_slice(part) for part in recipe.slices]
    if len(slices) > 4:
        slices[2:-1] = ["…"]
    return f"= {'stack of ' if recipe.kind == 'stack' else ''}{' + '.join(slices)}"


def describe(layout: Layout) -> str:
    """The layout for people: tensors that differ in their layer alone are shown once."""
    lines: List[Tuple[str, str]] = []
    seen: Dict[str, List[int]] = {}
    for name, recipe in layout.recipes.items():
        live = layout.live.get(name)
        shape = "" if live is None else f" {live.dtype} {list(live.shape)}"
        if live is not None and live.held != live.shape:
            shape += f" held as {list(live.held)}"
        line = f"{name}{shape} {_show_recipe(recipe)}"
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        key = re.sub(r"model\.layers\.\d+\.", "model.layers.*.", line)
        if layer and key in seen:
            seen[key].append(int(layer[1]))
            continue
        seen[key] = [int(layer[1])] if layer else []
        lines.append((key, line))
    text = []
    for key, line in lines:
        layers = seen[key]
        text.append(line if len(layers) < 2 else f"{key}  (layers {layers[0]} to {layers[-1]}, {len(layers)} of them)")
    for name, live in layout.live.items():
        if name not in layout.recipes:
            text.append(f"{name} {live.dtype} {list(live.shape)} is padding only")
    ignored = list(layout.ignored)
    if len(ignored) > 8:
        ignored[3:-1] = [f"… {len(ignored) - 4} more …"]
    text += [f"ignored: {pattern}" for pattern in ignored] + [f"note: {note}" for note in layout.notes]
    return "\n".join(text)
