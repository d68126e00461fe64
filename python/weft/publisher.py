# SPDX-License-Identifier: Apache-2.0
"""Publishing: each new state of a model goes into a store as a patch; over weft/sync.h."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any, Callable, Mapping, Optional, Tuple

from . import _structures as structures
from ._signatures import functions
from .changes import Changes, change_array
from .context import Context, Handle, Progress, logger
from .errors import ConflictError, Error, InvalidArgument
from .keys import KeyLike, key_of
from .patches import profile_number
from .store import StoreLike, store_of
from .tensors import Cuts, Layout, Model, Path, Tensors, cut_array, path_bytes, texts


@dataclasses.dataclass(frozen=True)
class Published:
    """A version that is acknowledged: it stays in the history. Its phases add up to `seconds`."""

    version: int
    epoch: int
    changed: int  # units that differ; of a version that came as an anchor only, all
    total: int
    dense_bytes: int  # of the model
    patch_bytes: int
    bytes: int  # uploaded, all objects together
    requests: int
    base: str  # digests
    digest: str
    anchored: bool  # it came as an anchor, because there was nothing to differ from
    anchor_bytes: int  # of an anchor that was written besides
    seconds: float
    diff_seconds: float  # diff and encode; the upload runs beside it
    upload_seconds: float  # the rest of the upload
    head_seconds: float  # until the version was visible
    waited_seconds: float  # before all that, for followers that were too far behind
    overtaken: bool  # and some of them still were
    format: int  # that the run is written in

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds by phase."""
        return {"wait": self.waited_seconds, "diff": self.diff_seconds, "upload": self.upload_seconds,
                "head": self.head_seconds}


