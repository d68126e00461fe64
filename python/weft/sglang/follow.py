# SPDX-License-Identifier: Apache-2.0
"""An engine of SGLang that follows a store by itself.

The scheduler of each rank has a thread that waits for versions, fetches, decodes and proves beside the engine's steps.
What must happen between two steps is a request among those that schedulers take in there: rank 0 adds a Turn to what it
has received, and SGLang hands that to all ranks in the same order. If all of them have prepared its version, they
commit; else those that have not begin to, and rank 0 asks again. So no step sees two versions, and no rank waits.

A Turn is a pause of SGLang's own kind, which it takes up only where a batch has ended. As in such a pause, running
requests are retracted, the cache is emptied, and they go on with what the new weights compute.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from sglang.srt.managers.io_struct import (
    ContinueGenerationReqInput, PauseGenerationReqInput,
)
from sglang.srt.runtime_context import get_parallel

from ..context import logger
from ..errors import UNSUPPORTED, UnsupportedError
from ..subscriber import Subscriber

_PATIENCE = (0.5, 10.0)  # seconds between attempts after a failure: the first, the most
_AGAIN = (0.05, 2.0)  # seconds until ranks that were not ready are asked again: the first, the most
_NICE = 5  # the thread gives way to the engine's


class Turn(PauseGenerationReqInput, kw_only=True):  # type: ignore[misc, call-arg]
    """Asks all ranks to commit a version."""

    version: int = 0


class Follower:
    """Of one rank. `open_subscriber` is called on the thread, again and again while it fails."""

    def __init__(self, scheduler: Any, open_subscriber: Callable[[], Subscriber]) -> None:
        parallel = get_parallel()
        if parallel.pp_size > 1 or parallel.attn_dp_enabled or parallel.dp_size > 1:
            raise UnsupportedError(
                UNSUPPORTED,
                "weft does not follow with pipeline- or data-parallel ranks; start SGLang without WEFT_FOLLOW, "
                "and call weft.sglang.update",
            )
        self._scheduler = scheduler
        self._open = open_subscriber
        self._leads = int(parallel.tp_rank) == 0
        self._group = parallel.tp_group
        self._changed = threading.Condition()
        self._subscriber: Optional[Subscriber] = None
        self._prepared = 0  # the version that a commit would lead to, or 0
        self._wanted = 0  # what rank 0 has asked for
        self._more = False  # that is one step of several
        self._asked = 0.0  # when rank 0 may ask again, after it has
        self._delay = _AGAIN[0]
        threading.Thread(target=self._work, name="weft follow", daemon=True).start()

    # -- the thread --

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))  # SGLang may bind a scheduler to some
            os.nice(_NICE)  # of this thread, on Linux
        failures, told = 0, ""
        while True:
            try:
                if self._subscriber is None:
                    self._subscriber = self._open()
                self._step(self._subscriber)
                failures, told = 0, ""
            except Exception as error:  # whatever it is, the engine serves on
                if str(error) != told:
                    logger.warning("%s; the engine serves on with the weights that it has", error)
                failures, told = failures + 1, str(error)
                first, most = _PATIENCE
                time.sleep(min(most, first * 2 ** min(failures - 1, 10)))

    def _step(self, subscriber: Subscriber) -> None:
        """Prepares a version, and waits until it is committed or dropped."""
        if self._leads:
            version = subscriber.wait(60)
        else:
            with self._changed:
                version = self._wanted if self._changed.wait_for(lambda: self._wanted, 60) else None
        if not version or version == subscriber.version:
            return
        more = subscriber.prepare(version)
        with self._changed:
            self._prepared, self._more = version, more
            self._changed.wait_for(lambda: not self._prepared)

    # -- between two steps, on the scheduler's thread --

    def requests(self) -> List[Turn]:
        """What rank 0 adds to the requests that it has received. Not while somebody else has paused the engine."""
        if not self._prepared or self._scheduler._engine_paused or time.monotonic() < self._asked:
            return []
        self._asked = time.monotonic() + self._delay
        return [Turn(mode="retract", version=self._prepared)]

    def _gather(self, outcome: Any) -> List[Any]:
        import torch

        if self._group.world_size == 1:
            return [outcome]
        outcomes: List[Any] = [None] * self._group.world_size
        torch.distributed.all_gather_object(outcomes, outcome, group=self._group.cpu_group)
        return outcomes

    def turn(self, turn: Turn, pause: Callable[[], Any]) -> None:
        """By all ranks between the same two steps."""
        ready = self._prepared == turn.version
        if not all(self._gather(ready)):
            self._delay = min(_AGAIN[1], 2 * self._delay)
            with self._changed:
                if self._prepared and not ready:
                    self._drop()
                self._wanted = turn.version
                self._changed.notify_all()
            return
        start = time.perf_counter()
        pause()
        try:
            self._commit(turn.version)
        finally:
            self._scheduler.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))
        logger.info("weft: at version %d; pause %.1f ms", turn.version, 1e3 * (time.perf_counter() - start))

    def _drop(self) -> None:
        assert self._subscriber is not None
        self._subscriber.rollback()
        self._prepared = self._wanted = 0
        self._delay = _AGAIN[0]

    def _commit(self, version: int) -> None:
        subscriber = self._subscriber
        assert subscriber is not None
        failure: Optional[str] = None
        with self._changed:
            try:
                subscriber._tensors.check()  # type: ignore[union-attr]
                subscriber.commit()
                while self._more:
                    self._more = subscriber.prepare(version)
                    subscriber.commit()
            except Exception as error:  # other ranks wait for this one's outcome
                failure = f"{type(error).__name__}: {error}"
            failures = [text for text in self._gather(failure) if text is not None]
            if failures:
                self._drop()
                self._asked = time.monotonic() + _AGAIN[1]
                versions = set(self._gather(subscriber.version))
                if len(versions) > 1:
                    raise RuntimeError(f"weft: ranks are at versions {versions}, after: {'; '.join(failures)}")
                logger.error("weft: %s; no rank has changed, and the engine serves on", "; ".join(failures))
            else:
                self._scheduler.flush_cache(empty_cache=False)
                self._scheduler.record_weight_version_change(new_version=str(version))
                self._prepared = self._wanted = 0
                self._delay, self._asked = _AGAIN[0], 0.0
            self._changed.notify_all()


# ---- by SGLang's hooks ----

_followers: Dict[int, Follower] = {}  # by scheduler: a process has one


def begin(scheduler: Any, open_subscriber: Callable[[Any], Subscriber]) -> None:
    """When a scheduler has its model."""
    model = scheduler.tp_worker.model_runner.weight_updater.get_model()
    _followers[id(scheduler)] = Follower(scheduler, lambda: open_subscriber(model))


def requests(received: List[Any], scheduler: Any) -> List[Any]:
    follower = _followers.get(id(scheduler))
    return received if follower is None else [*received, *follower.requests()]


def pause(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    follower = _followers.get(id(scheduler))
    if follower is None or not isinstance(request, Turn):
        return original(scheduler, request)
    return follower.turn(request, lambda: original(scheduler, request))
