# SPDX-License-Identifier: Apache-2.0
"""What a follower inside vLLM is told: by the environment when it starts, or by /init_weight_transfer_engine."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from typing import Any, Mapping, Optional

from ..errors import InvalidArgument

RUNNING = ("keep", "recompute")
MOST_NAME = 64  # letters of a follower's name (doc/FORMAT.md, section 28)
_MOST_SECONDS = 3600  # between two looks for a version


@dataclasses.dataclass(frozen=True)
class Settings:
    """`follow`: go to each version by itself; else only when /update_weights asks. `trust` is the path of the key
    that versions must be signed with, `name` that of the reports to the fleet. `running` says what becomes of requests
    that are being answered when weights change: "keep" goes on with the attention cache that they have, "recompute"
    computes it anew."""

    store: str
    follow: bool = True
    trust: Optional[str] = None
    name: str = ""
    running: str = "keep"
    poll_seconds: float = 0.0
    threads: int = 0  # of a worker, to decode and commit with; 0: a quarter of the processors

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Settings":
        """Checked, with what is left out taken from the environment.

        >>> Settings.of({"store": "/srv/run-7", "follow": False}).follow
        False
        >>> Settings.of({"store": "/srv/run-7", "running": "stop"})
        Traceback (most recent call last):
            ...
        weft.errors.InvalidArgument: running is 'stop'; choose one of keep, recompute
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in given:
            if key not in fields:
                raise InvalidArgument(f"init_info has {key}, which is not known; known are {', '.join(fields)}")
        settings = cls(**{"store": os.environ.get("WEFT_STORE", ""), **_from_environment(), **given})
        if not isinstance(settings.store, str) or not settings.store:
            raise InvalidArgument('no store is given; set WEFT_STORE, or give {"store": "https://trainer:8477"}')
        if settings.running not in RUNNING:
            raise InvalidArgument(f"running is {settings.running!r}; choose one of {', '.join(RUNNING)}")
        if not isinstance(settings.follow, bool):
            raise InvalidArgument(f"follow is {settings.follow!r}; give true or false")
        if not _is_number(settings.poll_seconds) or not 0 <= settings.poll_seconds <= _MOST_SECONDS:
            raise InvalidArgument(f"poll_seconds is {settings.poll_seconds!r}; give a number from 0 to {_MOST_SECONDS}")
        if not isinstance(settings.threads, int) or not _is_number(settings.threads) or settings.threads < 0:
            raise InvalidArgument(f"threads is {settings.threads!r}; give a number from 1, or 0 for the default")
        if not isinstance(settings.name, str) or not _is_name(settings.name):
            raise InvalidArgument(
                f"name is {settings.name!r}; give at most {MOST_NAME} of A-Z a-z 0-9 . _ -, and no dot first"
            )
        if settings.trust is not None and not (isinstance(settings.trust, str) and os.path.isfile(settings.trust)):
            raise InvalidArgument(f"trust is {settings.trust!r}, and there is no such file; name a public key's")
        processors = os.cpu_count() or 1
        threads = min(settings.threads, processors) or max(1, processors // 4)
        return dataclasses.replace(settings, name=settings.name or default_name(), threads=threads)


def _is_name(name: str) -> bool:
    return len(name) <= MOST_NAME and re.fullmatch(r"([A-Za-z0-9_-][A-Za-z0-9._-]*)?", name) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _from_environment() -> Mapping[str, Any]:
    named = {"trust": os.environ.get("WEFT_TRUST"), "name": os.environ.get("WEFT_NAME")}
    named["running"] = os.environ.get("WEFT_VLLM_RUNNING")
    return {key: value for key, value in named.items() if value}


def default_name() -> str:
    """A name for reports that the fleet will accept: what, where, which process."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    return f"vllm-{host}-{os.getpid()}"


def from_environment() -> Optional[Settings]:
    """What WEFT_STORE and its companions say, or None if it is not set."""
    return Settings.of({}) if os.environ.get("WEFT_STORE") else None
