# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the attention of decoders in relax.nn, and what it reads by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .decoder_config import DecoderConfig
from .float_norms import LayerNorm, RmsNorm
from .rotary import rotate
from .transformer_blocks import attend, attend_at_once, by_head, merge_heads, part, split_heads


class PositionTables(NamedTuple):
    """Tables that attention reads by position: a bool mask (seq, seq), cosines and signed sines.

    Those of the rotary embedding are None where positions are learned.
    """

    mask: Tensor
    cos: Tensor = None
    sin: Tensor = None

    def arrange(self, rows: Tensor) -> Tensor:
        """Return (batch, seq, heads, width) in the order of dims that :meth:`mix` takes."""
        return nn.op.permute_dims(rows, [0, 2, 1, 3])

    def mix(self, attention: AttentionBlock, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to all tokens: (batch, heads, seq, width) of each to (batch, seq, hidden)."""
        config = attention.config
        sinks = attention.sinks if config.sinks else None
        options = (config.dropout, config.scale, config.score_cap, sinks)
        return merge_heads(attend(q, k, v, self.mask, *options))


class FlashTables(PositionTables):
    """Tables of attention as a single op."""

    def arrange(self, rows: Tensor) -> Tensor:
        """Return (batch, seq, heads, width)."""
        return rows

    def mix(self, attention: AttentionBlock, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to all tokens: (batch, seq, heads, width) of each to (batch, seq, hidden)."""
        batch, seq, heads, width = q.shape
        return nn.op.reshape(attend_at_once(q, k, v), (batch, seq, heads * width))


def norm(width: int, config: DecoderConfig) -> nn.Module:
    """Return the norm of a configuration over ``width`` elements."""
    if config.norm in ("layer", "centered"):
        return LayerNorm(width, config.dtype, config.eps, biased=config.norm == "layer")
    if config.norm == "plain":
        return LayerNorm(width, config.dtype, config.eps, weighted=False)
    return RmsNorm(width, config.dtype, config.eps, bool(config.norm_offset))


class AttentionBlock(nn.Module):  # type: ignore[misc]
    """Causal attention of queries, keys and values that a subclass projects."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config

    def add_output(self, width: int) -> None:
        """Add the output projection of values with ``width`` elements per head, and the sinks."""
        config = self.config
        self.o_proj = nn.Linear(
            config.heads * width, config.hidden, bias=bool(config.o_bias), dtype=config.dtype
        )
        if config.sinks:
            self.sinks = nn.Parameter((config.heads,), config.dtype)


class GroupedAttention(AttentionBlock):
    """Grouped-query attention, with biases and norms of heads where configured."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        width = config.plain_width
        bias, dtype = bool(config.qkv_bias), config.dtype
        queries, keys = config.heads * width, config.kv_heads * width
        if config.fused_qkv:  # rows as Megatron-LM orders them: a contiguous part is whole heads
            self.qkv_by_head = nn.Linear(config.hidden, 3 * queries, bias=bias, dtype=dtype)
        else:
            self.q_proj = nn.Linear(config.hidden, queries, bias=bias, dtype=dtype)
            self.k_proj = nn.Linear(config.hidden, keys, bias=bias, dtype=dtype)
            self.v_proj = nn.Linear(config.hidden, keys, bias=bias, dtype=dtype)
        self.add_output(width)
        if config.qk_norm:
            self.q_norm = norm(width, config)
            self.k_norm = norm(width, config)
        elif config.joint_qk_norm:
            self.q_norm = norm(queries, config)
            self.k_norm = norm(keys, config)

    def forward(self, x: Tensor, tables: PositionTables) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        config = self.config
        if config.positions:
            q, k, v = (tables.arrange(rows) for rows in self._rows(x))
            return self.o_proj(tables.mix(self, q, k, v))
        q, k = self.q_proj(x), self.k_proj(x)
        if config.joint_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q = tables.arrange(by_head(q, config.heads))
        k = tables.arrange(by_head(k, config.kv_heads))
        v = tables.arrange(by_head(self.v_proj(x), config.kv_heads))
        if config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q = rotate(q, tables.cos, tables.sin, config)
        k = rotate(k, tables.cos, tables.sin, config)
        return self.o_proj(tables.mix(self, q, k, v))

    def _rows(self, x: Tensor) -> Iterable[Tensor]:
        """Return queries, keys and values, (batch, seq, heads, width), one after the other."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        if self.config.fused_qkv:
            return nn.op.split(by_head(self.qkv_by_head(x), heads), 3, axis=3)  # type: ignore[no-any-return]
        sources = ((self.q_proj, heads), (self.k_proj, kv_heads), (self.v_proj, kv_heads))
        return (by_head(project(x), count) for project, count in sources)


class LatentAttention(AttentionBlock):
    """Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        heads, dtype, hidden = config.heads, config.dtype, config.hidden
        if config.q_rank:
            self.q_a_proj = nn.Linear(hidden, config.q_rank, bias=False, dtype=dtype)
            self.q_a_layernorm = norm(config.q_rank, config)
            self.q_b_proj = nn.Linear(config.q_rank, heads * config.width, bias=False, dtype=dtype)
        else:
            self.q_proj = nn.Linear(hidden, heads * config.width, bias=False, dtype=dtype)
        self.kv_a_proj_with_mqa = nn.Linear(
            hidden, config.kv_rank + config.rope_dim, bias=False, dtype=dtype
        )
        self.kv_a_layernorm = norm(config.kv_rank, config)
        self.kv_b_proj = nn.Linear(
            config.kv_rank, heads * (config.nope_dim + config.v_dim), bias=False, dtype=dtype
        )
        self.add_output(config.v_dim)

    def forward(self, x: Tensor, tables: Any) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        config = self.config
        heads, nope = config.heads, config.nope_dim
        queries = split_heads(self.queries(x), heads)
        turned = rotate(part(queries, nope, config.width, "q_rope"), tables.cos, tables.sin, config)
        q = nn.op.concat([part(queries, 0, nope, "q_nope"), turned], dim=3, name="q")
        compressed, shared = self.latent(x)
        shared = rotate(split_heads(shared, 1), tables.cos, tables.sin, config)
        both = split_heads(self.kv_b_proj(compressed), heads)
        batch, _, seq, _ = both.shape
        shared = nn.op.broadcast_to(shared, (batch, heads, seq, config.rope_dim))
        k = nn.op.concat([part(both, 0, nope, "k_nope"), shared], dim=3, name="k")
        return self.o_proj(tables.mix(self, q, k, part(both, nope, nope + config.v_dim, "v")))

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the compressed keys and values, and the keys that all heads share, unrotated."""
        rank, width = self.config.kv_rank, self.config.kv_rank + self.config.rope_dim
        latent = self.kv_a_proj_with_mqa(x)
        shared = part(latent, rank, width, "k_rope", axis=2)
        return self.kv_a_layernorm(part(latent, 0, rank, "compressed", axis=2)), shared

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries of all heads, (batch, seq, heads * width)."""
        if self.config.q_rank:
            return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return self.q_proj(x)
