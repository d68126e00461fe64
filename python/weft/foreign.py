# SPDX-License-Identifier: Apache-2.0
"""The deltas of other systems (doc/INTEROP.md), over weft/foreign.h: what lies in a place such as slime:/updates, each
of its versions as a patch, which apply and Transaction take, and the subscriber to such a place."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional

from . import _structures as structures
from ._signatures import functions
from .changes import Change, prepared_changes
from .context import Context, Progress
from .errors import UNSUPPORTED, InvalidArgument, NotFoundError, error_of
from .patches import Diff, Output, _diff_result, _output, _Sink, profile_number
from .subscriber import Follower, Subscriber, SubscriberInfo, _number_of
from .tensors import Model, Path, Tensors, is_path, pairs_of, path_bytes, text_bytes

__all__ = ["ForeignSubscriber", "Version", "patch", "versions"]


class Version(NamedTuple):
    """A version of a place: a delta from `base`, or, if it is `whole`, a checkpoint at `path`."""

    version: int
    base: int
    whole: bool
    path: str


def _open(
    context: Context, place: str, assume_base: bool, token: Optional[str] = None, ca_file: Optional[Path] = None
) -> ctypes.c_void_p:
    foreign = ctypes.c_void_p()
    store = structures.store_options(
        token=None if token is None else text_bytes(token), ca_file=None if ca_file is None else path_bytes(ca_file)
    )
    options = structures.foreign_options(
        assume_base=assume_base, store=ctypes.cast(ctypes.pointer(store), ctypes.c_void_p)
    )
    context.run(functions.foreign_open, context.pointer, text_bytes(place), ctypes.byref(options), ctypes.byref(foreign))
    return foreign


@contextlib.contextmanager
def _opened(context: Context, place: str, assume_base: bool) -> Iterator[ctypes.c_void_p]:
    foreign = _open(context, place, assume_base)
    try:
        yield foreign
    finally:
        functions.foreign_close(foreign)


def _listed(foreign: ctypes.c_void_p) -> List[Version]:
    rows = (functions.foreign_at(foreign, index).contents for index in range(functions.foreign_count(foreign)))
    return [Version(row.version, row.base, row.whole, row.path.decode(errors="surrogateescape")) for row in rows]


def versions(place: str) -> List[Version]:
    """What lies in a place, such as "slime:/updates", ascending; only what is complete."""
    with Context() as context, _opened(context, place, True) as foreign:
        return _listed(foreign)


def patch(
    place: str,
    base: Model,
    version: Optional[int] = None,
    out: Output = None,
    *,
    profile: str = "fast",
    assume_base: bool = False,
    threads: Optional[int] = None,
    progress: Progress = None,
) -> Diff:
    """The patch from `base`, a model at the version's base, to a version of the place (the newest delta if none is given).

    Every checksum that the format has is checked against the new state, and the base is left alone: give the patch to
    weft.apply, or to weft.Transaction to prepare and commit it. Formats that prove nothing need `assume_base`: if the base
    is another one then, the result is wrong and nothing shows it.

        patch = weft.foreign.patch("slime:/updates", model, 7)
        with weft.Transaction(model, patch) as change:
            change.commit()
    """
    start = time.perf_counter()
    number = profile_number(profile)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(Context(progress, threads))
        foreign = stack.enter_context(_opened(context, place, assume_base))
        deltas = [row.version for row in _listed(foreign) if not row.whole]
        if version is None and not deltas:
            raise NotFoundError(-102, f"{place} has no delta")
        tensors = stack.enter_context(Tensors(context, base))
        step = ctypes.c_void_p()
        wanted = deltas[-1] if version is None else version
        context.run(functions.foreign_read, foreign, wanted, tensors.view, ctypes.byref(step))
        stack.callback(functions.foreign_step_destroy, step)
        count = ctypes.c_size_t()
        changes = functions.foreign_step_changes(step, ctypes.byref(count))
        options = structures.diff_options(
            profile=number,
            labels=functions.foreign_step_labels(step),
            changes=changes,
            change_count=count.value,
        )
        file = stack.enter_context(_output(out))
        sink, stats = _Sink(context, file), structures.diff_stats()
        context.run(
            functions.diff, context.pointer, tensors.view, None, ctypes.byref(options), ctypes.byref(sink.structure),
            ctypes.byref(stats),
        )
    return _diff_result(stats, time.perf_counter() - start, sink, out, None)


class ForeignSubscriber(Subscriber):
    """What weft.Subscriber gives for a place such as "slime:/updates": it follows the deltas of another system.

    Tensors in memory, all of the model, or a checkpoint on disk must hold a version of the place to begin with: `version`,
    or else what is remembered beside the checkpoint, or else the oldest base. Each delta is read, checked and proven before
    a commit changes anything. Formats that do not say which weights they belong to need `assume_base`: if the base is
    another one then, the result is wrong and nothing shows it. Labels say where a version came from. What is about a run
    of weft (keys, reports, layouts, repair) does not exist here."""

    _closing = "foreign_replica_close"
    _functions = "foreign_replica"
    _place = ""

    def __init__(
        self,
        store: Any,
        model: Model,
        *,
        assume_base: bool = False,
        version: Optional[int] = None,
        durable: bool = False,
        poll_seconds: float = 0,
        stage_bytes: int = 0,
        token: Optional[str] = None,
        ca_file: Optional[Path] = None,
        threads: Optional[int] = None,
        progress: Progress = None,
        **others: Any,
    ) -> None:
        for name in others:
            raise InvalidArgument(f"{name} is about a run of weft, and {store} is a place of another system; leave it out")
        Follower.__init__(self, Context(progress, threads, stage_bytes))
        context = self._context
        self._place = store
        self._foreign = ctypes.c_void_p()
        self._steps = 0
        self._poll_seconds = poll_seconds or Follower._poll_seconds
        options = structures.foreign_replica_options(
            durable=durable, version=_number_of(version), version_given=version is not None, poll_seconds=poll_seconds
        )
        try:
            self._foreign = _open(context, store, assume_base, token, ca_file)
            out = ctypes.byref(self._handle)
            if is_path(model):
                context.run(
                    functions.foreign_replica_open, context.pointer, self._foreign, path_bytes(model),
                    ctypes.byref(options), out,
                )
            else:
                self._tensors = Tensors(context, model)
                context.run(
                    functions.foreign_replica_open_view, context.pointer, self._foreign, self._tensors.view,
                    ctypes.byref(options), out,
                )
            self._describe()
        except BaseException:
            self.close()
            raise

    def commit(self) -> None:
        """Puts the prepared step in place: the pause."""
        before = self.version
        super().commit()
        self._steps += self.version != before

    def pull(self, version: Optional[int] = None) -> SubscriberInfo:
        """Goes to `version`, or the newest that something leads to, delta by delta."""
        self.wait(0)
        while self.prepare(version):
            self.commit()
        self.commit()
        return self.info

    def changes(self, batch: int = 0) -> Iterator[Change]:
        if self._tensors is None:
            raise error_of(UNSUPPORTED, "the changes of a checkpoint on disk cannot be seen; follow into tensors in memory")
        changes = functions.foreign_replica_changes
        return iter(prepared_changes(self._context, changes, self.handle, self._tensors, batch))

    def _describe(self) -> None:
        handle = self.handle
        with self._context.idle() as idle:
            if idle:
                found = structures.foreign_replica_info()
                functions.foreign_replica_describe(handle, ctypes.byref(found))
                listed = _listed(self._foreign)
                self._info = SubscriberInfo(
                    version=found.version, digest=str(found.digest), newest=max(row.version for row in listed) if listed else 0,
                    epoch=0, sequence=0, fetched_bytes=0, requests=0, patches=self._steps, anchors=0, healed=0,
                    pause_seconds=found.pause_seconds, milliseconds=0,
                )
                self._labels = pairs_of(functions.foreign_replica_labels(handle, False))

    def _labels_ahead(self, version: int) -> Mapping[str, str]:
        return pairs_of(functions.foreign_replica_labels(self.handle, True))

    def _release(self) -> None:
        Follower._release(self)
        if self._foreign:
            functions.foreign_close(self._foreign)
            self._foreign = ctypes.c_void_p()

    def _settings(self) -> str:
        return "closed" if self.closed else f"{self._place} at version {self.version}"
