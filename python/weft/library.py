# SPDX-License-Identifier: Apache-2.0
"""libweft.so, by ctypes: where it is found, structures with a size, and calls with a context of the thread's own."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any

from .errors import Error, InvalidArgument, error_of

__all__ = ["Error", "Sized", "call", "library"]


class Sized(ctypes.Structure):
    """A structure that begins with its size, so that it can grow (weft/base.h)."""

    __slots__ = ()
    _fields_ = [("size", ctypes.c_size_t)]

    def __init__(self, **fields: Any) -> None:
        for name in fields:
            if not hasattr(type(self), name):
                raise AttributeError(f"{type(self).__name__} has no member {name}")
        super().__init__(**fields)
        for name, value in fields.items():
            held = getattr(self, name)
            if hasattr(value, "__index__") and type(held) is int and held != value:  # C would take the rest of it
                raise InvalidArgument(f"{name} is {value}, which is out of range")
        self.size = ctypes.sizeof(self)


# The library's name changes when programs that were built for another one cannot run with it (weft/base.h).
_NAME = "libweft.so.1"


def _find() -> str:
    """What WEFT_LIBRARY names; else what lies in the package itself, as in a wheel, or where the package was built or
    installed with it, build/ or PREFIX/lib; else what the system finds by name."""
    given = os.environ.get("WEFT_LIBRARY")
    if given:
        return given
    here = pathlib.Path(__file__).resolve()
    for directory in (here.parent / "lib", here.parents[2] / "build", here.parents[3]):
        if (directory / _NAME).exists():
            return str(directory / _NAME)
    return _NAME


def _load() -> ctypes.CDLL:
    path = _find()
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"{error}; build it with make, install it with make install, or set WEFT_LIBRARY to the path of {_NAME}"
        ) from error


library = _load()
library.weft_context_create.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
library.weft_context_destroy.argtypes = [ctypes.c_void_p]
library.weft_context_destroy.restype = None
library.weft_context_error.argtypes = [ctypes.c_void_p]
library.weft_context_error.restype = ctypes.c_char_p
library.weft_status_name.argtypes = [ctypes.c_int]
library.weft_status_name.restype = ctypes.c_char_p


def status_error(status: int, pointer: "ctypes.c_void_p | None") -> Error:
    """The exception for a status, with the text that the context has about it."""
    text = library.weft_context_error(pointer) if pointer else b""
    return error_of(status, (text or library.weft_status_name(status)).decode(errors="replace"))


class _Context:
    """A context of the library; one thread at a time may use one."""

    def __init__(self) -> None:
        self.pointer = ctypes.c_void_p()
        status = library.weft_context_create(None, ctypes.byref(self.pointer))
        if status != 0:
            raise status_error(status, None)

    def __del__(self) -> None:
        if self.pointer:
            library.weft_context_destroy(self.pointer)


_contexts = threading.local()


def call(name: str, *arguments: Any) -> None:
    """Calls a function whose first argument is a context, that of the calling thread; raises Error."""
    if not hasattr(_contexts, "context"):
        _contexts.context = _Context()
    pointer = _contexts.context.pointer
    status = getattr(library, name)(pointer, *arguments)
    if status < 0:
        raise status_error(status, pointer)
