# SPDX-License-Identifier: Apache-2.0
"""Calls into libweft: a context for each object, progress, Ctrl-C, and what callbacks raise.

A call into C holds no Python lock, and Python runs no signal handler meanwhile. So a long call that comes from the
main thread runs on a thread of its own, and the main thread waits where signals reach it. Whatever a handler raises,
KeyboardInterrupt first of all, cancels the call through the context's progress function and is raised when the call
has ended. That is within a tenth of a second, and the call has changed nothing, unless it was past its point of no
return.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import logging
import os
import threading
import weakref
from typing import Any, Callable, Iterator, List, Optional, TypeVar, Union

from . import _structures as structures
from ._signatures import functions
from .errors import BUSY, CALLBACK_FAILED, Error, InvalidArgument, error_of
from .library import library, status_error

logger = logging.getLogger("weft")

OK, MORE = 0, 1

# Called with the phase, and what is done of how many bytes. Returning False cancels.
ProgressFunction = Callable[[str, int, int], Optional[bool]]
Progress = Union[None, bool, ProgressFunction]
Result = TypeVar("Result")


class _Bar:
    """A tqdm bar for each phase; without tqdm, a line in the log at its end."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None
        try:
            self._make: Any = importlib.import_module("tqdm").tqdm
        except ImportError:
            self._make = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self._make is None:
            if phase != self._phase:
                logger.info("%s: %d bytes", phase, total)
            self._phase = phase
            return
        if phase != self._phase or self._bar is None:
            self.close()
            self._bar = self._make(total=total, desc=phase, unit="B", unit_scale=True, leave=False)
            self._phase = phase
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Context:
    """A context of libweft. One call at a time uses it; another one meanwhile raises BusyError."""

    def __init__(self, progress: Progress = None, threads: Optional[int] = None, stage_bytes: int = 0) -> None:
        self.pointer = ctypes.c_void_p()
        self._bar = _Bar() if progress is True else None
        self._progress: Optional[ProgressFunction] = self._bar if progress is True else (progress or None)
        self._cancelled = threading.Event()
        self._failures: List[BaseException] = []
        self._lock = threading.Lock()
        self.entering: List[Callable[[], None]] = []  # called when a call begins, on its caller's thread
        self._callback = structures.PROGRESS(self._on_progress)
        if threads is not None and threads < 1:
            raise InvalidArgument(f"threads is {threads}; give 1 or more, or None for one per processor")
        limits = structures.limits(stage_bytes=stage_bytes)
        options = structures.context_options(
            limits=ctypes.pointer(limits), threads=threads or 0, progress=self._callback
        )
        status = functions.context_create(ctypes.byref(options), ctypes.byref(self.pointer))
        if status != OK:
            raise status_error(status, None)

    def destroy(self) -> None:
        if self.pointer:
            library.weft_context_destroy(self.pointer)
            self.pointer = ctypes.c_void_p()

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def cancel(self) -> None:
        """Ends the call that is under way, from another thread."""
        self._cancelled.set()

    def failed(self, failure: BaseException) -> int:
        """Remembers what a callback raised, to be raised by the call; the status for the callback to return."""
        self._failures.append(failure)
        return CALLBACK_FAILED

    def _on_progress(self, _: object, phase: bytes, done: int, total: int) -> bool:
        if self._cancelled.is_set():
            return False
        if self._progress is None:
            return True
        try:
            return self._progress(phase.decode(), done, total) is not False
        except BaseException as failure:
            self.failed(failure)
            return False

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """A short call, on this thread. The status if that is zero or positive; else its exception."""
        if not self._lock.acquire(blocking=False):
            raise error_of(BUSY, "another call on this object is under way; wait for it, or open another one")
        try:
            self._enter()
            return self._finish(function(*arguments))
        finally:
            self._lock.release()

    def run(self, function: Callable[..., int], *arguments: Any) -> int:
        """A long call, which signals can end."""
        if not self._lock.acquire(blocking=False):
            raise error_of(BUSY, "another call on this object is under way; wait for it, or open another one")
        try:
            self._enter()
            status = interruptible(lambda: function(*arguments), self.cancel)
            return self._finish(status)
        finally:
            self._cancelled.clear()
            if self._bar is not None:
                self._bar.close()
            self._lock.release()

    def _enter(self) -> None:
        for enter in self.entering:
            enter()

    def _finish(self, status: int) -> int:
        failures, self._failures = self._failures, []
        if status >= OK:
            for failure in failures:
                logger.error("a callback failed, and the call went on", exc_info=failure)
            return status
        error = status_error(status, self.pointer)
        if failures:
            raise failures[0] from error
        raise error

    @contextlib.contextmanager
    def idle(self) -> Iterator[bool]:
        """Whether no call is under way, nor will be until the end of the block."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def join(self) -> None:
        """Cancels the call that is under way, and waits for it."""
        self.cancel()
        with self._lock:
            self._cancelled.clear()


def interruptible(call: Callable[[], Result], cancel: Callable[[], None]) -> Result:
    """The result of a call that a signal's handler may end by raising: see above."""
    if _exiting or threading.current_thread() is not threading.main_thread():
        return call()
    results: List[Result] = []
    failures: List[BaseException] = []
    begun = threading.Lock()  # taken by the thread when it begins, or by the caller so that it never does
    ended = threading.Event()

    def work() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            results.append(call())
        except BaseException as failure:
            failures.append(failure)
        finally:
            ended.set()

    try:
        threading.Thread(target=work, name="weft call", daemon=True).start()
        ended.wait()
    finally:
        # Wherever a signal has interrupted this, the call must have ended before its memory is given back.
        if not begun.acquire(blocking=False):
            if not ended.is_set():
                cancel()
            while not ended.is_set():
                with contextlib.suppress(BaseException):
                    ended.wait()
    if failures:
        raise failures[0]
    return results[0]


