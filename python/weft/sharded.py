# SPDX-License-Identifier: Apache-2.0
"""Sharded trainers: each rank publishes what it holds of a model of DTensors, and no rank gathers the model.

    fully_shard(model)                                        # or parallelize_module, or both
    publisher = weft.sharded.Publisher("s3://bucket/run-7", model, key="run-7.key")
    ...
    publisher.publish(step=42)                                # by every rank, at the same step

The ranks tell each other once what each holds, and from that all derive the same plan: of each tensor the dimension
along which it is cut, and into how many equal boxes, so that some rank holds each box whole. torch shards in chunks
that are rounded up, so the last one may be smaller: such tensors are cut finer, at the greatest common divisor of all
borders. Two kinds of tensors have no such cut: those whose borders are not between 16-byte words, or have no common
divisor to speak of, and those that a mesh of two dimensions splits along two dimensions. They are sharded anew for each
publish, along a dimension that can be cut (torch's redistribute: every rank sends and receives a shard), or, where none
can, gathered by every rank. `exchanged` names them.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import layouts, publisher
from ._signatures import functions
from .context import logger
from .errors import UNSUPPORTED, Error, InvalidArgument, StaleError, UnsupportedError, error_of
from .store import StoreLike
from .tensors import BF16, F32, Layout, Memory, Model, dtype_number, is_path
from .tensors import _tensors_of as tensors_of

_MOST_PARTS = 4096
_WORD = 16  # bytes; the digest's unit, on which cuts must fall
_MUCH = 16 << 20  # bytes that one should know to be gathered

_holders: Any = layouts  # how it measures what workers hold, and writes patterns, is used for ranks too

Range = Tuple[Optional[int], int, int]  # dimension, start, length; the dimension is None if all is held


class Holding(NamedTuple):
    """What one rank says of one tensor."""

    dtype: int  # as it is published
    shape: Tuple[int, ...]
    offsets: Tuple[int, ...]  # of the box that the rank holds
    sizes: Tuple[int, ...]
    others: Tuple[Range, ...]  # what it would hold if the tensor were sharded along dimension 0, 1, …

    @property
    def ranges(self) -> Optional[List[Range]]:
        """The box as ranges of one dimension: none if it is empty, and None if it is bounded in several."""
        if 0 in self.sizes and 0 not in self.shape:
            return []
        bounded = [dim for dim, extent in enumerate(self.shape) if self.sizes[dim] != extent]
        if len(bounded) > 1:
            return None
        return [(dim, self.offsets[dim], self.sizes[dim]) for dim in bounded] or [(None, 0, 0)]

    def turned(self, dim: int) -> List[Range]:
        """The same if the tensor were sharded along another dimension."""
        return [self.others[dim]] if self.others[dim][2] else []


class Shape(NamedTuple):
    dtype: int
    shape: Tuple[int, ...]


class Choice(NamedTuple):
    """How the ranks hold a tensor for a publish: as they do anyway ("kept"), sharded along `dim` ("turned"), or all of it
    ("whole")."""

    kind: str
    dim: Optional[int]  # along which it is cut
    key: Tuple[Any, ...]  # which fractions of it each rank, and each worker, holds; () if all hold all
    least: int  # into how many parts at least


class Plan(NamedTuple):
    shapes: Dict[str, Shape]
    choices: Dict[str, Choice]
    cuts: List[Tuple[str, int, int]]


def _refuse(what: str, next_step: str) -> UnsupportedError:
    return UnsupportedError(UNSUPPORTED, f"{what}; {next_step}")


# ---- the plan, which follows from the holdings alone ----


def _fits(tensor: Shape, dim: int, parts: int) -> bool:
    """Whether it can be cut into so many equal boxes of whole words."""
    if tensor.shape[dim] % parts or parts > _MOST_PARTS:
        return False
    run = tensor.shape[dim] // parts * math.prod(tensor.shape[dim + 1 :])
    return bool(run * functions.dtype_width(tensor.dtype) % _WORD == 0)


def _measure(
    kind: str, tensor: Shape, ranks: Sequence[Sequence[Range]], workers: Sequence[Sequence[Range]]
) -> Optional[Choice]:
    """The choice, if it can be made."""
    measured = [_holders._measure_holding(ranges, tensor.shape) for ranges in (*ranks, *workers)]
    dims = {dim for dim, _ in measured} - {None}
    key = tuple(tuple(bound.as_integer_ratio() for pair in ranges for bound in pair) for _, ranges in measured)
    if not dims:
        return Choice(kind, None, () if all(ranges == ((0, 1), (1, 1)) for ranges in key) else key, 1)
    if len(dims) > 1:
        return None
    dim = dims.pop()
    least = math.lcm(*{denominator for ranges in key for _, denominator in ranges})
    return Choice(kind, dim, key, least) if _fits(tensor, dim, least) else None


def _choose(
    name: str, tensor: Shape, holdings: Sequence[Optional[Holding]], workers: Sequence[Sequence[Range]], stuck: bool
) -> Choice:
    """The cheapest that can be: as it is, turned, whole. `stuck`: cuts of others are in the way of this one's."""
    present = [holding for holding in holdings if holding is not None]
    kept = [[] if holding is None else holding.ranges for holding in holdings]
    if None not in kept and not stuck:
        found = _measure("kept", tensor, kept, workers)  # type: ignore[arg-type]
        if found:
            return found
    turned = [
        _measure("turned", tensor, [holding.turned(dim) if holding else [] for holding in holdings], workers)
        for dim in range(0 if stuck else min(len(holding.others) for holding in present))
    ]
    usable = [choice for choice in turned if choice]
    if usable:
        return min(usable, key=lambda choice: choice.least)
    whole = _measure("whole", tensor, [[(None, 0, 0)] if holding else [] for holding in holdings], workers)
    if whole is None:
        raise layouts.LayoutError(
            f"{name}, of the shape {tensor.shape}, cannot be cut as the workers hold it; publish to a store for each kind of "
            "worker, or pad a vocabulary to a multiple of 64 before training"
        )
    return whole


