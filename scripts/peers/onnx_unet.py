# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A U-Net of diffusion with the widths of Stable Diffusion 1.5, in PyTorch, for export.

Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models": residual
blocks that add the embedding of the time, and transformers over the places of an image, with
attention to a text.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions, the time's embedding between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(batch, inputs, rows, columns) and (batch, time) to (batch, outputs, rows, columns)."""
        h = self.conv1(functional.silu(self.norm1(x)))
        h = h + self.time_emb_proj(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(h)))


class Attention(nn.Module):
    """Attention of (batch, places, width) to itself or to a text."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(context, width, bias=False)
        self.to_v = nn.Linear(context, width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """The same shape as ``x``."""
        q, k, v = (
            t.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Attention to the image and to the text, and a gated feed-forward block."""

    def __init__(self, width: int, context: int, heads: int = 8) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.proj_in, self.proj_out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1 = Attention(width, width, heads)
        self.attn2 = Attention(width, context, heads)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """The same shape as ``x``, (batch, width, rows, columns)."""
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        h = h + self.attn1(self.norm1(h), self.norm1(h))
        h = h + self.attn2(self.norm2(h), context)
        value, gate = self.up(self.norm3(h)).chunk(2, dim=-1)
        h = h + self.down(value * functional.gelu(gate))
        return x + self.proj_out(h.transpose(1, 2).unflatten(2, x.shape[2:]))


class Level(nn.Module):
    """Residual blocks of one width, each with a transformer behind it where there is attention."""

    def __init__(self, inputs: list[int], width: int, time: int, context: int | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([Residual(n, width, time) for n in inputs])
        count = 0 if context is None else len(inputs)
        self.attentions = nn.ModuleList([Transformer(width, context or 0) for _ in range(count)])

    def step(self, number: int, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """What a block makes of (batch, inputs, rows, columns)."""
        x = self.resnets[number](x, time)
        return self.attentions[number](x, context) if len(self.attentions) else x


class UNet(nn.Module):
    """Noise of (batch, 4, rows, columns) at a time, given a text of (batch, tokens, context).

    Stable Diffusion 1.5 has ``widths=(320, 640, 1280, 1280)`` and ``blocks=2``; of four levels the
    last has no attention.
    """

    def __init__(
        self, widths: tuple[int, ...] = (320, 640, 1280), blocks: int = 1, context: int = 768
    ) -> None:
        super().__init__()
        self.first, time, last = widths[0], 4 * widths[0], widths[-1]
        self.time1, self.time2 = nn.Linear(self.first, time), nn.Linear(time, time)
        self.conv_in = nn.Conv2d(4, self.first, 3, padding=1)
        texts = [context if i < 3 else None for i in range(len(widths))]
        remaining, down, width = [self.first], [], self.first
        for i, (wide, text) in enumerate(zip(widths, texts)):
            down.append(Level([width, *[wide] * (blocks - 1)], wide, time, text))
            width = wide
            remaining += [wide] * (blocks + (i + 1 < len(widths)))
        self.down_blocks = nn.ModuleList(down)
        self.downsamplers = nn.ModuleList(
            [nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1]]
        )
        self.mid = Level([last, last], last, time, None)
        self.mid_attention = Transformer(last, context)
        up = []
        for wide, text in zip(reversed(widths), reversed(texts)):
            inputs = []
            for _ in range(blocks + 1):
                inputs.append(width + remaining.pop())
                width = wide
            up.append(Level(inputs, wide, time, text))
        self.up_blocks = nn.ModuleList(up)
        self.upsamplers = nn.ModuleList(
            [nn.Conv2d(w, w, 3, padding=1) for w in reversed(widths[1:])]
        )
        self.norm_out = nn.GroupNorm(32, self.first)
        self.conv_out = nn.Conv2d(self.first, 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """The predicted noise, of the sample's shape."""
        half = self.first // 2
        speeds = torch.exp(torch.arange(half) * (-math.log(10000.0) / half))
        angles = timestep[:, None] * speeds[None]
        wave = torch.cat([angles.cos(), angles.sin()], dim=-1)
        time = self.time2(functional.silu(self.time1(wave)))
        x = self.conv_in(sample)
        remaining = [x]
        for i, level in enumerate(self.down_blocks):
            for number in range(len(level.resnets)):
                x = level.step(number, x, time, context)
                remaining.append(x)
            if i < len(self.downsamplers):
                x = self.downsamplers[i](x)
                remaining.append(x)
        x = self.mid_attention(self.mid.step(0, x, time, context), context)
        x = self.mid.step(1, x, time, context)
        for i, level in enumerate(self.up_blocks):
            for number in range(len(level.resnets)):
                x = level.step(number, torch.cat([x, remaining.pop()], dim=1), time, context)
            if i < len(self.upsamplers):
                x = self.upsamplers[i](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv_out(functional.silu(self.norm_out(x)))
