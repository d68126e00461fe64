# SPDX-License-Identifier: Apache-2.0
"""TRL: its trainers publish, and its vLLM servers follow.

    GRPOTrainer(…, callbacks=[weft.trl.PublishCallback("s3://bucket/run-7")])      # engines follow by themselves

    weft.trl.use("s3://bucket/run-7")                                              # or each sync waits for the server:
    GRPOTrainer(…, args=GRPOConfig(use_vllm=True, vllm_mode="server", …))

    AsyncGRPOTrainer(…, weight_transfer=weft.trl.WeightTransfer("s3://bucket/run-7", "http://engine:8000"))

Servers are those of `vllm serve … --weight-transfer-config '{"backend": "weft"}'`, with VLLM_SERVER_DEV_MODE=1 for the
second and third.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

from transformers import TrainerCallback
from trl.generation import vllm_client, vllm_generation

from . import lora, sharded
from ._frameworks import Stream, VLLMServers
from .context import logger
from .errors import InvalidArgument, RemoteError
from .publisher import Published, Publisher
from .store import StoreLike
from .tensors import Model

_TIMEOUT = 600.0  # seconds for an engine's answer


class PublishCallback(TrainerCallback):  # type: ignore[misc]
    """Publishes a trainer's model when training begins, and after every `every`-th step, with the label step. FP32
    parameters are published as BF16. `published` is the newest result; `options` are weft.Publisher's.

    A model under FSDP2 is published by all ranks, each what it holds. Of a model of PEFT, what its weights are with the
    adapter merged is published; with adapter=True the adapter alone, as a small model of its own.
    """

    def __init__(self, store: StoreLike, *, every: int = 1, adapter: bool = False, **options: Any) -> None:
        if every < 1:
            raise InvalidArgument(f"every is {every}; give 1 or more")
        self.published: Optional[Published] = None
        self._store = store
        self._every = every
        self._adapter = adapter
        self._options = {"dtype": "bfloat16", **options}
        self._merged: Optional[lora.Merged] = None
        self._publisher: Optional[Publisher] = None

    def _open(self, model: Any, main: bool) -> None:
        tensors: Model = model
        if lora.is_adapted(model):
            self._merged = None if self._adapter else lora.Merged(model)
            tensors = lora.adapter_state(model) if self._merged is None else self._merged.state
        elif any(sharded.is_sharded(parameter) for parameter in model.parameters()):
            self._publisher = sharded.Publisher(self._store, model, **self._options)
            return
        if main:
            self._publisher = Publisher(self._store, tensors, **self._options)

    def on_train_begin(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        self._open(model, state.is_world_process_zero)
        self._publish(state.global_step)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step % self._every == 0:
            self._publish(state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = self._merged = None

    def _publish(self, step: int) -> None:
        if self._publisher is not None:
            if self._merged is not None:
                self._merged.refresh()
            self.published = self._publisher.publish(step=step)


class VLLMClient(vllm_client.VLLMClient):  # type: ignore[misc]
    """TRL's client of a vLLM server, whose weights go through a store. `engine_store` is the address by which the
    server reaches it, if that is another than the trainer's; `trust` the path of the public key there; `options` are
    weft.Publisher's."""

    def __init__(
        self,
        *arguments: Any,
        store: StoreLike,
        engine_store: Optional[str] = None,
        trust: Optional[str] = None,
        options: Optional[Mapping[str, Any]] = None,
        timeout: float = _TIMEOUT,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._stream = Stream(store, **(options or {}))
        self._servers = VLLMServers(self.base_url, _init_info(store, engine_store, trust), timeout)
        self.published: Optional[Published] = None

    def init_communicator(self, device: Any = 0) -> None:
        """There is no group of processes. The server opens the store when the first version is there."""
        config = self.get_server_info()["weight_transfer_config"]
        if config is None or config["backend"] != "weft":
            raise RemoteError(
                -500,
                f"{self.base_url} does not follow weft; start it with "
                '--weight-transfer-config \'{"backend": "weft"}\'',
            )

    def update_named_params(self, metadata: Any, named_params: "Iterable[Tuple[str, Any]]") -> None:
        """Publishes all weights, and returns when the server has them. A failure is raised with the server's text."""
        if self._updating_weights:
            raise InvalidArgument(
                "weft publishes a model whole: call update_model_params(model), without weight_update()"
            )
        self.published = self._stream.publish_all(named_params)
        self._servers.go_to(self.published.version)

    def update_named_param(self, name: str, weights: Any) -> None:
        raise InvalidArgument("weft publishes a model whole: call update_model_params(model)")

    def close_communicator(self) -> None:
        self._stream.close()


def use(store: StoreLike, **named: Any) -> None:
    """From now on the trainers of this process reach their vLLM servers by weft.trl.VLLMClient; `named` are its
    arguments. TRL has no argument for its client, so this takes the client's place where the trainers look for it."""
    vllm_generation.VLLMClient = functools.partial(VLLMClient, store=store, **named)


class WeightTransfer:
    """The `weight_transfer` of an AsyncGRPOTrainer: each sync publishes, and returns when the servers at `urls` have
    the version. They change weights between two steps and go on: nothing is paused. With no urls it only publishes, for
    engines that follow by themselves."""

    def __init__(
        self,
        store: StoreLike,
        urls: Union[str, Sequence[str]] = (),
        *,
        engine_store: Optional[str] = None,
        trust: Optional[str] = None,
        timeout: float = _TIMEOUT,
        api_key: Optional[str] = None,
        **options: Any,
    ) -> None:
        self.published: Optional[Published] = None
        self._stream = Stream(store, **options)
        self._servers = VLLMServers(urls, _init_info(store, engine_store, trust), timeout, api_key)

    def init_weight_transfer(self) -> None:
        """Nothing is to be set up before the first version."""

    def pause(self) -> None:
        """The servers need no pause."""

    def send_weights(self, iterator: "Iterable[Tuple[str, Any]]") -> None:
        self.published = self._stream.publish_all(iterator)
        self._servers.go_to(self.published.version)
        logger.info("version %d is in the engines", self.published.version)

    def resume(self) -> None:
        """Nothing was paused."""

    def destroy(self) -> None:
        self._stream.close()


def _init_info(store: StoreLike, engine_store: Optional[str], trust: Optional[str]) -> Dict[str, Any]:
    """What a server is told. It goes to a version when it is asked, and not before: a trainer knows whose rollouts it
    has."""
    address = engine_store or str(getattr(store, "url", store))
    return {"store": address, "follow": False, **({} if trust is None else {"trust": trust})}
