# SPDX-License-Identifier: Apache-2.0
"""vLLM follows a weft store: its live weights are changed in place, between two of its steps.

    WEFT_STORE=https://trainer:8477 vllm serve MODEL --weight-transfer-config '{"backend": "weft"}'

vLLM finds `register` by its entry point, in each of its processes. doc/python/vllm.md says how it works.

Its modules, by the process of vLLM that they run in:

    hooks       all             what the plug-in hangs into vLLM, and why there
    settings    all             what init_info and the environment say
    worker      workers         the weight transfer engine, and the thread that fetches and proves
    layout      workers         which slices of the checkpoint's tensors a worker's parameters are; what is refused
    leader      engine core     brings all workers to the same version between the same two steps
    metrics     API server      figures for vLLM's Prometheus endpoint, from the engine core

Nothing is imported from vLLM or torch before vLLM calls.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """The entry point of the group vllm.general_plugins. May be called several times."""
    from .hooks import install

    install()
