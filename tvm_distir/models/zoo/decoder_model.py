# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define decoders of many families in relax.nn, see :class:`.decoder_config.DecoderConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tvm import ir, relax
from tvm.relax.frontend import nn

from .decoder_config import DecoderConfig
from .mixture import GatedBlock, Mixture, PlainBlock
from .one_hot_mixture import OneHotMixture
from .rotary import part, rotate, tables
from .transformer_blocks import (
    MASKED_SCORE,
    LayerNorm,
    RmsNorm,
    Tensor,
    attend,
    back_to,
    causal_mask,
    emit,
    export_tokens,
    in_float32,
    layer_class,
    merge_heads,
    positions,
    split_heads,
)


class PositionTables(NamedTuple):
    """Tables that attention reads by position: a bool mask (seq, seq), cosines and signed sines."""

    mask: Any
    cos: Any
    sin: Any

    @staticmethod
    def split(x: Any, heads: int) -> Any:
        """Split (batch, seq, heads * width) into (batch, heads, seq, width)."""
        return split_heads(x, heads)

    def mix(self, attention: AttentionBlock, q: Any, k: Any, v: Any) -> Any:
        """Attend to all tokens: (batch, heads, seq, width) of each to (batch, seq, hidden)."""
        config = attention.config
        if not config.sinks and not config.score_cap:
            return merge_heads(attend(q, k, v, self.mask, scale=config.scale))
        return merge_heads(attention.attend_with_sinks(q, k, v, self.mask))


def norm(width: int, config: DecoderConfig) -> Any:
    """Return the norm of a configuration over ``width`` elements."""
    if config.norm == "layer":
        return LayerNorm(width, config.dtype, config.eps)
    if config.norm == "plain":
        return LayerNorm(width, config.dtype, config.eps, weighted=False)
    return RmsNorm(width, config.dtype, config.eps, bool(config.norm_offset))


def capped(x: Any, cap: float) -> Any:
    """Return ``cap tanh(x / cap)``, or ``x`` where the cap is 0."""
    if not cap:
        return x
    ratio = nn.op.multiply(x, Tensor.from_scalar(1.0 / cap, x.dtype))
    return nn.op.multiply(nn.op.tanh(ratio), Tensor.from_scalar(cap, x.dtype), name="capped")


def windowed_mask(places: Any, window: int) -> Any:
    """Return a bool (seq, seq) mask of the last ``window`` tokens up to the row's."""
    rows = nn.op.unsqueeze(places, 1, name="rows")
    columns = nn.op.unsqueeze(places, 0, name="columns")
    far = nn.op.add(columns, Tensor.from_scalar(window, "int32"))
    near = emit(relax.op.greater(far._expr, rows._expr), "near")
    return emit(relax.op.logical_and(causal_mask(places)._expr, near._expr), "window_mask")


class AttentionBlock(nn.Module):  # type: ignore[misc]
    """Causal attention of queries, keys and values that a subclass projects."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config

    def mix_values(self, width: int) -> None:
        """Add the weights behind the values, which have ``width`` elements per head."""
        config = self.config
        self.o_proj = nn.Linear(
            config.heads * width, config.hidden, bias=bool(config.o_bias), dtype=config.dtype
        )
        if config.sinks:
            self.sinks = nn.Parameter((config.heads,), config.dtype)

    def attend_with_sinks(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Compute attention with capped scores, and with a learned logit per head."""
        config, dtype = self.config, q.dtype
        batch, heads, seq, width = q.shape
        kv_heads, shared = k.shape[1], heads // k.shape[1]
        q = nn.op.reshape(q, (batch, kv_heads, shared, seq, width))
        k, v = nn.op.unsqueeze(k, 2), nn.op.unsqueeze(v, 2)
        scores = nn.op.matmul(q, nn.op.permute_dims(k, [0, 1, 2, 4, 3]), name="scores")
        scores = nn.op.multiply(scores, Tensor.from_scalar(config.scale, dtype), name="scaled")
        scores = capped(in_float32(scores), config.score_cap)
        floor = Tensor.from_scalar(MASKED_SCORE, "float32")
        scores = nn.op.where(mask, scores, floor, name="masked")
        if config.sinks:
            sinks = nn.op.reshape(in_float32(self.sinks), (1, kv_heads, shared, 1, 1))
            sinks = nn.op.broadcast_to(sinks, (batch, kv_heads, shared, seq, 1))
            scores = nn.op.concat([scores, sinks], dim=4, name="scores_and_sink")
        weights = back_to(nn.op.softmax(scores, axis=-1, name="probs"), dtype)
        if config.sinks:
            weights = part(weights, 0, seq, "weights", axis=4)
        mixed = nn.op.matmul(weights, v, name="mixed")
        return nn.op.reshape(mixed, (batch, heads, seq, v.shape[4]))


