# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the Llama architecture in relax.nn: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.frontend import nn

from .configs import LlamaConfig
from .transformer_blocks import (
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


def rotary_tables(config: LlamaConfig, places: Any) -> tuple[Any, Any]:
    """Return cosines and signed sines of the rotary embedding, both float32 (seq, width).

    ``places`` holds the positions, int32 (seq,).

    Position p turns the pair (i, i + width / 2) by the angle p * theta^(-2 i / width)
    (Su et al. 2021, "RoFormer", eq. 15, in the half-split order). The sines of the first half
    are negated, so that ``x * cos + swapped(x) * sin`` is the rotation.
    """
    width = config.head_dim
    halves = np.arange(width) % (width // 2)
    speeds = (config.theta ** (-2.0 * halves / width)).astype("float32")
    signs = np.where(np.arange(width) < width // 2, -1.0, 1.0).astype("float32")
    place = nn.op.unsqueeze(nn.op.astype(places, "float32"), 1)
    angles = nn.op.multiply(place, Tensor.from_const(speeds[None, :]), name="angles")
    cos = emit(relax.op.cos(angles._expr), "cos")
    sin = emit(relax.op.sin(angles._expr), "sin")
    return cos, nn.op.multiply(sin, Tensor.from_const(signs[None, :]), name="signed_sin")


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Apply rotary embedding to (batch, heads, seq, width), computed in float32."""
    dtype, width = x.dtype, x.shape[3]
    x = in_float32(x)
    first = emit(relax.op.strided_slice(x._expr, [3], [0], [width // 2]), "first")
    second = emit(relax.op.strided_slice(x._expr, [3], [width // 2], [width]), "second")
    swapped = nn.op.concat([second, first], dim=3, name="swapped")
    turned = nn.op.add(nn.op.multiply(x, cos), nn.op.multiply(swapped, sin))
    return back_to(turned, dtype)


class GroupedQueryAttention(nn.Module):  # type: ignore[misc]
    """Causal grouped-query self-attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        width, kv_width = config.hidden, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(width, width, bias=False, dtype=config.dtype)
        self.k_proj = nn.Linear(width, kv_width, bias=False, dtype=config.dtype)
        self.v_proj = nn.Linear(width, kv_width, bias=False, dtype=config.dtype)
        self.o_proj = nn.Linear(width, width, bias=False, dtype=config.dtype)

    def forward(self, x: Any, mask: Any, cos: Any, sin: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        q = rotate(split_heads(self.q_proj(x), self.heads), cos, sin)
        k = rotate(split_heads(self.k_proj(x), self.kv_heads), cos, sin)
        v = split_heads(self.v_proj(x), self.kv_heads)
        return self.o_proj(merge_heads(attend(q, k, v, mask)))


class SwiGlu(nn.Module):  # type: ignore[misc]
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False, dtype=config.dtype)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False, dtype=config.dtype)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False, dtype=config.dtype)

    def forward(self, x: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        gate = nn.op.silu(self.gate_proj(x))
        return self.down_proj(nn.op.multiply(gate, self.up_proj(x)))


class LlamaLayer(nn.Module):  # type: ignore[misc]
    """Transformer layer, with the block after attention built by ``feed_forward``."""

    feed_forward: type = SwiGlu

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden, config.dtype, config.eps)
        self.self_attn = GroupedQueryAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden, config.dtype, config.eps)
        self.mlp = self.feed_forward(config)

    def forward(self, x: Any, mask: Any, cos: Any, sin: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        x = nn.op.add(x, self.self_attn(self.input_layernorm(x), mask, cos, sin))
        return nn.op.add(x, self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):  # type: ignore[misc]
    """Model from token ids to logits, with layers of the class ``layer``."""

    layer: type = LlamaLayer

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        layer = layer_class(self.layer, config.nested)
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden, config.dtype)
        self.layers = nn.ModuleList([layer(config) for _ in range(config.layers)])
        self.norm = RmsNorm(config.hidden, config.dtype, config.eps)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False, dtype=config.dtype)

    def main(self, input_ids: Any) -> Any:
        """Map ids (batch, seq) to logits (batch, seq, vocab)."""
        x = nn.op.take(self.embed_tokens.weight, input_ids, axis=0, name="tokens")
        places = positions(self.config.seq)
        mask = causal_mask(places)
        cos, sin = rotary_tables(self.config, places)
        for layer in self.layers:
            x = layer(x, mask, cos, sin)
        return self.lm_head(self.norm(x))


def build(config: LlamaConfig) -> ir.IRModule:
    """Build the module of a Llama without allocating weights."""
    return export_tokens(Llama(config), config.batch, config.seq)
