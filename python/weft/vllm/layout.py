# SPDX-License-Identifier: Apache-2.0
"""A worker's live parameters: which slices of the checkpoint's tensors they are, and whether they can be written.

vLLM's layers know how they were split: their kind says along which dimension, their attributes which rank they are.
Models with experts go by weft.layouts.from_config, which knows their stacks, and are compared with what is live.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..errors import UNSUPPORTED, Error, StaleError, UnsupportedError
from ..layouts import Layout, Live, Recipe, Slice, Tensor, from_config
from ..tensors import memory_of

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
_DERIVED = ("W_UK_T", "W_UV", "_cpu_unpacked_conv_weight")  # latent attention; convolutions on processors
_PLAIN_KERNELS = ("TRITON", "BATCHED_TRITON")  # of experts
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")  # speculation that has no model of its own


def refuse(what: str, instead: str) -> UnsupportedError:
    return UnsupportedError(UNSUPPORTED, f"weft cannot update this engine in place: {what}; {instead}")


# ---- what is refused ----


def check_engine(config: Any) -> None:
    """Refuses what a configuration of vLLM says already."""
    speculative = config.speculative_config
    if speculative is not None and speculative.method not in _WITHOUT_WEIGHTS:
        raise refuse(
            f"it speculates with {speculative.method}, a model whose weights would stay as they are",
            f"start it without --speculative-config, or with one of {', '.join(_WITHOUT_WEIGHTS)}",
        )
    if config.lora_config is not None:
        raise refuse("LoRA wraps its layers", "start it without --enable-lora, and publish merged weights")
    if config.model_config.enable_sleep_mode:
        raise refuse("sleep mode takes the weights' memory away", "start it without --enable-sleep-mode")
    quantised = config.model_config.quantization
    if quantised is not None:
        raise refuse(f"its weights are quantised ({quantised})", "serve the plain BF16 model, as it is published")
    parallel = config.parallel_config
    if parallel.data_parallel_size > 1 and config.model_config.is_moe:
        raise refuse(
            "its data-parallel ranks share experts, and would change weights at different steps",
            "start it with --data-parallel-size 1",
        )


def check_parameters(model: Any) -> None:
    """Refuses parameters that a write would not reach, or not all of."""
    found = 0
    for name, parameter in model.named_parameters():
        found += 1
        if parameter.numel() == 0:
            raise refuse(
                f"parameter {name} is empty: its values were packed for a kernel and taken away",
                "on a processor let the plug-in turn packing off (do not set VLLM_PLUGINS without weft; "
                "VLLM_ZENTORCH_WEIGHT_PREPACK=0); else choose kernels that read the plain weights",
            )
        dtype = str(parameter.dtype).rpartition(".")[2]
        if dtype not in _DTYPES:
            raise refuse(f"parameter {name} is {dtype}, so it is quantised", "serve the plain model that is published")
        try:
            memory_of(name, parameter.data)
        except Error as error:
            raise refuse(str(error), "start the engine so that it holds this parameter as it was loaded") from None
    if not found:
        raise refuse("its model has no parameters", "give a model that vLLM loads itself")
    for name, module in model.named_modules():
        _check_copies(name, module)


def _check_copies(name: str, module: Any) -> None:
    """Refuses a module that computes with something that was made of its parameters when it was loaded."""
    derived = next((attribute for attribute in _DERIVED if getattr(module, attribute, None) is not None), None)
    if derived is not None:
        raise refuse(f"{name} computes with {derived}, made of its weights when it was loaded", "serve another model")
    kernels = getattr(getattr(getattr(module, "quant_method", None), "unquantized_backend", None), "name", None)
    if kernels is not None and kernels not in _PLAIN_KERNELS:
        raise refuse(
            f"the experts of {name} are laid out for kernels of their own ({kernels})",
            "choose kernels that read them as they were loaded, --moe-backend triton, on an accelerator",
        )
    packed = getattr(module, "cpu_linear", None)
    if packed is not None:
        captured = getattr(packed, "__closure__", None) or ()
        names = getattr(getattr(packed, "__code__", None), "co_freevars", ())
        hidden = [text for text, cell in zip(names, captured) if text in ("handler", "packed_weight", "zen_weight")]
        if hidden:
            raise refuse(
                f"{name} computes with a packed copy of its weight ({hidden[0]}), which a write would not reach",
                "load the plug-in before the model (VLLM_PLUGINS must name weft if it is set)",
            )


class Places:
    """Where each parameter lies. A commit into memory that a parameter has left would change nothing."""

    def __init__(self, model: Any) -> None:
        self._places: List[Tuple[str, Mapping[str, Any], str, int, int]] = []
        for prefix, module in model.named_modules():
            for leaf, parameter in module._parameters.items():
                if parameter is not None:
                    name = f"{prefix}.{leaf}" if prefix else leaf
                    self._places.append((name, module._parameters, leaf, parameter.data_ptr(), parameter.numel()))

    def check(self) -> None:
        for name, owner, leaf, address, count in self._places:
            parameter = owner.get(leaf)
            if parameter is None or parameter.data_ptr() != address or parameter.numel() != count:
                raise StaleError(
                    -100,
                    f"parameter {name} is no longer where it was when following began, so a commit would be written "
                    "into nothing; something has replaced or repacked it: restart the engine",
                )


# ---- what the parameters are ----


def parameters_of(model: Any) -> Dict[str, Any]:
    """The live tensors by name; what shares its memory once."""
    return {name: parameter.data for name, parameter in model.named_parameters()}


class _Builder:
    """Collects recipes, with the checkpoint's tensors that they imply."""

    def __init__(self) -> None:
        self.recipes: Dict[str, Recipe] = {}
        self.live: Dict[str, Live] = {}
        self.checkpoint: Dict[str, Tensor] = {}

    def add(self, name: str, parameter: Any, slices: Sequence[Tuple[Slice, int]], rows: Optional[int] = None) -> None:
        """`slices` come with the full extent of the dimension that they are cut along; `rows` are those held."""
        dtype = _DTYPES[str(parameter.dtype).rpartition(".")[2]]
        shape = tuple(parameter.shape)
        held = shape if rows is None else (rows, *shape[1:])
        for part, extent in slices:
            full = list(held)
            if part.dim is not None:
                full[part.dim] = extent
            elif len(slices) > 1:
                full[0] = extent
            self.checkpoint[part.tensor] = Tensor(tuple(full), dtype)
        kept = [_whole_if(part, extent) for part, extent in slices]
        self.live[name] = Live(shape, dtype, held)
        if kept:
            self.recipes[name] = Recipe("concat", tuple(kept))


