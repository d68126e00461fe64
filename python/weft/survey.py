# SPDX-License-Identifier: Apache-2.0
"""What differs between two states, counted: by tensor, and by the exponent of the old weight; as `weft stats` does."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

from ._signatures import functions
from .context import OK, Context, Progress, interruptible
from .errors import error_of
from .patches import diff, tensor_info
from .tensors import BF16, F32, Model, Tensors, is_path

if TYPE_CHECKING:
    import numpy

_BLOCK = 1 << 22  # units that are compared at a time


@dataclasses.dataclass(frozen=True)
class TensorStats:
    name: str
    dtype: str
    shape: Tuple[int, ...]
    fate: str  # kept, added, removed or replaced
    total: int
    changed: int

    @property
    def density(self) -> float:
        return self.changed / self.total if self.total else 0.0


@dataclasses.dataclass(frozen=True)
class Stats:
    """What changed. `exponents` has (total, changed) of the BF16 weights by the exponent byte of the old weight, `profiles` the
    bytes of the patch in each profile."""

    total: int
    changed: int
    tensors: Sequence[TensorStats] = dataclasses.field(repr=False)
    exponents: Mapping[int, Tuple[int, int]] = dataclasses.field(repr=False)
    profiles: Mapping[str, int]

    @property
    def density(self) -> float:
        return self.changed / self.total if self.total else 0.0


def _units(tensor: Any) -> "numpy.ndarray[Any, Any]":
    """The units of a tensor as unsigned numbers, where they lie if they lie end to end; masters cast to BF16."""
    import numpy

    width = functions.dtype_width(tensor.dtype)
    count = tensor.bytes // width
    if count == 0:
        return numpy.zeros(0, f"u{width}")
    if tensor.access:
        copy = numpy.empty(count, f"u{width}")
        status = tensor.access.contents.read(tensor.opaque, 0, copy.ctypes.data, tensor.bytes)
        if status != OK:
            raise error_of(status, f"tensor {tensor.name.decode()} cannot be read from its device")
        return copy
    data = tensor.data
    if tensor.strides:
        stored = functions.dtype_width(tensor.storage)
        shape, strides = tensor.shape[: tensor.rank], [stored * stride for stride in tensor.strides[: tensor.rank]]
        extent = stored + sum((length - 1) * stride for length, stride in zip(shape, strides))
        memory = numpy.frombuffer((ctypes.c_uint8 * extent).from_address(data), f"u{stored}")
        copy = numpy.ascontiguousarray(numpy.lib.stride_tricks.as_strided(memory, shape, strides)).reshape(-1)
        if tensor.storage == tensor.dtype:
            return copy
        data = copy.ctypes.data
    if tensor.storage == F32 and tensor.dtype == BF16:
        cast = numpy.empty(count, "uint16")
        functions.bf16_from_f32(data, cast.ctypes.data, count)
        return cast
    memory = (ctypes.c_uint8 * tensor.bytes).from_address(tensor.data)
    return numpy.frombuffer(memory, f"u{width}")


def _count(
    old: "numpy.ndarray[Any, Any]", new: "numpy.ndarray[Any, Any]", exponents: "Optional[numpy.ndarray[Any, Any]]"
) -> int:
    import numpy

    changed = 0
    for start in range(0, len(old), _BLOCK):
        before, after = old[start : start + _BLOCK], new[start : start + _BLOCK]
        differs = before != after
        changed += int(numpy.count_nonzero(differs))
        if exponents is not None:
            bits = (before >> 7) & 0xFF
            exponents[0] += numpy.bincount(bits, minlength=256)
            exponents[1] += numpy.bincount(bits[differs], minlength=256)
    return changed


def stats(
    base: Model, new: Model, *, profiles: bool = True, dtype: object = None, progress: Progress = None
) -> Stats:
    """Counts what changed from `base` to `new`. Without `profiles` no patch is made to see what it would cost.

    >>> import numpy, weft
    >>> found = weft.stats({"w": numpy.zeros(100, "int32")}, {"w": numpy.arange(100, dtype="int32")})
    >>> found.changed, found.tensors[0].density, sorted(found.profiles)
    (99, 0.99, ['fast', 'small'])
    """
    import numpy

    exponents = numpy.zeros((2, 256), "int64")
    found: Dict[str, TensorStats] = {}

    def count() -> None:
        with Context() as context, Tensors(context, base, dtype=None if is_path(base) else dtype) as before:
            with Tensors(context, new, dtype=None if is_path(new) else dtype) as after:
                olds = {tensor.name: tensor for tensor in before}
                for tensor in after:
                    old = olds.pop(tensor.name, None)
                    info = tensor_info(tensor)
                    units = tensor.bytes // functions.dtype_width(tensor.dtype)
                    fate, changed = "added" if old is None else "replaced", units
                    if old is not None and tensor_info(old) == info:
                        wanted = exponents if tensor.dtype == BF16 else None
                        fate, changed = "kept", _count(_units(old), _units(tensor), wanted)
                    found[info.name] = TensorStats(info.name, info.dtype, info.shape, fate, units, changed)
                for old in olds.values():
                    info = tensor_info(old)
                    found[info.name] = TensorStats(info.name, info.dtype, info.shape, "removed", 0, 0)

    interruptible(count, lambda: None)
    rows = [found[name] for name in sorted(found)]
    costs = {}
    if profiles:
        costs = {name: diff(base, new, profile=name, dtype=dtype, progress=progress).patch_bytes for name in ("fast", "small")}
    return Stats(
        total=sum(row.total for row in rows),
        changed=sum(row.changed for row in rows if row.fate == "kept"),
        tensors=rows,
        exponents={e: (int(exponents[0][e]), int(exponents[1][e])) for e in range(256) if exponents[0][e]},
        profiles=costs,
    )
