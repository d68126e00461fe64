# SPDX-License-Identifier: Apache-2.0
"""Tensors on accelerators, through weft_batch_access (weft/tensor.h) and torch's own index operations.

A commit is one transfer of positions and values to each device and an index_copy_ for each tensor; a prepare is one
transfer of positions, an index_select for each tensor, and one transfer back. So what moves goes with what changes. All
is done on integers as wide as the dtype: bits stay exact. There is no code for any kind of device here, and CPU tensors
can go the same way (through_device), which is how it is tested.

On devices that have streams, work runs on one of our own. It begins after what the caller's current stream had to do
when the caller entered weft, and has ended when a call returns, so nobody needs to wait for it. This object keeps the
tensors alive meanwhile; memory that we allocate is used on our stream only. Hence record_stream is not needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _structures as structures
from .context import OK, Context
from .errors import UNSUPPORTED, InvalidArgument, UnsupportedError

_WORD = 16  # bytes of what is gathered: WEFT_WORD
_NAN = 0x7FC0  # what every NaN becomes in BF16 (weft_bf16_from_f32); what torch makes of it goes with the device
_PORTION = 4 << 20  # positions that are passed to a device at once, which bounds the memory that this takes
_RUN = 64  # positions in a row that are not sent, because a slice does
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Through:
    """What through_device() gives."""

    through_device = True

    def __init__(self, model: Any) -> None:
        self.model = model


def through_device(model: Any) -> Through:
    """The same model, mapping or tensor, to be reached as if it were on an accelerator, wherever it is: for tests.

    >>> import torch, weft
    >>> old, new = {"w": torch.zeros(8)}, {"w": torch.arange(8.0)}
    >>> _ = weft.apply(weft.device.through_device(old), weft.diff(old, new))
    >>> old["w"]
    tensor([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    if isinstance(model, (str, os.PathLike)):
        raise InvalidArgument("only torch tensors can be reached through a device; a checkpoint on disk is mapped")
    return Through(model)


def flat_bits(tensor: Any) -> Any:
    """A contiguous tensor as one row of integers of the same width, in place."""
    import torch

    return tensor.detach().reshape(-1).view(getattr(torch, _INTEGERS[tensor.element_size()]))


def rounded_bits(values: Any) -> Any:
    """The BF16 of FP32 values as 16-bit integers, bit for bit as the library rounds, whatever the device does with NaNs."""
    import torch

    return values.to(torch.bfloat16).view(torch.int16).masked_fill_(torch.isnan(values), _NAN)


class _Lane:
    """The way to one device and back: a stream, and memory of the host to pass things through, pinned if that can be."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self.device = device
        module = getattr(torch, device.type, None)
        self._module = module if device.type != "cpu" and hasattr(module, "Stream") else None
        self._stream = None if self._module is None else self._module.Stream(device=device)
        self._kept: Dict[str, Any] = {}
        self.pinned = False
        if self._stream is not None:
            with contextlib.suppress(RuntimeError):
                self.pinned = bool(torch.empty(1, pin_memory=True).is_pinned())

    def enter(self) -> None:
        """Our stream goes on after what the caller's has to do now. On the caller's thread, which has its own stream."""
        if self._stream is not None and self._module is not None:
            self._stream.wait_stream(self._module.current_stream(self.device))

    def working(self) -> ContextManager[Any]:
        return contextlib.nullcontext() if self._module is None else self._module.stream(self._stream)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def host(self, use: str, size: int) -> Any:
        """Bytes of the host, kept for the next batch, which is often as large."""
        kept = self._kept.get(use)
        if kept is None or kept.numel() < size:
            self._kept[use] = kept = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=self.pinned)
        return kept[:size]

    def there(self, host: Any) -> Any:
        """The bytes on the device."""
        return host.to(self.device, non_blocking=self.pinned)

    def beside(self, host: Any) -> Any:
        """Room for as many bytes on the device."""
        return host if self.device.type == "cpu" else self._torch.empty_like(host, device=self.device, pin_memory=False)

    def back(self, there: Any, host: Any) -> None:
        if there is not host:
            host.copy_(there, non_blocking=self.pinned)


class _Reached:
    """A tensor on a device. Masters are reached as the BF16 that they are published as, and cannot be changed so."""

    def __init__(self, name: str, tensor: Any, lane: _Lane, cast: bool) -> None:
        self.name = name
        self.lane = lane
        self.cast = cast
        self.start = int(tensor.data_ptr())
        self.end = self.start + tensor.numel() * tensor.element_size()
        self.likeness = (tensor.dtype, tuple(tensor.shape))
        self.alias_of: Optional[int] = None
        self.width = 2 if cast else int(tensor.element_size())
        self.flat = tensor.detach().reshape(-1) if cast else flat_bits(tensor)
        units = _WORD // self.width
        self.words = self.flat.numel() // units  # whole ones
        self.rest = self.flat[self.words * units :]  # the short one, if there is one
        self._rows = self.flat[: self.words * units].view(-1, units)
        # One element for a word is gathered twice as fast as a row of them. It is only moved, so bits stay as they are.
        at = tensor.storage_offset() * tensor.element_size()
        self._whole = tensor.device.type in ("cpu", "cuda") and self.start % _WORD == 0 and at % _WORD == 0 and not cast

    def bits(self, first: int, count: int) -> Any:
        part = self.flat[first : first + count]
        return rounded_bits(part) if self.cast else part

    def gather(self, torch: Any, words: Any, output: Any, short: List[int]) -> None:
        """The rows of `output` are the words; those numbered in `short` are the short one."""
        rows = output.view(self.flat.dtype).view(-1, _WORD // self.width)
        if self.words > 0 and self._whole:
            torch.index_select(self._rows.view(-1).view(torch.complex128), 0, words, out=output.view(torch.complex128))
        elif self.words > 0:
            torch.index_select(self._rows, 0, words, out=rows)
        for row in short:
            rows[row].zero_()
            rows[row][: self.rest.numel()].copy_(self.rest)


class _Call(NamedTuple):
    """What is put off until the end of a batch: addresses of the library's, which stay valid."""

    number: int  # of the tensor
    positions: int
    amount: int
    values: int


class Device:
    """The tensors of one table that are on devices, and the functions that the library reaches them by."""

    def __init__(self, context: Context) -> None:
        import torch

        self._torch = torch
        self._context = context
        self._tensors: List[_Reached] = []
        self._lanes: Dict[Any, _Lane] = {}
        self._gathers: List[_Call] = []
        self._scatters: List[_Call] = []
        self.sent = self.received = 0  # bytes of batches, positions included
        self.access = structures.access(read=structures.READ(self._on_read))
        self.batch = structures.batch_access(
            begin=structures.BATCH(self._on_begin),
            gather=structures.BATCH_GATHER(self._on_gather),
            scatter=structures.BATCH_GATHER(self._on_scatter),
            end=structures.BATCH(self._on_end),
        )
        context.entering.append(self._enter)

    def add(self, name: str, tensor: Any, cast: bool) -> int:
        """The number by which the library asks for the tensor; never zero."""
        if not tensor.is_contiguous():
            raise UnsupportedError(UNSUPPORTED, f"tensor {name}: it is not contiguous, on {tensor.device}; "
                                   "give tensor.contiguous(), and change that in place")
        if tensor.device not in self._lanes:
            self._lanes[tensor.device] = _Lane(self._torch, tensor.device)
        self._tensors.append(_Reached(name, tensor, self._lanes[tensor.device], cast))
        return len(self._tensors)

    def tie(self) -> None:
        """Finds tensors that share their memory, which the library cannot see here. Other overlaps are refused."""
        order = sorted((str(tensor.lane.device), tensor.start, tensor.end, number)
                       for number, tensor in enumerate(self._tensors))
        for (*_, before), (*_, number) in zip(order, order[1:]):
            first, second = self._tensors[before], self._tensors[number]
            if first.lane is not second.lane or first.end <= second.start:
                continue
            if (first.start, first.end, first.likeness) != (second.start, second.end, second.likeness):
                raise InvalidArgument(f"tensors {first.name} and {second.name} overlap in memory; only the same memory, "
                                      "dtype and shape under two names is a tie")
            second.alias_of = before if first.alias_of is None else first.alias_of

    # ---- what the library calls; nothing may be raised through it ----

    def _enter(self) -> None:
        for lane in self._lanes.values():
            lane.enter()

    def _on_begin(self, _: Optional[int]) -> int:
        self._gathers, self._scatters = [], []
        return OK

    def _on_gather(self, _: Optional[int], number: int, words: int, count: int, output: int) -> int:
        self._gathers.append(_Call(number - 1, words, count, output))
        return OK

    def _on_scatter(self, _: Optional[int], number: int, units: int, count: int, values: int) -> int:
        self._scatters.append(_Call(number - 1, units, count, values))
        return OK

    def _on_end(self, _: Optional[int]) -> int:
        try:
            with self._torch.inference_mode():
                for lane in self._lanes.values():
                    try:
                        for portion in self._portions(lane, self._gathers, lambda tensor: _WORD):
                            self._gather(lane, portion)
                        self._check_ties(lane)
                        for portion in self._portions(lane, self._write_runs(lane), lambda tensor: tensor.width):
                            self._scatter(lane, portion)
                    finally:
                        lane.synchronize()
            return OK
        except BaseException as failure:
            return self._context.failed(failure)
        finally:
            self._gathers, self._scatters = [], []

    def _on_read(self, number: int, offset: int, output: int, size: int) -> int:
        try:
            tensor = self._tensors[number - 1]
            with self._torch.inference_mode(), tensor.lane.working():
                there = tensor.bits(offset // tensor.width, size // tensor.width)
                self._memory(output, size).view(there.dtype).copy_(there)
            return OK
        except BaseException as failure:
            return self._context.failed(failure)

    # ---- the work ----

    def _memory(self, address: int, size: int) -> Any:
        return self._torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=self._torch.uint8)

    def _portions(
        self, lane: _Lane, calls: List[_Call], width: Callable[[_Reached], int]
    ) -> "Iterator[List[_Call]]":
        """The calls for one device, the widest values first, so that all are aligned, and each tensor's together; in portions.
        `width` is that of a value."""
        mine = [call for call in calls if self._tensors[call.number].lane is lane]
        mine.sort(key=lambda call: (-self._tensors[call.number].width, call.number))
        portion: List[_Call] = []
        room = _PORTION
        for number, positions, left, values in mine:
            while left > 0:
                some = min(left, room)
                portion.append(_Call(number, positions, some, values))
                positions, values = positions + 8 * some, values + width(self._tensors[number]) * some
                left, room = left - some, room - some
                if room == 0:
                    yield portion
                    portion, room = [], _PORTION
        if portion:
            yield portion

    def _pack(self, calls: List[_Call], positions: Any) -> "List[Tuple[int, int, int]]":
        """Puts the positions of the calls one after the other; of each tensor its number, and where its positions begin and
        end."""
        ranges: List[Tuple[int, int, int]] = []
        at, address = 0, positions.data_ptr()
        for call in calls:
            ctypes.memmove(address + 8 * at, call.positions, 8 * call.amount)
            begun = ranges.pop()[1] if ranges and ranges[-1][0] == call.number else at
            at += call.amount
            ranges.append((call.number, begun, at))
        return ranges

    def _gather(self, lane: _Lane, calls: List[_Call]) -> None:
        torch = self._torch
        total = sum(call.amount for call in calls)
        here = lane.host("positions", 8 * total)
        positions = here.view(torch.int64)
        ranges = self._pack(calls, positions)
        short: Dict[int, List[int]] = {}
        for number, first, end in ranges:
            tensor = self._tensors[number]
            if tensor.rest.numel() > 0:
                last = positions[first:end] == tensor.words
                short[number] = last.nonzero().reshape(-1).tolist()
                positions[first:end].masked_fill_(last, 0)
        values = lane.host("values", _WORD * total)
        with lane.working():
            indices = lane.there(here).view(torch.int64)
            found = lane.beside(values)
            for number, first, end in ranges:
                self._tensors[number].gather(
                    torch, indices[first:end], found[_WORD * first : _WORD * end], short.get(number, [])
                )
            lane.back(found, values)
        lane.synchronize()
        at = values.data_ptr()
        for call in calls:
            ctypes.memmove(call.values, at, _WORD * call.amount)
            at += _WORD * call.amount
        self.sent += 8 * total
        self.received += _WORD * total

    def _write_runs(self, lane: _Lane) -> List[_Call]:
        """Writes what lies in a row, as in a model that is loaded whole, without its positions; what is left to scatter. Memory
        with several names is written under the first of them."""
        torch = self._torch
        left: List[_Call] = []
        for call in self._scatters:
            tensor = self._tensors[call.number]
            if tensor.lane is not lane or tensor.alias_of is not None:
                continue
            first = ctypes.c_int64.from_address(call.positions).value
            last = ctypes.c_int64.from_address(call.positions + 8 * (call.amount - 1)).value
            if call.amount < _RUN or last - first != call.amount - 1:
                left.append(call)
                continue
            positions = self._memory(call.positions, 8 * call.amount).view(torch.int64)
            if not bool((positions[1:] > positions[:-1]).all()):
                left.append(call)
                continue
            values = self._memory(call.values, tensor.width * call.amount).view(tensor.flat.dtype)
            with lane.working():
                tensor.flat[first : last + 1].copy_(values)
            self.sent += tensor.width * call.amount
        return left

    def _scatter(self, lane: _Lane, calls: List[_Call]) -> None:
        torch = self._torch
        total = sum(call.amount for call in calls)
        size = sum(call.amount * self._tensors[call.number].width for call in calls)
        lane.synchronize()  # what the portion before was sent from is used again
        here = lane.host("positions", 8 * total + size)
        ranges = self._pack(calls, here)
        at = here.data_ptr() + 8 * total
        for call in calls:
            width = self._tensors[call.number].width
            ctypes.memmove(at, call.values, width * call.amount)
            at += width * call.amount
        with lane.working():
            there = lane.there(here)
            positions = there[: 8 * total].view(torch.int64)
            at = 8 * total
            for number, first, end in ranges:
                tensor = self._tensors[number]
                values = there[at : at + (end - first) * tensor.width].view(tensor.flat.dtype)
                tensor.flat.index_copy_(0, positions[first:end], values)
                at += (end - first) * tensor.width
        self.sent += 8 * total + size

    def _check_ties(self, lane: _Lane) -> None:
        """Raises if memory with several names would be written differently under them. Nothing is written then."""
        if not self._scatters:
            return
        for number, tensor in enumerate(self._tensors):
            first = tensor.alias_of
            if first is None or tensor.lane is not lane:
                continue
            mine = [call for call in self._scatters if call.number == number]
            others = [call for call in self._scatters if call.number == first]
            if not self._torch.equal(self._written(mine), self._written(others)):
                raise UnsupportedError(
                    UNSUPPORTED,
                    f"tensors {self._tensors[first].name} and {self._tensors[number].name} share their memory, and would differ "
                    "afterwards; give each memory of its own, or raise stage_bytes if that cut the step into portions",
                )

    def _written(self, calls: List[_Call]) -> Any:
        """The positions of the calls, and then their values, in one row."""
        parts = [self._memory(call.positions, 8 * call.amount) for call in calls]
        parts += [self._memory(call.values, self._tensors[call.number].width * call.amount) for call in calls]
        return self._torch.cat(parts) if parts else self._torch.empty(0, dtype=self._torch.uint8)
