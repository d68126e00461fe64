# SPDX-License-Identifier: Apache-2.0
"""Groups: the tensor-parallel ranks of one engine commit the same version together, or not at all; over weft/sync.h.

They meet in a directory of a memory file system, such as /dev/shm/engine. One process or thread leads; each rank is
a member.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import time
from typing import Any, Dict, Mapping, Optional

from . import _structures as structures
from ._signatures import functions
from .context import OK, Context, Handle, Progress, logger
from .errors import UNSUPPORTED, AbortedError, Cancelled, Error, error_of
from .keys import KeyLike, key_of
from .store import StoreLike, store_of
from .subscriber import Follower, follow_options
from .tensors import Layout, Model, Path, Tensors, path_bytes

_SLICE = 0.5  # seconds of one call of a leader's


@dataclasses.dataclass(frozen=True)
class GroupInfo:
    """Where a group is."""

    version: int  # 0: none yet
    digest: str
    newest: int  # that the store was last seen to have
    offered: int  # the version that is being voted on, or 0
    present: int  # ranks that are there
    committed: int
    aborted: int
    step_bytes: int
    fetched_bytes: int
    requests: int
    milliseconds: int


@dataclasses.dataclass(frozen=True)
class MemberInfo:
    """Where a rank is."""

    version: int
    digest: str  # of the whole model, whatever the rank holds of it
    rank: int
    committed: int
    aborted: int
    pause_seconds: float
    vote_seconds: float
    milliseconds: int


def _fields(kind: Any, found: Any) -> Dict[str, Any]:
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(kind)}
    fields["digest"] = str(found.digest)
    return fields


class Group(Handle):
    """Leads the group at `path`: fetches and decodes each version once, for all its ranks.

        with weft.Group("https://trainer:8477", "/dev/shm/engine", members=4).start():
            ...

    The ranks follow meanwhile, each with a weft.Member.
    """

    _closing = "group_close"
    _thread: Optional[threading.Thread] = None
    _owned = False
    _info: GroupInfo

    def __init__(
        self,
        store: StoreLike,
        path: Path,
        members: int,
        *,
        trust: KeyLike = None,
        state: Optional[Path] = None,
        poll_seconds: float = 0,
        fetch_bytes: int = 0,
        name: Optional[str] = None,
        report_seconds: float = 0,
        token: Optional[str] = None,
        ca_file: Optional[Path] = None,
        threads: Optional[int] = None,
        progress: Progress = None,
    ) -> None:
        super().__init__(Context(progress, threads))
        context = self._context
        self._ending = threading.Event()
        try:
            self._store, self._owned = store_of(store, token, ca_file)
            trusted = key_of(trust)
            follow = follow_options(
                self, trusted, state, 0, poll_seconds, fetch_bytes, name, report_seconds, None
            )
            options = structures.group_options(members=members, follow=ctypes.pointer(follow))
            self._kept += [follow, options]
            context.run(
                functions.group_lead, context.pointer, self._borrow(self._store), path_bytes(path), ctypes.byref(options),
                ctypes.byref(self._handle),
            )
            self._describe(self._handle)
        except BaseException:
            self.close()
            raise

    def lead(self, timeout: Optional[float] = None) -> Optional[int]:
        """Leads until the group is at another version, which it returns, or for `timeout` seconds. AbortedError: the ranks did not
        commit a version; the next call offers it again, or a newer one."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if end is None else min(_SLICE, max(0.0, end - time.monotonic()))
            version = ctypes.c_uint64()
            status = self._context.run(self._step, left, version)
            if status == OK:
                return version.value
            if end is not None and time.monotonic() >= end:
                return None

    def start(self) -> "Group":
        """Leads on a thread of its own until the group is closed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="weft group", daemon=True)
            self._thread.start()
        return self

    def _work(self) -> None:
        while not self._ending.is_set():
            try:
                self.lead(_SLICE)
            except AbortedError as error:
                logger.warning("%s", error)
            except Cancelled:
                return
            except Error as error:
                logger.error("the leader goes on after: %s", error)
                self._ending.wait(1)

    @property
    def info(self) -> GroupInfo:
        """Where the group is. While it is led on another thread, where it was when that last looked up."""
        handle = self.handle
        with self._context.idle() as idle:
            if idle:
                self._describe(handle)
        return self._info

    def _describe(self, handle: ctypes.c_void_p) -> None:
        found = structures.group_info()
        functions.group_describe(handle, ctypes.byref(found))
        self._info = GroupInfo(**_fields(GroupInfo, found))

    def _step(self, seconds: float, version: ctypes.c_uint64) -> int:
        """A part of the lead, and a look at where it has led to."""
        handle = self.handle
        status: int = functions.group_run(handle, seconds, ctypes.byref(version))
        self._describe(handle)
        return status

    @property
    def version(self) -> int:
        return self.info.version

    def close(self) -> None:
        """Ends the lead. The directory stays for the next leader."""
        self._ending.set()
        if self._thread is not None:
            self._context.cancel()
            self._thread.join()
            self._thread = None
        super().close()

    def _release(self) -> None:
        if self._owned:
            self._store.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Member(Follower):
    """One rank of a group. Its tensors are filled when it joins.

        with weft.Member("/dev/shm/engine", rank, model, layout=layout) as member:
            for update in member.follow():
                with engine.paused():
                    update.commit()

    commit() votes, waits for the others, and commits with them.
    """

    _closing = "member_close"
    _functions = "member"
    _info: MemberInfo

    def __init__(
        self,
        path: Path,
        rank: int,
        model: Model,
        *,
        layout: Layout = None,
        seconds: float = 0,
        audit_bytes: int = 0,
        threads: Optional[int] = None,
        progress: Progress = None,
    ) -> None:
        super().__init__(Context(progress, threads))
        context = self._context
        try:
            self._tensors = Tensors(context, model, layout=layout, viewed=layout is None)
            options = structures.member_options(seconds=seconds, audit_bytes=audit_bytes)
            out = ctypes.byref(self._handle)
            if layout is None:
                context.run(
                    functions.member_open, context.pointer, path_bytes(path), rank, self._tensors.view,
                    ctypes.byref(options), out,
                )
            else:
                context.run(
                    functions.member_open_layout, context.pointer, path_bytes(path), rank, self._tensors.table,
                    self._tensors.layout, ctypes.byref(options), out,
                )
            self.info
        except BaseException:
            self.close()
            raise

    def commit(self) -> None:
        """Votes, waits for the others, and commits. AbortedError: all ranks stay at the version before."""
        self._context.run(functions.member_commit, self.handle)
        logger.info("rank %d: at version %d", self.info.rank, self.version)

    def label(self, key: str) -> Optional[str]:
        """A label of the version that was committed last."""
        value = functions.member_label(self.handle, key.encode())
        return None if value is None else str(value.decode())

    @property
    def info(self) -> MemberInfo:
        """Where the rank is. While a call is under way on another thread, where it was before."""
        handle = self.handle
        with self._context.idle() as idle:
            if idle:
                found = structures.member_info()
                functions.member_describe(handle, ctypes.byref(found))
                self._info = MemberInfo(**_fields(MemberInfo, found))
        return self._info

    @property
    def version(self) -> int:
        return self.info.version

    @property
    def labels(self) -> Mapping[str, str]:
        raise error_of(UNSUPPORTED, "a group does not list its labels; ask for one by member.label(key)")

    def _labels_ahead(self, version: int) -> Mapping[str, str]:
        return self.labels

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