_borrowing = threading.Lock()
_open: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_exiting = False


@atexit.register
def _close_all() -> None:
    """What the program has left open is closed while Python can still run: later the library's threads could not call back,
    and would be waited for in vain."""
    global _exiting
    _exiting = True
    for handle in list(_open):
        handle.close()


class Handle:
    """An object of the library with a context of its own, closed once, by close(), `with` or the collector.

    Others may borrow it, as a publisher does its store. Closing it then closes it to everybody else, and it is given back
    when the last one has returned it."""

    _closing: str  # the function that gives it back
    _borrowers = 0
    _left = False  # closed while it was borrowed

    def __init__(self, context: Context) -> None:
        self._context = context
        self._handle = ctypes.c_void_p()
        self._kept: List[Any] = []  # what the library points to
        self._borrowed: List[Handle] = []
        self._process = os.getpid()
        _open.add(self)

    @property
    def handle(self) -> ctypes.c_void_p:
        if self.closed:
            raise InvalidArgument(f"this {type(self).__name__} is closed; open another one")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._left or not self._handle

    def _borrow(self, other: "Optional[Handle]") -> Optional[ctypes.c_void_p]:
        """What this object uses until it is closed."""
        if other is None:
            return None
        with _borrowing:
            handle = other.handle
            other._borrowers += 1
            self._borrowed.append(other)
        return handle

    def close(self) -> None:
        """Gives back what it holds. A call that is under way on another thread is cancelled first."""
        with _borrowing:
            self._left = self._borrowers > 0
            if self._left:
                return
        if self._handle:
            if self._process == os.getpid():
                self._context.join()
            handle, self._handle = self._handle, ctypes.c_void_p()
            getattr(functions, self._closing)(handle)
        self._release()
        self._context.destroy()
        self._kept.clear()
        while self._borrowed:
            other = self._borrowed.pop()
            with _borrowing:
                other._borrowers -= 1
                last = other._left and other._borrowers == 0
            if last:
                other.close()

    def _release(self) -> None:
        """What must be given back after the object and before its context."""

    def __del__(self) -> None:
        # at the end of Python the names of this module are gone, and what was open is closed by _close_all
        if _borrowing is not None and getattr(self, "_borrowed", None) is not None:
            self.close()

    def __reduce_ex__(self, protocol: object) -> Any:
        """A copy would give back the same object of the library a second time."""
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; open another one, in each process its own")

    def _settings(self) -> str:
        return "closed" if self.closed else "open"

    def __repr__(self) -> str:
        return f"<weft.{type(self).__name__}: {self._settings()}>"


__all__ = ["Context", "Error", "Handle", "MORE", "OK", "Progress", "interruptible", "logger"]