def _whole_if(part: Slice, extent: int) -> Slice:
    return Slice(part.tensor) if part.dim is not None and part.start == 0 and part.length == extent else part


def _packed_names(model: Any) -> Dict[str, List[str]]:
    return {key: list(value) for key, value in (getattr(model, "packed_modules_mapping", None) or {}).items()}


def _checkpoint_names(model: Any) -> "Any":
    """From vLLM's names to the checkpoint's: what its loader does, the other way round."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    prefixes: List[Tuple[str, str]] = []
    if mapper is not None:
        for rule in ("orig_to_new_regex", "orig_to_new_substr", "orig_to_new_suffix", "orig_to_new_renaming"):
            if getattr(mapper, rule, None):
                raise refuse(
                    f"{type(model).__name__} renames tensors as it loads them ({rule})",
                    "follow with a layout of your own: see doc/python/layouts.md",
                )
        given = getattr(mapper, "orig_to_new_prefix", None) or {}
        prefixes = sorted(((new, old) for old, new in given.items() if new), key=lambda pair: -len(pair[0]))

    def original(name: str) -> str:
        for new, old in prefixes:
            if name.startswith(new):
                return old + name[len(new) :]
        return name

    return original


def _split(layer: Any, leaf: str, parts: List[str], parameter: Any) -> Iterator[Tuple[Slice, int]]:
    """The slices of the checkpoint's tensors that a linear layer's parameter consists of."""
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear, QKVParallelLinear, RowParallelLinear,
    )

    rank, size = int(layer.tp_rank), int(layer.tp_size)
    if isinstance(layer, QKVParallelLinear):
        heads = (layer.total_num_heads, layer.total_num_kv_heads, layer.total_num_kv_heads)
        mine = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
        ranks = (rank, rank // layer.num_kv_head_replicas, rank // layer.num_kv_head_replicas)
        widths = (layer.head_size, layer.head_size, layer.v_head_size)
        if len(parts) != 3:
            raise refuse(f"{leaf} of a {type(layer).__name__} has {len(parts)} parts", "publish q, k and v apart")
        for tensor, total, number, place, width in zip(parts, heads, mine, ranks, widths):
            yield Slice(tensor, 0, place * number * width, number * width), total * width
    elif isinstance(layer, ColumnParallelLinear):
        totals = list(getattr(layer, "output_sizes", None) or [layer.output_size])
        if len(totals) != len(parts):
            raise refuse(
                f"a {type(layer).__name__} joins {len(totals)} tensors under {len(parts)} names: {', '.join(parts)}",
                "follow with a layout of your own: see doc/python/layouts.md",
            )
        for tensor, total in zip(parts, totals):
            yield Slice(tensor, 0, rank * (total // size), total // size), total
    elif isinstance(layer, RowParallelLinear) and parameter.dim() == 2:
        length = int(parameter.shape[1])
        yield Slice(parts[0], 1, rank * length, length), length * size
    else:
        yield from _joined(parts, getattr(layer, "output_sizes", None), parameter)


def _joined(parts: List[str], sizes: Optional[Sequence[int]], parameter: Any) -> Iterator[Tuple[Slice, int]]:
    """Whole tensors, one below another."""
    if len(parts) > 1 and (sizes is None or len(sizes) != len(parts)):
        raise refuse(f"it is not known how {', '.join(parts)} are joined", "see doc/python/layouts.md")
    for tensor, rows in zip(parts, sizes if len(parts) > 1 and sizes is not None else [int(parameter.shape[0])]):
        yield Slice(tensor), rows


def _vocabulary(builder: _Builder, name: str, tensor: str, layer: Any, parameter: Any) -> None:
    """Rows of an embedding, padded at its end, where the rest of a rank's rows may be."""
    if layer.num_added_embeddings:
        raise refuse(f"{name} has rows for tokens of adapters", "start it without adapters")
    start, end = layer.shard_indices.org_vocab_start_index, layer.shard_indices.org_vocab_end_index
    slices = [(Slice(tensor, 0, start, end - start), layer.org_vocab_size)] if end > start else []
    builder.add(name, parameter, slices, rows=end - start)


