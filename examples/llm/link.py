# SPDX-License-Identifier: Apache-2.0
"""The link between the trainer's store and the engine: a network namespace for the engine, and a pair of interfaces
that lets no more through than a rate in either direction. It takes root and the programs of iproute2. Where these
cannot be had, both ends are on loopback, and the link says so.

The namespace has no name: it is that of a process that reads a pipe of the demo's, and goes with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List, Optional

_BURST = "64kb"  # what may pass at once; large packets are of this size
_LATENCY = "200ms"  # what the queue before the link holds


class Link:
    """`store` and `engine` are the addresses of the two ends; `prefix` comes before commands at the engine's end. What
    the link is, `told` says in words. A rate of 0 asks for none."""

    def __init__(self, rate: float) -> None:
        self.rate = 0.0  # Mbit/s; 0: not limited
        self.store = self.engine = "127.0.0.1"
        self.prefix: List[str] = []
        self.told = "loopback, not limited"
        self._holder: Optional["subprocess.Popen[bytes]"] = None
        if rate <= 0:
            return
        try:
            self._make(rate)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            self.told = f"loopback, not limited: {_reason(error)}"

    def _make(self, rate: float) -> None:
        if os.geteuid() != 0:
            raise PermissionError("a network namespace takes root")
        for program in ("unshare", "nsenter", "ip", "tc"):
            if shutil.which(program) is None:
                raise FileNotFoundError(f"there is no program {program}")
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.write(b"!")
        self._holder.stdin.flush()
        if self._holder.stdout.read(1) != b"!":  # it answers from within the namespace
            raise PermissionError("this system gives no network namespace")
        holder = str(self._holder.pid)
        prefix = ["nsenter", f"--net=/proc/{holder}/ns/net"]
        name = f"weft{os.getpid()}"
        block = os.getpid() % 32768 * 4  # of 198.18.0.0/15, which is set aside for measuring networks
        store, engine = (f"198.{18 + (block >> 16)}.{block >> 8 & 255}.{(block & 255) + end}" for end in (1, 2))
        limit = ["root", "tbf", "rate", f"{rate:g}mbit", "burst", _BURST, "latency", _LATENCY]
        for command in (
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", holder],
            ["ip", "address", "add", f"{store}/30", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*prefix, "ip", "address", "add", f"{engine}/30", "dev", "eth0"],
            [*prefix, "ip", "link", "set", "eth0", "up"],
            [*prefix, "ip", "link", "set", "lo", "up"],
            ["tc", "qdisc", "add", "dev", name, *limit],
            [*prefix, "tc", "qdisc", "add", "dev", "eth0", *limit],
        ):
            subprocess.run(command, check=True, capture_output=True)
        self.rate, self.store, self.engine, self.prefix = rate, store, engine, prefix
        self.told = f"{rate:g} Mbit/s"

    def close(self) -> None:
        """The interfaces go with the namespace, and that with the last process in it."""
        if self._holder is not None:
            self._holder.communicate()
            self._holder = None


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(error.cmd)}: {error.stderr.decode(errors='replace').strip()}"
    return str(error)
