# SPDX-License-Identifier: Apache-2.0
"""LoRA: an adapter as a small model of its own, or merged into the weights that it adapts.

    weft.Publisher(store, weft.lora.adapter_state(model), dtype="bfloat16")        # engines load the adapter

    merged = weft.lora.Merged(model)                                               # engines know nothing of adapters
    publisher = weft.Publisher(store, merged.state)
    merged.refresh()
    publisher.publish()

Models are PEFT's, or have layers alike: with base_layer, active_adapters and get_delta_weight(adapter).
doc/python/lora.md has which of the two is smaller, and when.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

from .errors import UNSUPPORTED, InvalidArgument, UnsupportedError

_PREFIX = "base_model.model."  # of the names in a PeftModel


def _layers(model: Any) -> "Iterator[Tuple[str, Any]]":
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "get_delta_weight"):
            yield name, module


def is_adapted(model: Any) -> bool:
    """Whether a model has LoRA layers."""
    return hasattr(model, "named_modules") and next(_layers(model), None) is not None


def _refuse(name: str, what: str, next_step: str) -> UnsupportedError:
    return UnsupportedError(UNSUPPORTED, f"layer {name}: {what}; {next_step}")


def adapter_state(model: Any, adapter: str = "default") -> Dict[str, Any]:
    """The adapter's tensors where they lie, under the names that its checkpoint has (adapter_model.safetensors): for a
    publisher here, and in an engine for a subscriber to that file."""
    found: Dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        parts = name.split(".")
        if any(part.startswith("lora_") for part in parts) and adapter in parts:
            parts.remove(adapter)
            found[".".join(parts)] = tensor
        elif f"modules_to_save.{adapter}." in name:
            found[name.replace(f"modules_to_save.{adapter}.", "")] = tensor
    if not found:
        raise InvalidArgument(f"the model has no adapter {adapter}; give one that it has")
    return found


class Merged:
    """What a model's weights are with its active adapters merged, under the names of the base model's checkpoint.
    `state` is memory of the host's that stays: publish it, and call refresh() before each publish. The model itself is
    not changed.

    The sum is taken in FP32 and rounded once, to the dtype of the base weight, or to BF16 if that is FP32: so a version
    does not depend on how often weights were merged before. Layers that are not adapted are copied once."""

    def __init__(self, model: Any) -> None:
        import torch

        if not is_adapted(model):
            raise InvalidArgument("the model has no LoRA layers; publish it as it is")
        self._torch = torch
        self._layers: List[Tuple[str, Any]] = []
        self._trained: List[Tuple[str, Any]] = []  # whole tensors that are trained beside the adapters
        self.state: Dict[str, Any] = {}
        self._places: Dict[Any, Any] = {}  # what was copied from where, so that tied tensors stay tied
        adapted = dict(_layers(model))
        for name, layer in adapted.items():
            if any(getattr(layer, "use_dora", {}).values()):
                raise _refuse(name, "it is DoRA, whose magnitude is no sum", "publish model.merge_and_unload() instead")
            self._layers.append((_plain(name) + ".weight", layer))
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if any(part.startswith("lora_") for part in name.split(".")) or ".original_module." in name:
                    continue
                self._keep(name, tensor)
        self._places.clear()
        self.refresh()

    def _keep(self, name: str, tensor: Any) -> None:
        torch = self._torch
        plain = _plain(name)
        dtype = torch.bfloat16 if tensor.dtype == torch.float32 else tensor.dtype
        place = (tensor.device, tensor.data_ptr(), tensor.shape)
        if place not in self._places:
            self._places[place] = tensor.detach().to("cpu", dtype, copy=True)
        self.state[plain] = self._places[place]
        if ".modules_to_save." in name:
            self._trained.append((plain, tensor))

    def refresh(self) -> None:
        """Brings `state` to what the adapters are now."""
        with self._torch.no_grad():
            for name, layer in self._layers:
                weight = layer.base_layer.weight
                merged = weight.detach().float()
                for adapter in layer.active_adapters:
                    if adapter in layer.lora_A:
                        merged = merged + layer.get_delta_weight(adapter).float()
                self.state[name].copy_(merged)
            for name, tensor in self._trained:
                self.state[name].copy_(tensor.detach())


def _plain(name: str) -> str:
    """The name that the base model has for it."""
    name = name[len(_PREFIX) :] if name.startswith(_PREFIX) else name
    parts = name.replace(".base_layer", "").split(".")
    if "modules_to_save" in parts:
        del parts[parts.index("modules_to_save") : parts.index("modules_to_save") + 2]
    return ".".join(parts)
