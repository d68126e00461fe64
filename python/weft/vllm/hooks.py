# SPDX-License-Identifier: Apache-2.0
"""What the plug-in hangs into vLLM. Each hook looks first whether this engine's backend is weft, and else does nothing.

* The backend's name, in the factory of weight transfer engines: vLLM's own way.
* The engine core's loop: before it begins, the store of WEFT_STORE is opened; and a utility of the core, `weft_turn`,
  is what the leader asks the loop to call between two steps.
* The engine core's collective_rpc: the routes /start_weight_update, /update_weights and so on are calls of all workers.
  They are answered by the leader, so that one worker's failure is an answer and not a disorder among the others, and
  the core goes on with its steps while a version is fetched.
* On a processor without an accelerator, vLLM packs weights for oneDNN or AMX and computes with that copy. No setting
  turns it off. A flag that it asks says no while a model is loaded for weft.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import os
from typing import Any, Callable, Dict, Mapping, Optional

from ..errors import NOT_FOUND, InvalidArgument, NotFoundError
from ..store import Store
from . import metrics
from .settings import Settings, from_environment

logger = logging.getLogger("vllm.weft")

BACKEND = "weft"


def install() -> None:
    """Idempotent: vLLM loads plug-ins in each of its processes, and perhaps twice."""
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
    )

    if BACKEND in WeightTransferEngineFactory._registry:
        return
    WeightTransferEngineFactory.register_engine(BACKEND, "weft.vllm.worker", "WeftWeightTransferEngine")
    metrics.install()
    _keep_weights_plain()
    _enter_core()


def _uses_weft(config: Any) -> bool:
    chosen = getattr(config, "weight_transfer_config", None)
    return chosen is not None and chosen.backend == BACKEND


# ---- plain weights on processors ----


class _Packing:
    """Stands for a flag of vLLM's: false while a model is loaded whose weights weft will change."""

    def __init__(self, was: bool) -> None:
        self._was = was
        self._told = False

    def __bool__(self) -> bool:
        return self._was and not self.refused()

    def refused(self) -> bool:
        from vllm.config import get_current_vllm_config_or_none

        refused = _uses_weft(get_current_vllm_config_or_none())
        if refused and self._was and not self._told:
            self._told = True
            logger.warning(
                "weft: weights are not packed for oneDNN or AMX, since packed copies cannot be updated in place; "
                "steps with long prompts are slower for it"
            )
        return refused


def _keep_weights_plain() -> None:
    import vllm._custom_ops as operations
    from vllm.model_executor.layers import utils

    packing = _Packing(bool(getattr(operations, "_supports_onednn", False)))
    operations._supports_onednn = packing
    check = getattr(utils, "check_cpu_sgl_kernel", None)
    if check is not None:

        @functools.wraps(check)
        def check_plain(*arguments: Any, **named: Any) -> Any:
            return not packing.refused() and check(*arguments, **named)

        utils.check_cpu_sgl_kernel = check_plain


# ---- the engine core ----


def _enter_core() -> None:
    from vllm.v1.engine import core as module

    module.EngineCore.weft_turn = _turn
    module.EngineCore.collective_rpc = _answering(module.EngineCore.collective_rpc)
    for name in ("EngineCoreProc", "DPEngineCoreProc"):
        kind = getattr(module, name, None)
        if kind is not None and "run_busy_loop" in vars(kind):
            kind.run_busy_loop = _following(kind.run_busy_loop)


def _turn(core: Any) -> "concurrent.futures.Future[None]":
    """A call that nobody waits for: the core sends no answer before the future is done, which it never is."""
    from .leader import turn

    turn(core)
    return concurrent.futures.Future()


