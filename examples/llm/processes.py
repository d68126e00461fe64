# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the demo, however it ends.

Each has a keeper: this file, run as a program. It starts the command in a session of its own and holds the reading end
of a pipe. When the demo closes the pipe, or is killed, the keeper ends the command and all that it has started.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Mapping, Optional, Sequence

_PATIENCE = 10.0  # seconds for an orderly end


class Failure(Exception):
    """Something that the user has to know: what, where, what next."""


class Process:
    """A command whose output goes to a log. `prefix` goes before it, such as the way into a network namespace."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: pathlib.Path,
        *,
        prefix: Sequence[str] = (),
        environment: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.name = name
        self.log = log
        with open(log, "wb") as out:
            self._keeper = subprocess.Popen(
                [*prefix, sys.executable, "-B", "-S", "-E", os.path.abspath(__file__), *command],
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def check(self) -> None:
        """Fails if it has ended by itself."""
        code = self._keeper.poll()
        if code is not None:
            raise Failure(f"{self.name} has ended with {code}; its last words:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        self._keeper.wait()


def keep(command: Sequence[str]) -> int:
    """Runs a command until it ends or this process's stdin does; nothing of its session is left."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end() -> None:
        while os.read(0, 4096):
            pass
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    code = child.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return code


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]) & 255)
