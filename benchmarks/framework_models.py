# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The models that are timed in PyTorch and as compiled programs; weights are random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 32000


class Norm(nn.Module):
    """The root-mean-square norm of Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., width)`` to the same shape."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotated(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate halves of ``(batch, heads, positions, width)`` by the tables of their positions."""
    first, second = x.chunk(2, -1)
    return x * tables[0] + torch.cat((-second, first), -1) * tables[1]


class LlamaLayer(nn.Module):
    """A layer of Llama, with heads of 64."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(
        self, x: torch.Tensor, tables: Any, cache: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        """``(batch, positions, width)`` to the same shape; a cache is of earlier positions."""
        y = self.norm1(x)
        q, k, v = (
            linear(y).unflatten(2, (self.heads, 64)).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        q, k = rotated(q, tables), rotated(k, tables)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder of Llama's layers; a step of one token takes caches of keys and values."""

    def __init__(self, width: int, layers: int, positions: int, first: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(LlamaLayer(width, width * 11 // 4) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, VOCAB, bias=False)
        steps = torch.arange(first, first + positions)[:, None] / 1e4 ** (
            torch.arange(0, 64, 2) / 64
        )
        angles = torch.cat((steps, steps), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        """Token ids ``(batch, positions)`` to logits."""
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            pair = (caches[2 * number], caches[2 * number + 1]) if caches else None
            x = layer(x, (self.cos, self.sin), pair)
        return self.head(self.norm(x))


class UNetBlock(nn.Module):
    """A residual block of a diffusion U-Net with attention over its pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(32, channels) for _ in range(3))
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, channels, height, width)`` to the same shape."""
        y = self.conv1(F.silu(self.norm1(x)))
        x = x + self.conv2(F.silu(self.norm2(y)))
        y = self.down(x)
        rows = self.norm3(y).flatten(2).transpose(1, 2)
        q, k, v = (
            part.unflatten(2, (-1, 64)).transpose(1, 2) for part in self.qkv(rows).chunk(3, -1)
        )
        rows = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.up(y + rows.transpose(1, 2).unflatten(2, y.shape[2:]))


class Mixture(nn.Module):
    """A layer of experts that read every token; their results are weighted by a gate."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)
        self.norm = Norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(tokens, width)`` to the same shape."""
        y = self.norm(x)
        weights = self.gate(y).softmax(-1).transpose(0, 1)[:, :, None]
        outputs = F.silu(y @ self.up) @ self.down
        return x + (outputs * weights).sum(0)


@dataclass(frozen=True)
class Row:
    """A model that is timed.

    Attributes
    ----------
    name : str
    make : callable
        Returns the model and its inputs.
    train : bool
        Whether a step of training with AdamW is timed.
    """

    name: str
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
    train: bool = False


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape)


class Logits(nn.Module):
    """The logits of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of token ids or pixels."""
        return self.model(x).logits


def _gpt2() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Logits(GPT2LMHeadModel(GPT2Config(use_cache=False))), (_ids(1, 128),)


def _llama(width: int, layers: int, batch: int, positions: int) -> Any:
    return lambda: (Llama(width, layers, positions), (_ids(batch, positions),))


def _decode() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    caches = [torch.randn(1, 32, 512, 64) for _ in range(4)]
    return Llama(2048, 2, 1, 512), (_ids(1, 1), *caches)


def _resnet() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    return Logits(ResNetForImageClassification(ResNetConfig())), (torch.randn(2, 3, 224, 224),)


def _vit() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import ViTConfig, ViTForImageClassification

    return Logits(ViTForImageClassification(ViTConfig())), (torch.randn(2, 3, 224, 224),)


def _mixture() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(Mixture(512, 8), Mixture(512, 8)), (torch.randn(128, 512),)


def _unet() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return UNetBlock(128), (torch.randn(1, 128, 64, 64),)


ROWS = (
    Row("gpt2", _gpt2),
    Row("llama", _llama(2048, 2, 2, 128)),
    Row("decode", _decode),
    Row("resnet50", _resnet),
    Row("vit-b", _vit),
    Row("moe", _mixture),
    Row("unet", _unet),
    Row("llama-adamw", _llama(1024, 2, 2, 128), train=True),
    Row("unet-adamw", _unet, train=True),
)