class Publisher(Handle):
    """Publishes what a model holds, version by version, into a run that it takes over or begins.

    `model` is a torch module, a mapping of names to tensors, or a path. Its tensors are read where they lie: change them in
    place. `dtype=bfloat16` publishes FP32 tensors as BF16, as for masters. `key` signs. Every earlier publisher of the run
    is fenced: its next publish is a ConflictError.

    >>> import numpy, tempfile, weft
    >>> place = tempfile.TemporaryDirectory()
    >>> model = {"w": numpy.zeros(1000, "float32")}
    >>> with weft.Publisher(place.name, model, dtype="bfloat16") as publisher:
    ...     first = publisher.publish(step=1)
    ...     model["w"][3] = 1.5
    ...     second = publisher.publish(step=2)
    >>> second.version, second.changed, second.dense_bytes
    (2, 1, 2000)
    >>> place.cleanup()

    `profile="smallest"` takes fewer bytes than `small` for followers that take every version: both sides remember what
    changed lately. Parts, anchors and leaps are coded as `small` then. `format=1` begins a run that weft 0.1 reads, `format=2`
    takes a run of format 1 on to what only later ones read; else a run stays as it is.

    Several processes that each hold a part of the model publish together: `part=(index, count)`, with a `layout` that says
    which slices of the checkpoint the tensors are, and `checkpoint` with the whole model's names, dtypes and shapes.
    `cuts` are then needed where tensors are split; weft/sync.h has the rules. Else they are those of followers that hold parts
    of tensors. Such followers can announce theirs, and a publisher of its own picks them up, unless `announced_cuts` is false.
    """

    _closing = "publisher_close"
    _tensors: Optional[Tensors] = None
    _whole: Optional[Tensors] = None
    _owned = False

    def __init__(
        self,
        store: StoreLike,
        model: Model,
        *,
        key: KeyLike = None,
        dtype: object = None,
        profile: str = "small",
        format: int = 0,
        cuts: Optional[Cuts] = None,
        announced_cuts: bool = True,
        bucket_bytes: int = 0,
        adopt: bool = False,
        anchor_ratio: float = 0,
        keep_anchors: int = 0,
        anchors_in_background: bool = True,
        gc_seconds: float = 0,
        keep_followers: bool = False,
        max_lag: int = 0,
        max_lag_seconds: float = 0,
        leaps: bool = True,
        leap_bytes: int = 0,
        whole: bool = False,
        mirror: Optional[Path] = None,
        spool: Optional[Path] = None,
        part: Tuple[int, int] = (0, 1),
        part_seconds: float = 0,
        layout: Layout = None,
        checkpoint: Model = None,
        token: Optional[str] = None,
        ca_file: Optional[Path] = None,
        threads: Optional[int] = None,
        progress: Progress = None,
    ) -> None:
        number = profile_number(profile)
        index, count = part
        if not 0 <= index < count:
            raise InvalidArgument(f"part {index} of {count} is none; parts count from 0")
        super().__init__(Context(progress, threads))
        context = self._context
        try:
            self._store, self._owned = store_of(store, token, ca_file)
            signing = key_of(key)
            if checkpoint is not None:
                self._whole = Tensors(context, checkpoint, viewed=False)
            self._tensors = Tensors(context, model, dtype=dtype, layout=layout, checkpoint=self._whole)
            array, cut_count = cut_array(cuts)
            options = structures.publisher_options(
                profile=number,
                format=format,
                bucket_bytes=bucket_bytes,
                cuts=array,
                cut_count=cut_count,
                container=self._tensors.container,
                key=self._borrow(signing),
                adopt=adopt,
                anchor_ratio=anchor_ratio,
                keep_anchors=keep_anchors,
                gc_seconds=gc_seconds,
                keep_followers=keep_followers,
                max_lag=max_lag,
                max_lag_seconds=max_lag_seconds,
                whole=whole,
                no_leaps=not leaps,
                leap_bytes=leap_bytes,
                mirror_path=None if mirror is None else path_bytes(mirror),
                spool_directory=None if spool is None else path_bytes(spool),
                anchors_in_background=anchors_in_background and count == 1,
                part_index=index,
                part_count=count,
                part_seconds=part_seconds,
                no_announced_cuts=not announced_cuts,
            )
            self._kept += [options, array]
            context.run(
                functions.publisher_open, context.pointer, self._borrow(self._store), self._tensors.view,
                ctypes.byref(options), ctypes.byref(self._handle),
            )
        except BaseException:
            self.close()
            raise
        logger.debug("publishing to %s from version %d on, epoch %d", self._store.url, self.version, self.epoch)

    def publish(self, labels: Optional[Mapping[str, object]] = None, /, **named: object) -> Published:
        """Publishes what the model holds now, which must not change meanwhile. Labels, such as step=42, travel with the
        version. If this fails, nothing was published, and the next call publishes what the model holds then."""
        assert self._tensors is not None
        handle = self.handle
        self._tensors.check(added=True)
        return self._publish(functions.publisher_publish, handle, texts({**(labels or {}), **named}))

    def publish_changes(
        self, changes: Changes, labels: Optional[Mapping[str, object]] = None, /, **named: object
    ) -> Published:
        """Publishes the version before with these changes, {name: (positions, values)}, and does not read the model: for who
        knows what has changed. All of it must be given: what is left out stays as it was, until a publish() compares.
        Positions count as if the tensor were flat, and ascend; values are in the published dtype, or FP32 for BF16. After a
        failure, give the same again with what has changed since. NotFoundError: nothing is published yet; publish() first.

        >>> import numpy, tempfile, weft
        >>> place = tempfile.TemporaryDirectory()
        >>> with weft.Publisher(place.name, {"w": numpy.zeros((10, 10), "float32")}) as publisher:
        ...     _ = publisher.publish()
        ...     publisher.publish_changes({"w": ([3, 14], numpy.float32([1.5, 2.5]))}, step=2).changed
        2
        >>> place.cleanup()
        """
        assert self._tensors is not None
        handle = self.handle
        array, kept = change_array(self._tensors, changes)
        labelled = texts({**(labels or {}), **named})
        published = self._publish(functions.publisher_publish_changes, handle, array, len(changes), labelled)
        kept.clear()
        return published

    def _publish(self, function: Callable[..., int], *arguments: Any) -> Published:
        result = structures.publish_result()
        try:
            self._context.run(function, *arguments, ctypes.byref(result))
        except ConflictError:
            logger.warning("another publisher has taken over %s", self._store.url)
            raise
        published = _published(result)
        logger.info(
            "version %d: %d of %d changed, %d bytes in %.3f s",
            published.version, published.changed, published.total, published.bytes, published.seconds,
        )
        return published

    def anchor(self) -> int:
        """Writes an anchor of the newest version now, unless it has one; its bytes."""
        written = ctypes.c_uint64()
        self._context.run(functions.publisher_anchor, self.handle, ctypes.byref(written))
        return written.value

    def settle(self) -> None:
        """Waits for anchors in the background; raises if the last one failed."""
        self._context.run(functions.publisher_settle, self.handle)

    @property
    def version(self) -> int:
        """The newest; 0 if nothing is published yet."""
        return int(functions.publisher_version(self.handle))

    @property
    def epoch(self) -> int:
        return int(functions.publisher_epoch(self.handle))

    @property
    def run(self) -> str:
        """The name of the run."""
        return str(functions.publisher_run(self.handle).decode())

    def close(self) -> None:
        """Waits for anchors in the background, which Ctrl-C ends, and gives back everything. What failed there is logged."""
        try:
            if not self.closed and self._process == os.getpid():
                self.settle()
        except Error as error:
            logger.warning("%s", error)
        finally:
            super().close()

    def _release(self) -> None:
        for tensors in (self._tensors, self._whole):
            if tensors is not None:
                tensors.close()
        if self._owned:
            self._store.close()

    def _settings(self) -> str:
        return "closed" if self.closed else f"{self._store.url} at version {self.version}"

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _published(result: structures.publish_result) -> Published:
    fields = {field.name for field in dataclasses.fields(Published)} - {"bytes", "base", "digest"}
    return Published(
        **{name: getattr(result, name) for name in fields},
        bytes=result.uploaded_bytes,
        base=str(result.base),
        digest=str(result.digest),
    )
