# SPDX-License-Identifier: Apache-2.0
"""For the tests of programs that use weft: a store that goes away by itself, and one that fails when it is told to.

>>> import numpy, weft, weft.testing
>>> with weft.testing.TemporaryStore() as store:
...     with weft.Publisher(store, {"w": numpy.arange(4)}) as publisher:
...         publisher.publish().version
1
"""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Optional

from . import _structures as structures
from ._signatures import functions
from .context import Context
from .errors import CALLBACK_FAILED, Error
from .store import Store

OK, NOT_FOUND, CONFLICT, REMOTE_FAILED = 0, -102, -502, -500
_UNKNOWN = 2**64 - 1
_PIECE = 1 << 20


class TemporaryStore(Store):
    """A store in a directory of its own, which is removed with it."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="weft-store.")
        super().__init__(self._scratch.name, volatile_writes=True)

    def _release(self) -> None:
        self._scratch.cleanup()


# What a fault does to an operation ("get", "put", "head", "remove", "list" or "age") on a key: it may sleep, or raise.
# To raise a weft.Error is to fail with its status.
Fault = Callable[[str, str], None]


class FaultyStore(Store):
    """A store in memory, with faults on demand. Threads may use it at once.

    `fault` is called before each operation with its name and the key. fail(), delay() and corrupt() set the usual ones, and
    heal() ends them. `objects` is what it holds: bytes by key.

    >>> import numpy, weft, weft.testing
    >>> store = weft.testing.FaultyStore()
    >>> publisher = weft.Publisher(store, {"w": numpy.arange(4)})
    >>> store.fail("put", "heads/")
    >>> publisher.publish()
    Traceback (most recent call last):
    weft.errors.RemoteError: the put of heads/00000001 to memory:// failed: remote failed
    >>> store.heal()
    >>> publisher.publish().version
    1
    >>> publisher.close()
    >>> store.close()
    """

    def __init__(self, fault: Optional[Fault] = None) -> None:
        super(Store, self).__init__(Context())
        self.objects: Dict[str, bytes] = {}
        self.fault = fault
        self.operations: Dict[str, int] = {}  # how often each was called
        self._times: Dict[str, float] = {}
        self._mutex = threading.Lock()
        self._damage: Optional[str] = None
        self._table = structures.store_operations(
            name=b"faulty",
            traits=structures.TRAITS(self._traits),
            get=structures.GET(self._guarded(self._get)),
            put=structures.PUT(self._guarded(self._put)),
            head=structures.HEAD(self._guarded(self._head_of)),
            remove=structures.REMOVE(self._guarded(self._remove)),
            list=structures.LIST(self._guarded(self._list_all)),
            age=structures.AGE(self._guarded(self._age_of)),
            close=structures.CLOSE(lambda _: None),
        )
        context = self._context
        context.call(
            functions.store_create, context.pointer, b"memory://", ctypes.byref(self._table), None,
            ctypes.byref(self._handle),
        )

    # ---- faults ----

    def fail(self, operation: str = "", prefix: str = "", times: Optional[int] = None, status: int = REMOTE_FAILED) -> None:
        """Lets operations on keys with this prefix fail, so many times or until heal()."""
        left = [times]

        def fault(name: str, key: str) -> None:
            if operation in ("", name) and key.startswith(prefix):
                with self._mutex:
                    if left[0] == 0:
                        return
                    left[0] = None if left[0] is None else left[0] - 1
                raise Error(status, f"the store was told to fail: {name} {key}")

        self.fault = fault

    def delay(self, seconds: float, operation: str = "", prefix: str = "") -> None:
        """Lets operations on keys with this prefix take so much longer."""

        def fault(name: str, key: str) -> None:
            if operation in ("", name) and key.startswith(prefix):
                time.sleep(seconds)

        self.fault = fault

    def corrupt(self, prefix: str) -> None:
        """Turns a bit in what is read of keys with this prefix."""
        self._damage = prefix

    def heal(self) -> None:
        """Ends all faults."""
        self.fault, self._damage = None, None

    # ---- the table of operations ----

    def _guarded(self, operation: Callable[..., int]) -> Callable[..., int]:
        """Exceptions cannot pass through C: an Error is its status, anything else is a callback that failed."""

        def call(_: object, context: int, *arguments: Any) -> int:
            try:
                return operation(*arguments)
            except Error as error:
                return error.status
            except Exception:
                return CALLBACK_FAILED

        return call

    def _enter(self, name: str, key: bytes) -> str:
        text = key.decode()
        with self._mutex:
            self.operations[name] = self.operations.get(name, 0) + 1
        if self.fault is not None:
            self.fault(name, text)
        return text

    def _traits(self, _: object, traits: Any) -> None:
        traits.contents.poll_seconds = 0.01
        traits.contents.conditional = True

    @staticmethod
    def _tag_of(data: bytes) -> bytes:
        return hashlib.sha256(data).hexdigest().encode()

    def _get(self, request: Any, result: Any) -> int:
        asked, answer = request.contents, result.contents
        key = self._enter("get", asked.key)
        data = self.objects.get(key)
        if data is None:
            return NOT_FOUND
        tag = self._tag_of(data)
        answer.object_bytes, answer.tag.text = len(data), tag
        if asked.unless and asked.unless.contents.text == tag:
            answer.unchanged, answer.received = True, 0
            return OK
        part = data[asked.offset : asked.offset + asked.length]
        if part and self._damage is not None and key.startswith(self._damage):
            part = bytes([part[0] ^ 1]) + part[1:]
        ctypes.memmove(asked.buffer, part, len(part))
        answer.received = len(part)
        if asked.arrived:
            asked.arrived(asked.opaque, len(part))
        return OK

    def _put(self, request: Any, tag: Any) -> int:
        asked = request.contents
        key = self._enter("put", asked.key)
        buffer, count, data = ctypes.create_string_buffer(_PIECE), ctypes.c_size_t(), bytearray()
        while asked.feed.size == _UNKNOWN or len(data) < asked.feed.size:
            status = asked.feed.read(asked.feed.opaque, len(data), ctypes.addressof(buffer), _PIECE, ctypes.byref(count))
            if status != OK:
                return int(status)
            if count.value == 0:
                break
            data += buffer.raw[: count.value]
        with self._mutex:
            there = self.objects.get(key)
            if asked.condition == 1 and there is not None:
                return CONFLICT
            if asked.condition == 2 and (there is None or self._tag_of(there) != asked.tag.text):
                return CONFLICT
            self.objects[key], self._times[key] = bytes(data), time.monotonic()
        if tag:
            tag.contents.text = self._tag_of(bytes(data))
        return OK

    def _head_of(self, key: bytes, size: Any, tag: Any) -> int:
        data = self.objects.get(self._enter("head", key))
        if data is None:
            return NOT_FOUND
        if size:
            size[0] = len(data)
        if tag:
            tag.contents.text = self._tag_of(data)
        return OK

    def _remove(self, key: bytes) -> int:
        self.objects.pop(self._enter("remove", key), None)
        return OK

    def _list_all(self, prefix: bytes, visit: Any, opaque: Any) -> int:
        text = self._enter("list", prefix)
        for key, data in list(self.objects.items()):
            if text in ("", key) or key.startswith(text + "/"):
                if not visit(opaque, key.encode(), len(data), time.monotonic() - self._times[key]):
                    break
        return OK

    def _age_of(self, key: bytes, seconds: Any) -> int:
        text = self._enter("age", key)
        if text not in self.objects:
            return NOT_FOUND
        seconds[0] = time.monotonic() - self._times[text]
        return OK
