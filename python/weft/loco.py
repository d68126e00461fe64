# SPDX-License-Identifier: Apache-2.0
"""PULSELoCo: several trainers take some steps on their own, and then bring their FP32 weights together by sending only
what the next forward pass in BF16 can see; over weft/loco.h, which has the equations.

    outer = weft.loco.Outer(model, run="run-7", local_steps=8)     # every rank, after init_process_group
    for batch in batches:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()                                                 # after each 8th step: a round

Ranks meet by torch.distributed (Distributed) or in a store (Meeting), where they go on without a rank that is late or
gone. Every rank must begin with the same weights, and has the same bits after each round.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Union

from . import _structures as structures
from ._signatures import functions
from .context import Context, Handle, Progress, logger
from .errors import BUSY, UNSUPPORTED, InvalidArgument, StaleError, UnsupportedError, error_of
from .keys import KeyLike, key_of
from .store import StoreLike, store_of
from .tensors import F32, Model, Path, Tensors, memory_of, path_bytes, texts

_CANCELLED = -602
_STEPS = "weft.local_steps"  # the label of a state that says how many steps were taken since the last round


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that is done."""

    rounds: int  # done so far
    elements: int  # weights
    fired: int  # of them sent by this rank
    sent: int  # bytes of this rank's payload
    received: int  # bytes of the other ranks' payloads
    included: int  # ranks whose payload took part
    decoding: float  # seconds in which payloads were checked and decoded
    moving: float  # seconds in which the consensus was moved

    @property
    def share(self) -> float:
        """Of the weights that this rank has sent."""
        return self.fired / self.elements if self.elements else 0.0


@dataclasses.dataclass(frozen=True)
class MeetingInfo:
    """What a rank has done in a meeting so far."""

    sent: int  # bytes of payloads put
    received: int  # bytes of payloads and snapshots fetched
    snapshot_bytes: int  # put
    led: int  # rounds that this rank closed
    leader: int  # the rank that closed the last one
    left_out: int  # rounds that ended without its payload
    refused: int  # payloads that it found unusable as a leader, and did not name
    unremoved: int  # old objects that could not be removed


@dataclasses.dataclass
class Distributed:
    """The exchange over torch.distributed. All ranks of `group` take part in every round; by default all there are. With a
    backend that has no tensors in the memory of the host, such as nccl, give its `device`."""

    group: Any = None
    device: Any = "cpu"


@dataclasses.dataclass
class Meeting:
    """The exchange over a store, for trainers that have nothing else in common. A round is closed when all payloads are there,
    or `deadline_seconds` after the leader's, if there are at least `least`. A rank that was left out catches up, and loses
    nothing. With a `key`, the same secret one on all ranks, everything is signed. What is None is as weft/loco.h has it."""

    store: StoreLike
    rank: int
    ranks: int
    least: Optional[int] = None
    deadline_seconds: Optional[float] = None
    passing_seconds: Optional[float] = None
    poll_seconds: Optional[float] = None
    patience_seconds: Optional[float] = None
    keep_rounds: Optional[int] = None
    snapshot_rounds: Optional[int] = None
    key: KeyLike = None
    token: Optional[str] = None
    ca_file: Optional[Path] = None


Exchange = Union[Distributed, Meeting]


class _Collective:
    """weft_loco_exchange over torch.distributed: sizes by one all-gather, payloads by another, filled up to the longest."""

    def __init__(self, context: Context, settings: Distributed) -> None:
        import torch
        import torch.distributed as distributed

        if not distributed.is_initialized():
            raise InvalidArgument(
                "torch.distributed is not initialised; call init_process_group, or meet in a store: exchange=Meeting(…)"
            )
        self._torch, self._distributed = torch, distributed
        self._context, self._group, self._device = context, settings.group, settings.device
        self.rank, self.ranks = distributed.get_rank(self._group), distributed.get_world_size(self._group)
        if self.rank < 0:
            raise InvalidArgument("this rank is not in the group; only the ranks of the group meet")
        self._received: List[Any] = []  # what the library points to until the next round
        self.table = structures.loco_exchange(
            share=structures.SHARE(self._on_share), close=structures.CLOSE(lambda _: None)
        )

    def _on_share(self, _: object, __: object, ___: int, own: Any, every: Any, ranks: int) -> int:
        try:
            return self._share(own.contents, every, ranks)
        except BaseException as failure:
            return self._context.failed(failure)

    def _share(self, own: Any, every: Any, ranks: int) -> int:
        torch = self._torch
        sizes = self._gather(torch.tensor([own.size], dtype=torch.int64))
        if sizes is None:
            return _CANCELLED
        lengths = [int(size) for size in sizes]
        payload = torch.zeros(max(lengths), dtype=torch.uint8)
        payload[: own.size] = torch.frombuffer((ctypes.c_uint8 * own.size).from_address(own.data), dtype=torch.uint8)
        received = self._gather(payload)
        if received is None:
            return _CANCELLED
        self._received = received
        for rank in range(ranks):
            every[rank].data, every[rank].size = self._received[rank].data_ptr(), lengths[rank]
        return 0

    def _gather(self, tensor: Any) -> Optional[List[Any]]:
        """That of each rank; None if a signal has ended the wait for others."""
        tensor = tensor.to(self._device)
        every = [self._torch.empty_like(tensor) for _ in range(self.ranks)]
        work = self._distributed.all_gather(every, tensor, group=self._group, async_op=True)
        while not work.is_completed():
            if self._context._cancelled.wait(0.0005):
                return None
        work.wait()
        return [one.cpu() for one in every]

    def close(self) -> None:
        self._received = []