class GroupedAttention(AttentionBlock):
    """Grouped-query attention, with biases and norms of heads where configured."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        width = config.plain_width
        bias, dtype = bool(config.qkv_bias), config.dtype
        queries, keys = config.heads * width, config.kv_heads * width
        self.q_proj = nn.Linear(config.hidden, queries, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(config.hidden, keys, bias=bias, dtype=dtype)
        self.v_proj = nn.Linear(config.hidden, keys, bias=bias, dtype=dtype)
        self.mix_values(width)
        if config.qk_norm:
            self.q_norm = norm(width, config)
            self.k_norm = norm(width, config)
        elif config.joint_qk_norm:
            self.q_norm = norm(queries, config)
            self.k_norm = norm(keys, config)

    def forward(self, x: Any, places: PositionTables) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        config = self.config
        q = self._turned("q", x, config.heads, places)
        k = self._turned("k", x, config.kv_heads, places)
        v = places.split(self.v_proj(x), config.kv_heads)
        return self.o_proj(places.mix(self, q, k, v))

    def _turned(self, name: str, x: Any, heads: int, places: PositionTables) -> Any:
        """Return the queries ("q") or keys ("k") of (batch, seq, hidden), rotated."""
        config = self.config
        x = getattr(self, f"{name}_proj")(x)
        if config.joint_qk_norm:
            x = getattr(self, f"{name}_norm")(x)
        x = places.split(x, heads)
        if config.qk_norm:
            x = getattr(self, f"{name}_norm")(x)
        return rotate(x, places.cos, places.sin, config)


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
        self.mix_values(config.v_dim)

    def forward(self, x: Any, places: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        config = self.config
        heads, nope = config.heads, config.nope_dim
        queries = split_heads(self.queries(x), heads)
        turned = rotate(part(queries, nope, config.width, "q_rope"), places.cos, places.sin, config)
        q = nn.op.concat([part(queries, 0, nope, "q_nope"), turned], dim=3, name="q")
        compressed, shared = self.latent(x)
        shared = rotate(split_heads(shared, 1), places.cos, places.sin, config)
        both = split_heads(self.kv_b_proj(compressed), heads)
        batch, _, seq, _ = both.shape
        shared = nn.op.broadcast_to(shared, (batch, heads, seq, config.rope_dim))
        k = nn.op.concat([part(both, 0, nope, "k_nope"), shared], dim=3, name="k")
        return self.o_proj(places.mix(self, q, k, part(both, nope, nope + config.v_dim, "v")))

    def latent(self, x: Any) -> tuple[Any, Any]:
        """Return the compressed keys and values, and the keys that all heads share, unrotated."""
        rank, width = self.config.kv_rank, self.config.kv_rank + self.config.rope_dim
        latent = self.kv_a_proj_with_mqa(x)
        shared = part(latent, rank, width, "k_rope", axis=2)
        return self.kv_a_layernorm(part(latent, 0, rank, "compressed", axis=2)), shared

    def queries(self, x: Any) -> Any:
        """Return the queries of all heads, (batch, seq, heads * width)."""
        if self.config.q_rank:
            return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return self.q_proj(x)


class TransformerLayer(nn.Module):  # type: ignore[misc]
    """Layer of the transformer, with the attention and feed-forward blocks of a subclass."""

    attention: tuple[type, type] = (GroupedAttention, LatentAttention)
    feed_forward: Callable[[DecoderConfig], Any]

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        before, behind = _norm_names(config)
        for name in before:
            setattr(self, name, norm(config.hidden, config))
        self.self_attn = self.attention[bool(config.kv_rank)](config)
        for name in behind:
            setattr(self, name, norm(config.hidden, config))
        self.mlp = type(self).feed_forward(config)

    def forward(self, x: Any, mask: Any, cos: Any, sin: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        return self.block(x, PositionTables(mask, cos, sin))

    def block(self, x: Any, places: Any) -> Any:
        """Apply attention, with what it reads by position, and the feed-forward block."""
        config = self.config
        if config.parallel:
            read = self.input_layernorm(x)
            apart = self.mlp_layernorm(x) if config.parallel_norms == 2 else read
            return nn.op.add(nn.op.add(x, self.self_attn(read, places)), self.mlp(apart))
        mixed = self.self_attn(self.input_layernorm(x) if config.pre_norms else x, places)
        if not config.post_norms:
            x = nn.op.add(x, mixed)
            return nn.op.add(x, self.mlp(self.post_attention_layernorm(x)))
        x = nn.op.add(x, self.post_attention_layernorm(mixed))
        out = self.mlp(self.pre_feedforward_layernorm(x) if config.pre_norms else x)
        return nn.op.add(x, self.post_feedforward_layernorm(out))


def _norm_names(config: DecoderConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the norms of a layer, before its attention and behind it."""
    if config.parallel:
        return ("input_layernorm", "mlp_layernorm")[: config.parallel_norms], ()
    before = ("input_layernorm",) if config.pre_norms else ()
    if not config.post_norms:
        return before, ("post_attention_layernorm",)
    inner = ("pre_feedforward_layernorm",) if config.pre_norms else ()
    return before, ("post_attention_layernorm", *inner, "post_feedforward_layernorm")


