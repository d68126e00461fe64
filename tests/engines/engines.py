# SPDX-License-Identifier: Apache-2.0
"""What the tests of engines share: the model, servers that are started and ended, changes of weights, comparisons.

Run by the Python of build/engines/venv. Engines are slow to start: a test script starts as few as it can.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, Optional

import requests
import torch
from limit import exit_when_asked, limit
from safetensors.torch import load_file, save_file

TREE = pathlib.Path(__file__).resolve().parents[2]
ENGINES = pathlib.Path(os.environ.get("WEFT_ENGINES", TREE / "build/engines")).resolve()
MODEL = ENGINES / "model"
COMMAND = TREE / "build/weft"

PATIENCE = 1800.0  # seconds; far more than anything takes on a machine that others use too

PROMPTS = [
    "The capital of France is", "Once upon a time, there was a little", "Water boils at", "def fibonacci(n):",
    "The three primary colours are", "To make a cup of tea, first", "In the year 1969,", "The opposite of hot is",
]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_CACHE_ROOT": str(ENGINES / "cache"), "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_COLOR": "0", "NO_COLOR": "1",
    # nothing is decided by how fast the machine is
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600", "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
}

Weights = Dict[str, torch.Tensor]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE, pause: float = 0.02) -> Any:
    """The first true value of the condition; fails after `seconds`, which are far more than it takes."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(pause)


# ---- weights ----


def load_weights() -> Weights:
    """The model's tensors, as its checkpoint has them."""
    return load_file(MODEL / "model.safetensors")


def move_weights(weights: Weights, seed: int, share: float = 0.01) -> int:
    """Moves this share of the weights by one unit in the last place, in place; how many."""
    random = torch.Generator().manual_seed(seed)
    changed = 0
    for name in sorted(weights):
        bits = weights[name].view(torch.int16).view(-1)
        places = torch.randint(bits.numel(), (max(1, int(share * bits.numel())),), generator=random).unique()
        places = places[(bits[places] & 0x7FFF) > 0x80]  # no zeros, and no step across zero
        steps = torch.randint(2, places.shape, generator=random, dtype=torch.int16) * 2 - 1
        bits[places] += steps
        changed += len(places)
    return changed


def save_model(weights: Weights, directory: pathlib.Path) -> pathlib.Path:
    """A Hugging Face directory with these weights."""
    directory.mkdir(parents=True)
    for file in MODEL.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, directory)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def fused_hashes(weights: Weights) -> Dict[str, str]:
    """SHA-256 of each tensor as an engine holds it on one rank, by the engine's names."""
    fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    found: Dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        for whole, parts in fused.items():
            if f".{parts[0]}." in name:
                name = name.replace(parts[0], whole)
                weight = torch.cat([weights[name.replace(whole, part)] for part in parts])
            elif any(f".{part}." in name for part in parts[1:]):
                name = ""
        if name:
            found[name] = weight
    return {name: hash_of(weight) for name, weight in found.items()}