def _agree(holdings: Sequence[Mapping[str, Holding]]) -> Dict[str, Shape]:
    """Every tensor that some rank holds, as all that do describe it; and together they must hold all of it."""
    shapes: Dict[str, Shape] = {}
    for rank, held in enumerate(holdings):
        for name, holding in held.items():
            shape = Shape(holding.dtype, holding.shape)
            if shapes.setdefault(name, shape) != shape:
                raise InvalidArgument(
                    f"tensor {name} is {shape} on rank {rank} and {shapes[name]} on another; build the same model on all ranks"
                )
    for name, shape in shapes.items():
        boxes = {(held[name].offsets, held[name].sizes) for held in holdings if name in held}
        if sum(math.prod(sizes) for _, sizes in boxes) != math.prod(shape.shape):
            raise InvalidArgument(
                f"the ranks of this group do not hold tensor {name} once and whole; give group= with all ranks of its mesh"
            )
    return shapes


def make_plan(holdings: Sequence[Mapping[str, Holding]], workers: Sequence[Any] = ()) -> Plan:
    """What all ranks derive alike from what each of them holds.

    >>> rows = [Holding(F32, (6, 8), (start, 0), (2, 8), ()) for start in (0, 2, 4)]
    >>> make_plan([{"w": row} for row in rows]).cuts
    [('w', 0, 3)]

    Chunks of four, four and two rows are cut at every second row:

    >>> rows = [Holding(F32, (10, 8), (start, 0), (min(4, 10 - start), 8), ()) for start in (0, 4, 8)]
    >>> make_plan([{"w": row} for row in rows]).cuts
    [('w', 0, 5)]
    """
    shapes = _agree(holdings)
    held_by_workers = [worker.held() for worker in workers]
    made: Dict[Any, Choice] = {}  # layers and experts are alike
    stuck: Set[str] = set()

    def choose(name: str) -> Choice:
        ranks = tuple(held.get(name) for held in holdings)
        others = tuple(tuple(tuple(part[1:]) for part in held.get(name, ())) for held in held_by_workers)
        alike = (shapes[name], ranks, others, name in stuck)
        if alike not in made:
            made[alike] = _choose(name, shapes[name], ranks, others, name in stuck)
        return made[alike]

    while True:
        choices = {name: choose(name) for name in sorted(shapes)}
        cuts, fresh = _cut(shapes, choices)
        if not fresh:
            written = _holders._write_patterns(cuts, shapes)
            return Plan(shapes, choices, [(cut.pattern, cut.dim, cut.parts) for cut in written])
        if fresh <= stuck:
            raise layouts.LayoutError(
                f"{min(fresh)} cannot be cut into other parts than tensors that other workers hold; publish to a store for each "
                "kind of worker"
            )
        stuck |= fresh


