# SPDX-License-Identifier: Apache-2.0
"""Stores of objects: a directory, an HTTP(S) server, a bucket in S3; over weft/store.h."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
from typing import Any, List, Optional, Union

from . import _structures as structures
from ._signatures import functions
from .context import OK, Context, Handle
from .errors import InvalidArgument
from .tensors import Path, path_bytes, text_bytes

_ALWAYS, _IF_ABSENT, _IF_SAME = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class ObjectInfo:
    """An object of a store. `age` is in seconds, by the store's own clock."""

    key: str
    bytes: int
    age: float


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Since the store was opened: operations, and bytes of objects."""

    requests: int
    sent: int
    received: int


class Store(Handle):
    """A store, by its URL: a path, file:///path, http(s)://host[:port]/prefix, or s3://bucket/prefix.

    S3 takes its credentials from the environment, as weft/store.h says. `token` is sent as a bearer token; else that
    of the environment variable WEFT_TOKEN. Certificates are those of `ca_file`, of SSL_CERT_FILE, or the system's.

    >>> import tempfile, weft
    >>> with tempfile.TemporaryDirectory() as place, weft.Store(place) as store:
    ...     _ = store.put("greeting", b"hello")
    ...     store.get("greeting"), [found.key for found in store.list()]
    (b'hello', ['greeting'])
    """

    _closing = "store_close"

    def __init__(
        self,
        url: Path,
        *,
        token: Optional[str] = None,
        ca_file: Optional[Path] = None,
        connect_seconds: float = 0,
        stall_seconds: float = 0,
        attempts: int = 0,
        backoff_seconds: float = 0,
        transfers: int = 0,
        volatile_writes: bool = False,
    ) -> None:
        super().__init__(Context())
        token = token if token is not None else os.environ.get("WEFT_TOKEN") or None
        options = structures.store_options(
            token=None if token is None else token.encode(),
            ca_file=None if ca_file is None else os.fsencode(ca_file),
            connect_seconds=connect_seconds,
            stall_seconds=stall_seconds,
            attempts=attempts,
            backoff_seconds=backoff_seconds,
            transfers=transfers,
            volatile_writes=volatile_writes,
        )
        name = path_bytes(url)
        scheme = re.match(rb"(file|https?|s3):(?!//)", name)
        if scheme is not None:  # it would be a directory of that name
            raise InvalidArgument(f"{os.fsdecode(name)} is no URL; write {scheme[1].decode()}://, or ./ before a path")
        context = self._context
        context.call(
            functions.store_open, context.pointer, name, ctypes.byref(options), ctypes.byref(self._handle)
        )

    def _call(self, function: Any, *arguments: Any) -> int:
        """An operation with a context of its own, so that several threads may use the store at once."""
        with Context() as context:
            return context.run(function, context.pointer, self.handle, *arguments)

    @property
    def url(self) -> str:
        """As it was opened, without credentials."""
        return str(functions.store_url(self.handle).decode())

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> bytes:
        """The bytes of an object, or a part of them. NotFoundError if there is no such object."""
        if length is None:
            length = max(0, self.head(key) - offset)
        buffer = ctypes.create_string_buffer(max(1, length))
        request = structures.store_get_request(
            key=text_bytes(key), offset=offset, length=length, buffer=ctypes.addressof(buffer)
        )
        result = structures.store_get_result()
        self._call(functions.store_get, ctypes.byref(request), ctypes.byref(result))
        return buffer.raw[: result.received]

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_tag: Optional[str] = None
    ) -> Optional[str]:
        """Puts an object, whole when this returns; its tag, if the store has tags. With `if_absent` only if there is none, with
        `if_tag` only if it is still that one; else ConflictError."""
        if if_absent and if_tag is not None:
            raise InvalidArgument("an object cannot be absent and have a tag; give if_absent or if_tag")
        condition = _IF_ABSENT if if_absent else _IF_SAME if if_tag is not None else _ALWAYS
        known = structures.store_tag(text=(if_tag or "").encode())
        made = structures.store_tag()
        held = memoryview(data).tobytes()
        self._call(
            functions.store_put_bytes, text_bytes(key), held, len(held), condition,
            ctypes.byref(known), ctypes.byref(made),
        )
        return made.text.decode() or None

    def head(self, key: str) -> int:
        """The size of an object, without its bytes."""
        return self._head(key)[0]

    def tag(self, key: str) -> Optional[str]:
        """What identifies the content of an object to put(if_tag=…)."""
        return self._head(key)[1]

    def _head(self, key: str) -> "tuple[int, Optional[str]]":
        size, tag = ctypes.c_uint64(), structures.store_tag()
        self._call(functions.store_head, text_bytes(key), ctypes.byref(size), ctypes.byref(tag))
        return size.value, tag.text.decode() or None

    def remove(self, key: str) -> None:
        """Removes an object, if it is there."""
        self._call(functions.store_remove, text_bytes(key))

    def list(self, prefix: str = "") -> "List[ObjectInfo]":
        """All objects under a prefix of whole parts, by their keys. UnsupportedError where there is no listing."""
        found: List[ObjectInfo] = []

        def visit(_: object, key: bytes, size: int, age: float) -> bool:
            found.append(ObjectInfo(key.decode(), size, age))
            return True

        self._call(functions.store_list, text_bytes(prefix), structures.VISIT_OBJECT(visit), None)
        return sorted(found, key=lambda object: object.key)

    def age(self, key: str) -> float:
        """How many seconds ago the object was put, at least, by the store's own clock."""
        seconds = ctypes.c_double()
        self._call(functions.store_age, text_bytes(key), ctypes.byref(seconds))
        return seconds.value

    def watch(self, after: int = 0, seconds: float = 10) -> Optional[bytes]:
        """Waits on the server for the head of a version above `after`; None if there was none. UnsupportedError where the
        store has no long poll."""
        buffer, received = ctypes.create_string_buffer(structures.HEAD_MAX), ctypes.c_size_t()
        status = self._call(
            functions.store_watch, after, seconds, ctypes.addressof(buffer), structures.HEAD_MAX,
            ctypes.byref(received),
        )
        return buffer.raw[: received.value] if status == OK else None

    @property
    def traffic(self) -> Traffic:
        found = structures.store_traffic()
        functions.store_traffic_of(self.handle, ctypes.byref(found))
        return Traffic(found.requests, found.sent, found.received)

    @property
    def directory(self) -> Optional[str]:
        """Its path, if the store is a directory of this machine."""
        traits = structures.store_traits()
        functions.store_traits_of(self.handle, ctypes.byref(traits))
        return None if traits.directory is None else os.fsdecode(traits.directory)

    def _settings(self) -> str:
        return "closed" if self.closed else self.url

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


StoreLike = Union[Store, Path]


def store_of(store: StoreLike, token: Optional[str], ca_file: Optional[Path]) -> "tuple[Store, bool]":
    """A store that was given as such or by its URL, and whether it was opened here."""
    if isinstance(store, Store):
        if token is not None or ca_file is not None:
            raise InvalidArgument("token and ca_file are for a store that is given by its URL; give them to weft.Store")
        return store, False
    return Store(store, token=token, ca_file=ca_file), True
