# SPDX-License-Identifier: Apache-2.0
"""What the adapters to frameworks have in common: weights that come as a stream, and engines that are asked by HTTP."""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import json
import os
import pathlib
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

from .context import logger
from .errors import InvalidArgument, NotFoundError, RemoteError
from .keys import KeyLike
from .layouts import Cut
from .publisher import Published, Publisher
from .runs import log
from .store import StoreLike
from .subscriber import Subscriber

_MOST_CUTS, _MOST_CUTS_BYTES = 64, 1024  # of a report (doc/FORMAT.md, section 28)
_SHARED = "/dev/shm"
_POLL = 0.02  # seconds between looks for a version


class Stream:
    """Publishes weights that a framework hands over one by one and takes back at once.

    Each is copied into memory of the host that stays, in BF16 if it is FP32, and the publisher compares that with what
    it published last. So the host holds the model twice in the published dtype. The publisher is opened when the first
    weights are there; `options` are weft.Publisher's."""

    def __init__(self, store: StoreLike, **options: Any) -> None:
        self._store = store
        self._options = options
        self._held: Dict[str, Any] = {}
        self._taken: Set[str] = set()
        self._publisher: Optional[Publisher] = None

    def take(self, name: str, tensor: Any) -> None:
        """One of the weights. All are given for each version."""
        import torch

        held = self._held.get(name)
        if held is None:
            if self._publisher is not None:
                raise InvalidArgument(
                    f"tensor {name} was not published before; publish a model with other tensors to another store"
                )
            dtype = torch.bfloat16 if tensor.dtype == torch.float32 else tensor.dtype
            held = self._held[name] = torch.empty(tensor.shape, dtype=dtype)
        elif held.shape != tensor.shape:
            raise InvalidArgument(
                f"tensor {name} has the shape {tuple(tensor.shape)}, and had {tuple(held.shape)}; "
                "publish a model of another shape to another store"
            )
        held.copy_(tensor.detach())
        self._taken.add(name)

    def publish(self, **labels: object) -> Published:
        """What was taken since the last call. If this fails, nothing was published, and all weights are to be given
        again."""
        taken, self._taken = self._taken, set()
        missing = next((name for name in self._held if name not in taken), None)
        if missing is not None:
            raise InvalidArgument(
                f"tensor {missing} was published before, and is missing now; give all weights each time"
            )
        if self._publisher is None:
            self._publisher = Publisher(self._store, self._held, **self._options)
        return self._publisher.publish(labels)

    def publish_all(self, weights: "Iterable[Tuple[str, Any]]", **labels: object) -> Published:
        for name, tensor in weights:
            self.take(name, tensor)
        return self.publish(**labels)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = None
        self._held.clear()


def newest(store: StoreLike, trust: KeyLike = None) -> int:
    """The newest version in a store; 0 if there is none."""
    try:
        entries = log(store, trust=trust, limit=1)
    except NotFoundError:
        return 0
    return entries[0].version if entries else 0


def announced(cuts: List[Cut]) -> List[Cut]:
    """Those that go into an engine's report, where a publisher finds them: all, or none if they do not fit."""
    text = " ".join(map(str, cuts))
    if len(cuts) <= _MOST_CUTS and len(text.encode()) <= _MOST_CUTS_BYTES:
        return cuts
    logger.warning("weft: too many cuts to be announced; give them to the publisher: %s", text)
    return []


class Receiver:
    """A checkpoint of the newest version on this host, for frameworks whose engines load weights whole.

    All ranks of a host share it: the one that holds a lock follows the store, and the others wait until it has the
    version. If that one ends, another takes over. `cache` is the directory, by default below /dev/shm.
    """

    def __init__(
        self, store: str, *, trust: Optional[str] = None, cache: Optional[str] = None, timeout: float = 600
    ) -> None:
        name = f"weft-{os.getuid()}-{hashlib.sha256(store.encode()).hexdigest()[:16]}"
        self._store = store
        self._trust = trust
        self._timeout = timeout
        self._directory = pathlib.Path(
            cache or os.path.join(_SHARED if os.path.isdir(_SHARED) else tempfile.gettempdir(), name)
        )
        self._lock: Optional[int] = None
        self._subscriber: Optional[Subscriber] = None
        self._after = 0

    @property
    def path(self) -> pathlib.Path:
        return self._directory / "model.safetensors"

    def begin(self) -> None:
        """By each rank of rollouts, before any of them receives: what an earlier job has left in the directory, of
        another run perhaps, is not taken for this one's."""
        if self._hold() and self._subscriber is None:
            (self._directory / "version").unlink(missing_ok=True)

    def prepare(self) -> None:
        """What is published from now on is what the next receive() waits for."""
        self._after = newest(self._store, self._trust)

    def receive(self) -> int:
        """Waits for a version that is newer than prepare() or the last receive() saw, and brings the checkpoint
        there."""
        end = time.monotonic() + self._timeout
        while True:
            version = self._pull() if self._lead() else self._told()
            if version > self._after:
                self._after = version
                return version
            if time.monotonic() > end:
                raise RemoteError(
                    -500,
                    f"{self._store}: nothing newer than version {self._after} within {self._timeout:g} s; "
                    "look whether the trainer has published",
                )
            time.sleep(_POLL)

    def _hold(self) -> bool:
        """Whether this process has the lock. That is a file of its own: the checkpoint may not exist yet."""
        if self._lock is None:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def _lead(self) -> bool:
        """Whether this process is the one that follows, and can."""
        if not self._hold():
            return False
        if self._subscriber is None:
            try:
                self._subscriber = Subscriber(self._store, self.path, trust=self._trust, replace=True)
            except NotFoundError:  # nothing is published yet
                return False
        return True

    def _pull(self) -> int:
        assert self._subscriber is not None
        if self._subscriber.poll() is not None:
            self._subscriber.pull()
        version = self._subscriber.version
        note = self._directory / f"version.{os.getpid()}"
        note.write_text(str(version))
        os.replace(note, self._directory / "version")
        return version

    def _told(self) -> int:
        try:
            return int((self._directory / "version").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def tensors(self) -> "Iterator[Tuple[str, Any]]":
        """The checkpoint's tensors, which lie in the file: copy what is to stay."""
        from safetensors import safe_open

        with safe_open(str(self.path), "pt") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)

    def close(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
        if self._lock is not None:
            os.close(self._lock)
        self._subscriber = self._lock = None


def post(url: str, body: Mapping[str, Any], timeout: float, api_key: Optional[str] = None) -> "Tuple[int, Any]":
    """The status of an engine's answer, and its JSON or text. RemoteError if there is no answer. Nothing is tried
    twice."""
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
        self,
        urls: "Union[str, Sequence[str]]",
        init_info: Mapping[str, Any],
        timeout: float,
        api_key: Optional[str] = None,
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
            raise RemoteError(
                -500,
                f"{url} has no /{route}; start vLLM with VLLM_SERVER_DEV_MODE=1 and "
                '--weight-transfer-config \'{"backend": "weft"}\'',
            )
        if status != 200:
            raise RemoteError(-500, f"{url}/{route} answered {status}: {answer}")