def _cut(shapes: Mapping[str, Shape], choices: Mapping[str, Choice]) -> Tuple[Dict[str, Tuple[int, int]], Set[str]]:
    """Of each name the dimension and number of parts; and names for which no number is left. Boxes of the same part share
    buckets, so tensors that are held differently need different numbers of parts."""
    cuts: Dict[str, Tuple[int, int]] = {}
    classes: Dict[Any, List[str]] = {}
    for name, choice in choices.items():
        if choice.dim is not None:
            classes.setdefault((shapes[name].dtype, choice.key, choice.least), []).append(name)
        elif choice.key:
            cuts[name] = (0, 1)
    used: Set[Tuple[int, int]] = set()
    without: Set[str] = set()
    for (dtype, _, least), names in classes.items():
        for parts in range(least, _MOST_PARTS + 1, least):
            if (dtype, parts) not in used and all(_fits(shapes[name], choices[name].dim or 0, parts) for name in names):
                used.add((dtype, parts))
                cuts.update((name, (choices[name].dim or 0, parts)) for name in names)
                break
        else:
            without.update(names)
    return cuts, without


# ---- what a rank holds ----


def is_sharded(value: object) -> bool:
    """Whether it is a DTensor."""
    return any(kind.__name__ == "DTensor" for kind in type(value).__mro__)


def _is_here(value: Any) -> bool:
    """False of a DTensor on a mesh of other ranks."""
    return not is_sharded(value) or value.device_mesh.get_coordinate() is not None