def hash_of(weight: torch.Tensor) -> str:
    return hashlib.sha256(weight.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


# ---- servers ----


def free_port() -> int:
    """Below those that Linux gives to connections: none of them takes it before a server does, or while one is away."""
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Program:
    """A process of its own group, with a log, ended whole."""

    def __init__(self, command: List[str], log: pathlib.Path, environment: Optional[Dict[str, str]] = None) -> None:
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def end(self, how: int = signal.SIGTERM, seconds: float = 30) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if how == signal.SIGKILL else os.kill)(self.process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class StoreServer(Program):
    """`weft serve` of a directory, over HTTP on loopback."""

    def __init__(self, directory: pathlib.Path, port: int = 0) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(
            [str(COMMAND), "serve", str(directory), "--listen", f"127.0.0.1:{self.port}"],
            directory.with_suffix(".log"),
        )
        wait_for(self._answers, "weft serve")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.tail()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


class VLLM(Program):
    """`vllm serve` with weft's backend."""

    def __init__(
        self, place: pathlib.Path, *options: str, model: pathlib.Path = MODEL, eager: bool = True, **environment: str
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start = time.monotonic()
        python = pathlib.Path(sys.executable)
        mode = ["--enforce-eager"] if eager else []
        super().__init__(
            [
                str(python.with_name("vllm")), "serve", str(model), "--host", "127.0.0.1", "--port", str(self.port),
                "--dtype", "bfloat16", "--max-model-len", "1024", "--served-model-name", "model",
                "--weight-transfer-config", '{"backend": "weft"}', *mode, *options,
            ],
            place / f"vllm-{self.port}.log",
            {**ENVIRONMENT, **environment},
        )

    def ready(self, seconds: float = PATIENCE) -> "VLLM":
        wait_for(self._healthy, "vllm serve", seconds)
        say(f"vLLM is up after {time.monotonic() - self.start:.0f} s")
        return self

    def _healthy(self) -> bool:
        assert self.process.poll() is None, f"vLLM has ended:\n{self.tail(80)}"
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{self.url}/health", timeout=60).status_code == 200
        return False

    def post(self, route: str, body: Any = None, **query: str) -> requests.Response:
        return requests.post(f"{self.url}/{route}", json=body, params=query, timeout=PATIENCE)

    @property
    def version(self) -> str:
        found: str = requests.get(f"{self.url}/weight_info", timeout=PATIENCE).json()["weight_version"]
        return found

    def wait_version(self, version: int, seconds: float = PATIENCE) -> None:
        wait_for(lambda: self.version == str(version), f"version {version} in the engine", seconds, pause=0.1)

    def wait_figures(self, version: int) -> Dict[str, float]:
        """Of the commit of a version; they come a moment after it."""
        wait_for(lambda: self.metrics().get("version") == version, f"figures of version {version}", pause=0.1)
        return self.metrics()

    def hashes(self) -> Dict[str, str]:
        """vLLM's own: of each parameter, by the worker's rank and its name."""
        found: Dict[str, str] = self.post("weight_checker", {"action": "checksum"}).json()["checksums"]
        return found

    def generate(self, prompts: List[str] = PROMPTS, tokens: int = 16) -> List[Any]:
        """Tokens and log-probabilities of greedy answers."""
        answer = self.post("v1/completions", {
            "model": "model", "prompt": prompts, "temperature": 0, "max_tokens": tokens, "logprobs": 5,
            "return_token_ids": True,
        })
        assert answer.status_code == 200, answer.text
        choices = sorted(answer.json()["choices"], key=lambda choice: int(choice["index"]))
        return [(choice["token_ids"], choice["logprobs"]["top_logprobs"]) for choice in choices]

    def metrics(self) -> Dict[str, float]:
        """Those of weft, by name."""
        lines = requests.get(f"{self.url}/metrics", timeout=PATIENCE).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("weft:")]
        return {name.split("{")[0].removeprefix("weft:"): float(value) for name, value in pairs}


class Stream(threading.Thread):
    """A request whose tokens are noted as they come. vLLM sends several at once to who is slow to take them: how many
    there were is in `completed`, when the stream has ended as it should."""

    def __init__(self, server: VLLM, prompt: str = "Once upon a time", tokens: int = 400) -> None:
        super().__init__(daemon=True)
        self.server, self.prompt, self.tokens = server, prompt, tokens
        self.times: List[float] = []
        self.texts: List[str] = []
        self.completed = 0
        self.error: Optional[BaseException] = None
        self.start()

    def run(self) -> None:
        try:
            answer = requests.post(f"{self.server.url}/v1/completions", stream=True, timeout=PATIENCE, json={
                "model": "model", "prompt": self.prompt, "temperature": 0, "max_tokens": self.tokens, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True},
            })
            for line in answer.iter_lines(chunk_size=1):
                if line.startswith(b"data: {"):
                    found = json.loads(line[6:])
                    for choice in found["choices"]:
                        self.times.append(time.monotonic())
                        self.texts.append(choice["text"])
                    self.completed = (found.get("usage") or {}).get("completion_tokens", 0)
        except BaseException as error:
            self.error = error

    def ends_well(self) -> "Stream":
        self.join(PATIENCE)
        assert not self.is_alive(), f"a stream is at {len(self.texts)} pieces after {PATIENCE} s"
        assert self.error is None and self.completed == self.tokens, (self.error, self.completed)
        return self

    def gaps(self, after: float = 0, before: float = float("inf")) -> List[float]:
        """Seconds between tokens, of those that came in this time."""
        return [new - old for old, new in zip(self.times, self.times[1:]) if after <= new <= before]


def change_beneath_stream(
    engine: VLLM, move: Callable[[], Any], publish: Callable[[], int], prompt: str = "Once upon a time",
    tokens: int = 400,
) -> Stream:
    """A stream beneath which weights were changed, and which has ended as it should. That it was in flight when the
    commit was made is a figure of the engine's own. How long a stream lasts and when its tokens are noticed nobody
    promises: if it was over by then, there is another one, with other changes."""
    for _ in range(8):
        move()
        stream = Stream(engine, prompt, tokens)
        wait_for(lambda: stream.times or not stream.is_alive(), "the first token of a stream")
        version = publish()
        figures = engine.wait_figures(version)
        stream.ends_well()
        if figures["last_commit_requests"] > 0:
            return stream
        say(f"a stream of {tokens} tokens was over before version {version} came: there is another one")
    raise AssertionError("none of the streams was in flight when weights changed")


# ---- tests ----


@contextlib.contextmanager
def place(name: str) -> Iterator[pathlib.Path]:
    """A directory for a test script, kept if it fails. Who is asked to end, ends what it has started."""
    exit_when_asked()
    directory = pathlib.Path(tempfile.mkdtemp(prefix=f"weft-{name}-"))
    kept = True
    try:
        yield directory
        kept = False
    except SystemExit as end:  # of run(), which ends the script
        kept = bool(end.code)
        raise
    finally:
        if kept:
            say(f"what is left is in {directory}")
            for log in sorted(directory.glob("*.log")):
                text = log.read_text(errors="replace").splitlines()[-30:]
                print(f"---- the end of {log}:", *text, sep="\n", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


class Skip(Exception):
    """Raised by a test that cannot be made here, with the reason."""


def run(*tests: Callable[[], None]) -> None:
    """Runs tests in order, counts them, and exits; the last line is read by scripts/test-engines.sh."""
    limit()
    passed = failed = skipped = 0
    for test in tests:
        name = test.__name__.removeprefix("test_").replace("_", " ")
        start = time.monotonic()
        try:
            test()
        except Skip as reason:
            skipped += 1
            say(f"SKIPPED {name}: {reason}")
        except Exception:
            failed += 1
            traceback.print_exc()
            say(f"FAILED  {name} ({time.monotonic() - start:.0f} s)")
        else:
            passed += 1
            say(f"passed  {name} ({time.monotonic() - start:.0f} s)")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    sys.exit(1 if failed else 0)