class _Store:
    """weft_loco_exchange over a store, which is the library's own."""

    def __init__(self, outer: "Outer", context: Context, run: bytes, settings: Meeting) -> None:
        self.rank, self.ranks = settings.rank, settings.ranks
        self._store, self._owned = store_of(settings.store, settings.token, settings.ca_file)
        options = structures.loco_store_options()
        functions.loco_store_defaults(ctypes.byref(options))
        options.run, options.rank, options.ranks = run, settings.rank, settings.ranks
        options.key = outer._borrow(key_of(settings.key))
        for name in ("least", "deadline_seconds", "passing_seconds", "poll_seconds", "patience_seconds", "keep_rounds",
                     "snapshot_rounds"):
            if getattr(settings, name) is not None:
                setattr(options, name, getattr(settings, name))
        self.table = structures.loco_exchange()
        context.run(
            functions.loco_store_open, context.pointer, outer._borrow(self._store), ctypes.byref(options),
            ctypes.byref(self.table),
        )

    def close(self) -> None:
        if self.table.close:
            self.table.close(self.table.opaque)
            self.table = structures.loco_exchange()
        if self._owned:
            self._store.close()


def _parameters_of(model: Model) -> Mapping[str, Any]:
    if hasattr(model, "named_parameters"):
        return dict(model.named_parameters())
    if isinstance(model, Mapping):
        return model
    raise InvalidArgument(f"the weights are a torch module, or a mapping of names to tensors, not a {type(model).__name__}")


def _tensor_of(name: str, value: Any) -> structures.loco_tensor:
    """A weight where it lies; an error that says what to do if it cannot be used there."""
    if hasattr(value, "to_local"):
        raise UnsupportedError(
            UNSUPPORTED,
            f"parameter {name} is a DTensor; PULSELoCo is for ranks that hold whole parameters: let one rank of each "
            "replica hold the gathered masters and meet with the others of its kind",
        )
    device = str(getattr(value, "device", "cpu"))
    if device != "cpu":
        raise UnsupportedError(
            UNSUPPORTED,
            f"parameter {name} is on {device}; keep FP32 masters in the memory of the host, give those, and copy them "
            "to the device after each round",
        )
    memory = memory_of(name, value)
    if memory.dtype != F32:
        raise UnsupportedError(
            UNSUPPORTED,
            f"parameter {name} is {value.dtype}; PULSELoCo brings FP32 weights together: train model.float() under "
            "autocast, or give the FP32 masters as a mapping",
        )
    if memory.strides is not None:
        raise UnsupportedError(UNSUPPORTED, f"parameter {name} is not contiguous; give its contiguous() masters")
    count = 1
    for extent in memory.shape:
        count *= extent
    return structures.loco_tensor(name=name.encode(), data=memory.address or None, count=count)


