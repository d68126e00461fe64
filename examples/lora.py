# SPDX-License-Identifier: Apache-2.0
"""LoRA in plain torch, sent in both ways: the adapter as a small model of its own, and merged into the weights.

With PEFT, weft.lora.adapter_state(model) and weft.lora.Merged(model).state are what is published here.
"""

import tempfile

import torch
import weft

RANK, SIZE, STEPS = 4, 512, 5


class Adapted(torch.nn.Module):
    """A linear layer that is frozen, in BF16, with an adapter in FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(0.05 * torch.randn(SIZE, SIZE).bfloat16().float(), requires_grad=False)
        self.a = torch.nn.Parameter(torch.randn(RANK, SIZE) / SIZE**0.5)
        self.b = torch.nn.Parameter(torch.zeros(SIZE, RANK))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ (self.weight + 2 * self.b @ self.a).T


def main(place: str) -> None:
    torch.manual_seed(7)
    layer = Adapted()
    optimizer = torch.optim.AdamW([layer.a, layer.b], lr=1e-5)
    adapter = {"lora_A": layer.a, "lora_B": layer.b}
    merged = {"weight": torch.empty(SIZE, SIZE, dtype=torch.bfloat16)}

    def merge() -> None:
        with torch.no_grad():
            merged["weight"].copy_(layer.weight + 2 * layer.b @ layer.a)

    merge()
    served = {name: torch.zeros(tensor.shape, dtype=torch.bfloat16) for name, tensor in adapter.items()}
    whole = {"weight": torch.zeros_like(merged["weight"])}
    with weft.Publisher(f"{place}/adapter", adapter, dtype="bfloat16") as small, \
            weft.Publisher(f"{place}/merged", merged) as large:  # fmt: skip
        for step in range(STEPS):
            optimizer.zero_grad()
            layer(torch.randn(8, SIZE)).square().mean().backward()
            optimizer.step()
            merge()
            one, other = small.publish(step=step), large.publish(step=step)
            print(f"step {step}: adapter {one.patch_bytes} bytes, merged {other.patch_bytes} bytes")
    with weft.Subscriber(f"{place}/adapter", served) as follower, weft.Subscriber(f"{place}/merged", whole) as another:
        follower.pull()
        another.pull()
    assert torch.equal(served["lora_B"], layer.b.bfloat16()) and torch.equal(whole["weight"], merged["weight"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
