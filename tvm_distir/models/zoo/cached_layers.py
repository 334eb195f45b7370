# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define decoder layers that read and append to paged caches, in relax.nn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from tvm_distir.core.ir.operators import expert_matmul, kv_append, paged_attention

from .decoder_attention import AttentionBlock, GroupedAttention, LatentAttention
from .decoder_config import DecoderConfig
from .decoder_model import TransformerLayer
from .mixture import Mixture
from .rotary import rotate
from .transformer_blocks import back_to, by_head, emit, in_float32, part


@dataclass
class CachedPositions:
    """Tables that attention reads by position, and the caches that it appends to.

    Attributes
    ----------
    cos, sin : Tensor or None
        Tables of the new positions, (batch, seq, 1, rotated); None where positions are learned.
    caches : list of Tensor
        Of keys and values, or of both in latent attention; replaced by :meth:`append`.
    """

    cos: Tensor
    sin: Tensor
    pages: Tensor
    lengths: Tensor
    caches: list[Tensor]
    page: int

    def arrange(self, rows: Tensor) -> Tensor:
        """Return (batch, seq, heads, width)."""
        return rows

    def append(self, number: int, rows: Tensor) -> None:
        """Append rows (batch, seq, heads, width) to a cache."""
        call = kv_append(
            self.caches[number]._expr,
            rows._expr,
            self.pages._expr,
            self.lengths._expr,
            page_size=self.page,
        )
        self.caches[number] = emit(call, "appended")

    def attend(
        self, q: Tensor, config: DecoderConfig, kv_heads: int, value_width: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Attend to the caches.

        Returns
        -------
        mixed, lse : Tensor
            (batch, seq, key heads, shared heads, width), and without the width.
        """
        batch, seq, heads, width = q.shape
        q = nn.op.reshape(q, (batch, seq, kv_heads, heads // kv_heads, width))
        caches = [cache._expr for cache in (self.caches * 2)[:2]]
        call = paged_attention(
            q._expr,
            *caches,
            self.pages._expr,
            self.lengths._expr,
            scale=config.scale,
            page_size=self.page,
            window=config.window,
            score_cap=config.score_cap,
            value_width=value_width,
        )
        both = emit(call, "attention")
        return both[0], both[1]

    def mix(self, attention: AttentionBlock, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append keys and values, and attend: (batch, seq, heads, width) to (.., hidden)."""
        config = attention.config
        self.append(0, k)
        self.append(1, v)
        mixed, lse = self.attend(q, config, config.kv_heads)
        batch, seq, kv_heads, shared, width = mixed.shape
        if config.sinks:  # a logit without a value: the others weigh less
            sinks = nn.op.reshape(in_float32(attention.sinks), (1, 1, kv_heads, shared))
            share = nn.op.unsqueeze(nn.op.sigmoid(nn.op.subtract(lse, sinks)), 4)
            mixed = back_to(nn.op.multiply(in_float32(mixed), share), q.dtype)
        return nn.op.reshape(mixed, (batch, seq, kv_heads * shared * width))


class CachedLatentAttention(LatentAttention):
    """Latent attention to a cache of compressed keys and values, which heads do not expand.

    The products with ``kv_b_proj`` are made with queries and with results instead (DeepSeek-AI
    2024, "DeepSeek-V2", section 2.1.2).
    """

    def forward(self, x: Tensor, cached: CachedPositions) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        config = self.config
        heads, nope, rank = config.heads, config.nope_dim, config.kv_rank
        queries = by_head(self.queries(x), heads)
        batch, seq = queries.shape[:2]
        turned = rotate(part(queries, nope, config.width, "q_rope"), cached.cos, cached.sin, config)
        compressed, shared = self.latent(x)
        shared = rotate(by_head(shared, 1), cached.cos, cached.sin, config)
        cached.append(0, nn.op.concat([by_head(compressed, 1), shared], dim=3, name="latent"))
        both = nn.op.reshape(self.kv_b_proj.weight, (heads, nope + config.v_dim, rank))
        keys, values = (
            part(both, 0, nope, "w_k", 1),
            part(both, nope, nope + config.v_dim, "w_v", 1),
        )
        absorbed = _by_head(part(queries, 0, nope, "q_nope"), keys)
        q = nn.op.concat([absorbed, turned], dim=3, name="q")
        mixed, _ = cached.attend(q, config, 1, rank)
        mixed = nn.op.reshape(mixed, (batch, seq, heads, rank))
        mixed = _by_head(mixed, nn.op.permute_dims(values, [0, 2, 1]))
        return self.o_proj(nn.op.reshape(mixed, (batch, seq, heads * config.v_dim)))


def _by_head(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply (batch, seq, heads, in) by (heads, in, out)."""
    batch, seq, heads, width = x.shape
    x = nn.op.reshape(nn.op.permute_dims(x, [2, 0, 1, 3]), (heads, batch * seq, width))
    x = nn.op.reshape(nn.op.matmul(x, weights), (heads, batch, seq, weights.shape[2]))
    return nn.op.permute_dims(x, [1, 2, 0, 3])


class PooledMixture(Mixture):
    """Experts that take the tokens of all requests of a pool together.

    Those that no token selects are not read.
    """

    def __init__(self, config: DecoderConfig, pools: int) -> None:
        super().__init__(replace(config, seq=config.batch // pools * config.seq))
        self.pools = pools

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        batch, seq, hidden = x.shape
        pooled = nn.op.reshape(x, (self.pools, batch // self.pools * seq, hidden))
        return nn.op.reshape(super().forward(pooled), (batch, seq, hidden))

    def product(self, rows: Tensor, weight: Tensor, name: str) -> Tensor:
        """Multiply the slots of experts by their matrices."""
        config = self.config
        call = expert_matmul(
            rows._expr, weight._expr, config.experts, config.top_k, config.seq, config.capacity
        )
        return emit(call, name)


class CachedLayer(TransformerLayer):
    """Layer with caches, of pages of ``page`` positions; ``pools`` have experts of their own."""

    attention = (GroupedAttention, CachedLatentAttention)
    page, pools = 0, 1

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        pages: Tensor,
        lengths: Tensor,
        first: Tensor,
        second: Tensor = None,
    ) -> Tensor:
        """Map (batch, seq, hidden) to the same shape, and the caches to the new ones."""
        caches = [first] if second is None else [first, second]
        return self.step(x, CachedPositions(cos, sin, pages, lengths, caches, self.page))

    def mixture(self) -> Mixture:
        """Return the experts of the tokens of a pool."""
        return PooledMixture(self.config, self.pools)

    def step(self, x: Tensor, cached: CachedPositions) -> Tensor:
        """Map (batch, seq, hidden) to the same shape, with the new caches."""
        x = self.block(x, cached)
        return relax.Tuple([x._expr, *(cache._expr for cache in cached.caches)])


class UnrotatedLayer(CachedLayer):
    """Layer with caches of keys that are not rotated."""

    def forward(  # type: ignore[override]
        self, x: Tensor, pages: Tensor, lengths: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        """Map (batch, seq, hidden) to the same shape, and the caches to the new ones."""
        caches = [first, second]
        return self.step(x, CachedPositions(None, None, pages, lengths, caches, self.page))
