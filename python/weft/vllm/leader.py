# SPDX-License-Identifier: Apache-2.0
"""What runs in vLLM's engine core: brings all its workers to the same version, between the same two steps.

The engine core is where vLLM schedules. It alone can call all workers between two steps, knows which attention caches
are shared, and names the version of the weights. So the workers' threads tell the leader what they have prepared, and
when all have prepared the same version, the leader has the core's own loop call them: each commits, or, if one cannot,
all take it back. The workers take such calls in the order in which they take steps, so that no step sees two versions.

The core's loop reads its requests from a queue between steps, and waits there when it is idle. A commit is one more
request in that queue: a call of a utility of the core, as its clients make them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import logging
import multiprocessing.connection
import os
import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .._frameworks import announced
from ..errors import InvalidArgument
from ..layouts import Cut, Layout, LayoutError, cuts_for
from . import metrics, worker
from .settings import MOST_NAME, Settings

logger = logging.getLogger("vllm.weft")

_AGAIN = (1.0, 60.0)  # seconds after a commit that failed: the first, the most
_OPENING = 120.0  # seconds in which a store must answer that somebody waits for, and the weights be summed up


@dataclasses.dataclass
class _Rank:
    """A worker, as the leader knows it."""

    connection: Any
    order: int = 0  # the number of the last one that it was given
    version: int = 0
    target: Optional[int] = None  # what it has prepared
    changed: bool = False
    failure: Optional[str] = None
    open: bool = False  # the store has answered it
    figures: Dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class _Request:
    """A call of /update_weights."""

    version: int
    future: "concurrent.futures.Future[Any]"
    begun: bool = False


# ---- the core's own thread ----


def jobs_of(core: Any) -> "queue.Queue[Callable[[], None]]":
    """What is to be done between two steps. Leaders come and go, and what they have asked for is done."""
    jobs: "queue.Queue[Callable[[], None]]" = core.__dict__.setdefault("weft_jobs", queue.Queue())
    return jobs


def post(core: Any, job: Callable[[], None]) -> None:
    """Has the core's own thread do this, between two steps."""
    jobs_of(core).put(job)
    inbox = getattr(core, "input_queue", None)
    if inbox is not None:
        from vllm.v1.engine import EngineCoreRequestType

        inbox.put_nowait((EngineCoreRequestType.UTILITY, (0, 0, "weft_turn", ())))


def turn(core: Any) -> None:
    """Between two steps: what was posted."""
    with contextlib.suppress(queue.Empty):
        while True:
            jobs_of(core).get_nowait()()


def answer(core: Any, future: "concurrent.futures.Future[Any]") -> Any:
    """What a call of the core's returns. A core without a loop does what is posted until the future is done."""
    if hasattr(core, "input_queue"):
        return future
    future.add_done_callback(lambda _: jobs_of(core).put(lambda: None))
    while not future.done():
        jobs_of(core).get()()
    return future.result()


# ---- the leader ----


