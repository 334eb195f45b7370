# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define attention and feed-forward blocks that GPT, BERT, ViT and the U-Net share."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn

from .transformer_blocks import attend, attend_at_once, dropped, merge_heads, split_heads


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
    dropout : float
        The dropout rate of the weights of attention, and of the result.
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
        dropout: float = 0.0,
        key_bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q_proj = nn.Linear(width, width, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(source or width, width, bias=bias and key_bias, dtype=dtype)
        self.v_proj = nn.Linear(source or width, width, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Any, mask: Any = None, source: Any = None) -> Any:
        """Map (batch, seq, width) to the same shape; keys and values from ``source`` if given."""
        source = x if source is None else source
        q, k, v = (
            split_heads(proj(states), self.heads)
            for proj, states in ((self.q_proj, x), (self.k_proj, source), (self.v_proj, source))
        )
        mixed = self.o_proj(merge_heads(attend(q, k, v, mask, self.dropout)))
        return dropped(mixed, self.dropout)


class FusedAttention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with a joint projection to query, key and value of each head in turn.

    Rows of its weight are ordered as Megatron-LM has them, (heads, 3, head width), so that a
    contiguous part of them is whole heads.

    Parameters
    ----------
    width, heads : int
    dtype : str
    dropout : float
        The dropout rate of the weights of attention, and of the result.
    flash : bool
        Whether attention is a single op, which stores no scores.
    """

    def __init__(
        self, width: int, heads: int, dtype: str, dropout: float = 0.0, flash: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.flash = heads, dropout, flash
        self.qkv_by_head = nn.Linear(width, 3 * width, dtype=dtype)
        self.o_proj = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Any, mask: Any) -> Any:
        """Map (batch, seq, width) to the same shape."""
        batch, seq, width = x.shape
        projected = nn.op.reshape(
            self.qkv_by_head(x), (batch, seq, self.heads, 3 * width // self.heads)
        )
        parts = nn.op.split(projected, 3, axis=3)
        if self.flash:
            mixed = nn.op.reshape(attend_at_once(*parts), (batch, seq, width))
        else:
            q, k, v = (nn.op.permute_dims(part, [0, 2, 1, 3]) for part in parts)
            mixed = merge_heads(attend(q, k, v, mask, self.dropout))
        return dropped(self.o_proj(mixed), self.dropout)


class FeedForward(nn.Module):  # type: ignore[misc]
    """Two linear layers with gelu between.

    Parameters
    ----------
    width, inner : int
    dtype : str
    approximate : str, optional
        "tanh" for the tanh form of gelu; else it is exact.
    dropout : float
        The dropout rate of the result.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        dtype: str,
        approximate: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.up_proj = nn.Linear(width, inner, dtype=dtype)
        self.down_proj = nn.Linear(inner, width, dtype=dtype)
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Map (batch, seq, width) to the same shape."""
        out = self.down_proj(nn.op.gelu(self.up_proj(x), approximate=self.approximate))
        return dropped(out, self.dropout)
