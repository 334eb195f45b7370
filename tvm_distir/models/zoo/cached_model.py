# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the serving step of decoders in relax.nn: new tokens behind paged caches.

``main(input_ids, pages, lengths, *caches, *weights) -> (logits, *caches)``: ``input_ids``, int32
(batch, seq), are the new tokens of each request; ``pages`` and ``lengths`` are those of
``R.dist.paged_attention``. The logits, (batch, vocab), are those of the last token of each
request. The weights are those of the model.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from tvm import ir, relax
from tvm.relax.frontend import nn

from tvm_distir.core.ir.operators import expert_matmul, kv_append, paged_attention

from .cached_config import CacheConfig
from .decoder_attention import AttentionBlock, GroupedAttention, LatentAttention
from .decoder_config import DecoderConfig
from .decoder_model import (
    Decoder,
    TransformerLayer,
    local_rotary,
    weight_words,
)
from .mixture import Mixture
from .rotary import rotate, tables
from .transformer_blocks import (
    Tensor,
    back_to,
    by_head,
    emit,
    export_model,
    in_float32,
    layer_class,
    part,
    positions,
)


class CachedPositions:
    """Tables that attention reads by position, and the caches that it appends to.

    Attributes
    ----------
    cos, sin : Tensor or None
        Tables of the new positions, (batch, seq, 1, rotated); None where positions are learned.
    caches : list of Tensor
        Of keys and values, or of both in latent attention; replaced by :meth:`append`.
    """

    def __init__(
        self, cos: Any, sin: Any, pages: Any, lengths: Any, caches: list[Any], page: int
    ) -> None:
        self.cos, self.sin, self.pages, self.lengths = cos, sin, pages, lengths
        self.caches, self.page = caches, page

    def arrange(self, rows: Any) -> Any:
        """Return (batch, seq, heads, width)."""
        return rows

    def append(self, number: int, rows: Any) -> None:
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
        self, q: Any, config: DecoderConfig, kv_heads: int, value_width: int = 0
    ) -> tuple[Any, Any]:
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

    def mix(self, attention: AttentionBlock, q: Any, k: Any, v: Any) -> Any:
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

    def forward(self, x: Any, places: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        config = self.config
        heads, nope, rank = config.heads, config.nope_dim, config.kv_rank
        queries = by_head(self.queries(x), heads)
        batch, seq = queries.shape[:2]
        turned = rotate(part(queries, nope, config.width, "q_rope"), places.cos, places.sin, config)
        compressed, shared = self.latent(x)
        shared = rotate(by_head(shared, 1), places.cos, places.sin, config)
        row = nn.op.concat([by_head(compressed, 1), shared], dim=3, name="latent")
        places.append(0, row)
        both = nn.op.reshape(self.kv_b_proj.weight, (heads, nope + config.v_dim, rank))
        keys, values = (
            part(both, 0, nope, "w_k", 1),
            part(both, nope, nope + config.v_dim, "w_v", 1),
        )
        absorbed = _by_head(part(queries, 0, nope, "q_nope"), keys)
        q = nn.op.concat([absorbed, turned], dim=3, name="q")
        mixed, _ = places.attend(q, config, 1, rank)
        mixed = nn.op.reshape(mixed, (batch, seq, heads, rank))
        mixed = _by_head(mixed, nn.op.permute_dims(values, [0, 2, 1]))
        return self.o_proj(nn.op.reshape(mixed, (batch, seq, heads * config.v_dim)))


def _by_head(x: Any, weights: Any) -> Any:
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

    def forward(self, x: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        batch, seq, hidden = x.shape
        pooled = nn.op.reshape(x, (self.pools, batch // self.pools * seq, hidden))
        return nn.op.reshape(super().forward(pooled), (batch, seq, hidden))

    def product(self, rows: Any, weight: Any, name: str) -> Any:
        """Multiply the slots of experts by their matrices."""
        config = self.config
        call = expert_matmul(
            rows._expr, weight._expr, config.experts, config.top_k, config.seq, config.capacity
        )
        return emit(call, name)


class _Cached(TransformerLayer):
    """Layer with caches, of pages of ``page`` positions; ``pools`` have experts of their own."""

    attention = (GroupedAttention, CachedLatentAttention)
    page, pools = 0, 1

    def forward(  # type: ignore[override]
        self, x: Any, cos: Any, sin: Any, pages: Any, lengths: Any, first: Any, second: Any = None
    ) -> Any:
        """Map (batch, seq, hidden) to the same shape, and the caches to the new ones."""
        caches = [first] if second is None else [first, second]
        return self.step(x, CachedPositions(cos, sin, pages, lengths, caches, self.page))

    def mixture(self) -> Mixture:
        """Return the experts of the tokens of a pool."""
        return PooledMixture(self.config, self.pools)

    def step(self, x: Any, places: CachedPositions) -> Any:
        """Map (batch, seq, hidden) to the same shape, with the new caches."""
        x = self.block(x, places)
        return relax.Tuple([x._expr, *(cache._expr for cache in places.caches)])


class _Unrotated(_Cached):
    """Layer with caches of keys that are not rotated."""

    def forward(  # type: ignore[override]
        self, x: Any, pages: Any, lengths: Any, first: Any, second: Any
    ) -> Any:
        """Map (batch, seq, hidden) to the same shape, and the caches to the new ones."""
        caches = [first, second]
        return self.step(x, CachedPositions(None, None, pages, lengths, caches, self.page))


class CachedDecoder(Decoder):
    """Model from new token ids to logits, with caches as inputs and results."""

    def __init__(self, config: DecoderConfig, caches: CacheConfig) -> None:
        super().__init__(config)
        self.caches = caches
        classes: dict[tuple[bool, bool], Any] = {}
        layers = []
        for number in range(config.layers):
            experts, windowed = config.has_experts(number), config.has_window(number)
            if (experts, windowed) not in classes:
                classes[experts, windowed] = self._class(experts, windowed)
            window = config.window if windowed else 0
            layers.append(classes[experts, windowed](replace(config, window=window), experts))
        self.layers = nn.ModuleList(layers)

    def _class(self, experts: bool, windowed: bool) -> Any:
        """Return a class of layers; layers of a class share a private function."""
        config, caches = self.config, self.caches
        name = ("Windowed" if windowed else "") + ("" if experts or not config.experts else "Dense")
        layer = layer_class(
            _Unrotated if config.positions else _Cached, config.nested, f"{name}Layer"
        )
        layer.page, layer.pools = caches.page, caches.pools
        return layer

    def step(self, input_ids: Any, pages: Any, lengths: Any, *caches: Any) -> tuple[Any, ...]:
        """Map new tokens and caches to logits (batch, vocab) and the new caches."""
        config = self.config
        lengths_of_rows = nn.op.unsqueeze(lengths, 1)
        new = nn.op.unsqueeze(positions(config.seq), 0)
        places = nn.op.add(lengths_of_rows, new, name="places")
        x = self.embedded(input_ids, places)
        by_window = {False: self._rotation(config, places, config.theta)}
        if config.local_theta:
            by_window[True] = self._rotation(local_rotary(config), places, config.local_theta)
        count = len(caches) // config.layers
        results: list[Any] = []
        for number, layer in enumerate(self.layers):
            rotation = by_window.get(config.has_window(number), by_window[False])
            layer_caches = caches[number * count : (number + 1) * count]
            out = layer(x, *rotation, pages, lengths, *layer_caches)
            x, *new_caches = unpacked(out, 1 + count)
            results += new_caches
        x = part(x, config.seq - 1, config.seq, "last", axis=1)
        logits = nn.op.reshape(self.logits(x), (config.batch, config.vocab))
        return (logits, *results)

    @staticmethod
    def _rotation(config: DecoderConfig, places: Any, theta: float) -> tuple[Any, ...]:
        if config.positions:
            return ()
        cos, sin = tables(config, places, theta)
        return nn.op.unsqueeze(cos, 2), nn.op.unsqueeze(sin, 2)


def unpacked(out: Any, count: int) -> list[Any]:
    """Return the fields of the tuple that a layer, or the call of its function, gives."""
    if isinstance(out, relax.Tuple):
        return [Tensor(_expr=field) for field in out.fields]
    bound = relax.BlockBuilder.current().emit(out, "layer_output")
    return [emit(relax.TupleGetItem(bound, i), "item") for i in range(count)]


def cache_specs(config: DecoderConfig, caches: CacheConfig) -> dict[str, tuple[list[int], str]]:
    """Return shape and dtype of each cache by its name, in order."""
    dtype = caches.kv_dtype or config.dtype
    rows = [caches.pools, caches.pool_pages(config), caches.page]
    if config.kv_rank:
        specs = {"kv_cache": [*rows, 1, config.kv_rank + config.rope_dim]}
    else:
        shape = [*rows, config.kv_heads, config.plain_width]
        specs = {"k_cache": shape, "v_cache": shape}
    return {
        f"layers.{number}.{name}": (shape, dtype)
        for number in range(config.layers)
        for name, shape in specs.items()
    }


def build(config: DecoderConfig, caches: CacheConfig) -> ir.IRModule:
    """Build the module of a serving step without allocating weights; nothing is dropped."""
    specs = cache_specs(config, caches)
    batch = config.batch
    data: dict[str, tuple[list[int], str]] = {
        "input_ids": ([batch, config.seq], "int32"),
        "pages": ([batch, caches.columns(config)], "int32"),
        "lengths": ([batch], "int32"),
    }
    plain = {name.replace(".", "_"): spec for name, spec in specs.items()}
    names = ["self", *data, *plain]

    def main(self: Any, *inputs: Any) -> Any:
        return self.step(*inputs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    main.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    model = type("Serving", (CachedDecoder,), {"main": main})(replace(config, dropout=0.0), caches)
    dotted = dict(zip(plain, specs, strict=True))
    return export_model(model, dotted, weight_words(config), **data, **plain)
