# SPDX-License-Identifier: Apache-2.0
"""A script of tests that does not end, ends: with a trace of all its threads, and without what it has started."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pathlib
import signal
import sys
import threading
from typing import List

SECONDS = 2700.0  # many times what a script takes on a machine that others use too


def descendants(process: int) -> List[int]:
    """Of a process, with itself."""
    found, fresh = [process], [process]
    while fresh:
        one = fresh.pop()
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{one}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                fresh += children
    return found


def end_descendants() -> None:
    for process in reversed(descendants(os.getpid())[1:]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def exit_when_asked() -> None:
    """SIGTERM ends this process in order: what is to be done at the end, is done."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def limit(seconds: float = SECONDS) -> None:
    """Ends this process after so many seconds, as one that has failed."""

    def end() -> None:
        print(f"not done after {seconds:.0f} s; what its threads do:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        end_descendants()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
