# SPDX-License-Identifier: Apache-2.0
"""Keys: Ed25519. A publisher signs with the secret half; followers trust the public half."""

from __future__ import annotations

import ctypes
import os
from typing import Optional, Union

from . import _structures as structures
from ._signatures import functions
from .context import Context, Handle
from .tensors import Path, path_bytes

KeyLike = Union[None, "Key", Path]


class Key(Handle):
    """A key, from generate() or read().

    >>> import tempfile, weft
    >>> key = weft.Key.generate()
    >>> with tempfile.TemporaryDirectory() as place:
    ...     key.write(place + "/run-7.key")
    ...     public = weft.Key.read(place + "/run-7.key.pub")
    >>> public.secret, public.text == key.text
    (False, True)
    """

    _closing = "key_destroy"

    def __init__(self) -> None:
        super().__init__(Context())

    @classmethod
    def generate(cls) -> "Key":
        """A new pair."""
        key = cls()
        key._context.call(functions.key_generate, key._context.pointer, ctypes.byref(key._handle))
        return key

    @classmethod
    def read(cls, path: Path) -> "Key":
        """A PEM file: a private key or a public one."""
        key = cls()
        key._context.call(functions.key_read, key._context.pointer, path_bytes(path), ctypes.byref(key._handle))
        return key

    def write(self, secret: Path, public: Optional[Path] = None) -> None:
        """Writes both halves; the public one beside the secret one, with .pub at its end, unless told. Files that exist are
        refused."""
        beside = path_bytes(public) if public is not None else path_bytes(secret) + b".pub"
        self._context.call(functions.key_write, self._context.pointer, self.handle, path_bytes(secret), beside)

    def bind(self, run: str) -> "Key":
        """Trusts this run only, where one key signs several."""
        self._context.call(functions.key_bind, self._context.pointer, self.handle, run.encode())
        return self

    @property
    def secret(self) -> bool:
        """Whether it can sign."""
        return bool(functions.key_secret(self.handle))

    @property
    def text(self) -> str:
        """The public half in hexadecimal."""
        text = ctypes.create_string_buffer(structures.KEY_TEXT)
        functions.key_format(self.handle, text)
        return text.value.decode()

    def _settings(self) -> str:
        return "closed" if self.closed else f"{self.text[:16]}…, {'secret' if self.secret else 'public'}"

    def __enter__(self) -> "Key":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def key_of(key: KeyLike) -> Optional[Key]:
    """A key that was given as such, or as a path."""
    if key is None or isinstance(key, Key):
        return key
    return Key.read(os.fspath(key))
