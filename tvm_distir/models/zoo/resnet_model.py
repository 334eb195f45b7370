# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ResNets in relax.nn (He et al. 2016; stride on the 3x3 convolution), for inference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .configs import Config, Fault
from .float_norms import BatchNorm
from .transformer_blocks import emit, export_model, layer_class

BASIC, BOTTLENECK = 1, 4
"""Channels out of a block, relative to its width."""

DEPTHS: dict[int, tuple[int, tuple[int, ...]]] = {
    10: (BASIC, (1, 1, 1, 1)),
    14: (BOTTLENECK, (1, 1, 1, 1)),
    18: (BASIC, (2, 2, 2, 2)),
    34: (BASIC, (3, 4, 6, 3)),
    50: (BOTTLENECK, (3, 4, 6, 3)),
    101: (BOTTLENECK, (3, 4, 23, 3)),
    152: (BOTTLENECK, (3, 8, 36, 3)),
}
"""Kind of block and blocks per stage; 10 and 14 are the smallest of either kind."""


@dataclass(frozen=True)
class ResnetConfig(Config):
    """Configuration of a ResNet that classifies.

    Attributes
    ----------
    depth : int
        The depth, from :data:`DEPTHS`.
    width : int
        Channels of the first stage's blocks.
    image, channels : int
        Rows and columns of an image, and its channels.
    classes : int
    folded : int
        1: batch norms are folded into the convolutions, which then have biases; 0: they stand
        after them, with the statistics of training.
    batch : int
        Images of the data input ``images``, (batch, channels, image, image).
    dtype : str
        The dtype of images, weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a block is a private function, shared by equal blocks; 0: blocks are part of ``main``.
    """

    FLAGS = frozenset({"nested", "folded"})

    depth: int = 50
    width: int = 64
    image: int = 224
    channels: int = 3
    classes: int = 1000
    folded: int = 0
    batch: int = 16
    dtype: str = "float32"
    nested: int = 1

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including an unknown depth."""
        yield from super().faults()
        if self.depth not in DEPTHS:
            yield f"depth={self.depth}", f"Give one of {', '.join(map(str, DEPTHS))}."


class ConvNorm(nn.Module):  # type: ignore[misc]
    """Size-preserving convolution (before its stride), and its batch norm."""

    def __init__(
        self, config: ResnetConfig, inputs: int, outputs: int, kernel: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2D(
            inputs,
            outputs,
            kernel,
            stride,
            padding=kernel // 2,
            bias=bool(config.folded),
            dtype=config.dtype,
        )
        self.norm = None if config.folded else BatchNorm(outputs, config.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, rows, columns) to (batch, outputs, ...)."""
        x = self.conv(x)
        return x if self.norm is None else self.norm(x)


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """Residual block of two 3x3 convolutions, or of a 3x3 between two 1x1."""

    def __init__(self, config: ResnetConfig, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        kind, _ = DEPTHS[config.depth]
        outputs = kind * width
        shapes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        if kind == BOTTLENECK:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        self.convs = nn.ModuleList([ConvNorm(config, *shape) for shape in shapes])
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else ConvNorm(config, inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, rows, columns) to (batch, outputs, rows / stride, ...)."""
        before = x if self.shortcut is None else self.shortcut(x)
        last = len(self.convs) - 1
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = nn.op.relu(x) if i < last else x
        return nn.op.relu(nn.op.add(x, before))


class Resnet(nn.Module):  # type: ignore[misc]
    """Model from images to logits."""

    def __init__(self, config: ResnetConfig) -> None:
        super().__init__()
        block = layer_class(ResidualBlock, config.nested, "Block")
        kind, counts = DEPTHS[config.depth]
        self.stem = ConvNorm(config, config.channels, config.width, 7, 2)
        blocks, inputs = [], config.width
        for stage, count in enumerate(counts):
            width = config.width << stage
            for i in range(count):
                blocks.append(block(config, inputs, width, 2 if i == 0 and stage else 1))
                inputs = kind * width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inputs, config.classes, dtype=config.dtype)

    def main(self, images: Tensor) -> Tensor:
        """Map (batch, channels, image, image) to (batch, classes)."""
        x = nn.op.relu(self.stem(images))
        x = emit(relax.op.nn.max_pool2d(x._expr, (3, 3), (2, 2), (1, 1)), "pooled")
        for block in self.blocks:
            x = block(x)
        return self.head(emit(relax.op.mean(x._expr, [2, 3]), "features"))


def build(config: ResnetConfig) -> ir.IRModule:
    """Build the module of a ResNet without allocating weights."""
    shape = (config.batch, config.channels, config.image, config.image)
    return export_model(Resnet(config), images=(shape, config.dtype))