def _following(loop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(loop)
    def run(core: Any) -> Any:
        settings = from_environment() if _uses_weft(core.vllm_config) else None
        if settings is not None:
            _open(core, settings)
        return loop(core)

    return run


def _open(core: Any, settings: Settings) -> None:
    from .leader import Leader

    if getattr(core, "weft_leader", None) is not None:
        core.weft_leader.close()
    core.weft_leader = Leader(core, settings)
    core.weft_leader.open()


def _close(core: Any) -> None:
    from . import worker

    core.weft_leader.close()
    core.model_executor.collective_rpc(worker.close_follower)
    core.weft_leader = None


def _answering(rpc: Callable[..., Any]) -> Callable[..., Any]:
    routes: "Dict[str, Callable[..., Any]]" = {
        "init_weight_transfer_engine": _initialise,
        "start_weight_update": _start,
        "start_draft_weight_update": _start_draft,
        "update_weights": _update,
        "finish_weight_update": _finish,
        "shutdown_weight_transfer_engine": _shut_down,
    }

    @functools.wraps(rpc)
    def answer(
        core: Any,
        method: Any,
        timeout: Optional[float] = None,
        args: Any = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        route = routes.get(method) if isinstance(method, str) and _uses_weft(core.vllm_config) else None
        if route is None:
            return rpc(core, method, timeout, args, kwargs)
        return route(core, *args, **(kwargs or {}))

    return answer


def _nothing(core: Any) -> Any:
    return [None] * int(core.vllm_config.parallel_config.world_size)


def _initialise(core: Any, init_info: Any) -> Any:
    """Answered when the store has answered. If it cannot be read, the engine follows what it followed before. What it
    follows already is opened anew: there may be another run in that place by now."""
    from .leader import answer, post

    if not isinstance(init_info, Mapping):
        raise InvalidArgument('init_info is not an object such as {"store": "https://trainer:8477"}')
    former = getattr(core, "weft_leader", None)
    # the name is made up anew each time that it is left out
    given = dict(init_info) if former is None else {"name": former.settings.name, **init_info}
    settings = Settings.of(given)
    _check_place(settings.store)
    _open(core, settings)
    leader = core.weft_leader
    opened, future = leader.opened(), concurrent.futures.Future()  # type: ignore[var-annotated]

    def end() -> None:
        failure = opened.exception()
        if failure is None:
            future.set_result(_nothing(core))
            return
        try:
            if core.weft_leader is leader:
                _close(core)
                if former is not None:
                    _open(core, former.settings)
        finally:
            future.set_exception(failure)

    opened.add_done_callback(lambda _: post(core, end))
    return answer(core, future)


def _check_place(url: str) -> None:
    """A directory that is not there may come later, but who names it in a call has more likely misspelt it."""
    with Store(url) as store:
        if store.directory is not None and not os.path.isdir(store.directory):
            raise NotFoundError(NOT_FOUND, f"the store {store.directory} does not exist; name a directory that does")


def _start(core: Any) -> Any:
    if getattr(core, "weft_updating", False):
        raise RuntimeError("start_weight_update: an update is under way; call finish_weight_update first")
    core.weft_updating = True
    return _nothing(core)


def _start_draft(core: Any) -> Any:
    raise RuntimeError("weft does not update draft models; publish the model itself, and call start_weight_update")


def _update(core: Any, update_info: Any) -> Any:
    from .leader import answer

    if not getattr(core, "weft_updating", False):
        raise RuntimeError("update_weights: start_weight_update must be called first")
    try:
        future = _requested(core, update_info)
    except BaseException:
        core.weft_updating = False
        raise

    def end(done: "concurrent.futures.Future[Any]") -> None:
        core.weft_updating = done.exception() is None

    future.add_done_callback(end)
    return answer(core, future)


def _requested(core: Any, update_info: Any) -> "concurrent.futures.Future[Any]":
    leader = getattr(core, "weft_leader", None)
    if leader is None:
        raise RuntimeError("no store is followed; set WEFT_STORE, or call init_weight_transfer_engine with a store")
    if isinstance(update_info, list):  # one for each worker
        if any(info != update_info[0] for info in update_info) or not update_info:
            raise InvalidArgument("update_info differs between workers; all of them go to the same version")
        update_info = update_info[0]
    if not isinstance(update_info, Mapping) or not set(update_info) <= {"version"}:
        raise InvalidArgument('update_info is {"version": N}, or {} for the newest')
    version = update_info.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidArgument(f"version is {version!r}; give a number from 1, or 0 for the newest")
    future: "concurrent.futures.Future[Any]" = leader.request(version)
    return future


def _finish(core: Any) -> Any:
    if not getattr(core, "weft_updating", False):
        raise RuntimeError("finish_weight_update: start_weight_update must be called first")
    core.weft_updating = False
    return _nothing(core)


def _shut_down(core: Any) -> Any:
    if getattr(core, "weft_leader", None) is not None:
        _close(core)
    return _nothing(core)
