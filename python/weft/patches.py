# SPDX-License-Identifier: Apache-2.0
"""What changed between two states: diff, apply, merge, inspect, digest, verify; over weft/patch.h.

A model is a path of safetensors (a file, or a directory as Hugging Face writes it), a mapping of names to numpy
arrays or torch tensors, or a torch module. A patch is a path, bytes, or what diff and merge give back.

>>> import numpy, weft
>>> old = {"w": numpy.zeros(1000, "float32")}
>>> new = {"w": numpy.zeros(1000, "float32")}
>>> new["w"][7] = 1
>>> patch = weft.diff(old, new, labels={"step": 42})
>>> patch.changed, patch.total
(1, 1000)
>>> weft.inspect(patch).labels
{'step': '42'}
>>> weft.apply(old, patch).digest == weft.digest(new)
True
>>> float(old["w"][7])
1.0
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import tempfile
import time
from typing import Any, BinaryIO, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _structures as structures
from ._signatures import functions
from .context import MORE, Context, Handle, Progress
from .errors import BaseMismatch, DigestMismatch, InvalidArgument
from .tensors import Cuts, Model, Path, Tensors, cut_array, is_path, path_bytes, texts

PROFILES = {"fast": 0, "small": 1, "smallest": 2}
FATES = ("kept", "added", "removed", "replaced")
CODINGS = {
    1: "fast",
    2: "small",
    3: "difference",
    4: "values",
    5: "packed steps",
    6: "packed values",
    7: "rice steps",
    8: "smallest",
}

Output = Union[None, Path, BinaryIO]


@dataclasses.dataclass(frozen=True)
class Diff:
    """What diff and merge made. `data` has the bytes of the patch, unless they went to `path` or a file."""

    changed: int  # units that differ, and all units of added or replaced tensors
    total: int  # units in the new state
    dense_bytes: int  # of the new state
    patch_bytes: int
    buckets: int
    base: str  # digests
    result: str
    seconds: float
    data: Optional[bytes] = dataclasses.field(default=None, repr=False)
    path: Optional[str] = None
    inverse: Optional[bytes] = dataclasses.field(default=None, repr=False)


Patch = Union[Path, bytes, bytearray, memoryview, Diff]


@dataclasses.dataclass(frozen=True)
class Applied:
    """Where apply has led to."""

    digest: str
    patches: int
    changed: int
    patch_bytes: int
    seconds: float
    pause_seconds: Optional[float] = None  # of live tensors: how long they were being written


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    name: str
    dtype: str
    shape: Tuple[int, ...]
    bytes: int
    fate: str = "kept"  # or added, removed, replaced


@dataclasses.dataclass(frozen=True)
class BucketInfo:
    coding: str
    offset: int
    bytes: int
    units: int
    changed: int
    first_tensor: str
    last_tensor: str


@dataclasses.dataclass(frozen=True)
class PatchInfo:
    """What a patch says of itself."""

    version: int  # of the format
    profile: str
    bytes: int
    changed: int
    total: int
    dense_bytes: int
    base: str
    result: str
    added: int
    removed: int
    replaced: int
    labels: Mapping[str, str]
    tensors: Sequence[TensorInfo] = dataclasses.field(repr=False)
    bucket_count: int
    buckets: Sequence[BucketInfo] = dataclasses.field(default=(), repr=False)
    recalls: int = 0  # versions before it that it was coded with, of the profile smallest


@dataclasses.dataclass(frozen=True)
class Verified:
    """What verify found. `state` is base, result, or both, of the patch that was given."""

    digest: str
    state: Optional[str] = None
    buckets: int = 0  # of the patch, all checked


def profile_number(profile: str) -> int:
    if profile not in PROFILES:
        raise InvalidArgument(f"the profile is fast, small or (of a publisher) smallest, not {profile!r}")
    return PROFILES[profile]


def tensor_info(tensor: Any, fate: int = 0) -> TensorInfo:
    return TensorInfo(
        name=tensor.name.decode(),
        dtype=functions.dtype_name(tensor.dtype).decode(),
        shape=tuple(tensor.shape[: tensor.rank]),
        bytes=tensor.bytes,
        fate=FATES[fate],
    )


# ---- where patches go, and come from ----


class _Sink:
    """Takes the bytes of a patch, in memory or in a file."""

    def __init__(self, context: Context, file: Optional[BinaryIO]) -> None:
        self._context = context
        self._file = file
        self.memory = bytearray()
        self._callback = structures.WRITE(self._write)
        self.structure = structures.sink(write=self._callback)

    def _write(self, _: object, data: int, size: int) -> int:
        try:
            view = memoryview((ctypes.c_char * size).from_address(data))
            if self._file is None:
                self.memory += view
            else:
                self._file.write(view)
            return 0
        except BaseException as failure:
            return self._context.failed(failure)


@contextlib.contextmanager
def _output(out: Output) -> Iterator[Optional[BinaryIO]]:
    """A file to write to; a path appears when all is written, or not at all."""
    if out is None or not is_path(out):
        yield out  # type: ignore[misc]
        return
    path = os.fspath(out)  # type: ignore[arg-type]
    descriptor, name = tempfile.mkstemp(prefix=".weft-", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _bytes_of(patch: Patch) -> "tuple[Any, int, int]":
    """An object that holds the bytes of a patch in memory, where they begin, and how many there are. A file is mapped."""
    if isinstance(patch, Diff):
        if patch.data is None and patch.path is None:
            raise InvalidArgument("this patch went into a file of the caller's; give its path or its bytes")
        return _bytes_of(patch.data if patch.data is not None else str(patch.path))
    if is_path(patch):
        import mmap

        with open(patch, "rb") as file:  # type: ignore[arg-type]
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return b"", 0, 0
            # A private mapping can be written to, which ctypes needs to find where it lies; nobody does.
            mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        holder = (ctypes.c_char * size).from_buffer(mapped)
        return holder, ctypes.addressof(holder), size
    data = bytes(patch)  # type: ignore[arg-type]
    return data, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data)


class _Patches:
    """Patches, opened."""

    def __init__(self, context: Context, patches: Sequence[Patch]) -> None:
        self._holders: List[Any] = []
        self.handles: List[ctypes.c_void_p] = []
        self.infos: List[Any] = []
        try:
            for patch in patches:
                holder, address, size = _bytes_of(patch)
                self._holders.append(holder)
                source = structures.source(memory=address or None, size=size)
                if not address:
                    source.memory = ctypes.cast(ctypes.c_char_p(b""), ctypes.c_void_p)
                handle = ctypes.c_void_p()
                context.call(functions.patch_open, context.pointer, ctypes.byref(source), ctypes.byref(handle))
                self.handles.append(handle)
                info = structures.patch_info()
                functions.patch_describe(handle, ctypes.byref(info))
                self.infos.append(info)
        except BaseException:
            self.close()
            raise

    @property
    def array(self) -> Any:
        return (ctypes.c_void_p * len(self.handles))(*(handle.value for handle in self.handles))

    def close(self) -> None:
        for handle in self.handles:
            functions.patch_close(handle)
        self.handles.clear()
        self._holders.clear()

    def __enter__(self) -> "_Patches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _list(patches: Union[Patch, Sequence[Patch]]) -> List[Patch]:
    if isinstance(patches, (list, tuple)):
        return list(patches)
    return [patches]  # type: ignore[list-item]


# ---- making patches ----


def _diff_result(stats: Any, seconds: float, sink: _Sink, out: Output, inverse: Optional[_Sink]) -> Diff:
    return Diff(
        changed=stats.changed,
        total=stats.total,
        dense_bytes=stats.dense_bytes,
        patch_bytes=stats.patch_bytes,
        buckets=stats.buckets,
        base=str(stats.base),
        result=str(stats.result),
        seconds=seconds,
        data=bytes(sink.memory) if out is None else None,
        path=os.fspath(out) if is_path(out) else None,  # type: ignore[arg-type]
        inverse=bytes(inverse.memory) if inverse is not None else None,
    )


def diff(
    base: Model,
    new: Model,
    out: Output = None,
    *,
    profile: str = "small",
    labels: Optional[Mapping[str, object]] = None,
    cuts: Optional[Cuts] = None,
    bucket_bytes: int = 0,
    dtype: object = None,
    inverse: bool = False,
    threads: Optional[int] = None,
    progress: Progress = None,
) -> Diff:
    """The patch from `base` to `new`: into memory, or into `out`, a path or a binary file.

    Between two paths the patch gives back the new checkpoint byte for byte, headers and all. `profile` is "small", or
    "fast", which is larger and made faster. `cuts` says where tensors are split over workers: `{"*.o_proj.weight":
    (1, 2)}` cuts dimension 1 into 2 parts. `dtype=bfloat16` takes FP32 tensors in memory for masters of BF16 weights.
    With `inverse`, the way back is made too.

    >>> import numpy, weft
    >>> patch = weft.diff({"w": numpy.zeros(8, "int64")}, {"w": numpy.arange(8)}, inverse=True)
    >>> back = {"w": numpy.arange(8)}
    >>> _ = weft.apply(back, patch.inverse)
    >>> back["w"].tolist()
    [0, 0, 0, 0, 0, 0, 0, 0]
    """
    start = time.perf_counter()
    number = profile_number(profile)
    array, count = cut_array(cuts)
    with Context(progress, threads) as context, Tensors(context, base, dtype=None if is_path(base) else dtype) as before:
        with Tensors(context, new, dtype=None if is_path(new) else dtype) as after, _output(out) as file:
            both = before.container is not None and after.container is not None
            sink = _Sink(context, file)
            backward = _Sink(context, None) if inverse else None
            options = structures.diff_options(
                profile=number,
                bucket_bytes=bucket_bytes,
                cuts=array,
                cut_count=count,
                base_container=before.container if both else None,
                new_container=after.container if both else None,
                labels=texts(labels),
                inverse=ctypes.pointer(backward.structure) if backward else None,
            )
            stats = structures.diff_stats()
            context.run(
                functions.diff, context.pointer, before.view, after.view, ctypes.byref(options),
                ctypes.byref(sink.structure), ctypes.byref(stats),
            )
    return _diff_result(stats, time.perf_counter() - start, sink, out, backward)


def merge(
    patches: Sequence[Patch],
    out: Output = None,
    *,
    base: Model = None,
    profile: str = "small",
    labels: Optional[Mapping[str, object]] = None,
    dtype: object = None,
    threads: Optional[int] = None,
    progress: Progress = None,
) -> Diff:
    """One patch that does what `patches` do in order. `base`, the first one's base, is needed unless all are "fast".

    >>> import numpy, weft
    >>> states = [{"w": numpy.full(4, n, "uint8")} for n in range(3)]
    >>> steps = [weft.diff(old, new) for old, new in zip(states, states[1:])]
    >>> whole = weft.merge(steps, base=states[0])
    >>> whole.base == weft.digest(states[0]) and whole.result == weft.digest(states[2])
    True
    """
    start = time.perf_counter()
    number = profile_number(profile)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(Context(progress, threads))
        opened = stack.enter_context(_Patches(context, _list(patches)))
        view = None
        if base is not None:
            view = stack.enter_context(Tensors(context, base, dtype=None if is_path(base) else dtype)).view
        sink = _Sink(context, stack.enter_context(_output(out)))
        options = structures.merge_options(profile=number, base=view, labels=texts(labels))
        stats = structures.diff_stats()
        context.run(
            functions.merge, context.pointer, opened.array, len(opened.handles), ctypes.byref(options),
            ctypes.byref(sink.structure), ctypes.byref(stats),
        )
    return _diff_result(stats, time.perf_counter() - start, sink, out, None)


# ---- applying them ----


class Transaction(Handle):
    """Brings live tensors from a patch's base to its result: all of it, or nothing.

    `with` prepares: everything is decoded and proven, and the tensors may be in use. commit() writes what changed; that
    is the pause. What is not committed at the end is dropped. An exception in the block takes a commit back.

    >>> import numpy, weft
    >>> weights = {"w": numpy.zeros(4, "uint8")}
    >>> patch = weft.diff(weights, {"w": numpy.arange(4, dtype="uint8")})
    >>> with weft.Transaction(weights, patch) as change:
    ...     change.commit()
    >>> weights["w"]
    array([0, 1, 2, 3], dtype=uint8)
    """

    _closing = "apply_destroy"

    def __init__(
        self,
        target: Model,
        patch: Patch,
        *,
        dtype: object = None,
        threads: Optional[int] = None,
        stage_bytes: int = 0,
        progress: Progress = None,
    ) -> None:
        super().__init__(Context(progress, threads, stage_bytes))
        self._tensors: Optional[Tensors] = None
        self._patches: Optional[_Patches] = None
        self._sums = ctypes.c_void_p()
        self._more = False
        self._touched = False
        if is_path(target):
            raise InvalidArgument("a transaction is for tensors in memory; weft.apply changes a checkpoint in place")
        context = self._context
        try:
            self._tensors = Tensors(context, target, dtype=dtype)
            self._patches = _Patches(context, [patch])
            context.run(functions.sums_compute, context.pointer, self._tensors.view, ctypes.byref(self._sums))
            context.call(
                functions.apply_create, context.pointer, self._patches.handles[0], self._tensors.view, self._sums,
                ctypes.byref(self._handle),
            )
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """Decodes and proves everything, and touches nothing."""
        assert self._tensors is not None
        self._tensors.check()
        self._more = self._context.run(functions.apply_prepare, self.handle) == MORE

    def commit(self) -> None:
        """Writes the changes. If they exceed `stage_bytes`, they come in portions, each decoded after the one before."""
        self._context.call(functions.apply_commit, self.handle)
        self._touched = True
        while self._more:
            self.prepare()
            self._context.call(functions.apply_commit, self.handle)

    def rollback(self) -> None:
        """Drops what is prepared; after a commit, puts the old values back."""
        self._context.call(functions.apply_rollback, self.handle)
        self._touched = False

    @property
    def digest(self) -> str:
        """Of the tensors as they are now."""
        self.handle
        return str(functions.sums_digest(self._sums))

    @property
    def pause_seconds(self) -> float:
        """How long the last commit took."""
        stats = structures.apply_stats()
        functions.apply_describe(self.handle, ctypes.byref(stats))
        return float(stats.commit_seconds)

    def _release(self) -> None:
        if self._sums:
            functions.sums_destroy(self._sums)
            self._sums = ctypes.c_void_p()
        if self._patches is not None:
            self._patches.close()
        if self._tensors is not None:
            self._tensors.close()

    def __enter__(self) -> "Transaction":
        self.prepare()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is not None and self._touched:
                self.rollback()
        finally:
            self.close()


def apply(
    target: Model,
    patches: Union[Patch, Sequence[Patch]],
    out: Optional[Path] = None,
    *,
    dtype: object = None,
    durable: bool = False,
    threads: Optional[int] = None,
    progress: Progress = None,
) -> Applied:
    """Brings `target` forward by one or several patches in order.

    Live tensors are changed in place, each patch wholly or not at all; Transaction has the steps. A checkpoint on disk
    is changed in place, and survives a kill at any instant, or with `out` a new one is made, byte for byte the one that
    was diffed. `durable` also survives power loss.
    """
    start = time.perf_counter()
    chosen = _list(patches)
    if not is_path(target):
        if out is not None:
            raise InvalidArgument("tensors in memory are changed in place; weft.save writes them to a path")
        return _apply_live(target, chosen, dtype, threads, progress, start)
    with Context(progress, threads) as context, _Patches(context, chosen) as opened:
        digest = structures.digest()
        count = len(opened.handles)
        if out is None:
            name = path_bytes(target)
            context.call(functions.apply_recover, context.pointer, name, ctypes.byref(ctypes.c_bool()))
            context.run(
                functions.apply_in_place, context.pointer, name, opened.array, count, durable, ctypes.byref(digest)
            )
        else:
            with Tensors(context, target, viewed=False) as base:
                context.run(
                    functions.apply_rebuild, context.pointer, base.checkpoint, opened.array, count, path_bytes(out),
                    durable, ctypes.byref(digest),
                )
        changed, size = sum(info.changed for info in opened.infos), sum(info.bytes for info in opened.infos)
    return Applied(str(digest), count, changed, size, time.perf_counter() - start)


def _apply_live(
    target: Model, patches: Sequence[Patch], dtype: object, threads: Optional[int], progress: Progress, start: float
) -> Applied:
    changed = size = 0
    pause = 0.0
    state = ""
    for patch in patches:
        with Transaction(target, patch, dtype=dtype, threads=threads, progress=progress) as change:
            change.commit()
            assert change._patches is not None
            changed, size = changed + change._patches.infos[0].changed, size + change._patches.infos[0].bytes
            pause, state = pause + change.pause_seconds, change.digest
    return Applied(state, len(patches), changed, size, time.perf_counter() - start, pause)


# ---- looking at states and patches ----


def _labels_of(patch: ctypes.c_void_p) -> "dict[str, str]":
    keys = [functions.patch_label_key(patch, index) for index in range(functions.patch_label_count(patch))]
    return {key.decode(): functions.patch_label(patch, key).decode() for key in keys}


def inspect(patch: Patch, *, buckets: bool = False) -> PatchInfo:
    """What a patch says of itself; with `buckets`, each of them too, all of which are read and checked.

    >>> import numpy, weft
    >>> patch = weft.diff({"w": numpy.zeros(4, "uint8")}, {"w": numpy.ones(4, "uint8"), "v": numpy.ones(2)})
    >>> [(tensor.name, tensor.fate) for tensor in weft.inspect(patch).tensors]
    [('v', 'added'), ('w', 'kept')]
    """
    with Context() as context, _Patches(context, [patch]) as opened:
        handle, info = opened.handles[0], opened.infos[0]
        tensors = []
        for index in range(functions.patch_tensor_count(handle)):
            fate = ctypes.c_int()
            tensor = functions.patch_tensor(handle, index, ctypes.byref(fate)).contents
            tensors.append(tensor_info(tensor, fate.value))
        return PatchInfo(
            version=info.version,
            profile={number: name for name, number in PROFILES.items()}[info.profile],
            bytes=info.bytes,
            changed=info.changed,
            total=info.total,
            dense_bytes=info.dense_bytes,
            base=str(info.base),
            result=str(info.result),
            added=info.added,
            removed=info.removed,
            replaced=info.replaced,
            labels=_labels_of(handle),
            tensors=tensors,
            bucket_count=info.buckets,
            buckets=_buckets(context, opened, tensors) if buckets else (),
            recalls=info.recalls,
        )


def _buckets(context: Context, opened: _Patches, tensors: Sequence[TensorInfo]) -> List[BucketInfo]:
    found = []
    for index in range(opened.infos[0].buckets):
        bucket = structures.bucket_info()
        context.call(functions.patch_bucket, context.pointer, opened.handles[0], index, ctypes.byref(bucket))
        found.append(
            BucketInfo(
                coding=CODINGS[bucket.coding],
                offset=bucket.offset,
                bytes=bucket.bytes,
                units=bucket.units,
                changed=bucket.changed,
                first_tensor=tensors[bucket.first_tensor].name,
                last_tensor=tensors[bucket.last_tensor].name,
            )
        )
    return found


def digest(
    model: Model, *, dtype: object = None, threads: Optional[int] = None, progress: Progress = None
) -> str:
    """The digest that identifies a state: names, dtypes, shapes and every bit, whatever the order or the files.

    >>> import numpy, weft
    >>> weft.digest({"w": numpy.arange(4, dtype="float32")})
    'f38e7180b8bdb924c05e1388c945b888'
    """
    with Context(progress, threads) as context, Tensors(context, model, dtype=dtype) as tensors:
        return _digest(context, tensors)


def _digest(context: Context, tensors: Tensors) -> str:
    sums = ctypes.c_void_p()
    context.run(functions.sums_compute, context.pointer, tensors.view, ctypes.byref(sums))
    try:
        return str(functions.sums_digest(sums))
    finally:
        functions.sums_destroy(sums)


def verify(
    model: Model,
    patch: Optional[Patch] = None,
    *,
    digest: Optional[str] = None,
    dtype: object = None,
    threads: Optional[int] = None,
    progress: Progress = None,
) -> Verified:
    """Checks a model: that it can be read, and that it is the state with this digest, or that of the patch's base or result.
    Every bucket of the patch is checked too. DigestMismatch or BaseMismatch if it is not.

    >>> import numpy, weft
    >>> old, new = {"w": numpy.zeros(4)}, {"w": numpy.ones(4)}
    >>> weft.verify(new, weft.diff(old, new)).state
    'result'
    """
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(Context(progress, threads))
        tensors = stack.enter_context(Tensors(context, model, dtype=dtype))
        info, buckets = None, 0
        if patch is not None:
            opened = stack.enter_context(_Patches(context, [patch]))
            info = opened.infos[0]
            for index in range(info.buckets):
                bucket = structures.bucket_info()
                context.call(functions.patch_bucket, context.pointer, opened.handles[0], index, ctypes.byref(bucket))
            buckets = info.buckets
        found = _digest(context, tensors)
    if digest is not None and found != digest.lower():
        raise DigestMismatch(-302, f"the model is at {found}, not {digest}; find the patch that leads there, or reload it")
    if info is None:
        return Verified(found)
    states = [name for name, value in (("base", info.base), ("result", info.result)) if str(value) == found]
    if not states:
        raise BaseMismatch(-301, f"the model is neither the patch's base nor its result; find the one that starts from {found}")
    return Verified(found, " and ".join(states), buckets)


def save(
    model: Model,
    path: Path,
    *,
    shard_bytes: int = 0,
    metadata: Optional[Mapping[str, object]] = None,
    dtype: object = None,
    durable: bool = False,
) -> None:
    """Writes a model as safetensors: one file, or with `shard_bytes` a directory as Hugging Face has it.

    >>> import numpy, tempfile, weft
    >>> with tempfile.TemporaryDirectory() as place:
    ...     weft.save({"w": numpy.arange(4)}, place + "/model.safetensors")
    ...     weft.digest(place + "/model.safetensors") == weft.digest({"w": numpy.arange(4)})
    True
    """
    options = structures.write_options(shard_bytes=shard_bytes, metadata=texts(metadata), durable=durable)
    with Context() as context, Tensors(context, model, dtype=dtype) as tensors:
        context.run(functions.table_write, context.pointer, tensors.table, path_bytes(path), ctypes.byref(options))
