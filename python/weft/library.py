# SPDX-License-Identifier: Apache-2.0
"""libweft.so, by ctypes: where it is found, contexts, and statuses as exceptions."""

import ctypes
import os
import pathlib
import threading


class Error(Exception):
    """A call failed. `status` is the number of weft_status (weft/base.h); the text says what to do."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


# Structures may differ between minor versions, and the library's name changes with them (weft/base.h).
_NAME = "libweft.so.0.1"


def _find():
    """What WEFT_LIBRARY names; else what lies where this package was built or installed with it, PREFIX/lib or
    build/; else what the system finds by name."""
    given = os.environ.get("WEFT_LIBRARY")
    if given:
        return given
    here = pathlib.Path(__file__).resolve()
    for directory in (here.parents[3], here.parents[2] / "build"):
        if (directory / _NAME).exists():
            return str(directory / _NAME)
    return _NAME


def _load():
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
library.weft_status_name.restype = ctypes.c_char_p


class _Context:
    """A context of the library; one thread at a time may use one."""

    def __init__(self):
        self.pointer = ctypes.c_void_p()
        status = library.weft_context_create(None, ctypes.byref(self.pointer))
        if status != 0:
            raise Error(status, library.weft_status_name(status).decode())

    def __del__(self):
        if self.pointer:
            library.weft_context_destroy(self.pointer)


_contexts = threading.local()


def call(name, *arguments):
    """Calls a function whose first argument is a context, that of the calling thread; raises Error."""
    if not hasattr(_contexts, "context"):
        _contexts.context = _Context()
    pointer = _contexts.context.pointer
    status = getattr(library, name)(pointer, *arguments)
    if status < 0:
        text = library.weft_context_error(pointer) or library.weft_status_name(status)
        raise Error(status, text.decode(errors="replace"))
