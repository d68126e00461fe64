# SPDX-License-Identifier: Apache-2.0
"""SGLang: a live engine follows a run, or goes to a version of it, in place.

    WEFT_STORE=https://trainer:8477 WEFT_FOLLOW=1 python -m sglang.launch_server --model-path MODEL …

follows by itself (follow.py). Without WEFT_FOLLOW it goes where it is told to:

    weft.sglang.update("http://engine:30000", 42)        # or an sglang.Engine; without a version, the newest

SGLang finds register() by its entry point, and nothing is to be configured: updates with load_format="weft" are weft's.
Each rank derives from its live modules which slices of the checkpoint they hold, and refuses what it could write to in
vain. All ranks prepare, and commit if all of them could; else the answer has weft's text, and the engine serves on with
the weights that it had.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .._frameworks import announced, post
from ..context import logger
from ..errors import (
    CALLBACK_FAILED,
    UNSUPPORTED,
    Error,
    InvalidArgument,
    RemoteError,
    StaleError,
    UnsupportedError,
    error_of,
)
from ..layouts import Cut, Layout, Live, Recipe, Slice, cuts_for, from_config
from ..subscriber import Subscriber

FORMAT = "weft"  # the load_format of an update
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater.update_weights_from_tensor"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
# How SGLang's models name what they fuse, where they have no packed_modules_mapping.
_FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_DTYPES = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}
_SETTINGS = ("store", "trust", "version")  # what a request may say


# ---- the layout of a live model ----


def _refuse(name: str, what: str, next_step: str) -> UnsupportedError:
    return UnsupportedError(UNSUPPORTED, f"SGLang's parameter {name}: {what}; {next_step}")


def _check(name: str, parameter: Any, module: Any) -> None:
    """Raises if what is written here would not be what the engine computes with."""
    if parameter.numel() == 0:
        raise _refuse(name, "it is empty, so the engine computes with another copy", "turn off what repacks weights")
    if getattr(module, "use_intel_amx_backend", False):
        raise _refuse(name, "it is packed for AMX", "start SGLang without SGLANG_USE_CPU_ENGINE and sgl-kernel")
    if str(parameter.dtype) not in _DTYPES:
        raise _refuse(name, f"it is {parameter.dtype}, so it is quantised", "serve the model in BF16")
    method = type(getattr(module, "quant_method", None)).__name__
    if method != "NoneType" and not method.startswith("Unquantized"):
        raise _refuse(name, f"it is quantised by {method}", "serve the model without quantisation")
    if not parameter.is_contiguous():
        raise _refuse(name, "it is not contiguous", "turn off what repacks weights")
    if any(hasattr(module, derived) for derived in ("w_kc", "w_vc")):
        raise _refuse(
            name, "the engine derives w_kc and w_vc from it", "take a model without multi-head latent attention"
        )


def _rank(group: Any) -> Tuple[int, int]:
    from sglang.srt.distributed.utils import get_group_rank_size

    rank, size = get_group_rank_size(group)
    return int(rank), int(size)


def _part(tensor: str, dim: int, start: int, length: int, size: int) -> Slice:
    """All of it, if there is one rank."""
    return Slice(tensor) if size == 1 else Slice(tensor, dim, start, length)


def _linear_slices(module: Any, names: Sequence[str], leaf: str) -> Tuple[List[Slice], List[int]]:
    """What a linear layer's parameter is joined of, and the rows of each."""
    from sglang.srt.layers import linear

    if isinstance(module, linear.QKVParallelLinear):
        rank, size = _rank(module.tp_group)
        kv_rank, kv_size = _rank(module.kv_tp_group)
        kv_rank //= module.num_kv_head_replicas
        rows = [module.q_proj_shard_size, module.kv_proj_shard_size, module.v_proj_shard_size]
        places = [(rank, size), (kv_rank, kv_size), (kv_rank, kv_size)]
    elif isinstance(module, linear.MergedColumnParallelLinear):
        rank, size = _rank(module.tp_group)
        rows = [whole // size for whole in module.output_sizes]
        places = [(rank, size)] * len(rows)
    elif isinstance(module, linear.ColumnParallelLinear):
        rank, size = _rank(module.tp_group)
        rows, places = [module.output_size_per_partition], [(rank, size)]
    elif isinstance(module, linear.RowParallelLinear):
        rank, size = _rank(module.tp_group)
        columns = module.input_size_per_partition
        whole = leaf != "weight"  # its bias is held by each rank
        return [Slice(names[0]) if whole else _part(names[0], 1, rank * columns, columns, size)], [module.output_size]
    else:
        return [Slice(names[0])], [module.output_size]
    if len(rows) != len(names):
        raise _refuse(
            names[0],
            f"it has {len(rows)} parts, and {len(names)} are known",
            "give the layout by hand: see weft.layouts",
        )
    slices = [_part(name, 0, rank * length, length, size) for name, length, (rank, size) in zip(names, rows, places)]
    return slices, rows


def layout_of(model: Any) -> Layout:
    """The layout of a rank's live model, from the kinds of its modules."""
    from sglang.srt.layers.linear import LinearBase
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    fused = {**_FUSED, **(getattr(model, "packed_modules_mapping", None) or {})}
    modules = dict(model.named_modules())
    recipes: Dict[str, Recipe] = {}
    live: Dict[str, Live] = {}
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        module = modules[owner]
        _check(name, parameter, module)
        shape = held = tuple(parameter.shape)
        slices = [Slice(name)]
        if isinstance(module, LinearBase):
            stem, _, last = owner.rpartition(".")
            parts = [".".join(filter(None, (stem, part, leaf))) for part in fused.get(last, (last,))]
            slices, rows = _linear_slices(module, parts, leaf)
            columns = getattr(module, "input_size_per_partition", module.input_size)
            expected = (sum(rows), columns) if leaf == "weight" else (sum(rows),)
            if shape != expected:
                raise _refuse(name, f"its shape is {shape}, not {expected}", "turn off what repacks weights")
        elif isinstance(module, VocabParallelEmbedding):
            indices = module.shard_indices
            start, end = indices.org_vocab_start_index, indices.org_vocab_end_index
            if indices.added_vocab_end_index > indices.added_vocab_start_index:
                raise _refuse(name, "it has rows for adapters", "serve without LoRA adapters that add tokens")
            slices, held = [_part(name, 0, start, end - start, module.tp_size)], (end - start, *shape[1:])
        elif len(shape) > 2 or "moe" in type(module).__module__:
            raise _refuse(
                name, f"the layout of a {type(module).__name__} is not known here", "follow by hand: see weft.layouts"
            )
        recipes[name] = Recipe("concat", tuple(slices))
        live[name] = Live(shape, _DTYPES[str(parameter.dtype)], held)
    tied = "lm_head.weight" not in recipes  # a trainer's state has both names of a tied embedding
    return Layout(recipes, live, ("lm_head.weight",) if tied else (), {})


# ---- inside the engine ----


class _Parameters(Mapping[str, Any]):
    """A model's live tensors by name, as they are at the time: a parameter may be given other memory, or be replaced."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = [name for name, _ in model.named_parameters()]

    def __getitem__(self, name: str) -> Any:
        try:
            return self._model.get_parameter(name).data
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _cuts(model: Any, ranks: int) -> List[Cut]:
    """What a publisher must cut for tensor-parallel ranks, as far as weft.layouts knows the model."""
    try:
        layouts = [from_config(model.config, "sglang", tensor_parallel=(rank, ranks)) for rank in range(ranks)]
        return announced(cuts_for(layouts))
    except Exception as error:  # cuts may have been given to the publisher: following does not depend on this
        logger.warning("%s; the publisher is to be given the cuts that %d ranks need", error, ranks)
        return []


def _subscriber(model: Any, settings: Mapping[str, Any]) -> Subscriber:
    rank, ranks = int(_ranks().rank_in_group), int(_ranks().world_size)
    host = re.sub("[^A-Za-z0-9-]", "-", os.uname().nodename)[:40]
    return Subscriber(
        settings["store"],
        _Parameters(model),
        layout=layout_of(model),
        trust=settings.get("trust"),
        name=(os.environ.get("WEFT_NAME") or f"sglang-{host}-{os.getpid()}") if rank == 0 else None,
        cuts=_cuts(model, ranks) if rank == 0 and ranks > 1 else None,
    )


class _Follower:
    """One rank's live model, and where it is."""

    def __init__(self, model: Any, settings: Mapping[str, Any]) -> None:
        self.place = (settings["store"], settings.get("trust"))
        self.subscriber = _subscriber(model, settings)
        self.pause = 0.0  # seconds of the last commit


_followers: "weakref.WeakKeyDictionary[Any, _Follower]" = weakref.WeakKeyDictionary()


def _settings(named: Any) -> Dict[str, Any]:
    """What a request says, over what the environment says."""
    text = named[0][0] if named else "{}"
    try:
        asked = json.loads(text)
    except ValueError:
        asked = None
    if not isinstance(asked, dict) or any(key not in _SETTINGS for key in asked):
        raise InvalidArgument(f"an update by weft is JSON with {', '.join(_SETTINGS)}, and not {text!r}")
    version = asked.get("version")
    if version is not None and (not isinstance(version, int) or version < 1):
        raise InvalidArgument(f"version {version!r} is none; versions count from 1")
    found = {"store": os.environ.get("WEFT_STORE"), "trust": os.environ.get("WEFT_TRUST"), **asked}
    if not found["store"]:
        raise InvalidArgument("no store is known; set WEFT_STORE for the engine, or give the update a store")
    return found


def _follower(model: Any, settings: Mapping[str, Any]) -> _Follower:
    held = _followers.get(model)
    if held is not None and held.place != (settings["store"], settings.get("trust")):
        _followers.pop(model).subscriber.close()
        held = None
    if held is None:
        held = _followers[model] = _Follower(model, settings)
    return held


def _ranks() -> Any:
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().tp_group


def _agree(failure: Optional[Error], more: bool, subscriber: Optional[Subscriber]) -> bool:
    """Whether a rank has more steps to go. Raises on all ranks if one of them could not prepare."""
    import torch

    group = _ranks()
    outcomes: List[Any] = [(failure, more)]
    if group.world_size > 1:
        outcomes = [None] * group.world_size
        torch.distributed.all_gather_object(outcomes, (failure, more), group=group.cpu_group)
    for rank, (found, _) in enumerate(outcomes):
        if found is not None:
            if failure is None and subscriber is not None:
                subscriber.rollback()
            raise found if len(outcomes) == 1 else error_of(found.status, f"rank {rank}: {found}")
    return any(further for _, further in outcomes)


def _prepare(model: Any, named_tensors: Any) -> bool:
    settings = _settings(named_tensors)
    version = settings.get("version")
    if version is None and _ranks().world_size > 1:
        raise InvalidArgument("no version is given; several ranks need one, so that all of them go to the same")
    try:
        return _follower(model, settings).subscriber.prepare(version)
    except StaleError as moved:
        if model not in _followers:
            raise
        logger.warning("%s; SGLang has moved its parameters, which are followed anew", moved)
        _followers.pop(model).subscriber.close()
        return _follower(model, settings).subscriber.prepare(version)


def load(model: Any, named_tensors: Any) -> int:
    """Brings a live model to a version; where it is then. This is a custom weight loader, for an engine whose plug-ins
    are turned off: --custom-weight-loader weft.sglang.load. There a failure ends the engine, as of any such loader."""
    more = further = True
    while further:
        failure: Optional[Error] = None
        prepares = more
        if prepares:
            try:
                more = _prepare(model, named_tensors)
            except Error as error:
                failure = error
            except Exception as error:  # other ranks wait for this one's outcome
                failure = Error(CALLBACK_FAILED, f"{type(error).__name__}: {error}")
        held = _followers.get(model)
        further = _agree(failure, more, held.subscriber if held is not None and prepares else None)
        if prepares:
            start = time.perf_counter()
            _followers[model].subscriber.commit()
            _followers[model].pause = time.perf_counter() - start
    return _followers[model].subscriber.version


def _update(original: Callable[..., Any], updater: Any, *arguments: Any, **named: Any) -> Any:
    """In place of WeightUpdater.update_weights_from_tensor, which lets what a loader raises end the scheduler."""
    load_format = named.get("load_format", arguments[1] if len(arguments) > 1 else None)
    if load_format != FORMAT:
        return original(updater, *arguments, **named)
    if os.environ.get("WEFT_FOLLOW"):
        return False, "weft: this engine follows by itself (WEFT_FOLLOW), and is not told where to go"
    start = time.perf_counter()
    try:
        version = load(updater.get_model(), named.get("named_tensors", arguments[0] if arguments else None))
    except Exception as error:  # all of it is the engine's answer
        return False, f"weft: {error}"
    took, pause = time.perf_counter() - start, _followers[updater.get_model()].pause
    return True, f"weft: version {version}, in {1e3 * took:.1f} ms, of which the commit took {1e3 * pause:.1f}"


def register() -> None:
    """What SGLang calls in each of its processes, by the entry point sglang.srt.plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_UPDATER, _update, HookType.AROUND)
    if os.environ.get("WEFT_FOLLOW"):
        HookRegistry.register(f"{_SCHEDULER}.__init__", _begin, HookType.AFTER)
        HookRegistry.register(f"{_SCHEDULER}._poll_timeout_aborts", _requests, HookType.AFTER)
        HookRegistry.register(f"{_SCHEDULER}.pause_generation", _pause, HookType.AROUND)


# What follows by itself is imported where SGLang has a scheduler, and not in its other processes.


def _begin(_: None, scheduler: Any, *arguments: Any, **named: Any) -> None:
    from .follow import begin

    begin(scheduler, lambda model: _subscriber(model, _settings(None)))


def _requests(received: List[Any], scheduler: Any) -> List[Any]:
    from .follow import requests

    return requests(received, scheduler)


def _pause(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    from .follow import pause

    return pause(original, scheduler, request)


# ---- beside the engine ----


def _payload(request: Mapping[str, Any]) -> bytes:
    """As SGLang sends named tensors, with no tensor."""
    return pickle.dumps([(json.dumps(request), None)])


def update(
    engine: Any,
    version: Optional[int] = None,
    *,
    store: Optional[str] = None,
    trust: Optional[str] = None,
    ranks: int = 1,
    timeout: float = 600,
    api_key: Optional[str] = None,
) -> str:
    """Brings an engine to `version`, or the newest: the address of a server, with `ranks` tensor-parallel ranks, or an
    sglang.Engine. `store` and `trust` are for an engine that was started without WEFT_STORE and WEFT_TRUST. A server's
    running requests are retracted for the time of the update, and go on with the new weights. What the engine answered;
    RemoteError if that is a failure, and then the engine has the weights that it had."""
    asked = {"version": version, "store": store, "trust": trust}
    request = {key: value for key, value in asked.items() if value is not None}
    if not isinstance(engine, str):
        return _update_engine(engine, request)

    def ask(route: str, **body: Any) -> Dict[str, Any]:
        _, answer = post(engine.rstrip("/") + route, body, timeout, api_key)
        return answer if isinstance(answer, dict) else {"message": answer}

    ask("/pause_generation", mode="retract")
    try:
        begun = ask("/begin_weight_update")
        answer = begun
        if begun.get("success"):
            payload = base64.b64encode(_payload(request)).decode()
            label = {} if version is None else {"weight_version": str(version)}
            answer = ask(
                "/update_weights_from_tensor", serialized_named_tensors=[payload] * ranks, load_format=FORMAT, **label
            )
            ended = ask("/end_weight_update")
            answer = answer if not answer.get("success") else {**ended, "message": answer["message"]}
    finally:
        ask("/continue_generation")
    return _answered(bool(answer.get("success")), str(answer.get("message", answer)))


def _update_engine(engine: Any, request: Mapping[str, Any]) -> str:
    success, message = engine.begin_weight_update()
    if success:
        success, message = engine.update_weights_from_tensor([(json.dumps(request), None)], load_format=FORMAT)
        ended, why = engine.end_weight_update()
        if success and not ended:
            success, message = ended, why
    return _answered(bool(success), str(message))


def _answered(success: bool, message: str) -> str:
    if not success:
        raise RemoteError(-500, f"SGLang did not update its weights: {message}")
    return message
