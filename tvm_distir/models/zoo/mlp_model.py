# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define linear layers with a ReLU between them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .configs import Config
from .transformer_blocks import export_model, layer_class


@dataclass(frozen=True)
class MlpConfig(Config):
    """Configuration of a perceptron of equally wide layers.

    Attributes
    ----------
    layers, hidden : int
        Linear layers, and their width, which is that of the input and the output too.
    bias : int
        1: layers have a bias.
    batch : int
        Rows of the data input ``x``, (batch, hidden).
    dtype : str
        The dtype of input, weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a layer is a private function; 0: all layers are part of ``main``.
    """

    FLAGS = frozenset({"bias", "nested"})

    layers: int = 8
    hidden: int = 1024
    bias: int = 1
    batch: int = 64
    dtype: str = "float32"
    nested: int = 1


class MlpLayer(nn.Module):  # type: ignore[misc]
    """Linear layer and ReLU."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        self.linear = linear(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, hidden) to the same shape."""
        return nn.op.relu(self.linear(x))


class Mlp(nn.Module):  # type: ignore[misc]
    """Model of stacked linear layers."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        layer = layer_class(MlpLayer, config.nested)
        self.layers = nn.ModuleList([layer(config) for _ in range(config.layers - 1)])
        self.head = linear(config)

    def main(self, x: Tensor) -> Tensor:
        """Map (batch, hidden) to the same shape."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def linear(config: MlpConfig) -> nn.Linear:
    """Return a linear layer as wide as all others."""
    return nn.Linear(config.hidden, config.hidden, bool(config.bias), config.dtype)


def build(config: MlpConfig) -> ir.IRModule:
    """Build the module of a perceptron without allocating weights."""
    return export_model(Mlp(config), x=((config.batch, config.hidden), config.dtype))
