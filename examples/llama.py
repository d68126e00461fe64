# SPDX-License-Identifier: Apache-2.0
"""A small Llama for the examples: RMSNorm, rotary attention with shared KV heads, SwiGLU. Names are Hugging Face's."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor, nn

CONFIG: Dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary positions: pairs of the two halves of each head are turned by an angle that grows with the position."""
    half = x.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * speeds
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat((one * cosine - two * sine, two * cosine + one * sine), -1)


class Attention(nn.Module):
    def __init__(self, config: Dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size, self.theta = config["hidden_size"] // self.heads, config["rope_theta"]
        hidden, narrow = config["hidden_size"], self.kv_heads * self.size
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, narrow, bias=False)
        self.v_proj = nn.Linear(hidden, narrow, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        query = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        shared = self.heads // self.kv_heads
        key = rotate(key, self.theta).repeat_interleave(shared, 1)
        value = value.repeat_interleave(shared, 1)
        scores = rotate(query, self.theta) @ key.transpose(-1, -2) / self.size**0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.float().masked_fill(future, float("-inf")).softmax(-1).to(x.dtype)
        joined: Tensor = self.o_proj((weights @ value).transpose(1, 2).reshape(batch, length, hidden))
        return joined


class MLP(nn.Module):
    def __init__(self, config: Dict[str, Any]) -> None:
        super().__init__()
        hidden, wide = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return made


class Layer(nn.Module):
    def __init__(self, config: Dict[str, Any]) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config: Dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, config: Dict[str, Any] = CONFIG) -> None:
        super().__init__()
        self.model = Body(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.model(tokens))
        return logits
