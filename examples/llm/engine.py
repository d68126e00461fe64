# SPDX-License-Identifier: Apache-2.0
"""The inference engine: `vllm serve` at its end of the link, with weft's plug-in, and what can be asked of it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import socket
import sys
import time
from typing import Any, Dict, Mapping

import requests
import torch
from link import Link
from processes import Failure, Process

_START_SECONDS = 1800.0  # one that has ended is noticed at once
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine(Process):
    """One process computes on one core; the trainer has what is left. The routes of vLLM's development mode are on: TRL
    drives the engine by them, and the weight checker is one. `scratch` is for sockets, whose paths must be short."""

    def __init__(
        self, model: pathlib.Path, directory: pathlib.Path, scratch: pathlib.Path, cache: pathlib.Path, link: Link
    ) -> None:
        port = _free_port()
        self.url = f"http://{link.engine}:{port}"
        super().__init__(
            "vLLM",
            [
                str(pathlib.Path(sys.executable).with_name("vllm")), "serve", str(model), "--host", link.engine,
                "--port", str(port), "--served-model-name", "model", "--dtype", "bfloat16", "--enforce-eager",
                "--max-model-len", "512", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1",
                "--weight-transfer-config", '{"backend": "weft"}',
            ],
            directory / "vllm.log",
            prefix=link.prefix,
            environment={
                "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": link.engine,
                "VLLM_ENGINE_READY_TIMEOUT_S": f"{_START_SECONDS:.0f}", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                "VLLM_CACHE_ROOT": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1",
                "VLLM_LOGGING_COLOR": "0", "TMPDIR": str(scratch),
            },
        )

    def wait_ready(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while not self._healthy():
            self.check()
            if time.monotonic() > end:
                raise Failure(f"vLLM does not answer after {_START_SECONDS:.0f} s; its last words:\n{self.tail()}")
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            return bool(requests.get(f"{self.url}/health", timeout=10).status_code == 200)
        except requests.RequestException:
            return False

    @property
    def version(self) -> str:
        """Of the weights, as the engine itself names it."""
        return str(requests.get(f"{self.url}/weight_info", timeout=60).json()["weight_version"])

    def figures(self) -> Dict[str, float]:
        """The plug-in's, from vLLM's Prometheus endpoint, such as last_pause_seconds and fetched_bytes_total."""
        lines = requests.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("weft:")]
        return {name.split("{")[0][len("weft:") :]: float(value) for name, value in pairs}

    def hashes(self) -> Dict[str, str]:
        """SHA-256 of each parameter as it lies in the engine's memory, made by vLLM's own weight checker."""
        answer = requests.post(f"{self.url}/weight_checker", json={"action": "checksum"}, timeout=300)
        if answer.status_code != 200:
            raise Failure(f"vLLM's weight checker answers {answer.status_code}: {answer.text[:300]}")
        found: Dict[str, str] = answer.json()["checksums"]
        return {name.split("/")[-1].split(":")[-1]: value for name, value in found.items()}


def hashes_of(masters: Mapping[str, Any]) -> Dict[str, str]:
    """The same of a trainer's weights: cast to BF16 by torch, and joined where the engine joins tensors."""
    cast = {name: weight.detach().to(torch.bfloat16) for name, weight in masters.items()}
    found = {}
    for name, weight in cast.items():
        for fused, parts in _FUSED.items():
            if f".{parts[0]}." in name:
                weight = torch.cat([cast[name.replace(parts[0], part)] for part in parts])
                name = name.replace(parts[0], fused)
        if not any(f".{part}." in name for parts in _FUSED.values() for part in parts[1:]):
            found[name] = hashlib.sha256(weight.contiguous().view(torch.uint8).numpy()).hexdigest()
    return found
