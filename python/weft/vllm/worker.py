# SPDX-License-Identifier: Apache-2.0
"""What runs in a worker of vLLM: the weight transfer engine that vLLM creates, and the thread that fetches, decodes and
proves beside its steps.

The engine core's leader (leader.py) is connected to each worker's thread by a socket. What must happen between two
steps comes by vLLM's own calls to its workers, which it makes in the same order everywhere: open, commit, rollback.
Those never raise: an error of one worker would leave the others' answers in vLLM's queues. They return it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing.connection
import os
import queue
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo,
)

from .._frameworks import newest
from ..errors import Cancelled, InvalidArgument, NotFoundError
from ..layouts import Cut, Layout
from ..subscriber import Subscriber
from .layout import Places, check_engine, check_parameters, layout_of, parameters_of
from .settings import Settings

_PATIENCE = (0.5, 10.0)  # seconds between attempts after a failure: the first, the most
_NICE = 5  # the thread gives way to the engine's


@dataclasses.dataclass
class WeftInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What /init_weight_transfer_engine gives; settings.py has what it means."""

    store: str = ""
    follow: bool = True
    trust: Optional[str] = None
    name: str = ""
    running: str = "keep"
    poll_seconds: float = 0.0
    threads: int = 0


@dataclasses.dataclass
class WeftUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What /update_weights gives: a version, or 0 for the newest."""

    version: int = 0


class WeftWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """vLLM creates one in each worker, when its model is loaded. The leader does what vLLM's routes ask for."""

    init_info_cls = WeftInitInfo
    update_info_cls = WeftUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        check_engine(vllm_config)
        check_parameters(model)
        self.layout = layout_of(model, vllm_config)
        self.follower: Optional["Follower"] = None

    def init_transfer_engine(self, init_info: Any) -> None:
        raise InvalidArgument("weft is opened by the engine core; the plug-in is not loaded there: see VLLM_PLUGINS")

    def receive_weights(self, update_info: Any) -> None:
        raise InvalidArgument("weft commits by the engine core; the plug-in is not loaded there: see VLLM_PLUGINS")

    def start_weight_update(self) -> None:
        """Nothing is staged before the version is known."""

    def finish_weight_update(self) -> None:
        """What was asked for is committed already."""

    def shutdown(self) -> None:
        if self.follower is not None:
            self.follower.close()
            self.follower = None


