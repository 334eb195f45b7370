# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Attention and feed-forward blocks that GPT, BERT, ViT and the U-Net share."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn

from .blocks import attend, merge_heads, split_heads


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head attention with separate query, key and value projections.

    Parameters
    ----------
    width, heads : int
        Of the queries and of the result.
    dtype : str
    source : int
        Width of what keys and values come from; 0: the same as the queries'.
    bias : bool
        Whether query, key and value have biases; the output projection always has one.
    """

    def __init__(
        self, width: int, heads: int, dtype: str, source: int = 0, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(source or width, width, bias=bias, dtype=dtype)
        self.v_proj = nn.Linear(source or width, width, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Any, mask: Any = None, source: Any = None) -> Any:
        """(batch, seq, width) to the same shape; keys and values from ``source`` if given."""
        source = x if source is None else source
        q, k, v = (
            split_heads(proj(given), self.heads)
            for proj, given in ((self.q_proj, x), (self.k_proj, source), (self.v_proj, source))
        )
        return self.o_proj(merge_heads(attend(q, k, v, mask)))


class FeedForward(nn.Module):  # type: ignore[misc]
    """Two linear layers with gelu between.

    Parameters
    ----------
    width, inner : int
    dtype : str
    approximate : str, optional
        "tanh" for the tanh form of gelu; else it is exact.
    """

    def __init__(self, width: int, inner: int, dtype: str, approximate: str | None = None) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, inner, dtype=dtype)
        self.down_proj = nn.Linear(inner, width, dtype=dtype)
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """(batch, seq, width) to the same shape."""
        return self.down_proj(nn.op.gelu(self.up_proj(x), approximate=self.approximate))


__all__ = ["Attention", "FeedForward"]