class Outer(Handle):
    """The outer optimizer of one rank: Nesterov's momentum over what the ranks have learned on their own.

    `model` is a module, or a mapping of names to FP32 tensors in the memory of the host; they are read and set where they lie,
    by nobody else during a round. `exchange` is Distributed() if it is left out. The rank holds 8 bytes more for each weight,
    12 with momentum. `significant` bits of a sent value travel, 2 to 23; 0: all. With `grid`, 1 to 8, values are
    rounded to multiples of 2^(1 - grid) steps of the BF16 weight, and sent where they are not 0: fewer bytes, and less
    that waits; 3 is a good choice. `open` fires everywhere, which is DiLoCo, and `raw` then sends values as they are.

    With `overlap`, over a Meeting, payloads travel while the next steps are made: step() ends the round that it began
    `local_steps` before, and begins another. In between the weights are ahead of the consensus: by what it is expected to
    move, and by what this rank has learned since. After the last step, round() ends what was begun. It takes 4 bytes more
    for each weight.

    >>> import numpy, tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> weights = {"w": numpy.ones(1000, "float32")}
    >>> with Outer(weights, run="run-7", exchange=Meeting(place.name, rank=0, ranks=1), local_steps=2) as outer:
    ...     weights["w"][:10] += 0.5
    ...     first = outer.step()
    ...     weights["w"][:10] += 0.5
    ...     second = outer.step()
    >>> first, second.fired, second.included
    (None, 10, 1)
    >>> float(weights["w"][0]), float(weights["w"][10])
    (2.3299999237060547, 1.0)
    >>> place.cleanup()
    """

    _closing = "loco_destroy"
    _exchange: Union[None, _Collective, _Store] = None

    def __init__(
        self,
        model: Model,
        *,
        run: str,
        exchange: Optional[Exchange] = None,
        local_steps: int = 8,
        rate: float = 0.7,
        momentum: float = 0.9,
        significant: int = 0,
        grid: int = 0,
        open: bool = False,
        raw: bool = False,
        overlap: bool = False,
        threads: Optional[int] = None,
        progress: Progress = None,
    ) -> None:
        if local_steps < 1:
            raise InvalidArgument(f"local_steps is {local_steps}; a round needs at least one step")
        if overlap and not isinstance(exchange, Meeting):
            raise UnsupportedError(
                UNSUPPORTED,
                "rounds cannot overlap over torch.distributed, whose groups are used by the thread that trains; meet in a "
                "store: exchange=Meeting(…)",
            )
        super().__init__(Context(progress, threads))
        self._model = model
        self.local_steps = local_steps
        self._steps = 0  # since the last round, or since one was begun
        self._overlap, self._begun = overlap, False
        self.last: Optional[Round] = None
        context = self._context
        try:
            label = run.encode()
            tensors = [_tensor_of(name, value) for name, value in _parameters_of(model).items()]
            self._addresses = {tensor.name.decode(): tensor.data or 0 for tensor in tensors}
            if isinstance(exchange, Meeting):
                self._exchange = _Store(self, context, label, exchange)
            else:
                self._exchange = _Collective(context, exchange or Distributed())
            options = structures.loco_options()
            functions.loco_defaults(ctypes.byref(options))
            options.run, options.rank, options.ranks = label, self._exchange.rank, self._exchange.ranks
            options.rate, options.momentum, options.significant = rate, momentum, significant
            options.grid, options.open, options.raw, options.overlap = grid, open, raw, overlap
            array = (structures.loco_tensor * len(tensors))(*tensors)
            context.run(
                functions.loco_create, context.pointer, ctypes.byref(options), array, len(tensors), ctypes.byref(self._handle)
            )
        except BaseException:
            self.close()
            raise

    def step(self) -> Optional[Round]:
        """To be called after each step of the inner optimizer; a round after every `local_steps` of them, and what it did. With
        overlap, what the round before it did."""
        self._steps += 1
        if self._steps < self.local_steps:
            return None
        if not self._overlap:
            return self.round()
        ended = self.round() if self._begun else None
        self.begin()
        return ended

    def begin(self) -> None:
        """With overlap: sends what this rank has learned, and returns while that travels. round() ends the round. Until then
        a state cannot be saved."""
        assert self._exchange is not None
        self._check()
        self._context.run(functions.loco_round_begin, self.handle, ctypes.byref(self._exchange.table))
        self._begun, self._steps = True, 0

    def round(self) -> Round:
        """Brings the ranks together now, or ends the round that was begun: the model then holds the consensus. If this fails in
        the exchange, call it again, without training in between unless rounds overlap. NotFoundError: the others are far
        ahead; catch_up()."""
        assert self._exchange is not None
        handle = self.handle
        self._check()
        stats = structures.loco_stats()
        self._context.run(functions.loco_round, handle, ctypes.byref(self._exchange.table), ctypes.byref(stats))
        if not self._begun:
            self._steps = 0
        self._begun = False
        fields = {field.name: getattr(stats, field.name) for field in dataclasses.fields(Round) if field.name != "rounds"}
        self.last = Round(rounds=self.rounds, **fields)
        logger.info(
            "round %d of %d ranks: sent %d of %d weights in %d bytes", self.rounds, self.last.included, self.last.fired,
            self.last.elements, self.last.sent,
        )
        return self.last

    def catch_up(self) -> int:
        """For a rank that comes back to a meeting: by how many rounds it has moved. What it has not sent goes with its next
        round."""
        assert self._exchange is not None
        self._check()
        moved = ctypes.c_uint64()
        self._begun = False
        self._context.run(functions.loco_catch_up, self.handle, ctypes.byref(self._exchange.table), ctypes.byref(moved))
        if moved.value:
            self._steps = 0
        return moved.value

    @property
    def rank(self) -> int:
        assert self._exchange is not None
        return self._exchange.rank

    @property
    def ranks(self) -> int:
        assert self._exchange is not None
        return self._exchange.ranks

    @property
    def rounds(self) -> int:
        """That are done."""
        return int(functions.loco_rounds(self.handle))

    @property
    def digest(self) -> str:
        """Of the consensus; equal on all ranks."""
        return str(functions.loco_digest(self.handle))

    @property
    def residual_energy(self) -> float:
        """The sum of the squares of what this rank has not sent yet."""
        return float(functions.loco_residual_energy(self.handle))

    @property
    def meeting(self) -> MeetingInfo:
        """What this rank has done in its meeting."""
        if not isinstance(self._exchange, _Store):
            raise error_of(UNSUPPORTED, "these ranks meet by torch.distributed, and in no store")
        if self._begun:
            raise error_of(BUSY, "a round was begun, and the meeting is at work on it; ask when round() has ended it")
        found = structures.loco_store_stats()
        functions.loco_store_describe(ctypes.byref(self._exchange.table), ctypes.byref(found))
        return MeetingInfo(**{field.name: getattr(found, field.name) for field in dataclasses.fields(MeetingInfo)})

    def save(
        self, path: Path, labels: Optional[Mapping[str, object]] = None, *, extra: Model = None, durable: bool = True
    ) -> None:
        """Writes the state of this rank, weights included: a file that appears whole or not at all. Every rank saves its own.
        `extra` are other tensors to go with it, such as those of the inner optimizer; `labels` texts."""
        self._check()
        pairs = texts({**(labels or {}), _STEPS: self._steps})
        tensors = None if extra is None else Tensors(self._context, extra, viewed=False)
        try:
            table = None if tensors is None else tensors.table
            self._context.run(functions.loco_save, self.handle, path_bytes(path), table, pairs, durable)
        finally:
            if tensors is not None:
                tensors.close()

    def load(self, path: Path, *keys: str, extra: Model = None) -> Dict[str, Optional[str]]:
        """Reads back what save() wrote, into the model and `extra`, for the same run, rank, settings and tensors; everything is
        checked before anything changes. Returns the labels that `keys` name."""
        self._check()
        found: Dict[str, Optional[str]] = {}

        def on_label(_: object, key: bytes, value: Optional[bytes]) -> None:
            found[key.decode()] = None if value is None else value.decode()

        wanted = [key.encode() for key in (*keys, _STEPS)]
        array = (ctypes.c_char_p * (len(wanted) + 1))(*wanted, None)
        tensors = None if extra is None else Tensors(self._context, extra, viewed=False)
        try:
            table = None if tensors is None else tensors.table
            self._context.run(
                functions.loco_load, self.handle, path_bytes(path), table, array, structures.LABEL(on_label), None
            )
        finally:
            if tensors is not None:
                tensors.close()
        self._steps, self._begun = int(found.pop(_STEPS, None) or 0), False
        return found

    def state_dict(self) -> Dict[str, Any]:
        """The same for torch.save: the bytes of such a file, as a tensor."""
        import torch

        with tempfile.TemporaryDirectory(prefix="weft-loco.") as place:
            path = os.path.join(place, "state")
            self.save(path, durable=False)
            with open(path, "rb") as file:
                return {"state": torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Reads that back, into the model too."""
        with tempfile.TemporaryDirectory(prefix="weft-loco.") as place:
            path = os.path.join(place, "state")
            with open(path, "wb") as file:
                file.write(state["state"].numpy().tobytes())
            self.load(path)

    def _check(self) -> None:
        """Weights that were given other memory would be passed over in silence."""
        now = _parameters_of(self._model)
        for name, address in self._addresses.items():
            if name not in now or memory_of(name, now[name]).address != address:
                raise StaleError(
                    -100,
                    f"parameter {name} is no longer the memory that was opened; change weights in place, or close this and "
                    "open it with the new ones",
                )

    def _release(self) -> None:
        if self._exchange is not None:
            self._exchange.close()

    def _settings(self) -> str:
        return "closed" if self.closed else f"rank {self.rank} of {self.ranks} after {self.rounds} rounds"

    def __enter__(self) -> "Outer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Distributed", "Exchange", "Meeting", "MeetingInfo", "Outer", "Round"]
