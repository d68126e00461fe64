# SPDX-License-Identifier: Apache-2.0
"""What the adapters to frameworks have in common: weights that come as a stream, and engines that are asked by HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import urllib.error
import urllib.request
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from .errors import InvalidArgument, RemoteError
from .publisher import Published, Publisher
from .store import StoreLike


class Stream:
    """Publishes weights that a framework hands over one by one, as (name, tensor), and takes back at once.

    Each is copied into memory of the host that stays, in BF16 if it is FP32, and the publisher compares that with what it
    published last. So the host holds the model twice in the published dtype. The publisher is opened when the first weights
    are there; `options` are weft.Publisher's.
    """

    def __init__(self, store: StoreLike, **options: Any) -> None:
        self._store = store
        self._options = options
        self._held: Dict[str, Any] = {}
        self._publisher: Optional[Publisher] = None

    def publish(self, weights: "Iterable[Tuple[str, Any]]", **labels: object) -> Published:
        """All weights are given each time. If this fails, nothing was published."""
        import torch

        with torch.no_grad():
            names = {name for name, tensor in map(self._keep, weights) if tensor is not None}
        missing = next((name for name in self._held if name not in names), None)
        if missing is not None:
            raise InvalidArgument(f"tensor {missing} was published before, and is missing now; give all weights each time")
        if self._publisher is None:
            self._publisher = Publisher(self._store, self._held, **self._options)
        return self._publisher.publish(labels)

    def _keep(self, pair: "Tuple[str, Any]") -> "Tuple[str, Any]":
        import torch

        name, tensor = pair
        held = self._held.get(name)
        if held is None:
            if self._publisher is not None:
                raise InvalidArgument(f"tensor {name} was not published before; publish a model with other tensors to a new store")
            dtype = torch.bfloat16 if tensor.dtype == torch.float32 else tensor.dtype
            held = self._held[name] = torch.empty(tensor.shape, dtype=dtype)
        elif held.shape != tensor.shape:
            raise InvalidArgument(f"tensor {name} has the shape {tuple(tensor.shape)}, and had {tuple(held.shape)}; "
                                  "publish a model of another shape to a new store")
        held.copy_(tensor.detach())
        return name, held

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = None
        self._held.clear()


def post(url: str, body: Mapping[str, Any], timeout: float, api_key: Optional[str] = None) -> "Tuple[int, Any]":
    """The status of an engine's answer, and its JSON or text. RemoteError if there is no answer. Nothing is tried twice."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    except OSError as error:
        raise RemoteError(-500, f"{url} was not reached: {error}; start the engine, or look at its address") from error
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode(errors="replace")


class VLLMServers:
    """Servers of vLLM with the backend weft, which go to a version when they are told to."""

    def __init__(
        self, urls: "Union[str, Sequence[str]]", init_info: Mapping[str, Any], timeout: float, api_key: Optional[str] = None
    ) -> None:
        self._urls: List[str] = [urls] if isinstance(urls, str) else list(urls)
        self._init_info = dict(init_info)
        self._timeout = timeout
        self._api_key = api_key
        self._opened = False

    def go_to(self, version: int) -> None:
        """All of them; RemoteError with the first failure's text. The others are at the version then."""
        with concurrent.futures.ThreadPoolExecutor(max(1, len(self._urls))) as pool:
            list(pool.map(lambda url: self._go_to(url, version), self._urls))
        self._opened = True

    def _go_to(self, url: str, version: int) -> None:
        if not self._opened:
            self._ask(url, "init_weight_transfer_engine", {"init_info": self._init_info})
        self._ask(url, "start_weight_update", {})
        self._ask(url, "update_weights", {"update_info": {"version": version}})
        self._ask(url, "finish_weight_update", {"weight_version": str(version)})

    def _ask(self, url: str, route: str, body: Mapping[str, Any]) -> None:
        status, answer = post(f"{url.rstrip('/')}/{route}", body, self._timeout, self._api_key)
        if status == 404:
            raise RemoteError(-500, f"{url} has no /{route}; start vLLM with VLLM_SERVER_DEV_MODE=1 and "
                              "--weight-transfer-config '{\"backend\": \"weft\"}'")
        if status != 200:
            raise RemoteError(-500, f"{url}/{route} answered {status}: {answer}")
