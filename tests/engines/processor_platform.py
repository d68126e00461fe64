# SPDX-License-Identifier: Apache-2.0
"""verl on plain processors. verl 0.9.1 knows three kinds of accelerators, and lets others be registered: by
VERL_USE_EXTERNAL_MODULES, which is imported wherever verl is, and VERL_PLATFORM. Weights go to an engine through shared
memory then. The packing that vLLM does with weights on processors is turned off: a second load would find them empty.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def nothing(*_: Any, **__: Any) -> None:
    """What an accelerator would do here, a processor need not."""


DEVICE = types.ModuleType("processor")
for name in ("synchronize", "empty_cache", "ipc_collect", "set_device", "manual_seed", "manual_seed_all"):
    setattr(DEVICE, name, nothing)
DEVICE.current_device = lambda: 0  # type: ignore[attr-defined]
DEVICE.device_count = lambda: 1  # type: ignore[attr-defined]
DEVICE.is_available = lambda: True  # type: ignore[attr-defined]


@PlatformRegistry.register(platform="processor")
class Processor(PlatformBase):  # type: ignore[misc]
    device_name = "cpu"
    vendor_name = "processor"
    device_module = DEVICE
    synchronize = set_device = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> Any:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "WEFT_TEST_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> Any:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def keep_weights_plain() -> None:
    import vllm._custom_ops as operations
    from vllm.model_executor.layers import utils

    operations._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *_: False


if "vllm" in sys.modules:  # a worker of vLLM, which has imported verl's extension
    keep_weights_plain()