def layout_of(model: Any, config: Any) -> Layout:
    """The layout of this worker's parameters."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        VocabParallelEmbedding,
    )

    if any(name.endswith(("w13_weight", "w2_weight")) for name, _ in model.named_parameters()):
        return _layout_with_experts(model, config)
    original, packed = _checkpoint_names(model), _packed_names(model)
    modules = dict(model.named_modules())
    builder = _Builder()
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        stem, _, last = owner.rpartition(".")
        before = f"{stem}." if stem else ""
        parts = [original(f"{before}{part}.{leaf}") for part in packed.get(last, [last])]
        layer = modules[owner]
        if isinstance(layer, VocabParallelEmbedding):
            _vocabulary(builder, name, original(name), layer, parameter)
        elif isinstance(layer, LinearBase):
            builder.add(name, parameter, list(_split(layer, leaf, parts, parameter)))
        else:
            builder.add(name, parameter, list(_joined(parts, None, parameter)))
    return Layout(builder.recipes, builder.live, _ignored(model, original), builder.checkpoint)


def _ignored(model: Any, original: Any) -> Tuple[str, ...]:
    """Tensors of the checkpoint that this worker does not hold: layers of other pipeline stages, and a head that is
    the embedding."""
    from vllm.model_executor.models.utils import PPMissingLayer

    missing = [
        original(name) + ".*" for name, module in model.named_modules() if isinstance(module, PPMissingLayer) and name
    ]
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    return (*missing, *(["lm_head.weight"] if tied and "lm_head.*" not in missing else []))


def _layout_with_experts(model: Any, config: Any) -> Layout:
    """By the model's configuration, compared with what is live."""
    from vllm.distributed import get_ep_group, get_pp_group, get_tp_group

    tensor, pipeline, parallel = get_tp_group(), get_pp_group(), config.parallel_config
    expert = get_ep_group() if parallel.enable_expert_parallel else None
    layout = from_config(
        config.model_config.hf_text_config,
        "vllm",
        tensor_parallel=(tensor.rank_in_group, tensor.world_size),
        expert_parallel=None if expert is None else (expert.rank_in_group, expert.world_size),
        pipeline_parallel=(pipeline.rank_in_group, pipeline.world_size),
        expert_placement=parallel.expert_placement_strategy,
    )
    live = parameters_of(model)
    for name, described in layout.live.items():
        if name not in live or tuple(live[name].shape) != described.shape:
            held = tuple(live[name].shape) if name in live else "nothing"
            raise refuse(
                f"parameter {name} is {held}, and {described.shape} was expected: a kernel has re-laid it",
                "choose the Triton kernels for experts, or follow with a layout of your own",
            )
    for name in live:
        if name not in layout.live:
            raise refuse(f"parameter {name} is not known to weft.layouts", "follow with a layout of your own")
    return layout