class Leader:
    """Follows one store for one engine core."""

    def __init__(self, core: Any, settings: Settings) -> None:
        self.settings = settings
        self._core = core
        self._ranks: Dict[int, _Rank] = {}
        self._world = int(core.vllm_config.parallel_config.world_size)
        self._news: "queue.Queue[Tuple[Any, ...]]" = queue.Queue()
        self._hearing, self._calling = multiprocessing.connection.Pipe(duplex=False)
        self._requests: List[_Request] = []
        self._opening: Optional["concurrent.futures.Future[Any]"] = None
        self._opening_end = 0.0
        self._committing = False
        self._failed_commits = 0
        self._ending = False
        self._end = "weft: following has ended; see the engine's log"  # what those are told who wait for it
        self._figures = metrics.Figures(core)

    # -- on the core's own thread --

    def open(self) -> None:
        """Has all workers derive their layouts, and begin to follow."""
        found: List[Tuple[int, Layout]] = self._call(worker.describe)
        cuts = announced(_cuts_of([layout for _, layout in sorted(found, key=lambda pair: pair[0])]))
        secret = os.urandom(32)
        self._listener = multiprocessing.connection.Listener(family="AF_UNIX", backlog=self._world, authkey=secret)
        self._thread = threading.Thread(target=self._run, name="weft leader", daemon=True)
        self._thread.start()
        try:
            self._call(worker.open_follower, self._named_settings(), self._listener.address, secret, cuts)
        except BaseException:
            self.close()
            raise
        told = f", cuts announced: {' '.join(map(str, cuts))}" if cuts else ""
        logger.info("weft: following %s with %d worker(s)%s", self.settings.store, self._world, told)

    def _named_settings(self) -> Settings:
        """Data-parallel engine cores are told the same name, and each has reports of its own."""
        index = int(getattr(self._core, "engine_index", 0))
        suffix = f"-{index}" if index > 0 else ""
        return dataclasses.replace(self.settings, name=self.settings.name[: MOST_NAME - len(suffix)] + suffix)

    def _call(self, function: Callable[..., "worker.Outcome"], *arguments: Any) -> List[Any]:
        """Calls all workers; their results, or the first error."""
        outcomes = self._core.model_executor.collective_rpc(function, args=arguments)
        for error, _ in outcomes:
            if error is not None:
                raise InvalidArgument(error)
        return [result for _, result in outcomes]

    def request(self, version: int) -> "concurrent.futures.Future[Any]":
        """Asks for a version, or 0: the newest. The future is done when it is in place."""
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        self._notify("request", _Request(version, future))
        return future

    def opened(self) -> "concurrent.futures.Future[Any]":
        """Done when the store has answered all workers; it fails if one of them cannot read it."""
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        self._notify("opening", future)
        return future

    def close(self) -> None:
        self._end = "weft: meanwhile the engine was told to follow another store, or none"
        self._ending = True
        self._notify("end")
        with contextlib.suppress(OSError):
            self._listener.close()
        for rank in self._ranks.values():
            with contextlib.suppress(OSError):
                rank.connection.close()

    def _commit(self, target: int) -> None:
        if self._ending:  # the workers follow another leader by now, or none
            return
        start = time.perf_counter()
        answered = len(self._core.scheduler.running)
        outcomes: List[worker.Outcome] = self._core.model_executor.collective_rpc(
            worker.commit, args=(target, self._world > 1)
        )
        errors = [f"worker {rank}: {error}" for rank, (error, _) in enumerate(outcomes) if error is not None]
        if errors:
            back: List[worker.Outcome] = self._core.model_executor.collective_rpc(worker.rollback)
            states = {None if result is None else result[0] for _, result in back}
            if any(error is not None for error, _ in back) or len(states) > 1:
                logger.critical("weft: workers are at different versions (%s), after: %s", states, "; ".join(errors))
                raise SystemExit(1)
            self._notify("uncommitted", "; ".join(errors))
            return
        version = int(outcomes[0][1][0])
        committed = time.perf_counter()
        forget_caches(self._core, version, self.settings.running)
        self._core.set_weight_version(str(version))
        results = [result for _, result in outcomes]
        self._notify("committed", version, target, results, committed - start, time.perf_counter() - start, answered)

    # -- the leader's thread --

    def _notify(self, *news: Any) -> None:
        self._news.put(news)
        with contextlib.suppress(OSError):
            self._calling.send_bytes(b"!")
        if self._ending:
            self._fail()

    def _run(self) -> None:
        try:
            self._meet()
            while not self._ending:
                self._listen()
                self._decide()
        except (EOFError, OSError) as error:
            running = getattr(self._core, "is_running", lambda: True)
            if not self._ending and running():
                logger.error("weft: a worker is gone (%s); the engine stays at the version that it has", error)
        except Exception:
            logger.exception("weft: following has ended; the engine stays at the version that it has")
        self._ending = True
        self._fail()

    def _fail(self) -> None:
        """Whoever waits for a leader that has ended is told so, also who comes later."""
        waiting = [self._opening, *(request.future for request in self._requests)]
        with contextlib.suppress(queue.Empty):
            while True:
                kind, *details = self._news.get_nowait()
                if kind == "request":
                    waiting.append(details[0].future)
                elif kind == "opening":
                    waiting.append(details[0])
        self._opening, self._requests = None, []
        for future in waiting:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                if future is not None:
                    future.set_exception(RuntimeError(self._end))

    def _meet(self) -> None:
        while len(self._ranks) < self._world:
            connection = self._listener.accept()
            _, _, rank = connection.recv()
            self._ranks[rank] = _Rank(connection)

    def _listen(self) -> None:
        ranks = list(self._ranks.values())
        left = None if self._opening is None else max(0.0, self._opening_end - time.monotonic())
        ready = multiprocessing.connection.wait([self._hearing, *(rank.connection for rank in ranks)], left)
        if self._hearing in ready:
            self._hearing.recv_bytes()
            with contextlib.suppress(queue.Empty):
                self._hear_core(*self._news.get_nowait())
        for rank in ranks:
            if rank.connection in ready:
                self._hear(rank, *rank.connection.recv())

    def _hear(self, rank: _Rank, kind: str, order: int, *details: Any) -> None:
        if kind == "failed":
            self._figures.failures += 1
            if rank.failure != details[0]:
                logger.warning("weft: %s; the engine serves on with the weights that it has", details[0])
            rank.failure = details[0]
            self._answer_opening(details[0])
            if order == rank.order and self._requests and self._requests[0].begun:
                self._refuse(details[0])
        else:
            rank.failure = None
            rank.open = True
            rank.version, rank.figures = details[-2:]
            if kind == "prepared" and order == rank.order:
                rank.target, rank.changed = details[:2]
        self._figures.show(self._ranks.values())

    def _hear_core(self, kind: str, *details: Any) -> None:
        if kind == "request":
            self._requests.append(details[0])
        elif kind == "opening":
            self._opening, self._opening_end = details[0], time.monotonic() + _OPENING
            self._answer_opening(next((rank.failure for rank in self._ranks.values() if rank.failure), None))
        elif kind == "committed":
            self._committing = False
            self._failed_commits = 0
            self._note_commit(*details)
        elif kind == "uncommitted":
            self._committing = False
            self._failed_commits += 1
            if self._requests and self._requests[0].begun:
                self._requests.pop(0).future.set_exception(RuntimeError(details[0]))
            else:
                logger.error("weft: %s; no worker has changed, and the engine serves on", details[0])
            first, most = _AGAIN
            self._order_all("pause", min(most, first * 2 ** (self._failed_commits - 1)))

    def _note_commit(
        self, version: int, target: int, results: List[Any], calling: float, pause: float, answered: int
    ) -> None:
        for number, (at, figures, *_) in enumerate(results):
            self._ranks[number].version, self._ranks[number].figures = at, figures
        writing = max(seconds for *_, seconds, _ in results)
        self._figures.committed(version, pause, writing, max(running for *_, running in results), answered)
        self._figures.show(self._ranks.values())
        logger.info(
            "weft: at version %d; pause %.1f ms, of which %.1f ms the workers' commit and %.1f ms the calls",
            version, 1e3 * pause, 1e3 * writing, 1e3 * (calling - writing),
        )
        request = self._requests[0] if self._requests and self._requests[0].begun else None
        if request is not None and version != target:  # this was one step of several
            self._order_all("prepare", target)
            return
        if request is not None:
            self._requests.pop(0).future.set_result([None] * self._world)
        self._order_all("go")

    def _order_all(self, *order: Any) -> None:
        for rank in self._ranks.values():
            self._order(rank, *order)

    def _order(self, rank: _Rank, *order: Any) -> None:
        rank.order += 1
        rank.target = None
        rank.connection.send((rank.order, *order))

    def _refuse(self, text: str) -> None:
        self._requests.pop(0).future.set_exception(RuntimeError(text))
        self._order_all("drop")

    def _answer_opening(self, failure: Optional[str] = None) -> None:
        future = self._opening
        if future is None:
            return
        if failure is None and time.monotonic() > self._opening_end:
            failure = f"{self.settings.store} has not answered within {_OPENING:g} s"
        if failure is not None:
            self._opening = None
            future.set_exception(RuntimeError(failure))
        elif all(rank.open for rank in self._ranks.values()):
            self._opening = None
            future.set_result([None] * self._world)

    def _decide(self) -> None:
        self._answer_opening()
        if self._committing:
            return
        ranks = list(self._ranks.values())
        if self._requests and not self._requests[0].begun:
            self._requests[0].begun = True
            self._order_all("prepare", self._requests[0].version)
            return
        if any(rank.target is None for rank in ranks):
            return
        target = max(rank.target for rank in ranks if rank.target is not None)
        behind = [rank for rank in ranks if rank.target != target]
        if behind:
            for rank in behind:
                self._order(rank, "prepare", target)
        elif any(rank.changed for rank in ranks):
            self._committing = True
            post(self._core, lambda: self._commit(target))
        else:
            if self._requests:
                self._requests.pop(0).future.set_result([None] * self._world)
            self._order_all("go")
            if self._requests:  # workers that wait for an order tell nothing by themselves
                self._decide()


