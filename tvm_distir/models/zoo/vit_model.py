# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the Vision Transformer in relax.nn (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .configs import Fault, FourfoldFfn, indivisible
from .float_norms import LayerNorm
from .layers import Attention, FeedForward
from .transformer_blocks import emit, export_model, layer_class


@dataclass(frozen=True)
class VitConfig(FourfoldFfn):
    """Configuration of a Vision Transformer that classifies.

    Attributes
    ----------
    layers, hidden, heads, ffn : int
        Sizes; ``ffn`` 0 means four times ``hidden``.
    image, patch, channels : int
        Rows and columns of an image, of a patch (which divides the image), and channels.
    classes : int
    batch : int
        Images of the data input ``images``, (batch, channels, image, image).
    dtype : str
        The dtype of images, weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a layer is a private function; 0: all layers are part of ``main``.
    eps : float
        Epsilon of the layer norms.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 0
    image: int = 224
    patch: int = 16
    channels: int = 3
    classes: int = 1000
    batch: int = 16
    dtype: str = "float32"
    nested: int = 1
    eps: float = 1e-6

    @property
    def patches(self) -> int:
        """Return the number of patches of an image."""
        return (self.image // self.patch) ** 2

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including heads and patches that do not divide."""
        yield from super().faults()
        yield from indivisible("hidden", self.hidden, "heads", self.heads)
        yield from indivisible("image", self.image, "patch", self.patch)


class VitLayer(nn.Module):  # type: ignore[misc]
    """Encoder layer."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden, config.dtype, config.eps)
        self.attn = Attention(config.hidden, config.heads, config.dtype)
        self.ln_2 = LayerNorm(config.hidden, config.dtype, config.eps)
        self.mlp = FeedForward(config.hidden, config.ffn_dim, config.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        x = nn.op.add(x, self.attn(self.ln_1(x)))
        return nn.op.add(x, self.mlp(self.ln_2(x)))


class Vit(nn.Module):  # type: ignore[misc]
    """Model from images to logits."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        layer = layer_class(VitLayer, config.nested)
        self.config = config
        self.embed = nn.Conv2D(
            config.channels, config.hidden, config.patch, config.patch, dtype=config.dtype
        )
        self.class_token = nn.Parameter((1, 1, config.hidden), config.dtype)
        self.places = nn.Parameter((1, config.patches + 1, config.hidden), config.dtype)
        self.layers = nn.ModuleList([layer(config) for _ in range(config.layers)])
        self.norm = LayerNorm(config.hidden, config.dtype, config.eps)
        self.head = nn.Linear(config.hidden, config.classes, dtype=config.dtype)

    def main(self, images: Tensor) -> Tensor:
        """Map (batch, channels, image, image) to (batch, classes)."""
        config = self.config
        batch, hidden = config.batch, config.hidden
        x = nn.op.reshape(self.embed(images), (batch, hidden, config.patches))
        x = nn.op.permute_dims(x, [0, 2, 1])
        token = nn.op.broadcast_to(self.class_token, (batch, 1, hidden))
        x = nn.op.add(nn.op.concat([token, x], dim=1), self.places)
        for layer in self.layers:
            x = layer(x)
        first = emit(relax.op.strided_slice(x._expr, [1], [0], [1]), "first")
        return self.head(self.norm(nn.op.reshape(first, (batch, hidden))))


def build(config: VitConfig) -> ir.IRModule:
    """Build the module of a ViT without allocating weights."""
    shape = (config.batch, config.channels, config.image, config.image)
    return export_model(Vit(config), images=(shape, config.dtype))
