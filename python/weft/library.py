# SPDX-License-Identifier: Apache-2.0
"""libweft.so, by ctypes: where it is found, contexts, and statuses as exceptions."""

import ctypes
import ctypes.util
import os
import threading


class Error(Exception):
    """A call failed. `status` is the number of weft_status (weft/base.h); the text says what to do."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def _load():
    """The library that WEFT_LIBRARY names, or the one that the system finds."""
    path = os.environ.get("WEFT_LIBRARY") or ctypes.util.find_library("weft")
    if path is None:
        raise ImportError("libweft.so is not installed; set WEFT_LIBRARY to its path")
    return ctypes.CDLL(path)


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