def _shards_along(extent: int, mesh: Any, placements: Sequence[Any]) -> Tuple[int, int]:
    """Start and length of this rank's shard, if what shards the tensor now did so along a dimension of this extent: chunks
    of chunks, each rounded up, as torch has it."""
    start, length = 0, extent
    coordinate = mesh.get_coordinate()
    for index, placement in enumerate(placements):
        if not placement.is_replicate():
            chunk = -(-length // mesh.size(index))
            begin = min(coordinate[index] * chunk, length)
            start, length = start + begin, min(chunk, length - begin)
    return start, length


def _holding_of(name: str, value: Any, cast: bool) -> Holding:
    dtype = dtype_number(value.dtype)
    dtype = BF16 if cast and dtype == F32 else dtype
    shape = tuple(value.shape)
    if not is_sharded(value):
        return Holding(dtype, shape, (0,) * len(shape), shape, ())
    if any(placement.is_partial() for placement in value.placements):
        raise _refuse(f"tensor {name} is a DTensor of partial sums", "give tensor.redistribute(placements=[Replicate(), …])")
    (chunk,) = value.__create_chunk_list__()
    others = tuple((dim, *_shards_along(extent, value.device_mesh, value.placements)) for dim, extent in enumerate(shape))
    return Holding(dtype, shape, tuple(chunk.offsets), tuple(chunk.sizes), others)


def _refuse_flat(model: Model) -> None:
    """FSDP1 keeps parameters of many shapes in one flat buffer, and cuts that anywhere."""
    modules = model.modules() if hasattr(model, "modules") else ()
    values = model.values() if isinstance(model, Mapping) else ()
    kinds = {kind.__name__ for value in (*modules, *values) for kind in type(value).__mro__}
    if kinds & {"FullyShardedDataParallel", "FlatParameter", "ShardedTensor"}:
        raise _refuse(
            "the model is sharded by FullyShardedDataParallel (FSDP1), whose flat shards are cut in the middle of rows",
            "shard it by torch.distributed.fsdp.fully_shard (FSDP2), or gather a full state dict on one rank and give that to "
            "weft.Publisher",
        )


def _describe(model: Model, state: Mapping[str, Any], cast: bool) -> Union[Dict[str, Holding], Error]:
    """What this rank holds, or why that cannot be published: the other ranks wait to be told."""
    try:
        _refuse_flat(model)
        return {name: _holding_of(name, value, cast) for name, value in state.items() if _is_here(value)}
    except Error as failure:
        return failure


class Publisher(publisher.Publisher):
    """Publishes a model of which each rank of `group` (by default: all ranks) holds a part, as DTensors. All ranks open it, and
    all call publish(), with the same step.

    `model` is a module or a mapping, with parameters sharded by fully_shard, parallelize_module or distribute_tensor, on
    meshes of any shape. Tensors that are no DTensors are taken to be the same on all ranks that have them. Ranks may hold
    different layers. `workers` are the layouts of the engines that follow (weft.layouts), if each is to fetch its own slices
    only. The other arguments are those of weft.Publisher; with a `key`, every rank needs the secret one.

    A rank that dies or is late fails the publish on all ranks after `part_seconds`. Nothing is published then, and the next
    call begins anew.
    """

    def __init__(
        self,
        store: StoreLike,
        model: Model,
        *,
        group: Any = None,
        workers: Iterable[Layout] = (),
        dtype: object = None,
        **options: Any,
    ) -> None:
        import torch.distributed as distributed

        given = {"part", "layout", "checkpoint", "cuts"} & options.keys()
        if given:
            raise InvalidArgument(
                f"{', '.join(sorted(given))} follow from the shards; for shards of another kind use weft.Publisher"
            )
        if is_path(model):
            raise InvalidArgument("a path is a whole model; publish it by weft.Publisher, on one rank")
        if not distributed.is_initialized():
            raise InvalidArgument("torch.distributed is not initialised; call init_process_group, or use weft.Publisher")
        self._sharded = model
        rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        if rank < 0:
            raise InvalidArgument("this rank is not in the group; only the ranks of the group publish")
        state = tensors_of(model)
        own = _describe(model, state, dtype is not None)
        holdings: List[Any] = [None] * ranks
        distributed.all_gather_object(holdings, own, group=group)
        for failed, failure in enumerate(holdings):
            if isinstance(failure, Error):
                raise error_of(failure.status, f"rank {failed}: {failure}")
        assert not isinstance(own, Error)
        self._plan = make_plan(holdings, list(workers))
        self._names = sorted(own)
        self._buffers: Dict[str, Any] = {}
        self._live: Dict[str, Any] = {}
        self._fill(state)
        for name, how in self.exchanged.items():
            size = math.prod(self._plan.shapes[name].shape) * functions.dtype_width(self._plan.shapes[name].dtype)
            level = logging.WARNING if how == "whole" and size > _MUCH else logging.INFO
            logger.log(level, "tensor %s, %d bytes, goes %s through the network for each publish", name, size, how)
        super().__init__(
            store,
            self._live,
            dtype=dtype,
            layout=self._layout_of(own),
            checkpoint={name: Memory(shape.dtype, shape.shape, 0, False) for name, shape in self._plan.shapes.items()},
            cuts=self._plan.cuts,
            part=(rank, ranks),
            **options,
        )

    def __enter__(self) -> "Publisher":
        return self

    @property
    def exchanged(self) -> Mapping[str, str]:
        """Tensors that no cut fits as they are sharded: they go through the network at each publish, "along dimension 1" or
        "whole"."""
        return {
            name: "whole" if choice.kind == "whole" else f"along dimension {choice.dim}"
            for name, choice in self._plan.choices.items()
            if choice.kind != "kept"
        }

    def publish(self, labels: Optional[Mapping[str, object]] = None, /, **named: object) -> publisher.Published:
        """Publishes what the ranks hold now, together: each calls this once for each version, with the same labels, among them
        the step."""
        if not labels and not named:
            raise InvalidArgument("ranks that publish together must say which step they are at, as publish(step=42)")
        self._fill(tensors_of(self._sharded))
        return super().publish(labels, **named)

    def _fill(self, state: Mapping[str, Any]) -> None:
        """The tensors of this rank where they lie now; those that are exchanged, and those that are not contiguous, in
        buffers. All ranks exchange in the order of names."""
        here = sorted(name for name, value in state.items() if _is_here(value))
        if self._names != here:
            raise StaleError(
                -100,
                f"the model has other tensors than when this was opened, such as {min(set(self._names) ^ set(here))}; open it "
                "anew on all ranks",
            )
        for name in here:
            choice, value = self._plan.choices[name], state[name].detach()
            if not is_sharded(value):
                self._live[name] = value
                continue
            if choice.kind == "kept":
                local = value.to_local()
            elif choice.kind == "whole":
                local = value.full_tensor()
            else:
                placements = [_shard(choice.dim) if not one.is_replicate() else one for one in value.placements]
                local = value.redistribute(placements=placements).to_local()
            if choice.kind == "kept" and local.is_contiguous():
                self._live[name] = local
            elif name in self._buffers:
                self._buffers[name].copy_(local)
            else:
                self._live[name] = self._buffers[name] = local.clone().contiguous()

    def _layout_of(self, own: Mapping[str, Holding]) -> Dict[str, Any]:
        """Which slices of the whole model's tensors the live ones are. What this rank has nothing of is not in it."""
        recipes: Dict[str, Any] = {}
        for name, holding in own.items():
            choice = self._plan.choices[name]
            ranges = holding.ranges or []
            if choice.kind == "turned":
                ranges = holding.turned(choice.dim or 0)
            elif choice.kind == "whole":
                ranges = [(None, 0, 0)]
            if not ranges:
                self._live.pop(name, None)
                continue
            dim, start, length = ranges[0]
            recipes[name] = name if dim is None else {"slice": {"tensor": name, "dim": dim, "start": start, "length": length}}
        ignored = sorted(self._plan.shapes.keys() - recipes.keys())
        return {"weft_layout": 1, "tensors": recipes, "ignore": ignored}


def _shard(dim: Optional[int]) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(dim or 0)