def _dense(config: DecoderConfig) -> Any:
    return (GatedBlock if config.gated else PlainBlock)(config, config.ffn)


class DenseLayer(TransformerLayer):
    """Layer with one feed-forward block."""

    feed_forward = staticmethod(_dense)


def _experts(config: DecoderConfig) -> Any:
    return (OneHotMixture if config.dispatch == "one_hot" else Mixture)(config)


class ExpertLayer(TransformerLayer):
    """Layer with experts."""

    feed_forward = staticmethod(_experts)


class Decoder(nn.Module):  # type: ignore[misc]
    """Model from token ids to logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        dense = layer_class(DenseLayer, config.nested, "DenseLayer" if config.experts else "Layer")
        experts = layer_class(ExpertLayer, config.nested, "Layer")
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden, config.dtype)
        self.layers = nn.ModuleList(
            [
                (experts if config.has_experts(number) else dense)(config)
                for number in range(config.layers)
            ]
        )
        self.norm = norm(config.hidden, config)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False, dtype=config.dtype)

    def main(self, input_ids: Any) -> Any:
        """Map ids (batch, seq) to logits (batch, seq, vocab)."""
        config = self.config
        x = self.embedded(input_ids)
        by_window = self._places()
        for number, layer in enumerate(self.layers):
            x = layer(x, *by_window[config.has_window(number)])
        return self.logits(x)

    def embedded(self, input_ids: Any) -> Any:
        """Map ids (batch, seq) to (batch, seq, hidden)."""
        config = self.config
        x = nn.op.take(self.embed_tokens.weight, input_ids, axis=0, name="tokens")
        if config.embed_scale:
            scale = Tensor.from_scalar(math.sqrt(config.hidden), config.dtype)
            x = nn.op.multiply(x, scale, name="scaled_tokens")
        return x

    def logits(self, x: Any) -> Any:
        """Map (batch, seq, hidden) to logits (batch, seq, vocab)."""
        config = self.config
        x = self.norm(x)
        if config.tied:
            table = nn.op.permute_dims(self.embed_tokens.weight, [1, 0])
            logits = nn.op.matmul(x, table, name="logits")
        else:
            logits = self.lm_head(x)
        return capped(logits, config.logit_cap)

    def _places(self) -> dict[bool, PositionTables]:
        """Return what layers with and without a window know of positions."""
        config, places = self.config, positions(self.config.seq)
        by_window, table = {}, None
        for windowed in sorted({config.has_window(number) for number in range(config.layers)}):
            mask = windowed_mask(places, config.window) if windowed else causal_mask(places)
            if windowed and config.local_theta:
                table = tables(local_rotary(config), places, config.local_theta)
            elif table is None:
                table = tables(config, places, config.theta)
            by_window[windowed] = PositionTables(mask, *table)
        return by_window


def local_rotary(config: DecoderConfig) -> DecoderConfig:
    """Return the configuration of the rotary embedding of layers with a window: not scaled."""
    return replace(config, rotary_scaling="none")


def build(config: DecoderConfig) -> ir.IRModule:
    """Build the module of a decoder without allocating weights."""
    return export_tokens(Decoder(config), config.batch, config.seq)
