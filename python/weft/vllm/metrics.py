# SPDX-License-Identifier: Apache-2.0
"""Figures of a follower in vLLM's Prometheus endpoint.

The endpoint is in the API server, the figures are in the engine core, and vLLM has no way from one to the other that a
plug-in can use. So the API server names a directory in its environment before it starts engine cores, each of them
writes a small file there, and a collector reads these when somebody asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any, Dict, Iterable, Iterator

_PLACE = "WEFT_VLLM_METRICS"

_ABOUT = {
    "version": ("gauge", "Version of the weights that the engine computes with; 0 before the first"),
    "newest": ("gauge", "Newest version that the workers have seen in the store"),
    "lag": ("gauge", "Versions between the newest and the engine's"),
    "commits": ("counter", "Versions that were put in place"),
    "pause_seconds": ("counter", "Seconds between steps that commits took, all together"),
    "last_pause_seconds": ("gauge", "Seconds between two steps that the last commit took"),
    "last_commit_seconds": ("gauge", "Seconds of it in which weights were written, of the slowest worker"),
    "last_commit_cpu_seconds": ("gauge", "Processor seconds of it, on the worker's own thread"),
    "last_commit_requests": ("gauge", "Requests that were being answered when the last commit was made"),
    "fetched_bytes": ("counter", "Bytes fetched from the store, of all workers"),
    "failures": ("counter", "Attempts to open, fetch or prove that failed, of all workers"),
    "committed_timestamp_seconds": ("gauge", "When the last commit was done, by this host's clock"),
    "published_timestamp_seconds": ("gauge", "When the engine's version was published, by the publisher's clock"),
}


class Figures:
    """What an engine core has to show."""

    def __init__(self, core: Any) -> None:
        self.failures = 0
        self._values: Dict[str, float] = dict.fromkeys(_ABOUT, 0)
        place = os.environ.get(_PLACE)
        index = int(getattr(core, "engine_index", 0))
        self._path = pathlib.Path(place) / f"{index}.json" if place else None

    def committed(self, version: int, pause: float, writing: float, running: float, answered: int) -> None:
        values = self._values
        values.update(version=version, last_pause_seconds=pause, last_commit_seconds=writing)
        values["last_commit_cpu_seconds"] = running
        values["last_commit_requests"] = answered
        values["committed_timestamp_seconds"] = time.time()
        values["commits"] += 1
        values["pause_seconds"] += pause

    def show(self, ranks: Iterable[Any]) -> None:
        """With what the workers have told."""
        figures = [rank.figures for rank in ranks]
        values = self._values
        values["failures"] = self.failures
        values["fetched_bytes"] = sum(found.get("fetched_bytes", 0) for found in figures)
        values["newest"] = max((found.get("newest", 0) for found in figures), default=0)
        values["lag"] = max(0, values["newest"] - values["version"])
        if figures:
            values["published_timestamp_seconds"] = figures[0].get("published_milliseconds", 0) / 1000
        if self._path is not None:
            with contextlib.suppress(OSError):
                part = self._path.with_suffix(".part")
                part.write_text(json.dumps(values))
                part.replace(self._path)


class _Collector:
    """Reads the files when the endpoint is asked."""

    def __init__(self, place: pathlib.Path) -> None:
        self._place = place

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily, GaugeMetricFamily,
        )

        found = {}
        for path in sorted(self._place.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                found[path.stem] = json.loads(path.read_text())
        for name, (kind, text) in _ABOUT.items() if found else ():
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            metric = family(f"weft:{name}", text, labels=["engine"])
            for engine, values in found.items():
                metric.add_metric([engine], values.get(name, 0))
            yield metric


def install() -> None:
    """In the process that vLLM was started by; those that it starts find the directory in their environment."""
    if os.environ.get(_PLACE):
        return
    with contextlib.suppress(ImportError):
        from prometheus_client import REGISTRY

        place = pathlib.Path(tempfile.mkdtemp(prefix="weft-vllm-"))
        os.environ[_PLACE] = str(place)
        REGISTRY.register(_Collector(place))
        _remove_at_exit(place, os.getpid())


def _remove_at_exit(place: pathlib.Path, process: int) -> None:
    """By the process that made it only, and not by those that it forks."""
    import atexit

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
