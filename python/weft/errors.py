# SPDX-License-Identifier: Apache-2.0
"""The statuses of libweft (weft/base.h) as exceptions.

Each says in one line what failed, where, and what to do next. The classes follow the blocks of the statuses: who
has to act. `except weft.Error` takes them all.
"""

from __future__ import annotations

from typing import Dict, Type


class Error(Exception):
    """A call failed. `status` is the number of weft_status (weft/base.h); the text says what to do next."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> "tuple[Type[Error], tuple[int, str]]":
        return type(self), (self.status, str(self))


class InvalidArgument(Error, ValueError):
    """The caller's input cannot be right."""

    def __init__(self, text: str, status: int = -100) -> None:
        super().__init__(status, text)

    def __reduce__(self) -> "tuple[Type[Error], tuple[str, int]]":  # type: ignore[override]
        return type(self), (str(self), self.status)


class UnsupportedError(Error):
    """This store, this library or this kind of tensor cannot do it."""


class NotFoundError(Error):
    """There is no such file, object, version or run."""


class BusyError(Error):
    """Somebody else is at it: another call on the same object, another process, an interrupted apply."""


class CallbackError(Error):
    """A function that was given to the library failed; its exception is the cause."""


class IntegrityError(Error):
    """Bytes were read, and they are not what they should be. Nothing was changed."""


class BaseMismatch(IntegrityError):
    """The patch starts from another state than this one."""


class DigestMismatch(IntegrityError):
    """The weights are not the state that was promised."""


class SignatureMismatch(IntegrityError):
    """The head is not signed by the key that is trusted."""


class FileError(Error):
    """Reading or writing a local file failed."""


class NoSpace(FileError):
    """The disk is full."""


class RemoteError(Error):
    """The store was not reached, or failed, after all attempts; later may work."""


class DeniedError(RemoteError):
    """The store wants other credentials, or cannot prove its identity."""


class StaleError(Error):
    """What the object stands on has been replaced: another publisher, or other tensors. Open it again."""


class ConflictError(StaleError):
    """Somebody else wrote in between. A publisher that gets this was fenced by another one, and is finished."""


class AbortedError(Error):
    """Other ranks of the group did not commit; nothing was changed, and the version will be offered again."""


class OutOfMemory(Error, MemoryError):
    """There is no memory left."""


class LimitError(Error):
    """The input claims more than the limits allow."""


class Cancelled(Error):
    """The progress function, or a signal, ended the call; nothing was changed."""


_CLASSES: Dict[int, Type[Error]] = {
    -101: UnsupportedError,
    -102: NotFoundError,
    -103: BusyError,
    -104: CallbackError,
    -200: IntegrityError,
    -201: IntegrityError,
    -202: IntegrityError,
    -300: IntegrityError,
    -301: BaseMismatch,
    -302: DigestMismatch,
    -303: SignatureMismatch,
    -400: FileError,
    -401: NoSpace,
    -500: RemoteError,
    -501: DeniedError,
    -502: ConflictError,
    -503: AbortedError,
    -600: OutOfMemory,
    -601: LimitError,
    -602: Cancelled,
}

INVALID_ARGUMENT, UNSUPPORTED, NOT_FOUND, BUSY, CALLBACK_FAILED = -100, -101, -102, -103, -104


def error_of(status: int, text: str) -> Error:
    """The exception for a status.

    >>> raise error_of(-301, "the patch starts from another state")
    Traceback (most recent call last):
    weft.errors.BaseMismatch: the patch starts from another state
    """
    if status == INVALID_ARGUMENT:
        return InvalidArgument(text)
    return _CLASSES.get(status, Error)(status, text)