class Follower:
    """A subscriber into this worker's parameters, and the thread that prepares each step.

    The thread tells the leader ("prepared", …) and waits for its order: ("prepare", version), ("go",) after a commit,
    ("pause", seconds), ("drop",). Each order has a number, which reports repeat: the leader passes over those that were
    on their way when it gave another order. The thread touches no weight: the commit is called by vLLM, on the worker's
    own thread, while this one waits for an order.
    """

    def __init__(
        self, model: Any, layout: Layout, settings: Settings, rank: int, address: Any, secret: bytes, cuts: List[Cut]
    ) -> None:
        self.rank = rank
        self._settings = settings
        self._layout = layout
        self._cuts = cuts
        self._tensors = parameters_of(model)
        self._places = Places(model)
        self._subscriber: Optional[Subscriber] = None
        self._orders: "queue.Queue[Tuple[Any, ...]]" = queue.Queue()
        self._order = 0  # the number of the last one that was taken up
        self._waiting = False
        self._ending = False
        self._prepared = False  # there is a step that a rollback would drop
        self._committed = False  # and one that it would take back
        self._more = False
        self._connection = multiprocessing.connection.Client(address, authkey=secret)
        self._connection.send(("rank", 0, rank))
        self._threads = [
            threading.Thread(target=self._listen, name="weft orders", daemon=True),
            threading.Thread(target=self._work, name="weft follow", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- the thread --

    def _listen(self) -> None:
        """Orders come while the other thread waits for a version: that wait is ended."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._orders.put(self._connection.recv())
                self._interrupt()
        self._ending = True
        self._orders.put((0, "end"))
        self._interrupt()

    def _interrupt(self) -> None:
        subscriber = self._subscriber
        if self._waiting and subscriber is not None:
            subscriber._context.cancel()

    def _tell(self, kind: str, *details: Any) -> None:
        with contextlib.suppress(OSError):
            self._connection.send((kind, self._order, *details))

    def _take(self) -> Tuple[Any, ...]:
        number, *order = self._orders.get()
        self._order = number
        return tuple(order)

    def _work(self) -> None:
        # vLLM binds its worker to a processor, and this thread would inherit that
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            # others would be as slow, and a commit waits for those that it has begun with
            if self._settings.threads == 1:
                os.nice(_NICE)  # of this thread, on Linux
        failures = 0
        while not self._ending:
            try:
                self._step()
                failures = 0
            except Cancelled:
                continue
            except Exception as error:  # whatever it is, the engine serves on
                failures += 1
                if self._subscriber is None and not self._orders.empty():
                    self._take()  # who asked is told that the store cannot be opened
                self._tell("failed", f"{type(error).__name__}: {error}")
                first, most = _PATIENCE
                self._pause(min(most, first * 2 ** min(failures - 1, 10)))
        if self._subscriber is not None:
            self._subscriber.close()

    def _pause(self, seconds: float) -> None:
        """Before the next attempt; an order ends it."""
        end = time.monotonic() + seconds
        while not self._ending and self._orders.empty() and time.monotonic() < end:
            time.sleep(0.05)

    def _step(self) -> None:
        if self._subscriber is None:
            try:
                self._subscriber = self._open()
            except NotFoundError:
                # what is published may lack what the model has; or nothing is yet, which is waited for
                if not self._orders.empty() or newest(self._settings.store, self._settings.trust) > 0:
                    raise
                self._tell("open", *self.state())
                self._pause(1)
                return
            self._tell("open", *self.state())
        order = self._next_order()
        if order is not None and order[0] == "prepare":
            self._prepare(self._subscriber, int(order[1]))

    def _open(self) -> Subscriber:
        """A worker that holds the whole model is recognised, if that is a version of the run; else all is fetched."""
        settings = self._settings
        return Subscriber(
            settings.store,
            self._tensors,
            layout=self._layout,
            trust=settings.trust,
            poll_seconds=settings.poll_seconds,
            threads=settings.threads,
            name=settings.name if self.rank == 0 else None,
            cuts=self._cuts if self.rank == 0 else None,
        )

    def _next_order(self) -> Optional[Tuple[Any, ...]]:
        """What the leader says; or that there is a new version, where this follows by itself."""
        subscriber = self._subscriber
        assert subscriber is not None
        if not self._settings.follow:
            return self._take()
        self._waiting = True
        try:
            if self._orders.empty():
                return None if subscriber.wait(60) is None else ("prepare", 0)
        finally:
            self._waiting = False
        return self._take()

    def _prepare(self, subscriber: Subscriber, version: int) -> None:
        """Prepares, tells, and waits for the decision."""
        order: Tuple[Any, ...] = ("prepare", version)
        while order[0] == "prepare":
            newest = subscriber.poll()  # which fails if there is another run in that place by now
            target = int(order[1]) or newest or subscriber.version
            changed = target != subscriber.version or target == 0  # which fails, and says that nothing is published
            self._prepared = self._committed = False
            if changed:
                self._more = subscriber.prepare(target)
                self._prepared = True
            self._tell("prepared", target, changed, *self.state())
            order = self._take()
        if order[0] == "drop":
            self.rollback()
        elif order[0] == "pause":
            self._pause(float(order[1]))

    def state(self) -> Tuple[int, Dict[str, float]]:
        """The version, and figures for people."""
        subscriber = self._subscriber
        if subscriber is None:
            return 0, {}
        info = subscriber.info
        return info.version, {
            "newest": info.newest, "fetched_bytes": info.fetched_bytes, "requests": info.requests,
            "patches": info.patches, "anchors": info.anchors, "healed": info.healed,
            "pause_seconds": info.pause_seconds, "published_milliseconds": info.milliseconds,
        }

    # -- between two steps, on vLLM's thread --

    def commit(self, target: int, through: bool) -> Tuple[int, Dict[str, float], float, float]:
        """Puts the prepared step in place. `through`: if several are needed, prepares and commits the others too, since
        other workers may need other ones. With the seconds that it took, and those that this thread was running."""
        subscriber = self._subscriber
        if subscriber is None:
            raise InvalidArgument("nothing is prepared: the store is not open")
        start, running = time.perf_counter(), time.thread_time()
        if subscriber.version != target:
            self._places.check()
            subscriber.commit()
            self._prepared, self._committed = False, True
            while through and self._more:
                self._more = subscriber.prepare(target)
                subscriber.commit()
        seconds, running = time.perf_counter() - start, time.thread_time() - running
        return (*self.state(), seconds, running)

    def rollback(self) -> Tuple[int, Dict[str, float]]:
        """Drops what is prepared, or takes back what was committed since the last order."""
        if self._subscriber is not None and (self._prepared or self._committed):
            self._subscriber.rollback()
            self._prepared = self._committed = False
        return self.state()

    def close(self) -> None:
        self._ending = self._waiting = True
        self._interrupt()
        with contextlib.suppress(OSError):
            self._connection.close()
        self._orders.put((0, "end"))
        self._threads[1].join(1)  # it closes what it has opened; if a store does not answer, later


# ---- called by the leader, in every worker ----

Outcome = Tuple[Optional[str], Any]  # an error's text or None, and the result


def _engine(worker: Any) -> WeftWeightTransferEngine:
    engine = getattr(worker, "worker", worker).weight_transfer_engine
    if not isinstance(engine, WeftWeightTransferEngine):
        raise InvalidArgument("this worker has no weight transfer engine of weft")
    return engine


def _rank(worker: Any) -> int:
    return int(getattr(worker, "worker", worker).rank)


def describe(worker: Any) -> Outcome:
    """The worker's rank and layout, after another look at its parameters."""
    try:
        engine = _engine(worker)
        check_parameters(engine.model)
        return None, (_rank(worker), engine.layout)
    except Exception as error:
        return str(error), None


def open_follower(worker: Any, settings: Settings, address: Any, secret: bytes, cuts: List[Cut]) -> Outcome:
    try:
        engine = _engine(worker)
        engine.shutdown()
        engine.follower = Follower(engine.model, engine.layout, settings, _rank(worker), address, secret, cuts)
        return None, None
    except Exception as error:
        return f"{type(error).__name__}: {error}", None


def commit(worker: Any, target: int, through: bool) -> Outcome:
    try:
        follower = _engine(worker).follower
        if follower is None:
            raise InvalidArgument("no store is followed")
        return None, follower.commit(target, through)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None


def rollback(worker: Any) -> Outcome:
    try:
        follower = _engine(worker).follower
        return None, None if follower is None else follower.rollback()
    except Exception as error:
        return f"{type(error).__name__}: {error}", None


def close_follower(worker: Any) -> Outcome:
    try:
        _engine(worker).shutdown()
        return None, None
    except Exception as error:
        return str(error), None
