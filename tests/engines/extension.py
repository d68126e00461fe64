# SPDX-License-Identifier: Apache-2.0
"""What tests do inside of vLLM's workers, by its route /collective_rpc (--worker-extension-cls extension.Extension)."""

from __future__ import annotations

from typing import Any, Dict


class Extension:
    """Methods that a worker gets; vLLM refuses names that it has itself."""

    rank: int
    model_runner: Any

    def weft_test_move(self, rank: str, name: str) -> bool:
        """Gives one worker's parameter other memory, as a library would that packs it; or its own again."""
        if self.rank != int(rank):
            return False
        kept: Dict[str, Any] = self.__dict__.setdefault("weft_test_kept", {})
        parameter = dict(self.model_runner.get_model().named_parameters())[name]
        if name in kept:
            parameter.data = kept.pop(name)
        else:
            kept[name] = parameter.data
            parameter.data = parameter.data.clone()
        return True

    def weft_test_sparse(self, old: str, new: str) -> float:
        """The seconds that vLLM's own loader of sparse patches takes from one checkpoint to another. Preparing the
        patches is not counted."""
        import time

        import torch
        from safetensors.torch import load_file
        from vllm.model_executor.model_loader import checkpoint_weight_patch

        before, after = load_file(old), load_file(new)
        patches = []
        for name, weight in before.items():
            differs = (weight.view(torch.int16) != after[name].view(torch.int16)).view(-1)
            places = torch.nonzero(differs).view(-1).to(torch.int32)
            values = after[name].view(-1)[places.long()].contiguous()
            patches.append(
                checkpoint_weight_patch.CheckpointWeightPatch(name, tuple(weight.shape), weight.dtype, values, places)
            )
        start = time.perf_counter()
        checkpoint_weight_patch.load_checkpoint_weight_patches(self.model_runner.get_model(), patches)
        return time.perf_counter() - start
