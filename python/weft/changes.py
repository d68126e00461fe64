# SPDX-License-Identifier: Apache-2.0
"""Lists of changes: which units of a tensor, and what they hold. To a publisher from somebody who knows what has changed
(weft_tensor_changes), and from what a subscriber has prepared (weft_change_batch); over weft/patch.h."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Callable, List, Mapping, NamedTuple, Tuple

from . import _structures as structures
from ._signatures import functions
from .context import OK, Context
from .errors import InvalidArgument
from .tensors import BF16, F32, Tensors, dtype_number, is_torch, text_bytes

# By tensor: positions, ascending, and the values there, as numpy arrays or torch tensors.
Changes = Mapping[str, Tuple[Any, Any]]


class Change(NamedTuple):
    """Some of what will change in one tensor: positions in it as if it were flat, ascending, with the values there before and
    after. torch tensors, on the CPU, where the tensor is one; else numpy arrays."""

    name: str
    units: Any
    old: Any
    new: Any


def _positions(name: str, given: Any) -> Any:
    if is_torch(given):
        torch = importlib.import_module("torch")
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise InvalidArgument(f"tensor {name}: positions are integers, not {given.dtype}")
        return given.detach().to("cpu", torch.int64).contiguous().reshape(-1)
    numpy = importlib.import_module("numpy")
    array = numpy.asarray(given)
    if array.size > 0 and array.dtype.kind not in "iu":
        raise InvalidArgument(f"tensor {name}: positions are integers, not {array.dtype}; give mask.nonzero()[0] of a mask")
    return numpy.ascontiguousarray(array, "int64").reshape(-1)


def _values(name: str, given: Any, dtype: int) -> Any:
    if is_torch(given):
        array = given.detach().cpu().contiguous().reshape(-1)
    else:
        numpy = importlib.import_module("numpy")
        array = numpy.ascontiguousarray(given).reshape(-1)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    count, number = len(array), dtype_number(array.dtype)
    if number == F32 and dtype == BF16:
        rounded = (ctypes.c_uint16 * count)()
        functions.bf16_from_f32(_address(array), rounded, count)
        return rounded
    if number != dtype and count > 0:
        raise InvalidArgument(f"tensor {name} is {functions.dtype_name(dtype).decode()}, and its values are {array.dtype}; "
                              "cast them first")
    return array


def _address(array: Any) -> int:
    if isinstance(array, ctypes.Array):
        return ctypes.addressof(array)
    return int(array.data_ptr() if is_torch(array) else array.ctypes.data)


def change_array(tensors: Tensors, changes: Changes) -> "tuple[Any, List[Any]]":
    """What the library takes, and what must be kept alive for that long."""
    array = (structures.tensor_changes * max(1, len(changes)))()
    kept: List[Any] = []
    for row, (name, (given, values)) in zip(array, changes.items()):
        index = functions.view_find(tensors.view, text_bytes(name))
        if index < 0:
            raise InvalidArgument(f"there is no tensor {name} in the model; positions go by the names of the checkpoint")
        positions = _positions(name, given)
        held = _values(name, values, functions.view_at(tensors.view, index).contents.dtype)
        if len(positions) != len(held):
            raise InvalidArgument(f"tensor {name}: there are {len(positions)} positions and {len(held)} values")
        row.tensor, row.count = name.encode(), len(positions)
        row.units, row.values = _address(positions), _address(held)
        kept += [positions, held]
    return array, kept


def _copied(address: int, size: int, dtype: Any, torch: Any) -> Any:
    memory = bytearray((ctypes.c_char * size).from_address(address))
    if torch is not None:
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
    return importlib.import_module("numpy").frombuffer(memory, "uint8").view(dtype)


def prepared_changes(
    context: Context, function: Callable[..., int], handle: Any, tensors: Tensors, batch: int
) -> "List[Change]":
    """All that a commit would change. Copied, because the library shows each batch for the time of one call only."""
    found: List[Change] = []

    def visit(_: object, shown: Any) -> int:
        try:
            some = shown.contents
            name = functions.table_at(tensors.table, some.index).contents.name.decode()
            value = tensors.values[name]
            torch = importlib.import_module("torch") if is_torch(value) else None
            size = some.count * functions.dtype_width(some.tensor.contents.dtype)
            found.append(Change(
                name,
                _copied(some.units, 8 * some.count, "uint64" if torch is None else torch.int64, torch),
                _copied(some.olds, size, value.dtype, torch),
                _copied(some.news, size, value.dtype, torch),
            ))
            return OK
        except BaseException as failure:
            return context.failed(failure)

    context.call(function, handle, batch, structures.VISIT_CHANGES(visit), None)
    return found