def _cuts_of(layouts: List[Layout]) -> List[Cut]:
    """What the publisher must cut for these workers; all of them know parts of the checkpoint."""
    checkpoint = {name: tensor for layout in layouts for name, tensor in layout.checkpoint.items()}
    try:
        return cuts_for([dataclasses.replace(layout, checkpoint=checkpoint) for layout in layouts])
    except LayoutError as error:
        raise InvalidArgument(str(error)) from None


def forget_caches(core: Any, version: int, running: str) -> None:
    """Nothing that was computed with other weights may be found by a request that comes later.

    vLLM resets its prefix cache only if no request is running, or preempts those. With "keep" they go on with what
    they have: the blocks that are cached leave the index, and what running requests will add to it gets hashes that
    only they have."""
    scheduler = core.scheduler
    again = running == "recompute"
    if not ((again or not scheduler.has_unfinished_requests()) and core.reset_prefix_cache(again, True)):
        pool = scheduler.kv_cache_manager.block_pool
        cached = {block.block_id for block in pool.blocks if block.block_hash is not None}
        scheduler.kv_cache_manager.evict_blocks(cached)
        for request in scheduler.requests.values():
            if request.num_computed_tokens > 0:
                _set_apart(request, version, pool.hash_block_size)
        scheduler.reset_connector_cache()
    if core.vllm_config.model_config.is_multimodal_model:
        core.reset_encoder_cache()


def _set_apart(request: Any, version: int, block_tokens: int) -> None:
    """What this request computes from now on stands on attention to older weights: no other may find it."""
    request.cache_salt = f"{request.cache_salt or ''}@weft-{version}"
    first = max(0, min(request.num_computed_tokens // block_tokens, len(request.block_hashes)) - 1)
    for index in range(first, len(request.block_hashes)):
        mixed = hashlib.sha256(b"weft %d " % version + request.block_hashes[index])
        request.block_hashes[index] = type(request.block_hashes[index])(mixed.digest())


__all__ = ["Leader", "answer", "forget_caches", "post", "turn"]
