# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define attention and feed-forward blocks that models share."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .transformer_blocks import attend, merge_heads, split_heads


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head attention with separate query, key and value projections.

    Parameters
    ----------
    width, heads : int
        The sizes of the queries and of the result.
    dtype : str
    source : int
        Width of what keys and values come from; 0: the same as the queries'.
    bias : bool
        Whether query, key and value have biases; the output projection always has a bias.
    key_bias : bool
        Whether the key has one where query and value have.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dtype: str,
        source: int = 0,
        bias: bool = True,
        key_bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(source or width, width, bias=bias and key_bias, dtype=dtype)
        self.v_proj = nn.Linear(source or width, width, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor = None, source: Tensor = None) -> Tensor:
        """Map (batch, seq, width) to the same shape; keys and values from ``source`` if given."""
        source = x if source is None else source
        q, k, v = (
            split_heads(proj(states), self.heads)
            for proj, states in ((self.q_proj, x), (self.k_proj, source), (self.v_proj, source))
        )
        return self.o_proj(merge_heads(attend(q, k, v, mask)))


def activation(kind: str, x: Tensor) -> Tensor:
    """Apply ``relu``, ``silu``, ``gelu`` or ``gelu_tanh``."""
    if kind == "gelu_tanh":
        return nn.op.gelu(x, approximate="tanh")
    return getattr(nn.op, kind)(x)


class FeedForward(nn.Module):  # type: ignore[misc]
    """Linear layers with an activation between: down(activation(up(x))).

    With a gate: down(activation(gate(x)) * up(x)).
    """

    def __init__(
        self,
        width: int,
        inner: int,
        dtype: str,
        kind: str = "gelu",
        bias: bool = True,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.kind, self.gated = kind, gated
        if gated:
            self.gate_proj = nn.Linear(width, inner, bias=bias, dtype=dtype)
        self.up_proj = nn.Linear(width, inner, bias=bias, dtype=dtype)
        self.down_proj = nn.Linear(inner, width, bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, width) to the same shape."""
        if not self.gated:
            return self.down_proj(activation(self.kind, self.up_proj(x)))
        gate = activation(self.kind, self.gate_proj(x))
        return self.down_proj(nn.op.multiply(gate, self.up_proj(x)))
