# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define norms that are computed in float32, in relax.nn."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .transformer_blocks import back_to, emit, in_float32


class LayerNorm(nn.Module):  # type: ignore[misc]
    """Layer norm over the last dim, computed in float32; optionally without bias, or weight."""

    def __init__(
        self, width: int, dtype: str, eps: float = 1e-5, weighted: bool = True, biased: bool = True
    ) -> None:
        super().__init__()
        self.weight: nn.Parameter = Tensor.from_const(np.ones(width, "float32"))
        self.bias: nn.Parameter = Tensor.from_const(np.zeros(width, "float32"))
        if weighted:
            self.weight = nn.Parameter((width,), dtype)
        if weighted and biased:
            self.bias = nn.Parameter((width,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., width)."""
        out = relax.op.nn.layer_norm(
            in_float32(x)._expr,
            in_float32(self.weight)._expr,
            in_float32(self.bias)._expr,
            axes=-1,
            epsilon=self.eps,
        )
        return back_to(emit(out, "layer_norm"), x.dtype)


class RmsNorm(nn.Module):  # type: ignore[misc]
    """Root-mean-square norm over the last dim, computed in float32.

    With ``offset`` it multiplies by ``1 + weight``.
    """

    def __init__(self, width: int, dtype: str, eps: float, offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), dtype)
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., width)."""
        source, weight = in_float32(x), in_float32(self.weight)
        if self.offset:
            weight = nn.op.add(weight, Tensor.from_scalar(1.0, "float32"))
        out = relax.op.nn.rms_norm(source._expr, weight._expr, axes=-1, epsilon=self.eps)
        return back_to(emit(out, "rms_norm"), x.dtype)


class GroupNorm(nn.Module):  # type: ignore[misc]
    """Group norm of channels and all later dims, computed in float32."""

    def __init__(self, width: int, groups: int, dtype: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), dtype)
        self.bias = nn.Parameter((width,), dtype)
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (batch, width, rows, columns)."""
        out = relax.op.nn.group_norm(
            in_float32(x)._expr,
            in_float32(self.weight)._expr,
            in_float32(self.bias)._expr,
            num_groups=self.groups,
            channel_axis=1,
            axes=[2, 3],
            epsilon=self.eps,
        )
        return back_to(emit(out, "group_norm"), x.dtype)


class BatchNorm(nn.Module):  # type: ignore[misc]
    """Batch norm of (batch, width, ...) by given statistics, computed in float32."""

    def __init__(self, width: int, dtype: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), dtype)
        self.bias = nn.Parameter((width,), dtype)
        self.mean = nn.Parameter((width,), dtype)
        self.variance = nn.Parameter((width,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (batch, width, rows, columns)."""
        tensors = (x, self.weight, self.bias, self.mean, self.variance)
        out = relax.op.nn.batch_norm(
            *(in_float32(tensor)._expr for tensor in tensors),
            axis=1,
            epsilon=self.eps,
            training=False,
        )
        return back_to(emit(out, "batch_norm")[0], x.dtype)
