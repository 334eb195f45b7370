# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the diffusion U-Net in relax.nn (Ho et al. 2020; Rombach et al. 2022, appendix).

Residual blocks with group norm and a time embedding, transformers on the finer levels and in the
middle, a skip connection from every block on the way down to a block on the way up.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .float_norms import GroupNorm, LayerNorm
from .layers import Attention
from .transformer_blocks import back_to, emit, export_model, layer_class
from .unet_config import UnetConfig

LONGEST_PERIOD = 10000.0
TIME_WIDTHS = 4
"""Width of the time embedding, in units of ``channels``."""
TRANSFORMER_EPS = 1e-6


class ResBlock(nn.Module):  # type: ignore[misc]
    """Residual block of norm, silu and convolution, twice, with the time added between."""

    def __init__(self, config: UnetConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        dtype = config.dtype
        self.norm_1 = GroupNorm(inputs, config.groups, dtype)
        self.conv_1 = nn.Conv2D(inputs, outputs, 3, padding=1, dtype=dtype)
        self.time = nn.Linear(TIME_WIDTHS * config.channels, outputs, dtype=dtype)
        self.norm_2 = GroupNorm(outputs, config.groups, dtype)
        self.conv_2 = nn.Conv2D(outputs, outputs, 3, padding=1, dtype=dtype)
        same = inputs == outputs
        self.shortcut = None if same else nn.Conv2D(inputs, outputs, 1, dtype=dtype)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Map (batch, inputs, rows, columns) and (batch, time width) to (batch, outputs, ...)."""
        y = self.conv_1(nn.op.silu(self.norm_1(x)))
        shift = self.time(nn.op.silu(time))
        y = nn.op.add(y, nn.op.reshape(shift, (*shift.shape, 1, 1)))
        y = self.conv_2(nn.op.silu(self.norm_2(y)))
        return nn.op.add(x if self.shortcut is None else self.shortcut(x), y)


class GatedFeedForward(nn.Module):  # type: ignore[misc]
    """GEGLU block: down(up(x) * gelu(gate(x)))."""

    def __init__(self, width: int, dtype: str) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, 4 * width, dtype=dtype)
        self.gate_proj = nn.Linear(width, 4 * width, dtype=dtype)
        self.down_proj = nn.Linear(4 * width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, width) to the same shape."""
        return self.down_proj(nn.op.multiply(self.up_proj(x), nn.op.gelu(self.gate_proj(x))))


class Transformer(nn.Module):  # type: ignore[misc]
    """Self-attention over the pixels, cross-attention to a text, and a feed-forward block."""

    def __init__(self, config: UnetConfig, width: int) -> None:
        super().__init__()
        dtype, heads = config.dtype, config.heads
        self.norm = GroupNorm(width, config.groups, dtype, TRANSFORMER_EPS)
        self.proj_in = nn.Conv2D(width, width, 1, dtype=dtype)
        self.ln_1 = LayerNorm(width, dtype)
        self.attn = Attention(width, heads, dtype, bias=False)
        self.has_text = bool(config.context)
        if self.has_text:
            self.ln_2 = LayerNorm(width, dtype)
            self.cross = Attention(width, heads, dtype, config.context, bias=False)
        self.ln_3 = LayerNorm(width, dtype)
        self.mlp = GatedFeedForward(width, dtype)
        self.proj_out = nn.Conv2D(width, width, 1, dtype=dtype)

    def forward(self, x: Tensor, text: Tensor = None) -> Tensor:
        """Map (batch, width, rows, columns) to the same shape; text: (batch, tokens, context)."""
        batch, width, rows, columns = x.shape
        y = nn.op.reshape(self.proj_in(self.norm(x)), (batch, width, rows * columns))
        y = nn.op.permute_dims(y, [0, 2, 1])
        y = nn.op.add(y, self.attn(self.ln_1(y)))
        if self.has_text:
            y = nn.op.add(y, self.cross(self.ln_2(y), source=text))
        y = nn.op.add(y, self.mlp(self.ln_3(y)))
        y = nn.op.reshape(nn.op.permute_dims(y, [0, 2, 1]), (batch, width, rows, columns))
        return nn.op.add(x, self.proj_out(y))


def doubled(x: Tensor) -> Tensor:
    """Repeat each pixel of (batch, channels, rows, columns) twice in both directions."""
    size = [2 * int(n) for n in x.shape[2:]]
    out = relax.op.image.resize2d(
        x._expr,
        size,
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )
    return emit(out, "doubled")


class TimeEmbedding(nn.Module):  # type: ignore[misc]
    """Embedding of the time by cosines and sines at ``channels / 2`` speeds."""

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        self.channels, self.dtype = config.channels, config.dtype
        width = TIME_WIDTHS * config.channels
        self.linear_1 = nn.Linear(config.channels, width, dtype=config.dtype)
        self.linear_2 = nn.Linear(width, width, dtype=config.dtype)

    def forward(self, timesteps: Tensor) -> Tensor:
        """Map float32 (batch,) to (batch, time width)."""
        half = self.channels // 2
        speeds = np.exp(-math.log(LONGEST_PERIOD) * np.arange(half) / half).astype("float32")
        angles = nn.op.multiply(
            nn.op.unsqueeze(timesteps, 1), Tensor.from_const(speeds[None, :]), name="angles"
        )
        cos, sin = emit(relax.op.cos(angles._expr), "cos"), emit(relax.op.sin(angles._expr), "sin")
        waves = back_to(nn.op.concat([cos, sin], dim=1, name="waves"), self.dtype)
        return self.linear_2(nn.op.silu(self.linear_1(waves)))


class Unet(nn.Module):  # type: ignore[misc]
    """Model from a noisy sample and its time to the noise; subclasses declare the inputs."""

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        self._res = layer_class(ResBlock, config.nested, "ResBlock")
        self._transformer = layer_class(Transformer, config.nested, "Transformer")
        self.config = config
        dtype, widths = config.dtype, config.widths
        last = len(widths) - 1
        self.time = TimeEmbedding(config)
        self.conv_in = nn.Conv2D(config.inputs, widths[0], 3, padding=1, dtype=dtype)
        down, shrink, skips, width = [], [], [widths[0]], widths[0]
        for level, outputs in enumerate(widths):
            for _ in range(config.depth):
                down.append(self._block(width, outputs, level))
                width = outputs
                skips.append(width)
            if level < last:
                shrink.append(nn.Conv2D(width, width, 3, 2, 1, dtype=dtype))
                skips.append(width)
        self.down, self.shrink = nn.ModuleList(down), nn.ModuleList(shrink)
        self.middle = nn.ModuleList(
            [
                self._res(config, width, width),
                self._transformer(config, width),
                self._res(config, width, width),
            ]
        )
        up, grow = [], []
        for level in reversed(range(len(widths))):
            for _ in range(config.depth + 1):
                up.append(self._block(width + skips.pop(), widths[level], level))
                width = widths[level]
            if level:
                grow.append(nn.Conv2D(width, width, 3, padding=1, dtype=dtype))
        self.up, self.grow = nn.ModuleList(up), nn.ModuleList(grow)
        self.norm_out = GroupNorm(width, config.groups, dtype)
        self.conv_out = nn.Conv2D(width, config.inputs, 3, padding=1, dtype=dtype)

    def _block(self, inputs: int, outputs: int, level: int) -> nn.ModuleList:
        """Apply a residual block, and a transformer where the level has them."""
        block = [self._res(self.config, inputs, outputs)]
        if level < self.config.attention:
            block.append(self._transformer(self.config, outputs))
        return nn.ModuleList(block)

    @staticmethod
    def _run(block: nn.ModuleList, x: Tensor, time: Tensor, text: tuple[Tensor, ...]) -> Tensor:
        x = block[0](x, time)
        return block[1](x, *text) if len(block) > 1 else x

    def noise(self, sample: Tensor, timesteps: Tensor, text: tuple[Tensor, ...]) -> Tensor:
        """Return the noise of the sample, in its shape; ``text`` holds at most a single tensor."""
        config, levels = self.config, len(self.config.widths)
        time = self.time(timesteps)
        x = self.conv_in(sample)
        skips = [x]
        for i, block in enumerate(self.down):
            x = self._run(block, x, time, text)
            skips.append(x)
            level, rest = divmod(i + 1, config.depth)
            if not rest and level < levels:
                x = self.shrink[level - 1](x)
                skips.append(x)
        first, transformer, second = self.middle
        x = second(transformer(first(x, time), *text), time)
        for i, block in enumerate(self.up):
            x = self._run(block, nn.op.concat([x, skips.pop()], dim=1), time, text)
            level, rest = divmod(i + 1, config.depth + 1)
            if not rest and level < levels:
                x = self.grow[level - 1](doubled(x))
        return self.conv_out(nn.op.silu(self.norm_out(x)))


class TextUnet(Unet):
    """U-Net conditioned on a text."""

    def main(self, sample: Tensor, timesteps: Tensor, text: Tensor) -> Tensor:
        """Return the noise of the sample, in its shape."""
        return self.noise(sample, timesteps, (text,))


class PlainUnet(Unet):
    """U-Net without a text."""

    def main(self, sample: Tensor, timesteps: Tensor) -> Tensor:
        """Return the noise of the sample, in its shape."""
        return self.noise(sample, timesteps, ())


def build(config: UnetConfig) -> ir.IRModule:
    """Build the module of a U-Net without allocating weights."""
    shape = (config.batch, config.inputs, config.image, config.image)
    data: dict[str, tuple[tuple[int, ...], str]] = {
        "sample": (shape, config.dtype),
        "timesteps": ((config.batch,), "float32"),
    }
    if not config.context:
        return export_model(PlainUnet(config), **data)
    data["text"] = ((config.batch, config.tokens, config.context), config.dtype)
    return export_model(TextUnet(config), **data)
