# SPDX-License-Identifier: Apache-2.0
"""Following: a replica is brought to each version that is published; over weft/sync.h.

prepare() fetches and proves while the weights are in use; commit() writes what changed, and only that is a pause.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import time
from typing import Any, AsyncIterator, Callable, Iterator, Mapping, Optional

from . import _structures as structures
from ._signatures import functions
from .changes import Change, prepared_changes
from .context import MORE, OK, Context, Handle, Progress, logger
from .errors import UNSUPPORTED, InvalidArgument, StaleError, error_of
from .keys import Key, KeyLike, key_of
from .store import StoreLike, store_of
from .tensors import Cuts, Layout, Model, Path, Tensors, cut_array, is_path, pairs_of, path_bytes

PHASES = ("wait", "fetch", "decode", "verify", "commit")
_EVERYTHING = 2**64 - 1
_FOREVER = 3600.0  # seconds of one wait of the library's, of those that make up an endless one


def _number_of(version: Optional[int]) -> int:
    """As C takes it: 0 for the newest."""
    if version is None:
        return 0
    if not 0 <= version < 2**64:  # C would take the rest of it
        raise InvalidArgument(f"there is no version {version}; versions are numbered from 1, and 0 or None is the newest")
    return version


@dataclasses.dataclass(frozen=True)
class Phase:
    """One phase of one step has ended: wait, fetch, decode, verify or commit."""

    name: str
    version: int
    seconds: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class SubscriberInfo:
    """Where a replica is, and how it came there."""

    version: int  # 0: it is at no published version
    digest: str
    newest: int  # that the store was last seen to have
    epoch: int
    sequence: int
    fetched_bytes: int
    requests: int
    patches: int
    anchors: int
    healed: int  # objects that were damaged or missing, and avoided
    pause_seconds: float  # the last commit
    milliseconds: int  # since 1970, when the replica's version was published


class Update:
    """A step that is prepared, and not yet in place.

    `version` is where the steps lead that begin here; if several are needed, `more` is true, and after the commit it is the
    published version that this one has led to. A step that is not committed is dropped when the next one is prepared.
    """

    def __init__(self, follower: "Follower", version: int, more: bool) -> None:
        self._follower = follower
        self.version = version
        self.more = more
        self.committed = False

    def commit(self) -> "Update":
        """Puts the step in place: the pause."""
        if self._follower._prepared is not self:
            raise StaleError(-100, f"version {self.version} is not what is prepared any more; commit the newest update")
        self._follower.commit()
        self.committed = True
        self.version = self._follower.version
        return self

    def changes(self, batch: int = 0) -> Iterator[Change]:
        """What the commit will change: see Subscriber.changes."""
        if self.committed or self._follower._prepared is not self:
            raise StaleError(-100, f"version {self.version} is not what is prepared any more; look before the commit")
        return self._follower.changes(batch)

    def rollback(self) -> None:
        """Drops the step; after a commit, restores the version before."""
        if self._follower._prepared is self:
            self._follower.rollback()
        self.committed = False

    @property
    def labels(self) -> Mapping[str, str]:
        """What was published with the version, such as its step. Before the commit this asks the store."""
        return self._follower.labels if self.committed else self._follower._labels_ahead(self.version)

    def __enter__(self) -> "Update":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.committed:
            self.rollback()

    def __repr__(self) -> str:
        return f"<weft.Update: version {self.version}, {'committed' if self.committed else 'prepared'}>"


class Follower(Handle):
    """What subscribers and members of groups have in common."""

    _functions: str  # the first word of their functions' names
    _tensors: Optional[Tensors] = None
    _executor: Optional[concurrent.futures.ThreadPoolExecutor] = None
    _poll_seconds = 0.1
    _prepared: Optional[Update] = None  # what the last prepare led to, if it came by follow() or next()

    def _function(self, verb: str) -> Any:
        return getattr(functions, f"{self._functions}_{verb}")

    @property
    def version(self) -> int:
        """Of the replica; 0 if it is at no published version."""
        raise NotImplementedError

    @property
    def labels(self) -> Mapping[str, str]:
        """Of the replica's version."""
        raise NotImplementedError

    def _labels_ahead(self, version: int) -> Mapping[str, str]:
        raise NotImplementedError

    def wait(self, timeout: Optional[float] = None) -> Optional[int]:
        """Waits until there is something newer; its version, or None if there was nothing within `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _FOREVER if end is None else max(0.0, end - time.monotonic())
            version = ctypes.c_uint64()
            status = self._context.run(self._function("wait"), self.handle, left, ctypes.byref(version))
            if status == OK:
                return version.value
            if end is not None and time.monotonic() >= end:
                return None

    def poll(self) -> Optional[int]:
        """The version to go to, if there is one now."""
        return self.wait(0)

    def prepare(self, version: Optional[int] = None) -> bool:
        """Fetches, checks and proves the way to `version`, or the newest, and leaves the weights alone. True if this is one step
        of several: commit it, and prepare again."""
        if self._tensors is not None:
            self._tensors.check()
        self._prepared = None
        return self._context.run(self._function("prepare"), self.handle, _number_of(version)) == MORE

    def _prepare(self, version: int) -> Update:
        self._prepared = update = Update(self, version, self.prepare())
        return update

    def commit(self) -> None:
        """Puts the prepared step in place: the pause."""
        self._context.call(self._function("commit"), self.handle)
        logger.info("%s: at version %d", type(self).__name__, self.version)

    def changes(self, batch: int = 0) -> Iterator[Change]:
        raise error_of(UNSUPPORTED, "members of a group do not show what is prepared; a subscriber does")

    def rollback(self) -> None:
        """Drops what is prepared. A subscriber to live memory restores the version before its last commit."""
        self._context.call(self._function("rollback"), self.handle)

    def verify(self) -> None:
        """Re-sums everything; DigestMismatch if somebody else has changed the weights."""
        self._context.run(self._function("verify"), self.handle)

    def follow(self, *, timeout: Optional[float] = None) -> "Iterator[Update]":
        """Yields each update when it is prepared, for the caller to commit; ends after `timeout` seconds without news.

            for update in subscriber.follow():
                with engine.paused():
                    update.commit()

        An update that is not committed is dropped, and the next one is a newer version."""
        declined = 0
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            version = self.wait(None if end is None else max(0.0, end - time.monotonic()))
            if version is None:
                return
            if version <= declined:
                if end is not None and time.monotonic() >= end:
                    return
                time.sleep(self._poll_seconds)
                continue
            more = True
            while more:
                update = self._prepare(version)
                more = update.more
                yield update
                if not update.committed:
                    update.rollback()
                    declined, more = version, False
            end = None if timeout is None else time.monotonic() + timeout

    async def next(self) -> Update:
        """The next update, prepared, while the event loop goes on. A thread of the subscriber's own waits and fetches."""
        self.handle  # of a closed subscriber there is no thread to start
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="weft")
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._next)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._context.cancel()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    def _next(self) -> Update:
        version = self.wait()
        assert version is not None
        return self._prepare(version)

    async def __aiter__(self) -> "AsyncIterator[Update]":
        while True:
            yield await self.next()

    def _release(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
        if self._tensors is not None:
            self._tensors.close()


class Subscriber(Follower):
    """Follows a run into live tensors, or into a checkpoint on disk if `model` is a path.

    `trust` is the public key that versions must be signed with. With a `layout`, live tensors are slices of the
    checkpoint's, fused, split or stacked. `empty` says that the tensors hold nothing yet, so that they are not read first.
    `name` is that of its reports to the fleet. `cuts` are announced with them: what a publisher must cut so that a replica
    that holds parts of tensors can take these alone (weft.layouts.cuts_for); a publisher picks them up. `state` is a file
    that keeps the newest head seen, across restarts.

    A `store` such as "slime:/updates" is a place of another system, whose deltas are followed in the same way:
    `assume_base` and `version` are for these (weft.foreign.ForeignSubscriber, and doc/INTEROP.md).

    >>> import numpy, tempfile, weft
    >>> place = tempfile.TemporaryDirectory()
    >>> with weft.Publisher(place.name, {"w": numpy.arange(4)}) as publisher:
    ...     _ = publisher.publish(step=42)
    >>> weights = {"w": numpy.zeros(4, "int64")}
    >>> with weft.Subscriber(place.name, weights) as subscriber:
    ...     for update in subscriber.follow(timeout=0):
    ...         print(update.commit().version, update.labels, weights["w"])
    1 {'step': '42'} [0 1 2 3]
    >>> place.cleanup()
    """

    _closing = "subscriber_close"
    _owned = False
    _trusted: Optional[Key] = None
    _info: SubscriberInfo
    _labels: Mapping[str, str]
    _functions = "subscriber"

    def __new__(cls, store: StoreLike, *_: Any, **__: Any) -> "Subscriber":
        if cls is Subscriber and isinstance(store, str):
            if store.startswith("arc3:") or functions.foreign_place(store.encode(errors="replace"), None):
                from .foreign import ForeignSubscriber  # which says why the first is refused

                return super().__new__(ForeignSubscriber)
        return super().__new__(cls)

    def __init__(
        self,
        store: StoreLike,
        model: Model,
        *,
        trust: KeyLike = None,
        layout: Layout = None,
        state: Optional[Path] = None,
        empty: bool = False,
        replace: bool = False,
        durable: bool = False,
        audit_bytes: Optional[int] = 0,
        poll_seconds: float = 0,
        fetch_bytes: int = 0,
        name: Optional[str] = None,
        report_seconds: float = 0,
        cuts: Optional[Cuts] = None,
        on_phase: Optional[Callable[[Phase], None]] = None,
        stage_bytes: int = 0,
        token: Optional[str] = None,
        ca_file: Optional[Path] = None,
        assume_base: bool = False,
        version: Optional[int] = None,
        threads: Optional[int] = None,
        progress: Progress = None,
    ) -> None:
        super().__init__(Context(progress, threads, stage_bytes))
        context = self._context
        self._poll_seconds = poll_seconds or Follower._poll_seconds
        try:
            if assume_base or version is not None:
                raise InvalidArgument("assume_base and version are for places of other systems, such as slime:/updates")
            self._store, self._owned = store_of(store, token, ca_file)
            self._trusted = key_of(trust)
            options = follow_options(
                self, self._trusted, state, audit_bytes, poll_seconds, fetch_bytes, name, report_seconds, on_phase
            )
            options.empty, options.replace, options.durable = empty, replace, durable
            array, options.cut_count = cut_array(cuts)
            if array is not None:
                options.cuts = array
            self._kept += [options, array]
            opened, out = self._borrow(self._store), ctypes.byref(self._handle)
            if is_path(model):
                if layout is not None:
                    raise InvalidArgument("a layout is for tensors in memory; a checkpoint on disk is held whole")
                context.run(
                    functions.subscriber_open_file, context.pointer, opened, path_bytes(model),
                    ctypes.byref(options), out,
                )
                self._describe()
                return
            self._tensors = Tensors(context, model, layout=layout, viewed=layout is None)
            if layout is None:
                context.run(
                    functions.subscriber_open, context.pointer, opened, self._tensors.view,
                    ctypes.byref(options), out,
                )
            else:
                context.run(
                    functions.subscriber_open_layout, context.pointer, opened, self._tensors.table,
                    self._tensors.layout, ctypes.byref(options), out,
                )
            self._describe()
        except BaseException:
            self.close()
            raise

    def pull(self, version: Optional[int] = None) -> SubscriberInfo:
        """Goes to `version`, or the newest, in as many steps as it takes."""
        if self._tensors is not None:
            self._tensors.check()
        self._prepared = None
        self._context.run(functions.subscriber_pull, self.handle, _number_of(version))
        return self.info

    def changes(self, batch: int = 0) -> Iterator[Change]:
        """What a commit of the prepared step will change in the tensors: name, units, old and new values, tensor by tensor, at
        most `batch` units at a time (0: 65536). All of it is copied first, some 12 bytes for each change of BF16.
        UnsupportedError where it cannot be seen: for a checkpoint on disk, for the first version into memory that held
        nothing, and for a step that `stage_bytes` cuts into portions.

            for name, units, old, new in update.changes():
                counts[name] += len(units)
        """
        if self._tensors is None:
            raise error_of(UNSUPPORTED, "the changes of a checkpoint on disk cannot be seen; follow into tensors in memory")
        return iter(prepared_changes(self._context, functions.subscriber_changes, self.handle, self._tensors, batch))

    @property
    def info(self) -> SubscriberInfo:
        """Where the replica is. While a call is under way on another thread, where it was before."""
        self._describe()
        return self._info

    @property
    def version(self) -> int:
        return self.info.version

    @property
    def labels(self) -> Mapping[str, str]:
        self._describe()
        return self._labels

    def _describe(self) -> None:
        handle = self.handle
        with self._context.idle() as idle:
            if idle:
                found = structures.subscriber_info()
                functions.subscriber_describe(handle, ctypes.byref(found))
                names = [field.name for field in dataclasses.fields(SubscriberInfo) if field.name != "digest"]
                fields = {name: getattr(found, name) for name in names}
                self._info = SubscriberInfo(**fields, digest=str(found.digest))
                self._labels = pairs_of(functions.subscriber_labels(handle))

    def _labels_ahead(self, version: int) -> Mapping[str, str]:
        from .runs import log

        for entry in log(self._store, trust=self._trusted):
            if entry.version <= version:
                return entry.labels
        return {}

    def _release(self) -> None:
        super()._release()
        if self._owned:
            self._store.close()

    def _settings(self) -> str:
        return "closed" if self.closed else f"{self._store.url} at version {self.version}"

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def follow_options(
    follower: Handle,
    trusted: Optional[Key],
    state: Optional[Path],
    audit_bytes: Optional[int],
    poll_seconds: float,
    fetch_bytes: int,
    name: Optional[str],
    report_seconds: float,
    on_phase: Optional[Callable[[Phase], None]],
) -> structures.subscriber_options:
    """What subscribers and groups are told. The structure keeps the callback alive."""

    def phase(_: object, number: int, version: int, seconds: float, size: int) -> None:
        try:
            if on_phase is not None:
                on_phase(Phase(PHASES[number], version, seconds, size))
        except BaseException as failure:
            follower._context.failed(failure)

    return structures.subscriber_options(
        trusted=follower._borrow(trusted),
        state_path=None if state is None else path_bytes(state),
        audit_bytes=_EVERYTHING if audit_bytes is None else audit_bytes,
        poll_seconds=poll_seconds,
        fetch_bytes=fetch_bytes,
        phase=structures.PHASE(phase) if on_phase is not None else structures.PHASE(),
        report_name=None if name is None else name.encode(),
        report_seconds=report_seconds,
    )
